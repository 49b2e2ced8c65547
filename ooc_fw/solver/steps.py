"""The step rules: from a toward vertex to the next iterate.

Rules that move one or two vertices are compiled, see `ooc_fw._core.rules`. To add one, write its
choice there, and here a class and a line in `_RULES`. Rules know neither the disk nor the oracle.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ooc_fw._core import rules as core
from ooc_fw._core.rules import Limits, Rule
from ooc_fw._core.steps import Vertices
from ooc_fw.solver.active_set import SPARE_SHARE, ActiveSet
from ooc_fw.solver.state import StepKind
from ooc_fw.solver.systems import never

# A corrective step takes at most so many pairwise steps for each vertex; the next one continues.
INNER_STEPS_PER_VERTEX = 50
LEAST_BATCH = 512  # a rule that takes many vertices may always add so many at once
# In the order of the counts of `ooc_fw._core.rules`.
_KINDS = StepKind.TOWARD, StepKind.AWAY, StepKind.PAIRWISE, StepKind.PARTAN, StepKind.DROP


@dataclass(frozen=True)
class Effort:
    """The end of a step on the whole active set; single steps ignore it."""

    tol: float = 0.0  # relative gap on the active set at which the step ends
    is_late: Callable[[], bool] = never  # asked from time to time whether to end the step early


NO_LIMIT = Effort()  # a step ends where rounding ends it


@dataclass(frozen=True)
class Steps:
    """The steps that a rule took."""

    counts: dict[StepKind, int]  # steps of each kind; DROP counts those that dropped a vertex
    gap: float = math.inf  # relative gap over the vertices that a walk looked at last
    passed: bool = False  # whether that gap ended the walk
    cut: bool = False  # whether lack of time ended a step

    @property
    def n_steps(self) -> int:
        """Number of steps."""
        return sum(self.counts.values()) - self.counts[StepKind.DROP]


class StepRule:
    """A rule; subclasses name it, and override `step` if it takes no single steps."""

    name: ClassVar[str]
    takes_many: ClassVar[bool] = False  # whether one step can use many new vertices at once
    optimises: ClassVar[bool] = False  # whether a step optimises on the whole active set
    extrapolates: ClassVar[bool] = False  # whether a step also needs the iterate before
    rule: ClassVar[Rule] = Rule.FW  # the compiled choice of a single step
    walks: ClassVar[bool] = True  # whether it takes single steps only

    def step(self, active: ActiveSet, effort: Effort = NO_LIMIT) -> Steps:
        """Move the weights; the toward vertex has the least gradient."""
        return self.walk(active, Limits(1))

    def walk(self, active: ActiveSet, limits: Limits) -> Steps:
        """Take single steps: see `ooc_fw._core.rules.take_steps`."""
        rows = active.kernel_rows
        counts = np.zeros(core.N_COUNTS, dtype=np.int64)
        vertices = Vertices(active.alpha, active.grad, active.diag, active.labels)
        if self.extrapolates:
            active.learn_before()
        before = active.alpha_before, active.grad_before
        missing = 0
        while missing >= 0:
            rows.clock += 1  # the next step uses its kernel rows after those just fetched
            left = limits._replace(most=limits.most - int(counts[: core.DROPS].sum()))
            passed, gap, active.rho, missing = core.take_steps(
                self.rule, vertices, rows.block, rows.clock, left, counts, before
            )
            rows.clock += left.most
            if missing >= 0:
                upcoming = limits.draws[counts[core.DRAWS] :]
                active.fetch(missing, active.grad, upcoming if limits.draws.size > 0 else None)
        return Steps(dict(zip(_KINDS, counts.tolist(), strict=False)), gap, passed)

    def prune(self, active: ActiveSet, spare: float = SPARE_SHARE) -> None:
        """Remove vertices of weight 0 if their share of all vertices is above `spare`."""
        active.prune(spare, of_before=not self.extrapolates)


class FrankWolfe(StepRule):
    """Toward steps only (Frank and Wolfe 1956; MEB paper, algorithm 2)."""

    name = "fw"
    rule = Rule.FW


class AwayFrankWolfe(StepRule):
    """An away step if it has the larger slope, else a toward step (MFW; MEB paper, algorithm 3)."""

    name = "mfw"
    rule = Rule.MFW


class Pairwise(StepRule):
    """A clipped pairwise step if it lowers f more than a toward step (SWAP paper, algorithm 4)."""

    name = "swap"
    rule = Rule.SWAP


class SecondOrderPairwise(StepRule):
    """Pairwise steps with the second-order choice of j (SWAP-2o; SWAP paper, algorithm 5)."""

    name = "swap2"
    rule = Rule.SWAP2


class Partan(StepRule):
    """A toward step, then an extrapolation from the iterate before (PARTAN paper, algorithm 2).

    The toward step leads to a~. The extrapolation moves from there along d = a~ - a_previous, by an
    exact line search that is clipped so that no weight becomes negative. The rule keeps both
    gradients on the active set.
    """

    name = "partan"
    rule = Rule.PARTAN
    extrapolates = True


class FullyCorrective(StepRule):
    """Optimisation on the whole active set, by steps of SWAP-2o (CVM; MEB paper, algorithm 1)."""

    name = "cvm"
    walks = False
    optimises = True

    def step(self, active: ActiveSet, effort: Effort = NO_LIMIT) -> Steps:
        drops, cut = self._optimise(active, effort)
        if active.note_correction(finished=cut or active.relative_gap() <= effort.tol):
            dropped, cut = self._optimise(active, effort)
            drops += dropped
        return Steps({StepKind.CORRECTIVE: 1, StepKind.DROP: drops}, cut=cut)

    def _optimise(self, active: ActiveSet, effort: Effort) -> tuple[int, bool]:
        """Take pairwise steps; return how many dropped a vertex, and whether time is short."""
        # With precise values the step may also solve linear systems.
        each = 400 if active.precise else INNER_STEPS_PER_VERTEX
        _, drops = active.optimise(effort.tol, each * len(active), effort.is_late)
        return drops, effort.is_late()


class Corrective(FullyCorrective):
    """The same step, with many violators at once as new vertices."""

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
