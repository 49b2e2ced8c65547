"""Rows of zarr arrays, and of anything alike."""

import numpy as np
import pytest

from ooc_fw.data.sources import ChunkedSource, open_source
from ooc_fw.system.errors import DamageError, InputError
from ooc_fw.testing.contracts import RowSourceContract, small_table

zarr = pytest.importorskip("zarr")


class TestZarr(RowSourceContract):
    def open(self, X, y, folder):
        rows = zarr.create_array(str(folder / "X.zarr"), data=X, chunks=(10, 2))
        return open_source(rows, zarr.create_array(str(folder / "y.zarr"), data=y, chunks=(8,)))


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


def test_a_chunk_is_read_once_for_all_its_rows():
    array = Slices(small_table())
    source = open_source(array)
    assert isinstance(source, ChunkedSource)
    assert source.chunk_rows == 10
    source.take(np.array([0, 9, 35]))
    assert array.n_read == 20  # a chunk is decoded whole, whatever is asked of it
    source.take(np.array([31, 36]))
    assert array.n_read == 20


def test_nothing_is_read_that_is_not_asked_for():
    array = Slices(small_table())
    source = open_source(array, np.ones(57))
    assert array.n_read == 0
    source.read(20, 30)
    assert array.n_read == 10


@pytest.mark.parametrize("error", [OSError("gone"), RuntimeError("bad"), ValueError("bad")])
def test_what_cannot_be_read(error):
    with pytest.raises(DamageError, match="rows 0 to 9 of the array of chunks cannot be read"):
        open_source(Slices(small_table(), error)).read(3, 5)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (np.zeros((2, 2), complex), "must be real numbers"),
        (np.zeros(4), "two dimensions"),
        (np.zeros((0, 3)), "is empty"),
    ],
)
def test_unusable(table, message):
    with pytest.raises(InputError, match=message):
        open_source(Slices(table))
