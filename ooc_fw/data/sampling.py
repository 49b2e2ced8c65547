"""Which rows to read next: integers in, row numbers out; nothing is read here.

Every sampler gives each row the same chance. On a shuffled file a draw depends only on the number
of rows and the generator, never on chunks or storage, so that all copies of a data set give the
same run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from ooc_fw.data.rows import AnyArray, Int64Array

# Preferred length of a slice: long enough to be worth a read, short enough to have several.
SLICE_ROWS = 64
MAX_SLICES = 8  # largest number of slices in a draw; larger draws have longer slices
MAX_CHUNKS = 16  # largest number of chunks that a draw from an ordered file touches
# Rows count as ordered if this many standard deviations of runs of labels are missing.
SORTED_DEVIATIONS = 4.0
# And if this many runs are missing: the runs of a rare class are not normally distributed.
SORTED_RUNS = 10


class Sampler(ABC):
    """A policy for drawing from `n_rows` rows."""

    def __init__(self, n_rows: int) -> None:
        self.n_rows = n_rows

    @abstractmethod
    def sample(self, size: int, rng: np.random.Generator) -> Int64Array:
        """Increasing numbers of `size` different rows, or of all if there are no more."""


class _IndependentSampler(Sampler):
    """Draws that do not depend on those before."""

    def sample(self, size: int, rng: np.random.Generator) -> Int64Array:
        """Draw `size` rows; see `Sampler.sample`."""
        if size >= self.n_rows:
            return np.arange(self.n_rows, dtype=np.int64)
        return np.sort(self._draw(size, rng))

    @abstractmethod
    def _draw(self, size: int, rng: np.random.Generator) -> Int64Array:
        """Draw fewer than all rows, in any order."""


class BlockSampler(Sampler):
    """Consecutive blocks of a shuffled source, so that no row comes twice within a pass."""

    next_row: int | None = None  # where the previous draw ended; a random row before the first

    def sample(self, size: int, rng: np.random.Generator) -> Int64Array:
        """Draw the next `size` rows; see `Sampler.sample`."""
        size = min(size, self.n_rows)
        if self.next_row is None:
            self.next_row = int(rng.integers(self.n_rows))
        rows = (self.next_row + np.arange(size, dtype=np.int64)) % self.n_rows
        self.next_row = (self.next_row + size) % self.n_rows
        return np.sort(rows)


def block_sampler(sampler: Sampler, n_rows: int) -> Sampler:
    """Sampler of whole blocks for a source from which `sampler` draws a few rows."""
    return BlockSampler(n_rows) if isinstance(sampler, SliceSampler) else sampler


class ScatteredSampler(_IndependentSampler):
    """Uniform draws without replacement, for rows in RAM."""

    def _draw(self, size: int, rng: np.random.Generator) -> Int64Array:
        return rng.choice(self.n_rows, size, replace=False, shuffle=False)


class SliceSampler(_IndependentSampler):
    """A few slices at random offsets, for rows that are in random order already.

    One slice of a shuffled file is a uniform sample without replacement. Two draws that share a row
    probably share a slice's worth of rows; several slices per draw keep that small.
    """

    def _draw(self, size: int, rng: np.random.Generator) -> Int64Array:
        lengths = split_evenly(size, min(MAX_SLICES, -(-size // SLICE_ROWS)))
        starts = place_arcs(self.n_rows, lengths, rng)
        parts = [start + np.arange(n) for start, n in zip(starts, lengths, strict=True)]
        return np.concatenate(parts) % self.n_rows


class ChunkSampler(_IndependentSampler):
    """Random rows out of stretches as long as a chunk from all over an ordered file.

    Neighbours resemble each other there, so that a slice would be a biased sample, and scattered
    rows would each cost a chunk. The stretches begin anywhere on a circle of all rows.
    """

    def __init__(self, n_rows: int, chunk_rows: int) -> None:
        super().__init__(n_rows)
        self.chunk_rows = chunk_rows

    def _draw(self, size: int, rng: np.random.Generator) -> Int64Array:
        n_chunks = max(1, min(MAX_CHUNKS, size, self.n_rows // self.chunk_rows))
        counts = split_evenly(size, n_chunks)
        lengths = np.minimum(np.maximum(counts, self.chunk_rows), self.n_rows)
        starts = place_arcs(self.n_rows, lengths, rng)
        parts = [
            start + rng.choice(length, count, replace=False, shuffle=False)
            for start, length, count in zip(starts, lengths, counts, strict=True)
        ]
        return np.concatenate(parts) % self.n_rows


def choose_sampler(
    n_rows: int, chunk_rows: int, shuffled: bool | None, in_memory: bool, labels: AnyArray
) -> Sampler:
    """Pick the sampler that suits the storage of the rows.

    The order of the labels tells whether rows are shuffled if nothing else does. A `ChunkSampler`
    means that the file should be shuffled, which the caller tells the user.
    """
    if shuffled is None:
        shuffled = looks_shuffled(labels)
    if shuffled:
        return SliceSampler(n_rows)
    return ScatteredSampler(n_rows) if in_memory else ChunkSampler(n_rows, chunk_rows)


def looks_shuffled(labels: AnyArray) -> bool:
    """Whether there are about as many runs of equal labels as in random order, or more."""
    missing, deviation = missing_runs(labels)
    return missing <= max(SORTED_RUNS, SORTED_DEVIATIONS * deviation)


def missing_runs(labels: AnyArray) -> tuple[float, float]:
    """Expected minus observed number of runs of equal labels, and its standard deviation.

    The runs test of Wald and Wolfowitz (1940), for any number of classes as given by Barton and
    David, "Multiple runs" (1957): with class counts ``n_k`` and ``s_p = sum n_k^p``, the number of
    runs in random order has mean ``n + 1 - s_2 / n`` and variance
    ``(s_2 (s_2 + n (n + 1)) - 2 n s_3 - n^3) / (n^2 (n - 1))``.
    """
    n = len(labels)
    if n < 2:
        return 0.0, 0.0
    # Python's integers: the terms of the variance are of order n^4 and cancel.
    counts = [int(count) for count in np.unique(labels, return_counts=True)[1]]
    squares, cubes = sum(c**2 for c in counts), sum(c**3 for c in counts)
    variance = (squares * (squares + n * (n + 1)) - 2 * n * cubes - n**3) / (n**2 * (n - 1))
    runs = 1 + int(np.count_nonzero(labels[1:] != labels[:-1]))
    return n + 1 - squares / n - runs, variance**0.5


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
