"""Runs whose clock a test sets."""

import time
from dataclasses import dataclass, field

from ooc_fw.options import TrainOptions
from ooc_fw.solver.plan import Session
from ooc_fw.solver.surroundings import Deadline


@dataclass(frozen=True)
class ClockedSession(Session):
    """A session whose time limits are over after `stop_clock`."""

    late: list[float] = field(default_factory=lambda: [0.0])

    def stop_clock(self) -> None:
        self.late[0] = float("inf")

    def deadline(self, options: TrainOptions) -> Deadline:
        clock = self.late
        return Deadline(options.max_time, self.started, lambda: time.perf_counter() + clock[0])
