"""Compiled sums over strips of kernel values: all values of some rows with all landmarks.

A strip serves twice while it is in cache: for the decision values of its rows, and for sums over
its rows. Sums are float64 whatever the precision of the values.
"""

from __future__ import annotations

from ooc_fw._core.loading import njit
from ooc_fw._core.maps import FLOAT_FLAGS


@njit(cache=True, nogil=True, fastmath=FLOAT_FLAGS)
def _dot(row, weights):
    total = 0.0
    for j in range(row.size):
        total += weights[j] * row[j]
    return total


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
            out[i, c] = _dot(row, weights[c])


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
