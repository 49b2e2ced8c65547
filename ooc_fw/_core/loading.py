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
import stat
import tempfile
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
            except RuntimeError:  # numba can write neither there nor where it would choose
                continue
            finally:
                numba.config.CACHE_DIR = before
        return dispatcher

    return compiled


@functools.cache
def _kept_code() -> Any:
    """A `FunctionCache` that loads compiled code without all from which numba compiles.

    That of numba first registers every function it can compile and compiles its own runtime, of
    which each kept function has a copy. It also parses the intermediate code of each, which only
    compiling a caller needs: here that happens when a caller is compiled.
    """
    import llvmlite.binding as llvm
    from numba.core import caching
    from numba.core.runtime import _nrt_python

    for name, address in _nrt_python.c_helpers.items():  # what compiled code calls
        llvm.add_symbol(name if name.startswith("_") else f"NRT_{name}", address)
    no_code = llvm.parse_assembly("").as_bitcode()

    class LinkedCode(caching.CompileResultCacheImpl):  # type: ignore[misc]
        def rebuild(self, target_context: Any, payload: Any) -> Any:
            (name, kind, (machine_code, intermediate)), description, *rest = payload
            # numba looks only for functions that it has seen defined.
            engine = target_context.codegen()._engine
            engine._defined_symbols.add(description.llvm_cpython_wrapper_name)
            payload = (name, kind, (machine_code, no_code)), description, *rest
            result = super().rebuild(target_context, payload)
            parse = functools.cache(functools.partial(llvm.parse_bitcode, intermediate))
            result.library._get_module_for_linking = parse
            return result

    class KeptCode(caching.FunctionCache):  # type: ignore[misc]
        _impl_class = LinkedCode

        def __init__(self, function: Any) -> None:
            super().__init__(function)
            # A function contains those of other modules that it calls.
            base, stamp = self._impl.filename_base, _sources_stamp()
            self._cache_file = caching.IndexDataCacheFile(self._cache_path, base, stamp)

        def load_overload(self, sig: Any, target_context: Any) -> Any:
            with self._guard_against_spurious_io_errors():
                return self._load_overload(sig, target_context)

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
