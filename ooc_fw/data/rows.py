"""Rows in RAM: a dense float32 block, or a block of compressed sparse rows.

This module also has the conversion of rows that are read: to float32, with finite values and
sorted columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ooc_fw.system.errors import InputError

AnyArray: TypeAlias = npt.NDArray[Any]
Float32Array: TypeAlias = npt.NDArray[np.float32]
Codes: TypeAlias = npt.NDArray[np.signedinteger[Any]]  # places of classes; int16 from a file
Float64Array: TypeAlias = npt.NDArray[np.float64]
FloatArray: TypeAlias = npt.NDArray[np.float32] | npt.NDArray[np.float64]
Int8Array: TypeAlias = npt.NDArray[np.int8]
Int32Array: TypeAlias = npt.NDArray[np.int32]
Int64Array: TypeAlias = npt.NDArray[np.int64]

FLOAT32 = np.dtype(np.float32)  # the type of rows that are read


@dataclass(frozen=True, slots=True)
class CSRRows:
    """A block of sparse rows: row ``i`` owns ``data[indptr[i]:indptr[i + 1]]``."""

    data: AnyArray  # stored values: float32, or float64 if they have yet to be scaled
    indices: npt.NDArray[np.int32]  # column of each value, increasing and unique within a row
    indptr: Int64Array  # shape (n_rows + 1,); the first one is 0
    n_features: int

    def __len__(self) -> int:
        return len(self.indptr) - 1

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and of columns."""
        return len(self), self.n_features

    def __getitem__(self, key: slice) -> CSRRows:
        """Contiguous rows ``key.start:key.stop``; the values are views."""
        start, stop, step = key.indices(len(self))
        assert step == 1, "use take_rows"
        indptr = self.indptr[start : max(start, stop) + 1]
        part = slice(indptr[0], indptr[-1])
        return CSRRows(self.data[part], self.indices[part], indptr - indptr[0], self.n_features)

    @classmethod
    def from_dense(cls, rows: FloatArray) -> CSRRows:
        """Compressed copy of a dense block."""
        width = rows.shape[1]
        is_stored = rows != 0
        columns = np.broadcast_to(np.arange(width, dtype=np.int32), rows.shape)
        return cls(rows[is_stored], columns[is_stored], _starts(is_stored.sum(axis=1)), width)

    def toarray(self) -> AnyArray:
        """Dense copy, shape (n_rows, n_features)."""
        dense = np.zeros(self.shape, dtype=self.data.dtype)
        dense[self.row_numbers(), self.indices] = self.data
        return dense

    def row_numbers(self) -> Int64Array:
        """Row of each stored value, shape (n_stored,)."""
        return np.repeat(np.arange(len(self)), np.diff(self.indptr))


Rows: TypeAlias = Float32Array | CSRRows
StoredRows: TypeAlias = AnyArray | CSRRows  # rows as stored: real numbers of any type


def _starts(lengths: AnyArray) -> Int64Array:
    """Row pointers of rows with the given numbers of stored values."""
    indptr = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=indptr[1:])
    return indptr


def rows_bytes(rows: StoredRows) -> int:
    """Bytes of the values of `rows`; for sparse rows also of their column numbers."""
    return rows.data.nbytes + rows.indices.nbytes if isinstance(rows, CSRRows) else rows.nbytes


def take_rows(rows: Rows, indices: AnyArray) -> Rows:
    """Copy of the rows at `indices` (any order, repeats allowed)."""
    if not isinstance(rows, CSRRows):
        return np.ascontiguousarray(rows[indices])
    from ooc_fw._core.rows import copy_rows  # numba is slow to import

    indices = np.asarray(indices, dtype=np.int64)
    indptr = _starts(rows.indptr[indices + 1] - rows.indptr[indices])
    data = np.empty(indptr[-1], rows.data.dtype)
    columns = np.empty(len(data), np.int32)
    copy_rows(rows.data, rows.indices, rows.indptr, indices, data, columns, indptr)
    return CSRRows(data, columns, indptr, rows.n_features)


def take_columns(rows: CSRRows, places: Int64Array) -> CSRRows:
    """Sparse rows with only the columns at `places`, in that order; no place occurs twice."""
    order = np.argsort(places).astype(np.int32)
    found = np.searchsorted(places, rows.indices, sorter=order)
    indices = np.append(order, 0)[found].astype(np.int32)
    is_kept = np.append(places, -1)[indices] == rows.indices
    part = keep_stored(replace(rows, indices=indices), is_kept, len(places))
    return canonical_csr(part.data, part.indices, part.indptr, len(places), "it")


def append_columns(rows: CSRRows, block: FloatArray) -> CSRRows:
    """Append the columns of a dense block to sparse rows."""
    n = block.shape[1]
    width = rows.n_features + n
    columns = np.arange(rows.n_features, width)
    ends = np.repeat(rows.indptr[1:], n)
    data = np.insert(rows.data, ends, block.reshape(-1))
    indices = np.insert(rows.indices, ends, np.tile(columns, len(block)))
    return CSRRows(data, indices, rows.indptr + n * np.arange(len(block) + 1), width)


def keep_stored(rows: CSRRows, is_kept: AnyArray, n_features: int) -> CSRRows:
    """Sparse rows with only the stored values that `is_kept` marks, and a new number of columns."""
    if is_kept.all():
        return replace(rows, n_features=n_features)
    before = np.concatenate([[0], np.cumsum(is_kept)])
    return CSRRows(rows.data[is_kept], rows.indices[is_kept], before[rows.indptr], n_features)


def concat_rows(blocks: Sequence[Rows]) -> Rows:
    """Join blocks of equal width and kind, one below the other."""
    first = blocks[0]
    if len(blocks) == 1:
        return first
    if not isinstance(first, CSRRows):
        return np.concatenate([np.asarray(block) for block in blocks])
    sparse = [block for block in blocks if isinstance(block, CSRRows)]
    return CSRRows(
        np.concatenate([block.data for block in sparse]),
        np.concatenate([block.indices for block in sparse]),
        _starts(np.concatenate([np.diff(block.indptr) for block in sparse])),
        first.n_features,
    )


def narrow_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Type in which a file keeps values of `dtype`: its own if it is narrower than float32."""
    is_narrow = dtype.itemsize < 4 and dtype.kind in "iuf"
    return np.dtype(dtype.type) if is_narrow else FLOAT32  # in the byte order of this machine


def values_of(rows: StoredRows) -> AnyArray:
    """Stored values of dense or sparse rows."""
    return rows.data if isinstance(rows, CSRRows) else rows


def as_float32(block: AnyArray) -> Float32Array:
    """C-contiguous float32 form of `block`, or `block` itself; too large values become infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.ascontiguousarray(block, dtype=np.float32)


def converted(rows: StoredRows, *, exact: bool = False) -> Any:
    """Rows in float32; with `exact`, in float64 if their type has more digits than float32."""
    values = values_of(rows)
    is_wide = exact and not np.can_cast(values.dtype, np.float32)
    values = np.ascontiguousarray(values, np.float64) if is_wide else as_float32(values)
    return replace(rows, data=values) if isinstance(rows, CSRRows) else values


def check_finite(rows: StoredRows, name: str, row_numbers: Sequence[int] | Int64Array) -> None:
    """Raise InputError if a value is not finite; it names the row in the source `name`."""
    finite = np.isfinite(values_of(rows))
    if finite.all():
        return
    bad = int(np.flatnonzero(~finite)[0])
    if isinstance(rows, CSRRows):
        row, column = int(rows.row_numbers()[bad]), int(rows.indices[bad])
    else:
        row, column = divmod(bad, rows.shape[1])
    raise InputError(
        f"{name}: row {int(row_numbers[row])} holds a value in column {column} that is missing, "
        f"infinite or too large for float32; remove the row or replace the value"
    )


def canonical_csr(
    data: AnyArray, indices: AnyArray, indptr: AnyArray, n_features: int, name: str
) -> CSRRows:
    """Sparse rows with columns in increasing order; repeated entries of a cell are added.

    `indptr` may begin at any number.
    """
    if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < n_features:
        raise InputError(
            f"{name} has a column number outside 0 to {n_features - 1}; correct indices or shape"
        )
    starts = indptr.astype(np.int64) - int(indptr[0])
    unsorted = indices[1:] <= indices[:-1]
    inner = starts[1:-1]
    unsorted[inner[(inner > 0) & (inner < len(indices))] - 1] = False  # neighbours in two rows
    if unsorted.any():
        from scipy.sparse import csr_array  # slow to import, and rarely needed

        data = data.astype(np.result_type(data, np.float32))  # scipy cannot add float16
        matrix = csr_array((data, indices, starts), (len(starts) - 1, n_features), copy=True)
        matrix.sum_duplicates()
        data, indices, starts = matrix.data, matrix.indices, matrix.indptr.astype(np.int64)
    return CSRRows(data, np.ascontiguousarray(indices, dtype=np.int32), starts, n_features)


def stored_arrays(rows: Rows) -> tuple[AnyArray, Int32Array, Int64Array]:
    """Values of rows one after the other, columns (only of sparse rows), and starts of rows."""
    if isinstance(rows, CSRRows):
        return rows.data, rows.indices, rows.indptr
    starts = np.arange(len(rows) + 1, dtype=np.int64) * rows.shape[1]
    return rows.reshape(-1), np.empty(0, dtype=np.int32), starts


Groups: TypeAlias = npt.NDArray[np.intp] | slice  # the group of each row in a block


def row_hashes(rows: Rows) -> npt.NDArray[np.uint64]:
    """64-bit hash of the values of each row, shape (n_rows,); dense and sparse hashes differ."""
    from ooc_fw._core.rows import hash_rows  # numba is slow to import

    data, columns, indptr = stored_arrays(rows)
    hashes = np.empty(len(rows), dtype=np.uint64)
    hash_rows(np.ascontiguousarray(data).view(np.uint32), columns, indptr, hashes)
    return hashes


def distinct_rows(rows: Rows) -> tuple[Rows, Groups]:
    """One row of each group of equal rows, and the group of each row; O(stored values + n log n).

    ``values[groups]`` gives values of the groups to all rows. Rows with the same 64-bit hash are
    compared bit by bit, and after a collision no rows are grouped, so the result is exact. If fewer
    than a tenth of the rows repeat, grouping would not pay, and `groups` is a slice of all rows.
    """
    _, first, groups = np.unique(row_hashes(rows), return_index=True, return_inverse=True)
    if len(first) <= 0.9 * len(rows):
        distinct = take_rows(rows, first)
        pairs: Any = zip(
            stored_arrays(take_rows(distinct, groups)), stored_arrays(rows), strict=True
        )
        if all(np.array_equal(one, other) for one, other in pairs):
            return distinct, groups
    return rows, slice(None)


def check_shape(name: str, shape: Sequence[int]) -> None:
    """Raise InputError unless `shape` belongs to a table with rows and columns."""
    if len(shape) != 2:
        raise InputError(f"{name} must be a table of two dimensions, not of {len(shape)}")
    if shape[0] < 1 or shape[1] < 1:
        raise InputError(f"{name} is empty ({shape[0]} rows, {shape[1]} columns); give some")
    if shape[1] >= 1 << 31:  # column numbers of sparse rows are int32
        raise InputError(f"{name} has {shape[1]} columns, 2**31 or more; hash the features")


def check_real(name: str, dtype: np.dtype[Any]) -> None:
    """Raise InputError unless values of `dtype` are real numbers."""
    if dtype.kind not in "biuf":
        raise InputError(
            f"the rows in {name} are of type {dtype}, but must be real numbers; convert them"
        )


def check_pointers(pointers: Int64Array, n_stored: int, place: str) -> None:
    """Raise InputError unless row pointers rise from 0 to the number of stored values."""
    ends = [pointers[:1].tolist(), pointers[-1:].tolist()]
    if ends != [[0], [n_stored]] or (pointers[1:] < pointers[:-1]).any():
        raise InputError(
            f"{place}: row pointers do not rise from 0 to the {n_stored} values stored; rewrite it"
        )
