"""Decision values of a model on rows that pass block by block, and probabilities from them.

All rows are first computed from float32 kernel values, whose error is bounded; what the bound
leaves open is computed again in float64, and what that leaves open from differences of rows. A
warning says how many rows stay open even then. The value of a row, or its label where only labels
are wanted, depends on the row and the model alone.

References
----------
Platt (1999), Probabilistic outputs for support vector machines.
Wu, Lin and Weng (2004), Probability estimates for multi-class classification by pairwise coupling.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ooc_fw.data.labels import feature_places
from ooc_fw.data.parallel import borrow_workers
from ooc_fw.data.rows import CSRRows, Float64Array, Int64Array, Rows, rows_bytes, take_rows
from ooc_fw.data.scaling import Scaling
from ooc_fw.data.sources import RowSource, block_slices, sampled_rows
from ooc_fw.data.views import ColumnSource, ScaledSource
from ooc_fw.kernels.decisions import DecisionFunctions, IsOpen, Weights
from ooc_fw.kernels.engine import Engine
from ooc_fw.kernels.functions import FLOAT64_UNIT
from ooc_fw.model.pairs import Decision, class_pairs, is_decided
from ooc_fw.system.errors import InputError
from ooc_fw.system.threads import SMALL_WORK

if TYPE_CHECKING:
    from ooc_fw.model.record import Model

logger = logging.getLogger(__name__)

# Largest error of a decision value where the margin (rho of one class, the spread of targets) is 1.
DECISION_ACCURACY = 1e-4
PART_BYTES = 4 << 20  # of dense rows that are decided at once
_PART_ROWS = 1 << 14  # rows decided at once by one classifier; more of them take fewer rows
_LEAST_PART_ROWS = 32
_HELD_BYTES = 16 << 20  # of support vectors whose predictors are held
_FEW_ROWS = 8  # rows whose labels are found sooner in float64 than by two sums and their bounds
_EXACT_ROWS = 1 << 12  # rows that are copied and decided in float64 at once
_PROBE_VECTORS = 32  # support vectors that show whether float32 values decide most rows


def rows_at_once(n_features: int) -> int:
    """Rows that take about `PART_BYTES` when dense."""
    return max(1, PART_BYTES // (4 * n_features))


def suited(model: Model, source: RowSource) -> RowSource:
    """Rows of `source` like the training rows: the features of the model by name, and scaled.

    A source that records its scaling is used as it is; all others hold raw rows.
    """
    source = by_name(model, source)
    check_source(model, source)
    scaling = model.scaling
    if scaling is None or scaling.is_identity:
        return source
    is_raw = source.scaling is None or scaling.applies_to(source.scaling)
    return ScaledSource(source, scaling) if is_raw else source


def by_name(model: Model, source: RowSource) -> RowSource:
    """Rows of `source` with the features of the model, see `ooc_fw.data.labels.feature_places`."""
    places = feature_places(source.columns, model.columns, source.name, model.warn_once)
    return source if places is None else ColumnSource(source, places)


def check_source(model: Model, source: RowSource) -> None:
    """Raise InputError unless rows of `source` can be compared with the support vectors."""
    if source.n_features != model.n_features:
        raise InputError(
            f"{source.name} has {source.n_features} features but the model was trained on "
            f"{model.n_features}; convert it with --like and the training file"
        )
    if source.scaling is None:
        return
    if model.scaling is None:
        logger.warning(
            "%s is scaled (%s), and the model has no record of the scaling of its training data; "
            "the values are taken as they are",
            *(source.name, source.scaling.kind),
        )
    elif not (source.scaling.same_as(model.scaling) or model.scaling.applies_to(source.scaling)):
        raise InputError(
            f"{source.name} is scaled ({source.scaling.kind}) in another way than the model's "
            f"training data ({model.scaling.kind}); convert it with --like and the training file"
        )


class Wanted(NamedTuple):
    """What decision values are for."""

    labels_only: bool = False  # whether they need only be as exact as labels need
    threshold: float = 0.0  # of the decision values of one classifier, where the label changes


class Decided(NamedTuple):
    """Decision values of some rows."""

    values: Float64Array  # (n_rows,) or (n_rows, n_classifiers); NaN for rows that are too large
    n_open: int  # rows whose value or label float64 does not settle


class Predictor:
    """Computes decision values of a model, with the kernel values of an engine.

    Rows whose label may be another one are computed again in float64 and, unless labels only are
    wanted, those whose bound exceeds `DECISION_ACCURACY`: labels are the same in both ways. Where
    that is most of a few support vectors, or the sums of many classifiers take longer than the
    kernel values, all rows are computed in float64 at once.
    """

    def __init__(self, model: Model, wanted: Wanted, engine: Engine) -> None:
        classifiers, vectors, self.engine = model.classifiers, model.support_vectors, engine
        labels_only = wanted.labels_only
        weights = [Weights(one.sv, one.alpha, one.labels) for one in classifiers]
        self.function = DecisionFunctions(engine, vectors, weights)
        rho = np.array([one.rho for one in classifiers])
        self._rho = rho if len(rho) > 1 else rho[0]
        self._accuracy, self._shift = DECISION_ACCURACY, 0.0
        self._has_labels = model.spread is None
        if model.spread is not None and model.offset is not None:
            labels_only, self._shift = False, -model.offset
            self._accuracy, self._rho = DECISION_ACCURACY * model.spread, self._rho / model.spread
        elif model.offset is not None:  # scores of novelty have no bias, and exact ones no scale
            if model.kind == "exact":
                self._accuracy, self._rho = DECISION_ACCURACY * rho[0], np.float64(1)
            self._shift = model.offset + float(math.fsum(weights[0].beta) / self._rho)
        self._n_classes, self._decision = len(model.classes), model.decision
        self.labels_only = labels_only
        self._threshold = wanted.threshold
        self._sparse = engine.arithmetic.sparse
        self._all_exact = self.function.sums_dominate
        if self._all_exact:
            return
        probe = take_rows(vectors, np.arange(0, len(vectors), -(-len(vectors) // _PROBE_VECTORS)))
        is_open = self._is_open(*self.function.approximate(probe)[:2])
        self._all_exact = bool(np.count_nonzero(is_open) > len(is_open) / 2)

    def prepare_for(self, source: RowSource) -> None:
        """Find a shorter way to the labels of many rows."""
        if self.labels_only and not self._all_exact:

            def sample() -> tuple[Rows, IsOpen]:
                rows = source.take(sampled_rows(source, source.n_rows))
                return self._stored(rows), self._is_open

            self.function.compress(sample, source.n_rows)

    def __call__(self, block: Rows) -> Decided:
        """Decision values of some rows."""
        step = max(_LEAST_PART_ROWS, _PART_ROWS // np.size(self._rho))
        if not self._sparse or not isinstance(block, CSRRows):
            step = min(step, rows_at_once(block.shape[1]))
        parts = [
            self._decide_part(self._stored(block[start : start + step]))
            for start in range(0, max(1, len(block)), step)
        ]
        values = np.concatenate([part.values for part in parts])
        return Decided(values, sum(part.n_open for part in parts))

    def _decide_part(self, rows: Rows) -> Decided:
        too_large = self.engine.too_large(rows)
        if too_large.any():
            shape = (len(rows), *np.shape(self._rho))
            values = np.full(shape, np.nan)
            places = np.flatnonzero(~too_large)
            values[places], n_open = self._decide_part(take_rows(rows, places))
            return Decided(values, n_open)
        if self._all_exact:
            return self.exact(rows)
        fast = self.function.approximate(rows, is_open=self._is_open)
        values = self._scaled(fast.values)
        n_open, places = 0, np.flatnonzero(self._is_open(fast.values, fast.bound))
        if len(places) > 0:
            values[places], n_open = self.exact(take_rows(rows, places))
        return Decided(values, n_open)

    def _stored(self, rows: Rows) -> Rows:
        """Rows that the engine takes: dense ones, unless it takes sparse ones."""
        return rows.toarray() if isinstance(rows, CSRRows) and not self._sparse else rows

    def exact(self, rows: Rows) -> Decided:
        """Decision values in float64, by differences for rows that products leave open."""
        parts, n_open = [], 0
        for start in range(0, max(1, len(rows)), _EXACT_ROWS):
            part = rows[start : start + _EXACT_ROWS]
            values, bound = self.function.exact(part)
            open_rows = np.flatnonzero(self._is_open(values, bound))
            if len(open_rows) > 0 and self.function.has_differences:
                again, bound = self.function.by_differences(take_rows(part, open_rows))
                values[open_rows] = again
                open_rows = open_rows[self._is_open(again, bound)]
            n_open += len(open_rows)
            parts.append(self._scaled(values))
        return Decided(np.concatenate(parts), n_open)

    def _scaled(self, values: Float64Array) -> Float64Array:
        return np.asarray(values / self._rho - self._shift)

    def _is_open(self, values: Float64Array, bound: Float64Array) -> npt.NDArray[np.bool_]:
        """Which rows may have another label, or another decision value where that is wanted."""
        values, rho = self._scaled(values), self._rho
        if values.ndim > bound.ndim:
            bound, rho = bound[:, None], rho.min()
        bound = (bound + self.function.rounding) / rho
        largest = np.abs(values) if values.ndim == 1 else np.abs(values).max(axis=1, keepdims=True)
        bound = bound + 2 * FLOAT64_UNIT * (largest + abs(self._shift))
        is_open = np.zeros(len(values), dtype=bool)
        if not self.labels_only:
            is_open |= bound.reshape(len(values), -1).max(axis=1) > self._accuracy
        if self._has_labels and values.ndim == 1:
            is_open |= np.abs(values - self._threshold) <= bound
        elif self._has_labels:
            is_open |= ~is_decided(values, bound, self._n_classes, self._decision)
        return is_open


def suits_few(model: Model, n_rows: int, threads: int) -> bool:
    """Whether so many rows in RAM are decided at once, rather than block by block by `threads`.

    The predictor is kept, and its copies of the support vectors take some three times their memory.
    """
    vectors = model.support_vectors
    little_work = n_rows * len(vectors) <= SMALL_WORK
    return (threads == 1 or little_work) and rows_bytes(vectors) <= _HELD_BYTES


def decide_few(model: Model, rows: Rows, wanted: Wanted, name: str) -> Float64Array:
    """Decision values by a predictor that is kept; any number of threads may call this."""
    predictor = model.predictors.get(wanted)
    if predictor is None:
        with model.engine(serves=True) as engine:
            predictor = model.predictors[wanted] = Predictor(model, wanted, engine)
    few = predictor.labels_only and len(rows) <= _FEW_ROWS
    with predictor.engine.pool.reopened():
        if few and not predictor.engine.too_large(rows).any():
            decided = predictor.exact(rows)
        else:
            decided = predictor(rows)
    told = _Told(model, name)
    told.see(0, decided)
    told.tell()
    return decided.values


class _Told:
    """Counts what cannot be decided while blocks pass, and warns of it."""

    def __init__(
        self, model: Model, name: str, row_ids: Callable[[int, int], Int64Array] = np.arange
    ) -> None:
        self._model, self._name, self._row_ids = model, name, row_ids
        self._n_open = self._n_rows = self._n_too_large = 0

    def see(self, start: int, decided: Decided) -> None:
        """Take note of a block of rows from `start` on."""
        self._n_rows += len(decided.values)
        self._n_open += decided.n_open
        places = np.flatnonzero(np.isnan(decided.values.reshape(len(decided.values), -1)[:, 0]))
        if len(places) > 0 and self._n_too_large == 0:
            logger.warning(
                "row %d of %s is too large for the %s kernel in float32, and has no prediction; "
                "scale the columns as for training, or leave it out",
                *(self._row_ids(start + places[0], start + places[0] + 1)[0], self._name),
                self._model.kernel.name,
            )
        self._n_too_large += len(places)

    def tell(self) -> None:
        """Warn of all that was seen."""
        if self._n_too_large > 1:
            logger.warning("%d rows of %s have no prediction", self._n_too_large, self._name)
        if self._n_open > 0:
            logger.warning(
                "%d of %d rows of %s are so near the boundary, or so large, that float64 "
                "arithmetic does not settle their labels or values",
                *(self._n_open, self._n_rows, self._name),
            )


def decide(
    model: Model,
    blocks: Iterable[Rows],
    wanted: Wanted = Wanted(),  # noqa: B008  # it is immutable
    *,
    threads: int = 1,
    name: str = "the data",
) -> Iterator[Float64Array]:
    """Yield the decision values of each block of rows like those of training."""
    told, start = _Told(model, name), 0
    with model.engine(threads) as engine:
        predictor = Predictor(model, wanted, engine)
        for block in blocks:
            decided = predictor(block)
            told.see(start, decided)
            start += len(block)
            yield decided.values
    told.tell()


def like_training(model: Model, blocks: Iterable[Rows]) -> Iterator[Rows]:
    """Raw rows of any width made like the training rows: scaled, cut or padded with zeros."""
    scaling = model.scaling or Scaling("none", False, None, None)
    # A scaling that moves zero makes sparse rows dense: short parts of each block take less memory.
    step = rows_at_once(model.n_features)
    for block in blocks:
        for start in range(0, len(block), step):
            yield scaling.apply(block[start : start + step], model.n_features)


def iter_decisions(
    model: Model,
    source: RowSource,
    wanted: Wanted = Wanted(),  # noqa: B008  # it is immutable
    *,
    threads: int = 1,
    dask: Any = None,
) -> Iterator[tuple[int, Float64Array]]:
    """Yield the first row of each block, and the values of `Model.decision_function` for it."""
    told = _Told(model, source.name, source.row_ids)
    with model.engine(threads) as engine:
        source = suited(model, source)
        slices = block_slices(source, 0, source.n_rows)
        predictor = Predictor(model, wanted, engine)
        predictor.prepare_for(source)
        # The engine has threads of its own.
        with borrow_workers(dask, threads, here=1) as workers:
            for (start, _), decided in workers.over(source, decide_rows, slices, predictor):
                told.see(start, decided)
                yield start, decided.values
        source.check_unchanged()
    told.tell()


def decide_rows(source: RowSource, block: tuple[int, int], predictor: Predictor) -> Decided:
    """Decision values of a range of rows."""
    return predictor(source.read(*block))


_GRADIENT_TOLERANCE = 1e-10  # of the mean loss, which is of the order of 1
_LEAST_SCALE = 1e-300  # of decision values; smaller ones are taken for 0
_SYSTEM_BYTES = 8 << 20  # of the linear systems that are solved at once
CLIP = 1e-7  # pairwise probabilities are at least this far from 0 and 1, as in LIBSVM


def fit_sigmoid(values: Float64Array, positive: npt.NDArray[np.bool_]) -> tuple[float, float]:
    """Find a and b of P(positive | f) = 1 / (1 + exp(a f + b)), by maximum likelihood.

    `values` are finite decision values of rows that the classifier was not trained on, of either
    class or both.

    Notes
    -----
    Minimises the mean of -t log p - (1 - t) log(1 - p), which is convex. The targets t are
    Platt's, (n+ + 1) / (n+ + 2) for positive and 1 / (n- + 2) for negative rows, so that separable
    rows have a finite slope.

    Examples
    --------
    >>> a, b = fit_sigmoid(np.array([-2.0, -1.0, 1.0, 2.0]), np.array([False, True, False, True]))
    >>> sigmoid(np.array([-2.0, 0.0, 2.0]), a, b).round(3)
    array([0.4, 0.5, 0.6])
    """
    from scipy.optimize import minimize  # 0.1 s, for few commands

    n_positive = int(positive.sum())
    n_negative = len(positive) - n_positive
    targets = np.where(positive, (n_positive + 1) / (n_positive + 2), 1 / (n_negative + 2))
    # The tolerance suits values of the order of 1.
    scale = float(np.abs(values).max(initial=0))
    if scale < _LEAST_SCALE:
        scale = 1.0
    design = np.column_stack([values / scale, np.ones(len(values))])

    def loss(parameters: Float64Array) -> tuple[float, Float64Array]:
        z = design @ parameters
        slopes = targets - sigmoid(z, 1.0, 0.0)
        # The loss of a row is log(1 + exp(z)) - (1 - t) z, which does not overflow.
        return (np.logaddexp(0, z) - (1 - targets) * z).mean(), slopes @ design / len(z)

    def curvature(parameters: Float64Array) -> Float64Array:
        p = sigmoid(design @ parameters, 1.0, 0.0)
        return np.asarray(design.T @ (design * (p * (1 - p))[:, None]) / len(p))

    start = np.array([0.0, np.log((n_negative + 1) / (n_positive + 1))])
    options = {"gtol": _GRADIENT_TOLERANCE}
    found = minimize(loss, start, jac=True, hess=curvature, method="trust-ncg", options=options)
    return float(found.x[0] / scale), float(found.x[1])


def sigmoid(values: Float64Array, a: float | Float64Array, b: float | Float64Array) -> Float64Array:
    """1 / (1 + exp(a f + b)) for each decision value f, without overflow."""
    z = a * values + b
    small = np.exp(-np.abs(z))
    return np.asarray(np.where(z >= 0, small, 1.0) / (1 + small))


def class_probabilities(
    values: Float64Array,
    sigmoids: Sequence[tuple[float | None, float | None]],
    n_classes: int,
    decision: Decision = "ovo",
) -> Float64Array:
    """Probability of each class, (n_rows, n_classes), from decision values of each classifier."""
    if None in chain(*sigmoids):
        raise InputError(
            "the model gives no probabilities; train it with --probability (in Python "
            "probability=True)"
        )
    a, b = np.array(sigmoids, dtype=np.float64).T
    values = values.reshape(len(values), -1)
    if decision == "ovr":
        logs = -np.logaddexp(0, a * values + b)
        # Divided by the largest share, so that they do not all underflow to 0.
        shares = np.exp(logs - logs.max(axis=1, keepdims=True))
        return np.asarray(shares / shares.sum(axis=1, keepdims=True))
    of_pairs = sigmoid(values, a, b)
    if n_classes == 2:
        # 1 - p would be exactly 0 where the other class is almost certain.
        return np.hstack([sigmoid(values, -a, -b), of_pairs])
    return couple(of_pairs, n_classes)


def couple(of_pairs: Float64Array, n_classes: int) -> Float64Array:
    """Probabilities of classes that agree best with those of pairs, shape (n_rows, n_classes).

    `of_pairs` has the probability of the larger class of each pair, given that it is one of the
    two, shape (n_rows, n_pairs).

    Notes
    -----
    With r_ij the probability of class i rather than j, p minimises
    sum over i and j of (r_ji p_i - r_ij p_j)^2 subject to sum p = 1: Q p + c e = 0 with
    Q_ii = sum over j of r_ji^2 and Q_ij = -r_ji r_ij. The solution is positive (Wu, Lin and Weng
    2004, theorem 2). These small systems are solved directly, O(n_classes^3) for each row.

    Examples
    --------
    >>> couple(np.array([[0.25, 0.5, 0.75]]), 3).round(3)  # 1 against 0, 2 against 0, 2 against 1
    array([[0.429, 0.143, 0.429]])
    """
    step = max(1, _SYSTEM_BYTES // (8 * (n_classes + 1) ** 2))
    result = np.empty((len(of_pairs), n_classes))
    for start in range(0, len(of_pairs), step):
        part = np.clip(of_pairs[start : start + step], CLIP, 1 - CLIP)
        system = np.zeros((len(part), n_classes + 1, n_classes + 1))
        for r, (i, j) in zip(part.T, class_pairs(n_classes), strict=True):
            # r is the probability of j rather than i.
            system[:, i, i] += r * r
            system[:, j, j] += (1 - r) * (1 - r)
            system[:, i, j] = system[:, j, i] = -r * (1 - r)
        system[:, :-1, -1] = system[:, -1, :-1] = 1
        right = np.zeros((len(part), n_classes + 1, 1))
        right[:, -1] = 1
        shares = np.linalg.solve(system, right)[:, :-1, 0]
        shares = np.maximum(shares, 0)  # only rounding makes it negative
        result[start : start + step] = shares / shares.sum(axis=1, keepdims=True)
    return result
