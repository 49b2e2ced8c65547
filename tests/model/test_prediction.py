"""Decision values and labels by definition, and rows made like those of training."""

import dataclasses
import pickle

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse

from ooc_fw import FrankWolfeSVC, InputError, load_model, make_kernel, open_dataset
from ooc_fw.convert.convert import convert
from ooc_fw.data.scaling import Scaling
from ooc_fw.data.views import SubsetSource
from ooc_fw.kernels.functions import KERNELS
from ooc_fw.model.machines import Classifier
from ooc_fw.model.prediction import DECISION_ACCURACY, Predictor, Wanted, like_training, suited
from ooc_fw.options import ConvertOptions
from tests.support.contracts import to_dense
from tests.support.low_rank import few_vertices
from tests.support.methods import grid
from tests.support.models import exact_decision, make_model, minmax, random_rows
from tests.support.reference import kernel_values, to_csr

D = 3

# -- decision values -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("sparse", [False, True])
def test_a_decision_value_is_the_sum_over_support_vectors(name, sparse):
    vectors, X = random_rows(9), random_rows(17_000, seed=5)  # more than are decided at once
    kernel = make_kernel(name, gamma=0.3, degree=3, coef0=1.0)
    model = make_model(vectors, kernel=kernel, sparse=sparse)
    expected = exact_decision(model, vectors, X)[:, 0]
    for threads, rows in ((1, X), (2, scipy.sparse.csr_array(X))):
        values = model.decision_function(rows, threads=threads)
        np.testing.assert_allclose(values, expected, rtol=1e-4, atol=1e-4)
        assert np.array_equal(model.predict(rows), np.where(expected > 0, 3.0, -7.0))


@pytest.mark.parametrize("size", [0.0, 1e-3, 1.0, 1e3, 1e6])
@pytest.mark.parametrize(("n_classes", "sparse"), [(2, False), (3, True)])
def test_values_of_landmarks_are_accurate_however_large_the_weights(size, n_classes, sparse):
    vectors, X = random_rows(12), random_rows(300, seed=5)
    model = make_model(vectors, n_classes, landmarks=True, size=size)
    source = open_dataset(scipy.sparse.csr_array(X) if sparse else X)
    expected = exact_decision(model, vectors, X)
    found = model.decision_function(source, threads=2).reshape(len(X), -1)
    assert np.abs(found - expected).max() <= DECISION_ACCURACY
    places = expected.argmax(axis=1) if n_classes == 3 else (expected[:, 0] > 0).astype(int)
    np.testing.assert_array_equal(model.predict(source), model.classes[places])


OTHERS = [(name, k % 2 > 0, k // 2 > 0, False) for k, name in enumerate(KERNELS) if name != "rbf"]


@pytest.mark.parametrize(
    ("name", "sparse", "labels_only", "landmarks"),
    [("rbf", False, False, False), ("rbf", True, True, True), *grid(OTHERS, quick=0)],
)
def test_a_row_alone_has_the_decision_value_it_has_among_others(
    name, sparse, labels_only, landmarks
):
    """Values for labels only give it the label that it has among others."""
    options = {"landmarks": True, "n_classes": 3, "size": 1e4} if landmarks else {}
    own = make_kernel(name, gamma=0.5)
    model = make_model(random_rows(500, seed=8), kernel=own, sparse=sparse, **options)
    X = random_rows(200, seed=9)

    def found(start, n=1, threads=1):
        rows = X[start : start + n]
        values = model.decision_function(rows, threads=threads, labels_only=labels_only)
        return model.class_places(values) if labels_only else values

    expected = found(0, len(X), threads=2)
    error = 0 if labels_only else 2 * DECISION_ACCURACY
    for n in (1, 40):
        parts = [found(k, n) for k in range(0, len(X), n)]
        np.testing.assert_allclose(np.concatenate(parts), expected, rtol=0, atol=error)


# -- labels --------------------------------------------------------------------------------------


def without_bias(kind, vectors, kernel, sparse):
    """A model whose bias decides nothing."""
    n_classes = 3 if kind in ("pairs", "landmarks") else 2
    own = {"kernel": kernel, "sparse": sparse, "rho": 0.01, "landmarks": kind == "landmarks"}
    model = make_model(vectors, n_classes, **own)
    if kind == "landmarks":
        return model
    rng, n, classifiers = np.random.default_rng(1), len(vectors), []
    for _ in model.classifiers:
        places = rng.permutation(n)[: n - 9 if kind == "pairs" else n]
        labels = np.where(vectors[places, 0] > 0, 1, -1)
        alpha = rng.dirichlet(np.ones(len(labels)))
        for label in (-1, 1):
            alpha[labels == label] /= 2 * alpha[labels == label].sum()
        beta = alpha if kind == "novelty" else alpha * labels * rng.choice([-1, 1])
        classifiers.append(Classifier(places, beta, 0.01))
    changes = {"classifiers": classifiers}
    if kind == "novelty":
        values = kernel_values(kernel, vectors, vectors[places]) @ beta
        offset = float(np.quantile(values.astype(np.float64), 0.3))
        changes |= {"offset": offset, "classes": np.array([-1.0, 1.0])}
    return dataclasses.replace(model, **changes)


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
    model = without_bias(kind, X[:60], make_kernel(kernel, gamma=0.1, coef0=1.0), sparse)

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
    with few_vertices(5), model.engine() as engine:
        predictor = Predictor(model, Wanted(True), engine)
        predictor.prepare_for(open_dataset(X))
        there = pickle.loads(pickle.dumps(predictor))  # as another process has it
        np.testing.assert_array_equal(predictor(X)[0], there(X)[0])


# -- rows like those of training -----------------------------------------------------------------


@pytest.mark.parametrize("scaling", [None, minmax()])
@pytest.mark.parametrize("width", [D - 1, D, D + 2])
def test_raw_rows_are_scaled_cut_and_padded(width, scaling):
    model = make_model(random_rows(4), scaling=scaling)
    raw = random_rows(6, d=width)
    found = np.concatenate([to_dense(rows) for rows in like_training(model, [to_csr(raw)])])
    expected = np.zeros((6, D))
    expected[:, : min(width, D)] = raw[:, :D]
    if scaling is not None:
        expected = (expected - np.arange(D)) * 0.5
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("labels_only", [False, True])
def test_rows_of_unknown_scaling_are_raw_and_scaled_like_those_of_training(labels_only):
    model, raw = make_model(random_rows(4), scaling=minmax()), random_rows(60)
    known = open_dataset(minmax().apply(raw, D))
    known.scaling = minmax()
    expected = model.decision_function(known, labels_only=labels_only)
    assert np.ptp(expected) > 0
    part = SubsetSource(open_dataset(raw), np.arange(60))
    for data in (raw, raw.astype(np.float64), scipy.sparse.csr_matrix(raw), part):
        found = model.decision_function(data, threads=2, labels_only=labels_only)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("sparse", [False, True])
def test_features_are_found_by_name(caplog, sparse):
    """Of raw rows and of scaled ones; others are left out."""
    scaling = Scaling("minmax", False, np.arange(3.0), np.array([0.5, 1.0, 2.0]))
    model = make_model(random_rows(4), scaling=scaling, columns=("a", "b", "c"))
    raw = random_rows(9)
    expected = model.decision_function(raw)
    assert "array or the training data name no features" in caplog.text
    caplog.clear()

    def named(places, names, scaled=False):
        table = np.column_stack([scaling.apply(raw, 3) if scaled else raw, np.full(9, 7)])
        values = table[:, places].astype(np.float32)
        source = open_dataset(scipy.sparse.csr_matrix(values) if sparse else values)
        source.columns = names
        if scaled:
            own = scaling.offset[places], scaling.factor[places]
            source.scaling = Scaling("minmax", False, *own)
        return source

    for given in (
        named([2, 0, 1], ["c", "a", "b"]),
        named([2, 0, 1], ["c", "a", "b"], scaled=True),
        named([2, 3, 0, 1, 3], ["c", "x", "a", "b", "y"]),
    ):
        np.testing.assert_array_equal(model.decision_function(given), expected)
    assert caplog.text == ""
    with pytest.raises(InputError, match="has a name twice"):
        model.decision_function(named([1, 1, 0, 2], ["b", "b", "a", "c"]))


def test_data_must_be_like_the_training_data_if_that_is_known(caplog):
    model, source = make_model(random_rows(4), scaling=minmax()), open_dataset(random_rows(2))
    for scaling in (None, minmax()):
        source.scaling = scaling
        suited(model, source)
    assert caplog.text == ""
    source.scaling = Scaling("maxabs", False, np.zeros(D), np.ones(D))
    with pytest.raises(InputError, match=r"array is scaled \(maxabs\) in another way .*--like"):
        suited(model, source)
    suited(make_model(random_rows(4)), source)
    assert "array is scaled (maxabs), and the model has no record" in caplog.text
    with pytest.raises(InputError, match="has 5 features but the model was trained on 3"):
        model.decision_function(random_rows(2, d=5))


# -- tables --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def table_model(tmp_path_factory):
    """A model of a converted CSV of words and numbers, the frame, and the folder of both."""
    folder, rng = tmp_path_factory.mktemp("table"), np.random.default_rng(0)
    colour = rng.choice(["red", "green", "blue"], 300)
    frame = pd.DataFrame({"size": rng.normal(size=300), "colour": colour})
    frame["y"] = np.where((frame["size"] > 0) ^ (colour == "red"), "in", "out")
    frame.to_csv(folder / "t.csv", index=False)
    frame.to_parquet(folder / "t.parquet")
    options = ConvertOptions(label="y", scale="standard", one_hot=["colour"])
    convert([str(folder / "t.csv")], folder / "t.h5", options)
    fitted = FrankWolfeSVC(C=10, probability=True, random_state=0).fit(str(folder / "t.h5"))
    fitted.save(folder / "m.h5")
    return load_model(folder / "m.h5"), frame, folder


@pytest.mark.parametrize("kind", ["pandas", "polars", "arrow", "batch", "csv", "parquet", "h5"])
def test_tables_are_predicted_as_by_the_command(table_model, ooc_fw, kind):
    """In the order of their rows, which a converted file does not have."""
    model, frame, folder = table_model
    raw = frame.sample(frac=1, axis=1, random_state=0)
    table = {
        "pandas": lambda: raw.drop(columns="y"),
        "polars": lambda: pl.from_pandas(raw),
        "arrow": lambda: pa.Table.from_pandas(raw),
        "batch": lambda: pa.Table.from_pandas(raw).to_batches()[0],
    }.get(kind, lambda: str(folder / f"t.{kind}"))()
    expected = ooc_fw("predict", folder / "m.h5", folder / "t.csv").out.split()
    assert (np.array(expected) == frame["y"]).mean() > 0.9
    assert model.predict(table).tolist() == expected
    shares = model.predict_proba(table)
    clear = shares.max(axis=1) > 0.6  # rows in doubt may have another label than the likelier one
    assert clear.mean() > 0.9
    assert (model.classes[shares.argmax(axis=1)] == expected)[clear].all()


def test_rows_of_an_open_source_come_as_they_are_stored(table_model):
    model, _, folder = table_model
    data = str(folder / "t.h5")
    with open_dataset(data) as source:
        ids = source.row_ids(0, source.n_rows)
        opened = model.predict(source)
    assert (ids != np.arange(300)).any()
    assert opened.tolist() == model.predict(data)[ids].tolist()


@pytest.mark.parametrize(
    ("use", "change", "message"),
    [
        ("predict", lambda own: pd.concat([own, own[["size"]]], axis=1), "Duplicate column names"),
        ("predict", lambda own: own.assign(colour=[1, "red"] * 150), "Could not convert 'red'"),
        ("predict", lambda own: own[:0], "this DataFrame has no rows"),
        ("predict", lambda own: own.assign(colour=None), "in column 'colour' is missing"),
        ("importance", lambda own: own, "convert"),
        ("certify", lambda own: own, "convert"),
    ],
)
def test_tables_of_no_use_are_refused(table_model, use, change, message):
    model, frame, _ = table_model
    with pytest.raises(InputError, match=message):
        getattr(model, use)(change(frame))
