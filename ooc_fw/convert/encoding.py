"""Target encoding: a category becomes the mean label of its rows, drawn to that of all rows.

A training row has the mean over the rows of the other folds, so that its own label is no part of
its features. Any later row has the mean over all training rows.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import TypedDict

import numpy as np

from ooc_fw.convert.readers import Words
from ooc_fw.data.rows import AnyArray, Float64Array, Int32Array
from ooc_fw.system.errors import InputError, format_label

FOLDS = 5
PRIOR_ROWS = 20.0
"""Rows with the mean label of all rows that are added to those of a category."""

MAX_CELLS = 1 << 24  # words x folds x classes of all columns; each takes about 24 bytes
MAX_LETTERS = 1 << 26  # letters in all these words

NO_WORD = 0  # code of a row whose category is missing or unknown


class Encoding(TypedDict):
    """What becomes of the categories of a column."""

    words: Sequence[str]  # the categories, sorted
    features: Mapping[str, Sequence[float]]  # value of each category, and a last one without any


class TargetEncoding:
    """Codes of categories, and their features.

    For K classes, a column has the share of each class but the first; for targets of a regression,
    their mean. With `counts`, another feature is the logarithm of 1 + the rows of the category.
    Labels of rows are added block by block, unless the features of the `columns` are known.
    """

    def __init__(
        self, columns: Mapping[str, Encoding], *, targets: bool = False, counts: bool = False
    ) -> None:
        self._columns = [*columns]
        self._targets = targets
        self._counts = counts
        self._classes: dict[float, int] = {}  # label -> its place in the order of arrival
        self._words: list[dict[str, int]] = []
        self._values: list[Float64Array] = []  # of each code, or of code x FOLDS + fold
        for column in columns.values():
            self._words.append({word: code for code, word in enumerate(["", *column["words"]])})
            values = np.array([*column["features"].values()])
            self._values.append(np.roll(values.T, 1, axis=0))  # those of NO_WORD come first
        self.is_known = all(map(np.size, self._values))
        # For each column (code x FOLDS + fold, class): rows; or of targets, rows and their sum.
        self._sums = [np.zeros((FOLDS, 2)) for _ in columns]
        self._letters = 0
        self._sharing = threading.Lock()  # of the words, for the threads of the parser

    def codes_of(self, words: Sequence[Words]) -> Int32Array:
        """Code of each row's category in each column, shape (n_rows, n_columns)."""
        codes = np.empty((len(words[0]), len(words)), dtype=np.int32)
        for j, (known, column) in enumerate(zip(self._words, words, strict=True)):
            with self._sharing:
                if not self.is_known:
                    new = [word for word in column.values if word not in known]
                    known |= {word: code for code, word in enumerate(new, len(known))}
                    self._letters += sum(map(len, new))
            places = [known.get(word, NO_WORD) for word in column.values]
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
        cells = codes * np.int32(FOLDS) + (keys % np.uint64(FOLDS)).astype(np.int32)[:, None]
        for j, column in enumerate(cells.T):
            sums = self._wide(j, int(column.max()) + 1)
            flat, first = sums.reshape(-1), column * np.int64(sums.shape[1])
            np.add.at(flat, first + places, 1.0)
            if self._targets:
                np.add.at(flat, first + 1, labels)
        return cells

    def fit(
        self, label_values: Float64Array | None, names: Sequence[str] | None
    ) -> dict[str, tuple[Encoding, Float64Array, Float64Array]]:
        """Of each column its encoding, the values of training rows, and the rows that have each.

        Labels that were added are codes of `label_values`, or the values themselves; these may
        stand for `names`.
        """

        def value_of(label: float) -> float:
            return label if label_values is None else float(label_values[int(label)])

        # Not the name of the column: rows that hold categories as numbers would seem to fit.
        ends, order = [".mean"], [0, 1]
        if not self._targets:
            labels = sorted(self._classes, key=value_of)
            order = [self._classes[label] for label in labels]
            titles = [
                format_label(x) if names is None else names[int(x)] for x in map(value_of, labels)
            ]
            ends = [f"={title}" for title in titles[1:]] if len(titles) > 2 else ends
        if len(order) < 2:
            raise InputError(
                "--target-encode needs rows of two classes, or --task regression; leave it out"
            )
        return {name: self._fit_column(j, order, ends) for j, name in enumerate(self._columns)}

    def _fit_column(
        self, j: int, order: Sequence[int], ends: Sequence[str]
    ) -> tuple[Encoding, Float64Array, Float64Array]:
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
        names = [self._columns[j] + end for end in ends]
        if self._counts:
            logs = np.log1p(all_rows)[:, None]
            logs[NO_WORD] = 0
            of_all = np.concatenate([of_all, logs], axis=1)
            logs = np.repeat(logs[:, None], FOLDS, axis=1)
            of_others = np.concatenate([of_others, logs], axis=2)
            names.append(f"{self._columns[j]}.count")
        by_code = np.empty_like(of_others)
        by_code[codes] = of_others
        self._values[j] = by_code.reshape(-1, len(names))
        met = np.flatnonzero(all_rows[1:]) + 1
        table = of_all[[*met, NO_WORD]].T.tolist()
        encoding: Encoding = {
            "words": [words[k] for k in met.tolist()],
            "features": dict(zip(names, table, strict=True)),
        }
        return encoding, of_others.reshape(-1, len(names)), rows.reshape(-1)

    def values(self, places: Int32Array) -> Float64Array:
        """Features, shape (n_rows, n_features), of the codes or, of rows that were added, cells."""
        pairs = zip(self._values, places.T, strict=True)
        return np.hstack([table[column] for table, column in pairs])

    def _wide(self, j: int, n_cells: int) -> Float64Array:
        """Sums of a column with room for so many cells, and for all classes."""
        sums, n_classes = self._sums[j], len(self._classes)
        if n_cells > len(sums) or n_classes > sums.shape[1]:
            n_rows = max(n_cells, 2 * len(sums)) if n_cells > len(sums) else len(sums)
            self._sums[j] = np.zeros((n_rows, max(n_classes, sums.shape[1])))
            self._sums[j][: len(sums), : sums.shape[1]] = sums
        if sum(one.size for one in self._sums) > 2 * MAX_CELLS or self._letters > MAX_LETTERS:
            name = self._columns[j]
            raise InputError(
                f"column {name!r} has too many words for --target-encode, which takes "
                f"{MAX_CELLS // FOLDS} words x classes with {MAX_LETTERS} letters; leave it out "
                f"with --drop {name}"
            )
        return self._sums[j]
