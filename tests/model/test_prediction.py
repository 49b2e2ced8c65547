"""Decision values and labels by definition, and rows made like those of training."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse

from ooc_fw import FrankWolfeOneClass, FrankWolfeSVC, InputError, convert, make_kernel, open_dataset
from ooc_fw.data.scaling import Scaling
from ooc_fw.data.views import SubsetSource
from ooc_fw.kernels.engine import Engine
from ooc_fw.kernels.functions import KERNELS
from ooc_fw.model.prediction import DECISION_ACCURACY, suited
from tests.support.models import exact_decision, make_model, minmax, random_rows
from tests.support.solving import few_vertices

EXACT = [{"kernel": make_kernel(name, gamma=0.3, degree=3, coef0=1.0)} for name in KERNELS]
SPAN = [{"landmarks": True, "size": size} for size in (0.0, 1e-3, 1.0, 1e3, 1e6)]


@pytest.mark.parametrize("options", EXACT + SPAN)
@pytest.mark.parametrize(("n_classes", "sparse"), [(2, False), (3, True)])
def test_a_decision_value_is_the_sum_over_support_vectors_however_large_its_weights(
    options, n_classes, sparse
):
    n = 17_000 if n_classes == 2 else 300  # more than are decided at once
    vectors, X = random_rows(9), random_rows(n, seed=5)
    model = make_model(vectors, n_classes, sparse=sparse, **options)
    expected = exact_decision(model, vectors, X)
    places = model.class_places(expected.squeeze().astype(np.float64))
    for threads, rows in ((1, X), (2, scipy.sparse.csr_array(X))):
        values = model.decision_function(rows, threads=threads).reshape(expected.shape)
        assert np.abs(values - expected).max() <= DECISION_ACCURACY
        assert np.array_equal(model.predict(rows), model.classes[places])


@pytest.mark.parametrize(
    "options",
    [{"n_classes": 2}, {"n_classes": 3, "sparse": True}, {"n_classes": 3, "landmarks": True}],
)
def test_a_model_is_prepared_once(options, monkeypatch):
    model, X = make_model(random_rows(200), **options), random_rows(5, seed=5)
    values = model.decision_function(X)
    seen = []
    whole = Engine.prepare

    def counted(engine, rows, exact=False):
        seen.append(len(rows))
        return whole(engine, rows, exact)

    monkeypatch.setattr(Engine, "prepare", counted)
    with ThreadPoolExecutor(4) as pool:
        parts = [*pool.map(lambda k: model.decision_function(X[k : k + 1]), range(5))]
    assert max(seen) == 1
    np.testing.assert_allclose(np.concatenate(parts), values, rtol=0, atol=2 * DECISION_ACCURACY)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other.__dict__.keys() == {each.name for each in fields(model)}
        assert np.array_equal(other.decision_function(X), values)


def test_a_changed_model_is_prepared_anew():
    model, X = make_model(random_rows(200)), random_rows(5, seed=5)
    values = model.decision_function(X)
    one = model.classifiers[0]
    one.beta[:] *= -1
    changed = model.decision_function(X)
    np.testing.assert_allclose(changed, -values, rtol=0, atol=2 * DECISION_ACCURACY)
    model.support_vectors[:] = 0
    assert np.ptp(model.decision_function(X)) != pytest.approx(np.ptp(changed))
    model.classifiers[0] = replace(one, beta=-one.beta, rho=2 * one.rho)
    larger = replace(model, offset=None)
    assert np.array_equal(larger.decision_function(X), model.decision_function(X))


def near_the_borders(places, X):
    """Rows on either side of where the label changes, as near as float32 allows."""
    labels = places(X)
    low, high = (X[labels == label][:15].astype(np.float64) for label in (0, 1))
    for _ in range(30):
        middle = (low + high) / 2
        is_low = places(middle.astype(np.float32)) == 0
        low[is_low], high[~is_low] = middle[is_low], middle[~is_low]
    return np.concatenate([low, high]).astype(np.float32)


@pytest.mark.parametrize(
    ("kind", "kernel", "sparse"),
    [
        ("two", "rbf", False),
        ("two", "linear", True),
        ("pairs", "laplacian", False),
        ("novelty", "rbf", True),
        ("landmarks", "poly", False),
    ],
)
def test_labels_are_those_of_the_decision_values_by_few_vectors_and_by_all(kind, kernel, sparse):
    """The rows include those whose labels no float32 value decides."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(6, 4))
    X = centres[rng.integers(0, 6, 700)] + 0.2 * rng.normal(size=(700, 4))
    X[:60:10] = X[1]
    X[-5:] = 0
    X = X.astype(np.float32)
    rows = scipy.sparse.csr_array(X) if sparse else X
    score = X[:, 0] + rng.normal(size=700)
    y = np.digitize(score, [0] if kind == "two" else [-0.5, 0.5])
    own = {"gamma": 0.1, "random_state": 0}
    if kind == "novelty":
        model = FrankWolfeOneClass(kernel, contamination=0.3, **own).fit(rows).model_
    else:
        own["landmarks"] = 40 if kind == "landmarks" else None
        model = FrankWolfeSVC(kernel, C=0.1, coef0=1.0, **own).fit(rows, y).model_

    def places(rows, labels_only=True):
        rows = scipy.sparse.csr_array(rows) if sparse else rows
        values = model.decision_function(rows, threads=2, labels_only=labels_only)
        return model.class_places(values)

    X = np.concatenate([X, near_the_borders(places, X)])
    expected = places(X, labels_only=False)
    assert len(np.unique(expected)) > 1
    for step in (None, 5):
        with few_vertices(step):
            np.testing.assert_array_equal(places(X), expected)


@pytest.mark.parametrize("labels_only", [False, True])
def test_rows_of_unknown_scaling_are_raw_and_scaled_like_those_of_training(labels_only):
    model, raw = make_model(random_rows(4), scaling=minmax()), random_rows(60)
    known = open_dataset(minmax().apply(raw, 3))
    known.scaling = minmax()
    expected = model.decision_function(known, labels_only=labels_only)
    assert np.ptp(expected) > 0
    part = SubsetSource(open_dataset(raw), np.arange(60))
    for data in (raw, raw.astype(np.float64), scipy.sparse.csr_matrix(raw), part):
        found = model.decision_function(data, threads=2, labels_only=labels_only)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
def test_features_are_found_by_name(caplog, sparse, scaled):
    """Others are left out, and the scaling of a source is that of its own columns."""
    scaling = Scaling("minmax", False, np.arange(3.0), np.array([0.5, 1.0, 2.0]))
    model = make_model(random_rows(4), scaling=scaling, columns=("a", "b", "c"))
    raw = random_rows(9)
    expected = model.decision_function(raw)
    assert "array or the training data name no features" in caplog.text
    caplog.clear()

    def named(places, names):
        values = (scaling.apply(raw, 3) if scaled else raw)[:, places]
        source = open_dataset(scipy.sparse.csr_matrix(values) if sparse else values)
        source.columns = names
        if scaled:
            source.scaling = Scaling(
                "minmax", False, scaling.offset[places], scaling.factor[places]
            )
        return source

    for given in (named([2, 0, 1], ["c", "a", "b"]), named([2, 1, 0, 1], ["c", "x", "a", "b"])):
        assert caplog.text == ""
        np.testing.assert_array_equal(model.decision_function(given), expected)
    assert "1 of its features, which training did not have, are left out" in caplog.text
    with pytest.raises(InputError, match=r"has the name .* twice"):
        model.decision_function(named([1, 1, 0, 2], ["b", "b", "a", "c"]))


def test_data_must_be_like_the_training_data_if_that_is_known(caplog):
    model, source = make_model(random_rows(4), scaling=minmax()), open_dataset(random_rows(2))
    for scaling in (None, minmax()):
        source.scaling = scaling
        suited(model, source)
    assert caplog.text == ""
    source.scaling = Scaling("maxabs", False, np.zeros(3), np.ones(3))
    with pytest.raises(InputError, match=r"array is scaled \(maxabs\) in another way .*--like"):
        suited(model, source)
    with pytest.raises(InputError, match=r"another way than the model's training data \(none\)"):
        suited(make_model(random_rows(4)), source)
    with pytest.raises(InputError, match="has 5 features but the model was trained on 3"):
        model.decision_function(random_rows(2, d=5))


@pytest.fixture(scope="module")
def table_model(tmp_path_factory):
    """A model of a converted CSV of words and numbers, the frame, and the folder of both."""
    folder, rng = tmp_path_factory.mktemp("table"), np.random.default_rng(0)
    colour = rng.choice(["red", "green", "blue"], 300)
    frame = pd.DataFrame({"size": rng.normal(size=300), "colour": colour})
    frame["y"] = np.where((frame["size"] > 0) ^ (colour == "red"), "in", "out")
    frame.to_csv(folder / "t.csv", index=False)
    frame.to_parquet(folder / "t.parquet")
    options = {"label": "y", "scale": "standard", "one_hot": ["colour"]}
    convert(folder / "t.csv", folder / "t.h5", **options)
    model = FrankWolfeSVC(C=10, probability=True).fit(str(folder / "t.h5")).model_
    model.save(folder / "m.h5")
    return model, frame, folder


@pytest.mark.parametrize("use", ["dates", "impute", "one_hot", "target_encode", "plain"])
@pytest.mark.parametrize("kind", ["pandas", "polars", "arrow"])
def test_a_frame_is_encoded_like_the_file_even_if_its_columns_have_the_names_of_features(
    tmp_path, use, kind
):
    """Times are seconds, missing numbers the mean, and numbers may be categories."""
    rng = np.random.default_rng(0)
    numbers = rng.integers(0, 4, 200).astype(float)
    frame = pd.DataFrame({"x": rng.normal(size=200), "t": numbers})
    frame["y"] = np.where((numbers > 1) ^ (frame["x"] > 0), "in", "out")
    if use == "dates":
        frame["t"] = pd.to_datetime(numbers * 1e5, unit="s")
    if use == "impute":
        frame.loc[::7, "t"] = np.nan
    frame.to_csv(tmp_path / "t.csv", index=False)
    how = {"impute": "mean"} if use == "impute" else {use: ["t"]}
    options = {} if use == "plain" else how
    convert(tmp_path / "t.csv", tmp_path / "t.h5", label="y", scale="standard", **options)
    estimator = FrankWolfeSVC(C=10, gamma=1.0).fit(str(tmp_path / "t.h5"))
    expected = estimator.predict(str(tmp_path / "t.csv")).tolist()
    rows = frame[["t", "x"]]
    makers = {"pandas": rows.copy, "polars": lambda: pl.from_pandas(rows)}
    makers["arrow"] = lambda: pa.Table.from_pandas(rows)
    assert estimator.predict(makers[kind]()).tolist() == expected
    assert estimator.predict(makers[kind]()[:1]).tolist() == expected[:1]
    if use == "dates":  # numbers could have any unit
        with pytest.raises(InputError, match=r"'t' of this .* holds numbers, not dates"):
            estimator.predict(rows.assign(t=numbers))


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table])
def test_times_in_a_frame_are_refused_without_a_record_of_its_columns(make):
    frame = make({"x": [1.0, 2.0], "t": pd.to_datetime([0, 1], unit="s").to_pydatetime().tolist()})
    with pytest.raises(InputError, match=r"column .t. of this \w+ holds .*numbers"):
        open_dataset(frame, [0, 1])
    with pytest.raises(InputError, match="column 't' of this "):
        FrankWolfeSVC().fit(frame, [0, 1])


def test_unknown_categories_are_told_and_a_column_of_them_alone_is_refused(table_model, caplog):
    model, frame, _ = table_model
    new = frame.head(7).assign(colour=["red", *"abcdef"])
    model.predict(new)
    said = "column 'colour': 6 of 7 rows have a category that the model lacks "
    assert [said + "('a', 'b', 'c', 'd', 'e', ...)" in one for one in caplog.messages] == [True]
    model.predict(new[1:2])  # a single row may be new
    with pytest.raises(InputError, match=r"'colour': all 6 rows .* the model lacks"):
        model.predict(new[1:])
