"""How arguments are declared: those of options, and those that commands share."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import isfinite
from typing import Any

from ooc_fw.cli.parser import INPUT, OUTPUT, argument_type
from ooc_fw.options import ConvertOptions, Option, TrainOptions, file_name, option_fields
from ooc_fw.system.errors import InputError
from ooc_fw.system.threads import cpu_count

_MOST_VALUES = 1000  # of a range such as 2^-5..2^15


def add_options(
    parser: argparse._ActionsContainer, record: type, names: Iterable[str] | None = None
) -> None:
    """Declare the fields of a record of options, all of them by default."""
    fields = option_fields(record)
    for name in fields if names is None else names:
        add_option(parser, name, fields[name])


def add_option(
    parser: argparse._ActionsContainer, name: str, declared: Option, **other: Any
) -> None:
    """Declare an option of which `other` is another than `declared`; help ends with the default."""
    declared = replace(declared, **other)
    default = declared.default
    if declared.flags:
        group = parser.add_mutually_exclusive_group()
        for flag, (value, text) in declared.flags.items():
            how: dict[str, Any] = {"action": "store_const", "const": value, "default": default}
            group.add_argument(flag, dest=name, help=text, **how)
        return
    metavar = declared.metavar
    if declared.choices and declared.low is None and metavar is None:
        metavar = f"{{{','.join(declared.choices)}}}"
    shown = "" if default in (None, ()) else f" (default: {default})"
    parser.add_argument(
        declared.flag(name),
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


def add_values(group: argparse._ActionsContainer, name: str, declared: Option, text: str) -> None:
    """Declare an option that takes a list of values of another one."""
    read = argument_type(partial(value_list, declared=declared))
    group.add_argument(name, type=read, metavar="VALUES", help=text)


def add_model(parser: argparse.ArgumentParser) -> None:
    """Declare MODEL."""
    text = "file written by ooc-fw train or tune"
    parser.add_argument("model", type=INPUT, metavar="MODEL", help=text)


TEXT = ", LIBSVM text or a table (CSV, Parquet, Arrow), or - for standard input"
"""What DATA may be, too, for commands that read text."""


def add_data(
    parser: argparse.ArgumentParser, also: str = "", *, labels: bool = True, several: bool = True
) -> None:
    """Declare DATA, which may `also` be something else than arrays, and what to find in it."""
    text = "a file of ooc-fw convert or other HDF5, AnnData, zarr or .npy"
    text += ", or several of them, one below the other" * several + also
    parser.add_argument("data", type=INPUT, metavar="DATA", help=text)
    if several:
        shown: dict[str, Any] = {"metavar": "[DATA ...]", "help": argparse.SUPPRESS}
        parser.add_argument("more", nargs="*", type=INPUT, default=[], **shown)
    group = parser.add_argument_group("data")
    if labels:
        add_options(parser, ConvertOptions, ["label"])
        add_options(group, ConvertOptions, ["labels"])
    add_options(group, ConvertOptions, ["x_name", *["zero_based"] * (also == TEXT)])


def add_output(
    parser: argparse.ArgumentParser, metavar: str, text: str, default: str | None = None
) -> None:
    """Declare where the result goes; `text` is the help."""
    parser.add_argument("-o", "--output", type=OUTPUT, metavar=metavar, default=default, help=text)


def add_outputs(parser: argparse.ArgumentParser, metavar: str, text: str) -> None:
    """Declare where the result goes, either by ``-o`` or at the end of the arguments."""
    parser.add_argument("outputs", nargs="*", type=OUTPUT, metavar=metavar, help=text)
    add_output(parser, metavar, text)


def add_file(
    parser: argparse._ActionsContainer, name: str, text: str, *, written: bool = False
) -> None:
    """Declare an option that names a file that is read, or `written`."""
    kind = OUTPUT if written else INPUT
    parser.add_argument(name, type=kind, metavar="FILE", help=text)


def add_figure(parser: argparse.ArgumentParser, text: str) -> None:
    """Declare ``--figure``; `text` says what it shows."""
    add_file(parser, "--figure", f"{text} (.png, .svg, .pdf; matplotlib)", written=True)


def add_work(
    parser: argparse.ArgumentParser,
    group: argparse._ActionsContainer | None = None,
    *,
    dask: bool = True,
) -> None:
    """Declare ``--threads``, of which the default is the number of processors, and ``--dask``."""
    group = group or parser
    text = "threads (default: all CPUs)"
    add_option(group, "threads", option_fields(TrainOptions)["threads"], default=None, help=text)
    parser.set_defaults(threads=cpu_count())
    if dask:
        text = "where passes over the file run: on threads or processes of Dask, as many as "
        text += "--threads, or on the cluster at tcp://HOST:PORT (default: without Dask)"
        group.add_argument("--dask", metavar="WHERE", help=text)


def add_results(parser: argparse.ArgumentParser, *, progress: bool = True) -> None:
    """Declare ``--json``, and ``--quiet`` and ``--verbose`` of commands that take time."""
    messages = parser.add_argument_group("messages")
    add_flag(messages, "--json", "print the result as one JSON object")
    if progress:
        group = messages.add_mutually_exclusive_group()
        add_flag(group, "--quiet", "no progress and no summary")
        text = "more messages: sizes, choices, the memory plan, phases; a line of progress a second"
        add_flag(group, "--verbose", text)


def value_list(text: str, declared: Option) -> list[Any]:
    """Values of an option: numbers, or powers of a number, such as 0.5,1,10 or 2^-5..2^15:2."""
    return [value for part in text.split(",") for value in _values(part, declared)]


def _values(part: str, declared: Option) -> list[Any]:
    pattern = r"(\d+(?:\.\d+)?)\^(-?\d+)(?:\.\.\1\^(-?\d+))?(?::([1-9]\d*))?"
    powers = re.fullmatch(pattern, part)
    if powers is None:
        return [declared.parse(part)]
    base = float(powers[1])
    first = int(powers[2])
    last = int(powers[3] or first)
    step = int(powers[4] or 1)
    with suppress(ArithmeticError):
        if first <= last < first + _MOST_VALUES:
            return [declared.parse(repr(base**power)) for power in range(first, last + 1, step)]
    raise InputError(f"must be values, or powers such as 2^-5..2^15:2, not {part!r}")


def read_kernels(text: str) -> str | list[str]:
    """Names of kernels, or "auto"."""
    return text if text == "auto" else [name.strip() for name in text.split(",")]


def read_class_weight(text: str) -> dict[str, float] | str:
    """Weight of each class by its label, or "balanced"."""
    if text == "balanced":
        return text
    with suppress(ValueError):
        parts = [part.rpartition("=") for part in text.split(",")]
        weights = {label: float(weight) for label, _, weight in parts}
        if "" not in weights:
            return weights
    raise InputError(f"must be class weights LABEL=W,... or balanced, not {text!r}")


def read_threshold(text: str) -> float | tuple[str, float]:
    """A decision value, or a measure and how much of it is wanted."""
    measure, is_wanted, number = text.rpartition("=")
    with suppress(ValueError):
        value = float(number)
        if not is_wanted and isfinite(value):
            return value
        if measure in ("recall", "precision") and 0 < value <= 1:
            return measure, value
    raise InputError(f"must be a number, recall=R or precision=P up to 1, not {text!r}")


def arguments_of(record: type, values: Mapping[str, Any]) -> list[str]:
    """Arguments that give a record of options these values; defaults are left out."""
    arguments = []
    for name, declared in option_fields(record).items():
        value = values.get(name, declared.default)
        if value == declared.default:
            continue
        flags = [flag for flag, (set_to, _) in declared.flags.items() if set_to == value]
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        arguments += flags or [declared.flag(name), str(value)]
    return arguments


def data_arguments(args: argparse.Namespace, known: Sequence[str] = ()) -> list[str]:
    """Options given that say where rows and labels are, but those in `known`, for a command."""
    names = {"label", "labels", "x_name", "header"} & {*vars(args)}
    left = [name for name in names if f"--{name.replace('_', '-')}" not in known]
    return arguments_of(ConvertOptions, {name: vars(args)[name] for name in left})
