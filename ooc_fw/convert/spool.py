"""Parsed rows set aside on disk between the two passes, and the shuffle.

Owns the temporary files and the permutation. They have no name in the file system, so that nothing
is left behind however the process ends. Knows nothing of text, scaling or HDF5.
"""

from __future__ import annotations

import io
import os
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ooc_fw._core.records import (
    HEADER_WORDS,
    index_records,
    measure_records,
    pack_records,
    record_ids,
    unpack_records,
)
from ooc_fw.data.rows import CSRRows, Float64Array, Int64Array

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
        Features; values of float32, or of float64 where they are still to be scaled.
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


class Spool:
    """Blocks of rows written to an unnamed file and read back in the same order.

    Parameters
    ----------
    directory : path
        Where the file's bytes go.
    dtype : type
        Of the values: float32, or float64 where they are still to be scaled.
    """

    any_order = False
    """Whether `add` may be called by several threads, with blocks in any order."""

    def __init__(self, directory: str | os.PathLike[str], dtype: type = np.float32) -> None:
        self.dtype = np.dtype(dtype)
        self._file = tempfile.TemporaryFile(dir=directory, buffering=0)
        self.n_bytes = 0
        self.n_rows = 0

    def add(self, block: RowBlock) -> None:
        """Append a block: counts, row lengths, labels, positions, values, columns."""
        rows = block.rows
        for part in (
            np.array([len(block), len(rows.data)], dtype=np.int64),
            np.diff(rows.indptr),
            block.labels,
            block.row_ids,
            rows.data,
            rows.indices,
        ):
            self.n_bytes += part.nbytes
            _write_all(self._file, part.data.cast("B"))
        self.n_rows += len(block)

    def blocks(self, n_features: int) -> Iterator[RowBlock]:
        """Read all blocks back, declared to have `n_features` columns."""
        self._file.seek(0)
        while header := self._file.read(_HEADER_BYTES):
            n_rows, n_stored = (int(count) for count in np.frombuffer(header, dtype=np.int64))
            size = self.dtype.itemsize
            frame = np.empty(24 * n_rows + (4 + size) * n_stored, dtype=np.uint8)
            _fill(self._file, frame)
            lengths = np.frombuffer(frame, np.int64, n_rows)
            labels = np.frombuffer(frame, np.float64, n_rows, 8 * n_rows)
            row_ids = np.frombuffer(frame, np.int64, n_rows, 16 * n_rows)
            data = np.frombuffer(frame, self.dtype, n_stored, 24 * n_rows)
            indices = np.frombuffer(frame, np.int32, n_stored, 24 * n_rows + size * n_stored)
            indptr = np.concatenate([[0], np.cumsum(lengths)])
            yield RowBlock(CSRRows(data, indices, indptr, n_features), labels, row_ids)

    def close(self) -> None:
        """Give the disk space back."""
        self._file.close()


class _Bucket:
    """Records of rows, in the order of their arrival, in an unnamed file.

    Parameters
    ----------
    directory : path
        Where the file's bytes go.
    value_words : int
        Words of a value.
    """

    def __init__(self, directory: str | os.PathLike[str], value_words: int) -> None:
        self._value_words = value_words
        self._file = tempfile.TemporaryFile(dir=directory, buffering=0)
        self._writing = threading.Lock()
        self.n_bytes = 0
        self.n_rows = 0

    def append(self, words: npt.NDArray[np.uint32], n_rows: int) -> None:
        """Append whole records."""
        with self._writing:
            _write_all(self._file, words.data.cast("B"))
            self.n_bytes += words.nbytes
            self.n_rows += n_rows

    def read(self) -> npt.NDArray[np.uint32]:
        """All records."""
        words = np.empty(self.n_bytes // 4, dtype=np.uint32)
        self._file.seek(0)
        _fill(self._file, words.view(np.uint8))
        return words

    def parts(self, n_bytes: int) -> Iterator[npt.NDArray[np.uint32]]:
        """All records, in parts of whole ones of about `n_bytes`."""
        self._file.seek(0)
        left = self.n_bytes // 4
        begun = np.empty(0, dtype=np.uint32)
        while left > 0:
            words = np.empty(len(begun) + min(left, n_bytes // 4 + 1), dtype=np.uint32)
            words[: len(begun)] = begun
            _fill(self._file, words[len(begun) :].view(np.uint8))
            left -= len(words) - len(begun)
            starts, _, end = _index(words, self._value_words)
            if len(starts) > 0:
                yield words[:end]
            begun = words[end:]

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
    dtype : type
        Of the values: float32, or float64 where they are still to be scaled.
    skipped_bits : int
        Leading bits in which all keys agree (of a bucket that is being split).
    bucket_bytes : int
        Buckets up to twice this size are sorted in memory.
    """

    any_order = True
    """Whether `add` may be called by several threads, with blocks in any order."""

    def __init__(
        self,
        directory: str | os.PathLike[str],
        seed: int,
        bits: int,
        *,
        dtype: type = np.float32,
        skipped_bits: int = 0,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        self._directory = directory
        self._seed = seed
        self._bits = bits
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

    def add(self, block: RowBlock) -> None:
        """Distribute rows over the buckets."""
        rows = block.rows
        numbers = self._bucket_numbers(block.row_ids)
        sizes = np.zeros(1 << self._bits, dtype=np.int64)
        measure_records(rows.indices, rows.indptr, numbers, self._value_words, sizes)
        ends = np.cumsum(sizes)
        words = np.empty(ends[-1], dtype=np.uint32)
        pack_records(
            rows.data.view(np.uint32),
            rows.indices,
            rows.indptr,
            block.row_ids.view(np.uint32),
            block.labels.view(np.uint32),
            numbers,
            self._value_words,
            ends - sizes,
            words,
            words.view(np.uint16),
            words.view(np.uint8),
        )
        counts = np.bincount(numbers, minlength=len(sizes))
        for number in np.flatnonzero(counts).tolist():
            end = ends[number]
            records = words[end - sizes[number] : end]
            self._bucket(number).append(records, int(counts[number]))

    def _bucket(self, number: int) -> _Bucket:
        """Bucket by number, opened now if it is not there."""
        with self._opening:
            if number not in self._buckets:
                self._buckets[number] = _Bucket(self._directory, self._value_words)
            return self._buckets[number]

    def blocks(self, n_features: int) -> Iterator[RowBlock]:
        """Read the rows back in their random order, a bucket at a time; each is freed after."""
        for number in sorted(self._buckets):
            bucket = self._buckets.pop(number)
            try:
                if bucket.n_bytes > 2 * self._bucket_bytes and bucket.n_rows > 1:
                    yield from self._split(bucket, n_features)
                else:
                    yield self._sorted_by_key(bucket.read(), n_features)
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

    def _split(self, bucket: _Bucket, n_features: int) -> Iterator[RowBlock]:
        parts = ShuffleSpool(
            self._directory,
            self._seed,
            shuffle_bits(bucket.n_bytes, self._bucket_bytes),
            dtype=self.dtype.type,
            skipped_bits=self._skipped_bits + self._bits,
            bucket_bytes=self._bucket_bytes,
        )
        try:
            for words in bucket.parts(self._bucket_bytes):
                starts, counts, _ = _index(words, self._value_words)
                parts.add(self._unpack(words, starts, counts, n_features))
            bucket.close()
            yield from parts.blocks(n_features)
        finally:
            parts.close()

    def _sorted_by_key(self, words: npt.NDArray[np.uint32], n_features: int) -> RowBlock:
        starts, counts, _ = _index(words, self._value_words)
        row_ids = np.empty(len(starts), dtype=np.int64)
        record_ids(words, starts, row_ids.view(np.uint32))
        order = np.argsort(shuffle_keys(row_ids, self._seed))
        return self._unpack(words, starts[order], counts, n_features)

    def _unpack(
        self,
        words: npt.NDArray[np.uint32],
        starts: Int64Array,
        counts: Int64Array,
        n_features: int,
    ) -> RowBlock:
        """Rows of the records at `starts`, in that order, given their numbers of values in any."""
        n_rows, n_stored = len(starts), int(counts.sum())
        rows = CSRRows(
            np.empty(n_stored, dtype=self.dtype),
            np.empty(n_stored, dtype=np.int32),
            np.empty(n_rows + 1, dtype=np.int64),
            n_features,
        )
        block = RowBlock(rows, np.empty(n_rows), np.empty(n_rows, dtype=np.int64))
        unpack_records(
            words,
            words.view(np.uint16),
            words.view(np.uint8),
            starts,
            self._value_words,
            rows.data.view(np.uint32),
            rows.indices,
            rows.indptr,
            block.row_ids.view(np.uint32),
            block.labels.view(np.uint32),
        )
        return block


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


def _index(words: npt.NDArray[np.uint32], value_words: int) -> tuple[Int64Array, Int64Array, int]:
    """Where the whole records in `words` begin, their stored values, and the word after them."""
    starts = np.empty(len(words) // HEADER_WORDS, dtype=np.int64)
    counts = np.empty_like(starts)
    n_rows, end = index_records(words, value_words, starts, counts)
    return starts[:n_rows], counts[:n_rows], end


def _write_all(file: io.FileIO, view: memoryview) -> None:
    while view:
        view = view[file.write(view) :]


def _fill(file: io.FileIO, out: npt.NDArray[np.uint8]) -> None:
    """Fill `out` with the next bytes of the file."""
    view = out.data
    while view:
        count = file.readinto(view)
        if not count:
            raise OSError("a temporary file lost its end; is the disk full?")
        view = view[count:]
