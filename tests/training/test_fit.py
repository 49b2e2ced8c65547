"""Classifiers for pairs of classes: each is that of its two classes alone, from any storage."""

import tempfile
import time
from dataclasses import replace

import numpy as np
import pytest

from ooc_fw import InputError, Status, TrainOptions, make_kernel, open_dataset
from ooc_fw.model.machines import class_pairs, places_among, union_of_rows
from ooc_fw.model.partition import partition_classes
from ooc_fw.problem import ClassificationProblem
from ooc_fw.solver.plan import Session
from ooc_fw.system.errors import OutOfTimeError
from ooc_fw.training import pairs
from ooc_fw.training.fit import fit
from tests.support.contracts import to_dense
from tests.support.files import write_dense, write_sparse
from tests.support.reference import SmallProblem

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


def test_a_pair_of_few_rows_gets_time_to_begin(blobs, monkeypatch):
    """The share of its work alone would be one ten-thousandth of the time."""
    X, codes = blobs
    X, codes = np.tile(X, (50, 1)), np.tile(codes, 50) + 2
    codes[:30] = np.arange(30) % 2  # two classes of 15 rows among thousands
    limit, shares = 100.0, []
    original = pairs.solve_problem

    def solve(problem, plan, *rest):
        shares.append(plan.options.max_time)
        return original(problem, plan, *rest)

    monkeypatch.setattr(pairs, "solve_problem", solve)
    monkeypatch.setattr(pairs, "_MOST_ROWS", 0)
    train(open_dataset(X), codes, replace(OPTIONS, max_time=limit, exact=True))
    assert shares[class_pairs(6).index((0, 1))] > limit / 200
    assert shares[class_pairs(6).index((0, 2))] < limit / 2


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
