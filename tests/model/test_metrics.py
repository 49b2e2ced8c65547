"""Metrics agree with scikit-learn, and their variances with what samples show."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, balanced_accuracy_score, roc_auc_score

from ooc_fw.model import metrics
from ooc_fw.model.metrics import Estimate, Ranking, auc_loss, balanced_error, pooled

# Few different values, so that there are ties; values so near that float32 would make them equal.
VALUES = st.sampled_from([-2.0, 0.0, 1.0, np.nextafter(1.0, 2.0), 7.5]) | st.floats(-3, 3)


@given(st.lists(st.tuples(VALUES, st.booleans()), min_size=1, max_size=40), st.integers(0, 40))
def test_ranking_agrees_with_scikit_learn(rows, n_first):
    values, positive = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
    ranking = Ranking()
    for part in (slice(n_first), slice(n_first, None)):
        ranking.add(values[part], positive[part])
    found = ranking.measures()
    assert (found["roc_auc"] is None) == (positive.all() or not positive.any())
    assert (found["average_precision"] is None) == (not positive.any())
    if found["roc_auc"] is not None:
        assert found["roc_auc"] == pytest.approx(roc_auc_score(positive, values))
    if found["average_precision"] is not None:
        expected = average_precision_score(positive, values)
        assert found["average_precision"] == pytest.approx(expected)
    assert ranking.measures() == found


@given(st.lists(st.tuples(VALUES, st.booleans()), min_size=2, max_size=40))
def test_the_mean_placement_is_the_auc(rows):
    values, positive = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
    if 0 < positive.sum() < len(positive):
        for part in metrics.placements(values, positive):
            assert part.mean() == pytest.approx(roc_auc_score(positive, values))


def test_ranking_of_many_rows_is_looked_up_in_parts(monkeypatch):
    rng = np.random.default_rng(0)
    positive = rng.random(5000) < 0.3
    values = np.round(rng.normal(size=5000) + positive, 2)
    monkeypatch.setattr(metrics, "_PART", 64)
    ranking = Ranking()
    ranking.add(values, positive)
    found = ranking.measures()
    assert found["roc_auc"] == pytest.approx(roc_auc_score(positive, values))
    assert found["average_precision"] == pytest.approx(average_precision_score(positive, values))


# scikit-learn warns where predictions have classes that the labels lack.
@pytest.mark.filterwarnings("ignore::UserWarning:sklearn")
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30))
def test_balanced_error(rows):
    codes, found = np.array(rows).T
    estimate = balanced_error(codes, codes != found)
    assert 1 - estimate.loss == pytest.approx(balanced_accuracy_score(codes, found))
    assert estimate.variance >= 0


def test_variances_are_those_of_samples():
    """The standard deviation of 4,000 samples is known to one part in 90."""
    rng = np.random.default_rng(0)
    codes = np.repeat([0, 1], [300, 60])
    wrong = rng.random((4000, 360)) < np.where(codes == 0, 0.1, 0.4)
    estimates = [balanced_error(codes, own) for own in wrong]
    assert np.std([one.loss for one in estimates]) == pytest.approx(
        np.sqrt(np.mean([one.variance for one in estimates])), rel=0.05
    )
    values = rng.exponential(np.where(codes == 0, 1.0, 4.0), (4000, 360))
    estimates = [auc_loss(own, codes == 1) for own in values]
    assert np.std([one.loss for one in estimates]) == pytest.approx(
        np.sqrt(np.mean([one.variance for one in estimates])), rel=0.05
    )
    assert auc_loss(values[0], codes == 7) is None


def test_pooled_folds():
    loss, error = pooled([Estimate(0.1, 9e-4), Estimate(0.3, 16e-4)])
    assert loss == pytest.approx(0.2)
    assert error == pytest.approx(0.025)
