"""The circumstances of a run: everything beside the problem and the options."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ooc_fw.options import TrainOptions
from ooc_fw.solver.shell import CheckpointPlan, Deadline
from ooc_fw.solver.state import Callback
from ooc_fw.system.interrupt import DeferredInterrupt


@dataclass(frozen=True)
class Session:
    """The circumstances of a run. None of them changes what is certified."""

    # They are told of every iteration and of every block of a pass over the data.
    callbacks: Sequence[Callback] = ()
    # Where the blocks of a certifying pass are looked at; see `data.parallel.borrow_workers`. None
    # is this process, where steps are always taken. The numbers are the same to the last bit.
    dask: Any = None
    # Reading of `time.perf_counter` from which `max_time` counts.
    started: float = field(default_factory=time.perf_counter)
    # Where the state of the run is written, and how often. A checkpoint that cannot be written is a
    # warning: the run goes on, and tries again when the next one is due.
    checkpoint: CheckpointPlan | None = None
    # Checkpoint to resume from, of the same data, kernel and options; only `max_iter`, `max_time`
    # and `threads` may differ. The course is that of a run that was never stopped.
    resume: str | os.PathLike[str] | None = None
    # Bytes of rows that are in RAM whatever the run does; None for those of a source in RAM.
    held: int | None = None
    # Entered by the caller, where several runs share one. By default a run has its own: Ctrl-C
    # raises before the first step and ends the run with a solution after it.
    interrupt: DeferredInterrupt | None = None

    def deadline(self, options: TrainOptions) -> Deadline:
        """The time limit of the options, counted from the start of this session."""
        return Deadline(options.max_time, self.started)
