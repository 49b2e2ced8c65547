"""Arrays at known places of a file, read through its descriptor: `.npy`, memory maps, plain HDF5.

Nothing is memory-mapped: mapped pages would count as resident memory, and access to a map of a file
that was cut short ends the process instead of raising an error.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from ooc_fw.data.rows import AnyArray, Int64Array
from ooc_fw.data.sources.base import ArraySource, FileStamp, Sliceable, check_shape
from ooc_fw.data.sources.opening import check_regular
from ooc_fw.system.errors import DamageError, InputError

READ_BYTES = 8 << 20  # bytes fetched at once from a table whose rows have other data between them


class FileArray:
    """A vector or table in a file, of which contiguous parts are read by any number of threads.

    Chunks of `chunk_rows` elements or rows (all of them by default; fewer in the last chunk) begin
    at these `offsets` of the file. Neighbours along each axis are `strides` bytes apart, by default
    without gaps. InputError is raised when the file cannot be opened, and for values in an order
    that would need scattered reads.
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
        self.path, self.shape, self.dtype = path, shape, dtype
        self.offsets, self._chunk_rows = offsets, chunk_rows or max(1, shape[0])
        row_bytes = dtype.itemsize * math.prod(shape[1:])
        self.strides = strides or (row_bytes, dtype.itemsize)[: len(shape)]
        self._rows_whole = len(shape) == 1 or self.strides[1] == dtype.itemsize
        self._solid = self._rows_whole and self.strides[0] == row_bytes
        gapped = self._rows_whole and self.strides[0] > row_bytes
        in_columns = len(shape) == 2 and self.strides[0] == dtype.itemsize and self.strides[1] > 0
        if not (self._solid or gapped or in_columns):
            raise InputError(
                f"this view of {path} has neither its rows nor its columns in one piece; "
                f"save it as an array of its own with numpy.save"
            )
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise InputError(f"{path} cannot be opened: {error.strerror}") from error

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: slice) -> AnyArray:
        """Elements or rows ``key.start:key.stop`` as stored, in a buffer of their own."""
        start, stop, step = key.indices(len(self))
        if step != 1:
            raise ValueError(f"arrays in files are sliced with step 1, not {step}")
        out = np.empty((max(0, stop - start), *self.shape[1:]), dtype=self.dtype)
        position = start
        while out.size and position < stop:
            chunk, inside = divmod(position, self._chunk_rows)
            end = min(stop, position + self._chunk_rows - inside)
            place = int(self.offsets[chunk]) + inside * self.strides[0]
            self._read(place, out[position - start : end - start])
            position = end
        return out

    def _read(self, place: int, out: AnyArray) -> None:
        """Fill `out` with the elements or rows from byte `place` on."""
        if self._solid:
            self._fill(out, place)
        elif not self._rows_whole:
            column = np.empty(len(out), dtype=self.dtype)
            for j in range(self.shape[1]):
                self._fill(column, place + j * self.strides[1])
                out[:, j] = column
        else:  # rows with the gaps between them, a bounded part at a time
            stride = self.strides[0]
            step = max(1, READ_BYTES // stride)
            for first in range(0, len(out), step):
                part = out[first : first + step]
                raw = np.empty((len(part) - 1) * stride + out.strides[0], dtype=np.uint8)
                self._fill(raw, place + first * stride)
                part[...] = np.ndarray(part.shape, self.dtype, raw.data, strides=self.strides)

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
                    f"{self.path} was cut short: {len(view)} bytes of the rows asked for are not "
                    f"in it; write the file again"
                )
            view, offset = view[count:], offset + count

    def close(self) -> None:
        """Close the file; a second time does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        self.close()


def open_table(table: FileArray, labels: Sliceable | None = None) -> ArraySource:
    """Rows of a table in a flat file, which is closed with the source."""
    source = ArraySource(table, labels, name=table.path)
    source.labels_hint = "give them as another .npy file (--labels y.npy, or labels= in Python)"
    source.stamps.append(FileStamp(table.path))
    place = table.shape, table.dtype, tuple(table.offsets), None, table.strides
    source.reopen_by(_reopen, (os.path.abspath(table.path), *place), with_labels=False)
    source.own(table.close)
    return source


def _reopen(*place: Any) -> ArraySource:
    return open_table(FileArray(*place))


def open_npy(path: str) -> FileArray:
    """Array of a `.npy` file: numbers in one or two dimensions, all of them in the file."""
    check_regular(path)
    try:
        with open(path, "rb") as file:
            version = np.lib.format.read_magic(file)
            read_header = (
                np.lib.format.read_array_header_1_0
                if version == (1, 0)
                else np.lib.format.read_array_header_2_0
            )
            shape, in_columns, dtype = read_header(file)
            shape += dtype.shape  # a type of several numbers makes columns
            dtype, offset = dtype.base, file.tell()
            check_header(shape, dtype, os.fstat(file.fileno()).st_size - offset)
    except (ValueError, OSError, EOFError, TypeError, ArithmeticError, RecursionError) as error:
        raise InputError(
            f"{path} cannot be read as a .npy file ({error}); write it with numpy.save"
        ) from error
    if len(shape) != 1:
        check_shape(path, shape)
    strides = (dtype.itemsize, dtype.itemsize * shape[0]) if in_columns and shape[1:] else None
    return FileArray(path, shape, dtype, (offset,), strides=strides)


def check_header(shape: tuple[Any, ...], dtype: np.dtype[Any], n_bytes: int) -> None:
    """Raise ValueError unless the array has a type that is loaded and fits into the file."""
    if any(type(length) is not int or length < 0 for length in shape):
        raise ValueError(f"its shape is said to be {shape}")
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are not loaded")
    if math.prod(shape) * dtype.itemsize > n_bytes:
        raise ValueError(f"it has {n_bytes} bytes for values of shape {shape} and type {dtype}")


def find_in_file(array: AnyArray) -> FileArray | None:
    """Where the values of a view of a memory map lie on disk.

    None when `array` is no such view, or its map has no file name, or is copy-on-write, so that its
    values may differ from those of the file.
    """
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
