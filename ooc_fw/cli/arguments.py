"""Arguments of the commands by name: the options of `ooc_fw.options`, and further ones."""

from __future__ import annotations

import argparse
import csv
import io
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ooc_fw import options
from ooc_fw.options import Option, option_fields, split_pairs
from ooc_fw.system.errors import InputError


def flag(text: str) -> Option:
    """Declaration of an option without a value."""
    return Option(False, flags={"": (True, text)})


def file_option(text: str, metavar: str = "FILE", **declaration: Any) -> Option:
    """Declaration of an option that names a file; with ``name=""`` it is a positional argument."""
    return Option(None, text, read=options.file_name, metavar=metavar, **declaration)


def values_option(name: str) -> Option:
    """Declaration of an option for several values of the argument `name`, such as 0.5,1,10."""
    declared = ARGUMENTS[name]

    def read(text: str) -> list[Any]:
        return [declared.parse(part) for part in text.split(",")]

    return Option(None, f"values of {name} to try, such as 0.5,1,10", read=read, metavar="VALUES")


def _class_weight(text: str) -> dict[str, float] | str:
    """Parse the weight of each class, by its label, or "balanced"."""
    if text == "balanced":
        return text
    with suppress(ValueError):
        pairs = split_pairs(text)
        weights = {label: float(weight) for label, weight in pairs}
        if "" not in weights and len(weights) == len(pairs) > 0:
            return weights
    raise InputError(
        f"must be class weights LABEL=W,... or balanced, with each label once, not {text!r}"
    )


_MODEL = option_fields(options.ModelOptions)

ARGUMENTS = {
    **option_fields(options.ConvertOptions),
    **_MODEL,
    "C": replace(
        _MODEL["C"],
        default=None,
        help=f"penalty of squared errors in training (default: 1; novelty: {options.NOVELTY_C:g})",
    ),
    "threads": replace(_MODEL["threads"], default=None, help="threads to use (default: all CPUs)"),
    "epsilon": replace(_MODEL["epsilon"], default=None),
    "data": file_option(
        "rows to read: a file of ooc-fw convert, other HDF5, AnnData, zarr, .npy", "DATA", name=""
    ),
    "model": file_option("model file of ooc-fw train or tune", "MODEL", name=""),
    "output": file_option("model file to write (default: DATA with suffix .model.h5)", "MODEL"),
    "task": Option(
        "classification",
        "classification, regression, or novelty: predict 1 for rows like these, -1 for others",
        choices=options.TASKS,
        metavar="TASK",
    ),
    "ordinary": Option(None, "label of ordinary rows, which novelty learns", metavar="LABEL"),
    "metric": Option(
        "auto",
        "what to maximise: accuracy, balanced_accuracy, auc or r2; auto depends on the task",
        metavar="METRIC",
    ),
    "class_weight": Option(
        None,
        "factors of C for some classes, such as --class-weight=-1=1,1=9, with quotes as in CSV: "
        "'\"a, b\"=2'; balanced: inversely proportional to the number of rows of the class",
        read=_class_weight,
        metavar="balanced|LABEL=W,...",
    ),
    "checkpoint": file_option("file to which the run regularly writes its model so far"),
    "checkpoint_every": Option(None, "time between checkpoints (default: 60s)", **options.DURATION),
    "resume": file_option(
        "checkpoint or unfinished model to go on from; with --stream, a model to update"
    ),
    "log": file_option("file for events of the run, as JSON; --resume appends to it"),
    "dry_run": flag("print the kind of model and the memory plan, but train nothing"),
    "stream": flag("read DATA once, in bounded memory; also LIBSVM text, or - for standard input"),
    "keep": options.KEEP,
    "dask": Option(
        None,
        "run readings of the file in Dask: on threads or processes (as many as --threads), or on "
        "the cluster at tcp://HOST:PORT (default: without Dask)",
        metavar="WHERE",
    ),
    "groups": Option(
        None,
        "keep rows of one group, such as a patient, together: a name in DATA, a .npy file, or "
        "FILE:COLUMN of the table before conversion",
        metavar="GROUPS",
    ),
    "test_share": Option(0.3, "share of the rows in the test file", **options.SHARE),
    "decision": flag(
        "print decision values: 1 and -1 are the margin, positive means the larger label. Of three "
        "classes or more, each pair has a value; in a landmark model, each class against the rest"
    ),
    "threshold": Option(
        None,
        "decision value above which the larger of two labels is predicted (default: that of the "
        "model, or 0)",
        low=-options.LARGEST,
        metavar="T",
    ),
    "false_alarms": Option(
        None,
        "choose the threshold so that at most this share of the rows of the other class, such as "
        "0.01, is predicted as the positive class",
        **options.SHARE,
    ),
    "save": file_option("with --false-alarms, write the model with this threshold to this file"),
    "unassigned": Option(
        None,
        "predict unassigned if the predicted class has a probability below P",
        **options.SHARE | {"metavar": "P"},
    ),
    "positive": Option(
        None,
        "class that counts as positive (default: the larger of two labels, or novel rows)",
        metavar="LABEL",
    ),
    "figure": file_option("draw the result to this file (.png, .svg, .pdf; needs matplotlib)"),
    "top": Option(20, "number of columns in table and figure; JSON has all", **options.COUNT),
    "json": flag("print the result as one JSON object"),
    "quiet": flag("show no progress and no summary"),
    "verbose": flag("show more messages: sizes, choices, memory, phases"),
}
"""All arguments of commands; `ooc_fw.cli.commands` changes a few for single commands."""


def given_arguments(args: argparse.Namespace, names: Sequence[str]) -> list[str]:
    """Words of a command line that give the arguments in `names` which differ from the default."""
    words = []
    for name in names:
        declared = ARGUMENTS[name]
        value = vars(args).get(name, declared.default)
        if declared.many:
            words += [declared.flag(name), joined(value)] if value else []
        elif value != declared.default:
            flags = {set_to: flag for flag, (set_to, _) in declared.flags.items()}
            words += [flags.get(value) or declared.flag(name), *[str(value)] * (not flags)]
    return words


def joined(names: Sequence[str]) -> str:
    """Names with commas between them; those that contain a comma are quoted."""
    cells = io.StringIO()
    csv.writer(cells, lineterminator="").writerow(names)
    return cells.getvalue()
