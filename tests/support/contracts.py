"""What every source must do, as a test class to inherit.

What is special about one storage, and its error messages, is tested with it.
"""

from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from ooc_fw.data.rows import CSRRows, Float32Array, Float64Array, Rows
from ooc_fw.data.sources import RowSource
from ooc_fw.system.errors import InputError


def small_table(n_rows: int = 57, n_features: int = 5, seed: int = 0) -> Float32Array:
    """Random float32 rows of which about half the values are 0, one row entirely."""
    rng = np.random.default_rng(seed)
    table = rng.standard_normal((n_rows, n_features)).astype(np.float32)
    table[rng.random(table.shape) < 0.5] = 0
    table[n_rows // 3] = 0
    return table


def to_dense(rows: Rows) -> Float32Array:
    """Rows as a dense block; their types and order of columns are asserted."""
    if not isinstance(rows, CSRRows):
        assert rows.dtype == np.float32
        assert rows.flags.c_contiguous
        return rows
    assert rows.data.dtype == np.float32
    assert rows.indices.dtype == np.int32
    assert rows.indptr.dtype == np.int64
    assert rows.indptr[0] == 0
    assert rows.indptr[-1] == len(rows.data) == len(rows.indices)
    for start, stop in pairwise(rows.indptr):
        assert (np.diff(rows.indices[start:stop]) > 0).all()
    return rows.toarray()


class RowSourceContract(ABC):
    """Tests of the interface `RowSource`; a subclass says how to store a table and open it."""

    sparse = False
    in_memory = False
    bad_value = np.nan  # that is stored and must be refused

    @abstractmethod
    def open(self, X: Float32Array, y: Float64Array, folder: Path) -> RowSource:
        """Store the table `X` with labels `y`, in `folder` if anywhere, and open it."""

    @pytest.fixture
    def X(self) -> Float32Array:
        """Table that the source under test holds."""
        return small_table()

    @pytest.fixture
    def y(self, X: Float32Array) -> Float64Array:
        """Labels that the source under test holds."""
        return np.where(np.arange(len(X)) % 3 == 0, 7.0, -2.0)

    @pytest.fixture
    def source(self, X: Float32Array, y: Float64Array, tmp_path: Path) -> RowSource:
        """Open source with the rows `X` and labels `y`."""
        return self.open(X, y, tmp_path)

    def test_says_what_it_holds(self, source: RowSource, X: Float32Array) -> None:
        assert isinstance(source, RowSource)
        assert (source.n_rows, source.n_features) == X.shape
        assert source.sparse is self.sparse
        assert source.in_memory is self.in_memory
        assert 1 <= source.chunk_rows <= source.n_rows
        assert source.decoded_bytes > 0
        assert source.name
        source.check_unchanged()

    def test_reads_ranges_and_takes_any_rows(self, source: RowSource, X: Float32Array) -> None:
        for start in range(0, len(X) + 1, 7):
            for stop in range(start, len(X) + 1, 5):
                np.testing.assert_array_equal(to_dense(source.read(start, stop)), X[start:stop])
        rng = np.random.default_rng(1)
        for size in (0, 1, 2, 9, len(X)):
            indices = np.sort(rng.choice(len(X), size, replace=False)).astype(np.int64)
            np.testing.assert_array_equal(to_dense(source.take(indices)), X[indices])

    def test_refuses_ranges_outside(self, source: RowSource, X: Float32Array) -> None:
        for start, stop in ((-1, 2), (3, 2), (0, len(X) + 1)):
            for method in (source.read, source.labels, source.row_ids):
                with pytest.raises(IndexError):
                    method(start, stop)
        for indices in ([0, len(X)], [-1, 0]):
            with pytest.raises(IndexError):
                source.take(np.array(indices))

    def test_gives_labels_and_row_ids(self, source: RowSource, y: Float64Array) -> None:
        assert source.has_labels
        np.testing.assert_array_equal(source.labels(0, len(y)), y)
        np.testing.assert_array_equal(source.labels(5, 9), y[5:9])
        ids = source.row_ids(0, source.n_rows)
        assert ids.dtype == np.int64
        assert len(np.unique(ids)) == source.n_rows
        np.testing.assert_array_equal(source.row_ids(4, 6), ids[4:6])

    def test_counts_what_it_reads_and_closes_twice(self, source: RowSource) -> None:
        source.read(0, 10)
        source.take(np.array([1, 30, 31]))
        assert source.rows_read == 13
        assert source.bytes_read > 0
        with source as same:
            assert same is source
        source.close()

    def test_serves_several_threads(self, source: RowSource, X: Float32Array) -> None:
        def read(start: int) -> bool:
            return np.array_equal(to_dense(source.read(start, start + 5)), X[start : start + 5])

        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(read, list(range(50)) * 4))
        assert source.rows_read == 5 * 200

    def test_names_the_row_that_is_not_finite(
        self, X: Float32Array, y: Float64Array, tmp_path: Path
    ) -> None:
        X[40, 3] = self.bad_value
        source = self.open(X, y, tmp_path)
        np.testing.assert_array_equal(to_dense(source.read(0, 40)), X[:40])
        with pytest.raises(InputError, match="row 40 holds a value in column") as caught:
            source.read(33, 50)
        assert source.name in str(caught.value)
        with pytest.raises(InputError, match="row 40 "):
            source.take(np.array([2, 38, 40, 41]))
