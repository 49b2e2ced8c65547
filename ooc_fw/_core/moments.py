"""Compiled ranges and moments of columns: sums of twice the precision, whatever their order.

Sums are pairs of float64, high and low part ("double-double": Dekker, 1971, "A floating-point
technique for extending the available precision"), good to some 100 bits. Rounded to float64 at the
end, they are the same for any order of the rows and any cut into blocks, except where the true sum
lies within 2**-100 or so of the middle between two float64; `Scaling.same_as` allows for that.
"""

from __future__ import annotations

import math

import numpy as np

from ooc_fw._core.loading import njit

# Fields of the record of a column; a range has the first three only.
COUNT = 0
MINIMUM = 1
MAXIMUM = 2
RANGE_SIZE = 3
SHIFT = 3  # first value: sums of differences from it do not cancel
SUM = 4  # of x - shift, and its low part
SQUARES = 6  # of (x - shift)**2, and its low part
RECORD_SIZE = 8

_SPLITTER = 2.0**27 + 1.0


@njit(cache=True, nogil=True)
def two_sum(a, b):
    """``a + b`` exactly, as a rounded sum and the rest."""
    high = a + b
    back = high - a
    return high, (a - (high - back)) + (b - back)


@njit(cache=True, nogil=True)
def two_product(a, b):
    """``a * b`` exactly, as a rounded product and the rest; sizes below 1e290."""
    high = a * b
    part = _SPLITTER * a
    a_high = part - (part - a)
    a_low = a - a_high
    part = _SPLITTER * b
    b_high = part - (part - b)
    b_low = b - b_high
    return high, ((a_high * b_high - high) + a_high * b_low + a_low * b_high) + a_low * b_low


@njit(cache=True, nogil=True)
def _plus(a, a_low, b, b_low):
    high, rest = two_sum(a, b)
    return two_sum(high, rest + (a_low + b_low))


@njit(cache=True, nogil=True)
def _times(a, a_low, b, b_low):
    high, rest = two_product(a, b)
    return two_sum(high, rest + (a * b_low + a_low * b))


@njit(cache=True, nogil=True)
def _over(a, a_low, number):
    high = a / number
    back, rest = two_product(high, number)
    return two_sum(high, (((a - back) - rest) + a_low) / number)


@njit(cache=True, nogil=True)
def _add_to(record, field, value, low):
    record[field], record[field + 1] = _plus(record[field], record[field + 1], value, low)


@njit(cache=True, nogil=True)
def _note(record, value):
    """Add a value to the range of a column."""
    if record[COUNT] == 0:
        record[MINIMUM] = value
        record[MAXIMUM] = value
    record[COUNT] += 1
    record[MINIMUM] = min(record[MINIMUM], value)
    record[MAXIMUM] = max(record[MAXIMUM], value)


@njit(cache=True, nogil=True)
def _note_with_moments(record, value):
    """Add a value to the range and the sums of a column."""
    if record[COUNT] == 0:
        record[SHIFT] = value
    _note(record, value)
    difference, low = two_sum(value, -record[SHIFT])
    _add_to(record, SUM, difference, low)
    square, rest = two_product(difference, difference)
    _add_to(record, SQUARES, square, rest + 2 * difference * low)


@njit(cache=True, nogil=True)
def accumulate_stored(data, indices, records):
    """Add stored values, float32 or float64, to the records of their columns, in place.

    `records`, shape (n_features, RANGE_SIZE or RECORD_SIZE), are zeros for columns without values
    so far; narrow ones have no sums.
    """
    if records.shape[1] == RANGE_SIZE:
        for k in range(data.size):
            _note(records[indices[k]], np.float64(data[k]))
    else:
        for k in range(data.size):
            _note_with_moments(records[indices[k]], np.float64(data[k]))


@njit(cache=True, nogil=True)
def accumulate_dense(rows, records):
    """Add all values of dense rows, zeros too, to the records of their columns, in place."""
    moments = records.shape[1] == RECORD_SIZE
    for i in range(rows.shape[0]):
        for j in range(rows.shape[1]):
            if moments:
                _note_with_moments(records[j], np.float64(rows[i, j]))
            else:
                _note(records[j], np.float64(rows[i, j]))


@njit(cache=True, nogil=True)
def merge_records(records, others):
    """Add the records of other rows, of the same shape, in place."""
    for j in range(others.shape[0]):
        own, other = records[j], others[j]
        if other[COUNT] == 0:
            continue
        if own[COUNT] == 0:
            for field in range(own.size):  # compiled ten times faster than own[:] = other
                own[field] = other[field]
            continue
        if own.size == RECORD_SIZE:
            # sum (x - s)   = sum (x - t) + n (t - s)
            # sum (x - s)^2 = sum (x - t)^2 + (t - s) (2 sum (x - t) + n (t - s))
            away, away_low = two_sum(other[SHIFT], -own[SHIFT])
            moved, moved_low = _times(away, away_low, other[COUNT], 0.0)
            inner, inner_low = _plus(2 * other[SUM], 2 * other[SUM + 1], moved, moved_low)
            more, more_low = _times(away, away_low, inner, inner_low)
            _add_to(own, SUM, other[SUM], other[SUM + 1])
            _add_to(own, SUM, moved, moved_low)
            _add_to(own, SQUARES, other[SQUARES], other[SQUARES + 1])
            _add_to(own, SQUARES, more, more_low)
        own[COUNT] += other[COUNT]
        own[MINIMUM] = min(own[MINIMUM], other[MINIMUM])
        own[MAXIMUM] = max(own[MAXIMUM], other[MAXIMUM])


@njit(cache=True, nogil=True)
def mean_and_deviation(records, n_rows, mean, deviation):
    """Fill `mean` and (population) standard `deviation` of each column, shape (n_features,).

    `n_rows` is the number of all rows; those without a stored value hold a zero.
    """
    for j in range(records.shape[0]):
        record = records[j]
        shift, n_zeros = record[SHIFT], n_rows - record[COUNT]
        # Each zero is a value 0 - shift.
        zeros, zeros_low = two_product(-shift, n_zeros)
        total, total_low = _plus(record[SUM], record[SUM + 1], zeros, zeros_low)
        more, more_low = _times(zeros, zeros_low, -shift, 0.0)
        squares, squares_low = _plus(record[SQUARES], record[SQUARES + 1], more, more_low)
        away, away_low = _over(total, total_low, np.float64(n_rows))
        mean[j] = _plus(shift, 0.0, away, away_low)[0]
        # The squares about the shift exceed those about the mean by n (mean - shift)^2.
        lost, lost_low = _times(total, total_low, away, away_low)
        spread = _plus(squares, squares_low, -lost, -lost_low)[0]
        deviation[j] = math.sqrt(max(spread, 0.0) / n_rows)
