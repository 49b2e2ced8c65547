"""Exact classification: a binary classifier for each pair of classes (one-versus-one).

The predicted class is the one with the most votes of classifiers, see `ooc_fw.model.machines`.

A pair with few rows needs no samples, no active set and no passes over a file. All its rows are
vertices, and kernel values are float64, so that the last gradient also gives the certificate.
Several such pairs are trained at once, one on each thread.

References
----------
Frandi, Nanculef, Suykens, A PARTAN-accelerated Frank-Wolfe algorithm for large-scale SVM
classification, section on multi-class problems: one-versus-one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ooc_fw._core.rules import DROPS, N_COUNTS, Limits, Rule, take_steps
from ooc_fw._core.steps import KernelBlock, Vertices
from ooc_fw.certificate.sweep import Certificate, certificate_of_all
from ooc_fw.data.rows import Float64Array, concat_rows, rows_bytes, take_rows
from ooc_fw.kernels.arithmetic import Operand, choose_arithmetic
from ooc_fw.kernels.engine import Engine
from ooc_fw.kernels.functions import FLOAT64_UNIT
from ooc_fw.model.machines import PairSolution, class_pairs
from ooc_fw.model.partition import Partition, partition_classes
from ooc_fw.problem import FLOAT64_GAP, StoppingTest, relative_gap
from ooc_fw.solver.loop import solve_problem
from ooc_fw.solver.plan import Plan, Session, plan_exact
from ooc_fw.solver.state import Callback, Phase, Solution, SolverState, Status, StepKind, Warm
from ooc_fw.solver.steps import STEP_RULES
from ooc_fw.system.errors import DeferredInterrupt
from ooc_fw.system.memory import memory_total, program_bytes
from ooc_fw.system.threads import limit_this_thread

_MOST_ROWS = 2500  # largest pair that is trained with all its rows as vertices
_STEPS_PER_ROW = 200  # steps for each row of such a pair between two computations of the gradient


def train_exact(
    problem: Any,
    plan: Plan,
    session: Session,
    warm: Warm | Sequence[Solution | None] | None = None,
) -> list[PairSolution]:
    """Train the exact classifiers of a problem: one for each pair, or one for novelty.

    `warm` is the warm start of a single classifier, or the list of finished solutions of several.
    Solutions of more than two classes hold no support vectors, since the classifiers share them.
    After an interrupt, or if the time is over, each remaining classifier learns its first few rows
    only, so that every pair has one. OutOfTimeError if the time is over even before that.
    """
    if problem.task == "novelty" or problem.n_classes == 2:
        start = warm if isinstance(warm, Warm) else None
        return [PairSolution(0, 1, solve_problem(problem.binary(), plan, session, start))]
    finished = [] if warm is None or isinstance(warm, Warm) else warm
    with ExitStack() as opened:
        with problem.source.limited(session.deadline(plan.options).check):
            partition = opened.enter_context(partition_classes(problem, plan))
        return _Training(partition, plan, session, finished).run()


class _Training:
    """Trains the classifiers: the pairs with few rows first, in parallel, then the others in turn.

    `plan` is the plan for all rows; each pair makes a plan of its own from the given options.
    Callbacks hear of one classifier after another.
    """

    def __init__(
        self,
        partition: Partition,
        plan: Plan,
        session: Session,
        finished: Sequence[Solution | None],
    ) -> None:
        self.partition = partition
        self.plan = plan
        self.session = session
        self.deadline = session.deadline(plan.given)
        # Shared by all pairs, so that no solution is lost.
        self.interrupt = session.interrupt or DeferredInterrupt()
        self.pairs = class_pairs(partition.whole.n_classes)
        self.solutions = {k: one for k, one in enumerate(finished) if one is not None}
        counts = np.array([len(rows) for rows in partition.rows])
        self.n_rows = np.array([counts[a] + counts[b] for a, b in self.pairs])
        self.stopped = False  # whether a callback asked for the end

    def run(self) -> list[PairSolution]:
        """Train all pairs, except those whose solutions are given."""
        self._plan_of(int(self.n_rows.argmax()))  # OverLimitError if the largest pair does not fit
        with nullcontext() if self.session.interrupt else self.interrupt:
            self._solve_small()
            # The larger pairs come last and share the time that the others leave.
            for k in np.argsort(self.n_rows, kind="stable").tolist():
                if k not in self.solutions:
                    self._finish(k, self._solve(k))
        return [PairSolution(*pair, self.solutions[k]) for k, pair in enumerate(self.pairs)]

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
                        # Small pairs are fast, and a checkpoint solves all missing ones a little.
                        self._finish(k, found, save=k == numbers[-1])
            except BaseException:
                self.stopped = True  # so that other threads begin no more pairs
                raise

    def _solve_few(self, few: dict[int, _FewRows], k: int) -> Solution | None:
        """Solution of a pair; None if its certificate fails the test, or if training is over."""
        if self._why_over() is not None:
            return None
        started = time.perf_counter()
        first, second = (few[code] for code in self.pairs[k])
        rows = np.concatenate([self.partition.rows[code] for code in self.pairs[k]])
        n = len(first.rows)
        m = len(rows)
        every = self.partition.whole.penalties
        penalties = np.full(m, self.plan.given.C) if every is None else every[rows]
        alpha = np.zeros(m)
        for of_class in (alpha[:n], alpha[n:]):
            of_class[:: -(-len(of_class) // 60)] = 1.0  # begin with up to 60 rows of each class
        values, error = _signed_values(first, second)
        trained = self._optimise(values, penalties, alpha, error)
        if trained is None:
            return None
        certificate, n_rounds, drops = trained
        support = np.flatnonzero(alpha)
        evaluations = n * (m - n)
        method = self.plan.options.method
        certify = self.plan.given.certify
        return Solution(
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
            passes=evaluations / (m * len(support)),
            rows_read=m,
            bytes_read=rows_bytes(first.rows.values) + rows_bytes(second.rows.values),
            seconds=time.perf_counter() - started,
            penalties=None if every is None else penalties[support],
        )

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

    def _plan_of(self, k: int) -> Plan:
        problem, _ = self.partition.pair(*self.pairs[k])
        return plan_exact(problem, self.plan.given, Session(held=self.partition.held_bytes))

    def _solve(self, k: int, over: Status | None = None) -> Solution:
        """Solution of a pair, with the row numbers of the whole data set.

        If training is `over`, the solution has the first few rows only.
        """
        over = over or self._why_over()
        problem, rows = self.partition.pair(*self.pairs[k])
        plan = self._plan_of(k)
        callbacks: list[Callback] = [lambda state: self._tell(k, state)]
        if over is not None:
            callbacks = []
            plan = plan.with_options(max_iter=0, max_time=None, certify=False)
        else:
            share = self.deadline.share(len(self.pairs) - len(self.solutions))
            plan = plan.with_options(max_time=share)
        session = Session(callbacks, held=self.partition.held_bytes, interrupt=self.interrupt)
        solution = solve_problem(problem, plan, session)
        return replace(
            solution,
            status=over or solution.status,
            rows=rows[solution.rows],
            support_vectors=take_rows(solution.support_vectors, np.empty(0, dtype=np.int64)),
        )

    # -- all pairs -------------------------------------------------------------------------------

    def _finish(self, k: int, solution: Solution, *, save: bool = True) -> None:
        """Store a solution, tell the callbacks, and write a checkpoint if one is due."""
        self.interrupt.defer()
        self.solutions[k] = solution
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
        self._tell(k, state)
        checkpoint = self.session.checkpoint
        if save and checkpoint is not None and checkpoint.is_due:
            checkpoint.save(self._so_far)

    def _so_far(self) -> list[PairSolution]:
        """Solutions of all pairs; those that are not finished have a few rows and no gaps."""
        found = []
        for k, pair in enumerate(self.pairs):
            one = self.solutions.get(k)
            if one is None or not one.status.reached:
                one = self._solve(k, Status.RUNNING)
                one = replace(one, sampled_gap=None, certified_gap=None, primal=None, dual=None)
            found.append(PairSolution(*pair, one))
        return found

    def _tell(self, k: int, state: SolverState) -> bool:
        """Tell the callbacks about the training of classifier `k`; returns whether it may go on."""
        state.classifier = k
        state.n_classifiers = len(self.pairs)
        state.n_finished = len(self.solutions)
        answers = [callback(state) for callback in self.session.callbacks]
        self.stopped |= any(answer is False for answer in answers)
        return not self.stopped

    def _why_over(self) -> Status | None:
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
