"""Decision values of binary classifiers: from float32 kernel values with a bound, and from float64.

h(x) = sum_j alpha_j y_j (k(x_j, x) + 1), alpha on the simplex.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ooc_fw.data.rows import Float64Array, Int8Array, Int64Array, Rows, take_rows
from ooc_fw.kernels.arithmetic import Operand
from ooc_fw.kernels.engine import Engine, ManyWeights, Nearest
from ooc_fw.kernels.functions import FLOAT64_UNIT


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


class DecisionFunctions:
    """Decision functions of one or several classifiers on the same vertices.

    The vertices of the two classes are summed separately: the difference of the sums is the
    decision value, and their sum, the mean of the kernel values, bounds its error. Several
    classifiers that all have weights on all vertices share one mean, by the largest weights. Values
    of a single classifier have no axis for classifiers. `rounding` bounds the error of the biases
    and of their addition, which no other bound includes.
    """

    def __init__(self, engine: Engine, vertices: Rows, classifiers: Sequence[Weights]) -> None:
        self.n_vertices = len(vertices)
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

    def approximate(self, rows: Rows, with_nearest: bool = False) -> Approximation:
        """Decision values from float32 kernel values; `with_nearest` for a single classifier."""
        x, z = self._engine.prepare(rows), self._z[0]
        if isinstance(self._betas, ManyWeights):
            positive, negative = np.split(self._engine.weighted_sums(x, z, self._alphas), 2, axis=1)
            bound = self._engine.error_bound(x, z, positive + negative)
            return Approximation(positive - negative + self._bias, bound, x, None)
        if not self._single:
            largest = np.abs(self._betas).max(axis=0)
            size = float(largest.sum()) or 1.0
            sums = self._engine.weighted_sum(x, z, np.vstack([self._betas, largest / size]))
            bound = size * self._engine.error_bound(x, z, sums[:, -1:])
            values = sums[:, :-1] + self._bias
            return Approximation(values, np.broadcast_to(bound, values.shape), x, None)
        nearest = Nearest(len(x)) if with_nearest else None
        positive, negative = (
            self._engine.weighted_sum(x, z, alpha, nearest)
            for z, (_, alpha) in zip(self._z, self._classes, strict=True)
        )
        if nearest is not None:
            nearest.place = np.concatenate([places for places, _ in self._classes])[nearest.place]
        bounds = [self._engine.error_bound(x, z, positive + negative) for z in self._z]
        values = self._bias + positive - negative
        return Approximation(values, np.maximum.reduce(bounds), x, nearest)

    def value_bound(self, x: Operand) -> Float64Array:
        """Bound on the error of the kernel values of `Nearest`, for a single classifier."""
        return np.asarray(np.maximum.reduce([self._engine.value_bound(x, z) for z in self._z]))

    def exact(self, rows: Rows) -> tuple[Float64Array, Float64Array]:
        """Decision values from float64 kernel values, and a bound on the errors of each row."""
        x = self._engine.prepare(rows, exact=True)
        if isinstance(self._betas, ManyWeights):
            sums = self._engine.weighted_sums(x, self._z64, self._betas)
        else:
            betas = self._betas[0] if self._single else self._betas
            sums = self._engine.weighted_sum(x, self._z64, betas)
        return sums + self._bias, self._engine.error_bound(x, self._z64)
