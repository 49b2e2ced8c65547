"""What a run tells while it goes on: callbacks, interrupts, the time limit, checkpoints."""

from __future__ import annotations

import dataclasses
import time

from ooc_fw.solver.checkpoint import Checkpoints, Identity, State, check_same_run, run_identity
from ooc_fw.solver.deadline import Deadline
from ooc_fw.solver.run_state import RunState
from ooc_fw.solver.setup import Setting
from ooc_fw.solver.state import Phase, SolverState, Status, Stop
from ooc_fw.system.interrupt import DeferredInterrupt


class Reporter:
    """Tells callbacks how a run stands, writes checkpoints, and ends the run when it is asked to.

    Attributes
    ----------
    interrupt : DeferredInterrupt
        Signals that arrived.
    """

    def __init__(self, setting: Setting, state: RunState, deadline: Deadline) -> None:
        self._setting, self._state, self._deadline = setting, state, deadline
        self._source = setting.problem.source
        self._checkpoints = Checkpoints(setting.session.checkpoint)
        self._started = time.perf_counter()
        self._zero = 0, 0  # readings of the source's counters at which the run counts 0
        self.interrupt = setting.session.interrupt or DeferredInterrupt()

    def count_reads_from(self, rows: int, n_bytes: int) -> None:
        """Have the run count so many rows and bytes as read up to now."""
        self._zero = self._source.rows_read - rows, self._source.bytes_read - n_bytes

    def update(self) -> SolverState:
        """Bring the progress of the run up to date."""
        progress, active = self._state.progress, self._state.active
        progress.phase = self._state.course.phase
        progress.objective = active.rho / 2
        progress.n_active = len(active)
        progress.n_support = len(active.support)
        progress.rows_read = self._source.rows_read - self._zero[0]
        progress.bytes_read = self._source.bytes_read - self._zero[1]
        progress.kernel_evaluations = self._setting.engine.evaluations
        progress.elapsed_s = time.perf_counter() - self._started
        return progress

    def is_over(self) -> bool:
        """Whether training has to stop now, so that the end fits the time limit."""
        active = self._state.active
        return self._deadline.is_over(len(active), self._state.certification.work(active))

    def report(self) -> None:
        """Tell the callbacks; a signal, a callback that returns False, or the clock ends the run.

        Raises
        ------
        Stop
            When the run has to end.
        """
        if self.interrupt.noted is not None:
            raise Stop(Status.INTERRUPTED)
        if self._state.course.phase is not Phase.CERTIFY and self.is_over():
            raise Stop(Status.TIME_LIMIT)
        callbacks = self._setting.session.callbacks
        if not callbacks:
            return
        progress = self.update()
        if any([callback(progress.copy()) is False for callback in callbacks]):
            raise Stop(Status.INTERRUPTED)

    # -- checkpoints -----------------------------------------------------------------------------

    def save_if_due(self, last: bool) -> None:
        """Write a checkpoint if it is time for one, as it is in the `last` iteration."""
        if self._checkpoints.due(last):
            self.save()

    def save(self) -> None:
        """Write a checkpoint, if they are wanted."""
        if not self._checkpoints.wanted:
            return
        self.interrupt.defer()
        self.update()
        plan = dataclasses.asdict(self._setting.plan)
        self._checkpoints.save(self._state.image() | {"plan": plan})

    def identify(self) -> Identity:
        """Say which run this is, for checkpoints; what that reads does not count."""
        rows, n_bytes = self._source.rows_read, self._source.bytes_read
        self._checkpoints.identity = run_identity(self._setting.problem, self._setting.options)
        self.count_reads_from(rows, n_bytes)
        return self._checkpoints.identity

    def resume(self, before: Identity, image: State) -> None:
        """Go on from a checkpoint, as `load_checkpoint` read it.

        Raises
        ------
        InputError
            When it belongs to another run.
        """
        path = self._setting.session.resume
        assert path is not None
        check_same_run(path, before, self._checkpoints.identity)
        self._state.restore(image, self._setting)
        progress = self._state.progress
        self._setting.engine.evaluations = progress.kernel_evaluations
        self.count_reads_from(progress.rows_read, progress.bytes_read)
        self._started -= progress.elapsed_s
        self.interrupt.defer()
