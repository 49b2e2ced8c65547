"""The step rules: from a toward vertex to the next iterate, on the active set alone.

A rule gets the active set and the place i of the toward vertex in it, moves the weights and says
what it did. With f = rho / 2, gradient g and Q restricted to the active set, every step size is the
exact line search clipped to the simplex:

======== =========== ============================================= ===================
step     direction   step size                                     bound
======== =========== ============================================= ===================
toward   e_i - a     (rho - g_i) / (Q_ii - 2 g_i + rho)            1
away     a - e_j     (g_j - rho) / (Q_jj - 2 g_j + rho)            a_j / (1 - a_j)
pairwise e_i - e_j   (g_j - g_i) / (Q_ii + Q_jj - 2 Q_ij)          a_j
======== =========== ============================================= ===================

To add a rule: a class here and its place in `_RULES`. Rules know nothing of disk or of the oracle.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from ooc_fw._core import steps as core
from ooc_fw._core.pairwise import LANES, second_order_away
from ooc_fw.data.rows import Float64Array, Int64Array
from ooc_fw.solver.active_set import SPARE_SHARE, ActiveSet, affine_minimum, never
from ooc_fw.solver.state import Resumable, StepKind

INNER_STEPS_PER_VERTEX = 50
"""Pairwise steps for each vertex after which a corrective step ends; the next one continues."""

_SYSTEM_STEPS_PER_VERTEX = 400  # the same where the step also solves linear systems
LEAST_BATCH = 512  # vertices that a rule which takes many may always add at once
LEAST_CORRECTION = 16
"""Vertices by which the support has to grow before a step to its affine minimum."""

_CORRECTION_GROWTH = 8  # the same as a part of the support


@dataclass(frozen=True)
class Effort:
    """How far a step on the whole active set goes; single steps do not ask."""

    tol: float = 0.0  # relative gap on the active set at which it ends
    is_late: Callable[[], bool] = never  # asked now and then whether to cut it short


NO_LIMIT = Effort()
"""Optimise until rounding allows no more."""


@dataclass(frozen=True)
class StepRecord:
    """What a step did: alpha_new = scale * alpha + sum_k weights_k e_ids_k, then PARTAN's part."""

    kind: StepKind
    scale: float  # factor of the old weights
    ids: Int64Array  # source rows whose weights changed beyond the scale
    weights: Float64Array  # by how much
    # mu of PARTAN: the iterate moved on by mu times its difference from the iterate before.
    extrapolation: float = 0.0
    drops: int = 0  # vertices whose weight became exactly 0
    cut: bool = False  # whether it ended early since time is short

    @classmethod
    def corrective(cls, active: ActiveSet, before: Float64Array, drops: int) -> StepRecord:
        """Record of a move of any vertices from the weights `before`."""
        change = active.alpha - before
        moved = np.flatnonzero(change)
        return cls(StepKind.CORRECTIVE, 1.0, active.ids[moved], change[moved], drops=drops)


class StepRule(Resumable):
    """A rule; subclasses override `step`, and the rest where they remember iterates."""

    name: ClassVar[str]
    takes_many: ClassVar[bool] = False  # whether one step can use many new vertices at once
    optimises: ClassVar[bool] = False  # whether a step optimises on the whole active set
    extrapolates: ClassVar[bool] = False  # whether a step goes on from an earlier iterate

    def step(self, active: ActiveSet, i: int, effort: Effort = NO_LIMIT) -> StepRecord:
        """Move the weights, given the place `i` of the toward vertex."""
        return toward_step(active, i)

    def reset(self) -> None:
        """Forget earlier iterates; called when the weights were changed from outside."""

    def prune(self, active: ActiveSet, spare: float = SPARE_SHARE) -> None:
        """Remove vertices without weight, if they are more than the share `spare` of all."""
        active.prune(spare)


def _line_search(slope: float, curvature: float, bound: float) -> tuple[float, float]:
    """Exact step size on [0, bound], without curvature the bound; and the decrease of f."""
    size = 0.0
    if slope > 0:
        size = float(slope / curvature if curvature * bound > slope else bound)
    return size, float(size * slope - size * size * curvature / 2)


def toward_size(active: ActiveSet, i: int) -> tuple[float, float]:
    """Step size towards vertex i, and the decrease of f it brings."""
    g, rho = active.grad[i], active.rho
    return _line_search(rho - g, active.diag[i] - 2 * g + rho, 1.0)


def toward_step(active: ActiveSet, i: int) -> StepRecord:
    """Step along e_i - a."""
    size, _ = toward_size(active, i)
    drops = len(active.support) - int(active.alpha[i] > 0) if size == 1 else 0
    active.move(1 - size, i, size)
    return StepRecord(StepKind.TOWARD, 1 - size, active.ids[[i]], np.array([size]), drops=drops)


def away_step(active: ActiveSet, j: int) -> StepRecord:
    """Step along a - e_j; at its bound vertex j leaves the support."""
    g, rho, weight = active.grad[j], active.rho, active.alpha[j]
    bound = float(weight / (1 - weight))
    size, _ = _line_search(g - rho, active.diag[j] - 2 * g + rho, bound)
    active.move(1 + size, j, -size)
    if size == bound:
        active.alpha[j] = 0.0
    drops, weights = int(size == bound), np.array([-size])
    return StepRecord(StepKind.AWAY, 1 + size, active.ids[[j]], weights, drops=drops)


def pairwise_size(active: ActiveSet, i: int, j: int) -> tuple[float, float]:
    """Step size along e_i - e_j, and the decrease of f it brings."""
    q_ij = active.labels[i] * active.labels[j] * (float(active.kernel_row(i)[j]) + 1)
    curvature = active.diag[i] + active.diag[j] - 2 * q_ij
    return _line_search(active.grad[j] - active.grad[i], curvature, float(active.alpha[j]))


def pairwise_step(active: ActiveSet, i: int, j: int, size: float) -> StepRecord:
    """Move weight `size` from vertex j to vertex i."""
    active.move(1.0, i, size, j, -size)
    drops, weights = int(active.alpha[j] == 0.0), np.array([size, -size])
    return StepRecord(StepKind.PAIRWISE, 1.0, active.ids[[i, j]], weights, drops=drops)


class FrankWolfe(StepRule):
    """Toward steps only (Frank and Wolfe 1956; MEB paper, algorithm 2)."""

    name = "fw"


def _away_vertex(active: ActiveSet) -> int:
    """Place of the support vertex of largest gradient."""
    return int(np.where(active.alpha > 0, active.grad, -np.inf).argmax())


class AwayFrankWolfe(StepRule):
    """Away steps where they have the larger slope (MFW; MEB paper, algorithm 3)."""

    name = "mfw"

    def step(self, active: ActiveSet, i: int, effort: Effort = NO_LIMIT) -> StepRecord:
        j = _away_vertex(active)
        toward_slope, away_slope = active.rho - active.grad[i], active.grad[j] - active.rho
        if away_slope > toward_slope and active.alpha[j] < 1:
            return away_step(active, j)
        return toward_step(active, i)


class Pairwise(StepRule):
    """Pairwise steps where, clipped, they lower f more than toward ones (SWAP paper, alg. 4)."""

    name = "swap"

    def away_place(self, active: ActiveSet, i: int) -> int:
        """Place of the support vertex that gives weight up, -1 for none."""
        j = _away_vertex(active)
        return j if j != i and active.grad[j] > active.grad[i] else -1

    def step(self, active: ActiveSet, i: int, effort: Effort = NO_LIMIT) -> StepRecord:
        j = self.away_place(active, i)
        if j >= 0:
            size, decrease = pairwise_size(active, i, j)
            if decrease >= toward_size(active, i)[1]:
                return pairwise_step(active, i, j, size)
        return toward_step(active, i)


class SecondOrderPairwise(Pairwise):
    """Pairwise steps with the second-order choice of j (SWAP-2o; SWAP paper, algorithm 5)."""

    name = "swap2"

    def away_place(self, active: ActiveSet, i: int) -> int:
        away = np.where(active.alpha > 0, active.labels, 0.0)
        scratch = np.empty(LANES)
        block = active.hold([i])
        return int(second_order_away(active.vertices, away, block, i, 1 / active.rho, scratch))


class BlendedPairwise(StepRule):
    """Pairwise steps within the support where their slope is at least that of the toward step.

    A new vertex comes in only where the support has nothing better to offer, which keeps it small.

    References
    ----------
    Tsuji, Tanaka, Pokutta (2022), Pairwise conditional gradients without swap steps and sparser
    kernel herding, algorithm 1 (BPCG).
    """

    name = "bpcg"

    def step(self, active: ActiveSet, i: int, effort: Effort = NO_LIMIT) -> StepRecord:
        support = active.support
        j = _away_vertex(active)
        k = int(support[np.argmin(active.grad[support])])
        if j != k and active.grad[j] - active.grad[k] >= active.rho - active.grad[i]:
            size, _ = pairwise_size(active, k, j)
            return pairwise_step(active, k, j, size)
        return toward_step(active, i)


class QuadraticCorrection(BlendedPairwise):
    """Blended pairwise steps, and now and then one to the affine minimum on the support.

    The affine minimum has the weights of sum 1, perhaps negative ones, at which all gradients on
    the support are equal. The step towards it ends where the first weight becomes 0, as in Wolfe's
    algorithm for the point of least norm. It is taken whenever the support has grown by a share of
    its size, so that its linear systems cost no more than all the other steps.

    References
    ----------
    Halbey, Rakotomandimby, Besancon, Designolle, Pokutta (2025), Efficient quadratic corrections
    for Frank-Wolfe algorithms. Wolfe (1976), Finding the nearest point in a polytope.
    """

    name = "qc"
    saved = ("_next",)
    _next = LEAST_CORRECTION  # size of the support from which the next correction is due

    def step(self, active: ActiveSet, i: int, effort: Effort = NO_LIMIT) -> StepRecord:
        support = active.support
        if len(support) >= self._next:
            self._next = len(support) + max(LEAST_CORRECTION, len(support) // _CORRECTION_GROWTH)
            record = self._correct(active, support)
            if record is not None:
                return record
        return super().step(active, i, effort)

    def _correct(self, active: ActiveSet, support: Int64Array) -> StepRecord | None:
        """Step to the affine minimum; None where it cannot be had or is no other point."""
        target = affine_minimum(active, support)
        if target is None:
            return None
        before = active.alpha.copy()
        # `extrapolate` moves along the way from an earlier iterate to this one. Here the way is
        # that from this iterate to the target, so that the earlier one is its mirror image.
        alpha, grad = 2 * before - target[0], 2 * active.grad - target[1]
        size, drops = core.extrapolate(active.alpha, active.grad, alpha, grad)
        if size == 0.0:
            return None
        active.rho = float(active.alpha @ active.grad)
        return StepRecord.corrective(active, before, int(drops))


class Partan(StepRule):
    """Toward step, then an extrapolation from the iterate before (PARTAN paper, algorithm 2).

    From the toward step's iterate a~ it moves along d = a~ - a_previous by the exact line search
    clipped so that all weights stay non-negative. Both gradients on the active set are held.
    """

    name = "partan"
    extrapolates = True
    saved = ("_before",)
    _before: Float64Array | None = None  # (2, m): weights and gradient of the iterate before

    def reset(self) -> None:
        self._before = None

    def prune(self, active: ActiveSet, spare: float = SPARE_SHARE) -> None:
        if self._before is None:
            return
        before = self._aligned(active, self._before)
        keep = active.prune(spare, protected=before[0] > 0)
        if keep is not None:
            self._before = before.take(keep, axis=1)

    def _aligned(self, active: ActiveSet, before: Float64Array) -> Float64Array:
        """The iterate before over the present vertices; new ones have weight 0 in it."""
        m = before.shape[1]
        if m == len(active):
            return before
        grad = active.gradient_at(m, before[0])
        return np.hstack([before, [np.zeros(len(grad)), grad]])

    def step(self, active: ActiveSet, i: int, effort: Effort = NO_LIMIT) -> StepRecord:
        before = None if self._before is None else self._aligned(active, self._before)
        self._before = np.stack([active.alpha, active.grad])
        toward = toward_step(active, i)
        if before is None:
            return toward
        size, drops = core.extrapolate(active.alpha, active.grad, before[0], before[1])
        if size == 0.0:
            return toward
        active.rho = float(active.alpha @ active.grad)
        return replace(toward, kind=StepKind.PARTAN, extrapolation=size, drops=int(drops))


class FullyCorrective(StepRule):
    """Optimisation on the whole active set, by steps of SWAP-2o (CVM; MEB paper, algorithm 1)."""

    name = "cvm"
    optimises = True

    def step(self, active: ActiveSet, i: int, effort: Effort = NO_LIMIT) -> StepRecord:
        before = active.alpha.copy()
        drops, cut = self._optimise(active, effort)
        if active.note_correction(finished=cut or active.relative_gap() <= effort.tol):
            dropped, cut = self._optimise(active, effort)
            drops += dropped
        return replace(StepRecord.corrective(active, before, drops), cut=cut)

    def _optimise(self, active: ActiveSet, effort: Effort) -> tuple[int, bool]:
        """Take pairwise steps; how many dropped a vertex, and whether time is short."""
        each = _SYSTEM_STEPS_PER_VERTEX if active.precise else INNER_STEPS_PER_VERTEX
        _, drops = active.optimise(effort.tol, each * len(active), effort.is_late)
        return drops, effort.is_late()


class Corrective(FullyCorrective):
    """The same after many violators have been added at once."""

    name = "corrective"
    takes_many = True


_SINGLE = FrankWolfe, AwayFrankWolfe, Pairwise, SecondOrderPairwise, Partan, BlendedPairwise
_RULES = *_SINGLE, QuadraticCorrection, FullyCorrective, Corrective
STEP_RULES: dict[str, type[StepRule]] = {rule.name: rule for rule in _RULES}
