"""The memory that kernel rows take, as the operating system counts it."""

from pathlib import Path

import numpy as np
import pytest

from ooc_fw.engine import Engine
from ooc_fw.kernel_rows import KernelRows
from ooc_fw.kernels import make_kernel

STATUS = Path("/proc/self/status")
BUDGET = 64 << 20


def resident_bytes():
    for line in STATUS.read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError


@pytest.mark.skipif(not STATUS.exists(), reason="needs /proc")
@pytest.mark.parametrize("quantised", [False, True])
def test_rows_that_outgrow_their_budget_stay_within_it(quantised):
    """However they grow, move and go, no more of a row becomes resident than holds values."""
    X = np.random.default_rng(0).random((9000, 5), dtype=np.float32)
    with Engine(make_kernel("rbf", gamma=1.0), 2) as engine:
        z = engine.prepare(X)
        engine.block(z[:2000], z, np.empty((2000, len(X)), dtype=np.float32))  # its own buffers
        before = resident_bytes()
        rows = KernelRows(10**6, BUDGET, quantised)
        for start in range(0, 9000, 1500):
            rows.add(1500, engine, z[: start + 1500])
            held = np.random.default_rng(start).choice(len(rows), 200, replace=False)
            rows.fetch(np.sort(held), engine, z[: len(rows)])
            assert resident_bytes() - before <= 1.25 * BUDGET
        rows.keep(np.arange(0, 9000, 2))
        assert resident_bytes() - before <= 1.25 * BUDGET
