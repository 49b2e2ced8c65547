"""How the columns of a table become features: chosen, learned in the first pass, recorded, applied.

By the record, a test file gets the features of its training file.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_fw.convert import readers
from ooc_fw.convert.encoding import TargetEncoding
from ooc_fw.convert.like import TrainingFile
from ooc_fw.convert.readers import LabelNumbers, ParsedBlock, ParseOptions, WordCodes, Words
from ooc_fw.convert.tables import (
    BOOLEANS,
    NULLS,
    NUMBERS,
    TEXT,
    USABLE,
    WORDS,
    Cells,
    Table,
    Wanted,
    listed,
    may_be_dates,
)
from ooc_fw.data.encoded import NO_WORD, Encoding
from ooc_fw.data.labels import (
    MISSING_LABELS,
    are_label,
    are_numbers,
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
from ooc_fw.system.errors import DamageError, InputError

MAX_CATEGORIES = 4096  # different words; a column with more holds names or numbers

logger = logging.getLogger(__name__)

_TRUTH = {"True": "1", "False": "0"}  # as numbers
_FLOAT32_MAX = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class TableRecord:
    """How the columns of a table become features."""

    label: str  # column of the labels
    columns: tuple[str, ...]  # columns that are used, in order
    # Categories of each column, sorted; None for a column of numbers.
    categories: tuple[tuple[str, ...] | None, ...]
    # What a missing number of each column becomes (0 for categories); None when it is an error.
    means: tuple[float, ...] | None = None
    header: bool = True  # whether the columns had names of their own
    dates: tuple[str, ...] = ()  # columns of dates, the last of those of numbers
    encodings: Mapping[str, Encoding] = field(default_factory=dict)  # of more columns
    width: int | None = None  # columns of the table, which have no names

    @cached_property
    def is_hot(self) -> npt.NDArray[np.bool_]:
        """Which columns are of categories."""
        return np.array([words is not None for words in self.categories], dtype=bool)

    @property
    def hot(self) -> tuple[str, ...]:
        """Columns of categories."""
        return tuple(compress(self.columns, self.is_hot))

    @property
    def numbers(self) -> tuple[str, ...]:
        """Columns of numbers, the dates among them."""
        return tuple(compress(self.columns, ~self.is_hot))

    @cached_property
    def widths(self) -> Int64Array:
        """Features of each of the columns."""
        return np.array([1 if words is None else len(words) for words in self.categories], int)

    @property
    def columns_of_features(self) -> list[tuple[str, str]]:
        """Name of each feature, and its column; those that are target-encoded are the last."""
        pairs = zip(self.columns, self.categories, strict=True)
        found = [
            (column if word is None else f"{column}={word}", column)
            for column, words in pairs
            for word in ((None,) if words is None else words)
        ]
        encodings = self.encodings.items()
        return found + [(name, column) for column, one in encodings for name in one["features"]]

    @property
    def features(self) -> list[str]:
        """Name of each feature."""
        return [name for name, _ in self.columns_of_features]

    def to_json(self) -> str:
        """Write the record, without dates and encodings if it has none."""
        stored = asdict(self)
        for name in ("dates", "encodings", "width"):
            if not stored[name]:
                del stored[name]
        return json.dumps(stored)

    @staticmethod
    def from_json(
        text: str, name: str, features: Sequence[str] | None, n_features: int
    ) -> TableRecord:
        """Read the JSON of a record in the file `name`; DamageError if it makes other features."""
        try:
            stored = json.loads(text)
            means = stored["means"]
            record = TableRecord(
                stored["label"],
                tuple(stored["columns"]),
                tuple(None if words is None else tuple(words) for words in stored["categories"]),
                None if means is None else tuple(map(float, means)),
                bool(stored.get("header", True)),
                tuple(stored.get("dates", ())),
                stored.get("encodings", {}),
                stored.get("width"),
            )
            if not {*record.dates} <= {*record.columns}:
                raise ValueError("dates are in other columns")
            named = record.features if features is None else list(features)
            if record.features != named or len(named) != n_features:
                raise ValueError("the features are others")
        except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise DamageError(
                f"{name} is damaged: what it says of the columns of its table makes no sense "
                f"({error}); restore a copy or write it again"
            ) from None
        return record

    def wanted(self, table: Table, label: str | None, first: str, like: str = "") -> Wanted:
        """Columns to read from a table; InputError if it lacks some, or they have other types.

        Messages name the table `first`, or the training file or model `like`.
        """
        numbers = self.numbers[: len(self.numbers) - len(self.dates)]
        self._check_width(table, label, like or first)
        needed = [*self.columns, *self.encodings, *(() if label is None else (label,))]
        if missing := [repr(name) for name in needed if name not in table.kinds]:
            other = f"{like} needs" if like else f"{first} has"
            raise InputError(
                f"{table.name} lacks column{'s' * (len(missing) > 1)} {listed(missing)}, which "
                f"{other}; it has {listed(table.columns)}: add or rename what is missing"
            )
        wanted = Wanted(label, numbers, (*self.hot, *self.encodings), self.dates)
        for what, names in (("numbers", numbers), ("words", wanted.words), ("dates", self.dates)):
            for name in names:
                if not (like and table.kinds[name] == NULLS):  # all of its values are missing
                    _check_kind(table, name, what, like)
        return wanted

    def _check_width(self, table: Table, label: str | None, first: str) -> None:
        """Raise InputError for more or fewer columns than those of a training file without names.

        New rows may lack a last column of labels.
        """
        places = [name for name in table.columns if name != table.own_label]
        if self.width is None or not are_numbers(places):
            return
        n_wanted = self.width
        if self.label == str(n_wanted - 1):
            is_apart = label is not None and label == table.own_label
            n_wanted -= is_apart or (label is None and len(places) == n_wanted - 1)
        check_width(table, len(places), first, n_wanted)


def _check_kind(table: Table, name: str, what: str, like: str) -> None:
    """Raise InputError unless a column can be read as numbers, words or dates."""
    kind = table.kinds[name]
    fitting = {"numbers": (NUMBERS, BOOLEANS, TEXT), "words": USABLE}
    if may_be_dates(kind) if what == "dates" else kind in fitting[what]:
        return
    way = f"leave it out with --drop {name}"
    if kind.startswith(("struct", "map")):
        way = f"give each field a column, as pyarrow's table.flatten() does, or {way}"
    elif "list" in kind.partition("<")[0]:
        way = (
            f"give each element a column, as by pandas: table.join(pandas.DataFrame("
            f"table.pop({name!r}).tolist()).add_prefix({name!r})), or {way}"
        )
    elif kind == WORDS:
        way = f"give --one-hot {name} for categories, or {way}"
    elif what == "dates":
        way = "leave it out of --dates"
    elif what == "numbers" and may_be_dates(kind):
        way = f"give --dates {name} for seconds since 1970, or {way}"
    raise InputError(
        f"column {name!r} of {table.name} holds {kind}, not {what}; "
        f"{f'{like} needs {what} there' if like else way}"
    )


def check_width(table: Table, n_columns: int, training: str, n_wanted: int) -> None:
    """Raise InputError unless columns that are known by their place are as many as in training."""
    if n_columns != n_wanted:
        raise InputError(
            f"{table.name} has {n_columns} columns and {training} has {n_wanted}; without names "
            f"they are known by their place: give rows with as many, in the same order"
        )


def find_column(table: Table, name: str, option: str) -> str:
    """Column by its name or number; negative numbers count from the last, without an index."""
    if name in table.kinds:
        return name
    try:
        place = int(name)
        return (table.proper_columns if place < 0 else table.columns)[place]
    except (ValueError, IndexError):
        known = listed((*table.label_names, *table.columns)) or "no columns with names"
        raise InputError(f"{option}: {table.name} has no column {name!r}; it has {known}") from None


def find_label(table: Table, wanted: str | None) -> str:
    """Column of the labels; InputError if there is none, or it cannot hold labels."""
    label = table.own_label if wanted is None else find_column(table, wanted, "--label")
    if label is None:
        hint = " or --labels FILE.npy" if table.takes_label_file else ""
        raise InputError(
            f"{table.name} is a table: name the column of its labels with --label{hint} (it has "
            f"{listed(table.label_names or table.proper_columns) or 'none'})"
        )
    if table.kinds[label] not in USABLE:
        raise InputError(
            f"the labels in column {label!r} of {table.name} are of type {table.kinds[label]}; "
            f"write them as numbers or words"
        )
    return label


def choose_columns(
    table: Table, options: ConvertOptions, like: TrainingFile | None = None
) -> TableRecord:
    """Features of a table by the options alone, before its categories are known.

    With `like`, those of that training file: by name, or by their order if it has no names.
    """
    label = find_label(table, options.label)
    uses: dict[str | None, str] = {table.own_label: "--drop"}
    uses |= dict.fromkeys([find_column(table, name, "--drop") for name in options.drop], "--drop")
    uses[label] = "--label"

    def columns_of(names: Sequence[str], option: str) -> set[str]:
        found = {find_column(table, name, option) for name in names}
        for name in found:
            if uses.setdefault(name, option) != option:
                raise InputError(
                    f"column {name!r} is named by {option} and by {uses[name]}; choose one"
                )
        return found

    hot = columns_of(options.one_hot, "--one-hot")
    encoded = columns_of(options.target_encode, "--target-encode")
    seconds = columns_of(options.dates, "--dates")
    left_out = {*uses} - hot | (table.index - {*uses})
    columns = tuple(name for name in table.columns if name not in left_out)
    if like is not None:
        places = feature_places(columns, like.columns, table.name)
        if places is not None:
            columns = tuple(columns[place] for place in places.tolist())
        elif like.columns is not None or len(columns) > like.n_features:
            # LIBSVM text, which has no names, may lack columns that are zeros at its end.
            check_width(table, len(columns), like.name, like.n_features)
        return TableRecord(label, columns, (None,) * len(columns))
    dates = tuple(name for name in table.columns if name in seconds)
    columns = (*columns, *dates)
    empty: Encoding = {"words": (), "features": {}}
    encodings = {name: empty for name in table.columns if name in encoded}
    if not (columns or encodings):
        raise InputError(f"{table.name} has no column left for features; drop fewer")
    categories = tuple(() if name in hot else None for name in columns)
    width = None if table.header else len(table.columns)
    means = None if options.impute is None else (0.0,) * len(columns)
    return TableRecord(label, columns, categories, means, table.header, dates, encodings, width)


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
        *,
        labelled: bool = True,
        maps: Sequence[str] = (),
    ) -> None:
        self.record = record
        self._options = parsing
        self._like = like
        self._missing_labels = options.missing_labels
        self._targets = options.targets
        self._tables = inputs
        self._names = inputs[0].feature_names if like is None else like.columns
        self._counting = threading.Lock()
        # Rows "unlabelled", values "filled", and rows without a category in a "column NAME".
        self.counts: Counter[str] = Counter()
        self._missing: Any = 0  # missing values of each column of numbers
        self._codes: list[WordCodes] = []  # of each column of categories
        self.encoding = None
        if record is None:
            self.columns = None
            if all(table.feature_names is not None for table in inputs):
                self.columns = self._names
        else:
            self._codes = [
                WordCodes(map(plain_word, words), grows=like is None)
                for words in record.categories
                if words is not None
            ]
            if record.encodings:
                self.encoding = TargetEncoding(
                    record.encodings, targets=options.targets, counts=options.target_counts
                )
            self._is_known = like is not None
            self._take(record)
        self._label_of: dict[Any, str | None] = dict.fromkeys(inputs)
        if labelled:
            self._label_of = dict(zip(inputs, self._find_labels(options.label), strict=True))
        self.labelled = self._label_of[inputs[0]] is not None
        self.labels = LabelNumbers(() if like is None else like.words, maps)
        self._places: dict[Any, Int64Array | None] = {}
        for table in inputs:
            self._choose(table)

    def _take(self, record: TableRecord) -> None:
        """Take a record, and if its categories are known, the feature of each code."""
        self.record = record
        if not self._is_known:
            return
        self.columns, self.table = record.features, record.to_json()
        self._width = int(record.widths.sum())
        starts = np.cumsum(record.widths) - record.widths
        codes = iter(self._codes)
        of_columns = []  # feature of each code of each column, one column after the other
        for start, words in zip(starts.tolist(), record.categories, strict=False):
            order = {plain_word(word): place for place, word in enumerate(words or ())}
            places = [0] if words is None else [order[word] for word in next(codes).words]
            of_columns.append(start + np.array(places, dtype=np.int64))
        self._first_codes = np.cumsum([0, *map(len, of_columns)])[:-1]
        self._feature_of = np.concatenate([*of_columns, np.empty(0, int)]).astype(np.int32)

    def _find_labels(self, wanted: str | None) -> list[str | None]:
        """Column of the labels in each input; None in all where new rows have no labels yet."""
        recorded = None if self.record is None else self.record.label
        names = [
            recorded
            if wanted is None and table.own_label is None and recorded in table.kinds
            else wanted or table.own_label
            for table in self._tables
        ]
        if self._like is not None and not any(names):
            return [None] * len(names)
        return [find_label(table, name) for table, name in zip(self._tables, names, strict=True)]

    def _choose(self, table: Table) -> None:
        """Tell a table which columns are wanted of it."""
        label, like = self._label_of[table], self._like
        if like is not None and label is not None and self.record is not None:
            if label in self.record.columns:
                raise InputError(
                    f"column {label!r} of {table.name} is a feature of {like.name}: name the "
                    f"column of labels with --label, and look whether a column is missing"
                )
        wanted = Wanted(label)
        self._places[table] = None
        if self.record is None:
            self._places[table] = feature_places(table.feature_names, self._names, table.name)
        else:
            name = "" if like is None else like.name
            wanted = self.record.wanted(table, label, self._tables[0].name, name)
        table.choose(replace(wanted, targets=self._targets))

    def parse(self, reader: readers.Reader, block: Any) -> ParsedBlock:  # noqa: D102
        assert isinstance(reader, Table)
        cells = reader.cells(block)
        numbers: Any = cells.numbers
        if (places := self._places[reader]) is not None:
            numbers = take_columns(numbers, places)
        dropped = _unlabelled(cells.labels, self._missing_labels)
        dropped &= self._missing_labels != "refuse"
        bad = self._bad_rows(cells, numbers) & ~dropped
        wrong = np.flatnonzero(bad)
        if len(wrong) and not self._options.skip:
            raise InputError(self._reason(cells, numbers, int(wrong[0])))
        skipped = [self._reason(cells, numbers, row) for row in wrong[: readers.EXAMPLES].tolist()]
        labels, words = cells.labels, cells.words
        taken = np.flatnonzero(~(bad | dropped))
        if len(taken) < len(labels):
            labels, words = labels[taken], tuple(column[taken] for column in words)
            numbers = take_rows(numbers, taken)
        if isinstance(labels, Words) and self._targets:
            labels = _targets_of(labels)
        values = self.labels.of(labels, lambda k: cells.place(int(taken[k])))
        with self._counting:
            self.counts["unlabelled"] += int(np.count_nonzero(dropped))
            self.counts["rows"] += len(values)
        codes = None if self.encoding is None else self._encoded(words)
        sums = None
        if self._imputes:
            is_missing = np.isnan(numbers)
            sums = np.nansum(numbers, axis=0)
            with self._counting:
                self._missing += is_missing.sum(axis=0)
        rows = self._slots(numbers, words)
        width = rows.n_features if self.record is None else 0  # which a record tells
        n_stored, limit = len(rows.data), self._options.n_features
        if limit is not None and width > limit:
            rows = keep_stored(rows, rows.indices < limit, limit)
        return ParsedBlock(
            values,
            rows,
            width,
            n_stored - len(rows.data),
            len(cells.skipped) + len(wrong),
            (*cells.skipped, *skipped)[: readers.EXAMPLES],
            codes,
            sums,
        )

    @property
    def _imputes(self) -> bool:
        return self.record is not None and self.record.means is not None

    def _encoded(self, words: Sequence[Words]) -> Int32Array:
        """Codes of the columns that are target-encoded."""
        assert self.record is not None
        assert self.encoding is not None
        codes = self.encoding.codes_of(words[len(self.record.hot) :])
        with self._counting:
            for name, column in zip(self.record.encodings, codes.T, strict=True):
                self.counts[f"column {name}"] += int(np.count_nonzero(column == NO_WORD))
        return codes

    def _slots(self, numbers: Any, words: Sequence[Words]) -> CSRRows:
        """Rows with a value for each column."""
        record = self.record
        if isinstance(numbers, CSRRows) or record is None:
            return numbers if isinstance(numbers, CSRRows) else CSRRows.from_dense(numbers)
        if not self._codes:
            return CSRRows.from_dense(numbers)
        values = np.empty((len(numbers), len(record.columns)))
        values[:, ~record.is_hot] = numbers
        for j, known, column in zip(
            np.flatnonzero(record.is_hot).tolist(), self._codes, words, strict=False
        ):
            values[:, j] = 1 + known.of(column)
            name = record.columns[j]
            if len(known) > MAX_CATEGORIES or len(known.longest) > readers.MAX_NAME:
                raise self._useless_column(
                    name,
                    f"has more than {MAX_CATEGORIES} words, or more than {readers.MAX_NAME} "
                    f"letters in one",
                )
            with self._counting:
                self.counts[f"column {name}"] += int(np.count_nonzero(values[:, j] == 0))
        return CSRRows.from_dense(values)

    def _useless_column(self, name: str, reason: str) -> InputError:
        names = ", ".join(table.name for table in self._tables)
        return InputError(f"column {name!r} of {names} {reason}; leave it out with --drop {name}")

    def measured(self, rows: CSRRows, scaling: Scaling) -> tuple[CSRRows, CSRRows]:  # noqa: D102
        logs = scaling.log_values(rows.data)
        if scaling.log1p and self.record is not None and self._codes:  # codes have no logarithm
            logs = np.where(self.record.is_hot[rows.indices], rows.data, logs)
        rows = replace(rows, data=logs)
        if not self._imputes:
            return rows, rows
        return rows, keep_stored(rows, ~np.isnan(logs), rows.n_features)

    def end_learning(  # noqa: D102
        self, ranges: ColumnRanges, sums: Float64Array | None, log: Scaling, n_columns: int
    ) -> int:
        record = self.record
        if record is None:
            return n_columns
        n_columns = len(record.columns)
        if not self._is_known:
            words = (tuple(sorted(codes.words)) for codes in self._codes)
            categories = tuple(None if one is None else next(words) for one in record.categories)
            record = replace(record, categories=categories)
        if sums is not None:
            missing = np.zeros(len(record.columns))
            missing[~record.is_hot] = self._missing
            if not self._is_known:
                record = replace(record, means=self._means(record, sums))
            ranges.fill(log.log_values(np.array(record.means)), missing)
        if self.encoding is not None and self.encoding.n_added:
            record = replace(record, encodings=self._fit_encodings(ranges, log))
        elif self.encoding is not None:  # room for features that are known
            n_more = len(record.features) - int(record.widths.sum())
            ranges.append(n_columns, np.ones((1, n_more)), np.array([ranges.n_rows]))
        self._is_known = True
        self._take(record)
        return n_columns + len(record.features) - int(record.widths.sum())

    def _means(self, record: TableRecord, sums: Float64Array) -> tuple[float, ...]:
        n_known = self.counts["rows"] - self._missing
        for name, count in zip(record.numbers, n_known.tolist(), strict=True):
            if count == 0:
                raise self._useless_column(name, "holds no number at all that can be taken")
        means = np.zeros(len(record.columns))
        means[~record.is_hot] = sums / n_known
        return tuple(means.tolist())

    def widths(self, n_columns: int) -> Int64Array:  # noqa: D102
        widths = super().widths(n_columns)
        if self.record is not None:
            widths[: len(self.record.columns)] = self.record.widths
        return widths

    def kept(self, n_columns: int) -> AnyArray | None:  # noqa: D102
        if not self._codes or self.record is None:
            return None
        return np.pad(self.record.is_hot, (0, n_columns - len(self.record.columns)))

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

    def features(  # noqa: D102
        self, rows: CSRRows, cells: Int32Array | None, scaling: Scaling
    ) -> CSRRows:
        record = self.record
        if record is None:
            return rows
        is_hot, data, indices = record.is_hot[rows.indices], rows.data, rows.indices
        if record.means is not None:
            means = scaling.log_values(np.array(record.means))
            data = np.where(np.isnan(data), means[indices], data)
        if self._codes:
            codes = self._first_codes[indices] + np.where(is_hot, data - 1, 0).astype(np.int64)
            indices = self._feature_of[codes]
            data = np.where(is_hot, scaling.log_values(np.ones(1)), data)
        rows = CSRRows(data, indices, rows.indptr, self._width)
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
        if not self.labelled:
            yield "there are no labels: the file is for prediction only (else give --label)"
        _, is_named, word = self._missing_labels.partition("=")
        named = f" or with the label {word!r}" * bool(is_named)
        count = self.counts["unlabelled"] + sum(table.n_unlabelled for table in self._tables)
        if count or named:
            yield f"{count} rows without a label{named} are left out"
        record, like = self.record, self._like
        used = {*self._label_of.values()}
        if record is not None:
            used |= {*record.columns, *record.encodings}
        if index := {name for table in self._tables for name in table.index} - used:
            yield f"the index of the rows is no feature and left out: {listed(sorted(index))}"
        if record is None:
            return
        if count := int(np.sum(self._missing)):
            yield f"{count} missing values became the means of their columns"
        other = f", or with one that {like.name} does not have" if like else ""
        for name in (*record.hot, *record.encodings):
            what = "it has its mean" if name in record.encodings else "its features are all 0"
            count = self.counts[f"column {name}"]
            if like is not None and 0 < count == self.counts["rows"]:
                message = "column %r: no row of %d has a category that %s knows; %s in all of them"
                logger.warning(message, name, count, like.name, what)
            elif count:
                yield f"column {name!r}: {count} rows without a category{other}; {what} there"
        first = self._tables[0]
        if like is not None and len(first.columns) == (record.width or 0) - 1:
            yield (
                f"{first.name} has {len(first.columns)} columns and {like.name} has "
                f"{record.width}: the last one, of labels, is taken to be missing"
            )
        used |= {record.label, *(first.kinds if like is None else ())}
        names = (name for table in self._tables for name in table.proper_columns)
        if extra := list(dict.fromkeys(name for name in names if name not in used)):
            of = first.name if like is None else like.name
            yield f"columns that {of} does not use are left out: {listed(extra)}"

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
        if self.record is not None and not self._imputes:
            for words in cells.words[: len(self.record.hot)]:
                bad |= words.codes < 0
        return bad

    def _wrong_values(self, numbers: Any) -> AnyArray:
        """Which values cannot be taken."""
        values = values_of(numbers)
        wrong = ~_can_be_taken(values, self._options.log1p)
        if self._imputes:
            wrong &= ~np.isnan(values)
        return wrong

    def _reason(self, cells: Cells, numbers: Any, row: int) -> str:
        """What is wrong with a bad row: one sentence with the file, the row and the column."""
        place, labels, record = cells.place(row), cells.labels, self.record
        if _unlabelled(labels)[row]:
            way = "leave such rows out (convert --missing-labels drop)"
            return f"{place}: the label is missing; {way}"
        if not isinstance(labels, Words) and np.isinf(labels[row]):
            return f"{place}: the label is not finite; every row needs a finite one"
        one = numbers[row : row + 1]
        value, name = np.nan, ""
        for k in np.flatnonzero(self._wrong_values(one))[:1].tolist():
            value = float(values_of(one).ravel()[k])
            column = int(one.indices[k]) if isinstance(one, CSRRows) else k
            name = str(column) if record is None else record.numbers[column]
        if not name and record is not None:
            hot = zip(record.hot, cells.words, strict=False)
            name = next(name for name, words in hot if words.codes[row] < 0)
        if np.isnan(value):
            reason, way = "is missing", f"give --impute mean, delete the row, or --drop {name}"
        elif record is not None and name in record.dates:
            reason, way = "is no date such as 2024-05-17 or 2024-05-17T08:30", "correct the row"
        elif np.isinf(value):
            reason, way = "is not finite", "delete the row"
        elif abs(value) > _FLOAT32_MAX:
            reason, way = "is beyond float32 (3.4e38)", "use another unit"
        else:
            reason, way = "has no log1p, it is not above -1", "leave out --log1p"
        if self._like is not None:
            way = f"correct or delete the row, as {self._like.name} takes no such values"
        return f"{place}: the value in column {name!r} {reason}; {way}"


def _can_be_taken(values: AnyArray, log1p: bool) -> npt.NDArray[np.bool_]:
    """Which values float32 can hold, and have a logarithm if that is wanted."""
    fine: npt.NDArray[np.bool_] = np.abs(values) <= _FLOAT32_MAX
    return fine & (values > -1) if log1p else fine


def _unlabelled(labels: Float64Array | Words, missing_labels: str = "refuse") -> AnyArray:
    """Which labels are missing, or are the one that ``drop=LABEL`` names."""
    if not isinstance(labels, Words):
        return np.isnan(labels) | are_label(labels, missing_labels)
    # Code -1 takes the last of these places.
    missing = np.array([word in MISSING_LABELS for word in labels.values] + [True])
    missing |= are_label(np.array([*labels.values, ""]), missing_labels)
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
