"""Sources made of others: some rows, columns, scaled rows, rows kept in RAM, several sources."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias

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

# For increasing positions in a source: the rows there of each source that it is made of, and the
# order that puts these, one source after the other, at their positions; None if they are there.
Place: TypeAlias = Callable[[Int64Array], tuple[list[Int64Array], Int64Array | None]]
ReadNumbers: TypeAlias = Callable[[int, int], AnyArray]


class GatheredSource(RowSource):
    """Rows of other sources, found by a `Place`, which holds on to no source."""

    def __init__(
        self,
        name: str,
        parents: tuple[RowSource, ...],
        n_rows: int,
        place: Place,
        labels: Sliceable | None = None,
    ) -> None:
        lengths = [parent.n_rows for parent in parents]
        n_bytes = sum(parent.decoded_bytes for parent in parents)
        super().__init__(
            name,
            (n_rows, parents[0].n_features),
            labels=labels,
            chunk_rows=max(parent.chunk_rows for parent in parents),
            decoded_bytes=-(-n_bytes * n_rows // sum(lengths)),
            parents=parents,
        )
        self._place = place
        if labels is None and parents[0].has_labels:
            readers: list[ReadNumbers] = [parent.labels for parent in parents]
            self._labels = _gathered(readers, place, (n_rows,), object)
        firsts = (np.cumsum(lengths) - lengths).tolist()
        readers = [partial(_ids_of, *pair) for pair in zip(parents, firsts, strict=True)]
        self.ids = _gathered(readers, place, (n_rows,), np.int64)

    def _fetch(self, start: int, stop: int) -> StoredRows:
        return self._take(np.arange(start, stop, dtype=np.int64), exact=True)

    def _take(self, indices: Int64Array, exact: bool) -> Rows:
        places, order = self._place(indices)
        found = []
        for parent, rows in zip(self._parents, places, strict=True):
            if len(rows) and rows[-1] - rows[0] + 1 == len(rows):
                found.append(parent.read(int(rows[0]), int(rows[-1]) + 1, exact=exact))
            elif len(rows):
                found.append(parent.take(rows, exact=exact))
        gathered = concat_rows(found or [self._parents[0].read(0, 0)])
        return gathered if order is None else take_rows(gathered, order)


def _gathered(
    readers: Sequence[ReadNumbers], place: Place, shape: tuple[int, ...], dtype: npt.DTypeLike
) -> ReadArray:
    """An array whose rows are in those that `readers` read, one for each source of a `Place`."""

    def read(start: int, stop: int) -> AnyArray:
        places, order = place(np.arange(start, stop, dtype=np.int64))
        parts = [_numbers(*pair) for pair in zip(readers, places, strict=True)]
        numbers = np.concatenate(parts)
        return numbers if order is None else numbers[order]

    return ReadArray(shape, dtype, read)


def _numbers(read: ReadNumbers, rows: Int64Array) -> AnyArray:
    """Numbers of increasing rows."""
    spans = split_spans(rows, _LABEL_GAP, int(rows[-1]) + 1) if len(rows) else []
    parts = [read(int(span[0]), int(span[-1]) + 1)[span - span[0]] for span in spans]
    return np.concatenate(parts) if parts else read(0, 0)


def _ids_of(source: RowSource, first: int, start: int, stop: int) -> Int64Array:
    return source.row_ids(start, stop) + first


class SubsetSource(GatheredSource):
    """Some of the rows of another source, which stays open when this one is closed.

    `ranges`, int64 of shape (k, 2), holds the first row, and the row after the last, of each run of
    consecutive rows: increasing, not empty and without overlap. InputError if there are none.
    """

    def __init__(self, source: RowSource, ranges: Int64Array) -> None:
        lengths = ranges[:, 1] - ranges[:, 0]
        n_rows = int(lengths.sum())
        if n_rows == 0:
            raise InputError(f"a part of {source.name} has no rows; take more of them")
        place = partial(_rows_in, ranges, np.cumsum(lengths) - lengths)
        super().__init__(source.name, (source,), n_rows, place)
        self.source = source
        self.ranges = ranges
        if source.categories is not None:
            self.categories = source.categories.viewed(
                lambda array: _gathered(
                    [lambda start, stop: np.asarray(array[start:stop])],
                    place,
                    (n_rows, *array.shape[1:]),
                    array.dtype,
                )
            )
        self.recipe = SubsetSource, (source, ranges)

    @property
    def rows(self) -> Int64Array:
        """Rows of the whole source that are in this one."""
        return self.rows_at(np.arange(self.n_rows))

    def rows_at(self, positions: Int64Array) -> Int64Array:
        """Rows of the whole source at positions in this one."""
        return self._place(positions)[0][0]


def _rows_in(
    ranges: Int64Array, firsts: Int64Array, positions: Int64Array
) -> tuple[list[Int64Array], None]:
    """The `Place` of rows in `ranges`, whose first ones are at the positions `firsts`."""
    at = np.searchsorted(firsts, positions, side="right") - 1
    return [ranges[at, 0] + positions - firsts[at]], None


class StackedSource(GatheredSource):
    """Rows of several sources, one below the other; they are closed with this one.

    Columns of later sources are found by name where both sides have names. InputError names the
    first source that differs from the first of all in columns, storage, scaling or kind of labels.
    """

    def __init__(self, *parts: RowSource, labels: Sliceable | None = None) -> None:
        first = parts[0]
        parts = (first, *(_like_first(part, first) for part in parts[1:]))
        n_more = len(parts) - 1
        name = f"{first.name} and {n_more} more {'files' if n_more > 1 else 'file'}"
        ends = np.cumsum([part.n_rows for part in parts])
        super().__init__(name, parts, int(ends[-1]), partial(_rows_above, ends), labels)
        self.shuffled = None if self.shuffled is None else False
        for part in parts:
            if part.categories is not None:  # labels of other parts may be in it
                self.categories = replace(part.categories, cells=None)
            self.on_close(part.close)
        self.recipe = StackedSource, parts


def _rows_above(ends: Int64Array, positions: Int64Array) -> tuple[list[Int64Array], None]:
    """The `Place` of rows in sources one below the other, which end at `ends`."""
    parts = np.split(positions, np.searchsorted(positions, ends[:-1]))
    return [part - first for part, first in zip(parts, [0, *ends[:-1]], strict=True)], None


def _like_first(part: RowSource, first: RowSource) -> RowSource:
    """A source with the columns of the first one in their order; InputError where they differ."""
    differs = [what for what, fact in _facts(part).items() if fact != _facts(first)[what]]
    if part.columns and first.columns and {*part.columns} != {*first.columns}:
        differs.append("names of columns")
    if not (part.scaling or Scaling()).same_as(first.scaling or Scaling()):
        differs.append("scaling")
    if differs:
        raise InputError(
            f"{part.name} and {first.name} cannot be one source: they differ in the {differs[0]}; "
            f"write both alike, as by convert --like"
        )
    places = feature_places(part.columns, first.columns, part.name)
    if places is None:
        return part
    words = "%s columns found by name: %s has another order than %s"
    logger.warning(words, len(places), part.name, first.name)
    return ColumnSource(part, places)


def _facts(source: RowSource) -> dict[str, object]:
    """What sources have in common that become one."""
    are_numbers = source.has_labels and source.labels(0, 1).dtype.kind in "biuf"
    return {
        "number of columns": source.n_features,
        "storage, sparse or dense": source.sparse,
        "labels, which one of them lacks": source.has_labels,
        "labels, numbers or words": are_numbers,
        "record of a table": source.table,
    }


class PairSource(GatheredSource):
    """Rows of two sources, evenly interleaved: each holds one class, in random order if `shuffled`.

    Of the first k rows, floor(k n_first / n) come from `first`. Any stretch of rows therefore holds
    both classes in the proportion of all rows, contiguous rows are contiguous in both sources, and
    random samples of both are a random sample here. The sources stay open when this one is closed.
    """

    def __init__(
        self, first: RowSource, second: RowSource, *, name: str, shuffled: bool | None
    ) -> None:
        n_rows = first.n_rows + second.n_rows
        place = partial(_rows_in_turn, first.n_rows, n_rows)
        super().__init__(name, (first, second), n_rows, place)
        self.shuffled = shuffled

    def is_first(self, rows: Int64Array) -> npt.NDArray[np.bool_]:
        """Whether each of these rows comes from the first source."""
        n_first = self._parents[0].n_rows
        return (rows + 1) * n_first // self.n_rows > rows * n_first // self.n_rows


def _rows_in_turn(
    n_first: int, n_rows: int, positions: Int64Array
) -> tuple[list[Int64Array], Int64Array]:
    """The `Place` of rows of two sources, evenly interleaved."""
    before = positions * n_first // n_rows  # rows of the first source above each position
    is_first = (positions + 1) * n_first // n_rows > before
    order = np.argsort(np.r_[np.flatnonzero(is_first), np.flatnonzero(~is_first)])
    return [before[is_first], (positions - before)[~is_first]], order


class WholeSource(RowSource):
    """All rows of another source, which is closed with this one."""

    def __init__(
        self, source: RowSource, *, n_features: int | None = None, stays_sparse: bool = True
    ) -> None:
        sparse = source.sparse and stays_sparse
        super().__init__(
            source.name,
            (source.n_rows, n_features or source.n_features),
            chunk_rows=source.chunk_rows,
            decoded_bytes=source.decoded_bytes if sparse else None,
            parents=(source,),
        )
        self.source = source
        self.sparse = sparse
        self._labels = source._labels
        self.ids = source.ids
        self.categories = source.categories
        self.in_memory = False
        self.on_close(source.close)


class ScaledSource(WholeSource):
    """Raw rows of a source, scaled as they are read; no second copy of them is needed."""

    scaling: Scaling

    def __init__(self, source: RowSource, scaling: Scaling) -> None:
        before = source.scaling
        if before is not None and not before.is_identity:
            raise InputError(f"{source.name} is scaled already ({before.kind}); use it as it is")
        super().__init__(source, stays_sparse=not scaling.moves_zero)
        self.scaling = scaling
        self.recipe = ScaledSource, (source, scaling)

    def _fetch(self, start: int, stop: int) -> Rows:
        return self.scaling.apply(self.source.read(start, stop, exact=True), self.n_features)


class ColumnSource(WholeSource):
    """Columns of another source at `places`, none of them twice, with names and scaling."""

    def __init__(self, source: RowSource, places: Int64Array) -> None:
        super().__init__(source, n_features=len(places))
        self._places = places
        self.table = None
        self.categories = None
        if source.columns is not None:
            self.columns = [source.columns[k] for k in places.tolist()]
        if source.scaling is not None:
            self.scaling = source.scaling.at(places)
        self.recipe = ColumnSource, (source, places)

    def _fetch(self, start: int, stop: int) -> StoredRows:
        rows = self.source.read(start, stop, exact=True)  # they may yet be scaled
        if isinstance(rows, CSRRows):
            return take_columns(rows, self._places)
        return rows[:, self._places]


def cached(source: RowSource, max_bytes: int) -> RowSource:
    """A source that reads rows from storage once, if all fit in `max_bytes`; else the same one."""
    fits = not source.in_memory and source.decoded_bytes <= max_bytes
    return CachedSource(source) if fits else source


class CachedSource(WholeSource):
    """All rows of a source, kept in RAM: blocks of whole chunks, once a row of them is needed."""

    def __init__(self, source: RowSource) -> None:
        super().__init__(source)
        self.statistics = source.statistics
        self._block_rows = max(source.chunk_rows, self.rows_in(CHUNK_BYTES))
        self.max_gap = self.span_rows = self._block_rows
        self._blocks: dict[int, Rows] = {}
        self.on_close(self._blocks.clear)

    def _fetch(self, start: int, stop: int) -> Rows:
        length = self._block_rows
        pieces = [self.source.read(start, start)] if start == stop else []
        for first in range(start // length * length, stop, length):
            if first not in self._blocks:
                self._blocks[first] = self.source.read(first, min(first + length, self.n_rows))
            pieces.append(self._blocks[first][max(start - first, 0) : stop - first])
        return concat_rows(pieces)


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
    if shuffled:
        order = (np.arange(n_rows) + rng.integers(n_rows)) % n_rows
    else:
        order = rng.permutation(n_rows)
    if codes is not None:
        shares: Float64Array = np.empty(n_rows)  # which share of its class comes before a row
        for code, count in zip(*np.unique(codes, return_counts=True), strict=True):
            shares[codes[order] == code] = (np.arange(count) + 0.5) / count
        order = order[np.argsort(shares, kind="stable")]
    ends = np.cumsum(sizes)
    return [
        ranges_of(np.sort(order[end - size : end])) for end, size in zip(ends, sizes, strict=True)
    ]


def ranges_of(rows: Int64Array) -> Int64Array:
    """Runs of consecutive numbers in increasing row numbers, shape (k, 2)."""
    breaks = np.flatnonzero(np.diff(rows) != 1) + 1
    starts = rows[np.r_[0, breaks]]
    stops = rows[np.r_[breaks, len(rows)] - 1] + 1
    return np.stack([starts, stops], axis=1)


def complement(ranges: Int64Array, n_rows: int) -> Int64Array:
    """Ranges of the rows that are in none of `ranges`."""
    between = np.r_[0, ranges.reshape(-1), n_rows].reshape(-1, 2)
    return np.asarray(between[between[:, 0] < between[:, 1]])
