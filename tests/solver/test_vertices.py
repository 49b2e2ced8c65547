"""Growing arrays and rows against plain concatenation."""

import numpy as np
import pytest

from ooc_fw.data.rows import CSRRows
from ooc_fw.solver.vertices import GrowingArray, GrowingRows
from tests.support.contracts import to_dense
from tests.support.reference import to_csr


def test_array_holds_what_was_appended_and_kept():
    """And grows by a bounded number of copies."""
    array, buffers = GrowingArray(np.float64, (2,)), set()
    blocks = [np.random.default_rng(n).normal(size=(n, 2)) for n in (0, 1, 3, 0, 40, 2, *[1] * 900)]
    for block in blocks:
        array.append(block)
        buffers.add(array.view.__array_interface__["data"][0])
    whole = np.concatenate(blocks)
    np.testing.assert_array_equal(array.view, whole)
    assert len(buffers) <= 12
    array.keep(np.array([1, 4]))
    array.append(whole[:1])
    np.testing.assert_array_equal(array.view, whole[[1, 4, 0]])


@pytest.mark.parametrize("form", [np.copy, to_csr], ids=["dense", "sparse"])
def test_rows_hold_copies_of_what_was_appended_and_kept(form):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 4)).astype(np.float32) * (rng.random((30, 4)) < 0.5)
    X[7] = 0
    rows = GrowingRows()

    for start, stop in ((0, 1), (1, 20), (20, 20), (20, 30)):
        given = form(X[start:stop])
        rows.append(given)
        (given.data if isinstance(given, CSRRows) else given)[:] = 0
        np.testing.assert_array_equal(to_dense(rows.view), X[:stop])
    rows.keep(np.array([3, 7, 20]))
    np.testing.assert_array_equal(to_dense(rows.view), X[[3, 7, 20]])
    rows.append(form(X[:2]))
    np.testing.assert_array_equal(to_dense(rows.view), X[[3, 7, 20, 0, 1]])
