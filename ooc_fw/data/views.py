"""Sources made of others: some rows, columns, scaled rows, rows kept in RAM, several sources."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

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
        self.source = source
        self.ranges = ranges
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
        self.recipe = SubsetSource, (source, ranges)

    @property
    def rows(self) -> Int64Array:
        """Rows of the whole source that are in this one."""
        return self.rows_at(np.arange(self.n_rows))

    def rows_at(self, positions: Int64Array) -> Int64Array:
        """Rows of the whole source at positions in this one."""
        return _rows_at(self.ranges, self._firsts, positions)

    def _fetch(self, start: int, stop: int) -> StoredRows:
        return self._take(np.arange(start, stop, dtype=np.int64), exact=True)

    def _take(self, indices: Int64Array, exact: bool) -> Rows:
        rows = self.rows_at(indices)
        if len(rows) and rows[-1] - rows[0] + 1 == len(rows):
            return self.source.read(int(rows[0]), int(rows[-1]) + 1, exact=exact)
        return self.source.take(rows, exact=exact)


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
    spans = split_spans(rows, _LABEL_GAP, int(rows[-1]) + 1) if len(rows) else []
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
    if shuffled:
        order = (np.arange(n_rows) + rng.integers(n_rows)) % n_rows
    else:
        order = rng.permutation(n_rows)
    if codes is not None:
        order = order[np.argsort(_shares(codes[order]), kind="stable")]
    ends = np.cumsum(sizes)
    return [
        ranges_of(np.sort(order[end - size : end])) for end, size in zip(ends, sizes, strict=True)
    ]


def _shares(codes: Int64Array) -> Float64Array:
    """Which share of its class comes before each row, shape (n_rows,)."""
    shares = np.empty(len(codes))
    for code, count in zip(*np.unique(codes, return_counts=True), strict=True):
        shares[codes == code] = (np.arange(count) + 0.5) / count
    return shares


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
        if scaling.n_features not in (None, source.n_features):
            raise InputError(
                f"the scaling is for {scaling.n_features} features, and {source.name} has "
                f"{source.n_features}; give the file that it was made for"
            )
        sparse = source.sparse and not scaling.moves_zero
        super().__init__(source, source.n_features, sparse=sparse)
        self.scaling = scaling
        self.recipe = ScaledSource, (source, scaling)

    def _fetch(self, start: int, stop: int) -> Rows:
        return self.scaling.apply(self.source.read(start, stop, exact=True), self.n_features)


class ColumnSource(WholeSource):
    """Columns of another source at `places`, none of them twice, with names and scaling."""

    def __init__(self, source: RowSource, places: Int64Array) -> None:
        super().__init__(source, len(places), sparse=source.sparse)
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
        super().__init__(source, source.n_features, sparse=source.sparse)
        self.statistics = source.statistics
        self._block_rows = max(source.chunk_rows, self.rows_in(CHUNK_BYTES))
        self.max_gap = self.span_rows = self._block_rows
        self._blocks: dict[int, Rows] = {}
        self.on_close(self._blocks.clear)

    def _fetch(self, start: int, stop: int) -> Rows:
        if start == stop:
            return self.source.read(start, stop)
        length = self._block_rows
        pieces = []
        for first in range(start // length * length, stop, length):
            if first not in self._blocks:
                self._blocks[first] = self.source.read(first, min(first + length, self.n_rows))
            pieces.append(self._blocks[first][max(start - first, 0) : stop - first])
        return concat_rows(pieces)


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
            self._labels = ReadArray((self.n_rows,), object, self._stacked_labels)
        self.ids = ReadArray((self.n_rows,), np.int64, self._stacked_ids)
        for categories in (part.categories for part in parts if part.categories is not None):
            self.categories = replace(categories, cells=None)  # labels of other parts may be in it
        for part in parts:
            self.on_close(part.close)
        self.recipe = StackedSource, parts

    def _split(self, start: int, stop: int) -> list[tuple[RowSource, int, int, int]]:
        """Parts that hold rows ``start:stop``: each with its range and its first row here."""
        firsts = self._ends - [part.n_rows for part in self._parents]
        lows = np.maximum(start - firsts, 0).tolist()
        highs = (np.minimum(stop, self._ends) - firsts).tolist()
        split = zip(self._parents, lows, highs, firsts.tolist(), strict=True)
        return [one for one in split if one[1] < one[2]] or [(self._parents[0], 0, 0, 0)]

    def _stacked_labels(self, start: int, stop: int) -> AnyArray:
        split = self._split(start, stop)
        return np.concatenate([part.labels(low, high) for part, low, high, _ in split])

    def _stacked_ids(self, start: int, stop: int) -> AnyArray:
        split = self._split(start, stop)
        return np.concatenate([part.row_ids(low, high) + at for part, low, high, at in split])

    def _fetch(self, start: int, stop: int) -> StoredRows:
        split = self._split(start, stop)
        return concat_rows([part.read(low, high, exact=True) for part, low, high, _ in split])

    def _take(self, indices: Int64Array, exact: bool) -> Rows:
        cuts = np.searchsorted(indices, self._ends)
        parts = zip(self._parents, self._ends, np.split(indices, cuts[:-1]), strict=True)
        rows = [
            part.take(own - end + part.n_rows, exact=exact) for part, end, own in parts if len(own)
        ]
        return concat_rows(rows or [self._parents[0].read(0, 0)])


def _like_first(part: RowSource, first: RowSource) -> RowSource:
    """A source with the columns of the first one in their order; InputError where they differ."""
    both = part, first
    known, names = first.columns, part.columns
    differs = {
        "names of columns": known and names and {*known} != {*names},
        "number of columns": part.n_features != first.n_features,
        "storage, sparse or dense": part.sparse != first.sparse,
        "labels, which one of them lacks": part.has_labels != first.has_labels,
        "labels, numbers or words": len({s.has_labels and _is_number(s) for s in both}) > 1,
        "scaling": not (part.scaling or Scaling()).same_as(first.scaling or Scaling()),
        "record of a table": part.table != first.table,
    }
    for what in (what for what, is_so in differs.items() if is_so):
        raise InputError(
            f"{part.name} and {first.name} cannot be one source: they differ in the {what}; write "
            f"both alike, as by convert --like"
        )
    places = feature_places(names, known, part.name)
    if places is None:
        return part
    words = "%s columns found by name: %s has another order than %s"
    logger.warning(words, len(places), part.name, first.name)
    return ColumnSource(part, places)


def _is_number(source: RowSource) -> bool:
    return source.labels(0, 1).dtype.kind in "biuf"


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
        self.first = first
        self.second = second
        self.shuffled = shuffled

    def is_first(self, rows: Int64Array) -> npt.NDArray[np.bool_]:
        """Whether each of these rows comes from `first`."""
        return self._before(rows + 1) > self._before(rows)

    def _before(self, rows: Int64Array) -> Int64Array:
        """How many of the first `rows` rows come from `first`."""
        return rows * self.first.n_rows // self.n_rows

    def _fetch(self, start: int, stop: int) -> Rows:
        return self._take(np.arange(start, stop), exact=False)

    def _take(self, indices: Int64Array, exact: bool) -> Rows:
        is_first = self.is_first(indices)
        before = self._before(indices)
        parts = [self.first.take(before[is_first]), self.second.take((indices - before)[~is_first])]
        places = np.concatenate([np.flatnonzero(is_first), np.flatnonzero(~is_first)])
        return take_rows(concat_rows(parts), np.argsort(places))
