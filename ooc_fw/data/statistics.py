"""What is found in one pass over the data: sigma^2, from which gamma follows, and a scaling.

A pass keeps only sums of columns. Its tasks run where `ooc_fw.data.parallel` says.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ooc_fw.data.parallel import Shared, borrow_workers, merge_tree, row_slices, shared_source
from ooc_fw.data.rows import rows_bytes
from ooc_fw.data.scaling import Scaling
from ooc_fw.data.sources import (
    CHUNK_BYTES,
    ROUNDING,
    RowSource,
    StoredStatistics,
    block_slices,
    iter_blocks,
)
from ooc_fw.data.views import check_raw
from ooc_fw.system.errors import InputError

if TYPE_CHECKING:
    from ooc_fw.data.ranges import ColumnRanges, ColumnSums

logger = logging.getLogger(__name__)

TASK_ROWS = 16384  # rows of one task. It is fixed, because the order of the sums follows from it.
# Size of the sample from which sigma^2 is estimated for larger files without statistics.
SAMPLE_ROWS = 100_000
SAMPLE_STRETCH = 256  # consecutive rows of the sample that are read together
SAMPLE_SEED = 0  # seed of the sample: gamma is a property of the data, not of a run and its seed


_Found = TypeVar("_Found", "ColumnRanges", "ColumnSums")


def sigma2(
    source: RowSource,
    threads: int = 1,
    *,
    dask: Any = None,
    on_rows: Callable[[int], None] | None = None,
) -> float:
    """Average squared distance of two rows, at a cost that does not grow with the file.

    It comes from the statistics stored in the file, if there are any; else from one pass over rows
    that are in RAM or at most `SAMPLE_ROWS`; else from a sample, and a warning says so. If the
    spread is lost in the rounding of the mean squared norm, one more pass over all rows finds it.
    The bits are the same for any number of threads, chunk size, storage and `dask` (see
    `borrow_workers`). `on_rows` is told the number of rows seen so far. InputError is raised when
    all rows are equal, so that no kernel width follows from them.
    """
    over_rows = partial(_map_rows, source, threads, dask, on_rows)
    value = _statistics(source, over_rows).average_squared_distance
    if value > 0:
        return value
    found = over_rows(partial(_column_ranges, "standard", False, False))
    low, high = found.range(source.n_features)
    _, deviation = found.moments(source.n_features)
    value = 2 * float(np.sum(np.where(low < high, deviation, 0.0) ** 2))
    if value > 0:
        return value
    if source.n_rows == 1:
        raise InputError(
            f"{source.name} has n_samples=1 row, from which no gamma follows; give more "
            f"rows, or give gamma as a number"
        )
    raise InputError(
        f"all rows of {source.name} are equal in float32, so that gamma cannot be chosen from "
        f"their distances; where they differ at their source, convert it with --scale standard, "
        f"else give gamma as a number"
    )


def variance(
    source: RowSource,
    threads: int = 1,
    *,
    dask: Any = None,
    on_rows: Callable[[int], None] | None = None,
) -> float:
    """Variance of all values of all rows, zeros included, found as by `sigma2`.

    InputError is raised where all values are equal.
    """
    found = _statistics(source, partial(_map_rows, source, threads, dask, on_rows))
    mean_square, mean = found.mean_square_norm, float(found.mean.sum()) / source.n_features
    value = mean_square / source.n_features - mean**2
    if value > ROUNDING * mean_square:
        return value
    raise InputError(
        f"all values of {source.name} are equal, or so large that their variance is lost; scale "
        f"the columns, or give gamma as a number"
    )


def _statistics(source: RowSource, over_rows: Callable[..., ColumnSums]) -> StoredStatistics:
    """Statistics of all rows, or of a sample."""
    if source.statistics is not None:
        return source.statistics
    if source.in_memory or source.n_rows <= SAMPLE_ROWS:
        return over_rows(_column_sums).statistics
    found = over_rows(_column_sums, sample_slices(source.n_rows)).statistics
    logger.warning(
        "%s stores no statistics: the average squared distance of two rows, %.6g, comes from "
        "a sample of %d of its %d rows; ooc-fw convert stores that of all",
        source.name,
        found.average_squared_distance,
        SAMPLE_ROWS,
        source.n_rows,
    )
    return found


def fit_scaling(
    source: RowSource,
    kind: str,
    *,
    log1p: bool = False,
    threads: int = 1,
    dask: Any = None,
    on_rows: Callable[[int], None] | None = None,
) -> Scaling:
    """Choose the scaling of raw rows in one pass, as `ColumnRanges.fit` does, for `ScaledSource`.

    `threads`, `dask` and `on_rows` are those of `sigma2`. InputError is raised for rows that are
    scaled already, and when log1p meets a value that is not above -1.
    """
    check_raw(source)
    if kind == "none" and not log1p:
        return Scaling()
    task = partial(_column_ranges, kind, log1p, True)
    return _map_rows(source, threads, dask, on_rows, task).fit(log1p, source.n_features)


def _map_rows(
    source: RowSource,
    threads: int,
    dask: Any,
    on_rows: Callable[[int], None] | None,
    task: Callable[[Shared[RowSource], int, int], _Found],
    slices: list[tuple[int, int]] | None = None,
) -> _Found:
    """Merge what a task finds in some slices of rows, or in slices that cover all rows."""
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
            total = merge_tree(len(slices), found, lambda one, other: one.merge(other))
    source.check_unchanged()
    return total


def _tasks_at_a_time(source: RowSource, threads: int) -> int:
    """Number of tasks that may run together without decoding a chunk twice.

    A task may end in the chunk in which the next one began. Until then the source must keep all
    chunks that running tasks share; where chunks are smaller than a block, these are the chunks at
    the borders of blocks.
    """
    if source.cache_bytes == 0:
        return threads
    row_bytes = max(1, 2 * source.decoded_bytes // source.n_rows)  # may be stored as float64
    chunk_bytes, task_bytes = source.chunk_rows * row_bytes, TASK_ROWS * row_bytes
    shared = task_bytes
    if chunk_bytes < 2 * CHUNK_BYTES:
        shared = chunk_bytes * (1 + task_bytes // (2 * CHUNK_BYTES))
    return max(1, min(threads, (source.cache_bytes - chunk_bytes) // shared))


def sample_slices(n_rows: int) -> list[tuple[int, int]]:
    """Stretches of consecutive rows, `SAMPLE_ROWS` of `n_rows` in all: a stratified sample.

    The file is cut into equal parts, and a stretch is taken at a random place of each, so that
    files that are sorted, by class or otherwise, are covered evenly. The places depend on the
    number of rows alone.
    """
    rng = np.random.default_rng(SAMPLE_SEED)
    slices = []
    for start, stop in row_slices(SAMPLE_ROWS, SAMPLE_STRETCH):
        begin, end = (n_rows * place // SAMPLE_ROWS for place in (start, stop))
        first = int(rng.integers(begin, end - (stop - start), endpoint=True))
        slices.append((first, first + stop - start))
    return slices


def _column_sums(shared: Shared[RowSource], start: int, stop: int) -> ColumnSums:
    """Column sums of rows ``start:stop``."""
    from ooc_fw.data.ranges import ColumnSums  # numba is slow to import

    source = shared.get()
    total = ColumnSums(source.n_features)
    for _, rows in iter_blocks(source, start, stop):
        total.add(rows)
        total.n_bytes += rows_bytes(rows)
    source.check_unchanged()
    return total


def _column_ranges(
    kind: str, log1p: bool, exact: bool, shared: Shared[RowSource], start: int, stop: int
) -> ColumnRanges:
    """Ranges of rows ``start:stop``, or of their logarithms, as stored or as rounded."""
    from ooc_fw.data.ranges import ColumnRanges  # numba is slow to import

    source, logs, total = shared.get(), Scaling("none", log1p), ColumnRanges(kind)
    for first, last in block_slices(source, start, stop):
        rows = source.read_exact(first, last) if exact else source.read(first, last)
        total.n_bytes += rows_bytes(rows)
        total.add(logs.logs_of(rows))
    source.check_unchanged()
    return total
