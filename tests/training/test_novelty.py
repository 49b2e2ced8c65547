"""Novelty detection: the problem of one class by brute force, its gap and its scores."""

from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
import scipy.sparse
from hypothesis import example, given
from hypothesis import strategies as st
from sklearn.exceptions import ConvergenceWarning

from ooc_fw import FrankWolfeOneClass, TrainOptions, make_kernel, open_dataset
from ooc_fw.certificate.sweep import Certificate
from ooc_fw.data.sources import ArraySource
from ooc_fw.problem import NoveltyProblem
from ooc_fw.solver.plan import Session
from ooc_fw.system.errors import OutOfTimeError
from ooc_fw.training.fit import fit
from tests.support.reference import DEFINITIONS, Extended, exact_sum, kernel_values, minimise
from tests.support.strategies import SEEDS, kernels, powers_of_ten, tables


def matrix(kernel, X, C):
    """Q of the problem without a bias, in extended precision."""
    return kernel_values(kernel, X, X) + np.diag(np.broadcast_to(1 / np.asarray(C), len(X)))


def gap_of(kernel, X, C, rows, alpha):
    """Relative gap by definition, and rho."""
    weights = np.zeros(len(X), dtype=Extended)
    weights[rows] = alpha
    gradient = matrix(kernel, X, C) @ weights
    rho = exact_sum(np.asarray(weights * gradient, dtype=np.float64))
    return float((rho - gradient.min()) / rho), float(rho)


@given(st.data(), tables(), powers_of_ten(-3, 4), SEEDS)
def test_gap_and_rho_are_those_without_the_bias(data, X, C, seed):
    kernel = data.draw(kernels(X))
    method = data.draw(st.sampled_from(["auto", "mfw", "swap", "partan"]))
    options = TrainOptions(C=C, tol=1e-2, seed=seed % 100, method=method, max_iter=2000)
    penalties = None
    if data.draw(st.booleans()):
        C = penalties = C * np.random.default_rng(seed).uniform(0.5, 2, len(X))
    (solution,) = fit(NoveltyProblem(open_dataset(X), kernel, penalties), options).solutions
    exact, rho = gap_of(kernel, X, C, solution.rows, solution.alpha)
    assert exact <= solution.certified_gap * (1 + 1e-12)
    largest = 1 + max(kernel_values(kernel, x[None], x[None])[0, 0] for x in X)
    rounding = 1e-8 * float(largest)  # of the values that rho + 1 is made of
    assert solution.certified_gap <= exact + 1e-6 + rounding / rho
    assert solution.sampled_gap <= solution.certified_gap * (1 + 1e-9)
    assert solution.rho == pytest.approx(rho, rel=1e-9)
    assert solution.objective == solution.rho / 2
    if solution.status == "converged":
        gap = min(solution.certified_gap, (1 - solution.dual / solution.primal) / 2)
        assert gap <= 1e-2 * (1 + 1e-6)
        best = minimise(matrix(kernel, X, C)).objective
        assert best <= solution.objective * (1 + 1e-9)
        assert solution.objective <= best * (1 + 0.03)


def test_bound_without_the_bias_includes_all_rounding():
    """rho may err by half of the rounding, in the worse direction."""
    known = {"pair_gap": 0.1, "worst": np.zeros(0, dtype=np.int64)}
    known |= {"primal": 1.0, "dual": 1.0}
    own = Certificate(certified_gap=0.01 + 2e-5, rounding=2e-5, rho=1.001, objective=0.5, **known)
    found = own.without_bias(1.0)
    for rho in (1.001 * (1 - 1e-5), 1.001, 1.001 * (1 + 1e-5)):
        assert 0.01 * 1.001 / (rho - 1) <= found.certified_gap
    hopeless = replace(own, rounding=3e-3).without_bias(1.0)
    assert hopeless.certified_gap == np.inf


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 4)) * [1, 2, 0.5, 1]
    return X.astype(np.float32)


FORMS = np.asarray, scipy.sparse.csr_array


@pytest.mark.parametrize(
    ("name", "form"), [(name, FORMS[k % 2]) for k, name in enumerate(DEFINITIONS)]
)
def test_scores_are_the_sum_over_support_vectors(rows, name, form):
    mixed = np.random.default_rng(1).uniform(-6, 6, (200, 4)).astype(np.float32)
    model = FrankWolfeOneClass(name, gamma=0.2, C=10).fit(form(rows))
    vectors = rows[model.support_]
    kernel = make_kernel(name, gamma=0.2)
    expected = kernel_values(kernel, mixed, vectors) @ model.dual_coef_[0]
    scale = max(1.0, float(abs(expected).max()))
    np.testing.assert_allclose(
        model.score_samples(form(mixed)), expected.astype(float), atol=2e-4 * scale
    )
    assert model.offset_ == model.solution_.rho
    np.testing.assert_array_equal(model.intercept_, [-model.offset_])
    values = model.decision_function(form(mixed))
    np.testing.assert_array_equal(model.predict(form(mixed)), np.where(values < 0, -1, 1))
    assert model.dual_coef_.sum() == pytest.approx(1)
    assert model.n_support_.tolist() == [len(vectors)]


@given(
    st.integers(2, 60),
    st.integers(1, 4),
    st.sampled_from([1e-9, 0.01, 0.07, 0.29, 1 / 3, 0.5]),
    st.sampled_from(["rbf", "laplacian"]),
    st.integers(0, 2**32 - 1),
)
@example(3, 2, 1e-9, "rbf", 6)
def test_equal_rows_are_novel_together(n, n_values, share, kernel, seed):
    """The threshold lies between scores, also if few scores are known, and all are equal."""
    X = np.random.default_rng(seed).integers(0, n_values, (n, 2)).astype(float)
    model = FrankWolfeOneClass(kernel, gamma=0.3, contamination=share, random_state=0).fit(X)
    labels, values = model.predict(X), model.decision_function(X)
    np.testing.assert_array_equal(labels, np.where(values < 0, -1, 1))
    np.testing.assert_array_equal(labels, model.model_.predict(X))
    _, groups = np.unique(X, axis=0, return_inverse=True)
    for group in range(groups.max() + 1):
        assert len({*labels[groups == group].tolist()}) == 1


def clusters(n, seed):
    """Ordinary rows in three clusters of different sizes."""
    rng = np.random.default_rng(seed)
    k = rng.integers(3, size=n)
    return (k[:, None] * [3, 0, 1, 0] + rng.normal(size=(n, 4)) * (0.3 + k[:, None])).astype("f4")


@pytest.mark.parametrize(
    "own",
    [
        {},
        {"exact": True, "gamma": 1.0, "C": 100.0},  # a fifth of new rows is below the margin
        {"landmarks": 100},
        {"exact": True, "kernel": "laplacian", "gamma": 2.0},
    ],
    ids=str,
)
def test_the_share_of_novel_rows_holds_on_new_rows(own):
    model = FrankWolfeOneClass(contamination=0.02, random_state=0, **own).fit(clusters(1500, 0))
    assert 0.006 < np.mean(model.predict(clusters(20_000, 1)) < 0) < 0.04


def test_the_share_of_novel_rows_holds_where_all_rows_are_near_the_margin():
    """On a sphere most scores differ less than the gap of a rough model."""

    def directions(n, seed):
        X = np.random.default_rng(seed).normal(size=(n, 3))
        return X / np.linalg.norm(X, axis=1)[:, None]

    model = FrankWolfeOneClass(contamination=0.02, exact=True, gamma=20.0, C=100.0, random_state=0)
    model.fit(directions(1500, 0))
    assert 0.004 < np.mean(model.predict(directions(20_000, 1)) < 0) < 0.04


def test_a_threshold_needs_time_and_rows(rows, monkeypatch):
    """Without them the margin is the threshold, and a warning says so."""
    plain = FrankWolfeOneClass(gamma=0.3, random_state=0).fit(rows)
    own = FrankWolfeOneClass(gamma=0.3, contamination=0.1)
    assert own.fit(rows).offset_ != plain.offset_
    assert own.set_params(max_time=60).fit(rows).fit_status_ == 0
    limited = NoveltyProblem(open_dataset(rows), make_kernel("rbf", gamma=0.3), contamination=0.1)
    plan = fit(limited, TrainOptions(C=30.0, landmarks=20, max_time=60.0)).plan
    assert plan.options.max_time == plan.given.max_time == 36.0  # landmarks grow until then
    with pytest.warns(ConvergenceWarning, match="one row only: the threshold is the margin"):
        own.fit(rows[:1])
    for error, said, signal in (
        (OutOfTimeError("late"), "no time left", None),
        (KeyboardInterrupt(), "interrupted", 2),
        (OSError("gone"), "gone", None),
    ):
        monkeypatch.setattr("ooc_fw.training.fit.hold_out", Mock(side_effect=error))
        problem = NoveltyProblem(
            open_dataset(rows), make_kernel("rbf", gamma=0.3), contamination=0.1
        )
        found = fit(problem, TrainOptions(C=30.0))
        assert found.model.offset == plain.offset_
        lacking = "the threshold is the margin, not that of contamination 0.1"
        assert found.missing == f"{said}: {lacking}"
        assert (found.model.status, found.signal) == ("converged", signal)
        assert found.complete == (said == "no time left")


def test_landmarks_that_are_all_rows_give_the_exact_model(rows):
    exact = FrankWolfeOneClass(gamma=0.3, C=0.1, tol=1e-6).fit(rows)
    model = FrankWolfeOneClass(gamma=0.3, C=0.1, tol=1e-6, landmarks=300).fit(rows)
    assert (model.model_.kind, model.gap_scope_, model.fit_status_) == ("landmarks", "span", 0)
    np.testing.assert_allclose(
        model.score_samples(rows), exact.score_samples(rows) / exact.offset_, rtol=1e-3
    )
    assert model.solution_.primal[0] == pytest.approx(0.5 / exact.offset_, rel=1e-3)
    assert model.offset_ == 1.0
    expected = kernel_values(model.model_.kernel, rows, model.support_vectors_)
    np.testing.assert_allclose(
        model.score_samples(rows), (expected @ model.dual_coef_[0]).astype(float), atol=2e-4
    )
    share = FrankWolfeOneClass(gamma=0.3, C=0.1, landmarks=40, contamination=0.1)
    # The threshold holds on new rows: a quantile of 3,000 scores has a standard error of 0.006.
    learned, new = np.random.default_rng(0).normal(size=(2, 3000, 4))
    assert 0.08 < np.mean(share.fit(learned).predict(new) < 0) < 0.12


@pytest.mark.parametrize("C", [1e-3, 1.0, 1e3])
def test_the_gap_of_one_class_passes_the_test_as_it_is_stated(C):
    """The steps see a rho with the bias, and a tolerance that is computed from it."""
    kernel = make_kernel("rbf", gamma=1.0)
    for seed in range(40):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(int(rng.integers(5, 60)), 12)).astype(np.float32)
        told = []
        tol = 10 ** rng.uniform(-7, -1)
        plan = TrainOptions(C=C, tol=tol, exact=True, method="corrective", seed=seed)
        session = Session([lambda state, told=told: told.append(state.certified_gap)])
        fitted = fit(NoveltyProblem(ArraySource(X), kernel), plan, session)
        gap = fitted.model.certified_gap
        assert told[-1] == gap
        assert (fitted.model.status != "converged") or gap <= tol
