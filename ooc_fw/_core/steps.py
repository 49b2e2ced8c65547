"""Compiled work on the active set: gradient updates, scans and single steps; slopes of slacks.

Off its diagonal, the matrix of the dual is Q_ij = y_i y_j (K_ij + 1); the diagonal is `diag`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ooc_fw._core.loading import njit
from ooc_fw._core.maps import dot

_TILE = 64  # a block is transposed in squares of so many rows and columns
_STILL = 1e-9  # if no more weight has moved, the direction of extrapolation is mostly rounding


class Vertices(NamedTuple):
    """The active set as float64 arrays of shape (m,); steps change `alpha` and `grad`."""

    alpha: npt.NDArray[Any]
    grad: npt.NDArray[Any]  # Q alpha; it may be float32, and scans use its precision
    diag: npt.NDArray[Any]
    labels: npt.NDArray[Any]


class KernelBlock(NamedTuple):
    """Kernel values between vertices; vertex k has ``values[slots[k], :m] * units[0]``."""

    values: Any  # uint16, float32 or float64, shape (n_slots, at least m)
    units: Any  # float64 if `values` are float64, else float32; shape (1,)
    slots: npt.NDArray[np.int64]  # (m,), row of each vertex in `values`, or -1 if it has none
    used: npt.NDArray[np.int64]  # (n_slots,), clock of the last use of each row; steps change it


@njit(cache=True, nogil=True)
def kernel_value(block, k, j):
    """Kernel value of vertices k and j, in float64; the row of k must be in memory."""
    return np.float64(block.values[block.slots[k], j]) * np.float64(block.units[0])


@njit(cache=True, nogil=True)
def keep_vertices(sources, keep, K):
    """Move row sources[a] of K to row a, with only the columns in `keep`; both arrays increase."""
    for a in range(sources.size):
        row = K[sources[a]]
        for b in range(keep.size):
            K[a, b] = row[keep[b]]


@njit(cache=True, nogil=True)
def extrapolate(alpha, grad, alpha_before, grad_before):
    """Move (alpha, grad) along d = alpha - alpha_before by the exact line search, in place; O(m).

    The step ends early if a weight reaches 0, and sets it to exactly 0. Returns its size (0 if
    d'Qd = 0 or the iterates agree up to rounding), and how many weights became 0. After Frandi,
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


@njit(cache=True, nogil=True)
def weigh_rows(K, slots, weights, out):
    """out[r] = sum_k K[slots[r], k] weights[k]."""
    for r in range(out.size):
        out[r] = dot(weights, K[slots[r], : weights.size])


@njit(cache=True, nogil=True)
def mirror_rows(K, slots, first, new_slots, start, stop):
    """Copy the rows of new vertices into their columns, in the rows of vertices start..stop.

    New vertices begin at place `first`, with rows in `new_slots`. Missing rows are passed over.
    """
    n_new = new_slots.size
    for a in range(0, n_new, _TILE):
        new = new_slots[a : a + _TILE]
        for b in range(start, stop, _TILE):
            for k in range(b, min(b + _TILE, stop)):
                if slots[k] >= 0:
                    target = K[slots[k], first + a : first + a + new.size]
                    for r in range(new.size):
                        target[r] = K[new[r], k]


@njit(cache=True, nogil=True)
def slack_slopes(signs, before, after, penalties, t, out):
    """out[c] += slope of 1/2 sum_i C_i xi_i^2 along a line, at the fraction t[c] of the way.

    `before` and `after` are float32 decision values at the two ends of the line. They have the
    shape of the int8 `signs`, (n, n_classes). `penalties`: (n,); `t` and `out`: (n_classes,).
    """
    for i in range(signs.shape[0]):
        for c in range(signs.shape[1]):
            start = np.float64(before[i, c])
            change = after[i, c] - start
            slack = 1.0 - signs[i, c] * (start + t[c] * change)
            if slack > 0.0:
                out[c] -= penalties[i] * slack * signs[i, c] * change


@njit(cache=True, nogil=True)
def tube_slopes(targets, before, after, penalties, t, epsilon, out):
    """`slack_slopes` for regression: xi_i = max(0, |y_i - h(x_i)| - epsilon); float64 targets."""
    for i in range(targets.shape[0]):
        for c in range(targets.shape[1]):
            start = np.float64(before[i, c])
            change = after[i, c] - start
            residual = targets[i, c] - (start + t[c] * change)
            slack = abs(residual) - epsilon
            if slack > 0.0:
                signed = slack if residual > 0.0 else -slack
                out[c] -= penalties[i] * signed * change
