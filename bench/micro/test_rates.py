"""The parts that decide on time: kernel values, the active set, small pairs, text, reads.

`test_limit` is what BLAS and an exponential of numpy allow on one thread: the fused sum and the
certificate do as many kernel values, and should take little longer than it does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from ooc_fw.certificate.sweep import Search, SupportWeights, certify
from ooc_fw.convert.convert import convert
from ooc_fw.convert.text import iter_libsvm
from ooc_fw.data.opening import open_source
from ooc_fw.data.sampling import Sampler
from ooc_fw.data.sources import ArraySource
from ooc_fw.kernels.engine import Engine
from ooc_fw.kernels.functions import make_kernel
from ooc_fw.options import TrainOptions
from ooc_fw.problem import BinaryProblem, ClassificationProblem
from ooc_fw.solver.active_set import ActiveSet
from ooc_fw.solver.kernel_rows import KernelRows
from ooc_fw.training.fit import fit

VERTICES, TILE, WIDTHS = 2048, 512, (22, 300)


def _rows(n_rows: int, n_features: int) -> tuple[Any, Any]:
    """Normal rows, and whether the first four columns lie inside a ball."""
    X = np.random.default_rng(0).normal(size=(n_rows, n_features)).astype(np.float32)
    return X, np.where(np.square(X[:, :4]).sum(axis=1) > 3.36, 1, -1).astype(np.int8)


def _engine(n_features: int, kernel: str = "rbf") -> Engine:
    return Engine(make_kernel(kernel, gamma=1 / (4 * n_features)), threads=1)


@pytest.mark.parametrize("width", WIDTHS)
def test_limit(benchmark: Any, width: int) -> None:
    X = _rows(VERTICES, width)[0] / width  # exponents near 0, as a kernel's are
    out = np.empty((TILE, TILE), dtype=np.float32)

    def values() -> None:
        for i in range(0, VERTICES, TILE):
            for j in range(0, VERTICES, TILE):
                np.matmul(X[i : i + TILE], X[j : j + TILE].T, out=out)
                np.exp(out, out=out)

    with threadpool_limits(1):
        benchmark(values)


@pytest.mark.parametrize("exact", [False, True], ids=["float32", "float64"])
@pytest.mark.parametrize("width", [8, 22, 54, 300])
@pytest.mark.parametrize("kernel", ["rbf", "laplacian"])
def test_fused_sum(benchmark: Any, kernel: str, width: int, exact: bool) -> None:
    X, _ = _rows(VERTICES, width)
    with _engine(width, kernel) as engine:
        rows = engine.prepare(X, exact)
        benchmark(engine.weighted_sum, rows, rows, np.full(VERTICES, 1 / VERTICES))


@pytest.mark.parametrize("width", WIDTHS)
def test_certificate(benchmark: Any, width: int) -> None:
    X, y = _rows(VERTICES, width)
    alpha = np.full(VERTICES, 1 / VERTICES)
    with open_source(X, y) as source, _engine(width) as engine:
        weights = SupportWeights(X, np.arange(VERTICES), alpha, 1.0)
        problem = BinaryProblem(source, y, engine.kernel)
        benchmark(certify, problem, engine, weights, Search(tol=1e-3))


@pytest.mark.parametrize("part", ["growth", "gradient", "steps"])
def test_active_set(benchmark: Any, part: str) -> None:
    """Growth from half to all of the vertices, the float64 gradient anew, a thousand steps."""
    X, y = _rows(VERTICES, 22)
    rows, half = np.arange(VERTICES), VERTICES // 2
    with _engine(22) as engine:

        def make(n: int) -> ActiveSet:
            block = KernelRows(VERTICES, 8 * VERTICES**2, quantised=True)
            active = ActiveSet(engine, 10.0, block)
            active.add(rows[:n], X[:n], y[:n])
            if n == VERTICES:
                active.set_weights(np.full(n, 1 / n))
            return active

        actions: dict[str, Any] = {
            "growth": lambda active: active.add(rows[half:], X[half:], y[half:]),
            "gradient": lambda active: active.refresh(),
            "steps": lambda active: active.optimise(0.0, 1000),
        }
        n = half if part == "growth" else VERTICES
        benchmark.pedantic(actions[part], setup=lambda: ((make(n),), {}), rounds=5)


@pytest.mark.parametrize(("classes", "size"), [(40, 60), (6, 600)])
def test_pairs_of_small_classes(benchmark: Any, classes: int, size: int) -> None:
    rng = np.random.default_rng(0)
    codes = np.repeat(np.arange(classes), size)
    X = rng.normal(size=(classes, 16))[codes] + rng.normal(size=(len(codes), 16))
    source = ArraySource(X.astype(np.float32))
    problem = ClassificationProblem(source, codes, make_kernel("rbf", gamma=1 / 32))
    benchmark.pedantic(fit, (problem, TrainOptions(C=10.0)), rounds=3, warmup_rounds=1)


def test_text(benchmark: Any, text: Path) -> None:
    benchmark(lambda: list(map(len, iter_libsvm(text))))


def test_conversion(benchmark: Any, text: Path) -> None:
    benchmark(convert, [text], text.with_suffix(".h5"))


@pytest.mark.parametrize("how", ["slice", "sampled"])
def test_reads(benchmark: Any, text: Path, how: str) -> None:
    """194 rows of a file that is in the cache."""
    path = text.with_suffix(".h5")
    convert([text], path)
    with open_source(path) as source:
        drawn = Sampler(source.n_rows).sample(194, np.random.default_rng(0))
        if how == "slice":
            benchmark(source.read, 1000, 1194)
        else:
            benchmark(source.take, drawn)
