"""Compiled work on the active set: gradient updates, scans and the pairwise inner solver.

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

_TILE = 64  # side of the squares by which a block is transposed, in values
_ONE = np.float32(1)  # of float32, so that float32 arithmetic is not promoted to float64
_TINY = np.float32(1e-30)  # least curvature, which keeps a quotient finite for equal rows
_NEARLY = 0.5  # a pair with cached rows is taken from this fraction of the best slope on
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
    """Kernel values between vertices: those of vertex k are ``values[slots[k], :m] * unit``.

    Parameters
    ----------
    values : ndarray of uint16, float32 or float64, shape (n_slots, at least m)
        Multiples of `unit`, which is a float32, or a float64 where `values` are.
    slots : ndarray of int64, shape (m,)
        Row of `values` that belongs to each vertex, -1 where it is not held.
    used : ndarray of int64, shape (n_slots,)
        Clock at which each row of `values` was last used; modified by steps.
    """

    values: Any
    unit: Any
    slots: Int64Array
    used: Int64Array


class _Chosen(NamedTuple):
    """Vertex i, for which another is sought: g_i, the scale of gradients, Q_ii and 2 y_i."""

    grad: Any
    scale: Any
    diag: Any
    twice_label: Any


@njit(cache=True, inline="always")
def _value(stored, unit):
    """Kernel value of a stored number, in float64."""
    return np.float64(stored) * np.float64(unit)


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
    row_i = block.values[block.slots[i], :m]
    row_j = block.values[block.slots[j], :m]
    _add_columns(grad, y, scale, unit, row_i, weight_i * y[i], row_j, weight_j * y[j])
    # The diagonal of Q is exact, while the column just added has the rounding of K and no 1/C.
    grad[i] += weight_i * (diag[i] - _value(row_i[i], unit) - 1.0)
    grad[j] += weight_j * (diag[j] - _value(row_j[j], unit) - 1.0)
    for k in range(m):
        alpha[k] *= scale
    alpha[i] += weight_i
    alpha[j] += weight_j
    return dot(alpha, grad)


@njit(cache=True, nogil=True)
def _lower_lanes(lanes, values):
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
        _lower_lanes(lanes, values[s : s + LANES])
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


@njit(cache=True, nogil=True, fastmath=FLOAT_FLAGS)
def _raise_to_gains(lanes, grad, away, diag, row, units, chosen):
    """Raise lanes[k] to the second-order gain of vertex k, 0 where it is no away vertex.

    `units` holds the unit of the row, whose type is that of the arithmetic on kernel values.
    """
    number = units.dtype.type
    unit = units[0]
    g_i, scale, q_ii, twice_y_i = chosen
    for k in range(lanes.size):
        slope = max((grad[k] - g_i) * scale * abs(away[k]), grad.dtype.type(0))
        curvature = q_ii + diag[k] - twice_y_i * away[k] * (number(row[k]) * unit + _ONE)
        lanes[k] = max(lanes[k], slope * slope / max(curvature, _TINY))


@njit(cache=True, nogil=True)
def second_order_away(vertices, away, row, unit, i, scale, lanes):
    """Support vertex j of largest (g_j - g_i)^2 / (Q_ii + Q_jj - 2 Q_ij) with g_j > g_i, or -1.

    `away`, shape (m,), has the labels of the support vertices and 0 elsewhere; `row`, shape (m,),
    the kernel values of vertex i in multiples of `unit`. `scale`, 1/rho, keeps squared gradients in
    the range of their precision, which is that of all arrays; `lanes`, shape (LANES,), is scratch.
    After Allende, Frandi, Nanculef, Sartori, A novel Frank-Wolfe algorithm, algorithm 5.
    """
    _, grad, diag, labels = vertices
    m = grad.size
    chosen = _Chosen(grad[i], scale, diag[i], labels[i] + labels[i])
    lanes[:] = 0
    units = np.full(1, unit)
    for s in range(0, m, LANES):
        e = min(s + LANES, m)
        near = lanes[: e - s]
        _raise_to_gains(near, grad[s:e], away[s:e], diag[s:e], row[s:e], units, chosen)
    lane = 0
    for k in range(1, LANES):
        if lanes[k] > lanes[lane]:
            lane = k
    place = -1
    best = grad.dtype.type(0)
    single = lanes[:1]
    for k in range(lane, m, LANES):
        single[0] = 0
        e = k + 1
        _raise_to_gains(single, grad[k:e], away[k:e], diag[k:e], row[k:e], units, chosen)
        if single[0] > best:
            best = single[0]
            place = k
    return place


@njit(cache=True, nogil=True, fastmath=FLOAT_FLAGS)
def _add_pair(lanes, grad, y, row_i, row_j, units_i, units_j, both):
    """Add y * (units_i row_i + units_j row_j + both) to grad; lower the lanes to it."""
    real = grad.dtype.type
    for k in range(lanes.size):
        value = grad[k] + y[k] * (units_i * real(row_i[k]) + units_j * real(row_j[k]) + both)
        grad[k] = value
        lanes[k] = min(lanes[k], value)


@njit(cache=True, nogil=True)
def _add_pair_and_find_least(grad, y, row_i, row_j, unit, weight_i, weight_j, lanes):
    """Update the gradient in place and return the place of its least value, in one scan."""
    m = grad.size
    lanes[:] = np.inf
    both = weight_i + weight_j
    units_i = grad.dtype.type(weight_i * unit)
    units_j = grad.dtype.type(weight_j * unit)
    for s in range(0, m, LANES):
        e = min(s + LANES, m)
        _add_pair(lanes[: e - s], grad[s:e], y[s:e], row_i[s:e], row_j[s:e], units_i, units_j, both)
    lane = 0
    for k in range(1, LANES):
        if lanes[k] < lanes[lane]:
            lane = k
    place = lane
    for k in range(lane, m, LANES):
        if grad[k] < grad[place]:
            place = k
    return place


@njit(cache=True, nogil=True)
def optimise_pairwise(vertices, block, clock, tol, max_steps):
    """Pairwise second-order steps on the active set until its relative gap is at most `tol`.

    i is the vertex of least gradient, j the support vertex of largest second-order gain, and the
    step is the exact line search clipped at alpha_j; O(m). A float32 gradient halves the time and
    loses about 1e-7 of rho a step. Step s writes ``clock + s`` to `KernelBlock.used`. Returns the
    steps, how many dropped a vertex, the gap, and the vertex whose row the next step lacks or -1.
    """
    alpha, grad, diag, y = vertices
    K, unit, slots, used = block
    m = alpha.size
    real = grad.dtype.type
    scanned = Vertices(alpha, grad, diag.astype(grad.dtype), y.astype(grad.dtype))
    signs = scanned.labels
    away = np.where(alpha > 0.0, signs, real(0))
    lanes = np.empty(LANES, grad.dtype)
    rho = dot(alpha, grad)
    drops = 0
    steps = 0
    missing = -1
    held = away.copy()  # labels of the support vertices whose rows are in the block
    for k in range(m):
        if slots[k] < 0:
            held[k] = 0
    whole = slots.min() >= 0
    i = argmin(grad)
    while True:
        gap = 1.0 - np.float64(grad[i]) / rho
        if gap <= tol or steps >= max_steps:
            break
        if slots[i] < 0:
            missing = i
            break
        used[slots[i]] = clock + steps
        row_i = K[slots[i], :m]
        scale = real(1.0 / rho)
        j = second_order_away(scanned, away, row_i, unit, i, scale, lanes)
        if j < 0:
            break
        if not whole and slots[j] < 0:
            # A cached row that serves nearly as well saves the computation of another.
            other = second_order_away(scanned, held, row_i, unit, i, scale, lanes)
            if other < 0 or grad[other] - grad[i] < _NEARLY * (grad[j] - grad[i]):
                missing = j
                break
            j = other
        used[slots[j]] = clock + steps
        row_j = K[slots[j], :m]
        q_ij = y[i] * y[j] * (_value(row_i[j], unit) + 1.0)
        slope = np.float64(grad[j]) - np.float64(grad[i])
        curvature = diag[i] + diag[j] - 2.0 * q_ij
        step = alpha[j]
        if curvature * step > slope:
            step = slope / curvature
        dropped = step >= alpha[j]
        # The diagonal of Q is exact: as in `move`.
        grad[i] += real(step * (diag[i] - _value(row_i[i], unit) - 1.0))
        grad[j] -= real(step * (diag[j] - _value(row_j[j], unit) - 1.0))
        alpha[i] += step
        away[i] = held[i] = signs[i]
        if dropped:
            alpha[j] = 0.0
            away[j] = held[j] = 0
            drops += 1
        else:
            alpha[j] -= step
        rho += step * (step * curvature - 2.0 * slope)
        steps += 1
        i = _add_pair_and_find_least(
            grad, signs, row_i, row_j, unit, real(step * y[i]), real(-step * y[j]), lanes
        )
    return steps, drops, gap, missing


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
def keep_vertices(sources, keep, K):
    """Move row sources[a] of K to row a, with only the columns in `keep`; both increase."""
    for a in range(sources.size):
        row = K[sources[a]]
        for b in range(keep.size):
            K[a, b] = row[keep[b]]


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
def weigh_rows(K, slots, weights, out):
    """out[r] = sum_k K[slots[r], k] weights[k]."""
    for r in range(out.size):
        out[r] = dot(weights, K[slots[r], : weights.size])


@njit(cache=True, nogil=True)
def mirror_rows(K, slots, first, new_slots, start, stop):
    """Copy rows of new vertices into their columns of the rows of vertices start..stop, if held.

    The new vertices are those from place `first` on, and `new_slots` holds the slots of their rows.
    """
    n_new = new_slots.size
    for a in range(0, n_new, _TILE):
        for b in range(start, stop, _TILE):
            for k in range(b, min(b + _TILE, stop)):
                slot = slots[k]
                if slot >= 0:
                    for r in range(a, min(a + _TILE, n_new)):
                        K[slot, first + r] = K[new_slots[r], k]
