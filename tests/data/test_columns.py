"""Columns are found by their names in every container that has names, and else by position."""

import re
import warnings

import anndata
import dask.array as da
import h5py
import numpy as np
import pandas as pd
import polars
import pyarrow as pa
import pytest
import zarr
from scipy.sparse import csr_array, csr_matrix

from ooc_fw import FrankWolfeSVC, convert, load_model, open_dataset
from ooc_fw.system.errors import InputError
from tests.conftest import make_table
from tests.support.methods import grid

X, y = make_table(80, 4, seed=0)
FRAME = pd.DataFrame(X, columns=["a", "b", "c", "d"])


def annotated(frame, sparse=False):
    rows = csr_matrix(frame) if sparse else frame.to_numpy(np.float32)
    return anndata.AnnData(rows, var=pd.DataFrame(index=[*frame.columns]))


def h5ad(frame, folder, sparse=False):
    annotated(frame, sparse).write_h5ad(folder / "t.h5ad")
    return folder / "t.h5ad"


def zarr_store(frame, folder):
    with warnings.catch_warnings(action="ignore"):  # of what anndata will do one day
        annotated(frame).write_zarr(folder / "t.zarr")
    return folder / "t.zarr"


def converted(frame, folder):
    frame.assign(y=y).to_parquet(folder / "t.parquet")
    convert(folder / "t.parquet", folder / "t.h5", label="y", shuffle=False)
    return folder / "t.h5"


def foreign(kind):
    """HDF5 of another tool, which writes names as text of either kind, or beside a mask."""

    def write(frame, folder):
        index = frame.columns.to_numpy().astype(object if kind == "text" else "S")
        with h5py.File(folder / "t.h5", "w") as file:
            file["X"] = frame.to_numpy(np.float32)
            file["var/_index" + ("/values" if kind == "mask" else "")] = index
        return folder / "t.h5"

    return write


NAMED = {
    "pandas": lambda frame, _: frame,
    "pandas Float32": lambda frame, _: frame.astype("Float32"),
    "pandas objects": lambda frame, _: frame.astype("object"),
    "pandas index": lambda frame, _: frame.set_axis(pd.CategoricalIndex(frame.columns), axis=1),
    "pandas bytes": lambda frame, _: frame.rename(columns=str.encode),
    "polars": lambda frame, _: polars.from_pandas(frame),
    "arrow": lambda frame, _: pa.Table.from_pandas(frame),
    "AnnData": lambda frame, _: annotated(frame),
    "AnnData backed": lambda frame, folder: anndata.read_h5ad(h5ad(frame, folder), backed="r"),
    "h5ad": h5ad,
    "h5ad csr": lambda frame, folder: h5ad(frame, folder, sparse=True),
    "zarr": zarr_store,
    "converted": converted,
    **{f"HDF5 {kind}": foreign(kind) for kind in ("bytes", "text", "mask")},
}


@pytest.fixture(scope="module")
def model():
    return FrankWolfeSVC(random_state=0).fit(FRAME, y).model_


@pytest.mark.parametrize("kind", NAMED)
def test_columns_in_any_order_are_found_by_name(model, kind, tmp_path, caplog):
    assert list(model.columns) == ["a", "b", "c", "d"]
    expected = model.decision_function(FRAME)
    other = FRAME[["d", "b", "a", "c"]].assign(more=np.float32(1))
    data = NAMED[kind](other, tmp_path)
    np.testing.assert_array_equal(model.decision_function(data), expected)
    assert "name no features" not in caplog.text
    (tmp_path / "less").mkdir()
    with pytest.raises(InputError, match=r"lacks 1 of the 4 features .*: 'b'; give"):
        model.decision_function(NAMED[kind](other.drop(columns="b"), tmp_path / "less"))


@pytest.mark.parametrize(
    ("scale", "sparse"), grid([("none", True), ("standard", False), ("maxabs", True)], 1)
)
def test_features_that_rows_lack_may_count_as_0(tmp_path, ooc_fw, scale, sparse):
    """Before scaling, and in a converted file too; how many, and how many are new, is told."""
    train = annotated(FRAME, sparse)
    train.obs["kind"] = np.where(y > 0, "in", "out")
    train.write_h5ad(tmp_path / "t.h5ad")
    how = ("--label", "kind", "--scale", scale, "--quiet")
    ooc_fw("convert", tmp_path / "t.h5ad", tmp_path / "t.h5", *how).done()
    model = tmp_path / "m.h5"
    ooc_fw("train", tmp_path / "t.h5", "-o", model, "--quiet").done()
    whole = h5ad(FRAME.assign(b=0.0), tmp_path, sparse).rename(tmp_path / "whole.h5ad")
    expected = ooc_fw("predict", model, whole, "--decision").done().out
    important = ooc_fw("importance", model, whole).done().out
    less = h5ad(FRAME[["d", "a", "c"]].assign(new=np.nan, more=8.0), tmp_path, sparse)
    fill = ("--fill-missing", "0")
    outcome = ooc_fw("predict", model, less, "--decision", *fill).done()
    assert outcome.out == expected
    assert "1 of the 4 features of training are missing and count as 0" in outcome.err
    assert "2 of its features, which training did not have, are left out" in outcome.err
    assert ooc_fw("importance", model, less, *fill).done().out == important
    with open_dataset(less, fill_missing=0) as filled:
        found = load_model(model).decision_function(filled)
    np.testing.assert_allclose(found, np.array(expected.split(), float))
    for like in (model, tmp_path / "t.h5"):
        ooc_fw("convert", less, tmp_path / "o.h5", "--like", like, *fill, "--quiet").done()
        assert ooc_fw("predict", model, tmp_path / "o.h5", "--decision").done().out == expected
    message = "lacks 1 of the 4 features of training: 'b'; .* --fill-missing 0"
    np.save(tmp_path / "y.npy", train.obs["kind"].to_numpy(str))
    labels = ("--labels", tmp_path / "y.npy", "--fill-missing", "0")
    faults = [ooc_fw("certify", model, rows, *labels).err for rows in (whole, less)]
    assert faults[0].replace(str(whole), "") in faults[1].replace(str(less), "")
    update = ("train", "--stream", "--resume", model, "--quiet", "-o", tmp_path / "u.h5")
    updated = []
    for rows in (whole, less):
        ooc_fw(*update, rows, *labels).done()
        updated.append(ooc_fw("predict", tmp_path / "u.h5", whole, "--decision").done().out)
    assert updated[0] == updated[1] != expected
    assert re.search(message, ooc_fw(*update, less, *labels[:2]).err)
    assert "--resume MODEL" in ooc_fw("train", "--stream", less, *labels).err
    assert "goes with --stream" in ooc_fw("train", less, *labels).err
    assert re.search(message, ooc_fw("predict", model, less).err)
    assert "goes with --like" in ooc_fw("convert", less, tmp_path / "o.h5", *fill).err
    none = h5ad(FRAME.set_axis([*"efgh"], axis=1), tmp_path, sparse)
    assert "lacks 4 of the 4" in ooc_fw("predict", model, none, *fill).err
    less = h5ad(FRAME[["d", "a", "c"]], tmp_path, sparse)
    labels_of_rows = np.array(["in", "out", "new"] + ["in"] * 77)
    np.save(tmp_path / "y.npy", labels_of_rows)
    assert "--missing-labels drop" in ooc_fw(*update, less, *labels).err
    np.save(tmp_path / "y.npy", np.where(labels_of_rows == "new", "NA", labels_of_rows))
    learned = ooc_fw(*update, less, *labels, "--missing-labels", "drop", "--json").json()
    assert learned["n_rows"] == 79


def test_cells_without_a_label_can_be_left_out_of_training(tmp_path, ooc_fw):
    data = annotated(FRAME)
    data.obs["kind"] = np.where(np.arange(80) % 9 == 2, None, np.where(y > 0, "in", "out"))
    data.write_h5ad(tmp_path / "t.h5ad")
    given = (tmp_path / "t.h5ad", "--label", "kind", "--missing-labels", "drop")
    model = tmp_path / "m.h5"
    assert "is missing" in ooc_fw("train", *given[:3], "-o", model).err
    ooc_fw("train", *given, "-o", model, "--quiet").done()
    data[data.obs["kind"].notna()].write_h5ad(tmp_path / "kept.h5ad")
    kept = (tmp_path / "kept.h5ad", "--label", "kind", "-o", tmp_path / "k.h5", "--quiet")
    ooc_fw("train", *kept).done()
    found = [ooc_fw("predict", each, given[0]).out for each in (model, tmp_path / "k.h5")]
    assert found[0] == found[1]
    assert ooc_fw("certify", model, *given).done()
    ooc_fw("split", *given[:1], tmp_path / "a.h5", tmp_path / "b.h5", *given[1:]).done()
    ooc_fw("convert", *given[:1], tmp_path / "c.h5", *given[1:]).done()
    for name in ("a.h5", "c.h5"):  # neither is scaled
        assert "scaled" not in ooc_fw("evaluate", model, tmp_path / name).done().err
    assert "with --missing-labels drop" in ooc_fw("certify", model, *given[:3]).err


def test_names_that_come_twice_are_refused(model):
    twice = FRAME.assign(more=0).set_axis(["a", "b", "c", "d", "b"], axis=1)
    with pytest.raises(InputError, match="give the columns of the train"):
        model.decision_function(twice)


def as_npy(X, folder):
    np.save(folder / "X.npy", X)
    return folder / "X.npy"


BARE = {
    "array": lambda X, _: X,
    "csr": lambda X, _: csr_array(X),
    "npy": as_npy,
    "zarr": lambda X, folder: zarr.create_array(str(folder / "X.zarr"), data=X, chunks=(20, 4)),
    "dask": lambda X, _: da.from_array(X, chunks=(20, 4)),
    "numbered frame": lambda X, _: pd.DataFrame(X),
}


@pytest.mark.parametrize("kind", BARE)
def test_columns_without_names_are_taken_by_position(model, kind, tmp_path, caplog):
    """With a warning, unless neither side has names."""
    data = BARE[kind](X, tmp_path)
    np.testing.assert_array_equal(model.decision_function(data), model.decision_function(FRAME))
    assert "or the training data name no features: columns are taken by pos" in caplog.text
    caplog.clear()
    bare = FrankWolfeSVC(random_state=0).fit(data, y).model_
    np.testing.assert_array_equal(bare.predict(data), bare.predict(X))
    assert caplog.text == ""
    bare.predict(FRAME)
    assert "or the training data name no features" in caplog.text
