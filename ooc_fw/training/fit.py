"""From a problem to a model, exact or with landmarks: the door of command line and estimator."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ooc_fw.data.rows import Int64Array
from ooc_fw.landmarks import LandmarkSolution, LandmarkStart, relative_target
from ooc_fw.model.pairs import PairSolution
from ooc_fw.model.record import Model
from ooc_fw.options import TrainOptions
from ooc_fw.problem import ClassificationProblem
from ooc_fw.solver.run import Warm
from ooc_fw.solver.session import Session
from ooc_fw.solver.state import Status
from ooc_fw.training.choice import Choice, choose, landmark_plan
from ooc_fw.training.pairs import model_of, train_pairs

if TYPE_CHECKING:
    from ooc_fw.landmarks.solve import LandmarkPath

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Fit:
    """A trained model and where it comes from.

    An exact model has the solution of the binary classifier of each pair of classes, a model with
    landmarks has no `pairs`, and one solution for all classifiers.
    """

    model: Model
    pairs: list[PairSolution]
    landmarks: LandmarkSolution | None
    choice: Choice

    @property
    def signal(self) -> int | None:
        """Number of the signal that ended training, if one did."""
        if self.landmarks is not None:
            return self.landmarks.signal
        signals = (pair.solution.signal for pair in self.pairs)
        return next((number for number in signals if number is not None), None)

    def explain(self, options: TrainOptions) -> str:
        """Say why the gap is above the tolerance, for a warning."""
        tol = options.tol
        if self.landmarks is not None:
            tol = relative_target(tol)
        return Status(self.model.status).explain(options.stopping, float(f"{tol:.3g}"))

    def with_sigmoids(self, sigmoids: Sequence[tuple[float, float]]) -> Fit:
        """The same, with a and b of the sigmoid of each binary classifier."""
        return replace(self, model=self.model.with_sigmoids(sigmoids))

    def renumbered(self, rows: Int64Array, n_rows: int | None = None) -> Fit:
        """The same, where row k of the source is row `rows[k]` of another: `Model.renumbered`."""
        pairs = [
            replace(pair, solution=replace(pair.solution, rows=rows[pair.solution.rows]))
            for pair in self.pairs
        ]
        landmarks = self.landmarks
        if landmarks is not None:
            landmarks = replace(landmarks, rows=rows[landmarks.rows])
        model = self.model.renumbered(rows, n_rows)
        return replace(self, model=model, pairs=pairs, landmarks=landmarks)


def fit(
    problem: ClassificationProblem,
    options: TrainOptions,
    session: Session | None = None,
    warm: Sequence[Warm | None] | LandmarkStart | None = None,
) -> Fit:
    """Train a model of two classes or more, exact or with landmarks as `choose` says.

    Parameters
    ----------
    problem : ClassificationProblem
        Rows, classes, kernel and penalties.
    options : TrainOptions
        The limits of time and memory are those of all classifiers together; `max_iter` and
        `max_support` are those of each.
    session : Session, optional
        Circumstances. The certifying passes of several exact classifiers are not made by Dask, and
        exact models of more than two classes have no checkpoints: InputError for them.
    warm : sequence of tuple or None, or LandmarkStart, optional
        What each exact classifier begins with, as for `ooc_fw.solver.loop.solve_problem`, or what
        a model with landmarks does, by rows of `problem.source`. What is for the other kind of
        model, or for more landmarks than there will be, is left out.

    Raises
    ------
    OutOfTimeError
        When time is over before there is a model.
    """
    session = Session() if session is None else session
    choice = choose(problem, options, session)
    logger.info("%s", choice.reason)
    if choice.landmarks is None:
        weights = warm if isinstance(warm, Sequence) else None
        pairs = train_pairs(problem, options, session, weights)
        return Fit(model_of(pairs, problem, options.C), pairs, None, choice)
    with open_landmark_path(problem, choice.landmarks, options, session, warm) as path:
        solution = path.solve(options.C)
    return Fit(landmark_model(solution, problem, options.C), [], solution, choice)


def open_landmark_path(
    problem: ClassificationProblem,
    n_landmarks: int,
    options: TrainOptions,
    session: Session,
    warm: Sequence[Warm | None] | LandmarkStart | None = None,
) -> LandmarkPath:
    """Trainer of models with landmarks, on as many threads as memory allows."""
    from ooc_fw.landmarks.solve import LandmarkPath  # imports SciPy, which takes 0.1 s

    plan = landmark_plan(problem, options, session, n_landmarks)
    options = replace(options, threads=min(options.threads, plan.max_threads))
    start = warm if isinstance(warm, LandmarkStart) else None
    if start is not None and len(start.rows) > n_landmarks:
        start = None
    return LandmarkPath(problem, n_landmarks, options, session, start)


def landmark_model(solution: LandmarkSolution, problem: ClassificationProblem, C: float) -> Model:
    """Model of classifiers that share their landmarks."""
    return Model.of(
        solution,
        problem.source,
        classes=problem.classes,
        penalties=problem.penalties,
        kernel=problem.kernel,
        C=C,
    )
