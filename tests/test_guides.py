"""The Python and the commands in the guides, run in a folder with the files that they name."""

import gzip
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from unittest import mock

import anndata
import numpy as np
import pandas as pd
import pytest

import ooc_fw
from ooc_fw.cli.commands import COMMANDS, build_parser
from ooc_fw.kernels.functions import KERNELS
from ooc_fw.solver.steps import STEP_RULES
from tests.support.methods import grid

PACKAGE = Path(ooc_fw.__file__).parent
FOLDER = PACKAGE / "guides"
GUIDES = {path.stem: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.md"))}
README = (Path(__file__).parents[1] / "README.md").read_text()
TEXTS = GUIDES | {"README": README}
RUN = tuple("python README contributing data gap tasks".split())
WALKS = ("data", "large", "tasks")
SESSIONS = ("README", "tutorial")


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
    with (  # what a guide registers is gone afterwards
        mock.patch.dict(STEP_RULES),
        mock.patch.dict(KERNELS),
        mock.patch.dict(COMMANDS),
    ):
        run_python(name)
    if name == "python":
        assert Path("gap.png").stat().st_size > 1000


def run_python(name):
    space: dict[str, object] = {}
    blocks = re.findall(r"^```python\n(.*?)^```", TEXTS[name], flags=re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, f"{name}.md", "exec"), space)


def connections(n, rng):
    """Lines like those of the KDD Cup of 1999."""
    attack = rng.random(n) < 0.3
    protocol = np.where(attack, "icmp", rng.choice(["tcp", "udp"], n))
    n_bytes = rng.integers(1, 1 << np.where(attack, 20, 8))
    label = np.where(attack, rng.choice(["smurf.", "neptune."], n), "normal.")
    columns = rng.integers(0, 9, n), protocol, rng.choice(["http", "ftp"], n), protocol, n_bytes
    rest = 36 * ",0"
    rows = zip(*columns, strict=True)
    lines = (",".join(map(str, row)) + rest for row in rows)
    return "".join(f"{line},{kind}\n" for line, kind in zip(lines, label, strict=True))


def write_files(folder, rng):
    """The files that the walk-throughs begin with, much smaller."""
    with gzip.open(folder / "kddcup.data.gz", "wt") as file:
        file.write(connections(600, rng))
    (folder / "today.csv").write_text(connections(30, rng))
    x = np.random.default_rng(1).normal(size=(800, 2))
    prices = {"a": x[:, 0], "b": x[:, 1], "price": 100 + np.sin(2 * x[:, 0]) * x[:, 1]}
    pd.DataFrame(prices).to_csv(folder / "prices.csv", index=False)
    for part in range(2):
        with gzip.open(folder / f"clicks-{part}.txt.gz", "wt") as file:
            for x in rng.normal(size=(1500, 2)):
                file.write(f"{int(x[0] * x[1] > 0)} 1:{x[0]:.4f} 2:{x[1]:.4f}\n")
    for path in ("people.csv", "later.csv"):
        age, job = rng.normal(40, 10, 300), rng.choice(["cook", "tailor"], 300)
        city = np.where((age > 40) == (job == "cook"), "Rome", "Oslo")
        age[::50] = np.nan
        people = {"name": np.arange(300), "age": age, "job": job, "city": city}
        pd.DataFrame(people).to_csv(folder / path, index=False)


@pytest.mark.long
@pytest.mark.parametrize("name", WALKS)
def test_commands_in_guides_run(name, tmp_path):
    """The shell runs them one by one; the first that fails ends the test."""
    write_files(tmp_path, np.random.default_rng(0))
    lines = re.findall(r"^\$ (.*)$", GUIDES[name], flags=re.MULTILINE)
    assert len(lines) > 4
    run_shell(tmp_path, lines)
    made = set(re.findall(r"-o (\S+)", "\n".join(lines)))
    assert made <= {path.name for path in tmp_path.iterdir()}


def run_shell(folder, lines):
    """What the commands print, each with its errors, one after the other."""
    command = f'ooc-fw() {{ "{sys.executable}" -m ooc_fw "$@"; }}'
    marked = [part for line in lines for part in ("echo '$'", line)]
    outcome = subprocess.run(
        ["bash", "-c", "\n".join([command, "set -e", *marked])],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(PACKAGE.parent)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert outcome.returncode == 0, outcome.stdout
    return re.split(r"^\$\n", outcome.stdout, flags=re.MULTILINE)[1:]


SCRIPT = PACKAGE.parent / "tools" / "examples.py"
EXAMPLES = re.findall(r'^    "(\w+)": f?"""', SCRIPT.read_text(), flags=re.MULTILINE)


@pytest.mark.long
@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_run_and_draw_their_figures(name, tmp_path):
    outcome = subprocess.run(
        [sys.executable, str(SCRIPT), name],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(PACKAGE.parent)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert (tmp_path / f"{name}-example" / f"{name}.svg").stat().st_size > 1000
    assert f"in {name}-example: " in outcome.stdout


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_and_their_figures_stand_in_a_guide(name):
    assert (FOLDER / f"{name}.svg").stat().st_size < 60_000
    text = "".join(GUIDES.values())
    assert f"python tools/examples.py {name}" in text
    assert f"]({name}.svg)" in text


def test_table_of_methods_has_every_rule():
    first = re.findall(r"^\|([^|]*)\|", GUIDES["methods"], flags=re.MULTILINE)
    assert set(STEP_RULES) <= set(re.findall(r"`(\w+)`", "".join(first)))


@pytest.mark.process
@pytest.mark.parametrize("name", SESSIONS)
def test_sessions_print_what_is_shown(name, tmp_path, monkeypatch, capsys):
    """The printed lines are those of the program, with numbers that are close."""
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path, np.random.default_rng(0))
    run_python(name)
    said = capsys.readouterr().out.splitlines()
    for line in re.findall(r"^print.*\n# (.*)$", TEXTS[name], flags=re.MULTILINE):
        assert any(about_equal(line, other) for other in said), (line, said)
    for session in re.findall(r"^```console\n\$ (.*?)^```", TEXTS[name], re.MULTILINE | re.DOTALL):
        shown = [part.splitlines() for part in session.split("\n$ ")]
        printed = run_shell(tmp_path, [command for command, *_ in shown])
        for (command, *lines), output in zip(shown, printed, strict=True):
            said = output.splitlines()
            for line in lines:
                assert any(about_equal(line, other) for other in said), (command, line, said)


@pytest.mark.parametrize("name", TEXTS)
def test_commands_in_texts_are_those_of_the_program(name):
    parser = build_parser()
    lines = re.findall(r"^(?:    |\$ |.*\| )(ooc-fw .*)$", TEXTS[name], flags=re.MULTILINE)
    for line in lines:
        words = shlex.split(line, comments=True)[1:]
        if words and not {"...", "|", "&&"} & set(words):
            parser.parse_args(words)


@pytest.mark.parametrize("name", TEXTS)
def test_links_lead_to_files(name):
    folder = PACKAGE.parent if name == "README" else FOLDER
    for link in re.findall(r"\]\((?!https?:|#)([^)]*)\)", TEXTS[name]):
        assert (folder / link).is_file(), link


def test_contents_list_every_guide():
    listed = re.findall(r"^- `(\S+)`: ", GUIDES["index"], flags=re.MULTILINE)
    assert sorted([*listed, "index"]) == sorted(GUIDES)
    linked = re.findall(r"\(ooc_fw/guides/([\w-]+)\.md\)", README)
    assert set(linked) == set(listed)


def about_equal(line, other):
    """Whether two lines have the same words, and numbers that are close."""
    number = r"\d+(?:\.\d+)?(?:e-?\d+)?"
    close = [float(value) for value in re.findall(number, other)] == pytest.approx(
        [float(value) for value in re.findall(number, line)], rel=0.02, abs=1e-3
    )
    return close and re.sub(number, "", line).split() == re.sub(number, "", other).split()
