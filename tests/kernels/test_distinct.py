from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ooc_fw.kernels.distinct
from ooc_fw._core.rows import hash_rows
from ooc_fw.data.rows import CSRRows
from ooc_fw.kernels.distinct import distinct_rows
from ooc_fw.testing.reference import to_csr
from ooc_fw.testing.strategies import SEEDS


def dense(rows):
    return rows.toarray() if isinstance(rows, CSRRows) else rows


@st.composite
def repeated(draw):
    """Rows drawn with repeats from a few, some of them nearly equal, some with zeros."""
    rng = np.random.default_rng(draw(SEEDS))
    few = rng.integers(-1, 2, (draw(st.integers(1, 12)), draw(st.integers(1, 4))))
    rows = few[rng.integers(0, len(few), draw(st.integers(1, 60)))].astype(np.float32)
    return rows


@given(repeated(), st.booleans())
def test_spreading_the_distinct_rows_gives_the_block_back(X, sparse):
    rows = to_csr(X) if sparse else X
    distinct = distinct_rows(rows)
    marks = np.arange(len(distinct.rows), dtype=np.float64)
    groups = distinct.spread(marks).astype(int)
    np.testing.assert_array_equal(dense(distinct.rows)[groups], X)


def test_each_row_comes_once():
    X = np.repeat(np.eye(4, dtype=np.float32), 5, axis=0)
    assert len(distinct_rows(X).rows) == len(distinct_rows(to_csr(X)).rows) == 4


def test_few_repeats_are_left_alone():
    X = np.arange(40, dtype=np.float32).reshape(20, 2)
    X[1] = X[0]
    distinct = distinct_rows(X)
    assert distinct.rows is X
    assert distinct.inverse is None


@pytest.mark.parametrize("form", [np.asarray, to_csr])
def test_a_collision_of_hashes_groups_nothing(form, monkeypatch):
    module = ooc_fw.kernels.distinct
    monkeypatch.setattr(module, "hash_rows", lambda *arguments: arguments[-1].fill(0))
    X = np.arange(8, dtype=np.float32).reshape(4, 2)
    assert distinct_rows(form(X)).inverse is None


def test_hash_tells_columns_apart():
    hashes = np.empty(2, dtype=np.uint64)
    bits = np.ones(2, dtype=np.uint32)
    hash_rows(bits, np.array([0, 1], dtype=np.int32), np.array([0, 1, 2]), hashes)
    assert hashes[0] != hashes[1]
