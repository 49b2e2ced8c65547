"""Frank-Wolfe with samples, step by step, with the gap over all rows beside that of the sample.

The solver itself never knows the gap over all rows of a sampled run; here a full oracle looks on.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

import numpy as np

from bench.papers.data import Data
from ooc_fw.data.opening import open_source
from ooc_fw.kernels.functions import make_kernel
from ooc_fw.options import TrainOptions
from ooc_fw.problem import BinaryProblem
from ooc_fw.solver.oracles import FullLMO, Request
from ooc_fw.solver.plan import Session, plan_exact, prepare
from ooc_fw.solver.run import RunState, start
from ooc_fw.solver.shell import Deadline
from ooc_fw.solver.state import SolverState, Status

_GROWTH = 1.01  # factor of the iterations between two points that are kept
_COLUMN_BYTES = 4 << 30


def watch_gaps(data: Data, gamma: float, options: TrainOptions) -> dict[str, Any]:
    """Points (iteration, gap of the sample, gap of all rows) until two samples pass the test.

    Gaps are absolute, and so is the tolerance. A limit of iterations or time ends the run earlier.
    """
    signs = np.where(data.y == data.y.max(), 1, -1).astype(np.int8)
    points: list[tuple[int, float, float]] = []
    with open_source(data.X, data.y) as source:
        problem = BinaryProblem(source, signs, make_kernel("rbf", gamma=gamma))
        with prepare(problem, plan_exact(problem, options), Session()) as workspace:
            state = RunState.begin(workspace, Deadline(None, time.perf_counter()), SolverState())
            start(state, None)
            active, most = state.active, options.max_iter or math.inf
            began = time.perf_counter()
            ends = began + (options.max_time or math.inf)
            parts = {**workspace.plan.memory.parts, "column_cache": _COLUMN_BYTES}
            memory = replace(workspace.plan.memory, parts=parts)
            plan = replace(workspace.plan, memory=memory)
            full = FullLMO(replace(workspace, plan=plan))
            iteration = passed = 0
            while passed < 2 and iteration < most and time.perf_counter() < ends:
                seen = state.oracle.propose(active, state.rng, Request())
                sampled = active.rho - seen.least
                passed = passed + 1 if sampled <= options.tol else 0
                if passed or not points or iteration >= points[-1][0] * _GROWTH:
                    exact = full.propose(active, state.rng, Request()).least
                    points.append((iteration, sampled, active.rho - exact))
                if passed:
                    continue
                if seen.rows is not None:
                    active.add(seen.row_ids, seen.rows, seen.labels)
                place = active.place_of(int(seen.row_ids[0]))
                assert place is not None
                record = state.rule.step(active, place)
                full.update(record, active)
                state.rule.prune(active)
                iteration += 1
    status = Status.SAMPLED if passed == 2 else Status.TIME_LIMIT
    seconds = time.perf_counter() - began
    return {
        "points": points,
        "seconds": seconds,
        "iterations": iteration,
        "status": str(status),
    }
