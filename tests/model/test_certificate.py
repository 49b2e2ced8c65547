"""The gap of a model, computed again from what its file holds, against brute force."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from ooc_fw import FrankWolfeOneClass, FrankWolfeSVC, FrankWolfeSVR, InputError, load_model
from ooc_fw.landmarks import relative_gap
from ooc_fw.model.machines import Classifier
from tests.support.landmarks import span_objectives, span_values
from tests.support.models import make_model, random_rows
from tests.support.reference import kernel_values, to_csr
from tests.support.strategies import SEEDS, kernels, raw_tables, tables

C, N_ROWS = 2.0, 600


def fitted(n_classes=3, *, kernel="rbf", sparse=False, weights=None):
    """A landmark model, its rows and labels, and the penalties of all rows."""
    rng = np.random.default_rng(n_classes)
    X = rng.normal(size=(N_ROWS, 5)).astype(np.float32)
    y = (X[:, :n_classes] + rng.normal(size=(N_ROWS, n_classes))).argmax(axis=1)
    of_rows = rng.uniform(0.5, 5, N_ROWS) if weights == "rows" else np.ones(N_ROWS)
    by_class = {k: k + 1.0 for k in range(n_classes)} if weights == "classes" else None
    own = {"gamma": 0.3, "coef0": 1.0, "landmarks": 40, "class_weight": by_class}
    estimator = FrankWolfeSVC(kernel, C=C, random_state=0, **own)
    rows = csr_array(X) if sparse else X
    estimator.fit(rows, y, of_rows if weights == "rows" else None)
    return estimator.model_, rows, y, C * of_rows * (1 if by_class is None else y + 1)


def bounds_of(model, rows, y, penalties=None):
    """Upper bounds on P and lower ones on D, of each classifier."""
    found = model.certify(rows, y, penalties=penalties, dask="threads", threads=2)
    return np.array([[each[name] for each in found.classifiers] for name in ("primal", "dual")])


def objectives(model, X, y, penalties):
    """P and D by the formulas, in extended precision."""
    X = X if isinstance(X, np.ndarray) else X.toarray()
    signs = np.where(y[:, None] == [own["positive"] for own in model.named_sides], 1, -1)
    values = span_values(model.kernel, X, model.support_vectors, model.jitter)
    return span_objectives(*values, [own.beta for own in model.classifiers], signs, penalties)


@given(raw_tables(max_rows=30) | tables(max_rows=30), st.booleans(), SEEDS, st.data())
def test_bounds_hold_on_awkward_rows(X, sparse, seed, data):
    rng, kernel = np.random.default_rng(seed), data.draw(kernels(X))
    n = int(rng.integers(1, min(len(X), 12) + 1))
    rows = rng.permutation(len(X))[:n]
    size = np.diag(kernel_values(kernel, X[rows], X[rows])).astype(float).mean() + 1
    beta = rng.normal(size=n) * 10 ** rng.uniform(-3, 3) / np.sqrt(size)
    model = make_model(
        to_csr(X[rows]) if sparse else X[rows],
        kernel=kernel,
        C=10 ** rng.uniform(-3, 5),
        classes=np.arange(2.0),
        rows=rows,
        n_rows=len(X),
        landmarks=True,
        classifiers=[Classifier(np.arange(n), beta, 1.0)],
        jitter=10 ** rng.uniform(-7, -2) * size,
    )
    y = rng.permutation(np.arange(len(X)) % 2)
    upper, lower = bounds_of(model, csr_array(X) if sparse else X, y)
    primal, dual = objectives(model, X, y, model.C)
    assert (upper >= primal * (1 - 1e-15)).all()
    assert (lower <= dual * (1 + 1e-15)).all()


@pytest.mark.parametrize(
    ("kernel", "n_classes", "sparse"),
    [("rbf", 2, True), ("rbf", 3, False), ("poly", 3, True), ("linear", 2, False)],
)
def test_bounds_are_tight_and_those_of_training(kernel, n_classes, sparse):
    model, *data, penalties = fitted(n_classes, kernel=kernel, sparse=sparse)
    for other in (model, dataclasses.replace(model, jitter=0.5)):
        upper, lower = bounds_of(other, *data)
        primal, dual = objectives(other, *data, penalties)
        assert (relative_gap(upper, lower) >= (primal - dual) / primal).all()
        np.testing.assert_allclose(upper, primal.astype(float), rtol=1e-4)
        np.testing.assert_allclose(lower, dual, rtol=1e-3)
        if other is model:
            known = [own.certified_gap for own in model.classifiers]
            np.testing.assert_allclose(relative_gap(upper, lower), known, rtol=1e-3, atol=1e-8)
    if kernel != "linear":  # for which it stands for weights of columns
        with pytest.raises(InputError, match="without jitter"):
            dataclasses.replace(model, jitter=0.0)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_weights_of_classes_are_known_and_those_of_rows_must_be_given(n_classes):
    for weights in ("classes", "rows"):
        model, *data, penalties = fitted(n_classes, weights=weights)
        upper, _ = bounds_of(model, *data, penalties if weights == "rows" else None)
        np.testing.assert_allclose(upper, objectives(model, *data, penalties)[0], rtol=1e-6)
    with pytest.raises(InputError, match="the penalties of all rows"):
        model.certify(*data)
    with pytest.raises(InputError, match="must not be negative, but that of row 0 is nan"):
        model.certify(*data, penalties=np.nan * penalties)
    np.testing.assert_allclose(bounds_of(model, *data, penalties / C)[0], upper, rtol=1e-9)
    with pytest.raises(InputError, match="the weights in array differ from those in training"):
        model.certify(*data, penalties=penalties[::-1])


@pytest.mark.parametrize("task", ["classification", "regression"])
@pytest.mark.parametrize("weight", [3e4, 0.0])
def test_weights_that_no_landmark_shows_are_demanded(task, weight, tmp_path):
    """The run ends on a sample, so that the file has no objective over all rows either."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(N_ROWS, 4)).astype(np.float32)
    y = (X[:, 0] + rng.normal(size=N_ROWS) > 0).astype(int)
    weights = np.where(rng.permutation(N_ROWS) < 2, weight, 1.0)
    kind = {"classification": FrankWolfeSVC, "regression": FrankWolfeSVR}[task]
    how = {"landmarks": 20, "max_iter": 2, "certify": False}
    for seed in range(99):
        own = kind("rbf", C=C, gamma=0.3, random_state=seed, **how)
        with pytest.warns(ConvergenceWarning, match="the limit of iterations"):
            own.fit(X, y, weights)
        if {*own.model_.penalties} == {C}:
            break
    own.save(tmp_path / "m.h5")
    model = load_model(tmp_path / "m.h5")
    assert {*model.penalties} == {C}
    if weight > 0:
        with pytest.raises(InputError, match="was trained with weights of rows"):
            model.certify(X, y)
    found = model.certify(X, y, penalties=C * weights)
    assert found.certified_gap > 0.1
    signs = np.where(y == 1, 1, -1)[:, None]
    if task == "classification":
        primal, dual = objectives(model, X, signs[:, 0], C * weights)
        assert found.certified_gap >= (primal - dual).item() / primal.item()
    with pytest.raises(InputError, match="the weights in array differ"):
        model.certify(X, y, penalties=C * weights[::-1])


def test_training_rows_are_accepted_although_float32_gave_another_objective():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(N_ROWS, 4)).astype(np.float32)
    y = (np.sin(X[:, 0]) + X[:, 1] > 0).astype(int)
    weights = rng.uniform(0.5, 2, N_ROWS)
    how = {"C": 1e6, "gamma": 1e-3, "landmarks": 40, "certify": False, "random_state": 0}
    model = FrankWolfeSVC(**how).fit(X, y, weights).model_
    found = model.certify(X, y, penalties=1e6 * weights)
    assert model.classifiers[0].primal != pytest.approx(found.worst["primal"], rel=1e-4)


@pytest.mark.parametrize("own", [FrankWolfeSVC(exact=True), FrankWolfeOneClass(C=0.1)])
@pytest.mark.parametrize("first", [0.0, 1.0])
def test_a_file_with_more_or_fewer_rows_is_refused(own, first):
    """The bits of rows with weight fill whole bytes, and end before the last row of the data."""
    X = np.random.default_rng(2).normal(size=(12, 3)).astype(np.float32)
    y = np.arange(12) % 2
    model = clone(own).fit(X[:9], y[:9], sample_weight=[first, *[1.0] * 8]).model_
    assert (model.n_rows, model.n_weighted) == (9, None if first else 8)
    assert model.certify(X[:9], y[:9]).certified_gap < 1e-3
    for n in (8, 12):
        with pytest.raises(InputError, match=f"has {n} rows but the model was trained on 9"):
            model.certify(X[:n], y[:n])


@pytest.mark.parametrize("change", ["nothing", "value", "label", "fewer rows"])
def test_training_rows_are_recognised(change):
    model = make_model(random_rows(4))  # whose vectors are rows 0, 2, 4 and 6
    (own,) = model.classifiers
    X, codes = random_rows(8, seed=9), np.arange(8) // 2 % 2
    X[model.rows[own.sv]], codes[model.rows[own.sv]] = model.support_vectors[own.sv], own.labels > 0
    if change == "value":
        X[4, 1] += 1
    elif change == "label":
        codes[4] = 1 - codes[4]
    elif change == "fewer rows":
        X, codes = X[:6], codes[:6]
    else:
        assert model.certify(X, model.classes[codes]).gap_scope == "all"
        return
    words = "row 4 of array is not the model's support vector|array has 6 rows but"
    with pytest.raises(InputError, match=words):
        model.certify(X, model.classes[codes])
