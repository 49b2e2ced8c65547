"""Categories and their labels, added up block by block while a table is converted.

What becomes of them is in `ooc_fw.data.encoded`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from ooc_fw.convert.readers import Words
from ooc_fw.data.encoded import FOLDS, NO_WORD, Encoding, add_labels, encode
from ooc_fw.data.labels import plain_word
from ooc_fw.data.rows import AnyArray, Float64Array, Int32Array
from ooc_fw.system.errors import InputError, format_label

MAX_CELLS = 1 << 24  # words x folds x classes of all columns; each takes about 80 bytes
MAX_LETTERS = 1 << 26  # letters in all these words


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
            words = ["", *map(plain_word, column["words"])]
            self._words.append({word: code for code, word in enumerate(words)})
            values = np.array([*column["features"].values()])
            self._values.append(np.roll(values.T, 1, axis=0))  # those of NO_WORD come first
        self._places = [np.zeros(1, dtype=np.int32) for _ in columns]  # of codes, in order of words
        self.is_known = all(map(np.size, self._values))
        self.n_added = 0 if self.is_known else len(columns)  # columns whose labels are added
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
        """Add the labels of rows, block by block in their order; returns cells for `sorted_cells`.

        All labels of the block are `found`; random `keys`, uint64, put its rows into folds.
        """
        cells = codes * np.int32(FOLDS) + (keys % np.uint64(FOLDS)).astype(np.int32)[:, None]
        places: AnyArray = labels
        if not self._targets:
            of_block = sorted(found)
            known = [self._classes.setdefault(label, len(self._classes)) for label in of_block]
            places = np.array(known)[np.searchsorted(of_block, labels)]
        for j, column in enumerate(cells.T):
            sums = self._wide(j, int(column.max()) + 1)
            add_labels(sums, column, places, targets=self._targets)
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
        known = self._words[j]
        sums = self._wide(j, FOLDS * len(known))[: FOLDS * len(known), order]
        self._sums[j] = np.zeros((FOLDS, 2))  # 80 bytes a word and more, which are used up
        sums = sums.reshape(len(known), FOLDS, -1)
        # Without rows if all those with the word were left out.
        n_rows = (sums[:, :, 0] if self._targets else sums).reshape(len(known), -1).sum(axis=1)
        words = ["", *(word for word in sorted(known) if word and n_rows[known[word]])]
        codes = np.array([known[word] for word in words])
        of_others, of_all, rows = encode(sums[codes], targets=self._targets, counts=self._counts)
        names = [self._columns[j] + end for end in ends]
        names += [f"{self._columns[j]}.count"] * self._counts
        self._places[j] = np.zeros(len(known), dtype=np.int32)
        self._places[j][codes] = np.arange(len(codes))
        self._values[j] = of_others.reshape(-1, len(names))
        table = np.roll(of_all, -1, axis=0).T.tolist()  # NO_WORD comes last
        encoding: Encoding = {"words": words[1:], "features": dict(zip(names, table, strict=True))}
        return encoding, self._values[j], rows.reshape(-1)

    def sorted_cells(self, cells: Int32Array) -> Int32Array:
        """Cells of rows that were added, by the order of the words in their encoding."""
        found = np.empty_like(cells)
        for j, column in enumerate(cells.T):
            found[:, j] = self._places[j][column // FOLDS] * FOLDS + column % FOLDS
        return found

    def values(self, places: Int32Array) -> Float64Array:
        """Features, shape (n_rows, n_features), of codes, or of `sorted_cells`."""
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
