"""Rows of a dask array.

Owns turning a row range into a dask computation. Dask is imported by whoever made the array, never
here.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ooc_fw.data.rows import StoredRows
from ooc_fw.data.sources.base import AnyArray, Sliceable, SourceBase, check_real, check_shape
from ooc_fw.data.sources.decoded import DecodedChunks
from ooc_fw.system.errors import InputError

_BLOCKS = 2  # of a Dask array that are in memory at once: one, and the one it is made of


class DaskSource(SourceBase):
    """Rows of a two-dimensional dask array of numpy blocks.

    Parameters
    ----------
    array : dask.array.Array
        Real numbers, shape (n_rows, n_features); computed one range of rows at a time.
    labels : Sliceable or None
        One label a row.
    name : str
        What to call the array in messages.

    Raises
    ------
    InputError
        The array's lengths are not known yet, or its blocks are not numpy arrays.
    """

    def __init__(
        self, array: Any, labels: Sliceable | None = None, *, name: str = "dask array"
    ) -> None:
        if any(math.isnan(length) for length in array.shape):
            raise InputError(f"the lengths of the {name} are unknown; call compute_chunk_sizes()")
        check_shape(name, array.shape)
        if not isinstance(array._meta, np.ndarray):
            raise InputError(
                f"the {name} has blocks of type {type(array._meta).__name__}; "
                f"make them numpy arrays with map_blocks"
            )
        check_real(name, array.dtype)
        super().__init__(name, array.shape, labels=labels, chunk_rows=max(array.chunks[0]))
        # One block of the array has to be computed whole whatever is asked of it.
        self.max_gap = self.span_rows = self.chunk_rows
        self._array = array
        row_bytes = self.n_features * array.dtype.itemsize
        ends = np.cumsum(array.chunks[0], dtype=np.int64)
        self._chunks = DecodedChunks(ends, self._decode, row_bytes)
        self.cache_bytes = self._chunks.kept_bytes

    @property
    def read_bytes(self) -> int:
        """Bytes that reading takes at most: a whole block, what it is made of, and its rows."""
        block = int(math.prod(max(lengths) for lengths in self._array.chunks))
        kept = self.cache_bytes
        return super().read_bytes + kept + _BLOCKS * block * int(self._array.dtype.itemsize)

    def _fetch(self, start: int, stop: int) -> tuple[StoredRows, int]:
        block = self._chunks.read(start, stop)
        return block, block.nbytes

    def _decode(self, start: int, stop: int) -> AnyArray:
        return np.asarray(self._array[start:stop].compute())
