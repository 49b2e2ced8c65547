"""Features from the cells of tables; the first reading learns categories and means from all rows.

For target encoding, that reading also adds up the labels for each category. `ooc_fw.data.encoded`
turns these sums into features.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from ooc_fw.conversion import readers
from ooc_fw.conversion.readers import Encoder, LabelNumbers, ParsedBlock, WordCodes, Words
from ooc_fw.conversion.tables import WORDS, Table, TableRecord, TrainingFile, plain_word
from ooc_fw.data.encoded import FOLDS, NO_WORD, Encoding, add_labels, encode
from ooc_fw.data.labels import MISSING_LABELS
from ooc_fw.data.rows import (
    AnyArray,
    CSRRows,
    Float64Array,
    Int32Array,
    Int64Array,
    append_columns,
    keep_stored,
)
from ooc_fw.data.scaling import Scaling
from ooc_fw.data.statistics import ColumnRanges
from ooc_fw.options import ConvertOptions
from ooc_fw.system.errors import InputError, format_label, format_words

MAX_CATEGORIES = 4096  # most words in a column of --one-hot; with more it probably holds names
MAX_CELLS = 1 << 25  # most words x folds x classes for a column of --target-encode, 8 bytes each


class TableEncoder(Encoder):
    """Makes rows from open tables, by a record.

    A parsed row has a value for each column of the record: a number, NaN if it will become the
    mean, or 1 + the code of a category. Without `like`, categories and means are learned while rows
    are parsed, and `end_learning` completes the record. After that, `features` makes features.
    """

    def __init__(
        self,
        inputs: Sequence[Table],
        record: TableRecord,
        options: ConvertOptions,
        like: TrainingFile | None = None,
        labels: LabelNumbers | None = None,
    ) -> None:
        self.labels = labels or LabelNumbers()
        self._options = options
        self._log1p = options.log1p if like is None else like.scaling.log1p
        self._learns = like is None
        self._name = inputs[0].name if like is None else like.name  # the origin of categories
        self._n_rows = 0
        self._sums = np.zeros((2, len(record.columns)))  # sums of numbers, and counts of missing
        self._codes: dict[str, WordCodes] = {}  # codes for each column of categories
        for name, words in zip(record.columns, record.categories, strict=True):
            if words is not None:
                what = f"column {name!r} of {self._name}"
                plain = map(plain_word, words)
                self._codes[name] = WordCodes(plain, self._learns, MAX_CATEGORIES, what)
        self._encoding: TargetEncoding | None = None
        if record.encodings:
            self._encoding = TargetEncoding(
                record.encodings, targets=options.targets, learns=self._learns
            )
            self.n_encoded = len(record.encodings) if self._learns else 0
        self._take(record)
        self._label_of: dict[Table, str | None] = {}
        of = "the first table" if like is None else like.name
        for table in inputs:
            label = None
            if labels is not None:  # later rows may have no labels
                label = options.label or (record.label if record.label in table.kinds else None)
            self._label_of[table] = label
            if like is None and (more := {*table.kinds} - {*inputs[0].kinds}):
                raise InputError(
                    f"{table.name} has column {format_words(sorted(more))}, which {inputs[0].name} "
                    f"lacks; name this file first, with --drop for what the others lack"
                )
            table.wanted = record.wanted(table, label, of, options)
            if label is not None and table.kinds[label] == WORDS:
                self.labels.keep_words()
        self.labelled = all(self._label_of.values())  # else there are no labels

    def parse(self, reader: readers.Reader, block: Any) -> ParsedBlock:  # noqa: D102
        assert isinstance(reader, Table)
        columns, place = reader.cells(block)
        record = self._record
        n_rows = len(next(iter(columns.values())))
        label = self._label_of[reader]
        labels = np.zeros(n_rows) if label is None else columns[label]
        unlabelled = _are_missing(labels)
        kept = np.flatnonzero(~unlabelled)
        if len(kept) < n_rows:
            if self._options.missing_labels == "refuse":
                raise InputError(
                    f"{place(int(unlabelled.argmax()))}: the label is missing or infinite; leave "
                    f"it out (--missing-labels drop)"
                )
            columns = {name: column[kept] for name, column in columns.items()}
            labels = labels[kept]
        weights = columns.get(self._options.weight or "")
        if weights is not None:
            assert isinstance(weights, np.ndarray)
            for row in np.flatnonzero(~((weights >= 0) & np.isfinite(weights)))[:1].tolist():
                raise InputError(
                    f"{place(int(kept[row]))}: the weight is {weights[row]:g}, and weights are "
                    f"numbers of at least 0; correct it, or delete the row"
                )
        values = np.empty((len(kept), len(record.columns)))
        for j, name in enumerate(record.columns):
            column = columns[name]
            if isinstance(column, Words):
                values[:, j] = 1 + self._codes[name].of(column)
                column = np.where((column.codes < 0) & (record.means is None), np.nan, values[:, j])
            values[:, j] = column
        wrong = readers.are_wrong(values, self._log1p)
        sums = None
        if record.means is not None:
            missing = np.isnan(values)
            wrong &= ~missing
            sums = np.stack([np.nansum(values, axis=0), missing.sum(axis=0)])
        for row, j in np.argwhere(wrong)[:1].tolist():
            name = record.columns[j]
            what = f"{readers.fault_of(values[row, j])}; correct or delete the row"
            if name in record.dates and np.isinf(values[row, j]):
                what = "not a date; correct or delete the row"
            if np.isnan(values[row, j]) and self._learns:
                what = f"missing; convert with --impute mean or --drop {name}, or delete the row"
            elif np.isnan(values[row, j]):
                what = f"missing, and {self._name} was converted without --impute mean; leave "
                what += "such rows out, or train on a file that was converted with it"
            raise InputError(f"{place(int(kept[row]))}: the value in column {name!r} is {what}")
        # Compiled code needs a writable array.
        numbers = np.require(self.labels.of(labels), requirements="W")
        words = [columns[name] for name in record.encodings]
        rows = CSRRows.from_dense(values)
        return ParsedBlock(numbers, rows, 0, words, n_rows - len(kept), weights, sums, kept)

    def learn(self, block: ParsedBlock, keys: AnyArray | None) -> Int32Array | None:  # noqa: D102
        super().learn(block, keys)
        self._n_rows += len(block.rows)
        if block.sums is not None:
            self._sums += block.sums
        if self._encoding is None:
            return None
        codes = self._encoding.codes_of(block.words)
        return codes if keys is None else self._encoding.add(block.labels, codes, keys)

    def measured(self, rows: CSRRows, scaling: Scaling) -> tuple[CSRRows, CSRRows]:  # noqa: D102
        logs = scaling.log_values(rows.data)
        if scaling.log1p and self._codes:  # codes have no logarithm
            logs = np.where(self._record.is_hot[rows.indices], rows.data, logs)
        rows = replace(rows, data=logs)
        return rows, keep_stored(rows, ~np.isnan(logs), rows.n_features)

    def end_learning(self, ranges: ColumnRanges, log: Scaling, n_columns: int) -> Int64Array:  # noqa: D102
        record = self._record
        if self._learns:
            words = {name: sorted(codes.words) for name, codes in self._codes.items()}
            categories = [words.get(name) for name in record.columns]
            record = replace(record, categories=categories)
        if self._learns and record.means is not None:
            n_known = self._n_rows - self._sums[1]
            for j in np.flatnonzero(n_known == 0)[:1].tolist():
                raise InputError(
                    f"column {record.columns[j]!r} of {self._name} holds no number at all; leave "
                    f"it out with --drop {record.columns[j]}"
                )
            means = np.where(record.is_hot, 0.0, self._sums[0] / n_known).tolist()
            record = replace(record, means=means)
        if record.means is not None:
            ranges.fill(log.log_values(np.array(record.means)), self._sums[1])
        n_columns = len(record.columns)
        if self._encoding is not None and self._learns:
            encodings = self._encoding.fit(self.labels, ranges, log, n_columns)
            record = replace(record, encodings=encodings)
        elif self._encoding is not None:  # count the features, which are known from `like`
            n_more = len(record.widths) - n_columns
            ranges.append(n_columns, np.ones((1, n_more)), np.array([ranges.n_rows]))
        self._take(record)
        return record.widths

    def _take(self, record: TableRecord) -> None:
        """Set the record, and find the feature for each code of its words."""
        self._record = record
        self.columns = [name for name, _ in record.columns_of_features]
        self.table = json.dumps(asdict(record))
        starts = np.cumsum(record.widths) - record.widths
        features = []  # for each column, the features of its codes
        for start, name, words in zip(starts, record.columns, record.categories, strict=False):
            order = {plain_word(word): place for place, word in enumerate(words or ())}
            codes = [0] if words is None else [order[word] for word in self._codes[name].words]
            features.append(start + np.array(codes, dtype=np.int32))
        self._first_codes = np.cumsum([0, *map(len, features)])[:-1]
        self._feature_of = np.concatenate([*features, np.empty(0)]).astype(np.int32)

    def kept(self, n_columns: int) -> AnyArray | None:  # noqa: D102
        return np.pad(self._record.is_hot, (0, n_columns - len(self._record.columns)))

    def features(  # noqa: D102
        self, rows: CSRRows, cells: Int32Array | None, scaling: Scaling
    ) -> CSRRows:
        record = self._record
        data = rows.data
        indices = rows.indices
        if record.means is not None:
            means = scaling.log_values(np.array(record.means))
            data = np.where(np.isnan(data), means[indices], data)
        if self._codes:
            is_hot = record.is_hot[indices]
            codes = self._first_codes[indices] + np.where(is_hot, data - 1, 0).astype(np.int64)
            indices = self._feature_of[codes]
            data = np.where(is_hot, scaling.log_values(np.ones(1)), data)
        rows = CSRRows(data, indices, rows.indptr, int(record.widths[: len(record.columns)].sum()))
        if cells is None or self._encoding is None:
            return rows
        return append_columns(rows, scaling.log_values(self._encoding.values(cells)))

    def column_name(self, column: int) -> str:  # noqa: D102
        return f"column {self._record.columns[column]!r}"

    def notes(self) -> Iterator[str]:  # noqa: D102
        yield from super().notes()
        for table in self._label_of:
            n_columns = len(table.kinds)
            width = self._record.width
            if width not in (None, n_columns) and not table.header:
                yield f"{table.name} has {n_columns} columns, taken for the first of {width}"
        if count := int(self._sums[1].sum()):
            yield f"{count} missing values became the means of their columns"
        for name, codes in self._words.items():
            if count := self._n_rows - codes.n_rows:
                yield f"column {name!r}: {count} rows have no category; {self._without(name)}"
        yield from self.unknown()

    @property
    def _words(self) -> dict[str, WordCodes]:
        """Codes of the words of all columns of categories."""
        return self._codes | ({} if self._encoding is None else self._encoding.codes)

    def _without(self, name: str) -> str:
        what = "it has its mean" if name in self._record.encodings else "its features are all 0"
        return f"{what} there"

    def unknown(self) -> Iterator[str]:
        """Yield a sentence for each column with categories that the training rows lack.

        InputError is raised for a column without a known category in any of its rows. A single row
        may have a new category.
        """
        for name, codes in self._words.items():
            if not codes.n_unknown:
                continue
            what = f"{self._name} lacks ({format_words(sorted(codes.unknown))})"
            if 1 < codes.n_rows == codes.n_unknown:
                raise InputError(
                    f"column {name!r}: all {codes.n_rows} rows have categories that {what}; see "
                    f"whether columns are swapped, or train with these categories"
                )
            yield (
                f"column {name!r}: {codes.n_unknown} of {self._n_rows} rows have a category that "
                f"{what}; {self._without(name)}"
            )


def _are_missing(labels: Float64Array | Words) -> AnyArray:
    """Which labels are missing or infinite."""
    if not isinstance(labels, Words):
        return ~np.isfinite(labels)
    # Code -1 takes the last of these places.
    missing = np.array([word in MISSING_LABELS for word in labels.values] + [True])
    return missing[labels.codes]


class TargetEncoding:
    """Codes of the categories in some columns, and their target-encoded features.

    With classes, the features of a column are the shares of all classes except the first. With
    targets of a regression, the feature is their mean. The labels are added up block by block if
    the object `learns`; if not, `columns` already holds the features.
    """

    def __init__(self, columns: Mapping[str, Encoding], *, targets: bool, learns: bool) -> None:
        self._targets = targets
        # Codes of the words in each column; the empty word has the code NO_WORD.
        self.codes = {
            name: WordCodes(
                ["", *map(plain_word, one["words"])], learns, 1 << 20, f"column {name!r}"
            )
            for name, one in columns.items()
        }
        # For each code x FOLDS + fold: rows in each class, or the number and sum of targets.
        self._sums = {name: np.zeros((FOLDS, 2)) for name in columns}
        # Features for each code, or for each code x FOLDS + fold. A record has NO_WORD at the end.
        self._values = {
            name: np.roll(np.array([*one["features"].values()]).T, 1, axis=0)
            for name, one in columns.items()
        }

    def codes_of(self, words: Sequence[Words]) -> Int32Array:
        """Code of each row's category in each column, shape (n_rows, n_columns)."""
        pairs = zip(self.codes.values(), words, strict=True)
        codes = np.column_stack([known.of(column) for known, column in pairs])
        return np.maximum(codes, NO_WORD).astype(np.int32)

    def add(self, labels: Float64Array, codes: Int32Array, keys: AnyArray) -> Int32Array:
        """Add the labels of rows (targets or codes); return a cell for each row and column.

        Random `keys`, uint64, distribute rows over the folds.
        """
        cells = codes * np.int32(FOLDS) + (keys % np.uint64(FOLDS)).astype(np.int32)[:, None]
        places: AnyArray = labels if self._targets else labels.astype(np.int64)
        n_sums = 2 if self._targets else int(labels.max(initial=0)) + 1
        for name, column in zip(self._sums, cells.T, strict=True):
            sums = self._room(name, int(column.max(initial=0)) + 1, n_sums)
            add_labels(sums, column, places, targets=self._targets)
        return cells

    def _room(self, name: str, n_cells: int, n_sums: int) -> Float64Array:
        """Sums of a column, with room for `n_cells` cells of `n_sums` sums, or more."""
        sums = self._sums[name]
        more = max(n_cells, 2 * len(sums)) - len(sums) if n_cells > len(sums) else 0
        wider = max(0, n_sums - sums.shape[1])
        if (len(sums) + more) * (sums.shape[1] + wider) > MAX_CELLS:
            raise InputError(
                f"column {name!r} has too many words for --target-encode, which takes "
                f"{MAX_CELLS // FOLDS // 2} words x classes; leave it out with --drop {name}"
            )
        if more or wider:
            self._sums[name] = np.pad(sums, ((0, more), (0, wider)))
        return self._sums[name]

    def fit(
        self, labels: LabelNumbers, ranges: ColumnRanges, log: Scaling, n_columns: int
    ) -> dict[str, Encoding]:
        """Find the encoding of each column, and append its features to the ranges of columns."""
        # Features have other names than their columns, whose categories may be numbers, too.
        ends = [".mean"]
        n_sums = 2
        classes = np.arange(n_sums)  # the class for each code
        values, names = labels.values()
        if not self._targets and values is not None:
            n_sums = len(values)
            different, classes = np.unique(values, return_inverse=True)
            if len(different) > 2:
                ends = [f"={name}" for name in (names or map(format_label, different.tolist()))][1:]
        n_classes = int(classes.max(initial=-1)) + 1
        if n_classes < 2:
            raise InputError(
                "--target-encode needs rows of two classes, or --task regression; leave it out"
            )
        found: dict[str, Encoding] = {}
        for name, known in self.codes.items():
            words = known.words
            n_cells = FOLDS * len(words)
            merged = np.zeros((n_cells, n_classes))
            np.add.at(merged.T, classes, self._room(name, n_cells, n_sums)[:n_cells, :n_sums].T)
            sums = merged.reshape(len(words), FOLDS, n_classes)
            of_others, of_all, rows = encode(sums, targets=self._targets)
            self._values[name] = of_others.reshape(n_cells, len(ends))
            if readers.are_wrong(self._values[name], log.log1p).any():
                raise InputError(
                    f"the mean targets of column {name!r} are beyond float32 (3.4e38), or too low "
                    f"for log1p; use another unit, or leave it out"
                )
            ranges.append(n_columns, log.log_values(self._values[name]), rows.reshape(-1))
            n_columns += len(ends)
            table = np.roll(of_all, -1, axis=0).T.tolist()
            features = dict(zip([name + end for end in ends], table, strict=True))
            found[name] = {"words": words[1:], "features": features}
        return found

    def values(self, places: Int32Array) -> Float64Array:
        """Features, shape (n_rows, n_features), for codes or for cells from `add`."""
        pairs = zip(self._values.values(), places.T, strict=True)
        return np.hstack([values[column] for values, column in pairs])
