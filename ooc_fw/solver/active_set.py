"""The active set: vertices with weights, gradient and kernel block, and the moves of the weights.

Weights are non-negative and sum to 1. Vertices of weight 0 may stay for a while: candidates that a
certifying pass has found, or vertices just dropped. `prune` removes them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
from ooc_fw.solver.kernel_rows import GrowingArray, GrowingRows, KernelRows, value_type
from ooc_fw.solver.systems import LARGEST_SYSTEM, never, solve_systems

logger = logging.getLogger(__name__)

_STEP_WORK = 2e8  # steps times vertices of one compiled call, so that it takes at most a second
_MOST_STEPS = 5_000  # steps of one compiled call, after which rho is summed anew
SPARE_SHARE = 0.125  # share of vertices of weight 0 above which pruning them is worth a copy


def _vector(name: str) -> Any:
    """An attribute of an `ActiveSet`: one of its growing vectors, which may be written to."""
    return property(lambda active: active._vectors[name].view)


class ActiveSet:
    """Vertices, weights, gradient and kernel block; `penalties` of rows take the place of `C`."""

    # Vectors of shape (m,)
    ids: Int64Array = _vector("ids")  # rows of the vertices in the source
    labels: Float64Array = _vector("labels")  # +1 or -1
    alpha: Float64Array = _vector("alpha")  # weights
    grad: Float64Array = _vector("grad")  # gradient Q alpha
    diag: Float64Array = _vector("diag")  # Q_ii = k(x_i, x_i) + 1 + 1/C_i
    pinned: npt.NDArray[np.bool_] = _vector("pinned")  # whether never to be pruned
    alpha_before: Float64Array = _vector("alpha_before")  # of the iterate before, for PARTAN
    grad_before: Float64Array = _vector("grad_before")  # its gradient; NaN where it is not known
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
        self.before_is_exact = False  # whether the iterate before is that of the last `refresh`
        # Bound on how far w has moved by the last `refresh`, since a pass set it to 0.
        self.moved = math.inf
        self._places: dict[int, int] = {}  # by source row
        self._rows = GrowingRows()
        self._values = self._rows  # what float32 products see; another copy only if it differs
        types = {"ids": np.int64, "terms": engine.arithmetic.fast.dtype, "pinned": np.bool_}
        for name in ("labels", "alpha", "grad", "diag", "norms", "alpha_before", "grad_before"):
            types[name] = np.float64
        self._vectors = {name: GrowingArray(dtype) for name, dtype in types.items()}
        self._largest_C = C if penalties is None else float(penalties.max())
        self._may_quantise = self.quantised
        self._least_type = kernel_rows.dtype  # of kernel values; more precise once they misled
        self._unfinished = 0  # corrective steps in a row that ended above their gap

    def __len__(self) -> int:
        return len(self._places)

    @property
    def rows(self) -> Rows:
        """Rows of the vertices, shape (m, n_features)."""
        return self._rows.view

    @property
    def penalties(self) -> float | Float64Array:
        """Penalty of each vertex, shape (m,), or of all of them."""
        return self.penalty_of(self.ids)

    def penalty_of(self, row_ids: Int64Array) -> float | Float64Array:
        """Penalty of each of some rows of the source, shape (k,), or of all of them."""
        return self._C if self._penalties is None else self._penalties[row_ids]

    @property
    def rho(self) -> float:
        """The number alpha' g = |w|^2 + b^2 + sum alpha_i^2 / C_i, at least its last sum."""
        return self._rho

    @rho.setter
    def rho(self, value: float) -> None:
        self._rho = max(value, self._slack_norm())

    def _slack_norm(self) -> float:
        """Sum of all alpha_i^2 / C_i."""
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

    @property
    def support(self) -> npt.NDArray[np.intp]:
        """Places of the vertices of positive weight."""
        return np.flatnonzero(self.alpha)

    def places_of(self, row_ids: Int64Array) -> npt.NDArray[np.intp]:
        """Places of vertices, given by their source rows."""
        return np.array([self._places[row] for row in row_ids.tolist()], dtype=np.intp)

    def outside(self, row_ids: Int64Array) -> npt.NDArray[np.intp]:
        """Positions in `row_ids` of rows that are no vertices."""
        places = self._places
        return np.flatnonzero([row not in places for row in row_ids.tolist()])

    @property
    def quantised(self) -> bool:
        """Whether kernel values are rounded to 16 bits, so that the gradient needs renewal."""
        return bool(self.kernel_rows.dtype == np.uint16)

    @property
    def precise(self) -> bool:
        """Whether kernel values are float64, since float32 ones would mislead the steps."""
        return bool(self.kernel_rows.dtype == np.float64)

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
        """Add vertices of weight 0; rows that are vertices already are left alone.

        Costs len(rows) x m kernel values. Unless kernel rows are to be filled, steps fetch those
        that they need. MemoryError is raised, and nothing has changed, when there would be more
        vertices than memory allows.
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
        wanted = value_type(m, self._largest_C, largest, self._may_quantise)
        wanted = max(wanted, self._least_type)
        # Few vertices do not go back to less precise values.
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
        self.kernel_rows.add(len(new), self.engine, self.operand, fill=fill)
        grad = self.gradient_at(before, self.alpha)
        idle = np.zeros(len(new))
        self._extend(grad=grad, alpha=idle, pinned=idle.astype(np.bool_))
        self._extend(alpha_before=idle, grad_before=np.full(len(new), np.nan))

    def _extend(self, **blocks: npt.NDArray[Any]) -> None:
        for name, block in blocks.items():
            self._vectors[name].append(block)

    def keep(self, places: Int64Array) -> None:
        """Forget all vertices but those at `places`, which increase."""
        if np.count_nonzero(self.alpha_before[places]) < np.count_nonzero(self.alpha_before):
            self.before_is_exact = False  # the part of a vertex that leaves cannot be taken out
        self.kernel_rows.keep(places)
        self._rows.keep(places)
        if self._values is not self._rows:
            self._values.keep(places)
        for vector in self._vectors.values():
            vector.keep(places)
        self._places = {row: place for place, row in enumerate(self.ids.tolist())}

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
        if not self.precise:
            self._least_type = np.dtype(np.float32 if self.quantised else np.float64)
        return self._hold(max(self._least_type, self.kernel_rows.dtype))

    def note_correction(self, *, finished: bool) -> bool:
        """Take note of a corrective step; True where linear systems replace steps from now on."""
        self._unfinished = 0 if finished else self._unfinished + 1
        patient = self._unfinished < 2 or len(self) > LARGEST_SYSTEM
        return not patient and self._hold(np.dtype(np.float64))

    def prune(self, spare: float = SPARE_SHARE, *, of_before: bool = True) -> None:
        """Remove vertices of weight 0 that neither violate nor are pinned.

        Nothing happens while they are no more than a share `spare` of all vertices. Those that had
        weight in the iterate before count as well, or else stay.
        """
        idle = (self.alpha == 0) & (self.grad >= self.rho) & ~self.pinned
        if not of_before:
            idle &= self.alpha_before == 0
        if np.count_nonzero(idle) > spare * len(self):
            self.keep(np.flatnonzero(~idle))

    def set_weights(self, alpha: Float64Array) -> None:
        """Take `alpha`, scaled to sum 1, as the weights, and compute their gradient in float64."""
        self.alpha[:] = alpha / alpha.sum()
        self.refresh()

    def refresh(self) -> None:
        """Compute the gradient anew from float64 kernel values; costs m^2 / 2 of them at most.

        The rounding of float32 steps is proportional to the weight moved, so that steps and
        refreshes in turn converge far below float32 precision. If few weights have moved since the
        last refresh, only what they change is computed. The iterate before becomes this one, from
        which PARTAN does not go on.
        """
        x = self.engine.prepare(self.rows, exact=True)
        error = float(self.engine.error_bound(x, x).max())
        known = int(np.count_nonzero(np.isfinite(self.grad_before))) * self.before_is_exact
        change = self.alpha - self.alpha_before
        moved = np.flatnonzero(change)
        if known > 0 and 3 * len(moved) < len(self):
            product_error = error * float(np.abs(change).sum())
            product = self._product(x, slice(known), change, moved)
            self.grad[:known] = self.grad_before[:known] + product
            self.grad[known:] = self._product(x, slice(known, None), self.alpha, self.support)
            error = max(error, self.rounding + product_error)
        else:
            self.alpha[:] /= self.alpha.sum()
            support = self.support
            if 2 * len(support) < len(self):
                self.grad[:] = self._product(x, slice(None), self.alpha, support)
            else:
                beta = self.alpha * self.labels
                sums = self.engine.symmetric_sum(x, beta)
                self.grad[:] = self.labels * (sums + beta.sum()) + self.alpha / self.penalties
            product = self.grad[:known] - self.grad_before[:known]
            product_error = error + self.rounding
        self._note_move(product, product_error)
        self.alpha_before[:] = self.alpha
        self.grad_before[:] = self.grad
        self.before_is_exact = True
        self.rho = float(self.alpha @ self.grad)
        # Of the kernel sums, and of the sums over weights, and weights times gradients.
        sums_over_vertices = (len(self) + 4) * FLOAT64_UNIT * (1 + float(np.abs(self.grad).max()))
        self.rounding = error + sums_over_vertices

    def _note_move(self, product: Float64Array, error: float) -> None:
        """Add a bound on |dw| to `moved`.

        For the change d of the weights, |dw|^2 = d'Qd - sum d_i^2 / C_i. `product` is Qd at the
        first vertices, each entry of which errs by `error` and by the rounding of sums.
        """
        change = self.alpha - self.alpha_before
        known = len(product)
        if change[known:].any():
            self.moved = math.inf
            return
        size = float(np.abs(change).sum())
        sums = (len(change) + 4) * FLOAT64_UNIT * (1 + float(np.abs(self.grad).max()))
        square = change[:known] @ (product - (change / self.penalties)[:known])
        self.moved += math.sqrt(max(0.0, float(square)) + size * (error + 4 * sums))

    def _product(
        self, x: Operand, part: slice, weights: Float64Array, places: npt.NDArray[np.intp]
    ) -> Float64Array:
        """Part of Q times weights that are 0 but at `places`, given exact rows of all vertices."""
        rows = x[part]
        if len(rows) == 0 or len(places) == 0:
            return np.zeros(len(rows))
        beta = (weights * self.labels)[places]
        sums = self.engine.weighted_sum(rows, x.take(places), beta) + beta.sum()
        return np.asarray(self.labels[part] * sums + (weights / self.penalties)[part])

    def learn_before(self) -> None:
        """Compute what is unknown of the gradient of the iterate before, which steps will move."""
        self.before_is_exact = False
        known = int(np.count_nonzero(np.isfinite(self.grad_before)))
        if known < len(self):
            self.grad_before[known:] = self.gradient_at(known, self.alpha_before[:known])

    def fetch(self, missing: int, grad: npt.NDArray[Any], draws: Int64Array | None = None) -> None:
        """Hold the kernel row that a step lacks, and others that the next ones likely need.

        These are the best vertices of the next `draws`, (n, size), or come from the same end of the
        gradient.
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

        `is_late` is asked now and then whether to stop; the weights are feasible then too. Returns
        the number of steps, and how many of them dropped a vertex.
        """
        rows = self.kernel_rows
        steps = drops = 0
        if self.precise:
            steps, drops = solve_systems(self, tol, max_steps, is_late)
        # Steps on a float32 gradient are trusted down to that gap.
        narrow = tol >= 1e-4 and not self.precise
        grad = self.grad.astype(np.float32) if narrow else self.grad
        vertices = core.Vertices(self.alpha, grad, self.diag, self.labels)
        moved = False
        at_once = max(1, min(_MOST_STEPS, int(_STEP_WORK / len(self))))
        while True:
            rows.clock += 1  # rows of the next step are used after those just fetched
            most = min(at_once, max_steps - steps)
            taken, dropped, _, missing = optimise_pairwise(
                vertices, rows.block, rows.clock, tol, most
            )
            moved = moved or taken > 0
            steps += taken
            drops += dropped
            rows.clock += taken
            if is_late():
                break
            if missing >= 0:
                self.fetch(missing, grad)
            elif taken < most or steps >= max_steps:
                break
        if moved:
            self.grad[:] = grad
            self.rho = float(self.alpha @ self.grad)
        return steps, drops
