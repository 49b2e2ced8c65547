"""Zarr stores of versions 2 and 3, here or remote: their arrays and groups.

The arrays of Dask are read alike. Neither package is imported for them.
"""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np

from ooc_fw.data.arrays import ArrayNode, DecodedChunks, Group, Node
from ooc_fw.data.rows import AnyArray
from ooc_fw.system.errors import DamageError, InputError
from ooc_fw.system.files import ZARR_METADATA

logger = logging.getLogger(__name__)

# Path of a chunk in the folder of its array, which begins with its number along the rows.
_CHUNK = re.compile(r"(?:c[/.])?(\d+)(?:[/.]\d+)*")
# Bytes that a chunk of a small array may take, and that any may.
_SMALL_CHUNK, _LARGEST_CHUNK = 64 << 20, 2 << 30
_WORD_BYTES = 512  # that the memory plan counts for each word of a decoded chunk
# Chunks that are decoded at once: zarr has a task for each of them, of about so many bytes.
_CHUNKS_AT_ONCE, _TASK_BYTES = 1 << 10, 16 << 10


def open_zarr(path: str) -> Node:
    """The array or the group of a store; InputError without the package, DamageError if broken."""
    try:
        import zarr
    except ModuleNotFoundError:
        raise InputError(f"{path} is a zarr store; try: pip install 'ooc-fw[zarr]'") from None
    try:
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
        counts = [-(-length // size) for length, size in zip(self.shape, self._sizes, strict=True)]
        self._n_across = math.prod(counts[1:])  # chunks side by side, which are read for a row
        self.n_chunks = math.prod(counts)
        self._root = getattr(stored.store, "root", None)  # folder of a store that is one

    @property
    def is_text(self) -> bool:
        """Whether the values are words."""
        return self.dtype.kind not in "biuf" and not self.dtype.names

    def check_written(self, *, refuse_end: bool = False) -> None:
        # zarr reads absent chunks as its fill value, and leaves chunks of it out by default: these
        # look like chunks that a program did not come to write.
        if self._root is None or not os.path.isdir(self._root):
            return
        folder = os.path.join(self._root, *self.stored.path.split("/"))
        chunks = [
            _CHUNK.fullmatch(os.path.relpath(os.path.join(place, name), folder))
            for place, _, names in os.walk(folder)
            for name in names
        ]
        rows = [int(chunk[1]) for chunk in chunks if chunk is not None]
        n_absent = self.n_chunks - len(rows)
        if n_absent <= 0:
            return
        if refuse_end and -(-self.shape[0] // self._sizes[0]) - 1 not in rows:
            raise InputError(
                f"{self.place}: {n_absent} of its {self.n_chunks} chunks were never written, those "
                f"of its last rows among them; write all of them (those of zeros, too, with the "
                f"zarr setting array.write_empty_chunks), or make it smaller"
            )
        logger.warning(
            "%s: %d of its %d chunks are absent, and their values are taken to be %r; write them "
            "if a program was interrupted that should have done so",
            *(self.place, n_absent, self.n_chunks, np.asarray(self.stored.fill_value).tolist()),
        )

    def open(self) -> DecodedChunks:
        chunk_bytes = 0 if self.is_text else math.prod(self._sizes) * self.dtype.itemsize
        fitting = 4 * math.prod(self.shape) * self.dtype.itemsize  # it may be less than a chunk
        if chunk_bytes > max(_SMALL_CHUNK, min(_LARGEST_CHUNK, fitting)):
            raise InputError(
                f"{self.place} is said to have shape {self.shape} in chunks of {self._sizes}, "
                f"which it cannot have, or which are too large; write it in chunks of a few MiB"
            )
        dtype = np.dtype(object) if self.is_text else self.dtype
        slices = DecodedChunks(self.shape, dtype, self._decode, self.chunk_rows)
        slices.overhead_bytes += _TASK_BYTES * min(self.n_chunks, _CHUNKS_AT_ONCE)
        if self.is_text:
            slices.kept_bytes = _WORD_BYTES * min(self.chunk_rows, self.shape[0])
        return slices

    def _decode(self, start: int, stop: int) -> AnyArray:
        step = self.chunk_rows * max(1, _CHUNKS_AT_ONCE // self._n_across)
        try:
            parts = [
                np.asarray(self.stored[first : min(first + step, stop)])
                for first in range(start, max(stop, start + 1), step)
            ]
        except Exception as error:  # whatever codecs and stores raise
            raise DamageError(
                f"rows {start} to {stop - 1} of {self.place} cannot be read ({error}); write it "
                f"again"
            ) from error
        values = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return values.astype(object) if self.is_text else values


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
