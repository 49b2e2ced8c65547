"""Tables to labels and sparse rows: which columns are features, categories, labels.

Owns the choice of columns, one-hot encoding, imputation, codes for labels that are words, and the
record of all this in the output, by which a test file gets the same features. How the formats are
read is `ooc_fw.convert.readers`; shuffling, scaling and writing are those of LIBSVM text
(`ooc_fw.convert.convert`).
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_fw.convert.arrays import ArrayReader
from ooc_fw.convert.libsvm import EXAMPLES, ParsedBlock
from ooc_fw.convert.missing import MISSING_LABELS
from ooc_fw.convert.pipeline import default_threads, ordered_map
from ooc_fw.convert.readers import (
    Cells,
    CSVReader,
    ParquetReader,
    ReadOptions,
    TableReader,
    Wanted,
    Words,
    check_readable,
    detect_format,
)
from ooc_fw.convert.text import STANDARD_INPUT
from ooc_fw.data.attributes import get_text, put_text, put_texts
from ooc_fw.data.labels import is_exact_label
from ooc_fw.data.rows import CSRRows, Float64Array, Int64Array
from ooc_fw.system.errors import InputError

MAX_CATEGORIES = 4096
"""Different words of a column; more are taken for names or numbers, not categories."""

MAX_CLASSES = 4096
"""Different labels; more are taken for targets of a regression."""

RECORD = "table"
"""Attribute of the output that says how its features were made, as JSON."""

COLUMNS = "columns"
"""Attribute of the output with the name of each feature."""

_FLOAT32_MAX = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class TableOptions:
    """What becomes of the columns of a table.

    Parameters
    ----------
    label : str or None
        Column of the labels, by name or by number (from 0; -1 is the last). None takes the column
        that `like` was made with, or labels that are an array of their own.
    one_hot : sequence of str
        Columns of categories: each category becomes a feature ``COLUMN=CATEGORY`` of 0 and 1.
    drop : sequence of str
        Columns to leave out.
    impute : {None, "mean"}
        What a missing number becomes: an error, or the mean of its column in these rows. A missing
        category then is none of the categories.
    format : str
        "auto", or one of `ooc_fw.convert.readers.FORMATS`.
    header : bool or None
        Whether the first line of CSV names the columns. None takes it for names, or refuses it
        where it looks like a row; with `like`, it is as in that table.
    delimiter : str or None
        Between the cells of CSV; None finds it in the first line.
    labels : path or None
        A .npy file with one label a row, for arrays without labels.
    x_name, y_name : str
        Rows and labels among named arrays.
    missing_labels : {"refuse", "drop"}
        What a row without a label is: an error, or left out.
    """

    label: str | None = None
    one_hot: Sequence[str] = ()
    drop: Sequence[str] = ()
    impute: str | None = None
    format: str = "auto"
    header: bool | None = None
    delimiter: str | None = None
    labels: str | os.PathLike[str] | None = None
    x_name: str = "X"
    y_name: str = "y"
    missing_labels: str = "refuse"

    def __post_init__(self) -> None:
        if self.missing_labels not in ("refuse", "drop"):
            raise InputError(f"missing labels are refused or dropped, not {self.missing_labels!r}")
        if self.impute not in (None, "mean"):
            raise InputError(f"impute must be mean, not {self.impute!r}")

    @property
    def reading(self) -> ReadOptions:
        """The part that concerns reading."""
        return ReadOptions(
            self.format,
            self.header,
            self.delimiter,
            self.labels,
            self.x_name,
            self.y_name,
            self.label,
            self.missing_labels,
        )

    @property
    def given(self) -> bool:
        """Whether an option was given that makes sense for tables only."""
        return bool(
            self.label is not None
            or self.one_hot
            or self.drop
            or self.impute
            or self.missing_labels != "refuse"
            or self.header is not None
            or self.delimiter is not None
        )


def table_format(
    inputs: Sequence[str | os.PathLike[str]],
    options: TableOptions,
    like: TableRecord | None,
) -> str:
    """Format of the inputs, all of one kind: "libsvm", or that of a table.

    Raises
    ------
    InputError
        They are of several kinds, or options for tables are given with LIBSVM text.
    """
    is_table = options.given or like is not None
    formats = [
        detect_format(os.fspath(path), options.reading, is_table=is_table) for path in inputs
    ]
    if len(set(formats)) > 1:
        found = ", ".join(
            f"{os.fspath(p)}: {kind}" for p, kind in zip(inputs, formats, strict=True)
        )
        raise InputError(f"the inputs are of several formats ({found}); convert one at a time")
    kind = formats[0] if formats else "libsvm"
    if kind == "libsvm" and (options.given or options.labels is not None):
        raise InputError(
            "--label, --one-hot, --drop, --impute, --missing-labels, --header, --labels, "
            "--no-header and --delimiter are for tables, and this is LIBSVM text; leave them out, "
            "or name the --format"
        )
    return kind


def open_table(path: str, format_name: str, options: ReadOptions) -> TableReader:
    """Open a table of a known format.

    Raises
    ------
    InputError
        It cannot be read, or a package for it is not installed.
    """
    if format_name == "csv":
        return CSVReader(path, options)
    if path == "-":
        raise InputError(f"{format_name} cannot be read from standard input; name a file")
    if options.labels is not None and format_name == "parquet":
        raise InputError(f"{path} has named columns: name the one of the labels with --label")
    check_readable(path)
    if format_name == "parquet":
        return ParquetReader(path)
    return ArrayReader(path, format_name, options)


# --- what is recorded ----------------------------------------------------------------------------


@dataclass(frozen=True)
class TableRecord:
    """How the columns of a table become features; as stored in the output.

    Parameters
    ----------
    label : str
        Column of the labels.
    columns : tuple of str
        Columns that are used, in order.
    categories : tuple of (tuple of str or None)
        Categories of each, sorted; None for a column of numbers.
    means : tuple of float, or None
        What a missing number of each column becomes (0 for categories); None when it is an error.
    header : bool
        Whether the columns had names of their own.
    """

    label: str
    columns: tuple[str, ...]
    categories: tuple[tuple[str, ...] | None, ...]
    means: tuple[float, ...] | None = None
    header: bool = True

    @property
    def features(self) -> list[str]:
        """Name of each feature."""
        names: list[str] = []
        for column, categories in zip(self.columns, self.categories, strict=True):
            names += [column] if categories is None else [f"{column}={word}" for word in categories]
        return names

    @property
    def starts(self) -> Int64Array:
        """First feature of each column, and their number at the end."""
        widths = [1 if words is None else len(words) for words in self.categories]
        return np.concatenate([[0], np.cumsum(widths, dtype=np.int64)])

    def write(self, attributes: Any) -> None:
        """Store in HDF5 attributes."""
        put_texts(attributes, COLUMNS, self.features)
        put_text(
            attributes,
            RECORD,
            json.dumps(
                {
                    "label": self.label,
                    "columns": self.columns,
                    "categories": self.categories,
                    "means": self.means,
                    "header": self.header,
                }
            ),
        )

    @staticmethod
    def read(attributes: Any) -> TableRecord | None:
        """Read what `write` stored; None when the file was no table.

        Raises
        ------
        KeyError, ValueError, TypeError
            It is damaged.
        """
        if RECORD not in attributes:
            return None
        stored = json.loads(get_text(attributes, RECORD))
        means = stored["means"]
        return TableRecord(
            stored["label"],
            tuple(stored["columns"]),
            tuple(None if words is None else tuple(words) for words in stored["categories"]),
            None if means is None else tuple(means),
            bool(stored.get("header", True)),
        )


# --- labels --------------------------------------------------------------------------------------


class LabelCodes:
    """Codes of labels that are words, in the order in which they are met; for any thread.

    Parameters
    ----------
    known : sequence of str
        Words that the training file has; its labels are words then, whatever they look like.
    """

    def __init__(self, known: Sequence[str] = ()) -> None:
        self._codes = {word: code for code, word in enumerate(known)}
        self._n_known = len(self._codes)
        self._adding = threading.Lock()

    def encode(self, labels: Words, name: str) -> Float64Array:
        """Code of each label; none is missing."""
        met = [labels.values[code] for code in np.unique(labels.codes).tolist()]
        with self._adding:
            for word in met:
                self._codes.setdefault(word, len(self._codes))
            if len(self._codes) > MAX_CLASSES:
                raise InputError(
                    f"{name} brings the number of different labels above {MAX_CLASSES}; these are "
                    "targets of a regression, not classes"
                )
            codes = [self._codes.get(word, -1) for word in labels.values]
        return np.array(codes, dtype=np.float64)[labels.codes]

    def finish(self) -> tuple[Float64Array, tuple[str, ...] | None]:
        """Label value of each code, and the names of the values if they are not themselves numbers.

        Numbers are what they are, unless whole ones would be rounded to others. Words are numbered
        from 0 in their sorted order, those of the training file among them.
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


# --- which columns -------------------------------------------------------------------------------


def needs_scouting(options: TableOptions) -> bool:
    """Whether a pass over the table must come before the first: for categories or means."""
    return bool(options.one_hot or options.impute)


def fit_record(
    inputs: Sequence[str | os.PathLike[str]],
    format_name: str,
    first: TableReader,
    options: TableOptions,
    on_block: Callable[[int], None],
    *,
    skip: bool,
) -> TableRecord | None:
    """Choose the features; one pass over the inputs where categories or means are wanted.

    Parameters
    ----------
    inputs : sequence of str or PathLike
        Tables with the same columns.
    format_name : str
        Their format.
    first : TableReader
        The first of them, open; nothing is read from it.
    options : TableOptions
        What is wanted.
    on_block : callable
        Called now and then with the bytes read of all inputs.
    skip : bool
        Whether rows that cannot be read are left out.

    Returns
    -------
    TableRecord or None
        None for sparse rows, whose columns have no names.
    """
    if first.sparse:
        if options.one_hot or options.drop or options.impute:
            raise InputError(
                f"{first.name} holds sparse rows, which have no columns to name; leave --one-hot, "
                f"--drop and --impute out"
            )
        return None
    record = _choose_columns(first, options)
    hot = [j for j, words in enumerate(record.categories) if words is not None]
    if not needs_scouting(options):
        return record
    if not all(os.path.isfile(path) for path in inputs):  # standard input, a pipe
        raise InputError(
            "--one-hot and --impute need two passes over the table, and standard input or a pipe "
            "can be read only once; save it to a file"
        )
    found: list[set[str]] = [set() for _ in hot]
    numbers = [j for j, words in enumerate(record.categories) if words is None]
    sums, counts = np.zeros(len(numbers)), np.zeros(len(numbers), dtype=np.int64)
    done = 0
    for path in inputs:
        with open_table(os.fspath(path), format_name, options.reading) as reader:
            wanted = _wanted(record, reader, record.label, skip=skip)
            if options.impute is None:
                wanted = replace(wanted, numbers=())  # the first pass proper looks at them
            parse = _parser_of(reader, wanted)
            for cells in ordered_map(parse, reader.blocks(), threads=default_threads()):
                for j, words, known in zip(hot, cells.words, found, strict=True):
                    known.update(words.values)
                    if len(known) > MAX_CATEGORIES:
                        name = record.columns[j]
                        raise InputError(
                            f"column {name!r} of {reader.name} has more than {MAX_CATEGORIES} "
                            f"different values, too many for categories; leave it out with "
                            f"--drop {name}"
                        )
                if options.impute is not None:
                    _add_means(cells, sums, counts)
                on_block(done + reader.bytes_read)
            done += reader.size or 0
    means = None
    if options.impute is not None:
        for j, count in zip(numbers, counts, strict=True):
            if count == 0:
                name = record.columns[j]
                raise InputError(
                    f"column {name!r} of {reader.name} holds no number at all; leave it out with "
                    f"--drop {name}"
                )
        filled = np.zeros(len(record.columns))
        filled[numbers] = sums / np.maximum(counts, 1)
        means = tuple(filled.tolist())
    categories = list(record.categories)
    for j, known in zip(hot, found, strict=True):
        categories[j] = tuple(sorted(known))
    return replace(record, categories=tuple(categories), means=means)


def _add_means(cells: Cells, sums: Float64Array, counts: Int64Array) -> None:
    assert not isinstance(cells.numbers, CSRRows)
    there = np.isfinite(cells.numbers)
    sums += np.sum(cells.numbers, axis=0, where=there)
    counts += there.sum(axis=0)


def _choose_columns(reader: TableReader, options: TableOptions) -> TableRecord:
    """Features of a table by the options alone; categories are not known yet."""
    label = find_label(reader, options.label)
    one_hot = [find_column(reader, name, "--one-hot") for name in options.one_hot]
    drop = {find_column(reader, name, "--drop") for name in options.drop}
    if reader.own_label is not None:
        drop.add(reader.own_label)
    for name in one_hot:
        if name == label or name in drop:
            other = "--label" if name == label else "--drop"
            raise InputError(f"column {name!r} is named by --one-hot and by {other}; choose one")
    drop |= reader.index - {*one_hot}
    columns = tuple(name for name in reader.columns if name != label and name not in drop)
    if not columns:
        raise InputError(f"{reader.name} has no column left for features; drop fewer")
    _check_kinds(reader, columns, one_hot)
    categories = tuple(() if name in one_hot else None for name in columns)
    return TableRecord(label, columns, categories, header=reader.header)


def _check_kinds(reader: TableReader, columns: Sequence[str], one_hot: Sequence[str]) -> None:
    """Refuse columns that are known to hold no numbers, all at once."""
    words = [name for name in columns if name in reader.words and name not in one_hot]
    if words:
        listed = ",".join(words)
        plural = "columns" if len(words) > 1 else "column"
        raise InputError(
            f"{plural} {', '.join(map(repr, words))} of {reader.name}: words, not numbers; give "
            f"--one-hot {listed} for categories, or leave out with --drop {listed}"
        )
    for name in columns:
        if name in reader.unusable:
            raise InputError(
                f"column {name!r} of {reader.name} is of type {reader.unusable[name]}, neither "
                f"numbers nor words; leave it out with --drop {name}"
            )


def find_column(reader: TableReader, name: str, option: str) -> str:
    """Column by its name, or by its number from 0; from the last but for an index if negative."""
    if name in reader.columns:
        return name
    try:
        place = int(name)
        return (reader.proper_columns if place < 0 else reader.columns)[place]
    except (ValueError, IndexError):
        known = _listed((*reader.columns, *reader.label_names)) or "no columns with names"
        raise InputError(
            f"{option}: {reader.name} has no column {name!r}; it has {known}"
        ) from None


def find_label(reader: TableReader, wanted: str | None) -> str:
    """Column of the labels.

    Raises
    ------
    InputError
        There is none, or it cannot hold labels.
    """
    label = reader.own_label if wanted is None else find_column(reader, wanted, "--label")
    if label is None:
        hint = " or --labels FILE.npy" if isinstance(reader, ArrayReader) else ""
        raise InputError(
            f"{reader.name} is a table: name the column of its labels with --label{hint} (it has "
            f"{_listed(reader.label_names or reader.proper_columns) or 'none'})"
        )
    if label in reader.unusable:
        raise InputError(
            f"the labels in column {label!r} of {reader.name} are of type "
            f"{reader.unusable[label]}; write them as numbers or words"
        )
    return label


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:12])
    return f"{shown}, ... ({len(names)} in all)" if len(names) > 12 else shown


def _wanted(record: TableRecord, reader: TableReader, label: str | None, *, skip: bool) -> Wanted:
    """Columns to read from a table that shall have those of a record."""
    needed = record.columns if label is None else (*record.columns, label)
    missing = [name for name in needed if name not in reader.columns]
    if missing:
        raise InputError(
            f"{reader.name} lacks {'columns' if len(missing) > 1 else 'column'} "
            f"{_listed([repr(name) for name in missing])} that the first table or the training "
            f"file has; it has {_listed(reader.columns)}"
        )
    pairs = list(zip(record.columns, record.categories, strict=True))
    hot = [name for name, words in pairs if words is not None]
    _check_kinds(reader, record.columns, hot)
    return Wanted(label, tuple(name for name, words in pairs if words is None), tuple(hot), skip)


def _parser_of(reader: TableReader, wanted: Wanted) -> Callable[[Any], Cells]:
    return lambda block: reader.parse(block, wanted)


# --- rows ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EncodingOptions:
    """What is asked of the numbers.

    Parameters
    ----------
    log1p : bool
        Whether log1p will be taken, so that values must be above -1.
    on_error : {"raise", "skip"}
        What to do with a row that cannot be taken.
    n_features : int or None
        Width, None for all features; wider ones are left out and counted.
    exact : bool
        Whether values stay float64, to be scaled before they are rounded. Those of tables do so in
        any case.
    """

    log1p: bool = False
    on_error: str = "raise"
    n_features: int | None = None
    exact: bool = False

    @property
    def skip(self) -> bool:
        """Whether bad rows are left out."""
        return self.on_error == "skip"


class Tables:
    """Open tables that become rows in one way.

    Parameters
    ----------
    readers : sequence of TableReader
        The inputs.
    record : TableRecord or None
        Features; None for sparse rows.
    label : str or None
        Column of the labels, if not that of the record.
    known_labels : sequence of str
        Words that are labels in the training file.
    like : str or None
        The training file, for messages.
    drop_unlabelled : bool
        Whether rows without a label are left out.
    """

    def __init__(
        self,
        readers: Sequence[TableReader],
        record: TableRecord | None,
        label: str | None,
        *,
        known_labels: Sequence[str] = (),
        like: str | None = None,
        drop_unlabelled: bool = False,
    ) -> None:
        self._drop_unlabelled = drop_unlabelled
        self._n_unlabelled = 0
        self.readers = readers
        self.record = record
        self._like = like
        self._labels = self._find_labels(label)
        pairs = list(zip(readers, self._labels, strict=True))
        kinds = {
            reader.words_everywhere or name in reader.words
            for reader, name in pairs
            if name is not None
        }
        if len(kinds) > 1:
            raise InputError(
                "the labels are words in some of the inputs and numbers in others; convert them "
                "to one type"
            )
        self.codes = LabelCodes(known_labels) if True in kinds else None
        self._lookups: list[dict[str, int]] = []
        if record is not None:
            self._hot = [j for j, words in enumerate(record.categories) if words is not None]
            self._numbers = [j for j, words in enumerate(record.categories) if words is None]
            for words in record.categories:
                if words is not None:
                    self._lookups.append({word: code for code, word in enumerate(words)})
        self._unknown = np.zeros(len(self._lookups), dtype=np.int64)
        self._n_filled = 0
        self._counting = threading.Lock()

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

    def parser(self, reader: TableReader, options: EncodingOptions) -> Callable[[Any], ParsedBlock]:
        """Make rows of the blocks of one of the readers, for any thread."""
        label = self._labels[self.readers.index(reader)]
        if self.record is None:
            wanted = Wanted(label, (), ())
        else:
            wanted = _wanted(self.record, reader, label, skip=options.skip)
        return lambda block: self._encode(reader.parse(block, wanted), options)

    def notes(self) -> Iterator[str]:
        """What a user may not expect, a sentence each; when all is parsed."""
        if not self.labelled:
            yield "there are no labels: the file is for prediction only (else give --label)"
        if self._n_unlabelled:
            yield f"{self._n_unlabelled} rows without a label are left out"
        index = {name for reader in self.readers for name in reader.index}
        used = {*self._labels} if self.record is None else {*self._labels, *self.record.columns}
        if index - used:
            names = _listed(sorted(index - used))
            yield f"the index of the rows is no feature and left out: {names}"
        if self._n_filled:
            yield f"{self._n_filled} missing values became the means of their columns"
        if self.record is None:
            return
        for j, count in zip(self._hot, self._unknown.tolist(), strict=True):
            if count:
                yield (
                    f"column {self.record.columns[j]!r}: {count} rows without a category"
                    + (f", or with one that {self._like} does not have" if self._like else "")
                    + "; its features are all 0 there"
                )
        if self._like is not None:
            known = {*self.record.columns, *self._labels}
            extra = [name for name in self.readers[0].proper_columns if name not in known]
            if extra:
                yield f"columns that {self._like} does not use are left out: {_listed(extra)}"

    def _encode(self, cells: Cells, options: EncodingOptions) -> ParsedBlock:
        """Labels and sparse rows, of float64, of some cells."""
        skipped = list(cells.skipped)
        if self._drop_unlabelled:
            kept = np.flatnonzero(~_unlabelled(cells.labels))
            with self._counting:
                self._n_unlabelled += len(cells) - len(kept)
            if len(kept) < len(cells):
                cells = cells.take(kept)
        if self.record is not None and self.record.means is not None:
            self._fill(cells, self.record.means)
        bad = self._bad_rows(cells, options)
        if bad.any():
            where = np.flatnonzero(bad)
            if not options.skip:
                raise InputError(self._reason(cells, int(where[0]), options))
            skipped += [self._reason(cells, row, options) for row in where[:EXAMPLES].tolist()]
            n_skipped = len(cells.skipped) + len(where)
            cells = cells.take(np.flatnonzero(~bad))
        else:
            n_skipped = len(skipped)
        if isinstance(cells.labels, Words):
            assert self.codes is not None
            labels = self.codes.encode(cells.labels, cells.name)
        else:
            labels = cells.labels
        rows = cells.numbers
        if not isinstance(rows, CSRRows):
            rows = self._features(cells)
        width, n_dropped = rows.n_features, 0
        if options.n_features is not None and width > options.n_features:
            keep = rows.indices < options.n_features
            before = np.concatenate([[0], np.cumsum(keep)])
            n_dropped = len(keep) - int(before[-1])
            rows = CSRRows(
                rows.data[keep], rows.indices[keep], before[rows.indptr], options.n_features
            )
        return ParsedBlock(labels, rows, 0, width, n_dropped, n_skipped, tuple(skipped[:EXAMPLES]))

    def _fill(self, cells: Cells, means: tuple[float, ...]) -> None:
        """Put the means in place of missing numbers."""
        assert not isinstance(cells.numbers, CSRRows)
        missing = np.isnan(cells.numbers)
        if missing.any():
            columns = np.nonzero(missing)[1]
            cells.numbers[missing] = np.array(means)[self._numbers][columns]
            with self._counting:
                self._n_filled += len(columns)

    def _bad_rows(self, cells: Cells, options: EncodingOptions) -> npt.NDArray[np.bool_]:
        """Which rows cannot be taken."""
        labels = cells.labels
        bad = _unlabelled(labels) if isinstance(labels, Words) else ~np.isfinite(labels)
        values = cells.numbers.data if isinstance(cells.numbers, CSRRows) else cells.numbers
        fine = _fine(values, options.log1p)
        if not fine.all():
            if isinstance(cells.numbers, CSRRows):
                starts = cells.numbers.indptr
                bad[np.searchsorted(starts, np.flatnonzero(~fine), side="right") - 1] = True
            else:
                bad |= ~fine.all(axis=1)
        if self.record is not None and self.record.means is None:
            for words in cells.words:
                bad |= words.codes < 0
        return bad

    def _reason(self, cells: Cells, row: int, options: EncodingOptions) -> str:
        """What is wrong with a bad row: one sentence with the file, the row and the column."""
        place = f"{cells.name}, {cells.place(row)}"
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
        name, value = self._bad_number(cells, row, options.log1p)
        if name is None:
            assert self.record is not None
            hot = [self.record.columns[j] for j in self._hot]
            name = next(
                column
                for column, words in zip(hot, cells.words, strict=True)
                if words.codes[row] < 0
            )
            value = np.nan
        if np.isnan(value):
            if self._like is not None:
                way_out = f"convert {self._like} with --impute mean, or leave the row out"
            else:
                way_out = f"give --impute mean, leave the row out, or the column with --drop {name}"
            return f"{place}: the value in column {name!r} is missing; {way_out}"
        if np.isinf(value):
            return f"{place}: the value in column {name!r} is not finite; leave the row out"
        if abs(value) > _FLOAT32_MAX:
            return (
                f"{place}: the value in column {name!r} is beyond float32 (3.4e38); use another "
                f"unit"
            )
        return (
            f"{place}: the value in column {name!r} has no log1p, it is not above -1; leave out "
            f"--log1p"
        )

    def _bad_number(self, cells: Cells, row: int, log1p: bool) -> tuple[str | None, float]:
        """Column and value of the first bad number of a row; None where it has none."""
        numbers = cells.numbers
        if isinstance(numbers, CSRRows):
            stored = slice(*numbers.indptr[row : row + 2].tolist())
            values, names = numbers.data[stored], [str(j) for j in numbers.indices[stored]]
        else:
            assert self.record is not None
            values, names = numbers[row], [self.record.columns[j] for j in self._numbers]
        bad = np.flatnonzero(~_fine(values, log1p))
        return (names[bad[0]], float(values[bad[0]])) if len(bad) else (None, 0.0)

    def _features(self, cells: Cells) -> CSRRows:
        """Sparse rows, a column of numbers being one feature and each category one."""
        record = self.record
        assert record is not None
        assert not isinstance(cells.numbers, CSRRows)
        # One stored value a column at most: a number, or 1 + the category until it has its place.
        values = np.empty((len(cells), len(record.columns)))
        values[:, self._numbers] = cells.numbers
        for k, (j, words) in enumerate(zip(self._hot, cells.words, strict=True)):
            codes = np.array([self._lookups[k].get(word, -1) for word in words.values] + [-1])
            values[:, j] = 1 + codes[words.codes]
            unknown = len(cells) - int(np.count_nonzero(values[:, j]))
            with self._counting:
                self._unknown[k] += unknown
        rows = CSRRows.from_dense(values)
        starts = record.starts
        if not self._hot:
            return rows
        hot = np.zeros(len(record.columns), dtype=bool)
        hot[self._hot] = True
        is_hot = hot[rows.indices]
        places = starts[rows.indices] + np.where(is_hot, rows.data - 1, 0).astype(np.int64)
        return CSRRows(
            np.where(is_hot, 1.0, rows.data),
            places.astype(np.int32),
            rows.indptr,
            int(starts[-1]),
        )


def _unlabelled(labels: Float64Array | Words) -> npt.NDArray[np.bool_]:
    """Which labels are missing."""
    if not isinstance(labels, Words):
        return np.isnan(labels)
    # The last place stands for the code -1.
    missing = np.array([word in MISSING_LABELS for word in labels.values] + [True])
    return missing[labels.codes]


def _fine(values: npt.NDArray[Any], log1p: bool) -> npt.NDArray[np.bool_]:
    """Which values can be stored as float32, and have a logarithm if that is wanted."""
    fine: npt.NDArray[np.bool_] = np.abs(values) <= _FLOAT32_MAX
    return fine & (values > -1) if log1p else fine


def open_tables(
    inputs: Sequence[str | os.PathLike[str]],
    format_name: str,
    options: TableOptions,
    stack: ExitStack,
) -> list[TableReader]:
    """Open all inputs for the pass that parses them; closed by `stack`."""
    if not inputs:
        raise InputError("no input given; name a file, or - for standard input")
    if [os.fspath(path) for path in inputs].count(STANDARD_INPUT) > 1:
        raise InputError("standard input (-) can be read only once; give - once")
    if options.labels is not None and len(inputs) > 1:
        raise InputError("--labels is for one input; convert them one at a time")
    return [
        stack.enter_context(open_table(os.fspath(path), format_name, options.reading))
        for path in inputs
    ]


def positional_record(reader: TableReader, options: TableOptions, n_features: int) -> TableRecord:
    """Features of a table like those of a training file that names no columns: by their order."""
    label = find_label(reader, options.label)
    left_out = {label, reader.own_label, *reader.index}
    left_out |= {find_column(reader, name, "--drop") for name in options.drop}
    columns = [name for name in reader.columns if name not in left_out][:n_features]
    return TableRecord(label, tuple(columns), (None,) * len(columns))
