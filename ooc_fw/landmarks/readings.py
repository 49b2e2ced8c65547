"""Readings over the rows of a span problem, block by block: gradient, products with the Hessian."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ooc_fw._core import maps
from ooc_fw.data.parallel import Workers, row_slices
from ooc_fw.data.rows import (
    AnyArray,
    Float32Array,
    Float64Array,
    Int8Array,
    Int64Array,
    Rows,
    rows_bytes,
    take_rows,
)
from ooc_fw.data.sources import CHUNK_BYTES, RowSource, block_slices, rows_source
from ooc_fw.kernels.engine import UInt16Array
from ooc_fw.landmarks.columns import AnyFeatures
from ooc_fw.landmarks.span import KERNEL_ROWS
from ooc_fw.problem import Problem, RegressionProblem
from ooc_fw.system.memory import bytes_above

BoolArray = npt.NDArray[np.bool_]

_UNIT = 1 / 65535  # distance between two kernel values in 16 bits


class Past(NamedTuple):
    """What is known of rows that are gone, for which some weights b are the best ones.

    Rows with labels stand for them, with their loss in P. For any such rows, 1/2 |w - w0|^2 in
    place of 1/2 |w|^2 in P makes b the best weights again. Without new rows P would be the sum of
    both at b. Most of that is taken off, since gaps are shares of P, and new rows may be few.
    """

    origin: Float64Array  # (k, N): the weights w0
    least: Float64Array  # (k,): taken off, 99 % of the sum; the rest is more than rounding


@dataclass(frozen=True)
class SpanProblem:
    """Rows with labels for k classifiers that share their landmarks, or with targets."""

    source: RowSource
    targets: Int8Array | Float64Array  # (n_rows, k): labels, or float64 targets of a regression
    penalties: Float64Array  # (n_rows,), positive
    epsilon: float | None = None  # half the width of the tube of regression
    bias: float = 1.0  # see `Landmarks`
    past: Past | None = None

    @classmethod
    def of(cls, problem: Problem, C: float) -> SpanProblem:
        """Make the problem: one classifier for two classes, else one for each against the rest.

        Regression has its targets. Novelty detection has the label +1 for all rows, and no bias.
        """
        source = problem.source
        penalties = problem.penalties
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
        """The problem for some rows in memory, with the row numbers `ids`."""
        return replace(
            self,
            source=rows_source(rows, self.source.name),
            targets=self.targets[ids],
            penalties=self.penalties[ids],
        )

    def inside(self, decisions: Float32Array) -> BoolArray:
        """Which rows have a positive slack at these decision values, shape (n_rows, k)."""
        if self.epsilon is None:
            return np.asarray(self.targets * decisions < 1)
        return np.asarray(np.abs(self.targets - decisions) > self.epsilon)

    def losses(self, decisions: Float32Array) -> Float64Array:
        """C_i xi_i^2 at these decision values, summed over the classifiers, shape (n_rows,)."""
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

    The sign is the label in classification, and the sign of y_i - h(x_i) in regression.
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
    square = (beta * slack).sum(axis=0)
    size = beta.sum(axis=0)
    if epsilon is None:
        return np.stack([size, square, size, size])
    met = beta * signs * targets
    total = met.sum(axis=0) - epsilon * size
    return np.stack([total, square, size, np.abs(met).sum(axis=0) + epsilon * size])


class Gradient(NamedTuple):
    """Sums over some rows for each of k classifiers, with beta_i = C_i xi_i."""

    u: Float64Array  # (k, n_landmarks): sum beta_i s_i k(x_i), with the signs s_i of `slacks`
    # (4, k): the linear part of the dual, which is sum beta_i, or in regression
    # sum beta_i (s_i y_i - epsilon); the square sum beta_i^2 / C_i; the size sum beta_i; and a
    # bound on the absolute terms of the linear part.
    terms: Float64Array
    decisions: Float32Array  # (n_rows, k): h(x_i)
    error: float  # bound on the error of a weighted mean of a row's kernel values, if exact
    largest: float  # bound on all k(x_i, x_i) + bias
    depth: int  # largest number of additions for a term in the sums over rows

    def beside(self, others: Gradient, live: BoolArray) -> Gradient:
        """The gradient of all classifiers: this one is of the `live` ones, shape (k,)."""
        u = others.u.copy()
        terms = others.terms.copy()
        decisions = others.decisions.copy()
        u[live] = self.u
        terms[:, live] = self.terms
        decisions[:, live] = self.decisions
        error = max(self.error, others.error)
        largest = max(self.largest, others.largest)
        return Gradient(u, terms, decisions, error, largest, max(self.depth, others.depth))


class _Block(NamedTuple):
    """Rows ``start:stop``, and numbers that belong to them."""

    start: int
    stop: int
    penalties: Float64Array  # (n,)
    flags: AnyArray  # (n, k): targets, or for a product which rows are inside the margin
    kept: UInt16Array | None  # (n, n_landmarks): kept kernel values, or memory for them


def _gradient(
    source: RowSource,
    block: _Block,
    landmarks: AnyFeatures,
    b: Float64Array,
    epsilon: float | None,
    exact: bool,
) -> Gradient:
    """The gradient at weights `b`, summed over a block."""
    bias = landmarks.bias
    rows = source.read(block.start, block.stop)
    shift = bias * b.sum(axis=1)
    decisions = np.empty((len(rows), len(b)), dtype=np.float32)

    def use(part: slice, sums: Float64Array) -> tuple[tuple[Any, ...], Float64Array]:
        h = sums + shift
        decisions[part] = h
        targets = block.flags[part]
        slack, signs = slacks(targets, h, epsilon)
        beta = block.penalties[part, None] * slack
        terms = dual_terms(beta, slack, signs, targets, epsilon)
        factors = beta * signs
        return (bias * factors.sum(axis=0), terms, len(h)), factors

    u = np.zeros((len(b), len(landmarks)))
    terms = np.zeros((4, len(b)))
    depth = longest = 0
    x = landmarks.prepare(rows, exact)
    for (of_bias, of_strip, length), sums in landmarks.strips(x, b, use, block.kept):
        u += sums + of_bias[:, None]
        terms += of_strip
        depth += 1
        longest = max(longest, length)
    error, largest = landmarks.bounds(x, exact)
    return Gradient(u, terms, decisions, error, largest, depth + longest)


def _product(
    source: RowSource, block: _Block, landmarks: AnyFeatures, d: Float64Array, exact: bool
) -> Float64Array:
    """Product of the Hessian with `d`, summed over a block."""
    places = np.flatnonzero(block.flags.any(axis=1))
    factors = np.where(block.flags[places], block.penalties[places, None], 0.0)
    if block.kept is None:
        rows = source.read(block.start, block.stop)
        return landmarks.hessian_product(rows, places, d, factors, exact)
    bias = landmarks.bias
    product = np.zeros_like(d)
    kept = block.kept

    def run(rows: tuple[int, int]) -> Float64Array:
        part = slice(*rows)
        sums = np.zeros_like(d)
        maps.add_products(kept, places[part], d, factors[part], (_UNIT, bias), sums)
        return np.asarray(sums * _UNIT + bias * factors[part].sum(axis=0)[:, None])

    # Each thread takes 2 MiB of values in 16 bits.
    height = max(KERNEL_ROWS, (1 << 20) // len(landmarks))
    for sums in landmarks.engine.pool.map(run, row_slices(len(places), height)):
        product += sums
    return product


class KeptValues:
    """Memory for kernel values in 16 bits, between the first rows of a source and landmarks.

    A request for another source or other landmarks takes the memory over.
    """

    def __init__(self, n_bytes: int, limit: int | None = None) -> None:
        self._limit = limit
        # A page takes no memory before it is written.
        self._memory: UInt16Array = np.empty(n_bytes // 2, dtype=np.uint16)
        self._of: tuple[RowSource, AnyFeatures] | None = None
        self.filled: set[int] = set()  # first rows of the blocks with values

    def of_block(self, start: int, stop: int, source: RowSource, landmarks: AnyFeatures) -> Any:
        """Values or room for a block, shape (n, n_landmarks); None if it has no memory here."""
        if bytes_above(self._limit) > 0:
            self._memory = self._memory[:0].copy()
            self.filled = set()
        if self._of is None or self._of[0] is not source or self._of[1] is not landmarks:
            self._of = (source, landmarks)
            self.filled = set()
        width = len(landmarks)
        if stop * width > len(self._memory):
            return None
        return self._memory[start * width : stop * width].reshape(-1, width)


class Readings:
    """Readings over the rows of a problem; `on_block` gets the done share, and may raise.

    Kernel values in [0, 1] that a float32 gradient takes are kept in 16 bits, in `kept`. Products
    with the Hessian read them there.
    """

    def __init__(
        self,
        problem: SpanProblem,
        landmarks: AnyFeatures,
        workers: Workers | None = None,
        on_block: Callable[[float], None] | None = None,
        kept: KeptValues | None = None,
    ) -> None:
        self.problem = problem
        self.landmarks = landmarks
        self._workers = Workers(1) if workers is None else workers
        self._on_block = on_block
        in_unit = landmarks.engine.kernel.shift_invariant
        self._kept = kept if in_unit and self._workers.client is None else None

    def gradient(
        self, b: Float64Array, *, exact: bool = False, live: BoolArray | None = None
    ) -> Gradient:
        """The gradient at weights `b`, shape (k, n_landmarks), by a reading; `exact` in float64.

        The weights may be those of the `live` classifiers only.
        """
        problem = self.problem
        targets = problem.targets if live is None else problem.targets[:, live]
        blocks = self._blocks(targets, filled=None if exact else False)
        decisions = np.empty(targets.shape, dtype=np.float32)
        u = np.zeros_like(b)
        terms = np.zeros((4, len(b)))
        error = largest = 0.0
        depth = 0
        for block, found in self._map(_gradient, blocks, b, problem.epsilon, exact):
            if self._kept is not None and block.kept is not None:
                self._kept.filled.add(block.start)
            decisions[block.start : block.stop] = found.decisions
            u += found.u
            terms += found.terms
            error = max(error, found.error)
            largest = max(largest, found.largest)
            depth = max(depth, found.depth)
        return Gradient(u, terms, decisions, error, largest, depth + len(blocks))

    def hessian_product(
        self, active: BoolArray, d: Float64Array, *, exact: bool = False
    ) -> Float64Array:
        """Sum of C_i k(x_i) k(x_i)'d over each classifier's active rows; the shape is that of d."""
        blocks = self._blocks(active, filled=None if exact else True)
        product = np.zeros_like(d)
        for _, found in self._map(_product, [one for one in blocks if one.flags.any()], d, exact):
            product += found
        return product

    def _blocks(self, flags: AnyArray, filled: bool | None) -> list[_Block]:
        """All blocks, with kept kernel values (`filled`), with memory for them, or with None."""
        source = self.problem.source
        blocks = []
        # Rows that are kept in memory have blocks of this size.
        for start, stop in block_slices(source, 0, self.problem.n_rows, CHUNK_BYTES):
            kept = None
            if self._kept is not None and filled is not None:
                kept = self._kept.of_block(start, stop, source, self.landmarks)
                if (start in self._kept.filled) is not filled:
                    kept = None
            penalties = self.problem.penalties[start:stop]
            blocks.append(_Block(start, stop, penalties, flags[start:stop], kept))
        return blocks

    def _map(
        self, work: Callable[..., Any], blocks: list[_Block], *common: Any
    ) -> Iterator[tuple[_Block, Any]]:
        """Yield each block with the result of `work` for it, in order."""
        found = self._workers.over(self.problem.source, work, blocks, self.landmarks, *common)
        for number, each in enumerate(found, 1):
            if self._on_block is not None:
                self._on_block(number / len(blocks))
            yield each


def add_to_hessian(
    hessian: Float64Array,
    landmarks: AnyFeatures,
    rows: Rows,
    factors: tuple[Int64Array, Float64Array],
    check: Callable[[], None],
) -> None:
    """Add sum_i C_i k(x_i) k(x_i)' to the lower triangle of `hessian`; the upper one changes, too.

    `factors` are places of some rows, and their C_i, which may be negative. `check` is called once
    in a few hundred rows.
    """
    places, weights = factors
    strips = row_slices(len(landmarks), 256)  # columns for a thread at a time
    # Rows between two checks: they are copied twice, and one may have millions of features.
    copied = (1 << 22) * len(rows) // max(1, rows_bytes(rows))
    for part in row_slices(len(places), min(512, max(1, copied))):
        values = landmarks.values(take_rows(rows, places[slice(*part)]))
        each = weights[slice(*part), None]

        def add(strip: tuple[int, int], values: AnyArray = values, each: AnyArray = each) -> None:
            columns = slice(*strip)
            below = slice(strip[0], None)
            hessian[below, columns] += values[:, below].T @ (values[:, columns] * each)

        for _ in landmarks.engine.pool.map(add, strips):
            pass
        check()
