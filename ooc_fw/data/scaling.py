"""Per-column scaling: what was done to the training rows, to be done to any later row.

Owns the formula ``x_scaled = (log1p(x) - offset) * factor``, its storage in HDF5 files (data and
models alike) and its application to rows. Does not look at data to choose the numbers:
`ooc_fw.data.ranges` does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_fw.data.attributes import get_text, put_text
from ooc_fw.data.rows import CSRRows, Float32Array, Float64Array, Rows, StoredRows
from ooc_fw.system.errors import InputError

KINDS = ("none", "minmax", "maxabs", "standard")

SAME = 1e-9
"""Relative difference of two factors, and difference that two offsets make to a scaled value, up to
which scalings are the same: a hundredth of what rounding to float32 does to it."""

LAST_BITS = 4 * np.finfo(np.float64).eps
"""Relative difference of two offsets that is mere rounding."""


@dataclass(frozen=True, eq=False)
class Scaling:
    """A column-wise map of raw values to the values a model sees.

    Arithmetic is in float64 and rounded to float32 once, at the end. A value that is to be moved
    should come as float64: 1.6e9 and 1.6e9 + 50 are one number in float32, and two after scaling.

    Parameters
    ----------
    kind : {"none", "minmax", "maxabs", "standard"}
        How the numbers were chosen.
    log1p : bool
        Whether log(1 + x) comes first.
    offset, factor : ndarray of float64, shape (n_features,), or None
        None exactly when `kind` is "none". A constant column has offset and factor 0.
    """

    kind: str = "none"
    log1p: bool = False
    offset: Float64Array | None = None
    factor: Float64Array | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"scaling must be one of {', '.join(KINDS)}, not {self.kind!r}")
        if (self.kind == "none") != (self.offset is None) or (self.kind == "none") != (
            self.factor is None
        ):
            raise InputError(f"scaling {self.kind!r} does not fit its offset and factor")
        if self.offset is not None and self.factor is not None:
            if self.offset.ndim != 1 or self.offset.shape != self.factor.shape:
                raise InputError(
                    f"scaling offset and factor differ in shape: {self.offset.shape} and "
                    f"{self.factor.shape}"
                )

    @property
    def is_identity(self) -> bool:
        """Whether values stay as they are."""
        return self.kind == "none" and not self.log1p

    @property
    def moves_zero(self) -> bool:
        """Whether a raw 0 becomes something else in some column, so that sparse rows fill up."""
        return self.offset is not None and bool(np.any(self.zero_row(len(self.offset))))

    def same_as(self, other: Scaling) -> bool:
        """Whether both map every value alike, but for rounding.

        Numbers that were chosen from the same rows, in another order or by another program, may
        differ in their last bits.
        """
        if self.kind != other.kind or self.log1p != other.log1p:
            return False
        if self.offset is None or self.factor is None:
            return True
        if other.offset is None or other.factor is None or len(self.offset) != len(other.offset):
            return False
        size = np.maximum(np.abs(self.factor), np.abs(other.factor))
        moved = np.abs(self.offset - other.offset)
        # An offset matters as far as it moves scaled values, and not below its own last bits.
        unseen = moved <= LAST_BITS * np.maximum(np.abs(self.offset), np.abs(other.offset))
        return bool(
            np.all(np.abs(self.factor - other.factor) <= SAME * size)
            and np.all((moved * size <= SAME) | unseen)
        )

    def zero_row(self, n_features: int) -> Float32Array:
        """Scaled values of a row of raw zeros, shape (n_features,)."""
        if self.offset is None or self.factor is None:
            return np.zeros(n_features, dtype=np.float32)
        # Adding 0 turns -0 into 0.
        return ((0.0 - self.offset) * self.factor + 0.0).astype(np.float32)

    def log_values(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """``log1p(values)`` in float64 where this scaling wants it, else `values`; all above -1."""
        # Converted first: numpy's vectorised loop is ten times faster than its casting one.
        return np.log1p(values.astype(np.float64)) if self.log1p else values

    def scale_values(self, values: npt.NDArray[Any], columns: npt.NDArray[Any]) -> Float32Array:
        """Offset and factor of the given columns applied to values after `log_values`.

        Parameters
        ----------
        values : ndarray of float32 or float64
            Values, any shape that broadcasts with `columns`.
        columns : ndarray of int
            Column of each value.

        Returns
        -------
        ndarray of float32

        Raises
        ------
        InputError
            When a scaled value is beyond float32.
        """
        result: Float32Array
        if self.offset is None or self.factor is None:
            with np.errstate(over="ignore"):
                result = values.astype(np.float32, copy=False)
        elif values.shape == columns.shape:
            from ooc_fw._core.libsvm import scale_stored  # late: most users scale nothing

            result = np.empty(values.shape, dtype=np.float32)
            scale_stored(values, columns, self.offset, self.factor, result)
        else:
            scaled = values - self.offset[columns]
            scaled *= self.factor[columns]
            with np.errstate(over="ignore"):
                result = scaled.astype(np.float32)
        if self.offset is not None and not np.isfinite(result).all():
            raise InputError(
                "a scaled value is beyond float32: the column's range in the training file is "
                "too narrow for it; scale with another kind, or not at all"
            )
        return result

    def apply(self, rows: StoredRows, n_features: int) -> Rows:
        """Scale raw rows the way the training rows were.

        Columns from `n_features` on are dropped, missing ones count as raw zeros, and nothing is
        clipped.

        Parameters
        ----------
        rows : ndarray of float32 or float64, or CSRRows
            Raw rows, of any width. Not modified.
        n_features : int
            Width of the result; the scaling's own width where it has one.

        Returns
        -------
        ndarray of float32 or CSRRows
            Of the same kind as `rows`, except that sparse rows become dense when `moves_zero`.

        Raises
        ------
        InputError
            When `n_features` is not the scaling's own, log1p meets a value that is not above -1,
            or a scaled value is beyond float32.
        """
        if self.offset is not None and len(self.offset) != n_features:
            raise InputError(
                f"the scaling is for {len(self.offset)} features, the rows shall have {n_features}"
            )
        if isinstance(rows, CSRRows):
            return self._apply_sparse(_fit_sparse(rows, n_features))
        dense = _fit_dense(rows, n_features)
        self._check_log1p(dense)
        return self.scale_values(self.log_values(dense), np.arange(n_features))

    def logs_of(self, rows: StoredRows) -> StoredRows:
        """``log1p`` of all values of rows, in float64, where this scaling wants it, else `rows`."""
        if not self.log1p:
            return rows
        if isinstance(rows, CSRRows):
            self._check_log1p(rows.data)
            return replace(rows, data=self.log_values(rows.data))
        self._check_log1p(rows)
        return self.log_values(rows)

    def _apply_sparse(self, rows: CSRRows) -> Rows:
        self._check_log1p(rows.data)
        values = self.scale_values(self.log_values(rows.data), rows.indices)
        if not self.moves_zero:
            return CSRRows(values, rows.indices, rows.indptr, rows.n_features)
        dense = np.tile(self.zero_row(rows.n_features), (len(rows), 1))
        dense[np.repeat(np.arange(len(rows)), np.diff(rows.indptr)), rows.indices] = values
        return dense

    def _check_log1p(self, values: npt.NDArray[Any]) -> None:
        if self.log1p and values.size and not values.min() > -1:
            raise InputError(
                f"log1p needs values above -1, but the data hold {values.min():g}; such rows do "
                "not fit a file or model made with --log1p"
            )

    def write(self, group: Any) -> None:
        """Store in an open HDF5 file or group: attributes scaling and log1p, group /scaling."""
        put_text(group.attrs, "scaling", self.kind)
        group.attrs["log1p"] = self.log1p
        if self.offset is not None:
            group["scaling/offset"] = self.offset
            group["scaling/factor"] = self.factor

    @staticmethod
    def read(group: Any) -> Scaling | None:
        """Read what `write` stored; None when the file says nothing about scaling.

        Raises
        ------
        InputError
            When the stored numbers are incomplete.
        """
        if "scaling" not in group.attrs:
            return None
        kind = get_text(group.attrs, "scaling")
        log1p = bool(group.attrs.get("log1p", False))
        if kind == "none":
            return Scaling("none", log1p)
        try:
            offset, factor = group["scaling/offset"][...], group["scaling/factor"][...]
        except KeyError:
            raise InputError(
                f"{group.file.filename} says scaling {kind!r} but lacks /scaling/offset or "
                "/scaling/factor; convert the data again"
            ) from None
        return Scaling(kind, log1p, offset.astype(np.float64), factor.astype(np.float64))


def _fit_dense(rows: npt.NDArray[Any], n_features: int) -> npt.NDArray[Any]:
    """Rows cut or padded with zeros to `n_features` columns."""
    if rows.shape[1] == n_features:
        return rows
    fitted = np.zeros((len(rows), n_features), dtype=rows.dtype)
    width = min(n_features, rows.shape[1])
    fitted[:, :width] = rows[:, :width]
    return fitted


def _fit_sparse(rows: CSRRows, n_features: int) -> CSRRows:
    """Rows cut or declared to have `n_features` columns."""
    keep = rows.indices < n_features
    if keep.all():
        return CSRRows(rows.data, rows.indices, rows.indptr, n_features)
    kept_before = np.concatenate([[0], np.cumsum(keep)])
    return CSRRows(rows.data[keep], rows.indices[keep], kept_before[rows.indptr], n_features)
