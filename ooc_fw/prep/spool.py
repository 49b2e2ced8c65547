"""Parsed rows set aside on disk between the two passes, and the shuffle.

Owns the temporary files and the permutation. They have no name in the file system, so that nothing
is left behind however the process ends. Knows nothing of text, scaling or HDF5.
"""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ooc_fw._core.libsvm import gather_rows
from ooc_fw.rows import CSRRows, Float64Array, Int64Array, concat_rows

BUCKET_BYTES = 16 << 20
"""Target size of a bucket. A few are in memory at once, unsorted and sorted."""
MAX_BUCKET_BITS = 8
"""At most 256 open files at a time; larger data are split once more on the way back."""
UNKNOWN_SIZE_BITS = 6

_HEADER_BYTES = 16


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Rows that travel together.

    Parameters
    ----------
    rows : CSRRows
        Features.
    labels : ndarray of float64, shape (n_rows,)
        Labels as written.
    row_ids : ndarray of int64, shape (n_rows,)
        Position of each row in the input, from 0.
    """

    rows: CSRRows
    labels: Float64Array
    row_ids: Int64Array

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, key: slice) -> RowBlock:
        return RowBlock(self.rows[key], self.labels[key], self.row_ids[key])

    def take(self, order: Int64Array) -> RowBlock:
        """Copy of the rows in another order."""
        lengths = np.diff(self.rows.indptr)[order]
        n_stored = int(lengths.sum())
        data = np.empty(n_stored, dtype=np.float32)
        indices = np.empty(n_stored, dtype=np.int32)
        indptr = np.empty(len(order) + 1, dtype=np.int64)
        gather_rows(
            self.rows.data, self.rows.indices, self.rows.indptr, order, data, indices, indptr
        )
        rows = CSRRows(data, indices, indptr, self.rows.n_features)
        return RowBlock(rows, self.labels[order], self.row_ids[order])


class Spool:
    """Blocks of rows written to an unnamed file and read back in the same order.

    Parameters
    ----------
    directory : path
        Where the file's bytes go.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._file = tempfile.TemporaryFile(dir=directory, buffering=0)
        self.n_bytes = 0
        self.n_rows = 0

    def add(self, block: RowBlock) -> None:
        """Append a block: counts, row lengths, labels, positions, columns, values."""
        rows = block.rows
        for part in (
            np.array([len(block), len(rows.data)], dtype=np.int64),
            np.diff(rows.indptr),
            block.labels,
            block.row_ids,
            rows.indices,
            rows.data,
        ):
            self.n_bytes += part.nbytes
            _write_all(self._file, part.data.cast("B"))
        self.n_rows += len(block)

    def blocks(self, n_features: int) -> Iterator[RowBlock]:
        """Read all blocks back, declared to have `n_features` columns."""
        self._file.seek(0)
        while header := self._file.read(_HEADER_BYTES):
            n_rows, n_stored = (int(count) for count in np.frombuffer(header, dtype=np.int64))
            frame = _read_exactly(self._file, 24 * n_rows + 8 * n_stored)
            lengths = np.frombuffer(frame, np.int64, n_rows)
            labels = np.frombuffer(frame, np.float64, n_rows, 8 * n_rows)
            row_ids = np.frombuffer(frame, np.int64, n_rows, 16 * n_rows)
            indices = np.frombuffer(frame, np.int32, n_stored, 24 * n_rows)
            data = np.frombuffer(frame, np.float32, n_stored, 24 * n_rows + 4 * n_stored)
            indptr = np.concatenate([[0], np.cumsum(lengths)])
            yield RowBlock(CSRRows(data, indices, indptr, n_features), labels, row_ids)

    def close(self) -> None:
        """Give the disk space back."""
        self._file.close()


class ShuffleSpool:
    """Rows go in in any order and come out in a random one, in constant memory.

    Every row has a random 64-bit key, a function of its position and the seed alone; rows come out
    in the order of their keys. Keys differ, so the permutation is a function of (n_rows, seed)
    and of nothing else. The leading bits of its key put a row into a bucket on disk; a bucket is
    read back whole and sorted, or split by the next bits where it is too large for that.

    Parameters
    ----------
    directory : path
        Where the buckets' bytes go.
    seed : int
        Seed of the permutation.
    bits : int
        There are ``2**bits`` buckets.
    skipped_bits : int
        Leading bits in which all keys agree (of a bucket that is being split).
    bucket_bytes : int
        Buckets up to twice this size are sorted in memory.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        seed: int,
        bits: int,
        *,
        skipped_bits: int = 0,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        self._directory = directory
        self._seed = seed
        self._bits = bits
        self._skipped_bits = skipped_bits
        self._bucket_bytes = bucket_bytes
        self._buckets: dict[int, Spool] = {}

    @property
    def n_bytes(self) -> int:
        """Bytes on disk."""
        return sum(bucket.n_bytes for bucket in self._buckets.values())

    def add(self, block: RowBlock) -> None:
        """Distribute rows over the buckets."""
        numbers = self._bucket_numbers(block.row_ids)
        grouped = block if self._bits == 0 else block.take(np.argsort(numbers, kind="stable"))
        ends = np.cumsum(np.bincount(numbers, minlength=1 << self._bits))
        start = 0
        for number, end in enumerate(ends.tolist()):
            if end > start:
                if number not in self._buckets:
                    self._buckets[number] = Spool(self._directory)
                self._buckets[number].add(grouped[start:end])
            start = end

    def blocks(self, n_features: int) -> Iterator[RowBlock]:
        """Read the rows back in their random order, a bucket at a time; each is freed after."""
        for number in sorted(self._buckets):
            bucket = self._buckets.pop(number)
            try:
                if bucket.n_bytes > 2 * self._bucket_bytes and bucket.n_rows > 1:
                    yield from self._split(bucket, n_features)
                else:
                    yield _sorted_by_key(bucket, self._seed, n_features)
            finally:
                bucket.close()

    def close(self) -> None:
        """Give the disk space back."""
        for bucket in self._buckets.values():
            bucket.close()
        self._buckets.clear()

    def _bucket_numbers(self, row_ids: Int64Array) -> npt.NDArray[np.uint16]:
        if self._bits == 0:
            return np.zeros(len(row_ids), dtype=np.uint16)
        keys = shuffle_keys(row_ids, self._seed) << np.uint64(self._skipped_bits)
        return (keys >> np.uint64(64 - self._bits)).astype(np.uint16)

    def _split(self, bucket: Spool, n_features: int) -> Iterator[RowBlock]:
        parts = ShuffleSpool(
            self._directory,
            self._seed,
            shuffle_bits(bucket.n_bytes, self._bucket_bytes),
            skipped_bits=self._skipped_bits + self._bits,
            bucket_bytes=self._bucket_bytes,
        )
        try:
            for block in bucket.blocks(n_features):
                parts.add(block)
            bucket.close()
            yield from parts.blocks(n_features)
        finally:
            parts.close()


def shuffle_bits(n_bytes: int | None, bucket_bytes: int = BUCKET_BYTES) -> int:
    """Bits of a bucket's number for about `n_bytes` of rows; None where that is unknown."""
    if n_bytes is None:
        return UNKNOWN_SIZE_BITS
    return min(MAX_BUCKET_BITS, max(0, (n_bytes - 1) // bucket_bytes).bit_length())


def shuffle_keys(row_ids: Int64Array, seed: int) -> npt.NDArray[np.uint64]:
    """Random 64-bit numbers, different for different rows; a function of (row, seed) alone.

    The output function of SplitMix64 (Steele, Lea and Flood, 2014, "Fast splittable pseudorandom
    number generators"), a bijection, at the row's place in the sequence begun by the seed.
    """
    start = np.random.SeedSequence(seed).generate_state(1, np.uint64)
    # uint64 arrays wrap around, as the generator wants it.
    key: npt.NDArray[np.uint64] = start + (row_ids.astype(np.uint64) + np.uint64(1)) * np.uint64(
        0x9E3779B97F4A7C15
    )
    key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    key = (key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return key ^ (key >> np.uint64(31))


def _sorted_by_key(bucket: Spool, seed: int, n_features: int) -> RowBlock:
    blocks = list(bucket.blocks(n_features))
    rows = concat_rows([block.rows for block in blocks])
    assert isinstance(rows, CSRRows)
    row_ids = np.concatenate([block.row_ids for block in blocks])
    whole = RowBlock(rows, np.concatenate([block.labels for block in blocks]), row_ids)
    return whole.take(np.argsort(shuffle_keys(row_ids, seed)))


def _write_all(file: io.FileIO, view: memoryview) -> None:
    while view:
        view = view[file.write(view) :]


def _read_exactly(file: io.FileIO, n_bytes: int) -> bytearray:
    data = bytearray(n_bytes)
    view = memoryview(data)
    while view:
        count = file.readinto(view)
        if not count:
            raise OSError("a temporary file lost its end; is the disk full?")
        view = view[count:]
    return data
