"""The first vertices of a run: a few random rows, two rows far apart, or a warm start."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from ooc_fw.data.rows import Float64Array, Int64Array
from ooc_fw.options import START_ROWS
from ooc_fw.solver.run_state import RunState
from ooc_fw.system.errors import InputError

Warm: TypeAlias = tuple[Int64Array, Float64Array]
"""Rows to begin with, and their weights."""

_FARTHEST_ROWS = 1024  # random rows among which two that are far apart are sought
_STEPS_PER_VERTEX = 100  # most pairwise steps on the first vertices, for each of them


def check_warm(rows: Int64Array, alpha: Float64Array, n_rows: int) -> None:
    """Raise InputError unless a run on `n_rows` rows can begin with these rows and weights."""
    fits = len(rows) == len(alpha) > 0 and len(np.unique(rows)) == len(rows)
    if not (fits and 0 <= rows.min() <= rows.max() < n_rows):
        raise InputError(
            f"a warm start needs different rows, from 0 to {n_rows - 1}, and one weight for each"
        )
    if not (alpha >= 0).all() or not 0 < alpha.sum() < np.inf:
        raise InputError("the weights of a warm start must not be negative, nor all of them 0")


def start(state: RunState, warm: Warm | None) -> None:
    """Begin with the weights given, those that the state has already, or random rows."""
    active, options = state.active, state.setting.options
    if warm is not None:
        _add_warm(state, *warm)
        state.course.n_added = len(active)
    elif len(active) == 0:
        ids = _far_rows(state) if options.start == "farthest" else _random_rows(state)
        state.add_vertices(ids)
        m = len(active)
        active.set_weights(np.full(m, 1 / m))
        active.optimise(0.0, _STEPS_PER_VERTEX * m)
        state.refresh()


def _add_warm(state: RunState, row_ids: Int64Array, alpha: Float64Array) -> None:
    """Add rows with their weights; of too many, those of largest weight."""
    chosen = np.flatnonzero(alpha > 0)
    if len(chosen) > state.active.capacity:
        order = np.argsort(-alpha[chosen], kind="stable")
        chosen = chosen[order[: state.active.capacity]]
    chosen = chosen[np.argsort(row_ids[chosen])]
    state.add_vertices(row_ids[chosen])
    state.active.set_weights(alpha[chosen])


def _random_rows(state: RunState) -> Int64Array:
    """Rows of both classes, half of each as far as there are enough."""
    labels = state.setting.problem.labels
    chosen = [
        state.rng.choice(rows, min(len(rows), START_ROWS // 2), replace=False)
        for rows in (np.flatnonzero(labels == sign) for sign in (-1, 1))
    ]
    return np.sort(np.concatenate(chosen)).astype(np.int64)


def _far_rows(state: RunState) -> Int64Array:
    """Two rows of a random sample: the farthest from a random one, and the farthest from that.

    Their squared distance is Q_ii + Q_jj - 2 Q_ij (MEB paper, section on initialisation).
    """
    setting, rng = state.setting, state.rng
    problem, engine = setting.problem, setting.engine
    row_ids = setting.sampler.sample(_FARTHEST_ROWS, rng)
    x = engine.prepare(setting.rows.take(row_ids))
    y = problem.labels[row_ids].astype(np.float64)
    diagonal = engine.kernel.diagonal(x.norms)
    if problem.penalties is not None:
        diagonal = diagonal + 1 / problem.penalties[row_ids]
    k = int(rng.integers(len(row_ids)))
    pair = []
    for _ in range(2):
        values = np.empty((1, len(row_ids)), dtype=np.float32)
        engine.block(x[k : k + 1], x, values)
        k = int(np.argmax(diagonal - 2 * y[k] * y * (values[0] + 1.0)))
        pair.append(k)
    return row_ids[np.unique(pair)]
