"""Kernel blocks and sums against their definition: within the stated bound, whoever computes."""

import gc
import pickle
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st
from threadpoolctl import threadpool_info

from ooc_fw.data.rows import CSRRows
from ooc_fw.kernels import functions
from ooc_fw.kernels.arithmetic import _FEW_FEATURES as FEW_FEATURES
from ooc_fw.kernels.arithmetic import Arithmetic, choose_arithmetic
from ooc_fw.kernels.engine import Engine, Nearest
from ooc_fw.kernels.functions import KERNELS, make_kernel
from ooc_fw.kernels.products import TILE
from ooc_fw.system.errors import InputError
from tests.support.methods import grid
from tests.support.reference import kernel_values, make_problem, to_csr
from tests.support.strategies import SEEDS, kernels, powers_of_ten, raw_tables, tables


def block_of(engine, X, Z):
    out = np.full((len(X), len(Z)), np.nan, dtype=np.float32)
    engine.block(engine.prepare(X), engine.prepare(Z), out)
    return out


@st.composite
def engines_and_rows(draw, raw):
    """An engine, and two blocks of rows as dense tables and as the engine gets them.

    Raw rows are of any size, the gamma has nothing to do with them, and the engine suits them;
    else the gamma suits the rows, and the engine is of any kind.
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
        engine.close()
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
    invariant = engine.kernel.shift_invariant
    centred = np.abs(X).max(initial=0) <= 100 * np.abs(X - X.mean(axis=0)).max(initial=1e-30)
    with engine:
        block = block_of(engine, form(X), form(Z))
        for exact, share in ((False, 0.01), (True, 1e-10)):
            x, z = engine.prepare(form(X), exact), engine.prepare(form(Z), exact)
            bound = engine.error_bound(x, z)
            error = engine.weighted_sum(x, z, signed) - expected @ signed.astype(np.longdouble)
            assert (np.abs(error) <= bound).all()
            nearest = Nearest(len(x))
            mean = engine.weighted_sum(x, z, weights, nearest)
            error = np.abs(mean - expected @ weights.astype(np.longdouble))
            assert (error <= bound).all()
            if invariant or not raw:
                tight = engine.error_bound(x, z, mean)
                assert (error <= tight).all()
                assert (tight <= bound).all()
            if not exact:
                single = engine.value_bound(x, z)
                assert (np.abs(block - expected) <= single[:, None]).all()
                if invariant:
                    assert (np.abs(nearest.value - expected.max(axis=1)) <= single).all()
            if raw and invariant and (form is not to_csr or X.shape[1] <= FEW_FEATURES):
                # Those of wide sparse rows, from products, are as large as the rows are.
                assert (bound if exact else single).max() <= (1e-8 if exact else 2e-3)
            elif not raw and centred:  # other column means take digits
                largest = max(1.0, engine.kernel.diagonal(x.norms).max(initial=0))
                largest *= max(1.0, engine.kernel.diagonal(z.norms).max(initial=0))
                assert np.median(bound) <= share * largest


@pytest.mark.parametrize("form", [np.asarray, to_csr])
def test_sums_of_minima_that_lose_what_their_bound_says(form):
    """Half a unit is lost with each addition to 1, as often as a row has features."""
    unit, n_features = 2.0**-24, 200
    X = np.full((1, n_features), unit, dtype=np.float32)
    X[0, 0] = 1
    with Engine(make_kernel("laplacian", gamma=1.0)) as engine:
        x = engine.prepare(form(X))
        (error,) = 1 - engine.weighted_sum(x, x, np.ones(1))
        assert 2 * (n_features - 2) * unit < error <= engine.error_bound(x, x)[0] < 5 * error


@pytest.mark.parametrize(
    ("name", "sparse"), grid([(name, k % 2 > 0) for k, name in enumerate(KERNELS)])
)
def test_blocks_larger_than_a_tile(name, sparse):
    """And sums, of rows with themselves too, which take half the kernel values."""
    problem = make_problem(make_kernel(name, gamma=1.0), n_rows=2 * TILE + 77, density=0.5)
    rows, m = problem.rows(sparse), TILE + 9
    with Engine(problem.kernel, threads=2) as engine:
        x, z = engine.prepare(rows), engine.prepare(rows[:m])
        block = block_of(engine, rows, rows[:m])
        nearest = Nearest(len(x))
        sums = engine.weighted_sum(x, z[:TILE], np.full(TILE, 1 / m), nearest)
        sums += engine.weighted_sum(x, z[TILE:], np.full(9, 1 / m), nearest)
        bound = engine.error_bound(x, z)
        z, before = engine.prepare(rows[:m], exact=True), engine.evaluations
        own = engine.symmetric_sum(z, np.full(m, 1 / m))
        assert engine.evaluations - before <= m * (m + TILE) / 2
        own_bound = engine.error_bound(z, z)
    expected = kernel_values(problem.kernel, problem.X, problem.X[:m])
    assert (np.abs(block - expected) <= bound[:, None]).all()
    assert (np.abs(sums - expected.mean(axis=1)) <= bound).all()
    assert (np.abs(own - expected[:m].mean(axis=1)) <= own_bound).all()
    if problem.kernel.constant_diagonal:
        assert (np.abs(nearest.value - expected.max(axis=1)) <= bound).all()
        assert (np.abs(nearest.value - expected[np.arange(len(x)), nearest.place]) <= bound).all()


@pytest.mark.parametrize("name", KERNELS)
def test_sparse_rows_of_a_million_features(name):
    """Their scratch has the columns that are used, not one for each feature."""
    rng, n_features = np.random.default_rng(0), 1_000_000
    columns = np.sort(rng.choice(n_features, (40, 5)), axis=1).astype(np.int32)
    columns += np.arange(5, dtype=np.int32)  # no column occurs twice in a row
    values = rng.normal(size=columns.shape).astype(np.float32)
    indptr = np.arange(0, 201, 5)
    rows = CSRRows(values.ravel(), columns.ravel(), indptr, n_features + 5)
    with Engine(make_kernel(name, gamma=0.05)) as engine:
        block = block_of(engine, rows, rows)
        x, exact = engine.prepare(rows), engine.prepare(rows, exact=True)
        bound = engine.error_bound(x, x)
        for traced in (False, True):  # the first time may compile
            if traced:
                tracemalloc.start()
            sums = [engine.weighted_sum(one, one, np.ones(40)) for one in (x, exact)]
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    used, places = np.unique(columns, return_inverse=True)
    X = np.zeros((40, len(used)), dtype=np.float32)
    X[np.arange(40)[:, None], places.reshape(columns.shape)] = values
    expected = kernel_values(engine.kernel, X, X)
    assert (np.abs(block - expected) <= bound[:, None]).all()
    assert (np.abs(sums - expected.sum(axis=1)) <= 40 * bound).all()
    assert peak < 16 * n_features


@pytest.mark.parametrize(("name", "sparse"), [("rbf", False), ("linear", True)])
def test_no_rows_give_no_sums_and_no_vertices_sums_of_zero(name, sparse):
    rows = make_problem(make_kernel(name, gamma=1.0), n_rows=4).rows(sparse)
    with Engine(make_kernel(name, gamma=1.0), threads=2) as engine:
        for exact in (False, True):
            x, none = engine.prepare(rows, exact), engine.prepare(rows[:0], exact)
            assert engine.weighted_sum(none, x, np.ones(4)).shape == (0,)
            assert engine.weighted_sum(x, none, np.ones(0)).tolist() == [0.0] * 4
            assert engine.error_bound(x, none).shape == (4,)


@pytest.mark.parametrize("name", KERNELS)
def test_what_rows_take_other_products_than_dense_ones_in_float32(name):
    problem = make_problem(make_kernel(name, gamma=1.0), n_rows=100, n_features=22)
    chosen = choose_arithmetic(problem.kernel, problem.X)
    assert chosen == (None, False, functions.FLOAT32_PRODUCTS, functions.FLOAT64_PRODUCTS)
    large = choose_arithmetic(problem.kernel, problem.X * np.float32(1e4))
    assert (large.fast == functions.FLOAT32_PRODUCTS) == (name == "tanimoto")
    few = problem.X * (np.arange(22) < 5)
    assert choose_arithmetic(problem.kernel, few).sparse
    assert choose_arithmetic(problem.kernel, to_csr(problem.X)).sparse


@pytest.mark.parametrize(
    ("name", "value", "parameters", "form", "words"),
    [
        ("rbf", 1e19, {"gamma": 1.0}, to_csr, "the rbf kernel .* scale"),
        ("linear", 1e19, {}, np.asarray, "the linear kernel .* scale"),
        (
            "poly",
            100,
            {"gamma": 1.0, "degree": 20},
            np.asarray,
            "the poly kernel .* scale",
        ),
        ("laplacian", 1e38, {"gamma": 1.0}, np.asarray, "the laplacian kernel .* scale"),
        # As "auto" finds it for tiny rows.
        ("laplacian", 1e-37, {"gamma": 1e73}, to_csr, r"gamma 1e\+73 is too large for the lapl"),
    ],
)
def test_what_float32_cannot_hold_is_refused(name, value, parameters, form, words):
    X = form(np.full((2, 3), value, dtype=np.float32))
    with Engine(make_kernel(name, **parameters)) as engine:
        with pytest.raises(InputError, match=words):
            engine.prepare(X)


def blas_threads() -> list[int]:
    """Threads of numpy's BLAS; scipy may load one of its own at any time."""
    pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    return [pool["num_threads"] for pool in pools if "scipy.libs" not in pool["filepath"]]


def test_engines_hold_blas_to_one_thread_until_the_last_is_closed():
    before, kernel = blas_threads(), make_kernel("rbf", gamma=1.0)
    first, second = Engine(kernel), Engine(kernel, threads=2)
    first.close()
    first.close()  # the second call changes nothing
    assert set(blas_threads()) <= {1}
    second.close()
    assert blas_threads() == before
    with pytest.raises(ZeroDivisionError), Engine(kernel):
        raise ZeroDivisionError
    forgotten = Engine(kernel)
    assert set(blas_threads()) <= {1}
    del forgotten
    gc.collect()
    assert blas_threads() == before
    X = np.random.default_rng(0).normal(size=(700, 40)).astype(np.float32)

    def sums(n_rows):
        with Engine(kernel) as engine:
            x, z = engine.prepare(X[:n_rows]), engine.prepare(X)
            found = engine.weighted_sum(x, z, X[:, 0])
            return found, 2 * np.abs(X[:, 0]).sum() * engine.error_bound(x, z), blas_threads()

    alone, _, _ = sums(len(X))
    with ThreadPoolExecutor(4) as pool:  # engines open and close at all times
        for found, bound, threads in pool.map(sums, [700, 300, 500, 30] * 4):
            assert (np.abs(found - alone[: len(found)]) <= bound).all()
            assert set(threads) <= {1}
    assert blas_threads() == before


METHODS = [
    functions.FLOAT32_PRODUCTS,
    functions.FLOAT32_DIFFERENCES,
    functions.FLOAT64_PRODUCTS,
    functions.FLOAT64_DIFFERENCES,
]
INVARIANT = sorted(name for name in KERNELS if KERNELS[name].shift_invariant)


@st.composite
def methods_and_blocks(draw):
    """An engine of any method that its kernel allows, and rows up to past a tile."""
    kernel = make_kernel(draw(st.sampled_from(sorted(KERNELS))), gamma=1.0)
    method = draw(st.sampled_from(METHODS if kernel.shift_invariant else METHODS[::2]))
    sparse = draw(st.booleans())
    problem = make_problem(
        kernel,
        n_rows=draw(st.integers(2, 1200)),
        n_features=draw(st.sampled_from([1, 2, 3, 5, 22, 33, 100, 513])),
        density=0.3 if sparse else 1.0,
        seed=draw(SEEDS),
    )
    center = problem.X.mean(axis=0) if draw(st.booleans()) else None
    arithmetic = Arithmetic(center, fast=method, exact=method)
    engine = Engine(problem.kernel, draw(st.sampled_from([1, 2, 3])), arithmetic)
    return engine, problem.rows(sparse), draw(st.integers(1, len(problem.X) - 1))


@given(methods_and_blocks(), SEEDS)
def test_a_value_and_a_sum_agree_within_the_bound_whatever_computes_them(case, seed):
    """Either side, strips of any height and width, single pairs, rows prepared alone, threads."""
    engine, rows, cut = case
    rng = np.random.default_rng(seed)
    weights = rng.normal(size=len(rows) - cut)
    with engine, pickle.loads(pickle.dumps(engine)) as alone:
        whole = block_of(engine, rows[:cut], rows[cut:])
        n, m = whole.shape
        x, z = engine.prepare(rows[:cut]), engine.prepare(rows[cut:])
        bound = 2 * np.broadcast_to(engine.value_bound(x, z)[:, None], (n, m))

        def assert_close(found, rows, cols):
            assert (np.abs(found - whole[rows, cols]) <= bound[rows, cols]).all()

        assert_close(block_of(engine, rows[cut:], rows[:cut]).T, slice(None), slice(None))
        for _ in range(4):
            a, b = np.sort(rng.integers(0, n + 1, 2))
            c, d = np.sort(rng.integers(0, m + 1, 2))
            part = np.empty((b - a, d - c), dtype=np.float32)
            engine.block(x[a:b], z[c:d], part)
            assert_close(part, slice(a, b), slice(c, d))
            i, j = rng.integers(n), rng.integers(m)
            value = block_of(engine, rows[cut + j : cut + j + 1], rows[i : i + 1])
            assert_close(value, slice(i, i + 1), slice(j, j + 1))

        def sums(engine):
            z = engine.prepare(rows[cut:], exact=True)
            plain = engine.weighted_sum(x, z, weights)
            return (plain, engine.error_bound(x, z)), (
                engine.symmetric_sum(z, weights),
                engine.error_bound(z, z),
            )

        assert alone.threads == 1
        total = np.abs(weights).sum()
        for (found, error), (expected, _) in zip(sums(engine), sums(alone), strict=True):
            assert (np.abs(found - expected) <= 2 * total * error).all()
        (plain, _), _ = sums(engine)
        close = {"atol": 1e-4 * max(1, np.abs(whole).max()) * total}
        np.testing.assert_allclose(plain, whole.astype(float) @ weights, **close)


def test_rows_and_vertices_of_different_storage_are_refused():
    dense = np.ones((5, 3), dtype=np.float32)
    with Engine(make_kernel("rbf", gamma=1.0)) as engine:
        x, z = engine.prepare(dense), engine.prepare(to_csr(dense))
        for pair in ((z, x), (x, z)):
            with pytest.raises(TypeError, match="of one storage"):
                engine.weighted_sum(*pair, np.ones(5))
