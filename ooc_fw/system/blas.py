"""BLAS with one thread while any kernel engine of this process is open.

Engines may overlap, in any order and on any thread, so that the nested context managers of
threadpoolctl do not suffice: the first that opens sets the number of threads of the process to one,
the last that closes restores it.
"""

from __future__ import annotations

import sys
import threading
import weakref
from typing import Any

from threadpoolctl import ThreadpoolController

_lock = threading.RLock()  # reentrant: the garbage collector may close an engine at any moment
_holders = 0
_before: list[tuple[Any, int]] = []  # BLAS libraries and their threads before the first engine
_found: tuple[int, list[Any]] = (0, [])  # BLAS libraries, when so many modules were imported


def hold_to_one_thread(holder: object) -> weakref.finalize[[], Any]:
    """Limit BLAS to one thread until the returned value is called or `holder` is collected."""
    global _holders
    with _lock:
        _holders += 1
        if _holders == 1:
            _before[:] = [(library, library.num_threads) for library in _libraries()]
        limit_this_thread()
    return weakref.finalize(holder, _release)


def _libraries() -> list[Any]:
    """The BLAS libraries of this process; looked for, in milliseconds, after new imports only."""
    global _found
    if _found[0] != len(sys.modules):
        controller = ThreadpoolController().select(user_api="blas")
        _found = len(sys.modules), list(controller.lib_controllers)
    return _found[1]


def limit_this_thread() -> None:
    """Limit the libraries that have a number of threads for each calling thread (OpenMP)."""
    for library, _ in _before:
        _set(library, 1)


def _set(library: Any, threads: int) -> None:
    # Newer versions accept a number only from the thread that set it first, unless that is cleared.
    if hasattr(library, "clear_controlling_thread"):
        library.clear_controlling_thread(force=True)
    library.set_num_threads(threads)


def _release() -> None:
    global _holders
    with _lock:
        _holders -= 1
        if _holders == 0:
            for library, threads in _before:
                _set(library, threads)
            _before.clear()
