"""The parser of the command line, made from the declarations of commands and arguments."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any, NoReturn

import ooc_fw
from ooc_fw.cli.arguments import ARGUMENTS
from ooc_fw.cli.commands import COMMANDS, Command
from ooc_fw.options import Option
from ooc_fw.system.errors import InputError
from ooc_fw.system.threads import cpu_count


class Parser(argparse.ArgumentParser):
    """Argument parser whose errors are one sentence.

    Abbreviations of options are refused, since a new option could change their meaning.
    """

    def __init__(self, **options: Any) -> None:
        look = argparse.RawDescriptionHelpFormatter
        super().__init__(**options, allow_abbrev=False, formatter_class=look)

    def error(self, message: str) -> NoReturn:
        """Raise the usage error as an InputError."""
        raise InputError(f"{message}; see {self.prog} --help")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print help, and fail if it cannot be written; argparse would ignore that."""
        print(message, end="", file=file)


def build_parser() -> Parser:
    """Make the parser of all commands."""
    parser = Parser(
        prog="ooc-fw",
        description="Train kernel support vector machines on data larger than memory:\n"
        "convert the data once, train with a certified duality gap, predict.",
    )
    parser.add_argument("--version", action="version", version=f"ooc-fw {ooc_fw.__version__}")
    parsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        summary, _, description = command.help.partition("\n")
        short = summary[:1].lower() + summary[1:].removesuffix(".")
        own = parsers.add_parser(name, help=short, description=description.strip() or summary)
        _declare(own, command)
        places = [str(action.metavar) for action in own._get_positional_actions()]
        own.usage = " ".join([own.prog, *places, "[options]"])
    return parser


def _declare(parser: Parser, command: Command) -> None:
    """Add the arguments of a command to its parser, in their groups."""
    group: argparse._ActionsContainer = parser
    known = {**ARGUMENTS, **command.own}
    for word in command.arguments.split():
        if word.endswith(":"):
            group = parser.add_argument_group(word[:-1].replace("_", " "))
            continue
        names = word.split("|")
        several = group.add_mutually_exclusive_group() if len(names) > 1 else group
        for name in names:
            _add_option(several, name, known[name])
    if "threads" in command.names:
        parser.set_defaults(threads=cpu_count())


def _add_option(group: argparse._ActionsContainer, name: str, declared: Option) -> None:
    """Declare an argument; its help text ends with the default."""
    default = declared.default
    if declared.flags:
        flags = group.add_mutually_exclusive_group() if len(declared.flags) > 1 else group
        for flag, (value, text) in declared.flags.items():
            how: dict[str, Any] = {"action": "store_const", "const": value, "default": default}
            flags.add_argument(flag or declared.flag(name), dest=name, help=text, **how)
        return
    shown = "" if default in (None, ()) else f" (default: {default})"
    words = ",".join(declared.choices) if declared.low is None else ""
    how = {
        "metavar": declared.metavar or (f"{{{words}}}" if words else None),
        "type": partial(_value, declared),
        "default": list(default) if declared.many else default,
        "help": declared.help + shown,
    }
    how |= {} if declared.nargs is None else {"nargs": declared.nargs}
    if declared.name == "":
        group.add_argument(name, **how)
        return
    names = ["-o"] * (name == "output") + [declared.flag(name)]
    group.add_argument(*names, dest=name, action="extend" if declared.many else "store", **how)


def _value(declared: Option, text: str) -> Any:
    try:
        return declared.parse(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
