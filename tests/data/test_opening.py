"""What `open_dataset` makes of arrays and files: how they travel, are decoded, seen to change."""

import fcntl
import io
import os
import pickle
import shutil
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import dask.array as da
import h5py
import numpy as np
import pytest
import scipy.sparse
import zarr

from ooc_fw.data.arrays import DecodedChunks
from ooc_fw.data.opening import open_dataset
from ooc_fw.data.statistics import sigma2
from ooc_fw.system.errors import DamageError, InputError
from tests.support.contracts import small_table
from tests.support.files import write_dense

X = small_table()


def test_rows_in_ram_are_views_and_a_source_is_returned_as_it_is():
    source = open_dataset(X)
    assert np.shares_memory(source.read(3, 9), X)
    assert open_dataset(source) is source


def test_a_matrix_whose_columns_are_put_in_order_is_left_alone():
    parts = np.array([4.0, 2, 2, 3]), np.array([3, 0, 0, 2]), np.array([0, 3, 4])
    matrix = scipy.sparse.csr_matrix(parts, (2, 4))
    assert open_dataset(matrix).read(0, 2).toarray().tolist() == [[4, 0, 0, 4], [0, 0, 3, 0]]
    assert matrix.indices.tolist() == [3, 0, 0, 2]
    matrix.indices = np.array([0, 7, 2, 1])
    with pytest.raises(InputError, match="column number outside 0 to 3"):
        open_dataset(matrix).read(0, 2)


def test_a_file_cut_short_or_gone_is_an_error_and_kills_no_process(tmp_path):
    path = tmp_path / "X.npy"
    np.save(path, np.tile(X, (1000, 1)))
    mapped = np.load(path, mmap_mode="r")
    source, table = open_dataset(path), open_dataset(mapped)
    os.truncate(path, os.path.getsize(path) - 30)
    for read in (source.read, table.read):
        with pytest.raises(InputError, match=r"X.npy was changed while it was in use"):
            read(56_950, 57_000)
    path.unlink()
    with pytest.raises(InputError, match=r"X.npy does not exist"):
        open_dataset(mapped)


@pytest.mark.parametrize("swmr", [True, False])
def test_a_file_of_a_killed_writer_is_not_called_damaged(tmp_path, swmr):
    with h5py.File(tmp_path / "open.h5", "w", libver="latest") as file:
        file["X"] = np.eye(3)
        if swmr:
            file.swmr_mode = True
        file.flush()
        shutil.copy(tmp_path / "open.h5", tmp_path / "left.h5")
    with pytest.raises(InputError, match=r"or that program was killed; .* h5clear -s .*left\.h5"):
        open_dataset(tmp_path / "left.h5")


def test_labels_given_apart_do_not_travel(tmp_path):
    """And those in the file, which they replace, do not come in their stead."""
    path = write_dense(tmp_path / "data.h5", X, np.ones(57))
    for labels, travel in ((np.zeros(57), False), (None, True)):
        copy = pickle.loads(pickle.dumps(open_dataset(path, labels)))
        np.testing.assert_array_equal(copy.read(0, 57), X)
        assert copy.has_labels == travel


def test_a_file_that_changes_is_noticed(tmp_path):
    path = write_dense(tmp_path / "data.h5", X, X[:, 0], chunks=(10, 5))
    with open(path) as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        with pytest.raises(InputError, match=r"data\.h5 is being written by another program; wait"):
            open_dataset(path)
    with open_dataset(path) as source:
        os.utime(path, ns=(1, 1))
        with pytest.raises(InputError, match=r"data.h5 was changed while it was in use"):
            source.read(0, 1)
        with pytest.raises(InputError, match="is not the file it was when the work began"):
            pickle.loads(pickle.dumps(source))


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
