"""Arrays inside files, read part by part through a file descriptor.

Owns reading by byte offset into buffers of our own, and the sentence that is said when a file ends
too early. Knows no file format: where the values lie is told by the callers. Nothing is mapped:
mapped pages would count as resident memory, and a map of a file that was cut short kills the
process instead of raising.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from ooc_fw.data.rows import Int64Array
from ooc_fw.data.sources.base import AnyArray
from ooc_fw.system.errors import DamageError, InputError

READ_BYTES = 8 << 20
"""Bytes fetched at once from a table whose rows have other things between them."""


class FileReader:
    """A file opened for reading at given offsets, by any number of threads.

    Parameters
    ----------
    path : str
        File to open.

    Raises
    ------
    InputError
        The file cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._descriptor = -1
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise InputError(f"{path} cannot be opened: {error.strerror}") from error

    def fill(self, out: AnyArray, offset: int) -> None:
        """Fill the C-contiguous array `out` with the bytes from `offset` on.

        Raises
        ------
        DamageError
            The file ends before `out` is full, or the disk fails.
        """
        if out.size == 0:
            return
        view = out.reshape(-1).view(np.uint8).data
        while view:
            try:
                count = os.preadv(self._descriptor, [view], offset)
            except OSError as error:
                if self._descriptor < 0:  # a mistake of the caller, not of the disk
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


class FileArray:
    """A vector or table in one stretch of a file.

    Parameters
    ----------
    path : str
        File that holds the values.
    offset : int
        Byte at which element 0 begins.
    shape : tuple of int
        One or two lengths.
    strides : tuple of int
        Bytes between neighbours along each axis; the rows or the columns must be contiguous.
    dtype : dtype
        Type of the values in the file, of any byte order.

    Raises
    ------
    InputError
        The file cannot be opened, or its values lie in an order that would need scattered reads.
    """

    def __init__(
        self,
        path: str,
        offset: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        dtype: np.dtype[Any],
    ) -> None:
        self.path = path
        self.shape = shape
        self.strides = strides
        self.dtype = dtype
        self.offset = offset
        self._read = self._pick_reader()
        self._file = FileReader(path)

    def _pick_reader(self) -> Callable[[int, AnyArray], None]:
        size = self.dtype.itemsize
        row_bytes = size if len(self.shape) == 1 else size * self.shape[1]
        rows_whole = len(self.shape) == 1 or self.strides[1] == size
        if rows_whole and self.strides[0] == row_bytes:
            return self._read_solid
        if rows_whole and self.strides[0] > row_bytes:
            return self._read_gapped
        if len(self.shape) == 2 and self.strides[0] == size and self.strides[1] > 0:
            return self._read_columns
        raise InputError(
            f"this view of {self.path} has neither its rows nor its columns in one piece; "
            f"save it as an array of its own with numpy.save"
        )

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: slice) -> AnyArray:
        """Elements or rows ``key.start:key.stop`` as stored, in a buffer of their own."""
        start, stop = contiguous(key, len(self))
        out = np.empty((stop - start, *self.shape[1:]), dtype=self.dtype)
        self._read(start, out)
        return out

    def _read_solid(self, start: int, out: AnyArray) -> None:
        self._file.fill(out, self.offset + start * self.strides[0])

    def _read_gapped(self, start: int, out: AnyArray) -> None:
        """Read the gaps between the rows too, a bounded part at a time, and leave them out."""
        stride = self.strides[0]
        step = max(1, READ_BYTES // stride)
        for first in range(0, len(out), step):
            part = out[first : first + step]
            raw = np.empty((len(part) - 1) * stride + out.strides[0], dtype=np.uint8)
            self._file.fill(raw, self.offset + (start + first) * stride)
            part[...] = np.ndarray(part.shape, self.dtype, raw.data, strides=self.strides)

    def _read_columns(self, start: int, out: AnyArray) -> None:
        """Fortran order: one read a column."""
        column = np.empty(len(out), dtype=self.dtype)
        for j in range(self.shape[1]):
            place = self.offset + start * self.strides[0] + j * self.strides[1]
            self._file.fill(column, place)
            out[:, j] = column

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class ChunkedFileArray:
    """A vector or table whose stretches of equal length lie anywhere in a file.

    Parameters
    ----------
    path : str
        File that holds the values.
    offsets : ndarray of int64, shape (n_chunks,)
        Byte at which each chunk begins.
    chunk_rows : int
        Elements or rows of a chunk; the last one may hold fewer.
    shape : tuple of int
        One or two lengths.
    dtype : dtype
        Type of the values in the file, of any byte order.
    """

    def __init__(
        self,
        path: str,
        offsets: Int64Array,
        chunk_rows: int,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
    ) -> None:
        self.path = path
        self.shape = shape
        self.dtype = dtype
        self._offsets = offsets
        self._chunk_rows = chunk_rows
        self._row_bytes = dtype.itemsize * (1 if len(shape) == 1 else shape[1])
        self._file = FileReader(path)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: slice) -> AnyArray:
        """Elements or rows ``key.start:key.stop`` as stored, in a buffer of their own."""
        start, stop = contiguous(key, len(self))
        out = np.empty((stop - start, *self.shape[1:]), dtype=self.dtype)
        position = start
        while position < stop:
            chunk, inside = divmod(position, self._chunk_rows)
            end = min(stop, position + self._chunk_rows - inside)
            place = int(self._offsets[chunk]) + inside * self._row_bytes
            self._file.fill(out[position - start : end - start], place)
            position = end
        return out

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def contiguous(key: slice, length: int) -> tuple[int, int]:
    """Start and stop of a slice with step 1."""
    start, stop, step = key.indices(length)
    if step != 1:
        raise ValueError(f"arrays in files are sliced with step 1, not {step}")
    return start, max(start, stop)
