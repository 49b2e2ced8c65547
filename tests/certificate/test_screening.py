"""No violator is ever screened out: the inequality, and the whole way through `certify`."""

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw.certificate.screening import Bounds, Screen
from ooc_fw.certificate.sweep import Search, SupportWeights, certify
from ooc_fw.data.rows import take_rows
from ooc_fw.kernels.decisions import DecisionFunctions
from ooc_fw.kernels.engine import Engine
from ooc_fw.kernels.functions import make_kernel
from ooc_fw.problem import BinaryProblem
from tests.support.low_rank import few_vertices
from tests.support.reference import kernel_values, make_problem
from tests.support.strategies import models, problems


@st.composite
def moves(draw):
    """A problem, the weights of a snapshot and weights at some distance from them."""
    problem = draw(problems(max_rows=40))
    before, other = np.zeros((2, len(problem.y)))
    for weights in (before, other):
        ids, alpha = draw(models(len(weights)))
        weights[ids] = alpha
    share = draw(st.sampled_from([1.0, 0.3, 1e-2, 1e-4, 0.0]))
    return problem, before, (1 - share) * before + share * other


def parts(problem, alpha):
    """What a snapshot of weights holds, and exact gradients without and with a row's alpha / C."""
    ids = np.flatnonzero(alpha)
    grad = problem.truth(ids, alpha[ids]).gradient.astype(np.float64)
    plain = grad - alpha / problem.C
    rounding = 1e-12 * (1 + np.abs(grad).max())
    snapshot = dict(row_ids=ids, alpha=alpha[ids], plain=plain[ids], norm2=float(alpha @ plain))
    return snapshot | {"rounding": rounding}, plain, grad


def sweep(problem, alpha, sparse=False, step=None, **screening):
    """A pass by few vertices, if `step` is given, that fills a screen or obeys one."""
    ids = np.flatnonzero(alpha)
    rows = take_rows(problem.rows(sparse), ids)
    weights = SupportWeights(rows, ids, alpha[ids], problem.C)
    binary = BinaryProblem(problem.source(sparse), problem.y, problem.kernel)
    with Engine(problem.kernel) as engine, few_vertices(step):
        return certify(binary, engine, weights, Search(1e-2, **screening))


@given(moves(), st.booleans(), st.none() | st.integers(1, 8))
def test_a_pass_over_unscreened_rows_certifies_what_one_over_all_rows_does(case, sparse, step):
    """By few vertices or all."""
    problem, before, now = case
    snapshot, plain_before, _ = parts(problem, before)
    one_norm = problem.kernel.constant_diagonal
    screen = Screen.empty(len(problem.y), one_norm=one_norm, **snapshot)
    first = sweep(problem, before, sparse, step, screen=screen)
    # Bounds hold on every row, of vertices, too, once they have left.
    ids = snapshot["row_ids"]
    K = kernel_values(problem.kernel, problem.X, problem.X)
    diagonal, near = np.diagonal(K), ids[screen.vertex]
    square = diagonal + diagonal[near] - 2 * K[np.arange(len(K)), near]
    assert (screen.lower <= plain_before + snapshot["rounding"]).all()
    assert (screen.norm >= np.sqrt(diagonal + 1)).all()
    assert (screen.distance >= (1 - 1e-12) * np.sqrt(np.maximum(square, 0))).all()

    then, plain, grad = parts(problem, now)
    rounding = then["rounding"] + first.rounding * abs(first.rho)
    floor = float(grad[now > 0].min()) + rounding
    move = screen.distance_to(then["norm2"], plain[ids], rounding)
    for level in (*np.quantile(grad, [0.1, 0.5, 1.0]), floor):
        at = level, problem.y, move, plain[ids], rounding
        unscreened = screen.unscreened(*at)
        assert {*np.flatnonzero(grad < level - rounding)} <= {*unscreened, *then["row_ids"]}
    assert screen.unscreened(*at, most=len(unscreened) - 1) is None
    full = sweep(problem, now, sparse, step)
    slack = 2 * full.rounding + 1e-12
    found = sweep(problem, now, sparse, step, unscreened=unscreened)
    assert found.certified_gap >= problem.truth(np.arange(len(now)), now).gap
    if np.isfinite(full.certified_gap):
        near = slack + 2 * found.rounding
        assert found.certified_gap == pytest.approx(full.certified_gap, abs=near)


@pytest.mark.parametrize("seed", range(10))
def test_float32_may_err_by_all_that_it_says(seed):
    """The worst row is found among all that it may be, and no bound of a screen is too high."""

    def erring(functions, rows, with_nearest=False, is_open=None):
        found = approximate(functions, rows, with_nearest, is_open)
        rng = np.random.default_rng(seed)
        bound = rng.uniform(0, 0.5, len(rows))
        error = bound * rng.choice([-1, -0.99, 0.99, 1], len(rows))
        return found._replace(values=found.values + error, bound=found.bound + bound)

    approximate = DecisionFunctions.approximate
    problem = make_problem(make_kernel("rbf", gamma=1.0), n_rows=60, seed=seed)
    alpha = np.zeros(60)
    alpha[[3, 7, 50]] = 0.5, 0.25, 0.25
    snapshot, plain, _ = parts(problem, alpha)
    screen = Screen.empty(60, **snapshot)
    with patch.object(DecisionFunctions, "approximate", erring):
        found = sweep(problem, alpha, screen=screen)
    gap = problem.truth(np.arange(60), alpha).gap
    assert gap <= found.certified_gap <= gap + 1e-6
    assert (screen.lower <= plain + 1e-12).all()


@pytest.mark.parametrize("C", [1.0, 1e-6, 1e-12])
def test_bounds_hold_if_the_slack_dwarfs_all_kernel_values(C):
    """Few vertices rest on the gradient less its slack, and a screen on them."""
    problem = make_problem(make_kernel("rbf", gamma=0.5), n_rows=40, C=C)
    alpha = np.pad(np.random.default_rng(0).dirichlet(np.ones(30)), (0, 10))
    snapshot, plain, _ = parts(problem, alpha)
    screen = Screen.empty(40, **snapshot)
    found = sweep(problem, alpha, step=3, screen=screen)
    assert problem.truth(np.arange(40), alpha).gap <= found.certified_gap
    assert (screen.lower[30:] <= plain[30:] + 1e-14).all()


def test_rows_without_bounds_are_not_screened_out_and_a_near_vertex_is_a_bound():
    """A row beside a vertex of unchanged gradient is screened out, however far the weights went."""
    one, labels = np.ones(1), np.ones(3, dtype=np.int8)
    screen = Screen.empty(3, row_ids=np.array([0]), alpha=one, plain=one, norm2=1.0, rounding=0.0)
    assert screen.unscreened(-1e9, labels, 1.0, one, 0.0).tolist() == [0, 1, 2]
    distance = np.array([0.0, 0.0, 1.0])
    bounds = Bounds.outwards(np.ones(3), np.ones(3), np.zeros(3, dtype=np.int64), distance)
    assert (bounds.norm >= np.sqrt(2)).all()  # the bias is a part of |phi(x)|
    screen.store(slice(None), bounds)
    assert screen.unscreened(0.5, labels, 2.0, one, 0.0).tolist() == [2]
