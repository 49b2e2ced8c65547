"""Landmark models of one C."""

from dataclasses import replace

from ooc_fw.landmarks.solve import LandmarkPath
from ooc_fw.options import START_ROWS
from ooc_fw.solver.plan import Plan, sizes_of
from ooc_fw.system.memory import MemoryPlan


def plan_of(problem, n_landmarks, options):
    """Plan of a model with any number of landmarks, whatever memory there is."""
    work = sizes_of(problem.source, options)
    n_landmarks = min(n_landmarks, work.n_rows)
    options = replace(options, landmarks=max(n_landmarks, START_ROWS))
    return Plan(options, options, MemoryPlan(work, {}, None, 8, landmarks=n_landmarks))


def solve_landmarks(problem, n_landmarks, options, session, warm=None):
    """Solution of a model in the span of landmarks."""
    with LandmarkPath(problem, plan_of(problem, n_landmarks, options), session, warm) as path:
        return path.solve(options.C)
