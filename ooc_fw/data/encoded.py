"""Target encoding: a category becomes the mean label of its rows, drawn to that of all rows.

A training row has the mean over the rows of the other folds, so that its own label is no part of
its features. Any later row has the mean over all training rows. Rows that are held out are later
rows: `hold_out` encodes both parts again, from the labels of the training rows alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

import numpy as np

from ooc_fw.data.arrays import ReadArray
from ooc_fw.data.rows import (
    AnyArray,
    CSRRows,
    Float64Array,
    Int32Array,
    Int64Array,
    StoredRows,
    append_columns,
    keep_stored,
)
from ooc_fw.data.scaling import Scaling
from ooc_fw.data.sources import RowSource
from ooc_fw.data.views import SubsetSource, WholeSource, complement
from ooc_fw.system.errors import DamageError, InputError

FOLDS = 5
PRIOR_ROWS = 20.0
"""Rows with the mean label of all rows that are added to those of a category."""

NO_WORD = 0  # code of a row whose category is missing or unknown
_PART_ROWS = 1 << 16  # rows whose labels are added together


class Encoding(TypedDict):
    """What becomes of the categories of a column."""

    words: Sequence[str]  # the categories, sorted
    features: Mapping[str, Sequence[float]]  # value of each category, and a last one without any


def hold_out(source: RowSource, ranges: Int64Array) -> tuple[SubsetSource, SubsetSource]:
    """The rows to train on, and those in `ranges`, which no label of the first part may tell.

    Every validation cuts its rows by this function: `split`, `train_test_split`, each fold of
    `tune`, and calibration. Features that are made of labels are made again from the first part.
    A smaller training set is a `SubsetSource` of ``train.source`` at some of ``train.rows``. Both
    parts count rows as `source` does, and it stays open when they are closed.
    """
    rest = complement(ranges, source.n_rows)
    if source.categories is not None:
        source = EncodedSource(source, rest)
    return SubsetSource(source, rest), SubsetSource(source, ranges)


@dataclass(frozen=True)
class Categories:
    """Categories of the rows of a target-encoded file, and the labels that became its features."""

    cells: ReadArray | None  # (n_rows, n_columns): code x FOLDS + fold; None where it is unknown
    labels: ReadArray  # as the file stores them
    classes: Float64Array | None  # their values, in increasing order; None for targets

    def at(self, n_rows: int, pick: Callable[..., AnyArray]) -> Categories:
        """Those of some of the rows, which `pick` finds for a function that reads a range."""
        if self.cells is None:
            return self

        def view(array: ReadArray) -> ReadArray:
            def read(start: int, stop: int) -> AnyArray:
                return pick(lambda a, b: np.asarray(array[a:b]), start, stop)

            return ReadArray((n_rows, *array.shape[1:]), array.dtype, read)

        return replace(self, cells=view(self.cells), labels=view(self.labels))


def add_labels(sums: Float64Array, cells: Int32Array, labels: AnyArray, *, targets: bool) -> None:
    """Add rows to `sums`, of shape (n_cells, n), with a label for each of their `cells`.

    A cell holds its rows of each class, if `labels` are places of classes; else the number of its
    rows and the sum of their targets.
    """
    flat = sums.reshape(-1)
    first = cells * np.int64(sums.shape[1])
    if targets:
        np.add.at(flat, first, 1.0)
        np.add.at(flat, first + 1, labels)
    else:
        np.add.at(flat, first + labels, 1.0)


def encode(
    sums: Float64Array, *, targets: bool, counts: bool
) -> tuple[Float64Array, Float64Array, Float64Array]:
    """Features of training rows (n_codes, FOLDS, n), those of later rows (n_codes, n), and rows.

    `sums` are those of `add_labels`, classes in order, of shape (n_codes, FOLDS, ...). Each class
    but the first has a feature, and with `counts` so has the logarithm of 1 + the rows.
    """
    rows = sums[:, :, 0] if targets else sums.sum(axis=2)
    labels = sums[:, :, 1:]
    all_rows = rows.sum(axis=1)
    all_labels = labels.sum(axis=1)
    mean = all_labels.sum(axis=0) / all_rows.sum()

    def features(labels: Float64Array, rows: Float64Array) -> Float64Array:
        found: Float64Array = (labels + PRIOR_ROWS * mean) / (rows + PRIOR_ROWS)[..., None]
        found[NO_WORD] = mean
        if not counts:
            return found
        logs = np.log1p(all_rows).reshape(-1, *[1] * (found.ndim - 1))
        logs[NO_WORD] = 0
        return np.concatenate([found, np.broadcast_to(logs, (*found.shape[:-1], 1))], axis=-1)

    of_others = features(all_labels[:, None] - labels, all_rows[:, None] - rows)
    return of_others, features(all_labels, all_rows), rows


class EncodedSource(WholeSource):
    """All rows of a source, whose categories are encoded by the labels of some of them.

    `training`, ranges of rows, are training rows; the others are later ones. The record of the
    table says the same of rows that a model meets.
    """

    def __init__(self, source: RowSource, training: Int64Array) -> None:
        categories = source.categories
        if categories is None or categories.cells is None or source.table is None:
            raise InputError(
                f"{source.name}: some rows are encoded by labels of others (--target-encode), so "
                f"that none can be held out; convert the tables together"
            )
        super().__init__(source, source.n_features, sparse=source.sparse)
        self._training = training
        self._cells = categories.cells
        record = json.loads(source.table)
        encodings: dict[str, Encoding] = record["encodings"]
        self._sizes = [FOLDS * (len(one["words"]) + 1) for one in encodings.values()]
        self._of_others: list[Float64Array] = []  # features of each cell, for every column
        self._of_all: list[Float64Array] = []  # and of each code
        targets = categories.classes is None
        for (name, one), sums in zip(encodings.items(), self._sums(categories), strict=True):
            names = [*one["features"]]
            counts = names[-1] == f"{name}.count"
            by_fold = sums.reshape(-1, FOLDS, sums.shape[1])
            of_others, of_all, _ = encode(by_fold, targets=targets, counts=counts)
            self._of_others.append(of_others.reshape(-1, len(names)))
            self._of_all.append(of_all)
            table = np.roll(of_all, -1, axis=0).T.tolist()  # NO_WORD comes last
            one["features"] = dict(zip(names, table, strict=True))
        self.table = json.dumps(record)
        self._n_before = source.n_features - sum(values.shape[1] for values in self._of_all)
        self.recipe = EncodedSource, (source, training)

    def _sums(self, categories: Categories) -> list[Float64Array]:
        """Sums of the labels of training rows, for every column."""
        classes = categories.classes
        sums = [np.zeros((size, 2 if classes is None else len(classes))) for size in self._sizes]
        for first, end in self._training.tolist():
            for start in range(first, end, _PART_ROWS):
                stop = min(end, start + _PART_ROWS)
                labels = np.asarray(categories.labels[start:stop])
                places = labels if classes is None else np.searchsorted(classes, labels)
                for total, column in zip(sums, self._cells_of(start, stop).T, strict=True):
                    add_labels(total, column, places, targets=classes is None)
        return sums

    def _cells_of(self, start: int, stop: int) -> Int32Array:
        cells: Int32Array = np.asarray(self._cells[start:stop])
        if len(cells) and not (cells.min() >= 0 and (cells.max(axis=0) < self._sizes).all()):
            raise DamageError(
                f"{self.name} is damaged: rows {start} to {stop - 1} have categories that its "
                f"table does not have; restore a copy or convert the data again"
            )
        return cells

    def _fetch(self, start: int, stop: int) -> StoredRows:
        rows = self.source.read(start, stop, exact=True)
        numbers = np.arange(start, stop)
        places = np.searchsorted(self._training[:, 0], numbers, side="right") - 1
        is_training = ((places >= 0) & (numbers < self._training[places, 1]))[:, None]
        columns = zip(self._of_others, self._of_all, self._cells_of(start, stop).T, strict=True)
        values = np.hstack(
            [np.where(is_training, one[cell], of[cell // FOLDS]) for one, of, cell in columns]
        )
        scaling = self.scaling or Scaling()
        features = np.arange(self._n_before, self.n_features)
        scaled = scaling.scale_values(scaling.log_values(values), features)
        if isinstance(rows, CSRRows):
            rows = keep_stored(rows, rows.indices < self._n_before, self._n_before)
            rows = append_columns(rows, scaled)
            return keep_stored(rows, rows.data != 0, self.n_features)
        return np.concatenate([rows[:, : self._n_before], scaled], axis=1)
