"""Means of the columns as stored, and counts of labels.

Owns one pass of sums over the rows written, in float64 and in the order of the input.
"""

from __future__ import annotations

import numpy as np

from ooc_fw._core.libsvm import sum_dense_columns, sum_sparse_columns
from ooc_fw.data.rows import CSRRows, Float64Array, Rows

MAX_FEATURES = 1 << 26
"""Widest file. Statistics take up to 64 bytes a column: a stray index must not exhaust memory."""

WIDE = 1 << 14
"""Columns beyond which ranges are not gathered block by block: merging would take longer."""

FEW_LABELS = 8
"""Different labels up to which counting one after the other beats sorting."""


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
