"""Rows that are set aside and shuffled between reading and writing."""

import os
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw.conversion import spool as spool_module
from ooc_fw.conversion.spool import RowBlock, Spool, shuffle_keys
from ooc_fw.data.rows import CSRRows


def make_block(start, stop):
    """Row i has label -i and i % 4 stored values i + 0.25 in the first columns."""
    ids = np.arange(start, stop)
    X = np.where(np.arange(3) < ids[:, None] % 4, ids[:, None] + 0.25, 0)
    codes = np.stack([ids, -ids], axis=1).astype(np.int32)
    beside = {"y": -ids.astype(float), "row": ids, "categories": codes}
    return RowBlock(CSRRows.from_dense(X.astype(np.float32)), beside)


@given(
    cuts=st.lists(st.integers(0, 300), max_size=5),
    n_bytes=st.none() | st.integers(0, 1 << 14),
    seed=st.none() | st.integers(0, 5),
    bucket_bytes=st.sampled_from([1, 500, 1 << 20]),
)
def test_order_depends_on_rows_and_seed_only(tmp_path_factory, cuts, n_bytes, seed, bucket_bytes):
    """Also if buckets are much larger than expected, down to one row in each."""
    folder = tmp_path_factory.mktemp("spool")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spool_module, "BUCKET_BYTES", bucket_bytes)
        spool = Spool(folder, seed, n_bytes)
        for start, stop in pairwise(sorted({0, 300, *cuts})):
            spool.add(make_block(start, stop))
        assert os.listdir(folder) == []  # its files have no names
        blocks = list(spool.blocks(3))
        spool.close()
    order = np.arange(300) if seed is None else np.argsort(shuffle_keys(np.arange(300), seed))
    expected = make_block(0, 300)[order]
    for name, values in expected.beside.items():
        found = np.concatenate([block.beside[name] for block in blocks])
        np.testing.assert_array_equal(found, values)
    X = np.vstack([block.rows.toarray() for block in blocks])
    np.testing.assert_array_equal(X, expected.rows.toarray())
    if bucket_bytes == 1 and seed is not None:  # too large for memory until it holds one row
        assert all(len(block) == 1 for block in blocks)


def test_keys_differ_and_every_row_reaches_every_place():
    """Places of each of 6 rows over many seeds: each as often, within 5 deviations."""
    assert len(np.unique(shuffle_keys(np.arange(100_000), 3))) == 100_000
    n, n_seeds = 6, 3000
    counts = np.zeros((n, n))
    for seed in range(n_seeds):
        counts[np.arange(n), np.argsort(shuffle_keys(np.arange(n), seed))] += 1
    assert np.abs(counts - n_seeds / n).max() < 5 * np.sqrt(n_seeds / n)
