"""The Python and the commands in the guides, run in a folder with the files that they name."""

import gzip
import os
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import anndata
import numpy as np
import pandas as pd
import pytest

import ooc_fw
from ooc_fw.solver.steps import STEP_RULES
from tests.support.methods import grid
from tools import api

FOLDER = Path(ooc_fw.__file__).parent / "guides"
GUIDES = {path.stem: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.md"))}
RUN = ("python", "cells", "export", "novelty", "regression")
WALKS = ("intrusion", "large", "xgboost")


@pytest.mark.parametrize("name", grid(RUN, quick=1))
def test_python_in_guides_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    which = rng.integers(0, 2, 80)
    obs = pd.DataFrame(
        {"cell_type": pd.Categorical(np.array(["B", "T"])[which])},
        index=[f"cell {k}" for k in range(80)],
    )
    counts = rng.poisson(1 + 2 * np.eye(2, 6)[which]).astype(np.float32)
    anndata.AnnData(counts, obs=obs).write_h5ad("cells.h5ad")
    space: dict[str, object] = {}
    blocks = re.findall(r"^```python\n(.*?)^```", GUIDES[name], flags=re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        with warnings.catch_warnings():
            if "shap" in block:  # which is not ours to mend
                warnings.simplefilter("ignore")
            exec(compile(block, f"{name}.md", "exec"), space)
    if name == "python":
        assert Path("gap.png").stat().st_size > 1000


def connections(n, rng):
    """Lines like those of the KDD Cup of 1999."""
    attack = rng.random(n) < 0.3
    protocol = np.where(attack, "icmp", rng.choice(["tcp", "udp"], n))
    n_bytes = rng.integers(1, 1 << np.where(attack, 20, 8))
    label = np.where(attack, rng.choice(["smurf.", "neptune."], n), "normal.")
    columns = rng.integers(0, 9, n), protocol, rng.choice(["http", "ftp"], n), protocol, n_bytes
    return "".join(",".join(map(str, row)) + "\n" for row in zip(*columns, label, strict=True))


def write_files(folder, rng):
    """The files that the walk-throughs begin with, much smaller."""
    with gzip.open(folder / "kddcup.data.gz", "wt") as file:
        file.write(connections(600, rng))
    (folder / "today.csv").write_text(connections(30, rng))
    for part in range(2):
        with gzip.open(folder / f"clicks-{part}.txt.gz", "wt") as file:
            for x in rng.normal(size=(1500, 2)):
                file.write(f"{int(x[0] * x[1] > 0)} 1:{x[0]:.4f} 2:{x[1]:.4f}\n")
    (folder / "parts").mkdir()
    for path in ("parts/0.parquet", "parts/1.parquet", "later.parquet"):
        x = rng.normal(size=300)
        kind = rng.choice(["a", "b"], 300)
        y = ((x > 0) == (kind == "a")).astype(int)
        x[::50] = np.nan
        pd.DataFrame({"x": x, "kind": kind, "y": y}).to_parquet(folder / path)


@pytest.mark.long
@pytest.mark.parametrize("name", WALKS)
def test_commands_in_guides_run(name, tmp_path):
    """The shell runs them one by one; the first that fails ends the test."""
    write_files(tmp_path, np.random.default_rng(0))
    lines = re.findall(r"^\$ (.*)$", GUIDES[name], flags=re.MULTILINE)
    assert len(lines) > 4
    command = f'ooc-fw() {{ "{sys.executable}" -m ooc_fw "$@"; }}'
    script = "\n".join([command, "set -e", *lines])
    packages = str(Path(ooc_fw.__file__).parent.parent)
    outcome = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": packages},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    made = set(re.findall(r"-o (\S+)", GUIDES[name]))
    assert made <= {path.name for path in tmp_path.iterdir()}


def test_public_names_are_as_the_guide_says():
    assert GUIDES["api"] == api.page(), "write the guide again: python tools/api.py"


README = (Path(__file__).parents[1] / "README.md").read_text()


@pytest.mark.parametrize("text", [README, GUIDES["methods"]], ids=["README", "methods"])
def test_tables_of_methods_have_every_rule(text):
    first = re.findall(r"^\|([^|]*)\|", text, flags=re.MULTILINE)
    assert set(STEP_RULES) <= set(re.findall(r"`(\w+)`", "".join(first)))


@pytest.mark.process
def test_session_of_the_readme(tmp_path):
    """The printed lines are those of the commands, with numbers that are close."""
    package = Path(ooc_fw.__file__).parent
    for path in (package / "data" / "samples").glob("a1a*"):
        shutil.copy(path, tmp_path)
    session = README.split("```console\n")[1].split("```")[0]
    for shown in session.removeprefix("$ ooc-fw ").split("\n$ ooc-fw "):
        command, *expected = shown.strip().splitlines()
        outcome = subprocess.run(
            [sys.executable, "-m", "ooc_fw", *command.split()],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(package.parent)},
            capture_output=True,
            text=True,
            timeout=300,
        )
        said = (outcome.stderr + outcome.stdout).splitlines()
        for line in expected:
            assert any(about_equal(line, other) for other in said), (line, said)


def about_equal(line, other):
    """Whether two lines have the same words, and numbers that are close."""
    number = r"\d+(?:\.\d+)?(?:e-?\d+)?"
    close = [float(value) for value in re.findall(number, other)] == pytest.approx(
        [float(value) for value in re.findall(number, line)], rel=0.02, abs=1e-3
    )
    return close and re.sub(number, "", line).split() == re.sub(number, "", other).split()
