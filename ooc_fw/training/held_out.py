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
    classes = problem.classes
    counts = np.bincount(problem.codes, minlength=len(classes))
    if counts.min() < 2:
        raise InputError(
            f"probabilities need two rows of each class, one to train on and one to hold out, and "
            f"the class {format_label(classes[counts.argmin()])} has one only; leave it or the "
            f"probabilities out"
        )
    limit = options.max_time
    return options if limit is None else replace(options, max_time=0.6 * limit)


def calibrated(fitted: Fit, options: TrainOptions, session: Session) -> Model:
    """The model with sigmoids, within the time limit of `options`; as `held_out_sigmoids`."""
    given = replace(fitted.plan.given, max_time=options.max_time)
    return fitted.model.with_sigmoids(held_out_sigmoids(fitted.problem, given, session))


def choose_held_out(
    codes: Int64Array,
    shuffled: bool,
    rng: np.random.Generator,
    enough: int = 100_000,
    enough_of_class: int = 1_000,
) -> Int64Array:
    """Ranges of rows to hold out: the same share of every class, of which each has two rows.

    Another share for some would give the sigmoid another prior. It is a half of few rows (with 0.2
    and 0.3 log losses are the same or worse), and of many what is enough for two parameters.
    """
    least = np.unique(codes, return_counts=True)[1].min()
    share = min(0.5, max(enough / len(codes), enough_of_class / least))
    (part,) = draw_parts(len(codes), [round(share * len(codes))], shuffled, rng, codes)
    return part


def held_out_sigmoids(
    problem: ClassificationProblem, options: TrainOptions, session: Session | None = None
) -> list[tuple[float, float]]:
    """Sigmoid (a, b) of each binary classifier, by `fit_sigmoid`.

    The arguments are those of the final classifiers, whose `landmarks` or `exact` say which they
    are. The classifiers for rows held out are not certified, and have a target tolerance of
    `PART_TOL`. Errors are those of `ooc_fw.training.fit.fit`; an interrupt is passed on.
    """
    session = Session() if session is None else session
    source, codes = problem.source, problem.codes
    deadline = session.deadline(options)
    rng = np.random.default_rng(options.seed)
    held = choose_held_out(codes, source.shuffled is True, rng)
    wanted = replace(
        options,
        tol=max(options.tol, PART_TOL) if options.stopping == "relative" else PART_TOL,
        stopping="relative",
        certify=False,
        max_time=None if options.max_time is None else max(deadline.left(), 1e-3),
    )
    train, rest = hold_out(source, held)
    told = Session(session.callbacks, session.dask)
    fitted = fit(problem.subset(train, train.rows), wanted, told)
    model = fitted.model
    if Status(model.status).was_asked_for:
        raise KeyboardInterrupt(fitted.signal)
    with rest as part, part.limited(deadline.check):
        blocks = decide(model, part, threads=options.threads, dask=session.dask)
        values = np.concatenate([block.reshape(len(block), -1) for block in blocks])
    known = codes[rest.rows]
    sigmoids = []
    for column, (negative, positive) in enumerate(model.sides.tolist()):
        here = (known == negative) | (known == positive) | (negative == REST)
        sigmoids.append(fit_sigmoid(values[here, column], known[here] == positive))
    return sigmoids
