"""Draws of row numbers: every sampler gives each row the same chance, and reads nothing.

On a shuffled file a draw depends only on the number of rows and the generator, so that all copies
of a data set give the same run.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ooc_fw.data.rows import AnyArray, Int64Array

SLICE_ROWS = 64  # preferred length of a slice: worth a read, short enough to have several
MAX_SLICES = 8  # largest number of slices in a draw; larger draws have longer slices
MAX_CHUNKS = 16  # largest number of chunks that a draw from an ordered file touches


@dataclass
class Sampler:
    """Draws of different rows, each with the same chance, out of `n_rows`.

    Rows in random order are drawn as a few slices at random offsets; two draws of one slice each
    would share many rows if they share one. With `chunk_rows`, neighbours resemble each other: rows
    are drawn at random out of a few stretches as long as a chunk, or out of all rows in RAM.
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
        # Stretches lie on a circle of all rows. The rows left over are shared out at random as gaps
        # between them, and the whole is turned by a random angle: so each row has the same chance.
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
    """Sampler for rows whose labels tell whether they are shuffled, if the file does not."""
    if shuffled or looks_shuffled(labels):
        return Sampler(n_rows)
    return Sampler(n_rows, n_rows if in_memory else chunk_rows)


def looks_shuffled(labels: AnyArray) -> bool:
    """Whether runs of equal labels are as many as in random order (Wald and Wolfowitz, 1940).

    Three standard deviations may be missing, or ten runs of few labels.
    """
    counts = np.unique(labels, return_counts=True)[1]
    expected = len(labels) + 1 - float(np.square(counts, dtype=np.float64).sum()) / len(labels)
    runs = 1 + int(np.count_nonzero(labels[1:] != labels[:-1]))
    return bool(expected - runs <= max(10, 3 * expected**0.5))
