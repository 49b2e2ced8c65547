"""The minimum of the problem on the active set by linear systems on its free vertices.

Pairwise steps converge at a rate that depends on the condition of Q; a linear system does not. On
the support of the minimum all gradients are equal. So weights and support are found by solving for
weights of equal gradients, and exchanging vertices until all weights are positive and no vertex
outside has a smaller gradient. The problem is strictly convex, so there is one such support.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ooc_fw.data.rows import Float64Array
from ooc_fw.problem import relative_gap

_PATIENCE = 3  # exchanges of many vertices that may leave as many wrong ones as before

_Places = npt.NDArray[np.intp]
_Flags = npt.NDArray[np.bool_]


@dataclass
class Minimum:
    """The best weights found, their gradient and rho, and the number of linear systems solved."""

    matrix: Callable[[_Places], Float64Array]
    gradient: Callable[[Float64Array], Float64Array]
    alpha: Float64Array
    tol: float
    max_systems: int
    grad: Float64Array = field(init=False)
    rho: float = field(init=False)
    n_systems: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.grad = self.gradient(self.alpha)
        rho = float(self.alpha @ self.grad)
        self.rho = rho if rho > 0 else np.inf  # where rounding hides it, all others are better

    def done(self) -> bool:
        """Whether the gap is small enough."""
        return relative_gap(self.rho, float(self.grad.min())) <= self.tol

    def _solve_system(self, free: _Flags) -> Float64Array:
        """Solve (Qu)_i = 1 at the free vertices, with u_i = 0 at the others."""
        self.n_systems += 1
        places = np.flatnonzero(free)
        block = self.matrix(places)
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
        grad = self.gradient(alpha)
        rho = float(alpha @ grad)
        if 0 < rho < self.rho:
            self.alpha, self.grad, self.rho = alpha, grad, rho

    def exchange_many(self) -> None:
        """Solve, free all vertices that violate, drop all of negative weight, and so on."""
        free = (self.alpha > 0) | (self.grad < self.rho * (1 - self.tol))
        least, patience = len(free) + 1, _PATIENCE
        while patience > 0 and self.n_systems < self.max_systems:
            u = self._solve_system(free)
            self._offer(u)
            wrong = np.where(free, u <= 0, self.gradient(u) < 1 - self.tol)
            n_wrong = np.count_nonzero(wrong)
            if n_wrong == 0 or self.done():
                return
            patience = _PATIENCE if n_wrong < least else patience - 1
            least = min(least, int(n_wrong))
            free ^= wrong
            if not free.any():
                return

    def add_one(self) -> None:
        """Free the vertex of least gradient and solve; vertices that turn negative leave."""
        u = self.alpha / self.rho
        free = u > 0
        free[np.argmin(self.grad)] = True
        while self.n_systems < self.max_systems:
            target = self._solve_system(free)
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


def minimise(
    matrix: Callable[[_Places], Float64Array],
    gradient: Callable[[Float64Array], Float64Array],
    alpha: Float64Array,
    tol: float,
    max_systems: int,
) -> Minimum:
    """Minimise 1/2 alpha' Q alpha over the simplex to a relative gap of `tol`.

    `matrix` gives the part of Q, float64, that belongs to some vertices and may be written to;
    `gradient` gives Q times a vector. The search begins with the weights `alpha`, and its result is
    no worse, whatever rounding does. It ends after `max_systems` linear systems at the latest.

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
    best = Minimum(matrix, gradient, alpha.copy(), tol, max_systems)
    try:
        best.exchange_many()
        while not best.done() and best.n_systems < max_systems:
            before = best.rho
            best.add_one()
            if not best.rho < before:
                break  # rounding allows no less
    except np.linalg.LinAlgError:
        pass  # Q is singular but for rounding, and the best weights so far are the result
    return best
