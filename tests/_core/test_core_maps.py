"""Compiled kernel maps against float64 numpy."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw._core.maps import (
    LOG2_E,
    KernelMap,
    MapCode,
    add_weighted_rows,
    exp2_float32,
    exp2_float64,
    fill_tile,
    map_tile,
    raise_largest,
    sum_tile,
)
from tests.support.strategies import SEEDS

PRECISIONS = pytest.mark.parametrize(
    ("number", "unit"), [(np.float32, 2.0**-24), (np.float64, 2.0**-53)]
)
SHAPES = st.tuples(st.integers(0, 9), st.integers(0, 70))


def naive_map(kernel_map, tile, x_terms, z_terms):
    code, scale, shift, degree = kernel_map
    tile = tile.astype(np.float64)
    if code == MapCode.RBF:
        return 2.0 ** np.minimum(scale * tile - x_terms[:, None] - z_terms, 0)
    if code == MapCode.POLYNOMIAL:
        return (scale * tile + shift) ** degree
    if code == MapCode.LAPLACIAN:
        return 2.0 ** (-scale * np.maximum(tile, 0))
    if code == MapCode.COSINE:
        return tile * (x_terms[:, None] * z_terms)
    if code == MapCode.TANIMOTO:
        return tile / (x_terms[:, None] + z_terms - tile)
    assert code == MapCode.LINEAR
    return tile


@st.composite
def tiles(draw):
    """Map, tile and terms for `map_tile`; slightly negative products of the Laplacian included."""
    n, m = draw(SHAPES)
    rng = np.random.default_rng(draw(SEEDS))
    code = draw(st.sampled_from(list(MapCode)))
    tile = rng.normal(size=(n, m))
    if code == MapCode.LAPLACIAN:
        tile = np.maximum(tile, -1e-6)
    scale = np.float32(draw(st.sampled_from([0.1, 1.0, LOG2_E])))
    shift = np.float32(draw(st.sampled_from([0.0, 1.0])))
    kernel_map = KernelMap(int(code), scale, shift, draw(st.integers(1, 5)))
    x_terms, z_terms = rng.random(n).astype(np.float32), rng.random(m).astype(np.float32)
    if code == MapCode.TANIMOTO:  # no product of two rows exceeds half the sum of their squares
        tile = np.tanh(tile) * np.add.outer(x_terms, z_terms) / 2
    return kernel_map, tile.astype(np.float32), x_terms, z_terms


def in_float64(kernel_map, *arrays):
    wide = kernel_map._replace(scale=float(kernel_map.scale), shift=float(kernel_map.shift))
    return wide, *(array.astype(np.float64) for array in arrays)


@PRECISIONS
@given(case=tiles(), seed=SEEDS)
def test_tiles_become_values_of_the_formula_or_their_weighted_sums(number, unit, case, seed):
    kernel_map, *arrays = case
    kernel_map = kernel_map._replace(scale=number(kernel_map.scale), shift=number(kernel_map.shift))
    tile, *terms = (array.astype(number) for array in arrays)
    expected = naive_map(kernel_map, tile, *terms)
    mapped = tile.copy()
    map_tile(kernel_map, mapped, *terms)
    np.testing.assert_allclose(mapped, expected, rtol=30 * unit, atol=30 * unit)
    rng = np.random.default_rng(seed)
    weights, out = rng.normal(size=(2, tile.shape[1])), rng.normal(size=(tile.shape[0], 2))
    expected = out + mapped.astype(np.float64) @ weights.T
    sum_tile(kernel_map, tile, *terms, weights, out)
    np.testing.assert_allclose(out, expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(tile, mapped)


@PRECISIONS
@given(case=tiles(), whole=st.booleans())
def test_filled_tiles_are_the_mapped_ones(number, unit, case, whole):
    """Values as they are, or as whole multiples of a unit, rows some way apart."""
    kernel_map, *arrays = case
    kernel_map = kernel_map._replace(scale=number(kernel_map.scale), shift=number(kernel_map.shift))
    tile, *terms = (array.astype(number) for array in arrays)
    mapped = tile.copy()
    map_tile(kernel_map, mapped, *terms)
    n, m = mapped.shape
    units, half, dtype = (
        (number(7), number(0.5), np.int32) if whole else (number(1), number(0), number)
    )
    expected = (mapped * units + half).astype(dtype)
    out = np.full((n, m + 3), 5, dtype=dtype)
    fill_tile(kernel_map, tile, *terms, out.ravel()[: (n - 1) * (m + 3) + m], m + 3, (units, half))
    np.testing.assert_array_equal(out[:, :m], expected)
    np.testing.assert_array_equal(out[:, m:], 5)


@pytest.mark.parametrize("degree", [3, 7, 8, 31, 1_000_003])
def test_power_of_a_large_degree_takes_few_products(degree):
    """A product for each unit of the degree would take a minute at the largest one."""
    base = 1 + np.linspace(-1, 1, 200_000) / degree
    no_terms = np.zeros(1), np.zeros(len(base))
    tile, out = base[None].copy(), np.zeros((1, 1))
    started = time.perf_counter()
    kernel_map = KernelMap(int(MapCode.POLYNOMIAL), 1.0, 0.0, degree)
    sum_tile(kernel_map, tile, *no_terms, np.ones((1, len(base))), out)
    assert time.perf_counter() - started < 10  # compilation included
    expected = base.astype(np.longdouble) ** degree
    assert np.abs(tile[0] / expected - 1).max() < degree * 2.0**-53


def test_sums_are_held_in_float64():
    """In float32 the small weights would be lost beside the large one."""
    tile = np.ones((1, 10_001), dtype=np.float32)
    weights = np.full((1, 10_001), 1e-9)
    weights[0, 0] = 1.0
    out = np.zeros((1, 1))
    nothing = np.zeros(1, np.float32), np.zeros(10_001, np.float32)
    kernel_map = KernelMap(int(MapCode.LINEAR), np.float32(1), np.float32(0), 1)
    sum_tile(kernel_map, tile, *nothing, weights, out)
    assert out[0, 0] == pytest.approx(1 + 1e-5, rel=1e-14)


@PRECISIONS
@pytest.mark.parametrize("n_zeros", [0, 3, 11])
def test_weighted_rows_are_added_in_float64(number, unit, n_zeros):
    """Rows in fours and singly, some of factor 0, to some columns of the sums."""
    rng = np.random.default_rng(n_zeros)
    tile, factors = rng.normal(size=(11, 20)).astype(number), rng.normal(size=(11, 3))
    for column in factors.T:
        column[rng.choice(11, n_zeros, replace=False)] = 0
    out = rng.normal(size=(3, 30))
    expected = out.copy()
    expected[:, 7:25] += factors.T @ tile[:, :18].astype(np.float64)
    add_weighted_rows(tile, factors, 7, 18, out)
    np.testing.assert_allclose(out, expected, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize(("low", "high"), [(-1, 0), (-30, 0), (-126, -100)])
@PRECISIONS
def test_exponential_of_a_line_of_numbers(number, unit, low, high):
    t = np.linspace(low, high, 100_001).astype(number)
    tile = t[None].copy()
    kernel_map = KernelMap(int(MapCode.RBF), number(1), number(0), 1)
    map_tile(kernel_map, tile, np.zeros(1, number), np.zeros(len(t), number))
    error = np.abs(tile[0] / np.exp2(t.astype(np.longdouble)) - 1)
    assert error.max() < {np.float32: 2e-7, np.float64: 3e-16}[number]


@PRECISIONS
def test_exponential_ends(number, unit):
    least = {np.float32: 1.2e-38, np.float64: 2.3e-308}[number]
    exp2 = {np.float32: exp2_float32, np.float64: exp2_float64}[number]
    assert exp2(number(0.0)) == 1
    assert 0 <= exp2(number(-np.inf)) <= least
    assert 0 <= exp2(number(-1e30)) <= least


@given(st.integers(1, 200), st.integers(1, 3), st.integers(0, 3), SEEDS)
def test_raise_largest(width, n_tiles, spare, seed):
    rng = np.random.default_rng(seed)
    tiles = rng.integers(0, 50, (n_tiles, 5, width)).astype(np.float32)
    largest, place = np.zeros(5, dtype=np.float32), np.zeros(5, dtype=np.int64)
    for k, tile in enumerate(tiles):
        padded = np.concatenate([tile, np.full((5, spare), 99, dtype=np.float32)], axis=1)
        bits = padded.view(np.int32), largest.view(np.int32)
        raise_largest(bits[0], width, k * width, bits[1], place)
    whole = np.concatenate(tiles, axis=1)
    np.testing.assert_array_equal(largest, whole.max(axis=1))
    np.testing.assert_array_equal(place, whole.argmax(axis=1))
