"""Rows, labels and names in HDF5, zarr and AnnData, many of which somebody else wrote."""

import os
import warnings

import anndata
import h5py
import numpy as np
import pandas as pd
import pytest
import zarr

from ooc_fw.data.containers import find
from ooc_fw.data.converted import content_crc32
from ooc_fw.data.opening import open_source
from ooc_fw.system.errors import DamageError, InputError
from tests.support.contracts import small_table
from tests.support.files import write_dense, write_sparse
from tests.support.methods import grid

X = small_table(60, 4)
y = (X[:, 0] > 0).astype(np.float64)


def write(path, **nodes):
    with h5py.File(path, "w") as file:
        for name, value in nodes.items():
            file[name] = value
    return path


# -- AnnData ---------------------------------------------------------------------------------------


def cells():
    """Cells with labels of several types, of which some are missing."""
    counts = np.arange(60)
    obs = pd.DataFrame(
        {
            "kind": pd.Categorical(np.where(counts % 4, "T", None)),
            "age": np.where(counts % 4 == 0, np.nan, counts % 2),
            "doublet": pd.array([None, True, False, True] * 15, dtype="boolean"),
        },
        index=[f"cell {k}" for k in counts],
    )
    found = anndata.AnnData(X, obs=obs, var=pd.DataFrame(index=[f"gene {k}" for k in range(4)]))
    found.layers["twice"] = 2 * X
    found.obsm["same_width"] = X
    return found


@pytest.fixture(scope="module", params=grid(["h5ad", "zarr", "object"], 1))
def place(request, tmp_path_factory):
    """The cells in a file, in a store, or as an object."""
    own, path = cells(), tmp_path_factory.mktemp("cells") / f"cells.{request.param}"
    if request.param == "object":
        return own
    with warnings.catch_warnings(action="ignore"):  # of what anndata will do one day
        own.write_h5ad(path) if request.param == "h5ad" else own.write_zarr(path)
    return path


@pytest.mark.parametrize(
    ("label", "labels"),
    [("kind", ["T", "T", "T"]), ("age", [1, 0, 1]), ("doublet", ["True", "False", "True"])],
)
def test_rows_whose_label_is_missing_are_left_out(place, label, labels):
    with open_source(place, label=label, missing_labels="drop") as source:
        assert source.n_rows == 45
        assert source.labels(0, 3).tolist() == labels
        assert source.row_ids(0, 4).tolist() == [1, 2, 3, 5]
        np.testing.assert_array_equal(source.read(0, 3), X[1:4])


def test_rows_of_layers_have_names_and_others_have_none(place):
    for x_name, rows in (("X", X), ("layers/twice", 2 * X), ("obsm/same_width", X)):
        with open_source(place, label="obs/age", x_name=x_name) as source:
            np.testing.assert_array_equal(source.read(0, 60), rows)
            names = None if "obsm" in x_name else [f"gene {k}" for k in range(4)]
            assert source.columns == names
    for options, message in (
        ({"label": "none"}, r"has no labels 'none'; it has .*obs/kind"),
        ({"x_name": "layers/x"}, r"has no 'layers/x' \(it has: "),
    ):
        with pytest.raises(InputError, match=message):
            open_source(place, **options)


def test_an_array_called_var_names_nothing(tmp_path):
    with h5py.File(tmp_path / "f.h5", "w", userblock_size=512) as file:
        file["X"], file["var"] = X, np.arange(4.0)  # variances
        open_source(file["X"]).close()
        np.testing.assert_array_equal(file["X"], X)  # what the caller opened stays open
    with open_source(tmp_path / "f.h5") as source:
        assert source.columns is None
        np.testing.assert_array_equal(source.read(0, 60), X)


def test_stores_that_are_no_annotated_data(tmp_path):
    root = zarr.open_group(str(tmp_path / "bad.zarr"), mode="w")
    group = root.create_group("X", attributes={"encoding-type": "csc_matrix", "shape": [2, 3]})
    for name, values in (("data", [1.0, 2.0]), ("indices", [0, 1]), ("indptr", [0, 1, 2])):
        group.create_array(name, data=np.array(values))
    with pytest.raises(InputError, match="is a csc_matrix of shape"):
        open_source(tmp_path / "bad.zarr")
    zarr.create_array(str(tmp_path / "X.zarr"), data=X, chunks=(20, 4))
    (tmp_path / "X.zarr" / "c" / "1" / "0").write_bytes(b"spoilt")
    with open_source(tmp_path / "X.zarr", y) as source:
        np.testing.assert_array_equal(source.read(0, 20), X[:20])
        with pytest.raises(InputError, match=r"X\.zarr is damaged, or cannot be read"):
            source.read(0, 60)


# -- HDF5 ------------------------------------------------------------------------------------------


def test_what_a_converted_file_says_of_its_rows(tmp_path):
    path = tmp_path / "data.h5"
    for write_rows in (write_sparse, write_dense):
        with open_source(write_rows(path, X, y)) as source:
            assert (source.shuffled, source.scaling.kind) == (True, "none")
            np.testing.assert_allclose(source.statistics.mean, X.astype(float).mean(axis=0))
            assert source.statistics.mean_square_norm > 0
            np.testing.assert_array_equal(source.row_ids(0, 60), np.arange(60)[::-1])
    with h5py.File(path, "a") as file:
        file.attrs["scaling"] = "minmax"
        file["scaling/offset"], file["scaling/factor"] = np.zeros(4), np.full(4, 2.0)
        file["raw"] = X
        del file["mean"], file["row"], file["y"]
    with open_source(path, np.arange(60)) as source:
        np.testing.assert_array_equal(source.scaling.factor, 2)
        assert source.statistics is None
        np.testing.assert_array_equal(source.row_ids(0, 60), np.arange(60))
        np.testing.assert_array_equal(source.labels(3, 5), [3, 4])
    with open_source(path, x_name="raw") as source:
        assert (source.scaling, source.shuffled, source.has_labels) == (None, None, False)


@pytest.mark.parametrize(
    "links",
    [
        {"deep/alias": h5py.SoftLink("rows"), "X": h5py.SoftLink("/deep/alias")},
        {"X": h5py.ExternalLink("other.h5", "/X")},
        {"Z": h5py.ExternalLink("other.h5", "/"), "X": h5py.SoftLink("/Z/X")},
    ],
)
def test_links_are_followed(tmp_path, links):
    write(tmp_path / "other.h5", X=X)
    path = write(tmp_path / "data.h5", **{"deep/rows": X, "y": y, **links})
    with open_source(path) as source:
        np.testing.assert_array_equal(source.read(0, 60), X)
        os.utime(path if "deep/alias" in links else tmp_path / "other.h5")
        with pytest.raises(InputError, match=r"h5 was changed"):
            source.check_unchanged()
    with h5py.File(path) as file, pytest.raises(InputError, match="is a link to something else"):
        content_crc32(file)  # a model is in one piece


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
    with pytest.raises(DamageError, match=r"data\.h5"), open_source(path) as source:
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
        for name in ("scaling", "scaling/factor", "/scaling/factor"):
            with pytest.raises(KeyError):
                find(file, name)
