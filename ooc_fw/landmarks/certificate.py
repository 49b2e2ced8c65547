"""Bounds on both objectives of a point that was computed from float64 kernel values."""

from __future__ import annotations

import numpy as np

from ooc_fw.data.rows import Float64Array
from ooc_fw.kernels.functions import FLOAT64_UNIT
from ooc_fw.landmarks.newton import Point
from ooc_fw.landmarks.span import Span


def certify_point(
    span: Span, point: Point, penalties: Float64Array
) -> tuple[Float64Array, Float64Array]:
    """Upper bounds on P and lower bounds on D* at exact kernel values, each of shape (k,).

    Notes
    -----
    A decision value errs by no more than delta = |b|_1 e, e the largest error of a kernel value and
    of a sum. So slacks err by delta, P by delta sum C_i xi_i + delta^2 / 2 sum C_i, and each entry
    of u by e sum beta; G^-1 multiplies |.|^2 by 1 / jitter at most. Any beta >= 0 is a point of the
    dual, so that its linear part errs by summation only.
    """
    gradient, n = point.gradient, len(span)
    largest = max(span.landmarks.largest + span.jitter, gradient.largest)
    summing = (gradient.depth + 16) * FLOAT64_UNIT  # relative error of any of the sums
    error = max(gradient.error, span.landmarks.error) + 4 * (n + 4) * FLOAT64_UNIT * largest
    size = np.abs(point.b).sum(axis=1)
    delta = size * error
    slacks = delta * gradient.size + delta**2 / 2 * penalties.sum()
    primal = (point.primal + size**2 * error + slacks) * (1 + summing)

    u_error = (error + summing * largest) * gradient.size * np.sqrt(n / span.jitter)
    v = np.sqrt(span.inverse_norm_bound(gradient.u)) + u_error
    with np.errstate(invalid="ignore"):  # 0 / 0 where no row is inside the margin
        total = np.maximum(0.0, gradient.total - summing * gradient.linear)
        dual = total**2 / (2 * (v**2 + gradient.square)) * (1 - 8 * summing)
    return primal, np.nan_to_num(dual)
