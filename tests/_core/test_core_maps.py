"""Compiled kernel maps against their formulas in numpy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw._core import maps
from ooc_fw._core.maps import LOG2_E, KernelMap, MapCode
from tests.support.strategies import SEEDS

PRECISIONS = pytest.mark.parametrize("number", [np.float32, np.float64])


def naive_map(kernel_map, tile, x_terms, z_terms):
    code, scale, shift, degree = kernel_map
    tile = tile.astype(np.float64)
    if code == MapCode.RBF:
        return 2.0 ** np.minimum(scale * tile - x_terms[:, None] - z_terms, 0)
    if code == MapCode.POLYNOMIAL:
        return (scale * tile + shift) ** degree
    if code == MapCode.TANIMOTO:
        return tile / (x_terms[:, None] + z_terms - tile)
    assert code == MapCode.LINEAR
    return tile


@PRECISIONS
@pytest.mark.parametrize("code", MapCode)
@given(
    n=st.integers(0, 9),
    m=st.integers(0, 70),
    scale=st.sampled_from([0.1, 1.0, LOG2_E]),
    shift=st.sampled_from([0.0, 1.0]),
    degree=st.integers(1, 5),
    seed=SEEDS,
)
def test_tiles_become_kernel_values_and_sums_of_them(
    code, number, n, m, scale, shift, degree, seed
):
    rng = np.random.default_rng(seed)
    kernel_map = KernelMap(int(code), number(scale), number(shift), degree)
    terms = rng.random(n).astype(number), rng.random(m).astype(number)
    tile = rng.normal(size=(n, m))
    if code == MapCode.TANIMOTO:  # no product of two rows exceeds half the sum of their squares
        tile = np.tanh(tile) * np.add.outer(*terms) / 2
    tile = tile.astype(number)
    expected, mapped = naive_map(kernel_map, tile, *terms), tile.copy()
    maps.map_tile(kernel_map, mapped, *terms)
    few_units = 15 * np.finfo(number).eps
    np.testing.assert_allclose(mapped, expected, rtol=few_units, atol=few_units)

    weights, out = rng.normal(size=(2, m)), rng.normal(size=(n, 2))
    expected = out + mapped.astype(np.float64) @ weights.T
    maps.sum_tile(kernel_map, tile, *terms, weights, out)
    np.testing.assert_allclose(out, expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(tile, mapped)


@pytest.mark.parametrize("degree", [3, 8, 31, 1_000_003])
def test_powers_of_any_degree_keep_their_digits(degree):
    base = 1 + np.linspace(-1, 1, 1000) / degree
    tile = base[None].copy()
    kernel_map = KernelMap(int(MapCode.POLYNOMIAL), 1.0, 0.0, degree)
    maps.map_tile(kernel_map, tile, np.zeros(1), np.zeros(len(base)))
    expected = base.astype(np.longdouble) ** degree
    assert np.abs(tile[0] / expected - 1).max() < degree * 2.0**-53


@PRECISIONS
def test_wanted_sums_are_added_in_float64(number):
    rng = np.random.default_rng(0)
    tile, weights = rng.normal(size=(11, 20)).astype(number), rng.normal(size=(3, 20))
    wanted, out = rng.random((11, 3)) < 0.5, rng.normal(size=(11, 3))
    expected = out + np.where(wanted, tile.astype(np.float64) @ weights.T, 0)
    maps.add_wanted_sums(tile, weights, wanted, out)
    np.testing.assert_allclose(out, expected, rtol=1e-14, atol=1e-14)


@PRECISIONS
@pytest.mark.parametrize("n_zeros", [0, 3, 11])
def test_weighted_rows_are_added_in_float64(number, n_zeros):
    """Rows go in fours and singly, and those of factor 0 not at all."""
    rng = np.random.default_rng(n_zeros)
    tile, factors = rng.normal(size=(11, 20)).astype(number), rng.normal(size=(11, 3))
    for column in factors.T:
        column[rng.choice(11, n_zeros, replace=False)] = 0
    out = rng.normal(size=(3, 30))
    expected = out.copy()
    expected[:, 7:25] += factors.T @ tile[:, :18].astype(np.float64)
    maps.add_weighted_rows(tile, factors, 7, 18, out)
    np.testing.assert_allclose(out, expected, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize(
    ("number", "exp2", "tolerance", "least"),
    [
        (np.float32, maps.exp2_float32, 2e-7, 1.2e-38),
        (np.float64, maps.exp2_float64, 3e-16, 2.3e-308),
    ],
)
def test_exponential_on_the_whole_range(number, exp2, tolerance, least):
    t = np.concatenate([np.linspace(low, 0, 30_001) for low in (-1, -126)]).astype(number)
    tile, no_terms = t[None].copy(), (np.zeros(1, number), np.zeros(len(t), number))
    maps.map_tile(KernelMap(int(MapCode.RBF), number(1), number(0), 1), tile, *no_terms)
    assert np.abs(tile[0] / np.exp2(t.astype(np.longdouble)) - 1).max() < tolerance
    assert exp2(number(0)) == 1
    for far in (-1e30, -np.inf):
        assert 0 <= exp2(number(far)) <= least
