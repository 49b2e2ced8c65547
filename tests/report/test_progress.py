"""Displays say what is under way and never end a run; a log has one JSON object a line."""

import errno
import io
import json
import sys
import time

import pytest

from ooc_fw.report.progress import EventLog, Progress, Waiting, to_json
from ooc_fw.solver.state import SolverState, StepKind


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Gone(io.StringIO):
    def write(self, text):
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")


@pytest.fixture
def stderr(monkeypatch):
    """Replace standard error by a stream of some kind, which is shown a line each 10 ms."""
    for name in ("LINE_SECONDS", "BAR_SECONDS"):
        monkeypatch.setattr(f"ooc_fw.report.progress.{name}", 0.01)

    def replace(stream):
        monkeypatch.setattr(sys, "stderr", stream)
        return stream

    return replace


def make_state(**changes):
    values = {"phase": "train", "iteration": 7, "rows_read": 4000, "elapsed_s": 2.0}
    return SolverState(**{**values, **changes})


def test_lines_say_phase_gap_and_support():
    span = {"n_support": 40, "gap_scope": "span", "sampled_gap": 0.2, "phase": "certify"}
    expected = {
        "start": make_state(phase="start"),
        "train, sampled gap 1.2e-02, 9,876 support vectors": make_state(
            sampled_gap=0.0123, certified_gap=0.5, n_support=9876
        ),
        "certify 10%": make_state(phase="certify", sweep_fraction=0.1),
        "classifier 2/3 train": make_state(classifier=1, n_classifiers=3),
        "certify 50%, gap on a sample 2.0e-01, 40 landmarks": make_state(
            sweep_fraction=0.5, **span | {"gap_scope": "sample"}
        ),
        "certify 60%, gap in the span 2.0e-01, 40 landmarks": make_state(
            sweep_fraction=0.6, **span
        ),
    }
    progress = Progress()
    for line, state in expected.items():
        assert [callback(state) for callback in progress.callbacks] == [None]
        assert progress.line == line


@pytest.mark.parametrize(
    ("total", "unit", "line"),
    [(2000, "rows", "pass 75%, 1,500 rows"), (None, "B", "pass, 1,500 B")],
)
def test_passes_say_how_far_they_are(total, unit, line):
    progress = Waiting("pass", total, unit=unit)
    progress(1500)
    assert progress.line == line
    progress(1500, 3000)
    assert progress.line.startswith("pass 50%, ")


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
    ],
)
def test_a_long_step_is_not_silent_and_nothing_is_shown_after_the_end(
    stderr, stream, options, in_place
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


def test_lines_on_a_terminal_are_no_wider_than_it(stderr, monkeypatch):
    monkeypatch.setenv("COLUMNS", "10")
    stream = stderr(Terminal())
    with Waiting("a long choice"):
        wait_for(stream, "0 s, a lo")
    assert "0 s, a lon" not in stream.getvalue()


@pytest.mark.parametrize("stream", [Gone, Terminal])
def test_displays_that_are_quiet_or_unread_show_nothing_and_end_no_run(stderr, stream):
    shown = stderr(stream())
    quiet = stream is Terminal
    with Progress(quiet=quiet) as progress, Waiting("pass", 9, quiet=quiet) as rows:
        assert len(progress.callbacks) == (not quiet)
        assert [callback(make_state()) for callback in progress.callbacks] == [None] * (not quiet)
        rows(5)
        time.sleep(0.05)
    assert shown.getvalue() == ""


def events_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_log_has_what_is_due_and_every_change(tmp_path, monkeypatch):
    path, now = tmp_path / "log", [0.0]
    monkeypatch.setattr("ooc_fw.report.progress.time.monotonic", lambda: now[0])
    log = EventLog(path, tol=1e-3)
    (start,) = events_of(path)  # a log can be followed
    assert (start["event"], start["tol"], start["resume"]) == ("start", 1e-3, None)
    for now[0] in (0.01, 0.05, 0.2, 0.21, 0.22):
        log(make_state(iteration=now[0], sampled_gap=float("nan")))
    changes = {}
    for change in (
        {"certified_gap": 0.5},
        {"phase": "certify"},
        {"classifier": 1},
        {"sweep_fraction": 0.9},
        {"sweep_fraction": 1.0},
    ):
        changes |= change
        log(make_state(iteration=1, **changes))
        log(make_state(iteration=2, **changes))
    log.write("end", {"status": "converged"})
    log.close()
    _, *progress, end = events_of(path)
    assert [event["iteration"] for event in progress] == [0.01, 0.2, 1, 1, 1, 1]
    assert progress[-1]["sweep_fraction"] == 1.0
    assert progress[0]["sampled_gap"] is None
    assert progress[0]["steps"] == {str(kind): 0 for kind in StepKind}
    assert 0 < progress[0]["rss_bytes"] <= progress[0]["peak_rss_bytes"]
    assert end == {"event": "end", "status": "converged"}


def test_a_log_continues_after_a_line_that_was_cut_short(tmp_path):
    path = tmp_path / "log"
    path.write_text('{"event": "start"}\n{"event": "pro')
    EventLog(path, resume="run.ckpt").close()
    first, cut, last = path.read_text().splitlines()
    assert (first, cut) == ('{"event": "start"}', '{"event": "pro')
    assert json.loads(last)["resume"] == "run.ckpt"
    EventLog(path).close()
    assert len(events_of(path)) == 1


def test_a_log_that_cannot_be_written_is_one_warning(tmp_path, monkeypatch, caplog):
    def fail(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "log"
    with Progress(quiet=True, log=EventLog(path)) as progress:
        (callback,) = progress.callbacks
        monkeypatch.setattr("builtins.print", fail)
        for _ in range(3):
            assert callback(make_state(classifier=1)) is None
            progress.end({})
    assert [event["event"] for event in events_of(path)] == ["start"]
    (record,) = caplog.records
    assert f"{path} cannot be written (No space left" in record.getMessage()


def test_numbers_that_are_not_finite_are_null_in_json():
    values = {"a": float("nan"), "b": {"c": float("inf")}, "d": 1.5, "e": None}
    assert json.loads(to_json(values)) == {"a": None, "b": {"c": None}, "d": 1.5, "e": None}
