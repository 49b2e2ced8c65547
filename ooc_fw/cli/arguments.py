"""What the arguments of commands have in common, and how those that set options are declared.

Arguments that are fields of a record in `ooc_fw.options` are derived from it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

from ooc_fw.options import ConvertOptions, Option, TrainOptions, option_fields
from ooc_fw.system.errors import InputError
from ooc_fw.system.groups import cpu_count


class Parser(argparse.ArgumentParser):
    """Argument parser whose errors are one sentence, like all others.

    Names of options are written in full: a new option would change what an abbreviation means.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Raise the usage error as a user's mistake."""
        raise InputError(f"{message}; see {self.prog} --help")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print help, or fail as all other output does; argparse ignores that it cannot."""
        print(message, end="", file=file)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Refuse unknown arguments here, where the command is known whose help lists the others."""
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
        own, declared = fields[name]
        add_option(parser, name, declared, own.default)


def add_option(
    parser: argparse._ActionsContainer, name: str, declared: Option, default: Any = None
) -> None:
    """Declare one option; its help text ends with the default."""
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
    shown = declared.default_help or default
    parser.add_argument(
        _flag_of(name, declared),
        dest=name,
        metavar=metavar,
        type=argument_type(declared.parse) if declared.parses else str,
        action="extend" if declared.many else "store",
        default=list(default) if declared.many else default,
        help=declared.help + (f" (default: {shown})" if shown not in (None, ()) else ""),
    )


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


def arguments_of(record: type, values: Mapping[str, Any]) -> list[str]:
    """Arguments that give a record of options these values; defaults are left out."""
    arguments = []
    for name, (own, declared) in option_fields(record).items():
        value = values.get(name, own.default)
        if value == own.default:
            continue
        flags = [flag for flag, (set_to, _) in declared.flags.items() if set_to == value]
        arguments += flags or [_flag_of(name, declared), str(value)]
    return arguments


def add_data(parser: argparse.ArgumentParser, also: str = "", *, labels: bool = True) -> None:
    """Declare DATA, which may `also` be something else than arrays, and what to find in it."""
    kinds = (
        "an HDF5 file (ooc-fw convert writes one), an AnnData file, a zarr store or a .npy array"
    )
    parser.add_argument("data", metavar="DATA", help=kinds + also)
    add_options(parser, ConvertOptions, ["x_name"])
    if labels:
        add_options(parser, ConvertOptions, ["y_name", "label", "labels", "missing_labels"])


def add_data_or_text(parser: argparse.ArgumentParser, *, labels: bool = True) -> None:
    """Declare DATA of a command that reads LIBSVM text, too."""
    also = ", LIBSVM text or a table (CSV, Parquet, Arrow), or - for standard input"
    add_data(parser, also, labels=labels)
    add_options(parser, ConvertOptions, ["zero_based"])


def add_model(parser: argparse.ArgumentParser) -> None:
    """Declare MODEL."""
    parser.add_argument("model", metavar="MODEL", help="file written by ooc-fw train or tune")


def add_model_output(parser: argparse.ArgumentParser) -> None:
    """Declare where the model goes."""
    parser.add_argument(
        "-o",
        "--output",
        metavar="MODEL",
        help="model file (default: DATA with .model.h5 in place of its suffix)",
    )


def add_work(parser: argparse.ArgumentParser, *, dask: bool = True) -> None:
    """Declare ``--threads``, of which the default is the number of processors, and ``--dask``."""
    add_options(parser, TrainOptions, ["threads"])
    parser.set_defaults(threads=cpu_count())
    if dask:
        parser.add_argument(
            "--dask",
            metavar="WHERE",
            help="pass over the file with Dask: on threads, on processes (as many as --threads), "
            "or on the cluster at the address tcp://HOST:PORT (default: without Dask); the numbers "
            "are the same",
        )


def add_results(parser: argparse.ArgumentParser, *, progress: bool = True) -> None:
    """Declare ``--json``, and ``--quiet`` and ``--verbose`` of commands that take time."""
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    if progress:
        group = parser.add_mutually_exclusive_group()
        group.add_argument("--quiet", action="store_true", help="no progress and no summary")
        group.add_argument(
            "--verbose",
            action="store_true",
            help="more messages: sizes, choices, the memory plan, phases; a line of progress a "
            "second",
        )
