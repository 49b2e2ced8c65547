"""Compiled loops over blocks of rows: copies, hashes, and sums and moments of columns.

The stored values of rows follow each other. For dense rows, the array of columns is empty.
"""

from __future__ import annotations

import numpy as np

from ooc_fw._core.loading import njit

# Fields of the record of a column; a range has only the first three.
COUNT = 0  # number of values other than zero
MINIMUM = 1
MAXIMUM = 2
RANGE_SIZE = 3
SHIFT = 3  # first value, which is subtracted from all values to avoid cancellation
MEAN = 4  # of x - shift
SQUARES = 5  # sum of the squared differences from the mean
RECORD_SIZE = 6

_U64 = np.uint64
_HASH_PRIME = _U64(0x100000001B3)
_HASH_START = _U64(0xCBF29CE484222325)


@njit(cache=True, nogil=True)
def copy_rows(data, indices, indptr, places, out_data, out_indices, out_indptr):
    """Copy the sparse rows at `places` one after the other; `out_indptr` has their starts."""
    for k in range(places.size):
        start = np.uint64(indptr[places[k]])
        target = np.uint64(out_indptr[k])
        for p in range(np.uint64(out_indptr[k + 1]) - target):
            out_data[target + p] = data[start + p]
            out_indices[target + p] = indices[start + p]


@njit(cache=True, nogil=True)
def hash_rows(bits, columns, indptr, out):
    """out[i] = hash, uint64, of the stored values and columns of row i.

    ``bits[indptr[i]:indptr[i + 1]]``, uint32, are the bits of the values of row i. `columns` is
    empty for dense rows.
    """
    for i in range(out.size):
        value = _HASH_START
        for p in range(indptr[i], indptr[i + 1]):
            value = (value ^ np.uint64(bits[p])) * _HASH_PRIME
            if columns.size > 0:
                value = (value ^ np.uint64(columns[p])) * _HASH_PRIME
            value ^= value >> _U64(29)
        out[i] = value


@njit(cache=True, nogil=True)
def _next_column(columns, k, column, n_columns):
    """Column of value k; in dense rows, without `columns`, it follows the previous `column`."""
    if columns.size > 0:
        return np.int64(columns[k])
    return column + 1 if column + 1 < n_columns else 0


@njit(cache=True, nogil=True)
def add_values(data, columns, sums, squares):
    """Add stored values of rows, and their squares, to `sums` and `squares` of their columns."""
    column = -1
    for k in range(data.size):
        column = _next_column(columns, k, column, sums.size)
        value = np.float64(data[k])
        sums[_U64(column)] += value  # a signed index would be compared with 0
        squares[_U64(column)] += value * value


@njit(cache=True, nogil=True)
def scale_rows(data, columns, indptr, offset, factor, normalize, out):
    """out[k] = (data[k] - offset) * factor of the column of value k, rounded once, as float32.

    With `normalize`, each row is divided by its Euclidean norm before it is rounded; rows of zeros
    stay as they are. The squares are added one by one in float64, so that dense and sparse rows
    have the same bits. Returns whether all norms are finite; if not, `out` is incomplete.
    """
    for i in range(indptr.size - 1):
        row = data[indptr[i] : indptr[i + 1]]
        scaled = out[indptr[i] : indptr[i + 1]]
        own = columns[indptr[i] : indptr[i + 1]]  # empty for dense rows
        norm = 1.0
        if normalize:
            norm = np.sqrt(_squared_norm(row, own, offset, factor))
            if not norm < np.inf:
                return False
            if norm == 0.0:
                norm = 1.0
        if own.size > 0:
            for p in range(row.size):
                j = own[p]
                scaled[p] = np.float32((np.float64(row[p]) - offset[j]) * factor[j] / norm)
        else:
            for p in range(row.size):
                scaled[p] = np.float32((np.float64(row[p]) - offset[p]) * factor[p] / norm)
    return True


@njit(cache=True, nogil=True)
def _squared_norm(row, columns, offset, factor):
    """Squared norm of a scaled row."""
    total = 0.0
    for p in range(row.size):
        j = np.int64(columns[p]) if columns.size > 0 else p
        value = (np.float64(row[p]) - offset[j]) * factor[j]
        total += value * value
    return total


@njit(cache=True, nogil=True)
def _note(record, value):
    """Add a value to the record of a column; zeros are not counted."""
    if value == 0:
        return
    if record[COUNT] == 0:
        record[MINIMUM] = record[MAXIMUM] = value
    record[COUNT] += 1
    record[MINIMUM] = min(record[MINIMUM], value)
    record[MAXIMUM] = max(record[MAXIMUM], value)
    if record.size == RANGE_SIZE:
        return
    if record[COUNT] == 1:
        record[SHIFT] = value
    away = value - record[SHIFT]
    before = away - record[MEAN]
    record[MEAN] += before / record[COUNT]
    record[SQUARES] += before * (away - record[MEAN])


@njit(cache=True, nogil=True)
def accumulate(data, columns, records):
    """Add stored values of rows, float32 or float64, to the records of their columns, in place.

    `records` have the shape (n_features, RANGE_SIZE) or, with moments, (n_features, RECORD_SIZE).
    The record of a column without values is all zeros.
    """
    column = -1
    for k in range(data.size):
        column = _next_column(columns, k, column, records.shape[0])
        _note(records[column], np.float64(data[k]))


@njit(cache=True, nogil=True)
def merge_records(records, others):
    """Add the records of other rows, of the same shape, in place."""
    for j in range(others.shape[0]):
        record, other = records[j], others[j]
        n, m = record[COUNT], other[COUNT]
        if m == 0:
            continue
        if n == 0:
            for field in range(record.size):  # record[:] = other would compile ten times slower
                record[field] = other[field]
            continue
        record[COUNT] = n + m
        record[MINIMUM] = min(record[MINIMUM], other[MINIMUM])
        record[MAXIMUM] = max(record[MAXIMUM], other[MAXIMUM])
        if record.size == RECORD_SIZE:
            away = (other[SHIFT] - record[SHIFT]) + (other[MEAN] - record[MEAN])
            record[MEAN] += away * (m / (n + m))
            record[SQUARES] += other[SQUARES] + away * away * (n * m / (n + m))
