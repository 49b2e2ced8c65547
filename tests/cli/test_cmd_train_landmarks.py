"""`ooc-fw train` with landmarks, asked for and chosen, from the options to the model file."""

import json
import os
import signal

import h5py
import numpy as np
import pytest

from ooc_fw.landmarks import relative_target
from ooc_fw.landmarks.passes import Passes
from ooc_fw.model.record import load_model


def landmarks_of(path):
    return [own.beta for own in load_model(path).classifiers]


def test_json_log_and_model_agree(ooc_fw, noisy, tmp_path):
    path, log = tmp_path / "m.h5", tmp_path / "log.jsonl"
    options = "--json", "--landmarks", 40, "--class-weight", "balanced", "--log", log
    outcome = ooc_fw("train", noisy, "-o", path, *options).done()
    result, model = outcome.json(), load_model(path)
    expected = {"status": "converged", "kind": "landmarks", "gap_scope": "span", "n_support": 40}
    assert expected.items() <= result.items()
    assert result["passes"] == pytest.approx(result["kernel_evaluations"] / (500 * 40))
    assert 0 <= result["certified_gap"] == model.certified_gap <= relative_target(1e-3)
    each = result.get("classifiers", [result])
    assert len(each) == len(model.classifiers) == (1 if len(model.classes) == 2 else 3)
    for own, found in zip(model.classifiers, each, strict=True):
        assert (found["primal"], found["dual"]) == (own.primal, own.dual)
        assert found["certified_gap"] == pytest.approx((own.primal - own.dual) / own.primal)
    with h5py.File(noisy) as file:
        _, codes, counts = np.unique(file["y"][...], return_inverse=True, return_counts=True)
    penalties = (500 / (len(counts) * counts))[codes]
    np.testing.assert_allclose(model.penalties, penalties[model.rows])
    *_, end = (json.loads(line) for line in log.read_text().splitlines())
    assert end == {"event": "end", **result}
    assert result["choice"] in outcome.err
    ooc_fw("plot", log, "-o", tmp_path / "run.svg").done()
    certified = ooc_fw("certify", path, noisy, "--json").json()
    assert certified["certified_gap"] == pytest.approx(model.certified_gap, rel=1e-3, abs=1e-7)
    assert ooc_fw("evaluate", path, noisy, "--json").json()["accuracy"] > 0.6


def test_a_run_that_was_ended_goes_on(ooc_fw, noisy, tmp_path, monkeypatch):
    whole, model, checkpoint = (tmp_path / name for name in ("whole.h5", "m.h5", "run.ckpt"))
    options = "--tol", 1e-7, "--quiet"
    ooc_fw("train", noisy, "--landmarks", 40, *options, "-o", whole).done()

    def gradient(passes, b, *, exact=False):
        if exact:
            signal.raise_signal(signal.SIGINT)
        return original(passes, b, exact=exact)

    original = Passes.gradient
    monkeypatch.setattr(Passes, "gradient", gradient)
    saving = "--checkpoint", checkpoint, "-o", model
    assert ooc_fw("train", noisy, "--landmarks", 40, *options, *saving).status == 130
    assert "resume" in ooc_fw("info", checkpoint).out
    os.unlink(model)
    monkeypatch.undo()
    ooc_fw("train", noisy, *options, "--resume", checkpoint, "-o", model).done()
    found, known = load_model(model), load_model(whole)
    assert found.status == known.status == "converged"
    np.testing.assert_array_equal(found.rows, known.rows)
