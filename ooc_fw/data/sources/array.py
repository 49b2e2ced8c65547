"""Rows that the caller holds in RAM: numpy arrays and scipy CSR matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from ooc_fw.data.rows import (
    AnyArray,
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
    """Rows of a dense numpy array of real numbers, shape (n_rows, n_features).

    Slices of a float32 array in C order are returned as views; those of others are rounded.
    """

    in_memory = True

    def __init__(
        self, array: AnyArray, labels: Sliceable | None = None, *, name: str = "array"
    ) -> None:
        check_real(name, array.dtype)
        super().__init__(name, array.shape, labels=labels)
        self._array = array

    def _fetch(self, start: int, stop: int) -> tuple[StoredRows, int]:
        part = self._array[start:stop]
        return part, part.nbytes

    def _take(self, indices: Int64Array) -> tuple[Rows, int]:
        part = self._array[indices]  # scattered access costs nothing extra in RAM
        rows = as_float32(part)
        check_finite(rows, self.name, indices)
        return rows, part.nbytes


class CSRSource(RowSource):
    """Rows of a scipy CSR matrix or array, or of an object with its attributes.

    Unsorted or repeated columns are put in order slice by slice; the matrix is not modified.
    """

    sparse = True
    in_memory = True

    def __init__(
        self, matrix: Any, labels: Sliceable | None = None, *, name: str = "sparse matrix"
    ) -> None:
        check_real(name, matrix.data.dtype)
        check_shape(name, matrix.shape)
        check_width(name, matrix.shape[1])
        self._data: AnyArray = matrix.data
        self._indices: AnyArray = matrix.indices
        self._indptr: AnyArray = matrix.indptr
        decoded_bytes = csr_bytes(int(self._indptr[-1]), matrix.shape[0])
        super().__init__(name, matrix.shape, labels=labels, decoded_bytes=decoded_bytes)

    def _fetch(self, start: int, stop: int) -> tuple[StoredRows, int]:
        indptr = self._indptr[start : stop + 1]
        part = slice(int(indptr[0]), int(indptr[-1]))
        data, indices = self._data[part], self._indices[part]
        rows = canonical_csr(data, indices, indptr, self.n_features, self.name)
        return rows, data.nbytes + indices.nbytes


def csr_bytes(n_stored: int, n_rows: int) -> int:
    """Bytes of `CSRRows` with so many stored values and rows."""
    return 8 * n_stored + 8 * (n_rows + 1)


def check_width(name: str, n_features: int) -> None:
    """Raise InputError when the column numbers of sparse rows would not fit int32."""
    if n_features > np.iinfo(np.int32).max:
        raise InputError(
            f"{name} has {n_features} columns, more than the {np.iinfo(np.int32).max} that sparse "
            f"rows may have; hash the features to fewer columns"
        )
