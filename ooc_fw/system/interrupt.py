"""Signals between two iterations instead of in the middle of one.

An interrupt that arrives while weights and gradient are being changed would leave them at odds.
Owns the handlers of SIGINT, SIGTERM and SIGHUP while a run is on; restores the old ones afterwards.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any, Self

_ENDING = (signal.SIGTERM, signal.SIGHUP)
"""Signals that ask a process to end: that of ``kill``, and that of a terminal that was closed."""

_DEAF = frozenset({"_raw_object_cache_notify", "_raw_object_cache_getbuffer", "__del__"})
"""Functions called from outside Python, by LLVM or the collector, whose exceptions are dropped.

An interrupt that was raised there would be lost, and numba would miss the code just compiled.
"""

_RETRY_SECONDS = 0.01
"""Time after which a signal that came in one of them is sent again; they take less."""


class Terminated(KeyboardInterrupt):
    """A signal asked for the end; like Ctrl-C, so that what cleans up after one does after both.

    Attributes
    ----------
    number : int
        The signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def _raise(number: int, frame: FrameType | None) -> None:
    """Raise what a signal means, here or, where nobody would receive it, a moment later."""
    while frame is not None:
        if frame.f_code.co_name in _DEAF:
            again = threading.Timer(_RETRY_SECONDS, os.kill, (os.getpid(), number))
            again.daemon = True
            again.start()
            return
        frame = frame.f_back
    raise KeyboardInterrupt if number == signal.SIGINT else Terminated(number)


def signal_of(interrupt: KeyboardInterrupt) -> int:
    """Number of the signal that was raised as `interrupt`."""
    return interrupt.number if isinstance(interrupt, Terminated) else signal.SIGINT


@contextlib.contextmanager
def terminating() -> Iterator[None]:
    """Have SIGTERM and SIGHUP raise `Terminated`, so that temporary files are removed.

    Ctrl-C raises KeyboardInterrupt as before, except where it would be lost. Does nothing outside
    the main thread, and nothing for a signal that the program handles, or ignores (``nohup``),
    already.
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
    """Notes the first signal, to be asked for between iterations; a second one raises at once.

    The first one raises at once, too, for as long as there is nothing to lose: code is being
    compiled, say, which may take seconds.

    Takes over SIGINT, and within `terminating` SIGTERM and SIGHUP: a program that handles these in
    its own way, or not at all, keeps doing so. Does nothing outside the main thread, where Python
    delivers no signals, and nothing where SIGINT is ignored.

    Parameters
    ----------
    defers : bool
        Whether the first signal waits from the beginning.

    Attributes
    ----------
    defers : bool
        Whether the first signal waits.
    noted : int or None
        Number of the first signal.
    urgent : bool
        Whether a signal did not wait, and raised KeyboardInterrupt or `Terminated`.
    """

    def __init__(self, defers: bool = True) -> None:
        self.defers = defers
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)
        self._old.clear()

    def defer(self) -> None:
        """Let the first signal wait from here on, since there is something to lose."""
        self.defers = True

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.noted is not None or not self.defers:
            self.urgent = True
            _raise(number, frame)
        else:
            self.noted = number


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
