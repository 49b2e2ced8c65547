from __future__ import annotations

import json
import sys
import tracemalloc
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import (
    accuracy_score,
    balanced_accuracy_score,
    brier_score_loss,
    confusion_matrix,
    precision_recall_fscore_support,
)

from ooc_fw.cli import applying
from ooc_fw.cli.evaluate import Confusion
from ooc_fw.model.record import load_model

labels = st.sampled_from([-7.0, 3.0, 5.0])


# scikit-learn warns where predictions and labels have different classes, or one only.
@pytest.mark.filterwarnings("ignore::UserWarning:sklearn")
@given(st.lists(st.tuples(labels, labels), min_size=1, max_size=20), st.integers(1, 20))
def test_measures_agree_with_scikit_learn(pairs, n_first):
    """Whatever the blocks; 3 is unknown to the model where it is not among the predictions."""
    given, predicted = np.array(pairs).T
    classes = np.array([-7.0, 3.0, 5.0])
    known = classes[(classes != 3) | (predicted == 3).any()]
    confusion = Confusion(known.tolist())
    for part in (slice(n_first), slice(n_first, None)):
        confusion.add(given[part], np.searchsorted(known, predicted[part]))
    assert confusion.counts.total() == len(pairs)
    found = confusion.measures()
    if 3 not in known and not (given == 3).any():
        classes = known
    assert found["accuracy"] == pytest.approx(accuracy_score(given, predicted))
    assert found["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(given, predicted))
    assert found["confusion"] == confusion_matrix(given, predicted, labels=classes).tolist()
    precision, recall, _, rows = precision_recall_fscore_support(
        given, predicted, labels=classes, zero_division=np.nan
    )
    assert list(found["classes"]) == [f"{value:g}" for value in classes]
    for k, own in enumerate(found["classes"].values()):
        assert own["rows"] == rows[k]
        assert own["precision"] == (
            pytest.approx(precision[k]) if (predicted == classes[k]).any() else None
        )
        assert own["recall"] == (pytest.approx(recall[k]) if rows[k] else None)


def test_json_and_text(ooc_fw, model_file, data_file, text_file):
    outcome = ooc_fw("evaluate", model_file, data_file, "--json")
    assert (outcome.status, outcome.err) == (0, "")
    result = json.loads(outcome.out)
    assert list(result) == [
        "accuracy", "balanced_accuracy", "classes", "confusion", "n_rows", "seconds",
    ]  # fmt: skip
    assert 0.8 < result["accuracy"] <= 1
    assert result["n_rows"] == 200
    found = json.loads(ooc_fw("evaluate", model_file, text_file, "--json").out)
    assert found["accuracy"] == result["accuracy"]
    lines = ooc_fw("evaluate", model_file, data_file).out.splitlines()
    assert lines[0].split() == ["accuracy", f"{result['accuracy']:.6g}"]
    assert lines[5].split() == ["class", "rows", "precision", "recall"]
    assert [line.split()[0] for line in lines[6:8] + lines[11:]] == ["-7", "3", "-7", "3"]


def test_labels_of_an_array(ooc_fw, model_file, table, tmp_path):
    data = tmp_path / "X.npy", "--labels", tmp_path / "y.npy"
    np.save(data[0], table.X)
    ooc_fw("evaluate", model_file, data[0]).assert_refused("X.npy has no labels")
    np.save(data[2], table.y)
    assert json.loads(ooc_fw("evaluate", model_file, *data, "--json").out)["n_rows"] == 200
    np.save(data[2], np.where(table.y > 0, "yes", "no"))
    outcome = ooc_fw("evaluate", model_file, *data)
    outcome.assert_refused("X.npy", "are words, and those of the model are numbers")
    np.save(data[0], np.zeros((1200, 4), dtype=np.float32))
    np.save(data[2], np.arange(1200) / 7 + 100)
    outcome = ooc_fw("evaluate", model_file, *data)  # so many would take memory
    outcome.assert_refused("X.npy", "more than 1000 different labels")


def test_unknown_labels_are_wrong_and_reported(ooc_fw, model_file, table, write_text):
    y = table.y.copy()
    y[:50] = 4
    outcome = ooc_fw("evaluate", model_file, write_text(table.X, y), "--json")
    assert outcome.status == 0
    assert json.loads(outcome.out)["accuracy"] <= 0.75
    assert "50 of 200 rows in" in outcome.err
    assert "labels unknown to the model (4); they count as wrong" in outcome.err


def test_labels_are_not_kept(ooc_fw, model_file, table, tmp_path, monkeypatch):
    """What is kept of a block of rows when the next one comes does not grow."""
    n_rows = 200 * 200
    np.save(tmp_path / "X.npy", np.tile(table.X, (200, 1)))
    np.save(tmp_path / "y.npy", np.tile(table.y, 200))
    held = []
    original = applying.apply_model

    def watched(*arguments, **options):
        for block in original(*arguments, **options):
            for start in range(0, len(block.labels), 100):
                held.append(tracemalloc.get_traced_memory()[0])
                rows = slice(start, start + 100)
                yield block._replace(values=block.values[rows], labels=block.labels[rows].copy())

    monkeypatch.setattr(applying, "apply_model", watched)
    arguments = ("evaluate", model_file, tmp_path / "X.npy", "--labels", tmp_path / "y.npy")
    tracemalloc.start()
    try:
        outcome = ooc_fw(*arguments, "--json")
    finally:
        tracemalloc.stop()
    assert json.loads(outcome.out)["n_rows"] == n_rows
    assert len(held) == n_rows / 100
    assert held[-1] - held[10] < 2 * n_rows  # bytes; the labels alone take eight times n_rows


# -- probabilities -------------------------------------------------------------------------------


def test_brier_score(ooc_fw, sure_model, data_file):
    result = json.loads(ooc_fw("evaluate", sure_model, data_file, "--json").out)
    with h5py.File(data_file) as file:
        X, y = file["X"][...], file["y"][...]
    model = load_model(sure_model)
    p = model.probabilities(model.decision_function(X))[:, 1]
    assert result["brier_score"] == pytest.approx(brier_score_loss(y == 3, p))
    assert sum(own["rows"] for own in result["reliability"]) == 200
    text = ooc_fw("evaluate", sure_model, data_file).out
    assert f"brier_score        {result['brier_score']:.6g}" in text


def test_rows_of_unknown_classes_count_as_none(ooc_fw, sure_model, table, write_text):
    """The probability of class 3 should be 0 for them, so that 4 is as good as -7."""
    scores = []
    for other in (-7.0, 4.0, -9.0):
        y = np.where(np.arange(200) < 50, other, table.y)
        outcome = ooc_fw("evaluate", sure_model, write_text(table.X, y), "--json")
        scores.append(json.loads(outcome.out)["brier_score"])
    assert scores == pytest.approx([scores[0]] * 3)


def test_figure(ooc_fw, sure_model, data_file, tmp_path):
    pytest.importorskip("matplotlib")
    for name, start in (("r.png", b"\x89PNG"), ("r.svg", b"<?xml"), ("r.pdf", b"%PDF")):
        outcome = ooc_fw("evaluate", sure_model, data_file, "--figure", tmp_path / name)
        assert (outcome.status, outcome.err) == (0, "")
        assert (tmp_path / name).read_bytes().startswith(start)


def test_figure_that_cannot_be_drawn(
    ooc_fw, sure_model, model_file, data_file, tmp_path, monkeypatch
):
    def refused(model, name, *parts):
        outcome = ooc_fw("evaluate", model, data_file, "--figure", tmp_path / name)
        outcome.assert_refused(*parts)

    refused(sure_model, "r.gif", ".png, .svg or .pdf", "r.gif")
    refused(sure_model, "none/r.png", "none does not exist")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    refused(sure_model, "r.png", "pip install", "matplotlib")
    monkeypatch.setitem(sys.modules, "matplotlib", SimpleNamespace())
    refused(model_file, "r.png", "does not give", "ooc-fw train --probability")
    assert list(tmp_path.iterdir()) == []
