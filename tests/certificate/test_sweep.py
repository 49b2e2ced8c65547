"""The certificate against brute force in extended precision; it must never promise too much."""

import dataclasses
import math
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw.certificate.screening import Screen
from ooc_fw.certificate.sweep import (
    Search,
    Since,
    SupportWeights,
    _Block,
    _sweep_block,
    _Target,
    certify,
)
from ooc_fw.data.rows import take_rows
from ooc_fw.data.sources import ArraySource
from ooc_fw.kernels.arithmetic import Arithmetic
from ooc_fw.kernels.decisions import Approximation, DecisionFunctions
from ooc_fw.kernels.engine import Engine
from ooc_fw.kernels.functions import FLOAT32_PRODUCTS, KERNELS, Sizes, make_kernel
from ooc_fw.problem import BinaryProblem
from ooc_fw.system.errors import InputError
from tests.support.low_rank import few_vertices
from tests.support.reference import Extended, SmallProblem, kernel_values, make_problem
from tests.support.strategies import SEEDS, models, powers_of_ten, problems


class ReadInStrips(ArraySource):
    """Rows that claim to be so large that a sweep takes `rows_at_once` of them at a time."""

    def __init__(self, problem, rows_at_once):
        super().__init__(problem.X, problem.y)
        self.decoded_bytes = self.n_rows * (4 << 20) // rows_at_once


def certificate_of(
    problem,
    model,
    *,
    tol=1e-3,
    n_worst=5,
    source=None,
    sparse=False,
    on_block=None,
    screen=None,
    unscreened=None,
    since=None,
    one_class=False,
    **options,
):
    row_ids, alpha = model
    source = problem.source(sparse) if source is None else source
    weights = SupportWeights(take_rows(problem.rows(sparse), row_ids), row_ids, alpha, problem.C)
    with Engine(problem.kernel, **options) as engine:
        binary = BinaryProblem(source, problem.y, problem.kernel, one_class=one_class)
        search = Search(tol, n_worst, screen, unscreened, since)
        return certify(binary, engine, weights, search, on_block)


def two_points(X, y, C=1.0):
    """Linear problem, and the model with equal weights on its first two rows."""
    problem = SmallProblem(
        make_kernel("linear"), np.array(X, dtype=np.float32), np.array(y, dtype=np.int8), C
    )
    return problem, (np.array([0, 1]), np.array([0.5, 0.5]))


@st.composite
def cases(draw):
    """A problem, any model of it, and one of the ways to compute, in blocks of any size."""
    problem = draw(problems())
    center = problem.X.mean(axis=0) if draw(st.booleans()) else None
    options = {"arithmetic": Arithmetic(center), "threads": draw(st.sampled_from([1, 2]))}
    rows_at_once = draw(st.sampled_from([None, 1, 3, 9]))
    if rows_at_once is None:
        options["sparse"] = draw(st.booleans())
    else:
        options["source"] = ReadInStrips(problem, rows_at_once)
    return problem, draw(models(len(problem.y))), options


@given(cases())
def test_is_an_upper_bound_and_a_tight_one(case):
    """And its objective and pair gap are those of the model."""
    problem, model, options = case
    seen = []
    certificate = certificate_of(problem, model, on_block=seen.append, **options)
    truth = problem.truth(*model)
    rho, pair_gap = float(truth.rho), float(truth.pair_gap)
    # Where float64 itself has no more to say: kernel values far above rho.
    least = 1e-13 * (1 + np.abs(problem.dual_matrix).max())
    slack = 1e-6 + least / rho * (1 + truth.gap)
    assert truth.gap <= certificate.certified_gap
    assert certificate.certified_gap <= truth.gap * (1 + 1e-6) + slack
    assert 0 <= certificate.rounding <= 1e-6 * truth.gap + slack

    stated = certificate.rounding * rho  # where float64 products lose digits
    assert certificate.rho == pytest.approx(rho, rel=1e-9, abs=max(stated, least))
    assert certificate.objective == certificate.rho / 2
    slack = 1e-6 + least / rho * (1 + pair_gap)
    assert certificate.pair_gap == pytest.approx(pair_gap, rel=1e-6, abs=slack)
    assert certificate.pair_gap >= certificate.certified_gap - certificate.rounding - 1e-12
    assert seen == sorted(set(seen))
    assert seen[-1] == len(problem.y)


@pytest.mark.parametrize("one_class", [False, True])
@pytest.mark.parametrize("total", [1 - 9e-10, 1 + 9e-10])
@pytest.mark.parametrize("kernel", sorted(KERNELS))
def test_weights_whose_sum_is_not_quite_1(kernel, total, one_class):
    """The gap is that of the weights divided by their sum; without the bias, rho may be tiny."""
    problem = make_problem(make_kernel(kernel, gamma=1.0), n_rows=60, C=100.0)
    if one_class:
        problem = dataclasses.replace(problem, y=np.ones(60, dtype=np.int8))
    optimum = problem.optimum.alpha
    row_ids = np.flatnonzero(optimum > 0)
    alpha = total * optimum[row_ids]
    certificate = certificate_of(problem, (row_ids, alpha), one_class=one_class)
    if one_class:
        certificate = certificate.without_bias()
    weights = np.zeros(60, dtype=Extended)
    weights[row_ids] = alpha
    weights /= weights.sum()
    values = kernel_values(problem.kernel, problem.X, problem.X) + (not one_class)
    gradient = problem.y * (values @ (weights * problem.y)) + weights / problem.C
    rho = weights @ gradient
    gap = (rho - gradient.min()) / rho
    assert gap <= certificate.certified_gap <= gap + 1e-8
    assert certificate.rho == pytest.approx(float(rho), rel=1e-9)


class Erring:
    """Decision values of rows that hold their own, which float32 misses by all that it may."""

    n_vertices = 1

    def __init__(self, errors, bounds):
        self.errors, self.bounds = errors, bounds

    def approximate(self, rows, with_nearest=False, is_open=None):
        return Approximation(rows[:, 0] + self.errors, self.bounds, rows, None, len(rows))

    def exact(self, rows):
        return rows[:, 0].astype(np.float64), np.zeros(len(rows))


@given(SEEDS, st.sampled_from([0.1, 1.0]))
def test_the_least_gradient_is_known_however_float32_errs(seed, least_of_support):
    n_rows, rng = 20, np.random.default_rng(seed)
    values = rng.permutation(n_rows).astype(np.float32) / n_rows
    bounds = rng.uniform(0, 1, n_rows)
    errors = bounds * rng.choice([-1, -0.99, 0.99, 1], n_rows)
    none, labels = np.empty(0, dtype=np.int64), np.ones(n_rows, dtype=np.int8)
    found = _sweep_block(
        ArraySource(values[:, None], labels),
        _Block(0, n_rows, None, none, labels),
        Erring(errors, bounds),
        _Target(make_kernel("linear"), -np.inf, least_of_support, 0, with_bounds=False),
    )
    assert found.least == 0.0


@given(cases(), powers_of_ten(-4, 0), st.integers(0, 20))
def test_violators_are_all_found_and_the_worst_are_the_worst(case, tol, n_worst):
    problem, model, options = case
    certificate = certificate_of(problem, model, tol=tol, n_worst=n_worst, **options)
    truth = problem.truth(*model)
    rounding = certificate.rounding * float(truth.rho)
    row_ids, _ = model
    center = options["arithmetic"].center
    x = problem.kernel.norms(problem.X if center is None else problem.X - center)
    by = Sizes(FLOAT32_PRODUCTS, x, x[row_ids].max(), problem.X.shape[1])
    float32_error = 2 * problem.kernel.error_bound(by)
    # Rows that float32 cannot tell from the threshold may count either way.
    slack = 2 * certificate.rounding + float32_error.max() / float(truth.rho) + 1e-12
    assert len(truth.violators(tol + slack)) <= certificate.n_violators
    assert certificate.n_violators <= len(truth.violators(tol - slack))

    outside = np.setdiff1d(truth.violators(tol + slack), row_ids)
    worst = certificate.worst
    assert min(n_worst, len(outside)) <= len(worst) <= n_worst
    assert (np.diff(worst) > 0).all()
    assert not np.isin(worst, row_ids).any()
    left_out = np.setdiff1d(outside, worst)
    if len(worst) and len(left_out):
        best_kept = truth.gradient[worst].max() - rounding
        error = 2 * float32_error[left_out].max() + 1e-12
        assert (best_kept <= truth.gradient[left_out] + error).all()


@given(cases(), st.integers(1, 8), SEEDS, powers_of_ten(-9, 0))
def test_few_vertices_promise_no_smaller_gap_and_the_screen_no_less(case, step, seed, move):
    problem, (row_ids, alpha), options = case
    truth = problem.truth(row_ids, alpha)
    ordinary = truth.gradient - truth.alpha / problem._penalties
    plain = ordinary[row_ids].astype(np.float64)
    size = len(problem.y) * (1 + float(np.abs(truth.gradient).max()))
    snapshot = {"row_ids": row_ids, "alpha": alpha, "plain": plain, "norm2": float(alpha @ plain)}
    screen = Screen.empty(len(problem.y), **snapshot, rounding=1e-15 * size)
    with few_vertices(step):
        certificate = certificate_of(problem, (row_ids, alpha), screen=screen, **options)
    with few_vertices(None):
        by_all = certificate_of(problem, (row_ids, alpha), **options)
    assert truth.gap <= certificate.certified_gap
    rounding = 2 * max(certificate.rounding, by_all.rounding) + 1e-12
    assert certificate.certified_gap == pytest.approx(by_all.certified_gap, abs=rounding)

    K = kernel_values(problem.kernel, problem.X, problem.X)
    diagonal, near = np.diagonal(K), row_ids[screen.vertex]
    assert (screen.lower <= ordinary + 1e-15 * size).all()
    assert (screen.norm >= np.sqrt(diagonal + 1)).all()
    square = diagonal + diagonal[near] - 2 * K[np.arange(len(K)), near]
    assert (screen.distance >= (1 - 1e-12) * np.sqrt(np.maximum(square, 0))).all()

    ids = np.union1d(row_ids, certificate.worst)
    weights = move * np.random.default_rng(seed).dirichlet(np.ones(len(ids)))
    weights[np.searchsorted(ids, row_ids)] += (1 - move) * alpha
    weights /= math.fsum(weights)
    later = problem.truth(ids, weights)
    ordinary = later.gradient - later.alpha / problem._penalties
    size = len(problem.y) * (1 + float(np.abs(later.gradient).max()))
    plain, rounding = ordinary[row_ids].astype(np.float64), 1e-15 * size
    distance = screen.distance_to(float(later.alpha @ ordinary), plain, rounding)
    floor = float(later.gradient[ids].min())
    unscreened = screen.unscreened(floor, problem.y, distance, plain, rounding)
    unscreened = np.setdiff1d(unscreened, ids)
    others = np.setdiff1d(np.arange(len(problem.y)), np.union1d(ids, unscreened))
    assert (later.gradient[others] >= floor - 1e-15 * size).all()
    if len(unscreened) > 0:
        kept = weights > 0
        change = weights.copy()
        change[np.searchsorted(ids, row_ids)] -= alpha
        changed = np.flatnonzero(change)
        beta = (change * problem.y[ids])[changed]
        rows = take_rows(problem.rows(options.get("sparse", False)), ids[changed])
        since = Since(screen.lower[unscreened], rows, beta, abs(math.fsum(alpha) - 1))
        now = ids[kept], weights[kept]
        for known in (None, since):  # what has changed rules out rows, or does not
            with few_vertices(step):
                found = certificate_of(problem, now, unscreened=unscreened, since=known, **options)
            assert later.gap <= found.certified_gap


@pytest.mark.parametrize("C", [1.0, 1e-6, 1e-12])
def test_values_at_vertices_err_by_what_the_slack_takes_off(C):
    """Few vertices rest on these values, which are the gradient less a slack that may be huge."""
    problem = make_problem(make_kernel("rbf", gamma=0.5), n_rows=40, C=C)
    alpha = np.random.default_rng(0).dirichlet(np.ones(8))
    with patch.object(DecisionFunctions, "compress") as compress:
        certificate_of(problem, (np.arange(8), alpha))
    at_vertices = compress.call_args.args[2]
    X, beta = problem.X[:8], (alpha * problem.y[:8]).astype(np.longdouble)
    expected = (kernel_values(problem.kernel, X, X) + 1) @ beta
    assert (np.abs(at_vertices.values[0] - expected) <= at_vertices.rounding).all()
    assert abs(at_vertices.squared_norms[0] - beta @ expected) <= at_vertices.rounding


def test_a_pass_whose_sample_holds_vertices_alone():
    problem, model = two_points([[1], [-2]], [1, -1])
    with few_vertices(1):
        assert certificate_of(problem, model).certified_gap >= problem.truth(*model).gap


def test_a_row_without_values_may_be_the_worst():
    """Its kernel values are exact zeros: no rounding, and so no bound on rounding to go by."""
    problem, model = two_points([[1], [2], [0]], [1, 1, -1])
    certificate = certificate_of(problem, model)
    truth = problem.truth(*model)
    assert np.argmin(truth.gradient) == 2
    assert certificate.certified_gap >= truth.gap
    assert certificate.worst.tolist() == [2]


@given(SEEDS, powers_of_ten(-10, 2), powers_of_ten(6, 16))
def test_tiny_rho_below_the_rounding_of_the_bias(seed, scale, C):
    """Equal weights of both classes cancel the bias, and huge C leaves nothing else."""
    rng = np.random.default_rng(seed)
    y = np.where(np.arange(60) % 2, 1, -1).astype(np.int8)
    alpha = rng.random(60)
    for sign in (1, -1):
        alpha[y == sign] /= 2 * alpha[y == sign].sum()
    X = (rng.normal(size=(60, 3)) * scale).astype(np.float32)
    problem = SmallProblem(make_kernel("linear"), X, y, C)
    model = np.arange(60), alpha
    certificate = certificate_of(problem, model, source=ReadInStrips(problem, 25))
    truth = problem.truth(*model)
    assert certificate.certified_gap >= truth.gap
    assert certificate.certified_gap <= truth.gap * (1 + 1e-6) + 1e-6 + 2 * certificate.rounding


def test_rho_that_is_all_rounding_certifies_next_to_nothing():
    """rho is about 1/(2 C) = 5e-31 while the terms of the gradients are of order 1."""
    problem, model = two_points([[1.1, 2.3], [1.1, 2.3]], [1, -1], C=1e30)
    certificate = certificate_of(problem, model)
    assert 1e12 < certificate.certified_gap < np.inf
    assert certificate.rho == pytest.approx(5e-31)


@given(SEEDS, st.integers(1, 40))
def test_one_violator_among_many_rows_within_float32_rounding_of_it(seed, place):
    """Rows so close that float32 cannot tell them apart; only float64 finds the worst."""
    rng = np.random.default_rng(seed)
    center = rng.normal(size=4)
    X = np.tile(center, (50, 1)) * (1 + 2e-7 * rng.normal(size=(50, 4)))
    X[0] = -center
    y = np.where(np.arange(50) == 0, -1, 1)
    y[place + 5] = -1
    kernel = make_kernel("rbf", gamma=0.1)
    problem = SmallProblem(kernel, X.astype(np.float32), y.astype(np.int8), 100.0)
    model = np.array([0, 1, 2]), np.array([0.5, 0.25, 0.25])
    certificate = certificate_of(problem, model)
    assert problem.truth(*model).gap <= certificate.certified_gap
    assert certificate.certified_gap <= problem.truth(*model).gap * (1 + 1e-9)


def test_threshold_in_the_midst_of_equal_rows():
    """A violator's repeats all violate, whichever block or tile they stand in."""
    problem, model = two_points([[2], [-2]] + [[0.25]] * 40, [1, -1] + [1] * 40)
    truth = problem.truth(*model)
    tol = float(1 - truth.gradient[5] / truth.rho)
    for shift, expected in ((-1e-9, 40), (1e-9, 0)):
        certificate = certificate_of(
            problem, model, tol=tol + shift, source=ReadInStrips(problem, 3)
        )
        assert certificate.n_violators == expected


def test_rows_far_from_the_origin():
    """Large column means cost float32 all its digits, not the certificate."""
    problem = make_problem(make_kernel("rbf", gamma=1.0), n_rows=60, seed=4)
    far = SmallProblem(problem.kernel, problem.X + np.float32(5000), problem.y, 10.0)
    rng = np.random.default_rng(0)
    model = rng.permutation(60)[:20], rng.dirichlet(np.ones(20))
    truth = far.truth(*model)
    for center in (None, far.X.mean(axis=0)):
        gap = certificate_of(far, model, arithmetic=Arithmetic(center)).certified_gap
        assert truth.gap <= gap <= truth.gap * (1 + 1e-6)


@pytest.mark.parametrize(
    ("row_ids", "alpha", "message"),
    [
        ([0, 1], [0.5, 0.5], "was changed"),
        ([0, 0], [0.5, 0.5], "different rows"),
        ([0, 30], [0.5, 0.5], "from 0 to 29"),
        ([0, 1], [0.5, 0.4], "sum to 1"),
        ([0, 1], [1.5, -0.5], "must not be negative"),
        ([0, 1, 2], [0.5, 0.5], "one for each"),
    ],
)
def test_weights_off_the_simplex_and_changed_files_have_no_certificate(row_ids, alpha, message):
    class Changed(ArraySource):
        def check_unchanged(self):
            raise InputError("data.h5 was changed")

    problem = make_problem(make_kernel("rbf", gamma=1.0), n_rows=30)
    weights = SupportWeights(problem.X[: len(row_ids)], np.array(row_ids), np.array(alpha), 1.0)
    binary = BinaryProblem(Changed(problem.X, problem.y), problem.y, problem.kernel)
    with pytest.raises(InputError, match=message), Engine(problem.kernel) as engine:
        certify(binary, engine, weights, Search(1e-3))
