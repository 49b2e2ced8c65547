"""Arrays in `.npy` and `.npz` files, and views of memory maps, each at its place in the file."""

from __future__ import annotations

import math
import mmap
import os
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np

from ooc_fw.data.arrays import ArrayNode, FileArray, Group, Node, ReadArray
from ooc_fw.data.formats import check_regular
from ooc_fw.data.rows import AnyArray, check_shape
from ooc_fw.system.errors import InputError, unreadable

_DAMAGED = (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error)


class NumpyArray(ArrayNode):
    """An array that is open: that of a `.npy` file, of a member of an archive or of a map."""

    labels_hint = "give them as another .npy file (--labels y.npy, or labels= in Python)"

    def __init__(self, path: str, array: Any) -> None:
        self.path, self._array = path, array
        self.shape, self.dtype = array.shape, array.dtype

    def open(self) -> Any:
        """See `ArrayNode.open`."""
        return self._array

    def files(self) -> dict[str, int | None]:
        """See `Node.files`."""
        return {self.path: None}


def open_npy(path: str) -> FileArray:
    """Array of a `.npy` file, all of whose values are in the file."""
    check_regular(path)
    try:
        with open(path, "rb") as file:
            shape, in_columns, dtype = _read_header(file)
            shape += dtype.shape  # a type of several numbers makes columns
            dtype, offset = dtype.base, file.tell()
            _check_header(shape, dtype, os.fstat(file.fileno()).st_size - offset)
    except (ValueError, OSError, EOFError, TypeError, ArithmeticError, RecursionError) as error:
        raise InputError(
            f"{path} cannot be read as a .npy file ({error}); write it with numpy.save"
        ) from error
    if len(shape) != 1:
        check_shape(path, shape)
    strides = (dtype.itemsize, dtype.itemsize * shape[0]) if in_columns and shape[1:] else None
    return FileArray(path, shape, dtype, (offset,), strides=strides)


def _read_header(file: Any) -> tuple[tuple[Any, ...], bool, np.dtype[Any]]:
    """Shape, whether columns come one after the other, and type of an array in a file."""
    first = np.lib.format.read_magic(file) == (1, 0)
    names = np.lib.format
    return (names.read_array_header_1_0 if first else names.read_array_header_2_0)(file)


def _check_header(shape: tuple[Any, ...], dtype: np.dtype[Any], n_bytes: int) -> None:
    """Raise ValueError unless the array has a type that is loaded and fits into the file."""
    if any(type(length) is not int or length < 0 for length in shape):
        raise ValueError(f"its shape is said to be {shape}")
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are not loaded")
    if math.prod(shape) * dtype.itemsize > n_bytes:
        raise ValueError(f"it has {n_bytes} bytes for values of shape {shape} and type {dtype}")


def find_in_map(array: AnyArray) -> FileArray | None:
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
    path = str(named.filename)
    return FileArray(path, array.shape, array.dtype, (offset,), strides=array.strides)


# -- archives ------------------------------------------------------------------------------------


class NpzGroup(Group):
    """The arrays of an `.npz` file, each of which is read front to back.

    That of a scipy matrix says its form and shape in arrays, which are attributes here.
    """

    def __init__(self, path: str, resources: ExitStack) -> None:
        self.path, self._arrays = path, {}
        try:
            archive = resources.enter_context(zipfile.ZipFile(path))
            items = [item for item in archive.infolist() if item.filename.endswith(".npy")]
            for item in items:
                array = _open_member(path, archive, item)
                self._arrays[item.filename.removesuffix(".npy")] = NumpyArray(path, array)
        except _DAMAGED as error:
            raise InputError(
                f"{path} cannot be read as .npz ({error}); write it with numpy.savez"
            ) from error
        self.compressed = any(item.compress_type != zipfile.ZIP_STORED for item in items)
        for name, node in self._arrays.items():
            node.name = name
        if {"indptr", "shape"} <= set(self._arrays):
            self.attrs = {"shape": self._arrays.pop("shape").open()[:]}
            if "format" in self._arrays:
                self.attrs["encoding-type"] = self._arrays.pop("format").open()[:].item()

    def get(self, place: Any) -> Node | None:
        """See `Group.get`."""
        return self._arrays.get(place) if place else self

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)


def _open_member(path: str, archive: zipfile.ZipFile, item: zipfile.ZipInfo) -> ReadArray:
    """An array in an archive, of which each part that is read is the next one."""
    name, stream = f"{path}: {item.filename}", archive.open(item)
    shape, in_columns, dtype = _read_header(stream)
    shape = shape or (1,)
    _check_header(shape, dtype, item.file_size - stream.tell())

    def read(start: int, stop: int) -> AnyArray:
        if in_columns and len(shape) > 1:
            raise InputError(
                f"{name} is stored column by column, and inside an .npz file only whole; "
                f"save it with numpy.save, or its numpy.ascontiguousarray with numpy.savez"
            )
        part = stop - start, *shape[1:]
        n_bytes = math.prod(part) * dtype.itemsize
        try:
            data = stream.read(n_bytes)
        except _DAMAGED as error:
            damage = InputError(f"{name} is damaged ({error}); fetch it again")
            raise unreadable(name, error) or damage from error
        if len(data) < n_bytes:
            raise InputError(f"{name} is cut short; fetch it again")
        return np.frombuffer(data, dtype=dtype).reshape(part)

    return ReadArray(shape, dtype, read)
