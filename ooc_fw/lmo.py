"""Linear minimization oracles: which vertex to move towards.

An oracle looks at rows of the source and at the active set, and proposes the row of least gradient.
It never changes a weight. `FullLMO` looks at every row and is exact; `SampledLMO` looks at a random
few, at a cost that does not depend on the number of rows. To add an oracle: a class with the verbs
of `LMO` and a line in `LMOS`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from ooc_fw._core import steps as core
from ooc_fw.active_set import ActiveSet
from ooc_fw.engine import Engine, Operand
from ooc_fw.memory import COLUMN_CACHE_BYTES, ROWS_CACHE_BYTES
from ooc_fw.rows import Float32Array, Float64Array, Int8Array, Rows, take_rows
from ooc_fw.sampling import Sampler
from ooc_fw.sources import RowSource, iter_blocks
from ooc_fw.steps import StepRecord


@dataclass(frozen=True)
class Candidate:
    """Toward vertex proposed by an oracle.

    Parameters
    ----------
    row_id : int
        Row of the vertex in the source.
    rows : Rows or None
        The row itself, shape (1, n_features); None when it is in the active set already.
    label : int
        +1 or -1.
    grad : float
        Gradient there: the least among all rows looked at and the active set.
    n_scanned : int
        Rows looked at.
    exact : bool
        Whether no row of the source has a lesser gradient.
    """

    row_id: int
    rows: Rows | None
    label: int
    grad: float
    n_scanned: int
    exact: bool


class LMO(Protocol):
    """What the solver asks of an oracle."""

    def propose(self, active: ActiveSet, rng: np.random.Generator) -> Candidate:
        """Vertex of least gradient among the rows looked at and the active set."""

    def update(self, record: StepRecord, active: ActiveSet) -> None:
        """Learn of a step that was taken."""

    def reset(self) -> None:
        """Forget what was derived from the weights; they were changed from outside."""


def _best_of_active(active: ActiveSet, n_scanned: int) -> Candidate:
    place = core.argmin(active.grad)
    return Candidate(
        int(active.ids[place]),
        None,
        int(active.labels[place]),
        float(active.grad[place]),
        n_scanned,
        exact=False,
    )


class SampledLMO:
    """Best of the active set and `sample_size` random rows.

    Its gap never exceeds the duality gap and is no certificate. A sample of r rows holds one of the
    best fraction q of all rows with probability 1 - (1 - q)^r: 194 rows for 2 % at 0.98.

    References
    ----------
    Frandi, Nanculef, Suykens, Complexity issues and randomization strategies in Frank-Wolfe
    algorithms for machine learning.
    """

    name: ClassVar[str] = "sampled"

    def __init__(
        self,
        source: RowSource,
        labels: Int8Array,
        engine: Engine,
        sampler: Sampler,
        sample_size: int,
    ) -> None:
        self._source = source
        self._labels = labels
        self._engine = engine
        self._sampler = sampler
        self._sample_size = sample_size

    def propose(self, active: ActiveSet, rng: np.random.Generator) -> Candidate:
        """Draw rows and propose the best of them and of the active set."""
        best = _best_of_active(active, self._sample_size)
        row_ids = self._sampler.sample(self._sample_size, rng)
        row_ids = row_ids[active.outside(row_ids)]
        if len(row_ids) == 0:
            return best
        rows = self._source.take(row_ids)
        labels = self._labels[row_ids].astype(np.float64)
        grads = active.gradient_at(self._engine.prepare(rows), labels)
        k = int(np.argmin(grads))
        if grads[k] >= best.grad:
            return best
        row = take_rows(rows, np.array([k]))
        n_scanned = self._sample_size
        return Candidate(
            int(row_ids[k]), row, int(labels[k]), float(grads[k]), n_scanned, exact=False
        )

    def update(self, record: StepRecord, active: ActiveSet) -> None:
        """Nothing to keep: each draw starts from the weights."""

    def reset(self) -> None:
        """Nothing to forget."""


class FullLMO:
    """Best of all rows, by the gradient of every row kept up to date (analytic gradient).

    A step costs one kernel column over all rows for each vertex it touches; columns of recent
    vertices are kept. Rows that fit `ROWS_CACHE_BYTES` are read once, others for every column.
    """

    name: ClassVar[str] = "full"

    def __init__(
        self, source: RowSource, labels: Int8Array, engine: Engine, C: float, keeps_before: bool
    ) -> None:
        self._source = source
        self._labels = labels.astype(np.float64)
        self._engine = engine
        self._C = C
        self._keeps_before = keeps_before  # for steps that extrapolate
        self._grad: Float64Array | None = None
        self._before: Float64Array | None = None
        self._kept: list[tuple[int, Operand]] | None = None
        self._columns: OrderedDict[int, Float32Array] = OrderedDict()
        self._max_columns = max(2, COLUMN_CACHE_BYTES // (4 * source.n_rows))

    def _operands(self) -> Iterator[tuple[int, Operand]]:
        """All rows in order, as (first row, rows made ready for products)."""
        if self._kept is not None:
            yield from self._kept
            return
        fits = self._source.decoded_bytes <= ROWS_CACHE_BYTES
        kept = []
        for start, rows in iter_blocks(self._source, 0, self._source.n_rows):
            operand = self._engine.prepare(rows)
            if fits:
                kept.append((start, operand))
            yield start, operand
        if fits:
            self._kept = kept

    def propose(self, active: ActiveSet, rng: np.random.Generator) -> Candidate:
        """Propose the row of least gradient."""
        if self._grad is None:
            self._grad = self._gradient(active)
        row_id = core.argmin(self._grad)
        place = active.place_of(row_id)
        return Candidate(
            row_id,
            None if place is not None else self._source.take(np.array([row_id])),
            int(self._labels[row_id]),
            float(self._grad[row_id]),
            len(self._grad),
            exact=True,
        )

    def _gradient(self, active: ActiveSet) -> Float64Array:
        grad = np.empty(self._source.n_rows)
        for start, x in self._operands():
            part = slice(start, start + len(x))
            grad[part] = active.gradient_at(x, self._labels[part])
        grad[active.ids] = active.grad
        return grad

    def _column(self, row_id: int, active: ActiveSet) -> Float32Array:
        """Kernel values between a vertex and all rows, from the cache where possible."""
        column = self._columns.get(row_id)
        if column is None:
            column = np.empty(self._source.n_rows, dtype=np.float32)
            place = active.place_of(row_id)
            assert place is not None
            vertex = active.operand[place : place + 1]
            for start, x in self._operands():
                self._engine.block(vertex, x, column[None, start : start + len(x)])
            if len(self._columns) >= self._max_columns:
                self._columns.popitem(last=False)
            self._columns[row_id] = column
        self._columns.move_to_end(row_id)
        return column

    def update(self, record: StepRecord, active: ActiveSet) -> None:
        """Apply the step to the gradient of every row."""
        if self._grad is None:
            return
        before = self._grad.copy() if self._keeps_before else None
        scale = record.scale
        for row_id, weight in zip(record.ids.tolist(), record.weights.tolist(), strict=True):
            column = self._column(row_id, active)
            core.add_column(self._grad, self._labels, scale, column, weight * self._labels[row_id])
            self._grad[row_id] += weight / self._C
            scale = 1.0
        if record.extrapolation > 0:
            assert self._before is not None
            core.extrapolate_gradient(self._grad, self._before, record.extrapolation)
        self._before = before

    def reset(self) -> None:
        """Forget the gradient; the next proposal computes it anew."""
        self._grad = None
        self._before = None


LMOS: dict[str, type[FullLMO] | type[SampledLMO]] = {lmo.name: lmo for lmo in (FullLMO, SampledLMO)}
