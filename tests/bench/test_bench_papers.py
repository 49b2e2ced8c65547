"""The papers' tables on very few rows: every entry is on the page, and runs are kept."""

import dataclasses

import numpy as np
import pytest

from bench.papers import __main__ as command
from bench.papers import ball, data, study

CLASSES = {"usps": 3, "kdd-10pc": 3}


def made_up(name, *_):
    y = np.arange(120) % CLASSES.get(name, 2)
    X = np.random.default_rng(0).normal(size=(120, 3)) + 1.5 * np.cos(y[:, None] + range(3))
    X, y = X.astype(np.float32), y.astype(float)
    return data.Data(X[:80], y[:80], X[80:], y[80:])


@pytest.mark.grid
def test_every_entry_is_on_the_page_and_one_can_be_made_again(tmp_path, monkeypatch):
    perform, made = study.Study._perform, {}

    def perform_once(self, run):
        """Sets of as many classes are equal, and so are their runs."""
        most = min(run.max_iter or 10, 10)
        kind = dataclasses.replace(run, data=str(CLASSES.get(run.data, 2)), max_iter=most)
        if kind not in made:
            made[kind] = perform(self, dataclasses.replace(run, max_iter=most))
        return made[kind]

    monkeypatch.setattr(study, "load", made_up)
    monkeypatch.setattr(study.Study, "_perform", perform_once)
    folders = ["--work", str(tmp_path), "--output", str(tmp_path)]
    assert command.main(["all", *folders]) == 0
    page = tmp_path / "RESULTS.md"
    text = page.read_text()
    for words in command.WORDS.values():
        assert all(text.count(entry["title"]) == 2 for entry in words["entries"].values())
    assert "|  | iterations | 20,200 / " in text
    drawn = {path.name for path in (tmp_path / "figures").iterdir()}
    assert drawn == {path.name for path in (data.HOME / "figures").iterdir()}
    page.write_text(text.replace("| FW, CVM |", "| kept |"))
    monkeypatch.setattr(study, "load", None)  # all runs are known
    assert command.main(["partan", "table2", *folders]) == 0
    assert page.read_text() == text.replace("| FW, CVM |", "| kept |")


def test_statistics_are_those_of_the_papers():
    """Their own printed times give their own printed values of p."""
    rows = study.PRINTED["meb"]["tables2and3"].values()
    columns = zip(*(row["seconds"] for row in rows), strict=True)
    times = dict(zip(ball.METHODS, columns, strict=True))
    for first, second, (_, side, p), *_ in study.PRINTED["meb"]["tests"]["pairs"]:
        assert ball.wilcoxon(times[first], times[second], side) == pytest.approx(p, rel=1e-3)
