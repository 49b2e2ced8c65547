"""The gap of a model, computed again from the model and the rows it was trained on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from ooc_fw.certificate.sweep import Search, SupportWeights, certify
from ooc_fw.data.labels import codes_of, encode_labels, like_classes, read_targets
from ooc_fw.data.parallel import borrow_workers
from ooc_fw.data.rows import CSRRows, Float64Array, Int64Array, take_rows
from ooc_fw.data.sources import RowSource
from ooc_fw.data.views import SubsetSource, ranges_of
from ooc_fw.kernels.engine import Engine
from ooc_fw.landmarks import relative_gap
from ooc_fw.landmarks.certificate import certify_point, exact_dual
from ooc_fw.landmarks.newton import evaluate
from ooc_fw.landmarks.passes import Passes, SpanProblem
from ooc_fw.landmarks.span import Landmarks, Span
from ooc_fw.model.machines import as_class_values, demand, places_among
from ooc_fw.model.partition import partition_classes
from ooc_fw.model.prediction import rows_at_once, suited
from ooc_fw.options import TrainOptions
from ooc_fw.problem import (
    EXACT_ROWS,
    ClassificationProblem,
    NoveltyProblem,
    Problem,
    RegressionProblem,
)
from ooc_fw.system.errors import format_labels

if TYPE_CHECKING:
    from ooc_fw.model.record import Model

Show: TypeAlias = Callable[..., AbstractContextManager[Callable[[int], None]]]
"""Makes a bar of a name, a total and a unit, which is told what is done."""

_WEIGHTS_OF_ROWS = (
    "the model was trained with weights of rows, of which its file has those of landmarks only; in "
    "Python give the penalties of all rows to model.certify"
)


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


@dataclass(frozen=True)
class Inquiry:
    """What is asked of a model, and how; see `Model.certify`."""

    penalties: Float64Array | None = None  # of all rows
    tol: float = TrainOptions.tol  # rows that violate their margin by more are counted
    threads: int = 1
    dask: Any = None
    exact_kernel: bool = False
    show: Show = field(default=lambda *_, **__: nullcontext(lambda _: None), repr=False)


def certify_model(model: Model, source: RowSource, asked: Inquiry) -> ModelCertificate:
    """Certificate of a model over the rows it was trained on; see `Model.certify`."""
    exact = model.kind == "exact"
    penalties = asked.penalties
    demand(
        not exact or (penalties is None and not asked.exact_kernel),
        "an exact model holds its penalties, and its gap is that of the exact kernel; leave out "
        "--exact-kernel (in Python penalties and exact_kernel)",
    )
    source = suited(model, source)
    if model.weighted_rows is not None:
        rows = np.flatnonzero(np.unpackbits(model.weighted_rows))
        demand(
            len(model.weighted_rows) == -(-source.n_rows // 8)
            and rows.max(initial=-1) < source.n_rows,
            f"{source.name} has {source.n_rows} rows, but the model was trained on another number "
            f"of them, with those of weight 0; give the file it was trained on",
        )
        numbers = np.where(model.rows < 0, -1, np.searchsorted(rows, model.rows))
        model = replace(model, rows=numbers, weighted_rows=None)
        penalties = None if penalties is None else penalties[rows]
        source = SubsetSource(source, ranges_of(rows))
    problem = _problem_of(model, source, penalties)
    check_training_rows(model, source, problem.row_classes)
    with ExitStack() as stack:
        workers = None
        if asked.dask is not None:
            workers = stack.enter_context(borrow_workers(asked.dask, asked.threads))
        engine = stack.enter_context(model.engine(asked.threads, sparse=source.sparse))
        certified = _certify_exact if exact else _certify_span
        return certified(model, problem, engine, replace(asked, dask=workers))


def _problem_of(model: Model, source: RowSource, penalties: Float64Array | None) -> Problem:
    """The problem that a model was trained on; InputError unless the labels are the model's."""
    if model.spread is not None:
        # Targets in units of their spread.
        targets = (read_targets(source) - (model.offset or 0.0)) / model.spread
        epsilon = (model.epsilon or 0.0) / model.spread
        return RegressionProblem(source, targets, model.kernel, epsilon, penalties)
    if model.task == "novelty":
        return NoveltyProblem(source, model.kernel, penalties)
    classes, codes = encode_labels(source)
    labels = like_classes(as_class_values(classes), model.classes)
    expected = model.classes
    demand(
        sorted(labels.tolist()) == sorted(expected.tolist()),
        f"{source.name} has labels {format_labels(labels.tolist())} but the model was trained on "
        f"{format_labels(expected.tolist())}; give the file it was trained on",
    )
    codes = codes_of(labels, expected, source.name)[codes]
    return ClassificationProblem(source, codes, model.kernel, penalties, expected)


def check_training_rows(model: Model, source: RowSource, codes: Int64Array) -> None:
    """Raise InputError unless each support vector and its class are those of the row it is from.

    `codes` has the place in `classes` of the label of each row. Landmarks have no class, and may be
    no rows.
    """
    numbers = model.rows
    advice = "give the file it was trained on"
    demand(
        numbers.max() < source.n_rows,
        f"{source.name} has {source.n_rows} rows but the model was trained on row "
        f"{numbers.max()}; {advice}",
    )
    differs = np.zeros(len(numbers), dtype=bool)
    order = np.argsort(numbers)[np.count_nonzero(numbers < 0) :]
    step = rows_at_once(model.n_features)
    for part in (order[start : start + step] for start in range(0, len(order), step)):
        rows = source.take(numbers[part]), take_rows(model.support_vectors, part)
        here, there = (each.toarray() if isinstance(each, CSRRows) else each for each in rows)
        differs[part] = (here != there).any(axis=1)
    if model.kind == "exact" and model.task == "classification":
        machines = model.machines
        sides = np.repeat(model.sides, np.diff(machines.indptr), axis=0)
        expected = np.where(np.signbit(machines.beta), sides[:, 0], sides[:, 1])
        differs[machines.sv[codes[numbers[machines.sv]] != expected]] = True
    words = f"of {source.name} is not the model's support vector of that row; {advice}"
    demand(not differs.any(), f"row {numbers[differs].min(initial=source.n_rows)} {words}")


def _certify_exact(model: Model, problem: Any, engine: Engine, asked: Inquiry) -> ModelCertificate:
    """Certificates of the pairs of classes, or of one class, of a model over its rows."""
    certificates = []
    several = len(model.machines) > 1
    with ExitStack() as stack:
        if several:
            partition = stack.enter_context(partition_classes(problem))
        for k, classifier in enumerate(model.classifiers):
            rows = classifier.rows
            if several:
                pair, among = partition.pair(*model.sides[k].tolist())
                rows = places_among(among, rows)
            else:
                pair = problem.binary()
            # Of one class it is the problem with the bias.
            tol = asked.tol * (classifier.rho / (classifier.rho + 1) if pair.one_class else 1.0)
            vectors = take_rows(model.support_vectors, classifier.sv)
            C = model.C if classifier.C is None else classifier.C
            own = SupportWeights(vectors, rows, classifier.alpha, C)
            label = f"certify {k + 1}/{len(model.machines)}" if several else "certify"
            # Other processes cannot read the rows of a partition.
            workers = None if several else asked.dask
            with asked.show(label, pair.source.n_rows) as tell:
                found = certify(pair, engine, own, Search(tol), tell, workers)
            found = found.without_bias() if pair.one_class else found
            names = "certified_gap", "pair_gap", "objective", "rho", "n_violators"
            certificates.append({name: getattr(found, name) for name in names})
    return ModelCertificate("all", certificates)


def _certify_span(
    model: Model, problem: Problem, engine: Engine, asked: Inquiry
) -> ModelCertificate:
    """Objectives and gaps of the binary classifiers of a landmark model over its rows.

    An exact regression has the gap to the optimum over all rows that training gave it: its file
    holds that bound, which no landmarks that were chosen from more rows attain.
    """
    n_rows = problem.source.n_rows
    with asked.show("certify", n_rows) as tell:
        span = certify_landmarks(model, problem, engine, dask=asked.dask, on_block=tell)
    dual = span.dual
    scope = "span"
    if model.task == "regression" and n_rows <= EXACT_ROWS:
        of_all = span.exact_kernel(engine, asked.dask, exact=True)
        if model.machines.dual[0] <= of_all[0] * (1 + 1e-6):  # but for rounding
            dual = of_all
            scope = "all"
    found = {"certified_gap": relative_gap(span.primal, dual), "primal": span.primal, "dual": dual}
    if asked.exact_kernel:
        dual = span.exact_kernel(engine, asked.dask)
        found |= {"exact_kernel_dual": dual, "exact_kernel_gap": relative_gap(span.primal, dual)}
    each = [{name: values[k].item() for name, values in found.items()} for k in range(len(dual))]
    return ModelCertificate(scope, each)


class SpanCertificate(NamedTuple):
    """Objectives in the span of the landmarks, (n_classifiers,); the norm is b'Gb, with jitter."""

    primal: Float64Array  # upper bound on P of the weights
    dual: Float64Array  # lower bound on the least P that any weights of these landmarks have
    exact_kernel: Callable[..., Float64Array]  # a bound on the least P without jitter


def certify_landmarks(
    model: Model,
    problem: Problem,
    engine: Engine,
    *,
    dask: Any = None,
    on_block: Callable[[int], None] = lambda _: None,
) -> SpanCertificate:
    """Bound the primal P and the dual D of a landmark model by one pass over its training rows.

    Penalties of None follow from the model. `on_block` is told the number of rows done. InputError
    is raised if the rows changed, or cannot be read, if the model has no jitter, on which the bound
    on rounding rests, or if penalties are unknown or others than in training. Kernel values are
    float64, and a bound on all rounding is part of the result: `certify_point`.
    """
    derived = None
    if problem.penalties is None:
        derived = derived_penalties(model, problem.row_classes)
        given: Any = problem
        problem = replace(given, penalties=derived)
    of_span = SpanProblem.of(problem, model.C)
    source = problem.source
    jitter = model.jitter or 0.0
    demand(jitter > 0, "a landmark model without jitter cannot be certified; train it again")
    machines = model.machines
    vectors = take_rows(model.support_vectors, machines.sv[machines.part(0)])
    landmarks = Landmarks(engine, vectors, of_span.bias)
    span = Span(landmarks, jitter)
    source.check_unchanged()
    with borrow_workers(dask, engine.threads, here=1) as workers:
        passes = Passes(of_span, landmarks, workers, lambda x: on_block(round(x * source.n_rows)))
        point = evaluate(span, passes, machines.beta.reshape(len(machines), -1), exact=True)
    source.check_unchanged()
    primal, dual = certify_point(span, point, of_span)
    # Training certified the primal from float64 kernel values, or knows it from float32 ones only.
    accuracy = 1e-4 if model.certified_gap is None else 1e-6
    rounding = accuracy * primal + 2 * (primal - point.primal)
    if (np.abs(machines.primal - primal) > rounding).any():
        demand(derived is None, _WEIGHTS_OF_ROWS)
        demand(
            (model.rows >= 0).any(),  # or no landmark tells which rows these are
            f"the weights have another objective over the rows of {source.name} than in training; "
            f"give the file the model was trained on, and its penalties",
        )
    return SpanCertificate(primal, dual, partial(exact_dual, of_span, point.gradient.decisions))


def derived_penalties(model: Model, codes: Int64Array) -> Float64Array | None:
    """Penalties of all training rows, whose classes are `codes`; None where all have the model's C.

    The file has those of landmarks, which must be one number for each class.
    """
    if model.penalties is None:
        return None
    per_class = np.zeros(len(model.classes))
    is_row = model.rows >= 0
    for place in np.unique(codes):  # all rows of a regression have the code 0
        of_class = np.unique(model.penalties[is_row & (codes[model.rows] == place)])
        demand(len(of_class) == 1, _WEIGHTS_OF_ROWS)
        per_class[place] = of_class[0]
    return np.asarray(per_class[codes])
