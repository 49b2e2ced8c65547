"""Rows of the stages in which pairs of classes are trained: random parts, each in the next one.

The classifiers of a stage begin with the weights of the stage before. A run that ends early thus
has classifiers of all pairs which have learned the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ooc_fw.data.rows import Int64Array
from ooc_fw.problem import ClassificationProblem
from ooc_fw.solver.plan import Plan
from ooc_fw.solver.steps import STEP_RULES

_FIRST_ROWS = 8_000  # of the first stage, at least: they train in a few seconds
_ROWS_OF_CLASS = 30  # a class of fewer rows has all of them in each stage
GROWTH = 6
"""Times as many rows as in the stage before, which thus takes about a tenth of the time."""

WORK_POWER = 1.5
"""The time to train a pair grows about as this power of its rows."""

STAGE_TOL = 1e-2
"""Relative gap of all stages but the last."""


class Stage(NamedTuple):
    """The rows of a stage."""

    number: int  # from 1
    n_stages: int
    rows: Int64Array | None  # increasing numbers; None for all rows
    begin: float  # share of the work of all stages that is done before it
    end: float

    @property
    def last(self) -> bool:
        """Whether it has all rows."""
        return self.rows is None


def stages_of(problem: ClassificationProblem, plan: Plan, known: Int64Array) -> Iterator[Stage]:
    """The stages of a run, which may begin with weights of the `known` rows.

    A class keeps its share of the rows, and has at least 30 of them or all. The known rows are in
    each stage; stages of fewer rows than these are left out.
    """
    options = plan.given
    n_rows = len(problem.codes)
    sizes: list[int] = []
    size = n_rows // GROWTH
    while size >= max(_FIRST_ROWS, _ROWS_OF_CLASS * problem.n_classes):
        sizes.insert(0, size)
        size //= GROWTH
    usual = STEP_RULES[plan.options.method].takes_many and options.start == "random"
    if not usual or options.max_iter is not None:
        sizes.clear()
    sizes = [size for size in sizes if size > len(known)]
    sizes.append(n_rows)
    work = np.array(sizes) ** WORK_POWER
    done = np.cumsum([0.0, *work]) / work.sum()
    for k, size in enumerate(sizes):
        rows = None
        if size < n_rows:
            rows = np.union1d(_part(problem, size, plan), known).astype(np.int64)
        yield Stage(k + 1, len(sizes), rows, float(done[k]), float(done[k + 1]))


def _part(problem: ClassificationProblem, size: int, plan: Plan) -> Int64Array:
    """About `size` random rows; a larger part has all rows of a smaller one."""
    rng = np.random.default_rng(plan.given.seed)
    n_rows = len(problem.codes)
    if problem.source.shuffled:
        order = (np.arange(n_rows) + rng.integers(n_rows)) % n_rows  # few chunks have these rows
    else:
        order = rng.permutation(n_rows)
    order = order[np.argsort(problem.codes[order], kind="stable")]
    counts = np.bincount(problem.codes)
    wanted = np.maximum(-(-size * counts // n_rows), np.minimum(_ROWS_OF_CLASS, counts))
    place = np.arange(n_rows) - np.repeat(np.cumsum(counts) - counts, counts)
    return order[place < np.repeat(wanted, counts)]
