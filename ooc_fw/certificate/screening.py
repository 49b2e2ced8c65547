"""Screening: which rows can still violate after the weights have moved.

A pass over the data with the weights a_ref gives a lower bound on

    g_ref_i = y_i (w_ref . phi(x_i) + b_ref)

for every row, without the row's own a_i / C_i. Take any later weights a with rho = a'Qa. For a row
of weight 0 the gradient is g_i = y_i (w . phi(x_i) + b), so by Cauchy-Schwarz on the pair (w, b)

    g_i >= g_ref_i - |(w, b) - (w_ref, b_ref)| |(phi(x_i), 1)|
        =  g_ref_i - |dw| sqrt(k(x_i, x_i) + 1).

Often a vertex z_c of the snapshot is near x_i. There the change of the decision is known, and only
the rest of the way is left to Cauchy-Schwarz; the 1 beside phi cancels:

    g_i >= g_ref_i + y_i df(z_c) - |dw| |phi(x_i) - phi(z_c)|,
    |phi(x_i) - phi(z_c)|^2 = k(x_i, x_i) + k(z_c, z_c) - 2 k(x_i, z_c).

Where either right side is not below a number, g_i is not, and the row need not be looked at.
A row of positive weight is not covered; the caller looks at the support anyway.

    |dw|^2 = |w|^2 + |w_ref|^2 - 2 sum_i a_ref_i g_i',   |w|^2 = rho - sum_i a_i^2 / C_i,

where g_i' = g_i - a_i / C_i is the present gradient at the vertices of the snapshot, and |w|
includes b. The difference cancels, so it takes float64 kernel values, and their rounding is added.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_fw.data.rows import Float32Array, Float64Array, Int8Array, Int64Array

_ROWS_AT_ONCE = 1 << 18  # rows whose bounds are looked at together


def _upwards(values: Float64Array) -> Float32Array:
    """Values rounded up to float32."""
    return np.nextafter(values.astype(np.float32), np.float32(np.inf))


@dataclass(frozen=True)
class Bounds:
    """What a `Screen` keeps of some rows, rounded outwards to float32; arrays of shape (k,)."""

    lower: Float32Array  # at most g_ref
    reach: Float32Array  # at least sqrt(k(x, x) + 1)
    vertex: npt.NDArray[np.int32] | None  # place of a near vertex
    way: Float32Array | None  # at least the distance to it

    @classmethod
    def outwards(
        cls,
        lower: Float64Array,
        diagonal: Float64Array,
        vertex: Int64Array | None = None,
        way: Float64Array | None = None,
    ) -> Bounds:
        """Round bounds outwards.

        Parameters
        ----------
        lower : ndarray of float64, shape (k,)
            At most g_ref.
        diagonal : ndarray of float64, shape (k,)
            k(x, x), with its rounding covered.
        vertex : ndarray of int64, shape (k,), optional
            Place of a near vertex among those of the snapshot.
        way : ndarray of float64, shape (k,), optional
            At least the distance to it in feature space.
        """
        return cls(
            np.nextafter(lower.astype(np.float32), np.float32(-np.inf)),
            _upwards(np.sqrt(diagonal + 1.0)),
            None if vertex is None else vertex.astype(np.int32),
            None if way is None else _upwards(way),
        )


class Screen:
    """Lower bounds of every row's gradient at a snapshot of the weights.

    Takes 16 bytes a row.

    Parameters
    ----------
    n_rows : int
        Rows of the source.
    row_ids : ndarray of int64, shape (n_support,)
        Vertices of the snapshot.
    alpha : ndarray of float64, shape (n_support,)
        Their weights.
    plain : ndarray of float64, shape (n_support,)
        Their gradients, each without its own a_i / C_i.
    norm2 : float
        |w_ref|^2, b included.
    rounding : float
        Bound on the error of each of `plain`.
    """

    def __init__(
        self,
        n_rows: int,
        row_ids: Int64Array,
        alpha: Float64Array,
        plain: Float64Array,
        norm2: float,
        rounding: float,
    ) -> None:
        self.row_ids = row_ids
        self.alpha = alpha
        self.plain = plain
        self.norm2 = norm2
        self.rounding = rounding
        self._lower = np.full(n_rows, -np.inf, dtype=np.float32)
        self._reach = np.zeros(n_rows, dtype=np.float32)
        self._vertex = np.zeros(n_rows, dtype=np.int32)
        self._way = np.full(n_rows, np.inf, dtype=np.float32)

    def store(self, rows: slice | Int64Array, bounds: Bounds) -> None:
        """Keep the bounds of some rows."""
        self._lower[rows] = bounds.lower
        self._reach[rows] = bounds.reach
        if bounds.vertex is not None and bounds.way is not None:
            self._vertex[rows] = bounds.vertex
            self._way[rows] = bounds.way

    def suspects(
        self,
        floor: float,
        labels: Int8Array,
        norm2: float,
        plain: Float64Array,
        rounding: float,
    ) -> npt.NDArray[np.intp]:
        """Rows whose gradient may be below `floor` for later weights.

        Parameters
        ----------
        floor : float
            Rows whose gradient is at least this are not sought.
        labels : ndarray of int8, shape (n_rows,)
            +1 or -1 of all rows.
        norm2 : float
            |w|^2 of the later weights, b included.
        plain : ndarray of float64, shape (n_support,)
            Their gradients at the vertices of the snapshot, each without its own a_i / C_i.
        rounding : float
            Bound on the error of each of `plain`.
        """
        distance = self._distance(norm2, float(self.alpha @ plain), rounding)
        change = labels[self.row_ids] * (plain - self.plain)
        found = []
        for start in range(0, len(self._lower), _ROWS_AT_ONCE):
            part = slice(start, start + _ROWS_AT_ONCE)
            lower = self._lower[part].astype(np.float64)
            bound = lower - distance * self._reach[part].astype(np.float64)
            moved = labels[part] * change[self._vertex[part]] - (rounding + self.rounding)
            if distance > 0:  # infinite ways times 0 would be no number
                moved -= distance * self._way[part].astype(np.float64)
            bound = np.maximum(bound, lower + moved)
            found.append(start + np.flatnonzero(~(bound >= floor)))
        return np.concatenate(found)

    def _distance(self, norm2: float, cross: float, rounding: float) -> float:
        """Upper bound on |dw|; `cross` is sum_i a_ref_i g_i' of the module's docstring."""
        worst = max(rounding, self.rounding)
        return float(np.sqrt(max(0.0, norm2 + self.norm2 - 2 * cross) + 4 * worst))

    def state(self) -> dict[str, Any]:
        """All of it: arrays, and values for JSON."""
        return {name.removeprefix("_"): value for name, value in vars(self).items()}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Screen:
        """Build the screen that gave `state`."""
        given = [state[name] for name in ("row_ids", "alpha", "plain", "norm2", "rounding")]
        screen = cls(0, *given)
        screen._lower, screen._reach = state["lower"], state["reach"]
        screen._vertex, screen._way = state["vertex"], state["way"]
        return screen
