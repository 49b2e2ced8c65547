"""Rows with penalties of their own: where they come from, and classifiers against brute force."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw import (
    FrankWolfeOneClass,
    FrankWolfeSVC,
    FrankWolfeSVR,
    InputError,
    Status,
    TrainOptions,
    make_kernel,
    solve,
)
from ooc_fw.problem import BinaryProblem, check_sample_weight, row_penalties
from ooc_fw.solver.plan import Session, plan_exact
from ooc_fw.solver.run import open_state, start
from tests.support.methods import METHODS
from tests.support.reference import make_problem
from tests.support.strategies import SEEDS, powers_of_ten, problems


def weighted(problem, seed=0, spread=1.5):
    """The problem with penalties over some orders of magnitude, a few rows far above the others."""
    rng = np.random.default_rng(seed)
    return replace(problem, C=np.exp(spread * rng.normal(size=len(problem.y))))


def train(problem, callbacks=(), **options):
    options = TrainOptions(**{"C": 77.0} | options)  # C has no part in it
    data = problem.source(), problem.y, problem.kernel, options
    return solve(*data, callbacks, penalties=problem.C)


# -- whole runs ----------------------------------------------------------------------------------


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
    solution = train(problem, **options)
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


def test_penalties_must_be_positive_and_one_for_each_row():
    problem = weighted(make_problem(make_kernel("rbf", gamma=1.0)))
    for value in (0.0, -1.0, np.nan, np.inf):
        problem.C[7] = value
        with pytest.raises(
            InputError, match=r"penalties must be positive numbers, but that of row 7 is"
        ):
            train(problem)
    with pytest.raises(InputError, match="100 rows need as many penalties"):
        train(replace(problem, C=np.ones(3)))


def test_one_large_penalty_keeps_kernel_values_exact():
    """The precision of kernel values is that which the largest penalty of all needs."""
    problem = weighted(make_problem(make_kernel("rbf", gamma=1.0), n_rows=200))
    options = TrainOptions(method="corrective", memory_limit=1 << 30)
    kinds = []
    for _ in range(2):
        binary = BinaryProblem(problem.source(), problem.y, problem.kernel, problem.C)
        with open_state(binary, plan_exact(binary, options), Session()) as state:
            start(state, None)
            kinds.append(state.active.quantised)
        problem.C[7] = 1e4
    assert kinds == [True, False]


# -- the product ---------------------------------------------------------------------------------

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


@pytest.mark.parametrize(
    ("class_weight", "rows", "message"),
    [
        ({"Spam": 2.0}, None, "for Spam, which is no label; labels are"),
        ("equal", None, "class_weight must be 'balanced'"),
        ({"spam": 0}, None, "the weight of class spam must be a positive number"),
        ({"spam": np.nan}, None, "the weight of class spam must be a positive number"),
        ({"spam": 1e-310}, None, "C times class_weight must be from"),
        ({"spam": 1e300}, None, "C times class_weight must be from"),
        ({"spam": 1e300}, np.ones(4), "C times class_weight times sample_weight must be from"),
    ],
)
def test_unusable_class_weights(class_weight, rows, message):
    with pytest.raises(InputError, match=message):
        row_penalties(1.0, NAMES, CODES, class_weight, rows)


@pytest.mark.parametrize(
    ("weights", "C", "message"),
    [
        ([1.0, 2.0], 1.0, "3 rows need as many sample weights, not an array of shape"),
        ([1.0, -1.0, 0.0], 1.0, "must not be negative, but that of row 1 is -1.0"),
        ([1.0, 1.0, np.nan], 1.0, "must not be negative, but that of row 2 is nan"),
        ([0.0, 0.0, 0.0], 1.0, "all sample weights are zero; give a positive weight"),
        ([1.0, 0.0, 1e-310], 1.0, "sample_weight times C must be from 1e-100 to .*1e-310 for row"),
        ([1e308, 0.0, 1.0], 1.0, "sample_weight times C must be from .* but is 1e\\+308 for row 0"),
        ([0.0, 0.0, 1e100], 1e100, "sample_weight times C"),
        ([0.0, 0.0, 0.01], 1e-99, "sample_weight times C"),
    ],
)
def test_unusable_sample_weights(weights, C, message):
    np.testing.assert_array_equal(check_sample_weight([0.0, 1e-150], 2, 1e100), [0.0, 1e-150])
    with pytest.raises(InputError, match=message):
        check_sample_weight(weights, 3, C)


@pytest.mark.parametrize("estimator", [FrankWolfeSVC, FrankWolfeSVR, FrankWolfeOneClass])
def test_weights_beyond_float64_are_refused_at_once(estimator):
    X = np.random.default_rng(1).normal(size=(50, 3))
    with pytest.raises(InputError, match="sample_weight times C"):
        estimator().fit(X, np.sign(X[:, 0]), sample_weight=np.full(50, 1e-310))
