"""The answers to compare with: kernels from their definition, the exact optimum, exact gaps.

Owns slow and obviously right code for a few hundred rows. Everything is computed from plain arrays,
in extended precision where rounding would blur the comparison, and nothing of the solver, the
engine or the compiled loops takes part.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_fw.data.rows import CSRRows, Float32Array, Float64Array, Int8Array, Int64Array, Rows
from ooc_fw.data.sources import ArraySource, CSRSource, RowSource
from ooc_fw.kernels.functions import Kernel

Extended = np.longdouble
"""Widest float of the machine: 64 bits of mantissa on x86, at least those of float64 elsewhere."""

ExtendedArray = npt.NDArray[np.longdouble]


def _differences(X: ExtendedArray, Z: ExtendedArray) -> ExtendedArray:
    return X[:, None, :] - Z[None, :, :]


def _rbf(kernel: Kernel, X: ExtendedArray, Z: ExtendedArray) -> ExtendedArray:
    squares = (_differences(X, Z) ** 2).sum(axis=2)
    return np.asarray(np.exp(-Extended(kernel.gamma) * squares))


def _linear(kernel: Kernel, X: ExtendedArray, Z: ExtendedArray) -> ExtendedArray:
    return np.asarray((X[:, None, :] * Z[None, :, :]).sum(axis=2))


def _polynomial(kernel: Kernel, X: ExtendedArray, Z: ExtendedArray) -> ExtendedArray:
    base = Extended(kernel.gamma) * _linear(kernel, X, Z) + Extended(kernel.coef0)
    return np.asarray(base**kernel.degree)


def _laplacian(kernel: Kernel, X: ExtendedArray, Z: ExtendedArray) -> ExtendedArray:
    distances = np.abs(_differences(X, Z)).sum(axis=2)
    return np.asarray(np.exp(-Extended(kernel.gamma) * distances))


DEFINITIONS: dict[str, Callable[[Kernel, ExtendedArray, ExtendedArray], ExtendedArray]] = {
    "rbf": _rbf,
    "linear": _linear,
    "poly": _polynomial,
    "laplacian": _laplacian,
}
"""Formula of each kernel, as its documentation states it."""


def kernel_values(kernel: Kernel, X: Float32Array, Z: Float32Array) -> ExtendedArray:
    """k(x_i, z_j) for all pairs, shape (n, m); O(n m n_features) memory."""
    return DEFINITIONS[kernel.name](kernel, X.astype(Extended), Z.astype(Extended))


def exact_sum(terms: Float64Array) -> np.longdouble:
    """Sum without any rounding but the last one."""
    first = math.fsum(terms)
    return Extended(first) + Extended(math.fsum([*terms, -first]))


@dataclass(frozen=True)
class Optimum:
    """Weights of shape (n,) that minimise f = 1/2 alpha' Q alpha on the simplex, and min f."""

    alpha: Float64Array
    objective: float


def minimise(Q: npt.NDArray[Any]) -> Optimum:
    """Exact minimum of 1/2 alpha' Q alpha over the unit simplex, Q positive definite.

    Notes
    -----
    With u = alpha / rho the optimality conditions are those of min 1/2 u'Qu - 1'u over u >= 0: on
    the support (Qu)_i = 1, elsewhere (Qu)_i >= 1. The active-set method of Lawson and Hanson (1974,
    Solving Least Squares Problems, algorithm NNLS) solves that in finitely many Cholesky-sized
    steps, to the accuracy of a linear system. Then sum u = 1 / rho.
    """
    Q = np.asarray(Q, dtype=np.float64)
    u = np.zeros(len(Q))
    free = np.zeros(len(Q), dtype=bool)
    while True:
        missing = np.where(free, -np.inf, 1 - Q @ u)
        i = int(np.argmax(missing))
        if missing[i] <= 1e-12:
            return Optimum(u / u.sum(), float(0.5 / u.sum()))
        free[i] = True
        _solve_free(Q, u, free)


def _solve_free(Q: Float64Array, u: Float64Array, free: npt.NDArray[np.bool_]) -> None:
    """Solve Qu = 1 on the free coordinates; those that would turn negative are set free no more."""
    while True:
        places = np.flatnonzero(free)
        target = np.linalg.solve(Q[np.ix_(places, places)], np.ones(len(places)))
        down = target <= 0
        if not down.any():
            u[places] = target
            return
        now = u[places]
        ratios = np.full(len(places), np.inf)
        ratios[down] = now[down] / (now[down] - target[down])
        step = ratios.min()
        u[places] = now + step * (target - now)
        leaving = places[ratios == step]
        u[leaving] = 0
        free[leaving] = False


@dataclass(frozen=True)
class Truth:
    """Gradient of every row under some weights, and what follows from it, in extended precision."""

    gradient: ExtendedArray
    alpha: ExtendedArray  # (n_rows,), zeros included

    @property
    def rho(self) -> Any:
        """The number alpha' g."""
        return self.alpha @ self.gradient

    @property
    def gap(self) -> Any:
        """Relative duality gap."""
        return max(Extended(0), (self.rho - self.gradient.min()) / self.rho)

    @property
    def pair_gap(self) -> Any:
        """(max g over the support - min g) / rho."""
        return (self.gradient[self.alpha > 0].max() - self.gradient.min()) / self.rho

    def violators(self, tol: float) -> npt.NDArray[np.intp]:
        """Rows with g < rho (1 - tol)."""
        return np.flatnonzero(self.gradient < self.rho * (1 - Extended(tol)))


@dataclass(frozen=True)
class SmallProblem:
    """A problem small enough for brute force.

    Parameters
    ----------
    kernel : Kernel
        Kernel.
    X : ndarray of float32, shape (n_rows, n_features)
        Rows.
    y : ndarray of int8, shape (n_rows,)
        +1 or -1.
    C : float, or ndarray of float64 of shape (n_rows,)
        Penalty, of all rows or of each.
    """

    kernel: Kernel
    X: Float32Array
    y: Int8Array
    C: float | Float64Array

    @cached_property
    def optimum(self) -> Optimum:
        """Exact solution."""
        return minimise(self.dual_matrix)

    @property
    def _penalties(self) -> ExtendedArray:
        """C of each row."""
        return np.broadcast_to(self.C, len(self.y)).astype(Extended)

    @cached_property
    def dual_matrix(self) -> Float64Array:
        """Q, shape (n_rows, n_rows), rounded once."""
        values = kernel_values(self.kernel, self.X, self.X) + 1
        Q = np.multiply.outer(self.y, self.y) * values + np.diag(1 / self._penalties)
        return Q.astype(np.float64)

    def truth(self, row_ids: Int64Array, alpha: Float64Array) -> Truth:
        """Gradients and gaps of the model with weights `alpha` at the rows `row_ids`."""
        weights = np.zeros(len(self.y), dtype=Extended)
        weights[row_ids] = alpha
        beta = weights * self.y
        # Kernel values may be tiny: adding 1 to each, as in Q, would cost their last digits. So
        # would a plain sum of the bias, whose terms cancel.
        values = kernel_values(self.kernel, self.X, self.X[row_ids])
        sums = values @ beta[row_ids] + exact_sum(alpha * self.y[row_ids])
        return Truth(self.y * sums + weights / self._penalties, weights)

    def rows(self, sparse: bool) -> Rows:
        """All rows, dense or compressed."""
        return to_csr(self.X) if sparse else self.X

    def source(self, sparse: bool = False) -> RowSource:
        """All rows as an in-memory source."""
        if not sparse:
            return ArraySource(self.X, self.y)
        rows = to_csr(self.X)
        matrix = SimpleNamespace(
            data=rows.data, indices=rows.indices, indptr=rows.indptr, shape=rows.shape
        )
        return CSRSource(matrix, self.y)


def to_csr(X: Float32Array) -> CSRRows:
    """Compressed form of dense rows, made row by row."""
    columns = [np.flatnonzero(row) for row in X]
    return CSRRows(
        data=np.concatenate([row[found] for row, found in zip(X, columns, strict=True)]),
        indices=np.concatenate(columns).astype(np.int32),
        indptr=np.cumsum([0] + [len(found) for found in columns]).astype(np.int64),
        n_features=X.shape[1],
    )


def make_problem(
    kernel: Kernel,
    *,
    n_rows: int = 100,
    n_features: int = 5,
    C: float = 1.0,
    density: float = 1.0,
    overlap: float = 1.0,
    seed: int = 0,
) -> SmallProblem:
    """Two normal clouds, `1 / overlap` apart in each column; every third row is positive.

    Parameters
    ----------
    kernel : Kernel
        Kernel; `gamma` is divided by the number of features.
    n_rows, n_features : int
        Shape.
    C : float
        Penalty.
    density : float
        Share of values that are not 0.
    overlap : float
        Large for clouds that cannot be told apart.
    seed : int
        Seed of the rows.
    """
    rng = np.random.default_rng(seed)
    y = np.where(np.arange(n_rows) % 3 == 0, 1, -1).astype(np.int8)
    X = rng.normal(size=(n_rows, n_features)) + y[:, None] / (2 * overlap)
    X *= rng.random(X.shape) < density
    order = rng.permutation(n_rows)
    parameters = kernel.to_dict() | {"gamma": kernel.gamma / n_features}
    del parameters["name"]
    return SmallProblem(type(kernel)(**parameters), X[order].astype(np.float32), y[order], C)
