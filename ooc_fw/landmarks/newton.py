"""Newton's method for the primal in the span of the landmarks.

A step solves (G + H) d = u - Gb by conjugate gradients. H = sum C_i k(x_i) k(x_i)' is a sum over
the rows inside the margin. The preconditioner is the mean of these matrices over all classifiers,
for a sample of the rows, and it follows the rows inside the margin from step to step.

A matrix for each classifier would save products with few classes (7 in place of 62 on letter with
500 landmarks, none with 200 classes), but no time: the other factors take more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.linalg import cho_solve

from ooc_fw._core.steps import slack_slopes, tube_slopes
from ooc_fw.data.parallel import row_slices
from ooc_fw.data.rows import CSRRows, Float64Array, Int64Array
from ooc_fw.landmarks import relative_gap
from ooc_fw.landmarks.columns import AnySpan, ColumnSpan
from ooc_fw.landmarks.readings import BoolArray, Gradient, Readings, SpanProblem, add_to_hessian
from ooc_fw.landmarks.span import factorise


@dataclass(frozen=True)
class Point:
    """Weights, their gradient and the objectives, which have shape (k,)."""

    b: Float64Array  # (k, N)
    gradient: Gradient
    residual: Float64Array  # (k, N): u - Gb
    slope: Float64Array  # (k, N): Gb
    primal: Float64Array
    dual: Float64Array  # dual objective of the best multiple of beta
    exact: bool  # whether all of it comes from float64 kernel values

    @property
    def gap(self) -> Float64Array:
        """(P - D*) / P for each classifier, or 0 if rounding makes it negative."""
        return np.maximum(0.0, relative_gap(self.primal, self.dual))


class Preconditioner:
    """Solves systems with G + H, where H is the mean of the classifiers' own on a sample.

    A row of the sample has its penalty in H, times the share of the classifiers for which it is
    inside the margin. The landmarks, at `landmark_places` of the sample, stand for themselves. Each
    other row stands for several rows. `check` is called again and again while H is computed. It may
    raise to end the run.
    """

    def __init__(
        self,
        span: AnySpan,
        problem: SpanProblem,
        landmark_places: Int64Array,
        check: Callable[[], None],
    ) -> None:
        self._span = span
        self._problem = problem
        self._rows = problem.source.read(0, problem.n_rows)
        self._places = landmark_places
        self._check = check
        n = len(span)
        # In Fortran order. H is below the diagonal, the factor of G + H above it and on it.
        self._matrix = np.zeros((n, n), order="F")
        self._diagonal = np.zeros(n)  # of H
        self._factors = np.zeros(problem.n_rows)
        self._known = False  # whether there is a factor
        self._multiple = 1.0
        self.exact = False  # whether solutions are those of all classifiers, apart from rounding

    def release(self) -> None:
        """Free the memory; no system can be solved after that."""
        self._matrix = np.empty((0, 0))
        self._known = False

    def follow(self, inside: BoolArray, multiple: float, worth: float = np.inf) -> None:
        """Follow the rows of the sample that are inside the margin of each classifier, (n, k).

        A row that is no landmark stands for `multiple` rows. If `worth`, times the share of the
        penalties that has changed, is less than the sums for each landmark in a new H, the old H
        stays.
        """
        scaled = multiple != self._multiple
        if scaled:
            for array in (self._matrix, self._diagonal, self._factors):
                array *= multiple / self._multiple
            self._multiple = multiple
        weights = self._problem.penalties * multiple
        weights[self._places] = self._problem.penalties[self._places]
        factors = weights * inside.mean(axis=1)
        change = np.abs(factors - self._factors)
        sums = (np.count_nonzero(change) + len(self._span) / 3) * len(self._span)
        saved = worth * change.sum() if change.any() else 0.0
        self.exact = False
        renewed = not self._known or sums * self._factors.sum() <= saved
        if renewed:
            self._take(factors)
        elif not scaled:
            return
        _, shift = factorise(self._summed, self._span.landmarks.engine.pool, lower=False)
        self._known = True
        self.exact = renewed and shift == 0 and inside.shape[1] == 1

    def _take(self, factors: Float64Array) -> None:
        """Update H to these factors of the rows."""
        change = factors - self._factors
        change[np.abs(change) <= 1e-12 * factors] = 0.0  # these come from rounding
        if np.count_nonzero(change) >= np.count_nonzero(factors):  # a new sum is less work
            self._matrix[:] = 0.0
            self._diagonal[:] = 0.0
            change = factors
        self._factors = factors
        changed = np.flatnonzero(change)
        diagonal = np.einsum("ii->i", self._matrix)
        diagonal[...] = self._diagonal
        weighted = (changed, change[changed])
        add_to_hessian(self._matrix, self._span.landmarks, self._rows, weighted, self._check)
        self._diagonal[:] = diagonal

    def _summed(self) -> Float64Array:
        """Write G + H above and on the diagonal of the matrix."""
        np.einsum("ii->i", self._matrix)[...] = self._diagonal
        self._span.fill_upper(self._matrix)
        return self._matrix

    def solve(self, residual: Float64Array) -> Float64Array:
        """(G + H)^-1 times each residual, shape (m, N)."""
        return np.asarray(cho_solve((self._matrix, False), residual.T, check_finite=False).T)


class Diagonal:
    """A `Preconditioner` that is the diagonal of G + H, for spans too large for a factor."""

    exact = False  # solutions are not

    def __init__(self, span: ColumnSpan, problem: SpanProblem) -> None:
        self._columns = span.landmarks
        rows = problem.source.read(0, problem.n_rows)
        squares = np.square(rows.data if isinstance(rows, CSRRows) else rows, dtype=np.float64)
        self._squares: Any = replace(rows, data=squares) if isinstance(rows, CSRRows) else squares
        self._penalties = problem.penalties
        self._diagonal = np.empty((0, 0))

    def release(self) -> None:
        """Free the memory."""
        self._squares = None

    def follow(self, inside: BoolArray, multiple: float, worth: float = np.inf) -> None:
        """Follow the rows of the sample that are inside the margin of each classifier, (n, k)."""
        factors = multiple * self._penalties * inside.mean(axis=1)
        self._diagonal = 1.0 + self._columns.add(self._squares, factors[:, None]).T

    def solve(self, residual: Float64Array) -> Float64Array:
        """Each classifier's residual divided by the diagonal, shape (k, N)."""
        return np.asarray(residual / self._diagonal)


def evaluate(
    span: AnySpan,
    readings: Readings,
    b: Float64Array,
    *,
    exact: bool,
    before: Point | None = None,
) -> Point:
    """Reading of all rows at weights `b`; `exact` with float64 kernel values.

    Classifiers keep their numbers of the point `before` if their weights are the same.
    """
    exact |= span.landmarks.always_exact
    b = span.rounded(b)
    live = np.ones(len(b), dtype=np.bool_)
    if before is not None and before.exact == exact:
        live = (b != before.b).any(axis=1)
    if before is None or live.all():
        gradient = readings.gradient(b, exact=exact)
    elif not live.any():
        return before
    else:
        gradient = readings.gradient(b[live], exact=exact, live=live).beside(before.gradient, live)
    total, square, _, _ = gradient.terms
    moved = b
    past = readings.problem.past
    if past is not None:
        moved = b - past.origin
        total = total - (gradient.u * past.origin).sum(axis=1)
    slope = span.times(moved)
    primal = 0.5 * ((moved * slope).sum(axis=1) + square)
    norm = span.inverse_norm(gradient.u)
    with np.errstate(invalid="ignore"):  # 0 / 0 if no row is inside the margin
        dual = np.maximum(0.0, total) ** 2 / (2 * (norm + square))
    if past is not None:
        primal = primal - past.least
        dual = np.maximum(dual - past.least, past.least / 99)  # new rows only add to P
    return Point(b, gradient, gradient.u - slope, slope, primal, np.nan_to_num(dual), exact)


@dataclass
class Newton:
    """Newton's method on some rows."""

    span: AnySpan
    ids: Int64Array  # (N,): row numbers of the landmarks in the source
    readings: Readings
    preconditioner: Preconditioner | Diagonal  # for a sample of the rows
    sample: Int64Array | None  # its row numbers; None for all rows: steps are solved directly
    stepped: bool = False  # whether it has taken a step
    exact_products: bool = False  # whether products with the Hessian take float64 kernel values

    def __post_init__(self) -> None:
        self.exact_products |= self.span.landmarks.always_exact

    def evaluate(
        self, b: Float64Array, *, exact: bool = False, before: Point | None = None
    ) -> Point:
        """Reading of all rows at weights `b`; `exact` with float64 kernel values."""
        return evaluate(self.span, self.readings, b, exact=exact, before=before)

    def minimise(
        self,
        point: Point,
        target: float,
        tell: Callable[[Point], None],
        exact_below: float = 0.0,
        steps: int = 100,  # about ten are enough
    ) -> Point:
        """Minimise P from a point until all gaps are at most `target`, or rounding prevents it.

        Weights that are all 0 are no model: at least one step is taken from there. `tell` is called
        with each new point, and may raise to end the run. With a positive `exact_below`, a step
        from a smaller gap leads to a gradient from float64 kernel values, and so does the last
        step. Products with the Hessian come from float32 as long as steps keep their promise.
        """
        for _ in range(steps):
            wanted = (point.gap > target) | ~point.b.any(axis=1)
            exact = point.exact or bool((point.gap < exact_below).all())
            if not wanted.any():
                if point.exact or exact_below == 0:
                    break
                point = self.evaluate(point.b, exact=True)
                tell(point)
                continue
            there, promised = self._best_step(point, target, wanted, exact)
            promised = np.maximum(target * point.primal, promised)
            # Float32 hides a part of the residual, which counts most if there are many landmarks.
            missed = bool((wanted & (there.gap * point.primal > 3 * promised)).any())
            if missed and point.exact and not self.exact_products:
                self.exact_products = True
                if not (there.gap < point.gap).all():
                    continue  # take the step anew
            # Rounding hides a smaller gain.
            gained = point.primal - there.primal > 1e-10 * point.primal
            stuck = not gained[wanted].any()
            ended = stuck and (point.exact or exact_below == 0)
            if stuck and not (ended or there.exact):  # float32 may hide the gain of the step
                there = self.evaluate(there.b, exact=True)
            point = there
            tell(point)
            if ended:
                break
        if exact_below > 0 and not point.exact:  # all steps are used up
            point = self.evaluate(point.b, exact=True)
            tell(point)
        return point

    def _best_step(
        self, point: Point, target: float, wanted: BoolArray, exact: bool
    ) -> tuple[Point, Float64Array]:
        """Take a Newton step for the classifiers `wanted`; `point` stays if P would grow.

        Returns the new point, and the gap times P that the quadratic model promises there.
        """
        # The quadratic model promises too much. Therefore it has to promise a third of the target.
        step, promised = self._step(point, 0.3 * target, wanted)
        there = self.evaluate(point.b + step, exact=exact, before=point)
        if exact and not point.exact:  # objectives in float32 and float64 differ by 1e-3
            if (there.primal <= (1 + 1e-3) * point.primal).all():
                return there, promised
        halved = there.gap <= np.maximum(target, 0.5 * point.gap)
        # If P hardly differs, the length with the least P may have ten times the gap.
        near = there.primal >= (1 - 1e-4) * point.primal
        if ((halved | near) & (there.primal <= point.primal)).all():
            return there, promised
        lengths = self._best_lengths(point, there)
        # If the best length is far from 1, another gradient is worth its reading.
        far = (lengths < (0.75 if exact else 0.5)) | (lengths > 1.5)
        if ((far | ~(there.primal <= point.primal)) & wanted).any():
            there = self.evaluate(point.b + lengths[:, None] * step, exact=exact, before=point)
        better = (there.primal < point.primal) | ~point.b.any(axis=1)
        if not better.any():
            return point, promised
        if not better.all():
            b = np.where(better[:, None], there.b, point.b)
            there = self.evaluate(b, exact=exact, before=there)
        return there, promised

    def _step(
        self, point: Point, target: float, wanted: BoolArray
    ) -> tuple[Float64Array, Float64Array]:
        """Solve (G + H) d = u - Gb for the classifiers `wanted`, by conjugate gradients.

        A single classifier on the sample itself needs none: its preconditioner is G + H.

        If P were quadratic, the residual r would leave a gap times P of 1/2 r'G^-1 r. The iteration
        ends if this is at most a share `target` of P, or at most a twentieth of its first value
        with r'(G + H)^-1 r at most a tenth. Returns d, and the gap times P for the end.
        """
        left = np.flatnonzero(wanted)  # classifiers whose systems are unsolved
        active = self.readings.problem.inside(point.gradient.decisions)[:, left]
        inside = active if self.sample is None else active[self.sample]
        # A new factor saves products, which read kernel values from memory: one takes the time of
        # 8 sums in a factor. Without products the factor has to be new.
        direct = self.sample is None and active.shape[1] == 1
        worth = np.inf if direct else 400.0 * int(np.count_nonzero(active))
        self.preconditioner.follow(inside, len(active) / len(inside), worth)
        self.stepped = True
        residual = point.residual[left]
        z = self.preconditioner.solve(residual)
        targets = target * point.primal
        promised = np.maximum(targets, 0.025 * self.span.inverse_norm(point.residual))
        step = np.zeros_like(point.b)
        if direct and self.preconditioner.exact:
            step[left] = z
            return step, promised
        direction = z
        rz = (residual * z).sum(axis=1)
        accepted = np.zeros(len(step))
        accepted[left] = 0.1 * rz
        for _ in range(50):  # at most so many products with the Hessian
            product = self.readings.hessian_product(active, direction, exact=self.exact_products)
            product += self.span.times(direction)
            length = _ratio(rz, (direction * product).sum(axis=1))
            step[left] += length * direction
            residual -= length * product
            z = self.preconditioner.solve(residual)
            before = rz
            rz = (residual * z).sum(axis=1)
            near = rz <= np.maximum(accepted, 2 * targets)[left]  # a gap is at least half of rz
            gaps = np.full(len(left), np.inf)
            if near.any():
                gaps[near] = 0.5 * self.span.inverse_norm(residual[near])
            small = (rz <= accepted[left]) & (gaps <= promised[left])
            more = ~(small | (gaps <= targets[left]))
            if not more.any():
                break
            direction = z + _ratio(rz, before) * direction
            if not more.all():
                left, active = left[more], active[:, more]
                residual, direction, rz = residual[more], direction[more], rz[more]
        return step, promised

    def _best_lengths(self, here: Point, there: Point) -> Float64Array:
        """Step lengths from `here` towards `there` with the least P, by the decisions at both."""
        problem = self.readings.problem
        step = there.b - here.b
        slope = (step * here.slope).sum(axis=1)
        curvature = (step * self.span.times(step)).sum(axis=1)
        before = here.gradient.decisions
        after = there.gradient.decisions
        low = np.zeros(len(step))
        high = np.full(len(step), 2.0)  # twice the Newton step
        for _ in range(30):  # each time the interval is halved
            t = (low + high) / 2
            slopes = slope + t * curvature
            for part in row_slices(problem.n_rows, 1 << 16):  # parts that take little memory
                rows = slice(*part)
                penalties = np.ascontiguousarray(problem.penalties[rows])
                line = problem.targets[rows], before[rows], after[rows], penalties, t
                if problem.epsilon is None:
                    slack_slopes(*line, slopes)
                else:
                    tube_slopes(*line, problem.epsilon, slopes)
            low = np.where(slopes < 0, t, low)
            high = np.where(slopes < 0, high, t)
        return np.asarray((low + high) / 2)


def _ratio(one: Float64Array, other: Float64Array) -> Float64Array:
    """A quotient for each classifier, shape (k, 1), or 0 if the divisor is 0."""
    return np.divide(one, other, out=np.zeros_like(one), where=other > 0)[:, None]
