"""The arithmetic that suits rows: columns as they are, with a gamma that does not suit them."""

import tracemalloc

import numpy as np
import pytest

import ooc_fw
from ooc_fw.kernels.arithmetic import choose_arithmetic
from ooc_fw.kernels.functions import make_kernel
from ooc_fw.model.machines import PairSolution
from ooc_fw.options import TrainOptions
from ooc_fw.solver.state import Status
from tests.support.methods import grid
from tests.support.reference import SmallProblem

CASES = {  # kernel, gamma, C
    "one column": ("rbf", 1.8, 1.0),
    "three and an id": ("rbf", 0.5, 10.0),
    "absolute distances": ("laplacian", 0.01, 10.0),
    "five columns": ("rbf", 0.5, 10.0),
    "linear": ("linear", 1.0, 10.0),
    "many": ("rbf", 3e-8, 10.0),
    "many and a large gamma": ("rbf", 100.0, 10.0),
}


def problem_of(case, n_rows=300):
    """Rows whose labels are the signs of a sum, and the kernel and penalty of the case."""
    rng = np.random.default_rng(0)
    X = 3000 * rng.normal(size=(n_rows, 60 if case.startswith("many") else 5))
    values = X[:, 1:].sum(axis=1)
    if case == "one column":
        X = rng.uniform(0, 20_000, (n_rows, 1))
        values = np.sin(X[:, 0] / 800)
    elif case == "three and an id":
        X = np.column_stack([1e6 + np.arange(n_rows), X[:, 1:4] / 3000])
        values = X[:, 1:].sum(axis=1)
    elif case == "absolute distances":
        X += 1e6
    name, gamma, C = CASES[case]
    y = np.where(values > 0, 1, -1).astype(np.int8)
    return SmallProblem(make_kernel(name, gamma=gamma), X.astype(np.float32), y, C)


@pytest.mark.parametrize("case", grid([*CASES], quick=3))
def test_gap_and_predictions_are_those_of_exact_arithmetic(case):
    problem = problem_of(case)
    options = TrainOptions(C=problem.C, max_time=60.0)
    # Sparse rows have products only, whose rounding such a gamma does not forgive.
    source = problem.source(sparse=len(case) % 2 == 0 and problem.kernel.gamma < 100)
    solution = ooc_fw.solve(source, problem.y, problem.kernel, options)
    assert solution.status is Status.CONVERGED
    truth = problem.truth(solution.rows, solution.alpha)
    assert truth.gap <= solution.certified_gap <= min(1e-3, truth.gap * 1.01 + 1e-6)
    given = {"kernel": problem.kernel, "C": problem.C, "classes": [-1.0, 1.0]}
    model = ooc_fw.Model.of([PairSolution(0, 1, solution)], None, n_rows=300, **given)
    exact = problem.y * (truth.gradient - truth.alpha / problem.C) / truth.rho
    assert np.abs(model.decision_function(problem.X) - exact).max() <= 1e-4
    np.testing.assert_array_equal(model.predict(problem.X), np.where(exact > 0, 1.0, -1.0))


@pytest.mark.parametrize("center", [0.0, 5.0])
def test_a_probe_of_wide_rows_is_not_copied_whole(center):
    probe = np.full((32, 400_000), center, dtype=np.float32)  # 51 MB
    tracemalloc.start()
    choose_arithmetic(make_kernel("rbf", gamma=1e-6), probe)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 40e6
