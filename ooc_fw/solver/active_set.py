"""The active set: vertices with weights, gradient and kernel block, and the moves of the weights.

Weights are non-negative and sum to 1. Vertices of weight 0 may stay for a while: candidates that a
certifying pass has found, or vertices just dropped. `prune` removes them.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_fw._core import steps as core
from ooc_fw._core.pairwise import optimise_pairwise
from ooc_fw.data.rows import Float64Array, Int8Array, Int64Array, Rows, take_rows
from ooc_fw.kernels.arithmetic import Operand
from ooc_fw.kernels.engine import Engine
from ooc_fw.kernels.functions import FLOAT64_UNIT
from ooc_fw.problem import relative_gap
from ooc_fw.solver.kernel_rows import LARGEST_SYSTEM, KernelRows, Precision
from ooc_fw.solver.vertices import VertexTable

logger = logging.getLogger(__name__)

_FLOAT32_GAP = 1e-4  # relative gap down to which steps on a float32 gradient are trusted
_STEP_WORK = 2e8  # steps times vertices in one compiled call, which takes a second or less
_LEAST_SHARE = 2048  # vertices of each thread from which several are faster than one
_MOST_STEPS = 5_000  # steps after which rho is summed anew
_TRIAL_STEPS = 100  # steps by which the pace of one and of several threads is measured
_LASTING = 0.2  # seconds of steps after which the slower way is tried again
_FEW_MOVED = 0.25  # share of the vertices below which only weights that moved are looked at
_MOVING = ("alpha", "grad", "pinned", "exact_alpha", "exact_grad")  # what steps change
_FETCHED = 64  # kernel rows computed at once when steps lack one
_SYSTEM_COPIES = 3  # copies of its matrix that a linear system takes
_SYSTEM_STEPS = 128  # a system of n vertices takes the time of n^2 over this pairwise steps
SPARE_SHARE = 0.125  # share of vertices of weight 0 above which a prune pays for its copy


def never() -> bool:
    """No reason to end early."""
    return False


class ActiveSet(VertexTable):
    """Vertices, weights, gradient and kernel block; `penalties` of rows take the place of `C`."""

    def __init__(
        self,
        engine: Engine,
        C: float,
        kernel_rows: KernelRows,
        penalties: Float64Array | None = None,
    ) -> None:
        super().__init__(engine, C, penalties)
        self.rounding = math.inf  # bound on the error of the gradient at the last `refresh`
        self.kernel_rows = kernel_rows
        self._pace = _Pace()
        largest_C = C if penalties is None else float(penalties.max())
        self._precision = Precision(largest_C, quantised=self.quantised)

    @property
    def quantised(self) -> bool:
        """Whether kernel values are rounded to 16 bits, so that the gradient needs renewal."""
        return bool(self.kernel_rows.dtype == np.uint16)

    @property
    def precise(self) -> bool:
        """Whether kernel values are float64, since float32 ones would mislead the steps."""
        return bool(self.kernel_rows.dtype == np.float64)

    def kernel_row(self, place: int) -> npt.NDArray[Any]:
        """Kernel values between one vertex and all, shape (m,)."""
        return self.kernel_rows.row(place, self.engine, self.operand)

    def hold(self, places: Sequence[int]) -> core.KernelBlock:
        """The kernel rows, with those of one or two vertices among the rows held."""
        self.kernel_rows.fetch(np.array(places), self.engine, self.operand)
        return self.kernel_rows.block

    @contextmanager
    def kernel_rows_lent(self, *, if_: bool) -> Iterator[None]:
        """Hold no kernel row within, if so, and leave their memory to others."""
        if if_:
            self.kernel_rows.change(self.kernel_rows.dtype)
        try:
            yield
        finally:
            if if_:
                self.kernel_rows.fill(self.engine, self.operand)

    def prepare(self, rows: Rows) -> Operand:
        """Rows made ready for products, in the precision of the kernel values."""
        return self.engine.prepare(rows, exact=self.precise)

    @property
    def operand(self) -> Operand:
        """Rows of the vertices made ready for products, in the precision of the kernel values."""
        if self.precise:
            return self.engine.prepare(self.rows, exact=True)
        fast = self.engine.arithmetic.fast
        return Operand(self._values.view, self.norms, self.terms, fast)

    def decision_at(self, x: Operand) -> Float64Array:
        """w.phi(x) + b of prepared rows; times its label the gradient at a row, if no vertex."""
        beta = self.alpha * self.labels
        return np.asarray(self.engine.weighted_sum(x, self.operand, beta) + beta.sum())

    def gradient_at(self, first: int, alpha: Float64Array) -> Float64Array:
        """Gradient at the vertices from place `first` on, of weights `alpha` of those before it."""
        x, rows = self.operand, self.kernel_rows
        beta, slots = alpha * self.labels[:first], rows.slots[first:]
        sums = np.empty(len(slots))
        if (slots < 0).any():
            sums[:] = self.engine.weighted_sum(x[first:], x[:first], beta)
        else:

            def weigh(part: slice) -> None:
                core.weigh_rows(rows.values, slots[part], beta, sums[part])

            self.engine.pool.share(len(sums), len(sums) * first, weigh)
            sums *= rows.unit
        return np.asarray(self.labels[first:] * (sums + beta.sum()))

    def add(self, row_ids: Int64Array, rows: Rows, labels: Int8Array) -> None:
        """Add vertices of weight 0; rows that are vertices already are left alone.

        Costs len(rows) x m kernel values. MemoryError is raised, and nothing has changed, when
        there would be more vertices than memory allows.
        """
        new = self.outside(row_ids)
        if len(new) == 0:
            return
        if len(new) < len(row_ids):
            rows = take_rows(rows, new)
        before, m = len(self), len(self) + len(new)
        if m > self.kernel_rows.capacity:
            raise MemoryError(f"there is no room for {m} vertices")
        operand = self.engine.prepare(rows)
        new_diagonal = self.engine.kernel.diagonal(operand.norms)
        largest = max(float(new_diagonal.max()), float(self.diag.max(initial=0.0)))
        self._hold(self._precision.after_growth(m, largest, self.kernel_rows.dtype))
        self._append(row_ids[new], rows, operand, labels[new].astype(np.float64))
        self.kernel_rows.add(len(new), self.engine, self.operand)
        grad = self.gradient_at(before, self.alpha)
        idle, unknown = np.zeros(len(new)), np.full(len(new), np.nan)
        self._extend(grad=grad, alpha=idle, pinned=idle.astype(np.bool_))
        self._extend(exact_alpha=idle, exact_grad=unknown)

    def keep(self, places: Int64Array) -> None:
        """Forget all vertices but those at `places`, which increase."""
        self.kernel_rows.keep(places)
        if np.count_nonzero(self.exact_alpha[places]) < np.count_nonzero(self.exact_alpha):
            self.exact_grad[:] = np.nan  # the part of a vertex that leaves cannot be taken out
        super().keep(places)

    def _hold(self, dtype: np.dtype[Any]) -> bool:
        """Hold kernel values in some type; where it is another one, renew the gradient."""
        if dtype == self.kernel_rows.dtype:
            return False
        self.kernel_rows.change(dtype)
        if len(self) > 0:
            logger.info("%d vertices: their kernel values are held in %s", len(self), dtype)
            self.kernel_rows.fill(self.engine, self.operand)
            self.refresh()
        return True

    def raise_precision(self) -> bool:
        """Hold kernel values in the next type from now on; False when they are float64."""
        return self._hold(self._precision.after_misled_steps(self.kernel_rows.dtype))

    def note_correction(self, *, finished: bool) -> bool:
        """Take note of a corrective step; True where linear systems replace steps from now on."""
        held = self.kernel_rows.dtype
        return self._hold(self._precision.after_correction(finished, len(self), held))

    def prune(
        self, spare: float = SPARE_SHARE, protected: npt.NDArray[np.bool_] | None = None
    ) -> Int64Array | None:
        """Remove vertices of weight 0 that neither violate nor are pinned or `protected`.

        Nothing happens while they are no more than a share `spare` of all vertices. Returns the old
        places of the vertices kept, or None when nothing was removed.
        """
        idle = (self.alpha == 0) & (self.grad >= self.rho) & ~self.pinned
        if protected is not None:
            idle &= ~protected
        if np.count_nonzero(idle) <= spare * len(self):
            return None
        keep = np.flatnonzero(~idle)
        self.keep(keep)
        return keep

    def state(self) -> dict[str, Any]:
        """What cannot be computed from the rows; last bits of a gradient depend on the steps."""
        weights = {name: getattr(self, name) for name in ("ids", "rho", "rounding", *_MOVING)}
        rows, precision = self.kernel_rows.state(), self._precision.state()
        return {**weights, "rows": rows, "precision": precision}

    def restore(self, state: dict[str, Any], rows: Rows, labels: Int8Array) -> None:
        """Fill an empty active set from what `state` gave and the rows and labels of vertices."""
        self._precision.least = np.dtype(state["rows"]["type"])  # vertices come all at once
        self.add(state["ids"], rows, labels)
        self.kernel_rows.restore(state["rows"], self.engine, self.operand)
        for name in _MOVING:
            getattr(self, name)[:] = state[name]
        self.rho, self.rounding = state["rho"], state["rounding"]
        self._precision.restore(state["precision"])

    def set_weights(self, alpha: Float64Array) -> None:
        """Take `alpha`, scaled to sum 1, as the weights, and compute their gradient in float64."""
        self.alpha[:] = alpha / alpha.sum()
        self.refresh()

    def renumber(self, penalties: Float64Array | None) -> None:
        """Take rows 0, 1, ... of another source as the vertices, which are equal to them."""
        self.ids[:] = np.arange(len(self))
        self._places = {place: place for place in range(len(self))}
        self._penalties, self.pinned[:] = penalties, False
        if penalties is not None:
            precision = self._precision
            precision.largest_C = max(precision.largest_C, float(penalties.max()))

    def change_penalty(self, C: float) -> None:
        """Take another penalty of all rows, with the same weights; O(m) if kernel values stay."""
        if C == self._C:
            return
        change = 1 / C - 1 / self._C
        self._C, self._penalties = C, None
        self.diag[:] += change
        self.grad[:] += change * self.alpha
        self.rho = float(self.alpha @ self.grad)
        self.pinned[:], self.exact_grad[:] = False, np.nan
        self._precision.change_penalty(C)
        self._hold(self._precision.for_vertices(len(self), float(self.diag.max(initial=0.0))))

    def refresh(self) -> None:
        """Compute the gradient anew from float64 kernel values; costs m^2 / 2 of them at most.

        The rounding of float32 steps is proportional to the weight moved, so that steps and
        refreshes in turn converge far below float32 precision. Where few weights have moved since
        the last refresh, only what they changed is computed.
        """
        x = self.engine.prepare(self.rows, exact=True)
        error = float(self.engine.error_bound(x, x).max())
        n_known = int(np.count_nonzero(np.isfinite(self.exact_grad)))
        moved = np.flatnonzero(self.alpha != self.exact_alpha)
        if n_known > 0 and len(moved) < _FEW_MOVED * len(self):
            change = self.alpha - self.exact_alpha
            self.grad[:n_known] = self.exact_grad[:n_known]
            self.grad[:n_known] += self._gradient_of(change, moved, x, slice(n_known))
            new = slice(n_known, len(self))
            self.grad[new] = self._gradient_of(self.alpha, self.support, x, new)
            error = max(error, self.rounding + error * float(np.abs(change).sum()))
        else:
            self.alpha[:] /= self.alpha.sum()
            beta = self.alpha * self.labels
            sums = self.engine.symmetric_sum(x, beta)
            self.grad[:] = self.labels * (sums + beta.sum()) + self.alpha / self.penalties
        self.exact_alpha[:], self.exact_grad[:] = self.alpha, self.grad
        self.rho = float(self.alpha @ self.grad)
        # Of the kernel sums, and of the sums over weights, and weights times gradients.
        sums_over_vertices = (len(self) + 4) * FLOAT64_UNIT * (1 + float(np.abs(self.grad).max()))
        self.rounding = error + sums_over_vertices

    def _gradient_of(
        self, weights: Float64Array, places: npt.NDArray[np.intp], x: Operand, part: slice
    ) -> Float64Array:
        """Part of Q times weights that are 0 but at `places`, given exact rows of all vertices."""
        beta = (weights * self.labels)[places]
        sums = self.engine.weighted_sum(x[part], x.take(places), beta) + beta.sum()
        return np.asarray(self.labels[part] * sums + (weights / self.penalties)[part])

    def optimise(
        self, tol: float, max_steps: int, is_late: Callable[[], bool] = never
    ) -> tuple[int, int]:
        """Take pairwise steps until the relative gap on the active set is at most `tol`.

        `is_late` is asked now and then whether to stop; the weights are feasible then too. Returns
        the number of steps, and how many of them dropped a vertex.
        """
        rows = self.kernel_rows
        steps = drops = 0
        if self.precise:
            steps, drops = _solve_systems(self, tol, max_steps, is_late)
        narrow = tol >= _FLOAT32_GAP and not self.precise
        grad = self.grad.astype(np.float32) if narrow else self.grad
        vertices = self.vertices._replace(grad=grad)
        moved = False
        at_once = max(1, min(_MOST_STEPS, int(_STEP_WORK / len(self))))
        n_together = self.engine.pool.together_on(len(self) // _LEAST_SHARE)
        rho, summed = math.nan, steps
        while True:
            rows.clock += 1  # rows of the next step are used after those just fetched
            n_threads, most = self._pace.choose(n_together)
            most = min(most, summed + at_once - steps, max_steps - steps)
            started = time.perf_counter()
            taken, dropped, rho, missing = optimise_pairwise(
                *(vertices, rows.block, rows.clock, tol, most, rho),
                (n_threads, self.engine.pool.together),
            )
            self._pace.note(n_threads, time.perf_counter() - started, taken, len(self))
            moved = moved or taken > 0
            steps, drops, rows.clock = steps + taken, drops + dropped, rows.clock + taken
            if is_late():
                break
            if missing < 0:
                if taken < most or steps >= max_steps:
                    break
            else:
                rows.fetch(_soon_needed(self, missing, grad), self.engine, self.operand)
            # Where rho is summed anew decides its last bits, and must not depend on the clock.
            if missing >= 0 or steps == summed + at_once:
                rho, summed = math.nan, steps
        if moved:
            self.grad[:] = grad
            self.rho = float(self.alpha @ self.grad)
        return steps, drops


def affine_minimum(
    active: ActiveSet, support: Int64Array
) -> tuple[Float64Array, Float64Array] | None:
    """Weights of sum 1 that are 0 off the support, with equal gradients on it; their gradient.

    Weights may be negative. None where the support is too large for a linear system, the kernel
    rows of it are not all held, or the system is singular.
    """
    rows, n = active.kernel_rows, len(support)
    copies = _SYSTEM_COPIES * 8 // rows.dtype.itemsize  # those of the system are float64
    if n > LARGEST_SYSTEM or not rows.whole or not rows.whole_fits(copies, n):
        return None
    try:
        u = np.linalg.solve(_dual_matrix(active, support), np.ones(n))
    except np.linalg.LinAlgError:
        return None
    total = float(u.sum())
    if not 0 < total < np.inf:
        return None
    alpha = np.zeros(len(active))
    alpha[support] = u / total
    return alpha, _gradient_on_rows(active, alpha)


class _Pace:
    """Whether threads share the scans of steps: they may wait for each other on a busy machine."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}  # of a step and vertex, by number of threads
        self._since = 0.0  # seconds of steps since both ways were tried

    def choose(self, n_threads: int) -> tuple[int, int]:
        """`n_threads` or 1, and steps to take before that is chosen again."""
        if n_threads == 1:
            return 1, _MOST_STEPS
        ways = sorted([n_threads, 1], key=lambda way: self._seconds.get(way, 0.0))
        if ways[0] not in self._seconds:
            return ways[0], _TRIAL_STEPS
        return (ways[1], _TRIAL_STEPS) if self._since > _LASTING else (ways[0], _MOST_STEPS)

    def note(self, n_threads: int, seconds: float, steps: int, m: int) -> None:
        """Remember how long some steps on m vertices took, unless they were few."""
        if steps >= _TRIAL_STEPS:
            slower = self._seconds.get(n_threads, 0.0) > min(self._seconds.values(), default=0.0)
            self._since = 0.0 if slower else self._since + seconds
            self._seconds[n_threads] = seconds / (steps * m)


def _soon_needed(active: ActiveSet, missing: int, grad: npt.NDArray[Any]) -> Int64Array:
    """A vertex whose kernel row a step lacks, and others from the same end of the gradient."""
    absent = np.flatnonzero(active.kernel_rows.slots < 0)
    n = min(_FETCHED, active.kernel_rows.batch, len(absent)) - 1
    order = grad[absent]
    if grad[missing] > active.rho:
        order = np.where(active.alpha[absent] > 0, -order, np.inf)
    likely = absent[np.argpartition(order, n)[:n]]
    return np.unique(np.append(likely, missing))


def _solve_systems(
    active: ActiveSet, tol: float, max_steps: int, is_late: Callable[[], bool]
) -> tuple[int, int]:
    """Replace pairwise steps by linear systems on the free vertices, while these are few.

    Badly conditioned problems would take millions of steps. The result counts as many steps as
    would have taken the same time, and vertices dropped.
    """
    alpha, grad, rows = active.alpha, active.grad, active.kernel_rows
    n_free = np.count_nonzero((alpha > 0) | (grad < active.rho * (1 - tol)))
    fits = n_free <= LARGEST_SYSTEM and rows.whole_fits(_SYSTEM_COPIES, int(n_free))
    each = max(1, int(n_free) ** 2 // _SYSTEM_STEPS)
    if not fits or not rows.whole or max_steps < each or active.relative_gap() <= tol:
        return 0, 0
    matrix, gradient = partial(_dual_matrix, active), partial(_gradient_on_rows, active)
    minimum = Minimum(matrix, gradient, alpha.copy(), tol, max_steps // each, is_late).search()
    drops = np.count_nonzero((alpha > 0) & (minimum.alpha == 0))
    alpha[:], grad[:] = minimum.alpha, minimum.grad
    active.rho = float(alpha @ grad)
    return minimum.n_systems * each, int(drops)


def _dual_matrix(active: ActiveSet, places: npt.NDArray[np.intp]) -> Float64Array:
    """Q between some vertices, whose kernel rows are held, shape (k, k)."""
    y, rows = active.labels[places], active.kernel_rows
    block = rows.values[np.ix_(rows.slots[places], places)] * np.float64(rows.unit) + 1.0
    block *= y[:, None] * y
    np.fill_diagonal(block, active.diag[places])
    return np.asarray(block)


def _gradient_on_rows(active: ActiveSet, alpha: Float64Array) -> Float64Array:
    """Gradient of weights at all vertices from the kernel rows, which are all held."""
    rows = active.kernel_rows
    sums, beta = np.empty(len(alpha)), alpha * active.labels
    core.weigh_rows(rows.values, rows.slots, beta, sums)
    sums *= rows.unit
    return np.asarray(active.labels * (sums + beta.sum()) + alpha / active.penalties)


_PATIENCE = 3  # exchanges of many vertices that may leave as many wrong ones as before


@dataclass
class Minimum:
    """The best weights found of 1/2 alpha' Q alpha over the simplex, their gradient and rho.

    `matrix` gives the part of Q, float64, that belongs to some vertices and may be written to;
    `gradient` gives Q times a vector. The weights are no worse than those given, whatever rounding
    does, and `tol` is the relative gap wanted.

    Notes
    -----
    With u = alpha / rho the conditions are u >= 0, Qu >= 1 and u'(Qu - 1) = 0. Many vertices are
    exchanged at once (block principal pivoting) as long as that leaves fewer wrong ones. Otherwise
    vertices enter one by one and leave where a weight reaches 0 (Lawson and Hanson): no cycles.

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
        self.rho = rho if rho > 0 else np.inf  # where rounding hides it, all others are better

    def search(self) -> Minimum:
        """Look for better weights until the gap is small enough, or rounding allows none."""
        try:
            self._exchange_many()
            while not self._done() and self._goes_on():
                before = self.rho
                self._add_one()
                if not self.rho < before:
                    break
        except np.linalg.LinAlgError:
            pass  # Q is singular but for rounding
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

    def _exchange_many(self) -> None:
        """Solve, free all vertices that violate, drop all of negative weight, and so on."""
        free = (self.alpha > 0) | (self.grad < self.rho * (1 - self.tol))
        least, patience = len(free) + 1, _PATIENCE
        while patience > 0 and self._goes_on():
            u = self._solve_system(free)
            self._offer(u)
            wrong = np.where(free, u <= 0, self.gradient(u) < 1 - self.tol)
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
            u[leaving], free[leaving] = 0.0, False
        self._offer(u)
