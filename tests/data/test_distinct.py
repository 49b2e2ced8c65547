"""Groups of equal rows, dense and sparse."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw.data.rows import distinct_rows, row_hashes
from tests.support.reference import to_csr
from tests.support.strategies import SEEDS

FORMS = pytest.mark.parametrize("form", [np.asarray, to_csr])


@FORMS
@given(n=st.integers(1, 60), few=st.integers(1, 12), width=st.integers(1, 4), seed=SEEDS)
def test_groups_of_the_distinct_rows_give_the_block_back(form, n, few, width, seed):
    rng = np.random.default_rng(seed)
    X = rng.integers(-1, 2, (few, width))[rng.integers(0, few, n)].astype(np.float32)
    distinct, groups = distinct_rows(form(X))
    values = distinct if form is np.asarray else distinct.toarray()
    np.testing.assert_array_equal(values[groups], X)
    different = len(np.unique(X, axis=0))
    assert len(distinct) == (different if different <= 0.9 * n else n)


@FORMS
def test_a_collision_of_hashes_groups_nothing(form, monkeypatch):
    monkeypatch.setattr("ooc_fw._core.rows.hash_rows", lambda *arguments: arguments[-1].fill(0))
    rows = form(np.arange(8, dtype=np.float32).reshape(4, 2))
    distinct, groups = distinct_rows(rows)
    assert distinct is rows
    assert groups == slice(None)


def test_hash_tells_columns_apart():
    first, second = row_hashes(to_csr(np.eye(2, dtype=np.float32)))
    assert first != second
