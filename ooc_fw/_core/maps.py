"""Compiled kernel maps: tiles of products become kernel values, or weighted sums of them.

A tile holds the products (dot products or distances) of some rows with some vertices. Functions
take slices, because the compiler vectorises only loops over whole slices. They sum up a row while
it is in the first-level cache. A new map needs a code, and a loop over one row in `map_row`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from ooc_fw._core.loading import njit

# Relaxed floating point for inner loops: sums in any order, and no NaN (reads check for it).
FLOAT_FLAGS = {"reassoc", "contract", "nsz", "arcp", "nnan"}
# Maps keep the order of sums, so that k(x, z) and k(z, x) are the same number.
MAP_FLAGS = FLOAT_FLAGS - {"reassoc"}

LOG2_E = 1.4426950408889634


class MapCode(IntEnum):
    """The map from products to kernel values."""

    RBF = 0
    LINEAR = 1
    POLYNOMIAL = 2
    TANIMOTO = 3


class KernelMap(NamedTuple):
    """A map and its constants, in the precision of the tile.

    RBF, Laplacian: `scale` is 2 gamma log2(e), or -gamma log2(e) for a tile of distances.
    Polynomial: `scale` is gamma and `shift` coef0.
    """

    code: int  # a `MapCode`
    scale: Any
    shift: Any
    degree: int


# Plain integers, which numba treats as constants.
_RBF = int(MapCode.RBF)
_POLYNOMIAL = int(MapCode.POLYNOMIAL)
_TANIMOTO = int(MapCode.TANIMOTO)
_F, _SINGLE = np.float32, np.dtype(np.float32)
_LEAST_FLOAT32, _LEAST_FLOAT64 = 2.0**-126, 2.0**-1022  # the least normal numbers


# For 2^t, the whole part of t becomes exponent bits; a polynomial takes the rest, in [-1/2, 1/2].


@njit(cache=True, nogil=True, fastmath=MAP_FLAGS)
def exp2_float32(t):
    """2^t for t <= 0, at least 2^-126; relative error 2e-7, by the polynomial of Cephes' exp2f."""
    t = max(t, _F(-126.0))
    whole = np.rint(t)
    r = t - whole
    p = _F(1.535336188319500e-4)
    p = p * r + _F(1.339887440266574e-3)
    p = p * r + _F(9.618437357674640e-3)
    p = p * r + _F(5.550332471162809e-2)
    p = p * r + _F(2.402264791363012e-1)
    p = p * r + _F(6.931472028550421e-1)
    p = p * r + _F(1.0)
    bits = (np.int32(whole) + np.int32(127)) << np.int32(23)
    return p * np.int32(bits).view(np.float32)


@njit(cache=True, nogil=True, fastmath=MAP_FLAGS)
def exp2_float64(t):
    """2^t for t <= 0, at least 2^-1022; relative error 3e-16, by a fit at Chebyshev points."""
    t = max(t, -1022.0)
    whole = np.rint(t)
    r = t - whole
    p = 4.4558179083360645e-10
    p = p * r + 7.074194297288521e-09
    p = p * r + 1.0178057087733941e-07
    p = p * r + 1.3215432535912375e-06
    p = p * r + 1.5252733841556773e-05
    p = p * r + 0.00015403530463724353
    p = p * r + 0.001333355814640647
    p = p * r + 0.009618129107587256
    p = p * r + 0.055504108664821625
    p = p * r + 0.24022650695910158
    p = p * r + 0.6931471805599453
    p = p * r + 1.0
    bits = (np.int64(whole) + np.int64(1023)) << np.int64(52)
    return p * np.int64(bits).view(np.float64)


@njit(cache=True, nogil=True, fastmath=MAP_FLAGS)
def _polynomial_row(row, scale, shift, degree):
    """(scale row + shift)^degree in place, by repeated squaring: O(log degree) products a value."""
    for j in range(row.size):
        row[j] = scale * row[j] + shift
    if degree == 2:  # the usual case, without an inner loop
        for j in range(row.size):
            row[j] = row[j] * row[j]
    elif degree > 2:
        highest = 1
        while highest <= degree >> 1:
            highest <<= 1
        for j in range(row.size):
            base = row[j]
            power = base
            bit = highest >> 1
            while bit > 0:
                power *= power
                if degree & bit:
                    power *= base
                bit >>= 1
            row[j] = power


@njit(cache=True, nogil=True, fastmath=MAP_FLAGS)
def map_row(kernel_map, row, x_term, z_terms):
    """Turn the products of a row with vertices into kernel values, in place; see `map_tile`."""
    code, scale, shift, degree = kernel_map
    zero, single = row.dtype.type(0), row.dtype == _SINGLE
    if code == _RBF:
        for j in range(row.size):
            t = min(scale * row[j] - (x_term + z_terms[j]), zero)
            row[j] = exp2_float32(t) if single else exp2_float64(t)
    elif code == _POLYNOMIAL:
        _polynomial_row(row, scale, shift, degree)
    elif code == _TANIMOTO:
        # For two rows of zeros, the least divisor makes the value 0.
        least = row.dtype.type(_LEAST_FLOAT32 if single else _LEAST_FLOAT64)
        for j in range(row.size):
            row[j] = row[j] / max((x_term + z_terms[j]) - row[j], least)


@njit(cache=True, nogil=True, fastmath=FLOAT_FLAGS)
def dot(weights, row):
    """sum_k weights[k] row[k] in float64, for k below the number of weights."""
    total = 0.0
    for k in range(weights.size):
        total += weights[k] * np.float64(row[k])
    return total


@njit(cache=True, nogil=True)
def map_tile(kernel_map, tile, x_terms, z_terms):
    """Turn a tile of products, shape (n, m), into kernel values, in place.

    Tile, constants and terms have one precision. `x_terms`, shape (n,), and `z_terms`, shape (m,),
    come from `Kernel.map_terms`: gamma log2(e) |x|^2 for RBF (zeros for distances) and |x|^2 for
    Tanimoto.
    """
    for i in range(tile.shape[0]):
        map_row(kernel_map, tile[i], x_terms[i], z_terms)


@njit(cache=True, nogil=True)
def sum_tile(kernel_map, tile, x_terms, z_terms, weights, out):
    """Do `map_tile`, and then out[i, c] += sum_j weights[c, j] k(x_i, z_j), in float64.

    `weights` have shape (k, m), and `out` has shape (n, k).
    """
    for i in range(tile.shape[0]):
        row = tile[i]
        map_row(kernel_map, row, x_terms[i], z_terms)
        for c in range(weights.shape[0]):
            out[i, c] += dot(weights[c], row)


@njit(cache=True, nogil=True)
def add_wanted_sums(tile, weights, wanted, out):
    """out[i, c] += sum_j weights[c, j] tile[i, j] in float64, where wanted[i, c]."""
    for c in range(weights.shape[0]):
        for i in range(tile.shape[0]):
            if wanted[i, c]:
                out[i, c] += dot(weights[c], tile[i])


@njit(cache=True, nogil=True, fastmath=FLOAT_FLAGS)
def _add_row(row, factor, out):
    for j in range(out.size):
        out[j] += factor * np.float64(row[j])


@njit(cache=True, nogil=True, fastmath=FLOAT_FLAGS)
def _add_rows(rows, factors, out):
    """Add four rows, each times its factor, to `out`."""
    a, b, c, d = rows
    fa, fb, fc, fd = factors
    for j in range(out.size):
        out[j] += (fa * np.float64(a[j]) + fb * np.float64(b[j])) + (
            fc * np.float64(c[j]) + fd * np.float64(d[j])
        )


@njit(cache=True, nogil=True)
def add_weighted_rows(tile, factors, first, width, out):
    """out[c, first + j] += sum_i factors[i, c] tile[i, j] for j below `width`, in float64.

    `factors` have shape (n, k), and `out` has shape (k, n_columns). A factor of 0 costs nothing.
    Four rows are added at a time, which saves three of four passes over the sums.
    """
    for c in range(out.shape[0]):
        sums = out[c, first : first + width]
        rows = np.flatnonzero(factors[:, c])
        whole = rows.size - rows.size % 4
        for p in range(0, whole, 4):
            i, j, k, m = rows[p], rows[p + 1], rows[p + 2], rows[p + 3]
            four = factors[i, c], factors[j, c], factors[k, c], factors[m, c]
            _add_rows((tile[i], tile[j], tile[k], tile[m]), four, sums)
        for i in rows[whole:]:
            _add_row(tile[i], factors[i, c], sums)


@njit(cache=True, nogil=True)
def add_products(values, places, weights, factors, unit_and_bias, out):
    """out[c] += sum_i f[i, c] values[places[i]], in float64; true values are unit values + bias.

    f[i, c] = factors[i, c] sum_j weights[c, j] (unit values[places[i], j] + bias) is written into
    `factors`, shape (n, k); a factor of 0 costs nothing. Four rows at a time stay in the
    first-level cache between the two sums, so that memory is read once.
    """
    unit, bias = unit_and_bias
    for c in range(out.shape[0]):
        shift = bias * weights[c].sum()
        rows = np.flatnonzero(factors[:, c])
        for p in range(0, rows.size, 4):
            four = rows[p : p + 4]
            for i in four:
                factors[i, c] *= unit * dot(weights[c], values[places[i]]) + shift
            if four.size == 4:
                i, j, k, m = four
                of_four = factors[i, c], factors[j, c], factors[k, c], factors[m, c]
                i, j, k, m = places[i], places[j], places[k], places[m]
                _add_rows((values[i], values[j], values[k], values[m]), of_four, out[c])
            else:
                for i in four:
                    _add_row(values[places[i]], factors[i, c], out[c])
