"""Displays say what is under way and never end a run; a log has one JSON object a line."""

import errno
import io
import json
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest

from ooc_fw._core.loading import Compilation
from ooc_fw.problem import relative_target
from ooc_fw.report.progress import EventLog, Progress, Waiting, is_log
from ooc_fw.report.runlog import read_runs
from ooc_fw.solver.state import SolverState
from ooc_fw.system.errors import InputError


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Gone(io.StringIO):
    def write(self, *_, **__):
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")


@pytest.fixture
def stderr(monkeypatch):
    """Replace standard error by a stream, which is shown a line each 10 ms."""
    for name in ("LINE_SECONDS", "BAR_SECONDS"):
        monkeypatch.setattr(f"ooc_fw.report.progress.{name}", 0.01)

    def replace(stream):
        monkeypatch.setattr(sys, "stderr", stream)
        return stream

    return replace


def make_state(**changes):
    values = {"phase": "train", "iteration": 7, "rows_read": 4000, "elapsed_s": 2.0}
    return SolverState(**(values | changes))


def test_a_line_says_phase_gap_and_size_of_the_model():
    progress = Progress()
    (callback,) = progress.callbacks
    assert callback(make_state(sampled_gap=0.012301, certified_gap=0.5, n_support=9876)) is None
    assert progress.line == "train, sampled gap 1.24e-02, 9,876 support vectors"
    callback(make_state(n_finished=1, n_classifiers=3, sweep_fraction=0.6))
    assert progress.line == "1 of 3 classifiers, train 60%"
    several = {"n_classifiers": 3, "stage": 2, "n_stages": 3}
    callback(make_state(**several, share=0.2))
    progress._first = time.perf_counter() - 30, 0.2
    callback(make_state(**several, n_finished=2, share=0.5))
    words = "2 of 3 classifiers, stage 2 of 3, 50% done, about 50 s left, train"
    assert progress.line == words
    callback(make_state(sampled_gap=0.2, n_support=40, gap_scope="span"))
    assert progress.line == "train, gap in the span 2.00e-01, 40 landmarks"
    callback(make_state(sampled_gap=0.2, gap_scope="columns"))
    assert progress.line == "train, gap 2.00e-01"


def wait_for(stream, words):
    """Wait until a line with some words is shown."""
    ends = time.monotonic() + 30
    while words not in stream.getvalue():
        assert time.monotonic() < ends, stream.getvalue()
        time.sleep(0.01)


def test_a_first_run_says_that_it_compiles(stderr, monkeypatch):
    shown = stderr(io.StringIO())
    with Progress() as progress:
        progress.started -= 70
        wait_for(shown, "70 s, the first step\n")
        monkeypatch.setattr(Compilation, "begun", Compilation.ended + 1)
        wait_for(shown, "70 s, the first step, compiling, once (about 40 s)\n")


@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
def test_a_long_step_is_not_silent_and_nothing_is_shown_after_the_end(stderr, monkeypatch, stream):
    monkeypatch.setenv("COLUMNS", "14")  # which cuts lines on a terminal
    in_place = stream is Terminal
    shown = stderr(stream())
    with Progress() as progress:
        wait_for(shown, "0 s, the firs")
        progress.callbacks[0](make_state())
        wait_for(shown, "0 s, train")
        progress.stop()
        before = shown.getvalue()
        time.sleep(0.05)
    assert shown.getvalue() == before
    assert ("\r" in before) == in_place
    assert ("the first step\n" in before) != in_place
    assert before.endswith("\r\x1b[K" if in_place else "\n")


def closed():
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("make", [lambda: None, closed, object])
def test_a_run_needs_no_standard_error(stderr, make, capsys):
    with Progress() as progress, Waiting("pass") as waiting:
        stderr(make())
        with Progress(), Waiting("pass"), Progress(quiet=True):
            progress.callbacks[0](make_state())
            waiting(1)
            time.sleep(0.05)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("stream", [Gone, Terminal])
def test_displays_that_are_quiet_or_unread_show_nothing_and_end_no_run(stderr, stream):
    shown = stderr(stream())
    quiet = stream is Terminal
    with Progress(quiet=quiet) as progress, Waiting("pass", unit="B", quiet=quiet) as waiting:
        for callback in progress.callbacks:
            assert callback(make_state()) is None
        waiting(1500)
        assert waiting.line == "pass, 1,500 B"
        waiting(1500, 3000)
        assert waiting.line == "pass 50%, 1,500 B"
        time.sleep(0.05)
    assert shown.getvalue() == ""


def events_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_log_has_what_is_due_and_every_change(tmp_path, monkeypatch):
    path, now = tmp_path / "log", [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    log = EventLog(path, tol=1e-3)
    assert not path.exists()  # the run may be refused yet
    for now[0] in (0.01, 0.05, 0.2, 0.21, 0.22):
        log(make_state(iteration=now[0], sampled_gap=float("nan")))
    state = {}
    for change in ("certified_gap", 0.5), ("phase", "certify"), ("sweep_fraction", 1.0):
        state |= dict([change])
        log(make_state(iteration=1, **state))
        log(make_state(iteration=2, **state))
    log.write("end", {"status": "converged"})
    log.close()
    start, *progress, end = events_of(path)
    assert (start["event"], start["tol"], start["resume"]) == ("start", 1e-3, None)
    assert [event["iteration"] for event in progress] == [0.01, 0.2, 1, 1, 1]
    assert progress[0]["sampled_gap"] is None
    assert 0 < progress[0]["rss_bytes"] <= progress[0]["peak_rss_bytes"]
    assert end == {"event": "end", "status": "converged"}


@pytest.mark.parametrize("before", ["", '{"a": 1}\n', '{"a": 1}\n{"event": "pro', '{"event": "pro'])
def test_a_resumed_run_continues_the_log_after_its_last_whole_line(tmp_path, before):
    path = tmp_path / "log"
    path.write_text(before)
    assert is_log(path) == (before == "")
    with Progress(quiet=True, log=EventLog(path, resume="run.ckpt")) as progress:
        progress.end({})
    *kept, start, _ = events_of(path)
    assert kept == [{"a": 1}] * before.count("\n")
    assert start["resume"] == "run.ckpt"
    with Progress(quiet=True, log=EventLog(path)) as progress:
        progress.end({})
    assert len(events_of(path)) == 2
    assert is_log(path)


def test_an_event_is_one_write(tmp_path, monkeypatch):
    """A process may be killed between two writes."""
    log = EventLog(tmp_path / "log")
    written = []
    monkeypatch.setattr(log, "_file", SimpleNamespace(write=written.append))
    log.write("end", {"choice": "x" * 100_000})
    log(make_state())
    assert [json.loads(line)["event"] for line in written] == ["end", "progress"]


def test_time_in_a_log_is_that_of_the_run(tmp_path, monkeypatch):
    now = [5.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    log = EventLog(tmp_path / "log", options={"tol": 1e-3, "stopping": "relative"})
    for now[0], classifier in (6.0, 7), (7.5, 2), (9.0, 2):
        log(make_state(classifier=classifier, elapsed_s=0.1))
    log.close()
    (run,) = read_runs([tmp_path / "log"])
    assert run.columns["elapsed_s"].tolist() == [1.0, 2.5, 4.0]


def test_a_log_that_cannot_be_written_is_one_warning(tmp_path, caplog):
    path = tmp_path / "log"
    with Progress(quiet=True, log=EventLog(path)) as first:
        first.end({"status": "converged"})
        with Progress(quiet=True, log=EventLog(path)) as progress:
            for _ in range(3):
                progress.end({})
    (record,) = caplog.records
    assert "log cannot be written (another run is writing it)" in record.getMessage()
    assert len(events_of(path)) == 2


START = '{"event": "start", "options": {"tol": 0.001, "stopping": "relative"}}\n'


def progress_line(elapsed, **values):
    return json.dumps({"event": "progress", "elapsed_s": elapsed, **values}) + "\n"


def read(path, *lines):
    """The runs in a log of some lines."""
    path.write_text("".join(lines))
    return read_runs([path])


@pytest.mark.parametrize("tail", ["", '{"event": "prog', '{"event": "progress"\n', "\n\n"])
def test_a_log_may_end_anywhere(tmp_path, tail):
    (run,) = read(tmp_path / "log", START, progress_line(1), progress_line(2, n_support=5), tail)
    assert (run.label, run.n_events, run.tolerance) == (str(tmp_path / "log"), 2, 1e-3)
    np.testing.assert_array_equal(run.columns["elapsed_s"], [1, 2])
    np.testing.assert_array_equal(run.columns["n_support"], [np.nan, 5])


def test_several_runs_of_a_log_are_told_apart(tmp_path):
    path = tmp_path / "log"
    span = START.replace('"tol"', '"landmarks": 9, "tol"')
    runs = read(path, START, START.replace("relative", "meb"), span)
    assert [run.label for run in runs] == [f"{path} #1", f"{path} #2", f"{path} #3"]
    assert [run.tolerance for run in runs] == [1e-3, None, relative_target(1e-3)]
    assert len(read_runs([path, path])) == 3


def test_several_classifiers_are_one_run(tmp_path):
    """With the worst gap that is known, all vectors, and a mark where a stage begins."""
    several = {"n_classifiers": 2, "certified_gap": None}
    first = several | {"classifier": 0, "stage": 1, "n_support": 10, "sampled_gap": 0.5}
    other = several | {"classifier": 1, "stage": 1, "n_support": 5, "sampled_gap": 0.2}
    final = first | {"stage": 2, "n_support": 12, "sampled_gap": None, "certified_gap": 0.3}
    lines = [progress_line(t, **one) for t, one in enumerate((first, other, final), 1)]
    end = '{"event": "end", "certified_gap": 0.4, "objective_gap": 0.1}\n'
    (run,) = read(tmp_path / "log", START, *lines, end)
    np.testing.assert_array_equal(run.columns["sampled_gap"], [0.5, 0.5, 0.3])
    np.testing.assert_array_equal(run.columns["certified_gap"], [np.nan, np.nan, 0.1])
    assert run.columns["n_support"].tolist() == [10, 15, 17]
    assert run.marks == [(3, "stage 2")]
    assert run.tolerance == relative_target(1e-3)
    assert not run.tells("share")
    lines = [progress_line(t, gap_scope=scope) for t, scope in ((1, "sample"), (2, "span"))]
    (run,) = read(tmp_path / "log", START, *lines)
    assert run.marks == [(2, "all rows")]


NO_LOGS = (
    "",
    "hello\n\x89HDF\x00",
    "[1, 2]\n",
    progress_line(1),
    '{"event": "start", "options": 3}\n',
    START + progress_line("soon"),
    START + progress_line(1, n_support=[1, 2]),
)


@pytest.mark.parametrize("content", NO_LOGS)
def test_files_that_are_no_logs_are_refused(tmp_path, content):
    with pytest.raises(InputError, match=r"log.*no events.*ooc-fw train --log"):
        read(tmp_path / "log", content)
    with pytest.raises(InputError, match=r"none.*No such file"):
        read_runs([tmp_path / "none"])
