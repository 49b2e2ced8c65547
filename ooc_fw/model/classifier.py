"""The record of one binary classifier, of which a model has one for each pair of classes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ooc_fw.data.rows import Float64Array, Int8Array, Int64Array
from ooc_fw.problem import WEIGHT_SUM_TOLERANCE
from ooc_fw.system.errors import InputError


@dataclass(frozen=True)
class BinaryClassifier:
    """Weights on some of the model's support vectors, and what training said of them.

    Parameters
    ----------
    alpha : ndarray of float64, shape (n_support,)
        Weights on the simplex.
    labels : ndarray of int8, shape (n_support,)
        -1 or +1 for each weight.
    sv : ndarray of int64, shape (n_support,)
        Positions in `Model.support_vectors`.
    rows : ndarray of int64, shape (n_support,)
        Row numbers in the training data.
    rho : float
        Margin; decision values are divided by it.
    objective : float
        Value of the dual, rho / 2.
    certified_gap, sampled_gap : float or None
        Relative gaps over all rows and over the rows last drawn; None when unknown.
    positive, negative : float or str
        Class values of +1 and -1.
    C : ndarray of float64, shape (n_support,), or None
        Penalty of each row; None where all have that of the model.
    sigmoid_a, sigmoid_b : float or None
        P(positive | f) = 1 / (1 + exp(a f + b)) for the decision value f; None without
        probabilities.
    """

    alpha: Float64Array
    labels: Int8Array
    sv: Int64Array
    rows: Int64Array
    rho: float
    objective: float
    certified_gap: float | None
    sampled_gap: float | None
    positive: float | str
    negative: float | str
    C: Float64Array | None = None
    sigmoid_a: float | None = None
    sigmoid_b: float | None = None

    def __post_init__(self) -> None:
        sizes = {len(array) for array in (self.alpha, self.labels, self.sv, self.rows)}
        if self.C is not None:
            sizes.add(len(self.C))
            if not ((self.C > 0) & (self.C < np.inf)).all():
                raise InputError("C must be positive numbers")
        if len(sizes) != 1 or 0 in sizes:
            raise InputError(
                f"alpha, labels, sv, rows and C must be of one length above 0, not {sorted(sizes)}"
            )
        if not (self.alpha >= 0).all() or abs(self.alpha.sum() - 1) > WEIGHT_SUM_TOLERANCE:
            raise InputError(f"alpha must be non-negative with sum 1, not {self.alpha.sum()}")
        if not (np.abs(self.labels) == 1).all():
            raise InputError("labels must be -1 or +1")
        if not 0 < self.rho < np.inf:
            raise InputError(f"rho must be a positive number, not {self.rho}")
        if not all(np.isfinite(x) for x in (self.sigmoid_a, self.sigmoid_b) if x is not None):
            raise InputError(f"no sigmoid has a {self.sigmoid_a} and b {self.sigmoid_b}")
