"""Microseconds of a pairwise step of the inner solver, against the memory it has to read."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from bench.report import table
from ooc_fw.kernels.engine import Engine
from ooc_fw.kernels.functions import make_kernel
from ooc_fw.solver.active_set import ActiveSet
from ooc_fw.solver.kernel_rows import KernelRows

SIZES = (1000, 6000)
FEATURES = 22
STEPS = 2000


def step_microseconds(m: int, steps: int) -> float:
    """Time of one step on an active set of m vertices, all with weight."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(m, FEATURES)).astype(np.float32)
    labels = np.where(np.square(X[:, :4]).sum(axis=1) > 3.36, 1, -1).astype(np.int8)
    with Engine(make_kernel("rbf", gamma=1 / (2 * FEATURES))) as engine:
        active = ActiveSet(engine, 10.0, KernelRows(m, 8 * m * m, quantised=True))
        active.add(np.arange(m), X, labels)
        active.set_weights(np.full(m, 1 / m))
        active.optimise(0.0, 10)  # compiles
        started = time.perf_counter()
        taken, _ = active.optimise(0.0, steps)
        return 1e6 * (time.perf_counter() - started) / taken


def tables() -> Iterator[str]:
    """One row for each size."""
    rows = []
    for m in SIZES:
        micro = step_microseconds(m, STEPS)
        # Two rows of the block, gradient (read and written), labels, diagonal, weights, losses.
        read_bytes = m * (2 * 4 + 6 * 8)
        rows.append([m, f"{micro:.1f}", f"{read_bytes / micro / 1e3:.1f}"])
    yield "## Pairwise step of the inner solver, one core"
    yield table(["support vectors", "microseconds", "GB/s touched"], rows)
