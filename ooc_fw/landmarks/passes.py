"""Passes over the rows of a span problem, block by block: gradient, products with the Hessian.

Sums over the rows of a block, and then over blocks, are added up in the order of the rows, so that
neither threads nor processes change a bit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ooc_fw.data.parallel import Counts, Workers
from ooc_fw.data.rows import (
    AnyArray,
    CSRRows,
    Float32Array,
    Float64Array,
    Int8Array,
    Int64Array,
    Rows,
    rows_bytes,
    take_rows,
)
from ooc_fw.data.sources import ArraySource, CSRSource, RowSource, block_slices
from ooc_fw.landmarks.span import Landmarks
from ooc_fw.problem import Problem, RegressionProblem

BoolArray = npt.NDArray[np.bool_]

_HESSIAN_ROWS = 512  # rows whose products are added to a Hessian together
_KERNEL_ROWS = 128  # of them, whose kernel values are computed in float32 together
_HESSIAN_COLUMNS = 256  # columns of a Hessian that one thread computes together


@dataclass(frozen=True)
class SpanProblem:
    """Rows with the labels of k classifiers that share their landmarks, or with targets."""

    source: RowSource
    targets: Int8Array | Float64Array  # (n_rows, k): labels, or of float64 for regression
    penalties: Float64Array  # (n_rows,), positive
    epsilon: float | None = None  # half the width of the tube of regression

    @classmethod
    def of(cls, problem: Problem, C: float) -> SpanProblem:
        """One classifier of two classes, else one of each class against the rest; or regression."""
        source, penalties = problem.source, problem.penalties
        if penalties is None:
            penalties = np.broadcast_to(np.float64(C), source.n_rows)  # takes no memory
        if isinstance(problem, RegressionProblem):
            return cls(source, problem.targets[:, None], penalties, problem.epsilon)
        k = problem.n_classifiers
        positive = np.arange(1, 2) if k == 1 else np.arange(k)
        signs = np.where(problem.row_classes[:, None] == positive, np.int8(1), np.int8(-1))
        return cls(source, signs, penalties)

    def part(self, rows: Rows, ids: Int64Array) -> SpanProblem:
        """The problem on some rows, in memory, of the numbers `ids`."""
        source = CSRSource(rows) if isinstance(rows, CSRRows) else ArraySource(rows)
        return SpanProblem(source, self.targets[ids], self.penalties[ids], self.epsilon)

    def inside(self, decisions: Float32Array) -> BoolArray:
        """Which rows have slack at these decision values, shape (n_rows, k)."""
        if self.epsilon is None:
            return np.asarray(self.targets * decisions < 1)
        return np.asarray(np.abs(self.targets - decisions) > self.epsilon)

    def losses(self, decisions: Float32Array) -> Float64Array:
        """Sum over the classifiers of C_i xi_i^2 at these decision values, shape (n_rows,)."""
        values: AnyArray = decisions if self.epsilon is None else decisions.astype(np.float64)
        slack, _ = slacks(self.targets, values, self.epsilon)
        return np.asarray((self.penalties[:, None] * slack.astype(np.float64) ** 2).sum(axis=1))

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.targets)

    @property
    def n_classifiers(self) -> int:
        """Number of classifiers."""
        return int(self.targets.shape[1])


def slacks(
    targets: AnyArray, values: AnyArray, epsilon: float | None
) -> tuple[Float64Array, AnyArray]:
    """Slack xi_i >= 0 of each row, and the sign with which it pulls at the decision value.

    In classification these signs are the labels. In regression they are those of y_i - h(x_i).
    """
    if epsilon is None:
        return np.maximum(0.0, 1.0 - targets * values), targets
    residuals = targets - values
    return np.maximum(0.0, np.abs(residuals) - epsilon), np.sign(residuals)


def dual_terms(
    beta: Float64Array,
    slack: Float64Array,
    signs: AnyArray,
    targets: AnyArray,
    epsilon: float | None,
) -> Float64Array:
    """The `terms` of a `Gradient` over some rows, shape (4, k)."""
    square, size = (beta * slack).sum(axis=0), beta.sum(axis=0)
    if epsilon is None:
        return np.stack([size, square, size, size])
    met = beta * signs * targets
    total = met.sum(axis=0) - epsilon * size
    return np.stack([total, square, size, np.abs(met).sum(axis=0) + epsilon * size])


class Gradient(NamedTuple):
    """What a pass over some rows found, for each of k classifiers, with beta_i = C_i xi_i.

    For a product with the Hessian there are no decisions, and the product is in place of u.
    """

    u: Float64Array  # (k, n_landmarks): sum beta_i s_i k(x_i), with the signs s_i of `slacks`
    # (4, k): the total that beta has in the dual beside its norm, sum beta_i, in regression
    # sum beta_i (s_i y_i - epsilon); the square sum beta_i^2 / C_i; the size sum beta_i; and a
    # linear bound on the absolute terms of the total.
    terms: Float64Array
    decisions: Float32Array  # (n_rows, k): h(x_i)
    error: float  # bound on the error of a weighted mean of a row's kernel values, if exact
    largest: float  # bound on all k(x_i, x_i) + 1
    depth: int  # most additions that a term of the sums over rows goes through


class _Block(NamedTuple):
    """Rows ``start:stop`` with their targets or, for a product with the Hessian, `active` ones."""

    start: int
    stop: int
    penalties: Float64Array  # (n,)
    targets: Int8Array | Float64Array | None = None  # (n, k)
    epsilon: float | None = None
    active: BoolArray | None = None  # (n, k): the rows inside the margin of each classifier


def _pass_block(
    source: RowSource, block: _Block, landmarks: Landmarks, w: Float64Array, exact: bool
) -> tuple[Gradient, Counts]:
    """Sums over a block of the gradient at weights `w`, or of the Hessian's product with `w`."""
    engine, targets, epsilon = landmarks.engine, block.targets, block.epsilon
    rows = source.read(block.start, block.stop)
    n_read, n_bytes = len(rows), rows_bytes(rows)
    factors = np.broadcast_to(block.penalties[:, None], (n_read, len(w)))
    if block.active is not None:
        places = np.flatnonzero(block.active.any(axis=1))
        factors = np.where(block.active[places], factors[places], 0.0)
        if len(places) < n_read:
            rows = take_rows(rows, places)
    k, bias = len(w), w.sum(axis=1)
    decisions = np.empty((0 if targets is None else len(rows), k), dtype=np.float32)

    def use(
        part: slice, sums: Float64Array
    ) -> tuple[tuple[Float64Array, Float64Array, int], Float64Array]:
        h, terms = sums + bias, np.zeros((4, k))
        if targets is None:
            factored = h * factors[part]
        else:
            decisions[part] = h
            slack, signs = slacks(targets[part], h, epsilon)
            beta = factors[part] * slack
            factored = beta * signs
            terms = dual_terms(beta, slack, signs, targets[part], epsilon)
        return (factored.sum(axis=0), terms, len(h)), factored

    u, terms = np.zeros((k, len(landmarks))), np.zeros((4, k))
    x, z = engine.prepare(rows, exact), landmarks.exact if exact else landmarks.fast
    n_strips = longest = 0
    for (total, of_strip, length), sums in engine.strips(x, z, w, use):
        u += sums + total[:, None]
        terms += of_strip
        n_strips, longest = n_strips + 1, max(longest, length)
    error = float(engine.error_bound(x, z).max(initial=0.0)) if exact else 0.0
    largest = 1 + float(engine.kernel.diagonal(x.norms).max(initial=0.0))
    counts = Counts(n_read, n_bytes, len(rows) * len(landmarks))
    return Gradient(u, terms, decisions, error, largest, n_strips + longest), counts


class Passes:
    """Passes over the rows of a problem; `on_block` is told the share done, and may raise."""

    def __init__(
        self,
        problem: SpanProblem,
        landmarks: Landmarks,
        workers: Workers | None = None,
        on_block: Callable[[float], None] | None = None,
    ) -> None:
        self.problem, self.landmarks = problem, landmarks
        self._workers = Workers(1) if workers is None else workers
        self._on_block = on_block
        self.gradient_seconds = self.exact_seconds = 0.0  # the longest, in float32 and float64
        self._shared = landmarks.shared()

    def gradient(self, b: Float64Array, *, exact: bool = False) -> Gradient:
        """Pass over all rows at weights `b`, shape (k, n_landmarks); `exact` in float64."""
        problem, blocks = self.problem, []
        for start, stop in block_slices(problem.source, 0, problem.n_rows):
            penalties, targets = problem.penalties[start:stop], problem.targets[start:stop]
            blocks.append(_Block(start, stop, penalties, targets, problem.epsilon))
        decisions = np.empty(problem.targets.shape, dtype=np.float32)
        u, terms = np.zeros_like(b), np.zeros((4, len(b)))
        error, largest, depth = 0.0, 0.0, 0
        began = time.perf_counter()
        for block, sums in self._map(blocks, b, exact):
            decisions[block.start : block.stop] = sums.decisions
            u += sums.u
            terms += sums.terms
            error, largest = max(error, sums.error), max(largest, sums.largest)
            depth = max(depth, sums.depth)
        seconds = time.perf_counter() - began
        if exact:
            self.exact_seconds = max(self.exact_seconds, seconds)
        else:
            self.gradient_seconds = max(self.gradient_seconds, seconds)
        return Gradient(u, terms, decisions, error, largest, depth + len(blocks))

    def exact_cost(self) -> float:
        """Time of a gradient from float64 kernel values over that of one from float32."""
        b = np.zeros((self.problem.n_classifiers, len(self.landmarks)))
        seconds = []
        for exact in (False, True):
            self.gradient(b, exact=exact)  # loads compiled code
            began = time.perf_counter()
            self.gradient(b, exact=exact)
            seconds.append(time.perf_counter() - began)
        return max(1.0, seconds[1] / seconds[0])

    def hessian_product(
        self, active: BoolArray, d: Float64Array, *, exact: bool = False
    ) -> Float64Array:
        """Sum C_i k(x_i) k(x_i)'d over the active rows of each classifier, shape of `d`."""
        product, problem = np.zeros_like(d), self.problem
        blocks = [
            _Block(start, stop, problem.penalties[start:stop], active=active[start:stop])
            for start, stop in block_slices(problem.source, 0, problem.n_rows)
            if active[start:stop].any()
        ]
        for _, sums in self._map(blocks, d, exact):
            product += sums.u
        return product

    def _map(
        self, blocks: list[_Block], weights: Float64Array, exact: bool
    ) -> Iterator[tuple[_Block, Gradient]]:
        """Sums of all blocks, in order."""
        source, count = self.problem.source, self.landmarks.engine.count
        over = partial(self._workers.over, source, _pass_block, blocks, count=count)
        for number, (block, sums) in enumerate(over(self._shared, weights, exact), 1):
            if self._on_block is not None:
                self._on_block(number / len(blocks))
            yield block, sums


def add_to_hessian(
    hessian: Float64Array,
    landmarks: Landmarks,
    rows: Rows,
    factors: tuple[Int64Array, Float64Array],
    check: Callable[[], None],
) -> None:
    """Add sum_i C_i k(x_i) k(x_i)' to the lower triangle of `hessian`, and more above it.

    `factors` are places of some of the rows, and their C_i, which may be negative. `check` is
    called for every few hundred rows.
    """
    n, engine = len(landmarks), landmarks.engine
    strips = [
        slice(first, min(first + _HESSIAN_COLUMNS, n)) for first in range(0, n, _HESSIAN_COLUMNS)
    ]
    places, weights = factors
    for first in range(0, len(places), _HESSIAN_ROWS):
        part = slice(first, first + _HESSIAN_ROWS)
        x, row_weights = engine.prepare(take_rows(rows, places[part])), weights[part, None]
        values = np.empty((len(x), n))
        for start in range(0, len(x), _KERNEL_ROWS):
            some = x[start : start + _KERNEL_ROWS]
            products = np.empty((len(some), n), dtype=np.float32)
            engine.block(some, landmarks.fast, products)
            np.add(products, 1.0, out=values[start : start + len(some)], dtype=np.float64)

        def add(
            columns: slice, values: Float64Array = values, weights: Float64Array = row_weights
        ) -> None:
            right = values[:, columns] * weights
            hessian[columns.start :, columns] += values[:, columns.start :].T @ right

        for _ in engine.pool.map(add, strips):
            pass
        check()
