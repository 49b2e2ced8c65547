"""Sums, ranges and moments of columns, and the scaling chosen from them.

Moments are gathered block by block and merged (Chan, Golub and LeVeque, 1983, "Algorithms for
computing the sample variance"): another cut into blocks changes their last bits.
"""

from __future__ import annotations

import numpy as np

from ooc_fw._core.rows import (
    COUNT,
    MAXIMUM,
    MINIMUM,
    RANGE_SIZE,
    RECORD_SIZE,
    accumulate_dense,
    accumulate_stored,
    add_dense,
    add_sparse,
    mean_and_deviation,
    merge_records,
)
from ooc_fw.data.rows import CSRRows, Float64Array, Int64Array, Rows, StoredRows
from ooc_fw.data.scaling import Scaling, check_kind
from ooc_fw.data.sources import StoredStatistics

FEW_STEPS = 64  # a column is lost to rounding if its range has fewer steps of float32 than this


class ColumnSums:
    """Sums of the columns, and of their squares, over some rows, in float64 row by row."""

    def __init__(self, n_features: int) -> None:
        self.n_rows = self.n_bytes = 0
        self._sums, self._squares = np.zeros(n_features), np.zeros(n_features)

    def add(self, rows: Rows) -> None:
        """Add rows to the sums."""
        self.n_rows += len(rows)
        if isinstance(rows, CSRRows):
            add_sparse(rows.data, rows.indices, self._sums, self._squares)
        else:
            add_dense(rows, self._sums, self._squares)

    def merge(self, other: ColumnSums) -> ColumnSums:
        """Add the sums of other rows; returns itself."""
        self.n_rows += other.n_rows
        self.n_bytes += other.n_bytes
        self._sums += other._sums
        self._squares += other._squares
        return self

    @property
    def statistics(self) -> StoredStatistics:
        """Mean of each column, and mean squared norm of the rows."""
        return StoredStatistics(self._sums / self.n_rows, float(self._squares.sum()) / self.n_rows)


class ColumnRanges:
    """Range and, for the scaling "standard", mean and variance of each column.

    `n_rows` counts the rows added, `n_bytes` what was read for them if whoever added them says so.
    """

    def __init__(self, kind: str = "none") -> None:
        check_kind(kind)
        self.kind = kind
        self.n_rows = self.n_bytes = 0
        self._records = np.zeros((0, RECORD_SIZE if kind == "standard" else RANGE_SIZE))

    def of(self, rows: StoredRows) -> ColumnRanges:
        """Ranges of these rows alone, for `merge`, in any thread."""
        ranges = ColumnRanges(self.kind)
        ranges.add(rows)
        return ranges

    def add(self, rows: StoredRows) -> None:
        """Add rows of float32 or float64."""
        self._widen(rows.shape[1])
        if isinstance(rows, CSRRows):
            accumulate_stored(rows.data, rows.indices, self._records)
        else:
            accumulate_dense(rows, self._records)
        self.n_rows += len(rows)

    def merge(self, other: ColumnRanges) -> ColumnRanges:
        """Add the rows of another one, gathered for the same scaling; returns itself."""
        self._widen(len(other._records))
        merge_records(self._records, other._records)
        self.n_rows += other.n_rows
        self.n_bytes += other.n_bytes
        return self

    def _widen(self, n_features: int) -> None:
        if n_features > len(self._records):
            # Doubling keeps the cost per column constant when the width grows column by column.
            self._records = self._wide(max(n_features, 2 * len(self._records)))

    def _wide(self, n_features: int) -> Float64Array:
        """Records of so many columns, those never met being 0."""
        records = np.zeros((n_features, self._records.shape[1]))
        met = min(n_features, len(self._records))
        records[:met] = self._records[:met]
        return records

    @property
    def n_features(self) -> int:
        """An upper bound on the number of columns met."""
        return len(self._records)

    @property
    def n_stored(self) -> int:
        """Values of all columns that are not zero."""
        return int(self._records[:, COUNT].sum())

    def range(self, n_features: int) -> tuple[Float64Array, Float64Array]:
        """Smallest and largest value of each column; zeros that are not stored count."""
        records = self._wide(n_features)
        some_zero = records[:, COUNT] < self.n_rows
        low = np.where(some_zero, np.minimum(records[:, MINIMUM], 0), records[:, MINIMUM])
        high = np.where(some_zero, np.maximum(records[:, MAXIMUM], 0), records[:, MAXIMUM])
        return low, high

    def moments(self, n_features: int) -> tuple[Float64Array, Float64Array]:
        """Mean and (population) standard deviation of each column, gathered for "standard"."""
        mean, deviation = np.empty(n_features), np.empty(n_features)
        mean_and_deviation(self._wide(n_features), self.n_rows, mean, deviation)
        return mean, deviation

    def fit(self, log1p: bool, n_features: int) -> Scaling:
        """Choose offset and factor of each column.

        The kind "minmax" maps the range to [0, 1], "maxabs" divides by the largest absolute value,
        and "standard" maps the mean to 0 and the (population) standard deviation to 1. Constant
        columns, and columns never met, become 0. `log1p` says what was done to the rows before.
        """
        if self.kind == "none":
            return Scaling("none", log1p)
        low, high = self.range(n_features)
        if self.kind == "minmax":
            offset, spread = low, high - low
        elif self.kind == "maxabs":
            offset, spread = np.zeros(n_features), np.maximum(np.abs(low), np.abs(high))
        else:
            offset, spread = self.moments(n_features)
        constant = (low == high) | (spread == 0)
        factor = np.divide(1.0, spread, out=np.zeros(n_features), where=~constant)
        return Scaling(self.kind, log1p, np.where(constant, 0.0, offset), factor)

    def lost(self, scaling: Scaling, n_features: int) -> Int64Array:
        """Columns whose different values become nearly equal when they are rounded to float32.

        Values are rounded after `scaling`; its logarithms must have been taken already.
        """
        low, high = self.range(n_features)
        ends = np.stack([low, high])
        if scaling.offset is not None and scaling.factor is not None:
            ends = (ends - scaling.offset) * scaling.factor
        with np.errstate(over="ignore"):
            rounded = ends.astype(np.float32)
            steps = np.abs(rounded[1] - rounded[0]) / np.spacing(np.abs(rounded).max(axis=0))
        exact = (rounded == ends).all(axis=0)  # as whole numbers below 2**24 are
        return np.flatnonzero((low < high) & (steps < FEW_STEPS) & ~exact)
