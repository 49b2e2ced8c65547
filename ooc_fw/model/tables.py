"""Rows of tables, whose columns a model makes features as it did for the training table."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ooc_fw.convert.convert import open_table
from ooc_fw.convert.features import TableEncoder
from ooc_fw.convert.readers import LabelNumbers, ParseOptions, ordered_map
from ooc_fw.convert.tables import TrainingFile
from ooc_fw.data.containers import names_of_frame
from ooc_fw.data.formats import TABLES, detect_format, is_store
from ooc_fw.data.rows import AnyArray, CSRRows, Float64Array, Rows
from ooc_fw.data.scaling import Scaling
from ooc_fw.model import prediction
from ooc_fw.options import ConvertOptions
from ooc_fw.system.errors import InputError
from ooc_fw.system.files import scratch_directory

if TYPE_CHECKING:
    from ooc_fw.model.record import Model

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Table:
    """A table in a file."""

    path: str
    format: str  # of `ooc_fw.data.formats.TABLES`
    name: str  # for messages

    @classmethod
    @contextmanager
    def of(cls, model: Model, X: Any) -> Iterator[Table | None]:
        """The table that `X` is, if the model was trained on one; None for all other rows.

        A frame or an Arrow table in RAM is written to a scratch file, unless its columns are the
        features already.
        """
        names = names_of_frame(X)
        if model.table is None:
            yield None
        elif isinstance(X, str | os.PathLike):
            path = os.fspath(X)
            is_file = os.path.isfile(path) or (os.path.isdir(path) and not is_store(path))
            kind = detect_format(path, is_table=True) if is_file else ""
            yield cls(path, kind, path) if kind in TABLES else None
        elif names is None or {*(model.columns or ())} <= {*names}:
            yield None
        else:
            from ooc_fw.convert.arrow import write_arrow  # pyarrow is slow to import

            with scratch_directory() as folder:
                path = str(folder / "table.arrow")
                write_arrow(X, path)
                yield cls(path, "arrow", f"this {type(X).__name__}")


def decide_table(
    model: Model, table: Table, wanted: prediction.Wanted, threads: int
) -> Iterator[Float64Array]:
    """Decision values of the rows of a table, in parts."""
    notes: list[str] = []
    rows = prediction.like_training(model, (rows for _, rows in rows_of_table(model, table, notes)))
    yield from prediction.decide(model, rows, wanted, threads=threads)
    for note in notes:
        logger.info("%s", note)


def rows_of_table(
    model: Model,
    table: Table,
    notes: list[str],
    options: ConvertOptions | None = None,
    *,
    with_labels: bool = False,
) -> Iterator[tuple[AnyArray, Rows]]:
    """Labels and rows of a table like that of training; `notes` say what was left out."""
    options = options or ConvertOptions(like="the model")
    like = training_file(model, str(options.like or "the model"))
    record = like.record
    assert record is not None
    header = None if record.header else False
    task = "regression" if like.targets else "classification"
    options = replace(options, like=like.name, header=header, task=task)
    with open_table(table.path, table.format, options) as reader:
        reader.name = table.name
        parsing = ParseOptions(n_features=model.n_features, log1p=like.scaling.log1p)
        labels_of = LabelNumbers(like.words) if with_labels else None
        encoder = TableEncoder([reader], record, options, parsing, like, labels_of)
        if with_labels and not encoder.labelled:
            raise InputError(
                f"{table.name} has no column {record.label!r}, which held the labels in "
                f"training; name another with --label"
            )
        n_rows = 0
        for block in ordered_map(partial(encoder.parse, reader), reader.blocks()):
            codes = encoder.learn(block, None)
            n_rows += len(block.rows)
            labels: AnyArray = block.labels
            if (words := encoder.labels.words) is not None:
                labels = np.array(words)[labels.astype(np.int64)]
            if labels.dtype.kind not in "biuf" and model.classes.dtype.kind == "f":
                with suppress(ValueError):
                    labels = labels.astype(np.float64)
            yield labels, encoder.features(block.rows, codes, Scaling())
        if not n_rows:
            raise InputError(f"{table.name} has no rows; {encoder.hint}")
        notes += [f"note: {note}" for note in encoder.notes()]


def training_file(model: Model, name: str) -> TrainingFile:
    """What a model of this name knows of the rows that it was trained on."""
    return TrainingFile(
        name,
        model.n_features,
        isinstance(model.support_vectors, CSRRows),
        model.scaling or Scaling(),
        None if model.spread is not None else tuple(model.classes.tolist()),
        columns=model.columns,
        table=model.table,
        targets=model.spread is not None,
    )
