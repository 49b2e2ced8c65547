"""Blocks of rows in RAM, sparse ones against their dense twins."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw.data.rows import CSRRows, concat_rows, take_rows
from ooc_fw.testing.contracts import small_table, to_dense


def to_sparse(table):
    row_of, columns = np.nonzero(table)
    indptr = np.searchsorted(row_of, np.arange(len(table) + 1)).astype(np.int64)
    data = table[row_of, columns]
    return CSRRows(data, columns.astype(np.int32), indptr, table.shape[1])


both_kinds = pytest.mark.parametrize("kind", [np.asarray, to_sparse])


def test_sparse_shape():
    rows = to_sparse(small_table(9, 4))
    assert rows.shape == (9, 4)
    assert len(rows) == 9
    np.testing.assert_array_equal(rows.toarray(), small_table(9, 4))


@given(n_rows=st.integers(0, 9), start=st.integers(-12, 12), stop=st.integers(-12, 12))
def test_slices(n_rows, start, stop):
    table = small_table(10, 4)[:n_rows]
    part = to_sparse(table)[start:stop]
    np.testing.assert_array_equal(to_dense(part), table[start:stop])


def test_slices_are_views():
    rows = to_sparse(small_table())
    assert np.shares_memory(rows[3:40].data, rows.data)
    assert np.shares_memory(rows[3:40].indices, rows.indices)


def test_slices_with_a_step_are_refused():
    with pytest.raises(ValueError, match="use take_rows"):
        to_sparse(small_table())[::2]


@both_kinds
@given(indices=st.lists(st.integers(0, 56)))
def test_take(kind, indices):
    table = small_table()
    taken = take_rows(kind(table), np.array(indices, dtype=np.int64))
    np.testing.assert_array_equal(to_dense(taken), table[indices])


@both_kinds
@given(lengths=st.lists(st.integers(0, 8), min_size=1, max_size=7))
def test_concat(kind, lengths):
    table = small_table()[: sum(lengths)]
    ends = np.cumsum([0, *lengths])
    blocks = [kind(table[a:b]) for a, b in pairwise(ends)]
    np.testing.assert_array_equal(to_dense(concat_rows(blocks)), table)


def test_concat_of_one_block_is_that_block():
    rows = to_sparse(small_table())
    assert concat_rows([rows]) is rows
