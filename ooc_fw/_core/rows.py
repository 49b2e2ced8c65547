"""Compiled loops over blocks of rows: copies, hashes, column sums, scaling, lookup of values.

Each column is summed row by row, so that the bits of sums depend neither on how rows were cut into
blocks nor on dense or sparse storage: the zeros that sparse rows leave out add nothing.
"""

from __future__ import annotations

import numpy as np

from ooc_fw._core.loading import njit

_U64 = np.uint64
_LOOKUP_FACTOR = _U64(0x9E3779B97F4A7C15)  # of Knuth's multiplicative hash: the golden ratio
_HASH_PRIME = _U64(0x100000001B3)
_HASH_START = _U64(0xCBF29CE484222325)
_HASH_SHIFT = _U64(29)


@njit(cache=True, nogil=True)
def copy_rows(data, indices, indptr, places, out_data, out_indices, out_indptr):
    """Copy the sparse rows at `places` one after the other; `out_indptr` says where each begins."""
    for k in range(places.size):
        start = np.uint64(indptr[places[k]])
        target = np.uint64(out_indptr[k])
        for p in range(np.uint64(out_indptr[k + 1]) - target):
            out_data[target + p] = data[start + p]
            out_indices[target + p] = indices[start + p]


@njit(cache=True, nogil=True)
def sort_columns(indices, indptr):
    """Places of the values of sparse rows, by column within each row; equal columns in order.

    An insertion sort, for short rows.
    """
    order = np.empty(indices.size, np.int64)
    for i in range(indptr.size - 1):
        first = indptr[i]
        for p in range(first, indptr[i + 1]):
            column = indices[p]
            place = p
            while place > first and indices[order[place - 1]] > column:
                order[place] = order[place - 1]
                place -= 1
            order[place] = p
    return order


@njit(cache=True, nogil=True)
def drop_zeros(data, indices, indptr):
    """Remove stored zeros from sparse rows, in place; returns the number of values left."""
    kept = 0
    first = 0
    for i in range(indptr.size - 1):
        last = indptr[i + 1]
        for k in range(first, last):
            # Without a branch, which the processor would often predict wrongly.
            indices[kept] = indices[k]
            data[kept] = data[k]
            kept += data[k] != 0
        first = last
        indptr[i + 1] = kept
    return kept


@njit(cache=True, nogil=True)
def write_dense_rows(data, indices, indptr, zero_row, out):
    """Write sparse rows into `out`, shape (n_rows, n_features), with `zero_row` elsewhere."""
    for i in range(indptr.size - 1):
        row = out[i]
        for j in range(row.size):  # not row[:] = zero_row, which takes three times as long
            row[j] = zero_row[j]
        for k in range(indptr[i], indptr[i + 1]):
            row[indices[k]] = data[k]


@njit(cache=True, nogil=True)
def hash_rows(bits, columns, indptr, out):
    """out[i] = hash, uint64, of the stored values and columns of row i.

    `bits`, uint32, are those of the values, ``bits[indptr[i]:indptr[i + 1]]`` of row i; `columns`
    is empty for dense rows.
    """
    for i in range(out.size):
        value = _HASH_START
        for p in range(indptr[i], indptr[i + 1]):
            value = (value ^ np.uint64(bits[p])) * _HASH_PRIME
            if columns.size > 0:
                value = (value ^ np.uint64(columns[p])) * _HASH_PRIME
            value ^= value >> _HASH_SHIFT
        out[i] = value


@njit(cache=True, nogil=True)
def add_dense(rows, sums, squares):
    """Add values and squared values of each column of `rows` to `sums` and `squares`, in place."""
    for i in range(rows.shape[0]):
        _add_row(rows[i], sums, squares)


@njit(cache=True, nogil=True)
def _add_row(row, sums, squares):
    for j in range(row.size):
        value = np.float64(row[j])
        sums[j] += value
        squares[j] += value * value


@njit(cache=True, nogil=True)
def add_sparse(data, indices, sums, squares):
    """As `add_dense`, for stored values and their columns."""
    for k in range(data.size):
        column = _U64(indices[k])  # a signed index would be tested for being negative
        value = np.float64(data[k])
        sums[column] += value
        squares[column] += value * value


@njit(cache=True, nogil=True)
def scale_stored(values, columns, offset, factor, out):
    """out[k] = (values[k] - offset) * factor of its column, in float64 and rounded once."""
    for k in range(values.size):
        column = columns[k]
        out[k] = np.float32((np.float64(values[k]) - offset[column]) * factor[column])


@njit(cache=True, nogil=True, inline="always")
def _place(bits, table):
    """Place of a value in a table of 2**b places."""
    return ((_U64(bits) * _LOOKUP_FACTOR) >> _U64(40)) & _U64(table.size - 1)


@njit(cache=True, nogil=True)
def look_up(values, table, images, missing):
    """Replace values by their images, all as bits in uint64, in place, as far as `table` has them.

    `table` and `images`, of 2**b places, hold some values at their `_place`, and their images; 0
    elsewhere, whose image is 0. Fills `missing` with the places of the other values, and returns
    their number.
    """
    n_missing = 0
    for k in range(values.size):
        place = _place(values[k], table)
        if table[place] == values[k]:
            values[k] = images[place]
        else:
            missing[n_missing] = k
            n_missing += 1
    return n_missing


@njit(cache=True, nogil=True)
def remember(values, logs, table, images):
    """Put values and their images, all as bits, into a table for `look_up`."""
    for k in range(values.size):
        place = _place(values[k], table)
        table[place] = values[k]
        images[place] = logs[k]
