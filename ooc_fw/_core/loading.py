"""How numba is loaded, and where compiled code is kept from one process to the next.

A process runs the compiled code that it finds, so that code is kept only where nobody else can
write: in the directory that the environment variable OOC_FW_CACHE names, else where numba puts it
(NUMBA_CACHE_DIR, beside the package, in the user's home), else in a private directory among the
temporary files. Without any of them, every process compiles again.
"""

from __future__ import annotations

import functools
import logging
import os
import pickle
import stat
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

_WRITE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


@contextmanager
def noting_compilation(note: Callable[[], None]) -> Iterator[None]:
    """Call `note` whenever a function is compiled, rather than found where code is kept."""
    from numba.core import event

    class Compilation(event.Listener):  # type: ignore[misc]
        def on_start(self, _: Any) -> None:
            note()

        def on_end(self, _: Any) -> None:
            pass

    with event.install_listener("numba:compile", Compilation()):
        yield


def njit(*, cache: bool, **options: Any) -> Callable[[Any], Any]:
    """`numba.njit`, with compiled code kept where the docstring of this module says."""
    import numba

    def compiled(function: Any) -> Any:
        dispatcher = numba.njit(**options)(function)
        before = numba.config.CACHE_DIR  # if empty, numba chooses
        for directory in (_named_directory, _temporary_directory) if cache else ():
            if (place := directory()) is None:
                continue
            numba.config.CACHE_DIR = place or before
            try:
                dispatcher._cache = _kept_code()(function)
                break
            except (RuntimeError, OSError):  # numba can write neither there nor where it would
                continue
            finally:
                numba.config.CACHE_DIR = before
        return dispatcher

    return compiled


@functools.cache
def _kept_code() -> Any:
    """A `FunctionCache` of which no fault is an error: code is compiled again.

    It loads code without first registering every function that numba can compile, and compiling
    numba's own runtime, which takes 0.3 s: a compilation does so when it begins.
    """
    import llvmlite.binding as llvm
    from numba.core import caching
    from numba.core.runtime import _nrt_python

    for name, address in _nrt_python.c_helpers.items():  # what compiled code calls
        llvm.add_symbol(name if name.startswith("_") else f"NRT_{name}", address)

    class CheckedCode(caching.CompileResultCacheImpl):  # type: ignore[misc]
        """With a checksum: a damaged file could crash the process."""

        def reduce(self, result: Any) -> Any:
            data = caching.dumps(super().reduce(result))
            return zlib.crc32(data), data

        def rebuild(self, target_context: Any, payload: Any) -> Any:
            checksum, data = payload
            if zlib.crc32(data) != checksum:
                raise ValueError("the file is damaged")
            return super().rebuild(target_context, pickle.loads(data))

    class KeptCode(caching.FunctionCache):  # type: ignore[misc]
        _impl_class = CheckedCode

        def __init__(self, function: Any) -> None:
            super().__init__(function)
            # A function contains those of other modules that it calls.
            self._cache_file._source_stamp = _sources_stamp()

        def load_overload(self, sig: Any, target_context: Any) -> Any:
            try:
                return self._load_overload(sig, target_context)
            except Exception:  # whatever a damaged pickle raises, or the system
                with suppress(Exception):
                    self.flush()  # replaces the index, so that all is written again
                return None

        def save_overload(self, sig: Any, data: Any) -> None:
            with suppress(Exception):
                self._save_overload(sig, data)

    return KeptCode


@functools.cache
def _sources_stamp() -> tuple[tuple[float, int], ...]:
    """When the modules of compiled code were changed last, and their sizes."""
    states = [path.stat() for path in sorted(Path(__file__).parent.glob("*.py"))]
    return tuple((state.st_mtime, state.st_size) for state in states)


@functools.cache
def _named_directory() -> str:
    """The directory that the environment names; empty if none, or if it is not to be trusted."""
    path = os.environ.get("OOC_FW_CACHE", "")
    if path:
        with suppress(OSError):
            os.makedirs(path, 0o700, exist_ok=True)
        path = os.path.realpath(path)
        if not _is_own_directory(path, _WRITE_BY_OTHERS):
            logger.warning(
                "OOC_FW_CACHE names %s, which is not used for compiled code: it must be a "
                "directory that belongs to you and that only you can write to",
                path,
            )
            return ""
    return path


@functools.cache
def _temporary_directory() -> str | None:
    """A private directory among the temporary files; None, with a warning, if impossible."""
    with suppress(OSError):
        parent = os.path.realpath(tempfile.gettempdir())
        path = os.path.join(parent, f"ooc-fw-compiled-{os.geteuid()}")
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)
        mode = os.stat(parent).st_mode
        replaceable = mode & _WRITE_BY_OTHERS and not mode & stat.S_ISVTX
        if not replaceable and _is_own_directory(path, stat.S_IRWXG | stat.S_IRWXO):
            return path
    logger.warning(
        "compiled code can be kept nowhere, so that every process compiles again, which takes some "
        "seconds; set OOC_FW_CACHE to a directory that only you can write to"
    )
    return None


def _is_own_directory(path: str, forbidden: int) -> bool:
    """Whether `path` is a directory, not a link to one, of this user and without these modes."""
    with suppress(OSError):
        status = os.lstat(path)
        is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
        return is_ours and not status.st_mode & forbidden
    return False
