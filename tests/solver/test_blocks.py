"""Steps in blocks of rows, with the rest of the model as one vertex for each label."""

from contextlib import ExitStack
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw import Status, TrainOptions, make_kernel
from ooc_fw.problem import BinaryProblem
from ooc_fw.solver import blocks
from ooc_fw.solver.active_set import ActiveSet
from ooc_fw.solver.blocks import Blocks
from ooc_fw.solver.kernel_rows import KernelRows
from ooc_fw.solver.loop import _Loop, solve_problem
from ooc_fw.solver.plan import Session, plan_exact
from tests.support.reference import make_problem
from tests.support.strategies import SEEDS, powers_of_ten, problems


class Forced(ExitStack):
    """Let blocks take the steps, with at most `most` rows that may move in each."""

    def __init__(self, most, seen=None):
        super().__init__()
        self.most = most
        self.seen = seen

    def __enter__(self):
        self.enter_context(mock.patch.object(KernelRows, "side", 2))
        self.enter_context(mock.patch.object(blocks, "_MOST_MOVING", self.most))
        visit = Blocks._visit

        def watched(own, row_ids, tol):
            visit(own, row_ids, tol)
            if self.seen is not None:
                active = own._active
                self.seen.append((active.ids.copy(), active.alpha.copy(), active.rho))

        self.enter_context(mock.patch.object(Blocks, "_visit", watched))
        return super().__enter__()


def binary(problem, *, one_class=False, sparse=False):
    penalties = None if np.isscalar(problem.C) else problem.C
    source = problem.source(sparse)
    return BinaryProblem(source, problem.y, problem.kernel, penalties, one_class=one_class)


def run(problem, most, seen=None, *, callbacks=(), warm=None, one_class=False, **options):
    whole = binary(problem, one_class=one_class, sparse=options.pop("sparse", False))
    C = problem.C if np.isscalar(problem.C) else 1.0
    plan = plan_exact(whole, TrainOptions(C=C, **options))
    with Forced(most, seen):
        return solve_problem(whole, plan, Session(callbacks), warm)


@given(problems(), st.integers(2, 30), SEEDS, powers_of_ten(-4, -2), st.booleans())
def test_a_run_in_blocks_is_certified_and_never_gets_worse(problem, most, seed, tol, sparse):
    """Brute force knows the weights after each block: their sum, rho, and that rho falls."""
    seen = []
    found = run(problem, most, seen, seed=seed, tol=tol, sparse=sparse, max_iter=300)
    least = 1e-6 * (1 + np.abs(problem.dual_matrix).max())
    rho_before = np.inf
    for ids, alpha, rho in seen:
        assert alpha.sum() == pytest.approx(1, abs=1e-9)
        assert (alpha >= 0).all()
        support = np.flatnonzero(alpha)
        truth = problem.truth(ids[support], alpha[support])
        assert rho == pytest.approx(float(truth.rho), rel=1e-4, abs=least)
        assert truth.rho <= rho_before + least
        rho_before = truth.rho
    truth = problem.truth(found.rows, found.alpha)
    if found.certified_gap is not None:
        assert truth.gap <= found.certified_gap
    assert found.status in (Status.CONVERGED, Status.ROUNDING, Status.MAX_ITER)
    if found.status is Status.CONVERGED:
        share = 1 - found.dual / found.primal
        assert min(share / 2, found.certified_gap) <= tol * (1 + 1e-9)
        best = problem.optimum.objective
        assert best >= found.objective * (1 - max(share, 2 * tol)) - least


@pytest.mark.parametrize("kernel", ["rbf", "laplacian", "poly", "linear"])
@pytest.mark.parametrize("kind", ["plain", "weighted", "one class"])
def test_blocks_find_the_optimum(kernel, kind):
    problem = make_problem(make_kernel(kernel, gamma=0.5), n_rows=120, C=10.0)
    one_class = kind == "one class"
    if kind == "weighted":
        problem = replace(problem, C=np.random.default_rng(0).uniform(0.1, 20, 120))
    if one_class:
        problem = replace(problem, y=np.ones(120, dtype=np.int8), C=0.1)
    found = run(problem, 25, one_class=one_class, tol=1e-4)
    assert found.status is Status.CONVERGED
    best = problem.optimum.objective - one_class / 2  # which has no bias
    assert found.objective == pytest.approx(best, rel=3e-4)


def test_a_stop_in_a_round_keeps_the_weights_so_far_and_a_run_resumes_from_them():
    problem = make_problem(make_kernel("rbf", gamma=0.5), n_rows=120, C=10.0)
    calls = []
    stopped = run(problem, 10, callbacks=[lambda state: calls.append(state) or len(calls) < 5])
    assert stopped.status is Status.STOPPED
    assert stopped.alpha.sum() == pytest.approx(1, abs=1e-9)
    truth = problem.truth(stopped.rows, stopped.alpha)
    assert stopped.sampled_gap <= truth.gap + 1e-6


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("by_chance", [False, True])
def test_each_row_is_in_one_block_of_a_round(sparse, by_chance):
    problem = make_problem(make_kernel("rbf", gamma=0.5), n_rows=300, C=10.0)
    whole = binary(problem, sparse=sparse)
    with ExitStack() as stack:
        run = _Loop(whole, plan_exact(whole, TrainOptions()), Session(), stack)
        run.add_vertices(np.arange(0, 300, 10))
        run.active.set_weights(np.ones(30))
        run.begin_blocks()
        rows = np.setdiff1d(np.arange(300), [5, 17, 250])
        divide = run.blocks._by_chance if by_chance else run.blocks._clusters
        for size in (1, 40, 150, 1000):
            parts = divide(rows, size)
            np.testing.assert_array_equal(np.sort(np.concatenate(parts)), rows)
            assert max(map(len, parts)) <= size


def test_without_room_for_more_vertices_the_weights_so_far_are_the_result():
    problem = make_problem(make_kernel("rbf", gamma=0.5), n_rows=120, C=10.0)
    outgrow = ActiveSet.outgrow
    with mock.patch.object(ActiveSet, "outgrow", lambda own, n_max: outgrow(own, 30)):
        found = run(problem, 25, tol=1e-4)
    assert found.status is Status.SUPPORT_LIMIT
    assert len(found.alpha) <= 30
    assert found.alpha.sum() == pytest.approx(1, abs=1e-9)
    assert problem.truth(found.rows, found.alpha).gap <= found.certified_gap
