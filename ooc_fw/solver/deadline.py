"""The time limit of a run: when to stop training so that the end still fits.

After training come a gradient in float64 and, where wanted, a certifying pass over the data. The
time they will take is estimated from the looks at rows, gradients and passes of the run so far.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ooc_fw.system.errors import OutOfTimeError

_SMALL_SHARE = 0.3  # share of the largest work measured, below which a measurement tells nothing
_FADING = 0.7  # factor of the weight of earlier measurements, at each new one
_SWEEP_SHARE = 0.5  # share of the limit above which a certificate is not worth its time
_SPARE = 1.2  # factor of every estimate
_BEYOND_LOOKS = 2.0  # a certifying pass does more for each row than a look in training, by this
_FLOAT64 = 1.5  # factor from looks to the gradient in float64, half of which is computed
_LEAST_WORK = 1e6  # kernel values, or terms of them, from which on time is proportional to work
_GRACE = 0.1  # share of the limit by which a pass that is under way may exceed it
_EARLY = 0.02  # share of the limit during which the pace of a pass tells nothing
_SETTLE_SHARE = 0.1  # share of the limit for optimising the weights on their vertices at the end
_FEWEST_STEPS = 1000  # steps of a corrective step before which looking at the clock does not pay


class Rate:
    """Seconds per unit of work; recent and large measurements count most.

    Little work is mostly function calls and loading of code, and tells nothing of much work. So
    measurements on less than `least` are ignored, as are those much smaller than others.
    """

    def __init__(self, least: float) -> None:
        self._least = least
        self._largest = self._seconds = self._work = 0.0

    def add(self, seconds: float, work: float) -> None:
        """Take a measurement into account."""
        if work < max(self._least, _SMALL_SHARE * self._largest):
            return
        fading = _FADING if _SMALL_SHARE * work < self._largest else 0.0
        self._largest = max(self._largest, work)
        self._seconds = fading * self._seconds + seconds
        self._work = fading * self._work + work

    def seconds_for(self, work: float) -> float:
        """Estimated time for some work; 0 while nothing was measured."""
        return self._seconds / self._work * work if self._work > 0 else 0.0


class Deadline:
    """Time left to a run of `max_time` seconds, or without a limit, from a reading of `clock` on.

    In what follows `n_active` is the number of vertices, and `sweep_work` the rows times support
    vectors of the certifying pass, 0 without one.

    Attributes
    ----------
    looks, sweeps : Rate
        Time by rows times support vectors, while training and in certifying passes.
    gradients : Rate
        Time of the active set's gradient in float64, by the square of its size.
    inner : Rate
        Time of pairwise steps in a corrective step, by steps times vertices.
    """

    def __init__(
        self,
        max_time: float | None,
        started: float,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._max_time = math.inf if max_time is None else max_time
        self.limited = self._max_time < math.inf
        self._started, self._clock = started, clock
        self.looks, self.sweeps, self.gradients, self.inner = (Rate(_LEAST_WORK) for _ in range(4))

    @contextmanager
    def timed(self, rate: Rate, work: float) -> Iterator[None]:
        """Measure what is done within as `work`."""
        started = self._clock()
        yield
        rate.add(self._clock() - started, work)

    def left(self) -> float:
        """Seconds until the limit."""
        return self._max_time - (self._clock() - self._started)

    def check(self) -> None:
        """Raise OutOfTimeError if time is over, before there is a model."""
        if self.left() <= 0:
            raise OutOfTimeError(
                f"the time limit of {self._max_time:g} s was over before there was a model, so "
                f"that nothing was written; allow more time"
            )

    def sweep_takes(self, work: float) -> float:
        """Estimated seconds of a pass over so many rows times support vectors."""
        seconds = self.sweeps.seconds_for(work) or _BEYOND_LOOKS * self.looks.seconds_for(work)
        return _SPARE * seconds

    def end_takes(self, n_active: int, sweep_work: float) -> float:
        """Seconds to keep for the gradient in float64 and the certifying pass.

        A pass that would take more than half of the limit gets none: there will be no certificate.
        """
        sweep = self.sweep_takes(sweep_work)
        if sweep > _SWEEP_SHARE * self._max_time:
            sweep = 0.0
        work = n_active**2
        gradient = self.gradients.seconds_for(work) or _FLOAT64 * self.looks.seconds_for(work)
        return _SPARE * gradient + sweep

    def settle_takes(self) -> float:
        """Seconds to keep for optimising the weights and choosing among states at the end."""
        return _SETTLE_SHARE * self._max_time

    def _left_to_training(self, n_active: int, sweep_work: float) -> float:
        return self.left() - self.end_takes(n_active, sweep_work) - self.settle_takes()

    def is_over(self, n_active: int, sweep_work: float) -> bool:
        """Whether training has to stop now."""
        return self.limited and self._left_to_training(n_active, sweep_work) <= 0

    def inner_steps(self, n_active: int, sweep_work: float) -> int | None:
        """Pairwise steps for which there is time; None for as many as it takes."""
        seconds = self.inner.seconds_for(n_active)
        if not self.limited or seconds == 0:
            return None
        return max(_FEWEST_STEPS, int(self._left_to_training(n_active, sweep_work) / seconds))

    def _left_to_sweeps(self) -> float:
        return self.left() + _GRACE * self._max_time

    def allows_sweep(self, work: float) -> bool:
        """Whether a pass that begins now will end in time, or soon after."""
        return self.sweep_takes(work) <= self._left_to_sweeps()

    def sweep_is_late(self, seconds: float, fraction: float) -> bool:
        """Whether a pass that has done `fraction` of its work in `seconds` will end too late."""
        if seconds < _EARLY * self._max_time:
            return False
        return seconds / fraction * (1 - fraction) > self._left_to_sweeps()
