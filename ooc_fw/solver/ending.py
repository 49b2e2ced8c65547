"""The end of a run: the best weights of one that stops early, and the last gap over drawn rows."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ooc_fw.data.rows import Rows, take_rows
from ooc_fw.problem import relative_gap
from ooc_fw.solver.active_set import ActiveSet
from ooc_fw.solver.kept import KeptState, primal_objectives
from ooc_fw.solver.oracles import Request, SampledLMO
from ooc_fw.solver.run_state import RunState
from ooc_fw.solver.steps import INNER_STEPS_PER_VERTEX

logger = logging.getLogger(__name__)

_SETTLED_GAP = 1e-2  # relative gap on the vertices to which a run that stops early optimises
_UNCERTIFIED_DRAW = 2048  # least number of rows over which an uncertified gap is known


def polish(state: RunState, gap: float) -> None:
    """Optimise on the vertices to a relative gap, unless rounding makes the one there larger."""
    active = state.active
    state.refresh()
    alpha, before = active.alpha.copy(), active.relative_gap()
    most = INNER_STEPS_PER_VERTEX * len(active)
    active.optimise(gap, most, lambda: state.deadline.left() <= 0)
    state.refresh()
    if active.relative_gap() > before:
        active.set_weights(alpha)


def settle(state: RunState, seconds: float) -> bool:
    """Take the best weights of a run that stops early: optimal on their vertices, of least P.

    Each optimisation and each comparison takes `seconds` at most. Returns whether the weights are
    others than before.
    """
    moved = _optimise_vertices(state, seconds)
    others = [kept for kept in state.kept.states if len(kept.ids) < len(state.active.support)]
    if not others:
        return moved
    last = KeptState.of(state.active)
    best = _least_primal(state, [*others, last], seconds)
    if best is last:
        return moved
    return_to(state, best)
    # An optimum on few vertices may be a worse model than the weights on the way to it.
    if _optimise_vertices(state, seconds):
        if _least_primal(state, [KeptState.of(state.active), last], seconds) is last:
            return_to(state, last)
    return True


def _optimise_vertices(state: RunState, seconds: float) -> bool:
    """Optimise on the active set for some time at most; whether that took a step."""
    end = time.perf_counter() + seconds
    most = INNER_STEPS_PER_VERTEX * len(state.active)
    steps, _ = state.active.optimise(_SETTLED_GAP, most, lambda: time.perf_counter() > end)
    return steps > 0


def _least_primal(state: RunState, candidates: Sequence[KeptState], seconds: float) -> KeptState:
    """Weights of the least primal objective over a sample of rows."""
    end = time.perf_counter() + seconds
    found = primal_objectives(
        candidates, state.active, state.setting, lambda: time.perf_counter() > end
    )
    best = candidates[int(found.argmin())]
    logger.info(
        "primal objectives of %s vertices: %s; the model is that of %d",
        [len(kept.ids) for kept in candidates],
        [float(f"{value:.4g}") for value in found],
        len(best.ids),
    )
    return best


def return_to(state: RunState, kept: KeptState) -> None:
    """Take the weights of an earlier state."""
    rows, labels = state.setting.rows_of(kept.ids), state.setting.problem.labels[kept.ids]
    state.active.clear()
    state.active.add(kept.ids, rows, labels)
    state.active.set_weights(kept.alpha)
    state.certificate = state.screen = state.seen = None
    state.pass_share = 1.0


def last_sampled_gap(state: RunState) -> float:
    """Gap over the rows drawn last; the worst is taken in float64 and cannot exceed the truth."""
    active, seen, setting = state.active, state.seen, state.setting
    rows, labels = setting.rows, setting.problem.labels
    if seen is None or seen.n_scanned == 0:
        # Without a certificate this draw is all that is known of rows outside the active set.
        least = _UNCERTIFIED_DRAW if state.certificate is None else 0
        size = max(setting.options.sample_size, least)
        draw = SampledLMO(rows, labels, setting.engine, setting.sampler, size)
        seen = draw.propose(active, state.rng, Request())
    grad = float(active.grad.min())
    if seen.worst >= 0 and active.place_of(seen.worst) is None:
        row = rows.take(np.array([seen.worst]))
        outside = int(labels[seen.worst]) * exact_decision(active, active.support, row)
        grad = min(grad, outside)
    return relative_gap(active.rho, grad)


def exact_decision(active: ActiveSet, places: npt.NDArray[np.intp], row: Rows) -> float:
    """Decision value of one row in float64; vertices without weight may be left out of `places`."""
    z = active.engine.prepare(take_rows(active.rows, places), exact=True)
    beta = active.alpha[places] * active.labels[places]
    x = active.engine.prepare(row, exact=True)
    return float((active.engine.weighted_sum(x, z, beta) + beta.sum())[0])
