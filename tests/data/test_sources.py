"""Every source of rows keeps the contract, wherever and however its rows are stored."""

import pickle
import warnings

import anndata
import dask.array as da
import h5py
import hdf5plugin
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import zarr

from ooc_fw.data.opening import open_dataset
from ooc_fw.data.scaling import Scaling
from ooc_fw.data.sources import RowSource
from ooc_fw.data.views import CachedSource, ColumnSource, ScaledSource, SubsetSource
from ooc_fw.system.errors import InputError
from tests.support.contracts import RowSourceContract, to_dense
from tests.support.files import write_dense, write_sparse

KEEPING = Scaling("maxabs", False, np.zeros(5), np.full(5, 0.5))
MOVING = Scaling("minmax", False, np.full(5, -2.0), np.full(5, 0.5))


def npy(folder, array, name="X.npy"):
    np.save(folder / name, array)
    return folder / name


def converted(write, **storage):
    return lambda X, y, folder: open_dataset(write(folder / "data.h5", X, y, **storage))


def view_of_map(X, y, folder):
    """Some rows in the middle of a larger map, as a plain array."""
    large = np.full((300, X.shape[1]), 99, dtype=np.float32)
    large[200 : 200 + len(X)] = X
    mapped = np.load(npy(folder, large), mmap_mode="r")
    return open_dataset(np.asarray(mapped)[200 : 200 + len(X)], y)


def foreign(X, y, folder):
    """A file of another tool: other names and types, chunks that cut the columns."""
    with h5py.File(folder / "foreign.hdf", "w") as file:
        file.create_dataset("train/values", data=X.astype(">f8"), chunks=(10, 2))
        file["train/target"] = y.astype(np.int16)
    return open_dataset(folder / "foreign.hdf", x_name="train/values", label="train/target")


def open_h5_dataset(X, y, folder):
    """A data set that the caller holds open for writing."""
    file = h5py.File(folder / "data.h5", "w")
    return open_dataset(file.create_dataset("a", data=X), file.create_dataset("b", data=y[:, None]))


def dask_arrays(X, y, folder):
    return open_dataset(da.from_array(X, ((3, 21, 33), 2)), da.from_array(y, 8))


def annotated(kind):
    """AnnData with a category as label, which rows at the end lack: a file, store or object."""
    place, form = kind.split()

    def open_it(X, y, folder):
        values, places = np.unique(y, return_inverse=True)
        codes = np.concatenate([places, np.full(len(X), -1)])
        column = pd.Categorical.from_codes(codes, categories=values)
        obs = pd.DataFrame({"kind": column}, index=[f"cell {k}" for k in range(len(codes))])
        twice = np.concatenate([X, np.full_like(X, 7)])
        rows = scipy.sparse.csr_matrix(twice) if form == "csr" else twice
        data, path = anndata.AnnData(rows, obs=obs), folder / f"cells.{place}"
        if place == "zarr":
            with warnings.catch_warnings(action="ignore"):  # of what anndata will do one day
                data.write_zarr(path)
        elif place != "object":
            data.write_h5ad(path)
        if place == "backed":
            path = anndata.read_h5ad(path, backed="r")
        path = data if place == "object" else path
        return open_dataset(path, label="kind", missing_labels="drop")

    return open_it


def zarr_store(version):
    """A store of arrays X and y in a version of the format."""

    def open_it(X, y, folder):
        root = zarr.open_group(str(folder / "data.zarr"), mode="w", zarr_format=version)
        root.create_array("X", data=X, chunks=(10, 2))
        root.create_array("y", data=y, chunks=(8,))
        return open_dataset(folder / "data.zarr")

    return open_it


def kept(write):
    def open_it(X, y, folder):
        source = CachedSource(open_dataset(write(folder / "data.h5", X, y)))
        source._block_rows = 10  # several blocks
        return source

    return open_it


def scaled(scaling):
    """Rows in float64, of which the scaling makes those of the table without rounding."""

    def open_it(X, y, folder):
        unscaled = X / scaling.factor + scaling.offset
        sparse = scipy.sparse.csr_array(unscaled)
        rows = npy(folder, unscaled) if scaling.moves_zero else sparse
        return ScaledSource(open_dataset(rows, y), scaling)

    return open_it


def columns_of(write):
    """Columns of a file that has them in another order, with two more."""

    def open_it(X, y, folder):
        more, places = np.full((len(X), 7), 9, np.float32), np.array([6, 4, 0, 3, 1])
        more[:, places] = X
        return ColumnSource(open_dataset(write(folder / "data.h5", more, y)), places)

    return open_it


def part_of(open_it, *ranges):
    """Some rows of a source that has others between them."""
    rows = np.concatenate([np.arange(*pair) for pair in ranges])

    def open_part(X, y, folder):
        more = np.full((100, X.shape[1]), 9, np.float32), np.full(100, 5.0)
        more[0][rows], more[1][rows] = X, y
        return SubsetSource(open_it(*more, folder), rows)

    return open_part


RAM, SPARSE, SPARSE_RAM, DISK = (False, True), (True, False), (True, True), (False, False)
SOURCES = {  # name -> (sparse, in memory), how it is opened
    "array": (RAM, lambda X, y, _: open_dataset(X, y)),
    "float64": (RAM, lambda X, y, _: open_dataset(X.astype(np.float64), y)),
    "Fortran order": (RAM, lambda X, y, _: open_dataset(np.asfortranarray(X), y[:, None])),
    "big-endian view": (RAM, lambda X, y, _: open_dataset(X.repeat(2, 1).astype(">f4")[:, ::2], y)),
    "csr": (SPARSE_RAM, lambda X, y, _: open_dataset(scipy.sparse.csr_array(X), y)),
    "csc": (SPARSE_RAM, lambda X, y, _: open_dataset(scipy.sparse.csc_array(X), y)),
    "npy": (DISK, lambda X, y, folder: open_dataset(npy(folder, X), npy(folder, y, "y.npy"))),
    "Fortran npy": (DISK, lambda X, y, folder: open_dataset(npy(folder, np.asfortranarray(X)), y)),
    "view of map": (DISK, view_of_map),
    "hdf5 chunks": (DISK, converted(write_dense, chunks=(10, 5))),
    "hdf5 contiguous": (DISK, converted(write_dense)),
    "hdf5 gzip": (DISK, converted(write_dense, chunks=(10, 5), compression="gzip")),
    "hdf5 zstd": (DISK, converted(write_dense, chunks=(7, 5), **hdf5plugin.Zstd())),
    "hdf5 csr gzip": (SPARSE, converted(write_sparse, chunks=(16,), compression="gzip")),
    "foreign": (DISK, foreign),
    "open data set": (DISK, open_h5_dataset),
    "zarr store, version 2": (DISK, zarr_store(2)),
    "zarr store, version 3": (DISK, zarr_store(3)),
    "AnnData zarr csr": (SPARSE, annotated("zarr csr")),
    "AnnData file": (DISK, annotated("file dense")),
    "AnnData file csr": (SPARSE, annotated("file csr")),
    "AnnData backed csr": (SPARSE, annotated("backed csr")),
    "AnnData object csr": (SPARSE_RAM, annotated("object csr")),
    "dask": (DISK, dask_arrays),
    "cached": (DISK, kept(write_dense)),
    "cached csr": (SPARSE, kept(write_sparse)),
    "scaled": (DISK, scaled(MOVING)),
    "scaled csr": (SPARSE, scaled(KEEPING)),
    "columns": (DISK, columns_of(write_dense)),
    "columns of csr": (SPARSE, columns_of(write_sparse)),
    "first rows": (DISK, part_of(lambda X, y, folder: open_dataset(npy(folder, X), y), [0, 57])),
    "some rows": (DISK, part_of(converted(write_dense), [0, 41], [44, 45], [50, 65])),
    "some sparse rows": (SPARSE, part_of(converted(write_sparse), [0, 48], [60, 69])),
    "rows in RAM": (RAM, part_of(lambda X, y, _: open_dataset(X, y), [0, 42], [85, 100])),
}


# The fast loop leaves out what another kind tries almost as well.
SLOW = {name for name in SOURCES if name.startswith("AnnData")} - {"AnnData file csr"} | {
    *("zarr store, version 2", "hdf5 zstd", "hdf5 contiguous", "foreign", "open data set"),
    *("float64", "big-endian view", "csc", "cached", "columns", "first rows", "rows in RAM"),
}
KINDS = [pytest.param(name, marks=[pytest.mark.grid] * (name in SLOW)) for name in SOURCES]


def travels(source):
    """Whether a source, or all that it is a view of, was opened by its path."""
    if source.recipe is None:
        return False
    return all(travels(part) for part in source.recipe[1] if isinstance(part, RowSource))


class TestEverySource(RowSourceContract):
    @pytest.fixture(autouse=True, params=KINDS)
    def kind(self, request):
        (self.sparse, self.in_memory), self.opener = SOURCES[request.param]
        self.bad_value = (np.nan, np.inf, -np.inf)[[*SOURCES].index(request.param) % 3]
        return request.param

    def open(self, X, y, folder):
        return self.opener(X, y, folder)

    def test_travels_as_the_way_to_open_it(self, source, X):
        if not travels(source):
            with pytest.raises(InputError, match="in the memory of this one"):
                pickle.dumps(source)
            return
        image = pickle.dumps(source)
        assert len(image) < 2000
        np.testing.assert_array_equal(to_dense(pickle.loads(image).read(0, 57)), X)
