"""The certificate: an exact duality gap from one sweep over all rows.

A sweep computes the gradient of every row with float32 kernel values and a rigorous bound on their
rounding. What the bound leaves open, which row is the worst, is computed again in float64 while
the block is in RAM, and so are the support's gradients and rho. What is left
is float64 rounding, which is bounded too and *added* to the gap: a certified gap is never smaller
than the truth.

Owns the sweep. Does not decide what to do about violators.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from ooc_fw.distinct import distinct_rows
from ooc_fw.engine import Engine, Nearest, Operand
from ooc_fw.kernels import FLOAT64_UNIT
from ooc_fw.problem import pair_gap
from ooc_fw.rows import Float64Array, Int8Array, Int64Array, Rows, take_rows
from ooc_fw.screening import Screen
from ooc_fw.sources import RowSource, iter_blocks

_SUSPECTS_PER_BLOCK = 8192  # rows of a block that are fetched by number


@dataclass(frozen=True)
class Certificate:
    """What a sweep found out.

    Parameters
    ----------
    certified_gap : float
        Upper bound on the relative duality gap, `rounding` included.
    rounding : float
        How far the bound may exceed the exact relative gap.
    pair_gap : float
        (max g over the support - min g) / rho.
    objective, rho : float
        f and alpha' g, from float64 kernel values.
    n_violators : int
        Rows with g < rho (1 - tol); one that is within float32 rounding of it may be missed or
        counted, unless it is the worst.
    worst : ndarray of int64
        The worst violators, increasing row numbers.
    """

    certified_gap: float
    rounding: float
    pair_gap: float
    objective: float
    rho: float
    n_violators: int
    worst: Int64Array


@dataclass(frozen=True)
class SupportGradient:
    """Gradient at the support vectors, own alpha_i / C included, and a bound on its rounding."""

    grad: Float64Array
    rounding: float


@dataclass(frozen=True)
class _Look:
    """Rows under the weights, by float32 kernel values; arrays of shape (n_rows,).

    Parameters
    ----------
    decision, bound : ndarray of float64
        w.phi(x) + b, and how far it may be off.
    diagonal : ndarray of float64
        k(x, x).
    vertex : ndarray of int64, or None
        Place of the vertex nearest in feature space; None for kernels whose largest value is not
        the nearest vertex's.
    way : ndarray of float64, or None
        Upper bound on the distance to it.
    """

    decision: Float64Array
    bound: Float64Array
    diagonal: Float64Array
    vertex: Int64Array | None
    way: Float64Array | None


@dataclass(frozen=True)
class _Class:
    """The vertices of one class: label, places among all vertices, rows and weights."""

    sign: float
    places: Int64Array
    z: Operand
    alpha: Float64Array


class _Weights:
    """A model under test: its vertices in both precisions."""

    def __init__(self, engine: Engine, rows: Rows, alpha: Float64Array, labels: Int8Array) -> None:
        self._engine = engine
        self._beta = alpha * labels
        self._bias = float(self._beta.sum())
        self._z64 = engine.prepare64(rows)
        # Apart by class: the difference of two sums is the decision, their sum bounds its rounding.
        self._classes = []
        for sign in (1.0, -1.0):
            places = np.flatnonzero(labels == sign)
            z = engine.prepare(take_rows(rows, places))
            self._classes.append(_Class(sign, places, z, alpha[places]))

    def look(self, rows: Rows, with_nearest: bool) -> _Look:
        """Decisions from float32 kernel values, and what bounds them."""
        distinct = distinct_rows(rows)
        x = self._engine.prepare(distinct.rows)
        decision = np.full(len(x), self._bias)
        mean = np.zeros(len(x))
        nearest = None
        for part in self._classes:
            near = Nearest(len(x)) if with_nearest else None
            sums = self._engine.weighted_sum(x, part.z, part.alpha, near)
            decision += part.sign * sums
            mean += sums
            if near is not None and len(part.z) > 0:
                near.place = part.places[near.place]
                nearest = near if nearest is None else nearest.or_nearer(near)
        spread = distinct.spread
        diagonal = self._engine.kernel.diagonal(x.norms)
        vertex = way = None
        if nearest is not None:
            square = 2 * (diagonal - nearest.value + self._error_bound(x, 1.0))
            vertex, way = spread(nearest.place), spread(np.sqrt(np.maximum(square, 0.0)))
        bound = self._error_bound(x, mean)
        return _Look(spread(decision), spread(bound), spread(diagonal), vertex, way)

    def _error_bound(self, x: Operand, mean: Float64Array | float) -> Float64Array:
        bounds = [self._engine.error_bound(x, part.z, mean) for part in self._classes]
        return np.asarray(np.maximum.reduce(bounds))

    def decision64(self, rows: Rows) -> tuple[Float64Array, float]:
        """w.phi(x) + b from float64 kernel values, and a bound on its rounding."""
        distinct = distinct_rows(rows)
        x = self._engine.prepare64(distinct.rows)
        sums = self._engine.weighted_sum64(x, self._z64, self._beta) + self._bias
        rounding = float(self._engine.error_bound64(x, self._z64).max(initial=0.0))
        return distinct.spread(sums), rounding

    def support_gradient(
        self, rows: Rows, labels: Int8Array, slack: Float64Array
    ) -> SupportGradient:
        """Gradient at the vertices, given their own alpha_i / C."""
        decision, rounding = self.decision64(rows)
        return SupportGradient(labels * decision + slack, rounding)


class _Worst:
    """The rows of least gradient among violators, at most `size` of them."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._ids = np.empty(0, dtype=np.int64)
        self._grads = np.empty(0)

    def offer(self, ids: Int64Array, grads: Float64Array) -> None:
        self._ids = np.concatenate([self._ids, ids])
        self._grads = np.concatenate([self._grads, grads])
        if len(self._ids) > self._size:
            # A stable order, so that ties do not depend on how the file was cut into blocks.
            best = np.argsort(self._grads, kind="stable")[: self._size]
            best.sort()
            self._ids, self._grads = self._ids[best], self._grads[best]

    def ids(self) -> Int64Array:
        return np.sort(self._ids)


def certify(
    source: RowSource,
    labels: Int8Array,
    engine: Engine,
    C: float,
    *,
    rows: Rows,
    row_ids: Int64Array,
    alpha: Float64Array,
    tol: float,
    n_worst: int = 0,
    support: SupportGradient | None = None,
    screen: Screen | None = None,
    suspects: Int64Array | None = None,
    on_block: Callable[[int], None] | None = None,
) -> Certificate:
    """Sweep over `source` once and bound the duality gap of the weights `alpha`.

    Parameters
    ----------
    source : RowSource
        All rows of the problem.
    labels : ndarray of int8, shape (n_rows,)
        +1 or -1 of each row of the source.
    engine : Engine
        Computes kernel values.
    C : float
        Penalty of a unit squared slack.
    rows : Rows, shape (n_support, n_features)
        Support vectors.
    row_ids : ndarray of int64, shape (n_support,)
        Their rows in the source, without repeats.
    alpha : ndarray of float64, shape (n_support,)
        Their weights: positive, sum 1.
    tol : float
        Relative gap above which a row counts as a violator.
    n_worst : int
        Number of violators to remember.
    support : SupportGradient, optional
        What `support_gradient` would find, where the caller has it already.
    screen : Screen, optional
        Filled with lower bounds of every row's gradient; goes with a sweep over all rows.
    suspects : ndarray of int64, optional
        Increasing row numbers; only these are looked at. The caller knows that no other row is
        below the least gradient of the support: see :mod:`ooc_fw.screening`.
    on_block : callable, optional
        Called after each block with the number of rows seen so far.

    Raises
    ------
    InputError
        The source changed or cannot be read.

    Notes
    -----
    The weights sum to 1, so a float32 gradient errs by |g - g_float32| <= sum_j alpha_j |k_j -
    k_j_float32|: by no more than the worst kernel value, and where values err in proportion to
    themselves, in proportion to sum_j alpha_j k_j. See `Kernel.error_bound`.
    """
    source.check_unchanged()
    weights = _Weights(engine, rows, alpha, labels[row_ids])
    if support is None:
        support = weights.support_gradient(rows, labels[row_ids], alpha / C)
    support_grad, rounding = support.grad, support.rounding
    rho = float(alpha @ support_grad)
    threshold = rho * (1 - tol)
    least = float(support_grad.min())
    n_violators = int(np.count_nonzero(support_grad < threshold))
    worst = _Worst(n_worst)
    is_support = np.zeros(source.n_rows, dtype=bool)
    is_support[row_ids] = True
    if screen is not None:
        diagonal = engine.kernel.diagonal(engine.prepare64(rows).norms)
        vertices, no_way = np.arange(len(row_ids)), np.zeros(len(row_ids))
        screen.record(row_ids, support_grad - alpha / C - rounding, diagonal, vertices, no_way)
    with_nearest = screen is not None and engine.kernel.constant_diagonal

    rows_seen = 0
    for ids, block in _blocks(source, suspects):
        rows_seen += len(ids)
        others = np.flatnonzero(~is_support[ids])
        if len(others) > 0:
            ids, block = ids[others], take_rows(block, others)
            y = labels[ids]
            look = weights.look(block, with_nearest)
            grad, bound = y * look.decision, look.bound

            floor = min(least, float((grad + bound).min()))
            open_rows = np.flatnonzero(grad - bound <= floor)
            if len(open_rows) > 0:
                exact, block_rounding = weights.decision64(take_rows(block, open_rows))
                rounding = max(rounding, block_rounding)
                grad[open_rows] = y[open_rows] * exact
                bound[open_rows] = block_rounding
                least = min(least, float(grad[open_rows].min()))
            found = np.flatnonzero(grad < threshold)
            n_violators += len(found)
            worst.offer(ids[found], grad[found])
            if screen is not None:
                screen.record(ids, grad - bound, look.diagonal, look.vertex, look.way)
        if on_block is not None:
            on_block(rows_seen)

    # Sums over the support: of its weights, and of weights times gradients.
    terms = (len(alpha) + 4) * FLOAT64_UNIT
    rounding += terms * (1 + float(np.abs(support_grad).max()))
    gap, upper = max(0.0, (rho - least) / rho), math.inf
    if rho > rounding:  # else nothing is known of rho, not even its sign
        # rho is a convex combination of gradients, so it errs by no more than they do.
        upper = max(0.0, (rho - least + 2 * rounding) / (rho - rounding))
    return Certificate(
        certified_gap=upper,
        rounding=upper - gap,
        pair_gap=pair_gap(float(support_grad.max()), least, rho),
        objective=rho / 2,
        rho=rho,
        n_violators=n_violators,
        worst=worst.ids(),
    )


def _blocks(source: RowSource, suspects: Int64Array | None) -> Iterator[tuple[Int64Array, Rows]]:
    """Row numbers and rows, block by block: all of them, or the suspects."""
    if suspects is None:
        for start, rows in iter_blocks(source, 0, source.n_rows):
            yield np.arange(start, start + len(rows)), rows
        return
    for start in range(0, len(suspects), _SUSPECTS_PER_BLOCK):
        ids = suspects[start : start + _SUSPECTS_PER_BLOCK]
        yield ids, source.take(ids)
