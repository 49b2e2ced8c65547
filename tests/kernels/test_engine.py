"""Kernel blocks and sums against their definition, whoever computes, and how rows choose it."""

import pickle
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st
from threadpoolctl import threadpool_info

import ooc_fw
from ooc_fw.data.rows import CSRRows
from ooc_fw.kernels import functions
from ooc_fw.kernels.arithmetic import Arithmetic, choose_arithmetic
from ooc_fw.kernels.engine import Engine, Nearest
from ooc_fw.kernels.functions import KERNELS, make_kernel
from ooc_fw.kernels.products import TILE
from ooc_fw.model.machines import PairSolution
from ooc_fw.options import TrainOptions
from ooc_fw.solver.state import Status
from ooc_fw.system.errors import InputError
from tests.support.methods import grid
from tests.support.reference import SmallProblem, kernel_values, make_problem, to_csr
from tests.support.strategies import SEEDS, kernels, powers_of_ten, raw_tables, tables

PRODUCTS = [functions.FLOAT32_PRODUCTS, functions.FLOAT64_PRODUCTS]
DIFFERENCES = [functions.FLOAT32_DIFFERENCES, functions.FLOAT64_DIFFERENCES]


def block_of(engine, X, Z):
    out = np.full((len(X), len(Z)), np.nan, dtype=np.float32)
    engine.block(engine.prepare(X), engine.prepare(Z), out)
    return out


def assert_within(found, expected, bound):
    assert (np.abs(found - expected) <= bound).all()


@st.composite
def engines_and_rows(draw, raw):
    """An engine, and two blocks of rows as dense tables and as the engine gets them.

    Raw rows are of any size, the gamma has nothing to do with them, and the engine suits them.
    Otherwise the gamma suits the rows, and the engine is of any kind.
    """
    form = to_csr if draw(st.booleans()) else np.asarray
    if raw:
        X, gamma = draw(raw_tables()), draw(powers_of_ten(-8, 4))
        kernel = make_kernel(draw(st.sampled_from(sorted(KERNELS))), gamma=gamma, coef0=1.0)
        arithmetic = choose_arithmetic(kernel, form(X))
    else:
        X = draw(tables(max_rows=60))
        kernel = draw(kernels(X))
        center = X.mean(axis=0) if draw(st.booleans()) else None
        arithmetic = Arithmetic(center, draw(st.booleans()))
    engine = Engine(kernel, draw(st.sampled_from([1, 3])), arithmetic)
    try:
        engine.prepare(form(X))
    except InputError:  # rows that are refused are no case of the properties
        engine.pool.close()
        reject()
    cut = draw(st.integers(1, len(X) - 1))
    return engine, X[:cut], X[cut:], form


@pytest.mark.parametrize("raw", [False, True])
@given(st.data(), SEEDS)
def test_values_and_sums_are_within_useful_bounds_of_the_definition(raw, data, seed):
    """A bound that is right because it is huge would make every row one to compute again."""
    engine, X, Z, form = data.draw(engines_and_rows(raw))
    rng = np.random.default_rng(seed)
    weights = rng.dirichlet(np.ones(len(Z)))
    signed = weights * rng.choice([-1.0, 1.0], len(Z))
    expected = kernel_values(engine.kernel, X, Z)
    of_signed, of_weights = (expected @ w.astype(np.longdouble) for w in (signed, weights))
    invariant = engine.kernel.shift_invariant
    centred = np.abs(X).max(initial=0) <= 100 * np.abs(X - X.mean(axis=0)).max(initial=1e-30)
    with engine:
        for exact, share in ((False, 0.01), (True, 1e-10)):
            x, z = engine.prepare(form(X), exact), engine.prepare(form(Z), exact)
            bound, nearest = engine.error_bound(x, z), Nearest(len(x))
            assert_within(engine.weighted_sum(x, z, signed), of_signed, bound)
            mean = engine.weighted_sum(x, z, weights, nearest)
            assert_within(mean, of_weights, bound)
            if invariant or not raw:
                tight = engine.error_bound(x, z, mean)
                assert_within(mean, of_weights, tight)
                assert (tight <= bound).all()
            single = bound
            if not exact:
                single = engine.value_bound(x, z)
                assert_within(block_of(engine, form(X), form(Z)), expected, single[:, None])
                if invariant:
                    assert_within(nearest.value, expected.max(axis=1), single)
            if raw and invariant and (form is not to_csr or X.shape[1] <= 32):
                # Those of wide sparse rows, from products, are as large as the rows are.
                assert single.max() <= (1e-8 if exact else 2e-3)
            elif not raw and centred:  # other column means take digits
                largest = max(1.0, engine.kernel.diagonal(x.norms).max(initial=0))
                largest *= max(1.0, engine.kernel.diagonal(z.norms).max(initial=0))
                assert np.median(bound) <= share * largest


@pytest.mark.parametrize("form", [np.asarray, to_csr])
def test_sums_of_minima_lose_what_their_bound_says(form):
    """Half a unit is lost with each addition to 1, as often as a row has features."""
    unit, n_features = 2.0**-24, 200
    X = np.full((1, n_features), unit, dtype=np.float32)
    X[0, 0] = 1
    with Engine(make_kernel("laplacian", gamma=1.0)) as engine:
        x = engine.prepare(form(X))
        (error,) = 1 - engine.weighted_sum(x, x, np.ones(1))
        assert 2 * (n_features - 2) * unit < error <= engine.error_bound(x, x)[0] < 5 * error


def ways_to_compute():
    """Every kernel with all the methods that it allows; dense and sparse rows take turns."""
    for name, kernel in KERNELS.items():
        for k, method in enumerate(PRODUCTS + DIFFERENCES * kernel.shift_invariant):
            yield name, method, k % 2 == len(name) % 2


@pytest.mark.parametrize(("name", "method", "sparse"), grid([*ways_to_compute()], quick=5))
def test_all_parts_of_a_large_block_are_within_the_bound(name, method, sparse):
    """Tiles, either side, strips, single values, sums by threads or by another process."""
    rng, m = np.random.default_rng(0), TILE + 9
    n_features = 5 if sparse else 13
    kernel = make_kernel(name, gamma=1.0)
    problem = make_problem(kernel, n_rows=2 * TILE + 77, n_features=n_features, density=0.5)
    kernel, rows = problem.kernel, problem.rows(sparse)
    expected = kernel_values(kernel, problem.X, problem.X[:m])
    arithmetic = Arithmetic(fast=method, exact=method)
    with Engine(kernel, 2, arithmetic) as engine, pickle.loads(pickle.dumps(engine)) as alone:
        x, z = engine.prepare(rows), engine.prepare(rows[:m])
        bound, single, nearest = engine.error_bound(x, z), engine.value_bound(x, z), Nearest(len(x))
        assert_within(block_of(engine, rows, rows[:m]), expected, single[:, None])
        assert_within(block_of(engine, rows[:m], rows).T, expected, single[:, None])
        for _ in range(4):
            a, b = np.sort(rng.integers(0, len(x) + 1, 2))
            c, d = np.sort(rng.integers(0, m + 1, 2))
            part = np.empty((b - a, d - c), dtype=np.float32)
            engine.block(x[a:b], z[c:d], part)
            assert_within(part, expected[a:b, c:d], single[a:b, None])
        sums = engine.weighted_sum(x, z, np.full(m, 1 / m), nearest)
        assert_within(sums, expected.mean(axis=1), bound)
        if kernel.constant_diagonal:
            assert_within(nearest.value, expected.max(axis=1), single)
            assert_within(nearest.value, expected[np.arange(len(x)), nearest.place], single)
        for one in (engine, alone):
            before = one.evaluations
            own = one.symmetric_sum(z, np.full(m, 1 / m))
            assert one.evaluations - before <= m * (m + TILE) / 2
            assert_within(own, expected[:m].mean(axis=1), engine.error_bound(z, z))


@pytest.mark.parametrize("name", KERNELS)
def test_sparse_rows_of_a_million_features_take_memory_for_those_that_are_used(name):
    n_features = 1_000_000
    columns = np.arange(0, n_features, n_features // 200, dtype=np.int32)
    rows = CSRRows(np.ones(200, np.float32), columns, np.arange(0, 201, 5), n_features)
    with Engine(make_kernel(name, gamma=0.05)) as engine:
        for exact in (False, True):
            x = engine.prepare(rows, exact)
            engine.weighted_sum(x, x, np.ones(40))  # the first time may compile
            tracemalloc.start()
            engine.weighted_sum(x, x, np.ones(40))
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak < 16 * n_features


@pytest.mark.parametrize("center", [None, np.full(200_000, 0.5, np.float32)], ids=["", "centred"])
@pytest.mark.parametrize("name", KERNELS)
def test_wide_dense_rows_are_copied_a_few_at_a_time(name, center):
    rows = np.random.default_rng(0).random((40, 200_000), dtype=np.float32)
    weights = np.full(40, 1 / 40)
    with Engine(make_kernel(name, gamma=1e-6), arithmetic=Arithmetic(center)) as engine:
        x = engine.prepare(rows, exact=True)
        few = engine.prepare(rows[:4], exact=True)
        expected = engine.weighted_sum(few, x, weights)  # the first time may compile
        tracemalloc.start()
        found = engine.weighted_sum(x, x, weights)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert_within(found[:4], expected, 2 * engine.error_bound(few, x))
        assert peak < 24 << 20  # the rows are 61 MiB in float64


def blas_threads() -> list[int]:
    """Threads of numpy's BLAS; scipy may load one of its own at any time."""
    pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    return [pool["num_threads"] for pool in pools if "scipy.libs" not in pool["filepath"]]


def test_engines_hold_blas_to_one_thread_until_the_last_is_closed():
    before, kernel = blas_threads(), make_kernel("rbf", gamma=1.0)
    first, second = Engine(kernel), Engine(kernel, threads=2)
    first.pool.close()
    first.pool.close()  # the second call changes nothing
    assert set(blas_threads()) <= {1}
    second.pool.close()
    assert blas_threads() == before


CASES = {  # kernel, gamma, C
    "one column": ("rbf", 1.8, 1.0),
    "three and an id": ("rbf", 0.5, 10.0),
    "absolute distances": ("laplacian", 0.01, 10.0),
    "five columns": ("rbf", 0.5, 10.0),
    "linear": ("linear", 1.0, 10.0),
    "many": ("rbf", 3e-8, 10.0),
    "many and a large gamma": ("rbf", 100.0, 10.0),
}


def problem_of(case, n_rows=300):
    """Rows whose labels are the signs of a sum, and the kernel and penalty of the case."""
    rng = np.random.default_rng(0)
    X = 3000 * rng.normal(size=(n_rows, 60 if case.startswith("many") else 5))
    values = X[:, 1:].sum(axis=1)
    if case == "one column":
        X = rng.uniform(0, 20_000, (n_rows, 1))
        values = np.sin(X[:, 0] / 800)
    elif case == "three and an id":
        X = np.column_stack([1e6 + np.arange(n_rows), X[:, 1:4] / 3000])
        values = X[:, 1:].sum(axis=1)
    elif case == "absolute distances":
        X += 1e6
    name, gamma, C = CASES[case]
    y = np.where(values > 0, 1, -1).astype(np.int8)
    return SmallProblem(make_kernel(name, gamma=gamma), X.astype(np.float32), y, C)


@pytest.mark.parametrize("case", grid([*CASES], quick=3))
def test_gap_and_predictions_are_those_of_exact_arithmetic(case):
    problem = problem_of(case)
    options = TrainOptions(C=problem.C, max_time=60.0)
    # Sparse rows have products only, whose rounding such a gamma does not forgive.
    source = problem.source(sparse=len(case) % 2 == 0 and problem.kernel.gamma < 100)
    solution = ooc_fw.solve(source, problem.y, problem.kernel, options)
    assert solution.status is Status.CONVERGED
    truth = problem.truth(solution.rows, solution.alpha)
    assert truth.gap <= solution.certified_gap <= min(1e-3, truth.gap * 1.01 + 1e-6)
    given = {"kernel": problem.kernel, "C": problem.C, "classes": [-1.0, 1.0]}
    model = ooc_fw.Model.of([PairSolution(0, 1, solution)], None, n_rows=300, **given)
    exact = problem.y * (truth.gradient - truth.alpha / problem.C) / truth.rho
    assert np.abs(model.decision_function(problem.X) - exact).max() <= 1e-4
    np.testing.assert_array_equal(model.predict(problem.X), np.where(exact > 0, 1.0, -1.0))


@pytest.mark.parametrize("center", [0.0, 5.0])
def test_a_probe_of_wide_rows_is_not_copied_whole(center):
    probe = np.full((32, 400_000), center, dtype=np.float32)  # 51 MB
    tracemalloc.start()
    choose_arithmetic(make_kernel("rbf", gamma=1e-6), probe)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 40e6
