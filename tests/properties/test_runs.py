"""Properties of whole runs over drawn problems: every method, oracle, kernel and penalties."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw import Status, TrainOptions, solve
from tests.support.methods import METHODS
from tests.support.strategies import SEEDS, powers_of_ten, problems


@st.composite
def runs(draw):
    """A problem, perhaps with penalties of rows, options for a short run, and kind of rows."""
    problem = draw(problems(max_rows=40))
    options = TrainOptions(
        C=problem.C,
        method=draw(st.sampled_from(METHODS)),
        lmo=draw(st.sampled_from(["full", "sampled"])),
        sample_size=draw(st.integers(1, 50)),
        tol=draw(powers_of_ten(-4, -0.5)),
        certify=draw(st.booleans()),
        max_iter=draw(st.integers(0, 60)),
        seed=draw(st.integers(0, 100)),
        threads=draw(st.sampled_from([1, 2])),
    )
    if draw(st.booleans()):
        normal = np.random.default_rng(draw(SEEDS)).normal(size=len(problem.y))
        factors = 10 ** (draw(st.sampled_from([0.1, 1.0, 3.0])) * normal)
        problem = replace(problem, C=problem.C * factors)  # and that of the options has no part
    return problem, options, draw(st.booleans())


def run(case, callbacks=()):
    problem, options, sparse = case
    penalties = problem.C if isinstance(problem.C, np.ndarray) else None
    given = problem.source(sparse), problem.y, problem.kernel, options, callbacks
    return solve(*given, penalties=penalties)


@given(runs())
def test_weights_are_on_the_simplex_objectives_fall_and_gaps_tell_the_truth(case):
    problem, options, _ = case
    objectives = []
    solution = run(case, [lambda state: objectives.append(state.objective)])
    assert (solution.alpha > 0).all()
    assert abs(solution.alpha.sum() - 1) <= 1e-12
    assert len(np.unique(solution.rows)) == len(solution.rows)
    np.testing.assert_array_equal(solution.labels, problem.y[solution.rows])
    if solution.penalties is not None:
        np.testing.assert_array_equal(solution.penalties, problem.C[solution.rows])

    truth = problem.truth(solution.rows, solution.alpha)
    # Where float64 itself has no more to say: kernel values far above rho, and exponentials, whose
    # values err in proportion to the exponent.
    scale = 1 + np.abs(problem.dual_matrix).max()
    norm2 = np.square(problem.X.astype(np.float64)).sum(axis=1).max()
    exponent = problem.kernel.gamma * norm2 if problem.kernel.shift_invariant else 0.0
    rounding = (1e-13 + 1e-15 * exponent) * scale / float(truth.rho) * (1 + truth.gap)
    reached = Status.CONVERGED if options.certify else Status.SAMPLED
    assert solution.status in (reached, Status.MAX_ITER)
    assert solution.iterations <= options.max_iter
    assert solution.sampled_gap <= truth.gap + rounding
    if solution.certified_gap is not None:
        assert truth.gap <= solution.certified_gap <= truth.gap * (1 + 1e-6) + 1e-6 + rounding
        if solution.status is Status.CONVERGED:
            assert solution.certified_gap <= options.tol

    # Steps see float32 kernel values, so that objectives fall but for their rounding.
    assert (np.diff(objectives) <= 1e-6 * scale).all()
    distance = float(truth.rho / 2) - problem.optimum.objective
    assert -1e-9 * scale <= distance <= float(truth.gap * truth.rho) + 1e-9 * scale


@given(runs(), SEEDS)
def test_a_run_is_a_function_of_its_seed(case, global_seed):
    first = run(case)
    np.random.seed(global_seed)  # noqa: NPY002  (the global generator must not matter)
    second = run(case)
    np.testing.assert_array_equal(first.rows, second.rows)
    np.testing.assert_array_equal(first.alpha, second.alpha)
    assert (first.sampled_gap, first.certified_gap) == (second.sampled_gap, second.certified_gap)
