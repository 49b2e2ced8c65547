"""Landmark models against brute force: gap and its bound on all kinds of rows, and ways to end."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ooc_fw import InputError, Status, TrainOptions, make_kernel, open_dataset
from ooc_fw.data.sources import ArraySource, CSRSource
from ooc_fw.kernels.engine import Engine
from ooc_fw.landmarks import LandmarkStart
from ooc_fw.landmarks.certificate import exact_dual
from ooc_fw.landmarks.readings import SpanProblem
from ooc_fw.problem import ClassificationProblem, NoveltyProblem, relative_target
from ooc_fw.solver.plan import Session
from tests.support.landmarks import solve_landmarks, solved, span_objectives, span_values
from tests.support.methods import grid
from tests.support.reference import kernel_values, to_csr
from tests.support.strategies import SEEDS

KERNELS = {
    "rbf": make_kernel("rbf", gamma=0.3),
    "poly": make_kernel("poly", gamma=0.2, coef0=1.0, degree=2),
    "laplacian": make_kernel("laplacian", gamma=0.2),
    "linear": make_kernel("linear"),
}


def noisy(n_rows, n_classes=2, n_features=6):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_rows, n_features)).astype(np.float32)
    scores = X[:, :n_classes] + rng.normal(size=(n_rows, n_classes))
    return X, scores.argmax(axis=1).astype(np.int64)


def gaussian(X, codes):
    return ClassificationProblem(open_dataset(X), codes, KERNELS["rbf"])


def solve(problem, n_landmarks, *, warm=None, session=None, threads=2, kept_bytes=0, **options):
    options = TrainOptions(threads=threads, **options)
    return solve_landmarks(problem, n_landmarks, options, session or Session(), warm, kept_bytes)


def objectives(solution, X, signs, C, kernel, bias=1):
    """P and D* of each classifier, by the formulas."""
    values = span_values(kernel, X, solution.landmarks, solution.jitter, bias)
    return span_objectives(*values, solution.beta, signs, np.broadcast_to(C, len(X)))


@pytest.mark.parametrize(
    ("name", "n_rows", "n_classes", "sparse"),
    [
        *(("rbf", 3000, 3, False), ("poly", 600, 2, True), ("linear", 300, 3, True)),
        *(("laplacian", 600, 3, False), ("rbf", 300, 2, True)),
    ],
)
def test_models_are_certified(name, n_rows, n_classes, sparse):
    """Also from landmarks that are given, and with penalties of rows."""
    X, codes = noisy(n_rows, n_classes)
    weights, kernel = np.random.default_rng(1).uniform(0.5, 5, n_rows), KERNELS[name]
    source = CSRSource(to_csr(X)) if sparse else ArraySource(X)
    problem = ClassificationProblem(source, codes, kernel)
    signs = np.where(codes[:, None] == np.arange(n_classes)[n_classes == 2 :], 1, -1)
    first = solve(problem, 30, C=0.5)
    start = LandmarkStart(first.rows, np.zeros_like(first.beta))
    again = solve(problem, 30, C=20, warm=start)
    other = solve(ClassificationProblem(source, codes, kernel, weights), 30, warm=start)
    for own, C in ((first, 0.5), (again, 20), (other, weights)):
        if name == "linear":  # one landmark more than there are columns spans everything
            assert len(own.rows) <= 7
        else:
            np.testing.assert_array_equal(own.rows, start.rows)
        assert own.status is Status.CONVERGED
        primal, dual = objectives(own, X, signs, C, kernel)
        assert (own.primal >= primal).all()
        assert (own.dual <= dual).all()
        assert (own.certified_gap <= relative_target(1e-3)).all()
        np.testing.assert_allclose(own.primal, primal, rtol=1e-4)
        np.testing.assert_allclose(own.dual, dual, rtol=1e-4)


@pytest.mark.parametrize("dask", [None, "threads"])
def test_threads_agree(dask, tmp_path):
    X, codes = noisy(3000, 3)
    np.save(tmp_path / "X.npy", X)
    problem = gaussian(str(tmp_path / "X.npy"), codes)
    here = solve(problem, 20, threads=1)
    there = solve(problem, 20, session=Session(dask=dask))
    np.testing.assert_allclose(here.beta, there.beta, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(here.certified_gap, there.certified_gap, rtol=1e-6)


class SmallBlocks(ArraySource):
    """Rows that are read 500 at a time."""

    def rows_in(self, n_bytes):
        return 500


@pytest.mark.parametrize(("kernel", "n_classes"), [("rbf", 3), ("laplacian", 2), ("poly", 2)])
def test_kept_kernel_values_spare_work_and_change_no_result(kernel, n_classes):
    """None, those of half of the blocks, or all; the last gradient is from float64 either way."""
    X, codes = noisy(4000, n_classes)
    problem = ClassificationProblem(SmallBlocks(X), codes, KERNELS[kernel])
    solutions = [
        solve(problem, 40, C=5, kept_bytes=2 * 40 * n_rows, threads=1 + n_rows % 2)
        for n_rows in (0, 2001, 4000)
    ]
    for solution in solutions:
        assert solution.status is Status.CONVERGED
        assert (solution.dual <= solutions[0].primal).all()
        np.testing.assert_allclose(solution.primal, solutions[0].primal, rtol=2e-3)
    counts = [solution.kernel_evaluations for solution in solutions]
    assert counts == sorted(counts, reverse=True)
    assert (counts[2] < counts[1] < counts[0]) == (kernel != "poly")


# -- ways to end ---------------------------------------------------------------------------------


@pytest.mark.parametrize("max_iter", [1, 2, 6])
def test_limits_end_a_run_with_its_best_weights(max_iter):
    X, codes = noisy(3000)
    solution = solve(gaussian(X, codes), 30, max_iter=max_iter, tol=1e-9)
    assert (solution.status, solution.iterations) == (Status.MAX_ITER, max_iter)
    primal, dual = objectives(solution, X, 2 * codes[:, None] - 1, 1.0, KERNELS["rbf"])
    assert dual[0] * (1 - 1e-8) <= primal[0] < len(X) / 2  # that of no weights
    assert solution.primal[0] >= primal[0]
    assert solution.certified_gap[0] >= (primal[0] - dual[0]) / primal[0] - 1e-15


@pytest.mark.parametrize(("n_rows", "n_classes"), grid([(150, 2), (3000, 3)], quick=1))
def test_a_run_may_be_stopped_at_any_call(n_rows, n_classes):
    """Within steps over all rows too; the smallest set has no sample."""
    X, codes = noisy(n_rows, n_classes)
    problem, calls = gaussian(X, codes), []
    whole = solve(problem, 20, tol=1e-7, C=3, session=Session([calls.append]))
    reads = [state.rows_read for state in calls]
    assert reads == sorted(reads)
    assert reads[-1] <= whole.rows_read
    assert {state.n_support for state in calls} == {10, 20}
    assert calls[-1].certified_gap == pytest.approx(max(whole.certified_gap), rel=1e-6)
    # Within the last calls, a run has converged.
    for last in np.linspace(0, len(calls) - 4, 5).astype(int).tolist():
        left = iter(range(last))
        session = Session([lambda state, left=left: next(left, None) is not None])
        stopped = solve(problem, 20, tol=1e-7, C=3, session=session)
        assert stopped.status is Status.STOPPED
        assert stopped.beta.shape[1] == len(stopped.rows)
        np.testing.assert_array_equal(stopped.landmarks, X[stopped.rows])


# -- badly conditioned problems ------------------------------------------------------------------


def least_primal(solution, X, y, C, kernel, bias):
    """Upper bound on the least P in the span, by Newton steps in extended precision."""
    K, G = span_values(kernel, X, solution.landmarks, solution.jitter, bias)
    best, b = np.inf, solution.beta[0].astype(G.dtype)
    for _ in range(5):
        xi = np.maximum(0, 1 - y * (K @ b))
        best = min(best, b @ G @ b / 2 + (C * xi**2).sum() / 2)
        H = (K[xi > 0].T * C[xi > 0]) @ K[xi > 0]
        with np.errstate(divide="ignore", invalid="ignore"):
            step = solved(G + H, K.T @ (C * xi * y) - G @ b)
        if not np.isfinite(step).all():  # H outweighs G by more than the digits there are
            break
        b = b + step
    return best


def extreme(trouble, seed):
    """Rows and classes of one of several kinds of trouble."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 150))
    X = rng.normal(size=(n, int(rng.integers(1, 8)))).astype(np.float32)
    codes = (X[:, 0] + rng.normal(size=n) > 0).astype(np.int64)
    if trouble == "large":
        X *= np.float32(1e3)
    elif trouble == "repeated":
        X = X[rng.integers(0, max(1, n // 10), n)]
    elif trouble == "apart":
        X[:, 0] += np.float32(100) * (2 * codes - 1)
    elif trouble == "one column":
        X[:, 0] *= np.float32(1e3)
    elif trouble == "one of a class":
        codes[:] = 0
    elif trouble == "sparse":
        X = np.where(rng.random((n, 300)) < 0.02, rng.normal(size=(n, 300)), 0).astype(np.float32)
    codes[0], codes[-1] = 0, 1
    return X, codes


TROUBLES = "plain", "large", "repeated", "apart", "one column", "one of a class", "sparse"
STEEP = make_kernel("rbf", gamma=1e4)
CUBIC = make_kernel("poly", gamma=1.0, coef0=1.0, degree=3)
HARD_KERNELS = [
    *(make_kernel("rbf", gamma=1e-8), make_kernel("rbf", gamma=0.5), STEEP, CUBIC),
    *(make_kernel("laplacian", gamma=1e-3), make_kernel("linear")),
]


@example("apart", CUBIC, 0.01, 6, 24, 10602, False)  # steps with float32 values never end
@example("apart", CUBIC, 1e8, 0, 7, 1, False)
@example("plain", STEEP, 1e-6, 0, 1, 4228, False)  # nothing to learn with the one landmark
@given(
    *(st.sampled_from(TROUBLES), st.sampled_from(HARD_KERNELS)),
    *(st.sampled_from([1e-6, 1e-2, 1.0, 1e3, 1e8]), st.sampled_from([0, 6])),
    *(st.integers(1, 60), SEEDS, st.booleans()),
)
def test_a_reported_gap_is_never_smaller_than_the_true_one(
    trouble, kernel, C, decades, n_landmarks, seed, novelty
):
    X, codes = extreme(trouble, seed)
    penalties = C * 10 ** np.random.default_rng(seed).uniform(-decades, decades, len(X))
    source = CSRSource(to_csr(X)) if trouble == "sparse" else ArraySource(X)
    problem = ClassificationProblem(source, codes, kernel, penalties)
    signs, bias = 2 * codes[:, None] - 1, 1
    if novelty:
        problem, signs, bias = NoveltyProblem(source, kernel, penalties), np.ones_like(signs), 0
    try:
        solution = solve(problem, n_landmarks, threads=1)
    except InputError:  # labels cancel each other at the landmarks, which may be all rows
        K = kernel_values(kernel, X, X) + bias
        cancelled = abs(K @ (penalties * signs[:, 0])) <= 1e-6 * (abs(K) @ penalties)
        assert np.count_nonzero(cancelled) >= min(n_landmarks, len(X))
        return
    primal, _ = objectives(solution, X, signs, penalties, kernel, bias)
    assert solution.primal[0] >= primal[0]
    assert solution.dual[0] <= least_primal(solution, X, signs[:, 0], penalties, kernel, bias)
    gap = (solution.primal - solution.dual) / solution.primal
    assert solution.certified_gap[0] == gap[0]
    assert solution.status in (Status.CONVERGED, Status.ROUNDING)
    if solution.status is Status.CONVERGED:
        assert gap[0] <= relative_target(1e-3)


def make_case(kernel, sparse=False, bias=1, inside=1.0):
    rng, n_rows, k = np.random.default_rng(0), 300, 2
    X = rng.normal(size=(n_rows, 4)).astype(np.float32)
    source = CSRSource(to_csr(X)) if sparse else open_dataset(X)
    signs = rng.choice([-1, 1], (n_rows, k)).astype(np.int8)
    problem = SpanProblem(source, signs, rng.uniform(0.5, 5, n_rows), bias=bias)
    decisions = (signs * rng.uniform(inside - 1, 2, (n_rows, k))).astype(np.float32)
    return X, problem, decisions, make_kernel(kernel, gamma=0.3, degree=2, coef0=1.0)


def dual_by_definition(X, problem, decisions, kernel):
    """D of the best multiple of beta, in extended precision."""
    y, C = problem.targets, problem.penalties[:, None]
    beta = C * np.maximum(0, 1 - y * decisions.astype(np.longdouble))
    v = ((beta * y) * ((kernel_values(kernel, X, X) + problem.bias) @ (beta * y))).sum(axis=0)
    return beta.sum(axis=0) ** 2 / (v + (beta**2 / C).sum(axis=0)) / 2


@pytest.mark.parametrize(
    ("kernel", "sparse", "part_rows", "bias"),
    [
        *(("rbf", False, 17, 1), ("rbf", True, 8192, 0), ("poly", True, 17, 1)),
        *(("laplacian", False, 8192, 1), ("poly", False, 17, 0)),
    ],
)
def test_bound_is_close_below_the_dual_objective(kernel, sparse, part_rows, bias, monkeypatch):
    monkeypatch.setattr("ooc_fw.landmarks.certificate._PART_ROWS", part_rows)
    X, problem, decisions, own = make_case(kernel, sparse, bias)
    expected = dual_by_definition(X, problem, decisions, own)
    with Engine(own, 2) as engine:
        found = exact_dual(problem, decisions, engine)
        inside = np.count_nonzero((problem.targets * decisions < 1).any(axis=1))
        assert inside * (inside + 1) // 2 <= engine.evaluations <= inside**2
    assert (found <= expected).all()
    np.testing.assert_allclose(found, expected.astype(float), rtol=1e-3)


def test_no_row_inside_the_margin_is_no_bound():
    _, problem, decisions, own = make_case("rbf", inside=3.0)
    with Engine(own) as engine:
        assert exact_dual(problem, decisions, engine).tolist() == [0, 0]
