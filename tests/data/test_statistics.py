"""Sigma^2 and scalings, from one pass over the data."""

import dask.array as da
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, StandardScaler

from ooc_fw.data.opening import open_dataset
from ooc_fw.data.rows import CSRRows
from ooc_fw.data.scaling import Scaling
from ooc_fw.data.statistics import ColumnRanges, sigma2
from ooc_fw.system.errors import InputError
from tests.support.contracts import small_table
from tests.support.files import write_dense


def naive_sigma2(X):
    """Mean squared distance over all ordered pairs of rows."""
    X = X.astype(np.float64)
    return np.mean([np.sum((a - b) ** 2) for a in X for b in X])


@given(seed=st.integers(0, 99), n_rows=st.integers(2, 40), n_features=st.integers(1, 6))
def test_sigma2_is_that_of_all_pairs(seed, n_rows, n_features):
    X = small_table(n_rows, n_features, seed)
    X[0] += 1
    for data in (X, scipy.sparse.csr_array(X)):
        assert sigma2(open_dataset(data)) == pytest.approx(naive_sigma2(X), rel=1e-10)


def test_spread_far_below_the_values():
    """A quarter of the rows is one step of float32 from the others, or none is."""
    X = np.full((1000, 2), 1.6e9, dtype=np.float32)
    with pytest.raises(InputError, match=r"all rows of array are equal.*give gamma as a number"):
        sigma2(open_dataset(X))
    X[::4, 0] += np.float32(1e4)
    step = float(X[0, 0]) - float(X[1, 0])
    assert sigma2(open_dataset(X)) == pytest.approx(2 * step**2 * 3 / 16, rel=1e-3)


def test_it_takes_one_pass_that_tells_its_progress():
    X = small_table(40_000, 7)  # three tasks
    expected = sigma2(open_dataset(X))
    for threads, data in (
        (1, scipy.sparse.csr_array(X)),
        (3, da.from_array(X, chunks=(3000, 3))),
    ):
        seen = []
        with open_dataset(data) as source:
            found = sigma2(source, threads, on_rows=seen.append)
            assert found == pytest.approx(expected, rel=1e-12)
            assert source.rows_read == len(X)
        assert seen == sorted(seen)
        assert len(set(seen)) > 2
        assert seen[-1] == len(X)


def test_stored_statistics_are_used(tmp_path):
    X = small_table()
    with open_dataset(write_dense(tmp_path / "data.h5", X, X[:, 0])) as source:
        assert sigma2(source) == pytest.approx(naive_sigma2(X))
        assert source.rows_read == 0


REFERENCE = {"minmax": MinMaxScaler, "maxabs": MaxAbsScaler, "standard": StandardScaler}

tables = arrays(
    np.float64,
    st.tuples(st.integers(1, 12), st.integers(1, 5)),
    elements=st.integers(-4, 4).map(float),
)


def fit(dense: np.ndarray, kind: str, n_parts: int = 1, convert=CSRRows.from_dense) -> Scaling:
    ranges = ColumnRanges(kind)
    for k, part in enumerate(np.array_split(dense, n_parts)):
        rows = convert(part)
        ranges.add(rows) if k % 2 else ranges.merge(ColumnRanges(kind).add(rows))
    return ranges.scaling(Scaling(), dense.shape[1])


@pytest.mark.parametrize("kind", REFERENCE)
@given(dense=tables, n_parts=st.integers(1, 3), offset=st.sampled_from([0.0, 1e6]))
def test_scaled_columns_equal_those_of_scikit_learn(kind, dense, n_parts, offset):
    dense = dense + offset
    expected = REFERENCE[kind]().fit_transform(dense)
    # Ours takes every constant column to 0.
    expected[:, dense.min(axis=0) == dense.max(axis=0)] = 0
    for convert in (CSRRows.from_dense, lambda rows: rows):
        scaled = fit(dense, kind, n_parts, convert).apply(dense, dense.shape[1])
        np.testing.assert_allclose(scaled, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", REFERENCE)
def test_columns_that_are_constant_or_never_met_become_zero(kind):
    # Sums of 0.1 round: the range, not the variance, tells that the column is constant.
    dense = np.tile(np.array([0.1, 0.0, -7.0], np.float32), (1001, 1))
    scaling = fit(dense, kind)
    assert not scaling.moves_zero
    assert not scaling.apply(dense, 3).any()
    ranges = ColumnRanges("maxabs").add(CSRRows.from_dense(np.array([[2.0], [4.0]])))
    assert ranges.scaling(Scaling(), 3).factor.tolist() == [0.25, 0, 0]
