"""Rows of dask arrays."""

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import dask.array as da
import numpy as np
import pytest
import scipy.sparse

from ooc_fw.data.sources import DaskSource, iter_blocks, open_source
from ooc_fw.data.sources.decoded import DecodedChunks
from ooc_fw.data.statistics import fit_scaling
from ooc_fw.system.errors import DamageError, InputError
from ooc_fw.testing.contracts import RowSourceContract, small_table


class TestDask(RowSourceContract):
    def open(self, X, y, folder):
        return open_source(da.from_array(X, chunks=(10, 2)), da.from_array(y, chunks=8))


def test_a_chunk_is_the_read_unit():
    source = open_source(da.from_array(small_table(), chunks=(10, 5)))
    assert isinstance(source, DaskSource)
    assert source.chunk_rows == 10


def test_unknown_lengths():
    array = da.from_array(small_table(), chunks=10)
    with pytest.raises(InputError, match=r"unknown; call compute_chunk_sizes\(\)"):
        open_source(array[array[:, 0] > 0])


def test_sparse_blocks():
    array = da.from_array(small_table(), chunks=(10, 5)).map_blocks(scipy.sparse.csr_array)
    with pytest.raises(InputError, match="blocks of type csr_array; make them numpy arrays"):
        open_source(array)


def test_complex_values():
    with pytest.raises(InputError, match="must be real numbers"):
        open_source(da.from_array(np.zeros((2, 2), complex)))


def test_vectors():
    with pytest.raises(InputError, match="two dimensions"):
        open_source(da.zeros(4))


class CountedBlocks:
    """A dask array of 10 blocks that counts how often each of them is computed."""

    def __init__(self, table, length):
        self.counts = Counter()
        self._counting = threading.Lock()
        self.array = da.from_array(table, chunks=(length, table.shape[1])).map_blocks(
            self._count, dtype=table.dtype, meta=np.empty((0, 0), table.dtype)
        )

    def _count(self, block, block_info=None):
        with self._counting:
            self.counts[block_info[None]["chunk-location"][0]] += 1
        return block


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("length", [900, 30_000])
def test_each_block_is_computed_once_a_pass(threads, length):
    """Blocks smaller and larger than what tasks, sweeps and samples read at once."""
    table = np.random.default_rng(0).random((10 * length, 40), dtype=np.float32)
    counted = CountedBlocks(table, length)
    with open_source(counted.array) as source:
        fit_scaling(source, "minmax", threads=threads)
        assert counted.counts == dict.fromkeys(range(10), 1)
        for _, rows in iter_blocks(source, 0, source.n_rows, 1 << 20):
            assert len(rows) > 0
        assert max(counted.counts.values()) <= 2
        source.take(np.arange(0, source.n_rows, 101))
        assert max(counted.counts.values()) <= 3


def test_threads_wait_for_the_one_that_decodes():
    counts = Counter()

    def decode(start, stop):
        counts[start, stop] += 1
        time.sleep(0.02)
        return np.arange(start, stop)

    chunks = DecodedChunks(np.array([100, 200, 300]), decode, row_bytes=8)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda k: chunks.read(7 * k, 7 * k + 7), range(42)))
    np.testing.assert_array_equal(np.concatenate(found), np.arange(294))
    decoded = np.concatenate([np.arange(*part) for part in counts.elements()])
    np.testing.assert_array_equal(np.sort(decoded), np.arange(300))


def test_a_chunk_that_cannot_be_decoded_is_tried_again():
    def decode(start, stop):
        raise DamageError("gone")

    chunks = DecodedChunks(np.array([100]), decode, row_bytes=8)
    for _ in range(2):
        with pytest.raises(DamageError):
            chunks.read(0, 7)


def test_what_is_kept_is_bounded():
    chunks = DecodedChunks(
        np.arange(1, 1001) * 100, lambda start, stop: np.arange(start, stop), row_bytes=1 << 12
    )
    for start in range(50, 90_000, 100):
        assert chunks.read(start, start + 100).tolist() == list(range(start, start + 100))
        held = sum(len(kept.result()) for kept in chunks._kept.values()) << 12
        assert held <= chunks.kept_bytes
    assert chunks.kept_bytes == 32 << 20
