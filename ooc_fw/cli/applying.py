"""Applying a model to DATA: a data file, text, or a table like the one of training."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import tee
from typing import Any, NamedTuple

from ooc_fw.cli import common
from ooc_fw.conversion.text import iter_libsvm
from ooc_fw.data.formats import TABLES, detect_format
from ooc_fw.data.labels import renamed
from ooc_fw.data.opening import conversion
from ooc_fw.data.rows import AnyArray, Float64Array, Int64Array, Rows
from ooc_fw.data.views import feature_places
from ooc_fw.model.prediction import decide, like_training, rows_of_table
from ooc_fw.model.record import Model, load_model
from ooc_fw.options import ConvertOptions
from ooc_fw.report.progress import Waiting
from ooc_fw.solver.state import Status
from ooc_fw.system.errors import InputError

logger = logging.getLogger(__name__)

_ROUGH = 1e-2  # relative gap above which labels may differ from those of the optimum


class AppliedRows(NamedTuple):
    """Decision values of a block of rows."""

    values: Float64Array  # (n,) or (n, n_classifiers)
    labels: Any = None  # (n,), or None if nobody asked for them
    row_ids: Int64Array | None = None  # (n,), from 0; None if the rows are in the user's order
    n_rows: int = 0  # number of rows of the whole input, if there are `row_ids`


def open_model(args: argparse.Namespace) -> Model:
    """Load the model of the arguments, with a warning if its run was not over.

    ``--threshold`` replaces that of the model. InputError for options that need two classes, if the
    model has more or is a regression.
    """
    model = load_model(args.model)
    of_two = len(model.classes) == 2 and model.task != "regression"
    if not of_two:
        why = f"is for two classes or novelty, and {args.model} has neither; leave it out"
        common.refuse_given(args, ("threshold", "positive", "false_alarms", "save"), why)
    if vars(args).get("threshold") is not None:
        model = replace(model, threshold=args.threshold)
    gap = model.objective_gap
    if gap is None:
        gap = model.sampled_gap if model.certified_gap is None else model.certified_gap
    is_rough = (gap is None or gap > _ROUGH) and not Status(model.status).reached
    is_checkpoint = model.status == Status.RUNNING
    if is_checkpoint or is_rough:
        what = "a checkpoint" if is_checkpoint else "a model of low accuracy"
        sentence = "%s is %s: its run was not over (%s); see ooc-fw info %s"
        logger.warning(sentence, args.model, what, model.status, args.model)
    return model


def apply_model(
    model: Model,
    args: argparse.Namespace,
    *,
    labels_only: bool = False,
    with_labels: bool = False,
) -> Iterator[AppliedRows]:
    """Yield decision values of DATA in blocks, in the order of the file."""
    how: dict[str, Any] = {"threads": args.threads, "name": args.data, "labels_only": labels_only}
    parsed = parsed_rows(model, args, with_labels=with_labels)
    if parsed is not None:
        blocks, labelled = tee(like_training(model, parsed))
        values_of_blocks = decide(model, (rows for _, rows in blocks), **how)
        for values, (labels, _) in zip(values_of_blocks, labelled, strict=True):
            yield AppliedRows(values, labels)
        return
    with ExitStack() as stack:
        source = stack.enter_context(common.open_data(args, model.origin, labels=with_labels))
        how["dask"] = stack.enter_context(common.open_workers(args))
        n_rows = source.n_rows
        if n_missing := getattr(source, "source", source).n_rows - n_rows:
            common.say(args, f"note: {n_missing} rows without a label are left out")
        progress = stack.enter_context(Waiting("predict", n_rows, quiet=args.quiet))
        start = 0
        for values in decide(model, source, **how):
            stop = start + len(values)
            ids = source.row_ids(start, stop) if "row" in source.beside else None
            yield AppliedRows(
                values, source.labels(start, stop) if with_labels else None, ids, n_rows
            )
            progress(stop)
            start = stop


def refuse_table(data: str, why: str = "") -> None:
    """Raise InputError if DATA is a table; `why` it has to be converted goes into the sentence."""
    if detect_format(data, is_table=bool(why)) in TABLES:
        like = f"convert it like the training data: {conversion(data)} --like TRAIN.h5"
        raise InputError(f"{data} is a table{why}; {like}")


def parsed_rows(
    model: Model, args: argparse.Namespace, *, with_labels: bool
) -> Iterator[tuple[AnyArray, Rows]] | None:
    """Labels and raw rows of DATA in blocks, if it is text or a table; None for other data.

    After the last block, notes tell the user what was left out.
    """
    kind = detect_format(args.data, is_table=model.table is not None)
    is_table = kind in TABLES
    others = ["zero_based", "x_name"] if is_table else ["names", "label", "labels", "x_name"]
    if not is_table and kind != "libsvm":
        others = ["zero_based", "names"]
    common.refuse_given(args, others, f"has no meaning for {args.data}; leave it out")
    if not is_table and kind != "libsvm":
        return None
    why = f"is not for tables and text such as {args.data}; convert them (ooc-fw convert)"
    common.refuse_given(args, ["dask"] + ["fill_missing"] * is_table, why)
    if is_table and model.table is None:
        refuse_table(args.data, ", and the model does not know how to turn columns into features")
    blocks = _parsed(model, args, kind if is_table else "", with_labels=with_labels)
    if with_labels and "labels_as" in model.origin:
        new = model.origin["labels_as"]
        return ((renamed(labels, new)[:], rows) for labels, rows in blocks)
    return blocks


def _parsed(
    model: Model, args: argparse.Namespace, table: str, *, with_labels: bool
) -> Iterator[tuple[AnyArray, Rows]]:
    """Labels and raw rows of a table in the format `table`, or of text if this is empty."""
    notes: list[str] = []
    if table:
        like = vars(args).get("model") or args.resume
        options = common.record_from(ConvertOptions, args, like=like)
        yield from rows_of_table(model, args.data, table, notes, options, with_labels=with_labels)
    else:
        feature_places(None, model.columns, args.data)  # text names no features
        width = 0
        how = {"zero_based": args.zero_based, "live": not with_labels}
        for labels, rows in iter_libsvm(args.data, **how):
            width = rows.n_features
            yield labels, rows
        if width > model.n_features:
            notes = [f"dropped: {width - model.n_features} features beyond {model.n_features}"]
    common.say(args, *notes)
