"""``--dask`` of every command that goes through a file: results are those without it."""

import h5py
import numpy as np
import pytest

# From run to run, and what other processes read and compute, which is not counted.
UNEQUAL = {"seconds", "sweep_seconds", "peak_rss_bytes", "model"}
UNEQUAL |= {"bytes_read", "rows_read", "kernel_evaluations", "passes"}


@pytest.fixture(scope="module")
def foreign(table, tmp_path_factory):
    """Rows without statistics, so that gamma needs a pass: HDF5, and .npy with labels beside it."""
    folder = tmp_path_factory.mktemp("foreign")
    with h5py.File(folder / "data.h5", "w") as file:
        file["X"], file["y"] = table
    np.save(folder / "X.npy", table.X)
    np.save(folder / "y.npy", table.y)
    return {"hdf5": folder / "data.h5", "npy": f"{folder / 'X.npy'} --labels {folder / 'y.npy'}"}


processes = pytest.mark.process


@pytest.mark.parametrize(
    ("dask", "command"),
    [
        ("threads", "train {hdf5} -o {new} --threads 2"),
        pytest.param("processes", "train {npy} -o {new} --threads 2", marks=processes),
        ("threads", "certify {model} {data}"),
        pytest.param("processes", "certify {model} {data}", marks=processes),
        ("threads", "evaluate {model} {data}"),
        ("threads", "importance {model} {data} --rows all"),
        ("threads", "predict {model} {data} --decision -o {new}"),
    ],
)
def test_results_are_alike(ooc_fw, foreign, model_file, data_file, tmp_path, dask, command):
    new = tmp_path / "new"
    words = command.format(**foreign, model=model_file, data=data_file, new=new).split()
    one = ooc_fw(*words, "--json").json()
    predictions = new.read_bytes() if words[0] == "predict" else b""
    other = ooc_fw(*words, "--json", "--dask", dask).json()
    assert one.keys() == other.keys()
    for key in one.keys() - UNEQUAL:
        is_number = isinstance(one[key], float)
        assert other[key] == (pytest.approx(one[key], rel=1e-6) if is_number else one[key])
    assert words[0] != "predict" or new.read_bytes() == predictions
