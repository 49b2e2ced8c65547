from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import (
    accuracy_score,
    balanced_accuracy_score,
    confusion_matrix,
    precision_recall_fscore_support,
)

from ooc_fw.cli.evaluate import classification_measures

labels = st.sampled_from([-7.0, 3.0, 5.0])


# scikit-learn warns where predictions and labels have different classes, or one only.
@pytest.mark.filterwarnings("ignore::UserWarning:sklearn")
@given(st.lists(st.tuples(labels, labels), min_size=1, max_size=20))
def test_measures_agree_with_scikit_learn(pairs):
    given, predicted = np.array(pairs).T
    classes = np.array([-7.0, 3.0, 5.0])
    found = classification_measures(classes, given, predicted)
    assert found["accuracy"] == pytest.approx(accuracy_score(given, predicted))
    assert found["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(given, predicted))
    assert found["confusion"] == confusion_matrix(given, predicted, labels=classes).tolist()
    precision, recall, _, rows = precision_recall_fscore_support(
        given, predicted, labels=classes, zero_division=np.nan
    )
    assert list(found["classes"]) == ["-7", "3", "5"]
    for k, own in enumerate(found["classes"].values()):
        assert own["rows"] == rows[k]
        assert own["precision"] == (
            pytest.approx(precision[k]) if (predicted == classes[k]).any() else None
        )
        assert own["recall"] == (pytest.approx(recall[k]) if rows[k] else None)


def test_json(ooc_fw, model_file, data_file):
    outcome = ooc_fw("evaluate", model_file, data_file, "--json")
    assert (outcome.status, outcome.err) == (0, "")
    result = json.loads(outcome.out)
    assert list(result) == [
        "accuracy", "balanced_accuracy", "classes", "confusion", "n_rows", "seconds",
    ]  # fmt: skip
    assert 0.8 < result["accuracy"] <= 1
    assert result["n_rows"] == 200


def test_text_and_file_agree(ooc_fw, model_file, data_file, text_file):
    results = [
        json.loads(ooc_fw("evaluate", model_file, data, "--json").out)
        for data in (data_file, text_file)
    ]
    assert results[0]["accuracy"] == results[1]["accuracy"]


def test_for_people(ooc_fw, model_file, data_file):
    lines = ooc_fw("evaluate", model_file, data_file).out.splitlines()
    assert [line.split()[:1] for line in lines] == [
        ["accuracy"], ["balanced_accuracy"], ["n_rows"], ["seconds"], [],
        ["class"], ["-7"], ["3"], [],
        ["confusion"], ["-7"], ["-7"], ["3"],
    ]  # fmt: skip
    assert lines[5].split() == ["class", "rows", "precision", "recall"]


def test_unknown_labels_are_wrong_and_reported(ooc_fw, model_file, table, write_text):
    y = table.y.copy()
    y[:50] = 4
    outcome = ooc_fw("evaluate", model_file, write_text(table.X, y), "--json")
    assert outcome.status == 0
    assert json.loads(outcome.out)["accuracy"] <= 0.75
    assert "50 of 200 rows in" in outcome.err
    assert "labels unknown to the model (4); they count as wrong" in outcome.err


def test_labels_that_are_words(ooc_fw, model_file, table, tmp_path):
    np.save(tmp_path / "X.npy", table.X)
    np.save(tmp_path / "y.npy", np.where(table.y > 0, "yes", "no"))
    outcome = ooc_fw("evaluate", model_file, tmp_path / "X.npy", "--labels", tmp_path / "y.npy")
    outcome.assert_refused("X.npy", "are words, and those of the model are numbers")


def test_text_without_rows(ooc_fw, model_file, tmp_path):
    (tmp_path / "e.txt").touch()
    ooc_fw("evaluate", model_file, tmp_path / "e.txt").assert_refused("e.txt")


def test_array_with_labels(ooc_fw, model_file, table, tmp_path):
    np.save(tmp_path / "X.npy", table.X)
    np.save(tmp_path / "y.npy", table.y)
    ooc_fw("evaluate", model_file, tmp_path / "X.npy").assert_refused("X.npy has no labels")
    outcome = ooc_fw(
        "evaluate", model_file, tmp_path / "X.npy", "--labels", tmp_path / "y.npy", "--json"
    )
    assert json.loads(outcome.out)["n_rows"] == 200
