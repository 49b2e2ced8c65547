"""Blocks of kernel values and kernel sums, tile by tile, on all threads.

The formulas are in :mod:`ooc_fw.kernels.functions`, the choice of precision and products in
:mod:`ooc_fw.kernels.arithmetic`, the products in :mod:`ooc_fw.kernels.tiles`, and the compiled
loops in :mod:`ooc_fw._core`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np

from ooc_fw._core.maps import (
    map_tile,
    map_tile64,
    raise_largest,
    sum_columns,
    sum_tile,
    sum_tile64,
)
from ooc_fw.data.rows import CSRRows, Float64Array, Int64Array, Rows
from ooc_fw.kernels.arithmetic import FEW_FEATURES, AnyFloat, Arithmetic, Method, centred
from ooc_fw.kernels.functions import FLOAT32_UNIT, FLOAT64_UNIT, Kernel
from ooc_fw.kernels.tiles import TILE, Operand, Workspace
from ooc_fw.system.blas import hold_to_one_thread, limit_this_thread
from ooc_fw.system.errors import InputError

_NARROW = 32  # vertices below which a tile is transposed before it is mapped
_SMALL_WORK = 100_000  # kernel values that one thread computes sooner than several
_LARGEST = float(np.finfo(np.float32).max) / 16  # of a product, with room for factors of a map

_MAPS: dict[type, Any] = {np.float32: map_tile, np.float64: map_tile64}
_SUMS: dict[type, Any] = {np.float32: sum_tile, np.float64: sum_tile64}


class Nearest:
    """The vertex of largest kernel value for each of some rows, found tile by tile.

    Parameters
    ----------
    n_rows : int
        Number of rows.

    Attributes
    ----------
    value : ndarray of float32, shape (n_rows,)
        Largest value so far of a kernel that is never negative; 0 before the first.
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
        The sum that an entry belongs to.
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


class Engine:
    """Computes values of one kernel; a context manager that holds its threads.

    Rows from `prepare` have float32 values for the bulk of the work or, with ``exact=True``,
    float64 values for what a certificate rests on (see `Arithmetic`). Sums are float64 in both.

    Parameters
    ----------
    kernel : Kernel
        What to compute.
    threads : int
        Worker threads. BLAS is held to one thread while the engine is open, so that the two do not
        compete; results do not depend on the number.
    arithmetic : Arithmetic
        How to compute; `choose_arithmetic` finds what suits some rows.

    Attributes
    ----------
    evaluations : int
        Kernel values computed so far, of both precisions.
    """

    def __init__(
        self, kernel: Kernel, threads: int = 1, arithmetic: Arithmetic | None = None
    ) -> None:
        self.kernel = kernel
        self.threads = threads
        self.arithmetic = (arithmetic or Arithmetic()).suited_to(kernel)
        self.evaluations = 0
        self._counting = threading.Lock()
        self._pool = (
            ThreadPoolExecutor(threads, initializer=limit_this_thread) if threads > 1 else None
        )
        self._workspace = Workspace(kernel.uses_distance, self.arithmetic.center)
        self._release_blas = hold_to_one_thread(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
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
        return partial(Engine, self.kernel, 1, self.arithmetic)

    def count(self, n: int) -> None:
        """Add to `evaluations`, from any thread."""
        with self._counting:
            self.evaluations += n

    # -- rows ------------------------------------------------------------------------------------

    def prepare(self, rows: Rows, exact: bool = False) -> Operand:
        """Rows with what their products need; O(stored values).

        Raises
        ------
        InputError
            For rows of which float32 cannot hold a product or a kernel value.
        """
        method = self.arithmetic.exact if exact else self.arithmetic.fast
        values = self._in_form(rows, method)
        if method.differences or isinstance(values, CSRRows):
            norms = self.kernel.norms(values)
        else:
            centred_values = centred(values, method.dtype, self.arithmetic.center)
            norms = self.kernel.norms(centred_values)
            if method.dtype is np.float32:
                values = centred_values
        _check_range(self.kernel, norms)
        terms = np.zeros(len(norms)) if method.differences else self.kernel.map_terms(norms)
        return Operand(values, norms, terms.astype(method.dtype), method)

    def _in_form(self, rows: Rows, method: Method) -> Rows:
        """Rows sparse or dense, as the products of all rows of that width take them."""
        sparse = self.arithmetic.sparse or isinstance(rows, CSRRows)
        if method.differences and rows.shape[1] <= FEW_FEATURES:
            sparse = False
        if sparse:
            return rows if isinstance(rows, CSRRows) else CSRRows.from_dense(rows)
        return rows.toarray() if isinstance(rows, CSRRows) else rows

    # -- values and sums -------------------------------------------------------------------------

    def block(self, x: Operand, z: Operand, out: AnyFloat) -> None:
        """Write kernel values k(x_i, z_j) into `out`, shape (len(x), len(z)).

        `out` is of float32; of float64 for exact rows; or of uint16, for values in [0, 1] as
        multiples of 1/65535.

        The longer side is divided among the threads and passes the shorter one, of which the sparse
        product makes columns. A value has the same bits whatever the side, the block and the thread
        (see :mod:`ooc_fw.kernels.products`).
        """
        if len(x) < len(z):
            x, z, out = z, x, out.T
        map_products, kernel_map = _MAPS[x.method.dtype], self._map(x)
        quantised = out.dtype == np.uint16

        def fill(rows: slice, cols: slice, tile: AnyFloat, xt: Operand, zt: Operand) -> None:
            narrow = len(zt) < _NARROW
            if narrow:  # maps are vectorised along rows of the tile
                tile = np.ascontiguousarray(tile[:, : len(zt)].T)
                xt, zt = zt, xt
            map_products(kernel_map, tile, xt.terms, zt.terms)
            tile = tile[:, : len(zt)]
            if quantised:
                tile *= np.float32(65535)
                tile += np.float32(0.5)  # the assignment below truncates
            out[rows, cols] = tile.T if narrow else tile

        self._for_tiles(x, z, fill)

    def weighted_sum(
        self, x: Operand, z: Operand, weights: Float64Array, nearest: Nearest | None = None
    ) -> Float64Array:
        """sum_j weights_j k(x_i, z_j), shape (len(x),).

        With `nearest`, the vertices of largest kernel value are found in the same pass.
        """
        out = np.zeros(len(x))
        sum_products, kernel_map = _SUMS[x.method.dtype], self._map(x)

        def add(rows: slice, cols: slice, tile: AnyFloat, xt: Operand, zt: Operand) -> None:
            sum_products(kernel_map, tile, xt.terms, zt.terms, weights[cols], out[rows])
            if nearest is not None:
                largest, place = nearest.value[rows], nearest.place[rows]
                values = tile.astype(np.float32, copy=False)
                raise_largest(values, len(zt), cols.start, largest, place)

        self._for_tiles(x, z, add)
        return out

    def weighted_sums(self, x: Operand, z: Operand, weights: ManyWeights) -> Float64Array:
        """Several weighted sums of the same kernel values, shape (len(x), weights.n_sums).

        Each is that of `weighted_sum`, up to the order of additions.
        """
        out = np.zeros((len(x), weights.n_sums))
        map_products, kernel_map = _MAPS[x.method.dtype], self._map(x)

        def add(rows: slice, cols: slice, tile: AnyFloat, xt: Operand, zt: Operand) -> None:
            map_products(kernel_map, tile, xt.terms, zt.terms)
            indptr = weights.indptr[cols.start : cols.stop + 1]
            sum_columns(tile, indptr, weights.sums, weights.values, out[rows])

        self._for_tiles(x, z, add)
        return out

    def symmetric_sum(self, z: Operand, weights: Float64Array) -> Float64Array:
        """`weighted_sum` of vertices with themselves, from half of the kernel values.

        Each tile off the diagonal serves twice, as it is and transposed. Each strip of tiles has
        sums of its own, added up in the order of strips, so that threads change no bit.
        """
        dtype, kernel_map = z.method.dtype, self._map(z)
        width = self._workspace.product(z).width

        def run(x0: int) -> Float64Array:
            rows = slice(x0, min(x0 + width, len(z)))
            out = np.zeros(rows.stop)
            product = self._workspace.product(z)
            try:
                product.load(z[rows])
                for y0 in range(0, x0 + 1, width):
                    cols = slice(y0, min(y0 + width, len(z)))
                    n, m = cols.stop - y0, rows.stop - x0
                    tile = self._workspace.tile(product.tile_shape(n, m), dtype)
                    product.into(z[cols], tile)
                    terms = z.terms[cols], z.terms[rows]
                    _SUMS[dtype](kernel_map, tile[:n], *terms, weights[rows], out[cols])
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

    def _map(self, x: Operand) -> Any:
        return self.kernel.map_in(x.method.dtype, x.method.differences)

    # -- bounds on rounding ----------------------------------------------------------------------

    def error_bound(self, x: Operand, z: Operand, mean: Float64Array | None = None) -> Float64Array:
        """Bound on the error of `weighted_sum` with weights of absolute sum 1.

        Such a sum errs by no more than its worst kernel value does, and by its own summation; less
        where its `mean`, the same sum with absolute weights, is small (see `Kernel.error_bound`).
        The shape is (len(x),) or that of `mean`, which may be (len(x), n_sums).
        """
        kernel, method = self.kernel, x.method
        sparse_differences = method.differences and isinstance(x.values, CSRRows)
        n_terms = x.n_terms()  # of a sum of products: no more than one side stores
        if kernel.uses_distance or sparse_differences:
            n_terms = np.maximum(n_terms, z.n_terms().max(initial=0))
        if sparse_differences:
            n_terms = 2 * n_terms  # a sum has a term for each value that either row stores
        largest, norms = self._largest_value(x, z), x.norms
        if mean is not None and mean.ndim == 2:
            largest, norms, n_terms = largest[:, None], norms[:, None], n_terms[:, None]
        if method.differences:
            values = kernel.distance_error_bound(n_terms, method.unit, mean)
        else:
            z_norm = float(z.norms.max(initial=0))
            one = 1.0 if mean is None else mean
            values = kernel.error_bound(norms, z_norm, n_terms, method.unit, one)
        summation = len(z) * FLOAT64_UNIT * largest  # sums are float64 in both precisions
        bound = np.asarray(values + summation)
        return bound if mean is None else np.broadcast_to(bound, mean.shape)

    def value_bound(self, x: Operand, z: Operand) -> Float64Array:
        """Bound on the error of a float32 value of `block` or `Nearest`, shape (len(x),)."""
        bound = self.error_bound(x, z)
        if x.method.dtype is np.float32:
            return bound
        return bound + FLOAT32_UNIT * (self._largest_value(x, z) + bound)

    def _largest_value(self, x: Operand, z: Operand) -> Float64Array:
        """No value exceeds the geometric mean of two diagonals."""
        diagonal = self.kernel.diagonal
        return np.asarray(np.sqrt(diagonal(x.norms) * diagonal(z.norms).max(initial=0)))

    # -- tiles and threads -----------------------------------------------------------------------

    def share(self, n: int, work: int, run: Callable[[slice], None]) -> None:
        """Call `run` on ranges that make up range(n), each on its thread.

        Parameters
        ----------
        n : int
            Number of items.
        work : int
            Numbers computed or moved in all. A single thread takes little work, since waking
            another costs as much as some ten thousand of them.
        run : callable
            Releases the GIL where it matters.
        """
        parts = _split(n, self.threads if work > _SMALL_WORK else 1)
        if self._pool is None or len(parts) == 1:
            for part in parts:
                run(part)
        else:
            list(self._pool.map(run, parts))

    def _for_tiles(
        self,
        x: Operand,
        z: Operand,
        use: Callable[[slice, slice, AnyFloat, Operand, Operand], None],
    ) -> None:
        """Call `use(rows, cols, products, x_tile, z_tile)` for all tiles.

        Columns of products beyond the vertices of `z_tile` are padding. Rows are divided among the
        threads; each thread takes the tiles of vertices in order, so that sums are the same for any
        number of threads.
        """
        if len(z) == 0:
            return
        self.count(len(x) * len(z))
        width = min(self._workspace.product(x).width, len(z))
        height = TILE * TILE // max(_NARROW, width)

        def run(part: slice) -> None:
            product = self._workspace.product(x)
            try:
                for z0 in range(0, len(z), width):
                    cols = slice(z0, min(z0 + width, len(z)))
                    z_tile = z[cols]
                    product.load(z_tile)
                    for x0 in range(part.start, part.stop, height):
                        rows = slice(x0, min(x0 + height, part.stop))
                        x_tile = x[rows]
                        shape = product.tile_shape(len(x_tile), len(z_tile))
                        tile = self._workspace.tile(shape, x.method.dtype)
                        product.into(x_tile, tile)
                        use(rows, cols, tile[: len(x_tile)], x_tile, z_tile)
                    product.unload()
            finally:  # an interrupt must not leave vertices in the scratch
                product.unload()

        self.share(len(x), len(x) * len(z), run)


def _check_range(kernel: Kernel, norms: Float64Array) -> None:
    """Refuse rows of which float32 could not hold a product or a kernel value."""
    with np.errstate(over="ignore"):
        largest = max(norms.max(initial=0), kernel.diagonal(norms).max(initial=0))
    if max(1.0, kernel.gamma) * largest > _LARGEST:
        raise InputError(
            f"a row of norm {norms.max():.3g} is too large for the {kernel.name} kernel in "
            f"float32; scale the features first (ooc-fw convert --scale maxabs) or lower gamma"
        )


def _split(n: int, parts: int) -> list[slice]:
    """Ranges of about equal length, whole multiples of 16 rows but for the last."""
    step = max(16, -(-n // (parts * 16)) * 16)
    return [slice(start, min(start + step, n)) for start in range(0, n, step)]
