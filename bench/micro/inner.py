"""The active set: its growth, its gradient anew, and the pairwise steps of the inner solver."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from bench.report import table
from ooc_fw.kernels.engine import Engine
from ooc_fw.kernels.functions import make_kernel
from ooc_fw.solver.active_set import ActiveSet
from ooc_fw.solver.kernel_rows import KernelRows
from ooc_fw.system.threads import cpu_count

SIZES = (1000, 6000, 20_000)
FEATURES = 22
STEPS = 4000


def seconds_of_parts(m: int, threads: int, steps: int = STEPS) -> tuple[float, float, float]:
    """Seconds in which m vertices are added, their gradient is computed anew, and a step is taken.

    All vertices have weight, and kernel values are held in 16 bits.
    """
    rng = np.random.default_rng(0)
    X = rng.normal(size=(m, FEATURES)).astype(np.float32)
    labels = np.where(np.square(X[:, :4]).sum(axis=1) > 3.36, 1, -1).astype(np.int8)
    with Engine(make_kernel("rbf", gamma=1 / (2 * FEATURES)), threads) as engine:
        active = ActiveSet(engine, 10.0, KernelRows(m, 8 * m * m, quantised=True))
        half = m // 2
        active.add(np.arange(half), X[:half], labels[:half])
        started = time.perf_counter()
        active.add(np.arange(half, m), X[half:], labels[half:])
        growth = time.perf_counter() - started
        active.set_weights(np.full(m, 1 / m))
        active.exact_grad[:] = np.nan
        started = time.perf_counter()
        active.refresh()
        gradient = time.perf_counter() - started
        active.optimise(0.0, 500)  # compiles, and finds out whether threads are worthwhile
        started = time.perf_counter()
        taken, _ = active.optimise(0.0, steps)
        return growth, gradient, (time.perf_counter() - started) / taken


def tables() -> Iterator[str]:
    """One row for each size and number of threads."""
    rows = []
    seconds_of_parts(SIZES[0], 2, 1000)  # compiles
    for m in SIZES:
        for threads in sorted({1, cpu_count()}):
            growth, gradient, step = seconds_of_parts(m, threads)
            # Two rows of the block, gradient (read and written), labels, diagonal, weights.
            read_bytes = m * (2 * 2 + 6 * 4)
            values = m * m * 3 / 8  # of new vertices with all; the others mirror these
            rows.append(
                [
                    *(m, threads, f"{1e3 * growth:.0f}", f"{values / growth / 1e6:.0f}"),
                    *(f"{1e3 * gradient:.0f}", f"{m * m / 2 / gradient / 1e6:.0f}"),
                    *(f"{1e6 * step:.1f}", f"{read_bytes / step / 1e9:.1f}"),
                ]
            )
    yield (
        "## Active set that doubles, its float64 gradient, and a pairwise step\n\n"
        "Values are millions of kernel values a second."
    )
    growth_columns = ["vertices", "threads", "growth, ms", "values"]
    yield table(
        [*growth_columns, "gradient, ms", "values", "step, microseconds", "GB/s touched"], rows
    )
