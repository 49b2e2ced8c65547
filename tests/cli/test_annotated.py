"""AnnData and zarr by name on the command line, and as objects in Python."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace

import anndata
import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import zarr

from ooc_fw.data.sources import open_source
from ooc_fw.estimators import FrankWolfeOneClass, FrankWolfeSVC, FrankWolfeSVR
from ooc_fw.model.record import load_model
from ooc_fw.system.errors import InputError
from ooc_fw.testing.contracts import to_dense

TYPES = np.array(["B", "NK", "T"])


@pytest.fixture(scope="module")
def cells():
    """Cells of three types by 8 genes, a third of the last ones without a type."""
    rng = np.random.default_rng(0)
    which = rng.integers(0, 3, 240)
    counts = rng.poisson(1 + 3 * np.eye(3, 8)[which]).astype(np.float32)
    names = TYPES[which].astype(object)
    names[200::3] = None
    obs = pd.DataFrame(
        {
            "cell_type": pd.Categorical(names),
            "batch": np.arange(240) % 2,
            "donor": [f"d{k % 3}" for k in range(240)],
            "doublet": pd.array([True, False, None] * 80, dtype="boolean"),
        },
        index=[f"cell {k}" for k in range(240)],
    )
    var = pd.DataFrame(index=[f"gene {k}" for k in range(8)])
    found = anndata.AnnData(scipy.sparse.csr_matrix(counts), obs=obs, var=var)
    found.layers["dense"] = counts
    found.obsm["X_pca"] = rng.normal(size=(240, 3)) + which[:, None]
    return found


@pytest.fixture(scope="module")
def places(cells, tmp_path_factory):
    """The same cells in files and stores, by the name of the format."""
    folder = tmp_path_factory.mktemp("cells")
    cells.write_h5ad(folder / "cells.h5ad")
    with warnings.catch_warnings(action="ignore"):  # of what anndata will do one day
        cells.write_zarr(folder / "cells.zarr")
    return {"h5ad": folder / "cells.h5ad", "zarr": folder / "cells.zarr"}


FORMATS = pytest.mark.parametrize("name", ["h5ad", "zarr"])


@FORMATS
@pytest.mark.parametrize("rows", ["X", "layers/dense", "obsm/X_pca"])
def test_one_command_trains_the_model_of_the_same_rows(ooc_fw, tmp_path, places, cells, name, rows):
    kept = ~np.asarray(cells.obs["cell_type"].isna())
    found = open_source(cells, y_name="cell_type", x_name=rows, missing_labels="drop")
    assert found.n_rows == kept.sum()
    named = "--label", "obs/cell_type", "--missing-labels", "drop", "--x-name", rows
    outcome = ooc_fw("train", places[name], *named, "-o", tmp_path / "m.h5", "--C", "3")
    assert outcome.status == 0, outcome.err
    model = load_model(tmp_path / "m.h5")
    np.testing.assert_array_equal(model.classes, TYPES)
    own = FrankWolfeSVC(C=3, random_state=0).fit(
        found.read(0, found.n_rows) if rows != "X" else cells.X[kept],
        cells.obs["cell_type"][kept].astype(str),
    )
    assert model.certified_gap <= 1e-3
    values = [each.decision_function(found) for each in (model, own.model_)]
    np.testing.assert_allclose(*values, atol=5e-2)
    outcome = ooc_fw("evaluate", tmp_path / "m.h5", places[name], *named, "--json")
    assert json.loads(outcome.out)["accuracy"] > 0.7
    lines = ooc_fw("predict", tmp_path / "m.h5", places[name], "--x-name", rows).out.split()
    assert len(lines) == 240
    assert set(lines) <= set(TYPES)


@FORMATS
def test_other_columns(ooc_fw, tmp_path, places, name):
    for column, classes in (("batch", [0, 1]), ("donor", ["d0", "d1", "d2"])):
        outcome = ooc_fw("train", places[name], "--label", column, "-o", tmp_path / "m.h5")
        assert outcome.status == 0, outcome.err
        assert load_model(tmp_path / "m.h5").classes.tolist() == classes
    with open_source(places[name], y_name="doublet", missing_labels="drop") as source:
        assert source.n_rows == 160
        assert source.labels(0, 4).tolist() == [True, False, True, False]
        assert source.row_ids(0, 4).tolist() == [0, 1, 3, 4]
        assert list(source.columns) == [f"gene {k}" for k in range(8)]


@FORMATS
def test_what_is_missing_is_said(ooc_fw, places, name):
    outcome = ooc_fw("train", places[name], "--label", "cell_type")
    assert outcome.status == 2
    assert "14 of 240 rows have no label in" in outcome.err
    assert "--missing-labels drop" in outcome.err
    outcome = ooc_fw("train", places[name])
    assert outcome.status == 2
    assert "--label" in outcome.err
    assert "obs/cell_type" in outcome.err
    outcome = ooc_fw("train", places[name], "--x-name", "layers/none", "--label", "batch")
    assert outcome.status == 2
    assert "layers/none" in outcome.err
    assert "--x-name" in outcome.err


@FORMATS
def test_a_wrong_name_of_labels_lists_the_others(ooc_fw, places, tmp_path, name):
    outcome = ooc_fw("train", places[name], "--label", "celltype")
    assert outcome.status == 2
    assert "has no labels 'celltype'; it has obs/batch, obs/cell_type, obs/donor" in outcome.err
    assert ooc_fw("convert", places[name], tmp_path / "d.h5", "--label", "batch").status == 0
    outcome = ooc_fw("train", tmp_path / "d.h5", "--label", "batch")
    assert outcome.status == 2
    assert "has no labels 'batch'; leave out --label" in outcome.err
    assert "since its labels are in 'y'" in outcome.err


@FORMATS
def test_missing_numbers_are_missing_labels(ooc_fw, tmp_path, cells, name):
    own, path = cells.copy(), tmp_path / f"own.{name}"
    own.obs["age"] = np.where(np.arange(240) % 5 == 0, np.nan, np.arange(240) % 2)
    with warnings.catch_warnings(action="ignore"):  # of what anndata will do one day
        own.write_h5ad(path) if name == "h5ad" else own.write_zarr(path)
    for command in ("info", "train"):
        outcome = ooc_fw(command, path, "--label", "age")
        assert outcome.status == 2
        assert "48 of 240 rows have no label in" in outcome.err
    named = "--label", "age", "--missing-labels", "drop", "--json"
    found = json.loads(ooc_fw("info", path, *named).out)
    assert found["n_rows"] == 192
    assert found["classes"] == {"0": 96, "1": 96}
    assert json.loads(ooc_fw("train", path, *named).out)["n_rows"] == 192


@FORMATS
def test_conversion_keeps_the_words(ooc_fw, tmp_path, places, name):
    data = tmp_path / "data.h5"
    outcome = ooc_fw(
        "convert", places[name], data, "--label", "cell_type", "--missing-labels", "drop"
    )
    assert outcome.status == 0, outcome.err
    named = {"y_name": "cell_type", "missing_labels": "drop"}
    with open_source(data) as source, open_source(places[name], **named) as whole:
        assert source.n_rows == 226
        ids = source.row_ids(0, 226)
        np.testing.assert_array_equal(
            to_dense(source.read(0, 226)), to_dense(whole.read(0, 226))[ids]
        )
        assert set(source.labels(0, 226)) == set(TYPES)


@FORMATS
def test_info(ooc_fw, places, name):
    named = "--label", "cell_type", "--missing-labels", "drop"
    found = json.loads(ooc_fw("info", places[name], *named, "--json").out)
    assert found["n_rows"] == 226
    assert found["columns"][0] == "gene 0"
    assert found["file_bytes"] > 1000


def test_objects_in_python(cells, places):
    kept = cells[~np.asarray(cells.obs["cell_type"].isna())].copy()
    own = FrankWolfeSVC(C=3, random_state=0).fit(kept, "cell_type")
    assert own.score(kept, "cell_type") > 0.8
    backed = anndata.read_h5ad(places["h5ad"], backed="r")
    group = zarr.open(str(places["zarr"]), mode="r")
    for data in (backed, group, places["h5ad"]):
        assert own.predict(data).tolist() == own.predict(cells).tolist()
    with pytest.raises(InputError, match="14 of 240 rows have no label in 'cell_type'"):
        FrankWolfeSVC().fit(cells, "cell_type")
    with pytest.raises(InputError, match="the obs of this AnnData has no 'kind'; it has cell_type"):
        FrankWolfeSVC().fit(cells, "kind")
    with pytest.raises(InputError, match="this AnnData has no rows 'layers/x'; it has X, layers/d"):
        open_source(cells, x_name="layers/x")
    by_name = FrankWolfeSVC(C=3, random_state=0).fit(places["h5ad"], "obs/batch")
    assert by_name.classes_.tolist() == [0, 1]


# -- predictions on raw cells, and on genes in another order ---------------------------------------


def test_a_model_of_scaled_counts_scales_raw_cells(ooc_fw, tmp_path, places, cells):
    data, path = tmp_path / "data.h5", tmp_path / "m.h5"
    named = "--label", "cell_type", "--missing-labels", "drop"
    scaled = "--log1p", "--scale", "maxabs"
    assert ooc_fw("convert", places["h5ad"], data, *named, *scaled).status == 0
    assert ooc_fw("train", data, "-o", path, "--C", "3").status == 0
    model = load_model(path)
    with open_source(data) as source:
        expected = np.empty(226, dtype=object)
        expected[source.row_ids(0, 226)] = model.predict(source)
    kept = cells[~np.asarray(cells.obs["cell_type"].isna())].copy()
    raw = kept.X.toarray()
    unscaled = replace(model, scaling=None).predict(raw)
    assert (unscaled != expected).any()
    np.save(tmp_path / "raw.npy", raw)
    for given in (kept, raw, kept.X, pd.DataFrame(raw), tmp_path / "raw.npy"):
        assert model.predict(given).tolist() == expected.tolist()
    for place in places.values():
        lines = np.array(ooc_fw("predict", path, place).out.split())
        assert lines[~np.asarray(cells.obs["cell_type"].isna())].tolist() == expected.tolist()
        found = json.loads(ooc_fw("evaluate", path, place, *named, "--json").out)
        truth = kept.obs["cell_type"].astype(str).to_numpy()
        assert found["accuracy"] == pytest.approx(np.mean(truth == expected))
    own = FrankWolfeSVC(C=3, random_state=0).fit(data)
    with open_source(data) as source:
        np.testing.assert_array_equal(
            own.decision_function(kept)[source.row_ids(0, 226)], own.decision_function(source)
        )
        assert own.score(kept, truth) == own.score(source, source.labels(0, 226))


def test_other_estimators_scale_raw_rows(tmp_path, ooc_fw):
    rng = np.random.default_rng(0)
    raw = rng.normal(size=(120, 3)) * [1, 50, 1]
    text = [f"{row[0]} 1:{row[0]} 2:{row[1]} 3:{row[2]}" for row in raw]
    (tmp_path / "f.txt").write_text("\n".join(text) + "\n")
    data = tmp_path / "f.h5"
    assert ooc_fw("convert", tmp_path / "f.txt", data, "--scale", "standard").status == 0
    for own in (FrankWolfeSVR(random_state=0), FrankWolfeOneClass(random_state=0)):
        own.fit(data)
        with open_source(data) as source:
            ids, expected = source.row_ids(0, 120), own.predict(source)
        np.testing.assert_array_equal(own.predict(raw)[ids], expected)
        assert np.ptp(expected) > 0


def test_genes_are_found_by_name(ooc_fw, tmp_path, places, cells):
    kept = cells[~np.asarray(cells.obs["cell_type"].isna())].copy()
    own = FrankWolfeSVC(C=3, random_state=0).fit(kept, "cell_type")
    own.save(tmp_path / "m.h5")
    expected = own.predict(cells).tolist()
    assert own.predict(cells.X[:, ::-1]).tolist() != expected
    reversed_genes = cells[:, ::-1].copy()
    assert own.predict(reversed_genes).tolist() == expected
    reversed_genes.write_h5ad(tmp_path / "reversed.h5ad")
    assert ooc_fw("predict", tmp_path / "m.h5", tmp_path / "reversed.h5ad").out.split() == expected
    with pytest.raises(InputError, match=r"lacks 2 of the 8 features .* \(gene 6, gene 7\)"):
        own.predict(cells[:, :6].copy())
    stream = FrankWolfeSVC(C=3, random_state=0)
    chunks = kept[:100].copy(), kept[100:, ::-1].copy()
    for chunk in chunks:
        types = chunk.obs["cell_type"].astype(str).to_numpy()
        stream.partial_fit(chunk, types, classes=TYPES)
    same = FrankWolfeSVC(C=3, random_state=0)
    for chunk in (kept[:100].copy(), kept[100:].copy()):
        types = chunk.obs["cell_type"].astype(str).to_numpy()
        same.partial_fit(chunk, types, classes=TYPES)
    assert stream.model_.columns == same.model_.columns == tuple(cells.var_names)
    assert stream.predict(cells).tolist() == same.predict(reversed_genes).tolist()


def test_hdf5_is_not_read_from_elsewhere(ooc_fw):
    outcome = ooc_fw("train", "https://example.org/cells.h5ad", "--label", "x", "-o", "m.h5")
    assert outcome.status == 2
    assert "HDF5 is not read from there; download it, or use a zarr store" in outcome.err


# -- stores that are no AnnData --------------------------------------------------------------------


def test_a_store_of_one_array(ooc_fw, tmp_path):
    X = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    zarr.create_array(str(tmp_path / "X.zarr"), data=X, chunks=(20, 3))
    np.save(tmp_path / "y.npy", np.arange(60) % 2)
    outcome = ooc_fw("train", tmp_path / "X.zarr", "--labels", tmp_path / "y.npy")
    assert outcome.status == 0, outcome.err
    assert (tmp_path / "X.model.h5").exists()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda root: root.create_array("X", data=np.array(["a", "b"])), "of two dimensions|type"),
        (lambda root: root.create_group("X"), "'X' is neither an array nor a group with data"),
        (lambda root: root.create_array("Y", data=np.zeros((2, 2))), "has no 'X' \\(it has: Y\\)"),
        (lambda root: _csr(root, indptr=[0, 2, 1]), "do not rise from 0 to the 2 values"),
        (lambda root: _csr(root, encoding="csc_matrix"), "is a csc_matrix .* write it as a csr_"),
        (lambda root: _csr(root, shape=(9,)), "of shape"),
    ],
)
def test_stores_that_cannot_be_used(tmp_path, spoil, message):
    with warnings.catch_warnings(action="ignore"):  # text has no specification in zarr 3
        spoil(zarr.open_group(str(tmp_path / "bad.zarr"), mode="w"))
    with pytest.raises(InputError, match=message):
        open_source(tmp_path / "bad.zarr")


def _csr(root, indptr=(0, 1, 2), encoding="csr_matrix", shape=(2, 3)):
    group = root.create_group("X", attributes={"encoding-type": encoding, "shape": list(shape)})
    for name, values in (("data", [1.0, 2.0]), ("indices", [0, 1]), ("indptr", indptr)):
        group.create_array(name, data=np.array(values))


def test_a_chunk_that_cannot_be_read_names_its_rows(tmp_path):
    X = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    zarr.create_array(str(tmp_path / "X.zarr"), data=X, chunks=(20, 3))
    (tmp_path / "X.zarr" / "c" / "1" / "0").write_bytes(b"spoilt")
    with open_source(tmp_path / "X.zarr", np.arange(60) % 2) as source:
        with pytest.raises(InputError, match=r"rows 0 to 59 of .*X\.zarr cannot be read"):
            source.read(0, 60)


def test_categories_of_a_file_that_lie(tmp_path):
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file["X"] = np.eye(4, dtype=np.float32)
        file["obs/kind/codes"], file["obs/kind/categories"] = np.array([0, 1, 5, 0]), [1.0, 2.0]
    with pytest.raises(InputError, match="has codes that are none of its 2 categories"):
        open_source(tmp_path / "f.h5", y_name="kind")
