import builtins
import re

import numpy as np
import pytest

from ooc_fw.cli.evaluate import Judged
from ooc_fw.model.importance import Importance
from ooc_fw.report.figures import (
    PANELS,
    check_figure,
    draw_fit,
    draw_importance,
    draw_measures,
    draw_runs,
    save,
)
from ooc_fw.system.errors import InputError

pytest.importorskip("matplotlib")


def test_all_panels_of_one_run(make_run):
    figure = draw_runs([make_run()])
    axes = [ax for ax in figure.axes if ax.axison]
    assert [ax.get_ylabel() for ax in axes] == [label for _, label, _ in PANELS.values()]
    assert [ax.get_yscale() for ax in axes] == ["log", "linear", "linear"]
    sampled, certified, tolerance = axes[0].lines
    np.testing.assert_array_equal(sampled.get_xdata(), np.arange(20))
    np.testing.assert_array_equal(sampled.get_ydata(), 0.5 ** np.arange(20))
    np.testing.assert_array_equal(certified.get_ydata(), [*[np.nan] * 19, 5e-4])
    assert certified.get_color() == sampled.get_color()
    assert set(tolerance.get_ydata()) == {1e-3}
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names[0].endswith("run.jsonl")
    assert names[1:] == ["certified gap", "tolerance", "memory limit"]


def test_the_target_of_landmarks_is_their_own(make_run):
    figure = draw_runs([make_run("exact"), make_run("span", landmarks=9)], ["gap"])
    targets = [
        line.get_ydata()[0] for line in figure.axes[0].lines if line.get_label() == "tolerance"
    ]
    assert targets == [1e-3, pytest.approx(2e-3, rel=1e-3)]


@pytest.mark.grid
def test_runs_with_little_to_show(make_run, tmp_path):
    short = make_run("short", n=1, end=False)
    empty = make_run("empty", n=0, end=False)
    for runs in ([short, empty], [empty]):
        save(draw_runs(runs, ["gap", "memory"]), tmp_path / "f.svg")


@pytest.mark.parametrize("n_classes", [2, 40])
def test_measures_are_drawn_with_what_is_known(n_classes, tmp_path):
    counts = np.diag(np.arange(n_classes))
    counts[1, 0] = 3
    measures = {
        "classes": {f"$c^{k}": {"rows": int(row.sum())} for k, row in enumerate(counts)},
        "confusion": counts.tolist(),
        "accuracy": 0.25,
        "n_rows": int(counts.sum()),
    }
    bare = Judged(np.zeros(4), np.zeros(4))
    ax = draw_measures(measures, bare).axes[0]
    assert ax.get_title("left") == "Accuracy 0.2500"
    assert [label.get_text() for label in ax.get_yticklabels()][:2] == [r"\$c^0", r"\$c^1"]
    assert len(ax.get_yticklabels()) == n_classes
    assert [text.get_text() for text in ax.texts] == ["0", "0", "3", "1"] * (n_classes == 2)
    truth = np.array([False, True, False, True])
    scores = np.array([-1.0, 0.5, 0.7, 2.0])
    measures |= {"positive": "$c^1", "brier_score": 0.1, "roc_auc": 0.5}
    seen = bare._replace(given=truth.astype(int), positive=truth, scores=scores)
    figure = draw_measures(measures, seen._replace(chances=scores.clip(0, 1)))
    _, roc, precision, reliability = figure.axes[:4]
    assert roc.lines[0].get_xydata().tolist() == [[0, 0], [0, 0.5], [0.5, 0.5], [0.5, 1], [1, 1]]
    assert [1, 2 / 3] in precision.lines[0].get_xydata().tolist()
    assert reliability.lines[1].get_xydata().tolist() == [[0, 0], [0.5, 1], [0.7, 0], [1, 1]]
    save(figure, tmp_path / "f.png")
    few = draw_measures(measures, seen)
    assert len(few.axes) == 4 + (n_classes > 10)  # a bar of colours


def test_predictions_are_drawn_against_targets(tmp_path):
    figure = draw_fit(np.array([1.0, 2]), np.array([1.0, 4]))
    assert sorted(figure.axes[0].collections[0].get_offsets().tolist()) == [[1, 1], [4, 2]]
    save(figure, tmp_path / "f.png")


def test_figures_that_cannot_be_drawn_are_refused(monkeypatch):
    with pytest.raises(InputError, match=r"has to end in .png, .svg or .pdf, not gap.jpg"):
        check_figure("gap.jpg")
    real = builtins.__import__

    def no_matplotlib(name, *args, **options):
        if name.partition(".")[0] == "matplotlib":
            raise ModuleNotFoundError(name)
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", no_matplotlib)
    with pytest.raises(InputError, match=re.escape("pip install 'ooc-fw[plot]'")):
        check_figure("gap.png")


def test_importance_is_drawn_in_its_order():
    values = np.array([1.0, 4, 2, 3])
    found = Importance(
        names=("a", "$b^{$", "a category with a long name", "d"),
        what="the score",
        values=values,
        n_rows=9,
    )
    figure = draw_importance(found, 3)
    (ax,) = figure.axes
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert labels == [r"\$b^{\$", "d", "...gory with a long name"]
    assert [patch.get_width() for patch in ax.patches] == [4, 3, 2]
