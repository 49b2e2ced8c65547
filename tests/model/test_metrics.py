"""Metrics agree with scikit-learn."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from ooc_fw.model import metrics
from ooc_fw.model.metrics import Ranking

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
