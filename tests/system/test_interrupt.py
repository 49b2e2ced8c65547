"""Signals: the first one waits where there is something to lose, the second one does not."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import ooc_fw
from ooc_fw.system.interrupt import DeferredInterrupt, check_interrupt, interruption, signal_of

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


def send(number=signal.SIGINT):
    os.kill(os.getpid(), number)


def test_the_first_signal_waits_and_the_second_raises():
    before = signal.getsignal(signal.SIGINT)
    with DeferredInterrupt() as interrupt:
        with pytest.raises(KeyboardInterrupt):
            send()  # there is nothing to lose
        assert interrupt.noted is None
        interrupt.defer()
        interrupt.urgent = False
        send()
        assert (interrupt.noted, interrupt.urgent) == (signal.SIGINT, False)
        with pytest.raises(KeyboardInterrupt) as raised:
            send()
        assert signal_of(raised.value) == signal.SIGINT
        assert interrupt.urgent
    assert signal.getsignal(signal.SIGINT) is before
    assert signal_of(interruption(signal.SIGTERM)) == signal.SIGTERM
    assert signal_of(interruption(None)) == signal.SIGINT


def test_the_inner_one_notes_if_it_defers_else_the_outer_one():
    with DeferredInterrupt(checked=True) as outer, DeferredInterrupt() as inner:
        outer.defer()
        send()
        assert (outer.noted, inner.noted) == (signal.SIGINT, None)
        with pytest.raises(KeyboardInterrupt):
            check_interrupt()
        check_interrupt()  # it raises once
        inner.defer()
        send()
        check_interrupt()  # which leaves those alone that are not checked
        assert (outer.noted, inner.noted) == (None, signal.SIGINT)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("lost", [False, True])
def test_a_signal_ends_the_wait_for_text(lost):
    """Also where a callback loses the exception."""

    class Collected:
        def __del__(self):
            send()

    with DeferredInterrupt() as interrupt:
        interrupt.defer()
        with interrupt.waiting():
            pass
        with pytest.raises(KeyboardInterrupt), interrupt.waiting():
            Collected() if lost else send()


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
        with DeferredInterrupt() as interrupt:
            interrupt.defer()
            assert signal.getsignal(number) is handler
            send(number)
            assert interrupt.noted is None
    finally:
        signal.signal(number, old)


def test_other_threads_are_left_alone():
    done = []

    def work() -> None:
        with DeferredInterrupt() as interrupt:
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
