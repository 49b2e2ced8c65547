"""Decision values of binary classifiers: from float32 kernel values with a bound, and from float64.

    h(x) = sum_j alpha_j y_j (k(x_j, x) + 1),   alpha on the simplex

Certificates and predictions first compute all rows by float32 kernel values, then in float64 the
rows that the bound on the error leaves open. The vertices of the two classes are summed separately:
the difference of the sums is the decision value, and their sum, the mean of the kernel values,
bounds its error (`ooc_fw.kernels.functions`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ooc_fw.data.rows import Float64Array, Int8Array, Int64Array, Rows, take_rows
from ooc_fw.kernels.engine import Engine, ManyWeights, Nearest
from ooc_fw.kernels.functions import FLOAT64_UNIT
from ooc_fw.kernels.tiles import Operand


@dataclass(frozen=True)
class Weights:
    """Weights of one classifier on some of the vertices; arrays of shape (n_support,).

    Parameters
    ----------
    places : ndarray of int64
        The vertices, without repeats.
    alpha : ndarray of float64
        Weights on the simplex.
    labels : ndarray of int8
        -1 or +1.
    """

    places: Int64Array
    alpha: Float64Array
    labels: Int8Array

    @property
    def beta(self) -> Float64Array:
        """Weights times labels."""
        return self.alpha * self.labels


@dataclass(frozen=True)
class Approximation:
    """Decision values from float32 kernel values.

    Parameters
    ----------
    values, bound : ndarray of float64, shape (n_rows,), or (n_rows, n_classifiers) of several
        The values, and bounds on their errors.
    x : Operand
        The rows.
    nearest : Nearest or None
        The vertex of largest kernel value of each row, if requested.
    """

    values: Float64Array
    bound: Float64Array
    x: Operand
    nearest: Nearest | None


class DecisionFunctions:
    """Decision functions of one or several classifiers on the same vertices.

    Parameters
    ----------
    engine : Engine
        Computes kernel values.
    vertices : Rows
        Rows that have weight in any classifier.
    classifiers : sequence of Weights
        The classifiers; values of a single one have no axis for classifiers.

    Attributes
    ----------
    n_vertices : int
        Number of vertices.
    rounding : float
        Bound on the error of the biases and of their addition, which no other bound includes.
    """

    def __init__(self, engine: Engine, vertices: Rows, classifiers: Sequence[Weights]) -> None:
        self.n_vertices = len(vertices)
        self.rounding = (self.n_vertices + 4) * FLOAT64_UNIT
        self._engine = engine
        self._z64 = engine.prepare(vertices, exact=True)
        self._single = len(classifiers) == 1
        biases = np.array([own.beta.sum() for own in classifiers])
        self._bias = biases[0] if self._single else biases
        if self._single:
            self._set_single(vertices, classifiers[0])
        else:
            self._set_several(vertices, classifiers)

    def _set_single(self, vertices: Rows, own: Weights) -> None:
        self._beta = np.zeros(self.n_vertices)
        self._beta[own.places] = own.beta
        self._parts = []
        for sign in (1.0, -1.0):
            of_class = own.labels == sign
            places = own.places[of_class]
            z = self._engine.prepare(take_rows(vertices, places))
            self._parts.append((sign, places, z, own.alpha[of_class]))

    def _set_several(self, vertices: Rows, classifiers: Sequence[Weights]) -> None:
        self._z = self._engine.prepare(vertices)
        places = [own.places for own in classifiers]
        self._betas = ManyWeights.of(self.n_vertices, places, [own.beta for own in classifiers])
        by_sign = [(own, own.labels == sign) for sign in (1, -1) for own in classifiers]
        self._alphas = ManyWeights.of(
            self.n_vertices,
            [own.places[of_class] for own, of_class in by_sign],
            [own.alpha[of_class] for own, of_class in by_sign],
        )

    def approximate(self, rows: Rows, with_nearest: bool = False) -> Approximation:
        """Decision values from float32 kernel values; `with_nearest` for a single classifier."""
        x = self._engine.prepare(rows)
        if not self._single:
            sums = self._engine.weighted_sums(x, self._z, self._alphas)
            positive, negative = np.split(sums, 2, axis=1)
            bound = self._engine.error_bound(x, self._z, positive + negative)
            return Approximation(positive - negative + self._bias, bound, x, None)
        values, mean = np.full(len(x), self._bias), np.zeros(len(x))
        nearest = None
        for sign, places, z, alpha in self._parts:
            near = Nearest(len(x)) if with_nearest else None
            own = self._engine.weighted_sum(x, z, alpha, near)
            values += sign * own
            mean += own
            if near is not None and len(z) > 0:
                near.place = places[near.place]
                nearest = near if nearest is None else nearest.or_nearer(near)
        bounds = [self._engine.error_bound(x, z, mean) for _, _, z, _ in self._parts]
        return Approximation(values, np.maximum.reduce(bounds), x, nearest)

    def value_bound(self, x: Operand) -> Float64Array:
        """Bound on the error of the kernel values of `Nearest`, for a single classifier."""
        bounds = [self._engine.value_bound(x, z) for _, _, z, _ in self._parts]
        return np.asarray(np.maximum.reduce(bounds))

    def exact(self, rows: Rows) -> tuple[Float64Array, Float64Array]:
        """Decision values from float64 kernel values, and a bound on the errors of each row."""
        x = self._engine.prepare(rows, exact=True)
        if self._single:
            sums = self._engine.weighted_sum(x, self._z64, self._beta)
        else:
            sums = self._engine.weighted_sums(x, self._z64, self._betas)
        return sums + self._bias, self._engine.error_bound(x, self._z64)
