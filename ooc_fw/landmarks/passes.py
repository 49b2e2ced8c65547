"""Passes over the rows of a span problem, block by block: gradient, products with the Hessian.

Sums over the rows of a block, and then over blocks, are added up in the order of the rows, so that
neither threads nor processes change a bit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ooc_fw._core.strips import strip_sums, strip_transposed_sums
from ooc_fw.data.parallel import LocalWorkers, Shared, Workers, shared_source
from ooc_fw.data.rows import (
    AnyArray,
    Float32Array,
    Float64Array,
    Int8Array,
    Rows,
    rows_bytes,
    take_rows,
)
from ooc_fw.data.sources import RowSource, block_slices
from ooc_fw.landmarks.span import Landmarks
from ooc_fw.problem import Problem

BoolArray = npt.NDArray[np.bool_]

_HESSIAN_ROWS = 1024  # rows whose products are added to a Hessian together
_HESSIAN_COLUMNS = 512  # columns of a Hessian that one thread computes together


@dataclass(frozen=True)
class SpanProblem:
    """Rows with the labels of k classifiers that share their landmarks.

    Parameters
    ----------
    source : RowSource
        All rows.
    signs : ndarray of int8, shape (n_rows, k)
        -1 or +1 of each row for each classifier.
    penalties : ndarray of float64, shape (n_rows,)
        Positive penalty of a unit squared slack of each row.
    """

    source: RowSource
    signs: Int8Array
    penalties: Float64Array

    @classmethod
    def of(cls, problem: Problem, C: float) -> SpanProblem:
        """One classifier of two classes, else one of each class against the rest."""
        positive = np.arange(1, 2) if problem.n_classes == 2 else np.arange(problem.n_classes)
        return cls(
            problem.source,
            np.where(problem.codes[:, None] == positive, np.int8(1), np.int8(-1)),
            np.full(len(problem.codes), C) if problem.penalties is None else problem.penalties,
        )

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.signs)

    @property
    def n_classifiers(self) -> int:
        """Number of classifiers."""
        return int(self.signs.shape[1])


@dataclass(frozen=True)
class Gradient:
    """What a pass found, for each of k classifiers, with beta_i = C_i xi_i.

    Parameters
    ----------
    decisions : ndarray of float32, shape (n_rows, k)
        h(x_i).
    u : ndarray of float64, shape (k, n_landmarks)
        sum beta_i y_i k(x_i).
    total, square : ndarray of float64, shape (k,)
        sum beta_i and sum beta_i^2 / C_i.
    error : float
        Bound on the error of a weighted mean of kernel values of any row, for an exact pass.
    largest : float
        Bound on all k(x_i, x_i) + 1.
    depth : int
        Largest number of additions that a term of the sums over rows goes through.
    """

    decisions: Float32Array
    u: Float64Array
    total: Float64Array
    square: Float64Array
    error: float
    largest: float
    depth: int


class _Block(NamedTuple):
    """Rows ``start:stop``; `places` are those that are looked at, None for all of them.

    `factors` are the penalties of these rows or, for a product with the Hessian, those of the rows
    inside the margin of each classifier and 0 for the others.
    """

    start: int
    stop: int
    places: AnyArray | None
    signs: Int8Array | None
    factors: Float64Array


class _Sums(NamedTuple):
    """Sums over a block: u or the product, sum beta, sum beta^2 / C; and what it took."""

    u: Float64Array
    total: Float64Array
    square: Float64Array
    decisions: Float32Array | None
    error: float
    largest: float
    depth: int
    n_read: int
    n_bytes: int
    n_evaluations: int


def _pass_block(
    landmarks: Shared[Landmarks],
    source: Shared[RowSource],
    weights: Shared[Float64Array],
    exact: bool,
    block: _Block,
) -> _Sums:
    """Sums of the gradient over a block, or of a product with the Hessian if it has no signs."""
    own, w = landmarks.get(), weights.get()
    rows = source.get().read(block.start, block.stop)
    source.get().check_unchanged()
    n_read, n_bytes = len(rows), rows_bytes(rows)
    if block.places is not None and len(block.places) < n_read:
        rows = take_rows(rows, block.places)
    k, bias = len(w), w.sum(axis=1)
    keeps = block.signs is not None
    decisions = np.empty((len(rows), k), dtype=np.float32) if keeps else None

    def use(part: slice, values: AnyArray) -> tuple[Float64Array, Float64Array, Float64Array, int]:
        h = np.empty((len(values), k))
        strip_sums(values, w, h)
        h += bias
        if decisions is None or block.signs is None:
            terms = beta = h * block.factors[part]
            square = beta
        else:
            decisions[part] = h
            y, C = block.signs[part], block.factors[part]
            slack = np.maximum(0.0, 1.0 - y * h)
            beta, square = C * slack, C * slack**2
            terms = beta * y
        u = np.zeros((k, len(own)))
        strip_transposed_sums(values, terms, u)
        u += terms.sum(axis=0)[:, None]
        return u, beta.sum(axis=0), square.sum(axis=0), len(values)

    u, total, square = np.zeros((k, len(own))), np.zeros(k), np.zeros(k)
    x, z = own.engine.prepare(rows, exact), own.exact if exact else own.fast
    n_strips = longest = 0
    for *sums, length in own.engine.strips(x, z, use):
        for whole, part in zip((u, total, square), sums, strict=True):
            whole += part
        n_strips, longest = n_strips + 1, max(longest, length)
    error = float(own.engine.error_bound(x, z).max(initial=0.0)) if exact else 0.0
    largest = 1 + float(own.engine.kernel.diagonal(x.norms).max(initial=0.0))
    depth = n_strips + longest
    return _Sums(
        u, total, square, decisions, error, largest, depth, n_read, n_bytes, len(rows) * len(own)
    )


class Passes:
    """Passes over the rows of a problem.

    Parameters
    ----------
    problem : SpanProblem
        Rows and labels.
    landmarks : Landmarks
        What kernel values are computed with.
    workers : Workers, optional
        Where blocks are looked at; None is here, on the threads of the landmarks' engine.
    on_block : callable, optional
        Called after each block with the share of the pass that is done. It may raise to end it.

    Attributes
    ----------
    gradient_seconds : float
        Time of the longest gradient so far with float32 kernel values.
    """

    def __init__(
        self,
        problem: SpanProblem,
        landmarks: Landmarks,
        workers: Workers | None = None,
        on_block: Callable[[float], None] | None = None,
    ) -> None:
        self.problem, self.landmarks = problem, landmarks
        self._workers = LocalWorkers(1) if workers is None else workers
        self._on_block = on_block
        self.gradient_seconds = 0.0
        self._shared = landmarks.shared(), shared_source(problem.source, self._workers)

    def gradient(self, b: Float64Array, *, exact: bool = False) -> Gradient:
        """Pass over all rows at weights `b`, shape (k, n_landmarks).

        `exact` computes kernel values in float64.
        """
        problem = self.problem
        blocks = [
            _Block(
                start,
                stop,
                None,
                problem.signs[start:stop],
                problem.penalties[start:stop, None],
            )
            for start, stop in block_slices(problem.source, 0, problem.n_rows)
        ]
        decisions = np.empty(problem.signs.shape, dtype=np.float32)
        u, total, square = np.zeros_like(b), np.zeros(len(b)), np.zeros(len(b))
        error, largest, depth = 0.0, 0.0, 0
        began = time.perf_counter()
        for block, found in self._map(blocks, b, exact):
            decisions[block.start : block.stop] = found.decisions
            u += found.u
            total += found.total
            square += found.square
            error, largest = max(error, found.error), max(largest, found.largest)
            depth = max(depth, found.depth)
        if not exact:
            seconds = time.perf_counter() - began
            self.gradient_seconds = max(self.gradient_seconds, seconds)
        return Gradient(decisions, u, total, square, error, largest, depth + len(blocks))

    def hessian_product(self, active: BoolArray, d: Float64Array) -> Float64Array:
        """Sum C_i k(x_i) k(x_i)'d over the active rows of each classifier, shape of `d`."""
        product = np.zeros_like(d)
        blocks = []
        wanted: BoolArray = np.asarray(active.any(axis=1))
        for start, stop in block_slices(self.problem.source, 0, self.problem.n_rows):
            places = np.flatnonzero(wanted[start:stop])
            if len(places) > 0:
                factors = np.where(
                    active[start + places], self.problem.penalties[start + places, None], 0.0
                )
                blocks.append(_Block(start, stop, places, None, factors))
        for _, found in self._map(blocks, d, False):
            product += found.u
        return product

    def _map(
        self, blocks: list[_Block], weights: Float64Array, exact: bool
    ) -> Iterator[tuple[_Block, _Sums]]:
        """Sums of all blocks, in order."""
        shared: Shared[Any] = Shared(weights, lambda: weights)
        if self._workers.remote:
            shared = Shared(weights, _Given(weights))
        items = [(block,) for block in blocks]
        common = *self._shared, shared, exact
        with closing(self._workers.map(_pass_block, items, *common)) as results:
            for number, (block, found) in enumerate(zip(blocks, results, strict=True), 1):
                if self._workers.remote:
                    self.problem.source.count(found.n_read, found.n_bytes)
                    self.landmarks.engine.count(found.n_evaluations)
                if self._on_block is not None:
                    self._on_block(number / len(blocks))
                yield block, found


class _Given:
    """An array for another process."""

    def __init__(self, value: AnyArray) -> None:
        self._value = value

    def __call__(self) -> AnyArray:
        return self._value


def add_to_hessian(
    hessian: Float64Array, landmarks: Landmarks, rows: Rows, factors: Float64Array
) -> None:
    """Add sum_i factors_i k(x_i) k(x_i)' to the lower triangle of `hessian`, and more above it.

    `factors`, shape (n_rows,), may be negative.
    """
    n, engine = len(landmarks), landmarks.engine
    columns = [
        slice(first, min(first + _HESSIAN_COLUMNS, n)) for first in range(0, n, _HESSIAN_COLUMNS)
    ]
    x = engine.prepare(rows)
    for first in range(0, len(x), _HESSIAN_ROWS):
        part = slice(first, min(first + _HESSIAN_ROWS, len(x)))
        values = np.empty((part.stop - first, n), dtype=np.float32)
        engine.block(x[part], landmarks.fast, values)
        left = values.astype(np.float64)
        left += 1.0
        right = left * factors[part, None]

        def add(own: slice, left: Float64Array = left, right: Float64Array = right) -> None:
            hessian[own.start :, own] += left[:, own.start :].T @ right[:, own]

        for _ in engine.map(add, columns):
            pass
