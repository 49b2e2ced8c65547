"""Kernel values from differences of stored values, for rows that products leave open.

A distance from products loses the digits that its terms share. The difference of two stored values
errs by one unit of itself, however large both are; sparse rows are merged by scipy.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ooc_fw.data.rows import CSRRows, Float64Array, Rows
from ooc_fw.kernels.functions import FLOAT64_DIFFERENCES, FLOAT64_UNIT, Kernel, Sizes

_BLOCK_BYTES = 8 << 20  # of differences that are held at once


def in_float64(rows: Rows) -> Any:
    """Rows as an array of float64, or as a `scipy.sparse.csr_array`."""
    if not isinstance(rows, CSRRows):
        return np.asarray(rows, dtype=np.float64)
    from scipy.sparse import csr_array

    return csr_array((rows.data.astype(np.float64), rows.indices, rows.indptr), shape=rows.shape)


def decide_by_differences(
    kernel: Kernel, rows: Rows, vertices: Rows, betas: Any
) -> tuple[Float64Array, Float64Array]:
    """Sums of kernel values with `betas`, (n_sums, n_vertices), of a shift-invariant kernel.

    The sums have the shape (n_rows, n_sums). With them comes a bound on the error of each row's
    sums, for weights of absolute sum 1, shape (n_rows,).
    """
    if isinstance(rows, CSRRows) and not isinstance(vertices, CSRRows):
        rows = rows.toarray()
    elif isinstance(vertices, CSRRows) and not isinstance(rows, CSRRows):
        rows = CSRRows.from_dense(rows)
    x, z = in_float64(rows), in_float64(vertices)
    widest = x.shape[1]
    if isinstance(rows, CSRRows) and isinstance(vertices, CSRRows):
        longest = [int(np.diff(part.indptr).max(initial=0)) for part in (rows, vertices)]
        widest = min(widest, sum(longest))
    step = max(1, _BLOCK_BYTES // (16 * max(1, widest)))
    values = np.empty((len(vertices), len(rows)))
    for k in range(len(rows)):
        for start in range(0, len(vertices), step):
            part = slice(start, start + step)
            values[part, k] = np.exp(-kernel.gamma * _distances(kernel, x[k : k + 1], z[part]))
    norms = [kernel.norms(part) for part in (rows, vertices)]
    n_terms = np.full(len(rows), widest)
    sizes = Sizes(FLOAT64_DIFFERENCES, norms[0], float(norms[1].max(initial=0)), n_terms)
    bound = kernel.error_bound(sizes) + len(vertices) * FLOAT64_UNIT
    return np.asarray((betas @ values).T), bound


def _distances(kernel: Kernel, row: Any, vertices: Any) -> Float64Array:
    """Squared or L1 distances between one row, shape (1, n_features), and vertices."""
    if isinstance(vertices, np.ndarray):
        apart = vertices - row
        sizes = np.abs(apart) if kernel.uses_distance else np.square(apart)
        return np.asarray(sizes.sum(axis=1))
    from scipy.sparse import csr_array

    m = vertices.shape[0]
    starts = np.arange(m + 1) * row.nnz
    repeated = csr_array((np.tile(row.data, m), np.tile(row.indices, m), starts), vertices.shape)
    apart = vertices - repeated
    apart.data = np.abs(apart.data) if kernel.uses_distance else np.square(apart.data)
    return np.asarray(apart.sum(axis=1)).reshape(-1)
