"""Machines for pairs of classes: each is that of its two classes alone, from any storage."""

import tempfile
import time
from dataclasses import replace

import numpy as np
import pytest

import ooc_fw.training.one_versus_one
from ooc_fw.data.rows import CSRRows
from ooc_fw.data.sources import open_source
from ooc_fw.kernels.functions import make_kernel
from ooc_fw.model.pairs import class_pairs, union_of_rows
from ooc_fw.options import TrainOptions
from ooc_fw.problem import Problem
from ooc_fw.solver.session import Session
from ooc_fw.solver.state import Status
from ooc_fw.system.errors import InputError, OutOfTimeError
from ooc_fw.testing.contracts import to_dense
from ooc_fw.testing.files import write_dense, write_sparse
from ooc_fw.testing.reference import SmallProblem
from ooc_fw.training.one_versus_one import solve_classes, split_classes, support_vectors_of

KERNEL = make_kernel("rbf", gamma=0.5)
OPTIONS = TrainOptions(C=10.0, tol=1e-3)


@pytest.fixture(scope="module")
def problem():
    """Four blobs that overlap, of unequal sizes."""
    rng = np.random.default_rng(0)
    codes = rng.permutation(np.repeat(np.arange(4), [30, 50, 40, 20]))
    centres = np.array([[0, 0], [2, 0], [0, 2], [2, 2]])
    X = (centres[codes] + rng.normal(size=(140, 2))).astype(np.float32)
    X[rng.random(X.shape) < 0.2] = 0
    return X, codes


def solve(source, codes, options=OPTIONS, **session):
    return solve_classes(Problem(source, codes, KERNEL), options, Session(**session))


def check_machines(pairs, X, codes, tol=1e-3):
    """Each machine against brute force on the rows of its classes."""
    assert [(pair.negative, pair.positive) for pair in pairs] == class_pairs(4)
    for pair in pairs:
        solution = pair.solution
        here = np.flatnonzero((codes == pair.negative) | (codes == pair.positive))
        y = np.where(codes[here] == pair.positive, 1, -1).astype(np.int8)
        brute = SmallProblem(KERNEL, X[here], y, OPTIONS.C)
        places = np.searchsorted(here, solution.rows)
        np.testing.assert_array_equal(here[places], solution.rows)
        np.testing.assert_array_equal(y[places], solution.labels)
        truth = brute.truth(places, solution.alpha)
        assert truth.gap <= solution.certified_gap <= tol
        assert solution.objective == pytest.approx(brute.optimum.objective, rel=2 * tol)


@pytest.mark.parametrize("in_ram", [True, False])
@pytest.mark.parametrize("write", [write_dense, write_sparse])
def test_each_machine_is_that_of_its_two_classes(write, in_ram, problem, tmp_path, monkeypatch):
    X, codes = problem
    if not in_ram:
        monkeypatch.setattr(ooc_fw.training.one_versus_one, "_RAM_BYTES", 0)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    with open_source(write(tmp_path / "d.h5", X, codes.astype(float))) as source:
        pairs = solve(source, codes)
        check_machines(pairs, X, codes)
        vectors = support_vectors_of(source, pairs)
        table = vectors.toarray() if isinstance(vectors, CSRRows) else vectors
        np.testing.assert_array_equal(table, X[union_of_rows(pairs)])
    assert list((tmp_path / "temporary").iterdir()) == []


def test_storage_makes_no_difference(problem, tmp_path, monkeypatch):
    X, codes = problem
    expected = solve(open_source(X), codes)
    monkeypatch.setattr(ooc_fw.training.one_versus_one, "_RAM_BYTES", 0)
    with open_source(write_dense(tmp_path / "d.h5", X, codes.astype(float))) as source:
        for pair, other in zip(solve(source, codes), expected, strict=True):
            np.testing.assert_array_equal(pair.solution.rows, other.solution.rows)
            np.testing.assert_array_equal(pair.solution.alpha, other.solution.alpha)


def test_rows_are_read_once_to_be_set_apart(problem, tmp_path):
    X, codes = problem
    with open_source(write_dense(tmp_path / "d.h5", X, codes.astype(float))) as source:
        with split_classes(source, codes, 4) as split:
            assert source.rows_read == 140
            for negative, positive in class_pairs(4):
                pair = split.pair(negative, positive)
                rows, y = np.arange(pair.source.n_rows), pair.labels
                whole = pair.whole_rows(rows)
                np.testing.assert_array_equal(to_dense(pair.source.read(0, len(y))), X[whole])
                np.testing.assert_array_equal(codes[whole], np.where(y > 0, positive, negative))
                np.testing.assert_array_equal(pair.pair_rows(whole), rows)
        assert source.rows_read == 140


def test_two_classes_are_one_run(problem):
    X, codes = problem
    here = codes < 2
    (pair,) = solve_classes(Problem(open_source(X[here]), codes[here], KERNEL), OPTIONS)
    assert pair.solution.certified_gap <= 1e-3


def test_no_time_left_gives_every_pair_a_machine(problem):
    X, codes = problem
    slow = [lambda state: time.sleep(0.6)]
    pairs = solve(open_source(X), codes, replace(OPTIONS, max_time=0.5), callbacks=slow)
    assert len(pairs) == 6
    assert {pair.solution.status for pair in pairs[1:]} == {Status.TIME_LIMIT}
    assert all(pair.solution.alpha.sum() == pytest.approx(1) for pair in pairs)


def test_no_time_to_set_rows_apart(problem):
    X, codes = problem
    with pytest.raises(OutOfTimeError, match="time limit of 1e-09 s was over before there was a"):
        solve(open_source(X), codes, replace(OPTIONS, max_time=1e-9))


def test_an_interrupt_gives_every_pair_a_machine(problem):
    X, codes = problem
    machines = []

    def stop_in_the_third(state):
        machines.append(state.machine)
        assert state.n_machines == 6
        return state.machine != 2

    pairs = solve(open_source(X), codes, callbacks=[stop_in_the_third])
    statuses = [str(pair.solution.status) for pair in pairs]
    assert statuses == ["converged"] * 2 + ["interrupted"] * 4


def test_checkpoints_are_for_two_classes(problem, tmp_path):
    X, codes = problem
    with pytest.raises(InputError, match="array has 4 classes, and checkpoints hold a run of two"):
        solve(open_source(X), codes, resume=tmp_path / "run.ckpt")


def test_a_full_disk_is_noticed_before_rows_are_set_apart(problem, tmp_path, monkeypatch):
    X, codes = problem
    monkeypatch.setattr(ooc_fw.training.one_versus_one, "_RAM_BYTES", 0)
    monkeypatch.setattr(ooc_fw.training.one_versus_one, "_SPARE_DISK", 1e15)
    with open_source(write_dense(tmp_path / "d.h5", X, codes.astype(float))) as source:
        with pytest.raises(InputError, match=r"d\.h5 has 4 classes.* MiB are free; .*TMPDIR"):
            solve(source, codes)


def test_a_memory_limit_is_refused_before_the_first_machine(problem):
    X, codes = problem
    states = []
    with pytest.raises(InputError, match=r"memory limit of 100 MiB cannot be met"):
        solve(
            open_source(X),
            codes,
            replace(OPTIONS, memory_limit=100 << 20),
            callbacks=[states.append],
        )
    assert states == []
