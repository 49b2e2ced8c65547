"""Falkon: kernel ridge regression on random centres, by preconditioned conjugate gradients.

The kernel values K of all rows with the centres are stored, and G are those among the centres.
With labels y of 1 and -1, a few iterations solve

    (K'K + G / C) a = K'y

for weights in which the matrix is close to the identity. This is the squared loss in the place of
the squared hinge loss, and there is no bias.

References
----------
Rudi, Carratino and Rosasco (2017), FALKON: An optimal large scale kernel method, algorithm 1.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from scipy.linalg import cholesky, solve_triangular

from bench.solvers.base import Parameters, Problem

_BLOCK = 4_096  # rows for which kernel values are computed at once
_JITTER = 1e-6  # share of the diagonal of G that is added to it


class Falkon:
    """A classifier of two classes; float32 rows and kernel values."""

    def __init__(self, problem: Problem, parameters: Parameters) -> None:
        assert problem.gamma is not None
        self._gamma = problem.gamma
        self._C = problem.C
        self._seed = problem.seed
        self._n_centres = int(parameters["centres"])
        self._iterations = int(parameters["iterations"])

    def fit(self, X: Any, y: Any) -> Self:
        """Draw the centres, store all kernel values, and find the weights."""
        self.classes_ = np.unique(y)
        targets = np.where(y == self.classes_[1], 1.0, -1.0).astype(np.float32)
        chosen = np.random.default_rng(self._seed).permutation(len(X))[: self._n_centres]
        self._centres = X[np.sort(chosen)]
        values = np.empty((len(X), len(self._centres)), dtype=np.float32)
        for start in range(0, len(X), _BLOCK):
            values[start : start + _BLOCK] = self._kernel(X[start : start + _BLOCK])
        among = self._kernel(self._centres.astype(np.float64))
        np.einsum("ii->i", among)[...] += _JITTER
        upper = cholesky(among)
        ridge = 1.0 / self._C
        square = upper @ upper.T * (len(X) / len(among))
        np.einsum("ii->i", square)[...] += ridge
        inner = cholesky(square)

        def weights(b: Any) -> Any:
            return solve_triangular(upper, solve_triangular(inner, b))

        def transposed(u: Any) -> Any:
            return solve_triangular(inner, solve_triangular(upper, u, trans="T"), trans="T")

        def times(b: Any) -> Any:
            a = weights(b)
            products = values @ a.astype(np.float32)
            return transposed((values.T @ products).astype(np.float64) + ridge * (among @ a))

        right = transposed((values.T @ targets).astype(np.float64))
        self._weights = weights(_conjugate_gradients(times, right, self._iterations))
        return self

    def decision_function(self, X: Any) -> Any:
        """Decision values, shape (n_rows,)."""
        a = self._weights.astype(np.float32)
        starts = range(0, len(X), _BLOCK)
        return np.concatenate([self._kernel(X[k : k + _BLOCK]) @ a for k in starts])

    def predict(self, X: Any) -> Any:
        """Classes, shape (n_rows,)."""
        return self.classes_[(self.decision_function(X) > 0).astype(int)]

    def _kernel(self, rows: Any) -> Any:
        """Values of the RBF kernel of some rows with the centres, in the precision of the rows."""
        centres = self._centres.astype(rows.dtype)
        distances = np.square(rows).sum(axis=1)[:, None] + np.square(centres).sum(axis=1)
        distances -= 2 * (rows @ centres.T)
        np.maximum(distances, 0.0, out=distances)
        distances *= -rows.dtype.type(self._gamma)
        return np.exp(distances, out=distances)


def _conjugate_gradients(times: Any, right: Any, iterations: int) -> Any:
    """Solve a system whose positive definite matrix is known by its products."""
    found = np.zeros_like(right)
    residual = right.copy()
    direction = right.copy()
    square = residual @ residual
    for _ in range(iterations):
        product = times(direction)
        step = square / (direction @ product)
        found += step * direction
        residual -= step * product
        before = square
        square = residual @ residual
        direction = residual + (square / before) * direction
    return found
