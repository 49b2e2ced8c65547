"""The classifier of two small classes from float64 kernel values of all rows, in one call."""

from __future__ import annotations

from ooc_fw._core.loading import njit

_TINY = 1e-30  # least curvature, which keeps a quotient finite for equal rows


@njit(cache=True, nogil=True)
def fill_dual_matrix(first, second, across, penalties, Q):
    """Q of two classes, the first of which has the label -1, from kernel values within and across.

    `first` is of shape (n, n), `second` (m - n, m - n), `across` (n, m - n), and `Q` (m, m).
    """
    n = first.shape[0]
    m = Q.shape[0]
    for i in range(n):
        for j in range(n):
            Q[i, j] = first[i, j] + 1.0
        for j in range(m - n):
            Q[i, n + j] = -across[i, j] - 1.0
            Q[n + j, i] = Q[i, n + j]
    for i in range(m - n):
        for j in range(m - n):
            Q[n + i, n + j] = second[i, j] + 1.0
    for i in range(m):
        Q[i, i] += 1.0 / penalties[i]


@njit(cache=True, nogil=True)
def _scale_and_weigh(Q, alpha, grad):
    """Divide the weights by their sum and compute their gradient; rho."""
    total = 0.0
    for k in range(alpha.size):
        total += alpha[k]
    grad[:] = 0.0
    for k in range(alpha.size):
        alpha[k] /= total
        if alpha[k] > 0.0:
            for i in range(grad.size):
                grad[i] += alpha[k] * Q[k, i]
    rho = 0.0
    for k in range(alpha.size):
        rho += alpha[k] * grad[k]
    return rho


@njit(cache=True, nogil=True)
def _away(Q, alpha, grad, i):
    """Support vertex of largest second-order gain with the toward vertex i, or -1."""
    best = -1
    largest = 0.0
    row = Q[i]
    for k in range(alpha.size):
        slope = grad[k] - grad[i]
        if alpha[k] > 0.0 and slope > 0.0:
            gain = slope * slope / max(row[i] + Q[k, k] - 2.0 * row[k], _TINY)
            if gain > largest:
                largest = gain
                best = k
    return best


@njit(cache=True, nogil=True)
def train_pair(Q, alpha, grad, target, max_steps, n_rounds):
    """SWAP-2o steps until the relative gap is at most target[0] + target[1] / rho, or target[2].

    The gradient is computed anew after each of at most `n_rounds` rounds, which go to ever smaller
    gaps: `alpha` and `grad` are modified, and end as of such a moment. Returns the number of rounds
    and that of steps that dropped a vertex.
    """
    drops = 0
    share = 1.0
    for n in range(n_rounds):
        rho = _scale_and_weigh(Q, alpha, grad)
        bound = target[0] + target[1] / rho
        if 1.0 - grad.min() / rho <= bound:
            return n, drops
        bound = max(bound * share, target[2])
        share *= 0.5
        for _ in range(max_steps):
            i = grad.argmin()
            if 1.0 - grad[i] / rho <= bound:
                break
            j = _away(Q, alpha, grad, i)
            if j < 0:
                break
            slope = grad[j] - grad[i]
            curvature = Q[i, i] + Q[j, j] - 2.0 * Q[i, j]
            step = alpha[j]
            if curvature * step > slope:
                step = slope / curvature
            if step >= alpha[j]:
                step = alpha[j]
                alpha[j] = 0.0
                drops += 1
            else:
                alpha[j] -= step
            alpha[i] += step
            for k in range(grad.size):
                grad[k] += step * (Q[i, k] - Q[j, k])
            rho += step * (step * curvature - 2.0 * slope)
    _scale_and_weigh(Q, alpha, grad)
    return n_rounds, drops
