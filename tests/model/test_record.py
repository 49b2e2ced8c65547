"""A model applied by definition, and the data that belong to it."""

import dataclasses

import numpy as np
import pytest
import scipy.sparse

from ooc_fw import InputError, make_kernel, open_dataset
from ooc_fw.data.scaling import Scaling
from ooc_fw.data.views import SubsetSource
from ooc_fw.kernels.functions import KERNELS
from ooc_fw.model.prediction import (
    DECISION_ACCURACY,
    Wanted,
    decide,
    like_training,
    suited,
)
from tests.support.contracts import to_dense
from tests.support.methods import grid
from tests.support.models import exact_decision, make_model, minmax, random_rows
from tests.support.reference import to_csr

D = 3
OTHER_KERNELS = [name for name in KERNELS if name != "rbf"]


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
    expected = exact_decision(model, vectors, X)[:, 0]
    for threads in (1, 2):
        (values,) = decide(model, [to_csr(X) if sparse_data else X], threads=threads)
        np.testing.assert_allclose(values, expected, rtol=1e-4, atol=1e-4)
    assert np.array_equal(model.predict(X), np.where(expected > 0, 3.0, -7.0))


@pytest.mark.parametrize("one_class", [False, True])
def test_decision_values_have_the_labels_of_predict(one_class):
    """On rows as near to where the decision value is 0 as float32 allows."""
    forms = {"landmarks": one_class, "size": 0.05}  # weights of either sign
    model = make_model(random_rows(20), kernel=make_kernel("linear"), seed=0, **forms)
    X = random_rows(400, seed=5)
    if one_class:
        model = dataclasses.replace(model, offset=0.0, classes=np.array([-1.0, 1.0]))
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
        *(("rbf", False, False, False), ("rbf", True, True, True), ("rbf", False, False, True)),
        *grid(
            [(name, k % 2 > 0, k // 2 > 0, False) for k, name in enumerate(OTHER_KERNELS)],
            quick=0,
        ),
    ],
)
def test_a_row_alone_has_the_decision_value_it_has_among_others(
    name, sparse, labels_only, landmarks
):
    """Values for labels only give it the label that it has among others."""
    options = {"landmarks": True, "n_classes": 3, "size": 1e4} if landmarks else {}
    own = make_kernel(name, gamma=0.5)
    model = make_model(random_rows(500, seed=8), kernel=own, sparse=sparse, **options)
    X = random_rows(300, seed=9)

    def found(start, n=1, threads=1):
        rows = X[start : start + n]
        values = model.decision_function(rows, threads=threads, labels_only=labels_only)
        return model.class_places(values) if labels_only else values

    expected = found(0, len(X), threads=2)
    error = 0 if labels_only else 2 * DECISION_ACCURACY
    for n in (1, 40):
        parts = [found(k, n) for k in range(0, len(X), n)]
        np.testing.assert_allclose(np.concatenate(parts), expected, rtol=0, atol=error)


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
    part = SubsetSource(open_dataset(raw), np.arange(60))
    for data in (raw, raw.astype(np.float64), scipy.sparse.csr_matrix(raw), part):
        for threads in (1, 2):
            found = model.decision_function(data, threads=threads, labels_only=labels_only)
            np.testing.assert_array_equal(found, expected)
        found, *_ = decide(model, open_dataset(data), Wanted(labels_only))
        np.testing.assert_array_equal(found, expected)
    sparse = open_dataset(scipy.sparse.csr_matrix(raw))
    keeps_zero = dataclasses.replace(minmax(), kind="maxabs", offset=np.zeros(D))
    for scaling, kept in ((keeps_zero, True), (minmax(), False)):
        assert suited(dataclasses.replace(model, scaling=scaling), sparse).sparse is kept


@pytest.mark.parametrize("sparse", [False, True])
def test_features_are_found_by_name(caplog, sparse):
    """Of raw rows and of scaled ones; others are left out."""
    scaling = Scaling("minmax", False, np.arange(3.0), np.array([0.5, 1.0, 2.0]))
    model = make_model(random_rows(4), scaling=scaling)
    model = dataclasses.replace(model, columns=("a", "b", "c"))
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

    for scaled in (False, True):
        found = model.decision_function(named([2, 0, 1], ["c", "a", "b"], scaled))
        np.testing.assert_array_equal(found, expected)
    assert caplog.text == ""
    found = model.decision_function(named([2, 3, 0, 1, 3], ["c", "x", "a", "b", "y"]))
    np.testing.assert_array_equal(found, expected)
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


# -- training rows -------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["nothing", "value", "label", "fewer rows"])
def test_training_rows_are_recognised(monkeypatch, change):
    monkeypatch.setattr("ooc_fw.model.prediction.PART_BYTES", 3 * 4 * D)
    model = make_model(random_rows(4))
    (own,) = model.classifiers
    X, codes = random_rows(8, seed=9), np.arange(8) // 2 % 2
    X[model.rows[own.sv]], codes[model.rows[own.sv]] = model.support_vectors[own.sv], own.labels > 0
    if change == "nothing":
        assert model.certify(X, model.classes[codes]).gap_scope == "all"
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
        model.certify(X, model.classes[codes])
