"""Compiled kernel maps against float64 numpy."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw._core.maps import (
    LOG2_E,
    MapCode,
    exp2_nonpositive,
    exp2_nonpositive64,
    map_tile,
    map_tile64,
    raise_largest,
    sum_tile,
    sum_tile64,
)
from ooc_fw.kernels.functions import KERNELS
from ooc_fw.testing.strategies import SEEDS

SHAPES = st.tuples(st.integers(0, 9), st.integers(0, 70))


def naive_map(code, tile, x_terms, z_terms, scale, shift, degree):
    tile = tile.astype(np.float64)
    if code == MapCode.RBF:
        return 2.0 ** np.minimum(scale * tile - x_terms[:, None] - z_terms, 0)
    if code == MapCode.POLYNOMIAL:
        return (scale * tile + shift) ** degree
    if code == MapCode.LAPLACIAN:
        return 2.0 ** (-scale * np.maximum(tile, 0))
    return tile


@st.composite
def tiles(draw):
    """Arguments of `map_tile`; slightly negative products of the Laplacian among them."""
    n, m = draw(SHAPES)
    rng = np.random.default_rng(draw(SEEDS))
    code = draw(st.sampled_from(list(MapCode)))
    tile = rng.normal(size=(n, m))
    if code == MapCode.LAPLACIAN:
        tile = np.maximum(tile, -1e-6)
    return (
        code,
        tile.astype(np.float32),
        rng.random(n).astype(np.float32),
        rng.random(m).astype(np.float32),
        np.float32(draw(st.sampled_from([0.1, 1.0, LOG2_E]))),
        np.float32(draw(st.sampled_from([0.0, 1.0]))),
        draw(st.integers(1, 5)),
    )


def test_every_map_belongs_to_a_kernel():
    assert {kernel.code for kernel in KERNELS.values()} == set(MapCode)


@given(tiles())
def test_map_tile_is_the_formula(arguments):
    code, tile, *rest = arguments
    expected = naive_map(*arguments)
    map_tile(int(code), tile, *rest)
    np.testing.assert_allclose(tile, expected, rtol=2e-6, atol=2e-6)


@given(tiles(), SEEDS)
def test_sum_tile_adds_the_weighted_rows_of_the_mapped_tile(arguments, seed):
    code, tile, *rest = arguments
    rng = np.random.default_rng(seed)
    weights, out = rng.normal(size=tile.shape[1]), rng.normal(size=tile.shape[0])
    mapped = tile.copy()
    map_tile(int(code), mapped, *rest)
    expected = out + mapped.astype(np.float64) @ weights
    sum_tile(int(code), tile, *rest, weights, out)
    np.testing.assert_allclose(out, expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(tile, mapped)


@given(tiles(), SEEDS)
def test_sum_tile64_keeps_float64_throughout(arguments, seed):
    code, *arrays, degree = arguments
    tile, x_terms, z_terms, scale, shift = (np.float64(array) for array in arrays)
    expected_tile = naive_map(code, tile, x_terms, z_terms, scale, shift, degree)
    rng = np.random.default_rng(seed)
    weights, out = rng.normal(size=tile.shape[1]), rng.normal(size=tile.shape[0])
    expected = out + expected_tile @ weights
    mapped = tile.copy()
    map_tile64(int(code), mapped, x_terms, z_terms, scale, shift, degree)
    np.testing.assert_allclose(mapped, expected_tile, rtol=1e-14, atol=1e-14)
    sum_tile64(int(code), tile, x_terms, z_terms, scale, shift, degree, weights, out)
    np.testing.assert_allclose(tile, expected_tile, rtol=1e-14, atol=1e-14)
    np.testing.assert_allclose(out, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("degree", [3, 7, 8, 31, 1_000_003])
def test_power_of_a_large_degree_takes_few_products(degree):
    """A product for each unit of the degree would take a minute at the largest one."""
    base = 1 + np.linspace(-1, 1, 200_000) / degree
    no_terms = np.zeros(1), np.zeros(len(base))
    tile, out = base[None].copy(), np.zeros(1)
    started = time.perf_counter()
    sum_tile64(int(MapCode.POLYNOMIAL), tile, *no_terms, 1.0, 0.0, degree, np.ones(len(base)), out)
    assert time.perf_counter() - started < 10  # compilation included
    expected = base.astype(np.longdouble) ** degree
    assert np.abs(tile[0] / expected - 1).max() < degree * 2.0**-53


def test_sums_are_held_in_float64():
    """In float32 the small weights would be lost beside the large one."""
    tile = np.ones((1, 10_001), dtype=np.float32)
    weights = np.full(10_001, 1e-9)
    weights[0] = 1.0
    out = np.zeros(1)
    nothing = np.zeros(1, np.float32), np.zeros(10_001, np.float32)
    sum_tile(int(MapCode.LINEAR), tile, *nothing, np.float32(1), np.float32(0), 1, weights, out)
    assert out[0] == pytest.approx(1 + 1e-5, rel=1e-14)


LINES = pytest.mark.parametrize(("low", "high"), [(-1, 0), (-30, 0), (-126, -100)])


@LINES
def test_exponential_of_a_line_of_numbers(low, high):
    t = np.linspace(low, high, 100_001).astype(np.float32)
    tile, no_terms = t[None].copy(), (np.zeros(1, np.float32), np.zeros(len(t), np.float32))
    map_tile(int(MapCode.RBF), tile, *no_terms, np.float32(1), np.float32(0), 1)
    expected = np.exp2(t.astype(np.float64))
    assert np.abs(tile[0] / expected - 1).max() < 2e-7


@LINES
def test_exponential_of_a_line_of_numbers_in_float64(low, high):
    t = np.linspace(low, high, 100_001)
    tile, no_terms = t[None].copy(), (np.zeros(1), np.zeros(len(t)))
    sum_tile64(int(MapCode.RBF), tile, *no_terms, 1.0, 0.0, 1, np.zeros(len(t)), np.zeros(1))
    error = tile[0] / np.exp2(t.astype(np.longdouble)) - 1
    assert np.abs(error).max() < 3e-16


@pytest.mark.parametrize(
    ("power", "number", "least"),
    [(exp2_nonpositive, np.float32, 1.2e-38), (exp2_nonpositive64, np.float64, 2.3e-308)],
)
def test_exponential_ends(power, number, least):
    assert power(number(0.0)) == 1
    assert 0 <= power(number(-np.inf)) <= least
    assert 0 <= power(number(-1e30)) <= least


@given(st.integers(1, 200), st.integers(1, 3), st.integers(0, 3), SEEDS)
def test_raise_largest(width, n_tiles, spare, seed):
    rng = np.random.default_rng(seed)
    tiles = rng.integers(0, 50, (n_tiles, 5, width)).astype(np.float32)
    largest, place = np.zeros(5, dtype=np.float32), np.zeros(5, dtype=np.int64)
    for k, tile in enumerate(tiles):
        padded = np.concatenate([tile, np.full((5, spare), 99, dtype=np.float32)], axis=1)
        raise_largest(padded, width, k * width, largest, place)
    whole = np.concatenate(tiles, axis=1)
    np.testing.assert_array_equal(largest, whole.max(axis=1))
    np.testing.assert_array_equal(place, whole.argmax(axis=1))
