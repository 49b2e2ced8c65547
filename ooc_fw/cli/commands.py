"""The commands: what they are called, what they do, their arguments, and which function runs each.

Arguments are declared in ``arguments.py``; a command names them, and a word that ends in a colon
begins a titled group. A command is run by a function from parsed arguments to an exit status, in a
module that is imported when the command is called: help and usage errors need no numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from ooc_fw.cli.arguments import ARGUMENTS, file_option, flag, values_option
from ooc_fw.options import COUNT, Option
from ooc_fw.report.figures import PANELS

DONE, NO, USAGE, FAILED = 0, 1, 2, 3
"""Exit statuses: done; the answer is no, such as a gap above the tolerance or a damaged file; wrong
input or usage; a failure such as a full disk, no time for a model, or an error of the program
itself. After a signal the status is 128 plus its number."""


class Command(NamedTuple):
    """A command, by the module and the function that run it."""

    runs: str
    help: str  # a sentence, and what is added to it
    arguments: str  # of those with a bar between them only one can be given
    own: Mapping[str, Option] = {}  # those that are its own

    @property
    def names(self) -> list[str]:
        """Names of the arguments."""
        words = self.arguments.replace("|", " ").split()
        return [word for word in words if not word.endswith(":")]


_ALSO_TEXT = f"{ARGUMENTS['data'].help}; LIBSVM text, CSV, Parquet, Arrow; - is standard input"
_TEXT = {"data": file_option(_ALSO_TEXT, "DATA", name="")}
_INPUTS = """IN [IN ...] OUT.h5: text or CSV (also compressed), Parquet or Arrow files or
folders of them, .npy, HDF5, zarr; - is standard input"""
_PREDICTIONS = "FILE.csv has columns; any other name: lines as on standard output"

COMMANDS = {
    "convert": Command(
        "data.convert",
        """Convert LIBSVM text, CSV, Parquet and arrays to HDF5, shuffled and scaled.

  ooc-fw convert a.csv train.h5 --label y --scale standard --one-hot city
  ooc-fw convert b.csv test.h5 --like train.h5""",
        """files label task scale like one_hot header
        columns_of_tables: target_encode dates drop impute
        labels_and_arrays: labels labels_as missing_labels x_name
        input: format zero_based n_features log1p delimiter
        output: dense shuffle seed compression messages: json quiet|verbose""",
        {"files": file_option(_INPUTS, "FILE", name="", nargs="+")},
    ),
    "split": Command(
        "data.split",
        """Split a data file into a training and a test file.

Test rows are a random part with the same share of each class. Both files keep
the order of the rows and the scaling.""",
        """data train test label test_share seed compression
        data: labels x_name messages: json quiet|verbose""",
        {
            "train": file_option("file for the training rows", "TRAIN.h5", name=""),
            "test": file_option("file for the test rows", "TEST.h5", name=""),
        },
    ),
    "info": Command(
        "info.run",
        "What data or a model hold, and what to do before training.",
        "data label header data: labels x_name zero_based messages: json",
        _TEXT,
    ),
    "verify": Command(
        "verify.run",
        "Check that a data file is undamaged.",
        "data messages: json quiet|verbose",
    ),
    "train": Command(
        "train.run",
        """Train a model.

A kernel support vector machine (squared hinge loss) learns a file of any size;
its duality gap over all rows is certified.

  ooc-fw train train.h5 -o model.h5 --C 10 --gamma 0.05 --max-time 30m""",
        """data label output task C kernel gamma tol memory_limit max_time probability
        data: labels x_name single_tasks: contamination epsilon ordinary
        limits: max_iter threads dask dry_run noisy_data: landmarks exact
        classes_and_kernels: class_weight degree coef0
        runs: checkpoint checkpoint_every resume seed log
        methods_of_papers: method lmo start sample_size stopping certify
        messages: json quiet|verbose stream: stream keep zero_based""",
    ),
    "tune": Command(
        "tune.run",
        """Find the best kernel, C and gamma, and train with them.

Candidates are trained on a sample and validated on other rows; the best go on
to more rows, and the best of all is trained on all rows.

  ooc-fw tune train.h5 --C 1,10,100 --gamma auto,0.1 --max-time 30m""",
        """data label output task kernel C gamma max_time memory_limit
        data: labels x_name single_tasks: contamination epsilon ordinary
        what_is_tried: degree coef0 validation: metric seed
        training: tol landmarks exact threads messages: json quiet|verbose""",
        {
            "kernel": Option(None, "kernels (default: rbf,laplacian)", metavar="NAMES"),
            "C": values_option("C"),
            "gamma": values_option("gamma"),
            "max_time": replace(ARGUMENTS["max_time"], help="end after this time (default: 10m)"),
        },
    ),
    "predict": Command(
        "predict.run",
        """Apply a model to rows.

Print the predicted label of each row, one a line, in the order of the rows
before any shuffling. Text and tables are made like the training data.""",
        """model data output decision probability threshold threads dask
        data: x_name zero_based messages: json quiet|verbose""",
        {
            **_TEXT,
            "probability": flag("the probability of each class, of models that give them"),
            "output": replace(file_option(_PREDICTIONS), default="-"),
        },
    ),
    "evaluate": Command(
        "evaluate.run",
        """How good a model is on labelled rows.

A label the model does not know counts as wrong. Measures are scikit-learn's.""",
        """model data label positive threshold threads dask figure
        data: labels x_name zero_based messages: json quiet|verbose""",
        _TEXT,
    ),
    "importance": Command(
        "models.importance",
        """Which columns matter to a model.

By how much the decision value changes, root mean square, with a standard
deviation of the column. Columns that tell the same share what they matter.""",
        "model data rows top figure threads dask data: x_name messages: json quiet|verbose",
        {"rows": Option(10_000, "rows that are looked at, or all", choices=("all",), **COUNT)},
    ),
    "certify": Command(
        "models.certify",
        """Measure the duality gap of a model over its training data.

The exit status is 0 if the tolerance is met, 1 if it is not; a tolerance T
bounds what is lost of the objective by 1 - (1 - T)^2. The gap of a landmark
model is that share itself, within the span of the landmarks.""",
        """model data label tol threads dask
        data: labels x_name messages: json quiet|verbose""",
    ),
    "export": Command(
        "models.export",
        """Write a model as an ONNX graph.

The input X has rows before scaling. Outputs are label, decision and, of a
model that gives them, probabilities; or prediction. Needs ooc-fw[onnx].""",
        "model output messages: json",
        {"output": file_option("file to write", "OUT.onnx", name="")},
    ),
    "plot": Command(
        "plot.run",
        """Draw logs of training runs.

Several logs of ooc-fw train --log share the axes. Needs ooc-fw[plot].""",
        "logs output panels messages: json",
        {
            "logs": file_option("of ooc-fw train; may still grow", "LOG", name="", nargs="+"),
            "panels": Option(",".join(PANELS), "what is drawn", metavar="NAMES"),
            "output": file_option("default: the first LOG with suffix .png", "FIGURE"),
        },
    ),
    "demo": Command(
        "demo.run",
        "Convert, train, certify and evaluate on a small data set.",
        "output",
        {"output": file_option("keep the files here", "DIR", name="", nargs="?")},
    ),
    "help": Command(
        "main.show_help",
        "Print a guide, such as tutorial or gap; without TOPIC their list.",
        "topic",
        {"topic": Option(None, "a guide", name="", metavar="TOPIC", nargs="?")},
    ),
    "warm-up": Command(
        "demo.warm_up",
        "Compile what the other commands need, once for each installation.",
        "messages: json quiet|verbose",
    ),
}
"""Commands by their names, in the order in which ``--help`` lists them."""
