"""Linear systems in place of steps that would take too long."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ooc_fw.data.rows import Float64Array
from ooc_fw.problem import relative_gap

_PATIENCE = 3  # exchanges of many vertices in a row that may leave as many wrong vertices


def never() -> bool:
    """Return False: there is no reason to end early."""
    return False


@dataclass
class Minimum:
    """The best weights found for 1/2 alpha' Q alpha over the simplex, their gradient and rho.

    `matrix` returns the part of Q for some vertices, float64, which the caller may change.
    `gradient` returns Q times a vector. `tol` is the wanted relative gap. Rounding never makes the
    weights worse than the given ones.

    Notes
    -----
    With u = alpha / rho the conditions are u >= 0, Qu >= 1 and u'(Qu - 1) = 0. Many vertices are
    exchanged at once (block principal pivoting) as long as fewer wrong ones are left. After that,
    vertices enter one by one and leave if their weight reaches 0 (Lawson and Hanson): no cycles.

    References
    ----------
    Portugal, Judice, Vicente (1994), A comparison of block pivoting and interior-point algorithms
    for linear least squares problems with nonnegative variables. Lawson and Hanson (1974), Solving
    Least Squares Problems, algorithm NNLS.
    """

    matrix: Callable[[npt.NDArray[np.intp]], Float64Array]
    gradient: Callable[[Float64Array], Float64Array]
    alpha: Float64Array
    tol: float
    max_systems: int
    is_late: Callable[[], bool] = never
    grad: Float64Array = field(init=False)
    rho: float = field(init=False)
    n_systems: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.grad = self.gradient(self.alpha)
        rho = float(self.alpha @ self.grad)
        self.rho = rho if rho > 0 else np.inf  # rounding hides rho: all other weights are better

    def search(self) -> Minimum:
        """Look for better weights until the gap is small enough, or rounding allows none."""
        before = np.inf
        try:
            self._exchange_many()
            while self.rho < before and not self._done() and self._goes_on():
                before = self.rho
                self._add_one()
        except np.linalg.LinAlgError:
            pass  # Q is singular, apart from rounding
        return self

    def _done(self) -> bool:
        return relative_gap(self.rho, float(self.grad.min())) <= self.tol

    def _goes_on(self) -> bool:
        return self.n_systems < self.max_systems and not self.is_late()

    def _solve_system(self, free: npt.NDArray[np.bool_]) -> Float64Array:
        """Solve (Qu)_i = 1 at the free vertices, with u_i = 0 at the others."""
        self.n_systems += 1
        places = np.flatnonzero(free)
        block = self.matrix(places)
        scale = 1 / np.sqrt(np.diagonal(block))  # scaled, so that the diagonal is 1
        block *= scale
        block *= scale[:, None]
        u = np.zeros(len(free))
        u[places] = scale * np.linalg.solve(block, scale)
        return u

    def _offer(self, u: Float64Array) -> None:
        """Take the weights from max(u, 0) if they are better."""
        u = np.maximum(u, 0.0)
        total = u.sum()
        if not 0 < total < np.inf:
            return
        alpha = u / total
        grad = self.gradient(alpha)
        rho = float(alpha @ grad)
        if 0 < rho < self.rho:
            self.alpha = alpha
            self.grad = grad
            self.rho = rho

    def _exchange_many(self) -> None:
        """Solve, free all violators, drop all vertices with negative weight, and repeat."""
        free = (self.alpha > 0) | (self.grad < self.rho * (1 - self.tol))
        least = len(free) + 1
        patience = _PATIENCE
        while patience > 0 and free.any() and self._goes_on():
            u = self._solve_system(free)
            self._offer(u)
            wrong = np.where(free, u <= 0, self.gradient(u) < 1 - self.tol)
            n_wrong = int(np.count_nonzero(wrong))
            if n_wrong == 0 or self._done():
                return
            patience = _PATIENCE if n_wrong < least else patience - 1
            least = min(least, n_wrong)
            free ^= wrong

    def _add_one(self) -> None:
        """Free the vertex with the least gradient and solve; vertices that turn negative leave."""
        u = self.alpha / self.rho
        free = u > 0
        free[np.argmin(self.grad)] = True
        while self._goes_on():
            target = self._solve_system(free)
            down = np.flatnonzero(free & (target <= 0))
            if len(down) == 0:
                self._offer(target)
                return
            ratios = u[down] / np.maximum(u[down] - target[down], np.finfo(np.float64).tiny)
            step = ratios.min()
            u += step * (target - u)
            leaving = down[ratios == step]
            u[leaving] = 0.0
            free[leaving] = False
        self._offer(u)
