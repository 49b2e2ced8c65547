"""Kernels: parameters, diagonals, bounds on rounding, gradients, and the meaning of "auto"."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.svm import SVC

from ooc_fw.data.sources import ArraySource
from ooc_fw.data.statistics import variance
from ooc_fw.kernels.engine import Engine
from ooc_fw.kernels.functions import KERNELS, make_kernel, resolve_gamma
from ooc_fw.kernels.gradients import Gradients
from ooc_fw.system.errors import InputError
from tests.support.reference import Extended, kernel_values, to_csr
from tests.support.strategies import SEEDS, kernels, tables


@given(st.data())
def test_norms_and_diagonal_are_those_of_the_definition(data):
    X = data.draw(tables(max_rows=20))
    kernel = data.draw(kernels(X))
    exact, norms = X.astype(np.float64), kernel.norms(X)
    expected = np.abs(exact).sum(axis=1) if kernel.uses_distance else (exact**2).sum(axis=1)
    np.testing.assert_allclose(norms, expected, rtol=1e-13)
    np.testing.assert_allclose(kernel.norms(to_csr(X)), expected, rtol=1e-13)

    values = kernel_values(kernel, X, X).astype(float)
    diagonal = kernel.diagonal(norms)
    np.testing.assert_allclose(diagonal, np.diag(values), rtol=1e-12)
    assert not kernel.constant_diagonal or np.ptp(diagonal) == 0
    eigenvalues = np.linalg.eigvalsh(values)  # the matrix is positive semidefinite
    assert eigenvalues.min() >= -1e-10 * max(1.0, eigenvalues.max())


def assert_within_bound(kernel, rows, X, exact=False):
    """Kernel values between all rows err by no more than their bound."""
    with Engine(kernel) as engine:
        x = engine.prepare(rows, exact)
        values = np.empty((len(X), len(X)), dtype=np.float64 if exact else np.float32)
        engine.block(x, x, values)
        bound = engine.error_bound(x, x) if exact else engine.value_bound(x, x)
        assert (np.abs(values - kernel_values(kernel, X, X)) <= bound[:, None]).all()


@pytest.mark.parametrize("size", [1e-23, 1e-19])
@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        *(("linear", {}), ("rbf", {"gamma": 1e37}), ("laplacian", {"gamma": 1e22})),
        *(("poly", {"gamma": 1.0, "degree": d, "coef0": c}) for d in (1, 2, 3) for c in (0, 1e-44)),
        ("poly", {"gamma": 1e20}),
    ],
)
def test_bound_on_rounding_holds_if_products_underflow(name, parameters, size):
    X = (size * np.random.default_rng(0).normal(size=(40, 7))).astype(np.float32)
    assert_within_bound(make_kernel(name, **parameters), X, X)


@pytest.mark.parametrize("name", ["rbf", "tanimoto"])
def test_bound_on_rounding_holds_for_a_short_row_beside_a_long_one(name):
    X = np.full((2, 100_000), 2.0**-27, dtype=np.float32)
    X[:, 0] = 1  # a plain sum would lose the square of each other value beside it
    X[0, 1:] = 0
    assert_within_bound(make_kernel(name, gamma=1.0), to_csr(X), X, exact=True)


def test_bound_on_rounding_holds_for_a_gamma_too_small_for_float32():
    X = (4e18 * np.random.default_rng(0).uniform(-1, 1, (40, 1))).astype(np.float32)
    assert_within_bound(make_kernel("poly", gamma=1e-42), X, X)


def never():
    raise AssertionError("sigma^2 may cost a pass over the file and is not needed here")


@pytest.mark.parametrize(
    ("name", "given", "sigma2", "expected"),
    [
        ("rbf", "auto", lambda: 4.0, 0.125),
        ("poly", "auto", lambda: 4.0, 0.25),
        ("laplacian", "auto", never, 0.1),
        ("linear", "auto", never, 1.0),
        ("unknown", "auto", never, 1.0),  # `make_kernel` refuses it
        ("rbf", "0.5", never, 0.5),
        ("linear", "scale", never, 1.0),
    ],
)
def test_gamma_rests_on_no_more_statistics_than_it_needs(name, given, sigma2, expected):
    assert resolve_gamma(name, given, sigma2, 10, never) == expected


def test_gamma_scale_is_that_of_scikit_learn():
    X = np.random.default_rng(0).normal(3, 2, (50, 4)).astype(np.float32)
    found = resolve_gamma("rbf", "scale", never, 4, partial(variance, ArraySource(X)))
    assert found == pytest.approx(SVC().fit(X.astype(float), np.arange(50) % 2)._gamma, rel=1e-6)


def poly(**parameters):
    return lambda: make_kernel(**{"name": "poly", "gamma": 1.0} | parameters)


def prepare(name, value, form=np.asarray, **parameters):
    def refused():
        with Engine(make_kernel(name, **parameters)) as engine:
            engine.prepare(form(np.full((2, 3), value, dtype=np.float32)))

    return refused


@pytest.mark.parametrize(
    ("refused", "words"),
    [
        (poly(gamma=0.0), "gamma must be .*a positive number, not 0.0"),
        (poly(gamma=float("inf")), "gamma must be .*a positive number, at most 1e.100, not inf"),
        (poly(gamma=None), "the poly kernel needs gamma, a positive number"),
        (poly(gamma="wide"), "gamma must be .* a positive number, not 'wide'"),
        (poly(degree=2.5), r"degree must be a whole number .*, not 2\.5"),
        (poly(coef0=-1), "coef0 must be a number of at least 0, not -1"),
        (poly(name="rfb"), f"one of {', '.join(KERNELS)}, not 'rfb'"),
        (lambda: resolve_gamma("rbf", "wide", never, 10), "or a positive number, not 'wide'"),
        (lambda: variance(ArraySource(np.full((5, 2), 3.0))), "all values of array are equal"),
        # Values that float32 cannot hold
        (prepare("rbf", 1e19, to_csr, gamma=1.0), "the rbf kernel .* scale"),
        (prepare("linear", 1e19), "the linear kernel .* scale"),
        (prepare("poly", 100, gamma=1.0, degree=20), "the poly kernel .* scale"),
        (prepare("laplacian", 1e38, gamma=1.0), "the laplacian kernel .* scale"),
        (prepare("laplacian", 1e-37, gamma=1e73), r"gamma 1e\+73 is too large for the lapl"),
    ],
)
def test_refusals(refused, words):
    with pytest.raises(InputError, match=words):
        refused()


def differences(kernel, X, Z, weights, steps):
    """Central differences, shape (n_functions, n, n_features)."""
    out = np.empty((len(weights), *X.shape))
    for k, step in enumerate(steps):
        moved = np.zeros(X.shape[1], Extended)
        moved[k] = step = Extended(step or 1e-6)
        ends = [kernel_values(kernel, X + sign * moved, Z) @ weights.T for sign in (1, -1)]
        out[:, :, k] = ((ends[0] - ends[1]) / (2 * step)).T
    return out


@pytest.mark.parametrize("name", KERNELS)
@given(
    shape=st.tuples(*(st.integers(1, most) for most in (40, 30, 8, 3))),
    density=st.sampled_from([0.3, 1.0]),
    offset=st.sampled_from([0, 50]),
    degree=st.integers(1, 3),
    seed=SEEDS,
)
def test_gradients_are_those_of_the_definition(name, shape, density, offset, degree, seed):
    rng = np.random.default_rng(seed)
    n, m, d, n_functions = shape
    rows = rng.normal(offset, 1, (n + m, d)) * (rng.random((n + m, d)) < density)
    X, Z = np.split(np.round(rows, 2).astype(np.float32), [n])
    X[np.abs(X).sum(axis=1) == 0, 0] = 1  # if x is 0, some kernels have no gradient
    gamma = 0.3 / d if offset == 0 else 1e-3
    kernel = make_kernel(name, gamma=gamma, degree=degree, coef0=1.0)
    weights, steps = rng.normal(size=(n_functions, m)), np.zeros(d)
    if name == "laplacian":
        steps = np.minimum(Z.std(axis=0, dtype=np.float64) / 2, 1 / gamma)
        steps[steps < 1e-3] = 0  # no deviation but rounding
    expected = differences(kernel, X, Z, weights, steps)
    size = 1e-7 * max(1e-3, np.abs(expected).max())
    for rows, vertices in ((X, Z), (to_csr(X), to_csr(Z)), (to_csr(X), Z), (X, to_csr(Z))):
        found = np.concatenate(list(Gradients(kernel, vertices, weights)(rows)), axis=1)
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=size)
