"""What commands share: opening data, where results go, and printing them and their gaps."""

from __future__ import annotations

import argparse
import os
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from decimal import ROUND_CEILING, Context, Decimal
from pathlib import Path
from typing import Any

import h5py

from ooc_fw.cli.arguments import given_arguments
from ooc_fw.data.opening import open_source
from ooc_fw.data.parallel import Workers, borrow_workers
from ooc_fw.data.sources import RowSource
from ooc_fw.options import Record, option_fields
from ooc_fw.report.progress import to_json
from ooc_fw.system.errors import InputError, format_value, printable


def record_from(record: type[Record], args: argparse.Namespace, **values: Any) -> Record:
    """Record of the options given; `values` take precedence."""
    given = {name: vars(args)[name] for name in option_fields(record) if name in vars(args)}
    return record(**given | values)


def open_data(args: argparse.Namespace, *, labels: bool = True) -> RowSource:
    """Open the source that DATA names; without `labels`, rows that lack one are kept."""
    names = ("label", "labels", "x_name") if labels else ("x_name",)
    given = {name: vars(args)[name] for name in names if vars(args).get(name) is not None}
    return open_source(args.data, **given)


def inputs_of(args: argparse.Namespace, *others: str | None) -> list[str]:
    """The files of a command that no output may replace."""
    named = [vars(args).get(name) for name in ("data", "model", "labels")]
    return [name for name in (*named, *others) if name is not None]


def refuse_given(args: argparse.Namespace, names: Iterable[str], why: str) -> None:
    """Raise InputError for the first of these arguments that was given: it is not the default."""
    for given in given_arguments(args, [*names]):
        raise InputError(f"{given} {why}")


def refuse(reasons: Mapping[str, bool]) -> None:
    """Raise InputError for the first of these reasons that holds."""
    for reason, holds in reasons.items():
        if holds:
            raise InputError(reason)


def open_workers(args: argparse.Namespace) -> AbstractContextManager[Workers | None]:
    """Workers that ``--dask`` names; without it None, and Dask is not imported."""
    return nullcontext() if args.dask is None else borrow_workers(args.dask, args.threads)


def output_of(args: argparse.Namespace, data: str, suffix: str) -> Path:
    """The output: by default the name of the input with another suffix."""
    if args.output:
        return Path(args.output)
    special = os.path.exists(data) and not os.path.isfile(data) and not os.path.isdir(data)
    if special or data == "-":
        raise InputError(f"{data} is no file here, so the output has no default name; give -o")
    return Path(data).with_suffix(suffix)


def is_own(path: Path, attribute: str = "n_features") -> bool:
    """Whether a file is HDF5 of this program: of ``convert``, or with the attribute of a model."""
    try:
        with h5py.File(path) as file:
            return {"format_version", attribute} <= {*file.attrs}
    except Exception:  # h5py raises many kinds for damaged files
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
    else:
        say(args, *report)
        print_lines(aligned(result) if lines is None else lines, sys.stdout)


def say(args: argparse.Namespace, *lines: object) -> None:
    """Print lines as `print_lines` does, unless the command is quiet."""
    print_lines([] if vars(args).get("quiet") else lines)


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
    """Lines of commands to be pasted as they are, however long."""
    return ["", "next:", *(f"  {command}" for command in commands)] if commands else []


def table(rows: Sequence[Sequence[object]], n_left: int = 1) -> list[str]:
    """Lines of a table, of which the first `n_left` columns begin, and the others end alike."""
    cells = [[str(cell) for cell in row] for row in rows]
    sides = ["<"] * n_left + [">"] * (len(rows[0]) - n_left)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    look = "  ".join(f"{{:{side}{width}}}" for side, width in zip(sides, widths, strict=True))
    return [look.format(*row).rstrip() for row in cells]


def format_gap(gap: float | None) -> str:
    """Gap with three digits, rounded up."""
    if gap is None:
        return "unknown"
    return f"{float(Context(prec=3, rounding=ROUND_CEILING).plus(Decimal(gap))):.2e}"


def span_of(result: Mapping[str, Any]) -> str:
    """Where the gap of a landmark model is the least."""
    return f"within the span of the {result['n_support']} landmarks"


def with_scope(result: Mapping[str, Any]) -> dict[str, Any]:
    """A result for people, who are told which gaps are of some landmarks, or some rows, alone."""
    shown = dict(result)
    limits = [span_of(result)] if result.get("gap_scope") == "span" else []
    if shown.pop("n_weighted", None) is not None:
        limits.append(f"over {result['n_weighted']} rows alone; all others have no weight")
    for name in ("certified_gap", "sampled_gap") if limits else ():
        if result.get(name) is not None:
            shown[name] = f"{format_value(result[name])} ({', '.join(limits)})"
    return shown
