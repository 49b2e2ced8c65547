"""Blocks of kernel values and kernel sums, tile by tile, on all threads.

Owns how kernel values are computed: which product serves which rows, tiles, threads, centring. The
formulas are in :mod:`ooc_fw.kernels.functions`, the compiled loops in :mod:`ooc_fw._core`. Knows
nothing of files or weights on the simplex.

Two precisions: float32 values with float64 sums for the bulk (`block`, `weighted_sum`) and float64
values throughout (`weighted_sum64`) for what a certificate rests on.

The usual product of two rows is their dot product. A distance then comes from |x|^2 + |z|^2 - 2 x.z
and loses the digits that these terms share: where gamma |x|^2 is large, all of them. Rows of that
size get products in float64, or sums of differences (`Method`). Which, follows from a probe of rows
before anything is computed (`choose_arithmetic`), so that a kernel value never depends on the block
it is computed in.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt

from ooc_fw._core.maps import (
    map_tile,
    map_tile64,
    raise_largest,
    sum_columns,
    sum_tile,
    sum_tile64,
)
from ooc_fw._core.products import (
    clear_columns,
    difference_tile,
    distance_tile,
    dot_tile,
    scatter_columns,
    sparse_difference_tile,
)
from ooc_fw.data.rows import (
    CSRRows,
    Float32Array,
    Float64Array,
    Int32Array,
    Int64Array,
    Rows,
    take_rows,
)
from ooc_fw.kernels.functions import FLOAT32_UNIT, FLOAT64_UNIT, Kernel
from ooc_fw.kernels.products import DenseProduct
from ooc_fw.system.blas import hold_to_one_thread, limit_this_thread
from ooc_fw.system.errors import InputError

TILE = 512  # vertices, and rows for that many: 1 MiB of products stay in the second-level cache
_NARROW = 32  # vertices below which a tile is mapped along its rows' side
_SCRATCH_BYTES = 1 << 20  # of the dense scratch that holds a tile of vertices as columns
_LEAST_WIDTH = 16  # vertices of such a tile, however many features there are
_SMALL_WORK = 100_000  # kernel values that one thread had better compute alone
_LARGE_MEAN = 0.25  # |mean|^2 / mean |x|^2 above which centring pays
_DENSE_ENOUGH = 0.25  # share of nonzeros above which a BLAS product beats the sparse one

_FEW_FEATURES = 32  # up to which float32 differences beat float64 products: 306 to 350 ms for 8 M
_FAST_ERROR = 1e-3  # bound on the error of float32 values above which they come from elsewhere
_WIDE_ERROR = 1e-6  # the same of float64 products that are stored as float32 values
_EXACT_ERROR = 1e-10  # the same of float64 values; a relative gap of 1e-3 may be 1e-8 in absolute

_LARGEST = float(np.finfo(np.float32).max) / 16  # leaves room for the factors of a map

AnyFloat = npt.NDArray[Any]


class Method(NamedTuple):
    """How kernel values are computed.

    Parameters
    ----------
    dtype : type
        float32 or float64, of products and maps.
    differences : bool
        Whether distances are sums of differences of the rows as they come, in place of products of
        centred rows; for shift-invariant kernels.
    """

    dtype: type
    differences: bool = False

    @property
    def unit(self) -> float:
        """Unit roundoff."""
        return FLOAT32_UNIT if self.dtype is np.float32 else FLOAT64_UNIT


FLOAT32_PRODUCTS = Method(np.float32)
FLOAT64_PRODUCTS = Method(np.float64)
FLOAT32_DIFFERENCES = Method(np.float32, differences=True)
FLOAT64_DIFFERENCES = Method(np.float64, differences=True)


class Arithmetic(NamedTuple):
    """How an engine computes, as parameters of `Engine`.

    Parameters
    ----------
    center : ndarray of float32, shape (n_features,), or None
        See `Engine`.
    sparse : bool
        See `Engine`.
    fast : Method
        Of the values of `block` and `weighted_sum`, which are stored as float32.
    exact : Method
        Of the values of `weighted_sum64`.
    """

    center: npt.NDArray[Any] | None = None
    sparse: bool = False
    fast: Method = FLOAT32_PRODUCTS
    exact: Method = FLOAT64_PRODUCTS


@dataclass(frozen=True, slots=True)
class Operand:
    """Rows made ready for products.

    Parameters
    ----------
    values : Rows
        The rows; sparse where few values are nonzero. Centred where the engine centres and takes
        float32 products; float64 products centre in float64, tile by tile, and differences need no
        centre.
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


def _fitting_width(dtype: type, n_features: int) -> int:
    """Vertices whose columns fit the scratch."""
    fitting = _SCRATCH_BYTES // (np.dtype(dtype).itemsize * n_features)
    return min(TILE, max(_LEAST_WIDTH, fitting))


class _DenseProduct:
    """Dot products of dense rows by BLAS, less `center` where there is one."""

    width = TILE

    def __init__(self, dtype: type, n_features: int, center: AnyFloat | None) -> None:
        self._product = DenseProduct(dtype, n_features)
        self._dtype = dtype
        self._center = center
        self.tile_shape = self._product.tile_shape

    def load(self, z: Operand) -> None:
        self._product.load(centred(z.values, self._dtype, self._center))

    def into(self, x: Operand, tile: AnyFloat) -> None:
        self._product.into(centred(x.values, self._dtype, self._center), tile)

    def unload(self) -> None:
        self._product.unload()


class _DifferenceProduct:
    """Squared or L1 distances of dense rows, as sums of differences."""

    def __init__(self, dtype: type, absolute: bool, n_features: int) -> None:
        self._squared = not absolute
        self._n_features = -(-n_features // 4) * 4  # as the compiled loop wants them
        self.width = _fitting_width(dtype, n_features)
        self._columns: AnyFloat = np.zeros((self._n_features, self.width), dtype=dtype)

    def load(self, z: Operand) -> None:
        values = np.asarray(z.values)
        self._columns[: values.shape[1], : len(z)] = values.T

    def tile_shape(self, n: int, m: int) -> tuple[int, int]:
        return n, m

    def into(self, x: Operand, tile: AnyFloat) -> None:
        rows = np.asarray(x.values)
        if rows.shape[1] < self._n_features or rows.dtype != tile.dtype:
            padded: AnyFloat = np.zeros((len(rows), self._n_features), dtype=tile.dtype)
            padded[:, : rows.shape[1]] = rows
            rows = padded
        difference_tile(np.ascontiguousarray(rows), self._columns, self._squared, tile)

    def unload(self) -> None:
        pass


class _SparseDifferenceProduct:
    """Squared or L1 distances of sparse rows in float64, as sums of differences."""

    width = TILE

    def __init__(self, absolute: bool) -> None:
        self._squared = not absolute
        self._z: CSRRows | None = None

    def load(self, z: Operand) -> None:
        assert isinstance(z.values, CSRRows)
        self._z = z.values

    def tile_shape(self, n: int, m: int) -> tuple[int, int]:
        return n, m

    def into(self, x: Operand, tile: AnyFloat) -> None:
        stored = [
            array
            for rows in (x.values, self._z)
            if isinstance(rows, CSRRows)
            for array in (rows.data, rows.indices, rows.indptr)
        ]
        sparse_difference_tile(*stored, self._squared, tile)

    def unload(self) -> None:
        self._z = None


class _SparseProduct:
    """Dot products or L1 distances of sparse rows, with the vertices scattered into columns.

    The scratch has a line for each feature of which a vertex of the tile has a value, and `places`
    says which line: its size follows the rows and not the number of features.
    """

    def __init__(self, dtype: type, uses_distance: bool, places: Int32Array) -> None:
        self.width = _fitting_width(dtype, len(places))
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
        self.products: dict[tuple[bool, Method, int], _Product] = {}
        self._places: dict[int, Int32Array] = {}
        self._tile = np.empty(0, dtype=np.uint8)

    def tile(self, shape: tuple[int, int], dtype: type) -> AnyFloat:
        """Uninitialised tile of the shape that a product asks for, padding included.

        The buffer is as large as the largest tile so far: at least two tiles of float64, which is
        enough for most padding and costs nothing where it is not used.
        """
        n, m = shape
        n_bytes = n * m * np.dtype(dtype).itemsize
        if n_bytes > len(self._tile):
            self._tile = np.empty(max(n_bytes, 8 * 2 * TILE * TILE), dtype=np.uint8)
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
    fast, exact : Method
        How values are computed that are stored as float32, and those of `weighted_sum64`. What
        suits some rows is chosen by `choose_arithmetic`.

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
        fast: Method = FLOAT32_PRODUCTS,
        exact: Method = FLOAT64_PRODUCTS,
    ) -> None:
        self.kernel = kernel
        self.threads = threads
        self.fast, self.exact = fast, exact
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
        return partial(Engine, self.kernel, 1, self._center, self.sparse, self.fast, self.exact)

    def count(self, n: int) -> None:
        """Add to `evaluations`, from any thread."""
        with self._counting:
            self.evaluations += n

    def prepare(self, rows: Rows) -> Operand:
        """Rows with what the products need beside them; O(stored values)."""
        return self._prepare(rows, self.fast)

    def prepare64(self, rows: Rows) -> Operand:
        """Rows for `weighted_sum64`."""
        return self._prepare(rows, self.exact)

    def _prepare(self, rows: Rows, method: Method) -> Operand:
        values = self._in_form(rows, method)
        if method.differences:
            norms = self.kernel.norms(values)
            _check_range(self.kernel, norms)
            return Operand(values, norms, np.zeros(len(norms), dtype=method.dtype))
        if isinstance(values, CSRRows):
            norms = self.kernel.norms(values)
        else:
            centred_values = centred(values, method.dtype, self._center)
            norms = self.kernel.norms(centred_values)
            if method.dtype is np.float32:
                values = centred_values
        _check_range(self.kernel, norms)
        return Operand(values, norms, self.kernel.map_terms(norms).astype(method.dtype))

    def _in_form(self, rows: Rows, method: Method) -> Rows:
        """Rows sparse or dense, as the products of all rows of that width take them."""
        sparse = self.sparse or isinstance(rows, CSRRows)
        if method.differences and rows.shape[1] <= _FEW_FEATURES:
            sparse = False
        if sparse:
            return rows if isinstance(rows, CSRRows) else CSRRows.from_dense(rows)
        return rows.toarray() if isinstance(rows, CSRRows) else rows

    def block(self, x: Operand, z: Operand, out: AnyFloat) -> None:
        """Kernel values k(x_i, z_j) into `out`, shape (len(x), len(z)).

        They are of float32 where `out` is, multiples of 1/65535 where it is of uint16 (for kernels
        with values in [0, 1]), and of float64 where it is, for rows that `prepare64` made ready.

        The longer side is divided among the threads and streams past the shorter one, of which the
        sparse product makes columns. A value has the same bits whatever the side, the block and
        the thread (see :mod:`ooc_fw.kernels.products`).
        """
        if len(x) < len(z):
            x, z, out = z, x, out.T
        method = self.exact if out.dtype == np.float64 else self.fast
        map_products, constants = _MAPS[method.dtype], self._constants(method)
        code = int(self.kernel.code)
        quantised = out.dtype == np.uint16

        def fill(rows: slice, cols: slice, tile: AnyFloat, xt: Operand, zt: Operand) -> None:
            narrow = len(zt) < _NARROW
            if narrow:  # maps are vectorised along rows of the tile
                tile = np.ascontiguousarray(tile[:, : len(zt)].T)
                xt, zt = zt, xt
            map_products(code, tile, xt.terms, zt.terms, *constants)
            tile = tile[:, : len(zt)]
            if quantised:
                tile *= np.float32(65535)
                tile += np.float32(0.5)  # the assignment below cuts off
            out[rows, cols] = tile.T if narrow else tile

        self._for_tiles(x, z, method, fill)

    def weighted_sum(
        self, x: Operand, z: Operand, weights: Float64Array, nearest: Nearest | None = None
    ) -> Float64Array:
        """sum_j weights_j k(x_i, z_j), shape (len(x),): float32 values, float64 sums.

        Where `nearest` is given, the vertices of largest kernel value are found on the way.
        """
        return self._weighted_sum(x, z, weights, self.fast, nearest)

    def weighted_sum64(self, x: Operand, z: Operand, weights: Float64Array) -> Float64Array:
        """The sums of `weighted_sum` from float64 values of rows made ready by `prepare64`."""
        return self._weighted_sum(x, z, weights, self.exact)

    def weighted_sums(self, x: Operand, z: Operand, weights: ManyWeights) -> Float64Array:
        """Several weighted sums of the same kernel values, shape (len(x), weights.n_sums).

        Float32 values, float64 sums; each is that of `weighted_sum`, up to the order of additions.
        """
        return self._weighted_sums(x, z, weights, self.fast)

    def weighted_sums64(self, x: Operand, z: Operand, weights: ManyWeights) -> Float64Array:
        """The sums of `weighted_sums` from float64 values of rows made ready by `prepare64`."""
        return self._weighted_sums(x, z, weights, self.exact)

    def _weighted_sum(
        self,
        x: Operand,
        z: Operand,
        weights: Float64Array,
        method: Method,
        nearest: Nearest | None = None,
    ) -> Float64Array:
        out = np.zeros(len(x))
        sum_products, constants = _SUMS[method.dtype], self._constants(method)
        code = int(self.kernel.code)

        def add(rows: slice, cols: slice, tile: AnyFloat, xt: Operand, zt: Operand) -> None:
            sum_products(code, tile, xt.terms, zt.terms, *constants, weights[cols], out[rows])
            if nearest is not None:
                largest, place = nearest.value[rows], nearest.place[rows]
                values = tile.astype(np.float32, copy=False)
                raise_largest(values, len(zt), cols.start, largest, place)

        self._for_tiles(x, z, method, add)
        return out

    def _weighted_sums(
        self, x: Operand, z: Operand, weights: ManyWeights, method: Method
    ) -> Float64Array:
        out = np.zeros((len(x), weights.n_sums))
        map_products, constants = _MAPS[method.dtype], self._constants(method)
        code = int(self.kernel.code)

        def add(rows: slice, cols: slice, tile: AnyFloat, xt: Operand, zt: Operand) -> None:
            map_products(code, tile, xt.terms, zt.terms, *constants)
            indptr = weights.indptr[cols.start : cols.stop + 1]
            sum_columns(tile, indptr, weights.sums, weights.values, out[rows])

        self._for_tiles(x, z, method, add)
        return out

    def symmetric_sum64(self, z: Operand, weights: Float64Array) -> Float64Array:
        """`weighted_sum64` of vertices with themselves, from half of the kernel values.

        Each tile off the diagonal serves twice, as it is and transposed. Each strip of tiles has
        sums of its own, added up in the order of strips, so that threads change no bit.
        """
        constants = self._constants(self.exact)
        code = int(self.kernel.code)
        width = self._product(z, self.exact).width

        def run(x0: int) -> Float64Array:
            rows = slice(x0, min(x0 + width, len(z)))
            out = np.zeros(rows.stop)
            product = self._product(z, self.exact)
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

    def _constants(self, method: Method) -> tuple[AnyFloat, AnyFloat, int]:
        """Scale, shift and degree of the map, in the precision of the tile."""
        scale, shift, degree = self.kernel.map_constants(method.differences)
        return method.dtype(scale), method.dtype(shift), degree

    def error_bound(self, x: Operand, z: Operand, mean: Float64Array | None = None) -> Float64Array:
        """Bound on the error of `weighted_sum` with weights of absolute sum 1.

        Such a sum errs by no more than its worst kernel value does, and by its own summation; less
        where its `mean`, the same sum with absolute weights, is small (see `Kernel.error_bound`).

        Parameters
        ----------
        x, z : Operand
            What was multiplied.
        mean : ndarray of float64, shape (len(x),) or (len(x), n_sums), optional
            Of one sum or of several.

        Returns
        -------
        ndarray of float64, shape (len(x),), or that of `mean`
        """
        return self._error_bound(x, z, self.fast, mean)

    def error_bound64(
        self, x: Operand, z: Operand, mean: Float64Array | None = None
    ) -> Float64Array:
        """The bound of `error_bound` for `weighted_sum64`."""
        return self._error_bound(x, z, self.exact, mean)

    def value_bound(self, x: Operand, z: Operand) -> Float64Array:
        """Bound on the error of a float32 value of `block` or `Nearest`, shape (len(x),)."""
        bound = self.error_bound(x, z)
        if self.fast.dtype is np.float32:
            return bound
        return bound + FLOAT32_UNIT * (self._largest_value(x, z) + bound)

    def _largest_value(self, x: Operand, z: Operand) -> Float64Array:
        """No value exceeds the geometric mean of two diagonals."""
        diagonal = self.kernel.diagonal
        return np.asarray(np.sqrt(diagonal(x.norms) * diagonal(z.norms).max(initial=0)))

    def _error_bound(
        self, x: Operand, z: Operand, method: Method, mean: Float64Array | None
    ) -> Float64Array:
        kernel = self.kernel
        n_terms = x.n_terms()  # of a sum of products: no more than one side stores
        if kernel.uses_distance or (method.differences and isinstance(x.values, CSRRows)):
            n_terms = np.maximum(n_terms, z.n_terms().max(initial=0))
        largest, norms = self._largest_value(x, z), x.norms
        if mean is not None and mean.ndim == 2:
            largest, norms, n_terms = largest[:, None], norms[:, None], n_terms[:, None]
        if method.differences:
            if isinstance(x.values, CSRRows):
                n_terms = 2 * n_terms  # what either of two rows stores
            values = kernel.distance_error_bound(n_terms, method.unit, mean)
        else:
            z_norm = float(z.norms.max(initial=0))
            one = 1.0 if mean is None else mean
            values = kernel.error_bound(norms, z_norm, n_terms, method.unit, one)
        # Sums are float64 in both precisions.
        bound = np.asarray(values + len(z) * FLOAT64_UNIT * largest)
        return bound if mean is None else np.broadcast_to(bound, mean.shape)

    def _for_tiles(
        self,
        x: Operand,
        z: Operand,
        method: Method,
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
        width = min(self._product(x, method).width, len(z))
        height = TILE * TILE // max(_NARROW, width)

        def run(part: slice) -> None:
            product = self._product(x, method)
            try:
                for z0 in range(0, len(z), width):
                    cols = slice(z0, min(z0 + width, len(z)))
                    z_tile = z[cols]
                    product.load(z_tile)
                    for x0 in range(part.start, part.stop, height):
                        rows = slice(x0, min(x0 + height, part.stop))
                        x_tile = x[rows]
                        shape = product.tile_shape(len(x_tile), len(z_tile))
                        tile = self._workspace.tile(shape, method.dtype)
                        product.into(x_tile, tile)
                        use(rows, cols, tile[: len(x_tile)], x_tile, z_tile)
                    product.unload()
            finally:  # an interrupt must not leave vertices in the scratch
                product.unload()

        self.share(len(x), len(x) * len(z), run)

    def _product(self, x: Operand, method: Method) -> _Product:
        """The product for rows like `x`, one for each thread."""
        sparse = isinstance(x.values, CSRRows)
        n_features = x.values.shape[1]
        products = self._workspace.products
        key = sparse, method, n_features
        if key not in products:
            products[key] = self._new_product(*key)
        return products[key]

    def _new_product(self, sparse: bool, method: Method, n_features: int) -> _Product:
        dtype, absolute = method.dtype, self.kernel.uses_distance
        if method.differences:
            if sparse:
                return _SparseDifferenceProduct(absolute)
            return _DifferenceProduct(dtype, absolute, n_features)
        if sparse:
            return _SparseProduct(dtype, absolute, self._workspace.places(n_features))
        return _DenseProduct(dtype, n_features, self._center if dtype is np.float64 else None)


_MAPS: dict[type, Any] = {np.float32: map_tile, np.float64: map_tile64}
_SUMS: dict[type, Any] = {np.float32: sum_tile, np.float64: sum_tile64}


def centred(rows: Rows, dtype: type, center: npt.NDArray[Any] | None) -> AnyFloat:
    """Dense rows less `center`, in a precision; themselves where nothing changes."""
    values: AnyFloat = np.asarray(rows).astype(dtype, copy=False)
    return values if center is None else values - center


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


def choose_arithmetic(kernel: Kernel, probe: Rows) -> Arithmetic:
    """How an engine for rows like these computes.

    Float32 products serve wherever the bound on the error of a kernel value of the probe is small.
    Where it is not, the values of shift-invariant kernels come from float32 differences if there
    are few features, and from float64 products or else float64 differences if there are many;
    those of other kernels from float64 products.

    Parameters
    ----------
    kernel : Kernel
        Whose values.
    probe : Rows
        Some of the rows.
    """
    center = choose_center(probe)
    sparse = prefers_sparse(probe)
    as_sparse = sparse or kernel.uses_distance
    values = probe
    if not isinstance(probe, CSRRows) and kernel.shift_invariant and not as_sparse:
        values = centred(probe, np.float64, center)
    norms = kernel.norms(values)
    n_terms = np.full(len(norms), probe.shape[1])
    if isinstance(probe, CSRRows):
        n_terms = np.diff(probe.indptr)
    elif as_sparse:
        n_terms = np.count_nonzero(probe, axis=1)

    def largest_error(unit: float) -> float:
        most = np.full(len(norms), norms.max(initial=0))
        with np.errstate(over="ignore", invalid="ignore"):  # such rows are refused elsewhere
            return float(
                kernel.error_bound(most, most.max(initial=0), n_terms, unit).max(initial=0)
            )

    fast, exact = FLOAT32_PRODUCTS, FLOAT64_PRODUCTS
    if not largest_error(FLOAT32_UNIT) <= _FAST_ERROR:
        fast = FLOAT64_PRODUCTS
        error = largest_error(FLOAT64_UNIT)
        if kernel.shift_invariant and probe.shape[1] <= _FEW_FEATURES:
            fast, exact = FLOAT32_DIFFERENCES, FLOAT64_DIFFERENCES
        elif kernel.shift_invariant and error > _EXACT_ERROR:
            exact = FLOAT64_DIFFERENCES
            if error > _WIDE_ERROR:
                fast = FLOAT64_DIFFERENCES
    return Arithmetic(center, sparse, fast, exact)


def _split(n: int, parts: int) -> list[slice]:
    """Ranges of about equal length, whole multiples of 16 rows but for the last."""
    step = max(16, -(-n // (parts * 16)) * 16)
    return [slice(start, min(start + step, n)) for start in range(0, n, step)]
