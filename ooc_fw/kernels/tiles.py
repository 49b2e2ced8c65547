"""Products of rows with one tile of vertices after the other, in the workspace of a thread.

Which product serves depends on the storage of the rows and on the `Method`: BLAS for dense rows
(:mod:`ooc_fw.kernels.products`), the compiled loops of :mod:`ooc_fw._core.products` otherwise.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ooc_fw._core.products import (
    clear_columns,
    difference_tile,
    distance_tile,
    dot_tile,
    scatter_columns,
    sparse_difference_tile,
)
from ooc_fw.data.rows import CSRRows, Float64Array, Int32Array, Int64Array, Rows, take_rows
from ooc_fw.kernels.arithmetic import AnyFloat, Method, centred
from ooc_fw.kernels.products import DenseProduct

TILE = 512
"""Vertices in a tile, and rows for that many: 1 MiB of products fits the second-level cache."""

_SCRATCH_BYTES = 1 << 20  # of the dense scratch that holds a tile of vertices as columns
_LEAST_WIDTH = 16  # vertices of such a tile, however many features there are


@dataclass(frozen=True, slots=True)
class Operand:
    """Rows prepared for products.

    Parameters
    ----------
    values : Rows
        The rows; sparse where few values are nonzero. They are centred where the engine centres and
        takes float32 products. Float64 products centre tile by tile; differences need no centre.
    norms : ndarray of float64, shape (n,)
        `Kernel.norms` of `values`.
    terms : ndarray of float32 or float64, shape (n,)
        `Kernel.map_terms` of `norms`, in the precision of `method`.
    method : Method
        How products and kernel values of these rows are computed.
    """

    values: Rows
    norms: Float64Array
    terms: AnyFloat
    method: Method

    def __len__(self) -> int:
        return len(self.norms)

    def __getitem__(self, key: slice) -> Operand:
        return Operand(self.values[key], self.norms[key], self.terms[key], self.method)

    def take(self, places: Int64Array) -> Operand:
        """Rows by number."""
        values = take_rows(self.values, places)
        return Operand(values, self.norms[places], self.terms[places], self.method)

    def n_terms(self) -> Int64Array:
        """Number of stored values of each row, shape (n,)."""
        if isinstance(self.values, CSRRows):
            return np.diff(self.values.indptr)
        return np.full(len(self), self.values.shape[1])


class Product(Protocol):
    """Products of rows with one tile of at most `width` vertices."""

    width: int

    def load(self, z: Operand) -> None:
        """Make `z` the tile of vertices."""

    def tile_shape(self, n: int, m: int) -> tuple[int, int]:
        """Shape of the tile that `into` needs for `n` rows and `m` vertices."""

    def into(self, x: Operand, tile: AnyFloat) -> None:
        """Write the products of `x` with the loaded vertices into the leading corner of `tile`."""

    def unload(self) -> None:
        """Forget the tile of vertices; harmless when there is none."""


class _Unpadded:
    """Products that need no more room than there are numbers."""

    def tile_shape(self, n: int, m: int) -> tuple[int, int]:
        return n, m

    def unload(self) -> None:
        pass


class _BlasProduct:
    """Dot products of dense rows, minus `center` where there is one."""

    width = TILE

    def __init__(self, dtype: type, n_features: int, center: AnyFloat | None) -> None:
        self._product = DenseProduct(dtype, n_features)
        self._dtype = dtype
        self._center = center
        self.tile_shape = self._product.tile_shape
        self.unload = self._product.unload

    def load(self, z: Operand) -> None:
        self._product.load(centred(z.values, self._dtype, self._center))

    def into(self, x: Operand, tile: AnyFloat) -> None:
        self._product.into(centred(x.values, self._dtype, self._center), tile)


class _DifferenceProduct(_Unpadded):
    """Squared or L1 distances of dense rows, as sums of differences."""

    def __init__(self, dtype: type, n_features: int, squared: bool) -> None:
        self._squared = squared
        self._n_features = -(-n_features // 4) * 4  # a multiple of 4, as the compiled loop needs
        self.width = _fitting_width(dtype, n_features)
        self._columns: AnyFloat = np.zeros((self._n_features, self.width), dtype=dtype)

    def load(self, z: Operand) -> None:
        values = np.asarray(z.values)
        self._columns[: values.shape[1], : len(z)] = values.T

    def into(self, x: Operand, tile: AnyFloat) -> None:
        rows = np.asarray(x.values)
        if rows.shape[1] < self._n_features or rows.dtype != tile.dtype:
            padded: AnyFloat = np.zeros((len(rows), self._n_features), dtype=tile.dtype)
            padded[:, : rows.shape[1]] = rows
            rows = padded
        difference_tile(np.ascontiguousarray(rows), self._columns, self._squared, tile)


class _SparseDifferenceProduct(_Unpadded):
    """Squared or L1 distances of sparse rows in float64, as sums of differences."""

    width = TILE

    def __init__(self, squared: bool) -> None:
        self._squared = squared

    def load(self, z: Operand) -> None:
        self._vertices = _stored(z)

    def into(self, x: Operand, tile: AnyFloat) -> None:
        sparse_difference_tile(*_stored(x), *self._vertices, self._squared, tile)


class _SparseProduct(_Unpadded):
    """Dot products or L1 distances of sparse rows, with the vertices scattered into columns.

    The scratch has a line for each feature that a vertex of the tile has a value of, and `places`
    says which: the size of the scratch follows the rows and not the number of features.
    """

    def __init__(self, dtype: type, uses_distance: bool, places: Int32Array) -> None:
        self.width = _fitting_width(dtype, len(places))
        self._places = places
        self._columns: AnyFloat = np.zeros((1, self.width), dtype=dtype)
        self._uses_distance = uses_distance
        self._z: Operand | None = None

    def load(self, z: Operand) -> None:
        data, indices, indptr = _stored(z)
        lines = 1 + min(len(self._places), len(indices))
        if len(self._columns) < lines:
            self._columns = np.zeros((lines, self.width), dtype=self._columns.dtype)
        self._z = z
        scatter_columns(data, indices, indptr, self._places, self._columns)

    def into(self, x: Operand, tile: AnyFloat) -> None:
        assert self._z is not None
        if self._uses_distance:
            x_norms, z_norms = x.norms.astype(tile.dtype), self._z.norms.astype(tile.dtype)
            distance_tile(*_stored(x), x_norms, self._places, self._columns, z_norms, tile)
        else:
            dot_tile(*_stored(x), self._places, self._columns, tile)

    def unload(self) -> None:
        if self._z is not None:
            _, indices, indptr = _stored(self._z)
            clear_columns(indices, indptr, self._places, self._columns)
            self._z = None


def _stored(x: Operand) -> tuple[AnyFloat, Int32Array, Int64Array]:
    """The arrays of sparse rows."""
    assert isinstance(x.values, CSRRows)
    return x.values.data, x.values.indices, x.values.indptr


def _fitting_width(dtype: type, n_features: int) -> int:
    """Vertices whose columns fit the scratch."""
    fitting = _SCRATCH_BYTES // (np.dtype(dtype).itemsize * n_features)
    return min(TILE, max(_LEAST_WIDTH, fitting))


class Workspace(threading.local):
    """Products and tile buffer of one thread, kept from call to call.

    Parameters
    ----------
    uses_distance : bool
        Whether products are L1 distances.
    center : ndarray of float32, shape (n_features,), or None
        Subtracted from dense rows by products in float64.
    """

    def __init__(self, uses_distance: bool, center: AnyFloat | None) -> None:
        self._uses_distance = uses_distance
        self._center = center
        self._products: dict[tuple[bool, Method, int], Product] = {}
        self._places: dict[int, Int32Array] = {}  # all zeros between loads, hence shared
        self._tile = np.empty(0, dtype=np.uint8)

    def tile(self, shape: tuple[int, int], dtype: type) -> AnyFloat:
        """Uninitialised tile of the shape that a product asks for, padding included."""
        n, m = shape
        n_bytes = n * m * np.dtype(dtype).itemsize
        if n_bytes > len(self._tile):
            # Two tiles of float64 have room for most padding and are not touched before use.
            self._tile = np.empty(max(n_bytes, 8 * 2 * TILE * TILE), dtype=np.uint8)
        return self._tile[:n_bytes].view(dtype).reshape(n, m)

    def product(self, x: Operand) -> Product:
        """The product for rows like `x`."""
        key = isinstance(x.values, CSRRows), x.method, x.values.shape[1]
        if key not in self._products:
            self._products[key] = self._new_product(*key)
        return self._products[key]

    def _new_product(self, sparse: bool, method: Method, n_features: int) -> Product:
        if method.differences:
            squared = not self._uses_distance
            if sparse:
                return _SparseDifferenceProduct(squared)
            return _DifferenceProduct(method.dtype, n_features, squared)
        if sparse:
            places = self._places.setdefault(n_features, np.zeros(n_features, dtype=np.int32))
            return _SparseProduct(method.dtype, self._uses_distance, places)
        center = self._center if method.dtype is np.float64 else None
        return _BlasProduct(method.dtype, n_features, center)
