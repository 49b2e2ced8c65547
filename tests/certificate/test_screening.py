"""No violator is ever screened out: the inequality, and the whole way through `certify`."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw.certificate.screening import Bounds, Screen
from ooc_fw.certificate.sweep import Search, SupportWeights, certify
from ooc_fw.kernels.engine import Engine
from ooc_fw.problem import BinaryProblem
from tests.support.reference import kernel_values
from tests.support.strategies import models, problems


@st.composite
def moves(draw):
    """A problem, the weights of a snapshot and weights at some distance from them."""
    problem = draw(problems(max_rows=40))
    n = len(problem.y)
    weights = []
    for _ in range(2):
        ids, alpha = draw(models(n))
        dense = np.zeros(n)
        dense[ids] = alpha
        weights.append(dense)
    share = draw(st.sampled_from([1.0, 0.3, 1e-2, 1e-4, 0.0]))
    before = weights[0]
    return problem, before, (1 - share) * before + share * weights[1]


def parts(problem, alpha):
    """What a snapshot of weights holds, and exact gradients without and with a row's alpha / C."""
    ids = np.flatnonzero(alpha)
    grad = problem.truth(ids, alpha[ids]).gradient.astype(np.float64)
    plain = grad - alpha / problem.C
    rounding = 1e-12 * (1 + np.abs(grad).max())
    snapshot = dict(row_ids=ids, alpha=alpha[ids], plain=plain[ids], norm2=float(alpha @ plain))
    return snapshot | {"rounding": rounding}, plain, grad


@given(moves(), st.booleans(), st.booleans())
def test_rows_screened_out_are_above_the_floor(case, with_nearest, one_norm):
    problem, before, now = case
    snapshot, plain_before, _ = parts(problem, before)
    ids, rounding = snapshot["row_ids"], snapshot["rounding"]
    screen = Screen.empty(len(problem.y), one_norm=one_norm, **snapshot)
    K = kernel_values(problem.kernel, problem.X, problem.X).astype(np.float64)
    diagonal = np.diag(K) * (1 + 1e-12)
    vertex = distance = None
    if with_nearest:  # any vertex will do
        vertex = np.random.default_rng(0).integers(0, len(ids), len(K))
        square = diagonal + diagonal[ids[vertex]] - 2 * K[np.arange(len(K)), ids[vertex]]
        distance = np.sqrt(np.maximum(square, 0))
    lower = plain_before - rounding
    screen.store(slice(None), Bounds.outwards(lower, diagonal, vertex, distance))

    then, plain, grad = parts(problem, now)
    rounding = then["rounding"]
    move = screen.distance_to(then["norm2"], plain[ids], rounding)
    for floor in np.quantile(grad, [0.0, 0.1, 0.5, 1.0]):
        at = floor + rounding, problem.y, move, plain[ids], rounding
        below = np.flatnonzero(grad < floor)
        unscreened = screen.unscreened(*at)
        assert set(below) <= set(unscreened) | set(then["row_ids"])
        assert screen.unscreened(*at, most=len(unscreened) - 1) is None
        np.testing.assert_array_equal(screen.unscreened(*at, most=len(unscreened)), unscreened)


@given(moves(), st.booleans())
def test_a_screened_certificate_is_that_of_a_full_sweep(case, sparse):
    problem, before, now = case
    source, tol = problem.source(sparse), 1e-2
    with Engine(problem.kernel) as engine:

        def sweep(alpha, **screening):
            ids = np.flatnonzero(alpha)
            rows = problem.rows(sparse) if len(ids) == len(alpha) else source.take(ids)
            weights = SupportWeights(rows, ids, alpha[ids] / alpha[ids].sum(), problem.C)
            binary = BinaryProblem(source, problem.y, problem.kernel)
            return certify(binary, engine, weights, Search(tol, **screening))

        snapshot, plain, _ = parts(problem, before)
        one_norm = problem.kernel.constant_diagonal
        screen = Screen.empty(len(problem.y), one_norm=one_norm, **snapshot)
        first = sweep(before, screen=screen)
        # Of vertices, too, once they have left.
        assert (screen.lower <= plain + snapshot["rounding"]).all()
        then, plain, grad = parts(problem, now)
        rounding = then["rounding"] + first.rounding * abs(first.rho)
        floor, ids = float(grad[now > 0].min()) + rounding, snapshot["row_ids"]
        full = sweep(now)
        move = screen.distance_to(then["norm2"], plain[ids], rounding)
        unscreened = screen.unscreened(floor, problem.y, move, plain[ids], rounding)
        screened = sweep(now, unscreened=unscreened)
    if np.isfinite(full.certified_gap):
        slack = full.rounding + screened.rounding
        assert screened.certified_gap == pytest.approx(full.certified_gap, abs=2 * slack + 1e-12)


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
