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
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ooc_fw.data.rows import take_rows
from ooc_fw.model.pairs import PairSolution, class_pairs
from ooc_fw.model.partition import Partition, partition_classes
from ooc_fw.problem import BinaryProblem, ClassificationProblem
from ooc_fw.solver.loop import Path, solve_problem
from ooc_fw.solver.plan import Plan, Session, plan_exact
from ooc_fw.solver.shell import Deadline
from ooc_fw.solver.state import Callback, Phase, Solution, SolverState, Status, Warm
from ooc_fw.system.interrupt import DeferredInterrupt
from ooc_fw.system.memory import memory_total
from ooc_fw.training.checkpoint import with_stand_ins
from ooc_fw.training.small_pairs import SmallPairs, threaded_map

_LEAST_PAIR = 0.1  # a pair has at least the share of time of so many average pairs
_MORE_TURNS = 3  # turns of classifiers that a time limit ended, while there is time
_SHARE = 0.25  # share of memory for kernel values of classifiers trained side by side


def train_pairs(
    problem: ClassificationProblem,
    plan: Plan,
    session: Session,
    warm: Sequence[Warm | Solution | None] | None = None,
) -> list[PairSolution]:
    """Train exact classifiers of all pairs of classes, as `ooc_fw.training.fit.fit` does.

    Solutions of more than two classes hold no support vectors, which the classifiers share. After
    an interrupt, or when time is over, the remaining classifiers are those of their first few rows,
    so that every pair has one. Pairs whose solution is given have it already. OutOfTimeError when
    time is over before that.
    """
    if problem.n_classes == 2:
        first = None if warm is None else warm[0]
        start = first if isinstance(first, Warm) else None
        return [PairSolution(0, 1, solve_problem(problem.binary(), plan, session, start))]
    with ExitStack() as opened:
        with problem.source.limited(session.deadline(plan.options).check):
            partition = opened.enter_context(partition_classes(problem, plan))
        trainer = PairTrainer(partition, plan, session)
        return opened.enter_context(trainer).fit(plan.options.C, warm, session.started)


class PairTrainer(ExitStack):
    """Trains the binary classifiers of all pairs of classes, for one C after another.

    Each classifier begins with the weights that it had for the C before; that of two classes alone
    has its rows and kernel values again, too. As many of several classifiers as there are threads
    are trained side by side, where memory permits and no limit is given. A context manager.

    Rows have no penalties of their own if C changes, and `plan` is that of a classifier of all
    rows: of several pairs, each has a plan of its own, from the options that were given. Callbacks
    are told which classifier a state is of. InputError where memory is too small.
    """

    def __init__(self, partition: Partition, plan: Plan, session: Session) -> None:
        super().__init__()
        options, problem = plan.given, partition.whole
        self._partition, self._given = partition, options
        self._pairs = class_pairs(problem.n_classes)
        several = len(self._pairs) > 1
        self._plans = {} if several else {0: plan}
        counts = np.bincount(problem.codes, minlength=problem.n_classes).astype(np.float64)
        self._work = np.array([(counts[a] + counts[b]) ** 2 for a, b in self._pairs])
        if several:
            largest = int(self._work.argmax())  # if memory suffices for this pair, it does for all
            self._plan(largest, partition.pair(*self._pairs[largest]).problem)
        unlimited = options.memory_limit is None and options.max_time is None
        # If every row is a support vector, a pair has 4 bytes of kernel values for each work.
        together = 4 * np.sort(self._work)[-options.threads :].sum() <= _SHARE * memory_total()
        self._n_together = options.threads if together and several and unlimited else 1
        self._last: list[Warm] | None = None  # rows and weights of the classifiers for the last C
        self._path: Path | None = None  # of two classes
        self._interrupt = DeferredInterrupt()  # one for all, so that no solution is lost
        self._callbacks = _CallbacksInOrder(session.callbacks, len(self._pairs))
        self._checkpoint, self._saving = session.checkpoint, threading.Lock()
        self._finished: dict[int, Solution] = {}
        self._small = self.enter_context(SmallPairs(partition, plan))

    def fit(
        self,
        C: float,
        warm: Sequence[Warm | Solution | None] | None = None,
        started: float | None = None,
    ) -> list[PairSolution]:
        """Train the classifiers of the next C as `train_pairs` does; time counts from `started`."""
        started = time.perf_counter() if started is None else started
        deadline = Deadline(self._given.max_time, started)
        first = list(warm or self._last or [None] * len(self._pairs))

        def solve(k: int) -> Solution:
            changes, reason = self._changes(k, C, deadline, others)
            start = first[k]
            return self._solve(k, changes, reason, start if isinstance(start, Warm) else None)

        self._callbacks.begin()
        self._finished = {k: one for k, one in enumerate(first) if isinstance(one, Solution)}
        for k in self._finished:
            self._callbacks.end(k)
        given = dict(self._finished)
        with self._interrupt, threaded_map(self._n_together) as map_all:
            try:
                is_over = partial(self._why_over, deadline)
                solutions = given | self._small.solve(C, first, is_over, self._tell)
                others = [k for k in range(len(self._pairs)) if k not in solutions]
                solutions |= zip(others, map_all(solve, others), strict=True)
                # Time that some have left goes to those that their share was too short for.
                for _ in range(_MORE_TURNS if len(self._pairs) > 1 else 0):
                    others = [k for k in others if solutions[k].status is Status.TIME_LIMIT]
                    for k in others:
                        first[k] = Warm(solutions[k].rows, solutions[k].alpha)
                    for k, found in zip(others, map_all(solve, others), strict=True):
                        if found.objective <= solutions[k].objective:
                            solutions[k] = found
            except BaseException:
                self._callbacks.stopped = True
                raise
        ordered = [solutions[k] for k in range(len(self._pairs))]
        self._last = [Warm(solution.rows, solution.alpha) for solution in ordered]
        return [PairSolution(*pair, own) for pair, own in zip(self._pairs, ordered, strict=True)]

    def _why_over(self, deadline: Deadline) -> Status | None:
        """Why no more classifiers are trained, if so."""
        if self._interrupt.noted is not None:
            return Status.INTERRUPTED
        if self._callbacks.stopped:
            return Status.STOPPED
        return Status.TIME_LIMIT if deadline.left() <= 0 else None

    def _save(self, k: int, solution: Solution) -> None:
        """Take note of a solution, and write those that are finished if a checkpoint is due."""
        checkpoint = self._checkpoint
        if checkpoint is None or not solution.status.reached:
            return
        with self._saving:
            self._finished[k] = solution
            if checkpoint.is_due:
                whole, C = self._partition.whole, self._given.C
                checkpoint.save(lambda: with_stand_ins(whole, C, self._finished))

    def _tell(self, k: int, solution: Solution) -> None:
        """Tell callbacks of a pair that was small, and is done."""
        self._interrupt.defer()
        self._save(k, solution)
        state = SolverState(
            phase=Phase.CERTIFY,
            iteration=solution.iterations,
            objective=solution.objective,
            certified_gap=solution.certified_gap,
            n_active=solution.rows_read,
            n_support=len(solution.alpha),
            rows_read=solution.rows_read,
            kernel_evaluations=solution.kernel_evaluations,
            elapsed_s=solution.seconds,
        )
        self._callbacks.of(k)(state)
        self._callbacks.end(k)

    def _changes(
        self, k: int, C: float, deadline: Deadline, others: Sequence[int]
    ) -> tuple[dict[str, Any], Status | None]:
        """Options of a classifier that are its own, and why there is no time for it, if so.

        It shares the time that is left with the `others` after it, in proportion to their work, but
        even the least of them gets some: starting takes time, too.
        """
        reason = self._why_over(deadline)
        if reason is not None:
            return {"C": C, "max_iter": 0, "max_time": None, "certify": False}, reason
        if not deadline.limited:
            return {"C": C}, None
        work = self._work + _LEAST_PAIR * self._work.mean()
        share = float(work[k] / work[[other for other in others if other >= k]].sum())
        return {"C": C, "max_time": deadline.left() * share}, None

    def _solve(
        self, k: int, changes: dict[str, Any], reason: Status | None, warm: Warm | None
    ) -> Solution:
        """Solution of a pair, whose rows are those of the whole data set."""
        pair = self._partition.pair(*self._pairs[k])
        if warm is not None:
            warm = Warm(pair.pair_rows(warm.rows), warm.alpha)
        if len(self._pairs) == 1 and reason is None:
            if self._path is None:
                path = Path(pair.problem, self._plans[k], self._session(k))
                self._path = self.enter_context(path)
            solution = self._path.solve(changes["C"], warm)
        else:
            plan = self._plan(k, pair.problem)
            threads = min(self._given.threads // self._n_together, plan.options.threads)
            plan = plan.with_options(threads=threads, **changes)
            solution = solve_problem(pair.problem, plan, self._session(k), warm)
        solution = replace(solution, status=reason or solution.status)
        if solution.status.was_asked_for:
            self._callbacks.stopped = True
        self._callbacks.end(k)
        if len(self._pairs) == 1:
            return solution
        none = take_rows(solution.support_vectors, np.empty(0, dtype=np.int64))
        solution = replace(solution, rows=pair.whole_rows(solution.rows), support_vectors=none)
        self._save(k, solution)
        return solution

    def _plan(self, k: int, problem: BinaryProblem) -> Plan:
        if k not in self._plans:
            session = Session(held=self._partition.held_bytes)
            self._plans[k] = plan_exact(problem, self._given, session)
        return self._plans[k]

    def _session(self, k: int) -> Session:
        callbacks = [self._callbacks.of(k)]
        return Session(callbacks, held=self._partition.held_bytes, interrupt=self._interrupt)


class _CallbacksInOrder:
    """Tells callbacks of one classifier after another while several are trained side by side.

    Reports of later classifiers wait until the earlier ones have ended; the last of each is told.
    All training is to end once it is `stopped`, as a callback may ask.
    """

    def __init__(self, callbacks: Sequence[Callback], n_classifiers: int) -> None:
        self._callbacks, self._n_classifiers = callbacks, n_classifiers
        self._telling = threading.Lock()
        self.begin()

    def begin(self) -> None:
        """Begin with the first classifier."""
        self.stopped = False
        self._current, self._ended = 0, set[int]()
        self._waiting: dict[int, SolverState] = {}

    def of(self, k: int) -> Callback:
        """What the training of classifier `k` calls."""

        def tell(state: SolverState) -> bool:
            state.classifier, state.n_classifiers = k, self._n_classifiers
            with self._telling:
                if k == self._current:
                    self._tell(state)
                else:
                    self._waiting[k] = state
            return not self.stopped

        return tell

    def end(self, k: int) -> None:
        """Tell of the classifiers after `k` once all before them have ended."""
        with self._telling:
            self._ended.add(k)
            while self._current in self._ended:
                self._current += 1
                if self._current in self._waiting:
                    self._tell(self._waiting.pop(self._current))

    def _tell(self, state: SolverState) -> None:
        if any([callback(state) is False for callback in self._callbacks]):
            self.stopped = True


def describe_method(pairs: Sequence[PairSolution], plan: Plan) -> str:
    """One line on method and oracle of all classifiers."""
    n_full = sum(pair.solution.lmo == "full" for pair in pairs)
    if n_full == 0 or plan.options.lmo == "full":
        return plan.method
    few = f"full oracle for {n_full} of {len(pairs)} classifiers, which have few rows"
    return f"method {plan.options.method}, {few}"
