"""Rows of zarr and dask arrays, and the decoded chunks that are kept of them."""

import io
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import dask.array as da
import h5py
import numpy as np
import pytest
import zarr

from ooc_fw.data.arrays import DecodedChunks
from ooc_fw.data.opening import open_dataset
from ooc_fw.data.statistics import sigma2
from ooc_fw.system.errors import DamageError


def test_each_block_is_computed_once_a_pass():
    table = np.random.default_rng(0).random((9000, 40), dtype=np.float32)
    computed = []

    def count(block, block_info=None):
        computed.append(block_info[None]["chunk-location"][0])
        return block

    blocks = da.from_array(table, chunks=(900, 40))
    counted = blocks.map_blocks(count, dtype="f4", meta=np.empty((0, 0), "f4"))
    with open_dataset(counted) as source:
        assert computed == []
        sigma2(source, 3)
        assert sorted(computed) == list(range(10))
        source.take(np.arange(0, source.n_rows, 101))
        assert max(Counter(computed).values()) <= 2


def test_threads_decode_each_chunk_once_and_failures_are_tried_again():
    counts = Counter()

    def decode(start, stop):
        counts[start] += 1
        if start == 100 and counts[start] == 1:
            raise DamageError("gone")
        time.sleep(0.001)
        return np.arange(start, stop)

    chunks = DecodedChunks((600,), np.int64, decode, np.arange(0, 601, 100))
    with pytest.raises(DamageError):
        chunks[107:109]
    with ThreadPoolExecutor(4) as pool:
        starts = [*range(0, 600, 10)] * 3
        found = pool.map(lambda start: chunks[start : start + 7][0], starts)
        assert [*found] == starts
    assert counts == {100: 2} | dict.fromkeys([0, 200, 300, 400, 500], 1)


def test_chunks_count_among_the_bytes_that_reading_takes():
    X = np.random.default_rng(0).normal(size=(4000, 50))
    file = h5py.File(io.BytesIO(), "w")
    with open_dataset(file.create_dataset("X", data=X, chunks=(2000, 50), compression=1)) as source:
        # A compressed chunk and its values, beside the rows in both types.
        assert source.read_bytes >= 2 * 2000 * 50 * 8 + 2000 * 50 * (4 + 8)


def test_chunks_of_zeros_that_zarr_left_out_are_read_and_counted(tmp_path, caplog):
    X = np.zeros((8, 4), np.float32)
    X[:4, 0] = X[4:, 3] = 1
    root = zarr.open_group(tmp_path / "s.zarr", mode="w")
    root.create_array("X", shape=(8, 4), dtype="f4", chunks=(2, 2))[:] = X
    root.create_array("y", shape=(8,), dtype="i8", chunks=(2,))[:] = np.repeat([1, 0], 4)
    with open_dataset(tmp_path / "s.zarr") as source:
        np.testing.assert_array_equal(source.read(0, 8), X)
        assert source.labels(0, 8).tolist() == [1] * 4 + [0] * 4
    assert "'/X': 4 of its 8 chunks are absent" in caplog.text
    assert "'/y': 2 of its 4 chunks are absent" in caplog.text
