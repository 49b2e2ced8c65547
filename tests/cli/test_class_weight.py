"""``--class-weight`` of ``ooc-fw train``, and what ``certify`` makes of it."""

from __future__ import annotations

import json

import h5py
import numpy as np
import pytest

from ooc_fw.model.record import load_model
from ooc_fw.testing.reference import SmallProblem


@pytest.fixture
def weighted(ooc_fw, data_file, tmp_path):
    """A model trained with weights of classes."""
    path = tmp_path / "m.h5"
    outcome = ooc_fw("train", data_file, "-o", path, "--C", 2, "--class-weight=-7=0.5,3=4")
    assert outcome.status == 0
    return path


def brute_force(data_file, model):
    with h5py.File(data_file) as file:
        X, labels = file["X"][...], file["y"][...]
    y = np.where(labels == 3, 1, -1).astype(np.int8)
    return SmallProblem(model.kernel, X, y, 2 * np.where(y > 0, 4.0, 0.5))


def test_penalties_are_in_the_model(weighted):
    (machine,) = load_model(weighted).machines
    np.testing.assert_array_equal(machine.C, np.where(machine.labels > 0, 8.0, 1.0))
    assert load_model(weighted).C == 2


def test_certify_agrees_with_brute_force(ooc_fw, weighted, data_file):
    model = load_model(weighted)
    (machine,) = model.machines
    truth = brute_force(data_file, model).truth(machine.rows, machine.alpha)
    result = json.loads(ooc_fw("certify", weighted, data_file, "--json").out)
    assert truth.gap <= result["certified_gap"] <= min(1e-3, truth.gap + 1e-6)


def test_weights_favour_their_class(ooc_fw, weighted, data_file, tmp_path):
    ooc_fw("train", data_file, "-o", tmp_path / "plain.h5", "--C", 2)
    with h5py.File(data_file) as file:
        X, is_heavy = file["X"][...], file["y"][...] == 3
    plain, heavy = (
        (load_model(path).predict(X)[is_heavy] == 3).mean()
        for path in (tmp_path / "plain.h5", weighted)
    )
    assert heavy > plain


def test_balanced(ooc_fw, data_file, tmp_path):
    outcome = ooc_fw("train", data_file, "-o", tmp_path / "m.h5", "--class-weight", "balanced")
    assert outcome.status == 0
    with h5py.File(data_file) as file:
        y = file["y"][...]
    (machine,) = load_model(tmp_path / "m.h5").machines
    expected = np.where(machine.labels > 0, 100 / (y == 3).sum(), 100 / (y == -7).sum())
    np.testing.assert_allclose(machine.C, expected)


@pytest.mark.parametrize("text", ["fair", "1", "3=", "3=x", "3=1,", "=1"])
def test_malformed(ooc_fw, data_file, text):
    ooc_fw("train", data_file, "--class-weight", text).assert_refused("class weight")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("5=1", "a weight for 5.0, which is no label"),
        ("3=0", "the weight of class 3.0 must be a positive number"),
        ("spam=2", "must name labels"),
    ],
)
def test_unusable(ooc_fw, data_file, tmp_path, text, message):
    outcome = ooc_fw("train", data_file, "-o", tmp_path / "m.h5", "--class-weight", text)
    outcome.assert_refused(message)


def test_streams_take_no_weights(ooc_fw, data_file):
    outcome = ooc_fw("train", "-", "--stream", "-o", "x", "--class-weight", "balanced")
    outcome.assert_refused("--class-weight")
