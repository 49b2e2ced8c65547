"""Decision values of binary classifiers: from float32 kernel values with a bound, and from float64.

Where a pass is long, the float32 values may come from few of the vertices, and from all of them for
the rows that this leaves open.

h(x) = sum_j alpha_j y_j (k(x_j, x) + 1), alpha on the simplex.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ooc_fw.data.rows import Float64Array, Int8Array, Int64Array, Rows, take_rows
from ooc_fw.kernels.arithmetic import Operand
from ooc_fw.kernels.engine import Engine, ManyWeights, Nearest
from ooc_fw.kernels.functions import FLOAT64_UNIT
from ooc_fw.kernels.low_rank import Compression, Effort, LowRank, Span, cheapest

logger = logging.getLogger(__name__)

_MOST_VALUES = 1 << 22  # of all classifiers at all vertices, which are held beside the pivots

IsOpen: TypeAlias = Callable[[Float64Array, Float64Array], npt.NDArray[np.bool_]]
"""Which rows decision values leave open, given these and bounds on their errors."""


_Estimate: TypeAlias = tuple[Float64Array, Float64Array, Nearest | None]
"""Values, bounds on their errors, and the vertices nearest to the rows, if these were sought."""


class Weights(NamedTuple):
    """Weights of one classifier on some of the vertices; arrays of shape (n_support,)."""

    places: Int64Array  # of the vertices, without repeats
    alpha: Float64Array  # on the simplex
    labels: Int8Array  # -1 or +1

    @property
    def beta(self) -> Float64Array:
        """Weights times labels."""
        return self.alpha * self.labels

    def of_class(self, sign: int) -> tuple[Int64Array, Float64Array]:
        """Places and weights of the vertices of one label."""
        of_label = self.labels == sign
        return self.places[of_label], self.alpha[of_label]


class Approximation(NamedTuple):
    """Decision values from float32 kernel values."""

    values: Float64Array  # (n_rows,), or (n_rows, n_classifiers) of several
    bound: Float64Array  # on the error of each
    x: Operand
    nearest: Nearest | None  # vertices of the rows, if requested
    evaluations: int  # kernel values computed


class AtVertices(NamedTuple):
    """Values of n decision functions at all of their vertices, from float64 kernel values."""

    values: Float64Array  # (n, n_vertices)
    squared_norms: Float64Array  # (n,): |w|^2, bias included
    rounding: float  # bound on the error of each of them


class DecisionFunctions:
    """Decision functions of one or several classifiers on the same vertices.

    The vertices of the two classes are summed separately: the difference of the sums is the
    decision value, and their sum, the mean of the kernel values, bounds its error. Several
    classifiers that all have weights on all vertices share one mean, by the largest weights. Values
    of a single classifier have no axis for classifiers. `rounding` bounds the error of the biases
    and of their addition, which no other bound includes.
    """

    def __init__(self, engine: Engine, vertices: Rows, classifiers: Sequence[Weights]) -> None:
        self.n_vertices, self._vertices = len(vertices), vertices
        self._classifiers = classifiers
        self._low_rank: LowRank | None = None
        self.rounding = (self.n_vertices + 4) * FLOAT64_UNIT
        self._engine = engine
        self._z64 = engine.prepare(vertices, exact=True)
        biases = np.array([one.beta.sum() for one in classifiers])
        self._single = len(classifiers) == 1
        self._bias = biases[0] if self._single else biases
        self._classes = [one.of_class(sign) for sign in (1, -1) for one in classifiers]
        if self._single:
            self._z = [engine.prepare(take_rows(vertices, places)) for places, _ in self._classes]
        else:
            self._z = [engine.prepare(vertices)]
        self._betas: Float64Array | ManyWeights
        if self._single or all(len(one.places) == self.n_vertices for one in classifiers):
            self._betas = np.zeros((len(classifiers), self.n_vertices))
            for row, one in zip(self._betas, classifiers, strict=True):
                row[one.places] = one.beta
        else:
            places, betas = zip(*((one.places, one.beta) for one in classifiers), strict=True)
            self._betas = ManyWeights.of(self.n_vertices, places, betas)
            self._alphas = ManyWeights.of(self.n_vertices, *zip(*self._classes, strict=True))

    @property
    def compression(self) -> Compression | None:
        """What stands for the functions in the first stage of `approximate`, if anything does."""
        return None if self._low_rank is None else self._low_rank.compression

    @compression.setter
    def compression(self, compression: Compression | None) -> None:
        self._low_rank = None
        if compression is not None:
            pivots = self._engine.prepare(take_rows(self._vertices, compression.places))
            self._low_rank = LowRank(self._engine, pivots, compression)

    def compress(
        self,
        sample: Callable[[], tuple[Rows, IsOpen]],
        n_rows: int,
        at_vertices: AtVertices | None = None,
        n_bytes: int | None = None,
    ) -> None:
        """Find a compression if that makes a pass over `n_rows` shorter, in `n_bytes` of memory.

        `sample` gives some of these rows, and what is asked of them. Values at the vertices are
        computed unless given.
        """
        effort = Effort.of(n_rows, self.n_vertices, n_bytes)
        many = len(self._classifiers) * self.n_vertices > _MOST_VALUES
        if effort is None or many:
            return
        betas = np.zeros((len(self._classifiers), self.n_vertices))
        for row, one in zip(betas, self._classifiers, strict=True):
            row[one.places] = one.beta
        at_vertices = at_vertices or self._at_vertices(betas)
        span = Span(self._engine, self._z64, np.abs(betas).max(axis=0), effort.most)
        rows, is_open = sample()
        x = self._engine.prepare(rows)
        if len(x) == 0:  # all of them are vertices
            return

        def attempt() -> tuple[Compression, float]:
            self.compression = few = span.compress(*at_vertices)
            return few, np.count_nonzero(is_open(*self._first_stage(x)[:2])) / len(x)

        self.compression, cost = cheapest(span, effort, attempt)
        if self.compression is not None:
            n_pivots, n = len(self.compression.places), self.n_vertices
            logger.info("%d of %d vertices take %.2g of the time of all", n_pivots, n, cost)

    def _at_vertices(self, betas: Float64Array) -> AtVertices:
        if self._single:
            sums = self._engine.symmetric_sum(self._z64, betas[0])
            values = (sums + betas[0].sum())[None]
        else:  # one pass for all of them
            values = self.exact_values(self._z64).T
        error = float(self._engine.error_bound(self._z64, self._z64).max()) + self.rounding
        rounding = error + self.rounding * float(np.abs(values).max())
        return AtVertices(values, np.einsum("ij,ij->i", betas, values), rounding)

    def approximate(
        self, rows: Rows, with_nearest: bool = False, is_open: IsOpen | None = None
    ) -> Approximation:
        """Decision values from float32 kernel values; `with_nearest` for a single classifier.

        Those that few vertices leave open, by `is_open`, come from all of them.
        """
        x = self._engine.prepare(rows)
        if self._low_rank is None or is_open is None:
            values, bound, nearest = self._from_all(x, with_nearest)
            return Approximation(values, bound, x, nearest, len(x) * self.n_vertices)
        values, bound, nearest = self._first_stage(x)
        places = np.flatnonzero(is_open(values, bound))
        if len(places) > 0:
            values[places], bound[places], rest = self._from_all(x.take(places), with_nearest)
            if nearest is not None and rest is not None:
                nearest.value[places], nearest.place[places] = rest.value, rest.place
        evaluations = len(x) * len(self._low_rank) + len(places) * self.n_vertices
        return Approximation(values, bound, x, nearest if with_nearest else None, evaluations)

    def _first_stage(self, x: Operand) -> _Estimate:
        assert self._low_rank is not None
        values, bound, nearest = self._low_rank.evaluate(x)
        return (values[:, 0], bound[:, 0], nearest) if self._single else (values, bound, nearest)

    def _from_all(self, x: Operand, with_nearest: bool) -> _Estimate:
        z = self._z[0]
        if isinstance(self._betas, ManyWeights):
            positive, negative = np.split(self._engine.weighted_sums(x, z, self._alphas), 2, axis=1)
            bound = self._engine.error_bound(x, z, positive + negative)
            return positive - negative + self._bias, bound, None
        if not self._single:
            largest = np.abs(self._betas).max(axis=0)
            size = float(largest.sum()) or 1.0
            sums = self._engine.weighted_sum(x, z, np.vstack([self._betas, largest / size]))
            bound = size * self._engine.error_bound(x, z, sums[:, -1:])
            values = sums[:, :-1] + self._bias
            return values, np.broadcast_to(bound, values.shape), None
        nearest = Nearest(len(x)) if with_nearest else None
        positive, negative = (
            self._engine.weighted_sum(x, z, alpha, nearest)
            for z, (_, alpha) in zip(self._z, self._classes, strict=True)
        )
        if nearest is not None:
            nearest.place = np.concatenate([places for places, _ in self._classes])[nearest.place]
        bounds = [self._engine.error_bound(x, z, positive + negative) for z in self._z]
        return self._bias + positive - negative, np.maximum.reduce(bounds), nearest

    def value_bound(self, x: Operand) -> Float64Array:
        """Bound on the error of the kernel values of `Nearest`, for a single classifier."""
        return np.asarray(np.maximum.reduce([self._engine.value_bound(x, z) for z in self._z]))

    def exact(self, rows: Rows) -> tuple[Float64Array, Float64Array]:
        """Decision values from float64 kernel values, and a bound on the errors of each row."""
        x = self._engine.prepare(rows, exact=True)
        return self.exact_values(x), self._engine.error_bound(x, self._z64)

    def exact_values(self, x: Operand) -> Float64Array:
        """The values alone, of rows prepared for float64."""
        if isinstance(self._betas, ManyWeights):
            sums = self._engine.weighted_sums(x, self._z64, self._betas)
        else:
            betas = self._betas[0] if self._single else self._betas
            sums = self._engine.weighted_sum(x, self._z64, betas)
        return np.asarray(sums + self._bias)
