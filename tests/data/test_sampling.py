"""Samplers: integers in, row numbers out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw.data.sampling import (
    MAX_CHUNKS,
    MAX_SLICES,
    Sampler,
    choose_sampler,
    looks_shuffled,
)
from tests.support.methods import grid


def make(kind, n_rows, chunk_rows):
    return Sampler(n_rows, {"slices": None, "chunks": chunk_rows, "any": n_rows}[kind])


every_sampler = pytest.mark.parametrize("kind", ["slices", "chunks", "any"])


@every_sampler
@given(
    n_rows=st.integers(1, 500),
    chunk_rows=st.integers(1, 500),
    size=st.integers(1, 600),
    seed=st.integers(0, 99),
)
def test_a_draw_is_a_set_of_rows(kind, n_rows, chunk_rows, size, seed):
    sampler = make(kind, n_rows, min(chunk_rows, n_rows))
    rows = sampler.sample(size, np.random.default_rng(seed))
    assert rows.dtype == np.int64
    assert len(rows) == min(size, n_rows)
    assert (np.diff(rows) > 0).all()
    assert 0 <= rows[0] <= rows[-1] < n_rows


@every_sampler
@pytest.mark.parametrize(
    ("n_rows", "chunk_rows", "size"), grid([(23, 5, 7), (23, 5, 20), (40, 40, 3)], 1)
)
def test_every_row_is_equally_likely(kind, n_rows, chunk_rows, size):
    sampler, rng = make(kind, n_rows, chunk_rows), np.random.default_rng(0)
    draws = 2000
    counts = np.zeros(n_rows)
    for _ in range(draws):
        counts[sampler.sample(size, rng)] += 1
    p = size / n_rows
    score = (counts - draws * p) / np.sqrt(draws * p * (1 - p))
    assert np.abs(score).max() < 4


def test_draws_from_shuffled_rows_ignore_chunks():
    labels = np.tile([1, -1], 500)
    draws = {
        choose_sampler(1000, *storage, labels).sample(194, np.random.default_rng(3)).tobytes()
        for storage in [(1, True, False), (77, True, True), (1000, None, True)]
    }
    assert len(draws) == 1


def test_draws_touch_few_places():
    for size in (1, 64, 65, 194, 5000):
        rows = Sampler(1_000_000).sample(size, np.random.default_rng(size))
        slices = 1 + np.count_nonzero(np.diff(rows) > 1)
        assert slices <= min(MAX_SLICES, -(-size // 64)) + 1  # one may pass the end
    rows = Sampler(1_000_000, 4000).sample(194, np.random.default_rng(0))
    assert len(np.unique(rows // 4000)) <= 2 * MAX_CHUNKS  # a stretch may lie across a border


@pytest.mark.parametrize(
    ("shuffled", "sorted_labels", "on_disk", "in_memory"),
    [
        (True, True, None, None),
        (False, True, 100, 1000),
        (False, False, None, None),
        (None, False, None, None),
        (None, True, 100, 1000),
    ],
)
def test_choice(shuffled, sorted_labels, on_disk, in_memory):
    labels = np.random.default_rng(0).choice([-1, 1], 1000)
    labels = np.sort(labels) if sorted_labels else labels
    assert choose_sampler(1000, 100, shuffled, False, labels).chunk_rows == on_disk
    assert choose_sampler(1000, 100, shuffled, True, labels).chunk_rows == in_memory


@pytest.mark.parametrize(("share", "n_classes"), [(0.5, 2), (0.05, 5), (0.002, 2)])
def test_random_order_looks_shuffled(share, n_classes):
    rng = np.random.default_rng(0)
    for _ in range(50):
        rare = rng.integers(1, n_classes, 2000)
        assert looks_shuffled(np.where(rng.random(2000) < share, rare, 0))


def test_sorted_order_does_not():
    assert not looks_shuffled(np.repeat([-1, 1], 50))
    assert not looks_shuffled(np.repeat([0, 1, 2], 30))
    assert not looks_shuffled(np.tile(np.repeat([0, 1], 20), 30))
    for labels in ([1], [1, 1, 1], [1, 2], [1, -1] * 30):  # orders that tell nothing
        assert looks_shuffled(np.array(labels))
