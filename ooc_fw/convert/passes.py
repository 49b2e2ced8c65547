"""The two passes: parse the inputs into temporary files, then scale and write the rows in them.

The shuffle happens between them. The temporary files have no name in the file system, so that
nothing is left behind however the process ends.
"""

from __future__ import annotations

import io
import os
import pickle
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_fw._core.rows import write_dense_rows
from ooc_fw.convert import readers
from ooc_fw.convert.readers import EXAMPLES, ParsedBlock, Progress, ordered_map
from ooc_fw.convert.writer import DatasetWriter, Layout, OutputFile, count_labels
from ooc_fw.data.rows import (
    AnyArray,
    CSRRows,
    Float64Array,
    Int32Array,
    Int64Array,
    Rows,
    as_float32,
    keep_stored,
    take_rows,
)
from ooc_fw.data.scaling import Scaling, are_constant
from ooc_fw.data.statistics import ColumnRanges
from ooc_fw.options import ConvertOptions
from ooc_fw.system.errors import InputError

FEW_STEPS = 64  # a column is lost to rounding if its range has fewer steps of float32 than this
PIECE_BYTES = 2 << 20  # bytes of rows that are scaled and written at once
MAX_FEATURES = 1 << 26  # statistics take up to 64 bytes per column
WIDE = 1 << 14  # columns above which merging the ranges of blocks takes longer than adding rows
MAX_CLASSES = 4096  # different labels; more of them are targets of a regression


@dataclass
class Job:
    """What both passes need, and what the first one counts."""

    options: ConvertOptions
    inputs: Sequence[readers.Reader]
    n_bytes: int | None  # of all inputs; None if the size of one is unknown
    encoder: readers.Encoder
    scaling: Scaling  # complete with `like`, else it tells log1p alone
    dtype: type  # of the values in the spool; float64 where they are still to be scaled
    spool: Spool
    progress: Progress
    ranges: ColumnRanges  # of the columns of parsed rows
    labels: set[float] = field(default_factory=set)  # but not targets
    n_rows: int = 0
    width: int = 0
    n_dropped: int = 0  # values in columns beyond the width asked for
    n_skipped: int = 0
    skipped: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The inputs, for messages."""
        return ", ".join(reader.name for reader in self.inputs)

    def add(self, name: str, measured: _Measured) -> RowBlock:
        """Add a block of the input `name`; returns its rows with their numbers."""
        block = measured.block
        if block.rows.n_features > MAX_FEATURES:
            raise InputError(
                f"{name} has a feature index of {block.rows.n_features}, and the limit is "
                f"{MAX_FEATURES}; if it is a stray one, leave wide features out with --n-features"
            )
        if measured.ranges is None:
            self.ranges.add(measured.known)
        else:
            self.ranges.merge(measured.ranges)
        self.labels |= measured.counts.keys()
        if len(self.labels) > MAX_CLASSES:
            raise InputError(
                f"{name} brings the number of different labels above {MAX_CLASSES}; if these are "
                f"targets of a regression, not classes, give --task regression"
            )
        row_ids = np.arange(self.n_rows, self.n_rows + len(block.rows))
        keys = shuffle_keys(row_ids, self.options.seed) if self.encoder.n_encoded else None
        codes = self.encoder.learn(block, keys)
        self.n_rows += len(block.rows)
        self.width = max(self.width, block.width)
        self.n_dropped += block.n_dropped
        self.n_skipped += block.n_skipped
        self.skipped += block.skipped[: EXAMPLES - len(self.skipped)]
        return RowBlock(block.rows, block.labels, row_ids, codes)


@dataclass(frozen=True)
class _Measured:
    """A parsed block with logarithms, and what threads count of it."""

    block: ParsedBlock
    known: CSRRows  # its rows without missing values
    counts: dict[Any, int]  # rows of each label
    ranges: ColumnRanges | None  # None if it is too wide for ranges to be merged


def parse_inputs(job: Job) -> None:
    """Parse all inputs into the spool; rows are numbered in the order of the input."""

    def numbered() -> Iterator[RowBlock]:
        for reader in job.inputs:
            for measured in ordered_map(partial(_measure, job, reader), reader.blocks()):
                block = job.add(reader.name, measured)
                done = sum(reader.bytes_read for reader in job.inputs)
                job.progress(done, None if job.n_bytes is None else 2 * job.n_bytes)
                yield block

    spooled = map if job.spool.seed is None else ordered_map  # the shuffle needs no order
    for _ in spooled(job.spool.add, numbered()):
        pass
    if not job.n_rows:
        raise InputError(f"{job.name} holds no rows; {job.encoder.hint}")


def _measure(job: Job, reader: readers.Reader, block: Any) -> _Measured:
    parsed = job.encoder.parse(reader, block)
    rows, known = job.encoder.measured(parsed.rows, job.scaling)
    ranges = None if rows.n_features > WIDE else ColumnRanges(job.ranges.kind).add(known)
    if job.dtype == np.float32:
        rows = replace(rows, data=as_float32(rows.data))
    counts = {} if job.options.targets else count_labels(parsed.labels)
    return _Measured(replace(parsed, rows=rows), known, counts, ranges)


def lost_columns(job: Job, scaling: Scaling, n_columns: int) -> Iterator[str]:
    """Sentences on columns whose different values become nearly equal in float32.

    The ends of their ranges are looked at, after logarithms and the scaling.
    """
    low, high = job.ranges.range(n_columns)
    ends = np.stack([low, high])
    if scaling.offset is not None and scaling.factor is not None:
        ends = (ends - scaling.offset) * scaling.factor
    with np.errstate(over="ignore"):
        rounded = ends.astype(np.float32)
        steps = np.abs(rounded[1] - rounded[0]) / np.spacing(np.abs(rounded).max(axis=0))
    is_exact = (rounded == ends).all(axis=0)  # as whole numbers below 2**24 are
    is_noise = are_constant(low, high)
    is_lost = (low < high) & (is_noise | ((steps < FEW_STEPS) & ~is_exact))
    done = "" if scaling.kind == "none" else f" after --scale {scaling.kind}"
    for column in np.flatnonzero(is_lost)[:EXAMPLES].tolist():
        way = "give --scale standard, which takes their mean off before they are rounded"
        if is_noise[column]:
            way = "they differ by rounding only"
        yield (
            f"{job.encoder.column_name(column)}: its values, from {low[column]:.17g} to "
            f"{high[column]:.17g}, cannot be told apart in float32{done}; {way}"
        )


def write_rows(job: Job, file: OutputFile, layout: Layout) -> DatasetWriter:
    """Read the spool back, make and scale features and write them, and values for label codes."""
    label_values, _ = job.encoder.labels.values()
    writer = DatasetWriter(file, layout)
    n_written = 0
    finish = partial(_finish, job.encoder, layout)
    pieces = _pieces(job.spool.blocks(layout.n_features), layout)
    for rows, summed, piece in ordered_map(finish, pieces):
        labels = piece.labels
        if label_values is not None:
            labels = label_values[labels.astype(np.int64)]
        writer.append(rows, labels, piece.row_ids, summed, piece.codes)
        n_written += len(piece)
        if job.n_bytes is not None:
            done = job.n_bytes + round(n_written / layout.n_rows * job.n_bytes)
            job.progress(done, 2 * job.n_bytes)
    writer.finish()
    return writer


def _finish(
    encoder: readers.Encoder, layout: Layout, piece: RowBlock
) -> tuple[Rows, Rows, RowBlock]:
    """Rows of a piece as they are stored, and rows of the same sums."""
    scaling = layout.scaling
    rows = encoder.features(piece.rows, piece.codes, scaling)
    data = scaling.scale_values(rows.data, rows.indices)
    rows = replace(rows, data=data)
    if layout.sparse:  # constant columns have become zeros
        rows = keep_stored(rows, data != 0, layout.n_features)
        return rows, rows, piece
    zero_row = scaling.zero_row(layout.n_features)
    dense = np.empty((len(rows), layout.n_features), dtype=np.float32)
    write_dense_rows(data, rows.indices, rows.indptr, zero_row, dense)
    # Zeros add nothing to sums, and most values of a dense row may be zeros.
    return dense, dense if zero_row.any() else rows, piece


def _pieces(blocks: Iterator[RowBlock], layout: Layout) -> Iterator[RowBlock]:
    """Blocks cut into pieces of about PIECE_BYTES, which stay in the processor's cache."""
    for block in blocks:
        row_bytes = 4 * layout.n_features
        if layout.sparse:
            row_bytes = 8 * (len(block.rows.data) // max(1, len(block)) + 1)
        size = max(1, PIECE_BYTES // row_bytes)
        for start in range(0, len(block), size):
            yield block[start : start + size]


BUCKET_BYTES = 16 << 20  # target size of a bucket, a few of which are in memory at once
MAX_BUCKET_BITS = 8  # at most 256 open files; a bucket that is too large is split when it is read
UNKNOWN_SIZE_BITS = 6  # bits of a bucket's number where the size of the input is unknown


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Rows with their labels and numbers."""

    rows: CSRRows  # features, as float32, or as float64 where they are still to be scaled
    labels: Float64Array  # (n_rows,): labels as written
    row_ids: Int64Array  # (n_rows,): position of each row in the input, from 0
    codes: Int32Array | None = None  # (n_rows, n_columns): categories whose means are to come

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, key: slice) -> RowBlock:
        codes = None if self.codes is None else self.codes[key]
        return RowBlock(self.rows[key], self.labels[key], self.row_ids[key], codes)

    def take(self, order: Int64Array) -> RowBlock:
        """Copy of some of the rows, in any order."""
        rows = take_rows(self.rows, order)
        assert isinstance(rows, CSRRows)
        codes = None if self.codes is None else self.codes[order]
        return RowBlock(rows, self.labels[order], self.row_ids[order], codes)


class _Bucket:
    """Pieces of rows, in the order of their arrival, in an unnamed file."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._file = tempfile.TemporaryFile(dir=directory, buffering=0)
        self._writing = threading.Lock()
        self.n_bytes = self.n_rows = 0
        self.close = self._file.close

    def append(self, block: RowBlock) -> None:
        rows = block.rows
        lengths = np.diff(rows.indptr).astype(np.int32)
        arrays = (block.row_ids, block.labels, lengths, rows.indices, rows.data)
        piece = pickle.dumps(arrays if block.codes is None else (*arrays, block.codes), 5)
        with self._writing:
            view = memoryview(piece)
            while view:
                view = view[self._file.write(view) :]
            self.n_bytes += len(piece)
            self.n_rows += len(rows)

    def parts(self, n_bytes: int, n_features: int) -> Iterator[RowBlock]:
        """Read all rows, in parts of whole pieces of about `n_bytes`."""
        self._file.seek(0)
        pieces: list[tuple[AnyArray, ...]] = []
        start = end = 0  # of the part
        with io.BufferedReader(self._file) as file:
            while end < self.n_bytes:
                try:
                    pieces.append(pickle.load(file))
                except (EOFError, pickle.UnpicklingError):
                    raise OSError("a temporary file lost its end; is the disk full?") from None
                end = file.tell()
                if end - start >= n_bytes or end == self.n_bytes:
                    arrays = map(np.concatenate, zip(*pieces, strict=True))
                    ids, labels, lengths, indices, data, *codes = arrays
                    indptr = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
                    yield RowBlock(CSRRows(data, indices, indptr, n_features), labels, ids, *codes)
                    pieces = []
                    start = end


class Spool:
    """Stores rows on disk and returns them in a random order, or in their own, in constant memory.

    Rows are returned in the order of their `shuffle_keys`; without a seed, in that in which they
    are added. The leading bits of a key, after those that all keys share, assign a row to one of
    ``2**bits`` buckets. A bucket of up to twice `bucket_bytes` is read back whole and sorted, a
    larger one is split by the next bits.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        seed: int | None = None,
        bits: int = 0,
        *,
        skipped_bits: int = 0,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        self._directory = directory
        self.seed = seed
        self._bits = bits if seed is not None else 0
        self._skipped_bits = skipped_bits
        self._bucket_bytes = bucket_bytes
        self._buckets: dict[int, _Bucket] = {}
        self._opening = threading.Lock()

    @property
    def n_bytes(self) -> int:
        """Bytes on disk."""
        return sum(bucket.n_bytes for bucket in self._buckets.values())

    def add(self, block: RowBlock) -> None:
        """Distribute rows over the buckets; with a seed, for any thread and in any order."""
        parts = {0: block}
        if self._bits:
            assert self.seed is not None
            keys = shuffle_keys(block.row_ids, self.seed) << np.uint64(self._skipped_bits)
            numbers = (keys >> np.uint64(64 - self._bits)).astype(np.uint16)
            order = np.argsort(numbers, kind="stable")
            block = block.take(order)
            found, starts = np.unique(numbers[order], return_index=True)
            bounds = pairwise([*starts.tolist(), len(block)])
            parts = {n: block[slice(*ends)] for n, ends in zip(found.tolist(), bounds, strict=True)}
        for number, part in parts.items():
            with self._opening:
                if number not in self._buckets:
                    self._buckets[number] = _Bucket(self._directory)
            self._buckets[number].append(part)

    def blocks(self, n_features: int) -> Iterator[RowBlock]:
        """Read the rows back, once, declared to have `n_features` columns.

        The disk space of each bucket is free again after its rows were returned.
        """
        has_bits = self._skipped_bits + self._bits < 64
        for number in sorted(self._buckets):
            bucket = self._buckets.pop(number)
            try:
                if self.seed is None:
                    yield from bucket.parts(self._bucket_bytes, n_features)
                elif has_bits and bucket.n_bytes > 2 * self._bucket_bytes and bucket.n_rows > 1:
                    yield from self._split(bucket, n_features)
                else:
                    for block in bucket.parts(bucket.n_bytes, n_features):
                        yield block.take(np.argsort(shuffle_keys(block.row_ids, self.seed)))
            finally:
                bucket.close()

    def close(self) -> None:
        """Free the disk space."""
        for bucket in self._buckets.values():
            bucket.close()
        self._buckets.clear()

    def _split(self, bucket: _Bucket, n_features: int) -> Iterator[RowBlock]:
        """Rows of a bucket that is too large to be sorted in memory."""
        parts = Spool(
            self._directory,
            self.seed,
            shuffle_bits(bucket.n_bytes, self._bucket_bytes),
            skipped_bits=self._skipped_bits + self._bits,
            bucket_bytes=self._bucket_bytes,
        )
        try:
            for block in bucket.parts(self._bucket_bytes, n_features):
                parts.add(block)
            bucket.close()
            yield from parts.blocks(n_features)
        finally:
            parts.close()


def shuffle_bits(n_bytes: int | None, bucket_bytes: int = BUCKET_BYTES) -> int:
    """Bits of a bucket's number for about `n_bytes` of rows; None where the size is unknown."""
    if n_bytes is None:
        return UNKNOWN_SIZE_BITS
    return min(MAX_BUCKET_BITS, max(0, (n_bytes - 1) // bucket_bytes).bit_length())


def shuffle_keys(row_ids: Int64Array, seed: int) -> npt.NDArray[np.uint64]:
    """Random 64-bit numbers, which differ for all rows and depend on the row and the seed alone.

    The output function of SplitMix64 (Steele, Lea and Flood, 2014, "Fast splittable pseudorandom
    number generators"), a bijection, at the row's place in the sequence begun by the seed.
    """
    start = np.random.SeedSequence(seed).generate_state(1, np.uint64)
    # Overflow of uint64 wraps around, as the generator requires.
    key: npt.NDArray[np.uint64] = start + (row_ids.astype(np.uint64) + np.uint64(1)) * np.uint64(
        0x9E3779B97F4A7C15
    )
    key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    key = (key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return key ^ (key >> np.uint64(31))
