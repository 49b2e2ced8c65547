"""Kernel blocks and sums against their definition: within the stated bound, whoever computes."""

import gc
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st
from ooc_fw.kernels.tiles import TILE, Workspace
from threadpoolctl import threadpool_info

from ooc_fw.data.rows import CSRRows
from ooc_fw.kernels.arithmetic import (
    FLOAT32_DIFFERENCES,
    FLOAT32_PRODUCTS,
    FLOAT64_DIFFERENCES,
    FLOAT64_PRODUCTS,
    Arithmetic,
    choose_arithmetic,
    choose_center,
    prefers_sparse,
)
from ooc_fw.kernels.engine import Engine, ManyWeights, Nearest
from ooc_fw.kernels.functions import KERNELS, make_kernel
from ooc_fw.kernels.products import DenseProduct
from ooc_fw.system.errors import InputError
from ooc_fw.testing.reference import kernel_values, make_problem, to_csr
from ooc_fw.testing.strategies import SEEDS, kernels, powers_of_ten, raw_tables, tables

SPARSE = pytest.mark.parametrize("sparse", [False, True])
NAMES = pytest.mark.parametrize("name", KERNELS)


def block_of(engine, X, Z):
    out = np.full((len(X), len(Z)), np.nan, dtype=np.float32)
    engine.block(engine.prepare(X), engine.prepare(Z), out)
    return out


@st.composite
def engines_and_rows(draw):
    """An engine of any kind, and two blocks of rows as dense table and as the engine gets them."""
    X = draw(tables(max_rows=60))
    kernel = draw(kernels(X))
    center = X.mean(axis=0) if draw(st.booleans()) else None
    arithmetic = Arithmetic(center, draw(st.booleans()))
    engine = Engine(kernel, draw(st.sampled_from([1, 3])), arithmetic)
    cut = draw(st.integers(1, len(X) - 1))
    form = to_csr if draw(st.booleans()) else np.asarray
    return engine, X[:cut], X[cut:], form


@given(engines_and_rows(), SEEDS)
def test_values_and_sums_are_within_useful_bounds_of_the_definition(case, seed):
    """A bound that is right because it is huge would make every row one to compute again."""
    engine, X, Z, form = case
    rng = np.random.default_rng(seed)
    weights = rng.dirichlet(np.ones(len(Z)))
    signed = weights * rng.choice([-1.0, 1.0], len(Z))
    expected = kernel_values(engine.kernel, X, Z)
    centred = np.abs(X).max(initial=0) <= 100 * np.abs(X - X.mean(axis=0)).max(initial=1e-30)
    with engine:
        block = block_of(engine, form(X), form(Z))
        for exact, share in ((False, 0.01), (True, 1e-10)):
            x, z = engine.prepare(form(X), exact), engine.prepare(form(Z), exact)
            bound = engine.error_bound(x, z)
            error = engine.weighted_sum(x, z, signed) - expected @ signed.astype(np.longdouble)
            assert (np.abs(error) <= bound).all()
            mean = engine.weighted_sum(x, z, weights)
            tight = engine.error_bound(x, z, mean)
            error = np.abs(mean - expected @ weights.astype(np.longdouble))
            assert (error <= tight).all()
            assert (tight <= bound).all()
            if not exact:
                assert (np.abs(block - expected) <= bound[:, None]).all()
            if centred:  # other column means take digits
                largest = max(1.0, engine.kernel.diagonal(x.norms).max(initial=0))
                largest *= max(1.0, engine.kernel.diagonal(z.norms).max(initial=0))
                assert np.median(bound) <= share * largest


@SPARSE
@NAMES
def test_blocks_larger_than_a_tile(name, sparse):
    problem = make_problem(make_kernel(name, gamma=1.0), n_rows=2 * TILE + 77, density=0.5)
    rows = problem.rows(sparse)
    with Engine(problem.kernel, threads=2) as engine:
        x, z = engine.prepare(rows), engine.prepare(rows[: TILE + 9])
        block = block_of(engine, rows, rows[: TILE + 9])
        nearest = Nearest(len(x))
        sums = engine.weighted_sum(x, z, np.full(len(z), 1 / len(z)), nearest)
        bound = engine.error_bound(x, z)
    expected = kernel_values(problem.kernel, problem.X, problem.X[: len(z)])
    assert (np.abs(block - expected) <= bound[:, None]).all()
    assert (np.abs(sums - expected.mean(axis=1)) <= bound).all()
    if problem.kernel.constant_diagonal:
        assert (np.abs(nearest.value - expected.max(axis=1)) <= bound).all()
        assert (np.abs(nearest.value - expected[np.arange(len(x)), nearest.place]) <= bound).all()


@NAMES
def test_sparse_rows_wider_than_the_scratch(name):
    rng = np.random.default_rng(3)
    X = np.zeros((40, 50_000), dtype=np.float32)
    X[np.arange(40)[:, None], rng.integers(0, 50_000, (40, 12))] = rng.normal(size=(40, 12))
    kernel = make_kernel(name, gamma=0.05)
    with Engine(kernel) as engine:
        out = block_of(engine, to_csr(X), to_csr(X))
        bound = engine.error_bound(engine.prepare(to_csr(X)), engine.prepare(to_csr(X)))
    used = X[:, np.abs(X).max(axis=0) > 0]
    assert (np.abs(out - kernel_values(kernel, used, used)) <= bound[:, None]).all()


@pytest.mark.parametrize("threads", [1, 2, 5])
@SPARSE
@pytest.mark.parametrize("n_rows", [1, 100, TILE + 9, 2 * TILE + 77])
def test_symmetric_sums_are_the_sums_of_vertices_with_themselves(n_rows, sparse, threads):
    problem = make_problem(make_kernel("rbf", gamma=1.0), n_rows=n_rows, density=0.5)
    weights = np.random.default_rng(0).normal(size=n_rows)
    weights /= np.abs(weights).sum()
    with Engine(problem.kernel, threads) as engine:
        z = engine.prepare(problem.rows(sparse), exact=True)
        expected = engine.weighted_sum(z, z, weights)
        before = engine.evaluations
        sums = engine.symmetric_sum(z, weights)
        assert before == n_rows * n_rows
        assert engine.evaluations - before <= n_rows * (n_rows + TILE) / 2
        assert (np.abs(sums - expected) <= 2 * engine.error_bound(z, z)).all()


@SPARSE
@NAMES
def test_no_rows_give_no_sums_and_no_vertices_sums_of_zero(name, sparse):
    rows = make_problem(make_kernel(name, gamma=1.0), n_rows=4).rows(sparse)
    with Engine(make_kernel(name, gamma=1.0), threads=2) as engine:
        for exact in (False, True):
            x, none = engine.prepare(rows, exact), engine.prepare(rows[:0], exact)
            assert engine.weighted_sum(none, x, np.ones(4)).shape == (0,)
            assert engine.weighted_sum(x, none, np.ones(0)).tolist() == [0.0] * 4
            assert engine.error_bound(x, none).shape == (4,)


# -- centring and the choice of arithmetic -------------------------------------------------------


def test_large_column_means_cost_digits_unless_rows_are_centred():
    X = (np.random.default_rng(0).normal(size=(50, 4)) + 300).astype(np.float32)
    kernel = make_kernel("rbf", gamma=0.2)
    errors = []
    for center in (None, X.mean(axis=0)):
        with Engine(kernel, arithmetic=Arithmetic(center)) as engine:
            errors.append(np.abs(block_of(engine, X, X) - kernel_values(kernel, X, X)).max())
    assert errors[1] < 1e-6 < errors[0]


def test_centred_float64_products_keep_the_digits_of_a_large_offset():
    X = (np.random.default_rng(0).normal(size=(30, 50)) + 3e4).astype(np.float32)
    kernel = make_kernel("rbf", gamma=0.01)
    arithmetic = Arithmetic(choose_center(X), fast=FLOAT64_PRODUCTS)
    with Engine(kernel, arithmetic=arithmetic) as engine:
        error = np.abs(block_of(engine, X, X) - kernel_values(kernel, X, X))
    assert error.max() < 1e-6


def test_a_centre_is_ignored_where_it_would_change_the_kernel():
    problem = make_problem(make_kernel("poly", gamma=1.0, coef0=1))
    with Engine(problem.kernel, arithmetic=Arithmetic(np.full(5, 10.0))) as engine:
        out = block_of(engine, problem.X, problem.X)
    expected = kernel_values(problem.kernel, problem.X, problem.X).astype(float)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)


def test_dense_rows_of_few_nonzeros_prefer_the_sparse_product():
    X = np.zeros((10, 8), dtype=np.float32)
    X[:, 0] = 1
    assert prefers_sparse(X)
    assert prefers_sparse(to_csr(np.ones_like(X)))
    assert not prefers_sparse(np.ones_like(X))


@NAMES
def test_only_large_rows_take_other_arithmetic_than_float32_products(name):
    problem = make_problem(make_kernel(name, gamma=1.0), n_rows=100, n_features=22)
    chosen = choose_arithmetic(problem.kernel, problem.X)
    assert (chosen.fast, chosen.exact) == (FLOAT32_PRODUCTS, FLOAT64_PRODUCTS)
    large = choose_arithmetic(problem.kernel, problem.X * np.float32(1e4))
    assert large.fast != FLOAT32_PRODUCTS


@SPARSE
@NAMES
def test_rows_whose_products_float32_cannot_hold_are_refused(name, sparse):
    X = np.full((2, 3), 1e19 if name != "laplacian" else 1e38, dtype=np.float32)
    with Engine(make_kernel(name, gamma=1.0)) as engine:
        with pytest.raises(InputError, match=f"too large for the {name} kernel .* scale"):
            engine.prepare(to_csr(X) if sparse else X)


def test_values_whose_power_float32_cannot_hold_are_refused():
    with Engine(make_kernel("poly", gamma=1.0, degree=20)) as engine:
        with pytest.raises(InputError, match="too large for the poly kernel"):
            engine.prepare(np.full((1, 1), 100, dtype=np.float32))


# -- BLAS and memory -----------------------------------------------------------------------------


def blas_threads() -> list[int]:
    """Threads of numpy's BLAS; scipy may load one of its own at any time."""
    pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    return [pool["num_threads"] for pool in pools if "scipy.libs" not in pool["filepath"]]


def test_overlapping_engines_hold_blas_to_one_thread_until_the_last_is_closed():
    before = blas_threads()
    kernel = make_kernel("rbf", gamma=1.0)
    first, second = Engine(kernel), Engine(kernel, threads=2)
    first.close()
    first.close()  # the second call changes nothing
    assert set(blas_threads()) <= {1}
    second.close()
    assert blas_threads() == before
    with pytest.raises(ZeroDivisionError), Engine(kernel):
        raise ZeroDivisionError
    assert blas_threads() == before
    forgotten = Engine(kernel)
    assert set(blas_threads()) <= {1}
    del forgotten
    gc.collect()
    assert blas_threads() == before


def test_engines_on_several_threads_compute_the_same_bits_with_one_blas_thread():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1500, 40)).astype(np.float32)
    weights, seen = rng.normal(size=len(X)), set()
    before = blas_threads()

    def sums(n_rows):
        with Engine(make_kernel("rbf", gamma=0.01)) as engine:
            x = engine.prepare(X)
            found = engine.weighted_sum(x[:n_rows], x, weights)
            seen.update(blas_threads())
        return found

    alone = sums(len(X))
    with ThreadPoolExecutor(4) as pool:  # engines open and close at all times
        for found in pool.map(sums, [1500, 300, 900, 30] * 4):
            np.testing.assert_array_equal(found, alone[: len(found)])
    assert seen <= {1}
    assert blas_threads() == before


def test_the_scratch_of_sparse_rows_does_not_grow_with_the_features():
    n_features = 1_000_000
    rng = np.random.default_rng(0)
    columns = np.sort(rng.choice(n_features, (200, 30)), axis=1).astype(np.int32)
    columns += np.arange(30, dtype=np.int32)  # no column occurs twice in a row
    values = rng.normal(size=columns.shape).astype(np.float32)
    indptr = np.arange(0, 200 * 30 + 1, 30)
    rows = CSRRows(values.ravel(), columns.ravel(), indptr, n_features + 30)
    with Engine(make_kernel("rbf", gamma=0.01)) as engine:
        operands = [engine.prepare(rows, exact) for exact in (False, True)]
        tracemalloc.start()
        for x in operands:
            engine.weighted_sum(x, x, np.ones(200))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 16 * n_features


@pytest.mark.parametrize("n_features", range(1, 41))
def test_a_padded_tile_of_any_shape_has_room(n_features):
    """Shapes alone: no products are computed."""
    workspace, product = Workspace(False, None), DenseProduct(np.float64, n_features)
    for m in range(1, TILE + 1):
        height = TILE * TILE // max(32, m)
        for n in {*range(1, height, 97), height - 15, height - 1, height} | {625, 3000}:
            shape = product.tile_shape(min(n, height), m)
            assert workspace.tile(shape, np.float64).shape == shape


# -- rows of any size, and all methods -----------------------------------------------------------

METHODS = [FLOAT32_PRODUCTS, FLOAT32_DIFFERENCES, FLOAT64_PRODUCTS, FLOAT64_DIFFERENCES]
DIFFERENCES = pytest.mark.parametrize("method", [FLOAT32_DIFFERENCES, FLOAT64_DIFFERENCES])
INVARIANT = sorted(name for name in KERNELS if KERNELS[name].shift_invariant)


@st.composite
def raw_engines(draw, threads=1):
    """Rows of any size, and an engine that suits them; gamma has nothing to do with either."""
    X = draw(raw_tables())
    name = draw(st.sampled_from(sorted(KERNELS)))
    kernel = make_kernel(name, gamma=draw(powers_of_ten(-8, 4)), degree=2, coef0=1.0)
    form = to_csr if draw(st.booleans()) else np.asarray
    engine = Engine(kernel, threads, choose_arithmetic(kernel, form(X)))
    try:
        engine.prepare(form(X))
    except InputError:  # rows that are refused are no case of the properties
        engine.close()
        reject()
    return engine, X, form


@given(raw_engines(), SEEDS)
def test_values_of_rows_of_any_size_lose_no_digits(case, seed):
    engine, X, form = case
    cut = len(X) // 2
    expected = kernel_values(engine.kernel, X[:cut], X[cut:])
    weights = np.random.default_rng(seed).dirichlet(np.ones(len(X) - cut))
    true_sums = expected @ weights.astype(np.longdouble)
    invariant = engine.kernel.shift_invariant
    with engine:
        out = block_of(engine, form(X[:cut]), form(X[cut:]))
        for exact in (False, True):
            x, z = engine.prepare(form(X[:cut]), exact), engine.prepare(form(X[cut:]), exact)
            nearest = Nearest(len(x))
            sums = engine.weighted_sum(x, z, weights, nearest)
            error, bound = np.abs(sums - true_sums), engine.error_bound(x, z)
            assert (error <= bound).all()
            if invariant:
                assert (error <= engine.error_bound(x, z, sums)).all()
                assert not exact or bound.max() <= 1e-8
            if not exact:
                single = engine.value_bound(x, z)
                assert (np.abs(out - expected) <= single[:, None]).all()
                if invariant:
                    assert single.max() <= 2e-3
                    assert (np.abs(nearest.value - expected.max(axis=1)) <= single).all()


@DIFFERENCES
@given(gamma=powers_of_ten(-8, 4), X=raw_tables(max_features=6), name=st.sampled_from(INVARIANT))
def test_differences_err_by_units_whatever_the_size_of_rows(method, gamma, X, name):
    with Engine(make_kernel(name, gamma=gamma), arithmetic=Arithmetic(fast=method)) as engine:
        x = engine.prepare(X)
        bound = engine.value_bound(x, x)
        assert bound.max() <= 40 * 2**-24
        assert (np.abs(block_of(engine, X, X) - kernel_values(engine.kernel, X, X)) <= bound).all()


@DIFFERENCES
@given(X=raw_tables(max_rows=30, max_features=32), name=st.sampled_from(INVARIANT))
def test_differences_of_few_features_have_the_same_bits_from_dense_and_sparse_rows(method, X, name):
    with Engine(make_kernel(name, gamma=1e-3), arithmetic=Arithmetic(fast=method)) as engine:
        dense, sparse = block_of(engine, X, X), block_of(engine, to_csr(X), to_csr(X))
        np.testing.assert_array_equal(dense, sparse)


@st.composite
def methods_and_blocks(draw):
    """An engine of any method that its kernel allows, and rows up to past a tile."""
    kernel = make_kernel(draw(st.sampled_from(sorted(KERNELS))), gamma=1.0)
    method = draw(st.sampled_from(METHODS if kernel.shift_invariant else METHODS[::2]))
    sparse = draw(st.booleans())
    problem = make_problem(
        kernel,
        n_rows=draw(st.integers(2, 40 if method.differences and sparse else 1200)),
        n_features=draw(st.sampled_from([1, 2, 3, 5, 22, 33, 100, 513])),
        density=0.3 if sparse else 1.0,
        seed=draw(SEEDS),
    )
    center = problem.X.mean(axis=0) if draw(st.booleans()) else None
    arithmetic = Arithmetic(center, fast=method, exact=method)
    engine = Engine(problem.kernel, draw(st.sampled_from([1, 2, 3])), arithmetic)
    return engine, problem.rows(sparse), draw(st.integers(1, len(problem.X) - 1))


@given(methods_and_blocks(), SEEDS)
def test_a_value_has_the_same_bits_whatever_computes_it(case, seed):
    """Either side, strips of any height and width, single pairs, rows prepared alone."""
    engine, rows, cut = case
    rng = np.random.default_rng(seed)
    with engine:
        whole = block_of(engine, rows[:cut], rows[cut:])
        np.testing.assert_array_equal(block_of(engine, rows[cut:], rows[:cut]).T, whole)
        n, m = whole.shape
        x, z = engine.prepare(rows[:cut]), engine.prepare(rows[cut:])
        for _ in range(4):
            a, b = np.sort(rng.integers(0, n + 1, 2))
            c, d = np.sort(rng.integers(0, m + 1, 2))
            part = np.empty((b - a, d - c), dtype=np.float32)
            engine.block(x[a:b], z[c:d], part)
            np.testing.assert_array_equal(part, whole[a:b, c:d])
            i, j = rng.integers(n), rng.integers(m)
            value = block_of(engine, rows[cut + j : cut + j + 1], rows[i : i + 1])
            assert value[0, 0] == whole[i, j]


@pytest.mark.parametrize("n_vertices", [3, 40, 600])
@pytest.mark.parametrize("n_rows", [1, 70, 194, 700, 1500])
def test_any_number_of_threads_gives_the_same_bits(n_rows, n_vertices):
    """Whatever the shapes that BLAS treats differently: few rows, few columns, few products."""
    rng = np.random.default_rng(0)
    for n_features in (1, 7, 127):
        X = rng.normal(size=(n_rows, n_features)).astype(np.float32)
        Z = rng.normal(size=(n_vertices, n_features)).astype(np.float32)
        weights = rng.random(n_vertices)
        results = []
        for threads in (1, 2, 5):
            with Engine(make_kernel("rbf", gamma=0.1 / n_features), threads) as engine:
                found = [block_of(engine, X, Z)]
                for exact in (False, True):
                    x, z = engine.prepare(X, exact), engine.prepare(Z, exact)
                    found.append(engine.weighted_sum(x, z, weights))
                results.append([part.tobytes() for part in found])
        assert results[0] == results[1] == results[2]


@SPARSE
@pytest.mark.parametrize(
    ("name", "method"),
    [
        (name, own)
        for name in KERNELS
        for own in METHODS
        if name in INVARIANT or not own.differences
    ],
)
def test_threads_and_recipes_change_no_bit_of_any_sum(name, method, sparse):
    kernel = make_kernel(name, gamma=1.0)
    problem = make_problem(kernel, n_rows=300, n_features=40, density=0.5)
    rows = problem.rows(sparse)
    weights = np.random.default_rng(0).normal(size=100)
    many = ManyWeights.of(100, [np.arange(60), np.arange(30, 100)], [weights[:60], weights[30:]])
    arithmetic = Arithmetic(problem.X.mean(axis=0), fast=method, exact=method)
    results = []
    with Engine(kernel, 1, arithmetic) as first, Engine(kernel, 2, arithmetic) as second:
        with second.recipe()() as third:
            assert third.threads == 1
            for engine in (first, second, third):
                x, z = engine.prepare(rows), engine.prepare(rows[:100], exact=True)
                sums = [
                    engine.weighted_sum(x, z, weights),
                    engine.symmetric_sum(z, weights),
                    *engine.weighted_sums(x, z, many).T,
                ]
                results.append([own.tobytes() for own in sums])
    assert results[0] == results[1] == results[2]
    expected = kernel_values(kernel, problem.X, problem.X[:100]).astype(float)
    size = np.abs(expected).max()
    np.testing.assert_allclose(sums[0], expected @ weights, atol=1e-4 * size)
    np.testing.assert_allclose(sums[1], (expected @ weights)[:100], atol=1e-4 * size)
    np.testing.assert_allclose(sums[2], expected[:, :60] @ weights[:60], atol=1e-4 * size)
    np.testing.assert_allclose(sums[3], expected[:, 30:] @ weights[30:], atol=1e-4 * size)
