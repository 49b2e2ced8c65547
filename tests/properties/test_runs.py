"""Properties of whole runs over drawn problems: every method, oracle, kernel and storage."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw.options import TrainOptions
from ooc_fw.solver.loop import solve
from ooc_fw.solver.state import Status
from tests.support.methods import METHODS
from tests.support.strategies import SEEDS, problems

MAX_ITER = 60


@st.composite
def runs(draw):
    """A problem, options for a short run, and whether the rows are sparse."""
    problem = draw(problems(max_rows=40))
    options = TrainOptions(
        C=problem.C,
        method=draw(st.sampled_from(METHODS)),
        lmo=draw(st.sampled_from(["full", "sampled"])),
        sample_size=draw(st.integers(1, 50)),
        tol=draw(st.sampled_from([0.5, 1e-2, 1e-4])),
        certify=draw(st.booleans()),
        max_iter=draw(st.integers(0, MAX_ITER)),
        seed=draw(st.integers(0, 100)),
        threads=draw(st.sampled_from([1, 2])),
    )
    return problem, options, draw(st.booleans())


def run(case, callbacks=()):
    problem, options, sparse = case
    return solve(problem.source(sparse), problem.y, problem.kernel, options, callbacks)


@given(runs())
def test_weights_are_on_the_simplex_objectives_fall_and_gaps_tell_the_truth(case):
    problem, options, _ = case
    objectives = []
    solution = run(case, [lambda state: objectives.append(state.objective)])
    assert (solution.alpha > 0).all()
    assert abs(solution.alpha.sum() - 1) <= 1e-12
    assert len(np.unique(solution.rows)) == len(solution.rows)
    np.testing.assert_array_equal(solution.labels, problem.y[solution.rows])

    truth = problem.truth(solution.rows, solution.alpha)
    # Where float64 itself has no more to say: kernel values far above rho.
    scale = 1 + np.abs(problem.dual_matrix).max()
    rounding = 1e-13 * scale / float(truth.rho) * (1 + truth.gap)
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
    assert first.sampled_gap == second.sampled_gap
    assert first.certified_gap == second.certified_gap
