"""Newton's method for the primal in the span of the landmarks.

A step solves (G + H) d = u - Gb, where H = sum C_i k(x_i) k(x_i)' over the rows inside the margin,
by conjugate gradients. Their preconditioner is the same matrix over a sample of the rows, which
follows the rows inside the margin from step to step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import cho_solve

from ooc_fw._core.strips import slack_slopes
from ooc_fw.data.rows import AnyArray, Float32Array, Float64Array, Int64Array, Rows
from ooc_fw.landmarks.passes import BoolArray, Gradient, Passes, SpanProblem, add_to_hessian
from ooc_fw.landmarks.span import Span, factorise

_MOST_PRODUCTS = 50  # of the Hessian in one Newton step
# Conjugate gradients end where the quadratic model promises a gap of this part of the target, or
# squares of the residual of these parts of the first, preconditioned and as the gap has them.
_NEEDED, _SHARE, _GAP_SHARE = 0.3, 0.1, 0.05
_MOST_STEPS = 100  # of Newton's method, which needs some ten
_HALVINGS = 30  # of the interval in a line search
_SLOPE_ROWS = 1 << 16  # whose slopes are added up at once
_LONGEST = 2.0  # step of a line search, in Newton steps
_SAME = 1e-12  # relative difference of factors that differ by rounding
# Best lengths of a step beyond which another gradient is worth its pass: below, once gradients are
# from float64 kernel values, then before; above.
_SHORT_EXACT, _SHORT, _LONG = 0.75, 0.5, 1.5
_ROUNDING = 1e-3  # relative difference of P from float32 and from float64 kernel values
_LEAST_DECREASE = 1e-10  # relative, of P by a step; steps that gain less are lost in rounding


@dataclass(frozen=True)
class Point:
    """Weights, their gradient, and the objectives; arrays of shape (k,) but for the first three."""

    b: Float64Array  # (k, N)
    gradient: Gradient
    residual: Float64Array  # (k, N): u - Gb
    slope: Float64Array  # (k, N): Gb
    primal: Float64Array
    dual: Float64Array  # of the best multiple of beta
    exact: bool  # whether it is from float64 kernel values

    @property
    def gap(self) -> Float64Array:
        """(P - D*) / P of each classifier, 0 where rounding makes it negative."""
        return np.maximum(0.0, (self.primal - self.dual) / self.primal)

    def or_better(self, other: Point) -> Point:
        """For each classifier, whichever of the two points has less P; the other one if b = 0."""
        better = (other.primal < self.primal) | ~self.b.any(axis=1)
        if better.all():
            return other

        def choose(mine: AnyArray, its: AnyArray) -> AnyArray:
            return np.where(better[:, None] if mine.ndim == 2 else better, its, mine)

        first, second = self.gradient, other.gradient
        gradient = replace(
            first,
            decisions=np.where(better, second.decisions, first.decisions),
            u=choose(first.u, second.u),
            total=choose(first.total, second.total),
            square=choose(first.square, second.square),
        )
        names = "b", "residual", "slope", "primal", "dual"
        arrays = {x: choose(getattr(self, x), getattr(other, x)) for x in names}
        return Point(gradient=gradient, exact=self.exact and other.exact, **arrays)


class Preconditioner:
    """Solves with G + H over a sample of the rows, each with a factor of its penalty.

    Parameters
    ----------
    span : Span
        The landmarks.
    rows : Rows
        The sample.
    problem : SpanProblem
        Labels and penalties of the sample.
    landmark_places : ndarray of int64
        Where in the sample the landmarks are. They stand for themselves; other rows stand for as
        many as the sample is a part of.
    check : callable
        Called again and again while H is computed. It may raise to end the run.

    Attributes
    ----------
    exact : bool
        Whether no diagonal had to be enlarged, so that solutions lack no more than rounding.
    """

    def __init__(
        self,
        span: Span,
        rows: Rows,
        problem: SpanProblem,
        landmark_places: Int64Array,
        check: Callable[[], None],
    ) -> None:
        self._span, self._rows, self._problem = span, rows, problem
        self._places, self._check = landmark_places, check
        k, n = problem.n_classifiers, len(span)
        # In Fortran order. Below the diagonal is H, above it and on it the factor of G + H.
        self._matrices = np.zeros((k, n, n)).transpose(0, 2, 1)
        self._diagonals = np.zeros((k, n))  # of H
        self._factors = np.zeros(problem.signs.shape)
        self._known: BoolArray = np.zeros(k, dtype=np.bool_)  # factors that can be solved with
        self._multiple = 1.0
        self.exact = True

    def release(self) -> None:
        """Free the memory; nothing can be solved for any more."""
        self._matrices = np.empty((0, 0, 0))
        self._known[:] = False

    def follow(self, decisions: Float32Array, multiple: float, wanted: BoolArray) -> None:
        """Take the rows of the sample inside the margin at these `decisions`, shape (n, k).

        Every other row of the sample stands for `multiple` rows. Only the classifiers that are
        `wanted`, shape (k,), can be solved for afterwards.
        """
        problem = self._problem
        if multiple != self._multiple:
            for array in (self._matrices, self._diagonals, self._factors):
                array *= multiple / self._multiple
            self._multiple = multiple
        weights = problem.penalties * multiple
        weights[self._places] = problem.penalties[self._places]
        self._known, self.exact = wanted.copy(), True
        for c in np.flatnonzero(wanted).tolist():
            inside = problem.signs[:, c] * decisions[:, c] < 1
            factors = np.where(inside, weights, 0.0)
            change = factors - self._factors[:, c]
            change[np.abs(change) <= _SAME * factors] = 0.0
            if np.count_nonzero(change) >= np.count_nonzero(factors):  # less work
                self._matrices[c], self._diagonals[c], change = 0.0, 0.0, factors
            self._factors[:, c] = factors
            changed, marks = np.flatnonzero(change), self._span.landmarks
            matrix, diagonal = self._matrices[c], np.einsum("ii->i", self._matrices[c])
            diagonal[...] = self._diagonals[c]
            add_to_hessian(matrix, marks, self._rows, (changed, change[changed]), self._check)
            self._diagonals[c] = diagonal
            _, shift = factorise(lambda: self._summed(c), lower=False)  # noqa: B023
            self.exact &= shift == 0

    def _summed(self, c: int) -> Float64Array:
        """G + H above the diagonal of the matrix of a classifier, and on it."""
        matrix: Float64Array = self._matrices[c]
        np.einsum("ii->i", matrix)[...] = self._diagonals[c]
        self._span.fill_upper(matrix)
        return matrix

    def solve(self, residual: Float64Array) -> Float64Array:
        """(G + H)^-1 of each classifier's residual, shape (k, N); 0 for those not wanted."""
        solution = np.zeros_like(residual)
        for c in np.flatnonzero(self._known).tolist():
            factor = self._matrices[c], False
            solution[c] = cho_solve(factor, residual[c], check_finite=False)
        return solution


def evaluate(span: Span, passes: Passes, b: Float64Array, *, exact: bool) -> Point:
    """Pass over all rows at weights `b`; `exact` with float64 kernel values."""
    gradient, slope = passes.gradient(b, exact=exact), span.times(b)
    primal = 0.5 * ((b * slope).sum(axis=1) + gradient.square)
    norm = span.inverse_norm(gradient.u)
    with np.errstate(invalid="ignore"):  # 0 / 0 where no row is inside the margin
        dual = gradient.total**2 / (2 * (norm + gradient.square))
    return Point(b, gradient, gradient.u - slope, slope, primal, np.nan_to_num(dual), exact)


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
        self, point: Point, target: float, tell: Callable[[Point], None], exact_below: float = 0.0
    ) -> Point:
        """Minimise P, from a point on, until all gaps are at most `target` or rounding prevents it.

        Weights that are all 0 are no model: at least one step is taken from there. `tell` is
        called with each new point and may raise to end the run. Unless `exact_below` is 0, steps
        from gaps below it lead to gradients from float64 kernel values, and the last gradient is
        one of these; products with the Hessian are always from float32.
        """
        for _ in range(_MOST_STEPS):
            wanted = (point.gap > target) | ~point.b.any(axis=1)
            exact = point.exact or bool((point.gap < exact_below).all())
            if not wanted.any():
                if point.exact or exact_below == 0:
                    break
                point = self.evaluate(point.b, exact=True)
                tell(point)
                continue
            there = self._best_step(point, target, wanted, exact)
            gained = point.primal - there.primal > _LEAST_DECREASE * point.primal
            settled = not gained[wanted].any()
            ended = settled and (point.exact or exact_below == 0)
            if settled and not (ended or there.exact):  # rounding hides what a step gains
                there = self.evaluate(there.b, exact=True)
            point = there
            tell(point)
            if ended:
                break
        return point

    def _best_step(self, point: Point, target: float, wanted: BoolArray, exact: bool) -> Point:
        """Where a Newton step of the classifiers `wanted` leads, or `point` if that has less P."""
        step = self._step(point, _NEEDED * target, wanted)
        there = self.evaluate(point.b + step, exact=exact)
        if exact and not point.exact:  # objectives of both precisions compare but roughly
            if (there.primal <= (1 + _ROUNDING) * point.primal).all():
                return there
        lengths = self._best_lengths(point, there)
        far = (lengths < (_SHORT_EXACT if exact else _SHORT)) | (lengths > _LONG)
        if ((far | ~(there.primal <= point.primal)) & wanted).any():
            there = self.evaluate(point.b + lengths[:, None] * step, exact=exact)
        return point.or_better(there)

    def _step(self, point: Point, target: float, wanted: BoolArray) -> Float64Array:
        problem, decisions = self.passes.problem, point.gradient.decisions
        residual = np.where(wanted[:, None], point.residual, 0.0)
        if self.sample is None:
            self.preconditioner.follow(decisions, 1.0, wanted)
            if self.preconditioner.exact:
                return self.preconditioner.solve(residual)
        else:
            multiple = problem.n_rows / len(self.sample)
            self.preconditioner.follow(decisions[self.sample], multiple, wanted)
        active = (problem.signs * decisions < 1) & wanted

        def product(d: Float64Array) -> Float64Array:
            return self.span.times(d) + self.passes.hessian_product(active, d)

        return self._conjugate_gradients(residual, product, target * point.primal)

    def _conjugate_gradients(
        self,
        residual: Float64Array,
        multiply: Callable[[Float64Array], Float64Array],
        target: Float64Array,
    ) -> Float64Array:
        """Solve (G + H) d = residual for each classifier, with products (G + H) d.

        Were P quadratic, the gap after the step would be 1/2 r'G^-1 r for the residual r that is
        left. Ends where it is at most `target`, shape (k,).
        """
        step, residual = np.zeros_like(residual), residual.copy()
        z = self.preconditioner.solve(residual)
        direction, rz = z.copy(), (residual * z).sum(axis=1)
        accepted, gaps = _SHARE * rz, 0.5 * self.span.inverse_norm(residual)
        promised = np.maximum(target, _GAP_SHARE * gaps)
        for _ in range(_MOST_PRODUCTS):
            product = multiply(direction)
            curvature = (direction * product).sum(axis=1)
            length = np.divide(rz, curvature, out=np.zeros_like(rz), where=curvature > 0)[:, None]
            step += length * direction
            residual -= length * product
            z = self.preconditioner.solve(residual)
            before, rz = rz, (residual * z).sum(axis=1)
            gaps = 0.5 * self.span.inverse_norm(residual)
            if ((gaps <= target) | (rz <= accepted) & (gaps <= promised)).all():
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
        before, after = here.gradient.decisions, there.gradient.decisions
        low, high = np.zeros(len(step)), np.full(len(step), _LONGEST)
        for _ in range(_HALVINGS):
            t = (low + high) / 2
            slopes = slope + t * curvature
            for start in range(0, problem.n_rows, _SLOPE_ROWS):
                rows = slice(start, start + _SLOPE_ROWS)
                penalties = np.ascontiguousarray(problem.penalties[rows])
                slack_slopes(problem.signs[rows], before[rows], after[rows], penalties, t, slopes)
            low, high = np.where(slopes < 0, t, low), np.where(slopes < 0, high, t)
        return np.asarray((low + high) / 2)
