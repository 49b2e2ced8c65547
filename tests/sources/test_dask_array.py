"""Rows of dask arrays."""

import dask.array as da
import numpy as np
import pytest
import scipy.sparse

from ooc_fw.errors import InputError
from ooc_fw.sources import DaskSource, open_source
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
