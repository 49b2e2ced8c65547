"""How runs begin and end: a farthest pair of rows, and weights that are settled on their rows."""

import numpy as np
import pytest

from ooc_fw import Status, make_kernel
from tests.support.reference import make_problem
from tests.support.solving import train_in_session


def train(problem, **options):
    """Rows of the positive class have five times the penalty of the others."""
    penalties = np.where(problem.y > 0, 5 * problem.C, problem.C)
    options = {"lmo": "sampled", "certify": False} | options
    return train_in_session(problem, penalties=penalties, **options), penalties


def noisy(C, n_rows):
    return make_problem(make_kernel("rbf", gamma=5.0), n_rows=n_rows, overlap=3, C=C)


def plain_gradient(problem, solution):
    """Label times decision value of every row, by definition."""
    distances = ((problem.X[:, None].astype(float) - problem.X[solution.rows]) ** 2).sum(2)
    K = np.exp(-problem.kernel.gamma * distances)
    return problem.y * ((K + 1) @ (solution.alpha * problem.y[solution.rows]))


def test_a_run_that_converges_meets_the_dual_with_its_primal_objective():
    """With penalties of rows."""
    problem = noisy(C=1.0, n_rows=400)
    solution, penalties = train(problem, tol=1e-7, certify=True)
    assert solution.status is Status.CONVERGED
    plain, rho = plain_gradient(problem, solution), solution.rho
    norm = solution.alpha @ plain[solution.rows]
    slack = np.maximum(0, 1 - plain / rho)
    primal = norm / rho**2 / 2 + penalties @ slack**2 / 2
    assert primal == pytest.approx(1 / (2 * rho), rel=1e-5)


@pytest.mark.parametrize(
    ("C", "n_rows", "max_iter", "status"),
    [(1.0, 1500, 3, "max_iter"), (100.0, 3000, 2, "max_iter"), (10.0, 1200, None, "stopped")],
)
def test_a_run_that_stops_early_leaves_weights_that_are_settled(C, n_rows, max_iter, status):
    """They are nearly optimal on their own rows."""
    problem = noisy(C, n_rows)
    asked = [] if max_iter else [lambda state: state.iteration < 3]
    solution, penalties = train(problem, callbacks=asked, max_iter=max_iter)
    assert solution.status == status
    ids = solution.rows
    gradient = plain_gradient(problem, solution)[ids] + solution.alpha / penalties[ids]
    rho = solution.alpha @ gradient
    assert solution.rho == pytest.approx(rho, rel=1e-9)
    assert 1 - gradient.min() / rho <= 0.02


@pytest.mark.parametrize("kernel", ["rbf", "linear", "poly"])
def test_a_run_may_begin_with_a_farthest_pair(kernel):
    """Distances are those in feature space, with labels and penalties."""
    problem = make_problem(make_kernel(kernel, gamma=1.0), n_rows=90)
    solution, penalties = train(problem, start="farthest", method="fw", max_iter=0)
    Q = problem.dual_matrix + np.diag(1 / penalties - 1 / problem.C)
    apart = np.diag(Q)[:, None] + np.diag(Q) - 2 * Q
    drawn = int(np.random.default_rng(0).integers(90))
    first = int(apart[drawn].argmax())
    assert sorted(solution.rows) == sorted([first, int(apart[first].argmax())])
