"""The order of pairs of classes, and the vote of their classifiers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ooc_fw import Status
from ooc_fw.model.pairs import class_pairs, class_scores, is_decided, worst_status
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


@pytest.mark.parametrize(
    ("statuses", "worst"),
    [
        (["converged", "converged"], "converged"),
        (["converged", "max_iter", "time_limit"], "max_iter"),
        (["converged", "sampled"], "sampled"),
        (["sampled", "time_limit"], "time_limit"),
        (["max_iter", "interrupted", "stopped"], "interrupted"),
        (["max_iter", "stopped"], "stopped"),
    ],
)
def test_one_status_for_all(statuses, worst):
    assert worst_status([Status(status) for status in statuses]) == worst


@given(
    st.integers(2, 5),
    st.sampled_from([0.0, 1e-3, 0.3, 3.0]),
    SEEDS,
    st.sampled_from(["ovo", "ovr"]),
)
def test_decided_rows_keep_their_class_under_any_error_within_the_bound(
    n_classes, size, seed, decision
):
    rng = np.random.default_rng(seed)
    one_each = decision == "ovr" and n_classes > 2
    shape = 40, n_classes if one_each else len(class_pairs(n_classes))
    values, bound = rng.normal(size=shape), size * rng.random(shape)
    decided = is_decided(values, bound, n_classes, decision if one_each else "ovo")

    def places(values):
        return (values if one_each else class_scores(values, n_classes)).argmax(axis=1)

    first = places(values)
    for _ in range(20):
        moved = places(values + rng.choice([-1, -0.5, 0, 1], shape) * bound)
        np.testing.assert_array_equal(moved[decided], first[decided])
    assert decided.all() or size > 0
    if n_classes == 2:
        np.testing.assert_array_equal(decided, (np.abs(values) > bound)[:, 0])
    if one_each:  # the worst error: against the first class, for all others
        chosen = np.arange(n_classes) == first[:, None]
        worst = np.where(chosen, values - bound, values + bound)
        others = np.where(chosen, -np.inf, worst).max(axis=1)
        margin = worst[chosen] - others
        np.testing.assert_array_equal(
            decided[np.abs(margin) > 1e-12], (margin > 0)[np.abs(margin) > 1e-12]
        )
