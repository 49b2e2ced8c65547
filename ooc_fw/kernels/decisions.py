"""Decision values of binary classifiers: from float32 kernel values with a bound, and from float64.

A long reading may begin with float64 kernel values of a few vertices. Rows that these leave open
then take float32 kernel values of all vertices.

h(x) = sum_j alpha_j y_j (k(x_j, x) + 1), alpha on the simplex.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from ooc_fw.data.rows import AnyArray, Float64Array, Int8Array, Int64Array, Rows, take_rows
from ooc_fw.kernels.arithmetic import Arithmetic, Operand
from ooc_fw.kernels.engine import Engine
from ooc_fw.kernels.functions import FLOAT64_DIFFERENCES, FLOAT64_UNIT
from ooc_fw.kernels.low_rank import Compression, LowRank, PivotLimits, Pivots, cheapest

logger = logging.getLogger(__name__)


_BLOCK_BYTES = 8 << 20  # kernel values that sparse weights multiply at once
_LEAST_ROWS = 64  # rows in such a block, for any number of vertices
_LEAST_MEAN = 1e-30  # underflow may have taken the terms of a smaller mean of kernel values

IsOpen: TypeAlias = Callable[[Float64Array, Float64Array], npt.NDArray[np.bool_]]
"""Tells which rows are still open, given decision values and bounds on their errors."""


_Estimate: TypeAlias = tuple[Float64Array, Float64Array]
"""Values and bounds on their errors, (n_rows,) or (n_rows, n_classifiers) for several."""


class Weights(NamedTuple):
    """Weights of one classifier on some of the vertices; arrays of shape (n_support,)."""

    places: Int64Array  # places of the vertices, all different
    alpha: Float64Array  # weights on the simplex
    labels: Int8Array  # -1 or +1

    @property
    def beta(self) -> Float64Array:
        """Weights times labels."""
        return self.alpha * self.labels

    def of_class(self, sign: int) -> tuple[Int64Array, Float64Array]:
        """Places and weights of the vertices with one label."""
        of_label = self.labels == sign
        return self.places[of_label], self.alpha[of_label]


class AtVertices(NamedTuple):
    """Values of n decision functions at all of their vertices, from float64 kernel values."""

    values: Float64Array  # (n, n_vertices)
    squared_norms: Float64Array  # (n,): |w|^2, bias included
    rounding: float  # bound on the error of each value and each squared norm


class DecisionFunctions:
    """Decision functions of one or several classifiers on the same vertices.

    A single classifier takes one sum for the vertices of each class. The decision value is the
    difference of the two sums. The mean of the kernel values is their sum, and it bounds the error.
    Several classifiers with weights on all vertices share one mean, with the largest weights.
    Values of a single classifier have no axis for classifiers. `rounding` bounds the errors of the
    biases and of their addition, apart from all other bounds.
    """

    def __init__(self, engine: Engine, vertices: Rows, classifiers: Sequence[Weights]) -> None:
        self.n_vertices, self._vertices = len(vertices), vertices
        self._classifiers = classifiers
        self.few: LowRank | None = None  # `approximate` begins with it
        self.rounding = (self.n_vertices + 4) * FLOAT64_UNIT
        self._engine = engine
        self._z64 = engine.prepare(vertices, exact=True)
        self._betas = _matrix_of(classifiers, self.n_vertices)
        self._sparse = not isinstance(self._betas, np.ndarray)
        biases = np.asarray(self._betas.sum(axis=1))
        self._single = len(classifiers) == 1
        self._bias = biases[0] if self._single else biases
        if self._single:
            self._classes = [classifiers[0].of_class(sign) for sign in (1, -1)]
            self._z = [engine.prepare(take_rows(vertices, places)) for places, _ in self._classes]
        else:
            self._z = [engine.prepare(vertices)]

    def on(self, engine: Engine) -> Self:
        """The same functions on the threads of another engine with the same arithmetic."""
        own = copy.copy(self)
        own._engine = engine
        return own

    def begin_with(self, compression: Compression | None) -> None:
        """Let `approximate` begin with a compression, or with all vertices."""
        self.few = None
        if compression is not None:
            places = compression.places
            pivots = self._engine.prepare(take_rows(self._vertices, places), exact=True)
            self.few = LowRank(self._engine, pivots, compression)

    def compress(
        self,
        sample: Callable[[], tuple[Rows, IsOpen]],
        n_rows: int,
        at_vertices: AtVertices | None = None,
        n_bytes: int | None = None,
    ) -> None:
        """Find a compression that makes a reading over `n_rows` shorter, in `n_bytes` of memory.

        `sample` gives some of these rows and the test which of them stay open. The values at the
        vertices are computed if they are not given.
        """
        effort = PivotLimits.of(n_rows, self.n_vertices, n_bytes)
        # The weights of all classifiers at all vertices are held beside the pivots.
        many = len(self._classifiers) * self.n_vertices > 1 << 22
        if effort is None or many:
            return
        betas = np.zeros((len(self._classifiers), self.n_vertices))
        for row, one in zip(betas, self._classifiers, strict=True):
            row[one.places] = one.beta
        at_vertices = at_vertices or self._at_vertices(betas)
        span = Pivots(self._engine, self._z64, np.abs(betas).max(axis=0), effort)
        rows, is_open = sample()
        x = self._engine.prepare(rows, exact=True)
        if len(x) == 0:  # all sampled rows are vertices
            return

        def attempt() -> tuple[Compression, float]:
            compression = span.compress(*at_vertices)
            self.begin_with(compression)
            left_open = is_open(*self._by_few(x))
            return compression, np.count_nonzero(left_open) / len(x)

        compression, cost = cheapest(span, attempt)
        self.begin_with(compression)
        if self.few is not None:
            words = "%d of %d vertices take %.2g of the time of all"
            logger.info(words, len(self.few), self.n_vertices, cost)

    def _at_vertices(self, betas: Float64Array) -> AtVertices:
        if self._single:
            sums = self._engine.symmetric_sum(self._z64, betas[0])
            values = (sums + betas[0].sum())[None]
        else:  # one reading for all classifiers
            values = self.exact_values(self._z64).T
        error = float(self._engine.error_bound(self._z64, self._z64).max()) + self.rounding
        rounding = error + self.rounding * float(np.abs(values).max())
        return AtVertices(values, np.einsum("ij,ij->i", betas, values), rounding)

    def approximate(self, rows: Rows, is_open: IsOpen | None = None) -> _Estimate:
        """Decision values from float32 kernel values, and bounds on their errors.

        With `is_open`, a compression comes first, and all vertices for rows that stay open.
        """
        engine = self._engine
        if self.few is None or is_open is None:
            return self._from_all(engine.prepare(rows))
        values, bound = self._by_few(engine.prepare(rows, exact=True))
        places = np.flatnonzero(is_open(values, bound))
        if len(places) > 0:
            found = self._from_all(engine.prepare(take_rows(rows, places)))
            values[places], bound[places] = found
        return values, bound

    def _by_few(self, x: Operand) -> _Estimate:
        assert self.few is not None
        return self.few.of_one(x) if self._single else self.few.evaluate(x)

    def _from_all(self, x: Operand) -> _Estimate:
        z = self._z[0]
        if self._sparse:
            sums, means = self._sparse_sums(x, z, self._betas, abs(self._betas))
            return sums + self._bias, self._engine.error_bound(x, z, means)
        if not self._single:
            largest = np.abs(self._betas).max(axis=0)
            size = float(largest.sum()) or 1.0
            sums = self._engine.weighted_sum(x, z, np.vstack([self._betas, largest / size]))
            bound = size * self._engine.error_bound(x, z, sums[:, -1:])
            values = sums[:, :-1] + self._bias
            return values, np.broadcast_to(bound, values.shape)
        # Each class has the sum of kernel values, and the sum times norms, which bounds its error.
        of_classes = []
        for z, (_, alpha) in zip(self._z, self._classes, strict=True):
            weights = np.vstack([alpha, alpha * z.norms])
            of_classes.append(self._engine.weighted_sum(x, z, weights))
        positive, negative = (sums[:, 0] for sums in of_classes)
        mean, norms = (of_classes[0] + of_classes[1]).T
        mean_norm = np.divide(norms, mean, out=np.full(len(x), np.inf), where=mean > _LEAST_MEAN)
        bounds = [self._engine.error_bound(x, z, mean, mean_norm) for z in self._z]
        return self._bias + positive - negative, np.maximum.reduce(bounds)

    def exact(self, rows: Rows) -> tuple[Float64Array, Float64Array]:
        """Decision values from float64 kernel values, and a bound on their errors for each row."""
        x = self._engine.prepare(rows, exact=True)
        return self.exact_values(x), self._engine.error_bound(x, self._z64)

    def exact_values(self, x: Operand) -> Float64Array:
        """The decision values alone, for rows prepared for float64."""
        if self._sparse:
            (sums,) = self._sparse_sums(x, self._z64, self._betas)
        else:
            betas = self._betas[0] if self._single else self._betas
            sums = self._engine.weighted_sum(x, self._z64, betas)
        return np.asarray(sums + self._bias)

    @property
    def sums_dominate(self) -> bool:
        """Whether sums for several classifiers take longer than the products of rows."""
        return self._sparse and self._betas.nnz > int(self._z64.n_terms().sum())

    @property
    def has_differences(self) -> bool:
        """Whether `by_differences` may have narrower bounds than `exact`."""
        differs = self._z64.method.differences
        return self._engine.kernel.shift_invariant and not differs

    def by_differences(self, rows: Rows) -> tuple[Float64Array, Float64Array]:
        """The same as `exact` for a few rows, from differences of rows and vertices.

        A distance from products loses the digits that its terms share. The difference of two stored
        values errs by one unit of itself. Rows become dense for it, some of them at a time.
        """
        engine = Engine(self._engine.kernel, 1, Arithmetic(exact=FLOAT64_DIFFERENCES))
        step = max(1, _BLOCK_BYTES // (8 * rows.shape[1]))
        sums, bound = np.zeros((len(rows), self._betas.shape[0])), np.zeros(len(rows))
        for first in range(0, self.n_vertices, step):
            cols = slice(first, first + step)
            z = engine.prepare(self._vertices[cols], exact=True)
            betas = self._betas[:, cols]
            weights = betas if isinstance(betas, np.ndarray) else betas.toarray()
            for start in range(0, len(rows), step):
                part = slice(start, start + step)
                x = engine.prepare(rows[part], exact=True)
                sums[part] += engine.weighted_sum(x, z, weights)
                bound[part] = np.maximum(bound[part], engine.error_bound(x, z))
        self._engine.count(len(rows) * self.n_vertices)
        values = sums[:, 0] if self._single else sums
        return values + self._bias, bound + self.n_vertices * FLOAT64_UNIT

    def _sparse_sums(self, x: Operand, z: Operand, *matrices: Any) -> list[Float64Array]:
        """Sums by sparse matrices of weights, each of shape (len(x), n_classifiers)."""
        sums = [np.empty((len(x), len(self._classifiers))) for _ in matrices]
        step = max(_LEAST_ROWS, _BLOCK_BYTES // (8 * self.n_vertices))
        for start in range(0, len(x), step):
            part = x[start : start + step]
            values: AnyArray = np.empty((self.n_vertices, len(part)), dtype=x.method.dtype)
            self._engine.block(z, part, values)
            for matrix, out in zip(matrices, sums, strict=True):
                out[start : start + step] = (matrix @ values.astype(np.float64, copy=False)).T
        return sums


def _matrix_of(classifiers: Sequence[Weights], n_vertices: int) -> Any:
    """Weights times labels, (n_classifiers, n_vertices): dense if all classifiers weigh all."""
    if len(classifiers) == 1 or all(len(one.places) == n_vertices for one in classifiers):
        dense = np.zeros((len(classifiers), n_vertices))
        for row, one in zip(dense, classifiers, strict=True):
            row[one.places] = one.beta
        return dense
    from scipy.sparse import csr_array

    indptr = np.concatenate([[0], np.cumsum([len(one.places) for one in classifiers])])
    places = np.concatenate([one.places for one in classifiers])
    betas = np.concatenate([one.beta for one in classifiers])
    return csr_array((betas, places, indptr), shape=(len(classifiers), n_vertices))
