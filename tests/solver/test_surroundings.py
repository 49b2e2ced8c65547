"""The time left to a run, with a clock of our own."""

from types import SimpleNamespace

from ooc_fw.solver.surroundings import Deadline


def after(seconds):
    """A time limit of 100 s, so many seconds after the run began."""
    clock = SimpleNamespace(now=100.0)
    deadline = Deadline(100, clock.now, lambda: clock.now)
    clock.now += seconds
    return deadline


def test_a_share_of_the_time_is_kept_for_what_comes_after_training():
    assert not after(79).is_near(0.2)
    assert after(81).is_near(0.2)
    assert not after(81).is_near(0.1)


def test_a_pass_may_exceed_the_limit_by_a_tenth():
    deadline = after(90)
    assert deadline.allows_pass(19)
    assert not deadline.allows_pass(21)
    assert not deadline.pass_is_late(10, 0.4)  # 15 s to go
    assert deadline.pass_is_late(10, 0.3)  # 23 s to go
    assert not deadline.pass_is_late(1, 0.001)  # the first block may take long
