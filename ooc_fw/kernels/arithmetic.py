"""In which precision, and from which products, an engine computes kernel values.

A distance from products, |x|^2 + |z|^2 - 2 x.z, loses the digits that its terms share: where
gamma |x|^2 is large, all of them. Such rows take products in float64, or sums of differences. A
probe of rows decides before anything is computed, so that a kernel value never depends on the block
that it is computed in.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ooc_fw.data.rows import CSRRows, Float32Array, Rows
from ooc_fw.kernels.functions import FLOAT32_UNIT, FLOAT64_UNIT, Kernel

AnyFloat = npt.NDArray[Any]

FEW_FEATURES = 32
"""Up to so many features float32 differences beat float64 products (306 to 350 ms for 8 M)."""

_LARGE_MEAN = 0.25  # |mean|^2 / mean |x|^2 above which centring saves digits
_DENSE_ENOUGH = 0.25  # share of nonzeros above which a BLAS product beats the sparse one

# Largest bounds on the error of a kernel value: of float32 arithmetic, of float64 arithmetic whose
# values are stored as float32, and of values that certificates rest on (a relative gap of 1e-3 may
# be 1e-8 in absolute terms).
_FAST_ERROR = 1e-3
_WIDE_ERROR = 1e-6
_EXACT_ERROR = 1e-10


class Method(NamedTuple):
    """How kernel values are computed.

    Parameters
    ----------
    dtype : type
        float32 or float64, of products and maps.
    differences : bool
        Whether distances are sums of differences of the rows as they are, rather than products of
        centred rows; for shift-invariant kernels.
    """

    dtype: type
    differences: bool = False

    @property
    def unit(self) -> float:
        """Unit roundoff."""
        return FLOAT32_UNIT if self.dtype is np.float32 else FLOAT64_UNIT


FLOAT32_PRODUCTS = Method(np.float32)
FLOAT64_PRODUCTS = Method(np.float64)
FLOAT32_DIFFERENCES = Method(np.float32, differences=True)
FLOAT64_DIFFERENCES = Method(np.float64, differences=True)


class Arithmetic(NamedTuple):
    """How an engine computes.

    Parameters
    ----------
    center : ndarray of float32, shape (n_features,), or None
        Subtracted from dense rows before products of a shift-invariant kernel. Large column means
        would cost digits in |x|^2 + |z|^2 - 2 x.z.
    sparse : bool
        Whether dense rows, too, take the sparse products.
    fast : Method
        For values that are stored as float32.
    exact : Method
        For values that are held in float64, and what certificates rest on.
    """

    center: AnyFloat | None = None
    sparse: bool = False
    fast: Method = FLOAT32_PRODUCTS
    exact: Method = FLOAT64_PRODUCTS

    def suited_to(self, kernel: Kernel) -> Arithmetic:
        """The same without what does not apply to a kernel."""
        sparse = self.sparse or kernel.uses_distance
        if self.center is None or sparse or not kernel.shift_invariant:
            return self._replace(center=None, sparse=sparse)
        return self._replace(center=np.asarray(self.center, dtype=np.float32), sparse=sparse)


def centred(rows: Rows, dtype: type, center: AnyFloat | None) -> AnyFloat:
    """Dense rows minus `center`, in a precision; the rows themselves where nothing changes."""
    values: AnyFloat = np.asarray(rows).astype(dtype, copy=False)
    return values if center is None else values - center


def prefers_sparse(rows: Rows) -> bool:
    """Whether the sparse product is the faster one for rows like these."""
    if isinstance(rows, CSRRows):
        return True
    return bool(np.count_nonzero(rows) < _DENSE_ENOUGH * rows.size)


def choose_center(rows: Rows) -> Float32Array | None:
    """Mean of `rows` where it is large enough for centring to pay, else None.

    Any centre is right for a shift-invariant kernel. Small means are left alone, since the products
    of small whole numbers are exact without a centre.
    """
    if isinstance(rows, CSRRows):
        return None
    mean = rows.mean(axis=0, dtype=np.float64)
    mean_square_norm = np.square(rows, dtype=np.float64).sum(axis=1).mean()
    return mean.astype(np.float32) if mean @ mean > _LARGE_MEAN * mean_square_norm else None


def choose_arithmetic(kernel: Kernel, probe: Rows) -> Arithmetic:
    """Arithmetic for values of `kernel` on rows like those of `probe`.

    Float32 products serve wherever the bound on the error of a kernel value of the probe is small.
    Elsewhere, shift-invariant kernels take float32 differences if there are few features, and
    float64 products or else float64 differences if there are many; other kernels take float64
    products.
    """
    center = choose_center(probe)
    sparse = prefers_sparse(probe)
    as_sparse = sparse or kernel.uses_distance
    values = probe
    if not isinstance(probe, CSRRows) and kernel.shift_invariant and not as_sparse:
        values = centred(probe, np.float64, center)
    norms = kernel.norms(values)
    n_terms = np.full(len(norms), probe.shape[1])
    if isinstance(probe, CSRRows):
        n_terms = np.diff(probe.indptr)
    elif as_sparse:
        n_terms = np.count_nonzero(probe, axis=1)

    def largest_error(unit: float) -> float:
        most = np.full(len(norms), norms.max(initial=0))
        # Rows whose bound overflows are refused when they are prepared.
        with np.errstate(over="ignore", invalid="ignore"):
            bounds = kernel.error_bound(most, most.max(initial=0), n_terms, unit)
            return float(bounds.max(initial=0))

    fast, exact = FLOAT32_PRODUCTS, FLOAT64_PRODUCTS
    if not largest_error(FLOAT32_UNIT) <= _FAST_ERROR:
        fast = FLOAT64_PRODUCTS
        error = largest_error(FLOAT64_UNIT)
        if kernel.shift_invariant and probe.shape[1] <= FEW_FEATURES:
            fast, exact = FLOAT32_DIFFERENCES, FLOAT64_DIFFERENCES
        elif kernel.shift_invariant and error > _EXACT_ERROR:
            exact = FLOAT64_DIFFERENCES
            if error > _WIDE_ERROR:
                fast = FLOAT64_DIFFERENCES
    return Arithmetic(center, sparse, fast, exact)
