"""Load numba, and keep compiled code on disk for later processes.

Numba chooses the directory: that in the environment variable NUMBA_CACHE_DIR, one beside the
package, or one in the user's home. A process runs the code that it finds there. If it can write to
none, every process compiles again.
"""

from __future__ import annotations

import functools
import logging
import pickle
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)


class Compilation:
    """Numbers of functions that this process has to compile, because they are not on disk."""

    begun = 0
    ended = 0


def njit(*, cache: bool, **options: Any) -> Callable[[Any], Any]:
    """`numba.njit`, with `cache` in the directory that the docstring of this module describes."""
    import numba

    def compiled(function: Any) -> Any:
        dispatcher = numba.njit(**options)(function)
        if cache:
            try:
                dispatcher._cache = _kept_code()(function)
            except (RuntimeError, OSError):  # numba finds no directory to which it can write
                _warn()
            except (ImportError, AttributeError, TypeError):  # this numba has no such parts
                dispatcher.enable_caching()
        return dispatcher

    return compiled


@functools.cache
def _kept_code() -> Any:
    """A `FunctionCache` class whose faults raise no error: code is compiled again.

    It loads code at once. numba's own class would first register every function that numba can
    compile, and compile its runtime. This takes 0.3 s, and a compilation does it when it begins.
    This takes parts of numba that a release may change; then numba's own class has to do.
    """
    import llvmlite.binding as llvm
    from numba.core import caching
    from numba.core.runtime import _nrt_python

    for name, address in _nrt_python.c_helpers.items():  # functions that compiled code calls
        llvm.add_symbol(name if name.startswith("_") else f"NRT_{name}", address)
    files = [path.stat() for path in sorted(Path(__file__).parent.glob("*.py"))]
    sources = tuple((file.st_mtime, file.st_size) for file in files)

    class CheckedCode(caching.CompileResultCacheImpl):  # type: ignore[misc]
        """Compiled code with a checksum, since a damaged file could crash the process."""

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
            self._cache_file._source_stamp = sources  # code contains the functions that it calls

        def load_overload(self, sig: Any, target_context: Any) -> Any:
            found = None
            try:
                found = self._load_overload(sig, target_context)
            except Exception:  # a damaged pickle or the system may raise any error
                with suppress(Exception):
                    self.flush()  # it replaces the index, so that all code is written again
            Compilation.begun += found is None
            return found

        def save_overload(self, sig: Any, data: Any) -> None:
            Compilation.ended += 1
            with suppress(Exception):
                self._save_overload(sig, data)

    return KeptCode


@functools.cache
def _warn() -> None:
    way = "set NUMBA_CACHE_DIR to a directory to which only you can write"
    logger.warning("compiled code can be kept nowhere, so every process compiles again; %s", way)
