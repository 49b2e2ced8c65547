"""Vertices held in RAM: their rows, labels, penalties, weights and gradient."""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ooc_fw._core import steps as core
from ooc_fw.data.rows import Float64Array, Int64Array, Rows
from ooc_fw.kernels.arithmetic import Operand
from ooc_fw.kernels.engine import Engine
from ooc_fw.problem import relative_gap
from ooc_fw.solver.growing import GrowingArray, GrowingRows


def _vector(name: str) -> Any:
    """An attribute of a `VertexTable`: one of its growing vectors, which may be written to."""
    return property(lambda table: table._vectors[name].view)


class Penalties(Protocol):
    """Penalty of each row by its number, such as an array."""

    def __getitem__(self, row_ids: Int64Array, /) -> Float64Array: ...

    def max(self) -> Any:
        """The largest one, perhaps of rows that are no vertices."""


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

    def __init__(self, engine: Engine, C: float, penalties: Penalties | None) -> None:
        self.engine = engine
        self._rho = math.nan
        self._C, self._penalties = C, penalties
        self._places: dict[int, int] = {}  # by source row
        self._rows = GrowingRows()
        self._values = self._rows  # what float32 products see; another copy only if it differs
        types = {"ids": np.int64, "terms": engine.arithmetic.fast.dtype, "pinned": np.bool_}
        names = ["ids", "labels", "alpha", "grad", "diag", "pinned", "norms", "terms"]
        names += ["exact_alpha", "exact_grad"]
        self._vectors = {name: GrowingArray(types.get(name, np.float64)) for name in names}

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
        """The number alpha' g = |w|^2 + b^2 + sum alpha_i^2 / C_i.

        It is never set below the last sum, which is what is left where rounding hides the norms.
        """
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
        """Add elements at the end of some vectors."""
        for name, block in blocks.items():
            self._vectors[name].append(block)

    def _keep(self, places: Int64Array) -> None:
        """Forget all vertices but those at `places`, which increase."""
        self._rows.keep(places)
        if self._values is not self._rows:
            self._values.keep(places)
        for vector in self._vectors.values():
            vector.keep(places)
        self._places = {row: place for place, row in enumerate(self.ids.tolist())}
