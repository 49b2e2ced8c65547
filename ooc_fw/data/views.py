"""Which rows of a source are read: sources made of others, and draws of rows at random."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_fw.data.arrays import ReadArray, Sliceable
from ooc_fw.data.labels import feature_places
from ooc_fw.data.rows import (
    AnyArray,
    CSRRows,
    Float64Array,
    Int64Array,
    Rows,
    StoredRows,
    concat_rows,
    take_columns,
    take_rows,
)
from ooc_fw.data.scaling import Scaling
from ooc_fw.data.sources import CHUNK_BYTES, RowSource, split_spans
from ooc_fw.system.errors import InputError

logger = logging.getLogger(__name__)

# Two labels at most this many rows apart are read together: a second read would take longer.
_LABEL_GAP = 1 << 16


class SubsetSource(RowSource):
    """Some of the rows of another source, which stays open when this one is closed.

    `ranges`, int64 of shape (k, 2), holds the first row, and the row after the last, of each run of
    consecutive rows: increasing, not empty and without overlap. InputError if there are none.
    """

    def __init__(self, source: RowSource, ranges: Int64Array) -> None:
        lengths = ranges[:, 1] - ranges[:, 0]
        n_rows = int(lengths.sum())
        if n_rows == 0:
            raise InputError(f"a part of {source.name} has no rows; take more of them")
        self.source, self.ranges = source, ranges
        self._firsts = np.cumsum(lengths) - lengths  # position here of each range's first row
        super().__init__(
            source.name,
            (n_rows, source.n_features),
            chunk_rows=source.chunk_rows,
            decoded_bytes=int(n_rows / source.n_rows * source.decoded_bytes) + 1,
            parents=(source,),
        )
        # No method of this source, which would keep it and its rows until garbage is collected.
        pick = partial(_pick, ranges, self._firsts)
        if source._labels is not None:
            self._labels = ReadArray((n_rows,), object, partial(pick, source.labels))
        self.ids = ReadArray((n_rows,), np.int64, partial(pick, source.row_ids))
        if source.categories is not None:
            self.categories = source.categories.at(n_rows, pick)
        self.reopen_as_view(ranges)

    @property
    def rows(self) -> Int64Array:
        """Rows of the whole source that are in this one."""
        return self.rows_at(np.arange(self.n_rows))

    def rows_at(self, positions: Int64Array) -> Int64Array:
        """Rows of the whole source at positions in this one."""
        return _rows_at(self.ranges, self._firsts, positions)

    def _fetch(self, start: int, stop: int) -> StoredRows:
        rows = self.rows_at(np.arange(start, stop, dtype=np.int64))
        if len(rows) == 0:
            return self.source.read(0, 0)
        if rows[-1] - rows[0] + 1 == len(rows):
            return self.source.read_exact(int(rows[0]), int(rows[-1]) + 1)
        return self.source.take_exact(rows)

    def _take(self, indices: Int64Array) -> Rows:
        return self.source.take(self.rows_at(indices))


def _rows_at(ranges: Int64Array, firsts: Int64Array, positions: Int64Array) -> Int64Array:
    """Rows at positions in the rows of `ranges`, whose first ones are at the positions `firsts`."""
    at = np.searchsorted(firsts, positions, side="right") - 1
    return np.asarray(ranges[at, 0] + positions - firsts[at])


def _pick(
    ranges: Int64Array,
    firsts: Int64Array,
    read: Callable[[int, int], AnyArray],
    start: int,
    stop: int,
) -> AnyArray:
    """Numbers at positions ``start:stop``; `read` returns those of ranges of the whole source."""
    rows = _rows_at(ranges, firsts, np.arange(start, stop, dtype=np.int64))
    spans = split_spans(rows, _LABEL_GAP, int(ranges[-1, 1])) if len(rows) else []
    parts = [read(int(span[0]), int(span[-1]) + 1)[span - span[0]] for span in spans]
    return np.concatenate(parts) if parts else read(0, 0)


def draw_parts(
    n_rows: int,
    sizes: Sequence[int],
    shuffled: bool,
    rng: np.random.Generator,
    codes: Int64Array | None = None,
) -> list[Int64Array]:
    """Ranges of disjoint random parts, of these sizes, of the rows of a source.

    Consecutive rows of a shuffled source are a random sample: its parts are consecutive on a circle
    of all rows, from a random row on. With `codes`, the class of each row, every part has the same
    share of each class, as far as whole rows allow; its rows are then nearly consecutive.
    """
    ends = np.cumsum(sizes)
    if shuffled:
        order = np.arange(n_rows)
        order += rng.integers(n_rows)
        order %= n_rows
    else:
        order = rng.permutation(n_rows)
    if codes is not None:
        order = order[np.argsort(_shares(codes[order]), kind="stable")]
    return [
        ranges_of(np.sort(order[end - size : end])) for end, size in zip(ends, sizes, strict=True)
    ]


def _shares(codes: Int64Array) -> Float64Array:
    """Which share of its class comes before each row, shape (n_rows,)."""
    by_class, stop = np.argsort(codes, kind="stable"), 0
    shares = np.empty(len(codes))
    for count in np.unique(codes, return_counts=True)[1].tolist():
        start, stop = stop, stop + count
        shares[by_class[start:stop]] = (np.arange(count) + 0.5) / count
    return shares


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


class WholeSource(RowSource):
    """All rows of another source, which is closed with this one."""

    def __init__(self, source: RowSource, n_features: int, *, sparse: bool) -> None:
        super().__init__(
            source.name,
            (source.n_rows, n_features),
            chunk_rows=source.chunk_rows,
            decoded_bytes=source.decoded_bytes if sparse else None,
            parents=(source,),
        )
        self.source, self.sparse = source, sparse
        self._labels, self.ids = source._labels, source.ids
        self.categories = source.categories
        self.in_memory = False
        self.on_close(source.close)


def check_raw(source: RowSource) -> None:
    """Raise InputError when the rows are scaled already."""
    before = source.scaling
    if before is not None and not before.is_identity:
        raise InputError(f"{source.name} is scaled already ({before.kind}); use it as it is")


class ScaledSource(WholeSource):
    """Raw rows of a source, scaled as they are read; no second copy of them is needed."""

    scaling: Scaling

    def __init__(self, source: RowSource, scaling: Scaling) -> None:
        check_raw(source)
        if scaling.n_features not in (None, source.n_features):
            raise InputError(
                f"the scaling is for {scaling.n_features} features, and {source.name} has "
                f"{source.n_features}; give the file that it was made for"
            )
        sparse = source.sparse and not scaling.moves_zero
        super().__init__(source, source.n_features, sparse=sparse)
        self.scaling = scaling
        self.reopen_as_view(scaling)

    def _fetch(self, start: int, stop: int) -> Rows:
        return self.scaling.apply(self.source.read_exact(start, stop), self.n_features)


class ColumnSource(WholeSource):
    """Columns of another source at `places`, none of them twice, with names and scaling."""

    def __init__(self, source: RowSource, places: Int64Array) -> None:
        super().__init__(source, len(places), sparse=source.sparse)
        self.table, self._places = None, places
        self.categories = None
        if source.columns is not None:
            self.columns = [source.columns[k] for k in places.tolist()]
        if source.scaling is not None:
            self.scaling = source.scaling.at(places)
        self.reopen_as_view(places)

    def _fetch(self, start: int, stop: int) -> StoredRows:
        rows = self.source.read_exact(start, stop)  # they may yet be scaled
        if isinstance(rows, CSRRows):
            return take_columns(rows, self._places)
        return rows[:, self._places]


class CachedSource(WholeSource):
    """A source whose rows are read from storage at most once, if all of them fit in `max_bytes`.

    Blocks of whole chunks are read when a row of them is first asked for.
    """

    def __init__(self, source: RowSource, max_bytes: int) -> None:
        super().__init__(source, source.n_features, sparse=source.sparse)
        self.in_memory, self.decoded_bytes = source.in_memory, source.decoded_bytes
        self.keeps = not source.in_memory and source.decoded_bytes <= max_bytes
        self.statistics = source.statistics
        self._block_rows = max(source.chunk_rows, self.rows_in(CHUNK_BYTES))
        self.max_gap = self.span_rows = self._block_rows
        self._blocks: dict[int, Rows] = {}
        self.on_close(self._blocks.clear)

    def _fetch(self, start: int, stop: int) -> Rows:
        if not self.keeps or start == stop:
            return self.source.read(start, stop)
        length = self._block_rows
        pieces = []
        for first in range(start // length * length, stop, length):
            if first not in self._blocks:
                self._blocks[first] = self.source.read(first, min(first + length, self.n_rows))
            pieces.append(self._blocks[first][max(start - first, 0) : stop - first])
        return concat_rows(pieces)

    def _take(self, indices: Int64Array) -> Rows:
        return super()._take(indices) if self.keeps else self.source.take(indices)


class StackedSource(RowSource):
    """Rows of several sources, one below the other; they are closed with this one.

    Columns of later sources are found by name where both sides have names. InputError names the
    first source that differs from the first of all in columns, storage, scaling or kind of labels.
    """

    def __init__(self, *parts: RowSource, labels: Sliceable | None = None) -> None:
        first = parts[0]
        parts = (first, *(_like_first(part, first) for part in parts[1:]))
        self._ends = np.cumsum([part.n_rows for part in parts])
        n_more = len(parts) - 1
        super().__init__(
            f"{first.name} and {n_more} more {'files' if n_more > 1 else 'file'}",
            (int(self._ends[-1]), first.n_features),
            labels=labels,
            chunk_rows=max(part.chunk_rows for part in parts),
            decoded_bytes=sum(part.decoded_bytes for part in parts),
            parents=parts,
        )
        self.shuffled = None if self.shuffled is None else False
        if labels is None and first.has_labels:
            self._labels = ReadArray((self.n_rows,), object, self._stack("labels"))
        self.ids = ReadArray((self.n_rows,), np.int64, self._stack("row_ids"))
        for categories in (part.categories for part in parts if part.categories is not None):
            self.categories = replace(categories, cells=None)  # labels of other parts may be in it
        for part in parts:
            self.on_close(part.close)
        self.reopen_as_view()

    def _split(self, start: int, stop: int) -> list[tuple[RowSource, int, int, int]]:
        """Parts that hold rows ``start:stop``: each with its range and its first row here."""
        held = []
        for part, end in zip(self._parents, self._ends.tolist(), strict=True):
            first = end - part.n_rows
            low, high = max(start, first), min(stop, end)
            if low < high or (start == stop and first <= start < end):
                held.append((part, low - first, max(low, high) - first, first))
        return held or [(self._parents[0], 0, 0, 0)]

    def _stack(self, what: str) -> Callable[[int, int], AnyArray]:
        """Reader of labels or of row numbers."""

        def read(start: int, stop: int) -> AnyArray:
            split = self._split(start, stop)
            parts = [getattr(part, what)(low, high) for part, low, high, _ in split]
            if what == "row_ids":
                parts = [ids + first for ids, (*_, first) in zip(parts, split, strict=True)]
            return np.concatenate(parts)

        return read

    def _read(self, start: int, stop: int, convert: Callable[..., Any]) -> Any:
        self._check_range(start, stop)
        self._count(stop - start)
        split = self._split(start, stop)
        return concat_rows([part._read(low, high, convert) for part, low, high, _ in split])

    def _fetch(self, start: int, stop: int) -> StoredRows:
        split = self._split(start, stop)
        return concat_rows([part.read_unchecked(low, high) for part, low, high, _ in split])

    def _take(self, indices: Int64Array) -> Rows:
        cuts = np.searchsorted(indices, self._ends)
        parts = zip(self._parents, self._ends, np.split(indices, cuts[:-1]), strict=True)
        rows = [part.take(own - end + part.n_rows) for part, end, own in parts if len(own) > 0]
        return concat_rows(rows or [self._parents[0].read(0, 0)])


def _like_first(part: RowSource, first: RowSource) -> RowSource:
    """A source with the columns of the first one in their order; InputError where they differ."""
    sides = f"{part.name} and {first.name} differ, and cannot be one source"
    known, names = first.columns, part.columns
    if known is not None and names is not None and {*known} != {*names}:
        lacks = [name for name in known if name not in {*names}]
        extra = [name for name in names if name not in {*known}]
        what = f"{part.name} has no column {lacks[0]!r}" if lacks else f"only it has {extra[0]!r}"
        counts = f"{len(lacks)} columns are in the other only, {len(extra)} in it only"
        raise InputError(f"{sides}: {what} ({counts}); write both with the same columns")
    if part.n_features != first.n_features:
        counts = f"{part.n_features} and {first.n_features} columns"
        raise InputError(f"{sides}: they have {counts}; write both with the same columns")
    differs = {
        "one is sparse, the other dense; write both alike": part.sparse != first.sparse,
        "one has labels, the other none": part.has_labels != first.has_labels,
        "their labels are not of the same --labels-as; convert both alike": (
            part.labels_as != first.labels_as
        ),
        "they are scaled in different ways; convert both with --like one of them": (
            (part.scaling is None) != (first.scaling is None)
            or (part.scaling and first.scaling and not part.scaling.same_as(first.scaling))
        ),
        "their columns were made from tables in different ways; convert both with --like one": (
            part.table != first.table
        ),
    }
    for why in (why for why, is_so in differs.items() if is_so):
        raise InputError(f"{sides}: {why}")
    if first.has_labels:
        kinds = [source.labels(0, 1).dtype.kind in "biuf" for source in (part, first)]
        if kinds[0] != kinds[1]:
            raise InputError(f"{sides}: the labels of one are numbers, those of the other words")
    places = feature_places(names, known, part.name)
    if places is not None:
        words = "%s columns found by name: %s has another order than %s"
        logger.warning(words, len(places), part.name, first.name)
    return part if places is None else ColumnSource(part, places)


class PairSource(RowSource):
    """Rows of two sources, evenly interleaved: each holds one class, in random order if `shuffled`.

    Of the first k rows, floor(k n_first / n) come from `first`. Any stretch of rows therefore holds
    both classes in the proportion of all rows, contiguous rows are contiguous in both sources, and
    random samples of both are a random sample here. The sources stay open when this one is closed.
    """

    def __init__(
        self, first: RowSource, second: RowSource, *, name: str, shuffled: bool | None
    ) -> None:
        super().__init__(
            name,
            (first.n_rows + second.n_rows, first.n_features),
            chunk_rows=first.chunk_rows + second.chunk_rows,
            decoded_bytes=first.decoded_bytes + second.decoded_bytes,
            parents=(first, second),
        )
        self.first, self.second, self.shuffled = first, second, shuffled

    def is_first(self, rows: Int64Array) -> npt.NDArray[np.bool_]:
        """Whether each of these rows comes from `first`."""
        return self._before(rows + 1) > self._before(rows)

    def origin(self, rows: Int64Array) -> Int64Array:
        """Row number in `first` or `second` of each of these rows."""
        before = self._before(rows)
        return np.where(self.is_first(rows), before, rows - before)

    def place(self, origin: Int64Array, is_first: npt.NDArray[np.bool_]) -> Int64Array:
        """Inverse of `origin` and `is_first`: the rows here."""
        in_first = -(-(origin + 1) * self.n_rows // self.first.n_rows) - 1
        in_second = origin * self.n_rows // self.second.n_rows
        return np.where(is_first, in_first, in_second)

    def _before(self, rows: Int64Array) -> Int64Array:
        """How many of the first `rows` rows come from `first`."""
        return rows * self.first.n_rows // self.n_rows

    def _fetch(self, start: int, stop: int) -> Rows:
        begin, end = (int(count) for count in self._before(np.array([start, stop])))
        parts = [self.first.read(begin, end), self.second.read(start - begin, stop - end)]
        return self._merge(parts, self.is_first(np.arange(start, stop)))

    def _take(self, indices: Int64Array) -> Rows:
        is_first, origin = self.is_first(indices), self.origin(indices)
        parts = [self.first.take(origin[is_first]), self.second.take(origin[~is_first])]
        return self._merge(parts, is_first)

    @staticmethod
    def _merge(parts: list[Rows], is_first: npt.NDArray[np.bool_]) -> Rows:
        places = np.concatenate([np.flatnonzero(is_first), np.flatnonzero(~is_first)])
        return take_rows(concat_rows(parts), np.argsort(places))


# Integers in, row numbers out; nothing is read here. Every sampler gives each row the same chance.
# On a shuffled file a draw depends only on the number of rows and the generator, never on chunks or
# storage, so that all copies of a data set give the same run.

SLICE_ROWS = 64  # preferred length of a slice: worth a read, short enough to have several
MAX_SLICES = 8  # largest number of slices in a draw; larger draws have longer slices
MAX_CHUNKS = 16  # largest number of chunks that a draw from an ordered file touches
# Rows count as ordered if more runs of labels are missing than these, and than so many times the
# root of their number.
SORTED_RUNS, SORTED_ROOTS = 10, 3


class Sampler(ABC):
    """A policy for drawing from `n_rows` rows."""

    def __init__(self, n_rows: int) -> None:
        self.n_rows = n_rows

    def sample(self, size: int, rng: np.random.Generator) -> Int64Array:
        """Increasing numbers of `size` different rows, or of all if there are no more."""
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
        return np.sort(self._draw(min(size, self.n_rows), rng))

    def _draw(self, size: int, rng: np.random.Generator) -> Int64Array:
        if self.next_row is None:
            self.next_row = int(rng.integers(self.n_rows))
        rows = (self.next_row + np.arange(size, dtype=np.int64)) % self.n_rows
        self.next_row = (self.next_row + size) % self.n_rows
        return rows


def block_sampler(sampler: Sampler, n_rows: int) -> Sampler:
    """Sampler of whole blocks for a source from which `sampler` draws a few rows."""
    return BlockSampler(n_rows) if isinstance(sampler, SliceSampler) else sampler


class ScatteredSampler(Sampler):
    """Uniform draws without replacement, for rows in RAM."""

    def _draw(self, size: int, rng: np.random.Generator) -> Int64Array:
        return rng.choice(self.n_rows, size, replace=False, shuffle=False)


class SliceSampler(Sampler):
    """A few slices at random offsets, for rows that are in random order already.

    One slice of a shuffled file is a uniform sample without replacement. Two draws that share a row
    probably share a slice's worth of rows; several slices per draw keep that small.
    """

    def _draw(self, size: int, rng: np.random.Generator) -> Int64Array:
        lengths = split_evenly(size, min(MAX_SLICES, -(-size // SLICE_ROWS)))
        starts = place_arcs(self.n_rows, lengths, rng)
        parts = [start + np.arange(n) for start, n in zip(starts, lengths, strict=True)]
        return np.concatenate(parts) % self.n_rows


class ChunkSampler(Sampler):
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

    The order of the labels tells whether rows are shuffled if the file does not say so. A
    `ChunkSampler` means that the file should be shuffled, which the caller tells the user.
    """
    if shuffled or looks_shuffled(labels):
        return SliceSampler(n_rows)
    return ScatteredSampler(n_rows) if in_memory else ChunkSampler(n_rows, chunk_rows)


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
