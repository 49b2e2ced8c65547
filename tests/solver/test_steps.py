"""Step rules: exact line searches by brute force, and a battery that every rule passes."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ooc_fw.kernels.functions import KERNELS, make_kernel
from ooc_fw.solver.state import StepKind
from ooc_fw.solver.steps import STEP_RULES, Effort
from tests.support.reference import SmallProblem, make_problem
from tests.support.solving import activate
from tests.support.strategies import SEEDS

KERNEL_NAMES = st.sampled_from(sorted(KERNELS))
RULES = pytest.mark.parametrize("name", STEP_RULES)


def full_weights(active, problem):
    """Weights of every row, which are on the simplex."""
    assert (active.alpha >= 0).all()
    assert active.alpha.sum() == pytest.approx(1, abs=1e-12)
    alpha = np.zeros(len(problem.y))
    alpha[active.ids] = active.alpha
    return alpha


def objective(problem, alpha):
    return alpha @ problem.dual_matrix @ alpha / 2


@st.composite
def actives(draw, least_size=1):
    """A problem, and an active set of all its rows with random weights, some of them 0."""
    n_rows = draw(st.integers(max(2, least_size), 25))
    problem = make_problem(
        make_kernel(draw(KERNEL_NAMES), gamma=1.0),
        n_rows=n_rows,
        C=draw(st.sampled_from([0.1, 1.0, 100.0])),
        seed=draw(st.integers(0, 50)),
    )
    rng = np.random.default_rng(draw(SEEDS))
    support = draw(st.integers(least_size, n_rows))
    weights = np.zeros(n_rows)
    weights[rng.permutation(n_rows)[:support]] = rng.random(support) + 1e-3
    return problem, activate(problem, np.arange(n_rows), weights)


def least_on_segment(problem, start, end):
    """Least objective between two points, by trying many."""
    points = start + np.linspace(0, 1, 2001)[:, None] * (end - start)
    return np.einsum("ki,ki->k", points @ problem.dual_matrix, points).min() / 2


def kinds(steps):
    """Kinds of the steps that were taken."""
    return {kind for kind, count in steps.counts.items() if count > 0} - {StepKind.DROP}


@pytest.mark.parametrize("name", ["mfw", "swap", "swap2"])
def test_a_step_to_its_bound_leaves_an_exact_zero(name):
    """At the optimum but for a little weight on a row that should have none."""
    problem = make_problem(make_kernel("rbf", gamma=1.0), n_rows=30, C=10.0)
    weights = problem.optimum.alpha.copy()
    j = int(np.argmax(problem.dual_matrix @ weights))
    weights[j] = 1e-4
    active = activate(problem, np.arange(30), weights)
    assert STEP_RULES[name]().step(active).counts[StepKind.DROP] == 1
    assert active.alpha[j] == 0.0
    full_weights(active, problem)


@pytest.mark.parametrize("scale", [1.0, 100.0])
@pytest.mark.parametrize("name", ["mfw", "swap", "swap2", "partan"])
def test_curvature_lost_in_rounding_keeps_the_weights_feasible(name, scale):
    """Near-repeats of long rows and huge C: float32 may see a negative curvature."""
    rng = np.random.default_rng(1)
    X = np.repeat(rng.normal(size=(6, 7)), 4, axis=0) * scale
    X *= 1 + 1e-7 * rng.normal(size=X.shape)
    y = np.where(np.arange(24) % 8 < 4, 1, -1).astype(np.int8)
    problem = SmallProblem(make_kernel("linear"), X.astype(np.float32), y, 1e9)
    active, rule = activate(problem, np.arange(24), rng.random(24)), STEP_RULES[name]()
    for _ in range(24):
        rule.step(active)
        full_weights(active, problem)


def run(rule, problem, active, count, tol=1e-3):
    """Steps with an oracle that knows every gradient; yields what each did and weights before."""
    for _ in range(count):
        alpha = full_weights(active, problem)
        grad = problem.dual_matrix @ alpha
        rho = alpha @ grad
        if 1 - grad.min() / rho <= tol:
            return
        worst = np.array([np.argmin(grad)])
        active.add(worst, problem.X[worst], problem.y[worst])
        yield rule.step(active, Effort(max(0.3 * (1 - grad.min() / rho), tol / 2))), alpha
        rule.prune(active)


@RULES
@given(kernel=KERNEL_NAMES, C=st.sampled_from([0.1, 1.0, 10.0, 100.0]), seed=SEEDS)
def test_steps_stay_on_the_simplex_never_raise_the_objective_and_are_told(name, kernel, C, seed):
    problem = make_problem(make_kernel(kernel, gamma=1.0), n_rows=40, C=C, seed=seed)
    rng = np.random.default_rng(seed)
    active = activate(problem, rng.permutation(40)[:5], rng.random(5) + 0.1)
    scale = np.abs(problem.dual_matrix).max()
    for steps, before in run(STEP_RULES[name](), problem, active, 30):
        after = full_weights(active, problem)
        assert objective(problem, after) <= objective(problem, before) + 2e-7 * scale
        assert active.rho / 2 == pytest.approx(objective(problem, after), abs=1e-5 * scale)
        assert steps.n_steps == 1
        assert steps.counts[StepKind.DROP] >= np.count_nonzero((before > 0) & (after == 0))


@pytest.mark.parametrize(
    ("name", "all_kinds", "wanted"),
    [
        ("fw", True, {StepKind.TOWARD}),
        ("mfw", True, {StepKind.TOWARD, StepKind.AWAY}),
        ("swap", False, {StepKind.PAIRWISE}),
        ("swap2", False, {StepKind.PAIRWISE}),
        ("partan", False, {StepKind.TOWARD, StepKind.PARTAN}),
        ("cvm", True, {StepKind.CORRECTIVE}),
    ],
)
def test_rules_take_the_steps_they_are_named_for(name, all_kinds, wanted):
    problem = make_problem(make_kernel("rbf", gamma=1.0), n_rows=40, C=10.0)
    active = activate(problem, np.arange(20), np.ones(20))
    found = set()
    for steps, _ in run(STEP_RULES[name](), problem, active, 100, 1e-4):
        found |= kinds(steps)
    assert found == wanted if all_kinds else found >= wanted


@given(actives(least_size=2))
def test_mfw_follows_the_larger_slope(case):
    _, active = case
    i, support = int(np.argmin(active.grad)), active.support
    j = int(support[np.argmax(active.grad[support])])
    away, toward = active.grad[j] - active.rho, active.rho - active.grad[i]
    assume(abs(away - toward) > 1e-9)
    steps = STEP_RULES["mfw"]().step(active)
    assert kinds(steps) == {StepKind.AWAY if away > toward else StepKind.TOWARD}
    active.set_weights(np.eye(len(active))[0])  # no away step from a single vertex
    assert kinds(STEP_RULES["mfw"]().step(active)) == {StepKind.TOWARD}


@pytest.mark.parametrize("name", ["swap", "swap2"])
@given(case=actives(least_size=2))
def test_swap_takes_the_larger_decrease(name, case):
    """No smaller than what the toward step would have given, clipping included."""
    problem, active = case
    i = int(np.argmin(active.grad))
    before = full_weights(active, problem)
    toward = least_on_segment(problem, before, np.eye(len(before))[i])
    STEP_RULES[name]().step(active)
    scale = np.abs(problem.dual_matrix).max()
    assert objective(problem, full_weights(active, problem)) <= toward + 1e-6 * scale


def test_partan_keeps_what_its_previous_iterate_rests_on():
    """A vertex that only the iterate before has must survive a prune."""
    problem = make_problem(make_kernel("rbf", gamma=1.0), n_rows=40, C=100.0)
    active = activate(problem, np.arange(20), np.ones(20))
    rule = STEP_RULES["partan"]()
    for _, before in run(rule, problem, active, 300, 1e-5):
        ids = set(active.ids.tolist())
        assert ids.issuperset(np.flatnonzero(before).tolist())
