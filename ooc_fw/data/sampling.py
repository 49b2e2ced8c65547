"""Which rows to read next: integers in, row numbers out.

Owns the policies by which training rows are drawn, and the choice between them. Does no reading, so
that all of it can be tested with integers alone.

Every sampler gives each row the same chance. On a shuffled file a draw is a function of the number
of rows and the generator only, never of chunks or storage, so that all copies of a data set take
the same course.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from ooc_fw.data.rows import Int64Array

SLICE_ROWS = 64
"""Preferred length of a slice: long enough to be worth a read, short enough to have several."""

MAX_SLICES = 8
"""Most slices in a draw; larger draws take longer slices."""

MAX_CHUNKS = 16
"""Most chunks touched by a draw from an ordered file."""

SORTED_DEVIATIONS = 4.0
"""Rows are taken as ordered when this many standard deviations of runs of labels are missing."""

SORTED_RUNS = 10
"""And at least so many runs, since few runs of a rare class are far from normally distributed."""


class Sampler(Protocol):
    """A policy for drawing rows."""

    name: ClassVar[str]

    def sample(self, size: int, rng: np.random.Generator) -> Int64Array:
        """Draw rows.

        Parameters
        ----------
        size : int
            Number of rows wanted; all rows when there are no more than that.
        rng : numpy.random.Generator
            The only source of randomness.

        Returns
        -------
        ndarray of int64, shape (min(size, n_rows),)
            Increasing row numbers without repeats.
        """


class BlockSampler:
    """Consecutive blocks of a shuffled source, so that no row comes twice within a pass.

    The first draw starts at a random row, later ones where the one before has ended.

    Parameters
    ----------
    n_rows : int
        Rows of the source.

    Attributes
    ----------
    next_row : int or None
        Where the next draw starts; None before the first.
    """

    name: ClassVar[str] = "blocks"

    def __init__(self, n_rows: int) -> None:
        self.n_rows = n_rows
        self.next_row: int | None = None

    def sample(self, size: int, rng: np.random.Generator) -> Int64Array:
        """Next `size` row numbers, increasing; all rows if there are no more."""
        if self.next_row is None:
            self.next_row = int(rng.integers(self.n_rows))
        size = min(size, self.n_rows)
        rows = (self.next_row + np.arange(size, dtype=np.int64)) % self.n_rows
        self.next_row = (self.next_row + size) % self.n_rows
        return np.sort(rows)


def block_sampler(sampler: Sampler, n_rows: int) -> Sampler:
    """Sampler of whole blocks for a source from which `sampler` draws a few rows."""
    return BlockSampler(n_rows) if isinstance(sampler, SliceSampler) else sampler


class ScatteredSampler:
    """Uniform draws without replacement, for rows in RAM.

    Parameters
    ----------
    n_rows : int
        Number of rows to draw from.
    """

    name: ClassVar[str] = "scattered"

    def __init__(self, n_rows: int) -> None:
        self.n_rows = n_rows

    def sample(self, size: int, rng: np.random.Generator) -> Int64Array:
        """Draw `size` rows; see `Sampler.sample`."""
        if size >= self.n_rows:
            return np.arange(self.n_rows, dtype=np.int64)
        return np.sort(rng.choice(self.n_rows, size, replace=False, shuffle=False))


class SliceSampler:
    """A few slices at random offsets, for rows that are in random order already.

    Parameters
    ----------
    n_rows : int
        Number of rows to draw from.
    slice_rows : int
        Preferred length of a slice.

    Notes
    -----
    One slice of a shuffled file is a uniform sample without replacement. Draws are not independent
    of each other, though: neighbours stay neighbours, so that two draws which share one row
    probably share a slice's worth of them. Several slices a draw keep that small.
    """

    name: ClassVar[str] = "slices"

    def __init__(self, n_rows: int, slice_rows: int = SLICE_ROWS) -> None:
        self.n_rows = n_rows
        self.slice_rows = slice_rows

    def sample(self, size: int, rng: np.random.Generator) -> Int64Array:
        """Draw `size` rows; see `Sampler.sample`."""
        if size >= self.n_rows:
            return np.arange(self.n_rows, dtype=np.int64)
        lengths = split_evenly(size, min(MAX_SLICES, -(-size // self.slice_rows)))
        starts = place_arcs(self.n_rows, lengths, rng)
        parts = [
            np.arange(start, start + length)
            for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)
        ]
        return np.sort(np.concatenate(parts) % self.n_rows)


class ChunkSampler:
    """Random rows out of stretches as long as a chunk from all over a file, for ordered files.

    Neighbours resemble each other there, so a slice would be a biased sample. Reading as much as a
    chunk at each of several places, and keeping a few rows of each, is the affordable middle.

    Parameters
    ----------
    n_rows : int
        Number of rows to draw from.
    chunk_rows : int
        Rows of a chunk.

    Notes
    -----
    The stretches begin anywhere, not at the borders of chunks, and lie on a circle: that is what
    makes all rows equally likely, whatever the length of the last chunk.
    """

    name: ClassVar[str] = "chunks"

    def __init__(self, n_rows: int, chunk_rows: int) -> None:
        self.n_rows = n_rows
        self.chunk_rows = chunk_rows

    def sample(self, size: int, rng: np.random.Generator) -> Int64Array:
        """Draw `size` rows; see `Sampler.sample`."""
        if size >= self.n_rows:
            return np.arange(self.n_rows, dtype=np.int64)
        n_chunks = max(1, min(MAX_CHUNKS, size, self.n_rows // self.chunk_rows))
        counts = split_evenly(size, n_chunks)
        lengths = np.minimum(np.maximum(counts, self.chunk_rows), self.n_rows)
        starts = place_arcs(self.n_rows, lengths, rng)
        parts = [
            start + rng.choice(length, count, replace=False, shuffle=False)
            for start, length, count in zip(
                starts.tolist(), lengths.tolist(), counts.tolist(), strict=True
            )
        ]
        return np.sort(np.concatenate(parts) % self.n_rows)


SAMPLERS: dict[str, Callable[..., Sampler]] = {
    sampler.name: sampler for sampler in (SliceSampler, ScatteredSampler, ChunkSampler)
}
"""Sampler classes by name."""


def choose_sampler(
    n_rows: int,
    chunk_rows: int,
    shuffled: bool | None,
    in_memory: bool,
    labels: npt.NDArray[Any],
) -> Sampler:
    """Pick the sampler that suits how rows are kept.

    Parameters
    ----------
    n_rows, chunk_rows : int
        Number of rows, and of rows in a chunk.
    shuffled : bool or None
        Whether the rows are in random order; None to let the order of the labels tell.
    in_memory : bool
        Whether scattered access is cheap.
    labels : ndarray, shape (n_rows,)
        Codes or values of the classes.

    Returns
    -------
    Sampler
        A `ChunkSampler` means that the file should be shuffled; the caller says so to the user.
    """
    if shuffled is None:
        shuffled = looks_shuffled(labels)
    if shuffled:
        return SliceSampler(n_rows)
    return ScatteredSampler(n_rows) if in_memory else ChunkSampler(n_rows, chunk_rows)


def looks_shuffled(labels: npt.NDArray[Any]) -> bool:
    """Whether labels change from row to row as often as in random order.

    Parameters
    ----------
    labels : ndarray, shape (n_rows,)
        Codes or values of the classes.

    Returns
    -------
    bool
        False when there are clearly fewer runs of equal labels than chance would give. Rows of one
        class tell nothing, and count as shuffled; so do labels that alternate.

    """
    missing, deviation = missing_runs(labels)
    return missing <= max(SORTED_RUNS, SORTED_DEVIATIONS * deviation)


def missing_runs(labels: npt.NDArray[Any]) -> tuple[float, float]:
    """How many runs of equal labels fewer there are than in random order.

    Parameters
    ----------
    labels : ndarray, shape (n_rows,)
        Codes or values of the classes.

    Returns
    -------
    missing : float
        Expected number of runs minus the number found.
    deviation : float
        Standard deviation of the number of runs in random order.

    Notes
    -----
    The runs test of Wald and Wolfowitz (1940), for any number of classes as given by Barton and
    David, "Multiple runs" (1957): with class counts ``n_k`` and ``s_p = sum n_k^p``, the number of
    runs has mean ``n + 1 - s_2 / n`` and variance
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
    """Place arcs on a circle of rows at random, without overlap.

    Parameters
    ----------
    n_rows : int
        Length of the circle.
    lengths : ndarray of int64, shape (n_arcs,)
        Length of each arc; their sum is at most `n_rows`.
    rng : numpy.random.Generator
        The only source of randomness.

    Returns
    -------
    ndarray of int64, shape (n_arcs,)
        Start of each arc; an arc that passes the end goes on at row 0.

    Notes
    -----
    The rows left over are shared out as gaps at random, and the whole pattern is turned by a random
    angle, which gives each row the same chance to be covered.
    """
    free = n_rows - int(lengths.sum())
    gaps = np.sort(rng.integers(0, free + 1, size=len(lengths)))
    before = np.cumsum(lengths) - lengths
    return (gaps + before + int(rng.integers(n_rows))) % n_rows
