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
    format_seconds,
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
    for name in ("monotonic", "perf_counter"):
        monkeypatch.setattr(f"ooc_fw.report.progress.time.{name}", lambda: clock.now)
    return clock


def make_state(**changes):
    values = {"phase": "train", "iteration": 7, "rows_read": 4000, "elapsed_s": 2.0}
    return SolverState(**{**values, **changes})


def make_sweep(seconds, fraction, **changes):
    return make_state(phase="certify", elapsed_s=seconds, sweep_fraction=fraction, **changes)


@pytest.fixture
def show(stderr, clock):
    """Lines that are shown of some states, each of which arrives 10 s after the one before."""

    def lines(states, **options):
        stream = stderr(io.StringIO())
        clock.now = 0.0
        with Progress(**options) as progress:
            for state in states:
                clock.now += 10.0
                assert [callback(state) for callback in progress.callbacks] == [None]
        return stream.getvalue().splitlines()

    return lines


def test_durations_for_people():
    durations = {-1: "0 s", 3.4: "3 s", 99.4: "99 s", 100: "2 min", 5969: "99 min", 7200: "2.0 h"}
    assert {seconds: format_seconds(seconds) for seconds in durations} == durations


def test_lines_tell_landmarks_and_each_pass(show):
    def state(seconds, fraction, scope, **rest):
        return make_sweep(seconds, fraction, n_support=40, gap_scope=scope, **rest)

    assert show(
        [
            state(0.0, 0.1, "sample", sampled_gap=0.5),
            state(10.0, 0.9, "sample", sampled_gap=0.5),
            state(20.0, 0.1, "span", sampled_gap=0.2),
            state(30.0, 0.6, "span", sampled_gap=0.2),
        ]
    ) == [
        "10 s, certify on a sample 10%: gap 5.0e-01, 40 landmarks",
        "20 s, certify on a sample 90%: gap 5.0e-01, pass ends in 1 s, 40 landmarks",
        "30 s, certify 10%: gap in the span 2.0e-01, 40 landmarks",
        "40 s, certify 60%: gap in the span 2.0e-01, pass ends in 8 s, 40 landmarks",
    ]


def test_lines_say_phase_gap_support_speed_and_time_left(show):
    gap = {"sampled_gap": 0.0123, "certified_gap": 0.5}  # the certificate is of other weights
    states = [
        make_state(),
        make_state(**gap, n_support=9876),
        make_sweep(10.0, 0.1, bytes_read=10**8),
        make_sweep(14.0, 0.5, bytes_read=10**8 + 494 * 10**6),
        make_state(elapsed_s=20.0, classifier=1, n_classifiers=3),
    ]
    assert show(states) == [
        "10 s, train",
        "20 s, train: sampled gap 1.2e-02, 9,876 support vectors",
        "30 s, certify 10%",
        "40 s, certify 50%: pass ends in 5 s, 124 MB/s",
        "50 s, classifier 2/3 train",
    ]


def test_lines_that_stay_are_at_most_80_columns(show):
    """The words that matter least go, as a whole."""
    state = make_sweep(
        0.0, 0.1, sampled_gap=0.2, n_support=123_456, classifier=10, n_classifiers=45
    )
    (line,) = show([state], what="calibration 3/5")
    assert line == "10 s, calibration 3/5: classifier 11/45 certify 10%: sampled gap 2.0e-01"


def test_the_time_limit_is_said(show):
    states = [make_state(elapsed_s=t) for t in (0.0, 10.0)]
    lines = show(states, ends_at=40.0)  # a state arrives every 10 s of the clock
    assert lines == ["10 s, train: time limit in 30 s", "20 s, train: time limit in 20 s"]


def test_the_time_in_all_and_what_a_run_is_a_part_of_are_said(show, monkeypatch):
    monkeypatch.setattr("ooc_fw.report.progress.Waiting.began", -70.0)
    (line,) = show([make_state(phase="polish")], what="calibration")
    assert line == "10 s (80 s in all), calibration: best weights"


def test_verbose_runs_log_the_beginning_of_each_phase(show, caplog):
    caplog.set_level("INFO", logger="ooc_fw")
    other = make_state(classifier=1, n_classifiers=3, phase="certify")
    show([make_state(), make_state(iteration=8), make_sweep(2, 0.4), other], verbose=True)
    found = [record.message.removesuffix(" after 2.0 s") for record in caplog.records]
    assert found == ["train", "certify", "classifier 2/3 certify"]


def test_lines_on_a_terminal_are_short_and_no_wider_than_it(stderr, clock, monkeypatch):
    stream = stderr(Terminal())

    def drawn(state):
        clock.now += 1
        for callback in progress.callbacks:
            callback(state)
        return stream.getvalue().rpartition("\r\x1b[K")[2]

    with Progress() as progress:
        drawn(make_sweep(4.0, 0.1, n_support=1234))
        line = drawn(make_sweep(8.0, 0.5, bytes_read=8 * 10**7, n_support=1234))
        assert line.endswith(" s, certify 50%: pass ends in 5 s, 1,234 support vectors, 20 MB/s")
        monkeypatch.setenv("COLUMNS", "20")
        assert len(drawn(make_state(sampled_gap=0.5))) == 19
    assert stream.getvalue().endswith("\r\x1b[K")


@pytest.mark.parametrize(
    ("stream", "options", "in_place", "n_callbacks"),
    [
        (Terminal(), {}, True, 1),
        (io.StringIO(), {}, False, 1),
        (Terminal(), {"in_place": False}, False, 1),
        (Terminal(), {"quiet": True}, False, 0),
        (Terminal(), {"verbose": True}, False, 1),
    ],
)
def test_the_display_fits_the_stream(stderr, clock, stream, options, in_place, n_callbacks):
    stderr(stream)
    with Progress(**options) as progress:
        assert len(progress.callbacks) == n_callbacks
        for clock.now in (10.0, 20.0):
            for callback in progress.callbacks:
                callback(make_state())
    assert ("\r" in stream.getvalue()) == in_place


def test_a_run_continues_when_nobody_reads_its_progress(stderr, clock):
    stderr(Gone())
    with Progress(verbose=True) as progress, RowProgress("x", 9) as rows:
        for clock.now in (100.0, 200.0):
            assert [callback(make_state()) for callback in progress.callbacks] == [None]
            rows(5)


@pytest.mark.parametrize(
    ("total", "unit", "lines"),
    [
        (200, "rows", ["10 s, pass 25%: 5 rows/s", "20 s, pass 100%: 10 rows/s"]),
        (None, "B", ["10 s, pass: 0.0 MB/s", "20 s, pass: 0.0 MB/s"]),
    ],
)
def test_passes_show_lines_now_and_then(stderr, clock, total, unit, lines):
    clock.now = 0.0
    stream = stderr(io.StringIO())
    with RowProgress("pass", total, unit=unit) as progress:
        for clock.now, done in ((0.0, 20), (10.0, 50), (10.0, 60), (20.0, 200)):
            progress(done)
    assert stream.getvalue().splitlines() == lines


def test_passes_show_a_line_on_a_terminal(stderr, clock):
    for quiet in (False, True):
        stream = stderr(Terminal())
        with RowProgress("certify", quiet=quiet) as progress:
            clock.now += 10.0
            progress(50, 200)
        assert ("certify 25%: " in stream.getvalue()) is not quiet


# -- logs ----------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path):
    return tmp_path / "log"


def events_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_log_has_one_object_a_line(path, clock):
    log = EventLog(path)
    log.write("start", {"tol": 1e-3})
    assert events_of(path) == [{"event": "start", "tol": 1e-3}]  # a log can be followed
    for clock.now in (0.01, 0.05, 0.2, 0.21, 0.22):
        log(make_state(iteration=clock.now, sampled_gap=float("nan")))
    log.write("end", {"status": "converged"})
    log.close()
    events = events_of(path)
    assert [event["event"] for event in events] == ["start", *["progress"] * 3, "end"]
    assert [event["iteration"] for event in events[1:-1]] == [0.01, 0.2, 0.22]
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
    assert [event["sweep_fraction"] for event in events_of(path)] == [None] * 4 + [1.0]


def test_a_log_continues_after_a_line_that_was_cut_short(path):
    path.write_text('{"event": "start"}\n{"event": "pro')
    log = EventLog(path, append=True)
    log.write("start", {})
    log.close()
    assert path.read_text().splitlines()[-1] == '{"event": "start"}'
    EventLog(path).close()
    assert path.read_text() == ""


def test_a_log_of_a_quiet_run_that_cannot_be_written_is_one_warning(path, monkeypatch, caplog):
    def fail(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    log = EventLog(path)
    with Progress(quiet=True, log=log) as progress:
        (callback,) = progress.callbacks
        callback(make_state())
        monkeypatch.setattr("builtins.print", fail)
        for _ in range(3):
            assert callback(make_state(classifier=1)) is None
            log.write("end", {})
    assert [event["event"] for event in events_of(path)] == ["progress"]
    (record,) = caplog.records
    assert f"{path} cannot be written (No space left" in record.getMessage()


def test_numbers_that_are_not_finite_are_null_in_json():
    values = {"a": float("nan"), "b": {"c": float("inf")}, "d": 1.5, "e": None}
    assert json.loads(to_json(values)) == {"a": None, "b": {"c": None}, "d": 1.5, "e": None}


def wait_for(stream, words):
    """Wait until a line with some words is shown."""
    ends = time.monotonic() + 30
    while words not in stream.getvalue():
        assert time.monotonic() < ends, stream.getvalue()
        time.sleep(0.01)


def test_a_long_step_is_not_silent(stderr, monkeypatch):
    """Of displays within one another the innermost one speaks, and a quiet one says nothing."""
    monkeypatch.setattr("ooc_fw.report.progress.LINE_SECONDS", 0.05)
    monkeypatch.setattr("ooc_fw.report.progress._GRACE_SECONDS", 0.0)
    stream = stderr(io.StringIO())
    with Progress() as progress:
        wait_for(stream, ", the first step is under way\n")
        progress.callbacks[0](make_state())
        wait_for(stream, "train: a long step is under way\n")
        with Waiting("the choice"):
            wait_for(stream, ", the choice is under way\n")
            with RowProgress("predict", 100) as rows:
                wait_for(stream, ", predict is under way\n")
                rows(50)
                wait_for(stream, ", predict 50%: ")
            before = stream.getvalue()
            with RowProgress("predict", 100, quiet=True):
                time.sleep(0.3)
            assert stream.getvalue()[len(before) :].count("\n") <= 1  # one may be on its way


def test_nothing_is_shown_after_the_end(stderr, monkeypatch):
    monkeypatch.setattr("ooc_fw.report.progress.LINE_SECONDS", 0.05)
    stream = stderr(io.StringIO())
    with Waiting("the choice"):
        wait_for(stream, "the choice")
    time.sleep(0.1)
    before = stream.getvalue()
    time.sleep(0.5)
    assert stream.getvalue() == before


def test_each_line_of_a_long_step_comes_after_twice_the_time(stderr, clock):
    waits = []

    class Silence:
        def wait(self, seconds):
            waits.append(seconds)
            clock.now += seconds
            waiting._ended = len(waits) > 3
            return False

        def set(self):
            pass

        clear = set

    stream = stderr(io.StringIO())
    waiting = Waiting("the choice")
    waiting._spoke = Silence()
    waiting._entered.append(waiting)
    waiting._watch()
    waiting._entered.remove(waiting)
    first, *others = waits
    assert others == [2 * first, 4 * first, 8 * first]
    assert stream.getvalue().count("the choice is under way\n") == 4
