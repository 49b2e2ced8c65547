"""Runs that stop early: their weights are optimal on their vertices; and runs that begin."""

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
    ids = state.rows
    distances = ((problem.X[:, None].astype(np.float64) - problem.X[ids]) ** 2).sum(2)
    K, C = np.exp(-problem.kernel.gamma * distances), penalties(problem)
    plain = problem.y * ((K + 1) @ (state.alpha * problem.y[ids]))
    gradient = plain[ids] + state.alpha / C[ids]
    norm, rho = state.alpha @ plain[ids], state.alpha @ gradient
    primal = (norm / rho**2 + C @ np.maximum(0, 1 - plain / rho) ** 2) / 2
    return primal, rho, 1 - gradient.min() / rho


def noisy(C, n_rows=1200):
    """Rows on which more violators may well make a worse model."""
    return make_problem(make_kernel("rbf", gamma=5.0), n_rows=n_rows, overlap=3, C=C)


added = run.RunState.add_vertices


def test_a_run_that_converges_meets_the_dual_with_its_primal_objective():
    problem = noisy(C=1.0, n_rows=400)
    solution = train(problem, tol=1e-7, certify=True)
    assert solution.status is Status.CONVERGED
    assert objectives(problem, solution)[0] == pytest.approx(1 / (2 * solution.rho), rel=1e-5)


@pytest.mark.parametrize(
    ("C", "n_rows", "max_iter", "status"),
    [(1.0, 1500, 3, "max_iter"), (100.0, 3000, 2, "max_iter"), (10.0, 1200, None, "stopped")],
)
def test_a_run_that_stops_early_leaves_weights_that_are_settled(C, n_rows, max_iter, status):
    problem = noisy(C, n_rows)
    asked = [] if max_iter else [lambda state: state.iteration < 3]
    solution = train(problem, asked, max_iter=max_iter)
    assert solution.status == status
    _, rho, gap = objectives(problem, solution)
    assert solution.rho == pytest.approx(rho, rel=1e-9)
    assert gap <= 0.02


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
    monkeypatch.setattr("ooc_fw.solver.loop._Run.is_over", is_over)
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
