"""Scaling of columns and rows: all later rows are scaled in the same way as the training rows.

``x_scaled = (log1p(x) - offset) * factor``, and then each row may be divided by its Euclidean norm.
Data files and models store it in the same form.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ooc_fw.data.formats import as_bytes, as_text
from ooc_fw.data.rows import (
    AnyArray,
    CSRRows,
    Float64Array,
    Int64Array,
    Rows,
    StoredRows,
    converted,
    keep_stored,
    stored_arrays,
    values_of,
)
from ooc_fw.options import SCALINGS
from ooc_fw.system.errors import InputError

# Kind of a scaling that only subtracts large offsets; see `ooc_fw.data.offsets`.
OFFSET = "offset"
# Two scalings count as the same if scaled values and ratios of factors differ by at most this.
SAME = 1e-9


@dataclass(frozen=True, eq=False)
class Scaling:
    """A map from raw values, column by column, to the values that a model sees.

    Arithmetic is in float64, and the result is rounded once to float32. If values have more digits
    than float32, they should be given in float64: 1.6e9 and 1.6e9 + 50 are equal in float32, but
    differ after scaling. A constant column has offset and factor 0.
    """

    kind: str = "none"  # how offset and factor were chosen: one of `SCALINGS`, or `OFFSET`
    log1p: bool = False  # whether log(1 + x) comes first
    offset: Float64Array | None = None  # one for each column; None exactly if the kind is "none"
    factor: Float64Array | None = None  # also one for each column
    normalize: bool = False  # whether rows are divided by their norms, as by Normalizer of sklearn

    def __post_init__(self) -> None:
        if self.kind not in (*SCALINGS, OFFSET):
            raise InputError(f"scaling must be one of {', '.join(SCALINGS)}, not {self.kind!r}")
        shapes = [np.shape(array) for array in (self.offset, self.factor) if array is not None]
        n_wanted = 0 if self.kind == "none" else 2
        if len(shapes) != n_wanted or any(shape != shapes[0][:1] for shape in shapes):
            raise InputError(f"scaling {self.kind!r} does not fit its offset and factor")

    def __str__(self) -> str:
        steps = ["log1p"] * self.log1p + [self.kind] * (self.kind != "none")
        return ", then ".join(steps + ["rows of norm 1"] * self.normalize) or "none"

    @property
    def facts(self) -> dict[str, Any]:
        """What is done to a row, for JSON."""
        return {"scaling": self.kind, "log1p": self.log1p, "normalize": self.normalize}

    @property
    def n_features(self) -> int | None:
        """Number of columns; None if the kind is "none", which fits any number."""
        return None if self.offset is None else len(self.offset)

    @property
    def is_identity(self) -> bool:
        """Whether no value changes."""
        return self.kind == "none" and not self.log1p and not self.normalize

    @property
    def moves_zero(self) -> bool:
        """Whether 0 becomes another value in some column, so that sparse rows become dense."""
        if self.offset is None or self.factor is None:
            return False
        return bool((self.offset * self.factor).astype(np.float32).any())

    def same_as(self, other: Scaling) -> bool:
        """Whether both scalings map every value to the same number, up to rounding."""
        if (self.kind, self.log1p, self.normalize) != (other.kind, other.log1p, other.normalize):
            return False
        if self.offset is None or self.factor is None or self.n_features != other.n_features:
            return self.n_features == other.n_features
        # Offsets may differ in their last bits, or move scaled values by less than rounding does.
        offset = np.asarray(other.offset) * self.factor
        alike = np.allclose(self.offset * self.factor, offset, rtol=1e-15, atol=SAME)
        return alike and np.allclose(self.factor, np.asarray(other.factor), rtol=SAME, atol=0)

    def at(self, places: Int64Array) -> Scaling:
        """Scaling of the columns at these places."""
        if self.offset is None or self.factor is None:
            return self
        return replace(self, offset=self.offset[places], factor=self.factor[places])

    def log_values(self, values: AnyArray) -> AnyArray:
        """``log1p(values)`` in float64 if this scaling has it, else `values`; all are above -1."""
        # numpy computes log1p ten times faster in float64, with a vectorised loop.
        return np.log1p(values.astype(np.float64)) if self.log1p else values

    def scale(self, rows: StoredRows) -> Rows:
        """Scale rows after `log_values`; zeros that sparse rows do not store stay zeros."""
        if self.kind == "none" and not self.normalize:
            return converted(rows)  # type: ignore[no-any-return]
        from ooc_fw._core.rows import scale_rows  # numba is slow to import

        width = rows.shape[1]
        offset = np.zeros(width) if self.offset is None else self.offset
        factor = np.ones(width) if self.factor is None else self.factor
        data, columns, indptr = stored_arrays(converted(rows, exact=True))
        scaled = np.empty(len(data), dtype=np.float32)
        if not scale_rows(data, columns, indptr, offset, factor, self.normalize, scaled):
            raise InputError("the norm of a row is beyond float64; scale its columns (--scale)")
        if not np.isfinite(scaled).all():
            raise InputError(
                "a scaled value is beyond float32: its column's range in the training file is too "
                "narrow; choose another kind of scaling"
            )
        if isinstance(rows, CSRRows):
            return replace(rows, data=scaled)
        return scaled.reshape(rows.shape)

    def apply(self, rows: StoredRows, n_features: int) -> Rows:
        """Scale raw rows in the same way as the training rows; they become dense if `moves_zero`.

        Rows may have any width: columns from `n_features` on are dropped, and missing ones are 0.
        """
        if self.n_features not in (None, n_features):
            raise InputError(f"the scaling is for {self.n_features} features, not for {n_features}")
        if isinstance(rows, CSRRows):
            rows = keep_stored(rows, rows.indices < n_features, n_features)
        else:
            n_missing = max(0, n_features - rows.shape[1])
            rows = rows[:, :n_features]
            if n_missing:
                rows = np.pad(rows, ((0, 0), (0, n_missing)))
        values = values_of(rows)
        if self.log1p and values.size and not values.min() > -1:
            raise InputError(
                f"log1p needs values above -1, but the data hold {values.min():g}; rows with it do "
                "not fit a file or model made with --log1p"
            )
        values = self.log_values(values)
        rows = replace(rows, data=values) if isinstance(rows, CSRRows) else values
        if isinstance(rows, CSRRows) and self.moves_zero:
            rows = rows.toarray()
        return self.scale(rows)

    def write(self, group: Any) -> None:
        """Store the scaling in an HDF5 group, as three attributes and the group scaling."""
        group.attrs["scaling"] = as_bytes(self.kind)
        group.attrs["log1p"] = self.log1p
        group.attrs["normalize"] = self.normalize
        if self.kind != "none":
            # HDF5 would store the current time in a group that it creates implicitly.
            stored = group.create_group("scaling")
            stored["offset"] = self.offset
            stored["factor"] = self.factor

    @staticmethod
    def read(group: Any) -> Scaling | None:
        """Read a scaling from `write`; None if there is none."""
        if "scaling" not in group.attrs:
            return None
        kind = as_text(group.attrs["scaling"])
        names = ("scaling/offset", "scaling/factor") if kind != "none" else ()
        scaling = Scaling(kind, bool(group.attrs["log1p"]), *(group[name][...] for name in names))
        # Older files have no such attribute.
        return replace(scaling, normalize=bool(group.attrs.get("normalize", False)))
