"""The kernels: formula, diagonal, bound on rounding and parameters of each.

A kernel value is a product of two rows (their dot product, or their L1 distance) followed by a map.
To add a kernel: a map in :mod:`ooc_fw._core.maps`, a class here, and its name in `KERNELS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

from ooc_fw._core.maps import LOG2_E, KernelMap, MapCode
from ooc_fw._core.products import absolute_norms, square_norms
from ooc_fw.data.rows import CSRRows, Float64Array, Int64Array, Rows
from ooc_fw.system.errors import InputError, check_number

FLOAT32_UNIT = 2.0**-24
FLOAT64_UNIT = 2.0**-53
_LEAST_NUMBER = {FLOAT32_UNIT: 2.0**-149, FLOAT64_UNIT: 2.0**-1074}  # above 0, by unit roundoff
_LEAST_EXPONENTIAL = 2.0**-126  # no compiled exponential is less, in either precision
_LARGEST_EXPONENT = {FLOAT32_UNIT: 88.0, FLOAT64_UNIT: 709.0}  # exp(-t) underflows beyond
_EXPONENTIAL_UNITS = 5.0  # relative error of the compiled exponentials and of libm's, in units


@dataclass(frozen=True)
class Kernel:
    """What all kernels have in common; subclasses give the formulas.

    Parameters
    ----------
    gamma : float
        Scale of the product; positive.
    degree : int
        Degree of the polynomial kernel, ignored by others.
    coef0 : float
        Constant of the polynomial kernel, ignored by others.
    """

    gamma: float = 1.0
    degree: int = 2
    coef0: float = 0.0

    name: ClassVar[str]
    code: ClassVar[MapCode]
    uses_distance: ClassVar[bool] = False  # L1 distances instead of dot products
    shift_invariant: ClassVar[bool] = False  # k(x - c, z - c) = k(x, z)
    constant_diagonal: ClassVar[bool] = False
    uses_gamma: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 < self.gamma < math.inf:
            raise InputError(f"gamma must be a positive number, not {self.gamma}")
        if not 1 <= self.degree < math.inf or self.degree != int(self.degree):
            raise InputError(f"degree must be a whole number of at least 1, not {self.degree}")
        if not 0 <= self.coef0 < math.inf:
            raise InputError(
                f"coef0 must be zero or positive (else the kernel is indefinite), not {self.coef0}"
            )

    def to_dict(self) -> dict[str, Any]:
        """Name and parameters; `make_kernel(**kernel.to_dict())` gives the kernel back."""
        return {"name": self.name, **asdict(self)}

    @classmethod
    def auto_gamma(cls, sigma2: Callable[[], float], n_features: int) -> float:
        """Gamma for rows with average squared distance ``sigma2()`` and so many columns."""
        return 1.0

    def norms(self, rows: Rows) -> Float64Array:
        """Squared Euclidean norm of each row, or its L1 norm where the kernel uses distances."""
        if isinstance(rows, CSRRows):
            data, indptr = rows.data, rows.indptr
        else:
            data = rows.reshape(-1)
            indptr = np.arange(len(rows) + 1, dtype=np.int64) * rows.shape[1]
        out = np.empty(len(rows))
        (absolute_norms if self.uses_distance else square_norms)(data, indptr, out)
        return out

    def diagonal(self, norms: Float64Array) -> Float64Array:
        """k(x, x) of rows with these `norms`, float64."""
        return np.ones(len(norms))

    def map_terms(self, norms: Float64Array) -> Float64Array:
        """What the compiled map subtracts from products of each row (`_core.maps.map_tile`)."""
        return np.zeros(len(norms))

    def map_constants(self, from_distances: bool = False) -> tuple[float, float, int]:
        """Scale, shift and degree of the compiled map (`_core.maps.KernelMap`).

        With `from_distances` they are for tiles of |x - z|^2, or of |x - z|_1 where the kernel
        takes that, and for terms of 0; only shift-invariant kernels have these.
        """
        return 1.0, 0.0, 1

    def map_in(self, dtype: type, from_distances: bool = False) -> KernelMap:
        """The compiled map with constants in a precision, float32 or float64."""
        scale, shift, degree = self.map_constants(from_distances)
        return KernelMap(int(self.code), dtype(scale), dtype(shift), degree)

    def error_bound(
        self,
        x_norms: Float64Array,
        z_norm: float,
        n_terms: Int64Array,
        unit: float,
        mean: Float64Array | float = 1.0,
    ) -> Float64Array:
        """Bound on the rounding error of k(x, z) for every z with norm up to `z_norm`.

        Parameters
        ----------
        x_norms : ndarray of float64, shape (n,)
            From `norms`.
        z_norm : float
            Largest norm among the vertices.
        n_terms : ndarray of int64, shape (n,)
            Largest number of products in one sum that are not exact zeros.
        unit : float
            Unit roundoff of the arithmetic: `FLOAT32_UNIT` or `FLOAT64_UNIT`.
        mean : ndarray of float64, shape (n,), or float
            For a bound on the error of a mean of k(x, z) over the z: that mean as computed. It
            helps where kernel values are positive and err in proportion to themselves. 1 bounds
            the error of any single value.

        Notes
        -----
        A sum of n products carries at most n units of |x||z|, in any order of summation (Higham,
        Accuracy and Stability of Numerical Algorithms, section 3.1). A few units more cover scale,
        map terms and centring; the error then goes through the derivative of the map.
        """
        raise TypeError(f"{type(self).__name__} must state its rounding bound")

    def distance_error_bound(
        self, n_terms: Int64Array, unit: float, mean: Float64Array | float | None = None
    ) -> Float64Array:
        """`error_bound` of a shift-invariant kernel whose distances are sums of differences.

        `n_terms` is the largest number of differences in one sum; a `mean` of None stands for any
        single value.

        Notes
        -----
        The n squares of a sum are positive, so that an exponent t errs by at most (n + 6) units of
        itself (differences 2, squares 1, additions n, scale 2, one to spare), however large the
        rows are, and exp(-t) by that times t exp(-t) <= 1/e. Here t exp(-t) = -k ln(k), which is
        concave in k: its mean is at most -m ln(m) at the mean m of the k.
        """
        relative = (n_terms + 6) * unit / (1 - (n_terms + 6) * unit)
        growth = np.exp(_LARGEST_EXPONENT[unit] * relative)  # of the error, within itself
        if mean is None:
            slope: Float64Array | float = math.exp(-1)
            mean = 1.0
        else:
            mean = np.minimum(1.0, mean * (1 + 2 * _EXPONENTIAL_UNITS * unit) + _LEAST_EXPONENTIAL)
            below = np.minimum(mean, math.exp(-1))  # -m ln(m) is largest there
            slope = -below * np.log(below)
        underflow = self.gamma * n_terms * _LEAST_NUMBER[unit]
        return np.asarray(
            growth * (relative * slope + underflow * mean)
            + 2 * _EXPONENTIAL_UNITS * unit * mean
            + 100 * _LEAST_EXPONENTIAL
        )


def _exponential_bound(
    exponent: Float64Array, unit: float, mean: Float64Array | float
) -> Float64Array:
    """Error of a mean of exp(-t) with t >= 0, given a bound on the error of t.

    Each value errs by a factor of at most 1 + delta, hence the true mean is at most the computed
    one over 1 - delta. Values lie in [0, 1], which bounds the error where delta is large.
    """
    delta = np.expm1(np.minimum(exponent, 1.0)) + _EXPONENTIAL_UNITS * unit
    true_mean = np.where(delta < 0.5, np.minimum(1.0, mean / (1.0 - delta)), 1.0)
    return np.asarray(delta * true_mean + _LEAST_EXPONENTIAL)


@dataclass(frozen=True)
class RBF(Kernel):
    """k(x, z) = exp(-gamma |x - z|^2)."""

    name = "rbf"
    code = MapCode.RBF
    shift_invariant = True
    constant_diagonal = True

    @classmethod
    def auto_gamma(cls, sigma2: Callable[[], float], n_features: int) -> float:
        return 1 / (2 * sigma2())

    def map_terms(self, norms: Float64Array) -> Float64Array:
        return np.asarray(self.gamma * LOG2_E * norms)

    def map_constants(self, from_distances: bool = False) -> tuple[float, float, int]:
        return (-1 if from_distances else 2) * self.gamma * LOG2_E, 0.0, 1

    def error_bound(
        self,
        x_norms: Float64Array,
        z_norm: float,
        n_terms: Int64Array,
        unit: float,
        mean: Float64Array | float = 1.0,
    ) -> Float64Array:
        products = 2 * np.sqrt(x_norms * z_norm)
        exponent = unit * self.gamma * (n_terms * products + 8 * (x_norms + products + z_norm))
        return _exponential_bound(exponent, unit, mean)


@dataclass(frozen=True)
class Linear(Kernel):
    """k(x, z) = x.z; `gamma` is not used."""

    name = "linear"
    code = MapCode.LINEAR
    uses_gamma = False

    def diagonal(self, norms: Float64Array) -> Float64Array:
        return norms.copy()

    def error_bound(
        self,
        x_norms: Float64Array,
        z_norm: float,
        n_terms: Int64Array,
        unit: float,
        mean: Float64Array | float = 1.0,
    ) -> Float64Array:
        return np.asarray((n_terms + 1) * unit * np.sqrt(x_norms * z_norm))


@dataclass(frozen=True)
class Polynomial(Kernel):
    """k(x, z) = (gamma x.z + coef0)^degree; homogeneous of second order by default."""

    name = "poly"
    code = MapCode.POLYNOMIAL

    @classmethod
    def auto_gamma(cls, sigma2: Callable[[], float], n_features: int) -> float:
        return 1 / sigma2()

    def diagonal(self, norms: Float64Array) -> Float64Array:
        return np.asarray((self.gamma * norms + self.coef0) ** self.degree)

    def map_constants(self, from_distances: bool = False) -> tuple[float, float, int]:
        return self.gamma, self.coef0, int(self.degree)

    def error_bound(
        self,
        x_norms: Float64Array,
        z_norm: float,
        n_terms: Int64Array,
        unit: float,
        mean: Float64Array | float = 1.0,
    ) -> Float64Array:
        largest = self.gamma * np.sqrt(x_norms * z_norm) + self.coef0
        relative = (n_terms + 4) * unit  # of the base, measured against `largest`
        return np.asarray(
            largest**self.degree * np.expm1(self.degree * (np.log1p(relative) + 2 * unit))
        )


@dataclass(frozen=True)
class Laplacian(Kernel):
    """k(x, z) = exp(-gamma |x - z|_1)."""

    name = "laplacian"
    code = MapCode.LAPLACIAN
    uses_distance = True
    shift_invariant = True
    constant_diagonal = True

    @classmethod
    def auto_gamma(cls, sigma2: Callable[[], float], n_features: int) -> float:
        return 1 / n_features

    def map_constants(self, from_distances: bool = False) -> tuple[float, float, int]:
        return self.gamma * LOG2_E, 0.0, 1

    def error_bound(
        self,
        x_norms: Float64Array,
        z_norm: float,
        n_terms: Int64Array,
        unit: float,
        mean: Float64Array | float = 1.0,
    ) -> Float64Array:
        # Two additions a stored value, on partial sums of at most |x|_1 + 3 |z|_1.
        exponent = (2 * n_terms + 8) * unit * self.gamma * (x_norms + 3 * z_norm)
        return _exponential_bound(exponent, unit, mean)


KERNELS: dict[str, type[Kernel]] = {
    kernel.name: kernel for kernel in (RBF, Linear, Polynomial, Laplacian)
}


def make_kernel(
    name: str, *, gamma: float | str | None = None, degree: int = 2, coef0: float = 0.0
) -> Kernel:
    """Kernel called `name`, one of `KERNELS`.

    Parameters
    ----------
    name : str
        Name in `KERNELS`.
    gamma : float, optional
        Scale of the product. All kernels but the linear one need it; `resolve_gamma` finds one for
        given rows.
    degree, coef0 : int, float
        Of the polynomial kernel.

    Raises
    ------
    InputError
        For an unknown name, a missing gamma or a parameter outside its range.
    """
    if name not in KERNELS:
        raise InputError(f"kernel must be one of {', '.join(KERNELS)}, not {name!r}")
    kind = KERNELS[name]
    if (gamma is None and kind.uses_gamma) or gamma == "auto":
        raise InputError(
            f"the {name} kernel needs gamma, a positive number; FrankWolfeSVC finds one for given "
            f"rows, and so does ooc_fw.kernels.functions.resolve_gamma"
        )
    gamma = 1.0 if gamma is None else gamma
    for option, value in (("gamma", gamma), ("degree", degree), ("coef0", coef0)):
        check_number(option, value)
    return kind(gamma=float(gamma), degree=degree, coef0=float(coef0))


def resolve_gamma(
    name: str, gamma: float | str, sigma2: Callable[[], float], n_features: int
) -> float:
    """The number that `gamma` stands for, which may be "auto".

    "auto" is 1 / (2 sigma^2) for RBF, 1 / sigma^2 for polynomial, 1 / n_features for Laplacian and
    1 for linear kernels. `sigma2` gives the average squared distance between rows; it may cost a
    pass over the data and is called only where it is needed.
    """
    if gamma == "auto":
        kind = KERNELS.get(name, Kernel)  # `make_kernel` refuses unknown names
        return kind.auto_gamma(sigma2, n_features)
    try:
        return float(gamma)
    except ValueError:
        raise InputError(f'gamma must be "auto" or a positive number, not {gamma!r}') from None
