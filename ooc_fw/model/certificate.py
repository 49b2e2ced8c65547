"""The gap of a model, computed again from the model and the rows it was trained on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from ooc_fw.certificate.sweep import Search, SupportWeights, certify
from ooc_fw.data.labels import codes_of, encode_labels, like_classes, read_targets
from ooc_fw.data.parallel import borrow_workers
from ooc_fw.data.rows import Float64Array, Int64Array, take_rows
from ooc_fw.data.sources import RowSource
from ooc_fw.kernels.engine import Engine
from ooc_fw.landmarks import relative_gap
from ooc_fw.landmarks.certificate import ExactKernelView, certify_point
from ooc_fw.landmarks.newton import evaluate
from ooc_fw.landmarks.passes import Passes, SpanProblem
from ooc_fw.landmarks.span import Landmarks, Span
from ooc_fw.model.file import as_class_values
from ooc_fw.model.pairs import LandmarkClassifier, class_pairs
from ooc_fw.model.partition import partition_classes
from ooc_fw.model.record import Model, check_training_rows, rows_of_weight, training_data
from ooc_fw.options import TrainOptions
from ooc_fw.problem import (
    EXACT_ROWS,
    BinaryProblem,
    ClassificationProblem,
    NoveltyProblem,
    RegressionProblem,
)
from ooc_fw.system.errors import InputError, format_labels

Show: TypeAlias = Callable[..., AbstractContextManager[Callable[[int], None]]]
"""Makes a bar of a name, a total and a unit, which is told what is done."""

_OF_EXACT = ("certified_gap", "pair_gap", "objective", "rho", "n_violators")
_OF_LANDMARKS = ("certified_gap", "primal", "dual")
_SAME = 1e-6  # relative difference of bounds that differ by rounding
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


@dataclass(frozen=True)
class ModelCertificate:
    """What a pass over its training rows says of a model."""

    gap_scope: str  # what the gap is of: "all" weights of rows, or those in the "span" of landmarks
    classifiers: list[dict[str, Any]]  # what is known of each binary classifier, by name

    @property
    def worst(self) -> dict[str, Any]:
        """What is known of the classifier of the largest gap."""
        return max(self.classifiers, key=lambda found: found["certified_gap"])

    @property
    def certified_gap(self) -> float:
        """Certified relative gap of the worst classifier."""
        return float(self.worst["certified_gap"])


@contextmanager
def _no_bar(*_: object, **__: object) -> Iterator[Callable[[int], None]]:
    yield lambda _: None


@dataclass(frozen=True)
class Inquiry:
    """What is asked of a model, and how; see `Model.certify`."""

    penalties: Float64Array | None = None  # of all rows
    tol: float = TrainOptions.tol  # rows that violate their margin by more are counted
    threads: int = 1
    dask: Any = None
    exact_kernel: bool = False
    show: Show = field(default=_no_bar, repr=False)


def certify_model(model: Model, source: RowSource, asked: Inquiry) -> ModelCertificate:
    """Certificate of a model over the rows it was trained on; see `Model.certify`."""
    exact, penalties = model.kind == "exact", asked.penalties
    if exact and asked.exact_kernel:
        raise InputError(
            "the gap of an exact model is that of the exact kernel already; do not ask for it"
        )
    if exact and penalties is not None:
        raise InputError("an exact model holds its penalties; leave penalties out")
    if penalties is not None:
        rows = rows_of_weight(model, source.n_rows, source.name)
        penalties = np.asarray(penalties, dtype=np.float64)
        asked = replace(asked, penalties=penalties if rows is None else penalties[rows])
    model, source = training_data(model, source)
    codes = np.zeros(source.n_rows, dtype=np.int64)
    if model.task == "classification":
        codes = _codes(model, source)
    with ExitStack() as stack:
        workers = None
        if asked.dask is not None:
            workers = stack.enter_context(borrow_workers(asked.dask, asked.threads))
        engine = stack.enter_context(model.engine(asked.threads, sparse=source.sparse))
        if exact:
            found = _certify_exact(model, source, codes, engine, replace(asked, dask=workers))
            return ModelCertificate(model.gap_scope, found)
        return _certify_span(model, source, codes, engine, replace(asked, dask=workers))


def _codes(model: Model, source: RowSource) -> Int64Array:
    """Class of each row; InputError unless the labels are those of the model."""
    classes, codes = encode_labels(source)
    labels, expected = like_classes(as_class_values(classes), model.classes), model.classes
    if sorted(labels.tolist()) != sorted(expected.tolist()):
        raise InputError(
            f"{source.name} has labels {format_labels(labels.tolist())} but the model was trained "
            f"on {format_labels(expected.tolist())}; give the file it was trained on"
        )
    return codes_of(labels, expected, source.name)[codes]


def _certify_exact(
    model: Model, source: RowSource, codes: Int64Array, engine: Engine, asked: Inquiry
) -> list[dict[str, Any]]:
    """Certificates of the pairs of classes, or of one class, of a model over its rows."""
    check_training_rows(model, source, codes)
    pairs, workers = class_pairs(len(model.classes)), asked.dask
    certificates = []
    with ExitStack() as stack:
        partition = None
        if model.task != "novelty":
            whole = ClassificationProblem(source, codes, model.kernel, class_labels=model.classes)
            partition = stack.enter_context(partition_classes(whole))
        if len(pairs) > 1:
            workers = None  # other processes cannot read the partition
        for k, (classifier, classes) in enumerate(zip(model.classifiers, pairs, strict=True)):
            tol, rows = asked.tol, classifier.rows
            if partition is None:
                labels = np.ones(source.n_rows, dtype=np.int8)
                problem = BinaryProblem(source, labels, model.kernel, one_class=True)
                tol = tol * classifier.rho / (classifier.rho + 1)  # of the problem with the bias
            else:
                pair = partition.pair(*classes)
                problem, rows = pair.problem, pair.pair_rows(rows)
            vectors = take_rows(model.support_vectors, classifier.sv)
            C = model.C if classifier.C is None else classifier.C
            weights = SupportWeights(vectors, rows, classifier.alpha, C)
            label = "certify" if len(pairs) == 1 else f"certify {k + 1}/{len(pairs)}"
            with asked.show(label, problem.source.n_rows) as tell:
                certificate = certify(problem, engine, weights, Search(tol), tell, workers)
            if model.task == "novelty":
                certificate = certificate.without_bias()
            certificates.append({name: getattr(certificate, name) for name in _OF_EXACT})
    return certificates


def _certify_span(
    model: Model, source: RowSource, codes: Int64Array, engine: Engine, asked: Inquiry
) -> ModelCertificate:
    """Objectives and gaps of the binary classifiers of a landmark model over its rows.

    An exact regression has the gap to the optimum over all rows that training gave it: its file
    holds that bound, which no landmarks that were chosen from more rows attain.
    """
    problem: ClassificationProblem | RegressionProblem | NoveltyProblem
    if model.task == "regression":
        problem = regression_problem(model, source)
    elif model.task == "novelty":
        problem = NoveltyProblem(source, model.kernel)
    else:
        problem = ClassificationProblem(source, codes, model.kernel, class_labels=model.classes)
    problem, workers, scope = replace(problem, penalties=asked.penalties), asked.dask, "span"
    with asked.show("certify", source.n_rows) as tell:
        certificate = certify_landmarks(model, problem, engine, dask=workers, on_block=tell)
        if model.task == "regression" and source.n_rows <= EXACT_ROWS:
            optimum = certificate.to_the_optimum(engine, workers)
            known = getattr(model.classifiers[0], "dual", None)
            if known is not None and known <= optimum.dual[0] * (1 + _SAME):
                certificate, scope = optimum, "all"
    columns = {name: getattr(certificate, name) for name in _OF_LANDMARKS}
    if asked.exact_kernel:
        view = certificate.exact_kernel
        total = view.n_evaluations
        with asked.show("exact kernel", total, unit="kernel values") as tell:
            dual = view.dual(engine, workers, lambda share: tell(round(share * total)))
        columns["exact_kernel_dual"] = dual
        columns["exact_kernel_gap"] = relative_gap(certificate.primal, dual)
    values = zip(*(column.tolist() for column in columns.values()), strict=True)
    return ModelCertificate(scope, [dict(zip(columns, row, strict=True)) for row in values])


def certify_landmarks(
    model: Model,
    problem: ClassificationProblem | RegressionProblem | NoveltyProblem,
    engine: Engine,
    *,
    dask: Any = None,
    on_block: Callable[[int], None] | None = None,
) -> SpanCertificate:
    """Bound the primal P and the dual D of a landmark model by one pass over its training rows.

    Penalties of None follow from the model. `on_block` is told the number of rows done. InputError
    is raised if the rows are not those the model was trained on, changed, or cannot be read, if it
    has no jitter, on which the bound on rounding rests, or if penalties are unknown. Kernel values
    are float64, and a bound on all rounding is part of the result: `certify_point`.
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
        "only; in Python give the penalties of all rows to model.certify"
    )


def _landmark_classifiers(model: Model) -> list[LandmarkClassifier]:
    classifiers = [c for c in model.classifiers if isinstance(c, LandmarkClassifier)]
    if not classifiers:
        raise InputError("the model has no landmarks")
    return classifiers
