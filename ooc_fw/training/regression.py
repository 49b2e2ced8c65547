"""Regression: the L2-SVR with an epsilon-insensitive loss, in the span of landmarks or of all rows.

Targets are centred and divided by their spread, epsilon with them, which changes neither C nor the
model: min 1/2 (|w|^2 + b^2) + 1/2 sum C_i xi_i^2, xi_i = max(0, |y_i - w.phi(x_i) - b| - epsilon).
With epsilon 0 it is kernel ridge regression. The passes, the steps and the certificate are those of
landmark models (`ooc_fw.landmarks.span`): any beta >= 0, with the signs s_i of the residuals, has

    D(beta) = sum beta_i (s_i y_i - epsilon) - 1/2 u'G^-1 u - 1/2 sum beta_i^2 / C_i.

All rows are landmarks by default if these are at most `EXACT_ROWS`; the gap is then one to the
exact optimum.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ooc_fw.landmarks import LandmarkSolution, LandmarkStart
from ooc_fw.options import TrainOptions
from ooc_fw.problem import EXACT_ROWS, RegressionProblem
from ooc_fw.solver.plan import Plan, Session
from ooc_fw.system.errors import InputError
from ooc_fw.training.choice import plan_span, train_span

_LARGEST_TARGET = 1e150  # whose square, summed over any rows, is a float64


def check_options(options: TrainOptions) -> None:
    """Raise InputError for options that have no meaning for a regression."""
    given = {
        f"method {options.method}": options.method != "auto",
        f"lmo {options.lmo}": options.lmo != "auto",
        f"start {options.start}": options.start != "random",
        f"stopping {options.stopping}": options.stopping != "relative",
    }
    for name in (name for name, is_given in given.items() if is_given):
        raise InputError(
            f"regression learns weights of landmarks by Newton steps, for which {name} has no "
            f"meaning; leave it out (landmarks= or --landmarks N is the size of the model)"
        )


def is_exact(n_rows: int, options: TrainOptions) -> bool:
    """Whether all rows are landmarks."""
    return options.landmarks is None and (options.exact or n_rows <= EXACT_ROWS)


def plan_regression(problem: RegressionProblem, options: TrainOptions, session: Session) -> Plan:
    """Plan of a model of targets, with all rows as landmarks or some."""
    n_rows = problem.source.n_rows
    if is_exact(n_rows, options):
        kind = f"exact: there are {n_rows} rows; --landmarks N takes landmarks"
        return replace(plan_span(problem, options, session, n_rows, ""), kind=kind)
    return plan_span(problem, options, session, options.landmarks, f" of {n_rows} rows")


def train_regression(
    problem: RegressionProblem, plan: Plan, session: Session, warm: object = None
) -> tuple[Plan, LandmarkSolution, str]:
    """The plan, the weights for scaled targets, and whether the gap is of "all" or the "span"."""
    scaled = Scaled.of(problem).problem
    if plan.landmarks != problem.source.n_rows:
        plan, solution = train_span(scaled, plan, session, warm)
        kept = len(solution.rows)
        if kept < (plan.landmarks or 0):
            asked = f"{plan.landmarks} asked for, the others depend on them"
            kind = f"{kept} landmarks ({asked}) of {problem.source.n_rows} rows"
            plan = replace(plan, kind=kind)
        return plan, solution, "span"
    from ooc_fw.landmarks.solve import solve_landmarks  # imports SciPy, which takes 0.1 s

    start = warm if isinstance(warm, LandmarkStart) else None
    solution = solve_landmarks(scaled, plan, session, start, to_optimum=True)
    return plan, solution, "span" if solution.certified_gap is None else "all"


@dataclass(frozen=True)
class Scaled:
    """A problem in units of the spread of its targets, from their mean on."""

    problem: RegressionProblem
    mean: float
    spread: float

    @classmethod
    def of(cls, problem: RegressionProblem) -> Scaled:
        """Scale a problem; InputError for targets that float64 arithmetic cannot learn from."""
        targets = problem.targets
        low = float(targets.min())
        high = float(targets.max())
        largest = max(-low, high)
        if largest > _LARGEST_TARGET or 0 < high - low < 1 / _LARGEST_TARGET:
            raise InputError(
                f"the targets of {problem.source.name} reach {largest:.3g} and differ by "
                f"{high - low:.3g} at most, which is too large or too little for float64 "
                f"arithmetic; multiply them, and epsilon, by a number that brings both between "
                f"{1 / _LARGEST_TARGET:g} and {_LARGEST_TARGET:g}"
            )
        if low == high:  # the mean of equal numbers may be off by rounding
            return cls(replace(problem, targets=np.zeros_like(targets)), low, 1.0)
        mean = float(targets.mean())
        spread = float(targets.std())
        if np.abs(targets - mean).max() <= problem.epsilon:
            raise InputError(
                f"epsilon {problem.epsilon:g} is so large that the mean of the targets, {mean:g}, "
                f"loses nothing; give a smaller one"
            )
        epsilon = problem.epsilon / spread
        return cls(
            replace(problem, targets=(targets - mean) / spread, epsilon=epsilon), mean, spread
        )
