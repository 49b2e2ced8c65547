"""Binary classifiers of all pairs of classes, for one C after another."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Self

import numpy as np

from ooc_fw.model.pairs import PairSolution, class_pairs
from ooc_fw.options import TrainOptions
from ooc_fw.problem import BinaryProblem, Problem
from ooc_fw.solver.loop import Path, solve_problem
from ooc_fw.solver.session import Session
from ooc_fw.solver.start import Warm
from ooc_fw.solver.state import Callback, Solution, Status
from ooc_fw.system.memory import MemoryPlan
from ooc_fw.training.one_versus_one import ClassSplit

_PAIRS_BYTES = 512 << 20
"""Bytes of kernel values that the classifiers of several pairs may keep together."""


class PairPaths:
    """Classifiers of one kernel on the same rows, for one C after another; a context manager.

    Each classifier begins with the weights that it had for the C before. It keeps its kernel values
    too, unless those of all pairs might exceed `_PAIRS_BYTES` or there is a memory limit: then one
    classifier at a time takes memory.

    Parameters
    ----------
    problem : Problem
        Rows, classes and kernel; it has no penalties of rows.
    split : ClassSplit or None
        The rows partitioned by class; None for two classes.
    options : TrainOptions
        As for `ooc_fw.solver.loop.solve_problem`; `C` is not used.
    callbacks : sequence of Callback
        They are told of every iteration of every classifier.
    plan : MemoryPlan
        Plan for the classifier of two classes.
    """

    def __init__(
        self,
        problem: Problem,
        split: ClassSplit | None,
        options: TrainOptions,
        callbacks: Sequence[Callback],
        plan: MemoryPlan,
    ) -> None:
        self.problem, self._split, self._plan = problem, split, plan
        self._options, self._callbacks = options, callbacks
        self._pairs = class_pairs(problem.n_classes)
        counts = np.bincount(problem.codes)
        # Bytes of all kernel values if every row is a support vector.
        most = sum(4 * int(counts[a] + counts[b]) ** 2 for a, b in self._pairs)
        self._keeps = options.memory_limit is None and most <= _PAIRS_BYTES
        self._last: Sequence[Warm] | None = None
        self._paths: list[Path] = []
        self._resources = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    def fit(self, C: float, warm: Sequence[Warm] | None = None) -> list[PairSolution]:
        """Train the classifiers of the next C.

        Parameters
        ----------
        C : float
            Penalty of a unit squared slack.
        warm : sequence of Warm, optional
            What the first classifiers begin with, in the order of the pairs.

        Returns
        -------
        list of PairSolution
            In the order of the pairs; after an interrupt the remaining ones are missing.
        """
        before = self._last if warm is None else warm
        done: list[PairSolution] = []
        for k, pair in enumerate(self._pairs):
            if done and done[-1].solution.status is Status.INTERRUPTED:
                break
            solution = self._solve(k, C, None if before is None else before[k])
            done.append(PairSolution(*pair, solution))
        self._last = [(pair.solution.rows, pair.solution.alpha) for pair in done]
        return done

    def _solve(self, k: int, C: float, warm: Warm | None) -> Solution:
        if self._split is None:
            return self._path(k, self.problem.binary(), self._plan).solve(C, warm)
        pair = self._split.pair(*self._pairs[k])
        if warm is not None:
            warm = pair.pair_rows(warm[0]), warm[1]
        problem = pair.problem(self.problem)
        if self._keeps:
            solution = self._path(k, problem, None).solve(C, warm)
        else:
            session = Session(self._callbacks, held=self._split.held_bytes)
            solution = solve_problem(problem, replace(self._options, C=C), session, warm)
        return replace(solution, rows=pair.whole_rows(solution.rows))

    def _path(self, k: int, problem: BinaryProblem, plan: MemoryPlan | None) -> Path:
        """The path of a pair, which is opened when it is first asked for."""
        if k == len(self._paths):
            path = Path(problem, self._options, Session(self._callbacks), plan)
            self._paths.append(self._resources.enter_context(path))
        return self._paths[k]
