from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import example, given
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


@given(labels=st.lists(st.integers(-20, 20).map(float), max_size=60))
def test_labels_are_counted(labels):
    assert count_labels(np.array(labels)) == Counter(labels)


@given(values=tables, kept=arrays(np.bool_, (12, 5)))
def test_zeros_are_dropped_in_place(values, kept):
    stored = CSRRows.from_dense(np.ones_like(values))
    stored.data[:] = np.where(kept[: len(values), : values.shape[1]], values, 0).reshape(-1)
    expected = stored.toarray()
    n_kept = drop_zeros(stored.data, stored.indices, stored.indptr)
    assert n_kept == np.count_nonzero(expected)
    rows = CSRRows(stored.data[:n_kept], stored.indices[:n_kept], stored.indptr, stored.n_features)
    assert rows.data.all()
    np.testing.assert_array_equal(rows.toarray(), expected)


SCALING = Scaling("none", log1p=True)


@given(
    blocks=st.lists(
        st.lists(st.integers(0, 30).map(float) | st.floats(-0.984375, 2.0**100), max_size=40),
        max_size=4,
    )
)
@example([np.random.default_rng(0).exponential(100, 100_000)])  # more values than places
def test_logarithms_have_the_bits_of_the_scaling(blocks):
    table = LogTable(SCALING)
    for numbers in [*blocks, *blocks]:  # the second time they are looked up
        values = np.array(numbers, dtype=np.float64)
        expected = SCALING.log_values(values.copy())
        table.apply(values)
        np.testing.assert_array_equal(values.view(np.uint64), expected.view(np.uint64))
