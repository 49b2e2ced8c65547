"""Linear systems on the free vertices: against the exact optimum, however badly conditioned."""

import numpy as np
import pytest

from ooc_fw.solver.systems import Minimum
from tests.support import reference


def labelled(n_rows, scale, C, seed):
    """Q of rows of very different columns, and labels that they nearly decide."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_rows, 6)) * np.logspace(0, np.log10(scale), 6) + scale
    y = np.where((X - X.mean(axis=0)) @ rng.normal(size=6) + rng.normal(size=n_rows) > 0, 1, -1)
    return np.multiply.outer(y, y) * (X @ X.T + 1) + np.eye(n_rows) / C


def run(Q, alpha, tol=1e-9, max_systems=1000):
    return Minimum(
        lambda places: Q[np.ix_(places, places)], lambda a: Q @ a, alpha.copy(), tol, max_systems
    ).search()


def starts(m, seed):
    """Equal weights, and few weights."""
    rng = np.random.default_rng(seed)
    few = rng.random(m) * (rng.random(m) < 0.1)
    few[3] += 1
    return np.full(m, 1 / m), few / few.sum()


@pytest.mark.parametrize(("C", "scale"), [(0.1, 1.0), (1.0, 100.0), (100.0, 1.0), (100.0, 100.0)])
def test_the_minimum_is_found(C, scale):
    for seed in range(3):
        Q = labelled(120, scale, C, seed)
        optimum = reference.minimise(Q)
        for alpha in starts(len(Q), seed):
            found = run(Q, alpha)
            assert (found.alpha >= 0).all()
            assert found.alpha.sum() == pytest.approx(1, abs=1e-12)
            np.testing.assert_allclose(found.grad, Q @ found.alpha)
            assert found.alpha @ Q @ found.alpha / 2 == pytest.approx(optimum.objective, rel=1e-7)
            assert found.n_systems < 200


def test_the_objective_never_rises():
    Q = labelled(100, 1e4, 1e8, 0)  # singular but for rounding
    for alpha in starts(len(Q), 0):
        for max_systems in (0, 1, 2, 5):
            found = run(Q, alpha, 0.0, max_systems)
            assert found.n_systems <= max_systems + 1
            assert found.alpha @ Q @ found.alpha <= alpha @ Q @ alpha
    Q, alpha = np.ones((4, 4)), np.array([0.5, 0.5, 0, 0])
    np.testing.assert_array_equal(run(Q, alpha, -1.0).alpha, alpha)
