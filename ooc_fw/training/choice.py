"""Decides whether a model is exact or has landmarks, and how many: `plan_model`.

An exact model pays off if it has few support vectors. Exact models of samples show how many it
would have. With a time limit, the number of landmarks doubles until the time is over.
"""

from __future__ import annotations

import logging
import math
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from ooc_fw.data.rows import rows_bytes
from ooc_fw.data.sampling import choose_sampler
from ooc_fw.data.sources import RowSource, rows_source
from ooc_fw.landmarks import LandmarkSolution, LandmarkStart
from ooc_fw.model.machines import union_of_rows
from ooc_fw.options import START_ROWS, TrainOptions
from ooc_fw.problem import Problem
from ooc_fw.solver.plan import Plan, Session, plan_exact, sizes_of, workload
from ooc_fw.solver.state import Status
from ooc_fw.system.errors import InputError, OutOfTimeError
from ooc_fw.system.memory import (
    MemoryPlan,
    OverLimitError,
    Workload,
    least_bytes,
    memory_total,
    plan_landmarks,
    plan_memory,
)
from ooc_fw.training.pairs import train_exact
from ooc_fw.training.tasks import takes_all_rows

logger = logging.getLogger(__name__)

MOST_SUPPORT = 40_000
"""Number of support vectors for which an exact model is worth its time with any number of rows."""

LANDMARKS = 5_000
"""Number of landmarks, if the limits allow it. For k > 2 classes it is divided by sqrt(k), since
each class needs matrices of its own between the landmarks."""

FIRST_SHARE = 0.6
"""Share of a time limit for the model itself, if held-out rows need the rest."""

_EXACT_VALUES = 6e10
"""Rows times support vectors up to which an exact model takes about as long as `LANDMARKS`: six
rounds of blocks compute these kernel values once each."""

SAMPLE_ROWS = 2_000, 8_000
"""Rows of the samples; the second sample is solved only if the first one does not decide."""

_PASS_VALUES = 6e9  # most kernel values in a pass, unless the user asks for more
_FIRST_LANDMARKS = 500  # of the first model, if the number of landmarks doubles
_FIRST_VALUES = 1e8  # most kernel values in a pass for this first model
_SAMPLE_TIME = 0.1  # share of the remaining time that a sample may take


# -- memory --------------------------------------------------------------------------------------


def check_memory(source: RowSource, options: TrainOptions, **learned: Any) -> int:
    """Number of threads for reading labels and statistics, which happens before there is a plan.

    OverLimitError if no model will fit into memory; `learned` is as for `sizes_of`.
    """
    # The kernel is not known yet. Values outside [0, 1] take more memory: the plan checks again.
    return _least_memory(sizes_of(source, options, in_unit=True, **learned), options).max_threads


def _least_memory(work: Workload, options: TrainOptions) -> MemoryPlan:
    """Memory plan of an exact model; if it does not fit, of a landmark model.

    An OverLimitError names the limit that an exact model needs, or the limit that landmarks need if
    it is at most half of that.
    """
    refused = None
    if options.landmarks is None:
        try:
            memory = plan_memory(work, options.memory_limit, memory_total())
            return replace(memory, max_threads=min(options.threads, memory.max_threads))
        except OverLimitError as error:
            if why_exact(options) is not None:
                raise
            refused = error
    most = options.landmarks or _usual_landmarks(work)
    try:
        return _landmark_memory(work, options, options.landmarks or START_ROWS, most)
    except OverLimitError as error:
        if refused is not None and refused.needed < 2 * error.needed:
            raise refused from None
        raise


def _landmark_memory(work: Workload, options: TrainOptions, fewest: int, most: int) -> MemoryPlan:
    """Memory plan of a model with `fewest` to `most` landmarks, or all rows if there are fewer."""
    numbers = min(fewest, work.n_rows), min(most, work.n_rows)
    return plan_landmarks(work, options.memory_limit, memory_total(), *numbers, options.threads)


def _usual_landmarks(work: Workload) -> int:
    """Number of landmarks if time and memory suffice."""
    most = min(LANDMARKS / math.sqrt(work.n_classifiers), _PASS_VALUES / work.n_rows)
    return min(max(START_ROWS, int(most)), work.n_rows)


def most_support(n_rows: int) -> int:
    """Number of support vectors up to which an exact model of so many rows is worth its time."""
    return max(MOST_SUPPORT, int(_EXACT_VALUES / n_rows))


# -- the choice ----------------------------------------------------------------------------------


def check_options(task: str, options: TrainOptions) -> None:
    """Raise InputError for options that have no meaning for a task."""
    reason = why_exact(replace(options, exact=False))
    if task == "regression" and reason is not None:
        raise InputError(
            f"regression learns weights of landmarks by Newton steps, for which {reason} has no "
            f"meaning; leave it out (landmarks= or --landmarks N sets the size of the model)"
        )


def why_exact(options: TrainOptions) -> str | None:
    """Why the options alone make the model exact; None if this depends on the rows."""
    reasons = {
        "an exact model is wanted": options.exact,
        f"method {options.method}": options.method != "auto",
        f"the {options.lmo} oracle": options.lmo != "auto",
        "the start from the farthest pair": options.start != "random",
        f"stopping by the {options.stopping} gap": options.stopping != "relative",
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def plan_model(problem: Problem, options: TrainOptions, session: Session) -> Plan:
    """Plan the model of any task: whether it is exact or has landmarks.

    It has landmarks if the user asks for them, if the exact model would have more support vectors
    than `most_support` or than memory holds, or if it would take far longer than the time limit.
    A method of exact models, or another stopping test, makes it exact. A regression always has
    landmarks; if there are few rows, all of them are landmarks.

    OverLimitError if the memory limit is too small; InputError for options without meaning.
    """
    check_options(problem.task, options)
    n_rows = problem.source.n_rows
    if problem.task == "regression":
        if takes_all_rows(n_rows, options):
            kind = f"exact: there are {n_rows} rows; --landmarks N takes landmarks"
            with suppress(*([] if options.exact else [OverLimitError])):
                return replace(plan_span(problem, options, session, n_rows, ""), kind=kind)
        return plan_span(problem, options, session, options.landmarks, f" of {n_rows} rows")
    reason = why_exact(options)
    if reason is not None:
        return plan_exact(problem, options, session, kind=f"exact: {reason}")
    if options.landmarks is not None:
        return plan_span(problem, options, session, options.landmarks, ": their number is given")
    memory = _least_memory(workload(problem, options, session), options)
    if memory.landmarks:
        why = ": an exact model does not fit into memory"
        return plan_span(problem, options, session, None, why)
    most = most_support(n_rows)
    # Blocks give half of the memory for kernel values to further vertices: `Run.begin_blocks`.
    room = memory.max_vertices + memory.kernel_values // 2 // memory.work.vertex_bytes
    if room < min(most, n_rows):
        most = int(0.8 * room)  # the rest is for vertices that come and go
    why = f"there are {n_rows} rows"
    if n_rows > most or (options.max_time is not None and n_rows > SAMPLE_ROWS[0]):
        within = replace(options, threads=memory.max_threads)
        expected, basis, seconds = expect_support(
            problem, within, session, most, memory.max_vertices
        )
        why = f"{basis}, so that about {expected} are expected of {n_rows} rows"
        left = session.deadline(options).left() * (FIRST_SHARE if problem.holds_out else 1.0)
        if expected > most or seconds > left:
            limit = f"more than {most}" if expected > most else "too many for the time limit"
            way_out = f": {why}, {limit}; --exact takes the optimum"
            try:
                return plan_span(problem, options, session, None, way_out)
            except OverLimitError:
                why = "there is no memory for landmarks"
    kind = f"exact: {why}; --landmarks N takes landmarks"
    return plan_exact(problem, options, session, memory=memory, kind=kind)


# -- samples -------------------------------------------------------------------------------------


def expect_support(
    problem: Problem, options: TrainOptions, session: Session, enough: int, most: int
) -> tuple[int, str, float]:
    """Estimate the support vectors of an exact model, from samples of up to `most` rows.

    Returns the number, its basis in words, and the seconds that the model would take at the pace of
    the last sample. One sample suffices if its share of support vectors predicts at most `enough`
    of them, and an end in time. Otherwise a power law through the numbers of two samples is
    extrapolated.
    """
    n_rows = problem.source.n_rows
    left = session.deadline(options).left()
    models: list[tuple[int, int]] = []  # rows and support vectors of samples
    for wanted in SAMPLE_ROWS:
        if models and min(wanted, most, n_rows) <= models[-1][0]:
            break
        began = time.perf_counter()
        size, support, late = _solve_sample(problem, min(wanted, most, n_rows), options, session)
        seconds = math.inf if late else time.perf_counter() - began
        models.append((size, support))
        fits = support * n_rows <= enough * size and seconds * (n_rows / size) ** 2 <= left
        if late or fits:
            break
    power = 1.0
    if len(models) > 1:
        small, few = models[0]
        power = float(np.clip(np.log(support / few) / np.log(size / small), 0.0, 1.0))
    expected = min(n_rows, round(support * (n_rows / size) ** power))
    words = [f"of {rows} rows has {vectors} support vectors" for rows, vectors in models]
    seconds *= n_rows * expected / (size * support)
    return expected, f"the model {' and '.join(words)}", seconds


def _solve_sample(
    problem: Problem, size: int, options: TrainOptions, session: Session
) -> tuple[int, int, bool]:
    """Train on a sample: its rows, its support vectors, and whether the time was too short."""
    source = problem.source
    codes = problem.row_classes
    stored = source.n_rows, source.chunk_rows, source.shuffled, source.in_memory
    ids = choose_sampler(*stored, codes).sample(size, np.random.default_rng(options.seed))
    lacking = np.setdiff1d(np.arange(codes.max() + 1), codes[ids])  # add one row of these classes
    ids = np.union1d(ids, [int(np.argmax(codes == code)) for code in lacking]).astype(np.int64)
    small = rows_source(source.take(ids), source.name)
    sample: Any = problem.subset(small, ids)
    held = small.decoded_bytes + codes.nbytes + source.in_memory * source.decoded_bytes
    alone = Session(held=held)
    wanted = TrainOptions(C=options.C, tol=1e-2, threads=options.threads)
    if options.memory_limit is not None:
        # The run needs at least as much memory later, since these rows may become its vertices.
        least = least_bytes(workload(sample, wanted, alone))
        wanted = replace(wanted, memory_limit=max(options.memory_limit, least))
    if options.max_time is not None:
        left = session.deadline(options).left()
        wanted = replace(wanted, max_time=max(1e-9, _SAMPLE_TIME * left))
    try:
        pairs = train_exact(sample, plan_exact(sample, wanted, alone), alone)
    except OutOfTimeError:
        return len(ids), len(ids), True
    solutions = [pair.solution for pair in pairs]
    for solution in solutions:
        if solution.signal is not None:
            raise KeyboardInterrupt(solution.signal)
    late = any(solution.status is Status.TIME_LIMIT for solution in solutions)
    return len(ids), len(union_of_rows(pairs)), late


# -- models with landmarks -----------------------------------------------------------------------


def plan_span(
    problem: Problem, options: TrainOptions, session: Session, n_landmarks: int | None, why: str
) -> Plan:
    """Plan a model with `n_landmarks` landmarks (at most all rows), or None for a number that fits.

    `why` explains the number in words. OverLimitError if memory has no room for the landmarks.
    """
    work = workload(problem, options, session)
    if n_landmarks is not None:
        memory = _landmark_memory(work, options, n_landmarks, n_landmarks)
        return _plan_of(memory, options, why, grows=False)
    # A larger model begins worse than the one before; a checkpoint might save it in that state.
    grows = options.max_time is not None and session.checkpoint is None
    most = _usual_landmarks(work)
    if grows:
        most = max(START_ROWS, min(_FIRST_LANDMARKS, int(_FIRST_VALUES / work.n_rows)))
        why += "; then more, again and again, while there is time"
    return _plan_of(_landmark_memory(work, options, START_ROWS, most), options, why, grows=grows)


def _plan_of(memory: MemoryPlan, options: TrainOptions, why: str, *, grows: bool) -> Plan:
    # There may be fewer rows than `START_ROWS`, which is the least number that options allow.
    given = replace(options, landmarks=max(memory.landmarks, START_ROWS), exact=False)
    within = replace(given, threads=memory.max_threads)
    return Plan(within, given, memory, f"{memory.landmarks} landmarks{why}", grows=grows)


def train_span(
    problem: Problem, plan: Plan, session: Session, warm: Any = None
) -> tuple[Plan, LandmarkSolution]:
    """Train with landmarks as planned; if the plan grows, double them until the time is over.

    Each model begins with the weights of the one before. The smaller model is returned, with its
    plan, if there is no time for the larger one, or if the objective does not fall.
    """
    from ooc_fw.landmarks.solve import solve_landmarks  # imports SciPy, which takes 0.1 s

    start = warm if isinstance(warm, LandmarkStart) else None
    # If all rows are landmarks, as in a small regression, the gap is measured to the exact optimum.
    whole = problem.task == "regression" and plan.landmarks == problem.source.n_rows
    solution = solve_landmarks(problem, plan, session, start, to_optimum=whole)
    # If less than half of the landmarks are in use, the others depend on these: more add little.
    while plan.grows and solution.status.reached and 2 * len(solution.rows) > plan.memory.landmarks:
        larger = _larger_plan(problem, plan, session, solution)
        if larger is None:
            break
        logger.info("%s", larger.kind)
        start = LandmarkStart(solution.rows, solution.beta, solution, stays=True)
        try:
            found = solve_landmarks(problem, larger, session, start)
        except (OutOfTimeError, KeyboardInterrupt):
            break
        if not found.status.reached or _objective(found) >= _objective(solution):
            break
        plan = larger
        solution = found
    return plan, solution


def _objective(solution: LandmarkSolution) -> float:
    return math.inf if solution.primal is None else float(solution.primal.sum())


def _larger_plan(
    problem: Problem, plan: Plan, session: Session, solution: LandmarkSolution
) -> Plan | None:
    """Plan a model with twice as many landmarks; None if there is no memory or time for it."""
    before = plan.memory.landmarks
    work = workload(problem, plan.given, session)
    work = replace(work, held_bytes=work.held_bytes + rows_bytes(solution.landmarks))
    most = int(min(2 * before, 30_000 / math.sqrt(work.n_classifiers), work.n_rows / 4))
    if most <= before or session.deadline(plan.given).left() <= 0:
        return None
    try:
        memory = _landmark_memory(work, plan.given, before + 1, most)
    except OverLimitError:
        return None
    return _plan_of(memory, plan.given, f": there is time for more than {before}", grows=True)
