"""Binary classifiers of all pairs of classes (one-versus-one).

The predicted class is the one that most classifiers vote for, see `ooc_fw.model.pairs`.

References
----------
Frandi, Nanculef, Suykens, A PARTAN-accelerated Frank-Wolfe algorithm for large-scale SVM
classification, section on multi-class problems: one-versus-one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import Self

import numpy as np

from ooc_fw.data.rows import take_rows
from ooc_fw.model.pairs import PairSolution, class_pairs, union_of_rows
from ooc_fw.model.record import Model
from ooc_fw.options import TrainOptions
from ooc_fw.problem import ClassificationProblem
from ooc_fw.solver.loop import Path, solve_problem
from ooc_fw.solver.session import Session
from ooc_fw.solver.setup import choose_method, plan_run
from ooc_fw.solver.start import Warm
from ooc_fw.solver.state import Callback, Phase, Solution, SolverState, Status
from ooc_fw.system.errors import InputError
from ooc_fw.system.interrupt import DeferredInterrupt
from ooc_fw.system.memory import MemoryPlan, memory_total
from ooc_fw.training.partition import ClassPair, Partition, partition_classes
from ooc_fw.training.small_pairs import SmallPairs

_PAIRS_BYTES = 512 << 20
"""Bytes of kernel values that the classifiers of several pairs may keep together."""

_LEAST_PAIR = 0.1  # work that counts for a pair in shares of time, in that of an average pair

_SHARE = 0.25  # of all memory that kernel values of classifiers side by side may take


def train_pairs(
    problem: ClassificationProblem,
    options: TrainOptions,
    session: Session,
    warm: Sequence[Warm | None] | None = None,
) -> list[PairSolution]:
    """Train exact classifiers of all pairs of classes, as `ooc_fw.training.fit.fit` does.

    Solutions of more than two classes hold no support vectors, which the classifiers share. After
    an interrupt, or when time is over, the remaining classifiers are those of their first few rows,
    so that every pair has one. OutOfTimeError when time is over before that.
    """
    source, n_classes = problem.source, problem.n_classes
    if n_classes == 2:
        first = None if warm is None else warm[0]
        return [PairSolution(0, 1, solve_problem(problem.binary(), options, session, first))]
    if session.checkpoint is not None or session.resume is not None:
        raise InputError(
            f"{source.name} has {n_classes} classes, and exact models of more than two have no "
            f"checkpoints; train without them, or with --landmarks N"
        )
    with ExitStack() as opened:
        with source.limited(session.deadline(options).check):
            partition = opened.enter_context(
                partition_classes(source, problem.codes, n_classes, options)
            )
        trainer = PairTrainer(problem, partition, options, session.callbacks)
        return opened.enter_context(trainer).fit(options.C, warm, session.started)


def model_of(pairs: Sequence[PairSolution], problem: ClassificationProblem, C: float) -> Model:
    """Model of the binary classifiers of all pairs of classes."""
    source = problem.source
    vectors = None if len(pairs) == 1 else source.take(union_of_rows(pairs))
    return Model.of(
        pairs, source, classes=problem.classes, vectors=vectors, kernel=problem.kernel, C=C
    )


class PairTrainer:
    """Trains the binary classifiers of all pairs of classes, for one C after another.

    Each classifier begins with the weights that it had for the C before. With a `plan` it keeps
    rows and kernel values, too, unless those of all pairs might exceed `_PAIRS_BYTES` or there is a
    limit of memory or time. Without a plan or a limit, as many classifiers as there are threads are
    trained side by side, where memory permits. A context manager.

    `problem` has no penalties of rows if C changes, and `plan` is that of a classifier of all rows.
    Callbacks are told which classifier a state is of. InputError where memory is too small.
    """

    def __init__(
        self,
        problem: ClassificationProblem,
        partition: Partition,
        options: TrainOptions,
        callbacks: Sequence[Callback],
        plan: MemoryPlan | None = None,
    ) -> None:
        self.problem, self._partition, self._options = problem, partition, options
        self._plan = plan
        self._pairs = class_pairs(problem.n_classes)
        counts = np.bincount(problem.codes, minlength=problem.n_classes).astype(np.float64)
        self._work = np.array([(counts[a] + counts[b]) ** 2 for a, b in self._pairs])
        unlimited = options.memory_limit is None and options.max_time is None
        # Bytes of all kernel values if every row is a support vector: 4 for each.
        few_bytes = unlimited and 4 * self._work.sum() <= _PAIRS_BYTES
        self._keeps = plan is not None and (few_bytes or len(self._pairs) == 1)
        if len(self._pairs) > 1:
            largest = partition.pair(*self._pairs[int(self._work.argmax())])
            plan_run(largest.source, options, partition.held_bytes)
        self._last: Sequence[Warm] | None = None
        self._paths: dict[int, Path] = {}
        self._interrupt = DeferredInterrupt()  # one for all, so that no solution is lost
        self._turns = _Turns(callbacks, len(self._pairs))
        self._resources = ExitStack()
        self._small = SmallPairs(problem, partition, options, self._pairs)
        self._resources.enter_context(self._small)
        side_by_side = 4 * np.sort(self._work)[-options.threads :].sum() <= _SHARE * memory_total()
        self._n_together = options.threads if unlimited and plan is None and side_by_side else 1
        self._ahead: dict[int, Future[Solution]] = {}
        self._pool = ThreadPoolExecutor(self._n_together)
        self._resources.callback(self._pool.shutdown, cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._turns.stopped = True  # of what is still trained after an error
        self._resources.close()

    def fit(
        self, C: float, warm: Sequence[Warm | None] | None = None, started: float | None = None
    ) -> list[PairSolution]:
        """Train the classifiers of the next C as `train_pairs` does.

        Time counts from `started`, or from now.
        """
        started = time.perf_counter() if started is None else started
        before = self._last if warm is None else warm
        done: list[PairSolution] = []
        self._small.forget()
        self._turns.stopped = False
        with self._interrupt:
            for k, places in enumerate(self._pairs):
                self._turns.move_on(k)
                interrupted = any(pair.solution.status is Status.INTERRUPTED for pair in done[-1:])
                options, reason = self._budget(k, started, interrupted or self._turns.stopped)
                solution = None if reason else self._small.solution(k, C, before)
                if solution is not None:
                    self._tell(k, solution)
                elif k in self._ahead or (reason is None and self._n_together > 1):
                    solution = self._side_by_side(k, replace(options, C=C), before)
                else:
                    first = None if before is None else before[k]
                    keep = self._keeps and reason is None
                    solution = self._solve(k, replace(options, C=C), first, keep)
                    solution = replace(solution, status=reason or solution.status)
                done.append(PairSolution(*places, solution))
        self._last = [(pair.solution.rows, pair.solution.alpha) for pair in done]
        return done

    def _side_by_side(
        self, k: int, options: TrainOptions, before: Sequence[Warm | None] | None
    ) -> Solution:
        """Solution of a pair, while pairs after it are trained on the other threads."""
        options = replace(options, threads=1)
        for other in range(k, len(self._pairs)):
            if len(self._ahead) == self._n_together or self._turns.stopped:
                break
            if other not in self._ahead and (other == k or not self._small.takes(other)):
                first = None if before is None else before[other]
                self._ahead[other] = self._pool.submit(self._solve, other, options, first, False)
        return self._ahead.pop(k).result()

    def _tell(self, k: int, solution: Solution) -> None:
        """Tell callbacks of a small pair; a signal, or a False from one of them, ends training."""
        self._interrupt.defer()
        state = SolverState(
            phase=Phase.CERTIFY,
            iteration=solution.iterations,
            objective=solution.objective,
            sampled_gap=solution.sampled_gap,
            certified_gap=solution.certified_gap,
            n_active=solution.rows_read,
            n_support=len(solution.alpha),
            rows_read=solution.rows_read,
            bytes_read=solution.bytes_read,
            kernel_evaluations=solution.kernel_evaluations,
            elapsed_s=solution.seconds,
            steps=dict(solution.steps),
        )
        self._turns.callback(k)(state)
        if self._interrupt.noted is not None:
            self._turns.stopped = True

    def _budget(
        self, k: int, started: float, interrupted: bool
    ) -> tuple[TrainOptions, Status | None]:
        """Options of a classifier, and why there is no time for it, if there is none.

        It shares the time that is left with all classifiers after it, in proportion to their work,
        but even the least of them gets some: starting takes time, too.
        """
        options, reason = self._options, Status.INTERRUPTED
        if not interrupted:
            if options.max_time is None:
                return options, None
            left = started + options.max_time - time.perf_counter()
            if left > 0:
                work = self._work + _LEAST_PAIR * self._work.mean()
                share = float(work[k] / work[k:].sum())
                return replace(options, max_time=left * share), None
            reason = Status.TIME_LIMIT
        return replace(options, max_iter=0, max_time=None, certify=False), reason

    def _solve(self, k: int, options: TrainOptions, warm: Warm | None, keep: bool) -> Solution:
        """Solution of a pair, whose rows are those of the whole data set."""
        pair = self._partition.pair(*self._pairs[k])
        if warm is not None:
            warm = pair.pair_rows(warm[0]), warm[1]
        if keep:
            solution = self._path(k, pair).solve(options.C, warm)
        else:
            session = self._session(k)
            solution = solve_problem(pair.problem(self.problem), options, session, warm)
        if len(self._pairs) == 1:
            return solution
        none = take_rows(solution.support_vectors, np.empty(0, dtype=np.int64))
        return replace(solution, rows=pair.whole_rows(solution.rows), support_vectors=none)

    def _path(self, k: int, pair: ClassPair) -> Path:
        """The path of a pair, which is opened when it is first asked for."""
        if k not in self._paths:
            plan = self._plan if len(self._pairs) == 1 else None
            path = Path(pair.problem(self.problem), self._options, self._session(k), plan)
            self._paths[k] = self._resources.enter_context(path)
        return self._paths[k]

    def _session(self, k: int) -> Session:
        told = [self._turns.callback(k)]
        return Session(told, held=self._partition.held_bytes, interrupt=self._interrupt)


class _Turns:
    """Lets callbacks see one classifier after another while several are trained side by side.

    Of a classifier whose turn has not come they see the last state, when it comes.

    Attributes
    ----------
    stopped : bool
        Whether all training is to end, as a callback may ask.
    """

    def __init__(self, callbacks: Sequence[Callback], n_machines: int) -> None:
        self.stopped = False
        self._callbacks, self._n_machines = callbacks, n_machines
        self._telling = threading.Lock()
        self._turn = 0
        self._waiting: dict[int, SolverState] = {}

    def callback(self, k: int) -> Callback:
        """What the training of classifier `k` calls."""

        def told(state: SolverState) -> bool:
            state.machine, state.n_machines = k, self._n_machines
            with self._telling:
                if k == self._turn:
                    self._tell(state)
                else:
                    self._waiting[k] = state
            return not self.stopped

        return told

    def move_on(self, k: int) -> None:
        """Let the turn of classifier `k` begin."""
        with self._telling:
            self._turn = k
            if k in self._waiting:
                self._tell(self._waiting.pop(k))

    def _tell(self, state: SolverState) -> None:
        if any([callback(state) is False for callback in self._callbacks]):
            self.stopped = True


def describe_method(pairs: Sequence[PairSolution], options: TrainOptions, n_rows: int) -> str:
    """One line that says what "auto" picked for all classifiers of so many rows, and why."""
    first = pairs[0].solution
    if len(pairs) == 1:
        return first.choice
    n_full = sum(pair.solution.lmo == "full" for pair in pairs)
    if 0 < n_full < len(pairs):
        return (
            f"method {first.method}, full oracle for {n_full} of {len(pairs)} classifiers, which "
            f"have few rows, and sampled oracle for the others"
        )
    return choose_method(replace(options, lmo=first.lmo), n_rows)[2]
