"""The wrapper that keeps decoded rows in RAM."""

import numpy as np
import pytest

from ooc_fw.data.sources import CachedSource, open_source
from ooc_fw.testing.contracts import RowSourceContract, small_table
from ooc_fw.testing.files import write_dense, write_sparse


class TestCachedDense(RowSourceContract):
    def open(self, X, y, folder):
        path = write_dense(folder / "data.h5", X, y, chunks=(10, 5))
        source = CachedSource(open_source(path), max_bytes=1 << 20)
        source._block_rows = 10  # several blocks
        return source


class TestCachedSparse(RowSourceContract):
    sparse = True

    def open(self, X, y, folder):
        path = write_sparse(folder / "data.h5", X, y)
        source = CachedSource(open_source(path), max_bytes=1 << 20)
        source._block_rows = 10
        return source


class TestTooLargeToKeep(RowSourceContract):
    def open(self, X, y, folder):
        path = write_dense(folder / "data.h5", X, y, chunks=(10, 5))
        return CachedSource(open_source(path), max_bytes=X.nbytes - 1)


class TestInMemory(RowSourceContract):
    in_memory = True

    def open(self, X, y, folder):
        return CachedSource(open_source(X, y), max_bytes=1 << 20)


@pytest.mark.parametrize("fits", [True, False])
def test_rows_that_fit_are_fetched_once(tmp_path, fits):
    X = small_table()
    path = write_dense(tmp_path / "data.h5", X, np.ones(len(X)))
    source = CachedSource(open_source(path), max_bytes=X.nbytes - (not fits))
    for _ in range(3):
        source.read(0, len(X))
        source.take(np.array([1, 4]))
    assert source.keeps == fits
    assert source.rows_read == 3 * (len(X) + 2)
    assert source.bytes_read == X.nbytes if fits else source.bytes_read > 3 * X.nbytes


def test_a_block_is_read_when_it_is_touched(tmp_path):
    X = small_table(n_rows=100)
    source = CachedSource(open_source(write_dense(tmp_path / "d.h5", X, X[:, 0])), 1 << 20)
    source._block_rows = 10
    source.read(25, 35)
    assert source.bytes_read == X[20:40].nbytes


def test_closes_what_it_wraps(tmp_path):
    X = small_table()
    inner = open_source(write_dense(tmp_path / "data.h5", X, X[:, 0]))
    CachedSource(inner, 0).close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        inner.read(0, 1)
