from __future__ import annotations

import errno
import io
import json

import numpy as np
import pytest

from ooc_fw.report.progress import (
    Bar,
    EventLog,
    Lines,
    Pace,
    Phases,
    Progress,
    RowProgress,
    Throttle,
    TimeLeft,
    describe,
    format_seconds,
    to_json,
)
from ooc_fw.solve.state import SolverState, StepKind


class Clock:
    """Stands in for `time.monotonic`."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr("ooc_fw.report.progress.time.monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def make_state(**changes):
    values = {"phase": "train", "iteration": 7, "rows_read": 4000, "elapsed_s": 2.0}
    return SolverState(**{**values, **changes})


def make_machine(machine, **changes):
    return make_state(machine=machine, n_machines=3, **changes)


def test_throttle_is_due_once_in_its_time(clock):
    due = Throttle(5.0)
    answers = []
    for clock.now in (0.0, 4.9, 5.0, 6.0, 9.9, 20.0, 24.0):
        answers.append(due())
    assert answers == [False, False, True, False, False, True, False]


@pytest.mark.parametrize(
    ("changes", "pace", "left", "expected"),
    [
        ({}, None, None, "gap ?, 0 support vectors"),
        (
            {"sampled_gap": 0.0123, "n_support": 9876},
            0.0,
            None,
            "gap 1.2e-02, 9,876 support vectors",
        ),
        (
            {"sampled_gap": 0.1, "certified_gap": 0.5},  # of weights that are no more
            123.4e6,
            "sweep ends in 4 s",
            "gap 1.0e-01, 0 support vectors, 123 MB/s, sweep ends in 4 s",
        ),
        ({}, 1.24e6, None, "gap ?, 0 support vectors, 1.2 MB/s"),
    ],
)
def test_describe(changes, pace, left, expected):
    assert describe(make_state(**changes), pace, left) == expected


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(-1, "0 s"), (3.4, "3 s"), (99.4, "99 s"), (100, "2 min"), (5969, "99 min"), (7200, "2.0 h")],
)
def test_durations_for_people(seconds, words):
    assert format_seconds(seconds) == words


def test_lines(clock):
    stream = io.StringIO()
    lines = Lines(stream, seconds=5.0)
    for clock.now in (1.0, 5.0, 6.0):
        lines(make_state(sampled_gap=0.5))
    clock.now = 10.0
    lines(make_state(elapsed_s=7.0, bytes_read=10**8, phase="certify", sweep_fraction=0.25))
    lines.close()
    assert stream.getvalue().splitlines() == [
        "2 s, train, iteration 7: gap 5.0e-01, 0 support vectors",
        "7 s, certify 25%, iteration 7: gap ?, 0 support vectors, 20 MB/s",
    ]


def test_lines_of_several_machines_count_the_time_of_all(clock):
    stream = io.StringIO()
    lines = Lines(stream, seconds=5.0)
    for machine, elapsed in enumerate((40.0, 3.0, 2.0)):
        clock.now += 5.0
        lines(make_machine(machine, elapsed_s=elapsed))
    assert [line.partition(":")[0] for line in stream.getvalue().splitlines()] == [
        "40 s, machine 1/3 train, iteration 7",
        "43 s, machine 2/3 train, iteration 7",
        "45 s, machine 3/3 train, iteration 7",
    ]


def test_pace_is_that_of_the_last_seconds():
    pace = Pace()
    reads = [(0.0, 0), (1.0, 900), (20.0, 1000), (22.0, 1500), (24.0, 2000)]
    paces = [pace(make_state(elapsed_s=now, bytes_read=read)) for now, read in reads]
    assert paces == [None, 900, pytest.approx(100 / 19), 250, 250]
    assert pace(make_state(elapsed_s=1.0, bytes_read=50)) is None  # another machine


def words_left(left, times, gaps):
    """What is said of the time left, after each of some training states."""
    states = zip(times, gaps, strict=True)
    return [left(make_state(elapsed_s=t, sampled_gap=gap)) for t, gap in states]


def test_time_left_of_a_sweep():
    left = TimeLeft(tol=None)
    times, fractions = (10.0, 10.5, 12.0, 20.0), (0.1, 0.2, 0.3, 0.6)
    states = zip(times, fractions, strict=True)
    words = [left(make_state(phase="certify", elapsed_s=t, sweep_fraction=f)) for t, f in states]
    assert words == [None, None, "sweep ends in 7 s", "sweep ends in 8 s"]


def test_time_left_of_a_gap_that_falls_evenly():
    times = np.arange(0.0, 60.0, 0.5)
    noise = 1 + 0.05 * np.random.default_rng(0).normal(size=len(times))
    words = words_left(TimeLeft(tol=1e-3), times, np.exp(-times / 20) * noise)
    assert words[0] is None
    # exp(-t / 20) is 1e-3 at 138 s, 79 s after the last state.
    assert words[-1].startswith("training ends in about ")
    assert abs(int(words[-1].split()[-2]) - 79) < 15


def test_time_left_of_a_gap_that_falls_more_and_more_slowly():
    times = np.arange(0.5, 60.0, 0.5)
    words = words_left(TimeLeft(tol=1e-3), times, 0.1 / times)
    assert words[-1].startswith("training ends in about ")
    assert abs(int(words[-1].split()[-2]) - 40) < 8  # 0.1 / t is 1e-3 at 100 s


@pytest.mark.parametrize(
    "gap",
    [
        lambda t: np.ones_like(t),
        lambda t: np.exp(np.random.default_rng(0).normal(size=len(t))),
        lambda t: np.exp(-t / 60 + 0.3 * np.random.default_rng(0).normal(size=len(t))),
        lambda t: np.exp(t / 20),
        lambda t: np.exp(-t / 20) + 1e-2,  # stalls
        lambda t: 1 / (1 + t),  # far from the end
    ],
)
def test_no_time_left_is_made_up(gap):
    times = np.arange(0.0, 120.0, 0.5)
    words = words_left(TimeLeft(tol=1e-6), times, gap(times))
    assert words[-1] is None
    steady = np.exp(-times / 20)
    assert set(words_left(TimeLeft(tol=None), times, steady)) == {None}


def test_time_limit(monkeypatch):
    monkeypatch.setattr("ooc_fw.report.progress.time.perf_counter", lambda: 100.0)
    times = np.arange(0.0, 60.0, 0.5)
    words = words_left(TimeLeft(1e-3, ends_at=140.0), times, np.exp(-times / 20))
    assert set(words) == {"time limit in 40 s"}
    words = words_left(TimeLeft(1e-3, ends_at=1000.0), times, np.exp(-times / 20))
    assert words[0] == "time limit in 15 min"
    assert words[-1].startswith("training ends in about ")


def test_phases_are_logged_as_they_begin(caplog):
    caplog.set_level("INFO", logger="ooc_fw")
    phases = Phases()
    for changes in (
        {},
        {"iteration": 8},
        {"phase": "certify", "sweep_fraction": 0.4},
        {"phase": "certify", "sweep_fraction": 0.8},
        {"machine": 1, "n_machines": 3, "phase": "certify"},
    ):
        phases(make_state(**changes))
    assert [record.message for record in caplog.records] == [
        "train after 2.0 s, iteration 7: gap ?, 0 support vectors",
        "certify after 2.0 s, iteration 7: gap ?, 0 support vectors",
        "machine 2/3 certify after 2.0 s, iteration 7: gap ?, 0 support vectors",
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


def test_bar_begins_anew_with_each_machine(clock):
    bar = Bar(Terminal(), tol=1e-3)
    for machine, gaps in enumerate([(1e-1, 1e-2), (1.0, 1e-1)]):
        for gap in gaps:
            clock.now += 1
            bar(make_machine(machine, sampled_gap=gap))
        assert bar._bar.n == (50, 33)[machine]
    bar.close()


def test_bar_says_gap_support_speed_and_time_left(clock, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    stream = Terminal()
    bar = Bar(stream, tol=1e-3)
    bar_fraction(bar, clock, sampled_gap=0.5, n_support=12)
    for now, part in ((4.0, 0.1), (8.0, 0.5)):
        read = int(2e8 * part)
        state = {"phase": "certify", "elapsed_s": now, "sweep_fraction": part, "bytes_read": read}
        bar_fraction(bar, clock, sampled_gap=0.5, n_support=1234, **state)
    bar.close()
    assert "train" in stream.getvalue()
    assert "gap 5.0e-01, 12 SV" in stream.getvalue()
    assert "certify 50%" in stream.getvalue()
    assert "gap 5.0e-01, 1,234 SV, 20 MB/s, sweep ends in 5 s" in stream.getvalue()


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
    assert 0 < events[1]["rss_bytes"] <= events[1]["peak_rss_bytes"]


def test_log_holds_every_change_of_phase_machine_and_certified_gap(tmp_path, clock):
    log = EventLog(tmp_path / "log")
    for changes in ({}, {}, {"certified_gap": 0.5}, {"certified_gap": 0.5}, {"phase": "certify"}):
        log(make_state(**changes))
    log(make_machine(0, phase="certify"))
    log(make_machine(1, phase="certify"))
    log.close()
    events = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [event["certified_gap"] for event in events] == [None, 0.5, None, None]
    assert [event["machine"] for event in events[-2:]] == [0, 1]


def test_log_holds_the_last_state(tmp_path, clock):
    log = EventLog(tmp_path / "log")
    for iteration in range(3):
        log(make_state(iteration=iteration))
    log.write("end", {})
    log.close()
    events = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [event.get("iteration") for event in events] == [0, 2, None]


def test_log_goes_on_after_a_line_that_was_cut_short(tmp_path):
    path = tmp_path / "log"
    path.write_text('{"event": "start"}\n{"event": "pro')
    log = EventLog(path, append=True)
    log.write("start", {})
    log.close()
    assert path.read_text().splitlines()[-1] == '{"event": "start"}'
    EventLog(path).close()
    assert path.read_text() == ""


def test_log_can_be_followed(tmp_path):
    log = EventLog(tmp_path / "log")
    log.write("start", {})
    assert (tmp_path / "log").read_text() == '{"event": "start"}\n'
    log.close()


@pytest.mark.parametrize(
    ("stream", "options", "kinds"),
    [
        (Terminal(), {}, [Bar]),
        (io.StringIO(), {}, [Lines]),
        (Terminal(), {"quiet": True}, []),
        (Terminal(), {"verbose": True}, [Lines, Phases]),
        (io.StringIO(), {"verbose": True}, [Lines, Phases]),
    ],
)
def test_display_fits_the_stream(stream, options, kinds):
    with Progress(stream, **options) as progress:
        assert [type(display) for display in progress.displays] == kinds


def test_quiet_run_still_writes_its_log(tmp_path):
    log = EventLog(tmp_path / "log")
    with Progress(io.StringIO(), quiet=True, log=log) as progress:
        assert progress.displays == [log]
        for callback in progress.callbacks:
            callback(make_state())
    assert '"progress"' in (tmp_path / "log").read_text()
    with pytest.raises(ValueError, match="closed"):
        log.write("end", {})


def test_a_log_that_cannot_be_written_is_a_warning(tmp_path, monkeypatch, caplog):
    log = EventLog(tmp_path / "log")
    log.write("start", {})

    def fail(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("builtins.print", fail)
    with Progress(quiet=True, log=log) as progress:
        for _ in range(3):
            assert [callback(make_state()) for callback in progress.callbacks] == [None]
            log.write("end", {})
    (record,) = caplog.records
    assert f"{tmp_path / 'log'} cannot be written (No space left" in record.getMessage()


def test_a_display_nobody_reads_does_not_end_the_run(clock):
    class Gone(io.StringIO):
        def write(self, text):
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    with Progress(Gone(), verbose=True) as progress, RowProgress("x", 9, Gone()) as rows:
        for now in (100.0, 200.0):
            clock.now = now
            assert [callback(make_state()) for callback in progress.callbacks] == [None]
            rows(5)


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
