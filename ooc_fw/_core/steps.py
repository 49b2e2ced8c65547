"""Compiled work on the active set: gradient updates, scans and single steps.

Q_ij = y_i y_j (K_ij + 1) off the diagonal of the dual's matrix, which has its own values `diag`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ooc_fw._core.loading import njit
from ooc_fw._core.maps import FLOAT_FLAGS, dot
from ooc_fw._core.types import FloatArray, Int64Array

LANES = 512
"""Extrema that a scan keeps side by side, so that the compiler vectorises it."""

PANEL = 4 * LANES
"""Columns of a panel of kernel values."""

_TILE = 64  # side of the squares by which a block is transposed, in values
_STILL = 1e-9  # moved weight up to which an extrapolation direction is mostly rounding


class Vertices(NamedTuple):
    """The active set as arrays of shape (m,).

    `alpha` and `grad` = Q alpha are modified by steps. All are float64, but where `grad` is
    float32: the precision of `grad` is that of the scans.
    """

    alpha: FloatArray
    grad: FloatArray
    diag: FloatArray
    labels: FloatArray


class KernelBlock(NamedTuple):
    """Kernel values between vertices, in panels of `PANEL` columns.

    The value of vertices k and j is ``values[j // PANEL, slots[k], j % PANEL] * unit``.

    Parameters
    ----------
    values : ndarray of uint16, float32 or float64, shape (n_panels, n_slots, at least PANEL)
        Multiples of `unit`, which is a float32, or a float64 where `values` are.
    slots : ndarray of int64, shape (m,)
        Row of each panel that belongs to each vertex, -1 where it is not held.
    used : ndarray of int64, shape (n_slots,)
        Clock at which each row was last used; modified by steps.
    """

    values: Any
    unit: Any
    slots: Int64Array
    used: Int64Array


@njit(cache=True, nogil=True)
def piece(values, slot, start, stop):
    """Stored values of a row in columns start..stop, which are in one panel."""
    first = start // PANEL * PANEL
    return values[start // PANEL, slot, start - first : stop - first]


@njit(cache=True, nogil=True)
def kernel_value(block, k, j):
    """Kernel value of vertices k and j, in float64; the row of k is held."""
    stored = block.values[j // PANEL, block.slots[k], j % PANEL]
    return np.float64(stored) * np.float64(block.unit)


@njit(cache=True, nogil=True, fastmath=FLOAT_FLAGS)
def _add_columns(grad, y, scale, unit, row_i, weight_i, row_j, weight_j):
    """Set grad = scale * grad + y * (weight_i (k_i + 1) + weight_j (k_j + 1)), in place."""
    both = weight_i + weight_j
    units_i = weight_i * unit
    units_j = weight_j * unit
    for k in range(grad.size):
        change = units_i * np.float64(row_i[k]) + units_j * np.float64(row_j[k]) + both
        grad[k] = scale * grad[k] + y[k] * change


@njit(cache=True, nogil=True)
def move(vertices, block, scale, i, weight_i, j, weight_j):
    """Set alpha to scale * alpha + weight_i e_i + weight_j e_j, with the gradient; O(m).

    Toward, away and pairwise steps are cases of this. Returns rho.
    """
    alpha, grad, diag, y = vertices
    unit = block.unit
    m = alpha.size
    for s in range(0, m, PANEL):
        e = min(s + PANEL, m)
        row_i = piece(block.values, block.slots[i], s, e)
        row_j = piece(block.values, block.slots[j], s, e)
        _add_columns(
            grad[s:e], y[s:e], scale, unit, row_i, weight_i * y[i], row_j, weight_j * y[j]
        )
    # The diagonal of Q is exact, while the column just added has the rounding of K and no 1/C.
    grad[i] += weight_i * (diag[i] - kernel_value(block, i, i) - 1.0)
    grad[j] += weight_j * (diag[j] - kernel_value(block, j, j) - 1.0)
    for k in range(m):
        alpha[k] *= scale
    alpha[i] += weight_i
    alpha[j] += weight_j
    return dot(alpha, grad)


@njit(cache=True, nogil=True)
def lower_lanes(lanes, values):
    for k in range(lanes.size):
        lanes[k] = min(lanes[k], values[k])


@njit(cache=True, nogil=True)
def argmin(values):
    """Place of the least value, -1 when all are inf; the first of equals in a lane.

    Only a minimum over lanes is vectorised: `LANES` minima are kept side by side, then the lane of
    the least one is searched.
    """
    lanes = np.full(LANES, np.inf, values.dtype)
    whole = values.size - values.size % LANES
    for s in range(0, whole, LANES):
        lower_lanes(lanes, values[s : s + LANES])
    lane = 0
    for k in range(1, LANES):
        if lanes[k] < lanes[lane]:
            lane = k
    place = -1
    best = np.inf
    for k in range(lane, whole, LANES):
        if values[k] < best:
            best = values[k]
            place = k
    for k in range(whole, values.size):
        if values[k] < best:
            best = values[k]
            place = k
    return place


@njit(cache=True, nogil=True)
def away_vertex(alpha, grad):
    """Support vertex of largest gradient."""
    best = -np.inf
    j = -1
    for k in range(alpha.size):
        if alpha[k] > 0.0 and grad[k] > best:
            best = grad[k]
            j = k
    return j


@njit(cache=True, nogil=True)
def keep_vertices(sources, keep, values):
    """Move row sources[a] of all panels to row a, with only the columns in `keep`; both increase."""
    for a in range(sources.size):
        for b in range(keep.size):
            kept = values[keep[b] // PANEL, sources[a], keep[b] % PANEL]
            values[b // PANEL, a, b % PANEL] = kept


@njit(cache=True, nogil=True)
def extrapolate(alpha, grad, alpha_before, grad_before):
    """Move (alpha, grad) along d = alpha - alpha_before by the exact line search, in place; O(m).

    The step is clipped where the first weight becomes 0, exactly. Returns the step taken, 0 where
    d'Qd = 0 or the iterates agree but for rounding, and how many weights became 0. After Frandi,
    Nanculef, Suykens (2015), A PARTAN-accelerated Frank-Wolfe algorithm, algorithm 2.
    """
    slope = 0.0
    curvature = 0.0
    moved = 0.0
    bound = np.inf
    for k in range(alpha.size):
        d = alpha[k] - alpha_before[k]
        moved += abs(d)
        slope -= grad[k] * d
        curvature += (grad[k] - grad_before[k]) * d
        if d < 0.0:
            bound = min(bound, alpha[k] / -d)
    if moved <= _STILL or curvature <= 0.0 or slope <= 0.0:
        return 0.0, 0
    size = min(slope / curvature, bound)
    drops = 0
    for k in range(alpha.size):
        d = alpha[k] - alpha_before[k]
        at_bound = d < 0.0 and alpha[k] <= size * -d
        if at_bound and alpha[k] > 0.0:
            drops += 1
        alpha[k] = 0.0 if at_bound else alpha[k] + size * d
        grad[k] += size * (grad[k] - grad_before[k])
    return size, drops


@njit(cache=True, nogil=True, fastmath=FLOAT_FLAGS)
def add_column(grad, y, scale, column, weight):
    """Set grad = scale * grad + weight * y * (column + 1), in place; shapes (n,)."""
    for k in range(grad.size):
        grad[k] = scale * grad[k] + weight * y[k] * (np.float64(column[k]) + 1.0)


@njit(cache=True, nogil=True, fastmath=FLOAT_FLAGS)
def extrapolate_gradient(grad, grad_before, size):
    """Set grad = grad + size * (grad - grad_before), in place; shapes (n,)."""
    for k in range(grad.size):
        grad[k] += size * (grad[k] - grad_before[k])


@njit(cache=True, nogil=True)
def weigh_rows(values, slots, weights, out):
    """out[r] = sum_k k(r, k) weights[k] over the stored values in the panel rows slots[r]."""
    for r in range(out.size):
        total = 0.0
        for s in range(0, weights.size, PANEL):
            e = min(s + PANEL, weights.size)
            total += dot(weights[s:e], piece(values, slots[r], s, e))
        out[r] = total


@njit(cache=True, nogil=True)
def mirror_rows(values, slots, first, new_slots, start, stop):
    """Copy rows of new vertices into their columns of the rows of vertices start..stop, if held.

    The new vertices are those from place `first` on, and `new_slots` holds the slots of their rows.
    """
    last = first + new_slots.size
    c = first
    while c < last:
        c_end = min(_tile_end(c), last)
        k = start
        while k < stop:
            k_end = min(_tile_end(k), stop)
            _mirror_tile(values, slots[k:k_end], new_slots[c - first : c_end - first], k, c)
            k = k_end
        c = c_end


@njit(cache=True, nogil=True)
def _tile_end(column):
    """First column after that of the same tile; a panel has whole tiles."""
    return (column // _TILE + 1) * _TILE


@njit(cache=True, nogil=True)
def _mirror_tile(values, slots, new_slots, k, c):
    """Copy columns k, k + 1, ... of the rows `new_slots` into columns c, ... of the rows `slots`."""
    sources, targets = values[k // PANEL], values[c // PANEL]
    k_first, c_first = k % PANEL, c % PANEL
    for a in range(slots.size):
        if slots[a] >= 0:
            target = targets[slots[a], c_first : c_first + new_slots.size]
            for b in range(new_slots.size):
                target[b] = sources[new_slots[b], k_first + a]
