"""From a problem to a model: the front door of the command line, the estimator, and tuning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ooc_fw.data.rows import Int64Array
from ooc_fw.model.pairs import PairSolution
from ooc_fw.model.record import Model
from ooc_fw.options import TrainOptions
from ooc_fw.problem import Problem
from ooc_fw.solver.session import Session
from ooc_fw.solver.start import Warm
from ooc_fw.training.one_versus_one import solve_classes, support_vectors_of


@dataclass(frozen=True)
class Fit:
    """A trained model and how its training went.

    Parameters
    ----------
    model : Model
        The model; it gives probabilities after `with_sigmoids` only.
    pairs : list of PairSolution
        Solution of the binary classifier of each pair of classes.
    """

    model: Model
    pairs: list[PairSolution]

    def with_sigmoids(self, sigmoids: Sequence[tuple[float, float]]) -> Fit:
        """The same, with a and b of the sigmoid of each binary classifier."""
        return replace(self, model=self.model.with_sigmoids(sigmoids))

    def renumbered(self, rows: Int64Array) -> Fit:
        """The same, where row k of the source is row `rows[k]` of a larger one; they increase."""
        classifiers = [replace(own, rows=rows[own.rows]) for own in self.model.classifiers]
        pairs = [
            replace(pair, solution=replace(pair.solution, rows=rows[pair.solution.rows]))
            for pair in self.pairs
        ]
        return Fit(replace(self.model, classifiers=classifiers), pairs)


def fit(
    problem: Problem,
    options: TrainOptions,
    session: Session | None = None,
    warm: Sequence[Warm | None] | None = None,
) -> Fit:
    """Train a model of two classes or more.

    The parameters are those of `ooc_fw.training.one_versus_one.solve_classes`, and so are the
    exceptions.
    """
    pairs = solve_classes(problem, options, session, warm)
    return Fit(model_of(pairs, problem, options.C), pairs)


def model_of(pairs: Sequence[PairSolution], problem: Problem, C: float) -> Model:
    """Model of the binary classifiers of all pairs of classes."""
    return Model.from_pairs(
        pairs,
        support_vectors_of(problem.source, pairs),
        kernel=problem.kernel,
        C=C,
        classes=problem.classes,
        scaling=problem.source.scaling,
    )
