"""Figures hold the numbers that they are drawn from."""

import sys

import numpy as np
import pytest

from ooc_fw.model.evaluation import Judged
from ooc_fw.model.importance import Importance
from ooc_fw.report.figures import (
    PANELS,
    check_figure,
    draw_importance,
    draw_measures,
    draw_runs,
    save,
)
from ooc_fw.report.runlog import Run
from ooc_fw.system.errors import InputError


def make_run(label="run.jsonl", n=20, **limits):
    """A run of `n` events, of which the last is of a pass; it does not tell its share of work."""
    steps = np.arange(n, dtype=np.float64)
    certified = np.full(n, np.nan)
    certified[n - 1 :] = 5e-4
    numbers = {"elapsed_s": steps, "sampled_gap": 0.5**steps, "certified_gap": certified}
    numbers |= {"n_support": 5 * steps, "rss_bytes": steps, "share": np.full(n, np.nan)}
    return Run(label, numbers, **limits)


def test_all_panels_of_one_run(tmp_path):
    figure = draw_runs([make_run(tolerance=1e-3, memory_limit=4e8)])
    axes = [ax for ax in figure.axes if ax.axison]
    assert [ax.get_ylabel() for ax in axes] == [label for _, label, _ in PANELS.values()][1:]
    assert [ax.get_yscale() for ax in axes] == ["log", "linear", "linear"]
    sampled, certified, tolerance = axes[0].lines
    np.testing.assert_array_equal(sampled.get_xdata(), np.arange(20))
    np.testing.assert_array_equal(sampled.get_ydata(), 0.5 ** np.arange(20))
    np.testing.assert_array_equal(certified.get_ydata(), [*[np.nan] * 19, 5e-4])
    assert set(tolerance.get_ydata()) == {1e-3}
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["run.jsonl", "certified gap", "tolerance", "memory limit"]
    run = make_run(n=5, marks=[(3.0, "stage 2")])
    run.columns["share"] = np.linspace(0.0, 1.0, 5)
    figure = draw_runs([run])
    assert figure.axes[0].lines[0].get_ydata().tolist() == [0.0, 25.0, 50.0, 75.0, 100.0]
    assert [text.get_text() for ax in figure.axes for text in ax.texts] == ["stage 2"] * 4
    save(draw_runs([make_run(n=1), make_run(n=0)], ["gap", "memory"]), tmp_path / "f.svg")
    assert (tmp_path / "f.svg").read_text().startswith("<?xml")


def test_measures_are_drawn_with_what_is_known():
    measures = {"classes": {"$c^0": {}, "c1": {}}, "confusion": [[0, 0], [3, 1]], "accuracy": 0.25}
    measures["balanced_accuracy"] = 0.25
    ax = draw_measures(measures, Judged(np.zeros(4), np.zeros(4))).axes[0]
    assert ax.get_title("left") == "Accuracy 0.2500\nBalanced accuracy 0.2500"
    assert ax.images[0].get_array().tolist() == [[0, 0], [0.75, 0.25]]
    assert [label.get_text() for label in ax.get_yticklabels()] == [r"\$c^0", "c1"]
    assert [text.get_text() for text in ax.texts] == ["0", "0", "3", "1"]
    truth, scores = np.array([0, 1, 0, 1]), np.array([-1.0, 0.5, 0.7, 2.0])
    seen = Judged(truth, truth, truth == 1, scores, scores.clip(0, 1))
    measures |= {"positive": "c1", "brier_score": 0.1, "roc_auc": 0.5}
    _, roc, precision, reliability = draw_measures(measures, seen).axes
    assert roc.lines[0].get_xydata().tolist() == [[0, 0], [0, 0.5], [0.5, 0.5], [0.5, 1], [1, 1]]
    assert [1, 2 / 3] in precision.lines[0].get_xydata().tolist()
    assert reliability.lines[1].get_xydata().tolist() == [[0, 0], [0.5, 1], [0.7, 0], [1, 1]]
    for ax in (roc, precision, reliability):
        said = ax.get_xlabel() + ax.get_ylabel() + ax.get_legend().get_texts()[-1].get_text()
        assert "c1" in said
        assert ": 1)" not in said
        assert "model" not in said


def test_importance_is_drawn_in_its_order():
    names = ("a", "$b^{$", "a category with a long name", "d")
    found = Importance(names, "the score", np.array([1.0, 4, 2, 3]), 9)
    (ax,) = draw_importance(found, 3).axes
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert labels == [r"\$b^{\$", "d", "...gory with a long name"]
    assert [patch.get_width() for patch in ax.patches] == [4, 3, 2]


def test_figures_that_cannot_be_drawn_are_refused(monkeypatch):
    with pytest.raises(InputError, match=r"has to end in .png, .svg or .pdf, not gap.jpg"):
        check_figure("gap.jpg")
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    with pytest.raises(InputError, match=r"pip install 'ooc-fw\[plot\]'"):
        check_figure("gap.png")
