import h5py
import numpy as np
import pytest

from ooc_fw.model.record import load_model


def test_train_predict_certify(ooc_fw, data_file, tmp_path):
    model = tmp_path / "m.h5"
    options = "--task", "novelty", "--contamination", "0.1", "--C", "3", "--gamma", "2"
    found = ooc_fw("train", data_file, "-o", model, *options, "--json").json()
    assert (found["task"], found["status"]) == ("novelty", "converged")
    assert found["certified_gap"] <= 1e-3
    assert found["offset"] > found["rho"]
    lines = ooc_fw("predict", model, data_file).out.split()
    assert set(lines) == {"1", "-1"}
    assert np.mean([line == "-1" for line in lines]) == pytest.approx(0.1, abs=0.02)
    again = ooc_fw("certify", model, data_file, "--json").json()
    assert again["certified_gap"] == pytest.approx(found["certified_gap"], rel=1e-6)
    assert again["rho"] == pytest.approx(found["rho"], rel=1e-9)
    about = ooc_fw("info", model, "--json").json()
    assert about["task"] == "novelty"
    assert load_model(model).task == "novelty"
    np.save(tmp_path / "X.npy", np.random.default_rng(0).normal(size=(60, 3)))
    ooc_fw("train", tmp_path / "X.npy", "--task", "novelty").done()  # without labels


def test_novel_rows_are_found_by_a_threshold(ooc_fw, data_file, tmp_path):
    model, X = tmp_path / "m.h5", np.random.default_rng(0).random((80, 4)).astype("f4")
    X[:30] += 3
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", np.array(["attack"] * 30 + ["normal"] * 25 + ["other"] * 25))
    np.save(tmp_path / "signs.npy", np.where(np.arange(80) < 30, -1, 1))
    ooc_fw("train", data_file, "-o", model, "--task", "novelty", "--quiet").done()
    data = "evaluate", model, tmp_path / "X.npy", "--labels"
    ooc_fw(*data, tmp_path / "y.npy").assert_refused("known: -1, 1; found: attack, normal, other")
    threshold = "--threshold", "0.5"
    found = ooc_fw(*data, tmp_path / "signs.npy", *threshold, "--json").json()
    assert found["positive"] == "-1"
    novel = np.array(ooc_fw("predict", model, data[2], *threshold).out.split()) == "-1"
    assert found["classes"]["-1"]["precision"] == pytest.approx(novel[:30].sum() / novel.sum())


def test_landmarks_are_certified_and_explained(ooc_fw, data_file, tmp_path):
    model = tmp_path / "m.h5"
    options = "--task", "novelty", "--contamination", "0.1", "--C", "0.1", "--landmarks", "30"
    run = ooc_fw("train", data_file, "-o", model, *options, "--json")
    assert "30 landmarks: as asked" in run.err
    found = run.json()
    assert (found["kind"], found["gap_scope"], found["status"]) == (
        "landmarks",
        "span",
        "converged",
    )
    lines = ooc_fw("predict", model, data_file).out.split()
    assert np.mean([line == "-1" for line in lines]) == pytest.approx(0.1, abs=0.02)
    again = ooc_fw("certify", model, data_file, "--json").json()
    assert again["certified_gap"] == pytest.approx(found["certified_gap"], rel=1e-6)
    assert "landmarks" in ooc_fw("info", model).out


def test_ordinary_rows_alone_are_learned(ooc_fw, data_file, tmp_path):
    model = tmp_path / "m.h5"
    run = ooc_fw("train", data_file, "-o", model, "--task", "novelty", "--ordinary", "3").done()
    assert "70 rows labelled 3 are ordinary, and alone are learned; 130 others are novel" in run.err
    with h5py.File(data_file) as file:
        ordinary = file["y"][...] == 3
    found = load_model(model)
    weighted = np.unpackbits(found.weighted_rows)[:200].astype(bool)
    np.testing.assert_array_equal(weighted, ordinary)
    assert ordinary[found.rows].all()
    ooc_fw("certify", model, data_file).done()
