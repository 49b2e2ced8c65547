"""Checksums of stretches of an array: long reads see every change."""

import zlib

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ooc_fw.data.converted import CheckedSlices, Checksums, crc32s
from ooc_fw.system.errors import DamageError


@given(
    n_rows=st.integers(1, 40),
    length=st.integers(1, 15),
    span=st.tuples(st.integers(0, 40), st.integers(0, 40)),
    bad=st.none() | st.integers(0, 39),
)
@example(n_rows=40, length=10, span=(3, 35), bad=12)
def test_long_reads_see_every_change_and_short_ones_say_what_is_there(n_rows, length, span, bad):
    array = np.arange(n_rows)
    sums = Checksums(crc32s(array, length), length)
    parts = [array[k : k + length].tobytes() for k in range(0, n_rows, length)]
    assert sums.values.tolist() == [*map(zlib.crc32, parts)]
    start, stop = np.minimum(sorted(span), n_rows).tolist()
    stored = array.copy()
    if bad is not None:
        bad %= n_rows
        stored[bad] += 1
    checked = CheckedSlices(stored, sums, "f.h5", "y")
    first, last = start // length * length, -(-stop // length) * length
    whole = start == first and stop == min(last, n_rows)
    is_checked = stop > start and (stop - start >= length or whole)
    if is_checked and bad is not None and first <= bad < last:
        begin = bad // length * length
        rows = f"rows {begin} to {min(begin + length, n_rows) - 1} "
        with pytest.raises(DamageError, match=rf"f.h5 is damaged: y, {rows}"):
            checked[start:stop]
    else:
        np.testing.assert_array_equal(checked[start:stop], stored[start:stop])
