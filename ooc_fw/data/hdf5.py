"""HDF5 files, checked before anything of them is read.

HDF5 itself returns fill values for what was never written or lies behind the end of a file. Here
all values are stored in the file that has the data set.
Uncompressed values are read at the offsets that HDF5 reports: in a tenth of the time for a short
slice, and without the library's global lock.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

import h5py
import numpy as np

from ooc_fw.data.arrays import DecodedChunks, FileArray, ReadArray, check_chunk
from ooc_fw.data.formats import check_regular
from ooc_fw.data.rows import AnyArray
from ooc_fw.system.errors import DamageError, InputError, unreadable

Stored: TypeAlias = Any  # an h5py.Dataset or h5py.Group; h5py has no type hints

# What h5py raises, depending on the place, for a file whose structure is damaged.
H5PY_ERRORS = (
    *(OSError, LookupError, RuntimeError, ValueError, TypeError),
    *(ArithmeticError, AttributeError, MemoryError, SystemError),
)
_LARGEST_BAND = 1 << 30  # decoded bytes up to which chunks that lie side by side are kept together


def open_file(path: str) -> Stored:
    """Open an HDF5 file for reading; HDF5 itself refuses one that was cut short."""
    check_regular(path)
    try:
        return h5py.File(path, "r")
    except H5PY_ERRORS as error:
        if isinstance(error, OSError) and "unable to lock file" in str(error):
            raise InputError(
                f"{path} is being written by another program; wait until that is done"
            ) from error
        damage = DamageError(f"{path} cannot be opened as HDF5 ({error}); write it again")
        raise unreadable(path, error) or damage from error


def is_model(root: Any) -> bool:
    """Whether the root of a file is that of a model."""
    return "kernel" in root.attrs and "support_vectors" in set(root)


def close_file(file: Stored) -> None:
    """Close an HDF5 file that may be damaged."""
    with suppress(*H5PY_ERRORS):
        file.close()


@contextmanager
def structure_errors(path: str) -> Iterator[None]:
    """Turn what h5py raises for a file that is damaged, or cannot be read, into a sentence."""
    try:
        yield
    except InputError:
        raise
    except H5PY_ERRORS as error:
        raise unreadable(path, error) or DamageError(
            f"{path} is damaged: its structure cannot be followed ({error}); restore a copy"
        ) from error


def is_plain_file(file: Stored) -> bool:
    """Whether it is one file on disk that nobody in this process writes to."""
    return file.mode == "r" and file.driver == "sec2" and os.path.isfile(file.filename)


def find_node(group: Stored, name: str) -> Stored:
    """Object at a path below `group`, or of its file if it begins with "/"; None without one."""
    try:
        return group[name] if name else group
    except KeyError as error:
        if re.search("doesn't exist|component not found|external", str(error)):
            return None
        raise  # it is damaged


def filters_of(dataset: Stored) -> list[int]:
    """Numbers of the filters of a data set."""
    properties = dataset.id.get_create_plist()
    return [properties.get_filter(place)[0] for place in range(properties.get_nfilters())]


def _check_filters(dataset: Stored) -> None:
    """Raise InputError when the compression of `dataset` is not installed."""
    for code in filters_of(dataset):
        if not h5py.h5z.filter_avail(code):
            with suppress(ImportError):
                import hdf5plugin  # noqa: F401  (registers its filters on import)
        if not h5py.h5z.filter_avail(code):
            raise InputError(
                f"{dataset.file.filename} is compressed with HDF5 filter {code}, which is not "
                f"installed; try: pip install 'ooc-fw[compression]'"
            )


def open_dataset(dataset: Stored) -> FileArray | ReadArray:
    """What slices of a data set are read from; InputError unless all its values are there.

    Where its values cannot be read by offset, compressed chunks are decoded once and kept for the
    next part: HDF5 itself keeps no chunk that is larger than its cache.
    """
    _check_filters(dataset)
    check_storage(dataset)
    in_file = find_in_file(dataset)
    if in_file is not None:
        return in_file
    path = dataset.file.filename

    def read(start: int, stop: int) -> AnyArray:
        try:
            return np.asarray(dataset[start:stop])
        except OSError as error:
            damage = f"{path} cannot be read ({error}); the file is damaged, write it again"
            raise DamageError(str(unreadable(path, error) or damage)) from error

    chunks = dataset.chunks
    # Words take many times what is stored, and are not kept.
    if filters_of(dataset) and dataset.dtype.kind != "O":
        check_chunk(f"{path}: {dataset.name!r}", dataset, chunks)
        band_bytes = chunks[0] * dataset.nbytes // max(1, dataset.shape[0])
        if chunks[1:] == dataset.shape[1:] or band_bytes <= _LARGEST_BAND:
            borders = np.r_[np.arange(0, dataset.shape[0], chunks[0]), dataset.shape[0]]
            return DecodedChunks(dataset.shape, dataset.dtype, read, borders)
    array = ReadArray(dataset.shape, dataset.dtype, read)
    array.chunk_rows = chunks[0] if chunks else None
    array.compressed = bool(filters_of(dataset))
    return array


def find_in_file(dataset: Stored) -> FileArray | None:
    """Where a data set that passed `check_storage` lies on disk; None if it is not plain there."""
    properties = dataset.id.get_create_plist()
    shape = dataset.shape
    if (
        not is_plain_file(dataset.file)
        or dataset.file.userblock_size
        or dataset.dtype.kind not in "biuf"
        or not h5py.h5t.py_create(dataset.dtype, logical=True).equal(dataset.id.get_type())
        or filters_of(dataset)
        or 0 in shape
    ):
        return None
    length = None
    layout = properties.get_layout()
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


def check_plain_tree(file: Stored) -> None:
    """Raise InputError unless all objects of a file of this program are its own, with values."""

    def foreign(name: str, link: Any) -> str | None:
        return None if isinstance(link, h5py.HardLink) else name

    def check(name: str, node: Stored) -> None:
        if isinstance(node, h5py.Dataset):
            check_storage(node)
            if node.id.get_storage_size() < node.nbytes:
                raise InputError(f"{name!r} is compressed, which no such file is")

    if (name := file.visititems_links(foreign)) is not None:
        raise InputError(f"{name!r} is a link to something else")
    file.visititems(check)


def check_storage(dataset: Stored) -> None:
    """Raise InputError unless all values of a data set were written, into its own file."""
    what = f"{dataset.file.filename}: {dataset.name!r}"
    properties = dataset.id.get_create_plist()
    if dataset.shape is None or properties.get_external_count() or dataset.is_virtual:
        raise InputError(f"{what} keeps its values in other files, or has none; copy them into it")
    stored = dataset.id.get_storage_size()
    absent = ""
    if properties.get_layout() == h5py.h5d.CHUNKED and dataset.size:
        lengths = zip(dataset.shape, dataset.chunks, strict=True)
        n_chunks = math.prod(-(-length // chunk) for length, chunk in lengths)
        n_absent = n_chunks - dataset.id.get_num_chunks()
        absent = f"{n_absent} of its {n_chunks} chunks were" if n_absent else ""
    elif stored < dataset.nbytes:
        absent = "its values were" if stored == 0 else f"all but {stored} bytes of its values were"
    if absent:
        raise DamageError(
            f"{what} is said to have {dataset.shape[0]} rows, but {absent} never written; write "
            f"all of it, or make it smaller"
        )
