"""Arguments of the commands: those declared in `ooc_fw.options`, and those that commands share."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from ooc_fw.options import Option, TrainOptions, option_fields
from ooc_fw.system.errors import InputError
from ooc_fw.system.groups import cpu_count

logger = logging.getLogger(__name__)

Record = TypeVar("Record")


def add_options(
    parser: argparse._ActionsContainer, record: type, names: Iterable[str] | None = None
) -> None:
    """Declare the fields of a record of options, all of them by default."""
    fields = option_fields(record)
    for name in fields if names is None else names:
        own, declared = fields[name]
        add_option(parser, name, declared, own.default)


def add_option(
    parser: argparse._ActionsContainer, name: str, declared: Option, default: Any = None
) -> None:
    """Declare one option; its help text ends with the default."""
    if declared.flags:
        group = parser.add_mutually_exclusive_group()
        for flag, (value, text) in declared.flags.items():
            group.add_argument(
                flag, dest=name, action="store_const", const=value, default=default, help=text
            )
        return
    metavar = declared.metavar
    if declared.choices and declared.low is None:
        metavar = f"{{{','.join(declared.choices)}}}"
    shown = declared.default_help or default
    parser.add_argument(
        declared.name or "--" + name.replace("_", "-"),
        dest=name,
        metavar=metavar,
        type=argument_type(declared.parse) if declared.parses else str,
        action="extend" if declared.many else "store",
        default=list(default) if declared.many else default,
        help=declared.help + (f" (default: {shown})" if shown not in (None, ()) else ""),
    )


def argument_type(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Argument type whose errors are those of `parse`, which raises InputError."""

    def parsed(text: str) -> Any:
        try:
            return parse(text)
        except InputError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parsed


def add_old_name(
    parser: argparse.ArgumentParser, old: str, new: str, dest: str | None = None
) -> None:
    """Accept an option under its former name, with a warning; `dest` is that of the new name."""
    action = parser._option_string_actions[new]

    class OldName(argparse.Action):
        def __call__(self, _: Any, namespace: Any, values: Any, option: Any = None) -> None:
            logger.warning("%s is now called %s; the old name will go", old, new)
            setattr(namespace, self.dest, values)

    parser.add_argument(
        old,
        dest=dest or action.dest,
        type=action.type or str,
        default=action.default,
        action=OldName,
        help=argparse.SUPPRESS,
    )


def record_from(record: type[Record], args: argparse.Namespace, **values: Any) -> Record:
    """Record of the options given; `values` take precedence."""
    given = {name: vars(args)[name] for name in option_fields(record) if name in vars(args)}
    return record(**given | values)


def add_model_output(parser: argparse.ArgumentParser) -> None:
    """Declare where the model goes."""
    parser.add_argument(
        "-o",
        "--output",
        metavar="MODEL",
        help="model file (default: DATA with .model.h5 in place of its suffix)",
    )


def add_data(parser: argparse.ArgumentParser, *, text: bool, labels: bool = True) -> None:
    """Declare DATA and how to find rows and labels in it.

    Parameters
    ----------
    parser : ArgumentParser
        Parser of the command.
    text : bool
        Whether the command reads LIBSVM text, too.
    labels : bool
        Whether the command reads labels.
    """
    kinds = "an HDF5 file (ooc-fw convert writes one) or a .npy array"
    if text:
        kinds += ", LIBSVM text, also compressed, or - for text on standard input"
    parser.add_argument("data", metavar="DATA", help=kinds)
    parser.add_argument(
        "--x-name", metavar="NAME", default="X", help="rows in an HDF5 file (default: X)"
    )
    if labels:
        parser.add_argument(
            "--y-name", metavar="NAME", default="y", help="labels in an HDF5 file (default: y)"
        )
        parser.add_argument("--labels", metavar="FILE", help="labels of a .npy array, also .npy")
    if text:
        parser.add_argument(
            "--zero-based", action="store_true", help="the first feature of the text is called 0"
        )


def add_model(parser: argparse.ArgumentParser) -> None:
    """Declare MODEL."""
    parser.add_argument("model", metavar="MODEL", help="file written by ooc-fw train or tune")


def add_work(parser: argparse.ArgumentParser, *, dask: bool = True) -> None:
    """Declare ``--threads``, of which the default is the number of processors, and ``--dask``."""
    add_options(parser, TrainOptions, ["threads"])
    parser.set_defaults(threads=cpu_count())
    if dask:
        parser.add_argument(
            "--dask",
            metavar="WHERE",
            help="pass over the file with Dask: on threads, on processes (as many as --threads), "
            "or on the cluster at the address tcp://HOST:PORT (default: without Dask); the numbers "
            "are the same",
        )


def add_results(parser: argparse.ArgumentParser, *, progress: bool = True) -> None:
    """Declare ``--json``, and ``--quiet`` and ``--verbose`` of commands that take time."""
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    if progress:
        group = parser.add_mutually_exclusive_group()
        group.add_argument("--quiet", action="store_true", help="no progress and no summary")
        group.add_argument(
            "--verbose",
            action="store_true",
            help="more messages: sizes, choices, the memory plan, phases; a line of progress a "
            "second",
        )
