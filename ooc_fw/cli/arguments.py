"""Parser of arguments, and how those that set options are declared.

Arguments that are fields of a record in `ooc_fw.options` are derived from it.
"""

from __future__ import annotations

import argparse
import difflib
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from ooc_fw.options import Option, file_name, option_fields
from ooc_fw.system.errors import InputError

_MOST_VALUES = 1000  # of a range such as 2^-5..2^15
_SCREEN = 45  # lines that `--help` takes at most, on 80 columns

RENAMED = {"--y-name": "--label", "--targets": "--task regression"}
"""Options that were called otherwise once: their name then -> now."""


class _Formatter(argparse.HelpFormatter):
    """Help whose indented paragraphs, examples, stay as they are, and whose names stay whole."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        parts = text.split("\n\n")
        return "\n\n".join(p if p[:1] == " " else fill(p, width, indent) for p in parts)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


class _HelpAll(argparse.Action):
    """``--help-all``: print the help with all groups of options."""

    def __call__(self, parser: Any, *_: Any) -> None:
        parser.shows_all = True
        parser.print_help()
        parser.exit()


class Parser(argparse.ArgumentParser):
    """Argument parser whose errors are one sentence, like all others.

    Names of options are written in full: a new option would change what an abbreviation means.
    `declare` adds the arguments when the first are parsed: one command of many is asked for. Files
    and options of a command may come in any order.

    ``--help`` is one screen: where all options take more, those in titled groups are only named
    there, and ``--help-all`` explains them.
    """

    def __init__(self, declare: Callable[[Parser], None] | None = None, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False, formatter_class=_Formatter)
        self._declare, self.shows_all = declare, False

    def complete(self) -> None:
        """Declare the arguments, where that has not been done."""
        declare, self._declare = self._declare, None
        if declare is not None:
            self.add_argument("--help-all", action=_HelpAll, nargs=0, help=argparse.SUPPRESS)
            declare(self)
            names = [str(action.metavar) for action in self._get_positional_actions()]
            self.usage = " ".join([self.prog, *names, "[options]"])

    def format_help(self) -> str:
        """The whole help, or its first screen."""
        whole = super().format_help()
        if self.shows_all or whole.count("\n") <= _SCREEN:
            return whole
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, [])
        formatter.add_text(self.description)
        positionals, options, *groups = self._action_groups
        for group in (positionals, options):
            formatter.start_section(group.title)
            formatter.add_arguments(group._group_actions)
            formatter.end_section()
        formatter.start_section(f"more options, which {self.prog} --help-all explains")
        for group in groups:
            names = " ".join(action.option_strings[0] for action in group._group_actions)
            title = str(group.title).partition(" (")[0]
            formatter.add_argument(argparse.Action([], title, metavar=title, help=names))
        formatter.end_section()
        return formatter.format_help()

    def error(self, message: str) -> NoReturn:
        """Raise the usage error as a user's mistake."""
        raise InputError(f"{message}; see {self.prog} --help")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print help, or fail as all other output does; argparse ignores that it cannot."""
        print(message, end="", file=file)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Refuse unknown arguments here, where the command is known whose help lists the others."""
        if self._declare is None:  # a part of the arguments, or the name of a command
            return super().parse_known_args(args, namespace)
        self.complete()
        parsed, unknown = self.parse_known_intermixed_args(args, namespace)
        if unknown:
            self._refuse_unknown(unknown)
        names: list[str] = []
        for action in self._actions:
            given = getattr(parsed, action.dest, None) if action.type is INPUT else None
            names += [given] if isinstance(given, str) else given or []
        parsed.inputs = names
        return parsed, unknown

    def _refuse_unknown(self, unknown: Sequence[str]) -> NoReturn:
        """Refuse arguments that no option takes, with the names that may be meant."""
        start = unknown[0].partition("=")[0]
        known = [*self._option_string_actions]
        names = [name for name in known if name.startswith(start)]
        hint = f"; names are written in full: {', '.join(names)}" if names else ""
        if start in RENAMED:
            hint = f"; it is {RENAMED[start]} now"
        elif not names and (near := difflib.get_close_matches(start, known, 1)):
            hint = f"; do you mean {near[0]}"
        self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")


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
    if declared.choices and declared.low is None and metavar is None:
        metavar = f"{{{','.join(declared.choices)}}}"
    shown = "" if default in (None, ()) else f" (default: {default})"
    parser.add_argument(
        _flag_of(name, declared),
        dest=name,
        metavar=metavar,
        type=INPUT if declared.read is file_name else argument_type(declared.parse),
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


INPUT, OUTPUT = argument_type(file_name), argument_type(file_name)
"""Types of all arguments that name a file that is read, or written: no output replaces an input."""


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


def _in_short(name: str, value: Any) -> str:
    """A value as people write it: sizes with a unit where that is exact, no ".0"."""
    if name == "memory_limit" and value % (1 << 20) == 0:
        return f"{value >> 30}GiB" if value % (1 << 30) == 0 else f"{value >> 20}MiB"
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


def arguments_of(record: type, values: Mapping[str, Any]) -> list[str]:
    """Arguments that give a record of options these values; defaults are left out."""
    arguments = []
    for name, declared in option_fields(record).items():
        value = values.get(name, declared.default)
        if value == declared.default:
            continue
        flags = [flag for flag, (set_to, _) in declared.flags.items() if set_to == value]
        arguments += flags or [_flag_of(name, declared), _in_short(name, value)]
    return arguments
