"""Products of rows with one tile of vertices after the other, in the workspace of a thread.

Which product serves depends on the storage of the rows and on the `Method`: BLAS for dense rows,
the compiled loops of :mod:`ooc_fw._core.products` otherwise. A product of two rows has the same
bits whichever block computes it, and whichever row is the vertex.
"""

from __future__ import annotations

import functools
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

TILE = 512  # vertices in a tile, and rows for that many: products fit the second-level cache
STEP = 16  # sides of a block for BLAS are multiples of this
_SCRATCH_BYTES = 1 << 20  # of the dense array that holds a tile of vertices as columns
_SPARSE_BYTES = 4 << 20  # of that array for sparse vertices, no two of which share a feature
_CACHE_LINE = 64  # bytes, as many as the widest vectors have
_LEAST_WIDTH = 16  # vertices of a tile, however many features there are

_LOADED_BYTES = 8 << 20  # of vertices as dense rows up to which they stay loaded between strips
FEW_ROWS = 16  # rows up to which a compiled loop beats BLAS, which needs a padded block

_SMALL = 1_000_000  # multiplications up to which BLAS libraries run other code
_LEAST_FEATURES = 4  # columns that rows are padded to; else only very many rows are no small block
_TRIAL_SIDE = 512
_TRIAL_SHAPES = ((512, 512), (512, 16), (480, 208), (304, 496), (48, 512), (16, 512))
_TRIAL_FEATURES = 512  # columns in a trial, and up to 63 more: wider trials would take too long


class _Product(ABC):
    """Products of rows with one tile of vertices."""

    def width(self, z: Operand) -> int:
        """The largest number of vertices like those of `z` in a tile."""
        return TILE

    @abstractmethod
    def load(self, z: Operand) -> None:
        """Make `z` the tile of vertices."""

    @abstractmethod
    def into(self, x: Operand, tile: AnyArray) -> None:
        """Write the products of `x` with the loaded vertices into the leading corner of `tile`."""

    def tile_shape(self, n: int, m: int) -> tuple[int, int]:
        """Shape of the tile that `into` needs for `n` rows and `m` vertices."""
        return n, m

    def unload(self) -> None:  # noqa: B027  # most have nothing to do
        """Forget the tile of vertices; harmless when there is none."""

    @contextmanager
    def loaded(self, z: Operand) -> Iterator[None]:
        """Have `z` as the tile of vertices within; not even an interrupt leaves it there."""
        try:
            self.load(z)
            yield
        finally:
            self.unload()


class _DenseProduct(_Product):
    """Dot products by BLAS of dense rows, minus `center` where there is one.

    BLAS runs other code, which rounds in another order, for the borders of a block and for small
    blocks. Blocks that are not small and whose sides are multiples of `STEP` have no borders in the
    common libraries, hence rows and vertices are padded to such shapes. Where a trial shows that
    this is not enough, products are computed in float64 and rounded. Where another one shows that
    BLAS adds up in order, a compiled loop gives a few rows the same bits without padding.
    """

    def __init__(self, dtype: type, n_features: int, center: AnyArray | None) -> None:
        self._n_features = max(n_features, _LEAST_FEATURES)
        self._center, self._given = center, dtype
        self._dtype = dtype if is_uniform(dtype, self._n_features) else np.float64
        self._vertices: AnyArray = np.empty((0, self._n_features), dtype=self._dtype)
        self._rest: AnyArray = self._vertices
        self._columns: AnyArray | None = None  # the vertices as columns, for a few rows

    def load(self, z: Operand) -> None:
        vertices = centred(z.values, self._given, self._center)
        self._vertices = self._padded(vertices, _round_up(len(vertices)))
        self._columns = None

    def tile_shape(self, n: int, m: int) -> tuple[int, int]:
        if self._suits_loop(n):
            return n, _round_up(m)
        whole, rest = self._parts(n, _round_up(m))
        return whole + rest, _round_up(m)

    def _suits_loop(self, n: int) -> bool:
        """Whether a compiled loop serves so many rows."""
        return n <= FEW_ROWS and is_in_order(self._dtype, self._n_features)

    def into(self, x: Operand, tile: AnyArray) -> None:
        rows = centred(x.values, self._given, self._center)
        if self._suits_loop(len(rows)):
            if self._columns is None:
                self._columns = np.ascontiguousarray(self._vertices.T)
            rows = np.ascontiguousarray(rows, dtype=self._dtype)
            if self._dtype is self._given:
                compiled.dense_tile(rows, self._columns, tile)
            else:
                wide: AnyArray = np.empty(tile.shape, dtype=self._dtype)
                compiled.dense_tile(rows, self._columns, wide)
                with np.errstate(over="ignore"):
                    tile[...] = wide
            return
        whole, rest = self._parts(len(rows), len(self._vertices))
        # Values of the padding are arbitrary and may overflow.
        with np.errstate(invalid="ignore", over="ignore"):
            if whole > 0:
                self._multiply(self._padded(rows[:whole], whole), tile[:whole])
            if rest > 0:
                if len(self._rest) < rest:
                    self._rest = np.zeros((rest, self._n_features), dtype=self._dtype)
                part = self._rest[:rest]
                part[: len(rows) - whole, : rows.shape[1]] = rows[whole:]
                self._multiply(part, tile[whole:])

    def _multiply(self, rows: AnyArray, out: AnyArray) -> None:
        if self._dtype is self._given:
            np.matmul(rows, self._vertices.T, out=out)
        else:
            out[...] = rows @ self._vertices.T

    def _parts(self, n: int, width: int) -> tuple[int, int]:
        """How many of `n` rows are multiplied as they are, and the length the rest is padded to."""
        least = _round_up(_SMALL // (width * self._n_features) + 1)
        whole = n - n % STEP
        if whole < least:
            return 0, max(least, _round_up(n))
        return whole, max(least, STEP) if whole < n else 0

    def _padded(self, rows: AnyArray, length: int) -> AnyArray:
        """Rows in the precision of the product, padded by zeros; themselves if they fit."""
        if rows.shape == (length, self._n_features):
            return rows.astype(self._dtype, copy=False)
        padded: AnyArray = np.zeros((length, self._n_features), dtype=self._dtype)
        padded[: len(rows), : rows.shape[1]] = rows
        return padded


def _round_up(n: int) -> int:
    return -(-n // STEP) * STEP


@functools.cache
def is_uniform(dtype: type, n_features: int) -> bool:
    """Whether BLAS gives a product the same bits in blocks of all padded shapes, on either side."""
    if n_features > _TRIAL_FEATURES:
        n_features = _TRIAL_FEATURES + n_features % 64
    rng = np.random.default_rng(0)
    both: AnyArray = rng.standard_normal((2 * _TRIAL_SIDE, n_features)).astype(dtype)
    rows, vertices = both[:_TRIAL_SIDE], both[_TRIAL_SIDE:]
    expected = rows @ vertices.T
    for n, m in _TRIAL_SHAPES:
        if n * m * n_features <= _SMALL:
            continue
        # Blocks from the far end have their borders elsewhere than the whole has.
        part = expected[-n:, -m:]
        if not np.array_equal(rows[-n:] @ vertices[-m:].T, part):
            return False
        if not np.array_equal(vertices[-m:] @ rows[-n:].T, part.T):
            return False
    return True


@functools.cache
def is_in_order(dtype: type, n_features: int) -> bool:
    """Whether BLAS gives products the bits of `dense_tile`; False where it is not worth a trial."""
    if n_features > _TRIAL_FEATURES:
        return False
    rng = np.random.default_rng(0)
    rows: AnyArray = rng.standard_normal((_TRIAL_SIDE, n_features)).astype(dtype)
    expected = rows @ rows.T
    products = np.empty_like(expected)
    compiled.dense_tile(rows, np.ascontiguousarray(rows.T), products)
    return np.array_equal(products, expected)


class _ColumnProduct(_Product):
    """Squared or L1 distances of dense rows from differences, or sums of minima."""

    def __init__(
        self, method: Method, n_features: int, squared: bool, center: AnyArray | None
    ) -> None:
        self._differences, self._squared, self._center = method.differences, squared, center
        dtype = method.dtype
        self._one = dtype(1)
        self._n_features = -(-n_features // 4) * 4  # a multiple of 4, as the compiled loop needs
        self._width = _fitting_width(dtype, n_features)
        # Lines of no power of two bytes share no place in the cache.
        shape = self._n_features, self._width + STEP
        self._columns = _aligned(shape[0] * shape[1], dtype).reshape(shape)

    def width(self, z: Operand) -> int:
        return self._width

    def load(self, z: Operand) -> None:
        values = centred(z.values, type(self._one), self._center)
        self._columns[: values.shape[1], : len(z)] = values.T

    def into(self, x: Operand, tile: AnyArray) -> None:
        rows = centred(x.values, type(self._one), self._center)
        if rows.shape[1] < self._n_features:
            padded: AnyArray = np.zeros((len(rows), self._n_features), dtype=tile.dtype)
            padded[:, : rows.shape[1]] = rows
            rows = padded
        rows = np.ascontiguousarray(rows)
        if self._differences:
            compiled.difference_tile(rows, self._columns, self._squared, tile)
        else:
            compiled.minimum_tile(rows, self._columns, self._one, tile)


class _SparseProduct(_Product):
    """Dot products or L1 distances of sparse rows, with the vertices scattered into columns.

    The scratch has a line for each feature that a vertex of the tile has a value of, and `_places`
    says which: the size of the scratch follows the rows and not the number of features.
    """

    def __init__(self, dtype: type, uses_distance: bool, places: Int32Array) -> None:
        self._places = places
        self._scratch: AnyArray = np.zeros(0, dtype=dtype)  # all zeros between loads
        self._columns = self._scratch.reshape(1, 0)
        self._uses_distance = uses_distance
        self._z: Operand | None = None

    def width(self, z: Operand) -> int:
        """As many as fit even if no two vertices share a feature."""
        mean = max(1.0, len(stored_arrays(z.values)[1]) / max(1, len(z)))
        dtype = self._scratch.dtype
        side = int(np.sqrt(_SPARSE_BYTES / (dtype.itemsize * mean))) // STEP * STEP
        return min(TILE, max(side, _fitting_width(dtype, len(self._places))))

    def load(self, z: Operand) -> None:
        data, indices, indptr = stored_arrays(z.values)
        shape = 1 + min(len(self._places), len(indices)), _round_up(len(z))
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
            longest = int(np.diff(indptr).max(initial=0))
            scratch = np.empty(longest, data.dtype), np.empty(longest, self._places.dtype)
            compiled.dot_tile(rows, self._places, self._columns, scratch, tile)

    def unload(self) -> None:
        if self._z is not None:
            _, indices, indptr = stored_arrays(self._z.values)
            compiled.clear_columns(indices, indptr, self._places, self._columns)
            self._z = None


def _aligned(size: int, dtype: DTypeLike) -> AnyArray:
    """Zeros from the start of a cache line on: wide vectors that cross two take twice as long."""
    n_bytes = size * np.dtype(dtype).itemsize
    memory: AnyArray = np.zeros(n_bytes + _CACHE_LINE, dtype=np.uint8)
    start = -memory.ctypes.data % _CACHE_LINE
    return memory[start : start + n_bytes].view(dtype)


def _fitting_width(dtype: DTypeLike, n_features: int) -> int:
    """Vertices whose columns fit the scratch."""
    fitting = _SCRATCH_BYTES // (np.dtype(dtype).itemsize * n_features)
    return min(TILE, max(_LEAST_WIDTH, fitting))


_VertexTile: TypeAlias = tuple[slice, Operand, _Product]  # places, vertices, their product


class Workspace(threading.local):
    """Products and tile buffer of one thread, kept from call to call.

    `center` is subtracted from dense rows by products in float64; others get centred rows.
    """

    def __init__(self, kernel: Kernel, center: AnyArray | None) -> None:
        self._kernel, self._center = kernel, center
        self._products: dict[tuple[bool, Method, int], _Product] = {}
        # By number of features; all zeros between loads, so that products share them.
        self._places: dict[int, Int32Array] = {}
        self._memory = np.empty(0, dtype=np.uint8)
        # The vertices met last, latest first, with their tiles and the bytes of loaded products.
        self._latest: list[tuple[Operand, list[_VertexTile], int]] = []

    def products(
        self, x: Operand, z: Operand, height: int
    ) -> Iterator[tuple[slice, Operand, AnyArray]]:
        """Products of `height` rows after the other with one tile of vertices: rows and products.

        Columns beyond the vertices are padding. The next products overwrite them.
        """
        if isinstance(x.values, CSRRows) != isinstance(z.values, CSRRows):
            raise TypeError("products need rows and vertices of one storage, sparse or dense")
        product = self._product(x)
        with product.loaded(z):
            for start in range(0, len(x), height):
                rows = slice(start, min(start + height, len(x)))
                part = x if height >= len(x) else x[rows]
                n, m = product.tile_shape(len(part), len(z))
                tile = self._buffer(n * m, x.method.dtype).reshape(n, m)
                product.into(part, tile)
                yield rows, part, tile[: len(part)]

    def width(self, x: Operand, z: Operand) -> int:
        """The largest tile of vertices like `z` for rows like `x`."""
        return self._product(x).width(z)

    def strip(self, x: Operand, z: Operand) -> Iterator[tuple[slice, Operand, AnyArray]]:
        """Products of rows with one tile of vertices after the other: columns, vertices, products.

        Columns beyond the vertices are padding. Products stay until the workspace is used again.
        """
        tiles, loaded_bytes = self._vertex_tiles(x, z)
        shapes = [product.tile_shape(len(x), len(zt)) for _, zt, product in tiles]
        room = self._buffer(sum(n * m for n, m in shapes), x.method.dtype)
        for (cols, zt, product), (n, m) in zip(tiles, shapes, strict=True):
            tile, room = room[: n * m].reshape(n, m), room[n * m :]
            with nullcontext() if loaded_bytes > 0 else product.loaded(zt):
                product.into(x, tile)
            yield cols, zt, tile[: len(x)]

    def _vertex_tiles(self, x: Operand, z: Operand) -> tuple[list[_VertexTile], int]:
        """Tiles of `z`, each with its product, which stay loaded where they take little memory."""
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
        """Uninitialised numbers; reused, since fresh memory costs as much time as kernel values."""
        n_bytes = size * np.dtype(dtype).itemsize
        if n_bytes > len(self._memory):
            # Room for two tiles of float64 covers most padding; unused pages take no memory.
            self._memory = _aligned(max(n_bytes, 8 * 2 * TILE * TILE), np.uint8)
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
        return _DenseProduct(method.dtype, n_features, center)
