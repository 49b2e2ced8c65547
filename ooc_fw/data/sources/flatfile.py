"""Arrays inside files, read part by part through a file descriptor.

Nothing is memory-mapped: mapped pages would count as resident memory, and access to a map of a file
that was cut short ends the process instead of raising an error.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from ooc_fw.data.rows import AnyArray, Int64Array
from ooc_fw.system.errors import DamageError, InputError

READ_BYTES = 8 << 20
"""Bytes fetched at once from a table whose rows have other data between them."""


class FileArray(ABC):
    """A vector or table in a file, of which contiguous parts are read by any number of threads.

    Its `dtype` may be of any byte order. InputError is raised when the file cannot be opened.
    """

    _descriptor = -1

    def __init__(self, path: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.path = path
        self.shape = shape
        self.dtype = dtype
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
        if out.size:
            self._read(start, out)
        return out

    @abstractmethod
    def _read(self, start: int, out: AnyArray) -> None:
        """Fill `out` with the elements or rows from `start` on."""

    def _fill(self, out: AnyArray, offset: int) -> None:
        """Fill the C-contiguous array `out` with the bytes from `offset` on.

        DamageError is raised when the file ends before `out` is full, or the disk fails.
        """
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


class ChunkedFileArray(FileArray):
    """A vector or table in contiguous chunks of equal length that lie anywhere in a file.

    Each chunk of `chunk_rows` elements or rows begins at its byte of `offsets`; the last chunk may
    hold fewer.
    """

    def __init__(
        self,
        path: str,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        *,
        offsets: Int64Array,
        chunk_rows: int,
    ) -> None:
        self._offsets = offsets
        self._chunk_rows = chunk_rows
        self._row_bytes = dtype.itemsize * (1 if len(shape) == 1 else shape[1])
        super().__init__(path, shape, dtype)

    def _read(self, start: int, out: AnyArray) -> None:
        position, stop = start, start + len(out)
        while position < stop:
            chunk, inside = divmod(position, self._chunk_rows)
            end = min(stop, position + self._chunk_rows - inside)
            place = int(self._offsets[chunk]) + inside * self._row_bytes
            self._fill(out[position - start : end - start], place)
            position = end


class StridedFileArray(FileArray):
    """A table in one stretch of a file, of which the rows or the columns are contiguous.

    Element 0 begins at byte `offset`, and neighbours along each axis are `strides` bytes apart.
    InputError is raised for values in an order that would need scattered reads.
    """

    def __init__(
        self,
        path: str,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        *,
        offset: int,
        strides: tuple[int, ...],
    ) -> None:
        self.offset = offset
        self.strides = strides
        self._rows_whole = len(shape) == 1 or strides[1] == dtype.itemsize
        row_bytes = dtype.itemsize if len(shape) == 1 else dtype.itemsize * shape[1]
        self._solid = self._rows_whole and strides[0] == row_bytes
        gapped = self._rows_whole and strides[0] > row_bytes
        in_columns = len(shape) == 2 and strides[0] == dtype.itemsize and strides[1] > 0
        if not (self._solid or gapped or in_columns):
            raise InputError(
                f"this view of {path} has neither its rows nor its columns in one piece; "
                f"save it as an array of its own with numpy.save"
            )
        super().__init__(path, shape, dtype)

    def _read(self, start: int, out: AnyArray) -> None:
        place = self.offset + start * self.strides[0]
        if self._solid:
            self._fill(out, place)
        elif self._rows_whole:
            self._read_gapped(place, out)
        else:
            column = np.empty(len(out), dtype=self.dtype)
            for j in range(self.shape[1]):
                self._fill(column, place + j * self.strides[1])
                out[:, j] = column

    def _read_gapped(self, place: int, out: AnyArray) -> None:
        """Read the rows with the gaps between them, a bounded part at a time."""
        stride = self.strides[0]
        step = max(1, READ_BYTES // stride)
        for first in range(0, len(out), step):
            part = out[first : first + step]
            raw = np.empty((len(part) - 1) * stride + out.strides[0], dtype=np.uint8)
            self._fill(raw, place + first * stride)
            part[...] = np.ndarray(part.shape, self.dtype, raw.data, strides=self.strides)
