"""Signals: the first one waits if there is something to lose, the second one raises."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw.system.errors import DeferredInterrupt, format_gap, signal_of


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


def test_of_two_the_inner_one_decides():
    with DeferredInterrupt() as outer, DeferredInterrupt() as inner:
        inner.defer()
        send()
        assert (outer.noted, inner.noted) == (None, signal.SIGINT)
    with DeferredInterrupt() as outer, DeferredInterrupt():
        outer.defer()
        with pytest.raises(KeyboardInterrupt):
            send()  # the inner one has nothing to lose


def test_an_exception_that_a_callback_of_c_code_lost_is_raised_again():
    with DeferredInterrupt() as interrupt:
        interrupt.check()
        with suppress(KeyboardInterrupt):
            send()
        with pytest.raises(KeyboardInterrupt) as raised:
            interrupt.check()
    assert signal_of(raised.value) == signal.SIGINT


def fail_at_the_last_signal(n_signals):
    """Fail as the import of a library in C does, if its code does not know the exception."""
    with DeferredInterrupt() as interrupt:
        for k in range(n_signals):
            if k == 0 and n_signals > 1:
                interrupt.defer()
            with suppress(KeyboardInterrupt):
                send()
        raise ImportError("initialization failed")


@pytest.mark.parametrize("n_signals", [1, 2])
def test_an_import_may_make_another_error_of_the_signal(n_signals):
    with pytest.raises(KeyboardInterrupt) as raised:
        fail_at_the_last_signal(n_signals)
    assert signal_of(raised.value) == signal.SIGINT


def test_an_error_that_is_older_than_the_signal_stays():
    with pytest.raises(ImportError):
        fail_at_the_last_signal(0)


def test_a_signal_ends_the_wait_for_text():
    with DeferredInterrupt() as interrupt:
        interrupt.defer()
        with pytest.raises(KeyboardInterrupt), interrupt.raising():
            send()
        send()  # is noted, and raises as soon as text is waited for
        with pytest.raises(KeyboardInterrupt), interrupt.raising():
            raise AssertionError("a signal was noted before")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_is_ignored_stays_so(number):
    """As under nohup."""
    old = signal.signal(number, signal.SIG_IGN)
    try:
        with DeferredInterrupt() as interrupt:
            interrupt.defer()
            send(number)
            assert interrupt.noted is None
    finally:
        signal.signal(number, old)


def test_a_thread_that_gets_no_signals_may_have_one():
    with ThreadPoolExecutor() as pool:
        assert pool.submit(DeferredInterrupt().__enter__).result().noted is None


@given(st.floats(0, 1e300))
def test_a_printed_gap_is_rounded_up(gap):
    assert gap <= float(format_gap(gap)) <= 1.01 * gap + 1e-320
    assert format_gap(None) == "unknown"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("within", ["nullcontext()", "DeferredInterrupt()"])
def test_a_second_signal_ends_a_command_that_hangs_in_c(number, within):
    code = f"""
import collections, itertools
from contextlib import nullcontext
from ooc_fw.system.errors import DeferredInterrupt, raise_at_signals
raise_at_signals()
with {within}:
    # A loop without end and without Python.
    loop = itertools.chain(map(print, ["ready"]), itertools.repeat(0))
    collections.deque(loop, maxlen=0)
"""
    words = [sys.executable, "-u", "-c", code]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.send_signal(number)
        assert process.wait(60) == -number


@pytest.mark.process
@pytest.mark.parametrize("within", ["nullcontext()", "errors.DeferredInterrupt()"])
def test_after_a_signal_objects_that_are_half_made_fail_in_silence(within):
    code = f"""
import os, signal
from contextlib import nullcontext
from ooc_fw.system import errors
class Half:
    def __init__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        self.made = True
    def __del__(self):
        del self.made
errors.raise_at_signals()
try:
    with {within}:
        Half()
except KeyboardInterrupt as error:
    print(errors.signal_of(error))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (f"{int(signal.SIGTERM)}\n", "")
