"""The end of a run: the best weights of one that stops early, and the last gap over drawn rows."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import numpy as np

from ooc_fw.data.rows import take_rows
from ooc_fw.problem import relative_gap
from ooc_fw.solver.kept import KeptState, Sample, primal_objectives
from ooc_fw.solver.oracles import Request, SampledLMO
from ooc_fw.solver.run_state import RunState
from ooc_fw.solver.setup import Setting
from ooc_fw.solver.state import Solution, Status
from ooc_fw.solver.steps import INNER_STEPS_PER_VERTEX

logger = logging.getLogger(__name__)

_SETTLED_GAP = 1e-2
"""Relative gap on the vertices to which the weights of a run that stops early are optimised."""

_UNCERTIFIED_DRAW = 2048
"""Least number of rows over which the gap of a run without certificate is known."""


def settle(setting: Setting, state: RunState, seconds: float) -> bool:
    """Take the best weights of a run that stops early: optimal on their vertices, of least P.

    Parameters
    ----------
    setting : Setting
        Of the run.
    state : RunState
        Its active set gets the weights.
    seconds : float
        Time limit of each optimisation and of each comparison.

    Returns
    -------
    bool
        Whether the weights are others than before.
    """
    moved = _optimise_vertices(state, seconds)
    others = [kept for kept in state.kept.states if len(kept.ids) < len(state.active.support)]
    if not others:
        return moved
    last = KeptState.of(state.active)
    best = _least_primal(setting, state, [*others, last], seconds)
    if best == len(others):
        return moved
    _return_to(setting, state, others[best])
    # An optimum on few vertices may be a worse model than the weights on the way to it.
    if _optimise_vertices(state, seconds):
        if _least_primal(setting, state, [KeptState.of(state.active), last], seconds) == 1:
            _return_to(setting, state, last)
    return True


def _optimise_vertices(state: RunState, seconds: float) -> bool:
    """Optimise on the active set for some time at most; whether that took a step."""
    end = time.perf_counter() + seconds
    most = INNER_STEPS_PER_VERTEX * len(state.active)
    steps, _ = state.active.optimise(_SETTLED_GAP, most, lambda: time.perf_counter() > end)
    return steps > 0


def _least_primal(
    setting: Setting, state: RunState, candidates: Sequence[KeptState], seconds: float
) -> int:
    """Which of some weights have the least primal objective over a sample of rows."""
    end = time.perf_counter() + seconds
    rng = np.random.default_rng(setting.options.seed)
    sample = Sample(
        setting.rows,
        setting.problem.labels,
        setting.penalties,
        lambda size: setting.sampler.sample(size, rng),
    )
    found = primal_objectives(
        candidates, state.active, setting.engine, sample, lambda: time.perf_counter() > end
    )
    best = int(found.argmin())
    logger.info(
        "primal objectives of %s vertices: %s; the model is that of %d",
        [len(kept.ids) for kept in candidates],
        [float(f"{value:.4g}") for value in found],
        len(candidates[best].ids),
    )
    return best


def _return_to(setting: Setting, state: RunState, kept: KeptState) -> None:
    """Take the weights of an earlier state."""
    rows, labels = setting.rows_of(kept.ids), setting.problem.labels[kept.ids]
    state.active.clear()
    state.active.add(kept.ids, rows, labels)
    state.active.set_weights(kept.alpha)
    state.certification.forget()
    state.seen = None


def last_sampled_gap(setting: Setting, state: RunState) -> float:
    """Gap over the rows drawn last; the worst is taken in float64 and cannot exceed the truth."""
    active, seen = state.active, state.seen
    rows, labels, engine = setting.rows, setting.problem.labels, setting.engine
    if seen is None or seen.n_scanned == 0:
        # Without a certificate this draw is all that is known of rows outside the active set.
        least = _UNCERTIFIED_DRAW if state.certification.certificate is None else 0
        size = max(setting.options.sample_size, least)
        draw = SampledLMO(rows, labels, engine, setting.sampler, size)
        seen = draw.propose(active, state.rng, Request())
    grad = float(active.grad.min())
    if seen.worst >= 0 and active.place_of(seen.worst) is None:
        support, worst = active.support, np.array([seen.worst])
        z = engine.prepare(take_rows(active.rows, support), exact=True)
        beta = active.alpha[support] * active.labels[support]
        x = engine.prepare(rows.take(worst), exact=True)
        values = engine.weighted_sum(x, z, beta) + beta.sum()
        grad = min(grad, float(labels[worst[0]] * values[0]))
    return relative_gap(active.rho, grad)


def solution_of(setting: Setting, state: RunState, status: Status, sampled_gap: float) -> Solution:
    """Solution of a run that has ended; its progress is up to date."""
    active, problem, progress = state.active, setting.problem, state.progress
    support, certificate = active.support, state.certification.certificate
    ids = active.ids[support]
    return Solution(
        status=status,
        method=setting.options.method,
        lmo=setting.options.lmo,
        choice=setting.choice,
        alpha=active.alpha[support],
        labels=active.labels[support].astype(np.int8),
        rows=ids,
        support_vectors=take_rows(active.rows, support),
        penalties=None if problem.penalties is None else problem.penalties[ids],
        objective=active.rho / 2,
        rho=active.rho,
        sampled_gap=sampled_gap,
        certified_gap=None if certificate is None else certificate.certified_gap,
        pair_gap=None if certificate is None else certificate.pair_gap,
        iterations=progress.iteration,
        steps=progress.steps,
        kernel_evaluations=progress.kernel_evaluations,
        passes=progress.kernel_evaluations / (problem.source.n_rows * len(support)),
        rows_read=progress.rows_read,
        bytes_read=progress.bytes_read,
        seconds=progress.elapsed_s,
        sweep_seconds=state.certification.seconds,
    )
