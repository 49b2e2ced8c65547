"""The two passes: parse the inputs into the spool, then scale and write the rows in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from ooc_fw._core.rows import drop_zeros, write_dense_rows
from ooc_fw.convert.columns import LogTable, count_labels
from ooc_fw.convert.libsvm import LineEncoder
from ooc_fw.convert.like import TrainingFile
from ooc_fw.convert.pipeline import Meter, default_threads, ordered_map, prefetch
from ooc_fw.convert.readers import EXAMPLES, Parse, ParsedBlock, Reader
from ooc_fw.convert.spool import RowBlock, Spool
from ooc_fw.convert.tables import MAX_CLASSES, TableEncoder, too_many_classes
from ooc_fw.convert.writer import DatasetWriter, Layout, chunk_rows
from ooc_fw.data.ranges import FEW_STEPS, ColumnRanges, ColumnSums
from ooc_fw.data.rows import CSRRows, Float64Array, Rows, as_float32
from ooc_fw.data.scaling import Scaling
from ooc_fw.options import ConvertOptions
from ooc_fw.system.errors import InputError

Encoder: TypeAlias = LineEncoder | TableEncoder

PIECE_BYTES = 2 << 20
"""Bytes of rows that are scaled and written at once."""

MAX_FEATURES = 1 << 26
"""Widest file. Statistics take up to 64 bytes per column, and one stray index must not exhaust
memory."""

WIDE = 1 << 14
"""Number of columns above which ranges are not merged block by block: merging would take longer."""


@dataclass(frozen=True)
class Job:
    """What both passes need; `scaling` is complete with `like`, else it tells log1p alone."""

    options: ConvertOptions
    target: Path
    like: TrainingFile | None
    n_features: int | None
    readers: Sequence[Reader]
    encoder: Encoder
    scaling: Scaling
    spool: Spool
    meter: Meter

    @property
    def name(self) -> str:
        """The inputs, for messages."""
        return ", ".join(reader.name for reader in self.readers)


@dataclass(frozen=True, slots=True)
class _Summed:
    """A block and what is computed from it alone.

    `ranges` is None for blocks that are too wide to be merged. `exact_ranges` are those before
    rounding, where the difference may matter.
    """

    parsed: ParsedBlock
    ranges: ColumnRanges | None
    exact_ranges: ColumnRanges | None
    class_counts: dict[float, int]


@dataclass
class FirstPass:
    """What is known of the input, block by block."""

    ranges: ColumnRanges
    exact_ranges: ColumnRanges | None = None
    class_counts: Counter[float] = field(default_factory=Counter)
    n_rows: int = 0
    width: int = 0
    n_dropped: int = 0
    n_skipped: int = 0
    skipped: list[str] = field(default_factory=list)

    def add(self, summed: _Summed, name: str) -> None:
        """Add a block of the input `name`."""
        block = summed.parsed
        if block.rows.n_features > MAX_FEATURES:
            raise InputError(
                f"{name} has a feature index of {block.rows.n_features}, and the limit is "
                f"{MAX_FEATURES}; if it is a stray one, leave wide features out with --n-features"
            )
        if summed.ranges is None:
            self.ranges.add(block.rows)
        else:
            self.ranges.merge(summed.ranges)
        self.exact_ranges = self.exact_ranges or summed.exact_ranges
        self.class_counts.update(summed.class_counts)
        if len(self.class_counts) > MAX_CLASSES:
            raise too_many_classes(name)
        self.n_rows += len(block.rows)
        self.width = max(self.width, block.width)
        self.n_dropped += block.n_dropped
        self.n_skipped += block.n_skipped
        self.skipped += block.skipped[: EXAMPLES - len(self.skipped)]


def parse_inputs(job: Job) -> FirstPass:
    """Parse all inputs into the spool.

    Blocks are parsed by several threads and come back in the order of the input, which numbers
    their rows; then several threads spool them.
    """
    first = FirstPass(ColumnRanges(job.options.scale))
    summing = _Summing(job)

    def numbered() -> Iterator[RowBlock]:
        for reader in job.readers:
            step = partial(summing, job.encoder.parser(reader))
            blocks = enumerate(reader.blocks())
            for block in ordered_map(step, blocks, threads=default_threads()):
                row_ids = np.arange(first.n_rows, first.n_rows + len(block.parsed.rows))
                first.add(block, reader.name)
                job.meter.at(sum(reader.bytes_read for reader in job.readers))
                yield RowBlock(block.parsed.rows, block.parsed.labels, row_ids)

    if job.spool.seed is not None:
        for _ in ordered_map(job.spool.add, numbered(), threads=default_threads()):
            pass
    else:
        for block in numbered():
            job.spool.add(block)
    job.meter.next_pass()
    if not first.n_rows:
        raise InputError(f"{job.name} holds no rows; {job.encoder.hint}")
    return first


class _Summing:
    """Parses a block and sums up what needs no other block; for any thread."""

    def __init__(self, job: Job) -> None:
        self._ranges = ColumnRanges(job.options.scale)
        self._logs = LogTable(job.scaling) if job.scaling.log1p else None
        self._exact_parser = job.encoder.exact_parser
        self._rounds = job.spool.dtype == np.float32

    def __call__(self, parse: Parse, numbered: tuple[int, Any]) -> _Summed:
        number, block = numbered
        parsed = parse(block)
        rows = parsed.rows
        if self._logs is not None:
            self._logs.apply(rows.data)
        ranges = self._ranges.of(rows) if rows.n_features <= WIDE else None
        exact = None
        if (
            self._exact_parser is not None
            and number == 0
            and ranges is not None
            and _narrow(ranges)
        ):
            exact = self._ranges.of(self._exact_parser(block).rows)
        if self._rounds:
            parsed = replace(parsed, rows=replace(rows, data=as_float32(rows.data)))
        return _Summed(parsed, ranges, exact, count_labels(parsed.labels))


def _narrow(ranges: ColumnRanges) -> bool:
    """Whether some column is nearly constant, so that rounding may have merged its values."""
    low, high = (ends.astype(np.float32) for ends in ranges.range(ranges.n_features))
    size = np.maximum(np.abs(low), np.abs(high))
    return bool(np.any((size > 0) & (high - low < FEW_STEPS * np.spacing(size))))


def lost_columns(job: Job, first: FirstPass, scaling: Scaling, layout: Layout) -> Iterator[str]:
    """Sentences on columns whose values float32 cannot tell apart."""
    found = first.exact_ranges or first.ranges
    low, high = found.range(layout.n_features)
    for column in found.lost(scaling, layout.n_features)[:EXAMPLES].tolist():
        done = "" if scaling.kind == "none" else f" after --scale {scaling.kind}"
        yield (
            f"{job.encoder.feature_name(column)}: its values, from {low[column]:.17g} to "
            f"{high[column]:.17g}, cannot be told apart in float32{done}; give --scale standard, "
            f"which takes their mean off before they are rounded"
        )


def write_rows(
    job: Job,
    writer: DatasetWriter,
    layout: Layout,
    scaling: Scaling,
    label_values: Float64Array | None,
) -> ColumnSums:
    """Read the spool back, scale its rows and write them; returns moments of what was written."""
    moments = ColumnSums(layout.n_features)
    finish = _finisher(layout, scaling)
    pieces = _pieces(prefetch(job.spool.blocks(layout.n_features)), layout)
    for rows, summed, piece in ordered_map(finish, pieces, threads=default_threads()):
        moments.add(summed)
        labels = piece.labels
        if label_values is not None:
            labels = label_values[labels.astype(np.int64)]
        writer.append(rows, labels, piece.row_ids)
        if job.meter.pass_bytes is not None:
            job.meter.at(round(writer.fraction_written * job.meter.pass_bytes))
    return moments


def _finisher(
    layout: Layout, scaling: Scaling
) -> Callable[[RowBlock], tuple[Rows, Rows, RowBlock]]:
    """Function that returns the rows of a piece as they are stored, and rows of equal moments."""
    zero_row = scaling.zero_row(layout.n_features)
    # Zeros add nothing to the moments, and most values of a dense row may be zeros.
    sparse_moments = not zero_row.any()

    def finish(piece: RowBlock) -> tuple[Rows, Rows, RowBlock]:
        data, indices, indptr = piece.rows.data, piece.rows.indices, piece.rows.indptr
        data = scaling.scale_values(data, indices)
        if layout.sparse:  # constant columns have become zeros
            kept = drop_zeros(data, indices, indptr)
            rows = CSRRows(data[:kept], indices[:kept], indptr, layout.n_features)
            return rows, rows, piece
        dense = np.empty(piece.rows.shape, dtype=np.float32)
        write_dense_rows(data, indices, indptr, zero_row, dense)
        return dense, replace(piece.rows, data=data) if sparse_moments else dense, piece

    return finish


def _pieces(blocks: Iterator[RowBlock], layout: Layout) -> Iterator[RowBlock]:
    """Blocks cut into pieces of about PIECE_BYTES, dense ones at the borders of chunks.

    Small pieces stay in the processor's cache. A dense piece that is a whole chunk is written
    without a copy.
    """
    row = 0
    for block in blocks:
        size = chunk_rows(layout.n_features)
        if layout.sparse:
            row_bytes = 8 * (len(block.rows.data) // max(1, len(block)) + 1)
            size = max(1, PIECE_BYTES // row_bytes)
        start = 0
        while start < len(block):
            stop = start + size - (0 if layout.sparse else row % size)
            piece = block[start:stop]
            yield piece
            start += len(piece)
            row += len(piece)
