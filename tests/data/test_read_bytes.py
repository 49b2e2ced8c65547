"""What reading takes beside the rows, as sources state it for the memory plan."""

import h5py
import numpy as np
import pytest

from ooc_fw.data.sources import open_source


def test_chunks_of_foreign_files_count(tmp_path):
    X = np.random.default_rng(0).normal(size=(4000, 50))
    path = tmp_path / "packed.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("X", data=X, chunks=(2000, 50), compression=1)
    with open_source(path) as source:
        found = source.read_bytes
    # A compressed chunk and its values, beside the rows in both types.
    assert found >= 2 * 2000 * 50 * 8 + 2000 * 50 * (4 + 8)


def test_blocks_of_dask_arrays_count():
    da = pytest.importorskip("dask.array")
    X = np.zeros((4000, 50))
    few, many = (open_source(da.from_array(X, chunks=(rows, 50))).read_bytes for rows in (2000, 20))
    assert few >= 2 * 2000 * 50 * 8
    assert few > many
