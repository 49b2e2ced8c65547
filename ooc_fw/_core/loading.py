"""Load numba, and keep compiled code on disk for later processes.

A process runs the compiled code that it finds, so it must be kept in a directory to which nobody
else can write. This is the directory in the environment variable OOC_FW_CACHE or, without it, one
that numba chooses (NUMBA_CACHE_DIR, beside the package, or in the user's home). If there is none,
every process compiles again.
"""

from __future__ import annotations

import functools
import logging
import os
import pickle
import stat
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)


class Compilation:
    """Functions that this process has to compile, because they are not on disk."""

    begun = 0
    ended = 0

    @classmethod
    def under_way(cls) -> bool:
        """Whether a function is being compiled."""
        return cls.begun > cls.ended


@functools.cache
def _count_compilations() -> None:
    from numba.core import event

    class Counter(event.Listener):  # type: ignore[misc]
        def on_start(self, _: Any) -> None:
            Compilation.begun += 1

        def on_end(self, _: Any) -> None:
            Compilation.ended += 1

    event.register("numba:compile", Counter())


def njit(*, cache: bool, **options: Any) -> Callable[[Any], Any]:
    """`numba.njit`, with `cache` in the directory that the docstring of this module describes."""
    import numba

    _count_compilations()

    def compiled(function: Any) -> Any:
        dispatcher = numba.njit(**options)(function)
        if cache:
            try:
                dispatcher._cache = _kept_code()(function)
            except (RuntimeError, OSError):  # numba finds no directory to which it can write
                _warn("compiled code can be kept nowhere, so that every process compiles again")
        return dispatcher

    return compiled


@functools.cache
def _kept_code() -> Any:
    """A `FunctionCache` class whose faults raise no error: code is compiled again.

    It loads code at once. numba's own class would first register every function that numba can
    compile, and compile its runtime. This takes 0.3 s, and a compilation does it when it begins.
    """
    import llvmlite.binding as llvm
    from numba.core import caching, config
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
            before = config.CACHE_DIR
            config.CACHE_DIR = _named_directory() or before
            try:
                super().__init__(function)
            finally:
                config.CACHE_DIR = before
            self._cache_file._source_stamp = sources  # code contains the functions that it calls

        def load_overload(self, sig: Any, target_context: Any) -> Any:
            try:
                return self._load_overload(sig, target_context)
            except Exception:  # a damaged pickle or the system may raise any error
                with suppress(Exception):
                    self.flush()  # it replaces the index, so that all code is written again
                return None

        def save_overload(self, sig: Any, data: Any) -> None:
            with suppress(Exception):
                self._save_overload(sig, data)

    return KeptCode


@functools.cache
def _named_directory() -> str:
    """The directory in OOC_FW_CACHE; "" if there is none, or if others can write to it."""
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
