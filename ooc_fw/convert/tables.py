"""Cells of tables to labels and sparse rows, as a `TableRecord` says."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_fw.convert.like import TrainingFile
from ooc_fw.convert.readers import (
    EXAMPLES,
    MISSING_LABELS,
    Cells,
    Parse,
    ParsedBlock,
    ParseOptions,
    Reader,
    TableReader,
    Wanted,
    Words,
    keep_stored,
    listed,
)
from ooc_fw.convert.record import TableRecord, find_label
from ooc_fw.data.labels import is_exact_label
from ooc_fw.data.rows import CSRRows, Float64Array
from ooc_fw.system.errors import InputError

MAX_CLASSES = 4096
"""Different labels; more of them are targets of a regression."""

_FLOAT32_MAX = float(np.finfo(np.float32).max)


def too_many_classes(name: str) -> InputError:
    """Error for an input whose labels are no classes."""
    return InputError(
        f"{name} brings the number of different labels above {MAX_CLASSES}; these are targets of a "
        f"regression, not classes"
    )


class LabelCodes:
    """Codes of labels that are words, in the order in which they are met; for any thread.

    If `known` words are labels in the training file, all labels are words, even numbers.
    """

    def __init__(self, known: Sequence[str] = ()) -> None:
        self._codes = {word: code for code, word in enumerate(known)}
        self._n_known = len(self._codes)
        self._adding = threading.Lock()

    def encode(self, labels: Words, name: str) -> Float64Array:
        """Code of each label, none of which is missing."""
        met = [labels.values[code] for code in np.unique(labels.codes).tolist()]
        with self._adding:
            for word in met:
                self._codes.setdefault(word, len(self._codes))
            if len(self._codes) > MAX_CLASSES:
                raise too_many_classes(name)
            codes = [self._codes.get(word, -1) for word in labels.values]
        return np.array(codes, dtype=np.float64)[labels.codes]

    def finish(self) -> tuple[Float64Array, tuple[str, ...] | None]:
        """Label value of each code, and the words that the values stand for.

        If all words are numbers that float64 holds exactly, they are the values, and the second
        result is None. Otherwise words are numbered from 0 in sorted order.
        """
        words = list(self._codes)
        if not self._n_known:
            numbers = [_label_number(word) for word in words]
            if all(number is not None for number in numbers):
                return np.array(numbers, dtype=np.float64), None
        names = sorted(words)
        places = {word: place for place, word in enumerate(names)}
        return np.array([places[word] for word in words], dtype=np.float64), tuple(names)


def _label_number(word: str) -> float | None:
    try:
        number = float(word)
    except ValueError:
        return None
    return number if np.isfinite(number) and "_" not in word and is_exact_label(word) else None


class TableEncoder:
    """Makes rows of open tables; the counterpart of `ooc_fw.convert.libsvm.LineEncoder`.

    Without a record, rows are sparse and columns have no names. `label` overrides the label column
    of the record; `like` is the training file.
    """

    exact_parser = None
    hint = "give a table with rows in it"

    def __init__(
        self,
        readers: Sequence[TableReader],
        record: TableRecord | None,
        label: str | None,
        options: ParseOptions,
        *,
        like: TrainingFile | None = None,
        drop_unlabelled: bool = False,
    ) -> None:
        self.readers = readers
        self.record = record
        self._options = options
        self._like = like
        self._drop_unlabelled = drop_unlabelled
        self._labels = self._find_labels(label)
        kinds = {
            reader.untyped or name in reader.words
            for reader, name in zip(readers, self._labels, strict=True)
            if name is not None
        }
        if len(kinds) > 1:
            raise InputError(
                "the labels are words in some of the inputs and numbers in others; convert them "
                "to one type"
            )
        self._codes = LabelCodes(() if like is None else like.words) if True in kinds else None
        self._names = [] if record is None else [record.columns[j] for j in record.numbers]
        self._hot_names = [] if record is None else [record.columns[j] for j in record.hot]
        self._lookups = [
            {word: code for code, word in enumerate(words)}
            for words in (() if record is None else record.categories)
            if words is not None
        ]
        self._counting = threading.Lock()
        self._counts: Counter[str] = Counter()  # "unlabelled", "filled", and columns of categories

    def _find_labels(self, wanted: str | None) -> list[str | None]:
        """Column of the labels in each input; None in all where new rows have no labels yet."""
        recorded = None if self.record is None else self.record.label
        names = [
            recorded
            if wanted is None and reader.own_label is None and recorded in reader.columns
            else wanted or reader.own_label
            for reader in self.readers
        ]
        if self._like is not None and not any(names):
            return [None] * len(names)
        return [find_label(reader, name) for reader, name in zip(self.readers, names, strict=True)]

    @property
    def labelled(self) -> bool:
        """Whether there are labels."""
        return self._labels[0] is not None

    def parser(self, reader: Reader) -> Parse:
        """Parser of the blocks of one of the readers."""
        place = [one is reader for one in self.readers].index(True)
        table, label = self.readers[place], self._labels[place]
        wanted = Wanted(label)
        if self.record is not None:
            wanted = self.record.wanted(table, label, skip=self._options.skip)
        return lambda block: self._encode(table.parse(block, wanted))

    def feature_name(self, column: int) -> str:
        """What a user calls a feature."""
        return f"column {column if self.record is None else repr(self.record.features[column])}"

    def labels(self) -> tuple[Float64Array | None, tuple[str, ...] | None]:
        """Value of each label code, and the words of the values; when all is parsed."""
        return (None, None) if self._codes is None else self._codes.finish()

    def notes(self) -> Iterator[str]:
        """What a user may not expect, one sentence each; when all is parsed."""
        if not self.labelled:
            yield "there are no labels: the file is for prediction only (else give --label)"
        if count := self._counts["unlabelled"]:
            yield f"{count} rows without a label are left out"
        used = {*self._labels} if self.record is None else {*self._labels, *self.record.columns}
        if index := {name for reader in self.readers for name in reader.index} - used:
            yield f"the index of the rows is no feature and left out: {listed(sorted(index))}"
        if count := self._counts["filled"]:
            yield f"{count} missing values became the means of their columns"
        if self.record is None:
            return
        for name in self._hot_names:
            if count := self._counts[f"column {name}"]:
                yield (
                    f"column {name!r}: {count} rows without a category"
                    + (f", or with one that {self._like.name} does not have" if self._like else "")
                    + "; its features are all 0 there"
                )
        if self._like is not None:
            extra = [name for name in self.readers[0].proper_columns if name not in used]
            if extra:
                yield f"columns that {self._like.name} does not use are left out: {listed(extra)}"

    def _count(self, what: str, number: int) -> None:
        with self._counting:
            self._counts[what] += number

    def _encode(self, cells: Cells) -> ParsedBlock:
        """Labels and sparse rows, of float64, of some cells."""
        if self._drop_unlabelled:
            labelled = ~_unlabelled(cells.labels)
            if not labelled.all():
                self._count("unlabelled", int(np.count_nonzero(~labelled)))
                cells = cells.take(np.flatnonzero(labelled))
        if self.record is not None and self.record.means is not None:
            self._fill(cells, np.array(self.record.means)[self.record.numbers])
        skipped, n_skipped = list(cells.skipped), len(cells.skipped)
        bad = self._bad_rows(cells)
        if bad.any():
            where = np.flatnonzero(bad).tolist()
            if not self._options.skip:
                raise InputError(self._reason(cells, where[0]))
            skipped += [self._reason(cells, row) for row in where[:EXAMPLES]]
            n_skipped += len(where)
            cells = cells.take(np.flatnonzero(~bad))
        labels = cells.labels
        if isinstance(labels, Words):
            assert self._codes is not None
            labels = self._codes.encode(labels, cells.name)
        rows = cells.numbers if isinstance(cells.numbers, CSRRows) else self._features(cells)
        width, limit, n_stored = rows.n_features, self._options.n_features, len(rows.data)
        if limit is not None and width > limit:
            rows = keep_stored(rows, rows.indices < limit, limit)
        n_dropped = n_stored - len(rows.data)
        return ParsedBlock(labels, rows, width, n_dropped, n_skipped, tuple(skipped[:EXAMPLES]))

    def _fill(self, cells: Cells, means: Float64Array) -> None:
        """Put the means in place of missing numbers."""
        assert not isinstance(cells.numbers, CSRRows)
        missing = np.isnan(cells.numbers)
        if missing.any():
            columns = np.nonzero(missing)[1]
            cells.numbers[missing] = means[columns]
            self._count("filled", len(columns))

    def _bad_rows(self, cells: Cells) -> npt.NDArray[np.bool_]:
        """Which rows cannot be taken."""
        labels, numbers = cells.labels, cells.numbers
        bad = _unlabelled(labels) if isinstance(labels, Words) else ~np.isfinite(labels)
        if isinstance(numbers, CSRRows):
            wrong = np.flatnonzero(~self._fine(numbers.data))
            bad[np.searchsorted(numbers.indptr, wrong, side="right") - 1] = True
        else:
            bad |= ~self._fine(numbers).all(axis=1)
        if self.record is not None and self.record.means is None:
            for words in cells.words:
                bad |= words.codes < 0
        return bad

    def _fine(self, values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Which values float32 can hold, and have a logarithm if that is wanted."""
        fine: npt.NDArray[np.bool_] = np.abs(values) <= _FLOAT32_MAX
        return fine & (values > -1) if self._options.log1p else fine

    def _reason(self, cells: Cells, row: int) -> str:
        """What is wrong with a bad row: one sentence with the file, the row and the column."""
        place = cells.place(row)
        labels = cells.labels
        if _unlabelled(labels)[row]:
            written = ""
            if isinstance(labels, Words) and labels.codes[row] >= 0:
                written = f" ({labels.values[labels.codes[row]]!r})"
            return (
                f"{place}: the label is missing{written}; give --missing-labels drop to leave such "
                f"rows out"
            )
        if not isinstance(labels, Words) and np.isinf(labels[row]):
            return f"{place}: the label is not finite; every row needs a finite one"
        name, value = self._bad_cell(cells, row)
        if np.isnan(value) and self._like is not None:
            reason = (
                f"is missing; convert {self._like.name} with --impute mean, or leave the row out"
            )
        elif np.isnan(value):
            reason = (
                f"is missing; give --impute mean, leave the row out, or the column with --drop "
                f"{name}"
            )
        elif np.isinf(value):
            reason = "is not finite; leave the row out"
        elif abs(value) > _FLOAT32_MAX:
            reason = "is beyond float32 (3.4e38); use another unit"
        else:
            reason = "has no log1p, it is not above -1; leave out --log1p"
        return f"{place}: the value in column {name!r} {reason}"

    def _bad_cell(self, cells: Cells, row: int) -> tuple[str, float]:
        """Column and value of the first bad cell of a row; NaN for a missing category."""
        numbers = cells.numbers
        if isinstance(numbers, CSRRows):
            stored = slice(*numbers.indptr[row : row + 2].tolist())
            values, names = numbers.data[stored], [str(j) for j in numbers.indices[stored]]
        else:
            values, names = numbers[row], self._names
        for place in np.flatnonzero(~self._fine(values)).tolist():
            return names[place], float(values[place])
        columns = zip(self._hot_names, cells.words, strict=True)
        return next(name for name, words in columns if words.codes[row] < 0), np.nan

    def _features(self, cells: Cells) -> CSRRows:
        """Sparse rows: a feature for each column of numbers and for each category."""
        record = self.record
        assert record is not None
        assert not isinstance(cells.numbers, CSRRows)
        # One stored value per column at most: a number, or 1 + the category until it has its place.
        values = np.empty((len(cells), len(record.columns)))
        values[:, record.numbers] = cells.numbers
        for j, lookup, words in zip(record.hot, self._lookups, cells.words, strict=True):
            codes = np.array([lookup.get(word, -1) for word in words.values] + [-1])
            values[:, j] = 1 + codes[words.codes]
            unknown = len(cells) - int(np.count_nonzero(values[:, j]))
            self._count(f"column {record.columns[j]}", unknown)
        rows = CSRRows.from_dense(values)
        if not record.hot:
            return rows
        is_hot = np.isin(np.arange(len(record.columns)), record.hot)[rows.indices]
        starts = record.starts
        places = starts[rows.indices] + np.where(is_hot, rows.data - 1, 0).astype(np.int64)
        data = np.where(is_hot, 1.0, rows.data)
        return CSRRows(data, places.astype(np.int32), rows.indptr, int(starts[-1]))


def _unlabelled(labels: Float64Array | Words) -> npt.NDArray[np.bool_]:
    """Which labels are missing."""
    if not isinstance(labels, Words):
        return np.isnan(labels)
    # Code -1 takes the last of these places.
    missing = np.array([word in MISSING_LABELS for word in labels.values] + [True])
    return missing[labels.codes]
