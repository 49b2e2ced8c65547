from __future__ import annotations

import json

import h5py
import numpy as np
import pytest


def describe(ooc_fw, *arguments):
    outcome = ooc_fw("info", *arguments, "--json")
    assert (outcome.status, outcome.err) == (0, "")
    return json.loads(outcome.out)


def test_data_file(ooc_fw, data_file, table):
    result = describe(ooc_fw, data_file)
    with h5py.File(data_file) as file:
        X = file["X"][...].astype(float)
    sigma2 = 2 * ((X**2).sum(axis=1).mean() - (X.mean(axis=0) ** 2).sum())
    assert result.pop("sigma2") == pytest.approx(sigma2, rel=1e-6)
    assert result.pop("gamma_auto") == pytest.approx(1 / (2 * sigma2), rel=1e-6)
    assert result == {
        "kind": "data",
        "n_rows": 200,
        "n_features": 4,
        "storage": "dense",
        "classes": {"-7": int((table.y == -7).sum()), "3": int((table.y == 3).sum())},
        "scaling": "minmax",
        "log1p": False,
        "shuffled": True,
        "chunk_rows": result["chunk_rows"],
        "file_bytes": data_file.stat().st_size,
        "compression": "none",
    }


@pytest.mark.parametrize("name", ["none", "gzip", "lz4", "zstd"])
@pytest.mark.parametrize("storage", ["dense", "sparse"])
def test_compression(ooc_fw, text_file, tmp_path, name, storage):
    if name in ("lz4", "zstd"):
        pytest.importorskip("hdf5plugin")
    path = tmp_path / "d.h5"
    ooc_fw("convert", text_file, path, "--compression", name, f"--{storage}")
    assert describe(ooc_fw, path)["compression"] == name


def test_array_file(ooc_fw, table, tmp_path):
    np.save(tmp_path / "X.npy", table.X)
    result = describe(ooc_fw, tmp_path / "X.npy")
    assert result["n_rows"] == 200
    unknown = ("classes", "scaling", "shuffled", "sigma2", "gamma_auto", "compression")
    assert [result[name] for name in unknown] == [None] * 6


def test_model_file(ooc_fw, model_file):
    result = describe(ooc_fw, model_file)
    assert result["kind"] == "model"
    assert result["kernel"] == "rbf"
    assert result["C"] == 5
    assert result["classes"] == ["-7", "3"]
    assert result["status"] == "converged"
    assert 0 <= result["certified_gap"] <= 1e-3
    assert result["scaling"] == "minmax"


def test_for_people(ooc_fw, data_file, table):
    lines = [" ".join(line.split()) for line in ooc_fw("info", data_file).out.splitlines()]
    assert lines[0] == "kind data"
    assert f"classes -7 ({(table.y == -7).sum()}), 3 ({(table.y == 3).sum()})" in lines


def test_neither_data_nor_model(ooc_fw, tmp_path):
    (tmp_path / "x.h5").write_text("3 1:1\n")
    ooc_fw("info", tmp_path / "x.h5").assert_refused("x.h5")
    ooc_fw("info", tmp_path / "none.h5").assert_refused("none.h5")
