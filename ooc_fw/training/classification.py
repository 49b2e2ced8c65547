"""Classification: whether a model is exact or has landmarks, how many, and their memory.

An exact model is worth its time while it has few support vectors, which the exact models of samples
tell: see `plan_classes`.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np

from ooc_fw.data.labels import encode_labels, label_values
from ooc_fw.data.rows import Codes, Int64Array, rows_bytes
from ooc_fw.data.sampling import choose_sampler
from ooc_fw.data.sources import RowSource, rows_source
from ooc_fw.landmarks import LandmarkSolution, LandmarkStart
from ooc_fw.model.pairs import PairSolution, union_of_rows
from ooc_fw.model.record import Model
from ooc_fw.options import START_ROWS, TrainOptions
from ooc_fw.problem import ClassificationProblem, Problem, classifiers_of
from ooc_fw.solver.loop import solve_problem
from ooc_fw.solver.plan import Plan, Session, plan_exact, sizes_of, workload
from ooc_fw.solver.state import Status
from ooc_fw.system.errors import OutOfTimeError
from ooc_fw.system.interrupt import interruption, signal_of
from ooc_fw.system.memory import (
    MemoryPlan,
    OverLimitError,
    Workload,
    exact_bytes,
    landmark_bytes,
    least_bytes,
    memory_total,
    plan_landmarks,
    plan_memory,
    program_bytes,
)
from ooc_fw.training.fit import Fit, Task, WarmStart, train_landmarks
from ooc_fw.training.pairs import train_pairs

logger = logging.getLogger(__name__)

MOST_SUPPORT = 40_000
"""Support vectors beyond which an exact model is not worth its time, and rows up to which a model
is exact unless a limit of size or time is given."""

LANDMARKS = 5_000
"""Landmarks, where the limits allow as many. For k > 2 classes this is divided by sqrt(k): each of
them has matrices of its own between the landmarks."""

MOST_LANDMARKS, _ROWS_EACH = 30_000, 4
"""Landmarks at most, and rows for each, while a time limit lets their number grow."""

_PASS_VALUES = 6e9  # most kernel values in a pass, unless the user asks for more
_FIRST_LANDMARKS, _FIRST_VALUES = 500, 1e8  # of the first model of a growing one, and in its pass
_ROOM = 0.8  # share of the vertices that fit, up to which support vectors may be expected
_GAIN = 1.1  # factor of the number of landmarks from which on a larger model is worth while

SAMPLE_ROWS = 2_000, 8_000
"""Rows of the samples that are solved; the second one only where the first does not decide."""
_SAMPLE_TOL = 1e-2  # relative gap of the models of samples
_SAMPLE_TIME = 0.1  # share of the time left for each of these models


def threads_before_plan(source: RowSource, options: TrainOptions, **learned: int) -> int:
    """Threads of passes for labels and statistics, which come before there is a plan.

    OverLimitError is raised where no model will fit into memory; `learned` is as for `sizes_of`.
    """
    # The kernel is not known yet: the plan itself may refuse one whose values do not lie in [0, 1].
    return _exact_or_fewest(sizes_of(source, options, in_unit=True, **learned), options).max_threads


def _exact_or_fewest(work: Workload, options: TrainOptions) -> MemoryPlan:
    """Memory of an exact model; else of the landmarks asked for, or the fewest.

    Landmarks take the place of an exact model that has no room where nothing else was asked for.
    OverLimitError, where there is no room for either, names a limit for an exact model unless that
    takes twice what landmarks do.
    """
    refused = []
    if options.landmarks is None:
        try:
            memory = plan_memory(work, options.memory_limit, memory_total())
            return replace(memory, max_threads=min(options.threads, memory.max_threads))
        except OverLimitError as error:
            if _why_exact(options) is not None:
                raise
            refused.append(error)
    try:
        asked = options.landmarks
        return _landmark_memory(work, options, asked or START_ROWS, asked or _usual_landmarks(work))
    except OverLimitError as error:
        near = [each for each in refused if each.needed < 2 * error.needed]
        raise (near or [error])[0] from None


def _landmark_memory(work: Workload, options: TrainOptions, fewest: int, most: int) -> MemoryPlan:
    """Memory of a model with so many landmarks, or with all rows where these are fewer."""
    numbers = min(fewest, work.n_rows), min(most, work.n_rows)
    return plan_landmarks(work, options.memory_limit, memory_total(), *numbers, options.threads)


class Classification(Task):
    """Two classes or more, in an exact model or in one with landmarks."""

    problem = ClassificationProblem

    def read(
        self, source: RowSource, options: TrainOptions, *, weighted: bool = False
    ) -> tuple[dict[str, Any], int]:
        try:
            threads_before_plan(source, options, weighted=weighted)
        except OverLimitError:
            room = (options.memory_limit or 0) - program_bytes()
            if source.label_bytes > max(room, program_bytes() // 4):
                raise  # the labels alone exceed the limit
            n_classifiers = classifiers_of(len(label_values(source)))
            threads_before_plan(source, options, weighted=weighted, n_classifiers=n_classifiers)
            raise
        classes, codes = encode_labels(source)
        learned: dict[str, Any] = {"n_classifiers": classifiers_of(len(classes))}
        threads = threads_before_plan(source, options, weighted=weighted, **learned)
        return {"codes": codes, "class_labels": classes}, threads

    def plan(self, problem: ClassificationProblem, options: TrainOptions, session: Session) -> Plan:
        return plan_classes(problem, options, session)

    def train(
        self, problem: ClassificationProblem, plan: Plan, session: Session, warm: WarmStart = None
    ) -> Fit:
        C = plan.options.C
        if plan.landmarks is None:
            weights = warm if isinstance(warm, Sequence) else None
            pairs = train_pairs(problem, plan, session, weights)
            solutions = [pair.solution for pair in pairs]
            return Fit(problem, plan, self.model_of(problem, C, pairs), solutions, gap_scope="all")
        plan, solution = solve_span(problem, plan, session, warm)
        model = self.model_of(problem, C, solution)
        return Fit(problem, plan, model, [solution], gap_scope="span")

    def model_of(self, problem: ClassificationProblem, C: float, solution: Any) -> Model:
        learned: dict[str, Any] = {"classes": problem.classes, "kernel": problem.kernel, "C": C}
        if isinstance(solution, LandmarkSolution):
            learned["penalties"] = problem.penalties
        elif problem.n_classes > 2:
            learned["vectors"] = problem.source.take(union_of_rows(solution))
        return Model.of(solution, problem.source, **learned)

    def facts(self, fit: Fit) -> dict[str, Any]:
        return {"n_classes": len(fit.model.classes)}


def plan_classes(problem: Problem, options: TrainOptions, session: Session) -> Plan:
    """Plan of a model of classes, one or more, exact or with landmarks.

    Landmarks are taken where they are asked for, and where the exact model would have more support
    vectors than `MOST_SUPPORT` or than memory holds, or would take far longer
    than the time limit. How many it would have is estimated from samples (`expect_support`). An
    exact method or another stopping test mean an exact model.
    """
    reason = _why_exact(options)
    if reason is not None:
        return plan_exact(problem, options, session, kind=reason)
    if options.landmarks is not None:
        why = ": as asked; --exact takes the optimum"
        return plan_span(problem, options, session, options.landmarks, why)
    work = workload(problem, options, session)
    n_rows, memory = work.n_rows, _exact_or_fewest(work, options)
    within = replace(options, threads=memory.max_threads)
    if memory.landmarks:
        needed = exact_bytes(work, MOST_SUPPORT)
        why = f": an exact model takes {-(-needed >> 20)}MiB of memory"
        return plan_span(problem, options, session, None, why)
    most, whose = MOST_SUPPORT, f"the {MOST_SUPPORT} that an exact run takes on"
    if memory.max_vertices < min(most, n_rows):
        most = int(_ROOM * memory.max_vertices)
        enough = exact_bytes(work, MOST_SUPPORT)
        whose = f"the {most} that memory holds (all fit in {-(-enough >> 20)}MiB)"

    def exact(why: str) -> Plan:
        return plan_exact(problem, options, session, memory=memory, kind=f"exact: {why}")

    if n_rows <= most and (options.max_time is None or n_rows <= SAMPLE_ROWS[0]):
        return exact(f"there are {n_rows} rows; --landmarks N takes landmarks")
    support = expect_support(problem, within, session, most, memory.max_vertices)
    left = math.inf if options.max_time is None else session.deadline(options).left()
    about = f"{support.basis}, so that about {support.expected} are expected of {n_rows} rows"
    if support.late:
        why = "the model of a small sample takes a tenth of the time limit"
    elif support.expected > most:
        why = f"{about}, more than {whose}"
    elif support.seconds > left:
        why = f"{about}, which would take longer than --max-time allows, at the pace of the sample"
    else:
        return exact(f"{about}; --landmarks N takes landmarks")
    try:
        why = f": {why}; --exact takes the optimum"
        return plan_span(problem, options, session, None, why)
    except OverLimitError:
        return exact("there is no memory for landmarks")


def plan_span(
    problem: Problem, options: TrainOptions, session: Session, n_landmarks: int | None, why: str
) -> Plan:
    """Plan of a model with so many landmarks, all rows if fewer, or as many as can be afforded.

    `why` says in words why so many. OverLimitError is raised where there is no room for them.
    """
    work = workload(problem, options, session)
    # A larger model is worse than the one before for a while, which a checkpoint would hold.
    saved = session.checkpoint is not None
    grows = n_landmarks is None and options.max_time is not None and not saved
    if n_landmarks is None:
        n_landmarks = most_landmarks(problem, options, session, grows)
        _warn_of_memory(work, options, n_landmarks)
    if grows:
        first = min(_FIRST_LANDMARKS, int(_FIRST_VALUES / work.n_rows))
        n_landmarks = min(n_landmarks, max(START_ROWS, first))
    memory = _landmark_memory(work, options, n_landmarks, n_landmarks)
    # Fewer cannot be asked for, but there may be fewer rows.
    given = replace(options, landmarks=max(memory.landmarks, START_ROWS), exact=False)
    within = replace(given, threads=memory.max_threads)
    more = "; then more, again and again, while there is time"
    kind = f"{memory.landmarks} landmarks{why}" + more * grows
    return Plan(within, given, memory, kind, grows=grows)


def solve_span(
    problem: Problem, plan: Plan, session: Session, warm: WarmStart = None
) -> tuple[Plan, LandmarkSolution]:
    """Train with landmarks as planned, and with more until a time limit is over.

    Each model begins with the one before, which stays if there is no time for the larger one, or
    if its objective is not smaller. The plan that is returned is that of the model.
    """
    solution = train_landmarks(problem, plan, session, warm)
    # If landmarks depend on each other, more of them hardly enlarge the span.
    while plan.grows and solution.status.reached and 2 * len(solution.rows) > plan.memory.landmarks:
        larger = _larger_plan(problem, plan, session, solution)
        if larger is None:
            break
        logger.info("%s", larger.kind)
        start = LandmarkStart(solution.rows, solution.beta, solution)
        number = None
        try:
            found = train_landmarks(problem, larger, session, start)
            number = found.signal
            better = found.status.reached and _objective(found) < _objective(solution)
        except OutOfTimeError:
            better = False
        except KeyboardInterrupt as interrupt:
            better = False
            number = signal_of(interrupt)
        if not better:
            return plan, replace(solution, signal=number)
        plan, solution = larger, found
    return plan, solution


def _objective(solution: LandmarkSolution) -> float:
    return math.inf if solution.primal is None else float(solution.primal.sum())


def _larger_plan(
    problem: Problem, plan: Plan, session: Session, solution: LandmarkSolution
) -> Plan | None:
    """Plan of a model with twice the landmarks, or as many as the limits allow; None if too few."""
    assert plan.landmarks is not None
    options = replace(plan.given, landmarks=None)
    held = workload(problem, options, session).held_bytes + rows_bytes(solution.landmarks)
    session = replace(session, held=held)
    with contextlib.suppress(OverLimitError):
        most = most_landmarks(problem, options, session, grows=True)
        n_landmarks = min(2 * plan.landmarks, most)
        if session.deadline(options).left() > 0 and n_landmarks >= _GAIN * plan.landmarks:
            why = f": there is time for more than {plan.landmarks}"
            return replace(plan_span(problem, options, session, n_landmarks, why), grows=True)
    return None


def _why_exact(options: TrainOptions) -> str | None:
    """Why the model is exact whatever the rows are; None if that depends on them."""
    reasons = {
        "as asked": options.exact,
        f"method {options.method}": options.method != "auto",
        f"{options.lmo} oracle": options.lmo != "auto",
        "start from the farthest pair": options.start != "random",
        f"stopping by the {options.stopping} gap": options.stopping != "relative",
    }
    given = [reason for reason, holds in reasons.items() if holds]
    return f"exact: {given[0]}" if given else None


def _usual_landmarks(work: Workload) -> int:
    """Number of landmarks if neither time nor memory is short."""
    most = min(LANDMARKS / math.sqrt(work.n_classifiers), _PASS_VALUES / work.n_rows)
    return min(max(START_ROWS, int(most)), work.n_rows)


def _warn_of_memory(work: Workload, options: TrainOptions, n_landmarks: int) -> None:
    """Warn if a memory limit leaves few landmarks, with one that gives a good model."""
    usual = _usual_landmarks(work)
    if options.memory_limit is None or 2 * n_landmarks >= usual:
        return
    good = landmark_bytes(work, usual)
    if work.n_rows <= MOST_SUPPORT:
        good = min(good, exact_bytes(work, work.n_rows))
    logger.warning(
        "memory has room for %d landmarks only, which may be too few for a good model; give "
        "--memory %dMiB",
        n_landmarks,
        -(-good >> 20),
    )


def most_landmarks(problem: Problem, options: TrainOptions, session: Session, grows: bool) -> int:
    """Largest number of landmarks within the limits of size and memory; it `grows` to more."""
    work = workload(problem, options, session)
    wanted = _usual_landmarks(work)
    if grows:
        alike = math.sqrt(problem.n_classifiers)
        wanted = max(wanted, int(min(MOST_LANDMARKS / alike, work.n_rows / _ROWS_EACH)))
    return _landmark_memory(work, options, min(START_ROWS, wanted), wanted).landmarks


@dataclass(frozen=True)
class Support:
    """Support vectors that an exact model may have; `basis` says in words how that is known."""

    expected: int
    basis: str
    seconds: float  # that the model would take at the pace of the largest sample
    late: bool = False  # whether a sample took too much of the time limit to tell much


def expect_support(
    problem: Problem, options: TrainOptions, session: Session, enough: int, most: int
) -> Support:
    """Support vectors of an exact model of `problem`, from exact models of samples of `most` rows.

    One sample is enough where its share of support vectors makes no more than `enough` of them.
    Else the power law through the numbers of two samples is extrapolated.
    """
    n_rows, late = problem.source.n_rows, False
    samples: list[tuple[int, int]] = []
    seconds = 0.0
    for wanted in SAMPLE_ROWS:
        size = min(wanted, most, n_rows)
        if samples and size <= samples[-1][0]:
            break
        began = perf_counter()
        size, support, late = _solve_sample(problem, size, options, session)
        if late and not samples:  # The time may have gone into compiling.
            began = perf_counter()
            size, support, late = _solve_sample(problem, size, options, session)
        seconds = perf_counter() - began
        samples.append((size, support))
        if late or support * n_rows <= enough * size:
            break
    size, support = samples[-1]
    power = 1.0
    if len(samples) > 1:
        small, few = samples[0]
        power = float(np.clip(np.log(support / few) / np.log(size / small), 0.0, 1.0))
    expected = min(n_rows, round(support * (n_rows / size) ** power))
    models = [f"of {rows} rows has {vectors} support vectors" for rows, vectors in samples]
    seconds *= n_rows * expected / (size * support)
    return Support(expected, f"the model {' and '.join(models)}", seconds, late)


def draw_sample(
    source: RowSource, codes: Codes, size: int, seed: int = 0
) -> tuple[RowSource, Int64Array]:
    """Random rows, with one at least of each class, and their increasing numbers."""
    stored = source.n_rows, source.chunk_rows, source.shuffled, source.in_memory
    sampler = choose_sampler(*stored, codes)
    ids = sampler.sample(size, np.random.default_rng(seed))
    counts = np.bincount(codes[ids], minlength=int(codes.max()) + 1)
    more = [np.argmax(codes == code) for code in np.flatnonzero(counts == 0)]
    ids = np.union1d(ids, np.array(more, dtype=np.int64))
    return rows_source(source.take(ids), source.name), ids


def _solve_sample(
    problem: Problem, size: int, options: TrainOptions, session: Session
) -> tuple[int, int, bool]:
    """Rows of a sample, support vectors of its model, and whether time did not suffice for it."""
    source, codes = problem.source, problem.row_classes
    small, ids = draw_sample(source, codes, size, options.seed)
    held = small.decoded_bytes + codes.nbytes
    held += source.decoded_bytes if source.in_memory else 0
    sample: Any = problem.subset(small, ids)
    alone = Session(held=held)
    wanted = TrainOptions(C=options.C, tol=_SAMPLE_TOL, threads=options.threads)
    if options.memory_limit is not None:
        # The plan of the run has room for these rows, if only as its vertices.
        least = least_bytes(workload(sample, wanted, alone))
        wanted = replace(wanted, memory_limit=max(options.memory_limit, least))
    if options.max_time is not None:
        left = session.deadline(options).left()
        if left <= 0:
            return len(ids), len(ids), True
        wanted = replace(wanted, max_time=_SAMPLE_TIME * left)
    try:
        plan = plan_exact(sample, wanted, alone)
        if sample.task == "novelty":
            pairs = [PairSolution(0, 1, solve_problem(sample.binary(), plan, alone))]
        else:
            pairs = train_pairs(sample, plan, alone)
    except OutOfTimeError:
        return len(ids), len(ids), True
    for pair in pairs:
        if pair.solution.signal is not None:
            raise interruption(pair.solution.signal)
    late = any(pair.solution.status is Status.TIME_LIMIT for pair in pairs)
    return len(ids), len(union_of_rows(pairs)), late
