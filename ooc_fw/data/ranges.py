"""Ranges and moments of columns, and the scaling made from them.

Owns the formulas of minmax, maxabs and standard scaling, for the converter and for
`ooc_fw.data.statistics.fit_scaling` alike. Sums are of twice the precision of float64
(`ooc_fw._core.moments`), so that rows may be gathered in blocks and merged in any order. Does not
apply a scaling: `ooc_fw.data.scaling` does.
"""

from __future__ import annotations

import numpy as np

from ooc_fw._core.moments import (
    COUNT,
    MAXIMUM,
    MINIMUM,
    RANGE_SIZE,
    RECORD_SIZE,
    accumulate_dense,
    accumulate_stored,
    mean_and_deviation,
    merge_records,
)
from ooc_fw.data.rows import CSRRows, Float64Array, Int64Array, StoredRows
from ooc_fw.data.scaling import KINDS, Scaling
from ooc_fw.system.errors import InputError

FEW_STEPS = 64
"""A column whose range has fewer steps of float32 than these has lost its values to rounding."""


class ColumnRanges:
    """Range and, if wanted, mean and variance of each column; grows with the width.

    Parameters
    ----------
    kind : str
        The scaling wanted: "standard" needs means and variances.

    Attributes
    ----------
    n_rows : int
        Rows taken into account.
    n_bytes : int
        Bytes that whoever added them read for them, if that is counted.
    """

    def __init__(self, kind: str = "none") -> None:
        if kind not in KINDS:
            raise InputError(f"scaling must be one of {', '.join(KINDS)}, not {kind!r}")
        self.kind = kind
        self.n_rows = self.n_bytes = 0
        self._records = np.zeros((0, RECORD_SIZE if kind == "standard" else RANGE_SIZE))

    def of(self, rows: StoredRows) -> ColumnRanges:
        """Ranges of some rows alone, for `merge`; for any thread."""
        ranges = ColumnRanges(self.kind)
        ranges.add(rows)
        return ranges

    def add(self, rows: StoredRows) -> None:
        """Take rows of float32 or float64 into account."""
        self._widen(rows.shape[1])
        if isinstance(rows, CSRRows):
            accumulate_stored(rows.data, rows.indices, self._records)
        else:
            accumulate_dense(rows, self._records)
        self.n_rows += len(rows)

    def merge(self, other: ColumnRanges) -> None:
        """Take the rows of another, gathered for the same scaling, into account."""
        self._widen(len(other._records))
        merge_records(self._records, other._records)
        self.n_rows += other.n_rows
        self.n_bytes += other.n_bytes

    def merged(self, other: ColumnRanges) -> ColumnRanges:
        """Itself, with the rows of another."""
        self.merge(other)
        return self

    def _widen(self, n_features: int) -> None:
        if n_features > len(self._records):
            # Doubling, so that a width creeping up costs no more than a constant per column.
            shape = max(n_features, 2 * len(self._records)), self._records.shape[1]
            grown = np.zeros(shape)
            grown[: len(self._records)] = self._records
            self._records = grown

    @property
    def n_features(self) -> int:
        """Columns met, or more."""
        return len(self._records)

    @property
    def n_stored(self) -> int:
        """Stored values in all columns."""
        return int(self._records[:, COUNT].sum())

    def range(self, n_features: int) -> tuple[Float64Array, Float64Array]:
        """Least and largest value of each column, zeros that are not stored included."""
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

    def _wide(self, n_features: int) -> Float64Array:
        records = np.zeros((n_features, self._records.shape[1]))
        met = min(n_features, len(self._records))
        records[:met] = self._records[:met]
        return records

    def fit(self, log1p: bool, n_features: int) -> Scaling:
        """Choose offset and factor of each column.

        minmax maps the range to [0, 1], maxabs divides by the largest size, standard takes the mean
        to 0 and the (population) standard deviation to 1.

        Parameters
        ----------
        log1p : bool
            Recorded in the result; the rows added must have been transformed already.
        n_features : int
            Width; columns never met are constant zeros.

        Returns
        -------
        Scaling
            Constant columns become 0.
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
        """Columns of different values which rounding to float32, after scaling, makes nearly one.

        Parameters
        ----------
        scaling : Scaling
            What is done to the values before they are rounded, logarithms apart.
        n_features : int
            Width.
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
