"""The commands: what they are called, what they do, their arguments, and which function runs each.

Arguments are declared in ``arguments.py``; a command names them, and a word that ends in a colon
begins a titled group. A command is run by a function from parsed arguments to an exit status, in a
module that is imported when the command is called: help and usage errors need no numbers.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from ooc_fw.cli.arguments import (
    ARGUMENTS,
    Parser,
    add_option,
    file_option,
    flag,
    place,
    values_option,
)
from ooc_fw.options import COUNT, KernelOptions, Option, TrainOptions, option_fields
from ooc_fw.report.figures import PANELS
from ooc_fw.system.threads import cpu_count

DONE, NO, USAGE, FAILED = 0, 1, 2, 3
"""Exit statuses: done; the answer is no, such as a gap above the tolerance or a damaged file; wrong
input or usage; a failure such as a full disk, no time for a model, or an error of the program
itself. After a signal the status is 128 plus its number."""


class Command(NamedTuple):
    """A command: its module and function, help and arguments, of which `own` are its own."""

    module: str
    help: str  # a sentence, and what is added to it
    arguments: str
    own: Mapping[str, Option] = {}
    function: str = "run"

    @property
    def names(self) -> list[str]:
        """Names of the arguments."""
        words = self.arguments.replace("|", " ").split()
        return [word for word in words if not word.endswith(":")]

    def declare(self, parser: Parser) -> None:
        """Add the arguments to a parser; those with a bar between them exclude each other."""
        group: argparse._ActionsContainer = parser
        known = {**ARGUMENTS, **self.own}
        for word in self.arguments.split():
            if word.endswith(":"):
                group = parser.add_argument_group(word[:-1].replace("_", " "))
                continue
            names = word.split("|")
            place_of_names = group.add_mutually_exclusive_group() if len(names) > 1 else group
            for name in names:
                add_option(place_of_names, name, known[name])
        if "threads" in self.names:
            parser.set_defaults(threads=cpu_count())


def _kernels(text: str) -> str | list[str]:
    return text if text == "auto" else [name.strip() for name in text.split(",")]


_TEXT = {
    "data": replace(
        ARGUMENTS["data"],
        help=f"{ARGUMENTS['data'].help}, LIBSVM text or a table (CSV, Parquet, Arrow), or - for "
        f"standard input",
    )
}
_MODEL = {"output": file_option("model file (default: DATA with the suffix .model.h5)", "MODEL")}

COMMANDS = {
    "convert": Command(
        "convert",
        """Convert LIBSVM text, CSV, Parquet and arrays to HDF5, shuffled and scaled.

  ooc-fw convert a.csv train.h5 --label y --scale standard --one-hot city
  ooc-fw convert b.csv test.h5 --like train.h5""",
        """files label task scale like one_hot header
        columns_of_tables: target_encode target_counts dates drop impute
        labels_and_arrays: labels labels_as missing_labels x_name
        input: format zero_based n_features on_error log1p delimiter
        output: dense shuffle seed compression messages: json quiet|verbose""",
        {
            "files": place(
                "IN [IN ...] OUT.h5: text or CSV (also compressed), Parquet or Arrow files or "
                "folders of them, .npy, HDF5, zarr, or addresses of these; - is standard input",
                "FILE",
                "+",
            ),
        },
    ),
    "split": Command(
        "split",
        """Split a data file into a training and a test file.

Test rows are a random part with the same share of each class, or those that
--rows names. Both files keep the order of the rows and the scaling.""",
        """data outputs label test_share|rows seed compression
        data: labels x_name messages: json quiet|verbose""",
        {"outputs": place("files to write", "TRAIN.h5 TEST.h5", 2)},
    ),
    "info": Command(
        "info",
        """What data or a model hold, and what to do before training.

Of large files a sample is read, of text and tables the beginning.""",
        "data label header data: labels x_name zero_based messages: json",
        _TEXT,
    ),
    "verify": Command(
        "verify",
        """Check that a data file is undamaged.

Compare every array with the checksums that ooc-fw convert stored. The exit
status is 1 if the file is damaged.""",
        "data messages: json quiet|verbose",
        {"data": place("a file of ooc-fw convert", "DATA")},
    ),
    "train": Command(
        "train",
        """Train a model.

Train a kernel support vector machine (squared hinge loss) on a file of any
size, and certify its duality gap over all rows.

  ooc-fw train train.h5 -o model.h5 --C 10 --gamma 0.05 --max-time 30m""",
        """data label output task C kernel gamma tol memory_limit max_time probability
        data: labels x_name single_tasks: contamination epsilon ordinary
        limits: max_iter threads dask dry_run noisy_data: landmarks exact
        classes_and_kernels: class_weight degree coef0
        runs: checkpoint checkpoint_every resume seed log
        methods_of_papers: method lmo start sample_size stopping certify
        messages: json quiet|verbose stream: stream keep zero_based""",
        _MODEL,
    ),
    "tune": Command(
        "tune",
        """Find the best kernel, C and gamma, and train with them.

Candidates are trained on a sample and validated on other rows; the best go on
to more rows, and the best of all is trained on all rows. Given values are the
candidates: numbers (0.5,1,10) or powers of a number (2^0..2^12; 2^-5..2^15:2
for every second one).

  ooc-fw tune train.h5 --C 2^0..2^12 --gamma auto,0.1 --max-time 30m""",
        """data label output task kernel C gamma max_time memory_limit
        data: labels x_name single_tasks: contamination epsilon ordinary
        what_is_tried: degree coef0 validation: metric validation_share seed
        training: tol landmarks exact threads results: points messages: json quiet|verbose""",
        {
            **_MODEL,
            "kernel": Option(
                None, "kernels (default: rbf,laplacian)", read=_kernels, metavar="NAMES"
            ),
            "C": values_option("values of C", option_fields(TrainOptions)["C"]),
            "gamma": values_option(
                "values of gamma, also auto and scale", option_fields(KernelOptions)["gamma"]
            ),
            "max_time": replace(ARGUMENTS["max_time"], help="end after this time (default: 10m)"),
        },
    ),
    "predict": Command(
        "predict",
        """Apply a model to rows.

Print the predicted label of each row, one a line, in the order of the rows
before any shuffling. Text and tables are made like the training data.""",
        """model data output decision probability threshold threads dask
        data: x_name zero_based messages: json quiet|verbose""",
        {
            **_TEXT,
            "probability": flag("the probability of each class, of models that give them"),
            "output": file_option(
                "FILE.csv, FILE.h5: a table, or data sets, of row and label and what is asked "
                "for; any other name: lines as on standard output",
                default="-",
            ),
        },
    ),
    "evaluate": Command(
        "evaluate",
        """How good a model is on labelled rows.

A label the model does not know counts as wrong. Measures are those of
scikit-learn: accuracy, precision, recall and F1 of each class; of two classes
ROC AUC and average precision; the Brier score of probabilities; of regression
R^2, and the root mean squared and the mean absolute error.""",
        """model data label positive threshold threads dask figure
        data: labels x_name zero_based messages: json quiet|verbose""",
        _TEXT,
    ),
    "importance": Command(
        "models",
        """Which columns matter to a model.

By how much the decision value changes, root mean square, with a standard
deviation of the column. Columns that tell the same share what they matter.""",
        "model data rows top figure threads dask data: x_name messages: json quiet|verbose",
        {"rows": Option(10_000, "rows that are looked at, or all", choices=("all",), **COUNT)},
        "importance",
    ),
    "certify": Command(
        "models",
        """Measure the duality gap of a model over its training data.

The exit status is 0 if the tolerance is met, 1 if it is not; a tolerance T
bounds what is lost of the objective by 1 - (1 - T)^2. The gap of a landmark
model is that share itself, within the span of the landmarks.""",
        """model data label tol threads dask
        data: labels x_name messages: json quiet|verbose""",
        function="certify",
    ),
    "export": Command(
        "models",
        """Write a model as an ONNX graph.

The input X has rows before scaling. Outputs are label, decision and, of a
model that gives them, probabilities; or prediction. Needs ooc-fw[onnx].""",
        "model output messages: json",
        {"output": place("file to write", "OUT.onnx")},
        "export",
    ),
    "plot": Command(
        "plot",
        """Draw logs of training runs.

Several logs of ooc-fw train --log share the axes. Needs ooc-fw[plot].""",
        "logs output panels messages: json",
        {
            "logs": place("written by ooc-fw train --log; may still grow", "LOG", "+"),
            "panels": Option(",".join(PANELS), "with commas between them", metavar="NAMES"),
            "output": file_option(
                "default: the first LOG with suffix .png; also .svg and .pdf", "FIGURE"
            ),
        },
    ),
    "demo": Command(
        "demo",
        "Convert, train, certify and evaluate on a small data set.",
        "output",
        {"output": place("keep the files here (default: nowhere)", "DIR", "?")},
    ),
    "help": Command(
        "main",
        "Print a guide on memory, streams, tables, ..., or the help of a command.",
        "topic",
        {"topic": Option(None, "a guide or a command", name="", metavar="TOPIC", nargs="?")},
        "show_help",
    ),
    "warm-up": Command(
        "demo",
        "Compile what the other commands need, once for each installation.",
        "messages: json quiet|verbose",
        function="warm_up",
    ),
}
"""Commands by their names, in the order in which ``--help`` lists them."""
