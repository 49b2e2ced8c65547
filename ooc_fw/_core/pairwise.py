"""The pairwise inner solver: each step on the active set scans all vertices twice.

The first scan finds the away vertex. The second updates the gradient and finds its least value.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ooc_fw._core.loading import njit
from ooc_fw._core.maps import FLOAT_FLAGS, dot
from ooc_fw._core.steps import KernelBlock, Vertices, kernel_value

LANES = 512  # a scan keeps so many extrema side by side, so that the compiler vectorises it
_ONE = np.float32(1)  # a float64 would promote float32 arithmetic
_TINY = np.float32(1e-30)  # least curvature, which keeps quotients finite if rows are equal
_NEARLY = 0.5  # a pair with cached kernel rows is preferred if it has this share of the best slope

Outcome: TypeAlias = tuple[int, int, float, int]
"""Steps, dropped vertices, rho, and the vertex whose missing row the next step needs (or -1)."""


class Scanned(NamedTuple):
    """The arrays that scans read, of shape (m,), in the precision of the gradient."""

    diag: Any
    labels: Any
    away: Any  # labels of support vertices, and 0 elsewhere; steps change it
    held: Any  # labels of support vertices with kernel rows in memory, and 0 elsewhere
    lanes: Any  # scratch, at most LANES values


@njit(cache=True, nogil=True, fastmath=FLOAT_FLAGS)
def _raise_to_gains(lanes, grad, away, diag, row, units, chosen):
    """Raise lanes[k] to the second-order gain of away vertex k; the gain of other vertices is 0.

    `chosen` describes the toward vertex i: g_i, the scale of gradients, Q_ii and 2 y_i. Its kernel
    values are `row` times units[0], in arithmetic of the type of `units`.
    """
    number = units.dtype.type
    unit = units[0]
    g_i, scale, q_ii, twice_y_i = chosen
    for k in range(lanes.size):
        slope = max((grad[k] - g_i) * scale * abs(away[k]), grad.dtype.type(0))
        curvature = q_ii + diag[k] - twice_y_i * away[k] * (number(row[k]) * unit + _ONE)
        lanes[k] = max(lanes[k], slope * slope / max(curvature, _TINY))


@njit(cache=True, nogil=True)
def find_away(vertices, scanned, block, away, i, rho):
    """The away vertex with the largest gain for the toward vertex i; -1 if there is none.

    `away` has the labels of possible away vertices, and 0 elsewhere.
    """
    grad, diag, lanes = vertices.grad, scanned.diag, scanned.lanes
    real = grad.dtype.type
    row = block.values[block.slots[i], : grad.size]
    twice_y = scanned.labels[i] + scanned.labels[i]
    chosen = grad[i], real(1.0 / rho), diag[i], twice_y
    lanes[:] = 0
    for s in range(0, grad.size, lanes.size):
        e = min(s + lanes.size, grad.size)
        near = lanes[: e - s]
        _raise_to_gains(near, grad[s:e], away[s:e], diag[s:e], row[s:e], block.units, chosen)
    lane = 0
    for k in range(1, lanes.size):
        if lanes[k] > lanes[lane]:
            lane = k
    place = -1
    best = real(0)
    single = lanes[:1]
    for k in range(lane, grad.size, lanes.size):
        single[0] = 0
        e = k + 1
        _raise_to_gains(single, grad[k:e], away[k:e], diag[k:e], row[k:e], block.units, chosen)
        if single[0] > best:
            best = single[0]
            place = k
    return place


@njit(cache=True, nogil=True, fastmath=FLOAT_FLAGS)
def _add_pair(lanes, grad, y, row_i, row_j, factors):
    """Add y * (units_i row_i + units_j row_j + both) to grad, and lower the lanes to the result."""
    units_i, units_j, both = factors
    real = grad.dtype.type
    for k in range(lanes.size):
        value = grad[k] + y[k] * (units_i * real(row_i[k]) + units_j * real(row_j[k]) + both)
        grad[k] = value
        lanes[k] = min(lanes[k], value)


@njit(cache=True, nogil=True)
def _least(grad, lanes):
    """Vertex of least gradient, from the least gradient in each lane."""
    lane = 0
    for k in range(1, lanes.size):
        if lanes[k] < lanes[lane]:
            lane = k
    place = lane
    for k in range(lane, grad.size, lanes.size):
        if grad[k] < grad[place]:
            place = k
    return place


@njit(cache=True, nogil=True)
def find_least(grad, lanes):
    """Vertex of least gradient."""
    lanes[:] = np.inf
    for s in range(0, grad.size, lanes.size):
        part = grad[s : s + lanes.size]
        for k in range(part.size):  # with `np.minimum`, compiled code would load much of numba
            lanes[k] = min(lanes[k], part[k])
    return _least(grad, lanes)


@njit(cache=True, nogil=True)
def _move(vertices, scanned, block, i, j, step, weight_j):
    """Move `step` from vertex j to i; j keeps `weight_j`. Return the vertex of least gradient."""
    alpha, grad, diag, y = vertices
    _, signs, away, held, lanes = scanned
    values, units, slots, _ = block
    real = grad.dtype.type
    # The diagonal of Q is exact; the rows added below have the rounding of K, and no 1/C.
    grad[i] += real(step * (diag[i] - kernel_value(block, i, i) - 1.0))
    grad[j] -= real(step * (diag[j] - kernel_value(block, j, j) - 1.0))
    alpha[i] += step
    alpha[j] = weight_j
    away[i] = held[i] = signs[i]
    if weight_j == 0.0:
        away[j] = held[j] = 0
    row_i, row_j = values[slots[i], : grad.size], values[slots[j], : grad.size]
    weight_i, weight_j = real(step * y[i]), real(-step * y[j])
    both = weight_i + weight_j
    factors = real(weight_i * units[0]), real(weight_j * units[0]), both
    lanes[:] = np.inf
    for s in range(0, grad.size, lanes.size):
        e = min(s + lanes.size, grad.size)
        near = lanes[: e - s]
        _add_pair(near, grad[s:e], signs[s:e], row_i[s:e], row_j[s:e], factors)
    return _least(grad, lanes)


@njit(cache=True, nogil=True)
def take_steps(vertices, scanned, block, whole, first_use, tol, max_steps):
    """Take the steps of `optimise_pairwise`; return an `Outcome`.

    `whole` says whether the rows of all vertices are in memory.
    """
    alpha, grad, diag, y = vertices
    slots, used = block.slots, block.used
    rho = dot(alpha, grad)
    drops = 0
    steps = 0
    missing = -1
    i = find_least(grad, scanned.lanes)
    while True:
        least = np.float64(grad[i])
        gap = 1.0 - least / rho if rho > 0.0 else np.inf  # rounding may hide rho
        if gap <= tol or gap == np.inf or steps >= max_steps:
            break
        if slots[i] < 0:
            missing = i
            break
        j = find_away(vertices, scanned, block, scanned.away, i, rho)
        if j < 0:
            break
        if not whole and slots[j] < 0:
            # A vertex with a cached row and nearly the same slope saves the computation of a row.
            other = find_away(vertices, scanned, block, scanned.held, i, rho)
            if other < 0 or grad[other] - least < _NEARLY * (grad[j] - least):
                missing = j
                break
            j = other
        q_ij = y[i] * y[j] * (kernel_value(block, i, j) + 1.0)
        slope = grad[j] - least
        curvature = diag[i] + diag[j] - 2.0 * q_ij
        step = weight = alpha[j]
        if curvature * step > slope:
            step = slope / curvature
        dropped = step >= weight
        used[slots[i]] = used[slots[j]] = first_use + steps
        drops += dropped
        rho += step * (step * curvature - 2.0 * slope)
        steps += 1
        i = _move(vertices, scanned, block, i, j, step, 0.0 if dropped else weight - step)
    return steps, drops, rho, missing


def optimise_pairwise(
    vertices: Vertices,
    block: KernelBlock,
    first_use: int,
    tol: float,
    max_steps: int,
) -> Outcome:
    """Pairwise second-order steps on the active set until its relative gap is at most `tol`.

    i is the vertex of least gradient, and j the support vertex of largest second-order gain. The
    step is the exact line search clipped at alpha_j; O(m). A float32 gradient halves the time and
    loses about 1e-7 of rho a step. Step s writes ``first_use + s`` to `KernelBlock.used`.
    """
    real = vertices.grad.dtype
    labels = vertices.labels.astype(real)
    away = np.where(vertices.alpha > 0, labels, real.type(0))
    held = np.where(block.slots >= 0, away, real.type(0))
    lanes = np.empty(min(LANES, labels.size), dtype=real)
    scanned = Scanned(vertices.diag.astype(real), labels, away, held, lanes)
    # For `min` of an array, compiled code would load much of numba; so `whole` is computed here.
    whole = bool((block.slots >= 0).all())
    outcome: Outcome = take_steps(vertices, scanned, block, whole, first_use, tol, max_steps)
    return outcome
