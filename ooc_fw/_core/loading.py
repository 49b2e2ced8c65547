"""How numba is loaded, and where compiled code is kept from one process to the next.

A process runs the compiled code that it finds, so that code is kept only where nobody else can
write: in the directory that the environment variable OOC_FW_CACHE names, else where numba puts it
(NUMBA_CACHE_DIR, beside the package, in the user's home). Without any of them, every process
compiles again.
"""

from __future__ import annotations

import functools
import logging
import os
import pickle
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)


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
        if cache:
            try:
                dispatcher._cache = _kept_code()(function)
            except (RuntimeError, OSError):  # there is no place that numba can write to
                _warn("compiled code can be kept nowhere, so that every process compiles again")
        return dispatcher

    return compiled


@functools.cache
def _kept_code() -> Any:
    """A `FunctionCache` of which no fault is an error: code is compiled again.

    It loads code without first registering every function that numba can compile, and compiling
    numba's own runtime, which takes 0.3 s: a compilation does so when it begins.
    """
    import llvmlite.binding as llvm
    from numba.core import caching, config
    from numba.core.runtime import _nrt_python

    for name, address in _nrt_python.c_helpers.items():  # what compiled code calls
        llvm.add_symbol(name if name.startswith("_") else f"NRT_{name}", address)
    files = [path.stat() for path in sorted(Path(__file__).parent.glob("*.py"))]
    sources = tuple((file.st_mtime, file.st_size) for file in files)

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
            before = config.CACHE_DIR
            config.CACHE_DIR = _named_directory() or before
            try:
                super().__init__(function)
            finally:
                config.CACHE_DIR = before
            self._cache_file._source_stamp = sources  # a function contains those that it calls

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
def _named_directory() -> str:
    """The directory that the environment names; empty if none, or if others can write to it."""
    path = os.environ.get("OOC_FW_CACHE", "")
    if not path:
        return ""
    with suppress(OSError):
        os.makedirs(path, 0o700, exist_ok=True)
        status = os.stat(path)
        if status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return os.path.realpath(path)
    _warn(f"{path} is not used for compiled code, since it is not yours alone")
    return ""


@functools.cache
def _warn(fault: str) -> None:
    logger.warning("%s; set OOC_FW_CACHE to a directory that only you can write to", fault)
