"""The gap of a trained model, computed from the model and its training rows."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from ooc_fw.certificate.sweep import Search, SupportWeights, certify
from ooc_fw.data.labels import Classes, encode_labels, read_targets
from ooc_fw.data.parallel import borrow_workers
from ooc_fw.data.rows import CSRRows, Float64Array, Int64Array, take_rows
from ooc_fw.data.sources import RowSource
from ooc_fw.data.views import SubsetSource
from ooc_fw.kernels.engine import Engine
from ooc_fw.landmarks import relative_gap
from ooc_fw.landmarks.certificate import certify_point, exact_dual
from ooc_fw.landmarks.columns import AnySpan, Columns, ColumnSpan
from ooc_fw.landmarks.newton import evaluate
from ooc_fw.landmarks.readings import Readings, SpanProblem
from ooc_fw.landmarks.span import Landmarks, Span
from ooc_fw.model.machines import places_among
from ooc_fw.model.partition import partition_classes
from ooc_fw.model.prediction import rows_at_once, suited
from ooc_fw.model.trained import Trained, demand
from ooc_fw.options import TrainOptions
from ooc_fw.problem import (
    EXACT_ROWS,
    ClassificationProblem,
    NoveltyProblem,
    Problem,
    RegressionProblem,
    check_sample_weight,
    penalties_of_classes,
    relative_target,
)
from ooc_fw.solver.state import Status
from ooc_fw.system.errors import InputError, format_labels

Tell: TypeAlias = Callable[[int], None]  # receives the number of rows that are done

_WEIGHTS_OF_ROWS = (
    "the model was trained with weights of rows, but its file has the weights of landmarks only; "
    "give data with them (convert --weight), or in Python the penalties of all rows"
)
_ADVICE = "give the file it was trained on"

_SAME = 1e-9  # relative difference of two weights that may be rounding


@dataclass(frozen=True)
class ModelCertificate:
    """The gap of a model, from a reading of its training rows."""

    gap_scope: str  # "all", "weighted" (other rows have weight 0) or "span": see `gap_scope_`
    classifiers: list[dict[str, Any]]  # numbers of each binary classifier, by name

    @property
    def worst(self) -> dict[str, Any]:
        """The numbers of the classifier with the largest gap."""
        return max(self.classifiers, key=lambda found: found["certified_gap"])

    @property
    def certified_gap(self) -> float:
        """Certified relative gap of the worst classifier."""
        return float(self.worst["certified_gap"])

    def reached(self, tol: float) -> bool:
        """Whether all classifiers pass a tolerance as in training.

        The gap of the worst row is within it, or that of the objective is within twice as much.
        """
        target = relative_target(tol)
        return all(
            one.get("objective_gap", one["certified_gap"]) <= target
            or ("objective_gap" in one and one["certified_gap"] <= tol)
            for one in self.classifiers
        )


def certify_model(
    model: Trained,
    source: RowSource,
    penalties: Any,
    threads: int,
    dask: Any,
    tell: Tell,
) -> ModelCertificate:
    """Certify a model over its training rows; see `Model.certify`."""
    exact = model.kind == "exact"
    source = suited(model, source)
    if penalties is not None:
        penalties = check_sample_weight(penalties, source.n_rows)
    n = source.n_rows
    way = f"{_ADVICE}, with all rows of weight 0"
    if n > model.n_rows:
        way = f"{_ADVICE}, with --missing-labels drop (in Python open_dataset(..., "
        way += "missing_labels='drop')) if training left out rows without a label"
    if model.status in (Status.STREAMED, Status.UNSETTLED):
        way = "give all rows it learned in their order, twice if they came twice (convert --like "
        way += "MODEL --no-shuffle with all inputs, if the first file was not shuffled either)"
    words = f"{source.name} has {n} rows but the model was trained on {model.n_rows}"
    demand(n == model.n_rows, f"{words}; {way}")
    if model.weighted_rows is not None:
        rows = np.flatnonzero(np.unpackbits(model.weighted_rows))
        model = replace(model, rows=np.searchsorted(rows, model.rows), weighted_rows=None)
        penalties = None if penalties is None else penalties[rows]
        source = SubsetSource(source, rows)
    problem = _problem_of(model, source, penalties)
    _check_training_rows(model, source, problem.row_classes)
    if problem.penalties is not None or "weight" in source.beside or not exact:
        problem = _with_penalties(problem, model)
    elif model.penalties is not None:
        # Without the penalties of all rows only the gap of the worst row is certified.
        with suppress(InputError):
            problem = _with_penalties(problem, model)
    with model.engine(threads, sparse=source.sparse) as engine:
        certified = _certify_exact if exact else _certify_span
        found = certified(model, problem, engine, dask, tell)
    if found.gap_scope == "all" and source.n_rows < n:
        return replace(found, gap_scope="weighted")
    return found


def _problem_of(model: Trained, source: RowSource, penalties: Float64Array | None) -> Problem:
    """The problem that a model was trained on; InputError if the labels are not the model's."""
    if model.spread is not None:  # a regression, trained on targets in units of their spread
        targets = (read_targets(source) - (model.offset or 0.0)) / model.spread
        epsilon = (model.epsilon or 0.0) / model.spread
        return RegressionProblem(source, targets, model.kernel, epsilon, penalties)
    if model.task == "novelty":
        return NoveltyProblem(source, model.kernel, penalties)
    found, codes = encode_labels(source)
    expected = model.classes
    places = Classes(expected).of(found.values)
    demand(
        sorted(places.tolist()) == [*range(len(expected))],
        f"{source.name} has labels {format_labels(found.values)} but the model was trained on "
        f"{format_labels(expected)}; {_ADVICE}",
    )
    return ClassificationProblem(source, places[codes], model.kernel, penalties, expected)


def _check_training_rows(model: Trained, source: RowSource, codes: Int64Array) -> None:
    """Raise InputError if a support vector (if exact, or its class) differs from its row."""
    if model.kind == "linear":  # its vectors are no rows
        return
    numbers = model.rows
    differs = np.zeros(len(numbers), dtype=bool)
    order = np.argsort(numbers)
    step = rows_at_once(model.n_features)
    for part in (order[start : start + step] for start in range(0, len(order), step)):
        rows = source.take(numbers[part]), take_rows(model.support_vectors, part)
        here, there = (each.toarray() if isinstance(each, CSRRows) else each for each in rows)
        differs[part] = (here != there).any(axis=1)
    if model.kind == "exact" and model.task == "classification":
        classifier, sv, beta = model.entries()
        expected = model.sides[classifier, np.where(np.signbit(beta), 0, 1)]
        differs[sv[codes[numbers[sv]] != expected]] = True
    words = f"of {source.name} is not the model's support vector of that row; {_ADVICE}"
    demand(not differs.any(), f"row {numbers[differs].min(initial=source.n_rows)} {words}")


def _certify_exact(
    model: Trained, problem: Any, engine: Engine, dask: Any, tell: Tell
) -> ModelCertificate:
    """Certify each classifier of an exact model over its training rows."""
    search = Search(TrainOptions.tol)
    names = "certified_gap", "pair_gap", "objective", "rho", "objective_gap"
    certificates = []
    several = len(model.classifiers) > 1
    with ExitStack() as stack:
        if several:
            partition = stack.enter_context(partition_classes(problem))
            dask = None  # since other processes cannot read the rows of a partition
        for k, one in enumerate(model.classifiers):
            rows = model.rows[one.sv]
            if several:
                pair, among = partition.pair(*model.sides[k].tolist())
                rows = places_among(among, rows)
            else:
                pair = problem.binary()
            vectors = take_rows(model.support_vectors, one.sv)
            C = model.C if model.penalties is None else model.penalties[one.sv]
            own = SupportWeights(vectors, rows, one.alpha, C)
            found = certify(pair, engine, own, search, None if several else tell, dask)
            found = found.without_bias(pair.bias_share)
            certificates.append({name: getattr(found, name) for name in names})
            tell(problem.source.n_rows * (k + 1) // len(model.classifiers))
    return ModelCertificate("all", certificates)


def _certify_span(
    model: Trained, problem: Any, engine: Engine, dask: Any, tell: Tell
) -> ModelCertificate:
    """Certify a landmark model: bounds on its objectives, rounding included (`certify_point`)."""
    source = problem.source
    of_span = SpanProblem.of(problem, model.C)
    span: AnySpan
    if model.kind == "linear":
        betas = model.column_weights()
        span = ColumnSpan(Columns(engine, model.n_features))
    else:
        betas = np.array([one.beta for one in model.classifiers])
        vectors = take_rows(model.support_vectors, model.classifiers[0].sv)
        span = Span(Landmarks(engine, vectors, of_span.bias), model.jitter)
    source.check_unchanged()
    with borrow_workers(dask, engine.threads, here=1) as workers:
        n_rows = source.n_rows
        readings = Readings(of_span, span.landmarks, workers, lambda x: tell(round(x * n_rows)))
        point = evaluate(span, readings, betas, exact=True)
    source.check_unchanged()
    primal, dual = certify_point(span, point, of_span)
    # The file of an exact regression has a lower bound on the optimum over all rows. If only some
    # rows were landmarks, it has a bound on the optimum in their span, which is larger.
    scope = "all" if model.kind == "linear" else "span"
    if scope == "span" and model.task == "regression" and source.n_rows <= EXACT_ROWS:
        of_all = exact_dual(of_span, point.gradient.decisions, engine)
        if model.numbers("dual")[0] <= of_all[0] * (1 + 1e-6):  # allows for rounding
            dual = of_all
            scope = "all"
    found = {"certified_gap": relative_gap(primal, dual), "primal": primal, "dual": dual}
    each = [{name: values[k].item() for name, values in found.items()} for k in range(len(dual))]
    return ModelCertificate(scope, each)


def _with_penalties(problem: Any, model: Trained) -> Any:
    """The problem with the penalties of all rows, which are those of training; or InputError.

    They follow from weights of the rows, which are given or in the file and of which a factor for
    each class has no effect; without weights, all rows of a class have the same penalty.
    """
    stored = problem.source.beside.get("weight")
    values = problem.penalties
    if values is None and stored is not None:
        values = np.asarray(stored[0 : problem.source.n_rows])
    known: Any = (model.class_penalties, model.penalty_sums)
    if model.penalties is None:
        if values is None:
            return problem
        known = (np.full(problem.row_classes.max() + 1, model.C), 0.0)
    words = f"the weights in {problem.source.name} differ from those in training; {_ADVICE}"
    if values is None:
        words = _WEIGHTS_OF_ROWS
        values = np.ones(problem.source.n_rows)
    demand((values > 0).all(), words)
    of_class, sums = penalties_of_classes(replace(problem, penalties=values))
    factors = known[0] / of_class
    fits = np.abs(sums - known[1]) <= _SAME * len(values)
    if model.penalties is None and problem.penalties is None:
        fits &= np.abs(of_class - 1) <= _SAME  # equal weights in the file stand for another C
    demand(fits.all(), words)
    return replace(problem, penalties=factors[problem.row_classes] * values)
