"""Looks at many rows by few of the vertices.

Certifying passes need bounds. Looks choose the violators to train on, for which estimates will do:
those of `ooc_fw.kernels.low_rank`, with the largest error seen on some rows of the same look in
place of what is left of w. A violator that a look misses is found by the next certifying pass.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ooc_fw.data.rows import Float64Array, Int64Array, take_rows
from ooc_fw.kernels import low_rank
from ooc_fw.kernels.arithmetic import Operand
from ooc_fw.kernels.low_rank import Compression, Effort, LowRank, Span
from ooc_fw.solver.active_set import ActiveSet
from ooc_fw.system.memory import MemoryPlan

_KNOWN = 400  # rows of a look, about, that are seen by all vertices
_SAFE = 1.5  # factor of the largest error among these
_NEAREST = 0.05  # distance from a pivot that is added to all of them: errors do not vanish there
_RIDGE = 1e-10  # of the diagonal, since the gradient of steps is rounded
_LEAST_VERTICES = 500  # fewer are quickly looked at
_GROWN = 1.4  # factor of the vertices from which others may be better pivots
_LEAST_GROWN = 1.1  # the same once later passes cost more than
_WORSE = 1.5  # times what they cost when the pivots were chosen


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
    """Decision values of an active set from those of its vertices that nearly span it."""

    def __init__(self, memory: MemoryPlan) -> None:
        self._memory = memory
        self._ids = np.empty(0, dtype=np.int64)  # rows of the pivots; none where all take part
        self._sought_at = 0  # vertices when pivots were last sought
        self._cost = 0.0  # of a row with them then, as a share of that with all vertices

    def decisions(self, active: ActiveSet, look: Look) -> Float64Array:
        """Decision values of the rows of a look, estimated where they cannot violate."""
        if active.precise or not look.threshold < np.inf:
            return active.decision_at(look.x)
        known = np.arange(0, len(look.x), max(1, len(look.x) // _KNOWN))
        if len(active) > max(_LEAST_VERTICES, _GROWN * self._sought_at):
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
        cost = low_rank.row_cost(len(few), len(active), (len(known) + len(places)) / len(values))
        if cost > _WORSE * self._cost:
            self._sought_at = min(self._sought_at, int(len(active) / _GROWN * _LEAST_GROWN))
        if cost > 1:
            self._ids = self._ids[:0]
        return values

    def _seek(self, active: ActiveSet, look: Look, known: Int64Array) -> None:
        """Choose other pivots, if any make passes cheaper."""
        self._sought_at = len(active)
        n_bytes = self._memory.kernel_values
        effort = Effort.of(look.n_left, len(active), n_bytes)
        if effort is None:
            return
        x = look.x.take(known)
        engine = active.engine
        exact = active.decision_at(x)
        with active.kernel_rows_lent(if_=self._memory.limit is not None):
            span = Span(engine, engine.prepare(active.rows, exact=True), active.alpha, effort.most)

            def attempt() -> tuple[Compression, float]:
                few = _fit(active, span.places, x, exact)
                is_open = look.may_violate(*few.of_one(x), known)
                return few.compression, np.count_nonzero(is_open) / len(known)

            best, cost = low_rank.cheapest(span, effort, attempt)
        if best is not None:
            self._ids = active.ids[best.places]
            self._cost = cost


def _fit(active: ActiveSet, places: Int64Array, x: Operand, exact: Float64Array) -> LowRank:
    """The active set by some of its vertices, given the decision values of some rows."""
    engine = active.engine
    z = active.operand.take(places)
    K = low_rank.kernel_matrix(engine, engine.prepare(take_rows(active.rows, places), exact=True))
    at_pivots = (active.labels * active.plain_grad)[places]
    ridge = _RIDGE * np.diag(np.diagonal(K))
    c = np.linalg.solve(K + ridge, at_pivots).astype(np.float64, copy=False)
    residuals = at_pivots - K @ c
    one = np.ones(1)
    few = Compression(places, c[None], residuals[None], one, _NEAREST * one)
    values, distance = LowRank(engine, z, few).of_one(x)
    scale = _SAFE * one * (np.abs(values - exact) / distance).max(initial=0.0)
    return LowRank(engine, z, few._replace(norms=scale, rounding=_NEAREST * scale))
