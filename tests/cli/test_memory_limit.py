"""``ooc-fw train --memory``: the peak that the operating system reports stays below the limit."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest

from ooc_fw import load_model
from tests.support.files import write_dense, write_sparse
from tests.support.nursery import Nursery


@pytest.fixture(scope="module")
def commands():
    """A process that has loaded what training needs, and nothing else."""
    nursery = Nursery("import ooc_fw.cli.train, ooc_fw.training.fit")
    yield nursery
    nursery.close()


PEAK = """
import atexit, sys
from ooc_fw.system.memory import peak_rss_bytes
atexit.register(lambda: print("peak", peak_rss_bytes(), file=sys.stderr))
"""


@pytest.fixture
def peak_of(commands, tmp_path):
    """Peak of a process that runs Python code and then a command."""

    def run(command, prelude=""):
        ended = commands.run(*command.split(), folder=tmp_path, prelude=PEAK + prelude)
        assert ended.status == 0, (command, ended.err)
        return int(ended.err.split()[-1])

    return run


@pytest.mark.process
def test_no_command_takes_more_than_300_mib(tmp_path, peak_of):
    """The peak of a process of its own; without ``--memory`` for commands that do not have it."""
    rng = np.random.default_rng(0)
    X = (rng.normal(size=(5000, 20)) * (rng.random((5000, 20)) < 0.5)).astype(np.float32)
    y = np.where(X[:, 0] + rng.normal(size=len(X)) > 0, 1.0, -1.0)
    write_dense(tmp_path / "rows.h5", X[:3000], y[:3000])
    write_sparse(tmp_path / "sparse.h5", X[:2000], y[:2000])
    np.savetxt(tmp_path / "rows.csv", np.column_stack([y, X]), delimiter=",", fmt="%g")
    for line in (
        "train rows.h5 --exact --gamma 0.05 --tol 0.01 -o m.h5 --memory 300MiB",
        "train sparse.h5 --task novelty -o n.h5 --memory 300MiB",
        "predict m.h5 rows.h5 -o labels.csv",
        "evaluate m.h5 rows.h5",
        "certify m.h5 rows.h5 --tol 0.1",
        "importance n.h5 sparse.h5",
        "convert rows.csv converted.h5 --no-header --label 0",
    ):
        assert peak_of(line) <= 300 << 20, line


FIT = """
import numpy as np
from ooc_fw import FrankWolfeSVC
own = FrankWolfeSVC(gamma=0.2, landmarks=20, tol=0.1, memory_limit="380MiB")
own.fit(np.load("X.npy", mmap_mode="r"), np.load("y.npy")).save("own.h5")
"""


@pytest.mark.process
def test_a_file_may_be_larger_than_the_limit(tmp_path, peak_of):
    """By the command, and as an array on disk in Python, where libraries take 100 MiB more."""
    rng = np.random.default_rng(0)
    y = (np.arange(300_000) % 2).astype(np.int8)
    rows = np.lib.format.open_memmap(tmp_path / "X.npy", "w+", np.float32, (len(y), 250))
    block = 0.05 * rng.standard_normal((5000, 250), dtype=np.float32)
    block[:, 0] += y[:5000]
    for start in range(0, len(y), len(block)):
        rows[start : start + len(block)] = block
    np.save(tmp_path / "y.npy", y)
    how = "--labels y.npy --gamma 0.2 --landmarks 20 --tol 0.1 --memory 250MiB"
    assert peak_of(f"train X.npy {how} -o m.h5") <= 250 << 20
    assert peak_of("info own.h5", FIT) <= 380 << 20
    assert (tmp_path / "X.npy").stat().st_size > 280 << 20
    for name in ("m.h5", "own.h5"):
        model = load_model(tmp_path / name)
        assert (model.predict(block) == y[:5000]).mean() > 0.99


@pytest.mark.process
def test_predictions_take_a_few_bytes_for_each_row(tmp_path, peak_of):
    """8 bytes for a result and one for its place; the rows have 16."""
    rng = np.random.default_rng(0)
    few = rng.random((60, 4), dtype=np.float32)
    write_dense(tmp_path / "d.h5", few, np.where(few[:, 0] > 0.5, 1.0, -1.0))
    peak_of("train d.h5 -o m.h5")
    peaks = []
    for n_rows in (1_500_000, 5_000_000):
        write_dense(tmp_path / "d.h5", rng.random((n_rows, 4), dtype=np.float32), np.ones(n_rows))
        peaks.append(peak_of("predict m.h5 d.h5 -o out.txt"))
    assert peaks[1] - peaks[0] < 9 * 3_500_000 + 30e6


@pytest.mark.process
@pytest.mark.parametrize(
    "command",
    [
        "rows.h5",
        "sparse.h5",
        "sparse.h5 --landmarks 300",
        "rows.h5 --labels three.npy",
        "rows.h5 --labels three.npy --landmarks 100",
        "rows.h5 --labels targets.npy --task regression",
        "sparse.h5 --task novelty",
        "wide.npy --labels words.npy --landmarks 300",
        "wide.npy --labels words.npy --exact --tol 0.1",
    ],
)
def test_the_limit_that_a_refusal_names_gives_the_same_model(
    commands, command, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    X = (rng.normal(size=(1600, 30)) * (rng.random((1600, 30)) < 0.3)).astype(np.float32)
    y = np.where(X[:, 0] + rng.normal(size=1600) > 0, 1.0, -1.0)
    write_dense(tmp_path / "rows.h5", X, y)
    write_sparse(tmp_path / "sparse.h5", X, y)
    np.save("three.npy", np.arange(1600) % 3)
    np.save("targets.npy", X[:, 0] + 0.1 * rng.normal(size=1600))
    np.save("wide.npy", rng.normal(size=(400, 8000)) + 0.2 * (np.arange(400) % 2)[:, None])
    np.save("words.npy", np.resize(["benign", "malign"], 400))
    train = "train", *command.split(), "--quiet", "--json", "-o", "m.h5"
    free = json.loads(commands.run(*train).out)
    refused = commands.run(*train, "--memory", "10MiB").err
    named = int(re.search(r"would do is (\d+)MiB$", refused.strip())[1])
    for limit in (named, max(named, 320)):
        ended = commands.run(*train, "--memory", f"{limit}MiB")
        assert ended.status == 0, ended.err
        result = json.loads(ended.out)
        assert result["peak_rss_bytes"] <= limit << 20
        assert (result["kind"], result["status"]) == (free["kind"], "converged")
        # A regression has all rows as landmarks if they fit, and at the least limit a part of them.
        share = 0.1 if "regression" in command and limit == named else 0.9
        assert result["n_support"] >= share * free["n_support"]


@pytest.mark.long
@pytest.mark.parametrize("write", [write_dense, write_sparse])
def test_program_and_compiled_code_take_no_more_than_planned(write, tmp_path):
    """On few rows, with all code compiled first: the most that it takes."""
    X = np.random.default_rng(0).normal(size=(200, 5)).astype(np.float32)
    data = write(tmp_path / "few.h5", X, np.where(np.arange(200) % 2, 1.0, -1.0))
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "empty")}
    train = [sys.executable, "-m", "ooc_fw", "train", data, "--memory", "1GiB", "--json"]
    done = subprocess.run(train, capture_output=True, env=environment, check=True)
    assert json.loads(done.stdout)["peak_rss_bytes"] <= 300 << 20
