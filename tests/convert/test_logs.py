from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw.convert.logs import LogTable
from ooc_fw.data.scaling import Scaling

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
