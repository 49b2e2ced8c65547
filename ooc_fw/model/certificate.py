"""The gap of a landmark model, computed again from the model and the rows it was trained on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ooc_fw.data.labels import read_targets
from ooc_fw.data.parallel import borrow_workers
from ooc_fw.data.rows import Float64Array, Int64Array, take_rows
from ooc_fw.data.sources import RowSource
from ooc_fw.kernels.engine import Engine
from ooc_fw.landmarks import relative_gap
from ooc_fw.landmarks.certificate import ExactKernelView, certify_point
from ooc_fw.landmarks.newton import evaluate
from ooc_fw.landmarks.passes import Passes, SpanProblem
from ooc_fw.landmarks.span import Landmarks, Span
from ooc_fw.model.pairs import LandmarkClassifier
from ooc_fw.model.record import Model, check_training_rows, rows_of_weight
from ooc_fw.problem import ClassificationProblem, NoveltyProblem, RegressionProblem
from ooc_fw.system.errors import InputError

# Relative difference that the primal may have when it is computed again with the same penalties: if
# training certified it from float64 kernel values, and if it is known from float32 ones only.
_ACCURACY, _APPROXIMATE = 1e-6, 1e-4


@dataclass(frozen=True)
class SpanCertificate:
    """Objectives within the span of the landmarks, each of shape (n_classifiers,).

    Both P have the norm b'Gb of `ooc_fw.landmarks.span`, which is |w|^2 plus jitter |b|^2.
    """

    primal: Float64Array  # upper bound on P of the weights
    dual: Float64Array  # lower bound on the least P that any weights of these landmarks have
    exact_kernel: ExactKernelView  # finds a bound on the least P without jitter

    @property
    def certified_gap(self) -> Float64Array:
        """(P - D) / P of each classifier."""
        return relative_gap(self.primal, self.dual)

    def to_the_optimum(self, engine: Engine, dask: Any = None) -> SpanCertificate:
        """The same with a bound on the least P of the exact kernel, from float64 kernel values."""
        return replace(self, dual=self.exact_kernel.dual(engine, dask, exact=True))


def certify_landmarks(
    model: Model,
    problem: ClassificationProblem | RegressionProblem | NoveltyProblem,
    engine: Engine,
    *,
    dask: Any = None,
    on_block: Callable[[int], None] | None = None,
) -> SpanCertificate:
    """Bound the primal P and the dual D of a landmark model by one pass over its training rows.

    Parameters
    ----------
    model : Model
        Its landmarks, weights, and the jitter that they were trained with.
    problem : ClassificationProblem, RegressionProblem or NoveltyProblem
        The training rows and their classes, or their targets as `regression_problem` gives them;
        penalties of None follow from the model.
    engine : Engine
        Computes kernel values: `Model.engine`, for sparse rows where those of the problem are.
    dask : optional
        Where blocks are read: see `ooc_fw.data.parallel.borrow_workers`. None is here, on the
        threads of `engine`. No bit depends on it.
    on_block : callable, optional
        Called after each block with the number of rows done.

    Raises
    ------
    InputError
        The rows are not those the model was trained on, changed, or cannot be read; the model has
        no landmarks or no jitter, which the bound on rounding rests on; or penalties are unknown.

    Notes
    -----
    Kernel values are float64, and a bound on all rounding is part of the result, see
    `ooc_fw.landmarks.certificate.certify_point`.
    """
    classifiers = _landmark_classifiers(model)
    if isinstance(problem, ClassificationProblem) and problem.n_classes != len(model.classes):
        raise InputError(
            f"the model has {len(model.classes)} classes and the data have {problem.n_classes}"
        )
    check_training_rows(model, problem.source, problem.row_classes)
    derived = None  # penalties that follow from those of the landmarks
    if problem.penalties is None:
        derived = derived_penalties(model, problem.row_classes)
        problem = replace(problem, penalties=derived)
    span_problem, n_rows = SpanProblem.of(problem, model.C), problem.source.n_rows
    if not 0 < classifiers[0].jitter:
        raise InputError("a landmark model without jitter cannot be certified; train it again")
    vectors = take_rows(model.support_vectors, classifiers[0].landmarks)
    landmarks = Landmarks(engine, vectors, span_problem.bias)
    span = Span(landmarks, classifiers[0].jitter)

    def tell(share: float) -> None:
        if on_block is not None:
            on_block(round(share * n_rows))

    problem.source.check_unchanged()
    with borrow_workers(dask, engine.threads, here=1) as workers:
        passes = Passes(span_problem, landmarks, workers, tell)
        point = evaluate(span, passes, np.stack([c.beta for c in classifiers]), exact=True)
    problem.source.check_unchanged()
    primal, dual = certify_point(span, point, span_problem)
    known = np.array([np.nan if c.primal is None else c.primal for c in classifiers])
    accuracy = _ACCURACY if model.certified_gap is not None else _APPROXIMATE
    rounding = accuracy * primal + 2 * (primal - point.primal)
    if (np.abs(known - primal) > rounding).any():
        if derived is not None:
            raise _weights_of_rows()
        if (classifiers[0].rows < 0).all():  # and no landmark tells which rows these are
            raise InputError(
                f"the weights have another objective over the rows of {problem.source.name} than "
                f"in training; give the file the model was trained on, and its penalties"
            )
    view = ExactKernelView(span_problem, point.gradient.decisions)
    return SpanCertificate(primal, dual, view)


def regression_problem(model: Model, source: RowSource) -> RegressionProblem:
    """The problem that a model of regression was trained on: targets in units of their spread."""
    assert model.spread is not None
    assert model.offset is not None
    assert model.epsilon is not None
    targets = (read_targets(source) - model.offset) / model.spread
    return RegressionProblem(source, targets, model.kernel, model.epsilon / model.spread)


def derived_penalties(model: Model, codes: Int64Array) -> Float64Array | None:
    """Penalties of all training rows, whose classes are `codes`; None where all have the model's C.

    The file has those of landmarks, which must be one number for each class, and what has none.
    """
    classifier, *_ = _landmark_classifiers(model)
    if classifier.C is None:
        return None
    per_class, is_row = np.zeros(len(model.classes)), classifier.rows >= 0
    for place in np.unique(codes):  # all rows of a regression have the code 0
        of_class = np.unique(classifier.C[is_row & (codes[classifier.rows] == place)])
        if len(of_class) != 1:
            raise _weights_of_rows()
        per_class[place] = of_class[0]
    penalties, rows = per_class[codes], rows_of_weight(model, len(codes))
    if rows is None:
        return np.asarray(penalties)
    of_weight = np.zeros_like(penalties)
    of_weight[rows] = penalties[rows]
    return of_weight


def _weights_of_rows() -> InputError:
    return InputError(
        "the model was trained with weights of rows, of which its file has those of landmarks "
        "only; give the penalties of all rows to ooc_fw.certify_landmarks"
    )


def _landmark_classifiers(model: Model) -> list[LandmarkClassifier]:
    classifiers = [c for c in model.classifiers if isinstance(c, LandmarkClassifier)]
    if not classifiers:
        raise InputError("the model has no landmarks; ooc_fw.certify certifies exact models")
    return classifiers
