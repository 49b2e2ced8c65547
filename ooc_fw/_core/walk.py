"""Compiled steps of all rules that move one or two vertices: many of them in one call.

A walk takes place on a field: rows whose gradient is kept from step to step, all rows of a source
or an active set alone. A step costs O(n) for the n rows of the field, and the kernel values between
them and the vertices that it moves. With f = rho / 2, gradient g and the matrix Q of the dual,
every step size is the exact line search clipped to the simplex:

======== =========== ============================================= ===================
step     direction   step size                                     bound
======== =========== ============================================= ===================
toward   e_i - a     (rho - g_i) / (Q_ii - 2 g_i + rho)            1
away     a - e_j     (g_j - rho) / (Q_jj - 2 g_j + rho)            a_j / (1 - a_j)
pairwise e_i - e_j   (g_j - g_i) / (Q_ii + Q_jj - 2 Q_ij)          a_j
======== =========== ============================================= ===================

To add a rule: a `Rule`, and what it does with the toward vertex in `_choose`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ooc_fw._core.loading import njit
from ooc_fw._core.maps import FLOAT_FLAGS, KernelMap, map_row
from ooc_fw._core.steps import KernelBlock, extrapolate, kernel_value

_TINY = 1e-30  # least curvature, which keeps a quotient finite for equal rows
_LANES = 512  # minima that a scan keeps side by side, so that the compiler vectorises it


class Rule(IntEnum):
    """Rules that `walk` knows; `ooc_fw.solver.steps` says what they are."""

    FW = 0
    MFW = 1
    SWAP = 2
    SWAP2 = 3
    PARTAN = 4


class Looks(IntEnum):
    """Where the toward vertex is sought: in the field, in a draw and the active set, in a draw."""

    ALL = 0
    DRAWN_AND_ACTIVE = 1
    DRAWN = 2


class Move(IntEnum):
    """What a step did: its place in `Walk.kinds`."""

    TOWARD = 0
    AWAY = 1
    PAIRWISE = 2
    PARTAN = 3


class Outcome(IntEnum):
    """Why a walk ended: steps enough, a gap that passed, or the lack of a column or a draw."""

    STEPS = 0
    PASSED = 1
    COLUMN = 2
    DRAW = 3


class Field(NamedTuple):
    """Rows whose gradient is kept, n of them; numbers are float64."""

    grad: npt.NDArray[np.float64]  # (n,), modified
    before: npt.NDArray[np.float64]  # (n,), of the iterate before, modified; (0,) without PARTAN
    labels: npt.NDArray[np.float64]  # (n,)
    diag: npt.NDArray[np.float64]  # Q_ii, shape (n,), or (1,) where all are the same
    ridge: npt.NDArray[np.float64]  # 1 / C_i, likewise
    members: npt.NDArray[np.int64]  # (n,), place of each row in the active set or -1, modified


class Active(NamedTuple):
    """The active set, in arrays with room for a vertex more each step; all are modified."""

    rows: npt.NDArray[np.int64]  # where the vertices are in the field
    alpha: npt.NDArray[np.float64]
    before: npt.NDArray[np.float64]  # weights of the iterate before, for PARTAN


NO_TARGET = -np.inf, 0.0, -np.inf  # passed by no gap


class Columns(NamedTuple):
    """Kernel columns over the field, and sparse rows from which `take_steps` computes others.

    `rows` and `features`, the same values row by row and column by column, are tuples of values,
    numbers of columns or rows, and where each begins; without features the caller computes them.
    """

    block: KernelBlock  # its `slots` and `used` are modified, and so are values
    owners: npt.NDArray[np.int64]  # (n_slots,), row of each slot or -1, modified
    rows: tuple[Any, Any, Any]
    features: tuple[Any, Any, Any]
    kernel_map: KernelMap  # of the type of `terms`
    terms: Any  # (n,), of the type of the values: see `ooc_fw._core.maps.map_tile`


class Walk(NamedTuple):
    """How far a walk has come, as arrays of one number, or one for each kind of step; modified."""

    n_active: npt.NDArray[np.int64]
    n_steps: npt.NDArray[np.int64]
    next_draw: npt.NDArray[np.int64]
    n_passed: npt.NDArray[np.int64]  # draws in a row that passed the test
    has_before: npt.NDArray[np.int64]  # whether the iterate before is known
    kinds: npt.NDArray[np.int64]  # (4,), steps of each kind
    drops: npt.NDArray[np.int64]  # vertices whose weight became exactly 0
    clock: npt.NDArray[np.int64]  # that `KernelBlock.used` is set to
    lacking: npt.NDArray[np.int64]  # row whose column the next step lacks
    n_computed: npt.NDArray[np.int64]  # columns computed here
    toward: npt.NDArray[np.int64]  # row that was last proposed
    moved: npt.NDArray[np.int64]  # (2,), rows of the last step, the second -1 for none,
    weights: npt.NDArray[np.float64]  # (2,), and by how much it changed their weights
    scale: npt.NDArray[np.float64]  # its factor of the old weights
    extrapolation: npt.NDArray[np.float64]  # of the last step
    rho: npt.NDArray[np.float64]
    gap: npt.NDArray[np.float64]  # relative, over the rows that were last looked at
    # The relative gap passes up to target[0] + target[1] / rho, and up to target[2].
    target: npt.NDArray[np.float64]  # (3,)

    @classmethod
    def begin(
        cls, n_active: int, rho: float, target: tuple[float, float, float] = NO_TARGET
    ) -> Walk:
        """Before the first step."""

        def numbers(name: str) -> npt.NDArray[Any]:
            length = {"kinds": len(Move), "moved": 2, "weights": 2}.get(name, 1)
            real = name in ("weights", "scale", "extrapolation", "gap")
            return np.zeros(length, dtype=np.float64 if real else np.int64)

        known = {"n_active": np.array([n_active]), "rho": np.array([rho])}
        known["target"] = np.array(target)
        return cls(**{name: known.get(name, numbers(name)) for name in cls._fields})


def given_columns(block: KernelBlock) -> Columns:
    """Columns that `take_steps` cannot add to."""
    number, none = block.values.dtype.type, np.empty(0, dtype=np.int64)
    number = np.float64 if number is np.float64 else np.float32
    sparse = np.empty(0, np.float32), np.empty(0, np.int32), none
    constants = KernelMap(0, number(0), number(0), 0)
    return Columns(block, none, sparse, sparse, constants, np.empty(0, number))


# Plain integers, which index arrays.
_TOWARD, _AWAY, _PAIRWISE = int(Move.TOWARD), int(Move.AWAY), int(Move.PAIRWISE)
_EXTRAPOLATED = int(Move.PARTAN)


@njit(cache=True, nogil=True)
def _of(numbers, row):
    """The number of a row, where all may share one."""
    return numbers[0] if numbers.size == 1 else numbers[row]


@njit(cache=True, nogil=True)
def _row(block, row, n):
    return block.values[block.slots[row], :n]


@njit(cache=True, nogil=True)
def least_row(grad, lanes):
    """First row of least gradient; `lanes`, (_LANES,), is scratch."""
    lanes[:] = np.inf
    for s in range(0, grad.size, _LANES):
        part = grad[s : s + _LANES]
        for k in range(part.size):
            lanes[k] = min(lanes[k], part[k])
    least = lanes[0]
    for k in range(1, _LANES):
        least = min(least, lanes[k])
    row = 0
    while grad[row] != least and row < grad.size - 1:
        row += 1
    return row


@njit(cache=True, nogil=True)
def _survey(field, active, m):
    """Sum rho; the vertex of least gradient; that of largest gradient in the support. O(m)."""
    rho = slack = 0.0
    away = best = -1
    for k in range(m):
        row = active.rows[k]
        g = field.grad[row]
        alpha = active.alpha[k]
        if best < 0 or g < field.grad[best]:
            best = row
        if alpha > 0.0:
            rho += alpha * g
            slack += alpha * alpha * _of(field.ridge, row)
            if away < 0 or g > field.grad[away]:
                away = row
    return max(rho, slack), best, away


@njit(cache=True, nogil=True)
def _least_drawn(looks, field, drawn, best):
    """Row of least gradient of a draw, or `best` of the active set if no row outside beats it."""
    row = -1
    for other in drawn:
        outside = looks == Looks.DRAWN or field.members[other] < 0
        if outside and (row < 0 or field.grad[other] < field.grad[row]):
            row = other
    if looks != Looks.DRAWN and (row < 0 or not field.grad[row] < field.grad[best]):
        row = best
    return row


@njit(cache=True, nogil=True)
def _line_search(slope, curvature, bound):
    """Exact step size on [0, bound], without curvature the bound; and the decrease of f."""
    size = 0.0
    if slope > 0.0:
        size = slope / curvature if curvature * bound > slope else bound
    return size, size * slope - size * size * curvature / 2


@njit(cache=True, nogil=True)
def _toward(field, rho, i):
    """Step size towards a row, and the decrease of f that it brings."""
    g = field.grad[i]
    return _line_search(rho - g, _of(field.diag, i) - 2 * g + rho, 1.0)


@njit(cache=True, nogil=True)
def _pairwise(field, active, block, i, j):
    """Step size along e_i - e_j, and the decrease of f that it brings."""
    q_ij = field.labels[i] * field.labels[j] * (kernel_value(block, i, j) + 1.0)
    curvature = _of(field.diag, i) + _of(field.diag, j) - 2 * q_ij
    alpha = active.alpha[field.members[j]]
    return _line_search(field.grad[j] - field.grad[i], curvature, alpha)


@njit(cache=True, nogil=True)
def _second_order_away(field, active, block, m, i):
    """Support vertex j of largest (g_j - g_i)^2 / (Q_ii + Q_jj - 2 Q_ij) with g_j > g_i, or -1."""
    best = -1
    largest = 0.0
    values = _row(block, i, field.grad.size)
    unit = np.float64(block.units[0])
    g_i, q_ii, y_i = field.grad[i], _of(field.diag, i), field.labels[i]
    for k in range(m):
        j = active.rows[k]
        slope = field.grad[j] - g_i
        if active.alpha[k] > 0.0 and slope > 0.0:
            q_ij = y_i * field.labels[j] * (np.float64(values[j]) * unit + 1.0)
            gain = slope * slope / max(q_ii + _of(field.diag, j) - 2 * q_ij, _TINY)
            if gain > largest:
                largest = gain
                best = j
    return best


@njit(cache=True, nogil=True)
def _choose(rule, field, active, block, walk, found):
    """Kind and size of the next step, its rows i and j, and the row whose column it lacks or -1.

    `found` has the toward vertex, and that of largest gradient in the support. Only the one row of
    a toward or an away step is given, as i.
    """
    i, j = found
    grad, rho = field.grad, walk.rho[0]
    size, decrease = _toward(field, rho, i)
    lacking = i if block.slots[i] < 0 else -1
    if rule == Rule.MFW:
        alpha = active.alpha[field.members[j]]
        if grad[j] - rho > rho - grad[i] and alpha < 1.0:
            curvature = _of(field.diag, j) - 2 * grad[j] + rho
            size, _ = _line_search(grad[j] - rho, curvature, alpha / (1.0 - alpha))
            return _AWAY, size, j, -1, j if block.slots[j] < 0 else -1
    elif rule == Rule.SWAP or rule == Rule.SWAP2:
        if lacking >= 0:
            return _TOWARD, size, i, -1, lacking
        if rule == Rule.SWAP2:
            j = _second_order_away(field, active, block, walk.n_active[0], i)
        if j >= 0 and j != i and grad[j] > grad[i]:
            other, more = _pairwise(field, active, block, i, j)
            if more >= decrease:
                return _PAIRWISE, other, i, j, j if block.slots[j] < 0 else -1
    return _TOWARD, size, i, -1, lacking


@njit(cache=True, nogil=True, fastmath=FLOAT_FLAGS)
def _add_one(grad, y, scale, row, factor, bias):
    for k in range(grad.size):
        grad[k] = scale * grad[k] + y[k] * (factor * np.float64(row[k]) + bias)


@njit(cache=True, nogil=True, fastmath=FLOAT_FLAGS)
def _add_two(grad, y, row_i, row_j, factors):
    factor_i, factor_j, bias = factors
    for k in range(grad.size):
        change = factor_i * np.float64(row_i[k]) + factor_j * np.float64(row_j[k])
        grad[k] += y[k] * (change + bias)


@njit(cache=True, nogil=True, fastmath=FLOAT_FLAGS)
def _add_and_extrapolate(grad, before, y, scale, row, factors):
    """`_add_one`, then on from `before` by factors[2] times the way; `before` becomes `grad`."""
    factor, bias, size = factors
    for k in range(grad.size):
        g = grad[k]
        moved = scale * g + y[k] * (factor * np.float64(row[k]) + bias)
        grad[k] = moved + size * (moved - before[k])
        before[k] = g


@njit(cache=True, nogil=True)
def _extrapolate(field, active, walk, scale, row, factors, i):
    """Move the weights on from the toward step of PARTAN; the step size, and vertices dropped.

    The gradient is that from before the toward step still, to which `row` times factors[0] and
    factors[1] are to be added, and factors[2] at row i.
    """
    m = walk.n_active[0]
    grad, grad_before = np.empty(m), np.empty(m)
    factor, bias, own = factors
    for k in range(m):
        r = active.rows[k]
        grad_before[k] = field.before[r]
        grad[k] = scale * field.grad[r] + field.labels[r] * (factor * np.float64(row[r]) + bias)
        if r == i:
            grad[k] += own
    return extrapolate(active.alpha[:m], grad, active.before[:m], grad_before)


@njit(cache=True, nogil=True)
def _place(field, active, walk, row):
    """Place of a row in the active set, which it joins if it is outside."""
    if field.members[row] < 0:
        k = walk.n_active[0]
        field.members[row], active.rows[k] = k, row
        active.alpha[k] = active.before[k] = 0.0
        walk.n_active[0] = k + 1
    return field.members[row]


@njit(cache=True, nogil=True)
def _move_pair(field, active, block, i, j, size):
    """Pairwise step; how many vertices it dropped."""
    to, away, unit = field.members[i], field.members[j], np.float64(block.units[0])
    y, n = field.labels, field.grad.size
    weight_i, weight_j = size * y[i], -size * y[j]
    factors = weight_i * unit, weight_j * unit, weight_i + weight_j
    _add_two(field.grad, y, _row(block, i, n), _row(block, j, n), factors)
    # The diagonal of Q is exact, while the column just added has the rounding of K and no 1/C.
    field.grad[i] += size * (_of(field.diag, i) - kernel_value(block, i, i) - 1.0)
    field.grad[j] -= size * (_of(field.diag, j) - kernel_value(block, j, j) - 1.0)
    active.alpha[to] += size
    active.alpha[away] -= size
    return int(active.alpha[away] == 0.0)


@njit(cache=True, nogil=True)
def _move_one(rule, field, active, block, walk, i, scale, weight):
    """Set alpha = scale * alpha + weight e_i, and go on from there for PARTAN; vertices dropped."""
    m, place, alpha = walk.n_active[0], field.members[i], active.alpha
    old = alpha[:m].copy()
    drops = 0
    for k in range(m):
        alpha[k] = scale * old[k]
        drops += int(scale == 0.0 and old[k] > 0.0 and k != place)
    alpha[place] += weight
    y, row = field.labels, _row(block, i, field.grad.size)
    bias = weight * y[i]
    factor = bias * np.float64(block.units[0])
    own = weight * (_of(field.diag, i) - kernel_value(block, i, i) - 1.0)
    if rule != Rule.PARTAN:
        _add_one(field.grad, y, scale, row, factor, bias)
        field.grad[i] += own
        return drops
    size = 0.0
    if walk.has_before[0] != 0:
        size, dropped = _extrapolate(field, active, walk, scale, row, (factor, bias, own), i)
        drops = dropped if size > 0.0 else drops
    _add_and_extrapolate(field.grad, field.before, y, scale, row, (factor, bias, size))
    field.grad[i] += (1.0 + size) * own
    for k in range(m):
        active.before[k] = old[k]
    walk.has_before[0] = 1
    walk.extrapolation[0] = size
    return drops


@njit(cache=True, nogil=True)
def _step(rule, field, active, block, walk, step):
    """Take a step, and note it in `walk`."""
    kind, size, i, j = step
    place = _place(field, active, walk, i)
    scale, weight = 1.0, size
    walk.extrapolation[0] = 0.0
    block.used[block.slots[i]] = walk.clock[0]
    if kind == _PAIRWISE:
        block.used[block.slots[j]] = walk.clock[0]
        drops = _move_pair(field, active, block, i, j, size)
    elif kind == _AWAY:
        alpha = active.alpha[place]
        scale, weight = 1.0 + size, -size
        drops = int(size == alpha / (1.0 - alpha))
        _move_one(rule, field, active, block, walk, i, scale, weight)
        if drops > 0:
            active.alpha[place] = 0.0
    else:
        scale = 1.0 - size
        drops = _move_one(rule, field, active, block, walk, i, scale, weight)
        kind = _EXTRAPOLATED if walk.extrapolation[0] > 0.0 else kind
    walk.moved[0], walk.weights[0] = i, weight
    walk.moved[1], walk.weights[1] = j, -size
    walk.scale[0] = scale
    walk.kinds[kind] += 1
    walk.drops[0] += drops
    walk.n_steps[0] += 1
    walk.clock[0] += 1


@njit(cache=True, nogil=True)
def by_feature(data, indices, indptr, starts, out, out_rows):
    """Sort sparse values by column, of which `starts` says where each begins in `out`.

    A column with room for all rows is written as a dense one into `out`, which is zeros before.
    """
    n_rows, places = indptr.size - 1, starts.copy()
    for row in range(n_rows):
        for p in range(indptr[row], indptr[row + 1]):
            k = indices[p]
            q = places[k]
            if starts[k + 1] - starts[k] == n_rows:
                q = starts[k] + row
            out[q], out_rows[q] = data[p], row
            places[k] += 1


@njit(cache=True, nogil=True, fastmath={"contract"})
def _add_feature(value, values, rows, out):
    if values.size == out.size:
        for k in range(out.size):
            out[k] += value * values[k]
        return
    for q in range(values.size):
        out[np.uint64(rows[q])] += value * values[q]


@njit(cache=True, nogil=True)
def _compute_column(columns, row, clock):
    """Kernel column of a row in the slot used least recently; O(values of all its features).

    Products sum up the features that two rows share, in order: the bits are those of
    `ooc_fw._core.products.dot_tile`.
    """
    block, owners, real = columns.block, columns.owners, columns.block.values.dtype.type
    slot = 0
    for k in range(owners.size):
        if block.used[k] < block.used[slot]:
            slot = k
        if block.used[slot] == 0:
            break
    if owners[slot] >= 0:
        block.slots[owners[slot]] = -1
    owners[slot], block.slots[row], block.used[slot] = row, slot, clock
    out = block.values[slot]
    data, indices, indptr = columns.rows
    values, rows, starts = columns.features
    for k in range(out.size):
        out[k] = 0
    for p in range(indptr[row], indptr[row + 1]):
        a, b = starts[indices[p]], starts[indices[p] + 1]
        _add_feature(real(data[p]), values[a:b], rows[a:b], out)
    map_row(columns.kernel_map, out, columns.terms[row], columns.terms)


@njit(cache=True, nogil=True)
def _ready(rule, field, active, columns, walk, found):
    """`_choose`, once the columns that it needs are there, if they can be computed here."""
    block = columns.block
    step = _choose(rule, field, active, block, walk, found)
    while step[4] >= 0:
        for row in step[2:4]:
            if row >= 0 and block.slots[row] >= 0:
                block.used[block.slots[row]] = walk.clock[0]
        if columns.features[2].size == 0:
            break
        _compute_column(columns, step[4], walk.clock[0])
        walk.n_computed[0] += 1
        step = _choose(rule, field, active, block, walk, found)
    return step


@njit(cache=True, nogil=True)
def take_steps(rule, looks, field, active, columns, draws, walk, most):
    """Take steps of a `Rule` until there are `most` in all, or just look.

    Returns the number of an `Outcome`. `looks` is one of `Looks`, and `draws`, shape (k, size), has
    the rows of each draw. The gap has to pass in two draws in a row, or once where all rows are
    looked at. A walk that has ended goes on, where it was, in another call.
    """
    lanes = np.empty(_LANES)
    rho, best, away = _survey(field, active, walk.n_active[0])
    while walk.n_steps[0] < most or most == 0:
        if looks == Looks.ALL:
            i = least_row(field.grad, lanes)
        elif walk.next_draw[0] == draws.shape[0]:
            return np.int64(Outcome.DRAW)
        else:
            i = _least_drawn(looks, field, draws[walk.next_draw[0]], best)
        rho = walk.rho[0]
        target = walk.target[2]
        walk.toward[0], walk.gap[0] = i, np.inf
        if rho > 0.0:  # which rounding may hide
            target = max(target, walk.target[0] + walk.target[1] / rho)
            walk.gap[0] = 1.0 - field.grad[i] / rho
        if walk.gap[0] <= target:
            walk.n_passed[0] += 1
            if looks == Looks.ALL or walk.n_passed[0] == 2:
                return np.int64(Outcome.PASSED)
            walk.next_draw[0] += 1
            continue
        walk.n_passed[0] = 0
        if most == 0:
            break
        found = i, away
        kind, size, i, j, lacking = _ready(rule, field, active, columns, walk, found)
        if lacking >= 0:
            walk.lacking[0] = lacking
            return np.int64(Outcome.COLUMN)
        _step(rule, field, active, columns.block, walk, (kind, size, i, j))
        walk.next_draw[0] += 1
        walk.rho[0], best, away = _survey(field, active, walk.n_active[0])
    return np.int64(Outcome.STEPS)
