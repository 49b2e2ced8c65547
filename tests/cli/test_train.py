"""``ooc-fw train`` on a data file: what is said of a run, and the model of each task."""

import json
import shutil
import signal
from pathlib import Path

import h5py
import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import r2_score

from ooc_fw import FrankWolfeSVC, load_model
from ooc_fw.problem import relative_target
from ooc_fw.system.errors import OutOfTimeError
from ooc_fw.training.fit import model_of
from tests.support.methods import grid


def events_of(log):
    return [json.loads(line) for line in Path(log).read_text().splitlines()]


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        ("--verbose", "converged", "memory plan: "),
        ("--method fw --max-iter 1", "max_iter", "warning: stopped by the limit of iterations"),
        ("--lmo sampled --no-certify", "sampled", "over the rows drawn last, not certified"),
    ],
)
def test_how_a_run_ended_is_said_and_is_in_the_model(ooc_fw, here, options, status, said):
    outcome = ooc_fw("train", "d.h5", *options.split())
    assert (outcome.status, outcome.out) == (0, "d.model.h5\n")
    assert said in outcome.err
    model = load_model("d.model.h5")
    assert model.status == status
    assert (model.certified_gap is None) == (status == "sampled")


@pytest.mark.parametrize(
    ("options", "kind", "landmarks"),
    [("", "exact", None), ("--landmarks 40", "landmarks", 40), ("--task novelty", "exact", None)],
)
def test_a_dry_run_prints_sizes_that_fit_the_limit(ooc_fw, here, options, kind, landmarks):
    command = "train", "d.h5", "--dry-run", "--memory", "2GiB", *options.split()
    result = ooc_fw(*command, "--json").json()
    assert (result["kind"], result["landmarks"]) == (kind, landmarks)
    assert sum(result["memory"].values()) <= result["memory_limit"] == 2 << 30
    outcome = ooc_fw(*command)
    assert result["choice"] in outcome.words
    assert outcome.words.endswith("MiB")


# -- every task, from training to the certificate --------------------------------------------------

TASKS = {
    "two classes": ("--C 5", "labels", 1),
    "words": ("--kernel poly --gamma 0.5 --degree 3 --coef0 1", "thirds", 3),
    "landmarks": ("--landmarks 40", "labels", 1),
    "landmarks, words": ("--landmarks 40 --C 5", "thirds", 3),
    "novelty": ("--task novelty --contamination 0.1 --C 3 --gamma 2", None, 1),
    "novelty, landmarks": ("--task novelty --contamination 0.1 --C 0.1 --landmarks 30", None, 1),
    "regression, all rows are landmarks": (
        "--task regression --exact --epsilon 0.5 --C 10",
        "amounts",
        1,
    ),
    "regression, landmarks": ("--task regression --landmarks 30 --C 10", "amounts", 1),
}


@pytest.mark.parametrize("name", grid([*TASKS], 5))
def test_all_commands_agree_on_a_model(ooc_fw, here, name):
    options, labels, n_classifiers = TASKS[name]
    data = "d.h5", *(["--labels", f"{labels}.npy"] if labels else [])
    train = "train", *data, "-o", "new.h5", *options.split(), "--log", "new.log", "--json"
    outcome = ooc_fw(*train).done()
    result, model = outcome.json(), load_model("new.h5")
    kind = "landmarks" if "landmarks" in name else "exact"
    assert (result["status"], result["kind"]) == ("converged", kind)
    assert result["choice"] in outcome.err
    assert events_of("new.log")[-1] == {"event": "end", **result}
    tol = relative_target(1e-3) if kind == "landmarks" else 1e-3
    assert 0 <= result["certified_gap"] == model.certified_gap <= tol
    certified = ooc_fw("certify", "new.h5", *data, "--json").json()
    assert certified["reached"]
    for found in (result, certified):
        each = found.get("classifiers", [found])
        assert len(each) == len(model.classifiers) == n_classifiers
        assert found["certified_gap"] == max(own["certified_gap"] for own in each)
        for own, known in zip(each, model.classifiers, strict=True):
            gap = pytest.approx(known.certified_gap, rel=1e-3, abs=1e-7)
            assert own["certified_gap"] == gap
            if kind == "landmarks":
                assert own["primal"] == pytest.approx(known.primal, rel=1e-4)
                assert own["dual"] == pytest.approx(known.dual, rel=1e-4)
    predicted = np.array(ooc_fw("predict", "new.h5", "d.h5").out.split())
    if model.task == "novelty":
        # The threshold holds on new rows: a quantile of 200 scores has a standard error of 0.02.
        assert np.mean(predicted == "-1") == pytest.approx(0.1, abs=0.04)
        return
    judged = ooc_fw("evaluate", "new.h5", *data, "--json").json()
    truth = np.load(f"{labels}.npy")
    if model.task == "regression":
        assert judged["r2"] == pytest.approx(r2_score(truth, predicted.astype(float)))
    else:
        predicted = predicted.astype(truth.dtype)
        assert judged["accuracy"] == np.mean(predicted == truth) > 0.85


# -- probabilities ---------------------------------------------------------------------------------


def test_probabilities_add_sigmoids_and_change_nothing_else(ooc_fw, here):
    train = "train", "d.h5", "--C", 5, "--json"
    plain = ooc_fw(*train, "-o", "plain.h5").json()
    result = ooc_fw(*train, "-o", "new.h5", "--log", "new.log", "--probability").json()
    assert result.pop("calibrated") is True
    assert list(result) == list(plain)
    for name in ("certified_gap", "objective", "iterations", "n_support"):
        assert result[name] == plain[name]
    estimator = FrankWolfeSVC(C=5, probability=True, random_state=0).fit("d.h5")
    model, bare = load_model("new.h5"), load_model("plain.h5")
    (own,), (other,) = model.classifiers, estimator.model_.classifiers
    assert (own.sigmoid_a, own.sigmoid_b) == (other.sigmoid_a, other.sigmoid_b)
    for name in ("sv", "beta", "rho", "certified_gap"):
        np.testing.assert_array_equal(getattr(own, name), getattr(bare.classifiers[0], name))
    events = events_of("new.log")
    assert events[-1]["calibrated"] is True
    iterations = [event["iteration"] for event in events if event["event"] == "progress"]
    assert iterations == sorted(iterations), "other runs are not logged"


def interrupt(*_):
    signal.raise_signal(signal.SIGINT)


def end_late(*_):
    raise OutOfTimeError("over")


def fail(*_):
    raise OSError("disk gone")


@pytest.mark.parametrize(
    ("calibrate", "status", "said"),
    [(interrupt, 130, "interrupted"), (end_late, 0, "no time left"), (fail, 3, "disk gone")],
)
def test_the_model_is_there_if_calibration_ends_early(
    ooc_fw, here, monkeypatch, calibrate, status, said
):
    monkeypatch.setattr("ooc_fw.training.fit._calibrated", calibrate)
    shutil.copy("m.h5", "new.h5")
    outcome = ooc_fw("train", "d.h5", "-o", "new.h5", "--probability", "--json")
    result = json.loads(outcome.out)
    assert (outcome.status, result["calibrated"]) == (status, False)
    assert f"{said}: the model gives no probabilities" in outcome.err
    assert ("; with --checkpoint FILE, a run can go on" in outcome.err) == (status == 130)
    assert result["model"] == ("new.unfinished.h5" if status else "new.h5")
    model = load_model(result["model"])
    assert (model.status, model.calibrated) == ("converged", False)
    assert model.certified_gap <= 1e-3


@pytest.mark.parametrize("probability", [False, True])
@pytest.mark.parametrize("options", [{"exact": True}, {"landmarks": 20}])
def test_a_signal_after_training_does_not_lose_the_model(
    ooc_fw, here, monkeypatch, probability, options
):
    """It arrives when the solution becomes a model."""

    due = [True]

    def interrupted(*arguments):
        if due and due.pop():
            signal.raise_signal(signal.SIGINT)
        return model_of(*arguments)

    monkeypatch.setattr("ooc_fw.training.fit.model_of", interrupted)
    shutil.copy("m.h5", "new.h5")
    words = ["--exact" if "exact" in options else "--landmarks=20"]
    words += ["--probability"] * probability
    outcome = ooc_fw("train", "d.h5", "-o", "new.h5", *words, "--json")
    result = json.loads(outcome.out)
    assert (outcome.status, result["status"]) == (130, "converged")
    model = load_model(result["model"])
    assert (model.status, model.calibrated) == ("converged", False)
    with h5py.File("d.h5") as file:
        X, y = file["X"][...], file["y"][...]
    own = FrankWolfeSVC(random_state=0, probability=probability, **options)
    due.append(True)
    if probability:
        with pytest.warns(ConvergenceWarning, match="interrupted: the model gives no prob"):
            own.fit(X, y)
    else:
        with pytest.raises(KeyboardInterrupt):
            own.fit(X, y)
    assert own.model_.status == "converged"
    assert own.score(X, y) > 0.8


def test_an_estimator_keeps_its_model_if_calibration_has_no_time(table, monkeypatch):
    monkeypatch.setattr("ooc_fw.training.fit._calibrated", end_late)
    own = FrankWolfeSVC(probability=True)
    with pytest.warns(ConvergenceWarning, match="no time left: the model gives no probabilities"):
        own.fit(*table)
    assert (own.model_.status, own.model_.calibrated) == ("converged", False)
