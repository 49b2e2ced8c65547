"""The span of landmarks: factors, passes over the rows, preconditioners, draws of landmarks."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw import make_kernel
from ooc_fw.data.sources import ArraySource
from ooc_fw.kernels.arithmetic import choose_arithmetic
from ooc_fw.kernels.engine import Engine
from ooc_fw.landmarks.certificate import certify_point
from ooc_fw.landmarks.newton import Newton, Preconditioner
from ooc_fw.landmarks.readings import KeptValues, Readings, SpanProblem
from ooc_fw.landmarks.span import Landmarks, Span, draw_random, factorise
from ooc_fw.system.threads import Threads
from tests.support.reference import kernel_values
from tests.support.strategies import SEEDS

RBF = make_kernel("rbf", gamma=0.3)


def span_problem(n, k, rng, n_features=3, penalties=(0.1, 10)):
    """Rows, random labels of k classifiers, and penalties."""
    X = rng.normal(size=(n, n_features)).astype(np.float32)
    signs = rng.choice(np.array([-1, 1], np.int8), (n, k))
    return X, SpanProblem(ArraySource(X), signs, rng.uniform(*penalties, n))


@given(n=st.integers(1, 200), m=st.integers(1, 40), k=st.sampled_from([1, 2, 3, 40]), seed=SEEDS)
def test_products_with_the_hessian_err_by_no_more_than_the_rounding_of_kernel_values(n, m, k, seed):
    """Against extended precision; values of float32, and those of 16 bits that are kept."""
    rng = np.random.default_rng(seed)
    bias = seed % 2
    X, problem = span_problem(n, k, rng)
    Z = rng.normal(size=(m, 3)).astype(np.float32)
    active, d = rng.random((n, k)) < 0.7, rng.normal(size=(k, m))
    K = kernel_values(RBF, X, Z) + bias
    with Engine(RBF, 2, choose_arithmetic(RBF, X)) as engine:
        landmarks = Landmarks(engine, Z, bias)
        passes = Readings(problem, landmarks, kept=KeptValues(2 * n * m))
        error = 0.5 / 65535 + float(engine.value_bound(engine.prepare(X), landmarks.fast).max())
        for kept in (False, True):
            before = engine.evaluations
            found = passes.hessian_product(active, d)
            assert not kept or engine.evaluations == before
            for c in range(k):
                h, weights = K @ d[c], problem.penalties * active[:, c]
                of_h = np.abs(d[c]).sum() * error
                bound = (weights * (np.abs(h) * error + of_h * (2 + error))).sum()
                assert np.abs(found[c] - K.T @ (weights * h)).max() <= bound * (1 + 1e-9)
            decisions = passes.gradient(d).decisions
            sums = np.abs(d).sum(axis=1) * error + 1e-6 * np.abs(K @ d.T)
            assert (np.abs(decisions - K @ d.T) <= sums).all()


@pytest.mark.parametrize("lower", [False, True])
@given(
    n=st.sampled_from([1, 20, 255, 513, 700]),
    n_columns=st.sampled_from([0.5, 1.0, 2.0]),
    seed=SEEDS,
)
def test_a_factor_is_that_of_one_triangle_for_any_number_of_threads(lower, n, n_columns, seed):
    """The other triangle stays. A matrix of too few columns is singular."""
    values = np.random.default_rng(seed).normal(size=(n, max(1, int(n * n_columns))))
    matrix = np.asfortranarray(values @ values.T)
    other = np.tri(n, k=-1, dtype=bool)
    other = other.T if lower else other
    factors = []
    for threads in (1, 3):
        pool = Threads(threads)
        found, shift = factorise(lambda: matrix.copy("F"), pool, lower=lower)
        pool.close()
        np.testing.assert_array_equal(found[other], matrix[other])
        factor = np.where(other, 0.0, found)
        product = factor @ factor.T if lower else factor.T @ factor
        error = np.abs(product - matrix - shift * np.eye(n)).max()
        assert error <= 4 * (n + 1) * 2.0**-53 * np.diag(product).max()
        assert shift < 1e-10 * np.diag(product).max()
        assert shift == 0 or n_columns <= 1
        factors.append(found)
    np.testing.assert_array_equal(*factors)


def test_a_preconditioner_solves_with_the_mean_matrix_of_all_classifiers():
    """Of more landmarks than are computed at once, and after the rows inside the margin change."""
    rng, n_landmarks = np.random.default_rng(3), 600
    X, problem = span_problem(700, 3, rng, 6, (1, 2))
    Z = X[:n_landmarks]
    K = kernel_values(RBF, X, Z).astype(np.float64) + 1
    penalties = problem.penalties * np.where(np.arange(700) < n_landmarks, 1.0, 5.0)
    with Engine(RBF, 2, choose_arithmetic(RBF, X)) as engine:
        span = Span(Landmarks(engine, Z))
        preconditioner = Preconditioner(span, problem, np.arange(n_landmarks), lambda: None)
        for k in (3, 2, 1):
            inside = rng.random((700, k)) < 0.7
            preconditioner.follow(inside, 5.0)
            assert preconditioner.exact == (k == 1)
            residual = rng.normal(size=(k, n_landmarks))
            found = preconditioner.solve(residual)
            weights = penalties * inside.mean(axis=1)
            back = found @ (span.matrix() + (K.T * weights) @ K)
            # H comes from float32 kernel values.
            error = np.linalg.norm(back - residual, axis=1)
            assert (error <= 0.03 * np.linalg.norm(residual, axis=1)).all()
        inside[:20] = ~inside[:20]  # few rows: another factor is not worth it
        preconditioner.follow(inside, 5.0, worth=0.0)
        assert not preconditioner.exact
        np.testing.assert_array_equal(preconditioner.solve(residual), found)


@given(n=st.integers(20, 200), m=st.integers(2, 20), k=st.integers(1, 5), seed=SEEDS)
def test_steps_solve_the_system_of_each_classifier_and_never_raise_its_objective(n, m, k, seed):
    """As far as they promise; the preconditioner is shared, and follows a sample."""
    rng = np.random.default_rng(seed)
    X, problem = span_problem(n, k, rng)
    ids = np.union1d(np.arange(m), rng.choice(n, n // 2, replace=False))
    K = kernel_values(RBF, X, X[:m]).astype(np.float64) + 1
    with Engine(RBF, 1, choose_arithmetic(RBF, X)) as engine:
        span = Span(Landmarks(engine, X[:m]))
        sample = problem.part(X[ids], ids)
        preconditioner = Preconditioner(span, sample, np.arange(m), lambda: None)
        newton = Newton(
            span,
            ids[:m],
            Readings(problem, span.landmarks),
            preconditioner,
            ids,
            exact_products=True,
        )
        point = newton.evaluate(np.zeros((k, m)), exact=True)
        for _ in range(3):
            wanted = point.gap > 1e-6
            if not wanted.any():
                break
            step, promised = newton._step(point, 1e-9, wanted)
            inside = problem.inside(point.gradient.decisions)
            assert not step[~wanted].any()
            for c in np.flatnonzero(wanted):
                system = span.matrix() + (K.T * (problem.penalties * inside[:, c])) @ K
                error = system @ step[c] - point.residual[c]
                left = 0.5 * error @ np.linalg.solve(span.matrix(), error)
                assert left <= 1.01 * promised[c] + 1e-7 * point.primal[c]
            there, _ = newton._best_step(point, 1e-9, wanted, True)
            assert (there.primal <= point.primal).all()
            point = there


@pytest.mark.parametrize("k", [1, 3])
def test_the_dual_holds_for_all_kernel_values_within_their_error(k):
    """A pass that errs by as much as it may finds a vector u that is too short."""
    rng, m, error = np.random.default_rng(0), 20, 1e-4
    X, problem = span_problem(300, k, rng)
    with Engine(RBF, 1, choose_arithmetic(RBF, X)) as engine:
        span = Span(Landmarks(engine, X[:m]))
        places = np.arange(m)
        preconditioner = Preconditioner(span, problem, places, lambda: None)
        passes = Readings(problem, span.landmarks)
        newton = Newton(span, places, passes, preconditioner, places, exact_products=True)
        point = newton.evaluate(0.1 * rng.normal(size=(k, m)), exact=True)
        total, square, beta_sum, _ = point.gradient.terms
        u = point.gradient.u
        short = u - error * beta_sum[:, None] * np.sign(span.solve(u))
        seen = point.gradient._replace(u=short, error=error)
        _, dual = certify_point(span, replace(point, gradient=seen), problem)
        truth = total**2 / (2 * (span.inverse_norm(u) + square))
        assert (dual <= truth).all()
        assert (total**2 / (2 * (span.inverse_norm(short) + square)) > truth).all()


@given(st.integers(2, 60), st.integers(2, 4), SEEDS)
def test_random_landmarks_share_the_classes(n, n_classes, seed):
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, n_classes, n)
    size = int(rng.integers(1, n + 1))
    places = draw_random(codes, size, rng)
    assert len(np.unique(places)) == size
    counts, most = (np.bincount(own, minlength=n_classes) for own in (codes[places], codes))
    short = counts < counts.max() - 1
    assert (counts[short] == most[short]).all()
