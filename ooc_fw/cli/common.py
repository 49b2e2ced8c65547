"""What commands share: opening data, names of outputs, and printing results and gaps."""

from __future__ import annotations

import argparse
import os
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from ooc_fw.cli.arguments import given_arguments
from ooc_fw.data.opening import input_files, open_dataset
from ooc_fw.data.parallel import Workers, borrow_workers
from ooc_fw.data.sources import RowSource
from ooc_fw.options import Record, option_fields
from ooc_fw.report.progress import to_json
from ooc_fw.system.errors import InputError, format_gap, format_value, printable


def given_options(record: type, args: argparse.Namespace) -> dict[str, Any]:
    """The options in `args` that are fields of a record."""
    known = {name: vars(args).get(name) for name in option_fields(record)}
    return {name: value for name, value in known.items() if value is not None}


def record_from(record: type[Record], args: argparse.Namespace, **values: Any) -> Record:
    """Make a record from the options in `args`; `values` take precedence."""
    return record(**given_options(record, args) | values)


def open_data(
    args: argparse.Namespace, like: Mapping[str, str] | None = None, *, labels: bool = True
) -> RowSource:
    """Open the source that DATA names, by the origin of a model; `labels` says if they matter."""
    like = {**(like or {}), **({} if labels else {"label": "y"})}
    return open_dataset(args.data, like=like, **opening_of(args, labels=labels))


def opening_of(args: argparse.Namespace, *, labels: bool = True) -> dict[str, Any]:
    """The options of `open_dataset` in `args`; `labels` says if those of labels matter."""
    names = ["x_name", "fill_missing", *["label", "labels", "missing_labels"] * labels]
    return {name: vars(args)[name] for name in names if vars(args).get(name) is not None}


def inputs_of(args: argparse.Namespace) -> list[str]:
    """The input files of a command, which no output may replace."""
    named = [vars(args).get(name) for name in ("data", "model", "labels")]
    groups = vars(args).get("groups") or ""
    named += [name for name in (groups, groups.rpartition(":")[0]) if os.path.exists(name)]
    return input_files(named)


def imbalance(counts: Mapping[str, float]) -> list[str]:
    """A sentence if a class has 20 times the rows of another; `counts` are by class."""
    least = min(counts, key=lambda name: counts[name], default="")
    most = max(counts, key=lambda name: counts[name], default="")
    if not counts or counts[most] < 20 * counts[least]:
        return []
    return [
        f"class {most} has {counts[most]:.0f} rows and class {least} {counts[least]:.0f}: with "
        f"--class-weight balanced, train counts all classes the same; it then finds more rows of "
        f"small classes, and takes more rows of large ones for them"
    ]


def refuse_given(args: argparse.Namespace, names: Iterable[str], why: str) -> None:
    """Raise InputError for the first of the arguments `names` that differs from its default."""
    for given in given_arguments(args, [*names]):
        raise InputError(f"{given} {why}")


def refuse(reasons: Mapping[str, bool]) -> None:
    """Raise InputError with the first reason that holds."""
    for reason, holds in reasons.items():
        if holds:
            raise InputError(reason)


def open_workers(args: argparse.Namespace) -> AbstractContextManager[Workers | None]:
    """Workers for ``--dask``; without this option None, and Dask is not imported."""
    return nullcontext() if args.dask is None else borrow_workers(args.dask, args.threads)


def output_of(args: argparse.Namespace, data: str, suffix: str) -> Path:
    """The path of the output: by default the name of the input with another suffix."""
    if args.output:
        return Path(args.output)
    special = os.path.exists(data) and not os.path.isfile(data) and not os.path.isdir(data)
    if special or data == "-":
        raise InputError(f"{data} is no file here, so the output has no default name; give -o")
    return Path(data).with_suffix(suffix)


def print_result(
    args: argparse.Namespace,
    result: Mapping[str, Any],
    lines: Iterable[object] | None = None,
    report: Iterable[object] = (),
) -> None:
    """Print the result: one JSON object with ``--json``, else lines, by default names and values.

    Without ``--json`` and ``--quiet``, the report comes first, on standard error.
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
    """Print lines, by default on standard error; line breaks in the user's data are escaped."""
    for line in lines:
        # One write includes the end of the line, since a display may write in between.
        print(printable(str(line)) + "\n", end="", file=file or sys.stderr)


def aligned(result: Mapping[str, Any], most: int | None = None) -> list[str]:
    """A line for each name and value, with up to `most` entries of a list."""
    return table([[name, format_value(value, most)] for name, value in result.items()], 2)


def wrapped(lines: Iterable[str], indent: int) -> list[str]:
    """Wrap lines at 80 columns, without breaking words; continued lines are indented."""
    how: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
    parts = (textwrap.wrap(line, 80, subsequent_indent=" " * indent, **how) for line in lines)
    return [part for each in parts for part in each or [""]]


def next_lines(commands: Sequence[str]) -> list[str]:
    """Lines that suggest commands; they are not wrapped, so that one can paste them."""
    return ["", "next:", *(f"  {command}" for command in commands)] if commands else []


def table(rows: Sequence[Sequence[object]], n_left: int = 1) -> list[str]:
    """Lines of a table; the first `n_left` columns are aligned left, the others right."""
    cells = [[str(cell) for cell in row] for row in rows]
    sides = ["<"] * n_left + [">"] * (len(rows[0]) - n_left)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    look = "  ".join(f"{{:{side}{width}}}" for side, width in zip(sides, widths, strict=True))
    return [look.format(*row).rstrip() for row in cells]


def span_of(result: Mapping[str, Any]) -> str:
    """Words for the span, in which a landmark model has its gap."""
    return f"within the span of the {result['n_support']} landmarks"


def with_scope(result: Mapping[str, Any]) -> dict[str, Any]:
    """A result for people: gaps are rounded up, and say over what they hold if not over all."""
    shown = dict(result)
    limits = [span_of(result)] if result.get("gap_scope") == "span" else []
    if shown.pop("n_weighted", None) is not None:
        limits.append(f"over {result['n_weighted']} rows only; all others have no weight")
    words = f" ({', '.join(limits)})" if limits else ""
    for name in ("certified_gap", "objective_gap", "sampled_gap", "pair_gap"):
        if result.get(name) is not None:
            shown[name] = format_gap(result[name]) + words
    return shown
