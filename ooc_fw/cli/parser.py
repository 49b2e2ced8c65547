"""Parser of arguments, and how one that is declared in `ooc_fw.options` is added to it."""

from __future__ import annotations

import argparse
import difflib
import textwrap
from collections.abc import Callable
from typing import Any, NoReturn

from ooc_fw.options import Option, file_name, output_name
from ooc_fw.system.errors import InputError


def argument_type(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Argument type whose errors are those of `parse`, which raises InputError."""

    def parsed(text: str) -> Any:
        try:
            return parse(text)
        except InputError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parsed


INPUT = argument_type(file_name)
"""Type of all arguments that name files to read."""
OUTPUT = argument_type(file_name)
"""Type of all arguments that name a file to write; none of these replaces an input."""


class _Formatter(argparse.HelpFormatter):
    """Help whose indented paragraphs, examples, stay as they are, and whose names stay whole."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        parts = text.split("\n\n")
        return "\n\n".join(p if p[:1] == " " else fill(p, width, indent) for p in parts)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


class Parser(argparse.ArgumentParser):
    """Argument parser whose errors are one sentence, like all others.

    Names of options are written in full: a new option would change what an abbreviation means.
    Files and options of a command may come in any order.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False, formatter_class=_Formatter)
        self.add_argument("--help-all", action="help", help=argparse.SUPPRESS)
        self._mixes = False

    def shorten_usage(self) -> None:
        """Let the usage name the files alone, once all arguments are declared."""
        names = [str(action.metavar) for action in self._get_positional_actions()]
        self.usage = " ".join([self.prog, *names, "[options]"])

    def error(self, message: str) -> NoReturn:
        """Raise the usage error as a user's mistake."""
        raise InputError(f"{message}; see {self.prog} --help")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print help, or fail as all other output does; argparse ignores that it cannot."""
        print(message, end="", file=file)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Refuse unknown arguments here, where the command is known whose help lists the others."""
        if self._mixes or self._subparsers is not None:
            return super().parse_known_args(args, namespace)
        self._mixes = True  # the next call comes back here for a part of the arguments
        parsed, unknown = self.parse_known_intermixed_args(args, namespace)
        if unknown:
            near = difflib.get_close_matches(unknown[0], self._option_string_actions, 1)
            hint = f"; do you mean {near[0]}" if near else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        parsed.inputs = []
        for action in self._actions:
            given = getattr(parsed, action.dest, None) if action.type is INPUT else None
            parsed.inputs += [given] if isinstance(given, str) else given or []
        return parsed, unknown


def add_option(group: argparse._ActionsContainer, name: str, declared: Option) -> None:
    """Declare an argument; its help text ends with the default."""
    default = declared.default
    if declared.flags:
        flags = group.add_mutually_exclusive_group() if len(declared.flags) > 1 else group
        for flag, (value, text) in declared.flags.items():
            how: dict[str, Any] = {"action": "store_const", "const": value, "default": default}
            flags.add_argument(flag or declared.flag(name), dest=name, help=text, **how)
        return
    metavar: Any = declared.metavar
    if declared.choices and declared.low is None and metavar is None:
        metavar = f"{{{','.join(declared.choices)}}}"
    kinds: dict[Any, Any] = {file_name: INPUT, output_name: OUTPUT}
    shown = "" if default in (None, (), []) else f" (default: {default})"
    how = {
        "metavar": metavar,
        "type": kinds.get(declared.read) or argument_type(declared.parse),
        "default": list(default) if declared.many else default,
        "help": declared.help + shown,
    }
    how |= {} if declared.nargs is None else {"nargs": declared.nargs}
    if declared.name == "":
        group.add_argument(name, **how)
        return
    names = ["-o"] * (name == "output") + [declared.flag(name)]
    group.add_argument(*names, dest=name, action="extend" if declared.many else "store", **how)
