"""`ooc-fw plan`: the table adds up, the estimate is one, a limit too small is refused."""

import dataclasses
import re
import resource
import shlex

import h5py
import numpy as np
import pytest

from ooc_fw.kernels.functions import make_kernel
from ooc_fw.training.fit import make_plan
from tests.support.files import write_csr_group, write_dense, write_sparse
from tests.support.methods import grid
from tests.support.reference import make_problem


@pytest.fixture
def plan(ooc_fw):
    """The plan for a file as JSON."""

    def make(path, *arguments):
        outcome = ooc_fw("plan", path, "--json", *arguments).done()
        return outcome.json()

    return make


@pytest.fixture(params=grid(["dense", "sparse"], quick=1))
def data(request, tmp_path):
    problem = make_problem(make_kernel("rbf", gamma=1.0), n_rows=200, density=0.5)
    write = write_dense if request.param == "dense" else write_sparse
    return write(tmp_path / "data.h5", problem.X, problem.y)


def test_the_terms_add_up(ooc_fw, plan, data):
    result = plan(data, "--memory", "2GiB")
    assert sum(result["memory"].values()) <= result["memory_limit"] == 2 << 30
    assert 1 <= result["support_expected"] <= result["support_at_most"]
    assert result["support_at_most"] <= result["max_vertices"] == 200
    assert result["kernel_values_per_second"] > 0
    assert 0 < result["seconds_expected"] <= result["seconds_at_most"]
    given = "--class-weight=-1=2.0,1=1.0", "--max-iter", "9", "--max-time", "1h"
    text = ooc_fw("plan", data, "--memory", "2GiB", *given).out
    assert max(map(len, text.partition("next:")[0].splitlines())) <= 80
    command = shlex.split(text.splitlines()[-1])
    assert command[:3] == ["ooc-fw", "train", str(data)]
    assert "s, within --max-time 3600 s" in " ".join(text.split())
    assert {*given[:3], "--memory", "2GiB"} <= {*command}
    assert "limit 2 GiB" in text
    assert "starting the program adds about a second" in text
    assert "kernel values between active rows" in text
    ooc_fw("plan", data, "--memory", "10MiB").assert_refused("the smallest limit that would do is")


@pytest.mark.parametrize(
    ("arguments", "n_bytes"),
    grid(
        [
            (["--memory", "2GiB"], 2),
            (["--memory", "2GiB", "--class-weight=-1=10000"], 4),
            (["--C", "1e9"], 8),
            (["--memory", "2GiB", "--C", "10000"], 4),
            ([], 4),
        ],
        quick=3,
    ),
)
def test_plan_knows_the_precision_of_kernel_values(data, plan, arguments, n_bytes):
    assert plan(data, "--gamma", "0.5", *arguments)["kernel_value_bytes"] == n_bytes


def test_the_scratch_of_sparse_rows_is_planned(tmp_path, ooc_fw):
    """One thread at least has a number in float32 for each feature."""
    needed = []
    for n_features in (100, 30_000_000):
        path = tmp_path / f"{n_features}.h5"
        with h5py.File(path, "w") as file:
            write_csr_group(file.create_group("X"), np.eye(100, dtype=np.float32))
            file["X"].attrs["shape"] = (100, n_features)
            file["y"] = np.where(np.arange(100) % 2, 1.0, -1.0)
        said = ooc_fw("plan", path, "--gamma", "0.5", "--memory", "1MiB").err
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


@pytest.mark.grid
@pytest.mark.parametrize("fits", grid([True, False], quick=1))
def test_kernel_values_that_do_not_fit_are_told(ooc_fw, data, monkeypatch, fits):
    def make(*arguments):
        found = make_plan(*arguments)
        parts = found.memory.parts | {"kernel_rows": 100}
        memory = dataclasses.replace(found.memory, parts=parts)
        return found if fits else dataclasses.replace(found, memory=memory)

    monkeypatch.setattr("ooc_fw.cli.train.make_plan", make)
    assert ("do not all fit the memory" in ooc_fw("plan", data).out) is not fits
    assert ooc_fw("plan", data, "--json").json()["kernel_values_fit"] is fits
