"""Columns whose values float32 would merge lose an offset before they are rounded."""

import h5py
import numpy as np
import pytest
from scipy.sparse import csr_array

from ooc_fw import FrankWolfeOneClass, FrankWolfeSVC, FrankWolfeSVR, tune
from ooc_fw.data.offsets import without_offsets
from ooc_fw.data.opening import open_dataset
from ooc_fw.data.views import SubsetSource


def times(n_rows=400, seed=0):
    """Seconds since 1970 that tell two classes, and noise."""
    rng = np.random.default_rng(seed)
    y = np.arange(n_rows) % 2
    X = np.c_[1.7e9 + 60 * y + 5 * rng.normal(size=n_rows), rng.normal(size=n_rows)]
    return X, y


def as_hdf5(X, folder):
    with h5py.File(folder / "X.h5", "w") as file:
        file["X"] = X
    return folder / "X.h5"


@pytest.mark.parametrize(("put", "kernel"), [(as_hdf5, "rbf"), (lambda X, _: X, "laplacian")])
def test_times_are_told_apart(put, kernel, tmp_path):
    X, y = times()
    model = FrankWolfeSVC(C=10, kernel=kernel).fit(put(X, tmp_path), y)
    new, truth = times(seed=1)
    data = put(new, tmp_path)
    assert np.mean(model.predict(data) == truth) > 0.99
    with open_dataset(data) as source:  # rows far from each other keep their digits
        places = np.array([0, 7, *range(300, 333)])
        values = model.model_.decision_function(SubsetSource(source, places))
    np.testing.assert_allclose(values, model.decision_function(new)[places], atol=1e-6)


def test_every_way_to_a_model_takes_offsets_away():
    (X, y), (new, truth) = times(), times(seed=1)
    streamed = FrankWolfeSVC(C=10).partial_fit(X, y, classes=[0, 1])
    for model in (streamed, tune(X, y, Cs=[10], gammas=["auto"]).model):
        assert np.mean(model.predict(new) == truth) > 0.99
    novelty = FrankWolfeOneClass(contamination=0.1).fit(X)
    assert novelty.predict([[1.7e9 + 1e5, 0.0]])[0] == -1
    fitted = FrankWolfeSVR(C=100).fit(X, X[:, 0] - 1.7e9)
    assert np.abs(fitted.predict(new) - (new[:, 0] - 1.7e9)).mean() < 3


@pytest.mark.parametrize(("make", "kernel"), [(csr_array, "rbf"), (np.asarray, "linear")])
def test_a_warning_names_columns_that_stay_merged(make, kernel, caplog):
    with open_dataset(make(times()[0])) as source:
        without_offsets(source, kernel)
    assert "column 0: its values cannot be told apart in float32; convert with" in caplog.text


@pytest.mark.parametrize(
    "X",
    [
        times()[0].astype(np.float32),
        np.random.default_rng(0).normal(size=(3000, 40)),
        np.cumsum(np.full((300, 2), 0.1), axis=0) % 1,
    ],
)
def test_other_rows_are_as_they_were(X, caplog):
    with open_dataset(X) as source:
        assert without_offsets(source, "rbf") is source
    assert not caplog.messages
