"""Exceptions for wrong input and for lack of time, and labels and values in messages.

Failing to converge is not an error: it is a status, `ooc_fw.solver.state.Status`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any


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
    words = f"{path} cannot be read ({os.strerror(number)}); restore a copy on another disk"
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
