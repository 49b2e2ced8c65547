"""Binary classifiers of all pairs of classes (one-versus-one).

The predicted class is the one that most classifiers vote for, see `ooc_fw.model.machines`.

References
----------
Frandi, Nanculef, Suykens, A PARTAN-accelerated Frank-Wolfe algorithm for large-scale SVM
classification, section on multi-class problems: one-versus-one.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

import numpy as np

from ooc_fw.data.rows import take_rows
from ooc_fw.model.machines import PairSolution, class_pairs, places_among
from ooc_fw.model.partition import Partition, partition_classes
from ooc_fw.problem import ClassificationProblem
from ooc_fw.solver.loop import solve_problem
from ooc_fw.solver.plan import Plan, Session, plan_exact
from ooc_fw.solver.state import Phase, Solution, SolverState, Status, Warm
from ooc_fw.system.errors import DeferredInterrupt
from ooc_fw.training.small_pairs import SmallPairs, open_small_pairs

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
        return _Training(partition, plan, session, warm).run(small)


class _Training:
    """Trains the classifiers: those of small classes first, side by side, then the others.

    `plan` is that of a classifier of all rows: each pair has a plan of its own, from the options
    that were given. Callbacks are told of one classifier after another.
    """

    def __init__(
        self, partition: Partition, plan: Plan, session: Session, warm: Starts | None
    ) -> None:
        self.partition = partition
        self.given = plan.given
        self.session = session
        self.deadline = session.deadline(plan.given)
        self.interrupt = DeferredInterrupt()  # one for all, so that no solution is lost
        self.pairs = class_pairs(partition.whole.n_classes)
        self.starts = [None] * len(self.pairs) if warm is None else warm
        self.solutions = {k: one for k, one in enumerate(self.starts) if isinstance(one, Solution)}
        counts = np.array([len(rows) for rows in partition.rows], dtype=np.float64)
        self.work = np.array([(counts[a] + counts[b]) ** 2 for a, b in self.pairs])
        self.stopped = False  # whether a callback asked for the end

    def run(self, small: SmallPairs | None) -> list[PairSolution]:
        """Train all; those whose solution is given have it already."""
        self._plan_of(int(self.work.argmax()))  # if memory suffices for this pair, it does for all
        with self.interrupt:
            if small is not None:
                self._solve_small(small)
            for k in range(len(self.pairs)):
                if k not in self.solutions:
                    self._finish(k, self._solve(k))
        return self._all_pairs(self.solutions)

    def _solve_small(self, small: SmallPairs) -> None:
        """Train those of few rows, side by side."""

        def solve(k: int) -> Solution | None:
            return None if self._why_over() is not None else small.solve(k, self._warm(k))

        numbers = [k for k in small.numbers if k not in self.solutions]
        try:
            for k, found in zip(numbers, small.map_all(solve, numbers), strict=True):
                if found is not None:
                    # If others are missing, many would stand in; they take no time.
                    self._finish(k, found, save=k == numbers[-1])
        except BaseException:
            self.stopped = True  # for those that are under way
            raise

    def _all_pairs(self, solutions: dict[int, Solution]) -> list[PairSolution]:
        return [PairSolution(*pair, solutions[k]) for k, pair in enumerate(self.pairs)]

    def _finish(self, k: int, solution: Solution, *, save: bool = True) -> None:
        """Take note of a solution, tell of it, and write a checkpoint if one is due."""
        self.interrupt.defer()
        self.solutions[k] = solution
        state = SolverState(
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
        self._tell(k, state)
        checkpoint = self.session.checkpoint
        if save and checkpoint is not None and checkpoint.is_due:
            checkpoint.save(lambda: self._all_pairs(self._so_far()))

    def _so_far(self) -> dict[int, Solution]:
        """Solutions that are finished, and of the first few rows for the others, without gaps."""
        done = {k: one for k, one in self.solutions.items() if one.status.reached}
        for k in range(len(self.pairs)):
            if k not in done:
                first = self._solve(k, Status.RUNNING)
                done[k] = replace(first, certified_gap=None, sampled_gap=None)
        return done

    def _tell(self, k: int, state: SolverState) -> bool:
        """Tell the callbacks of the training of a classifier; whether it goes on."""
        state.classifier = k
        state.n_classifiers = len(self.pairs)
        answers = [callback(state) for callback in self.session.callbacks]
        self.stopped |= any(answer is False for answer in answers)
        return not self.stopped

    def _why_over(self) -> Status | None:
        """Why no more classifiers are trained, if so."""
        if self.interrupt.noted is not None:
            return Status.INTERRUPTED
        if self.stopped:
            return Status.STOPPED
        return Status.TIME_LIMIT if self.deadline.left() <= 0 else None

    def _plan_of(self, k: int) -> Plan:
        problem, _ = self.partition.pair(*self.pairs[k])
        return plan_exact(problem, self.given, Session(held=self.partition.held_bytes))

    def _seconds(self, k: int) -> float | None:
        """Time for a classifier: its share of what is left, in proportion to its work.

        But even the least of them gets some: starting takes time, too.
        """
        if not self.deadline.limited:
            return None
        work = self.work + 0.1 * self.work.mean()
        later = [other for other in range(k, len(work)) if other not in self.solutions]
        return max(1e-9, self.deadline.left() * float(work[k] / work[later].sum()))

    def _warm(self, k: int) -> Warm | None:
        start = self.starts[k]
        return start if isinstance(start, Warm) else None

    def _solve(self, k: int, over: Status | None = None) -> Solution:
        """Solution of a pair, whose rows are those of the whole data set.

        If training is `over`, it is that of the first few rows.
        """
        over = over or self._why_over()
        problem, rows = self.partition.pair(*self.pairs[k])
        warm = self._warm(k)
        if warm is not None:
            warm = Warm(places_among(rows, warm.rows), warm.alpha)
        if over is None:
            callbacks = [lambda state: self._tell(k, state)]
            plan = self._plan_of(k).with_options(max_time=self._seconds(k))
        else:
            callbacks = []
            plan = self._plan_of(k).with_options(max_iter=0, max_time=None, certify=False)
        session = Session(callbacks, held=self.partition.held_bytes, interrupt=self.interrupt)
        solution = solve_problem(problem, plan, session, warm)
        return replace(
            solution,
            status=over or solution.status,
            rows=rows[solution.rows],
            support_vectors=take_rows(solution.support_vectors, np.empty(0, dtype=np.int64)),
        )


def describe_method(pairs: Sequence[PairSolution], plan: Plan) -> str:
    """One line on method and oracle of all classifiers."""
    n_full = sum(pair.solution.lmo == "full" for pair in pairs)
    if n_full == 0 or plan.options.lmo == "full":
        return plan.method
    few = f"full oracle for {n_full} of {len(pairs)} classifiers, which have few rows"
    return f"method {plan.options.method}, {few}"
