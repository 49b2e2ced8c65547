"""Whole runs: every method and oracle against the exact optimum, every way to begin and to end."""

import logging
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from signal import SIGINT, raise_signal
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import ooc_fw
from ooc_fw import InputError, Status, TrainOptions, make_kernel, solve
from ooc_fw.problem import BinaryProblem, relative_target
from ooc_fw.solver.loop import solve_problem
from ooc_fw.solver.plan import Session, plan_exact
from ooc_fw.solver.run import Run
from ooc_fw.solver.surroundings import Deadline
from tests.support.contracts import to_dense
from tests.support.methods import IN_TURN, LMOS, SLOW, grid
from tests.support.reference import DEFINITIONS, SmallProblem, make_problem
from tests.support.solving import ClockedSession, train_in_session


def rbf(gamma=1.0, **how):
    return make_problem(make_kernel("rbf", gamma=gamma), **how)


def train(problem, *, source=None, callbacks=(), **options):
    options = {"C": problem.C, "method": "swap2", "lmo": "full"} | options
    source = problem.source() if source is None else source
    return solve(source, problem.y, problem.kernel, TrainOptions(**options), callbacks)


def assert_consistent(solution, problem):
    """The record agrees with itself, and with brute force over its weights."""
    np.testing.assert_array_equal(to_dense(solution.support_vectors), problem.X[solution.rows])
    np.testing.assert_array_equal(solution.labels, problem.y[solution.rows])
    assert len(set(solution.rows.tolist())) == len(solution.rows)
    assert (solution.alpha > 0).all()
    assert solution.alpha.sum() == pytest.approx(1, abs=1e-12)
    truth = problem.truth(solution.rows, solution.alpha)
    assert solution.rho == pytest.approx(float(truth.rho), rel=1e-9)
    assert solution.objective == solution.rho / 2
    assert solution.sampled_gap <= truth.gap + 1e-9
    if solution.certified_gap is None:
        assert solution.pair_gap is None
    else:
        assert truth.gap <= solution.certified_gap <= truth.gap * (1 + 1e-6) + 1e-6
        assert solution.pair_gap == pytest.approx(float(truth.pair_gap), rel=1e-6, abs=1e-8)
    return truth


def assert_solved(solution, problem, tol):
    """One of the certificates is within the tolerance, and so is the distance from the optimum."""
    truth = assert_consistent(solution, problem)
    assert solution.status is Status.CONVERGED
    assert is_within(solution, tol)
    best = problem.optimum.objective
    distance = solution.objective - best
    assert -1e-12 <= distance <= float(truth.gap * truth.rho) + 1e-12
    assert best >= solution.objective * solution.dual / solution.primal - 1e-12


def is_within(solution, tol):
    """Whether the gap of the worst row is within the tolerance, or that of the objective."""
    share = 1 - solution.dual / solution.primal
    return solution.certified_gap <= tol or share <= relative_target(tol)


# -- agreement with the exact optimum ------------------------------------------------------------


def all_pairs():
    """Every method with every kernel; oracles and storages take turns."""
    for i, kernel in enumerate(sorted(DEFINITIONS)):
        for k, (method, lmo, sparse) in enumerate(IN_TURN[i:] + IN_TURN[:i]):
            yield method, lmo if k % 3 else LMOS[1 - LMOS.index(lmo)], kernel, sparse


@pytest.mark.parametrize(("method", "lmo", "kernel", "sparse"), grid([*all_pairs()], quick=9))
def test_every_method_and_oracle_finds_the_optimum(method, lmo, kernel, sparse):
    """And callbacks see states of their own, which one of them spoils."""
    problem = make_problem(make_kernel(kernel, gamma=1.0), density=0.7 if sparse else 1.0)
    tol, seen = 1e-2 if method in SLOW else 1e-3, []

    def spoil(state):
        state.iteration = -1
        state.steps.clear()

    how = {"tol": tol, "sample_size": 20, "callbacks": [seen.append, spoil]}
    solution = train(problem, source=problem.source(sparse), method=method, lmo=lmo, **how)
    assert (solution.method, solution.lmo) == (method, lmo)
    assert_solved(solution, problem, tol)
    assert solution.work == solution.kernel_evaluations / (100 * len(solution.rows))
    assert (seen[0].phase, seen[0].iteration) == ("start", 0)
    assert (seen[-1].phase, seen[-1].certified_gap) == ("certify", solution.certified_gap)
    for state, following in pairwise(seen):
        assert isinstance(state, ooc_fw.SolverState)
        assert 1 <= state.n_support <= state.n_active
        assert state.sampled_gap is not None or state.phase == "start"
        assert state.sweep_fraction is None or 0 < state.sweep_fraction <= 1
        taken = sum(n for kind, n in state.steps.items() if kind.name != "DROP")
        assert taken == state.iteration <= following.iteration <= taken + 64
        assert following.objective <= state.objective * (1 + 1e-6)
        assert following.kernel_evaluations >= state.kernel_evaluations


@pytest.mark.parametrize("kernel", grid([*DEFINITIONS]))
def test_penalties_and_tolerances_of_any_size(kernel):
    # A hard margin is for kernels of full rank: the others take steps in proportion to C.
    largest = 1e6 if kernel in ("rbf", "laplacian") else 1e2
    finest = "swap2" if kernel == "linear" else "corrective"
    cases = ("cvm", 1e-4, 1e-3, 2), ("cvm", largest, 1e-3, 1), (finest, 1.0, 1e-9, 3)
    noisy = [("corrective", 1e5, 1e-3, 3)] if kernel == "rbf" else []
    for method, C, tol, overlap in [*cases, *noisy]:
        problem = make_problem(make_kernel(kernel, gamma=1.0), C=C, overlap=overlap)
        assert_solved(train(problem, method=method, tol=tol), problem, tol)


@pytest.mark.parametrize(("C", "narrow"), [(1.0, True), (2e3, False)])
def test_values_in_16_bits_lead_to_the_same_optimum(C, narrow, caplog):
    """A memory limit has them. If C is large, they give way to float32 as vertices grow."""
    caplog.set_level(logging.INFO, logger="ooc_fw.solver")
    problem = rbf(n_rows=500, C=C, overlap=2.0)
    options = {"method": "corrective", "lmo": "auto", "tol": 1e-6}
    expected = train(problem, **options)
    solution = train(problem, memory_limit=4 << 30, **options)
    assert_solved(solution, problem, 1e-6)
    assert ("held in float32" in caplog.text) is not narrow
    assert solution.objective == pytest.approx(expected.objective, rel=1e-6)


REPEATS = {
    "two rows": [[1.0], [2.0]],
    "equal rows of both classes": [[1.5, 2.0]] * 30,
    "no values at all": [[0.0, 0.0]] * 10,
    "each row many times": [[1.0, 0.0], [0.0, 1.0]] * 15,
}


@pytest.mark.parametrize("method", grid(["corrective", "partan", "mfw", "swap2"]))
@pytest.mark.parametrize("kind", REPEATS)
def test_rows_that_repeat(kind, method):
    X = np.array(REPEATS[kind], dtype=np.float32)
    y = np.where(np.arange(len(X)) % 2, 1, -1).astype(np.int8)
    problem = SmallProblem(make_kernel("linear"), X, y, 1.0)
    tol = 2e-2 if method in SLOW else 1e-3
    assert_solved(train(problem, method=method, tol=tol), problem, tol)


def test_absolute_stopping():
    problem = rbf()
    solution = train(problem, stopping="absolute", tol=1e-4)
    assert_consistent(solution, problem)
    assert solution.status is Status.CONVERGED
    assert solution.certified_gap * solution.rho <= 1e-4
    assert solution.certified_gap > 1e-4  # since rho is far below 1


def test_a_random_start_has_rows_of_both_classes():
    problem = rbf(n_rows=300)
    problem.y[:] = np.where(np.arange(300) == 77, 1, -1)
    solution = train(problem, max_iter=0)
    assert_consistent(solution, problem)
    assert (solution.status, solution.iterations) == (Status.MAX_ITER, 0)
    assert 77 in solution.rows
    assert len(solution.rows) <= 11


# -- ways to end ---------------------------------------------------------------------------------


def interrupt():
    raise KeyboardInterrupt


def send():
    raise_signal(SIGINT)


def refuse():
    return False


@pytest.mark.parametrize(
    ("phase", "lmo", "way"),
    [
        *(("start", "full", refuse), ("train", "sampled", refuse), ("certify", "full", refuse)),
        *(("train", "full", interrupt), ("certify", "sampled", interrupt), ("train", "full", send)),
    ],
)
def test_a_callback_can_stop_a_run_at_any_time_and_there_is_a_model(phase, lmo, way):
    problem, calls = rbf(), []

    def stop(state):
        calls.append(state.phase)
        return way() if state.phase == phase else None

    method = "corrective" if phase == "certify" else "swap2"  # a walk on all rows has no passes
    solution = train(problem, method=method, lmo=lmo, callbacks=[stop])
    assert_consistent(solution, problem)
    assert calls.count(phase) == 1
    assert solution.status is (Status.STOPPED if way is refuse else Status.INTERRUPTED)
    assert solution.signal == (SIGINT if way is send else None)
    assert way is not refuse or solution.certified_gap is None


@pytest.mark.parametrize(("phase", "times"), [("start", 1), ("train", 2)])
def test_signals_that_end_a_run_at_once(phase, times):
    """One before the first step, when nothing is lost, and a second one at any time."""
    callbacks = [lambda state: send() if state.phase == phase else None] * times
    with pytest.raises(KeyboardInterrupt):
        train(rbf(), callbacks=callbacks)


def test_a_time_limit_leaves_time_for_a_certificate():
    problem = rbf(C=100.0, overlap=3)
    binary = BinaryProblem(problem.source(), problem.y, problem.kernel)
    options = TrainOptions(C=100.0, method="fw", lmo="sampled", tol=1e-9, max_time=1000.0)

    def jump(state):
        session.late[0] = 850.0

    session = ClockedSession([jump])
    solution = solve_problem(binary, plan_exact(binary, options), session)
    assert solution.status is Status.TIME_LIMIT
    assert_consistent(solution, problem)
    assert solution.certified_gap is not None


def test_a_full_kernel_block_ends_the_run_with_a_model():
    """Its memory is for 24 vertices."""
    problem = rbf(C=100.0, overlap=5)
    binary = BinaryProblem(problem.source(), problem.y, problem.kernel)
    plan = plan_exact(binary, TrainOptions(C=problem.C, method="corrective", lmo="sampled"))
    solution = solve_problem(binary, replace(plan, memory=replace(plan.memory, kernel_values=36)))
    assert_consistent(solution, problem)
    assert solution.status is Status.SUPPORT_LIMIT
    assert len(solution.rows) <= 24
    assert solution.certified_gap > 1e-3


@pytest.mark.parametrize("certify", [False, True])
def test_a_violator_that_no_draw_saw_is_found_by_a_pass(certify):
    """Without a pass the gap is too small, and no certificate."""
    problem = rbf(n_rows=1500, overlap=0.1)  # two well separated clouds
    problem.X[1234] = problem.X[problem.y == -1].mean(axis=0)
    problem.y[1234] = 1
    options = {"method": "cvm", "lmo": "sampled", "sample_size": 2, "seed": 1}
    solution = train(problem, certify=certify, **options)
    truth = assert_consistent(solution, problem)
    assert (1234 in solution.rows) is certify
    if certify:
        assert solution.status is Status.CONVERGED
        assert solution.certified_gap <= 1e-2
    else:
        assert solution.status is Status.SAMPLED
        assert truth.gap > max(0.5, solution.sampled_gap)


# -- badly conditioned problems ------------------------------------------------------------------


@pytest.mark.grid
@given(st.integers(0, 100_000), st.sampled_from(["corrective", "cvm"]), st.sampled_from(LMOS))
@example(50, "corrective", "sampled")
@example(388, "cvm", "full")
@example(288, "corrective", "sampled")
def test_a_rho_that_rounding_hides_ends_the_run_with_its_best_model(seed, method, lmo):
    """Kernel values are up to 1e24, so that float64 hides rho or most of the gap."""
    rng, gaps = np.random.default_rng(seed), []
    kernel = make_kernel("linear") if seed % 2 else make_kernel("poly", gamma=1.0)
    n_rows, scale = int(rng.integers(4, 60)), 10.0 ** rng.integers(2, 7)
    X = (rng.normal(size=(n_rows, int(rng.integers(1, 4)))) * scale).astype(np.float32)
    y = np.where(rng.random(n_rows) < 0.5, 1, -1).astype(np.int8)
    y[:2] = 1, -1
    problem = SmallProblem(kernel, X, y, 10.0 ** rng.integers(-4, 5))
    note = [lambda state: gaps.append(state.certified_gap)]
    solution = train(problem, method=method, lmo=lmo, callbacks=note)
    assert solution.status in (Status.CONVERGED, Status.ROUNDING)
    assert 0 < solution.rho < np.inf
    truth = problem.truth(solution.rows, solution.alpha)
    assert solution.certified_gap < np.inf
    if truth.rho > 0:  # of longdouble
        assert solution.certified_gap >= truth.gap
    least = min((gap for gap in gaps if gap is not None), default=np.inf)
    assert solution.certified_gap <= 1.05 * least


@pytest.mark.parametrize("method", grid(["cvm", "mfw", "swap", "swap2"]))
def test_steps_that_get_nowhere_end_the_run(method):
    X = 1e5 * np.random.default_rng(1).normal(size=(10, 1)).astype(np.float32)
    y = np.where(np.arange(10) % 2, -1, 1).astype(np.int8)
    problem = SmallProblem(make_kernel("linear"), X, y, 100.0)
    solution = train(problem, method=method, lmo="auto")
    gap = problem.truth(solution.rows, solution.alpha).gap
    assert gap <= solution.certified_gap < 0.1
    assert solution.status is Status.ROUNDING


# -- what callers are told -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "options", "words"),
    [
        (make_kernel("linear"), {"method": "smo"}, r"one of fw, mfw, swap, .*, not 'smo'"),
        (make_kernel("linear"), {"landmarks": 40}, "solve trains exact models"),
        ("rbf", {}, "kernel must be what ooc_fw.make_kernel returns"),
    ],
)
def test_refusals(kernel, options, words):
    problem = rbf(n_rows=40)
    with pytest.raises(InputError, match=words):
        solve(problem.X, problem.y, kernel, TrainOptions(**options))


def test_training_on_noisy_rows_ends_by_the_objective():
    """The gap of the worst row is still large then, and would take many more steps."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4000, 4)).astype(np.float32)
    y = np.where(X[:, 0] + rng.normal(size=len(X)) > 0, 1, -1).astype(np.int8)
    kernel = make_kernel("rbf", gamma=0.5)
    solution = solve(X, y, kernel, TrainOptions(C=10.0))
    assert solution.status is Status.CONVERGED
    assert len(solution.rows) > 2000
    assert 1 - solution.dual / solution.primal <= relative_target(1e-3)
    assert solution.certified_gap > 0.01
    best = solve(X, y, kernel, TrainOptions(C=10.0, tol=1e-5)).objective
    assert solution.objective * solution.dual / solution.primal <= best <= solution.objective


def unequal(kernel, C, n_rows, **how):
    """Rows of the positive class have five times the penalty of the others."""
    plain = make_problem(kernel, n_rows=n_rows, **how)
    return SmallProblem(plain.kernel, plain.X, plain.y, np.where(plain.y > 0, 5 * C, C))


def train_uncertified(problem, **options):
    options = {"lmo": "sampled", "certify": False, "C": 1.0} | options
    return train_in_session(problem, penalties=problem.C, **options)


@pytest.mark.parametrize(
    ("C", "n_rows", "max_iter", "status"),
    [(1.0, 800, 2, "max_iter"), (100.0, 1200, 2, "max_iter"), (10.0, 1000, None, "stopped")],
)
def test_a_run_that_stops_early_leaves_weights_that_are_settled(C, n_rows, max_iter, status):
    """They are nearly optimal on their own rows."""
    problem = unequal(make_kernel("rbf", gamma=5.0), C, n_rows, overlap=3)
    asked = [] if max_iter else [lambda state: state.iteration < 2]
    solution = train_uncertified(problem, callbacks=asked, max_iter=max_iter)
    assert solution.status == status
    truth = problem.truth(solution.rows, solution.alpha)
    assert solution.rho == pytest.approx(float(truth.rho), rel=1e-9)
    assert 1 - truth.gradient[solution.rows].min() / truth.rho <= 0.02


@pytest.mark.parametrize("kernel", ["rbf", "linear", "poly"])
def test_a_run_may_begin_with_a_farthest_pair(kernel):
    """Distances are those in feature space, with labels and penalties."""
    problem = unequal(make_kernel(kernel, gamma=1.0), 1.0, n_rows=90)
    solution = train_uncertified(problem, start="farthest", method="fw", max_iter=0)
    Q = problem.dual_matrix
    apart = np.diag(Q)[:, None] + np.diag(Q) - 2 * Q
    drawn = int(np.random.default_rng(0).integers(90))
    first = int(apart[drawn].argmax())
    assert sorted(solution.rows) == sorted([first, int(apart[first].argmax())])


class Stepped(Run):
    """A run whose steps the test takes."""

    def is_over(self):
        return False

    def update(self):
        return self.progress

    def weights_so_far(self):
        return self.weights


def test_a_certificate_holds_after_vertices_have_left():
    """A run that walks on all rows drops those without weight at its end."""
    problem = make_problem(make_kernel("rbf", gamma=1.0), n_rows=60)
    binary = BinaryProblem(problem.source(), problem.y, problem.kernel)
    plan = plan_exact(binary, TrainOptions(C=problem.C, method="swap2", lmo="full"), Session())
    first = np.arange(20)
    with ExitStack() as stack:
        run = Stepped(binary, plan, Session(), stack)
        run.add_vertices(first)
        run.active.set_weights(np.full(20, 1 / 20))
        run.renew()
        run.certify(1e-3)
        run.add_vertices(np.arange(20, 60))
        run.active.set_weights(np.where(run.active.ids < 40, 0.0, 1 / 20))
        run.finish_early(0.0)
        run.renew()
        certificate = run.certify(1e-3)
        support = run.active.support
        truth = problem.truth(run.active.ids[support], run.active.alpha[support])
    assert truth.gap <= certificate.certified_gap <= truth.gap * (1 + 1e-6) + 1e-6


def after(seconds):
    """A time limit of 100 s, so many seconds after the run began."""
    clock = SimpleNamespace(now=100.0)
    deadline = Deadline(100, clock.now, lambda: clock.now)
    clock.now += seconds
    return deadline


def test_a_share_of_the_time_is_kept_for_what_comes_after_training():
    assert not after(79).is_near(0.2)
    assert after(81).is_near(0.2)
    assert not after(81).is_near(0.1)


def test_a_pass_may_exceed_the_limit_by_a_tenth():
    deadline = after(90)
    assert deadline.allows_pass(19)
    assert not deadline.allows_pass(21)
    assert not deadline.pass_is_late(10, 0.4)  # 15 s to go
    assert deadline.pass_is_late(10, 0.3)  # 23 s to go
    assert not deadline.pass_is_late(1, 0.001)  # the first block may take long
