"""The two passes: parse the inputs into the spool, then scale and write the rows in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ooc_fw._core.rows import drop_zeros, write_dense_rows
from ooc_fw.convert.inputs import TrainingFile
from ooc_fw.convert.pipeline import Meter, ordered_map, prefetch
from ooc_fw.convert.readers import EXAMPLES, Encoder, Parse, ParsedBlock, Reader
from ooc_fw.convert.spool import RowBlock, Spool
from ooc_fw.convert.writer import DatasetWriter, Layout, chunk_rows
from ooc_fw.data.ranges import ColumnRanges, ColumnSums
from ooc_fw.data.rows import AnyArray, CSRRows, Float64Array, Rows, as_float32
from ooc_fw.data.scaling import Scaling
from ooc_fw.data.sources import StoredStatistics
from ooc_fw.options import ConvertOptions
from ooc_fw.system.errors import InputError

PIECE_BYTES = 2 << 20
"""Bytes of rows that are scaled and written at once."""

MAX_FEATURES = 1 << 26
"""Widest file. Statistics take up to 64 bytes per column, and one stray index must not exhaust
memory."""

WIDE = 1 << 14
"""Number of columns above which ranges are not merged block by block: merging would take longer."""

MAX_CLASSES = 4096
"""Different labels; more of them are targets of a regression."""

FEW_LABELS = 8
"""Up to this many different labels, counting one after the other is faster than sorting."""


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


class _Measured(NamedTuple):
    """A block, and what is computed from it alone."""

    parsed: ParsedBlock
    class_counts: dict[Any, int]
    ranges: ColumnRanges | None  # None for blocks that are too wide to be merged


@dataclass
class FirstPass:
    """What is known of the input, block by block."""

    ranges: ColumnRanges
    class_counts: Counter[float] = field(default_factory=Counter)
    n_rows: int = 0
    width: int = 0
    n_dropped: int = 0
    n_skipped: int = 0
    skipped: list[str] = field(default_factory=list)

    def add(self, measured: _Measured, name: str) -> RowBlock:
        """Add a block of the input `name`; returns its rows with their numbers."""
        block, class_counts, ranges = measured
        if block.rows.n_features > MAX_FEATURES:
            raise InputError(
                f"{name} has a feature index of {block.rows.n_features}, and the limit is "
                f"{MAX_FEATURES}; if it is a stray one, leave wide features out with --n-features"
            )
        if ranges is None:
            self.ranges.add(block.rows)
        else:
            self.ranges.merge(ranges)
        self.class_counts.update(class_counts)
        if len(self.class_counts) > MAX_CLASSES:
            raise InputError(
                f"{name} brings the number of different labels above {MAX_CLASSES}; if these are "
                f"targets of a regression, not classes, give --targets"
            )
        row_ids = np.arange(self.n_rows, self.n_rows + len(block.rows))
        self.n_rows += len(block.rows)
        self.width = max(self.width, block.width)
        self.n_dropped += block.n_dropped
        self.n_skipped += block.n_skipped
        self.skipped += block.skipped[: EXAMPLES - len(self.skipped)]
        return RowBlock(block.rows, block.labels, row_ids)


def parse_inputs(job: Job) -> FirstPass:
    """Parse all inputs into the spool.

    Blocks are parsed by several threads and come back in the order of the input, which numbers
    their rows; then several threads spool them.
    """
    first = FirstPass(ColumnRanges(job.options.scale))

    def numbered() -> Iterator[RowBlock]:
        for reader in job.readers:
            measure = partial(_measure, job, job.encoder.parser(reader))
            for measured in ordered_map(measure, reader.blocks()):
                block = first.add(measured, reader.name)
                job.meter.at(sum(reader.bytes_read for reader in job.readers))
                yield block

    spooled = map if job.spool.seed is None else ordered_map  # the shuffle needs no order
    for _ in spooled(job.spool.add, numbered()):
        pass
    job.meter.next_pass()
    if not first.n_rows:
        raise InputError(f"{job.name} holds no rows; {job.encoder.hint}")
    return first


def _measure(job: Job, parse: Parse, block: Any) -> _Measured:
    """Parse a block, take logarithms, and measure it; for any thread."""
    parsed = parse(block)
    rows = replace(parsed.rows, data=job.scaling.log_values(parsed.rows.data))
    wide = rows.n_features > WIDE
    ranges = None if wide else ColumnRanges(job.options.scale).of(rows)
    if job.spool.dtype == np.float32:
        rows = replace(rows, data=as_float32(rows.data))
    counts = {} if job.options.targets else count_labels(parsed.labels)
    return _Measured(replace(parsed, rows=rows), counts, ranges)


def lost_columns(job: Job, first: FirstPass, scaling: Scaling, n_features: int) -> Iterator[str]:
    """Sentences on columns whose values float32 cannot tell apart."""
    low, high = first.ranges.range(n_features)
    done = "" if scaling.kind == "none" else f" after --scale {scaling.kind}"
    for column in first.ranges.lost(scaling, n_features)[:EXAMPLES].tolist():
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
) -> StoredStatistics:
    """Read the spool back, scale its rows and write them; returns their moments."""
    moments = ColumnSums(layout.n_features)
    zero_row = scaling.zero_row(layout.n_features)
    # Zeros add nothing to the moments, and most values of a dense row may be zeros.
    sparse_moments = not zero_row.any()

    def finish(piece: RowBlock) -> tuple[Rows, Rows, RowBlock]:
        """Rows of a piece as they are stored, and rows of the same moments."""
        data, indices, indptr = piece.rows.data, piece.rows.indices, piece.rows.indptr
        data = scaling.scale_values(data, indices)
        if layout.sparse:  # constant columns have become zeros
            kept = drop_zeros(data, indices, indptr)
            rows = CSRRows(data[:kept], indices[:kept], indptr, layout.n_features)
            return rows, rows, piece
        dense = np.empty(piece.rows.shape, dtype=np.float32)
        write_dense_rows(data, indices, indptr, zero_row, dense)
        return dense, replace(piece.rows, data=data) if sparse_moments else dense, piece

    pieces = _pieces(prefetch(job.spool.blocks(layout.n_features)), layout)
    for rows, summed, piece in ordered_map(finish, pieces):
        moments.add(summed)
        labels = piece.labels
        if label_values is not None:
            labels = label_values[labels.astype(np.int64)]
        writer.append(rows, labels, piece.row_ids)
        if job.meter.pass_bytes is not None:
            job.meter.at(round(writer.fraction_written * job.meter.pass_bytes))
    return moments.statistics


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


def count_labels(labels: AnyArray) -> dict[Any, int]:
    """Rows of each label."""
    counts: dict[Any, int] = {}
    left = labels
    while len(left) > 0:
        if len(counts) == FEW_LABELS:
            names, numbers = np.unique(left, return_counts=True)
            return counts | dict(zip(names.tolist(), numbers.tolist(), strict=True))
        others = left[left != left[0]]
        counts[left[:1].tolist()[0]] = len(left) - len(others)
        left = others
    return counts
