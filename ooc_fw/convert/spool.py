"""Parsed rows stored on disk between the two passes, and the shuffle.

The temporary files have no name in the file system, so that nothing is left behind however the
process ends.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ooc_fw._core import records
from ooc_fw.data.rows import CSRRows, Float64Array, Int64Array

BUCKET_BYTES = 16 << 20
"""Target size of a bucket. A few are in memory at once, unsorted and sorted."""

MAX_BUCKET_BITS = 8
"""At most 256 files are open at a time; larger data are split once more when they are read back."""

UNKNOWN_SIZE_BITS = 6
"""Bits of a bucket's number where the size of the input is unknown."""


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Rows with their labels and numbers."""

    rows: CSRRows  # features, as float32, or as float64 where they are still to be scaled
    labels: Float64Array  # (n_rows,): labels as written
    row_ids: Int64Array  # (n_rows,): position of each row in the input, from 0

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, key: slice) -> RowBlock:
        return RowBlock(self.rows[key], self.labels[key], self.row_ids[key])

    def bits(self) -> records.RowBits:
        """The same memory, as the compiled code takes it."""
        rows, ids, labels = self.rows, self.row_ids.view(np.uint32), self.labels.view(np.uint32)
        return records.RowBits(rows.data.view(np.uint32), rows.indices, rows.indptr, ids, labels)


class _Bucket:
    """Records of rows, in the order of their arrival, in an unnamed file."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._file = tempfile.TemporaryFile(dir=directory, buffering=0)
        self._writing = threading.Lock()
        self.n_bytes = self.n_rows = 0
        self.close = self._file.close

    def append(self, words: npt.NDArray[np.uint32], n_rows: int) -> None:
        with self._writing:
            view = words.data.cast("B")
            while view:
                view = view[self._file.write(view) :]
            self.n_bytes += words.nbytes
            self.n_rows += n_rows

    def parts(self, n_bytes: int) -> Iterator[npt.NDArray[np.uint32]]:
        """Read all records; the first words of a part are the end of those of the one before."""
        self._file.seek(0)
        left = self.n_bytes // 4
        while left > 0:
            words = np.empty(min(left, n_bytes // 4 + 1), dtype=np.uint32)
            view = words.data.cast("B")
            while view:
                count = self._file.readinto(view)
                if not count:
                    raise OSError("a temporary file lost its end; is the disk full?")
                view = view[count:]
            left -= len(words)
            yield words


class Spool:
    """Stores rows on disk and returns them in a random order, or in their own, in constant memory.

    Every row has a random 64-bit key, which depends on its position and the seed alone; rows are
    returned in the order of their keys. All keys differ, so that the permutation depends on the
    number of rows and the seed alone; without a seed, rows keep the order in which they are added.
    The leading bits of its key assign a row to one of ``2**bits`` buckets on disk, after those bits
    that all keys share. A bucket of up to twice `bucket_bytes` is read back whole and sorted, a
    larger one is split by the next bits.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        seed: int | None = None,
        bits: int = 0,
        *,
        dtype: type = np.float32,  # of the values; float64 where they are still to be scaled
        skipped_bits: int = 0,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        self._directory = directory
        self.seed = seed
        self._bits = bits if seed is not None else 0
        self.dtype = np.dtype(dtype)
        self._value_words = self.dtype.itemsize // 4
        self._skipped_bits = skipped_bits
        self._bucket_bytes = bucket_bytes
        self._buckets: dict[int, _Bucket] = {}
        self._opening = threading.Lock()

    @property
    def n_bytes(self) -> int:
        """Bytes on disk."""
        return sum(bucket.n_bytes for bucket in self._buckets.values())

    @property
    def freed_bytes(self) -> int:
        """Bytes that are free again before the last rows are returned."""
        if self.seed is None:
            return 0
        # The last buckets, and the parts of one that is split, are still there at the end.
        return max(0, self.n_bytes - max(4 * BUCKET_BYTES, self.n_bytes // 8))

    def add(self, block: RowBlock) -> None:
        """Distribute rows over the buckets; with a seed, for any thread and in any order."""
        rows = block.rows
        numbers = np.zeros(len(block), dtype=np.uint16)
        if self._bits and self.seed is not None:
            keys = shuffle_keys(block.row_ids, self.seed) << np.uint64(self._skipped_bits)
            numbers = (keys >> np.uint64(64 - self._bits)).astype(np.uint16)
        sizes = np.zeros(1 << self._bits, dtype=np.int64)
        records.measure_records(rows.indices, rows.indptr, numbers, self._value_words, sizes)
        ends = np.cumsum(sizes)
        words = np.empty(ends[-1], dtype=np.uint32)
        places = ends - sizes
        records.pack_records(
            block.bits(), numbers, self._value_words, places, records.Memory.of(words)
        )
        counts = np.bincount(numbers, minlength=len(sizes))
        for number in np.flatnonzero(counts).tolist():
            end = ends[number]
            with self._opening:
                if number not in self._buckets:
                    self._buckets[number] = _Bucket(self._directory)
            self._buckets[number].append(words[end - sizes[number] : end], int(counts[number]))

    def blocks(self, n_features: int) -> Iterator[RowBlock]:
        """Read the rows back, once, declared to have `n_features` columns.

        The disk space of each bucket is free again after its rows were returned.
        """
        for number in sorted(self._buckets):
            bucket = self._buckets.pop(number)
            try:
                if self.seed is None:
                    yield from self._read(bucket, self._bucket_bytes, n_features)
                elif bucket.n_bytes > 2 * self._bucket_bytes and bucket.n_rows > 1:
                    yield from self._split(bucket, n_features)
                else:
                    yield from self._read(bucket, bucket.n_bytes, n_features, self.seed)
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
            dtype=self.dtype.type,
            skipped_bits=self._skipped_bits + self._bits,
            bucket_bytes=self._bucket_bytes,
        )
        try:
            for block in self._read(bucket, self._bucket_bytes, n_features):
                parts.add(block)
            bucket.close()
            yield from parts.blocks(n_features)
        finally:
            parts.close()

    def _read(
        self, bucket: _Bucket, n_bytes: int, n_features: int, seed: int | None = None
    ) -> Iterator[RowBlock]:
        """Rows of a bucket in parts of about `n_bytes`, each ordered by its keys if seeded."""
        begun = np.empty(0, dtype=np.uint32)  # a record whose end was not read yet
        for part in bucket.parts(n_bytes):
            words = np.concatenate([begun, part]) if len(begun) else part
            starts = np.empty(len(words) // records.HEADER_WORDS, dtype=np.int64)
            counts = np.empty_like(starts)
            n_rows, end = records.index_records(words, self._value_words, starts, counts)
            begun = words[end:]
            if n_rows == 0:
                continue
            starts, n_stored = starts[:n_rows], int(counts[:n_rows].sum())
            row_ids = np.empty(n_rows, dtype=np.int64)
            if seed is not None:
                records.record_ids(words, starts, row_ids.view(np.uint32))
                starts = starts[np.argsort(shuffle_keys(row_ids, seed))]
            rows = CSRRows(
                np.empty(n_stored, dtype=self.dtype),
                np.empty(n_stored, dtype=np.int32),
                np.empty(n_rows + 1, dtype=np.int64),
                n_features,
            )
            block = RowBlock(rows, np.empty(n_rows), row_ids)
            records.unpack_records(
                records.Memory.of(words), starts, self._value_words, block.bits()
            )
            yield block


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
