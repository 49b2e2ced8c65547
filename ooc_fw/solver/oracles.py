"""Linear minimization oracles: which vertex to move towards.

An oracle looks at rows of the source and at the active set, and proposes the row of least gradient.
It never changes a weight. To add an oracle: a subclass of `LMO` and a line in `ORACLES`,
both here.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from ooc_fw._core import walk as core
from ooc_fw.data.rows import (
    CSRRows,
    Float64Array,
    Int8Array,
    Int64Array,
    Rows,
    concat_rows,
    distinct_rows,
    stored_arrays,
    take_rows,
)
from ooc_fw.data.sampling import block_sampler
from ooc_fw.data.sources import iter_blocks
from ooc_fw.kernels.arithmetic import Operand
from ooc_fw.kernels.engine import Engine
from ooc_fw.options import TrainOptions
from ooc_fw.solver.active_set import ActiveSet
from ooc_fw.solver.few import FewVertices, Look
from ooc_fw.solver.kernel_rows import KernelColumns
from ooc_fw.solver.steps import STEP_RULES, StepRecord, StepRule

if TYPE_CHECKING:
    from ooc_fw.solver.plan import Workspace

_FIRST_BLOCK = 2048  # rows of the shortest block, unless few vertices are wanted
_LEAST_PER_VERTEX = 4  # rows of the shortest block for each vertex wanted
LARGEST_BLOCK = 16384  # rows of the longest block
_SPARE_ROWS = 1.2  # factor of the rows expected to hold the violators wanted
_LEAST_SHARE = 1e-3  # least share of violators that is expected
_NEAR = (1.2, 1.5, 2.0, 3.0)  # margins below which rows are seen again, in one pass after another
# After the first pass a margin's distance from 1 is stored times this: its row is visited less.
_VISITED = 8.0
_RARE = 0.005  # share of violators in such a pass below which no other follows
_FEW_VIOLATORS = 16  # vertices for each violator above which such a pass goes on before a step
_FEW_OTHERS = 4  # rows for each vertex up to which that is so
_MOST_BLOCKS = 4  # of rows near the margin in one proposal, between which nothing ends a run
_DENSE = 0.5  # share of rows that have a feature from which it is stored as a dense column
_DRAWS = 64  # draws that are made together
_FEW_ROWS = 256  # rows for each one drawn up to which the gradient of all is kept: no more work

Target: TypeAlias = tuple[float, float, float]  # see `ooc_fw._core.walk.Walk`


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
    """An oracle; subclasses define `propose`, and the rest where they remember steps."""

    keeps_gradient: ClassVar[bool] = False  # of all rows

    def __init__(self, workspace: Workspace, sample_size: int | None = None) -> None:
        self._source, self._labels = workspace.rows, workspace.problem.labels
        self._engine, self._sampler = workspace.engine, workspace.sampler
        self._sample_size = sample_size or workspace.options.sample_size

    @abstractmethod
    def propose(self, active: ActiveSet, rng: np.random.Generator, request: Request) -> Candidates:
        """Rows of least gradient among those looked at, if they beat the active set."""

    def update(self, record: StepRecord, active: ActiveSet) -> None:  # noqa: B027
        """Learn of a step that was taken."""

    def reset(self) -> None:  # noqa: B027
        """Forget what came from the weights, since they were changed from outside."""


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
        rows, labels = self._source.take(row_ids), self._labels[row_ids]
        grads = self._gradients(active, rows, labels, request)
        chosen = self._choose(row_ids, grads, request, active)
        k = int(grads.argmin())
        seen = replace(seen, least=min(seen.least, float(grads[k])), worst=int(row_ids[k]))
        if len(chosen) == 0:
            return seen
        rows, row_ids = take_rows(rows, chosen), row_ids[chosen]
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


def _together(parts: Sequence[Candidates]) -> Candidates:
    """One proposal of those made for the same weights, one after the other."""
    if len(parts) == 1:
        return parts[0]
    found = [part for part in parts if part.rows is not None]
    best = min(parts, key=lambda part: part.least)
    joined = replace(best, n_scanned=sum(part.n_scanned for part in parts))
    if not found:
        return joined
    return replace(
        joined,
        row_ids=np.concatenate([part.row_ids for part in found]),
        rows=concat_rows([part.rows for part in found if part.rows is not None]),
        labels=np.concatenate([part.labels for part in found]),
        grads=np.concatenate([part.grads for part in found]),
    )


def block_rows(limit: int, share: float) -> int:
    """Rows that likely hold `limit` violators, if a `share` of the rows before were violators."""
    wanted = int(_SPARE_ROWS * limit / max(share, _LEAST_SHARE))
    least = min(_FIRST_BLOCK, _LEAST_PER_VERTEX * limit)
    return min(max(least, wanted), LARGEST_BLOCK)


class BlockLMO(SampledLMO):
    """Many violators at once, from blocks of rows that go through the source.

    A block is as long as is likely to hold the violators wanted. They are taken in the order of the
    block, not the worst first: on noisy data the worst are outliers. After a first pass over all
    rows, those near the margin are seen again: the nearest rows first, then rows farther away while
    that finds violators. In the end, or once certifying passes have begun, only the active set is
    looked at.
    """

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(workspace)
        self._blocks = block_sampler(workspace.sampler, self._source.n_rows)
        self._max_block = workspace.plan.memory.max_block
        self._unseen = self._source.n_rows  # rows left of the first pass
        self._margins = np.zeros(self._unseen, dtype=np.float32)  # g / rho when a row was last seen
        self._near = np.empty(0, dtype=np.int64)  # rows left of the present pass, after the first
        self._n_passes = 0  # over rows near the margin
        self._n_violators = self._n_rows = 0  # of the present pass so far
        self._share = 1.0  # of violators in the last block
        self._few = FewVertices(workspace.plan.memory)

    def propose(self, active: ActiveSet, rng: np.random.Generator, request: Request) -> Candidates:
        size = min(self._max_block, block_rows(request.limit, self._share))
        if self._unseen > 0:
            row_ids = self._blocks.sample(size, rng)
            self._unseen -= len(row_ids)
            return self._best_of(active, row_ids, request)
        self._begin_pass_if_due()
        return self._near_violators(active, size, request)

    def _near_violators(self, active: ActiveSet, size: int, request: Request) -> Candidates:
        """Violators of the next block of the present pass; of some blocks where they are few.

        A step for a few violators, to a small gap, is mostly undone by those of the next block.
        Where few rows are vertices, a step costs little, and a pass over the gradient much.
        """
        parts: list[Candidates] = []
        n_found, enough = 0, min(request.limit, len(active) // _FEW_VIOLATORS)
        if self._source.n_rows > _FEW_OTHERS * len(active):
            enough = 0
        while not parts or (0 < n_found < enough and len(parts) < _MOST_BLOCKS):
            row_ids, self._near = self._near[:size], self._near[size:]
            limit = request.limit - n_found
            parts.append(self._best_of(active, row_ids, replace(request, limit=limit)))
            n_found += len(parts[-1].row_ids)
            if len(self._near) == 0:
                break
        return _together(parts)

    def _gradients(
        self, active: ActiveSet, rows: Rows, labels: Int8Array, request: Request
    ) -> Float64Array:
        """Right for rows that may violate, and else estimated, where few vertices allow."""
        distinct, groups = distinct_rows(rows)
        x = active.prepare(distinct)
        of_rows, has_label = np.arange(len(x))[groups], np.zeros((2, len(x)), dtype=np.bool_)
        has_label[(labels > 0).astype(np.int64), of_rows] = True
        n_left = max(0, self._unseen) + len(self._near)
        look = Look(x, has_label, request.threshold, n_left)
        return np.asarray(labels * self._few.decisions(active, look)[of_rows])

    def _begin_pass_if_due(self) -> None:
        """Begin another pass over rows near the margin, where the last one found violators."""
        rare = self._n_passes > 0 and self._n_violators < _RARE * self._n_rows
        if len(self._near) == 0 and self._n_passes < len(_NEAR) and not rare:
            self._near = np.flatnonzero(self._margins < _NEAR[self._n_passes])
            self._n_passes += 1
            self._n_violators = self._n_rows = 0

    def _choose(
        self, row_ids: Int64Array, grads: Float64Array, request: Request, active: ActiveSet
    ) -> npt.NDArray[np.intp]:
        margins, visited = grads / active.rho, self._n_passes > 0
        self._margins[row_ids] = 1 + _VISITED * (margins - 1) if visited else margins
        violators = np.flatnonzero(grads < request.threshold)
        self._n_violators += len(violators)
        self._n_rows += len(grads)
        self._share = len(violators) / len(grads)
        return violators[: request.limit]

    def reset(self) -> None:
        """Propose nothing more: certifying passes find the violators from now on."""
        self._unseen, self._n_passes = 0, len(_NEAR)
        self._near, self._margins = self._near[:0], self._margins[:0].copy()


class FullLMO(LMO):
    """Best of all rows, by the gradient of every row.

    Steps of rules that walk are taken in compiled calls, and cost kernel columns of all rows. Those
    of other rules cost a pass over the rows.
    """

    keeps_gradient = True
    looks: ClassVar[core.Looks] = core.Looks.ALL  # where steps of a walk seek the toward vertex

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(workspace)
        memory, n_rows = workspace.plan.memory, self._source.n_rows
        self._rows_of = workspace.rows_of
        self._y = self._labels.astype(np.float64)
        self._ridge = 1 / np.atleast_1d(np.asarray(workspace.penalties))
        self._members = np.full(n_rows, -1, dtype=np.int64)
        self._keeps_rows, self._column_bytes = memory.row_cache > 0, memory.column_cache
        self._grad: Float64Array | None = None
        self._before: Float64Array | None = None
        self._draws = np.empty((0, self._sample_size), dtype=np.int64)  # to be looked at next
        self._operands_kept: list[tuple[int, Operand]] | None = None
        self._columns: KernelColumns | None = None
        self._diag: Float64Array | None = None
        self._features: dict[str, Any] | None = None  # of `Columns`, empty for other rows
        self._precise = False  # whether the gradient that is kept is float64

    def _follow(self, active: ActiveSet) -> None:
        """Forget what is kept in another precision than that of the active set."""
        if active.precise != self._precise:
            self._precise, self._operands_kept = active.precise, None
            self._columns = self._features = None
            self.reset()

    def _operands(self, active: ActiveSet) -> Iterator[tuple[int, Operand]]:
        """All rows in order, as (first row, rows made ready for products)."""
        if self._operands_kept is not None:
            yield from self._operands_kept
            return
        operands = []
        for start, rows in iter_blocks(self._source, 0, self._source.n_rows):
            operand = active.prepare(rows)
            if self._keeps_rows:
                operands.append((start, operand))
            yield start, operand
        if self._keeps_rows:
            self._operands_kept = operands

    def _gradient(self, active: ActiveSet) -> Float64Array:
        self._follow(active)
        if self._grad is None:
            grad = np.empty(self._source.n_rows)
            for start, x in self._operands(active):
                part = slice(start, start + len(x))
                grad[part] = self._y[part] * active.decision_at(x)
            grad[active.ids] = active.grad
            self._grad = grad
        return self._grad

    def propose(self, active: ActiveSet, rng: np.random.Generator, request: Request) -> Candidates:
        grad = self._gradient(active)
        worst = int(grad.argmin())
        seen = nothing_outside(active, len(grad), exact=True)
        place, least = active.place_of(worst), min(seen.least, float(grad[worst]))
        seen = replace(seen, least=least, worst=worst if place is None else -1)
        best = np.array([worst], dtype=np.int64)
        if request.limit > 1:
            best = np.flatnonzero(grad < request.threshold)
        if len(best) > request.limit:
            order = np.argpartition(grad[best], request.limit)[: request.limit]
            best = np.sort(best[order])
        best = best[active.outside(best)]
        if len(best) == 0:
            return seen
        rows, labels = self._source.take(best), self._labels[best]
        return replace(seen, row_ids=best, rows=rows, labels=labels, grads=grad[best])

    def walk(
        self, active: ActiveSet, rule: StepRule, rng: np.random.Generator, most: int, target: Target
    ) -> core.Walk:
        """Take `most` steps, or until the gap passes `target`; only look where these are 0."""
        grad, m = self._gradient(active), len(active)
        grad[active.ids] = active.grad  # it may have been computed anew
        if self._columns is None:
            self._columns = KernelColumns(len(grad), self._column_bytes, self._precise)
        if self._before is None:
            # The gradient was forgotten, perhaps between the iterates that PARTAN goes on from.
            self._before = np.zeros(len(grad) if rule.extrapolates else 0)
            rule.reset()
        walk, columns = core.Walk.begin(m, active.rho, target), self._columns
        walk.clock[0] = columns.clock
        weights, _ = rule.begin(active, walk, active.ids, m + most)
        self._members[active.ids] = np.arange(m)
        constants = self._diagonal(active), self._ridge, self._members
        field = core.Field(grad, self._before, self._y, *constants)
        tables = self._tables(active, columns)
        step = partial(core.take_steps, int(rule.rule), int(self.looks), field, weights, tables)
        while (outcome := step(self._draws, walk, most)) >= core.Outcome.COLUMN:
            if outcome == core.Outcome.COLUMN:
                self._compute_column(columns, walk, active)
            else:
                draws = [self._sampler.sample(self._sample_size, rng) for _ in range(_DRAWS)]
                self._draws, walk.next_draw[0] = np.stack(draws), 0
        self._draws, columns.clock = self._draws[walk.next_draw[0] :], int(walk.clock[0])
        self._engine.count(int(walk.n_computed[0]) * len(grad))
        self._end(walk, weights, active)
        rule.remember(walk, weights, self._before[active.ids] if rule.extrapolates else grad)
        return walk

    def _end(self, walk: core.Walk, weights: core.Active, active: ActiveSet) -> None:
        """Bring the active set to the end of a walk."""
        assert self._grad is not None
        row_ids = weights.rows[: walk.n_active[0]]
        self._members[row_ids] = -1
        new = row_ids[len(active) :]
        if len(new) > 0:
            active.add(new, self._rows_of(new), self._labels[new])
        active.alpha[:], active.grad[:] = weights.alpha[: len(active)], self._grad[active.ids]
        active.rho = float(walk.rho[0])

    def _diagonal(self, active: ActiveSet) -> Float64Array:
        """Diagonal of the dual's matrix; a single number where all are the same."""
        if self._diag is None:
            kernel, norms = self._engine.kernel, [np.ones(1)]
            if not kernel.constant_diagonal:
                norms = [x.norms for _, x in self._operands(active)]
            self._diag = kernel.diagonal(np.concatenate(norms)) + 1 + self._ridge
        return self._diag

    def _tables(self, active: ActiveSet, columns: KernelColumns) -> core.Columns:
        """Kernel columns, with all rows where steps compute columns of products of sparse ones."""
        given = core.given_columns(columns.block)._replace(owners=columns.owners)
        if self._features is None:
            parts = [x for _, x in self._operands(active)] if self._keeps_rows else []
            self._features = _sparse_tables(parts, given.terms.dtype, self._engine)
        return given._replace(**self._features)

    def _compute_column(self, columns: KernelColumns, walk: core.Walk, active: ActiveSet) -> None:
        """Compute the kernel column that a step lacks."""
        vertex = active.prepare(self._rows_of(walk.lacking))
        values = columns.hold(int(walk.lacking[0]), int(walk.clock[0]))
        for start, x in self._operands(active):
            self._engine.block(vertex, x, values[:, start : start + len(x)])

    def update(self, record: StepRecord, active: ActiveSet) -> None:
        """Apply a step that was no walk to the gradient of every row, in one pass over them."""
        self._follow(active)
        if self._grad is None:
            return
        self._before = None
        if record.extrapolation > 0:  # on a full active set, where no other row is looked at
            self.reset()
            return
        row_ids, beta = record.ids, record.weights * self._y[record.ids]
        vertices = active.operand.take(active.places_of(row_ids))
        for start, x in self._operands(active):
            part = slice(start, start + len(x))
            sums = self._engine.weighted_sum(x, vertices, beta) + beta.sum()
            self._grad[part] = record.scale * self._grad[part] + self._y[part] * sums
        self._grad[row_ids] += record.weights * (self._ridge[row_ids % len(self._ridge)])
        # The gradient of the active set is more precise, and progress is measured by it.
        self._grad[active.ids] = active.grad

    def reset(self) -> None:
        """Forget the gradient; the next proposal computes it anew."""
        self._grad = self._before = None


def _sparse_tables(parts: list[Operand], dtype: Any, engine: Engine) -> dict[str, Any]:
    """Parts of `Columns` about sparse rows; none for others, or where products do not serve."""
    kernel = engine.kernel
    if not parts or kernel.uses_distance:
        return {}
    method, is_sparse = parts[0].method, isinstance(parts[0].values, CSRRows)
    if method.differences or method.dtype != dtype or not is_sparse:
        return {}
    rows = concat_rows([x.values for x in parts])
    assert isinstance(rows, CSRRows)
    counts = np.bincount(rows.indices, minlength=rows.n_features)
    counts[counts >= _DENSE * len(rows)] = len(rows)
    starts = np.concatenate([[0], np.cumsum(counts)])
    by_column = np.zeros(starts[-1], np.float32), np.zeros(starts[-1], np.int32), starts
    core.by_feature(*stored_arrays(rows), starts, *by_column[:2])
    return {
        "rows": stored_arrays(rows),
        "features": by_column,
        "kernel_map": engine.map_of(parts[0]),
        "terms": np.concatenate([x.terms for x in parts]),
    }


class SampledFullLMO(FullLMO):
    """The same rows as from `SampledLMO`, but for rounding, by the gradients kept of all rows."""

    looks = core.Looks.DRAWN_AND_ACTIVE


ORACLES: dict[str, type[LMO]] = {"full": FullLMO, "sampled": SampledLMO}
"""Oracles by their values of `lmo`."""


def keeps_gradient(options: TrainOptions, n_rows: int) -> bool:
    """Whether the gradient of all rows is kept, with options of which none is "auto"."""
    rule, few = STEP_RULES[options.method], n_rows <= _FEW_ROWS * options.sample_size
    return ORACLES[options.lmo].keeps_gradient or (few and rule.walks)


def make_oracle(workspace: Workspace, rule: StepRule) -> LMO:
    """The oracle that the options of a run ask for; samples become blocks where steps take many."""
    name, keeps = workspace.options.lmo, workspace.plan.memory.work.full_oracle
    if name == "sampled" and rule.takes_many:
        return BlockLMO(workspace)
    if name == "sampled" and keeps:
        return SampledFullLMO(workspace)
    return ORACLES[name](workspace)
