"""Signals: one flag that a run looks at between iterations; elsewhere the process leaves at once.

No exception is raised where a signal happens to arrive, within a callback of C code or of the
garbage collector, say, where it would be lost.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Self

_ENDING = (signal.SIGTERM, signal.SIGHUP)  # from ``kill``, and from a terminal that is closed
_ALL = (signal.SIGINT, *_ENDING)

TEMPORARY: set[Path] = set()
"""Files and folders of this process, which are removed where a signal ends it at once."""


class Terminated(KeyboardInterrupt):
    """The signal `number` asked the process to end; it is cleaned up after as after Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def signal_of(interrupt: KeyboardInterrupt) -> int:
    """Number of the signal that raised `interrupt`."""
    return interrupt.number if isinstance(interrupt, Terminated) else signal.SIGINT


def interruption(number: int | None) -> KeyboardInterrupt:
    """What the signal `number` raises: the inverse of `signal_of`. None is a callback's wish."""
    return KeyboardInterrupt() if number in (None, signal.SIGINT) else Terminated(number)


def _leave(number: int, _: FrameType | None) -> None:
    """End the process: remove its temporary files, say so, and give the status of the signal."""
    for path in [*TEMPORARY]:
        with contextlib.suppress(OSError):
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()
    with contextlib.suppress(OSError):
        line = "\r\x1b[K" if os.isatty(2) else ""  # in place of a bar
        word = "interrupted" if number == signal.SIGINT else "terminated"
        os.write(2, f"{line}ooc-fw: {word}\n".encode())
    os._exit(128 + number)


def _raise(number: int, _: FrameType | None) -> None:
    raise interruption(number)


def leave_at_signals() -> None:
    """Let signals end the process at once, unless they are ignored (``nohup``)."""
    _install({number: _leave for number in _ALL if signal.getsignal(number) != signal.SIG_IGN})


def ignore_signals() -> None:
    """Let a process that is all but gone keep its status."""
    _install(dict.fromkeys(_ALL, signal.SIG_IGN))


@contextlib.contextmanager
def terminating() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise `Terminated`, as Ctrl-C raises KeyboardInterrupt.

    This is for commands that a Python program calls. A signal that is already handled or ignored is
    left alone, and so are other threads.
    """
    numbers = [number for number in _ENDING if signal.getsignal(number) == signal.SIG_DFL]
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
    """Handles signals while something goes on; the old handlers are restored afterwards.

    Until `defer` is called there is nothing to lose, and a signal does what it did before. From
    then on the first one is only noted, to be looked at between iterations, and a second one does
    what it did before. If one is within another, the inner one notes the signal if it defers.
    SIGINT is handled unless it is ignored, SIGTERM and SIGHUP only if this module handles them.
    """

    def __init__(self, *, checked: bool = False) -> None:
        self.checked = checked  # whether `check_interrupt` raises what was noted
        self.defers = False  # whether the first signal waits
        self.noted: int | None = None  # number of the first signal, if it waited
        self.urgent = False  # whether a signal did not wait
        self._waits = False  # whether the first signal raises, since text is waited for
        self._old: dict[int, Any] = {}

    def __enter__(self) -> Self:
        ours = _leave, _raise, _note
        numbers = [number for number in _ENDING if signal.getsignal(number) in ours]
        if signal.getsignal(signal.SIGINT) not in (signal.SIG_IGN, None):
            numbers.append(signal.SIGINT)
        self._old = _install(dict.fromkeys(numbers, _note))
        if self._old:
            _active.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        if self._old:
            _active.remove(self)
            _install(self._old)

    def defer(self) -> None:
        """Let the first signal wait from now on."""
        self.defers = True

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Let the first signal raise within, as it must where text is waited for."""
        self._waits = True
        try:
            self.check()
            yield
            self.check()  # the exception may have been lost in a callback
        finally:
            self._waits = False

    def check(self) -> None:
        """Raise what was noted."""
        if self.noted is not None:
            raise interruption(self.noted)


_active: list[DeferredInterrupt] = []  # from the outermost one on; of the main thread


def check_interrupt() -> None:
    """Raise, once, what a `DeferredInterrupt` that is checked has noted; runs look at their own."""
    for one in _active:
        if one.checked and one.noted is not None:
            number, one.noted = one.noted, None
            raise interruption(number)


def _note(number: int, frame: FrameType | None) -> None:
    for one in reversed(_active):
        if one.defers and one.noted is None:
            one.noted = number
            if one._waits:
                one.check()
            return
        if one.defers:
            break
    for one in _active:
        one.urgent = True
    handler = _active[0]._old[number]
    if callable(handler):
        handler(number, frame)
