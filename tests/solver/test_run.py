"""Runs that stop early: their weights are optimal on their vertices, of the best state kept."""

import signal

import numpy as np
import pytest

from ooc_fw import Status, make_kernel
from ooc_fw.solver import run
from tests.support.reference import make_problem
from tests.support.solving import train_in_session


def train(problem, callbacks=(), **arguments):
    arguments = {"lmo": "sampled", "certify": False, "callbacks": callbacks} | arguments
    return train_in_session(problem, penalties=penalties(problem), **arguments)


def penalties(problem):
    return np.where(problem.y > 0, 5 * problem.C, problem.C)


def objectives(problem, state):
    """P and rho of weights, from the definition, and the duality gap among their own rows."""
    ids = state.rows if hasattr(state, "rows") else state.ids
    distances = ((problem.X[:, None].astype(np.float64) - problem.X[ids]) ** 2).sum(2)
    K, C = np.exp(-problem.kernel.gamma * distances), penalties(problem)
    plain = problem.y * ((K + 1) @ (state.alpha * problem.y[ids]))
    gradient = plain[ids] + state.alpha / C[ids]
    norm, rho = state.alpha @ plain[ids], state.alpha @ gradient
    primal = (norm / rho**2 + C @ np.maximum(0, 1 - plain / rho) ** 2) / 2
    return primal, rho, 1 - gradient.min() / rho


def primal(problem, state):
    return objectives(problem, state)[0]


def noisy(C, n_rows=1200):
    """Rows on which more violators may well make a worse model."""
    return make_problem(make_kernel("rbf", gamma=5.0), n_rows=n_rows, overlap=3, C=C)


added = run.RunState.add_vertices


@pytest.fixture
def compared(monkeypatch):
    """States that were compared, with their objectives."""
    found = []

    def record(states, *rest):
        values = original(states, *rest)
        found.extend(zip(states, values, strict=True))
        return values

    original = run.primal_objectives
    monkeypatch.setattr("ooc_fw.solver.run.primal_objectives", record)
    return found


def test_a_run_that_converges_compares_nothing_and_the_primal_meets_the_dual(compared):
    problem = noisy(C=1.0, n_rows=400)
    solution = train(problem, tol=1e-7, certify=True)
    assert solution.status is Status.CONVERGED
    assert primal(problem, solution) == pytest.approx(1 / (2 * solution.rho), rel=1e-5)
    assert not compared


@pytest.mark.parametrize(("C", "max_iter", "n_rows"), [(1.0, 3, 1500), (100.0, 2, 3000)])
def test_a_run_that_stops_early_gives_the_best_state_it_kept(compared, C, max_iter, n_rows):
    problem = noisy(C, n_rows)
    solution = train(problem, max_iter=max_iter)
    assert solution.status is Status.MAX_ITER
    assert len(compared) > 1
    for state, value in compared:
        assert value == pytest.approx(primal(problem, state), rel=1e-2)
    last = max(compared, key=lambda pair: len(pair[0].ids))[0]
    value, rho, gap = objectives(problem, solution)
    assert value <= (1 + 1e-4) * primal(problem, last)
    assert solution.rho == pytest.approx(rho, rel=1e-9)
    assert gap <= 0.02
    if C == 100.0:  # here an earlier state is the best
        assert len(min(compared, key=lambda pair: pair[1])[0].ids) < len(last.ids)


def test_an_interrupted_corrective_step_leaves_weights_that_are_settled(compared):
    problem = noisy(C=10.0)
    solution = train(problem, [lambda state: state.iteration < 3])
    assert solution.status is Status.STOPPED
    last = max(compared, key=lambda pair: len(pair[0].ids))[0]
    assert primal(problem, solution) <= (1 + 1e-4) * primal(problem, last)


def test_a_signal_cuts_a_long_corrective_step_short(monkeypatch):
    """One corrective step may take minutes on many vertices."""
    calls = []

    def is_over(*_):
        calls.append(1)
        if len(calls) == 1500:
            signal.raise_signal(signal.SIGINT)
        return False

    # A look at the clock for every step.
    monkeypatch.setattr("ooc_fw.solver.active_set._STEP_WORK", 1.0)
    monkeypatch.setattr("ooc_fw.solver.surroundings.Deadline.is_over", is_over)
    solution = train(noisy(C=10.0, n_rows=3000))
    assert solution.status is Status.INTERRUPTED
    assert len(calls) == 1500


@pytest.mark.parametrize("kernel", ["rbf", "linear", "poly"])
def test_the_first_rows_may_be_a_farthest_pair(kernel, monkeypatch):
    """Distances in feature space, labels and penalties included, by definition."""
    problem = make_problem(make_kernel(kernel, gamma=1.0), n_rows=90)
    Q = problem.dual_matrix + np.diag(1 / penalties(problem) - 1 / problem.C)
    apart = np.diag(Q)[:, None] + np.diag(Q) - 2 * Q
    drawn = int(np.random.default_rng(0).integers(90))
    first = int(apart[drawn].argmax())
    found = []
    monkeypatch.setattr(
        run.RunState,
        "add_vertices",
        lambda state, rows, **how: found.append(rows) or added(state, rows, **how),
    )
    train(problem, start="farthest", method="fw", max_iter=1)
    assert found[0].tolist() == sorted([first, int(apart[first].argmax())])
