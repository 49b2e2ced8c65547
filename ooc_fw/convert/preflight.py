"""A look at data before training: what would spoil a model or waste a run, and what to do.

Small files are read whole. Of large ones, labels are read whole (8 bytes each), and rows are
sampled from all parts of the file, at a cost that does not grow with it.
"""

from __future__ import annotations

import csv
import io
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ooc_fw.convert import tables
from ooc_fw.convert.csv_table import is_foreign_number, parse_number
from ooc_fw.convert.tables import Table, Wanted, listed
from ooc_fw.convert.writer import count_labels
from ooc_fw.data.labels import MISSING_LABELS, iter_labels
from ooc_fw.data.offsets import merges
from ooc_fw.data.rows import (
    CSRRows,
    Float64Array,
    Int64Array,
    Rows,
    rounded,
    row_hashes,
    take_rows,
    values_of,
)
from ooc_fw.data.sources import RowSource, block_slices
from ooc_fw.data.statistics import ColumnRanges
from ooc_fw.system.errors import InputError

WIDE = 1 << 16  # columns above which only those of sparse rows that hold values are measured
SAMPLE_BYTES = 64 << 20  # bytes of rows, in RAM, that are sampled
SAMPLE_ROWS = 1 << 20  # most rows of the sample, of which repeated ones are counted
STRETCHES = 64  # parts of a large file from which its sample is read
MAX_DECODED = 1 << 30  # bytes of chunks that are decoded for the sample, or one chunk

SWAMPED = 0.1  # share of the largest spread and range below which those of a column hardly count
FOREIGN = "numbers with commas"  # decimal ones, or separators of thousands
DATES = "dates"  # kind of a column
MANY_ORDERS = 1e4  # times its smallest value, or 1, above which logarithms suit a column
MANY_CLASSES = 100  # labels above which they are no classes
YEAR = 3e7  # seconds that dates are taken to range over
MOST_HOT = 30  # words of a column that had better become features of 0 and 1
NAMES = 0.9  # share of the rows with different words above which these are names of rows
# Names of columns that number rows or things, if many of their values differ.
IDENTIFIER = re.compile(
    r"(?i:(?:(?:^|[ _.])(?:id|key|no|nr|uuid|guid)|^index|^Unnamed: 0)$)|[a-z]I[Dd]$"
)
NO_LABEL = ("", "?", "nan", "na", "n/a", "none", "null", "unknown", "unlabelled", "unlabeled")
# Names of columns of labels, the most likely first.
LABEL_NAMES = "label labels class classes target y category outcome type annotation".split()
LABEL_NAMES += "cluster leiden louvain".split()


def likely_label(names: Sequence[str]) -> str | None:
    """Which column holds the labels, by its name; None if no name tells."""
    bare = {name.rpartition("/")[2].lower(): name.removeprefix("obs/") for name in reversed(names)}
    found = [bare[word] for word in LABEL_NAMES if word in bare]
    parts = (word for word in LABEL_NAMES if len(word) > 1)
    found += [whole for part in parts for name, whole in bare.items() if part in name]
    return found[0] if found else None


@dataclass(frozen=True)
class Findings:
    """Measures of rows and labels."""

    n_looked: int  # rows that were read
    n_bad: int  # those with a value that is not finite; the other measures leave them out
    n_repeated: int  # rows that equal an earlier one
    density: float  # share of values that are not zero
    columns: Int64Array  # those that are measured: of wide sparse rows, those that hold a value
    low: Float64Array  # range and standard deviation of each of them
    high: Float64Array
    deviation: Float64Array
    are_whole: bool  # whether all values are whole numbers
    counts: dict[Any, int] | None = None  # rows of each label, sorted; None without labels
    n_unlabelled: int = 0  # labels that are NaN

    @property
    def constant(self) -> Int64Array:
        """Places in `columns` of those of one value."""
        return np.flatnonzero(self.low == self.high)

    def swamping(self) -> tuple[Int64Array, int]:
        """Columns that outweigh others in a distance, the heaviest first, and how many others.

        Both the range and the deviation must differ: after scaling to one range, a rare 1 among
        zeros has a small deviation, and after scaling to one deviation a large range.
        """
        spread = self.high - self.low
        if not len(spread) or not spread.max() > 0:
            return np.empty(0, dtype=np.int64), 0
        top = int(np.argmax(self.deviation))
        small = (self.deviation < SWAMPED * self.deviation[top]) & (spread < SWAMPED * spread[top])
        n_small = int(np.count_nonzero(small & (spread > 0)))
        heavy = np.flatnonzero(~small & (spread > 0) & (n_small > 0))
        return heavy[np.argsort(-self.deviation[heavy], kind="stable")], n_small

    @property
    def scale_kind(self) -> str:
        """The scaling that suits the rows: one that keeps the zeros of sparse ones."""
        return "maxabs" if self.density < 0.5 else "standard"


def inspect_source(source: RowSource) -> Findings:
    """Measure all rows of a small source, or a sample, and all labels."""
    slices = sample_slices(source)
    pieces = [piece for part in slices for piece in block_slices(source, *part)]
    parts = [_finite(rounded(source.read_unchecked(first, last))) for first, last in pieces]
    width = source.n_features
    if width > WIDE and source.sparse:
        stored = [rows.indices for rows in parts if isinstance(rows, CSRRows)]
        columns = np.unique(np.concatenate(stored)).astype(np.int64)
    else:
        columns = np.arange(width)
    ranges = ColumnRanges("standard")
    for rows in parts:
        if isinstance(rows, CSRRows) and len(columns) < width:
            places = np.searchsorted(columns, rows.indices).astype(np.int32)
            rows = replace(rows, indices=places, n_features=len(columns))
        ranges.add(rows)
    n_rows, n_columns = ranges.n_rows, len(columns)
    values = [values_of(rows) for rows in parts]
    n_looked = sum(stop - start for start, stop in slices)
    counts, n_unlabelled = _count_labels(source)
    return Findings(
        n_looked,
        n_looked - n_rows,
        n_rows - len(np.unique(np.concatenate([row_hashes(rows) for rows in parts]))),
        float(sum(map(np.count_nonzero, values))) / max(1, n_rows * width),
        columns,
        *ranges.range(n_columns),
        ranges.moments(n_columns)[1] if n_rows else np.zeros(n_columns),
        not any(np.mod(part, 1).any() for part in values),
        counts,
        n_unlabelled,
    )


def _count_labels(source: RowSource) -> tuple[dict[Any, int] | None, int]:
    if not source.has_labels:
        return None, 0
    counts: Counter[Any] = Counter()
    n_missing = 0
    for _, labels in iter_labels(source):
        if labels.dtype.kind == "f":
            is_missing = np.isnan(labels)
            n_missing += int(np.count_nonzero(is_missing))
            labels = labels[~is_missing]
        counts.update(count_labels(labels))
    return dict(sorted(counts.items())), n_missing


def sample_slices(source: RowSource) -> list[tuple[int, int]]:
    """Rows to read: all of them, or short stretches from all parts of the file."""
    n_rows = source.n_rows
    wanted = max(STRETCHES, SAMPLE_BYTES * n_rows // max(1, source.decoded_bytes))
    wanted = min(SAMPLE_ROWS, wanted)
    if wanted >= n_rows:
        return [(0, n_rows)]
    n_stretches = STRETCHES
    if source.compressed:  # each stretch decodes whole chunks
        n_chunks = MAX_DECODED * n_rows // max(1, source.decoded_bytes * source.chunk_rows)
        n_stretches = min(STRETCHES, max(1, n_chunks))
    length = wanted // n_stretches
    borders = n_rows * np.arange(n_stretches + 1) // n_stretches
    rng = np.random.default_rng(0)
    starts = rng.integers(borders[:-1], borders[1:] - length, endpoint=True)
    return [(start, start + length) for start in starts.tolist()]


def _finite(rows: Rows) -> Rows:
    """Rows whose values are all finite."""
    places = np.flatnonzero(~np.isfinite(values_of(rows)))
    row_of = rows.row_numbers()[places] if isinstance(rows, CSRRows) else places // rows.shape[1]
    return take_rows(rows, np.delete(np.arange(len(rows)), row_of))


def preparation(found: Findings, source: RowSource) -> list[str] | None:
    """Options of the conversion that suits rows; None if they are ready for training."""
    if source.scaling is not None:
        return None  # it is converted
    options = ["--impute", "mean"] * bool(found.n_bad)
    if merges(source):
        options += ["--scale", "standard"]
    elif _are_counts(found, source):
        options += ["--log1p", "--scale", "maxabs"]
    elif found.swamping()[1]:
        options += ["--scale", found.scale_kind]
    if source.sparse:
        options += ["--dense"] * (found.density > 0.5)
    else:
        options += ["--sparse"] * (found.density < 0.1 and source.n_features > 10)
    return options if options or not source.shuffled else None


def of_labels(found: Findings, source: RowSource, *, converts: bool) -> list[str]:
    """Options that the labels of a source need, of ``train``, or of the conversion before it."""
    if found.counts is None:
        names = source.label_columns
        return ["--label", likely_label(names) or "COLUMN"] if names else []
    if source.targets:
        return ["--task", "regression"]
    words = [word for word in map(str, found.counts) if word.lower() in NO_LABEL]
    return ["--missing-labels", f"drop={words[0]}"] if words and converts else []


def _are_counts(found: Findings, source: RowSource) -> bool:
    """Whether columns with names, as AnnData has, hold counts of molecules, words and the like."""
    if source.columns is None or source.table is not None or not found.are_whole:
        return False
    return bool(found.low.min() >= 0 and found.high.max() > 1)


def column_names(found: Findings, places: Int64Array, source: RowSource) -> list[Any]:
    """Names of measured columns, or their numbers where they have no names."""
    names = source.columns
    return [j if names is None else names[j] for j in found.columns[places].tolist()]


def advice(found: Findings, source: RowSource) -> Iterator[str]:
    """Sentences on what would spoil a model or slow a run, the most serious first."""
    if found.n_bad:
        yield (
            f"{found.n_bad} of {found.n_looked} rows hold values that are missing or not finite: "
            f"training refuses them; replace them, or convert with --impute mean"
        )
    if found.counts is None:
        yield f"there are no labels: {source.labels_hint}"
    elif not source.targets:
        yield from _advice_on_labels(found.counts, found.n_unlabelled)
    heavy, n_small = found.swamping()
    if n_small and (source.scaling is None or source.scaling.is_identity):
        j = int(heavy[0])
        shown = listed([str(name) for name in column_names(found, heavy, source)])
        yield (
            f"the columns are not scaled alike: next to {shown} (from {found.low[j]:g} to "
            f"{found.high[j]:g}) {n_small} others hardly count in distances and RBF kernels; "
            f"convert the source with --scale {found.scale_kind}"
        )
    if not source.shuffled:
        yield (
            "the rows may be in any order: training then samples from all over the file, which is "
            "slower; ooc-fw convert shuffles once (a test file needs no shuffling)"
        )


def _advice_on_labels(counts: dict[Any, int], n_missing: int) -> Iterator[str]:
    if n_missing:
        yield f"{n_missing} labels are missing: training refuses them; leave the rows out"
    total = sum(counts.values())
    if len(counts) == 1:
        yield "all rows that were read have the same label: training needs two classes or more"
    elif len(counts) > MANY_CLASSES:
        yield (
            f"there are {len(counts)} different labels: if they are amounts and not classes, this "
            f"is regression, train with --task regression"
        )
    elif counts:
        for label, count in counts.items():
            if str(label).lower() in NO_LABEL:
                yield (
                    f"class {label or repr('')} ({count} of {total} rows) looks like a missing "
                    f"label and would be learned as a class: leave such rows out, by convert "
                    f"--missing-labels {shlex.quote(f'drop={label}')}"
                )
        rare, count = min(counts.items(), key=lambda item: item[1])
        if count < 0.02 * total:
            word = f"{rare:g}" if isinstance(rare, float) else rare
            yield (
                f"class {word} has {count} of {total} rows ({100 * count / total:.2g} %): "
                f"accuracy says little about it; look at the balanced accuracy"
            )


@dataclass(frozen=True)
class TableColumn:
    """What the first rows of a column of a table hold."""

    name: str
    kind: str  # "numbers", "words", FOREIGN, DATES, or "type" and the name of another type
    n_missing: int = 0  # cells without a value, or with a word such as NA
    n_different: int = 0  # different values
    low: float = 0.0  # range of the numbers
    high: float = 0.0
    are_whole: bool = True  # whether the numbers are whole

    @property
    def identifies(self) -> bool:
        """Whether it numbers rows or things."""
        return bool(self.n_different > MOST_HOT and self.are_whole and IDENTIFIER.search(self.name))


def inspect_table(table: Table) -> tuple[int, list[TableColumn], tuple[str, ...]]:
    """Rows of the first block that can be read, its columns, and what is wrong with other rows."""
    kinds = {name: table.kinds[name] for name in table.proper_columns}
    numbers = [name for name, kind in kinds.items() if kind in (tables.NUMBERS, tables.BOOLEANS)]
    words = [name for name, kind in kinds.items() if kind in (tables.WORDS, tables.TEXT)]
    table.choose(Wanted(None, tuple(numbers), tuple(words)))
    block = next(iter(table.blocks()), None)
    if block is None:
        raise InputError(f"{table.name} holds no rows; give a table with rows in it")
    cells = table.cells(block)
    found = {
        name: TableColumn(name, DATES if tables.may_be_dates(kind) else f"type {kind}")
        for name, kind in table.kinds.items()
        if kind not in tables.USABLE
    }
    if not isinstance(cells.numbers, CSRRows):
        for name, column in zip(numbers, cells.numbers.T, strict=True):
            found[name] = _number_column(name, column)
    for name, column in zip(words, cells.words, strict=True):
        found[name] = _word_column(name, column, is_text=kinds[name] == tables.TEXT)
    return (
        len(cells.labels),
        [found[name] for name in table.columns if name in found],
        cells.skipped,
    )


def _word_column(name: str, column: Any, *, is_text: bool) -> TableColumn:
    """A column of words, which may be dates, or in text numbers."""
    numbers = {word: parse_number(word) for word in column.values}
    strange = [word for word, number in numbers.items() if number is None]
    n_empty = int(np.count_nonzero(column.codes < 0))
    if strange and all(np.isfinite(tables.seconds_in(word)) for word in strange):
        return TableColumn(name, DATES, n_empty)
    if is_text and not strange:
        return _number_column(name, np.array([*numbers.values(), np.nan], float)[column.codes])
    if is_text and all(map(is_foreign_number, strange)):
        return TableColumn(name, FOREIGN, n_empty)
    known = [k for k, word in enumerate(column.values) if word not in MISSING_LABELS]
    n_missing = int(np.count_nonzero(~np.isin(column.codes, known)))
    return TableColumn(name, "words", n_missing, len(known))


def _number_column(name: str, column: Float64Array) -> TableColumn:
    there = column[~np.isnan(column)]
    low, high = (float(there.min()), float(there.max())) if len(there) else (0.0, 0.0)
    n_missing = len(column) - len(there)
    are_whole = not np.mod(there, 1).any()
    return TableColumn(name, "numbers", n_missing, len(np.unique(there)), low, high, are_whole)


def advice_on_table(
    columns: Sequence[TableColumn], n_looked: int, label: str | None, bad: Sequence[str] = ()
) -> tuple[list[str], list[str]]:
    """How to convert a table whose first rows were looked at: sentences, and options."""
    said: list[str] = []
    if bad:
        said.append(
            f"{len(bad)} of the first rows cannot be read ({bad[0]}): correct them, or leave them "
            f"out with --on-error skip"
        )
    if label is None and (label := likely_label([column.name for column in columns])):
        said.append(
            f"no column is named as the labels, and {label!r} may hold them; else give --label"
        )
    options = ["--label", label or "COLUMN", *["--on-error", "skip"] * bool(bad)]
    can_encode = True
    for column in columns:
        if column.name == label:
            can_encode = column.n_different != 1  # which needs two classes
            for sentence, *more in _advice_on_label(column):
                said.append(sentence)
                options += more
    features = [c for c in columns if c.name != label]
    known = [c for c in features if c.n_different and not c.identifies]
    words = [c for c in known if c.kind == "words"]
    hot = [c for c in words if c.n_different <= MOST_HOT]
    encoded = [c for c in words if MOST_HOT < c.n_different <= NAMES * (n_looked - c.n_missing)]
    encoded *= can_encode
    dates = [c for c in features if c.kind == DATES]
    numbers = [c for c in known if c.kind == "numbers"]
    dropped = [c for c in features if c not in (*hot, *encoded, *dates, *numbers)]
    for option, chosen in (
        ("--one-hot", hot),
        ("--target-encode", encoded),
        ("--dates", dates),
        ("--drop", dropped),
    ):
        if chosen:
            options += [option, _joined([c.name for c in chosen])]
    if dropped:
        said.append(
            f"--drop leaves out what is empty, names the rows, or is neither numbers, dates nor "
            f"categories: {', '.join(f'{c.name} ({c.kind})' for c in dropped)}"
        )
    if any(c.n_missing for c in (*hot, *dates, *numbers)):
        options += ["--impute", "mean"]
    ranges = {c.high - c.low: c.name for c in numbers if c.low != c.high}
    ranges |= {1.0: f"{hot[0].name}, 0 or 1"} if hot else {}
    ranges |= {YEAR: dates[0].name} if dates else {}
    if ranges and min(ranges) < SWAMPED * max(ranges):
        grow = any(c.high > MANY_ORDERS * max(1, c.low) for c in numbers)
        options += ["--log1p"] * (grow and all(c.low >= 0 for c in numbers))
        # Rows that are mostly zeros stay sparse if the scaling leaves zeros what they are.
        width = len(numbers) + sum(c.n_different for c in hot)
        is_thin = 4 * (len(numbers) + len(hot)) < width and not dates
        options += ["--scale", "maxabs" if is_thin else "standard"]
        low, high = min(ranges), max(ranges)
        said.append(
            f"the ranges of the columns go from {low:g} ({ranges[low]}) to {high:g} "
            f"({ranges[high]}): scale them, or the large ones swamp the others in an RBF kernel"
        )
    return said, options


def _advice_on_label(column: TableColumn) -> Iterator[tuple[str, ...]]:
    """What is to be said of the labels of a table, and the options that follow."""
    if column.n_different == 1:
        yield (f"all labels in {column.name} are the same: training needs two classes",)
    if column.n_missing:
        yield (
            f"{column.n_missing} labels are missing: --missing-labels drop leaves out their rows",
            "--missing-labels",
            "drop",
        )
    if column.kind == "numbers" and not (column.are_whole and column.n_different <= MANY_CLASSES):
        yield (
            f"the labels in {column.name} are amounts: --task regression makes them targets",
            "--task",
            "regression",
        )


def _joined(names: Sequence[str]) -> str:
    """Names as an option expects them: with commas between, and quotes around names with commas."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(names)
    return line.getvalue()
