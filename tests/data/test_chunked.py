"""Rows of zarr and dask arrays, and the decoded chunks that are kept of them."""

import io
import pickle
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import dask.array as da
import h5py
import numpy as np
import pytest
import scipy.sparse as sp

from ooc_fw.data.sources import iter_blocks, open_source
from ooc_fw.data.sources.chunked import DecodedChunks
from ooc_fw.data.statistics import fit_scaling
from ooc_fw.system.errors import DamageError
from ooc_fw.testing.contracts import small_table


class Slices:
    """The least that is asked of an array; counts what is read, and may fail."""

    def __init__(self, table, error=None):
        self.table, self.error = table, error
        self.shape, self.dtype, self.chunks = table.shape, table.dtype, (10, 5)
        self.n_read = 0

    def __getitem__(self, key):
        if self.error is not None:
            raise self.error
        part = self.table[key]
        self.n_read += len(part)
        return part


def test_a_chunk_is_read_once_and_when_it_is_asked_for():
    array = Slices(small_table())
    source = open_source(array, np.ones(57))
    assert (source.chunk_rows, array.n_read) == (10, 0)
    source.take(np.array([0, 9, 35]))
    assert array.n_read == 20  # a chunk is decoded whole, whatever is asked of it
    source.take(np.array([31, 36]))
    assert array.n_read == 20


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_bytes_read_are_those_decoded(kind):
    """A pass in small blocks decodes every chunk once; a single row costs a whole chunk."""
    X = sp.random_array((2000, 50), density=0.3, format="csr", rng=0)
    file = h5py.File(io.BytesIO(), "w")
    if kind == "dense":
        node = file.create_dataset("X", data=X.toarray(), chunks=(500, 50), compression=1)
        stored, a_chunk = 8 * X.shape[0] * X.shape[1], 8 * 500 * 50
    else:
        node = file.create_group("X")
        node.attrs["shape"] = X.shape
        for part in ("data", "indices", "indptr"):
            chunks = len(X.data) // 4 if part != "indptr" else None
            compression = 1 if part != "indptr" else None
            values = getattr(X, part)
            node.create_dataset(part, data=values, chunks=chunks, compression=compression)
        width = X.data.itemsize + X.indices.itemsize
        stored, a_chunk = width * len(X.data), width * (len(X.data) // 4)
    with open_source(node, np.ones(2000)) as source:
        source.take(np.array([3]))
        assert source.bytes_read == a_chunk
        for start in range(0, 2000, 30):
            source.read(start, min(start + 30, 2000))
        assert source.bytes_read == stored


@pytest.mark.parametrize("error", [OSError("gone"), RuntimeError("bad"), ValueError("bad")])
def test_what_cannot_be_read(error):
    with pytest.raises(DamageError, match="rows 0 to 9 of array of chunks cannot be read"):
        open_source(Slices(small_table(), error)).read(3, 5)


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


def test_arrays_of_files_can_be_opened_by_other_processes(tmp_path):
    """A recipe of the array is sent; an array whose values are in memory stays where it is."""
    table = small_table()
    np.save(tmp_path / "x.npy", table)
    stored = da.map_blocks(
        lambda: np.load(tmp_path / "x.npy"), chunks=((len(table),), (table.shape[1],)), dtype="f4"
    )
    with open_source(stored, np.arange(len(table))) as source:
        other = pickle.loads(pickle.dumps(source))
        np.testing.assert_array_equal(other.read(0, len(table)), source.read(0, len(table)))
        assert not other.has_labels
    held = da.from_array(np.ones((5 << 10, 1 << 10), np.float32), chunks=(1 << 10, 1 << 10))
    with pytest.raises(TypeError, match="dask array cannot be sent to another process"):
        pickle.dumps(open_source(held))


def test_threads_wait_for_the_one_that_decodes():
    counts = Counter()

    def decode(start, stop):
        counts[start, stop] += 1
        time.sleep(0.02)
        return np.arange(start, stop)

    chunks = DecodedChunks((300,), np.int64, decode, 100)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda k: chunks[7 * k : 7 * k + 7], range(42)))
    np.testing.assert_array_equal(np.concatenate(found), np.arange(294))
    decoded = np.concatenate([np.arange(*part) for part in counts.elements()])
    np.testing.assert_array_equal(np.sort(decoded), np.arange(300))


def test_a_chunk_that_cannot_be_decoded_is_tried_again():
    tried = []

    def decode(start, stop):
        tried.append(start)
        raise DamageError("gone")

    chunks = DecodedChunks((100,), np.int64, decode, 100)
    for _ in range(2):
        with pytest.raises(DamageError):
            chunks[0:7]
    assert tried == [0, 0]


def test_what_is_kept_is_bounded():
    chunks = DecodedChunks(
        (100_000, 512), np.int64, lambda start, stop: np.arange(start, stop), 100
    )
    for start in range(50, 90_000, 100):
        assert chunks[start : start + 100].tolist() == list(range(start, start + 100))
        held = sum(len(kept.result()) for kept in chunks._kept.values()) << 12
        assert held <= chunks.kept_bytes
    assert chunks.kept_bytes == 32 << 20


def test_chunks_count_among_the_bytes_that_reading_takes():
    X = np.random.default_rng(0).normal(size=(4000, 50))
    file = h5py.File(io.BytesIO(), "w")
    with open_source(file.create_dataset("X", data=X, chunks=(2000, 50), compression=1)) as source:
        # A compressed chunk and its values, beside the rows in both types.
        assert source.read_bytes >= 2 * 2000 * 50 * 8 + 2000 * 50 * (4 + 8)
    few, many = (open_source(da.from_array(X, chunks=(rows, 50))).read_bytes for rows in (2000, 20))
    assert few >= 2 * 2000 * 50 * 8
    assert few > many
