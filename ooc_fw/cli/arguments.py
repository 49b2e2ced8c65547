"""What the arguments of commands have in common, and how those that set options are declared.

Arguments that are fields of a record in `ooc_fw.options` are derived from it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

from ooc_fw.options import ConvertOptions, Option, TrainOptions, option_fields
from ooc_fw.system.errors import InputError
from ooc_fw.system.threads import cpu_count

_MOST_VALUES = 1000  # of a range such as 2^-5..2^15


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


def read_class_weight(text: str) -> dict[str, float] | str:
    """Weight of each class by its label, or "balanced"."""
    if text == "balanced":
        return text
    parts = [part.rpartition("=") for part in text.split(",")]
    try:
        weights = {label: float(weight) for label, _, weight in parts}
    except ValueError:
        weights = {}
    if not weights or "" in weights:
        raise InputError(f"must be class weights LABEL=W,... or balanced, not {text!r}")
    return weights


def add_values(group: argparse._ActionsContainer, name: str, declared: Option, text: str) -> None:
    """Declare an option that takes a list of values of another one."""
    read = argument_type(partial(value_list, declared=declared))
    group.add_argument(name, type=read, metavar="VALUES", help=text)


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


def add_output(
    parser: argparse.ArgumentParser, metavar: str, text: str, default: str | None = None
) -> None:
    """Declare where the result goes; `text` is the help."""
    parser.add_argument("-o", "--output", metavar=metavar, default=default, help=text)


def add_work(parser: argparse.ArgumentParser, *, dask: bool = True) -> None:
    """Declare ``--threads``, of which the default is the number of processors, and ``--dask``."""
    declared = option_fields(TrainOptions)["threads"]
    text = "threads (default: all CPUs)"
    add_option(parser, "threads", replace(declared, default=None, help=text))
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
    add_flag(parser, "--json", "print the result as one JSON object")
    if progress:
        group = parser.add_mutually_exclusive_group()
        add_flag(group, "--quiet", "no progress and no summary")
        text = "sizes, choices, the memory plan, phases; a line of progress a second"
        add_flag(group, "--verbose", f"more messages: {text}")
