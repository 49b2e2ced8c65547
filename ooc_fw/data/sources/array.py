"""The two kinds of sources that read storage: dense rows of one array, sparse rows of three.

Anything that can be sliced is such an array: in RAM, in a flat file, in HDF5, in chunks to decode.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ooc_fw.data.rows import (
    Int64Array,
    Rows,
    StoredRows,
    as_float32,
    canonical_csr,
    check_finite,
)
from ooc_fw.data.sources.base import RowSource, Sliceable, check_real, check_shape
from ooc_fw.system.errors import InputError


class ArraySource(RowSource):
    """Dense rows of an array of real numbers, shape (n_rows, n_features).

    Slices of a float32 numpy array in C order are returned as views; those of others are rounded.
    """

    def __init__(
        self,
        array: Any,
        labels: Sliceable | None = None,
        *,
        name: str = "array",
        chunk_rows: int | None = None,
    ) -> None:
        check_real(name, array.dtype)
        super().__init__(name, array.shape, labels=labels, chunk_rows=chunk_rows)
        self.in_memory = isinstance(array, np.ndarray)
        self._array = array

    def _fetch(self, start: int, stop: int) -> StoredRows:
        block = self._array[start:stop]
        self._count(0, block.nbytes)
        return block  # type: ignore[no-any-return]

    def _take(self, indices: Int64Array) -> Rows:
        if not self.in_memory:
            return super()._take(indices)
        block = self._array[indices]  # scattered access costs nothing extra in RAM
        self._count(0, block.nbytes)
        rows = as_float32(block)
        check_finite(rows, self.name, indices)
        return rows


class CSRSource(RowSource):
    """Sparse rows of a scipy CSR matrix or array, or of an object with its four attributes.

    Unsorted or repeated columns are put in order slice by slice; the matrix is not modified.
    """

    sparse = True

    def __init__(
        self,
        matrix: Any,
        labels: Sliceable | None = None,
        *,
        name: str = "sparse matrix",
        chunk_rows: int | None = None,
    ) -> None:
        check_real(name, matrix.data.dtype)
        check_shape(name, matrix.shape)
        check_width(name, matrix.shape[1])
        n_rows, n_stored = matrix.shape[0], int(matrix.indptr[-1])
        super().__init__(
            name,
            matrix.shape,
            labels=labels,
            chunk_rows=chunk_rows,
            decoded_bytes=8 * n_stored + 8 * (n_rows + 1),
        )
        self.in_memory = isinstance(matrix.data, np.ndarray)
        self._data, self._indices, self._indptr = matrix.data, matrix.indices, matrix.indptr

    def _fetch(self, start: int, stop: int) -> StoredRows:
        indptr = self._indptr[start : stop + 1]
        part = slice(int(indptr[0]), int(indptr[-1]))
        data, indices = self._data[part], self._indices[part]
        self._count(0, data.nbytes + indices.nbytes)
        return canonical_csr(data, indices, indptr, self.n_features, self.name)


def check_width(name: str, n_features: int) -> None:
    """Raise InputError when the column numbers of sparse rows would not fit int32."""
    if n_features > np.iinfo(np.int32).max:
        raise InputError(
            f"{name} has {n_features} columns, more than the {np.iinfo(np.int32).max} that sparse "
            f"rows may have; hash the features to fewer columns"
        )
