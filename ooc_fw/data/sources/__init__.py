"""Where rows come from: files, memory maps and arrays, all behind one interface, `RowSource`.

================================  =====================================================
given to `open_source`            read by
================================  =====================================================
path of HDF5, h5py file or group  `HDF5Source`, or `HDF5CSRSource` for sparse rows
path of .npy, numpy memory map    `MemmapSource`, by file offset
numpy array                       `ArraySource`
scipy sparse matrix               `CSRSource`
dask array                        `DaskSource`
zarr array and similar ones       `ChunkedSource`
================================  =====================================================

`ScaledSource`, `SubsetSource`, `CachedSource` and `PairSource` return the rows of other sources in
their own way. To add a source, write a subclass of `RowSource` in a module of its own, pick it in
`ooc_fw.data.sources.dispatch`, and give it a test class that inherits
`ooc_fw.testing.contracts.RowSourceContract`.
"""

from __future__ import annotations

from ooc_fw.data.sources.array import ArraySource, CSRSource
from ooc_fw.data.sources.base import (
    RowSource,
    Sliceable,
    StoredStatistics,
    block_slices,
    iter_blocks,
)
from ooc_fw.data.sources.cached import CachedSource
from ooc_fw.data.sources.chunked import ChunkedSource, DaskSource
from ooc_fw.data.sources.dispatch import open_source, refuse_annotated, train_test_split
from ooc_fw.data.sources.hdf5 import HDF5CSRSource, HDF5Source
from ooc_fw.data.sources.memmap import MemmapSource
from ooc_fw.data.sources.pair import PairSource
from ooc_fw.data.sources.scaled import ScaledSource, check_raw
from ooc_fw.data.sources.subset import SubsetSource

__all__ = [
    "ArraySource",
    "CSRSource",
    "CachedSource",
    "ChunkedSource",
    "DaskSource",
    "HDF5CSRSource",
    "HDF5Source",
    "MemmapSource",
    "PairSource",
    "RowSource",
    "ScaledSource",
    "Sliceable",
    "StoredStatistics",
    "SubsetSource",
    "block_slices",
    "check_raw",
    "iter_blocks",
    "open_source",
    "refuse_annotated",
    "train_test_split",
]
