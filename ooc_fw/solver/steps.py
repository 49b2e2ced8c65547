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

To add a rule: a class here and a line in `STEP_RULES`. Rules know nothing of disk or of the oracle.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from ooc_fw._core import steps as core
from ooc_fw.data.rows import Float64Array, Int64Array
from ooc_fw.solver.active_set import SPARE_SHARE, ActiveSet
from ooc_fw.solver.state import StepKind

INNER_STEPS_PER_VERTEX = 50
"""Pairwise steps for each vertex after which a corrective step is cut; the next one continues."""

_SYSTEM_STEPS_PER_VERTEX = 400  # the same where the step also solves linear systems
_PATIENCE = 2  # unfinished corrective steps in a row, the last of which solves linear systems
LEAST_BATCH = 512  # vertices that a rule which takes many may always add at once
_AIM_SHARE = 0.8
"""Tightest gap to which a fully corrective step optimises, as a share of the tolerance."""

_VIOLATION_SHARE = 0.3
"""Share of the violation just seen to which a fully corrective step optimises."""


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


@dataclass
class StepRule:
    """A rule; subclasses override `step`, and the other methods where they remember iterates."""

    name: ClassVar[str]
    takes_many: ClassVar[bool] = False
    """Whether one step can use many new vertices at once; the oracle then proposes many."""
    inner_tol: float = field(default=0.0)
    """Relative gap to which a fully corrective step optimises; set by the solver each iteration."""
    inner_limit: int | None = field(default=None)
    """Most pairwise steps of a fully corrective step, where time is short; set by the solver."""
    is_late: Callable[[], bool] | None = field(default=None)
    """Asked in a fully corrective step whether to cut it short; set by the solver."""
    inner_steps: int = field(default=0)
    """Pairwise steps that the last one took."""

    def aim(self, tolerance: float, violation: float = 0.0) -> None:
        """Set `inner_tol`, given the target tolerance and the violation just seen."""
        self.inner_tol = max(_VIOLATION_SHARE * violation, _AIM_SHARE * tolerance)

    def step(self, active: ActiveSet, i: int) -> StepRecord:
        """Move the weights, given the place `i` of the toward vertex."""
        return toward_step(active, i)

    def reset(self) -> None:
        """Forget earlier iterates; called when the weights were changed from outside."""

    def prune(self, active: ActiveSet, spare: float = SPARE_SHARE) -> None:
        """Remove vertices without weight, if they are more than the share `spare` of all."""
        active.prune(spare)

    def state(self) -> dict[str, Any]:
        """Arrays, and values for JSON, from which the rule resumes as if never stopped."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Take over what `state` gave."""


# -- single steps --------------------------------------------------------------------------------


def _clipped(slope: float, curvature: float, bound: float) -> float:
    """Exact line search on [0, bound]; the bound itself where rounding leaves no curvature."""
    if slope <= 0:
        return 0.0
    return float(slope / curvature if curvature * bound > slope else bound)


def toward_size(active: ActiveSet, i: int) -> float:
    """Step size towards vertex i."""
    g, rho = active.grad[i], active.rho
    return _clipped(rho - g, active.diag[i] - 2 * g + rho, 1.0)


def toward_step(active: ActiveSet, i: int) -> StepRecord:
    """Step along e_i - a."""
    size = toward_size(active, i)
    drops = len(active.support) - int(active.alpha[i] > 0) if size == 1 else 0
    active.move(1 - size, i, size)
    return StepRecord(StepKind.TOWARD, 1 - size, active.ids[[i]], np.array([size]), drops=drops)


def away_step(active: ActiveSet, j: int) -> StepRecord:
    """Step along a - e_j; at its bound vertex j leaves the support."""
    g, rho, weight = active.grad[j], active.rho, active.alpha[j]
    bound = float(weight / (1 - weight))
    size = _clipped(g - rho, active.diag[j] - 2 * g + rho, bound)
    active.move(1 + size, j, -size)
    dropped = size == bound
    if dropped:
        active.alpha[j] = 0.0
    return StepRecord(
        StepKind.AWAY, 1 + size, active.ids[[j]], np.array([-size]), drops=int(dropped)
    )


def pairwise_size(active: ActiveSet, i: int, j: int) -> tuple[float, float]:
    """Step size along e_i - e_j and the decrease of f it brings."""
    slope = active.grad[j] - active.grad[i]
    q_ij = active.labels[i] * active.labels[j] * (float(active.kernel_row(i)[j]) + 1)
    curvature = active.diag[i] + active.diag[j] - 2 * q_ij
    size = _clipped(slope, curvature, float(active.alpha[j]))
    return size, float(size * slope - size * size * curvature / 2)


def pairwise_step(active: ActiveSet, i: int, j: int, size: float) -> StepRecord:
    """Move weight `size` from vertex j to vertex i."""
    active.move(1.0, i, size, j, -size)
    return StepRecord(
        StepKind.PAIRWISE,
        1.0,
        active.ids[[i, j]],
        np.array([size, -size]),
        drops=int(active.alpha[j] == 0.0),
    )


# -- rules ---------------------------------------------------------------------------------------


class FrankWolfe(StepRule):
    """Toward steps only (Frank and Wolfe 1956; MEB paper, algorithm 2)."""

    name = "fw"


class AwayFrankWolfe(StepRule):
    """Away steps where they have the larger slope (MFW; MEB paper, algorithm 3)."""

    name = "mfw"

    def step(self, active: ActiveSet, i: int) -> StepRecord:
        j = core.away_vertex(active.alpha, active.grad)
        toward_slope, away_slope = active.rho - active.grad[i], active.grad[j] - active.rho
        if away_slope > toward_slope and active.alpha[j] < 1:
            return away_step(active, j)
        return toward_step(active, i)


class Pairwise(StepRule):
    """Pairwise steps where they decrease f more than a toward step (SWAP paper, algorithm 4).

    What is compared is the decrease after clipping, which is what really happens.
    """

    name = "swap"

    def away_place(self, active: ActiveSet, i: int) -> int:
        """Place of the support vertex that gives weight up, -1 for none."""
        j = int(core.away_vertex(active.alpha, active.grad))
        return j if j != i and active.grad[j] > active.grad[i] else -1

    def step(self, active: ActiveSet, i: int) -> StepRecord:
        j = self.away_place(active, i)
        if j >= 0:
            size, decrease = pairwise_size(active, i, j)
            toward = toward_size(active, i)
            g, rho = active.grad[i], active.rho
            curvature = active.diag[i] - 2 * g + rho
            if decrease >= toward * (rho - g) - toward * toward * curvature / 2:
                return pairwise_step(active, i, j, size)
        return toward_step(active, i)


class SecondOrderPairwise(Pairwise):
    """Pairwise steps with the second-order choice of j (SWAP-2o; SWAP paper, algorithm 5)."""

    name = "swap2"

    def away_place(self, active: ActiveSet, i: int) -> int:
        away = np.where(active.alpha > 0, active.labels, 0.0)
        scratch = np.empty(core.LANES)
        row, unit = active.kernel_row(i), np.float32(1)
        return int(
            core.second_order_away(active.vertices, away, row, unit, i, 1 / active.rho, scratch)
        )


@dataclass
class Partan(StepRule):
    """Toward step, then an extrapolation from the iterate before (PARTAN paper, algorithm 2).

    From the toward step's iterate a~ it moves along d = a~ - a_previous by the exact line search
    clipped so that all weights stay non-negative. Both gradients on the active set are held.
    """

    name = "partan"

    def __post_init__(self) -> None:
        self._before: dict[str, Float64Array] | None = None  # previous weights and gradient

    def reset(self) -> None:
        self._before = None

    def prune(self, active: ActiveSet, spare: float = SPARE_SHARE) -> None:
        if self._before is None:
            return
        before = self._aligned(active)
        keep = active.prune(spare, protected=before["alpha"] > 0)
        if keep is not None:
            self._before = {name: vector[keep] for name, vector in before.items()}

    def state(self) -> dict[str, Any]:
        return {} if self._before is None else dict(self._before)

    def restore(self, state: dict[str, Any]) -> None:
        self._before = state or None

    def _aligned(self, active: ActiveSet) -> dict[str, Float64Array]:
        """The previous iterate over the vertices of now; new ones have weight 0 in it."""
        assert self._before is not None
        alpha, grad = self._before["alpha"], self._before["grad"]
        old = len(alpha)
        new = len(active) - old
        if new > 0:
            rest = active.gradient_at(old, alpha)
            alpha, grad = np.append(alpha, np.zeros(new)), np.append(grad, rest)
        return {"alpha": alpha, "grad": grad}

    def step(self, active: ActiveSet, i: int) -> StepRecord:
        before = None if self._before is None else self._aligned(active)
        self._before = {"alpha": active.alpha.copy(), "grad": active.grad.copy()}
        toward = toward_step(active, i)
        if before is None:
            return toward
        size, drops = core.extrapolate(active.alpha, active.grad, before["alpha"], before["grad"])
        if size == 0.0:
            return toward
        active.rho = float(active.alpha @ active.grad)
        return StepRecord(
            StepKind.PARTAN, toward.scale, toward.ids, toward.weights, size, int(drops)
        )


class FullyCorrective(StepRule):
    """Adds the vertex, then optimises on the whole active set (CVM; MEB paper, algorithm 1)."""

    name = "cvm"
    _unfinished = 0  # steps in a row that ended above the gap they aimed at

    def step(self, active: ActiveSet, i: int) -> StepRecord:
        before = active.alpha.copy()
        self.inner_steps = 0
        self.inner_steps, drops = self._optimise(active)
        if self.cut or active.relative_gap() <= self.inner_tol:
            self._unfinished = 0
        else:
            self._unfinished += 1
            turns = self._unfinished >= _PATIENCE and not active.precise
            if turns and active.take_systems():
                steps, more_drops = self._optimise(active)
                self.inner_steps, drops = self.inner_steps + steps, drops + more_drops
        change = active.alpha - before
        moved = np.flatnonzero(change)
        return StepRecord(StepKind.CORRECTIVE, 1.0, active.ids[moved], change[moved], drops=drops)

    def _optimise(self, active: ActiveSet) -> tuple[int, int]:
        """Steps and drops of pairwise steps, as many as there may be."""
        each = _SYSTEM_STEPS_PER_VERTEX if active.precise else INNER_STEPS_PER_VERTEX
        most = each * len(active)
        if self.inner_limit is not None:
            most = min(most, self.inner_limit - self.inner_steps)
        return active.optimise(self.inner_tol, most, self.is_late)

    def state(self) -> dict[str, Any]:
        return {"unfinished": self._unfinished}

    def restore(self, state: dict[str, Any]) -> None:
        self._unfinished = state["unfinished"]

    @property
    def cut(self) -> bool:
        """Whether the last step ended early since time is short."""
        short = self.inner_limit is not None and self.inner_steps >= self.inner_limit
        return short or (self.is_late is not None and self.is_late())


class Corrective(FullyCorrective):
    """Adds many violators at once, then optimises on the whole active set.

    The pairwise second-order steps are those of SWAP-2o, all of them on the kernel block in memory.
    """

    name = "corrective"
    takes_many = True


STEP_RULES: dict[str, type[StepRule]] = {
    rule.name: rule
    for rule in (
        FrankWolfe,
        AwayFrankWolfe,
        Pairwise,
        SecondOrderPairwise,
        Partan,
        FullyCorrective,
        Corrective,
    )
}
