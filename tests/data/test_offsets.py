"""Columns whose values float32 would merge lose an offset before they are rounded."""

import anndata
import dask.array as da
import h5py
import numpy as np
import pytest
from scipy.sparse import csr_array

from ooc_fw import FrankWolfeOneClass, FrankWolfeSVC, FrankWolfeSVR, tune
from ooc_fw.data.offsets import without_offsets
from ooc_fw.data.opening import open_source, train_test_split
from ooc_fw.data.views import SubsetSource
from tests.support.methods import grid


def times(n_rows=400, seed=0):
    """Seconds since 1970 that tell two classes, and noise."""
    rng = np.random.default_rng(seed)
    y = np.arange(n_rows) % 2
    X = np.c_[1.7e9 + 60 * y + 5 * rng.normal(size=n_rows), rng.normal(size=n_rows)]
    return X, y


def as_npy(X, folder):
    np.save(folder / "X.npy", X)
    return folder / "X.npy"


def as_hdf5(X, folder):
    with h5py.File(folder / "X.h5", "w") as file:
        file["X"] = X
        file["y"] = np.arange(len(X)) % 2
    return folder / "X.h5"


CONTAINERS = {
    "array": lambda X, _: X,
    "npy": as_npy,
    "hdf5": as_hdf5,
    "dask": lambda X, _: da.from_array(X, chunks=(100, 2)),
    "anndata": lambda X, _: anndata.AnnData(X),
}


@pytest.mark.parametrize("kernel", grid(["rbf", "laplacian"], 1))
@pytest.mark.parametrize("put", CONTAINERS.values(), ids=CONTAINERS)
def test_times_are_told_apart(put, kernel, tmp_path):
    X, y = times()
    model = FrankWolfeSVC(C=10, kernel=kernel).fit(put(X, tmp_path), y)
    new, truth = times(seed=1)
    data = put(new, tmp_path)
    assert np.mean(model.predict(data) == truth) > 0.99
    assert model.model_.scaling.kind == "offset"
    with open_source(data) as source:  # rows far from each other keep their digits
        places = np.array([0, 7, *range(300, 333)])
        values = model.model_.decision_function(SubsetSource(source, places))
    np.testing.assert_allclose(values, model.model_.decision_function(new)[places], atol=1e-6)


@pytest.mark.grid
def test_every_way_to_a_model_takes_offsets_away(tmp_path, ooc_fw):
    (X, y), (new, truth) = times(), times(seed=1)
    streamed = (
        FrankWolfeSVC(C=10)
        .partial_fit(X[:200], y[:200], classes=[0, 1])
        .partial_fit(X[200:], y[200:])
    )
    train, _ = train_test_split(X, 0.2, labels=y)
    models = streamed, FrankWolfeSVC(C=10).fit(train), tune(X, y, Cs=[10], gammas=["auto"]).model
    for model in models:
        assert np.mean(model.predict(new) == truth) > 0.99
    novelty = FrankWolfeOneClass(contamination=0.1).fit(X)
    assert novelty.predict([[1.7e9 + 1e5, 0.0]])[0] == -1
    steps = 1.7e15 + np.arange(200)[:, None]  # microseconds
    fitted = FrankWolfeSVC(C=100, gamma=1e-3).fit(steps, np.arange(200) // 25 % 2)
    assert fitted.score(steps, np.arange(200) // 25 % 2) > 0.99
    fitted = FrankWolfeSVR(C=100).fit(X, X[:, 0] - 1.7e9)
    assert np.abs(fitted.predict(new) - (new[:, 0] - 1.7e9)).mean() < 3
    (tmp_path / "new").mkdir()
    data, other, model = as_hdf5(X, tmp_path), as_hdf5(new, tmp_path / "new"), tmp_path / "m.h5"
    ooc_fw("train", data, "-o", model, "--C", "10").done()
    ooc_fw("certify", model, data).done()
    assert ooc_fw("evaluate", model, other, "--json").json()["accuracy"] > 0.99


@pytest.mark.parametrize(("make", "kernel"), [(csr_array, "rbf"), (np.asarray, "linear")])
def test_a_warning_names_columns_that_stay_merged(make, kernel, caplog):
    with open_source(make(times()[0])) as source:
        without_offsets(source, kernel)
    assert "column 0: its values cannot be told apart in float32; convert with" in caplog.text


@pytest.mark.parametrize(
    "X",
    [
        times()[0].astype(np.float32),
        np.random.default_rng(0).normal(size=(3000, 40)),
        np.random.default_rng(0).integers(0, 2**40, size=(300, 4)),
        np.cumsum(np.full((300, 2), 0.1), axis=0) % 1,
        np.array([[0.3, 1.0], [0.1 + 0.2, 1.0], [0.7, 1 / 3 * 3]]),
    ],
)
def test_other_rows_are_as_they_were(X, caplog):
    with open_source(X) as source:
        assert without_offsets(source, "rbf") is source
    assert not caplog.messages
