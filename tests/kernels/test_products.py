"""Padded products: right, and the same in every shape, also where BLAS alone gives others."""

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ooc_fw.kernels.products
from ooc_fw.kernels.products import STEP, DenseProduct, is_uniform
from ooc_fw.testing.strategies import SEEDS

PRECISIONS = pytest.mark.parametrize(
    ("dtype", "unit"), [(np.float32, 2**-24), (np.float64, 2**-53)]
)


def products(dtype, rows, vertices):
    product = DenseProduct(dtype, rows.shape[1])
    product.load(vertices)
    tile = np.full(product.tile_shape(len(rows), len(vertices)), np.nan, dtype=dtype)
    product.into(rows, tile)
    return tile[: len(rows), : len(vertices)]


@PRECISIONS
@given(n=st.integers(1, 700), m=st.integers(1, 512), k=st.integers(1, 40), seed=SEEDS)
def test_products_are_those_of_the_definition_in_any_part(dtype, unit, n, m, k, seed):
    rng = np.random.default_rng(seed)
    X, Z = rng.normal(size=(n, k)).astype(dtype), rng.normal(size=(m, k)).astype(dtype)
    whole = products(dtype, X, Z)
    wide = np.longdouble
    scale = np.abs(X).astype(wide) @ np.abs(Z).T.astype(wide)
    assert (np.abs(whole - X.astype(wide) @ Z.T.astype(wide)) <= (k + 2) * unit * scale).all()
    a, b = sorted(rng.integers(0, n + 1, 2))
    c, d = sorted(rng.integers(0, m + 1, 2))
    if a < b and c < d:
        np.testing.assert_array_equal(products(dtype, X[a:b], Z[c:d]), whole[a:b, c:d])


@given(st.integers(1, 9000), st.integers(1, 512), st.integers(1, 2000))
def test_tiles_are_padded_to_shapes_without_borders_and_not_to_much_more(n, m, k):
    height, width = DenseProduct(np.float64, k).tile_shape(n, m)
    assert height % STEP == 0
    assert width % STEP == 0
    assert height >= n
    assert m <= width < m + STEP
    least = 1_000_000 / (width * max(k, 4)) + 2 * STEP
    assert height <= max(n + 2 * STEP, n + least)


def test_one_tile_serves_after_another():
    rng = np.random.default_rng(0)
    X, Z = rng.normal(size=(100, 7)), rng.normal(size=(60, 7))
    product = DenseProduct(np.float64, 7)
    for part in (Z[:40], Z[40:], Z[:1]):
        for rows in (X, X[:3], X[50:]):
            product.load(part)
            tile = np.empty(product.tile_shape(len(rows), len(part)))
            product.into(rows, tile)
            expected = products(np.float64, rows, part)
            np.testing.assert_array_equal(tile[: len(rows), : len(part)], expected)
            product.unload()


def test_where_blas_is_not_uniform_products_are_rounded_from_float64(monkeypatch):
    monkeypatch.setattr(ooc_fw.kernels.products, "is_uniform", lambda dtype, n_features: False)
    rng = np.random.default_rng(0)
    X, Z = (rng.normal(size=(n, 50)).astype(np.float32) for n in (100, 60))
    exact = X.astype(np.float64) @ Z.T.astype(np.float64)
    assert np.abs(products(np.float32, X, Z) - exact).max() <= 2**-23 * np.abs(exact).max()


@pytest.mark.parametrize("core", ["Haswell", "SkylakeX", "Sandybridge", "Nehalem"])
def test_every_kind_of_core_gives_uniform_products(core):
    """OpenBLAS chooses its code by the processor; Haswell's float32 code is not uniform."""
    code = (
        "import numpy as np; from threadpoolctl import threadpool_limits; "
        "from ooc_fw.kernels.products import is_uniform; threadpool_limits(1); "
        "print(all(is_uniform(np.float64, k) for k in (4, 22, 127, 600)))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "OPENBLAS_CORETYPE": core},
        check=True,
    )
    assert run.stdout == "True\n"


def test_the_answer_of_the_trial_is_kept():
    before = is_uniform.cache_info().misses
    assert is_uniform(np.float64, 23) == is_uniform(np.float64, 23)
    assert is_uniform.cache_info().misses <= before + 1
