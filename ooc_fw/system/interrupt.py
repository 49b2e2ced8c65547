"""Signals: SIGTERM and SIGHUP are handled as Ctrl-C, and a run notes the first one in a flag."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""From Ctrl-C, from ``kill``, and from a terminal that is closed."""


def interruption(number: int | None) -> KeyboardInterrupt:
    """What the signal `number` raises; None is a callback's wish."""
    return KeyboardInterrupt(number or signal.SIGINT)


def signal_of(interrupt: KeyboardInterrupt) -> int:
    """Number of the signal that raised `interrupt`: that of Ctrl-C if Python did."""
    return int(interrupt.args[0]) if interrupt.args else signal.SIGINT


def word_for(number: int) -> str:
    """What a signal does to a command, in one word."""
    return "interrupted" if number == signal.SIGINT else "terminated"


def raise_at_signals() -> None:
    """Let signals raise an exception, unless they are ignored (``nohup``)."""
    for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _raise)


def ignore_signals() -> None:
    """Let a process that is all but gone keep its status."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _raise(number: int, _: FrameType | None) -> None:
    raise interruption(number)


class DeferredInterrupt:
    """A flag for the first signal; a context manager.

    Until `defer` is called there is nothing to lose, and a signal does what it did before: it
    raises, or is noted in a flag around this one. From then on the first one is only noted, and a
    second one raises.
    """

    def __init__(self) -> None:
        self.defers = False  # whether the first signal waits
        self.noted: int | None = None  # number of the first signal, if it waited
        self._old: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            handlers = {number: signal.getsignal(number) for number in SIGNALS}
            self._old = {number: old for number, old in handlers.items() if callable(old)}
        for number in self._old:
            signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, old in self._old.items():
            signal.signal(number, old)

    def defer(self) -> None:
        """Let the first signal wait from now on."""
        self.defers = True

    @contextlib.contextmanager
    def raising(self) -> Iterator[None]:
        """Let signals raise within, as they must while text is waited for."""
        self.defers = False
        try:
            if self.noted is not None:
                raise interruption(self.noted)
            yield
        finally:
            self.defers = True

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.noted is not None:
            raise interruption(number)
        if self.defers:
            self.noted = number
        else:
            self._old[number](number, frame)
