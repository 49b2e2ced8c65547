"""Parser of arguments: errors of one sentence, files and options in any order."""

from __future__ import annotations

import argparse
import difflib
import textwrap
from collections.abc import Callable
from typing import Any, NoReturn

from ooc_fw.options import file_name
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
