"""Rows with penalties of their own: where they come from, and classifiers against brute force."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw import Status, TrainOptions, make_kernel, solve
from ooc_fw.problem import BinaryProblem, row_penalties
from ooc_fw.solver.plan import Session, plan_exact
from ooc_fw.solver.run import open_state, start
from tests.support.methods import METHODS
from tests.support.reference import make_problem
from tests.support.strategies import SEEDS, powers_of_ten, problems


@st.composite
def runs(draw):
    """A problem with penalties, and options for a short run."""
    problem = draw(problems(max_rows=40))
    rng = np.random.default_rng(draw(SEEDS))
    factors = 10 ** (draw(st.sampled_from([0.1, 1.0, 3.0])) * rng.normal(size=len(problem.y)))
    options = {
        "method": draw(st.sampled_from(METHODS)),
        "lmo": draw(st.sampled_from(["full", "sampled"])),
        "sample_size": draw(st.integers(1, 50)),
        "tol": draw(powers_of_ten(-4, -0.5)),
        "max_iter": draw(st.integers(0, 60)),
    }
    return replace(problem, C=problem.C * factors), options


@given(runs())
def test_certificates_tell_the_truth(case):
    problem, options = case
    solution = solve(
        *(problem.source(), problem.y, problem.kernel),
        TrainOptions(C=77.0, **options),  # C has no part in it
        penalties=problem.C,
    )
    truth = problem.truth(solution.rows, solution.alpha)
    scale = 1 + np.abs(problem.dual_matrix).max()
    # Where the kernel is an exponential, its values err in proportion to the exponent, too.
    norm2 = np.square(problem.X.astype(np.float64)).sum(axis=1).max()
    exponent = problem.kernel.gamma * norm2 if problem.kernel.shift_invariant else 0.0
    rounding = (1e-13 + 1e-15 * exponent) * scale / float(truth.rho) * (1 + truth.gap)
    assert truth.gap <= solution.certified_gap <= truth.gap * (1 + 1e-6) + 1e-6 + rounding
    if solution.status is Status.CONVERGED:
        assert solution.certified_gap <= options["tol"]
    np.testing.assert_array_equal(solution.penalties, problem.C[solution.rows])


def test_one_large_penalty_keeps_kernel_values_exact():
    """The precision of kernel values is that which the largest penalty of all needs."""
    problem = make_problem(make_kernel("rbf", gamma=1.0), n_rows=200)
    penalties = np.exp(1.5 * np.random.default_rng(0).normal(size=200))
    options = TrainOptions(method="corrective", memory_limit=1 << 30)
    for largest, quantised in ((10.0, True), (1e4, False)):
        penalties[7] = largest
        binary = BinaryProblem(problem.source(), problem.y, problem.kernel, penalties)
        with open_state(binary, plan_exact(binary, options), Session()) as state:
            start(state, None)
            assert state.active.quantised is quantised


NAMES = np.array(["ham", "spam"])
CODES = np.array([0, 0, 0, 1])


@pytest.mark.parametrize(
    ("class_weight", "rows", "penalties"),
    [
        ({"spam": 3.0}, None, [2, 2, 2, 6]),
        ({"spam": 3.0}, [1.0, 2.0, 0.5, 1.0], [2, 4, 1, 6]),
        (None, [1.0, 2.0, 0.5, 1.0], [2, 4, 1, 2]),
        ("balanced", None, [4 / 3, 4 / 3, 4 / 3, 4]),
        ("balanced", [1.0, 1.0, 1.0, 3.0], [2, 2, 2, 6]),
        ({"ham": 1.0, "spam": 2.0, "eggs": 3.0}, None, [2, 2, 2, 4]),
    ],
)
def test_weights_multiply(class_weight, rows, penalties):
    rows = None if rows is None else np.array(rows)
    found = row_penalties(2.0, NAMES, CODES, class_weight, rows)
    np.testing.assert_allclose(found, penalties)
    assert row_penalties(2.0, NAMES, CODES) is None
