from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import nullcontext

import pytest

from ooc_fw.system.interrupt import _DEAF, DeferredInterrupt, Terminated, signal_of, terminating


def deferring():
    interrupt = DeferredInterrupt()
    interrupt.defer()
    return interrupt


def test_first_signal_is_noted_and_raises_nothing():
    before = signal.getsignal(signal.SIGINT)
    with deferring() as interrupt:
        assert interrupt.noted is None
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupt.noted == signal.SIGINT
        assert not interrupt.urgent
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize(
    ("second", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)]
)
def test_second_signal_is_not_put_off(first, second, error):
    def send_both() -> None:
        os.kill(os.getpid(), first)
        os.kill(os.getpid(), second)

    with terminating(), deferring() as interrupt:
        with pytest.raises(KeyboardInterrupt) as raised:
            send_both()
        assert raised.type is error
        assert interrupt.noted == first
        assert interrupt.urgent


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_request_to_end_outside_a_run_raises_too(number):
    with terminating():
        with pytest.raises(Terminated) as raised:
            os.kill(os.getpid(), number)
    assert raised.value.number == signal_of(raised.value) == number
    assert signal.getsignal(number) is signal.SIG_DFL


def test_the_first_signal_raises_while_there_is_nothing_to_lose():
    with DeferredInterrupt() as interrupt:
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        assert interrupt.urgent
        assert interrupt.noted is None


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
        with terminating(), deferring() as interrupt:
            assert signal.getsignal(number) is handler
            os.kill(os.getpid(), number)
            assert interrupt.noted is None
    finally:
        signal.signal(number, old)


def test_other_threads_are_left_alone():
    done = []

    def work() -> None:
        with terminating(), deferring() as interrupt:
            done.append(interrupt.noted is None)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]


@pytest.mark.parametrize("running", [False, True])
def test_an_interrupt_is_not_lost_where_nobody_receives_exceptions(running):
    """As in LLVM's callbacks, whose names are those of functions in llvmlite."""
    reached: list[str] = []

    class Collected:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            reached.append("end")

    def collect() -> None:
        Collected()
        time.sleep(10)

    with terminating(), DeferredInterrupt() if running else nullcontext():
        with pytest.raises(KeyboardInterrupt):
            collect()
    assert reached == ["end"]


def test_the_callbacks_of_llvm_have_the_names_that_are_known():
    from llvmlite.binding.executionengine import ExecutionEngine

    callbacks = {name for name in vars(ExecutionEngine) if name.startswith("_raw_object_cache_")}
    assert {"_raw_object_cache_notify", "_raw_object_cache_getbuffer"} == callbacks <= _DEAF
