"""A kernel that the user gives as a function of two blocks of rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooc_fw._core.maps import MapCode
from ooc_fw.data.rows import CSRRows, Float64Array, Rows
from ooc_fw.kernels.functions import Computed, Kernel
from ooc_fw.system.errors import InputError

_BLOCK_ROWS = 32  # rows whose values with themselves are computed together
_UNITS = 100  # rounding of a function, in units of its largest values, beyond one for each feature
_NEGATIVE = 1e-6  # share of the largest eigenvalue below which a negative one is rounding
_SAME = 1e-6  # relative difference of values that two versions of one function may have


@dataclass(frozen=True)
class GivenKernel(Kernel):
    """k(x, z) = function(X, Z), which returns the values of all rows of X with all rows of Z.

    Parameters
    ----------
    function : callable
        Called with two blocks of rows in float64, which are `scipy.sparse.csr_array` where the
        rows of the data are sparse; returns an array of shape (n, m). It has to be symmetric and
        positive semidefinite. Values are computed in float64 throughout, block by block in Python.

    Notes
    -----
    Certificates take the values as right to `n_features` + 100 units in the last place of
    sqrt(k(x, x) k(z, z)).
    """

    function: Callable[[Any, Any], Any] = np.dot

    name = "function"
    code = MapCode.LINEAR  # the map that changes nothing
    uses_gamma = False

    @property
    def function_name(self) -> str:
        """Name of the function and of its module, which a model file has in place of it."""
        own = self.function
        name = getattr(own, "__qualname__", type(own).__qualname__)
        return f"{getattr(own, '__module__', None) or type(own).__module__}.{name}"

    def to_dict(self) -> dict[str, Any]:
        """Names only."""
        return {"name": self.name, "function": self.function_name}

    def values(self, x: Rows, z: Rows) -> Float64Array:
        """Kernel values, shape (n, m); InputError for a function that returns something else."""
        found = np.asarray(self.function(_as_given(x), _as_given(z)))
        if found.shape != (len(x), len(z)) or found.dtype.kind not in "biuf":
            raise InputError(
                f"the kernel {self.function_name} must return real numbers of the shape "
                f"{(len(x), len(z))}, not {found.dtype} of the shape {found.shape}"
            )
        if not np.isfinite(found).all():
            raise InputError(f"the kernel {self.function_name} returns values that are not finite")
        return found.astype(np.float64)

    def norms(self, rows: Rows) -> Float64Array:
        """k(x, x) of each row."""
        out = np.empty(len(rows))
        for start in range(0, len(rows), _BLOCK_ROWS):
            part = rows[start : start + _BLOCK_ROWS]
            out[start : start + len(part)] = np.diagonal(self.values(part, part))
        if (out < 0).any():
            raise self._indefinite(f"k(x, x) = {out.min():.3g}")
        return out

    def diagonal(self, norms: Float64Array) -> Float64Array:
        """K(x, x), which is what `norms` gives."""
        return norms.copy()

    def error_bound(self, by: Computed) -> Float64Array:
        """See the notes of the class."""
        units = (by.n_terms + _UNITS) * by.method.unit
        return np.asarray(units * np.sqrt(by.x_norms * by.z_norm))

    def check(self, rows: Rows) -> None:
        """Raise InputError unless values of some rows are symmetric and positive semidefinite."""
        values = self.values(rows, rows)
        size = float(np.abs(values).max(initial=0.0))
        if np.abs(values - values.T).max(initial=0.0) > _SAME * size:
            raise InputError(f"the kernel {self.function_name} is not symmetric")
        least = float(np.linalg.eigvalsh((values + values.T) / 2)[0])
        if least < -_NEGATIVE * size * len(values):
            raise self._indefinite(f"an eigenvalue of {least:.3g} on {len(values)} rows")

    def _indefinite(self, why: str) -> InputError:
        return InputError(
            f"the kernel {self.function_name} is not positive semidefinite ({why}), so that the "
            f"problem is not convex"
        )


def same_values(kernel: GivenKernel, rows: Rows, expected: Float64Array) -> bool:
    """Whether a kernel has the values that a model was trained with, on some rows."""
    found = kernel.values(rows, rows)
    return bool(np.allclose(found, expected, rtol=_SAME, atol=_SAME * np.abs(expected).max()))


def _as_given(rows: Rows) -> Any:
    """Rows as the function takes them."""
    if not isinstance(rows, CSRRows):
        return np.asarray(rows, dtype=np.float64)
    from scipy.sparse import csr_array

    return csr_array((rows.data.astype(np.float64), rows.indices, rows.indptr), shape=rows.shape)
