"""Where rows come from: files, memory maps and arrays, all behind one interface, `RowSource`.

================================  =====================================================
given to `open_source`            read by an `ArraySource`, or a `CSRSource` if sparse, of
================================  =====================================================
path of HDF5, h5py file or group  ``hdf5.py``: data sets, by file offset where possible
path or group of zarr, AnnData    ``zarrs.py``, ``annotated.py``: arrays and CSR groups
path of .npy, numpy memory map    ``flatfile.py``: one table, by file offset
array of Dask, zarr and the like  ``chunked.py``: chunks that are decoded once
numpy array, scipy sparse matrix  the array itself
================================  =====================================================

All that these two ask of storage is a slice of an array. The sources in ``views.py`` return the
rows of other sources in their own way. To add a kind of storage, write a class with `shape`,
`dtype` and slices, pick it in ``dispatch.py``, and add it to the table of `SOURCES` in
``tests/data/test_contract.py``.
"""

from __future__ import annotations

from ooc_fw.data.sources.base import (
    ArraySource,
    CSRSource,
    RowSource,
    Sliceable,
    StoredStatistics,
    block_slices,
    iter_blocks,
    rows_source,
)
from ooc_fw.data.sources.dispatch import open_source, train_test_split
from ooc_fw.data.sources.views import (
    CachedSource,
    ColumnSource,
    PairSource,
    ScaledSource,
    SubsetSource,
    check_raw,
)

__all__ = [
    "ArraySource",
    "CSRSource",
    "CachedSource",
    "ColumnSource",
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
    "rows_source",
    "train_test_split",
]
