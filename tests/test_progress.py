from __future__ import annotations

import io
import json

import pytest

from ooc_fw.progress import (
    Bar,
    EventLog,
    Lines,
    Progress,
    RowProgress,
    Throttle,
    describe,
    to_json,
)
from ooc_fw.state import SolverState, StepKind


class Clock:
    """Stands in for `time.monotonic`."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr("ooc_fw.progress.time.monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def make_state(**changes):
    values = {"phase": "train", "iteration": 7, "rows_read": 4000, "elapsed_s": 2.0}
    return SolverState(**{**values, **changes})


def test_throttle_is_due_once_in_its_time(clock):
    due = Throttle(5.0)
    answers = []
    for clock.now in (0.0, 4.9, 5.0, 6.0, 9.9, 20.0, 24.0):
        answers.append(due())
    assert answers == [False, False, True, False, False, True, False]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "gap ?, 0 support vectors, 2,000 rows/s"),
        ({"elapsed_s": 0.0}, "gap ?, 0 support vectors, 0 rows/s"),
        ({"sampled_gap": 0.0123, "n_support": 9}, "gap 1.2e-02, 9 support vectors, 2,000 rows/s"),
        (
            {"sampled_gap": 0.1, "certified_gap": 0.5},
            "gap 5.0e-01, 0 support vectors, 2,000 rows/s",
        ),
    ],
)
def test_describe(changes, expected):
    assert describe(make_state(**changes)) == expected


def test_lines(clock):
    stream = io.StringIO()
    lines = Lines(stream, seconds=5.0)
    for clock.now in (1.0, 5.0, 6.0):
        lines(make_state(sampled_gap=0.5))
    clock.now = 10.0
    lines(make_state(phase="certify", sweep_fraction=0.25))
    lines.close()
    assert stream.getvalue().splitlines() == [
        "2 s, train, iteration 7: gap 5.0e-01, 0 support vectors, 2,000 rows/s",
        "2 s, certify 25%, iteration 7: gap ?, 0 support vectors, 2,000 rows/s",
    ]


def bar_fraction(bar, clock, **changes):
    clock.now += 1
    bar(make_state(**changes))
    return bar._bar.n


def test_bar_fills_on_a_logarithmic_scale_from_the_first_gap_to_the_tolerance(clock):
    bar = Bar(Terminal(), tol=1e-3)
    assert bar_fraction(bar, clock) == 0
    gaps = [1e-1, 1e-2, 1e-3, 1e-4, 1.0, 0.0]
    assert [bar_fraction(bar, clock, sampled_gap=gap) for gap in gaps] == [0, 50, 100, 100, 0, 0]
    assert bar_fraction(bar, clock, phase="certify", sweep_fraction=0.3) == 30
    bar.close()


def test_bar_that_starts_within_the_tolerance_is_full(clock):
    bar = Bar(Terminal(), tol=1e-3)
    assert bar_fraction(bar, clock, sampled_gap=1e-4) == 100
    bar.close()


def test_bar_without_a_relative_tolerance_stays_empty(clock):
    bar = Bar(Terminal(), tol=None)
    assert bar_fraction(bar, clock, sampled_gap=1e-4) == 0
    bar.close()


def test_bar_says_gap_support_and_speed(clock):
    stream = Terminal()
    bar = Bar(stream, tol=1e-3)
    bar_fraction(bar, clock, sampled_gap=0.5, n_support=12)
    bar.close()
    assert "train" in stream.getvalue()
    assert "gap 5.0e-01, 12 support vectors, 2,000 rows/s" in stream.getvalue()


def test_log_has_one_object_a_line(tmp_path, clock):
    log = EventLog(tmp_path / "log")
    log.write("start", {"tol": 1e-3})
    for clock.now in (0.01, 0.05, 0.2):
        log(make_state(iteration=clock.now, sampled_gap=float("nan")))
    log(make_state(phase="certify"))
    log.write("end", {"status": "converged"})
    log.close()
    events = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [event["event"] for event in events] == ["start", *["progress"] * 3, "end"]
    assert [event["iteration"] for event in events[1:-1]] == [0.01, 0.2, 7]
    assert events[1]["sampled_gap"] is None
    assert events[1]["steps"] == {str(kind): 0 for kind in StepKind}


def test_log_can_be_followed(tmp_path):
    log = EventLog(tmp_path / "log")
    log.write("start", {})
    assert (tmp_path / "log").read_text() == '{"event": "start"}\n'
    log.close()


@pytest.mark.parametrize(
    ("stream", "quiet", "kinds"),
    [
        (Terminal(), False, [Bar]),
        (io.StringIO(), False, [Lines]),
        (Terminal(), True, []),
    ],
)
def test_display_fits_the_stream(stream, quiet, kinds):
    with Progress(stream, quiet=quiet) as progress:
        assert [type(callback) for callback in progress.callbacks] == kinds


def test_quiet_run_still_writes_its_log(tmp_path):
    log = EventLog(tmp_path / "log")
    with Progress(io.StringIO(), quiet=True, log=log) as progress:
        assert progress.callbacks == (log,)
    with pytest.raises(ValueError, match="closed"):
        log.write("end", {})


def test_callbacks_never_stop_the_run(clock):
    with Progress(io.StringIO()) as progress:
        clock.now = 100.0
        assert [callback(make_state()) for callback in progress.callbacks] == [None]


def test_json_has_null_for_what_is_no_number():
    values = {"a": float("nan"), "b": {"c": float("inf")}, "d": 1.5, "e": None}
    assert json.loads(to_json(values)) == {"a": None, "b": {"c": None}, "d": 1.5, "e": None}


def test_row_progress_in_lines(clock):
    stream = io.StringIO()
    with RowProgress("certify", 200, stream) as progress:
        progress(20)
        clock.now = 10.0
        progress(50)
        progress(60)
        clock.now = 20.0
        progress(200)
    assert stream.getvalue().splitlines() == [
        "10 s, certify 25%: 5 rows/s",
        "20 s, certify 100%: 10 rows/s",
    ]


def test_quiet_row_progress(clock):
    stream = Terminal()
    with RowProgress("certify", 200, stream, quiet=True) as progress:
        clock.now = 100.0
        progress(200)
    assert stream.getvalue() == ""


def test_row_progress_on_a_terminal(clock):
    stream = Terminal()
    with RowProgress("certify", 200, stream) as progress:
        clock.now = 10.0
        progress(50)
    assert "certify:  25%" in stream.getvalue()
