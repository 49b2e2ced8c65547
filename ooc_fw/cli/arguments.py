"""Arguments of the commands by name: those of `ooc_fw.options`, and those of commands alone."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ooc_fw import options
from ooc_fw.options import Option, option_fields
from ooc_fw.system.errors import InputError


def flag(text: str) -> Option:
    """Declaration of an option without a value."""
    return Option(False, flags={"": (True, text)})


def file_option(text: str, metavar: str = "FILE", **declaration: Any) -> Option:
    """Declaration of an option that names a file, or of a place for one if its name is empty."""
    return Option(None, text, read=options.file_name, metavar=metavar, **declaration)


def values_option(name: str) -> Option:
    """Declaration of a list of values of an option, such as 0.5,1,10."""
    declared = ARGUMENTS[name]

    def read(text: str) -> list[Any]:
        return [declared.parse(part) for part in text.split(",")]

    return Option(None, f"values of {name}, such as 0.5,1,10", read=read, metavar="VALUES")


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


_TRAIN = option_fields(options.TrainOptions)
_TASK = option_fields(options.TaskOptions)

ARGUMENTS = {
    **option_fields(options.ConvertOptions),
    **option_fields(options.KernelOptions),
    **_TRAIN,
    "C": replace(
        _TRAIN["C"],
        default=None,
        help=f"penalty of a unit squared slack (default: 1; of novelty {options.NOVELTY_C:g})",
    ),
    "threads": replace(_TRAIN["threads"], default=None, help="threads (default: all CPUs)"),
    "contamination": _TASK["contamination"],
    "epsilon": replace(_TASK["epsilon"], default=None),
    "data": file_option(
        "a file of ooc-fw convert, or other HDF5, AnnData, zarr or .npy", "DATA", name=""
    ),
    "model": file_option("file written by ooc-fw train or tune", "MODEL", name=""),
    "output": file_option("model file (default: DATA with the suffix .model.h5)", "MODEL"),
    "task": Option(
        "classification",
        "classification, novelty (rows like these: 1, others: -1), or regression",
        choices=options.TASKS,
        metavar="TASK",
    ),
    "ordinary": Option(None, "of novelty: learn these rows alone", metavar="LABEL"),
    "metric": Option(
        "auto",
        "accuracy, balanced_accuracy, auc, r2; auto is accuracy, auc of novelty, r2 of regression",
        metavar="METRIC",
    ),
    "probability": flag("let the model give probabilities, in up to twice the time"),
    "class_weight": Option(
        None,
        "factors of C for rows of some classes, such as --class-weight=-1=1,1=9, or balanced: "
        "inversely proportional to the rows of each class",
        read=_class_weight,
        metavar="balanced|LABEL=W,...",
    ),
    "checkpoint": file_option("write the model so far now and then"),
    "checkpoint_every": Option(None, "time between checkpoints (default: 60s)", **options.DURATION),
    "resume": file_option("go on from a checkpoint; with --stream from a model"),
    "log": file_option("write events as JSON; --resume appends"),
    "dry_run": flag("print the kind of model and the plan of memory, train nothing"),
    "stream": flag("read DATA once, in bounded memory; also LIBSVM text, or - for standard input"),
    "keep": options.KEEP,
    "dask": Option(
        None,
        "where passes over the file run: on threads or processes of Dask, as many as --threads, "
        "or on the cluster at tcp://HOST:PORT (default: without Dask)",
        metavar="WHERE",
    ),
    "test_share": Option(0.3, "share of the rows in the test file", **options.SHARE),
    "decision": flag(
        "decision values (margin at -1 and 1, positive for the larger label); of more than two "
        "classes for each pair, or, of a landmark model, for each class against the rest"
    ),
    "threshold": Option(
        None,
        "decision value above which the larger of two labels is predicted (default: 0)",
        low=-options.LARGEST,
        metavar="T",
    ),
    "positive": Option(
        None,
        "the class to be found (default: the larger of two labels, or novel rows)",
        metavar="LABEL",
    ),
    "figure": file_option("draw it (.png, .svg, .pdf; matplotlib)"),
    "top": Option(20, "columns in table and figure; JSON has all", **options.COUNT),
    "json": flag("print the result as one JSON object"),
    "quiet": flag("no progress and no summary"),
    "verbose": flag("more messages: sizes, choices, memory, phases"),
}
"""All arguments of commands; `ooc_fw.cli.commands` says what some commands change."""


def given_arguments(args: argparse.Namespace, names: Sequence[str]) -> list[str]:
    """Those of the arguments `names` that are not the defaults, for a command line."""
    words = []
    for name in names:
        declared = ARGUMENTS[name]
        value = vars(args).get(name, declared.default)
        if value != declared.default:
            flags = {set_to: flag for flag, (set_to, _) in declared.flags.items()}
            words += [flags.get(value) or declared.flag(name), *[str(value)] * (not flags)]
    return words
