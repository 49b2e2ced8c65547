"""Hypothesis strategies: kernels, small problems with awkward rows, and models of them.

Only this module imports hypothesis, which the package does not depend on. Shapes and kinds are
drawn by hypothesis and shrink; values come from a drawn seed and do not.
"""

import math

import numpy as np
from hypothesis import strategies as st

from ooc_fw.data.rows import Float32Array, Float64Array, Int64Array
from ooc_fw.kernels.functions import KERNELS, Kernel
from tests.support.reference import SmallProblem

SEEDS = st.integers(0, 2**32 - 1)


def powers_of_ten(low: float, high: float) -> st.SearchStrategy[float]:
    """Numbers from 10^low to 10^high, evenly spread on a logarithmic scale."""
    return st.floats(low, high).map(lambda exponent: 10.0**exponent)


@st.composite
def tables(
    draw: st.DrawFn, max_rows: int = 60, max_features: int = 9, max_mean: float = 1000.0
) -> Float32Array:
    """Rows with zeros, repeats and large column means in all combinations; at least two rows."""
    n_rows = draw(st.integers(2, max_rows))
    n_features = draw(st.integers(1, max_features))
    rng = np.random.default_rng(draw(SEEDS))
    X = rng.normal(size=(n_rows, n_features)) * draw(powers_of_ten(-2, 2))
    if draw(st.booleans()):
        X += rng.normal(size=n_features) * draw(st.sampled_from([0.0, 1.0, max_mean]))
    X *= rng.random(X.shape) < draw(st.sampled_from([0.1, 0.5, 1.0]))
    if draw(st.booleans()):
        X = X[rng.integers(0, n_rows, n_rows)]
    if draw(st.booleans()):
        X[rng.integers(n_rows)] = 0
    return X.astype(np.float32)


@st.composite
def kernels(draw: st.DrawFn, X: Float32Array) -> Kernel:
    """A kernel whose gamma suits the rows `X`, so that its values are neither all 0 nor huge."""
    kernel = KERNELS[draw(st.sampled_from(sorted(KERNELS)))]
    exact = X.astype(np.float64)
    if kernel.uses_distance:
        spread = np.abs(exact - exact.mean(axis=0)).sum(axis=1).mean()
    elif kernel.shift_invariant:
        spread = np.square(exact - exact.mean(axis=0)).sum(axis=1).mean()
    else:
        spread = np.square(exact).sum(axis=1).mean()
    gamma = draw(powers_of_ten(-1.5, 1)) / (spread if spread > 0 else 1.0)
    degree = draw(st.integers(1, 4))
    return kernel(gamma=float(gamma), degree=degree, coef0=draw(st.sampled_from([0.0, 1.0])))


@st.composite
def raw_tables(draw: st.DrawFn, max_rows: int = 60, max_features: int = 40) -> Float32Array:
    """Rows of raw columns: offsets and scales of any size, row numbers, nearly equal rows."""
    n_rows = draw(st.integers(4, max_rows))
    n_features = draw(st.integers(1, max_features))
    rng = np.random.default_rng(draw(SEEDS))
    scales = 10.0 ** rng.uniform(-3, draw(st.sampled_from([-2.0, 1.0, 4.0])), n_features)
    X = rng.normal(size=(n_rows, n_features))
    if draw(st.booleans()):
        X += rng.normal(size=n_features) * draw(st.sampled_from([1.0, 1e3, 1e6]))
    X *= scales
    X *= rng.random(X.shape) < draw(st.sampled_from([0.2, 1.0]))
    if draw(st.booleans()):
        X[:, 0] = np.arange(n_rows) * draw(st.sampled_from([1.0, 1000.0]))
    if draw(st.booleans()):
        X = X[rng.integers(0, n_rows, n_rows)]
        X[::2] *= 1 + 1e-6 * rng.normal(size=X[::2].shape)  # rows that are nearly equal
    return X.astype(np.float32)


@st.composite
def problems(draw: st.DrawFn, max_rows: int = 60, max_mean: float = 1000.0) -> SmallProblem:
    """Problems with both classes, any kernel, and C from tiny to huge."""
    X = draw(tables(max_rows, max_mean=max_mean))
    rng = np.random.default_rng(draw(SEEDS))
    y = np.where(rng.random(len(X)) < draw(st.sampled_from([0.1, 0.5])), 1, -1)
    y[rng.permutation(len(X))[:2]] = 1, -1
    C = draw(powers_of_ten(-3, 6))
    return SmallProblem(draw(kernels(X)), X, y.astype(np.int8), C)


@st.composite
def models(draw: st.DrawFn, n_rows: int) -> tuple[Int64Array, Float64Array]:
    """Different row numbers in any order, and positive weights that sum to 1.

    Weights span many orders of magnitude, as they do before vertices are dropped.
    """
    rng = np.random.default_rng(draw(SEEDS))
    size = draw(st.integers(1, n_rows))
    alpha = np.exp(draw(st.sampled_from([0.0, 1.0, 10.0])) * rng.normal(size=size))
    return rng.permutation(n_rows)[:size].astype(np.int64), alpha / math.fsum(alpha)
