"""Rows of arrays in chunks that are read by slicing, such as those of zarr and Dask.

The packages that these arrays come from are never imported here.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ooc_fw.data.rows import AnyArray, Int64Array, StoredRows
from ooc_fw.data.sources.base import RowSource, Sliceable, check_real, check_shape
from ooc_fw.data.sources.decoded import DecodedChunks, equal_chunks
from ooc_fw.system.errors import DamageError, InputError


def is_chunked(data: Any) -> bool:
    """Whether `data` is an array in chunks of equal size that is read by slicing."""
    chunks = getattr(data, "chunks", None)
    whole = isinstance(chunks, tuple) and all(isinstance(length, int) for length in chunks)
    return whole and hasattr(data, "shape") and hasattr(data, "dtype")


class ChunkedSource(RowSource):
    """Rows of a two-dimensional array in chunks, each of which is decoded whole.

    Parameters
    ----------
    array : object with attributes shape, dtype and chunks
        Real numbers, shape (n_rows, n_features); sliced for one range of rows at a time.
    labels, name
        See `RowSource`.
    ends : ndarray of int64 or None
        Row after the last of each chunk; None where all chunks have the length ``chunks[0]``.
    """

    def __init__(
        self,
        array: Any,
        labels: Sliceable | None = None,
        *,
        name: str = "array of chunks",
        ends: Int64Array | None = None,
    ) -> None:
        check_shape(name, array.shape)
        dtype = np.dtype(array.dtype)
        check_real(name, dtype)
        if ends is None:
            ends = equal_chunks(array.shape[0], array.chunks[0])
        chunk_rows = int(np.diff(ends, prepend=0).max())
        super().__init__(name, tuple(array.shape), labels=labels, chunk_rows=chunk_rows)
        self.max_gap = self.span_rows = self.chunk_rows
        self._array = array
        self._row_bytes = self.n_features * int(dtype.itemsize)
        self._chunks = DecodedChunks(ends, self._decode, self._row_bytes)
        self.cache_bytes = self._chunks.kept_bytes

    @property
    def read_bytes(self) -> int:
        """Bytes that reading takes at most: a decoded chunk, what it is made of, and its rows."""
        return super().read_bytes + 2 * self.span_rows * self._row_bytes + self.cache_bytes

    def _fetch(self, start: int, stop: int) -> tuple[StoredRows, int]:
        block = self._chunks.read(start, stop)
        return block, block.nbytes

    def _decode(self, start: int, stop: int) -> AnyArray:
        try:
            return np.asarray(self._array[start:stop])
        except (OSError, RuntimeError, ValueError) as error:
            raise DamageError(
                f"rows {start} to {stop - 1} of the {self.name} cannot be read ({error}); write it "
                f"again"
            ) from error


class DaskSource(ChunkedSource):
    """Rows of a two-dimensional dask array, computed one range at a time.

    InputError is raised if its lengths are not known yet, or its blocks are not numpy arrays.
    """

    def __init__(
        self, array: Any, labels: Sliceable | None = None, *, name: str = "dask array"
    ) -> None:
        if any(math.isnan(length) for length in array.shape):
            raise InputError(f"the lengths of the {name} are unknown; call compute_chunk_sizes()")
        if not isinstance(array._meta, np.ndarray):
            raise InputError(
                f"the {name} has blocks of type {type(array._meta).__name__}; "
                f"make them numpy arrays with map_blocks"
            )
        super().__init__(array, labels, name=name, ends=np.cumsum(array.chunks[0], dtype=np.int64))

    def _decode(self, start: int, stop: int) -> AnyArray:
        return np.asarray(self._array[start:stop].compute())
