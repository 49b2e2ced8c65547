"""A model applied by definition, the data that belong to it, and its file, whole and damaged."""

from __future__ import annotations

import dataclasses
import logging
import math
import subprocess
import sys
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import h5py
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw.data.converted import CONTENT
from ooc_fw.data.opening import open_source
from ooc_fw.data.scaling import Scaling
from ooc_fw.data.views import SubsetSource
from ooc_fw.estimators import FrankWolfeOneClass, FrankWolfeSVR
from ooc_fw.kernels.functions import KERNELS, make_kernel
from ooc_fw.model.pairs import BinaryClassifier, LandmarkClassifier
from ooc_fw.model.prediction import (
    check_source,
    decide,
    iter_decisions,
    like_training,
    suited,
    suits_few,
)
from ooc_fw.model.record import Model, check_training_rows, load_model
from ooc_fw.system.errors import InputError
from tests.support.contracts import to_dense
from tests.support.reference import kernel_values, to_csr

D = 3


def random_rows(n, d=D, seed=0, density=0.7):
    rng = np.random.default_rng(seed)
    return np.round(rng.normal(size=(n, d)) * (rng.random((n, d)) < density), 2).astype(np.float32)


def make_model(vectors, *, kernel=None, scaling=None, sparse=False, seed=1, **changes):
    """Hand-made model on dense `vectors`, whose training rows are 0, 2, 4 ..."""
    rng = np.random.default_rng(seed)
    m = len(vectors)
    alpha = rng.random(m)
    classifier = BinaryClassifier(
        alpha=alpha / alpha.sum(),
        labels=np.where(rng.random(m) < 0.5, -1, 1).astype(np.int8),
        sv=rng.permutation(m),
        rows=2 * rng.permutation(m),
        rho=0.125,
        objective=0.0625,
        certified_gap=1e-4,
        sampled_gap=None,
        positive=3.0,
        negative=-7.0,
    )
    return Model(
        kernel=kernel or make_kernel("rbf", gamma=0.5),
        C=2.0,
        classes=np.array([-7.0, 3.0]),
        scaling=scaling,
        status="converged",
        support_vectors=to_csr(vectors) if sparse else vectors,
        classifiers=[dataclasses.replace(classifier, **changes)],
    )


def minmax(d=D):
    return Scaling("minmax", False, np.arange(d, dtype=float), np.full(d, 0.5))


def exact_decision(model, vectors, X):
    """The decision function by definition, in extended precision."""
    (own,) = model.classifiers
    values = kernel_values(model.kernel, X, vectors[own.sv]) + 1
    return values @ (own.alpha * own.labels).astype(np.longdouble) / own.rho


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
    expected, done = exact_decision(model, vectors, X), []
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
    places = model.class_places(model.decision_function(X))
    low, high = (X[places == place][:100].astype(np.float64) for place in (0, 1))
    n = min(len(low), len(high))
    low, high = low[:n], high[:n]
    for _ in range(40):
        middle = (low + high) / 2
        above = model.class_places(model.decision_function(middle, labels_only=True)) > 0
        low[~above], high[above] = middle[~above], middle[above]
    for near in (low, high):
        values = model.decision_function(near)
        found = model.class_places(model.decision_function(near, labels_only=True))
        assert n > 50
        assert np.abs(values).max() < 1e-5
        np.testing.assert_array_equal(model.class_places(values), found)


@pytest.mark.parametrize(
    ("name", "sparse_model", "labels_only"),
    [
        pytest.param(name, k % 2 > 0, k // 2 % 2 > 0, marks=[pytest.mark.grid] * (k > 1))
        for k, name in enumerate(KERNELS)
    ],
)
def test_a_row_alone_has_the_decision_value_it_has_among_others(name, sparse_model, labels_only):
    """By the predictor that is kept, in any thread, and by that of passes over files."""
    kernel = make_kernel(name, gamma=0.5)
    model = make_model(random_rows(500, seed=8), kernel=kernel, sparse=sparse_model)
    X = random_rows(300, seed=9)
    expected = model.decision_function(X, threads=2, labels_only=labels_only)
    assert not suits_few(model, len(X), threads=2)
    own = dict(labels_only=labels_only)
    for n in (1, 3, 40):
        parts = [model.decision_function(X[k : k + n], **own) for k in range(0, len(X), n)]
        np.testing.assert_array_equal(np.concatenate(parts), expected)
    with ThreadPoolExecutor(4) as pool:
        parts = pool.map(lambda k: model.decision_function(X[k : k + 1], **own), range(len(X)))
        np.testing.assert_array_equal(np.concatenate(list(parts)), expected)


@pytest.mark.process
def test_memory_grows_with_the_results_only(tmp_path):
    X = random_rows(200_000, d=50)
    np.save(tmp_path / "X.npy", X)
    model = make_model(X[:4].copy())
    file_bytes = X.nbytes  # 40 MB
    del X
    model.decision_function(random_rows(3, d=50))  # imports and compiled code
    tracemalloc.start()
    try:
        assert len(model.decision_function(tmp_path / "X.npy")) == 200_000
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < file_bytes / 2


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
    known = open_source(minmax().apply(raw, D))
    known.scaling = minmax()
    expected = model.decision_function(known, labels_only=labels_only)
    assert np.ptp(expected) > 0
    part = SubsetSource(open_source(raw), np.array([[0, 60]]))
    for data in (raw, raw.astype(np.float64), scipy.sparse.csr_matrix(raw), part):
        for threads in (1, 2):
            found = model.decision_function(data, threads=threads, labels_only=labels_only)
            np.testing.assert_array_equal(found, expected)
        (_, found), *_ = iter_decisions(model, open_source(data), labels_only=labels_only)
        np.testing.assert_array_equal(found, expected)
    keeps_zero = dataclasses.replace(minmax(), kind="maxabs", offset=np.zeros(D))
    sparse = open_source(scipy.sparse.csr_matrix(raw))
    assert suited(dataclasses.replace(model, scaling=keeps_zero), sparse).sparse
    assert not suited(model, sparse).sparse


@pytest.mark.parametrize("sparse", [False, True])
def test_features_are_found_by_name(caplog, sparse):
    scaling = Scaling("minmax", False, np.arange(3.0), np.array([0.5, 1.0, 2.0]))
    model = dataclasses.replace(
        make_model(random_rows(4), scaling=scaling), columns=("a", "b", "c")
    )
    raw = random_rows(9)
    expected = model.decision_function(raw)
    for _ in range(2):
        model.decision_function(raw)
    assert caplog.text.count("no names of features in array, unlike the training data (a, b") == 1
    caplog.clear()

    def named(places, names, scaled=False):
        values = np.full((9, len(places)), 7, dtype=np.float32)
        for k, place in enumerate(places):
            if place is not None:
                values[:, k] = (scaling.apply(raw, 3) if scaled else raw)[:, place]
        source = open_source(scipy.sparse.csr_matrix(values) if sparse else values)
        source.columns = names
        if scaled:
            own = np.array(places)
            source.scaling = Scaling("minmax", False, scaling.offset[own], scaling.factor[own])
        return source

    for scaled in (False, True):
        found = model.decision_function(named([2, 0, 1], ["c", "a", "b"], scaled))
        np.testing.assert_array_equal(found, expected)
    assert caplog.text == ""
    with caplog.at_level(logging.WARNING):
        found = model.decision_function(named([2, None, 0, 1, None], ["c", "x", "a", "b", "y"]))
    np.testing.assert_array_equal(found, expected)
    assert (
        "has 2 features that the training data do not have (x, y); they are left out" in caplog.text
    )
    for data, message in (
        (named([0], ["a"]), r"lacks 2 of the 3 features .* \(b, c\)"),
        (named([0, 1, 2], ["a", "b", "d"]), r"lacks 1 of the 3 features .* \(c\)"),
        (named([1, 1, 0, 2], ["b", "b", "a", "c"]), "from column 0 on, and .*twice"),
    ):
        with pytest.raises(InputError, match=message):
            model.decision_function(data)


def test_data_must_be_like_the_training_data_if_that_is_known(caplog):
    model, source = make_model(random_rows(4), scaling=minmax()), open_source(random_rows(2))
    for scaling in (None, minmax()):
        source.scaling = scaling
        check_source(model, source)
    assert caplog.text == ""
    source.scaling = Scaling("maxabs", False, np.zeros(D), np.ones(D))
    with pytest.raises(InputError, match=r"array is scaled \(maxabs\) in another way .*--like"):
        check_source(model, source)
    with caplog.at_level(logging.WARNING):
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
        check_training_rows(model, open_source(X), codes)
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
        check_training_rows(model, open_source(X), codes)


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


def test_three_classes_need_three_classifiers():
    model = make_model(random_rows(4))
    with pytest.raises(InputError, match="for each pair of them, not 3 classes and 1 classifiers"):
        dataclasses.replace(model, classes=np.arange(3.0))


# -- file ------------------------------------------------------------------------------------------


@given(
    n=st.integers(1, 6),
    d=st.integers(1, 4),
    sparse=st.booleans(),
    name=st.sampled_from(list(KERNELS)),
    gap=st.none() | st.floats(0, 1),
    more=st.booleans(),
)
def test_save_and_load_give_the_model_back(tmp_path_factory, n, d, sparse, name, gap, more):
    path = tmp_path_factory.mktemp("model") / "model.h5"
    rows = {"kernel": make_kernel(name, gamma=0.1, degree=3, coef0=0.5), "sparse": sparse}
    model = make_model(random_rows(n, d), **rows, certified_gap=gap)
    if more:
        names = {"positive": "\u00e4", "negative": "B", "C": np.arange(1.0, n + 1)}
        own = dataclasses.replace(model.classifiers[0], **names, sigmoid_a=-1.5, sigmoid_b=0.25)
        model = dataclasses.replace(
            model, classes=np.array(["B", "\u00e4"]), classifiers=[own], scaling=minmax(d)
        )
    model.save(path)
    loaded = load_model(path)
    assert loaded.kernel == model.kernel
    assert (loaded.C, loaded.status) == (model.C, model.status)
    assert loaded.calibrated == more
    assert np.array_equal(loaded.classes, model.classes)
    assert_same_fields(loaded.classifiers[0], model.classifiers[0])
    assert np.array_equal(to_dense(loaded.support_vectors), to_dense(model.support_vectors))
    assert type(loaded.support_vectors) is type(model.support_vectors)
    assert loaded.scaling.same_as(model.scaling) if more else loaded.scaling is None


def assert_same_fields(found, expected):
    for field in dataclasses.fields(expected):
        a, b = getattr(found, field.name), getattr(expected, field.name)
        assert np.array_equal(a, b), field.name
        if isinstance(b, np.ndarray):
            assert a.dtype == b.dtype, field.name


def test_long_names_of_classes(tmp_path):
    names = np.array(["x" * 40_000, "y"])
    own = make_model(random_rows(4)).classifiers[0]
    own = dataclasses.replace(own, negative=names[0], positive=names[1])
    model = dataclasses.replace(make_model(random_rows(4)), classes=names, classifiers=[own])
    model.save(tmp_path / "model.h5")
    assert load_model(tmp_path / "model.h5").classes.tolist() == names.tolist()


@pytest.mark.parametrize("sparse", [False, True])
def test_layout_is_the_documented_one(tmp_path, sparse):
    model = make_model(random_rows(4), scaling=minmax(), sparse=sparse)
    model.save(tmp_path / "model.h5")
    with h5py.File(tmp_path / "model.h5") as file:
        attributes = dict(file.attrs)
        assert attributes.pop("class_names").tolist() == [-7, 3]
        assert attributes.pop("content_crc32") > 0
        assert attributes == {
            **{"format_version": 1, "kernel": b"rbf", "gamma": 0.5, "degree": 2, "coef0": 0.0},
            **{"C": 2.0, "status": b"converged", "scaling": b"minmax", "log1p": False},
        }
        assert file["scaling/offset"].shape == (D,)
        vectors = file["support_vectors"]
        if sparse:
            assert vectors.attrs["encoding-type"] == "csr_matrix"
            assert vectors.attrs["shape"].tolist() == [4, D]
            kinds = {"data": np.float32, "indices": np.int32, "indptr": np.int64}
            assert {name: part.dtype for name, part in vectors.items()} == kinds
        else:
            assert vectors.dtype == np.float32
        own = file["machines/0"]
        kinds = {"alpha": "float64", "labels": "int8", "sv": "int64", "rows": "int64"}
        assert {name: str(values.dtype) for name, values in own.items()} == kinds
        assert dict(own.attrs) == {
            **{"rho": 0.125, "objective": 0.0625, "certified_gap": 1e-4},
            **{"positive": 3.0, "negative": -7.0},
        }


def test_equal_models_give_equal_files(tmp_path):
    model = make_model(random_rows(4))
    model.save(tmp_path / "a.h5")
    time.sleep(1.1)  # a time stamp in the file would differ now
    model.save(tmp_path / "b.h5")
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()


@pytest.mark.parametrize("part", [0, 0.1, 0.5, 0.9, 0.999, "text", "data", None])
def test_file_that_is_no_model(tmp_path, part):
    path, message = tmp_path / "model.h5", r"model\.h5 is not a model file, or is damaged"
    make_model(random_rows(40)).save(path)
    content = path.read_bytes()
    if part is None:
        path.unlink()
        message = r"there is no model file .*model\.h5; write one"
    elif part == "data":
        with h5py.File(path, "w") as file:
            file["X"] = random_rows(3)
        message = r"model\.h5 is not a usable model file: it holds data"
    else:
        path.write_bytes(b"+1 1:0.5\n" if part == "text" else content[: int(part * len(content))])
    with pytest.raises(InputError, match=message):
        load_model(path)


def change_file(path, edit):
    with h5py.File(path, "r+") as file:
        edit(file)


def compress(file):
    """Store values that take far more memory than the file has bytes."""
    del file["machines/0/alpha"]
    file["machines/0"].create_dataset("alpha", data=np.zeros(10**6), compression="gzip")


def add_to(file, name, number):
    replace_part(file, name, file[name][...] + number)


def one_class_twice(file):
    file.attrs["class_names"] = [3.0, 3.0]
    file["machines/0"].attrs["negative"] = 3.0


def replace_part(file, name, values):
    del file[name]
    file[name] = values


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda f: f.attrs.__setitem__("format_version", 9), "its format is 9"),
        (lambda f: f.attrs.__setitem__("kernel", "other"), "kernel must be one of"),
        (lambda f: f.attrs.__delitem__("C"), "damaged"),
        (compress, "is compressed, which no such file is"),
        (lambda f: f.__delitem__("support_vectors"), "damaged"),
        (lambda f: f["machines/0"].__delitem__("alpha"), "damaged"),
        (lambda f: f["machines/0/alpha"].__setitem__(0, 7.0), "alpha must be non-negative"),
        (lambda f: f.move("machines/0", "machines/1"), "damaged"),
        (lambda f: f["support_vectors/indices"].__setitem__(0, 99), "a column number outside 0 to"),
        (lambda f: f["support_vectors/indptr"].__setitem__(1, 99), "row pointers do not rise"),
        (lambda f: replace_part(f, "machines/0/sv", np.ones(4)), "of type float64"),
        (lambda f: f["machines/0/sv"].__setitem__(0, f["machines/0/sv"][1]), "vector twice"),
        (lambda f: f["machines/0/rows"].__setitem__(0, f["machines/0/rows"][1]), "row twice"),
        (
            lambda f: add_to(f, "machines/0/labels", np.int64(256)),
            "a number that int8 does not hold",
        ),
        (
            lambda f: add_to(f, "support_vectors/indices", np.int64(2**32)),
            "has a column number outside 0 to",
        ),
        (
            lambda f: f["support_vectors/data"].__setitem__(0, np.nan),
            "infinite or too large",
        ),
        (
            lambda f: add_to(f, "support_vectors/data", np.array([1e300])),
            "infinite or too large",
        ),
        (lambda f: f["support_vectors"].attrs.__setitem__("shape", [4, 0]), "CSR|columns"),
        (lambda f: f["support_vectors"].attrs.__setitem__("shape", [4, 2**40]), "columns"),
        (lambda f: f.attrs.__setitem__("class_names", [np.nan, 3.0]), "not those of its"),
        (lambda f: one_class_twice(f), "classes must be .* all different"),
        (lambda f: f.attrs.__setitem__("class_names", [1.0, 3.0]), "not those of its classes"),
        (lambda f: f.attrs.__setitem__("C", np.nan), "the C of a model cannot be nan"),
        (lambda f: f.attrs.__setitem__("C", b"2"), "its C is no number"),
        (lambda f: f.attrs.__setitem__("offset", 1.0), "not the numbers of a model of class"),
        (lambda f: f.attrs.__setitem__("status", "fine"), "damaged"),
        (lambda f: f.attrs.__delitem__("scaling"), "lacks the kind of its scaling"),
        (lambda f: f["scaling/factor"].__setitem__(0, np.inf), "no finite number"),
        (lambda f: replace_part(f, "scaling/offset", np.ones(2)), "differ in shape"),
        (lambda f: f["machines/0"].attrs.__setitem__("certified_gap", -1.0), "cannot be -1"),
        (lambda f: f["machines/0"].attrs.__setitem__("sigmoid_a", 1.0), "no sigmoid"),
        (lambda f: f["machines/0"].attrs.__setitem__("rho", 1e-320), "rho must be"),
    ],
)
def test_damaged_file(tmp_path, edit, message):
    path = tmp_path / "model.h5"
    make_model(random_rows(4), sparse=True, scaling=minmax()).save(path)
    good = path.read_bytes()
    change_file(path, lambda file: file.attrs.__delitem__(CONTENT))  # as if without checksum
    change_file(path, edit)
    with pytest.raises(InputError, match=message):
        load_model(path)
    path.write_bytes(good)
    change_file(path, edit)
    with pytest.raises(InputError, match=f"{message}|does not match its checksum"):
        load_model(path)


@pytest.mark.parametrize("task", ["novelty", "regression"])
@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_damaged_numbers_of_other_tasks(ooc_fw, tmp_path, task, value):
    X, path = random_rows(50), tmp_path / "model.h5"
    own = FrankWolfeOneClass() if task == "novelty" else FrankWolfeSVR()
    own.fit(X, X[:, 0]).save(path)
    np.save(tmp_path / "X.npy", X)
    good = path.read_bytes()
    for name in ("offset",) if task == "novelty" else ("offset", "spread", "epsilon"):
        path.write_bytes(good)
        with h5py.File(path, "r+") as file:
            del file.attrs[CONTENT], file.attrs[name]
            if value is not None:
                file.attrs[name] = value
        outcome = ooc_fw("predict", path, tmp_path / "X.npy")
        outcome.assert_refused(
            "model.h5 is not a usable model file", task if value is None else name
        )


def test_files_without_a_checksum_are_read(tmp_path):
    model = make_model(random_rows(4))
    model.save(tmp_path / "model.h5")

    def make_old(file):
        del file.attrs[CONTENT]
        for name in ("kernel", "status"):
            file.attrs[name] = file.attrs[name].decode()

    change_file(tmp_path / "model.h5", make_old)
    assert_same_fields(load_model(tmp_path / "model.h5").classifiers[0], model.classifiers[0])
    assert load_model(tmp_path / "model.h5").status == "converged"


@pytest.mark.process
def test_a_bit_anywhere_in_a_model_is_found_or_harmless(tmp_path):
    """In a process of its own, which ends if HDF5 crashes or never comes back."""
    paths = [str(tmp_path / name) for name in ("dense.h5", "sparse.h5", "landmarks.h5")]
    for path in paths:
        model = make_model(random_rows(40), sparse="sparse" in path, scaling=minmax())
        if "landmarks" in path:
            (own,) = model.classifiers
            own = LandmarkClassifier(
                **{"beta": own.alpha, "landmarks": own.sv, "rows": own.rows},
                **{"primal": 3.0, "dual": 2.0, "certified_gap": None, "sampled_gap": 0.5},
                **{"jitter": 1e-6, "positive": own.positive, "negative": own.negative},
            )
            model = dataclasses.replace(model, classifiers=[own])
        model.save(path)
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
from tests.support.reference import kernel_values, to_csr
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
