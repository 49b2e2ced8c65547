"""``--dask`` of every command that goes through a file."""

from __future__ import annotations

import json

import h5py
import numpy as np
import pytest

UNEQUAL = {"seconds", "sweep_seconds", "peak_rss_bytes", "model"}  # from run to run


def numbers(text):
    """JSON result without what differs from run to run."""
    result = json.loads(text)
    return {k: v for k, v in result.items() if k not in UNEQUAL}


@pytest.fixture(scope="module")
def foreign_file(table, tmp_path_factory):
    """Rows and labels without statistics, so that gamma needs a pass."""
    path = tmp_path_factory.mktemp("foreign") / "data.h5"
    with h5py.File(path, "w") as file:
        file["X"], file["y"] = table
    return path


@pytest.mark.parametrize("dask", ["threads", "processes"])
def test_train(ooc_fw, foreign_file, tmp_path, dask):
    models, results = [], []
    for options in ((), ("--dask", dask)):
        model = tmp_path / f"{len(models)}.h5"
        outcome = ooc_fw("train", foreign_file, "-o", model, "--json", "--threads", 2, *options)
        assert outcome.status == 0
        results.append(numbers(outcome.out))
        models.append(model.read_bytes())
    assert models[0] == models[1]
    results[0].pop("bytes_read")
    results[1].pop("bytes_read")
    assert results[0] == results[1]


def test_certify_evaluate_and_predict(ooc_fw, model_file, data_file):
    for dask in ("threads", "processes"):
        for command in (
            ("certify", model_file, data_file, "--json"),
            ("evaluate", model_file, data_file, "--json"),
        ):
            plain, spread = ooc_fw(*command), ooc_fw(*command, "--dask", dask)
            assert plain.status == spread.status == 0
            assert numbers(plain.out) == numbers(spread.out)
    plain = ooc_fw("predict", model_file, data_file, "--decision")
    assert ooc_fw("predict", model_file, data_file, "--decision", "--dask", "threads") == plain


def test_labels_of_a_npy_file(ooc_fw, table, tmp_path):
    np.save(tmp_path / "X.npy", table.X)
    np.save(tmp_path / "y.npy", table.y)
    data = tmp_path / "X.npy", "--labels", tmp_path / "y.npy"
    train = ooc_fw("train", *data, "-o", tmp_path / "m.h5", "--dask", "processes", "--quiet")
    assert (train.status, train.err) == (0, "")
    assert ooc_fw("certify", tmp_path / "m.h5", *data, "--dask", "processes").status == 0


def test_an_unknown_place_is_refused_before_any_work(ooc_fw, data_file, tmp_path):
    outcome = ooc_fw("train", data_file, "-o", tmp_path / "m.h5", "--dask", "everywhere")
    outcome.assert_refused("must be threads, processes or the address", "'everywhere'")
    assert not list(tmp_path.iterdir())


def test_text_is_refused(ooc_fw, model_file, text_file):
    outcome = ooc_fw("predict", model_file, text_file, "--dask", "threads")
    outcome.assert_refused("is text", "leave --dask out")
