"""Plain records of a training run: options, statuses, step kinds, progress and result.

Owns the vocabulary that solver, callbacks, command line and model share. Computes nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from ooc_fw.data.rows import Float64Array, Int8Array, Int64Array, Rows
from ooc_fw.system.errors import InputError, check_number


class Status(enum.StrEnum):
    """How a run ended.

    `CONVERGED`: a certificate says that the gap of all rows is within the tolerance. `SAMPLED`: no
    certificate was wanted, and the gap of the rows drawn last is within it; that of all rows is
    larger, as a rule.
    """

    CONVERGED = "converged"
    SAMPLED = "sampled"
    MAX_ITER = "max_iter"
    TIME_LIMIT = "time_limit"
    INTERRUPTED = "interrupted"
    SUPPORT_LIMIT = "support_limit"
    ROUNDING = "rounding"  # float64 allows no smaller gap
    STREAMED = "streamed"
    UNSETTLED = "unsettled"  # a stream whose last chunk still has rows that violate their margin

    @property
    def reached(self) -> bool:
        """Whether the gap passed the stopping test, as far as it was to be looked at."""
        return self in (Status.CONVERGED, Status.SAMPLED)


def why_not_converged(status: str, stopping: str, tol: float) -> str:
    """Say why the gap is above the tolerance, and what helps, for a warning."""
    if status == Status.ROUNDING:
        return (
            f"float64 rounding allows no smaller gap, and the {stopping} gap is above {tol}; scale "
            f"the columns or lower C"
        )
    return f"stopped by {status} before the {stopping} gap reached {tol}"


class StepKind(enum.StrEnum):
    """What an iteration did; `DROP` counts steps after which a vertex left the support."""

    TOWARD = "toward"
    AWAY = "away"
    PAIRWISE = "pairwise"
    PARTAN = "partan"
    CORRECTIVE = "corrective"
    DROP = "drop"


START_ROWS = 20
"""Vertices that a run begins with, the papers' p."""


_NUMBERS = ("C", "tol", "sample_size", "seed", "threads")
_NUMBERS_OR_NONE = ("max_iter", "max_time", "memory_limit", "max_support")


@dataclass(frozen=True)
class TrainOptions:
    """Everything a run is told, kernel and data apart.

    Parameters
    ----------
    C : float
        Penalty of a unit squared slack.
    method : str
        A name in `ooc_fw.solve.steps.STEP_RULES`, or "auto".
    lmo : {"auto", "full", "sampled"}
        Oracle that proposes toward vertices.
    sample_size : int
        Rows drawn by the sampled oracle per iteration.
    start : {"random", "farthest"}
        How the first active set is chosen.
    tol : float
        Target gap, in the unit of `stopping`.
    stopping : {"relative", "absolute", "meb"}
        Which gap is compared with `tol`; see `ooc_fw.problem.StoppingTest`.
    certify : bool
        Sweep all rows at the end of a sampled run.
    max_iter : int or None
        Largest number of iterations; None sets no bound.
    max_time : float or None
        Seconds after which the run ends with what it has, the certificate's sweep included as far
        as it fits; None sets no bound.
    seed : int
        Seed of every random draw.
    threads : int
        Threads used for kernel values and sweeps.
    memory_limit : int or None
        Largest peak of resident memory of a process that holds nothing beside the run and its
        rows, in bytes; None is half of the memory there is (`ooc_fw.system.memory.memory_total`).
    max_support : int or None
        Largest number of support vectors; None sets no bound beyond what memory affords.
    """

    C: float = 1.0
    method: str = "auto"
    lmo: str = "auto"
    sample_size: int = 194
    start: str = "random"
    tol: float = 1e-3
    stopping: str = "relative"
    certify: bool = True
    max_iter: int | None = None
    max_time: float | None = None
    seed: int = 0
    threads: int = 1
    memory_limit: int | None = None
    max_support: int | None = None

    def __post_init__(self) -> None:
        for name in _NUMBERS:
            check_number(name, getattr(self, name))
        for name in _NUMBERS_OR_NONE:
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name))
        if self.seed < 0 or self.seed != int(self.seed):
            raise InputError(f"seed must be a whole number that is not negative, not {self.seed}")
        for name in ("C", "tol"):
            value = getattr(self, name)
            if not 0 < value < float("inf"):
                raise InputError(f"{name} must be a positive number, not {value}")
        for name in ("sample_size", "threads"):
            value = getattr(self, name)
            if value < 1:
                raise InputError(f"{name} must be at least 1, not {value}")
        if self.max_iter is not None and self.max_iter < 0:
            raise InputError(f"max_iter must not be negative, not {self.max_iter}")
        if self.max_support is not None and self.max_support < START_ROWS:
            raise InputError(
                f"max_support must be at least {START_ROWS}, the rows that a run begins with, not "
                f"{self.max_support}"
            )
        if self.max_time is not None and not 0 < self.max_time < float("inf"):
            raise InputError(f"max_time must be a positive number of seconds, not {self.max_time}")
        for name, known in (
            ("lmo", ("auto", "full", "sampled")),
            ("start", ("random", "farthest")),
            ("stopping", ("relative", "absolute", "meb")),
        ):
            if getattr(self, name) not in known:
                raise InputError(
                    f"{name} must be one of {', '.join(known)}, not {getattr(self, name)!r}"
                )


@dataclass
class SolverState:
    """Progress of a run; the only thing that callbacks and logs read.

    Each call of a callback is handed a copy of its own, which it may keep or change. Gaps are
    relative (divided by rho) whatever the stopping test; None means unknown. Counts and seconds are
    those of the machine under way.

    Parameters
    ----------
    machine : int
        Which of the machines for pairs of classes is trained, from 0.
    n_machines : int
        Machines in all: 1 for two classes.
    phase : {"start", "train", "certify", "stream"}
        What the run is doing.
    iteration : int
        Steps taken so far.
    objective : float
        Value of the dual objective, rho / 2; NaN before there are weights.
    sampled_gap : float or None
        Duality gap over the rows last looked at, which is no certificate.
    certified_gap : float or None
        Duality gap over all rows, of the last sweep.
    n_active : int
        Vertices of the active set.
    n_support : int
        Those of them that have weight.
    rows_read : int
        Rows read from the source.
    bytes_read : int
        Bytes read from the source, as held in memory.
    kernel_evaluations : int
        Kernel values computed.
    elapsed_s : float
        Seconds since the run began.
    sweep_fraction : float or None
        Part of the file, from 0 to 1, that the sweep under way has seen; None outside a sweep.
    steps : dict
        Number of steps of each `StepKind`.
    """

    machine: int = 0
    n_machines: int = 1
    phase: str = "start"
    iteration: int = 0
    objective: float = float("nan")
    sampled_gap: float | None = None
    certified_gap: float | None = None
    n_active: int = 0
    n_support: int = 0
    rows_read: int = 0
    bytes_read: int = 0
    kernel_evaluations: int = 0
    elapsed_s: float = 0.0
    sweep_fraction: float | None = None
    steps: dict[StepKind, int] = field(default_factory=lambda: dict.fromkeys(StepKind, 0))

    def copy(self) -> SolverState:
        """Same values, which do not change with this state."""
        return SolverState(**{**vars(self), "steps": dict(self.steps)})  # faster than `replace`


Callback: TypeAlias = Callable[[SolverState], bool | None]
"""Called after each iteration and each block of a sweep; returning False asks the run to stop."""


@dataclass(frozen=True)
class Solution:
    """What `ooc_fw.solve.loop.solve` returns.

    Weights sum to 1; `rows` are positions in the source as stored; gaps are relative, None where
    not known.
    """

    status: Status
    method: str
    lmo: str
    choice: str  # one line: what "auto" picked and why
    alpha: Float64Array  # (n_support,)
    labels: Int8Array  # (n_support,)
    rows: Int64Array  # (n_support,)
    support_vectors: Rows  # (n_support, n_features)
    objective: float
    rho: float
    sampled_gap: float | None
    certified_gap: float | None
    pair_gap: float | None
    iterations: int
    steps: dict[StepKind, int]
    kernel_evaluations: int
    passes: float
    rows_read: int
    bytes_read: int
    seconds: float
    sweep_seconds: float | None = None  # of the last sweep over all rows, where there was one
    signal: int | None = None  # the one that interrupted the run
    penalties: Float64Array | None = None  # (n_support,), where rows have their own
