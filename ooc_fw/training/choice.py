"""Whether a model is exact or has landmarks, and how many; see `choose`."""

from __future__ import annotations

import bisect
import math
import os
from dataclasses import dataclass, replace
from typing import TypeAlias

from ooc_fw.data.labels import encode_labels, label_values
from ooc_fw.data.rows import AnyArray, Int64Array
from ooc_fw.data.sources import RowSource
from ooc_fw.options import START_ROWS, TrainOptions
from ooc_fw.problem import ClassificationProblem, RegressionProblem, classifiers_of
from ooc_fw.solver.session import Session
from ooc_fw.solver.setup import few_rows, workload
from ooc_fw.solver.shell import load_checkpoint
from ooc_fw.system.errors import InputError
from ooc_fw.system.memory import (
    PROGRAM_BYTES,
    LandmarkPlan,
    MemoryPlan,
    OverLimitError,
    Workload,
    least_bytes,
    memory_total,
    plan_landmarks,
    plan_memory,
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


AnyProblem: TypeAlias = ClassificationProblem | RegressionProblem


@dataclass(frozen=True)
class Choice:
    """Number of landmarks, None for an exact model; and a line that says why."""

    landmarks: int | None
    reason: str

    def settle(self, options: TrainOptions) -> TrainOptions:
        """Options that ask for what was chosen."""
        return replace(options, landmarks=self.landmarks, exact=self.landmarks is None)


def plan_training(work: Workload, options: TrainOptions) -> MemoryPlan | LandmarkPlan:
    """Memory of the model that will be trained.

    That is an exact one unless landmarks are asked for; or the fewest landmarks, where there is no
    room for an exact one and none was asked for. It takes no memory itself.

    Raises
    ------
    OverLimitError
        When there is no room; it names the smallest limit with which there is, for either model.
    """
    refused = []
    if options.landmarks is None:
        try:
            return plan_memory(work, options.memory_limit, memory_total())
        except OverLimitError as error:
            if _why_exact(options) is not None:
                raise
            refused.append(error)
    try:
        return plan_span(work, options, options.landmarks or START_ROWS)
    except OverLimitError as error:
        raise min([*refused, error], key=lambda each: each.needed) from None


def plan_span(
    work: Workload, options: TrainOptions, fewest: int, wanted: int | None = None
) -> LandmarkPlan:
    """Memory of as many landmarks as there is room for, from `fewest` to `wanted`."""
    fewest = min(fewest, work.n_rows)
    wanted = None if wanted is None else min(wanted, work.n_rows)
    limit, available = options.memory_limit, memory_total()
    return plan_landmarks(work, limit, available, fewest, wanted, options.threads)


def read_classes(
    source: RowSource, options: TrainOptions, *, weighted: bool = False
) -> tuple[AnyArray, Int64Array, MemoryPlan | LandmarkPlan]:
    """Classes and codes as `encode_labels` gives them, and the plan of the model.

    OverLimitError is raised before the codes of the rows take memory, if there is no room for it.
    """
    work = replace(workload(source, options), weighted=weighted)
    try:
        plan_training(work, options)  # of two classes
    except OverLimitError:
        room = (options.memory_limit or 0) - PROGRAM_BYTES
        if source.label_bytes > max(room, PROGRAM_BYTES // 4):
            raise  # what is kept of the labels would exceed the limit before they are counted
        n_classes = len(label_values(source))
        plan_training(replace(work, n_classifiers=classifiers_of(n_classes)), options)
        raise
    classes, codes = encode_labels(source)
    work = replace(work, n_classifiers=classifiers_of(len(classes)))
    return classes, codes, plan_training(work, options)


def choose(problem: ClassificationProblem, options: TrainOptions, session: Session) -> Choice:
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
    if options.landmarks is not None:
        return _as_asked(problem, options, session)
    work = workload_of(problem, options, session)
    plan = plan_training(work, options)
    options = replace(options, threads=min(options.threads, plan.max_threads))
    if isinstance(plan, LandmarkPlan):
        n_landmarks = _affordable(problem, options, session, _speed(problem, options))
        needed = f"{-(-least_bytes(work) >> 20)}MiB"
        why = f"an exact model takes {needed} of memory at least"
        return Choice(n_landmarks, f"{n_landmarks} landmarks: {why}")
    limit = min(options.max_support or MOST_SUPPORT, plan.max_vertices)
    if n_rows <= limit and (options.max_time is None or n_rows <= SAMPLE_ROWS[0]):
        return Choice(None, f"exact: there are {n_rows} rows; --landmarks N takes landmarks")
    support = expect_support(problem, options, session, limit, plan.max_vertices)
    seconds, speed = 0.0, _speed(problem, options)
    if speed is not None:
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
    try:
        n_landmarks = _affordable(problem, options, session, speed)
    except OverLimitError:
        return Choice(None, "exact: there is no memory for landmarks")
    many = ""
    if speed is not None and n_landmarks < _affordable(problem, options, session, None):
        many = f", as many as --max-time {options.max_time:g} allows"
    return Choice(n_landmarks, f"{n_landmarks} landmarks{many}: {why}; --exact takes the optimum")


def choose_number(problem: AnyProblem, options: TrainOptions, session: Session) -> int:
    """Number of landmarks: as asked, or as many as the limits of memory and time afford."""
    if options.landmarks is not None:
        return landmark_plan(problem, options, session, options.landmarks).landmarks
    return _affordable(problem, options, session, _speed(problem, options))


def _as_before(
    problem: ClassificationProblem,
    options: TrainOptions,
    session: Session,
    path: str | os.PathLike[str],
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
    assert options.landmarks is not None
    wanted = landmark_plan(problem, options, session, options.landmarks).landmarks
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
    fewest = min(START_ROWS, wanted)
    most = landmark_plan(problem, options, session, fewest, wanted).landmarks
    if speed is None:
        return most
    left = _LANDMARK_TIME * session.deadline(options).left()

    def late(n_landmarks: int) -> bool:
        return landmark_seconds(problem, n_landmarks, speed) > left

    fewest = min(fewest, most)
    return fewest + bisect.bisect_left(range(fewest + 1, most + 1), True, key=late)


def landmark_seconds(problem: AnyProblem, n_landmarks: int, speed: float) -> float:
    """About the time of a run with landmarks, at so many kernel values a second."""
    n_rows = problem.source.n_rows
    rows = LANDMARK_PASSES * n_rows + _SAMPLE_PASSES * min(n_rows, _SAMPLE_ROWS * n_landmarks)
    algebra = _ALGEBRA_SECONDS * problem.n_classifiers * (n_landmarks / 1000) ** 3
    return rows * n_landmarks / speed + algebra


def landmark_plan(
    problem: AnyProblem,
    options: TrainOptions,
    session: Session,
    fewest: int,
    wanted: int | None = None,
) -> LandmarkPlan:
    """Memory of as many landmarks as there is room for; see `plan_span`."""
    return plan_span(workload_of(problem, options, session), options, fewest, wanted)


def workload_of(problem: AnyProblem, options: TrainOptions, session: Session) -> Workload:
    """The sizes that the memory of a run depends on."""
    return replace(
        workload(problem.source, options, session.held),
        n_classifiers=problem.n_classifiers,
        weighted=problem.penalties is not None,
        targets=isinstance(problem, RegressionProblem),
    )


def _speed(problem: AnyProblem, options: TrainOptions) -> float | None:
    """Kernel values a second, where a time limit asks for them."""
    if options.max_time is None:
        return None
    rows = problem.source.read(0, few_rows(problem.source, _SPEED_ROWS))
    return kernel_speed(problem.kernel, rows, options.threads)[0]
