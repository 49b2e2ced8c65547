"""Arguments: how a parser takes those that are declared as `Option`, and those of commands alone.

A declaration of `ooc_fw.options` becomes an argument by `add_option`.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NoReturn

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
)
from ooc_fw.system.errors import InputError


class Parser(argparse.ArgumentParser):
    """Argument parser whose errors are one sentence; files and options come in any order.

    Names of options are written in full: a new option would change what an abbreviation means.
    """

    def __init__(self, **options: Any) -> None:
        look = argparse.RawDescriptionHelpFormatter
        super().__init__(**options, allow_abbrev=False, formatter_class=look)
        self.add_argument("--help-all", action="help", help=argparse.SUPPRESS)
        self._mixes = False

    def error(self, message: str) -> NoReturn:
        """Raise the usage error as a user's mistake."""
        raise InputError(f"{message}; see {self.prog} --help")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print help, or fail as all other output does; argparse ignores that it cannot."""
        print(message, end="", file=file)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Refuse unknown arguments here, where the command is known whose help lists the others."""
        if self._mixes or self._subparsers is not None:
            return super().parse_known_args(args, namespace)
        self._mixes = True  # the next call comes back here for a part of the arguments
        parsed, unknown = self.parse_known_intermixed_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return parsed, unknown


def add_option(group: argparse._ActionsContainer, name: str, declared: Option) -> None:
    """Declare an argument; its help text ends with the default."""
    default = declared.default
    if declared.flags:
        flags = group.add_mutually_exclusive_group() if len(declared.flags) > 1 else group
        for flag, (value, text) in declared.flags.items():
            how: dict[str, Any] = {"action": "store_const", "const": value, "default": default}
            flags.add_argument(flag or declared.flag(name), dest=name, help=text, **how)
        return
    metavar: Any = declared.metavar
    if declared.choices and declared.low is None and metavar is None:
        metavar = f"{{{','.join(declared.choices)}}}"
    shown = "" if default in (None, (), []) else f" (default: {default})"
    how = {
        "metavar": metavar,
        "type": _argument_type(declared.parse),
        "default": list(default) if declared.many else default,
        "help": declared.help + shown,
    }
    how |= {} if declared.nargs is None else {"nargs": declared.nargs}
    if declared.name == "":
        group.add_argument(name, **how)
        return
    names = ["-o"] * (name == "output") + [declared.flag(name)]
    group.add_argument(*names, dest=name, action="extend" if declared.many else "store", **how)


def _argument_type(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Argument type whose errors are those of `parse`, which raises InputError."""

    def parsed(text: str) -> Any:
        try:
            return parse(text)
        except InputError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parsed


def flag(text: str) -> Option:
    """Declaration of an option of commands without a value."""
    return Option(False, flags={"": (True, text)})


def place(text: str, metavar: str, nargs: int | str | None = None) -> Option:
    """Declaration of files that stand at their place among the arguments."""
    return Option(None, text, name="", read=file_name, metavar=metavar, nargs=nargs)


def file_option(text: str, metavar: str = "FILE", default: str | None = None) -> Option:
    """Declaration of an option that names a file."""
    return Option(default, text, read=file_name, metavar=metavar)


def values_option(text: str, declared: Option) -> Option:
    """Declaration of a list of values of an option, such as 0.5,1,10 or 2^-5..2^15:2."""

    def read(text: str) -> list[Any]:
        return [value for part in text.split(",") for value in powers(part)]

    def powers(part: str) -> list[Any]:
        found = re.fullmatch(r"(\d+)\^(-?\d+)(?:\.\.\1\^(-?\d+))?(?::([1-9]\d*))?", part)
        if found is None:
            return [declared.parse(part)]
        first = int(found[2])
        exponents = range(first, int(found[3] or first) + 1, int(found[4] or 1))
        with suppress(ArithmeticError):  # as a length beyond 2^63 is
            if 0 < len(exponents) <= 1000:
                return [declared.parse(repr(float(found[1]) ** power)) for power in exponents]
        raise InputError(f"must be values, or powers such as 2^-5..2^15:2, not {part!r}")

    return Option(None, text, read=read, metavar="VALUES")


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


ARGUMENTS = {
    **option_fields(ConvertOptions),
    **option_fields(KernelOptions),
    **option_fields(TaskOptions),
    **option_fields(SearchOptions),
    **option_fields(TrainOptions),
    "data": place("a file of ooc-fw convert, or other HDF5, AnnData, zarr or .npy", "DATA"),
    "model": place("file written by ooc-fw train or tune", "MODEL"),
    "C": replace(
        option_fields(TrainOptions)["C"],
        default=None,
        help=f"penalty of a unit squared slack (default: {TrainOptions.C}; of novelty {NOVELTY_C})",
    ),
    "threads": replace(
        option_fields(TrainOptions)["threads"], default=None, help="threads (default: all CPUs)"
    ),
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
    "checkpoint": file_option("write the model so far now and then"),
    "checkpoint_every": Option(None, "time between checkpoints (default: 60s)", **DURATION),
    "resume": file_option("go on from a checkpoint; with --stream from a model"),
    "log": file_option("write events as JSON; --resume appends"),
    "dry_run": flag("print the kind of model and the plan of memory, train nothing"),
    "stream": flag("read DATA once, in bounded memory; also LIBSVM text, or - for standard input"),
    "keep": KEEP,
    "dask": Option(
        None,
        "where passes over the file run: on threads or processes of Dask, as many as --threads, "
        "or on the cluster at tcp://HOST:PORT (default: without Dask)",
        metavar="WHERE",
    ),
    "points": file_option("write all candidates as JSON"),
    "test_share": Option(0.3, "share of the rows in the test file", **SHARE),
    "rows": file_option("numbers of the test rows, from 0, one a line"),
    "decision": flag(
        "decision values (margin at -1 and 1, positive for the larger label); of more than two "
        "classes for each pair, or, of a landmark model, for each class against the rest"
    ),
    "threshold": Option(
        None,
        "decision value above which the larger of two labels is predicted (default: 0)",
        low=-LARGEST,
        metavar="T",
    ),
    "positive": Option(
        None,
        "the class to be found (default: the larger of two labels, or novel rows); of novelty "
        "also any label of DATA, and rows of all other labels are ordinary",
        metavar="LABEL",
    ),
    "figure": file_option("draw it (.png, .svg, .pdf; matplotlib)"),
    "top": Option(20, "columns in table and figure; JSON has all", **COUNT),
    "json": flag("print the result as one JSON object"),
    "quiet": flag("no progress and no summary"),
    "verbose": flag("more messages: sizes, choices, memory, phases; progress every second"),
}
"""All arguments of commands by name; `ooc_fw.cli.commands` says what some commands change."""


def given_arguments(args: argparse.Namespace, names: Sequence[str]) -> list[str]:
    """Those of the arguments `names` that are not the defaults, for a command line."""
    words = []
    for name in names:
        declared = ARGUMENTS[name]
        value = vars(args).get(name, declared.default)
        if value != declared.default:
            flags = [flag for flag, (set_to, _) in declared.flags.items() if set_to == value]
            words += (
                [flags[0] or declared.flag(name)] if flags else [declared.flag(name), str(value)]
            )
    return words
