"""``ooc-fw train --memory``: the peak that the operating system reports stays below the limit."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest

from tests.support.files import write_dense, write_sparse


def run(*words, **options):
    """Run a command in a process of its own."""
    program = [sys.executable, "-m", "ooc_fw", *map(str, words)]
    return subprocess.run(program, capture_output=True, text=True, **options)


def result_of(*words, **options):
    done = run(*words, **options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def smallest_limit(refused):
    return int(re.search(r"would do is (\d+)MiB$", refused.strip())[1])


@pytest.mark.process
def test_kernel_values_that_would_exceed_the_limit_are_not_kept(tmp_path):
    """Most of the rows become support vectors, whose kernel values would take 60 MiB."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(6000, 12)).astype(np.float32)
    y = np.where(X[:, 0] + 3 * rng.normal(size=len(X)) > 0, 1.0, -1.0)
    train = "train", write_dense(tmp_path / "noisy.h5", X, y), "-o", tmp_path / "model.h5"
    train += "--C", 1, "--gamma", 0.05, "--tol", 1e-2, "--json", "--quiet", "--memory"
    refused = run(*train, "1MiB")
    assert refused.returncode == 2
    assert not (tmp_path / "model.h5").exists()
    limit = smallest_limit(refused.stderr) + 12
    result = result_of(*train, f"{limit}MiB")
    assert result["n_support"] > 4000
    assert result["objective_gap"] <= 2e-2
    assert result["peak_rss_bytes"] <= limit << 20


PEAK = """
import sys
from ooc_fw.cli.main import main
from ooc_fw.system.memory import peak_rss_bytes
assert main(sys.argv[1:]) == 0
print("peak", peak_rss_bytes(), file=sys.stderr)
"""


def peak_of(command, folder):
    """Peak of a process that runs a command in a folder."""
    program = [sys.executable, "-c", PEAK, *command.split()]
    done = subprocess.run(program, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, (command, done.stderr)
    return int(done.stderr.split()[-1])


@pytest.mark.process
def test_no_command_takes_more_than_300_mib(tmp_path):
    """The peak of a process of its own; without ``--memory`` for commands that do not have it."""
    rng = np.random.default_rng(0)
    X = (rng.normal(size=(5000, 20)) * (rng.random((5000, 20)) < 0.5)).astype(np.float32)
    y = np.where(X[:, 0] + rng.normal(size=len(X)) > 0, 1.0, -1.0)
    write_dense(tmp_path / "rows.h5", X[:3000], y[:3000])
    write_sparse(tmp_path / "sparse.h5", X[:2000], y[:2000])
    write_dense(tmp_path / "three.h5", X[:2000], np.arange(2000) % 3.0)
    write_dense(tmp_path / "targets.h5", X, X[:, 0] + X[:, 1] ** 2)
    np.savetxt(tmp_path / "rows.csv", np.column_stack([y, X]), delimiter=",", fmt="%g")
    for line in (
        "train rows.h5 --exact --gamma 0.05 --tol 0.01 -o m.h5 --memory 300MiB",
        "train rows.h5 --landmarks auto -o l.h5 --memory 300MiB",
        "train three.h5 -o three-model.h5 --memory 300MiB",
        "train sparse.h5 -o sparse-model.h5 --memory 300MiB",
        "train targets.h5 --task regression -o r.h5 --memory 300MiB",
        "train sparse.h5 --task novelty -o n.h5 --memory 300MiB",
        "predict m.h5 rows.h5 -o labels.csv",
        "evaluate m.h5 rows.h5",
        "certify m.h5 rows.h5 --tol 0.1",
        "importance n.h5 sparse.h5",
        "convert rows.csv converted.h5 --no-header --label 0",
    ):
        assert peak_of(line, tmp_path) <= 300 << 20, line


@pytest.mark.process
def test_predictions_take_a_few_bytes_for_each_row(tmp_path):
    """8 bytes for a result and one for its place; the rows have 16."""
    rng = np.random.default_rng(0)
    few = rng.random((60, 4), dtype=np.float32)
    write_dense(tmp_path / "d.h5", few, np.where(few[:, 0] > 0.5, 1.0, -1.0))
    peak_of("train d.h5 -o m.h5", tmp_path)
    peaks = []
    for n_rows in (1_500_000, 5_000_000):
        write_dense(tmp_path / "d.h5", rng.random((n_rows, 4), dtype=np.float32), np.ones(n_rows))
        peaks.append(peak_of("predict m.h5 d.h5 -o out.txt", tmp_path))
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
def test_the_limit_that_a_refusal_names_gives_the_same_model(command, tmp_path, monkeypatch):
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
    free = result_of(*train)
    named = smallest_limit(run(*train, "--memory", "10MiB").stderr)
    for limit in (named, max(named, 320)):
        result = result_of(*train, "--memory", f"{limit}MiB")
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
    result = result_of("train", data, "--memory", "1GiB", "--json", env=environment)
    assert result["peak_rss_bytes"] <= 300 << 20
