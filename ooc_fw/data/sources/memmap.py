"""Rows in flat binary files: `.npy` files and numpy memory maps, both read by file offset."""

from __future__ import annotations

import math
import mmap
import os
from typing import Any

import numpy as np

from ooc_fw.data.rows import AnyArray, StoredRows
from ooc_fw.data.sources.base import RowSource, Sliceable, check_real, check_shape
from ooc_fw.data.sources.flatfile import StridedFileArray
from ooc_fw.data.sources.opening import check_regular
from ooc_fw.data.sources.stamp import FileStamp
from ooc_fw.system.errors import InputError


class MemmapSource(RowSource):
    """Rows of a table in a flat binary file, which is closed with the source."""

    _labels_hint = "give them as another .npy file (--labels y.npy, or labels= in Python)"

    def __init__(self, table: StridedFileArray, labels: Sliceable | None = None) -> None:
        check_real(table.path, table.dtype)
        super().__init__(table.path, table.shape, labels=labels)
        self._table = table
        self._stamp = FileStamp(table.path)
        place = table.shape, table.dtype, table.offset, table.strides
        self.reopen_by(_open_table, (os.path.abspath(table.path), *place), with_labels=False)
        self.own(table.close)

    def _fetch(self, start: int, stop: int) -> tuple[StoredRows, int]:
        block = self._table[start:stop]
        return block, block.nbytes


def _open_table(
    path: str,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    offset: int,
    strides: tuple[int, ...],
) -> MemmapSource:
    return MemmapSource(StridedFileArray(path, shape, dtype, offset=offset, strides=strides))


def open_npy(path: str) -> StridedFileArray:
    """Array of a `.npy` file, of one or two dimensions.

    InputError is raised for objects, for no table, and for a file shorter than its header says.
    """
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
            _check_header(shape, dtype, os.fstat(file.fileno()).st_size - offset)
    except (ValueError, OSError, EOFError, TypeError, ArithmeticError, RecursionError) as error:
        raise InputError(
            f"{path} cannot be read as a .npy file ({error}); write it with numpy.save"
        ) from error
    if len(shape) != 1:
        check_shape(path, shape)
    strides = [dtype.itemsize]
    for length in shape[:-1] if in_columns else shape[:0:-1]:
        strides.append(strides[-1] * length)
    strides = strides if in_columns else strides[::-1]
    return StridedFileArray(path, shape, dtype, offset=offset, strides=tuple(strides))


def _check_header(shape: tuple[Any, ...], dtype: np.dtype[Any], n_bytes: int) -> None:
    """Raise ValueError unless the array has a type that is loaded and fits into the file."""
    if any(type(length) is not int or length < 0 for length in shape):
        raise ValueError(f"its shape is said to be {shape}")
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are not loaded")
    if math.prod(shape) * dtype.itemsize > n_bytes:
        raise ValueError(f"it has {n_bytes} bytes for values of shape {shape} and type {dtype}")


def find_in_file(array: AnyArray) -> StridedFileArray | None:
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
    offset = page_start + _address(array) - _address(np.frombuffer(base, dtype=np.uint8))
    return StridedFileArray(
        str(named.filename), array.shape, array.dtype, offset=offset, strides=array.strides
    )


def _address(array: AnyArray) -> int:
    return int(array.__array_interface__["data"][0])
