"""Numbers of rows and of stored values beyond 2^31, in files with holes, which take no room."""

from types import SimpleNamespace

import h5py
import numpy as np
import pytest

from ooc_fw.certificate.sweep import _blocks
from ooc_fw.data.opening import open_dataset
from ooc_fw.data.sampling import Sampler
from ooc_fw.data.views import SubsetSource

N_ROWS = (1 << 31) + 1000
START = N_ROWS - 600


def write_npy(path, descr, shape, tail):
    """An .npy file of zeros but for its end."""
    with path.open("wb") as file:
        header = {"descr": descr, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + int(np.prod(shape)) * tail.itemsize)
        file.seek(-tail.nbytes, 2)
        file.write(tail.tobytes())
    return path


def test_rows_at_the_end_are_read_by_their_numbers(tmp_path):
    """Rows of one column: zeros of class 0, and in the end 600 of both classes."""
    X = np.random.default_rng(0).normal(size=(600, 1)).astype(np.float32)
    y = (X[:, 0] > 0).astype(np.int8)
    rows = write_npy(tmp_path / "X.npy", "<f4", (N_ROWS, 1), X)
    labels = write_npy(tmp_path / "y.npy", "|i1", (N_ROWS,), y)
    with open_dataset(rows, labels) as source:
        np.testing.assert_array_equal(source.read(N_ROWS - 9, N_ROWS), X[-9:])
        ids = np.array([5, START - 1, START, START + 77, N_ROWS - 1])
        np.testing.assert_array_equal(source.take(ids)[2:], X[[0, 77, -1]])
        np.testing.assert_array_equal(source.labels(START, N_ROWS), y)
        part = SubsetSource(source, np.r_[7:9, START:N_ROWS])
        np.testing.assert_array_equal(part.take(np.array([1, 2, 601])), [[0], X[0], X[-1]])
        np.testing.assert_array_equal(part.row_ids(1, 4), [8, START, START + 1])
        support, labels = np.array([3, N_ROWS - 4]), np.broadcast_to(np.int8(1), N_ROWS)
        problem = SimpleNamespace(source=source, labels=labels)
        *_, last = _blocks(problem, 1.0, support)  # of a certificate
        assert (last.stop, (last.start + last.support).tolist()) == (N_ROWS, [N_ROWS - 4])
        np.testing.assert_array_equal(source.read(last.start, last.stop)[-4:], X[-4:])


@pytest.mark.parametrize("chunk_rows", [None, 64])
def test_samples_reach_all_rows(chunk_rows):
    n_rows, rng = 3 << 31, np.random.default_rng(0)
    sampler = Sampler(n_rows, chunk_rows)
    ids = np.concatenate([sampler.sample(50, rng) for _ in range(20)])
    assert ids.dtype == np.int64
    assert 0 <= ids.min() < 1 << 31
    assert 2 << 31 < ids.max() < n_rows


def test_stored_values_beyond_2_to_the_31(tmp_path):
    """Sparse rows of which the first would have 2^31 values."""
    before, path = 1 << 31, tmp_path / "sparse.h5"
    with h5py.File(path, "w") as file:
        group = file.create_group("X")
        for name, dtype in (("data", np.float32), ("indices", np.int32)):
            own = group.create_dataset(name, (before + 4,), dtype, fill_time="never")
            own[before:] = [1, 2, 3, 4]
        group["indptr"] = np.array([0, before, before + 1, before + 4])
        group.attrs["shape"] = (3, 10)
        file["y"] = [0, 1, 0]
    with open_dataset(path) as source:
        expected = [[0, 1, 0, 0, 0, 0, 0, 0, 0, 0], [0, 0, 2, 3, 4, 0, 0, 0, 0, 0]]
        np.testing.assert_array_equal(source.read(1, 3).toarray(), expected)
        np.testing.assert_array_equal(source.take(np.array([2])).toarray(), expected[1:])
