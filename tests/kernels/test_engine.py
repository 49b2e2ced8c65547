"""Kernel blocks and sums against their definition: within the stated bound, whoever computes."""

import pickle
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st
from threadpoolctl import threadpool_info

from ooc_fw.data.rows import CSRRows
from ooc_fw.kernels import functions
from ooc_fw.kernels.arithmetic import Arithmetic, choose_arithmetic
from ooc_fw.kernels.engine import Engine, Nearest
from ooc_fw.kernels.functions import KERNELS, make_kernel
from ooc_fw.kernels.products import TILE
from ooc_fw.system.errors import InputError
from tests.support.methods import grid
from tests.support.reference import kernel_values, make_problem, to_csr
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
