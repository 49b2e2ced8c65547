"""Exact classification: a binary classifier for each pair of classes (one-versus-one).

The predicted class is the one with the most votes of classifiers, see `ooc_fw.model.machines`.

A pair with few rows needs no samples, no active set and no readings of a file. All its rows are
vertices, and kernel values are float64, so that the last gradient also gives the certificate.
Several pairs are trained at once, one on each thread, if memory has room for their kernel values.

References
----------
Frandi, Nanculef, Suykens, A PARTAN-accelerated Frank-Wolfe algorithm for large-scale SVM
classification, section on multi-class problems: one-versus-one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ooc_fw._core.rules import DROPS, N_COUNTS, Limits, Rule, take_steps
from ooc_fw._core.steps import KernelBlock, Vertices
from ooc_fw.certificate.sweep import Certificate, certificate_of_all
from ooc_fw.data.rows import Float64Array, Int64Array, concat_rows, rows_bytes, take_rows
from ooc_fw.data.views import SubsetSource
from ooc_fw.kernels.arithmetic import Operand, choose_arithmetic
from ooc_fw.kernels.engine import Engine
from ooc_fw.kernels.functions import FLOAT64_UNIT
from ooc_fw.model.machines import PairSolution, class_pairs, places_among
from ooc_fw.model.partition import Partition, partition_classes
from ooc_fw.problem import FLOAT64_GAP, StoppingTest, relative_gap
from ooc_fw.solver.loop import solve_problem
from ooc_fw.solver.plan import Plan, Session, plan_exact
from ooc_fw.solver.state import Phase, Solution, SolverState, Status, StepKind, Stop, Warm
from ooc_fw.solver.steps import STEP_RULES
from ooc_fw.system.errors import DeferredInterrupt
from ooc_fw.system.memory import OverLimitError, memory_total, plan_memory, program_bytes
from ooc_fw.system.threads import limit_this_thread
from ooc_fw.training.means import ClassMeans
from ooc_fw.training.stages import GROWTH, STAGE_TOL, WORK_POWER, Stage, stages_of

logger = logging.getLogger(__name__)

_MOST_ROWS = 2500  # largest pair that is trained with all its rows as vertices
_STEPS_PER_ROW = 200  # steps for each row of such a pair between two computations of the gradient


def train_exact(
    problem: Any,
    plan: Plan,
    session: Session,
    warm: Warm | Sequence[Solution | None] | None = None,
) -> list[PairSolution]:
    """Train the exact classifiers of a problem: one for each pair, or one for novelty.

    `warm` is the warm start of a single classifier, or the list of solutions of several, of which
    those that reached their gap are final. Solutions of more than two classes hold no support
    vectors, since the classifiers share them.

    Several classifiers are trained in stages, see `ooc_fw.training.stages`. If a run ends early,
    the classifiers that it did not train are those of the stage before, or the means of classes.
    OutOfTimeError if the time is over before there are rows to train on.
    """
    if problem.task == "novelty" or problem.n_classes == 2:
        start = warm if isinstance(warm, Warm) else None
        return [PairSolution(0, 1, solve_problem(problem.binary(), plan, session, start))]
    given = [] if warm is None or isinstance(warm, Warm) else warm
    # Shared by all pairs, so that no solution is lost.
    interrupt = session.interrupt or DeferredInterrupt()
    with nullcontext() if session.interrupt else interrupt:
        found = _in_stages(problem, plan, replace(session, interrupt=interrupt), given)
    pairs = class_pairs(problem.n_classes)
    return [PairSolution(*pair, one) for pair, one in zip(pairs, found, strict=True)]


def _in_stages(
    problem: Any, plan: Plan, session: Session, given: Sequence[Solution | None]
) -> list[Solution]:
    """Train all pairs in one stage after another, until something ends the run."""
    final = {k: one for k, one in enumerate(given) if one is not None and one.status.reached}
    before = {k: one for k, one in enumerate(given) if one is not None and k not in final}
    known = np.unique(np.concatenate([[], *(one.rows for one in before.values())]).astype(np.int64))
    found = [one for one in given if one is not None]
    has_model = 0 < len(found) == len(given)
    n_learned = 0

    def check() -> None:
        """End the reading of rows if the run is over; without a model, only time ends it."""
        deadline = session.deadline(plan.given)
        if not has_model:
            deadline.check()
        elif session.interrupt is not None and session.interrupt.noted is not None:
            raise Stop(Status.INTERRUPTED)
        elif deadline.left() <= 0:
            raise Stop(Status.TIME_LIMIT)

    for stage in stages_of(problem, plan, known):
        part = problem
        if stage.rows is not None:
            part = problem.subset(SubsetSource(problem.source, stage.rows), stage.rows)
        over: Status | None
        try:
            with ExitStack() as opened:
                with problem.source.limited(check):
                    partition = opened.enter_context(partition_classes(part, plan))
                training = _Training(partition, stage, plan, session, final, before)
                training.run()
                found = training.found()
                has_model = True
                over = training.over
                n_new = training.n_ended
        except Stop as stop:
            over = stop.status
            n_new = len(final)
            found = [_unfinished(one, over) for one in found]
        if over is not None:
            words = "%d of %d classifiers have learned %d rows; the others %s"
            others = "are the means of classes"
            if n_learned:
                others = f"have learned {n_learned}"
            elif known.size:
                others = "have the weights with which the run began"
            logger.warning(words, n_new, len(found), part.source.n_rows, others)
            break
        before = {k: one for k, one in enumerate(found) if k not in final}
        n_learned = part.source.n_rows
    return found


def _unfinished(solution: Solution, status: Status) -> Solution:
    """The weights of a classifier for which no gap over all rows is known."""
    return replace(
        solution,
        status=status,
        sampled_gap=None,
        certified_gap=None,
        pair_gap=None,
        primal=None,
        dual=None,
    )


class _Training:
    """Trains the classifiers: the pairs with few rows first, in parallel, then the others in turn.

    `plan` is the plan for all rows; each pair makes a plan of its own from the given options.
    Callbacks hear of the classifiers in training, one call at a time. Pairs begin with the weights
    of `before`.
    """

    def __init__(
        self,
        partition: Partition,
        stage: Stage,
        plan: Plan,
        session: Session,
        final: Mapping[int, Solution],
        before: Mapping[int, Solution],
    ) -> None:
        self.partition = partition
        self.stage = stage
        given = plan.given
        if not stage.last:
            tol = max(given.tol, STAGE_TOL) if given.stopping == "relative" else given.tol
            plan = plan.with_options(tol=tol, certify=False)
        self.plan = plan
        self.session = session
        self.deadline = session.deadline(given)
        self.interrupt = session.interrupt or DeferredInterrupt()
        self.pairs = class_pairs(partition.whole.n_classes)
        self.final = final
        self.before = before
        self.solutions = dict(final)
        counts = np.array([len(rows) for rows in partition.rows])
        self.n_rows = np.array([counts[a] + counts[b] for a, b in self.pairs])
        self.work = self.n_rows**WORK_POWER / (self.n_rows**WORK_POWER).sum()
        self.done = float(self.work[[*final]].sum())
        self.running: dict[int, float] = {}  # work that is done for pairs in training
        self.stopped = False  # whether a callback asked for the end
        self.one_at_a_time = threading.RLock()  # for callbacks and checkpoints
        self.means: ClassMeans | None = None  # made if a pair has no other weights

    def run(self) -> None:
        """Train all pairs that are not final, until the run is over."""
        self._plan_of(int(self.n_rows.argmax()))  # OverLimitError if the largest pair does not fit
        self._solve_small()
        # The larger pairs come last and share the time that the others leave.
        if self.why_over() is not None:
            return
        order = np.argsort(self.n_rows, kind="stable").tolist()
        numbers = [k for k in order if k not in self.solutions]
        found = {k: self._plan_beside_others(k) for k in numbers}
        together = {k: plan for k, plan in found.items() if plan is not None}
        if len(together) > 1:
            self._solve_together(together)
        for k in numbers:
            if k not in self.solutions and self.why_over() is None:
                self._finish(k, self._solve(k, self._plan_of(k)))

    @property
    def n_ended(self) -> int:
        """Number of pairs that have learned the rows of this stage."""
        return sum(one.status.reached for one in self.solutions.values())

    @property
    def over(self) -> Status | None:
        """Why the run ends with this stage before all pairs have ended; None if it does not."""
        complete = self.stage.last and len(self.solutions) == len(self.pairs)
        return None if complete else self.why_over()

    def found(self, running: Mapping[int, Solution] | None = None) -> list[Solution]:
        """The best solution of each pair; one of all rows has gaps if its training has ended.

        Pairs in training may have their weights in `running`.
        """
        found = []
        status = self.over or Status.RUNNING
        for k, pair in enumerate(self.pairs):
            new = self.solutions.get(k)
            if new is None and running is not None:
                new = running.get(k)
            old = self.before.get(k)
            if new is None and old is None:
                self.means = self.means or ClassMeans(self.partition, self.plan)
                old = self._of_all(self.means.solution(*pair, status))
            better = old is None or (new is not None and (new.status.reached or new.rho <= old.rho))
            best = new if better else old
            assert best is not None
            ended = better and k in self.solutions and (self.stage.last or k in self.final)
            found.append(best if ended else _unfinished(best, status))
        return found

    def _of_all(self, solution: Solution) -> Solution:
        """A solution with the numbers of its rows in the whole data set, and without vectors."""
        rows = solution.rows
        none = take_rows(solution.support_vectors, np.empty(0, dtype=np.int64))
        if self.stage.rows is not None:
            rows = self.stage.rows[rows]
        return replace(solution, rows=rows, support_vectors=none)

    def _start(self, k: int, rows: Int64Array) -> Warm | None:
        """The weights with which a pair begins; `rows` are those of the pair in this stage."""
        before = self.before.get(k)
        if before is None:
            return None
        if self.stage.rows is not None:
            rows = self.stage.rows[rows]
        return Warm(places_among(rows, before.rows), before.alpha, before)

    # -- pairs of few rows -----------------------------------------------------------------------

    def _solve_small(self) -> None:
        """Train the pairs with few rows in parallel, unless options ask for another way."""
        options = self.plan.given
        small = np.flatnonzero(self.n_rows <= _MOST_ROWS).tolist()
        numbers = [k for k in small if k not in self.solutions]
        usual = STEP_RULES[self.plan.options.method].takes_many and options.start == "random"
        usual = usual and options.lmo == "auto" and options.max_iter is None
        if not usual or not numbers:
            return
        codes = {code for k in numbers for code in self.pairs[k]}
        # All rows are held in RAM, and twice for a moment.
        held = self.partition.held_bytes
        taken = program_bytes(held) + held + 2 * self.partition.whole.source.decoded_bytes
        taken += 8 * sum(len(self.partition.rows[code]) ** 2 for code in codes)
        # A kernel value of a pair takes 20 bytes, with the copies that are made of it.
        each = 20 * int(self.n_rows[numbers].max()) ** 2
        limit = options.memory_limit or memory_total() // 2
        threads = min(options.threads, (limit - taken) // each)
        # With a memory limit all pairs must be small: plans of larger pairs have no room for these.
        if threads < 1 or (options.memory_limit is not None and len(small) < len(self.pairs)):
            return
        sources = self.partition.sources
        rows = {code: sources[code].read(0, sources[code].n_rows) for code in codes}
        kernel = self.partition.whole.kernel
        with (
            Engine(kernel, 1, choose_arithmetic(kernel, concat_rows([*rows.values()]))) as engine,
            ThreadPoolExecutor(threads, initializer=limit_this_thread) as pool,
        ):
            few = {
                code: _FewRows(engine, engine.prepare(x, exact=True)) for code, x in rows.items()
            }
            shared = engine.evaluations  # count with the first pair that is finished
            solve = partial(self._solve_few, few)
            solutions = pool.map(solve, numbers) if threads > 1 else map(solve, numbers)
            try:
                for k, found in zip(numbers, solutions, strict=True):
                    if found is not None:
                        found = replace(found, kernel_evaluations=found.kernel_evaluations + shared)
                        shared = 0
                        self._finish(k, found)
            except BaseException:
                self.stopped = True  # so that other threads begin no more pairs
                raise

    def _solve_few(self, few: dict[int, _FewRows], k: int) -> Solution | None:
        """Solution of a pair; None if its certificate fails the test, or if training is over."""
        if self.why_over() is not None:
            return None
        started = time.perf_counter()
        first, second = (few[code] for code in self.pairs[k])
        rows = np.concatenate([self.partition.rows[code] for code in self.pairs[k]])
        n = len(first.rows)
        m = len(rows)
        every = self.partition.whole.penalties
        penalties = np.full(m, self.plan.given.C) if every is None else every[rows]
        alpha = np.zeros(m)
        start = self._start(k, rows)
        if start is not None:
            alpha[start.rows] = start.alpha
        else:
            for of_class in (alpha[:n], alpha[n:]):
                of_class[:: -(-len(of_class) // 60)] = 1.0  # begin with up to 60 rows of each class
        values, error = _signed_values(first, second)
        trained = self._optimise(values, penalties, alpha, error)
        if trained is None:
            return None
        certificate, n_rounds, drops = trained
        support = np.flatnonzero(alpha)
        evaluations = n * (m - n)
        if start is not None and start.work is not None:
            evaluations += start.work.kernel_evaluations
        method = self.plan.options.method
        certify = self.plan.given.certify
        solution = Solution(
            status=Status.CONVERGED if certify else Status.SAMPLED,
            method=method,
            lmo="full",
            choice=f"method {method}, full oracle: all {m} rows are vertices",
            alpha=alpha[support],
            labels=np.where(support < n, -1, 1).astype(np.int8),
            rows=rows[support],
            support_vectors=first.rows.values[:0],
            objective=certificate.objective,
            rho=certificate.rho,
            sampled_gap=certificate.certified_gap - certificate.rounding,
            certified_gap=certificate.certified_gap if certify else None,
            pair_gap=certificate.pair_gap if certify else None,
            primal=certificate.primal if certify else None,
            dual=certificate.dual if certify else None,
            iterations=n_rounds,
            steps=dict.fromkeys(StepKind, 0)
            | {StepKind.CORRECTIVE: n_rounds, StepKind.DROP: drops},
            kernel_evaluations=evaluations,
            work=evaluations / (m * len(support)),
            rows_read=m,
            bytes_read=rows_bytes(first.rows.values) + rows_bytes(second.rows.values),
            seconds=time.perf_counter() - started,
            penalties=None if every is None else penalties[support],
        )
        return self._of_all(solution)

    def _optimise(
        self, values: Float64Array, penalties: Float64Array, alpha: Float64Array, error: float
    ) -> tuple[Certificate, int, int] | None:
        """Optimise `alpha`; returns certificate, number of rounds, and steps that drop a vertex.

        Each round of steps aims at a smaller gap. The gradient is computed anew after each round.
        """
        m = len(alpha)
        whole = self.partition.whole
        options = self.plan.given
        diag = np.diagonal(values) + 1 + 1 / penalties
        constant = whole.kernel.constant_diagonal and whole.penalties is None
        test = StoppingTest(options.stopping, options.tol, float(diag[0]) if constant else None)
        block = KernelBlock(values, np.ones(1), np.arange(m), np.zeros(m, dtype=np.int64))
        vertices = Vertices(alpha, np.empty(m), diag, np.ones(m))
        counts = np.zeros(N_COUNTS, dtype=np.int64)
        for n_rounds in range(9):
            alpha /= alpha.sum()
            vertices.grad[:] = values @ alpha + alpha.sum() + alpha / penalties
            rho = float(alpha @ vertices.grad)
            target = test.target(rho, 0.9)
            if n_rounds == 8 or relative_gap(rho, float(vertices.grad.min())) <= target:
                break
            tol = max(target * 0.5**n_rounds, FLOAT64_GAP)
            limits = Limits(_STEPS_PER_ROW * m, (tol, 0.0, tol))
            take_steps(Rule.CORRECTIVE, vertices, block, 0, limits, counts)
        # Add the rounding errors of `values`, and of the sums in the gradient.
        error += (m + 4) * FLOAT64_UNIT * (2 + float(np.diagonal(values).max()))
        certificate = certificate_of_all(alpha, penalties, vertices.grad, error)
        if not certificate.certified_gap <= test.relative_tolerance(certificate.rho):
            return None
        return certificate, n_rounds, int(counts[DROPS])

    # -- other pairs -----------------------------------------------------------------------------

    def _plan_of(self, k: int, at_once: int = 1) -> Plan:
        """The plan of a pair; several `at_once` share the memory above what all need."""
        problem, _ = self.partition.pair(*self.pairs[k])
        held = self.partition.held_bytes
        plan = plan_exact(problem, self.plan.given, Session(held=held))
        if at_once == 1:
            return plan
        limit = self.plan.given.memory_limit or memory_total() // 2
        needed = program_bytes(held) + held
        share = needed + (limit - needed) // at_once
        memory = plan_memory(plan.memory.work, share, memory_total())
        # Kernel rows give memory back if the process exceeds the limit of all.
        plan = replace(plan, memory=replace(memory, limit=plan.memory.limit))
        return plan.with_options(threads=1)

    def _plan_beside_others(self, k: int) -> Plan | None:
        """The plan by which one thread trains a pair while others train other pairs, if it may.

        The kernel values of its vertices have to fit into a share of the memory. There are hardly
        more vertices than `GROWTH` times those of the stage before.
        """
        threads = self.plan.options.threads
        if threads == 1:
            return None
        before = self.before.get(k)
        n_rows = int(self.n_rows[k])
        most = n_rows if before is None else min(n_rows, GROWTH * len(before.alpha))
        try:
            plan = self._plan_of(k, threads)
        except OverLimitError:
            return None
        fits = 4 * most**2 <= plan.memory.kernel_values and most <= plan.memory.max_vertices
        return plan if fits else None

    def _solve_together(self, plans: Mapping[int, Plan]) -> None:
        """Train pairs by their plans on all threads at once, each pair on one of them."""
        threads = self.plan.options.threads

        def solve(k: int) -> None:
            if self.why_over() is None:
                self._finish(k, self._solve(k, plans[k], threads))

        with ThreadPoolExecutor(threads, initializer=limit_this_thread) as pool:
            try:
                for _ in pool.map(solve, plans):
                    pass
            except BaseException:
                self.stopped = True  # so that other threads end soon
                raise

    def _solve(self, k: int, plan: Plan, at_once: int = 1) -> Solution:
        """Train a pair by its plan, while `at_once` - 1 others are trained."""
        problem, rows = self.partition.pair(*self.pairs[k])
        n_left = len(self.pairs) - len(self.solutions)
        share = self.deadline.share(-(-n_left // at_once))
        plan = plan.with_options(max_time=share)

        def whole(solution: Solution) -> Solution:
            return self._of_all(replace(solution, rows=rows[solution.rows]))

        checkpoint = self.session.checkpoint
        if checkpoint is not None:
            checkpoint = checkpoint.of_part(
                lambda one: self._so_far({k: whole(one)}), self.one_at_a_time
            )
        session = Session(
            [lambda state: self._tell(k, state)],
            checkpoint=checkpoint,
            held=self.partition.held_bytes,
            interrupt=self.interrupt,
        )
        return whole(solve_problem(problem, plan, session, self._start(k, rows)))

    # -- all pairs -------------------------------------------------------------------------------

    def _finish(self, k: int, solution: Solution) -> None:
        """Store a solution, tell the callbacks, and write a checkpoint if one is due."""
        self.interrupt.defer()
        state = SolverState(
            phase=Phase.CERTIFY,
            iteration=solution.iterations,
            objective=solution.objective,
            certified_gap=solution.certified_gap,
            n_active=len(solution.alpha),
            n_support=len(solution.alpha),
            kernel_evaluations=solution.kernel_evaluations,
            elapsed_s=solution.seconds,
        )
        with self.one_at_a_time:
            self.solutions[k] = solution
            self.done += float(self.work[k])
            self._tell(k, state)
            del self.running[k]
            checkpoint = self.session.checkpoint
            if checkpoint is not None and checkpoint.is_due:
                checkpoint.save(self._so_far)

    def _so_far(self, running: Mapping[int, Solution] | None = None) -> list[PairSolution]:
        """Solutions of all pairs; those that are not finished have no gaps."""
        found = zip(self.pairs, self.found(running), strict=True)
        return [PairSolution(*pair, one) for pair, one in found]

    def _tell(self, k: int, state: SolverState) -> bool:
        """Tell the callbacks about the training of classifier `k`; returns whether it may go on."""
        state.classifier = k
        state.n_classifiers = len(self.pairs)
        state.stage = self.stage.number
        state.n_stages = self.stage.n_stages
        with self.one_at_a_time:
            state.n_finished = len(self.solutions)
            self.running[k] = float(self.work[k]) * (state.share or 0.0)
            state.share = self._share()
            answers = [callback(state) for callback in self.session.callbacks]
            self.stopped |= any(answer is False for answer in answers)
            return not self.stopped

    def _share(self) -> float:
        """Share of the work of the run that is done."""
        done = self.done + sum(self.running.values())
        return self.stage.begin + done * (self.stage.end - self.stage.begin)

    def why_over(self) -> Status | None:
        """Why the remaining classifiers are not trained; None while training goes on."""
        if self.interrupt.noted is not None:
            return Status.INTERRUPTED
        if self.stopped:
            return Status.STOPPED
        return Status.TIME_LIMIT if self.deadline.left() <= 0 else None


class _FewRows:
    """The rows of a class with few rows, and kernel values of these rows."""

    def __init__(self, engine: Engine, rows: Operand) -> None:
        self.engine = engine
        self.rows = rows
        self.within = self.values(self)  # computed once, for all pairs of the class

    def values(self, other: _FewRows) -> tuple[Float64Array, float]:
        """Kernel values of these rows with those of a class, and a bound on their errors."""
        values = np.empty((len(self.rows), len(other.rows)))
        self.engine.block(self.rows, other.rows, values)
        return values, float(self.engine.error_bound(self.rows, other.rows).max())


def _signed_values(first: _FewRows, second: _FewRows) -> tuple[Float64Array, float]:
    """Numbers y_i y_j (k_ij + 1) - 1 for all rows of two classes, and a bound on their errors.

    Used as kernel values with all labels +1, they give the problem of the two classes.
    """
    n = len(first.rows)
    m = n + len(second.rows)
    values = np.empty((m, m))
    values[:n, :n], error_first = first.within
    values[n:, n:], error_second = second.within
    across, error_across = first.values(second)
    np.subtract(-2.0, across, out=values[:n, n:])
    values[n:, :n] = values[:n, n:].T
    return values, max(error_first, error_second, error_across)
