"""Passes over the rows of a span problem, block by block: gradient, products with the Hessian.

Sums over the rows of a block, and then over blocks, are added up in the order of the rows, so that
neither threads nor processes change a bit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ooc_fw._core import maps
from ooc_fw.data.parallel import Workers
from ooc_fw.data.rows import (
    AnyArray,
    CSRRows,
    Float32Array,
    Float64Array,
    Int8Array,
    Int64Array,
    Rows,
    take_rows,
)
from ooc_fw.data.sources import ArraySource, CSRSource, RowSource, block_slices
from ooc_fw.kernels.engine import UInt16Array
from ooc_fw.landmarks.span import Landmarks
from ooc_fw.problem import Problem, RegressionProblem
from ooc_fw.system.memory import bytes_above

BoolArray = npt.NDArray[np.bool_]

_HESSIAN_ROWS = 512  # rows whose products are added to a Hessian together
_KERNEL_ROWS = 128  # rows whose kernel values are computed in float32 together, a part of those
_HESSIAN_COLUMNS = 256  # columns of a Hessian that one thread computes together
_UNIT = 1 / 65535  # distance between two kernel values in 16 bits
_STRIP_BYTES = 2 << 20  # bytes of 16-bit kernel values of the rows whose products one thread sums
_LEAST_STRIP = 128  # least number of these rows, however many landmarks there are


@dataclass(frozen=True)
class SpanProblem:
    """Rows with the labels of k classifiers that share their landmarks, or with targets."""

    source: RowSource
    targets: Int8Array | Float64Array  # (n_rows, k): labels, or of float64 for regression
    penalties: Float64Array  # (n_rows,), positive
    epsilon: float | None = None  # half the width of the tube of regression
    bias: float = 1.0  # of `Landmarks`

    @classmethod
    def of(cls, problem: Problem, C: float) -> SpanProblem:
        """One classifier of two classes, else one of each class against the rest; or another task.

        Novelty is the problem of rows that are all of the class +1, without a bias.
        """
        source, penalties = problem.source, problem.penalties
        if penalties is None:
            penalties = np.broadcast_to(np.float64(C), source.n_rows)  # takes no memory
        if isinstance(problem, RegressionProblem):
            return cls(source, problem.targets[:, None], penalties, problem.epsilon)
        if problem.task == "novelty":
            return cls(source, problem.answers[:, None], penalties, bias=0.0)
        k = problem.n_classifiers
        positive = np.arange(1, 2) if k == 1 else np.arange(k)
        signs = np.where(problem.row_classes[:, None] == positive, np.int8(1), np.int8(-1))
        return cls(source, signs, penalties)

    def part(self, rows: Rows, ids: Int64Array) -> SpanProblem:
        """The problem on some rows, in memory, of the numbers `ids`."""
        source = CSRSource(rows) if isinstance(rows, CSRRows) else ArraySource(rows)
        targets, penalties = self.targets[ids], self.penalties[ids]
        return replace(self, source=source, targets=targets, penalties=penalties)

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
    """What a pass over some rows found, for each of k classifiers, with beta_i = C_i xi_i."""

    u: Float64Array  # (k, n_landmarks): sum beta_i s_i k(x_i), with the signs s_i of `slacks`
    # (4, k): the total that beta has in the dual beside its norm, sum beta_i, in regression
    # sum beta_i (s_i y_i - epsilon); the square sum beta_i^2 / C_i; the size sum beta_i; and a
    # linear bound on the absolute terms of the total.
    terms: Float64Array
    decisions: Float32Array  # (n_rows, k): h(x_i)
    error: float  # bound on the error of a weighted mean of a row's kernel values, if exact
    largest: float  # bound on all k(x_i, x_i) + bias
    depth: int  # most additions that a term of the sums over rows goes through


class _Block(NamedTuple):
    """Rows ``start:stop`` with their targets or, for a product with the Hessian, `active` ones.

    `values` are their kernel values in 16 bits: kept ones, or the memory for those of a gradient.
    """

    start: int
    stop: int
    penalties: Float64Array  # (n,)
    targets: AnyArray = np.empty(0)  # (n, k), of int8 or float64
    epsilon: float | None = None
    active: AnyArray = np.empty(0)  # (n, k): the rows inside the margin of each classifier
    values: UInt16Array | None = None  # (n, n_landmarks)


def _gradient(
    source: RowSource, block: _Block, landmarks: Landmarks, b: Float64Array, exact: bool
) -> Gradient:
    """Sums over a block of the gradient at weights `b`."""
    engine, epsilon, k, bias = landmarks.engine, block.epsilon, len(b), landmarks.bias
    rows = source.read(block.start, block.stop)
    shift, decisions = bias * b.sum(axis=1), np.empty((len(rows), k), dtype=np.float32)

    def use(
        part: slice, sums: Float64Array
    ) -> tuple[tuple[Float64Array, Float64Array, int], Float64Array]:
        h, targets = sums + shift, block.targets[part]
        decisions[part] = h
        slack, signs = slacks(targets, h, epsilon)
        beta = block.penalties[part, None] * slack
        factored = beta * signs
        terms = dual_terms(beta, slack, signs, targets, epsilon)
        return (bias * factored.sum(axis=0), terms, len(h)), factored

    u, terms = np.zeros((k, len(landmarks))), np.zeros((4, k))
    x, z = engine.prepare(rows, exact), landmarks.exact if exact else landmarks.fast
    n_strips = longest = 0
    for (total, of_strip, length), sums in engine.strips(x, z, b, use, block.values):
        u += sums + total[:, None]
        terms += of_strip
        n_strips, longest = n_strips + 1, max(longest, length)
    error = float(engine.error_bound(x, z).max(initial=0.0)) if exact else 0.0
    largest = bias + float(engine.kernel.diagonal(x.norms).max(initial=0.0))
    return Gradient(u, terms, decisions, error, largest, n_strips + longest)


def _product(
    source: RowSource, block: _Block, landmarks: Landmarks, d: Float64Array, dtype: Any
) -> Float64Array:
    """Product of the Hessian over a block with `d`, from kernel values in some precision.

    Those in 16 bits are the `values` of the block or computed some strips at a time. Others
    are of use twice as long as a strip is at hand.
    """
    engine, width, values, bias = landmarks.engine, len(landmarks), block.values, landmarks.bias
    places = np.flatnonzero(block.active.any(axis=1))
    factors = np.where(block.active[places], block.penalties[places, None], 0.0)
    n, product, exact = len(places), np.zeros_like(d), dtype == np.float64
    if values is None:
        rows = source.read(block.start, block.stop)
        x = engine.prepare(rows if n == len(rows) else take_rows(rows, places), exact)
        z = landmarks.exact if exact else landmarks.fast
    if dtype != np.uint16:
        shift = bias * d.sum(axis=1)

        def use(part: slice, sums: Float64Array) -> tuple[Float64Array, Float64Array]:
            factored = (sums + shift) * factors[part]
            return bias * factored.sum(axis=0), factored

        for total, sums in engine.strips(x, z, d, use):
            product += sums + total[:, None]
        return product
    height = max(_LEAST_STRIP, _STRIP_BYTES // (2 * width))
    step, numbers = n, places
    if values is None:
        step = height * engine.threads
        values, numbers = np.empty((min(step, n), width), dtype=np.uint16), np.arange(n) % step

    def run(start: int) -> Float64Array:
        strip, sums = slice(start, min(start + height, n)), np.zeros_like(d)
        maps.add_products(values, numbers[strip], d, factors[strip], (_UNIT, bias), sums)
        return np.asarray(sums * _UNIT + bias * factors[strip].sum(axis=0)[:, None])

    for first in range(0, n, step):
        stop = min(first + step, n)
        if block.values is None:
            engine.block(x[first:stop], z, values[: stop - first])
        for sums in engine.pool.map(run, range(first, stop, height)):
            product += sums
    return product


class KeptValues:
    """Memory for kernel values in 16 bits, those of the first rows of a source with landmarks.

    Whoever asks for those of other rows or landmarks takes the memory over.
    """

    def __init__(self, n_bytes: int, limit: int | None = None) -> None:
        self._limit = limit
        # Pages that are never written take no memory.
        self._memory: UInt16Array = np.empty(n_bytes // 2, dtype=np.uint16)
        self._of: tuple[RowSource, Landmarks] | None = None
        self.filled: set[int] = set()  # first rows of the blocks whose values are there

    def of_block(self, start: int, stop: int, source: RowSource, landmarks: Landmarks) -> Any:
        """Values of a block, shape (n, n_landmarks), `filled` or not; None without memory."""
        if bytes_above(self._limit) > 0:
            self._memory, self.filled = self._memory[:0].copy(), set()
        if self._of is None or self._of[0] is not source or self._of[1] is not landmarks:
            self._of, self.filled = (source, landmarks), set()
        width = len(landmarks)
        if stop * width > len(self._memory):
            return None
        return self._memory[start * width : stop * width].reshape(-1, width)


class Passes:
    """Passes over the rows of a problem; `on_block` is told the share done, and may raise.

    Kernel values of gradients in float32 stay in `kept`, for products with the Hessian, which are
    from 16 bits then.
    """

    def __init__(
        self,
        problem: SpanProblem,
        landmarks: Landmarks,
        workers: Workers | None = None,
        on_block: Callable[[float], None] | None = None,
        kept: KeptValues | None = None,
    ) -> None:
        self.problem, self.landmarks = problem, landmarks
        self._workers = Workers(1) if workers is None else workers
        self._on_block = on_block
        self.gradient_seconds = 0.0  # of the last one in float32: the first may compile code
        self.exact_seconds = 0.0  # of the longest one in float64
        in_unit = landmarks.engine.kernel.shift_invariant  # kernel values lie in [0, 1]
        self._dtype = np.uint16 if in_unit and kept is not None else np.float32  # of products
        self._kept = kept if in_unit and self._workers.client is None else None

    def _values(self, start: int, stop: int, filled: bool) -> UInt16Array | None:
        """Kernel values of a block that are kept, or memory that is yet to be `filled`."""
        if self._kept is None:
            return None
        values = self._kept.of_block(start, stop, self.problem.source, self.landmarks)
        return values if (start in self._kept.filled) is filled else None

    def gradient(self, b: Float64Array, *, exact: bool = False) -> Gradient:
        """Pass over all rows at weights `b`, shape (k, n_landmarks); `exact` in float64."""
        problem, blocks = self.problem, []
        for start, stop in block_slices(problem.source, 0, problem.n_rows):
            penalties, targets = problem.penalties[start:stop], problem.targets[start:stop]
            values = None if exact else self._values(start, stop, filled=False)
            block = _Block(start, stop, penalties, targets, problem.epsilon, values=values)
            blocks.append(block)
        decisions = np.empty(problem.targets.shape, dtype=np.float32)
        u, terms = np.zeros_like(b), np.zeros((4, len(b)))
        error, largest, depth = 0.0, 0.0, 0
        began = time.perf_counter()
        for block, sums in self._map(_gradient, blocks, b, exact):
            if self._kept is not None and block.values is not None:
                self._kept.filled.add(block.start)
            decisions[block.start : block.stop] = sums.decisions
            u += sums.u
            terms += sums.terms
            error, largest = max(error, sums.error), max(largest, sums.largest)
            depth = max(depth, sums.depth)
        seconds = time.perf_counter() - began
        if exact:
            self.exact_seconds = max(self.exact_seconds, seconds)
        else:
            self.gradient_seconds = seconds
        return Gradient(u, terms, decisions, error, largest, depth + len(blocks))

    def hessian_product(
        self, active: BoolArray, d: Float64Array, *, exact: bool = False
    ) -> Float64Array:
        """Sum C_i k(x_i) k(x_i)'d over the active rows of each classifier, shape of `d`."""
        product, problem, blocks = np.zeros_like(d), self.problem, []
        for start, stop in block_slices(problem.source, 0, problem.n_rows):
            if active[start:stop].any():
                values = None if exact else self._values(start, stop, filled=True)
                block = _Block(start, stop, problem.penalties[start:stop], values=values)
                blocks.append(block._replace(active=active[start:stop]))
        dtype = np.float64 if exact else self._dtype
        for _, of_block in self._map(_product, blocks, d, dtype):
            product += of_block
        return product

    def _map(
        self, work: Callable[..., Any], blocks: list[_Block], *common: Any
    ) -> Iterator[tuple[_Block, Any]]:
        """What is found in all blocks, in order."""
        found = self._workers.over(self.problem.source, work, blocks, self.landmarks, *common)
        for number, (block, sums) in enumerate(found, 1):
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
            np.add(
                products, landmarks.bias, out=values[start : start + len(some)], dtype=np.float64
            )

        def add(
            columns: slice, values: Float64Array = values, weights: Float64Array = row_weights
        ) -> None:
            right = values[:, columns] * weights
            hessian[columns.start :, columns] += values[:, columns.start :].T @ right

        for _ in engine.pool.map(add, strips):
            pass
        check()
