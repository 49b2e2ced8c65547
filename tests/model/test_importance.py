"""Which columns matter: known columns, classes, categories, scaling, samples, threads."""

import tracemalloc

import numpy as np
import pytest
import scipy.sparse
from scipy.stats import spearmanr
from sklearn.inspection import permutation_importance

from ooc_fw import (
    FrankWolfeOneClass,
    FrankWolfeSVC,
    FrankWolfeSVR,
    load_model,
)


def made(n, d, seed=0):
    """Columns 0 to 4 matter, less and less, in ways that a linear model does not see whole."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)).astype(np.float32)
    score = 3 * np.abs(X[:, 0]) + X[:, 1:5] @ [1.4, 1.0, -0.7, 0.4]
    return X, score + 0.1 * rng.normal(size=n)


def same(one, other, **tolerance):
    np.testing.assert_allclose(one.values, other.values, **tolerance)


@pytest.mark.parametrize("kernel", ["rbf", "laplacian", "poly"])
def test_ranks_of_known_columns_are_those_of_permutations(kernel):
    X, score = made(1200, 8)
    y = (score > np.median(score)).astype(int)
    estimator = FrankWolfeSVC(kernel, C=10, coef0=1.0, random_state=0).fit(X, y)
    found = estimator.model_.importance(X)
    expected = permutation_importance(
        estimator, X, y, n_repeats=5, random_state=0, scoring="roc_auc"
    ).importances_mean
    assert spearmanr(found.values, expected).statistic >= 0.9
    assert found.order[:5].tolist() == [0, 1, 2, 3, 4]
    assert found.what == "the decision value for 1"


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
    one, other = (
        FrankWolfeSVR(C=100, random_state=0).fit(X, factor * score).model_.importance(X)
        for factor in (1, 1000)
    )
    np.testing.assert_allclose(other.values, 1000 * one.values, rtol=0.1)
    assert one.what == "the prediction"
    # The target rises by 1.4 a standard deviation.
    assert one.values[1] == pytest.approx(1.4, rel=0.15)
    novelty = FrankWolfeOneClass(random_state=0).fit(X).model_.importance(X)
    assert novelty.what == "the score"
    assert (novelty.values > 0).all()


def test_storage_dask_and_samples_change_little(tmp_path):
    X, score = made(3000, 6)
    X[:, 5] = 0.25  # constant
    X *= np.abs(X) > 0.5
    model = FrankWolfeSVC(C=10, random_state=0).fit(X[:300], score[:300] > 1).model_
    np.save(tmp_path / "X.npy", X)
    first = model.importance(X, rows=2500)
    assert (first.n_rows, first.values[5]) == (2500, 0)
    same(first, model.importance(scipy.sparse.csr_array(X), rows=2500), rtol=1e-9)
    path = str(tmp_path / "X.npy")
    same(first, model.importance(path, rows=2500, dask="threads", threads=2), rtol=1e-9)
    whole = model.importance(X, rows=None)
    assert whole.n_rows == 3000
    same(first, whole, rtol=0.2)


def test_scaled_and_raw_rows_give_the_same(ooc_fw, tmp_path):
    """Names come from the table, and the words of a category count together."""
    rng = np.random.default_rng(0)
    size, town, noise = rng.normal(100, 20, 400), rng.choice(["Bern", "Oslo"], 400), rng.random(400)
    y = (size + 30 * (town == "Oslo") > 110).astype(int)
    cells = zip(size, town, noise, y, strict=True)
    lines = [f"{a:.3f},{b},{c:.3f},{d}" for a, b, c, d in cells]
    raw = np.column_stack([size, town == "Bern", town == "Oslo", noise])
    (tmp_path / "t.csv").write_text("size,town,noise,y\n" + "\n".join(lines) + "\n")
    data, model = tmp_path / "data.h5", tmp_path / "model.h5"
    options = ("--label", "y", "--one-hot", "town", "--scale", "standard")
    ooc_fw("convert", tmp_path / "t.csv", data, *options).done()
    ooc_fw("train", data, "-o", model, "--kernel", "linear", "--C", 1e4, "--quiet").done()
    found = ooc_fw("importance", model, data, "--json", "--quiet").json()
    columns = {one["name"]: one for one in found["columns"]}
    assert [one["name"] for one in found["columns"]] == ["size", "town", "noise"]
    ratio = columns["town"]["importance"] / columns["size"]["importance"]
    # Half of the step of 30 is taken by each of two columns that deviate by 1/2.
    assert ratio == pytest.approx(30 / 20 / 2 / np.sqrt(2), rel=0.1)
    of_raw = load_model(model).importance(raw)
    values = [columns[name]["importance"] for name in of_raw.names]
    np.testing.assert_allclose(of_raw.values, values, rtol=1e-4)


@pytest.mark.parametrize("scale", ["none", "maxabs"])
def test_wide_rows_are_looked_at_where_they_hold_values(ooc_fw, tmp_path, scale):
    """In time and memory that do not grow with the number of a column."""
    X, score = made(200, 6)
    X = np.round(X * (np.abs(X) > 0.5), 3)
    found = []
    for name, last in (("narrow", 6), ("wide", 2_000_000)):
        places = [1, 2, 3, 4, 5, last]
        lines = [
            f"{int(of > 0)} " + " ".join(f"{p}:{v}" for p, v in zip(places, row, strict=True) if v)
            for row, of in zip(X, score - np.median(score), strict=True)
        ]
        text, data, model = (tmp_path / f"{name}{end}" for end in (".txt", ".h5", ".m.h5"))
        text.write_text("\n".join(lines) + "\n")
        ooc_fw("convert", text, data, "--sparse", "--scale", scale, "--quiet").done()
        ooc_fw("train", data, "-o", model, "--quiet").done()
        tracemalloc.start()
        columns = ooc_fw("importance", model, data, "--json", "--quiet").json()["columns"]
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        found.append({int(one["name"]) % last: one["importance"] for one in columns})
    assert scale == "maxabs" or peak < 32 << 20  # a factor for each column is in the model
    narrow, wide = found
    wide[5] = wide.pop(1_999_999)
    narrow[5] = narrow.pop(5)
    assert wide == pytest.approx(narrow, abs=2e-2)
