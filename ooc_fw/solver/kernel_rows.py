"""Storage of a growing active set: arrays, rows, and rows of kernel values within a budget.

A row of kernel values holds the values between one vertex and all vertices. As long as all rows
fit, they are the whole symmetric block, and steps compute each value once. If not, they are a
cache, and the row that was not used for the longest time goes first.
"""

from __future__ import annotations

import math
import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_fw._core import steps as core
from ooc_fw.data.rows import CSRRows, Int64Array, Rows, take_rows
from ooc_fw.kernels.arithmetic import Operand
from ooc_fw.kernels.engine import Engine
from ooc_fw.system.memory import bytes_above, lazy_pages

_WIDEST = 8  # a cache of rows serves up to 8 times as many vertices as the largest whole block
_RIDGE_SHARE = 0.2  # rounding errors may have an eigenvalue of minus this share of 1/C
_STEP16 = 1 / 65535  # distance between two values in 16 bits


class GrowingArray:
    """An array whose first axis grows; `tail` is the shape of an element."""

    def __init__(self, dtype: Any, tail: tuple[int, ...] = ()) -> None:
        self.hold(np.empty((0, *tail), dtype=dtype))

    def hold(self, block: npt.NDArray[Any]) -> None:
        """Replace all elements by these, without a copy."""
        self._buffer = block
        self._size = len(block)

    @property
    def view(self) -> npt.NDArray[Any]:
        """The elements, writable; a view that is stale after the array has grown."""
        return self._buffer[: self._size]

    def append(self, block: npt.NDArray[Any]) -> None:
        """Add elements at the end."""
        size = self._size + len(block)
        if size > len(self._buffer):
            shape = max(size, 2 * self._size), *self._buffer.shape[1:]
            grown = np.empty(shape, self._buffer.dtype)
            grown[: self._size] = self.view
            self._buffer = grown
        self._buffer[self._size : size] = block
        self._size = size

    def keep(self, places: npt.NDArray[np.int64]) -> None:
        """Keep only the elements at `places`, in that order."""
        self.hold(self.view[places])


class GrowingRows:
    """Dense or sparse rows that grow; all blocks are of the same kind."""

    def __init__(self) -> None:
        self._dense: GrowingArray | None = None
        self._n_features = 0
        self._data = GrowingArray(np.float32)
        self._indices = GrowingArray(np.int32)
        self._indptr = GrowingArray(np.int64)
        self._indptr.append(np.zeros(1, dtype=np.int64))

    @property
    def view(self) -> Rows:
        """The rows; a view that is stale after rows were added."""
        if self._dense is not None:
            return self._dense.view
        return CSRRows(self._data.view, self._indices.view, self._indptr.view, self._n_features)

    def append(self, rows: Rows) -> None:
        """Add rows at the end."""
        if isinstance(rows, CSRRows):
            self._n_features = rows.n_features
            self._indptr.append(rows.indptr[1:] + self._indptr.view[-1])
            self._data.append(rows.data)
            self._indices.append(rows.indices)
            return
        if self._dense is None:
            self._dense = GrowingArray(np.float32, (rows.shape[1],))
        self._dense.append(rows)

    def keep(self, places: npt.NDArray[np.int64]) -> None:
        """Keep only the rows at `places`, in that order."""
        rows = take_rows(self.view, places)
        if isinstance(rows, CSRRows):
            self._data.hold(rows.data)
            self._indices.hold(rows.indices)
            self._indptr.hold(rows.indptr)
        elif self._dense is not None:
            self._dense.hold(rows)


class LazyTable:
    """Rows whose pages take memory when they are first written, so that the rest takes none.

    `values` has at least `n_rows` rows and `n_columns` columns.
    """

    def __init__(self, n_rows: int, n_columns: int, dtype: npt.DTypeLike) -> None:
        item = np.dtype(dtype).itemsize
        # If rows were a multiple of a page apart, a column would fall into one set of the cache.
        width = n_columns // 1024 * 1024 + 1040
        self._pages = lazy_pages(max(1, n_rows) * width * item)
        self._stride = width * item
        self.values = np.frombuffer(self._pages, dtype=dtype).reshape(-1, width)

    def row_bytes(self, n_columns: int) -> int:
        """Bytes of memory that a row takes if `n_columns` of it were written."""
        # A row may begin and end within a page.
        return min(self._stride, n_columns * self.values.itemsize + 2 * mmap.PAGESIZE)

    def release(self, n_rows: int) -> None:
        """Give the memory of the rows from `n_rows` on back, with their values."""
        start = -(-n_rows * self._stride // mmap.PAGESIZE) * mmap.PAGESIZE
        if start < len(self._pages) and hasattr(mmap, "MADV_DONTNEED"):
            self._pages.madvise(mmap.MADV_DONTNEED, start)


def value_type(m: int, largest_C: float, largest_value: float, quantised: bool) -> np.dtype[Any]:
    """Smallest type for the kernel values of m vertices in which steps see a convex problem.

    `largest_C` is the largest penalty, and `largest_value` the largest k(x, x). `quantised` allows
    16 bits: the kernel has values in [0, 1].

    Notes
    -----
    In 16 bits, values are multiples of 1/65535, with errors below 1e-5. They move a gradient in
    proportion to the weight moved since the last exact gradient. An exact gradient from time to
    time is enough if steps see a convex problem. The errors are a symmetric matrix. If its entries
    have a standard deviation sigma, its eigenvalues reach down to about -2 sigma sqrt(m), like
    those of a random matrix. The diagonal 1/C must outweigh that. Rounding to multiples of h has
    sigma = h / sqrt(12), and two float32 numbers are at most 2^-23 of the largest one apart. Runs
    with RBF kernels in 16 bits were seen to fail if C 2 sigma sqrt(m) came near 0.5.
    """
    largest_step = _RIDGE_SHARE / largest_C * math.sqrt(3 / max(m, 1))
    if quantised and largest_step >= _STEP16:
        return np.dtype(np.uint16)
    return np.dtype(np.float32 if largest_step >= 2.0**-23 * largest_value else np.float64)


class KernelRows:
    """Rows of kernel values between at most `n_max` vertices, in `budget` bytes.

    They begin in 16 bits if `quantised`, else in float32. Rows are given up if the process would
    exceed the `limit`, in bytes. The rows in use are the first of `values`.
    """

    def __init__(
        self, n_max: int, budget: int, quantised: bool = False, limit: int | None = None
    ) -> None:
        dtype = np.dtype(np.uint16 if quantised else np.float32)
        self._budget = budget
        self._limit = limit
        self.capacity = min(n_max, _WIDEST * self._side(dtype))  # most vertices, in any type
        self.clock = 0  # the time for `used`
        self._slots = GrowingArray(np.int64)
        self._open(dtype)

    def _side(self, dtype: np.dtype[Any]) -> int:
        """Side of the largest whole block that fits the budget."""
        return max(2, math.isqrt(self._budget // dtype.itemsize))

    def _open(self, dtype: np.dtype[Any]) -> None:
        """Begin with an empty table of some type."""
        unit = np.float64(1) if dtype == np.float64 else np.float32(1)
        self.unit = np.float32(_STEP16) if dtype == np.uint16 else unit
        self._table = LazyTable(min(self.capacity, self._side(dtype)), self.capacity, dtype)
        self.values = self._table.values
        self.dtype = dtype
        self.used = np.zeros(len(self.values), dtype=np.int64)
        self._owners = np.zeros(len(self.values), dtype=np.int64)  # vertex of each slot in use
        self._forget()

    @property
    def side(self) -> int:
        """Number of vertices whose rows fit all together."""
        return self._side(self.dtype)

    def outgrow(self, n_max: int, dtype: np.dtype[Any]) -> None:
        """Hold no rows any more, for up to `n_max` vertices; products are those for `dtype`."""
        self.capacity = n_max
        self._budget = 0
        self.change(dtype)

    def _forget(self) -> None:
        """Hold no row."""
        self._n_held = 0
        self.slots[:] = -1

    def __len__(self) -> int:
        return len(self._slots.view)

    @property
    def slots(self) -> Int64Array:
        """Place of each vertex's row in `values`, or -1 if there is none; shape (m,)."""
        return self._slots.view

    @property
    def block(self) -> core.KernelBlock:
        """The rows in the form that compiled functions take."""
        return core.KernelBlock(self.values, np.array([self.unit]), self.slots, self.used)

    @property
    def whole(self) -> bool:
        """Whether the rows of all vertices are held."""
        return self._n_held == len(self)

    def change(self, dtype: npt.DTypeLike) -> None:
        """Change the type of the values, and forget all rows; `fill` computes them again."""
        del self.values, self._table  # frees their memory before the new table takes some
        self._open(np.dtype(dtype))

    def fill(self, engine: Engine, z: Operand) -> None:
        """Compute the rows of all vertices if they fit; if not, steps fetch the rows they need."""
        m = len(self)
        if 0 < m <= self._make_room():
            self._fill(np.arange(m), engine, z)

    def whole_fits(self, copies: int, m: int) -> bool:
        """Whether `copies` more blocks of m x m values fit the budget beside the rows held."""
        held = self._n_held * self._table.row_bytes(len(self))
        return bool(held + copies * m * m * self.dtype.itemsize <= self._budget)

    def add(self, n_new: int, engine: Engine, z: Operand, *, fill: bool = True) -> None:
        """Add rows and columns for `n_new` more vertices, the last ones of `z`, up to `capacity`.

        Without `fill` all rows are forgotten.
        """
        before = len(self)
        self._slots.append(np.full(n_new, -1, dtype=np.int64))
        if not fill:
            self._forget()
            return
        room = self._make_room()
        for start in range(before, len(self), room):
            new = np.arange(start, min(start + room, len(self)))
            slots = self._fill(new, engine, z)

            def mirror(part: slice, new: Int64Array = new, slots: Int64Array = slots) -> None:
                core.mirror_rows(self.values, self.slots, new[0], slots, part.start, part.stop)

            engine.pool.share(before, n_new * before, mirror)

    @property
    def batch(self) -> int:
        """Number of rows that may be fetched together: the row used last has to stay."""
        return max(1, self._room() // 2)

    def fetch(self, places: Int64Array, engine: Engine, z: Operand) -> None:
        """Compute the missing rows of some vertices: two, or at most a batch."""
        self.clock += 1
        held = self.slots[places]
        self.used[held[held >= 0]] = self.clock
        if (held < 0).any():
            self._fill(places[held < 0], engine, z)

    def keep(self, places: Int64Array) -> None:
        """Forget all vertices except those at the increasing `places`, and close the gaps."""
        slots = self.slots[places]
        held = np.flatnonzero(slots >= 0)
        held = held[np.argsort(slots[held])]
        sources = slots[held]
        core.keep_vertices(sources, places, self.values)
        self._slots.keep(places)
        self._forget()
        self._n_held = len(held)
        self._own(np.arange(len(held)), held)
        self.used[: len(held)] = self.used[sources]
        self._make_room()

    def _fill(self, places: Int64Array, engine: Engine, z: Operand) -> Int64Array:
        """Compute the missing rows of vertices, and return their slots."""
        slots = self._take_slots(len(places))
        m = len(self)
        together = slots[-1] - slots[0] + 1 == len(slots)
        if together and places[-1] - places[0] + 1 == len(places):
            first = z[int(places[0]) : int(places[-1]) + 1]
            engine.block(first, z, self.values[slots[0] : slots[-1] + 1, :m])
        else:
            batch = max(1, (4 << 20) // (m * self.dtype.itemsize))
            for start in range(0, len(places), batch):
                part = slice(start, start + batch)
                rows = np.empty((len(places[part]), m), dtype=self.dtype)
                engine.block(z.take(places[part]), z, rows)
                self.values[slots[part], :m] = rows
        self._own(slots, places)
        self.used[slots] = self.clock
        return slots

    def _take_slots(self, n: int) -> Int64Array:
        """Increasing free slots; if there are too few, the rows used longest ago give up theirs."""
        room = min(self._room(), len(self))  # so many slots are enough for all rows
        free = np.arange(self._n_held, min(self._n_held + n, room))
        oldest = np.argsort(self.used[: self._n_held], kind="stable")[: n - len(free)]
        self.slots[self._owners[oldest]] = -1
        self._n_held += len(free)
        return np.sort(np.concatenate([oldest, free]))

    def _own(self, slots: Int64Array, places: Int64Array) -> None:
        self._owners[slots] = places
        self.slots[places] = slots

    def _room(self) -> int:
        """Number of rows, with values for all vertices, that fit the budget."""
        row_bytes = max(1, self._table.row_bytes(len(self)))
        return max(2, min(len(self.values), self._budget // row_bytes))

    def _make_room(self) -> int:
        """Give up rows until the others fit with all columns; return how many may be added.

        The rows used last stay and move to the front. The memory behind them is released.
        """
        m = len(self)
        above = bytes_above(self._limit)
        if above > 0:
            held_bytes = self._n_held * self._table.row_bytes(m)
            self._budget = min(self._budget, max(0, held_bytes - above))
        room = self._room()
        if self._n_held > room:
            recent = np.argsort(-self.used[: self._n_held], kind="stable")
            gone = recent[room:]
            self.slots[self._owners[gone]] = -1
            behind = np.sort(recent[:room])
            behind = behind[behind >= room]
            free = np.sort(gone[gone < room])
            for old, new in zip(behind.tolist(), free.tolist(), strict=True):
                self.values[new, :m] = self.values[old, :m]  # untouched pages take no memory
            self.used[free] = self.used[behind]
            self._own(free, self._owners[behind])
            self._n_held = room
        if room < len(self.values):
            self._table.release(room)
        return room if room >= m else max(1, room // 2)
