"""Signals: one flag that a run looks at between iterations; elsewhere the process leaves at once.

SIGTERM and SIGHUP are handled as Ctrl-C. While a flag is looked at, no exception is raised wherever
a signal happens to arrive: in a callback of the garbage collector, say, it would be lost.
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
"""Files and folders of this process, which are removed if a signal ends it at once."""


def interruption(number: int | None) -> KeyboardInterrupt:
    """What the signal `number` raises; None is a callback's wish."""
    return KeyboardInterrupt(number or signal.SIGINT)


def signal_of(interrupt: KeyboardInterrupt) -> int:
    """Number of the signal that raised `interrupt`: that of Ctrl-C if Python did."""
    return int(interrupt.args[0]) if interrupt.args else signal.SIGINT


def word_for(number: int) -> str:
    """What a signal does to a command, in one word."""
    return "interrupted" if number == signal.SIGINT else "terminated"


def _leave(number: int, _: FrameType | None) -> None:
    """End the process: remove its temporary files, say so, and give the status of the signal."""
    for path in [*TEMPORARY]:
        with contextlib.suppress(OSError):
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()
    with contextlib.suppress(OSError):
        line = "\r\x1b[K" if os.isatty(2) else ""  # in place of a bar
        os.write(2, f"{line}ooc-fw: {word_for(number)}\n".encode())
    os._exit(128 + number)


def leave_at_signals() -> None:
    """Let signals end the process at once, unless they are ignored (``nohup``)."""
    _install({number: _leave for number in _ALL if signal.getsignal(number) != signal.SIG_IGN})


def ignore_signals() -> None:
    """Let a process that is all but gone keep its status."""
    _install(dict.fromkeys(_ALL, signal.SIG_IGN))


def _install(handlers: Mapping[int, Any]) -> dict[int, Any]:
    """Set handlers of signals; returns the old ones, none if this is not the main thread."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {number: signal.signal(number, handler) for number, handler in handlers.items()}


class DeferredInterrupt:
    """A flag for the first signal; a context manager.

    Until `defer` is called there is nothing to lose, and a signal does what it did before. From
    then on the first one is only noted, and a second one does what it did before. If one flag is
    within another, the inner one notes the signal if it defers.
    """

    def __init__(self, *, checked: bool = False) -> None:
        self.checked = checked  # whether `check_interrupt` raises what was noted
        self.defers = False  # whether the first signal waits
        self.noted: int | None = None  # number of the first signal, if it waited
        self.urgent = False  # whether a signal did not wait
        self._waits = False  # whether the first signal raises, since text is waited for
        self._old: dict[int, Any] = {}

    def __enter__(self) -> Self:
        ours = (_leave, _note)
        numbers = [number for number in _ENDING if signal.getsignal(number) in ours]
        if signal.getsignal(signal.SIGINT) not in (signal.SIG_IGN, None):
            numbers.append(signal.SIGINT)
        self._old = _install(dict.fromkeys(numbers, _note))
        if self._old:
            _flags.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        if self._old:
            _flags.remove(self)
            _install(self._old)

    def defer(self) -> None:
        """Let the first signal wait from now on."""
        self.defers = True

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Let the first signal raise within, as it must while text is waited for."""
        self._waits = True
        try:
            self._check()
            yield
            self._check()  # the exception may have been lost in a callback
        finally:
            self._waits = False

    def _check(self) -> None:
        if self.noted is not None:
            raise interruption(self.noted)


_flags: list[DeferredInterrupt] = []  # from the outermost one on; of the main thread


def check_interrupt() -> None:
    """Raise, once, what a flag that is checked has noted; runs look at their own."""
    for flag in _flags:
        if flag.checked and flag.noted is not None:
            number = flag.noted
            flag.noted = None
            raise interruption(number)


def _note(number: int, frame: FrameType | None) -> None:
    inner = next((flag for flag in reversed(_flags) if flag.defers), None)
    if inner is not None and inner.noted is None:
        inner.noted = number
        if inner._waits:
            raise interruption(number)
        return
    for flag in _flags:
        flag.urgent = True
    before = _flags[0]._old[number]
    if callable(before):
        before(number, frame)
