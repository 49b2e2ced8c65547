"""Binary classifiers of several classes: their records, their order, their union, their vote.

Exact models have one for each pair of classes ("ovo"): most votes win, and the sums of decision
values decide between equal votes. Landmark models have one for each class against the rest ("ovr"):
the largest decision value wins. Two classes have one binary classifier in both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from ooc_fw.data.rows import Float64Array, Int8Array, Int64Array
from ooc_fw.problem import WEIGHT_SUM_TOLERANCE
from ooc_fw.solver.state import Solution, Status
from ooc_fw.system.errors import InputError

if TYPE_CHECKING:
    from ooc_fw.landmarks import LandmarkSolution

Task: TypeAlias = Literal["classification", "novelty", "regression"]
Decision: TypeAlias = Literal["ovo", "ovr"]
Kind: TypeAlias = Literal["exact", "landmarks"]

_CLEAR_SCORE = 0.7  # difference of scores above 2/3, which sums alone cannot make

_REST = "rest"  # stands for the negative class of one class against the rest

# Fields that classifiers have in common with the solutions that they come from.
OF_SOLUTION = ("alpha", "labels", "rows", "rho", "objective", "certified_gap", "sampled_gap")
_OF_LANDMARKS = ("primal", "dual", "certified_gap", "sampled_gap")


@dataclass(frozen=True, kw_only=True)
class _Trained:
    """What exact classifiers and those on landmarks have in common; numbers of None are unknown.

    P(positive | f) = 1 / (1 + exp(sigmoid_a f + sigmoid_b)) for the decision value f.
    """

    # Numbers in the training data, shape (n_support,); -1 for landmarks that are no rows.
    rows: Int64Array
    certified_gap: float | None  # relative, over all rows or within the span of the landmarks
    sampled_gap: float | None  # gap over the rows that training drew, no certificate
    positive: float | str  # class value of +1
    negative: float | str  # and of -1, which may stand for all other classes
    # Penalty of each row, 1 for landmarks that are no rows; None if all have that of the model.
    C: Float64Array | None = None
    sigmoid_a: float | None = None
    sigmoid_b: float | None = None

    def _check(self, places: Int64Array, **arrays: npt.NDArray[Any]) -> None:
        """Raise InputError for arrays and numbers that no training gives."""
        for name, numbers in (("support vector", places), ("row", self.rows[self.rows != -1])):
            if len(set(numbers.tolist())) < len(numbers):
                raise InputError(f"a classifier has a {name} twice")
        arrays["rows"] = self.rows
        if self.C is not None:
            arrays["C"] = self.C
            if not ((self.C > 0) & (self.C < np.inf)).all():
                raise InputError("C must be positive numbers")
        sizes = {len(array) for array in arrays.values()}
        if len(sizes) != 1 or 0 in sizes:
            raise InputError(f"{', '.join(arrays)} must be of one length above 0, not {sizes}")
        sigmoid = [one for one in (self.sigmoid_a, self.sigmoid_b) if one is not None]
        if len(sigmoid) == 1 or not np.isfinite(sigmoid).all():
            raise InputError(f"no sigmoid has a {self.sigmoid_a} and b {self.sigmoid_b}")
        if self.certified_gap is not None and not self.certified_gap >= 0:
            raise InputError(f"certified_gap cannot be {self.certified_gap}")


@dataclass(frozen=True, kw_only=True)
class BinaryClassifier(_Trained):
    """Weights on some of the model's support vectors, and what training said of them."""

    alpha: Float64Array  # on the simplex, shape (n_support,)
    labels: Int8Array  # -1 or +1
    sv: Int64Array  # positions in `Model.support_vectors`
    rho: float  # margin, by which decision values are divided
    objective: float  # of the dual, rho / 2
    kind: ClassVar[Kind] = "exact"

    def __post_init__(self) -> None:
        self._check(self.sv, alpha=self.alpha, labels=self.labels, sv=self.sv)
        if not (self.alpha >= 0).all() or abs(self.alpha.sum() - 1) > WEIGHT_SUM_TOLERANCE:
            raise InputError(f"alpha must be non-negative with sum 1, not {self.alpha.sum()}")
        if not (np.abs(self.labels) == 1).all():
            raise InputError("labels must be -1 or +1")
        if not np.finfo(np.float64).tiny <= self.rho < np.inf:
            raise InputError(f"rho must be a positive number, not {self.rho}")


@dataclass(frozen=True, kw_only=True)
class LandmarkClassifier(_Trained):
    """Weights of free sign on landmarks, h(x) = sum_j beta_j (k(z_j, x) + 1) with margin 1.

    Of one class it is the score, sum_j beta_j k(z_j, x), that has margin 1.

    `alpha`, `labels`, `sv`, `rho` and `objective` are those of a `BinaryClassifier` with the same
    decision function: h = f / rho with weights alpha of sum 1.
    """

    beta: Float64Array  # shape (n_landmarks,)
    landmarks: Int64Array  # positions in `Model.support_vectors`
    primal: float | None  # P of the weights, over all rows, see `ooc_fw.landmarks.span`
    dual: float | None  # D of the best multiple of their dual point; None if it is not certified
    jitter: float  # what was added to the diagonal of the landmarks' kernel matrix
    kind: ClassVar[Kind] = "landmarks"

    def __post_init__(self) -> None:
        self._check(self.landmarks, beta=self.beta, landmarks=self.landmarks)
        if not np.isfinite(self.beta).all():
            raise InputError("beta must be finite numbers")
        for name in ("jitter", "primal", "dual"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < np.inf:
                raise InputError(f"{name} must be a number that is not negative, not {value}")

    @property
    def alpha(self) -> Float64Array:
        """Absolute weights over their sum; 0 where all are 0."""
        weights = np.abs(self.beta)
        return np.asarray(weights / (weights.sum() or 1.0))

    @property
    def labels(self) -> Int8Array:
        """Sign of each weight, +1 for 0."""
        return np.where(self.beta < 0, np.int8(-1), np.int8(1))

    @property
    def sv(self) -> Int64Array:
        """The landmarks."""
        return self.landmarks

    @property
    def rho(self) -> float:
        """1 over the sum of absolute weights; infinite where all are 0, so that h is 0."""
        total = float(np.abs(self.beta).sum())
        return 1 / total if total > 0 else float("inf")

    @property
    def objective(self) -> float | None:
        """The dual."""
        return self.dual


Classifier: TypeAlias = BinaryClassifier | LandmarkClassifier


@dataclass(frozen=True)
class PairSolution:
    """The solution for a pair of classes, of which the `positive` one is larger and is +1."""

    negative: int
    positive: int
    solution: Solution  # in rows of the whole data set; one of several has no support vectors
    stands_in: bool = False  # whether a stream has seen no row of the classes


def pair_classifiers(
    pairs: Sequence[PairSolution], classes: npt.NDArray[Any], C: float
) -> list[BinaryClassifier]:
    """Classifiers of all pairs of `classes`, whose support vectors are `union_of_rows`."""
    rows = union_of_rows(pairs)
    order = np.argsort(rows)
    # A stream has penalties once it has met a weight. In a model all classifiers have them or none.
    weighted = any(pair.solution.penalties is not None for pair in pairs)
    return [
        BinaryClassifier(
            **{name: getattr(pair.solution, name) for name in OF_SOLUTION},
            sv=order[np.searchsorted(rows, pair.solution.rows, sorter=order)],
            positive=classes[pair.positive].item(),
            negative=classes[pair.negative].item(),
            C=np.full(len(pair.solution.rows), C)
            if weighted and pair.solution.penalties is None
            else pair.solution.penalties,
        )
        for pair in pairs
    ]


def landmark_classifiers(
    solution: LandmarkSolution, classes: npt.NDArray[Any], penalties: Float64Array | None
) -> list[LandmarkClassifier]:
    """Classifiers of two classes, or of each class against the rest, on the same landmarks.

    `penalties` are those of all training rows; None where all have C.
    """
    names = class_names(classes, "ovr" if len(classes) > 2 else "ovo")
    measures = {name: getattr(solution, name) for name in _OF_LANDMARKS}
    if penalties is not None:
        penalties = np.where(solution.rows < 0, 1.0, penalties[solution.rows])
    return [
        LandmarkClassifier(
            beta=solution.beta[k],
            landmarks=np.arange(len(solution.rows)),
            rows=solution.rows,
            jitter=solution.jitter,
            positive=positive,
            negative=negative,
            C=penalties,
            **{name: None if of is None else float(of[k]) for name, of in measures.items()},
        )
        for k, (positive, negative) in enumerate(names)
    ]


def class_pairs(n_classes: int) -> list[tuple[int, int]]:
    """All pairs of classes, in the order of their classifiers: (0, 1), (0, 2), ..., (1, 2), ..."""
    return list(combinations(range(n_classes), 2))


def class_names(classes: npt.NDArray[Any], decision: Decision) -> list[tuple[Any, Any]]:
    """The positive and the negative class of each classifier."""
    values = classes.tolist()
    if decision == "ovr":
        return [(value, _REST) for value in values]
    return [(values[larger], values[smaller]) for smaller, larger in class_pairs(len(values))]


def decision_of(classifiers: Sequence[Classifier], n_classes: int) -> Decision:
    """How classifiers of one kind decide between the classes."""
    return "ovr" if n_classes > 2 and classifiers[0].kind == "landmarks" else "ovo"


def class_scores(
    values: Float64Array, n_classes: int, for_negative: Float64Array | None = None
) -> Float64Array:
    """Votes for each class, plus fractions that follow the sums of decision values.

    `values`, (n_rows, n_pairs), are positive for the larger class of a pair; the smaller ones may
    have others. In the result, (n_rows, n_classes), a vote is 1; the sum of the decision values for
    a class, mapped monotonously into (-1/3, 1/3), decides between equal votes.
    """
    negatives = values if for_negative is None else for_negative
    votes = np.zeros((len(values), n_classes))
    sums = np.zeros((len(values), n_classes))
    start = 0
    for smaller in range(n_classes - 1):  # the pairs of a class with all larger ones
        stop = start + n_classes - 1 - smaller
        of_larger, of_smaller = values[:, start:stop], negatives[:, start:stop]
        votes[:, smaller + 1 :] += of_larger > 0
        votes[:, smaller] += np.count_nonzero(of_smaller <= 0, axis=1)
        sums[:, smaller + 1 :] += of_larger
        sums[:, smaller] -= of_smaller.sum(axis=1)
        start = stop
    return np.asarray(votes + sums / (3 * (np.abs(sums) + 1)))


def is_decided(
    values: Float64Array, bound: Float64Array, n_classes: int, decision: Decision = "ovo"
) -> npt.NDArray[np.bool_]:
    """Whether no error within `bound` changes the class that is predicted, shape (n_rows,).

    Decision values and the bounds on their errors have the shape (n_rows, n_classifiers).
    """
    # Scores are rounded, too: two large sums of decision values may differ in their last bits only.
    rounding = 4 * n_classes * np.finfo(np.float64).eps
    bound = bound + rounding * np.abs(values).max(axis=1, keepdims=True)
    if decision == "ovr":
        first, lower, others = values.argmax(axis=1), values - bound, values + bound
        return _is_clear(first, lower, others, rounding)
    scores = class_scores(values, n_classes)
    first = scores.argmax(axis=1)
    # No sign is in doubt, and the first class has a vote more than any other.
    decided = ~(np.abs(values) <= bound).any(axis=1)
    others = scores.copy()
    others[np.arange(len(scores)), first] = -np.inf
    decided &= scores.max(axis=1) > others.max(axis=1) + _CLEAR_SCORE
    rest = np.flatnonzero(~decided)
    if len(rest) > 0:
        values, bound = values[rest], np.broadcast_to(bound, values.shape)[rest]
        lower = class_scores(values - bound, n_classes, values + bound)
        others = class_scores(values + bound, n_classes, values - bound)
        decided[rest] = _is_clear(first[rest], lower, others, rounding)
    return np.asarray(decided)


def _is_clear(
    first: Int64Array, lower: Float64Array, upper: Float64Array, rounding: float
) -> npt.NDArray[np.bool_]:
    """Whether the least score of the first class is above the largest of all others."""
    rows = np.arange(len(first))
    others = upper.copy()
    others[rows, first] = -np.inf
    return np.asarray(lower[rows, first] > others.max(axis=1) + rounding)


def worst_status(statuses: Sequence[Status]) -> Status:
    """The status of all classifiers together: an interrupt, or the first that stopped early."""
    early = [status for status in statuses if not status.reached]
    for status in (Status.INTERRUPTED, Status.STOPPED):
        if status in early:
            return status
    if early:
        return early[0]
    return Status.SAMPLED if Status.SAMPLED in statuses else Status.CONVERGED


def worst_gap(gaps: Iterable[float | None]) -> float | None:
    """The largest of the gaps of all classifiers; None when one is unknown."""
    known = list(gaps)
    return None if None in known else max(gap for gap in known if gap is not None)


def union_of_rows(pairs: Sequence[PairSolution]) -> Int64Array:
    """Rows of the whole data set that support any classifier; of several, increasing."""
    if len(pairs) == 1:
        return pairs[0].solution.rows
    return np.unique(np.concatenate([pair.solution.rows for pair in pairs]))
