"""Sigmoids from rows that no classifier has seen: which rows, and what comes of them."""

import signal
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ooc_fw.training.held_out
from ooc_fw import InputError, TrainOptions, make_kernel, open_dataset
from ooc_fw.model.pairs import class_pairs
from ooc_fw.model.prediction import fit_sigmoid
from ooc_fw.problem import ClassificationProblem
from ooc_fw.solver.plan import Session
from ooc_fw.system.interrupt import signal_of, terminating
from ooc_fw.training.fit import fit
from ooc_fw.training.held_out import before_calibration, choose_held_out, held_out_sigmoids

KERNEL = make_kernel("rbf", gamma=0.5)
OPTIONS = TrainOptions(C=10.0)


@given(st.lists(st.integers(2, 40), min_size=2, max_size=5), st.booleans(), st.integers(0, 9))
def test_every_row_is_held_out_once_and_every_class_stays(counts, shuffled, seed):
    rng = np.random.default_rng(seed)
    codes = rng.permutation(np.repeat(np.arange(len(counts)), counts))
    parts = choose_held_out(codes, len(counts), shuffled, rng)
    assert len(parts) == min(5, *counts)
    np.testing.assert_array_equal(
        np.sort(np.concatenate([part.rows for part in parts])), np.arange(len(codes))
    )
    for part in parts:
        assert (np.diff(part.rows) > 0).all()
        np.testing.assert_array_equal(part.judged, part.rows)  # few enough
        held = np.bincount(codes[part.rows], minlength=len(counts))
        assert (0 < held).all()
        assert (held < counts).all()
        assert (np.abs(held - np.array(counts) / len(parts)) < 1).all()


def test_of_many_rows_some_are_judged_with_the_same_share_of_each_class(monkeypatch):
    monkeypatch.setattr(ooc_fw.training.held_out, "FEW_ROWS", 100)
    monkeypatch.setattr(ooc_fw.training.held_out, "ENOUGH_ROWS", 1000)
    monkeypatch.setattr(ooc_fw.training.held_out, "ENOUGH_OF_CLASS", 10)
    codes = (np.arange(10_000) % 10 == 0).astype(np.int64)
    parts = choose_held_out(codes, 2, True, np.random.default_rng(0))
    assert [len(part.rows) for part in parts] == [5000, 5000]
    for part in parts:
        assert np.isin(part.judged, part.rows).all()
        assert np.bincount(codes[part.judged]).tolist() == [450, 50]


def test_parts_of_shuffled_rows_are_nearly_contiguous():
    codes = np.random.default_rng(0).integers(2, size=1000)
    parts = choose_held_out(codes, 2, True, np.random.default_rng(0))
    for k, part in enumerate(parts):
        inside = (part.rows >= 200 * k - 50) & (part.rows < 200 * (k + 1) + 50)
        assert inside.all()


@pytest.fixture(scope="module")
def problem():
    """Three blobs that overlap."""
    rng = np.random.default_rng(0)
    codes = rng.integers(3, size=240)
    X = np.array([[0, 0], [2, 0], [0, 2]])[codes] + rng.normal(size=(240, 2))
    return X.astype(np.float32), codes


def test_sigmoids_are_those_of_classifiers_of_the_other_rows(problem, monkeypatch):
    """The same by plain indexing, with every row held out exactly once."""
    X, codes = problem
    monkeypatch.setattr(ooc_fw.training.held_out, "PART_TOL", 1e-6)
    options = replace(OPTIONS, tol=1e-6)
    values, known = np.empty((240, 3)), codes
    for part in choose_held_out(codes, 3, False, np.random.default_rng(options.seed)):
        rest = np.setdiff1d(np.arange(240), part.rows)
        with open_dataset(X[rest]) as source:
            model = fit(ClassificationProblem(source, codes[rest], KERNEL), options).model
        values[part.rows] = model.decision_function(X[part.rows])
    with open_dataset(X) as source:
        found = held_out_sigmoids(ClassificationProblem(source, codes, KERNEL), options)
    for k, (j, i) in enumerate(class_pairs(3)):
        here = (known == i) | (known == j)
        expected = fit_sigmoid(values[here, k], known[here] == i)
        np.testing.assert_allclose(found[k], expected, rtol=0.01, atol=0.005)


def test_what_comes_before():
    source, labels = open_dataset(np.zeros((4, 1))), np.array(["a", "b"])
    problem = ClassificationProblem(source, np.array([0, 0, 0, 1]), KERNEL, None, labels)
    with pytest.raises(InputError, match="the class b has one only"):
        before_calibration(problem, OPTIONS)
    problem = replace(problem, codes=np.array([0, 0, 1, 1]))
    assert before_calibration(problem, OPTIONS) is OPTIONS
    assert before_calibration(problem, replace(OPTIONS, max_time=10.0)).max_time == 6.0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_is_passed_on(problem, number):
    X, codes = problem

    def interrupt(state):
        signal.raise_signal(number)

    with open_dataset(X) as source:
        problem = ClassificationProblem(source, codes, KERNEL)
        with terminating(), pytest.raises(KeyboardInterrupt) as raised:
            held_out_sigmoids(problem, OPTIONS, Session([interrupt]))
        assert signal_of(raised.value) == number
