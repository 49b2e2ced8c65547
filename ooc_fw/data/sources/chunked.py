"""Arrays in chunks that are decoded or computed whole, such as those of zarr, Dask and HDF5.

The packages zarr and Dask are never imported here.
"""

from __future__ import annotations

import io
import math
import pickle
import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from ooc_fw.data.rows import AnyArray, Int64Array
from ooc_fw.data.sources.base import ArraySource, Sliceable, check_real, check_shape
from ooc_fw.system.errors import DamageError, InputError

_RECIPE_BYTES = 16 << 20  # largest recipe of an array; one with more holds the values themselves
KEPT_BYTES = 32 << 20  # decoded bytes that are kept of one array, or two chunks if these are larger


class DecodedChunks:
    """An array in compressed chunks, or in parts to be computed, that is read in any blocks.

    The first and the last chunk of a read are kept if it uses only a part of them, so that a pass
    in order decodes each chunk once, whatever its blocks are. At most `kept_bytes` stay between two
    reads. When several threads need a chunk at the same time, one decodes it and the others wait.

    ``decode(start, stop)`` returns the rows of consecutive chunks. `ends` holds the row after the
    last of each chunk, or is the number of rows of each but the last.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: Any,
        decode: Callable[[int, int], AnyArray],
        ends: Int64Array | int,
    ) -> None:
        self.shape, self.dtype = tuple(shape), np.dtype(dtype)
        # The last chunk may end below the last border.
        self._borders: Sequence[int] = (
            range(0, shape[0] + ends, ends) if isinstance(ends, int) else [0, *ends.tolist()]
        )
        self._decode = decode
        self._row_bytes = self.dtype.itemsize * math.prod(shape[1:])
        longest = ends if isinstance(ends, int) else int(np.diff(ends, prepend=0).max(initial=0))
        self.chunk_rows = min(longest, shape[0])
        most = max(KEPT_BYTES, 2 * self.chunk_rows * self._row_bytes)
        self.kept_bytes = min(most, shape[0] * self._row_bytes)
        self.bytes_decoded = 0
        self._kept: OrderedDict[int, Future[AnyArray]] = OrderedDict()
        self._choosing = threading.Lock()

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: slice) -> AnyArray:
        """Rows ``key.start:key.stop``; a view of a kept chunk if they all lie in it."""
        start, stop, _ = key.indices(len(self))
        if stop <= start:
            return self._rows(start, start)
        first = bisect_right(self._borders, start) - 1
        last = bisect_left(self._borders, stop) - 1
        begin, end = self._borders[first], min(self._borders[last + 1], len(self))
        head = start > begin or (first == last and stop < end)
        tail = stop < end and last != first
        low = self._borders[first + 1] if head else begin
        high = self._borders[last] if tail else end
        pieces = []
        if head:
            pieces.append(self._chunk(first)[start - begin : stop - begin])
        if low < high:
            pieces.append(self._rows(low, high))
        if tail:
            pieces.append(self._chunk(last)[: stop - high])
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _chunk(self, number: int) -> AnyArray:
        """A chunk, which is kept."""
        with self._choosing:
            mine = number not in self._kept
            promise = self._kept.setdefault(number, Future())
            self._kept.move_to_end(number)
        if mine:
            try:
                end = min(self._borders[number + 1], len(self))
                promise.set_result(self._rows(self._borders[number], end))
            except BaseException as error:
                with self._choosing:
                    del self._kept[number]
                promise.set_exception(error)
            else:
                self._evict()
        return promise.result()

    def _rows(self, start: int, stop: int) -> AnyArray:
        """Rows of whole chunks, decoded and counted."""
        rows = self._decode(start, stop)
        with self._choosing:
            self.bytes_decoded += rows.nbytes
        return rows

    def _evict(self) -> None:
        """Drop the chunks that were not used for longest until the others fit."""
        with self._choosing:
            done = {k: kept.result() for k, kept in self._kept.items() if kept.done()}
            held = sum(rows.nbytes for rows in done.values())
            for number, rows in list(done.items())[:-1]:  # the last one is in use
                if held <= self.kept_bytes:
                    return
                del self._kept[number]
                held -= rows.nbytes


def is_chunked(data: Any) -> bool:
    """Whether `data` is an array of Dask, or in chunks of equal size, that is read by slicing."""
    chunks = getattr(data, "chunks", None)
    if not (isinstance(chunks, tuple) and hasattr(data, "shape") and hasattr(data, "dtype")):
        return False
    return _is_dask(data) or all(isinstance(length, int) for length in chunks)


def _is_dask(array: Any) -> bool:
    return hasattr(array, "__dask_graph__") and hasattr(array, "_meta")


def open_chunked(
    array: Any, labels: Sliceable | None = None, name: str = "array of chunks"
) -> ArraySource:
    """Rows of a two-dimensional array of zarr, Dask or their like, decoded a chunk at a time.

    InputError is raised for a Dask array of unknown lengths, or of blocks that are no numpy arrays.
    """
    ends = array.chunks[0]
    is_dask = _is_dask(array)
    if is_dask:
        name = "dask array"
        if any(math.isnan(length) for length in array.shape):
            raise InputError(f"the lengths of the {name} are unknown; call compute_chunk_sizes()")
        if not isinstance(array._meta, np.ndarray):
            raise InputError(
                f"the {name} has blocks of type {type(array._meta).__name__}; "
                f"make them numpy arrays with map_blocks"
            )
        ends = np.cumsum(array.chunks[0], dtype=np.int64)
    check_shape(name, array.shape)
    check_real(name, np.dtype(array.dtype))

    def decode(start: int, stop: int) -> AnyArray:
        if is_dask:
            return np.asarray(array[start:stop].compute())
        try:
            return np.asarray(array[start:stop])
        except Exception as error:  # whatever codecs and stores raise
            raise DamageError(
                f"rows {start} to {stop - 1} of {name} cannot be read ({error}); write it again"
            ) from error

    chunks = DecodedChunks(array.shape, array.dtype, decode, ends)
    source = ArraySource(chunks, labels, name=name, chunk_rows=chunks.chunk_rows)
    source.max_gap = source.span_rows = source.chunk_rows
    source.cache_bytes = chunks.kept_bytes
    source.decoders = [chunks]
    # A decoded chunk, what it is made of, and the chunks that are kept.
    span_bytes = source.span_rows * source.n_features * chunks.dtype.itemsize
    source.overhead_bytes = 2 * span_bytes + chunks.kept_bytes
    if (recipe := _recipe(array)) is not None:
        source.reopen_by(_reopen, (recipe, name), with_labels=False)
    return source


class _Limited(io.BytesIO):
    """Memory for at most `_RECIPE_BYTES`; OverflowError beyond."""

    def write(self, data: Any) -> int:
        if self.tell() + memoryview(data).nbytes > _RECIPE_BYTES:
            raise OverflowError
        return super().write(data)


def _recipe(array: Any) -> bytes | None:
    """How another process makes the same array of the files that it is read from.

    None for an array whose values are in memory, and for one that cannot be sent.
    """
    try:
        from cloudpickle import dump  # which Dask brings, and which takes functions of any kind
    except ImportError:
        from pickle import dump
    packed = _Limited()
    try:
        dump(array, packed)
    except Exception:  # whatever the functions and stores of an array raise
        return None
    return packed.getvalue()


def _reopen(recipe: bytes, name: str) -> ArraySource:
    """Open the array of a recipe that this program made, in a process that it started."""
    return open_chunked(pickle.loads(recipe), name=name)
