"""What commands share: options given, opening data, where results go, and printing them."""

from __future__ import annotations

import argparse
import logging
import math
import os
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from decimal import ROUND_CEILING, Context, Decimal, localcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py

from ooc_fw.cli.arguments import arguments_of
from ooc_fw.data.hdf5 import H5PY_ERRORS
from ooc_fw.data.labels import LabelMap, map_labels, maps_left
from ooc_fw.data.opening import UnconvertedError, open_source
from ooc_fw.data.parallel import Workers, borrow_workers
from ooc_fw.data.sources import RowSource
from ooc_fw.options import ConvertOptions, Record, option_fields
from ooc_fw.report.progress import to_json
from ooc_fw.system.errors import InputError, printable
from ooc_fw.system.errors import format_label as format_label
from ooc_fw.system.errors import format_labels as format_labels
from ooc_fw.system.errors import format_value as format_value
from ooc_fw.system.files import Output

if TYPE_CHECKING:
    from ooc_fw.model.record import Model

logger = logging.getLogger(__name__)


def warn_of_checkpoint(path: str, model: Model) -> None:
    """Warn if a model is a checkpoint, whose weights are those of a run that was not over."""
    if model.run is not None:
        logger.warning("%s is a checkpoint: its run was not over; see ooc-fw info %s", path, path)


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
        if args.command == "certify":  # which takes the rows of training, in their order there
            raise InputError(
                f"{error.path} is {error.what}; give the converted file that {args.model} was "
                f"trained on"
            ) from None
        raise UnconvertedError(error.path, error.what, " --like TRAIN.h5") from None
    if model is not None and labels and source.has_labels:
        maps = maps_left(args.data, source.labels_as, None, model.labels_as)
        if maps:
            say_labels(args, map_labels(source, maps))
    return source


def say_labels(args: argparse.Namespace, labels: LabelMap) -> None:
    """Print what became of labels."""
    if not args.quiet:
        print_lines([labels])


def data_of(args: argparse.Namespace) -> list[str]:
    """The files of DATA: the rows of all of them stand one below the other."""
    return [args.data, *vars(args).get("more", ())]


def inputs_of(args: argparse.Namespace) -> list[str]:
    """Files that a command reads, of which no output may replace one."""
    return list(args.inputs)


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


def model_output(args: argparse.Namespace) -> Output:
    """Where a model is written; a default name replaces an older model only."""
    output = output_of(args, args.data, ".model.h5")
    return Output("model", output, is_own=None if args.output else is_model)


def is_model(path: Path) -> bool:
    """Whether a file looks like a model."""
    return _has_attributes(path, "format_version", "kernel")


def is_converted(path: Path) -> bool:
    """Whether a file looks like one of ``ooc-fw convert``."""
    return _has_attributes(path, "format_version", "n_features")


def _has_attributes(path: Path, *names: str) -> bool:
    try:
        with h5py.File(path) as file:
            return {*names} <= {*file.attrs}
    except H5PY_ERRORS:
        return False


def named_outputs(args: argparse.Namespace, command: str, names: str) -> list[str]:
    """Outputs that are given by ``-o`` or at the end of the arguments, as many as `names` has."""
    given = args.output or args.outputs
    outputs = [given] if isinstance(given, str) else [*given]
    if len(outputs) != len(names.split()) or (args.output and args.outputs):
        raise InputError(f"{command} writes {names}: name them once, at the end or by -o")
    return outputs


def print_result(
    args: argparse.Namespace, result: Mapping[str, Any], lines: Iterable[object] | None = None
) -> None:
    """Print one JSON object with ``--json``, else lines for people: by default names and values."""
    if args.json:
        print(to_json(result))
    else:
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


def data_arguments(args: argparse.Namespace, known: Sequence[str] = ()) -> list[str]:
    """Options given that say where rows and labels are, but those in `known`, for a command."""
    names = {"label", "labels", "x_name", "header"} & {*vars(args)}
    values = {
        name: vars(args)[name] for name in names if f"--{name.replace('_', '-')}" not in known
    }
    return arguments_of(ConvertOptions, values)


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


def gap_lines(classifiers: Sequence[Mapping[str, Any]], most: int | None = None) -> list[str]:
    """Certified gap of each binary classifier, or of the first `most`."""
    lines = []
    for classifier in classifiers[:most]:
        sides = sides_of(classifier, of_one="primal" in classifier)
        lines.append(f"{sides}  {format_gap(classifier['certified_gap'])}")
    if most is not None and len(classifiers) > most:
        lines.append(f"and {len(classifiers) - most} more binary classifiers, which --json lists")
    return lines


def sides_of(classifier: Mapping[str, Any], *, of_one: bool) -> str:
    """What a binary classifier tells apart: two classes, or of landmarks one from the rest."""
    first, second = format_label(classifier["negative"]), format_label(classifier["positive"])
    return f"{second} against the rest" if of_one else f"{first} against {second}"


def span_of(result: Mapping[str, Any]) -> str:
    """Where the gap of a landmark model is the least."""
    return f"within the span of the {result['n_support']} landmarks"


def with_scope(result: Mapping[str, Any]) -> dict[str, Any]:
    """A result for people, who are told which gaps are of some landmarks, or some rows, alone."""
    shown, limits = dict(result), []
    if result.get("gap_scope") == "span":
        limits.append(span_of(result))
    if shown.pop("n_weighted", None) is not None:
        limits.append(f"over {result['n_weighted']} rows alone; all others have no weight")
    for name in ("certified_gap", "sampled_gap") if limits else ():
        if result.get(name) is not None:
            shown[name] = f"{format_value(result[name])} ({', '.join(limits)})"
    return shown


def dropped(n_dropped: int, n_features: int, n_values: int) -> str:
    """Columns that a file has beyond those of the training data, and the values in them."""
    return f"dropped: {n_dropped} features beyond {n_features}, {n_values} values in them"


def gap_in_words(
    gap: float | None, kind: str | None, scope: str | None, certified: bool
) -> list[str]:
    """What a gap says of the objective, rounded up; no lines where it is unknown.

    Weights a of an exact model with gap g have a'Qb >= (1 - g) a'Qa for all weights b, so that
    b'Qb >= (1 - g)^2 a'Qa by Cauchy and Schwarz. The gap of landmarks is (P - D) / P.
    """
    if gap is None or not math.isfinite(gap):
        return []
    if not certified:
        return ["it is of some rows only and proves nothing; ooc-fw certify takes all of them"]
    if gap >= 1:
        return ["no bound yet: the gap is 1 or more"]
    with localcontext(rounding=ROUND_CEILING):
        least = Decimal(gap)
        share = least if kind == "landmarks" else least * (2 - least)
        percent = Context(prec=2, rounding=ROUND_CEILING).plus(100 * share)
    other = "on these landmarks" if scope == "span" else "of this kind"
    return [
        f"{format_gap(gap)}: no other model {other} has an objective smaller by more than "
        f"{percent:f} %; it says nothing about accuracy on new rows"
    ]


def format_gap(gap: float | None) -> str:
    """Gap with three digits, rounded up."""
    if gap is None:
        return "unknown"
    return f"{float(Context(prec=3, rounding=ROUND_CEILING).plus(Decimal(gap))):.2e}"
