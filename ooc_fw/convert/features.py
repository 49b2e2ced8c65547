"""Features from the cells of tables; what they need of all rows is learned in the first pass.

For target encoding, labels of categories are added up in that pass. What becomes of the sums is in
`ooc_fw.data.encoded`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import compress
from typing import Any

import numpy as np

from ooc_fw.convert.readers import (
    EXAMPLES,
    Encoder,
    LabelNumbers,
    ParsedBlock,
    ParseOptions,
    Reader,
    WordCodes,
    Words,
    are_wrong,
)
from ooc_fw.convert.tables import (
    Cells,
    Table,
    TableRecord,
    TrainingFile,
    find_label,
    listed,
)
from ooc_fw.data.encoded import FOLDS, NO_WORD, Encoding, add_labels, encode
from ooc_fw.data.labels import MISSING_LABELS, plain_word
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
from ooc_fw.system.errors import InputError

MAX_CATEGORIES = 4096  # different words of a column of --one-hot; one with more holds names
MAX_CELLS = 1 << 25  # words x folds x classes of a column of --target-encode, of 8 bytes

logger = logging.getLogger(__name__)


class TableEncoder(Encoder):
    """Makes rows of open tables, by a record.

    A parsed row has a value for each column of the record: a number, NaN if it is to become the
    mean, or 1 + the code of a category. Unless `like` knows categories and means, they are learned
    while rows are parsed, and `end_learning` completes the record; then `features` can be made.
    """

    hint = "give a table with rows in it"

    def __init__(
        self,
        inputs: Sequence[Table],
        record: TableRecord,
        options: ConvertOptions,
        parsing: ParseOptions,
        like: TrainingFile | None = None,
        labels: LabelNumbers | None = None,
    ) -> None:
        self.labels = labels or LabelNumbers()
        self._record = record
        self._tables = inputs
        self._options = parsing
        self._like = like
        self._drops_unlabelled = options.missing_labels != "refuse"
        self._counts: Counter[str] = Counter()  # of what notes say
        self._codes: list[WordCodes] = []  # of each column of categories
        self._encoding: TargetEncoding | None = None
        self._sums = np.zeros((2, len(record.numbers)))  # of known numbers, and of missing ones
        learns = like is None
        for name, words in zip(record.columns, record.categories, strict=True):
            if words is not None:
                what = f"column {name!r} of {inputs[0].name}"
                known = map(plain_word, words)
                self._codes.append(WordCodes(known, learns, MAX_CATEGORIES, what))
        if record.encodings:
            self._encoding = TargetEncoding(record.encodings, options, learns=learns)
            self.n_encoded = len(record.encodings) if learns else 0
        if not learns:
            self._complete(record)
        self._labels = {table: self._label(table, options) if labels else None for table in inputs}
        self.labelled = any(self._labels.values())
        for table, label in self._labels.items():
            of = "" if like is None else like.name
            table.choose(record.wanted(table, label, of, targets=options.targets))

    def _label(self, table: Table, options: ConvertOptions) -> str | None:
        """Column of the labels; None if new rows have no labels yet."""
        name = options.label
        if name is None and self._record.label in table.kinds:
            name = self._record.label
        return None if name is None and self._like is not None else find_label(table, name)

    def parse(self, reader: Reader, block: Any) -> ParsedBlock:  # noqa: D102
        assert isinstance(reader, Table)
        cells = reader.cells(block)
        unlabelled = _unlabelled(cells.labels)
        dropped = unlabelled & self._drops_unlabelled
        wrong = np.flatnonzero((unlabelled | self._bad_rows(cells)) & ~dropped)
        reasons = [self._reason(cells, row) for row in wrong[:EXAMPLES].tolist()]
        if reasons and not self._options.skip:
            raise InputError(reasons[0])
        n_skipped = len(cells.skipped) + len(wrong)
        skipped = (*cells.skipped, *reasons)[:EXAMPLES]
        counts = Counter(unlabelled=int(np.count_nonzero(dropped)))
        dropped[wrong] = True
        if dropped.any():
            cells = cells.take(np.flatnonzero(~dropped))
        counts["rows"] = len(cells.labels)
        sums = None
        if self._record.means is not None:
            missing = np.isnan(cells.numbers)
            sums = np.stack([np.nansum(cells.numbers, axis=0), missing.sum(axis=0)])
        rows = self._columns(cells, counts)
        labels = self.labels.of(cells.labels, cells.place)
        words = cells.words[len(self._codes) :]
        return ParsedBlock(labels, rows, 0, 0, n_skipped, skipped, words, counts, sums)

    def _columns(self, cells: Cells, counts: Counter[str]) -> CSRRows:
        """Rows with a value for each column."""
        record = self._record
        if not self._codes:
            return CSRRows.from_dense(cells.numbers)
        values = np.empty((len(cells.numbers), len(record.columns)))
        values[:, ~record.is_hot] = cells.numbers
        places = np.flatnonzero(record.is_hot).tolist()
        for j, known, column in zip(places, self._codes, cells.words, strict=False):
            values[:, j] = 1 + known.of(column)
            counts[record.columns[j]] = int(np.count_nonzero(values[:, j] == 0))
        return CSRRows.from_dense(values)

    def learn(self, block: ParsedBlock, keys: AnyArray | None) -> Int32Array | None:  # noqa: D102
        self._counts.update(block.counts)
        if block.sums is not None:
            self._sums += block.sums
        if self._encoding is None:
            return None
        codes = self._encoding.codes_of(block.words)
        for name, column in zip(self._record.encodings, codes.T, strict=True):
            self._counts[name] += int(np.count_nonzero(column == NO_WORD))
        return codes if keys is None else self._encoding.add(block.labels, codes, keys)

    def measured(self, rows: CSRRows, scaling: Scaling) -> tuple[CSRRows, CSRRows]:  # noqa: D102
        logs = scaling.log_values(rows.data)
        if scaling.log1p and self._codes:  # codes have no logarithm
            logs = np.where(self._record.is_hot[rows.indices], rows.data, logs)
        rows = replace(rows, data=logs)
        if self._record.means is None:
            return rows, rows
        return rows, keep_stored(rows, ~np.isnan(logs), rows.n_features)

    def end_learning(self, ranges: ColumnRanges, log: Scaling, n_columns: int) -> Int64Array:  # noqa: D102
        record = self._record
        if self._like is None:
            words = (tuple(sorted(codes.words)) for codes in self._codes)
            categories = tuple(None if one is None else next(words) for one in record.categories)
            means = None if record.means is None else self._means(record)
            record = replace(record, categories=categories, means=means)
        if record.means is not None:
            missing = np.zeros(len(record.columns))
            missing[~record.is_hot] = self._sums[1]
            ranges.fill(log.log_values(np.array(record.means)), missing)
        n_columns = len(record.columns)
        if self._encoding is not None and self._like is None:
            encodings = {}
            for name, (encoding, values, rows) in self._encoding.fit(self.labels).items():
                with np.errstate(invalid="ignore", divide="ignore"):
                    logs = log.log_values(values)
                if not (np.abs(logs) <= np.finfo(np.float32).max).all():
                    raise InputError(
                        f"the mean targets of column {name!r} are beyond float32 (3.4e38), or not "
                        f"above -1 as --log1p needs; use another unit, or leave it out"
                    )
                ranges.append(n_columns, logs, rows)
                n_columns += values.shape[1]
                encodings[name] = encoding
            record = replace(record, encodings=encodings)
        elif self._encoding is not None:  # room for features that are known
            n_more = len(record.widths) - n_columns
            ranges.append(n_columns, np.ones((1, n_more)), np.array([ranges.n_rows]))
        self._complete(record)
        return record.widths

    def _means(self, record: TableRecord) -> tuple[float, ...]:
        sums, n_missing = self._sums
        n_known = self._counts["rows"] - n_missing
        if not n_known.all():
            name = record.numbers[int(n_known.argmin())]
            raise InputError(
                f"column {name!r} of {self._tables[0].name} holds no number at all that can be "
                f"taken; leave it out with --drop {name}"
            )
        means = np.zeros(len(record.columns))
        means[~record.is_hot] = sums / n_known
        return tuple(means.tolist())

    def _complete(self, record: TableRecord) -> None:
        """Take a record whose categories are known, and find the feature of each code."""
        self._record = record
        self.columns = [name for name, _ in record.columns_of_features]
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
        if not self._codes:
            return None
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

    def notes(self) -> Iterator[str]:
        """What a user may not expect, one sentence each; when all is parsed.

        Columns without any category that the `like` file knows are warned of.
        """
        record = self._record
        if count := self._counts["unlabelled"]:
            yield f"{count} rows without a label are left out"
        if count := int(self._sums[1].sum()):
            yield f"{count} missing values became the means of their columns"
        of = self._tables[0].name if self._like is None else self._like.name
        for name in (*record.hot, *record.encodings):
            count = self._counts[name]
            what = "it has its mean" if name in record.encodings else "its features are all 0"
            said = f"column {name!r}: {count} rows without a category that {of} knows; {what} there"
            if self._like is not None and 0 < count == self._counts["rows"]:
                logger.warning("%s, and no other row is there", said)
            elif count:
                yield said
        used = {*self._labels.values(), *record.columns, *record.encodings, record.label}
        used |= {*(self._tables[0].proper_columns if self._like is None else ())}
        names = (name for table in self._tables for name in table.kinds if name not in used)
        if extra := list(dict.fromkeys(names)):
            what = f"columns that {of} does not use, or that number rows,"
            yield f"{what} are left out: {listed(extra)}"

    def _bad_rows(self, cells: Cells) -> Any:
        """Rows with values that cannot be taken."""
        bad = self._wrong_values(cells.numbers).any(axis=1)
        if not isinstance(cells.labels, Words):
            bad |= np.isinf(cells.labels)
        if self._record.means is None:
            for words in cells.words[: len(self._codes)]:
                bad |= words.codes < 0
        return bad

    def _wrong_values(self, numbers: Float64Array) -> AnyArray:
        wrong = are_wrong(numbers, self._options.log1p)
        return wrong if self._record.means is None else wrong & ~np.isnan(numbers)

    def _reason(self, cells: Cells, row: int) -> str:
        """What is wrong with a bad row: one sentence with the file, the row and the column."""
        place = cells.place(row)
        record = self._record
        if _unlabelled(cells.labels)[row]:
            return f"{place}: the label is missing; leave it out (convert --missing-labels drop)"
        hot = zip(record.hot, cells.words, strict=False)
        names = [*compress(record.numbers, self._wrong_values(cells.numbers[row]))]
        names += [name for name, words in hot if words.codes[row] < 0] + [record.label]
        values = dict(zip(record.numbers, cells.numbers[row], strict=True))
        value = (values | {record.label: np.inf}).get(names[0], np.nan)
        way = "delete the row"
        reason = f"is {value:g}: not finite, beyond float32 (3.4e38), or without log1p"
        if np.isnan(value):
            reason = "is missing"
            way = f"give --impute mean, delete the row, or --drop {names[0]}"
        elif names[0] in record.dates:
            reason = "is no date such as 2024-05-17 or 2024-05-17T08:30"
        if self._like is not None:
            way = f"correct or delete the row, as {self._like.name} takes no such values"
        return f"{place}: the value in column {names[0]!r} {reason}; {way}"


def _unlabelled(labels: Float64Array | Words) -> AnyArray:
    """Which labels are missing."""
    if not isinstance(labels, Words):
        return np.isnan(labels)
    # Code -1 takes the last of these places.
    missing = np.array([word in MISSING_LABELS for word in labels.values] + [True])
    return missing[labels.codes]


class TargetEncoding:
    """Codes of categories in some columns, and the features that they become.

    For K classes, a column has the share of each class but the first; for targets of a regression,
    their mean. With counts, another feature is the logarithm of 1 + the rows of the category.
    Labels of rows are added block by block, unless the features of the `columns` are known.
    """

    def __init__(
        self, columns: Mapping[str, Encoding], options: ConvertOptions, *, learns: bool
    ) -> None:
        self._targets = options.targets
        self._counts = options.target_counts
        # Of each column: codes of its words, where that of NO_WORD, the empty one, is 0;
        self._codes: dict[str, WordCodes] = {}
        # for each code x FOLDS + fold rows of each class, or of targets, rows and their sum;
        self._sums = {name: np.zeros((FOLDS, 2)) for name in columns}
        # and features of each code, or of each code x FOLDS + fold.
        self._values: dict[str, Float64Array] = {}
        for name, encoding in columns.items():
            words = ["", *map(plain_word, encoding["words"])]
            self._codes[name] = WordCodes(words, learns, 1 << 20, f"column {name!r}")
            values = np.array([*encoding["features"].values()])
            self._values[name] = np.roll(values.T, 1, axis=0)  # those of NO_WORD come first

    def codes_of(self, words: Sequence[Words]) -> Int32Array:
        """Code of each row's category in each column, shape (n_rows, n_columns)."""
        pairs = zip(self._codes.values(), words, strict=True)
        codes = np.column_stack([known.of(column) for known, column in pairs])
        return np.maximum(codes, NO_WORD).astype(np.int32)

    def add(self, labels: Float64Array, codes: Int32Array, keys: AnyArray) -> Int32Array:
        """Add the labels of rows, targets or codes; returns a cell for each row and column.

        Random `keys`, uint64, put rows into folds.
        """
        cells = codes * np.int32(FOLDS) + (keys % np.uint64(FOLDS)).astype(np.int32)[:, None]
        places: AnyArray = labels if self._targets else labels.astype(np.int64)
        n_sums = 2 if self._targets else int(labels.max(initial=0)) + 1
        for name, column in zip(self._sums, cells.T, strict=True):
            sums = self._room(name, int(column.max(initial=0)) + 1, n_sums)
            add_labels(sums, column, places, targets=self._targets)
        return cells

    def _room(self, name: str, n_cells: int, n_sums: int) -> Float64Array:
        """Sums of a column with room for so many cells, and for all classes."""
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

    def fit(self, labels: LabelNumbers) -> dict[str, tuple[Encoding, Float64Array, Float64Array]]:
        """Of each column its encoding, the values of training rows, and the rows that have each."""
        # Features are not called as their columns, whose categories may be numbers.
        ends = [".mean"]
        order = [0, 1]
        if not self._targets:
            values, _ = labels.values()
            order = [] if values is None else np.argsort(values).tolist()
            if len(order) > 2:
                ends = [f"={labels.words[code]}" for code in order[1:]] if labels.words else []
        if len(order) < 2:
            raise InputError(
                "--target-encode needs rows of two classes, or --task regression; leave it out"
            )
        found = {}
        for name, known in self._codes.items():
            words = known.words
            n_cells = FOLDS * len(words)
            sums = self._room(name, n_cells, len(order))[:n_cells, order]
            sums = sums.reshape(len(words), FOLDS, -1)
            of_others, of_all, rows = encode(sums, targets=self._targets, counts=self._counts)
            names = [name + end for end in ends] + [f"{name}.count"] * self._counts
            self._values[name] = of_others.reshape(-1, len(names))
            table = np.roll(of_all, -1, axis=0).T.tolist()  # NO_WORD comes last
            features = dict(zip(names, table, strict=True))
            encoding: Encoding = {"words": words[1:], "features": features}
            found[name] = encoding, self._values[name], rows.reshape(-1)
        return found

    def values(self, places: Int32Array) -> Float64Array:
        """Features, shape (n_rows, n_features), of codes, or of cells that `add` returned."""
        pairs = zip(self._values.values(), places.T, strict=True)
        return np.hstack([values[column] for values, column in pairs])
