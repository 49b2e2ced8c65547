"""Binary classifiers of several classes: their order, the union of their rows, and their vote.

Exact models have one for each pair of classes ("ovo"): most votes win, and the sums of decision
values decide between equal votes. Landmark models have one for each class against the rest ("ovr"):
the largest decision value wins. Two classes have one binary classifier in both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from ooc_fw.data.rows import Float64Array, Int64Array
from ooc_fw.solver.state import Solution, Status

Decision: TypeAlias = Literal["ovo", "ovr"]

REST = -1  # place of the negative "class" of one class against the rest
_CLEAR_SCORE = 0.7  # difference of scores above 2/3, which sums alone cannot make


@dataclass(frozen=True)
class PairSolution:
    """The solution for a pair of classes, of which the `positive` one is larger and is +1."""

    negative: int
    positive: int
    solution: Solution  # in rows of the whole data set; one of several has no support vectors
    stands_in: bool = False  # whether a stream has seen no row of the classes


def class_pairs(n_classes: int) -> list[tuple[int, int]]:
    """All pairs of classes, in the order of their classifiers: (0, 1), (0, 2), ..., (1, 2), ..."""
    return list(combinations(range(n_classes), 2))


def count_classifiers(n_classes: int, decision: Decision) -> int:
    """Number of binary classifiers of so many classes."""
    return n_classes if decision == "ovr" else n_classes * (n_classes - 1) // 2


def class_sides(n_classes: int, decision: Decision) -> Int64Array:
    """Places of the negative and the positive class of each classifier, (n_classifiers, 2)."""
    if decision == "ovo":
        return np.array(class_pairs(n_classes), dtype=np.int64).reshape(-1, 2)
    return np.column_stack([np.full(n_classes, REST), np.arange(n_classes)])


def decision_of(n_classes: int, *, landmarks: bool) -> Decision:
    """How the classifiers of a model decide between its classes."""
    return "ovr" if n_classes > 2 and landmarks else "ovo"


def side_names(classes: npt.NDArray[Any], decision: Decision) -> list[tuple[Any, Any]]:
    """Values of the negative and the positive class of each classifier."""
    values = [*classes.tolist(), "rest"]  # which is at the place `REST`
    return [(values[low], values[high]) for low, high in class_sides(len(classes), decision)]


def union_of_rows(pairs: Sequence[PairSolution]) -> Int64Array:
    """Rows of the whole data set that support any classifier; of several, increasing."""
    if len(pairs) == 1:
        return pairs[0].solution.rows
    return np.unique(np.concatenate([pair.solution.rows for pair in pairs]))


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
        of_larger = values[:, start:stop]
        of_smaller = negatives[:, start:stop]
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
        return _is_clear(values.argmax(axis=1), values - bound, values + bound, rounding)
    scores = class_scores(values, n_classes)
    first = scores.argmax(axis=1)
    # No sign is in doubt, and the first class has a vote more than any other.
    is_sure = ~(np.abs(values) <= bound).any(axis=1)
    decided = is_sure & _is_clear(first, scores, scores, _CLEAR_SCORE)
    rest = np.flatnonzero(~decided)
    if len(rest) > 0:
        values = values[rest]
        bound = np.broadcast_to(bound, (len(decided), values.shape[1]))[rest]
        lower = class_scores(values - bound, n_classes, values + bound)
        upper = class_scores(values + bound, n_classes, values - bound)
        decided[rest] = _is_clear(first[rest], lower, upper, rounding)
    return decided


def _is_clear(
    first: Int64Array, lower: Float64Array, upper: Float64Array, least: float
) -> npt.NDArray[np.bool_]:
    """Whether the lower score of the first class is above the upper ones of others by `least`."""
    rows = np.arange(len(first))
    others = upper.copy()
    others[rows, first] = -np.inf
    return np.asarray(lower[rows, first] > others.max(axis=1) + least)
