"""Decides whether a model is exact or has landmarks, and how many: `plan_model`.

An exact model pays off if it has few support vectors. Exact models of samples show how many it
would have. If there are many, rows that no model learned compare an exact model of a sample with
landmarks that learn from more rows, and choose gamma. With a time limit, all these trials together
take at most a tenth of it, and the number of landmarks doubles until the time is over.
"""

from __future__ import annotations

import logging
import math
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ooc_fw.data.rows import Float64Array, Int64Array, rows_bytes
from ooc_fw.data.sources import RowSource
from ooc_fw.data.views import SubsetSource
from ooc_fw.kernels.functions import Kernel
from ooc_fw.landmarks import LandmarkSolution, LandmarkStart
from ooc_fw.model.machines import PairSolution, union_of_rows
from ooc_fw.options import START_ROWS, TrainOptions
from ooc_fw.problem import ClassificationProblem, Problem
from ooc_fw.solver.plan import Plan, Session, few_rows, plan_exact, sizes_of, workload
from ooc_fw.solver.surroundings import Deadline
from ooc_fw.system.errors import DeferredInterrupt, InputError, OutOfTimeError
from ooc_fw.system.memory import (
    MemoryPlan,
    OverLimitError,
    Workload,
    least_bytes,
    matrix_bytes,
    memory_total,
    plan_columns,
    plan_landmarks,
    plan_memory,
)
from ooc_fw.training.gamma import MOST_ROWS, climb, differ, is_free
from ooc_fw.training.many import Candidate, draw_trial, search
from ooc_fw.training.pairs import train_exact
from ooc_fw.training.samples import CLASS_ROWS, loaded, random_rows, with_all_classes
from ooc_fw.training.tasks import model_of, takes_all_rows

logger = logging.getLogger(__name__)

MOST_SUPPORT = 40_000
"""Number of support vectors for which an exact model is worth its time with any number of rows."""

LANDMARKS = 5_000
"""Number of landmarks, if the limits allow it."""

FIRST_SHARE = 0.6
"""Share of a time limit for the model itself, if held-out rows need the rest."""

MANY_CLASSES = 40
"""Number of classes from which landmarks take the place of pairs of classes, unless rows are few.

With 50 classes and 30,000 rows, 1,000 landmarks have fewer errors in less time; with 26 classes and
15,000 rows, pairs do.
"""

_MANY_SIDES = 1e6  # rows times classes up to which pairs of many classes take little time

_QUICK_VALUES = 1e10
"""Rows times support vectors up to which an exact model takes no longer than a comparison saves."""

_QUICK_PACE = 1e8
"""Squares of rows that exact models learn in a second, even if the rows are noisy or wide."""

_EXACT_VALUES = 1e11
"""Rows times support vectors up to which an exact model takes all rows, if it is the better kind:
about as long as landmarks may take. Six rounds of blocks compute these kernel values once each."""

SAMPLE_ROWS = 2_000, 8_000
"""Rows of the samples; the second sample is solved only if the first one does not decide."""

_READING_VALUES = 6e9  # most kernel values in a reading, unless the user asks for more
_FIRST_LANDMARKS = 500  # of the first model, if the number of landmarks doubles
_FIRST_VALUES = 1e8  # most kernel values in a reading for this first model
_TRIAL_TIME = 0.07  # share of a time limit that all trials may take, beside those of gamma
_TIME_WITHOUT_GAMMA = 0.1  # the same share if there are too many classes for a search of gamma
_SAMPLE_TOL = 1e-2  # relative gap of models of samples
_FEWEST_PARTS = 2  # fewest rows of landmarks in a comparison, for each row of the exact model
_MOST_PARTS = 4  # most of them: then both models compute about as many kernel values
_COMPARED_LANDMARKS = 500  # of the model that an exact model of a sample is compared with


# -- memory --------------------------------------------------------------------------------------


def check_memory(source: RowSource, options: TrainOptions, **learned: Any) -> int:
    """Number of threads for reading labels and statistics, which happens before there is a plan.

    OverLimitError if no model will fit into memory; `learned` is as for `sizes_of`.
    """
    if is_linear(getattr(options, "kernel", ""), options):
        work = sizes_of(source, options, in_unit=False, **learned)
        return plan_columns(work, options.memory_limit, memory_total(), options.threads).max_threads
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
    most = min(LANDMARKS, int(_READING_VALUES / work.n_rows))
    return min(max(START_ROWS, most), work.n_rows)


def most_support(n_rows: int) -> int:
    """Number of support vectors up to which an exact model of so many rows needs no comparison."""
    return n_rows if n_rows**2 <= _QUICK_VALUES else MOST_SUPPORT


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


def is_linear(kernel: str, options: TrainOptions) -> bool:
    """Whether a classification or regression with a kernel of this name has weights of columns."""
    given = options.landmarks is not None or why_exact(options) is not None
    return kernel == "linear" and not given


def _plan_linear(problem: Problem, options: TrainOptions, session: Session) -> Plan:
    """Plan the weights of all columns."""
    work = workload(problem, options, session)
    memory = plan_columns(work, options.memory_limit, memory_total(), options.threads)
    kind = f"linear: {problem.source.n_features} weights and a bias"
    if problem.n_classifiers > 1:
        kind += " for each class"
    kind += "; --exact and --landmarks N weigh rows instead"
    within = replace(options, threads=memory.max_threads)
    return Plan(within, options, memory, kind, linear=True)


def plan_model(problem: Problem, options: TrainOptions, session: Session) -> Plan:
    """Plan the model of any task: whether it is exact or has landmarks.

    The linear kernel has weights of columns unless the options say otherwise.
    It has landmarks if the user asks for them, if there are many classes and not few rows, or if
    the exact model would have more support vectors than `most_support` or than memory holds, or
    would take longer than the time limit, and if held-out rows do not prefer an exact model of as
    many rows as fit. A method of exact models, or another stopping test, makes it exact. A
    regression always has landmarks; if there are few rows, all of them are landmarks.

    OverLimitError if the memory limit is too small; InputError for options without meaning.
    """
    check_options(problem.task, options)
    n_rows = problem.source.n_rows
    if problem.task != "novelty" and is_linear(problem.kernel.name, options):
        return _plan_linear(problem, options, session)
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
    n_classes = problem.n_classifiers
    if n_classes >= MANY_CLASSES and n_rows * n_classes > _MANY_SIDES:
        return _plan_many_classes(problem, options, session)
    memory = _least_memory(workload(problem, options, session), options)
    if memory.landmarks:
        why = ": an exact model does not fit into memory"
        return plan_span(problem, options, session, None, why)
    # Blocks give half of the memory for kernel values to further vertices: `Run.begin_blocks`.
    room = memory.max_vertices + memory.kernel_values // 2 // memory.work.vertex_bytes
    room = int(room / _largest_pair(problem))
    if room < n_rows:
        room = int(0.8 * room)  # the rest is for vertices that come and go
    why = f"there are {n_rows} rows"
    enough = min(most_support(n_rows), room)
    seconds = session.deadline(options).left()
    if n_rows > enough or (n_rows > SAMPLE_ROWS[0] and n_rows**2 > _QUICK_PACE * seconds):
        within = replace(options, threads=memory.max_threads)
        trials = Trials(problem, within, session)
        found = trials.expect_support(enough, memory.max_vertices)
        if found is None:
            return _plan_many(trials, trials.why_none, 0.0)
        expected, basis, seconds = found
        why = f"{basis}, so that about {expected} are expected of {n_rows} rows"
        left = session.deadline(options).left() * (FIRST_SHARE if problem.holds_out else 1.0)
        if expected > enough or seconds > left:
            limit = f"more than {enough}" if expected > enough else "too many for the time limit"
            most_values = _EXACT_VALUES if problem.task == "classification" else 0
            values = min(most_values / n_rows / expected, left / seconds)
            # Both rows and support vectors of a part are a share of all.
            share = min(1.0, math.sqrt(values), room / expected)
            return _plan_many(trials, f"{why}, {limit}", share)
    kind = f"exact: {why}; --landmarks N takes landmarks"
    return plan_exact(problem, options, session, memory=memory, kind=kind)


def _largest_pair(problem: Problem) -> float:
    """Share of the rows that one classifier learns: those of the two largest classes, or all."""
    counts = np.sort(np.bincount(problem.row_classes))
    return float(counts[-2:].sum() / counts.sum())


def _plan_many_classes(problem: Any, options: TrainOptions, session: Session) -> Plan:
    """Plan landmarks for many classes, or weights of columns if held-out rows prefer them.

    C at its default, without weights, is a matter of these rows, too.
    """
    n_classes = problem.n_classifiers
    why = f": with {n_classes} classes, --exact would train {math.comb(n_classes, 2):,} pairs"
    free = options.C == TrainOptions.C and problem.penalties is None
    found = None
    if free and is_free(problem.kernel, options):
        with suppress(OutOfTimeError):
            found = Trials(problem, options, session).compare_many()
    if found is None:
        return plan_span(problem, options, session, None, why)
    best, words = found
    within = replace(options, C=best.C)
    learned = best.applied_to(problem)
    if best.kernel.name == "linear":
        plan = _plan_linear(learned, within, session)
        plan = replace(plan, kind=f"{plan.kind}; {words}; --gamma auto keeps the kernel")
    else:
        plan = plan_span(learned, within, session, None, f"{why}; {words}")
    weight = "balanced" if best.balanced else None
    return replace(plan, kernel=best.kernel, searched=True, class_weight=weight)


def _plan_many(trials: Trials, why: str, share: float) -> Plan:
    """Plan a model whose exact form has too many support vectors, or would take too long.

    Held-out rows choose between landmarks and an exact model of a `share` of the rows. A checkpoint
    belongs to all rows, so that it needs landmarks if the share is below 1.
    """
    problem: Any = trials.problem
    options = trials.options
    session = trials.session
    n_part = int(share * problem.source.n_rows)
    comparable = isinstance(problem, ClassificationProblem) and n_part > 4 * SAMPLE_ROWS[1]
    found = None
    if comparable and (share == 1 or session.checkpoint is None):
        with suppress(OutOfTimeError):
            found = trials.compare(share)
    if found is not None:
        problem = replace(problem, kernel=found.kernel)
        if found.exact:
            return _plan_part(problem, options, session, n_part, found)
        why = f"{why}; {found.words}"
    try:
        plan = plan_span(problem, options, session, None, f": {why}; --exact takes the optimum")
    except OverLimitError:
        kind = f"exact: {why}, but there is no memory for landmarks"
        plan = plan_exact(problem, options, session, kind=kind)
    return replace(plan, kernel=problem.kernel)


def _plan_part(
    problem: Any, options: TrainOptions, session: Session, n_part: int, found: Compared
) -> Plan:
    """Plan an exact model of `n_part` random rows, or of all."""
    source = problem.source
    kind = f"exact: {found.words}"
    if n_part == source.n_rows:
        return replace(plan_exact(problem, options, session, kind=kind), kernel=problem.kernel)
    ids = random_rows(problem, n_part, options.seed)
    part = problem.subset(SubsetSource(source, ids), ids)
    kind += f"; it learns {len(ids)} of {source.n_rows} rows, --exact learns all"
    plan = plan_exact(part, options, session, kind=kind)
    return replace(plan, kernel=problem.kernel, rows=ids)


# -- trials --------------------------------------------------------------------------------------


class Compared(NamedTuple):
    """The better of two kinds of models."""

    exact: bool  # whether the exact model is better
    kernel: Kernel  # with its best gamma
    words: str  # the errors of both


class Trials:
    """Models of samples of a problem, by which its model is chosen, within their share of time.

    A trial that is not over in time raises OutOfTimeError.
    """

    def __init__(self, problem: Problem, options: TrainOptions, session: Session) -> None:
        self.problem: Any = problem
        self.options = options
        self.session = session
        self.n_classes = int(problem.row_classes.max()) + 1
        without_gamma = CLASS_ROWS * self.n_classes > MOST_ROWS
        share = _TIME_WITHOUT_GAMMA if without_gamma else _TRIAL_TIME
        seconds = None if options.max_time is None else share * options.max_time
        self.deadline = Deadline(seconds, time.perf_counter())
        # A trial has no time limit of its own, with which it would end with a poor model.
        self.within = TrainOptions(
            C=options.C,
            tol=_SAMPLE_TOL,
            threads=options.threads,
            seed=options.seed,
            certify=False,
        )
        self.why_none = "there is no time to try an exact model"

    def expect_support(self, enough: int, most: int) -> tuple[int, str, float] | None:
        """Estimate the support vectors of an exact model, from samples of up to `most` rows.

        Returns the number, its basis in words, and the seconds that the model would take at the
        pace of the last sample. One sample suffices if its share of support vectors predicts at
        most `enough` of them, and an end in time. Otherwise a power law through the numbers of two
        samples is extrapolated. None if no sample is large enough, or trained in time.
        """
        n_rows = self.problem.source.n_rows
        left = self.session.deadline(self.options).left()
        models: list[tuple[int, int, float]] = []  # rows, support vectors and seconds of samples
        for wanted in sorted({min(number, most, n_rows) for number in SAMPLE_ROWS}):
            if wanted < CLASS_ROWS * self.n_classes:
                self.why_none = f"a sample says nothing of {self.n_classes} classes"
                continue
            began = time.perf_counter()
            try:
                size, support = self._solve_sample(wanted)
            except OutOfTimeError:
                break
            seconds = time.perf_counter() - began
            models.append((size, support, seconds))
            if support * n_rows <= enough * size and seconds * (n_rows / size) ** 2 <= left:
                break
        if not models:
            return None
        power = 1.0
        size, support, seconds = models[-1]
        if len(models) > 1:
            small, few, _ = models[0]
            power = float(np.clip(np.log(support / few) / np.log(size / small), 0.0, 1.0))
        expected = min(n_rows, round(support * (n_rows / size) ** power))
        words = [f"of {rows} rows has {vectors} support vectors" for rows, vectors, _ in models]
        seconds *= n_rows * expected / (size * support)
        return expected, f"the model {' and '.join(words)}", seconds

    def _solve_sample(self, size: int) -> tuple[int, int]:
        """Train exactly on about `size` rows: their number, and that of the support vectors."""
        sample = self._load(random_rows(self.problem, size, self.options.seed))
        return sample.source.n_rows, len(union_of_rows(self._train(sample)))

    def _load(self, ids: Int64Array) -> Any:
        return loaded(self.problem, ids, self.deadline.check)

    def _train(self, sample: Any) -> list[PairSolution]:
        """Train exactly on some rows of the problem; KeyboardInterrupt after a signal."""
        self.session.say(f"trying an exact model of {sample.source.n_rows:,} rows")
        alone = self._beside(sample)
        wanted = self.within
        if self.options.memory_limit is not None:
            # The run needs at least as much memory later: these rows may become its vertices.
            least = least_bytes(workload(sample, wanted, alone))
            wanted = replace(wanted, memory_limit=max(self.options.memory_limit, least))
        pairs = train_exact(sample, plan_exact(sample, wanted, alone), alone)
        for pair in pairs:
            if pair.solution.signal is not None:
                raise KeyboardInterrupt(pair.solution.signal)
        return pairs

    def _beside(self, sample: Problem) -> Session:
        """A session for a sample, beside which the problem stays in memory."""
        source = self.problem.source
        held = sample.source.decoded_bytes + self.problem.row_classes.nbytes
        held += source.in_memory * source.decoded_bytes
        return Session((lambda _: self.deadline.check(),), held=held)

    # -- comparison ------------------------------------------------------------------------------

    def compare(self, share: float) -> Compared | None:
        """Compare an exact model of a sample with landmarks of two to four times as many rows.

        If the exact model of the run learns a small `share` of the rows, so does that of the
        sample. Rows that neither learned judge them. Unless gamma is given, it rises as long as the
        exact model gets better. None if the rows are few.
        """
        problem = self.problem
        parts = 1 + min(_MOST_PARTS, max(_FEWEST_PARTS, 1 / share))
        n_pool = few_rows(problem.source, int(parts * SAMPLE_ROWS[1]))
        pool = np.random.default_rng(self.options.seed).permutation(
            random_rows(problem, n_pool, self.options.seed)
        )
        n_each = int(len(pool) / parts)
        if n_each < CLASS_ROWS * self.n_classes:
            return None
        learned = with_all_classes(problem, pool[n_each:])
        more = self._load(learned)
        few = self._load(with_all_classes(problem, pool[-n_each:]))
        judges = self._load(np.setdiff1d(pool[:n_each], learned))

        def errors_of(kernel: Kernel) -> Float64Array:
            sample = replace(few, kernel=kernel)
            return self._errors(sample, self._train(sample), judges)

        tried = {problem.kernel: errors_of(problem.kernel)}
        if is_free(problem.kernel, self.options):
            climb(tried, errors_of)
        *_, best = tried
        least = min(tried.values(), key=np.sum)
        if differ(tried[best], least, 2.0):
            best = next(kernel for kernel in tried if tried[kernel] is least)
        # Else the last one is not clearly worse, and more rows bear a narrower kernel.
        of_landmarks = {
            kernel: float(self._errors(sample, self._train_span(sample, self.within), judges).sum())
            for kernel in (problem.kernel, best)
            for sample in [replace(more, kernel=kernel)]
        }
        other = min(of_landmarks, key=lambda kernel: of_landmarks[kernel])
        of_exact = float(tried[best].sum())
        words = (
            f"of {len(judges.codes)} new rows, an exact model of {len(few.codes)} rows errs on "
            f"{100 * of_exact:.1f} % (gamma {best.gamma:.4g}), and {_COMPARED_LANDMARKS} landmarks "
            f"of {len(learned)} rows err on {100 * of_landmarks[other]:.1f} % (gamma "
            f"{other.gamma:.4g})"
        )
        exact = float(least.sum()) < of_landmarks[other]
        return Compared(exact, best if exact else other, words)

    def compare_many(self) -> tuple[Candidate, str] | None:
        """The best kernel and penalties for many classes, and a sentence about it.

        A model of all rows has a smaller C, so that the sum of all penalties is that of the trial.
        None if the rows are few, or if there is no time.
        """
        trial = draw_trial(self.problem, self.options.seed, self.deadline.check)
        if trial is None:
            return None
        sample, judges = trial
        # With a small C, the loss of a useless model is hardly larger than that of the best.
        fine = replace(self.within, tol=TrainOptions.tol, certify=True)

        def errors_of(candidate: Candidate) -> Float64Array:
            problem = candidate.applied_to(sample)
            options = self.within if candidate == default else replace(fine, C=candidate.C)
            return self._errors(problem, self._train_span(problem, options), judges)

        default = Candidate(self.problem.kernel, self.options.C, balanced=False)
        tried = search(default, trial, errors_of)
        if default not in tried:
            return None  # weights of columns alone may be useless
        best = min(tried, key=lambda candidate: tried[candidate])
        words = (
            f"of {len(judges.codes)} new rows of {sample.n_classes} classes, "
            f"{best.kernel.name} ({best}) errs on {100 * tried[best]:.1f} %"
        )
        if best != default:
            words += f", and {default.kernel.name} ({default}) on {100 * tried[default]:.1f} %"
            share = len(sample.codes) / self.problem.source.n_rows
            best = best._replace(C=share * best.C)
        return best, words

    def _errors(self, sample: Any, found: Any, judges: Any) -> Float64Array:
        """Share of each judge, by penalty, if the model of a sample gets it wrong, else 0."""
        model = model_of(sample, self.options.C, found)
        threads = self.options.threads
        values = model.decision_function(judges.source, threads=threads, labels_only=True)
        wrong = model.class_places(values) != judges.codes
        shares = np.ones(len(wrong)) if judges.penalties is None else judges.penalties
        return np.asarray(wrong * (shares / shares.sum()))

    def _train_span(self, sample: Any, options: TrainOptions) -> LandmarkSolution:
        """Train with a few landmarks on a sample; KeyboardInterrupt after a signal.

        The linear kernel has weights of all columns.
        """
        alone = self._beside(sample)
        within = replace(options, memory_limit=self.options.memory_limit)
        if sample.kernel.name == "linear":
            what = "a linear model"
            plan = _plan_linear(sample, within, alone)
        else:
            number = min(_COMPARED_LANDMARKS, sample.source.n_rows)
            what = f"{number:,} landmarks"
            plan = plan_span(sample, within, alone, number, "")
        self.session.say(f"trying {what} of {sample.source.n_rows:,} rows, C {options.C:.3g}")
        with DeferredInterrupt() as interrupt:
            _, found = train_span(sample, plan, replace(alone, interrupt=interrupt))
        if interrupt.noted is not None:
            raise KeyboardInterrupt(interrupt.noted)
        return found


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
    all_rows = plan.landmarks == problem.source.n_rows and not plan.linear
    whole = problem.task == "regression" and all_rows
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
    assert solution.landmarks is not None
    held = rows_bytes(solution.landmarks) + matrix_bytes(before)
    work = replace(work, held_bytes=work.held_bytes + held)
    most = min(2 * before, 30_000, work.n_rows // 4)
    if most <= before or session.deadline(plan.given).left() <= 0:
        return None
    try:
        memory = _landmark_memory(work, plan.given, before + 1, most)
    except OverLimitError:
        return None
    return _plan_of(memory, plan.given, f": there is time for more than {before}", grows=True)
