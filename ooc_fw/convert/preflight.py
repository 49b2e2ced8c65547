"""Measures of data before training; `ooc_fw.convert.advice` turns them into sentences.

Small files are read whole. Of large ones, labels are read whole (8 bytes each), and rows are
sampled from all parts of the file, at a cost that does not grow with it.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooc_fw.convert.delimited import is_foreign_number, parse_number
from ooc_fw.convert.readers import TableReader, Wanted
from ooc_fw.data.ranges import ColumnRanges
from ooc_fw.data.rows import AnyArray, CSRRows, Float64Array, Int64Array, Rows
from ooc_fw.data.sources import RowSource, block_slices
from ooc_fw.kernels.distinct import row_hashes
from ooc_fw.system.errors import DamageError, InputError

SAMPLE_BYTES = 64 << 20
"""Bytes of rows, in RAM, that are sampled."""

STRETCHES = 64
"""Parts of a large file from which its sample is read."""

SAMPLE_SEED = 0

LABELS = 1 << 20
"""Labels that are read at once."""

SWAMPED = 0.1
"""A column is swamped if its spread and its range are below this share of the largest ones."""

BAD_ROWS = 1000
"""Number of rows with values that are not finite after which the search for more ends."""

TEXT_BYTES = 32 << 20
"""Bytes of rows, in RAM, that are read from the beginning of a text."""

FOREIGN = "numbers with commas"
"""Kind of a column whose numbers have decimal commas or separators of thousands."""


@dataclass(frozen=True)
class Labels:
    """Measures of labels."""

    counts: dict[Any, int]  # rows of each label, sorted by label
    n_runs: int  # stretches of equal labels; as many as classes where rows are sorted by class
    n_missing: int  # labels that are NaN

    @property
    def sorted(self) -> bool:
        """Whether there are far fewer changes of label than in random order."""
        n = sum(self.counts.values())
        mixed = n - sum(count * count for count in self.counts.values()) / max(1, n)
        return len(self.counts) > 1 and n > 20 and self.n_runs - 1 < 0.1 * mixed


@dataclass(frozen=True)
class Findings:
    """Measures of rows."""

    n_looked: int  # rows that were read
    n_bad: int  # those with a value that is not finite; the other measures leave them out
    bad_example: str | None  # where the first such value is
    n_repeated: int  # rows that equal an earlier one
    density: float  # share of values that are not zero
    low: Float64Array  # range and standard deviation of each column
    high: Float64Array
    deviation: Float64Array

    @property
    def constant(self) -> Int64Array:
        """Columns of one value."""
        return np.flatnonzero(self.low == self.high)

    def swamping(self) -> tuple[Int64Array, int]:
        """Columns that outweigh others in a distance, the heaviest first, and how many others.

        Both the range and the deviation must differ: with columns scaled to one range, a rare 1
        among zeros has a small deviation, and with columns scaled to one deviation a large range.
        """
        spread = self.high - self.low
        if not len(spread) or not spread.max() > 0:
            return np.empty(0, dtype=np.int64), 0
        top = int(np.argmax(self.deviation))
        small = (self.deviation < SWAMPED * self.deviation[top]) & (spread < SWAMPED * spread[top])
        n_small = int(np.count_nonzero(small & (spread > 0)))
        heavy = np.flatnonzero(~small & (spread > 0))
        if n_small == 0:
            return heavy[:0], 0
        return heavy[np.argsort(-self.deviation[heavy], kind="stable")], n_small


def inspect_labels(source: RowSource) -> Labels | None:
    """Read all labels; None where there are none."""
    if not source.has_labels:
        return None
    starts = range(0, source.n_rows, LABELS)
    return count_labels(
        source.labels(start, min(source.n_rows, start + LABELS)) for start in starts
    )


def count_labels(blocks: Iterable[AnyArray]) -> Labels:
    """Count labels that arrive in blocks."""
    counts: Counter[Any] = Counter()
    n_runs = n_missing = 0
    last: Any = None
    for labels in blocks:
        if labels.dtype.kind == "f":
            there = ~np.isnan(labels)
            n_missing += len(labels) - int(np.count_nonzero(there))
            labels = labels[there]
        if len(labels) == 0:
            continue
        values, numbers = np.unique(labels, return_counts=True)
        counts.update(dict(zip(values.tolist(), numbers.tolist(), strict=True)))
        n_runs += int(np.count_nonzero(labels[1:] != labels[:-1])) + int(labels[0] != last)
        last = labels[-1]
    return Labels(dict(sorted(counts.items())), n_runs, n_missing)


def inspect_source(source: RowSource) -> Findings:
    """Measure all rows of a small source, or a sample; DamageError if it cannot be read."""
    sample = _Sample(source.n_features)
    for start, stop in sample_slices(source):
        for first, last in block_slices(source, start, stop):
            sample.read(source, first, last)
    return sample.findings()


def inspect_rows(blocks: Iterable[Rows]) -> Findings:
    """Measure rows whose width may grow from block to block."""
    sample = _Sample()
    for rows in blocks:
        sample.add(rows)
    return sample.findings()


def sample_slices(source: RowSource) -> list[tuple[int, int]]:
    """Rows to read: all of them, or short stretches from all parts of the file."""
    n_rows = source.n_rows
    wanted = max(STRETCHES, SAMPLE_BYTES * n_rows // max(1, source.decoded_bytes))
    if wanted >= n_rows:
        return [(0, n_rows)]
    rng = np.random.default_rng(SAMPLE_SEED)
    length = wanted // STRETCHES
    borders = [n_rows * place // STRETCHES for place in range(STRETCHES + 1)]
    starts = [
        int(rng.integers(begin, end - length, endpoint=True))
        for begin, end in itertools.pairwise(borders)
    ]
    return [(start, start + length) for start in starts]


class _Sample:
    """Ranges, moments and hashes of rows, block by block."""

    def __init__(self, n_features: int = 0) -> None:
        self._ranges = ColumnRanges("standard")
        self._n_features = n_features
        self._n_nonzero = self._n_bad = 0
        self._bad_example: str | None = None
        self._hashes = [np.empty(0, dtype=np.uint64)]

    def read(self, source: RowSource, start: int, stop: int) -> None:
        """Add rows of a source, and count those that it refuses one by one."""
        if self._n_bad >= BAD_ROWS:
            return
        try:
            self.add(source.read(start, stop))
        except DamageError:
            raise
        except InputError as error:
            if stop - start == 1:
                self._n_bad += 1
                self._bad_example = self._bad_example or str(error).partition(";")[0]
                return
            middle = (start + stop) // 2
            self.read(source, start, middle)
            self.read(source, middle, stop)

    def add(self, rows: Rows) -> None:
        self._ranges.add(rows)
        self._n_features = max(self._n_features, rows.shape[1])
        values = rows.data if isinstance(rows, CSRRows) else rows
        self._n_nonzero += int(np.count_nonzero(values))
        self._hashes.append(row_hashes(rows))

    def findings(self) -> Findings:
        """Measures of all rows that were added."""
        n_rows, width = self._ranges.n_rows, self._n_features
        low, high = self._ranges.range(width)
        deviation = self._ranges.moments(width)[1] if n_rows else np.zeros(width)
        hashes = np.concatenate(self._hashes)
        return Findings(
            n_rows + self._n_bad,
            self._n_bad,
            self._bad_example,
            len(hashes) - len(np.unique(hashes)),
            self._n_nonzero / max(1, n_rows * width),
            low,
            high,
            deviation,
        )


@dataclass(frozen=True)
class TableColumn:
    """What the first rows of a column of a table hold."""

    name: str
    kind: str  # "numbers", "words", FOREIGN, or "type" and the name of another type
    n_missing: int  # cells without a value
    n_different: int = 0  # different words; of numbers, 0
    low: float = 0.0  # range of the numbers
    high: float = 0.0


def inspect_table(reader: TableReader) -> tuple[int, list[TableColumn]]:
    """Read the first block of a table: the number of its rows, and what each column holds."""
    block = next(iter(reader.blocks()), None)
    if block is None:
        raise InputError(f"{reader.name} holds no rows; give a table with rows in it")
    usable = [name for name in reader.proper_columns if name not in reader.unusable]
    numbers = [n for n in usable if not (reader.untyped or n in reader.words)]
    words = [name for name in usable if name not in numbers]
    cells = reader.parse(block, Wanted(None, tuple(numbers), tuple(words), skip=True))
    found = {name: TableColumn(name, f"type {kind}", 0) for name, kind in reader.unusable.items()}
    if not isinstance(cells.numbers, CSRRows):
        for name, column in zip(numbers, cells.numbers.T, strict=True):
            found[name] = _number_column(name, column)
    for name, texts in zip(words, cells.words, strict=True):
        values = [parse_number(word) for word in texts.values]
        strange = [word for word, value in zip(texts.values, values, strict=True) if value is None]
        n_missing = int(np.count_nonzero(texts.codes < 0))
        if not reader.untyped or strange:
            foreign = reader.untyped and all(map(is_foreign_number, strange))
            kind, n_words = (FOREIGN, 0) if foreign else ("words", len(texts.values))
            found[name] = TableColumn(name, kind, n_missing, n_words)
        else:
            known = np.array([*values, np.nan], dtype=np.float64)
            found[name] = _number_column(name, known[texts.codes])
    return len(cells), [found[name] for name in reader.columns if name in found]


def _number_column(name: str, column: Float64Array) -> TableColumn:
    there = column[~np.isnan(column)]
    if len(there) == 0:
        return TableColumn(name, "numbers", len(column))
    low, high = float(there.min()), float(there.max())
    return TableColumn(name, "numbers", len(column) - len(there), 0, low, high)
