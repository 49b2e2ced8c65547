"""`ooc-fw train` with landmarks, asked for and chosen, from the options to the model file."""

import json
import os
import signal

import h5py
import numpy as np
import pytest

from ooc_fw.landmarks import relative_target
from ooc_fw.landmarks.passes import Passes
from ooc_fw.landmarks.solve import LandmarkPath
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
    assert len(each) == len(model.classifiers) == (1 if result["n_classes"] == 2 else 3)
    for own, found in zip(model.classifiers, each, strict=True):
        assert (found["primal"], found["dual"]) == (own.primal, own.dual)
        assert found["certified_gap"] == pytest.approx((own.primal - own.dual) / own.primal)
    with h5py.File(noisy) as file:
        _, codes, counts = np.unique(file["y"][...], return_inverse=True, return_counts=True)
    penalties = (500 / (len(counts) * counts))[codes]
    np.testing.assert_allclose(model.classifiers[0].C, penalties[model.classifiers[0].rows])
    *_, end = (json.loads(line) for line in log.read_text().splitlines())
    assert end == {"event": "end", **result}
    assert result["choice"] in outcome.err
    assert "within the span of the 40 landmarks, certified over all rows" in outcome.err
    ooc_fw("plot", log, "-o", tmp_path / "run.svg").done()
    certified = ooc_fw("certify", path, noisy, "--json").json()
    assert certified["certified_gap"] == pytest.approx(model.certified_gap, rel=1e-3, abs=1e-7)
    assert ooc_fw("evaluate", path, noisy, "--json").json()["accuracy"] > 0.6


@pytest.mark.grid
def test_max_support_takes_landmarks_and_a_budget_none(ooc_fw, noisy, tmp_path):
    path, exact = tmp_path / "m.h5", tmp_path / "e.h5"
    chosen = ooc_fw("train", noisy, "-o", path, "--max-support", 40)
    assert "more than --max-support 40; --exact takes the optimum" in chosen.err
    ooc_fw("train", noisy, "-o", tmp_path / "n.h5", "--landmarks", 40, "--probability")
    assert load_model(tmp_path / "n.h5").calibrated
    np.testing.assert_array_equal(landmarks_of(path), landmarks_of(tmp_path / "n.h5"))
    ooc_fw("train", noisy, "-o", exact, "--budget", 40).done()
    model = load_model(exact)
    assert (model.kind, model.status) == ("exact", "support_limit")
    planned = ooc_fw("plan", noisy, "--max-support", 40, "--json").json()
    assert (planned["kind"], planned["landmarks"]) == ("landmarks", 40)
    assert planned["choice"] in chosen.err
    assert "matrices between landmarks" in planned["memory"]
    assert planned["choice"] in ooc_fw("plan", noisy, "--max-support", 40).words


def test_a_run_that_was_ended_resumes_to_the_same_file(ooc_fw, noisy, tmp_path, monkeypatch):
    whole, model, checkpoint = (tmp_path / name for name in ("whole.h5", "m.h5", "run.ckpt"))
    options = "--tol", 1e-7, "--quiet"
    ooc_fw("train", noisy, "--landmarks", 40, *options, "-o", whole).done()

    def gradient(passes, b, *, exact=False):
        if exact:
            signal.raise_signal(signal.SIGTERM)
        return original(passes, b, exact=exact)

    original = Passes.gradient
    monkeypatch.setattr(Passes, "gradient", gradient)
    saving = "--checkpoint", checkpoint, "-o", model
    assert ooc_fw("train", noisy, "--landmarks", 40, *options, *saving).status == 143
    assert "--landmarks 40" in ooc_fw("info", checkpoint).out
    os.unlink(model)
    monkeypatch.undo()
    ooc_fw("train", noisy, *options, "--resume", checkpoint, "-o", model).done()
    assert model.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--landmarks", 5), "--landmarks: must be a whole number of at least 20, not '5'"),
        (("--landmarks", 40, "--exact"), "--landmarks 40 and --exact contradict each other"),
        (("--landmarks", 40, "--method", "swap"), "--method swap"),
        (("--landmarks", 40, "--stopping", "meb"), "--stopping meb"),
        (("--landmarks", 40, "--max-support", 30), "--max-support 30"),
    ],
)
def test_contradictions_are_refused(ooc_fw, noisy, tmp_path, options, said):
    ooc_fw("train", noisy, "-o", tmp_path / "m.h5", *options).assert_refused(said)
    assert not (tmp_path / "m.h5").exists()


def test_landmarks_from_a_file(ooc_fw, noisy, tmp_path, monkeypatch):
    """By number, or as rows: the same model, which is certified again over these rows only."""
    numbers = np.arange(7, 307, 12)
    np.savetxt(tmp_path / "numbers.txt", numbers, fmt="%d")
    with h5py.File(noisy) as file:
        rows, y = file["X"][...], file["y"][...]
    np.save(tmp_path / "rows.npy", rows[numbers])
    np.savetxt(tmp_path / "rows.csv", rows[numbers], delimiter=",")
    models = [tmp_path / f"{name}.h5" for name in ("numbers.txt", "rows.npy", "rows.csv")]
    for model in models:
        options = "--landmarks", model.with_suffix(""), "--class-weight", "balanced"
        found = ooc_fw("train", noisy, "-o", model, *options, "--json").json()
        assert (found["n_support"], found["status"]) == (25, "converged")
    first, *others = (load_model(model).classifiers[0] for model in models)
    assert first.rows.tolist() == numbers.tolist()
    for other in others:
        assert set(other.rows.tolist()) == {-1}
        np.testing.assert_array_equal(other.beta, first.beta)
    ooc_fw("certify", models[0], noisy, "--tol", 0.01).done()
    ooc_fw("certify", models[1], noisy).assert_refused("trained with weights of rows")
    plain = tmp_path / "plain.h5"
    ooc_fw("train", noisy, "-o", plain, "--landmarks", tmp_path / "rows.npy").done()
    ooc_fw("certify", plain, noisy, "--tol", 0.01).done()
    for name, values in (("X", rows[::-1].copy()), ("y", y)):
        np.save(tmp_path / f"{name}.npy", values)
    other = tmp_path / "X.npy", "--labels", tmp_path / "y.npy"
    ooc_fw("certify", plain, *other).assert_refused("have another objective")
    stream = "train", noisy, "--stream", "--landmarks", tmp_path / "rows.npy"
    ooc_fw(*stream).assert_refused("--landmarks has no part in --stream")
    assert "25 landmarks" in ooc_fw("plan", noisy, "--landmarks", tmp_path / "rows.csv").out
    found = set()

    def note(self, problem, plan, *rest):
        found.update(map(bytes, plan.options.centres.rows))
        trained(self, problem, plan, *rest)

    trained = LandmarkPath.__init__
    monkeypatch.setattr(LandmarkPath, "__init__", note)
    tune = "tune", noisy, "--C", "1,8", "--landmarks", tmp_path / "numbers.txt", "-o", plain
    ooc_fw(*tune, "--gamma", "auto", "--kernel", "rbf").done()
    assert found == set(map(bytes, rows[numbers]))  # in parts of the rows, too
    assert set(load_model(plain).classifiers[0].rows) <= set(numbers)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "must be a whole number, or a file of rows or their numbers, not"),
        ("\n", "(it is empty)"),
        ("1\n2\nthree\n", "could not convert string 'three'"),
        ("1\n2\n2\n", "have row 2 of"),
        ("1 2\n3 4\n", "landmarks have 2 columns, and"),
        ("900\n", "landmarks have the row 900, and rows of"),
    ],
)
def test_files_of_landmarks_that_are_refused(ooc_fw, noisy, tmp_path, content, message):
    path = tmp_path / "marks.txt"
    if content is not None:
        path.write_text(content)
    ooc_fw("train", noisy, "--landmarks", path).assert_refused(message)
