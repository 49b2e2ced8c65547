"""Compiled products of sparse rows with weights of columns, against dense products."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw._core.columns import add_column_products, add_rows, column_sums
from ooc_fw.data.rows import CSRRows, stored_arrays
from tests.support.strategies import SEEDS


@given(st.integers(0, 9), st.integers(1, 12), st.integers(1, 20), SEEDS)
def test_sums_are_those_of_dense_rows(n, width, k, seed):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, width)) * (rng.random((n, width)) < 0.6)
    X = X.astype(np.float32)
    features = np.hstack([X, np.ones((n, 1))], dtype=np.float64)
    rows = stored_arrays(CSRRows.from_dense(X))
    weights, factors = rng.normal(size=(width + 1, k)), rng.normal(size=(n, k))
    factors[rng.random(n) < 0.3] = 0
    before = rng.normal(size=weights.shape)

    sums = np.full((n, k), np.nan)
    column_sums(rows, weights, sums)
    np.testing.assert_allclose(sums, features @ weights, rtol=1e-12, atol=1e-13)

    added = before.copy()
    add_rows(rows, factors, added)
    np.testing.assert_allclose(added, before + features.T @ factors, rtol=1e-12, atol=1e-13)

    both = before.copy()
    add_column_products(rows, weights, factors, both)
    expected = before + features.T @ (factors * (features @ weights))
    np.testing.assert_allclose(both, expected, rtol=1e-12, atol=1e-12)
