"""Scalings on dense and sparse rows, against the formula, and in files."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ooc_fw.data.rows import CSRRows
from ooc_fw.data.scaling import Scaling

SCALED = Scaling("minmax", False, np.array([0.0, 1.0, 0.0]), np.array([2.0, 0.5, 0.0]))
STAYS_SPARSE = Scaling("maxabs", True, np.zeros(3), np.array([2.0, 0.5, 0.0]))
ALL = [Scaling(), Scaling("none", True), SCALED, STAYS_SPARSE]
ALL += [replace(each, normalize=True) for each in ALL]


def naive(scaling, dense):
    values = dense.astype(np.float64)
    if scaling.log1p:
        values = np.log1p(values)
    if scaling.offset is not None:
        values = (values - scaling.offset) * scaling.factor
    if scaling.normalize:
        norms = np.sqrt(np.cumsum(values**2, axis=1)[:, -1:])  # added one by one
        values = values / np.where(norms == 0, 1, norms)
    return values.astype(np.float32)


@pytest.mark.parametrize("scaling", ALL)
@given(
    dense=arrays(
        np.float32, st.tuples(st.integers(0, 5), st.integers(1, 6)), elements=st.integers(0, 9)
    )
)
def test_dense_and_sparse_rows_equal_the_formula(scaling, dense):
    """Columns beyond those of the scaling are dropped, and missing ones are raw zeros."""
    fitted = np.zeros((len(dense), 3), np.float32)
    fitted[:, : dense.shape[1]] = dense[:, :3]
    before = dense.copy()
    for rows in (dense, CSRRows.from_dense(dense)):
        applied = scaling.apply(rows, 3)
        applied = applied.toarray() if isinstance(applied, CSRRows) else applied
        assert applied.dtype == np.float32
        np.testing.assert_array_equal(applied, naive(scaling, fitted))
    np.testing.assert_array_equal(dense, before)
    assert isinstance(scaling.apply(CSRRows.from_dense(dense), 3), np.ndarray) == scaling.moves_zero


def test_last_bits_make_no_other_scaling():
    one = Scaling("standard", False, np.array([1.6e15, 3.0]), np.array([0.03, 2.0]))
    up = [np.nextafter(numbers, np.inf) for numbers in (one.offset, one.factor)]
    assert one.same_as(Scaling("standard", False, *up))
    assert not one.same_as(Scaling("standard", False, one.offset, one.factor * (1 + 1e-7)))
    assert not one.same_as(Scaling("standard", False, one.offset + [0, 1e-7], one.factor))
