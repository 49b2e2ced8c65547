"""Vertices held in RAM: their rows, labels, penalties, weights and gradient, and how these grow.

Arrays and rows grow at the end by doubling, and shrink to chosen places.
"""

from __future__ import annotations

import math
import mmap
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_fw._core import steps as core
from ooc_fw.data.rows import CSRRows, Float64Array, Int64Array, Rows, take_rows
from ooc_fw.kernels.arithmetic import Operand
from ooc_fw.kernels.engine import Engine
from ooc_fw.problem import relative_gap

_NO_RESERVE = 0x4000 if sys.platform == "linux" else 0
"""MAP_NORESERVE: without it, Linux might refuse a large table of which little is used."""


class GrowingArray:
    """An array whose first axis grows; `tail` is the shape of one element along it."""

    def __init__(self, dtype: Any, tail: tuple[int, ...] = ()) -> None:
        self.hold(np.empty((0, *tail), dtype=dtype))

    def hold(self, block: npt.NDArray[Any]) -> None:
        """Hold these elements in place of all others, without a copy."""
        self._buffer, self._size = block, len(block)

    @property
    def view(self) -> npt.NDArray[Any]:
        """What it holds; writes go through. Stale once the array has grown."""
        return self._buffer[: self._size]

    def append(self, block: npt.NDArray[Any]) -> None:
        """Add elements at the end."""
        size = self._size + len(block)
        if size > len(self._buffer):
            shape = max(size, 2 * self._size), *self._buffer.shape[1:]
            grown = np.empty(shape, self._buffer.dtype)
            grown[: self._size] = self.view
            self._buffer = grown
        self._buffer[self._size : size] = block
        self._size = size

    def keep(self, places: npt.NDArray[np.int64]) -> None:
        """Keep only the elements at `places`, in that order."""
        self.hold(self.view[places])


class GrowingRows:
    """Dense or sparse rows that grow; the kind is that of the first block added."""

    def __init__(self) -> None:
        self._dense: GrowingArray | None = None
        self._n_features = 0
        self._data, self._indices = GrowingArray(np.float32), GrowingArray(np.int32)
        self._indptr = GrowingArray(np.int64)
        self._indptr.append(np.zeros(1, dtype=np.int64))

    @property
    def view(self) -> Rows:
        """The rows held. Stale once rows were added."""
        if self._dense is not None:
            return self._dense.view
        return CSRRows(self._data.view, self._indices.view, self._indptr.view, self._n_features)

    def append(self, rows: Rows) -> None:
        """Add rows at the end."""
        if isinstance(rows, CSRRows):
            self._n_features = rows.n_features
            self._indptr.append(rows.indptr[1:] + self._indptr.view[-1])
            self._data.append(rows.data)
            self._indices.append(rows.indices)
            return
        if self._dense is None:
            self._dense = GrowingArray(np.float32, (rows.shape[1],))
        self._dense.append(rows)

    def keep(self, places: npt.NDArray[np.int64]) -> None:
        """Keep only the rows at `places`, in that order."""
        rows = take_rows(self.view, places)
        if isinstance(rows, CSRRows):
            self._data.hold(rows.data)
            self._indices.hold(rows.indices)
            self._indptr.hold(rows.indptr)
        elif self._dense is not None:
            self._dense.hold(rows)


class LazyTable:
    """Rows of numbers, zeros at first, whose memory pages are taken when first written.

    `values` has at least `n_rows` rows and `n_columns` columns. Its pages have 4 KiB rather than
    being huge, so that only the part in use becomes resident.
    """

    def __init__(self, n_rows: int, n_columns: int, dtype: npt.DTypeLike) -> None:
        item = np.dtype(dtype).itemsize
        # With rows a multiple of a page apart, a column would fall into one set of the cache.
        width = n_columns // 1024 * 1024 + 1040
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
        self._pages = mmap.mmap(-1, max(1, n_rows) * width * item, flags=flags)
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            self._pages.madvise(mmap.MADV_NOHUGEPAGE)
        self._stride = width * item
        self.values = np.frombuffer(self._pages, dtype=dtype).reshape(-1, width)

    def row_bytes(self, n_columns: int) -> int:
        """Bytes of memory that a row takes of which `n_columns` were written."""
        # A row may begin and end within a page.
        return min(self._stride, n_columns * self.values.itemsize + 2 * mmap.PAGESIZE)

    def release(self, n_rows: int) -> None:
        """Give the memory of the rows from `n_rows` on back; they are zeros again."""
        start = -(-n_rows * self._stride // mmap.PAGESIZE) * mmap.PAGESIZE
        if start < len(self._pages) and hasattr(mmap, "MADV_DONTNEED"):
            self._pages.madvise(mmap.MADV_DONTNEED, start)


def _vector(name: str) -> Any:
    """An attribute of a `VertexTable`: one of its growing vectors, which may be written to."""
    return property(lambda table: table._vectors[name].view)


class VertexTable:
    """What is known of each vertex, without kernel values."""

    # Vectors of shape (m,)
    ids: Int64Array = _vector("ids")  # rows of the vertices in the source
    labels: Float64Array = _vector("labels")  # +1 or -1
    alpha: Float64Array = _vector("alpha")  # weights
    grad: Float64Array = _vector("grad")  # gradient Q alpha
    diag: Float64Array = _vector("diag")  # Q_ii = k(x_i, x_i) + 1 + 1/C_i
    pinned: npt.NDArray[np.bool_] = _vector("pinned")  # whether never to be pruned
    exact_alpha: Float64Array = _vector("exact_alpha")  # weights of the last float64 gradient
    exact_grad: Float64Array = _vector("exact_grad")  # that gradient; NaN where it is not known
    norms: Float64Array = _vector("norms")  # for products: see `Operand`
    terms: npt.NDArray[Any] = _vector("terms")

    def __init__(self, engine: Engine, C: float, penalties: Float64Array | None) -> None:
        self.engine = engine
        self._rho = math.nan
        self._C, self._penalties = C, penalties
        self._places: dict[int, int] = {}  # by source row
        self._rows = GrowingRows()
        self._values = self._rows  # what float32 products see; another copy only if it differs
        types = {"ids": np.int64, "terms": engine.arithmetic.fast.dtype, "pinned": np.bool_}
        for name in ("labels", "alpha", "grad", "diag", "norms", "exact_alpha", "exact_grad"):
            types[name] = np.float64
        self._vectors = {name: GrowingArray(dtype) for name, dtype in types.items()}

    def __len__(self) -> int:
        return len(self._places)

    @property
    def rows(self) -> Rows:
        """Rows of the vertices, shape (m, n_features)."""
        return self._rows.view

    @property
    def vertices(self) -> core.Vertices:
        """Weights, gradient, diagonal and labels as compiled functions take them."""
        return core.Vertices(self.alpha, self.grad, self.diag, self.labels)

    @property
    def penalties(self) -> float | Float64Array:
        """Penalty of each vertex, shape (m,), or of all of them."""
        return self.penalty_of(self.ids)

    def penalty_of(self, row_ids: Int64Array) -> float | Float64Array:
        """Penalty of each of some rows of the source, shape (k,), or of all of them."""
        return self._C if self._penalties is None else self._penalties[row_ids]

    @property
    def rho(self) -> float:
        """The number alpha' g = |w|^2 + b^2 + sum alpha_i^2 / C_i, at least its last sum."""
        return self._rho

    @rho.setter
    def rho(self, value: float) -> None:
        self._rho = max(value, self._slack_norm())

    def _slack_norm(self) -> float:
        """Sum of all alpha_i^2 / C_i."""
        if self._penalties is None:
            return float(self.alpha @ self.alpha) / self._C
        return float(self.alpha @ (self.alpha / self.penalties))

    @property
    def plain_grad(self) -> Float64Array:
        """Gradient without each vertex's own alpha_i / C_i, shape (m,)."""
        return self.grad - self.alpha / self.penalties

    @property
    def support(self) -> npt.NDArray[np.intp]:
        """Places of the vertices of positive weight."""
        return np.flatnonzero(self.alpha)

    def place_of(self, row_id: int) -> int | None:
        """Place of the vertex of a source row, None when it is outside."""
        return self._places.get(row_id)

    def places_of(self, row_ids: Int64Array) -> npt.NDArray[np.intp]:
        """Places of vertices, given by their source rows."""
        return np.array([self._places[row] for row in row_ids.tolist()], dtype=np.intp)

    def outside(self, row_ids: Int64Array) -> npt.NDArray[np.intp]:
        """Positions in `row_ids` of rows that are no vertices."""
        places = self._places
        return np.flatnonzero([row not in places for row in row_ids.tolist()])

    def relative_gap(self) -> float:
        """Relative duality gap of the problem restricted to the vertices."""
        return relative_gap(self.rho, float(self.grad.min()))

    def squared_norm(self) -> float:
        """|w|^2 + b^2 = rho - sum alpha_i^2 / C_i."""
        return self.rho - self._slack_norm()

    def _append(self, row_ids: Int64Array, rows: Rows, operand: Operand, y: Float64Array) -> None:
        """Add new vertices; their weight, gradient and pin are still to be added to `_vectors`."""
        before = len(self)
        if before == 0 and operand.values is not rows:
            self._values = GrowingRows()
        self._rows.append(rows)
        if self._values is not self._rows:
            self._values.append(operand.values)
        diag = self.engine.kernel.diagonal(operand.norms) + 1 + 1 / self.penalty_of(row_ids)
        given = {"ids": row_ids, "labels": y, "norms": operand.norms, "terms": operand.terms}
        self._extend(diag=diag, **given)
        self._places.update(zip(row_ids.tolist(), range(before, before + len(y)), strict=True))

    def _extend(self, **blocks: npt.NDArray[Any]) -> None:
        for name, block in blocks.items():
            self._vectors[name].append(block)

    def keep(self, places: Int64Array) -> None:
        """Forget all vertices but those at `places`, which increase."""
        self._rows.keep(places)
        if self._values is not self._rows:
            self._values.keep(places)
        for vector in self._vectors.values():
            vector.keep(places)
        self._places = {row: place for place, row in enumerate(self.ids.tolist())}
