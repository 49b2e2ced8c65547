"""Statistics of a data set in one pass: means, norms, ranges, sigma^2, and the classes.

Owns what `gamma="auto"` needs and the translation of label values into places of classes. Keeps
only column sums of the rows, whatever their number. Where the tasks of the pass run is
`ooc_fw.data.parallel`.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt

from ooc_fw.data.labels import inexact_labels, is_unicode
from ooc_fw.data.parallel import Shared, borrow_workers, merge_tree, row_slices, shared_source
from ooc_fw.data.rows import CSRRows, Float32Array, Float64Array, Int64Array, Rows, rows_bytes
from ooc_fw.data.scaling import Scaling
from ooc_fw.data.sources import RowSource, block_slices, check_raw, iter_blocks
from ooc_fw.data.sources.base import CHUNK_BYTES
from ooc_fw.system.errors import InputError

if TYPE_CHECKING:
    from ooc_fw.data.ranges import ColumnRanges

logger = logging.getLogger(__name__)

TASK_ROWS = 16384
"""Rows of one task. Fixed, because the order of the sums follows from it."""

SAMPLE_ROWS = 100_000
"""Rows that sigma^2 comes from where a file stores no statistics and has more than these."""

SAMPLE_STRETCH = 256
"""Rows of the sample that are read together."""

SAMPLE_SEED = 0
"""Of the sample: gamma is a property of the data, not of a run and its seed."""

LABEL_ROWS = 1 << 20
"""Labels looked at together."""

MAX_CLASSES = 256
"""More different labels are taken for the targets of a regression: each pair has a machine."""

_FEW_CLASSES = 4

ROUNDING = 1e-12
"""Part of the mean squared norm below which sigma^2 is rounding, not spread."""


class _Findings(Protocol):
    """What a task found in some rows."""

    n_rows: int
    n_bytes: int

    def merged(self, other: Self) -> Self: ...


_Found = TypeVar("_Found", bound=_Findings)


@dataclass(frozen=True)
class Statistics:
    """Statistics of all rows of a source.

    Parameters
    ----------
    n_rows : int
        Number of rows.
    mean : ndarray of float64, shape (n_features,)
        Mean row.
    mean_square_norm : float
        Mean of the squared Euclidean norms of the rows.
    minimum, maximum : ndarray of float32, shape (n_features,)
        Range of each column, implicit zeros included. All values are finite, or there would be no
        statistics.
    largest_square_norm : float
        Squared Euclidean norm of the largest row.
    class_counts : dict or None
        Rows of each label value, sorted by label; None where there are no labels.
    """

    n_rows: int
    mean: Float64Array
    mean_square_norm: float
    minimum: Float32Array
    maximum: Float32Array
    largest_square_norm: float
    class_counts: dict[Any, int] | None

    @property
    def sigma2(self) -> float:
        """Average squared distance of two rows, equal ones included; 0 when all rows are equal."""
        return average_squared_distance(self.mean, self.mean_square_norm)


def average_squared_distance(mean: Float64Array, mean_square_norm: float) -> float:
    """Average of ``|x_i - x_j|^2`` over all ordered pairs of rows, from sums alone.

    Parameters
    ----------
    mean : ndarray of float64, shape (n_features,)
        Mean row.
    mean_square_norm : float
        Mean of the squared norms of the rows.

    Returns
    -------
    float
        ``2 (mean |x|^2 - |mean x|^2)``; exactly 0 where that is within rounding of it.
    """
    spread = mean_square_norm - float(mean @ mean)
    return 2 * spread if spread > ROUNDING * mean_square_norm else 0.0


def sigma2(
    source: RowSource,
    threads: int = 1,
    *,
    dask: Any = None,
    on_rows: Callable[[int], None] | None = None,
) -> float:
    """Average squared distance of two rows, at a cost that does not grow with the file.

    As stored in the file; from one pass over rows that are few or in RAM already; else from
    SAMPLE_ROWS of them, and a warning says so. Parameters are those of `compute_statistics`.

    Parameters are those of `compute_statistics`.

    Raises
    ------
    InputError
        All rows are equal, so that no kernel width follows from them.

    Notes
    -----
    Where the spread is lost in the rounding of the mean squared norm, one more pass finds it.
    """
    if source.statistics is not None:
        stored = source.statistics
        value = average_squared_distance(stored.mean, stored.mean_square_norm)
    elif source.in_memory or source.n_rows <= SAMPLE_ROWS:
        value = average_squared_distance(*_sum_columns(source, threads, dask, on_rows).means())
    else:
        slices = sample_slices(source.n_rows)
        sums = _sum_columns(source, threads, dask, on_rows, slices)
        value = average_squared_distance(*sums.means())
        logger.warning(
            "%s stores no statistics: the average squared distance of two rows, %.6g, comes from "
            "a sample of %d of its %d rows; ooc-fw convert stores that of all",
            source.name,
            value,
            SAMPLE_ROWS,
            source.n_rows,
        )
    if not value > 0:
        value = _small_spread(source, threads, dask, on_rows)
    return value


def _small_spread(
    source: RowSource, threads: int, dask: Any, on_rows: Callable[[int], None] | None
) -> float:
    """Average squared distance of rows that differ by far less than their size: one more pass."""
    from ooc_fw.data.ranges import ColumnRanges  # numba is slow to import

    task = partial(_column_ranges, Scaling(), ColumnRanges("standard"), False)
    found = _map_rows(source, threads, dask, on_rows, None, task)
    low, high = found.range(source.n_features)
    _, deviation = found.moments(source.n_features)
    value = 2 * float(np.sum(np.where(low < high, deviation, 0.0) ** 2))
    if value > 0:
        return value
    raise InputError(
        f"all rows of {source.name} are equal in float32, so that gamma cannot be chosen from "
        f"their distances; where they differ at their source, convert it with --scale standard, "
        f"else give gamma as a number"
    )


def compute_statistics(
    source: RowSource,
    threads: int = 1,
    *,
    dask: Any = None,
    on_rows: Callable[[int], None] | None = None,
) -> Statistics:
    """Statistics of all rows in one pass.

    Parameters
    ----------
    source : RowSource
        Rows to look at.
    threads : int
        Tasks at a time; a cluster has its own number.
    dask : optional
        Where tasks run: see `ooc_fw.data.parallel.borrow_workers`.
    on_rows : callable, optional
        Called now and then with the number of rows seen so far.

    Returns
    -------
    Statistics
        The same bits for any number of threads, way to run, chunk size and storage.

    Raises
    ------
    InputError
        A value is not finite, a label is missing, or the file cannot be read.
    ChildProcessError
        A worker died and nobody could take its place.
    """
    sums = _sum_columns(source, threads, dask, on_rows)
    mean, mean_square_norm = sums.means()
    return Statistics(
        n_rows=source.n_rows,
        mean=mean,
        mean_square_norm=mean_square_norm,
        minimum=sums.minimum,
        maximum=sums.maximum,
        largest_square_norm=sums.largest_square_norm,
        class_counts=_count_classes(source),
    )


def fit_scaling(
    source: RowSource,
    kind: str,
    *,
    log1p: bool = False,
    threads: int = 1,
    dask: Any = None,
    on_rows: Callable[[int], None] | None = None,
) -> Scaling:
    """Choose offset and factor of each column of raw rows in one pass.

    Parameters
    ----------
    source : RowSource
        Raw rows, of a file that `ooc-fw convert` did not scale.
    kind : {"none", "minmax", "maxabs", "standard"}
        minmax maps the range to [0, 1], maxabs divides by the largest size, standard takes the
        mean to 0 and the (population) standard deviation to 1. Implicit zeros count.
    log1p : bool
        Take log(1 + x) of every value first.
    threads, dask, on_rows
        As for `compute_statistics`.

    Returns
    -------
    Scaling
        To be applied by `ooc_fw.data.sources.ScaledSource`; constant columns become 0. The same
        bits wherever the tasks ran.

    Raises
    ------
    InputError
        The rows are scaled already, or log1p meets a value that is not above -1.
    """
    from ooc_fw.data.ranges import ColumnRanges  # numba is slow to import

    check_raw(source)
    empty = ColumnRanges(kind)
    if kind == "none" and not log1p:
        return Scaling("none", log1p)
    task = partial(_column_ranges, Scaling("none", log1p), empty, True)
    found = _map_rows(source, threads, dask, on_rows, None, task)
    return found.fit(log1p, source.n_features)


def _sum_columns(
    source: RowSource,
    threads: int,
    dask: Any,
    on_rows: Callable[[int], None] | None,
    slices: list[tuple[int, int]] | None = None,
) -> _ColumnSums:
    """Sums over all rows, or those of some slices, from tasks of `TASK_ROWS` rows each."""
    return _map_rows(source, threads, dask, on_rows, slices, _column_sums)


def _map_rows(
    source: RowSource,
    threads: int,
    dask: Any,
    on_rows: Callable[[int], None] | None,
    slices: list[tuple[int, int]] | None,
    task: Callable[[Shared[RowSource], int, int], _Found],
) -> _Found:
    """Merge what a task finds in all rows, or in those of some slices."""
    source.check_unchanged()
    if slices is None:
        slices = row_slices(source.n_rows, TASK_ROWS)
        threads = _tasks_at_a_time(source, threads)
    with borrow_workers(dask, threads) as workers:
        shared = shared_source(source, workers)

        def results() -> Generator[_Found, None, None]:
            with closing(workers.map(task, slices, shared)) as found:
                for (_, stop), part in zip(slices, found, strict=True):
                    if workers.remote:
                        source.count(part.n_rows, part.n_bytes)
                    if on_rows is not None:
                        on_rows(stop)
                    yield part

        with closing(results()) as found:
            total = merge_tree(len(slices), found, lambda one, other: one.merged(other))
    source.check_unchanged()
    return total


def _tasks_at_a_time(source: RowSource, threads: int) -> int:
    """Tasks that may run together while chunks that two of them share stay decoded.

    A task ends in the chunk in which the next one began when it began itself: until then, the
    source keeps the chunks that all of them share. Where chunks are smaller than a block, these are
    those at the borders of blocks.
    """
    kept = int(getattr(source, "cache_bytes", 0))
    if kept == 0:
        return threads
    row_bytes = max(1, 2 * source.decoded_bytes // source.n_rows)  # stored perhaps as float64
    chunk_bytes, task_bytes = source.chunk_rows * row_bytes, TASK_ROWS * row_bytes
    shared = task_bytes
    if chunk_bytes < 2 * CHUNK_BYTES:
        shared = chunk_bytes * (1 + task_bytes // (2 * CHUNK_BYTES))
    return max(1, min(threads, (kept - chunk_bytes) // shared))


def _count_classes(source: RowSource) -> dict[Any, int] | None:
    """Rows of each label.

    Counted here, whatever the tasks of the rows are: labels are one number a row, and may have been
    given apart from a file that other processes open.
    """
    if not source.has_labels:
        return None
    counts: dict[Any, int] = {}
    for start, stop in row_slices(source.n_rows, LABEL_ROWS):
        values, numbers = np.unique(_read_labels(source, start, stop), return_counts=True)
        for value, number in zip(values.tolist(), numbers.tolist(), strict=True):
            counts[value] = counts.get(value, 0) + number
    return dict(sorted(counts.items()))


def sample_slices(n_rows: int) -> list[tuple[int, int]]:
    """Stretches of SAMPLE_ROWS of more rows in all, each in a part of them of its own.

    The file is cut into equal parts, and a stretch of consecutive rows is taken at a random place
    of each (a stratified sample): files that are sorted by class, or by anything else, are covered
    evenly. The places are a function of the number of rows alone.
    """
    rng = np.random.default_rng(SAMPLE_SEED)
    slices = []
    for start, stop in row_slices(SAMPLE_ROWS, SAMPLE_STRETCH):
        begin, end = (n_rows * place // SAMPLE_ROWS for place in (start, stop))
        first = int(rng.integers(begin, end - (stop - start), endpoint=True))
        slices.append((first, first + stop - start))
    return slices


@dataclass
class _ColumnSums:
    """Sums and ranges of the columns over some of the rows, and what was read for them."""

    n_rows: int
    n_bytes: int
    sums: Float64Array
    squares: Float64Array
    minimum: Float32Array
    maximum: Float32Array
    largest_square_norm: float

    @classmethod
    def empty(cls, n_features: int) -> _ColumnSums:
        """Start with no rows."""
        return cls(
            0,
            0,
            np.zeros(n_features),
            np.zeros(n_features),
            np.full(n_features, np.inf, dtype=np.float32),
            np.full(n_features, -np.inf, dtype=np.float32),
            0.0,
        )

    def merged(self, other: _ColumnSums) -> _ColumnSums:
        """Add up the rows of both."""
        return _ColumnSums(
            self.n_rows + other.n_rows,
            self.n_bytes + other.n_bytes,
            self.sums + other.sums,
            self.squares + other.squares,
            np.minimum(self.minimum, other.minimum),
            np.maximum(self.maximum, other.maximum),
            max(self.largest_square_norm, other.largest_square_norm),
        )

    def means(self) -> tuple[Float64Array, float]:
        """Mean row, and mean of the squared norms."""
        return self.sums / self.n_rows, float(self.squares.sum()) / self.n_rows


def _column_ranges(
    log: Scaling, empty: ColumnRanges, exact: bool, shared: Shared[RowSource], start: int, stop: int
) -> ColumnRanges:
    """Ranges of the logarithms, if wanted, of rows ``start:stop``, rounded or as stored."""
    source = shared.get()
    total = copy.deepcopy(empty)
    for first, last in block_slices(source, start, stop):
        rows = source.read_exact(first, last) if exact else source.read(first, last)
        total.n_bytes += rows_bytes(rows)
        total.add(log.logs_of(rows))
    source.check_unchanged()
    return total


def _column_sums(shared: Shared[RowSource], start: int, stop: int) -> _ColumnSums:
    """Column sums of rows ``start:stop``, read a block at a time."""
    from ooc_fw._core.statistics import (  # numba is slow to import
        add_dense,
        add_sparse,
        largest_square_norm,
    )

    source = shared.get()
    total = _ColumnSums.empty(source.n_features)
    counts = np.zeros(source.n_features if source.sparse else 0, dtype=np.int64)
    columns = (total.sums, total.squares, total.minimum, total.maximum)
    for _, rows in iter_blocks(source, start, stop):
        values, indptr = _values_by_row(rows)
        if isinstance(rows, CSRRows):
            add_sparse(rows.data, rows.indices, *columns, counts)
        else:
            add_dense(rows, *columns)
        largest = float(largest_square_norm(values, indptr))
        total.largest_square_norm = max(total.largest_square_norm, largest)
        total.n_bytes += rows_bytes(rows)
    source.check_unchanged()
    total.n_rows = stop - start
    if source.sparse:
        implicit = counts < stop - start
        total.minimum[implicit] = np.minimum(total.minimum[implicit], 0)
        total.maximum[implicit] = np.maximum(total.maximum[implicit], 0)
    return total


def _values_by_row(rows: Rows) -> tuple[Float32Array, Int64Array]:
    """Values of all rows, one after the other, and where each row begins."""
    if isinstance(rows, CSRRows):
        return rows.data, rows.indptr
    return rows.reshape(-1), np.arange(len(rows) + 1, dtype=np.int64) * rows.shape[1]


def encode_labels(source: RowSource) -> tuple[npt.NDArray[Any], Int64Array]:
    """Translate the label values of a source into the places of their classes.

    Parameters
    ----------
    source : RowSource
        Labelled rows.

    Returns
    -------
    classes : ndarray, shape (n_classes,)
        Label values in rising order.
    codes : ndarray of int64, shape (n_rows,)
        Place in `classes` of the label of each row.

    Raises
    ------
    InputError
        No labels, a missing one, one class only, or so many classes that these are no classes.
    """
    codes = np.empty(source.n_rows, dtype=np.int64)
    found = source.labels(0, 1)
    _check_labels(found, 0, source.name)
    for start, stop in row_slices(source.n_rows, LABEL_ROWS):
        labels = source.labels(start, stop)
        places, known = _places(labels, found)
        if not known.all():
            _check_labels(labels, start, source.name)
            more = np.union1d(found, labels[~known])
            if len(more) > MAX_CLASSES:
                raise InputError(
                    f"{source.name} has more than {MAX_CLASSES} different labels; are they the "
                    f"targets of a regression? training needs classes"
                )
            codes[:start] = np.searchsorted(more, found)[codes[:start]]
            found = more
            places, _ = _places(labels, found)
        codes[start:stop] = places
    if len(found) == 1:
        raise InputError(
            f"all rows of {source.name} have the label {found[0]}; "
            f"training needs rows of two classes"
        )
    return found, codes


def _places(
    labels: npt.NDArray[Any], found: npt.NDArray[Any]
) -> tuple[Int64Array, npt.NDArray[np.bool_]]:
    """Place of each label among those found, and whether it is there."""
    if len(found) <= _FEW_CLASSES:  # comparing takes less time than searching
        places = np.zeros(len(labels), dtype=np.int64)
        known = labels == found[0]
        for place, value in enumerate(found[1:], start=1):
            here = labels == value
            places[here] = place
            known |= here
        return places, known
    places = np.minimum(np.searchsorted(found, labels), len(found) - 1)
    return places, found[places] == labels


def _check_labels(labels: npt.NDArray[Any], start: int, name: str) -> None:
    """Raise InputError for a label that is missing or infinite, or that no file can hold."""
    for place in np.flatnonzero(inexact_labels(labels))[:1].tolist():
        raise InputError(
            f"the label {labels[place]} of row {start + place} of {name} is a whole number that "
            f"float64 does not tell from its neighbours; give the labels as words, or number the "
            f"classes anew"
        )
    if labels.dtype.kind in "SU":
        for word in np.unique(labels).tolist():
            if not is_unicode(word):
                place = int(np.flatnonzero(labels == word)[0])
                raise InputError(
                    f"the label {word!r} of row {start + place} of {name} is not UTF-8 text; write "
                    f"it again in UTF-8"
                )
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        place = int(np.flatnonzero(~np.isfinite(labels))[0])
        what = "missing (NaN)" if np.isnan(labels[place]) else "infinite"
        raise InputError(f"the label of row {start + place} of {name} is {what}; remove it")


def _read_labels(source: RowSource, start: int, stop: int) -> npt.NDArray[Any]:
    """Labels of some rows, none of them missing."""
    labels = source.labels(start, stop)
    if labels.dtype.kind == "f" and np.isnan(labels).any():
        row = start + int(np.flatnonzero(np.isnan(labels))[0])
        raise InputError(f"the label of row {row} of {source.name} is missing (NaN); remove it")
    return labels
