"""Samplers: integers in, row numbers out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw.data.sampling import MAX_CHUNKS, MAX_SLICES, Sampler, choose_sampler, looks_shuffled


@given(
    n_rows=st.integers(1, 500),
    chunk_rows=st.none() | st.integers(1, 500),
    size=st.integers(1, 600),
    seed=st.integers(0, 99),
)
def test_a_draw_is_a_set_of_rows(n_rows, chunk_rows, size, seed):
    sampler = Sampler(n_rows, chunk_rows and min(chunk_rows, n_rows))
    rows = sampler.sample(size, np.random.default_rng(seed))
    assert rows.dtype == np.int64
    assert len(rows) == min(size, n_rows)
    assert (np.diff(rows) > 0).all()
    assert 0 <= rows[0] <= rows[-1] < n_rows


@pytest.mark.parametrize(("chunk_rows", "size"), [(None, 7), (5, 7), (5, 20), (23, 20)])
def test_every_row_is_equally_likely(chunk_rows, size):
    n_rows, draws = 23, 2000
    sampler, rng = Sampler(n_rows, chunk_rows), np.random.default_rng(0)
    counts = np.zeros(n_rows)
    for _ in range(draws):
        counts[sampler.sample(size, rng)] += 1
    p = size / n_rows
    assert np.abs(counts - draws * p).max() < 4 * np.sqrt(draws * p * (1 - p))


def test_draws_touch_few_places():
    for size in (1, 65, 5000):
        rows = Sampler(1_000_000).sample(size, np.random.default_rng(size))
        slices = 1 + np.count_nonzero(np.diff(rows) > 1)
        assert slices <= min(MAX_SLICES, -(-size // 64)) + 1  # one may pass the end
    rows = Sampler(1_000_000, 4000).sample(194, np.random.default_rng(0))
    assert len(np.unique(rows // 4000)) <= 2 * MAX_CHUNKS  # a stretch may lie across a border


@pytest.mark.parametrize(
    ("shuffled", "are_sorted", "on_disk", "in_memory"),
    [(True, True, None, None), (None, False, None, None), (None, True, 100, 1000)],
)
def test_the_order_of_labels_tells_what_a_file_does_not(shuffled, are_sorted, on_disk, in_memory):
    labels = np.random.default_rng(0).choice([-1, 1], 1000)
    labels = np.sort(labels) if are_sorted else labels
    assert choose_sampler(1000, 100, shuffled, False, labels).chunk_rows == on_disk
    assert choose_sampler(1000, 100, shuffled, True, labels).chunk_rows == in_memory


def test_labels_in_random_order_look_shuffled_and_those_in_sorted_order_do_not():
    rng = np.random.default_rng(0)
    for share, n_classes in ((0.5, 2), (0.05, 5), (0.002, 2)):
        for _ in range(50):
            rare = rng.integers(1, n_classes, 2000)
            assert looks_shuffled(np.where(rng.random(2000) < share, rare, 0))
    for labels in ([1], [1, 1, 1], [1, 2], [1, -1] * 30):  # orders that tell nothing
        assert looks_shuffled(np.array(labels))
    assert not looks_shuffled(np.repeat([0, 1, 2], 30))
    assert not looks_shuffled(np.tile(np.repeat([0, 1], 20), 30))
