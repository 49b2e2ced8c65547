"""The memory that rows of kernel values take, and the precision that they keep."""

import numpy as np
import pytest

from ooc_fw.kernels.engine import Engine
from ooc_fw.kernels.functions import make_kernel
from ooc_fw.solver.kernel_rows import KernelRows, value_type
from ooc_fw.system.memory import rss_bytes
from tests.support.solving import kernel_row

BUDGET = 64 << 20


def values_of(X):
    """Kernel values of rows by definition, for gamma 1."""
    return np.exp(-np.square(X[:, None].astype(np.float64) - X[None]).sum(axis=2))


@pytest.fixture
def engine():
    with Engine(make_kernel("rbf", gamma=1.0), 2) as engine:
        yield engine


@pytest.mark.parametrize("quantised", [False, True])
def test_rows_that_outgrow_their_budget_stay_within_it(quantised, engine):
    """They grow, move and go, and no more of a row becomes resident than holds values."""
    X = np.random.default_rng(0).random((9000, 5), dtype=np.float32)
    z = engine.prepare(X)
    engine.block(z[:2000], z, np.empty((2000, len(X)), dtype=np.float32))  # its own buffers
    few = KernelRows(10, 1 << 20, quantised)  # compiles, which takes memory, too
    for n_rows in (5, 10):
        few.add(5, engine, z[:n_rows])
    few.keep(np.arange(5))
    before = rss_bytes()
    rows = KernelRows(10**6, BUDGET, quantised)
    for start in range(0, 9000, 1500):
        rows.add(1500, engine, z[: start + 1500])
        held = np.random.default_rng(start).choice(len(rows), 200, replace=False)
        rows.fetch(np.sort(held), engine, z[: len(rows)])
        assert rss_bytes() - before <= 1.25 * BUDGET
    rows.keep(np.arange(0, 9000, 2))
    assert rss_bytes() - before <= 1.25 * BUDGET


def test_a_process_above_its_limit_gives_rows_up_and_holds_those_that_steps_ask_for(engine):
    X = np.random.default_rng(0).random((1000, 5), dtype=np.float32)
    z = engine.prepare(X)
    rows = KernelRows(1000, 1 << 30, limit=1)
    rows.add(500, engine, z[:500])
    rows.add(500, engine, z)
    assert np.count_nonzero(rows.slots >= 0) <= 2
    rows.fetch(np.array([0, 999]), engine, z)
    assert np.flatnonzero(rows.slots >= 0).tolist() == [0, 999]
    np.testing.assert_allclose(kernel_row(rows, 999, engine, z), values_of(X)[999], rtol=1e-5)


@pytest.mark.parametrize(
    ("C", "name"), [(1.0, "uint16"), (30.0, "uint16"), (1500.0, "float32"), (1e6, "float64")]
)
def test_values_have_the_smallest_type_that_leaves_the_problem_convex(C, name):
    """The least eigenvalue of the rounding errors is well above -1/C."""
    exact = values_of(np.random.default_rng(0).normal(size=(400, 5)) / 3)
    stored = {
        "uint16": np.rint(exact * 65535) / 65535,
        "float32": exact.astype(np.float32).astype(np.float64),
        "float64": exact,
    }
    assert value_type(len(exact), C, 1.0, quantised=True) == name
    assert value_type(len(exact), C, 1.0, quantised=False) == name.replace("uint16", "float32")
    errors = stored[name] - exact
    np.fill_diagonal(errors, 0)
    assert np.linalg.eigvalsh(errors)[0] >= -0.25 / C
