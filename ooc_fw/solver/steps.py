"""The step rules: from a toward vertex to the next iterate.

Rules that move one or two vertices are compiled, see `ooc_fw._core.walk`: an oracle that keeps the
gradient of rows takes many of their steps at once, and `StepRule.step` takes one on the active set
alone. To add one: a `Rule` there, and here a class that names it and its place in `_RULES`. Rules
know nothing of disk or of the oracle.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from ooc_fw._core.walk import Active, Field, Looks, Rule, Walk, given_columns, take_steps
from ooc_fw.data.rows import Float64Array, Int64Array
from ooc_fw.solver.active_set import SPARE_SHARE, ActiveSet
from ooc_fw.solver.state import StepKind
from ooc_fw.solver.systems import never

# Pairwise steps for each vertex after which a corrective step ends; the next one continues.
INNER_STEPS_PER_VERTEX = 50
_SYSTEM_STEPS_PER_VERTEX = 400  # the same where the step also solves linear systems
LEAST_BATCH = 512  # vertices that a rule which takes many may always add at once
# In the order of `ooc_fw._core.walk.Move`.
WALK_KINDS = StepKind.TOWARD, StepKind.AWAY, StepKind.PAIRWISE, StepKind.PARTAN


@dataclass(frozen=True)
class Effort:
    """How far a step on the whole active set goes; single steps do not ask."""

    tol: float = 0.0  # relative gap on the active set at which it ends
    is_late: Callable[[], bool] = never  # asked now and then whether to cut it short


NO_LIMIT = Effort()  # until rounding allows no more


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


class StepRule:
    """A rule; subclasses override `step`, and the rest where they remember iterates."""

    name: ClassVar[str]
    takes_many: ClassVar[bool] = False  # whether one step can use many new vertices at once
    optimises: ClassVar[bool] = False  # whether a step optimises on the whole active set
    extrapolates: ClassVar[bool] = False  # whether a step goes on from an earlier iterate
    rule: ClassVar[Rule] = Rule.FW  # its single steps
    walks: ClassVar[bool] = True  # whether it takes no others

    def step(self, active: ActiveSet, i: int, effort: Effort = NO_LIMIT) -> StepRecord:
        """Move the weights, given the place `i` of the toward vertex."""
        m, kernel_rows, places = len(active), active.kernel_rows, np.arange(len(active))
        walk = Walk.begin(m, active.rho)
        weights, grad_before = self.begin(active, walk, places, m)
        ridge = np.atleast_1d(1 / np.asarray(active.penalties))
        field = Field(active.grad, grad_before, active.labels, active.diag, ridge, places.copy())
        columns, drawn = given_columns(kernel_rows.block), np.array([[i]])
        rule, looks = int(self.rule), int(Looks.DRAWN)
        walk.clock[0] = kernel_rows.clock
        while take_steps(rule, looks, field, weights, columns, drawn, walk, 1):
            kernel_rows.fetch(walk.lacking, active.engine, active.operand)
            walk.clock[0] = kernel_rows.clock
        self.remember(walk, weights, field.before)
        active.alpha[:], active.rho = weights.alpha, float(walk.rho[0])
        kind, moved = WALK_KINDS[int(walk.kinds.argmax())], walk.moved >= 0
        ids, changes, numbers = active.ids[walk.moved[moved]], walk.weights[moved], walk.scale
        extrapolation, drops = float(walk.extrapolation[0]), int(walk.drops[0])
        return StepRecord(kind, float(numbers[0]), ids, changes, extrapolation, drops)

    def begin(
        self, active: ActiveSet, walk: Walk, rows: Int64Array, room: int
    ) -> tuple[Active, Float64Array]:
        """Weights for a walk, with room for so many vertices, which are `rows` of its field.

        And the gradient at the active set of the iterate before, of a rule that goes on from it.
        """
        weights = Active(*np.zeros((1, room), dtype=np.int64), *np.zeros((2, room)))
        weights.rows[: len(active)], weights.alpha[: len(active)] = rows, active.alpha
        return weights, np.empty(0)

    def remember(self, walk: Walk, weights: Active, grad: Float64Array) -> None:
        """Take note of the iterate before the last step of a walk, and its gradient there."""

    def reset(self) -> None:
        """Forget earlier iterates; called when the weights were changed from outside."""

    def prune(self, active: ActiveSet, spare: float = SPARE_SHARE) -> None:
        """Remove vertices without weight, if they are more than the share `spare` of all."""
        active.prune(spare)


class FrankWolfe(StepRule):
    """Toward steps only (Frank and Wolfe 1956; MEB paper, algorithm 2)."""

    name, rule = "fw", Rule.FW


class AwayFrankWolfe(StepRule):
    """Away steps where they have the larger slope (MFW; MEB paper, algorithm 3)."""

    name, rule = "mfw", Rule.MFW


class Pairwise(StepRule):
    """Pairwise steps where, clipped, they lower f more than toward ones (SWAP paper, alg. 4)."""

    name, rule = "swap", Rule.SWAP


class SecondOrderPairwise(StepRule):
    """Pairwise steps with the second-order choice of j (SWAP-2o; SWAP paper, algorithm 5)."""

    name, rule = "swap2", Rule.SWAP2


class Partan(StepRule):
    """Toward step, then an extrapolation from the iterate before (PARTAN paper, algorithm 2).

    From the toward step's iterate a~ it moves along d = a~ - a_previous by the exact line search
    clipped so that all weights stay non-negative. Both gradients on the active set are held.
    """

    name, rule = "partan", Rule.PARTAN
    extrapolates = True
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

    def begin(
        self, active: ActiveSet, walk: Walk, rows: Int64Array, room: int
    ) -> tuple[Active, Float64Array]:
        weights, _ = super().begin(active, walk, rows, room)
        if self._before is None:
            return weights, np.zeros(len(active))
        weights.before[: len(active)], grad = self._aligned(active, self._before)
        walk.has_before[0] = 1
        return weights, grad

    def remember(self, walk: Walk, weights: Active, grad: Float64Array) -> None:
        self._before = np.stack([weights.before[: len(grad)], grad]) if walk.has_before[0] else None


class FullyCorrective(StepRule):
    """Optimisation on the whole active set, by steps of SWAP-2o (CVM; MEB paper, algorithm 1)."""

    name, walks = "cvm", False
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


_RULES: tuple[type[StepRule], ...] = (
    FrankWolfe,
    AwayFrankWolfe,
    Pairwise,
    SecondOrderPairwise,
    Partan,
    FullyCorrective,
    Corrective,
)
STEP_RULES: dict[str, type[StepRule]] = {rule.name: rule for rule in _RULES}
