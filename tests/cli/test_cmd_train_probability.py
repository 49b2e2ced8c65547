"""``ooc-fw train --probability``: the same model, with sigmoids."""

import json
import signal

import numpy as np
import pytest

from ooc_fw.estimators import FrankWolfeSVC
from ooc_fw.model.record import load_model
from ooc_fw.system.errors import OutOfTimeError


def test_only_sigmoids_are_added(ooc_fw, data_file, tmp_path):
    options = "train", data_file, "--C", 5, "--json"
    plain = ooc_fw(*options, "-o", tmp_path / "plain.h5").json()
    options += "--log", tmp_path / "log", "--probability"
    result = ooc_fw(*options, "-o", tmp_path / "m.h5").json()
    assert result.pop("calibrated") is True
    assert list(result) == list(plain)
    for name in ("certified_gap", "objective", "iterations", "n_support"):
        assert result[name] == plain[name]
    model = load_model(tmp_path / "m.h5")
    estimator = FrankWolfeSVC(C=5, probability=True, random_state=0).fit(data_file)
    (own,), (other,) = model.classifiers, estimator.model_.classifiers
    assert (own.sigmoid_a, own.sigmoid_b) == (other.sigmoid_a, other.sigmoid_b)
    bare = load_model(tmp_path / "plain.h5")
    np.testing.assert_array_equal(model.rows, bare.rows)
    for name in ("sv", "beta", "rho", "certified_gap"):
        np.testing.assert_array_equal(getattr(own, name), getattr(bare.classifiers[0], name))
    events = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert events[-1]["calibrated"] is True
    iterations = [event["iteration"] for event in events if event["event"] == "progress"]
    assert iterations == sorted(iterations), "other runs are not logged"


def late(*_):
    raise OutOfTimeError("over")


@pytest.mark.parametrize(
    ("end", "status", "said"),
    [
        (lambda *_: signal.raise_signal(2), 130, "interrupted: the model gives no probabilities"),
        (late, 0, "no time left: the model gives no probabilities"),
    ],
)
def test_the_model_is_there_if_calibration_ends_early(
    ooc_fw, data_file, tmp_path, monkeypatch, end, status, said
):
    monkeypatch.setattr("ooc_fw.cli.train.calibrated", end)
    outcome = ooc_fw("train", data_file, "-o", tmp_path / "m.h5", "--probability", "--json")
    assert outcome.status == status
    assert said in outcome.err
    assert not outcome.out or json.loads(outcome.out)["calibrated"] is False
    model = load_model(tmp_path / "m.h5")
    assert model.status == "converged"
    assert model.certified_gap <= 1e-3
    assert not model.calibrated


@pytest.mark.process
def test_time_limit_covers_calibration(ooc_fw, data_file, tmp_path):
    options = "--max-time", 1, "--tol", 1e-12, "--C", 1e6, "--probability", "--json", "--quiet"
    outcome = ooc_fw("train", data_file, "-o", tmp_path / "m.h5", *options)
    result = outcome.json()
    assert result["seconds"] < 4
    assert load_model(tmp_path / "m.h5").calibrated


def test_class_of_one_row_is_refused_before_training(ooc_fw, table, tmp_path):
    np.save(tmp_path / "X.npy", table.X)
    np.save(tmp_path / "y.npy", np.where(np.arange(200) < 1, "rare", "often"))
    outcome = ooc_fw("train", tmp_path / "X.npy", "--labels", tmp_path / "y.npy", "--probability")
    outcome.assert_refused("the class rare has one only")
    assert not (tmp_path / "X.model.h5").exists()
