"""The L2-SVM dual: its matrix, gaps and stopping tests.

Rows x_i with labels y_i in {-1, +1}, a kernel k and penalties C_i, all of them C unless rows have
weights. We minimise over the unit simplex

    f(alpha) = 1/2 alpha' Q alpha,   Q_ij = y_i y_j (k(x_i, x_j) + 1) + [i = j] / C_i,

the dual of  min 1/2 (|w|^2 + b^2 + sum C_i xi_i^2) - rho
subject to  y_i (w.phi(x_i) + b) >= rho - xi_i.  With the gradient g = Q alpha
and rho = alpha' g = 2 f:

    w = sum alpha_i y_i phi(x_i),   b = sum alpha_i y_i,   xi_i = alpha_i / C_i,
    h(x) = sum alpha_i y_i (k(x_i, x) + 1)   is the decision function; h / rho has margin 1.

Two equal rows with penalties C_1 and C_2 have the same slack, hence are one row with C_1 + C_2: a
weight of a row, by which its penalty is multiplied, counts how often the row is there.

The duality gap is D = rho - min_i g_i >= f(alpha) - min f. The *relative* gap D / rho is the worst
margin violation on the scale where the margin is 1. (Papers that maximise use -f.)

Owns these formulas. Knows nothing of files, kernels or the order in which steps are taken.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ooc_fw.errors import InputError


def relative_gap(rho: float, least_gradient: float) -> float:
    """Duality gap over rho: 1 - min g / rho, never below 0."""
    return max(0.0, 1.0 - least_gradient / rho)


def pair_gap(largest_support_gradient: float, least_gradient: float, rho: float) -> float:
    """(max g over the support - min g) / rho: the two-sided test of LIBSVM on our scale."""
    return max(0.0, (largest_support_gradient - least_gradient) / rho)


@dataclass(frozen=True)
class StoppingTest:
    """Translates a tolerance in the unit of `kind` into a bound on the relative gap.

    Parameters
    ----------
    kind : {"relative", "absolute", "meb"}
        "relative": D / rho <= tol. "absolute": D <= tol, the test of the PARTAN and randomization
        papers. "meb": 2 D <= (2 tol + tol^2)(Delta^2 - rho), the (1 + tol)-ball of the
        MEB paper (algorithms 2 and 3), where Delta^2 = k(x, x) + 1 + 1/C must not depend on x.
    tol : float
        Tolerance.
    diagonal : float or None
        Delta^2, None where it is not constant.

    Raises
    ------
    InputError
        "meb" without a constant diagonal.
    """

    kind: str
    tol: float
    diagonal: float | None

    def __post_init__(self) -> None:
        if self.kind == "meb" and self.diagonal is None:
            raise InputError(
                "stopping 'meb' needs a kernel whose k(x, x) is constant (rbf or laplacian), and "
                "one penalty for all rows; use stopping 'relative'"
            )

    def relative_tolerance(self, rho: float) -> float:
        """Largest relative gap that passes at this `rho`."""
        if self.kind == "relative":
            return self.tol
        if self.kind == "absolute":
            return self.tol / rho
        assert self.diagonal is not None
        return (self.tol + self.tol**2 / 2) * (self.diagonal - rho) / rho

    def passes(self, rho: float, gap: float) -> bool:
        """Whether a relative gap is small enough; False for NaN."""
        return math.isfinite(gap) and gap <= self.relative_tolerance(rho)
