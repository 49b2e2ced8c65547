from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, StandardScaler

from ooc_fw._core.libsvm import drop_zeros
from ooc_fw.prep.columns import WIDE, ColumnMoments, ColumnRanges, count_labels
from ooc_fw.rows import CSRRows

REFERENCE = {"minmax": MinMaxScaler, "maxabs": MaxAbsScaler, "standard": StandardScaler}

tables = arrays(
    np.float32,
    st.tuples(st.integers(1, 12), st.integers(1, 5)),
    elements=st.integers(-4, 4).map(float),
)


def to_csr(dense: np.ndarray) -> CSRRows:
    indptr = np.concatenate([[0], np.cumsum((dense != 0).sum(axis=1))])
    indices = np.nonzero(dense)[1].astype(np.int32)
    return CSRRows(dense[dense != 0], indices, indptr, dense.shape[1])


def fit(dense: np.ndarray, kind: str, n_parts: int = 1):
    ranges = ColumnRanges()
    for part in np.array_split(dense, n_parts):
        ranges.add(to_csr(part))
    return ranges.fit(kind, False, dense.shape[1])


@pytest.mark.parametrize("kind", REFERENCE)
@given(dense=tables, n_parts=st.integers(1, 3))
def test_scaled_columns_equal_those_of_scikit_learn(kind, dense, n_parts):
    scaled = fit(dense, kind, n_parts).apply(dense, dense.shape[1])
    expected = REFERENCE[kind]().fit_transform(dense.astype(np.float64))
    # Ours takes every constant column to 0.
    expected[:, dense.min(axis=0) == dense.max(axis=0)] = 0
    np.testing.assert_allclose(scaled, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", REFERENCE)
def test_constant_columns_become_zero(kind):
    # Sums of 0.1 round: the range, not the variance, tells that the column is constant.
    dense = np.tile(np.array([0.1, 0.0, -7.0], np.float32), (1001, 1))
    scaling = fit(dense, kind)
    assert not scaling.moves_zero
    assert not scaling.apply(dense, 3).any()


def test_large_mean_does_not_cancel():
    column = 1e6 + np.random.default_rng(0).normal(size=(5000, 1)).astype(np.float32) / 4
    scaling = fit(column.astype(np.float32), "standard")
    expected = 1 / column.astype(np.float32).astype(np.float64).std()
    np.testing.assert_allclose(scaling.factor, [expected], rtol=1e-9)


def test_none_has_no_numbers():
    scaling = fit(np.ones((2, 1), np.float32), "none")
    assert (scaling.kind, scaling.offset, scaling.factor) == ("none", None, None)


def test_columns_never_met_become_zero():
    ranges = ColumnRanges()
    ranges.add(to_csr(np.array([[2], [4]], np.float32)))
    assert ranges.fit("maxabs", False, 3).factor.tolist() == [0.25, 0, 0]


@given(dense=tables, n_parts=st.integers(1, 3))
def test_moments(dense, n_parts):
    for convert in (to_csr, lambda rows: rows):
        moments = ColumnMoments(dense.shape[1])
        for part in np.array_split(dense, n_parts):
            moments.add(convert(part))
        np.testing.assert_allclose(moments.mean, dense.mean(axis=0, dtype=float), atol=1e-12)
        square_norms = (dense.astype(float) ** 2).sum(axis=1)
        np.testing.assert_allclose(moments.mean_square_norm, square_norms.mean(), atol=1e-12)


@pytest.mark.parametrize("kind", ["none", "minmax", "maxabs"])
@given(dense=tables, n_parts=st.integers(1, 3))
def test_merged_ranges_equal_those_of_one_pass(kind, dense, n_parts):
    merged = ColumnRanges(with_moments=False)
    for part in np.array_split(dense, n_parts):
        rows = to_csr(part)
        width = int(rows.indices.max(initial=-1)) + 1  # as a parser would say
        found = merged.part(CSRRows(rows.data, rows.indices, rows.indptr, width))
        assert found is not None
        merged.merge(found)
    whole = ColumnRanges()
    whole.add(to_csr(dense))
    assert merged.n_stored == whole.n_stored
    assert merged.n_rows == whole.n_rows
    n_features = dense.shape[1]
    assert merged.fit(kind, False, n_features).same_as(whole.fit(kind, False, n_features))


def test_moments_and_wide_rows_are_added_in_order():
    rows = to_csr(np.ones((2, 3), np.float32))
    assert ColumnRanges(with_moments=True).part(rows) is None
    wide = CSRRows(rows.data, rows.indices, rows.indptr, WIDE + 1)
    assert ColumnRanges(with_moments=False).part(wide) is None


@given(labels=st.lists(st.integers(-20, 20).map(float), max_size=60))
def test_labels_are_counted(labels):
    assert count_labels(np.array(labels)) == Counter(labels)


@given(dense=tables, filled=st.lists(st.tuples(st.integers(0, 11), st.integers(0, 4)), max_size=9))
def test_zeros_are_dropped_in_place(dense, filled):
    stored = dense.copy()
    for row, column in filled:  # zeros here and there, that are stored at first
        stored[row % stored.shape[0], column % stored.shape[1]] = 1
    rows = to_csr(stored)
    where = np.repeat(np.arange(len(rows)), np.diff(rows.indptr))
    rows.data[:] = dense[where, rows.indices]
    keep = rows.data != 0
    expected = np.where(stored != 0, dense, 0)
    left = rows.data[keep].tolist(), rows.indices[keep].tolist()
    kept = drop_zeros(rows.data, rows.indices, rows.indptr)
    assert (rows.data[:kept].tolist(), rows.indices[:kept].tolist()) == left
    rows = CSRRows(rows.data[:kept], rows.indices[:kept], rows.indptr, rows.n_features)
    np.testing.assert_array_equal(rows.toarray(), expected)
