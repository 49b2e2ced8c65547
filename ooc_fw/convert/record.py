"""Which columns of a table become which features, and the record of this in the output.

By the record, a test file gets the features of its training file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from ooc_fw.convert.pipeline import default_threads, ordered_map
from ooc_fw.convert.readers import Cells, TableReader, Wanted, listed
from ooc_fw.data.attributes import get_text, put_text, put_texts
from ooc_fw.data.rows import CSRRows, Int64Array
from ooc_fw.options import ConvertOptions
from ooc_fw.system.errors import InputError

MAX_CATEGORIES = 4096
"""Different words of a column; a column with more holds names or numbers, not categories."""

RECORD = "table"
"""Attribute of the output that tells how its features were made, as JSON."""

COLUMNS = "columns"
"""Attribute of the output with the name of each feature."""


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

    @property
    def hot(self) -> list[int]:
        """Places of the columns of categories."""
        return [j for j, words in enumerate(self.categories) if words is not None]

    @property
    def numbers(self) -> list[int]:
        """Places of the columns of numbers."""
        return [j for j, words in enumerate(self.categories) if words is None]

    @property
    def features(self) -> list[str]:
        """Name of each feature."""
        names: list[str] = []
        for column, categories in zip(self.columns, self.categories, strict=True):
            names += [column] if categories is None else [f"{column}={word}" for word in categories]
        return names

    @property
    def starts(self) -> Int64Array:
        """First feature of each column, and the number of features at the end."""
        widths = [1 if words is None else len(words) for words in self.categories]
        return np.concatenate([[0], np.cumsum(widths, dtype=np.int64)])

    def write(self, attributes: Any) -> None:
        """Store in HDF5 attributes."""
        put_texts(attributes, COLUMNS, self.features)
        put_text(attributes, RECORD, json.dumps(asdict(self)))

    @staticmethod
    def read(attributes: Any) -> TableRecord | None:
        """Read what `write` stored; None when the file was no table.

        KeyError, ValueError or TypeError tell that the record is damaged.
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

    def wanted(self, reader: TableReader, label: str | None, *, skip: bool) -> Wanted:
        """Columns to read from a table; InputError if it lacks some, or they have other types."""
        needed = self.columns if label is None else (*self.columns, label)
        missing = [repr(name) for name in needed if name not in reader.columns]
        if missing:
            raise InputError(
                f"{reader.name} lacks {'columns' if len(missing) > 1 else 'column'} "
                f"{listed(missing)} that the first table or the training file has; it has "
                f"{listed(reader.columns)}"
            )
        hot = tuple(self.columns[j] for j in self.hot)
        _check_kinds(reader, self.columns, hot)
        return Wanted(label, tuple(self.columns[j] for j in self.numbers), hot, skip)


def find_column(reader: TableReader, name: str, option: str) -> str:
    """Column by its name or number; negative numbers count from the last, without an index."""
    if name in reader.columns:
        return name
    try:
        place = int(name)
        return (reader.proper_columns if place < 0 else reader.columns)[place]
    except (ValueError, IndexError):
        known = listed((*reader.columns, *reader.label_names)) or "no columns with names"
        raise InputError(
            f"{option}: {reader.name} has no column {name!r}; it has {known}"
        ) from None


def find_label(reader: TableReader, wanted: str | None) -> str:
    """Column of the labels; InputError if there is none, or it cannot hold labels."""
    label = reader.own_label if wanted is None else find_column(reader, wanted, "--label")
    if label is None:
        hint = " or --labels FILE.npy" if reader.takes_label_file else ""
        raise InputError(
            f"{reader.name} is a table: name the column of its labels with --label{hint} (it has "
            f"{listed(reader.label_names or reader.proper_columns) or 'none'})"
        )
    if label in reader.unusable:
        raise InputError(
            f"the labels in column {label!r} of {reader.name} are of type "
            f"{reader.unusable[label]}; write them as numbers or words"
        )
    return label


def choose_columns(reader: TableReader, options: ConvertOptions) -> TableRecord:
    """Features of a table by the options alone, before its categories are known."""
    label = find_label(reader, options.label)
    one_hot = [find_column(reader, name, "--one-hot") for name in options.one_hot]
    drop = {find_column(reader, name, "--drop") for name in options.drop} | {reader.own_label}
    for name in one_hot:
        if name == label or name in drop:
            other = "--label" if name == label else "--drop"
            raise InputError(f"column {name!r} is named by --one-hot and by {other}; choose one")
    left_out = drop | {label} | (reader.index - {*one_hot})
    columns = tuple(name for name in reader.columns if name not in left_out)
    if not columns:
        raise InputError(f"{reader.name} has no column left for features; drop fewer")
    _check_kinds(reader, columns, one_hot)
    categories = tuple(() if name in one_hot else None for name in columns)
    return TableRecord(label, columns, categories, header=reader.header)


def choose_by_position(
    reader: TableReader, options: ConvertOptions, n_features: int
) -> TableRecord:
    """Features of a table by their order, for a training file without names of columns."""
    label = find_label(reader, options.label)
    left_out = {label, reader.own_label, *reader.index}
    left_out |= {find_column(reader, name, "--drop") for name in options.drop}
    columns = [name for name in reader.columns if name not in left_out][:n_features]
    return TableRecord(label, tuple(columns), (None,) * len(columns))


def _check_kinds(reader: TableReader, columns: Sequence[str], one_hot: Sequence[str]) -> None:
    """Refuse columns that are known to hold no numbers, all at once."""
    words = [name for name in columns if name in reader.words and name not in one_hot]
    if words:
        names = ",".join(words)
        plural = "columns" if len(words) > 1 else "column"
        raise InputError(
            f"{plural} {', '.join(map(repr, words))} of {reader.name}: words, not numbers; give "
            f"--one-hot {names} for categories, or leave out with --drop {names}"
        )
    for name in columns:
        if name in reader.unusable:
            raise InputError(
                f"column {name!r} of {reader.name} is of type {reader.unusable[name]}, neither "
                f"numbers nor words; leave it out with --drop {name}"
            )


def fit_record(
    inputs: Sequence[str],
    open_input: Callable[[str], TableReader],
    record: TableRecord,
    options: ConvertOptions,
    on_bytes: Callable[[int], None],
) -> TableRecord:
    """Find categories, and means if wanted, in one pass over inputs with the columns of a record.

    `on_bytes` is called now and then with the bytes read of all inputs.
    """
    if not all(os.path.isfile(path) for path in inputs):  # standard input, a pipe
        raise InputError(
            "--one-hot and --impute need two passes over the table, and standard input or a pipe "
            "can be read only once; save it to a file"
        )
    words: list[set[str]] = [set() for _ in record.hot]
    sums, counts = np.zeros(len(record.numbers)), np.zeros(len(record.numbers), dtype=np.int64)
    done = 0
    for path in inputs:
        with open_input(path) as reader:
            wanted = record.wanted(reader, record.label, skip=options.on_error == "skip")
            if options.impute is None:
                wanted = replace(wanted, numbers=())  # errors in them are found when all is parsed

            def parse(block: Any, reader: TableReader = reader, wanted: Wanted = wanted) -> Cells:
                return reader.parse(block, wanted)

            for cells in ordered_map(parse, reader.blocks(), threads=default_threads()):
                for j, column, known in zip(record.hot, cells.words, words, strict=True):
                    known.update(column.values)
                    if len(known) > MAX_CATEGORIES:
                        raise _useless_column(
                            record.columns[j],
                            reader,
                            f"has more than {MAX_CATEGORIES} different values, too many for "
                            f"categories",
                        )
                if options.impute is not None:
                    assert not isinstance(cells.numbers, CSRRows)
                    there = np.isfinite(cells.numbers)
                    sums += np.sum(cells.numbers, axis=0, where=there)
                    counts += there.sum(axis=0)
                on_bytes(done + reader.bytes_read)
            done += reader.size or 0
    if options.impute is not None:
        means = np.zeros(len(record.columns))
        means[record.numbers] = sums / np.maximum(counts, 1)
        for j, count in zip(record.numbers, counts, strict=True):
            if count == 0:
                raise _useless_column(record.columns[j], reader, "holds no number at all")
        record = replace(record, means=tuple(means.tolist()))
    categories = list(record.categories)
    for j, known in zip(record.hot, words, strict=True):
        categories[j] = tuple(sorted(known))
    return replace(record, categories=tuple(categories))


def _useless_column(name: str, reader: TableReader, reason: str) -> InputError:
    return InputError(f"column {name!r} of {reader.name} {reason}; leave it out with --drop {name}")
