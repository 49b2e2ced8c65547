"""The binary classifiers of a model: their classes, weights, votes and probabilities.

Exact models have a classifier for each pair of classes ("ovo"): most votes win, and the sums of
decision values break ties. Landmark models have a classifier for each class against the rest
("ovr"): the largest decision value wins. Two classes have one classifier in either kind.

References
----------
Platt (1999), Probabilistic outputs for support vector machines.
Price, Knerr, Personnaz and Dreyfus (1995), Pairwise neural network classifiers with probabilistic
outputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import combinations
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from ooc_fw.data.rows import AnyArray, Float64Array, Int8Array, Int64Array
from ooc_fw.solver.state import Solution, Status

Decision: TypeAlias = Literal["ovo", "ovr"]

REST = -1  # stands for the place of the negative class, if this is all other classes


@dataclass(frozen=True)
class PairSolution:
    """The solution for a pair of classes; the larger one, `positive`, has the label +1."""

    negative: int
    positive: int
    solution: Solution  # has rows of the whole data set; support vectors only if it is the only one
    stands_in: bool = False  # whether a stream has not yet seen a row of these classes


def class_pairs(n_classes: int) -> list[tuple[int, int]]:
    """All pairs of classes, in the order of their classifiers: (0, 1), (0, 2), ..., (1, 2), ..."""
    return list(combinations(range(n_classes), 2))


def class_sides(n_classes: int, decision: Decision) -> Int64Array:
    """Places of the negative and the positive class of each classifier, (n_classifiers, 2)."""
    if decision == "ovr":
        return np.column_stack([np.full(n_classes, REST), np.arange(n_classes)])
    return np.array(class_pairs(n_classes), dtype=np.int64).reshape(-1, 2)


def union_of_rows(pairs: Sequence[PairSolution]) -> Int64Array:
    """Rows of the whole data set that support any classifier, increasing if there are several."""
    if len(pairs) == 1:
        return pairs[0].solution.rows
    return np.unique(np.concatenate([pair.solution.rows for pair in pairs]))


def places_among(rows: Int64Array, wanted: Int64Array) -> Int64Array:
    """Places of the row numbers `wanted` in the array `rows`."""
    order = np.argsort(rows)
    return order[np.searchsorted(rows, wanted, sorter=order)]


def worst_status(statuses: Sequence[Status]) -> Status:
    """The status of all classifiers together: interrupted, stopped, or the first early end."""
    early = [status for status in statuses if not status.reached]
    order = [Status.INTERRUPTED, Status.STOPPED, *early, Status.SAMPLED]
    return next((status for status in order if status in statuses), Status.CONVERGED)


def worst_gap(gaps: Iterable[float | None]) -> float | None:
    """The largest gap of all classifiers; None if one of them is unknown."""
    known = list(gaps)
    return None if None in known else max(gap for gap in known if gap is not None)


@dataclass(frozen=True)
class Classifier:
    """One binary classifier of a model; unknown numbers are None.

    The decision function is h(x) = sum_j beta_j (k(z_j, x) + 1) / rho, with margin 1; for novelty
    the + 1 is missing. P(positive | h) is 1 / (1 + exp(sigmoid_a h + sigmoid_b)).
    """

    sv: Int64Array  # places in `Model.support_vectors`, shape (n_support,)
    beta: Float64Array  # exact: weight times label, absolute sum 1; landmarks: of either sign
    rho: float  # 1 for landmark models
    certified_gap: float | None = None  # relative gap over all rows, or within the span
    sampled_gap: float | None = None  # relative gap over drawn rows, which is no certificate
    primal: float | None = None  # primal objective over all rows, or an upper bound on it
    dual: float | None = None  # certified lower bound on the least primal objective
    sigmoid_a: float | None = None
    sigmoid_b: float | None = None

    @property
    def objective_gap(self) -> float | None:
        """(primal - dual) / primal: the best objective is lower by no larger share."""
        if self.primal is None or self.dual is None:
            return None
        return max(0.0, 1.0 - self.dual / self.primal) if self.primal > 0 else 0.0

    @property
    def alpha(self) -> Float64Array:
        """Absolute weights; those of an exact classifier sum to 1."""
        return np.abs(self.beta)

    @property
    def labels(self) -> Int8Array:
        """-1 or +1 for each support vector."""
        return np.where(np.signbit(self.beta), np.int8(-1), np.int8(1))


NUMBERS = tuple(field.name for field in fields(Classifier)[2:])
"""Fields of a `Classifier` that are numbers."""


def class_scores(
    values: Float64Array, n_classes: int, for_negative: Float64Array | None = None
) -> Float64Array:
    """Votes for each class, (n_rows, n_classes), from values for each pair, (n_rows, n_pairs).

    To break ties, the sum of decision values for a class is mapped into (-1/3, 1/3) and added.
    `for_negative` gives other values for the smaller class of each pair.
    """
    negatives = values if for_negative is None else for_negative
    votes = _sums_of_classes(values > 0, negatives <= 0, n_classes)
    sums = _sums_of_classes(values, -negatives, n_classes)
    return np.asarray(votes + sums / (3 * (np.abs(sums) + 1)))


def _sums_of_classes(of_larger: AnyArray, of_smaller: AnyArray, n_classes: int) -> Float64Array:
    """Sums for each class over its pairs; each pair has a number for either of its classes."""
    sums = np.zeros((len(of_larger), n_classes))
    start = 0
    for smaller in range(n_classes - 1):  # the pairs of this class with all larger classes
        stop = start + n_classes - 1 - smaller
        sums[:, smaller + 1 :] += of_larger[:, start:stop]
        sums[:, smaller] += of_smaller[:, start:stop].sum(axis=1)
        start = stop
    return sums


def is_decided(
    values: Float64Array, bound: Float64Array, n_classes: int, decision: Decision = "ovo"
) -> npt.NDArray[np.bool_]:
    """Whether the predicted class stays under all errors up to `bound`, shape (n_rows,)."""
    # Scores are rounded, too: two large sums of decision values may differ in their last bits only.
    rounding = 4 * n_classes * np.finfo(np.float64).eps
    bound = bound + rounding * np.abs(values).max(axis=1, keepdims=True)
    if decision == "ovr":
        return _is_clear(values.argmax(axis=1), values - bound, values + bound, rounding)
    scores = class_scores(values, n_classes)
    first = scores.argmax(axis=1)
    # For most rows all signs are sure and the first class leads by a vote, more than sums can add.
    decided = (np.abs(values) > bound).all(axis=1) & _is_clear(first, scores, scores, 0.7)
    rest = np.flatnonzero(~decided)
    low = values[rest] - bound[rest]
    high = values[rest] + bound[rest]
    lower = class_scores(low, n_classes, for_negative=high)
    upper = class_scores(high, n_classes, for_negative=low)
    decided[rest] = _is_clear(first[rest], lower, upper, rounding)
    return decided


def _is_clear(
    first: Int64Array, lower: Float64Array, upper: Float64Array, least: float
) -> npt.NDArray[np.bool_]:
    """Whether the lower score of the first class exceeds all other upper scores by `least`."""
    places = np.arange(len(first)), first
    others = upper.copy()
    others[places] = -np.inf
    return np.asarray(lower[places] > others.max(axis=1) + least)


def fit_sigmoid(values: Float64Array, positive: npt.NDArray[np.bool_]) -> tuple[float, float]:
    """Find a and b of P(positive | f) = 1 / (1 + exp(a f + b)), by maximum likelihood.

    `values` are finite decision values of rows that the classifier was not trained on. Platt's
    targets t are (n+ + 1) / (n+ + 2) for positive and 1 / (n- + 2) for negative rows, so that
    separable rows have a finite slope. The mean of -t log p - (1 - t) log(1 - p) is convex.

    The probability never falls as the value rises: a is 0 if a positive one fits best, and all rows
    then have the probability of the classes.
    """
    from scipy.optimize import minimize  # takes 0.1 s, and few commands need it

    n_positive = int(positive.sum())
    n_negative = len(positive) - n_positive
    targets = np.where(positive, (n_positive + 1) / (n_positive + 2), 1 / (n_negative + 2))
    # Scale the values, since the tolerance suits numbers of the order of 1.
    scale = float(np.abs(values).max(initial=0))
    if scale < 1e-300:
        scale = 1.0
    design = np.column_stack([values / scale, np.ones(len(values))])

    def loss(parameters: Float64Array) -> tuple[float, Float64Array]:
        z = design @ parameters
        slopes = targets - sigmoid(z, 1.0, 0.0)
        # The loss of a row is log(1 + exp(z)) - (1 - t) z, which does not overflow.
        return (np.logaddexp(0, z) - (1 - targets) * z).mean(), slopes @ design / len(z)

    start = np.array([0.0, np.log((n_negative + 1) / (n_positive + 1))])
    options = {"gtol": 1e-10}  # suits the mean loss, which is of the order of 1
    found = minimize(loss, start, jac=True, method="BFGS", options=options)
    if not found.x[0] < 0:
        return 0.0, float(start[1])
    return float(found.x[0] / scale), float(found.x[1])


def sigmoid(values: Float64Array, a: float | Float64Array, b: float | Float64Array) -> Float64Array:
    """1 / (1 + exp(a f + b)) for each decision value f, without overflow."""
    z = a * values + b
    small = np.exp(-np.abs(z))
    return np.asarray(np.where(z >= 0, small, 1.0) / (1 + small))


def class_probabilities(
    values: Float64Array, a: Float64Array, b: Float64Array, n_classes: int, decision: Decision
) -> Float64Array:
    """Probability of each class, (n_rows, n_classes), from values and sigmoids of classifiers.

    For pairs, let r_ij be the probability of class i rather than j. Then 1 / p_i is the sum of
    1 / r_ij over j, minus n - 2; exact if all r_ij = p_i / (p_i + p_j) (Price and others 1995).
    """
    values = values.reshape(len(values), -1)
    if decision == "ovr":
        logs = -np.logaddexp(0, a * values + b)
        # Divide by the largest share, so that at least one does not underflow to 0.
        shares = np.exp(logs - logs.max(axis=1, keepdims=True))
    elif n_classes == 2:
        # Two sigmoids, since 1 - p would be exactly 0 if the other class is almost certain.
        return np.hstack([sigmoid(values, -a, -b), sigmoid(values, a, b)])
    else:
        of_pairs = np.clip(sigmoid(values, a, b), 1e-7, 1 - 1e-7)  # as in LIBSVM
        shares = 1 / (_sums_of_classes(1 / of_pairs, 1 / (1 - of_pairs), n_classes) - n_classes + 2)
    return np.asarray(shares / shares.sum(axis=1, keepdims=True))
