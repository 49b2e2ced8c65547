"""Ranges and moments of columns, and the scaling made from them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, StandardScaler

from ooc_fw.data.rows import CSRRows
from ooc_fw.data.scaling import Scaling
from ooc_fw.data.statistics import ColumnRanges

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
    return Scaling.fit(ranges, False, dense.shape[1])


@pytest.mark.parametrize("kind", REFERENCE)
@given(dense=tables, n_parts=st.integers(1, 3))
def test_scaled_columns_equal_those_of_scikit_learn(kind, dense, n_parts):
    expected = REFERENCE[kind]().fit_transform(dense)
    # Ours takes every constant column to 0.
    expected[:, dense.min(axis=0) == dense.max(axis=0)] = 0
    for convert in (CSRRows.from_dense, lambda rows: rows):
        scaled = fit(dense, kind, n_parts, convert).apply(dense, dense.shape[1])
        np.testing.assert_allclose(scaled, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", REFERENCE)
def test_constant_columns_become_zero(kind):
    # Sums of 0.1 round: the range, not the variance, tells that the column is constant.
    dense = np.tile(np.array([0.1, 0.0, -7.0], np.float32), (1001, 1))
    scaling = fit(dense, kind)
    assert not scaling.moves_zero
    assert not scaling.apply(dense, 3).any()


@pytest.mark.parametrize("offset", [1e6, 1.6e9, -1.6e12])
def test_large_mean_does_not_cancel(offset):
    column = offset + np.random.default_rng(0).uniform(0, 100, size=(5000, 1))
    scaling = fit(column, "standard")
    near = column - offset  # exact
    np.testing.assert_allclose(scaling.factor, [1 / near.std()], rtol=1e-13)
    np.testing.assert_allclose(scaling.offset - offset, [near.mean()], rtol=1e-3)
    scaled = scaling.apply(column, 1)
    np.testing.assert_allclose(scaled, (near - near.mean()) / near.std(), atol=1e-5)


@given(
    seed=st.integers(0, 1000),
    cuts=st.lists(st.integers(0, 200), max_size=6),
    scale=st.sampled_from([1.0, 1e-30, 1e30]),
    offset=st.sampled_from([0.0, 1.0, -1e9]),
)
def test_order_and_blocks_change_the_last_bits_and_storage_none(seed, cuts, scale, offset):
    rng = np.random.default_rng(seed)
    dense = (offset + rng.standard_cauchy(size=(200, 3))) * scale
    dense[rng.random(dense.shape) < 0.3] = 0
    one = fit(dense, "standard")
    other = ColumnRanges("standard")
    shuffled = rng.permutation(dense)
    for begin, end in pairwise(sorted({0, 200, *cuts})):
        part = shuffled[begin:end]
        rows = CSRRows.from_dense(part) if begin % 2 else part
        other.merge(ColumnRanges("standard").add(rows))
    two = Scaling.fit(other, False, 3)
    assert one.same_as(two)
    same = fit(dense, "standard", convert=lambda rows: rows)
    assert one.offset.tolist() == same.offset.tolist()
    assert one.factor.tolist() == same.factor.tolist()


def test_columns_never_met_become_zero():
    ranges = ColumnRanges("maxabs")
    ranges.add(CSRRows.from_dense(np.array([[2.0], [4.0]])))
    assert Scaling.fit(ranges, False, 3).factor.tolist() == [0.25, 0, 0]
