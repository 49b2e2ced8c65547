"""Screening: which rows may be violators after the weights have moved."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ooc_fw.data.rows import Float32Array, Float64Array, Int8Array, Int64Array

_ROWS_AT_ONCE = 1 << 18  # rows whose bounds are compared with the floor together


class Bounds(NamedTuple):
    """Numbers that a `Screen` keeps for k rows, rounded outwards to float32; shapes are (k,)."""

    lower: Float32Array  # at most g_ref
    norm: Float32Array  # at least |(phi(x), 1)|
    vertex: npt.NDArray[np.int32] | None  # place of a near vertex z of the snapshot
    distance: Float32Array | None  # at least |phi(x) - phi(z)|

    @classmethod
    def outwards(
        cls,
        lower: Float64Array,
        diagonal: Float64Array,
        vertex: Int64Array | None = None,
        distance: Float64Array | None = None,
    ) -> Bounds:
        """Round bounds outwards, given k(x, x) in place of the norm."""
        return cls(
            np.nextafter(lower.astype(np.float32), np.float32(-np.inf)),
            _upwards(np.sqrt(diagonal + 1.0)),
            None if vertex is None else vertex.astype(np.int32),
            None if distance is None else _upwards(distance),
        )


def _upwards(values: Float64Array) -> Float32Array:
    return np.nextafter(values.astype(np.float32), np.float32(np.inf))


@dataclass(frozen=True)
class Screen:
    """Lower bounds on every row's gradient at a snapshot of the weights; 10 to 16 bytes a row.

    Notes
    -----
    Write w for the pair (w, b), and phi(x) for (phi(x), 1). A pass over the data with weights a_ref
    gives a lower bound on g_ref_i = y_i w_ref . phi(x_i) for every row. Later, for weights a, a row
    of weight 0 has the gradient g_i = y_i w . phi(x_i). With dw = w - w_ref, Cauchy-Schwarz gives

        (1)  g_i >= g_ref_i - |dw| |phi(x_i)|,    |phi(x_i)|^2 = k(x_i, x_i) + 1.

    For a vertex z of the snapshot, the change of the decision, dw . phi(z), is known. If z is near
    x_i, a second bound is the better one. It needs Cauchy-Schwarz for the difference between x_i
    and z only:

        (2)  g_i >= g_ref_i + y_i dw . phi(z) - |dw| |phi(x_i) - phi(z)|,
             |phi(x_i) - phi(z)|^2 = k(x_i, x_i) + k(z, z) - 2 k(x_i, z).

    A row is screened out if (1) or (2) shows that its gradient is not below a floor. Neither holds
    for a row of positive weight: the caller computes the gradients of these itself. The length of
    dw follows from g'_i = y_i w . phi(x_i) at the vertices (`plain` at the later weights):

        |dw|^2 = |w|^2 + |w_ref|^2 - 2 sum_i a_ref_i g'_i,    |w|^2 = rho - sum_i a_i^2 / C_i.

    This difference cancels digits. Therefore it takes float64 values, and a bound on their rounding
    is added. An active set that knows both gradients at all its vertices has a narrower bound, see
    `ActiveSet.moved`.
    """

    row_ids: Int64Array  # (n_support,): vertices of the snapshot
    alpha: Float64Array  # (n_support,): their weights
    plain: Float64Array  # (n_support,): their gradients, each without its own a_i / C_i
    norm2: float  # |w_ref|^2, b included
    rounding: float  # bound on the error of each value of `plain`
    # Bounds for every row, shape (n_rows,): see `Bounds`.
    lower: Float32Array
    norm: Float32Array  # (1,) if all rows have the same norm
    vertex: npt.NDArray[np.unsignedinteger[Any]]
    distance: Float32Array

    @classmethod
    def empty(cls, n_rows: int, *, one_norm: bool = False, **snapshot: Any) -> Screen:
        """Make a screen without bounds for the rows; `snapshot` are its other fields."""
        norm = np.zeros(1 if one_norm else n_rows, dtype=np.float32)
        vertex = np.zeros(n_rows, dtype=np.min_scalar_type(len(snapshot["alpha"])))
        lower, distance = (np.full(n_rows, s * np.inf, dtype=np.float32) for s in (-1, 1))
        return cls(**snapshot, lower=lower, norm=norm, vertex=vertex, distance=distance)

    def store(self, rows: slice | Int64Array, bounds: Bounds) -> None:
        """Keep the bounds of some rows."""
        self.lower[rows] = bounds.lower
        if len(self.norm) == len(self.lower):
            self.norm[rows] = bounds.norm
        else:
            self.norm[0] = bounds.norm.max(initial=self.norm[0])
        if bounds.vertex is not None and bounds.distance is not None:
            self.vertex[rows], self.distance[rows] = bounds.vertex, bounds.distance

    def distance_to(self, norm2: float, plain: Float64Array, rounding: float) -> float:
        """Upper bound on |dw|, by the formula above; the arguments belong to later weights."""
        move2 = max(0.0, norm2 + self.norm2 - 2 * float(self.alpha @ plain))
        return math.sqrt(move2 + 4 * max(rounding, self.rounding))

    def unscreened(
        self,
        floor: float,
        labels: Int8Array,
        move: float,
        plain: Float64Array,
        rounding: float,
        most: float = np.inf,
    ) -> npt.NDArray[np.intp] | None:
        """Rows whose gradient may be below `floor` at later weights; None for more than `most`.

        `labels` are those of all rows, and `move` is at least |dw|. `plain` are the gradients at
        the vertices of the snapshot for the later weights, and `rounding` bounds their errors.
        """
        change = labels[self.row_ids] * (plain - self.plain)  # dw . phi(z)
        unscreened, n_unscreened = [], 0
        for start in range(0, len(self.lower), _ROWS_AT_ONCE):
            part = slice(start, start + _ROWS_AT_ONCE)
            lower = self.lower[part].astype(np.float64)
            norm = self.norm[part] if len(self.norm) == len(self.lower) else self.norm
            bound = lower - move * norm.astype(np.float64)
            near = labels[part] * change[self.vertex[part]] - (rounding + self.rounding)
            if move > 0:  # an infinite distance times 0 would be NaN
                near -= move * self.distance[part].astype(np.float64)
            bound = np.maximum(bound, lower + near)
            unscreened.append(start + np.flatnonzero(~(bound >= floor)))
            n_unscreened += len(unscreened[-1])
            if n_unscreened > most:
                return None
        return np.concatenate(unscreened)
