"""The commands: what they are called, their arguments, and which function runs each.

The docstring of the function that declares a command is its help text. A command is run by a
function from parsed arguments to an exit status, in a module that is imported when the command is
called: help and usage errors need no numbers. A new command needs both, and a line in `COMMANDS`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple

import ooc_fw.cli.arguments as arguments
from ooc_fw.cli.arguments import add_flag, add_option, add_options
from ooc_fw.cli.parser import INPUT, OUTPUT, argument_type
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

DONE, NO, USAGE, FAILED = 0, 1, 2, 3
"""Exit statuses: done; the answer is no, such as a gap above the tolerance or a damaged file; wrong
input or usage; a failure such as a full disk, no time for a model, or an error of the program
itself. After a signal the status is 128 plus its number."""

OF_STREAM = {
    *("data", "more", "label", "labels", "x_name", "zero_based"),
    *("output", "log", "json", "quiet", "verbose", "stream", "resume", "keep"),
    *("kernel", "gamma", "degree", "coef0", "C", "tol", "stopping", "threads", "certify"),
}
"""Arguments of ``train`` that a stream takes, too."""

_MODEL = "model file (default: DATA with the suffix .model.h5)"

_COUNT: dict[str, Any] = {"low": 1, "whole": True, "metavar": "N"}


def _convert(parser: argparse.ArgumentParser) -> None:
    """Convert LIBSVM text, CSV, Parquet and arrays to HDF5, shuffled and scaled.

    Memory is constant. Rows are shuffled, so that training may read any contiguous part as a random
    sample.

      ooc-fw convert a.csv train.h5 --label y --scale standard --one-hot city
      ooc-fw convert a.txt.gz train.h5
      ooc-fw convert b.csv test.h5 --like train.h5
    """
    text = "IN [IN ...] OUT.h5: text or CSV (also compressed), Parquet or Arrow files or folders "
    text += "of them, .npy, HDF5, zarr, or addresses of these; - is standard input"
    parser.add_argument("files", nargs="+", type=INPUT, metavar="FILE", help=text)
    arguments.add_output(parser, "OUT.h5", "HDF5 file to write (default: the last FILE)")
    groups = {
        "columns of tables": ("target_encode", "target_counts", "dates", "drop", "impute"),
        "labels and arrays": ("labels", "labels_as", "missing_labels", "x_name"),
        "input": ("format", "zero_based", "n_features", "on_error", "log1p", "delimiter"),
        "output": ("dense", "shuffle", "seed", "compression"),
    }
    common = "label", "task", "scale", "like", "one_hot", "header"
    add_options(parser, ConvertOptions, common)
    for title, names in groups.items():
        add_options(parser.add_argument_group(title), ConvertOptions, names)
    arguments.add_results(parser)


def _split(parser: argparse.ArgumentParser) -> None:
    """Split a data file into a training and a test file.

    Test rows are a random part of the data, with the same share of each class, or those that --rows
    names. Both files keep the order of the rows, the scaling and the names of columns and classes.

      ooc-fw split data.h5 train.h5 test.h5 --test-share 0.2
    """
    arguments.add_data(parser, several=False)
    text = "files for the training rows and the test rows, at the end or by -o"
    names = "TRAIN.h5", "TEST.h5"
    parser.add_argument("outputs", nargs="*", type=OUTPUT, metavar="OUT.h5", help=text)
    parser.add_argument("-o", "--output", nargs=2, type=OUTPUT, metavar=names, help=text)
    which = parser.add_mutually_exclusive_group()
    add_option(which, "test_share", Option(0.3, "share of the rows in the test file", **SHARE))
    arguments.add_file(which, "--rows", "numbers of the test rows, from 0: one a line, or .npy")
    add_options(parser, ConvertOptions, ["seed", "compression"])
    arguments.add_results(parser)


def _info(parser: argparse.ArgumentParser) -> None:
    """What data or a model hold, and what to do before training.

    Describe a model, or inspect data before training: classes, columns that are constant or not
    scaled alike, missing values, repeated rows, and the advice that follows. Of large files a
    sample is read, of text and tables the beginning.
    """
    arguments.add_data(parser, also=arguments.TEXT)
    add_options(parser, ConvertOptions, ["header"])
    arguments.add_results(parser, progress=False)


def _verify(parser: argparse.ArgumentParser) -> None:
    """Check that a data file is undamaged.

    Compare every array with the checksums that ooc-fw convert stored. The exit status is 1 if the
    file is damaged. (ooc-fw certify checks how good a model is.)
    """
    parser.add_argument("data", type=INPUT, metavar="DATA", help="a file of ooc-fw convert")
    arguments.add_results(parser)


def _train(parser: argparse.ArgumentParser) -> None:
    """Train a model.

    Train a kernel support vector machine (squared hinge loss) on a file of any size, and certify
    its duality gap over all rows.

      ooc-fw train train.h5
      ooc-fw train train.h5 -o model.h5 --C 10 --gamma 0.05 --max-time 30m
    """
    arguments.add_data(parser, also="; with --stream also LIBSVM text, or -")
    arguments.add_output(parser, "MODEL", _MODEL)
    _add_task(parser)
    # What most people need comes first, and stands in no group.
    text = f"penalty of a unit squared slack (default: {TrainOptions.C}; of novelty {NOVELTY_C})"
    add_option(parser, "C", option_fields(TrainOptions)["C"], default=None, help=text)
    add_options(parser, KernelOptions, ["kernel", "gamma"])
    add_options(parser, TrainOptions, ["tol", "memory_limit", "max_time"])
    add_flag(parser, "--probability", "let the model give probabilities, in up to twice the time")
    limits = parser.add_argument_group("limits")
    add_options(limits, TrainOptions, ["max_iter"])
    arguments.add_work(parser, limits)
    add_flag(limits, "--dry-run", "print the kind of model and the plan of memory, train nothing")
    group = parser.add_argument_group("noisy data (ooc-fw help noisy)")
    add_options(group, TrainOptions, ["landmarks", "exact"])
    group = parser.add_argument_group("classes and kernels")
    read = argument_type(arguments.read_class_weight)
    text = "factors of C for rows of some classes, such as --class-weight=-1=1,1=9, or balanced: "
    text += "inversely proportional to the rows of each class"
    group.add_argument("--class-weight", type=read, metavar="balanced|LABEL=W,...", help=text)
    add_options(group, KernelOptions, ["degree", "coef0"])
    _add_runs(parser.add_argument_group("runs (ooc-fw help runs)"))
    group = parser.add_argument_group("methods of papers (ooc-fw help methods)")
    methods = "method", "lmo", "start", "sample_size", "stopping", "certify"
    add_options(group, TrainOptions, methods)
    arguments.add_results(parser)
    _add_stream(parser)


def _add_task(parser: argparse._ActionsContainer) -> None:
    """Declare ``--task`` and, in a group, the options of single tasks."""
    text = "classification (default), novelty (rows like these: 1, others: -1), or regression"
    how: dict[str, Any] = {"choices": TASKS, "default": "classification"}
    parser.add_argument("--task", metavar="TASK", help=text, **how)
    group = parser.add_argument_group("single tasks")
    add_options(group, TaskOptions)
    group.add_argument("--ordinary", metavar="LABEL", help="of novelty: learn these rows alone")
    parser.set_defaults(epsilon=None)  # tells whether it is given


def _add_runs(runs: argparse._ArgumentGroup) -> None:
    """Declare how a run is watched and resumed."""
    arguments.add_file(runs, "--checkpoint", "write the model so far now and then", written=True)
    every = Option(None, "time between checkpoints (default: 60s)", **DURATION)
    add_option(runs, "checkpoint_every", every)
    arguments.add_file(runs, "--resume", "go on from a checkpoint; with --stream from a model")
    add_options(runs, TrainOptions, ["seed"])
    arguments.add_file(runs, "--log", "write events as JSON; --resume appends", written=True)


def _add_stream(parser: argparse.ArgumentParser) -> None:
    """Declare what only a stream takes, after all other arguments."""
    group = parser.add_argument_group("stream (ooc-fw help streams)")
    text = "read DATA once, in bounded memory; it may also be LIBSVM text, or - for standard input"
    add_flag(group, "--stream", text)
    add_option(group, "keep", KEEP)
    add_options(group, ConvertOptions, ["zero_based"])
    parser.set_defaults(declared={action.dest: action for action in parser._actions})


def _tune(parser: argparse.ArgumentParser) -> None:
    """Find the best kernel, C and gamma, and train with them.

    Candidates of kernel, gamma and C are trained on a sample and validated on other rows; the best
    go on to more rows, and the best of all is trained on all rows. Values that are given are the
    candidates: numbers (0.5,1,10) or powers of a number (2^0..2^12; 2^-5..2^15:2 for every second
    one). A command at the end trains the same model again.

      ooc-fw tune train.h5 --metric auc --max-time 30m
      ooc-fw tune train.h5 --C 2^0..2^12 --gamma auto,0.1
    """
    arguments.add_data(parser)
    arguments.add_output(parser, "MODEL", _MODEL)
    _add_task(parser)
    how: dict[str, Any] = {"type": arguments.read_kernels, "metavar": "NAMES"}
    parser.add_argument("--kernel", help="kernels (default: rbf,laplacian)", **how)
    positive = option_fields(TrainOptions)["C"]
    arguments.add_values(parser, "--C", positive, "values of C")
    gamma = option_fields(KernelOptions)["gamma"]
    arguments.add_values(parser, "--gamma", gamma, "values of gamma, such as auto and scale")
    text = "end after this time with the best so far (default: 10m)"
    add_option(parser, "max_time", option_fields(TrainOptions)["max_time"], help=text)
    add_options(parser, TrainOptions, ["memory_limit"])
    add_options(parser.add_argument_group("what is tried"), KernelOptions, ["degree", "coef0"])
    check = parser.add_argument_group("validation")
    add_options(check, SearchOptions, ["metric", "validation_share"])
    add_options(check, TrainOptions, ["seed"])
    training = parser.add_argument_group("training")
    add_options(training, TrainOptions, ["tol", "landmarks", "exact"])
    arguments.add_work(parser, training, dask=False)
    results = parser.add_argument_group("results")
    arguments.add_file(results, "--points", "write all candidates as JSON", written=True)
    arguments.add_results(parser)


def _predict(parser: argparse.ArgumentParser) -> None:
    """Apply a model to rows.

    Print the predicted label of each row, one a line, in the order of the rows before any
    shuffling. Text and tables are made like the training data.
    """
    arguments.add_model(parser)
    arguments.add_data(parser, labels=False, also=arguments.TEXT)
    text = "FILE.csv, FILE.h5: a table, or data sets, of row and label and what is asked for; "
    text += "any other name: lines as on standard output (default)"
    arguments.add_output(parser, "FILE", text, default="-")
    text = "decision values (margin at -1 and 1, positive for the larger label); of more than two "
    text += "classes for each pair, or, of a landmark model, for each class against the rest"
    add_flag(parser, "--decision", text)
    add_flag(parser, "--probability", "the probability of each class, of models that give them")
    text = "decision value above which the larger of two labels is predicted (default: 0)"
    add_option(parser, "threshold", Option(None, text, low=-LARGEST, metavar="T"))
    arguments.add_work(parser)
    arguments.add_results(parser)


def _evaluate(parser: argparse.ArgumentParser) -> None:
    """How good a model is on labelled rows.

    Compare predicted with given labels, class by class. A label the model does not know counts as
    wrong. Of two classes, ROC AUC and average precision of the decision values, too. If the model
    gives probabilities, their Brier score. Of regression R^2, the root of the mean squared error,
    and the mean absolute error. Measures are those of scikit-learn.
    """
    arguments.add_model(parser)
    arguments.add_data(parser, also=arguments.TEXT)
    text = "the class to be found (default: the larger of two labels, or novel rows); of a model "
    text += "of novelty also any label of DATA, and rows of all other labels are ordinary"
    parser.add_argument("--positive", metavar="LABEL", help=text)
    parser.add_argument("--by", metavar="COLUMN", help="the recall for each value in a table")
    text = "recall=R or precision=P: also find the decision value that gives so much of the "
    text += "positive class here; a number: judge what ooc-fw predict --threshold gives"
    read = argument_type(arguments.read_threshold)
    parser.add_argument("--threshold", type=read, metavar="T", help=text)
    arguments.add_work(parser)
    text = "draw confusion, ROC, precision and reliability, or predicted against true"
    arguments.add_figure(parser, text)
    arguments.add_results(parser)


def _importance(parser: argparse.ArgumentParser) -> None:
    """Which columns matter to a model.

    By permutation: what the model loses in ROC AUC (of two classes), accuracy or R^2 if the values
    of a column are shuffled among the rows. By gradients: by how much the decision value changes,
    root mean square, with a standard deviation of the column; the effect says in which direction.
    The one-hot columns of a category count together. Columns that tell the same share what they
    matter.
    """
    arguments.add_model(parser)
    arguments.add_data(parser, labels=False)
    text = "rows from all over DATA that are looked at, or all"
    add_option(parser, "rows", Option(10_000, text, choices=("all",), **_COUNT))
    text = "permutation, gradients, or auto: permutation of tables of up to 200 columns with labels"
    words = "auto", "permutation", "gradients"
    add_option(parser, "by", Option("auto", text, choices=words, metavar="HOW"))
    add_option(parser, "top", Option(20, "columns in table and figure; JSON has all", **_COUNT))
    arguments.add_figure(parser, "draw the most important columns as bars")
    arguments.add_work(parser)
    arguments.add_results(parser)


def _certify(parser: argparse.ArgumentParser) -> None:
    """Measure the duality gap of a model over its training data.

    Measure how far a model is from the best one: pass over its training data and print the duality
    gap. The exit status is 0 if the tolerance is met, 1 if it is not; a tolerance T bounds what is
    lost of the objective by 1 - (1 - T)^2, for all models. The gap of a landmark model is that
    share itself, (primal - dual) / primal, within the span of the landmarks.
    """
    arguments.add_model(parser)
    arguments.add_data(parser)
    add_options(parser, TrainOptions, ["tol"])
    text = "of a landmark model: also the gap to all weights of all rows, what a larger model "
    text += "could gain. It takes a kernel value for each pair of rows inside the margin"
    add_flag(parser, "--exact-kernel", text)
    arguments.add_work(parser)
    arguments.add_results(parser)


def _export(parser: argparse.ArgumentParser) -> None:
    """Write a model as an ONNX graph.

    The input X has rows before scaling. Outputs are label, decision and, of a model that gives
    them, probabilities; or prediction. Needs the package onnx: pip install 'ooc-fw[onnx]'.
    """
    arguments.add_model(parser)
    arguments.add_outputs(parser, "OUT.onnx", "file to write, at the end or by -o")
    add_flag(parser, "--float32-input", "let the input be of float32 (default: of float64)")
    add_flag(parser, "--no-probabilities", "leave out the probabilities")
    arguments.add_results(parser, progress=False)


def _plot(parser: argparse.ArgumentParser) -> None:
    """Draw logs of training runs.

    Draw what runs have written with ooc-fw train --log: several of them in the same axes. Needs
    matplotlib: pip install 'ooc-fw[plot]'.
    """
    text = "written by ooc-fw train --log; may still grow"
    parser.add_argument("logs", type=INPUT, metavar="LOG", nargs="+", help=text)
    text = "default: the first LOG with suffix .png; .svg and .pdf are possible too"
    arguments.add_output(parser, "FIGURE", text)
    text = f"some of {', '.join(PANELS)}, with commas between them (default: all)"
    parser.add_argument("--panels", metavar="NAMES", default=",".join(PANELS), help=text)
    parser.add_argument("--against", choices=AXES, default="time", help="(default: time)")
    arguments.add_results(parser, progress=False)


def _demo(parser: argparse.ArgumentParser) -> None:
    """Convert, train, certify and evaluate on a small data set.

    Run the other commands on a1a, a small real data set that comes with the program.
    """
    arguments.add_outputs(parser, "DIR", "keep the files here (default: nowhere)")


def _help(parser: argparse.ArgumentParser) -> None:
    """Print a guide on memory, streams, tables, ..., or the help of a command.

    Without TOPIC, list the guides.
    """
    parser.add_argument("topic", nargs="?", metavar="TOPIC", help="a guide or a command")


def _warm_up(parser: argparse.ArgumentParser) -> None:
    """Compile what the other commands need, once for each installation.

    Run the other commands on a small data set that comes with the program, so that all that they
    use is compiled, and say where the compiled code is kept. Nothing is compiled a second time.
    """
    arguments.add_results(parser)


class Command(NamedTuple):
    """What declares the arguments of a command, and the module and function that run it."""

    declare: Callable[[argparse.ArgumentParser], None]
    module: str
    function: str = "run"
    computes: bool = True  # by compiled functions; numba takes most of a short command's time


COMMANDS = {
    "convert": Command(_convert, "convert"),
    "split": Command(_split, "split"),
    "info": Command(_info, "info"),
    "verify": Command(_verify, "verify", computes=False),
    "train": Command(_train, "train"),
    "tune": Command(_tune, "tune"),
    "predict": Command(_predict, "predict"),
    "evaluate": Command(_evaluate, "evaluate"),
    "importance": Command(_importance, "importance"),
    "certify": Command(_certify, "certify"),
    "export": Command(_export, "export"),
    "plot": Command(_plot, "plot", computes=False),
    "demo": Command(_demo, "demo", computes=False),
    "help": Command(_help, "guide", computes=False),
    "warm-up": Command(_warm_up, "demo", "warm_up"),
}
"""Commands by their names, in the order in which ``--help`` lists them."""
