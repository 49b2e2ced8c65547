"""The binary classifiers of pairs of classes: their order, their union, their vote.

The prediction is the class with most votes; the sums of decision values decide between equal votes.
Two classes have one binary classifier.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from ooc_fw.data.rows import Float64Array, Int64Array
from ooc_fw.solver.state import Solution, Status


@dataclass(frozen=True)
class PairSolution:
    """The solution for one pair of classes.

    Parameters
    ----------
    negative, positive : int
        Places of the two classes; the second one is larger and is +1.
    solution : Solution
        Its `rows` are rows of the whole data set. One of several has no support vectors itself.
    """

    negative: int
    positive: int
    solution: Solution


def class_pairs(n_classes: int) -> list[tuple[int, int]]:
    """All pairs of classes, in the order of their classifiers: (0, 1), (0, 2), ..., (1, 2), ..."""
    return list(combinations(range(n_classes), 2))


def class_scores(values: Float64Array, n_classes: int) -> Float64Array:
    """Votes for each class, plus fractions that follow the sums of decision values.

    Parameters
    ----------
    values : ndarray of float64, shape (n_rows, n_pairs)
        Decision values; positive is for the larger class of a pair.

    Returns
    -------
    ndarray of float64, shape (n_rows, n_classes)
        A vote is 1. The sum of the decision values for a class, mapped monotonously into (-1/3,
        1/3), decides between equal votes.
    """
    return _scores(values, values, n_classes)


def _scores(for_positive: Float64Array, for_negative: Float64Array, n_classes: int) -> Float64Array:
    """`class_scores` with other decision values for the positive than for the negative classes."""
    votes = np.zeros((len(for_positive), n_classes))
    sums = np.zeros((len(for_positive), n_classes))
    for k, (negative, positive) in enumerate(class_pairs(n_classes)):
        votes[:, positive] += for_positive[:, k] > 0
        votes[:, negative] += for_negative[:, k] <= 0
        sums[:, positive] += for_positive[:, k]
        sums[:, negative] -= for_negative[:, k]
    return np.asarray(votes + sums / (3 * (np.abs(sums) + 1)))


def is_decided(values: Float64Array, bound: Float64Array, n_classes: int) -> npt.NDArray[np.bool_]:
    """Whether no error within `bound` changes the class of largest score, shape (n_rows,).

    `values` are the decision values and `bound` the bounds on their errors, both of shape
    (n_rows, n_pairs).
    """
    rows = np.arange(len(values))
    # Scores are rounded, too: large sums of decision values differ in their last bits only.
    rounding = 4 * n_classes * np.finfo(np.float64).eps
    bound = bound + rounding * np.abs(values).max(axis=1, keepdims=True)
    first = class_scores(values, n_classes).argmax(axis=1)
    least = _scores(values - bound, values + bound, n_classes)[rows, first]
    others = _scores(values + bound, values - bound, n_classes)
    others[rows, first] = -np.inf
    return np.asarray(least > others.max(axis=1) + rounding)


def worst_status(statuses: Sequence[Status]) -> Status:
    """The status of all classifiers together: an interrupt, or the first that stopped early."""
    early = [status for status in statuses if not status.reached]
    if Status.INTERRUPTED in early:
        return Status.INTERRUPTED
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
