"""Linear models, which have weights of columns, against brute force in extended precision."""

import numpy as np
import onnxruntime
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.sparse import csr_array
from sklearn.svm import LinearSVC

from ooc_fw import FrankWolfeSVC, FrankWolfeSVR, InputError, TrainOptions, load_model, make_kernel
from ooc_fw import open_dataset as opened
from ooc_fw.model.onnx import to_onnx
from ooc_fw.problem import ClassificationProblem, RegressionProblem
from ooc_fw.system.memory import LARGEST_FACTOR
from ooc_fw.training.fit import fit
from tests.support.strategies import SEEDS, powers_of_ten, raw_tables, tables

LINEAR = make_kernel("linear")


def objective(v, X, targets, C, epsilon=None):
    """P of the weights of all columns and the bias, in extended precision."""
    h = X @ v[:-1] + v[-1]
    slack = 1 - targets * h if epsilon is None else abs(targets - h) - epsilon
    return (v @ v + (C * np.maximum(0, slack) ** 2).sum()) / 2


def improved(v, X, targets, C, epsilon=None):
    """The least P that Newton's method finds from `v`, at most P there."""
    X1 = np.hstack([X, np.ones((len(X), 1), dtype=X.dtype)])
    best = objective(v, X, targets, C, epsilon)
    for _ in range(20):
        h = X1 @ v
        slack = 1 - targets * h if epsilon is None else abs(targets - h) - epsilon
        signs = targets if epsilon is None else np.sign(targets - h)
        force = C * np.maximum(0, slack)
        hessian = np.eye(len(v)) + (X1.T * (C * (slack > 0))) @ X1
        scale = 1 / np.sqrt(np.diag(hessian))
        gradient = (v - X1.T @ (force * signs)) * scale
        scaled = (hessian * scale[:, None] * scale).astype(float)
        step = -np.linalg.lstsq(scaled, gradient.astype(float), rcond=None)[0] * scale
        values = [(objective(v + t * step, X, targets, C, epsilon), t) for t in (1, 0.3, 0.05)]
        value, t = min(values)
        if not value < best:
            break
        v, best = v + t * step, value
    return best


@given(
    raw_tables(max_rows=40) | tables(max_rows=40),
    st.sampled_from(["two", "three", "regression"]),
    powers_of_ten(-4, 6),
    powers_of_ten(-8, -1),
    st.booleans(),
    st.booleans(),
    SEEDS,
)
def test_certificates_hold_for_any_problem(X, task, C, tol, sparse, weighted, seed):
    rng = np.random.default_rng(seed)
    n = len(X)
    penalties = C * 10 ** rng.uniform(-2, 2, n) if weighted else None
    rows = opened(csr_array(X) if sparse else X)
    epsilon = None
    if task == "regression":
        y = rng.normal(size=n) + X[:, 0]
        problem = RegressionProblem(rows, y, LINEAR, 0.1 * y.std(), penalties)
    else:
        y = rng.permutation(np.arange(n) % (2 if task == "two" else 3))
        assume(len(np.unique(y)) == (2 if task == "two" else 3))
        problem = ClassificationProblem(rows, y, LINEAR, penalties)
    try:
        found = fit(problem, TrainOptions(C=C, tol=tol, threads=1 + seed % 2))
    except InputError:  # there is nothing to learn
        return
    model = found.model
    assert (model.kind, found.gap_scope) == ("linear", "all")
    of_rows = np.full(n, C, dtype=np.longdouble) if penalties is None else penalties
    long = X.astype(np.longdouble)
    for k, (own, v) in enumerate(zip(model.classifiers, model.column_weights(), strict=True)):
        if task == "regression":
            targets = (y.astype(np.longdouble) - model.offset) / model.spread
            epsilon = np.longdouble(problem.epsilon) / model.spread
        else:
            targets = np.where(y == (1 if task == "two" else k), 1, -1)
        v = v.astype(np.longdouble)
        primal = objective(v, long, targets, of_rows, epsilon)
        least = improved(v, long, targets, of_rows, epsilon)
        assert primal <= own.primal
        assert own.dual <= least
        assert primal - least <= own.certified_gap * primal * (1 + 1e-12)


def words(n_rows=600, n_features=900, n_classes=3):
    """Sparse rows of many columns, so that the preconditioner is a diagonal, and their classes."""
    rng = np.random.default_rng(0)
    X = rng.exponential(size=(n_rows, n_features)) * (rng.random((n_rows, n_features)) < 0.02)
    scores = X @ rng.normal(size=(n_features, n_classes)) + 0.3 * rng.normal(size=n_classes)
    return X.astype(np.float32), scores.argmax(axis=1)


@pytest.mark.parametrize("n_features", [30, 900])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_weights_are_those_of_liblinear(n_features, n_classes):
    assert 30 < LARGEST_FACTOR < 900
    X, y = words(n_features=n_features, n_classes=n_classes)
    own = FrankWolfeSVC("linear", C=2.0, tol=1e-6).fit(csr_array(X), y)
    other = LinearSVC(C=1.0, loss="squared_hinge", tol=1e-9, max_iter=10_000).fit(X, y)
    assert own.fit_status_ == 0
    assert own.gap_scope_ == "all"
    np.testing.assert_allclose(own.coef_, other.coef_, atol=2e-3)
    np.testing.assert_allclose(own.intercept_, other.intercept_, atol=2e-3)
    assert len(own.support_) == len(own.support_vectors_) == own.dual_coef_.size == 0
    np.testing.assert_array_equal(own.predict(X), other.predict(X))
    np.testing.assert_allclose(
        own.decision_function(csr_array(X)), other.decision_function(X), atol=2e-2
    )


def test_sparse_and_dense_rows_in_memory_and_on_disk_give_one_model(tmp_path):
    X, y = words(n_rows=3000, n_features=400)  # two blocks
    np.save(tmp_path / "rows.npy", X)
    weights = []
    for rows in (X, csr_array(X), tmp_path / "rows.npy"):
        for threads in (1, 2):
            own = FrankWolfeSVC("linear", tol=1e-7, n_jobs=threads).fit(rows, y)
            weights.append(own.model_.column_weights())
    for each in weights[1:]:
        np.testing.assert_allclose(each, weights[0], atol=1e-6)


def test_the_file_gives_the_weights_back_and_certifies_them(tmp_path):
    X, y = words()
    model = FrankWolfeSVC("linear").fit(csr_array(X), y).model_
    path = tmp_path / "linear.h5"
    model.save(path)
    again = load_model(path)
    assert (again.kind, again.decision, again.size) == ("linear", "ovr", 901)
    np.testing.assert_array_equal(again.column_weights(), model.column_weights())
    found = again.certify(csr_array(X), y)
    assert found.gap_scope == "all"
    known = [own.certified_gap for own in model.classifiers]
    np.testing.assert_allclose(
        [each["certified_gap"] for each in found.classifiers], known, rtol=1e-6, atol=1e-12
    )
    graph = onnxruntime.InferenceSession(to_onnx(again))
    label, decision = graph.run(["label", "decision"], {"X": X.astype(np.float64)})
    np.testing.assert_array_equal(label, again.predict(X))
    np.testing.assert_allclose(decision, again.decision_function(X), atol=1e-4)


def test_other_forms_are_taken_if_they_are_asked_for():
    X, y = words(n_features=30, n_classes=2)
    kinds = {"exact": {"exact": True}, "landmarks": {"landmarks": 40}}
    for kind, options in kinds.items():
        assert FrankWolfeSVC("linear", **options).fit(X, y).model_.kind == kind
    assert FrankWolfeSVC("linear", method="swap").fit(X, y).model_.kind == "exact"
    assert FrankWolfeSVC("linear").fit(X, y).model_.kind == "linear"


def test_regression_is_that_of_the_normal_equations():
    X, _ = words(n_features=30)
    y = X @ np.linspace(-1, 1, 30) + 5
    own = FrankWolfeSVR("linear", C=3.0, epsilon=0.0, tol=1e-8).fit(X, y)
    assert own.model_.kind == "linear"
    assert own.gap_scope_ == "all"
    features = np.hstack([X, np.ones((len(X), 1))])
    targets = (y - y.mean()) / y.std()
    matrix = features.T @ features + np.eye(31) / 3.0
    v = np.linalg.solve(matrix, features.T @ targets)
    np.testing.assert_allclose(own.predict(X), features @ v * y.std() + y.mean(), atol=1e-3)
    np.testing.assert_allclose(own.predict(X), X @ own.coef_[0] + own.intercept_, atol=1e-3)


def test_rows_from_which_nothing_can_be_learned_are_refused():
    X = np.ones((4, 2), dtype=np.float32)
    with pytest.raises(InputError, match="nothing to learn"):
        FrankWolfeSVC("linear").fit(X, [0, 1, 0, 1])
