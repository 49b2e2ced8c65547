"""Compiled sums over strips of kernel values: all values of some rows with all landmarks.

A strip serves twice while it is in cache: for the decision values of its rows, and for sums over
its rows. Sums are float64 whatever the precision of the values.
"""

from __future__ import annotations

import numpy as np

from ooc_fw._core.loading import njit
from ooc_fw._core.maps import FLOAT_FLAGS, dot


@njit(cache=True, nogil=True, fastmath=FLOAT_FLAGS)
def _add_multiple(row, factor, out):
    for j in range(row.size):
        out[j] += factor * row[j]


@njit(cache=True, nogil=True)
def strip_sums(strip, weights, out):
    """out[i, c] = sum_j weights[c, j] strip[i, j].

    Parameters
    ----------
    strip : ndarray of float32 or float64, shape (n, m)
    weights : ndarray of float64, shape (n_classes, m)
    out : ndarray of float64, shape (n, n_classes)
        Overwritten.
    """
    for i in range(strip.shape[0]):
        row = strip[i]
        for c in range(weights.shape[0]):
            out[i, c] = dot(weights[c], row)


@njit(cache=True, nogil=True)
def strip_transposed_sums(strip, factors, out):
    """out[c, j] += sum_i factors[i, c] strip[i, j]; factors that are 0 cost nothing.

    Parameters
    ----------
    strip : ndarray of float32 or float64, shape (n, m)
    factors : ndarray of float64, shape (n, n_classes)
    out : ndarray of float64, shape (n_classes, m)
        Modified.
    """
    for i in range(strip.shape[0]):
        row = strip[i]
        for c in range(out.shape[0]):
            if factors[i, c] != 0.0:
                _add_multiple(row, factors[i, c], out[c])


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
