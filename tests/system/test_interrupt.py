import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

import ooc_fw
from ooc_fw.system.interrupt import (
    DeferredInterrupt,
    Terminated,
    check_interrupt,
    signal_of,
    terminating,
)

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@contextmanager
def deferring():
    with terminating(), DeferredInterrupt() as interrupt:
        interrupt.defer()
        yield interrupt


def send(number):
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("first", SIGNALS)
@pytest.mark.parametrize("second", SIGNALS)
def test_the_first_signal_waits_and_the_second_raises(first, second):
    before = signal.getsignal(first)
    with deferring() as interrupt:
        send(first)
        assert (interrupt.noted, interrupt.urgent) == (first, False)
        with pytest.raises(KeyboardInterrupt) as raised:
            send(second)
        assert isinstance(raised.value, Terminated) == (second != signal.SIGINT)
        assert signal_of(raised.value) == second
        assert (interrupt.noted, interrupt.urgent) == (first, True)
    assert signal.getsignal(first) is before


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_raises_while_there_is_nothing_to_lose(number):
    interrupt = DeferredInterrupt()
    with terminating(), interrupt, pytest.raises(KeyboardInterrupt) as raised:
        send(number)
    assert signal_of(raised.value) == number
    assert (interrupt.noted, interrupt.urgent) == (None, True)


def test_the_inner_one_notes_if_it_defers_else_the_outer_one():
    with terminating(), DeferredInterrupt(checked=True) as outer, DeferredInterrupt() as inner:
        outer.defer()
        send(signal.SIGTERM)
        assert (outer.noted, inner.noted) == (signal.SIGTERM, None)
        with pytest.raises(Terminated):
            check_interrupt()
        check_interrupt()  # it raises once
        inner.defer()
        send(signal.SIGINT)
        check_interrupt()  # which leaves those alone that are not checked
        assert (outer.noted, inner.noted) == (None, signal.SIGINT)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("lost", [False, True])
def test_a_signal_ends_the_wait_for_text(lost):
    """Also where a callback loses the exception."""

    class Collected:
        def __del__(self):
            send(signal.SIGTERM)

    with terminating(), DeferredInterrupt() as interrupt:
        interrupt.defer()
        with pytest.raises(Terminated), interrupt.waiting():
            Collected() if lost else send(signal.SIGTERM)
        with pytest.raises(Terminated), interrupt.waiting():
            raise AssertionError("it was noted")


@pytest.mark.parametrize(
    ("number", "handler"),
    [
        (signal.SIGHUP, signal.SIG_IGN),  # as under nohup
        (signal.SIGINT, signal.SIG_IGN),
        (signal.SIGTERM, lambda *_: None),  # a program that handles it itself
    ],
)
def test_signals_that_are_ignored_or_handled_stay_so(number, handler):
    old = signal.signal(number, handler)
    try:
        with deferring() as interrupt:
            assert signal.getsignal(number) is handler
            send(number)
            assert interrupt.noted is None
    finally:
        signal.signal(number, old)


def test_other_threads_are_left_alone():
    done = []

    def work() -> None:
        with deferring() as interrupt:
            done.append(interrupt.noted is None)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]


LEAVING = """
import os, time
from pathlib import Path
from ooc_fw.system.files import atomic_path, scratch_directory
from ooc_fw.system.interrupt import DeferredInterrupt, leave_at_signals

class Collected:
    def __del__(self):
        os.kill(os.getpid(), {number})

leave_at_signals()
with atomic_path("result"), scratch_directory() as folder, DeferredInterrupt() as interrupt:
    (folder / "part").write_text("")
    if {deferred}:
        interrupt.defer()
        Collected()
        assert interrupt.noted == {number}
    Collected()  # an exception would be lost here
    time.sleep(60)
"""


@pytest.mark.process
@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("deferred", [False, True])
def test_a_process_leaves_at_once_and_takes_its_temporary_files_along(tmp_path, number, deferred):
    (tmp_path / "result").write_text("old")
    run = subprocess.run(
        [sys.executable, "-c", LEAVING.format(number=int(number), deferred=deferred)],
        env=os.environ
        | {"TMPDIR": str(tmp_path), "PYTHONPATH": str(Path(ooc_fw.__file__).parents[1])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    word = "interrupted" if number == signal.SIGINT else "terminated"
    assert (run.returncode, run.stderr) == (128 + number, f"ooc-fw: {word}\n")
    assert [path.name for path in tmp_path.iterdir()] == ["result"]
    assert (tmp_path / "result").read_text() == "old"
