"""Sigmoids from rows that no classifier has seen: which rows, and what comes of them."""

import signal
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw import TrainOptions, make_kernel, open_dataset
from ooc_fw.model.machines import class_pairs, fit_sigmoid
from ooc_fw.problem import ClassificationProblem
from ooc_fw.solver.plan import Session
from ooc_fw.system.errors import signal_of
from ooc_fw.training.fit import PART_TOL, before_calibration, calibrated, choose_held_out, fit

KERNEL = make_kernel("rbf", gamma=0.5)
OPTIONS = TrainOptions(C=10.0)


@given(st.lists(st.integers(2, 40), min_size=2, max_size=5), st.booleans(), st.integers(0, 9))
def test_half_of_every_class_is_held_out(counts, shuffled, seed):
    rng = np.random.default_rng(seed)
    codes = rng.permutation(np.repeat(np.arange(len(counts)), counts))
    rows = choose_held_out(codes, shuffled, rng)
    assert (np.diff(rows) > 0).all()
    held = np.bincount(codes[rows], minlength=len(counts))
    assert (0 < held).all()
    assert (held < counts).all()
    assert (np.abs(held - np.array(counts) / 2) < 1).all()


def test_of_many_rows_some_are_held_out_with_the_same_share_of_each_class():
    codes = (np.arange(1_000_000) % 10 == 0).astype(np.int64)
    rows = choose_held_out(codes, True, np.random.default_rng(0))
    assert np.bincount(codes[rows]).tolist() == [90_000, 10_000]


@pytest.fixture(scope="module")
def problem():
    """Three blobs that overlap."""
    rng = np.random.default_rng(0)
    codes = rng.integers(3, size=240)
    X = np.array([[0, 0], [2, 0], [0, 2]])[codes] + rng.normal(size=(240, 2))
    return X.astype(np.float32), codes


def test_sigmoids_are_those_of_classifiers_of_the_other_rows(problem):
    """The same by plain indexing."""
    X, codes = problem
    options = replace(OPTIONS, tol=PART_TOL)
    held = choose_held_out(codes, False, np.random.default_rng(options.seed))
    rest = np.setdiff1d(np.arange(240), held)
    with open_dataset(X[rest]) as source:
        uncertified = replace(options, certify=False)
        model = fit(ClassificationProblem(source, codes[rest], KERNEL), uncertified).model
    values, known = model.decision_function(X[held]), codes[held]
    with open_dataset(X) as source:
        final = fit(ClassificationProblem(source, codes, KERNEL), options)
        found = calibrated(final, options, Session()).classifiers
    for k, (j, i) in enumerate(class_pairs(3)):
        here = (known == i) | (known == j)
        expected = fit_sigmoid(values[here, k], known[here] == i)
        own = found[k].sigmoid_a, found[k].sigmoid_b
        np.testing.assert_allclose(own, expected, rtol=0.01, atol=0.005)


def test_calibration_has_a_share_of_the_time():
    problem = ClassificationProblem(open_dataset(np.zeros((4, 1))), np.arange(4) % 2, KERNEL)
    assert before_calibration(problem, OPTIONS) is OPTIONS
    assert before_calibration(problem, replace(OPTIONS, max_time=10.0)).max_time == 6.0


def test_an_interrupt_is_passed_on(problem):
    X, codes = problem

    def interrupt(state):
        signal.raise_signal(signal.SIGINT)

    with open_dataset(X) as source:
        final = fit(ClassificationProblem(source, codes, KERNEL), OPTIONS)
        with pytest.raises(KeyboardInterrupt) as raised:
            calibrated(final, OPTIONS, Session([interrupt]))
        assert signal_of(raised.value) == signal.SIGINT
