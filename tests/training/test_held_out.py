"""Sigmoids from rows that no classifier has seen: which rows, and what comes of them."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw import FrankWolfeSVC, TrainOptions, make_kernel, open_dataset
from ooc_fw.model.machines import class_pairs, fit_sigmoid
from ooc_fw.problem import ClassificationProblem
from ooc_fw.training.fit import PART_TOL, choose_held_out, fit

KERNEL = make_kernel("rbf", gamma=0.5)


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


def test_sigmoids_are_those_of_classifiers_of_the_other_rows():
    """Three classes overlap; parts of the rows are taken by plain indexing."""
    rng = np.random.default_rng(0)
    codes = rng.integers(3, size=240)
    X = np.array([[0, 0], [2, 0], [0, 2]])[codes] + rng.normal(size=(240, 2))
    options = TrainOptions(C=10.0, tol=PART_TOL)
    held = choose_held_out(codes, False, np.random.default_rng(options.seed))
    rest = np.setdiff1d(np.arange(240), held)
    with open_dataset(X[rest]) as source:
        uncertified = replace(options, certify=False)
        model = fit(ClassificationProblem(source, codes[rest], KERNEL), uncertified).model
    values, known = model.decision_function(X[held]), codes[held]
    with open_dataset(X) as source:
        problem = ClassificationProblem(source, codes, KERNEL, probability=True)
        found = fit(problem, options).model.classifiers
    for k, (j, i) in enumerate(class_pairs(3)):
        here = (known == i) | (known == j)
        expected = fit_sigmoid(values[here, k], known[here] == i)
        own = found[k].sigmoid_a, found[k].sigmoid_b
        np.testing.assert_allclose(own, expected, rtol=0.01, atol=0.005)


def test_classifiers_without_probabilities_are_named(caplog):
    X = np.random.default_rng(0).normal(size=(30, 2))
    FrankWolfeSVC(probability=True, random_state=1).fit(X, np.arange(30) % 3)
    assert "probabilities of 1 of 3 classifiers (0 and 1): there they are the same" in caplog.text
