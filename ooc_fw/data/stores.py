"""Files of HDF5, stores of zarr, and the arrays in them, or of Dask or in RAM, as slices to read.

HDF5 itself returns fill values for what was never written: here all values of a data set must be in
its own file. Uncompressed ones are read at the offsets that HDF5 reports: in a tenth of the time
for a short slice, and without the library's global lock. Neither zarr nor Dask is imported for what
was opened with it.
"""

from __future__ import annotations

import logging
import math
import os
import re
from contextlib import suppress
from typing import Any, TypeAlias

import h5py
import numpy as np

from ooc_fw.data.arrays import DecodedChunks, FileArray, ReadArray, find_in_map
from ooc_fw.data.formats import check_regular, reading
from ooc_fw.data.rows import AnyArray
from ooc_fw.system.errors import DamageError, InputError

logger = logging.getLogger(__name__)

Node: TypeAlias = Any  # an array or a group of h5py or zarr, or any other array


def open_file(path: str) -> Any:
    """Open an HDF5 file for reading; HDF5 itself refuses one that was cut short."""
    check_regular(path)
    with reading(path):
        return h5py.File(path, "r")


def close_file(file: Any) -> None:
    """Close an HDF5 file that may be damaged."""
    with suppress(Exception):
        file.close()


def open_store(path: str) -> Any:
    """The array or the group of a zarr store."""
    with reading(path):
        import zarr

        return zarr.open(path, mode="r")


def is_zarr(data: Any) -> bool:
    """Whether `data` is an array or a group of zarr."""
    return type(data).__module__.partition(".")[0] == "zarr"


def is_dask(data: Any) -> bool:
    """Whether `data` is an array of Dask."""
    return hasattr(data, "__dask_graph__") and isinstance(getattr(data, "chunks", None), tuple)


def is_group(node: Node) -> bool:
    """Whether a node is a group of arrays."""
    return isinstance(node, h5py.Group) or (is_zarr(node) and not hasattr(node, "shape"))


def path_of(node: Node) -> str:
    """The file or store that a node is in, or the kind of an array."""
    if isinstance(node, dict):
        return "AnnData"
    if isinstance(node, h5py.Group | h5py.Dataset):
        return str(node.file.filename)
    if is_zarr(node):
        return str(getattr(node.store, "root", getattr(node.store, "path", node.store)))
    if isinstance(node, FileArray):
        return node.path
    return "dask array" if is_dask(node) else "array"


def place_of(node: Node) -> str:
    """File, and path in it, for messages."""
    is_stored = isinstance(node, h5py.Group | h5py.Dataset) or is_zarr(node)
    return f"{path_of(node)}: {node.name!r}" if is_stored else path_of(node)


def find(group: Node, path: str) -> Any:
    """Array or group at a path below a group, or itself for ""; None if there is none."""
    if not path:
        return group
    if not isinstance(group, h5py.Group):
        return group.get(path.strip("/"))
    try:
        found = group[path]
    except KeyError as error:
        if re.search("doesn't exist|component not found|external", str(error)):
            return None
        raise  # it is damaged
    return found if isinstance(found, h5py.Group | h5py.Dataset) else None


def open_array(node: Node) -> Any:
    """What slices of an array are read from; InputError unless its values are there."""
    if isinstance(node, h5py.Dataset):
        return open_hdf5(node)
    if is_zarr(node):
        return _open_zarr(node)
    if is_dask(node):
        return _open_dask(node)
    if isinstance(node, ReadArray):
        return node
    check_unmasked(node)
    try:
        array = np.asarray(node)
    except ValueError as error:  # rows of different lengths
        raise InputError(f"{type(node).__name__} cannot be made an array ({error})") from error
    in_file = find_in_map(array) if array.ndim == 2 and array.size else None
    return array if in_file is None else in_file


def check_unmasked(data: Any) -> None:
    """Raise InputError for masked values, which numpy and scikit-learn take for values."""
    if isinstance(data, np.ma.MaskedArray) and np.ma.getmaskarray(data).any():
        raise InputError("values of a masked array are masked; fill them (filled() in numpy)")


def open_hdf5(dataset: Any) -> FileArray | ReadArray:
    """What slices of a data set are read from; InputError unless all its values are there.

    If its values cannot be read by offset, compressed chunks are decoded once and kept for the next
    part: HDF5 itself keeps no chunk that is larger than its cache.
    """
    is_compressed = _has_filters(dataset)
    check_storage(dataset)
    in_file = None if is_compressed else find_in_file(dataset)
    if in_file is not None:
        return in_file
    path = dataset.file.filename

    def read(start: int, stop: int) -> AnyArray:
        with reading(path):
            return np.asarray(dataset[start:stop])

    # Words take many times what is stored, and are not kept.
    if is_compressed and dataset.dtype.kind != "O":
        _check_chunk(dataset, (dataset.chunks[0], *dataset.shape[1:]))
        borders = np.r_[np.arange(0, dataset.shape[0], dataset.chunks[0]), dataset.shape[0]]
        return DecodedChunks(dataset.shape, dataset.dtype, read, borders)
    array = ReadArray(dataset.shape, dataset.dtype, read)
    array.chunk_rows = dataset.chunks[0] if dataset.chunks else None
    array.compressed = is_compressed
    return array


def _check_chunk(array: Any, chunk: tuple[int, ...]) -> None:
    """Raise InputError for chunks that would fill the memory when they are decoded or counted."""
    if math.prod(chunk) * array.dtype.itemsize > 2 << 30 or array.shape[0] // chunk[0] > 10**8:
        raise InputError(
            f"{place_of(array)}, of shape {tuple(array.shape)}, is in chunks of {tuple(chunk)} "
            f"values, which are decoded whole; write it in chunks of a few MiB"
        )


def _has_filters(dataset: Any) -> bool:
    """Whether a data set is compressed; InputError if its compression is not installed."""
    properties = dataset.id.get_create_plist()
    codes = [properties.get_filter(place)[0] for place in range(properties.get_nfilters())]
    if not all(map(h5py.h5z.filter_avail, codes)):
        with suppress(ImportError):
            import hdf5plugin  # noqa: F401  (registers its filters on import)
    for code in codes:
        if not h5py.h5z.filter_avail(code):
            raise InputError(
                f"{dataset.file.filename} is compressed with HDF5 filter {code}, which is not "
                f"installed; try: pip install 'ooc-fw[compression]'"
            )
    return bool(codes)


def is_plain_file(file: Any) -> bool:
    """Whether it is one file on disk that nobody in this process writes to."""
    return file.mode == "r" and file.driver == "sec2" and os.path.isfile(file.filename)


def find_in_file(dataset: Any) -> FileArray | None:
    """Where uncompressed values with `check_storage` lie on disk; None if they are not plain."""
    shape = dataset.shape
    if (
        not is_plain_file(dataset.file)
        or dataset.file.userblock_size
        or dataset.dtype.kind not in "biuf"
        or not h5py.h5t.py_create(dataset.dtype, logical=True).equal(dataset.id.get_type())
        or 0 in shape
    ):
        return None
    length = None
    layout = dataset.id.get_create_plist().get_layout()
    if layout == h5py.h5d.CONTIGUOUS:
        offsets = np.array([dataset.id.get_offset()], dtype=np.int64)
    elif layout == h5py.h5d.CHUNKED and dataset.chunks[1:] == shape[1:]:
        length = dataset.chunks[0]
        offsets = np.empty(-(-shape[0] // length), dtype=np.int64)

        def note(chunk: Any) -> None:
            offsets[chunk.chunk_offset[0] // length] = chunk.byte_offset

        dataset.id.chunk_iter(note)
    else:
        return None
    return FileArray(dataset.file.filename, shape, dataset.dtype, offsets, chunk_rows=length)


def check_storage(dataset: Any) -> None:
    """Raise InputError unless all values of a data set were written, into its own file."""
    properties = dataset.id.get_create_plist()
    what = place_of(dataset)
    if dataset.shape is None or properties.get_external_count() or dataset.is_virtual:
        raise InputError(f"{what} keeps its values in other files, or has none; copy them into it")
    if dataset.chunks and dataset.size:
        lengths = zip(dataset.shape, dataset.chunks, strict=True)
        n_expected = math.prod(-(-length // chunk) for length, chunk in lengths)
        n_absent = n_expected - dataset.id.get_num_chunks()
    else:
        n_expected = dataset.nbytes
        n_absent = n_expected - dataset.id.get_storage_size()
    if n_absent > 0:
        raise DamageError(
            f"{what} is said to have {dataset.shape[0]} rows, but {n_absent} of its {n_expected} "
            f"{'chunks' if dataset.chunks else 'bytes'} were never written; write all of it, or "
            f"make it smaller"
        )


def check_plain_tree(file: Any) -> None:
    """Raise InputError unless all objects of a file of this program are its own, with values."""

    def foreign(name: str, link: Any) -> str | None:
        return None if isinstance(link, h5py.HardLink) else name

    def check(name: str, node: Any) -> None:
        if isinstance(node, h5py.Dataset):
            check_storage(node)
            if node.id.get_storage_size() < node.nbytes:
                raise InputError(f"{name!r} is compressed, which no such file is")

    if (name := file.visititems_links(foreign)) is not None:
        raise InputError(f"{name!r} is a link to something else")
    file.visititems(check)


def _open_zarr(stored: Any) -> DecodedChunks:
    """An array of zarr; absent chunks, which an interrupted program leaves, are warned of."""
    _check_chunk(stored, stored.shards or stored.chunks)
    dtype = np.dtype(stored.dtype if np.dtype(stored.dtype).kind in "biuf" else object)
    place = place_of(stored)
    # zarr reads absent chunks as its fill value, and leaves chunks of it out by default.
    local = os.path.isdir(getattr(stored.store, "root", ""))
    n_absent = stored.nchunks - stored.nchunks_initialized if local else 0
    if n_absent:
        said = "%s: %d of its %d chunks are absent, and their values are taken to be %r"
        fill = np.asarray(stored.fill_value).tolist()
        logger.warning(said, place, n_absent, stored.nchunks, fill)

    def decode(start: int, stop: int) -> AnyArray:
        with reading(place):
            return np.asarray(stored[start:stop]).astype(dtype, copy=False)

    borders = np.r_[np.arange(0, stored.shape[0], stored.chunks[0]), stored.shape[0]]
    return DecodedChunks(stored.shape, dtype, decode, borders)


def _open_dask(array: Any) -> DecodedChunks:
    """An array of Dask, whose blocks are computed whole."""
    if any(map(math.isnan, array.shape)) or not isinstance(array._meta, np.ndarray):
        raise InputError(
            "the dask array must have known lengths (see its compute_chunk_sizes()) and blocks "
            "that are arrays of numpy (see its map_blocks())"
        )

    def decode(start: int, stop: int) -> AnyArray:
        return np.asarray(array[start:stop].compute())

    borders = np.cumsum([0, *array.chunks[0]], dtype=np.int64)
    return DecodedChunks(array.shape, array.dtype, decode, borders)
