"""Training and prediction on columns as they are, with a gamma that does not suit them."""

from dataclasses import replace

import numpy as np
import pytest

import ooc_fw
import ooc_fw.solver.plan
from ooc_fw.kernels.functions import make_kernel
from ooc_fw.options import TrainOptions
from ooc_fw.problem import BinaryProblem
from ooc_fw.solver.loop import solve_problem
from ooc_fw.solver.plan import Session, plan_exact
from ooc_fw.solver.shell import CheckpointPlan
from ooc_fw.solver.state import Status
from tests.support.methods import grid
from tests.support.reference import SmallProblem

N_ROWS = 400


def raw_columns(name):
    """Rows, labels, kernel, gamma and C."""
    rng, n = np.random.default_rng(0), N_ROWS
    if name == "one column":
        X = rng.uniform(0, 20_000, (n, 1))
        return X, np.sin(X[:, 0] / 800), "rbf", 1.8, 1.0
    if name == "income and age":
        X = np.column_stack([rng.lognormal(10.5, 0.6, n), rng.integers(18, 90, n)])
        return X, X[:, 0] + 300 * X[:, 1] - 60_000, "rbf", 0.1, 1.0
    if name == "five columns":
        X = rng.uniform(-3000, 3000, (n, 5))
        return X, X.sum(axis=1), "rbf", 0.5, 10.0
    if name == "an id and three":
        X = np.column_stack([1e6 + np.arange(n), rng.normal(size=(n, 3))])
        return X, X[:, 1:].sum(axis=1), "rbf", 0.5, 10.0
    if name == "absolute distances":
        X = 1e6 + 3000 * rng.normal(size=(n, 4))
        return X, (X - 1e6).sum(axis=1), "laplacian", 0.01, 10.0
    X = 3000 * rng.normal(size=(n, 60))
    return X, X.sum(axis=1), "rbf", {"many": 3e-8, "many and a large gamma": 100.0}[name], 10.0


FEW = ("five columns", "many", "many and a large gamma")
CASES = pytest.mark.parametrize(
    "case",
    grid(["one column", "absolute distances", *FEW, "income and age", "an id and three"], 3),
)


def problem_of(case):
    X, values, name, gamma, C = raw_columns(case)
    y = np.where(values > 0, 1, -1).astype(np.int8)
    return SmallProblem(make_kernel(name, gamma=gamma), X.astype(np.float32), y, C)


def train(problem, sparse=False, **options):
    options = TrainOptions(C=problem.C, max_time=60.0, **options)
    return ooc_fw.solve(problem.source(sparse), problem.y, problem.kernel, options)


@CASES
def test_gap_and_predictions_are_those_of_exact_arithmetic(case):
    problem = problem_of(case)
    solution = train(problem, sparse=len(case) % 2 == 0)
    assert solution.status is Status.CONVERGED
    truth = problem.truth(solution.rows, solution.alpha)
    assert truth.gap <= solution.certified_gap <= min(1e-3, truth.gap * 1.01 + 1e-6)
    model = ooc_fw.Model.of(solution, None, kernel=problem.kernel, C=problem.C, classes=[-1.0, 1.0])
    own = np.zeros(N_ROWS)
    own[solution.rows] = solution.alpha / problem.C
    exact = problem.y * (truth.gradient - own) / truth.rho
    assert np.abs(model.decision_function(problem.X) - exact).max() <= 1e-4
    np.testing.assert_array_equal(model.predict(problem.X), np.where(exact > 0, 1.0, -1.0))


@pytest.mark.parametrize(
    ("case", "lmo"),
    [("five columns", "full"), pytest.param("many", "sampled", marks=pytest.mark.grid)],
)
def test_threads_and_a_resumed_run_change_no_bit(case, lmo, tmp_path):
    problem = problem_of(case)
    options = {"method": "swap2" if lmo == "full" else "corrective", "lmo": lmo}
    expected = train(problem, **options)
    path = tmp_path / "run.ckpt"
    half = expected.iterations // 2
    binary = BinaryProblem(problem.source(), problem.y, problem.kernel)
    stopped = TrainOptions(C=problem.C, max_iter=half, **options)
    first, then = Session(checkpoint=CheckpointPlan(path)), Session(resume=path)
    solve_problem(binary, plan_exact(binary, stopped, first), first)
    resumed = replace(stopped, max_iter=None)
    resumed = solve_problem(binary, plan_exact(binary, resumed, then), then)
    for other in (train(problem, threads=2, **options), resumed):
        np.testing.assert_array_equal(other.rows, expected.rows)
        np.testing.assert_array_equal(other.alpha, expected.alpha)
        assert other.certified_gap == expected.certified_gap


def is_warned(problem, caplog):
    caplog.clear()
    ooc_fw.solver.plan.warn_of_gamma(problem.source(), problem.kernel)
    return "far too large" in caplog.text


@pytest.mark.parametrize("case", ["one column", "five columns", "many and a large gamma"])
def test_a_gamma_for_which_no_row_knows_another_is_named(case, caplog):
    problem = problem_of(case)
    assert is_warned(problem, caplog)
    small = make_kernel(problem.kernel.name, gamma=1e-8)
    assert not is_warned(SmallProblem(small, problem.X, problem.y, problem.C), caplog)


def test_fit_says_so(caplog):
    problem = problem_of("five columns")
    ooc_fw.FrankWolfeSVC(gamma=0.5).fit(problem.X, problem.y)
    assert caplog.text.count("far too large") == 1
    caplog.clear()
    ooc_fw.FrankWolfeSVC(gamma="auto").fit(problem.X, problem.y)
    assert "far too large" not in caplog.text
