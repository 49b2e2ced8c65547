"""Training on rows that come by once, chunk after chunk: a binary classifier for each two classes.

for each chunk of rows
    train on the support vectors and the rows of the chunk, beginning with the weights before
    while there are more than `keep` support vectors: leave rows out, and train on the others

Beyond `keep` a pair of classes learns from a random share of the rows: those whose hash is small.
To keep the rows of largest weight instead would collect the outliers of noisy data.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_fw.data.rows import (
    CSRRows,
    Float64Array,
    Int8Array,
    Int64Array,
    Rows,
    concat_rows,
    row_hashes,
    take_rows,
)
from ooc_fw.data.sources import RowSource, iter_blocks, rows_source
from ooc_fw.kernels.functions import Kernel
from ooc_fw.model.machines import PairSolution, class_pairs
from ooc_fw.model.record import Model
from ooc_fw.options import KEEP, TrainOptions
from ooc_fw.problem import BinaryProblem
from ooc_fw.solver.loop import solve_problem
from ooc_fw.solver.plan import Session, plan_exact
from ooc_fw.solver.state import Callback, Solution, SolverState, Status, Warm, Work
from ooc_fw.system.errors import DeferredInterrupt

logger = logging.getLogger(__name__)

CHUNK_BYTES = 64 << 20
"""Decoded rows of a source that make one chunk."""


@dataclass(frozen=True)
class Stream:
    """A binary classifier for each pair of classes, all of which have seen `n_rows` rows.

    ``ooc-fw help data`` says what is promised of it. Of the options, `C`, `tol`, `stopping` and
    `threads` are used.
    """

    kernel: Kernel
    n_classes: int
    options: TrainOptions
    keep: int = KEEP.default  # largest number of support vectors of a pair between two chunks
    n_rows: int = 0
    n_features: int = 0  # of the widest row so far
    # Of each pair, None before its first row; `rows` are positions in the stream.
    solutions: tuple[Solution | None, ...] = ()
    shares: tuple[float, ...] = ()  # of the rows that are learned, of each pair

    @classmethod
    def after(cls, model: Model, options: TrainOptions, keep: int, n_rows: int) -> Stream:
        """What goes on from an exact model of `n_rows` rows."""
        known = options, keep, n_rows, model.n_features, tuple(solutions_of(model))
        return cls(model.kernel, len(model.classes), *known)

    def changed(self, options: TrainOptions, keep: int) -> Stream:
        """The same with other options; if more rows are kept, all rows are learned again."""
        shares = () if keep > self.keep else self.shares
        return replace(self, options=options, keep=keep, shares=shares)

    def learn(
        self, source: RowSource, codes: Int64Array, callbacks: Sequence[Callback] = ()
    ) -> Stream:
        """The stream after all rows of `source`, whose classes are `codes`.

        Columns that a row lacks are zeros. InputError is raised for values too large for the kernel
        in float32.
        """
        after = self
        for start, rows in iter_blocks(source, 0, source.n_rows, CHUNK_BYTES):
            after = after._with_chunk(rows, codes[start : start + len(rows)], callbacks)
        return after

    def _with_chunk(self, rows: Rows, codes: Int64Array, callbacks: Sequence[Callback]) -> Stream:
        width = max(self.n_features, rows.shape[1])
        # From a quarter of nonzero values on, rows are held dense.
        sparse = isinstance(rows, CSRRows) and 4 * len(rows.data) < len(rows) * width
        rows = _in_form(rows, width, sparse=sparse)
        pairs = class_pairs(self.n_classes)
        solutions = [*self.solutions] or [None] * len(pairs)
        shares = [*self.shares] or [1.0] * len(pairs)
        for k, (negative, positive) in enumerate(pairs):
            before = solutions[k]
            if before is not None:
                vectors = _in_form(before.support_vectors, width, sparse=sparse)
                solutions[k] = before = replace(before, support_vectors=vectors)
            chosen = np.flatnonzero((codes == negative) | (codes == positive))
            if len(chosen) > 0:
                labels = np.where(codes[chosen] == positive, 1, -1).astype(np.int8)
                new = take_rows(rows, chosen), labels, self.n_rows + chosen
                solutions[k], shares[k] = self._step(before, shares[k], *new, callbacks)
        n_rows = self.n_rows + len(rows)
        if min(shares) < 1 == min(self.shares, default=1):
            logger.warning(
                "after %d rows there are more support vectors than a stream keeps: it learns from "
                "a random share of the rows, past and future; fit with landmarks learns from all",
                n_rows,
            )
        found: dict[str, Any] = {"solutions": tuple(solutions), "shares": tuple(shares)}
        return replace(self, n_rows=n_rows, n_features=width, **found)

    def _step(
        self,
        before: Solution | None,
        share: float,
        rows: Rows,
        labels: Int8Array,
        places: Int64Array,
        callbacks: Sequence[Callback],
    ) -> tuple[Solution, float]:
        """Solution of the vertices before and further rows, and the share that it learned from."""
        alpha = np.zeros(len(rows))
        if before is not None:
            rows = concat_rows([before.support_vectors, rows])
            labels = np.concatenate([before.labels, labels])
            places = np.concatenate([before.rows, places])
            alpha = np.concatenate([before.alpha, alpha])
        draws, first, groups = _draws(rows, labels)
        weights = np.bincount(groups, alpha).astype(np.float64)
        while True:
            learned = np.flatnonzero(draws <= share)
            chosen = first[learned]
            given = take_rows(rows, chosen), labels[chosen], weights[learned]
            solution = self._solve(*given, callbacks)
            support = learned[solution.rows]
            if solution.status is not Status.SUPPORT_LIMIT and len(support) <= self.keep:
                break
            weights[:] = 0
            weights[support] = solution.alpha
            most = min(self.keep, len(support) * 4 // 5)
            share = float(np.sort(draws[support])[most - 1])
        # The gap over rows that were left out is unknown.
        gap = solution.certified_gap if len(learned) == len(first) else None
        status = Status.STREAMED if solution.status.reached else Status.UNSETTLED
        solution = replace(solution, status=status, sampled_gap=gap, certified_gap=None)
        return replace(solution, rows=places[first[support]]), share

    def _solve(
        self,
        rows: Rows,
        labels: Int8Array,
        alpha: Float64Array,
        callbacks: Sequence[Callback] = (),
    ) -> Solution:
        """Solution of some rows, beginning with these weights unless all are 0."""
        problem = BinaryProblem(rows_source(rows, "the chunk"), labels, self.kernel, partial=True)
        names = "C", "tol", "stopping", "threads"
        how: dict[str, Any] = {name: getattr(self.options, name) for name in names}
        plan = plan_exact(problem, TrainOptions(**how))
        room = min(plan.memory.max_vertices, self.keep + max(512, self.keep // 4))
        plan = replace(plan, memory=replace(plan.memory, max_vertices=room))
        support = np.flatnonzero(alpha)
        warm = Warm(support, alpha[support]) if len(support) > 0 else None
        interrupt = DeferredInterrupt()  # a signal may come after the run has last checked for one
        with interrupt:
            session = Session(callbacks, interrupt=interrupt)
            solution = solve_problem(problem, plan, session, warm)
        if interrupt.noted is not None or solution.status.was_asked_for:
            raise KeyboardInterrupt(interrupt.noted)
        return solution

    @cached_property
    def pairs(self) -> list[PairSolution]:
        """Solution of each pair; of one without any row yet, one that takes its first class.

        That one has the weight 1 on a support vector of another pair. With kernel values above -1
        it never decides: a class of which rows were seen has the votes of all its pairs with
        others.
        """
        known = next(one for one in self.solutions if one is not None)
        stand_in = known
        if None in self.solutions:
            row = take_rows(known.support_vectors, np.arange(1))
            stand_in = replace(
                self._solve(row, np.array([-1], np.int8), np.zeros(1)),
                rows=known.rows[:1],
                status=Status.STREAMED,
                sampled_gap=None,
                certified_gap=None,
            )
        return [
            PairSolution(*pair, solution or stand_in, solution is None)
            for pair, solution in zip(class_pairs(self.n_classes), self.solutions, strict=True)
        ]

    def model(self, classes: npt.NDArray[Any], like: RowSource | Model | None) -> Model:
        """The model so far, whose scaling and names of columns are those of `like`."""
        pairs = self.pairs
        vectors = concat_rows([pair.solution.support_vectors for pair in pairs])
        if len(pairs) > 1:
            rows = np.concatenate([pair.solution.rows for pair in pairs])
            vectors = take_rows(vectors, np.unique(rows, return_index=True)[1])
        about: dict[str, Any] = {"kernel": self.kernel, "C": self.options.C}
        return Model.of(pairs, like, classes=classes, vectors=vectors, **about)


def _draws(rows: Rows, labels: Int8Array) -> tuple[Float64Array, Int64Array, Int64Array]:
    """Random numbers in [0, 1] that equal rows share, and what is equal, label and all.

    That is the first of each group, and the group of each row. Rows of one 64-bit hash are taken
    for equal: two others are not to be expected below a billion rows.
    """
    sparse = rows if isinstance(rows, CSRRows) else CSRRows.from_dense(rows)
    hashes = row_hashes(sparse)  # that of a row does not depend on the form it is held in
    keys = np.column_stack([hashes, labels == 1])
    _, first, groups = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    return hashes[first] / 2.0**64, first, groups.reshape(-1)


def _in_form(rows: Rows, n_features: int, *, sparse: bool) -> Rows:
    """Rows of at least as many columns as they have, dense or sparse."""
    if rows.shape[1] == n_features and isinstance(rows, CSRRows) == sparse:
        return rows
    rows = rows if isinstance(rows, CSRRows) else CSRRows.from_dense(rows)
    wide = replace(rows, n_features=n_features)
    return wide if sparse else wide.toarray()


def solutions_of(model: Model) -> list[Solution | None]:
    """Solution of each classifier of an exact model, with its support vectors and no work.

    None for a classifier that stands in for classes of which no row was seen: it has one vector,
    and no gap.
    """
    names = "alpha", "labels", "rho", "certified_gap", "sampled_gap"
    about: dict[str, Any] = {"method": TrainOptions.method, "lmo": "", "choice": "", "steps": {}}
    about |= vars(Work.of(SolverState(), 1, 1)) | {"pair_gap": None}
    about["status"] = Status(model.status)
    solutions: list[Solution | None] = []
    for one in model.classifiers:
        given = about | {name: getattr(one, name) for name in names}
        given |= {"rows": model.rows[one.sv], "objective": one.rho / 2}
        given["penalties"] = None if model.penalties is None else model.penalties[one.sv]
        given["support_vectors"] = take_rows(model.support_vectors, one.sv)
        stands_in = len(one.sv) == 1 and one.certified_gap is None and one.sampled_gap is None
        solutions.append(None if stands_in else Solution(**given))
    return solutions
