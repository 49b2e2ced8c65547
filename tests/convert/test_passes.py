from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ooc_fw._core.rows import drop_zeros
from ooc_fw.convert.passes import rounded_away
from ooc_fw.convert.writer import count_labels
from ooc_fw.data.rows import CSRRows
from ooc_fw.data.scaling import Scaling
from ooc_fw.data.statistics import ColumnRanges

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


def test_columns_that_rounding_makes_one_are_found():
    rng = np.random.default_rng(0)
    near = rng.uniform(0, 100, size=500)
    columns = [1.6e9 + near, near, np.full(500, 1.6e9), 2.0**24 - np.arange(500) % 3, 0 * near]
    X = np.stack(columns, axis=1)
    for kind, lost in (("none", [0]), ("maxabs", [0]), ("minmax", []), ("standard", [])):
        ranges = ColumnRanges(kind).add(X)
        found = rounded_away(*ranges.range(5), Scaling.fit(ranges, False, 5))
        assert found.tolist() == lost, kind
