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
    deadline.measure(1e9, 1e6)
    clock.now += 1e12
    assert deadline.left() == math.inf
    assert not deadline.is_over(10, 10)
    assert deadline.allows_pass(deadline.takes(10))
    assert not deadline.pass_is_late(1e9, 0.01)


def test_the_last_measurement_of_much_work_counts():
    deadline, _ = make_deadline()
    assert deadline.takes(1e9) == 0
    deadline.measure(1, 10)  # too little to tell
    assert deadline.takes(1e9) == 0
    for seconds in (5, 1):
        deadline.measure(seconds, 1e7)
    deadline.measure(9, 10)
    assert 1 <= deadline.takes(1e7) <= 1.5


def test_time_is_kept_for_what_comes_after_training():
    deadline, clock = make_deadline()
    deadline.measure(1, 1e7)
    clock.now += 100 - deadline.takes(1e6 + 2e8) - 10 - 1
    assert not deadline.is_over(1e6, 2e8)
    clock.now += 2
    assert deadline.is_over(1e6, 2e8)
    assert not deadline.is_over(1e6, 0)  # no pass wanted
    assert deadline.allows_pass(deadline.takes(2e8))


def test_passes_that_take_too_long():
    """Nothing is kept for one that would; one under way may exceed the limit a little."""
    deadline, clock = make_deadline()
    deadline.measure(1e9, 1e6)
    clock.now += 90 - 1
    assert not deadline.is_over(0, 1)
    assert not deadline.allows_pass(deadline.takes(1))
    clock.now += 1
    assert deadline.is_over(0, 1)
    assert not deadline.pass_is_late(10, 0.4)  # 15 s to go
    assert deadline.pass_is_late(10, 0.3)  # 23 s to go
    assert not deadline.pass_is_late(1000, 1.0)
    assert not deadline.pass_is_late(1, 0.001)  # the first block may take long
