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
    precision_recall_curve,
    precision_recall_fscore_support,
    roc_auc_score,
    roc_curve,
)

from ooc_fw import open_dataset
from ooc_fw.cli.evaluate import Confusion, _confusion_lines
from ooc_fw.model.metrics import Ranking
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
    precision, recall, f1, rows = precision_recall_fscore_support(
        given, predicted, labels=classes, zero_division=np.nan
    )
    occur = np.union1d(given, predicted)
    macro = precision_recall_fscore_support(
        given, predicted, labels=occur, average="macro", zero_division=0
    )
    balanced = balanced_accuracy_score(given, predicted)  # one mean recall in a report
    assert [*found["macro"].values()] == pytest.approx([macro[0], balanced, macro[2]])
    of_known = np.isin(given, known)
    right = (given == predicted)[of_known]
    expected = right.mean() if of_known.any() else np.nan
    assert found["accuracy_of_known_labels"] == pytest.approx(expected, nan_ok=True)
    assert list(found["classes"]) == [f"{value:g}" for value in classes]
    for k, own in enumerate(found["classes"].values()):
        assert own["rows"] == rows[k]
        assert own["precision"] == pytest.approx(precision[k], nan_ok=True)
        assert own["recall"] == pytest.approx(recall[k], nan_ok=True)
        expected = np.nan_to_num(f1[k]) if classes[k] in occur else np.nan
        assert own["f1"] == pytest.approx(expected, nan_ok=True)


def test_json_and_text(ooc_fw, model_file, data_file, text_file):
    outcome = ooc_fw("evaluate", model_file, data_file, "--json")
    assert (outcome.status, outcome.err) == (0, "")
    result = outcome.json()
    names = "accuracy", "balanced_accuracy", "classes", "confusion", "macro", "n_rows", "seconds"
    ranking = "positive", "roc_auc", "average_precision", "curve"
    assert set(result) == {*names, "accuracy_of_known_labels", *ranking}
    assert 0.8 < result["accuracy"] <= 1
    assert result["n_rows"] == 200
    found = ooc_fw("evaluate", model_file, text_file, "--json").json()
    assert found["accuracy"] == result["accuracy"]
    lines = [line.split() for line in ooc_fw("evaluate", model_file, data_file).out.splitlines()]
    assert lines[0] == ["accuracy", f"{result['accuracy']:.6g}"]
    assert lines[2:4] == [["positive", "3"], ["roc_auc", f"{result['roc_auc']:.6g}"]]
    assert lines[8] == ["class", "rows", "precision", "recall", "f1"]
    assert [line[0] for line in lines[9:12] + lines[15:]] == ["-7", "3", "macro", "-7", "3"]


def test_ranking(ooc_fw, model_file, data_file, table, write_text):
    values = load_model(model_file).decision_function(open_dataset(str(data_file)))
    with h5py.File(data_file) as file:
        positive = file["y"][...] == 3
    result = ooc_fw("evaluate", model_file, data_file, "--json").json()
    assert result["roc_auc"] == pytest.approx(roc_auc_score(positive, values))
    assert result["average_precision"] == pytest.approx(average_precision_score(positive, values))
    one = ooc_fw("evaluate", model_file, write_text(table.X, 0 * table.y - 7), "--json").json()
    assert one["roc_auc"] is one["average_precision"] is None


@pytest.mark.parametrize("positive", ["3", "-7"])
def test_curves_and_thresholds_are_those_of_scikit_learn(
    ooc_fw, model_file, data_file, table, tmp_path, positive
):
    """A threshold gives in predict what evaluate said, whichever class is the positive one."""
    options = "evaluate", model_file, data_file, f"--positive={positive}"
    values = load_model(model_file).decision_function(open_dataset(str(data_file))) * (
        1 if positive == "3" else -1
    )
    with h5py.File(data_file) as file:
        given = file["y"][...]
    truth = given == float(positive)
    precision, recall, _ = precision_recall_curve(truth, values)
    false, true, _ = roc_curve(truth, values, drop_intermediate=False)
    roc, by_recall = set(zip(false, true, strict=True)), set(zip(recall, precision, strict=True))
    for measure, least, other in (("recall", 0.9, 1), ("precision", 0.95, 0)):
        result = ooc_fw(*options, f"--threshold={measure}={least}", "--json").json()
        assert result["average_precision"] == pytest.approx(average_precision_score(truth, values))
        curve = result["curve"]
        assert 0.9 * truth.sum() < len(curve["value"]) <= truth.sum()
        assert set(zip(curve["false_positive_rate"], curve["recall"], strict=True)) <= roc
        assert set(zip(curve["recall"], curve["precision"], strict=True)) <= by_recall
        found = result["threshold"]
        assert found["reached"]
        best = max(pair[other] for pair in by_recall if pair[1 - other] >= least)
        assert found["gives"]["precision" if other else "recall"] == best
        text = ooc_fw(*options, f"--threshold={measure}={least}").done().out
        assert f"{measure} {least} of {positive} on these rows" in text
        output = tmp_path / "predicted.csv"
        option = f"--threshold={found['value']}"
        sign = ">" if positive == "3" else "<="
        assert f"{positive} where the decision is {sign} {found['value']}\n" in text
        assert f"use it: ooc-fw predict {option.replace('=', ' ')}" in text
        ooc_fw("predict", model_file, data_file, option, "-o", output).done()
        rows = np.genfromtxt(output, delimiter=",", names=True)
        predicted = rows["label"][np.argsort(rows["row"])]
        positives = (predicted == float(positive)).sum()
        assert positives * found["gives"]["precision"] == pytest.approx(
            truth.sum() * found["gives"]["recall"]
        )
        again = ooc_fw(*options, option, "--json").json()["classes"][positive]
        for name in ("precision", "recall"):
            assert again[name] == pytest.approx(found["gives"][name])
    result = ooc_fw(*options, "--threshold", "precision=1", "--json").json()["threshold"]
    assert result["reached"] == (precision[:-1].max() == 1)


def test_thresholds_and_classes_that_make_no_sense_are_refused(
    ooc_fw, model_file, data_file, table, write_text
):
    for text in ("recall=1.5", "recall", "f1=0.5", "nan", "precision="):
        outcome = ooc_fw("evaluate", model_file, data_file, f"--threshold={text}")
        outcome.assert_refused("--threshold", "recall=R or precision=P")
    ooc_fw("predict", model_file, data_file, "--threshold", "nan").assert_refused("--threshold")
    outcome = ooc_fw("evaluate", model_file, data_file, "--positive", "attack")
    outcome.assert_refused("--positive attack", "-7 and 3")
    one = write_text(table.X, 0 * table.y - 7)
    ooc_fw("evaluate", model_file, one, "--positive", "3").assert_refused("no row of", "label 3")


def test_values_that_are_equal_or_large_have_thresholds_between_them():
    ranking = Ranking()
    ranking.add(np.array([0.0, 0, 1e6, -1e6, 5e-7]), np.array([True, False, True, False, True]))
    for side in ("left", "right"):
        points = ranking.points(9, side)
        assert points["recall"].tolist() == [1, 1 / 3]
        assert points["precision"].tolist() == [3 / 4, 1]
        assert points["false_positive_rate"].tolist() == [1 / 2, 0]
        assert points["value"].tolist() == [-50, 999950]


def test_many_classes_are_shown_in_parts_or_by_their_confusions(monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    for n in (30, 31):
        confusion = Confusion([float(k) for k in range(n)])
        confusion.add(np.arange(n).repeat(2), np.r_[0, np.arange(2 * n - 1) // 2])
        lines = _confusion_lines(confusion.measures())
        assert max(map(len, lines[1:])) <= 30
        if n == 30:
            assert len(lines) == 1 + 5 * 31
            assert lines[1].split() == ["0", "1", "2", "3", "4", "5", "6"]
        else:
            assert "31 x 31" in lines[0]
            assert lines[1].split() == ["given", "predicted", "rows"]
            assert lines[2].split() == ["1", "0", "1"]
            assert len(lines) == 22


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
    assert "labels unknown to the model (4: 50 rows); they count as wrong" in outcome.err
    y[:180] = np.arange(180) % 20 + 100
    y[:40] = 119
    err = ooc_fw("evaluate", model_file, write_text(table.X, y)).done().err
    assert "(119: 47 rows, 100: 7 rows, " in err
    assert ", ...); they count" in err
    y[180:] = 5
    outcome = ooc_fw("evaluate", model_file, write_text(table.X, y))
    outcome.assert_refused("no label in ", "(known: -7, 3; found: 119, 5, 100", "--label")


# -- probabilities -------------------------------------------------------------------------------


def test_brier_score(ooc_fw, sure_model, data_file):
    result = ooc_fw("evaluate", sure_model, data_file, "--json").json()
    with h5py.File(data_file) as file:
        y = file["y"][...]
    model = load_model(sure_model)
    p = model.probabilities(model.decision_function(open_dataset(str(data_file))))[:, 1]
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
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib", None)
        draw(sure_model, "r.png").assert_refused("pip install", "matplotlib")
    assert list(tmp_path.iterdir()) == []
    for model in (sure_model, model_file):
        outcome = draw(model, "r.png")
        assert (outcome.status, outcome.err) == (0, "")
        assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")
