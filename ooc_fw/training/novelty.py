"""Novelty detection: the L2 one-class machine, whose weights are those of a smallest ball.

min over the simplex 1/2 alpha' Q alpha,   Q_ij = k(x_i, x_j) + [i = j] / C_i

(Nanculef, Frandi, Sartori, Allende, A novel Frank-Wolfe algorithm, section 1; the MEB paper). The
score of a row is s(x) = sum_i alpha_i k(x_i, x), and rho = alpha' Q alpha the score of a row at the
margin. Where k(x, x) + 1 / C = Delta^2 for all rows, sum_i alpha_i phi(x_i) is the centre of the
smallest ball around all rows in the feature space of Q, and Delta^2 - rho its squared radius.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ooc_fw.data.rows import Float64Array
from ooc_fw.data.sources import RowSource
from ooc_fw.kernels.functions import Kernel
from ooc_fw.model.record import Model
from ooc_fw.options import TaskOptions, TrainOptions
from ooc_fw.problem import BinaryProblem
from ooc_fw.solver.loop import solve_problem
from ooc_fw.solver.session import Session
from ooc_fw.solver.state import Solution
from ooc_fw.system.errors import InputError


@dataclass(frozen=True)
class NoveltyFit:
    """A model of one class, and the solution that it was made of."""

    model: Model
    solution: Solution


def fit_novelty(
    source: RowSource,
    kernel: Kernel,
    options: TrainOptions,
    session: Session | None = None,
    penalties: Float64Array | None = None,
    contamination: float | None = None,
) -> NoveltyFit:
    """Train a one-class model on all rows of a source, whose labels are not looked at.

    Parameters
    ----------
    source, kernel, options, session
        As for `ooc_fw.training.fit.fit`; the model is exact, or the best on `max_support` rows.
    penalties : ndarray of float64, shape (n_rows,), optional
        Penalty of each row; None is C of the options for all.
    contamination : float, optional
        Largest share of the training rows, above 0 and at most 0.5, that the model takes for novel:
        see `_at_quantile`. None: the offset is rho.

    Raises
    ------
    InputError
        For landmarks, which these models do not have, where rounding leaves no rho above 0, and as
        `solve_problem` does.
    """
    check_novelty(options, contamination)
    session = Session() if session is None else session
    labels = np.ones(source.n_rows, dtype=np.int8)
    problem = BinaryProblem(source, labels, kernel, penalties, one_class=True)
    solution = solve_problem(problem, options, session)
    model = Model.of(solution, source, kernel=kernel, C=options.C, offset=solution.rho)
    if contamination is not None:
        model = _at_quantile(model, source, contamination, options.threads, session)
    return NoveltyFit(model, solution)


def _at_quantile(
    model: Model, source: RowSource, share: float, threads: int, session: Session
) -> Model:
    """The model with an offset below which no more than a share of the rows of `source` are.

    It is the quantile of their scores, found in one more pass. In another one the rows are counted
    as predictions are computed, since rows with the same score, or nearly, may all be below it by
    rounding. The offset is lowered until they are not too many.
    """
    n_rows = source.n_rows
    most = int(share * n_rows) + 1
    while most / n_rows > share:
        most -= 1
    values, lower = model.decision_function(source, threads=threads, dask=session.dask), np.inf
    move = float(np.quantile(values, share))
    while True:
        offset = min((model.offset or 0.0) + move, lower)
        model = replace(model, offset=offset)
        values = model.decision_function(
            source, threads=threads, dask=session.dask, labels_only=True
        )
        if np.count_nonzero(values < 0) <= most:
            return model
        move, lower = float(np.partition(values, most)[most]), np.nextafter(offset, -np.inf)


def check_novelty(options: TrainOptions, contamination: float | None) -> None:
    """Raise InputError for options that have no meaning for one class."""
    if options.landmarks is not None:
        raise InputError(
            "one-class models have no landmarks; leave them out, and limit the model with "
            "max_support (--max-support) where it would be too large"
        )
    TaskOptions(contamination=contamination)  # which checks it
