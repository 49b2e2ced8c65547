"""The Python and the commands in the guides, run in a folder with the files that they name."""

import gzip
import os
import re
import shlex
import shutil
import subprocess
import sys
from fractions import Fraction
from glob import glob
from pathlib import Path
from unittest import mock

import anndata
import numpy as np
import pandas as pd
import pytest

import ooc_fw
from ooc_fw import TrainOptions, make_kernel, open_dataset
from ooc_fw.cli.commands import COMMANDS, build_parser
from ooc_fw.kernels.functions import KERNELS
from ooc_fw.problem import ClassificationProblem
from ooc_fw.solver.plan import Session
from ooc_fw.solver.steps import STEP_RULES
from ooc_fw.training.choice import Trials, plan_model
from tests.support.methods import grid
from tests.support.reference import SmallProblem

PACKAGE = Path(ooc_fw.__file__).parent
FOLDER = PACKAGE / "guides"
GUIDES = {path.stem: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.md"))}
README = (Path(__file__).parents[1] / "README.md").read_text()
TEXTS = GUIDES | {"README": README}
RUN = tuple("python README contributing data gap tasks".split())
WALKS = ("data", "large", "tasks", "choose")
SESSIONS = ("README", "tutorial", "images", "cells")


@pytest.mark.parametrize("name", grid(RUN, quick=1))
def test_python_in_guides_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with (  # what a guide registers is gone afterwards
        mock.patch.dict(STEP_RULES),
        mock.patch.dict(KERNELS),
        mock.patch.dict(COMMANDS),
    ):
        run_python(name)


def cells(rng):
    """Cells of two types by six genes."""
    which = rng.integers(0, 2, 80)
    types = pd.Categorical(np.array(["B", "T"])[which])
    obs = pd.DataFrame({"cell_type": types}, index=[f"cell {k}" for k in range(80)])
    counts = rng.poisson(1 + 2 * np.eye(2, 6)[which]).astype(np.float32)
    return anndata.AnnData(counts, obs=obs, layers={"counts": counts})


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
    for path in ("visits.csv", "new.csv"):
        pages, user = rng.integers(1, 20, 200), rng.integers(0, 40, 200)
        visits = {"pages": pages, "minutes": rng.gamma(2, 3, 200), "user": user}
        visits["bought"] = np.where(pages > 9, "yes", "no")
        pd.DataFrame(visits).to_csv(folder / path, index=False)
    for path in ("cells", "new", "donor-1", "donor-2"):
        cells(rng).write_h5ad(folder / f"{path}.h5ad")
    rows = [f"{k % 2} 1:{k % 2 + rng.random():.4f} 2:{rng.random():.4f}\n" for k in range(200)]
    with gzip.open(folder / "log.gz", "wt") as file:
        file.writelines(rows)
    (folder / "rows.txt").write_text("".join(rows))


SLOW = r"ooc-fw tune |/dev/"  # takes more than a second
COPIES = {"tuning.h5": "test-two.h5", "train-test.h5": "test.h5"}  # as the text around them says


@pytest.mark.parametrize("name", WALKS)
def test_commands_in_guides_run(name, ooc_fw, tmp_path, monkeypatch, request):
    """One by one, and those that take more than a second with --long only."""
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path, np.random.default_rng(0))
    ooc_fw("convert", "rows.txt", "train.h5").done()
    lines = re.findall(r"^(?:\$|   ) ((?:ooc-fw|cut|zcat) .*)$", GUIDES[name], flags=re.MULTILINE)
    lines = [line for line in lines if request.config.option.long or not re.search(SLOW, line)]
    assert lines
    for line in lines:
        for made, whole in COPIES.items():
            if made in line:
                shutil.copy(whole, made)
        run_line(line, ooc_fw, monkeypatch)
    made = set(re.findall(r"-o (\S+)", "\n".join(lines)))
    assert made <= {path.name for path in tmp_path.iterdir()}


def run_line(line, ooc_fw, monkeypatch):
    """Run a line of the shell; what it prints, errors included. Our commands need no process."""
    printed = ""
    for command in line.split(" && "):
        program, *words = shlex.split(command, comments=True)
        if program == "cd":
            monkeypatch.chdir(words[0])
        elif program == "ooc-fw":
            words = [name for word in words for name in sorted(glob(word)) or [word]]
            outcome = ooc_fw(*words).done()
            printed += outcome.out + outcome.err
        else:
            function = f'ooc-fw() {{ "{sys.executable}" -m ooc_fw "$@"; }}\n'
            environment = os.environ | {"PYTHONPATH": str(PACKAGE.parent)}
            subprocess.run(["bash", "-c", function + command], check=True, env=environment)
    return printed


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
def test_sessions_print_what_is_shown(name, ooc_fw, tmp_path, monkeypatch, capfd):
    """The printed lines are those of the program, with numbers that are close."""
    monkeypatch.chdir(tmp_path)
    space: dict[str, object] = {}
    blocks = re.findall(r"^```(python|console)\n(.*?)^```", TEXTS[name], re.MULTILINE | re.DOTALL)
    for language, block in blocks:
        if language == "python":
            exec(compile(block, f"{name}.md", "exec"), space)
            said = capfd.readouterr().out.splitlines()
            for line in re.findall(r"^print.*\n# (.*)$", block, flags=re.MULTILINE):
                assert any(about_equal(line, other) for other in said), (line, said)
            continue
        for command, *lines in map(str.splitlines, f"\n{block}".split("\n$ ")[1:]):
            said = run_line(command, ooc_fw, monkeypatch).splitlines()
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


def test_numbers_of_the_gap_guide_are_those_of_its_formulas():
    """The example to follow by hand, and the shares of the objective that follow from gaps."""
    rows = re.findall(r"^\| ([\d./]+, [^|]+)\|([^|]+)\|(.*)\|$", GUIDES["gap"], re.MULTILINE)
    points, y = np.array([[1], [-1], [0]], dtype=np.float32), np.array([1, -1, 1])
    problem = SmallProblem(KERNELS["linear"](), points, y, 1.0)
    assert len(rows) == 4
    for weights, products, rest in rows:
        a, g = (
            np.array([*map(float, map(Fraction, part.split(",")))]) for part in (weights, products)
        )
        np.testing.assert_allclose(problem.dual_matrix @ a, g, atol=1e-12)
        true_gap = 1 - g.min() / (a @ g)
        expected = (
            a @ g,
            true_gap,
            1 - (1 - true_gap) ** 2,
            1 - 2 * problem.optimum.objective / (a @ g),
        )
        assert [*map(float, rest.split("|"))] == pytest.approx(expected, abs=1e-3)
    text = " ".join(GUIDES["gap"].split())
    shares = re.findall(r"smaller by more than `([\d.]+) %`", text)
    assert [*map(float, shares)] == pytest.approx([100 * (1 - (1 - 7.8e-4) ** 2), 0.078], abs=0.005)


def test_sizes_up_to_which_a_model_is_exact_are_those_of_the_guide(monkeypatch):
    text = " ".join(GUIDES["choose"].split())
    of_rows = r"at most ([\d,]+) rows or if at most ([\d,]+) support"
    sizes = re.search(of_rows + r".*? and ([\d,]+) landmarks", text).groups()
    n_rows, support, landmarks = (int(size.replace(",", "")) for size in sizes)
    monkeypatch.setattr(Trials, "compare", lambda *_: None)
    for more, expected, found in ((0, None, None), (1, support, None), (1, support + 1, landmarks)):
        told = expected, "a sample", 1.0
        monkeypatch.setattr(Trials, "expect_support", lambda *_, told=told: told)
        X = np.zeros((n_rows + more, 1), dtype=np.float32)
        kernel = make_kernel("rbf", gamma=1.0)
        problem = ClassificationProblem(open_dataset(X), np.arange(len(X)) % 2, kernel)
        plan = plan_model(problem, TrainOptions(memory_limit=8 << 30), Session())
        assert plan.landmarks == found


def about_equal(line, other):
    """Whether two lines have the same words, and numbers that are close."""
    number = r"\d+(?:\.\d+)?(?:e-?\d+)?"
    close = [float(value) for value in re.findall(number, other)] == pytest.approx(
        [float(value) for value in re.findall(number, line)], rel=0.02, abs=1e-3
    )
    return close and re.sub(number, "", line).split() == re.sub(number, "", other).split()
