"""Oracles: one contract for all of them, against the gradient of every row by brute force."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw.data.sampling import Sampler
from ooc_fw.kernels.functions import KERNELS, make_kernel
from ooc_fw.solver.oracles import ORACLES, BlockLMO, FewVertices, Look, Request, block_rows
from ooc_fw.system.memory import MemoryPlan
from tests.support.contracts import to_dense
from tests.support.reference import SmallProblem, make_problem
from tests.support.solving import activate
from tests.support.strategies import SEEDS

N_ROWS = 60
EVERYTHING = Request(limit=N_ROWS)
ALL = ORACLES | {"blocks": BlockLMO}
EVERY_ORACLE = pytest.mark.parametrize("name", ALL)


class Bench:
    """A problem with an active set on it, and an oracle over the same rows."""

    def __init__(self, name, kernel="rbf", *, sparse=False, start=8, seed=0, size=20, block=100):
        self.problem = make_problem(
            make_kernel(kernel, gamma=1.0), n_rows=N_ROWS, C=10.0, density=0.7, seed=seed
        )
        self.rng = np.random.default_rng(seed)
        row_ids = self.rng.permutation(N_ROWS)[:start]
        self.active = activate(self.problem, row_ids, self.rng.random(start), sparse)
        self.gradient = self.problem.dual_matrix[:, row_ids] @ self.active.alpha
        self.outside = np.setdiff1d(np.arange(N_ROWS), row_ids)
        memory = SimpleNamespace(max_block=block)
        shared = self.problem.source(sparse), self.problem.y, Sampler(N_ROWS)
        self.oracle = ALL[name](*shared, memory if name == "blocks" else size)

    def propose(self, request=EVERYTHING):
        """A proposal that says the truth about rows that are no vertices, and keeps to limits."""
        found = self.oracle.propose(self.active, self.rng, request)
        ids = found.row_ids
        assert len(ids) <= request.limit
        assert np.isin(ids, self.outside).all()
        assert self.gradient.min() - 2e-5 <= found.least <= self.active.grad.min()
        assert (found.rows is None) == (len(ids) == 0)
        if len(ids) > 0:
            np.testing.assert_array_equal(to_dense(found.rows), self.problem.X[ids])
            np.testing.assert_array_equal(found.labels, self.problem.y[ids])
            np.testing.assert_allclose(found.grads, self.gradient[ids], rtol=1e-5, atol=2e-5)
            assert (found.grads < request.threshold).all()
        return found


@EVERY_ORACLE
@given(
    kernel=st.sampled_from(sorted(KERNELS)),
    sparse=st.booleans(),
    size=st.integers(1, N_ROWS + 15),
    limit=st.sampled_from([1, 5, N_ROWS]),
    seed=SEEDS,
)
def test_every_oracle_keeps_the_contract(name, kernel, sparse, size, limit, seed):
    bench = Bench(name, kernel, sparse=sparse, size=size, seed=seed)
    gradient, outside = bench.gradient, bench.outside
    threshold = float(np.median(gradient[outside]))
    violators = outside[gradient[outside] < threshold]
    found = bench.propose(Request(limit, threshold))
    assert np.isin(found.row_ids, violators).all()
    assert found.exact == (name == "full")
    n_seen = min(N_ROWS, {"full": N_ROWS, "sampled": size, "blocks": block_rows(limit, 1.0)}[name])
    assert found.n_scanned == n_seen
    if n_seen == N_ROWS:
        assert found.least == pytest.approx(gradient.min(), rel=1e-5, abs=2e-5)
    if name == "full":
        best = outside[np.argsort(gradient[outside])[: min(limit, len(violators))]]
        best = best[gradient[best] < bench.active.grad.min()] if limit == 1 else best
        np.testing.assert_array_equal(np.sort(found.row_ids), np.sort(best))
    if name == "blocks" and n_seen == N_ROWS:
        assert len(found.row_ids) == min(limit, len(violators))
    if name == "sampled" and len(found.row_ids) > 0:
        assert found.grads.tolist() == [found.least]


@EVERY_ORACLE
def test_nothing_is_proposed_if_all_rows_are_vertices(name):
    bench = Bench(name, start=N_ROWS)
    assert bench.propose().rows is None


def test_blocks_pass_over_every_row_and_look_again_at_those_near_the_margin():
    bench = Bench("blocks", block=7)
    nothing_violates = Request(limit=N_ROWS, threshold=-1e9)
    seen = 0
    while seen < N_ROWS:
        seen += bench.propose(nothing_violates).n_scanned
    again = 0
    while n_scanned := bench.propose(nothing_violates).n_scanned:
        again += n_scanned
    # Vertices were not looked at and count as near. A look that finds nothing is the last.
    near = bench.gradient[bench.outside] < 1.2 * bench.active.rho
    assert again == np.count_nonzero(near) + len(bench.active)


def test_looks_by_few_vertices_find_every_violator():
    """And estimate the other rows, at less work; also after a part of the vertices has left."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(12, 4))[rng.integers(0, 12, 4600)] + 0.1 * rng.normal(size=(4600, 4))
    y = np.where(np.sin(2 * X[:, 0]) + X[:, 1] > 0, 1, -1).astype(np.int8)
    problem = SmallProblem(make_kernel("rbf", gamma=0.2), X.astype(np.float32), y, 10.0)
    active = activate(problem, np.arange(600), np.ones(600))
    active.optimise(1e-4, 100_000)
    active.refresh()
    has_label = np.stack([y[600:] < 0, y[600:] > 0])
    x, engine = active.prepare(problem.X[600:]), active.engine
    look = Look(x, has_label, 0.99 * active.rho, 1_000_000)
    shortcut = FewVertices(MemoryPlan(None, 0, None, 2, kernel_values=1 << 28))
    shortcut.decisions(active, look)  # chooses the vertices

    def violates(decisions):
        return look.may_violate(decisions, 0 * decisions, np.arange(len(decisions)))

    for _ in range(2):
        expected, before = active.decision_at(x), engine.evaluations
        found = shortcut.decisions(active, look)
        assert 0 < engine.evaluations - before < 0.75 * 4000 * len(active)
        assert 0 < np.count_nonzero(found == expected) < 4000
        np.testing.assert_array_equal(violates(found), violates(expected))
        assert np.abs(found - expected).max() < active.rho
        active.keep(np.flatnonzero(rng.random(len(active)) < 0.95))
        active.refresh()
