"""The certificate: an exact duality gap from one sweep over all rows.

A sweep computes the gradient of every row with float32 kernel values and a rigorous bound on their
rounding. Whatever the bound leaves open (which row is the worst, which rows violate) is computed
again in float64 while the block is in RAM, and so are the support's gradients and rho. What is left
is float64 rounding, which is bounded too and *added* to the gap: a certified gap is never smaller
than the truth.

Owns the sweep. Does not decide what to do about violators.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ooc_fw.engine import Engine, Operand
from ooc_fw.kernels import FLOAT64_UNIT
from ooc_fw.problem import pair_gap
from ooc_fw.rows import Float64Array, Int8Array, Int64Array, Rows, take_rows
from ooc_fw.sources import RowSource, iter_blocks


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
        Rows with g < rho (1 - tol).
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


class _Weights:
    """A model under test: its vertices in both precisions."""

    def __init__(self, engine: Engine, rows: Rows, alpha: Float64Array, labels: Int8Array) -> None:
        self.engine = engine
        self.z = engine.prepare(rows)
        self.z64 = engine.prepare64(rows)
        self.beta = alpha * labels
        self.bias = math.fsum(self.beta)

    def gradient(self, x: Operand, labels: Float64Array) -> tuple[Float64Array, Float64Array]:
        """Values y h(x) from float32 kernel values, and bounds on their rounding.

        A row's own alpha_i / C is not included.
        """
        sums = self.engine.weighted_sum(x, self.z, self.beta)
        return self._add_bias(sums, labels, self.engine.error_bound(x, self.z))

    def gradient64(self, rows: Rows, labels: Float64Array) -> tuple[Float64Array, Float64Array]:
        """The same from float64 kernel values."""
        x = self.engine.prepare64(rows)
        sums = self.engine.weighted_sum64(x, self.z64, self.beta)
        return self._add_bias(sums, labels, self.engine.error_bound64(x, self.z64))

    def _add_bias(
        self, sums: Float64Array, labels: Float64Array, bound: Float64Array
    ) -> tuple[Float64Array, Float64Array]:
        # The bias is O(1) even where kernel values are tiny, so its rounding counts on its own.
        bound = bound + 2 * FLOAT64_UNIT * (np.abs(sums) + abs(self.bias))
        return np.asarray(labels * (sums + self.bias)), bound


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
    on_block : callable, optional
        Called after each block with the number of rows seen so far.

    Raises
    ------
    InputError
        The source changed or cannot be read.

    Notes
    -----
    The bound of a float32 gradient is that of its worst kernel value, since the weights sum to 1:
    |g - g_float32| <= sum_j alpha_j |k - k_float32|. See `Kernel.error_bound`.
    """
    source.check_unchanged()
    weights = _Weights(engine, rows, alpha, labels[row_ids])
    order = np.argsort(row_ids)
    sorted_ids = row_ids[order]

    support_grad, bounds = weights.gradient64(rows, labels[row_ids].astype(np.float64))
    support_grad += alpha / C
    rounding = float((bounds + 2 * FLOAT64_UNIT * (np.abs(support_grad) + alpha / C)).max())
    rho = float(alpha @ support_grad)
    # A convex combination of gradients errs by no more than they do, and by its own summation.
    rho_rounding = rounding + len(alpha) * FLOAT64_UNIT * float(alpha @ np.abs(support_grad))
    threshold = rho * (1 - tol)
    least = float(support_grad.min())
    violating = support_grad < threshold
    n_violators = int(np.count_nonzero(violating))
    worst = _Worst(n_worst)

    for start, block in iter_blocks(source, 0, source.n_rows):
        stop = start + len(block)
        y = labels[start:stop].astype(np.float64)
        x = engine.prepare(block)
        grad, bound = weights.gradient(x, y)
        # The support was done above; its rows are out of the race here.
        first, last = np.searchsorted(sorted_ids, [start, stop])
        grad[sorted_ids[first:last] - start] = np.inf

        floor = min(least, float((grad + bound).min()))
        open_rows = np.flatnonzero((grad - bound <= floor) | (np.abs(grad - threshold) <= bound))
        if len(open_rows) > 0:
            exact, bounds = weights.gradient64(take_rows(block, open_rows), y[open_rows])
            grad[open_rows] = exact
            rounding = max(rounding, float(bounds.max()))
            least = min(least, float(exact.min()))
        found = np.flatnonzero(grad < threshold)
        n_violators += len(found)
        worst.offer(found + start, grad[found])
        if on_block is not None:
            on_block(stop)

    gap = upper = math.inf
    if rho > rho_rounding:  # else nothing is known of rho, not even its sign
        gap = max(0.0, (rho - least) / rho)
        upper = max(0.0, (rho - least + rounding + rho_rounding) / (rho - rho_rounding))
    return Certificate(
        certified_gap=upper,
        rounding=upper - gap if upper < math.inf else math.inf,
        pair_gap=pair_gap(float(support_grad.max()), least, rho),
        objective=rho / 2,
        rho=rho,
        n_violators=n_violators,
        worst=worst.ids(),
    )
