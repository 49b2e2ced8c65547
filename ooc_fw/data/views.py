"""Sources made from others: some of their rows or columns, scaled rows, or rows kept in RAM."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ooc_fw.data.arrays import ReadArray, Sliceable
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
from ooc_fw.data.sources import CHUNK_BYTES, RowSource, block_slices, span_of, split_spans
from ooc_fw.system.errors import InputError, format_words

logger = logging.getLogger(__name__)


class SubsetSource(RowSource):
    """Rows of another source, at increasing row numbers; that source is not closed with it."""

    def __init__(self, source: RowSource, rows: Int64Array) -> None:
        super().__init__(
            source.name,
            (len(rows), source.n_features),
            chunk_rows=source.chunk_rows,
            decoded_bytes=-(-source.decoded_bytes * len(rows) // source.n_rows),
            parents=(source,),
        )
        self.source = source
        self.rows = rows
        self.kept_bytes = rows.nbytes
        self.in_memory = source.in_memory
        self.beside = {name: _chosen(array, rows) for name, array in source.beside.items()}
        self.beside.setdefault("row", rows)
        self.recipe = SubsetSource, (source, rows)

    def _fetch(self, start: int, stop: int) -> StoredRows:
        return self.source.take(self.rows[start:stop], exact=True)

    def _take(self, indices: Int64Array, exact: bool) -> Rows:
        return self.source.take(self.rows[indices], exact=exact)


def _chosen(array: Sliceable, rows: Int64Array) -> ReadArray:
    """Some rows of an array, which may be in a file."""

    def read(start: int, stop: int) -> AnyArray:
        wanted = rows[start:stop]
        parts = []
        # A read continues over short gaps, since a second read would take longer.
        for part in split_spans(wanted, 1 << 16, span_of(wanted)[1] or 1):
            first, end = span_of(part)
            parts.append(np.asarray(array[first:end])[part - first])
        return np.concatenate(parts)

    return ReadArray((len(rows), *array.shape[1:]), array.dtype, read)


class PairSource(RowSource):
    """Rows of two sources, one for each class, evenly interleaved; in random order if `shuffled`.

    The first k rows have floor(k n_first / n) rows from `first`. Any stretch of rows therefore has
    both classes in the proportion of all rows. Contiguous rows are contiguous in both sources, and
    random samples of both are a random sample here. The sources stay open if this one is closed.
    """

    def __init__(
        self, first: RowSource, second: RowSource, *, name: str, shuffled: bool | None
    ) -> None:
        super().__init__(
            name,
            (first.n_rows + second.n_rows, first.n_features),
            chunk_rows=max(first.chunk_rows, second.chunk_rows),
            decoded_bytes=first.decoded_bytes + second.decoded_bytes,
            parents=(first, second),
        )
        self.in_memory = first.in_memory and second.in_memory
        self.shuffled = shuffled

    def _n_first(self, n_rows: Int64Array) -> Int64Array:
        """Number of rows from the first source among the first `n_rows` rows."""
        return n_rows * self._parents[0].n_rows // self.n_rows

    def is_first(self, rows: Int64Array) -> npt.NDArray[np.bool_]:
        """Whether each of these rows comes from the first source."""
        return self._n_first(rows + 1) > self._n_first(rows)

    def _fetch(self, start: int, stop: int) -> StoredRows:
        return self._take(np.arange(start, stop), exact=True)

    def _take(self, indices: Int64Array, exact: bool) -> Rows:
        is_first = self.is_first(indices)
        before = self._n_first(indices)
        places = before[is_first], (indices - before)[~is_first]
        parts = [
            parent.take(rows, exact=exact)
            for parent, rows in zip(self._parents, places, strict=True)
        ]
        order = np.argsort(np.r_[np.flatnonzero(is_first), np.flatnonzero(~is_first)])
        return take_rows(concat_rows(parts), order)


class WholeSource(RowSource):
    """All rows of another source, in another form; that source is closed with this one."""

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
        self.beside = dict(source.beside)
        self.callback(source.close)


class ScaledSource(WholeSource):
    """Raw rows of a source, scaled when they are read, so that no scaled file is needed."""

    scaling: Scaling

    def __init__(self, source: RowSource, scaling: Scaling) -> None:
        before = source.scaling
        if before is not None and not before.is_identity:
            raise InputError(f"{source.name} is scaled already ({before.kind}); use it as it is")
        super().__init__(source, stays_sparse=not scaling.moves_zero)
        self.scaling = scaling
        self.recipe = ScaledSource, (source, scaling)

    def _fetch(self, start: int, stop: int) -> Rows:
        # In blocks, since raw rows may be wider and are in memory beside the scaled ones.
        blocks = block_slices(self.source, start, stop) or [(start, stop)]
        raw = (self.source.read(*block, exact=True) for block in blocks)
        return concat_rows([self.scaling.apply(rows, self.n_features) for rows in raw])


class ColumnSource(WholeSource):
    """Columns of another source at `places`, under new names; at place -1 all values are 0."""

    def __init__(
        self, source: RowSource, places: Int64Array, names: Sequence[str] | None = None
    ) -> None:
        super().__init__(source, n_features=len(places))
        self._places = places
        self.table = None
        self.beside.pop("categories", None)  # a table no longer leads to these columns
        self.columns = names
        if source.scaling is not None:
            self.scaling = source.scaling.at(places)
        self.recipe = ColumnSource, (source, places, names)

    def _fetch(self, start: int, stop: int) -> StoredRows:
        # They may be scaled later, and only the columns in question have to be finite.
        rows = self.source.read(start, stop, exact=True, checked=False)
        if isinstance(rows, CSRRows):
            return take_columns(rows, self._places)
        found = rows[:, self._places]
        found[:, self._places < 0] = 0
        return found


def cached(source: RowSource, max_bytes: int) -> RowSource:
    """A source that keeps its rows in RAM if all fit in `max_bytes`; if not, the source itself."""
    fits = not source.in_memory and source.decoded_bytes <= max_bytes
    return CachedSource(source) if fits else source


class CachedSource(WholeSource):
    """All rows of a source, kept in RAM; a block is read when one of its rows is first needed."""

    def __init__(self, source: RowSource) -> None:
        super().__init__(source)
        self.statistics = source.statistics
        self._block_rows = max(source.chunk_rows, self.rows_in(CHUNK_BYTES))
        self.max_gap = self.span_rows = self._block_rows
        self._blocks: dict[int, Rows] = {}
        self.callback(self._blocks.clear)

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
    groups: Int64Array | None = None,
) -> list[Int64Array]:
    """Disjoint random parts, of these sizes, of the rows of a source; row numbers increase.

    Consecutive rows of a shuffled source are a random sample. Its parts follow each other on a
    circle of all rows, from a random row on. With `codes`, the class of each row, each class has
    the same share in every part, up to rounding, and rows of a part are nearly consecutive. With
    `groups`, the group of each row from 0 on, no group is in two parts, and sizes are about these.
    """
    if groups is not None:
        part_of = _parts_of_groups(n_rows, sizes, rng, codes, groups)[groups]
        return [np.flatnonzero(part_of == k) for k in range(len(sizes))]
    if shuffled:
        order = (np.arange(n_rows) + rng.integers(n_rows)) % n_rows
    else:
        order = rng.permutation(n_rows)
    if codes is not None:
        shares: Float64Array = np.empty(n_rows)  # the share of its class that comes before a row
        for code, count in zip(*np.unique(codes, return_counts=True), strict=True):
            shares[codes[order] == code] = (np.arange(count) + 0.5) / count
        order = order[np.argsort(shares, kind="stable")]
    ends = np.cumsum(sizes)
    return [np.sort(order[end - size : end]) for end, size in zip(ends, sizes, strict=True)]


def _parts_of_groups(
    n_rows: int,
    sizes: Sequence[int],
    rng: np.random.Generator,
    codes: Int64Array | None,
    groups: Int64Array,
) -> Int64Array:
    """The part of each group; a number beyond those of the parts stands for all other rows.

    Large groups come first, in random order. Each one goes where most rows of its classes lack; if
    that is in several parts, where most of all rows lack.
    """
    classes = np.zeros(n_rows, dtype=np.int64) if codes is None else codes
    counts = np.zeros((groups.max() + 1, classes.max() + 1))
    np.add.at(counts, (groups, classes), 1)
    counts /= counts.sum(axis=0)
    shares = np.array([*sizes, n_rows - sum(sizes)]) / n_rows
    lacking = np.repeat(shares[:, None], counts.shape[1], axis=1)
    order = rng.permutation(len(counts))
    octaves = np.log2(np.bincount(groups)[order]).astype(np.int64)
    part_of = np.empty(len(counts), dtype=np.int64)
    for group in order[np.argsort(-octaves, kind="stable")]:
        part = int((lacking @ (counts[group] + 1e-6)).argmax())
        lacking[part] -= counts[group]
        part_of[group] = part
    if len({*part_of.tolist()} & {*range(len(sizes))}) < len(sizes) or len({*part_of}) < 2:
        raise InputError(
            f"{len(counts)} groups are too few, or too unequal, for parts of {sizes[0]} of "
            f"{n_rows} rows; use more groups, or another share or seed"
        )
    return part_of


def feature_places(
    columns: Sequence[str] | None,
    features: Sequence[str] | None,
    name: str,
    *,
    fills: bool = False,
) -> Int64Array | None:
    """Places of `features` among the `columns` of the rows `name`; None if the order is the same.

    Numbers from 0 on do not count as names. If only one side has names, columns are taken by their
    position, with a warning. InputError is raised for features that occur twice, and for missing
    ones unless it `fills` them: then their place is -1.
    """
    own = [*(columns or ())]
    wanted = [*(features or ())]
    if own == wanted:
        return None
    if not {*own} & {*wanted} and (are_numbers(own) or are_numbers(wanted)):
        if not (are_numbers(own) and are_numbers(wanted)):
            words = "%s or the training data name no features: columns are taken by position"
            logger.warning(words, name)
        return None
    places = {feature: k for k, feature in enumerate(own)}
    missing = [feature for feature in wanted if feature not in places]
    if len(places) < len(own) or len({*wanted}) < len(wanted):
        twice = own if len(places) < len(own) else wanted
        first = next(feature for feature in twice if twice.count(feature) > 1)
        what = f"has the name {first!r} twice; give the columns of the training data"
        raise InputError(f"{name} or the model {what}")
    n_known = len(wanted) - len(missing)
    if missing and not (fills and n_known):
        other = ", or count them as 0 with --fill-missing 0 (in Python open_dataset(..., "
        other += "fill_missing=0))"
        raise InputError(
            f"{name} lacks {len(missing)} of the {len(wanted)} features of training: "
            f"{format_words(missing)}; give the columns of the training data{other * (n_known > 0)}"
        )
    if missing:
        words = "%s: %d of the %d features of training are missing and count as 0"
        logger.warning(words, name, len(missing), len(wanted))
    if len(own) > n_known:
        words = "%s: %d of its features, which training did not have, are left out"
        logger.warning(words, name, len(own) - n_known)
    return np.array([places.get(feature, -1) for feature in wanted], dtype=np.int64)


def are_numbers(names: Sequence[str]) -> bool:
    """Whether the names are only numbers from 0 on, as in a table without a header."""
    return all(name == str(k) for k, name in enumerate(names))
