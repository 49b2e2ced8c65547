"""Compiled column sums of row blocks, in float64.

Sums go row by row within each column, so that their bits do not depend on how the rows were cut
into blocks, nor on dense or sparse storage: the zeros that sparse rows leave out would add nothing.
That order still vectorises, along the columns, and needs no liberties with floating point.
"""

from __future__ import annotations

import numpy as np

from ooc_fw._core.loading import njit


@njit(cache=True, nogil=True)
def add_dense(rows, sums, squares, minimum, maximum):
    """Add the rows of a dense block to the column sums.

    Parameters
    ----------
    rows : ndarray of float32, shape (n_rows, n_features)
        Finite values, C-contiguous.
    sums, squares : ndarray of float64, shape (n_features,)
        Sum of the values and of their squares; modified in place.
    minimum, maximum : ndarray of float32, shape (n_features,)
        Range of the values; modified in place.

    Notes
    -----
    O(n_rows n_features) time, one pass over the block.
    """
    for i in range(rows.shape[0]):
        _add_row(rows[i], sums, squares, minimum, maximum)


@njit(cache=True, nogil=True)
def _add_row(row, sums, squares, minimum, maximum):
    for j in range(row.size):
        value = np.float64(row[j])
        sums[j] += value
        squares[j] += value * value
        minimum[j] = min(minimum[j], row[j])
        maximum[j] = max(maximum[j], row[j])


@njit(cache=True, nogil=True)
def add_sparse(data, indices, sums, squares, minimum, maximum, counts):
    """Add the stored values of sparse rows to the column sums.

    Parameters
    ----------
    data : ndarray of float32, shape (n_stored,)
        Finite values, row after row.
    indices : ndarray of int32, shape (n_stored,)
        Column of each value.
    sums, squares, minimum, maximum
        As for `add_dense`; the range is that of the stored values alone.
    counts : ndarray of int64, shape (n_features,)
        Stored values of each column; modified in place.

    Notes
    -----
    O(n_stored) time.
    """
    for k in range(data.size):
        j = indices[k]
        value = np.float64(data[k])
        sums[j] += value
        squares[j] += value * value
        minimum[j] = min(minimum[j], data[k])
        maximum[j] = max(maximum[j], data[k])
        counts[j] += 1


@njit(cache=True, nogil=True)
def largest_square_norm(values, indptr):
    """Return the largest squared norm of consecutive rows.

    Parameters
    ----------
    values : ndarray of float32, shape (n_stored,)
        Finite values, row after row.
    indptr : ndarray of int64, shape (n_rows + 1,)
        Where each row begins.

    Notes
    -----
    O(n_stored) time. Each norm is summed in float64 from the first column to the last, so that left
    out zeros change no bit.
    """
    largest = 0.0
    for i in range(indptr.size - 1):
        norm = 0.0
        for k in range(indptr[i], indptr[i + 1]):
            norm += np.float64(values[k]) * np.float64(values[k])
        largest = max(largest, norm)
    return largest
