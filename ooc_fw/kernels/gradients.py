"""Gradients of decision functions with respect to the row, in float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ooc_fw._core.products import add_laplacian_gradients
from ooc_fw.data.rows import CSRRows, Float64Array, Rows
from ooc_fw.kernels.functions import Kernel

_BLOCK_BYTES = 16 << 20  # kernel values or gradients of the rows in one block


class Gradients:
    """Gradients with respect to x of the functions h_f(x) = sum_j weights[f, j] k(x, z_j).

    Each kernel value has a gradient u z + v x, so that the sums are matrix products. The slope of a
    Laplacian kernel jumps at every vertex, and derivatives would follow the jumps. Therefore a
    compiled loop takes differences over `steps` to either side: half of the standard deviation of
    a column over the vertices, and at most 1 / gamma.
    """

    def __init__(self, kernel: Kernel, vertices: Rows, weights: Float64Array) -> None:
        self._kernel, self.weights = kernel, weights
        if kernel.uses_distance and not isinstance(vertices, CSRRows):
            vertices = CSRRows.from_dense(vertices)
        self._z, self._center = in_float64(vertices), 0.0
        if kernel.shift_invariant and not isinstance(vertices, CSRRows):
            self._center = self._z.mean(axis=0)  # distances lose fewer digits near 0
            self._z = self._z - self._center
        if kernel.uses_distance:
            means, squares = (
                np.asarray(a.mean(axis=0)).ravel() for a in (self._z, self._z.power(2))
            )
            deviations = np.sqrt(np.maximum(squares - means * means, 0))
            deviations[deviations <= 1e-6 * np.sqrt(squares)] = 0  # which may be rounding
            self.steps = np.minimum(deviations / 2, 1 / kernel.gamma)
        self._norms = np.asarray((self._z * self._z).sum(axis=1)).reshape(-1)

    def __call__(self, rows: Rows) -> Iterator[Float64Array]:
        """Yield the gradients for block after block of rows: (n_functions, n, n_features)."""
        most = max(self.weights.shape[1], len(self.weights) * rows.shape[1])
        step = max(1, _BLOCK_BYTES // (8 * most))
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            dense = part.toarray() if isinstance(part, CSRRows) else part
            x, z = dense.astype(np.float64) - self._center, self._z
            out = np.zeros((len(self.weights), *x.shape))
            if self._kernel.uses_distance:
                arrays = z.data, z.indices, z.indptr
                gamma = self._kernel.gamma
                add_laplacian_gradients(x, arrays, self.steps, gamma, self.weights, out)
            else:
                u, v = self._slopes(np.asarray(x @ z.T), (x * x).sum(axis=1, keepdims=True))
                for gradients, weights in zip(out, self.weights, strict=True):
                    gradients[...] = (u * weights) @ z + (v @ weights)[:, None] * x
            yield out

    def _slopes(self, products: Float64Array, x_norms: Float64Array) -> tuple[Any, Float64Array]:
        """Factors u and v in the gradient u z + v x of k(x, z), shape (n, m)."""
        kernel, both, zeros = self._kernel, x_norms + self._norms, np.zeros_like(products)
        if kernel.name == "rbf":
            values = np.exp(-kernel.gamma * np.maximum(both - 2 * products, 0))
            return 2 * kernel.gamma * values, -2 * kernel.gamma * values
        if kernel.name == "linear":
            return 1.0, zeros
        if kernel.name == "poly":
            base = kernel.gamma * products + kernel.coef0
            return kernel.degree * kernel.gamma * base ** (kernel.degree - 1), zeros
        assert kernel.name == "tanimoto"
        divisors = np.where(both > 0, both - products, 1.0) ** 2
        return both / divisors, -2 * products / divisors


def in_float64(rows: Rows) -> Any:
    """Rows as an array of float64, or as a `scipy.sparse.csr_array`."""
    if not isinstance(rows, CSRRows):
        return np.asarray(rows, dtype=np.float64)
    from scipy.sparse import csr_array

    return csr_array((rows.data.astype(np.float64), rows.indices, rows.indptr), shape=rows.shape)
