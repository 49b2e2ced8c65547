"""Blocks of kernel values and kernel sums, tile by tile, on all threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from ooc_fw._core import maps
from ooc_fw.data.rows import AnyArray, Float64Array, Rows, take_rows
from ooc_fw.kernels.arithmetic import Arithmetic, Operand
from ooc_fw.kernels.functions import (
    FLOAT32_UNIT,
    FLOAT64_UNIT,
    LEAST_FLOAT32,
    OUTWARDS,
    Kernel,
    Sizes,
)
from ooc_fw.kernels.products import TILE, Workspace
from ooc_fw.system.errors import InputError
from ooc_fw.system.threads import Result, Threads

_FEW_ROWS = 256  # threads divide the columns of a block with fewer rows
_LEAST_ROWS = 128  # rows of a thread: each thread has to load all tiles of vertices
_MANY_SUMS = 32  # so many sums are a product of matrices, which BLAS computes faster
_NARROW = 32  # a tile with fewer vertices is transposed before it is mapped
_LARGEST = float(np.finfo(np.float32).max) / 16  # largest product, with room for factors of a map

BoolArray: TypeAlias = npt.NDArray[np.bool_]
UInt16Array: TypeAlias = npt.NDArray[np.uint16]
_UseTile: TypeAlias = Callable[[slice, slice, AnyArray, Operand, Operand], None]


class Nearest:
    """For each row the vertex with the largest value of a kernel that is never negative."""

    def __init__(self, n_rows: int) -> None:
        self.value = np.zeros(n_rows, dtype=np.float32)
        self.error = np.full(n_rows, np.inf)  # bound on the error of each value
        self.place = np.zeros(n_rows, dtype=np.int64)

    def see(self, rows: slice, first: int, values: AnyArray) -> None:
        """Look at kernel values between some rows and the vertices from place `first` on."""
        best = values.argmax(axis=1)
        largest = values[np.arange(len(values)), best].astype(np.float32)
        larger = np.flatnonzero(largest > self.value[rows])
        self.value[rows][larger] = largest[larger]
        self.place[rows][larger] = first + best[larger]

    def distance(self, diagonal: Float64Array) -> Float64Array:
        """Upper bound on |phi(x) - phi(z)|, if k(x, x) = k(z, z) is the `diagonal`."""
        square = 2 * (diagonal - self.value + self.error)
        return np.asarray(np.sqrt(np.maximum(square, 0.0)) * OUTWARDS)


class Engine:
    """Computes values of one kernel; a context manager that holds its threads.

    Rows from `prepare` give float32 kernel values, or float64 ones with ``exact=True``, for which a
    certificate has narrow bounds. Sums are float64 in both cases. BLAS is held to one thread while
    the engine is open, so that its threads and those of the engine do not compete. `evaluations`
    counts the kernel values in both precisions.
    """

    def __init__(
        self,
        kernel: Kernel,
        threads: int = 1,
        arithmetic: Arithmetic | None = None,
    ) -> None:
        self.kernel, self.threads = kernel, threads
        self.arithmetic = (arithmetic or Arithmetic()).suited_to(kernel)
        self.evaluations = 0
        self._counting = threading.Lock()
        self.pool = Threads(threads)
        self._workspace = Workspace(kernel, self.arithmetic.center)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """End the threads, and give BLAS its threads back."""
        self.pool.close()

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process has an engine of one thread that computes the same.
        return Engine, (self.kernel, 1, self.arithmetic)

    def count(self, n: int) -> None:
        """Add to `evaluations`, from any thread."""
        with self._counting:
            self.evaluations += n

    def prepare(self, rows: Rows, exact: bool = False) -> Operand:
        """Rows with all that their products need.

        InputError is raised if a product or a kernel value of a row is too large for float32.
        """
        arithmetic = self.arithmetic
        with np.errstate(over="ignore"):  # rows whose norms overflow are refused
            method = arithmetic.exact if exact else arithmetic.fast
            x = arithmetic.prepare(self.kernel, rows, method)
        largest = self._sizes(x.norms).max(initial=1)
        gamma = self.kernel.gamma if self.kernel.uses_gamma else 1.0
        if max(1.0, gamma) * largest > _LARGEST:
            norm = x.norms.max()
            what = f"gamma {gamma:.3g}" if gamma > largest else f"a row of norm {norm:.3g}"
            raise InputError(
                f"{what} is too large for the {self.kernel.name} kernel in float32; scale the "
                f"features first (ooc-fw convert --scale maxabs) or lower gamma"
            )
        return x

    def too_large(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Which rows `prepare` refuses, shape (n_rows,)."""
        arithmetic, gamma = self.arithmetic, self.kernel.gamma if self.kernel.uses_gamma else 1.0
        limit = _LARGEST / max(1.0, gamma)
        center = 0.0
        if arithmetic.center is not None:
            center = float(self.kernel.norms(arithmetic.center[None])[0])
        # A row minus the centre is at most 4 times as large as the sum of their sizes.
        found = ~(self._sizes(self.kernel.norms(rows)) + center <= limit / 4)
        places = np.flatnonzero(found)
        if len(places) > 0:
            with np.errstate(over="ignore", invalid="ignore"):
                x = arithmetic.prepare(self.kernel, take_rows(rows, places), arithmetic.fast)
            found[places] = ~(self._sizes(x.norms) <= limit)
        return np.asarray(found)

    def _sizes(self, norms: Float64Array) -> Float64Array:
        with np.errstate(over="ignore"):
            return np.maximum(norms, self.kernel.diagonal(norms))

    def block(self, x: Operand, z: Operand, out: AnyArray) -> None:
        """Write kernel values k(x_i, z_j) into `out`, shape (len(x), len(z)).

        `out` is of float32, or of float64 for exact rows, or of uint16 for values in [0, 1], which
        are then multiples of 1/65535. If there are few rows, they change places with the vertices,
        so that all threads have work.
        """
        if len(x) < min(len(z), _FEW_ROWS):
            x, z, out = z, x, out.T
        kernel_map = self.map_of(x)

        def fill(rows: slice, cols: slice, tile: AnyArray, xt: Operand, zt: Operand) -> None:
            if len(zt) < _NARROW:  # a map is vectorised along rows of a tile, which should be long
                flipped = np.ascontiguousarray(tile.T)
                maps.map_tile(kernel_map, flipped, zt.terms, xt.terms)
                tile = flipped.T
            else:
                maps.map_tile(kernel_map, tile, xt.terms, zt.terms)
            _store(tile, out[rows, cols])

        self._for_tiles(x, z, fill)

    def weighted_sum(
        self, x: Operand, z: Operand, weights: Float64Array, nearest: Nearest | None = None
    ) -> Float64Array:
        """sum_j weights_j k(x_i, z_j), shape (len(x),); (len(x), n) for weights (n, len(z)).

        With `nearest`, the same reading finds the vertices with the largest kernel values.
        """
        matrix, kernel_map = np.atleast_2d(weights), self.map_of(x)
        out = np.zeros((len(x), len(matrix)))

        def add(rows: slice, cols: slice, tile: AnyArray, xt: Operand, zt: Operand) -> None:
            part = np.ascontiguousarray(matrix[:, cols])
            maps.sum_tile(kernel_map, tile, xt.terms, zt.terms, part, out[rows])
            if nearest is not None:
                nearest.see(rows, cols.start, tile)

        self._for_tiles(x, z, add)
        if nearest is not None:
            nearest.error = self.value_bound(x, z)
        return out if weights.ndim == 2 else out[:, 0]

    def symmetric_sum(self, z: Operand, weights: Float64Array) -> Float64Array:
        """`weighted_sum` for z in place of x, from half of the kernel values.

        Tiles off the diagonal serve twice, as they are and transposed.
        """
        kernel_map, width = self.map_of(z), self._workspace.width(z, z)

        def run(start: int) -> Float64Array:
            strip = slice(start, min(start + width, len(z)))
            zt, part = z[strip], weights[strip]
            out = np.zeros(strip.stop)
            for rows, xt, tile in self._workspace.products(z[: strip.stop], zt, width):
                maps.sum_tile(kernel_map, tile, xt.terms, zt.terms, part[None], out[rows, None])
                if rows.start < start:
                    out[strip] += weights[rows] @ tile
            return out

        self.count(len(z) * (len(z) + width) // 2)
        total = np.zeros(len(z))
        starts = range(0, len(z), width)[::-1]  # the longest strips first
        for sums in self.pool.map(run, starts):
            total[: len(sums)] += sums
        return total

    def strips(
        self,
        x: Operand,
        z: Operand,
        weights: Float64Array,
        use: Callable[[slice, Float64Array], tuple[Result, Float64Array]],
        kept: UInt16Array | None = None,
        wanted: BoolArray | None = None,
    ) -> Iterator[tuple[Result, Float64Array]]:
        """Sum the same kernel values twice: over the vertices, and then over the rows.

        Rows go strip by strip. `use(rows, sums)` gets sum_j weights[c, j] k(x_i, z_j), of shape
        (n_rows, k), and returns any result, and factors f of the same shape. Yields that result
        and sum_i f[i, c] k(x_i, z_j), of shape (k, len(z)), in the order of the rows. The strips
        are the same for any number of threads. The kernel values are written into `kept`, shape
        (len(x), len(z)), as by `block`. Sums that are not `wanted`, shape (len(x), k), may be 0.
        """
        kernel_map, itemsize = self.map_of(x), np.dtype(x.method.dtype).itemsize
        many = wanted is None and len(weights) >= _MANY_SUMS
        # A strip of more than 4 MiB would not be faster, unless the sums over its rows are larger.
        height = max(128, (4 << 20) // (len(z) * itemsize), 2 * len(weights))
        self.count(len(x) * len(z))

        def run(start: int) -> tuple[Result, Float64Array]:
            rows = slice(start, min(start + height, len(x)))
            xt, sums = x[rows], np.zeros((rows.stop - start, len(weights)))
            tiles = []
            for cols, zt, tile in self._workspace.strip(xt, z):
                part = np.ascontiguousarray(weights[:, cols])
                if wanted is not None:
                    maps.map_tile(kernel_map, tile, xt.terms, zt.terms)
                    maps.add_wanted_sums(tile, part, wanted[rows], sums)
                elif many:
                    maps.map_tile(kernel_map, tile, xt.terms, zt.terms)
                    sums += tile.astype(np.float64) @ part.T
                else:
                    maps.sum_tile(kernel_map, tile, xt.terms, zt.terms, part, sums)
                if kept is not None:
                    _store(tile, kept[rows, cols])
                tiles.append((cols, tile))
            result, factors = use(rows, sums)
            transposed = np.zeros((len(weights), len(z)))
            for cols, tile in tiles:
                maps.add_weighted_rows(
                    tile, factors, cols.start, cols.stop - cols.start, transposed
                )
            return result, transposed

        return self.pool.map(run, range(0, len(x), height))

    def map_of(self, x: Operand) -> maps.KernelMap:
        """The compiled map for products of rows like `x`."""
        dtype = x.method.dtype
        scale, shift, degree = self.kernel.map_constants(x.method.differences)
        return maps.KernelMap(int(self.kernel.code), dtype(scale), dtype(shift), degree)

    def error_bound(
        self,
        x: Operand,
        z: Operand,
        mean: Float64Array | None = None,
        mean_norm: Float64Array | None = None,
    ) -> Float64Array:
        """Bound on the error of `weighted_sum` if the absolute weights sum to 1.

        The sum errs by no more than its worst kernel value, plus its own summation. The bound is
        narrower if the `mean`, the same sum with absolute weights, is small (`Kernel.error_bound`),
        or if `mean_norm` is small (see `Sizes`). The shape is (len(x),) or that of `mean`, which
        may be (len(x), n_sums).
        """
        method, n_terms = x.method, x.n_terms()  # a row has no more terms than stored values
        summation = len(z) * FLOAT64_UNIT * self._largest_value(x, z)  # sums are always float64
        norms, z_norm = x.norms, float(z.norms.max(initial=0))
        if mean is not None and mean.ndim == 2:
            norms, n_terms, summation = norms[:, None], n_terms[:, None], summation[:, None]
        sizes = Sizes(method, norms, z_norm, n_terms, mean, mean_norm)
        bound = self.kernel.error_bound(sizes) + summation
        return np.asarray(bound) if mean is None else np.broadcast_to(bound, mean.shape)

    def value_bound(self, x: Operand, z: Operand) -> Float64Array:
        """Bound on the error of a float32 value of `block` or `Nearest`, shape (len(x),)."""
        bound = self.error_bound(x, z)
        if x.method.dtype is np.float32:
            return bound
        rounding = FLOAT32_UNIT * (self._largest_value(x, z) + bound)
        return np.asarray(bound + rounding + LEAST_FLOAT32)

    def _largest_value(self, x: Operand, z: Operand) -> Float64Array:
        """Bound on kernel values: none exceeds the geometric mean of the two diagonals."""
        diagonal = self.kernel.diagonal
        return np.asarray(np.sqrt(diagonal(x.norms) * diagonal(z.norms).max(initial=0)))

    def _for_tiles(self, x: Operand, z: Operand, use: _UseTile) -> None:
        """Call `use(rows, cols, products, x_tile, z_tile)` on tiles; threads share the rows."""
        if len(z) == 0:
            return
        self.count(len(x) * len(z))
        width = min(self._workspace.width(x, z), len(z))
        height = TILE * TILE // max(_NARROW, width)

        def run(part: slice) -> None:
            all_rows = x[part]
            for start in range(0, len(z), width):
                cols = slice(start, min(start + width, len(z)))
                zt = z[cols]
                for rows, xt, tile in self._workspace.products(all_rows, zt, height):
                    use(slice(part.start + rows.start, part.start + rows.stop), cols, tile, xt, zt)

        self.pool.share(len(x), len(x) * len(z), run, _LEAST_ROWS)


def _store(values: AnyArray, out: AnyArray) -> None:
    """Write kernel values; integers are multiples of 1/65535."""
    if out.dtype == np.uint16:
        values = values * values.dtype.type(65535) + values.dtype.type(0.5)
    np.copyto(out, values, casting="unsafe")
