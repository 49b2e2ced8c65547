"""AnnData and zarr, as files, stores and objects."""

import warnings

import anndata
import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import zarr

from ooc_fw import FrankWolfeSVC, InputError, open_dataset
from tests.support.contracts import to_dense
from tests.support.methods import grid

FORMATS = pytest.mark.parametrize("name", grid(["h5ad", "zarr"], quick=1))


@pytest.fixture(scope="module")
def cells():
    """Cells of three types by 8 genes; a third of the last ones have no type."""
    rng = np.random.default_rng(0)
    which = rng.integers(0, 3, 240)
    counts = rng.poisson(1 + 3 * np.eye(3, 8)[which]).astype(np.float32)
    names = np.array(["B", "NK", "T"])[which].astype(object)
    names[200::3] = None
    obs = pd.DataFrame(
        {
            "cell_type": pd.Categorical(names),
            "batch": np.arange(240) % 2,
            "age": np.where(np.arange(240) % 5 == 0, np.nan, np.arange(240) % 2),
            "doublet": pd.array([True, False, None] * 80, dtype="boolean"),
        },
        index=[f"cell {k}" for k in range(240)],
    )
    var = pd.DataFrame(index=[f"gene {k}" for k in range(8)])
    found = anndata.AnnData(scipy.sparse.csr_matrix(counts), obs=obs, var=var)
    found.layers["dense"] = counts
    return found


@pytest.fixture(scope="module")
def places(cells, tmp_path_factory):
    """The same cells in a file and a store, by the name of the format."""
    folder = tmp_path_factory.mktemp("cells")
    cells.write_h5ad(folder / "cells.h5ad")
    with warnings.catch_warnings(action="ignore"):  # of what anndata will do one day
        cells.write_zarr(folder / "cells.zarr")
    return {"h5ad": folder / "cells.h5ad", "zarr": folder / "cells.zarr"}


@FORMATS
@pytest.mark.parametrize(
    ("label", "n_rows", "labels", "row_ids"),
    [
        ("doublet", 160, ["True", "False", "True", "False"], [0, 1, 3, 4]),
        ("age", 192, [1, 0, 1, 0], [1, 2, 3, 4]),
    ],
)
def test_rows_whose_label_is_missing_are_left_out(places, name, label, n_rows, labels, row_ids):
    with open_dataset(places[name], label=label, missing_labels="drop") as source:
        assert source.n_rows == n_rows
        assert source.labels(0, 4).tolist() == labels
        assert source.row_ids(0, 4).tolist() == row_ids
        assert list(source.columns) == [f"gene {k}" for k in range(8)]


def test_objects_are_read_as_their_files_are(cells, places):
    typed = cells[~np.asarray(cells.obs["cell_type"].isna())].copy()
    own = FrankWolfeSVC(C=3, random_state=0).fit(typed, "cell_type")
    assert own.score(typed, "cell_type") > 0.8
    expected = own.predict(cells).tolist()
    backed = anndata.read_h5ad(places["h5ad"], backed="r")
    group = zarr.open(str(places["zarr"]), mode="r")
    for data in (backed, group, places["h5ad"], cells[:, ::-1].copy()):
        assert own.predict(data).tolist() == expected
    with pytest.raises(InputError, match="lacks the feature 'gene 6'"):
        own.predict(cells[:, :6].copy())
    by_name = FrankWolfeSVC(C=3, random_state=0).fit(places["h5ad"], "obs/batch")
    assert by_name.classes_.tolist() == [0, 1]


def test_objects_that_lack_what_is_named_are_refused(cells):
    own = cells.copy()
    own.obs["day"] = np.full(240, "2020-01-01", "M8[ns]")
    for label, message in (
        ("cell_type", "label of row 200 of AnnData is missing"),
        ("kind", r"AnnData has no labels 'kind'; it has .*obs/cell_type"),
        ("day", r"'day' must be one number .* type datetime64.*; name"),
    ):
        with pytest.raises(InputError, match=message):
            FrankWolfeSVC().fit(own, label)
    with pytest.raises(InputError, match=r"AnnData has no 'layers/x' \(it has: layers/d"):
        open_dataset(own, x_name="layers/x")


def test_stores_that_are_no_annotated_data(tmp_path):
    X = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    zarr.create_array(str(tmp_path / "X.zarr"), data=X, chunks=(20, 3))
    with open_dataset(tmp_path / "X.zarr", np.arange(60) % 2) as source:
        np.testing.assert_array_equal(source.read(0, 60), X)
    (tmp_path / "X.zarr" / "c" / "1" / "0").write_bytes(b"spoilt")
    with open_dataset(tmp_path / "X.zarr", np.arange(60) % 2) as source:
        with pytest.raises(InputError, match=r"X\.zarr is damaged, or cannot be read"):
            source.read(0, 60)
    root = zarr.open_group(str(tmp_path / "bad.zarr"), mode="w")
    group = root.create_group("X", attributes={"encoding-type": "csc_matrix", "shape": [2, 3]})
    with warnings.catch_warnings(action="ignore"):  # text has no specification in zarr 3
        root.create_array("words", data=np.array([["a", "b"]]))
    for name, values in (("data", [1.0, 2.0]), ("indices", [0, 1]), ("indptr", [0, 1, 2])):
        group.create_array(name, data=np.array(values))
    for name, message in (("X", "is a csc_matrix of shape"), ("words", "must be real numbers")):
        with pytest.raises(InputError, match=message):
            open_dataset(tmp_path / "bad.zarr", x_name=name)


def test_categories_of_a_file_that_lie_are_refused(tmp_path):
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file["X"] = np.eye(4, dtype=np.float32)
        file["obs/kind/codes"], file["obs/kind/categories"] = np.array([0, 1, 5, 0]), [1.0, 2.0]
    with pytest.raises(InputError, match="has codes that are none of its categories"):
        open_dataset(tmp_path / "f.h5", label="kind").labels(0, 4)


@pytest.mark.parametrize("stored", ["array and mask", "bytes", "text"])
def test_names_of_genes_of_any_type(tmp_path, stored):
    X = np.ones((5, 8), np.float32)
    names = np.array([f"g{k}" for k in range(8)])
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file["X"] = file["mod/rna/X"] = file["obsm/X_same_width"] = X
        for place in ("var", "mod/rna/var"):
            if stored == "array and mask":
                file[f"{place}/_index/values"] = names.astype("S")
                file[f"{place}/_index/mask"] = np.zeros(8, dtype=bool)
            else:
                file[f"{place}/_index"] = names.astype("S" if stored == "bytes" else object)
    for x_name, expected in (
        ("X", list(names)),
        ("mod/rna/X", list(names)),
        ("obsm/X_same_width", None),
    ):
        with open_dataset(tmp_path / "f.h5", x_name=x_name) as source:
            assert source.columns == expected


def test_an_array_called_var_names_nothing(tmp_path):
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file["X"], file["var"] = np.ones((5, 8), np.float32), np.arange(8.0)  # variances
    with open_dataset(tmp_path / "f.h5") as source:
        assert source.columns is None


@FORMATS
def test_several_files_are_one_by_the_names_of_their_genes(ooc_fw, tmp_path, cells, places, name):
    twice, backwards = tmp_path / "twice.h5", tmp_path / f"backwards.{name}"
    with warnings.catch_warnings(action="ignore"):  # of what anndata will do one day
        other = cells[:, ::-1].copy()
        other.write_h5ad(backwards) if name == "h5ad" else other.write_zarr(backwards)
    named = "--label", "batch", "--no-shuffle"
    for rows in ("X", "layers/dense"):
        ooc_fw("convert", places[name], backwards, twice, *named, "--x-name", rows).done()
        with open_dataset(twice) as source:
            assert list(source.columns) == list(cells.var_names)
            found = to_dense(source.read(0, 480))
        np.testing.assert_array_equal(found[:240], found[240:])
