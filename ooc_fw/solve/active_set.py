"""The active set: vertices held in RAM, with weights, gradient and kernel block.

Owns the invariants: weights are non-negative and sum to 1, the gradient is that of the weights, row
k of the kernel block belongs to vertex k. Steps go through its few verbs. Knows nothing of disk.

Vertices of weight 0 may stay for a while: candidates a sweep has found, or vertices just dropped.
`prune` removes them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_fw._core import steps as core
from ooc_fw.data.rows import Float64Array, Int8Array, Int64Array, Rows, take_rows
from ooc_fw.kernels.engine import Engine
from ooc_fw.kernels.functions import FLOAT64_UNIT
from ooc_fw.kernels.tiles import Operand
from ooc_fw.problem import relative_gap
from ooc_fw.solve.growing import GrowingArray, GrowingRows
from ooc_fw.solve.kernel_rows import BlockBudgetError, KernelRows, value_type
from ooc_fw.solve.newton import minimise

logger = logging.getLogger(__name__)

_FLOAT32_GAP = 1e-4  # relative gap down to which steps on a float32 gradient are trusted
_STEP_WORK = 2e8  # steps times vertices in one compiled call, a second or less
_FETCHED = 64  # rows computed at once when steps lack one
LARGEST_SYSTEM = 2048
"""Free vertices up to which linear systems are solved: so many take about 0.3 s on one core."""

_SYSTEM_COPIES = 3  # of its matrix while it is solved
_SYSTEM_STEPS = 128  # a system of n vertices takes as long as n^2 over this pairwise steps
SPARE_SHARE = 0.125  # vertices of weight 0 that may stay before a prune pays for its copy


class ActiveSet:
    """Vertices, weights, gradient and kernel block.

    Parameters
    ----------
    engine : Engine
        Computes kernel values.
    C : float
        Penalty of a unit squared slack.
    kernel_rows : KernelRows
        Holds the kernel values between vertices; empty.
    penalties : ndarray of float64, shape (n_rows,), optional
        Penalty of each row of the source, in place of `C`.

    Attributes
    ----------
    rho : float
        alpha' g, twice the objective.
    rounding : float
        Bound on the error of the gradient at the last `refresh`.
    """

    def __init__(
        self,
        engine: Engine,
        C: float,
        kernel_rows: KernelRows,
        penalties: Float64Array | None = None,
    ) -> None:
        self.engine = engine
        self._C = C
        self._penalties = penalties
        self._largest_C = C if penalties is None else float(penalties.max())
        self.rho = math.nan
        self.rounding = math.inf
        self._kernel_rows = kernel_rows
        self._places: dict[int, int] = {}
        self._rows = GrowingRows()
        self._values = self._rows  # what float32 products see; a second copy only where it differs
        self._quantised = kernel_rows.dtype == np.uint16  # where it is precise enough
        self._least_type = kernel_rows.dtype  # of kernel values, since rounding misled steps
        self._vectors = {
            name: GrowingArray(dtype)
            for name, dtype in (
                ("ids", np.int64),
                ("labels", np.float64),
                ("diag", np.float64),
                ("norms", np.float64),
                ("terms", engine.arithmetic.fast.dtype),
                ("alpha", np.float64),
                ("grad", np.float64),
                ("pinned", np.bool_),
            )
        }

    # -- what it holds ---------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._places)

    @property
    def ids(self) -> Int64Array:
        """Row of each vertex in the source, shape (m,)."""
        return self._vectors["ids"].view

    @property
    def labels(self) -> Float64Array:
        """+1 or -1 of each vertex, shape (m,)."""
        return self._vectors["labels"].view

    @property
    def diag(self) -> Float64Array:
        """Q_ii = k(x_i, x_i) + 1 + 1/C_i of each vertex, shape (m,)."""
        return self._vectors["diag"].view

    @property
    def alpha(self) -> Float64Array:
        """Weights, shape (m,)."""
        return self._vectors["alpha"].view

    @property
    def grad(self) -> Float64Array:
        """Gradient Q alpha, shape (m,)."""
        return self._vectors["grad"].view

    @property
    def penalties(self) -> float | Float64Array:
        """Penalty of each vertex, shape (m,), or of all of them."""
        return self.penalty_of(self.ids)

    def penalty_of(self, row_ids: Int64Array) -> float | Float64Array:
        """Penalty of each of some rows, shape (k,), or of all of them."""
        return self._C if self._penalties is None else self._penalties[row_ids]

    @property
    def plain_grad(self) -> Float64Array:
        """Gradient without each vertex's own alpha_i / C_i, shape (m,)."""
        return self.grad - self.alpha / self.penalties

    @property
    def pinned(self) -> npt.NDArray[np.bool_]:
        """Vertices that are never pruned, shape (m,); to be written to."""
        return self._vectors["pinned"].view

    @property
    def capacity(self) -> int:
        """Largest number of vertices."""
        return self._kernel_rows.capacity

    @property
    def quantised(self) -> bool:
        """Whether kernel values are rounded to 16 bits, so that the gradient needs renewal."""
        return bool(self._kernel_rows.dtype == np.uint16)

    @property
    def precise(self) -> bool:
        """Whether kernel values are float64, since float32 ones would mislead the steps."""
        return bool(self._kernel_rows.dtype == np.float64)

    def kernel_row(self, place: int) -> npt.NDArray[Any]:
        """Kernel values between one vertex and all, shape (m,)."""
        return self._kernel_rows.row(place, self.engine, self.operand)

    def prepare(self, rows: Rows) -> Operand:
        """Rows made ready for products, in the precision of the kernel values."""
        return self.engine.prepare(rows, exact=self.precise)

    @property
    def rows(self) -> Rows:
        """Rows of the vertices, shape (m, n_features)."""
        return self._rows.view

    @property
    def operand(self) -> Operand:
        """Rows of the vertices made ready for products, in the precision of the kernel values."""
        if self.precise:
            return self.engine.prepare(self.rows, exact=True)
        norms, terms = self._vectors["norms"].view, self._vectors["terms"].view
        return Operand(self._values.view, norms, terms, self.engine.arithmetic.fast)

    @property
    def vertices(self) -> core.Vertices:
        """Weights, gradient, diagonal and labels as compiled functions take them."""
        return core.Vertices(self.alpha, self.grad, self.diag, self.labels)

    @property
    def support(self) -> npt.NDArray[np.intp]:
        """Places of the vertices of positive weight."""
        return np.flatnonzero(self.alpha)

    def place_of(self, row_id: int) -> int | None:
        """Place of the vertex of a source row, None when it is outside."""
        return self._places.get(row_id)

    def outside(self, row_ids: Int64Array) -> npt.NDArray[np.intp]:
        """Positions in `row_ids` of rows that are no vertices."""
        places = self._places
        return np.flatnonzero([row not in places for row in row_ids.tolist()])

    def places_of(self, row_ids: Int64Array) -> npt.NDArray[np.intp]:
        """Places of vertices, given by their source rows."""
        return np.array([self._places[row] for row in row_ids.tolist()], dtype=np.intp)

    def relative_gap(self) -> float:
        """Relative duality gap of the problem restricted to the active set."""
        return relative_gap(self.rho, float(self.grad[core.argmin(self.grad)]))

    def squared_norm(self) -> float:
        """|w|^2 + b^2 = rho - sum alpha_i^2 / C_i."""
        if self._penalties is None:
            return self.rho - float(self.alpha @ self.alpha) / self._C
        return self.rho - float(self.alpha @ (self.alpha / self.penalties))

    def decision_at(self, x: Operand) -> Float64Array:
        """w.phi(x) + b, shape (len(x),), of rows that `prepare` made ready.

        Times its label it is the gradient at a row that is no vertex.
        """
        beta = self.alpha * self.labels
        return np.asarray(self.engine.weighted_sum(x, self.operand, beta) + beta.sum())

    def gradient_at(self, first: int, alpha: Float64Array) -> Float64Array:
        """Gradient at the vertices from place `first` on, at which `alpha` has no weight.

        Parameters
        ----------
        first : int
            Place of the first of them.
        alpha : ndarray of float64, shape (first,)
            Weights of the vertices before, whose gradient is asked for.
        """
        x = self.operand
        beta = alpha * self.labels[:first]
        sums = np.empty(len(x) - first)
        rows = self._kernel_rows
        slots = rows.slots[first:]
        if (slots < 0).any():
            sums[:] = self.engine.weighted_sum(x[first:], x[:first], beta)
        else:

            def weigh(part: slice) -> None:
                core.weigh_rows(rows.values, slots[part], beta, sums[part])

            self.engine.share(len(sums), len(sums) * first, weigh)
            sums *= rows.unit
        return np.asarray(self.labels[first:] * (sums + beta.sum()))

    def clear(self) -> None:
        """Forget all vertices."""
        none = np.empty(0, dtype=np.int64)
        self._kernel_rows.keep(none)
        self._rows.keep(none)
        if self._values is not self._rows:
            self._values.keep(none)
        for vector in self._vectors.values():
            vector.keep(none)
        self._places = {}

    # -- growing and shrinking -------------------------------------------------------------------

    def add(self, row_ids: Int64Array, rows: Rows, labels: Int8Array) -> None:
        """Add vertices of weight 0; rows that are vertices already are left alone.

        Costs len(rows) x m kernel values.

        Raises
        ------
        BlockBudgetError
            When there would be more vertices than memory allows; nothing has changed then.
        """
        new = self.outside(row_ids)
        if len(new) == 0:
            return
        if len(new) < len(row_ids):
            rows = take_rows(rows, new)
        before, m = len(self), len(self) + len(new)
        if m > self._kernel_rows.capacity:
            raise BlockBudgetError
        y = labels[new].astype(np.float64)
        operand = self.engine.prepare(rows)
        largest_new = float(self.engine.kernel.diagonal(operand.norms).max())
        wanted = self._type_for(m, largest_new)
        self._hold(max(wanted, self._kernel_rows.dtype) if m <= LARGEST_SYSTEM else wanted)
        if before == 0 and operand.values is not rows:
            self._values = GrowingRows()
        self._rows.append(rows)
        if self._values is not self._rows:
            self._values.append(operand.values)
        self._append("ids", row_ids[new])
        self._append("labels", y)
        self._append("norms", operand.norms)
        self._append("terms", operand.terms)
        own = 1 / self.penalty_of(row_ids[new])
        self._append("diag", self.engine.kernel.diagonal(operand.norms) + 1 + own)
        for place, row in enumerate(row_ids[new].tolist(), start=before):
            self._places[row] = place
        self._kernel_rows.add(len(new), self.engine, self.operand)
        self._append("grad", self.gradient_at(before, self.alpha))
        self._append("alpha", np.zeros(len(new)))
        self._append("pinned", np.zeros(len(new), dtype=np.bool_))

    # -- precision of kernel values --------------------------------------------------------------

    def _type_for(self, m: int, largest_new: float = 0.0) -> np.dtype[Any]:
        """Type of kernel values that m vertices need; new ones have k(x, x) up to `largest_new`."""
        largest = max(largest_new, float(self.diag.max(initial=0.0)))
        wanted = value_type(m, self._largest_C, largest, self._quantised)
        return max(wanted, self._least_type)

    def _hold(self, dtype: np.dtype[Any]) -> None:
        """Hold kernel values in some type; where it is another one, renew the gradient."""
        if dtype == self._kernel_rows.dtype:
            return
        self._kernel_rows.change(dtype)
        if len(self) > 0:
            logger.info("%d vertices: their kernel values are held in %s", len(self), dtype)
            self._kernel_rows.fill(self.engine, self.operand)
            self.refresh()

    def widen(self) -> bool:
        """Hold kernel values in the next type from now on; False when they are float64."""
        if self.precise:
            return False
        self._least_type = np.dtype(np.float32 if self.quantised else np.float64)
        self._hold(self._least_type)
        return True

    def take_systems(self) -> bool:
        """Turn to float64 kernel values, for linear systems in place of steps that take too long.

        False where there are too many vertices; they turn back where these become too many.
        """
        if len(self) <= LARGEST_SYSTEM:
            self._hold(np.dtype(np.float64))
        return self.precise

    def _append(self, name: str, block: npt.NDArray[np.generic]) -> None:
        self._vectors[name].append(block)

    def prune(
        self, spare: float = SPARE_SHARE, protected: npt.NDArray[np.bool_] | None = None
    ) -> Int64Array | None:
        """Remove vertices of weight 0 that neither violate nor are pinned, once they are many.

        Parameters
        ----------
        spare : float
            Share of all vertices that they must be more than.
        protected : ndarray of bool, shape (m,)
            Vertices that stay whatever their weight.

        Returns
        -------
        places : ndarray of int64 or None
            The old places of the vertices kept, None when nothing was removed.
        """
        idle = (self.alpha == 0) & (self.grad >= self.rho) & ~self.pinned
        if protected is not None:
            idle &= ~protected
        if np.count_nonzero(idle) <= spare * len(self):
            return None
        keep = np.flatnonzero(~idle)
        self._kernel_rows.keep(keep)
        self._rows.keep(keep)
        if self._values is not self._rows:
            self._values.keep(keep)
        for vector in self._vectors.values():
            vector.keep(keep)
        self._places = {row: place for place, row in enumerate(self.ids.tolist())}
        return keep

    # -- checkpoints -----------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What cannot be computed again from the rows: arrays, and values for JSON.

        The gradient is among it: its last bits depend on the steps that led to it.
        """
        arrays = {name: self._vectors[name].view for name in ("ids", "alpha", "grad", "pinned")}
        rows = {f"rows_{name}": value for name, value in self._kernel_rows.state().items()}
        numbers = {"rho": self.rho, "rounding": self.rounding}
        return {**arrays, **rows, **numbers, "least_type": self._least_type.name}

    def restore(self, state: dict[str, Any], rows: Rows, labels: Int8Array) -> None:
        """Fill an empty active set from what `state` gave and the rows and labels of its vertices.

        Raises
        ------
        BlockBudgetError
            When the kernel block would outgrow its budget.
        """
        self._least_type = np.dtype(state["rows_type"])  # vertices come all at once
        self.add(state["ids"], rows, labels)
        held = {name.removeprefix("rows_"): state[name] for name in state if name[:5] == "rows_"}
        self._kernel_rows.restore(held, self.engine, self.operand)
        for name in ("alpha", "grad", "pinned"):
            self._vectors[name].view[:] = state[name]
        self.rho, self.rounding = state["rho"], state["rounding"]
        self._least_type = np.dtype(state["least_type"])

    # -- moving ----------------------------------------------------------------------------------

    def set_weights(self, alpha: Float64Array) -> None:
        """Take `alpha`, scaled to sum 1, as the weights, and compute their gradient in float64."""
        self.alpha[:] = alpha / alpha.sum()
        self.refresh()

    def aim_at(self, C: float) -> None:
        """Take another penalty of all rows, with the same weights; O(m).

        Kernel values stay, unless the other penalty needs or allows another type of them.
        """
        change = 1 / C - 1 / self._C
        self._C, self._penalties, self._largest_C = C, None, C
        self.diag[:] += change
        self.grad[:] += change * self.alpha
        self.rho = float(self.alpha @ self.grad)
        self.pinned[:] = False
        self._least_type = min(self._least_type, np.dtype(np.float32))
        self._hold(self._type_for(len(self)))

    def refresh(self) -> None:
        """Compute the gradient anew from float64 kernel values; costs m^2 / 2 of them.

        Steps update the gradient with float32 kernel values. Their rounding is proportional to the
        weight moved, so that steps and refreshes in turn converge far below float32 accuracy.
        """
        self.alpha[:] /= self.alpha.sum()
        beta = self.alpha * self.labels
        x = self.engine.prepare(self.rows, exact=True)
        sums = self.engine.symmetric_sum(x, beta)
        self.grad[:] = self.labels * (sums + beta.sum()) + self.alpha / self.penalties
        self.rho = float(self.alpha @ self.grad)
        # Of the kernel sums, and of the sums over weights, and weights times gradients.
        sums_over_vertices = (len(self) + 4) * FLOAT64_UNIT * (1 + float(np.abs(self.grad).max()))
        self.rounding = float(self.engine.error_bound(x, x).max()) + sums_over_vertices

    def move(
        self, scale: float, i: int, weight_i: float, j: int = -1, weight_j: float = 0.0
    ) -> None:
        """Alpha = scale * alpha + weight_i e_i + weight_j e_j, gradient and rho included."""
        j = i if j < 0 else j
        rows = self._kernel_rows
        rows.fetch(
            np.array([i, j] if i < j else [j, i] if j < i else [i]), self.engine, self.operand
        )
        self.rho = core.move(self.vertices, rows.block, scale, i, weight_i, j, weight_j)

    def _soon_needed(self, missing: int, grad: npt.NDArray[Any]) -> Int64Array:
        """A vertex whose row a step lacks, and others that steps will soon want.

        They come from the end of the gradient that the vertex is at. Computing several rows costs
        little more than one.
        """
        absent = np.flatnonzero(self._kernel_rows.slots < 0)
        n = min(_FETCHED, self._kernel_rows.batch, len(absent)) - 1
        order = grad[absent]
        if grad[missing] > self.rho:
            order = np.where(self.alpha[absent] > 0, -order, np.inf)
        likely = absent[np.argpartition(order, n)[:n]]
        return np.unique(np.append(likely, missing))

    def optimise(
        self, tol: float, max_steps: int, is_late: Callable[[], bool] | None = None
    ) -> tuple[int, int]:
        """Pairwise steps until the relative gap on the active set is at most `tol`.

        `is_late` is asked now and then whether to stop; the weights are feasible whenever they do.

        Returns
        -------
        steps, drops : int
            Steps taken, and how many of them dropped a vertex.
        """
        rows = self._kernel_rows
        steps, drops = self._solve_systems(tol, max_steps) if self.precise else (0, 0)
        narrow = tol >= _FLOAT32_GAP and not self.precise
        grad = self.grad.astype(np.float32) if narrow else self.grad
        vertices = self.vertices._replace(grad=grad)
        moved = False
        at_once = max(1, int(_STEP_WORK / len(self)))
        while True:
            rows.clock += 1  # rows of the next step are used after those just fetched
            taken, dropped, _, missing = core.optimise_pairwise(
                vertices, rows.block, rows.clock, tol, min(max_steps - steps, at_once)
            )
            moved = moved or taken > 0
            steps, drops, rows.clock = steps + taken, drops + dropped, rows.clock + taken
            if is_late is not None and is_late():
                break
            if missing < 0:
                if taken < at_once or steps >= max_steps:
                    break
                continue
            rows.fetch(self._soon_needed(missing, grad), self.engine, self.operand)
        if moved:
            self.grad[:] = grad
            self.rho = float(self.alpha @ self.grad)
        return steps, drops

    def _solve_systems(self, tol: float, max_steps: int) -> tuple[int, int]:
        """Pairwise steps replaced by linear systems on the free vertices, while these are few.

        Badly conditioned problems, of large kernel values or penalties, would take millions of
        steps. The result counts as many steps as would have taken the same time.
        """
        rows, y = self._kernel_rows, self.labels
        n_free = np.count_nonzero((self.alpha > 0) | (self.grad < self.rho * (1 - tol)))
        fits = n_free <= LARGEST_SYSTEM and rows.whole_fits(_SYSTEM_COPIES, int(n_free))
        each = max(1, int(n_free) ** 2 // _SYSTEM_STEPS)
        if not fits or not rows.whole or max_steps < each or self.relative_gap() <= tol:
            return 0, 0

        def matrix(places: npt.NDArray[np.intp]) -> Float64Array:
            block = rows.values[np.ix_(rows.slots[places], places)] + 1.0
            block *= y[places, None] * y[places]
            np.fill_diagonal(block, self.diag[places])
            return np.asarray(block)

        def gradient(alpha: Float64Array) -> Float64Array:
            sums = np.empty(len(alpha))
            beta = alpha * y
            core.weigh_rows(rows.values, rows.slots, beta, sums)
            return np.asarray(y * (sums + beta.sum()) + alpha / self.penalties)

        found = minimise(matrix, gradient, self.alpha, tol, max_steps // each)
        drops = np.count_nonzero((self.alpha > 0) & (found.alpha == 0))
        self.alpha[:], self.grad[:] = found.alpha, found.grad
        self.rho = float(self.alpha @ self.grad)
        return found.n_systems * each, int(drops)
