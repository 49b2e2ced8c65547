import h5py
import numpy as np
import pandas as pd
import pytest
from sklearn import metrics

from ooc_fw import load_model, open_dataset
from ooc_fw.model.evaluation import class_measures


@pytest.fixture
def judged(model_file, data_file):
    """Which stored rows are of class 3, and their decision values, found without the command."""
    with h5py.File(data_file) as file:
        positive = file["y"][...] == 3
    return positive, load_model(model_file).decision_function(open_dataset(data_file))


def test_measures_with_labels_that_are_never_predicted_or_never_given():
    """The last label is unknown to the model."""
    given, found = np.array([0, 0, 2, 1, 1]), np.array([0, 2, 2, 2, 0])
    result = class_measures(given, found, ["-7", "3", "5", "9"])
    assert result["accuracy"] == 0.4
    assert result["balanced_accuracy"] == result["macro"]["recall"] == (0.5 + 0 + 1) / 3
    assert list(result["classes"]) == ["-7", "3", "5", "9"]
    assert result["confusion"] == [[1, 0, 1, 0], [1, 0, 1, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
    assert [*result["classes"]["-7"].values()] == [0.5, 0.5, 0.5, 2]
    assert np.isnan(result["classes"]["3"]["precision"])
    assert np.isnan([*result["classes"]["9"].values()][:3]).all()
    assert result["macro"]["precision"] == pytest.approx((1 / 2 + 1 / 3) / 2)


def test_measures_are_those_of_scikit_learn(ooc_fw, here, judged):
    result = ooc_fw("evaluate", "m.h5", "d.h5", "--json").json()
    positive, values = judged
    predicted = values > 0
    expected = {
        "accuracy": metrics.accuracy_score(positive, predicted),
        "balanced_accuracy": metrics.balanced_accuracy_score(positive, predicted),
        "roc_auc": metrics.roc_auc_score(positive, values),
        "average_precision": metrics.average_precision_score(positive, values),
        "n_rows": 200,
    }
    assert {name: result[name] for name in expected} == pytest.approx(expected)
    assert result["confusion"] == metrics.confusion_matrix(positive, predicted).tolist()
    found = ooc_fw("evaluate", "m.h5", "d.txt", "--json").json()
    assert found["accuracy"] == result["accuracy"]
    shown = ooc_fw("evaluate", "m.h5", "d.h5").words
    assert f"accuracy {result['accuracy']:.6g} " in shown
    assert "class precision recall f1-score support" in shown


def test_measures_of_a_regression(ooc_fw, here):
    targets = np.load("amounts.npy")
    found = load_model("numbers.h5").predict("d.h5")
    result = ooc_fw("evaluate", "numbers.h5", "d.h5", "--labels", "amounts.npy", "--json").json()
    expected = {
        "r2": metrics.r2_score(targets, found),
        "rmse": metrics.root_mean_squared_error(targets, found),
        "mae": metrics.mean_absolute_error(targets, found),
        "n_rows": 200,
    }
    assert result == pytest.approx(expected)


@pytest.mark.parametrize("positive", ["3", "-7"])
def test_a_threshold_is_that_of_predict(ooc_fw, here, judged, positive):
    truth, values = judged
    threshold = np.quantile(values, 0.3)
    option = f"--threshold={threshold}"
    found = ooc_fw("evaluate", "m.h5", "d.h5", f"--positive={positive}", option, "--json").json()
    assert found["threshold"] == threshold
    lines = np.array(ooc_fw("predict", "m.h5", "d.h5", option).out.split())
    with h5py.File("d.h5") as file:
        predicted = lines[file["row"][...]] == "3"
    assert found["accuracy"] == metrics.accuracy_score(truth, predicted)
    assert found["classes"]["3"]["recall"] == metrics.recall_score(truth, predicted)
    scores = (truth, values) if positive == "3" else (~truth, -values)
    assert found["average_precision"] == pytest.approx(metrics.average_precision_score(*scores))


def test_rows_of_unknown_classes_are_not_positive(ooc_fw, here):
    """The probability of class 3 should be 0 for them: 4 is as good as -7."""
    labels, scores = np.load("labels.npy"), []
    for other in (-7.0, 4.0, -9.0):
        np.save("y.npy", np.where(np.arange(200) < 50, other, labels))
        found = ooc_fw("evaluate", "sure.h5", "d.h5", "--labels", "y.npy", "--json").json()
        scores.append([found["roc_auc"], found["brier_score"]])
    np.testing.assert_allclose(scores[1:], [scores[0]] * 2)
    p = load_model("sure.h5").predict_proba("d.h5")[:, 1]
    found = ooc_fw("evaluate", "sure.h5", "d.h5", "--json").json()
    assert found["brier_score"] == pytest.approx(metrics.brier_score_loss(labels == 3, p))


@pytest.mark.parametrize("name", ["m.h5", "novel.h5"])
@pytest.mark.parametrize("positive", [0, 1])
@pytest.mark.parametrize("share", ["0.1", "5%", "1e-9"])
def test_a_threshold_for_a_share_of_false_alarms(ooc_fw, here, name, positive, share):
    """It is said which side of it is which class, and a saved model and predict have it."""
    model = load_model(name)
    classes = [str(int(value)) for value in model.classes]
    np.save("y.npy", model.classes[(np.load("labels.npy") == 3).astype(int)])
    option = f"--positive={classes[positive]}"
    where = "d.h5", "--labels", "y.npy"
    rate = option, "--false-alarms", share, "--save", "new.h5", "--json"
    found = ooc_fw("evaluate", name, *where, *rate).json()
    most = 0.05 if share == "5%" else float(share)
    with open_dataset("d.h5", "y.npy") as source:
        truth = source.labels(0, 200) == model.classes[positive]
        values = model.decision_function(source)
    above = values > found["threshold"]
    called = above if positive else ~above
    side = "above" if positive else "below"
    rule = f"{classes[positive]} if the decision value is {side} the threshold, else "
    assert found["predicted"] == rule + classes[1 - positive]
    assert found["false_alarms"] == called[~truth].mean() <= most
    assert found["recall"] == called[truth].mean()
    assert found["classes"][classes[positive]]["recall"] == found["recall"]
    assert called[~truth].sum() == int(most * (~truth).sum())
    held = load_model("new.h5")
    predicted = held.predict("d.h5") == model.classes[positive]
    with h5py.File("d.h5") as file:
        np.testing.assert_array_equal(predicted[file["row"][...]], called)
    again = ooc_fw("evaluate", "new.h5", *where, option, "--json").json()
    assert again["confusion"] == found["confusion"]
    lines = ooc_fw("predict", name, "d.h5", f"--threshold={found['threshold']!r}").out.split()
    assert lines == ooc_fw("predict", "new.h5", "d.h5").out.split()


def test_rows_without_a_likely_class_are_unassigned(ooc_fw, here):
    predict = "predict", "sure.h5", "d.h5", "--probability", "--unassigned", "80%", "-o", "p.csv"
    predict += ("--decision",)
    told = ooc_fw(*predict).done().err
    found = pd.read_csv("p.csv")
    assert f"note: {(found['label'] == 'unassigned').sum()} of 200 rows are unassigned" in told
    own = np.where(found["decision"] > 0, found["p_3"], found["p_-7"])  # of the predicted class
    assert 0 < np.mean(own < 0.8) < 1
    np.testing.assert_array_equal(found["label"] == "unassigned", own < 0.8)
    # With another threshold, the predicted class is often the less probable one.
    ooc_fw(*predict, "--threshold=0.5").done()
    found = pd.read_csv("p.csv")
    own = np.where(found["decision"] > 0.5, found["p_3"], found["p_-7"])
    np.testing.assert_array_equal(found["label"] == "unassigned", own < 0.8)


def test_missing_labels_are_left_out_and_unknown_ones_count_as_wrong(ooc_fw, here):
    """In a table, and in arrays that are numbers or words; one odd label spoils no other."""
    told = ooc_fw("evaluate", "people.model.h5", "no-label.csv")
    assert "1 rows without a label are left out" in told.err
    known = np.load("y.npy")
    whole = ooc_fw("evaluate", "m.h5", "X.npy", "--labels", "y.npy", "--json").json()
    for name, gaps, odd in (("numbers", np.nan, 4.0), ("words", "", "maybe")):
        labels = known.astype(float) if name == "numbers" else known.astype(int).astype(str)
        labels = labels.astype("<U8") if name == "words" else labels
        labels[:7] = gaps
        np.save("gaps.npy", labels)
        found = ooc_fw("evaluate", "m.h5", "X.npy", "--labels", "gaps.npy", "--json")
        assert "7 rows without a label are left out" in found.err
        assert found.json()["n_rows"] == len(known) - 7
        assert [*found.json()["classes"]] == [*whole["classes"]]
        labels[7:9] = odd
        np.save("gaps.npy", labels)
        found = ooc_fw("evaluate", "m.h5", "X.npy", "--labels", "gaps.npy", "--json")
        assert f"2 of {len(known) - 7} rows in X.npy have labels unknown" in found.err
        assert "--labels-as" in found.err
        expected = [*whole["classes"], "4" if name == "numbers" else "maybe"]
        assert [*found.json()["classes"]] == expected
