"""Chunks that come by once: against the exact optimum, brute-force gaps and each other."""

import signal
from dataclasses import replace
from itertools import cycle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw import FrankWolfeSVC, Status, TrainOptions, make_kernel
from ooc_fw.data.rows import CSRRows, row_hashes
from ooc_fw.data.sources import rows_source
from ooc_fw.kernels.functions import RBF
from ooc_fw.solver.plan import Session
from ooc_fw.system.errors import DeferredInterrupt, signal_of
from ooc_fw.training.streams import Stream
from tests.support.contracts import to_dense
from tests.support.reference import SmallProblem, make_problem, to_csr

TOL = 1e-4


@pytest.fixture(scope="module")
def problem():
    return make_problem(RBF(gamma=1.0), n_rows=240, C=4.0, density=0.6, overlap=0.8)


def big_problem():
    return make_problem(RBF(gamma=1.0), n_rows=2400, C=4.0, overlap=2.0)


def open_stream(problem, keep=10_000, **options):
    options = {"C": problem.C, "tol": TOL} | options
    return Stream.new(problem.kernel, 2, TrainOptions(**options), keep)


def learn(stream, chunks, callbacks=()):
    for rows, labels in chunks:
        codes = (labels > 0).astype(np.int64)
        stream = stream.learn(rows_source(rows, "chunk"), codes, Session(callbacks))
    return stream


def solution_of(stream):
    return stream.pairs[0].solution


def cut(problem, *ends, form=np.asarray):
    """The problem's rows in chunks that end at `ends`, and at the end."""
    starts = [0, *ends]
    for start, stop in zip(starts, [*ends, len(problem.y)], strict=True):
        yield form(problem.X[start:stop]), problem.y[start:stop]


def taught(problem, *ends, epochs=1, **parameters):
    return learn(open_stream(problem, **parameters), [*cut(problem, *ends)] * epochs)


def assert_consistent(solution, problem):
    """Vectors, labels and positions belong together, and rho is that of brute force."""
    places = solution.rows % len(problem.y)
    np.testing.assert_array_equal(to_dense(solution.support_vectors), problem.X[places])
    np.testing.assert_array_equal(solution.labels, problem.y[places])
    assert (solution.alpha > 0).all()
    assert solution.alpha.sum() == pytest.approx(1, abs=1e-12)
    assert (solution.status, solution.certified_gap) == (Status.STREAMED, None)
    truth = problem.truth(places, solution.alpha)
    assert solution.rho == pytest.approx(float(truth.rho), rel=1e-9)
    return truth


@pytest.mark.parametrize("forms", [[np.asarray], [to_csr], [np.asarray, to_csr]])
@pytest.mark.parametrize("name", ["rbf", "poly", "laplacian"])
def test_chunks_that_come_again_lead_to_the_optimum(name, forms):
    """Also if kinds of rows take turns."""
    problem = make_problem(make_kernel(name, gamma=0.5), n_rows=120, C=2.0, density=0.7)
    stream, forms = open_stream(problem), cycle(forms)
    for _ in range(12):
        for X, y in cut(problem, 40, 70):
            stream = learn(stream, [(next(forms)(X), y)])
            assert solution_of(stream).sampled_gap <= TOL
        truth = assert_consistent(solution_of(stream), problem)
        if truth.gap <= TOL:
            break
    assert truth.gap <= TOL
    distance = solution_of(stream).objective - problem.optimum.objective
    assert -1e-12 <= distance <= TOL * solution_of(stream).rho


@given(ends=st.lists(st.integers(1, 239), unique=True, max_size=6).map(sorted))
def test_any_chunks(problem, ends):
    """The objective only falls, never below the optimum; the gap is that of the last chunk."""
    stream = open_stream(problem)
    before = np.inf
    start = 0
    for X, y in cut(problem, *ends):
        stream = learn(stream, [(X, y)])
        solution = solution_of(stream)
        truth = assert_consistent(solution, problem)
        seen = np.union1d(np.arange(start, start + len(y)), solution.rows)
        gap = max(0.0, float(1 - truth.gradient[seen].min() / truth.rho))
        # Vertices without weight are among what the gap is over, but forgotten here.
        assert solution.sampled_gap == pytest.approx(gap, rel=1e-3, abs=1e-7)
        # It includes a bound of rounding.
        assert solution.sampled_gap <= min(TOL, truth.gap + 1e-9)
        assert problem.optimum.objective - 1e-12 <= solution.objective <= before * (1 + 1e-9)
        before = solution.objective
        start += len(y)
    assert stream.n_rows == 240


@pytest.mark.parametrize("landmarks", [None, 40])
def test_a_chunk_begins_with_the_last_weights(landmarks):
    """Rows that it has just learned take no step, or one if they now count as earlier rows, too."""
    problem = big_problem()
    stream, states = open_stream(problem, landmarks=landmarks), []
    chunks = [*cut(problem, 400)]
    for _ in range(4):
        stream = learn(stream, chunks[:1])
    learn(stream, chunks[:1], [states.append])
    assert states[-1].iteration == (0 if landmarks is None else 1)
    cold = []
    learn(open_stream(problem, landmarks=landmarks), chunks[:1], [cold.append])
    assert cold[-1].iteration > 2


def test_equal_rows_count_once_and_by_label(problem):
    X, y = problem.X[:30], problem.y[:30]
    stream = open_stream(problem)
    twice, once, opposed = (
        solution_of(learn(stream, [chunk]))
        for chunk in (
            (np.vstack([X, X]), np.append(y, y)),
            (X, y),
            (np.vstack([X, X]), np.append(y, -y)),
        )
    )
    assert twice.objective == pytest.approx(once.objective, rel=1e-9)
    assert twice.rows.max() < 30
    assert len(opposed.rows) > 30


@pytest.mark.parametrize("density", [0.05, 0.9])
def test_columns_may_come_late(density):
    """Narrow rows before and after wide ones; what was held dense may turn sparse."""
    problem = make_problem(RBF(gamma=8.0), n_rows=150, n_features=30, density=density, C=3.0)
    problem.X[:100, 20:] = 0
    narrow = to_csr(problem.X[:100, :20]), problem.y[:100]
    wide = to_csr(problem.X[100:]), problem.y[100:]
    widest = replace(wide[0], n_features=10**6), wide[1]
    stream = learn(open_stream(problem), [narrow, wide])
    assert stream.n_features == 30
    assert_consistent(solution_of(stream), problem)
    stream = learn(stream, [narrow, wide] * 6)
    assert_consistent(solution_of(stream), problem)
    stream = learn(stream, [widest])
    assert isinstance(solution_of(stream).support_vectors, CSRRows)
    expected = solution_of(taught(problem, 100, epochs=7)).objective
    assert solution_of(stream).objective == pytest.approx(expected, rel=2 * TOL)


def test_support_stays_within_its_bound():
    problem = big_problem()
    stream = open_stream(problem, keep=60, tol=1e-3)
    active = []
    for X, y in cut(problem, 800, 1600):
        stream = learn(stream, [(X, y)], [lambda state: active.append(state.n_active)])
        assert len(solution_of(stream).alpha) <= 60
        assert_consistent(solution_of(stream), problem)
        assert solution_of(stream).sampled_gap is None, "some rows of the chunk are left out"
    assert max(active) <= 60 + 512


def test_beyond_the_bound_the_model_is_that_of_a_random_share():
    """The same share in any order, and solved exactly once its rows have come by often enough.

    Outliers, which weigh most, are not what is kept.
    """
    problem = big_problem()
    supports = []
    for order in (np.arange(2400), np.argsort(problem.y, kind="stable")):
        shuffled = SmallProblem(problem.kernel, problem.X[order], problem.y[order], problem.C)
        stream = taught(shuffled, 700, 1500, epochs=6, keep=80)
        admitted = np.flatnonzero(row_hashes(to_csr(shuffled.X)) <= stream.shares[0] * 2.0**64)
        share = SmallProblem(problem.kernel, shuffled.X[admitted], shuffled.y[admitted], problem.C)
        assert 64 <= len(admitted) < 400
        assert solution_of(stream).objective == pytest.approx(share.optimum.objective, rel=1e-3)
        supports.append({*order[solution_of(stream).rows % 2400].tolist()})
    assert len(supports[0] & supports[1]) > 0.7 * len(supports[0])


@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_chunk_has_a_time_limit(n_classes, caplog):
    """The model before stays nearly as it was, and new rows are hardly learned."""
    X = big_problem().X
    y = np.digitize(X[:, 0], [0.0, 0.5][: n_classes - 1])
    own = FrankWolfeSVC(C=1e4, tol=1e-6, max_time=60)
    own.partial_fit(X[:500], y[:500], classes=np.arange(n_classes))
    before = own.score(X[:500], y[:500])
    assert (own.model_.status, own.gap_scope_, own.model_.n_rows) == ("streamed", "chunk", 500)
    own.set_params(max_time=1e-6).partial_fit(X[500:], y[500:])
    assert "the time limit was over" in caplog.text
    assert (own.model_.status, own.model_.n_rows) == ("unsettled", len(X))
    assert own.score(X[:500], y[:500]) > before - 0.1


def test_a_signal_between_the_runs_of_a_chunk_is_not_lost(problem):
    interrupt = DeferredInterrupt()
    interrupt.noted = signal.SIGTERM  # while the statistics of a chunk were computed
    rows, labels = next(cut(problem))
    source = rows_source(rows, "chunk")
    with pytest.raises(KeyboardInterrupt) as raised:
        open_stream(problem).learn(source, (labels > 0) * 1, Session(interrupt=interrupt))
    assert signal_of(raised.value) == signal.SIGTERM


@pytest.mark.parametrize(("keep", "C"), [(20, 4.0), (10_000, 40.0)])
def test_bound_and_penalty_may_change(problem, keep, C):
    """A larger bound lets all rows in again."""
    stream = taught(problem, keep=keep)
    assert len(solution_of(stream).alpha) <= keep
    other = SmallProblem(problem.kernel, problem.X, problem.y, C)
    stream = learn(stream.changed(TrainOptions(C=C, tol=TOL), 10_000), cut(other))
    assert assert_consistent(solution_of(stream), other).gap <= TOL


# -- landmarks -------------------------------------------------------------------------------------


def clouds(n_classes, n_rows=6000):
    """Classes that overlap, in random order; and their places."""
    rng = np.random.default_rng(3)
    y = rng.integers(n_classes, size=n_rows)
    centres = rng.normal(size=(n_classes, 5))
    return (centres[y] + 0.6 * rng.normal(size=(n_rows, 5))).astype(np.float32), y


def spanned(n_classes, n_landmarks=60, **options):
    options = {"C": 5.0, "landmarks": n_landmarks} | options
    return Stream.new(RBF(gamma=0.3), n_classes, TrainOptions(**options), 10_000)


def right(stream, X, y):
    """Share of rows that the model gets right."""
    model = stream.model(np.arange(stream.n_classes), None)
    return np.mean(model.predict(X) == y)


@pytest.mark.parametrize("n_classes", [2, 4])
def test_landmarks_learn_from_chunks_as_from_all_rows(n_classes):
    X, y = clouds(n_classes)
    test = slice(4000, None)
    whole = spanned(n_classes).learn(rows_source(X[:4000], "all"), y[:4000])
    stream = spanned(n_classes)
    shares = []
    for start in range(0, 4000, 400):
        part = slice(start, start + 400)
        stream = stream.learn(
            rows_source(to_csr(X[part]) if start == 800 else X[part], "d"), y[part]
        )
        shares.append(right(stream, X[test], y[test]))
        assert stream.landmarks.status is Status.STREAMED
        assert (stream.landmarks.certified_gap, stream.landmarks.primal) == (None, None)
    assert stream.n_rows == 4000
    assert min(shares) >= shares[0] - 0.01
    assert shares[-1] >= right(whole, X[test], y[test]) - 0.01
    assert stream.landmarks.rows.max() < 400, "the landmarks are those of the first chunk"


def test_an_update_has_the_least_sum_of_what_the_guide_names():
    """The objective by brute force: in float64, without any code of the package."""
    X, y = clouds(2, 900)
    before = spanned(2, tol=1e-6).learn(rows_source(X[:600], "d"), y[:600])
    after = before.learn(rows_source(X[600:], "d"), y[600:])
    Z = before.landmarks.landmarks.astype(np.float64)
    n = len(Z)

    def values(rows):
        squares = ((rows[:, None].astype(np.float64) - Z) ** 2).sum(axis=2)
        return np.exp(-0.3 * squares) + 1

    K = values(np.vstack([Z, X[600:]]))
    G = K[:n] + before.landmarks.jitter * np.eye(n)
    b0 = before.landmarks.beta[0]
    labels = np.append(np.sign(K[:n] @ b0), 2 * y[600:] - 1)
    C = np.append(np.full(n, 5.0 * 600 / (2 * n)), np.full(300, 5.0))

    def pull(b, part):
        slack = np.maximum(0, 1 - labels[part] * (K[part] @ b))
        return K[part].T @ (C[part] * slack * labels[part])

    origin = b0 - np.linalg.solve(G, pull(b0, slice(n)))

    def objective(b, part=slice(None)):
        slack = np.maximum(0, 1 - labels[part] * (K[part] @ b))
        return 0.5 * (b - origin) @ G @ (b - origin) + 0.5 * (C[part] * slack**2).sum()

    least = 0.99 * objective(b0, slice(n))
    b = after.landmarks.beta[0]
    best = b.copy()
    for _ in range(50):  # Newton's method
        inside = labels * (K @ best) < 1
        H = G + (K[inside].T * C[inside]) @ K[inside]
        best += np.linalg.solve(H, pull(best, slice(None)) - G @ (best - origin))
    gap = (objective(b) - objective(best)) / (objective(b) - least)
    assert -1e-9 <= gap <= after.landmarks.sampled_gap[0] + 1e-9 <= 1e-5
    # Without new rows the weights before are the best ones.
    np.testing.assert_allclose(pull(b0, slice(n)), G @ (b0 - origin), atol=1e-8)
    assert objective(best) < 0.9 * objective(b0) + 0.1 * least


def test_rows_beyond_the_margin_change_nothing():
    X, y = clouds(2)
    before = spanned(2).learn(rows_source(X[:3000], "d"), y[:3000])
    model = before.model(np.arange(2), None)
    values = model.decision_function(X[3000:])
    clear = 3000 + np.flatnonzero(np.where(y[3000:] == 1, values, -values) > 1.01)
    assert len(clear) > 100
    after = before.learn(rows_source(X[clear], "d"), y[clear])
    np.testing.assert_allclose(after.landmarks.beta, before.landmarks.beta, rtol=1e-6, atol=1e-6)
    assert after.n_rows == 3000 + len(clear)


def test_landmarks_are_added_for_a_class_that_comes_late():
    X, y = clouds(3)
    early, late = y[:3000] < 2, slice(3000, 4000)
    before = spanned(3).learn(rows_source(X[:3000][early], "d"), y[:3000][early])
    more = before.changed(TrainOptions(C=5.0, landmarks=120), 10_000)
    after = more.learn(rows_source(X[late], "d"), y[late])
    assert len(before.landmarks.rows) <= 60 < len(after.landmarks.rows) <= 120
    places = after.landmarks.rows[after.landmarks.rows >= before.n_rows]
    rows = X[late][places - before.n_rows]
    np.testing.assert_array_equal(rows, to_dense(after.landmarks.landmarks)[-len(places) :])
    assert right(after, X[4000:], y[4000:]) > right(before, X[4000:], y[4000:]) + 0.2
    assert np.bincount(after.support_codes(), minlength=3)[2] > 0


def test_a_signal_within_a_chunk_leaves_the_landmarks_as_they_were():
    X, y = clouds(2)
    before = spanned(2).learn(rows_source(X[:3000], "d"), y[:3000])

    def stop(state):
        raise KeyboardInterrupt(signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt) as raised:
        before.learn(rows_source(X[3000:], "d"), y[3000:], Session((stop,)))
    assert signal_of(raised.value) == signal.SIGTERM
    with pytest.raises(KeyboardInterrupt):
        before.learn(rows_source(X[3000:], "d"), y[3000:], Session((lambda state: False,)))
