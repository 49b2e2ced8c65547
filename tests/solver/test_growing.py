"""Growing arrays and rows against plain concatenation."""

import numpy as np
import pytest

from ooc_fw.data.rows import CSRRows, take_rows
from ooc_fw.solver.growing import GrowingArray, GrowingRows
from ooc_fw.testing.reference import to_csr


def test_array_holds_what_was_appended():
    array = GrowingArray(np.float64, (2,))
    blocks = [np.random.default_rng(n).normal(size=(n, 2)) for n in (0, 1, 3, 0, 40, 2)]
    for block in blocks:
        array.append(block)
    np.testing.assert_array_equal(array.view, np.concatenate(blocks))
    assert array.view.dtype == np.float64


def test_growing_one_by_one_copies_a_bounded_number_of_times():
    array = GrowingArray(np.int64)
    buffers = set()
    for k in range(1000):
        array.append(np.array([k]))
        buffers.add(array.view.__array_interface__["data"][0])
    assert array.view.tolist() == list(range(1000))
    assert len(buffers) <= 12


def test_array_keeps_places_in_their_order():
    array = GrowingArray(np.int64)
    array.append(np.arange(6) * 10)
    array.keep(np.array([1, 4]))
    array.append(np.array([99]))
    assert array.view.tolist() == [10, 40, 99]


@pytest.mark.parametrize("form", [np.asarray, to_csr], ids=["dense", "sparse"])
class TestRows:
    def table(self):
        rng = np.random.default_rng(0)
        X = rng.normal(size=(30, 4)).astype(np.float32)
        X[rng.random(X.shape) < 0.5] = 0
        X[7] = 0
        return X

    def dense(self, rows):
        return rows.toarray() if isinstance(rows, CSRRows) else rows

    def test_rows_hold_what_was_appended(self, form):
        X, rows = self.table(), GrowingRows()
        for start, stop in ((0, 1), (1, 20), (20, 20), (20, 30)):
            rows.append(take_rows(form(X), np.arange(start, stop)))
            np.testing.assert_array_equal(self.dense(rows.view), X[:stop])

    def test_rows_keep_places_and_grow_again(self, form):
        X, rows = self.table(), GrowingRows()
        rows.append(form(X))
        rows.keep(np.array([3, 7, 20]))
        np.testing.assert_array_equal(self.dense(rows.view), X[[3, 7, 20]])
        rows.append(form(X[:2]))
        np.testing.assert_array_equal(self.dense(rows.view), X[[3, 7, 20, 0, 1]])

    def test_rows_added_are_copied(self, form):
        X, rows = self.table(), GrowingRows()
        rows.append(form(X))
        before = X.copy()
        X[:] = 0
        np.testing.assert_array_equal(self.dense(rows.view), before)
