"""BLAS at one thread, for as long as any engine of this process is open.

The number of threads belongs to the process and not to an engine: the first engine to open sets it
to one, the last one to close restores what it was. Engines may open, overlap and close in any order
and on any thread.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

from threadpoolctl import ThreadpoolController

_lock = threading.RLock()  # an engine that is collected as garbage closes on whatever thread runs
_holders = 0
_before: list[tuple[Any, int]] = []  # libraries, and their threads before the first engine


def hold_to_one_thread(holder: object) -> weakref.finalize[[], Any]:
    """Hold BLAS to one thread until the value returned is called, or `holder` is collected.

    Calling it again changes nothing.
    """
    global _holders
    with _lock:
        _holders += 1
        if _holders == 1:
            controller = ThreadpoolController().select(user_api="blas")
            _before[:] = [(library, library.num_threads) for library in controller.lib_controllers]
        limit_this_thread()
    return weakref.finalize(holder, _release)


def limit_this_thread() -> None:
    """Hold to one thread the libraries whose number belongs to the calling thread (OpenMP)."""
    for library, _ in _before:
        _set(library, 1)


def _set(library: Any, threads: int) -> None:
    # Newer threadpoolctl obeys only the thread that set a number first, unless that is forgotten.
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
