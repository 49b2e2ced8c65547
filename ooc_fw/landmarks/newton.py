"""Newton's method for the primal in the span of the landmarks.

A step solves (G + H) d = u - Gb, where H = sum C_i k(x_i) k(x_i)' over the rows inside the margin,
by conjugate gradients. Their preconditioner is the same matrix over a sample of the rows, which
follows the rows inside the margin from step to step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.linalg import cho_solve

from ooc_fw.data.rows import AnyArray, Float32Array, Float64Array, Int64Array, Rows, take_rows
from ooc_fw.landmarks.passes import BoolArray, Gradient, Passes, SpanProblem, add_to_hessian
from ooc_fw.landmarks.span import Span, cholesky

_MOST_PRODUCTS = 50  # of the Hessian in one Newton step
_RESIDUALS = 0.02, 0.1  # limits of the relative residual that ends conjugate gradients
_HALVINGS = 30  # of the interval in a line search
_LONGEST = 2.0  # step of a line search, in Newton steps
_NEAR = 0.5  # distance of the best step from 1 above which another gradient is worth its pass


@dataclass(frozen=True)
class Point:
    """Weights, their gradient, and the objectives; arrays of shape (k,) but for the first three."""

    b: Float64Array  # (k, N)
    gradient: Gradient
    residual: Float64Array  # (k, N): u - Gb
    slope: Float64Array  # (k, N): Gb
    primal: Float64Array
    dual: Float64Array  # of the best multiple of beta

    @property
    def gap(self) -> Float64Array:
        """(P - D*) / P of each classifier."""
        return (self.primal - self.dual) / self.primal


def evaluate(span: Span, passes: Passes, b: Float64Array, *, exact: bool = False) -> Point:
    """Pass over all rows at weights `b`."""
    gradient, slope = passes.gradient(b, exact=exact), span.times(b)
    primal = 0.5 * ((b * slope).sum(axis=1) + gradient.square)
    with np.errstate(invalid="ignore"):  # 0 / 0 where no row is inside the margin
        dual = gradient.total**2 / (2 * (span.inverse_norm(gradient.u) + gradient.square))
    return Point(b, gradient, gradient.u - slope, slope, primal, np.nan_to_num(dual))


class Preconditioner:
    """Solves with G + H over a sample of the rows, each with a factor of its penalty.

    Parameters
    ----------
    span : Span
        The landmarks.
    rows : Rows
        The sample.
    signs : ndarray of int8, shape (n, k)
        Labels of the sample.
    penalties : ndarray of float64, shape (n,)
        Penalties of the sample.
    landmark_places : ndarray of int64
        Where in the sample the landmarks are. They stand for themselves; other rows stand for as
        many as the sample is a part of.
    """

    def __init__(
        self, span: Span, rows: Rows, problem: SpanProblem, landmark_places: Int64Array
    ) -> None:
        self._span, self._rows, self._problem = span, rows, problem
        self._places = landmark_places
        k, n = problem.n_classifiers, len(span)
        self._hessians = np.zeros((k, n, n)).transpose(0, 2, 1)  # in Fortran order
        self._factors = np.zeros(problem.signs.shape)
        self._inverses: list[Float64Array] = []
        self._multiple = 1.0

    def follow(self, decisions: Float32Array, multiple: float) -> None:
        """Take the rows of the sample inside the margin at these `decisions`, shape (n, k).

        Every other row of the sample stands for `multiple` rows.
        """
        problem = self._problem
        if multiple != self._multiple:
            self._hessians[...] = 0.0
            self._factors[...] = 0.0
            self._multiple = multiple
        weights = problem.penalties * multiple
        weights[self._places] = problem.penalties[self._places]
        factors = np.where(problem.signs * decisions < 1, weights[:, None], 0.0)
        self._inverses = []
        for c, hessian in enumerate(self._hessians):
            change = factors[:, c] - self._factors[:, c]
            changed = np.flatnonzero(change)
            rows = take_rows(self._rows, changed)
            add_to_hessian(hessian, self._span.landmarks, rows, change[changed])
            matrix = self._span.landmarks.inner_products()
            np.einsum("ii->i", matrix)[...] += self._span.jitter
            matrix += hessian
            self._inverses.append(cholesky(matrix))
        self._factors = factors

    def solve(self, residual: Float64Array) -> Float64Array:
        """(G + H)^-1 of each classifier's residual, shape (k, N)."""
        pairs = zip(self._inverses, residual, strict=True)
        return np.stack([cho_solve((own, True), r, check_finite=False) for own, r in pairs])


def conjugate_gradients(
    point: Point, apply: Callable[[AnyArray], AnyArray], preconditioner: Preconditioner
) -> Float64Array:
    """The Newton step of all classifiers, shape (k, N)."""
    step, residual = np.zeros_like(point.b), point.residual.copy()
    z = preconditioner.solve(residual)
    direction, rz = z.copy(), (residual * z).sum(axis=1)
    wanted = np.clip(np.sqrt(point.gap), *_RESIDUALS) ** 2 * rz
    for _ in range(_MOST_PRODUCTS):
        product = apply(direction)
        curvature = (direction * product).sum(axis=1)
        length = np.divide(rz, curvature, out=np.zeros_like(rz), where=curvature > 0)[:, None]
        step += length * direction
        residual -= length * product
        z = preconditioner.solve(residual)
        before, rz = rz, (residual * z).sum(axis=1)
        if (rz <= wanted).all():
            break
        ratio = np.divide(rz, before, out=np.zeros_like(rz), where=before > 0)
        direction = z + ratio[:, None] * direction
    return step


def _hessian_product(
    span: Span, passes: Passes, active: BoolArray, d: Float64Array
) -> Float64Array:
    """(G + H) d of each classifier."""
    return span.times(d) + passes.hessian_product(active, d)


def best_lengths(problem: SpanProblem, span: Span, here: Point, there: Point) -> Float64Array:
    """Lengths of steps from `here` towards `there` of least P, shape (k,), without a pass.

    Decisions between the two points follow from those at both.
    """
    step = there.b - here.b
    slope = (step * here.slope).sum(axis=1)
    curvature = (step * span.times(step)).sum(axis=1)
    low, high = np.zeros(len(step)), np.full(len(step), _LONGEST)
    slack = 1.0 - problem.signs * here.gradient.decisions.astype(np.float64)
    change = problem.signs * (here.gradient.decisions.astype(np.float64) - there.gradient.decisions)
    C = problem.penalties[:, None]
    for _ in range(_HALVINGS):
        t = (low + high) / 2
        terms = (C * np.maximum(0.0, slack + t * change) * change).sum(axis=0)
        downhill = slope + t * curvature + terms < 0
        low, high = np.where(downhill, t, low), np.where(downhill, high, t)
    return np.asarray((low + high) / 2)


def newton_steps(
    span: Span,
    passes: Passes,
    b: Float64Array,
    preconditioner: Preconditioner,
    sample: Int64Array | None,
    target: float,
    tell: Callable[[Point], None],
    *,
    exact: bool = False,
) -> Point:
    """Minimise P from weights `b` until all gaps are at most `target`.

    Parameters
    ----------
    span, passes
        The landmarks, and the rows of the problem.
    b : ndarray of float64, shape (k, N)
        Weights to begin with.
    preconditioner : Preconditioner
        Of a sample of these rows.
    sample : ndarray of int64 or None
        Their numbers; None if the sample is all rows, so that steps need no conjugate gradients.
    target : float
        Relative gap (P - D*) / P.
    tell : callable
        Called with each point. It may raise to end the run.
    exact : bool
        Whether gradients are computed from float64 kernel values; products with the Hessian are
        not.
    """
    problem, point = passes.problem, evaluate(span, passes, b, exact=exact)
    tell(point)
    while (point.gap > target).any():
        decisions = point.gradient.decisions
        if sample is None:
            preconditioner.follow(decisions, 1.0)
            step = preconditioner.solve(point.residual)
        else:
            preconditioner.follow(decisions[sample], problem.n_rows / len(sample))
            active = problem.signs * decisions < 1
            matrix = partial(_hessian_product, span, passes, active)
            step = conjugate_gradients(point, matrix, preconditioner)
        there = evaluate(span, passes, point.b + step, exact=exact)
        lengths = best_lengths(problem, span, point, there)
        if (there.primal > point.primal).any() or (abs(lengths - 1) > _NEAR).any():
            there = evaluate(span, passes, point.b + lengths[:, None] * step, exact=exact)
        if (there.primal >= point.primal).all():
            break  # rounding
        point = there
        tell(point)
    return point
