"""Decision functions from few of their vertices, with a bound on what the others would change.

If the kernel is smooth on the data, w lies almost in the span of a few vertices, the pivots S.
Write phi(x) for (phi(x), 1), and k~ for k + 1, which includes the bias. Then

    w = sum_j b_j phi(z_j),    v = sum_S c_z phi(z),    r = w - v,    r_z = <r, phi(z)>,
    |r|^2 = |w|^2 - 2 c'(K~_S b) + c'K~_SS c,    c near to the solution of K~_SS c = K~_S b,

    h(x) = sum_S c_z k~(z, x) + r_z + <r, phi(x) - phi(z)>  for each z of S,
    |<r, phi(x) - phi(z)>| <= |r| sqrt(k(x, x) + k(z, z) - 2 k(x, z)).

All of it holds for every c, near or not. The z nearest to x is known, since k(x, z) is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ooc_fw.data.rows import Float64Array, Int64Array
from ooc_fw.kernels.arithmetic import Operand
from ooc_fw.kernels.engine import Engine, Nearest
from ooc_fw.kernels.functions import FLOAT64_UNIT, OUTWARDS

_ROUNDS = 8  # rounds that add pivots; the search ends before if more pivots do not pay
_MOST_BYTES = 384 << 20  # memory of a search without a limit: room for some 2,800 pivots
_DEPENDENT = 1e-13  # rounding hides a smaller share of k~(z, z) outside the span
_OVERHEAD = 1.2  # a pivot's kernel value serves two sums: its time over that of a vertex's value
_WORTHWHILE = 0.75  # largest share of the time of a reading that the few vertices may take


class PivotLimits(NamedTuple):
    """Limits of the search for pivots: a small part of the time and memory of the reading."""

    step: int  # pivots in a round
    most: int  # pivots in all rounds
    candidates: int  # vertices that a round looks at
    looked_at: int  # vertices that all rounds look at

    @classmethod
    def of(cls, n_rows: int, n_vertices: int, n_bytes: int | None = None) -> PivotLimits | None:
        """Limits for a reading of some rows, in `n_bytes` of memory; None if no search pays."""
        n_bytes = min(n_bytes or _MOST_BYTES, _MOST_BYTES)
        # There are three vertices to choose from for each pivot. The rows of `Pivots._shares`, one
        # for each pivot, take half of the memory, and three matrices of all pivots the other half.
        looked_at = min(n_vertices, 8192, math.isqrt(3 * n_bytes // 16))
        # The search takes longer the more pivots there are: few rows would not save that time.
        most = min(looked_at // 3, int(1.5 * math.sqrt(n_rows)))
        step = most // _ROUNDS
        if step < 8 or n_rows < 8 * n_vertices:
            return None
        return cls(step, _ROUNDS * step, 6 * step, looked_at)


class Compression(NamedTuple):
    """n decision functions on p of their vertices, and a bound on what the others change."""

    places: Int64Array  # (p,): the pivots
    weights: Float64Array  # (n, p): c
    residuals: Float64Array  # (n, p): r_z
    norms: Float64Array  # (n,): at least |r|
    rounding: Float64Array  # (n,): bound on the error of a value by rounding of c and r_z


def kernel_matrix(engine: Engine, x: Operand) -> Float64Array:
    """Values of k~ between rows that are prepared for float64."""
    values = np.empty((len(x), len(x)))
    engine.block(x, x, values)
    values += 1.0
    return values


@dataclass
class Pivots:
    """Pivots among vertices, chosen by Cholesky factorisation with pivoting, round by round.

    First some of the vertices are drawn at random, with chances that grow with their weights. Each
    round draws candidates among these. Their chances grow with the weights, too, and with the part
    of a vertex outside the span of the pivots. The choice decides how good a `Compression` is. Its
    bounds hold for every choice.

    References
    ----------
    Chen, Epperly, Tropp, Webber (2025), Randomly pivoted Cholesky.
    """

    engine: Engine
    vertices: Operand  # (s,): all vertices, prepared for float64
    sizes: Float64Array  # (s,): |b_j|, the largest among several classifiers
    effort: PivotLimits
    places: Int64Array = field(default_factory=lambda: np.empty(0, dtype=np.int64))  # of pivots

    def __post_init__(self) -> None:
        self._drawn = self._draw(np.sqrt(self.sizes), self.effort.looked_at, seed=0)
        self._looked_at = self.vertices.take(self._drawn)
        # L^-1 K~ between pivots and the m drawn vertices, (most, m): memory only when written.
        self._shares = np.empty((self.effort.most, len(self._drawn)))
        # Part of k~(z, z) outside the span, (m,); 0 for pivots.
        self._outside = self.engine.kernel.diagonal(self._looked_at.norms) + 1.0

    def _draw(self, chances: Float64Array, most: int, seed: int) -> Int64Array:
        """Draw up to `most` places with a chance above 0, in increasing order."""
        n_drawn = min(most, int(np.count_nonzero(chances)))
        if n_drawn == 0:
            return np.empty(0, dtype=np.int64)
        rng = np.random.default_rng(seed)
        drawn = rng.choice(len(chances), n_drawn, replace=False, p=chances / chances.sum())
        return np.sort(drawn)

    def grow(self) -> bool:
        """Choose the pivots of another round; False if no vertex is left outside the span."""
        chances = np.sqrt(self.sizes[self._drawn] * self._outside)
        candidates = self._draw(chances, self.effort.candidates, seed=len(self.places))
        if len(candidates) == 0:
            return False
        new, lower = self._choose(candidates)
        if len(new) == 0:
            return False
        self._add(new, lower)
        return True

    def _choose(self, candidates: Int64Array) -> tuple[Int64Array, Float64Array]:
        """Choose candidates with the largest parts outside the span, one by one; with factor L."""
        block = kernel_matrix(self.engine, self._looked_at.take(candidates))
        diagonal = np.diagonal(block).copy()
        shares = self._shares[: len(self.places), candidates]
        block -= shares.T @ shares
        outside = self._outside[candidates]
        sizes = self.sizes[self._drawn[candidates]]
        factor = np.zeros((self.effort.step, len(candidates)))
        chosen: list[int] = []
        while len(chosen) < self.effort.step:
            best = int(np.argmax(sizes * np.sqrt(outside)))
            if outside[best] == 0:
                break
            k = len(chosen)
            column = block[best] - factor[:k, best] @ factor[:k]
            if column[best] > _DEPENDENT * diagonal[best]:
                factor[k] = column / np.sqrt(column[best])
                outside = outside - np.square(factor[k])
                chosen.append(best)
            outside[outside < _DEPENDENT * diagonal] = 0.0
            outside[best] = 0.0
        return candidates[chosen], factor[: len(chosen), chosen].T

    def _add(self, new: Int64Array, lower: Float64Array) -> None:
        """Add pivots, given the Cholesky factor of their parts outside the earlier span."""
        before = self._shares[: len(self.places)]
        added = self._shares[len(before) : len(before) + len(new)]
        self.engine.block(self._looked_at.take(new), self._looked_at, added)
        at_new = before[:, new].T

        def solve(part: slice) -> None:
            left = added[:, part] + 1.0 - at_new @ before[:, part]
            added[:, part] = np.linalg.solve(lower, left)

        self.engine.pool.share(added.shape[1], added.size * len(lower), solve)
        outside = self._outside - np.einsum("ij,ij->j", added, added)
        outside[new] = 0.0
        self._outside = np.where(self._outside > 0, np.maximum(outside, 0.0), 0.0)
        self.places = np.concatenate([self.places, self._drawn[new]])

    def compress(
        self, values: Float64Array, squared_norms: Float64Array, rounding: float
    ) -> Compression:
        """Make the compression from values at all vertices, shape (n, s), and |w|^2, shape (n,).

        Each comes from float64 kernel values and errs by `rounding` at most; sum |b| <= 1.
        """
        at_pivots, terms = values[:, self.places], len(self.places) + 8
        z = self.vertices.take(self.places)
        K = kernel_matrix(self.engine, z)
        regular = K.copy()
        # The ridge keeps c small if pivots are nearly dependent.
        np.fill_diagonal(regular, (1 + 1e-13) * np.diagonal(K))
        c = np.linalg.solve(regular, at_pivots.T).T.astype(np.float64, copy=False)
        products = c @ K
        size, largest = np.abs(c).sum(axis=1), float(np.diagonal(K).max())
        of_value = float(self.engine.error_bound(z, z).max()) + 2 * FLOAT64_UNIT * largest
        greatest = np.abs(at_pivots).max(axis=1)
        error = np.asarray(rounding + size * of_value)
        error += terms * FLOAT64_UNIT * (greatest + size * largest)
        squared = squared_norms - 2 * (c * at_pivots).sum(axis=1) + (c * products).sum(axis=1)
        # Each of these terms errs by the error of its values, times the sum of its weights.
        squared = np.maximum(squared, 0.0) + 2 * (1 + size) * error
        norms = np.sqrt(squared) * OUTWARDS
        return Compression(self.places, c, at_pivots - products, norms, error)


class LowRank:
    """Decision values from a `Compression`, with bounds on their errors."""

    def __init__(self, engine: Engine, pivots: Operand, compression: Compression) -> None:
        self.compression, self._engine, self._pivots = compression, engine, pivots
        largest = np.abs(compression.weights).max(axis=0)
        self._size = float(largest.sum()) or 1.0
        self._matrix = np.vstack([compression.weights, largest / self._size])
        self._bias = compression.weights.sum(axis=1)
        self._rounding = compression.rounding + (len(pivots) + 4) * FLOAT64_UNIT * self._size

    def __len__(self) -> int:
        return len(self._pivots)

    def of_one(self, x: Operand) -> tuple[Float64Array, Float64Array]:
        """Decision values of a single classifier, and bounds on their errors, shape (len(x),)."""
        values, bound = self.evaluate(x)
        return values[:, 0], bound[:, 0]

    def evaluate(self, x: Operand) -> tuple[Float64Array, Float64Array]:
        """Decision values and bounds on their errors, shape (len(x), n)."""
        engine, z, by = self._engine, self._pivots, self.compression
        diagonal = engine.kernel.diagonal(x.norms)
        nearest = Nearest(len(x)) if engine.kernel.constant_diagonal else None
        sums = engine.weighted_sum(x, z, self._matrix, nearest)
        values = sums[:, :-1] + self._bias
        bound = self._size * engine.error_bound(x, z, sums[:, -1:])
        if nearest is None:
            distance = np.sqrt(diagonal + 1.0)
        else:
            values = values + by.residuals.T[nearest.place]
            distance = nearest.distance(diagonal)
        bound = bound + self._rounding + 4 * FLOAT64_UNIT * np.abs(values)
        return values, bound + distance[:, None] * by.norms


def row_cost(n_vertices: int, n_pivots: int, left_open: float) -> float:
    """Mean time of a row, of which a share is left open for all vertices, over that by all."""
    return _OVERHEAD * n_pivots / n_vertices + left_open


def cheapest(
    span: Pivots, attempt: Callable[[], tuple[Compression, float]]
) -> tuple[Compression | None, float]:
    """The compression with which rows take the least time, and that `row_cost`.

    After each round `attempt` makes a compression from the pivots so far, and tells the share of
    the rows that it leaves open. It is None if it would save little of the time by all vertices.
    """
    effort = span.effort
    best: Compression | None = None
    least = _WORTHWHILE
    norms = np.full(1, np.inf)
    while len(span.places) + effort.step <= effort.most and span.grow():
        few, share_open = attempt()
        cost = row_cost(len(span.sizes), len(few.places), share_open)
        if cost < least:
            best = few
            least = cost
        elif best is not None:
            break
        # The rest of w falls ever faster if it falls at all. Suppose that each of the next rounds
        # is worth three like the last one: after all rounds little of the rest may be left.
        rounds, done = (effort.most - len(few.places)) / effort.step, len(few.places) / effort.step
        hopeless = (few.norms / norms).max() ** (3 * rounds) > 0.05
        if best is None and hopeless and done >= 3:  # the first rounds say little
            break
        norms = few.norms
    return best, least
