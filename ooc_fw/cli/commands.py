"""The commands: their names, help texts, arguments and functions, and the parser made from them.

Arguments are declared in ``arguments.py``. A command lists their names; a word that ends in a colon
begins a titled group. The function takes the parsed arguments and returns the exit status. Its
module is imported when the command is called, so that help and usage errors need no numpy.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, NoReturn

import ooc_fw
from ooc_fw.cli.arguments import ARGUMENTS, file_option, flag, values_option
from ooc_fw.options import COUNT, Option
from ooc_fw.report.figures import PANELS
from ooc_fw.system.errors import InputError
from ooc_fw.system.threads import cpu_count

DONE, NO, USAGE, FAILED = 0, 1, 2, 3
"""Exit statuses. NO: the answer is no, such as a gap above the tolerance or a damaged file. USAGE:
wrong input or usage. FAILED: a full disk, no time for a model, or an error of the program itself.
After a signal the status is 128 plus its number."""


class Command(NamedTuple):
    """A command, its help and its arguments."""

    runs: str  # module.function in ``ooc_fw/cli``
    help: str  # a sentence, perhaps followed by a description
    arguments: str  # their names; of names with a bar between them, only one can be given
    own: Mapping[str, Option] = {}  # declarations for this command only

    @property
    def names(self) -> list[str]:
        """Names of all arguments of the command."""
        words = self.arguments.replace("|", " ").split()
        return [word for word in words if not word.endswith(":")]


_ALSO_TEXT = f"{ARGUMENTS['data'].help}, LIBSVM text, CSV, Parquet, Arrow; - is standard input"
_TEXT = {"data": file_option(_ALSO_TEXT, "DATA", name="")}
_LABEL = replace(ARGUMENTS["label"], help="name of the labels (default: that of training, or y)")
_INPUTS = """inputs, then OUT.h5. Inputs are text (also compressed), CSV, Parquet or Arrow
files or folders of such tables, .npy, HDF5, zarr, or - for standard input"""
_PREDICTIONS = "file for predictions: FILE.csv has columns, any other name has the printed lines"

COMMANDS = {
    "convert": Command(
        "data.convert",
        """Convert LIBSVM text, CSV, Parquet and arrays to HDF5, shuffled and scaled.

  ooc-fw convert a.csv train.h5 --label y --scale standard --one-hot city
  ooc-fw convert b.csv test.h5 --like train.h5""",
        """files label task scale log1p normalize like one_hot header
        columns_of_tables: target_encode dates drop impute weight
        labels_and_arrays: labels labels_as missing_labels x_name fill_missing
        input: format zero_based n_features delimiter names
        output: dense shuffle seed compression messages: json quiet|verbose""",
        {"files": file_option(_INPUTS, "FILE", name="", nargs="+")},
    ),
    "split": Command(
        "data.split",
        """Split a data file into a training and a test file.

Test rows are a random part with the same share of each class. Both files keep
the order of the rows and the scaling.""",
        """data train test label groups test_share seed compression
        data: labels missing_labels x_name messages: json quiet|verbose""",
        {
            "train": file_option("file for the training rows", "TRAIN.h5", name=""),
            "test": file_option("file for the test rows", "TEST.h5", name=""),
        },
    ),
    "info": Command(
        "info.run",
        "Describe data or a model, and suggest the next command.",
        "data label header names data: labels x_name zero_based messages: json",
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

The model is a kernel support vector machine (squared hinge loss). The data file
may have any size. The duality gap over all rows is certified.

  ooc-fw train train.h5 -o model.h5 --C 10 --gamma 0.05 --max-time 30m""",
        """data label output task C kernel gamma tol memory_limit max_time probability
        data: labels missing_labels x_name single_tasks: contamination epsilon ordinary
        limits: max_iter threads dask dry_run noisy_data: landmarks exact
        classes_and_kernels: class_weight degree coef0
        runs: checkpoint checkpoint_every resume seed log
        methods_of_papers: method lmo start sample_size stopping certify
        messages: json quiet|verbose stream: stream keep zero_based fill_missing""",
    ),
    "tune": Command(
        "tune.run",
        """Find the best kernel, C and gamma, and train with them.

Candidates are trained on a sample and validated on other rows. The best ones
are trained on more rows, and the winner is trained on all rows.

  ooc-fw tune train.h5 --C 1,10,100 --gamma auto,0.1 --max-time 30m""",
        """data label output task kernel C gamma max_time memory_limit
        data: labels missing_labels x_name single_tasks: contamination epsilon ordinary
        what_is_tried: degree coef0 validation: metric groups seed
        training: tol landmarks exact threads messages: json quiet|verbose""",
        {
            "kernel": Option(
                None, "kernels to try (default: rbf,laplacian,linear)", metavar="NAMES"
            ),
            "C": values_option("C"),
            "gamma": values_option("gamma"),
            "max_time": replace(ARGUMENTS["max_time"], help="end after this time (default: 10m)"),
        },
    ),
    "predict": Command(
        "predict.run",
        """Apply a model to rows.

Print the predicted label of each row, one a line, in the order of the rows
before any shuffling. Text and tables are converted like the training data.""",
        """model data output decision probability threshold unassigned threads dask
        data: x_name zero_based names fill_missing messages: json quiet|verbose""",
        {
            **_TEXT,
            "probability": flag("print the probability of each class, if the model has them"),
            "output": replace(file_option(_PREDICTIONS), default="-"),
        },
    ),
    "evaluate": Command(
        "evaluate.run",
        """Measure how good a model is on labelled rows.

Unknown labels count as wrong. The measures are those of scikit-learn with zero_division=nan:
macro means are over the classes that have the measure.""",
        """model data label ordinary positive threshold|false_alarms save threads dask figure
        data: labels x_name zero_based names fill_missing messages: json quiet|verbose""",
        {**_TEXT, "label": _LABEL},
    ),
    "importance": Command(
        "models.importance",
        """Measure how much each column matters to a model.

This is the root mean square change of the decision value if the column changes
by its standard deviation. Columns with the same information share importance.""",
        """model data rows top figure threads dask
        data: x_name fill_missing messages: json quiet|verbose""",
        {"rows": Option(10_000, "number of rows to look at, or all", choices=("all",), **COUNT)},
    ),
    "certify": Command(
        "models.certify",
        """Measure the duality gap of a model over its training data.

The exit status is 0 if the gap is within the tolerance T, else 1. The objective
is then within a share 1 - (1 - T)^2 of the optimum. The gap of a landmark model
is this share itself, within the span of the landmarks.""",
        """model data label tol threads dask
        data: labels missing_labels x_name fill_missing messages: json quiet|verbose""",
        {
            "label": _LABEL,
            "tol": replace(ARGUMENTS["tol"], help="largest relative gap for exit status 0"),
        },
    ),
    "export": Command(
        "models.export",
        """Write a model as an ONNX graph.

The input X takes rows before scaling. Outputs are label, decision and perhaps
probabilities; a regression has prediction instead. Needs ooc-fw[onnx].""",
        "model output messages: json",
        {"output": file_option("file to write", "OUT.onnx", name="")},
    ),
    "plot": Command(
        "runs.plot",
        """Draw logs of training runs.

Several logs are drawn into the same axes. Needs ooc-fw[plot].""",
        "logs output panels messages: json",
        {
            "logs": file_option("logs of ooc-fw train --log", "LOG", name="", nargs="+"),
            "panels": Option(",".join(PANELS), "panels to draw", metavar="NAMES"),
            "output": file_option("figure file (default: first LOG with suffix .png)", "FIGURE"),
        },
    ),
    "demo": Command(
        "demo.run",
        "Convert, train, certify and evaluate on a small data set.",
        "output",
        {"output": file_option("folder to keep the files in", "DIR", name="", nargs="?")},
    ),
    "help": Command(
        "main.show_help",
        "Print a guide, such as tutorial or gap; without TOPIC, list the guides.",
        "topic",
        {"topic": Option(None, "name of a guide", name="", metavar="TOPIC", nargs="?")},
    ),
    "warm-up": Command(
        "demo.warm_up",
        "Compile what the other commands need, once for each installation.",
        "messages: json quiet|verbose",
    ),
}
"""Commands by their names, in the order in which ``--help`` lists them."""


class Parser(argparse.ArgumentParser):
    """Argument parser whose errors are one sentence.

    Abbreviations of options are refused, since a new option could change their meaning.
    """

    def __init__(self, **options: Any) -> None:
        look = argparse.RawDescriptionHelpFormatter
        super().__init__(**options, allow_abbrev=False, formatter_class=look)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse arguments; the parser of the command names those that it does not know."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """Raise the usage error as an InputError."""
        raise InputError(f"{message}; see {self.prog} --help")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print help, and fail if it cannot be written; argparse would ignore that."""
        print(message, end="", file=file)


def build_parser() -> Parser:
    """Make the parser of all commands."""
    parser = Parser(
        prog="ooc-fw",
        description="Train kernel support vector machines on data larger than memory:\n"
        "convert the data once, train with a certified duality gap, predict.",
    )
    parser.add_argument("--version", action="version", version=f"ooc-fw {ooc_fw.__version__}")
    parsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        summary, _, description = command.help.partition("\n")
        short = summary[:1].lower() + summary[1:].removesuffix(".")
        own = parsers.add_parser(name, help=short, description=description.strip() or summary)
        _declare(own, command)
        places = [str(action.metavar) for action in own._get_positional_actions()]
        own.usage = " ".join([own.prog, *places, "[options]"])
    return parser


def _declare(parser: Parser, command: Command) -> None:
    """Add the arguments of a command to its parser, in their groups."""
    group: argparse._ActionsContainer = parser
    known = {**ARGUMENTS, **command.own}
    for word in command.arguments.split():
        if word.endswith(":"):
            group = parser.add_argument_group(word[:-1].replace("_", " "))
            continue
        names = word.split("|")
        several = group.add_mutually_exclusive_group() if len(names) > 1 else group
        for name in names:
            _add_option(several, name, known[name])
    if "threads" in command.names:
        parser.set_defaults(threads=cpu_count())


def _add_option(group: argparse._ActionsContainer, name: str, declared: Option) -> None:
    """Declare an argument; its help text ends with the default."""
    default = declared.default
    if declared.flags:
        flags = group.add_mutually_exclusive_group() if len(declared.flags) > 1 else group
        for flag, (value, text) in declared.flags.items():
            how: dict[str, Any] = {"action": "store_const", "const": value, "default": default}
            flags.add_argument(flag or declared.flag(name), dest=name, help=text, **how)
        return
    shown = "" if default in (None, ()) else f" (default: {default})"
    words = ",".join(declared.choices) if declared.low is None else ""
    how = {
        "metavar": declared.metavar or (f"{{{words}}}" if words else None),
        "type": partial(_value, declared),
        "default": list(default) if declared.many else default,
        "help": declared.help + shown,
    }
    how |= {} if declared.nargs is None else {"nargs": declared.nargs}
    if declared.name == "":
        group.add_argument(name, **how)
        return
    names = ["-o"] * (name == "output") + [declared.flag(name)]
    group.add_argument(*names, dest=name, action="extend" if declared.many else "store", **how)


def _value(declared: Option, text: str) -> Any:
    try:
        return declared.parse(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
