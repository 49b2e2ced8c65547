"""Gradients of kernel sums against central differences of the kernels by definition."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw.kernels.functions import KERNELS, make_kernel
from ooc_fw.kernels.gradients import Gradients
from tests.support.reference import Extended, kernel_values, to_csr

STEP = 1e-6


def differences(kernel, X, Z, weights, steps):
    """Central differences, shape (n_functions, n, n_features)."""
    out = np.empty((len(weights), *X.shape))
    for k in range(X.shape[1]):
        moved = np.zeros(X.shape[1], Extended)
        moved[k] = step = Extended(steps[k] or STEP)
        ends = [kernel_values(kernel, X + sign * moved, Z) @ weights.T for sign in (1, -1)]
        out[:, :, k] = ((ends[0] - ends[1]) / (2 * step)).T
    return out


@pytest.mark.parametrize("name", KERNELS)
@given(st.data())
def test_gradients_are_those_of_the_definition(name, data):
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    n, m, d = (data.draw(st.integers(1, most)) for most in (40, 30, 8))
    density, offset = data.draw(st.sampled_from([0.3, 1.0])), data.draw(st.sampled_from([0, 50]))
    X, Z = (
        np.round(rng.normal(offset, 1, (rows, d)) * (rng.random((rows, d)) < density), 2)
        for rows in (n, m)
    )
    X, Z = X.astype(np.float32), Z.astype(np.float32)
    X[np.abs(X).sum(axis=1) == 0, 0] = 1  # where x is 0, some kernels have no gradient
    gamma = 0.3 / d if offset == 0 else 1e-3
    kernel = make_kernel(name, gamma=gamma, degree=data.draw(st.integers(1, 3)), coef0=1.0)
    weights = rng.normal(size=(data.draw(st.integers(1, 3)), m))
    steps = np.zeros(d)
    if name == "laplacian":
        steps = np.minimum(Z.std(axis=0, dtype=np.float64) / 2, 1 / gamma)
        steps[steps < 1e-3] = 0  # no deviation but rounding
    expected = differences(kernel, X, Z, weights, steps)
    size = 1e-7 * max(1e-3, np.abs(expected).max())
    for rows, vertices in ((X, Z), (to_csr(X), to_csr(Z)), (to_csr(X), Z), (X, to_csr(Z))):
        found = np.concatenate(list(Gradients(kernel, vertices, weights)(rows)), axis=1)
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=size)


def test_blocks_are_small_whatever_the_width(monkeypatch):
    """Sparse rows of many columns are made dense a few at a time."""
    monkeypatch.setattr("ooc_fw.kernels.gradients._BLOCK_BYTES", 1 << 16)
    X = np.random.default_rng(0).random((50, 4000)).astype(np.float32)
    gradients = Gradients(make_kernel("laplacian", gamma=1e-3), to_csr(X[:3]), np.ones((1, 3)))
    parts = list(gradients(to_csr(X)))
    assert {part.shape[1] for part in parts} == {2}
    assert sum(part.shape[1] for part in parts) == 50
