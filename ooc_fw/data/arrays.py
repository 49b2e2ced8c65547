"""Arrays and groups in files as every format opens them, and arrays that are read by slices.

A format has a class of `ArrayNode` and one of `Group`; those of numpy's files are here. Nothing is
memory-mapped: mapped pages would count as resident memory, and access to a map of a file that was
cut short ends the process instead of raising an error.
"""

from __future__ import annotations

import math
import mmap
import os
import threading
import zipfile
import zlib
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from tokenize import TokenError
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from ooc_fw.data.formats import check_regular
from ooc_fw.data.rows import AnyArray, Int64Array, check_shape
from ooc_fw.system.errors import DamageError, InputError, unreadable

READ_BYTES = 8 << 20  # bytes fetched at once from a table whose rows have other data between them
_DAMAGED_ZIP = (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error)
KEPT_BYTES = 32 << 20  # decoded bytes that are kept of one array, or two chunks if these are larger


class Sliceable(Protocol):
    """A sequence of numbers, or of rows of them, that returns contiguous parts as arrays."""

    def __len__(self) -> int: ...

    def __getitem__(self, key: slice, /) -> AnyArray: ...


class Node:
    """An array or a group in a file or store."""

    path: str  # the file or store, for messages
    name = ""  # path of the node in it
    attrs: Mapping[str, Any] = MappingProxyType({})

    @property
    def place(self) -> str:
        """File, and path in it."""
        return f"{self.path}: {self.name!r}" if self.name else self.path

    def files(self) -> dict[str, int | None]:
        """Files whose change would change the values, with a descriptor where one is open."""
        return {}


class Group(Node, ABC):
    """Arrays and groups by name; iteration yields the names."""

    @abstractmethod
    def get(self, place: Any) -> Node | None:
        """Array or group at a path below this group, or itself for ""; None if there is none."""

    @abstractmethod
    def __iter__(self) -> Iterator[str]: ...


class ArrayNode(Node):
    """An array; one that has slices is open already."""

    shape: tuple[int, ...]
    dtype: Any
    chunk_rows: int | None = None  # rows or values of a chunk, None without chunks
    compressed = False  # whether a chunk is decoded whole, whatever is asked of it
    kept_bytes = 0  # most bytes that stay in memory between two reads, once it is open
    overhead_bytes = 0  # most bytes that a read takes in addition to its result
    n_chunks = 0  # chunks that are decoded by themselves; 0 where few bytes are read as quickly

    @property
    def is_text(self) -> bool:
        """Whether the values are words."""
        return bool(self.dtype.kind in "SU" or self.dtype.hasobject)

    def open(self) -> Any:
        """Slices of the array; InputError when some of its values are not there."""
        return self

    def check_written(self, *, refuse_end: bool = False) -> None:
        """Warn of values that were never written, if `open` does not tell them.

        InputError, with `refuse_end`, if they are the last ones: an interrupted program leaves
        such arrays behind.
        """

    def close(self) -> None:
        """Close what was opened for these slices alone."""


def check_vector(node: Node | None, kinds: str = "", length: int | None = None) -> Any:
    """`ArrayNode` of one dimension; InputError for what is none, or of another type or length."""
    if not isinstance(node, ArrayNode) or len(node.shape) != 1:
        place = "a part of the file" if node is None else node.place
        raise InputError(f"{place} must be an array of one dimension; write it again")
    if kinds and node.dtype.kind not in kinds:
        what = "whole numbers" if kinds == "iu" else "numbers"
        raise InputError(f"{node.place} is of type {node.dtype}, but must be {what}; convert it")
    if length is not None and node.shape[0] != length:
        raise DamageError(f"{node.place} has {node.shape[0]} values, not {length}; write it again")
    return node


class ReadArray(ArrayNode):
    """An array of which ``read(start, stop)`` returns a part."""

    def __init__(
        self, shape: tuple[int, ...], dtype: Any, read: Callable[[int, int], AnyArray]
    ) -> None:
        self.path, self.shape, self.dtype = "array", tuple(shape), np.dtype(dtype)
        self._read = read

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: slice) -> AnyArray:
        start, stop, _ = key.indices(len(self))
        return self._read(start, max(start, stop))


def is_one_column(shape: tuple[int, ...]) -> bool:
    """Whether an array of this shape has one value for each row."""
    return len(shape) == 1 or (len(shape) == 2 and shape[1] == 1)


def only_column(array: Any) -> Any:
    """The column of an array that has a single one; any other array as it is."""
    if len(array.shape) == 1 or not is_one_column(array.shape):
        return array
    return ReadArray(array.shape[:1], array.dtype, lambda start, stop: array[start:stop][:, 0])


class DecodedChunks(ReadArray):
    """An array in compressed chunks, or in parts to be computed, that is read in any blocks.

    The first and the last chunk of a read are kept if it uses only a part of them, so that a pass
    in order decodes each chunk once, whatever its blocks are. When several threads need a chunk at
    the same time, one decodes it and the others wait.

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
        super().__init__(shape, dtype, decode)
        # The last chunk may end below the last border.
        self._borders: Sequence[int] = (
            range(0, shape[0] + ends, ends) if isinstance(ends, int) else [0, *ends.tolist()]
        )
        row_bytes = self.dtype.itemsize * math.prod(shape[1:])
        longest = ends if isinstance(ends, int) else int(np.diff(ends, prepend=0).max(initial=0))
        chunk_bytes = min(longest, shape[0]) * row_bytes
        self.kept_bytes = min(max(KEPT_BYTES, 2 * chunk_bytes), shape[0] * row_bytes)
        self._most_kept = max(2, self.kept_bytes // max(1, chunk_bytes))
        # A chunk as compressed and as decompressed, and what is kept.
        self.overhead_bytes = 2 * chunk_bytes + self.kept_bytes
        self.bytes_decoded = 0
        self._kept: OrderedDict[int, Future[AnyArray]] = OrderedDict()
        self._choosing = threading.Lock()

    def __getitem__(self, key: slice) -> AnyArray:
        """Rows ``key.start:key.stop``; a view of a kept chunk if they all lie in it."""
        start, stop, _ = key.indices(len(self))
        if stop <= start:
            return self._decode(start, start)
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
            pieces.append(self._decode(low, high))
        if tail:
            pieces.append(self._chunk(last)[: stop - high])
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _chunk(self, number: int) -> AnyArray:
        """A chunk, which is kept until others have been used since."""
        with self._choosing:
            mine = number not in self._kept
            promise = self._kept.setdefault(number, Future())
            self._kept.move_to_end(number)
        if mine:
            try:
                end = min(self._borders[number + 1], len(self))
                promise.set_result(self._decode(self._borders[number], end))
            except BaseException as error:
                with self._choosing:
                    del self._kept[number]
                promise.set_exception(error)
            with self._choosing:  # a chunk on its way stays, lest others decode it, too
                done = [k for k, chunk in self._kept.items() if chunk.done()]
                for k in done[: -self._most_kept]:
                    del self._kept[k]
        return promise.result()

    def _decode(self, start: int, stop: int) -> AnyArray:
        """Rows of whole chunks, decoded and counted."""
        rows = self._read(start, stop)
        with self._choosing:
            self.bytes_decoded += rows.nbytes
        return rows


class FileArray(ArrayNode):
    """A vector or table in a file, of which contiguous parts are read by any number of threads.

    Chunks of `chunk_rows` elements or rows (all of them by default) begin at these `offsets` of the
    file. Neighbours along each axis are `strides` bytes apart, by default without gaps. InputError
    is raised for values in an order that would need scattered reads.
    """

    _descriptor = -1
    is_slice = False  # whether it is a part of what the file holds

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
                f"this view of {path} has neither its rows nor its columns in one piece; copy it"
            )
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise InputError(f"{path} cannot be opened: {error.strerror}") from error

    def files(self) -> dict[str, int | None]:
        return {self.path: None}

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: slice) -> AnyArray:
        """Elements or rows ``key.start:key.stop`` as stored, in a buffer of their own."""
        start, stop, _ = key.indices(len(self))
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
                    f"{self.path} was cut short: {len(view)} bytes are not in it; write it again"
                )
            view, offset = view[count:], offset + count

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        self.close()


def open_npy(path: str) -> FileArray:
    """Array of a `.npy` file, all of whose values are in the file."""
    check_regular(path)
    try:
        with open(path, "rb") as file:
            shape, in_columns, dtype = _read_header(file, os.fstat(file.fileno()).st_size)
            offset = file.tell()
    except (  # of numpy, which parses the header as Python
        *(ValueError, OSError, EOFError, TypeError, ArithmeticError, RecursionError),
        *(SyntaxError, TokenError),
    ) as error:
        raise InputError(
            f"{path} cannot be read as a .npy file ({error}); write it with numpy.save"
        ) from error
    if len(shape) != 1:
        check_shape(path, shape)
    strides = (dtype.itemsize, dtype.itemsize * shape[0]) if in_columns and shape[1:] else None
    return FileArray(path, shape, dtype, (offset,), strides=strides)


def _read_header(file: Any, size: int) -> tuple[tuple[Any, ...], bool, np.dtype[Any]]:
    """Shape, whether columns come one after the other, and type of an array in a file.

    ValueError is raised unless its type is one that is loaded, and it fits into so many bytes.
    """
    form = np.lib.format
    first = form.read_magic(file) == (1, 0)
    read = form.read_array_header_1_0 if first else form.read_array_header_2_0
    shape, in_columns, dtype = read(file)
    shape += dtype.shape  # a type of several numbers makes columns
    dtype, n_bytes = dtype.base, size - file.tell()
    if any(type(length) is not int or length < 0 for length in shape):
        raise ValueError(f"its shape is said to be {shape}")
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are not loaded")
    if not dtype.itemsize:
        raise ValueError(f"its values are of type {dtype}, which has no bytes")
    if math.prod(shape) * dtype.itemsize > n_bytes:
        raise ValueError(f"it has {n_bytes} bytes for values of shape {shape} and type {dtype}")
    return shape, in_columns, dtype


def find_in_map(array: AnyArray) -> FileArray | None:
    """A view of a memory map, in its file; None for a private map, or what is none."""
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
    path, strides = str(named.filename), array.strides
    found = FileArray(path, array.shape, array.dtype, (offset,), strides=strides)
    found.is_slice = array.nbytes < named.nbytes
    return found


class NpzGroup(Group):
    """The arrays of an `.npz` file, each of which is read front to back."""

    def __init__(self, path: str, resources: ExitStack) -> None:
        self.path = path
        self._arrays: dict[str, ReadArray] = {}
        try:
            archive = resources.enter_context(zipfile.ZipFile(path))
            items = [item for item in archive.infolist() if item.filename.endswith(".npy")]
            for item in items:
                array = _open_member(path, archive, item)
                array.path, array.name = path, item.filename.removesuffix(".npy")
                self._arrays[array.name] = array
        except _DAMAGED_ZIP as error:
            raise InputError(
                f"{path} cannot be read as .npz ({error}); write it with numpy.savez"
            ) from error
        self.compressed = any(item.compress_type != zipfile.ZIP_STORED for item in items)
        if {"indptr", "shape"} <= set(self._arrays):
            self.attrs = {"shape": self._arrays.pop("shape")[:]}
            if "format" in self._arrays:
                self.attrs["encoding-type"] = self._arrays.pop("format")[:].item()

    def get(self, place: Any) -> Node | None:
        return self._arrays.get(place) if place else self

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)


def _open_member(path: str, archive: zipfile.ZipFile, item: zipfile.ZipInfo) -> ReadArray:
    """An array in an archive, of which each part that is read is the next one."""
    name, stream = f"{path}: {item.filename}", archive.open(item)
    shape, in_columns, dtype = _read_header(stream, item.file_size)
    shape = shape or (1,)

    def read(start: int, stop: int) -> AnyArray:
        if in_columns and len(shape) > 1:
            raise InputError(
                f"{name} is stored column by column; save it with numpy.save, and not in an .npz"
            )
        part = stop - start, *shape[1:]
        n_bytes = math.prod(part) * dtype.itemsize
        try:
            data = stream.read(n_bytes)
        except _DAMAGED_ZIP as error:
            damage = InputError(f"{name} is damaged ({error}); fetch it again")
            raise unreadable(name, error) or damage from error
        if len(data) < n_bytes:
            raise InputError(f"{name} is cut short; fetch it again")
        return np.frombuffer(data, dtype=dtype).reshape(part)

    return ReadArray(shape, dtype, read)
