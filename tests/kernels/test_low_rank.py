"""Decisions from few vertices: bounds on every row against sums in extended precision."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from ooc_fw.kernels.arithmetic import Arithmetic, choose_arithmetic
from ooc_fw.kernels.decisions import AtVertices, DecisionFunctions, Weights
from ooc_fw.kernels.engine import Engine
from ooc_fw.kernels.functions import make_kernel
from ooc_fw.kernels.low_rank import LowRank, PivotLimits, Pivots
from ooc_fw.system.errors import InputError
from tests.support.reference import exact_sum, kernel_values, to_csr
from tests.support.strategies import SEEDS, kernels, powers_of_ten, raw_tables, tables


def exact_decisions(kernel, X, vectors, betas):
    """Decision values by definition, shape (n_rows, n_classifiers)."""
    values = kernel_values(kernel, X, vectors)
    columns = [values @ beta.astype(np.longdouble) + exact_sum(beta) for beta in betas]
    return np.stack(columns, axis=1)


def at_vertices(kernel, vectors, betas):
    """What a compression starts from, by definition."""
    exact = exact_decisions(kernel, vectors, vectors, betas).T
    values = exact.astype(np.float64)
    rounding = 2.0**-53 * float(np.abs(values).max())
    return AtVertices(values, np.einsum("ij,ij->i", betas, exact).astype(np.float64), rounding)


def functions_of(engine, vectors, betas):
    every = np.arange(len(vectors))
    weights = [Weights(every, np.abs(beta), np.sign(beta).astype(np.int8)) for beta in betas]
    return DecisionFunctions(engine, vectors, weights)


def signed(rng, *shape):
    """Weights of absolute sum 1 and either sign."""
    return rng.dirichlet(np.ones(shape[-1]), shape[0]) * rng.choice([-1, 1], shape)


@given(
    st.data(),
    st.one_of(tables(), raw_tables()),
    st.sampled_from([np.asarray, to_csr]),
    st.integers(1, 3),
    st.integers(1, 9),
    SEEDS,
)
def test_bounds_hold_on_every_row_however_few_vertices(data, X, form, n_classifiers, step, seed):
    kernel, vectors = data.draw(kernels(X)), X[: max(2, len(X) // 2)]
    rng = np.random.default_rng(seed)
    betas = np.exp(3 * rng.normal(size=(n_classifiers, len(vectors))))
    betas *= rng.choice([-1, 1], betas.shape) / betas.sum(axis=1, keepdims=True)
    exact = exact_decisions(kernel, X, vectors, betas)
    effort = PivotLimits(step, 5 * step, 2 * step, 1000)
    with Engine(kernel, 1, choose_arithmetic(kernel, form(X))) as engine:
        try:
            x, z = engine.prepare(form(X)), engine.prepare(form(vectors), exact=True)
            engine.prepare(form(X), exact=True)
        except InputError:  # values of the kernel are beyond float32, which is refused
            reject()
        span = Pivots(engine, z, np.abs(betas).max(axis=0), effort)
        while len(span.places) < effort.most and span.grow():
            compression = span.compress(*at_vertices(kernel, vectors, betas))
            pivots = engine.prepare(form(vectors[span.places]))
            found, bound = LowRank(engine, pivots, compression).evaluate(x)
            assert (np.abs(found - exact) <= bound).all()
            assert len(set(span.places.tolist())) == len(span.places)


@pytest.mark.parametrize("n_classifiers", [1, 3])
def test_rows_left_open_are_decided_by_all_vertices(n_classifiers):
    """Of 400 vertices near few centres, and 4,000 rows; without what is left of w bounds fail."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(12, 4))[rng.integers(0, 12, 4000)] + 0.05 * rng.normal(size=(4000, 4))
    X, betas = X.astype(np.float32), signed(rng, n_classifiers, 400)
    kernel = make_kernel("rbf", gamma=0.2)
    exact = exact_decisions(kernel, X, X[:400], betas)
    margin = np.quantile(np.abs(exact), 0.03)
    exact = exact[:, 0] if n_classifiers == 1 else exact

    def is_open(values, bound):
        near = np.abs(values) - bound < margin
        return near.reshape(len(values), -1).any(axis=1)

    with Engine(kernel, 2) as engine:
        functions = functions_of(engine, X[:400], betas)
        full, _ = functions.approximate(X)
        functions.compress(lambda: (X[::4], is_open), 4000)
        before = engine.evaluations
        values, bound = functions.approximate(X, is_open)
        assert (np.abs(values - exact) <= bound + functions.rounding).all()
        assert engine.evaluations - before < 0.75 * 4000 * 400
        of_all = (values == full).reshape(4000, -1).all(axis=1)
        assert 0 < np.count_nonzero(of_all) < 2000
        few = functions.few.compression
        functions.begin_with(few._replace(norms=0 * few.norms))
        values, bound = functions.approximate(X, lambda values, _: np.zeros(len(values), bool))
        assert (np.abs(values - exact) > bound).any()


def test_a_row_is_not_the_pivot_though_their_kernel_value_rounds_to_1():
    """The decision is steep there, so that this shows."""
    X = np.linspace(-2e-4, 2e-4, 41, dtype=np.float32)[:, None]
    vectors = np.array([[0], [0.7], [-0.7]], dtype=np.float32)
    betas, kernel = np.array([[1e-9, 0.5, 1e-9 - 0.5]]), make_kernel("rbf", gamma=1.0)
    sizes, effort = np.array([1.0, 0, 0]), PivotLimits(1, 1, 1, 3)
    with Engine(kernel, 1) as engine:
        span = Pivots(engine, engine.prepare(vectors, exact=True), sizes, effort)
        assert span.grow()
        compression = span.compress(*at_vertices(kernel, vectors, betas))
        few = LowRank(engine, engine.prepare(vectors[:1]), compression)
        x = engine.prepare(X)
        to_pivot = np.empty((len(X), 1), dtype=np.float32)
        engine.block(x, engine.prepare(vectors[:1]), to_pivot)
        values, bound = few.evaluate(x)
    assert (to_pivot == 1).sum() > 20
    assert (np.abs(values - exact_decisions(kernel, X, vectors, betas)) <= bound).all()


def test_the_search_for_pivots_keeps_to_its_memory():
    """For the largest share of the vertices, where all parts count; tiles take little beside."""
    n, rng = 1536, np.random.default_rng(0)
    X, n_bytes = rng.normal(size=(n, 4)).astype(np.float32), 16 * n * (n // 3)
    effort = PivotLimits.of(10**9, n, n_bytes)
    assert effort.most == n // 3
    with Engine(make_kernel("rbf", gamma=0.25), 1) as engine:
        z = engine.prepare(X, exact=True)
        engine.block(z[:8], z, np.empty((8, n)))
        tracemalloc.start()
        span = Pivots(engine, z, np.ones(n), effort)
        while len(span.places) < effort.most and span.grow():
            span.compress(rng.normal(size=(1, n)), np.ones(1), 1e-9)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert 0.7 * n_bytes < peak < n_bytes + (1 << 20)


@given(
    name=st.sampled_from(["rbf", "laplacian", "linear", "poly"]),
    sparse=st.booleans(),
    seed=SEEDS,
    gamma=powers_of_ten(-6, 1),
    size=powers_of_ten(0, 3),
)
def test_the_bound_of_all_vertices_holds_if_a_few_are_far_larger(name, sparse, seed, gamma, size):
    """It follows the norms of those that count for a row."""
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(40, 6)) * rng.integers(0, 2, (40, 6))
    vectors[:4] *= size
    X = np.vstack([rng.normal(size=(30, 6)), vectors[:2], size * rng.normal(size=(4, 6))])
    vectors, X, betas = vectors.astype(np.float32), X.astype(np.float32), signed(rng, 1, 40)
    kernel = make_kernel(name, gamma=gamma)
    form = to_csr if sparse else np.asarray
    with Engine(kernel, 1, Arithmetic(sparse=sparse)) as engine:
        functions = functions_of(engine, form(vectors), betas)
        values, bound = functions.approximate(form(X))
        exact = exact_decisions(kernel, X, vectors, betas)[:, 0]
        assert (np.abs(values - exact) <= bound + functions.rounding).all()
