"""Statistics of columns: their ranges and moments, and numbers from which gamma is chosen.

Moments are gathered block by block and merged (Chan, Golub and LeVeque, 1983, "Algorithms for
computing the sample variance"). Their last bits depend on the cut into blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ooc_fw._core import rows as core
from ooc_fw.data.parallel import borrow_workers, row_slices
from ooc_fw.data.rows import AnyArray, Float64Array, Rows, StoredRows, stored_arrays
from ooc_fw.data.scaling import Scaling
from ooc_fw.data.sources import ROUNDING, RowSource, StoredStatistics, iter_blocks
from ooc_fw.system.errors import InputError

TASK_ROWS = 16384  # rows that a worker sums in one task


def add_sums(sums: Float64Array, rows: Rows) -> None:
    """Add the values of each column, and their squares, to `sums`, shape (2, n_features)."""
    data, columns, _ = stored_arrays(rows)
    core.add_values(data, columns, *sums)


def statistics_of(sums: Float64Array, n_rows: int) -> StoredStatistics:
    """Mean of each column, and mean squared norm of the rows, from the sums of `add_sums`."""
    return StoredStatistics(sums[0] / n_rows, float(sums[1].sum()) / n_rows)


class ColumnRanges:
    """Range of each column and, for the scaling "standard", its mean and variance."""

    def __init__(self, kind: str = "none") -> None:
        self.kind = kind
        self.n_rows = 0
        self._records = np.zeros((0, core.RECORD_SIZE if kind == "standard" else core.RANGE_SIZE))

    def add(self, rows: StoredRows) -> ColumnRanges:
        """Add rows in float32 or float64; return `self`."""
        self._widen(rows.shape[1])
        data, columns, _ = stored_arrays(rows)
        core.accumulate(data, columns, self._records)
        self.n_rows += len(rows)
        return self

    def merge(self, other: ColumnRanges) -> ColumnRanges:
        """Add the rows of `other`, gathered for the same scaling; return `self`."""
        self._widen(len(other._records))
        core.merge_records(self._records, other._records)
        self.n_rows += other.n_rows
        return self

    def append(self, n_features: int, values: Float64Array, counts: Float64Array) -> None:
        """Add columns after the first `n_features`: ``counts[i]`` rows have the ``values[i]``.

        Values have the shape (n_values, n_columns), and counts (n_values,), with the sum `n_rows`.
        """
        for of_columns, count in zip(values, counts, strict=True):
            filled = np.concatenate([np.zeros(n_features), of_columns])
            self.fill(filled, np.full(len(filled), count))

    def fill(self, values: Float64Array, counts: Float64Array) -> None:
        """Count ``counts[j]`` rows with ``values[j]`` in column j; they counted as zeros before."""
        self._widen(len(values))
        others = np.zeros((len(values), self._records.shape[1]))
        there = (values != 0) & (counts > 0)
        others[there, core.COUNT] = counts[there]
        others[there, core.MINIMUM] = others[there, core.MAXIMUM] = values[there]
        if self.kind == "standard":
            others[there, core.MEAN] = values[there]
        core.merge_records(self._records, others)

    def _widen(self, n_features: int) -> None:
        if n_features > len(self._records):
            # Doubling keeps the cost per column constant if the width grows column by column.
            self._records = self._wide(max(n_features, 2 * len(self._records)))

    def _wide(self, n_features: int) -> Float64Array:
        """Copy of the records of `n_features` columns, with 0 for columns without values."""
        n_more = max(0, n_features - len(self._records))
        return np.pad(self._records, ((0, n_more), (0, 0)))[:n_features]

    @property
    def n_stored(self) -> int:
        """Number of values other than zero in all columns."""
        return int(self._records[:, core.COUNT].sum())

    def range(self, n_features: int) -> tuple[Float64Array, Float64Array]:
        """Smallest and largest value of each column; zeros count, stored or not."""
        records = self._wide(n_features)
        low, high = records[:, core.MINIMUM], records[:, core.MAXIMUM]
        some_zero = records[:, core.COUNT] < self.n_rows
        low[some_zero] = np.minimum(low[some_zero], 0)
        high[some_zero] = np.maximum(high[some_zero], 0)
        return low, high

    def scaling(self, known: Scaling, n_features: int, kept: AnyArray | None = None) -> Scaling:
        """Choose an offset and a factor for each column, as the scalers of scikit-learn do.

        The rest of the scaling is `known`. A constant column becomes 0. The columns that are `kept`
        stay as they are.
        """
        if self.kind == "none":
            return known
        low, high = self.range(n_features)
        offset = low
        spread = high - low
        if self.kind == "maxabs":
            offset = np.zeros(n_features)
            spread = np.maximum(np.abs(low), np.abs(high))
        elif self.kind == "standard":
            offset, spread = self.moments(n_features)
        constant = (spread == 0) | are_constant(low, high)
        factor = np.divide(1.0, spread, out=np.zeros(n_features), where=~constant)
        offset[constant] = 0
        if kept is not None:
            offset[kept] = 0
            factor[kept] = 1
        return replace(known, kind=self.kind, offset=offset, factor=factor)

    def moments(self, n_features: int) -> tuple[Float64Array, Float64Array]:
        """Mean and (population) standard deviation of each column, for the scaling "standard"."""
        count, _, _, shift, mean, squares = self._wide(n_features).T
        share = count / self.n_rows
        of_others = shift + mean  # mean of the values other than zero
        with np.errstate(over="ignore", invalid="ignore"):  # squares of values near 1e200 overflow
            spread = squares / self.n_rows + of_others * of_others * (share * (1 - share))
        return of_others * share, np.sqrt(spread)


def are_constant(low: Float64Array, high: Float64Array) -> AnyArray:
    """Which columns are constant, up to the rounding of float64."""
    return np.asarray(high - low <= 1e-12 * np.maximum(np.abs(low), np.abs(high)))


def sigma2(source: RowSource, threads: int = 1, **where: Any) -> float:
    """Average squared distance of two rows; InputError if it is only rounding.

    It comes from the statistics in the file or, without them, from one reading of all rows. `where`
    takes `dask` and `on_rows`, see `_statistics`.
    """
    value = _statistics(source, threads, **where).average_squared_distance
    if value > 0:
        return value
    if source.n_rows == 1:
        raise InputError(f"{source.name} has n_samples=1 row; give more, or gamma as a number")
    raise InputError(
        f"all rows of {source.name} are equal, or differ by no more than rounding, so that no "
        f"gamma follows from their distances; convert their source with --scale standard, or give "
        f"gamma as a number"
    )


def variance(source: RowSource, threads: int = 1, **where: Any) -> float:
    """Variance of all values, zeros included; InputError if all are equal. See also `sigma2`."""
    statistics = _statistics(source, threads, **where)
    mean_square = statistics.mean_square_norm
    value = float(mean_square / source.n_features - statistics.mean.mean() ** 2)
    if value > ROUNDING * mean_square:
        return value
    raise InputError(
        f"all values of {source.name} are equal, or their variance is lost in rounding; scale the "
        f"columns, or give gamma as a number"
    )


def _statistics(
    source: RowSource, threads: int, dask: Any = None, on_rows: Callable[[int], None] | None = None
) -> StoredStatistics:
    """Statistics in the file, or from a reading; `on_rows` is called with the rows seen so far."""
    if source.statistics is not None:
        return source.statistics
    total = np.zeros((2, source.n_features))
    blocks = row_slices(source.n_rows, TASK_ROWS)
    with borrow_workers(dask, threads) as workers:
        for (_, stop), sums in workers.over(source, _sums_of_block, blocks):
            total += sums
            if on_rows is not None:
                on_rows(stop)
    return statistics_of(total, source.n_rows)


def _sums_of_block(source: RowSource, block: tuple[int, int]) -> Float64Array:
    """Sums of `add_sums` for a range of rows."""
    sums = np.zeros((2, source.n_features))
    for _, rows in iter_blocks(source, *block):
        add_sums(sums, rows)
    return sums
