"""The papers' tables on very few rows: every entry is on the page, and runs are kept."""

import dataclasses

import numpy as np
import pytest

from bench.papers import __main__ as command
from bench.papers import ball, data, page, runs
from bench.papers.entries import PRINTED
from bench.papers.runs import Study

CLASSES = {"usps": 3, "kdd-10pc": 3}


def made_up(_, name):
    """A few rows in as many clouds as there are classes."""
    y = np.arange(120) % CLASSES.get(name, 2)
    X = np.random.default_rng(0).normal(size=(120, 3)) + 1.5 * np.cos(y[:, None] + range(3))
    X, y = X.astype(np.float32), y.astype(float)
    return data.Data(X[:80], y[:80], X[80:], y[80:])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Work folder and results of all entries; sets of as many classes are equal, as are runs."""
    work, perform, made = tmp_path_factory.mktemp("papers"), Study._perform, {}

    def perform_once(study, run):
        kind = dataclasses.replace(run, data=str(CLASSES.get(run.data, 2)))
        if kind not in made:
            made[kind] = perform(study, run)
        return made[kind]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data.Library, "_load", made_up)
        patch.setattr(runs, "QUICK_ITERATIONS", 10)
        patch.setattr(Study, "_perform", perform_once)
        # Most of the time would go into drawing.
        patch.setattr("matplotlib.figure.Figure.savefig", lambda _, path, **more: path.touch())
        assert command.main(["all", "--quick", "--work", str(work), "--output", str(work)]) == 0
    return work


@pytest.mark.grid
def test_every_entry_is_on_the_page(folder):
    text = (folder / "RESULTS.md").read_text()
    assert "Thinned data" in text
    for paper, words in page.WORDS.items():
        assert f"## {words['title']}" in text
        for key, entry in words["entries"].items():
            assert text.count(entry["title"]) >= 2
            assert ("absent" in entry) == (key not in command.PAPERS[paper])
    assert "|  | iterations | 20,200 / " in text
    assert "| the gap of the sample is never above that of all rows | yes |" in text
    drawn = {path.name for path in (folder / "figures").iterdir()}
    assert drawn == {path.name for path in (data.HOME / "figures").iterdir()}


def test_statistics_are_those_of_the_papers():
    """Their own printed times give their own printed values of p."""
    rows = PRINTED["meb"]["tables2and3"].values()
    columns = zip(*(row["seconds"] for row in rows), strict=True)
    times = dict(zip(ball.METHODS, columns, strict=True))
    assert ball.friedman([*times.values()]) == pytest.approx(1.72e-5, rel=0.6)
    for first, second, (_, side, p), *_ in PRINTED["meb"]["tests"]["pairs"]:
        assert ball.wilcoxon(times[first], times[second], side) == pytest.approx(p, rel=1e-3)
