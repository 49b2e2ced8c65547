"""Active sets, runs that `solve` does not offer, a clock for tests, and passes by few vertices."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np

from ooc_fw.data.rows import Float64Array, Int64Array, take_rows
from ooc_fw.data.sources import RowSource
from ooc_fw.kernels import low_rank
from ooc_fw.kernels.arithmetic import Operand
from ooc_fw.kernels.engine import Engine
from ooc_fw.options import TrainOptions
from ooc_fw.problem import BinaryProblem
from ooc_fw.solver.active_set import ActiveSet
from ooc_fw.solver.kernel_rows import KernelRows
from ooc_fw.solver.loop import solve_problem
from ooc_fw.solver.plan import Session, plan_exact
from ooc_fw.solver.state import Solution
from ooc_fw.solver.surroundings import Deadline
from tests.support.reference import SmallProblem


def activate(
    problem: SmallProblem, row_ids: Int64Array, weights: Float64Array, sparse: bool = False
) -> ActiveSet:
    """Active set of the given rows and weights, with room for all rows."""
    with Engine(problem.kernel) as engine:
        active = ActiveSet(engine, problem.C, KernelRows(len(problem.y), 1 << 30))
        active.add(row_ids, take_rows(problem.rows(sparse), row_ids), problem.y[row_ids])
        active.set_weights(weights)
    return active  # an engine that is closed still computes


def kernel_row(rows: KernelRows, place: int, engine: Engine, z: Operand) -> Float64Array:
    """Kernel values between one vertex and all, of the rows of vertices `z`."""
    rows.fetch(np.array([place]), engine, z)
    return np.asarray(rows.values[rows.slots[place], : len(rows)] * np.float64(rows.unit))


def train_in_session(
    problem: SmallProblem,
    *,
    source: RowSource | None = None,
    penalties: Float64Array | None = None,
    callbacks: Sequence[Any] = (),
    **options: Any,
) -> Solution:
    """Solve a problem, with callbacks."""
    source = problem.source() if source is None else source
    binary = BinaryProblem(source, problem.y, problem.kernel, penalties)
    session = Session(callbacks)
    chosen = plan_exact(binary, TrainOptions(**{"C": problem.C} | options), session)
    return solve_problem(binary, chosen, session)


@dataclass(frozen=True)
class ClockedSession(Session):
    """A session whose time limits are over after `stop_clock`."""

    late: list[float] = field(default_factory=lambda: [0.0])

    def stop_clock(self) -> None:
        self.late[0] = float("inf")

    def deadline(self, options: TrainOptions) -> Deadline:
        clock = self.late
        return Deadline(options.max_time, self.started, lambda: time.perf_counter() + clock[0])


@contextmanager
def few_vertices(step: int | None) -> Iterator[None]:
    """Five rounds of `step` pivots each make every pass, however few rows there are; None: none."""
    effort = None if step is None else low_rank.PivotLimits(step, 5 * step, 2 * step, 1000)
    always = {"_WORTHWHILE": float("inf"), "_OVERHEAD": -1.0}
    with (
        patch.object(low_rank.PivotLimits, "of", lambda *_: effort),
        patch.multiple(low_rank, **always),
    ):
        yield
