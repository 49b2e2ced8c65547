"""Arguments of all commands: those of `ooc_fw.options`, and those that only commands have."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import isfinite
from typing import Any

from ooc_fw.options import (
    COUNT,
    DURATION,
    KEEP,
    LARGEST,
    NOVELTY_C,
    SHARE,
    TASKS,
    ConvertOptions,
    KernelOptions,
    Option,
    SearchOptions,
    TaskOptions,
    TrainOptions,
    file_name,
    option_fields,
    output_name,
)
from ooc_fw.system.errors import InputError

_MOST_VALUES = 1000  # of a range such as 2^-5..2^15


def _value_list(text: str, *, declared: Option) -> list[Any]:
    """Values of an option: numbers, or powers of a number, such as 0.5,1,10 or 2^-5..2^15:2."""
    return [value for part in text.split(",") for value in _powers(part, declared)]


def _powers(part: str, declared: Option) -> list[Any]:
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


def _kernels(text: str) -> str | list[str]:
    """Names of kernels, or "auto"."""
    return text if text == "auto" else [name.strip() for name in text.split(",")]


def _class_weight(text: str) -> dict[str, float] | str:
    """Weight of each class by its label, or "balanced"."""
    if text == "balanced":
        return text
    with suppress(ValueError):
        parts = [part.rpartition("=") for part in text.split(",")]
        weights = {label: float(weight) for label, _, weight in parts}
        if "" not in weights:
            return weights
    raise InputError(f"must be class weights LABEL=W,... or balanced, not {text!r}")


def _threshold(text: str) -> float | tuple[str, float]:
    """A decision value, or a measure and how much of it is wanted."""
    measure, is_wanted, number = text.rpartition("=")
    with suppress(ValueError):
        value = float(number)
        if not is_wanted and isfinite(value):
            return value
        if measure in ("recall", "precision") and 0 < value <= 1:
            return measure, value
    raise InputError(f"must be a number, recall=R or precision=P up to 1, not {text!r}")


def flag(text: str) -> Option:
    """Declaration of an option of commands without a value."""
    return Option(False, flags={"": (True, text)})


def place(text: str, metavar: str, nargs: str | None = None, *, written: bool = False) -> Option:
    """Declaration of files that stand at their place among the arguments."""
    read = output_name if written else file_name
    default: list[str] | None = [] if nargs == "*" else None
    return Option(default, text, name="", read=read, metavar=metavar, nargs=nargs)


def _file(text: str, *, written: bool = False) -> Option:
    return Option(None, text, read=output_name if written else file_name, metavar="FILE")


def _values(text: str, declared: Option) -> Option:
    return Option(None, text, read=partial(_value_list, declared=declared), metavar="VALUES")


_TRAIN = option_fields(TrainOptions)
_OF_NOVELTY = f"(default: {TrainOptions.C}; of novelty {NOVELTY_C})"

ARGUMENTS = {
    **option_fields(ConvertOptions),
    **option_fields(KernelOptions),
    **option_fields(TaskOptions),
    **option_fields(SearchOptions),
    **_TRAIN,
    "data": place(
        "a file of ooc-fw convert or other HDF5, AnnData, zarr or .npy, or several of them, one "
        "below the other",
        "DATA",
    ),
    "more": place("==SUPPRESS==", "[DATA ...]", "*"),
    "model": place("file written by ooc-fw train or tune", "MODEL"),
    "C": replace(_TRAIN["C"], default=None, help=f"penalty of a unit squared slack {_OF_NOVELTY}"),
    "threads": replace(_TRAIN["threads"], default=None, help="threads (default: all CPUs)"),
    "epsilon": replace(option_fields(TaskOptions)["epsilon"], default=None),
    "task": Option(
        "classification",
        "classification, novelty (rows like these: 1, others: -1), or regression",
        choices=TASKS,
        metavar="TASK",
    ),
    "ordinary": Option(None, "of novelty: learn these rows alone", metavar="LABEL"),
    "probability": flag("let the model give probabilities, in up to twice the time"),
    "class_weight": Option(
        None,
        "factors of C for rows of some classes, such as --class-weight=-1=1,1=9, or balanced: "
        "inversely proportional to the rows of each class",
        read=_class_weight,
        metavar="balanced|LABEL=W,...",
    ),
    "checkpoint": _file("write the model so far now and then", written=True),
    "checkpoint_every": Option(None, "time between checkpoints (default: 60s)", **DURATION),
    "resume": _file("go on from a checkpoint; with --stream from a model"),
    "log": _file("write events as JSON; --resume appends", written=True),
    "dry_run": flag("print the kind of model and the plan of memory, train nothing"),
    "stream": flag("read DATA once, in bounded memory; also LIBSVM text, or - for standard input"),
    "keep": KEEP,
    "dask": Option(
        None,
        "where passes over the file run: on threads or processes of Dask, as many as --threads, "
        "or on the cluster at tcp://HOST:PORT (default: without Dask)",
        metavar="WHERE",
    ),
    "points": _file("write all candidates as JSON", written=True),
    "test_share": Option(0.3, "share of the rows in the test file", **SHARE),
    "rows": _file("numbers of the test rows, from 0: one a line, or .npy"),
    "decision": flag(
        "decision values (margin at -1 and 1, positive for the larger label); of more than two "
        "classes for each pair, or, of a landmark model, for each class against the rest"
    ),
    "threshold": Option(
        None,
        "recall=R or precision=P: also find the decision value that gives so much of the positive "
        "class here; a number: judge what ooc-fw predict --threshold gives",
        read=_threshold,
        metavar="T",
    ),
    "positive": Option(
        None,
        "the class to be found (default: the larger of two labels, or novel rows); of novelty "
        "also any label of DATA, and rows of all other labels are ordinary",
        metavar="LABEL",
    ),
    "by": Option(None, "the recall for each value of this column of a table", metavar="COLUMN"),
    "figure": _file("draw it (.png, .svg, .pdf; matplotlib)", written=True),
    "top": Option(20, "columns in table and figure; JSON has all", **COUNT),
    "exact_kernel": flag(
        "of a landmark model: also the gap to all weights of all rows, what a larger model could "
        "gain. It takes a kernel value for each pair of rows inside the margin"
    ),
    "float32_input": flag("let the input be of float32 (default: of float64)"),
    "no_probabilities": flag("leave out the probabilities"),
    "json": flag("print the result as one JSON object"),
    "quiet": flag("no progress and no summary"),
    "verbose": flag("more messages: sizes, choices, memory, phases; progress every second"),
}
"""All arguments of commands by name; `ooc_fw.cli.commands` says what some commands change."""

OF_SPLIT = {"output": Option(None, "files to write", read=output_name, nargs=2)}
OF_TUNE = {
    "kernel": Option(None, "kernels (default: rbf,laplacian)", read=_kernels, metavar="NAMES"),
    "C": _values("values of C", _TRAIN["C"]),
    "gamma": _values("values of gamma, also auto and scale", option_fields(KernelOptions)["gamma"]),
    "max_time": replace(_TRAIN["max_time"], help="end after this time (default: 10m)"),
}
OF_PREDICT = {
    "threshold": Option(
        None,
        "decision value above which the larger of two labels is predicted (default: 0)",
        low=-LARGEST,
        metavar="T",
    ),
    "probability": flag("the probability of each class, of models that give them"),
}
OF_IMPORTANCE = {
    "rows": Option(10_000, "rows that are looked at, or all", choices=("all",), **COUNT),
}


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
