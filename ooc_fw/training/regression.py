"""Regression: the L2-SVR with an epsilon-insensitive loss, in the span of landmarks or of all rows.

Targets are centred and divided by their spread, epsilon with them, which changes neither C nor the
model: min 1/2 (|w|^2 + b^2) + 1/2 sum C_i xi_i^2, xi_i = max(0, |y_i - w.phi(x_i) - b| - epsilon).
With epsilon 0 it is kernel ridge regression. The passes, the steps and the certificate are those of
landmark models (`ooc_fw.landmarks.span`): any beta >= 0, with the signs s_i of the residuals, has

    D(beta) = sum beta_i (s_i y_i - epsilon) - 1/2 u'G^-1 u - 1/2 sum beta_i^2 / C_i.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ooc_fw.data.rows import Float64Array
from ooc_fw.data.sources import RowSource
from ooc_fw.kernels.functions import Kernel
from ooc_fw.landmarks import LandmarkSolution, relative_gap, relative_target
from ooc_fw.model.record import Model
from ooc_fw.options import START_ROWS, TaskOptions, TrainOptions
from ooc_fw.problem import RegressionProblem
from ooc_fw.solver.session import Session
from ooc_fw.solver.setup import workload
from ooc_fw.solver.state import Status
from ooc_fw.system.errors import InputError
from ooc_fw.system.memory import LandmarkPlan
from ooc_fw.training.choice import choose_number, landmark_plan, plan_span

if TYPE_CHECKING:
    from ooc_fw.landmarks.solve import LandmarkPath

logger = logging.getLogger(__name__)

EXACT_ROWS = 4_096
"""Rows up to which all of them are landmarks unless told otherwise: the model is the exact one."""

_LARGEST_TARGET = 1e150  # whose square, summed over any rows, is a float64


@dataclass(frozen=True)
class RegressionFit:
    """A model of regression, and the solution that it was made of, in units of the spread.

    `gap_scope` is "all" where the certified gap is one to the exact optimum, and "span" where gaps
    are to the best weights of these landmarks.
    """

    model: Model
    solution: LandmarkSolution
    choice: str
    gap_scope: str


def fit_regression(
    source: RowSource,
    targets: Float64Array,
    kernel: Kernel,
    options: TrainOptions,
    session: Session | None = None,
    *,
    epsilon: float = TaskOptions.epsilon,
    penalties: Float64Array | None = None,
) -> RegressionFit:
    """Train a model of regression on all rows of a source.

    Parameters
    ----------
    source, kernel, session
        As for `ooc_fw.training.fit.fit`.
    targets : ndarray of float64, shape (n_rows,)
        What is to be predicted.
    options : TrainOptions
        `landmarks` is their number: by default all rows of at most `EXACT_ROWS`, else as many as
        the limits afford. The method, oracle, start and stopping test have no meaning.
    epsilon : float
        Half the width of the tube, in units of the targets; 0 for kernel ridge regression.
    penalties : ndarray of float64, shape (n_rows,), optional
        Penalty of each row; None is C of the options for all.

    Raises
    ------
    InputError
        For targets that are not finite or too large, or from which nothing can be learned, and as
        the training of landmark models does.
    """
    from ooc_fw.landmarks.solve import LandmarkPath  # imports SciPy, which takes 0.1 s

    check_regression(options)
    session = Session() if session is None else session
    RegressionProblem(source, targets, kernel, epsilon, penalties)  # checks what is given
    largest = float(np.abs(targets).max())
    if largest > _LARGEST_TARGET:
        raise InputError(
            f"the targets of {source.name} reach {largest:.3g}, which is too large for float64 "
            f"arithmetic; divide them, and epsilon, by a number that brings them below "
            f"{_LARGEST_TARGET:g}"
        )
    mean, spread = float(targets.mean()), float(targets.std())
    difference = float(np.ptp(targets))
    if 0 < difference < 1 / _LARGEST_TARGET:
        raise InputError(
            f"the targets of {source.name} differ by {difference:.3g} at most, which is too little "
            f"for float64 arithmetic; multiply them, and epsilon, by a number that brings that "
            f"above {1 / _LARGEST_TARGET:g}"
        )
    if difference == 0:
        raise InputError(
            f"all targets of {source.name} are {mean:g}, so that there is nothing to learn"
        )
    if np.abs(targets - mean).max() <= epsilon:
        raise InputError(
            f"epsilon {epsilon:g} is so large that the mean of the targets, {mean:g}, loses "
            f"nothing; give a smaller one"
        )
    scaled = (targets - mean) / spread
    problem = RegressionProblem(source, scaled, kernel, epsilon / spread, penalties)
    n_landmarks, reason = _choose(problem, options, session)
    logger.info("%s", reason)
    plan = landmark_plan(problem, options, session, n_landmarks)
    own = replace(options, threads=min(options.threads, plan.max_threads))
    with LandmarkPath(problem, n_landmarks, own, session) as path:
        solution = path.solve(options.C)
        exact = n_landmarks == source.n_rows and solution.certified_gap is not None
        if exact:
            solution = _to_the_optimum(path, solution, relative_target(options.tol))
    n_kept = len(solution.rows)
    if n_kept < n_landmarks < source.n_rows:
        asked = f"{n_landmarks} asked for, the others depend on them"
        reason = f"{n_kept} landmarks ({asked}) of {source.n_rows} rows"
    model = Model.of(
        solution,
        source,
        penalties=penalties,
        kernel=kernel,
        C=options.C,
        offset=mean,
        spread=spread,
        epsilon=epsilon,
    )
    return RegressionFit(model, solution, reason, "all" if exact else "span")


def is_exact(n_rows: int, options: TrainOptions) -> bool:
    """Whether all rows are landmarks."""
    return options.landmarks is None and (options.exact or n_rows <= EXACT_ROWS)


def plan_regression(source: RowSource, options: TrainOptions) -> LandmarkPlan:
    """Memory of a model with the fewest landmarks; OverLimitError where there is no room for it."""
    fewest = source.n_rows if is_exact(source.n_rows, options) else options.landmarks or START_ROWS
    return plan_span(replace(workload(source, options), targets=True), options, fewest)


def check_regression(options: TrainOptions) -> None:
    """Raise InputError for options that have no meaning for regression."""
    for name, given in (
        (f"method {options.method}", options.method != "auto"),
        (f"lmo {options.lmo}", options.lmo != "auto"),
        (f"stopping {options.stopping}", options.stopping != "relative"),
        (f"max_support {options.max_support}", options.max_support is not None),
    ):
        if given:
            raise InputError(
                f"regression learns weights of landmarks by Newton steps, for which {name} has no "
                f"meaning; leave it out (landmarks= or --landmarks N is the size of the model)"
            )


def _choose(problem: RegressionProblem, options: TrainOptions, session: Session) -> tuple[int, str]:
    n_rows = problem.source.n_rows
    if is_exact(n_rows, options):
        return n_rows, f"exact: there are {n_rows} rows; --landmarks N takes landmarks"
    n_landmarks = choose_number(problem, options, session)
    return n_landmarks, f"{n_landmarks} landmarks of {n_rows} rows"


def _to_the_optimum(
    path: LandmarkPath, solution: LandmarkSolution, target: float
) -> LandmarkSolution:
    """The solution of all rows as landmarks, with a gap to the optimum of the exact kernel."""
    dual = path.exact_kernel_dual()
    assert solution.primal is not None
    gap = relative_gap(solution.primal, dual)
    status = solution.status
    if status is Status.CONVERGED and (gap > target).any():
        status = Status.ROUNDING
    return replace(solution, dual=dual, certified_gap=gap, status=status)
