"""Compiled products of sparse rows, and norms, against dense numpy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw._core import products
from tests.support.reference import to_csr
from tests.support.strategies import tables

PRECISIONS = pytest.mark.parametrize(("dtype", "rtol"), [(np.float32, 1e-5), (np.float64, 1e-13)])


def scattered(Z, dtype, spare):
    """Vertices in a scratch with `spare` columns more than needed, and the places of features."""
    z = to_csr(Z)
    places = np.zeros(Z.shape[1], dtype=np.int32)
    columns = np.zeros((1 + np.any(Z != 0, axis=0).sum(), len(Z) + spare), dtype=dtype)
    products.scatter_columns(z.data, z.indices, z.indptr, places, columns)
    return places, columns


def arrays(X):
    x = to_csr(X)
    return x.data, x.indices, x.indptr


@given(tables(max_rows=20), st.integers(0, 3))
def test_scatter_writes_columns_and_clear_undoes_it(Z, spare):
    places, columns = scattered(Z, np.float32, spare)
    np.testing.assert_array_equal(columns[places, : len(Z)], Z.T)
    assert not columns[:, len(Z) :].any()
    products.clear_columns(*arrays(Z)[1:], places, columns)
    assert not columns.any()
    assert not places.any()


@PRECISIONS
@pytest.mark.parametrize("overlap", [False, True])
@given(X=tables(max_rows=30, max_features=20), spare=st.integers(0, 3))
def test_dot_and_overlap_tiles(overlap, dtype, rtol, X, spare):
    cut = len(X) // 2
    wide = X.astype(np.float64)
    x, z = arrays(X[:cut]), scattered(X[cut:], dtype, spare)
    out = np.full((cut, len(X) - cut), np.nan, dtype=dtype)
    if overlap:
        products.overlap_tile(x, *z, out)
        norms = np.abs(wide).sum(axis=1)
        twice = norms[:cut, None] + norms[cut:] - np.abs(wide[:cut, None] - wide[cut:]).sum(axis=2)
        turned = np.full(out.T.shape, np.nan, dtype=dtype)
        products.overlap_tile(arrays(X[cut:]), *scattered(X[:cut], dtype, spare), turned)
        np.testing.assert_array_equal(turned, out.T)
        expected, scale = twice / 2, norms[:cut, None] + norms[cut:]
    else:
        scratch = np.empty(20, dtype), np.empty(20, z[0].dtype)
        products.dot_tile(x, *z, scratch, out)
        expected, scale = wide[:cut] @ wide[cut:].T, np.abs(wide[:cut]) @ np.abs(wide[cut:]).T
    assert (np.abs(out - expected) <= rtol * scale).all()


def naive_distances(X, Z, squared):
    differences = np.abs(X.astype(np.longdouble)[:, None] - Z.astype(np.longdouble))
    return (differences**2 if squared else differences).sum(axis=2)


def padded(X, dtype):
    """Dense rows with columns of zeros up to a multiple of four."""
    return np.pad(X, [(0, 0), (0, -X.shape[1] % 4)]).astype(dtype)


@pytest.mark.parametrize(("dtype", "unit"), [(np.float32, 2**-24), (np.float64, 2**-53)])
@given(X=tables(max_rows=60, max_features=20), squared=st.booleans(), spare=st.integers(0, 3))
def test_difference_tile_errs_in_proportion_to_the_distance(dtype, unit, X, squared, spare):
    cut = len(X) // 2
    x, z = padded(X[:cut], dtype), padded(X[cut:], dtype)
    columns = np.ascontiguousarray(np.pad(z.T, [(0, 0), (0, spare)]))
    out = np.full((len(x), len(z)), np.nan, dtype=dtype)
    products.difference_tile(x, columns, squared, out)
    expected = naive_distances(X[:cut], X[cut:], squared)
    assert (np.abs(out - expected) <= (X.shape[1] + 3) * unit * expected + 1e-40).all()
    for j in range(len(z)):  # alone, by the loop for few vertices
        alone = np.empty((len(x), 1), dtype=dtype)
        products.difference_tile(x, columns[:, j : j + 1].copy(), squared, alone)
        np.testing.assert_array_equal(alone, out[:, j : j + 1])


@pytest.mark.parametrize(("dtype", "unit"), [(np.float32, 2**-24), (np.float64, 2**-53)])
@given(X=tables(max_rows=70, max_features=20), spare=st.integers(0, 3), cut=st.integers(1, 69))
def test_minimum_tile_is_the_sum_of_minima_whatever_computes_it(dtype, unit, X, spare, cut):
    """Odd numbers of rows, few vertices and many; x and z exchanged; pairs alone."""
    cut = min(cut, len(X) - 1)
    x, z = padded(X[:cut], dtype), padded(X[cut:], dtype)

    def minima(x, z):
        columns = np.ascontiguousarray(np.pad(z.T, [(0, 0), (0, spare)]))
        out = np.full((len(x), len(z)), np.nan, dtype=dtype)
        products.minimum_tile(x, columns, dtype(1), out)
        return out

    out = minima(x, z)
    terms = np.minimum(x[:, None], z).astype(np.longdouble)
    error = np.abs(out - terms.sum(axis=2))
    assert (error <= X.shape[1] * unit * np.abs(terms).sum(axis=2)).all()
    np.testing.assert_array_equal(minima(z, x).T, out)
    for j in range(len(z)):
        np.testing.assert_array_equal(minima(x, z[j : j + 1])[:, 0], out[:, j])


@given(tables(max_rows=20))
def test_norms(X):
    data, _, indptr = arrays(X)
    for squared, power in ((True, 2), (False, 1)):
        out = np.empty(len(X))
        products.row_norms(data, indptr, squared, out)
        expected = (np.abs(X.astype(np.float64)) ** power).sum(axis=1)
        np.testing.assert_allclose(out, expected, rtol=1e-13)
