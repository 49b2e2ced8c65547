"""Which columns matter: known columns, classes, categories, scaling, samples, threads."""

import tracemalloc

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from scipy.stats import spearmanr
from sklearn.inspection import permutation_importance

from ooc_fw import FrankWolfeOneClass, FrankWolfeSVC, FrankWolfeSVR
from tests.support.methods import grid


def made(n, d, seed=0):
    """Columns 0 to 4 matter, less and less, in ways that a linear model does not see whole."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)).astype(np.float32)
    score = 3 * np.abs(X[:, 0]) + X[:, 1:5] @ [1.4, 1.0, -0.7, 0.4]
    return X, score + 0.1 * rng.normal(size=n)


@pytest.mark.parametrize("kernel", grid(["rbf", "poly", "laplacian"], quick=1))
def test_ranks_of_known_columns_are_those_of_permutations(kernel):
    X, score = made(1200, 8)
    y = (score > np.median(score)).astype(int)
    estimator = FrankWolfeSVC(kernel, C=10, coef0=1.0, random_state=0).fit(X, y)
    found = estimator.model_.importance(X)
    how = {"n_repeats": 5, "random_state": 0, "scoring": "roc_auc"}
    expected = permutation_importance(estimator, X, y, **how).importances_mean
    assert spearmanr(found.values, expected).statistic >= 0.9
    assert found.order[:5].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("landmarks", [None, 60])
def test_columns_of_all_classes_matter(landmarks):
    """Column k says whether it is class k; the classifiers are of pairs, or against the rest."""
    rng = np.random.default_rng(0)
    X = rng.random((600, 5)).astype(np.float32)
    y = np.array(["a", "b", "c"])[X[:, :3].argmax(axis=1)]
    estimator = FrankWolfeSVC(C=10, landmarks=landmarks, random_state=0).fit(X, y)
    found = estimator.model_.importance(X)
    assert {*found.order[:3].tolist()} == {0, 1, 2}
    assert found.what == "the decision value for each class"


def test_regression_and_novelty_are_in_their_own_units():
    X, score = made(400, 6)
    for factor in (1, 1000):
        found = FrankWolfeSVR(C=100).fit(X, factor * score).model_.importance(X)
        assert found.what == "the prediction"
        # The target rises by 1.4 a standard deviation.
        assert found.values[1] == pytest.approx(1.4 * factor, rel=0.15)
    novelty = FrankWolfeOneClass(random_state=0).fit(X).model_.importance(X)
    assert novelty.what == "the score"
    assert (novelty.values > 0).all()


def test_storage_dask_and_samples_change_little(tmp_path):
    X, score = made(3000, 6)
    X[:, 5] = 0.25  # constant
    X *= np.abs(X) > 0.5
    model = FrankWolfeSVC(C=10, random_state=0).fit(X[:300], score[:300] > 1).model_
    np.save(tmp_path / "X.npy", X)
    first, whole = (model.importance(X, rows=rows) for rows in (2500, None))
    assert (first.n_rows, first.values[5], whole.n_rows) == (2500, 0, 3000)
    sparse = model.importance(scipy.sparse.csr_array(X), rows=2500)
    stored = model.importance(str(tmp_path / "X.npy"), rows=2500, dask="threads", threads=2)
    for found, near in ((sparse, 1e-9), (stored, 1e-9), (whole, 0.2)):
        np.testing.assert_allclose(first.values, found.values, rtol=near)


def test_scaled_and_raw_rows_give_the_same(ooc_fw, tmp_path):
    """Names come from the table, and the words of a category count together."""
    rng = np.random.default_rng(0)
    size, town, noise = rng.normal(100, 20, 400), rng.choice(["Bern", "Oslo"], 400), rng.random(400)
    y = (size + 30 * (town == "Oslo") > 110).astype(int)
    frame = pd.DataFrame({"size": size, "town": town, "noise": noise, "y": y})
    frame.to_csv(tmp_path / "t.csv", index=False)
    raw = np.column_stack([size, town == "Bern", town == "Oslo", noise])
    options = ("--label", "y", "--one-hot", "town", "--scale", "standard")
    ooc_fw("convert", tmp_path / "t.csv", tmp_path / "t.h5", *options).done()
    model = FrankWolfeSVC("linear", C=1e4).fit(str(tmp_path / "t.h5")).model_
    found, of_raw = model.importance(str(tmp_path / "t.h5")), model.importance(raw)
    assert [found.names[k] for k in found.order] == ["size", "town", "noise"]
    assert of_raw.names == found.names
    np.testing.assert_allclose(of_raw.values, found.values, rtol=1e-4)
    # Half of the step of 30 is taken by each of two columns that deviate by 1/2.
    assert found.values[1] / found.values[0] == pytest.approx(30 / 20 / 2 / np.sqrt(2), rel=0.1)


def test_wide_rows_are_looked_at_where_they_hold_values():
    """In time and memory that do not grow with the number of a column."""
    X, score = made(200, 6)
    X *= np.abs(X) > 0.5
    found = []
    for last in (5, 2_000_000):
        rows = scipy.sparse.coo_array(X)
        columns = np.where(rows.col == 5, last, rows.col)
        rows = scipy.sparse.csr_array((rows.data, (rows.row, columns)), (200, last + 1))
        model = FrankWolfeSVC(gamma=0.1, random_state=0).fit(rows, score > np.median(score)).model_
        tracemalloc.start()
        importance = model.importance(rows)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 32 << 20
        found.append(importance.values)
    assert importance.names[-1] == "2000000"
    np.testing.assert_allclose(found[1], found[0], rtol=1e-6)
