import os
import signal
import threading
import time
from contextlib import contextmanager, nullcontext

import pytest

from ooc_fw.system.interrupt import DEAF, DeferredInterrupt, Terminated, signal_of, terminating

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
@pytest.mark.parametrize("running", [False, True])
def test_the_first_signal_raises_while_there_is_nothing_to_lose(number, running):
    interrupt = DeferredInterrupt()
    with terminating(), interrupt if running else nullcontext():
        with pytest.raises(KeyboardInterrupt) as raised:
            send(number)
    assert signal_of(raised.value) == number
    assert (interrupt.noted, interrupt.urgent) == (None, running)


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


@pytest.mark.parametrize("running", [False, True])
def test_an_interrupt_is_not_lost_where_nobody_receives_exceptions(running):
    """As in LLVM's callbacks, whose names are those of functions in llvmlite."""
    reached: list[str] = []

    class Collected:
        def __del__(self) -> None:
            send(signal.SIGINT)
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
    assert {"_raw_object_cache_notify", "_raw_object_cache_getbuffer"} == callbacks <= DEAF
