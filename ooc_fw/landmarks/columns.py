"""The primal of the linear kernel: weights of columns in place of weights of landmarks.

The span of all columns is the whole space. A row x has the features (x, 1) in place of kernel
values with landmarks, and the unit matrix takes the place of G. Gradients, products with the
Hessian, steps and certificate are those of landmark models (`ooc_fw.landmarks.span`), and the gap
is a gap to the optimum. All sums are float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np

from ooc_fw._core import columns as compiled
from ooc_fw.data.parallel import row_slices
from ooc_fw.data.rows import CSRRows, Float64Array, Int64Array, Rows, stored_arrays
from ooc_fw.kernels.arithmetic import Operand
from ooc_fw.kernels.engine import Engine
from ooc_fw.kernels.functions import FLOAT64_PRODUCTS, Sizes
from ooc_fw.landmarks import halves
from ooc_fw.landmarks.span import Landmarks, Span
from ooc_fw.system.threads import Result

_STRIP_BYTES = 2 << 20  # dense rows in float64 that a thread multiplies at once


class Columns:
    """The columns of the rows and the constant feature, which stand for landmarks.

    The constant feature is 1. Weights have a last entry for it, the bias.
    """

    always_exact = True
    rows = None  # there are no landmarks
    bias = 0.0  # nothing is added to a feature
    largest = 1.0
    error = 0.0

    def __init__(self, engine: Engine, n_features: int) -> None:
        self.engine = engine
        self.n_features = n_features

    def __len__(self) -> int:
        return self.n_features + 1

    def prepare(self, rows: Rows, exact: bool) -> Operand:
        """Rows in float64 arithmetic; InputError for rows that the engine refuses."""
        return self.engine.prepare(rows, exact=True)

    def bounds(self, x: Operand, exact: bool) -> tuple[float, float]:
        """Bounds for weights of norm 1: on the error of a decision value, and on the value."""
        norms = x.norms + 1.0
        sizes = Sizes(FLOAT64_PRODUCTS, norms, 1.0, x.n_terms() + 8)
        error = float(self.engine.kernel.error_bound(sizes).max(initial=0.0))
        return error, float(np.sqrt(norms.max(initial=0.0)))

    def strips(
        self,
        x: Operand,
        weights: Float64Array,
        use: Callable[[slice, Float64Array], tuple[Result, Float64Array]],
        kept: Any = None,
    ) -> Iterator[tuple[Result, Float64Array]]:
        """As `Engine.strips`, with features in place of kernel values."""
        lines = np.ascontiguousarray(weights.T)

        def run(strip: tuple[int, int]) -> tuple[Result, Float64Array]:
            part = slice(*strip)
            rows = self._wide(x.values[part])
            sums = self._sums(rows, lines)
            result, factors = use(part, sums)
            return result, self.add(rows, factors).T

        return self.engine.pool.map(run, self._strips(x.values))

    def hessian_product(
        self, rows: Rows, places: Int64Array, d: Float64Array, factors: Float64Array, exact: bool
    ) -> Float64Array:
        """Sum of factors_i x_i (x_i'd) over the rows at `places`, which have the `factors`."""
        lines = np.ascontiguousarray(d.T)
        all_factors = np.zeros((len(rows), len(d)))
        all_factors[places] = factors
        self.engine.count(len(places) * len(self))

        def run(strip: tuple[int, int]) -> Float64Array:
            part = slice(*strip)
            if isinstance(rows, CSRRows):
                out = np.zeros_like(lines)
                arrays = stored_arrays(rows[part])
                of_strip = all_factors[part]
                compiled.add_column_products(arrays, lines, of_strip, out)
                return out.T
            values = self._wide(rows[part])
            return self.add(values, all_factors[part] * self._sums(values, lines)).T

        product = np.zeros_like(d)
        for each in self.engine.pool.map(run, self._strips(rows)):
            product += each
        return product

    def values(self, rows: Rows) -> Float64Array:
        """The features of some rows, (n, n_features + 1)."""
        dense = rows.toarray() if isinstance(rows, CSRRows) else rows
        return np.hstack([dense, np.ones((len(rows), 1))], dtype=np.float64)

    def add(self, rows: Any, factors: Float64Array) -> Float64Array:
        """sum_i factors_i (x_i, 1), shape (n_features + 1, k)."""
        out = np.zeros((len(self), factors.shape[1]))
        if isinstance(rows, CSRRows):
            compiled.add_rows(stored_arrays(rows), factors, out)
        else:
            np.matmul(rows.T, factors, out=out[:-1])
            out[-1] = factors.sum(axis=0)
        return out

    def _sums(self, rows: Any, lines: Float64Array) -> Float64Array:
        """Sums of the features of each row by the weights in `lines`, (n_features + 1, k)."""
        if not isinstance(rows, CSRRows):
            return np.asarray(rows @ lines[:-1] + lines[-1])
        sums = np.empty((len(rows), lines.shape[1]))
        compiled.column_sums(stored_arrays(rows), lines, sums)
        return sums

    def _wide(self, rows: Rows) -> Any:
        """Dense rows in float64; sparse rows as they are."""
        return rows if isinstance(rows, CSRRows) else rows.astype(np.float64)

    def _strips(self, rows: Rows) -> list[tuple[int, int]]:
        """Parts of the rows: one for each thread, or smaller ones of dense rows."""
        height = -(-len(rows) // self.engine.threads)
        if not isinstance(rows, CSRRows):
            height = min(height, _STRIP_BYTES // (8 * self.n_features))
        return row_slices(len(rows), max(1, height))


class ColumnSpan:
    """The span of all columns: G is the unit matrix. It has the methods of a `Span`."""

    jitter = 0.0
    stretch = 1.0

    def __init__(self, columns: Columns) -> None:
        self.landmarks = columns

    def __len__(self) -> int:
        return len(self.landmarks)

    def fill_upper(self, matrix: Float64Array) -> None:
        """Set the upper triangle of a matrix, and its diagonal, to G plus its lower triangle."""
        np.copyto(matrix, np.tril(matrix).T, where=~np.tri(len(matrix), k=-1, dtype=np.bool_))
        np.einsum("ii->i", matrix)[...] += 1.0

    def times(self, b: Float64Array) -> Float64Array:
        """Gb for each row of `b`, shape (k, N)."""
        return b

    def inverse_norm(self, u: Float64Array) -> Float64Array:
        """u'G^-1 u for each row of `u`, shape (k,)."""
        return np.asarray(np.einsum("ij,ij->i", u, u))

    def inverse_norm_bound(self, u: Float64Array) -> Float64Array:
        """Upper bound on u'G^-1 u for each row of `u`, rounding included."""
        return np.asarray(self.inverse_norm(u) * (1 + (u.shape[1] + 8) * np.finfo(np.float64).eps))

    def sizes(self, b: Float64Array) -> Float64Array:
        """Norms of the weights: factors of the bounds on rounding, which are for a norm of 1."""
        return np.sqrt(self.inverse_norm_bound(b))

    def rounded(self, b: Float64Array) -> Float64Array:
        """The weights as a model holds them: each is the sum of two float32 numbers."""
        held = np.add(*halves(b))
        held[:, -1] = (b[:, -1] - 2.0) + 2.0  # see `ooc_fw.model.record`
        return held


AnyFeatures: TypeAlias = Landmarks | Columns
AnySpan: TypeAlias = Span | ColumnSpan
