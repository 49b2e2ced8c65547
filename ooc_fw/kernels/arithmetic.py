"""The precision and the kind of products of kernel values, and rows prepared for them.

A distance from products, |x|^2 + |z|^2 - 2 x.z, loses the digits that its terms share. If
gamma |x|^2 is large, it loses all of them. A probe of rows decides before the run, so that a kernel
value does not depend on the block in which it is computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ooc_fw.data.parallel import row_slices
from ooc_fw.data.rows import (
    AnyArray,
    CSRRows,
    Float64Array,
    Int64Array,
    Rows,
    rows_bytes,
    take_rows,
)
from ooc_fw.kernels.functions import (
    FLOAT32_DIFFERENCES,
    FLOAT32_PRODUCTS,
    FLOAT64_DIFFERENCES,
    FLOAT64_PRODUCTS,
    Kernel,
    Method,
    Sizes,
)

# With so many features float32 differences are a little faster than float64 products: 306 and
# 350 ms for 8 million kernel values.
_FEW_FEATURES = 32
# Largest bounds on the error of a kernel value. Certificates need the least: a relative gap of 1e-3
# may be an absolute gap of 1e-8.
_FAST_ERROR = 1e-3  # from float32 arithmetic
_WIDE_ERROR = 1e-6  # from float64 arithmetic, if values are stored as float32
_EXACT_ERROR = 1e-10  # for certificates
_PROBE_BYTES = 4 << 20  # bytes of a probe that are converted at once


class Arithmetic(NamedTuple):
    """How an engine computes."""

    center: AnyArray | None = None  # float32, subtracted from dense rows if the kernel allows it
    sparse: bool = False  # whether dense rows, too, take the sparse products
    fast: Method = FLOAT32_PRODUCTS  # for values that are stored as float32
    exact: Method = FLOAT64_PRODUCTS  # for float64 values, from which certificates are computed

    def suited_to(self, kernel: Kernel) -> Arithmetic:
        """Drop the centre if the kernel or the products do not allow one."""
        if self.center is None or self.sparse or not kernel.shift_invariant:
            return self._replace(center=None)
        return self._replace(center=np.asarray(self.center, dtype=np.float32))

    def prepare(self, kernel: Kernel, rows: Rows, method: Method) -> Operand:
        """Make the operand: rows for sparse or dense products, with their norms and map terms."""
        sparse = not method.differences and (self.sparse or isinstance(rows, CSRRows))
        if isinstance(rows, CSRRows):
            rows = rows if sparse else rows.toarray()
        elif sparse:
            rows = CSRRows.from_dense(rows)
        values = rows
        if not (sparse or method.differences):
            values = centred(rows, method.dtype, self.center)
        norms = kernel.norms(values)
        terms = np.zeros(len(norms)) if method.differences else kernel.map_terms(norms, values)
        stored = values if method.dtype is np.float32 else rows
        return Operand(stored, norms, terms.astype(method.dtype), method)


@dataclass(frozen=True, slots=True)
class Operand:
    """Rows prepared for products, with norms and terms of shape (n,)."""

    values: Rows  # centred for float32 products; float64 products centre them tile by tile
    norms: Float64Array
    terms: AnyArray  # `Kernel.map_terms` in the precision of `method`
    method: Method

    def __len__(self) -> int:
        return len(self.norms)

    def __getitem__(self, key: slice) -> Operand:
        return Operand(self.values[key], self.norms[key], self.terms[key], self.method)

    def take(self, places: Int64Array) -> Operand:
        """Rows by number."""
        values = take_rows(self.values, places)
        return Operand(values, self.norms[places], self.terms[places], self.method)

    def n_terms(self) -> Int64Array:
        """Number of stored values of each row, shape (n,)."""
        if isinstance(self.values, CSRRows):
            return np.diff(self.values.indptr)
        return np.full(len(self), self.values.shape[1])


def centred(rows: Rows, dtype: type, center: AnyArray | None) -> AnyArray:
    """Dense rows minus `center`, in a precision; the rows themselves if nothing changes."""
    values: AnyArray = np.asarray(rows).astype(dtype, copy=False)
    return values if center is None else values - center


def choose_arithmetic(kernel: Kernel, probe: Rows) -> Arithmetic:
    """Arithmetic for values of `kernel` on rows like those of `probe`.

    Float32 products are taken if the bound on their error is small for all rows of the probe, and
    float64 products if it is not. A shift-invariant kernel takes differences in two cases: float32
    ones if there are few features, and float64 ones if rows are dense and float64 products err too
    much.
    """
    chosen = _suiting_storage(probe)
    # Rows whose bound overflows are refused when an engine prepares them.
    with np.errstate(over="ignore", invalid="ignore"):
        suited = chosen.suited_to(kernel)
        step = max(1, _PROBE_BYTES * len(probe) // max(1, rows_bytes(probe)))
        norm = 0.0
        n_terms = np.empty(0, dtype=np.int64)
        for part in row_slices(len(probe), step):
            x = suited.prepare(kernel, probe[slice(*part)], FLOAT64_PRODUCTS)
            norm = np.maximum(norm, x.norms.max())
            n_terms = np.append(n_terms, x.n_terms())

        def largest_error(method: Method) -> float:
            by = Sizes(method, np.full(len(n_terms), norm), norm, n_terms)
            return float(kernel.error_bound(by).max(initial=0))

        if largest_error(FLOAT32_PRODUCTS) <= _FAST_ERROR:
            return chosen
        error = largest_error(FLOAT64_PRODUCTS)
    if kernel.shift_invariant and probe.shape[1] <= _FEW_FEATURES:
        return chosen._replace(fast=FLOAT32_DIFFERENCES, exact=FLOAT64_DIFFERENCES)
    exact = FLOAT64_DIFFERENCES
    if isinstance(probe, CSRRows) or not kernel.shift_invariant or not error > _EXACT_ERROR:
        exact = FLOAT64_PRODUCTS
    return chosen._replace(fast=exact if error > _WIDE_ERROR else FLOAT64_PRODUCTS, exact=exact)


def _suiting_storage(probe: Rows) -> Arithmetic:
    """Sparse products if they are faster, and the mean of the rows as centre if that pays.

    A small mean is no centre: products of small whole numbers are exact without one.
    """
    if isinstance(probe, CSRRows):
        return Arithmetic(sparse=True)
    # With more nonzeros a BLAS product beats the sparse one.
    sparse = bool(np.count_nonzero(probe) < 0.25 * probe.size)
    mean = probe.mean(axis=0, dtype=np.float64)
    mean_square_norm = np.einsum("ij,ij->", probe, probe, dtype=np.float64) / len(probe)
    # For a larger mean centring saves digits.
    large = mean @ mean > 0.25 * mean_square_norm
    return Arithmetic(mean.astype(np.float32) if large else None, sparse)
