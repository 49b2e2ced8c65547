"""Signals between two iterations instead of in the middle of one.

An interrupt that arrives while weights and gradient are being changed would leave them at odds.
Owns the handlers of SIGINT and SIGTERM while a run is on; restores the old ones afterwards.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any, Self


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived; like Ctrl-C, so that whatever cleans up after one does after the other."""


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated


@contextlib.contextmanager
def terminating() -> Iterator[None]:
    """Have SIGTERM raise `Terminated`, so that temporary files are removed.

    Does nothing outside the main thread, and nothing where the program handles SIGTERM already.
    """
    if not _in_main_thread() or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


class DeferredInterrupt:
    """Notes the first signal, to be asked for between iterations; a second one raises at once.

    Takes over SIGINT, and SIGTERM within `terminating`: a program that handles SIGTERM in its own
    way, or not at all, keeps doing so. Does nothing outside the main thread, where Python delivers
    no signals, and nothing where SIGINT is ignored.

    Attributes
    ----------
    noted : int or None
        Number of the first signal.
    urgent : bool
        Whether a second one has come, and raised KeyboardInterrupt or `Terminated`.
    """

    def __init__(self) -> None:
        self.noted: int | None = None
        self.urgent = False
        self._old: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if not _in_main_thread():
            return self
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            self._old[signal.SIGINT] = signal.signal(signal.SIGINT, self._note)
        if signal.getsignal(signal.SIGTERM) is _terminate:
            self._old[signal.SIGTERM] = signal.signal(signal.SIGTERM, self._note)
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

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.noted is not None:
            self.urgent = True
            raise Terminated if number == signal.SIGTERM else KeyboardInterrupt
        self.noted = number


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
