"""Arrays that are read by slices, from any number of threads: at their place in a file, or decoded.

Nothing is memory-mapped: mapped pages would count as resident memory, and access to a map of a file
that was cut short ends the process instead of raising an error.
"""

from __future__ import annotations

import math
import mmap
import os
import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from ooc_fw.data.formats import check_regular
from ooc_fw.data.rows import AnyArray, Int64Array, check_shape
from ooc_fw.system.errors import DamageError, InputError

KEPT_BYTES = 32 << 20  # decoded bytes that are kept of one array, or two chunks if these are larger


class Sliceable(Protocol):
    """A sequence of numbers, or of rows of them, that returns contiguous parts as arrays."""

    def __len__(self) -> int: ...

    def __getitem__(self, key: slice, /) -> AnyArray: ...


class ReadArray:
    """An array of which ``read(start, stop)`` returns a part."""

    kept_bytes = 0  # most bytes that stay in memory between two reads
    chunk_rows: int | None = None  # rows or values of a chunk; None without chunks
    compressed = False  # whether a chunk is decoded whole, whatever is asked of it

    def __init__(
        self, shape: tuple[int, ...], dtype: Any, read: Callable[[int, int], AnyArray]
    ) -> None:
        self.shape = tuple(shape)
        self.dtype = np.dtype(dtype)
        self._read = read

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: slice) -> AnyArray:
        start, stop, _ = key.indices(len(self))
        return self._read(start, max(start, stop))

    def close(self) -> None:
        """Close what was opened for this array alone."""


class DecodedChunks(ReadArray):
    """An array in compressed chunks, or in parts to be computed, that is read in any blocks.

    The first and the last chunk of a read are kept if it uses only a part of them, so that a pass
    in order decodes each chunk once, whatever its blocks are.

    ``decode(start, stop)`` returns the rows of consecutive chunks. `borders` holds the first row of
    each chunk, and the number of rows.
    """

    compressed = True

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: Any,
        decode: Callable[[int, int], AnyArray],
        borders: Int64Array,
    ) -> None:
        super().__init__(shape, dtype, decode)
        self._borders: list[int] = borders.tolist()
        # The memory plan counts 512 bytes for a word.
        item_bytes = 512 if self.dtype.hasobject else self.dtype.itemsize
        row_bytes = item_bytes * math.prod(shape[1:])
        self.chunk_rows = int(np.diff(borders).max(initial=0))
        chunk_bytes = self.chunk_rows * row_bytes
        self.kept_bytes = min(max(KEPT_BYTES, 2 * chunk_bytes), shape[0] * row_bytes)
        self._most_kept = max(2, self.kept_bytes // max(1, chunk_bytes))
        self._kept: OrderedDict[int, AnyArray] = OrderedDict()
        self._lock = threading.Lock()

    def __getitem__(self, key: slice) -> AnyArray:
        """Rows ``key.start:key.stop``; a view of a kept chunk if they all lie in it."""
        start, stop, _ = key.indices(len(self))
        if stop <= start:
            return self._read(start, start)
        borders = self._borders
        first = bisect_left(borders, start)  # of the borders within these rows
        last = bisect_right(borders, stop) - 1
        pieces = []
        if start < borders[first]:
            begin = borders[first - 1]
            pieces.append(self._chunk(first - 1)[start - begin : stop - begin])
        if first < last:
            pieces.append(self._read(borders[first], borders[last]))
        if first <= last and borders[last] < stop:
            pieces.append(self._chunk(last)[: stop - borders[last]])
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _chunk(self, number: int) -> AnyArray:
        """A chunk, which is kept until others were used; one thread decodes at a time."""
        with self._lock:
            if number not in self._kept:
                self._kept[number] = self._read(self._borders[number], self._borders[number + 1])
            self._kept.move_to_end(number)
            while len(self._kept) > self._most_kept:
                self._kept.popitem(last=False)
            return self._kept[number]


class FileArray(ReadArray):
    """A vector or table in a file, of which contiguous parts are read by any number of threads.

    Chunks of `chunk_rows` elements or rows (all of them by default) begin at these `offsets` of the
    file. Neighbours along each axis are `strides` bytes apart, by default without gaps. InputError
    is raised for values in an order that would need scattered reads.
    """

    _descriptor = -1

    def __init__(
        self,
        path: str,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        offsets: Sequence[int] | Int64Array,
        chunk_rows: int | None = None,
        strides: tuple[int, ...] | None = None,
    ) -> None:
        super().__init__(shape, dtype, self._read_rows)
        self.path = path
        self.offsets = offsets
        self.chunk_rows = chunk_rows
        solid = (dtype.itemsize * math.prod(shape[1:]), dtype.itemsize)[: len(shape)]
        self.strides = strides or solid
        self._in_columns = self.strides != solid
        if self._in_columns and (self.strides[0] != dtype.itemsize or self.strides[1] <= 0):
            raise InputError(
                f"this view of {path} has neither its rows nor its columns in one piece; copy it"
            )
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise InputError(f"{path} cannot be opened: {error.strerror}") from error

    def _read_rows(self, start: int, stop: int) -> AnyArray:
        """Elements or rows as stored, in a buffer of their own."""
        out = np.empty((stop - start, *self.shape[1:]), dtype=self.dtype)
        position = start
        length = self.chunk_rows or max(1, len(self))
        while out.size and position < stop:
            chunk, inside = divmod(position, length)
            end = min(stop, position + length - inside)
            place = int(self.offsets[chunk]) + inside * self.strides[0]
            part = out[position - start : end - start]
            if self._in_columns:
                for j in range(self.shape[1]):
                    column = np.empty(len(part), dtype=self.dtype)
                    self._fill(column, place + j * self.strides[1])
                    part[:, j] = column
            else:
                self._fill(part, place)
            position = end
        return out

    def _fill(self, out: AnyArray, offset: int) -> None:
        """Fill the C-contiguous array `out` with the bytes from `offset` on."""
        view = out.reshape(-1).view(np.uint8).data
        while view:
            try:
                count = os.preadv(self._descriptor, [view], offset)
            except OSError as error:
                if self._descriptor < 0:  # closed: an error in the caller, not of the disk
                    raise
                raise DamageError(
                    f"{self.path} cannot be read at byte {offset} ({error.strerror}); "
                    f"restore a copy on another disk"
                ) from error
            if count == 0:
                raise DamageError(
                    f"{self.path} was cut short: {len(view)} bytes are not in it; write it again"
                )
            view = view[count:]
            offset += count

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        self.close()


def open_npy(path: str) -> FileArray:
    """Array of a `.npy` file, all of whose values are in the file."""
    check_regular(path)
    try:
        # No page of the map is touched: it tells type, shape and place.
        with np.errstate(over="raise"):
            mapped = np.lib.format.open_memmap(path, mode="r")
        if mapped.dtype.itemsize == 0:
            raise ValueError("its elements have no bytes")
        if len(mapped.shape) != 1:
            check_shape(path, mapped.shape)
        found = find_in_map(mapped)
    except InputError:
        raise
    except Exception as error:  # whatever numpy raises for a header, which it parses as Python
        raise InputError(
            f"{path} cannot be read as a .npy file ({error}); write it with numpy.save"
        ) from error
    assert found is not None
    return found


def find_in_map(array: AnyArray) -> FileArray | None:
    """A view of a memory map, in its file; None for a private map, or an array in memory."""
    base: Any = array
    named: np.memmap[Any, Any] | None = None
    while isinstance(base, np.ndarray):
        if isinstance(base, np.memmap) and base.filename is not None:
            named = base
        base = base.base
    if named is None or not isinstance(base, mmap.mmap) or named.mode == "c":
        return None
    # A view keeps the offset of the map it was cut from, so its own follows from the addresses.
    page_start = named.offset - named.offset % mmap.ALLOCATIONGRANULARITY
    mapped = np.frombuffer(base, dtype=np.uint8)
    offset = page_start + array.ctypes.data - mapped.ctypes.data
    return FileArray(
        str(named.filename), array.shape, array.dtype, (offset,), strides=array.strides
    )
