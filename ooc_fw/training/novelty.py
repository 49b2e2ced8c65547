"""Novelty detection: the L2 one-class problem, whose weights are those of a smallest ball.

min over the simplex 1/2 alpha' Q alpha,   Q_ij = k(x_i, x_j) + [i = j] / C_i

(Nanculef, Frandi, Sartori, Allende, A novel Frank-Wolfe algorithm, section 1; the MEB paper). The
score of a row is s(x) = sum_i alpha_i k(x_i, x), and rho = alpha' Q alpha the score of a row at the
margin. Where k(x, x) + 1 / C = Delta^2 for all rows, sum_i alpha_i phi(x_i) is the centre of the
smallest ball around all rows in the feature space of Q, and Delta^2 - rho its squared radius.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from ooc_fw.data.rows import Float64Array, Int8Array
from ooc_fw.data.sources import RowSource
from ooc_fw.kernels.functions import Kernel
from ooc_fw.model.record import Model
from ooc_fw.options import TaskOptions, TrainOptions
from ooc_fw.problem import BinaryProblem, Problem
from ooc_fw.solver.loop import solve_problem
from ooc_fw.solver.plan import Plan, Session, plan_exact
from ooc_fw.system.errors import InputError
from ooc_fw.training.classification import threads_before_plan
from ooc_fw.training.fit import Fit, Task


@dataclass(frozen=True)
class NoveltyProblem(Problem):
    """What a model of one class is trained on: all rows, whose labels are not looked at."""

    task: ClassVar[str] = "novelty"
    source: RowSource
    kernel: Kernel
    penalties: Float64Array | None = None
    # Largest share of the training rows, above 0 and at most 0.5, that the model takes for novel:
    # see `_at_quantile`. None: the offset is rho.
    contamination: float | None = None

    def __post_init__(self) -> None:
        TaskOptions(contamination=self.contamination)  # which checks it

    @property
    def answers(self) -> Int8Array:
        return np.ones(self.source.n_rows, dtype=np.int8)

    def binary(self) -> BinaryProblem:
        """The problem of one class as the solver takes it."""
        return BinaryProblem(self.source, self.answers, self.kernel, self.penalties, one_class=True)


class Novelty(Task):
    """Models of one class are exact, or the best on `max_support` rows."""

    problem = NoveltyProblem
    fields = ("contamination",)
    without = "looks at no labels", ("class_weight", "probability", "labels")

    def check(self, options: TrainOptions) -> None:
        if options.landmarks is not None:
            raise InputError(
                "one-class models have no landmarks; leave them out, and limit the model with "
                "max_support (--max-support) where it would be too large"
            )

    def read(
        self, source: RowSource, options: TrainOptions, *, weighted: bool = False
    ) -> tuple[dict[str, Any], int]:
        return {}, threads_before_plan(source, replace(options, exact=True), weighted=weighted)

    def plan(self, problem: NoveltyProblem, options: TrainOptions, session: Session) -> Plan:
        return plan_exact(problem.binary(), options, session)

    def train(
        self, problem: NoveltyProblem, plan: Plan, session: Session, warm: object = None
    ) -> Fit:
        solution = solve_problem(problem.binary(), plan, session)
        source, C = problem.source, plan.options.C
        model = Model.of(solution, source, kernel=problem.kernel, C=C, offset=solution.rho)
        if problem.contamination is not None:
            model = _at_quantile(model, problem, plan.options.threads, session)
        return Fit(problem, plan, model, [solution], gap_scope="all")

    def facts(self, fit: Fit) -> dict[str, Any]:
        return {"task": fit.problem.task, "offset": fit.model.offset}


def _at_quantile(model: Model, problem: NoveltyProblem, threads: int, session: Session) -> Model:
    """The model with an offset below which no more than the share `contamination` of the rows are.

    It is the quantile of their scores, found in one more pass. In another one the rows are counted
    as predictions are computed, since rows with the same score, or nearly, may all be below it by
    rounding. The offset is lowered until they are not too many.
    """
    share, n_rows = problem.contamination, problem.source.n_rows
    assert share is not None
    most = int(share * n_rows) + 1
    while most / n_rows > share:
        most -= 1
    how: dict[str, Any] = {"threads": threads, "dask": session.dask}
    values, lower = model.decision_function(problem.source, **how), np.inf
    move = float(np.quantile(values, share))
    while True:
        offset = min((model.offset or 0.0) + move, lower)
        model = replace(model, offset=offset)
        values = model.decision_function(problem.source, **how, labels_only=True)
        if np.count_nonzero(values < 0) <= most:
            return model
        move, lower = float(np.partition(values, most)[most]), np.nextafter(offset, -np.inf)
