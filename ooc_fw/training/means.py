"""Classifiers of pairs of classes without training: between the means of rows of each class.

They stand in for pairs whose training has not begun when a run ends, or when a checkpoint is due.
"""

from __future__ import annotations

import numpy as np

from ooc_fw.data.rows import Int64Array, concat_rows, take_rows
from ooc_fw.kernels.arithmetic import choose_arithmetic
from ooc_fw.kernels.engine import Engine
from ooc_fw.model.partition import Partition
from ooc_fw.solver.plan import Plan
from ooc_fw.solver.state import Solution, SolverState, Status, StepKind, Work

_MOST_ROWS = 1 << 15  # of all classes together, in the means
_FEW_ROWS = 1 << 11  # rows whose kernel values with those rows take a second


class ClassMeans:
    """Up to 2^15 rows of all classes, evenly spaced, and the products of the means of classes.

    The products come from some of the rows and are estimates, and so are the scales of classifiers.
    """

    def __init__(self, partition: Partition, plan: Plan) -> None:
        whole = partition.whole
        self._plan = plan
        self._weighted = whole.penalties is not None
        most = max(1, _MOST_ROWS // whole.n_classes)
        places = [_spaced(source.n_rows, most) for source in partition.sources]
        self.rows = [rows[some] for rows, some in zip(partition.rows, places, strict=True)]
        every = whole.penalties
        c = plan.given.C
        self.penalties = [np.full(len(r), c) if every is None else every[r] for r in self.rows]
        taken = [source.take(some) for source, some in zip(partition.sources, places, strict=True)]
        self._none = taken[0][:0]
        self._products = np.empty((len(taken), len(taken)))
        starts = np.cumsum([0, *map(len, taken[:-1])])
        threads = plan.options.threads
        arithmetic = choose_arithmetic(whole.kernel, concat_rows(taken))
        with Engine(whole.kernel, threads, arithmetic) as engine:
            all_rows = engine.prepare(concat_rows(taken), exact=True)
            few = max(1, _FEW_ROWS // whole.n_classes)
            for code, rows in enumerate(taken):
                rows = take_rows(rows, _spaced(len(rows), few))
                values = np.empty((len(rows), len(all_rows)))
                engine.block(engine.prepare(rows, exact=True), all_rows, values)
                sums = np.add.reduceat(values.sum(axis=0), starts)
                self._products[code] = sums / (len(rows) * np.array([*map(len, taken)]))

    def solution(self, negative: int, positive: int, status: Status) -> Solution:
        """The best weights of the two means, which are the only two vertices of this problem."""
        both = self.rows[negative], self.rows[positive]
        penalties = np.concatenate([self.penalties[negative], self.penalties[positive]])
        # Q of the two means: see `ooc_fw.problem`.
        q = np.array([[1.0, -1.0], [-1.0, 1.0]])
        q *= 1 + self._products[np.ix_([negative, positive], [negative, positive])]
        for side, code in enumerate((negative, positive)):
            q[side, side] += float((1 / self.penalties[code]).mean()) / len(self.rows[code])
        curvature = q[0, 0] + q[1, 1] - 2 * q[0, 1]
        share = float(np.clip((q[1, 1] - q[0, 1]) / curvature, 0.1, 0.9))
        shares = np.array([share, 1 - share])
        rho = float(shares @ q @ shares)
        sizes = np.array([*map(len, both)])
        alpha = np.repeat(shares / sizes, sizes)
        return Solution(
            **vars(Work.of(SolverState(), 1, 1)),
            status=status,
            method=self._plan.options.method,
            lmo=self._plan.options.lmo,
            choice="means of classes, without training",
            alpha=alpha,
            labels=np.repeat(np.array([-1, 1], dtype=np.int8), sizes),
            rows=np.concatenate(both),
            support_vectors=self._none,
            objective=rho / 2,
            rho=rho,
            sampled_gap=None,
            certified_gap=None,
            pair_gap=None,
            steps=dict.fromkeys(StepKind, 0),
            penalties=penalties if self._weighted else None,
        )


def _spaced(n_rows: int, most: int) -> Int64Array:
    """Numbers of at most so many rows, evenly spaced."""
    return np.unique(np.linspace(0, n_rows - 1, most).astype(np.int64))
