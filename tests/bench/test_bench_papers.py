"""The papers' tables on very few rows: every entry is shown, and claims on counts hold."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy import stats

from bench.datasets import DEFAULT_DATA
from bench.papers import __main__ as command
from bench.papers import data, meb, page, partan, randomization, rules, runs, swap
from bench.papers.entries import Absent
from bench.papers.runs import Run, Study

MODULES = {"partan": partan, "randomization": randomization, "swap": swap, "meb": meb}


def made_up(n_classes):
    """A loader of a few rows in as many clouds as there are classes."""

    def load(_):
        rng = np.random.default_rng(0)
        y = np.arange(120) % n_classes
        X = rng.normal(size=(120, 3)) + 1.5 * np.cos(y[:, None] + np.arange(3))
        X = X.astype(np.float32)
        return data.Data(X[:80], y[:80].astype(float), X[80:], y[80:].astype(float))

    return load


@pytest.fixture
def study(monkeypatch, tmp_path):
    several = {"usps": 3, "kdd-10pc": 3}
    loaders = {name: made_up(several.get(name, 2)) for name in data.LOADERS}
    monkeypatch.setattr(data, "LOADERS", loaders)
    monkeypatch.setattr(runs, "QUICK_ITERATIONS", 10)
    chosen = {"C": 1.0, "gamma": 0.3, "error": 0.1, "seconds": 0.0}
    monkeypatch.setattr(Study, "_choose", lambda *_: chosen)
    monkeypatch.setattr(Study, "_choose_as_stopped", lambda *_: chosen)
    monkeypatch.setattr(rules, "ROWS", 60)
    perform, made = Study._perform, {}

    def perform_once(study, run):
        """Sets of as many classes are equal here, and so are their runs."""
        kind = dataclasses.replace(run, data=str(several.get(run.data, 2)))
        if kind not in made:
            made[kind] = perform(study, run)
        return made[kind]

    monkeypatch.setattr(Study, "_perform", perform_once)
    library = data.Library(tmp_path, tmp_path, quick=True)
    return Study(library, tmp_path / "runs.jsonl", 1)


@pytest.mark.grid
def test_every_entry_is_shown(study, tmp_path):
    """In one test, since the papers share runs."""
    modules = (*MODULES.values(), rules)
    for entry in (entry for module in modules for entry in module.ENTRIES.values()):
        if isinstance(entry, Absent):
            assert entry.why
            continue
        for run in entry.runs(study):
            study.make(run)
        shown = entry.show(study, tmp_path / "figures")
        assert "|" in shown.text or ".png" in shown.text
        assert all(isinstance(bool(claim.holds), bool) for claim in shown.claims)
    made = {path.name for path in (tmp_path / "figures").iterdir()}
    assert made == {path.name for path in (command.HOME / "figures").iterdir()}


@pytest.mark.grid
def test_C_and_gamma_are_chosen_by_validation(monkeypatch, tmp_path):
    monkeypatch.setattr(data, "LOADERS", {"w7a": made_up(2), "usps": made_up(2)})
    monkeypatch.setattr(runs, "CS", [0.5, 8.0])
    monkeypatch.setattr(runs, "SIGMA2S", [0.5, 4.0])
    for quick in (True, False):
        library = data.Library(tmp_path, tmp_path, quick=quick)
        study = Study(library, tmp_path / f"{quick}.jsonl", 1)
        C, gamma = study.chosen("w7a")
        with_sigma2 = study._auto_gamma(library.get("w7a"), "rbf")
        assert gamma == with_sigma2
        assert C in (runs.QUICK_CS if quick else [2.0**e for e in range(13)])
        for at, selection in runs.SELECTIONS.items():
            C, gamma = study.chosen("w7a", at)
            tried = study.choices(at)["w7a"]["tried"]
            assert gamma == with_sigma2
            assert sorted(map(float, tried)) == list(runs.QUICK_CS if quick else selection.Cs)
            best = max(each["accuracy"] for each in tried.values())
            equal = [float(C) for C, each in tried.items() if each["accuracy"] > best - 1e-4]
            assert max(equal) == C
    C, gamma = study.chosen("usps")
    assert study.chosen("usps", "ball") == (C, gamma)
    assert C in runs.CS
    assert min(abs(1 / (2 * gamma) - width) for width in runs.SIGMA2S) < 1e-9


def test_runs_are_kept_and_not_made_again(study, monkeypatch):
    run = Run("w7a", "fw", tol=1e-2)
    record = study.make(run)
    monkeypatch.setattr(Study, "_perform", None)
    assert study.make(run) is record
    again = Study(study.library, study._file, 1)
    assert again.make(run) == record
    assert not again.known(Run("w7a", "fw", tol=1e-2, seed=1))


def test_runs_that_take_little_time_are_repeated(study, monkeypatch):
    study.repeat = 3
    brief = Run("w8a", "fw", lmo="random", tol=1e-2)
    assert len(study.repetitions(brief)) == 2  # of the set, and of the part that is tested
    for run in study.repetitions(brief):
        study.make(run)
    assert {(run.data, run.seed) for run in study.repetitions(brief)} == {
        (name, seed) for name in ("w8a", "w8a-part") for seed in range(3)
    }
    monkeypatch.setattr(runs, "BRIEF_SECONDS", 0.0)
    assert len(study.repetitions(brief)) == 2
    monkeypatch.setattr(runs, "BRIEF_SECONDS", 1e9)
    assert len(study.repetitions(Run("w8a", "fw", tol=1e-2))) == 2  # the full oracle


def test_a_path_notes_where_each_decade_is_reached(study, monkeypatch):
    monkeypatch.setattr(runs, "QUICK_ITERATIONS", 10_000)
    record = study.make(Run("w7a", "swap2", tol=1e-4, path=True))
    gaps = np.array([point[1] for point in record["points"]])
    iterations = [record["reached"][f"{tol:g}"][0] for tol in (1e-2, 1e-3, 1e-4)]
    assert iterations == sorted(iterations)
    assert record["status"] == "sampled"
    assert gaps[-1] <= 1e-4
    # A run to a tolerance takes as many iterations as the path took to it, or one more.
    for tol, iteration in zip((1e-2, 1e-3), iterations, strict=False):
        own = study.make(Run("w7a", "swap2", tol=tol))
        assert abs(own["iterations"] - iteration) <= 1


def test_gap_of_a_sample_never_exceeds_that_of_all_rows(study):
    run = Run("w7a", "fw", lmo="random", sample_size=20, tol=1e-3, path=True, watched=True)
    points = study.make(run)["points"]
    assert len(points) > 5
    assert all(exact >= sampled - 1e-6 for _, sampled, exact in points)


def test_statistics_are_those_of_the_papers():
    """Their own printed tables give their own printed statistics."""
    columns = {
        field: [[row[k][j] for row in meb.TABLES_2_3.values()] for j in range(3)]
        for k, field in enumerate(("accuracy", "seconds"))
    }
    f, p = meb.friedman(columns["seconds"])
    assert f == pytest.approx(meb.TABLE_5["seconds"][3], rel=0.1)
    assert p == pytest.approx(stats.f.sf(f, 2, 50))
    cvm, fw, mfw = columns["seconds"]
    for k, (first, second) in enumerate(((fw, cvm), (mfw, cvm), (fw, mfw))):
        w, _ = meb.wilcoxon(first, second, "less")
        assert w == pytest.approx(meb.TABLE_5["seconds"][k], abs=1)


def test_the_command(study, capsys, tmp_path):
    common = ["--quick", "--work", str(tmp_path), "--output", str(tmp_path / "out")]
    assert command.main(["partan", "table2", *common]) == 0
    told = capsys.readouterr()
    assert "20,200 / " in told.out
    assert "20 min" not in told.err
    assert command.main(["partan", "table9", *common]) == 2
    assert "partan has no entry table9; it has table1, table2" in capsys.readouterr().err


def test_the_page_names_every_entry(study, tmp_path, monkeypatch):
    kept = {"partan": partan, "randomization": randomization}
    monkeypatch.setattr(command, "PAPERS", kept)
    assert command.main(["all", "--quick", "--work", str(tmp_path), "--output", str(tmp_path)]) == 0
    text = (tmp_path / "RESULTS.md").read_text()
    for module in kept.values():
        for entry in module.ENTRIES.values():
            assert text.count(entry.title) == 2
    assert "Thinned data" in text


# -- the papers' claims, on a few rows of their own sets -----------------------------------------


@pytest.fixture
def thinned(tmp_path, monkeypatch):
    """A study of 300 rows of each of the papers' sets."""
    if not DEFAULT_DATA.is_dir():
        pytest.skip("the real data sets are not there")
    monkeypatch.setattr(data, "LARGEST_QUICK", (300, 100))
    monkeypatch.setattr(runs, "QUICK_ITERATIONS", 3_000)
    return Study(data.Library(DEFAULT_DATA, tmp_path, quick=True), tmp_path / "r.jsonl", 1)


@pytest.mark.data
def test_iterations_grow_as_the_PARTAN_paper_says(thinned):
    """Tables 2 and 3: tenfold with each decade for FW, fewer for PARTAN, few for away steps."""
    for name in ("w8a", "ijcnn1"):
        found = {}
        for method in partan.METHODS:
            record = thinned.make(Run(name, method, tol=1e-3, path=True))
            found[method] = [record["reached"][f"{tol:g}"][0] for tol in (1e-2, 1e-3)]
        growth = {method: last / first for method, (first, last) in found.items()}
        assert growth["fw"] > 5
        assert found["partan"][1] < found["fw"][1]
        for method in ("mfw", "swap"):
            assert found[method][1] < found["fw"][1]
            assert growth[method] < growth["fw"]


@pytest.mark.data
def test_smaller_samples_end_sooner_as_the_randomization_paper_says(thinned):
    """Table 1, and PARTAN paper, table 4: no sample takes more iterations than all rows."""
    for name in ("w8a", "ijcnn1"):
        full = thinned.make(Run(name, "fw", tol=1e-3))["iterations"]
        sizes = [
            Run(name, "fw", lmo="random", sample_size=size, tol=1e-3) for size in (200, 60, 10)
        ]
        counts = [thinned.make(run)["iterations"] for run in sizes]
        assert counts == sorted(counts, reverse=True)
        assert counts[0] <= 1.05 * full


@pytest.mark.data
def test_away_and_pairwise_steps_converge_linearly_as_the_SWAP_paper_says(thinned):
    """Section 4: from 1e-4 to 1e-6 they take far fewer iterations than the 100-fold of FW."""
    for method in ("mfw", "swap", "swap2"):
        reached = thinned.make(Run("w8a", method, tol=1e-6, path=True, C=1.0))["reached"]
        assert reached["1e-06"][0] < 5 * reached["0.0001"][0]


@pytest.mark.data
def test_models_are_about_as_accurate_as_those_of_CVM_as_the_MEB_paper_says(thinned):
    """Table 2; and CVM, which optimises all weights in each step, takes the fewest steps."""
    for name in ("a1a", "w1a"):
        found = {m: thinned.make(meb.fit(name, m)) for m in swap.METHODS}
        assert min(found, key=lambda m, own=found: own[m]["iterations"]) == "cvm"
        for record in found.values():
            assert abs(record["accuracy"] - found["cvm"]["accuracy"]) < 0.1


def test_reasons_are_given_for_entries_that_there_are():
    for paper, reasons in page.DIFFERS.items():
        assert set(reasons) <= set(MODULES[paper].ENTRIES)
