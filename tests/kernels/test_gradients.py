"""Gradients of kernel sums against central differences of the kernels by definition."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw.kernels.functions import KERNELS, make_kernel
from ooc_fw.kernels.gradients import Gradients
from tests.support.reference import Extended, kernel_values, to_csr
from tests.support.strategies import SEEDS


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
