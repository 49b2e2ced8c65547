"""Linear minimization oracles: which vertex to move towards.

An oracle looks at rows of the source and at the active set, and proposes the row of least gradient.
It never changes a weight. `FullLMO` looks at every row and is exact; `SampledLMO` looks at a few
random rows, at a cost that does not depend on the number of rows. To add an oracle: a subclass of
`LMO` here and a line in `_make_oracle` of :mod:`ooc_fw.solver.run_state`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_fw._core import steps as core
from ooc_fw.data.rows import Float64Array, Int8Array, Int64Array, Rows, take_rows
from ooc_fw.data.sampling import BlockSampler, Sampler
from ooc_fw.data.sources import RowSource, iter_blocks
from ooc_fw.kernels.arithmetic import Operand
from ooc_fw.kernels.distinct import distinct_rows
from ooc_fw.kernels.engine import Engine
from ooc_fw.solver.active_set import ActiveSet
from ooc_fw.solver.steps import StepRecord

_FIRST_BLOCK = 2048  # rows of the shortest block, unless few vertices are wanted
_LEAST_PER_VERTEX = 4  # rows of the shortest block for each vertex wanted
LARGEST_BLOCK = 16384  # rows of the longest block
_SPARE_ROWS = 1.2  # factor of the rows expected to hold the violators wanted
_LEAST_SHARE = 1e-3  # least share of violators that is expected
_NEAR = (1.2, 1.5, 2.0, 3.0)  # margins up to which rows are looked at again, look after look
_SETTLED = 8.0
"""Factor of a margin's excess over 1 in a further look, since it will not move as much any more."""

_RARE = 0.005  # share of violators in a look below which there is no further one


@dataclass(frozen=True)
class Request:
    """What the solver wants of a proposal."""

    limit: int = 1  # largest number of rows
    threshold: float = math.inf  # rows with a gradient of at least this are of no use


@dataclass(frozen=True)
class Candidates:
    """Rows proposed by an oracle as toward vertices, with what it saw."""

    # (k,): rows outside the active set, in no particular order; none where the toward vertex is
    # in the active set.
    row_ids: Int64Array
    rows: Rows | None  # (k, n_features): the rows themselves; None when there are none
    labels: Int8Array  # (k,): +1 or -1
    grads: Float64Array  # (k,): gradients there
    least: float  # least gradient among all rows looked at and the active set
    n_scanned: int  # rows looked at
    exact: bool  # whether no row of the source has a lesser gradient than `least`
    # Row of least gradient among those looked at outside the active set, proposed or not; -1
    # where there were none.
    worst: int = -1


class LMO(ABC):
    """An oracle; subclasses define `propose`, and the other methods where they keep a state."""

    def __init__(self, source: RowSource, labels: Int8Array, engine: Engine) -> None:
        self._source = source
        self._labels = labels
        self._engine = engine

    @abstractmethod
    def propose(self, active: ActiveSet, rng: np.random.Generator, request: Request) -> Candidates:
        """Rows of least gradient among those looked at, if they beat the active set."""

    def update(self, record: StepRecord, active: ActiveSet) -> None:  # noqa: B027
        """Learn of a step that was taken."""

    def reset(self) -> None:  # noqa: B027
        """Forget what came from the weights, since they were changed from outside."""

    def state(self) -> dict[str, Any]:
        """Arrays, and values for JSON, from which the oracle resumes as if never stopped."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Take over what `state` gave."""


def nothing_outside(active: ActiveSet, n_scanned: int, exact: bool) -> Candidates:
    """The proposal of an oracle that found the toward vertex in the active set."""
    none = np.empty(0, dtype=np.int64)
    least = float(active.grad[core.argmin(active.grad)])
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

    def __init__(
        self,
        source: RowSource,
        labels: Int8Array,
        engine: Engine,
        sampler: Sampler,
        sample_size: int,
    ) -> None:
        super().__init__(source, labels, engine)
        self._sampler = sampler
        self._sample_size = sample_size

    def propose(self, active: ActiveSet, rng: np.random.Generator, request: Request) -> Candidates:
        """Draw rows and propose the best of them, if they beat the active set."""
        row_ids = self._sampler.sample(self._sample_size, rng)
        return self._best_of(active, row_ids, request)

    def _best_of(self, active: ActiveSet, row_ids: Int64Array, request: Request) -> Candidates:
        nothing = nothing_outside(active, len(row_ids), exact=False)
        row_ids = row_ids[active.outside(row_ids)]
        if len(row_ids) == 0:
            return nothing
        rows = self._source.take(row_ids)
        labels = self._labels[row_ids]
        distinct, groups = distinct_rows(rows)
        grads = labels * active.decision_at(active.prepare(distinct))[groups]
        chosen = self._choose(row_ids, grads, request, active)
        k = int(grads.argmin())
        seen = replace(nothing, least=min(nothing.least, float(grads[k])), worst=int(row_ids[k]))
        if len(chosen) == 0:
            return seen
        return replace(
            seen,
            row_ids=row_ids[chosen],
            rows=take_rows(rows, chosen),
            labels=labels[chosen],
            grads=grads[chosen],
        )

    def _choose(
        self, row_ids: Int64Array, grads: Float64Array, request: Request, active: ActiveSet
    ) -> npt.NDArray[np.intp]:
        """The best row, if it beats the active set."""
        k = int(np.argmin(grads))
        least = active.grad[core.argmin(active.grad)]
        useful = grads[k] < min(request.threshold, least)
        return np.array([k] if useful else [], dtype=np.intp)


def block_rows(limit: int, share: float) -> int:
    """Rows that likely hold `limit` violators, if a `share` of the rows before were violators."""
    wanted = int(_SPARE_ROWS * limit / max(share, _LEAST_SHARE))
    least = min(_FIRST_BLOCK, _LEAST_PER_VERTEX * limit)
    return min(max(least, wanted), LARGEST_BLOCK)


class BlockLMO(SampledLMO):
    """Many violators at once, from blocks of rows that go through the source.

    Corrective steps can use as many vertices as the active set holds, and a block is as long as is
    likely to hold that many violators. Violators are taken in the order of the block, not the worst
    first: on noisy data the worst are outliers. After a pass over all rows, those near the margin
    are looked at again, since the weights were young when the first of them were seen: the nearest
    rows first, and the next while that finds violators. After that, or once `reset` says that
    certifying passes have begun, only the active set is looked at.
    """

    def __init__(
        self, source: RowSource, labels: Int8Array, engine: Engine, sampler: Sampler
    ) -> None:
        super().__init__(source, labels, engine, sampler, _FIRST_BLOCK)
        self._unseen = source.n_rows  # rows left of the first pass
        self._looks = list(_NEAR)  # margins of the looks to come
        self._looking = False  # whether the first pass is over
        self._near = np.empty(0, dtype=np.int64)  # rows left of the current look
        self._found = self._looked_at = 0  # violators and rows of the current look
        self._margins = np.zeros(source.n_rows, dtype=np.float32)  # g / rho when last seen
        self._share = 1.0  # of violators in the last block

    def propose(self, active: ActiveSet, rng: np.random.Generator, request: Request) -> Candidates:
        """Look at the next block and propose its violators."""
        size = block_rows(request.limit, self._share)
        if self._unseen > 0:
            row_ids = self._sampler.sample(size, rng)
            self._unseen -= len(row_ids)
        else:
            if len(self._near) == 0:
                self._look_again()
            row_ids, self._near = self._near[:size], self._near[size:]
        return self._best_of(active, row_ids, request)

    def _look_again(self) -> None:
        """Begin the next look, if there is one and the last found violators enough."""
        if self._looks and (not self._looking or self._found >= _RARE * self._looked_at):
            self._looking = True
            self._near = np.flatnonzero(self._margins < self._looks.pop(0))
            self._found = self._looked_at = 0

    def _choose(
        self, row_ids: Int64Array, grads: Float64Array, request: Request, active: ActiveSet
    ) -> npt.NDArray[np.intp]:
        margins = grads / active.rho
        self._margins[row_ids] = 1 + _SETTLED * (margins - 1) if self._looking else margins
        violators = np.flatnonzero(grads < request.threshold)
        self._found += len(violators)
        self._looked_at += len(grads)
        self._share = len(violators) / len(grads)
        return violators[: request.limit]

    def reset(self) -> None:
        """Propose nothing more: certifying passes find the violators from now on."""
        self._unseen = 0
        self._looks = []
        self._near = self._near[:0]

    def state(self) -> dict[str, Any]:
        blocks = self._sampler
        return {
            "next_row": blocks.next_row if isinstance(blocks, BlockSampler) else None,
            "unseen": self._unseen,
            "looks": list(self._looks),
            "looking": self._looking,
            "near": self._near,
            "found": self._found,
            "looked_at": self._looked_at,
            "margins": self._margins,
            "share": self._share,
        }

    def restore(self, state: dict[str, Any]) -> None:
        if isinstance(self._sampler, BlockSampler):
            self._sampler.next_row = state["next_row"]
        self._unseen = state["unseen"]
        self._looks, self._looking = list(state["looks"]), state["looking"]
        self._near = state["near"]
        self._found, self._looked_at = state["found"], state["looked_at"]
        self._margins = state["margins"]
        self._share = state["share"]


class FullLMO(LMO):
    """Best of all rows, by the gradient of every row kept up to date (analytic gradient).

    A step costs one kernel column over all rows for each vertex it touches; columns of recent
    vertices are kept.
    """

    def __init__(
        self,
        source: RowSource,
        labels: Int8Array,
        engine: Engine,
        C: float | Float64Array,
        *,
        keeps_before: bool,
        keeps_rows: bool = True,
        column_bytes: int = 0,
    ) -> None:
        super().__init__(source, labels, engine)
        self._y = labels.astype(np.float64)
        self._C = np.broadcast_to(C, len(labels))
        self._keeps_before = keeps_before  # for steps that extrapolate
        self._grad: Float64Array | None = None
        self._before: Float64Array | None = None
        self._kept: list[tuple[int, Operand]] | None = None
        self._columns: OrderedDict[int, npt.NDArray[Any]] = OrderedDict()
        self._keeps_rows = keeps_rows  # else they are read for every column
        self._column_bytes = column_bytes
        self._precise = False  # whether what is kept is float64

    def _follow(self, active: ActiveSet) -> None:
        """Forget what is kept in another precision than that of the active set."""
        if active.precise != self._precise:
            self._precise, self._kept = active.precise, None
            self._columns.clear()
            self.reset()

    def _operands(self, active: ActiveSet) -> Iterator[tuple[int, Operand]]:
        """All rows in order, as (first row, rows made ready for products)."""
        if self._kept is not None:
            yield from self._kept
            return
        kept = []
        for start, rows in iter_blocks(self._source, 0, self._source.n_rows):
            operand = active.prepare(rows)
            if self._keeps_rows:
                kept.append((start, operand))
            yield start, operand
        if self._keeps_rows:
            self._kept = kept

    def propose(self, active: ActiveSet, rng: np.random.Generator, request: Request) -> Candidates:
        """Propose the rows of least gradient."""
        self._follow(active)
        if self._grad is None:
            self._grad = self._gradient(active)
        worst = int(core.argmin(self._grad))
        nothing = nothing_outside(active, len(self._grad), exact=True)
        seen = replace(nothing, least=min(nothing.least, float(self._grad[worst])))
        if active.place_of(worst) is None:
            seen = replace(seen, worst=worst)
        best = self._best(request)
        best = best[active.outside(best)]
        if len(best) == 0:
            return seen
        return replace(
            seen,
            row_ids=best,
            rows=self._source.take(best),
            labels=self._labels[best],
            grads=self._grad[best],
        )

    def _best(self, request: Request) -> Int64Array:
        """Rows of least gradient below the threshold, increasing row numbers."""
        assert self._grad is not None
        if request.limit == 1:
            return np.array([core.argmin(self._grad)], dtype=np.int64)
        best = np.flatnonzero(self._grad < request.threshold)
        if len(best) > request.limit:
            order = np.argpartition(self._grad[best], request.limit)[: request.limit]
            best = np.sort(best[order])
        return best

    def _gradient(self, active: ActiveSet) -> Float64Array:
        grad = np.empty(self._source.n_rows)
        for start, x in self._operands(active):
            part = slice(start, start + len(x))
            grad[part] = self._y[part] * active.decision_at(x)
        grad[active.ids] = active.grad
        return grad

    def _column(self, row_id: int, active: ActiveSet) -> npt.NDArray[Any]:
        """Kernel values between a vertex and all rows, from the cache where possible."""
        column = self._columns.get(row_id)
        if column is None:
            column = np.empty(self._source.n_rows, np.float64 if self._precise else np.float32)
            place = active.place_of(row_id)
            assert place is not None
            vertex = active.operand[place : place + 1]
            for start, x in self._operands(active):
                self._engine.block(vertex, x, column[None, start : start + len(x)])
            if len(self._columns) >= max(2, self._column_bytes // column.nbytes):
                self._columns.popitem(last=False)
            self._columns[row_id] = column
        self._columns.move_to_end(row_id)
        return column

    def update(self, record: StepRecord, active: ActiveSet) -> None:
        """Apply the step to the gradient of every row."""
        self._follow(active)
        if self._grad is None:
            return
        if record.extrapolation > 0 and self._before is None:
            # The gradient was forgotten between the two iterates that the step extrapolates from.
            self.reset()
            return
        before = self._grad.copy() if self._keeps_before else None
        scale = record.scale
        for row_id, weight in zip(record.ids.tolist(), record.weights.tolist(), strict=True):
            column = self._column(row_id, active)
            core.add_column(self._grad, self._y, scale, column, weight * self._y[row_id])
            self._grad[row_id] += weight / self._C[row_id]
            scale = 1.0
        if record.extrapolation > 0:
            core.extrapolate_gradient(self._grad, self._before, record.extrapolation)
        # The gradient of the active set is more precise, and progress is measured by it.
        self._grad[active.ids] = active.grad
        self._before = before

    def reset(self) -> None:
        """Forget the gradient; the next proposal computes it anew."""
        self._grad = None
        self._before = None

    def state(self) -> dict[str, Any]:
        """The gradient of all rows, whose last bits depend on the steps it has seen."""
        return {"grad": self._grad, "before": self._before}

    def restore(self, state: dict[str, Any]) -> None:
        self._grad, self._before = state["grad"], state["before"]
