"""Some of the rows of a source, and random parts."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ooc_fw
from ooc_fw.data.sources import SubsetSource, open_source
from ooc_fw.data.sources.subset import complement, draw_parts, ranges_of
from ooc_fw.system.errors import InputError
from ooc_fw.testing.contracts import RowSourceContract, small_table, to_dense
from ooc_fw.testing.files import write_dense, write_sparse


def with_more(X, y):
    """The table with rows behind it that are not to be seen."""
    return np.concatenate([X, X[:9] + 1]), np.concatenate([y, np.full(9, 5.0)])


class FirstRows(RowSourceContract):
    def test_gives_row_ids(self, source):
        whole = source.source
        np.testing.assert_array_equal(source.row_ids(0, 57), whole.row_ids(0, 57))
        np.testing.assert_array_equal(source.row_ids(4, 6), whole.row_ids(4, 6))


class TestDense(FirstRows):
    def open(self, X, y, folder):
        whole = open_source(write_dense(folder / "data.h5", *with_more(X, y), chunks=(10, 5)))
        return SubsetSource(whole, np.array([[0, 57]]))


class TestSparse(FirstRows):
    sparse = True

    def open(self, X, y, folder):
        whole = open_source(write_sparse(folder / "data.h5", *with_more(X, y)))
        return SubsetSource(whole, np.array([[0, 57]]))


class TestInMemory(FirstRows):
    in_memory = True

    def open(self, X, y, folder):
        return SubsetSource(open_source(*with_more(X, y)), np.array([[0, 57]]))


@pytest.mark.parametrize("write", [write_dense, write_sparse])
@pytest.mark.parametrize("ranges", [[[3, 20]], [[0, 9], [30, 57]], [[1, 2], [4, 9], [56, 57]]])
def test_any_rows_here_and_in_other_processes(tmp_path, write, ranges):
    X = small_table()
    y = np.arange(57.0)
    rows = np.concatenate([np.arange(*pair) for pair in ranges])
    whole = open_source(write(tmp_path / "data.h5", X, y))
    source = SubsetSource(whole, np.array(ranges))
    n = len(rows)
    for each in (source, pickle.loads(pickle.dumps(source))):
        np.testing.assert_array_equal(to_dense(each.read(0, n)), X[rows])
        np.testing.assert_array_equal(to_dense(each.read(1, n - 1)), X[rows[1:-1]])
        np.testing.assert_array_equal(to_dense(each.take(np.array([0, n - 1]))), X[rows[[0, -1]]])
        np.testing.assert_array_equal(each.labels(0, n), rows)
        np.testing.assert_array_equal(each.row_ids(0, n), whole.row_ids(0, 57)[rows])
    np.testing.assert_array_equal(source.rows_at(np.arange(n)), rows)
    source.close()
    whole.read(0, 1)  # still open


@given(
    st.integers(1, 60).flatmap(
        lambda n: st.tuples(st.just(n), st.lists(st.integers(1, n), min_size=1, max_size=4))
    ),
    st.booleans(),
    st.integers(0, 5),
)
def test_parts_share_no_row(drawn, shuffled, seed):
    n, sizes = drawn
    while sum(sizes) > n:
        sizes = [size // 2 for size in sizes if size > 1] or [1]
    parts = draw_parts(n, sizes, shuffled, np.random.default_rng(seed))
    rows = [np.concatenate([np.arange(*pair) for pair in part]) for part in parts]
    assert [len(part) for part in rows] == sizes
    assert len(np.unique(np.concatenate(rows))) == sum(sizes)
    for part, ranges in zip(rows, parts, strict=True):
        np.testing.assert_array_equal(ranges_of(part), ranges)
        assert len(ranges) <= 2 or not shuffled
        rest = complement(ranges, n)
        inside = [np.arange(*pair) for pair in rest]
        np.testing.assert_array_equal(np.sort(np.concatenate([part, *inside])), np.arange(n))


def test_split_of_a_shuffled_file_is_contiguous(tmp_path):
    X, y = small_table(), np.arange(57.0)
    path = write_dense(tmp_path / "data.h5", X, y)
    train, test = ooc_fw.train_test_split(path, 0.3, seed=1)
    assert (train.n_rows, test.n_rows) == (40, 17)
    assert max(len(train.ranges), len(test.ranges)) <= 2
    both = np.concatenate([train.labels(0, 40), test.labels(0, 17)])
    np.testing.assert_array_equal(np.sort(both), y)
    again = ooc_fw.train_test_split(path, 0.3, seed=1)[1]
    np.testing.assert_array_equal(again.ranges, test.ranges)
    train.close()
    np.testing.assert_array_equal(to_dense(test.read(0, 1)), X[test.labels(0, 1).astype(int)])
    test.close()


def test_split_of_rows_in_order_is_random():
    X, y = small_table(), np.arange(57.0)
    with open_source(X, y) as source:
        train, test = ooc_fw.train_test_split(source, 0.5)
        assert len(test.ranges) > 5
        assert not np.isin(test.labels(0, test.n_rows), train.labels(0, train.n_rows)).any()
        test.close()
        train.read(0, 5)


@pytest.mark.parametrize("share", [0, 1, -0.1, 0.001])
def test_a_share_that_leaves_nothing(share):
    with pytest.raises(InputError, match="share"):
        ooc_fw.train_test_split(small_table(), share)
