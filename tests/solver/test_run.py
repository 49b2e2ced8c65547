"""Runs that stop early: their weights are optimal on their vertices, of the best state kept."""

import signal

import numpy as np
import pytest

import ooc_fw.solver.active_set
import ooc_fw.solver.run
import ooc_fw.solver.shell
from ooc_fw.kernels.functions import make_kernel
from ooc_fw.solver.run import EarlierWeights, History
from ooc_fw.solver.state import Status
from tests.support.reference import make_problem
from tests.support.solving import train_in_session

FACTOR = 5  # of the penalty of positive rows


def train(problem, callbacks=(), **arguments):
    arguments = {"lmo": "sampled", "certify": False, "callbacks": callbacks} | arguments
    return train_in_session(problem, penalties=penalties(problem), **arguments)


def penalties(problem):
    return np.where(problem.y > 0, FACTOR * problem.C, problem.C)


def ids_of(state):
    """Rows of positive weight in a solution or a state that was kept."""
    return state.rows if hasattr(state, "rows") else state.ids


def gradient(problem, state):
    """g of every row without its own alpha_i / C_i, in float64 from the definition."""
    X = problem.X.astype(np.float64)
    distances = ((X[:, None] - X[ids_of(state)]) ** 2).sum(2)
    K = np.exp(-problem.kernel.gamma * distances)
    return problem.y * ((K + 1) @ (state.alpha * state.labels))


def primal(problem, state):
    """P of weights over all rows, from the definition."""
    ids = ids_of(state)
    g, C = gradient(problem, state), penalties(problem)
    norm = state.alpha @ g[ids]
    rho = norm + state.alpha**2 @ (1 / C[ids])
    return (norm / rho**2 + C @ np.maximum(0, 1 - g / rho) ** 2) / 2


def noisy(C, n_rows=1200):
    """Rows on which more violators may well make a worse model."""
    return make_problem(make_kernel("rbf", gamma=5.0), n_rows=n_rows, overlap=3, C=C)


def test_the_primal_objective_meets_the_dual_at_the_optimum():
    problem = noisy(C=1.0)
    solution = train(problem, tol=1e-7, certify=True)
    assert solution.status is Status.CONVERGED
    assert primal(problem, solution) == pytest.approx(1 / (2 * solution.rho), rel=1e-5)


@pytest.fixture
def compared(monkeypatch):
    """States that were compared, with their objectives."""
    found = []

    def record(states, *rest):
        values = original(states, *rest)
        found.extend(zip(states, values, strict=True))
        return values

    original = ooc_fw.solver.run.primal_objectives
    monkeypatch.setattr(ooc_fw.solver.run, "primal_objectives", record)
    return found


def assert_optimal_on_its_vertices(problem, solution):
    g = gradient(problem, solution)[solution.rows]
    g += solution.alpha / penalties(problem)[solution.rows]
    assert solution.rho == pytest.approx(solution.alpha @ g, rel=1e-9)
    assert 1 - g.min() / solution.rho <= 0.02


@pytest.mark.parametrize(("C", "max_iter"), [(1.0, 2), (1.0, 3), (100.0, 2), (100.0, 3)])
def test_a_run_that_stops_early_gives_the_best_state_it_kept(compared, C, max_iter):
    problem = noisy(C, n_rows=3000)
    solution = train(problem, max_iter=max_iter)
    assert solution.status is Status.MAX_ITER
    assert len(compared) > 1
    for state, value in compared:
        assert value == pytest.approx(primal(problem, state), rel=1e-2)
    last = max(compared, key=lambda pair: len(pair[0].ids))[0]
    assert primal(problem, solution) <= (1 + 1e-4) * primal(problem, last)
    assert_optimal_on_its_vertices(problem, solution)
    if (C, max_iter) == (100.0, 2):  # here an earlier state is the best
        assert len(min(compared, key=lambda pair: pair[1])[0].ids) < len(last.ids)


def test_a_longer_run_that_stops_early_leaves_no_worse_a_model():
    """Of a second round, the violators on which it stopped make a worse model than the first."""
    problem = noisy(C=1000.0, n_rows=3000)
    first, second = (train(problem, max_iter=rounds) for rounds in (1, 2))
    assert primal(problem, second) <= (1 + 1e-4) * primal(problem, first)
    for solution in (first, second):
        assert_optimal_on_its_vertices(problem, solution)


def test_a_run_that_converges_compares_nothing(compared):
    assert train(noisy(C=1.0)).status is Status.SAMPLED
    assert not compared


def test_an_interrupted_corrective_step_leaves_weights_that_are_settled(compared):
    problem = noisy(C=10.0)
    solution = train(problem, [lambda state: state.iteration < 3])
    assert solution.status is Status.INTERRUPTED
    last = max(compared, key=lambda pair: len(pair[0].ids))[0]
    assert primal(problem, solution) <= (1 + 1e-4) * primal(problem, last)


def test_states_kept_before_a_checkpoint_count_after_it(tmp_path):
    problem, path = noisy(C=100.0, n_rows=3000), tmp_path / "run.ckpt"
    expected = train(problem, max_iter=2)
    train(problem, max_iter=1, checkpoint=path)
    resumed = train(problem, max_iter=2, resume=path)
    np.testing.assert_array_equal(resumed.rows, expected.rows)
    np.testing.assert_array_equal(resumed.alpha, expected.alpha)


def test_a_signal_cuts_a_long_corrective_step_short(monkeypatch, tmp_path):
    """One corrective step may take minutes on many vertices."""
    calls = []

    def is_over(*_):
        calls.append(1)
        if len(calls) == 1500:
            signal.raise_signal(signal.SIGINT)
        return False

    # A look at the clock for every step.
    monkeypatch.setattr(ooc_fw.solver.active_set, "_STEP_WORK", 1.0)
    monkeypatch.setattr(ooc_fw.solver.shell.Deadline, "is_over", is_over)
    path = tmp_path / "run.ckpt"
    solution = train(noisy(C=10.0, n_rows=3000), checkpoint=path, every_s=1000)
    assert solution.status is Status.INTERRUPTED
    assert len(calls) == 1500
    assert not path.exists()  # the cut is not on the course of the run


@pytest.mark.parametrize(("n_states", "has_best"), [(0, True), (2, True), (2, False)])
def test_states_and_the_best_one_survive_a_checkpoint(n_states, has_best):
    def kept(k):
        ids = np.arange(3 + k)
        return EarlierWeights(ids, np.ones(3 + k, dtype=np.int8), ids / ids.sum(), 0.1 * k, 0.2 * k)

    expected = History(list(map(kept, range(n_states))), 5, kept(7) if has_best else None)
    found = History()
    found.restore(expected.state())
    assert (len(found.candidates), found.size, found.best is None) == (n_states, 5, not has_best)
    pairs = list(zip(found.candidates, expected.candidates, strict=True))
    for one, other in pairs + ([(found.best, expected.best)] if has_best else []):
        for name, value in vars(one).items():
            np.testing.assert_array_equal(value, getattr(other, name))
