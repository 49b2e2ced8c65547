"""Compiled kernel maps against float64 numpy."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw._core import maps
from ooc_fw._core.maps import LOG2_E, KernelMap, MapCode
from tests.support.strategies import SEEDS

PRECISIONS = pytest.mark.parametrize(
    ("number", "unit"), [(np.float32, 2.0**-24), (np.float64, 2.0**-53)]
)


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


@st.composite
def tiles(draw, code):
    """Map, tile and terms for `map_tile`."""
    n, m = draw(st.integers(0, 9)), draw(st.integers(0, 70))
    rng = np.random.default_rng(draw(SEEDS))
    tile = rng.normal(size=(n, m))
    scale = np.float32(draw(st.sampled_from([0.1, 1.0, LOG2_E])))
    shift = np.float32(draw(st.sampled_from([0.0, 1.0])))
    kernel_map = KernelMap(int(code), scale, shift, draw(st.integers(1, 5)))
    x_terms, z_terms = rng.random(n).astype(np.float32), rng.random(m).astype(np.float32)
    if code == MapCode.TANIMOTO:  # no product of two rows exceeds half the sum of their squares
        tile = np.tanh(tile) * np.add.outer(x_terms, z_terms) / 2
    return kernel_map, tile.astype(np.float32), x_terms, z_terms


@PRECISIONS
@pytest.mark.parametrize("code", MapCode)
@given(data=st.data(), seed=SEEDS)
def test_tiles_become_values_of_the_formula_or_their_sums(code, number, unit, data, seed):
    """In place, and summed up in float64."""
    kernel_map, *arrays = data.draw(tiles(code))
    kernel_map = kernel_map._replace(scale=number(kernel_map.scale), shift=number(kernel_map.shift))
    tile, *terms = (array.astype(number) for array in arrays)
    n, m = tile.shape
    expected, mapped = naive_map(kernel_map, tile, *terms), tile.copy()
    maps.map_tile(kernel_map, mapped, *terms)
    np.testing.assert_allclose(mapped, expected, rtol=30 * unit, atol=30 * unit)

    rng = np.random.default_rng(seed)
    weights, out = rng.normal(size=(2, m)), rng.normal(size=(n, 2))
    expected = out + mapped.astype(np.float64) @ weights.T
    maps.sum_tile(kernel_map, tile, *terms, weights, out)
    np.testing.assert_allclose(out, expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(tile, mapped)


@pytest.mark.parametrize("degree", [3, 8, 31, 1_000_003])
def test_power_of_a_large_degree_takes_few_products(degree):
    """A product for each unit of the degree would take a minute at the largest one."""
    base = 1 + np.linspace(-1, 1, 100_000) / degree
    tile, started = base[None].copy(), time.perf_counter()
    kernel_map = KernelMap(int(MapCode.POLYNOMIAL), 1.0, 0.0, degree)
    maps.map_tile(kernel_map, tile, np.zeros(1), np.zeros(len(base)))
    assert time.perf_counter() - started < 10  # compilation included
    expected = base.astype(np.longdouble) ** degree
    assert np.abs(tile[0] / expected - 1).max() < degree * 2.0**-53


@PRECISIONS
def test_weighted_rows_are_added_in_float64(number, unit):
    """Rows in fours and singly, some of factor 0, to some columns of the sums."""
    for n_zeros in (0, 3, 11):
        rng = np.random.default_rng(n_zeros)
        tile, factors = rng.normal(size=(11, 20)).astype(number), rng.normal(size=(11, 3))
        for column in factors.T:
            column[rng.choice(11, n_zeros, replace=False)] = 0
        out = rng.normal(size=(3, 30))
        expected = out.copy()
        expected[:, 7:25] += factors.T @ tile[:, :18].astype(np.float64)
        maps.add_weighted_rows(tile, factors, 7, 18, out)
        np.testing.assert_allclose(out, expected, rtol=1e-14, atol=1e-14)


@PRECISIONS
def test_exponential_of_a_line_of_numbers(number, unit):
    tolerance, least = {np.float32: (2e-7, 1.2e-38), np.float64: (3e-16, 2.3e-308)}[number]
    for low, high in ((-1, 0), (-30, 0), (-126, -100)):
        t = np.linspace(low, high, 30_001).astype(number)
        tile, no_terms = t[None].copy(), (np.zeros(1, number), np.zeros(len(t), number))
        maps.map_tile(KernelMap(int(MapCode.RBF), number(1), number(0), 1), tile, *no_terms)
        assert np.abs(tile[0] / np.exp2(t.astype(np.longdouble)) - 1).max() < tolerance
    exp2 = {np.float32: maps.exp2_float32, np.float64: maps.exp2_float64}[number]
    assert exp2(number(0.0)) == 1
    assert 0 <= exp2(number(-np.inf)) <= least
    assert 0 <= exp2(number(-1e30)) <= least
