"""The pairwise inner solver, on one thread or on several that share its scans.

A step scans all vertices twice: for the away vertex, and to update the gradient and find its least
value. Each thread scans vertices of its own, and the threads meet after each scan. What a scan
finds does not depend on the number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ooc_fw._core.loading import njit
from ooc_fw._core.maps import FLOAT_FLAGS, dot
from ooc_fw._core.steps import KernelBlock, Vertices, kernel_value

LANES = 512  # extrema that a scan keeps side by side, so that the compiler vectorises it
_ONE = np.float32(1)  # a float64 would promote float32 arithmetic
_TINY = np.float32(1e-30)  # least curvature, which keeps a quotient finite for equal rows
_NEARLY = 0.5  # share of the best slope from which a pair with cached kernel rows is preferred
_LEAST, _AWAY, _HELD = 0, 1, 2  # kinds of search: places in `Shared.facts`
_FACTS = 8  # numbers that a thread reports of a search, padded to a cache line
_LINE = 8  # cells of a cache line, which no two threads should write to
_PATIENCE = 2_000  # times that a waiting thread reads a cell before it yields its processor

_leave_processor = types.ExternalFunction("sched_yield", types.int32())

Outcome: TypeAlias = tuple[int, int, float, int]
"""Steps, how many dropped a vertex, rho, and the vertex whose row the next step lacks or -1."""


class Scanned(NamedTuple):
    """What scans read, in the precision of the gradient; arrays of shape (m,)."""

    diag: Any
    labels: Any
    away: Any  # labels of the support vertices and 0 elsewhere; modified by steps
    held: Any  # those of which the kernel rows are in memory, too


class Shared(NamedTuple):
    """All that the threads of one call share; `first_use` is the clock of the first step."""

    vertices: Vertices
    scanned: Scanned
    block: KernelBlock
    whole: bool  # whether the kernel rows of all vertices are held
    first_use: int
    tol: float
    max_steps: int
    rho: float
    cells: npt.NDArray[np.int64]  # where the threads meet
    facts: npt.NDArray[np.float64]  # (3, n_threads, _FACTS): what each found last
    lanes: Any  # (n_threads, LANES): scratch of each, of the precision of the gradient


# A barrier, where threads meet every few microseconds.
# Each thread counts its arrivals in a cell of its own, and waits until the cells of all others have
# come as far. What a thread wrote before it arrived is seen by all others after they have met.


def new_barrier(n_threads: int) -> npt.NDArray[np.int64]:
    """Cells of a barrier at which `n_threads` meet."""
    return np.zeros((n_threads, _LINE), dtype=np.int64)


def _cell(context, builder, array_type, array, row):
    """Pointer to the first cell of a row."""
    value = context.make_array(array_type)(context, builder, array)
    column = context.get_constant(types.intp, 0)
    return cgutils.get_item_pointer(context, builder, array_type, value, [row, column])


@intrinsic
def _load(_, cells, row):
    """The first cell of a row; what its thread wrote before it is visible afterwards."""

    def generate(context, builder, signature, arguments):
        pointer = _cell(context, builder, signature.args[0], *arguments)
        return builder.load_atomic(pointer, "acquire", 8)

    return types.int64(cells, types.intp), generate


@intrinsic
def _store(_, cells, row, value):
    """Set the first cell of a row, after all that this thread wrote before."""

    def generate(context, builder, signature, arguments):
        cells, row, value = arguments
        pointer = _cell(context, builder, signature.args[0], cells, row)
        builder.store_atomic(value, pointer, "release", 8)
        return context.get_dummy_value()

    return types.void(cells, types.intp, types.int64), generate


@njit(cache=True, nogil=True)
def meet(cells, thread):
    """Wait until all threads have come here as often as this one; a single thread goes on."""
    if cells.shape[0] == 1:
        return
    turn = _load(cells, thread) + 1
    _store(cells, thread, turn)
    for other in range(cells.shape[0]):
        waited = 0
        while _load(cells, other) < turn:
            waited += 1
            if waited > _PATIENCE:
                _leave_processor()


@njit(cache=True, nogil=True, fastmath=FLOAT_FLAGS)
def _raise_to_gains(lanes, grad, away, diag, row, units, chosen):
    """Raise lanes[k] to the second-order gain of vertex k, 0 where it is no away vertex.

    `chosen` is the vertex i that another is sought for: g_i, the scale of gradients, Q_ii and
    2 y_i. `row` times units[0] are its kernel values, in arithmetic of the type of `units`.
    """
    number = units.dtype.type
    unit = units[0]
    g_i, scale, q_ii, twice_y_i = chosen
    for k in range(lanes.size):
        slope = max((grad[k] - g_i) * scale * abs(away[k]), grad.dtype.type(0))
        curvature = q_ii + diag[k] - twice_y_i * away[k] * (number(row[k]) * unit + _ONE)
        lanes[k] = max(lanes[k], slope * slope / max(curvature, _TINY))


@njit(cache=True, nogil=True)
def _search_away(scan, chosen, lanes, start, stop):
    """Largest gain among vertices start..stop: of its lane, the lane, the place or -1, its own.

    `scan` has what `_raise_to_gains` reads of all vertices: grad, away, diag, row and units.
    """
    grad, away, diag, row, units = scan
    lanes[:] = 0
    for s in range(start, stop, LANES):
        e = min(s + LANES, stop)
        near = lanes[: e - s]
        _raise_to_gains(near, grad[s:e], away[s:e], diag[s:e], row[s:e], units, chosen)
    lane = 0
    for k in range(1, LANES):
        if lanes[k] > lanes[lane]:
            lane = k
    largest = lanes[lane]
    place = -1
    best = grad.dtype.type(0)
    single = lanes[:1]
    for k in range(start + lane, stop, LANES):
        single[0] = 0
        e = k + 1
        _raise_to_gains(single, grad[k:e], away[k:e], diag[k:e], row[k:e], units, chosen)
        if single[0] > best:
            best = single[0]
            place = k
    return largest, lane, place, best


@njit(cache=True, nogil=True)
def _find_away(shared, thread, facts, labels, i, chosen, lanes):
    """Look for the away vertex, all threads together; the row of `facts` about it.

    `labels` has the labels of those there are. An index in place of `facts`, a part of
    `Shared.facts`, would have all of this compiled for each of its values.
    """
    grad = shared.vertices.grad
    start, stop = _share(grad.size, facts.shape[0], thread)
    row = shared.block.values[shared.block.slots[i], : grad.size]
    scan = grad, labels, shared.scanned.diag, row, shared.block.units
    largest, lane, place, gain = _search_away(scan, chosen, lanes, start, stop)
    noted = facts[thread]
    noted[0], noted[1], noted[2], noted[3] = largest, lane, place, gain
    if place >= 0:
        noted[4], noted[5] = grad[place], shared.vertices.alpha[place]
    meet(shared.cells, thread)
    return _best(facts)


@njit(cache=True, nogil=True)
def _best(facts):
    """What the threads found that is largest; ties are broken as in one scan of all vertices."""
    best = facts[0]
    for k in range(1, facts.shape[0]):
        other = facts[k]
        if other[0] != best[0]:
            better = other[0] > best[0]
        elif other[1] != best[1]:
            better = other[1] < best[1]
        else:
            better = other[3] > best[3]
        if better:
            best = other
    return best


@njit(cache=True, nogil=True, fastmath=FLOAT_FLAGS)
def _add_pair(lanes, grad, y, row_i, row_j, factors):
    """Add y * (units_i row_i + units_j row_j + both) to grad; lower the lanes to it."""
    units_i, units_j, both = factors
    real = grad.dtype.type
    for k in range(lanes.size):
        value = grad[k] + y[k] * (units_i * real(row_i[k]) + units_j * real(row_j[k]) + both)
        grad[k] = value
        lanes[k] = min(lanes[k], value)


@njit(cache=True, nogil=True)
def _note_least(shared, thread, lanes, start, stop):
    """Note the least gradient, negated, of a thread's vertices from its lanes, and meet."""
    grad, noted = shared.vertices.grad, shared.facts[_LEAST, thread]
    lane = 0
    for k in range(1, LANES):
        if lanes[k] < lanes[lane]:
            lane = k
    place = start + lane
    for k in range(start + lane, stop, LANES):
        if grad[k] < grad[place]:
            place = k
    noted[0], noted[1], noted[2], noted[3] = -lanes[lane], lane, place, 0.0
    meet(shared.cells, thread)


@njit(cache=True, nogil=True)
def _find_least(shared, thread, lanes):
    """Find the least gradient, all threads together."""
    grad = shared.vertices.grad
    start, stop = _share(grad.size, shared.cells.shape[0], thread)
    lanes[:] = np.inf
    for s in range(start, stop, LANES):
        part = grad[s : min(s + LANES, stop)]
        for k in range(part.size):  # `np.minimum` would load much of numba with the compiled code
            lanes[k] = min(lanes[k], part[k])
    _note_least(shared, thread, lanes, start, stop)


@njit(cache=True, nogil=True)
def _step(shared, thread, i, j, step, weight_j, lanes):
    """Move `step` from vertex j to i and find the least gradient, each thread its vertices."""
    alpha, grad, diag, y = shared.vertices
    _, signs, away, held = shared.scanned
    values, units, slots, _ = shared.block
    real = grad.dtype.type
    row_i, row_j = values[slots[i], : grad.size], values[slots[j], : grad.size]
    start, stop = _share(grad.size, shared.cells.shape[0], thread)
    # The diagonal of Q is exact, as in `move`.
    if start <= i < stop:
        grad[i] += real(step * (diag[i] - kernel_value(shared.block, i, i) - 1.0))
        alpha[i] += step
        away[i] = held[i] = signs[i]
    if start <= j < stop:
        grad[j] -= real(step * (diag[j] - kernel_value(shared.block, j, j) - 1.0))
        alpha[j] = weight_j
        if weight_j == 0.0:
            away[j] = held[j] = 0
    weight_i, weight_j = real(step * y[i]), real(-step * y[j])
    both = weight_i + weight_j
    factors = real(weight_i * units[0]), real(weight_j * units[0]), both
    lanes[:] = np.inf
    for s in range(start, stop, LANES):
        e = min(s + LANES, stop)
        near = lanes[: e - s]
        _add_pair(near, grad[s:e], signs[s:e], row_i[s:e], row_j[s:e], factors)
    _note_least(shared, thread, lanes, start, stop)


@njit(cache=True, nogil=True)
def _share(m, n_threads, thread):
    """First and last of a thread's vertices: whole lanes, but for the last ones."""
    chunks = -(-m // LANES)
    start, stop = chunks * thread // n_threads, chunks * (thread + 1) // n_threads
    return min(start * LANES, m), min(stop * LANES, m)


@njit(cache=True, nogil=True)
def take_steps(shared, thread):
    """Part of one of the threads in `optimise_pairwise`; all return the same."""
    alpha, grad, diag, y = shared.vertices
    slots, used = shared.block.slots, shared.block.used
    real = grad.dtype.type
    lanes = shared.lanes[thread]
    rho = shared.rho
    if rho != rho:  # NaN: rho is to be summed anew
        rho = dot(alpha, grad)
    drops = 0
    steps = 0
    missing = -1
    _find_least(shared, thread, lanes)
    while True:
        found = _best(shared.facts[_LEAST])
        i, least = int(found[2]), -found[0]
        gap = 1.0 - least / rho if rho > 0.0 else np.inf  # rounding may hide rho
        if gap <= shared.tol or gap == np.inf or steps >= shared.max_steps:
            break
        if slots[i] < 0:
            missing = i
            break
        twice_y = shared.scanned.labels[i] + shared.scanned.labels[i]
        chosen = real(least), real(1.0 / rho), shared.scanned.diag[i], twice_y
        away = shared.scanned.away
        best = _find_away(shared, thread, shared.facts[_AWAY], away, i, chosen, lanes)
        if best[2] < 0:
            break
        if not shared.whole and slots[int(best[2])] < 0:
            # A cached row that serves nearly as well saves the computation of another.
            held = shared.scanned.held
            other = _find_away(shared, thread, shared.facts[_HELD], held, i, chosen, lanes)
            if other[2] < 0 or other[4] - least < _NEARLY * (best[4] - least):
                missing = int(best[2])
                break
            best = other
        j = int(best[2])
        q_ij = y[i] * y[j] * (kernel_value(shared.block, i, j) + 1.0)
        slope, weight = best[4] - least, best[5]
        curvature = diag[i] + diag[j] - 2.0 * q_ij
        step = weight
        if curvature * step > slope:
            step = slope / curvature
        dropped = step >= weight
        if thread == 0:
            used[slots[i]] = used[slots[j]] = shared.first_use + steps
        drops += dropped
        rho += step * (step * curvature - 2.0 * slope)
        steps += 1
        _step(shared, thread, i, j, step, 0.0 if dropped else weight - step, lanes)
    return steps, drops, rho, missing


def optimise_pairwise(
    vertices: Vertices,
    block: KernelBlock,
    first_use: int,
    tol: float,
    max_steps: int,
    rho: float = math.nan,
    team: tuple[int, Callable[[Callable[[int], Outcome], int], Outcome]] | None = None,
) -> Outcome:
    """Pairwise second-order steps on the active set until its relative gap is at most `tol`.

    i is the vertex of least gradient, j the support vertex of largest second-order gain, and the
    step is the exact line search clipped at alpha_j; O(m). A float32 gradient halves the time and
    loses about 1e-7 of rho a step. Step s writes ``first_use + s`` to `KernelBlock.used`. With the
    `rho` that a call returned the next one goes on as if there had been one call; without, rho is
    summed anew. `team` has a number of threads, on which no result depends, and what calls run(0),
    run(1), ... on so many at the same time and returns what run(0) does.
    """
    n_threads, together = (1, None) if team is None else team
    real = vertices.grad.dtype
    labels = vertices.labels.astype(real)
    away = np.where(vertices.alpha > 0, labels, real.type(0))
    held = np.where(block.slots >= 0, away, real.type(0))
    scanned = Scanned(vertices.diag.astype(real), labels, away, held)
    shared = Shared(
        *(vertices, scanned, block, bool(block.slots.min() >= 0), first_use, tol, max_steps, rho),
        cells=new_barrier(n_threads),
        facts=np.empty((3, n_threads, _FACTS)),
        lanes=np.empty((n_threads, LANES), dtype=real),
    )

    run: Callable[[int], Outcome] = partial(take_steps, shared)
    return run(0) if together is None else together(run, n_threads)
