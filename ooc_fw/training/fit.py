"""From a problem to a model: the door of command line and estimators, for every task.

What differs between tasks is a `Task`. To add one, write its problem and its `Task` into a module,
and its name into `ooc_fw.options.TASKS`.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import import_module
from typing import Any, ClassVar, TypeAlias

from ooc_fw.data.rows import Int64Array
from ooc_fw.data.sources import RowSource
from ooc_fw.landmarks import LandmarkSolution, LandmarkStart, relative_target
from ooc_fw.model.machines import Classifier
from ooc_fw.model.pairs import PairSolution, class_pairs, worst_gap
from ooc_fw.model.record import Model
from ooc_fw.options import TASKS, TrainOptions
from ooc_fw.problem import Problem
from ooc_fw.solver.plan import Plan, Session
from ooc_fw.solver.state import Solution, Status, Warm
from ooc_fw.training.checkpoint import Resumed, saving

logger = logging.getLogger(__name__)

WarmStart: TypeAlias = Sequence[Warm | Solution | None] | LandmarkStart | None
"""What each exact classifier begins with, or is already, or a landmark model."""


@dataclass(frozen=True)
class Fit:
    """A trained model, what it was trained on, and what was decided before."""

    problem: Any
    plan: Plan
    model: Model
    # Of the binary classifier of each pair of classes; of one class or of landmarks there is one.
    solutions: Sequence[Solution | LandmarkSolution]
    gap_scope: str  # "all", or "span": whether the gap is to the optimum, or of these landmarks

    @property
    def pairs(self) -> list[PairSolution]:
        """Classes and solution of each classifier of an exact model."""
        exact = [solution for solution in self.solutions if isinstance(solution, Solution)]
        classes = class_pairs(len(self.model.classes))
        return [
            PairSolution(*pair, solution) for pair, solution in zip(classes, exact, strict=False)
        ]

    @property
    def landmarks(self) -> LandmarkSolution | None:
        """The solution of a landmark model."""
        first = self.solutions[0]
        return first if isinstance(first, LandmarkSolution) else None

    @property
    def signal(self) -> int | None:
        """Number of the signal that ended training, if one did."""
        return next((each.signal for each in self.solutions if each.signal is not None), None)

    def why_inexact(self) -> str | None:
        """Why the gap is above the tolerance; None where it is not."""
        status, options = Status(self.model.status), self.plan.options
        if status.reached:
            return None
        tol = options.tol if self.landmarks is None else relative_target(options.tol)
        return status.explain(options.stopping, float(f"{tol:.3g}"))

    def renumbered(self, rows: Int64Array, n_rows: int | None = None) -> Fit:
        """The same, where row k of the source is row `rows[k]` of another: `Model.renumbered`."""
        solutions = [replace(one, rows=rows[one.rows]) for one in self.solutions]
        return replace(self, model=self.model.renumbered(rows, n_rows), solutions=solutions)


class Task(ABC):
    """What a task does in its own way."""

    # Class of the problem; its arguments are what `read` returns, and `fields` by name.
    problem: ClassVar[type]
    # The `TaskOptions` that the task has.
    fields: ClassVar[tuple[str, ...]] = ()
    # A phrase for messages, and the arguments of commands that the task does without.
    without: ClassVar[tuple[str, tuple[str, ...]]] = "", ()

    def check(self, options: TrainOptions) -> None:  # noqa: B027
        """Raise InputError for options that have no meaning here."""

    @abstractmethod
    def read(
        self, source: RowSource, options: TrainOptions, *, weighted: bool = False
    ) -> tuple[dict[str, Any], int]:
        """Labels or targets as fields of the problem, and threads for statistics.

        OverLimitError is raised where no model will fit into memory.
        """

    @abstractmethod
    def plan(self, problem: Any, options: TrainOptions, session: Session) -> Plan:
        """Plan of the model."""

    @abstractmethod
    def train(self, problem: Any, plan: Plan, session: Session, warm: WarmStart = None) -> Fit:
        """Train as planned."""

    @abstractmethod
    def model_of(self, problem: Any, C: float, solution: Any) -> Model:
        """Model of what training found, or has found so far."""

    def facts(self, fit: Fit) -> dict[str, Any]:
        """What `describe` says of this task alone."""
        return {"task": fit.problem.task}


@cache
def task_of(name: str) -> Task:
    """The task of this name."""
    task: Task = getattr(import_module(f"ooc_fw.training.{name}"), TASKS[name])()
    return task


def make_plan(problem: Problem, options: TrainOptions, session: Session | None = None) -> Plan:
    """Decide how a model of `problem` is trained.

    OverLimitError where the memory limit cannot be met, and InputError for options that have no
    meaning for the task.
    """
    task = task_of(problem.task)
    task.check(options)
    return task.plan(problem, options, Session() if session is None else session)


def fit(
    problem: Problem,
    options: TrainOptions,
    session: Session | None = None,
    warm: WarmStart | Resumed = None,
    plan: Plan | None = None,
) -> Fit:
    """Train a model of a problem, whose type says the task.

    Limits of time and memory are those of all classifiers together, `max_iter` is
    that of each. The certifying passes of several exact classifiers are not made by Dask. What
    `warm` has for the other kind of model, or for more landmarks than there will be, is left out.
    The `plan` is that of `make_plan`.

    InputError as there, for a checkpoint of another run, and for data that nothing can be learned
    from; OutOfTimeError when time is over before there is a model.
    """
    session = Session() if session is None else session
    if plan is None:
        plan = make_plan(problem, options, session)
        logger.info("%s", plan.kind)
    task = task_of(problem.task)
    if isinstance(warm, Resumed):
        warm = warm.start(problem, plan.options)
    if session.checkpoint is not None:
        model_of = partial(task.model_of, problem, plan.options.C)
        checkpoint = saving(session.checkpoint, problem, plan, model_of)
        session = replace(session, checkpoint=checkpoint)
    return task.train(problem, plan, session, warm)


def train_landmarks(
    problem: Problem,
    plan: Plan,
    session: Session,
    warm: WarmStart = None,
    *,
    to_optimum: bool = False,
) -> LandmarkSolution:
    """A model with landmarks, as `ooc_fw.landmarks.solve.solve_landmarks` makes it."""
    from ooc_fw.landmarks.solve import solve_landmarks  # imports SciPy, which takes 0.1 s

    start = warm if isinstance(warm, LandmarkStart) else None
    return solve_landmarks(problem, plan, session, start, to_optimum=to_optimum)


def describe(fit: Fit) -> dict[str, Any]:
    """How a run went, for its log, ``--json`` and summary.

    Gaps are None where they are not known or make no sense. Of several binary classifiers, counts
    are sums and gaps those of the worst; ``classifiers`` has each.
    """
    model, options, source = fit.model, fit.plan.options, fit.problem.source
    solutions: Sequence[Any] = fit.solutions
    first, exact, alone = solutions[0], fit.landmarks is None, len(solutions) == 1
    classifiers = [_describe_classifier(each, exact) for each in model.classifiers]
    several, n_support = len(classifiers) > 1, len(model.support_vectors)
    steps = None
    if exact:
        steps = {str(kind): sum(each.steps[kind] for each in solutions) for kind in first.steps}
    if exact and several:
        for described, solution in zip(classifiers, solutions, strict=True):
            described |= {"status": str(solution.status), "iterations": solution.iterations}
            described["seconds"] = solution.seconds
    evaluations = sum(each.kernel_evaluations for each in solutions)
    read = first if alone else source
    result: dict[str, Any] = {
        **task_of(fit.problem.task).facts(fit),
        "status": model.status,
        "kind": model.kind,
        "gap_scope": fit.gap_scope,
        "kernel": model.kernel.name,
        "gamma": model.kernel.gamma,
        "C": options.C,
        "tol": options.tol,
        "stopping": options.stopping,
        "n_rows": source.n_rows,
        "n_features": source.n_features,
        "n_support": n_support,
        **{n: None if several else classifiers[0][n] for n in ("objective", "primal", "dual")},
        "sampled_gap": model.sampled_gap,
        "certified_gap": model.certified_gap,
        "method": first.method if exact else None,
        "lmo": first.lmo if exact else None,
        "rho": first.rho if exact and alone else None,
        "pair_gap": worst_gap(each.pair_gap for each in solutions) if exact else None,
        "iterations": sum(each.iterations for each in solutions),
        "steps": steps,
        "kernel_evaluations": evaluations,
        "rows_read": read.rows_read,
        "bytes_read": read.bytes_read,
        "sweep_seconds": first.sweep_seconds if alone else None,
        "passes": evaluations / (source.n_rows * n_support),
        "choice": fit.plan.kind or None,
    }
    return result | ({"classifiers": classifiers} if several else {})


def _describe_classifier(classifier: Classifier, exact: bool) -> dict[str, Any]:
    """Classes, size, objectives and gaps of a binary classifier.

    Of an exact one with gap d, the weights divided by rho (1 - d) have margin 1 and a primal
    objective of at most 1 / (2 rho (1 - d)^2). From d = 1 on rounding may hide rho and the dual.
    """
    primal, dual = classifier.primal, classifier.dual
    if exact:
        gap, least = classifier.certified_gap, 0.5 / classifier.rho
        primal = None if gap is None or gap >= 1 else least / (1 - gap) ** 2
        dual = least if gap is None or gap < 1 else None
    names = "negative", "positive", "certified_gap", "sampled_gap", "objective"
    return {
        **{name: getattr(classifier, name) for name in names},
        "n_support": len(classifier.sv),
        "primal": primal,
        "dual": dual,
    }
