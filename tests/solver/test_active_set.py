"""The active set as a state machine beside a plain dictionary of weights, and its refusals."""

import math

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ooc_fw.data.rows import take_rows
from ooc_fw.kernels.arithmetic import Arithmetic
from ooc_fw.kernels.engine import Engine
from ooc_fw.kernels.functions import KERNELS, make_kernel
from ooc_fw.solver.active_set import ActiveSet
from ooc_fw.solver.kernel_rows import KernelRows
from ooc_fw.solver.steps import STEP_RULES
from tests.support.contracts import to_dense
from tests.support.reference import kernel_values, make_problem
from tests.support.solving import activate, kernel_row

N_ROWS = 40


def adding(active, problem, sparse=False):
    """A function that adds rows of the problem by number, and then overwrites what it gave."""
    rows = problem.rows(sparse)

    def add(row_ids, fill=True):
        row_ids = np.asarray(row_ids, dtype=np.int64)
        given = take_rows(rows, row_ids)
        active.add(row_ids, given, problem.y[row_ids], fill=fill)
        (given.data if sparse else given)[:] = 0

    return add


def filled(n, kernel="rbf", sparse=False, **options):
    """A problem, an active set of its first rows, and a function that adds more.

    Weights are in proportion to 1, 2, 3 ...
    """
    problem = make_problem(make_kernel(kernel, gamma=1.0), n_rows=N_ROWS, **options)
    active = activate(problem, np.arange(n), np.arange(1.0, n + 1), sparse)
    return problem, active, adding(active, problem, sparse)


def assert_valid(active, problem, tolerance=2e-6):
    """Everything an active set promises, by brute force."""
    ids = active.ids
    m = len(active)
    scale = 1 + np.abs(active.diag).max()
    assert len(set(ids.tolist())) == m
    np.testing.assert_array_equal(to_dense(active.rows), problem.X[ids])
    np.testing.assert_array_equal(active.labels, problem.y[ids])
    values = kernel_values(problem.kernel, problem.X[ids], problem.X[ids]).astype(float)
    for place in range(m):
        row = kernel_row(active.kernel_rows, place, active.engine, active.operand)
        np.testing.assert_allclose(row, values[place], atol=tolerance * scale)
    np.testing.assert_allclose(active.diag, np.diag(values) + 1 + 1 / problem.C, rtol=1e-12)
    assert (active.alpha >= 0).all()
    if active.alpha.any():
        assert active.alpha.sum() == pytest.approx(1, abs=1e-9)
        exact = problem.dual_matrix[np.ix_(ids, ids)] @ active.alpha
        np.testing.assert_allclose(active.grad, exact, atol=tolerance * scale)
        assert active.rho == pytest.approx(active.alpha @ exact, abs=tolerance * scale)
    assert active.places_of(ids).tolist() == list(range(m))


def weights_by_row(active):
    """Weights of all rows of the problem, as the certificate sees them."""
    weights = np.zeros(N_ROWS, dtype=np.longdouble)
    weights[active.ids] = active.alpha
    return weights


class ActiveSetMachine(RuleBasedStateMachine):
    """Any order of operations keeps the active set equal to a dictionary of weights."""

    @initialize(
        name=st.sampled_from(sorted(KERNELS)),
        sparse=st.booleans(),
        densely=st.booleans(),
        centred=st.booleans(),
        tight=st.booleans(),
        C=st.sampled_from([0.1, 1.0, 100.0]),
        first=st.lists(st.integers(0, N_ROWS - 1), min_size=1, max_size=6, unique=True),
    )
    def begin(self, name, sparse, densely, centred, tight, C, first):
        self.problem = make_problem(make_kernel(name, gamma=1.0), n_rows=N_ROWS, C=C, density=0.7)
        center = self.problem.X.mean(axis=0) if centred else None
        engine = Engine(self.problem.kernel, arithmetic=Arithmetic(center, not densely))
        # Room for six whole rows of the kernel block at most, or for all.
        memory = 6 * (4 * N_ROWS + 4096) if tight else 1 << 20
        self.active = ActiveSet(engine, C, KernelRows(N_ROWS, memory))
        self.add = adding(self.active, self.problem, sparse)
        self.add(first)
        self.active.set_weights(np.arange(1.0, len(first) + 1))
        engine.close()  # it still computes
        total = len(first) * (len(first) + 1) / 2
        self.weights = {row: (k + 1) / total for k, row in enumerate(first)}

    def pick(self, number):
        """A vertex by a number of any size."""
        return number % len(self.active)

    @rule(
        rows=st.lists(st.integers(0, N_ROWS - 1), min_size=1, max_size=8, unique=True),
        fill=st.booleans(),
    )
    def add_vertices(self, rows, fill):
        evaluations = self.active.engine.evaluations
        self.add(rows, fill)
        if self.weights.keys() >= set(rows):  # none of them is new
            assert self.active.engine.evaluations == evaluations
        self.weights = {row: 0.0 for row in rows} | self.weights

    @rule(most=st.integers(1, 5), name=st.sampled_from(["fw", "mfw", "swap", "swap2"]))
    def walk(self, most, name):
        before = self.active.rho
        steps = STEP_RULES[name]().walk(self.active, most)
        assert steps.n_steps == most
        assert self.active.rho <= before + 1e-6 * (1 + np.abs(self.active.diag).max())
        self.learn()

    @rule(tol=st.sampled_from([0.5, 1e-2, 1e-4]))
    def optimise(self, tol):
        before = self.active.rho
        steps, drops = self.active.optimise(tol, 10_000)
        assert 0 <= drops <= steps
        assert self.active.rho <= before * (1 + 1e-6)  # the steps' gradient may be in float32
        assert self.active.relative_gap() <= tol + 1e-6 + 1e-7 * steps  # of a float32 gradient
        self.learn()

    @rule()
    def refresh(self):
        self.active.refresh()
        assert_valid(self.active, self.problem, tolerance=2e-6)
        exact = self.problem.dual_matrix[np.ix_(self.active.ids, self.active.ids)]
        scale = 1 + np.abs(exact).max()
        np.testing.assert_allclose(
            self.active.grad, exact @ self.active.alpha, atol=1e-13 * scale * N_ROWS
        )

    @rule(pinned=st.integers(0, 1000), of_before=st.booleans())
    def prune(self, pinned, of_before):
        self.active.pinned[:] = False
        self.active.pinned[self.pick(pinned)] = True
        protected = (self.active.alpha_before > 0) & (not of_before)
        stay = set(self.active.ids[protected | self.active.pinned].tolist())
        before, grad = self.active.ids.copy(), self.active.grad.copy()
        self.active.prune(of_before=of_before)
        gone = np.flatnonzero(~np.isin(before, self.active.ids))
        np.testing.assert_array_equal(self.active.ids, np.delete(before, gone))
        assert len(gone) == 0 or len(gone) > len(before) / 8
        for place in gone.tolist():
            row = int(before[place])
            assert row not in stay
            assert self.weights.pop(row) == pytest.approx(0, abs=1e-12)
            assert grad[place] >= self.active.rho
            assert len(self.active.outside(np.array([row]))) == 1

    @rule(seed=st.integers(0, 1000))
    def replace_weights(self, seed):
        self.active.set_weights(np.random.default_rng(seed).random(len(self.active)) + 1e-3)
        self.learn()

    def learn(self):
        """Take over weights that this test does not compute itself."""
        ids, alpha = self.active.ids.tolist(), self.active.alpha.tolist()
        assert set(ids) == set(self.weights)
        self.weights = dict(zip(ids, alpha, strict=True))

    @invariant()
    def equals_the_dictionary(self):
        if not hasattr(self, "active"):
            return
        active = self.active
        assert len(active) == len(self.weights)
        expected = [self.weights[row] for row in active.ids.tolist()]
        np.testing.assert_allclose(active.alpha, expected, atol=1e-12)
        np.testing.assert_array_equal(active.support, np.flatnonzero(active.alpha))
        outside = [row for row in range(N_ROWS) if row not in self.weights]
        np.testing.assert_array_equal(active.outside(np.arange(N_ROWS)), outside)
        np.testing.assert_array_equal(active.places_of(active.ids), np.arange(len(active)))
        # Steps in float32 drift; 50 of them stay far within this.
        assert_valid(active, self.problem, tolerance=1e-5)


TestActiveSet = ActiveSetMachine.TestCase
TestActiveSet.settings = settings(stateful_step_count=30, deadline=None)


@pytest.mark.parametrize(("name", "sparse"), [(name, k % 2) for k, name in enumerate(KERNELS)])
def test_decision_at_other_rows(name, sparse):
    problem, active, _ = filled(10, name, sparse=sparse)
    decision = active.decision_at(active.prepare(problem.rows(sparse)))
    truth = problem.truth(active.ids, active.alpha)
    found = problem.y * decision + truth.alpha.astype(float) / problem.C
    np.testing.assert_allclose(found, truth.gradient.astype(float), rtol=1e-5, atol=1e-5)


def test_squared_norm_is_that_of_the_hyperplane_with_its_bias():
    problem, active, _ = filled(10, "linear")
    beta = active.alpha * active.labels
    w, b = beta @ problem.X[:10].astype(float), beta.sum()
    assert active.squared_norm() == pytest.approx(w @ w + b * b, rel=1e-10)


def test_growing_beyond_the_capacity_changes_nothing():
    problem = make_problem(make_kernel("rbf", gamma=1.0), n_rows=12)
    active = activate(problem, np.arange(10), np.arange(1.0, 11))
    beyond = np.arange(10, 13)
    with pytest.raises(MemoryError, match="no room for"):
        active.add(beyond, problem.X[:3], problem.y[:3])
    assert active.ids.tolist() == list(range(10))
    assert_valid(active, problem)
    adding(active, problem)(np.arange(5, 12))
    assert len(active) == 12


def test_a_prune_spares_few_vertices_and_those_that_violate():
    _, active, _ = filled(30)
    active.grad[:] = active.rho + 1
    active.alpha[:2] = 0
    active.prune()
    assert len(active) == 30
    active.alpha[:15] = 0
    active.grad[:4] = active.rho - 1e-12
    active.prune(of_before=False)  # all of them have weight in the iterate before
    assert len(active) == 30
    active.prune()
    np.testing.assert_array_equal(active.ids, [*range(4), *range(15, 30)])


@pytest.mark.parametrize(("moves", "n_support"), [(0, 30), (1, 30), (4, 30), (30, 30), (30, 4)])
@pytest.mark.parametrize(("name", "sparse"), [(name, k % 2) for k, name in enumerate(KERNELS)])
def test_a_refresh_errs_by_no_more_than_it_says(name, sparse, moves, n_support):
    """Whether few or most weights moved, or are there; vertices are added and leave in between."""
    problem, active, add = filled(30, name, sparse=sparse, C=100.0)
    rng = np.random.default_rng(moves)
    active.alpha[n_support:30] = 0
    active.refresh()
    active.moved, w_before = 0.0, weights_by_row(active)
    kernel = kernel_values(problem.kernel, problem.X, problem.X).astype(np.longdouble) + 1
    for turn in range(4):
        add([30 + turn])
        active.refresh()  # a vertex that the move leads to has to be known before
        for _ in range(moves):
            i, j = rng.permutation(len(active))[:2]
            active.alpha[[i, j]] = active.alpha[i] + active.alpha[j], 0.0
        if turn == 2:
            active.prune(spare=0.0)
        m = len(active)
        evaluations = active.engine.evaluations
        active.refresh()
        if moves <= 1 and turn != 2 and n_support == 30:
            assert active.engine.evaluations - evaluations <= m + 2 * moves * m
        truth = problem.truth(active.ids, active.alpha)
        assert np.abs(active.grad - truth.gradient[active.ids]).max() <= active.rounding
        assert active.rho == pytest.approx(float(truth.rho), rel=1e-10)
        beta = problem.y * (weights_by_row(active) - w_before)
        assert math.sqrt(max(0.0, beta @ kernel @ beta)) <= active.moved * (1 + 1e-12)
        if moves > 0 and turn == 0:
            assert active.moved < 3 * moves * math.sqrt(float(kernel.diagonal().max()))


@pytest.mark.parametrize("most", [1, 5_000])
def test_linear_systems_reach_the_minimum_where_kernel_values_are_float64(monkeypatch, most):
    """Whether or not they took more steps than those after which rho is summed anew."""
    monkeypatch.setattr("ooc_fw.solver.active_set._MOST_STEPS", most)
    problem, active, _ = filled(N_ROWS, "linear", C=1e4)
    assert not active.precise
    assert not active.note_correction(finished=False)
    assert active.note_correction(finished=False)
    assert active.precise
    _, drops = active.optimise(1e-9, 1000 * N_ROWS)
    assert drops == np.count_nonzero(active.alpha == 0)
    assert active.relative_gap() <= 1e-9
    assert active.rho / 2 == pytest.approx(problem.optimum.objective, rel=1e-8)


def test_wider_values_leave_the_weights():
    problem, active, _ = filled(10)
    before = active.alpha.copy()
    assert active.raise_precision()
    assert active.precise
    assert not active.raise_precision()
    assert_valid(active, problem, tolerance=1e-12)
    np.testing.assert_array_equal(active.alpha, before)
