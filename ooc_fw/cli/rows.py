"""Rows of DATA for a model: from a data file, from text, or from a table with the same columns."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import tee
from typing import Any, NamedTuple

import numpy as np

from ooc_fw.cli import common
from ooc_fw.convert.text import iter_libsvm
from ooc_fw.data.formats import TABLES, detect_format
from ooc_fw.data.labels import feature_places
from ooc_fw.data.opening import conversion
from ooc_fw.data.rows import AnyArray, Float64Array, Int64Array, Rows
from ooc_fw.model.prediction import Wanted, decide, like_training
from ooc_fw.model.record import Model, load_model
from ooc_fw.model.tables import Table, rows_of_table, words_of_column
from ooc_fw.options import ConvertOptions
from ooc_fw.report.progress import Waiting
from ooc_fw.system.errors import InputError

logger = logging.getLogger(__name__)


def open_model(args: argparse.Namespace) -> Model:
    """The model that is asked for; a word about one whose run was not over."""
    model = load_model(args.model)
    if model.run is not None:
        sentence = "%s is a checkpoint: its run was not over; see ooc-fw info %s"
        logger.warning(sentence, args.model, args.model)
    return model


class AppliedRows(NamedTuple):
    """Decision values of a block of rows."""

    values: Float64Array  # (n,) or (n, n_classifiers)
    row_ids: Int64Array  # (n,), positions in the user's input, from 0
    labels: Any  # (n,), if they were asked for, else None
    n_rows: int | None  # of the whole input; None if only its end tells


def apply_model(
    model: Model, args: argparse.Namespace, wanted: Wanted, *, with_labels: bool = False
) -> Iterator[AppliedRows]:
    """Decision values of DATA block by block, in the order in which the rows are stored.

    The values are as exact as is `wanted`.
    """
    blocks = parsed(model, args, with_labels=with_labels)
    how: dict[str, Any] = {"threads": args.threads}
    with ExitStack() as stack:
        if blocks is None:
            source = stack.enter_context(common.open_data(args, labels=with_labels, model=model))
            if with_labels and not source.has_labels:
                raise InputError(f"{source.name} has no labels; name them with --label or --labels")
            how["dask"] = stack.enter_context(common.open_workers(args))
            n_rows = source.n_rows
            decided = decide(model, source, wanted, **how)
        else:
            first, second = tee(scaled(model, blocks))
            how["name"] = str(args.data)
            n_rows = None
            decided = decide(model, (part for _, part in second), wanted, **how)
        progress = stack.enter_context(Waiting("predict", n_rows, quiet=args.quiet))
        start = 0
        for values in decided:
            stop = start + len(values)
            if blocks is None:
                labels = source.labels(start, stop) if with_labels else None
                row_ids = source.row_ids(start, stop)
            else:
                labels, _ = next(first)
                row_ids = np.arange(start, stop)
            yield AppliedRows(values, row_ids, labels, n_rows)
            progress(stop)
            start = stop


def scaled(
    model: Model, blocks: Iterable[tuple[AnyArray, Rows]]
) -> Iterator[tuple[AnyArray, Rows]]:
    """Labels and raw rows, made like the training rows, in parts."""
    for labels, block in blocks:
        start = 0
        for rows in like_training(model, [block]):
            yield labels[start : start + len(rows)], rows
            start += len(rows)


def parsed(
    model: Model, args: argparse.Namespace, *, with_labels: bool
) -> Iterator[tuple[AnyArray, Rows]] | None:
    """Labels and raw rows of DATA block by block, if it is text or a table; else None."""
    kind = detect_format(args.data, is_table=model.table is not None)
    is_table = kind in TABLES
    if is_table and model.table is None:
        raise InputError(
            f"{args.data} is a table, and the model does not know how columns became features; "
            f"convert it like the training data: {conversion(args.data)} --like TRAIN.h5"
        )
    if not is_table and kind != "libsvm":
        return None
    what = "a table" if is_table else "text"
    common.refuse_several(args, what)
    if args.dask is not None:
        raise InputError(
            f"{args.data} is {what}, which one process parses; leave --dask out, or convert it "
            f"first (ooc-fw convert)"
        )
    notes: list[str] = []
    if not is_table:
        return _with_notes(_rows_of_text(model, args, notes), notes, args.quiet)
    options = common.record_from(ConvertOptions, args, like=args.model)
    table = Table(args.data, kind, args.data)
    parts = rows_of_table(model, table, notes, options, with_labels=with_labels)
    return _with_notes(parts, notes, args.quiet)


def _with_notes(
    blocks: Iterable[tuple[AnyArray, Rows]], notes: list[str], quiet: bool
) -> Iterator[tuple[AnyArray, Rows]]:
    """The blocks; what was left out is said in the end."""
    yield from blocks
    common.print_lines([] if quiet else notes)


def _rows_of_text(
    model: Model, args: argparse.Namespace, notes: list[str]
) -> Iterator[tuple[AnyArray, Rows]]:
    feature_places(None, model.columns, args.data)  # text names no features
    width = 0
    n_dropped = 0
    exact = model.scaling is not None and not model.scaling.is_identity
    for labels, rows, _ in iter_libsvm(args.data, zero_based=args.zero_based, exact=exact):
        width = rows.n_features
        if width > model.n_features:
            n_dropped += int(np.count_nonzero(rows.indices >= model.n_features))
        yield labels, rows
    missing = model.n_features - width
    if missing > 0:
        few = f"{missing} of {model.n_features} features"
        notes.append(f"zero: {few}, which no row of the text has")
    elif missing:
        beyond = f"{-missing} features beyond {model.n_features}"
        notes.append(f"dropped: {beyond}, {n_dropped} values in them")


def column_words(model: Model, args: argparse.Namespace, name: str) -> Iterator[str]:
    """Words of a column of DATA that need not be a feature, in the order of `apply_model`."""
    kind = detect_format(args.data, is_table=model.table is not None)
    if args.data == "-" or model.table is None or kind not in TABLES:
        raise InputError(f"--by is for columns of a table in a file, not for {args.data}")
    return words_of_column(model, Table(args.data, kind, args.data), name)
