"""No violator is ever screened out: the inequality, and the whole way through `certify`."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw.certificate.screening import Bounds, Screen
from ooc_fw.certificate.sweep import Search, Since, SupportWeights, certify
from ooc_fw.data.rows import take_rows
from ooc_fw.kernels.engine import Engine
from ooc_fw.problem import BinaryProblem
from tests.support.low_rank import few_vertices
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


@given(moves(), st.booleans(), st.none() | st.integers(1, 8))
def test_a_pass_over_unscreened_rows_certifies_what_one_over_all_rows_does(case, sparse, step):
    """By few vertices or all, and also if what has changed since rules out more rows."""
    problem, before, now = case
    source, rows, one_norm = (
        problem.source(sparse),
        problem.rows(sparse),
        problem.kernel.constant_diagonal,
    )

    def sweep(alpha, **screening):
        ids = np.flatnonzero(alpha)
        weights = SupportWeights(take_rows(rows, ids), ids, alpha[ids], problem.C)
        binary = BinaryProblem(source, problem.y, problem.kernel)
        with Engine(problem.kernel) as engine, few_vertices(step):
            return certify(binary, engine, weights, Search(1e-2, **screening))

    snapshot, plain_before, _ = parts(problem, before)
    screen = Screen.empty(len(problem.y), one_norm=one_norm, **snapshot)
    first = sweep(before, screen=screen)
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
    unscreened = screen.unscreened(floor, problem.y, move, plain[ids], rounding)
    full = sweep(now)
    slack = 2 * full.rounding + 1e-12
    changed = np.flatnonzero(now != before)
    change = ((now - before) * problem.y)[changed]
    rounding = abs(math.fsum(before) - 1) + abs(math.fsum(now) - 1)
    since = Since(screen.lower[unscreened], take_rows(rows, changed), change, rounding)
    for known in (None, since):
        found = sweep(now, unscreened=unscreened, since=known)
        assert found.certified_gap >= problem.truth(np.arange(len(now)), now).gap
        if np.isfinite(full.certified_gap):
            near = slack + 2 * found.rounding
            assert found.certified_gap == pytest.approx(full.certified_gap, abs=near)


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
