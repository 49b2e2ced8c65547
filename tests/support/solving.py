"""Runs with checkpoints and penalties of rows, which `solve` does not offer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ooc_fw.data.rows import Float64Array
from ooc_fw.data.sources import RowSource
from ooc_fw.options import TrainOptions
from ooc_fw.problem import BinaryProblem
from ooc_fw.solver.loop import solve_problem
from ooc_fw.solver.plan import Session, plan_exact
from ooc_fw.solver.shell import CheckpointPlan
from ooc_fw.solver.state import Solution
from tests.support.reference import SmallProblem


def train_in_session(
    problem: SmallProblem,
    *,
    source: RowSource | None = None,
    penalties: Float64Array | None = None,
    callbacks: Sequence[Any] = (),
    checkpoint: Path | None = None,
    every_s: float = 60.0,
    resume: Path | None = None,
    **options: Any,
) -> Solution:
    """Solve a problem; `checkpoint` is a file to write every so many seconds."""
    source = problem.source() if source is None else source
    binary = BinaryProblem(source, problem.y, problem.kernel, penalties)
    plan = None if checkpoint is None else CheckpointPlan(checkpoint, every_s)
    session = Session(callbacks, checkpoint=plan, resume=resume)
    chosen = plan_exact(binary, TrainOptions(**{"C": problem.C} | options), session)
    return solve_problem(binary, chosen, session)
