"""Growing arrays against plain concatenation; growing rows are tried as those of active sets."""

import numpy as np

from ooc_fw.solver.growing import GrowingArray


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
