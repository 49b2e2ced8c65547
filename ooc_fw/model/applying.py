"""Applying a model to new rows: a data file, arrays, text, or a table like the one of training."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import tee
from typing import Any, NamedTuple

from ooc_fw.conversion.text import iter_libsvm
from ooc_fw.data.formats import TABLES, detect_format
from ooc_fw.data.labels import renamed
from ooc_fw.data.opening import borrow_source, conversion
from ooc_fw.data.rows import AnyArray, Float64Array, Int64Array, Rows
from ooc_fw.data.views import SubsetSource, feature_places
from ooc_fw.model.prediction import decide, format_of_table, like_training, rows_of_table
from ooc_fw.model.trained import Trained
from ooc_fw.options import THREADS, ConvertOptions
from ooc_fw.system.errors import InputError

logger = logging.getLogger(__name__)

Progress = Callable[[int], AbstractContextManager[Callable[[int], None]]]
"""From a number of rows, a context manager of a function that takes how many are done."""


@dataclass(frozen=True)
class NewRows:
    """Rows to which a model is applied, and how they are read."""

    data: Any  # what `open_dataset` takes; a path of text or of a table, or "-"; a frame
    options: ConvertOptions  # the ones that say how rows and labels are read; `like` is the model
    labels: Any = None  # labels from outside the data, as for `open_dataset`
    threads: int = 1
    dask: Any = None
    say: Callable[..., None] | None = None  # tells what was left out; None: warnings do
    progress: Progress = lambda n_rows: nullcontext(lambda done: None)

    @classmethod
    def of(
        cls, data: Any, labels: Any = None, *, threads: int, dask: Any, like: str, **reading: Any
    ) -> NewRows:
        """New rows for a function of Python, with its arguments; `like` is the model's name."""
        if reading.get("fill_missing") is not None:
            reading["fill_missing"] = str(reading["fill_missing"])
        options = ConvertOptions(like=like, missing_labels="drop", **reading)
        return cls(data, options, labels, THREADS.check("threads", threads), dask)

    @property
    def name(self) -> str:
        """The path, or what stands for it in messages."""
        is_path = isinstance(self.data, str | os.PathLike)
        return os.fspath(self.data) if is_path else f"this {type(self.data).__name__}"

    def refuse(self, names: list[str], why: str) -> None:
        """Raise InputError for the first of these options that is given."""
        given = vars(self.options) | {"labels": self.labels is not None, "dask": self.dask}
        for name in filter(given.get, names):  # the default of each is False, None or empty
            raise InputError(f"--{name.replace('_', '-')} {why}")


class AppliedRows(NamedTuple):
    """Decision values of a block of rows."""

    values: Float64Array  # (n,) or (n, n_classifiers)
    labels: Any = None  # (n,), or None if nobody asked for them
    row_ids: Int64Array | None = None  # (n,), from 0; None if the rows are in the user's order
    n_rows: int = 0  # number of rows of the whole input, if there are `row_ids`


def apply_model(
    model: Trained, new: NewRows, *, labels_only: bool = False, with_labels: bool = False
) -> Iterator[AppliedRows]:
    """Yield decision values of new rows in blocks, in the order of the file."""
    how: dict[str, Any] = {"threads": new.threads, "name": new.name, "labels_only": labels_only}
    parsed = parsed_rows(model, new, with_labels=with_labels)
    if parsed is not None:
        blocks, labelled = tee(like_training(model, parsed))
        values_of_blocks = decide(model, (rows for _, rows in blocks), **how)
        for values, (labels, _) in zip(values_of_blocks, labelled, strict=True):
            yield AppliedRows(values, labels)
        return
    names = ["x_name", "fill_missing", *["label", "missing_labels"] * with_labels]
    how_opened: dict[str, Any] = {name: getattr(new.options, name) for name in names}
    how_opened["labels"] = new.labels
    how_opened["like"] = model.origin if with_labels else {**model.origin, "label": "y"}
    with borrow_source(new.data, **how_opened) as source, new.progress(source.n_rows) as tell:
        if source is not new.data and isinstance(source, SubsetSource):
            n_missing = source.source.n_rows - source.n_rows
            say = new.say or logger.warning
            say(f"note: {n_missing} rows without a label are left out")
        start = 0
        for values in decide(model, source, dask=new.dask, **how):
            stop = start + len(values)
            ids = source.row_ids(start, stop) if "row" in source.beside else None
            own = source.labels(start, stop) if with_labels else None
            yield AppliedRows(values, own, ids, source.n_rows)
            tell(stop)
            start = stop


def parsed_rows(
    model: Trained, new: NewRows, *, with_labels: bool
) -> Iterator[tuple[AnyArray, Rows]] | None:
    """Labels and raw rows in blocks, if they are text or a table; None for other data.

    After the last block, notes tell the user what was left out.
    """
    kind = format_of_table(model, new.data)
    if isinstance(new.data, str | os.PathLike):
        kind = detect_format(new.name, is_table=model.table is not None)
    is_table = kind in TABLES
    others = ["zero_based", "x_name"] if is_table else ["names", "label", "labels", "x_name"]
    if not is_table and kind != "libsvm":
        others = ["zero_based", "names"]
    new.refuse(others, f"has no meaning for {new.name}; leave it out")
    if not is_table and kind != "libsvm":
        return None
    why = f"is not for tables and text such as {new.name}; convert them (ooc-fw convert)"
    new.refuse(["dask"] + ["fill_missing"] * is_table, why)
    if is_table and model.table is None:
        raise InputError(
            f"{new.name} is a table, and the model does not know how to turn columns into "
            f"features; convert it like the training data: {conversion(new.name)} --like TRAIN.h5"
        )
    if is_table and new.labels is not None:
        raise InputError(f"{new.name} has its labels in a column: name it with --label")
    blocks = _parsed(model, new, kind if is_table else "", with_labels=with_labels)
    if with_labels and "labels_as" in model.origin:
        names = model.origin["labels_as"]
        return ((renamed(labels, names)[:], rows) for labels, rows in blocks)
    return blocks


def _parsed(
    model: Trained, new: NewRows, table: str, *, with_labels: bool
) -> Iterator[tuple[AnyArray, Rows]]:
    """Labels and raw rows of a table in the format `table`, or of text if this is empty."""
    notes: list[str] | None = None if new.say is None else []
    if table:
        how: dict[str, Any] = {"with_labels": with_labels}
        yield from rows_of_table(model, new.data, table, notes, new.options, **how)
    else:
        feature_places(None, model.columns, new.name)  # text names no features
        width = 0
        how = {"zero_based": new.options.zero_based, "live": not with_labels}
        for labels, rows in iter_libsvm(new.name, **how):
            width = rows.n_features
            yield labels, rows
        if width > model.n_features and notes is not None:
            notes += [f"dropped: {width - model.n_features} features beyond {model.n_features}"]
    if new.say is not None and notes is not None:
        new.say(*notes)
