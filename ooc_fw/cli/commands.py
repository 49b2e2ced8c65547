"""The commands: what they are called, their arguments, and which function runs each.

The docstring of the function that declares a command is its help text. A command is run by a
function from parsed arguments to an exit status, in a module that is imported when the command is
called: help and usage errors need no numbers. A new command needs both, and a line in `COMMANDS`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import isfinite
from typing import Any, NamedTuple

from ooc_fw.cli.arguments import (
    INPUT,
    OUTPUT,
    add_flag,
    add_option,
    add_options,
    argument_type,
    value_list,
)
from ooc_fw.options import (
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
    option_fields,
)
from ooc_fw.report.figures import AXES, PANELS
from ooc_fw.system.errors import InputError
from ooc_fw.system.threads import cpu_count

DONE, NO, USAGE, FAILED = 0, 1, 2, 3
"""Exit statuses: done; the answer is no, such as a gap above the tolerance or a damaged file; wrong
input or usage; a failure such as a full disk, no time for a model, or an error of the program
itself. After a signal the status is 128 plus its number."""

_OF_CONVERSION = {
    "": ("label", "task", "scale", "like", "one_hot", "header"),
    "columns of tables": (
        *("target_encode", "target_counts", "dates", "drop", "impute"),
        "delimiter",
    ),
    "labels and arrays": ("labels", "labels_as", "missing_labels", "x_name"),
    "input": ("format", "zero_based", "n_features", "on_error", "log1p"),
    "output": ("dense", "shuffle", "seed", "compression"),
}
"""Options of ``convert`` by the titles of their groups."""

OF_STREAM = {
    *("data", "more", "label", "labels", "x_name", "zero_based"),
    *("output", "log", "json", "quiet", "verbose", "stream", "resume", "keep"),
    *("kernel", "gamma", "degree", "coef0", "C", "tol", "stopping", "threads", "certify"),
}
"""Arguments of ``train`` that a stream takes, too."""

_MODEL = "model file (default: DATA with the suffix .model.h5)"


def _convert(parser: argparse.ArgumentParser) -> None:
    """Convert LIBSVM text, CSV, Parquet and arrays to HDF5, shuffled and scaled.

    Convert LIBSVM text or rows (CSV, Parquet, Arrow, .npy, HDF5 of other tools, zarr) to one
    HDF5 file in constant memory. Rows are shuffled, so that training may read any contiguous
    part as a random sample.

      ooc-fw convert a.csv train.h5 --label y --scale standard --one-hot city
      ooc-fw convert a.txt.gz train.h5
      ooc-fw convert b.csv test.h5 --like train.h5
    """
    parser.add_argument(
        "files",
        nargs="+",
        type=INPUT,
        metavar="FILE",
        help="IN [IN ...] OUT.h5, or only inputs with -o: LIBSVM text or CSV (plain, .gz, .bz2, "
        ".xz), Parquet or Arrow files or folders of them, .npy, HDF5, zarr; or addresses of "
        "these; - is standard input",
    )
    add_output(parser, "OUT.h5", "HDF5 file to write (default: the last FILE)")
    for title, names in _OF_CONVERSION.items():
        group = parser.add_argument_group(title) if title else parser
        add_options(group, ConvertOptions, names)
    add_results(parser)


def _split(parser: argparse.ArgumentParser) -> None:
    """Split a data file into a training and a test file.

    Test rows are a random part of the data, with the same share of each class, or those that --rows
    names. Both files keep the order of the rows, the scaling and the names of columns and classes.

      ooc-fw split data.h5 train.h5 test.h5 --test-share 0.2
    """
    add_data(parser, several=False)
    names = "TRAIN.h5", "TEST.h5"
    parser.add_argument(
        "outputs", nargs="*", type=OUTPUT, metavar="OUT.h5", help="TRAIN.h5 TEST.h5, or give -o"
    )
    text = "files for the training rows and the test rows"
    parser.add_argument("-o", "--output", nargs=2, type=OUTPUT, metavar=names, help=text)
    which = parser.add_mutually_exclusive_group()
    add_option(which, "test_share", Option(0.3, "share of the rows in the test file", **SHARE))
    text = "numbers of the test rows in DATA, from 0: text with one a line, or .npy"
    which.add_argument("--rows", type=INPUT, metavar="FILE", help=text)
    text = "draw rows without regard to classes (default: each class has the same share in both)"
    add_flag(parser, "--no-stratify", text)
    add_options(parser, ConvertOptions, ["seed", "compression"])
    add_results(parser)


def _info(parser: argparse.ArgumentParser) -> None:
    """What data or a model hold, and what to do before training.

    Describe a model, or a checkpoint and how to resume its run, or inspect data before training:
    classes, columns that are constant or not scaled alike, missing values, repeated rows, storage,
    and the advice that follows. Of large files a sample is read, of text and tables the beginning.
    """
    add_data_or_text(parser)
    add_options(parser, ConvertOptions, ["header"])
    add_results(parser, progress=False)


def _verify(parser: argparse.ArgumentParser) -> None:
    """Check that a data file is undamaged.

    Read a whole HDF5 data file and compare every array with the checksums that ooc-fw convert
    stored. (ooc-fw certify checks how good a model is.) The exit status is 0 if nothing is wrong,
    1 if the file is damaged.
    """
    parser.add_argument("data", type=INPUT, metavar="DATA", help="a file of ooc-fw convert")
    add_results(parser)


def _train(parser: argparse.ArgumentParser) -> None:
    """Train a model.

    Train a kernel support vector machine (squared hinge loss) on a file of any size, and certify
    its duality gap over all rows.

      ooc-fw train train.h5
      ooc-fw train train.h5 -o model.h5 --C 10 --gamma 0.05 --max-time 30m
    """
    add_data(parser, "; with --stream also LIBSVM text, or -")
    add_output(parser, "MODEL", _MODEL)
    _add_task(parser)
    text = "let the model give probabilities, learned from rows held out, in up to twice the time"
    add_flag(parser, "--probability", text)
    runs = _add_training(parser)
    text = "write one JSON object per event, for ooc-fw plot; --resume appends"
    runs.add_argument("--log", type=OUTPUT, metavar="FILE", help=text)
    add_results(parser)
    _add_stream(parser)


def _add_task(parser: argparse._ActionsContainer) -> None:
    """Declare ``--task`` and, in a group, the options of single tasks."""
    parser.add_argument(
        "--task",
        choices=tuple(TASKS),
        default="classification",
        metavar="TASK",
        help="classification (default), novelty (rows like these: 1, others: -1), or "
        "regression of numbers",
    )
    group = parser.add_argument_group("single tasks")
    add_options(group, TaskOptions)
    text = (
        "label of the ordinary rows of novelty, which alone are learned (default: train learns all "
        "rows, and tune those of the label that most rows have)"
    )
    group.add_argument("--ordinary", metavar="LABEL", help=text)
    parser.set_defaults(epsilon=None)  # tells whether it is given


def _add_training(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Declare what decides how a run goes. Returns the group of runs.

    What most people need comes first, and stands in no group.
    """
    text = f"penalty of a unit squared slack (default: {TrainOptions.C}; of novelty {NOVELTY_C})"
    add_option(parser, "C", replace(option_fields(TrainOptions)["C"], default=None, help=text))
    add_options(parser, KernelOptions, ["kernel", "gamma"])
    add_options(parser, TrainOptions, ["tol", "memory_limit", "max_time"])
    limits = parser.add_argument_group("limits")
    add_options(limits, TrainOptions, ["max_iter"])
    add_work(parser, limits)
    text = "train nothing: print the kind of model and how the memory would be divided"
    add_flag(limits, "--dry-run", text)
    group = parser.add_argument_group("noisy data (ooc-fw help noisy)")
    add_options(group, TrainOptions, ["landmarks", "exact"])
    group = parser.add_argument_group("classes and kernels")
    group.add_argument(
        "--class-weight",
        type=argument_type(read_class_weight),
        metavar="balanced|LABEL=W,...",
        help="factors of C for rows of some classes, such as --class-weight=-1=1,1=9 (1 for those "
        "left out), or balanced: inversely proportional to the rows of each class",
    )
    add_options(group, KernelOptions, ["degree", "coef0"])
    runs = parser.add_argument_group("runs (ooc-fw help runs)")
    text = "write the model of the weights so far there now and then"
    runs.add_argument("--checkpoint", type=OUTPUT, metavar="FILE", help=text)
    every = Option(None, "time between checkpoints (default: 60s)", **DURATION)
    add_option(runs, "checkpoint_every", every)
    runs.add_argument(
        "--resume",
        type=INPUT,
        metavar="FILE",
        help="resume from a checkpoint of the same data and options; only --max-iter, --max-time, "
        "--memory and --threads may differ; with --stream a model, which new rows update",
    )
    add_options(runs, TrainOptions, ["seed"])
    group = parser.add_argument_group("methods of papers (ooc-fw help methods)")
    add_options(
        group, TrainOptions, ["method", "lmo", "start", "sample_size", "stopping", "certify"]
    )
    return runs


def _add_stream(parser: argparse.ArgumentParser) -> None:
    """Declare what only a stream takes, after all other arguments."""
    group = parser.add_argument_group(
        "stream",
        "One pass over DATA in bounded memory. Only rows that support the model are kept, "
        "at most 10000 unless --keep says otherwise: it depends on the order of the rows, "
        "and its gap is known for the rows read last only. gamma auto follows from the first "
        "64 MiB, or 4 MiB of text. A feature that appears late in text was 0 before. With --resume "
        "MODEL the rows update an exact model, and tables are read, too. For a certified gap "
        "convert the text and train on the file.",
    )
    text = "read DATA once; it may also be LIBSVM text, compressed or not, or - for standard input"
    add_flag(group, "--stream", text)
    add_option(group, "keep", KEEP)
    add_options(group, ConvertOptions, ["zero_based"])
    parser.set_defaults(declared={action.dest: action for action in parser._actions})


def _tune(parser: argparse.ArgumentParser) -> None:
    """Find the best kernel, C and gamma, and train with them.

    Candidates of kernel, gamma and C are trained on a sample and validated on other rows; the best
    go on to more rows, and the best of all is trained on all rows, exactly or with as many
    landmarks as the time affords. Values that are given are the candidates. VALUES are numbers
    (0.5,1,10) or powers of a number (2^0..2^12; 2^-5..2^15:2 for every second one). The test file
    has no part in it. A command at the end trains the same model again.

      ooc-fw tune train.h5 --metric auc --max-time 30m
      ooc-fw tune train.h5 --C 2^0..2^12 --gamma auto,0.1
    """
    add_data(parser)
    add_output(parser, "MODEL", _MODEL)
    _add_task(parser)
    text = "kernels, with commas between them (default: rbf,laplacian)"
    parser.add_argument("--kernel", type=_kernel_names, metavar="NAMES", help=text)
    positive = option_fields(TrainOptions)["C"]
    add_values(parser, "--C", positive, "values of C")
    gamma = option_fields(KernelOptions)["gamma"]
    add_values(parser, "--gamma", gamma, "values of gamma, such as auto and scale")
    text = "end after this time with the best so far (default: 10m)"
    add_option(parser, "max_time", replace(option_fields(TrainOptions)["max_time"], help=text))
    add_options(parser, TrainOptions, ["memory_limit"])
    grid = parser.add_argument_group("what is tried")
    add_options(grid, KernelOptions, ["degree", "coef0"])
    check = parser.add_argument_group("validation")
    add_options(check, SearchOptions, ["metric", "validation_share"])
    add_options(check, TrainOptions, ["seed"])
    training = parser.add_argument_group("training")
    add_options(training, TrainOptions, ["tol", "landmarks", "exact"])
    add_work(parser, training, dask=False)
    results = parser.add_argument_group("results")
    text = "write all candidates as JSON"
    results.add_argument("--points", type=OUTPUT, metavar="FILE.json", help=text)
    add_results(parser)


def _kernel_names(text: str) -> str | list[str]:
    """Names of kernels, or "auto"."""
    return text if text == "auto" else [name.strip() for name in text.split(",")]


def _predict(parser: argparse.ArgumentParser) -> None:
    """Apply a model to rows.

    Print the predicted label of each row, one a line, in the order of the rows before any
    shuffling. Text is scaled like the training data. Memory does not grow with the number of
    rows; many results of a shuffled file wait on disk.
    """
    add_model(parser)
    add_data_or_text(parser, labels=False)
    add_output(
        parser,
        "FILE",
        "FILE.csv: a table with a header, row and label and what is asked for below; FILE.h5: "
        "data sets of these names; any other name: lines as on standard output (default)",
        default="-",
    )
    add_flag(
        parser,
        "--decision",
        "decision values (margin at -1 and 1, positive for the larger label); for more than "
        "two classes one for each pair, (first, second), (first, third), ..., or, of a landmark "
        "model, one for each class against the rest",
    )
    add_flag(
        parser,
        "--probability",
        "the probability of each class, in increasing order of labels; for models of "
        "ooc-fw train --probability",
    )
    text = "decision value above which the larger of two labels is predicted (default: 0)"
    add_option(parser, "threshold", Option(None, text, low=-LARGEST, metavar="T"))
    text = "order of the rows of a converted file: as in its source, or as they are stored there"
    add_option(parser, "order", Option("original", text, choices=("original", "stored")))
    add_work(parser)
    add_results(parser)


def _evaluate(parser: argparse.ArgumentParser) -> None:
    """How good a model is on labelled rows.

    Compare predicted with given labels, class by class. A label the model does not know counts as
    wrong. Text is scaled like the training data. F1 is 2 PR / (P + R) of precision P and recall R,
    and macro means are over the classes, whatever their rows. Of two classes, ROC AUC and average
    precision of the decision values, too: how well they tell the rows of the positive class from
    all others. If the model gives probabilities, their Brier score: the mean squared error of that
    of the positive of two classes, or the sum of that over all. Of regression R^2, the root of the
    mean squared error, and the mean absolute error.
    """
    add_model(parser)
    add_data_or_text(parser)
    text = (
        "the class to be found (default: the larger of two labels, or novel rows); of a model of "
        "novelty also any label of DATA, and rows of all other labels are ordinary"
    )
    parser.add_argument("--positive", metavar="LABEL", help=text)
    text = (
        "also the recall for each value of this column of DATA, such as the labels before "
        "--labels-as"
    )
    parser.add_argument("--by", metavar="COLUMN", help=text)
    text = (
        "recall=R or precision=P: also find the decision value that gives so much of the positive "
        "class here; a number: judge what ooc-fw predict --threshold gives"
    )
    read = argument_type(read_threshold)
    parser.add_argument("--threshold", type=read, metavar="T", help=text)
    add_work(parser)
    parser.add_argument(
        "--figure",
        type=OUTPUT,
        metavar="FILE",
        help="draw confusion, ROC, precision against recall, and how reliable probabilities are; "
        "of regression, predicted against true (.png, .svg, .pdf; matplotlib)",
    )
    add_results(parser)


def _importance(parser: argparse.ArgumentParser) -> None:
    """Which columns matter to a model.

    By permutation, the default for labelled rows of tables: what the model loses in ROC AUC (of two
    classes), accuracy or R^2 where the values of a column are shuffled among the rows. By
    gradients: the root mean square of the derivative of the decision value, or the prediction, over
    rows of DATA, times the standard deviation of the column. The effect is the same with the mean
    of the derivative: positive where more of the column raises the value. Of more than two classes,
    for each of them. The one-hot columns of a category count together. It describes the model, not
    the data: columns that tell the same share what they matter.
    """
    add_model(parser)
    add_data(parser, labels=False)
    count: dict[str, Any] = {"low": 1, "whole": True, "metavar": "N"}
    text = "rows from all over DATA that are looked at, or all"
    add_option(parser, "rows", Option(10_000, text, choices=("all",), **count))
    text = "permutation, gradients, or auto: permutation of tables of up to 200 columns with labels"
    words = "auto", "permutation", "gradients"
    add_option(parser, "by", Option("auto", text, choices=words, metavar="HOW"))
    text = "columns in tables and figure (default: 20; 5 for each of several classes); JSON has all"
    add_option(parser, "top", Option(None, text, **count))
    text = "draw the most important columns as bars (.png, .svg, .pdf; matplotlib)"
    parser.add_argument("--figure", type=OUTPUT, metavar="FILE", help=text)
    add_work(parser)
    add_results(parser)


def _certify(parser: argparse.ArgumentParser) -> None:
    """Measure the duality gap of a model over its training data.

    Measure how far a model is from the best one: pass over its training data and print the duality
    gap. The exit status is 0 if the tolerance is met, 1 if it is not; the tolerance T is that of
    ooc-fw train, for all models, and bounds what is lost of the objective by 1 - (1 - T)^2. The gap
    of a landmark model is that share itself, (primal - dual) / primal, within the span of the
    landmarks; that of an exact regression compares with all rows. (ooc-fw verify checks whether a
    file is damaged.)
    """
    add_model(parser)
    add_data(parser)
    add_options(parser, TrainOptions, ["tol"])
    add_flag(
        parser,
        "--exact-kernel",
        "of a landmark model: also exact_kernel_gap, (primal - exact_kernel_dual) / primal, to all "
        "weights of all rows: what a larger model could gain in objective, not in accuracy. It "
        "takes a kernel value for each pair of rows inside the margin",
    )
    add_work(parser)
    add_results(parser)


def _export(parser: argparse.ArgumentParser) -> None:
    """Write a model as an ONNX graph.

    The input X has rows before scaling, in the order of the features of the training file. Outputs
    are label, decision and, of a model that gives them, probabilities; or prediction. The kernel is
    computed in double precision. Needs the package onnx: pip install 'ooc-fw[onnx]'.
    """
    add_model(parser)
    parser.add_argument(
        "outputs", nargs="*", type=OUTPUT, metavar="OUT.onnx", help="file to write, or give -o"
    )
    add_output(parser, "OUT.onnx", "file to write")
    text = "let the input be of float32 (default: of float64, which raw columns may need)"
    add_flag(parser, "--float32-input", text)
    text = "leave out the probabilities of a model that gives them"
    add_flag(parser, "--no-probabilities", text)
    add_results(parser, progress=False)


def _plot(parser: argparse.ArgumentParser) -> None:
    """Draw logs of training runs.

    Draw what runs have written with ooc-fw train --log: several of them in the same axes. Needs
    matplotlib: pip install 'ooc-fw[plot]'.
    """
    text = "written by ooc-fw train --log; may still grow"
    parser.add_argument("logs", type=INPUT, metavar="LOG", nargs="+", help=text)
    text = "default: the first LOG with suffix .png; .svg and .pdf are possible too"
    add_output(parser, "FIGURE", text)
    text = f"some of {', '.join(PANELS)}, with commas between them (default: all)"
    parser.add_argument("--panels", metavar="NAMES", default=",".join(PANELS), help=text)
    text = "what to draw against (default: time)"
    parser.add_argument("--against", choices=AXES, default="time", help=text)
    add_results(parser, progress=False)


def _demo(parser: argparse.ArgumentParser) -> None:
    """Convert, train, certify and evaluate on a small data set.

    Run the other commands on a1a, a small real data set that comes with the program, and show
    each of them with its result.
    """
    text = "keep the files here (default: nowhere)"
    parser.add_argument("outputs", nargs="*", type=OUTPUT, metavar="DIR", help=text)
    add_output(parser, "DIR", text)


def _help(parser: argparse.ArgumentParser) -> None:
    """Print a guide on memory, streams, tables, ..., or the help of a command.

    Print a guide, or the help of a command. Without TOPIC, list the guides.
    """
    text = "name of a guide or of a command"
    parser.add_argument("topic", nargs="?", metavar="TOPIC", help=text)


def _warm_up(parser: argparse.ArgumentParser) -> None:
    """Compile what the other commands need, once for each installation.

    Run the other commands on a small data set that comes with the program, so that all that they
    use is compiled, and say where the compiled code is kept. Nothing is compiled a second time.
    Python's own bytecode is written where the installer has not done so.
    """
    add_results(parser)


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


def add_values(group: argparse._ActionsContainer, name: str, declared: Option, text: str) -> None:
    """Declare an option that takes a list of values of another one."""
    read = argument_type(partial(value_list, declared=declared))
    group.add_argument(name, type=read, metavar="VALUES", help=text)


def add_data(
    parser: argparse.ArgumentParser,
    also: str = "",
    *,
    labels: bool = True,
    text: bool = False,
    several: bool = True,
) -> argparse._ArgumentGroup:
    """Declare DATA, which may `also` be something else than arrays, and what to find in it.

    Returns the group of what few people need.
    """
    kinds = "a file of ooc-fw convert or other HDF5, AnnData, zarr or .npy"
    together = ", or several of them, one below the other" * several
    parser.add_argument("data", type=INPUT, metavar="DATA", help=kinds + together + also)
    if several:
        shown: dict[str, Any] = {"metavar": "[DATA ...]", "help": argparse.SUPPRESS}
        parser.add_argument("more", nargs="*", type=INPUT, default=[], **shown)
    group = parser.add_argument_group("data")
    if labels:
        add_options(parser, ConvertOptions, ["label"])
        add_options(group, ConvertOptions, ["labels"])
    add_options(group, ConvertOptions, ["x_name"])
    if text:
        add_options(group, ConvertOptions, ["zero_based"])
    return group


def add_data_or_text(
    parser: argparse.ArgumentParser, *, labels: bool = True
) -> argparse._ArgumentGroup:
    """Declare DATA of a command that reads LIBSVM text, too."""
    also = ", LIBSVM text or a table (CSV, Parquet, Arrow), or - for standard input"
    return add_data(parser, also, labels=labels, text=True)


def add_model(parser: argparse.ArgumentParser) -> None:
    """Declare MODEL."""
    parser.add_argument(
        "model", type=INPUT, metavar="MODEL", help="file written by ooc-fw train or tune"
    )


def add_output(
    parser: argparse.ArgumentParser, metavar: str, text: str, default: str | None = None
) -> None:
    """Declare where the result goes; `text` is the help."""
    parser.add_argument("-o", "--output", type=OUTPUT, metavar=metavar, default=default, help=text)


def add_work(
    parser: argparse.ArgumentParser,
    group: argparse._ActionsContainer | None = None,
    *,
    dask: bool = True,
) -> None:
    """Declare ``--threads``, of which the default is the number of processors, and ``--dask``."""
    declared, group = option_fields(TrainOptions)["threads"], group or parser
    text = "threads (default: all CPUs)"
    add_option(group, "threads", replace(declared, default=None, help=text))
    parser.set_defaults(threads=cpu_count())
    if dask:
        group.add_argument(
            "--dask",
            metavar="WHERE",
            help="where passes over the file run: on threads or processes of Dask, as many as "
            "--threads, or on the cluster at tcp://HOST:PORT (default: without Dask)",
        )


def add_results(parser: argparse.ArgumentParser, *, progress: bool = True) -> None:
    """Declare ``--json``, and ``--quiet`` and ``--verbose`` of commands that take time."""
    messages = parser.add_argument_group("messages")
    add_flag(messages, "--json", "print the result as one JSON object")
    if progress:
        group = messages.add_mutually_exclusive_group()
        add_flag(group, "--quiet", "no progress and no summary")
        text = "sizes, choices, the memory plan, phases; a line of progress a second"
        add_flag(group, "--verbose", f"more messages: {text}")


class Command(NamedTuple):
    """What declares the arguments of a command, and the module and function that run it."""

    declare: Callable[[argparse.ArgumentParser], None]
    module: str
    function: str = "run"
    computes: bool = True  # by compiled functions; numba takes most of a short command's time


COMMANDS = {
    "convert": Command(_convert, "convert"),
    "split": Command(_split, "convert", "run_split"),
    "info": Command(_info, "info"),
    "verify": Command(_verify, "verify", computes=False),
    "train": Command(_train, "train"),
    "tune": Command(_tune, "tune"),
    "predict": Command(_predict, "predict"),
    "evaluate": Command(_evaluate, "evaluate"),
    "importance": Command(_importance, "importance"),
    "certify": Command(_certify, "certify"),
    "export": Command(_export, "predict", "run_export"),
    "plot": Command(_plot, "plot", computes=False),
    "demo": Command(_demo, "guide", "run_demo", computes=False),
    "help": Command(_help, "guide", "run_help", computes=False),
    "warm-up": Command(_warm_up, "guide", "run_warm_up"),
}
"""Commands by their names, in the order in which ``--help`` lists them."""
