from __future__ import annotations

import os
import signal
import threading

import pytest

from ooc_fw.interrupt import DeferredInterrupt


def test_first_interrupt_waits_for_the_check():
    before = signal.getsignal(signal.SIGINT)
    with DeferredInterrupt() as interrupt:
        interrupt.check()
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            interrupt.check()
        interrupt.check()
    assert signal.getsignal(signal.SIGINT) is before


def test_second_interrupt_is_not_put_off():
    def interrupt_twice() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with DeferredInterrupt(), pytest.raises(KeyboardInterrupt):
        interrupt_twice()


def test_ignored_interrupts_stay_ignored():
    old = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with DeferredInterrupt() as interrupt:
            os.kill(os.getpid(), signal.SIGINT)
            interrupt.check()
    finally:
        signal.signal(signal.SIGINT, old)


def test_other_threads_are_left_alone():
    done = []

    def work() -> None:
        with DeferredInterrupt() as interrupt:
            interrupt.check()
            done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done
