"""Padded products: right, and the same in every shape, also where BLAS alone gives others."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ooc_fw.kernels.products
from ooc_fw.kernels.arithmetic import Operand
from ooc_fw.kernels.functions import Linear, Method
from ooc_fw.kernels.products import FEW_ROWS, STEP, Workspace, _DenseProduct, is_in_order


def products(workspace, rows, vertices):
    dtype, nothing = rows.dtype.type, np.zeros(max(len(rows), len(vertices)), rows.dtype)
    x, z = (Operand(own, nothing[: len(own)], nothing, Method(dtype)) for own in (rows, vertices))
    ((_, _, tile),) = workspace.products(x, z, len(rows))
    return tile[:, : len(vertices)].copy()


@given(st.integers(1, 9000), st.integers(1, 512), st.integers(1, 2000))
def test_tiles_are_padded_to_shapes_without_borders_and_not_to_much_more(n, m, k):
    height, width = _DenseProduct(np.float64, k, None).tile_shape(n, m)
    assert m <= width < m + STEP
    assert width % STEP == 0
    if n <= FEW_ROWS and is_in_order(np.float64, max(k, 4)):
        assert height == n
        return
    assert height % STEP == 0
    assert height >= n
    least = 1_000_000 / (width * max(k, 4)) + 2 * STEP
    assert height <= max(n + 2 * STEP, n + least)


@pytest.fixture
def blas(monkeypatch):
    """A function that has BLAS appear as uniform or not, and in order for some types."""

    def appear(uniform, in_order):
        module = ooc_fw.kernels.products
        if not uniform:
            monkeypatch.setattr(module, "is_uniform", lambda dtype, n_features: False)
        if in_order is not None:
            monkeypatch.setattr(module, "is_in_order", lambda dtype, n_features: dtype in in_order)

    return appear


def test_float32_products_that_come_from_float64_are_rounded_once_and_few_rows_not_padded(blas):
    blas(uniform=False, in_order=[np.float64])
    assert _DenseProduct(np.float32, 22, None).tile_shape(1, 512) == (1, 512)
    rng = np.random.default_rng(0)
    X, Z = (rng.normal(size=(n, 50)).astype(np.float32) for n in (100, 60))
    exact = X.astype(np.float64) @ Z.T.astype(np.float64)
    error = np.abs(products(Workspace(Linear(), None), X, Z) - exact)
    assert error.max() <= 2**-23 * np.abs(exact).max()


@pytest.mark.parametrize("in_order", [None, []])
@pytest.mark.parametrize("uniform", [True, False])
def test_a_few_rows_have_the_bits_of_many(blas, in_order, uniform):
    """By a compiled loop where BLAS adds up in order, and by padded BLAS where it does not."""
    blas(uniform, in_order)
    rng = np.random.default_rng(0)
    for k in (3, 22, 130, 500, 700):
        X, Z = (rng.normal(size=(n, k)).astype(np.float32) for n in (300, 200))
        whole = products(Workspace(Linear(), None), X, Z)
        for n in (1, 7, FEW_ROWS):
            few = products(Workspace(Linear(), None), X[-n:], Z)
            np.testing.assert_array_equal(few, whole[-n:])


CORES = ["Haswell", "Sandybridge", "Nehalem"]
if "avx512f" in Path("/proc/cpuinfo").read_text():
    CORES.append("SkylakeX")


@pytest.mark.process
@pytest.mark.parametrize("core", CORES)
def test_every_kind_of_core_gives_uniform_products(core):
    """OpenBLAS chooses its code by the processor; Haswell's float32 code is not uniform."""
    code = (
        "import numpy as np; from threadpoolctl import threadpool_limits; "
        "from ooc_fw.kernels.products import is_uniform; threadpool_limits(1); "
        "print(all(is_uniform(np.float64, k) for k in (4, 22, 127, 600)))"
    )
    environment = os.environ | {"OPENBLAS_CORETYPE": core}
    command = [sys.executable, "-c", code]
    assert subprocess.check_output(command, text=True, env=environment) == "True\n"
