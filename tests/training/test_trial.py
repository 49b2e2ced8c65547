"""Comparisons on rows held out: their scores, the kernel that is chosen, hints and baselines."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import StandardScaler

from ooc_fw import (
    FrankWolfeOneClass,
    FrankWolfeSVC,
    FrankWolfeSVR,
    InputError,
    TrainOptions,
    make_kernel,
    open_dataset,
)
from ooc_fw.problem import ClassificationProblem
from ooc_fw.training.trial import Trial, compare, hints, score_classes, score_targets
from tests.support.files import write_dense

KERNEL = make_kernel("rbf", gamma=1.0)


def jumps(n_rows=900, n_classes=2, seed=0):
    """Rows whose class jumps along one of few columns, which suits the Laplacian kernel."""
    rng = np.random.default_rng(seed)
    X = rng.random((n_rows, 4)).astype(np.float32)
    table = rng.integers(n_classes, size=(8, 8))
    return X, table[(8 * X[:, 0]).astype(int), (8 * X[:, 1]).astype(int)]


def waves(n_rows=900):
    X = np.random.default_rng(0).normal(size=(n_rows, 4)).astype(np.float32)
    return X, (np.sin(X.sum(axis=1)) > 0).astype(int)


def test_the_error_of_a_difference_is_that_of_samples():
    """Two scores of the same rows, for AUC, accuracy and R^2, over many draws of the rows."""
    rng = np.random.default_rng(0)
    found = {"auc": [], "accuracy": [], "r2": []}
    for _ in range(300):
        codes = (rng.random(200) < 0.3).astype(int)
        both = codes + rng.normal(size=200)
        values = [both + rng.normal(size=200) * noise for noise in (0.3, 0.6)]
        scores = [score_classes(codes, (v > 0.5).astype(int), v) for v in values]
        assert scores[0].value == pytest.approx(roc_auc_score(codes, values[0]))
        found["auc"].append(scores[0].better_by(scores[1]))
        plain = [score_classes(codes, (v > 0.5).astype(int), None) for v in values]
        found["accuracy"].append(plain[0].better_by(plain[1]))
        targets = [score_targets(both, v) for v in values]
        assert targets[0].value == pytest.approx(targets[0].measures["r2"])
        found["r2"].append(targets[0].better_by(targets[1]))
    for differences in found.values():
        gains, errors = np.array(differences).T
        assert np.mean(errors) == pytest.approx(gains.std(), rel=0.15)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_kernel_auto_takes_the_better_one(n_classes):
    X, y = jumps(n_classes=n_classes)
    model = FrankWolfeSVC(kernel="auto", C=10, random_state=0).fit(X, y).model_
    assert model.kernel.name == "laplacian"
    other = FrankWolfeSVC(kernel="laplacian", C=10, random_state=0).fit(X, y).model_
    np.testing.assert_array_equal(model.decision_function(X), other.decision_function(X))
    X, y = waves()
    assert FrankWolfeSVC(kernel="auto", C=10, random_state=0).fit(X, y).model_.kernel.name == "rbf"


def test_kernel_auto_of_regression(ooc_fw, tmp_path):
    X, y = jumps(n_classes=5)
    assert (
        FrankWolfeSVR(kernel="auto", C=100, random_state=0).fit(X, y).model_.kernel.name
        == "laplacian"
    )
    path, arguments = write_dense(tmp_path / "d.h5", X, y), ("--kernel", "auto", "--C", "100")
    outcome = ooc_fw("train", path, "--task", "regression", *arguments, "-o", tmp_path / "m.h5")
    assert "kernel laplacian: laplacian reaches r2 0." in outcome.done().err
    result = ooc_fw("train", path, *arguments, "-o", tmp_path / "m.h5", "--json").json()
    assert (result["kernel"], result["gamma"]) == ("laplacian", 0.25)
    assert "on 300 rows held out of a sample of 900; --kernel NAME" in result["kernel_choice"]


def test_what_kernel_auto_is_not_for(ooc_fw, tmp_path):
    X, y = jumps(60)
    for estimator, message in (
        (FrankWolfeSVC(kernel="auto", gamma=0.5), "leave out the gamma 0.5"),
        (FrankWolfeOneClass(kernel="auto"), "looks at no labels.*; name a kernel"),
    ):
        with pytest.raises(InputError, match=message):
            estimator.fit(X, y)
    path = write_dense(tmp_path / "d.h5", X[:20], y[:20])
    ooc_fw("train", path, "--kernel", "auto").assert_refused("too few rows", "name a kernel")
    short = ooc_fw("train", path, "--kernel", "auto", "--max-time", "5", "-o", tmp_path / "m.h5")
    assert "kernel rbf: there is no time to compare" in short.done().err


def test_rare_classes_stay_with_the_rows_that_are_learned_from():
    X, _ = jumps(90)
    codes = np.zeros(90, dtype=np.int64)
    codes[[5, 60, 61]] = 1, 2, 2
    trial = compare(ClassificationProblem(open_dataset(X), codes, KERNEL), TrainOptions())
    assert np.bincount(trial.train.codes, minlength=3)[1:].tolist() == [1, 1]
    assert trial.scores.keys() == {"rbf", "laplacian", "linear model", "constant"}


@pytest.mark.parametrize("storage", ["dense", "sparse"])
def test_baselines_are_those_of_scikit_learn(storage):
    X, y = waves(300)
    X[:, 0] += y
    X *= np.random.default_rng(1).random(X.shape) < 0.7
    rows = X
    if storage == "sparse":
        from scipy.sparse import csr_array

        rows = csr_array(X)
    trial = Trial(ClassificationProblem(open_dataset(rows), y, KERNEL), TrainOptions())
    trial.try_baselines()
    held = np.isin(np.arange(300), trial.held_ids)
    scaler = StandardScaler(with_mean=storage == "dense").fit(X[~held])
    model = LogisticRegression().fit(scaler.transform(X[~held]), y[~held])
    auc = roc_auc_score(y[held], model.decision_function(scaler.transform(X[held])))
    linear, constant = trial.scores["linear model"], trial.scores["constant"]
    assert linear.measures["roc_auc"] == pytest.approx(auc, abs=1e-3)
    assert constant.measures["roc_auc"] == constant.measures["balanced_accuracy"] == 0.5
    assert constant.measures["accuracy"] == pytest.approx(max(y[held].mean(), 1 - y[held].mean()))


def test_plan_and_info_say_what_would_be_better(ooc_fw, tmp_path):
    path = write_dense(tmp_path / "d.h5", *jumps())
    planned = ooc_fw("plan", path, "--C", "10", "--json").json()
    (hint,) = planned["hints"]
    assert hint.endswith("take --kernel laplacian")
    assert planned["trial"]["held_out"] == 300
    assert hint in " ".join(ooc_fw("plan", path, "--C", "10").done().out.split())
    assert "--kernel laplacian" in planned["next"][0]
    found = ooc_fw("info", path, "--json").json()
    assert found["advice"][-1].endswith("take --kernel laplacian")
    assert "--kernel laplacian" in " ".join(found["next"])
    assert not ooc_fw("plan", path, "--kernel", "laplacian", "--C", "10", "--json").json()["hints"]


def test_rows_of_which_nothing_can_be_learned_are_planned_all_the_same(ooc_fw, tmp_path):
    path = write_dense(tmp_path / "d.h5", np.ones((90, 2)), np.arange(90) % 2)
    assert "trial" not in ooc_fw("plan", path, "--gamma", "1", "--json").json()
    assert "choice" in ooc_fw("info", path, "--json").json()


def test_a_model_that_misses_the_rare_classes_is_not_better():
    """Both differences are sure; accuracy is not what counts where classes are unequal."""
    codes = np.repeat([0, 1, 2], [900, 90, 10])
    misses, finds = np.zeros(1000, dtype=np.int64), codes.copy()
    finds[:300] = 1
    trial = Trial.__new__(Trial)
    trial.scores = {
        "rbf": score_classes(codes, finds, None),
        "constant": score_classes(codes, misses, None),
    }
    assert trial.scores["constant"].value > trial.scores["rbf"].value
    assert trial.better("rbf") is None
    assert trial.better("constant") is None
    trial.scores["linear model"] = score_classes(codes, codes, None)
    assert trial.better("rbf") == "linear model"


def test_a_quick_comparison_takes_few_rows_unless_there_is_time(monkeypatch):
    monkeypatch.setattr("ooc_fw.training.trial._QUICK_ROWS", 300)
    X, y = waves()
    problem = ClassificationProblem(open_dataset(X), y, KERNEL)
    n_rows = [compare(problem, TrainOptions(), seconds).n_rows for seconds in (0.0, 1e6, None)]
    assert n_rows == [300, 900, 900]


def test_no_hint_within_two_standard_errors():
    X, _ = jumps(300)
    codes = np.random.default_rng(1).integers(2, size=300)
    trial = compare(ClassificationProblem(open_dataset(X), codes, KERNEL), TrainOptions())
    best = max(trial.scores, key=lambda name: trial.scores[name].value)
    assert not hints(trial, best)
