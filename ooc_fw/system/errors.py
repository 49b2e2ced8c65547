"""How a command ends early, by wrong input, lack of time or a signal, and values in messages.

SIGTERM and SIGHUP are handled as Ctrl-C, and a run notes the first signal in a flag. Failing to
converge is not an error: it is a status, `ooc_fw.solver.state.Status`.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from numbers import Real
from types import FrameType
from typing import Any, Self


class InputError(ValueError):
    """A file, value or option that cannot be used. The message is one sentence that names it."""


class OutOfTimeError(RuntimeError):
    """The time limit was over before there was a model; the command line exits with status 3."""


class DamageError(InputError):
    """A file that is truncated, or no longer holds what was written to it."""


def printable(text: str) -> str:
    """A line that a terminal shows as it is, with escapes for what it would obey."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def unreadable(path: str, error: BaseException) -> InputError | None:
    """What to say if the system fails to read a file; None if its content was the trouble.

    HDF5 and Arrow tell the number of an error of the system in their messages.
    """
    match = re.search(r"errno (?:= )?(\d+)", str(error), re.IGNORECASE)
    number = getattr(error, "errno", None) or (int(match[1]) if match else 0)
    words = f"{path} cannot be read ({os.strerror(number)}); see to its rights, or restore a copy"
    return InputError(words) if number else None


def check_number(name: str, value: Any) -> None:
    """Raise InputError unless the option `name` is a real number."""
    if not isinstance(value, Real):
        raise InputError(f"{name} must be a number, not {value!r}")


def format_label(value: Any) -> str:
    """Label as people write it: integers without a decimal point."""
    return repr(float(value)).removesuffix(".0") if isinstance(value, Real) else str(value)


def format_labels(values: Iterable[Any]) -> str:
    """Labels with commas between them."""
    return ", ".join(map(format_label, values))


def format_value(value: object, most: int | None = None) -> str:
    """Value of a result for people; of a list or a mapping `most` entries at most."""
    if isinstance(value, Mapping):
        value = [f"{key} ({format_value(item)})" for key, item in value.items()]
    if isinstance(value, list):
        more = [f"and {len(value) - most} more"] if most is not None and len(value) > most else []
        return ", ".join([*map(format_value, value[:most]), *more]) or "none"
    if value is None or value != value:  # NaN
        return "unknown"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


# From Ctrl-C, from ``kill``, and from a terminal that is closed.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def signal_of(interrupt: KeyboardInterrupt) -> int:
    """Number of the signal that raised `interrupt`: that of Ctrl-C if Python or a callback did."""
    return next((int(number) for number in interrupt.args if number), signal.SIGINT)


raised: list[int] = []
"""Numbers of signals that have raised outside of runs: imports of C code may fail otherwise."""


def _raise(number: int, _: FrameType | None) -> None:
    raised.append(number)
    raise KeyboardInterrupt(number)


def raise_at_signals() -> None:
    """Let signals raise an exception, unless they are ignored (``nohup``)."""
    for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _raise)
    tell = sys.unraisablehook

    def tell_others(lost: sys.UnraisableHookArgs) -> None:
        if not issubclass(lost.exc_type, KeyboardInterrupt):  # see `DeferredInterrupt.check`
            tell(lost)

    sys.unraisablehook = tell_others


def ignore_signals() -> None:
    """Let a process that is all but gone keep its status."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


class DeferredInterrupt:
    """A flag for the first signal; a context manager.

    Until `defer` is called there is nothing to lose, and the first signal raises. From then on it
    is only noted, and a second one raises.
    """

    def __init__(self) -> None:
        self.defers = False  # whether the first signal waits
        self.noted: int | None = None  # number of the first signal
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

    def check(self) -> None:
        """Raise for a signal that should have raised: callbacks of C code lose exceptions."""
        if self.noted is not None and not self.defers:
            raise KeyboardInterrupt(self.noted)

    @contextlib.contextmanager
    def raising(self) -> Iterator[None]:
        """Let signals raise within, as they must while text is waited for."""
        self.defers = False
        try:
            self.check()
            yield
        except KeyboardInterrupt:
            self.noted = None  # it has been told
            raise
        finally:
            self.defers = True

    def _note(self, number: int, _: FrameType | None) -> None:
        if self.noted is not None or not self.defers:
            self.noted = number
            raise KeyboardInterrupt(number)
        self.noted = number
