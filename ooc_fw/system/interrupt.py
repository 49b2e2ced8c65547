"""Signals that wait until an iteration has ended, so that weights and gradient stay consistent."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any, Self

_ENDING = (signal.SIGTERM, signal.SIGHUP)  # from ``kill``, and from a terminal that is closed

DEAF = frozenset({"_raw_object_cache_notify", "_raw_object_cache_getbuffer", "__del__"})
"""Functions that LLVM or the garbage collector calls, and which drop exceptions: an interrupt that
was raised in one of them would be lost, and numba would miss compiled code."""

_RETRY_SECONDS = 0.01  # until a signal that arrived in such a function is sent again


class Terminated(KeyboardInterrupt):
    """The signal `number` asked the process to end; it is cleaned up after as after Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def _raise(number: int, frame: FrameType | None) -> None:
    """Raise what a signal means, or send it again later where the exception would be dropped."""
    while frame is not None:
        if frame.f_code.co_name in DEAF:
            again = threading.Timer(_RETRY_SECONDS, os.kill, (os.getpid(), number))
            again.daemon = True
            again.start()
            return
        frame = frame.f_back
    raise interruption(number)


def _leave(number: int, _: FrameType | None) -> None:
    """End the process, which has nothing to clean up."""
    os._exit(128 + number)


_USUAL = {
    signal.SIGINT: (signal.default_int_handler, _leave),
    **dict.fromkeys(_ENDING, (signal.SIG_DFL, _leave)),
}
"""Handlers that the program may replace: those of Python, and those of `leave_at_signals`."""


def leave_at_signals() -> None:
    """Let signals end the process at once, with their status and without a traceback."""
    _install({number: _leave for number in _USUAL if signal.getsignal(number) != signal.SIG_IGN})


def ignore_signals() -> None:
    """Let a process that is all but gone keep its status."""
    _install(dict.fromkeys(_USUAL, signal.SIG_IGN))


def signal_of(interrupt: KeyboardInterrupt) -> int:
    """Number of the signal that raised `interrupt`."""
    return interrupt.number if isinstance(interrupt, Terminated) else signal.SIGINT


def interruption(number: int | None) -> KeyboardInterrupt:
    """What the signal `number` raises: the inverse of `signal_of`. None is a callback's wish."""
    return KeyboardInterrupt() if number in (None, signal.SIGINT) else Terminated(number)


@contextlib.contextmanager
def terminating() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise `Terminated`, so that temporary files are removed.

    Ctrl-C raises KeyboardInterrupt as before, except where it would be lost. A signal that the
    program already handles or ignores (``nohup``) is left alone, and so are other threads.
    """
    numbers = [number for number, usual in _USUAL.items() if signal.getsignal(number) in usual]
    old = _install(dict.fromkeys(numbers, _raise))
    try:
        yield
    finally:
        _install(old)


def _install(handlers: Mapping[int, Any]) -> dict[int, Any]:
    """Set handlers of signals; returns the old ones, none where this is not the main thread."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {number: signal.signal(number, handler) for number, handler in handlers.items()}


class DeferredInterrupt:
    """Handles signals while a run goes on; the old handlers are restored afterwards.

    Until `defer` is called there is nothing to lose, and the first signal raises at once. From then
    on the first one is only noted, for the run to check between iterations, and a second one
    raises. SIGINT is handled unless it is ignored, SIGTERM and SIGHUP only within `terminating`.
    """

    def __init__(self) -> None:
        self.defers = False  # whether the first signal waits
        self.noted: int | None = None  # number of the first signal, if it waited
        self.urgent = False  # whether a signal did not wait, and raised
        self._old: dict[int, Any] = {}

    def __enter__(self) -> Self:
        numbers = [number for number in _ENDING if signal.getsignal(number) is _raise]
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            numbers.append(signal.SIGINT)
        self._old = _install(dict.fromkeys(numbers, self._note))
        return self

    def __exit__(self, *error: object) -> None:
        _install(self._old)

    def defer(self) -> None:
        """Let the first signal wait from now on."""
        self.defers = True

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.noted is not None or not self.defers:
            self.urgent = True
            _raise(number, frame)
        else:
            self.noted = number
