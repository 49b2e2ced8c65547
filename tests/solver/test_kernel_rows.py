"""The memory that kernel rows take, as the operating system counts it."""

from pathlib import Path

import numpy as np
import pytest

from ooc_fw.kernels.engine import Engine
from ooc_fw.kernels.functions import make_kernel
from ooc_fw.solver import kernel_rows
from ooc_fw.solver.kernel_rows import GrowingArray, KernelRows, value_type
from tests.support.solving import kernel_row

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


def test_a_process_above_its_limit_gets_memory_back(monkeypatch):
    """Half of the rows go, and those that steps ask for are held again."""
    above = iter([0, 0, 500 * 2 * 500])  # bytes; rows are added, filled, and added again
    monkeypatch.setattr(kernel_rows, "bytes_above", lambda _: next(above, 0))
    X = np.random.default_rng(0).random((1000, 5), dtype=np.float32)
    with Engine(make_kernel("rbf", gamma=1.0), 1) as engine:
        z = engine.prepare(X)
        rows = KernelRows(1000, 1 << 30, limit=1 << 30)
        rows.add(500, engine, z[:500])
        rows.fill(engine, z[:500])
        assert rows.whole
        rows.add(500, engine, z)
        held = int((rows.slots >= 0).sum())
        assert 2 <= held < 500
        rows.fetch(np.array([0, 999]), engine, z)
        assert (rows.slots[[0, 999]] >= 0).all()
        assert int((rows.slots >= 0).sum()) <= held
        values = rows.values[rows.slots[999], :1000]
        np.testing.assert_allclose(values, np.exp(-np.square(X - X[999]).sum(axis=1)), rtol=1e-5)


def test_the_type_of_values_follows_from_penalty_and_vertices():
    assert value_type(10_000, 10.0, 1.0, quantised=True) == "uint16"
    assert value_type(10_000, 10.0, 1.0, quantised=False) == "float32"
    assert value_type(12_000, 1000.0, 1.0, quantised=True) == "float32"
    assert value_type(1000, 1e6, 1.0, quantised=True) == "float64"
    assert value_type(20, 1.0, 2e7, quantised=False) == "float64"
    assert value_type(0, 1.0, 1.0, quantised=True) == "uint16"


@pytest.mark.parametrize("C", [1.0, 30.0, 1000.0, 1e5])
def test_rounding_leaves_the_problem_convex(C):
    """The least eigenvalue of the rounding errors, with room to spare, is below 1/C."""
    m = 400
    X = np.random.default_rng(0).normal(size=(m, 5))
    exact = np.exp(-0.1 * np.square(X[:, None] - X[None]).sum(axis=2))
    stored = {
        "uint16": np.rint(exact * 65535) / 65535,
        "float32": exact.astype(np.float32).astype(np.float64),
        "float64": exact,
    }
    errors = stored[value_type(m, C, 1.0, True).name] - exact
    np.fill_diagonal(errors, 0)
    assert np.linalg.eigvalsh(errors)[0] >= -0.25 / C


@pytest.mark.parametrize("budget", [1 << 30, 60 * 8 * 200])
def test_rows_change_their_type(budget):
    X = np.random.default_rng(0).normal(size=(200, 5)).astype(np.float32)
    exact = np.exp(-np.square(X[:, None].astype(np.float64) - X[None]).sum(axis=2))
    with Engine(make_kernel("rbf", gamma=1.0), 2) as engine:
        rows = KernelRows(200, budget, quantised=True)
        rows.add(200, engine, engine.prepare(X))
        for name, error in (("float32", 1e-6), ("float64", 1e-14), ("uint16", 1e-5)):
            rows.change(name)
            z = engine.prepare(X, exact=True) if name == "float64" else engine.prepare(X)
            rows.fill(engine, z)
            assert rows.dtype == name
            assert rows.whole == (budget == 1 << 30)
            for place in (0, 99, 199, 5):
                values = kernel_row(rows, place, engine, z)
                np.testing.assert_allclose(values, exact[place], atol=error)


def test_array_holds_what_was_appended_and_kept():
    """And grows by a bounded number of copies."""
    array, buffers = GrowingArray(np.float64, (2,)), set()
    blocks = [np.random.default_rng(n).normal(size=(n, 2)) for n in (0, 1, 3, 0, 40, 2, *[1] * 900)]
    for block in blocks:
        array.append(block)
        buffers.add(array.view.__array_interface__["data"][0])
    whole = np.concatenate(blocks)
    np.testing.assert_array_equal(array.view, whole)
    assert len(buffers) <= 12
    array.keep(np.array([1, 4]))
    array.append(whole[:1])
    np.testing.assert_array_equal(array.view, whole[[1, 4, 0]])
