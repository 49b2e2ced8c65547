"""Ranges and moments of the columns, the scaling made from them, and counts of labels.

Owns one pass of sums over the parsed rows, in float64 and in the order of the input; counts and
ranges, which do not depend on the order, may be gathered block by block and merged. Does not apply
a scaling: `ooc_fw.scaling` does.
"""

from __future__ import annotations

import numpy as np

from ooc_fw._core.libsvm import (
    COUNT,
    MAXIMUM,
    MINIMUM,
    RECORD_SIZE,
    SHIFT,
    SQUARES,
    SUM,
    accumulate_columns,
    accumulate_ranges,
    sum_dense_columns,
    sum_sparse_columns,
)
from ooc_fw.rows import CSRRows, Float64Array, Rows
from ooc_fw.scaling import Scaling

MAX_FEATURES = 1 << 26
"""Widest file. Statistics take 48 bytes a column: a stray index must not exhaust the memory."""


WIDE = 1 << 14
"""Columns beyond which ranges are not gathered block by block: merging would take longer."""

FEW_LABELS = 8
"""Different labels up to which counting one after the other beats sorting."""


class ColumnRanges:
    """Range, mean and variance of each column, implicit zeros counted; grows with the width.

    Parameters
    ----------
    with_moments : bool
        Whether means and variances are wanted, which need all rows in the order of the input.
    """

    def __init__(self, with_moments: bool = True) -> None:
        self.n_rows = 0
        self._with_moments = with_moments
        self._records = np.zeros((0, RECORD_SIZE))

    def part(self, rows: CSRRows) -> ColumnRanges | None:
        """Ranges of some rows, for `merge`; None where only `add` will do. For any thread."""
        if self._with_moments or rows.n_features > WIDE:
            return None
        ranges = ColumnRanges(with_moments=False)
        ranges.add(rows)
        return ranges

    def add(self, rows: CSRRows) -> None:
        """Take rows, at most MAX_FEATURES wide, into account."""
        self._widen(rows.n_features)
        accumulate = accumulate_columns if self._with_moments else accumulate_ranges
        accumulate(rows.data, rows.indices, self._records)
        self.n_rows += len(rows)

    def merge(self, other: ColumnRanges) -> None:
        """Take the rows of another into account; neither has moments."""
        self._widen(len(other._records))
        own, new = self._records[: len(other._records)], other._records
        met, fresh = new[:, COUNT] > 0, own[:, COUNT] == 0
        for column, pick in ((MINIMUM, np.minimum), (MAXIMUM, np.maximum)):
            both = pick(own[:, column], new[:, column])
            own[:, column] = np.where(fresh, new[:, column], np.where(met, both, own[:, column]))
        own[:, COUNT] += new[:, COUNT]
        self.n_rows += other.n_rows

    def _widen(self, n_features: int) -> None:
        if n_features > len(self._records):
            # Doubling, so that a width creeping up costs no more than a constant per column.
            grown = np.zeros((max(n_features, 2 * len(self._records)), RECORD_SIZE))
            grown[: len(self._records)] = self._records
            self._records = grown

    @property
    def n_stored(self) -> int:
        """Stored values in all columns."""
        return int(self._records[:, COUNT].sum())

    def fit(self, kind: str, log1p: bool, n_features: int) -> Scaling:
        """Choose offset and factor of each column.

        Parameters
        ----------
        kind : {"none", "minmax", "maxabs", "standard"}
            minmax maps the range to [0, 1], maxabs divides by the largest size, standard takes
            the mean to 0 and the (population) standard deviation to 1.
        log1p : bool
            Recorded in the result; the rows added must have been transformed already.
        n_features : int
            Width; columns never met are constant zeros.

        Returns
        -------
        Scaling
            Constant columns become 0.
        """
        if kind == "none":
            return Scaling("none", log1p)
        assert self._with_moments or kind != "standard"
        records = np.zeros((n_features, RECORD_SIZE))
        met = min(n_features, len(self._records))
        records[:met] = self._records[:met]
        some_zero = records[:, COUNT] < self.n_rows
        low = np.where(some_zero, np.minimum(records[:, MINIMUM], 0), records[:, MINIMUM])
        high = np.where(some_zero, np.maximum(records[:, MAXIMUM], 0), records[:, MAXIMUM])
        if kind == "minmax":
            offset, spread = low, high - low
        elif kind == "maxabs":
            offset, spread = np.zeros(n_features), np.maximum(np.abs(low), np.abs(high))
        else:
            offset, spread = _mean_and_deviation(records, self.n_rows)
        # With standard scaling, rounding may leave a constant column a tiny spread: ask the range.
        constant = (low == high) | (spread == 0)
        factor = np.divide(1.0, spread, out=np.zeros(n_features), where=~constant)
        return Scaling(kind, log1p, np.where(constant, 0.0, offset), factor)


def _mean_and_deviation(records: Float64Array, n_rows: int) -> tuple[Float64Array, Float64Array]:
    """Mean and standard deviation over stored values and implicit zeros.

    Squares of stored values about their own mean, then joined with the zeros (Chan, Golub and
    LeVeque, 1983, "Algorithms for computing the sample variance", eq. 2.1): no cancellation.
    """
    count = records[:, COUNT]
    safe = np.maximum(count, 1)
    mean_stored = records[:, SHIFT] + records[:, SUM] / safe
    squares = np.maximum(records[:, SQUARES] - records[:, SUM] ** 2 / safe, 0)
    squares += mean_stored**2 * count * (n_rows - count) / n_rows
    return mean_stored * count / n_rows, np.sqrt(squares / n_rows)


class ColumnMoments:
    """Mean of each column and mean squared norm of the rows as stored in the output.

    Parameters
    ----------
    n_features : int
        Width of the rows.
    """

    def __init__(self, n_features: int) -> None:
        self._n_rows = 0
        self._sums = np.zeros(n_features)
        self._squares = np.zeros(n_features)

    def add(self, rows: Rows) -> None:
        """Take rows into account."""
        self._n_rows += len(rows)
        if isinstance(rows, CSRRows):
            sum_sparse_columns(rows.data, rows.indices, self._sums, self._squares)
        else:
            sum_dense_columns(rows, self._sums, self._squares)

    @property
    def mean(self) -> Float64Array:
        """Mean of each column."""
        return self._sums / self._n_rows

    @property
    def mean_square_norm(self) -> float:
        """Mean over the rows of the sum of their squared values."""
        return float(self._squares.sum() / self._n_rows)


def count_labels(labels: Float64Array) -> dict[float, int]:
    """How often each label occurs."""
    counts: dict[float, int] = {}
    left = labels
    while len(left) > 0:
        if len(counts) == FEW_LABELS:
            names, numbers = np.unique(left, return_counts=True)
            return counts | dict(zip(names.tolist(), numbers.tolist(), strict=True))
        others = left[left != left[0]]
        counts[float(left[0])] = len(left) - len(others)
        left = others
    return counts
