"""Kernel blocks and sums against their definition: within the stated bound, whoever computes."""

import gc
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from threadpoolctl import threadpool_info, threadpool_limits

from ooc_fw.data.rows import CSRRows
from ooc_fw.kernels.engine import (
    FLOAT32_DIFFERENCES,
    FLOAT32_PRODUCTS,
    FLOAT64_DIFFERENCES,
    FLOAT64_PRODUCTS,
    TILE,
    Arithmetic,
    Engine,
    ManyWeights,
    Nearest,
    choose_arithmetic,
    choose_center,
    prefers_sparse,
)
from ooc_fw.kernels.functions import KERNELS, make_kernel
from ooc_fw.kernels.products import DenseProduct
from ooc_fw.system.errors import InputError
from ooc_fw.testing.reference import kernel_values, make_problem, to_csr
from ooc_fw.testing.strategies import SEEDS, kernels, powers_of_ten, raw_tables, tables


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
    engine = Engine(
        kernel, draw(st.sampled_from([1, 3])), center=center, sparse=draw(st.booleans())
    )
    cut = draw(st.integers(1, len(X) - 1))
    form = to_csr if draw(st.booleans()) else np.asarray
    return engine, X[:cut], X[cut:], form


@given(engines_and_rows())
def test_block_is_within_its_bound_of_the_definition(case):
    engine, X, Z, form = case
    with engine:
        out = block_of(engine, form(X), form(Z))
        bound = engine.error_bound(engine.prepare(form(X)), engine.prepare(form(Z)))
    error = np.abs(out - kernel_values(engine.kernel, X, Z))
    assert (error <= bound[:, None]).all()


@given(engines_and_rows(), SEEDS)
def test_sums_are_within_their_bounds_of_the_definition(case, seed):
    engine, X, Z, form = case
    rng = np.random.default_rng(seed)
    weights = rng.dirichlet(np.ones(len(Z))) * rng.choice([-1.0, 1.0], len(Z))
    expected = kernel_values(engine.kernel, X, Z) @ weights.astype(np.longdouble)
    with engine:
        x, z = engine.prepare(form(X)), engine.prepare(form(Z))
        error = np.abs(engine.weighted_sum(x, z, weights) - expected)
        assert (error <= engine.error_bound(x, z)).all()
        x, z = engine.prepare64(form(X)), engine.prepare64(form(Z))
        error = np.abs(engine.weighted_sum64(x, z, weights) - expected)
        assert (error <= engine.error_bound64(x, z)).all()


@given(engines_and_rows())
def test_bounds_are_of_use(case):
    """A bound that is right because it is huge would make every row one to compute again."""
    engine, X, Z, form = case
    if np.abs(X).max(initial=0) > 100 * np.abs(X - X.mean(axis=0)).max(initial=1e-30):
        return  # digits are lost to the column means
    with engine:
        x, z = engine.prepare(form(X)), engine.prepare(form(Z))
        largest = max(1.0, engine.kernel.diagonal(x.norms).max(initial=0))
        largest *= max(1.0, engine.kernel.diagonal(z.norms).max(initial=0))
        assert np.median(engine.error_bound(x, z)) <= 0.01 * largest
        assert np.median(engine.error_bound64(x, z)) <= 1e-10 * largest


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("name", KERNELS)
def test_blocks_larger_than_a_tile(name, sparse):
    problem = make_problem(make_kernel(name, gamma=1.0), n_rows=2 * TILE + 77, density=0.5)
    rows = problem.rows(sparse)
    with Engine(problem.kernel, threads=2) as engine:
        x, z = engine.prepare(rows), engine.prepare(rows[: TILE + 9])
        out = np.empty((len(x), len(z)), dtype=np.float32)
        engine.block(x, z, out)
        other_side = np.empty((len(z), len(x)), dtype=np.float32)
        engine.block(z, x, other_side)
        weights = np.full(len(z), 1 / len(z))
        sums = engine.weighted_sum(x, z, weights)
        bound = engine.error_bound(x, z)
    expected = kernel_values(problem.kernel, problem.X, problem.X[: len(z)])
    assert (np.abs(out - expected) <= bound[:, None]).all()
    assert (np.abs(other_side.T - expected) <= bound[:, None]).all()
    assert (np.abs(sums - expected.mean(axis=1)) <= bound).all()


@pytest.mark.parametrize(
    "name", [name for name in KERNELS if make_kernel(name, gamma=1.0).constant_diagonal]
)
def test_nearest_vertices(name):
    problem = make_problem(make_kernel(name, gamma=1.0), n_rows=2 * TILE + 77)
    with Engine(problem.kernel, threads=2) as engine:
        x, z = engine.prepare(problem.X), engine.prepare(problem.X[: TILE + 9])
        nearest = Nearest(len(x))
        engine.weighted_sum(x, z, np.zeros(len(z)), nearest)
        bound = engine.error_bound(x, z)
    expected = kernel_values(problem.kernel, problem.X, problem.X[: len(z)])
    assert (np.abs(nearest.value - expected.max(axis=1)) <= bound).all()
    assert (np.abs(nearest.value - expected[np.arange(len(x)), nearest.place]) <= bound).all()


@pytest.mark.parametrize("name", KERNELS)
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


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("name", KERNELS)
def test_threads_and_strips_change_nothing_but_the_last_bits(name, sparse):
    problem = make_problem(make_kernel(name, gamma=1.0), n_rows=300, density=0.5)
    rows = problem.rows(sparse)
    weights = np.full(100, 0.01)
    results = []
    for threads in (1, 2, 5):
        with Engine(problem.kernel, threads) as engine:
            x, z = engine.prepare(rows), engine.prepare(rows[:100])
            results.append(engine.weighted_sum(x, z, weights))
            strips = [engine.weighted_sum(x[i : i + 7], z, weights) for i in range(0, 300, 7)]
            results.append(np.concatenate(strips))
    for result in results:
        np.testing.assert_allclose(result, results[0], rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("n_vertices", [3, 40, 600])
@pytest.mark.parametrize("n_rows", [1, 70, 194, 700, 1500])
def test_any_number_of_threads_gives_the_same_bits(n_rows, n_vertices):
    """Whatever the shapes BLAS treats apart: few rows, few columns, few products."""
    rng = np.random.default_rng(0)
    for n_features in (1, 7, 127):
        X = rng.normal(size=(n_rows, n_features)).astype(np.float32)
        Z = rng.normal(size=(n_vertices, n_features)).astype(np.float32)
        weights = rng.random(n_vertices)
        results = []
        for threads in (1, 2, 5):
            with Engine(make_kernel("rbf", gamma=0.1 / n_features), threads) as engine:
                x, z = engine.prepare(X), engine.prepare(Z)
                block = np.empty((n_rows, n_vertices), dtype=np.float32)
                engine.block(x, z, block)
                sums = engine.weighted_sum(x, z, weights)
                sums64 = engine.weighted_sum64(engine.prepare64(X), engine.prepare64(Z), weights)
                results.append([part.tobytes() for part in (block, sums, sums64)])
        assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("sparse", [False, True])
def test_the_recipe_makes_an_engine_of_the_same_bits(sparse):
    problem = make_problem(make_kernel("rbf", gamma=1.0), n_rows=300)
    center = problem.X.mean(axis=0)
    with Engine(problem.kernel, 2, center, sparse) as engine, engine.recipe()() as other:
        assert other.threads == 1
        values = [block_of(each, problem.X, problem.X).tobytes() for each in (engine, other)]
        assert values[0] == values[1]


def test_large_column_means_cost_digits_unless_rows_are_centred():
    X = (np.random.default_rng(0).normal(size=(50, 4)) + 300).astype(np.float32)
    expected = kernel_values(make_kernel("rbf", gamma=0.2), X, X)
    errors = {}
    for name, center in (("plain", None), ("centred", X.mean(axis=0))):
        with Engine(make_kernel("rbf", gamma=0.2), center=center) as engine:
            errors[name] = np.abs(block_of(engine, X, X) - expected).max()
    assert errors["centred"] < 1e-6 < errors["plain"]


def test_a_centre_is_ignored_where_it_would_change_the_kernel():
    problem = make_problem(make_kernel("poly", gamma=1.0, coef0=1))
    with Engine(problem.kernel, center=np.full(5, 10.0)) as engine:
        out = block_of(engine, problem.X, problem.X)
    expected = kernel_values(problem.kernel, problem.X, problem.X).astype(float)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)


def test_evaluations_are_counted_in_both_precisions():
    problem = make_problem(make_kernel("rbf", gamma=1.0), n_rows=30)
    with Engine(problem.kernel) as engine:
        x, z = engine.prepare(problem.X), engine.prepare(problem.X[:7])
        engine.weighted_sum(x, z, np.ones(7))
        assert engine.evaluations == 210
        engine.weighted_sum64(
            engine.prepare64(problem.X), engine.prepare64(problem.X[:7]), np.ones(7)
        )
        assert engine.evaluations == 420


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("name", KERNELS)
def test_no_rows_give_no_sums_and_no_vertices_sums_of_zero(name, sparse):
    rows = make_problem(make_kernel(name, gamma=1.0), n_rows=4).rows(sparse)
    with Engine(make_kernel(name, gamma=1.0), threads=2) as engine:
        x, none = engine.prepare(rows), engine.prepare(rows[:0])
        assert engine.weighted_sum(none, x, np.ones(4)).shape == (0,)
        assert engine.weighted_sum(x, none, np.ones(0)).tolist() == [0.0] * 4
        assert engine.weighted_sum64(x, none, np.ones(0)).tolist() == [0.0] * 4
        assert engine.error_bound(x, none).shape == (4,)


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("n_rows", [1, 100, TILE + 9, 2 * TILE + 77])
def test_symmetric_sums_are_the_sums_of_vertices_with_themselves(n_rows, sparse, threads):
    problem = make_problem(make_kernel("rbf", gamma=1.0), n_rows=n_rows, density=0.5)
    weights = np.random.default_rng(0).normal(size=n_rows)
    weights /= np.abs(weights).sum()
    with Engine(problem.kernel, threads) as engine:
        z = engine.prepare64(problem.rows(sparse))
        expected = engine.weighted_sum64(z, z, weights)
        bound = engine.error_bound64(z, z)
        before = engine.evaluations
        sums = engine.symmetric_sum64(z, weights)
        assert engine.evaluations - before <= n_rows * (n_rows + TILE) / 2
    assert (np.abs(sums - expected) <= 2 * bound).all()


@given(engines_and_rows(), SEEDS)
def test_bound_on_a_mean_uses_how_small_it_is(case, seed):
    """Weights of one sign, as a certificate has them apart by class."""
    engine, X, Z, form = case
    weights = np.random.default_rng(seed).dirichlet(np.ones(len(Z)))
    expected = kernel_values(engine.kernel, X, Z) @ weights.astype(np.longdouble)
    with engine:
        x, z = engine.prepare(form(X)), engine.prepare(form(Z))
        mean = engine.weighted_sum(x, z, weights)
        bound = engine.error_bound(x, z, mean)
        assert (np.abs(mean - expected) <= bound).all()
        assert (bound <= engine.error_bound(x, z)).all()


def blas_threads() -> list[int]:
    """Threads of numpy's BLAS; scipy may load one of its own at any time."""
    pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    return [pool["num_threads"] for pool in pools if "scipy.libs" not in pool["filepath"]]


@pytest.fixture
def two_blas_threads():
    with threadpool_limits(2, user_api="blas"):
        assert set(blas_threads()) == {2}
        yield


@pytest.mark.usefixtures("two_blas_threads")
def test_blas_is_held_to_one_thread_and_released():
    before = blas_threads()
    with Engine(make_kernel("rbf", gamma=1.0)):
        assert set(blas_threads()) <= {1}
    assert blas_threads() == before


@pytest.mark.usefixtures("two_blas_threads")
def test_overlapping_engines_hold_blas_until_the_last_is_closed():
    before = blas_threads()
    first, second = (
        Engine(make_kernel("rbf", gamma=1.0)),
        Engine(make_kernel("rbf", gamma=1.0), threads=2),
    )
    first.close()
    first.close()  # again, which changes nothing
    assert set(blas_threads()) <= {1}
    second.close()
    assert blas_threads() == before
    with pytest.raises(ZeroDivisionError), Engine(make_kernel("rbf", gamma=1.0)):
        raise ZeroDivisionError
    assert blas_threads() == before
    forgotten = Engine(make_kernel("rbf", gamma=1.0))
    assert set(blas_threads()) <= {1}
    del forgotten
    gc.collect()
    assert blas_threads() == before


@pytest.mark.usefixtures("two_blas_threads")
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
    with ThreadPoolExecutor(4) as pool:  # engines that open and close at all times
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
        x, x64 = engine.prepare(rows), engine.prepare64(rows)
        tracemalloc.start()
        engine.weighted_sum(x, x, np.ones(200))
        engine.weighted_sum64(x64, x64, np.ones(200))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 16 * n_features


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("name", KERNELS)
def test_rows_whose_products_float32_cannot_hold_are_refused(name, sparse):
    X = np.full((2, 3), 1e19 if name != "laplacian" else 1e38, dtype=np.float32)
    with Engine(make_kernel(name, gamma=1.0)) as engine:
        with pytest.raises(InputError, match=f"too large for the {name} kernel .* scale"):
            engine.prepare(to_csr(X) if sparse else X)


def test_values_whose_power_float32_cannot_hold_are_refused():
    with Engine(make_kernel("poly", gamma=1.0, degree=20)) as engine:
        with pytest.raises(InputError, match="too large for the poly kernel"):
            engine.prepare(np.full((1, 1), 100, dtype=np.float32))


def test_dense_rows_of_few_nonzeros_prefer_the_sparse_product():
    X = np.zeros((10, 8), dtype=np.float32)
    X[:, 0] = 1
    assert prefers_sparse(X)
    assert prefers_sparse(to_csr(np.ones_like(X)))
    assert not prefers_sparse(np.ones_like(X))


@st.composite
def pairs_of_blocks(draw):
    """An engine, rows of any number up to past a tile, and threads."""
    sparse = draw(st.booleans())
    problem = make_problem(
        make_kernel(draw(st.sampled_from(sorted(KERNELS))), gamma=1.0),
        n_rows=draw(st.integers(2, 1200)),
        n_features=draw(st.sampled_from([1, 2, 3, 5, 22, 100, 513])),
        density=0.3 if sparse else 1.0,
        seed=draw(SEEDS),
    )
    center = problem.X.mean(axis=0) if draw(st.booleans()) else None
    engine = Engine(problem.kernel, draw(st.sampled_from([1, 2, 3])), center=center)
    return engine, problem.rows(sparse), draw(st.integers(1, len(problem.X) - 1))


@given(pairs_of_blocks(), SEEDS)
def test_a_kernel_value_has_the_same_bits_whatever_computes_it(case, seed):
    """Either side, strips of any height and width, single pairs."""
    engine, rows, cut = case
    rng = np.random.default_rng(seed)
    with engine:
        x, z = engine.prepare(rows[:cut]), engine.prepare(rows[cut:])
        whole = np.empty((len(x), len(z)), dtype=np.float32)
        engine.block(x, z, whole)
        turned = np.empty((len(z), len(x)), dtype=np.float32)
        engine.block(z, x, turned)
        np.testing.assert_array_equal(turned.T, whole)
        for _ in range(4):
            a, b = np.sort(rng.integers(0, len(x) + 1, 2))
            c, d = np.sort(rng.integers(0, len(z) + 1, 2))
            part = np.empty((b - a, d - c), dtype=np.float32)
            engine.block(x[a:b], z[c:d], part)
            np.testing.assert_array_equal(part, whole[a:b, c:d])
        for _ in range(4):
            i, j = rng.integers(len(x)), rng.integers(len(z))
            value = np.empty((1, 1), dtype=np.float32)
            engine.block(x[i : i + 1], z[j : j + 1], value)
            assert value[0, 0] == whole[i, j]
            again = np.empty((1, 1), dtype=np.float32)
            one = rows[cut + j : cut + j + 1]
            engine.block(engine.prepare(one), x[i : i + 1], again)  # prepared alone, other side
            assert again[0, 0] == whole[i, j]


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("name", KERNELS)
def test_number_of_threads_changes_no_bit_of_a_sum(name, sparse):
    problem = make_problem(make_kernel(name, gamma=1.0), n_rows=2 * TILE + 77, density=0.5)
    rows = problem.rows(sparse)
    weights = np.random.default_rng(0).normal(size=len(problem.X))
    results = []
    for threads in (1, 2, 5):
        with Engine(problem.kernel, threads) as engine:
            z, z64 = engine.prepare(rows), engine.prepare64(rows)
            results.append(
                (
                    engine.weighted_sum(z, z, weights),
                    engine.weighted_sum64(z64, z64, weights),
                    engine.symmetric_sum64(z64, weights),
                )
            )
    for result in results[1:]:
        for sums, expected in zip(result, results[0], strict=True):
            np.testing.assert_array_equal(sums, expected)


# -- rows of any size ----------------------------------------------------------------------------

METHODS = [FLOAT32_PRODUCTS, FLOAT32_DIFFERENCES, FLOAT64_PRODUCTS, FLOAT64_DIFFERENCES]
INVARIANT = sorted(name for name in KERNELS if KERNELS[name].shift_invariant)


@st.composite
def raw_engines(draw, threads=1):
    """Rows of any size, and an engine that suits them; gamma has nothing to do with either."""
    X = draw(raw_tables())
    name = draw(st.sampled_from(sorted(KERNELS)))
    kernel = make_kernel(name, gamma=draw(powers_of_ten(-8, 4)), degree=2, coef0=1.0)
    form = to_csr if draw(st.booleans()) else np.asarray
    return Engine(kernel, threads, *choose_arithmetic(kernel, form(X))), X, form


@given(raw_engines(), SEEDS)
def test_values_of_rows_of_any_size_lose_no_digits(case, seed):
    engine, X, form = case
    cut = len(X) // 2
    expected = kernel_values(engine.kernel, X[:cut], X[cut:])
    weights = np.random.default_rng(seed).dirichlet(np.ones(len(X) - cut))
    with engine:
        out = block_of(engine, form(X[:cut]), form(X[cut:]))
        x, z = engine.prepare(form(X[:cut])), engine.prepare(form(X[cut:]))
        single, bound = engine.value_bound(x, z), engine.error_bound(x, z)
        nearest = Nearest(len(x))
        sums = engine.weighted_sum(x, z, weights, nearest)
        tight = engine.error_bound(x, z, sums)
        x, z = engine.prepare64(form(X[:cut])), engine.prepare64(form(X[cut:]))
        sums64, bound64 = engine.weighted_sum64(x, z, weights), engine.error_bound64(x, z)
        tight64 = engine.error_bound64(x, z, sums64)
    assert (np.abs(out - expected) <= single[:, None]).all()
    exact = expected @ weights.astype(np.longdouble)
    assert (np.abs(sums - exact) <= bound).all()
    assert (np.abs(sums64 - exact) <= bound64).all()
    if engine.kernel.shift_invariant:
        assert single.max() <= 2e-3
        assert bound64.max() <= 1e-8
        assert (np.abs(sums - exact) <= tight).all()
        assert (np.abs(sums64 - exact) <= tight64).all()
        assert (np.abs(nearest.value - expected.max(axis=1)) <= single).all()


@pytest.mark.parametrize("method", [FLOAT32_DIFFERENCES, FLOAT64_DIFFERENCES])
@given(gamma=powers_of_ten(-8, 4), X=raw_tables(max_features=6), name=st.sampled_from(INVARIANT))
def test_differences_err_by_units_whatever_the_size_of_rows(method, gamma, X, name):
    with Engine(make_kernel(name, gamma=gamma), fast=method) as engine:
        x = engine.prepare(X)
        bound = engine.value_bound(x, x)
        assert bound.max() <= 40 * 2**-24
        assert (np.abs(block_of(engine, X, X) - kernel_values(engine.kernel, X, X)) <= bound).all()


@st.composite
def methods_and_blocks(draw):
    """An engine of any method that its kernel allows, and rows up to past a tile."""
    kernel = make_kernel(draw(st.sampled_from(sorted(KERNELS))), gamma=1.0)
    method = draw(st.sampled_from(METHODS if kernel.shift_invariant else METHODS[::2]))
    sparse = draw(st.booleans())
    problem = make_problem(
        kernel,
        n_rows=draw(st.integers(2, 40 if method.differences and sparse else 900)),
        n_features=draw(st.sampled_from([1, 2, 3, 5, 22, 33, 100])),
        density=0.3 if sparse else 1.0,
        seed=draw(SEEDS),
    )
    center = problem.X.mean(axis=0) if draw(st.booleans()) else None
    threads = draw(st.sampled_from([1, 2]))
    engine = Engine(problem.kernel, threads, center, fast=method, exact=method)
    return engine, problem.rows(sparse), draw(st.integers(1, len(problem.X) - 1))


@given(methods_and_blocks(), SEEDS)
def test_every_method_gives_a_value_the_same_bits_whatever_computes_it(case, seed):
    """Either side, strips of any height and width, single pairs, rows prepared alone."""
    engine, rows, cut = case
    rng = np.random.default_rng(seed)
    with engine:
        whole = block_of(engine, rows[:cut], rows[cut:])
        np.testing.assert_array_equal(block_of(engine, rows[cut:], rows[:cut]).T, whole)
        n, m = whole.shape
        for _ in range(4):
            a, b = np.sort(rng.integers(0, n + 1, 2))
            c, d = np.sort(rng.integers(0, m + 1, 2))
            part = block_of(engine, rows[a:b], rows[cut + c : cut + d])
            np.testing.assert_array_equal(part, whole[a:b, c:d])
            i, j = rng.integers(n), rng.integers(m)
            value = block_of(engine, rows[cut + j : cut + j + 1], rows[i : i + 1])
            assert value[0, 0] == whole[i, j]


@pytest.mark.parametrize("method", [FLOAT32_DIFFERENCES, FLOAT64_DIFFERENCES])
@given(X=raw_tables(max_rows=30, max_features=32), name=st.sampled_from(INVARIANT))
def test_differences_of_few_features_have_the_same_bits_from_dense_and_sparse_rows(method, X, name):
    with Engine(make_kernel(name, gamma=1e-3), fast=method) as engine:
        dense, sparse = block_of(engine, X, X), block_of(engine, to_csr(X), to_csr(X))
        np.testing.assert_array_equal(dense, sparse)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_threads_change_no_bit_of_any_method(method, sparse):
    problem = make_problem(make_kernel("rbf", gamma=1.0), n_rows=300, n_features=40, density=0.5)
    rows = problem.rows(sparse)
    weights = np.random.default_rng(0).normal(size=100)
    many = ManyWeights.of(100, [np.arange(60), np.arange(30, 100)], [weights[:60], weights[30:]])
    results = []
    for threads in (1, 2):
        with Engine(problem.kernel, threads, None, False, method, method) as engine:
            x, z = engine.prepare(rows), engine.prepare(rows[:100])
            sums = [engine.weighted_sum(x, z, weights), engine.weighted_sum64(x, z, weights)]
            sums += [engine.weighted_sums(x, z, many), engine.weighted_sums64(x, z, many)]
            sums.append(engine.symmetric_sum64(z, weights))
            results.append([own.tobytes() for own in sums])
    assert results[0] == results[1]
    expected = kernel_values(problem.kernel, problem.X, problem.X[:100]).astype(float)
    np.testing.assert_allclose(sums[1], expected @ weights, atol=1e-4)
    np.testing.assert_allclose(sums[3][:, 0], expected[:, :60] @ weights[:60], atol=1e-4)
    np.testing.assert_allclose(sums[4], (expected @ weights)[:100], atol=1e-4)


@pytest.mark.parametrize("name", KERNELS)
def test_ordinary_rows_take_float32_products(name):
    """What is fastest, bit for bit as without a choice; only the size of rows changes that."""
    problem = make_problem(make_kernel(name, gamma=1.0), n_rows=100, n_features=22)
    chosen = choose_arithmetic(problem.kernel, problem.X)
    assert (chosen.fast, chosen.exact) == Arithmetic()[2:]
    large = choose_arithmetic(problem.kernel, problem.X * np.float32(1e4))
    assert large.fast != FLOAT32_PRODUCTS


def test_the_recipe_keeps_the_methods():
    X = 3000 * make_problem(make_kernel("rbf", gamma=1.0), n_rows=50).X
    kernel = make_kernel("rbf", gamma=0.5)
    arithmetic = choose_arithmetic(kernel, X)
    with Engine(kernel, 2, *arithmetic) as engine, engine.recipe()() as other:
        assert (other.fast, other.exact) == arithmetic[2:]
        np.testing.assert_array_equal(block_of(engine, X, X), block_of(other, X, X))


def test_centred_float64_products_keep_the_digits_of_a_large_offset():
    X = (np.random.default_rng(0).normal(size=(30, 50)) + 3e4).astype(np.float32)
    kernel = make_kernel("rbf", gamma=0.01)
    with Engine(kernel, center=choose_center(X), fast=FLOAT64_PRODUCTS) as engine:
        error = np.abs(block_of(engine, X, X) - kernel_values(kernel, X, X))
    assert error.max() < 1e-6


@pytest.mark.parametrize("n_features", range(1, 41))
def test_a_padded_tile_of_any_shape_has_room(n_features):
    """Shapes alone: no products are computed."""
    with Engine(make_kernel("poly", gamma=1.0)) as engine:
        product = DenseProduct(np.float64, n_features)
        for m in range(1, TILE + 1):
            height = TILE * TILE // max(32, m)
            for n in {*range(1, height, 97), height - 15, height - 1, height} | {625, 3000}:
                shape = product.tile_shape(min(n, height), m)
                assert engine._workspace.tile(shape, np.float64).shape == shape
