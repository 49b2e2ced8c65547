"""`ooc-fw train --dry-run`: the kind of model, a table that adds up, and nothing written."""

import re
import resource

import h5py
import numpy as np
import pytest

from ooc_fw.kernels.functions import make_kernel
from tests.support.files import write_csr_group, write_dense, write_sparse
from tests.support.methods import grid
from tests.support.reference import make_problem


@pytest.fixture
def plan(ooc_fw):
    """The plan for a file as JSON."""

    def make(path, *arguments):
        return ooc_fw("train", path, "--dry-run", "--json", *arguments).done().json()

    return make


@pytest.fixture(params=grid(["dense", "sparse"], quick=1))
def data(request, tmp_path):
    problem = make_problem(make_kernel("rbf", gamma=1.0), n_rows=200, density=0.5)
    write = write_dense if request.param == "dense" else write_sparse
    return write(tmp_path / "data.h5", problem.X, problem.y)


@pytest.mark.parametrize(
    ("options", "kind", "part"),
    [
        ((), "exact", "kernel values"),
        (("--landmarks", "none"), "exact", "active rows"),
        (("--landmarks", 40), "landmarks", "matrices between landmarks"),
        (("--task", "novelty"), "exact", "active rows"),
    ],
)
def test_the_terms_add_up_and_nothing_is_written(ooc_fw, plan, data, options, kind, part):
    before = sorted(data.parent.iterdir())
    result = plan(data, "--memory", "2GiB", *options)
    assert sum(result["memory"].values()) <= result["memory_limit"] == 2 << 30
    assert (result["kind"], result["landmarks"]) == (kind, 40 if kind == "landmarks" else None)
    assert part in result["memory"]
    text = ooc_fw("train", data, "--dry-run", "--memory", "2GiB", *options).out
    assert max(map(len, text.splitlines())) <= 80
    assert result["choice"] in " ".join(text.split())
    assert "limit 2 GiB" in text
    assert sorted(data.parent.iterdir()) == before


def test_a_limit_too_small_is_refused(ooc_fw, data):
    command = "train", data, "--dry-run", "--memory", "10MiB"
    ooc_fw(*command).assert_refused("a limit that would do is")
    ooc_fw("plan", data).assert_refused("plan")


def test_the_scratch_of_sparse_rows_is_planned(tmp_path, ooc_fw):
    """One thread at least has a number in float32 for each feature."""
    needed = []
    for n_features in (100, 30_000_000):
        path = tmp_path / f"{n_features}.h5"
        with h5py.File(path, "w") as file:
            write_csr_group(file.create_group("X"), np.eye(100, dtype=np.float32))
            file["X"].attrs["shape"] = (100, n_features)
            file["y"] = np.where(np.arange(100) % 2, 1.0, -1.0)
        said = ooc_fw("train", path, "--dry-run", "--gamma", "0.5", "--memory", "1MiB").err
        needed.append(int(re.search(r"would do is (\d+)MiB", said)[1]) << 20)
    assert needed[1] >= needed[0] + 4 * 30_000_000


@pytest.mark.grid
def test_large_chunks_of_foreign_files_are_planned(tmp_path, plan):
    X = np.random.default_rng(0).normal(size=(20_000, 20)).astype(np.float32)
    buffers = []
    for chunk in (100, 20_000):
        path = tmp_path / f"{chunk}.h5"
        with h5py.File(path, "w") as file:
            file.create_dataset("X", data=X, chunks=(chunk, 20), compression=1)
            file["y"] = np.where(X[:, 0] > 0, 1.0, -1.0)
        memory = plan(path, "--gamma", "0.5", "--memory", "1GiB")["memory"]
        buffers.append(sum(memory[name] for name in memory if "buffers" in name))
    assert buffers[1] >= buffers[0] + X.nbytes


@pytest.mark.grid
def test_without_memory_no_more_is_planned_than_a_process_may_take(tmp_path, plan, monkeypatch):
    """As under ``ulimit -v``: the machine's own memory does not count."""
    X = np.random.default_rng(0).normal(size=(40_000, 2)).astype(np.float32)
    path = write_dense(tmp_path / "data.h5", X, np.where(X[:, 0] > 0, 1.0, -1.0))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (3 << 30, resource.RLIM_INFINITY))
    assert sum(plan(path, "--gamma", "0.5")["memory"].values()) <= 3 << 30
