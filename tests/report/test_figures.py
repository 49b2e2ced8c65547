import builtins
import re
from types import SimpleNamespace

import numpy as np
import pytest

from ooc_fw.report.figures import (
    PANELS,
    check_figure,
    draw_fit,
    draw_importance,
    draw_measures,
    draw_runs,
    render,
    save,
)
from ooc_fw.system.errors import InputError

pytest.importorskip("matplotlib")


@pytest.mark.parametrize("against", ["time", "iteration"])
def test_all_panels_of_one_run(make_run, against):
    figure = draw_runs([make_run()], against=against)
    axes = [ax for ax in figure.axes if ax.axison]
    assert [ax.get_title(loc="left") for ax in axes] == [panel.title for panel in PANELS.values()]
    assert {ax.get_xlabel() for ax in axes} == {"time (s)" if against == "time" else "iteration"}
    assert [ax.get_yscale() for ax in axes] == ["log", "linear", "linear"]
    sampled, certified, tolerance = axes[0].lines
    scale = 1 if against == "time" else 10
    np.testing.assert_array_equal(sampled.get_xdata(), scale * np.arange(20))
    np.testing.assert_array_equal(sampled.get_ydata(), 0.5 ** np.arange(20))
    assert (list(certified.get_xdata()), list(certified.get_ydata())) == ([19 * scale], [5e-4])
    assert set(tolerance.get_ydata()) == {1e-3}
    names = {"run", "certified gap", "tolerance", "peak of memory", "memory limit"}
    assert {text.get_text() for text in figure.legends[0].get_texts()} == names


@pytest.mark.grid
def test_many_runs_differ_and_the_layout_holds(make_run, tmp_path):
    runs = [make_run("a long name of a run " * 3 + str(k), pace=0.1 + k) for k in range(9)]
    figure = draw_runs(runs, ["gap", "support"])
    styles = {(line.get_color(), line.get_linestyle()) for line in figure.axes[0].lines[::3]}
    assert len(styles) == 9
    assert len({(line.get_marker(), line.get_linestyle()) for line in figure.axes[0].lines}) > 9
    assert figure.axes[1].get_ylim()[0] == 0
    save(figure, tmp_path / "f.png")  # matplotlib warns where there is no room
    (legend,) = figure.legends
    assert len(legend.get_texts()) == 11
    assert legend.get_window_extent().x1 <= figure.bbox.x1


def test_runs_of_few_and_of_many_iterations_are_told_apart(make_run):
    runs = [make_run("few"), make_run("many")]
    for scale, factor in (("linear", 50), ("symlog", 20)):
        runs[1].columns["iteration"] *= factor
        figure = draw_runs(runs, ["gap"], "iteration")
        assert figure.axes[0].get_xscale() == scale
    assert figure.axes[0].xaxis.get_major_formatter()(50_000) == "50k"


def test_the_target_of_landmarks_is_their_own(make_run):
    figure = draw_runs([make_run("exact"), make_run("span", landmarks=9)], ["gap"])
    lines = {line.get_label(): line.get_ydata()[0] for line in figure.axes[0].lines}
    assert lines["tolerance"] == 1e-3
    assert lines["tolerance of landmarks"] == pytest.approx(2e-3, rel=1e-3)
    assert len(figure.legends[0].get_texts()) == 5


def test_binary_classifiers_are_drawn_one_after_the_other(make_run):
    figure = draw_runs([make_run(classifiers=3)], ["gap"], "iteration")
    assert figure.axes[0].get_xlabel() == "iteration (of all binary classifiers)"
    assert np.isnan(figure.axes[0].lines[0].get_ydata()).sum() == 2


@pytest.mark.grid
def test_runs_with_little_to_show(make_run, tmp_path):
    short = make_run("short", n=1, end=False)
    empty = make_run("empty", n=0, end=False)
    for runs in ([short, empty], [empty]):
        save(draw_runs(runs, ["gap", "memory"]), tmp_path / "f.svg")


@pytest.mark.parametrize(
    ("pace", "unit", "last"), [(1, "s", 19), (60, "min", 19), (1800, "h", 9.5)]
)
def test_time_is_given_in_a_fitting_unit(make_run, pace, unit, last):
    (ax,) = draw_runs([make_run(pace=pace)], ["gap"]).axes
    assert (ax.get_xlabel(), ax.lines[0].get_xdata()[-1]) == (f"time ({unit})", last)


@pytest.mark.grid
@pytest.mark.parametrize(
    "form", ["svg", *(pytest.param(form, marks=pytest.mark.grid) for form in ("pdf", "png"))]
)
def test_equal_runs_make_equal_files(make_run, form):
    first, second = (render(draw_runs([make_run()], ["gap"]), form) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("n_classes", [2, 40])
def test_measures_are_drawn_with_what_is_known(n_classes, tmp_path):
    used = {"from": 0.0, "to": 0.1, "rows": 8, "mean_probability": 0.05, "share": 0.375}
    unused = {"from": 0.1, "to": 0.2, "rows": 0, "mean_probability": None, "share": None}
    counts = np.diag(np.arange(n_classes))
    counts[1, 0] = 3
    measures = {
        "classes": {f"$c^{k}": {"rows": int(row.sum())} for k, row in enumerate(counts)},
        "confusion": counts.tolist(),
        "accuracy": 0.25,
        "n_rows": int(counts.sum()),
    }
    ax = draw_measures(measures).axes[0]
    assert ax.get_title("left") == "Accuracy 0.2500"
    assert [label.get_text() for label in ax.get_yticklabels()][:2] == [r"\$c^0", r"\$c^1"]
    assert len(ax.get_yticklabels()) == n_classes
    assert [text.get_text() for text in ax.texts] == ["0", "0", "3", "1"] * (n_classes == 2)
    rates = {"recall": [1, 0.5], "precision": [0.75, 1], "false_positive_rate": [0.5, 0]}
    measures |= {"curve": rates, "positive": "$c^1", "roc_auc": 0.5, "average_precision": 0.5}
    measures |= {"reliability": [used, unused], "brier_score": 0.1}
    figure = draw_measures(measures)
    _, roc, precision, reliability = figure.axes[:4]
    assert roc.lines[0].get_xydata().tolist() == [[1, 1], [0.5, 1], [0, 0.5], [0, 0]]
    assert precision.lines[0].get_xydata().tolist() == [[1, 0.75], [0.5, 1]]
    assert reliability.lines[1].get_xydata().tolist() == [[0.05, 0.375]]
    save(figure, tmp_path / "f.png")
    del measures["reliability"]
    gives = {"recall": 0.5, "precision": 0.9, "false_positive_rate": 0.25}
    measures["threshold"] = {"value": 1.5, "positive_where": "<=", "gives": gives}
    axes = draw_measures(measures).axes[:3]
    marks = [ax.lines[-1] for ax in axes[1:]]
    assert [mark.get_label() for mark in marks] == ["decision <= 1.5"] * 2
    assert [mark.get_xydata().tolist() for mark in marks] == [[[0.25, 0.5]], [[0.5, 0.9]]]


def test_the_most_confused_of_many_classes_are_drawn():
    counts = 5 * np.eye(60, dtype=int)
    counts[7, 50] = 3
    counts[range(9, 51), range(8, 50)] = 1
    classes = {f"c{k}": {"rows": 1} for k in range(60)}
    measures = {"classes": classes, "confusion": counts.tolist(), "accuracy": 0.5, "n_rows": 1}
    ax = draw_measures(measures).axes[0]
    assert "40 most confused of 60 classes" in ax.get_title("left")
    names = [label.get_text() for label in ax.get_xticklabels()]
    assert len(names) == 40
    assert {"c7", "c50"} <= {*names}
    assert not {"c0", "c59"} & {*names}


def test_predictions_are_drawn_against_targets(tmp_path):
    figure = draw_fit({"r2": None, "rmse": 1.4, "n_rows": 2, "sample": [[1.0, 1], [2, 4]]})
    assert figure.axes[0].lines[0].get_xydata().tolist() == [[1, 1], [2, 4]]
    save(figure, tmp_path / "f.png")


def test_figures_that_cannot_be_drawn_are_refused(monkeypatch):
    with pytest.raises(InputError, match=re.escape("gap.jpg is no name of a figure")):
        check_figure("gap.jpg")
    real = builtins.__import__

    def no_matplotlib(name, *args, **options):
        if name.partition(".")[0] == "matplotlib":
            raise ModuleNotFoundError(name)
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", no_matplotlib)
    with pytest.raises(InputError, match=re.escape("pip install 'ooc-fw[plot]'")):
        check_figure("gap.png")


@pytest.mark.parametrize("several", [False, True])
def test_importance_is_drawn_in_its_order(several):
    names, values = ("a", "$b^{$", "a category with a long name", "d"), np.array([1.0, 4, 2, 3])
    effects, by_class = np.array([[0.5, -4, np.nan, 0.1]]), values[None]
    if several:
        effects, by_class = (np.vstack([rows] * 9) for rows in (effects, by_class))
        by_class[1] = values[::-1]
    found = SimpleNamespace(
        **{"names": names, "by_class": by_class, "what": "the score", "effects": effects},
        **{"classes": "abcdefghi" if several else "b", "permuted": False},
    )
    figure = draw_importance(found, 3)
    assert render(figure, "svg")
    ax, *others = figure.axes
    assert len(others) == 7 * several
    if several:
        assert others[0].get_title("left") == "for b"
        labels = [label.get_text() for label in others[0].get_yticklabels()]
        assert labels == ["...gory with a long name", "a", r"\$b^{\$"]
    assert [label.get_text() for label in ax.get_yticklabels()] == [
        r"\$b^{\$",
        "d",
        "...gory with a long name",
    ]
    bars = [patch for patch in ax.patches if patch.get_width() > 0]
    assert sorted(patch.get_width() for patch in bars) == [2, 3, 4]
    colors = {patch.get_width(): patch.get_facecolor() for patch in bars}
    assert len(set(colors.values())) == 2
    assert colors[2] == colors[3]
