"""Classifiers for pairs of classes: each is that of its two classes alone, from any storage.

Pairs of few rows are trained on all their kernel values.
"""

import itertools
import tempfile
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw import InputError, Status, TrainOptions, make_kernel, open_dataset
from ooc_fw.data.sources import ArraySource, CSRSource
from ooc_fw.model.machines import class_pairs, places_among, union_of_rows
from ooc_fw.model.partition import partition_classes
from ooc_fw.problem import ClassificationProblem
from ooc_fw.solver.plan import Session
from ooc_fw.system.errors import OutOfTimeError
from ooc_fw.training import pairs
from ooc_fw.training.fit import fit
from tests.support.contracts import to_dense
from tests.support.files import write_dense, write_sparse
from tests.support.reference import SmallProblem, to_csr
from tests.support.strategies import SEEDS

KERNEL = make_kernel("rbf", gamma=0.5)
OPTIONS = TrainOptions(C=10.0, tol=1e-3)


@pytest.fixture(scope="module")
def blobs():
    """Four blobs that overlap, of unequal sizes."""
    rng = np.random.default_rng(0)
    codes = rng.permutation(np.repeat(np.arange(4), [30, 50, 40, 20]))
    centres = np.array([[0, 0], [2, 0], [0, 2], [2, 2]])
    X = (centres[codes] + rng.normal(size=(140, 2))).astype(np.float32)
    X[rng.random(X.shape) < 0.2] = 0
    return X, codes


def train(source, codes, options=OPTIONS, **session):
    return fit(ClassificationProblem(source, codes, KERNEL), options, Session(**session))


@pytest.mark.parametrize("in_ram", [True, False])
@pytest.mark.parametrize("write", [write_dense, write_sparse])
def test_each_classifier_is_that_of_its_two_classes(write, in_ram, blobs, tmp_path, monkeypatch):
    X, codes = blobs
    if not in_ram:
        monkeypatch.setattr("ooc_fw.model.partition._RAM_BYTES", 0)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    with open_dataset(write(tmp_path / "d.h5", X, codes.astype(float))) as source:
        fitted = train(source, codes)
    expected = train(open_dataset(X), codes)
    assert [(pair.negative, pair.positive) for pair in fitted.pairs] == class_pairs(4)
    for pair, in_array in zip(fitted.pairs, expected.pairs, strict=True):
        solution = pair.solution
        here = np.flatnonzero((codes == pair.negative) | (codes == pair.positive))
        y = np.where(codes[here] == pair.positive, 1, -1).astype(np.int8)
        brute = SmallProblem(KERNEL, X[here], y, OPTIONS.C)
        places = np.searchsorted(here, solution.rows)
        np.testing.assert_array_equal(here[places], solution.rows)
        np.testing.assert_array_equal(y[places], solution.labels)
        truth = brute.truth(places, solution.alpha)
        assert truth.gap <= solution.certified_gap <= 1e-3
        assert solution.objective == pytest.approx(brute.optimum.objective, rel=2e-3)
        if write is write_dense:  # the same arithmetic
            np.testing.assert_array_equal(solution.rows, in_array.solution.rows)
            np.testing.assert_array_equal(solution.alpha, in_array.solution.alpha)
    vectors = to_dense(fitted.model.support_vectors)
    np.testing.assert_array_equal(vectors, X[union_of_rows(fitted.pairs)])
    assert list((tmp_path / "temporary").iterdir()) == []


def test_rows_are_read_once_for_the_partition(blobs, tmp_path):
    X, codes = blobs
    with open_dataset(write_dense(tmp_path / "d.h5", X, codes.astype(float))) as source:
        problem = ClassificationProblem(source, codes, KERNEL)
        with partition_classes(problem) as partition:
            assert source.rows_read == 140
            for negative, positive in class_pairs(4):
                pair, whole = partition.pair(negative, positive)
                y = pair.labels
                np.testing.assert_array_equal(to_dense(pair.source.read(0, len(y))), X[whole])
                np.testing.assert_array_equal(codes[whole], np.where(y > 0, positive, negative))
                np.testing.assert_array_equal(places_among(whole, whole), np.arange(len(y)))
        assert source.rows_read == 140


def test_no_time_left_gives_every_pair_a_classifier(blobs):
    X, codes = blobs
    slow = [lambda state: time.sleep(0.6)]
    found = train(open_dataset(X), codes, replace(OPTIONS, max_time=0.5), callbacks=slow).pairs
    assert len(found) == 6
    assert {pair.solution.status for pair in found[1:]} == {Status.TIME_LIMIT}
    assert all(pair.solution.alpha.sum() == pytest.approx(1) for pair in found)


def test_large_pairs_come_last_and_have_the_time_that_is_left(blobs, monkeypatch):
    X, codes = blobs
    limits, sizes = [], []
    original = pairs.solve_problem

    def solve(problem, plan, *rest):
        limits.append(plan.options.max_time)
        sizes.append(problem.source.n_rows)
        return original(problem, plan, *rest)

    monkeypatch.setattr(pairs, "solve_problem", solve)
    monkeypatch.setattr(pairs, "_MOST_ROWS", 0)
    train(open_dataset(X), codes, replace(OPTIONS, max_time=600.0, exact=True))
    assert sizes == sorted(sizes)
    assert limits == sorted(limits)
    assert limits[0] <= 100 < 500 < limits[-1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"memory_limit": 100 << 20}, "limit of 100 MiB cannot be met"),
        ({"max_time": 1e-9}, "time limit of 1e-09 s was over before there was"),
    ],
)
def test_what_is_refused_before_the_first_classifier(blobs, change, message):
    X, codes = blobs
    states = []
    with pytest.raises((InputError, OutOfTimeError), match=message):
        train(open_dataset(X), codes, replace(OPTIONS, **change), callbacks=[states.append])
    assert states == []


# -- pairs of few rows --------------------------------------------------------------------------

KERNELS = [
    make_kernel("rbf", gamma=0.5),
    make_kernel("laplacian", gamma=0.3),
    make_kernel("linear"),
    make_kernel("poly", gamma=0.5, degree=3, coef0=1.0),
]


def make_classes(seed, n_classes=3, n_rows=60, kernel=KERNELS[0], sparse=False, weighted=False):
    rng = np.random.default_rng(seed)
    codes = rng.permutation(np.arange(n_rows) % n_classes)
    X = (rng.normal(size=(n_rows, 4)) + codes[:, None]).astype(np.float32)
    X[rng.random(X.shape) < 0.3] = 0
    penalties = rng.uniform(0.1, 10, n_rows) if weighted else None
    return X, ClassificationProblem(
        CSRSource(to_csr(X)) if sparse else ArraySource(X), codes, kernel, penalties
    )


@given(SEEDS, st.sampled_from(KERNELS), st.booleans(), st.booleans(), st.sampled_from([0.1, 100]))
def test_certificates_are_those_of_brute_force(seed, kernel, sparse, weighted, C):
    X, problem = make_classes(seed, kernel=kernel, sparse=sparse, weighted=weighted)
    options = TrainOptions(C=C, tol=1e-3, threads=2)
    for pair in fit(problem, options).pairs:
        solution = pair.solution
        here = np.flatnonzero(np.isin(problem.codes, [pair.negative, pair.positive]))
        y = np.where(problem.codes[here] == pair.positive, 1, -1).astype(np.int8)
        own = C if problem.penalties is None else problem.penalties[here]
        truth = SmallProblem(kernel, X[here], y, own)
        places = np.searchsorted(here, solution.rows)
        found = truth.truth(places, solution.alpha)
        assert found.gap <= solution.certified_gap <= options.tol
        assert solution.pair_gap == pytest.approx(float(found.pair_gap), abs=1e-6)
        assert (solution.alpha > 0).all()
        assert solution.alpha.sum() == pytest.approx(1, abs=1e-12)
        assert solution.objective == pytest.approx(truth.optimum.objective, rel=2e-3)
        np.testing.assert_array_equal(solution.labels, y[places])
        if weighted:
            np.testing.assert_array_equal(solution.penalties, problem.penalties[solution.rows])


@pytest.mark.parametrize(
    ("most_rows", "stopping"),
    [
        (pairs._MOST_ROWS, "relative"),
        pytest.param(pairs._MOST_ROWS, "meb", marks=pytest.mark.grid),
        pytest.param(0, "absolute", marks=pytest.mark.grid),
    ],
)
def test_threads_change_no_bit(most_rows, stopping, monkeypatch):
    """With and without classifiers of few rows, which are trained side by side either way."""
    monkeypatch.setattr(pairs, "_MOST_ROWS", most_rows)
    _, problem = make_classes(1, n_classes=5, n_rows=400)
    options = TrainOptions(C=10.0, tol=1e-4, stopping=stopping)
    one, two, three = (fit(problem, replace(options, threads=n)).pairs for n in (1, 2, 3))
    assert {pair.solution.status for pair in one} == {Status.CONVERGED}
    assert {pair.solution.lmo for pair in one} == {"sampled" if most_rows == 0 else "full"}
    for first, *others in zip(one, two, three, strict=True):
        for other in others:
            np.testing.assert_array_equal(first.solution.rows, other.solution.rows)
            np.testing.assert_array_equal(first.solution.alpha, other.solution.alpha)
            assert first.solution.certified_gap == other.solution.certified_gap


@pytest.mark.parametrize(
    "options",
    [{"method": "swap"}, {"lmo": "sampled"}, {"certify": False}, {"max_iter": 50}],
    ids=str,
)
def test_options_that_ask_for_another_way_get_it(options):
    _, problem = make_classes(2)
    chosen = {pair.solution.choice for pair in fit(problem, TrainOptions(**options)).pairs}
    assert not any("all 40 rows are vertices" in choice for choice in chosen)


def test_pairs_that_do_not_reach_the_gap_are_trained_in_another_way(monkeypatch):
    monkeypatch.setattr(pairs, "_STEPS_PER_ROW", 0)
    _, problem = make_classes(3)
    for pair in fit(problem, TrainOptions(tol=1e-3)).pairs:
        assert pair.solution.status is Status.CONVERGED
        assert pair.solution.lmo == "sampled"
        assert np.isin(problem.codes[pair.solution.rows], [pair.negative, pair.positive]).all()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("most_rows", [pairs._MOST_ROWS, 45, 0])
def test_callbacks_see_one_classifier_after_another_and_end_training(
    most_rows, threads, monkeypatch
):
    """Also where some classifiers have few rows (40) and others more (50)."""
    monkeypatch.setattr(pairs, "_MOST_ROWS", most_rows)
    codes = np.repeat(np.arange(5), [20, 20, 30, 20, 20])
    X = np.random.default_rng(0).normal(size=(len(codes), 3)).astype(np.float32)
    problem = ClassificationProblem(ArraySource(X + codes[:, None]), codes, KERNELS[0])
    seen, options = [], TrainOptions(threads=threads)
    told = Session([lambda state: seen.append((state.classifier, state.n_classifiers))])
    fit(problem, options, told)
    in_turn = [k for k, _ in itertools.groupby(seen)]
    assert sorted(in_turn) == [(k, 10) for k in range(10)]  # small ones first
    found = fit(problem, options, Session([lambda state: state.classifier < 3])).pairs
    statuses = [pair.solution.status for pair in found]
    if most_rows != 45:
        assert statuses.count(Status.CONVERGED) >= 2
    if most_rows != 45 and threads == 1:  # else some may be far ahead
        assert statuses.count(Status.STOPPED) >= 4
    assert all(len(pair.solution.alpha) > 0 for pair in found)
