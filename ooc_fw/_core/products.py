"""Compiled products of rows with a tile of vertices, and row norms.

The vertices of a tile are the columns of a dense scratch array `columns` (lines x width), so that
each stored value of a row costs one multiply-add over `width` adjacent numbers. Feature k is in
line `places[k]`. Line 0 is all zeros, for features without a value in any vertex. Sparse rows are
tuples of values, columns and row pointers, in the form of `stored_arrays`.
"""

from __future__ import annotations

import numpy as np

from ooc_fw._core.loading import njit
from ooc_fw._core.maps import MAP_FLAGS

NORM_UNITS = 12.0  # relative error of a norm from `row_norms`, in float64 units


@njit(cache=True, nogil=True)
def scatter_columns(data, indices, indptr, places, columns):
    """Write sparse vertices into zeros: columns[places[k], j] = value k of vertex j.

    `places` must be zeros before; features get lines in the order in which they occur.
    """
    used = 0
    for j in range(indptr.size - 1):
        for p in range(indptr[j], indptr[j + 1]):
            k = indices[p]
            if places[k] == 0:
                used += 1
                places[k] = used
            columns[places[k], j] = data[p]


@njit(cache=True, nogil=True)
def clear_columns(indices, indptr, places, columns):
    """Undo `scatter_columns`, faster than by setting all of `columns` to zero."""
    for j in range(indptr.size - 1):
        for p in range(indptr[j], indptr[j + 1]):
            columns[places[indices[p]], j] = 0
    for k in indices[indptr[0] : indptr[-1]]:
        places[k] = 0


@njit(cache=True, nogil=True, fastmath={"contract"})
def dot_tile(rows, places, columns, scratch, out):
    """out[i, j] = x_i . z_j for sparse rows x and scattered vertices z.

    `columns` may be wider than `out`. `scratch` holds two arrays, longer by 3 than the longest row,
    of the types of its values and of `places`. The cost is O(stored values x width); values of
    features that no vertex has cost nothing. Four values are taken at a time, padded by the line of
    zeros, to save three of four passes over the sums. The inner loop is written out, because a
    function call would take as long as the loop itself.
    """
    width = out.shape[1]
    data, indices, indptr = rows
    values, lines = scratch
    for i in range(indptr.size - 1):
        n = 0
        for p in range(indptr[i], indptr[i + 1]):
            lines[n] = places[indices[p]]
            values[n] = data[p]
            n += lines[n] > 0
        row = out[i]
        row[:] = 0
        lines[n : n + 3] = 0
        values[n : n + 3] = 0
        for p in range(0, n, 4):
            a, b, c, d = values[p], values[p + 1], values[p + 2], values[p + 3]
            za, zb = columns[lines[p]], columns[lines[p + 1]]
            zc, zd = columns[lines[p + 2]], columns[lines[p + 3]]
            for j in range(width):
                row[j] = (((row[j] + a * za[j]) + b * zb[j]) + c * zc[j]) + d * zd[j]


@njit(cache=True, nogil=True, fastmath={"contract"})
def overlap_tile(rows, places, columns, out):
    """out[i, j] = (|x_i|_1 + |z_j|_1 - |x_i - z_j|_1) / 2 of sparse rows and scattered vertices.

    If both values of a feature have the same sign, the feature adds the smaller absolute value. If
    signs differ, or one value is missing, it adds exactly 0.
    """
    data, indices, indptr = rows
    number = out.dtype.type
    for i in range(indptr.size - 1):
        row = out[i]
        row[:] = 0
        for p in range(indptr[i], indptr[i + 1]):
            line = places[indices[p]]
            if line == 0:
                continue
            value, z = number(data[p]), columns[line]
            low, high = min(value, number(0)), max(value, number(0))
            sign = number(1) if value > 0 else number(-1)
            for j in range(row.size):
                row[j] += sign * min(max(z[j], low), high)


@njit(cache=True, nogil=True, fastmath={"contract"})
def difference_tile(x, columns, squared, out):
    """out[i, j] = |x_i - z_j|^2 if `squared`, else |x_i - z_j|_1, from the differences.

    Rows x, shape (n, 4 k), and `columns`, shape (4 k, at least m), are padded by zeros; all arrays
    have one precision. No term is negative, so that the relative error of the sum is small.
    """
    width = out.shape[1]
    for i in range(x.shape[0]):
        row = out[i]
        row[:] = 0
        for k in range(0, x.shape[1], 4):
            a, b, c, d = x[i, k], x[i, k + 1], x[i, k + 2], x[i, k + 3]
            za, zb, zc, zd = columns[k], columns[k + 1], columns[k + 2], columns[k + 3]
            if squared:
                for j in range(width):
                    ea, eb, ec, ed = a - za[j], b - zb[j], c - zc[j], d - zd[j]
                    row[j] = (((row[j] + ea * ea) + eb * eb) + ec * ec) + ed * ed
            else:
                for j in range(width):
                    ea, eb, ec, ed = a - za[j], b - zb[j], c - zc[j], d - zd[j]
                    row[j] = (((row[j] + abs(ea)) + abs(eb)) + abs(ec)) + abs(ed)


@njit(cache=True, nogil=True, fastmath=MAP_FLAGS)
def minimum_tile(x, columns, one, out):
    """out[i, j] = sum_k min(x_ik, z_jk), half of s(x_i) + s(z_j) - |x_i - z_j|_1.

    Here s is the sum of a row's values. Arrays are as in `difference_tile`. `one` is the number 1
    in their precision, as an argument, so that the compiler does not leave out the product with it.
    Processors add and take minima in the same units, but multiply and add in others. The product
    therefore makes this function half as fast again.
    """
    width = out.shape[1]
    spare = np.empty(width, out.dtype)  # stands for the second row if the last one is alone
    for i in range(0, x.shape[0], 2):
        last = min(i + 1, x.shape[0] - 1)
        row, row_2 = out[i], out[last] if last > i else spare
        row[:] = 0
        row_2[:] = 0
        for k in range(0, x.shape[1], 4):
            a, b, c, d = x[i, k], x[i, k + 1], x[i, k + 2], x[i, k + 3]
            a_2, b_2, c_2, d_2 = x[last, k], x[last, k + 1], x[last, k + 2], x[last, k + 3]
            za, zb, zc, zd = columns[k], columns[k + 1], columns[k + 2], columns[k + 3]
            for j in range(width):
                p, q, r, s = za[j], zb[j], zc[j], zd[j]
                total = (row[j] + one * min(a, p)) + one * min(b, q)
                total_2 = (row_2[j] + one * min(a_2, p)) + one * min(b_2, q)
                row[j] = (total + one * min(c, r)) + one * min(d, s)
                row_2[j] = (total_2 + one * min(c_2, r)) + one * min(d_2, s)


@njit(cache=True, nogil=True)
def row_norms(data, indptr, squared, out):
    """out[i] = |x_i|^2 if `squared`, else |x_i|_1, for the row data[indptr[i]:indptr[i + 1]].

    Eight values at a time are added by Kahan's method, so that a long sum errs no more.
    """
    for i in range(out.size):
        total = 0.0
        lost = 0.0
        for start in range(indptr[i], indptr[i + 1], 8):
            part = -lost
            for value in data[start : min(start + 8, indptr[i + 1])]:
                size = abs(np.float64(value))
                part += size * size if squared else size
            larger = total + part
            lost = (larger - total) - part if larger < np.inf else 0.0
            total = larger
        out[i] = total


@njit(cache=True, nogil=True)
def _fall(d, step, gamma):
    """Fall of exp(-gamma |d|) from d - step to d + step, divided by 2 step gamma exp(-gamma |d|).

    If the step is 0, this is the sign of d.
    """
    if step == 0.0:
        return np.sign(d)
    before, after = abs(d - step) - abs(d), abs(d + step) - abs(d)
    return (np.exp(-gamma * before) - np.exp(-gamma * after)) / (2 * step * gamma)


@njit(cache=True, nogil=True)
def add_laplacian_gradients(x, vertices, steps, gamma, weights, out):
    """out[f, i, k] += (h(x_i + steps[k] e_k) - h(x_i - steps[k] e_k)) / (2 steps[k]).

    Here h(x) = sum_j weights[f, j] exp(-gamma |x - z_j|_1). If a step is 0, the derivative is added
    (0 at x = z). Rows are dense, vertices sparse, all in float64; O(rows x stored values of the
    vertices): all columns are first counted as if no vertex had a value there, and each stored
    value then corrects its own term.
    """
    data, indices, indptr = vertices
    falls, totals = np.empty(x.shape[1]), np.empty(weights.shape[0])
    for i in range(x.shape[0]):
        row, norm = x[i], 0.0
        for k in range(row.size):
            falls[k] = _fall(row[k], steps[k], gamma)
            norm += abs(row[k])
        totals[:] = 0
        for j in range(indptr.size - 1):
            distance = norm
            for p in range(indptr[j], indptr[j + 1]):
                value = row[indices[p]]
                distance += abs(value - data[p]) - abs(value)
            slope = gamma * np.exp(-gamma * distance)
            for f in range(totals.size):
                weight = weights[f, j] * slope
                totals[f] += weight
                for p in range(indptr[j], indptr[j + 1]):
                    k = indices[p]
                    fall = _fall(row[k] - data[p], steps[k], gamma)
                    out[f, i, k] += weight * (falls[k] - fall)
        for f in range(totals.size):
            for k in range(row.size):
                out[f, i, k] -= totals[f] * falls[k]
