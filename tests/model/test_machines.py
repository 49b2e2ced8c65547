"""Votes of binary classifiers, and their probabilities: by definition and by brute force."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import minimize

from ooc_fw import Status
from ooc_fw.model.machines import (
    class_pairs,
    class_probabilities,
    class_scores,
    fit_sigmoid,
    is_decided,
    sigmoid,
    worst_status,
)
from tests.support.strategies import SEEDS


@given(arrays(np.float64, (6,), elements=st.floats(-3, 3, width=16)))
def test_scores_against_definition(values):
    pairs = class_pairs(4)
    assert pairs == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    votes, sums = [0] * 4, [0.0] * 4
    for (negative, positive), value in zip(pairs, values, strict=True):
        votes[positive if value > 0 else negative] += 1
        sums[positive] += value
        sums[negative] -= value
    (scores,) = class_scores(values[None], 4)
    assert np.rint(scores).tolist() == votes
    order = sorted(range(4), key=lambda k: (votes[k], sums[k]))
    assert (np.diff(scores[order]) >= -1e-12).all()


def test_one_status_for_all():
    """That of an interrupt, or of the first classifier that stopped early."""
    order = "max_iter", "time_limit", "interrupted", "sampled", "converged"
    statuses = [Status(status) for status in order]
    worst = [worst_status(statuses[k:]) for k in range(5)]
    assert worst == ["interrupted", "interrupted", "interrupted", "sampled", "converged"]
    assert worst_status(statuses[:2]) == "max_iter"


@given(st.integers(2, 5), st.sampled_from([0.0, 1e-3, 0.3, 3.0]), SEEDS, st.booleans())
def test_decided_rows_keep_their_class_under_any_error_within_the_bound(n_classes, size, seed, ovr):
    rng = np.random.default_rng(seed)
    one_each = ovr and n_classes > 2
    shape = 40, n_classes if one_each else len(class_pairs(n_classes))
    values, bound = rng.normal(size=shape), size * rng.random(shape)
    decided = is_decided(values, bound, n_classes, "ovr" if one_each else "ovo")

    def places(values):
        return (values if one_each else class_scores(values, n_classes)).argmax(axis=1)

    first = places(values)
    for _ in range(20):
        moved = places(values + rng.choice([-1, -0.5, 0, 1], shape) * bound)
        np.testing.assert_array_equal(moved[decided], first[decided])
    assert decided.all() or size > 0
    if n_classes == 2:
        np.testing.assert_array_equal(decided, (np.abs(values) > bound)[:, 0])


def mean_loss(parameters, values, positive):
    """The definition, with Platt's targets."""
    a, b = parameters
    n_positive, n_negative = positive.sum(), (~positive).sum()
    t = np.where(positive, (n_positive + 1) / (n_positive + 2), 1 / (n_negative + 2))
    z = a * values + b
    return np.mean(t * np.logaddexp(0, z) + (1 - t) * np.logaddexp(0, -z))


@pytest.mark.parametrize(("seed", "scale"), [(0, 1e-6), (1, 1.0), (2, 1e6)])
def test_sigmoid_is_the_brute_force_minimum(seed, scale):
    rng = np.random.default_rng(seed)
    values = 2 * rng.normal(size=300)
    positive = rng.random(300) < 1 / (1 + np.exp(0.5 - 1.5 * values))
    how = {"xatol": 1e-10, "fatol": 1e-16, "maxiter": 5000, "maxfev": 5000}
    best = minimize(mean_loss, [0, 0], (values, positive), method="Nelder-Mead", options=how)
    a, b = fit_sigmoid(scale * values, positive)
    np.testing.assert_allclose([scale * a, b], best.x, rtol=1e-6, atol=1e-7)


def test_sigmoids_of_separable_rows_and_of_huge_values():
    values = np.concatenate([np.full(50, -1.0), np.full(50, 1.0)])
    a, b = fit_sigmoid(values, values > 0)
    np.testing.assert_allclose(sigmoid(np.array([-1.0, 1.0]), a, b), [1 / 52, 51 / 52], rtol=1e-6)
    with np.errstate(over="raise"):
        found = sigmoid(np.array([-1e300, -800.0, 0.0, 800.0, 1e300]), -1.0, 0.0)
    assert found.tolist() == [0.0, 0.0, 0.5, 1.0, 1.0]


@given(st.integers(2, 30), st.integers(0, 10_000))
def test_probabilities_never_fall_as_the_value_rises(n_rows, seed):
    rng = np.random.default_rng(seed)
    values = rng.normal(size=n_rows) * 10 ** rng.uniform(-3, 3)
    positive = rng.random(n_rows) < 0.5
    found = sigmoid(np.sort(values), *fit_sigmoid(values, positive))
    assert (np.diff(found) >= 0).all()
    assert (found > 0).all()
    assert (found < 1).all()


@given(arrays(np.float64, (3, 6), elements=st.floats(-1e4, 1e4)))
def test_probabilities_of_pairs_are_those_of_the_definition(values):
    found = class_probabilities(values, -np.ones(6), np.zeros(6), 4, "ovo")
    assert (found > 0).all()
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-9)
    r = np.clip(sigmoid(values, -1.0, 0.0), 1e-7, 1 - 1e-7)
    inverse = np.full((3, 4), -2.0)
    for k, (i, j) in enumerate(class_pairs(4)):
        inverse[:, j] += 1 / r[:, k]
        inverse[:, i] += 1 / (1 - r[:, k])
    shares = 1 / inverse
    np.testing.assert_allclose(found, shares / shares.sum(axis=1, keepdims=True), rtol=1e-9)


@given(arrays(np.float64, (6, 4), elements=st.floats(-1e4, 1e4)))
def test_probabilities_of_classes_against_the_rest_are_normalised(values):
    slopes, shifts = np.array([(-1.5, 0.2), (-2.0, 0.0), (0.5, -1.0), (-1.0, 3.0)]).T
    found = class_probabilities(values, slopes, shifts, 4, "ovr")
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-12)
    each = sigmoid(values, slopes, shifts)
    some = each.sum(axis=1) > 1e-200
    total = each[some].sum(axis=1, keepdims=True)
    # Sigmoids below the least normal number have fewer digits.
    rounding = 1e-9 * found[some] + np.finfo(float).tiny / total
    assert (np.abs(found[some] - each[some] / total) <= rounding).all()


def test_two_classes_keep_small_probabilities():
    found = class_probabilities(np.array([-50.0, 50.0]), np.array([-2.0]), np.zeros(1), 2, "ovo")
    np.testing.assert_allclose(found, [[1, np.exp(-100)], [np.exp(-100), 1]], rtol=1e-12)
