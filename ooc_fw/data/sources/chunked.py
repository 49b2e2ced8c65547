"""Rows of arrays that are kept in chunks and read by slicing, such as those of zarr.

Owns turning a row range into slices of such an array. What the array is and where it lies is known
to its package, which is never imported here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ooc_fw.data.rows import StoredRows
from ooc_fw.data.sources.base import AnyArray, Sliceable, SourceBase, check_real, check_shape
from ooc_fw.data.sources.decoded import DecodedChunks, equal_chunks
from ooc_fw.system.errors import DamageError


def is_chunked(data: Any) -> bool:
    """Whether `data` is an array on disk or elsewhere that is read by slicing."""
    chunks = getattr(data, "chunks", None)
    whole = isinstance(chunks, tuple) and all(isinstance(length, int) for length in chunks)
    return whole and hasattr(data, "shape") and hasattr(data, "dtype")


class ChunkedSource(SourceBase):
    """Rows of a two-dimensional array in chunks of equal size.

    Parameters
    ----------
    array : object with attributes shape, dtype and chunks
        Real numbers, shape (n_rows, n_features); sliced for one range of rows at a time.
    labels : Sliceable or None
        One label a row.
    name : str
        What to call the array in messages.
    """

    def __init__(
        self, array: Any, labels: Sliceable | None = None, *, name: str = "array of chunks"
    ) -> None:
        check_shape(name, array.shape)
        check_real(name, np.dtype(array.dtype))
        super().__init__(name, tuple(array.shape), labels=labels, chunk_rows=array.chunks[0])
        # A chunk is decoded whole whatever is asked of it.
        self.max_gap = self.span_rows = self.chunk_rows
        self._array = array
        row_bytes = self.n_features * np.dtype(array.dtype).itemsize
        ends = equal_chunks(self.n_rows, array.chunks[0])
        self._chunks = DecodedChunks(ends, self._decode, row_bytes)
        self.cache_bytes = self._chunks.kept_bytes

    @property
    def read_bytes(self) -> int:
        """Bytes that reading takes at most: chunks as decoded, side by side, and their rows."""
        span = self.span_rows * self.n_features * int(np.dtype(self._array.dtype).itemsize)
        return super().read_bytes + 2 * span + self.cache_bytes

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
