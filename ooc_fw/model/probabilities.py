"""Probabilities from decision values.

References
----------
Platt (1999), Probabilistic outputs for support vector machines.
Wu, Lin and Weng (2004), Probability estimates for multi-class classification by pairwise coupling.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ooc_fw.data.rows import Float64Array
from ooc_fw.model.pairs import Decision, class_pairs

_GRADIENT_TOLERANCE = 1e-10  # of the mean loss, which is of the order of 1
_LEAST_SCALE = 1e-300  # of decision values; smaller ones are taken for 0
_SYSTEM_BYTES = 8 << 20  # of the linear systems that are solved at once
CLIP = 1e-7  # pairwise probabilities are at least this far from 0 and 1, as in LIBSVM


def fit_sigmoid(values: Float64Array, positive: npt.NDArray[np.bool_]) -> tuple[float, float]:
    """Find a and b of P(positive | f) = 1 / (1 + exp(a f + b)), by maximum likelihood.

    `values` are finite decision values of rows that the classifier was not trained on, of either
    class or both. Platt's targets t, (n+ + 1) / (n+ + 2) for positive and 1 / (n- + 2) for negative
    rows, give separable rows a finite slope; the mean of -t log p - (1 - t) log(1 - p) is convex.
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
    values: Float64Array, a: Float64Array, b: Float64Array, n_classes: int, decision: Decision
) -> Float64Array:
    """Probability of each class, (n_rows, n_classes), from values and sigmoids of classifiers."""
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
    """Probabilities of classes that agree best with those `of_pairs`, (n_rows, n_classes).

    These, (n_rows, n_pairs), are of the larger class of each pair, given that it is one of the two.
    With r_ij the probability of class i rather than j, p minimises
    sum over i and j of (r_ji p_i - r_ij p_j)^2 subject to sum p = 1: Q p + c e = 0 with
    Q_ii = sum over j of r_ji^2 and Q_ij = -r_ji r_ij. The solution is positive (Wu, Lin and Weng
    2004, theorem 2).
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
