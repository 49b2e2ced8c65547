"""Results in the order of the user's rows, in bounded memory."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw.cli.applying import AppliedRows
from ooc_fw.cli.predict import in_order
from ooc_fw.system.errors import InputError


def blocks_of(ids, values, cuts, n_rows):
    for part in np.split(np.arange(len(ids)), cuts):
        if len(part):
            yield AppliedRows(values[part], None, ids[part], n_rows)


@given(st.data())
def test_any_order_becomes_that_of_the_rows(data):
    n = data.draw(st.integers(1, 60))
    first = data.draw(st.integers(0, n))  # rows that come in order
    rest = data.draw(st.permutations(range(first, n)))
    cuts = sorted(data.draw(st.lists(st.integers(0, n), max_size=5)))
    width = data.draw(st.sampled_from([1, 3]))
    ids = np.array([*range(first), *rest], dtype=np.int64)
    expected = np.random.default_rng(0).normal(size=(n, width))
    blocks = blocks_of(ids, expected[ids], cuts, n)
    found = np.concatenate([*in_order(blocks, "data")])
    np.testing.assert_array_equal(found, expected)


def test_rows_in_order_do_not_wait():
    seen = []

    def blocks():
        for k in range(3):
            yield AppliedRows(np.zeros((5, 1)))
            seen.append(k)

    next(in_order(blocks(), "data"))
    assert seen == []


@pytest.mark.parametrize("ids", [[1, 1, 0], [0, 2, 3], [2, 1, -1], [2, 1]])
def test_row_numbers_that_are_wrong(ids):
    ids = np.array(ids)
    with pytest.raises(InputError, match=r"d\.h5 do not name each of its rows once"):
        list(in_order(blocks_of(ids, np.zeros((len(ids), 1)), [], 3), "d.h5"))


def test_memory_is_that_of_the_results():
    """8 bytes for each, a byte for each row, and blocks."""
    n, step = 1_000_000, 10_000
    ids = np.random.default_rng(0).permutation(n)  # held outside of what is measured

    def blocks():
        for start in range(0, n, step):
            own = ids[start : start + step]
            yield AppliedRows(2.0 * own[:, None], None, own, n)

    tracemalloc.start()
    done = 0
    for values in in_order(blocks(), "data"):
        np.testing.assert_array_equal(values[:, 0], 2.0 * np.arange(done, done + len(values)))
        done += len(values)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert done == n
    assert peak < 9 * n + (4 << 20)
