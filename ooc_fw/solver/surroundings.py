"""The surroundings of any run: callbacks, signals, time limit, counts of work, checkpoints."""

from __future__ import annotations

import logging
import math
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ooc_fw.data.sources import RowSource
from ooc_fw.kernels.engine import Engine
from ooc_fw.options import TrainOptions
from ooc_fw.solver.state import Callback, Phase, SolverState, Status, Stop, Work
from ooc_fw.system.errors import DeferredInterrupt, InputError, OutOfTimeError

logger = logging.getLogger(__name__)


@dataclass
class Checkpoint:
    """A file to which a run writes a model of its current weights, every `every_s` seconds."""

    path: str | os.PathLike[str]
    every_s: float = 60.0
    # Writes a model from a solution to the path.
    write: Callable[[str | os.PathLike[str], Any], None] | None = None
    _saved_at: float = field(init=False, default_factory=time.perf_counter)
    _failed: bool = field(init=False, default=False)

    @property
    def is_due(self) -> bool:
        """Whether it is time to save."""
        return time.perf_counter() >= self._saved_at + self.every_s

    def save(self, weights: Callable[[], Any]) -> None:
        """Write the file; the first failure is a warning."""
        assert self.write is not None
        try:
            self.write(self.path, weights())
        except (OSError, InputError) as error:
            if not self._failed:
                reason = error.strerror if isinstance(error, OSError) else error
                words = "the checkpoint %s cannot be written (%s); the run goes on without it"
                logger.warning(words, os.fspath(self.path), reason)
            self._failed = True
        self._saved_at = time.perf_counter()

    def of_part(
        self, whole: Callable[[Any], Any], one_at_a_time: AbstractContextManager[Any]
    ) -> Checkpoint:
        """A checkpoint for a part of a run; `whole` makes the weights of the run from its own."""

        def write(path: str | os.PathLike[str], weights: Any) -> None:
            with one_at_a_time:
                if self.is_due:
                    self.save(lambda: whole(weights))

        return Checkpoint(self.path, self.every_s, write)


class Deadline:
    """The time limit of a run, if it has one, from the reading `started` of the `clock`."""

    def __init__(
        self, max_time: float | None, started: float, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.max_time = math.inf if max_time is None else max_time
        self.limited = self.max_time < math.inf
        self._started = started
        self._clock = clock

    def left(self) -> float:
        """Seconds until the limit."""
        return self.max_time - (self._clock() - self._started)

    def share(self, n_left: int) -> float | None:
        """Seconds for the next of `n_left` runs, which share the time left; None for no limit."""
        return max(1e-9, self.left() / n_left) if self.limited else None

    def check(self) -> None:
        """Raise OutOfTimeError if the time is over; called before there is a model."""
        if self.left() <= 0:
            raise OutOfTimeError(
                f"the time limit of {self.max_time:g} s was over before there was a model, so "
                f"that nothing was written; allow more time"
            )

    def is_near(self, share: float) -> bool:
        """Whether at most a share of the time limit is left."""
        return self.limited and self.left() <= share * self.max_time

    def allows_pass(self, seconds: float = 0.0) -> bool:
        """Whether a reading that takes `seconds` more will end in time, or soon after."""
        return seconds <= self.left() + 0.1 * self.max_time

    def pass_is_late(self, seconds: float, fraction: float) -> bool:
        """Whether a reading that has done `fraction` of its work in `seconds` will end too late."""
        rest = seconds / fraction * (1 - fraction)
        return seconds >= 0.02 * self.max_time and not self.allows_pass(rest)


@dataclass(frozen=True)
class Session:
    """What a run has beside the problem and the options: callbacks, workers, time, files."""

    callbacks: Sequence[Callback] = ()  # called after steps and after each block of a reading
    # Workers for the blocks of a reading, see `data.parallel.borrow_workers`. None: this process,
    # which always takes the steps itself. The numbers are the same to the last bit.
    dask: Any = None
    # Reading of `time.perf_counter` from which `max_time` counts.
    started: float = field(default_factory=time.perf_counter)
    checkpoint: Checkpoint | None = None
    # Bytes of rows that are in RAM anyway; None: all rows if the source is in RAM.
    held: int | None = None
    # The caller enters it if several runs share it. By default a run has its own: Ctrl-C raises
    # before the first step, and later it ends the run with a solution.
    interrupt: DeferredInterrupt | None = None
    say: Callable[[str], object] = logger.info  # hears what is tried before the run

    def deadline(self, options: TrainOptions) -> Deadline:
        """The time limit of the options, counted from the start of this session."""
        return Deadline(options.max_time, self.started)


class Surroundings(ABC):
    """One run: its reports, and the ways to end it; subclasses are algorithms."""

    engine: Engine | None = None  # it counts kernel values
    gives_up = True  # whether the time limit may end the run before it has a model

    def __init__(
        self, session: Session, options: TrainOptions, source: RowSource, progress: SolverState
    ) -> None:
        self.session = session
        self.options = options
        self.source = source
        self.progress = progress
        self.deadline = session.deadline(options)
        self.interrupt = session.interrupt or DeferredInterrupt()
        self.rng = np.random.default_rng(options.seed)
        self._unwanted = False  # whether a callback has asked for the end
        self._zero = {**dict.fromkeys(self._readings(), 0), "elapsed_s": time.perf_counter()}

    @property
    def has_model(self) -> bool:
        """Whether the run has weights to end with; without them only errors end it."""
        return True

    @abstractmethod
    def is_over(self) -> bool:
        """Whether the current part has to stop, so that the rest of the run fits the limit."""

    @abstractmethod
    def update(self) -> SolverState:
        """Bring `progress` up to date; return the state for callbacks."""

    @abstractmethod
    def weights_so_far(self) -> Any:
        """The solution for a checkpoint; the run has weights."""

    def _readings(self) -> dict[str, float]:
        return {
            "kernel_evaluations": 0 if self.engine is None else self.engine.evaluations,
            "rows_read": self.source.rows_read,
            "bytes_read": self.source.bytes_read,
            "elapsed_s": time.perf_counter(),
        }

    def count(self) -> None:
        """Bring the counts of `progress` up to date."""
        for name, reading in self._readings().items():
            setattr(self.progress, name, reading - self._zero[name])

    def count_from(self, progress: SolverState) -> None:
        """Continue the counts of `progress`: work since then does not count."""
        readings = self._readings().items()
        self._zero = {name: reading - getattr(progress, name) for name, reading in readings}

    def go_on_from(self, work: Work) -> None:
        """Continue the counts of an earlier run."""
        self.progress.iteration = work.iterations
        before = SolverState(
            elapsed_s=work.seconds,
            rows_read=work.rows_read,
            bytes_read=work.bytes_read,
            kernel_evaluations=work.kernel_evaluations,
        )
        self.count_from(before)

    def guard(self) -> AbstractContextManager[object]:
        """A context that handles signals, unless the caller handles them."""
        return nullcontext() if self.session.interrupt else self.interrupt

    def report(self, share: float | None = None) -> None:
        """Call the callbacks; raise Stop for a signal, a False from a callback, or lack of time."""
        self.interrupt.check()
        self.progress.sweep_fraction = share
        self.tell()
        if not self.has_model:
            if self.interrupt.noted is not None:  # an earlier run with the same flag defers
                raise KeyboardInterrupt(self.interrupt.noted)
            if self.gives_up:
                self.deadline.check()
        elif self.interrupt.noted is not None:
            raise Stop(Status.INTERRUPTED)
        elif self._unwanted:
            raise Stop(Status.STOPPED)
        elif self.is_over():
            raise Stop(Status.TIME_LIMIT)

    def tell(self) -> None:
        """Call the callbacks; the next `report` raises Stop if one of them returned False."""
        if self.session.callbacks:
            told = self.update()
            answers = [callback(told.copy()) for callback in self.session.callbacks]
            self._unwanted |= any(answer is False for answer in answers)

    def status_of(self, work: Callable[[], Status]) -> Status:
        """The status with which work ends, or a limit or an interrupt ends it."""
        try:
            return work()
        except Stop as stop:
            return stop.status
        except KeyboardInterrupt as interrupt:
            nothing_to_return = not (self.interrupt.defers and self.has_model)
            if self.interrupt.noted is not None or nothing_to_return:  # a second signal
                raise
            self.interrupt.noted = interrupt.args[0] if interrupt.args else None
            return Status.INTERRUPTED

    def certify_late(self, status: Status, reaches: Callable[[], bool]) -> Status:
        """Certify the weights of a run that stopped early, if there is time; the final status.

        `reaches` reads all rows, and tells whether the gap is within the tolerance.
        """
        in_time = self.deadline.allows_pass()
        if not self.options.certify or status.was_asked_for or not in_time:
            return status
        self.progress.phase = Phase.CERTIFY
        return self.status_of(lambda: Status.CONVERGED if reaches() else status)

    def save(self, *, now: bool = False) -> None:
        """Write a checkpoint if the run has one and it is due, or `now`."""
        checkpoint = self.session.checkpoint
        if checkpoint is None or not self.has_model or not (now or checkpoint.is_due):
            return
        self.interrupt.defer()
        self.update()
        checkpoint.save(self.weights_so_far)
