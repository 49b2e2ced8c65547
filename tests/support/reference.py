"""References to compare with: kernels by definition, the exact optimum, exact gaps.

The code is slow and obviously right, for a few hundred rows in plain arrays. It uses neither the
solver nor the kernel engine nor compiled loops, and extended precision where rounding matters.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_fw.data.rows import CSRRows, Float32Array, Float64Array, Int8Array, Int64Array, Rows
from ooc_fw.data.sources import ArraySource, CSRSource, RowSource
from ooc_fw.kernels.functions import Kernel

Extended = np.longdouble
"""Widest float of the processor: 64 bits of mantissa on x86, no less than float64 elsewhere."""

ExtendedArray = npt.NDArray[np.longdouble]

Definition = Callable[[Kernel, ExtendedArray, ExtendedArray], ExtendedArray]
"""From a kernel and two rows, or arrays of rows along the last axis, to kernel values."""


def _ratio(numerator: ExtendedArray, denominator: ExtendedArray) -> ExtendedArray:
    """Quotient, and 0 where both are 0."""
    return np.asarray(numerator / np.where(denominator == 0, 1, denominator))


DEFINITIONS: dict[str, Definition] = {
    "rbf": lambda kernel, x, z: np.exp(-Extended(kernel.gamma) * ((x - z) ** 2).sum(axis=-1)),
    "linear": lambda kernel, x, z: (x * z).sum(axis=-1),
    "poly": lambda kernel, x, z: (
        (Extended(kernel.gamma) * (x * z).sum(axis=-1) + Extended(kernel.coef0)) ** kernel.degree
    ),
    "tanimoto": lambda kernel, x, z: _ratio(
        (x * z).sum(axis=-1), (x * x + z * z - x * z).sum(axis=-1)
    ),
    "laplacian": lambda kernel, x, z: np.exp(-Extended(kernel.gamma) * np.abs(x - z).sum(axis=-1)),
}
"""Formula of each kernel, as its documentation states it."""


def kernel_values(kernel: Kernel, X: Float32Array, Z: Float32Array) -> ExtendedArray:
    """k(x_i, z_j) for all pairs, shape (n, m); O(n m n_features) memory."""
    x, z = X.astype(Extended)[:, None, :], Z.astype(Extended)[None, :, :]
    return DEFINITIONS[kernel.name](kernel, x, z)


def exact_sum(terms: Float64Array) -> np.longdouble:
    """Sum that is rounded only once."""
    first = math.fsum(terms)
    return Extended(first) + Extended(math.fsum([*terms, -first]))


@dataclass(frozen=True)
class Optimum:
    """Weights, shape (n,), that minimise f = 1/2 alpha' Q alpha on the simplex, and min f."""

    alpha: Float64Array
    objective: float


def minimise(Q: npt.NDArray[Any]) -> Optimum:
    """Exact minimum of 1/2 alpha' Q alpha over the unit simplex, Q positive definite.

    With u = alpha / rho the problem is min 1/2 u'Qu - 1'u over u >= 0: non-negative least squares
    in the Cholesky factor of Q. A linear system on its support gives the last digits, and
    sum u = 1 / rho.
    """
    from scipy.optimize import nnls

    Q = np.asarray(Q, dtype=np.float64)
    L = np.linalg.cholesky(Q)
    u, _ = nnls(L.T, np.linalg.solve(L, np.ones(len(Q))), maxiter=100 * len(Q))
    support = np.flatnonzero(u)
    u[support] = np.linalg.solve(Q[np.ix_(support, support)], np.ones(len(support)))
    return Optimum(u / u.sum(), float(0.5 / u.sum()))


@dataclass(frozen=True)
class Truth:
    """Gradient of every row for some weights, and what follows from it, in extended precision."""

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
    """A problem small enough for brute force, with labels +1 and -1."""

    kernel: Kernel
    X: Float32Array
    y: Int8Array
    C: float | Float64Array  # of all rows, or of each

    @cached_property
    def optimum(self) -> Optimum:
        """Exact solution."""
        return minimise(self.dual_matrix)

    @property
    def _penalties(self) -> ExtendedArray:
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
        # Kernel values may be tiny, and lose digits when 1 is added to each, as in Q. The terms of
        # the bias cancel, so that a plain sum would lose digits, too.
        values = kernel_values(self.kernel, self.X, self.X[row_ids])
        sums = values @ beta[row_ids] + exact_sum(alpha * self.y[row_ids])
        return Truth(self.y * sums + weights / self._penalties, weights)

    def rows(self, sparse: bool) -> Rows:
        """All rows, dense or compressed."""
        return to_csr(self.X) if sparse else self.X

    def source(self, sparse: bool = False) -> RowSource:
        """All rows as an in-memory source."""
        from scipy.sparse import csr_array

        return CSRSource(csr_array(self.X), self.y) if sparse else ArraySource(self.X, self.y)


def to_csr(X: Float32Array) -> CSRRows:
    """Compressed form of dense rows, made by SciPy."""
    from scipy.sparse import csr_array

    rows = csr_array(X)
    return CSRRows(rows.data, rows.indices, rows.indptr.astype(np.int64), X.shape[1])


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

    `gamma` is divided by the number of features, and `density` is the share of nonzero values.
    """
    rng = np.random.default_rng(seed)
    y = np.where(np.arange(n_rows) % 3 == 0, 1, -1).astype(np.int8)
    X = rng.normal(size=(n_rows, n_features)) + y[:, None] / (2 * overlap)
    X *= rng.random(X.shape) < density
    order = rng.permutation(n_rows)
    parameters = kernel.to_dict() | {"gamma": kernel.gamma / n_features}
    del parameters["name"]
    return SmallProblem(type(kernel)(**parameters), X[order].astype(np.float32), y[order], C)
