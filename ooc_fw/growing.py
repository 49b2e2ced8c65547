"""Arrays and rows that grow at the end by doubling, and shrink to chosen places.

Owns the buffers of the active set, so that adding one vertex costs O(1) amortised and no copy of
the others. Knows nothing of what the numbers mean.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_fw.rows import CSRRows, Float32Array, Rows, take_rows


class GrowingArray:
    """An array whose first axis grows.

    Parameters
    ----------
    dtype : type
        Of the elements.
    tail : tuple of int
        Shape of one element along the first axis; () for a vector.
    """

    def __init__(self, dtype: Any, tail: tuple[int, ...] = ()) -> None:
        self._buffer = np.empty((0, *tail), dtype=dtype)
        self._size = 0

    @property
    def view(self) -> npt.NDArray[Any]:
        """What it holds; writes go through. Stale once the array has grown."""
        return self._buffer[: self._size]

    def append(self, block: npt.NDArray[Any]) -> None:
        """Add elements at the end."""
        size = self._size + len(block)
        if size > len(self._buffer):
            grown = np.empty(
                (max(size, 2 * self._size), *self._buffer.shape[1:]), self._buffer.dtype
            )
            grown[: self._size] = self.view
            self._buffer = grown
        self._buffer[self._size : size] = block
        self._size = size

    def keep(self, places: npt.NDArray[np.int64]) -> None:
        """Keep only the elements at `places`, in that order."""
        self._buffer = self.view[places]
        self._size = len(places)


class GrowingRows:
    """Dense or sparse rows that grow; the kind is that of the first block added."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
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
        if self._dense is not None:
            self._dense.keep(places)
            return
        rows = take_rows(self.view, places)
        self._clear()
        self.append(rows)


def lazy_square(n: int) -> Float32Array:
    """Zeros of shape (n', n') with n' >= n, whose memory pages are taken when first written.

    A kernel block in its leading corner can grow to n vertices without ever being copied, and takes
    4 KiB pages instead of huge ones, so that no more than the corner becomes resident. Rows are not
    a multiple of a page apart: columns would fall into one set of the cache.
    """
    side = max(1, n) // 1024 * 1024 + 1040
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    pages = mmap.mmap(-1, 4 * side * side, flags=flags)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        pages.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(pages, dtype=np.float32).reshape(side, side)
