"""Sigmoids for the binary classifiers of a model, from rows that were held out of training.

The decision values of a classifier for its own training rows are too good, and a sigmoid fitted to
them is too sure. So some rows are held out: classifiers like the final ones are trained on all
others, and the sigmoids are fitted to their values for the rows held out.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ooc_fw.data.encoded import hold_out
from ooc_fw.data.rows import Int64Array
from ooc_fw.data.views import draw_parts
from ooc_fw.model.machines import REST, fit_sigmoid
from ooc_fw.model.prediction import decide
from ooc_fw.model.record import Model
from ooc_fw.options import TrainOptions
from ooc_fw.problem import ClassificationProblem
from ooc_fw.solver.plan import Session
from ooc_fw.solver.state import Status
from ooc_fw.system.errors import InputError, format_label
from ooc_fw.training.fit import Fit, fit

PART_TOL = 1e-2
"""Relative gap of the classifiers for rows held out. With 1e-2 and with 1e-3 the Brier scores of
ijcnn1 and a9a differ by 1e-5."""


def before_calibration(problem: ClassificationProblem, options: TrainOptions) -> TrainOptions:
    """Options of the final classifiers, which leave 40 % of a time limit for calibration.

    InputError is raised unless each class has two rows or more.
    """
    counts = np.bincount(problem.codes, minlength=len(problem.classes))
    if counts.min() < 2:
        raise InputError(
            f"probabilities need two rows of each class, one to train on and one to hold out, and "
            f"the class {format_label(problem.classes[counts.argmin()])} has one only; leave it or "
            f"the probabilities out"
        )
    limit = options.max_time
    return options if limit is None else replace(options, max_time=0.6 * limit)


def choose_held_out(codes: Int64Array, shuffled: bool, rng: np.random.Generator) -> Int64Array:
    """Rows to hold out: the same share of every class, of which each has two rows.

    Another share for some would give the sigmoid another prior. It is a half of few rows (with 0.2
    and 0.3 log losses are the same or worse), and of many what is enough for two parameters:
    100,000 rows, and 1,000 of each class.
    """
    least = np.unique(codes, return_counts=True)[1].min()
    share = min(0.5, max(100_000 / len(codes), 1_000 / least))
    (part,) = draw_parts(len(codes), [round(share * len(codes))], shuffled, rng, codes)
    return part


def calibrated(fitted: Fit, options: TrainOptions, session: Session) -> Model:
    """The model with a sigmoid for each binary classifier, within the time limit of `options`.

    The classifiers for rows held out have the options of the final ones, but are not certified and
    have a target tolerance of `PART_TOL`. Errors are those of `ooc_fw.training.fit.fit`; an
    interrupt is passed on.
    """
    problem = fitted.problem
    source = problem.source
    deadline = session.deadline(options)
    rng = np.random.default_rng(options.seed)
    train, rest = hold_out(source, choose_held_out(problem.codes, source.shuffled is True, rng))
    wanted = replace(
        fitted.plan.given,
        tol=max(options.tol, PART_TOL) if options.stopping == "relative" else PART_TOL,
        stopping="relative",
        certify=False,
        max_time=None if options.max_time is None else max(deadline.left(), 1e-3),
    )
    found = fit(problem.subset(train, train.rows), wanted, Session(session.callbacks, session.dask))
    if Status(found.model.status).was_asked_for:
        raise KeyboardInterrupt(found.signal)
    with rest as part, part.limited(deadline.check):
        blocks = decide(found.model, part, threads=wanted.threads, dask=session.dask)
        values = np.concatenate([block.reshape(len(block), -1) for block in blocks])
    known = problem.codes[rest.rows]
    sigmoids = []
    for column, (negative, positive) in enumerate(found.model.sides.tolist()):
        here = (known == negative) | (known == positive) | (negative == REST)
        sigmoids.append(fit_sigmoid(values[here, column], known[here] == positive))
    return fitted.model.with_sigmoids(sigmoids)
