"""Compiled sums over rows that landmark models need: of kernel values, and of slacks.

Sums are float64 whatever the precision of the values.
"""

from __future__ import annotations

import numpy as np

from ooc_fw._core.loading import njit
from ooc_fw._core.maps import FLOAT_FLAGS


@njit(cache=True, nogil=True, fastmath=FLOAT_FLAGS)
def _add_row(row, factor, out):
    for j in range(out.size):
        out[j] += factor * np.float64(row[j])


@njit(cache=True, nogil=True, fastmath=FLOAT_FLAGS)
def _add_rows(rows, factors, out):
    """Add four rows, each times its factor, to `out`."""
    a, b, c, d = rows
    fa, fb, fc, fd = factors
    for j in range(out.size):
        out[j] += (fa * np.float64(a[j]) + fb * np.float64(b[j])) + (
            fc * np.float64(c[j]) + fd * np.float64(d[j])
        )


@njit(cache=True, nogil=True)
def add_weighted_rows(tile, factors, first, width, out):
    """out[c, first + j] += sum_i factors[i, c] tile[i, j] for j below `width`, in float64.

    `factors` have shape (n, k), and `out` has shape (k, n_columns). A factor of 0 costs nothing;
    taking four rows at a time saves three of four passes over the sums.
    """
    for c in range(out.shape[0]):
        sums = out[c, first : first + width]
        rows = np.flatnonzero(factors[:, c])
        whole = rows.size - rows.size % 4
        for p in range(0, whole, 4):
            i, j, k, m = rows[p], rows[p + 1], rows[p + 2], rows[p + 3]
            four = factors[i, c], factors[j, c], factors[k, c], factors[m, c]
            _add_rows((tile[i], tile[j], tile[k], tile[m]), four, sums)
        for i in rows[whole:]:
            _add_row(tile[i], factors[i, c], sums)


@njit(cache=True, nogil=True)
def tube_slopes(targets, before, after, penalties, t, epsilon, out):
    """`slack_slopes` of regression: xi_i = max(0, |y_i - h(x_i)| - epsilon), targets of float64."""
    for i in range(targets.shape[0]):
        for c in range(targets.shape[1]):
            start = np.float64(before[i, c])
            change = after[i, c] - start
            residual = targets[i, c] - (start + t[c] * change)
            slack = abs(residual) - epsilon
            if slack > 0.0:
                signed = slack if residual > 0.0 else -slack
                out[c] -= penalties[i] * signed * change


@njit(cache=True, nogil=True)
def slack_slopes(signs, before, after, penalties, t, out):
    """out[c] += slope along the line of 1/2 sum_i C_i xi_i^2, a fraction t[c] of the way.

    Parameters
    ----------
    signs : ndarray of int8, shape (n, n_classes)
    before, after : ndarray of float32, shape (n, n_classes)
        Decision values at both ends.
    penalties : ndarray of float64, shape (n,)
    t : ndarray of float64, shape (n_classes,)
    out : ndarray of float64, shape (n_classes,)
        Modified.
    """
    for i in range(signs.shape[0]):
        for c in range(signs.shape[1]):
            start = np.float64(before[i, c])
            change = after[i, c] - start
            slack = 1.0 - signs[i, c] * (start + t[c] * change)
            if slack > 0.0:
                out[c] -= penalties[i] * slack * signs[i, c] * change
