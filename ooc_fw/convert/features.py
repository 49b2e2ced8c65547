"""Features from the cells of tables; what they need of all rows is learned in the first pass."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_fw.convert import readers
from ooc_fw.convert.encoding import TargetEncoding
from ooc_fw.convert.readers import LabelNumbers, ParsedBlock, ParseOptions, WordCodes, Words
from ooc_fw.convert.record import TableRecord, TrainingFile, find_label
from ooc_fw.convert.tables import Cells, Table, Wanted, listed
from ooc_fw.data.encoded import NO_WORD, Encoding
from ooc_fw.data.labels import (
    MISSING_LABELS,
    feature_places,
    is_label_number,
    plain_word,
)
from ooc_fw.data.rows import (
    AnyArray,
    CSRRows,
    Float64Array,
    Int32Array,
    Int64Array,
    append_columns,
    keep_stored,
    take_columns,
    take_rows,
    values_of,
)
from ooc_fw.data.scaling import Scaling
from ooc_fw.data.statistics import ColumnRanges
from ooc_fw.options import ConvertOptions
from ooc_fw.system.errors import InputError

MAX_CATEGORIES = 4096  # different words; a column with more holds names or numbers

logger = logging.getLogger(__name__)

_TRUTH = {"True": "1", "False": "0"}  # as numbers
_FLOAT32_MAX = float(np.finfo(np.float32).max)


class TableEncoder(readers.Encoder):
    """Makes rows of open tables, by a record, or of one array of sparse rows without.

    A parsed row has a value for each column of the record: a number, NaN if it is to become the
    mean, or 1 + the code of a category. Unless `like` knows categories and means, they are learned
    while rows are parsed, and `end_learning` completes the record; then `features` can be made.
    """

    hint = "give a table with rows in it"

    def __init__(
        self,
        inputs: Sequence[Table],
        record: TableRecord | None,
        options: ConvertOptions,
        parsing: ParseOptions,
        like: TrainingFile | None = None,
        labels: LabelNumbers | None = None,
    ) -> None:
        self.record = record
        self._tables = inputs
        self._options = parsing
        self._like = like
        self._missing_labels = options.missing_labels
        self._targets = options.targets
        self._counts: Counter[str] = Counter()  # of what notes say
        self._codes: list[WordCodes] = []  # of each column of categories
        self._names = inputs[0].feature_names if like is None else like.columns
        self._places: dict[Any, Int64Array | None] = {}  # of features in sparse rows
        self.labels = labels or LabelNumbers()
        if record is None:
            if all(table.feature_names is not None for table in inputs):
                self.columns = self._names
        else:
            self._codes = [
                WordCodes(map(plain_word, words), grows=like is None)
                for words in record.categories
                if words is not None
            ]
            self._sums = np.zeros((2, len(record.numbers)))  # of known numbers, and of missing ones
            if record.encodings:
                self.encoding = TargetEncoding(
                    record.encodings, targets=options.targets, counts=options.target_counts
                )
            if like is not None:
                self._complete(record)
        self._label_of: dict[Any, str | None] = {
            table: self._find_label(table, options.label) if labels else None for table in inputs
        }
        self.labelled = any(self._label_of.values())
        for table in inputs:
            self._choose(table)

    def _find_label(self, table: Table, wanted: str | None) -> str | None:
        """Column of the labels; None if new rows have no labels yet."""
        recorded = None if self.record is None else self.record.label
        name = wanted or table.own_label
        if name is None and recorded in table.kinds:
            name = recorded
        if name is None and self._like is not None:
            return None
        label = find_label(table, name)
        if self._like is not None and self.record is not None and label in self.record.columns:
            raise InputError(
                f"column {label!r} of {table.name} is a feature of {self._like.name}: name the "
                f"column of labels with --label, and look whether a column is missing"
            )
        return label

    def _choose(self, table: Table) -> None:
        """Tell a table which columns are wanted of it."""
        label = self._label_of[table]
        wanted = Wanted(label)
        if self.record is None:
            self._places[table] = feature_places(table.feature_names, self._names, table.name)
        else:
            name = "" if self._like is None else self._like.name
            wanted = self.record.wanted(table, label, self._tables[0].name, name)
        table.choose(replace(wanted, targets=self._targets))

    def parse(self, reader: readers.Reader, block: Any) -> ParsedBlock:  # noqa: D102
        assert isinstance(reader, Table)
        cells = reader.cells(block)
        numbers: Any = cells.numbers
        if (places := self._places.get(reader)) is not None:
            numbers = take_columns(numbers, places)
        dropped = _unlabelled(cells.labels)
        dropped &= self._missing_labels != "refuse"
        wrong = np.flatnonzero(self._bad_rows(cells, numbers) & ~dropped)
        if len(wrong) and not self._options.skip:
            raise InputError(self._reason(cells, numbers, int(wrong[0])))
        skipped = [self._reason(cells, numbers, row) for row in wrong[: readers.EXAMPLES].tolist()]
        labels = cells.labels
        words = cells.words
        dropped[wrong] = True
        taken = np.flatnonzero(~dropped)
        if len(taken) < len(labels):
            labels = labels[taken]
            words = tuple(column[taken] for column in words)
            numbers = take_rows(numbers, taken)
        if isinstance(labels, Words) and self._targets:
            labels = _targets_of(labels)
        counts = Counter(
            {"rows": len(labels), "unlabelled": len(dropped) - len(taken) - len(wrong)}
        )
        rows, sums = self._columns(numbers, words, counts)
        codes = None if self.encoding is None else self._encoded(words, counts)
        width = rows.n_features if self.record is None else 0  # which a record tells
        n_stored = len(rows.data)
        limit = self._options.n_features
        if limit is not None and width > limit:
            rows = keep_stored(rows, rows.indices < limit, limit)
        return ParsedBlock(
            self.labels.of(labels, lambda k: cells.place(int(taken[k]))),
            rows,
            width,
            n_stored - len(rows.data),
            len(cells.skipped) + len(wrong),
            (*cells.skipped, *skipped)[: readers.EXAMPLES],
            codes,
            counts,
            sums,
        )

    def _columns(
        self, numbers: Any, words: Sequence[Words], counts: Counter[str]
    ) -> tuple[CSRRows, Float64Array | None]:
        """Rows with a value for each column; sums of known numbers, and how many are missing."""
        record = self.record
        if record is None:
            return numbers, None
        sums = None
        if record.means is not None:
            sums = np.stack([np.nansum(numbers, axis=0), np.isnan(numbers).sum(axis=0)])
        if not self._codes:
            return CSRRows.from_dense(numbers), sums
        values = np.empty((len(numbers), len(record.columns)))
        values[:, ~record.is_hot] = numbers
        hot = np.flatnonzero(record.is_hot).tolist()
        for j, known, column in zip(hot, self._codes, words, strict=False):
            values[:, j] = 1 + known.of(column)
            if len(known) > MAX_CATEGORIES or len(known.longest) > readers.MAX_NAME:
                raise self._useless_column(
                    record.columns[j],
                    f"has more than {MAX_CATEGORIES} words, or more than {readers.MAX_NAME} "
                    f"letters in one",
                )
            counts[f"column {record.columns[j]}"] = int(np.count_nonzero(values[:, j] == 0))
        return CSRRows.from_dense(values), sums

    def _encoded(self, words: Sequence[Words], counts: Counter[str]) -> Int32Array:
        """Codes of the columns that are target-encoded."""
        assert self.record is not None
        assert self.encoding is not None
        codes = self.encoding.codes_of(words[len(self.record.hot) :])
        for name, column in zip(self.record.encodings, codes.T, strict=True):
            counts[f"column {name}"] = int(np.count_nonzero(column == NO_WORD))
        return codes

    def _useless_column(self, name: str, reason: str) -> InputError:
        names = ", ".join(table.name for table in self._tables)
        return InputError(f"column {name!r} of {names} {reason}; leave it out with --drop {name}")

    def learn(self, block: ParsedBlock) -> None:  # noqa: D102
        self._counts.update(block.counts)
        if block.sums is not None:
            self._sums += block.sums

    def measured(self, rows: CSRRows, scaling: Scaling) -> tuple[CSRRows, CSRRows]:  # noqa: D102
        logs = scaling.log_values(rows.data)
        if scaling.log1p and self.record is not None and self._codes:  # codes have no logarithm
            logs = np.where(self.record.is_hot[rows.indices], rows.data, logs)
        rows = replace(rows, data=logs)
        if self.record is None or self.record.means is None:
            return rows, rows
        return rows, keep_stored(rows, ~np.isnan(logs), rows.n_features)

    def end_learning(self, ranges: ColumnRanges, log: Scaling, n_columns: int) -> Int64Array:  # noqa: D102
        record = self.record
        if record is None:
            return super().end_learning(ranges, log, n_columns)
        is_known = self._like is not None
        if not is_known:
            words = (tuple(sorted(codes.words)) for codes in self._codes)
            categories = tuple(None if one is None else next(words) for one in record.categories)
            record = replace(record, categories=categories)
        if record.means is not None:
            missing = np.zeros(len(record.columns))
            missing[~record.is_hot] = self._sums[1]
            record = record if is_known else replace(record, means=self._means(record))
            ranges.fill(log.log_values(np.array(record.means)), missing)
        if self.encoding is not None and not is_known:
            record = replace(record, encodings=self._fit_encodings(ranges, log))
        elif self.encoding is not None:  # room for features that are known
            n_more = len(record.widths) - len(record.columns)
            ranges.append(len(record.columns), np.ones((1, n_more)), np.array([ranges.n_rows]))
        self._complete(record)
        return record.widths

    def _means(self, record: TableRecord) -> tuple[float, ...]:
        sums, n_missing = self._sums
        n_known = self._counts["rows"] - n_missing
        for name, count in zip(record.numbers, n_known.tolist(), strict=True):
            if count == 0:
                raise self._useless_column(name, "holds no number at all that can be taken")
        means = np.zeros(len(record.columns))
        means[~record.is_hot] = sums / n_known
        return tuple(means.tolist())

    def _fit_encodings(self, ranges: ColumnRanges, log: Scaling) -> dict[str, Encoding]:
        assert self.record is not None
        assert self.encoding is not None
        n_columns = len(self.record.columns)
        encodings = {}
        for name, (encoding, values, rows) in self.encoding.fit(*self.labels.values()).items():
            if not _can_be_taken(values, self._options.log1p).all():
                raise InputError(
                    f"the mean targets of column {name!r} are beyond float32 (3.4e38), or not "
                    f"above -1 as --log1p needs; use another unit, or leave it out"
                )
            ranges.append(n_columns, log.log_values(values), rows)
            n_columns += values.shape[1]
            encodings[name] = encoding
        return encodings

    def _complete(self, record: TableRecord) -> None:
        """Take a record whose categories are known, and find the feature of each code."""
        self.record = record
        self.columns = record.features
        self.table = record.to_json()
        starts = np.cumsum(record.widths) - record.widths
        codes = iter(self._codes)
        features = []  # of the codes of each column
        for start, words in zip(starts.tolist(), record.categories, strict=False):
            order = {plain_word(word): place for place, word in enumerate(words or ())}
            places = [0] if words is None else [order[word] for word in next(codes).words]
            features.append(start + np.array(places, dtype=np.int32))
        self._first_codes = np.cumsum([0, *map(len, features)])[:-1]
        self._feature_of = np.concatenate([*features, np.empty(0)]).astype(np.int32)

    def kept(self, n_columns: int) -> AnyArray | None:  # noqa: D102
        if not self._codes or self.record is None:
            return None
        return np.pad(self.record.is_hot, (0, n_columns - len(self.record.columns)))

    def features(  # noqa: D102
        self, rows: CSRRows, cells: Int32Array | None, scaling: Scaling
    ) -> CSRRows:
        record = self.record
        if record is None:
            return rows
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
        if cells is None or self.encoding is None:
            return rows
        return append_columns(rows, scaling.log_values(self.encoding.values(cells)))

    def column_name(self, column: int) -> str:  # noqa: D102
        names = self.columns if self.record is None else self.record.columns
        return f"column {column if names is None else repr(names[column])}"

    def notes(self) -> Iterator[str]:
        """What a user may not expect, one sentence each; when all is parsed.

        Columns without any category that the `like` file knows are warned of.
        """
        count = self._counts["unlabelled"] + sum(table.n_unlabelled for table in self._tables)
        if count:
            yield f"{count} rows without a label are left out"
        record = self.record
        like = self._like
        if record is None:
            return
        if count := int(self._sums[1].sum()):
            yield f"{count} missing values became the means of their columns"
        other = f", or with one that {like.name} does not have" if like else ""
        for name in (*record.hot, *record.encodings):
            what = "it has its mean" if name in record.encodings else "its features are all 0"
            count = self._counts[f"column {name}"]
            if like is not None and 0 < count == self._counts["rows"]:
                message = "column %r: no row of %d has a category that %s knows; %s in all of them"
                logger.warning(message, name, count, like.name, what)
            elif count:
                yield f"column {name!r}: {count} rows without a category{other}; {what} there"
        first = self._tables[0]
        used = {*self._label_of.values(), *record.columns, *record.encodings, record.label}
        used |= {*(first.proper_columns if like is None else ())}
        names = (name for table in self._tables for name in table.columns)
        if extra := list(dict.fromkeys(name for name in names if name not in used)):
            of = first.name if like is None else like.name
            what = f"columns that {of} does not use, or that number rows,"
            yield f"{what} are left out: {listed(extra)}"

    def _bad_rows(self, cells: Cells, numbers: Any) -> npt.NDArray[np.bool_]:
        """Rows without a label, or with values that cannot be taken."""
        bad = _unlabelled(cells.labels)
        if not isinstance(cells.labels, Words):
            bad |= np.isinf(cells.labels)
        wrong = self._wrong_values(numbers)
        if isinstance(numbers, CSRRows):
            bad[numbers.row_numbers()[wrong]] = True
        else:
            bad |= wrong.any(axis=1)
        if self.record is not None and self.record.means is None:
            for words in cells.words[: len(self.record.hot)]:
                bad |= words.codes < 0
        return bad

    def _wrong_values(self, numbers: Any) -> AnyArray:
        """Which values cannot be taken."""
        values = values_of(numbers)
        wrong = ~_can_be_taken(values, self._options.log1p)
        if self.record is not None and self.record.means is not None:
            wrong &= ~np.isnan(values)
        return wrong

    def _reason(self, cells: Cells, numbers: Any, row: int) -> str:
        """What is wrong with a bad row: one sentence with the file, the row and the column."""
        place = cells.place(row)
        labels = cells.labels
        record = self.record
        if _unlabelled(labels)[row]:
            way = "leave such rows out (convert --missing-labels drop)"
            return f"{place}: the label is missing; {way}"
        if not isinstance(labels, Words) and np.isinf(labels[row]):
            return f"{place}: the label is not finite; every row needs a finite one"
        one = numbers[row : row + 1]
        value = np.nan
        name = ""
        for k in np.flatnonzero(self._wrong_values(one))[:1].tolist():
            value = float(values_of(one).ravel()[k])
            column = int(one.indices[k]) if isinstance(one, CSRRows) else k
            name = str(column) if record is None else record.numbers[column]
        if not name and record is not None:
            hot = zip(record.hot, cells.words, strict=False)
            name = next(name for name, words in hot if words.codes[row] < 0)
        way = "delete the row"
        if np.isnan(value):
            reason = "is missing"
            way = f"give --impute mean, delete the row, or --drop {name}"
        elif record is not None and name in record.dates:
            reason = "is no date such as 2024-05-17 or 2024-05-17T08:30"
        elif np.isinf(value):
            reason = "is not finite"
        elif abs(value) > _FLOAT32_MAX:
            reason = "is beyond float32 (3.4e38)"
        else:
            reason = "has no log1p, it is not above -1"
        if self._like is not None:
            way = f"correct or delete the row, as {self._like.name} takes no such values"
        return f"{place}: the value in column {name!r} {reason}; {way}"


def _can_be_taken(values: AnyArray, log1p: bool) -> npt.NDArray[np.bool_]:
    """Which values float32 can hold, and have a logarithm if that is wanted."""
    fine: npt.NDArray[np.bool_] = np.abs(values) <= _FLOAT32_MAX
    return fine & (values > -1) if log1p else fine


def _unlabelled(labels: Float64Array | Words) -> AnyArray:
    """Which labels are missing."""
    if not isinstance(labels, Words):
        return np.isnan(labels)
    # Code -1 takes the last of these places.
    missing = np.array([word in MISSING_LABELS for word in labels.values] + [True])
    return missing[labels.codes]


def _targets_of(labels: Words) -> Float64Array:
    words = [_TRUTH.get(word, word) for word in labels.values]
    for word in words:
        if not is_label_number(word):
            raise InputError(
                f"the label {word!r} is no number, and the targets of a regression are numbers; "
                f"name another column with --label"
            )
    return np.array([float(word) for word in words])[labels.codes]
