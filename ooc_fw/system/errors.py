"""Exceptions for wrong input and for lack of time, and labels in their messages.

Failing to converge is not an error: it is a status, `ooc_fw.solver.state.Status`.
"""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Real
from typing import Any


class InputError(ValueError):
    """A file, value or option that cannot be used.

    The message is one sentence that names the file or option, its value and what to do. The command
    line prints it and exits with status 2.
    """


class OutOfTimeError(RuntimeError):
    """The time limit was over before there was a model; the command line exits with status 3."""


class DamageError(InputError):
    """A file that no longer holds what was written to it.

    It is truncated, a checksum does not match, or its structure cannot be read. ``ooc-fw verify``
    exits with status 1, other commands treat it as wrong input.
    """


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
