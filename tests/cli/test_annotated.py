"""AnnData and zarr by name on the command line, and as objects in Python."""

import warnings
from dataclasses import replace

import anndata
import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import zarr

from ooc_fw.data.opening import open_source
from ooc_fw.estimators import FrankWolfeSVC
from ooc_fw.model.record import load_model
from ooc_fw.system.errors import InputError
from tests.support.contracts import to_dense
from tests.support.methods import grid

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


FORMATS = pytest.mark.parametrize("name", grid(["h5ad", "zarr"], quick=1))
NAMED = "--label", "cell_type", "--missing-labels", "drop"


@pytest.fixture(scope="module")
def typed(cells):
    """The cells that have a type."""
    return cells[~np.asarray(cells.obs["cell_type"].isna())].copy()


def rows_of(source):
    return to_dense(source.read(0, source.n_rows))


@pytest.mark.parametrize(
    ("name", "rows"),
    grid([("h5ad", "X"), ("zarr", "layers/dense"), ("h5ad", "obsm/X_pca"), ("zarr", "X")], quick=2),
)
def test_one_command_trains_the_model_of_the_same_rows(ooc_fw, tmp_path, places, cells, name, rows):
    model_file, data = tmp_path / "m.h5", (places[name], "--label", "donor", "--x-name", rows)
    found = open_source(cells, label="donor", x_name=rows)
    ooc_fw("train", *data, "-o", model_file, "--C", "3").done()
    model = load_model(model_file)
    own = FrankWolfeSVC(C=3, random_state=0).fit(
        found.read(0, found.n_rows) if rows != "X" else cells.X, cells.obs["donor"].astype(str)
    )
    np.testing.assert_array_equal(model.classes, own.classes_)
    assert model.certified_gap <= 1e-3
    values = [each.decision_function(found) for each in (model, own.model_)]
    np.testing.assert_allclose(*values, atol=5e-2)
    accuracy = ooc_fw("evaluate", model_file, *data, "--json").json()["accuracy"]
    assert accuracy == pytest.approx((own.predict(found) == cells.obs["donor"]).mean(), abs=0.02)
    lines = ooc_fw("predict", model_file, places[name], "--x-name", rows).out.split()
    assert len(lines) == 240
    assert set(lines) <= {"d0", "d1", "d2"}


@FORMATS
def test_nullable_columns(places, name):
    with open_source(places[name], label="doublet", missing_labels="drop") as source:
        assert source.n_rows == 160
        assert source.labels(0, 4).tolist() == ["True", "False", "True", "False"]
        assert source.row_ids(0, 4).tolist() == [0, 1, 3, 4]
        assert list(source.columns) == [f"gene {k}" for k in range(8)]


@FORMATS
@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ((), ["has no labels; name them (--label)"]),
        (("--label", "cell_type"), ["the label of row 200 of", "--missing-labels drop"]),
        (("--label", "batch", "--x-name", "layers/none"), ["layers/none", "--x-name"]),
        (
            ("--label", "celltype"),
            ["has no labels 'celltype'; it has", "obs/batch, obs/cell_type, obs/donor"],
        ),
    ],
)
def test_names_that_are_missing_or_wrong(ooc_fw, places, name, options, parts):
    ooc_fw("train", places[name], *options).assert_refused(*parts)


def test_dates_are_no_labels(cells):
    own = cells.copy()
    own.obs["day"] = np.full(240, "2020-01-01", "M8[ns]")
    with pytest.raises(InputError, match=r"'day' must be one number .* type datetime64.*; name"):
        open_source(own, "day")


@FORMATS
def test_missing_numbers_are_missing_labels(ooc_fw, tmp_path, cells, name):
    own, path = cells.copy(), tmp_path / f"own.{name}"
    own.obs["age"] = np.where(np.arange(240) % 5 == 0, np.nan, np.arange(240) % 2)
    with warnings.catch_warnings(action="ignore"):  # of what anndata will do one day
        own.write_h5ad(path) if name == "h5ad" else own.write_zarr(path)
    ooc_fw("train", path, "--label", "age").assert_refused("label of row 0 of", "is missing")
    assert "--missing-labels drop" in ooc_fw("info", path, "--label", "age").out
    named = "--label", "age", "--missing-labels", "drop"
    ooc_fw("convert", path, tmp_path / "d.h5", *named).done()
    assert ooc_fw("info", tmp_path / "d.h5", "--json").json()["classes"] == {"0": 96, "1": 96}


@FORMATS
def test_conversion_keeps_the_words(ooc_fw, tmp_path, places, name):
    data = tmp_path / "data.h5"
    ooc_fw("convert", places[name], data, *NAMED).done()
    named = {"label": "cell_type", "missing_labels": "drop"}
    with open_source(data) as source, open_source(places[name], **named) as whole:
        assert source.n_rows == 226
        np.testing.assert_array_equal(rows_of(source), rows_of(whole)[source.row_ids(0, 226)])
        assert set(source.labels(0, 226)) == set(TYPES)
    refused = ooc_fw("train", data, "--label", "batch")
    refused.assert_refused("has no labels 'batch'; it has X, checksums, mean, row, y")
    found = ooc_fw("info", places[name], "--label", "donor", "--json").json()
    assert (found["n_rows"], found["columns"][0]) == (240, "gene 0")


def test_objects_in_python(cells, typed, places):
    own = FrankWolfeSVC(C=3, random_state=0).fit(typed, "cell_type")
    assert own.score(typed, "cell_type") > 0.8
    backed = anndata.read_h5ad(places["h5ad"], backed="r")
    group = zarr.open(str(places["zarr"]), mode="r")
    for data in (backed, group, places["h5ad"]):
        assert own.predict(data).tolist() == own.predict(cells).tolist()
    with pytest.raises(InputError, match="label of row 200 of AnnData is missing"):
        FrankWolfeSVC().fit(cells, "cell_type")
    with pytest.raises(InputError, match=r"AnnData has no labels 'kind'; it has .*obs/cell_type"):
        FrankWolfeSVC().fit(cells, "kind")
    with pytest.raises(InputError, match=r"AnnData has no 'layers/x' \(it has: layers/d"):
        open_source(cells, x_name="layers/x")
    by_name = FrankWolfeSVC(C=3, random_state=0).fit(places["h5ad"], "obs/batch")
    assert by_name.classes_.tolist() == [0, 1]


# -- predictions on raw cells, and on genes in another order ---------------------------------------


def test_a_model_of_scaled_counts_scales_raw_cells(ooc_fw, tmp_path, places, cells, typed):
    data, path = tmp_path / "data.h5", tmp_path / "m.h5"
    ooc_fw("convert", places["h5ad"], data, *NAMED, "--log1p", "--scale", "maxabs").done()
    ooc_fw("train", data, "-o", path, "--C", "3").done()
    model, raw = load_model(path), typed.X.toarray()
    truth = typed.obs["cell_type"].astype(str).to_numpy()
    own = FrankWolfeSVC(C=3, random_state=0).fit(data)
    expected = np.empty(226, dtype=object)
    with open_source(data) as source:
        ids = source.row_ids(0, 226)
        expected[ids] = model.predict(source)
        values = own.decision_function(source)
        np.testing.assert_array_equal(own.decision_function(typed)[ids], values)
        assert own.score(typed, truth) == own.score(source, source.labels(0, 226))
    assert (replace(model, scaling=None).predict(raw) != expected).any()
    np.save(tmp_path / "raw.npy", raw)
    for given in (typed, raw, typed.X, pd.DataFrame(raw), tmp_path / "raw.npy"):
        assert model.predict(given).tolist() == expected.tolist()
    for place in places.values():
        lines = np.array(ooc_fw("predict", path, place).out.split())
        assert lines[~np.asarray(cells.obs["cell_type"].isna())].tolist() == expected.tolist()
        ooc_fw("convert", place, tmp_path / "test.h5", *NAMED, "--like", data).done()
        found = ooc_fw("evaluate", path, tmp_path / "test.h5", "--json").json()
        assert found["accuracy"] == pytest.approx(np.mean(truth == expected))


def test_genes_are_found_by_name(ooc_fw, tmp_path, cells, typed):
    own = FrankWolfeSVC(C=3, random_state=0).fit(typed, "cell_type")
    own.save(tmp_path / "m.h5")
    expected = own.predict(cells).tolist()
    with pytest.warns(UserWarning, match="valid feature names"):
        assert own.predict(cells.X[:, ::-1]).tolist() != expected
    reversed_genes = cells[:, ::-1].copy()
    assert own.predict(reversed_genes).tolist() == expected
    reversed_genes.write_h5ad(tmp_path / "reversed.h5ad")
    assert ooc_fw("predict", tmp_path / "m.h5", tmp_path / "reversed.h5ad").out.split() == expected
    with pytest.raises(InputError, match="lacks the feature 'gene 6'"):
        own.predict(cells[:, :6].copy())


# -- stores that are no AnnData --------------------------------------------------------------------


def test_a_store_of_one_array(ooc_fw, tmp_path):
    X = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    zarr.create_array(str(tmp_path / "X.zarr"), data=X, chunks=(20, 3))
    np.save(tmp_path / "y.npy", np.arange(60) % 2)
    ooc_fw("train", tmp_path / "X.zarr", "--labels", tmp_path / "y.npy").done()
    assert (tmp_path / "X.model.h5").exists()
    (tmp_path / "X.zarr" / "c" / "1" / "0").write_bytes(b"spoilt")
    with open_source(tmp_path / "X.zarr", np.arange(60) % 2) as source:
        with pytest.raises(InputError, match=r"X\.zarr is damaged, or cannot be read"):
            source.read(0, 60)


def test_stores_that_cannot_be_used(tmp_path):
    root = zarr.open_group(str(tmp_path / "bad.zarr"), mode="w")
    group = root.create_group("X", attributes={"encoding-type": "csc_matrix", "shape": [2, 3]})
    with warnings.catch_warnings(action="ignore"):  # text has no specification in zarr 3
        root.create_array("words", data=np.array([["a", "b"]]))
    for name, values in (("data", [1.0, 2.0]), ("indices", [0, 1]), ("indptr", [0, 1, 2])):
        group.create_array(name, data=np.array(values))
    for name, message in (("X", "is a csc_matrix of shape"), ("words", "must be real numbers")):
        with pytest.raises(InputError, match=message):
            open_source(tmp_path / "bad.zarr", x_name=name)


def test_categories_of_a_file_that_lie(tmp_path):
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file["X"] = np.eye(4, dtype=np.float32)
        file["obs/kind/codes"], file["obs/kind/categories"] = np.array([0, 1, 5, 0]), [1.0, 2.0]
    with pytest.raises(InputError, match="has codes that are none of its categories"):
        open_source(tmp_path / "f.h5", label="kind").labels(0, 4)


@pytest.fixture(scope="module")
def reordered(cells, tmp_path_factory):
    """The same cells with their genes in another order and one more, by the name of the format."""
    folder = tmp_path_factory.mktemp("reordered")
    with warnings.catch_warnings(action="ignore"):  # of a gene twice, of what anndata will do
        more = cells[:, [0, *range(7, -1, -1)]].copy()
        more.var_names = ["other", *more.var_names[1:]]
        more.write_h5ad(folder / "cells.h5ad")
        more.write_zarr(folder / "cells.zarr")
    return {name: folder / f"cells.{name}" for name in ("h5ad", "zarr")}


@pytest.mark.parametrize(
    ("name", "rows", "options"),
    grid(
        [
            ("h5ad", "X", ("--landmarks", "30")),
            ("zarr", "layers/dense", ("--task", "novelty")),
        ],
        quick=1,
    ),
)
def test_names_of_genes_travel(ooc_fw, tmp_path, places, reordered, name, rows, options):
    whole, train, test, model, same, others = (tmp_path / f"{part}.h5" for part in range(6))
    taken = *NAMED, "--x-name", rows
    ooc_fw("convert", places[name], whole, *taken, "--scale", "maxabs").done()
    ooc_fw("split", whole, train, test).done()
    ooc_fw("train", train, "-o", model, *options).done()
    genes = tuple(f"gene {k}" for k in range(8))
    assert load_model(model).columns == genes
    ooc_fw("verify", test).done()
    expected = ooc_fw("predict", model, places[name], "--x-name", rows).out
    for other in reordered.values():
        assert ooc_fw("predict", model, other, "--x-name", rows).out == expected
    for like in (train, model):
        for source, target in ((places, same), (reordered, others)):
            ooc_fw("convert", source[name], target, *taken, "--like", like).done()
        with open_source(same) as first, open_source(others) as second:
            assert list(first.columns) == list(second.columns) == list(genes)
            assert first.n_rows == 226
            np.testing.assert_array_equal(rows_of(first), rows_of(second))


def test_several_files_are_one_by_the_names_of_their_genes(ooc_fw, tmp_path, cells, places):
    twice, backwards = tmp_path / "twice.h5", tmp_path / "backwards.h5ad"
    cells[:, ::-1].copy().write_h5ad(backwards)
    for rows in ("X", "layers/dense"):
        taken = *NAMED, "--x-name", rows, "--no-shuffle"
        ooc_fw("convert", places["h5ad"], backwards, twice, *taken).done()
        with open_source(twice) as source:
            assert list(source.columns) == list(cells.var_names)
            found = rows_of(source)
        np.testing.assert_array_equal(found[:226], found[226:])


def test_names_of_genes_of_any_type(tmp_path, cells):
    names = np.array([f"g{k}" for k in range(8)])
    for stored in (
        {"values": names.astype("S"), "mask": np.zeros(8, dtype=bool)},
        {"": names.astype("S")},
        {"": names.astype(object)},
    ):
        with h5py.File(tmp_path / "f.h5", "w") as file:
            file["X"], file["mod/rna/X"] = cells.layers["dense"], cells.layers["dense"]
            file["obsm/X_same_width"] = cells.layers["dense"]
            for place in ("var", "mod/rna/var"):
                for part, values in stored.items():
                    file[f"{place}/_index/{part}".rstrip("/")] = values
        for x_name, expected in (
            ("X", list(names)),
            ("mod/rna/X", list(names)),
            ("obsm/X_s", None),
        ):
            x_name = x_name.replace("X_s", "X_same_width")
            with open_source(tmp_path / "f.h5", x_name=x_name) as source:
                assert source.columns == expected
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file["X"], file["var"] = cells.layers["dense"], np.arange(8.0)  # variances, not names
    with open_source(tmp_path / "f.h5") as source:
        assert source.columns is None


@pytest.mark.parametrize("names_of", ["data", "model"])
def test_rows_without_names_are_taken_by_position(ooc_fw, tmp_path, cells, places, names_of):
    np.save(tmp_path / "X.npy", cells.X.toarray())
    np.save(tmp_path / "y.npy", cells.obs["batch"])
    bare = tmp_path / "X.npy", "--labels", tmp_path / "y.npy"
    named = places["h5ad"], "--label", "batch"
    first, second = (bare, named) if names_of == "data" else (named, bare)
    ooc_fw("train", *first, "-o", tmp_path / "m.h5", "--quiet").done()
    expected = ooc_fw("predict", tmp_path / "m.h5", first[0])
    outcome = ooc_fw("predict", tmp_path / "m.h5", second[0])
    assert (expected.err, outcome.out) == ("", expected.out)
    assert outcome.err.count("columns are taken by position") == 1
