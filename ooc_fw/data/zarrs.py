"""Zarr stores of versions 2 and 3, here or remote: their arrays and groups.

The arrays of Dask are read alike. Neither package is imported for them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np

from ooc_fw.data.arrays import ArrayNode, DecodedChunks, Group, Node
from ooc_fw.data.formats import ZARR_METADATA, is_url, stored_bytes
from ooc_fw.data.rows import AnyArray
from ooc_fw.system.errors import DamageError, InputError

# Bytes that a chunk of a small array may take, and that any may.
_SMALL_CHUNK, _LARGEST_CHUNK = 64 << 20, 2 << 30
_MOST_ACROSS = 1 << 20  # chunks side by side, all of which are read for a row
# Values from which there must be a byte for so many: absent chunks are zeros, and a store may
# declare any number of them.
_MANY_VALUES, _LARGEST_RATIO = 1 << 30, 1 << 20
_WORD_BYTES = 512  # that the memory plan counts for each word of a decoded chunk


def open_zarr(path: str) -> Node:
    """The array or the group of a store; InputError without the package, DamageError if broken."""
    try:
        import zarr
    except ImportError:
        raise InputError(f"{path} is a zarr store; try: pip install 'ooc-fw[zarr]'") from None
    try:
        if not is_url(path):
            _check_files(path)
        return as_node(zarr.open(path, mode="r"), path)
    except InputError:
        raise
    except ImportError as error:  # of fsspec, or of what it needs for this kind of store
        raise InputError(f"{path}: {error}; try: pip install 'ooc-fw[remote]'") from None
    except Exception as error:  # whatever the store raises
        raise DamageError(f"{path} cannot be opened as zarr ({error})") from error


def is_zarr(data: Any) -> bool:
    """Whether `data` is an array or a group of zarr, which need not be imported."""
    return type(data).__module__.partition(".")[0] == "zarr"


def as_node(stored: Any, path: str | None = None) -> Node:
    """An array or group of zarr, whose store is at `path`."""
    path = str(stored.store) if path is None else path
    return ZarrArray(stored, path) if hasattr(stored, "shape") else ZarrGroup(stored, path)


class _ZarrNode(Node):
    """What arrays and groups of zarr share."""

    def __init__(self, stored: Any, path: str) -> None:
        self.stored, self.path = stored, path
        self.name, self.attrs = stored.name.removesuffix("/"), stored.attrs

    def files(self) -> dict[str, int | None]:
        # The values are in too many files, their descriptions are not.
        folder = os.path.join(self.path, *self.stored.path.split("/"))
        places = [os.path.join(folder, name) for name in ZARR_METADATA]
        return {place: None for place in places if os.path.isfile(place)}


class ZarrGroup(_ZarrNode, Group):
    """A group of a store."""

    def get(self, place: Any) -> Node | None:
        if not place:
            return self
        parts = place.strip("/").split("/")
        with suppress(KeyError):
            if not {".", ".."} & {*parts}:
                return as_node(self.stored["/".join(parts)], self.path)
        return None

    def __iter__(self) -> Iterator[str]:
        return iter(self.stored)


class ZarrArray(_ZarrNode, ArrayNode):
    """An array of a store."""

    compressed = True
    chunk_rows: int

    def __init__(self, stored: Any, path: str) -> None:
        super().__init__(stored, path)
        self.shape, self.dtype = stored.shape, np.dtype(stored.dtype)
        self.chunk_rows = int(stored.chunks[0]) if stored.chunks else 1
        self._sizes = stored.shards or stored.chunks
        self._root = getattr(stored.store, "root", None)  # folder of a store that is one

    @property
    def is_text(self) -> bool:
        """Whether the values are words."""
        return self.dtype.kind not in "biuf" and not self.dtype.names

    def open(self) -> DecodedChunks:
        chunk_bytes = 0 if self.is_text else math.prod(self._sizes) * self.dtype.itemsize
        n_values = math.prod(self.shape)
        fitting = 4 * n_values * self.dtype.itemsize  # a small array may be less than a chunk
        n_across = math.prod(map(_ceil, self.shape[1:], self._sizes[1:]))
        largest = max(_SMALL_CHUNK, min(_LARGEST_CHUNK, fitting))
        wrong = chunk_bytes > largest or n_across > _MOST_ACROSS
        if self._root is not None and n_values >= _MANY_VALUES:
            n_bytes = stored_bytes(os.path.join(self._root, self.stored.path)) or 0
            wrong |= n_values > _LARGEST_RATIO * n_bytes
        if wrong:
            raise InputError(
                f"{self.place} is said to have shape {self.shape} in chunks of {self._sizes}, "
                f"which it cannot have, or which are too large; write it in chunks of a few MiB"
            )
        dtype = np.dtype(object) if self.is_text else self.dtype
        slices = DecodedChunks(self.shape, dtype, self._decode, self.chunk_rows)
        if self.is_text:
            slices.kept_bytes = _WORD_BYTES * min(self.chunk_rows, self.shape[0])
        return slices

    def _decode(self, start: int, stop: int) -> AnyArray:
        try:
            values = np.asarray(self.stored[start:stop])
        except Exception as error:  # whatever codecs and stores raise
            raise DamageError(
                f"rows {start} to {stop - 1} of {self.place} cannot be read ({error}); write it "
                f"again"
            ) from error
        return values.astype(object) if self.is_text else values


def _check_files(path: str) -> None:
    """Raise InputError for pipes and devices in a store, and for links that leave it."""
    inside, folders = os.path.realpath(path) + os.sep, [path]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                inside_it = not entry.is_symlink()
                if inside_it and entry.is_dir():
                    folders.append(entry.path)
                elif not (entry.is_file() or entry.is_dir()) or not (
                    inside_it or os.path.realpath(entry.path).startswith(inside)
                ):
                    raise InputError(
                        f"{entry.path} is a pipe, a device, or a link that leads out of the store "
                        f"or nowhere; copy the data into the store"
                    )


def _ceil(number: int, divisor: int) -> int:
    return -(-number // divisor)


def is_dask(data: Any) -> bool:
    """Whether `data` is an array of Dask, which need not be imported."""
    return hasattr(data, "__dask_graph__") and isinstance(getattr(data, "chunks", None), tuple)


def open_dask(array: Any) -> DecodedChunks:
    """Open an array of Dask, whose blocks are computed whole."""
    if any(math.isnan(length) for length in array.shape):
        raise InputError("the lengths of the dask array are unknown; call compute_chunk_sizes()")
    if not isinstance(array._meta, np.ndarray):
        raise InputError(
            f"the dask array has blocks of type {type(array._meta).__name__}; make them numpy "
            f"arrays with map_blocks"
        )

    def decode(start: int, stop: int) -> AnyArray:
        return np.asarray(array[start:stop].compute())

    lengths = array.chunks[0]
    chunks = DecodedChunks(array.shape, array.dtype, decode, np.cumsum(lengths, dtype=np.int64))
    chunks.path, chunks.compressed, chunks.chunk_rows = "dask array", True, max(lengths)
    return chunks
