"""Linear minimization oracles: which vertex to move towards.

An oracle looks at rows of the source and at the active set, and proposes the row with the least
gradient. `BlockLMO` proposes many violators, in the order of the rows. Oracles change no weights.
To add an oracle, write a subclass of `LMO` and a line in `ORACLES`, both here.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import NamedTuple

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
from ooc_fw.data.sampling import BlockSampler, Sampler
from ooc_fw.data.sources import RowSource, iter_blocks
from ooc_fw.kernels import low_rank
from ooc_fw.kernels.arithmetic import Operand
from ooc_fw.kernels.low_rank import Compression, LowRank, PivotLimits, Pivots
from ooc_fw.options import TrainOptions
from ooc_fw.solver.active_set import ActiveSet
from ooc_fw.solver.steps import STEP_RULES
from ooc_fw.system.memory import MemoryPlan

_FIRST_BLOCK = 2048  # rows in the shortest block, unless few vertices are wanted
LARGEST_BLOCK = 32768  # rows in the longest block
_NEAR = (1.2, 1.5, 2.0, 3.0)  # a later reading takes rows whose margin is below the next of these
_FEW_ROWS = 256  # steps keep the gradient of all rows if these are at most so many for each draw
_KNOWN = 400  # about so many rows of a look take all vertices
_NEAREST = 0.05  # added to all distances from pivots, since errors do not vanish at a pivot
_LEAST_VERTICES = 500  # with fewer vertices all of them are fast


@dataclass(frozen=True)
class Request:
    """What the solver asks an oracle for."""

    limit: int = 1  # largest number of rows
    threshold: float = math.inf  # only rows with a smaller gradient are of use


@dataclass(frozen=True)
class Candidates:
    """Rows that an oracle proposes as toward vertices, and what it saw."""

    # (k,): rows outside the active set; empty if the toward vertex is in the active set.
    row_ids: Int64Array
    rows: Rows | None  # (k, n_features): the rows themselves; None if k is 0
    labels: Int8Array  # (k,): +1 or -1
    grads: Float64Array  # (k,): their gradients
    least: float  # least gradient in the active set and the rows looked at
    n_scanned: int  # rows looked at
    exact: bool  # whether `least` is the least gradient of all rows in the source
    worst: int = -1  # row with the least gradient among those looked at; -1 for none


class LMO(ABC):
    """An oracle; subclasses define `propose`."""

    def __init__(
        self, source: RowSource, labels: Int8Array, sampler: Sampler, sample_size: int
    ) -> None:
        self._source = source
        self._labels = labels
        self._sampler = sampler
        self._sample_size = sample_size

    @property
    def growth(self) -> float:
        """How many times as many rows there are as the oracle has seen."""
        return 1.0

    @property
    def seen_all(self) -> bool:
        """Whether looks at many rows have seen all of them, so that few violators are unknown."""
        return False

    @abstractmethod
    def propose(self, active: ActiveSet, rng: np.random.Generator, request: Request) -> Candidates:
        """Look at rows, and propose those with the least gradients if they beat the active set."""

    def retire(self) -> None:  # noqa: B027
        """Leave the search to certifying readings, if they find more violators at once."""


def nothing_outside(active: ActiveSet, n_scanned: int, exact: bool) -> Candidates:
    """The proposal of an oracle that found the toward vertex in the active set."""
    none = np.empty(0, dtype=np.int64)
    least = float(active.grad.min())
    return Candidates(none, None, none.astype(np.int8), np.empty(0), least, n_scanned, exact)


class SampledLMO(LMO):
    """The best of the active set and `sample_size` random rows.

    Its gap never exceeds the duality gap, and it is no certificate. With probability
    1 - (1 - q)^r, a sample of r rows holds one of the best fraction q of all rows: 194 rows hold
    one of the best 2 % with probability 0.98.

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
        """Gradients of rows outside the active set."""
        distinct, groups = distinct_rows(rows)
        return np.asarray(labels * active.decision_at(active.prepare(distinct))[groups])

    def _choose(
        self, row_ids: Int64Array, grads: Float64Array, request: Request, active: ActiveSet
    ) -> npt.NDArray[np.intp]:
        """Places of the rows to propose: the best one, if it beats the active set."""
        useful = grads.min() < min(request.threshold, active.grad.min())
        return np.array([grads.argmin()] if useful else [], dtype=np.intp)


def block_rows(limit: int, share: float) -> int:
    """Number of rows that likely hold `limit` violators, if a `share` of earlier rows violated."""
    wanted = int(1.2 * limit / max(share, 1e-3))
    least = min(_FIRST_BLOCK, 4 * limit)
    return min(max(least, wanted), LARGEST_BLOCK)


class Look(NamedTuple):
    """Rows that an oracle looks at together."""

    x: Operand  # the distinct rows
    has_label: npt.NDArray[np.bool_]  # (2, n): whether an equal row has the label -1, or +1
    threshold: float  # a row with a smaller gradient violates
    n_left: int  # rows that later looks will take

    def may_violate(
        self, values: Float64Array, error: Float64Array, part: Int64Array
    ) -> npt.NDArray[np.bool_]:
        """Which rows of a part may be violators, given decision values and their errors."""
        negative, positive = self.has_label[:, part]
        limit = self.threshold + error
        return np.asarray((positive & (values < limit)) | (negative & (-values < limit)))


class FewVertices:
    """Decision values of an active set, from a few vertices that nearly span it.

    A look chooses the violators to train on, and estimates are enough for that. They come from
    `ooc_fw.kernels.low_rank`. In place of its bound they take the largest error on some rows of the
    look. If a look misses a violator, the next certifying reading finds it.
    """

    def __init__(self, memory: MemoryPlan) -> None:
        self._memory = memory
        self._ids = np.empty(0, dtype=np.int64)  # row numbers of the pivots; empty: all vertices
        self._seek_above = 0.0  # other pivots may be better with more vertices than this
        self._cost = 0.0  # `row_cost` of the pivots when they were chosen

    def decisions(self, active: ActiveSet, look: Look) -> Float64Array:
        """Decision values for the rows of a look; estimates if a row is no violator."""
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
        cost = low_rank.row_cost(len(active), len(few), (len(known) + len(places)) / len(values))
        if cost > 1.5 * self._cost:  # other pivots may be better
            self._seek_above = min(self._seek_above, 1.1 * len(active))
        if cost > 1:
            self._ids = self._ids[:0]
        return values

    def _seek(self, active: ActiveSet, look: Look, known: Int64Array) -> None:
        """Choose other pivots if they make looks cheaper."""
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

            best, cost = low_rank.cheapest(span, attempt)
        if best is not None:
            self._ids = active.ids[best.places]
            self._cost = cost


def _fit(active: ActiveSet, places: Int64Array, x: Operand, exact: Float64Array) -> LowRank:
    """Fit the active set by some of its vertices, given the decision values of some rows."""
    engine = active.engine
    z = active.operand.take(places)
    K = low_rank.kernel_matrix(engine, engine.prepare(take_rows(active.rows, places), exact=True))
    at_pivots = (active.labels * active.plain_grad)[places]
    ridge = 1e-10 * np.diag(np.diagonal(K))  # the gradient of steps is rounded
    c = np.linalg.solve(K + ridge, at_pivots).astype(np.float64, copy=False)
    residuals = at_pivots - K @ c
    one = np.ones(1)
    few = Compression(places, c[None], residuals[None], one, _NEAREST * one)
    values, distance = LowRank(engine, z, few).of_one(x)
    scale = 1.5 * one * (np.abs(values - exact) / distance).max(initial=0.0)
    return LowRank(engine, z, few._replace(norms=scale, rounding=_NEAREST * scale))


class BlockLMO(SampledLMO):
    """Many violators at once, from blocks of rows that go through the source.

    A block has as many rows as are likely to hold the wanted violators. They are taken in the order
    of the block: on noisy data the worst rows are outliers. Later readings take rows near the
    margin only: first the nearest rows, then rows farther away, as long as that finds violators.
    In the end, or after certifying readings have begun, the oracle looks at the active set only.
    """

    def __init__(
        self, source: RowSource, labels: Int8Array, sampler: Sampler, memory: MemoryPlan
    ) -> None:
        if sampler.chunk_rows is None:  # the rows are in random order
            sampler = BlockSampler(source.n_rows)
        super().__init__(source, labels, sampler, memory.max_block)
        self._unseen = self._source.n_rows  # rows that the first reading has not seen yet
        self._margins = np.zeros(self._unseen, dtype=np.float32)  # g / rho when a row was last seen
        self._near = np.empty(0, dtype=np.int64)  # rows that the current later reading has not seen
        self._n_readings = 0  # readings of rows near the margin
        self._n_violators = self._n_rows = 0  # in the current later reading so far
        self._share = 1.0  # share of violators in the last block
        self._few = FewVertices(memory)

    def propose(self, active: ActiveSet, rng: np.random.Generator, request: Request) -> Candidates:
        size = min(self._sample_size, block_rows(request.limit, self._share))
        if self._unseen > 0:
            row_ids = self._sampler.sample(size, rng)
            self._unseen -= len(row_ids)
            return self._best_of(active, row_ids, request)
        self._begin_pass_if_due()
        row_ids = self._near[:size]
        self._near = self._near[size:]
        return self._best_of(active, row_ids, request)

    def _gradients(
        self, active: ActiveSet, rows: Rows, labels: Int8Array, request: Request
    ) -> Float64Array:
        """Gradients of rows outside the active set; estimates if a row is no violator."""
        distinct, groups = distinct_rows(rows)
        x = active.prepare(distinct)
        of_rows = np.arange(len(x))[groups]
        has_label = np.zeros((2, len(x)), dtype=np.bool_)
        has_label[(labels > 0).astype(np.int64), of_rows] = True
        n_left = max(0, self._unseen) + len(self._near)
        look = Look(x, has_label, request.threshold, n_left)
        return np.asarray(labels * self._few.decisions(active, look)[of_rows])

    def _begin_pass_if_due(self) -> None:
        """Begin another reading of rows near the margin if the last one found violators."""
        rare = self._n_readings > 0 and self._n_violators < 0.005 * self._n_rows
        if len(self._near) == 0 and self._n_readings < len(_NEAR) and not rare:
            self._near = np.flatnonzero(self._margins < _NEAR[self._n_readings])
            self._n_readings += 1
            self._n_violators = self._n_rows = 0

    def _choose(
        self, row_ids: Int64Array, grads: Float64Array, request: Request, active: ActiveSet
    ) -> npt.NDArray[np.intp]:
        margins = grads / active.rho
        # After the first reading a row counts as farther from the margin, and is seen less often.
        self._margins[row_ids] = 1 + 8 * (margins - 1) if self._n_readings > 0 else margins
        violators = np.flatnonzero(grads < request.threshold)
        self._n_violators += len(violators)
        self._n_rows += len(grads)
        self._share = len(violators) / len(grads)
        return violators[: request.limit]

    @property
    def growth(self) -> float:
        return self._source.n_rows / max(1, self._source.n_rows - max(0, self._unseen))

    @property
    def seen_all(self) -> bool:
        return self._unseen <= 0

    def retire(self) -> None:
        """Propose nothing more: certifying readings find the violators."""
        self._unseen = 0
        self._n_readings = len(_NEAR)
        self._near = self._near[:0]
        self._margins = self._margins[:0].copy()


class FullLMO(LMO):
    """The best of all rows, by a reading; rules that walk on all rows need no oracle."""

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
"""Oracles by the value of `lmo`; a rule that takes many vertices has `BlockLMO` for "sampled"."""


def walks_on_all_rows(options: TrainOptions, n_rows: int, capacity: int) -> bool:
    """Whether all rows become vertices; `capacity` vertices have room.

    Rules that walk then take their steps in compiled calls, which see the gradient of all rows.
    """
    sees_all = options.lmo == "full" or n_rows <= _FEW_ROWS * options.sample_size
    return STEP_RULES[options.method].walks and sees_all and n_rows <= capacity


def make_oracle(
    options: TrainOptions,
    source: RowSource,
    labels: Int8Array,
    sampler: Sampler,
    memory: MemoryPlan,
) -> LMO:
    """Make the oracle of a run; samples become blocks if a step takes many vertices."""
    if options.lmo == "sampled" and STEP_RULES[options.method].takes_many:
        return BlockLMO(source, labels, sampler, memory)
    return ORACLES[options.lmo](source, labels, sampler, options.sample_size)
