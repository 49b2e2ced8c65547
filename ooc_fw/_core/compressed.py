"""Rows of compressed matrices, copied one after the other."""

from __future__ import annotations

import numpy as np

from ooc_fw._core.loading import njit


@njit(cache=True, nogil=True)
def copy_rows(data, indices, indptr, places, out_data, out_indices, out_indptr):
    """Copy the rows at `places` below each other; `out_indptr` says where each begins."""
    for k in range(places.size):
        start = np.uint64(indptr[places[k]])
        target = np.uint64(out_indptr[k])
        for p in range(np.uint64(out_indptr[k + 1]) - target):
            out_data[target + p] = data[start + p]
            out_indices[target + p] = indices[start + p]
