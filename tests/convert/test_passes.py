from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw.convert.passes import rounded_away
from ooc_fw.convert.writer import count_labels
from ooc_fw.data.scaling import Scaling
from ooc_fw.data.statistics import ColumnRanges


@given(labels=st.lists(st.integers(-20, 20).map(float), max_size=60))
def test_labels_are_counted(labels):
    assert count_labels(np.array(labels)) == Counter(labels)


def test_columns_that_rounding_makes_one_are_found():
    rng = np.random.default_rng(0)
    near = rng.uniform(0, 100, size=500)
    columns = [1.6e9 + near, near, np.full(500, 1.6e9), 2.0**24 - np.arange(500) % 3, 0 * near]
    X = np.stack(columns, axis=1)
    for kind, lost in (("none", [0]), ("maxabs", [0]), ("minmax", []), ("standard", [])):
        ranges = ColumnRanges(kind).add(X)
        found = rounded_away(*ranges.range(5), Scaling.fit(ranges, False, 5))
        assert found.tolist() == lost, kind
