"""Certifying passes over the data, and which rows they may leave out."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import numpy as np

from ooc_fw.certificate.screening import Screen
from ooc_fw.certificate.sweep import Certificate, Search, SupportGradient, SupportWeights
from ooc_fw.certificate.sweep import certify as make_pass
from ooc_fw.data.rows import Int64Array, take_rows
from ooc_fw.solver.run_state import RunState
from ooc_fw.solver.state import Status, Stop

logger = logging.getLogger(__name__)

_LEAST_VIOLATORS = 512  # violators that a pass may always return
_FEW_UNSCREENED = 0.25  # share of unscreened rows from which a pass looks at all, for a new screen


def certify(state: RunState, tolerance: float, on_block: Callable[[float], None]) -> Certificate:
    """Make a pass over all rows, or over those that may violate by more than the tolerance.

    The gradient of the active set was just computed in float64. `on_block` is told the share of the
    pass that is done. Stop is raised when the pass will not end within the time limit.
    """
    setting, deadline, active = state.setting, state.deadline, state.active
    all_rows = setting.problem.source.n_rows
    support, unscreened = active.support, _unscreened(state)
    ids, alpha = active.ids[support], active.alpha[support]
    n_rows = all_rows if unscreened is None else len(unscreened)
    work = n_rows * len(support)
    started = time.perf_counter()

    def on_rows(rows_seen: int) -> None:
        share = rows_seen / n_rows
        on_block(share)
        seconds = time.perf_counter() - started
        if deadline.sweep_is_late(seconds, share):
            deadline.sweeps.add(seconds, share * work)
            raise Stop(Status.TIME_LIMIT)

    screen = None
    if unscreened is None:
        plain, norm2 = active.plain_grad[support], active.squared_norm()
        screen = Screen(all_rows, ids, alpha, plain, norm2, active.rounding)
    gradient = SupportGradient(active.grad[support], active.rounding)
    rows = take_rows(active.rows, support)
    weights = SupportWeights(rows, ids, alpha, active.penalty_of(ids), gradient)
    search = Search(tolerance, max(_LEAST_VIOLATORS, len(active)), screen, unscreened)
    state.certificate = make_pass(
        setting.problem, setting.engine, weights, search, on_rows, setting.workers
    )
    seconds = time.perf_counter() - started
    deadline.sweeps.add(seconds, work)
    state.pass_share = n_rows / all_rows
    if screen is not None:
        state.sweep_seconds, state.screen = seconds, screen
        active.pinned[:] = False
        active.pinned[support] = True  # `_unscreened` needs the gradient of these vertices
    return state.certificate


def _unscreened(state: RunState) -> Int64Array | None:
    """Rows that may be worse than the support, by the last screen; None for all rows."""
    if state.screen is None:
        return None
    active, problem = state.active, state.setting.problem
    rounding, norm2 = active.rounding, active.squared_norm()
    plain = active.plain_grad[active.places_of(state.screen.row_ids)]
    floor = float(active.grad[active.support].min()) + rounding
    found = state.screen.unscreened(floor, problem.labels, norm2, plain, rounding)
    support = np.sort(active.ids[active.support])  # their gradients are known
    found = np.setdiff1d(found, support, assume_unique=True)
    logger.info("screening leaves %d of %d rows", len(found), problem.source.n_rows)
    return found if len(found) < _FEW_UNSCREENED * problem.source.n_rows else None
