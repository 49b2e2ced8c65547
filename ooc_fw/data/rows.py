"""Rows in RAM: a dense float32 block or a compressed sparse row block.

Owns the two shapes in which rows travel between disk, kernels and the active set. Knows nothing of
files, kernels or weights, so every layer may use it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ooc_fw._core.types import Float32Array as Float32Array
from ooc_fw._core.types import Float64Array as Float64Array
from ooc_fw._core.types import FloatArray as FloatArray
from ooc_fw._core.types import Int8Array as Int8Array
from ooc_fw._core.types import Int32Array as Int32Array
from ooc_fw._core.types import Int64Array as Int64Array


@dataclass(frozen=True, slots=True)
class CSRRows:
    """A block of sparse rows.

    Parameters
    ----------
    data : ndarray of float32, shape (n_stored,)
        Stored values, row after row; float64 where they are still to be scaled.
    indices : ndarray of int32, shape (n_stored,)
        Column of each stored value, increasing and unique within a row.
    indptr : ndarray of int64, shape (n_rows + 1,)
        Row ``i`` owns ``data[indptr[i]:indptr[i + 1]]``; ``indptr[0]`` is 0.
    n_features : int
        Number of columns.
    """

    data: npt.NDArray[Any]
    indices: npt.NDArray[np.int32]
    indptr: Int64Array
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
        if step != 1:
            raise ValueError("rows are sliced with step 1 only; use take_rows")
        stop = max(start, stop)
        first, last = self.indptr[start], self.indptr[stop]
        return CSRRows(
            self.data[first:last],
            self.indices[first:last],
            self.indptr[start : stop + 1] - first,
            self.n_features,
        )

    @classmethod
    def from_dense(cls, rows: FloatArray) -> CSRRows:
        """Compressed copy of a dense block."""
        where = np.flatnonzero(rows)
        row, col = np.divmod(where, rows.shape[1])
        indptr = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum(np.bincount(row, minlength=len(rows)), out=indptr[1:])
        return cls(rows.reshape(-1)[where], col.astype(np.int32), indptr, rows.shape[1])

    def toarray(self) -> npt.NDArray[Any]:
        """Dense copy, shape (n_rows, n_features)."""
        dense = np.zeros(self.shape, dtype=self.data.dtype)
        dense[np.repeat(np.arange(len(self)), np.diff(self.indptr)), self.indices] = self.data
        return dense


Rows: TypeAlias = Float32Array | CSRRows
StoredRows: TypeAlias = npt.NDArray[Any] | CSRRows
"""Rows of real numbers of any type."""


def rows_bytes(rows: Rows) -> int:
    """Bytes of the values of `rows`, and of their columns where those are stored."""
    return rows.data.nbytes + rows.indices.nbytes if isinstance(rows, CSRRows) else rows.nbytes


def take_rows(rows: Rows, indices: npt.NDArray[Any]) -> Rows:
    """Copy of the rows at `indices` (any order, repeats allowed)."""
    if not isinstance(rows, CSRRows):
        return np.ascontiguousarray(rows[indices])
    indices = np.asarray(indices, dtype=np.int64)
    lengths = rows.indptr[indices + 1] - rows.indptr[indices]
    indptr = np.zeros(len(indices) + 1, dtype=np.int64)
    np.cumsum(lengths, out=indptr[1:])
    from ooc_fw._core.compressed import copy_rows  # numba, for those who have such rows

    data, columns = np.empty(indptr[-1], rows.data.dtype), np.empty(indptr[-1], np.int32)
    copy_rows(rows.data, rows.indices, rows.indptr, indices, data, columns, indptr)
    return CSRRows(data, columns, indptr, rows.n_features)


def concat_rows(blocks: Sequence[Rows]) -> Rows:
    """Blocks of equal width and kind, one below the other."""
    first = blocks[0]
    if len(blocks) == 1:
        return first
    if not isinstance(first, CSRRows):
        return np.concatenate([np.asarray(block) for block in blocks])
    sparse = [block for block in blocks if isinstance(block, CSRRows)]
    ends = np.cumsum([0] + [len(block.data) for block in sparse])
    indptr = [block.indptr[1:] + end for block, end in zip(sparse, ends[:-1], strict=True)]
    return CSRRows(
        np.concatenate([block.data for block in sparse]),
        np.concatenate([block.indices for block in sparse]),
        np.concatenate([np.zeros(1, dtype=np.int64), *indptr]),
        first.n_features,
    )
