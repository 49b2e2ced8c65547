"""Blocks of kernel values and kernel sums, tile by tile, on all threads.

Owns how kernel values are computed: which product serves which rows, tiles, threads, centring. The
formulas are in :mod:`ooc_fw.kernels`, the compiled loops in :mod:`ooc_fw._core`. Knows nothing of
files or weights on the simplex.

Two precisions: float32 values with float64 sums for the bulk (`block`, `weighted_sum`) and float64
values throughout (`weighted_sum64`) for what a certificate rests on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from ooc_fw._core.maps import map_tile, raise_largest, sum_columns, sum_tile, sum_tile64
from ooc_fw._core.products import clear_columns, distance_tile, dot_tile, scatter_columns
from ooc_fw.blas import hold_to_one_thread, limit_this_thread
from ooc_fw.errors import InputError
from ooc_fw.kernels import FLOAT32_UNIT, FLOAT64_UNIT, Kernel
from ooc_fw.products import DenseProduct
from ooc_fw.rows import (
    CSRRows,
    Float32Array,
    Float64Array,
    Int32Array,
    Int64Array,
    Rows,
    take_rows,
)

TILE = 512  # vertices, and rows for that many: 1 MiB of products stay in the second-level cache
_NARROW = 32  # vertices below which a tile is mapped along its rows' side
_SCRATCH_BYTES = 1 << 20  # of a dense tile of sparse vertices with a line for every feature
_LEAST_WIDTH = 16  # sparse vertices of a tile, however many features there are
_SMALL_WORK = 100_000  # kernel values that one thread had better compute alone
_LARGE_MEAN = 0.25  # |mean|^2 / mean |x|^2 above which centring pays
_DENSE_ENOUGH = 0.25  # share of nonzeros above which a BLAS product beats the sparse one

_LARGEST = float(np.finfo(np.float32).max) / 16  # leaves room for the factors of a map

AnyFloat = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Operand:
    """Rows made ready for products.

    Parameters
    ----------
    values : Rows
        The rows, centred where the engine centres; sparse where few values are nonzero; float64
        only where dense and meant for `Engine.weighted_sum64`.
    norms : ndarray of float64, shape (n,)
        `Kernel.norms` of `values`.
    terms : ndarray of float32 or float64, shape (n,)
        `Kernel.map_terms` of `norms`, in the precision the values are meant for.
    """

    values: Rows
    norms: Float64Array
    terms: AnyFloat

    def __len__(self) -> int:
        return len(self.norms)

    def __getitem__(self, key: slice) -> Operand:
        return Operand(self.values[key], self.norms[key], self.terms[key])

    def take(self, places: Int64Array) -> Operand:
        """Rows by number."""
        return Operand(take_rows(self.values, places), self.norms[places], self.terms[places])

    def n_terms(self) -> Int64Array:
        """Number of stored values of each row, shape (n,)."""
        if isinstance(self.values, CSRRows):
            return np.diff(self.values.indptr)
        return np.full(len(self), self.values.shape[1])


class Nearest:
    """The vertex of largest kernel value, for each of some rows.

    Parameters
    ----------
    n_rows : int
        Number of rows.

    Attributes
    ----------
    value : ndarray of float32, shape (n_rows,)
        Largest kernel value met so far, of a kernel that is never negative; 0 before the first.
    place : ndarray of int64, shape (n_rows,)
        The place of its vertex.
    """

    def __init__(self, n_rows: int) -> None:
        self.value = np.zeros(n_rows, dtype=np.float32)
        self.place = np.zeros(n_rows, dtype=np.int64)

    def or_nearer(self, other: Nearest) -> Nearest:
        """The nearer of two, row by row."""
        place = np.where(other.value > self.value, other.place, self.place)
        both = Nearest(len(place))
        both.value, both.place = np.maximum(self.value, other.value), place
        return both


@dataclass(frozen=True)
class ManyWeights:
    """Weights of several sums over the same vertices, stored vertex by vertex.

    Parameters
    ----------
    indptr : ndarray of int64, shape (n_vertices + 1,)
        Where the entries of each vertex begin.
    sums : ndarray of int64, shape (n_entries,)
        Sum that an entry is a weight of.
    values : ndarray of float64, shape (n_entries,)
        The weights.
    n_sums : int
        Number of sums.
    """

    indptr: Int64Array
    sums: Int64Array
    values: Float64Array
    n_sums: int

    @classmethod
    def of(
        cls, n_vertices: int, places: Sequence[Int64Array], weights: Sequence[Float64Array]
    ) -> ManyWeights:
        """From the vertices of each sum and their weights."""
        vertices = np.concatenate(places)
        sums = np.repeat(np.arange(len(places)), [len(own) for own in places])
        order = np.argsort(vertices, kind="stable")
        indptr = np.zeros(n_vertices + 1, dtype=np.int64)
        np.cumsum(np.bincount(vertices, minlength=n_vertices), out=indptr[1:])
        return cls(indptr, sums[order], np.concatenate(weights)[order], len(places))


class _Product(Protocol):
    """Products of rows with one tile of vertices, of at most `width`."""

    width: int

    def load(self, z: Operand) -> None:
        """Make `z` the tile of vertices."""

    def tile_shape(self, n: int, m: int) -> tuple[int, int]:
        """Shape of the tile that `into` needs for `n` rows and `m` vertices."""

    def into(self, x: Operand, tile: AnyFloat) -> None:
        """Write the products of `x` with the loaded vertices into the leading corner of `tile`."""

    def unload(self) -> None:
        """Forget the tile of vertices; harmless when there is none."""


class _DenseProduct:
    """Dot products of dense rows by BLAS."""

    width = TILE

    def __init__(self, dtype: type, n_features: int) -> None:
        self._product = DenseProduct(dtype, n_features)
        self.tile_shape = self._product.tile_shape

    def load(self, z: Operand) -> None:
        self._product.load(np.asarray(z.values))

    def into(self, x: Operand, tile: AnyFloat) -> None:
        self._product.into(np.asarray(x.values), tile)

    def unload(self) -> None:
        self._product.unload()


class _SparseProduct:
    """Dot products or L1 distances of sparse rows, with the vertices scattered into columns.

    The scratch has a line for each feature of which a vertex of the tile has a value, and `places`
    says which line: its size follows the rows and not the number of features.
    """

    def __init__(self, dtype: type, uses_distance: bool, places: Int32Array) -> None:
        fitting = _SCRATCH_BYTES // (np.dtype(dtype).itemsize * len(places))
        self.width = min(TILE, max(_LEAST_WIDTH, fitting))
        self._places = places
        self._columns: AnyFloat = np.zeros((1, self.width), dtype=dtype)
        self._uses_distance = uses_distance
        self._z: Operand | None = None

    def load(self, z: Operand) -> None:
        assert isinstance(z.values, CSRRows)
        lines = 1 + min(len(self._places), len(z.values.indices))
        if len(self._columns) < lines:
            self._columns = np.zeros((lines, self.width), dtype=self._columns.dtype)
        self._z = z
        stored = z.values.data, z.values.indices, z.values.indptr
        scatter_columns(*stored, self._places, self._columns)

    def tile_shape(self, n: int, m: int) -> tuple[int, int]:
        return n, m

    def into(self, x: Operand, tile: AnyFloat) -> None:
        rows = x.values
        assert isinstance(rows, CSRRows)
        assert self._z is not None
        stored = rows.data, rows.indices, rows.indptr
        if self._uses_distance:
            x_norms, z_norms = x.norms.astype(tile.dtype), self._z.norms.astype(tile.dtype)
            distance_tile(*stored, x_norms, self._places, self._columns, z_norms, tile)
        else:
            dot_tile(*stored, self._places, self._columns, tile)

    def unload(self) -> None:
        if self._z is not None:
            assert isinstance(self._z.values, CSRRows)
            clear_columns(
                self._z.values.indices, self._z.values.indptr, self._places, self._columns
            )
            self._z = None


class _Workspace(threading.local):
    """Products and tile buffer of one thread, kept from call to call."""

    def __init__(self) -> None:
        self.products: dict[tuple[bool, type, int], _Product] = {}
        self._places: dict[int, Int32Array] = {}
        # Two tiles' worth, for the padding of products; what is not used costs nothing.
        self._tile = np.empty(8 * 2 * TILE * TILE, dtype=np.uint8)

    def tile(self, shape: tuple[int, int], dtype: type) -> AnyFloat:
        """Uninitialised tile for at most TILE^2 products, padding aside."""
        n, m = shape
        n_bytes = n * m * np.dtype(dtype).itemsize
        return self._tile[:n_bytes].view(dtype).reshape(n, m)

    def places(self, n_features: int) -> Int32Array:
        """All-zero places of features for sparse products, of which one at a time is loaded."""
        return self._places.setdefault(n_features, np.zeros(n_features, dtype=np.int32))


class Engine:
    """Computes values of one kernel; a context manager that holds its threads.

    Parameters
    ----------
    kernel : Kernel
        What to compute.
    threads : int
        Worker threads. BLAS is held to one thread while the engine is open, so that the two do not
        compete; results do not depend on the number.
    center : ndarray of shape (n_features,) or None
        Subtracted from dense rows before products of a shift-invariant kernel. Large column means
        would cost digits in |x|^2 + |z|^2 - 2 x.z.
    sparse : bool
        Take the sparse path for dense rows too; pays where at most a quarter of the values is
        nonzero.

    Attributes
    ----------
    evaluations : int
        Kernel values computed so far, of both precisions.
    """

    def __init__(
        self,
        kernel: Kernel,
        threads: int = 1,
        center: npt.NDArray[Any] | None = None,
        sparse: bool = False,
    ) -> None:
        self.kernel = kernel
        self.threads = threads
        self.sparse = sparse or kernel.uses_distance
        centred = center is not None and kernel.shift_invariant and not self.sparse
        self._center = np.asarray(center, dtype=np.float32) if centred else None
        self.evaluations = 0
        self._counting = threading.Lock()
        self._pool = (
            ThreadPoolExecutor(threads, initializer=limit_this_thread) if threads > 1 else None
        )
        self._workspace = _Workspace()
        self._release_blas = hold_to_one_thread(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release the threads and give BLAS its own back."""
        try:
            if self._pool is not None:
                self._pool.shutdown()
        finally:
            self._release_blas()

    def recipe(self) -> Callable[[], Engine]:
        """What another process calls for an engine of one thread that computes the same bits."""
        return partial(Engine, self.kernel, 1, self._center, self.sparse)

    def count(self, n: int) -> None:
        """Add to `evaluations`, from any thread."""
        with self._counting:
            self.evaluations += n

    def prepare(self, rows: Rows) -> Operand:
        """Rows with what the products need beside them; O(stored values)."""
        return self._prepare(rows, np.float32)

    def prepare64(self, rows: Rows) -> Operand:
        """Rows for `weighted_sum64`: dense ones are centred and held in float64."""
        return self._prepare(rows, np.float64)

    def _prepare(self, rows: Rows, dtype: type) -> Operand:
        values: Any = rows
        if not isinstance(rows, CSRRows):
            if self.sparse:
                values = CSRRows.from_dense(rows)
            else:
                values = rows.astype(dtype, copy=False)
                if self._center is not None:
                    values = values - self._center
        norms = self.kernel.norms(values)
        _check_range(self.kernel, norms)
        return Operand(values, norms, self.kernel.map_terms(norms).astype(dtype))

    def block(self, x: Operand, z: Operand, out: AnyFloat) -> None:
        """Kernel values k(x_i, z_j) in float32 into `out`, shape (len(x), len(z)).

        Where `out` is of uint16, multiples of 1/65535; for kernels with values in [0, 1].

        The longer side is divided among the threads and streams past the shorter one, of which the
        sparse product makes columns. A value has the same bits whatever the side, the block and
        the thread (see :mod:`ooc_fw.products`).
        """
        if len(x) < len(z):
            x, z, out = z, x, out.T
        constants = self._constants(np.float32)
        code = int(self.kernel.code)
        quantised = out.dtype == np.uint16

        def fill(rows: slice, cols: slice, tile: AnyFloat, xt: Operand, zt: Operand) -> None:
            narrow = len(zt) < _NARROW
            if narrow:  # maps are vectorised along rows of the tile
                tile = np.ascontiguousarray(tile[:, : len(zt)].T)
                xt, zt = zt, xt
            map_tile(code, tile, xt.terms, zt.terms, *constants)
            tile = tile[:, : len(zt)]
            if quantised:
                tile *= np.float32(65535)
                tile += np.float32(0.5)  # the assignment below cuts off
            out[rows, cols] = tile.T if narrow else tile

        self._for_tiles(x, z, np.float32, fill)

    def weighted_sum(
        self, x: Operand, z: Operand, weights: Float64Array, nearest: Nearest | None = None
    ) -> Float64Array:
        """sum_j weights_j k(x_i, z_j), shape (len(x),): float32 values, float64 sums.

        Where `nearest` is given, the vertices of largest kernel value are found on the way.
        """
        out = np.zeros(len(x))
        constants = self._constants(np.float32)
        code = int(self.kernel.code)

        def add(rows: slice, cols: slice, tile: AnyFloat, xt: Operand, zt: Operand) -> None:
            sum_tile(code, tile, xt.terms, zt.terms, *constants, weights[cols], out[rows])
            if nearest is not None:
                largest, place = nearest.value[rows], nearest.place[rows]
                raise_largest(tile, len(zt), cols.start, largest, place)

        self._for_tiles(x, z, np.float32, add)
        return out

    def weighted_sums(self, x: Operand, z: Operand, weights: ManyWeights) -> Float64Array:
        """Several weighted sums of the same kernel values, shape (len(x), weights.n_sums).

        Float32 values, float64 sums; each is that of `weighted_sum`, up to the order of additions.
        """
        out = np.zeros((len(x), weights.n_sums))
        constants = self._constants(np.float32)
        code = int(self.kernel.code)

        def add(rows: slice, cols: slice, tile: AnyFloat, xt: Operand, zt: Operand) -> None:
            map_tile(code, tile, xt.terms, zt.terms, *constants)
            indptr = weights.indptr[cols.start : cols.stop + 1]
            sum_columns(tile, indptr, weights.sums, weights.values, out[rows])

        self._for_tiles(x, z, np.float32, add)
        return out

    def weighted_sum64(self, x: Operand, z: Operand, weights: Float64Array) -> Float64Array:
        """The sums of `weighted_sum` from float64 values of rows made ready by `prepare64`."""
        out = np.zeros(len(x))
        constants = self._constants(np.float64)
        code = int(self.kernel.code)

        def add(rows: slice, cols: slice, tile: AnyFloat, xt: Operand, zt: Operand) -> None:
            sum_tile64(code, tile, xt.terms, zt.terms, *constants, weights[cols], out[rows])

        self._for_tiles(x, z, np.float64, add)
        return out

    def symmetric_sum64(self, z: Operand, weights: Float64Array) -> Float64Array:
        """`weighted_sum64` of vertices with themselves, from half of the kernel values.

        Each tile off the diagonal serves twice, as it is and transposed. Each strip of tiles has
        sums of its own, added up in the order of strips, so that threads change no bit.
        """
        constants = self._constants(np.float64)
        code = int(self.kernel.code)
        width = self._product(z, np.float64).width

        def run(x0: int) -> Float64Array:
            rows = slice(x0, min(x0 + width, len(z)))
            out = np.zeros(rows.stop)
            product = self._product(z, np.float64)
            try:
                product.load(z[rows])
                for y0 in range(0, x0 + 1, width):
                    cols = slice(y0, min(y0 + width, len(z)))
                    n, m = cols.stop - y0, rows.stop - x0
                    tile = self._workspace.tile(product.tile_shape(n, m), np.float64)
                    product.into(z[cols], tile)
                    terms = z.terms[cols], z.terms[rows]
                    sum_tile64(code, tile[:n], *terms, *constants, weights[rows], out[cols])
                    if y0 < x0:
                        out[rows] += weights[cols] @ tile[:n, :m]
            finally:
                product.unload()
            return out

        self.count(len(z) * (len(z) + width) // 2)
        total = np.zeros(len(z))
        starts = range(0, len(z), width)[::-1]  # the longest strips first
        strips = map(run, starts) if self._pool is None else self._pool.map(run, starts)
        for sums in strips:
            total[: len(sums)] += sums
        return total

    def share(self, n: int, work: int, run: Callable[[slice], None]) -> None:
        """Call `run` on ranges that make up range(n), each on its thread.

        Parameters
        ----------
        n : int
            Number of items.
        work : int
            Numbers computed or moved in all; few are left to one thread, since waking another costs
            as much as some ten thousand of them.
        run : callable
            Releases the GIL where it matters.
        """
        parts = _split(n, self.threads if work > _SMALL_WORK else 1)
        if self._pool is None or len(parts) == 1:
            for part in parts:
                run(part)
        else:
            list(self._pool.map(run, parts))

    def _constants(self, dtype: type) -> tuple[AnyFloat, AnyFloat, int]:
        """Scale, shift and degree of the map, in the precision of the tile."""
        scale, shift, degree = self.kernel.map_constants()
        return dtype(scale), dtype(shift), degree

    def error_bound(self, x: Operand, z: Operand, mean: Float64Array | float = 1.0) -> Float64Array:
        """Bound on the error of `weighted_sum` with weights of absolute sum 1, shape (len(x),).

        Such a sum errs by no more than its worst kernel value does, and by its own summation; less
        where `mean`, the same sum with absolute weights, is small (see `Kernel.error_bound`).
        """
        return self._error_bound(x, z, FLOAT32_UNIT, mean)

    def error_bound64(self, x: Operand, z: Operand) -> Float64Array:
        """The bound of `error_bound` for `weighted_sum64`."""
        return self._error_bound(x, z, FLOAT64_UNIT, 1.0)

    def _error_bound(
        self, x: Operand, z: Operand, unit: float, mean: Float64Array | float
    ) -> Float64Array:
        kernel = self.kernel
        n_terms = x.n_terms()  # of a sum of products: no more than one side stores
        if kernel.uses_distance:
            n_terms = np.maximum(n_terms, z.n_terms().max(initial=0))
        values = kernel.error_bound(x.norms, float(z.norms.max(initial=0)), n_terms, unit, mean)
        # Sums are float64 in both precisions; no value exceeds the geometric mean of two diagonals.
        largest = np.sqrt(kernel.diagonal(x.norms) * kernel.diagonal(z.norms).max(initial=0))
        return np.asarray(values + len(z) * FLOAT64_UNIT * largest)

    def _for_tiles(
        self,
        x: Operand,
        z: Operand,
        dtype: type,
        use: Callable[[slice, slice, AnyFloat, Operand, Operand], None],
    ) -> None:
        """Call `use(rows, cols, products, x_tile, z_tile)` for all tiles.

        The products may have more columns than `z_tile` vertices, which then mean nothing.
        Rows are divided among the threads; each thread meets the tiles of vertices in order, so
        that sums come out the same for any number of threads.
        """
        if len(z) == 0:
            return
        self.count(len(x) * len(z))
        width = min(self._product(x, dtype).width, len(z))
        height = TILE * TILE // max(_NARROW, width)

        def run(part: slice) -> None:
            product = self._product(x, dtype)
            try:
                for z0 in range(0, len(z), width):
                    cols = slice(z0, min(z0 + width, len(z)))
                    z_tile = z[cols]
                    product.load(z_tile)
                    for x0 in range(part.start, part.stop, height):
                        rows = slice(x0, min(x0 + height, part.stop))
                        x_tile = x[rows]
                        shape = product.tile_shape(len(x_tile), len(z_tile))
                        tile = self._workspace.tile(shape, dtype)
                        product.into(x_tile, tile)
                        use(rows, cols, tile[: len(x_tile)], x_tile, z_tile)
                    product.unload()
            finally:  # an interrupt must not leave vertices in the scratch
                product.unload()

        self.share(len(x), len(x) * len(z), run)

    def _product(self, x: Operand, dtype: type) -> _Product:
        """The product for rows like `x`, one for each thread."""
        sparse = isinstance(x.values, CSRRows)
        n_features = x.values.shape[1]
        products = self._workspace.products
        key = sparse, dtype, n_features
        if key not in products:
            products[key] = (
                _SparseProduct(dtype, self.kernel.uses_distance, self._workspace.places(n_features))
                if sparse
                else _DenseProduct(dtype, n_features)
            )
        return products[key]


def _check_range(kernel: Kernel, norms: Float64Array) -> None:
    """Refuse rows of which float32 could not hold a product or a kernel value."""
    with np.errstate(over="ignore"):
        largest = max(norms.max(initial=0), kernel.diagonal(norms).max(initial=0))
    if max(1.0, kernel.gamma) * largest > _LARGEST:
        raise InputError(
            f"a row of norm {norms.max():.3g} is too large for the {kernel.name} kernel in "
            f"float32; scale the features first (ooc-fw convert --scale maxabs) or lower gamma"
        )


def prefers_sparse(rows: Rows) -> bool:
    """Whether the sparse product is the faster one for rows like these."""
    if isinstance(rows, CSRRows):
        return True
    return bool(np.count_nonzero(rows) < _DENSE_ENOUGH * rows.size)


def choose_center(rows: Rows) -> Float32Array | None:
    """Mean of `rows` where it is large enough for centring to pay, else None.

    Any centre is right for a shift-invariant kernel; one near the mean saves digits. Small means
    are left alone, since rows of small whole numbers have exact products as they are.
    """
    if isinstance(rows, CSRRows):
        return None
    mean = rows.mean(axis=0, dtype=np.float64)
    mean_square_norm = np.square(rows, dtype=np.float64).sum(axis=1).mean()
    return mean.astype(np.float32) if mean @ mean > _LARGE_MEAN * mean_square_norm else None


def _split(n: int, parts: int) -> list[slice]:
    """Ranges of about equal length, whole multiples of 16 rows but for the last."""
    step = max(16, -(-n // (parts * 16)) * 16)
    return [slice(start, min(start + step, n)) for start in range(0, n, step)]
