"""Rows stored on disk and read back in random order, or in the same order, in constant memory.

The temporary files have no name in the file system, so that nothing is left behind even if the
process is killed.
"""

from __future__ import annotations

import io
import os
import pickle
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_fw.data.rows import AnyArray, CSRRows, Int64Array, concat_rows, take_rows

BUCKET_BYTES = 16 << 20  # target size of a bucket; a few buckets are in memory at once


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Rows, and the arrays beside them (see `RowSource.beside`), such as "y" and "row"."""

    rows: Any  # parsed rows in float32, or in float64 if they have yet to be scaled
    beside: Mapping[str, AnyArray]  # labels that are words are codes

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: slice | Int64Array) -> RowBlock:
        """A slice of the rows, or a copy of some rows in any order."""
        rows = self.rows[key] if isinstance(key, slice) else take_rows(self.rows, key)
        return RowBlock(rows, {name: values[key] for name, values in self.beside.items()})


class Spool:
    """Stores rows, and returns them in the order of their `shuffle_keys`; without a seed, as added.

    About `n_bytes` are expected. The leading bits of a key, after `skipped_bits` that all keys
    share, assign a row to a bucket, an unnamed file. A bucket of up to twice BUCKET_BYTES is read
    back whole and sorted. The rows of a larger bucket go through another spool.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        seed: int | None,
        n_bytes: int | None,
        skipped_bits: int = 0,
    ) -> None:
        self._directory = directory
        self.seed = seed
        n_buckets = 63 if n_bytes is None else n_bytes // BUCKET_BYTES
        self._bits = 0 if seed is None else min(8, n_buckets.bit_length())  # at most 256 open files
        self._skipped_bits = skipped_bits
        self._buckets: dict[int, Any] = {}
        self._lock = threading.Lock()

    def add(self, block: RowBlock) -> None:
        """Distribute rows over the buckets; with a seed, in any thread and in any order."""
        parts = {0: block}
        if self._bits:
            assert self.seed is not None
            keys = shuffle_keys(block.beside["row"], self.seed) << np.uint64(self._skipped_bits)
            numbers = (keys >> np.uint64(64 - self._bits)).astype(np.uint16)
            order = np.argsort(numbers, kind="stable")
            block = block[order]
            found, starts = np.unique(numbers[order], return_index=True)
            bounds = pairwise([*starts.tolist(), len(block)])
            parts = {n: block[slice(*ends)] for n, ends in zip(found.tolist(), bounds, strict=True)}
        for number, part in parts.items():
            piece = memoryview(pickle.dumps(part, 5))
            with self._lock:
                if number not in self._buckets:
                    self._buckets[number] = _new_file(self._directory)
                while piece:
                    piece = piece[self._buckets[number].write(piece) :]

    def blocks(self, n_features: int) -> Iterator[RowBlock]:
        """Read the rows back, once, as rows with `n_features` columns.

        The disk space of each bucket is freed after its rows were returned.
        """
        used_bits = self._skipped_bits + self._bits
        for number in sorted(self._buckets):
            with self._buckets.pop(number) as file:
                n_bytes = file.tell()
                if self.seed is None:
                    yield from _blocks_in(file, BUCKET_BYTES, n_features)
                elif n_bytes <= 2 * BUCKET_BYTES or used_bits >= 24:  # such a bucket has few rows
                    for block in _blocks_in(file, n_bytes, n_features):
                        yield block[np.argsort(shuffle_keys(block.beside["row"], self.seed))]
                else:
                    with closing(Spool(self._directory, self.seed, n_bytes, used_bits)) as inner:
                        for block in _blocks_in(file, BUCKET_BYTES, n_features):
                            inner.add(block)
                        file.truncate(0)
                        yield from inner.blocks(n_features)

    def close(self) -> None:
        """Free the disk space."""
        for file in self._buckets.values():
            file.close()


def _new_file(directory: str | os.PathLike[str]) -> Any:
    try:
        return tempfile.TemporaryFile(dir=directory, buffering=0)
    except OSError as error:  # the message leaves out the random name of the file
        raise OSError(error.errno, error.strerror) from None


def _blocks_in(file: Any, n_bytes: int, n_features: int) -> Iterator[RowBlock]:
    """Yield the rows of a bucket in the order they were added, in blocks of about `n_bytes`."""
    end = file.tell()
    file.seek(0)
    start = 0
    pieces: list[RowBlock] = []
    reader = io.BufferedReader(file)
    while reader.tell() < end:
        try:
            pieces.append(pickle.load(reader))
        except (EOFError, pickle.UnpicklingError):
            raise OSError("a temporary file lost its end; is the disk full?") from None
        if reader.tell() - start >= n_bytes or reader.tell() == end:
            block = _joined(pieces, n_features)
            pieces.clear()
            start = reader.tell()
            yield block
            del block
    reader.detach()


def _joined(pieces: list[RowBlock], n_features: int) -> RowBlock:
    rows = concat_rows([piece.rows for piece in pieces])
    assert isinstance(rows, CSRRows)
    names = pieces[0].beside
    beside = {name: np.concatenate([piece.beside[name] for piece in pieces]) for name in names}
    return RowBlock(replace(rows, n_features=n_features), beside)


def shuffle_keys(row_ids: Int64Array, seed: int) -> npt.NDArray[np.uint64]:
    """Random 64-bit numbers, different for all rows, which depend only on the row and the seed.

    SplitMix64 (Steele, Lea and Flood, 2014, "Fast splittable pseudorandom number generators")
    begins a sequence at the seed. A row gets the number at its place; the output is a bijection.
    """
    start = np.random.SeedSequence(seed).generate_state(1, np.uint64)
    # Overflow of uint64 wraps around, as the generator requires.
    key: npt.NDArray[np.uint64] = start + (row_ids.astype(np.uint64) + np.uint64(1)) * np.uint64(
        0x9E3779B97F4A7C15
    )
    key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    key = (key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return key ^ (key >> np.uint64(31))
