"""Rows in RAM: numpy arrays and scipy CSR matrices."""

import numpy as np
import pytest
import scipy.sparse

from ooc_fw.data.sources import CSRSource, open_source
from ooc_fw.system.errors import InputError
from ooc_fw.testing.contracts import small_table, to_dense


def test_float32_rows_are_views():
    X = small_table()
    assert np.shares_memory(open_source(X).read(3, 9), X)


def test_columns_in_any_order_are_put_in_order_and_the_matrix_is_left_alone():
    parts = np.array([4.0, 2, 2, 3]), np.array([3, 0, 0, 2]), np.array([0, 3, 4])
    matrix = scipy.sparse.csr_matrix(parts, (2, 4))
    rows = CSRSource(matrix).read(0, 2)
    assert rows.toarray().tolist() == [[4, 0, 0, 4], [0, 0, 3, 0]]
    assert matrix.data.tolist() == [4, 2, 2, 3]
    assert matrix.indices.tolist() == [3, 0, 0, 2]


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.uint16, bool, np.float16])
def test_other_numbers_become_float32(dtype):
    table = (small_table() > 0).astype(dtype)
    rows = open_source(table).read(2, 9)
    assert rows.dtype == np.float32
    np.testing.assert_array_equal(rows, table[2:9])


def test_float64_is_rounded_to_the_nearest_float32():
    source = open_source(np.array([[1 + 0.75 * 2.0**-23], [1e300]]))
    assert source.read(0, 1)[0, 0] == np.float32(1 + 2.0**-23)
    with pytest.raises(InputError, match=r"array: row 1 holds a value in column 0 .* too large"):
        source.read(0, 2)


def test_empty_sparse_rows():
    source = open_source(scipy.sparse.csr_array((4, 3)))
    assert not to_dense(source.read(0, 4)).any()
    assert not to_dense(source.take(np.array([0, 3]))).any()


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros(3), "two dimensions, not of 1"),
        (np.zeros((0, 3)), r"array is empty \(0 rows, 3 columns\)"),
        (np.zeros((3, 0)), r"array is empty \(3 rows, 0 columns\)"),
        (np.zeros((2, 2), complex), "type complex128, but must be real numbers"),
        (np.array([["a"]]), "must be real numbers"),
        ([[1, 2], [3]], "the array cannot be made an array"),
    ],
)
def test_unusable_arrays(array, message):
    with pytest.raises(InputError, match=message):
        open_source(array)


def test_sparse_rows_cannot_be_too_wide():
    with pytest.raises(InputError, match="has 3000000000 columns, more than the 2147483647"):
        open_source(scipy.sparse.csr_array((1, 3_000_000_000)))


def test_a_column_outside_the_matrix_is_refused():
    matrix = scipy.sparse.csr_matrix(np.eye(3))
    matrix.indices = np.array([0, 7, 2])
    with pytest.raises(InputError, match="column number outside 0 to 2"):
        CSRSource(matrix).read(0, 3)
