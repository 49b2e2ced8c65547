"""What commands share: options given, opening data, where results go, and printing them."""

from __future__ import annotations

import argparse
import os
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py

from ooc_fw.data.hdf5 import H5PY_ERRORS
from ooc_fw.data.opening import UnconvertedError, open_source
from ooc_fw.data.parallel import Workers, borrow_workers
from ooc_fw.data.sources import RowSource
from ooc_fw.options import Record, option_fields
from ooc_fw.report.progress import to_json
from ooc_fw.system.errors import InputError, format_value, printable

if TYPE_CHECKING:
    from ooc_fw.model.record import Model


def record_from(record: type[Record], args: argparse.Namespace, **values: Any) -> Record:
    """Record of the options given; `values` take precedence."""
    given = {name: vars(args)[name] for name in option_fields(record) if name in vars(args)}
    return record(**given | values)


def open_data(
    args: argparse.Namespace, *, labels: bool = True, model: Model | None = None
) -> RowSource:
    """Open the source that DATA names; without `labels`, rows that lack one are kept.

    Labels are mapped as those that the model was trained on.
    """
    names = ("label", "labels", "x_name") if labels else ("x_name",)
    given = {name: vars(args)[name] for name in names if vars(args).get(name) is not None}
    try:
        source = open_source(data_of(args), **given)
    except UnconvertedError as error:
        if "model" not in args:
            raise
        raise UnconvertedError(error.path, error.what, " --like TRAIN.h5") from None
    return source


def data_of(args: argparse.Namespace) -> list[str]:
    """The files of DATA: the rows of all of them stand one below the other."""
    return [args.data, *vars(args).get("more", ())]


def refuse(reasons: Mapping[str, bool]) -> None:
    """Raise InputError for the first of these reasons that holds."""
    for reason, holds in reasons.items():
        if holds:
            raise InputError(reason)


def refuse_several(args: argparse.Namespace, what: str) -> None:
    """Refuse further files of DATA where the first one is `what`."""
    if args.more:
        raise InputError(
            f"{args.data} is {what}, which is no part of several files; give it alone, or convert "
            f"all of them (ooc-fw convert)"
        )


def open_workers(args: argparse.Namespace) -> AbstractContextManager[Workers | None]:
    """Workers that ``--dask`` names; without it None, and Dask is not imported."""
    return nullcontext() if args.dask is None else borrow_workers(args.dask, args.threads)


def output_of(args: argparse.Namespace, data: str, suffix: str) -> Path:
    """The output: by default the name of the input with another suffix."""
    if args.output:
        if args.output.endswith(os.sep):
            raise InputError(f"{args.output} names a folder; give the name of a file")
        return Path(args.output)
    is_special = os.path.exists(data) and not os.path.isfile(data) and not os.path.isdir(data)
    if is_special or "://" in data:
        raise InputError(f"{data} is no file here, so the output has no default name; give -o")
    return Path(data).with_suffix(suffix)


def named_outputs(args: argparse.Namespace, names: str) -> list[str]:
    """Outputs that are given by ``-o`` or at the end of the arguments, as many as `names` has."""
    given = args.output or args.outputs
    outputs = [given] if isinstance(given, str) else [*given]
    if len(outputs) != len(names.split()) or (args.output and args.outputs):
        raise InputError(f"{args.command} writes {names}: name them once, at the end or by -o")
    return outputs


def is_own(path: Path, attribute: str = "n_features") -> bool:
    """Whether a file is HDF5 of this program: of ``convert``, or with the attribute of a model."""
    try:
        with h5py.File(path) as file:
            return {"format_version", attribute} <= {*file.attrs}
    except H5PY_ERRORS:
        return False


def is_model(path: Path) -> bool:
    """Whether a file looks like a model."""
    return is_own(path, "kernel")


def print_result(
    args: argparse.Namespace,
    result: Mapping[str, Any],
    lines: Iterable[object] | None = None,
    report: Iterable[object] = (),
) -> None:
    """Print one JSON object with ``--json``, else lines for people: by default names and values.

    Unless the command is quiet, people see the report first, on standard error.
    """
    if args.json:
        print(to_json(result))
        return
    print_lines([] if getattr(args, "quiet", False) else report)
    print_lines(aligned(result) if lines is None else lines, sys.stdout)


def print_lines(lines: Iterable[object], file: Any = None) -> None:
    """Print lines for people, on standard error by default; text from data cannot end one."""
    for line in lines:
        # The end of the line is written with it, since a display may write in between.
        print(printable(str(line)) + "\n", end="", file=file or sys.stderr)


def aligned(result: Mapping[str, Any], most: int | None = None) -> list[str]:
    """A line for each name and value; `most` is the number of entries of a list that are shown."""
    return table([[name, format_value(value, most)] for name, value in result.items()], 2)


def wrapped(lines: Iterable[str], indent: int) -> list[str]:
    """Lines of at most 80 columns, as far as words allow; those that go on are indented."""
    how: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
    parts = (textwrap.wrap(line, 80, subsequent_indent=" " * indent, **how) for line in lines)
    return [part for each in parts for part in each or [""]]


def next_lines(commands: Sequence[str]) -> list[str]:
    """Lines of commands to be pasted as they are, however long; none where there are none."""
    return ["", "next:", *(f"  {command}" for command in commands)] if commands else []


def table(rows: Sequence[Sequence[object]], n_left: int = 1) -> list[str]:
    """Lines of a table, of which the first `n_left` columns begin, and the others end alike."""
    cells = [[str(cell) for cell in row] for row in rows]
    sides = ["<"] * n_left + [">"] * (len(rows[0]) - n_left)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    look = "  ".join(f"{{:{side}{width}}}" for side, width in zip(sides, widths, strict=True))
    return [look.format(*row).rstrip() for row in cells]
