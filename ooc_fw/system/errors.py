"""Errors and signals that end a command early, and the form of values in messages.

SIGTERM and SIGHUP are handled like Ctrl-C, and a run notes the first signal in a flag. A run that
does not converge raises no error but has a status, `ooc_fw.solver.state.Status`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from decimal import ROUND_CEILING, Context, Decimal
from itertools import islice
from numbers import Integral, Real
from types import FrameType
from typing import Any, NoReturn, Self


class InputError(ValueError):
    """A file, value or option cannot be used. The message is one sentence that names it."""


class OutOfTimeError(RuntimeError):
    """The time limit passed before there was a model; the command line exits with status 3."""


class DamageError(InputError):
    """A file is truncated, or its content differs from what was written."""


def printable(text: str) -> str:
    """A line in which each character that a terminal might obey is replaced by an escape."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def unreadable(path: str, error: BaseException) -> InputError | None:
    """Error for a file that the system cannot read; None if `error` came from its content.

    HDF5 and Arrow give the number of a system error in their messages.
    """
    match = re.search(r"errno (?:= )?(\d+)", str(error), re.IGNORECASE)
    number = getattr(error, "errno", None) or (int(match[1]) if match else 0)
    words = f"{path} cannot be read ({os.strerror(number)}); check its rights, or restore a copy"
    return InputError(words) if number else None


def format_label(value: Any) -> str:
    """Label in the usual form: whole numbers have no decimal point."""
    if isinstance(value, Integral):  # or a truth value; float64 may round a whole number
        return str(value)
    return repr(float(value)).removesuffix(".0") if isinstance(value, Real) else str(value)


def format_labels(values: Iterable[Any]) -> str:
    """Labels in the usual form, with commas between them."""
    return ", ".join(map(format_label, values))


def format_words(values: Iterable[Any], most: int = 5) -> str:
    """The first labels with commas between them; words are in quotes."""
    first = [*islice(values, most + 1)]
    shown = [repr(str(one)) if isinstance(one, str) else format_label(one) for one in first[:most]]
    return ", ".join(shown + ["..."] * (len(first) > most))


def format_value(value: object, most: int | None = None) -> str:
    """Value of a result in text for people; a list or a mapping shows at most `most` entries."""
    if isinstance(value, Mapping):
        value = [f"{key} ({format_value(item)})" for key, item in value.items()]
    if isinstance(value, list):
        more = [f"and {len(value) - most} more"] if most is not None and len(value) > most else []
        return ", ".join([*map(format_value, value[:most]), *more]) or "none"
    if value is None or value != value:  # NaN
        return "unknown"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def format_gap(gap: float | None) -> str:
    """The gap as text with three digits, rounded up."""
    if gap is None:
        return "unknown"
    return f"{float(Context(prec=3, rounding=ROUND_CEILING).plus(Decimal(repr(float(gap))))):.2e}"


# Ctrl-C sends the first, ``kill`` the second, and a terminal that is closed the third.
SIGNALS: tuple[signal.Signals, ...] = (signal.SIGINT, signal.SIGTERM)
if sys.platform != "win32":
    SIGNALS += (signal.SIGHUP,)


def signal_of(interrupt: KeyboardInterrupt) -> int:
    """Number of the signal that raised `interrupt`; SIGINT if Python or a callback raised it."""
    return next((int(number) for number in interrupt.args if number), signal.SIGINT)


raised: list[int] = []
"""Numbers of signals that raised outside of runs: imports of C code may raise another error."""

_is_command = False  # whether this process is a command, and not that of a user of the library


def _handle(number: int, handler: Any) -> None:
    """Let `handler` run at a signal.

    In a command, if the signal comes again before that, the system ends the process: Python cannot
    run a handler while code in C does not return. Only a C library like that of GNU can do this.
    """
    signal.signal(number, handler)
    in_command = _is_command and sys.platform != "win32"
    set_once = getattr(ctypes.CDLL(None), "sysv_signal", None) if in_command else None
    if set_once is not None:
        ctypes.pythonapi.PyOS_getsig.restype = ctypes.c_void_p
        set_once(number, ctypes.c_void_p(ctypes.pythonapi.PyOS_getsig(number)))


def raise_lost() -> None:
    """Raise for a signal whose exception an import or a callback of C code swallowed."""
    if raised:
        raise KeyboardInterrupt(raised[0])


def _interrupt(number: int) -> NoReturn:
    """Raise for a signal. A command does not tell of callbacks and half-made objects that fail."""
    if _is_command:
        sys.unraisablehook = lambda _: None
    raise KeyboardInterrupt(number)


def _raise(number: int, _: FrameType | None) -> None:
    _handle(number, _raise)
    raised.append(number)
    _interrupt(number)


def raise_at_signals() -> None:
    """Let signals raise KeyboardInterrupt in this command, unless they are ignored (``nohup``)."""
    global _is_command
    _is_command = True
    for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            _handle(number, _raise)


def ignore_signals() -> None:
    """Ignore signals, so that a process at its end keeps its status."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


class DeferredInterrupt:
    """A flag for the first signal; a context manager.

    Before `defer` is called, no work can be lost, and the first signal raises. After it the first
    signal is only noted, and the second one raises. An import of C code may make another error of
    that, which becomes a KeyboardInterrupt at the end.
    """

    def __init__(self) -> None:
        self.defers = False  # whether the first signal is only noted
        self.noted: int | None = None  # number of the first signal
        self._raised: int | None = None  # number of a signal that raised
        self._old: dict[int, Any] = {}

    def __enter__(self) -> Self:
        raise_lost()
        if threading.current_thread() is threading.main_thread():
            handlers = {number: signal.getsignal(number) for number in SIGNALS}
            self._old = {number: old for number, old in handlers.items() if callable(old)}
        for number in self._old:
            _handle(number, self._note)
        return self

    def __exit__(self, kind: object, error: BaseException | None, *_: object) -> None:
        for number, old in self._old.items():
            _handle(number, old)
        if self._raised is not None and isinstance(error, Exception):
            raise KeyboardInterrupt(self._raised) from error

    def defer(self) -> None:
        """Only note the first signal after this call."""
        self.defers = True

    def check(self) -> None:
        """Raise for a noted signal that should have raised: callbacks of C code lose exceptions."""
        if self.noted is not None and not self.defers:
            raise KeyboardInterrupt(self.noted)

    @contextlib.contextmanager
    def raising(self) -> Iterator[None]:
        """Let signals raise in this context, as is needed to interrupt a wait for text."""
        self.defers = False
        try:
            self.check()
            yield
        except KeyboardInterrupt:
            self.noted = None  # the exception tells the caller of it
            self._raised = None
            raise
        finally:
            self.defers = True

    def _note(self, number: int, _: FrameType | None) -> None:
        _handle(number, self._note)
        if self.noted is not None or not self.defers:
            self.noted = number
            self._raised = number
            _interrupt(number)
        self.noted = number
