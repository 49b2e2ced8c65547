"""Newton's method for the primal in the span of the landmarks.

A step solves (G + H) d = u - Gb, where H = sum C_i k(x_i) k(x_i)' over the rows inside the margin,
by conjugate gradients. Their preconditioner is the same matrix over a sample of the rows, which
follows the rows inside the margin from step to step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_solve

from ooc_fw.data.rows import Float32Array, Float64Array, Int64Array, Rows, take_rows
from ooc_fw.landmarks.passes import BoolArray, Gradient, Passes, SpanProblem, add_to_hessian
from ooc_fw.landmarks.span import Span, cholesky

_MOST_PRODUCTS = 50  # of the Hessian in one Newton step
_RESIDUALS = 0.1, 0.3  # limits of the relative residual that ends conjugate gradients
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


def evaluate(span: Span, passes: Passes, b: Float64Array, *, exact: bool) -> Point:
    """Pass over all rows at weights `b`; `exact` with float64 kernel values."""
    gradient, slope = passes.gradient(b, exact=exact), span.times(b)
    primal = 0.5 * ((b * slope).sum(axis=1) + gradient.square)
    norm = span.inverse_norm(gradient.u)
    with np.errstate(invalid="ignore"):  # 0 / 0 where no row is inside the margin
        dual = gradient.total**2 / (2 * (norm + gradient.square))
    return Point(b, gradient, gradient.u - slope, slope, primal, np.nan_to_num(dual))


@dataclass(frozen=True)
class Newton:
    """Newton's method on some rows.

    Parameters
    ----------
    span : Span
        The landmarks.
    passes : Passes
        The rows.
    preconditioner : Preconditioner
        Of a sample of these rows.
    sample : ndarray of int64 or None
        Their numbers; None if the sample is all rows, so that a step is solved for directly.
    """

    span: Span
    passes: Passes
    preconditioner: Preconditioner
    sample: Int64Array | None

    def evaluate(self, b: Float64Array, *, exact: bool = False) -> Point:
        """Pass over all rows at weights `b`; `exact` with float64 kernel values."""
        return evaluate(self.span, self.passes, b, exact=exact)

    def minimise(
        self, point: Point, target: float, tell: Callable[[Point], None], *, exact: bool = False
    ) -> None:
        """Minimise P, from a point on, until all gaps are at most `target`.

        `tell` is called with each new point and may raise to end the run. Where `exact`, gradients
        are computed from float64 kernel values; products with the Hessian never are.
        """
        while (point.gap > target).any():
            step = self._step(point)
            there = self.evaluate(point.b + step, exact=exact)
            lengths = self._best_lengths(point, there)
            if (there.primal > point.primal).any() or (abs(lengths - 1) > _NEAR).any():
                there = self.evaluate(point.b + lengths[:, None] * step, exact=exact)
            if (there.primal >= point.primal).all():
                return  # rounding
            point = there
            tell(point)

    def _step(self, point: Point) -> Float64Array:
        problem, decisions = self.passes.problem, point.gradient.decisions
        if self.sample is None:
            self.preconditioner.follow(decisions, 1.0)
            return self.preconditioner.solve(point.residual)
        self.preconditioner.follow(decisions[self.sample], problem.n_rows / len(self.sample))
        return self._conjugate_gradients(point, problem.signs * decisions < 1)

    def _conjugate_gradients(self, point: Point, active: BoolArray) -> Float64Array:
        """Solve (G + H) d = residual for each classifier, whose `active` rows make up H."""
        step, residual = np.zeros_like(point.b), point.residual.copy()
        z = self.preconditioner.solve(residual)
        direction, rz = z.copy(), (residual * z).sum(axis=1)
        wanted = np.clip(np.sqrt(point.gap), *_RESIDUALS) ** 2 * rz
        for _ in range(_MOST_PRODUCTS):
            product = self.span.times(direction) + self.passes.hessian_product(active, direction)
            curvature = (direction * product).sum(axis=1)
            length = np.divide(rz, curvature, out=np.zeros_like(rz), where=curvature > 0)[:, None]
            step += length * direction
            residual -= length * product
            z = self.preconditioner.solve(residual)
            before, rz = rz, (residual * z).sum(axis=1)
            if (rz <= wanted).all():
                break
            ratio = np.divide(rz, before, out=np.zeros_like(rz), where=before > 0)
            direction = z + ratio[:, None] * direction
        return step

    def _best_lengths(self, here: Point, there: Point) -> Float64Array:
        """Lengths of steps from `here` towards `there` of least P, shape (k,), without a pass.

        Decisions between the two points follow from those at both.
        """
        problem, step = self.passes.problem, there.b - here.b
        slope = (step * here.slope).sum(axis=1)
        curvature = (step * self.span.times(step)).sum(axis=1)
        before = problem.signs * here.gradient.decisions.astype(np.float64)
        change = before - problem.signs * there.gradient.decisions
        low, high = np.zeros(len(step)), np.full(len(step), _LONGEST)
        for _ in range(_HALVINGS):
            t = (low + high) / 2
            slack = np.maximum(0.0, 1.0 - before + t * change)
            terms = (problem.penalties[:, None] * slack * change).sum(axis=0)
            downhill = slope + t * curvature + terms < 0
            low, high = np.where(downhill, t, low), np.where(downhill, high, t)
        return np.asarray((low + high) / 2)
