"""Binary classifiers of all pairs of classes (one-versus-one).

The predicted class is the one that most classifiers vote for, see `ooc_fw.model.pairs`.

References
----------
Frandi, Nanculef, Suykens, A PARTAN-accelerated Frank-Wolfe algorithm for large-scale SVM
classification, section on multi-class problems: one-versus-one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np

from ooc_fw.data.rows import take_rows
from ooc_fw.model.pairs import PairSolution, class_pairs
from ooc_fw.model.partition import Partition, partition_classes
from ooc_fw.problem import ClassificationProblem
from ooc_fw.solver.loop import solve_problem
from ooc_fw.solver.plan import Plan, Session, plan_exact
from ooc_fw.solver.state import Callback, Phase, Solution, SolverState, Status, Warm
from ooc_fw.system.interrupt import DeferredInterrupt
from ooc_fw.system.memory import memory_total
from ooc_fw.training.checkpoint import with_stand_ins
from ooc_fw.training.small_pairs import SmallPairs, open_small_pairs, threaded_map

_LEAST_PAIR = 0.1  # a pair has at least the share of time of so many average pairs
_SHARE = 0.25  # share of memory for kernel values of classifiers trained side by side

Starts = Sequence[Warm | Solution | None]
"""What each classifier begins with, or is already."""


def train_pairs(
    problem: ClassificationProblem, plan: Plan, session: Session, warm: Starts | None = None
) -> list[PairSolution]:
    """Train exact classifiers of all pairs of classes, as `ooc_fw.training.fit.fit` does.

    Solutions of more than two classes hold no support vectors, which the classifiers share. After
    an interrupt, or when time is over, the remaining classifiers are those of their first few rows,
    so that every pair has one. OutOfTimeError when time is over before that.
    """
    if problem.n_classes == 2:
        first = None if warm is None else warm[0]
        start = first if isinstance(first, Warm) else None
        return [PairSolution(0, 1, solve_problem(problem.binary(), plan, session, start))]
    with ExitStack() as opened:
        with problem.source.limited(session.deadline(plan.options).check):
            partition = opened.enter_context(partition_classes(problem, plan))
        small = opened.enter_context(open_small_pairs(partition, plan))
        return _Training(partition, plan, session, small).run(warm)


class _Training:
    """Trains the classifiers: those of small classes first, then the others.

    As many are trained side by side as there are threads, if memory permits and no limit is given.
    `plan` is that of a classifier of all rows: each pair has a plan of its own, from the options
    that were given. Callbacks are told of one classifier after another.
    """

    def __init__(
        self, partition: Partition, plan: Plan, session: Session, small: SmallPairs
    ) -> None:
        self.partition = partition
        self.given = plan.given
        self.session = session
        self.small = small
        self.deadline = session.deadline(plan.given)
        self.interrupt = DeferredInterrupt()  # one for all, so that no solution is lost
        self.pairs = class_pairs(partition.whole.n_classes)
        counts = np.array([len(rows) for rows in partition.rows], dtype=np.float64)
        self.work = np.array([(counts[a] + counts[b]) ** 2 for a, b in self.pairs])
        self.stopped = False  # whether a callback asked for the end
        self.current = 0  # classifier that callbacks are told of
        self.telling = threading.Lock()
        self.solutions: dict[int, Solution] = {}

    def run(self, warm: Starts | None) -> list[PairSolution]:
        """Train all; those whose solution is given have it already."""
        starts: Starts = [None] * len(self.pairs) if warm is None else warm
        self.solutions = {k: one for k, one in enumerate(starts) if isinstance(one, Solution)}
        self._plan_of(int(self.work.argmax()))  # if memory suffices for this pair, it does for all

        def solve_small(k: int) -> Solution | None:
            start = starts[k]
            if self._why_over() is not None:
                return None
            return self.small.solve(k, start if isinstance(start, Warm) else None)

        def solve_large(k: int) -> Solution:
            start = starts[k]
            return self._solve(k, start if isinstance(start, Warm) else None)

        with self.interrupt:
            self._train(self.small.numbers, self.small.threads, solve_small)
            self._train(range(len(self.pairs)), self._n_together(), solve_large)
        return [PairSolution(*pair, self.solutions[k]) for k, pair in enumerate(self.pairs)]

    def _train(
        self, numbers: Sequence[int], threads: int, solve: Callable[[int], Solution | None]
    ) -> None:
        """Train those of some classifiers that have no solution yet."""
        todo = [k for k in numbers if k not in self.solutions]
        with threaded_map(threads) as map_all:
            try:
                found = map_all(solve, todo)
                for k in todo:
                    self.current = k
                    solution = next(found)
                    if solution is not None:
                        self._finish(k, solution)
            except BaseException:
                self.stopped = True  # for those that are trained side by side
                raise

    def _finish(self, k: int, solution: Solution) -> None:
        """Take note of a solution, tell of it, and write a checkpoint if one is due."""
        self.interrupt.defer()
        self.solutions[k] = solution
        self._told_of(k)(
            SolverState(
                phase=Phase.CERTIFY,
                iteration=solution.iterations,
                objective=solution.objective,
                sampled_gap=solution.sampled_gap,
                certified_gap=solution.certified_gap,
                n_active=len(solution.alpha),
                n_support=len(solution.alpha),
                rows_read=solution.rows_read,
                bytes_read=solution.bytes_read,
                kernel_evaluations=solution.kernel_evaluations,
                elapsed_s=solution.seconds,
                steps=dict(solution.steps),
            )
        )
        if self.session.checkpoint is not None and self.session.checkpoint.is_due:
            done = {k: one for k, one in self.solutions.items() if one.status.reached}
            whole = self.partition.whole
            if done:
                self.session.checkpoint.save(lambda: with_stand_ins(whole, self.given.C, done))

    def _told_of(self, k: int) -> Callback:
        """What the training of a classifier calls: callbacks are told when it is its turn."""

        def tell(state: SolverState) -> bool:
            state.classifier = k
            state.n_classifiers = len(self.pairs)
            with self.telling:
                if k == self.current:
                    answers = [callback(state) for callback in self.session.callbacks]
                    self.stopped |= any(answer is False for answer in answers)
            return not self.stopped

        return tell

    def _why_over(self) -> Status | None:
        """Why no more classifiers are trained, if so."""
        if self.interrupt.noted is not None:
            return Status.INTERRUPTED
        if self.stopped:
            return Status.STOPPED
        return Status.TIME_LIMIT if self.deadline.left() <= 0 else None

    def _n_together(self) -> int:
        """Classifiers of large classes that are trained side by side."""
        threads = self.given.threads
        unlimited = self.given.memory_limit is None and self.given.max_time is None
        # If every row is a support vector, a pair has 4 bytes of kernel values for each work.
        largest = 4 * np.sort(self.work)[-threads:].sum()
        return threads if unlimited and largest <= _SHARE * memory_total() else 1

    def _plan_of(self, k: int) -> Plan:
        problem = self.partition.pair(*self.pairs[k]).problem
        return plan_exact(problem, self.given, Session(held=self.partition.held_bytes))

    def _changes(self, k: int) -> dict[str, Any]:
        """Options of a classifier that are its own.

        It shares the time that is left with those after it, in proportion to their work, but even
        the least of them gets some: starting takes time, too.
        """
        if self._why_over() is not None:
            return {"max_iter": 0, "max_time": None, "certify": False}
        if not self.deadline.limited:
            return {}
        work = self.work + _LEAST_PAIR * self.work.mean()
        later = [other for other in range(k, len(work)) if other not in self.solutions]
        return {"max_time": max(1e-9, self.deadline.left() * float(work[k] / work[later].sum()))}

    def _solve(self, k: int, warm: Warm | None) -> Solution:
        """Solution of a pair, whose rows are those of the whole data set."""
        reason = self._why_over()
        pair = self.partition.pair(*self.pairs[k])
        if warm is not None:
            warm = Warm(pair.pair_rows(warm.rows), warm.alpha)
        plan = self._plan_of(k)
        threads = max(1, min(self.given.threads // self._n_together(), plan.options.threads))
        plan = plan.with_options(threads=threads, **self._changes(k))
        held = self.partition.held_bytes
        session = Session([self._told_of(k)], held=held, interrupt=self.interrupt)
        solution = solve_problem(pair.problem, plan, session, warm)
        none = take_rows(solution.support_vectors, np.empty(0, dtype=np.int64))
        return replace(
            solution,
            status=reason or solution.status,
            rows=pair.whole_rows(solution.rows),
            support_vectors=none,
        )


def describe_method(pairs: Sequence[PairSolution], plan: Plan) -> str:
    """One line on method and oracle of all classifiers."""
    n_full = sum(pair.solution.lmo == "full" for pair in pairs)
    if n_full == 0 or plan.options.lmo == "full":
        return plan.method
    few = f"full oracle for {n_full} of {len(pairs)} classifiers, which have few rows"
    return f"method {plan.options.method}, {few}"
