"""Random draws of row numbers, with the same chance for each row; no sampler reads rows.

For a shuffled file a draw depends only on the number of rows and the generator, so that all copies
of a data set give the same run.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ooc_fw.data.rows import AnyArray, Int64Array

SLICE_ROWS = 64  # preferred length of a slice: worth a read, and short, so that a draw has several
MAX_SLICES = 8  # largest number of slices in a draw; larger draws have longer slices
MAX_CHUNKS = 16  # largest number of chunks that a draw from an ordered file touches


@dataclass
class Sampler:
    """Draws of different rows out of `n_rows`, with the same chance for each row.

    If rows are in random order, a draw is a few slices at random offsets. With a single slice, two
    draws that share a row would share many. `chunk_rows` is given if neighbours resemble each
    other. Rows are then drawn singly from a few stretches of that length; in RAM, from all rows.
    """

    n_rows: int
    chunk_rows: int | None = None

    def sample(self, size: int, rng: np.random.Generator) -> Int64Array:
        """Increasing numbers of `size` different rows, or of all if there are no more."""
        size = min(size, self.n_rows)
        if self.chunk_rows is None:
            n_parts = min(MAX_SLICES, -(-size // SLICE_ROWS))
        else:
            n_parts = min(MAX_CHUNKS, size, self.n_rows // self.chunk_rows)
        counts = np.full(n_parts, size // n_parts, dtype=np.int64)
        counts[: size % n_parts] += 1
        lengths = np.maximum(counts, self.chunk_rows or 0)
        # Stretches lie on a circle of all rows, with random gaps between them. The circle is turned
        # by a random number of rows, so that each row has the same chance.
        gaps = np.sort(rng.integers(0, self.n_rows - int(lengths.sum()) + 1, size=n_parts))
        starts = gaps + np.cumsum(lengths) - lengths + int(rng.integers(self.n_rows))
        parts = [
            start + rng.choice(length, count, replace=False, shuffle=False)
            if count < length
            else start + np.arange(length)
            for start, length, count in zip(starts, lengths, counts, strict=True)
        ]
        return np.sort(np.concatenate(parts) % self.n_rows)


class BlockSampler(Sampler):
    """Consecutive blocks of a shuffled source, so that each row comes once in a reading."""

    next_row: int | None = None  # start of the next draw; None before the first, which is random

    def sample(self, size: int, rng: np.random.Generator) -> Int64Array:
        """Numbers of the next `size` rows, increasing, or of all rows if there are fewer."""
        size = min(size, self.n_rows)
        first = int(rng.integers(self.n_rows)) if self.next_row is None else self.next_row
        self.next_row = (first + size) % self.n_rows
        return np.sort((first + np.arange(size, dtype=np.int64)) % self.n_rows)


def choose_sampler(
    n_rows: int, chunk_rows: int, shuffled: bool | None, in_memory: bool, labels: AnyArray
) -> Sampler:
    """Sampler for the rows of a file; the order of `labels` shows a shuffle without a mark, too."""
    if shuffled or looks_shuffled(labels):
        return Sampler(n_rows)
    return Sampler(n_rows, n_rows if in_memory else chunk_rows)


def looks_shuffled(labels: AnyArray) -> bool:
    """Whether there are as many runs of equal labels as in random order (Wald, Wolfowitz, 1940).

    The number may be too small by three standard deviations or by ten, whichever is more.
    """
    counts = np.unique(labels, return_counts=True)[1]
    expected = len(labels) + 1 - float(np.square(counts, dtype=np.float64).sum()) / len(labels)
    runs = 1 + int(np.count_nonzero(labels[1:] != labels[:-1]))
    return bool(expected - runs <= max(10, 3 * expected**0.5))
