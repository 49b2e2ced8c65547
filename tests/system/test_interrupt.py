"""Signals: the first one waits where there is something to lose, the second one does not."""

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

import ooc_fw
from ooc_fw.system.errors import DeferredInterrupt, signal_of

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


def send(number=signal.SIGINT):
    os.kill(os.getpid(), number)


def test_the_first_signal_waits_and_the_second_raises():
    before = signal.getsignal(signal.SIGINT)
    with DeferredInterrupt() as interrupt:
        interrupt.defer()
        send()
        assert interrupt.noted == signal.SIGINT
        with pytest.raises(KeyboardInterrupt) as raised:
            send()
        assert signal_of(raised.value) == signal.SIGINT
    assert signal.getsignal(signal.SIGINT) is before
    assert signal_of(KeyboardInterrupt(signal.SIGTERM)) == signal.SIGTERM
    assert signal_of(KeyboardInterrupt(None)) == signal.SIGINT


def test_the_inner_one_notes_if_it_defers_or_raises():
    with DeferredInterrupt() as outer, DeferredInterrupt() as inner:
        inner.defer()
        send()
        assert (outer.noted, inner.noted) == (None, signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            send()  # whatever is around it
    with DeferredInterrupt() as outer, DeferredInterrupt() as inner:
        outer.defer()
        with pytest.raises(KeyboardInterrupt):
            send()  # there is nothing to lose


def test_an_exception_that_a_callback_of_c_code_lost_is_raised_again():
    with DeferredInterrupt() as interrupt:
        interrupt.check()
        with suppress(KeyboardInterrupt):
            send()
        with pytest.raises(KeyboardInterrupt) as raised:
            interrupt.check()
    assert signal_of(raised.value) == signal.SIGINT


def test_a_signal_ends_the_wait_for_text():
    with DeferredInterrupt() as interrupt:
        interrupt.defer()
        with pytest.raises(KeyboardInterrupt), interrupt.raising():
            send()
        send()
        with pytest.raises(KeyboardInterrupt) as raised, interrupt.raising():
            raise AssertionError("a signal was noted before")
        assert signal_of(raised.value) == signal.SIGINT


def test_signals_that_are_ignored_stay_so():
    """As under nohup."""
    for number in SIGNALS:
        old = signal.signal(number, signal.SIG_IGN)
        try:
            with DeferredInterrupt() as interrupt:
                interrupt.defer()
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
from ooc_fw.system.errors import raise_at_signals, signal_of

raise_at_signals()
try:
    with atomic_path("result"), scratch_directory() as folder:
        (folder / "part").write_text("")
        os.kill(os.getpid(), {number})
        time.sleep(60)
except KeyboardInterrupt as interrupt:
    print(signal_of(interrupt))
"""


@pytest.mark.process
@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_takes_temporary_files_along(tmp_path, number):
    (tmp_path / "result").write_text("old")
    run = subprocess.run(
        [sys.executable, "-c", LEAVING.format(number=int(number))],
        env=os.environ
        | {"TMPDIR": str(tmp_path), "PYTHONPATH": str(Path(ooc_fw.__file__).parents[1])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.stdout, run.stderr) == (f"{int(number)}\n", "")
    assert [path.name for path in tmp_path.iterdir()] == ["result"]
    assert (tmp_path / "result").read_text() == "old"
