"""Rows, labels and names in HDF5, zarr and AnnData of other programs, and a first look at files."""

import os

import anndata
import h5py
import numpy as np
import pandas as pd
import pytest

from ooc_fw.data.containers import find
from ooc_fw.data.opening import input_files, open_dataset
from ooc_fw.data.structure import is_data, linked_files
from ooc_fw.system.errors import DamageError, InputError
from ooc_fw.system.files import Output, check_outputs
from tests.support.contracts import small_table
from tests.support.files import write_dense

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


def write_links(folder, attributes=()):
    """A file whose rows are in a second file, which has the names of a third one."""
    with h5py.File(folder / "names.h5", "w") as file:
        file["index"] = np.array([b"a", b"b", b"c", b"d"])
    with h5py.File(folder / "rows.h5", "w") as file:
        file["table"], file["y"] = X, y
        file["names"] = h5py.ExternalLink("names.h5", "index")
    with h5py.File(folder / "link.h5", "w") as file:
        file.attrs.update(attributes)
        file["X"] = h5py.ExternalLink("rows.h5", "table")
        file["y"] = h5py.ExternalLink("rows.h5", "y")
        file["var/_index"] = h5py.ExternalLink("rows.h5", "names")
        file["again"] = h5py.ExternalLink("link.h5", "/")
        file["nowhere"] = h5py.ExternalLink("missing.h5", "/")
    return folder / "link.h5"


@pytest.mark.parametrize("attributes", [{}, {"format_version": 1, "n_features": 4}])
def test_files_behind_links_are_inputs(tmp_path, attributes):
    link = write_links(tmp_path, attributes)
    names = {str(tmp_path / f"{name}.h5") for name in ("names", "rows", "link")}
    assert {*linked_files(str(link))} == names
    os.link(tmp_path / "names.h5", tmp_path / "other.h5")
    for name in ("rows.h5", "names.h5", "other.h5"):
        output = Output("model", tmp_path / name, is_own=bool)
        with pytest.raises(InputError, match="would replace the input"):
            check_outputs([output], input_files([link]))


def test_the_rows_that_are_open_are_inputs(tmp_path):
    with open_dataset(write_links(tmp_path), label=None) as source:
        output = Output("model", tmp_path / "names.h5", is_own=bool)
        assert source.columns == ["a", "b", "c", "d"]
        with pytest.raises(InputError, match="would replace the input"):
            check_outputs([output], input_files([source, None, X]))


def test_a_source_that_is_closed_leaves_no_file_open(tmp_path):
    """Else a second command of the same process could not replace the file."""
    path = tmp_path / "d.h5"
    write_dense(path, X, y)
    with open_dataset(path) as source:
        source.labels(0, 3)
    del source
    check_outputs([Output("data", path, is_own=is_data)], [])


@pytest.mark.process
def test_a_damaged_file_in_which_hdf5_runs_in_circles_is_refused(tmp_path):
    path = tmp_path / "cells.h5"
    with h5py.File(path, "w") as file:
        file["X"], file["y"] = X, y
        file["X"].attrs["encoding-type"] = "array"
    with open_dataset(path) as source:
        assert source.n_rows == 60
    content = bytearray(path.read_bytes())
    start = content.index(b"GCOL") + 16  # the heap of texts of variable length
    content[start : start + 512] = bytes(512)
    path.write_bytes(content)
    with pytest.raises(DamageError, match="HDF5 does not come to an end in it"):
        open_dataset(path)
