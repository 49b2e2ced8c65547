import sys

import h5py
import numpy as np
import pytest
from sklearn import metrics

from ooc_fw import open_dataset
from ooc_fw.cli.evaluate import class_measures
from ooc_fw.model.record import load_model


@pytest.fixture
def judged(model_file, data_file):
    """Which stored rows are of class 3, and their decision values, found without the command."""
    with h5py.File(data_file) as file:
        positive = file["y"][...] == 3
    return positive, load_model(model_file).decision_function(open_dataset(str(data_file)))


def test_measures_of_labels_that_are_not_predicted_or_not_given():
    """Names need not be sorted: the last is unknown to the model."""
    given, found = np.array([0, 0, 1, 3, 3]), np.array([0, 1, 1, 1, 0])
    result = class_measures(given, found, [-7.0, 5.0, 9.0, 3.0])
    assert result["accuracy"] == 0.4
    assert result["balanced_accuracy"] == result["macro"]["recall"] == (0.5 + 0 + 1) / 3
    assert list(result["classes"]) == ["-7", "3", "5", "9"]
    assert result["confusion"] == [[1, 0, 1, 0], [1, 0, 1, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
    assert result["classes"]["-7"] == {
        "precision": 0.5,
        "recall": 0.5,
        "f1-score": 0.5,
        "support": 2,
    }
    assert np.isnan(result["classes"]["3"]["precision"])
    assert np.isnan([*result["classes"]["9"].values()][:3]).all()
    assert result["macro"]["precision"] == pytest.approx((1 / 2 + 1 / 3) / 2)


def test_json_and_text(ooc_fw, model_file, data_file, text_file, judged):
    outcome = ooc_fw("evaluate", model_file, data_file, "--json")
    assert (outcome.status, outcome.err) == (0, "")
    result = outcome.json()
    positive, values = judged
    predicted = values > 0
    assert result["n_rows"] == 200
    assert result["accuracy"] == metrics.accuracy_score(positive, predicted)
    assert result["balanced_accuracy"] == pytest.approx(
        metrics.balanced_accuracy_score(positive, predicted)
    )
    assert result["confusion"] == metrics.confusion_matrix(positive, predicted).tolist()
    assert result["roc_auc"] == pytest.approx(metrics.roc_auc_score(positive, values))
    precision = metrics.average_precision_score(positive, values)
    assert result["average_precision"] == pytest.approx(precision)
    found = ooc_fw("evaluate", model_file, text_file, "--json").json()
    assert found["accuracy"] == result["accuracy"]
    lines = [line.split() for line in ooc_fw("evaluate", model_file, data_file).out.splitlines()]
    assert lines[0] == ["accuracy", f"{result['accuracy']:.6g}"]
    assert lines[2:4] == [["positive", "3"], ["roc_auc", f"{result['roc_auc']:.6g}"]]
    assert lines[7] == ["class", "precision", "recall", "f1-score", "support"]
    assert [line[0] for line in lines[8:11] + lines[14:]] == ["-7", "3", "macro", "-7", "3"]


@pytest.mark.parametrize("positive", ["3", "-7"])
def test_a_threshold_is_that_of_predict(ooc_fw, model_file, data_file, judged, positive):
    truth, values = judged
    option = f"--threshold={np.quantile(values, 0.3)}"
    command = "evaluate", model_file, data_file, f"--positive={positive}", option, "--json"
    found = ooc_fw(*command).json()
    lines = np.array(ooc_fw("predict", model_file, data_file, option).out.split())
    with h5py.File(data_file) as file:
        predicted = lines[file["row"][...]] == "3"
    assert found["accuracy"] == metrics.accuracy_score(truth, predicted)
    assert found["classes"]["3"]["recall"] == metrics.recall_score(truth, predicted)
    scores = (truth, values) if positive == "3" else (~truth, -values)
    assert found["average_precision"] == pytest.approx(metrics.average_precision_score(*scores))


def test_labels_of_an_array(ooc_fw, model_file, table, tmp_path):
    data = tmp_path / "X.npy", "--labels", tmp_path / "y.npy"
    np.save(data[0], table.X)
    np.save(data[2], table.y)
    assert ooc_fw("evaluate", model_file, *data, "--json").json()["n_rows"] == 200


def test_unknown_labels_are_wrong_and_reported(ooc_fw, model_file, table, write_text):
    y = table.y.copy()
    y[:50] = 4
    outcome = ooc_fw("evaluate", model_file, write_text(table.X, y), "--json").done()
    assert outcome.json()["accuracy"] <= 0.75
    assert "50 of 200 rows in" in outcome.err
    assert "labels unknown to the model (4); they count as wrong" in outcome.err
    y[:180] = np.arange(180) % 20 + 100
    y[180:] = 5
    outcome = ooc_fw("evaluate", model_file, write_text(table.X, y))
    outcome.assert_refused("no label in ", "(known: -7, 3; found: 5, 100", "--label")


def test_rows_of_unknown_classes_count_as_the_smaller(ooc_fw, sure_model, table, write_text):
    """They are not of class 3, whose probability should be 0: 4 is as good as -7."""
    scores = []
    for other in (-7.0, 4.0, -9.0):
        y = np.where(np.arange(200) < 50, other, table.y)
        found = ooc_fw("evaluate", sure_model, write_text(table.X, y), "--json").json()
        scores.append([found["roc_auc"], found["brier_score"]])
    np.testing.assert_allclose(scores[1:], [scores[0]] * 2)
    model = load_model(sure_model)
    p = model.predict_proba(table.X)[:, 1]
    found = ooc_fw("evaluate", sure_model, write_text(*table), "--json").json()
    assert found["brier_score"] == pytest.approx(metrics.brier_score_loss(table.y == 3, p))


def test_many_classes_are_left_to_json(ooc_fw, tmp_path):
    rng = np.random.default_rng(0)
    for n in (14, 31):
        y = np.arange(20 * n) % n
        data = tmp_path / "X.npy", "--labels", tmp_path / "y.npy"
        np.save(data[0], rng.normal(0, 0.2, (len(y), 2)) + np.stack([y % 6, y // 6], axis=1))
        np.save(data[2], y.astype(float))
        ooc_fw("train", *data, "-o", tmp_path / "m.h5", "--quiet").done()
        result = ooc_fw("evaluate", tmp_path / "m.h5", *data, "--json").json()
        assert np.shape(result["confusion"]) == (n, n)
        text = ooc_fw("evaluate", tmp_path / "m.h5", *data).out
        assert ("confusion (given below" in text) == (n == 14)


@pytest.mark.grid
def test_figure(ooc_fw, sure_model, model_file, data_file, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")

    def draw(model, name):
        return ooc_fw("evaluate", model, data_file, "--figure", tmp_path / name)

    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib", None)
        draw(sure_model, "r.png").assert_refused("pip install", "matplotlib")
    assert list(tmp_path.iterdir()) == []
    for model in (sure_model, model_file):
        outcome = draw(model, "r.png")
        assert (outcome.status, outcome.err) == (0, "")
        assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")
