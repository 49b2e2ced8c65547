"""Compiled products of sparse rows with weights of their columns, for several classifiers at once.

`weights` and `out` have a line for each column, and a last line for the constant feature 1.
Each stored value costs a multiply-add with one line, whose numbers are adjacent in memory. Sparse
rows are tuples of values, columns and row pointers. Sums are float64. A single classifier has loops
of its own, since they take half the time.
"""

from __future__ import annotations

import numpy as np

from ooc_fw._core.loading import njit
from ooc_fw._core.maps import FLOAT_FLAGS


@njit(cache=True, nogil=True, fastmath=FLOAT_FLAGS)
def _multiply(rows, i, weights, sums):
    """Set sums to weights[-1] + sum_j x_ij weights[j], from four lines at a time."""
    data, indices, indptr = rows
    start = indptr[i]
    stop = indptr[i + 1]
    last = weights.shape[0] - 1
    if sums.size == 1:
        total = weights[last, 0]
        for p in range(start, stop):
            total += data[p] * weights[indices[p], 0]
        sums[0] = total
        return
    for k in range(sums.size):
        sums[k] = weights[last, k]
    whole = stop - (stop - start) % 4
    for p in range(start, whole, 4):
        a = np.float64(data[p])
        b = np.float64(data[p + 1])
        c = np.float64(data[p + 2])
        d = np.float64(data[p + 3])
        wa = weights[indices[p]]
        wb = weights[indices[p + 1]]
        wc = weights[indices[p + 2]]
        wd = weights[indices[p + 3]]
        for k in range(sums.size):
            sums[k] = (((sums[k] + a * wa[k]) + b * wb[k]) + c * wc[k]) + d * wd[k]
    for p in range(whole, stop):
        a = np.float64(data[p])
        wa = weights[indices[p]]
        for k in range(sums.size):
            sums[k] += a * wa[k]


@njit(cache=True, nogil=True, fastmath=FLOAT_FLAGS)
def _add(rows, i, factors, out):
    """out[j] += x_ij factors, and the factors to the last line."""
    data, indices, indptr = rows
    last = out.shape[0] - 1
    if factors.size == 1:
        factor = factors[0]
        for p in range(indptr[i], indptr[i + 1]):
            out[indices[p], 0] += data[p] * factor
        out[last, 0] += factor
        return
    for p in range(indptr[i], indptr[i + 1]):
        value = np.float64(data[p])
        line = out[indices[p]]
        for k in range(factors.size):
            line[k] += value * factors[k]
    for k in range(factors.size):
        out[last, k] += factors[k]


@njit(cache=True, nogil=True, fastmath=FLOAT_FLAGS)
def column_sums(rows, weights, out):
    """out[i] = weights[-1] + sum_j x_ij weights[j]."""
    for i in range(out.shape[0]):
        _multiply(rows, i, weights, out[i])


@njit(cache=True, nogil=True, fastmath=FLOAT_FLAGS)
def add_rows(rows, factors, out):
    """out[j] += sum_i x_ij factors[i], and the last line the sum of all factors[i]."""
    for i in range(factors.shape[0]):
        _add(rows, i, factors[i], out)


@njit(cache=True, nogil=True, fastmath=FLOAT_FLAGS)
def add_column_products(rows, weights, factors, out):
    """Both sums for f_i = factors[i] (x_i' weights): out[j] += sum_i x_ij f_i, row by row.

    A row whose factors are all 0 costs nothing. The values of a row are read from memory once.
    """
    sums = np.empty(weights.shape[1])
    for i in range(factors.shape[0]):
        used = False
        for k in range(sums.size):
            used |= factors[i, k] != 0
        if used:
            _multiply(rows, i, weights, sums)
            for k in range(sums.size):
                sums[k] *= factors[i, k]
            _add(rows, i, sums, out)
