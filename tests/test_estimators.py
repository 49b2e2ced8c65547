from __future__ import annotations

import dask.array
import h5py
import numpy as np
import pytest
import scipy.sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.estimator_checks import parametrize_with_checks

from ooc_fw.errors import InputError
from ooc_fw.estimators import FrankWolfeSVC
from ooc_fw.model import load_model
from ooc_fw.sources import open_source


@parametrize_with_checks([FrankWolfeSVC()])
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def fitted(table):
    return FrankWolfeSVC(C=5, random_state=0).fit(*table)


def test_learns(fitted, table):
    assert fitted.score(*table) > 0.8
    assert fitted.solution_.status == "converged"
    assert 0 <= fitted.gap_ <= 1e-3


def test_attributes_make_up_the_decision_function(fitted, table):
    X = table.X.astype(float)
    Z = fitted.support_vectors_.astype(float)
    assert np.array_equal(Z, table.X[fitted.support_])
    distances = ((X[:, None] - Z) ** 2).sum(axis=2)
    K = np.exp(-fitted.model_.kernel.gamma * distances)
    expected = K @ fitted.dual_coef_[0] + fitted.intercept_
    np.testing.assert_allclose(fitted.decision_function(table.X), expected, rtol=1e-4, atol=1e-4)


def sources(table, folder):
    """The same rows in every form that is taken, with their labels."""
    X, y = table
    np.save(folder / "X.npy", X)
    np.save(folder / "y.npy", y)
    with h5py.File(folder / "d.h5", "w") as file:
        file["X"], file["y"] = X, y
    yield "float64", X.astype(float), y
    yield "list", X.tolist(), y.tolist()
    yield "scipy", scipy.sparse.csr_matrix(X), y
    yield "npy", str(folder / "X.npy"), str(folder / "y.npy")
    yield "npy and array", folder / "X.npy", y
    yield "memmap", np.load(folder / "X.npy", mmap_mode="r"), np.load(folder / "y.npy")
    yield "hdf5", folder / "d.h5", None
    yield "dask", dask.array.from_array(X, chunks=(64, 4)), y
    yield "source", open_source(X, y), None


def test_every_source_gives_the_same_machine(table, tmp_path):
    reference = FrankWolfeSVC(C=5, tol=1e-6, random_state=0).fit(*table)
    for name, X, y in sources(table, tmp_path):
        fitted = FrankWolfeSVC(C=5, tol=1e-6, random_state=0).fit(X, y)
        assert fitted.classes_.tolist() == [-7, 3], name
        assert fitted.solution_.objective == pytest.approx(
            reference.solution_.objective, rel=1e-5
        ), name
        assert fitted.score(X, y) == reference.score(*table), name


def test_open_hdf5_dataset(table, tmp_path, fitted):
    with h5py.File(tmp_path / "d.h5", "w") as file:
        file["X"] = table.X
        again = FrankWolfeSVC(C=5, random_state=0).fit(file["X"], table.y)
    assert again.solution_.objective == pytest.approx(fitted.solution_.objective, rel=2e-3)


def test_labels_may_be_words(table):
    y = np.where(table.y > 0, "spam", "ham")
    fitted = FrankWolfeSVC().fit(table.X, y)
    assert fitted.classes_.tolist() == ["ham", "spam"]
    assert set(fitted.predict(table.X)) == {"ham", "spam"}
    assert fitted.model_.classes.tolist() == [-1, 1]


def test_saved_model_predicts_the_same(fitted, table, tmp_path):
    fitted.save(tmp_path / "m.h5")
    loaded = load_model(tmp_path / "m.h5")
    assert np.array_equal(loaded.predict(table.X), fitted.predict(table.X))


def test_integer_random_state_is_the_seed_of_the_command(ooc_fw, data_file, tmp_path):
    ooc_fw("train", data_file, "-o", tmp_path / "a.h5", "--seed", 4, "--C", 5)
    FrankWolfeSVC(C=5, random_state=4).fit(data_file).save(tmp_path / "b.h5")
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()


@pytest.mark.parametrize("n_jobs", [None, 1, 2, -1])
def test_threads_do_not_change_the_machine(fitted, table, n_jobs):
    again = FrankWolfeSVC(C=5, random_state=0, n_jobs=n_jobs).fit(*table)
    assert np.array_equal(again.dual_coef_, fitted.dual_coef_)


def test_verbose_shows_progress(table, capsys, monkeypatch):
    monkeypatch.setattr("ooc_fw.progress.LINE_SECONDS", 0.0)
    FrankWolfeSVC(verbose=1).fit(*table)
    assert "support vectors" in capsys.readouterr().err


def test_not_converging_warns(table):
    estimator = FrankWolfeSVC(method="fw", max_iter=1)
    with pytest.warns(ConvergenceWarning, match="stopped by max_iter before the relative gap"):
        estimator.fit(*table)
    assert estimator.n_iter_ == 1


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"kernel": "cosine"}, "kernel must be one of"),
        ({"gamma": "wide"}, 'gamma must be "auto" or a positive number'),
        ({"method": "newton"}, "newton"),
        ({"C": -1}, "C must be a positive number"),
        ({"n_jobs": 0}, "n_jobs must be"),
    ],
)
def test_unusable_parameter(table, parameters, message):
    with pytest.raises(InputError, match=message):
        FrankWolfeSVC(**parameters).fit(*table)


def test_more_than_two_classes(table):
    with pytest.raises(InputError, match=r"Only binary classification is supported.*3 classes"):
        FrankWolfeSVC().fit(table.X, np.arange(200) % 3)


def test_one_class(table):
    with pytest.raises(InputError, match="one class only"):
        FrankWolfeSVC().fit(table.X, np.ones(200))
