"""Linear minimization oracles: which vertex to move towards.

An oracle looks at rows of the source and at the active set, and proposes the row of least gradient;
the one of blocks proposes violators in the order of the rows. It never changes a weight. To add an
oracle: a subclass of `LMO` and a line in `ORACLES`, both here.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from ooc_fw.data.rows import (
    Float64Array,
    Int8Array,
    Int64Array,
    Rows,
    distinct_rows,
    take_rows,
)
from ooc_fw.data.sampling import BlockSampler
from ooc_fw.data.sources import iter_blocks
from ooc_fw.kernels import low_rank
from ooc_fw.kernels.arithmetic import Operand
from ooc_fw.kernels.low_rank import Compression, LowRank, PivotLimits, Pivots
from ooc_fw.options import TrainOptions
from ooc_fw.solver.active_set import ActiveSet
from ooc_fw.solver.steps import STEP_RULES, StepRule
from ooc_fw.system.memory import MemoryPlan

if TYPE_CHECKING:
    from ooc_fw.solver.run import RunState

_FIRST_BLOCK = 2048  # rows of the shortest block, unless few vertices are wanted
LARGEST_BLOCK = 32768  # rows of the longest block
_NEAR = (1.2, 1.5, 2.0, 3.0)  # margins below which rows are seen again, in one pass after another
_FEW_ROWS = 256  # rows for each one drawn up to which the gradient of all is kept: no more work
_KNOWN = 400  # rows of a look, about, that are seen by all vertices
_NEAREST = 0.05  # distance from a pivot that is added to all of them: errors do not vanish there
_LEAST_VERTICES = 500  # fewer are quickly looked at


@dataclass(frozen=True)
class Request:
    """What the solver wants of a proposal."""

    limit: int = 1  # largest number of rows
    threshold: float = math.inf  # rows with a gradient of at least this are of no use


@dataclass(frozen=True)
class Candidates:
    """Rows proposed by an oracle as toward vertices, with what it saw."""

    # (k,): rows outside the active set; none where the toward vertex is the best one of it.
    row_ids: Int64Array
    rows: Rows | None  # (k, n_features): the rows themselves; None where none is new
    labels: Int8Array  # (k,): +1 or -1
    grads: Float64Array  # (k,): gradients there
    least: float  # least gradient among all rows looked at and the active set
    n_scanned: int  # rows looked at
    exact: bool  # whether no row of the source has a lesser gradient than `least`
    worst: int = -1  # row of least gradient among those looked at outside the active set, if any


class LMO(ABC):
    """An oracle; subclasses define `propose`."""

    def __init__(self, state: RunState, sample_size: int | None = None) -> None:
        self._source = state.rows
        self._labels = state.problem.labels
        self._sampler = state.sampler
        self._sample_size = sample_size or state.options.sample_size

    @abstractmethod
    def propose(self, active: ActiveSet, rng: np.random.Generator, request: Request) -> Candidates:
        """Rows of least gradient among those looked at, if they beat the active set."""

    def retire(self) -> None:  # noqa: B027
        """Leave the search to certifying passes, if these find more at once."""


def nothing_outside(active: ActiveSet, n_scanned: int, exact: bool) -> Candidates:
    """The proposal of an oracle that found the toward vertex in the active set."""
    none = np.empty(0, dtype=np.int64)
    least = float(active.grad.min())
    return Candidates(none, None, none.astype(np.int8), np.empty(0), least, n_scanned, exact)


class SampledLMO(LMO):
    """Best of the active set and `sample_size` random rows.

    Its gap never exceeds the duality gap and is no certificate. A sample of r rows holds one of the
    best fraction q of all rows with probability 1 - (1 - q)^r: 194 rows for 2 % at 0.98.

    References
    ----------
    Frandi, Nanculef, Suykens, Complexity issues and randomization strategies in Frank-Wolfe
    algorithms for machine learning.
    """

    def propose(self, active: ActiveSet, rng: np.random.Generator, request: Request) -> Candidates:
        row_ids = self._sampler.sample(self._sample_size, rng)
        return self._best_of(active, row_ids, request)

    def _best_of(self, active: ActiveSet, row_ids: Int64Array, request: Request) -> Candidates:
        seen = nothing_outside(active, len(row_ids), exact=False)
        row_ids = row_ids[active.outside(row_ids)]
        if len(row_ids) == 0:
            return seen
        rows = self._source.take(row_ids)
        labels = self._labels[row_ids]
        grads = self._gradients(active, rows, labels, request)
        chosen = self._choose(row_ids, grads, request, active)
        k = int(grads.argmin())
        seen = replace(seen, least=min(seen.least, float(grads[k])), worst=int(row_ids[k]))
        if len(chosen) == 0:
            return seen
        row_ids = row_ids[chosen]
        rows = take_rows(rows, chosen)
        return replace(seen, row_ids=row_ids, rows=rows, labels=labels[chosen], grads=grads[chosen])

    def _gradients(
        self, active: ActiveSet, rows: Rows, labels: Int8Array, request: Request
    ) -> Float64Array:
        """Gradients at rows outside the active set."""
        distinct, groups = distinct_rows(rows)
        return np.asarray(labels * active.decision_at(active.prepare(distinct))[groups])

    def _choose(
        self, row_ids: Int64Array, grads: Float64Array, request: Request, active: ActiveSet
    ) -> npt.NDArray[np.intp]:
        """Places of the rows to propose: here the best one, if it beats the active set."""
        useful = grads.min() < min(request.threshold, active.grad.min())
        return np.array([grads.argmin()] if useful else [], dtype=np.intp)


def block_rows(limit: int, share: float) -> int:
    """Rows that likely hold `limit` violators, if a `share` of the rows before were violators."""
    wanted = int(1.2 * limit / max(share, 1e-3))
    least = min(_FIRST_BLOCK, 4 * limit)
    return min(max(least, wanted), LARGEST_BLOCK)


class Look(NamedTuple):
    """Rows that are looked at together."""

    x: Operand  # distinct ones
    has_label: npt.NDArray[np.bool_]  # (2, n): whether a row like it has the label -1, and +1
    threshold: float  # gradient below which a row violates
    n_left: int  # rows that later passes will see

    def may_violate(
        self, values: Float64Array, error: Float64Array, part: Int64Array
    ) -> npt.NDArray[np.bool_]:
        """Whether some of the rows may, given their decision values and errors of these."""
        negative, positive = self.has_label[:, part]
        limit = self.threshold + error
        return np.asarray((positive & (values < limit)) | (negative & (-values < limit)))


class FewVertices:
    """Decision values of an active set from those of its vertices that nearly span it.

    Certifying passes need bounds. Looks choose the violators to train on, for which estimates will
    do: those of `ooc_fw.kernels.low_rank`, with the largest error seen on some rows of the same
    look in place of what is left of w. A violator that a look misses is found by the next pass.
    """

    def __init__(self, memory: MemoryPlan) -> None:
        self._memory = memory
        self._ids = np.empty(0, dtype=np.int64)  # rows of the pivots; none where all take part
        self._seek_above = 0.0  # vertices from which other pivots may be better
        self._cost = 0.0  # of a row with them then, as a share of that with all vertices

    def decisions(self, active: ActiveSet, look: Look) -> Float64Array:
        """Decision values of the rows of a look, estimated where they cannot violate."""
        if active.precise or not look.threshold < np.inf:
            return active.decision_at(look.x)
        known = np.arange(0, len(look.x), max(1, len(look.x) // _KNOWN))
        if len(active) > max(_LEAST_VERTICES, self._seek_above):
            self._seek(active, look, known)
        self._ids = np.delete(self._ids, active.outside(self._ids))
        if len(self._ids) == 0:
            return active.decision_at(look.x)
        exact = active.decision_at(look.x.take(known))
        few = _fit(active, active.places_of(self._ids), look.x.take(known), exact)
        values, error = few.of_one(look.x)
        is_open = look.may_violate(values, error, np.arange(len(values)))
        values[known] = exact
        is_open[known] = False
        places = np.flatnonzero(is_open)
        if len(places) > 0:
            values[places] = active.decision_at(look.x.take(places))
        cost = low_rank.row_cost(len(active), (len(few), (len(known) + len(places)) / len(values)))
        if cost > 1.5 * self._cost:  # others may be better now
            self._seek_above = min(self._seek_above, 1.1 * len(active))
        if cost > 1:
            self._ids = self._ids[:0]
        return values

    def _seek(self, active: ActiveSet, look: Look, known: Int64Array) -> None:
        """Choose other pivots, if any make passes cheaper."""
        self._seek_above = 1.4 * len(active)
        n_bytes = self._memory.kernel_values
        effort = PivotLimits.of(look.n_left, len(active), n_bytes)
        if effort is None:
            return
        x = look.x.take(known)
        engine = active.engine
        exact = active.decision_at(x)
        with active.kernel_rows_lent(if_=self._memory.limit is not None):
            span = Pivots(engine, engine.prepare(active.rows, exact=True), active.alpha, effort)

            def attempt() -> tuple[Compression, float]:
                few = _fit(active, span.places, x, exact)
                is_open = look.may_violate(*few.of_one(x), known)
                return few.compression, np.count_nonzero(is_open) / len(known)

            best, cost = low_rank.cheapest(span, attempt, most_stages=1)
        if best:
            self._ids = active.ids[best[0].places]
            self._cost = cost


def _fit(active: ActiveSet, places: Int64Array, x: Operand, exact: Float64Array) -> LowRank:
    """The active set by some of its vertices, given the decision values of some rows."""
    engine = active.engine
    z = active.operand.take(places)
    K = low_rank.kernel_matrix(engine, engine.prepare(take_rows(active.rows, places), exact=True))
    at_pivots = (active.labels * active.plain_grad)[places]
    ridge = 1e-10 * np.diag(np.diagonal(K))  # since the gradient of steps is rounded
    c = np.linalg.solve(K + ridge, at_pivots).astype(np.float64, copy=False)
    residuals = at_pivots - K @ c
    one = np.ones(1)
    few = Compression(places, c[None], residuals[None], one, _NEAREST * one)
    values, distance = LowRank(engine, z, few).of_one(x)
    scale = 1.5 * one * (np.abs(values - exact) / distance).max(initial=0.0)
    return LowRank(engine, z, few._replace(norms=scale, rounding=_NEAREST * scale))


class BlockLMO(SampledLMO):
    """Many violators at once, from blocks of rows that go through the source.

    A block is as long as is likely to hold the violators wanted. They are taken in the order of the
    block, not the worst first: on noisy data the worst are outliers. After a first pass over all
    rows, those near the margin are seen again: the nearest rows first, then rows farther away while
    that finds violators. In the end, or once certifying passes have begun, only the active set is
    looked at.
    """

    def __init__(self, state: RunState) -> None:
        super().__init__(state)
        self._blocks = state.sampler
        if state.sampler.chunk_rows is None:  # rows in random order
            self._blocks = BlockSampler(self._source.n_rows)
        self._max_block = state.plan.memory.max_block
        self._unseen = self._source.n_rows  # rows left of the first pass
        self._margins = np.zeros(self._unseen, dtype=np.float32)  # g / rho when a row was last seen
        self._near = np.empty(0, dtype=np.int64)  # rows left of the present pass, after the first
        self._n_passes = 0  # over rows near the margin
        self._n_violators = self._n_rows = 0  # of the present pass so far
        self._share = 1.0  # of violators in the last block
        self._few = FewVertices(state.plan.memory)

    def propose(self, active: ActiveSet, rng: np.random.Generator, request: Request) -> Candidates:
        size = min(self._max_block, block_rows(request.limit, self._share))
        if self._unseen > 0:
            row_ids = self._blocks.sample(size, rng)
            self._unseen -= len(row_ids)
            return self._best_of(active, row_ids, request)
        self._begin_pass_if_due()
        row_ids = self._near[:size]
        self._near = self._near[size:]
        return self._best_of(active, row_ids, request)

    def _gradients(
        self, active: ActiveSet, rows: Rows, labels: Int8Array, request: Request
    ) -> Float64Array:
        """Right for rows that may violate, and else estimated, where few vertices allow."""
        distinct, groups = distinct_rows(rows)
        x = active.prepare(distinct)
        of_rows = np.arange(len(x))[groups]
        has_label = np.zeros((2, len(x)), dtype=np.bool_)
        has_label[(labels > 0).astype(np.int64), of_rows] = True
        n_left = max(0, self._unseen) + len(self._near)
        look = Look(x, has_label, request.threshold, n_left)
        return np.asarray(labels * self._few.decisions(active, look)[of_rows])

    def _begin_pass_if_due(self) -> None:
        """Begin another pass over rows near the margin, where the last one found violators."""
        rare = self._n_passes > 0 and self._n_violators < 0.005 * self._n_rows
        if len(self._near) == 0 and self._n_passes < len(_NEAR) and not rare:
            self._near = np.flatnonzero(self._margins < _NEAR[self._n_passes])
            self._n_passes += 1
            self._n_violators = self._n_rows = 0

    def _choose(
        self, row_ids: Int64Array, grads: Float64Array, request: Request, active: ActiveSet
    ) -> npt.NDArray[np.intp]:
        margins = grads / active.rho
        # After the first pass a row counts as farther from the margin: it is visited less.
        self._margins[row_ids] = 1 + 8 * (margins - 1) if self._n_passes > 0 else margins
        violators = np.flatnonzero(grads < request.threshold)
        self._n_violators += len(violators)
        self._n_rows += len(grads)
        self._share = len(violators) / len(grads)
        return violators[: request.limit]

    def retire(self) -> None:
        """Propose nothing more: certifying passes find the violators from now on."""
        self._unseen = 0
        self._n_passes = len(_NEAR)
        self._near = self._near[:0]
        self._margins = self._margins[:0].copy()


class FullLMO(LMO):
    """Best of all rows, by a pass over them; rules that walk on all rows need none."""

    def propose(self, active: ActiveSet, rng: np.random.Generator, request: Request) -> Candidates:
        grad = np.empty(self._source.n_rows)
        for start, rows in iter_blocks(self._source, 0, len(grad)):
            part = slice(start, start + len(rows))
            grad[part] = self._labels[part] * active.decision_at(active.prepare(rows))
        grad[active.ids] = np.inf
        worst = int(grad.argmin())
        seen = nothing_outside(active, len(grad), exact=True)
        if not grad[worst] < np.inf:
            return seen
        threshold = request.threshold if request.limit > 1 else min(request.threshold, seen.least)
        seen = replace(seen, least=min(seen.least, float(grad[worst])), worst=worst)
        best = np.flatnonzero(grad < threshold)
        if len(best) > request.limit:
            best = np.sort(best[np.argpartition(grad[best], request.limit - 1)[: request.limit]])
        if len(best) == 0:
            return seen
        rows = self._source.take(best)
        labels = self._labels[best]
        return replace(seen, row_ids=best, rows=rows, labels=labels, grads=grad[best])


ORACLES: dict[str, type[LMO]] = {"full": FullLMO, "sampled": SampledLMO}
"""Oracles by their values of `lmo`; rules that take many vertices have `BlockLMO` for "sampled"."""


def walks_on_all_rows(options: TrainOptions, n_rows: int, capacity: int) -> bool:
    """Whether all rows are to be vertices, of which there may be so many.

    Steps of rules that walk are then taken in compiled calls, which see the gradient of all rows.
    """
    sees_all = options.lmo == "full" or n_rows <= _FEW_ROWS * options.sample_size
    return STEP_RULES[options.method].walks and sees_all and n_rows <= capacity


def make_oracle(state: RunState, rule: StepRule) -> LMO:
    """The oracle that the options of a run ask for; samples become blocks where steps take many."""
    if state.options.lmo == "sampled" and rule.takes_many:
        return BlockLMO(state)
    return ORACLES[state.options.lmo](state)
