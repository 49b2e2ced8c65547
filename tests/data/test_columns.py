"""Columns are found by their names in every container that has names, and else by position."""

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

from ooc_fw import FrankWolfeSVC
from ooc_fw.convert.convert import convert
from ooc_fw.options import ConvertOptions
from ooc_fw.system.errors import InputError
from tests.conftest import make_table

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
    options = ConvertOptions(label="y", shuffle=False)
    convert([folder / "t.parquet"], folder / "t.h5", options)
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
    with pytest.raises(InputError, match=r"lacks the feature 'b'; give the columns of the train"):
        model.decision_function(NAMED[kind](other.drop(columns="b"), tmp_path / "less"))


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
