"""Blocks of rows in RAM, sparse ones against their dense twins, and the groups they are read in."""

from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ooc_fw.data.rows import CSRRows, canonical_csr, concat_rows, distinct_rows, take_rows
from tests.support.contracts import small_table, to_dense
from tests.support.reference import to_csr
from tests.support.strategies import SEEDS

VALUES = [0.0, -0.0, 1.5, -2.0, float("inf"), float("nan")]


@pytest.mark.parametrize("kind", [np.asarray, CSRRows.from_dense])
@given(
    start=st.integers(-60, 60),
    stop=st.integers(-60, 60),
    indices=st.lists(st.integers(0, 56)),
    lengths=st.lists(st.integers(0, 8), min_size=1, max_size=7),
)
def test_slices_choices_and_unions_are_those_of_dense_rows(kind, start, stop, indices, lengths):
    table = small_table()
    rows = kind(table)
    np.testing.assert_array_equal(to_dense(rows[start:stop]), table[start:stop])
    taken = take_rows(rows, np.array(indices, dtype=np.int64))
    np.testing.assert_array_equal(to_dense(taken), table[indices])
    blocks = [rows[a:b] for a, b in pairwise(np.cumsum([0, *lengths]))]
    np.testing.assert_array_equal(to_dense(concat_rows(blocks)), table[: sum(lengths)])


@given(data=st.data(), n_rows=st.integers(0, 6), origin=st.integers(0, 9))
def test_canonical_csr_equals_adding_up(data, n_rows, origin):
    lengths = data.draw(st.lists(st.integers(0, 5), min_size=n_rows, max_size=n_rows))
    total = sum(lengths)
    columns = data.draw(st.lists(st.integers(0, 3), min_size=total, max_size=total))
    indptr = np.cumsum([origin, *lengths]).astype(np.int32)
    values = np.arange(1, total + 1, dtype=np.float32)
    rows = canonical_csr(values, np.array(columns, dtype=np.int64), indptr, 4, "x")
    expected = np.zeros((n_rows, 4), dtype=np.float32)
    np.add.at(expected, (np.repeat(np.arange(n_rows), lengths), columns), values)
    np.testing.assert_array_equal(to_dense(rows), expected)
    again = canonical_csr(rows.data, rows.indices, rows.indptr, 4, "x")
    assert again.data is rows.data  # rows in order are not copied


@pytest.mark.parametrize("form", [np.asarray, to_csr])
@given(n=st.integers(1, 60), few=st.integers(1, 12), width=st.integers(1, 4), seed=SEEDS)
def test_groups_of_the_distinct_rows_give_the_block_back(form, n, few, width, seed):
    rng = np.random.default_rng(seed)
    X = rng.integers(-1, 2, (few, width))[rng.integers(0, few, n)].astype(np.float32)
    distinct, groups = distinct_rows(form(X))
    np.testing.assert_array_equal(to_dense(distinct)[groups], X)
    different = len(np.unique(X, axis=0))
    assert len(distinct) == (different if different <= 0.9 * n else n)


@given(
    arrays(
        np.float32,
        st.tuples(st.integers(0, 5), st.integers(1, 6)),
        elements=st.sampled_from(VALUES),
    )
)
def test_sparse_copies_of_dense_rows_hold_what_is_not_zero(dense):
    for rows in (dense, dense.astype(np.float64), np.asfortranarray(dense), dense[::2]):
        sparse, expected = CSRRows.from_dense(rows), scipy.sparse.csr_array(rows)
        for name in ("data", "indices", "indptr"):
            np.testing.assert_array_equal(getattr(sparse, name), getattr(expected, name))
        np.testing.assert_array_equal(sparse.toarray(), rows)
