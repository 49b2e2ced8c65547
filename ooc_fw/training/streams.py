"""Training on rows that come by once, chunk after chunk: a binary classifier for each two classes.

for each chunk of rows
    train on the support vectors and the rows of the chunk, beginning with the weights before
    while there are more than `keep` support vectors: leave rows out, and train on the others

Beyond `keep` a pair of classes learns from a random share of the rows: those whose hash is small.
The share does not depend on the order of the rows. To keep the rows of largest weight instead would
collect the outliers of noisy data.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
    keep_stored,
    row_hashes,
    take_rows,
)
from ooc_fw.data.sources import RowSource, iter_blocks, rows_source
from ooc_fw.kernels.functions import Kernel
from ooc_fw.model.pairs import PairSolution, class_pairs
from ooc_fw.model.record import Model
from ooc_fw.options import KEEP, TrainOptions
from ooc_fw.problem import BinaryProblem
from ooc_fw.solver.loop import solve_problem
from ooc_fw.solver.plan import Session, plan_exact
from ooc_fw.solver.state import Callback, Solution, SolverState, Status, Warm, Work
from ooc_fw.system.errors import InputError, format_label
from ooc_fw.system.interrupt import DeferredInterrupt, interruption

logger = logging.getLogger(__name__)

CHUNK_BYTES = 64 << 20
"""Decoded rows of a source that make one chunk."""

_DENSE_FROM = 0.25  # share of nonzero values from which sparse rows are held dense
_FULL_ROWS = 2048  # rows up to which a run keeps the gradient of all, and needs no certificate
_LEAST_ROOM = 512  # vertices beyond `keep` within a chunk, unless a quarter of it is more
_HASHED_ROWS = 16384  # rows that are hashed together
_MIX = np.uint64(0x9E3779B97F4A7C15)  # odd, so that multiplication by it permutes uint64
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)  # hash up to which all rows are learned


@dataclass(frozen=True)
class Stream:
    """A binary classifier for each pair of classes, all of which have seen `n_rows` rows.

    ``ooc-fw help streams`` says what is promised of it. Of the options, `C`, `tol`, `stopping` and
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
    shares: tuple[np.uint64, ...] = ()  # hash up to which rows are learned, of each pair

    @classmethod
    def after(cls, model: Model, options: TrainOptions, keep: int, n_rows: int) -> Stream:
        """What goes on from an exact model of `n_rows` rows."""
        known = replace(options, C=model.C), keep, n_rows, model.n_features
        before = cls(model.kernel, len(model.classes), *known, tuple(solutions_of(model)))
        return before.changed(options, keep)

    def changed(self, options: TrainOptions, keep: int) -> Stream:
        """The same with other options; if more rows are kept, all rows are learned again."""
        solutions = [*self.solutions]
        for k, one in enumerate(solutions):
            if one is not None and one.penalties is not None:
                solutions[k] = replace(one, penalties=options.C / self.options.C * one.penalties)
        shares = () if keep > self.keep else self.shares
        return replace(self, options=options, keep=keep, solutions=tuple(solutions), shares=shares)

    def learn(
        self,
        source: RowSource,
        codes: Int64Array,
        weights: Float64Array | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> Stream:
        """The stream after all rows of `source`, whose classes are `codes`.

        `weights` are factors of the penalty of each row; rows of weight 0 are left out. Columns
        that a row lacks are zeros. InputError is raised for values too large for the kernel in
        float32.
        """
        after = self
        weights = np.ones(source.n_rows) if weights is None else weights
        for start, rows in iter_blocks(source, 0, source.n_rows, CHUNK_BYTES):
            part = slice(start, start + len(rows))
            after = after._with_chunk(rows, codes[part], weights[part], callbacks)
        return after

    def _with_chunk(
        self, rows: Rows, codes: Int64Array, weights: Float64Array, callbacks: Sequence[Callback]
    ) -> Stream:
        width = max(self.n_features, rows.shape[1])
        sparse = isinstance(rows, CSRRows) and len(rows.data) < _DENSE_FROM * len(rows) * width
        rows = _in_form(rows, width, sparse=sparse)
        pairs = class_pairs(self.n_classes)
        solutions = [*self.solutions] or [None] * len(pairs)
        shares = [*self.shares] or [_ALL] * len(pairs)
        for k, pair in enumerate(pairs):
            before = solutions[k]
            if before is not None:
                vectors = _in_form(before.support_vectors, width, sparse=sparse)
                solutions[k] = before = replace(before, support_vectors=vectors)
            chosen = np.flatnonzero(np.isin(codes, pair) & (weights > 0))
            if len(chosen) > 0:
                labels = np.where(codes[chosen] == pair[1], 1, -1).astype(np.int8)
                new = take_rows(rows, chosen), labels, weights[chosen], self.n_rows + chosen
                solutions[k], shares[k] = self._step(before, shares[k], new, callbacks)
        n_rows = self.n_rows + len(rows)
        if min(shares) < _ALL == min(self.shares, default=_ALL):
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
        share: np.uint64,
        new: tuple[Rows, Int8Array, Float64Array, Int64Array],
        callbacks: Sequence[Callback],
    ) -> tuple[Solution, np.uint64]:
        """Solution of the vertices before and further rows, and the share that it learned from."""
        rows, labels, factors, places = new
        alpha = np.zeros(len(labels))
        if before is not None:
            known = np.ones(len(before.rows))
            if before.penalties is not None:
                known = before.penalties / self.options.C
            rows = concat_rows([before.support_vectors, rows])
            labels = np.concatenate([before.labels, labels])
            factors = np.concatenate([known, factors])
            places = np.concatenate([before.rows, places])
            alpha = np.concatenate([before.alpha, alpha])
        # Equal rows of one label and weight are one vertex, the first of them.
        hashes = vertex_hashes(rows, labels, factors)
        hashes, first, groups = np.unique(hashes, return_index=True, return_inverse=True)
        weights = np.asarray(np.bincount(groups, weights=alpha), dtype=np.float64)
        while True:
            learned = np.flatnonzero(hashes <= share)
            chosen = first[learned]
            vertices = take_rows(rows, chosen), labels[chosen], factors[chosen], weights[learned]
            solution = self._solve(*vertices, callbacks)
            support = learned[solution.rows]
            if solution.status is not Status.SUPPORT_LIMIT and len(support) <= self.keep:
                break
            weights = np.zeros(len(first))
            weights[support] = solution.alpha
            most = min(self.keep, len(support) * 4 // 5)
            share = np.partition(hashes[support], most - 1)[most - 1]
        gap = solution.sampled_gap if solution.certified_gap is None else solution.certified_gap
        status = Status.STREAMED if solution.status.reached else Status.UNSETTLED
        if status == Status.UNSETTLED and (before is None or before.status != status):
            logger.warning(
                "the stream does not settle at C = %g: the gap over the last rows is %.3g; lower C "
                "or scale the columns",
                self.options.C,
                gap,
            )
        gap = gap if len(learned) == len(first) else None  # that of rows left out is unknown
        solution = replace(solution, status=status, sampled_gap=gap, certified_gap=None)
        return replace(solution, rows=places[first[support]]), share

    def _solve(
        self,
        rows: Rows,
        labels: Int8Array,
        factors: Float64Array,
        alpha: Float64Array,
        callbacks: Sequence[Callback] = (),
    ) -> Solution:
        """Solution of some rows, beginning with these weights unless all are 0."""
        given = self.options
        penalties = None if (factors == 1).all() else given.C * factors
        source = rows_source(rows, "the chunk")
        problem = BinaryProblem(source, labels, self.kernel, penalties, partial=True)
        many = len(labels) > _FULL_ROWS
        how: dict[str, Any] = {"lmo": "sampled" if many else "full", "certify": many}
        for name in ("C", "tol", "stopping", "threads"):
            how[name] = getattr(given, name)
        plan = plan_exact(problem, TrainOptions(**how))
        room = min(plan.memory.max_vertices, self.keep + max(_LEAST_ROOM, self.keep // 4))
        plan = replace(plan, memory=replace(plan.memory, max_vertices=room))
        support = np.flatnonzero(alpha)
        warm = Warm(support, alpha[support]) if len(support) > 0 else None
        interrupt = DeferredInterrupt()  # a signal may come after the run has last checked for one
        with interrupt:
            session = Session(callbacks, interrupt=interrupt)
            solution = solve_problem(problem, plan, session, warm)
        if interrupt.noted is not None or solution.status.was_asked_for:
            raise interruption(interrupt.noted)
        return solution

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
            stand_in = self._solve(row, np.array([-1], np.int8), np.ones(1), np.zeros(1))
            stand_in = replace(stand_in, rows=known.rows[:1], status=Status.STREAMED)
        return [
            PairSolution(*pair, solution or stand_in, solution is None)
            for pair, solution in zip(class_pairs(self.n_classes), self.solutions, strict=True)
        ]

    def model(self, classes: npt.NDArray[Any], like: RowSource | Model | None) -> Model:
        """The model so far, whose scaling and names of columns are those of `like`."""
        pairs = self.pairs()
        vectors = concat_rows([pair.solution.support_vectors for pair in pairs])
        if len(pairs) > 1:
            rows = np.concatenate([pair.solution.rows for pair in pairs])
            vectors = take_rows(vectors, np.unique(rows, return_index=True)[1])
        about: dict[str, Any] = {"kernel": self.kernel, "C": self.options.C}
        return Model.of(pairs, like, classes=classes, vectors=vectors, **about)


def vertex_hashes(rows: Rows, labels: Int8Array, factors: Float64Array) -> npt.NDArray[np.uint64]:
    """A number for each row that equal rows of one label and weight share, shape (n_rows,).

    Two different rows may share one, and one of them is ignored then, but that is not to be
    expected below a billion rows. Zeros do not count: all forms of a row have the same number.
    """
    hashes = np.empty(len(rows), dtype=np.uint64)
    for start in range(0, len(rows), _HASHED_ROWS):
        part = rows[start : start + _HASHED_ROWS]
        stored = part if isinstance(part, CSRRows) else CSRRows.from_dense(part)
        nonzero = keep_stored(stored, stored.data != 0, stored.n_features)
        hashes[start : start + len(part)] = row_hashes(nonzero)
    for more in (factors.astype(np.float64).view(np.uint64), labels.astype(np.uint64)):
        hashes = (hashes ^ more) * _MIX
        hashes ^= hashes >> np.uint64(32)
    return hashes


def _in_form(rows: Rows, n_features: int, *, sparse: bool) -> Rows:
    """Rows of at least as many columns as they have, dense or sparse."""
    if rows.shape[1] == n_features and isinstance(rows, CSRRows) == sparse:
        return rows
    rows = rows if isinstance(rows, CSRRows) else CSRRows.from_dense(rows)
    wide = replace(rows, n_features=n_features)
    return wide if sparse else wide.toarray()


def solutions_of(model: Model) -> list[Solution | None]:
    """Solution of each classifier of an exact model, with its support vectors and no work.

    None for a classifier that stands in for classes of which no row was seen: its only vector is of
    its first class there, and of another one elsewhere.
    """
    names = "alpha", "labels", "rows", "rho", "objective", "certified_gap", "sampled_gap"
    about: dict[str, Any] = {"method": TrainOptions.method, "lmo": "", "choice": "", "steps": {}}
    about |= vars(Work.of(SolverState(), 1, 1)) | {"pair_gap": None, "status": model.status}
    sides = {
        (row, one.positive if label > 0 else one.negative)
        for one in model.classifiers
        for row, label in zip(one.rows.tolist(), one.labels.tolist(), strict=True)
    }
    several = [row for row, _ in sides]
    solutions: list[Solution | None] = []
    for one in model.classifiers:
        given = about | {name: getattr(one, name) for name in names} | {"penalties": one.C}
        given["support_vectors"] = take_rows(model.support_vectors, one.sv)
        stands_in = len(one.rows) == 1 and one.labels[0] < 0 and several.count(one.rows[0]) > 1
        solutions.append(None if stands_in else Solution(**given))
    return solutions


def factors_of_classes(model: Model) -> Float64Array:
    """Factor of C of the rows of each class; InputError if rows of one class have several."""
    factors = np.ones(len(model.classes))
    if model.penalties is None:
        return factors
    for k, name in enumerate(model.classes.tolist()):
        places = [one.sv[one.labels < 0] for one in model.classifiers if one.negative == name]
        places += [one.sv[one.labels > 0] for one in model.classifiers if one.positive == name]
        found = np.unique(model.penalties[np.concatenate(places)]) / model.C
        if not np.allclose(found, found[:1]):
            raise InputError(
                f"the training rows of class {format_label(name)} had different weights, so that "
                f"that of new rows is unknown; use partial_fit in Python, with sample_weight"
            )
        factors[k] = found[0] if len(found) else 1.0
    return factors


def support_of_classes(pairs: Sequence[PairSolution], n_classes: int) -> npt.NDArray[np.int32]:
    """Number of rows of each class among the support vectors of all pairs."""
    pairs = [pair for pair in pairs if not pair.stands_in]
    codes = [np.where(pair.solution.labels > 0, pair.positive, pair.negative) for pair in pairs]
    _, first = np.unique(np.concatenate([pair.solution.rows for pair in pairs]), return_index=True)
    return np.bincount(np.concatenate(codes)[first], minlength=n_classes).astype(np.int32)
