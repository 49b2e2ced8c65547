"""The certificate against brute force in extended precision; it must never promise too much."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw.certificate import sweep
from ooc_fw.certificate.sweep import Search, SupportWeights, certify
from ooc_fw.data.rows import take_rows
from ooc_fw.data.sources import ArraySource
from ooc_fw.kernels.arithmetic import Arithmetic
from ooc_fw.kernels.decisions import DecisionFunctions
from ooc_fw.kernels.engine import Engine
from ooc_fw.kernels.functions import FLOAT32_PRODUCTS, KERNELS, Sizes, make_kernel
from ooc_fw.options import LEAST
from ooc_fw.problem import BinaryProblem
from ooc_fw.system.errors import InputError
from tests.support.reference import Extended, SmallProblem, kernel_values, make_problem
from tests.support.solving import few_vertices
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
    one_class=False,
    step=None,
    **options,
):
    """The certificate of a model, (row numbers, weights), by few vertices if `step` is given."""
    row_ids, alpha = model
    source = problem.source(sparse) if source is None else source
    weights = SupportWeights(take_rows(problem.rows(sparse), row_ids), row_ids, alpha, problem.C)
    binary = BinaryProblem(source, problem.y, problem.kernel, one_class=one_class)
    with Engine(problem.kernel, **options) as engine, few_vertices(step):
        return certify(binary, engine, weights, Search(tol, n_worst), on_block)


@st.composite
def cases(draw):
    """A problem, any model of it, and one of the ways to compute, in blocks of any size."""
    problem = draw(problems())
    center = problem.X.mean(axis=0) if draw(st.booleans()) else None
    options = {"arithmetic": Arithmetic(center), "threads": draw(st.sampled_from([1, 2]))}
    options["step"] = draw(st.none() | st.integers(1, 8))
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


def primal_objectives(problem, truth, rho, bias_share=0.0):
    """Primal objective in extended precision, at multiples of w / rho."""
    penalties = np.broadcast_to(problem.C, len(problem.y)).astype(Extended)
    values = truth.gradient - truth.alpha / penalties - Extended(bias_share)
    scales = sweep._MULTIPLES / max(LEAST, rho - bias_share)
    slack = np.maximum(0, 1 - np.multiply.outer(scales.astype(Extended), values))
    return (scales**2 * (truth.alpha @ values) + slack**2 @ penalties) / 2


@given(cases())
def test_the_best_objective_is_between_dual_and_primal(case):
    """The distance is a bound on what is left to gain."""
    problem, model, options = case
    certificate = certificate_of(problem, model, **options)
    truth = problem.truth(*model)
    primal = float(primal_objectives(problem, truth, certificate.rho).min())
    assert certificate.dual <= 0.5 / truth.rho
    assert primal <= certificate.primal
    best = problem.optimum.objective
    assert 2 * best >= certificate.rho * (1 - certificate.objective_gap) * (1 - 1e-7)


def test_the_objective_bound_holds_for_any_values_within_their_errors(monkeypatch):
    """Float32 values may all be on the side that makes losses smaller."""
    problem = make_problem(make_kernel("rbf", gamma=0.5), n_rows=90, C=10.0)
    labels = {row.tobytes(): label for row, label in zip(problem.X, problem.y, strict=True)}

    def adverse(own, rows, is_open=None):
        signs = np.array([labels[row.tobytes()] for row in rows])
        return own.exact(rows)[0] + 0.99e-5 * signs, np.full(len(rows), 1e-5)

    monkeypatch.setattr(DecisionFunctions, "approximate", adverse)
    model = np.arange(20), np.full(20, 1 / 20)
    certificate = certificate_of(problem, model, tol=1.0)
    primal = primal_objectives(problem, problem.truth(*model), certificate.rho).min()
    assert primal <= certificate.primal <= primal * (1 + 1e-3)


@pytest.mark.parametrize("kernel", ["rbf", "poly"])
def test_the_objective_at_the_optimum_is_known_to_many_digits(kernel):
    problem = make_problem(make_kernel(kernel, gamma=0.5), n_rows=90, C=10.0)
    alpha = problem.optimum.alpha
    row_ids = np.flatnonzero(alpha > 0)
    certificate = certificate_of(problem, (row_ids, alpha[row_ids]), tol=-0.1)
    assert certificate.objective_gap <= 1e-6
    assert certificate.primal == pytest.approx(0.25 / problem.optimum.objective, rel=1e-6)


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
@pytest.mark.parametrize("share", [0.0, 1.0])
def test_numbers_that_overflow_leave_the_objective_unknown(wrong, share):
    """Comparisons with NaN are false, and must not make a gap small."""
    alpha = np.array([0.5, 0.5])
    for grad, C in ((np.array([1.0, wrong]), 1.0), (np.ones(2), np.array([1.0, 0.0]))):
        with np.errstate(all="ignore"):
            found = sweep.certificate_of_all(alpha, C, grad, 0.0, share)
        assert found.objective_gap == 1


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
        certificate = certificate.without_bias(1.0)
    weights = np.zeros(60, dtype=Extended)
    weights[row_ids] = alpha
    weights /= weights.sum()
    values = kernel_values(problem.kernel, problem.X, problem.X) + (not one_class)
    gradient = problem.y * (values @ (weights * problem.y)) + weights / problem.C
    rho = weights @ gradient
    gap = (rho - gradient.min()) / rho
    assert gap <= certificate.certified_gap <= gap + 1e-8
    assert certificate.rho == pytest.approx(float(rho), rel=1e-9)


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
    outside = np.setdiff1d(truth.violators(tol + slack), row_ids)
    worst = certificate.worst
    assert np.isin(worst, truth.violators(tol - slack)).all()
    assert min(n_worst, len(outside)) <= len(worst) <= n_worst
    assert (np.diff(worst) > 0).all()
    assert not np.isin(worst, row_ids).any()
    left_out = np.setdiff1d(outside, worst)
    if len(worst) and len(left_out):
        best_kept = truth.gradient[worst].max() - rounding
        error = 2 * float32_error[left_out].max() + 1e-12
        assert (best_kept <= truth.gradient[left_out] + error).all()


def two_points(X, y, C=1.0):
    """Linear problem, and the model with equal weights on its first two rows."""
    X, y = np.array(X, dtype=np.float32), np.array(y, dtype=np.int8)
    return SmallProblem(make_kernel("linear"), X, y, C), (np.array([0, 1]), np.array([0.5, 0.5]))


def far_from_the_origin(_):
    """Large column means cost float32 all its digits."""
    problem = make_problem(make_kernel("rbf", gamma=1.0), n_rows=60, C=10.0)
    rng = np.random.default_rng(0)
    model = rng.permutation(60)[:20], rng.dirichlet(np.ones(20))
    return dataclasses.replace(problem, X=problem.X + np.float32(5000)), model


def within_rounding(rng):
    """One violator among rows that float32 cannot tell from it."""
    center = rng.normal(size=4)
    X = np.tile(center, (50, 1)) * (1 + 2e-7 * rng.normal(size=(50, 4)))
    X[0] = -center
    y = np.where(np.arange(50) == 0, -1, 1)
    y[rng.integers(6, 46)] = -1
    model = np.array([0, 1, 2]), np.array([0.5, 0.25, 0.25])
    kernel = make_kernel("rbf", gamma=0.1)
    return SmallProblem(kernel, X.astype(np.float32), y.astype(np.int8), 100.0), model


def tiny_rho(rng):
    """Equal weights of both classes cancel the bias, and huge C leaves nothing else."""
    y = np.where(np.arange(60) % 2, 1, -1).astype(np.int8)
    alpha = rng.random(60)
    for sign in (1, -1):
        alpha[y == sign] /= 2 * alpha[y == sign].sum()
    X = (rng.normal(size=(60, 3)) * 10 ** rng.uniform(-10, 2)).astype(np.float32)
    C = 10 ** rng.uniform(6, 16)
    return SmallProblem(make_kernel("linear"), X, y, C), (np.arange(60), alpha)


AWKWARD = {
    "the worst row is zero": lambda _: two_points([[1], [2], [0]], [1, 1, -1]),
    "all rows are vertices": lambda _: two_points([[1], [-2]], [1, -1]),
    "far from the origin": far_from_the_origin,
    "one violator within rounding": within_rounding,
    "tiny rho": tiny_rho,
}


@pytest.mark.parametrize("step", [None, 1])
@pytest.mark.parametrize("name", AWKWARD)
@given(SEEDS)
def test_awkward_problems_are_certified(name, step, seed):
    problem, model = AWKWARD[name](np.random.default_rng(seed))
    truth = problem.truth(*model)
    certificate = certificate_of(problem, model, step=step, source=ReadInStrips(problem, 25))
    most = truth.gap * (1 + 1e-6) + 1e-6 + 2 * certificate.rounding * (name == "tiny rho")
    assert truth.gap <= certificate.certified_gap <= most
    if truth.gradient.argmin() not in model[0]:
        assert truth.gradient.argmin() in certificate.worst


@pytest.mark.parametrize(
    ("row_ids", "alpha", "message"),
    [
        ([0, 0], [0.5, 0.5], "different rows"),
        ([0, 1], [0.5, 0.4], "sum to 1"),
        ([0, 1], [1.5, -0.5], "must not be negative"),
        ([0, 1, 2], [0.5, 0.5], "one for each"),
    ],
)
def test_weights_off_the_simplex_have_no_certificate(row_ids, alpha, message):
    problem = make_problem(make_kernel("rbf", gamma=1.0), n_rows=30)
    with pytest.raises(InputError, match=message):
        certificate_of(problem, (np.array(row_ids), np.array(alpha)))
