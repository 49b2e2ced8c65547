"""Compiled column sums of row blocks, in float64.

Each column is summed row by row, so that the bits of the sums depend neither on how the rows were
cut into blocks nor on dense or sparse storage: the zeros that sparse rows leave out add nothing.
"""

from __future__ import annotations

import numpy as np

from ooc_fw._core.loading import njit


@njit(cache=True, nogil=True)
def add_dense(rows, sums, squares):
    """Add the rows of a dense block to the column sums, in place.

    Parameters
    ----------
    rows : ndarray of float32, shape (n_rows, n_features)
        Finite values, C-contiguous.
    sums, squares : ndarray of float64, shape (n_features,)
        Sum of the values and of their squares.
    """
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
    """Add the stored values of sparse rows, and their columns, to the column sums, in place."""
    for k in range(data.size):
        value = np.float64(data[k])
        sums[indices[k]] += value
        squares[indices[k]] += value * value
