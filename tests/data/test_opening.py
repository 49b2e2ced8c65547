"""What `open_dataset` makes of arrays and files, how they travel, and what it sees of changes."""

import fcntl
import os
import pickle
import shutil

import h5py
import numpy as np
import pytest
import scipy.sparse

from ooc_fw.data.opening import open_dataset
from ooc_fw.system.errors import InputError
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
