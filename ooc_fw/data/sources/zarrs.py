"""Rows in zarr stores of versions 2 and 3: arrays, groups of X and y, AnnData; here or remote."""

from __future__ import annotations

import bz2
import lzma
import math
import os
import zlib
from contextlib import suppress
from itertools import product
from types import SimpleNamespace
from typing import Any, BinaryIO

import numpy as np

from ooc_fw.data.attributes import as_text
from ooc_fw.data.formats import ZARR_METADATA, stored_bytes
from ooc_fw.data.remote import is_url
from ooc_fw.data.rows import AnyArray
from ooc_fw.data.sources.annotated import (
    Labels,
    Missing,
    check_missing,
    column_labels,
    column_names,
    feature_names,
    find_column,
    is_array,
    is_column,
    with_missing_numbers,
    without_missing,
)
from ooc_fw.data.sources.base import CSRSource, FileStamp, RowSource, Sliceable, check_width
from ooc_fw.data.sources.chunked import DecodedChunks, open_chunked
from ooc_fw.data.sources.hdf5 import CSR_PARTS
from ooc_fw.data.sources.opening import structure_errors
from ooc_fw.system.errors import DamageError, InputError

_SMALL_CHUNK, _LARGEST_CHUNK = 64 << 20, 2 << 30
"""Bytes that any chunk may decode to, and that the values of a chunk may take."""

_MOST_ACROSS = 1 << 20  # chunks side by side, all of which are read for a row
# Values from which there must be a byte for so many: absent chunks are zeros, and a store may
# declare any number of them.
_MANY_VALUES, _LARGEST_RATIO = 1 << 30, 1 << 20
_DECOMPRESSORS: dict[str, Any] = {
    "zlib": zlib.decompressobj,
    "bz2": bz2.BZ2Decompressor,
    "lzma": lzma.LZMADecompressor,
}
_WORD_BYTES = 512  # that the memory plan counts for each word of a decoded chunk
_OTHER_ROWS = "name its rows (--x-name, or x_name= in Python)"


def open_store(
    path: str,
    labels: Sliceable | None = None,
    *,
    x_name: str = "X",
    y_name: str | None = "y",
    missing_labels: Missing = "refuse",
) -> RowSource:
    """Open the rows and labels of a store by their names in it; `labels` replace its own.

    A `y_name` of None stands for no labels.
    """
    with structure_errors(path):
        return open_root(
            open_zarr(path),
            labels,
            name=path,
            x_name=x_name,
            y_name=y_name,
            missing_labels=missing_labels,
        )


def is_group(data: Any) -> bool:
    """Whether `data` is a group of zarr, which need not be imported."""
    return type(data).__module__.partition(".")[0] == "zarr" and not is_array(data)


def open_root(
    root: Any,
    labels: Sliceable | None,
    *,
    name: str,
    x_name: str,
    y_name: str | None,
    missing_labels: Missing,
) -> RowSource:
    """Open the rows of an array or group of zarr; other arguments are those of `open_store`."""
    path = name
    rows = find_rows(root, x_name, path)
    found = None if labels is None else Labels(labels)
    if found is None and y_name is not None and not is_array(root):
        found = find_labels(root, y_name, path)
    if found is not None:
        check_missing(found, f"{path}: {y_name!r}", missing_labels)
    values = None if found is None else found.values
    source: RowSource
    if is_array(rows):
        source = open_chunked(_CheckedArray(rows), values, name=path)
    else:
        source = _open_csr(rows, values, path)
    if not is_url(path):
        folder = os.path.join(path, *getattr(rows, "path", "").split("/"))
        stamped = [os.path.join(folder, name) for name in ZARR_METADATA]
        source.stamps += [FileStamp(name) for name in stamped if os.path.isfile(name)]
    source.labels_hint = "name its labels (--label, or y_name= in Python)"
    if not is_array(root):
        source.columns = find_names(root, x_name, source.n_features)
        if known := column_names(root, _find):
            source.labels_hint += f": it has {', '.join(known)}"
    return source if found is None else without_missing(source, found)


def open_zarr(path: str) -> Any:
    """The array or the group of a store; InputError without the package, DamageError if broken."""
    try:
        import zarr
    except ImportError:
        raise InputError(f"{path} is a zarr store; try: pip install 'ooc-fw[zarr]'") from None
    try:
        if not is_url(path):
            _check_files(path)
        return zarr.open(path, mode="r")
    except InputError:
        raise
    except ImportError as error:  # of fsspec, or of what it needs for this kind of store
        raise InputError(f"{path}: {error}; try: pip install 'ooc-fw[remote]'") from None
    except Exception as error:  # whatever the store raises
        raise DamageError(f"{path} cannot be opened as zarr ({error})") from error


def _check_files(path: str) -> None:
    """Raise InputError for pipes and devices in a store, and for links that leave it."""
    inside, folders = os.path.realpath(path) + os.sep, [path]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                own = not entry.is_symlink()
                if own and entry.is_dir():
                    folders.append(entry.path)
                elif not (entry.is_file() or entry.is_dir()) or not (
                    own or os.path.realpath(entry.path).startswith(inside)
                ):
                    raise InputError(
                        f"{entry.path} is a pipe, a device, or a link that leads out of the store "
                        f"or nowhere, which is not followed; copy the data into the store"
                    )


def _find(group: Any, name: str) -> Any:
    """Array or group at a path below `group`; None where there is none."""
    parts = name.strip("/").split("/")
    with suppress(KeyError):
        if not name:
            return group
        return None if {".", ".."} & {*parts} else group["/".join(parts)]
    return None


def find_rows(root: Any, x_name: str, path: str) -> Any:
    """The array, or the group of a CSR matrix, that holds the rows; InputError without one."""
    rows = root if is_array(root) else _find(root, x_name)
    if rows is None and set(CSR_PARTS) <= set(root):
        rows = root
    if rows is None:
        has = ", ".join(root) or "nothing"
        raise InputError(f"{path} has no {x_name!r} (it has: {has}); {_OTHER_ROWS}")
    if not is_array(rows) and not set(CSR_PARTS) <= set(rows):
        raise InputError(
            f"{path}: {x_name!r} is neither an array nor a group with {', '.join(CSR_PARTS)}; "
            f"{_OTHER_ROWS}"
        )
    return rows


def find_labels(root: Any, name: str, path: str) -> Labels | None:
    """Labels called `name`, or so in the ``obs`` of AnnData; None where there are none."""
    node = find_column(root, name, _find)
    if node is None:
        if name == "y":
            return None
        has = ", ".join(column_names(root, _find)) or "none"
        raise InputError(f"{path} has no labels {name!r}; it has {has}")
    what = f"{path}: {name!r}"
    if not is_array(node):
        if not is_column(node):
            raise InputError(f"{what} are no labels but a group; name others (--label)")
        return column_labels(node, StoredArray, what)
    if len(node.shape) != 1:
        raise InputError(f"{what} must have one dimension; name other labels (--label)")
    return Labels(StoredArray(node)) if name == "y" else with_missing_numbers(StoredArray(node))


def find_names(root: Any, x_name: str, n_features: int) -> list[str] | None:
    """Names of the features in the ``var`` of AnnData."""
    return feature_names(root, x_name, _find, StoredArray, n_features)


def _open_csr(group: Any, labels: Sliceable | None, path: str) -> CSRSource:
    shape = csr_shape(group, path)
    data, indices = (StoredArray(group[name]) for name in ("data", "indices"))
    indptr = np.asarray(StoredArray(group["indptr"])[:], dtype=np.int64)
    right = len(indptr) == shape[0] + 1 and indptr[0] == 0 and indptr[-1] == len(data)
    if not right or len(indices) != len(data) or np.any(np.diff(indptr) < 0):
        raise DamageError(
            f"{path}: the row pointers of {group.name!r} do not rise from 0 to the {len(data)} "
            f"values stored; write it again"
        )
    matrix = SimpleNamespace(data=data, indices=indices, indptr=indptr, shape=shape)
    chunk_rows = max(1, data.chunk_rows * shape[0] // max(1, len(data)))
    source = CSRSource(matrix, labels, name=path, chunk_rows=chunk_rows)
    source.max_gap = source.span_rows = source.chunk_rows
    source.decoders = [data, indices]
    source.cache_bytes = data.kept_bytes + indices.kept_bytes
    span_bytes = 8 * (data.chunk_rows + indices.chunk_rows)
    source.overhead_bytes = 2 * span_bytes + source.cache_bytes + 8 * (shape[0] + 1)
    return source


def csr_shape(group: Any, path: str) -> tuple[int, int]:
    """Shape of the CSR matrix of a group; InputError for another kind of matrix."""
    old = group.attrs.get("h5sparse_format", "csr"), group.attrs.get("h5sparse_shape", ())
    kind = str(group.attrs.get("encoding-type", old[0]))
    shape = tuple(int(length) for length in group.attrs.get("shape", old[1]))
    if kind.removesuffix("_matrix") != "csr" or len(shape) != 2:
        raise InputError(
            f"{path}: {group.name!r} is a {kind} of shape {shape}; write it as a csr_matrix, by "
            f"rows (tocsr() in Python)"
        )
    check_width(path, shape[1])
    return shape


class StoredArray(DecodedChunks):
    """Parts of a zarr array, whose chunks are decoded once; text as words."""

    def __init__(self, array: Any) -> None:
        self._array = _CheckedArray(array)
        text = np.dtype(array.dtype).kind not in "biuf"
        dtype = np.dtype(object) if text else array.dtype
        super().__init__(array.shape, dtype, self._read, int(array.chunks[0]))
        if text:
            self.kept_bytes = _WORD_BYTES * self.chunk_rows

    def _read(self, start: int, stop: int) -> AnyArray:
        try:
            found = np.asarray(self._array[start:stop])
        except Exception as error:  # whatever codecs and stores raise
            raise DamageError(
                f"{self._array.name} cannot be read from {start} to {stop} ({error}); write it "
                f"again"
            ) from error
        if found.dtype.kind in "biuf":
            return found
        return np.array([as_text(word) for word in found.tolist()], dtype=np.str_)


class _CheckedArray:
    """A zarr array whose chunks, of files here, are looked at before they are decoded.

    A few bytes may stand for any number of them, and a chunk may be declared of any size.
    """

    def __init__(self, array: Any) -> None:
        self._array, self.shape, self.dtype = array, array.shape, array.dtype
        self.chunks, self.name = array.chunks, f"{array.store}: {array.name}"
        self._sizes = array.shards or array.chunks
        is_text = np.dtype(array.dtype).kind not in "biuf"
        own = 0 if is_text else math.prod(self._sizes) * array.dtype.itemsize
        n_values = math.prod(self.shape)
        fitting = 4 * n_values * array.dtype.itemsize  # a small array may be less than a chunk
        self._most = _LARGEST_CHUNK if is_text else max(_SMALL_CHUNK, 2 * own)
        self._root = getattr(array.store, "root", None)
        n_across = math.prod(map(_ceil, self.shape[1:], self._sizes[1:]))
        wrong = own > max(_SMALL_CHUNK, min(_LARGEST_CHUNK, fitting)) or n_across > _MOST_ACROSS
        if self._root is not None and n_values >= _MANY_VALUES:
            stored = stored_bytes(os.path.join(self._root, array.path)) or 0
            wrong |= n_values > _LARGEST_RATIO * stored
        if wrong:
            raise InputError(
                f"{self.name} is said to have shape {self.shape} in chunks of {self._sizes}, which "
                f"it cannot have, or which take too much memory; write it in chunks of a few MiB"
            )

    def __getitem__(self, key: slice) -> Any:
        if self._root is not None:
            rows = range(key.start // self._sizes[0], _ceil(key.stop, self._sizes[0]))
            across = map(range, map(_ceil, self.shape[1:], self._sizes[1:]))
            for place in product(rows, *across):
                file = self._array.metadata.encode_chunk_key(place)
                self._check(os.path.join(self._root, self._array.path, file))
        return self._array[key]

    def _check(self, path: str) -> None:
        """Raise ValueError for a chunk in a file, if it is there, that decodes to too much."""
        with suppress(FileNotFoundError), open(path, "rb") as file:
            n_bytes = os.fstat(file.fileno()).st_size
            if n_bytes <= self._most and self._array.shards is None and self._array.compressors:
                codec = type(self._array.compressors[-1]).__name__.removesuffix("Codec").lower()
                n_bytes = _decoded_bytes(codec, file, self._most)
            if n_bytes > self._most:
                raise ValueError(f"{path} holds or decodes to more than {self._most} bytes")


def _ceil(number: int, divisor: int) -> int:
    return -(-number // divisor)


def _decoded_bytes(codec: str, file: BinaryIO, most: int) -> int:
    """Bytes that a compressed file stands for; of codecs that do not state them, most + 1 at most.

    0 where they are unknown.
    """
    if codec in _DECOMPRESSORS:
        return len(_DECOMPRESSORS[codec]().decompress(file.read(), most + 1))
    head = file.read(18)
    if codec == "zstd" and len(head) > 5:
        flag, single = head[4] >> 6, head[4] >> 5 & 1
        start = 6 - single + (0, 1, 2, 4)[head[4] & 3]
        place = slice(start, start + (single, 2, 4, 8)[flag])
        return int.from_bytes(head[place], "little")
    if codec == "gzip":
        file.seek(-4, os.SEEK_END)
        return int.from_bytes(file.read(), "little")
    place = {"blosc": slice(4, 8), "lz4": slice(0, 4)}.get(codec, slice(0))
    return int.from_bytes(head[place], "little")
