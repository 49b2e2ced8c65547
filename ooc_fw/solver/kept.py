"""Earlier weights that a run keeps, and an estimate of which are the best model.

The dual objective of weights on few vertices says nothing of the other rows: more violators may
make a worse model. The measure is the primal objective, see `primal_objectives`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ooc_fw.data.rows import Float64Array, Int8Array, Int64Array, Rows, concat_rows, take_rows
from ooc_fw.data.sources import RowSource
from ooc_fw.kernels.engine import ManyWeights
from ooc_fw.solver.active_set import ActiveSet
from ooc_fw.solver.setup import Setting

_SAMPLE_ROWS = 20_000  # rows over which the primal objective is estimated, or all if fewer
_DRAW_ROWS = 500  # rows of the sample between two looks at the clock
_GROWTH = 2.0  # factor of the number of vertices from one state kept to the next
_FEWEST = 64  # vertices of the first state kept


@dataclass(frozen=True)
class KeptState:
    """Weights at some moment of a run."""

    ids: Int64Array  # (k,): rows of positive weight
    labels: Int8Array  # (k,): -1 or +1
    alpha: Float64Array  # (k,): their weights
    rho: float  # alpha' g
    squared_norm: float  # |w|^2 + b^2

    @classmethod
    def of(cls, active: ActiveSet) -> KeptState:
        """The weights of now."""
        support = active.support
        labels = active.labels[support].astype(np.int8)
        weights = active.ids[support], labels, active.alpha[support]
        return cls(*weights, active.rho, active.squared_norm())


@dataclass
class KeptStates:
    """States kept at growing sizes, few so that they take little memory; no clock decides when."""

    states: list[KeptState] = field(default_factory=list)
    size: int = 0  # vertices when the last one was kept
    best: KeptState | None = None  # of least certified gap, if any was above the tolerance

    def offer(self, active: ActiveSet) -> None:
        """Keep the weights of now if the active set has grown enough; O(1) otherwise."""
        if len(active) >= max(_FEWEST, _GROWTH * self.size):
            self.size = len(active)
            self.states.append(KeptState.of(active))

    def state(self) -> dict[str, Any]:
        """Arrays, and values for JSON, of a checkpoint."""
        states = self.states if self.best is None else [*self.states, self.best]
        joined = {
            name: np.concatenate([getattr(kept, name) for kept in states])
            for name in ("ids", "labels", "alpha")
            if states
        }
        return joined | {
            "size": self.size,
            "best": self.best is not None,
            "lengths": [len(kept.ids) for kept in states],
            "rho": [kept.rho for kept in states],
            "squared_norm": [kept.squared_norm for kept in states],
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> KeptStates:
        """Back from what `state` gave."""
        cuts = np.cumsum(state["lengths"])[:-1]
        arrays = [np.split(state[name], cuts) for name in ("ids", "labels", "alpha")]
        numbers = state["rho"], state["squared_norm"]
        states = list(map(KeptState, *arrays, *numbers))
        best = states.pop() if state.get("best") else None
        return cls(states, state["size"], best)


def _sample(setting: Setting) -> Iterator[Int64Array]:
    """A fixed random sample of rows, part by part; where rows are few, all in random order."""
    n = setting.rows.n_rows
    if n <= _SAMPLE_ROWS:
        order = np.random.default_rng(0).permutation(n)
        for start in range(0, n, _DRAW_ROWS):
            yield np.sort(order[start : start + _DRAW_ROWS])
        return
    rng = np.random.default_rng(setting.options.seed)
    for _ in range(0, _SAMPLE_ROWS, _DRAW_ROWS):
        yield setting.sampler.sample(_DRAW_ROWS, rng)


def primal_objectives(
    states: Sequence[KeptState],
    active: ActiveSet,
    setting: Setting,
    is_late: Callable[[], bool],
) -> Float64Array:
    """P of each state, shape (len(states),), estimated over the same rows of a sample.

    On the scale where the margin is 1, a / rho is the solution of a squared hinge, the minimum of

        P(a) = 1/2 (|w|^2 + b^2) / rho^2 + 1/2 sum_i C_i max(0, 1 - y_i h(x_i) / rho)^2,

    here with the sum over a random sample, times the number of all rows over that of the sample.
    Costs rows of the sample x vertices of all states kernel values. The first part of the sample is
    always taken, the others while it is not late.
    """
    engine, C = setting.engine, setting.penalties
    ids = np.unique(np.concatenate([state.ids for state in states]))
    vertices = engine.prepare(_rows_of(ids, active, setting.rows))
    betas = [state.alpha * state.labels for state in states]
    places = [np.searchsorted(ids, state.ids) for state in states]
    weights = ManyWeights.of(len(ids), places, betas)
    bias = np.array([beta.sum() for beta in betas])
    rho = np.array([state.rho for state in states])
    losses, n_seen = np.zeros(len(states)), 0
    for row_ids in _sample(setting):
        x = engine.prepare(setting.rows.take(row_ids))
        margins = (engine.weighted_sums(x, vertices, weights) + bias) / rho
        slack = np.maximum(0.0, 1.0 - setting.problem.labels[row_ids][:, None] * margins)
        own = C[row_ids][:, None] if isinstance(C, np.ndarray) else C
        losses += np.sum(own * slack**2, axis=0)
        n_seen += len(row_ids)
        if is_late():
            break
    norms = np.array([state.squared_norm for state in states]) / rho**2
    return np.asarray(norms / 2 + setting.rows.n_rows / n_seen * losses / 2)


def _rows_of(ids: Int64Array, active: ActiveSet, source: RowSource) -> Rows:
    """Rows of increasing numbers, those of the active set from there."""
    gone = active.outside(ids)
    here = np.delete(np.arange(len(ids)), gone)
    vertices = take_rows(active.rows, active.places_of(ids[here]))
    rows = concat_rows([vertices, source.take(ids[gone])])
    return take_rows(rows, np.argsort(np.concatenate([here, gone])))
