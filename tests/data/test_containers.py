"""Rows, labels and names in HDF5, zarr and AnnData, many of which somebody else wrote."""

import os

import anndata
import h5py
import numpy as np
import pandas as pd
import pytest

from ooc_fw.data.containers import find
from ooc_fw.data.opening import open_dataset
from ooc_fw.system.errors import DamageError, InputError
from tests.support.contracts import small_table
from tests.support.files import write_dense, write_sparse

X = small_table(60, 4)
y = (X[:, 0] > 0).astype(np.float64)


def test_an_annotated_file(tmp_path):
    """Rows of X and of layers have names. A row without a label may be left out."""
    own = anndata.AnnData(X, var=pd.DataFrame(index=["g0", "g1", "g2", "g3"]))
    own.obs["doublet"] = pd.array([None, True, False, True] * 15, dtype="boolean")
    own.layers["twice"] = 2 * X
    own.obsm["same_width"] = X
    own.write_h5ad(tmp_path / "cells.h5ad")
    for data in (tmp_path / "cells.h5ad", own):
        with open_dataset(data, label="doublet", missing_labels="drop") as source:
            assert source.n_rows == 45
            assert source.labels(0, 3).tolist() == [True, False, True]
            assert source.row_ids(0, 4).tolist() == [1, 2, 3, 5]
        for x_name, rows in (("X", X), ("layers/twice", 2 * X), ("obsm/same_width", X)):
            with open_dataset(data, label=None, x_name=x_name) as source:
                np.testing.assert_array_equal(source.read(0, 60), rows)
                assert source.columns == (None if "obsm" in x_name else ["g0", "g1", "g2", "g3"])
        with pytest.raises(InputError, match=r"has no 'none'; it has .*obs/doublet"):
            open_dataset(data, label="none")


def test_what_a_converted_file_says_of_its_rows(tmp_path):
    path = tmp_path / "data.h5"
    for write_rows in (write_sparse, write_dense):
        with open_dataset(write_rows(path, X, y)) as source:
            assert (source.shuffled, source.scaling.kind) == (True, "none")
            np.testing.assert_allclose(source.statistics.mean, X.astype(float).mean(axis=0))
            assert source.statistics.mean_square_norm > 0
            np.testing.assert_array_equal(source.row_ids(0, 60), np.arange(60)[::-1])
            np.testing.assert_array_equal(source.labels(3, 5), y[3:5])
    with h5py.File(path, "a") as file:
        file.attrs["scaling"] = "minmax"
        file["scaling/offset"], file["scaling/factor"] = np.zeros(4), np.full(4, 2.0)
        for name in ("row", "y"):
            del file[name], file[f"checksums/{name}"]
    with open_dataset(path) as source:
        np.testing.assert_array_equal(source.scaling.factor, 2)
        assert not source.has_labels
        np.testing.assert_array_equal(source.row_ids(0, 60), np.arange(60))


def test_links_are_followed(tmp_path):
    """To another file through a link in this one; a change of the other file is seen."""
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["X"] = X
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["Z"], file["X"] = h5py.ExternalLink("other.h5", "/"), h5py.SoftLink("/Z/X")
    with open_dataset(tmp_path / "data.h5", y) as source:
        np.testing.assert_array_equal(source.read(0, 60), X)
        os.utime(tmp_path / "other.h5")
        with pytest.raises(InputError, match=r"h5 was changed"):
            source.check_unchanged()


@pytest.mark.parametrize("chunks", [None, (60, 4)])
def test_values_outside_the_file(tmp_path, chunks):
    """Bytes behind the end of the file never read as zeros."""
    path = tmp_path / "data.h5"
    with h5py.File(path, "w", libver="latest") as file:
        rows = file.create_dataset("X", data=X, chunks=chunks)
        file["y"] = y
        place = rows.id.get_chunk_info(0).byte_offset if chunks else rows.id.get_offset()
    content = path.read_bytes()
    assert content.count(place.to_bytes(8, "little")) == 1
    path.write_bytes(content.replace(place.to_bytes(8, "little"), (1 << 20).to_bytes(8, "little")))
    with pytest.raises(DamageError, match=r"data\.h5"), open_dataset(path) as source:
        source.read(0, 60)


def test_an_object_that_is_damaged_is_not_absent(tmp_path):
    """Its header no longer matches its checksum: what it holds must not be done without."""
    path = tmp_path / "data.h5"
    with h5py.File(path, "w", libver="latest") as file:
        file["scaling/factor"] = np.ones(3)
        place = h5py.h5o.get_info(file["scaling"].id).addr
    content = bytearray(path.read_bytes())
    content[place + 12] ^= 1
    path.write_bytes(content)
    with h5py.File(path) as file:
        assert find(file, "offset") is None
        with pytest.raises(KeyError):
            find(file, "scaling/factor")
