"""From a problem to a model, for every task: `fit`.

Tasks differ in what `ooc_fw.training.prepare` makes of the rows, in the training (`fit`), and in
the meaning of a solution (`ooc_fw.training.tasks.model_of`). To add a task, add a branch to each of
these, and add its name to `ooc_fw.options.TASKS`.

Probabilities are sigmoids of decision values. On its own training rows a classifier is too good,
and a sigmoid fitted to them would be too sure. So some rows are held out: classifiers like the
final ones are trained on the other rows, and sigmoids are fitted to their values for the held-out.
A novelty model with `contamination` has a threshold that comes from held-out rows in the same way.
Both have 40 % of a time limit. If something ends this work early, the model stays without it.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ooc_fw.data.encoded import hold_out
from ooc_fw.data.rows import Float64Array, Int64Array
from ooc_fw.data.views import draw_parts
from ooc_fw.landmarks import LandmarkSolution, LandmarkStart
from ooc_fw.model.machines import (
    REST,
    PairSolution,
    fit_sigmoid,
    worst_gap,
)
from ooc_fw.model.prediction import decide
from ooc_fw.model.record import Model
from ooc_fw.options import TrainOptions
from ooc_fw.problem import (
    NoveltyProblem,
    Problem,
    RegressionProblem,
    relative_target,
)
from ooc_fw.report.progress import EventLog
from ooc_fw.solver.plan import Plan, Session
from ooc_fw.solver.state import Status
from ooc_fw.system.errors import (
    DeferredInterrupt,
    InputError,
    OutOfTimeError,
    format_label,
    format_value,
    signal_of,
)
from ooc_fw.training.checkpoint import Resumed, resumable, saving
from ooc_fw.training.choice import FIRST_SHARE, plan_model, train_span
from ooc_fw.training.pairs import train_exact
from ooc_fw.training.tasks import fold_sizes, model_of, scaled, threshold_of, warn_of_novel

logger = logging.getLogger(__name__)

PART_TOL = 1e-2
"""Relative gap of models that judge the rows that they were not trained on. With 1e-3, the Brier
scores on ijcnn1 and a9a differ by 1e-5; `tune` makes the same choice on ijcnn1, where errors change
by at most a fifth of their standard error."""

_FEW_ROWS = 5_000  # rows that eight trainings take a few seconds for


@dataclass(frozen=True)
class Fit:
    """A trained model, with its problem, its plan and the solutions."""

    problem: Any
    plan: Plan
    model: Model
    pairs: list[PairSolution]  # classes and solution of each classifier of an exact model
    landmarks: LandmarkSolution | None  # the solution of a landmark model
    gap_scope: str  # "all", "weighted" (other rows have weight 0) or "span": see `gap_scope_`
    noted: int | None = None  # number of a signal that came during the run or after it
    missing: str = ""  # what the model lacks of what held-out rows tell, and why
    failed: bool = False  # whether an error is the reason

    @property
    def solutions(self) -> Sequence[Any]:
        """What training returned: a landmark solution, or one solution for each pair of classes."""
        return [self.landmarks] if self.landmarks else [pair.solution for pair in self.pairs]

    @property
    def signal(self) -> int | None:
        """Number of the first signal; SIGINT if a callback raised, None otherwise."""
        interrupted = signal.SIGINT if self.model.status == Status.INTERRUPTED else None
        return self.noted or interrupted

    @property
    def complete(self) -> bool:
        """Whether nothing but a limit cut the run off."""
        cut_off = bool(self.missing) and (self.failed or self.signal is not None)
        return self.model.status != Status.INTERRUPTED and not cut_off

    def why_inexact(self) -> str | None:
        """Why the gap is above the tolerance; None if the tolerance is reached."""
        status = Status(self.model.status)
        if status.reached:
            return None
        options = self.plan.options
        tol = options.tol if self.landmarks is None else relative_target(options.tol)
        return status.explain(options.stopping, float(f"{tol:.6g}"))


def fit(
    problem: Problem,
    options: TrainOptions,
    session: Session | None = None,
    resumed: Resumed | None = None,
    plan: Plan | None = None,
) -> Fit:
    """Train the model of a problem; the type of the problem is the task.

    Limits of time and memory hold for all classifiers together, `max_iter` for each of them. Dask
    does not certify several exact classifiers. A `plan` is that of `plan_model` for the options.

    Numbers of rows are those in the data, if the problem has a part of them.

    InputError as in `plan_model`, for a checkpoint of another run, and for data from which nothing
    can be learned; OutOfTimeError if the time is over before there is a model. A signal after the
    training is noted and loses nothing.
    """
    session = Session() if session is None else session
    if plan is None:
        plan = plan_model(problem, options, session)
        logger.info("%s", plan.kind)
    interrupt = session.interrupt
    if interrupt is None:
        with DeferredInterrupt() as own:
            return fit(problem, options, replace(session, interrupt=own), resumed, plan)
    if resumed is not None:
        plan = resumed.planned(plan)
    problem = plan.applied_to(problem)
    if problem.holds_out and plan.options.max_time is not None:
        plan = plan.with_options(max_time=FIRST_SHARE * plan.options.max_time)
    warm = None if resumed is None else resumed.start(problem, plan.options)
    if session.checkpoint is not None:
        to_model = partial(model_of, problem, plan.options.C)
        checkpoint = saving(session.checkpoint, problem, plan, to_model)
        session = replace(session, checkpoint=checkpoint)
    scope = "all"
    pairs: list[PairSolution] = []
    landmarks = None
    if plan.landmarks is None:
        exact = None if isinstance(warm, LandmarkStart) else warm
        pairs = train_exact(problem, plan, session, exact)
    else:
        spanned = scaled(problem)[0] if isinstance(problem, RegressionProblem) else problem
        all_rows = problem.task == "regression" and plan.landmarks == problem.source.n_rows
        plan, landmarks = train_span(spanned, plan, session, warm)
        whole = plan.linear or (all_rows and landmarks.certified_gap is not None)
        scope = "all" if whole else "span"
    model = model_of(problem, plan.options.C, landmarks or pairs)
    one = pairs[0].solution if len(pairs) == 1 else pairs
    model = resumable(model, problem, plan, landmarks or one)
    if scope == "all" and model.n_weighted is not None:
        scope = "weighted"
    if problem.part is not None:
        rows = problem.part.rows
        pairs = [
            replace(pair, solution=replace(pair.solution, rows=rows[pair.solution.rows]))
            for pair in pairs
        ]
        landmarks = landmarks and replace(landmarks, rows=rows[landmarks.rows])
    fitted = Fit(problem, plan, model, pairs, landmarks, scope, interrupt.noted)
    if problem.holds_out:
        return _with_held_out(fitted, options, session)
    if isinstance(problem, NoveltyProblem) and plan.options.certify:
        # `tune` compares many models, which are not certified.
        warn_of_novel(model, problem, plan.options)
    return fitted


def describe(fit: Fit) -> dict[str, Any]:
    """The result of a run, for its log, ``--json`` and the summary.

    Unknown numbers are None. For several binary classifiers, counts are sums and gaps are those of
    the worst classifier; ``classifiers`` lists each of them.
    """
    model = fit.model
    options = fit.plan.options
    source = fit.problem.source
    first = fit.solutions[0]
    exact = fit.landmarks is None
    alone = len(fit.solutions) == 1
    names = "certified_gap", "sampled_gap", "primal", "dual"
    classifiers = []
    for sides, each in zip(model.named_sides, model.classifiers, strict=True):
        known = {name: getattr(each, name) for name in names}
        known["objective"] = each.rho / 2 if exact else each.dual
        classifiers.append(sides | known | {"n_support": len(each.sv)})
    one = classifiers[0] if len(classifiers) == 1 else {}
    n_support = model.size
    evaluations = sum(each.kernel_evaluations for each in fit.solutions)
    of_model = "task", "status", "kind", "C", "certified_gap", "objective_gap", "sampled_gap"
    result: dict[str, Any] = {
        **{name: getattr(model, name) for name in of_model},
        "n_weighted": model.n_weighted,
        "gap_scope": fit.gap_scope,
        "kernel": model.kernel.name,
        "gamma": model.kernel.gamma if model.kernel.uses_gamma else None,
        "tol": options.tol,
        "stopping": options.stopping,
        "n_rows": source.n_rows,
        "n_features": source.n_features,
        "n_support": n_support,
        **{name: one.get(name) for name in ("objective", "primal", "dual")},
        "iterations": sum(each.iterations for each in fit.solutions),
        "kernel_evaluations": evaluations,
        "rows_read": first.rows_read if alone else source.rows_read,
        "bytes_read": first.bytes_read if alone else source.bytes_read,
        "work": evaluations / (source.n_rows * n_support),
        "choice": fit.plan.kind or None,
    }
    if fit.problem.probability:
        result["calibrated"] = model.calibrated
    if model.task == "novelty":
        result["offset"] = model.offset
    elif model.task == "regression":
        result["epsilon"] = model.epsilon
    if exact:
        result["method"] = first.method
        result["lmo"] = first.lmo
        result["rho"] = first.rho if alone else None
        result["pair_gap"] = worst_gap(each.pair_gap for each in fit.solutions)
    if len(classifiers) > 1:
        result["classifiers"] = classifiers
    return result


# -- held-out rows -------------------------------------------------------------------------------


def _with_held_out(fitted: Fit, options: TrainOptions, session: Session) -> Fit:
    """The fit with the sigmoids or the threshold from held-out rows; else it says why not.

    Signals raise in this work, which has the time that is left of the limit in `options`.
    """
    share = fitted.problem.contamination
    lacking = "the model gives no probabilities"
    if share is not None:
        lacking = f"the threshold is the margin, not that of contamination {share:g}"
    # The log and the checkpoint are those of the model itself.
    callbacks = [one for one in session.callbacks if not isinstance(one, EventLog)]
    alone = replace(session, callbacks=callbacks, checkpoint=None)
    assert session.interrupt is not None
    failed = False
    try:
        with session.interrupt.raising():
            if fitted.signal is not None:
                raise KeyboardInterrupt(fitted.signal)
            found = (_calibrated if share is None else _settled)(fitted, options, alone)
        return replace(fitted, model=found)
    except OutOfTimeError:
        reason = "no time left"
    except KeyboardInterrupt as error:
        reason = "interrupted"
        fitted = replace(fitted, noted=signal_of(error))
    except (InputError, OSError, MemoryError) as error:
        reason = str(error)
        failed = True
    return replace(fitted, missing=f"{reason}: {lacking}", failed=failed)


def choose_held_out(codes: Int64Array, shuffled: bool, rng: np.random.Generator) -> Int64Array:
    """Rows to hold out: the same share of every class; each class needs two rows.

    With different shares, the sigmoid would learn wrong frequencies of the classes. The share is
    one half for few rows, since 0.2 and 0.3 give the same or larger log losses. Of many rows it
    takes about 100,000, and 1,000 of each class: this is enough for the two parameters.
    """
    least = np.unique(codes, return_counts=True)[1].min()
    share = min(0.5, max(100_000 / len(codes), 1_000 / least))
    (part,) = draw_parts(len(codes), [round(share * len(codes))], shuffled, rng, codes)
    return part


def _calibrated(fitted: Fit, options: TrainOptions, session: Session) -> Model:
    """The model with a sigmoid for each binary classifier.

    The classifiers that predict the held-out rows have the options of the final ones, see
    `fit_part`.
    """
    problem = fitted.problem
    rng = np.random.default_rng(options.seed)
    held = choose_held_out(problem.codes, problem.source.shuffled is True, rng)
    found, values = _without(fitted, held, options, session)
    known = problem.codes[held]
    classifiers = []
    flat = []
    for k, (negative, positive) in enumerate(found.sides.tolist()):
        here = (known == negative) | (known == positive) | (negative == REST)
        a, b = fit_sigmoid(values[here, k], known[here] == positive)
        if a == 0:
            flat.append(" and ".join(map(format_label, found.named_sides[k].values())))
        classifiers.append(replace(fitted.model.classifiers[k], sigmoid_a=a, sigmoid_b=b))
    if flat:
        logger.warning(
            "%d held-out rows are too few for probabilities of %d of %d classifiers (%s): there "
            "they are the same for all rows; give more rows, or use the decision values",
            *(len(known), len(flat), len(classifiers), format_value(flat, 5)),
        )
    return replace(fitted.model, classifiers=classifiers)


def fit_part(
    problem: Any,
    options: TrainOptions,
    n_rows: int,
    session: Session,
    least_tol: float = PART_TOL,
) -> Fit:
    """Train on a part of `n_rows` rows; the model is to judge the others.

    It is trained to `least_tol` or the larger relative gap of the options, and it is not certified.
    In novelty it has no threshold, and a larger C, since all rows share a sum of weights.
    KeyboardInterrupt is raised if training is interrupted.
    """
    tol = max(options.tol, least_tol) if options.stopping == "relative" else PART_TOL
    options = replace(options, tol=tol, stopping="relative", certify=False)
    if problem.task == "novelty":
        more = n_rows / problem.source.n_rows
        penalties = None if problem.penalties is None else more * problem.penalties
        problem = replace(problem, penalties=penalties, contamination=None)
        options = replace(options, C=more * options.C)
    elif problem.probability:
        problem = replace(problem, probability=False)
    fitted = fit(problem, options, session)
    if fitted.signal is not None or Status(fitted.model.status).was_asked_for:
        raise KeyboardInterrupt(fitted.signal)
    return fitted


def _without(
    fitted: Fit, held: Int64Array, options: TrainOptions, session: Session, n_left: int = 1
) -> tuple[Model, Float64Array]:
    """A model like the `fitted` one of all other rows, and its decision values for the rows `held`.

    The values have the shape (n_held, n_classifiers). `n_left` such models, this one included,
    share the time that is left.
    """
    problem = fitted.problem
    train, rest = hold_out(problem.source, held)
    deadline = session.deadline(options)
    wanted = replace(fitted.plan.given, max_time=deadline.share(n_left))
    # Most scores of novelty may be within the gap of the margin, so that a rough gap would move the
    # threshold past them.
    least_tol = 0.0 if problem.task == "novelty" else PART_TOL
    with rest as rows, rows.limited(deadline.check):
        own = Session(session.callbacks, session.dask)
        part = problem.subset(train, train.rows)
        found = fit_part(part, wanted, problem.source.n_rows, own, least_tol)
        blocks = decide(found.model, rows, threads=wanted.threads, dask=session.dask)
        values = np.concatenate([block.reshape(len(block), -1) for block in blocks])
    return found.model, values


def _settled(fitted: Fit, options: TrainOptions, session: Session) -> Model:
    """The novelty model with an offset such that the wanted share of new ordinary rows is novel.

    Scores of held-out rows, in units of the margin, come from models of the other rows; the margin
    of the model itself turns the threshold among them into its offset.
    """
    source = fitted.problem.source
    if source.n_rows == 1:
        raise InputError("there is one row only")
    # Models of seven eighths of the rows have nearly the scores of the model of all rows.
    few = source.n_rows <= _FEW_ROWS
    sizes = fold_sizes(source.n_rows, min(8, source.n_rows) if few else 4)
    rng = np.random.default_rng(options.seed)
    parts = draw_parts(source.n_rows, sizes, source.shuffled is True, rng)
    scores = []
    for k, held in enumerate(parts):
        with suppress(OutOfTimeError):  # later parts have more time
            found, values = _without(fitted, held, options, session, len(parts) - k)
            scores.append(1.0 + values[:, 0] / (found.offset or 1.0))
    if not scores:
        raise OutOfTimeError("there is no time for models of the other rows")
    threshold = threshold_of(np.concatenate(scores), fitted.problem.contamination)
    return replace(fitted.model, offset=(fitted.model.offset or 1.0) * threshold)
