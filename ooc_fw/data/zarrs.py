"""Arrays of zarr, versions 2 and 3, and of Dask, in chunks that are decoded or computed once.

Neither package is imported for what was opened with it.
"""

from __future__ import annotations

import logging
import math
import os
from typing import Any

import numpy as np

from ooc_fw.data.arrays import DecodedChunks, check_chunk
from ooc_fw.data.rows import AnyArray
from ooc_fw.system.errors import DamageError, InputError

logger = logging.getLogger(__name__)

_CHUNKS_AT_ONCE = 1 << 10  # that are decoded together: zarr has a task of 16 KiB for each


def open_store(path: str) -> Any:
    """The array or the group of a store; InputError without the package, DamageError if broken."""
    try:
        import zarr
    except ModuleNotFoundError:
        raise InputError(f"{path} is a zarr store; try: pip install 'ooc-fw[zarr]'") from None
    try:
        return zarr.open(path, mode="r")
    except ImportError as error:  # of fsspec, or of what it needs for this kind of store
        raise InputError(f"{path}: {error}; try: pip install 'ooc-fw[remote]'") from None
    except Exception as error:  # whatever the store raises
        raise DamageError(f"{path} cannot be opened as zarr ({error})") from error


def is_zarr(data: Any) -> bool:
    """Whether `data` is an array or a group of zarr, which need not be imported."""
    return type(data).__module__.partition(".")[0] == "zarr"


def is_dask(data: Any) -> bool:
    """Whether `data` is an array of Dask, which need not be imported."""
    return hasattr(data, "__dask_graph__") and isinstance(getattr(data, "chunks", None), tuple)


def open_zarr(stored: Any, place: str) -> DecodedChunks:
    """Slices of an array; absent chunks, which an interrupted program leaves, are warned of."""
    check_chunk(place, stored, stored.shards or stored.chunks, stored.nchunks)
    shape, length = stored.shape, int(stored.chunks[0])
    is_text = np.dtype(stored.dtype).kind not in "biuf"
    # zarr reads absent chunks as its fill value, and leaves chunks of it out by default.
    local = os.path.isdir(getattr(stored.store, "root", ""))
    n_absent = stored.nchunks - stored.nchunks_initialized if local else 0
    if n_absent:
        logger.warning(
            "%s: %d of its %d chunks are absent, and their values are taken to be %r; write them "
            "if a program was interrupted that should have done so",
            *(place, n_absent, stored.nchunks, np.asarray(stored.fill_value).tolist()),
        )
    n_across = stored.nchunks // max(1, -(-shape[0] // length))
    step = length * max(1, _CHUNKS_AT_ONCE // max(1, n_across))

    def decode(start: int, stop: int) -> AnyArray:
        starts = range(start, max(stop, start + 1), step)
        try:
            parts = [np.asarray(stored[first : min(first + step, stop)]) for first in starts]
        except Exception as error:  # whatever codecs and stores raise
            raise DamageError(
                f"rows {start} to {stop - 1} of {place} cannot be read ({error}); write it again"
            ) from error
        values = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return values.astype(object) if is_text else values

    borders = np.r_[np.arange(0, shape[0], length), shape[0]]
    return DecodedChunks(shape, np.dtype(object) if is_text else stored.dtype, decode, borders)


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

    borders = np.cumsum([0, *array.chunks[0]], dtype=np.int64)
    return DecodedChunks(array.shape, array.dtype, decode, borders)
