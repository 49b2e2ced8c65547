"""The time left to a run, with a clock of our own."""

import math

import pytest

from ooc_fw.solver.surroundings import Deadline


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def make_deadline(max_time=100):
    clock = Clock()
    return Deadline(max_time, clock(), clock), clock


@pytest.mark.parametrize("max_time", [None, math.inf])
def test_without_a_limit_there_is_always_time(max_time):
    deadline, clock = make_deadline(max_time)
    clock.now += 1e12
    assert deadline.left() == math.inf
    assert not deadline.is_near(0.5)
    assert deadline.allows_pass(1e12)
    assert not deadline.pass_is_late(1e9, 0.01)


def test_time_is_kept_for_what_comes_after_training():
    deadline, clock = make_deadline()
    clock.now += 100 - 20 - 1
    assert not deadline.is_near(0.2)
    clock.now += 2
    assert deadline.is_near(0.2)
    assert not deadline.is_near(0.1)


def test_passes_that_take_too_long():
    """One under way may exceed the limit a little."""
    deadline, clock = make_deadline()
    clock.now += 90
    assert deadline.allows_pass(19)
    assert not deadline.allows_pass(21)
    assert not deadline.pass_is_late(10, 0.4)  # 15 s to go
    assert deadline.pass_is_late(10, 0.3)  # 23 s to go
    assert not deadline.pass_is_late(1000, 1.0)
    assert not deadline.pass_is_late(1, 0.001)  # the first block may take long
