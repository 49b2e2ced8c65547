"""Regression: the L2-SVR with an epsilon-insensitive loss, in the span of landmarks or of all rows.

Targets are centred and divided by their spread, epsilon with them, which changes neither C nor the
model: min 1/2 (|w|^2 + b^2) + 1/2 sum C_i xi_i^2, xi_i = max(0, |y_i - w.phi(x_i) - b| - epsilon).
With epsilon 0 it is kernel ridge regression. The passes, the steps and the certificate are those of
landmark models (`ooc_fw.landmarks.span`): any beta >= 0, with the signs s_i of the residuals, has

    D(beta) = sum beta_i (s_i y_i - epsilon) - 1/2 u'G^-1 u - 1/2 sum beta_i^2 / C_i.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ooc_fw.data.labels import read_targets
from ooc_fw.data.sources import RowSource
from ooc_fw.model.record import Model
from ooc_fw.options import START_ROWS, TrainOptions
from ooc_fw.problem import EXACT_ROWS as EXACT_ROWS
from ooc_fw.problem import RegressionProblem
from ooc_fw.solver.plan import Plan, Session
from ooc_fw.system.errors import InputError
from ooc_fw.training.classification import plan_span, solve_span, threads_before_plan
from ooc_fw.training.fit import Fit, Task, WarmStart, train_landmarks

_LARGEST_TARGET = 1e150  # whose square, summed over any rows, is a float64


class Regression(Task):
    """Weights of landmarks, which are all rows by default if these are at most `EXACT_ROWS`.

    Else they are as many as the limits afford. The method, oracle, start and stopping test have no
    meaning. The gap is one to the exact optimum ("all") where all rows are landmarks.
    """

    problem = RegressionProblem
    fields = ("epsilon",)
    without = "has no classes", ("class_weight", "probability")

    def check(self, options: TrainOptions) -> None:
        for name, given in (
            (f"method {options.method}", options.method != "auto"),
            (f"lmo {options.lmo}", options.lmo != "auto"),
            (f"start {options.start}", options.start != "random"),
            (f"stopping {options.stopping}", options.stopping != "relative"),
        ):
            if given:
                raise InputError(
                    f"regression learns weights of landmarks by Newton steps, for which {name} has "
                    f"no meaning; leave it out (landmarks= or --landmarks N is the size of the "
                    f"model)"
                )

    def read(
        self, source: RowSource, options: TrainOptions, *, weighted: bool = False
    ) -> tuple[dict[str, Any], int]:
        n_rows = source.n_rows
        fewest = n_rows if _is_exact(n_rows, options) else options.landmarks or START_ROWS
        asked = replace(options, exact=False, landmarks=max(fewest, START_ROWS))
        threads = threads_before_plan(source, asked, weighted=True)
        return {"targets": read_targets(source)}, threads

    def plan(self, problem: RegressionProblem, options: TrainOptions, session: Session) -> Plan:
        n_rows = problem.source.n_rows
        if _is_exact(n_rows, options):
            kind = f"exact: there are {n_rows} rows; --landmarks N takes landmarks"
            return replace(plan_span(problem, options, session, n_rows, ""), kind=kind)
        return plan_span(problem, options, session, options.landmarks, f" of {n_rows} rows")

    def train(
        self, problem: RegressionProblem, plan: Plan, session: Session, warm: WarmStart = None
    ) -> Fit:
        scaled, _, _ = _scaled(problem)
        n_rows = problem.source.n_rows
        exact = plan.landmarks == n_rows
        if exact:
            solution = train_landmarks(scaled, plan, session, warm, to_optimum=True)
            exact = solution.certified_gap is not None
        else:
            plan, solution = solve_span(scaled, plan, session, warm)
        n_kept = len(solution.rows)
        if n_kept < (plan.landmarks or 0) < n_rows:
            asked = f"{plan.landmarks} asked for, the others depend on them"
            plan = replace(plan, kind=f"{n_kept} landmarks ({asked}) of {n_rows} rows")
        model = self.model_of(problem, plan.options.C, solution)
        return Fit(problem, plan, model, [solution], gap_scope="all" if exact else "span")

    def model_of(self, problem: RegressionProblem, C: float, solution: Any) -> Model:
        _, mean, spread = _scaled(problem)
        learned: dict[str, Any] = {"penalties": problem.penalties, "kernel": problem.kernel, "C": C}
        scale: dict[str, Any] = {"offset": mean, "spread": spread, "epsilon": problem.epsilon}
        return Model.of(solution, problem.source, **learned, **scale)

    def facts(self, fit: Fit) -> dict[str, Any]:
        return {"task": fit.problem.task, "epsilon": fit.model.epsilon}


def _is_exact(n_rows: int, options: TrainOptions) -> bool:
    return options.landmarks is None and (options.exact or n_rows <= EXACT_ROWS)


def _scaled(problem: RegressionProblem) -> tuple[RegressionProblem, float, float]:
    """The problem in units of the spread of its targets, their mean, and the spread.

    InputError is raised for targets from which nothing can be learned in float64.
    """
    targets, name, epsilon = problem.targets, problem.source.name, problem.epsilon
    low, high = float(targets.min()), float(targets.max())
    largest, difference = max(-low, high), high - low
    if largest > _LARGEST_TARGET or 0 < difference < 1 / _LARGEST_TARGET:
        raise InputError(
            f"the targets of {name} reach {largest:.3g} and differ by {difference:.3g} at most, "
            f"which is too large or too little for float64 arithmetic; multiply them, and epsilon, "
            f"by a number that brings both between {1 / _LARGEST_TARGET:g} and {_LARGEST_TARGET:g}"
        )
    mean, spread = float(targets.mean()), float(targets.std())
    if difference == 0:  # the mean of equal numbers may be off by rounding
        return replace(problem, targets=np.zeros_like(targets)), low, 1.0
    if np.abs(targets - mean).max() <= epsilon:
        raise InputError(
            f"epsilon {epsilon:g} is so large that the mean of the targets, {mean:g}, loses "
            f"nothing; give a smaller one"
        )
    scaled = replace(problem, targets=(targets - mean) / spread, epsilon=epsilon / spread)
    return scaled, mean, spread
