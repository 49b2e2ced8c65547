from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ooc_fw._core.rows import drop_zeros
from ooc_fw.convert.passes import LogTable, count_labels
from ooc_fw.data.rows import CSRRows
from ooc_fw.data.scaling import Scaling

tables = arrays(
    np.float32,
    st.tuples(st.integers(1, 12), st.integers(1, 5)),
    elements=st.integers(-4, 4).map(float),
)


def to_csr(dense: np.ndarray) -> CSRRows:
    indptr = np.concatenate([[0], np.cumsum((dense != 0).sum(axis=1))])
    indices = np.nonzero(dense)[1].astype(np.int32)
    return CSRRows(dense[dense != 0], indices, indptr, dense.shape[1])


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


SCALING = Scaling("none", log1p=True)


@given(
    blocks=st.lists(
        st.lists(
            st.one_of(st.integers(0, 30).map(float), st.floats(-0.984375, 2.0**100)),
            max_size=40,
        ),
        max_size=4,
    )
)
def test_bits_are_those_of_the_scaling(blocks):
    table = LogTable(SCALING)
    for numbers in [*blocks, *blocks]:  # the second time they are looked up
        values = np.array(numbers, dtype=np.float64)
        expected = SCALING.log_values(values.copy())
        table.apply(values)
        np.testing.assert_array_equal(values.view(np.uint64), expected.view(np.uint64))


def test_more_values_than_places():
    values = np.random.default_rng(0).exponential(100, 100_000)
    table = LogTable(SCALING)
    for _ in range(2):
        found = values.copy()
        table.apply(found)
        np.testing.assert_array_equal(found, SCALING.log_values(values))
