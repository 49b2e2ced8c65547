"""Arrays in RAM or in HDF5, `.npy`, zarr or Dask; any number of threads may read slices of them.

Uncompressed numbers are read at their offsets in the file. A short slice takes a tenth of the time
that HDF5 takes, and no global lock. Nothing is memory-mapped: mapped pages would count as resident
memory, and if a mapped file is cut short, the process ends without an error. This module imports
neither zarr nor Dask, since the caller has opened their arrays.
"""

from __future__ import annotations

import io
import logging
import math
import mmap
import os
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import h5py
import numpy as np

from ooc_fw.data.formats import reading
from ooc_fw.data.rows import AnyArray, Int64Array
from ooc_fw.system.errors import DamageError, InputError
from ooc_fw.system.files import read_at

logger = logging.getLogger(__name__)

Read: TypeAlias = Callable[[int, int], AnyArray]  # reads the elements or rows start:stop


class ReadArray:
    """An array whose parts come from a function ``read(start, stop)``."""

    kept_bytes = 0  # most bytes that stay in memory between two reads
    chunk_rows: int | None = None  # rows or values of a chunk; None without chunks
    compressed = False  # whether each read decodes whole chunks

    _read: Read  # of a subclass with a file: a bound method in the array would keep both alive

    def __init__(self, shape: tuple[int, ...], dtype: Any, read: Read | None = None) -> None:
        self.shape = tuple(shape)
        self.dtype = np.dtype(dtype)
        if read is not None:
            self._read = read

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: slice) -> AnyArray:
        start, stop, _ = key.indices(len(self))
        return self._read(start, max(start, stop))

    def close(self) -> None:
        """Close the file if it was opened for this array alone."""


class DecodedChunks(ReadArray):
    """An array whose chunks are compressed or computed; a read may start and stop anywhere.

    ``decode(start, stop)`` returns the rows of consecutive chunks. `borders` holds the first row of
    each chunk, and then the number of rows. A chunk is kept if a read uses only a part of it. A
    pass in order therefore decodes each chunk once, for any size of its blocks.
    """

    compressed = True

    def __init__(
        self, shape: tuple[int, ...], dtype: Any, decode: Read, borders: Int64Array
    ) -> None:
        super().__init__(shape, dtype, decode)
        places: list[int] = borders.tolist()
        self._borders = places
        # A word is counted as 512 bytes.
        item_bytes = 512 if self.dtype.hasobject else self.dtype.itemsize
        row_bytes = item_bytes * math.prod(shape[1:])
        self.chunk_rows = int(np.diff(borders).max(initial=0))
        chunk_bytes = max(1, self.chunk_rows * row_bytes)
        self.kept_bytes = min(max(32 << 20, 2 * chunk_bytes), shape[0] * row_bytes)
        keep = lru_cache(max(2, self.kept_bytes // chunk_bytes))
        self._chunk = keep(lambda number: decode(places[number], places[number + 1]))
        self._lock = threading.Lock()

    def __getitem__(self, key: slice) -> AnyArray:
        """Rows ``key.start:key.stop``; a view if all of them are in one kept chunk."""
        start, stop, _ = key.indices(len(self))
        if stop <= start:
            return self._read(start, start)
        borders = self._borders
        first = bisect_left(borders, start)  # the first border in start:stop, and then the last
        last = bisect_right(borders, stop) - 1
        pieces = []
        if start < borders[first]:
            pieces.append(self._part(first - 1, start, stop))
        if first < last:
            pieces.append(self._read(borders[first], borders[last]))
        if first <= last and borders[last] < stop:
            pieces.append(self._part(last, borders[last], stop))
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _part(self, number: int, start: int, stop: int) -> AnyArray:
        """The rows of a chunk that are in ``start:stop``; one thread decodes at a time."""
        begin = self._borders[number]
        with self._lock:
            return self._chunk(number)[start - begin : stop - begin]


class FileArray(ReadArray):
    """A vector or table of numbers in a file, which is read at its offsets.

    Each chunk has `chunk_rows` elements or rows (by default all) and begins at one of the `offsets`
    in the file. With `by_column`, a table is one chunk, in which columns follow each other.
    """

    _file: io.FileIO

    def __init__(
        self,
        path: str,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        offsets: Sequence[int] | Int64Array,
        chunk_rows: int | None = None,
        *,
        by_column: bool = False,
    ) -> None:
        super().__init__(shape, dtype)
        self.path = path
        self.chunk_rows = chunk_rows
        self._by_column = by_column
        self._offsets = offsets
        with reading(path):
            self._file = open(path, "rb", buffering=0)

    def _read(self, start: int, stop: int) -> AnyArray:
        """Elements or rows; those of a table may be stored one after the other, or by columns."""
        if self._by_column:
            return self._read_columns(start, stop)
        out = np.empty((stop - start, *self.shape[1:]), dtype=self.dtype)
        row_bytes = self.dtype.itemsize * math.prod(self.shape[1:])
        length = self.chunk_rows or max(1, len(self))
        position = start
        while position < stop:
            chunk, inside = divmod(position, length)
            end = min(stop, position + length - inside)
            place = int(self._offsets[chunk]) + inside * row_bytes
            self._fill(out[position - start : end - start], place)
            position = end
        return out

    def _read_columns(self, start: int, stop: int) -> AnyArray:
        """Rows of a table whose columns are stored one after the other."""
        columns = np.empty((self.shape[1], stop - start), dtype=self.dtype)
        for j, column in enumerate(columns):
            place = int(self._offsets[0]) + (j * len(self) + start) * self.dtype.itemsize
            self._fill(column, place)
        return columns.T

    def _fill(self, out: AnyArray, offset: int) -> None:
        """Fill the C-contiguous array `out` with the bytes from `offset` on."""
        view = out.reshape(-1).view(np.uint8).data
        while view:
            with reading(self.path):
                count = read_at(self._file, view, offset)
            if count == 0:
                raise DamageError(
                    f"{self.path} was cut short: {len(view)} bytes are not in it; write it again"
                )
            view = view[count:]
            offset += count

    def close(self) -> None:
        """Close the file."""
        if hasattr(self, "_file"):  # else it could not be opened
            self._file.close()

    __del__ = close


Sliceable: TypeAlias = ReadArray | AnyArray  # its slices are arrays


def open_array(node: Any) -> Any:
    """Return a sliceable form of any array; InputError if it lacks some of its values."""
    if isinstance(node, ReadArray):
        return node
    if isinstance(node, h5py.Dataset):
        return open_hdf5(node)
    if is_zarr(node):
        return _open_zarr(node)
    if hasattr(node, "__dask_graph__") and isinstance(getattr(node, "chunks", None), tuple):
        return _open_dask(node)
    check_unmasked(node)
    try:
        array = np.asarray(node)
    except (ValueError, TypeError) as error:  # rows of different lengths, or on a GPU
        raise InputError(f"{type(node).__name__} cannot be made an array ({error})") from error
    in_file = find_in_map(array) if array.ndim == 2 and array.size else None
    return array if in_file is None else in_file


def is_zarr(node: Any) -> bool:
    """Whether `node` is an array or a group of zarr."""
    return type(node).__module__.partition(".")[0] == "zarr"


def path_of(node: Any) -> str:
    """The file or store of an array or a group; "array" if it has none."""
    if isinstance(node, FileArray):
        return node.path
    if isinstance(node, h5py.Group | h5py.Dataset):
        return str(node.file.filename)
    if is_zarr(node):
        return str(getattr(node.store, "root", node.store))
    return "AnnData" if isinstance(node, dict) else "array"


def place_of(node: Any) -> str:
    """The file of a node of HDF5 or zarr, and the path in the file."""
    return f"{path_of(node)}: {node.name!r}"


def check_unmasked(data: Any) -> None:
    """Raise InputError for a masked array, whose masked values others would use."""
    if isinstance(data, np.ma.MaskedArray):
        raise InputError("rows and labels cannot be masked arrays; fill them (filled() in numpy)")


def open_npy(path: str) -> FileArray:
    """Open the array of a `.npy` file; numpy raises an error if the file is too short for it."""
    with reading(path), np.errstate(over="raise"):
        # The map only tells type, shape and offset. None of its pages is read.
        try:
            found = find_in_map(np.lib.format.open_memmap(path, mode="r"))
        except ValueError as error:
            if "Python objects" not in str(error):
                raise
            raise InputError(
                f"{path} holds Python objects; save words with y.astype(str)"
            ) from None
    assert found is not None
    return found


def find_in_map(array: AnyArray) -> FileArray | None:
    """The file and place of a view of a memory map; None for a private map and other arrays."""
    base: Any = array
    named: np.memmap[Any, Any] | None = None
    while isinstance(base, np.ndarray):
        if isinstance(base, np.memmap) and base.filename is not None:
            named = base
        base = base.base
    if named is None or not isinstance(base, mmap.mmap) or named.mode == "c":
        return None
    by_column = not array.flags.c_contiguous
    if by_column and not array.flags.f_contiguous:
        raise InputError(f"this view of {named.filename} is not in one piece of it; copy the view")
    # A view has the `offset` of the whole map, so its own offset is computed from the addresses.
    page_start = named.offset - named.offset % mmap.ALLOCATIONGRANULARITY
    place = page_start + array.ctypes.data - np.frombuffer(base, dtype=np.uint8).ctypes.data
    return FileArray(str(named.filename), array.shape, array.dtype, [place], by_column=by_column)


def open_hdf5(dataset: Any) -> FileArray | ReadArray:
    """Return a sliceable form of a data set; InputError if it lacks some of its values.

    Compressed chunks are decoded once and kept for the next read, because HDF5 itself keeps no
    chunk larger than its cache. Words take much more memory than disk space, and are not kept.
    """
    properties = dataset.id.get_create_plist()
    filters = [properties.get_filter(place)[0] for place in range(properties.get_nfilters())]
    if not all(map(h5py.h5z.filter_avail, filters)):
        with reading(path_of(dataset)):
            import hdf5plugin  # noqa: F401  (registers its filters on import)
    check_storage(dataset)
    in_file = None if filters else find_in_file(dataset)
    if in_file is not None:
        return in_file
    if filters and not dataset.dtype.hasobject:
        return _in_chunks(dataset, (dataset.chunks[0], *dataset.shape[1:]), dataset.dtype)
    array = ReadArray(dataset.shape, dataset.dtype, _reader(dataset, dataset.dtype))
    array.chunk_rows = dataset.chunks[0] if dataset.chunks else None
    array.compressed = bool(filters)
    return array


def check_storage(dataset: Any) -> None:
    """Raise InputError unless all values of a data set were written, and into its own file.

    For other values HDF5 would return its fill value.
    """
    shape = dataset.shape
    if shape is None or dataset.is_virtual or dataset.external:
        is_whole = False
    elif dataset.chunks and dataset.size:
        lengths = zip(shape, dataset.chunks, strict=True)
        n_chunks = math.prod(-(-length // chunk) for length, chunk in lengths)
        is_whole = dataset.id.get_num_chunks() == n_chunks
    else:
        is_whole = dataset.id.get_storage_size() >= dataset.nbytes
    if not is_whole:
        raise DamageError(
            f"{place_of(dataset)}, of shape {shape}, has values that were never written, or are in "
            f"other files; write all of them into this one"
        )


def is_plain_file(file: Any) -> bool:
    """Whether an HDF5 file is one file on disk that is open for reading only."""
    return file.mode == "r" and file.driver == "sec2" and os.path.isfile(file.filename)


def find_in_file(dataset: Any) -> FileArray | None:
    """Place of uncompressed values, after `check_storage`; None if only HDF5 can read them."""
    shape, chunks = dataset.shape, dataset.chunks
    is_plain = h5py.h5t.py_create(dataset.dtype, logical=True).equal(dataset.id.get_type())
    is_plain &= dataset.dtype.kind in "biuf" and dataset.size > 0
    is_plain &= is_plain_file(dataset.file) and not dataset.file.userblock_size
    if is_plain and chunks is not None and chunks[1:] == shape[1:]:
        offsets = np.empty(-(-shape[0] // chunks[0]), dtype=np.int64)

        def note(chunk: Any) -> None:
            offsets[chunk.chunk_offset[0] // chunks[0]] = chunk.byte_offset

        dataset.id.chunk_iter(note)
        return FileArray(dataset.file.filename, shape, dataset.dtype, offsets, chunks[0])
    place = dataset.id.get_offset()  # None if the values are not in one piece
    if not is_plain or place is None:
        return None
    return FileArray(dataset.file.filename, shape, dataset.dtype, [place])


def _reader(node: Any, dtype: Any) -> Read:
    """Function that reads rows of an array through the library that opened it."""
    path = path_of(node)

    def read(start: int, stop: int) -> AnyArray:
        with reading(path):
            return np.asarray(node[start:stop], dtype=dtype)

    return read


def _in_chunks(node: Any, chunk: tuple[int, ...], dtype: Any) -> DecodedChunks:
    """An array in chunks of this shape; InputError if chunks are too large or too many for RAM."""
    n_rows = node.shape[0]
    width = math.prod(node.shape[1:])  # chunks of some columns are decoded with their neighbours
    if chunk[0] * width * node.dtype.itemsize > 2 << 30 or n_rows // chunk[0] > 10**8:
        raise InputError(
            f"{place_of(node)}, of shape {tuple(node.shape)}, is in chunks of {tuple(chunk)} "
            f"values, and a chunk is decoded whole; write it in chunks of a few MiB"
        )
    borders = np.r_[np.arange(0, n_rows, chunk[0]), n_rows]
    return DecodedChunks(node.shape, dtype, _reader(node, dtype), borders)


def _open_zarr(node: Any) -> DecodedChunks:
    """Open an array of zarr; warn of absent chunks, which an interrupted program leaves."""
    dtype = np.dtype(node.dtype)
    found = _in_chunks(node, node.chunks, dtype if dtype.kind in "biuf" else object)
    # zarr reads the fill value for an absent chunk; by default it does not write such chunks.
    n_absent = node.nchunks - node.nchunks_initialized
    if n_absent > 0:  # a shard counts all its chunks as initialized
        said = "%s: %d of its %d chunks are absent, and their values are taken to be %s"
        logger.warning(said, place_of(node), n_absent, node.nchunks, node.fill_value)
    return found


def _open_dask(node: Any) -> DecodedChunks:
    """Open an array of Dask; its blocks are computed whole."""
    if any(map(math.isnan, node.shape)):
        raise InputError("the dask array must have known lengths; see its compute_chunk_sizes()")
    borders = np.cumsum([0, *node.chunks[0]], dtype=np.int64)
    return DecodedChunks(node.shape, node.dtype, _reader(node, node.dtype), borders)
