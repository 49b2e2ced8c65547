"""Step rules: one contract for all of them, against brute force."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw.kernels.functions import KERNELS, make_kernel
from ooc_fw.solver.state import StepKind
from ooc_fw.solver.steps import STEP_RULES, Effort
from tests.support.reference import SmallProblem, make_problem
from tests.support.solving import activate
from tests.support.strategies import SEEDS

SLOW = {"fw": 0.4, "partan": 0.1}  # gaps to which these rules take few steps
KINDS = {  # that a rule is named for
    "fw": {StepKind.TOWARD},
    "mfw": {StepKind.TOWARD, StepKind.AWAY},
    "swap": {StepKind.TOWARD, StepKind.PAIRWISE},
    "swap2": {StepKind.TOWARD, StepKind.PAIRWISE},
    "partan": {StepKind.TOWARD, StepKind.PARTAN},
    "cvm": {StepKind.CORRECTIVE},
    "corrective": {StepKind.CORRECTIVE},
}


def full_weights(active, problem):
    """Weights of every row, which are on the simplex."""
    assert (active.alpha >= 0).all()
    assert active.alpha.sum() == pytest.approx(1, abs=1e-12)
    alpha = np.zeros(len(problem.y))
    alpha[active.ids] = active.alpha
    return alpha


def course(name, problem, active, most=100):
    """Steps with an oracle that knows every gradient, and the weights before each."""
    rule, tol = STEP_RULES[name](), SLOW.get(name, 1e-3)
    for _ in range(most):
        alpha = full_weights(active, problem)
        gradient = problem.dual_matrix @ alpha
        gap = 1 - gradient.min() / (alpha @ gradient)
        if gap <= tol:
            return
        worst = np.array([np.argmin(gradient)])
        active.add(worst, problem.X[worst], problem.y[worst])
        steps = rule.step(active, Effort(max(0.3 * gap, tol / 2)))
        rule.prune(active)
        yield steps, alpha


@pytest.mark.parametrize("name", STEP_RULES)
@given(
    kernel=st.sampled_from(sorted(KERNELS)),
    C=st.sampled_from([0.1, 1.0, 10.0]),
    seed=SEEDS,
)
def test_every_rule_keeps_the_contract(name, kernel, C, seed):
    """Weights stay on the simplex, and the objective falls, but not below that of the optimum.

    The gradient that steps maintain is the one computed anew, and steps are counted by their kind.
    """
    problem = make_problem(make_kernel(kernel, gamma=1.0), n_rows=40, C=C, seed=seed)
    Q = problem.dual_matrix
    scale = np.abs(Q).max()
    rng = np.random.default_rng(seed)
    active = activate(problem, rng.permutation(40)[:5], rng.random(5) + 0.1)
    for steps, before in course(name, problem, active):
        after = full_weights(active, problem)
        assert after @ Q @ after <= before @ Q @ before + 4e-7 * scale
        assert active.rho == pytest.approx(after @ Q @ after, abs=2e-5 * scale)
        np.testing.assert_allclose(active.grad, (Q @ after)[active.ids], atol=1e-4 * scale)
        taken = {kind for kind, count in steps.counts.items() if count > 0} - {StepKind.DROP}
        assert taken <= KINDS[name]
        assert steps.n_steps == 1
        drops, gone = steps.counts[StepKind.DROP], np.count_nonzero((before > 0) & (after == 0))
        assert drops >= gone if name in ("cvm", "corrective") else drops == gone
    alpha = full_weights(active, problem)
    assert alpha @ Q @ alpha / 2 >= problem.optimum.objective - 1e-9 * scale


@pytest.mark.parametrize("name", ["mfw", "swap", "swap2", "partan"])
def test_curvature_lost_in_rounding_keeps_the_weights_feasible(name):
    """Near-repeats of long rows and a huge C: float32 may see a negative curvature."""
    rng = np.random.default_rng(1)
    X = np.repeat(rng.normal(size=(6, 7)), 4, axis=0)
    X *= 1 + 1e-7 * rng.normal(size=X.shape)
    y = np.where(np.arange(24) % 8 < 4, 1, -1).astype(np.int8)
    problem = SmallProblem(make_kernel("linear"), X.astype(np.float32), y, 1e9)
    active, rule = activate(problem, np.arange(24), rng.random(24)), STEP_RULES[name]()
    for _ in range(24):
        rule.step(active)
        full_weights(active, problem)


@pytest.mark.parametrize("name", ["cvm", "corrective"])
def test_a_corrective_step_is_cut_short_if_time_is_over(name):
    problem = make_problem(make_kernel("rbf", gamma=1.0), n_rows=300, C=1e3, overlap=3)
    active = activate(problem, np.arange(300), np.ones(300))
    before = active.rho
    steps = STEP_RULES[name]().step(active, Effort(0.0, lambda: True))
    assert steps.cut
    assert active.relative_gap() > 0
    assert active.rho < before
    full_weights(active, problem)
