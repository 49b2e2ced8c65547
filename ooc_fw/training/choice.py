"""Whether a model is exact or has landmarks, and how many; see `choose`."""

from __future__ import annotations

import bisect
import math
import os
from dataclasses import dataclass, replace
from typing import TypeAlias

from ooc_fw.data.sources.base import CHUNK_BYTES
from ooc_fw.options import START_ROWS, TrainOptions
from ooc_fw.problem import Problem, RegressionProblem
from ooc_fw.solver.checkpoint import load_checkpoint
from ooc_fw.solver.session import Session
from ooc_fw.solver.setup import plan_run, workload
from ooc_fw.system.errors import InputError
from ooc_fw.system.memory import (
    Workload,
    format_bytes,
    landmark_terms,
    landmarks_that_fit,
    memory_total,
)
from ooc_fw.training.estimate import SAMPLE_ROWS, exact_seconds, expect_support, kernel_speed

MOST_SUPPORT = 40_000
"""Support vectors beyond which an exact model is not worth its time, and rows up to which a model
is exact unless a limit of size or time is given."""

LANDMARKS = 5_000
"""Landmarks, where the limits allow as many. For k > 2 classes this is divided by sqrt(k): each of
them has matrices of its own between the landmarks."""

LANDMARK_PASSES = 15
"""Passes over all rows of a typical run with landmarks."""

_SAMPLE_PASSES, _SAMPLE_ROWS = 40, 20  # those over a sample, and its rows for each landmark

_PASS_VALUES = (
    6e9  # kernel values of a pass over all rows that are not exceeded without being asked
)

_PATIENCE = 2.0  # times of an exact run over the time limit up to which it is begun
_LANDMARK_TIME = 0.8  # share of the time limit that a run with landmarks may be expected to take
_ALGEBRA_SECONDS = 0.5  # of its steps on a sample with 1,000 landmarks; grows with the third power
_SPEED_ROWS = 2_048  # between which kernel values are computed to measure their speed


AnyProblem: TypeAlias = Problem | RegressionProblem


@dataclass(frozen=True)
class Choice:
    """Number of landmarks, None for an exact model; and a line that says why."""

    landmarks: int | None
    reason: str

    def settle(self, options: TrainOptions) -> TrainOptions:
        """Options that ask for what was chosen."""
        return replace(options, landmarks=self.landmarks, exact=self.landmarks is None)


def choose(problem: Problem, options: TrainOptions, session: Session) -> Choice:
    """Choose between the exact model and landmarks.

    Landmarks are taken where they are asked for, and where the exact model would have more support
    vectors than `max_support`, than `MOST_SUPPORT` or than memory holds, or would take far longer
    than the time limit. How many it would have is estimated from samples (`expect_support`). An
    exact method or another stopping test mean an exact model. A run that is resumed is what it was.

    Raises
    ------
    InputError
        When there is no memory for the landmarks, or the checkpoint cannot be read.
    """
    n_rows = problem.source.n_rows
    if session.resume is not None:
        return _as_before(problem, options, session, session.resume)
    reason = _why_exact(options)
    if reason is not None and options.landmarks is None:
        return Choice(None, reason)
    plan = plan_run(problem.source, options, session.held)
    options = replace(options, threads=min(options.threads, plan.max_threads))
    if options.landmarks is not None:
        return _as_asked(problem, options, session)
    limit = min(options.max_support or MOST_SUPPORT, plan.max_vertices)
    if n_rows <= limit and (options.max_time is None or n_rows <= SAMPLE_ROWS[0]):
        return Choice(None, f"exact: there are {n_rows} rows; --landmarks N takes landmarks")
    support = expect_support(problem, options, session, limit, plan.max_vertices)
    seconds, speed = 0.0, None
    if options.max_time is not None:
        rows = problem.source.read(0, min(_SPEED_ROWS, n_rows))
        speed, _ = kernel_speed(problem.kernel, rows, options.threads)
        seconds = exact_seconds(n_rows, support.expected, speed)
    about = f"{support.basis}, so that about {support.expected} are expected of {n_rows} rows"
    if support.late:
        why = "a sample alone takes a tenth of the time limit"
    elif support.expected > limit:
        why = f"{about}, more than {_limit_in_words(options, limit)}"
    elif speed is not None and seconds > _PATIENCE * session.deadline(options).left():
        why = f"{about}, which takes about {seconds:.0f} s, more than --max-time allows"
    else:
        return Choice(None, f"exact: {about}; --landmarks N takes landmarks")
    n_landmarks = _affordable(problem, options, session, speed)
    if n_landmarks < min(START_ROWS, n_rows):
        return Choice(None, "exact: there is no memory for landmarks")
    many = ""
    if speed is not None and n_landmarks < _affordable(problem, options, session, None):
        many = f", as many as --max-time {options.max_time:g} allows"
    return Choice(n_landmarks, f"{n_landmarks} landmarks{many}: {why}; --exact takes the optimum")


def choose_number(problem: AnyProblem, options: TrainOptions, session: Session) -> int:
    """Number of landmarks: as asked, or as many as the limits of memory and time afford."""
    plan = plan_run(problem.source, options, session.held)
    options = replace(options, threads=min(options.threads, plan.max_threads))
    if options.landmarks is not None:
        found = _as_asked(problem, options, session).landmarks
        assert found is not None
        return found
    speed = None
    if options.max_time is not None:
        rows = problem.source.read(0, min(_SPEED_ROWS, problem.source.n_rows))
        speed, _ = kernel_speed(problem.kernel, rows, options.threads)
    return _affordable(problem, options, session, speed)


def _as_before(
    problem: Problem, options: TrainOptions, session: Session, path: str | os.PathLike[str]
) -> Choice:
    """As in the run of a checkpoint."""
    identity, _ = load_checkpoint(path)
    before = identity["options"]["landmarks"]
    if options.landmarks not in (None, before) or (options.exact and before is not None):
        given = "--exact" if options.exact else "--landmarks"
        kind = "an exact model" if before is None else f"a model with {before} landmarks"
        raise InputError(
            f"the checkpoint {os.fspath(path)} is of {kind}; leave out {given}, or train without "
            f"--resume"
        )
    if before is None:
        return Choice(None, "exact: as in the run of the checkpoint")
    return _as_asked(
        problem, replace(options, landmarks=before), session, "as in the run of the checkpoint"
    )


def _as_asked(
    problem: AnyProblem, options: TrainOptions, session: Session, reason: str = "as asked"
) -> Choice:
    wanted = options.landmarks
    assert wanted is not None
    wanted = min(wanted, problem.source.n_rows)
    most = _most_by_memory(problem, options, session)
    if wanted > most:
        size = sum(landmark_memory(problem, options, session, wanted).values())
        raise InputError(
            f"{wanted} landmarks take {format_bytes(size)} of memory, and there is room for "
            f"{most}; give --landmarks {most}, or more --memory"
        )
    return Choice(wanted, f"{wanted} landmarks: {reason}; --exact takes the optimum")


def _why_exact(options: TrainOptions) -> str | None:
    """Why the model is exact whatever the rows are; None if that depends on them."""
    reasons = {
        "as asked": options.exact,
        f"method {options.method}": options.method != "auto",
        f"{options.lmo} oracle": options.lmo != "auto",
        f"stopping by the {options.stopping} gap": options.stopping != "relative",
    }
    given = [reason for reason, holds in reasons.items() if holds]
    return f"exact: {given[0]}" if given else None


def _limit_in_words(options: TrainOptions, limit: int) -> str:
    if options.max_support == limit:
        return f"--max-support {limit}"
    if limit == MOST_SUPPORT:
        return f"the {limit} that an exact run takes on"
    return f"the {limit} that memory holds"


def _affordable(
    problem: AnyProblem, options: TrainOptions, session: Session, speed: float | None
) -> int:
    """Largest number of landmarks within the limits of size, memory and time."""
    n_rows = problem.source.n_rows
    by_default = min(LANDMARKS / math.sqrt(problem.n_classifiers), _PASS_VALUES / n_rows)
    wanted = options.max_support or max(START_ROWS, int(by_default))
    most = min(wanted, _most_by_memory(problem, options, session), n_rows)
    if speed is None:
        return most
    left = _LANDMARK_TIME * session.deadline(options).left()

    def late(n_landmarks: int) -> bool:
        return landmark_seconds(problem, n_landmarks, speed) > left

    fewest = min(START_ROWS, most)
    return fewest + bisect.bisect_left(range(fewest + 1, most + 1), True, key=late)


def landmark_seconds(problem: AnyProblem, n_landmarks: int, speed: float) -> float:
    """About the time of a run with landmarks, at so many kernel values a second."""
    n_rows = problem.source.n_rows
    rows = LANDMARK_PASSES * n_rows + _SAMPLE_PASSES * min(n_rows, _SAMPLE_ROWS * n_landmarks)
    algebra = _ALGEBRA_SECONDS * problem.n_classifiers * (n_landmarks / 1000) ** 3
    return rows * n_landmarks / speed + algebra


def landmark_memory(
    problem: AnyProblem, options: TrainOptions, session: Session, n_landmarks: int
) -> dict[str, int]:
    """Bytes that a run with so many landmarks takes at most, part by part."""
    work = _workload(problem, options, session)
    return landmark_terms(work, problem.n_classifiers, n_landmarks, options.threads)


def _most_by_memory(problem: AnyProblem, options: TrainOptions, session: Session) -> int:
    work = _workload(problem, options, session)
    k = problem.n_classifiers
    return landmarks_that_fit(work, k, options.memory_limit, memory_total(), options.threads)


def _workload(problem: AnyProblem, options: TrainOptions, session: Session) -> Workload:
    """Sizes of a run with landmarks, whose blocks of rows are those of a pass."""
    work = workload(problem.source, options, session.held)
    weighted = problem.penalties is not None
    return replace(work, block_bytes=2 * CHUNK_BYTES, weighted=weighted)
