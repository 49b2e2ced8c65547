"""A barrier for threads within compiled code, where they meet every few microseconds.

Each thread counts its arrivals in a cell of its own, and waits until the cells of all others have
come as far. What a thread wrote before it arrived is seen by all others after they have met.
"""

from __future__ import annotations

import sys

import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ooc_fw._core.loading import njit
from ooc_fw._core.types import Int64Array

_LINE = 8  # cells of a cache line, which no two threads should write to
_PATIENCE = 2_000  # looks at a cell before the processor is left to other threads

_leave_processor = types.ExternalFunction(
    "SwitchToThread" if sys.platform == "win32" else "sched_yield", types.int32()
)


def new_barrier(n_threads: int) -> Int64Array:
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
        looks = 0
        while _load(cells, other) < turn:
            looks += 1
            if looks > _PATIENCE:
                _leave_processor()
