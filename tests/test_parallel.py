"""Map and merge in a fixed tree."""

import sys
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw.parallel import map_reduce, row_slices


def nested(left, right):
    return (left, right)


def test_the_tree_does_not_depend_on_threads():
    slices = row_slices(11, 2)
    trees = [map_reduce(nested, slices, nested, threads=threads) for threads in (1, 2, 3)]
    assert trees[0] == trees[1] == trees[2]
    assert trees[0] == (((0, 2), ((2, 4), (4, 6))), ((6, 8), ((8, 10), (10, 11))))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("n_slices", [1, 2, 7])
def test_sums(threads, n_slices):
    rows = np.arange(70.0)
    slices = row_slices(70, 70 // n_slices)
    total = map_reduce(
        lambda start, stop: rows[start:stop].sum(), slices, lambda a, b: a + b, threads=threads
    )
    assert total == rows.sum()


def test_threads_work_at_the_same_time():
    both = threading.Barrier(2, timeout=30)
    map_reduce(lambda start, stop: both.wait(), [(0, 1), (1, 2)], nested, threads=2)


def test_errors_come_through():
    def fail(start, stop):
        raise ValueError(f"rows {start} to {stop}")

    for threads in (1, 2):
        with pytest.raises(ValueError, match="rows 0 to 1"):
            map_reduce(fail, [(0, 1)], nested, threads=threads)


def test_one_thread_needs_no_dask(monkeypatch):
    monkeypatch.setitem(sys.modules, "dask", None)
    assert map_reduce(nested, [(0, 1), (1, 2)], nested, threads=1) == ((0, 1), (1, 2))


@given(n_rows=st.integers(1, 100), length=st.integers(1, 120))
def test_slices_cover_all_rows(n_rows, length):
    slices = row_slices(n_rows, length)
    assert [row for start, stop in slices for row in range(start, stop)] == list(range(n_rows))
    assert all(0 < stop - start <= length for start, stop in slices)
