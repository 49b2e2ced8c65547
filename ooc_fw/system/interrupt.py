"""Signals that wait until an iteration has ended, so that weights and gradient stay consistent.

During a run the handlers of SIGINT, SIGTERM and SIGHUP are those of this module; the old ones are
restored afterwards.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any, Self

_ENDING = (signal.SIGTERM, signal.SIGHUP)
"""Signals that ask a process to end; ``kill`` sends the first, a closed terminal the second."""

_DEAF = frozenset({"_raw_object_cache_notify", "_raw_object_cache_getbuffer", "__del__"})
"""Functions that LLVM or the garbage collector calls, and whose exceptions are dropped.

An interrupt that was raised in one of them would be lost, and numba would miss compiled code.
"""

_RETRY_SECONDS = 0.01
"""Time after which a signal that arrived in such a function is sent again; they take less."""


class Terminated(KeyboardInterrupt):
    """The signal `number` asked the process to end.

    It is a KeyboardInterrupt, so that the same code cleans up after both.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def _raise(number: int, frame: FrameType | None) -> None:
    """Raise what a signal means, or send it again later where the exception would be dropped."""
    while frame is not None:
        if frame.f_code.co_name in _DEAF:
            again = threading.Timer(_RETRY_SECONDS, os.kill, (os.getpid(), number))
            again.daemon = True
            again.start()
            return
        frame = frame.f_back
    raise KeyboardInterrupt if number == signal.SIGINT else Terminated(number)


def signal_of(interrupt: KeyboardInterrupt) -> int:
    """Number of the signal that raised `interrupt`."""
    return interrupt.number if isinstance(interrupt, Terminated) else signal.SIGINT


@contextlib.contextmanager
def terminating() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise `Terminated`, so that temporary files are removed.

    Ctrl-C raises KeyboardInterrupt as before, except where it would be lost. A signal that the
    program already handles or ignores (``nohup``) is left alone, and so are other threads.
    """
    usual = dict.fromkeys(_ENDING, signal.SIG_DFL) | {signal.SIGINT: signal.default_int_handler}
    own = {number: old for number, old in usual.items() if signal.getsignal(number) is old}
    if not _in_main_thread():
        own = {}
    for number in own:
        signal.signal(number, _raise)
    try:
        yield
    finally:
        for number, old in own.items():
            signal.signal(number, old)


class DeferredInterrupt:
    """Notes the first signal, which the run checks between iterations; a second one raises at once.

    Until `defer` is called there is nothing to lose (code is being compiled, which may take
    seconds), and the first signal raises at once, too. SIGINT is handled unless it is ignored,
    SIGTERM and SIGHUP only within `terminating`. Nothing happens outside the main thread, where
    Python delivers no signals.

    Attributes
    ----------
    defers : bool
        Whether the first signal waits.
    noted : int or None
        Number of the first signal.
    urgent : bool
        Whether a signal did not wait, and raised KeyboardInterrupt or `Terminated`.
    """

    def __init__(self) -> None:
        self.defers = False
        self.noted: int | None = None
        self.urgent = False
        self._old: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if not _in_main_thread():
            return self
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            self._old[signal.SIGINT] = signal.signal(signal.SIGINT, self._note)
        for number in _ENDING:
            if signal.getsignal(number) is _raise:
                self._old[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)
        self._old.clear()

    def defer(self) -> None:
        """Let the first signal wait from now on."""
        self.defers = True

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.noted is not None or not self.defers:
            self.urgent = True
            _raise(number, frame)
        else:
            self.noted = number


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
