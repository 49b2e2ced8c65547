"""Compiled rules with steps that move one or two vertices; one call takes many steps.

With f = rho / 2, gradient g and the matrix Q of the dual, every step size is the exact line search
clipped to the simplex. A step costs O(m) on m vertices:

======== =========== ============================================= ===================
step     direction   step size                                     bound
======== =========== ============================================= ===================
toward   e_i - a     (rho - g_i) / (Q_ii - 2 g_i + rho)            1
away     a - e_j     (g_j - rho) / (Q_jj - 2 g_j + rho)            a_j / (1 - a_j)
pairwise e_i - e_j   (g_j - g_i) / (Q_ii + Q_jj - 2 Q_ij)          a_j
======== =========== ============================================= ===================

A new rule needs a number in `Rule`, a function that chooses its step, and a line in `_choose`.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from ooc_fw._core.loading import njit
from ooc_fw._core.maps import FLOAT_FLAGS, dot
from ooc_fw._core.pairwise import LANES, Scanned, find_away, find_least
from ooc_fw._core.steps import extrapolate, kernel_value


class Rule(IntEnum):
    """Rules for `take_steps`; `ooc_fw.solver.steps` describes them."""

    FW = 0
    MFW = 1
    SWAP = 2
    SWAP2 = 3
    PARTAN = 4


# Places in the counts of a run: kinds of steps, weights that became 0, and draws.
TOWARD, AWAY, PAIRWISE, EXTRAPOLATED, DROPS, DRAWS = range(6)
N_COUNTS = 6


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
    g = vertices.grad[i]
    size, decrease = _line_search(rho - g, vertices.diag[i] - 2 * g + rho, 1.0)
    return TOWARD, i, i, size, decrease


@njit(cache=True, nogil=True)
def _away(vertices, rho, j):
    g = vertices.grad[j]
    bound = vertices.alpha[j] / (1.0 - vertices.alpha[j])
    size, decrease = _line_search(g - rho, vertices.diag[j] - 2 * g + rho, bound)
    return AWAY, j, j, size, decrease


@njit(cache=True, nogil=True)
def _pairwise(vertices, block, i, j):
    alpha, grad, diag, y = vertices
    curvature = diag[i] + diag[j] - 2 * y[i] * y[j] * (kernel_value(block, i, j) + 1.0)
    size, decrease = _line_search(grad[j] - grad[i], curvature, alpha[j])
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
def _choose(rule, vertices, scanned, block, rho, i):
    """The step of a rule for the toward vertex i, whose kernel row is in memory."""
    if rule == Rule.MFW:
        return _choose_mfw(vertices, scanned, rho, i)
    if rule == Rule.SWAP:
        return _choose_swap(vertices, block, rho, i, _largest(vertices, scanned.lanes))
    if rule == Rule.SWAP2:
        for k in range(scanned.away.size):
            scanned.away[k] = vertices.labels[k] if vertices.alpha[k] > 0.0 else 0.0
        j = find_away(vertices, scanned, block, scanned.away, i, 1.0)
        return _choose_swap(vertices, block, rho, i, j)
    return _toward(vertices, rho, i)


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


@njit(cache=True, nogil=True, fastmath=FLOAT_FLAGS)
def _combine(grad, y, row_i, row_j, factors):
    scale, factor_i, factor_j, bias = factors
    for k in range(grad.size):
        change = factor_i * np.float64(row_i[k]) + factor_j * np.float64(row_j[k])
        grad[k] = scale * grad[k] + y[k] * (change + bias)


@njit(cache=True, nogil=True)
def _move(vertices, block, scale, i, weight_i, j, weight_j):
    """Set alpha to scale alpha + weight_i e_i + weight_j e_j, and update the gradient."""
    alpha, grad, diag, y = vertices
    if scale != 1.0:
        for k in range(alpha.size):
            alpha[k] *= scale
    alpha[i] += weight_i
    alpha[j] += weight_j
    unit, m = np.float64(block.units[0]), grad.size
    signed_i, signed_j = weight_i * y[i], weight_j * y[j]
    factors = scale, signed_i * unit, signed_j * unit, signed_i + signed_j
    row_i, row_j = block.values[block.slots[i], :m], block.values[block.slots[j], :m]
    _combine(grad, y, row_i, row_j, factors)
    # The diagonal of Q is exact; the rows just added have the rounding of K, and no 1/C.
    grad[i] += weight_i * (diag[i] - kernel_value(block, i, i) - 1.0)
    grad[j] += weight_j * (diag[j] - kernel_value(block, j, j) - 1.0)


@njit(cache=True, nogil=True)
def _take(vertices, block, step):
    """Take a step; return how many vertices it dropped."""
    kind, i, j, size, _ = step
    alpha = vertices.alpha
    if kind == PAIRWISE:
        drops = int(size == alpha[j])
        _move(vertices, block, 1.0, i, size, j, -size)
    elif kind == AWAY:
        drops = int(size == alpha[j] / (1.0 - alpha[j]))
        _move(vertices, block, 1.0 + size, j, -size, j, 0.0)
    else:
        drops = 0
        if size == 1.0:
            for k in range(alpha.size):
                drops += int(alpha[k] > 0.0 and k != i)
        _move(vertices, block, 1.0 - size, i, size, i, 0.0)
        return drops
    if drops > 0:
        alpha[j] = 0.0
    return drops


@njit(cache=True, nogil=True)
def _take_partan(vertices, before, block, step):
    """Take a toward step and extrapolate from the previous iterate; return kind and drops."""
    alpha, grad = vertices.alpha.copy(), vertices.grad.copy()
    drops = _take(vertices, block, step)
    alpha_before, grad_before = before
    size, dropped = extrapolate(vertices.alpha, vertices.grad, alpha_before, grad_before)
    for k in range(alpha.size):
        alpha_before[k] = alpha[k]
        grad_before[k] = grad[k]
    if size > 0.0:
        return EXTRAPOLATED, dropped
    return TOWARD, drops


@njit(cache=True, nogil=True)
def take_steps(rule, vertices, before, block, first_use, draws, targets, most, counts):
    """Take up to `most` steps of a `Rule`; stop if the gap passes, draws end or a row is missing.

    The toward vertex is the best one in the support and a row of `draws`; without draws, the best
    of all. With `targets` a, b and c, a relative gap of at most a + b / rho or c passes. It has to
    pass in two draws in a row, or once if all vertices are looked at. `before` has the weights and
    the gradient of the previous iterate, for PARTAN. The function adds to `counts`, (N_COUNTS,),
    and step s writes ``first_use + s`` to `KernelBlock.used`.

    Returns whether the gap passed, the gap, rho, and the vertex whose row is missing, or -1.
    """
    alpha, grad = vertices.alpha, vertices.grad
    lanes, away = np.empty(min(LANES, grad.size)), np.zeros(grad.size)
    scanned = Scanned(vertices.diag, vertices.labels, away, away, lanes)
    rho, gap = dot(alpha, grad), np.inf
    n_passed, n_steps = 0, 0
    while draws.shape[1] == 0 or counts[DRAWS] < draws.shape[0]:
        if draws.shape[1] == 0:
            i = find_least(grad, lanes)
        else:
            i = _least_drawn(vertices, draws[counts[DRAWS]])
        target, gap = targets[2], np.inf
        if rho > 0.0:  # rounding may make it 0 or less
            target = max(target, targets[0] + targets[1] / rho)
            gap = 1.0 - grad[i] / rho
        n_passed = n_passed + 1 if gap <= target else 0
        if n_passed == 2 or (n_passed == 1 and draws.shape[1] == 0):
            return True, gap, rho, -1
        if n_passed == 0:
            if n_steps >= most:
                break
            if block.slots[i] < 0:
                return False, gap, rho, i
            step = _choose(rule, vertices, scanned, block, rho, i)
            j = step[2]
            if block.slots[j] < 0:
                return False, gap, rho, j
            block.used[block.slots[i]] = block.used[block.slots[j]] = first_use + n_steps
            if rule == Rule.PARTAN:
                kind, drops = _take_partan(vertices, before, block, step)
            else:
                kind, drops = step[0], _take(vertices, block, step)
            rho = dot(alpha, grad)
            counts[kind] += 1
            counts[DROPS] += drops
            n_steps += 1
        counts[DRAWS] += 1
    return False, gap, rho, -1
