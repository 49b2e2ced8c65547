"""Some of the rows of a source as a source of their own, to train on or to validate with."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ooc_fw.data.rows import AnyArray, Int64Array, Rows
from ooc_fw.data.sources.base import RowSource, split_spans
from ooc_fw.data.sources.wrapped import WrappedSource
from ooc_fw.system.errors import InputError

_LABEL_GAP = 1 << 16
"""Two labels at most this many rows apart are read together: a second read would take longer."""


class SubsetSource(WrappedSource):
    """Some of the rows of another source, in its order; nothing is copied.

    Parameters
    ----------
    source : RowSource
        Where the rows come from. It stays open when this source is closed.
    ranges : ndarray of int64, shape (k, 2)
        First row, and row after the last, of each run of consecutive rows: increasing, not empty
        and without overlap. InputError if there are none.
    """

    def __init__(self, source: RowSource, ranges: Int64Array) -> None:
        lengths = ranges[:, 1] - ranges[:, 0]
        n_rows = int(lengths.sum())
        if n_rows == 0:
            raise InputError(f"a part of {source.name} has no rows; take more of them")
        share = n_rows / source.n_rows
        super().__init__(source, decoded_bytes=int(share * source.decoded_bytes) + 1, n_rows=n_rows)
        self.ranges = ranges
        self._firsts = np.cumsum(lengths) - lengths  # position here of each range's first row
        self.rewrap_by(ranges)

    def rows_at(self, positions: Int64Array) -> Int64Array:
        """Rows of the whole source at positions in this one."""
        at = np.searchsorted(self._firsts, positions, side="right") - 1
        return np.asarray(self.ranges[at, 0] + positions - self._firsts[at])

    def _rows(self, start: int, stop: int) -> Int64Array:
        self._check_range(start, stop)
        return self.rows_at(np.arange(start, stop, dtype=np.int64))

    def _fetch(self, start: int, stop: int) -> tuple[Rows, int]:
        rows = self._rows(start, stop)
        if len(rows) == 0:
            return self.source.read(0, 0), 0
        if rows[-1] - rows[0] + 1 == len(rows):
            return self.source.read(int(rows[0]), int(rows[-1]) + 1), 0
        return self.source.take(rows), 0

    def _take(self, indices: Int64Array) -> tuple[Rows, int]:
        return self.source.take(self.rows_at(indices)), 0

    def labels(self, start: int, stop: int) -> AnyArray:
        """Label values of rows ``start:stop`` as stored."""
        return self._pick(self.source.labels, start, stop)

    def row_ids(self, start: int, stop: int) -> Int64Array:
        """Position of rows ``start:stop`` in the input of the whole source, counted from 0."""
        return self._pick(self.source.row_ids, start, stop)

    def _pick(self, read: Callable[[int, int], AnyArray], start: int, stop: int) -> AnyArray:
        """Numbers of rows ``start:stop``; `read` returns those of ranges of the whole source."""
        rows = self._rows(start, stop)
        if len(rows) == 0:
            return read(0, 0)
        spans = split_spans(rows, _LABEL_GAP, self.source.n_rows)
        return np.concatenate(
            [read(int(span[0]), int(span[-1]) + 1)[span - span[0]] for span in spans]
        )


def draw_parts(
    n_rows: int, sizes: Sequence[int], shuffled: bool, rng: np.random.Generator
) -> list[Int64Array]:
    """Draw disjoint random parts, of these sizes, of the rows of a source.

    Consecutive rows of a shuffled source are a random sample: its parts are consecutive on a circle
    of all rows, from a random row on. Returned are the ranges of each part, as `SubsetSource` takes
    them.
    """
    ends = np.cumsum(sizes)
    if shuffled:
        order = (np.arange(ends[-1]) + rng.integers(n_rows)) % n_rows
    else:
        order = rng.permutation(n_rows)
    return [
        ranges_of(np.sort(order[end - size : end])) for end, size in zip(ends, sizes, strict=True)
    ]


def ranges_of(rows: Int64Array) -> Int64Array:
    """Runs of consecutive numbers in increasing row numbers, shape (k, 2)."""
    breaks = np.flatnonzero(np.diff(rows) != 1) + 1
    starts = rows[np.concatenate([[0], breaks])]
    stops = rows[np.concatenate([breaks, [len(rows)]]) - 1] + 1
    return np.stack([starts, stops], axis=1)


def complement(ranges: Int64Array, n_rows: int) -> Int64Array:
    """Ranges of the rows that are in none of `ranges`."""
    starts = np.concatenate([[0], ranges[:, 1]])
    stops = np.concatenate([ranges[:, 0], [n_rows]])
    between = np.stack([starts, stops], axis=1)
    return np.asarray(between[starts < stops], dtype=np.int64)
