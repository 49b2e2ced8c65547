"""The certificate: an exact duality gap from one pass over all rows.

The pass computes the gradient of every row with float32 kernel values and a rigorous bound on their
rounding. Rows that may be the worst within that bound are computed again in float64, and so are the
gradients of the support and rho. Float64 rounding is bounded too and *added* to the gap: a
certified gap is never smaller than the truth. Blocks of rows are independent of each other, so that
least gradients, counts and worst violators do not depend on their order or grouping.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ooc_fw.certificate.screening import Bounds, Screen
from ooc_fw.data.parallel import LocalWorkers, Shared, borrow_workers, row_slices, shared_source
from ooc_fw.data.rows import Float64Array, Int8Array, Int64Array, Rows, rows_bytes, take_rows
from ooc_fw.data.sources import RowSource, block_slices
from ooc_fw.kernels.decisions import DecisionFunctions, Weights
from ooc_fw.kernels.distinct import distinct_rows
from ooc_fw.kernels.engine import Engine
from ooc_fw.kernels.functions import FLOAT64_UNIT
from ooc_fw.problem import BinaryProblem, check_weights, pair_gap

_SUSPECTS_PER_BLOCK = 8192  # rows of a block that are fetched by number


@dataclass(frozen=True)
class Certificate:
    """What a pass over the data found.

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
        Rows with g < rho (1 - tol). A row within float32 rounding of that may be missed or counted,
        unless it is the worst.
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
    """Gradient at the support vectors, own alpha_i / C_i included, and a bound on its rounding."""

    grad: Float64Array
    rounding: float


@dataclass(frozen=True)
class SupportWeights:
    """Weights to be certified."""

    rows: Rows  # (n_support, n_features): support vectors
    row_ids: Int64Array  # (n_support,): their rows in the source, without repeats
    alpha: Float64Array  # (n_support,): their weights, positive with sum 1
    C: float | Float64Array  # penalty of all rows, or of each support vector, (n_support,)
    gradient: SupportGradient | None = None  # their gradient, where the caller has it already


@dataclass(frozen=True)
class Search:
    """What a pass over the data looks for, and where."""

    tol: float  # relative gap above which a row counts as a violator
    n_worst: int = 0  # number of violators to remember
    # Filled with lower bounds of every row's gradient; goes with a pass over all rows.
    screen: Screen | None = None
    # Increasing row numbers; only these rows are looked at. The caller knows that no other row
    # is below the least gradient of the support: see :mod:`ooc_fw.certificate.screening`.
    suspects: Int64Array | None = None


@dataclass(frozen=True)
class _Look:
    """Decision values of some rows from float32 kernel values, and what bounds them.

    `vertex` is the vertex nearest in feature space and `way` an upper bound on the distance to it;
    None for kernels whose largest value is not the nearest vertex's. `n_distinct` rows had kernel
    values computed.
    """

    decision: Float64Array
    bound: Float64Array
    diagonal: Float64Array
    vertex: Int64Array | None
    way: Float64Array | None
    n_distinct: int


class _Weights:
    """The decision function of the weights under test, in both precisions."""

    def __init__(self, engine: Engine, rows: Rows, alpha: Float64Array, labels: Int8Array) -> None:
        self._kernel = engine.kernel
        own = Weights(np.arange(len(alpha)), alpha, labels)
        self._function = DecisionFunctions(engine, rows, [own])
        self._recipe = partial(_make_weights, engine.recipe(), rows, alpha, labels)

    def shared(self) -> Shared[_Weights]:
        """These weights for tasks in this process and in others."""
        return Shared(self, self._recipe)

    def __len__(self) -> int:
        return self._function.n_vertices

    def look(self, rows: Rows, with_nearest: bool) -> _Look:
        """Decisions from float32 kernel values, and what bounds them."""
        distinct = distinct_rows(rows)
        found = self._function.approximate(distinct.rows, with_nearest)
        x, nearest, spread = found.x, found.nearest, distinct.spread
        diagonal = self._kernel.diagonal(x.norms)
        vertex = way = None
        if nearest is not None:
            square = 2 * (diagonal - nearest.value + self._function.value_bound(x))
            vertex, way = spread(nearest.place), spread(np.sqrt(np.maximum(square, 0.0)))
        values, bound = spread(found.values), spread(found.bound)
        return _Look(values, bound, spread(diagonal), vertex, way, len(x))

    def decision64(self, rows: Rows) -> tuple[Float64Array, float, int]:
        """w.phi(x) + b from float64 kernel values, its rounding, and the number of distinct rows.

        One bound on the rounding serves all of them.
        """
        distinct = distinct_rows(rows)
        values, bounds = self._function.exact(distinct.rows)
        return distinct.spread(values), float(bounds.max(initial=0.0)), len(bounds)

    def support_gradient(
        self, rows: Rows, labels: Int8Array, slack: Float64Array
    ) -> SupportGradient:
        """Gradient at the vertices, given their own alpha_i / C_i."""
        decision, rounding, _ = self.decision64(rows)
        return SupportGradient(labels * decision + slack, rounding)


def _make_weights(
    engine: Callable[[], Engine], rows: Rows, alpha: Float64Array, labels: Int8Array
) -> _Weights:
    """Weights with an engine of their own, in a process that was sent what they are made of.

    The engine stays open, and BLAS at one thread, for as long as the process takes tasks.
    """
    return _Weights(engine(), rows, alpha, labels)


@dataclass(frozen=True)
class _Aim:
    """What blocks are searched for.

    Violators have a gradient below `threshold`, and `least` is the least gradient of the support.
    `with_bounds` asks for bounds for a `Screen`, and `with_nearest` for the nearest vertex in them.
    """

    threshold: float
    least: float
    n_worst: int
    with_bounds: bool
    with_nearest: bool


@dataclass(frozen=True)
class _Block:
    """Rows `start` to `stop` of the source, or of the increasing row numbers `suspects`.

    `support` are the places in the block of support vectors, which are left out; `labels` are those
    of all its rows.
    """

    start: int
    stop: int
    suspects: Int64Array | None
    support: Int64Array
    labels: Int8Array

    def others(self) -> Int64Array:
        """Places in the block of rows that are no support vectors."""
        return np.delete(np.arange(self.stop - self.start), self.support)

    def other_ids(self) -> Int64Array:
        """Row numbers of `others`."""
        others = self.others()
        return others + self.start if self.suspects is None else self.suspects[others]


@dataclass(frozen=True)
class _Findings:
    """What a block holds.

    `least` is the least float64 gradient among rows that may be below the support's, infinite where
    there is none, and `rounding` bounds its error. `worst` are the worst of `n_violators` rows, by
    increasing number, and `bounds` those of all rows that are no support vectors.
    """

    least: float
    rounding: float
    n_violators: int
    worst: Int64Array
    worst_grads: Float64Array
    bounds: Bounds | None
    n_read: int
    n_bytes: int
    n_evaluations: int


def _sweep_block(
    weights: Shared[_Weights], source: Shared[RowSource], aim: _Aim, block: _Block
) -> _Findings:
    """Look at one block.

    Notes
    -----
    Every row that may have the least gradient of all is computed in float64: a row whose lower
    bound is not above

        floor = min(least gradient of the support, least upper bound in this block).

    A row above the floor is above the support or above another row of this block, so it cannot be
    the least of all. The least upper bound of *other* blocks would spare a few more rows. But then
    the float64 values, counts, bounds and the stated rounding would depend on the order of blocks.
    """
    rows = _read(source.get(), block)
    n_read, n_bytes = len(rows), rows_bytes(rows)
    others, ids = block.others(), block.other_ids()
    if len(ids) == 0:
        nothing = np.empty(0)
        return _Findings(math.inf, 0.0, 0, ids, nothing, None, n_read, n_bytes, 0)
    if len(ids) < n_read:
        rows = take_rows(rows, others)
    y = block.labels[others]
    look = weights.get().look(rows, aim.with_nearest)
    grad, bound = y * look.decision, look.bound

    floor = min(aim.least, float((grad + bound).min()))
    open_rows = np.flatnonzero(grad - bound <= floor)
    least, rounding, n_evaluated = math.inf, 0.0, look.n_distinct
    if len(open_rows) > 0:
        exact, rounding, n_distinct = weights.get().decision64(take_rows(rows, open_rows))
        n_evaluated += n_distinct
        grad[open_rows] = y[open_rows] * exact
        bound[open_rows] = rounding
        least = float(grad[open_rows].min())
    found = np.flatnonzero(grad < aim.threshold)
    worst, worst_grads = _least(ids[found], grad[found], aim.n_worst)
    bounds = None
    if aim.with_bounds:
        bounds = Bounds.outwards(grad - bound, look.diagonal, look.vertex, look.way)
    n_evaluations = n_evaluated * len(weights.get())
    return _Findings(
        least, rounding, len(found), worst, worst_grads, bounds, n_read, n_bytes, n_evaluations
    )


def _read(source: RowSource, block: _Block) -> Rows:
    """Rows of a block, of the file that the pass began with."""
    if block.suspects is None:
        rows = source.read(block.start, block.stop)
    else:
        rows = source.take(block.suspects)
    source.check_unchanged()
    return rows


def _least(ids: Int64Array, grads: Float64Array, size: int) -> tuple[Int64Array, Float64Array]:
    """The `size` rows of least gradient, of equal ones the first; `ids` increase, before and after.

    This order has no ties, so that the blocks do not matter.
    """
    if len(ids) > size:
        best = np.argsort(grads, kind="stable")[:size]
        best.sort()
        ids, grads = ids[best], grads[best]
    return ids, grads


class _Tally:
    """What the support and the blocks so far have."""

    def __init__(self, support: SupportGradient, aim: _Aim) -> None:
        self.least = aim.least
        self.rounding = support.rounding
        self.n_violators = int(np.count_nonzero(support.grad < aim.threshold))
        self.worst = np.empty(0, dtype=np.int64)
        self._worst_grads = np.empty(0)
        self._size = aim.n_worst

    def add(self, found: _Findings) -> None:
        """Merge the findings of the next block."""
        self.least = min(self.least, found.least)
        self.rounding = max(self.rounding, found.rounding)
        self.n_violators += found.n_violators
        self.worst, self._worst_grads = _least(
            np.concatenate([self.worst, found.worst]),
            np.concatenate([self._worst_grads, found.worst_grads]),
            self._size,
        )


def certify(
    problem: BinaryProblem,
    engine: Engine,
    weights: SupportWeights,
    search: Search,
    on_block: Callable[[int], None] | None = None,
    dask: Any = None,
) -> Certificate:
    """Bound the duality gap of some weights by one pass over the data.

    Parameters
    ----------
    problem : BinaryProblem
        All rows and their labels.
    engine : Engine
        Computes kernel values.
    weights : SupportWeights
        Weights to be certified.
    search : Search
        Which rows count as violators, and which are looked at.
    on_block : callable, optional
        Called after each block with the number of rows seen so far.
    dask : optional
        Where blocks are looked at: see `ooc_fw.data.parallel.borrow_workers`. None is here, on the
        threads of `engine`. Computers with the same processor and libraries give the same bits.

    Raises
    ------
    InputError
        The weights are not on the simplex; or the source changed or cannot be read here or by the
        processes that should.
    ChildProcessError
        A worker died and no other could take its place.

    Notes
    -----
    The weights sum to 1, so a float32 gradient errs by |g - g_float32| <= sum_j alpha_j |k_j -
    k_j_float32|: by no more than the worst kernel value, and where values err in proportion to
    themselves, in proportion to sum_j alpha_j k_j. See `Kernel.error_bound`.
    """
    source, row_ids, alpha = problem.source, weights.row_ids, weights.alpha
    check_weights(row_ids, alpha, source.n_rows)
    source.check_unchanged()
    labels, slack, screen = problem.labels[row_ids], alpha / weights.C, search.screen
    function = _Weights(engine, weights.rows, alpha, labels)
    support = weights.gradient or function.support_gradient(weights.rows, labels, slack)
    rho = float(alpha @ support.grad)
    aim = _Aim(
        threshold=rho * (1 - search.tol),
        least=float(support.grad.min()),
        n_worst=search.n_worst,
        with_bounds=screen is not None,
        with_nearest=screen is not None and engine.kernel.constant_diagonal,
    )
    if screen is not None:
        diagonal = engine.kernel.diagonal(engine.prepare(weights.rows, exact=True).norms)
        vertices, no_way = np.arange(len(row_ids)), np.zeros(len(row_ids))
        lower = support.grad - slack - support.rounding
        screen.store(row_ids, Bounds.outwards(lower, diagonal, vertices, no_way))

    tally = _Tally(support, aim)
    blocks = _blocks(source, problem.labels, row_ids, search.suspects)
    rows_seen = 0
    here = nullcontext(LocalWorkers(1))  # the engine has threads of its own
    with here if dask is None else borrow_workers(dask, engine.threads) as workers:
        common = function.shared(), shared_source(source, workers), aim
        items = [(block,) for block in blocks]
        with closing(workers.map(_sweep_block, items, *common)) as results:
            for block, found in zip(blocks, results, strict=True):
                tally.add(found)
                if screen is not None and found.bounds is not None:
                    screen.store(block.other_ids(), found.bounds)
                if workers.remote:
                    engine.count(found.n_evaluations)
                    source.count(found.n_read, found.n_bytes)
                rows_seen += found.n_read
                if on_block is not None:
                    on_block(rows_seen)
    source.check_unchanged()  # other processes may have read their last block long ago
    return _certificate(rho, support.grad, tally)


def _certificate(rho: float, support_grad: Float64Array, tally: _Tally) -> Certificate:
    """The gap that follows from rho, the gradients of the support and what the blocks hold."""
    least, rounding = tally.least, tally.rounding
    # Sums over the support: of its weights, and of weights times gradients.
    terms = (len(support_grad) + 4) * FLOAT64_UNIT
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
        n_violators=tally.n_violators,
        worst=tally.worst,
    )


def _blocks(
    source: RowSource, labels: Int8Array, support: Int64Array, suspects: Int64Array | None
) -> list[_Block]:
    """Blocks of all rows, or of the suspects; they follow from these and the source alone."""
    support = np.sort(support)
    if suspects is None:
        slices = block_slices(source, 0, source.n_rows)
    else:
        slices = row_slices(len(suspects), _SUSPECTS_PER_BLOCK)
    blocks = []
    for start, stop in slices:
        part = None if suspects is None else suspects[start:stop]
        if part is None:
            first, last = np.searchsorted(support, [start, stop])
            places, of_rows = support[first:last] - start, labels[start:stop]
        else:
            places, of_rows = np.flatnonzero(np.isin(part, support)), labels[part]
        blocks.append(_Block(start, stop, part, places, of_rows))
    return blocks
