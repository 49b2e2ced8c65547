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
        expected, scale = twice / 2, norms[:cut, None] + norms[cut:]
    else:
        scratch = np.empty(23, dtype), np.empty(23, z[0].dtype)
        products.dot_tile(x, *z, scratch, out)
        expected, scale = wide[:cut] @ wide[cut:].T, np.abs(wide[:cut]) @ np.abs(wide[cut:]).T
    assert (np.abs(out - expected) <= rtol * scale).all()


def padded(X, dtype):
    """Dense rows with columns of zeros up to a multiple of four."""
    return np.pad(X, [(0, 0), (0, -X.shape[1] % 4)]).astype(dtype)


@pytest.mark.parametrize("kind", ["squares", "differences", "minima"])
@pytest.mark.parametrize(("dtype", "unit"), [(np.float32, 2**-24), (np.float64, 2**-53)])
@given(X=tables(max_rows=70, max_features=20), spare=st.integers(0, 3), cut=st.integers(1, 69))
def test_tiles_of_dense_rows_err_in_proportion_to_their_terms(dtype, unit, kind, X, spare, cut):
    """Odd numbers of rows, few vertices and many."""
    cut = min(cut, len(X) - 1)
    x, z = padded(X[:cut], dtype), padded(X[cut:], dtype)
    columns = np.ascontiguousarray(np.pad(z.T, [(0, 0), (0, spare)]))
    out = np.full((len(x), len(z)), np.nan, dtype=dtype)
    if kind == "minima":
        products.minimum_tile(x, columns, dtype(1), out)
        terms = np.minimum(x[:, None], z).astype(np.longdouble)
    else:
        products.difference_tile(x, columns, kind == "squares", out)
        terms = np.abs(x[:, None].astype(np.longdouble) - z) ** (2 if kind == "squares" else 1)
    error = np.abs(out - terms.sum(axis=2))
    assert (error <= (X.shape[1] + 3) * unit * np.abs(terms).sum(axis=2) + 1e-40).all()


@given(tables(max_rows=20))
def test_norms(X):
    data, _, indptr = arrays(X)
    for squared, power in ((True, 2), (False, 1)):
        out = np.empty(len(X))
        products.row_norms(data, indptr, squared, out)
        expected = (np.abs(X.astype(np.float64)) ** power).sum(axis=1)
        np.testing.assert_allclose(out, expected, rtol=1e-13)
