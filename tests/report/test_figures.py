from __future__ import annotations

import builtins
import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw.report.figures import PANELS, check_format, draw, load_matplotlib, save, speed, thin
from ooc_fw.report.runlog import read_runs
from ooc_fw.system.errors import InputError
from ooc_fw.testing.logs import make_events

pytest.importorskip("matplotlib")


@pytest.fixture
def make_run(tmp_path):
    def make(name="run", end=True, **options):
        path = tmp_path / f"{name}.jsonl"
        events = list(make_events(**options))
        if end:
            events.append({"event": "end", "status": "converged", "certified_gap": 5e-4})
        path.write_text("".join(json.dumps(event) + "\n" for event in events))
        return read_runs([path])[0]

    return make


def labels_of(figure):
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def test_all_panels_of_one_run(make_run):
    figure = draw([make_run()])
    axes = [ax for ax in figure.axes if ax.axison]
    assert [ax.get_title(loc="left") for ax in axes] == [
        *(title for name in list(PANELS)[:5] for title in [PANELS[name].title] * 2),
        "Memory",
        "Step kinds",
    ]
    assert {ax.get_xlabel() for ax in axes} == {"time (s)", "iteration"}
    assert all(ax.get_ylabel() for ax in axes)
    assert [ax.get_yscale() for ax in axes[:4]] == ["log"] * 4
    assert labels_of(figure) == [
        "sampled gap",
        "certified gap",
        "tolerance, memory limit",
        "peak of memory",
        "sweep over the file",
    ]


def test_lines_are_those_of_the_run(make_run):
    run = make_run()
    figure = draw([run], ["gap"], ["time"])
    sampled, certified, tolerance = figure.axes[0].lines
    np.testing.assert_array_equal(sampled.get_xdata(), run.columns["elapsed_s"])
    np.testing.assert_array_equal(sampled.get_ydata(), run.columns["sampled_gap"])
    assert list(certified.get_xdata()) == [9.5, 19.5]
    assert list(certified.get_ydata()) == [0.7**20, 5e-4]
    assert set(tolerance.get_ydata()) == {1e-3}


def test_several_runs_share_axes_and_have_colours_of_their_own(make_run):
    runs = [make_run(name, pace=pace) for name, pace in (("one", 0.5), ("two", 1.0))]
    figure = draw(runs)
    colors = [line.get_color() for line in figure.axes[0].lines[:2]]
    assert len(set(colors)) == 2
    assert labels_of(figure)[:3] == ["one", "two", "sampled gap"]
    bars = figure.axes[-1]
    assert [text.get_text() for text in bars.get_yticklabels()] == ["one", "two"]
    assert [text.get_text() for text in bars.texts] == ["390 steps, 39 drops"] * 2
    assert [patch.get_width() for patch in bars.patches] == [70, 30, 70, 30]


def test_many_runs_differ_by_style_and_the_layout_holds(make_run, tmp_path):
    runs = [make_run("a long name of a run " * 3 + str(k), pace=0.1 + k) for k in range(9)]
    figure = draw(runs, ["gap", "steps"], ["time"])
    styles = {(line.get_color(), line.get_linestyle()) for line in figure.axes[0].lines[:9]}
    assert len(styles) == 9
    assert figure.axes[0].get_xscale() == "log"
    save(figure, tmp_path / "f.png")  # matplotlib warns where there is no room
    assert figure.legends[0].get_window_extent().x1 <= figure.bbox.x1
    assert max(map(len, labels_of(figure))) <= 36


def test_machines_are_set_apart(make_run):
    run = make_run(machines=3)
    figure = draw([run], ["gap", "memory"], ["iteration"])
    gap, memory = figure.axes
    assert gap.get_xlabel() == "iteration (of all machines)"
    breaks = np.isnan(gap.lines[0].get_ydata()).sum()
    assert breaks == 3 + 2  # unknown at the start of each, and between them
    assert not np.isnan(memory.lines[0].get_ydata()).any()
    assert "next machine" in labels_of(figure)
    assert "sweep over the file" not in labels_of(figure)


def test_runs_with_little_to_show(make_run, tmp_path):
    short = make_run("short", n=1, end=False)
    empty = make_run("empty", n=0, end=False)
    for runs in ([short], [short, empty], [make_run(), empty]):
        figure = draw(runs, ["gap", "rows", "steps"], ["iteration"])
        save(figure, tmp_path / "f.svg")
        notes = [text.get_text() for text in figure.axes[1].texts]
        assert notes == ([] if runs[0].n_events > 1 else ["too few events"])


def test_time_is_given_in_a_fitting_unit(make_run):
    for pace, unit in ((1.0, "s"), (20.0, "min"), (200.0, "h")):
        figure = draw([make_run(pace=pace)], ["gap"], ["time"])
        assert figure.axes[0].get_xlabel() == f"time ({unit})"
        last = figure.axes[0].lines[0].get_xdata()[-1]
        assert last == pytest.approx(39 * pace / {"s": 1, "min": 60, "h": 3600}[unit])


def test_speed_adds_up(make_run):
    run = make_run()
    for against in ("time", "iteration"):
        edges, values = speed(run, "rows_read", against)
        assert len(edges) == len(values) + 1
        assert (np.diff(edges) > 0).all()
        np.testing.assert_allclose(values, 2000)
    assert len(speed(make_run("short", n=1), "rows_read", "time")[1]) == 0


def test_speed_of_a_sweep_is_part_of_its_iteration(make_run):
    run = make_run()
    run.columns["iteration"][20:] = run.columns["iteration"][20]
    edges, values = speed(run, "rows_read", "iteration")
    assert edges[-1] == 200
    assert (np.diff(edges) > 0).all()
    np.testing.assert_allclose(values, 2000)


@given(
    st.lists(st.floats(0, 1) | st.just(float("nan")), min_size=1, max_size=300),
    st.integers(1, 20),
)
def test_thinned_lines_keep_ends_and_extremes(values, n_bins):
    y = np.array(values)
    kept = thin(np.arange(len(y), dtype=float), y, n_bins)
    assert (np.diff(kept) > 0).all()
    assert kept[0] == 0
    assert kept[-1] == len(y) - 1
    assert len(kept) <= max(4 * n_bins, 5 * n_bins)
    known = y[~np.isnan(y)]
    if len(known) > 0:
        assert np.nanmin(y[kept]) == known.min()
        assert np.nanmax(y[kept]) == known.max()
    if len(known) < len(y):
        assert np.isnan(y[kept]).any()


def test_equal_runs_make_equal_files(make_run, tmp_path):
    contents = []
    for name in ("a.svg", "b.svg"):
        save(draw([make_run()], ["gap"], ["time"]), tmp_path / name)
        contents.append((tmp_path / name).read_bytes())
    assert contents[0] == contents[1]


def test_unknown_format():
    with pytest.raises(InputError, match=re.escape("gap.jpg is no name of a figure")):
        check_format("gap.jpg")


def test_without_matplotlib_the_way_to_get_it_is_named(monkeypatch):
    real = builtins.__import__

    def no_matplotlib(name, *args, **options):
        if name.partition(".")[0] == "matplotlib":
            raise ImportError(name)
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", no_matplotlib)
    with pytest.raises(InputError, match=re.escape("pip install 'ooc-fw[plot]'")):
        load_matplotlib()
