"""Bounds on the objectives of weights on landmarks: in their span, and for the exact kernel.

If the landmarks of a regression are all rows, it has a gap to the optimum of the exact kernel. The
dual point beta_i = C_i xi_i of the problem in the span is also a dual point of the exact problem.
There |v|^2 = sum_ij beta_i y_i beta_j y_j (k(x_i, x_j) + 1) takes a kernel value for each pair of
the s rows inside the margin, s^2 / 2 in all. The best multiple of beta has the dual objective
D = (sum beta)^2 / (2 (|v|^2 + sum beta_i^2 / C_i)), and no weights at all have P < D.
"""

from __future__ import annotations

from itertools import combinations_with_replacement
from typing import NamedTuple

import numpy as np

from ooc_fw.data.parallel import row_slices
from ooc_fw.data.rows import Float32Array, Float64Array, Int64Array
from ooc_fw.data.sources import RowSource
from ooc_fw.kernels.engine import Engine
from ooc_fw.kernels.functions import FLOAT64_UNIT
from ooc_fw.landmarks.columns import AnySpan
from ooc_fw.landmarks.newton import Point
from ooc_fw.landmarks.readings import SpanProblem, dual_terms, slacks


def certify_point(
    span: AnySpan, point: Point, problem: SpanProblem
) -> tuple[Float64Array, Float64Array]:
    """Upper bounds on P and lower bounds on D* for exact kernel values, each of shape (k,).

    The gradient of the point comes from float64 kernel values of all rows. Targets and epsilon may
    be rounded quotients of float64 numbers: the bounds hold for the exact quotients.

    Notes
    -----
    Let e be the largest error of a kernel value and of a sum. A decision value errs by at most
    delta = |b|_1 e, and so do slacks. P errs by delta sum C_i xi_i + delta^2 / 2 sum C_i, and each
    entry of u by e sum beta. G^-1 multiplies |.|^2 by at most 1 / jitter. Every beta >= 0 is a
    point of the dual, so that only summation adds an error to its linear part.

    The slack 1 - y_i h(x_i) of a label is rounded in proportion to itself. The slack of a target,
    |y_i - h(x_i)| - epsilon, is not, since the two terms may nearly cancel. With the unit roundoff
    u, y_i errs by 2 u |y_i| (a difference and a quotient), the residual by u (|y_i| + |h(x_i)|),
    and epsilon by u epsilon. The sum is less than tau_i + u |b|_1 max k for tau_i =
    4 u (|y_i| + epsilon). It adds sum beta_i tau_i to the error of P, and takes delta + max tau in
    place of delta in the square: a row that seems to have no slack has at most that. The linear
    part of the dual errs by 3 u sum beta_i (|y_i| + epsilon), which the bound on its summation has.
    """
    assert problem.past is None, "nothing is known of rows that are gone"
    gradient = point.gradient
    n = len(span)
    dual_sum, square, beta_sum, linear = gradient.terms
    largest = max(span.landmarks.largest + span.jitter, gradient.largest)
    summing = (gradient.depth + 16) * FLOAT64_UNIT  # relative error of each sum
    error = max(gradient.error, span.landmarks.error) + 4 * (n + 4) * FLOAT64_UNIT * largest
    size = span.sizes(point.b)
    delta = size * error
    slacks = delta * beta_sum
    if problem.epsilon is not None:
        delta = delta + size * FLOAT64_UNIT * largest
        of_targets = 4 * FLOAT64_UNIT
        slacks = delta * beta_sum + of_targets * linear
        delta = delta + of_targets * (np.abs(problem.targets).max(axis=0) + problem.epsilon)
    slacks = slacks + delta**2 / 2 * problem.penalties.sum()
    primal = (point.primal + size**2 * error + slacks) * (1 + summing)

    u_error = (error + summing * largest) * beta_sum * span.stretch
    v = np.sqrt(span.inverse_norm_bound(gradient.u)) + u_error
    return primal, _dual(dual_sum - summing * linear, v**2 + square, summing)


def _dual(total: Float64Array, squares: Float64Array, summing: float) -> Float64Array:
    """Dual objective of the best multiple of beta; its sums have the relative error `summing`."""
    with np.errstate(invalid="ignore"):  # 0 / 0 if no row is inside the margin
        dual = np.maximum(0.0, total) ** 2 / (2 * squares) * (1 - 8 * summing)
    return np.nan_to_num(dual)


_PART_ROWS = 8192  # a task computes the kernel values between two parts of so many rows


class _Part(NamedTuple):
    """Some of the rows inside the margin of some classifier."""

    rows: Int64Array  # (n,), increasing
    beta: Float64Array  # (n, k): beta_i s_i for each classifier, see `slacks`


def _pair_sums(
    source: RowSource, first: _Part, second: _Part, engine: Engine
) -> tuple[Float64Array, float]:
    """Upper bounds for a pair of parts: on its share of |v|^2, and on its kernel values.

    The share, shape (k,), has no biases. A pair of different parts counts twice.
    """
    x = engine.prepare(source.take(first.rows), exact=True)
    same = np.array_equal(first.rows, second.rows)
    z = x if same else engine.prepare(source.take(second.rows), exact=True)
    sizes = np.abs(second.beta).sum(axis=0)
    # A weighted mean of kernel values errs less if it is small, see `Engine.error_bound`.
    shares = np.divide(np.abs(second.beta), sizes, out=np.zeros_like(second.beta), where=sizes > 0)
    sums = engine.weighted_sum(x, z, np.hstack([second.beta, shares]).T)
    products, means = np.split(sums, 2, axis=1)
    errors = np.abs(first.beta) * engine.error_bound(x, z, means) * sizes
    norm = (products * first.beta + errors).sum(axis=0)
    largest = max(float(engine.kernel.diagonal(operand.norms).max()) for operand in (x, z))
    return norm * (1.0 if same else 2.0), largest


def exact_dual(
    problem: SpanProblem,
    decisions: Float32Array,
    engine: Engine,
) -> Float64Array:
    """Lower bounds on the least P for the exact kernel, shape (k,), errors included.

    `decisions` are h(x_i), shape (n_rows, k). All numbers lead to a point of the dual.
    """
    inside = np.flatnonzero(problem.inside(decisions).any(axis=1))
    terms = np.zeros((4, problem.n_classifiers))
    signed = np.zeros(problem.n_classifiers)
    parts = []
    for start, stop in row_slices(len(inside), _PART_ROWS):
        rows = inside[start:stop]
        targets = problem.targets[rows]
        values = decisions[rows].astype(np.float64)
        slack, signs = slacks(targets, values, problem.epsilon)
        beta = problem.penalties[rows, None] * slack
        terms += dual_terms(beta, slack, signs, targets, problem.epsilon)
        signed += (beta * signs).sum(axis=0)
        parts.append(_Part(rows, beta * signs))
    total, square, size, linear = terms
    norm = np.zeros_like(total)
    largest = 1.0
    pairs = list(combinations_with_replacement(parts, 2))
    for first, second in pairs:
        of_pair, largest_of_pair = _pair_sums(problem.source, first, second, engine)
        norm += of_pair
        largest = max(largest, largest_of_pair)
    problem.source.check_unchanged()
    # A term of a sum goes through at most one addition for each row and each part.
    summing = (problem.n_rows + len(pairs) + 16) * FLOAT64_UNIT
    norm += problem.bias * signed**2 + summing * (2 + 2 * largest) * size**2
    return _dual(total - summing * linear, norm + square, summing)
