"""Draws of row numbers: every sampler gives each row the same chance, and reads nothing.

On a shuffled file a draw depends only on the number of rows and the generator, so that all copies
of a data set give the same run.
"""

from __future__ import annotations

import numpy as np

from ooc_fw.data.rows import AnyArray, Int64Array

SLICE_ROWS = 64  # preferred length of a slice: worth a read, short enough to have several
MAX_SLICES = 8  # largest number of slices in a draw; larger draws have longer slices
MAX_CHUNKS = 16  # largest number of chunks that a draw from an ordered file touches
# Rows count as ordered if more runs of labels are missing than these, and than so many times the
# root of their number.
SORTED_RUNS, SORTED_ROOTS = 10, 3


class Sampler:
    """Draws of different rows, each with the same chance, out of `n_rows`.

    Rows in random order are drawn as a few slices at random offsets. One slice would be a uniform
    sample, but two draws that share a row would probably share a slice's worth of rows.

    With `chunk_rows`, the rows are in an order in which neighbours resemble each other: a slice
    would be a biased sample, and scattered rows would each cost a chunk. Rows are then drawn at
    random out of a few stretches as long as a chunk. If that is all rows, as in RAM, any are drawn.

    Slices and stretches begin anywhere on a circle of all rows.
    """

    def __init__(self, n_rows: int, chunk_rows: int | None = None) -> None:
        self.n_rows = n_rows
        self.chunk_rows = chunk_rows

    def sample(self, size: int, rng: np.random.Generator) -> Int64Array:
        """Increasing numbers of `size` different rows, or of all if there are no more."""
        if size >= self.n_rows:
            return np.arange(self.n_rows, dtype=np.int64)
        if self.chunk_rows is None:
            counts = split_evenly(size, min(MAX_SLICES, -(-size // SLICE_ROWS)))
            return self._draw(counts, counts, rng)
        if self.chunk_rows >= self.n_rows:
            return np.sort(rng.choice(self.n_rows, size, replace=False, shuffle=False))
        counts = split_evenly(size, min(MAX_CHUNKS, size, self.n_rows // self.chunk_rows))
        return self._draw(counts, np.maximum(counts, self.chunk_rows), rng)

    def _draw(
        self, counts: Int64Array, lengths: Int64Array, rng: np.random.Generator
    ) -> Int64Array:
        """So many rows of each stretch, which are all of a slice."""
        starts = place_arcs(self.n_rows, lengths, rng)
        parts = [
            start
            + (
                rng.choice(length, count, replace=False, shuffle=False)
                if count < length
                else np.arange(length)
            )
            for start, length, count in zip(starts, lengths, counts, strict=True)
        ]
        return np.sort(np.concatenate(parts) % self.n_rows)


class BlockSampler(Sampler):
    """Consecutive blocks of a shuffled source, so that no row comes twice within a pass."""

    next_row: int | None = None  # where the previous draw ended; a random row before the first

    def sample(self, size: int, rng: np.random.Generator) -> Int64Array:
        """Draw the next `size` rows; see `Sampler.sample`."""
        size = min(size, self.n_rows)
        first = int(rng.integers(self.n_rows)) if self.next_row is None else self.next_row
        self.next_row = (first + size) % self.n_rows
        return np.sort((first + np.arange(size, dtype=np.int64)) % self.n_rows)


def choose_sampler(
    n_rows: int, chunk_rows: int, shuffled: bool | None, in_memory: bool, labels: AnyArray
) -> Sampler:
    """Pick the sampler that suits the storage of the rows.

    The order of the labels tells whether rows are shuffled if the file does not say so.
    """
    if shuffled or looks_shuffled(labels):
        return Sampler(n_rows)
    return Sampler(n_rows, n_rows if in_memory else chunk_rows)


def looks_shuffled(labels: AnyArray) -> bool:
    """Whether there are about as many runs of equal labels as in random order, or more.

    With the counts n_k of the classes, n + 1 - sum n_k^2 / n are expected there, and their standard
    deviation is less than the root of that (Wald and Wolfowitz, 1940).
    """
    counts = np.unique(labels, return_counts=True)[1]
    expected = len(labels) + 1 - float(np.square(counts, dtype=np.float64).sum()) / len(labels)
    runs = 1 + int(np.count_nonzero(labels[1:] != labels[:-1]))
    return bool(expected - runs <= max(SORTED_RUNS, SORTED_ROOTS * expected**0.5))


def split_evenly(total: int, parts: int) -> Int64Array:
    """Cut `total` into `parts` whole numbers that differ by at most one."""
    small, rest = divmod(total, parts)
    return np.full(parts, small, dtype=np.int64) + (np.arange(parts) < rest)


def place_arcs(n_rows: int, lengths: Int64Array, rng: np.random.Generator) -> Int64Array:
    """Place arcs on a circle of rows at random, without overlap; returns the first row of each.

    The rows left over are shared out at random as gaps, and the whole pattern is turned by a random
    angle, which gives each row the same chance to be covered.
    """
    free = n_rows - int(lengths.sum())
    gaps = np.sort(rng.integers(0, free + 1, size=len(lengths)))
    before = np.cumsum(lengths) - lengths
    return (gaps + before + int(rng.integers(n_rows))) % n_rows
