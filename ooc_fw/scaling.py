"""Per-column scaling: what was done to the training rows, to be done to any later row.

Owns the formula ``x_scaled = (log1p(x) - offset) * factor``, its storage in HDF5 files (data and
models alike) and its application to rows. Does not look at data to choose the numbers:
`ooc_fw.prep.columns` does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_fw.attributes import get_text, put_text
from ooc_fw.errors import InputError
from ooc_fw.rows import CSRRows, Float32Array, Float64Array, Rows

KINDS = ("none", "minmax", "maxabs", "standard")


@dataclass(frozen=True, eq=False)
class Scaling:
    """A column-wise map of raw values to the values a model sees.

    Arithmetic is in float64, rounded to float32 after log1p and again at the end, so that the
    converter and a later `apply` give the same bits.

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
    def moves_zero(self) -> bool:
        """Whether a raw 0 becomes something else in some column, so that sparse rows fill up."""
        return self.offset is not None and bool(np.any(self.zero_row(len(self.offset))))

    def same_as(self, other: Scaling) -> bool:
        """Whether both map every value alike."""
        return (
            self.kind == other.kind
            and self.log1p == other.log1p
            and np.array_equal(_or_empty(self.offset), _or_empty(other.offset))
            and np.array_equal(_or_empty(self.factor), _or_empty(other.factor))
        )

    def zero_row(self, n_features: int) -> Float32Array:
        """Scaled values of a row of raw zeros, shape (n_features,)."""
        if self.offset is None or self.factor is None:
            return np.zeros(n_features, dtype=np.float32)
        # Adding 0 turns -0 into 0.
        return ((0.0 - self.offset) * self.factor + 0.0).astype(np.float32)

    def log_values(self, values: Float32Array) -> Float32Array:
        """``log1p(values)`` where this scaling wants it, else `values`; all must be above -1."""
        if not self.log1p:
            return values
        # Converted first: numpy's vectorised loop is ten times faster than its casting one.
        return np.log1p(values.astype(np.float64)).astype(np.float32)

    def scale_values(self, values: Float32Array, columns: npt.NDArray[Any]) -> Float32Array:
        """Offset and factor of the given columns applied to values after `log_values`.

        Parameters
        ----------
        values : ndarray of float32
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
        if self.offset is None or self.factor is None:
            return values
        result: Float32Array
        if values.shape == columns.shape:
            from ooc_fw._core.libsvm import scale_stored  # late: most users scale nothing

            result = np.empty_like(values)
            scale_stored(values, columns, self.offset, self.factor, result)
        else:
            scaled = values - self.offset[columns]
            scaled *= self.factor[columns]
            with np.errstate(over="ignore"):
                result = scaled.astype(np.float32)
        if not np.isfinite(result).all():
            raise InputError(
                "a scaled value is beyond float32: the column's range in the training file is "
                "too narrow for it; scale with another kind, or not at all"
            )
        return result

    def apply(self, rows: Rows, n_features: int) -> Rows:
        """Scale raw rows the way the training rows were.

        Columns from `n_features` on are dropped, missing ones count as raw zeros, and nothing is
        clipped.

        Parameters
        ----------
        rows : ndarray of float32 or CSRRows
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

    def _apply_sparse(self, rows: CSRRows) -> Rows:
        self._check_log1p(rows.data)
        values = self.scale_values(self.log_values(rows.data), rows.indices)
        if not self.moves_zero:
            return CSRRows(values, rows.indices, rows.indptr, rows.n_features)
        dense = np.tile(self.zero_row(rows.n_features), (len(rows), 1))
        dense[np.repeat(np.arange(len(rows)), np.diff(rows.indptr)), rows.indices] = values
        return dense

    def _check_log1p(self, values: Float32Array) -> None:
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


def _or_empty(numbers: Float64Array | None) -> Float64Array:
    return np.empty(0) if numbers is None else numbers


def _fit_dense(rows: Float32Array, n_features: int) -> Float32Array:
    """Rows cut or padded with zeros to `n_features` columns."""
    if rows.shape[1] == n_features:
        return rows
    fitted = np.zeros((len(rows), n_features), dtype=np.float32)
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
