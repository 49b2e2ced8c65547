"""Arrays and rows that grow at the end by doubling; a table whose memory is taken when used."""

from __future__ import annotations

import mmap
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_fw.data.rows import CSRRows, Rows, take_rows

# MAP_NORESERVE: without it, Linux might refuse a large table of which little is used.
_NO_RESERVE = 0x4000 if sys.platform == "linux" else 0


class GrowingArray:
    """An array whose first axis grows; `tail` is the shape of one element along it."""

    def __init__(self, dtype: Any, tail: tuple[int, ...] = ()) -> None:
        self.hold(np.empty((0, *tail), dtype=dtype))

    def hold(self, block: npt.NDArray[Any]) -> None:
        """Hold these elements in place of all others, without a copy."""
        self._buffer = block
        self._size = len(block)

    @property
    def view(self) -> npt.NDArray[Any]:
        """What it holds; writes go through. Stale once the array has grown."""
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
    """Dense or sparse rows that grow; the kind is that of the first block added."""

    def __init__(self) -> None:
        self._dense: GrowingArray | None = None
        self._n_features = 0
        self._data = GrowingArray(np.float32)
        self._indices = GrowingArray(np.int32)
        self._indptr = GrowingArray(np.int64)
        self._indptr.append(np.zeros(1, dtype=np.int64))

    @property
    def view(self) -> Rows:
        """The rows held. Stale once rows were added."""
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
    """Rows of numbers, zeros at first, whose memory pages are taken when first written.

    `values` has at least `n_rows` rows and `n_columns` columns. Its pages have 4 KiB rather than
    being huge, so that only the part in use becomes resident.
    """

    def __init__(self, n_rows: int, n_columns: int, dtype: npt.DTypeLike) -> None:
        item = np.dtype(dtype).itemsize
        # With rows a multiple of a page apart, a column would fall into one set of the cache.
        width = n_columns // 1024 * 1024 + 1040
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
        self._pages = mmap.mmap(-1, max(1, n_rows) * width * item, flags=flags)
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            self._pages.madvise(mmap.MADV_NOHUGEPAGE)
        self._stride = width * item
        self.values = np.frombuffer(self._pages, dtype=dtype).reshape(-1, width)

    def row_bytes(self, n_columns: int) -> int:
        """Bytes of memory that a row takes of which `n_columns` were written."""
        # A row may begin and end within a page.
        return min(self._stride, n_columns * self.values.itemsize + 2 * mmap.PAGESIZE)

    def release(self, n_rows: int) -> None:
        """Give the memory of the rows from `n_rows` on back; they are zeros again."""
        start = -(-n_rows * self._stride // mmap.PAGESIZE) * mmap.PAGESIZE
        if start < len(self._pages) and hasattr(mmap, "MADV_DONTNEED"):
            self._pages.madvise(mmap.MADV_DONTNEED, start)
