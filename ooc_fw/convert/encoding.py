"""Target encoding of categories: their labels are added up while a table is converted.

What becomes of the sums is in `ooc_fw.data.encoded`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ooc_fw.convert.readers import WordCodes, Words
from ooc_fw.data.encoded import FOLDS, NO_WORD, Encoding, add_labels, encode
from ooc_fw.data.labels import plain_word
from ooc_fw.data.rows import AnyArray, Float64Array, Int32Array
from ooc_fw.system.errors import InputError, format_label

MAX_CELLS = 1 << 24  # words x folds x classes of all columns; each takes about 80 bytes
MAX_LETTERS = 1 << 26  # letters in all these words


@dataclass
class _Column:
    """A column of categories."""

    name: str
    codes: WordCodes  # of its words; that of NO_WORD, the empty one, is 0
    values: Float64Array  # features of each code, or of each code x FOLDS + fold
    # For each code x FOLDS + fold: rows of each class; or of targets, rows and their sum.
    sums: Float64Array
    order: Int32Array  # place of each code in the order of the words


class TargetEncoding:
    """Codes of categories, and their features.

    For K classes, a column has the share of each class but the first; for targets of a regression,
    their mean. With `counts`, another feature is the logarithm of 1 + the rows of the category.
    Labels of rows are added block by block, unless the features of the `columns` are known.
    """

    def __init__(
        self, columns: Mapping[str, Encoding], *, targets: bool = False, counts: bool = False
    ) -> None:
        self._targets = targets
        self._counts = counts
        self._classes: dict[float, int] = {}  # label -> its place in the order of arrival
        self.is_known = all(encoding["features"] for encoding in columns.values())
        self.n_added = 0 if self.is_known else len(columns)  # columns whose labels are added
        self._columns = []
        for name, encoding in columns.items():
            words = ["", *map(plain_word, encoding["words"])]
            values = np.array([*encoding["features"].values()])
            self._columns.append(
                _Column(
                    name,
                    WordCodes(words, grows=not self.is_known),
                    np.roll(values.T, 1, axis=0),  # those of NO_WORD come first
                    np.zeros((FOLDS, 2)),
                    np.zeros(1, dtype=np.int32),
                )
            )

    def codes_of(self, words: Sequence[Words]) -> Int32Array:
        """Code of each row's category in each column, shape (n_rows, n_columns)."""
        pairs = zip(self._columns, words, strict=True)
        codes = np.column_stack([one.codes.of(column) for one, column in pairs])
        return np.maximum(codes, NO_WORD).astype(np.int32)

    def add(
        self, labels: Float64Array, found: Iterable[float], codes: Int32Array, keys: AnyArray
    ) -> Int32Array:
        """Add the labels of rows, block by block in their order; returns cells for `sorted_cells`.

        All labels of the block are `found`; random `keys`, uint64, put its rows into folds.
        """
        cells = codes * np.int32(FOLDS) + (keys % np.uint64(FOLDS)).astype(np.int32)[:, None]
        places: AnyArray = labels
        if not self._targets:
            of_block = sorted(found)
            known = [self._classes.setdefault(label, len(self._classes)) for label in of_block]
            places = np.array(known)[np.searchsorted(of_block, labels)]
        for one, column in zip(self._columns, cells.T, strict=True):
            self._widen(one, int(column.max()) + 1)
            add_labels(one.sums, column, places, targets=self._targets)
        return cells

    def fit(
        self, label_values: Float64Array | None, names: Sequence[str] | None
    ) -> dict[str, tuple[Encoding, Float64Array, Float64Array]]:
        """Of each column its encoding, the values of training rows, and the rows that have each.

        Labels that were added are codes of `label_values`, or the values themselves; these may
        stand for `names`.
        """
        # Not the name of the column: rows that hold categories as numbers would seem to fit.
        ends = [".mean"]
        order = [0, 1]
        if not self._targets:
            values = {
                label: label if label_values is None else float(label_values[int(label)])
                for label in self._classes
            }
            labels = sorted(self._classes, key=values.__getitem__)
            order = [self._classes[label] for label in labels]
            if len(labels) > 2:
                numbers = [values[label] for label in labels[1:]]
                ends = [f"={format_label(x) if names is None else names[int(x)]}" for x in numbers]
        if len(order) < 2:
            raise InputError(
                "--target-encode needs rows of two classes, or --task regression; leave it out"
            )
        return {one.name: self._fit_column(one, order, ends) for one in self._columns}

    def _fit_column(
        self, one: _Column, order: Sequence[int], ends: Sequence[str]
    ) -> tuple[Encoding, Float64Array, Float64Array]:
        known = one.codes.words
        n_cells = FOLDS * len(known)
        self._widen(one, n_cells)
        sums = one.sums[:n_cells, order].reshape(len(known), FOLDS, -1)
        one.sums = np.zeros((FOLDS, 2))  # 80 bytes a word and more, which are used up
        codes = np.array(sorted(range(len(known)), key=known.__getitem__))
        of_others, of_all, rows = encode(sums[codes], targets=self._targets, counts=self._counts)
        names = [one.name + end for end in ends] + [f"{one.name}.count"] * self._counts
        one.order = np.argsort(codes).astype(np.int32)
        one.values = of_others.reshape(-1, len(names))
        table = np.roll(of_all, -1, axis=0).T.tolist()  # NO_WORD comes last
        words = [known[code] for code in codes.tolist()][1:]
        encoding: Encoding = {"words": words, "features": dict(zip(names, table, strict=True))}
        return encoding, one.values, rows.reshape(-1)

    def sorted_cells(self, cells: Int32Array) -> Int32Array:
        """Cells of rows that were added, by the order of the words in their encoding."""
        pairs = zip(self._columns, cells.T, strict=True)
        return np.column_stack(
            [one.order[column // FOLDS] * FOLDS + column % FOLDS for one, column in pairs]
        ).astype(np.int32)

    def values(self, places: Int32Array) -> Float64Array:
        """Features, shape (n_rows, n_features), of codes, or of `sorted_cells`."""
        pairs = zip(self._columns, places.T, strict=True)
        return np.hstack([one.values[column] for one, column in pairs])

    def _widen(self, one: _Column, n_cells: int) -> None:
        """Give the sums of a column room for so many cells, and for all classes."""
        n_rows, n_sums = one.sums.shape
        if n_cells > n_rows or len(self._classes) > n_sums:
            wide = max(n_cells, 2 * n_rows) if n_cells > n_rows else n_rows
            sums = np.zeros((wide, max(len(self._classes), n_sums)))
            sums[:n_rows, :n_sums] = one.sums
            one.sums = sums
        n_letters = sum(column.codes.n_letters for column in self._columns)
        if sum(column.sums.size for column in self._columns) > 2 * MAX_CELLS or (
            n_letters > MAX_LETTERS
        ):
            raise InputError(
                f"column {one.name!r} has too many words for --target-encode, which takes "
                f"{MAX_CELLS // FOLDS} words x classes with {MAX_LETTERS} letters; leave it out "
                f"with --drop {one.name}"
            )
