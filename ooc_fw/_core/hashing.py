"""Compiled hashes of rows, by which equal rows of a block are found."""

from __future__ import annotations

import numpy as np

from ooc_fw._core.loading import njit

_PRIME = np.uint64(0x100000001B3)
_START = np.uint64(0xCBF29CE484222325)
_SHIFT = np.uint64(29)


@njit(cache=True, nogil=True)
def hash_rows(bits, columns, indptr, out):
    """out[i] = hash of the stored values and columns of row i; equal rows have equal hashes.

    Parameters
    ----------
    bits : ndarray of uint32, shape (n_stored,)
        Bit patterns of the values.
    columns : ndarray of int32, shape (n_stored,) or (0,)
        Their columns; empty for dense rows.
    indptr : ndarray of int64, shape (n + 1,)
        Row i owns ``bits[indptr[i]:indptr[i + 1]]``.
    out : ndarray of uint64, shape (n,)
        Result.
    """
    for i in range(out.size):
        value = _START
        for p in range(indptr[i], indptr[i + 1]):
            value = (value ^ np.uint64(bits[p])) * _PRIME
            if columns.size > 0:
                value = (value ^ np.uint64(columns[p])) * _PRIME
            value ^= value >> _SHIFT
        out[i] = value
