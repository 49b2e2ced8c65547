"""Target encoding: a category becomes the mean label of its rows, shrunk to the mean of all rows.

The training rows are in folds. The mean for a training row leaves out its own fold, so that its
features do not depend on its label. The mean for any later row is over all training rows. Held-out
rows count as later rows: `hold_out` encodes both parts again by the labels of the first one.

Beside the rows of such a file are their "categories", shape (n_rows, n_columns), as code x FOLDS +
fold.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from ooc_fw.data.arrays import Sliceable
from ooc_fw.data.labels import encode_labels, read_targets
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
from ooc_fw.data.views import SubsetSource, WholeSource
from ooc_fw.system.errors import InputError

FOLDS = 5
PRIOR_ROWS = 20.0  # each mean counts so many more rows, whose label is the mean of all rows
NO_WORD = 0  # code of a row whose category is missing or unknown
_PART_ROWS = 1 << 16  # rows whose labels are read and added together


class Encoding(TypedDict):
    """Encoding of the categories of a column."""

    words: Sequence[str]  # the categories, in the order of their codes
    features: Mapping[str, Sequence[float]]  # by name: a value for each word, and for no word


def hold_out(source: RowSource, rows: Int64Array) -> tuple[SubsetSource, SubsetSource]:
    """Split a source into the rows to train on and the held-out `rows`.

    Every validation uses this split: features that depend on labels are made again from the labels
    of the first part. To train on less, use a `SubsetSource` of ``train.source``, ``train.rows``.
    """
    rest = np.delete(np.arange(source.n_rows), rows)
    if "categories" in source.beside:
        source = EncodedSource(source, rest)
    return SubsetSource(source, rest), SubsetSource(source, rows)


def add_labels(sums: Float64Array, cells: Int32Array, labels: AnyArray, *, targets: bool) -> None:
    """Add rows, each with its cell and label, to `sums`, of shape (n_cells, n).

    If `labels` are places of classes, a cell holds the number of its rows in each class. For
    targets it holds the number of its rows and the sum of their targets.
    """
    flat = sums.reshape(-1)
    first = cells * np.int64(sums.shape[1])
    if targets:
        np.add.at(flat, first, 1.0)
        np.add.at(flat, first + 1, labels)
    else:
        np.add.at(flat, first + labels, 1.0)


def encode(sums: Float64Array, *, targets: bool) -> tuple[Float64Array, Float64Array, Float64Array]:
    """Features for training rows (n_codes, FOLDS, n), for later rows (n_codes, n), and row counts.

    `sums` come from `add_labels` and have the shape (n_codes, FOLDS, ...), with classes in order.
    Each class has a feature, except the first one.
    """
    rows = sums[:, :, 0] if targets else sums.sum(axis=2)
    labels = sums[:, :, 1:]
    all_rows = rows.sum(axis=1)
    all_labels = labels.sum(axis=1)
    mean = all_labels.sum(axis=0) / all_rows.sum()

    def features(labels: Float64Array, rows: Float64Array) -> Float64Array:
        found: Float64Array = (labels + PRIOR_ROWS * mean) / (rows + PRIOR_ROWS)[..., None]
        found[NO_WORD] = mean
        return found

    of_others = features(all_labels[:, None] - labels, all_rows[:, None] - rows)
    return of_others, features(all_labels, all_rows), rows


class EncodedSource(WholeSource):
    """All rows of a source, with categories encoded by the labels of the `training` rows alone.

    All other rows count as later rows. The record of the table gets the same encoding, for the rows
    that a model predicts.
    """

    def __init__(self, source: RowSource, training: Int64Array) -> None:
        assert source.table is not None
        super().__init__(source)
        self._is_training = np.zeros(source.n_rows, dtype=bool)
        self._is_training[training] = True
        record = json.loads(source.table)
        encodings: dict[str, Encoding] = record["encodings"]
        targets = bool(source.targets)
        classes, codes = (range(2), read_targets(source)) if targets else encode_labels(source)
        # A class may have lost all its rows in a split.
        if any(len(one["features"]) != len(classes) - 1 for one in encodings.values()):
            raise InputError(f"{source.name} has features of other classes; convert it again")
        codes = codes[self._is_training]
        cells = source.beside["categories"]
        all_sums = _sums(codes, cells, self._is_training, encodings, targets=targets)
        # For each column, shape (n_codes, FOLDS + 1, n): features in each fold and of later rows.
        self._features: list[Float64Array] = []
        for one, sums in zip(encodings.values(), all_sums, strict=True):
            of_others, of_all, _ = encode(sums, targets=targets)
            self._features.append(np.concatenate([of_others, of_all[:, None]], axis=1))
            table = np.roll(of_all, -1, axis=0).T.tolist()  # NO_WORD comes last
            one["features"] = dict(zip(one["features"], table, strict=True))
        self.table = json.dumps(record)
        self._n_before = source.n_features - sum(values.shape[2] for values in self._features)
        self.recipe = EncodedSource, (source, training)

    def _fetch(self, start: int, stop: int) -> StoredRows:
        rows = self.source.read(start, stop, exact=True)
        is_training = self._is_training[start:stop]
        cells = np.asarray(self.beside["categories"][start:stop])
        folds = np.where(is_training[:, None], cells % FOLDS, FOLDS)
        columns = zip(self._features, cells.T // FOLDS, folds.T, strict=True)
        values = np.hstack([features[codes, fold] for features, codes, fold in columns])
        scaling = self.scaling or Scaling()
        places = np.arange(self._n_before, self.n_features)
        scaled: Any = scaling.at(places).scale(scaling.log_values(values))
        if isinstance(rows, CSRRows):
            rows = keep_stored(rows, rows.indices < self._n_before, self._n_before)
            rows = append_columns(rows, scaled)
            return keep_stored(rows, rows.data != 0, self.n_features)
        return np.concatenate([rows[:, : self._n_before], scaled], axis=1)


def _sums(
    codes: AnyArray,
    categories: Sliceable,
    is_training: npt.NDArray[np.bool_],
    columns: Mapping[str, Encoding],
    *,
    targets: bool,
) -> list[Float64Array]:
    """Sums over the labels of training rows; for each column, shape (1 + its words, FOLDS, n).

    `codes` are the places of the classes of these rows, or their targets.
    """
    sums = [
        np.zeros((FOLDS * (len(one["words"]) + 1), 1 + len(one["features"])))
        for one in columns.values()
    ]
    for start in range(0, len(is_training), _PART_ROWS):
        part = slice(start, start + _PART_ROWS)
        chosen = np.asarray(categories[part])[is_training[part]]
        of_rows = codes[: len(chosen)]
        codes = codes[len(chosen) :]
        for total, cells in zip(sums, chosen.T, strict=True):
            add_labels(total, cells, of_rows, targets=targets)
    return [total.reshape(-1, FOLDS, total.shape[1]) for total in sums]
