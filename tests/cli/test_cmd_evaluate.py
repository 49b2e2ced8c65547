import sys

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    balanced_accuracy_score,
    brier_score_loss,
    confusion_matrix,
    precision_recall_fscore_support,
    roc_auc_score,
)

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
    result = outcome.json()
    names = "accuracy", "balanced_accuracy", "classes", "confusion", "n_rows", "seconds"
    assert set(result) == {*names, "roc_auc", "average_precision"}
    assert 0.8 < result["accuracy"] <= 1
    assert result["n_rows"] == 200
    found = ooc_fw("evaluate", model_file, text_file, "--json").json()
    assert found["accuracy"] == result["accuracy"]
    lines = [line.split() for line in ooc_fw("evaluate", model_file, data_file).out.splitlines()]
    assert lines[0] == ["accuracy", f"{result['accuracy']:.6g}"]
    assert lines[2] == ["roc_auc", f"{result['roc_auc']:.6g}"]
    assert lines[7] == ["class", "rows", "precision", "recall"]
    assert [line[0] for line in lines[8:10] + lines[13:]] == ["-7", "3", "-7", "3"]


def test_baseline(ooc_fw, model_file, data_file, text_file, table):
    result = ooc_fw("evaluate", model_file, data_file, "--baseline", "--json").json()["baseline"]
    assert (result["rows"], result["held_out"]) == (200, 66)
    models = result["models"]
    assert list(models) == ["model", "linear model", "constant"]
    share = max((table.y == 3).mean(), (table.y == -7).mean())
    assert models["constant"]["accuracy"] == pytest.approx(share, abs=0.02)
    assert models["model"]["roc_auc"] > models["linear model"]["roc_auc"] - 0.1 > 0.6
    text = ooc_fw("evaluate", model_file, data_file, "--baseline").done().out
    assert "on 66 rows held out of a sample of 200" in text
    ooc_fw("evaluate", model_file, text_file, "--baseline").assert_refused("convert it first")


def test_ranking(ooc_fw, model_file, data_file, table, write_text):
    values = load_model(model_file).decision_function(data_file)
    with h5py.File(data_file) as file:
        positive = file["y"][...] == 3
    result = ooc_fw("evaluate", model_file, data_file, "--json").json()
    assert result["roc_auc"] == pytest.approx(roc_auc_score(positive, values))
    assert result["average_precision"] == pytest.approx(average_precision_score(positive, values))
    one = ooc_fw("evaluate", model_file, write_text(table.X, 0 * table.y - 7), "--json").json()
    assert one["roc_auc"] is one["average_precision"] is None


def test_labels_of_an_array(ooc_fw, model_file, table, tmp_path):
    data = tmp_path / "X.npy", "--labels", tmp_path / "y.npy"
    np.save(data[0], table.X)
    ooc_fw("evaluate", model_file, data[0]).assert_refused("X.npy has no labels")
    np.save(data[2], table.y)
    assert ooc_fw("evaluate", model_file, *data, "--json").json()["n_rows"] == 200
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
    outcome = ooc_fw("evaluate", model_file, write_text(table.X, y), "--json").done()
    assert outcome.json()["accuracy"] <= 0.75
    assert "50 of 200 rows in" in outcome.err
    assert "labels unknown to the model (4); they count as wrong" in outcome.err


# -- probabilities -------------------------------------------------------------------------------


def test_brier_score(ooc_fw, sure_model, data_file):
    result = ooc_fw("evaluate", sure_model, data_file, "--json").json()
    with h5py.File(data_file) as file:
        y = file["y"][...]
    model = load_model(sure_model)
    p = model.probabilities(model.decision_function(data_file))[:, 1]
    assert result["brier_score"] == pytest.approx(brier_score_loss(y == 3, p))
    assert sum(own["rows"] for own in result["reliability"]) == 200
    text = ooc_fw("evaluate", sure_model, data_file).out
    assert f"brier_score        {result['brier_score']:.6g}" in text


def test_rows_of_unknown_classes_count_as_the_smaller(ooc_fw, sure_model, table, write_text):
    """They are not of class 3, whose probability should be 0: 4 is as good as -7."""
    expected = None
    for other in (-7.0, 4.0, -9.0):
        y = np.where(np.arange(200) < 50, other, table.y)
        found = ooc_fw("evaluate", sure_model, write_text(table.X, y), "--json").json()
        scores = pytest.approx([found["roc_auc"], found["brier_score"]])
        expected = expected or [found["roc_auc"], found["brier_score"]]
        assert expected == scores


@pytest.mark.grid
def test_figure(ooc_fw, sure_model, model_file, data_file, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")

    def draw(model, name):
        return ooc_fw("evaluate", model, data_file, "--figure", tmp_path / name)

    draw(sure_model, "r.gif").assert_refused(".png, .svg or .pdf", "r.gif")
    draw(sure_model, "none/r.png").assert_refused("none does not exist")
    draw(model_file, "r.png").assert_refused("does not give", "ooc-fw train --probability")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib", None)
        draw(sure_model, "r.png").assert_refused("pip install", "matplotlib")
    assert list(tmp_path.iterdir()) == []
    outcome = draw(sure_model, "r.png")
    assert (outcome.status, outcome.err) == (0, "")
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")
