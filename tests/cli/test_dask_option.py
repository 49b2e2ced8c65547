"""``--dask`` of every command that goes through a file."""

import h5py
import numpy as np
import pytest

# From run to run, and what other processes read and compute, which is not counted.
UNEQUAL = {"seconds", "sweep_seconds", "peak_rss_bytes", "model"}
UNEQUAL |= {"bytes_read", "rows_read", "kernel_evaluations", "passes"}


def numbers(outcome):
    """JSON result without what differs from run to run."""
    return {k: v for k, v in outcome.json().items() if k not in UNEQUAL}


def assert_agree(one, other):
    assert one.keys() == other.keys()
    for key, value in one.items():
        is_number = isinstance(value, float)
        assert other[key] == (pytest.approx(value, rel=1e-6) if is_number else value)


@pytest.fixture(scope="module")
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


@pytest.mark.parametrize(
    ("foreign", "dask"),
    [("hdf5", "threads"), pytest.param("npy", "processes", marks=pytest.mark.process)],
    indirect=["foreign"],
)
def test_train(ooc_fw, foreign, tmp_path, dask):
    models, results = [tmp_path / "plain.h5", tmp_path / "spread.h5"], []
    for model, options in zip(models, ((), ("--dask", dask)), strict=True):
        command = "train", *foreign, "-o", model, "--json", "--threads", 2
        results.append(numbers(ooc_fw(*command, *options)))
    assert_agree(*results)


@pytest.mark.parametrize(
    ("dask", "names"),
    [
        ("threads", ["certify", "evaluate"]),
        pytest.param("processes", ["certify"], marks=pytest.mark.process),
    ],
)
def test_certify_and_evaluate(ooc_fw, model_file, data_file, dask, names):
    for name in names:
        command = name, model_file, data_file, "--json"
        assert_agree(numbers(ooc_fw(*command)), numbers(ooc_fw(*command, "--dask", dask)))


def test_predict(ooc_fw, model_file, data_file):
    predict = "predict", model_file, data_file, "--decision"
    assert ooc_fw(*predict, "--dask", "threads") == ooc_fw(*predict)
