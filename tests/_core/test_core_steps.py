"""Compiled work on the active set against a few lines of dense numpy each."""

import copy
import functools

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ooc_fw._core import steps as core
from ooc_fw._core.pairwise import optimise_pairwise
from ooc_fw.kernels.functions import make_kernel
from tests.support.reference import kernel_values, make_problem, minimise
from tests.support.strategies import SEEDS


@functools.cache
def problem_and_values(m, seed, C):
    """A problem and its kernel values, which many examples share."""
    problem = make_problem(make_kernel("rbf", gamma=1.0), n_rows=m, seed=seed, C=C)
    values = kernel_values(problem.kernel, problem.X, problem.X).astype(np.float64)
    values.flags.writeable = False
    return problem, values


class Plain:
    """An active set as plain arrays, and its matrix Q in float64.

    The kernel block is larger than the active set and its rows are in no order, as in the program;
    off the diagonal its stored values are the truth.
    """

    def __init__(self, m, seed, C=1.0, quantised=False):
        rng = np.random.default_rng(seed)
        problem, values = problem_and_values(m, seed, C)
        self.unit = np.float32(1 / 65535 if quantised else 1)
        self.slots = rng.permutation(m + 3)[:m]
        self.used = np.full(m + 3, -1)
        stored = np.rint(values * 65535).astype(np.uint16) if quantised else values.astype("f4")
        self.K = np.full((m + 3, m + 3), 12345, dtype=stored.dtype)
        self.K[self.slots, :m] = stored
        values = stored.astype(np.float64) * np.float64(self.unit)
        self.y = problem.y.astype(np.float64)
        self.diag = np.full(m, 2 + 1 / C)
        self.Q = np.multiply.outer(self.y, self.y) * (values + 1)
        self.Q[np.diag_indices(m)] = self.diag
        self.alpha = rng.random(m) * (rng.random(m) < 0.7)
        self.alpha[rng.integers(m)] += 0.1
        self.alpha /= self.alpha.sum()
        self.grad = self.Q @ self.alpha

    @property
    def block(self):
        return core.KernelBlock(self.K, np.array([self.unit]), self.slots, self.used)

    def vertices(self, grad=None):
        return core.Vertices(self.alpha, self.grad if grad is None else grad, self.diag, self.y)

    def optimise(self, tol, max_steps, grad=None, clock=0):
        """Steps, drops and gap of `optimise_pairwise`, which lacks no row."""
        vertices = self.vertices(grad)
        steps, drops, rho, missing = optimise_pairwise(vertices, self.block, clock, tol, max_steps)
        assert missing == -1
        return steps, drops, 1 - (self.grad if grad is None else grad).min() / rho

    def assert_consistent(self, drift=1e-12):
        assert (self.alpha >= 0).all()
        assert self.alpha.sum() == pytest.approx(1, abs=drift)
        np.testing.assert_allclose(self.grad, self.Q @ self.alpha, rtol=1e-11, atol=10 * drift)

    def objective(self):
        return self.alpha @ self.Q @ self.alpha / 2


@st.composite
def actives(draw, sizes=(1, 2, 3, 20, 130, 300)):
    m = draw(st.sampled_from(sizes))
    seed = draw(st.integers(0, 20 if m < 500 else 1))
    return Plain(m, seed, quantised=draw(st.booleans()))


@given(actives(sizes=(1, 2, 3, 20, 70)), st.sampled_from([1e-2, 1e-6, 1e-10]))
def test_optimise_pairwise_reaches_its_tolerance(plain, tol):
    before, alpha = plain.objective(), plain.alpha.copy()
    steps, drops, gap = plain.optimise(0.0, 0)  # only tells the gap
    assert (steps, drops) == (0, 0)
    assert gap == pytest.approx(1 - plain.grad.min() / (2 * before))
    np.testing.assert_array_equal(plain.alpha, alpha)
    steps, drops, gap = plain.optimise(tol, 100_000)
    plain.assert_consistent()
    after = plain.objective()
    least = minimise(plain.Q).objective
    assert gap <= tol
    assert gap == pytest.approx(1 - plain.grad.min() / (2 * after), abs=1e-9)
    assert least - 1e-13 <= after <= before + 1e-13
    assert after - least <= max(tol, 0) * 2 * after + 1e-13
    assert 0 <= drops <= steps


@given(actives(sizes=(20, 70, 130)), st.integers(0, 30))
def test_optimise_pairwise_counts_its_steps_and_drops(plain, max_steps):
    """One step at a time gives the same course as many at once."""
    other = copy.deepcopy(plain)
    steps, drops, _ = plain.optimise(1e-9, max_steps)
    singles = np.zeros(2, dtype=int)
    for _ in range(max_steps):
        support, objective = np.count_nonzero(other.alpha), other.objective()
        step, drop, _ = other.optimise(1e-9, 1)
        assert other.objective() <= objective + 1e-15
        assert np.count_nonzero(other.alpha) - support in ((-1, 0) if drop else (0, 1))
        singles += step, drop
    assert steps <= max_steps
    assert (steps, drops) == pytest.approx(tuple(singles), abs=1)
    np.testing.assert_allclose(plain.alpha, other.alpha, atol=1e-9)


@given(actives(sizes=(1, 20, 70, 600)), st.sampled_from([1e-1, 1e-3, 1e-4]))
def test_optimise_pairwise_on_a_float32_gradient(plain, tol):
    """The weights are as good as promised, and the gradient is theirs, but for its rounding."""
    grad = plain.grad.astype(np.float32)
    rounding = 3e-6 * np.abs(grad).max()
    before = plain.objective()
    plain.optimise(tol, 100_000, grad)
    plain.grad = plain.Q @ plain.alpha
    plain.assert_consistent()
    rho = 2 * plain.objective()
    np.testing.assert_allclose(grad, plain.grad, rtol=0, atol=rounding)
    assert 1 - plain.grad.min() / rho <= tol + 2 * rounding / rho
    assert plain.objective() <= before


@given(st.integers(1, 30), SEEDS)
def test_keep_vertices(m, seed):
    rng = np.random.default_rng(seed)
    K = rng.normal(size=(30, m)).astype(np.float32)
    sources, keep = (np.flatnonzero(rng.random(size) < 0.6) for size in K.shape)
    expected = K[np.ix_(sources, keep)]
    core.keep_vertices(sources, keep, K)
    np.testing.assert_array_equal(K[: len(sources), : len(keep)], expected)


@given(st.integers(1, 150), st.integers(1, 150), SEEDS)
def test_mirror_rows(n_old, n_new, seed):
    """Rows of new vertices become columns of the old ones that are held, part by part."""
    rng = np.random.default_rng(seed)
    m = n_old + n_new
    K = rng.normal(size=(m, m)).astype(np.float32)
    order = rng.permutation(m)
    slots, new_slots = order[:n_old].copy(), order[n_old:]
    slots[rng.random(n_old) < 0.3] = -1
    held = slots[slots >= 0]
    expected = K.copy()
    expected[held, n_old:] = K[np.ix_(new_slots, np.flatnonzero(slots >= 0))].T
    middle = int(rng.integers(0, n_old + 1))
    for start, stop in ((0, middle), (middle, n_old)):
        core.mirror_rows(K, slots, n_old, new_slots, start, stop)
    np.testing.assert_array_equal(K, expected)


@given(actives(), st.booleans())
def test_steps_that_are_handed_the_rows_they_lack_reach_the_tolerance_too(plain, forgetful):
    slots = plain.slots
    plain.slots = np.full(len(slots), -1)
    before, missing = plain.objective(), 0
    while missing >= 0:
        *_, rho, missing = optimise_pairwise(plain.vertices(), plain.block, 0, 1e-4, 100_000)
        assert plain.slots[missing] == -1 or missing == -1
        if forgetful and np.count_nonzero(plain.slots >= 0) > 2:
            plain.slots[np.argmax(plain.grad)] = -1
        plain.slots[missing] = slots[missing]
    plain.assert_consistent()
    assert 1 - plain.grad.min() / rho <= 1e-4
    assert plain.objective() <= before + 1e-13


@given(actives(sizes=(2, 3, 20, 70)), SEEDS, st.floats(0, 3))
def test_extrapolate_is_the_best_point_on_the_ray(plain, seed, stretch):
    rng = np.random.default_rng(seed)
    optimum = minimise(plain.Q).alpha
    # Often the ray leads towards the optimum, and sometimes to the border of the simplex.
    before = plain.alpha + 0.2 * stretch * (plain.alpha - optimum)
    before = np.abs(before) + 0.01 * rng.random(len(before)) * rng.integers(0, 2)
    before /= before.sum()
    alpha, d = plain.alpha.copy(), plain.alpha - before
    assume(np.abs(d).sum() > 1e-6)
    start = plain.objective()
    size, drops = core.extrapolate(plain.alpha, plain.grad, before, plain.Q @ before)
    plain.assert_consistent(drift=1e-15 * (1 + size) * len(alpha))
    np.testing.assert_allclose(plain.alpha, alpha + size * d, atol=1e-10)
    assert plain.objective() <= start + 1e-15
    down = d < 0  # and no point of the ray inside the simplex is better
    points = alpha + np.linspace(0, (alpha[down] / -d[down]).min(), 1001)[:, None] * d
    best = np.einsum("ki,ki->k", points @ plain.Q, points).min() / 2
    assert plain.objective() <= best + 1e-10
    assert drops == np.count_nonzero(alpha) - np.count_nonzero(plain.alpha)


@pytest.mark.parametrize("forward", [0.0, 1e-16, -1.0])
def test_extrapolate_stays_where_the_ray_leads_nowhere(forward):
    """No difference between the iterates, one of rounding only, or one that leads uphill."""
    plain = Plain(20, 1)
    optimum = minimise(plain.Q).alpha
    before = plain.alpha + forward * 0.1 * (plain.alpha - optimum)
    before[:3] += np.array([2, -1, -1]) * (forward > 0) * 1e-17
    kept = plain.alpha.copy()
    assert core.extrapolate(plain.alpha, plain.grad, before, plain.Q @ before) == (0.0, 0)
    np.testing.assert_array_equal(plain.alpha, kept)
