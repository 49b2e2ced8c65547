"""The time left to a run, with a clock of our own."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw.solver.shell import Deadline, Rate


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def make_deadline(max_time=100):
    clock = Clock()
    return Deadline(max_time, clock(), clock), clock


@given(st.lists(st.tuples(st.floats(0.1, 10), st.floats(1, 1e6)), min_size=1, max_size=20))
def test_a_rate_lies_between_the_rates_measured(measured):
    rate = Rate(least=1)
    for seconds, work in measured:
        rate.add(seconds, work)
    rates = [seconds / work for seconds, work in measured]
    assert min(rates) * 7 * (1 - 1e-9) <= rate.seconds_for(7) <= max(rates) * 7 * (1 + 1e-9)


def test_recent_and_large_measurements_count_most():
    rate = Rate(least=1)
    rate.add(1, 0)  # nothing was done
    assert rate.seconds_for(5) == 0
    for seconds in (1, 1, 3):
        rate.add(seconds, 1)
    assert 5 / 3 < rate.seconds_for(1) < 3
    rate = Rate(least=10)
    for work, expected in ((9, 0), (10, 100), (1000, 1), (10, 1)):
        rate.add(1, work)
        assert rate.seconds_for(1000) == expected


@pytest.mark.parametrize("max_time", [None, math.inf])
def test_without_a_limit_there_is_always_time(max_time):
    deadline, clock = make_deadline(max_time)
    deadline.passes.add(1e9, 1e6)
    clock.now += 1e12
    assert deadline.left() == deadline.polish_takes() == math.inf
    assert not deadline.is_over(10, 10)
    assert deadline.allows_pass(deadline.pass_takes(10))
    assert not deadline.pass_is_late(1e9, 0.01)


def test_time_is_kept_for_what_comes_after_training():
    deadline, clock = make_deadline()
    m, work = 1000, 10**7
    deadline.evaluations.add(1, work)  # training tells of the end until that is measured
    assert deadline.pass_takes(work) == pytest.approx(2)
    assert 0.1 <= deadline.end_takes(m, 0) <= 0.3
    assert not deadline.is_over(m, work)
    deadline.gradients.add(1, m**2)
    deadline.passes.add(20, work)
    end = deadline.end_takes(m, work)
    assert 21 <= end <= 30
    assert deadline.pass_takes(work) == pytest.approx(20)
    assert 1 <= deadline.end_takes(m, 0) <= 2
    clock.now += 100 - end - deadline.polish_takes() - 1
    assert not deadline.is_over(m, work)
    clock.now += 2
    assert deadline.is_over(m, work)
    assert not deadline.is_over(m, 0)  # no pass wanted
    assert deadline.allows_pass(deadline.pass_takes(work))


def test_passes_that_take_too_long():
    """Nothing is kept for one that would; one under way may exceed the limit a little."""
    deadline, clock = make_deadline()
    deadline.passes.add(1e9, 1e6)
    assert deadline.end_takes(10, 1) == 0
    clock.now += 90 - 1
    assert not deadline.is_over(10, 1)
    assert not deadline.allows_pass(deadline.pass_takes(1))
    clock.now += 1
    assert deadline.is_over(10, 1)
    assert not deadline.pass_is_late(10, 0.4)  # 15 s to go
    assert deadline.pass_is_late(10, 0.3)  # 23 s to go
    assert not deadline.pass_is_late(1000, 1.0)
    assert not deadline.pass_is_late(1, 0.001)  # the first block may take long
