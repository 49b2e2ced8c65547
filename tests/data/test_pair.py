"""Two sources as one: the order of their rows, there and back."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw.data.sources import PairSource, open_source
from ooc_fw.testing.contracts import small_table, to_dense
from ooc_fw.testing.files import write_dense, write_sparse

sizes = st.integers(1, 40)


def pair_of(n_first, n_second):
    first = open_source(np.zeros((n_first, 1)) + np.arange(n_first)[:, None])
    second = open_source(np.zeros((n_second, 1)) - 1 - np.arange(n_second)[:, None])
    return PairSource(first, second, name="pair", shuffled=None)


@given(sizes, sizes)
def test_rows_of_both_are_spread_evenly_and_found_again(n_first, n_second):
    pair = pair_of(n_first, n_second)
    n = n_first + n_second
    rows = np.arange(n)
    is_first, origin = pair.is_first(rows), pair.origin(rows)
    for k in range(n + 1):
        assert is_first[:k].sum() == k * n_first // n
    assert origin[is_first].tolist() == list(range(n_first))
    assert origin[~is_first].tolist() == list(range(n_second))
    np.testing.assert_array_equal(pair.place(origin, is_first), rows)
    values = to_dense(pair.read(0, n))[:, 0]
    np.testing.assert_array_equal(values, np.where(is_first, origin, -1 - origin))


@pytest.mark.parametrize("write", [write_dense, write_sparse])
def test_rows_come_from_files_by_range_and_by_number(write, tmp_path):
    X = small_table()
    is_first = pair_of(20, 37).is_first(np.arange(57))
    parts = [
        open_source(write(tmp_path / f"{k}.h5", X[here], X[here, 0]))
        for k, here in enumerate((is_first, ~is_first))
    ]
    pair = PairSource(*parts, name="both", shuffled=True)
    assert pair.shuffled
    assert not pair.in_memory
    assert pair.sparse is parts[0].sparse
    for start, stop in ((0, 57), (0, 0), (13, 14), (5, 40)):
        np.testing.assert_array_equal(to_dense(pair.read(start, stop)), X[start:stop])
    for rows in ([], [3], [0, 7, 8, 56], list(range(57))):
        taken = to_dense(pair.take(np.array(rows, dtype=np.int64)))
        np.testing.assert_array_equal(taken, X[rows])
    assert pair.bytes_read == parts[0].bytes_read + parts[1].bytes_read > 0
    with pytest.raises(IndexError):
        pair.take(np.array([57]))
    (tmp_path / "1.h5").write_bytes(b"other")
    with pytest.raises(Exception, match=r"1\.h5 was changed"):
        pair.check_unchanged()
