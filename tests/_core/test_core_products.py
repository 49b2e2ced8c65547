"""Compiled products of rows, and norms, against numpy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw._core import products
from ooc_fw._core.columns import add_column_products, add_rows, column_sums
from tests.support.reference import to_csr
from tests.support.strategies import SEEDS, tables

PRECISIONS = pytest.mark.parametrize("dtype", [np.float32, np.float64])
SPARE = st.integers(0, 3)  # columns of a scratch beyond those needed


def parts(X):
    x = to_csr(X)
    return x.data, x.indices, x.indptr


def scattered(Z, dtype, spare):
    """Places of features, and a scratch that holds the vertices as columns."""
    places = np.zeros(Z.shape[1], dtype=np.int32)
    columns = np.zeros((1 + np.any(Z != 0, axis=0).sum(), len(Z) + spare), dtype=dtype)
    products.scatter_columns(*parts(Z), places, columns)
    return places, columns


@given(tables(max_rows=20), SPARE)
def test_scattered_vertices_are_columns_until_they_are_cleared(Z, spare):
    places, columns = scattered(Z, np.float32, spare)
    np.testing.assert_array_equal(columns[places, : len(Z)], Z.T)
    assert not columns[:, len(Z) :].any()
    products.clear_columns(*parts(Z)[1:], places, columns)
    assert not columns.any()
    assert not places.any()


def dot_tile(X, Z, dtype, spare, out):
    places, columns = scattered(Z, dtype, spare)
    scratch = np.empty(X.shape[1] + 3, dtype), np.empty(X.shape[1] + 3, places.dtype)
    products.dot_tile(parts(X), places, columns, scratch, out)


def overlap_tile(X, Z, dtype, spare, out):
    products.overlap_tile(parts(X), *scattered(Z, dtype, spare), out)


def padded(X, Z, dtype, spare):
    """Dense rows, and vertices as columns, with zeros up to a multiple of four features."""
    x, z = (np.pad(rows, [(0, 0), (0, -X.shape[1] % 4)]).astype(dtype) for rows in (X, Z))
    return x, np.ascontiguousarray(np.pad(z.T, [(0, 0), (0, spare)]))


def square_tile(X, Z, dtype, spare, out):
    products.difference_tile(*padded(X, Z, dtype, spare), True, out)


def difference_tile(X, Z, dtype, spare, out):
    products.difference_tile(*padded(X, Z, dtype, spare), False, out)


def minimum_tile(X, Z, dtype, spare, out):
    products.minimum_tile(*padded(X, Z, dtype, spare), dtype(1), out)


def overlap(x, z):
    """The smaller absolute value, and 0 for different signs."""
    return np.where(x * z > 0, np.minimum(np.abs(x), np.abs(z)), 0)


TILES = {  # how a tile is computed, and what each feature adds to a value
    dot_tile: np.multiply,
    overlap_tile: overlap,
    square_tile: lambda x, z: (x - z) ** 2,
    difference_tile: lambda x, z: np.abs(x - z),
    minimum_tile: np.minimum,
}


@PRECISIONS
@pytest.mark.parametrize("compiled", TILES)
@given(X=tables(max_rows=70, max_features=20), spare=SPARE, cut=st.integers(1, 69))
def test_tiles_err_in_proportion_to_their_terms(compiled, dtype, X, spare, cut):
    cut = min(cut, len(X) - 1)
    out = np.full((cut, len(X) - cut), np.nan, dtype=dtype)
    compiled(X[:cut], X[cut:], dtype, spare, out)
    wide = X.astype(np.longdouble)
    terms = TILES[compiled](wide[:cut, None], wide[cut:])
    unit = np.finfo(dtype).eps / 2
    error = np.abs(out - terms.sum(axis=2))
    assert (error <= (X.shape[1] + 3) * unit * np.abs(terms).sum(axis=2) + 1e-40).all()


@pytest.mark.parametrize("squared", [False, True])
@given(X=tables(max_rows=20))
def test_norms(squared, X):
    X = np.tile(X, 9)
    data, _, indptr = parts(X)
    out = np.empty(len(X))
    products.row_norms(data, indptr, squared, out)
    expected = (np.abs(X.astype(np.longdouble)) ** (2 if squared else 1)).sum(axis=1)
    assert (np.abs(out - expected) <= products.NORM_UNITS * 2.0**-53 * expected).all()
    data[:1] = np.inf
    products.row_norms(data, indptr, squared, out)
    assert np.inf in out or data.size == 0


@given(st.integers(0, 9), st.integers(1, 12), st.integers(1, 20), SEEDS)
def test_products_with_weights_of_columns(n, width, k, seed):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, width)) * (rng.random((n, width)) < 0.6)
    X = X.astype(np.float32)
    features = np.hstack([X, np.ones((n, 1))], dtype=np.float64)
    rows = parts(X)
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
