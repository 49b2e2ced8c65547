"""Screening: which rows can still violate after the weights have moved.

A sweep with the weights a_ref leaves a lower bound of

    g_ref_i = y_i (w_ref . phi(x_i) + b_ref)

for every row, without the row's own a_i / C. Take any later weights a with rho = a'Qa. For a row of
weight 0 the gradient is g_i = y_i (w . phi(x_i) + b), so by Cauchy-Schwarz on the pair (w, b)

    g_i >= g_ref_i - |(w, b) - (w_ref, b_ref)| |(phi(x_i), 1)|
        =  g_ref_i - |dw| sqrt(k(x_i, x_i) + 1).

Where the right side is not below a number, g_i is not either, and the row need not be looked at.
A row of positive weight is not covered; the caller looks at the support anyway.

    |dw|^2 = |w|^2 + |w_ref|^2 - 2 sum_i a_ref_i g_i',   |w|^2 = rho - sum_i a_i^2 / C,

where g_i' = g_i - a_i / C is the gradient of now at the vertices of the snapshot, and |w| includes
b. The difference cancels, so it takes float64 kernel values, and their rounding is added.

Owns the bounds and the inequality. Knows nothing of files or kernels.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ooc_fw.rows import Float64Array, Int64Array


class Screen:
    """Lower bounds of every row's gradient at a snapshot of the weights.

    Takes 8 bytes a row.

    Parameters
    ----------
    n_rows : int
        Rows of the source.
    row_ids : ndarray of int64, shape (n_support,)
        Vertices of the snapshot.
    alpha : ndarray of float64, shape (n_support,)
        Their weights.
    norm2 : float
        |w_ref|^2, b included.
    """

    def __init__(self, n_rows: int, row_ids: Int64Array, alpha: Float64Array, norm2: float) -> None:
        self.row_ids = row_ids
        self.alpha = alpha
        self.norm2 = norm2
        self._lower = np.full(n_rows, -np.inf, dtype=np.float32)
        self._reach = np.zeros(n_rows, dtype=np.float32)

    def record(
        self,
        rows: slice | Int64Array,
        lower: Float64Array,
        diagonal: Float64Array,
    ) -> None:
        """Bounds of some rows: `lower` <= g_ref, and k(x, x) with its rounding covered."""
        # Rounded outwards, so that float32 storage keeps them bounds.
        self._lower[rows] = np.nextafter(lower.astype(np.float32), np.float32(-np.inf))
        reach = np.sqrt(diagonal + 1.0).astype(np.float32)
        self._reach[rows] = np.nextafter(reach, np.float32(np.inf))

    def suspects(self, distance: float, floor: float) -> npt.NDArray[np.intp]:
        """Rows whose gradient may be below `floor` for weights at this |dw| from the snapshot."""
        bound = self._lower - np.float64(distance) * self._reach.astype(np.float64)
        return np.flatnonzero(~(bound >= floor))

    def distance(self, norm2: float, cross: float, rounding: float) -> float:
        """Upper bound on |dw|.

        Parameters
        ----------
        norm2 : float
            |w|^2 of the weights of now.
        cross : float
            sum_i a_ref_i g_i' of the module's docstring.
        rounding : float
            Bound on the error of a gradient in float64.
        """
        return float(np.sqrt(max(0.0, norm2 + self.norm2 - 2 * cross) + 4 * rounding))
