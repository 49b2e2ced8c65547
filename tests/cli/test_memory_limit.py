"""`ooc-fw train --memory`: the peak that the operating system reports stays below the limit."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest

from tests.support.files import write_dense, write_sparse


def command(*args, **options):
    """Run a command in a process of its own."""
    program = [sys.executable, "-m", "ooc_fw", *map(str, args)]
    return subprocess.run(program, capture_output=True, text=True, **options)


def smallest_limit(refused):
    return int(re.search(r"would do is (\d+)MiB$", refused.strip())[1])


@pytest.mark.process
def test_the_peak_stays_below_the_limit(tmp_path):
    """Most of the rows become support vectors, whose kernel values would take 60 MiB."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(6000, 12)).astype(np.float32)
    y = np.where(X[:, 0] + 3 * rng.normal(size=len(X)) > 0, 1.0, -1.0)
    train = "train", write_dense(tmp_path / "noisy.h5", X, y), "-o", tmp_path / "model.h5"
    train += "--C", 1, "--gamma", 0.05, "--tol", 1e-2, "--json", "--quiet", "--memory"
    refused = command(*train, "1MiB")
    assert refused.returncode == 2
    assert not (tmp_path / "model.h5").exists()
    limit = smallest_limit(refused.stderr) + 12
    done = command(*train, f"{limit}MiB")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["n_support"] > 4000
    assert result["certified_gap"] <= 1e-2
    assert result["peak_rss_bytes"] <= limit << 20


PEAK = """
import sys
from ooc_fw.cli.main import main
from ooc_fw.system.memory import peak_rss_bytes
status = main(sys.argv[1:])
print("peak", peak_rss_bytes(), file=sys.stderr)
sys.exit(status)
"""


@pytest.mark.process
def test_no_command_takes_more_than_300_mib(tmp_path):
    """The peak of a process of its own; without ``--memory`` for commands that do not have it."""
    rng = np.random.default_rng(0)
    X = (rng.normal(size=(5000, 20)) * (rng.random((5000, 20)) < 0.5)).astype(np.float32)
    y = np.where(X[:, 0] + rng.normal(size=len(X)) > 0, 1.0, -1.0)
    write_dense(tmp_path / "rows.h5", X, y)
    write_sparse(tmp_path / "sparse.h5", X[:3000], y[:3000])
    write_dense(tmp_path / "three.h5", X[:3000], np.arange(3000) % 3.0)
    write_dense(tmp_path / "targets.h5", X, X[:, 0] + X[:, 1] ** 2)
    np.savetxt(tmp_path / "rows.csv", np.column_stack([y, X]), delimiter=",", fmt="%g")
    limited = """
    train rows.h5 --exact --gamma 0.05 --tol 0.01 -o m.h5
    train rows.h5 --landmarks auto -o l.h5
    train three.h5 -o three-model.h5
    train sparse.h5 -o sparse-model.h5
    train targets.h5 --task regression -o r.h5
    train sparse.h5 --task novelty -o n.h5
    """
    others = """
    predict m.h5 rows.h5 -o labels.csv
    evaluate m.h5 rows.h5
    certify m.h5 rows.h5
    importance n.h5 sparse.h5
    convert rows.csv converted.h5 --no-header --label 0
    """
    lines = [f"{line} --memory 300MiB" for line in limited.strip().splitlines()]
    for line in [*lines, *others.strip().splitlines()]:
        program = [sys.executable, "-c", PEAK, *line.split()]
        done = subprocess.run(program, capture_output=True, text=True, cwd=tmp_path)
        # A gap of more than 0.001 is the status 1 of certify.
        assert done.returncode in (0, line.strip().startswith("certify")), (line, done.stderr)
        assert int(done.stderr.split()[-1]) <= 300 << 20, line


@pytest.mark.process
@pytest.mark.parametrize(
    "options",
    [
        ["--landmarks", "300"],
        ["--exact", "--max-iter", "3", "--no-certify"],
        ["--task", "regression", "--landmarks", "100"],
    ],
)
def test_the_limit_that_is_named_suffices(options, tmp_path, ooc_fw):
    """For few rows that are wide, with words as labels where there are classes."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 8000)).astype(np.float32)
    X[::2] += 0.2
    numbers = "regression" in options
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", X[:, 0] if numbers else np.resize(["benign", "malign"], len(X)))
    run = ["train", tmp_path / "X.npy", "--labels", tmp_path / "y.npy", *options, "--json"]
    smallest = smallest_limit(ooc_fw(*run, "--memory", "1MiB").err)
    done = command(*run, "--memory", f"{smallest}MiB")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["peak_rss_bytes"] <= smallest << 20
    less = ooc_fw(*run, "--memory", "100MiB")
    less.assert_refused(f"would do is {smallest}MiB")


@pytest.mark.process
@pytest.mark.parametrize(
    ("options", "sparse"),
    [
        ((), False),
        ((), True),
        (("--landmarks", "300"), True),
        (("--labels", "three.npy"), False),
        (("--labels", "three.npy", "--landmarks", "100"), False),
        (("--labels", "targets.npy", "--task", "regression"), False),
        (("--task", "novelty"), True),
    ],
)
def test_a_named_limit_gives_the_model_that_there_is_without_one(options, sparse, tmp_path):
    """1,600 rows train within 300 MiB, and the peak of no process exceeds its limit."""
    rng = np.random.default_rng(0)
    X = (rng.normal(size=(1600, 30)) * (rng.random((1600, 30)) < 0.3)).astype(np.float32)
    np.save(tmp_path / "three.npy", np.arange(1600) % 3)
    np.save(tmp_path / "targets.npy", X[:, 0] + 0.1 * rng.normal(size=1600))
    write = write_sparse if sparse else write_dense
    y = np.where(X[:, 0] + rng.normal(size=1600) > 0, 1.0, -1.0)
    data = write(tmp_path / "rows.h5", X, y)
    train = "train", data, *options, "--quiet", "--json", "-o", tmp_path / "m.h5"
    free = json.loads(command(*train, cwd=tmp_path, check=True).stdout)
    named = smallest_limit(command(*train, "--memory", "10MiB", cwd=tmp_path).stderr)
    for limit in (named, 300):
        done = command(*train, "--memory", f"{limit}MiB", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        result = json.loads(done.stdout)
        assert result["peak_rss_bytes"] <= limit << 20
        assert (result["kind"], result["status"]) == (free["kind"], "converged")
        assert result["n_support"] >= 0.9 * free["n_support"]


@pytest.mark.long
@pytest.mark.parametrize("density", [1.0, 0.1])
def test_program_and_compiled_code_take_no_more_than_planned(density, tmp_path):
    """On few rows, where all code has to be compiled first: the most that it takes."""
    rng = np.random.default_rng(0)
    X = (rng.normal(size=(200, 5)) * (rng.random((200, 5)) < density)).astype(np.float32)
    write = write_dense if density == 1 else write_sparse
    data = write(tmp_path / "few.h5", X, np.where(np.arange(200) % 2, 1.0, -1.0))
    environment = os.environ | {"OOC_FW_CACHE": str(tmp_path / "empty")}
    done = command("train", data, "--memory", "1GiB", "--json", env=environment, check=True)
    assert json.loads(done.stdout)["peak_rss_bytes"] <= 300 << 20
