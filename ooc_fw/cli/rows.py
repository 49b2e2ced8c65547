"""Rows of DATA for a model: from a data file, from text, or from a table with the same columns."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np

from ooc_fw.cli import common
from ooc_fw.convert.text import iter_libsvm
from ooc_fw.data.formats import TABLES, detect_format
from ooc_fw.data.labels import feature_places
from ooc_fw.data.opening import conversion
from ooc_fw.data.rows import AnyArray, Float64Array, Int64Array, Rows
from ooc_fw.data.sources import RowSource
from ooc_fw.model.prediction import Wanted, decide, like_training
from ooc_fw.model.record import Model, load_model
from ooc_fw.model.tables import Table, rows_of_table
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


def check_labelled(source: RowSource) -> None:
    """Raise InputError for a source without labels."""
    if not source.has_labels:
        raise InputError(f"{source.name} has no labels; name them with --label or --labels")


class AppliedRows(NamedTuple):
    """Decision values of a block of rows."""

    values: Float64Array  # (n,) or (n, n_classifiers)
    row_ids: Int64Array  # (n,), positions in the user's input, from 0
    labels: Any  # (n,), if they were asked for, else None
    n_rows: int | None  # of the whole input; None if the rows arrive in the user's order


def apply_model(
    model: Model, args: argparse.Namespace, wanted: Wanted, *, with_labels: bool = False
) -> Iterator[AppliedRows]:
    """Decision values of DATA block by block, as exact as is `wanted`, in the order of the file."""
    parsed = parsed_rows(model, args, with_labels=with_labels)
    waiting: list[AnyArray] = []  # labels of parsed rows whose decision values come next

    def rows_like_training() -> Iterator[Rows]:
        for labels, block in parsed or ():
            start = 0
            for rows in like_training(model, [block]):
                waiting.append(labels[start : start + len(rows)])
                yield rows
                start += len(rows)

    with ExitStack() as stack:
        how: dict[str, Any] = {"threads": args.threads, "name": args.data}
        rows: Any = rows_like_training()
        n_rows = n_numbered = None
        if parsed is None:
            rows = stack.enter_context(common.open_data(args, labels=with_labels))
            if with_labels:
                check_labelled(rows)
            how["dask"] = stack.enter_context(common.open_workers(args))
            n_rows = rows.n_rows
            n_numbered = None if rows.ids is None else n_rows
        progress = stack.enter_context(Waiting("predict", n_rows, quiet=args.quiet))
        start = 0
        for values in decide(model, rows, wanted, **how):
            stop = start + len(values)
            if parsed is not None:
                labels: Any = waiting.pop(0)
                yield AppliedRows(values, np.arange(start, stop), labels, None)
            else:
                labels = rows.labels(start, stop) if with_labels else None
                yield AppliedRows(values, rows.row_ids(start, stop), labels, n_numbered)
            progress(stop)
            start = stop


def parsed_rows(
    model: Model, args: argparse.Namespace, *, with_labels: bool
) -> Iterator[tuple[AnyArray, Rows]] | None:
    """Labels and raw rows of DATA block by block, if it is text or a table; else None.

    What was left out is said in the end.
    """
    kind = detect_format(args.data, is_table=model.table is not None)
    is_table = kind in TABLES
    if not is_table and kind != "libsvm":
        return None
    what = "a table" if is_table else "text"
    if args.more or args.dask is not None:
        raise InputError(
            f"{args.data} is {what}, which is read alone and by one process; convert it (ooc-fw "
            f"convert), or leave out other files and --dask"
        )
    if is_table and model.table is None:
        raise InputError(
            f"{args.data} is a table, and the model does not know how columns became features; "
            f"convert it like the training data: {conversion(args.data)} --like TRAIN.h5"
        )
    notes: list[str] = []
    if is_table:
        like = vars(args).get("model") or args.resume
        options = common.record_from(ConvertOptions, args, like=like)
        table = Table(args.data, kind, args.data)
        blocks = rows_of_table(model, table, notes, options, with_labels=with_labels)
    else:
        blocks = _rows_of_text(model, args, notes)
    return _with_notes(blocks, notes, args.quiet)


def _with_notes(
    blocks: Iterator[tuple[AnyArray, Rows]], notes: list[str], quiet: bool
) -> Iterator[tuple[AnyArray, Rows]]:
    yield from blocks
    common.print_lines([] if quiet else notes)


def _rows_of_text(
    model: Model, args: argparse.Namespace, notes: list[str]
) -> Iterator[tuple[AnyArray, Rows]]:
    feature_places(None, model.columns, args.data)  # text names no features
    width = 0
    exact = model.scaling is not None and not model.scaling.is_identity
    for labels, rows, _ in iter_libsvm(args.data, zero_based=args.zero_based, exact=exact):
        width = rows.n_features
        yield labels, rows
    if width > model.n_features:
        notes.append(f"dropped: {width - model.n_features} features beyond {model.n_features}")
