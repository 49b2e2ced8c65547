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


@pytest.fixture(scope="module", params=["hdf5", "npy"])
def foreign(request, table, tmp_path_factory):
    """DATA and its options: without statistics, so that gamma needs a pass."""
    folder = tmp_path_factory.mktemp("foreign")
    if request.param == "hdf5":
        with h5py.File(folder / "data.h5", "w") as file:
            file["X"], file["y"] = table
        return [folder / "data.h5"]
    np.save(folder / "X.npy", table.X)
    np.save(folder / "y.npy", table.y)
    return [folder / "X.npy", "--labels", folder / "y.npy"]


@pytest.mark.parametrize("dask", ["threads", pytest.param("processes", marks=pytest.mark.process)])
def test_train(ooc_fw, foreign, tmp_path, dask):
    models, results = [], []
    for options in ((), ("--dask", dask)):
        model = tmp_path / f"{len(models)}.h5"
        outcome = ooc_fw("train", *foreign, "-o", model, "--json", "--threads", 2, *options).done()
        results.append(numbers(outcome.out))
        models.append(model.read_bytes())
    assert models[0] == models[1]
    results[0].pop("bytes_read")
    results[1].pop("bytes_read")
    assert results[0] == results[1]


@pytest.mark.process
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


def test_what_is_refused_before_any_work(ooc_fw, data_file, model_file, text_file, tmp_path):
    outcome = ooc_fw("train", data_file, "-o", tmp_path / "m.h5", "--dask", "everywhere")
    outcome.assert_refused("must be threads, processes or the address", "'everywhere'")
    outcome = ooc_fw("predict", model_file, text_file, "--dask", "threads")
    outcome.assert_refused("is text", "leave --dask out")
    assert not list(tmp_path.iterdir())
