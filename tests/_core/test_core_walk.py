"""Walks of many compiled steps against a few lines of dense numpy, step by step."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw._core.steps import KernelBlock
from ooc_fw._core.walk import (
    NO_TARGET,
    Active,
    Field,
    Looks,
    Outcome,
    Rule,
    Walk,
    given_columns,
    take_steps,
)
from ooc_fw.kernels.functions import make_kernel
from tests.support.reference import kernel_values, make_problem
from tests.support.strategies import SEEDS

N = 40


def line_search(Q, alpha, end):
    """The point of least objective between two, exactly."""
    d = end - alpha
    slope, curvature = -(Q @ alpha) @ d, d @ Q @ d
    size = 0.0 if slope <= 0 else 1.0
    if slope > 0 and curvature > slope:
        size = slope / curvature
    return alpha + size * d


def naive_step(rule, Q, alpha, g, order, i, before):
    """The next iterate as the papers define it; g is Q alpha.

    Its rounding, and the order in which vertices joined, decide ties.
    """
    n, support = len(alpha), [row for row in order if alpha[row] > 0]
    rho, e = alpha @ g, np.eye(n)
    away = max(support, key=lambda row: g[row])
    toward = line_search(Q, alpha, e[i])
    if rule is Rule.MFW and g[away] - rho > rho - g[i] and alpha[away] < 1:
        end = np.where(np.arange(n) == away, 0.0, alpha)
        return line_search(Q, alpha, end / end.sum())
    if rule is Rule.SWAP2:
        gains = (g - g[i]) ** 2 / (Q[i, i] + np.diag(Q) - 2 * Q[i] + 1e-300)
        gains[(alpha <= 0) | (g <= g[i])] = -1
        away = int(gains.argmax())
    if rule in (Rule.SWAP, Rule.SWAP2) and away != i and g[away] > g[i]:
        pair = line_search(Q, alpha, alpha + alpha[away] * (e[i] - e[away]))
        return pair if pair @ Q @ pair <= toward @ Q @ toward else toward
    if rule is Rule.PARTAN and before is not None:
        d = toward - before
        if (d < 0).any():
            return line_search(Q, toward, toward + (toward[d < 0] / -d[d < 0]).min() * d)
    return toward


@pytest.mark.parametrize("looks", [Looks.ALL, Looks.DRAWN_AND_ACTIVE, Looks.DRAWN])
@pytest.mark.parametrize("rule", Rule)
@given(seed=SEEDS, C=st.sampled_from([0.1, 1.0, 10.0]))
def test_a_walk_takes_the_steps_of_the_papers(rule, looks, seed, C):
    """The iterates of 25 steps; a walk of many is one of few after the other, to the last bit."""
    rng = np.random.default_rng(seed)
    problem = make_problem(make_kernel("rbf", gamma=1.0), n_rows=N, seed=seed % 20, C=C)
    values = kernel_values(problem.kernel, problem.X, problem.X).astype(np.float64)
    y = problem.y.astype(np.float64)
    diag, draws = np.full(1, values[0, 0] + 1 + 1 / C), rng.integers(0, N, (25, 7))
    Q = np.multiply.outer(y, y) * (values + 1)
    Q[np.diag_indices(N)] = diag[0]
    start = rng.permutation(N)[:5]
    alpha, before = np.zeros(N), None
    alpha[start] = rng.random(5) + 0.1
    alpha /= alpha.sum()

    def begin():
        members = np.full(N, -1)
        members[start] = np.arange(5)
        grad = Q @ alpha
        field = Field(grad, np.zeros(N), y, diag, np.full(1, 1 / C), members)
        active = Active(np.zeros(N, dtype=np.int64), np.zeros(N), np.zeros(N))
        active.rows[:5], active.alpha[:5] = start, alpha[start]
        return field, active, Walk.begin(5, float(alpha @ grad), NO_TARGET)

    block = KernelBlock(values, np.ones(1), np.arange(N), np.zeros(N, dtype=np.int64))
    (field, active, walk), whole = begin(), begin()
    columns, joined = given_columns(block), set(start.tolist())
    for step in range(25):
        g = field.grad.copy()
        seen = set(range(N)) if looks is Looks.ALL else set(draws[step].tolist())
        seen |= joined if looks is Looks.DRAWN_AND_ACTIVE else set()
        i = min(seen, key=lambda row: g[row])
        order = active.rows[: walk.n_active[0]].tolist()
        outcome = take_steps(int(rule), int(looks), field, active, columns, draws, walk, step + 1)
        assert (type(outcome), outcome) == (int, Outcome.STEPS)
        assert g[walk.toward[0]] == g[i]
        after = naive_step(rule, Q, alpha, g, order, int(walk.toward[0]), before)
        reached = np.zeros(N)
        reached[active.rows[: walk.n_active[0]]] = active.alpha[: walk.n_active[0]]
        joined |= set(active.rows[: walk.n_active[0]].tolist())
        assert reached @ Q @ reached == pytest.approx(after @ Q @ after, rel=1e-9)
        before, alpha = alpha, reached
        np.testing.assert_allclose(field.grad, Q @ alpha, atol=1e-10)
        assert walk.rho[0] == pytest.approx(alpha @ Q @ alpha, rel=1e-10)
    field, active, walk = whole
    take_steps(int(rule), int(looks), field, active, columns, draws, walk, 25)
    again = np.zeros(N)
    again[active.rows[: walk.n_active[0]]] = active.alpha[: walk.n_active[0]]
    np.testing.assert_array_equal(again, alpha)
    assert walk.kinds.sum() == walk.n_steps[0] == 25
