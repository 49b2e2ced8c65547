"""Oracles against the gradient of every row, by brute force."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw.data.rows import take_rows
from ooc_fw.data.sampling import BlockSampler, Sampler
from ooc_fw.kernels.functions import KERNELS, make_kernel
from ooc_fw.solver import oracles
from ooc_fw.solver.oracles import Request
from ooc_fw.solver.steps import STEP_RULES, Effort
from tests.support.contracts import to_dense
from tests.support.reference import make_problem
from tests.support.solving import activate
from tests.support.strategies import SEEDS

N_ROWS = 60
EVERYTHING = Request(limit=N_ROWS)


class Bench:
    """A problem with an active set on it, and oracles over the same rows."""

    def __init__(self, kernel="rbf", *, C=10.0, sparse=False, source=None, start=8, seed=0):
        self.problem = make_problem(
            make_kernel(kernel, gamma=1.0), n_rows=N_ROWS, C=C, density=0.7, seed=seed
        )
        self.rows = self.problem.rows(sparse)
        self.source = self.problem.source(sparse) if source is None else source
        self.rng = np.random.default_rng(seed)
        row_ids = self.rng.permutation(N_ROWS)[:start]
        self.active = activate(self.problem, row_ids, self.rng.random(start), sparse)
        self.engine = self.active.engine

    def add(self, row_ids):
        self.active.add(row_ids, take_rows(self.rows, row_ids), self.problem.y[row_ids])

    def workspace(self, size=20):
        """What an oracle takes of a run."""
        memory = SimpleNamespace(max_block=oracles.LARGEST_BLOCK)
        return SimpleNamespace(
            rows=self.source,
            problem=SimpleNamespace(labels=self.problem.y),
            engine=self.engine,
            sampler=Sampler(N_ROWS, N_ROWS),
            options=SimpleNamespace(sample_size=size),
            plan=SimpleNamespace(memory=memory),
        )

    def full(self):
        return oracles.FullLMO(self.workspace())

    def sampled(self, size=20):
        return oracles.SampledLMO(self.workspace(size=size))

    def blocks(self):
        workspace = self.workspace()
        workspace.sampler = BlockSampler(N_ROWS)
        return oracles.BlockLMO(workspace)

    def propose(self, lmo, request=EVERYTHING):
        return lmo.propose(self.active, self.rng, request)

    def gradient(self):
        """Of every row, in float64."""
        return self.problem.dual_matrix[:, self.active.ids] @ self.active.alpha

    def near(self, margin):
        """Rows outside the active set whose gradient is below so many times rho."""
        outside = self.active.outside(np.arange(N_ROWS))
        return outside[self.gradient()[outside] < margin * self.active.rho]

    def step(self, rule, lmo):
        """One iteration, as the solver does it."""
        candidates = self.propose(lmo, Request())
        if candidates.rows is not None:
            self.active.add(candidates.row_ids, candidates.rows, candidates.labels)
        rule.step(self.active, Effort(1e-2))
        rule.prune(self.active)

    def assert_proposal(self, candidates, atol=2e-5):
        """What any oracle may say: true gradients, of rows that are no vertices."""
        gradient = self.gradient()
        outside = self.active.outside(np.arange(N_ROWS))
        assert set(candidates.row_ids.tolist()) <= set(outside.tolist())
        assert candidates.least >= gradient.min() - atol
        assert (candidates.rows is None) == (len(candidates.row_ids) == 0)
        if candidates.rows is not None:
            ids = candidates.row_ids
            np.testing.assert_array_equal(to_dense(candidates.rows), self.problem.X[ids])
            np.testing.assert_array_equal(candidates.labels, self.problem.y[ids])
            np.testing.assert_allclose(candidates.grads, gradient[ids], rtol=1e-5, atol=atol)


@pytest.mark.parametrize(("kernel", "sparse"), [(name, k % 2) for k, name in enumerate(KERNELS)])
def test_full_oracle_finds_the_row_of_least_gradient_or_every_row_outside(kernel, sparse):
    bench = Bench(kernel, sparse=sparse)
    candidates, gradient = bench.propose(bench.full(), Request()), bench.gradient()
    bench.assert_proposal(candidates)
    assert candidates.exact
    assert candidates.n_scanned == N_ROWS
    assert candidates.least == pytest.approx(gradient.min(), rel=1e-5, abs=2e-5)
    assert candidates.row_ids.tolist() == [np.argmin(gradient)]
    candidates = bench.propose(bench.full())
    bench.assert_proposal(candidates)
    np.testing.assert_array_equal(candidates.row_ids, bench.active.outside(np.arange(N_ROWS)))


@pytest.mark.parametrize(
    ("kernel", "name"), [*zip(itertools.cycle(KERNELS), sorted(STEP_RULES), strict=False)]
)
def test_the_full_oracle_sees_the_gradient_of_all_rows(kernel, name):
    """After many steps of every rule, in float32 and float64, and weights from outside."""
    bench = Bench(kernel, sparse=kernel == "laplacian")
    rule, lmo = STEP_RULES[name](), bench.full()
    for step in range(61):
        bench.step(rule, lmo)
        if step % 30 == 0:
            candidates = bench.propose(lmo)
            bench.assert_proposal(candidates, atol=1e-4)
            assert len(candidates.row_ids) == N_ROWS - len(bench.active)
        if step == 30:
            bench.active.raise_precision()
            bench.active.set_weights(np.arange(1.0, len(bench.active) + 1))


@given(kernel=st.sampled_from(sorted(KERNELS)), size=st.integers(1, N_ROWS + 15), seed=SEEDS)
def test_sampled_gap_never_exceeds_the_true_one(kernel, size, seed):
    bench = Bench(kernel, seed=seed)
    candidates = bench.propose(bench.sampled(size), Request())
    bench.assert_proposal(candidates)
    assert not candidates.exact
    assert candidates.n_scanned == min(size, N_ROWS)
    assert candidates.least <= bench.active.grad.min()
    assert len(candidates.row_ids) <= 1
    if len(candidates.row_ids):
        assert candidates.grads[0] == candidates.least
    if size >= N_ROWS:
        assert candidates.least == pytest.approx(bench.gradient().min(), rel=1e-5, abs=2e-5)


@pytest.mark.parametrize("make", [Bench.full, Bench.sampled])
def test_nothing_is_proposed_when_all_rows_are_vertices(make):
    bench = Bench(start=N_ROWS)
    candidates = bench.propose(make(bench), Request())
    assert candidates.rows is None
    assert candidates.least == pytest.approx(bench.gradient().min(), rel=1e-5)


@pytest.mark.parametrize("make", [Bench.full, Bench.blocks])
def test_many_violators_at_once(make):
    """Only rows below the threshold, no more than asked for."""
    bench = Bench()
    gradient = bench.gradient()
    outside = bench.active.outside(np.arange(N_ROWS))
    threshold = float(np.median(gradient[outside]))
    violators = outside[gradient[outside] < threshold]
    for limit in (2, 5, N_ROWS):
        candidates = bench.propose(make(bench), Request(limit, threshold))
        bench.assert_proposal(candidates)
        assert set(candidates.row_ids.tolist()) <= set(violators.tolist())
        assert len(candidates.row_ids) == min(limit, len(violators))
        if make is Bench.full:
            best = np.sort(outside[np.argsort(gradient[outside])[: len(candidates.row_ids)]])
            np.testing.assert_array_equal(np.sort(candidates.row_ids), best)


def test_blocks_pass_over_every_row_and_look_again_at_those_near_the_margin(monkeypatch):
    monkeypatch.setattr(oracles, "_FIRST_BLOCK", 7)
    monkeypatch.setattr(oracles, "LARGEST_BLOCK", 7)
    bench = Bench()
    lmo = bench.blocks()
    request = Request(limit=N_ROWS, threshold=-1e9)  # nothing is a violator
    seen = 0
    while seen < N_ROWS:
        seen += bench.propose(lmo, request).n_scanned
    near = 0
    while n_scanned := bench.propose(lmo, request).n_scanned:
        near += n_scanned
    # Vertices were not looked at and count as near. A look that finds nothing is the last.
    assert near == len(bench.near(1.2)) + len(bench.active)


def test_blocks_look_farther_from_the_margin_while_that_finds_violators():
    bench = Bench()
    lmo = bench.blocks()
    request = Request(limit=N_ROWS, threshold=1e9)  # every row is a violator
    assert bench.propose(lmo, request).n_scanned == N_ROWS
    found, looks = set(), 0
    while (candidates := bench.propose(lmo, request)).n_scanned > 0:
        found |= set(candidates.row_ids.tolist())
        looks += 1
    assert found == set(bench.near(3).tolist())
    assert looks == 4
    lmo = bench.blocks()
    lmo.retire()  # leaves the search to sweeps
    candidates = bench.propose(lmo)
    assert (candidates.rows, candidates.n_scanned) == (None, 0)
    assert candidates.least == bench.active.grad.min()
