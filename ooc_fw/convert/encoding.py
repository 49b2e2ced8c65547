"""Target encoding: a category becomes the mean label of its rows, drawn to that of all rows.

A training row has the mean over the rows of the other folds, so that its own label is no part of
its features. Any later row has the mean over all training rows.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ooc_fw.convert.readers import Words
from ooc_fw.data.rows import AnyArray, Float64Array, Int32Array
from ooc_fw.system.errors import InputError, format_label

FOLDS = 5
PRIOR_ROWS = 20.0
"""Rows with the mean label of all rows that are added to those of a category."""

MAX_WORDS, MAX_LETTERS = 1_000_000, 1 << 26
"""Limits of the different words of a column, and of the letters in the words of all columns."""

MAX_CELLS = 1 << 25  # words x folds x classes of all columns; each takes about 24 bytes

NO_WORD = 0  # code of a row whose category is missing or unknown


class EncodedColumn(NamedTuple):
    """The categories of a column and its features."""

    words: tuple[str, ...]
    features: dict[str, tuple[float, ...]]  # values of each word, and a last one without any
    values: Float64Array  # (n, n_features): values of the training rows
    rows: Float64Array  # (n,): number of training rows that have them


class TargetEncoding:
    """Codes of categories, and the features that they become.

    For K classes, a column has the share of each class but the first; for targets of a regression,
    their mean. With `counts`, another feature is the logarithm of 1 + the rows of the category.
    Labels of rows are added block by block, unless the features are `known`: for each column, its
    categories, and the value of each feature for each of them and for rows without.
    """

    def __init__(
        self,
        columns: Sequence[str],
        *,
        targets: bool = False,
        counts: bool = False,
        known: Sequence[tuple[Sequence[str], Mapping[str, Sequence[float]]]] = (),
    ) -> None:
        self._columns = columns
        self._targets = targets
        self._counts = counts
        self.is_known = bool(known)
        self._classes: dict[float, int] = {}  # label -> its place in the order of arrival
        self._words = [{"": NO_WORD} for _ in columns]
        self._letters = 0
        # For each column (code x FOLDS + fold, class): rows; or of targets, rows and their sum.
        self._sums = [np.zeros((FOLDS, 2)) for _ in columns]
        # For each column, its features of a code, or of a code x FOLDS + fold.
        self._values: list[Float64Array] = []
        for places, (words, features) in zip(self._words, known, strict=False):
            places |= {word: code for code, word in enumerate(words, 1)}
            self._values.append(np.roll(np.array(list(features.values())).T, 1, axis=0))
        self._sharing = threading.Lock()  # of the words, for the threads of the parser

    def codes_of(self, words: Sequence[Words]) -> Int32Array:
        """Code of each row's category in each column, shape (n_rows, n_columns)."""
        codes = np.empty((len(words[0]), len(words)), dtype=np.int32)
        for j, (known, column) in enumerate(zip(self._words, words, strict=True)):
            if self.is_known:
                places = [known.get(word, NO_WORD) for word in column.values]
            else:
                with self._sharing:
                    n_known = len(known)
                    places = [known.setdefault(word, len(known)) for word in column.values]
                    pairs = zip(column.values, places, strict=True)
                    self._letters += sum(len(word) for word, code in pairs if code >= n_known)
                if len(known) > MAX_WORDS or self._letters > MAX_LETTERS:
                    raise self._too_many(j)
            codes[:, j] = np.array([*places, NO_WORD], dtype=np.int32)[column.codes]
        return codes

    def add(
        self, labels: Float64Array, found: Iterable[float], codes: Int32Array, keys: AnyArray
    ) -> Int32Array:
        """Add the labels of rows, block by block in their order; returns their cells for `values`.

        All labels of the block are `found`; random `keys`, uint64, put its rows into folds.
        """
        known, places = self._classes, np.zeros(len(labels), dtype=np.int64)
        if not self._targets:
            of_block = sorted(found)
            places = np.array([known.setdefault(label, len(known)) for label in of_block])
            places = places[np.searchsorted(of_block, labels)]
        folds = (keys % np.uint64(FOLDS)).astype(np.int32)
        cells = codes * np.int32(FOLDS) + folds[:, None]
        for j, column in enumerate(cells.T):
            sums = self._wide(j, int(column.max()) + 1)
            flat, width = sums.reshape(-1), sums.shape[1]
            np.add.at(flat, column * np.int64(width) + places, 1.0)
            if self._targets:
                np.add.at(flat, column * np.int64(width) + 1, labels)
        return cells

    def fit(
        self, label_values: Float64Array | None, names: Sequence[str] | None
    ) -> list[EncodedColumn]:
        """What became of each column.

        Labels that were added are codes of `label_values`, or the values themselves; these may
        stand for `names`.
        """
        label_of = {
            place: label if label_values is None else float(label_values[int(label)])
            for label, place in self._classes.items()
        }
        order = [0, 1] if self._targets else sorted(label_of, key=label_of.__getitem__)
        if len(order) < 2:
            raise InputError(
                "--target-encode needs rows of two classes, or --targets; leave it out"
            )
        ends = [""]
        if len(order) > 2:
            titles = [label_of[place] for place in order[1:]]
            ends = [f"={format_label(x) if names is None else names[int(x)]}" for x in titles]
        return [self._fit_column(j, order, ends) for j in range(len(self._columns))]

    def _fit_column(self, j: int, order: Sequence[int], ends: Sequence[str]) -> EncodedColumn:
        words = sorted(self._words[j])  # their codes depend on the threads
        codes = np.array([self._words[j][word] for word in words])
        cells = self._wide(j, FOLDS * len(codes))[: FOLDS * len(codes), order]
        cells = cells.reshape(len(codes), FOLDS, -1)[codes]
        rows = cells[:, :, 0] if self._targets else cells.sum(axis=2)
        labels = cells[:, :, 1:]
        all_rows, all_labels = rows.sum(axis=1), labels.sum(axis=1)
        mean = all_labels.sum(axis=0) / all_rows.sum()

        def means(labels: Float64Array, rows: Float64Array) -> Float64Array:
            found: Float64Array = (labels + PRIOR_ROWS * mean) / (rows + PRIOR_ROWS)[..., None]
            found[NO_WORD] = mean
            return found

        of_others = means(all_labels[:, None] - labels, all_rows[:, None] - rows)
        of_all = means(all_labels, all_rows)
        if self._counts:
            logs = np.log1p(all_rows)[:, None]
            logs[NO_WORD] = 0
            of_all = np.concatenate([of_all, logs], axis=1)
            logs = np.repeat(logs[:, None], FOLDS, axis=1)
            of_others = np.concatenate([of_others, logs], axis=2)
        by_code = np.empty_like(of_others)
        by_code[codes] = of_others
        self._values.append(by_code.reshape(-1, by_code.shape[-1]))
        names = [self._columns[j] + end for end in [*ends, *[".count"] * self._counts]]
        met = np.flatnonzero(all_rows[1:]) + 1
        table = of_all[[*met, NO_WORD]].T.tolist()
        return EncodedColumn(
            tuple(words[k] for k in met.tolist()),
            dict(zip(names, map(tuple, table), strict=True)),
            of_others.reshape(-1, len(names)),
            rows.reshape(-1),
        )

    def values(self, places: Int32Array) -> Float64Array:
        """Features, shape (n_rows, n_features), of the codes or, of rows that were added, cells."""
        pairs = zip(self._values, places.T, strict=True)
        return np.hstack([table[column] for table, column in pairs])

    def _wide(self, j: int, n_cells: int) -> Float64Array:
        """Sums of a column with room for so many cells, and for all classes."""
        sums = self._sums[j]
        if n_cells > len(sums) or len(self._classes) > sums.shape[1]:
            n_cells = max(n_cells, 2 * len(sums)) if n_cells > len(sums) else len(sums)
            self._sums[j] = np.empty((0, 0))
            shape = n_cells, max(sums.shape[1], len(self._classes))
            if sum(other.size for other in self._sums) + shape[0] * shape[1] > MAX_CELLS:
                raise self._too_many(j)
            self._sums[j] = np.zeros(shape)
            self._sums[j][: len(sums), : sums.shape[1]] = sums
        return self._sums[j]

    def _too_many(self, j: int) -> InputError:
        name = self._columns[j]
        return InputError(
            f"column {name!r} brings --target-encode to more than {MAX_WORDS} different words, "
            f"{MAX_LETTERS} letters in them, or {MAX_CELLS // FOLDS} words x classes; leave it out "
            f"with --drop {name}"
        )
