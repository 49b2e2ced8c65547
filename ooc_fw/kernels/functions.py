"""The kernels: formula, diagonal, bound on rounding and parameters of each.

A kernel value is a map of a product of two rows. The product is their dot product, or for the
Laplacian kernel half of what the sum of their norms exceeds their L1 distance by.
To add a kernel: a map in :mod:`ooc_fw._core.maps`, a class here, and its name in `KERNELS`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ooc_fw._core.maps import LOG2_E, MapCode
from ooc_fw._core.products import NORM_UNITS, row_norms
from ooc_fw.data.rows import CSRRows, Float64Array, Int64Array, Rows, stored_arrays
from ooc_fw.options import KernelOptions
from ooc_fw.system.errors import InputError

FLOAT32_UNIT = 2.0**-24
FLOAT64_UNIT = 2.0**-53
# For each unit roundoff: the least number above 0, and the least normal one, which bounds divisors.
_LEAST_NUMBER = {FLOAT32_UNIT: 2.0**-149, FLOAT64_UNIT: 2.0**-1074}
LEAST_FLOAT32 = 2.0**-126
_LEAST_NORMAL = {FLOAT32_UNIT: LEAST_FLOAT32, FLOAT64_UNIT: 2.0**-1022}
_LEAST_EXPONENTIAL = LEAST_FLOAT32  # most that compiled exponentials of large numbers err by
_LARGEST_EXPONENT = {FLOAT32_UNIT: 88.0, FLOAT64_UNIT: 709.0}  # for a larger t, exp(-t) underflows
OUTWARDS = 1 + 1e-9  # this factor covers the rounding of bounds
_EXPONENTIAL_UNITS = 5.0  # relative error of an exponential, compiled or from libm, in units


class Method(NamedTuple):
    """How kernel values are computed: products and maps of `dtype`, float32 or float64."""

    dtype: type
    differences: bool = False  # distances come from differences of rows in place of products

    @property
    def unit(self) -> float:
        """Unit roundoff."""
        return FLOAT32_UNIT if self.dtype is np.float32 else FLOAT64_UNIT


FLOAT32_PRODUCTS = Method(np.float32)
FLOAT64_PRODUCTS = Method(np.float64)
FLOAT32_DIFFERENCES = Method(np.float32, differences=True)
FLOAT64_DIFFERENCES = Method(np.float64, differences=True)


class Sizes(NamedTuple):
    """Sizes that the rounding of k(x, z) grows with, for n rows x and every vertex z.

    If `mean` is given, a computed mean of k(x, z) over the z, then the bound is for the error of
    that mean. It is smaller if kernel values are positive and err in proportion to themselves.
    """

    method: Method
    x_norms: Float64Array  # (n,), from `Kernel.norms`
    z_norm: float | Float64Array  # the largest norm among the vertices
    n_terms: Int64Array  # (n,): terms of one sum, apart from exact zeros
    mean: Float64Array | None = None  # (n,)
    # (n,): mean of the norms of the z, weighted by the computed k(x, z); at most `z_norm`.
    mean_norm: Float64Array | None = None

    @property
    def products(self) -> Float64Array:
        """The largest that |x . z| can be, shape (n,)."""
        return np.asarray(np.sqrt(self.x_norms * self.z_norm))

    @property
    def underflow(self) -> Float64Array:
        """What x . z loses if products are too small for a normal number, shape (n,)."""
        return np.asarray((self.n_terms + 1) * _LEAST_NORMAL[self.method.unit])


@dataclass(frozen=True)
class Kernel(ABC):
    """What all kernels have in common; subclasses give the formulas."""

    gamma: float = 1.0  # scale of the product
    degree: int = 2  # of the polynomial kernel
    coef0: float = 0.0  # constant in the base of the polynomial kernel

    name: ClassVar[str]
    code: ClassVar[MapCode]
    uses_distance: ClassVar[bool] = False  # products for L1 distances instead of dot products
    shift_invariant: ClassVar[bool] = False  # k(x - c, z - c) = k(x, z)
    constant_diagonal: ClassVar[bool] = False
    uses_gamma: ClassVar[bool] = True
    per_sigma2: ClassVar[float] = 0.0  # gamma "auto" times sigma^2; 0 if it does not depend on it

    def to_dict(self) -> dict[str, Any]:
        """Name and parameters; `make_kernel(**kernel.to_dict())` gives the kernel back."""
        return {"name": self.name, **asdict(self)}

    def norms(self, rows: Rows) -> Float64Array:
        """Squared Euclidean norm of each row, or its L1 norm if the kernel uses distances."""
        data, _, indptr = stored_arrays(rows)
        out = np.empty(len(rows))
        row_norms(data, indptr, not self.uses_distance, out)
        return out

    def diagonal(self, norms: Float64Array) -> Float64Array:
        """k(x, x) for rows with these `norms`, float64."""
        return np.ones(len(norms))

    def map_terms(self, norms: Float64Array, rows: Rows) -> Float64Array:
        """The term of each row in the compiled map (`_core.maps.map_tile`)."""
        return np.zeros(len(norms))

    def map_constants(self, differences: bool) -> tuple[float, float, int]:
        """Scale, shift and degree for `_core.maps.KernelMap`; with `differences`, terms are 0."""
        return 1.0, 0.0, 1

    @abstractmethod
    def error_bound(self, sizes: Sizes) -> Float64Array:
        """Bound on the rounding error of kernel values, shape (n,).

        A sum of n products errs by at most n units of |x||z|, in any order of summation (Higham,
        Accuracy and Stability of Numerical Algorithms, section 3.1). A few units more cover scale,
        map terms and centring. The derivative of the map carries the error on to the kernel value.
        """


@dataclass(frozen=True)
class Linear(Kernel):
    """k(x, z) = x.z; `gamma` is not used."""

    name = "linear"
    code = MapCode.LINEAR
    uses_gamma = False

    def diagonal(self, norms: Float64Array) -> Float64Array:
        return norms.copy()

    def error_bound(self, sizes: Sizes) -> Float64Array:
        rounding = (sizes.n_terms + 1) * sizes.method.unit * sizes.products
        return np.asarray(rounding + sizes.underflow)


@dataclass(frozen=True)
class Polynomial(Kernel):
    """k(x, z) = (gamma x.z + coef0)^degree; homogeneous of second order by default."""

    name = "poly"
    per_sigma2 = 1.0
    code = MapCode.POLYNOMIAL

    def diagonal(self, norms: Float64Array) -> Float64Array:
        return np.asarray((self.gamma * norms + self.coef0) ** self.degree)

    def map_constants(self, differences: bool) -> tuple[float, float, int]:
        return self.gamma, self.coef0, int(self.degree)

    def error_bound(self, sizes: Sizes) -> Float64Array:
        unit, degree = sizes.method.unit, self.degree
        underflow = (self.gamma + 1) * sizes.underflow + sizes.products * _LEAST_NUMBER[unit]
        largest = self.gamma * sizes.products + self.coef0 + underflow
        relative = (sizes.n_terms + 4) * unit  # of the base, measured against `largest`
        bound = largest**degree * np.expm1(degree * (np.log1p(relative) + 2 * unit))
        # Underflow of gamma and the base counts by the slope of the power. Powers may underflow.
        return np.asarray(bound + degree * (largest ** (degree - 1) + 1) * underflow)


class _Exponential(Kernel):
    """exp(-t) for a t >= 0 that depends on the difference of the rows."""

    code = MapCode.RBF
    shift_invariant = True
    constant_diagonal = True

    def map_constants(self, differences: bool) -> tuple[float, float, int]:
        return (-1 if differences else 2) * self.gamma * LOG2_E, 0.0, 1

    @abstractmethod
    def exponent_bound(self, sizes: Sizes) -> Float64Array:
        """Bound on the error of a t that is computed from products."""

    def error_bound(self, sizes: Sizes) -> Float64Array:
        """Bound for values from products, which err by a factor of at most 1 + delta each.

        The true mean is at most the computed one over 1 - delta. Values lie in [0, 1], which bounds
        the error if delta is large.

        If `mean_norm` is given, the mean errs no more than the value at a vertex with that norm:
        the bound t of an exponent is concave in the norm (Jensen), and exp(t) - 1 lies below its
        chord. The computed `mean_norm` may be too small by a factor of (1 + delta) / (1 - delta).
        """
        if sizes.method.differences:
            return self._bound_by_differences(sizes)
        mean = 1.0 if sizes.mean is None else sizes.mean
        rounding = _EXPONENTIAL_UNITS * sizes.method.unit
        largest = np.minimum(self.exponent_bound(sizes), 1.0)
        delta = np.expm1(largest) + rounding
        small = delta < 0.5
        true_mean = np.where(small, np.minimum(1.0, mean / (1.0 - delta)), 1.0)
        if sizes.mean_norm is not None:
            norm = np.minimum(sizes.z_norm, sizes.mean_norm * (1 + 4 * delta))
            there = self.exponent_bound(sizes._replace(z_norm=norm))
            chord = np.expm1(largest) / np.maximum(largest, _LEAST_EXPONENTIAL)
            delta = np.where(small, np.minimum(delta, (chord * there + rounding) * OUTWARDS), delta)
        return np.asarray(delta * true_mean + _LEAST_EXPONENTIAL)

    def _bound_by_differences(self, sizes: Sizes) -> Float64Array:
        """Bound for values from sums of differences.

        The n terms of a sum are positive. Therefore an exponent t errs by at most (n + 6) units of
        itself for rows of any size: differences 2, squares 1, additions n, scale 2, one to spare.
        exp(-t) errs by that times t exp(-t), which is at most 1/e. With k = exp(-t) this factor is
        -k ln(k), which is concave in k: its mean is at most -m ln(m) for the mean m of all k.
        """
        n_terms, unit = sizes.n_terms, sizes.method.unit
        relative = (n_terms + 6) * unit / (1 - (n_terms + 6) * unit)
        growth = np.exp(_LARGEST_EXPONENT[unit] * relative)  # a large error adds to itself
        units = 2 * _EXPONENTIAL_UNITS * unit
        slope, mean = np.asarray(math.exp(-1)), np.ones(())
        if sizes.mean is not None:
            mean = np.minimum(1.0, sizes.mean * (1 + units) + _LEAST_EXPONENTIAL)
            below = np.minimum(mean, slope)  # -m ln(m) is largest at 1/e
            slope = -below * np.log(below)
        underflow = self.gamma * n_terms * _LEAST_NUMBER[unit]
        bound = growth * (relative * slope + underflow * mean) + units * mean
        return np.asarray(bound + 100 * _LEAST_EXPONENTIAL)


@dataclass(frozen=True)
class RBF(_Exponential):
    """k(x, z) = exp(-gamma |x - z|^2)."""

    name = "rbf"
    per_sigma2 = 0.5

    def map_terms(self, norms: Float64Array, rows: Rows) -> Float64Array:
        return np.asarray(self.gamma * LOG2_E * norms)

    def exponent_bound(self, sizes: Sizes) -> Float64Array:
        products = 2 * sizes.products
        norms = sizes.x_norms + sizes.z_norm
        rounded = sizes.method.unit * (sizes.n_terms * products + 8 * (norms + products))
        rounded += NORM_UNITS * FLOAT64_UNIT * norms
        return np.asarray(self.gamma * (rounded + 2 * sizes.underflow))


@dataclass(frozen=True)
class Laplacian(_Exponential):
    """k(x, z) = exp(-gamma |x - z|_1)."""

    name = "laplacian"
    uses_distance = True

    def map_terms(self, norms: Float64Array, rows: Rows) -> Float64Array:
        # The product of dense rows is a sum of minima, and negative values are part of it.
        sums = norms if isinstance(rows, CSRRows) else np.einsum("ij->i", rows, dtype=np.float64)
        return np.asarray(self.gamma * LOG2_E * sums)

    def exponent_bound(self, sizes: Sizes) -> Float64Array:
        # The product counts twice. It adds up minima, whose absolute values sum to |x|_1 + |z|_1 at
        # most. The map terms of dense rows add up as many values in float64; others are norms.
        units = (2 * sizes.n_terms + 8) * sizes.method.unit
        units += (sizes.n_terms + NORM_UNITS) * FLOAT64_UNIT
        sums = sizes.x_norms + sizes.z_norm
        return np.asarray(self.gamma * (units * sums + 2 * sizes.underflow))


@dataclass(frozen=True)
class Tanimoto(Kernel):
    """k(x, z) = x.z / (|x|^2 + |z|^2 - x.z), and 0 for two rows of zeros.

    If rows hold 0 and 1 only, it is the number of features in both rows over the number of features
    in any of them. It is positive definite for all rows: it is t + t^2 + t^3 + ... for
    t = x.z / (|x|^2 + |z|^2), which is positive definite and at most 1/2.
    """

    name = "tanimoto"
    code = MapCode.TANIMOTO
    uses_gamma = False

    def diagonal(self, norms: Float64Array) -> Float64Array:
        return (norms > 0).astype(np.float64)

    def map_terms(self, norms: Float64Array, rows: Rows) -> Float64Array:
        return norms

    def error_bound(self, sizes: Sizes) -> Float64Array:
        # The product errs by at most n + 1 units of |x| |z|, and the divisor by six units of
        # |x|^2 + |z|^2 more, besides the errors of these norms. The divisor is at least half of
        # that sum, and no value exceeds 1.
        unit = sizes.method.unit
        with np.errstate(divide="ignore", invalid="ignore"):  # `lost` is what underflow may take
            lost = 64 * (sizes.n_terms + 4) * _LEAST_NORMAL[unit] / sizes.x_norms
        lost = np.where(sizes.x_norms > 0, np.minimum(lost, 2.0), 0.0)
        return np.asarray((2 * sizes.n_terms + 20) * unit + 2 * NORM_UNITS * FLOAT64_UNIT + lost)


KERNELS: dict[str, type[Kernel]] = {
    kernel.name: kernel for kernel in (RBF, Linear, Polynomial, Laplacian, Tanimoto)
}


def make_kernel(
    name: str,
    *,
    gamma: float | str | None = None,
    degree: int = 2,
    coef0: float = 0.0,
) -> Kernel:
    """Make the kernel called `name`.

    Parameters
    ----------
    name : str
        "rbf", "linear", "poly", "laplacian" or "tanimoto".
    gamma : float, optional
        Scale of the product, for kernels that have one; `resolve_gamma` finds it for given rows.
    degree, coef0 : int, float
        Exponent and constant of the polynomial kernel.

    Raises
    ------
    InputError
        For an unknown name, a missing gamma or a parameter outside its range.
    """
    shape = KernelOptions(kernel=name, degree=degree, coef0=coef0)
    if shape.kernel not in KERNELS:
        raise InputError(f"kernel must be one of {', '.join(KERNELS)}, not {name!r}")
    kind = KERNELS[shape.kernel]
    if gamma is None:
        gamma = "auto" if kind.uses_gamma else 1.0
    scale = KernelOptions(gamma=gamma).gamma
    if isinstance(scale, str):  # a rule, for which there are no rows here
        raise InputError(
            f"the {name} kernel needs gamma, a positive number; FrankWolfeSVC finds one for rows"
        )
    return kind(gamma=scale, degree=shape.degree, coef0=shape.coef0)


NOVELTY_FACTOR = 4.0
"""Factor of gamma "auto" for novelty detection. On six of seven sets the AUC is the same as with a
factor of 1, or higher by up to 0.26. On w7a it is lower by 0.03."""


def resolve_gamma(
    name: str,
    gamma: float | str,
    sigma2: Callable[[], float],
    n_features: int,
    variance: Callable[[], float] | None = None,
    task: str = "classification",
) -> float:
    """The number that `gamma` stands for; ``sigma2()`` and ``variance()`` may cost a reading each.

    "auto" is 1 / (2 sigma^2) for RBF, 1 / sigma^2 for polynomial, 1 / n_features for Laplacian and
    1 for other kernels; a "search" begins there. For novelty, RBF and Laplacian take
    `NOVELTY_FACTOR` times that. "scale" is 1 / (n_features times the variance of all values).
    """
    # `make_kernel` refuses an unknown name.
    kind = KERNELS.get(name, Kernel)
    if gamma == "scale" and variance is not None:
        return 1 / (n_features * variance()) if name in KERNELS and kind.uses_gamma else 1.0
    if gamma in ("auto", "search"):
        factor = NOVELTY_FACTOR if task == "novelty" and kind.shift_invariant else 1.0
        if kind.per_sigma2 > 0:
            return factor * kind.per_sigma2 / sigma2()
        return factor / n_features if kind.uses_distance else 1.0
    return KernelOptions(gamma=gamma).gamma  # type: ignore[return-value]
