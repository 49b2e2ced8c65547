"""What a run tells while it goes on: callbacks, interrupts, the time limit, checkpoints."""

from __future__ import annotations

import dataclasses
import time

from ooc_fw.solver.checkpoint import CheckpointWriter, check_same_run, run_identity
from ooc_fw.solver.run_state import RunState
from ooc_fw.solver.state import Phase, SolverState, Status, Stop
from ooc_fw.system.interrupt import DeferredInterrupt


class Reporter:
    """Tells callbacks how a run stands, writes checkpoints, and ends the run when asked to."""

    def __init__(self, state: RunState) -> None:
        self._state, self._setting = state, state.setting
        self._source = self._setting.problem.source
        self._started = time.perf_counter()
        self._writer = CheckpointWriter(None, {})
        self._zero = 0, 0  # readings of the source's counters at which the run counts 0
        self.interrupt = self._setting.session.interrupt or DeferredInterrupt()

    def count_reads_from(self, rows: int, n_bytes: int) -> None:
        """Have the run count so many rows and bytes as read up to now."""
        self._zero = self._source.rows_read - rows, self._source.bytes_read - n_bytes

    def update(self) -> SolverState:
        """Bring the progress of the run up to date."""
        progress = self._state.progress
        progress.phase = self._state.course.phase
        progress.note_weights(self._state.active)
        progress.rows_read = self._source.rows_read - self._zero[0]
        progress.bytes_read = self._source.bytes_read - self._zero[1]
        progress.kernel_evaluations = self._setting.engine.evaluations
        progress.elapsed_s = time.perf_counter() - self._started
        return progress

    def is_over(self) -> bool:
        """Whether training has to stop now, so that the end fits the time limit."""
        state = self._state
        return state.deadline.is_over(len(state.active), state.pass_work())

    def report(self) -> None:
        """Tell the callbacks; a signal, a False from one of them, or the clock raises Stop."""
        if self.interrupt.noted is not None:
            raise Stop(Status.INTERRUPTED)
        if self._state.course.phase is not Phase.CERTIFY and self.is_over():
            raise Stop(Status.TIME_LIMIT)
        callbacks = self._setting.session.callbacks
        if not callbacks:
            return
        progress = self.update().without_bias(self._setting.problem.bias_share)
        if any([callback(progress.copy()) is False for callback in callbacks]):
            raise Stop(Status.INTERRUPTED)

    # -- checkpoints -----------------------------------------------------------------------------

    def save_if_due(self, last: bool) -> None:
        """Write a checkpoint if it is time for one, as it is in the `last` iteration."""
        if last or self._writer.due():
            self.save()

    def save(self) -> None:
        """Write a checkpoint, if they are wanted."""
        if self._setting.session.checkpoint is None:
            return
        self.interrupt.defer()
        self.update()
        plan = dataclasses.asdict(self._setting.plan)
        self._writer.write(self._state.image() | {"plan": plan})

    def begin(self) -> None:
        """Say which run this is, for checkpoints, and resume from one if there is one.

        What is read to say so does not count. InputError is raised for a checkpoint of another run.
        """
        session, before = self._setting.session, self._setting.before
        if session.checkpoint is None and before is None:
            return
        rows, n_bytes = self._source.rows_read, self._source.bytes_read
        own = run_identity(self._setting.problem, self._setting.options)
        self._writer = CheckpointWriter(session.checkpoint, own)
        if before is not None:
            assert session.resume is not None
            identity, image = before
            check_same_run(session.resume, identity, own)
            self._state.restore(image)
            progress = self._state.progress
            rows, n_bytes = progress.rows_read, progress.bytes_read
            self._setting.engine.evaluations = progress.kernel_evaluations
            self._started -= progress.elapsed_s
            self.interrupt.defer()
        self.count_reads_from(rows, n_bytes)
