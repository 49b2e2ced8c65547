from __future__ import annotations

import json

import h5py
import numpy as np
import pytest

from ooc_fw.model.record import load_model


def test_brute_force_in_double_precision_agrees(ooc_fw, model_file, data_file):
    outcome = ooc_fw("certify", model_file, data_file, "--json")
    assert (outcome.status, outcome.err) == (0, "")
    result = json.loads(outcome.out)
    assert list(result) == ["certified_gap", "pair_gap", "objective", "rho", "n_violators"]
    assert result["pair_gap"] >= result["certified_gap"] <= 1e-3
    assert result["n_violators"] == 0
    model = load_model(model_file)
    (machine,) = model.classifiers
    with h5py.File(data_file) as file:
        X, y = file["X"][...].astype(float), np.where(file["y"][...] == 3, 1.0, -1.0)
    distances = ((X[:, None] - X[machine.rows]) ** 2).sum(axis=2)
    K = np.exp(-model.kernel.gamma * distances)
    grad = y * ((K + 1) @ (machine.alpha * machine.labels))
    grad[machine.rows] += machine.alpha / model.C
    rho = machine.alpha @ grad[machine.rows]
    gap = 1 - grad.min() / rho
    assert result["rho"] == pytest.approx(rho, rel=1e-9)
    assert gap <= result["certified_gap"] <= gap + 1e-6


def test_gap_above_the_tolerance_is_status_1(ooc_fw, model_file, data_file):
    outcome = ooc_fw("certify", model_file, data_file, "--tol", 1e-9)
    assert outcome.status == 1
    assert outcome.out.startswith("certified_gap  ")
    assert int(outcome.out.split()[-1]) > 0  # violators


def test_other_data_are_refused(ooc_fw, model_file, table, data_file, write_text, tmp_path):
    path = tmp_path / "d.h5"
    for X, y, *parts in (
        (table.X[::-1], table.y[::-1], "give the file it was trained on"),
        (table.X, -table.y, "has labels -3, 7 but the model was trained on -7, 3"),
    ):
        ooc_fw("convert", write_text(X, y), path, "--like", data_file)
        ooc_fw("certify", model_file, path).assert_refused("d.h5", *parts)
