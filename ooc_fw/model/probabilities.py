"""Probabilities from decision values: sigmoids of binary classifiers, made one for all classes.

References
----------
Platt (1999), Probabilistic outputs for support vector machines.
Lin, Lin and Weng (2007), A note on Platt's probabilistic outputs for support vector machines.
Wu, Lin and Weng (2004), Probability estimates for multi-class classification by pairwise coupling.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_fw.data.rows import Float64Array, Int64Array
from ooc_fw.model.pairs import Decision, class_pairs

# Newton's method for a sigmoid, which takes about ten steps.
_MAX_STEPS = 100
_GRADIENT_TOLERANCE = 1e-10  # of the mean loss, which is of the order of 1
_LEAST_SCALE = 1e-300  # of values that are not all 0 but for underflow
_RIDGE = 1e-12  # keeps the Hessian positive definite where all values are equal
_SHORTEST_STEP = 1e-10  # share of a Newton step, after which float64 can find nothing better
_SUFFICIENT_DECREASE = 1e-4  # share of the decrease that the slope promises

CLIP = 1e-7  # pairwise probabilities are at least this far from 0 and 1, as in LIBSVM
_N_BINS = 10

PART_BYTES = 8 << 20
"""Bytes of the linear systems that are solved at once."""


def fit_sigmoid(values: Float64Array, positive: npt.NDArray[np.bool_]) -> tuple[float, float]:
    """Find a and b of P(positive | f) = 1 / (1 + exp(a f + b)), by maximum likelihood.

    `values` are finite decision values of rows that the classifier was not trained on, of either
    class or both. a is negative unless the classifier is worse than chance on these rows.

    Notes
    -----
    Minimises the mean of -t log p - (1 - t) log(1 - p), which is convex, by Newton's method with
    backtracking (Lin, Lin and Weng 2007, algorithm 1, with a tighter stopping test). The targets
    are Platt's, (n+ + 1) / (n+ + 2) for positive and 1 / (n- + 2) for negative rows, so that
    separable rows have a finite slope.

    Examples
    --------
    >>> a, b = fit_sigmoid(np.array([-2.0, -1.0, 1.0, 2.0]), np.array([False, True, False, True]))
    >>> sigmoid(np.array([-2.0, 0.0, 2.0]), a, b).round(3)
    array([0.4, 0.5, 0.6])
    """
    n_positive = int(positive.sum())
    n_negative = len(positive) - n_positive
    targets = np.where(positive, (n_positive + 1) / (n_positive + 2), 1 / (n_negative + 2))
    # The tolerances suit values of the order of 1.
    scale = float(np.abs(values).max(initial=0))
    if scale < _LEAST_SCALE:
        scale = 1.0
    scaled = values / scale
    a, b = 0.0, float(np.log((n_negative + 1) / (n_positive + 1)))
    loss = _mean_loss(scaled, targets, a, b)
    for _ in range(_MAX_STEPS):
        p = sigmoid(scaled, a, b)
        d1, d2 = targets - p, p * (1 - p)
        gradient_a, gradient_b = (scaled * d1).mean(), d1.mean()
        if max(abs(gradient_a), abs(gradient_b)) < _GRADIENT_TOLERANCE:
            break
        h_aa = (scaled * scaled * d2).mean() + _RIDGE
        h_ab = (scaled * d2).mean()
        h_bb = d2.mean() + _RIDGE
        determinant = h_aa * h_bb - h_ab * h_ab
        step_a = -(h_bb * gradient_a - h_ab * gradient_b) / determinant
        step_b = -(h_aa * gradient_b - h_ab * gradient_a) / determinant
        slope = gradient_a * step_a + gradient_b * step_b
        length = 1.0
        while length >= _SHORTEST_STEP:
            tried = a + length * step_a, b + length * step_b
            found = _mean_loss(scaled, targets, *tried)
            if found < loss + _SUFFICIENT_DECREASE * length * slope:
                break
            length /= 2
        else:
            break
        a, b, loss = *tried, found
    return float(a / scale), float(b)


def _mean_loss(values: Float64Array, targets: Float64Array, a: float, b: float) -> float:
    """Mean of -t log p - (1 - t) log(1 - p), without overflow: log(1 + exp(z)) - (1 - t) z."""
    z = a * values + b
    return float((np.logaddexp(0, z) - (1 - targets) * z).mean())


def sigmoid(values: Float64Array, a: float, b: float) -> Float64Array:
    """1 / (1 + exp(a f + b)) for each decision value f, without overflow."""
    z = a * values + b
    small = np.exp(-np.abs(z))
    return np.asarray(np.where(z >= 0, small, 1.0) / (1 + small))


def class_probabilities(
    values: Float64Array,
    sigmoids: Sequence[tuple[float, float]],
    n_classes: int,
    decision: Decision = "ovo",
) -> Float64Array:
    """Probability of each class, shape (n_rows, n_classes); each row sums to 1.

    `values` are decision values, shape (n_rows,) or (n_rows, n_classifiers); `sigmoids` are the a
    and b of each classifier. Those of one class against the rest are divided by their sum.
    """
    columns = values.reshape(len(values), -1).T
    if decision == "ovr":
        logs = np.stack(
            [-np.logaddexp(0, a * f + b) for f, (a, b) in zip(columns, sigmoids, strict=True)],
            axis=1,
        )
        # Over the largest, so that not all of them can vanish.
        shares = np.exp(logs - logs.max(axis=1, keepdims=True))
        return np.asarray(shares / shares.sum(axis=1, keepdims=True))
    of_pairs = [sigmoid(f, a, b) for f, (a, b) in zip(columns, sigmoids, strict=True)]
    if n_classes == 2:
        # Not 1 - p, which would be 0 where the other class is almost certain.
        a, b = sigmoids[0]
        return np.stack([sigmoid(columns[0], -a, -b), of_pairs[0]], axis=1)
    return couple(np.stack(of_pairs, axis=1), n_classes)


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
    step = max(1, PART_BYTES // (8 * (n_classes + 1) ** 2))
    result = np.empty((len(of_pairs), n_classes))
    for start in range(0, len(of_pairs), step):
        part = slice(start, start + step)
        result[part] = _couple_part(np.clip(of_pairs[part], CLIP, 1 - CLIP), n_classes)
    return result


def _couple_part(of_pairs: Float64Array, n_classes: int) -> Float64Array:
    n = len(of_pairs)
    system = np.zeros((n, n_classes + 1, n_classes + 1))
    for r, (i, j) in zip(of_pairs.T, class_pairs(n_classes), strict=True):
        # r is the probability of j rather than i.
        system[:, i, i] += r * r
        system[:, j, j] += (1 - r) * (1 - r)
        system[:, i, j] = system[:, j, i] = -r * (1 - r)
    system[:, :-1, -1] = system[:, -1, :-1] = 1
    right = np.zeros((n, n_classes + 1, 1))
    right[:, -1] = 1
    found = np.linalg.solve(system, right)[:, :-1, 0]
    found = np.maximum(found, 0)  # only rounding makes it negative
    return np.asarray(found / found.sum(axis=1, keepdims=True))


class Reliability:
    """Brier score and reliability of probabilities, block by block.

    Notes
    -----
    For two classes the Brier score is the mean of (p - 1)^2 over positive and p^2 over negative
    rows, p being the probability of the positive class, and bins are of p. For more it is the mean
    of the sum over classes of (p_k - [row is of class k])^2, at most 2, and bins are of the largest
    probability of each row, compared with how often that class is right.
    """

    def __init__(self, n_classes: int) -> None:
        self._n_classes, self._n_rows, self._sum = n_classes, 0, 0.0
        self._bins = np.zeros((3, _N_BINS))  # rows, sum of probabilities, rows that were right

    def add(self, probabilities: Float64Array, codes: Int64Array) -> None:
        """Add rows: their probabilities, shape (n_rows, n_classes), and places of their classes.

        A row that is of none of the classes has the place -1.
        """
        truth = codes[:, None] == np.arange(self._n_classes)
        if self._n_classes == 2:
            p, right = probabilities[:, 1], truth[:, 1]
            self._sum += float(((p - right) ** 2).sum())
        else:
            p, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == codes
            self._sum += float(((probabilities - truth) ** 2).sum())
        self._n_rows += len(codes)
        bins = np.minimum((p * _N_BINS).astype(np.int64), _N_BINS - 1)
        self._bins += [np.bincount(bins, weights, _N_BINS) for weights in (None, p, right)]

    def measures(self) -> dict[str, Any]:
        """``brier_score``, and for each bin of ``reliability`` rows, mean probability and share."""
        return {
            "brier_score": self._sum / self._n_rows,
            "reliability": [
                {
                    "from": k / _N_BINS,
                    "to": (k + 1) / _N_BINS,
                    "rows": int(count),
                    "mean_probability": float(expected / count) if count else None,
                    "share": float(right / count) if count else None,
                }
                for k, (count, expected, right) in enumerate(self._bins.T)
            ],
        }
