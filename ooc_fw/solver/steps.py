"""The step rules: from a toward vertex to the next iterate.

Rules that move one or two vertices are compiled, see `ooc_fw._core.rules`. To add one: its choice
there, and here a class that names it and its place in `_RULES`. Rules know nothing of disk or of
the oracle.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ooc_fw._core import rules as core
from ooc_fw._core.rules import Rule
from ooc_fw._core.steps import Vertices
from ooc_fw.data.rows import Int64Array
from ooc_fw.solver.active_set import SPARE_SHARE, ActiveSet
from ooc_fw.solver.state import StepKind
from ooc_fw.solver.systems import never

# Pairwise steps for each vertex after which a corrective step ends; the next one continues.
INNER_STEPS_PER_VERTEX = 50
LEAST_BATCH = 512  # vertices that a rule which takes many may always add at once
# In the order of the counts of `ooc_fw._core.rules`.
_KINDS = StepKind.TOWARD, StepKind.AWAY, StepKind.PAIRWISE, StepKind.PARTAN, StepKind.DROP


@dataclass(frozen=True)
class Effort:
    """How far a step on the whole active set goes; single steps do not ask."""

    tol: float = 0.0  # relative gap on the active set at which it ends
    is_late: Callable[[], bool] = never  # asked now and then whether to cut it short


NO_LIMIT = Effort()  # until rounding allows no more


@dataclass(frozen=True)
class Steps:
    """What a rule did."""

    counts: dict[StepKind, int]  # steps of each kind, and those that dropped a vertex
    gap: float = math.inf  # relative, over the vertices that a walk looked at last
    passed: bool = False  # whether that gap ended the walk
    cut: bool = False  # whether a step ended early since time is short

    @property
    def n_steps(self) -> int:
        """Steps of all kinds."""
        return sum(self.counts.values()) - self.counts[StepKind.DROP]


class StepRule:
    """A rule; subclasses name it, and override `step` if it takes no single steps."""

    name: ClassVar[str]
    takes_many: ClassVar[bool] = False  # whether one step can use many new vertices at once
    optimises: ClassVar[bool] = False  # whether a step optimises on the whole active set
    extrapolates: ClassVar[bool] = False  # whether a step goes on from an earlier iterate
    rule: ClassVar[Rule] = Rule.FW  # its single steps
    walks: ClassVar[bool] = True  # whether it takes no others

    def step(self, active: ActiveSet, effort: Effort = NO_LIMIT) -> Steps:
        """Move the weights; the toward vertex is that of least gradient."""
        return self.walk(active, 1)

    def walk(
        self,
        active: ActiveSet,
        most: int,
        targets: tuple[float, float, float] = (-math.inf, 0.0, -math.inf),
        draws: Int64Array | None = None,
    ) -> Steps:
        """Take up to `most` single steps: see `ooc_fw._core.rules.take_steps`.

        By default no gap is reached, and all vertices are looked at.
        """
        draws = np.empty((0, 0), dtype=np.int64) if draws is None else draws
        rows = active.kernel_rows
        counts = np.zeros(core.N_COUNTS, dtype=np.int64)
        vertices = Vertices(active.alpha, active.grad, active.diag, active.labels)
        if self.extrapolates:
            active.learn_before()
        before = active.alpha_before, active.grad_before
        rule = int(self.rule)
        missing = 0
        while missing >= 0:
            rows.clock += 1  # rows of the next step are used after those just fetched
            left = most - int(counts[: core.DROPS].sum())
            passed, gap, active.rho, missing = core.take_steps(
                rule, vertices, before, rows.block, rows.clock, draws, targets, left, counts
            )
            rows.clock += left
            if missing >= 0:
                upcoming = draws[counts[core.DRAWS] :]
                active.fetch(missing, active.grad, upcoming if draws.size > 0 else None)
        return Steps(dict(zip(_KINDS, counts.tolist(), strict=False)), gap, passed)

    def prune(self, active: ActiveSet, spare: float = SPARE_SHARE) -> None:
        """Remove vertices without weight, if they are more than the share `spare` of all."""
        active.prune(spare, of_before=not self.extrapolates)


class FrankWolfe(StepRule):
    """Toward steps only (Frank and Wolfe 1956; MEB paper, algorithm 2)."""

    name = "fw"
    rule = Rule.FW


class AwayFrankWolfe(StepRule):
    """Away steps where they have the larger slope (MFW; MEB paper, algorithm 3)."""

    name = "mfw"
    rule = Rule.MFW


class Pairwise(StepRule):
    """Pairwise steps where, clipped, they lower f more than toward ones (SWAP paper, alg. 4)."""

    name = "swap"
    rule = Rule.SWAP


class SecondOrderPairwise(StepRule):
    """Pairwise steps with the second-order choice of j (SWAP-2o; SWAP paper, algorithm 5)."""

    name = "swap2"
    rule = Rule.SWAP2


class Partan(StepRule):
    """Toward step, then an extrapolation from the iterate before (PARTAN paper, algorithm 2).

    From the toward step's iterate a~ it moves along d = a~ - a_previous by the exact line search
    clipped so that all weights stay non-negative. Both gradients on the active set are held.
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
        """Take pairwise steps; how many dropped a vertex, and whether time is short."""
        # Precise values mean that the step may also solve linear systems.
        each = 400 if active.precise else INNER_STEPS_PER_VERTEX
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
