import errno
import io
import json
import sys
import time

import pytest

from ooc_fw.report.progress import (
    EventLog,
    Progress,
    RowProgress,
    Waiting,
    to_json,
)
from ooc_fw.solver.state import SolverState, StepKind


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Gone(io.StringIO):
    def write(self, text):
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")


@pytest.fixture
def stderr(monkeypatch):
    """Replace standard error by a stream of some kind."""

    def replace(stream):
        monkeypatch.setattr(sys, "stderr", stream)
        return stream

    return replace


class Clock:
    now = 0.0


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("ooc_fw.report.progress.time.monotonic", lambda: clock.now)
    return clock


def make_state(**changes):
    values = {"phase": "train", "iteration": 7, "rows_read": 4000, "elapsed_s": 2.0}
    return SolverState(**{**values, **changes})


def lines_of(states, **options):
    """What is said of each state."""
    progress = Progress(**options)
    lines = []
    for state in states:
        assert [callback(state) for callback in progress.callbacks] == [None]
        lines.append(progress.line())
    return lines


def test_lines_say_phase_gap_and_support():
    span = {"n_support": 40, "gap_scope": "span", "sampled_gap": 0.2}
    states = [
        make_state(phase="start"),
        make_state(sampled_gap=0.0123, certified_gap=0.5, n_support=9876),
        make_state(phase="certify", sweep_fraction=0.1),
        make_state(classifier=1, n_classifiers=3),
        make_state(phase="certify", sweep_fraction=0.5, **span | {"gap_scope": "sample"}),
        make_state(phase="certify", sweep_fraction=0.6, **span),
    ]
    assert lines_of(states) == [
        "start",
        "train, sampled gap 1.2e-02, 9,876 support vectors",
        "certify 10%",
        "classifier 2/3 train",
        "certify on a sample 50%, gap 2.0e-01, 40 landmarks",
        "certify 60%, gap in the span 2.0e-01, 40 landmarks",
    ]
    (line,) = lines_of([make_state(phase="polish")], what="calibration")
    assert line == "calibration: polish"


@pytest.mark.parametrize(
    ("total", "unit", "line"),
    [
        (2000, "rows", "pass 75%, 1,500 rows"),
        (None, "B", "pass, 0.0 MB"),
    ],
)
def test_passes_say_how_far_they_are(total, unit, line):
    progress = RowProgress("pass", total, unit=unit)
    progress(1500)
    assert progress.line() == line
    progress(1500, 3000)
    assert progress.line().startswith("pass 50%, ")


@pytest.fixture
def often(monkeypatch):
    """Show a line every 10 ms."""
    for name in ("LINE_SECONDS", "VERBOSE_SECONDS", "BAR_SECONDS"):
        monkeypatch.setattr(f"ooc_fw.report.progress.{name}", 0.01)


def wait_for(stream, words):
    """Wait until a line with some words is shown."""
    ends = time.monotonic() + 30
    while words not in stream.getvalue():
        assert time.monotonic() < ends, stream.getvalue()
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("stream", "options", "in_place"),
    [
        (Terminal, {}, True),
        (io.StringIO, {}, False),
        (Terminal, {"in_place": False}, False),
        (Terminal, {"verbose": True}, False),
        (Terminal, {"quiet": True, "verbose": True}, False),
    ],
)
def test_a_long_step_is_not_silent_and_nothing_is_shown_after_the_end(
    stderr, often, stream, options, in_place
):
    shown = stderr(stream())
    with Progress(**options) as progress:
        wait_for(shown, "0 s, the first step")
        progress.callbacks[0](make_state())
        wait_for(shown, "0 s, train")
        progress.stop()
        before = shown.getvalue()
        time.sleep(0.05)
    assert shown.getvalue() == before
    assert ("\r" in before) == in_place
    assert ("\n" in before) != in_place
    assert before.endswith("\r\x1b[K" if in_place else "\n")


def test_lines_on_a_terminal_are_no_wider_than_it(stderr, often, monkeypatch):
    monkeypatch.setenv("COLUMNS", "10")
    stream = stderr(Terminal())
    with Waiting("a long choice"):
        wait_for(stream, "0 s, a lo")
    assert "0 s, a lon" not in stream.getvalue()


def test_quiet_displays_show_nothing(stderr, often):
    stream = stderr(Terminal())
    with Progress(quiet=True) as progress, RowProgress("pass", 9, quiet=True) as rows:
        assert progress.callbacks == []
        rows(5)
        time.sleep(0.05)
    assert stream.getvalue() == ""


def test_a_run_continues_when_nobody_reads_its_progress(stderr, often):
    stderr(Gone())
    with Progress(verbose=True) as progress, RowProgress("x", 9) as rows:
        assert [callback(make_state()) for callback in progress.callbacks] == [None]
        rows(5)
        time.sleep(0.05)


# -- logs ----------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path):
    return tmp_path / "log"


def events_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_log_has_one_object_a_line(path, clock):
    log = EventLog(path, tol=1e-3)
    (start,) = events_of(path)  # a log can be followed
    assert (start["event"], start["tol"], start["resume"]) == ("start", 1e-3, None)
    for clock.now in (0.01, 0.05, 0.2, 0.21, 0.22):
        log(make_state(iteration=clock.now, sampled_gap=float("nan")))
    log.write("end", {"status": "converged"})
    log.close()
    events = events_of(path)
    assert [event["event"] for event in events] == ["start", *["progress"] * 2, "end"]
    assert [event["iteration"] for event in events[1:-1]] == [0.01, 0.2]
    assert events[1]["sampled_gap"] is None
    assert events[1]["steps"] == {str(kind): 0 for kind in StepKind}
    assert 0 < events[1]["rss_bytes"] <= events[1]["peak_rss_bytes"]


def test_a_log_has_every_change_of_phase_classifier_and_certified_gap(path, clock):
    log = EventLog(path)
    kinds = [{}, {"certified_gap": 0.5}, {"phase": "certify"}, {"classifier": 1}]
    kinds += [{"sweep_fraction": 0.9}, {"sweep_fraction": 1.0}]
    changes = {}
    for kind in kinds:
        changes |= kind
        log(make_state(**changes))
        log(make_state(**changes))
    log.close()
    fractions = [event["sweep_fraction"] for event in events_of(path)[1:]]
    assert fractions == [None] * 4 + [1.0]


def test_a_log_continues_after_a_line_that_was_cut_short(path):
    path.write_text('{"event": "start"}\n{"event": "pro')
    EventLog(path, resume="run.ckpt").close()
    first, cut, last = path.read_text().splitlines()
    assert (first, cut) == ('{"event": "start"}', '{"event": "pro')
    assert json.loads(last)["resume"] == "run.ckpt"
    EventLog(path).close()
    assert len(events_of(path)) == 1


def test_a_log_of_a_quiet_run_that_cannot_be_written_is_one_warning(path, monkeypatch, caplog):
    def fail(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    log = EventLog(path)
    with Progress(quiet=True, log=log) as progress:
        (callback,) = progress.callbacks
        monkeypatch.setattr("builtins.print", fail)
        for _ in range(3):
            assert callback(make_state(classifier=1)) is None
            log.write("end", {})
    assert [event["event"] for event in events_of(path)] == ["start"]
    (record,) = caplog.records
    assert f"{path} cannot be written (No space left" in record.getMessage()


def test_numbers_that_are_not_finite_are_null_in_json():
    values = {"a": float("nan"), "b": {"c": float("inf")}, "d": 1.5, "e": None}
    assert json.loads(to_json(values)) == {"a": None, "b": {"c": None}, "d": 1.5, "e": None}
