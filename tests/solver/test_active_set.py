"""The active set as a state machine beside brute force, its refreshes and its linear systems."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ooc_fw._core.rules import Limits
from ooc_fw.data.rows import take_rows
from ooc_fw.kernels.arithmetic import Arithmetic
from ooc_fw.kernels.engine import Engine
from ooc_fw.kernels.functions import KERNELS, make_kernel
from ooc_fw.solver.active_set import ActiveSet
from ooc_fw.solver.kernel_rows import KernelRows
from ooc_fw.solver.steps import STEP_RULES
from ooc_fw.solver.systems import Minimum
from tests.support import reference
from tests.support.contracts import to_dense
from tests.support.reference import kernel_values, make_problem
from tests.support.solving import activate, kernel_row

N_ROWS = 40
SOME_ROWS = st.lists(st.integers(0, N_ROWS - 1), min_size=1, max_size=8, unique=True)


def problem_of(kernel, **options):
    return make_problem(make_kernel(kernel, gamma=1.0), n_rows=N_ROWS, **options)


def add(active, problem, row_ids, sparse=False, fill=True):
    """Add rows of the problem by number, and then overwrite what was given."""
    row_ids = np.asarray(row_ids, dtype=np.int64)
    given = take_rows(problem.rows(sparse), row_ids)
    active.add(row_ids, given, problem.y[row_ids], fill=fill)
    (given.data if sparse else given)[:] = 0


def assert_valid(active, problem, sparse=False, tolerance=2e-6):
    """Everything that an active set promises, by brute force."""
    ids, alpha = active.ids, active.alpha
    scale = 1 + np.abs(active.diag).max()
    assert len(set(ids.tolist())) == len(active)
    np.testing.assert_array_equal(to_dense(active.rows), problem.X[ids])
    np.testing.assert_array_equal(active.labels, problem.y[ids])
    np.testing.assert_array_equal(active.places_of(ids), np.arange(len(active)))
    np.testing.assert_array_equal(active.support, np.flatnonzero(alpha))
    values = kernel_values(problem.kernel, problem.X[ids], problem.X[ids]).astype(float)
    for place in range(len(active)):
        row = kernel_row(active.kernel_rows, place, active.engine, active.operand)
        np.testing.assert_allclose(row, values[place], atol=tolerance * scale)
    np.testing.assert_allclose(active.diag, np.diag(values) + 1 + 1 / problem.C, rtol=1e-12)
    assert (alpha >= 0).all()
    assert alpha.sum() == pytest.approx(1, abs=1e-9)
    gradient = problem.dual_matrix[:, ids] @ alpha
    np.testing.assert_allclose(active.grad, gradient[ids], atol=tolerance * scale)
    assert active.rho == pytest.approx(alpha @ gradient[ids], abs=tolerance * scale)
    norm = active.rho - alpha @ alpha / problem.C
    assert active.squared_norm() == pytest.approx(norm, abs=1e-12 * scale)
    outside = active.outside(np.arange(N_ROWS))
    np.testing.assert_array_equal(outside, np.setdiff1d(np.arange(N_ROWS), ids))
    decisions = active.decision_at(active.prepare(take_rows(problem.rows(sparse), outside)))
    bound = 2e-5 * (1 + np.abs(problem.dual_matrix).max())
    np.testing.assert_allclose(problem.y[outside] * decisions, gradient[outside], atol=bound)


class ActiveSetMachine(RuleBasedStateMachine):
    """Any order of operations leaves a valid active set."""

    @initialize(
        name=st.sampled_from(sorted(KERNELS)),
        sparse=st.booleans(),
        densely=st.booleans(),
        centred=st.booleans(),
        tight=st.booleans(),
        C=st.sampled_from([0.1, 1.0, 100.0]),
        first=SOME_ROWS,
    )
    def begin(self, name, sparse, densely, centred, tight, C, first):
        self.problem, self.sparse = problem_of(name, C=C, density=0.7), sparse
        center = self.problem.X.mean(axis=0) if centred else None
        engine = Engine(self.problem.kernel, arithmetic=Arithmetic(center, not densely))
        # Room for six whole rows of the kernel block at most, or for all.
        memory = 6 * (4 * N_ROWS + 4096) if tight else 1 << 20
        self.active = ActiveSet(engine, C, KernelRows(N_ROWS, memory))
        add(self.active, self.problem, first, sparse)
        self.active.set_weights(np.arange(1.0, len(first) + 1))
        engine.pool.close()  # it still computes

    @rule(rows=SOME_ROWS, fill=st.booleans())
    def add_vertices(self, rows, fill):
        active = self.active
        ids, alpha, evaluations = active.ids.copy(), active.alpha.copy(), active.engine.evaluations
        new = [row for row in rows if row not in ids]
        add(active, self.problem, rows, self.sparse, fill)
        np.testing.assert_array_equal(active.ids, [*ids, *new])
        np.testing.assert_array_equal(active.alpha, [*alpha, *[0.0] * len(new)])
        assert new or active.engine.evaluations == evaluations

    @rule(most=st.integers(1, 5), name=st.sampled_from(["fw", "mfw", "swap", "swap2"]))
    def walk(self, most, name):
        before = self.active.rho
        assert STEP_RULES[name]().walk(self.active, Limits(most)).n_steps == most
        assert self.active.rho <= before + 1e-6 * (1 + np.abs(self.active.diag).max())

    @rule(tol=st.sampled_from([0.5, 1e-2, 1e-4]))
    def optimise(self, tol):
        before = self.active.rho
        steps, drops = self.active.optimise(tol, 10_000)
        assert 0 <= drops <= steps
        assert self.active.rho <= before * (1 + 1e-6)  # the steps' gradient may be in float32
        assert self.active.relative_gap() <= tol + 1e-6 + 1e-7 * steps

    @rule()
    def refresh(self):
        self.active.refresh()
        exact = self.problem.dual_matrix[np.ix_(self.active.ids, self.active.ids)]
        atol = 1e-13 * (1 + np.abs(exact).max()) * N_ROWS
        np.testing.assert_allclose(self.active.grad, exact @ self.active.alpha, atol=atol)

    @rule(of_before=st.booleans())
    def prune(self, of_before):
        active = self.active
        may_leave = (active.alpha == 0) & (active.grad >= active.rho)
        may_leave &= of_before | (active.alpha_before == 0)
        ids = active.ids.copy()
        active.prune(of_before=of_before)
        worth_it = np.count_nonzero(may_leave) > len(ids) / 8
        np.testing.assert_array_equal(active.ids, ids[~may_leave] if worth_it else ids)

    @rule(seed=st.integers(0, 1000))
    def replace_weights(self, seed):
        self.active.set_weights(np.random.default_rng(seed).random(len(self.active)) + 1e-3)

    @invariant()
    def is_valid(self):
        if hasattr(self, "active"):
            # Steps in float32 drift; 50 of them stay far within this.
            assert_valid(self.active, self.problem, self.sparse, tolerance=1e-5)


TestActiveSet = ActiveSetMachine.TestCase
TestActiveSet.settings = settings(stateful_step_count=30, deadline=None)


@pytest.mark.parametrize(("moves", "n_support"), [(0, 30), (1, 30), (4, 30), (30, 30), (30, 4)])
@pytest.mark.parametrize(("name", "sparse"), [(name, k % 2) for k, name in enumerate(KERNELS)])
def test_a_refresh_errs_by_no_more_than_it_says(name, sparse, moves, n_support):
    """Few or most weights move, and vertices come and leave in between."""
    problem = problem_of(name, C=100.0)
    problem.X[:] += 100  # so that products cancel
    active = activate(problem, np.arange(30), np.arange(1.0, 31), sparse)
    rng = np.random.default_rng(moves)
    active.alpha[n_support:] = 0
    active.refresh()
    for turn in range(4):
        add(active, problem, [30 + turn], sparse)
        active.refresh()  # a vertex that the move leads to has to be known before
        for _ in range(moves):
            i, j = rng.permutation(len(active))[:2]
            active.alpha[[i, j]] = active.alpha[i] + active.alpha[j], 0.0
        if turn == 2:
            active.prune(spare=0.0)
        evaluations = active.engine.evaluations
        active.refresh()
        if moves <= 1 and turn != 2 and n_support == 30:
            assert active.engine.evaluations - evaluations <= (1 + 2 * moves) * len(active)
        truth = problem.truth(active.ids, active.alpha)
        assert np.abs(active.grad - truth.gradient[active.ids]).max() <= active.rounding
        assert active.rho == pytest.approx(float(truth.rho), rel=1e-10)


def test_linear_systems_replace_steps_that_do_not_end():
    """Kernel values are then of float64, and the minimum is that of brute force."""
    problem = problem_of("linear", C=1e4)
    active = activate(problem, np.arange(N_ROWS), np.ones(N_ROWS))
    assert not active.precise
    assert not active.note_correction(finished=False)
    assert active.note_correction(finished=False)
    assert active.precise
    assert not active.raise_precision()
    assert_valid(active, problem, tolerance=1e-12)
    _, drops = active.optimise(1e-9, 1000 * N_ROWS)
    assert drops == np.count_nonzero(active.alpha == 0)
    assert active.relative_gap() <= 1e-9
    assert active.rho / 2 == pytest.approx(problem.optimum.objective, rel=1e-8)


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
