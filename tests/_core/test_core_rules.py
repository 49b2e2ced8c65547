"""Steps of all rules that move one or two vertices, against a few lines of dense numpy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw._core.rules import DRAWS, DROPS, N_COUNTS, Limits, Rule, take_steps
from ooc_fw._core.steps import KernelBlock, Vertices
from ooc_fw.kernels.functions import make_kernel
from tests.support.reference import kernel_values, make_problem
from tests.support.strategies import SEEDS

N, STEPS = 40, 25
NO_TARGETS = -np.inf, 0.0, -np.inf


def line_search(Q, alpha, end):
    """The point of least objective between two, exactly."""
    d = end - alpha
    slope, curvature = -(Q @ alpha) @ d, d @ Q @ d
    size = 0.0 if slope <= 0 else 1.0
    if slope > 0 and curvature > slope:
        size = slope / curvature
    return alpha + size * d


def naive_step(rule, Q, alpha, g, i, before):
    """The next iterate as the papers define it; g is Q alpha, and its rounding decides ties."""
    n, support = len(alpha), np.flatnonzero(alpha)
    rho, e = alpha @ g, np.eye(n)
    away = max(support, key=lambda row: g[row])
    toward = line_search(Q, alpha, e[i])
    if rule is Rule.MFW and g[away] - rho > rho - g[i] and alpha[away] < 1:
        end = np.where(np.arange(n) == away, 0.0, alpha)
        return line_search(Q, alpha, end / end.sum())
    if rule in (Rule.SWAP2, Rule.CORRECTIVE):
        gains = (g - g[i]) ** 2 / (Q[i, i] + np.diag(Q) - 2 * Q[i] + 1e-300)
        gains[(alpha <= 0) | (g <= g[i])] = -1
        away = int(gains.argmax())
    if rule is not Rule.PARTAN and rule.value >= Rule.SWAP and away != i and g[away] > g[i]:
        pair = line_search(Q, alpha, alpha + alpha[away] * (e[i] - e[away]))
        if rule is Rule.CORRECTIVE:
            return pair
        return pair if pair @ Q @ pair <= toward @ Q @ toward else toward
    if rule is Rule.PARTAN and before is not None:
        d = toward - before
        if (d < 0).any():
            return line_search(Q, toward, toward + (toward[d < 0] / -d[d < 0]).min() * d)
    return toward


class Walk:
    """Steps of a rule on 40 vertices, and what they need."""

    def __init__(self, rule, problem, start, held):
        values = kernel_values(problem.kernel, problem.X, problem.X).astype(np.float64)
        y = problem.y.astype(np.float64)
        Q = self.Q = np.multiply.outer(y, y) * (values + 1) + np.eye(N) / problem.C
        slots = np.arange(N) if held else np.full(N, -1)
        self.rule = rule
        self.vertices = Vertices(start.copy(), Q @ start, np.diag(Q).copy(), y)
        self.before = start.copy(), Q @ start
        self.block = KernelBlock(values, np.ones(1), slots, np.zeros(N, dtype=np.int64))
        self.counts = np.zeros(N_COUNTS, dtype=np.int64)

    def take(self, draws, most, targets=NO_TARGETS):
        """Up to so many steps, to which kernel rows are handed that they ask for."""
        missing = 0
        while missing >= 0:
            passed, gap, rho, missing = take_steps(
                *(self.rule, self.vertices, self.block, 1, Limits(most, targets, draws)),
                *(self.counts, self.before),
            )
            if missing >= 0:
                assert self.block.slots[missing] == -1
                self.block.slots[missing] = missing
        return passed, gap, rho


@pytest.mark.parametrize("drawn", [0, 7])
@pytest.mark.parametrize("rule", Rule)
@given(seed=SEEDS, C=st.sampled_from([0.1, 1.0, 10.0]))
def test_steps_are_those_of_the_papers(rule, drawn, seed, C):
    """Toward vertices are the best of all or of draws; many steps in one call are one by one."""
    rng = np.random.default_rng(seed)
    problem = make_problem(make_kernel("rbf", gamma=1.0), n_rows=N, seed=seed % 20, C=C)
    draws = rng.integers(0, N, (STEPS, drawn))
    start = np.zeros(N)
    start[rng.permutation(N)[:5]] = rng.random(5) + 0.1
    start /= start.sum()

    # Corrective steps prefer rows that are held, and sum rho anew in each call only, so that many
    # steps in one call differ from single ones by the rounding of rho.
    corrective = rule is Rule.CORRECTIVE
    single = Walk(rule, problem, start, held=corrective)
    Q, alpha, before = single.Q, start, None
    for step in range(STEPS):
        g, rho = single.vertices.grad.copy(), alpha @ single.vertices.grad
        seen = np.union1d(draws[step], np.flatnonzero(alpha)) if drawn else np.arange(N)
        least = seen[g[seen] == g[seen].min()].tolist()
        passed, gap, after_rho = single.take(draws[: step + 1], 1)
        assert not passed
        assert gap == pytest.approx(1 - g[least[0]] / rho) or drawn == 0
        after = [naive_step(rule, Q, alpha, g, i, before) for i in least]
        reached = single.vertices.alpha @ Q @ single.vertices.alpha
        assert reached in [pytest.approx(a @ Q @ a, rel=1e-9) for a in after]
        before, alpha = alpha, single.vertices.alpha.copy()
        np.testing.assert_allclose(single.vertices.grad, Q @ alpha, atol=1e-10)
        assert after_rho == pytest.approx(alpha @ Q @ alpha, rel=1e-10)

    whole = Walk(rule, problem, start, held=True)
    whole.take(draws, STEPS)
    np.testing.assert_allclose(whole.vertices.alpha, alpha, rtol=0, atol=1e-13 * corrective)
    np.testing.assert_array_equal(whole.counts, single.counts)
    assert whole.counts[:DROPS].sum() == STEPS
    for targets in ((1e9, 0.0, 0.0), (0.0, 1e9, 0.0), (0.0, 0.0, 1e9)):
        whole.counts[:] = 0
        passed, gap, rho = whole.take(draws, STEPS, targets)
        assert passed  # without a step, in the second draw
        assert whole.counts[:DROPS].sum() == 0
        assert whole.counts[DRAWS] == (1 if drawn else 0)
        assert drawn or gap == 1 - whole.vertices.grad.min() / rho
