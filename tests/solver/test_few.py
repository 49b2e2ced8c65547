"""Looks by few of the vertices: what may violate is right, and the rest does not violate."""

import numpy as np
import pytest

from ooc_fw.kernels.functions import make_kernel
from ooc_fw.kernels.low_rank import PivotLimits
from ooc_fw.solver import oracles
from ooc_fw.solver.oracles import FewVertices, Look
from ooc_fw.system.memory import MemoryPlan
from tests.support.reference import SmallProblem, make_problem
from tests.support.solving import activate, train_in_session

NO_LIMIT = MemoryPlan(None, 0, None, 2, kernel_values=1 << 28)


@pytest.fixture
def looked_at(monkeypatch):
    """500 vertices near few centres, at their optimum, and a look at 4,000 such rows."""
    monkeypatch.setattr(oracles, "_LEAST_VERTICES", 0)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(12, 4))[rng.integers(0, 12, 4500)] + 0.1 * rng.normal(size=(4500, 4))
    X = X.astype(np.float32)
    y = np.where(np.sin(2 * X[:, 0]) + X[:, 1] > 0, 1, -1).astype(np.int8)
    problem = SmallProblem(make_kernel("rbf", gamma=0.2), X, y, 10.0)
    active = activate(problem, np.arange(500), np.ones(500))
    active.optimise(1e-4, 100_000)
    active.refresh()
    has_label = np.stack([y[500:] < 0, y[500:] > 0])
    return active, Look(active.prepare(X[500:]), has_label, 0.99 * active.rho, 1_000_000)


def test_what_may_violate_is_right_and_the_rest_does_not_violate(looked_at):
    active, look = looked_at
    expected = active.decision_at(look.x)
    before, shortcut = active.engine.evaluations, FewVertices(NO_LIMIT)
    shortcut.decisions(active, look)  # chooses the vertices
    chosen = active.engine.evaluations
    found = shortcut.decisions(active, look)
    assert 0 < active.engine.evaluations - chosen < 0.6 * 4000 * len(active)
    estimated = found != expected
    assert 0 < np.count_nonzero(estimated) < 4000
    gradients = np.where(look.has_label[1], expected, -expected)
    assert (gradients[estimated] >= look.threshold).all()
    assert np.abs(found - expected).max() < active.rho
    assert before < chosen


def test_the_others_go_on_when_chosen_vertices_leave(looked_at):
    active, look = looked_at
    shortcut = FewVertices(NO_LIMIT)
    shortcut.decisions(active, look)
    chosen = shortcut._ids
    active.keep(np.flatnonzero(~np.isin(active.ids, chosen[::10])))
    active.refresh()
    expected = active.decision_at(look.x)
    found = shortcut.decisions(active, look)
    assert set(shortcut._ids) == set(chosen) - set(chosen[::10])
    gradients = np.where(look.has_label[1], expected, -expected)
    violates = gradients < look.threshold
    np.testing.assert_array_equal(found[violates], expected[violates])
    active.keep(np.flatnonzero(~np.isin(active.ids, chosen)))
    expected = active.decision_at(look.x)
    np.testing.assert_array_equal(shortcut.decisions(active, look), expected)


@pytest.mark.parametrize("memory_limit", [None, 500 << 20])
def test_a_run_by_few_vertices_has_the_same_optimum(memory_limit, monkeypatch):
    sought = []

    class Eager(PivotLimits):
        @classmethod
        def of(cls, n_rows, n_vertices, n_bytes=None):
            sought.append(n_vertices)
            return PivotLimits(6, 60, 40, n_vertices) if n_vertices > 40 else None

    monkeypatch.setattr(oracles, "_KNOWN", 50)
    monkeypatch.setattr(oracles, "_LEAST_VERTICES", 0)
    problem = make_problem(make_kernel("rbf", gamma=0.3), n_rows=3000, overlap=1)
    options = {"method": "corrective", "lmo": "sampled", "tol": 1e-3, "memory_limit": memory_limit}
    usual = train_in_session(problem, **options)
    monkeypatch.setattr(oracles, "PivotLimits", Eager)
    expected = train_in_session(problem, **options)
    assert len(sought) > 2
    assert expected.status.reached
    assert abs(expected.objective - usual.objective) < 1e-3 * usual.objective
