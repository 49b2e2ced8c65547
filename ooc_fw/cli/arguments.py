"""Parser of arguments, and how those that set options are declared.

Arguments that are fields of a record in `ooc_fw.options` are derived from it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

from ooc_fw.options import Option, option_fields
from ooc_fw.system.errors import InputError

_MOST_VALUES = 1000  # of a range such as 2^-5..2^15


class Parser(argparse.ArgumentParser):
    """Argument parser whose errors are one sentence, like all others.

    Names of options are written in full: a new option would change what an abbreviation means.
    `declare` adds the arguments when the first are parsed: one command of many is asked for.
    """

    def __init__(self, declare: Callable[[Parser], None] | None = None, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False)
        self._declare = declare

    def error(self, message: str) -> NoReturn:
        """Raise the usage error as a user's mistake."""
        raise InputError(f"{message}; see {self.prog} --help")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print help, or fail as all other output does; argparse ignores that it cannot."""
        print(message, end="", file=file)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Refuse unknown arguments here, where the command is known whose help lists the others."""
        if self._declare is not None:
            self._declare(self)
            self._declare = None
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            start = unknown[0].partition("=")[0]
            names = [name for name in self._option_string_actions if name.startswith(start)]
            full = f"; names are written in full: {', '.join(names)}" if names else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}{full}")
        return parsed, unknown


def add_options(
    parser: argparse._ActionsContainer, record: type, names: Iterable[str] | None = None
) -> None:
    """Declare the fields of a record of options, all of them by default."""
    fields = option_fields(record)
    for name in fields if names is None else names:
        add_option(parser, name, fields[name])


def add_option(parser: argparse._ActionsContainer, name: str, declared: Option) -> None:
    """Declare one option; its help text ends with the default."""
    default = declared.default
    if declared.flags:
        group = parser.add_mutually_exclusive_group()
        for flag, (value, text) in declared.flags.items():
            group.add_argument(
                flag, dest=name, action="store_const", const=value, default=default, help=text
            )
        return
    metavar = declared.metavar
    if declared.choices and declared.low is None:
        metavar = f"{{{','.join(declared.choices)}}}"
    shown = "" if default in (None, ()) else f" (default: {default})"
    parser.add_argument(
        _flag_of(name, declared),
        dest=name,
        metavar=metavar,
        type=argument_type(declared.parse),
        action="extend" if declared.many else "store",
        default=list(default) if declared.many else default,
        help=declared.help + shown,
    )


def add_flag(parser: argparse._ActionsContainer, name: str, text: str) -> None:
    """Declare an option without a value that is no field of a record; `text` is its help."""
    parser.add_argument(name, action="store_true", help=text)


def _flag_of(name: str, declared: Option) -> str:
    return declared.name or "--" + name.replace("_", "-")


def argument_type(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Argument type whose errors are those of `parse`, which raises InputError."""

    def parsed(text: str) -> Any:
        try:
            return parse(text)
        except InputError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parsed


def value_list(text: str, declared: Option) -> list[Any]:
    """Values of an option: numbers, or powers of a number, such as 0.5,1,10 or 2^-5..2^15:2."""
    try:
        return [value for part in text.split(",") for value in _values(part, declared)]
    except InputError:
        raise
    except (ValueError, ArithmeticError):
        raise InputError(
            f"must be a list of values such as 0.5,1,10 or 2^-5..2^15:2, not {text!r}"
        ) from None


def _values(part: str, declared: Option) -> list[Any]:
    if "^" not in part:
        return [declared.parse(part)]
    ends, _, step = part.partition(":")
    bases, exponents = zip(*(end.split("^") for end in ends.split("..")), strict=True)
    base, first, last, by = float(bases[0]), int(exponents[0]), int(exponents[-1]), int(step or 1)
    powers = range(first, last + 1, by)
    if len(bases) > 2 or base != float(bases[-1]) or by < 1 or not 0 < len(powers) <= _MOST_VALUES:
        raise ValueError
    return [declared.parse(repr(base**power)) for power in powers]


def arguments_of(record: type, values: Mapping[str, Any]) -> list[str]:
    """Arguments that give a record of options these values; defaults are left out."""
    arguments = []
    for name, declared in option_fields(record).items():
        value = values.get(name, declared.default)
        if value == declared.default:
            continue
        flags = [flag for flag, (set_to, _) in declared.flags.items() if set_to == value]
        arguments += flags or [_flag_of(name, declared), str(value)]
    return arguments
