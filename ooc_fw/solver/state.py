"""Plain records of a training run: statuses, phases, step kinds, progress and result.

Solver, callbacks, command line and model share this vocabulary.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from ooc_fw.data.rows import Float64Array, Int8Array, Int64Array, Rows


class Status(enum.StrEnum):
    """How a run ended.

    `CONVERGED`: the certified gap, over all rows, is within the tolerance. `SAMPLED`: no
    certificate was wanted, and the gap over the rows drawn last is within the tolerance; the gap
    over all rows is usually larger. `ROUNDING`: float64 allows no smaller gap, or steps lead
    nowhere. `INTERRUPTED`: a signal ended the run. `STOPPED`: a callback returned False.
    `UNSETTLED`: the last chunk of a stream still has rows that violate their margin.
    `RUNNING`: the weights come from a checkpoint, and the run was not over.
    """

    CONVERGED = "converged"
    SAMPLED = "sampled"
    MAX_ITER = "max_iter"
    TIME_LIMIT = "time_limit"
    INTERRUPTED = "interrupted"
    STOPPED = "stopped"
    SUPPORT_LIMIT = "support_limit"
    ROUNDING = "rounding"
    STREAMED = "streamed"
    UNSETTLED = "unsettled"
    RUNNING = "running"

    @property
    def reached(self) -> bool:
        """Whether the gap passed the stopping test, over all rows or over a sample."""
        return self in (Status.CONVERGED, Status.SAMPLED)

    @property
    def was_asked_for(self) -> bool:
        """Whether a signal or a callback asked for the end, which has to come soon."""
        return self in (Status.INTERRUPTED, Status.STOPPED)

    def explain(self, stopping: str, tol: float) -> str:
        """Say why the gap is above the tolerance `tol` of the `stopping` test, for a warning."""
        if self is Status.ROUNDING:
            return (
                f"float64 rounding allows no smaller gap, and the {stopping} gap is above {tol}; "
                f"scale the columns or lower C"
            )
        cause = _CAUSES.get(self, str(self))
        return f"stopped by {cause} before the {stopping} gap reached {tol}"


_CAUSES = {
    Status.MAX_ITER: "the limit of iterations",
    Status.TIME_LIMIT: "the time limit",
    Status.INTERRUPTED: "a signal",
    Status.STOPPED: "a callback",
    Status.SUPPORT_LIMIT: "the limit of support vectors",
}


class Stop(Exception):  # noqa: N818  (not an error)
    """Ends a run with a status; any part of the run may raise it."""

    def __init__(self, status: Status) -> None:
        super().__init__(status)
        self.status = status


class Phase(enum.StrEnum):
    """What a run is doing, or does next."""

    START = "start"
    TRAIN = "train"
    CERTIFY = "certify"
    POLISH = "polish"


class Warm(NamedTuple):
    """Rows and weights to begin with; a resumed run adds to the `work` so far."""

    rows: Int64Array
    alpha: Float64Array
    work: Work | None = None


class StepKind(enum.StrEnum):
    """Kinds of steps; `DROP` counts steps after which a vertex left the support."""

    TOWARD = "toward"
    AWAY = "away"
    PAIRWISE = "pairwise"
    PARTAN = "partan"
    CORRECTIVE = "corrective"
    DROP = "drop"


@dataclass
class SolverState:
    """Progress of a run: what callbacks and logs read; each call gets its own copy.

    Gaps are relative (divided by rho) for all stopping tests; None means unknown. Counts and
    seconds belong to the binary classifier in training.
    """

    classifier: int = 0  # number of the binary classifier in training, one for each pair of classes
    n_classifiers: int = 1  # number of all binary classifiers: 1 for two classes
    n_finished: int = 0  # how many of several binary classifiers are finished
    stage: int = 1  # of the training of several binary classifiers, each with more rows
    n_stages: int = 1
    share: float | None = None  # about the share of the work of the run that is done
    phase: Phase = Phase.START  # what the run is doing
    iteration: int = 0  # steps taken so far
    objective: float = float("nan")  # rho / 2; NaN before there are weights
    sampled_gap: float | None = None  # over the rows last looked at; an estimate, no certificate
    certified_gap: float | None = None  # over all rows, from the last certificate
    # The sampled gap is that of rows drawn from "all", of all rows in the "span" of landmarks or in
    # that of all "columns", or of a "sample" or the last "chunk" of the rows in such a span.
    gap_scope: str = "all"
    n_active: int = 0  # vertices in the active set
    n_support: int = 0  # vertices with positive weight
    rows_read: int = 0  # rows read from the source
    bytes_read: int = 0  # bytes of these rows, as held in memory
    kernel_evaluations: int = 0  # kernel values that were computed
    elapsed_s: float = 0.0  # seconds since its run began
    sweep_fraction: float | None = None  # done share of the current reading of the data, 0 to 1
    # Number of steps of each kind.
    steps: dict[StepKind, int] = field(default_factory=lambda: dict.fromkeys(StepKind, 0))

    def copy(self) -> SolverState:
        """A copy with the same values."""
        return SolverState(**{**vars(self), "steps": dict(self.steps)})  # faster than `replace`

    def without_bias(self, share: float) -> SolverState:
        """A copy with rho minus a share, and the sampled gap to it; itself for share 0."""
        if share == 0:
            return self
        state = self.copy()
        rho = 2 * self.objective
        state.objective = (rho - share) / 2
        gap = self.sampled_gap
        if gap is not None:
            state.sampled_gap = gap * rho / (rho - share) if rho > share else float("inf")
        return state


Callback: TypeAlias = Callable[[SolverState], bool | None]
"""A function that is called after at most 64 steps, after each block of a reading of the data, and
after each certificate, with the new `certified_gap`. It returns False to end the run."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Work:
    """The work of a run, as part of its result."""

    iterations: int  # steps of the method
    kernel_evaluations: int  # kernel values that were computed
    work: float  # kernel evaluations divided by rows times support vectors or landmarks
    rows_read: int  # rows read from the source, each time that they were read
    bytes_read: int  # their bytes, as held in memory
    seconds: float  # from the beginning of the run to its end

    def __repr__(self) -> str:
        status: Any = getattr(self, "status", "work")
        counts = f"{self.iterations} iterations, work {self.work:.3g}"
        return f"{type(self).__name__}({status}, {counts}, {self.seconds:.3g} s)"

    @classmethod
    def of(cls, progress: SolverState, n_rows: int, n_vertices: int) -> Work:
        """The work that `progress` counts, for numbers of rows and support vectors."""
        return Work(
            iterations=progress.iteration,
            kernel_evaluations=progress.kernel_evaluations,
            work=progress.kernel_evaluations / (n_rows * n_vertices),
            rows_read=progress.rows_read,
            bytes_read=progress.bytes_read,
            seconds=progress.elapsed_s,
        )


@dataclass(frozen=True, repr=False)
class Solution(Work):
    """Result of `ooc_fw.solve`: the weights, their gap to the best weights, and the work.

    Gaps are relative, and None if they were not computed.
    """

    status: Status  # how the run ended
    method: str  # name of the step rule
    lmo: str  # name of the oracle
    choice: str  # one line: the method and oracle, and why they were taken
    alpha: Float64Array  # weights of the support vectors, which sum to 1, shape (n_support,)
    labels: Int8Array  # their labels, -1 or +1, shape (n_support,)
    rows: Int64Array  # their row numbers in the source, shape (n_support,)
    support_vectors: Rows  # the rows themselves, shape (n_support, n_features)
    objective: float  # rho / 2
    rho: float  # margin of the model before scaling
    sampled_gap: float | None  # over the rows drawn last; an estimate, no certificate
    certified_gap: float | None  # over all rows, from the last certificate
    pair_gap: float | None  # (largest gradient of the support - least of all) / rho
    steps: dict[StepKind, int]  # number of steps of each kind
    # Bounds on the best objective with margin 1, from the last certificate: the primal objective,
    # and the dual one. No model is better by more than (primal - dual) / primal.
    primal: float | None = None
    dual: float | None = None
    signal: int | None = None  # number of the signal that interrupted the run
    penalties: Float64Array | None = None  # (n_support,), if rows have their own penalties
