"""What can go wrong by a user's hand.

Owns the exceptions that mean "the input or an option is wrong" or "there is no time", and the
question whether an option is a number at all. Failing to converge is not an error: it is a
:class:`ooc_fw.solve.state.Status`.
"""

from __future__ import annotations

from numbers import Real
from typing import Any


class InputError(ValueError):
    """A file, value or option that cannot be used.

    The message is one sentence that names the file or option, the value met and the way out. The
    command line prints it as it is and exits with status 2.
    """


class OutOfTimeError(RuntimeError):
    """The time limit was over before there was a model.

    The command line prints the message, which is one sentence, and exits with status 3.
    """


class DamageError(InputError):
    """A file that no longer holds what was written to it.

    It was cut short, a checksum does not match, or its structure cannot be followed. To most
    commands an input like any other that cannot be used; ``ooc-fw verify`` exits with status 1.
    """


def check_number(name: str, value: Any) -> None:
    """Raise InputError unless the option `name` is a real number."""
    if not isinstance(value, Real):
        raise InputError(f"{name} must be a number, not {value!r}")
