"""The gap of a model, computed again from what its file holds, against brute force."""

import dataclasses

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from ooc_fw import InputError, Model, TrainOptions, make_kernel, open_dataset
from ooc_fw.data.sources import CSRSource
from ooc_fw.landmarks import relative_gap
from ooc_fw.model.machines import Classifier
from ooc_fw.problem import ClassificationProblem
from ooc_fw.solver.plan import Session
from tests.support.landmarks import solve_landmarks, span_objectives, span_values
from tests.support.models import make_model, random_rows, with_numbers
from tests.support.reference import kernel_values, to_csr
from tests.support.strategies import SEEDS, kernels, raw_tables, tables

C, N_ROWS = 2.0, 600


def make_problem(n_classes, *, weights=None, sparse=False, kernel="rbf"):
    rng = np.random.default_rng(n_classes)
    X = rng.normal(size=(N_ROWS, 5)).astype(np.float32)
    codes = (X[:, :n_classes] + rng.normal(size=(N_ROWS, n_classes))).argmax(axis=1)
    classes = C * np.arange(1.0, n_classes + 1)[codes]
    penalties = {None: None, "classes": classes, "rows": rng.uniform(0.5, 5, N_ROWS)}[weights]
    own = make_kernel(kernel, gamma=0.3, degree=2, coef0=1.0)
    source = CSRSource(to_csr(X), codes) if sparse else open_dataset(X, labels=codes)
    return X, ClassificationProblem(source, codes, own, penalties)


def train(problem):
    solution = solve_landmarks(problem, 25, TrainOptions(C=C), Session())
    own = {"classes": problem.classes, "penalties": problem.penalties}
    return Model.of(solution, None, kernel=problem.kernel, C=C, **own)


def certify(model, problem, **options):
    """Primal and dual of each classifier, shape (2, n_classifiers)."""
    how = {"penalties": problem.penalties, "threads": 2} | options
    found = model.certify(problem.source, **how)
    return np.array([[each[name] for each in found.classifiers] for name in ("primal", "dual")])


def objectives(model, X, problem):
    """P and D by the formulas, in extended precision."""
    places = [problem.classes.tolist().index(own["positive"]) for own in model.named_sides]
    signs = np.where(problem.codes[:, None] == np.array(places), 1, -1)
    values = span_values(model.kernel, X, model.support_vectors, model.jitter)
    betas = [own.beta for own in model.classifiers]
    penalties = model.C if problem.penalties is None else problem.penalties
    return span_objectives(*values, betas, signs, penalties)


@given(raw_tables(max_rows=30) | tables(max_rows=30), st.booleans(), SEEDS, st.data())
def test_bounds_hold_on_awkward_rows(X, sparse, seed, data):
    rng, kernel = np.random.default_rng(seed), data.draw(kernels(X))
    n = int(rng.integers(1, min(len(X), 12) + 1))
    rows = rng.permutation(len(X))[:n]
    diagonal = np.diag(kernel_values(kernel, X[rows], X[rows])).astype(float) + 1
    jitter = 10 ** rng.uniform(-7, -2) * diagonal.mean()
    beta = rng.normal(size=n) * 10 ** rng.uniform(-3, 3) / np.sqrt(diagonal.mean())
    codes = rng.permutation(np.arange(len(X)) % 2)
    assume(len(X) > 1)
    vectors, data = (to_csr(X[rows]), csr_array(X)) if sparse else (X[rows], X)
    model = Model(
        *(kernel, 10 ** rng.uniform(-3, 5), np.arange(2.0), None, "converged", vectors, rows),
        [Classifier(np.arange(n), beta, 1.0)],
        jitter=jitter,
    )
    problem = ClassificationProblem(None, codes, kernel, class_labels=np.arange(2))
    (found,) = model.certify(data, codes).classifiers
    primal, dual = objectives(model, X, problem)
    assert (found["primal"] >= primal * (1 - 1e-15)).all()
    assert (found["dual"] <= dual * (1 + 1e-15)).all()


@pytest.mark.parametrize(
    ("kernel", "n_classes", "sparse"),
    [
        *(("rbf", 2, True), ("rbf", 3, False), ("poly", 2, False)),
        *(("poly", 3, True), ("linear", 2, True), ("linear", 3, False)),
    ],
)
def test_bounds_hold_the_objectives_of_any_weights(kernel, n_classes, sparse):
    """And with any jitter, which is the one that is stored."""
    X, problem = make_problem(n_classes, sparse=sparse, kernel=kernel)
    model = train(problem)
    rng, trained = np.random.default_rng(0), model.classifiers

    def changed(factor=1.0, noise=1.0, **changes):
        own = [factor * own.beta * (1 + noise * rng.normal()) for own in trained]
        return dataclasses.replace(with_numbers(model, beta=own), **changes)

    for other in (model, changed(0.9), changed(30.0), changed(noise=0, jitter=0.5)):
        upper, lower = certify(other, problem)
        primal, dual = objectives(other, X, problem)
        assert (upper >= primal).all()
        assert (lower <= dual).all()
        gaps = relative_gap(upper, lower)
        assert (gaps >= (primal - dual) / primal).all()
        np.testing.assert_allclose(upper, primal.astype(float), rtol=1e-4)
        np.testing.assert_allclose(lower, dual, rtol=1e-3)
        if other is model:  # what training certified
            np.testing.assert_allclose(upper, [own.primal for own in trained], rtol=1e-8)
            known = [own.certified_gap for own in trained]
            np.testing.assert_allclose(gaps, known, rtol=1e-3, atol=1e-8)
    with pytest.raises(InputError, match="without jitter"):
        certify(changed(jitter=0.0), problem)


def test_passes_by_dask_are_those_of_this_process():
    _, problem = make_problem(3)
    model, done = train(problem), []
    here = certify(model, problem, on_rows=done.append)
    assert done[-1] == N_ROWS
    assert np.array_equal(here, certify(model, problem, dask="threads"))


@pytest.mark.parametrize("weights", ["classes", "rows"])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_weights_of_classes_are_known_and_those_of_rows_must_be_given(n_classes, weights):
    X, problem = make_problem(n_classes, weights=weights)
    model, without = train(problem), dataclasses.replace(problem, penalties=None)
    primal, _ = certify(model, problem if weights == "rows" else without)
    np.testing.assert_allclose(primal, objectives(model, X, problem)[0], rtol=1e-6)
    if weights == "rows":
        with pytest.raises(InputError, match="the penalties of all rows"):
            certify(model, without)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("nothing", None),
        ("value", "row 4 of array is not the model's support vector"),
        ("label", "row 4 of array is not the model's support vector"),
        ("fewer rows", "array has 6 rows but the model was trained on row 6"),
    ],
)
def test_training_rows_are_recognised(change, message):
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
    if message is None:
        assert model.certify(X, model.classes[codes]).gap_scope == "all"
        return
    with pytest.raises(InputError, match=message):
        model.certify(X, model.classes[codes])
