"""Products of rows with one tile of vertices after the other, in the workspace of a thread.

The storage of the rows and the `Method` decide on the product: BLAS for dense rows, the compiled
loops of :mod:`ooc_fw._core.products` for all others. Bounds on errors hold for any order of
summation, so that a block may be cut into any tiles.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from ooc_fw._core import products as compiled
from ooc_fw.data.rows import AnyArray, CSRRows, Int32Array, stored_arrays
from ooc_fw.kernels.arithmetic import Operand, centred
from ooc_fw.kernels.functions import Kernel, Method

TILE = 512  # vertices and rows in the largest tile, whose products fit the second-level cache
_STEP = 16  # widths of tiles of sparse vertices are multiples of this
_CACHE_LINE = 64  # bytes, as many as the widest vectors have

_COPY_BYTES = 4 << 20  # most bytes of dense rows, or of vertices, that a thread copies at once
_LOADED_BYTES = 8 << 20  # vertices stay loaded between strips if they take no more as dense rows


class _Product(ABC):
    """Products of rows with one tile of vertices."""

    def width(self, z: Operand) -> int:
        """The largest number of vertices like `z` in a tile."""
        return TILE

    @abstractmethod
    def load(self, z: Operand) -> None:
        """Make `z` the tile of vertices."""

    @abstractmethod
    def into(self, x: Operand, tile: AnyArray) -> None:
        """Write the products of `x` with the loaded vertices into `tile`."""

    def unload(self) -> None:  # noqa: B027  # most have nothing to do
        """Forget the tile of vertices, if there is one."""

    @contextmanager
    def loaded(self, z: Operand) -> Iterator[None]:
        """Load `z` for a block of code, and unload it afterwards, even after an interrupt."""
        try:
            self.load(z)
            yield
        finally:
            self.unload()


class _DenseProduct(_Product):
    """Dot products of dense rows by BLAS; a `center` is subtracted from the rows."""

    def __init__(self, dtype: type, center: AnyArray | None) -> None:
        self._dtype, self._center = dtype, center
        self._vertices: AnyArray = np.empty((0, 0), dtype=dtype)

    def width(self, z: Operand) -> int:
        return min(TILE, _most_copied(self._dtype, z.values.shape[1]))

    def load(self, z: Operand) -> None:
        self._vertices = centred(z.values, self._dtype, self._center)

    def into(self, x: Operand, tile: AnyArray) -> None:
        # All values are finite. BLAS may compute on unused lanes of vectors, and raise flags there.
        with np.errstate(invalid="ignore"):
            for part, rows in _copies(x, self._dtype, self._center):
                np.matmul(rows, self._vertices.T, out=tile[part])


class _ColumnProduct(_Product):
    """Squared or L1 distances of dense rows from differences, or sums of minima."""

    def __init__(
        self, method: Method, n_features: int, squared: bool, center: AnyArray | None
    ) -> None:
        self._differences, self._squared, self._center = method.differences, squared, center
        dtype = method.dtype
        self._one = dtype(1)
        self._n_features = -(-n_features // 4) * 4  # a multiple of 4, as the compiled loop needs
        self._width = min(_fitting_width(dtype, n_features), _most_copied(dtype, n_features))
        # Lines whose length is a power of two would compete for the same places in the cache.
        shape = self._n_features, self._width + _STEP * (self._width >= _STEP)
        self._columns = _aligned(shape[0] * shape[1], dtype).reshape(shape)

    def width(self, z: Operand) -> int:
        return self._width

    def load(self, z: Operand) -> None:
        values = centred(z.values, type(self._one), self._center)
        self._columns[: values.shape[1], : len(z)] = values.T

    def into(self, x: Operand, tile: AnyArray) -> None:
        for part, rows in _copies(x, type(self._one), self._center):
            if rows.shape[1] < self._n_features:
                padded: AnyArray = np.zeros((len(rows), self._n_features), dtype=tile.dtype)
                padded[:, : rows.shape[1]] = rows
                rows = padded
            rows = np.ascontiguousarray(rows)
            if self._differences:
                compiled.difference_tile(rows, self._columns, self._squared, tile[part])
            else:
                compiled.minimum_tile(rows, self._columns, self._one, tile[part])


class _SparseProduct(_Product):
    """Dot products or L1 distances of sparse rows, with the vertices scattered into columns.

    The scratch has a line for each feature that occurs in the tile of vertices, and `_places` gives
    the line. Therefore its size depends on the vertices, and not on the number of features.
    """

    def __init__(self, dtype: type, uses_distance: bool, places: Int32Array) -> None:
        self._places = places
        self._scratch: AnyArray = np.zeros(0, dtype=dtype)  # all zeros between loads
        self._columns = self._scratch.reshape(1, 0)
        self._uses_distance = uses_distance
        self._z: Operand | None = None

    def width(self, z: Operand) -> int:
        """As many vertices as fit even if no two of them share a feature."""
        mean = max(1.0, len(stored_arrays(z.values)[1]) / max(1, len(z)))
        dtype = self._scratch.dtype
        # 4 MiB; vertices that share features have 1 MiB
        side = int(np.sqrt((4 << 20) / (dtype.itemsize * mean))) // _STEP * _STEP
        return min(TILE, max(side, _fitting_width(dtype, len(self._places))))

    def load(self, z: Operand) -> None:
        data, indices, indptr = stored_arrays(z.values)
        shape = 1 + min(len(self._places), len(indices)), -(-len(z) // _STEP) * _STEP
        if len(self._scratch) < shape[0] * shape[1]:
            self._scratch = np.zeros(shape[0] * shape[1], dtype=self._scratch.dtype)
        self._columns = self._scratch[: shape[0] * shape[1]].reshape(shape)
        self._z = z
        compiled.scatter_columns(data, indices, indptr, self._places, self._columns)

    def into(self, x: Operand, tile: AnyArray) -> None:
        rows = stored_arrays(x.values)
        if self._uses_distance:
            compiled.overlap_tile(rows, self._places, self._columns, tile)
        else:
            data, _, indptr = rows
            size = int(np.diff(indptr).max(initial=0)) + 3
            scratch = np.empty(size, data.dtype), np.empty(size, self._places.dtype)
            compiled.dot_tile(rows, self._places, self._columns, scratch, tile)

    def unload(self) -> None:
        if self._z is not None:
            _, indices, indptr = stored_arrays(self._z.values)
            compiled.clear_columns(indices, indptr, self._places, self._columns)
            self._z = None


def _aligned(size: int, dtype: DTypeLike) -> AnyArray:
    """Zeros that begin with a cache line: wide vectors that cross two lines take twice as long."""
    n_bytes = size * np.dtype(dtype).itemsize
    memory: AnyArray = np.zeros(n_bytes + _CACHE_LINE, dtype=np.uint8)
    start = -memory.ctypes.data % _CACHE_LINE
    return memory[start : start + n_bytes].view(dtype)


def _most_copied(dtype: DTypeLike, n_features: int) -> int:
    """Number of dense rows whose copies take `_COPY_BYTES`, but at least 1."""
    return max(1, _COPY_BYTES // (np.dtype(dtype).itemsize * n_features))


def _copies(x: Operand, dtype: type, center: AnyArray | None) -> Iterator[tuple[slice, AnyArray]]:
    """Yield slices of dense rows, with copies of the rows for products."""
    most = _most_copied(dtype, x.values.shape[1])
    for start in range(0, len(x), most):
        part = slice(start, start + most)
        yield part, centred(x.values[part], dtype, center)


def _fitting_width(dtype: DTypeLike, n_features: int) -> int:
    """Number of vertices whose columns fit into 1 MiB, but at least 16."""
    fitting = (1 << 20) // (np.dtype(dtype).itemsize * n_features)
    return min(TILE, max(16, fitting))


_VertexTile: TypeAlias = tuple[slice, Operand, _Product]  # places, vertices, their product


class Workspace(threading.local):
    """Products and tile buffer of one thread, kept from call to call.

    Products in float64 subtract `center` from dense rows. Rows for other products are centred.
    """

    def __init__(self, kernel: Kernel, center: AnyArray | None) -> None:
        self._kernel, self._center = kernel, center
        self._products: dict[tuple[bool, Method, int], _Product] = {}
        # One array for each number of features. Products share it, as it is zero between loads.
        self._places: dict[int, Int32Array] = {}
        self._memory = np.empty(0, dtype=np.uint8)
        # The latest vertices, newest first, with their tiles and the bytes of loaded products.
        self._latest: list[tuple[Operand, list[_VertexTile], int]] = []

    def products(
        self, x: Operand, z: Operand, height: int
    ) -> Iterator[tuple[slice, Operand, AnyArray]]:
        """Yield rows and their products with one tile of vertices, for `height` rows at a time.

        The next products overwrite the last ones.
        """
        if isinstance(x.values, CSRRows) != isinstance(z.values, CSRRows):
            raise TypeError("products need rows and vertices of one storage, sparse or dense")
        product = self._product(x)
        with product.loaded(z):
            for start in range(0, len(x), height):
                rows = slice(start, min(start + height, len(x)))
                part = x if height >= len(x) else x[rows]
                tile = self._buffer(len(part) * len(z), x.method.dtype).reshape(len(part), len(z))
                product.into(part, tile)
                yield rows, part, tile

    def width(self, x: Operand, z: Operand) -> int:
        """The largest tile of vertices like `z` for rows like `x`."""
        return self._product(x).width(z)

    def strip(self, x: Operand, z: Operand) -> Iterator[tuple[slice, Operand, AnyArray]]:
        """Yield columns, vertices and products of the rows, tile by tile of the vertices.

        All products stay until the workspace is used again.
        """
        tiles, loaded_bytes = self._vertex_tiles(x, z)
        room = self._buffer(len(x) * len(z), x.method.dtype)
        for cols, zt, product in tiles:
            tile = room[len(x) * cols.start : len(x) * cols.stop].reshape(len(x), len(zt))
            with nullcontext() if loaded_bytes > 0 else product.loaded(zt):
                product.into(x, tile)
            yield cols, zt, tile

    def _vertex_tiles(self, x: Operand, z: Operand) -> tuple[list[_VertexTile], int]:
        """Tiles of `z` with their products, which stay loaded if they take little memory."""
        for vertices, tiles, n_bytes in self._latest:
            if vertices is z:
                return tiles, n_bytes
        width, n_features = self.width(x, z), x.values.shape[1]
        slices = [slice(i, min(i + width, len(z))) for i in range(0, len(z), width)]
        n_bytes = np.dtype(x.method.dtype).itemsize * n_features * len(z)
        self._latest = [latest for latest in self._latest if latest[2] > 0]
        while self._latest and sum(size for *_, size in self._latest) > _LOADED_BYTES - n_bytes:
            self._latest.pop()
        if n_bytes <= _LOADED_BYTES:
            sparse = isinstance(z.values, CSRRows)
            tiles = [
                (cols, z[cols], self._new_product(sparse, x.method, n_features, {}))
                for cols in slices
            ]
            for _, zt, product in tiles:
                product.load(zt)
        else:
            tiles, n_bytes = [(cols, z[cols], self._product(x)) for cols in slices], 0
        self._latest.insert(0, (z, tiles, n_bytes))
        return tiles, n_bytes

    def _buffer(self, size: int, dtype: type) -> AnyArray:
        """Reused numbers, not initialised: fresh memory would take as long as kernel values."""
        n_bytes = size * np.dtype(dtype).itemsize
        if n_bytes > len(self._memory):
            # Unused pages take no memory.
            self._memory = _aligned(max(n_bytes, 8 * TILE * TILE), np.uint8)
        return self._memory[:n_bytes].view(dtype)

    def _product(self, x: Operand) -> _Product:
        key = isinstance(x.values, CSRRows), x.method, x.values.shape[1]
        if key not in self._products:
            self._products[key] = self._new_product(*key, self._places)
        return self._products[key]

    def _new_product(
        self, sparse: bool, method: Method, n_features: int, all_places: dict[int, Int32Array]
    ) -> _Product:
        squared = not self._kernel.uses_distance
        if sparse:
            places = all_places.setdefault(n_features, np.zeros(n_features, dtype=np.int32))
            return _SparseProduct(method.dtype, self._kernel.uses_distance, places)
        center = None if method.differences or method.dtype is np.float32 else self._center
        if method.differences or self._kernel.uses_distance:
            return _ColumnProduct(method, n_features, squared, center)
        return _DenseProduct(method.dtype, center)
