"""The minimum of the problem on the active set by linear systems on its free vertices.

Pairwise steps converge at a rate that depends on the condition of Q; a linear system does not. On
the support of the minimum all gradients are equal. So weights and support are found by solving for
weights of equal gradients, and exchanging vertices until all weights are positive and no vertex
outside has a smaller gradient. The problem is strictly convex, so there is one such support.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ooc_fw.data.rows import Float64Array
from ooc_fw.problem import relative_gap

_PATIENCE = 3  # exchanges of many vertices that may leave as many wrong ones as before

_Places = npt.NDArray[np.intp]
_Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Minimum:
    """Weights on the simplex, their gradient, and the number of linear systems solved."""

    alpha: Float64Array
    grad: Float64Array
    n_systems: int


def minimise(
    matrix: Callable[[_Places], Float64Array],
    gradient: Callable[[Float64Array], Float64Array],
    alpha: Float64Array,
    tol: float,
    max_systems: int,
) -> Minimum:
    """Minimise 1/2 alpha' Q alpha over the simplex, from `alpha`, to a relative gap of `tol`.

    Parameters
    ----------
    matrix : callable
        The part of Q, float64, that belongs to some vertices; may be written to.
    gradient : callable
        Q times a vector of shape (m,).
    alpha : ndarray of float64, shape (m,)
        Weights on the simplex.
    tol : float
        Relative gap that is enough.
    max_systems : int
        Linear systems after which the search ends with the best weights found.

    Returns
    -------
    Minimum
        Its objective is no larger than that of `alpha`, whatever rounding does.

    Notes
    -----
    With u = alpha / rho the conditions are u >= 0, Qu >= 1 and u'(Qu - 1) = 0. Many vertices are
    exchanged at once (block principal pivoting) as long as that leaves fewer wrong ones. Otherwise
    vertices enter one by one and leave where a weight reaches 0 (Lawson and Hanson), which cannot
    cycle.

    References
    ----------
    Portugal, Judice, Vicente (1994), A comparison of block pivoting and interior-point algorithms
    for linear least squares problems with nonnegative variables. Lawson and Hanson (1974), Solving
    Least Squares Problems, algorithm NNLS.
    """
    return _Search(matrix, gradient, alpha, tol, max_systems).run()


class _Search:
    """The best weights so far, and how to find better ones."""

    def __init__(
        self,
        matrix: Callable[[_Places], Float64Array],
        gradient: Callable[[Float64Array], Float64Array],
        alpha: Float64Array,
        tol: float,
        max_systems: int,
    ) -> None:
        self._matrix, self._gradient = matrix, gradient
        self._tol, self._max_systems, self._n_systems = tol, max_systems, 0
        self._alpha, self._grad = alpha.copy(), gradient(alpha)
        self._rho = float(alpha @ self._grad)

    def run(self) -> Minimum:
        """Exchange many vertices at once, then one at a time if need be."""
        try:
            self._exchange_many()
            while not self._done() and self._n_systems < self._max_systems:
                before = self._rho
                self._add_one()
                if not self._rho < before:
                    break  # rounding allows no less
        except np.linalg.LinAlgError:
            pass  # Q is singular but for rounding, and the best weights so far are the result
        return Minimum(self._alpha, self._grad, self._n_systems)

    def _done(self) -> bool:
        return relative_gap(self._rho, float(self._grad.min())) <= self._tol

    def _solve(self, free: _Flags) -> Float64Array:
        """Solve (Qu)_i = 1 at the free vertices, with u_i = 0 at the others."""
        self._n_systems += 1
        places = np.flatnonzero(free)
        block = self._matrix(places)
        scale = 1 / np.sqrt(np.diagonal(block))  # vertices of all sizes count alike
        block *= scale
        block *= scale[:, None]
        u = np.zeros(len(free))
        u[places] = scale * np.linalg.solve(block, scale)
        return u

    def _offer(self, u: Float64Array) -> None:
        """Keep the weights that belong to max(u, 0), if they are better."""
        u = np.maximum(u, 0.0)
        total = u.sum()
        if not 0 < total < np.inf:
            return
        alpha = u / total
        grad = self._gradient(alpha)
        rho = float(alpha @ grad)
        if 0 < rho < self._rho:
            self._alpha, self._grad, self._rho = alpha, grad, rho

    def _exchange_many(self) -> None:
        free = (self._alpha > 0) | (self._grad < self._rho * (1 - self._tol))
        least, patience = len(free) + 1, _PATIENCE
        while patience > 0 and self._n_systems < self._max_systems:
            u = self._solve(free)
            self._offer(u)
            wrong = np.where(free, u <= 0, self._gradient(u) < 1 - self._tol)
            n_wrong = np.count_nonzero(wrong)
            if n_wrong == 0 or self._done():
                return
            patience = _PATIENCE if n_wrong < least else patience - 1
            least = min(least, int(n_wrong))
            free ^= wrong
            if not free.any():
                return

    def _add_one(self) -> None:
        """Free the vertex of least gradient and solve; vertices that turn negative leave."""
        u = self._alpha / self._rho
        free = u > 0
        free[np.argmin(self._grad)] = True
        while self._n_systems < self._max_systems:
            target = self._solve(free)
            down = np.flatnonzero(free & (target <= 0))
            if len(down) == 0:
                self._offer(target)
                return
            ratios = u[down] / np.maximum(u[down] - target[down], np.finfo(np.float64).tiny)
            step = ratios.min()
            u += step * (target - u)
            leaving = down[ratios == step]
            u[leaving], free[leaving] = 0.0, False
        self._offer(u)
