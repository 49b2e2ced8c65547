"""The active set: vertices with weights, gradient and kernel block, and the moves of the weights.

Weights are non-negative and sum to 1. Vertices of weight 0 may stay for a while: those that a
certifying reading has found, or that a step has dropped. `prune` removes them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_fw._core import rules
from ooc_fw._core import steps as core
from ooc_fw.data.rows import Float64Array, Int8Array, Int64Array, Rows, take_rows
from ooc_fw.kernels.arithmetic import Operand
from ooc_fw.kernels.engine import Engine
from ooc_fw.kernels.functions import FLOAT64_UNIT
from ooc_fw.options import LEAST
from ooc_fw.problem import objective_gap, relative_gap
from ooc_fw.solver.kernel_rows import GrowingArray, GrowingRows, KernelRows, value_type
from ooc_fw.solver.systems import Minimum, never
from ooc_fw.system.memory import LARGEST_SYSTEM, SYSTEM_COPIES

logger = logging.getLogger(__name__)

_STEP_WORK = 2e8  # steps times vertices in one compiled call, which takes at most a second
_MOST_STEPS = 5_000  # steps in one compiled call; rho is summed anew after it
SPARE_SHARE = 0.125  # pruning pays if a larger share of the vertices has weight 0


def _vector(name: str) -> Any:
    """Make an attribute of an `ActiveSet`: a writable view of one of its growing vectors."""
    return property(lambda active: active._vectors[name].view)


class ActiveSet:
    """Vertices, weights, gradient and kernel block; `penalties` of rows replace `C`."""

    # Vectors of shape (m,)
    ids: Int64Array = _vector("ids")  # rows of the vertices in the source
    labels: Float64Array = _vector("labels")  # +1 or -1
    alpha: Float64Array = _vector("alpha")  # weights
    grad: Float64Array = _vector("grad")  # gradient Q alpha
    diag: Float64Array = _vector("diag")  # Q_ii = k(x_i, x_i) + 1 + 1/C_i
    alpha_before: Float64Array = _vector("alpha_before")  # weights before the step, for PARTAN
    grad_before: Float64Array = _vector("grad_before")  # their gradient; NaN if it is unknown
    norms: Float64Array = _vector("norms")  # for products: see `Operand`
    terms: npt.NDArray[Any] = _vector("terms")

    def __init__(
        self,
        engine: Engine,
        C: float,
        kernel_rows: KernelRows,
        penalties: Float64Array | None = None,
    ) -> None:
        self.engine = engine
        self.kernel_rows = kernel_rows
        self._C = C
        self._penalties = penalties
        self._rho = math.nan
        self.rounding = math.inf  # bound on the error of the gradient at the last `refresh`
        self.before_is_exact = False  # whether `alpha_before` comes from the last `refresh`
        self._places: dict[int, int] = {}  # row number in the source -> place
        self._rows = GrowingRows()
        self._values = self._rows  # rows for float32 products; a copy only if these differ
        types = {"ids": np.int64, "terms": engine.arithmetic.fast.dtype}
        for name in ("labels", "alpha", "grad", "diag", "norms", "alpha_before", "grad_before"):
            types[name] = np.float64
        self._vectors = {name: GrowingArray(dtype) for name, dtype in types.items()}
        self._largest_C = C if penalties is None else float(penalties.max())
        self._may_quantise = self.quantised
        self._least_type = kernel_rows.dtype  # of kernel values; more precise if they misled steps
        self._unfinished = 0  # corrective steps in a row that ended above their gap
        self.outgrown = False  # whether blocks of rows take the steps: see `outgrow`

    def __len__(self) -> int:
        return len(self._places)

    @property
    def rows(self) -> Rows:
        """Rows of the vertices, shape (m, n_features)."""
        return self._rows.view

    @property
    def penalties(self) -> float | Float64Array:
        """Penalty of each vertex, shape (m,), or one for all."""
        return self.penalty_of(self.ids)

    def penalty_of(self, row_ids: Int64Array) -> float | Float64Array:
        """Penalty of each of k rows in the source, shape (k,), or one for all."""
        return self._C if self._penalties is None else self._penalties[row_ids]

    @property
    def rho(self) -> float:
        """The number alpha' g = |w|^2 + b^2 + sum alpha_i^2 / C_i, at least its last sum."""
        return self._rho

    @rho.setter
    def rho(self, value: float) -> None:
        self._rho = max(value, self._slack_norm())

    def _slack_norm(self) -> float:
        """The sum of alpha_i^2 / C_i."""
        if self._penalties is None:
            return float(self.alpha @ self.alpha) / self._C
        return float(self.alpha @ (self.alpha / self.penalties))

    def squared_norm(self) -> float:
        """|w|^2 + b^2 = rho - sum alpha_i^2 / C_i."""
        return self.rho - self._slack_norm()

    @property
    def plain_grad(self) -> Float64Array:
        """Gradient without each vertex's own alpha_i / C_i, shape (m,)."""
        return self.grad - self.alpha / self.penalties

    def relative_gap(self) -> float:
        """Relative duality gap of the problem restricted to the vertices."""
        return relative_gap(self.rho, float(self.grad.min()))

    def objective_gap(self, bias_share: float) -> float:
        """(P - D) / P of the problem restricted to the vertices; `bias_share` is that of rho."""
        rho = max(LEAST, self.rho - bias_share)
        slacks = np.maximum(0.0, 1.0 - (self.plain_grad - bias_share) / rho)
        loss = float((self.penalties * slacks**2).sum())
        return objective_gap(rho, self.squared_norm() - bias_share, loss)

    @property
    def support(self) -> npt.NDArray[np.intp]:
        """Places of the vertices with positive weight."""
        return np.flatnonzero(self.alpha)

    def places_of(self, row_ids: Int64Array) -> npt.NDArray[np.intp]:
        """Places of vertices, given their row numbers in the source."""
        return np.array([self._places[row] for row in row_ids.tolist()], dtype=np.intp)

    def outside(self, row_ids: Int64Array) -> npt.NDArray[np.intp]:
        """Positions in `row_ids` of the rows outside the active set."""
        places = self._places
        return np.flatnonzero([row not in places for row in row_ids.tolist()])

    @property
    def quantised(self) -> bool:
        """Whether kernel values are rounded to 16 bits; the gradient then has to be renewed."""
        return bool(self.kernel_rows.dtype == np.uint16)

    @property
    def precise(self) -> bool:
        """Whether kernel values are float64: float32 values would mislead the steps."""
        return bool(self.kernel_rows.dtype == np.float64)

    @contextmanager
    def kernel_rows_lent(self, *, if_: bool) -> Iterator[None]:
        """Lend the memory of the kernel rows to others within a block of code, if asked for."""
        if if_:
            self.kernel_rows.change(self.kernel_rows.dtype)
        try:
            yield
        finally:
            if if_:
                self.kernel_rows.fill(self.engine, self.operand)

    def prepare(self, rows: Rows) -> Operand:
        """Prepare rows for products in the precision of the kernel values."""
        return self.engine.prepare(rows, exact=self.precise)

    @property
    def operand(self) -> Operand:
        """The vertices, prepared for products in the precision of the kernel values."""
        if self.precise:
            return self.engine.prepare(self.rows, exact=True)
        fast = self.engine.arithmetic.fast
        return Operand(self._values.view, self.norms, self.terms, fast)

    def decision_at(self, x: Operand) -> Float64Array:
        """w.phi(x) + b; times the label it is the gradient of a row outside the active set."""
        beta = self.alpha * self.labels
        return np.asarray(self.engine.weighted_sum(x, self.operand, beta) + beta.sum())

    def gradient_at(self, first: int, alpha: Float64Array) -> Float64Array:
        """Gradient at the vertices from place `first` on, by weights `alpha` of those before."""
        x = self.operand
        rows = self.kernel_rows
        beta = alpha * self.labels[:first]
        slots = rows.slots[first:]
        sums = np.empty(len(slots))
        if (slots < 0).any():
            sums[:] = self.engine.weighted_sum(x[first:], x[:first], beta)
        else:

            def weigh(part: slice) -> None:
                core.weigh_rows(rows.values, slots[part], beta, sums[part])

            self.engine.pool.share(len(sums), len(sums) * first, weigh)
            sums *= rows.unit
        return np.asarray(self.labels[first:] * (sums + beta.sum()))

    def add(self, row_ids: Int64Array, rows: Rows, labels: Int8Array, *, fill: bool = True) -> None:
        """Add rows as vertices of weight 0, apart from those in the active set already.

        Costs len(rows) x m kernel values. Without `fill` steps fetch the kernel rows that they
        need. If memory does not allow so many vertices, MemoryError is raised and nothing changes.
        """
        new = self.outside(row_ids)
        if len(new) == 0:
            return
        if len(new) < len(row_ids):
            rows = take_rows(rows, new)
        before = len(self)
        m = before + len(new)
        if m > self.kernel_rows.capacity:
            raise MemoryError(f"there is no room for {m} vertices")
        operand = self.engine.prepare(rows)
        row_ids = row_ids[new]
        diagonal = self.engine.kernel.diagonal(operand.norms)
        largest = float(max(diagonal.max(), self.diag.max(initial=0.0)))
        if not self.outgrown:
            wanted = value_type(m, self._largest_C, largest, self._may_quantise)
            wanted = max(wanted, self._least_type)
            # A small active set does not go back to less precise values.
            self._hold(max(wanted, self.kernel_rows.dtype) if m <= LARGEST_SYSTEM else wanted)
        if before == 0 and operand.values is not rows:
            self._values = GrowingRows()
        self._rows.append(rows)
        if self._values is not self._rows:
            self._values.append(operand.values)
        y = labels[new].astype(np.float64)
        diag = diagonal + 1 + 1 / self.penalty_of(row_ids)
        self._extend(ids=row_ids, labels=y, diag=diag, norms=operand.norms, terms=operand.terms)
        self._places.update(zip(row_ids.tolist(), range(before, m), strict=True))
        self.kernel_rows.add(len(new), self.engine, self.operand, fill=fill and not self.outgrown)
        idle = np.zeros(len(new))
        grad = idle + np.inf if self.outgrown else self.gradient_at(before, self.alpha)
        unknown = np.full(len(new), np.nan)
        self._extend(grad=grad, alpha=idle, alpha_before=idle, grad_before=unknown)

    def _extend(self, **blocks: npt.NDArray[Any]) -> None:
        for name, block in blocks.items():
            self._vectors[name].append(block)

    def keep(self, places: Int64Array) -> None:
        """Forget all vertices except those at the increasing `places`."""
        if np.count_nonzero(self.alpha_before[places]) < np.count_nonzero(self.alpha_before):
            self.before_is_exact = False  # the gradient still has the part of vertices that leave
        self.kernel_rows.keep(places)
        self._rows.keep(places)
        if self._values is not self._rows:
            self._values.keep(places)
        for vector in self._vectors.values():
            vector.keep(places)
        self._places = {row: place for place, row in enumerate(self.ids.tolist())}

    def _hold(self, dtype: np.dtype[Any]) -> bool:
        """Hold kernel values in a type, and renew the gradient if it is another type."""
        if dtype == self.kernel_rows.dtype:
            return False
        self.kernel_rows.change(dtype)
        if len(self) > 0 and not self.outgrown:
            logger.info("%d vertices: their kernel values are held in %s", len(self), dtype)
            self.kernel_rows.fill(self.engine, self.operand)
            self.refresh()
        return True

    def outgrow(self, n_max: int) -> None:
        """Give up the kernel values; from here on there is room for `n_max` vertices.

        Blocks of rows take the steps, see `ooc_fw.solver.blocks`, and the gradient is unknown
        (infinite) until `refresh` computes it.
        """
        self.outgrown = True
        largest = float(self.diag.max(initial=1.0))
        dtype = value_type(len(self), self._largest_C, largest, quantised=False)
        self.kernel_rows.outgrow(n_max, max(dtype, self._least_type))
        self.grad[:] = np.inf

    def raise_precision(self) -> bool:
        """Hold kernel values in the next more precise type; False if they are float64 already."""
        if not self.precise:
            self._least_type = np.dtype(np.float32 if self.quantised else np.float64)
        return self._hold(max(self._least_type, self.kernel_rows.dtype))

    def note_correction(self, *, finished: bool) -> bool:
        """Note the end of a corrective step; True if linear systems replace steps after it."""
        self._unfinished = 0 if finished else self._unfinished + 1
        patient = self._unfinished < 2 or len(self) > LARGEST_SYSTEM
        return not patient and self._hold(np.dtype(np.float64))

    def prune(self, spare: float = SPARE_SHARE, *, of_before: bool = True) -> None:
        """Remove vertices of weight 0 that are no violators.

        Nothing happens if their share of all vertices is at most `spare`. Vertices with a positive
        `alpha_before` are removed as well if `of_before`, and stay otherwise.
        """
        idle = (self.alpha == 0) & (self.grad >= self.rho)
        if not of_before:
            idle &= self.alpha_before == 0
        if np.count_nonzero(idle) > spare * len(self):
            self.keep(np.flatnonzero(~idle))

    def set_weights(self, alpha: Float64Array) -> None:
        """Take `alpha`, divided by its sum, as weights, and compute the gradient in float64."""
        self.alpha[:] = alpha / alpha.sum()
        if not self.outgrown:
            self.refresh()

    def refresh(self) -> None:
        """Compute the gradient anew from float64 kernel values, of which it takes some m^2 / 2.

        The rounding of float32 steps is in proportion to the weight that they move. Therefore steps
        and refreshes in turn converge far below float32 precision. If few weights have moved since
        the last refresh, only their change is computed. The weights become `alpha_before`, so that
        PARTAN does not extrapolate from earlier ones.
        """
        x = self.engine.prepare(self.rows, exact=True)
        error = float(self.engine.error_bound(x, x).max())
        known = int(np.count_nonzero(np.isfinite(self.grad_before))) * self.before_is_exact
        change = self.alpha - self.alpha_before
        moved = np.flatnonzero(change)
        if known > 0 and 3 * len(moved) < len(self):
            product = self._product(x, slice(known), change, moved)
            self.grad[:known] = self.grad_before[:known] + product
            self.grad[known:] = self._product(x, slice(known, None), self.alpha, self.support)
            error = max(error, self.rounding + error * float(np.abs(change).sum()))
        else:
            self.alpha[:] /= self.alpha.sum()
            support = self.support
            if 2 * len(support) < len(self):
                self.grad[:] = self._product(x, slice(None), self.alpha, support)
            else:
                beta = self.alpha * self.labels
                sums = self.engine.symmetric_sum(x, beta)
                self.grad[:] = self.labels * (sums + beta.sum()) + self.alpha / self.penalties
        self.alpha_before[:] = self.alpha
        self.grad_before[:] = self.grad
        self.before_is_exact = True
        self.rho = float(self.alpha @ self.grad)
        # Errors of kernel sums, and of sums over weights and over weights times gradients.
        sums_over_vertices = (len(self) + 4) * FLOAT64_UNIT * (1 + float(np.abs(self.grad).max()))
        self.rounding = error + sums_over_vertices

    def _product(
        self, x: Operand, part: slice, weights: Float64Array, places: npt.NDArray[np.intp]
    ) -> Float64Array:
        """Part of Q times weights, which are 0 except at `places`; x are all vertices, exact."""
        rows = x[part]
        if len(rows) == 0 or len(places) == 0:
            return np.zeros(len(rows))
        beta = (weights * self.labels)[places]
        sums = self.engine.weighted_sum(rows, x.take(places), beta) + beta.sum()
        return np.asarray(self.labels[part] * sums + (weights / self.penalties)[part])

    def learn_before(self) -> None:
        """Compute the unknown part of `grad_before`: the next steps will change all of it."""
        self.before_is_exact = False
        known = int(np.count_nonzero(np.isfinite(self.grad_before)))
        if known < len(self):
            self.grad_before[known:] = self.gradient_at(known, self.alpha_before[:known])

    def fetch(self, missing: int, grad: npt.NDArray[Any], draws: Int64Array | None = None) -> None:
        """Compute the missing kernel row of a step, and others that the next steps likely need.

        The others are the best vertices in the next `draws`, (n, size), or those at the same end of
        the gradient.
        """
        rows = self.kernel_rows
        absent = np.flatnonzero(rows.slots < 0)
        n = min(64, rows.batch, len(absent)) - 1
        if draws is not None:
            draws = draws[:n]
            likely = draws[np.arange(len(draws)), grad[draws].argmin(axis=1)]
        else:
            order = grad[absent]
            if grad[missing] > self.rho:
                order = np.where(self.alpha[absent] > 0, -order, np.inf)
            likely = absent[np.argpartition(order, n)[:n]]
        rows.fetch(np.unique(np.append(likely, missing)), self.engine, self.operand)

    def optimise(
        self, tol: float, max_steps: int, is_late: Callable[[], bool] = never
    ) -> tuple[int, int]:
        """Take pairwise steps until the relative gap on the active set is at most `tol`.

        `is_late` is asked from time to time whether to stop; the weights are always feasible.
        Returns the number of steps, and how many of them dropped a vertex.
        """
        rows = self.kernel_rows
        steps = drops = 0
        if self.precise:
            steps, drops = self._solve_systems(tol, max_steps, is_late)
        # Steps on a float32 gradient can be trusted down to a gap of 1e-4.
        narrow = tol >= 1e-4 and not self.precise
        grad = self.grad.astype(np.float32) if narrow else self.grad
        vertices = core.Vertices(self.alpha, grad, self.diag, self.labels)
        counts = np.zeros(rules.N_COUNTS, dtype=np.int64)
        at_once = max(1, min(_MOST_STEPS, int(_STEP_WORK / len(self))))
        while True:
            rows.clock += 1  # the next step uses its kernel rows after those just fetched
            limits = rules.Limits(min(at_once, max_steps - steps), (tol, 0.0, tol))
            counts[:] = 0
            _, _, _, missing = rules.take_steps(
                rules.Rule.CORRECTIVE, vertices, rows.block, rows.clock, limits, counts
            )
            taken = int(counts[rules.PAIRWISE])
            steps += taken
            drops += int(counts[rules.DROPS])
            rows.clock += taken
            if taken > 0:
                self.grad[:] = grad
                self.rho = float(self.alpha @ self.grad)
            if is_late():
                break
            if missing >= 0:
                self.fetch(missing, grad)
            elif taken < limits.most or steps >= max_steps:
                break
        return steps, drops

    def _solve_systems(
        self, tol: float, max_steps: int, is_late: Callable[[], bool]
    ) -> tuple[int, int]:
        """Replace pairwise steps by linear systems on the free vertices, if these are few.

        Badly conditioned problems would take millions of steps. Returns the number of steps that
        would have taken the same time, and the number of dropped vertices.
        """
        alpha = self.alpha
        grad = self.grad
        rows = self.kernel_rows
        y = self.labels
        n_free = int(np.count_nonzero((alpha > 0) | (grad < self.rho * (1 - tol))))
        fits = n_free <= LARGEST_SYSTEM and rows.whole_fits(SYSTEM_COPIES, n_free)
        each = max(1, n_free**2 // 128)  # pairwise steps in the time of one system
        if not fits or not rows.whole or max_steps < each or self.relative_gap() <= tol:
            return 0, 0

        def matrix(places: npt.NDArray[np.intp]) -> Float64Array:
            block = rows.values[np.ix_(rows.slots[places], places)] * np.float64(rows.unit) + 1.0
            block *= y[places, None] * y[places]
            np.fill_diagonal(block, self.diag[places])
            return np.asarray(block)

        def gradient(weights: Float64Array) -> Float64Array:
            sums = np.empty(len(weights))
            beta = weights * y
            core.weigh_rows(rows.values, rows.slots, beta, sums)
            return np.asarray(y * (sums * rows.unit + beta.sum()) + weights / self.penalties)

        minimum = Minimum(matrix, gradient, alpha.copy(), tol, max_steps // each, is_late).search()
        drops = np.count_nonzero((alpha > 0) & (minimum.alpha == 0))
        alpha[:] = minimum.alpha
        grad[:] = minimum.grad
        self.rho = float(alpha @ grad)
        return minimum.n_systems * each, int(drops)
