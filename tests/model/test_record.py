"""A model applied by definition, the data that belong to it, and its file, whole and damaged."""

import dataclasses
import math
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import h5py
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw import (
    FrankWolfeOneClass,
    FrankWolfeSVC,
    FrankWolfeSVR,
    InputError,
    Model,
    load_model,
    make_kernel,
    open_dataset,
)
from ooc_fw.convert.convert import convert
from ooc_fw.data.converted import CONTENT
from ooc_fw.data.scaling import Scaling
from ooc_fw.data.views import SubsetSource
from ooc_fw.kernels.functions import KERNELS
from ooc_fw.model.pairs import BinaryClassifier, LandmarkClassifier
from ooc_fw.model.prediction import (
    DECISION_ACCURACY,
    Wanted,
    check_source,
    decide,
    iter_decisions,
    like_training,
    suited,
    suits_few,
)
from ooc_fw.model.record import check_training_rows
from ooc_fw.options import ConvertOptions
from tests.support.contracts import to_dense
from tests.support.files import write_dense
from tests.support.methods import grid
from tests.support.reference import kernel_values, to_csr

D = 3
OTHER_KERNELS = [name for name in KERNELS if name != "rbf"]


def random_rows(n, d=D, seed=0, density=0.7):
    rng = np.random.default_rng(seed)
    return np.round(rng.normal(size=(n, d)) * (rng.random((n, d)) < density), 2).astype(np.float32)


def make_model(vectors, *, kernel=None, scaling=None, sparse=False, **changes):
    """Hand-made model on dense `vectors`, whose training rows are 0, 2, 4 ..."""
    rng, m = np.random.default_rng(1), len(vectors)
    alpha = rng.random(m)
    classifier = BinaryClassifier(
        **{"alpha": alpha / alpha.sum(), "labels": rng.choice(np.array([-1, 1], np.int8), m)},
        **{"sv": rng.permutation(m), "rows": 2 * rng.permutation(m), "rho": 0.125},
        **{"objective": 0.0625, "certified_gap": 1e-4, "sampled_gap": None},
        **{"positive": 3.0, "negative": -7.0},
    )
    return Model(
        **{"kernel": kernel or make_kernel("rbf", gamma=0.5), "C": 2.0, "scaling": scaling},
        **{"classes": np.array([-7.0, 3.0]), "status": "converged"},
        support_vectors=to_csr(vectors) if sparse else vectors,
        classifiers=[dataclasses.replace(classifier, **changes)],
    )


def with_landmarks(model, n_classes=2, size=1.0, **changes):
    """The model with weights of landmarks, one set for each of more than two classes."""
    (own,), rng = model.classifiers, np.random.default_rng(0)
    n, names, classes = len(own.sv), [(own.positive, own.negative)], model.classes
    if n_classes > 2:
        classes = np.array([-7.0, 3.0, 4.0, 9.0])[:n_classes]
        names = [(label, "rest") for label in classes]
    common = {
        **{"landmarks": np.arange(n), "rows": 3 * np.arange(n), "primal": 3.0, "dual": 2.5},
        **{"certified_gap": None, "sampled_gap": 0.25, "jitter": 2e-6, "C": own.C},
        **{"sigmoid_a": own.sigmoid_a, "sigmoid_b": own.sigmoid_b},
    }
    classifiers = [
        LandmarkClassifier(beta=size * rng.normal(size=n), positive=one, negative=other, **common)
        for one, other in names
    ]
    classifiers[-1] = dataclasses.replace(classifiers[-1], **changes)
    return dataclasses.replace(model, classes=classes, classifiers=classifiers)


def minmax(d=D):
    return Scaling("minmax", False, np.arange(d, dtype=float), np.full(d, 0.5))


def exact_decision(model, vectors, X):
    """The decision function by definition, in extended precision, shape (n_rows, k)."""
    values = kernel_values(model.kernel, X, vectors) + 1
    columns = []
    for own in model.classifiers:
        if isinstance(own, LandmarkClassifier):
            columns.append(values[:, own.landmarks] @ own.beta.astype(np.longdouble))
        else:
            beta = (own.alpha * own.labels).astype(np.longdouble)
            columns.append(values[:, own.sv] @ beta / own.rho)
    return np.stack(columns, axis=1)


# -- decision function -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "sparse_model", "sparse_data", "part_bytes"),
    [
        (name, form // 2 > 0, form % 2 > 0, None if (form + k) % 2 else 2 * 4 * D)
        for k, name in enumerate(KERNELS)
        for form in range(4)
    ],
)
def test_decision_function_is_the_sum_over_support_vectors(
    name, sparse_model, sparse_data, part_bytes, monkeypatch
):
    if part_bytes is not None:  # blocks are cut where sparse rows would grow
        monkeypatch.setattr("ooc_fw.model.prediction.PART_BYTES", part_bytes)
    vectors, X = random_rows(9), random_rows(20, seed=5)
    kernel = make_kernel(name, gamma=0.3, degree=3, coef0=1.0)
    model = make_model(vectors, kernel=kernel, sparse=sparse_model)
    expected, done = exact_decision(model, vectors, X)[:, 0], []
    for threads in (1, 2):
        (values,) = decide(model, [to_csr(X) if sparse_data else X], threads=threads)
        np.testing.assert_allclose(values, expected, rtol=1e-4, atol=1e-4)
    assert np.array_equal(model.predict(X), np.where(expected > 0, 3.0, -7.0))
    model.decision_function(X, on_rows=done.append)
    assert done[-1] == len(X)


@pytest.mark.parametrize("one_class", [False, True])
def test_decision_values_have_the_labels_of_predict(one_class):
    """On rows as near to where the decision value is 0 as float32 allows."""
    model, X = make_model(random_rows(20), kernel=make_kernel("linear")), random_rows(400, seed=5)
    if one_class:
        named = dataclasses.replace(model.classifiers[0], negative=-1.0, positive=1.0)
        classes = {"classes": np.array([-1.0, 1.0]), "classifiers": [named]}
        model = dataclasses.replace(model, offset=0.0, **classes)
        middle = float(np.median(model.decision_function(X)))
        model = dataclasses.replace(model, offset=middle)

    def places(rows, labels_only=True):
        return model.class_places(model.decision_function(rows, labels_only=labels_only))

    sides = places(X, labels_only=False)
    n = min(100, *np.bincount(sides))
    assert n > 50
    low, high = (X[sides == side][:n].astype(np.float64) for side in (0, 1))
    for _ in range(40):
        middle = (low + high) / 2
        above = places(middle) > 0
        low[~above], high[above] = middle[~above], middle[above]
    for near in (low, high):
        assert np.abs(model.decision_function(near)).max() < 1e-5
        np.testing.assert_array_equal(places(near, labels_only=False), places(near))


@pytest.mark.parametrize(
    ("name", "sparse", "labels_only", "landmarks"),
    [
        *(("rbf", False, False, False), ("rbf", True, True, True)),
        *grid(
            [
                *((name, k % 2 > 0, k // 2 > 0, False) for k, name in enumerate(OTHER_KERNELS)),
                ("rbf", False, False, True),
            ],
            quick=0,
        ),
    ],
)
def test_a_row_alone_has_the_decision_value_it_has_among_others(
    name, sparse, labels_only, landmarks
):
    """By the predictor that is kept, in any thread, and by that of passes over files.

    Values for labels only give it the label that it has among others.
    """
    model = make_model(random_rows(500, seed=8), kernel=make_kernel(name, gamma=0.5), sparse=sparse)
    if landmarks:
        model = with_landmarks(model, 3, 1e4)
    X = random_rows(300, seed=9)
    assert not suits_few(model, len(X), threads=2)

    def found(start, n=1, threads=1):
        rows = X[start : start + n]
        values = model.decision_function(rows, threads=threads, labels_only=labels_only)
        return model.class_places(values) if labels_only else values

    expected = found(0, len(X), threads=2)
    error = 0 if labels_only else 2 * DECISION_ACCURACY

    for n in (1, 3, 40):
        parts = [found(k, n) for k in range(0, len(X), n)]
        np.testing.assert_allclose(np.concatenate(parts), expected, rtol=0, atol=error)
    with ThreadPoolExecutor(4) as pool:
        parts = pool.map(found, range(len(X)))
        np.testing.assert_allclose(np.concatenate(list(parts)), expected, rtol=0, atol=error)


@pytest.mark.parametrize("size", [0.0, 1e-3, 1.0, 1e3, 1e6])
@pytest.mark.parametrize(("n_classes", "sparse"), [(2, False), (3, True)])
def test_values_of_landmarks_are_accurate_however_large_the_weights(size, n_classes, sparse):
    vectors, X = random_rows(12), random_rows(300, seed=5)
    model = with_landmarks(make_model(vectors), n_classes, size)
    source = open_dataset(scipy.sparse.csr_array(X) if sparse else X)
    expected = exact_decision(model, vectors, X)
    found = model.decision_function(source, threads=2).reshape(len(X), -1)
    assert np.abs(found - expected).max() <= DECISION_ACCURACY
    places = expected.argmax(axis=1) if n_classes == 3 else (expected[:, 0] > 0).astype(int)
    np.testing.assert_array_equal(model.predict(source), model.classes[places])


# -- scaling -------------------------------------------------------------------------------------


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
    part = SubsetSource(open_dataset(raw), np.array([[0, 60]]))
    for data in (raw, raw.astype(np.float64), scipy.sparse.csr_matrix(raw), part):
        for threads in (1, 2):
            found = model.decision_function(data, threads=threads, labels_only=labels_only)
            np.testing.assert_array_equal(found, expected)
        (_, found), *_ = iter_decisions(model, open_dataset(data), Wanted(labels_only))
        np.testing.assert_array_equal(found, expected)
    sparse = open_dataset(scipy.sparse.csr_matrix(raw))
    keeps_zero = dataclasses.replace(minmax(), kind="maxabs", offset=np.zeros(D))
    for scaling, kept in ((keeps_zero, True), (minmax(), False)):
        assert suited(dataclasses.replace(model, scaling=scaling), sparse).sparse is kept


@pytest.mark.parametrize("sparse", [False, True])
def test_features_are_found_by_name(caplog, sparse):
    """Of raw rows and of scaled ones; others are left out, with a word."""
    scaling = Scaling("minmax", False, np.arange(3.0), np.array([0.5, 1.0, 2.0]))
    model = make_model(random_rows(4), scaling=scaling)
    model = dataclasses.replace(model, columns=("a", "b", "c"))
    raw = random_rows(9)
    expected = model.decision_function(raw)
    assert "no names of features in array, unlike the training data (a, b" in caplog.text
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

    for scaled in (False, True):
        found = model.decision_function(named([2, 0, 1], ["c", "a", "b"], scaled))
        np.testing.assert_array_equal(found, expected)
    assert caplog.text == ""
    found = model.decision_function(named([2, 3, 0, 1, 3], ["c", "x", "a", "b", "y"]))
    np.testing.assert_array_equal(found, expected)
    assert "has 2 features that the training data do not have (x, y); they are" in caplog.text
    with pytest.raises(InputError, match=r"or others first, and .*twice"):
        model.decision_function(named([1, 1, 0, 2], ["b", "b", "a", "c"]))


def test_data_must_be_like_the_training_data_if_that_is_known(caplog):
    model, source = make_model(random_rows(4), scaling=minmax()), open_dataset(random_rows(2))
    for scaling in (None, minmax()):
        source.scaling = scaling
        check_source(model, source)
    assert caplog.text == ""
    source.scaling = Scaling("maxabs", False, np.zeros(D), np.ones(D))
    with pytest.raises(InputError, match=r"array is scaled \(maxabs\) in another way .*--like"):
        check_source(model, source)
    check_source(make_model(random_rows(4)), source)
    assert "array is scaled (maxabs), and the model has no record" in caplog.text
    with pytest.raises(InputError, match="has 5 features but the model was trained on 3"):
        model.decision_function(random_rows(2, d=5))


# -- training rows -------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["nothing", "value", "label", "fewer rows"])
def test_training_rows_are_recognised(monkeypatch, change):
    monkeypatch.setattr("ooc_fw.model.prediction.PART_BYTES", 3 * 4 * D)
    model = make_model(random_rows(4))
    (own,) = model.classifiers
    X, codes = random_rows(8, seed=9), np.ones(8, dtype=np.int64)
    X[own.rows], codes[own.rows] = model.support_vectors[own.sv], own.labels > 0
    if change == "nothing":
        check_training_rows(model, open_dataset(X), codes)
        return
    message = "row 4 of array is not the model's support vector"
    if change == "value":
        X[4, 1] += 1
    elif change == "label":
        codes[4] = 1 - codes[4]
    else:
        X, codes = X[:6], codes[:6]
        message = "array has 6 rows but the model was trained on row 6"
    with pytest.raises(InputError, match=message):
        check_training_rows(model, open_dataset(X), codes)


# -- record ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"alpha": np.array([0.5, 0.6, 0.1, 0.0])}, "alpha must be non-negative with sum 1"),
        ({"alpha": np.array([1.5, -0.5, 0.0, 0.0])}, "alpha must be non-negative"),
        ({"alpha": np.array([np.nan, 1, 0, 0])}, "alpha must be non-negative"),
        ({"alpha": np.ones(1)}, "of one length above 0"),
        ({"labels": np.array([0, 1, 1, 1], dtype=np.int8)}, "labels must be -1 or"),
        ({"rho": 0.0}, "rho must be a positive number, not 0"),
        ({"rho": math.nan}, "rho must be a positive number, not nan"),
        ({"C": np.array([1.0, 1, 0, 1])}, "C must be positive"),
        ({"sigmoid_a": math.nan, "sigmoid_b": 0.0}, "no sigmoid"),
        ({"sv": np.array([0, 1, 2, 4])}, "points outside the 4 vectors"),
        ({"sv": np.array([0, 1, 2, -1])}, "points outside the 4 vectors"),
    ],
)
def test_impossible_classifier_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        make_model(random_rows(4), **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"beta": np.full(4, np.nan)}, "beta must be finite"),
        ({"beta": np.ones(3)}, "must be of one length"),
        ({"jitter": -1.0}, "jitter must be"),
        ({"primal": np.inf}, "primal must be"),
        ({"dual": -1.0}, "dual must be"),
        ({"C": np.zeros(4)}, "C must be positive"),
        ({"landmarks": np.arange(1, 5)}, "points outside the 4 vectors"),
        ({"landmarks": np.arange(4)[::-1]}, "have the same landmarks"),
        ({"rows": np.arange(4)}, "have the same landmarks"),
    ],
)
def test_impossible_landmarks_are_refused(changes, message):
    model = make_model(random_rows(4))
    with pytest.raises(InputError, match=message):
        with_landmarks(model, 3, **changes)


def test_classes_need_as_many_classifiers():
    model = make_model(random_rows(4))
    with pytest.raises(InputError, match="for each pair of them, not 3 classes and 1 classifiers"):
        dataclasses.replace(model, classes=np.arange(3.0))
    model = with_landmarks(model, 3)
    with pytest.raises(InputError, match=r"for each of them against the rest, not 3 .* 2 class"):
        dataclasses.replace(model, classifiers=model.classifiers[:2])


# -- file ------------------------------------------------------------------------------------------


@given(
    n=st.integers(1, 6),
    d=st.integers(1, 4),
    sparse=st.booleans(),
    name=st.sampled_from(list(KERNELS)),
    gap=st.none() | st.floats(0, 1),
    more=st.booleans(),
    landmarks=st.booleans(),
)
def test_save_and_load_give_the_model_back(
    tmp_path_factory, n, d, sparse, name, gap, more, landmarks
):
    """Also long names of classes, sigmoids and penalties."""
    path = tmp_path_factory.mktemp("model") / "model.h5"
    kernel = make_kernel(name, gamma=0.1, degree=3, coef0=0.5)
    model = make_model(random_rows(n, d), kernel=kernel, sparse=sparse, certified_gap=gap)
    if more:
        classes = np.array(["B", "\u00e4" * 40_000])
        names = {"negative": classes[0], "positive": classes[1], "C": np.arange(1.0, n + 1)}
        own = dataclasses.replace(model.classifiers[0], **names, sigmoid_a=-1.5, sigmoid_b=0.25)
        model = dataclasses.replace(model, classes=classes, classifiers=[own], scaling=minmax(d))
    if landmarks:
        model = with_landmarks(model, 2 if more else 3)
    model.save(path)
    loaded = load_model(path)
    assert (loaded.kind, loaded.decision) == (model.kind, model.decision)
    assert loaded.kernel == model.kernel
    assert (loaded.C, loaded.status) == (model.C, model.status)
    assert loaded.calibrated == more
    assert np.array_equal(loaded.classes, model.classes)
    for pair in zip(loaded.classifiers, model.classifiers, strict=True):
        assert_same_fields(*pair)
    assert np.array_equal(to_dense(loaded.support_vectors), to_dense(model.support_vectors))
    assert type(loaded.support_vectors) is type(model.support_vectors)
    assert loaded.scaling.same_as(model.scaling) if more else loaded.scaling is None


def assert_same_fields(found, expected):
    assert type(found) is type(expected)
    for field in dataclasses.fields(expected):
        a, b = getattr(found, field.name), getattr(expected, field.name)
        assert np.array_equal(a, b), field.name
        if isinstance(b, np.ndarray):
            assert a.dtype == b.dtype, field.name


@pytest.mark.parametrize("sparse", [False, True])
def test_layout_is_the_documented_one(tmp_path, sparse):
    make_model(random_rows(4), scaling=minmax(), sparse=sparse).save(tmp_path / "m.h5")
    with h5py.File(tmp_path / "m.h5") as file:
        attributes = dict(file.attrs)
        assert attributes.pop("class_names").tolist() == [-7, 3]
        assert attributes.pop("content_crc32") > 0
        assert attributes == {
            **{"format_version": 1, "kernel": b"rbf", "gamma": 0.5, "degree": 2, "coef0": 0.0},
            **{"C": 2.0, "status": b"converged", "scaling": b"minmax", "log1p": False},
        }
        assert file["scaling/offset"].shape == (D,)
        vectors, own = file["support_vectors"], file["machines/0"]
        if sparse:
            assert vectors.attrs["encoding-type"] == "csr_matrix"
            assert vectors.attrs["shape"].tolist() == [4, D]
            assert types_of(vectors) == {"data": "float32", "indices": "int32", "indptr": "int64"}
        else:
            assert vectors.dtype == np.float32
        kinds = {"alpha": "float64", "labels": "int8", "sv": "int64", "rows": "int64"}
        assert types_of(own) == kinds
        assert dict(own.attrs) == {
            **{"rho": 0.125, "objective": 0.0625, "certified_gap": 1e-4},
            **{"positive": 3.0, "negative": -7.0},
        }


def types_of(group):
    return {name: str(values.dtype) for name, values in group.items()}


@pytest.mark.parametrize(("n_classes", "names"), [(2, [3.0, -7.0]), (3, [-7.0, b"rest"])])
def test_layout_of_landmarks_is_the_documented_one(tmp_path, n_classes, names):
    with_landmarks(make_model(random_rows(4), C=np.ones(4)), n_classes).save(tmp_path / "m.h5")
    with h5py.File(tmp_path / "m.h5") as file:
        assert file.attrs["format_version"] == 2
        assert file.attrs["decision"] == (b"ovo" if n_classes == 2 else b"ovr")
        own = file["machines/0"]
        kinds = {"beta": "float64", "landmarks": "int64", "rows": "int64", "C": "float64"}
        assert types_of(own) == kinds
        assert dict(own.attrs) == {
            **{"kind": b"landmarks", "primal": 3.0, "dual": 2.5, "sampled_gap": 0.25},
            **{"jitter": 2e-6, "positive": names[0], "negative": names[1]},
        }


def test_equal_models_give_equal_files():
    model = make_model(random_rows(4))
    first = model.to_bytes()
    time.sleep(1.1)  # a time stamp in the file would differ now
    assert model.to_bytes() == first


@pytest.mark.parametrize("part", [0, 0.1, 0.5, 0.9, 0.999, "text", "data", None])
def test_file_that_is_no_model(tmp_path, part):
    path, message = tmp_path / "model.h5", r"model\.h5 is not a model file, or is damaged"
    make_model(random_rows(40)).save(path)
    content = path.read_bytes()
    path.unlink()
    if part is None:
        message = r"there is no model file .*model\.h5; write one"
    elif part == "data":
        write_dense(path, random_rows(3), np.ones(3))
        message = r"model\.h5 is not a usable model file: it holds data"
    else:
        path.write_bytes(b"+1 1:0.5\n" if part == "text" else content[: int(part * len(content))])
    with pytest.raises(InputError, match=message):
        load_model(path)


def change_file(path, edit):
    with h5py.File(path, "r+") as file:
        edit(file)


def attribute(place, name, value):
    """An edit that sets an attribute of the file, or deletes it."""

    def edit(file):
        if value is None:
            del file[place].attrs[name]
        else:
            file[place].attrs[name] = value

    return edit


def first_value(place, value):
    """An edit that sets the first number of a data set."""
    return lambda file: file[place].__setitem__(0, value)


def replaced(place, values):
    """An edit that puts other values into the place of a data set; a function changes its own."""

    def edit(file):
        found = values(file[place][...]) if callable(values) else values
        del file[place]
        file[place] = found

    return edit


def compress(file):
    """Store values that take far more memory than the file has bytes."""
    del file["machines/0/alpha"]
    file["machines/0"].create_dataset("alpha", data=np.zeros(10**6), compression="gzip")


def one_class_twice(file):
    file.attrs["class_names"] = [3.0, 3.0]
    file["machines/0"].attrs["negative"] = 3.0


OF_LANDMARKS = [
    (attribute("/", "decision", "ovo"), "its decision is not 'ovr'"),
    (attribute("machines/0", "kind", "x"), "of a kind 'x'"),
    (attribute("machines/0", "kind", None), "damaged"),
    (attribute("machines/0", "jitter", None), "damaged"),
    (lambda file: file["machines/0"].__delitem__("beta"), "damaged"),
    (first_value("machines/1/landmarks", 4), "outside the 4 vectors"),
    (first_value("machines/1/rows", 1), "have the same landmarks"),
]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (attribute("/", "format_version", 9), "its format is 9"),
        (attribute("/", "kernel", "other"), "kernel must be one of"),
        (attribute("/", "C", None), "damaged"),
        (attribute("/", "C", np.nan), "the C of a model cannot be nan"),
        (attribute("/", "C", b"2"), "its C is no number"),
        (attribute("/", "offset", 1.0), "not the numbers of a model of class"),
        (attribute("/", "status", "fine"), "damaged"),
        (attribute("/", "scaling", None), "lacks the kind of its scaling"),
        (attribute("/", "class_names", [np.nan, 3.0]), "not those of its classes"),
        (one_class_twice, "classes must be .* all different"),
        (attribute("machines/0", "certified_gap", -1.0), "cannot be -1"),
        (attribute("machines/0", "rho", 1e-320), "rho must be"),
        (attribute("support_vectors", "shape", [4, 0]), "CSR|columns"),
        (attribute("support_vectors", "shape", [4, 2**40]), "columns"),
        (compress, "is compressed, which no such file is"),
        (lambda file: file["machines/0"].__delitem__("alpha"), "damaged"),
        (lambda file: file.move("machines/0", "machines/1"), "damaged"),
        (first_value("machines/0/alpha", 7.0), "alpha must be non-negative"),
        (first_value("support_vectors/indices", 99), "a column number outside 0 to"),
        (first_value("support_vectors/indptr", 1), "row pointers"),
        (first_value("support_vectors/data", np.nan), "infinite or too large"),
        (first_value("scaling/factor", np.inf), "no finite number"),
        (replaced("machines/0/sv", np.ones(4)), "of type float64"),
        (replaced("machines/0/sv", np.array([0, 0, 1, 2])), "vector twice"),
        (replaced("machines/0/rows", np.array([0, 0, 1, 2])), "row twice"),
        (replaced("machines/0/labels", lambda own: own + np.int64(256)), "int8 does not hold"),
        (replaced("support_vectors/indices", lambda own: own + np.int64(2**32)), "outside 0 to"),
        (replaced("support_vectors/data", lambda own: 1e300 + own.astype(float)), "too large"),
        (replaced("scaling/offset", np.ones(2)), "differ in shape"),
        *OF_LANDMARKS,
    ],
)
def test_damaged_file(tmp_path, edit, message):
    path = tmp_path / "model.h5"
    model = make_model(random_rows(4), sparse=True, scaling=minmax())
    (with_landmarks(model, 3) if (edit, message) in OF_LANDMARKS else model).save(path)
    good = path.read_bytes()
    for checked in (False, True):
        path.write_bytes(good)
        change_file(path, edit)
        if not checked:
            change_file(path, attribute("/", CONTENT, None))
        expected = f"{message}|does not match its checksum" if checked else message
        with pytest.raises(InputError, match=expected):
            load_model(path)


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
@pytest.mark.parametrize("own", [FrankWolfeOneClass(), FrankWolfeSVR()], ids=str)
def test_damaged_numbers_of_other_tasks(tmp_path, own, value):
    X, path = random_rows(50), tmp_path / "model.h5"
    own.fit(X, X[:, 0]).save(path)
    good, task = path.read_bytes(), own.model_.task
    for name in ("offset",) if task == "novelty" else ("offset", "spread", "epsilon"):
        path.write_bytes(good)
        change_file(path, attribute("/", CONTENT, None))
        change_file(path, attribute("/", name, value))
        message = f"model.h5 is not a usable model file.*{task if value is None else name}"
        with pytest.raises(InputError, match=message):
            load_model(path)


def test_files_without_a_checksum_are_read(tmp_path):
    """Nor do attributes have to be of the type that is written."""
    path, model = tmp_path / "model.h5", make_model(random_rows(4))
    model.save(path)
    change_file(path, attribute("/", CONTENT, None))
    for name, text in (("kernel", "rbf"), ("status", "converged")):
        change_file(path, attribute("/", name, text))
    assert_same_fields(load_model(path).classifiers[0], model.classifiers[0])
    assert load_model(path).status == "converged"


@pytest.mark.process
def test_a_bit_anywhere_in_a_model_is_found_or_harmless(tmp_path):
    """In a process of its own, which ends if HDF5 crashes or never comes back."""
    paths = [str(tmp_path / name) for name in ("dense.h5", "sparse.h5", "landmarks.h5")]
    for path in paths:
        model = make_model(random_rows(40), sparse="sparse" in path, scaling=minmax())
        (with_landmarks(model) if "landmarks" in path else model).save(path)
    run = subprocess.run(
        [sys.executable, "-c", FLIP, *paths], capture_output=True, text=True, timeout=120
    )
    print(run.stdout)
    assert run.returncode == 0, run.stderr
    assert all(int(line.split()[2]) > 10 for line in run.stdout.splitlines())


FLIP = """
import random, sys
from pathlib import Path
from ooc_fw.system.errors import InputError
from ooc_fw.model.record import load_model

for path in map(Path, sys.argv[1:]):
    good, again = path.read_bytes(), path.with_name("again.h5")
    draw = random.Random(0)
    n_found = 0
    for place in draw.sample(range(len(good)), 60):
        data = bytearray(good)
        data[place] ^= 1 << draw.randrange(8)
        path.write_bytes(data)
        try:
            load_model(path).save(again)
        except InputError as error:
            assert str(path) in str(error)
            n_found += 1
        else:
            assert again.read_bytes() == good, place
    print("60 trials:", n_found, "changed bits found, the others harmless")
"""


@pytest.fixture(scope="module")
def table_model(tmp_path_factory):
    """A model of a converted CSV of words and numbers, the frame, and the files."""
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
    return load_model(folder / "m.h5"), frame, folder, fitted


@pytest.mark.parametrize("kind", ["pandas", "polars", "arrow", "csv", "parquet", "h5"])
def test_tables_are_predicted_as_by_the_command(table_model, ooc_fw, kind):
    """In the order of their rows, which a converted file does not have."""
    model, frame, folder, fitted = table_model
    raw = frame.sample(frac=1, axis=1, random_state=0)
    table = {
        "pandas": lambda: raw.drop(columns="y"),
        "polars": lambda: pl.from_pandas(raw),
        "arrow": lambda: pa.Table.from_pandas(raw),
    }.get(kind, lambda: str(folder / f"t.{kind}"))()
    expected = ooc_fw("predict", folder / "m.h5", folder / "t.csv").out.split()
    assert model.predict(table).tolist() == expected
    assert (np.array(expected) == frame["y"]).mean() > 0.9
    shares = model.predict_proba(table)
    clear = shares.max(axis=1) > 0.6  # rows in doubt may have another label than the likelier one
    assert clear.mean() > 0.9
    assert (model.classes[shares.argmax(axis=1)] == expected)[clear].all()
    if isinstance(table, str) and kind == "h5":
        assert fitted.predict(table).tolist() == expected
        assert fitted.score(table) == fitted.score(table, frame["y"]) > 0.9


def test_tables_that_are_not_like_others(table_model):
    model, frame, folder, _ = table_model
    batch = pa.Table.from_pandas(frame).to_batches()[0]
    assert model.predict(batch).tolist() == model.predict(frame).tolist()
    for wrong, message in (
        (pd.concat([frame, frame[["size"]]], axis=1), "Duplicate column names"),
        (frame.assign(colour=[1, "red"] * 150), "Could not convert 'red'"),
        (frame[:0], "this DataFrame has no rows"),
        (frame.assign(colour=None), "the value in column 'colour' is missing"),
    ):
        with pytest.raises(InputError, match=message):
            model.predict(wrong)
    for rows in (frame, str(folder / "t.csv")):
        with pytest.raises(InputError, match="table of raw columns; convert it like the training"):
            model.importance(rows)
        with pytest.raises(InputError, match="table of raw columns; give the converted file"):
            model.certify(rows)


def test_stored_order_on_request(table_model, ooc_fw):
    model, _, folder, _ = table_model
    data = str(folder / "t.h5")
    with open_dataset(data) as source:
        ids = source.row_ids(0, source.n_rows)
        opened = model.predict(source)
    assert (ids != np.arange(300)).any()
    stored = model.predict(data, order="stored").tolist()
    assert stored == opened.tolist() == model.predict(data)[ids].tolist()
    assert ooc_fw("predict", folder / "m.h5", data, "--order", "stored").out.split() == stored
    with pytest.raises(InputError, match="is a table, which one process parses; leave dask out"):
        model.predict(str(folder / "t.csv"), dask="threads")
    with pytest.raises(InputError, match="order must be original or stored"):
        model.predict(data, order="random")
