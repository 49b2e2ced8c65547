"""The wrapper that scales rows as they are read."""

import pickle

import numpy as np
import pytest

from ooc_fw.data.scaling import Scaling
from ooc_fw.data.sources import ScaledSource, open_source
from ooc_fw.system.errors import InputError
from ooc_fw.testing.contracts import RowSourceContract, small_table, to_dense
from ooc_fw.testing.files import write_dense, write_sparse

IDENTITY = Scaling("maxabs", False, np.zeros(5), np.ones(5))
MOVING = Scaling("minmax", False, np.full(5, -2.0), np.full(5, 0.5))


class TestDense(RowSourceContract):
    def open(self, X, y, folder):
        return ScaledSource(open_source(write_dense(folder / "data.h5", X, y)), IDENTITY)


class TestSparse(RowSourceContract):
    sparse = True

    def open(self, X, y, folder):
        return ScaledSource(open_source(write_sparse(folder / "data.h5", X, y)), IDENTITY)


@pytest.mark.parametrize("write", [write_dense, write_sparse])
def test_rows_are_scaled_here_and_in_other_processes(tmp_path, write):
    X = small_table()
    expected = MOVING.apply(X, 5)
    source = ScaledSource(open_source(write(tmp_path / "data.h5", X, X[:, 0])), MOVING)
    assert not source.sparse  # zeros are moved
    assert source.scaling is MOVING
    assert source.statistics is None
    for each in (source, pickle.loads(pickle.dumps(source))):
        np.testing.assert_array_equal(to_dense(each.read(3, 40)), expected[3:40])
        np.testing.assert_array_equal(to_dense(each.take(np.array([0, 9]))), expected[[0, 9]])


def test_rows_in_ram_do_not_travel():
    with pytest.raises(TypeError, match="cannot be sent to another process"):
        pickle.dumps(ScaledSource(open_source(small_table()), MOVING))


def test_scaled_rows_are_not_scaled_again():
    once = ScaledSource(open_source(small_table()), MOVING)
    with pytest.raises(InputError, match=r"scaled already \(minmax\)"):
        ScaledSource(once, MOVING)
