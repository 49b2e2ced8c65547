"""Compiled work on the active set against a few lines of numpy each."""

import functools

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ooc_fw._core import steps as core
from ooc_fw.kernels.functions import make_kernel
from tests.support.reference import kernel_values, make_problem, minimise
from tests.support.strategies import SEEDS


@functools.cache
def labels_and_values(m, seed, C):
    problem = make_problem(make_kernel("rbf", gamma=1.0), n_rows=m, seed=seed, C=C)
    values = kernel_values(problem.kernel, problem.X, problem.X).astype(np.float64)
    values.flags.writeable = False
    return problem.y.astype(np.float64), values


def test_an_extrapolation_ends_if_a_weight_becomes_zero():
    Q = np.array([[1.0, 2.0], [2.0, 5.0]])
    before = np.array([0.5, 0.5])
    alpha = np.array([0.9, 0.1])
    grad = Q @ alpha
    assert core.extrapolate(alpha, grad, before, Q @ before) == (pytest.approx(0.25), 1)
    np.testing.assert_allclose([alpha, grad], [[1, 0], [1, 2]])


class Plain:
    """Weights and their gradient as plain arrays, and the matrix Q, in float64."""

    def __init__(self, m, seed):
        rng = np.random.default_rng(seed)
        y, values = labels_and_values(m, seed, C=1.0)
        self.Q = np.multiply.outer(y, y) * (values + 1)
        self.Q[np.diag_indices(m)] = 3.0
        self.alpha = rng.random(m) * (rng.random(m) < 0.7)
        self.alpha[rng.integers(m)] += 0.1
        self.alpha /= self.alpha.sum()
        self.grad = self.Q @ self.alpha

    def objective(self):
        return self.alpha @ self.Q @ self.alpha / 2

    def assert_consistent(self, error):
        assert (self.alpha >= 0).all()
        assert self.alpha.sum() == pytest.approx(1, abs=min(error, 1e-9))
        np.testing.assert_allclose(self.grad, self.Q @ self.alpha, rtol=0, atol=error)


@given(st.integers(1, 30), SEEDS)
def test_kept_vertices_move_together(m, seed):
    rng = np.random.default_rng(seed)
    K = rng.normal(size=(30, m)).astype(np.float32)
    sources, keep = (np.flatnonzero(rng.random(size) < 0.6) for size in K.shape)
    expected = K[np.ix_(sources, keep)]
    core.keep_vertices(sources, keep, K)
    np.testing.assert_array_equal(K[: len(sources), : len(keep)], expected)


@given(st.integers(1, 150), st.integers(1, 150), SEEDS)
def test_rows_of_new_vertices_become_columns_of_the_old_ones_that_are_held(n_old, n_new, seed):
    rng = np.random.default_rng(seed)
    m = n_old + n_new
    K = rng.normal(size=(m, m)).astype(np.float32)
    order = rng.permutation(m)
    slots, new_slots = order[:n_old].copy(), order[n_old:]
    slots[rng.random(n_old) < 0.3] = -1
    expected = K.copy()
    expected[slots[slots >= 0], n_old:] = K[np.ix_(new_slots, np.flatnonzero(slots >= 0))].T
    middle = int(rng.integers(0, n_old + 1))
    for start, stop in ((0, middle), (middle, n_old)):
        core.mirror_rows(K, slots, n_old, new_slots, start, stop)
    np.testing.assert_array_equal(K, expected)


@given(st.integers(0, 40), st.integers(1, 3), SEEDS)
def test_slopes_of_slacks_are_those_of_their_sum(n, n_classes, seed):
    rng = np.random.default_rng(seed)
    signs = rng.choice(np.array([-1, 1], np.int8), (n, n_classes))
    before, after = rng.normal(size=(2, n, n_classes)).astype(np.float32)
    penalties, t, out = rng.random(n), rng.random(n_classes), np.ones(n_classes)
    change = after.astype(np.float64) - before
    slack = np.maximum(0, 1 - signs * (before + t * change))
    expected = 1 - (penalties[:, None] * slack * signs * change).sum(axis=0)
    core.slack_slopes(signs, before, after, penalties, t, out)
    np.testing.assert_allclose(out, expected, rtol=1e-12, atol=1e-12)


@given(st.sampled_from([2, 3, 20, 70]), SEEDS, st.floats(0, 3))
def test_extrapolation_ends_at_the_best_point_of_the_ray(m, seed, stretch):
    """The ray often leads towards the optimum, and sometimes to the border of the simplex."""
    plain, rng = Plain(m, seed % 20), np.random.default_rng(seed)
    before = plain.alpha + 0.2 * stretch * (plain.alpha - minimise(plain.Q).alpha)
    before = np.abs(before) + 0.01 * rng.random(len(before)) * rng.integers(0, 2)
    before /= before.sum()
    alpha, d = plain.alpha.copy(), plain.alpha - before
    assume(np.abs(d).sum() > 1e-6)
    size, drops = core.extrapolate(plain.alpha, plain.grad, before, plain.Q @ before)
    plain.assert_consistent(1e-14 * (1 + size) * len(alpha))
    np.testing.assert_allclose(plain.alpha, alpha + size * d, atol=1e-10)
    down = d < 0
    points = alpha + np.linspace(0, (alpha[down] / -d[down]).min(), 1001)[:, None] * d
    best = np.einsum("ki,ki->k", points @ plain.Q, points).min() / 2
    assert plain.objective() <= best + 1e-10
    assert drops == np.count_nonzero(alpha) - np.count_nonzero(plain.alpha)


@pytest.mark.parametrize("forward", [0.0, 1e-16, -1.0])
def test_extrapolation_stays_if_the_ray_leads_nowhere(forward):
    """The iterates are the same, or differ by rounding alone, or the ray leads uphill."""
    plain = Plain(20, 1)
    kept = plain.alpha.copy()
    before = kept + forward * 0.1 * (kept - minimise(plain.Q).alpha)
    before[:3] += np.array([2, -1, -1]) * (forward > 0) * 1e-17
    assert core.extrapolate(plain.alpha, plain.grad, before, plain.Q @ before) == (0.0, 0)
    np.testing.assert_array_equal(plain.alpha, kept)
