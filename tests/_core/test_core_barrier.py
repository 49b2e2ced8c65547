"""Threads that meet see what the others wrote before."""

from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
import pytest

from ooc_fw._core.pairwise import meet, new_barrier

TURNS = 2000


@numba.njit(nogil=True)
def count_together(cells, counts, thread):
    """Each thread adds to its count and looks at the others' after they have met."""
    n = counts.shape[0]
    wrong = 0
    for turn in range(1, TURNS + 1):
        counts[thread, 0] = turn
        meet(cells, thread)
        for other in range(n):
            wrong += counts[other, 0] != turn
        meet(cells, thread)
    return wrong


@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_threads_meet(n_threads):
    cells, counts = new_barrier(n_threads), np.zeros((n_threads, 64), dtype=np.int64)
    with ThreadPoolExecutor(n_threads) as pool:
        wrong = pool.map(lambda thread: count_together(cells, counts, thread), range(n_threads))
    assert list(wrong) == [0] * n_threads
