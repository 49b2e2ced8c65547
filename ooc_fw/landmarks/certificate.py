"""Bounds on both objectives of a point that was computed from float64 kernel values."""

from __future__ import annotations

import numpy as np

from ooc_fw.data.rows import Float64Array
from ooc_fw.kernels.functions import FLOAT64_UNIT
from ooc_fw.landmarks.newton import Point
from ooc_fw.landmarks.passes import SpanProblem
from ooc_fw.landmarks.span import Span

_TARGET_UNITS = 4  # rounding of a slack in units of |y_i| + epsilon, see `certify_point`


def certify_point(
    span: Span, point: Point, problem: SpanProblem
) -> tuple[Float64Array, Float64Array]:
    """Upper bounds on P and lower bounds on D* at exact kernel values, each of shape (k,).

    Parameters
    ----------
    span : Span
        The landmarks.
    point : Point
        Weights, with a gradient from float64 kernel values of all rows.
    problem : SpanProblem
        What the gradient is of. Targets and epsilon may be quotients of float64 numbers that are
        rounded: the bounds hold for the quotients themselves.

    Notes
    -----
    A decision value errs by no more than delta = |b|_1 e, e the largest error of a kernel value and
    of a sum. So slacks err by delta, P by delta sum C_i xi_i + delta^2 / 2 sum C_i, and each entry
    of u by e sum beta; G^-1 multiplies |.|^2 by 1 / jitter at most. Any beta >= 0 is a point of the
    dual, so that its linear part errs by summation only.

    The slack 1 - y_i h(x_i) of a label is rounded in proportion to itself. That of a target,
    |y_i - h(x_i)| - epsilon, is not where the two nearly cancel. With the unit roundoff u, y_i errs
    by 2 u |y_i| (a difference and a quotient), the residual by u (|y_i| + |h(x_i)|), and epsilon by
    u epsilon: together by less than tau_i + u |b|_1 max k, tau_i = 4 u (|y_i| + epsilon). In P that
    is sum beta_i tau_i more, and sum C_i (delta + max tau)^2 / 2 in place of the square of delta:
    rows that seem to have no slack have that much at most. The linear part of the dual errs by
    3 u sum beta_i (|y_i| + epsilon), which is in the bound on its summation.
    """
    gradient, n = point.gradient, len(span)
    largest = max(span.landmarks.largest + span.jitter, gradient.largest)
    summing = (gradient.depth + 16) * FLOAT64_UNIT  # relative error of any of the sums
    error = max(gradient.error, span.landmarks.error) + 4 * (n + 4) * FLOAT64_UNIT * largest
    size = np.abs(point.b).sum(axis=1)
    delta = size * error
    slacks = delta * gradient.size
    if problem.epsilon is not None:
        delta = delta + size * FLOAT64_UNIT * largest
        of_targets = _TARGET_UNITS * FLOAT64_UNIT
        slacks = delta * gradient.size + of_targets * gradient.linear
        delta = delta + of_targets * (np.abs(problem.targets).max(axis=0) + problem.epsilon)
    slacks = slacks + delta**2 / 2 * problem.penalties.sum()
    primal = (point.primal + size**2 * error + slacks) * (1 + summing)

    u_error = (error + summing * largest) * gradient.size * np.sqrt(n / span.jitter)
    v = np.sqrt(span.inverse_norm_bound(gradient.u)) + u_error
    with np.errstate(invalid="ignore"):  # 0 / 0 where no row is inside the margin
        total = np.maximum(0.0, gradient.total - summing * gradient.linear)
        dual = total**2 / (2 * (v**2 + gradient.square)) * (1 - 8 * summing)
    return primal, np.nan_to_num(dual)
