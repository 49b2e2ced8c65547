"""Compiled steps of all rules: many steps in one call, each with two scans of the active set.

With f = rho / 2, gradient g and the matrix Q of the dual, every step size is the exact line search
clipped to the simplex. A step costs O(m) on m vertices:

======== =========== ============================================= ===================
step     direction   step size                                     bound
======== =========== ============================================= ===================
toward   e_i - a     (rho - g_i) / (Q_ii - 2 g_i + rho)            1
away     a - e_j     (g_j - rho) / (Q_jj - 2 g_j + rho)            a_j / (1 - a_j)
pairwise e_i - e_j   (g_j - g_i) / (Q_ii + Q_jj - 2 Q_ij)          a_j
======== =========== ============================================= ===================

The first scan finds the vertex j. The second updates the gradient and finds the vertex i of its
least value. A new rule needs a number in `Rule`, a function that chooses its step, and a line in
`_choose`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ooc_fw._core.loading import njit
from ooc_fw._core.maps import FLOAT_FLAGS, dot
from ooc_fw._core.steps import KernelBlock, Vertices, extrapolate, kernel_value

_LANES = 512  # a scan keeps so many extrema side by side, so that the compiler vectorises it
_ONE = np.float32(1)  # a float64 would promote float32 arithmetic
_TINY = np.float32(1e-30)  # least curvature, which keeps quotients finite if rows are equal
_NEARLY = 0.5  # a pair with cached kernel rows is preferred if it has this share of the best slope


class Rule(IntEnum):
    """Rules for `take_steps`; `ooc_fw.solver.steps` describes them."""

    FW = 0
    MFW = 1
    SWAP = 2
    SWAP2 = 3
    PARTAN = 4
    CORRECTIVE = 5  # pairwise steps with the j of SWAP2 alone, preferably with rows in memory


# Places in the counts of a run: kinds of steps, weights that became 0, and draws.
TOWARD, AWAY, PAIRWISE, EXTRAPOLATED, DROPS, DRAWS = range(6)
N_COUNTS = 6
_NONE = -1  # kind of a step if there is none


class Scanned(NamedTuple):
    """The arrays that scans read, of shape (m,), in the precision of the gradient."""

    diag: Any
    labels: Any
    away: Any  # labels of support vertices, and 0 elsewhere; steps change it
    held: Any  # labels of support vertices with kernel rows in memory, and 0 elsewhere
    lanes: Any  # scratch, at most _LANES values


@njit(cache=True, nogil=True)
def _line_search(slope, curvature, bound):
    """Exact step size on [0, bound] (without curvature, the bound), and the decrease of f."""
    size = 0.0
    if slope > 0.0:
        size = slope / curvature if curvature * bound > slope else bound
    return size, size * slope - size * size * curvature / 2


# A step is a tuple: its kind, vertices i and j (equal if only one moves), size, decrease of f.


@njit(cache=True, nogil=True)
def _toward(vertices, rho, i):
    g = np.float64(vertices.grad[i])
    size, decrease = _line_search(rho - g, vertices.diag[i] - 2 * g + rho, 1.0)
    return TOWARD, i, i, size, decrease


@njit(cache=True, nogil=True)
def _away(vertices, rho, j):
    g = np.float64(vertices.grad[j])
    bound = vertices.alpha[j] / (1.0 - vertices.alpha[j])
    size, decrease = _line_search(g - rho, vertices.diag[j] - 2 * g + rho, bound)
    return AWAY, j, j, size, decrease


@njit(cache=True, nogil=True)
def _pairwise(vertices, block, i, j):
    alpha, grad, diag, y = vertices
    curvature = diag[i] + diag[j] - 2 * y[i] * y[j] * (kernel_value(block, i, j) + 1.0)
    size, decrease = _line_search(np.float64(grad[j]) - grad[i], curvature, alpha[j])
    return PAIRWISE, i, j, size, decrease


@njit(cache=True, nogil=True)
def _choose_mfw(vertices, scanned, rho, i):
    """The away step if its slope is larger than that of the toward step; else the toward step."""
    j = _largest(vertices, scanned.lanes)
    g = vertices.grad
    if g[j] - rho > rho - g[i] and vertices.alpha[j] < 1.0:
        return _away(vertices, rho, j)
    return _toward(vertices, rho, i)


@njit(cache=True, nogil=True)
def _choose_swap(vertices, block, rho, i, j):
    """The pairwise step with j if it lowers f as much as the toward step; else the toward step."""
    toward = _toward(vertices, rho, i)
    if j >= 0 and j != i and vertices.grad[j] > vertices.grad[i]:
        pairwise = _pairwise(vertices, block, i, j)
        if pairwise[4] >= toward[4]:
            return pairwise
    return toward


@njit(cache=True, nogil=True)
def _choose_corrective(vertices, scanned, block, rho, i):
    """The pairwise step with the largest gain, unless rounding hides rho or no weight can move.

    A vertex j with a cached row and nearly the same slope saves the computation of a row.
    """
    j = -1
    if rho > 0.0:
        j = _find_away(vertices, scanned, block, scanned.away, i, rho)
    if j < 0:
        return _NONE, i, i, 0.0, 0.0
    if block.slots[j] < 0:
        grad = vertices.grad
        other = _find_away(vertices, scanned, block, scanned.held, i, rho)
        if other >= 0 and grad[other] - grad[i] >= _NEARLY * (grad[j] - grad[i]):
            j = other
    return _pairwise(vertices, block, i, j)


@njit(cache=True, nogil=True)
def _choose(rule, vertices, scanned, block, rho, i):
    """The step of a rule for the toward vertex i, whose kernel row is in memory."""
    if rule == Rule.CORRECTIVE:
        return _choose_corrective(vertices, scanned, block, rho, i)
    if rule == Rule.MFW:
        return _choose_mfw(vertices, scanned, rho, i)
    if rule == Rule.SWAP:
        return _choose_swap(vertices, block, rho, i, _largest(vertices, scanned.lanes))
    if rule == Rule.SWAP2:
        j = _find_away(vertices, scanned, block, scanned.away, i, 1.0)
        return _choose_swap(vertices, block, rho, i, j)
    return _toward(vertices, rho, i)


# -- scans ---------------------------------------------------------------------------------------


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
def _find_away(vertices, scanned, block, away, i, rho):
    """The away vertex with the largest gain for the toward vertex i; -1 if there is none.

    `away` has the labels of possible away vertices, and 0 elsewhere. Gains are in units of `rho`.
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
def _raise_to_support(lanes, grad, alpha):
    for k in range(lanes.size):
        lanes[k] = max(lanes[k], grad[k] if alpha[k] > 0.0 else -np.inf)


@njit(cache=True, nogil=True)
def _largest(vertices, lanes):
    """Support vertex of largest gradient."""
    alpha, grad = vertices.alpha, vertices.grad
    lanes[:] = -np.inf
    for s in range(0, grad.size, lanes.size):
        e = min(s + lanes.size, grad.size)
        _raise_to_support(lanes[: e - s], grad[s:e], alpha[s:e])
    lane = 0
    for k in range(1, lanes.size):
        if lanes[k] > lanes[lane]:
            lane = k
    place = lane
    for k in range(lane, grad.size, lanes.size):
        if alpha[k] > 0.0 and grad[k] == lanes[lane]:
            place = k
            break
    return place


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
def _find_least(grad, lanes):
    """Vertex of least gradient."""
    lanes[:] = np.inf
    for s in range(0, grad.size, lanes.size):
        part = grad[s : s + lanes.size]
        for k in range(part.size):  # with `np.minimum`, compiled code would load much of numba
            lanes[k] = min(lanes[k], part[k])
    return _least(grad, lanes)


@njit(cache=True, nogil=True)
def _least_drawn(vertices, drawn):
    """Vertex of least gradient in the draw and the support."""
    alpha, grad = vertices.alpha, vertices.grad
    best = drawn[0]
    for k in drawn:
        if grad[k] < grad[best]:
            best = k
    for k in range(alpha.size):
        if alpha[k] > 0.0 and grad[k] < grad[best]:
            best = k
    return best


# -- moves ---------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def _scale(vertices, scanned, factor):
    """Multiply all weights, and the gradient."""
    alpha, grad = vertices.alpha, vertices.grad
    real = grad.dtype.type(factor)
    for k in range(alpha.size):
        alpha[k] *= factor
        grad[k] *= real
        if alpha[k] == 0.0:
            scanned.away[k] = scanned.held[k] = 0


@njit(cache=True, nogil=True, fastmath=FLOAT_FLAGS)
def _add_rows(lanes, grad, y, row_i, row_j, factors):
    """Add y * (units_i row_i + units_j row_j + both) to grad, and lower the lanes to the result."""
    units_i, units_j, both = factors
    real = grad.dtype.type
    for k in range(lanes.size):
        value = grad[k] + y[k] * (units_i * real(row_i[k]) + units_j * real(row_j[k]) + both)
        grad[k] = value
        lanes[k] = min(lanes[k], value)


@njit(cache=True, nogil=True)
def _move(vertices, scanned, block, i, weight_i, j, weight_j):
    """Add weights to vertices i and j. Return the vertex of least gradient."""
    alpha, grad, diag, y = vertices
    _, signs, away, held, lanes = scanned
    values, units, slots, _ = block
    real = grad.dtype.type
    # The diagonal of Q is exact; the rows added below have the rounding of K, and no 1/C.
    grad[i] += real(weight_i * (diag[i] - kernel_value(block, i, i) - 1.0))
    grad[j] += real(weight_j * (diag[j] - kernel_value(block, j, j) - 1.0))
    alpha[i] += weight_i
    alpha[j] += weight_j
    away[i] = held[i] = signs[i]
    row_i, row_j = values[slots[i], : grad.size], values[slots[j], : grad.size]
    signed_i, signed_j = real(weight_i * y[i]), real(weight_j * y[j])
    factors = real(signed_i * units[0]), real(signed_j * units[0]), signed_i + signed_j
    lanes[:] = np.inf
    for s in range(0, grad.size, lanes.size):
        e = min(s + lanes.size, grad.size)
        near = lanes[: e - s]
        _add_rows(near, grad[s:e], signs[s:e], row_i[s:e], row_j[s:e], factors)
    return _least(grad, lanes)


@njit(cache=True, nogil=True)
def _take(vertices, scanned, block, step):
    """Take a step; return how many vertices it dropped, and the vertex of least gradient."""
    kind, i, j, size, _ = step
    alpha = vertices.alpha
    if kind == TOWARD:
        drops = 0
        if size == 1.0:
            for k in range(alpha.size):
                drops += int(alpha[k] > 0.0 and k != i)
        _scale(vertices, scanned, 1.0 - size)
        return drops, _move(vertices, scanned, block, i, size, i, 0.0)
    if kind == AWAY:
        drops = int(size == alpha[j] / (1.0 - alpha[j]))
        _scale(vertices, scanned, 1.0 + size)
        least = _move(vertices, scanned, block, j, -size, j, 0.0)
    else:
        drops = int(size == alpha[j])
        least = _move(vertices, scanned, block, i, size, j, -size)
    if drops > 0:
        alpha[j] = 0.0
        scanned.away[j] = scanned.held[j] = 0
    return drops, least


@njit(cache=True, nogil=True)
def _take_partan(vertices, scanned, before, block, step):
    """Take a toward step and extrapolate from the previous iterate.

    Return the kind of step, the number of drops, and the vertex of least gradient.
    """
    alpha, grad = vertices.alpha.copy(), vertices.grad.copy()
    drops, least = _take(vertices, scanned, block, step)
    alpha_before, grad_before = before
    size, dropped = extrapolate(vertices.alpha, vertices.grad, alpha_before, grad_before)
    for k in range(alpha.size):
        alpha_before[k] = alpha[k]
        grad_before[k] = grad[k]
    if size > 0.0:
        return EXTRAPOLATED, dropped, _find_least(vertices.grad, scanned.lanes)
    return TOWARD, drops, least


@njit(cache=True, nogil=True)
def _take_steps(rule, vertices, scanned, before, block, first_use, draws, targets, most, counts):
    """Take the steps of `take_steps`."""
    alpha, grad = vertices.alpha, vertices.grad
    rho, gap = dot(alpha, grad), np.inf
    n_passed, n_steps = 0, 0
    i = _find_least(grad, scanned.lanes)
    while draws.shape[1] == 0 or counts[DRAWS] < draws.shape[0]:
        if draws.shape[1] > 0:
            i = _least_drawn(vertices, draws[counts[DRAWS]])
        target, gap = targets[2], np.inf
        if rho > 0.0:  # rounding may make it 0 or less
            target = max(target, targets[0] + targets[1] / rho)
            gap = 1.0 - np.float64(grad[i]) / rho
        n_passed = n_passed + 1 if gap <= target else 0
        if n_passed == 2 or (n_passed == 1 and draws.shape[1] == 0):
            return True, gap, rho, -1
        if n_passed == 0:
            if n_steps >= most:
                break
            if block.slots[i] < 0:
                return False, gap, rho, i
            step = _choose(rule, vertices, scanned, block, rho, i)
            kind, _, j, _, decrease = step
            if kind == _NONE:
                break
            if block.slots[j] < 0:
                return False, gap, rho, j
            block.used[block.slots[i]] = block.used[block.slots[j]] = first_use + n_steps
            if rule == Rule.PARTAN:
                kind, drops, i = _take_partan(vertices, scanned, before, block, step)
            else:
                drops, i = _take(vertices, scanned, block, step)
            # Corrective steps are so cheap that another scan, for rho, would be felt.
            rho = rho - 2 * decrease if rule == Rule.CORRECTIVE else dot(alpha, grad)
            counts[kind] += 1
            counts[DROPS] += drops
            n_steps += 1
        counts[DRAWS] += 1
    return False, gap, rho, -1


class Limits(NamedTuple):
    """Where a call of `take_steps` ends."""

    most: int  # largest number of steps
    targets: tuple[float, float, float] = (-np.inf, 0.0, -np.inf)  # a relative gap: see there
    draws: npt.NDArray[np.int64] = np.empty((0, 0), dtype=np.int64)  # (n_draws, size): vertices


def take_steps(
    rule: Rule,
    vertices: Vertices,
    block: KernelBlock,
    first_use: int,
    limits: Limits,
    counts: npt.NDArray[np.int64],
    before: tuple[Any, Any] | None = None,
) -> tuple[bool, float, float, int]:
    """Take steps of a `Rule`, until the gap passes, draws end or a row is missing; O(m) each.

    The toward vertex is the best one in the support and a row of the draws; without draws, the best
    of all. With targets a, b and c, a relative gap of at most a + b / rho or c passes. It has to
    pass in two draws in a row, or once if all vertices are looked at. The default targets end no
    call. `before` has the weights and the gradient of the previous iterate, for PARTAN. The
    function adds to `counts`, (N_COUNTS,), and step s writes ``first_use + s`` to
    `KernelBlock.used`. A float32 gradient halves the time and loses about 1e-7 of rho a step.

    Returns whether the gap passed, the gap, rho, and the vertex whose row is missing, or -1.
    """
    real = vertices.grad.dtype
    labels = vertices.labels.astype(real)
    away = np.where(vertices.alpha > 0, labels, real.type(0))
    held = np.where(block.slots >= 0, away, real.type(0))
    lanes = np.empty(min(_LANES, labels.size), dtype=real)
    scanned = Scanned(vertices.diag.astype(real), labels, away, held, lanes)
    before = before or (vertices.alpha, vertices.grad)
    most, targets, draws = limits
    ended: tuple[bool, float, float, int] = _take_steps(
        int(rule), vertices, scanned, before, block, first_use, draws, targets, most, counts
    )
    return ended
