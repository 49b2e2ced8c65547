"""The parts that decide on time: kernel values, the certificate, the active set.

`test_limit` is what BLAS and an exponential of numpy allow on one thread: the fused sum and the
certificate do as many kernel values, and should take little longer than it does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from ooc_fw.certificate.sweep import Search, SupportWeights, certify
from ooc_fw.data.opening import open_dataset
from ooc_fw.kernels.engine import Engine
from ooc_fw.kernels.functions import make_kernel
from ooc_fw.problem import BinaryProblem
from ooc_fw.solver.active_set import ActiveSet
from ooc_fw.solver.kernel_rows import KernelRows

VERTICES, TILE, WIDTHS = 2048, 512, (22, 300)


def _rows(n_features: int) -> tuple[Any, Any]:
    """Normal rows, and whether the first four columns lie inside a ball."""
    X = np.random.default_rng(0).normal(size=(VERTICES, n_features)).astype(np.float32)
    return X, np.where(np.square(X[:, :4]).sum(axis=1) > 3.36, 1, -1).astype(np.int8)


def _engine(n_features: int, kernel: str = "rbf") -> Engine:
    return Engine(make_kernel(kernel, gamma=1 / (4 * n_features)), threads=1)


@pytest.mark.parametrize("width", WIDTHS)
def test_limit(benchmark: Any, width: int) -> None:
    X = _rows(width)[0] / width  # exponents near 0, as a kernel's are
    out = np.empty((TILE, TILE), dtype=np.float32)

    def values() -> None:
        for i in range(0, VERTICES, TILE):
            for j in range(0, VERTICES, TILE):
                np.matmul(X[i : i + TILE], X[j : j + TILE].T, out=out)
                np.exp(out, out=out)

    with threadpool_limits(1):
        benchmark(values)


@pytest.mark.parametrize("exact", [False, True], ids=["float32", "float64"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kernel", ["rbf", "laplacian"])
def test_fused_sum(benchmark: Any, kernel: str, width: int, exact: bool) -> None:
    with _engine(width, kernel) as engine:
        rows = engine.prepare(_rows(width)[0], exact)
        benchmark(engine.weighted_sum, rows, rows, np.full(VERTICES, 1 / VERTICES))


@pytest.mark.parametrize("width", WIDTHS)
def test_certificate(benchmark: Any, width: int) -> None:
    X, y = _rows(width)
    alpha = np.full(VERTICES, 1 / VERTICES)
    with open_dataset(X, y) as source, _engine(width) as engine:
        weights = SupportWeights(X, np.arange(VERTICES), alpha, 1.0)
        problem = BinaryProblem(source, y, engine.kernel)
        benchmark(certify, problem, engine, weights, Search(tol=1e-3))


def test_a_thousand_steps(benchmark: Any) -> None:
    X, y = _rows(22)
    with _engine(22) as engine:
        active = ActiveSet(engine, 10.0, KernelRows(VERTICES, 8 * VERTICES**2, quantised=True))
        active.add(np.arange(VERTICES), X, y)
        start = np.full(VERTICES, 1 / VERTICES)

        def steps() -> None:
            active.set_weights(start)
            active.optimise(0.0, 1000)

        benchmark.pedantic(steps, rounds=5)
