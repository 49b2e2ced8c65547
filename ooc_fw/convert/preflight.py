"""A look at data before training: what would spoil a model or waste a run, and what to do.

Of large files a sample of the rows is read, and all labels (8 bytes each); of tables, the first
block.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooc_fw.convert import tables
from ooc_fw.convert.readers import Words
from ooc_fw.convert.tables import Table, Wanted, is_foreign_number, listed, parse_number
from ooc_fw.convert.writer import count_labels
from ooc_fw.data.labels import MISSING_LABELS, iter_labels
from ooc_fw.data.offsets import merges
from ooc_fw.data.rows import (
    AnyArray,
    CSRRows,
    Float64Array,
    Int64Array,
    Rows,
    concat_rows,
    rounded,
    row_hashes,
    take_rows,
    values_of,
)
from ooc_fw.data.sources import RowSource, block_slices
from ooc_fw.data.statistics import ColumnRanges
from ooc_fw.system.errors import InputError

SAMPLE_BYTES = 32 << 20  # bytes of rows, in RAM, that are sampled
STRETCHES = 16  # parts of a large file from which its sample is read
WIDE = 1 << 16  # columns above which those of sparse rows are not measured

SWAMPED = 0.1  # share of the widest range below which a column hardly counts
MANY_CLASSES = 100  # labels above which they are no classes
MANY_ORDERS = 1e4  # times its smallest value, or 1, above which logarithms suit a column
MOST_HOT = 30  # words of a column that had better become features of 0 and 1
MOST_NAMES = 0.9  # share of the rows with different words above which these are names of rows
YEAR = 3e7  # seconds that dates are taken to range over
# Names of columns that number rows or things, if many of their values differ.
IDENTIFIER = re.compile(
    r"(?i:(?:(?:^|[ _.])(?:id|key|no|nr|uuid|guid)|^index|^Unnamed: 0)$)|[a-z]I[Dd]$"
)
NO_LABEL = ("", "?", "nan", "na", "n/a", "none", "null", "unknown", "unlabelled", "unlabeled")
# Names of columns of labels, the most likely first.
LABEL_NAMES = (
    "label labels class classes target y category outcome type annotation cluster leiden louvain"
).split()

Advice = Iterator[tuple[str, ...]]
"""Sentences, which may be empty, each with the options of a conversion that follow from it."""


def likely_label(names: Sequence[str]) -> str | None:
    """Which column holds the labels, by its name; None if no name tells."""
    bare = {name.rpartition("/")[2].lower(): name.removeprefix("obs/") for name in reversed(names)}
    found = [bare[word] for word in LABEL_NAMES if word in bare]
    parts = (word for word in LABEL_NAMES if len(word) > 1)
    found += [whole for part in parts for name, whole in bare.items() if part in name]
    return found[0] if found else None


def outweighing(low: Float64Array, high: Float64Array) -> tuple[Int64Array, int]:
    """Columns that outweigh others in a distance, the widest first, and how many others."""
    spread = high - low
    is_small = (spread > 0) & (spread < SWAMPED * spread.max(initial=0))
    heavy = np.flatnonzero(~is_small & (spread > 0) & is_small.any())
    return heavy[np.argsort(-spread[heavy], kind="stable")], int(np.count_nonzero(is_small))


def _on_scales(names: Sequence[object], low: AnyArray, high: AnyArray, kind: str) -> Advice:
    heavy, n_small = outweighing(low, high)
    if n_small:
        shown = listed([str(names[j]) for j in heavy.tolist()])
        yield (
            f"the columns are not scaled alike: next to {shown} (from {low[heavy[0]]:g} to "
            f"{high[heavy[0]]:g}) {n_small} others hardly count in distances and RBF kernels; "
            f"convert with --scale {kind}",
            *("--scale", kind),
        )


def _on_labels(n_different: int, n_missing: int, *, are_amounts: bool) -> Advice:
    if n_missing:
        way = "training refuses them; --missing-labels drop leaves out their rows"
        yield f"{n_missing} labels are missing: {way}", "--missing-labels", "drop"
    if n_different == 1:
        yield ("all labels that were read are the same: training needs two classes or more",)
    if are_amounts:
        said = f"there are {n_different} different labels: if they are amounts, --task regression"
        yield f"{said} makes them targets", "--task", "regression"


@dataclass(frozen=True)
class Findings:
    """Measures of rows and labels."""

    n_looked: int  # rows that were read
    n_bad: int  # those with a value that is not finite; the other measures leave them out
    n_repeated: int  # rows that equal an earlier one
    density: float  # share of values that are not zero
    low: Float64Array  # range of each column; empty for wide sparse rows
    high: Float64Array
    are_counts: bool  # whether values are counts of molecules, words and the like
    counts: dict[Any, int] | None = None  # rows of each label, sorted; None without labels
    n_unlabelled: int = 0  # labels that are NaN


def inspect_source(source: RowSource) -> Findings:
    """Measure all rows of a small source, or a sample, and all labels."""
    pieces = [piece for part in sample_slices(source) for piece in block_slices(source, *part)]
    rows = concat_rows([rounded(source.read_unchecked(*piece)) for piece in pieces])
    n_looked = len(rows)
    rows = _finite(rows)
    values = values_of(rows)
    is_wide = source.sparse and source.n_features > WIDE
    ranges = ColumnRanges() if is_wide else ColumnRanges().add(rows)
    return Findings(
        n_looked,
        n_looked - len(rows),
        len(rows) - len(np.unique(row_hashes(rows))),
        np.count_nonzero(values) / max(1, len(rows) * source.n_features),
        *ranges.range(0 if is_wide else source.n_features),
        bool(values.min(initial=0) >= 0 and values.max(initial=0) > 1 and not (values % 1).any()),
        *_count_labels(source),
    )


def _count_labels(source: RowSource) -> tuple[dict[Any, int] | None, int]:
    if not source.has_labels:
        return None, 0
    counts: Counter[Any] = Counter()
    for _, labels in iter_labels(source):
        counts.update(count_labels(labels))
    missing = [label for label in counts if label != label]  # NaN
    n_missing = sum(counts.pop(label) for label in missing)
    return dict(sorted(counts.items())), n_missing


def sample_slices(source: RowSource) -> list[tuple[int, int]]:
    """Rows to read: all of them, or stretches that are spaced evenly over the file."""
    n_rows = source.n_rows
    length = max(1, SAMPLE_BYTES * n_rows // max(1, source.decoded_bytes) // STRETCHES)
    if length * STRETCHES >= n_rows:
        return [(0, n_rows)]
    starts = np.linspace(0, n_rows - length, STRETCHES).astype(np.int64)
    return [(start, start + length) for start in starts.tolist()]


def _finite(rows: Rows) -> Rows:
    """Rows whose values are all finite."""
    places = np.flatnonzero(~np.isfinite(values_of(rows)))
    row_of = rows.row_numbers()[places] if isinstance(rows, CSRRows) else places // rows.shape[1]
    return take_rows(rows, np.delete(np.arange(len(rows)), row_of))


def advice(found: Findings, source: RowSource) -> Advice:
    """What would spoil a model or slow a run, the most serious first."""
    is_raw = source.scaling is None
    if found.n_bad:
        yield (
            f"{found.n_bad} of {found.n_looked} rows hold values that are missing or not finite: "
            f"training refuses them; replace them, or convert with --impute mean",
            *("--impute", "mean"),
        )
    if found.counts is None:
        names = source.label_columns
        more = ("--label", likely_label(names) or "COLUMN") if names else ()
        yield f"there are no labels: {source.labels_hint}", *more
    elif source.targets:
        yield "", "--task", "regression"
    else:
        are_amounts = len(found.counts) > MANY_CLASSES
        yield from _on_labels(len(found.counts), found.n_unlabelled, are_amounts=are_amounts)
        for label, count in found.counts.items():
            if str(label).lower() in NO_LABEL:
                yield (
                    f"class {label or repr('')} ({count} of {source.n_rows} rows) looks like a "
                    f"missing label and would be learned as a class: leave its rows out",
                )
    if is_raw and merges(source):
        yield "", "--scale", "standard"
    elif is_raw and found.are_counts and source.columns is not None and source.table is None:
        yield "", "--log1p", "--scale", "maxabs"
    elif source.scaling is None or source.scaling.is_identity:
        kind = "maxabs" if found.density < 0.5 else "standard"
        columns: Sequence[object] = source.columns or range(source.n_features)
        yield from _on_scales(columns, found.low, found.high, kind)
    if not source.shuffled:
        yield (
            "the rows may be in any order: training then samples from all over the file, which is "
            "slower; ooc-fw convert shuffles once (a test file needs no shuffling)",
        )
    if is_raw and (found.density > 0.5 if source.sparse else found.density < 0.1):
        yield "", "--dense" if source.sparse else "--sparse"


@dataclass(frozen=True)
class TableColumn:
    """What the first rows of a column of a table hold."""

    name: str
    kind: str  # "numbers", "words", "dates", "numbers with commas", or "type" and another type
    n_missing: int = 0  # cells without a value, or with a word such as NA
    n_different: int = 0  # different values
    low: float = 0.0  # range of numbers, or of the 0 and 1 that words become
    high: float = 1.0
    are_whole: bool = True  # whether its numbers are whole

    def facts(self) -> dict[str, Any]:
        """What it holds, as JSON has it."""
        more: dict[str, Any] = {}
        if self.kind == "numbers":
            more = {"low": self.low, "high": self.high}
        elif self.kind == "words":
            more = {"different": self.n_different}
        return {"holds": self.kind, "missing": self.n_missing, **more}

    def option(self, most_words: float) -> str:
        """Option that names it, "" for numbers; words are encoded up to so many different ones."""
        if self.kind == "dates":
            return "--dates"
        many = self.n_different > MOST_HOT
        is_empty = self.kind not in ("numbers", "words") or self.n_different == 0
        if is_empty or (many and self.are_whole and IDENTIFIER.search(self.name)):
            return "--drop"
        if self.kind == "numbers":
            return ""
        if not many:
            return "--one-hot"
        return "--target-encode" if self.n_different <= most_words else "--drop"


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
    assert not isinstance(cells.numbers, CSRRows)  # sparse rows are in stores, which are no tables
    found = {
        name: TableColumn(name, "dates" if tables.may_be_dates(kind) else f"type {kind}")
        for name, kind in table.kinds.items()
        if kind not in tables.USABLE
    }
    for name, column in zip(numbers, cells.numbers.T, strict=True):
        found[name] = _number_column(name, column)
    for name, texts in zip(words, cells.words, strict=True):
        found[name] = _word_column(name, texts, is_text=kinds[name] == tables.TEXT)
    columns = [found[name] for name in table.columns if name in found]
    return len(cells.labels), columns, cells.skipped


def _word_column(name: str, column: Words, *, is_text: bool) -> TableColumn:
    """A column of words, which may be dates, or in text numbers."""
    numbers = {word: parse_number(word) for word in column.values}
    strange = [word for word, number in numbers.items() if number is None]
    n_empty = int(np.count_nonzero(column.codes < 0))
    if strange and all(np.isfinite(tables.seconds_in(word)) for word in strange):
        return TableColumn(name, "dates", n_empty)
    if is_text and not strange:
        return _number_column(name, np.array([*numbers.values(), np.nan], float)[column.codes])
    if is_text and all(map(is_foreign_number, strange)):
        return TableColumn(name, "numbers with commas", n_empty)
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
) -> Advice:
    """How to convert a table whose first rows were looked at."""
    likely = label or likely_label([column.name for column in columns])
    said = f"no column is named as the labels, and {likely!r} may hold them; else give --label"
    yield said * (label is None and likely is not None), "--label", likely or "COLUMN"
    if bad:
        yield (
            f"{len(bad)} of the first rows cannot be read ({bad[0]}): correct them, or leave them "
            f"out with --on-error skip",
            *("--on-error", "skip"),
        )
    of_label = next((c for c in columns if c.name == likely), TableColumn("", "words"))
    are_amounts = of_label.kind == "numbers"
    are_amounts &= not of_label.are_whole or of_label.n_different > MANY_CLASSES
    yield from _on_labels(of_label.n_different, of_label.n_missing, are_amounts=are_amounts)
    share = MOST_NAMES * (of_label.n_different != 1)  # target encoding needs two classes
    uses: dict[str, list[TableColumn]] = {
        option: [] for option in ("", "--one-hot", "--target-encode", "--dates", "--drop")
    }
    for c in columns:
        if c.name != likely:
            uses[c.option(share * (n_looked - c.n_missing))].append(c)
    numbers = uses.pop("")
    hot = uses["--one-hot"]
    dates = uses["--dates"]
    said = (
        "--drop leaves out what is empty, names the rows, or is neither numbers, dates nor "
        f"categories: {', '.join(f'{c.name} ({c.kind})' for c in uses['--drop'])}"
    )
    for option, chosen in uses.items():
        if chosen:
            yield said * (option == "--drop"), option, _joined(chosen)
    plain = [*numbers, *hot, *dates]
    if any(c.n_missing for c in plain):
        yield "", "--impute", "mean"
    is_steep = any(c.high > MANY_ORDERS * max(1, c.low) for c in numbers)
    if is_steep and all(c.low >= 0 for c in numbers):
        yield "", "--log1p"
    # Rows that are mostly zeros stay sparse if the scaling leaves zeros what they are.
    is_thin = 3 * (len(numbers) + len(hot)) < sum(c.n_different for c in hot) and not dates
    low = np.array([c.low for c in plain])
    high = np.array([YEAR if c.kind == "dates" else c.high for c in plain])
    yield from _on_scales([c.name for c in plain], low, high, "maxabs" if is_thin else "standard")


def _joined(columns: Sequence[TableColumn]) -> str:
    """Names as an option expects them: with commas between, and quotes around names with commas."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow([c.name for c in columns])
    return line.getvalue()
