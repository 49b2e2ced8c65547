"""Training on rows that come by once, chunk after chunk: a binary classifier for each two classes.

for each chunk of rows
    train on the vertices and the rows of the chunk, beginning with the weights before
    if there are more than `max_support` support vectors: forget some, train on the others
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

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
    rows_bytes,
    take_rows,
    values_of,
)
from ooc_fw.data.sources import RowSource, iter_blocks, rows_source
from ooc_fw.kernels.arithmetic import choose_arithmetic
from ooc_fw.kernels.engine import Engine
from ooc_fw.kernels.functions import Kernel
from ooc_fw.model.pairs import PairSolution, class_pairs
from ooc_fw.model.record import Model
from ooc_fw.options import KEEP, TrainOptions
from ooc_fw.problem import BinaryProblem, StoppingTest, relative_gap
from ooc_fw.solver.kernel_rows import KernelRows
from ooc_fw.solver.loop import solve_problem
from ooc_fw.solver.oracles import LARGEST_BLOCK
from ooc_fw.solver.plan import Plan, Session, plan_exact
from ooc_fw.solver.state import Callback, Phase, Solution, SolverState, Status, Warm, Work
from ooc_fw.solver.steps import LEAST_BATCH
from ooc_fw.system.errors import InputError, format_label
from ooc_fw.system.interrupt import DeferredInterrupt, interruption
from ooc_fw.system.memory import kernel_rows_budget

logger = logging.getLogger(__name__)

POOL_BYTES = 64 << 20
"""Decoded rows of a source that make one chunk."""

_OF_SOLUTION = ("alpha", "labels", "rows", "rho", "objective", "certified_gap", "sampled_gap")
_PROBE_ROWS = 1024  # first rows, whose density says whether rows are stored dense or sparse
_DENSE_FROM = 0.25  # share of nonzero values from which sparse rows are stored dense
_FULL_ROWS = 2048  # rows up to which a run keeps the gradient of all, and needs no certificate
_HASHED_ROWS = 16384  # rows that are hashed together
_ALL = 0xFFFFFFFFFFFFFFFF  # threshold of draws that admits every row
_MIX = np.uint64(0x9E3779B97F4A7C15)  # odd, so that multiplication by it permutes uint64


class _Candidates(NamedTuple):
    """Rows that are vertices or may become some, with the weights that they have."""

    ids: Int64Array  # see `vertex_ids`; odd for the label +1
    labels: Int8Array
    penalties: Float64Array  # factors of C
    places: Int64Array  # positions in the stream
    alpha: Float64Array
    rows: Rows

    def take(self, chosen: Int64Array) -> _Candidates:
        """Some of the rows."""
        vectors: Any = self[:-1]
        return _Candidates._make(
            [*(vector[chosen] for vector in vectors), take_rows(self.rows, chosen)]
        )

    def with_rows(self, others: _Candidates) -> _Candidates:
        """These rows and, behind them, others."""
        pairs: Any = zip(self[:-1], others[:-1], strict=True)
        return _Candidates._make(
            [*map(np.concatenate, pairs), concat_rows([self.rows, others.rows])]
        )

    def distinct(self) -> _Candidates:
        """The different rows, in their order; `alpha` of equal ones is added up."""
        _, first, inverse = np.unique(self.ids, return_index=True, return_inverse=True)
        if len(first) == len(self.ids):
            return self
        sums = np.zeros(len(self.ids))
        np.add.at(sums, first[inverse], self.alpha)
        return self._replace(alpha=sums).take(np.sort(first))


class PairStreams:
    """A binary classifier for each pair of classes, all of which see each row once.

    ``ooc-fw help streams`` says what is promised of it. It can be pickled and copied. Of the
    `options`, `C`, `tol`, `stopping` and `threads` are used.
    `max_support` is the largest number of support vectors of a pair between two chunks: within a
    chunk there may be a quarter more vertices, and at least 512 more.

    Each pair begins with its solution of `solutions_of`, trained on `n_rows` rows, if there are
    any; the weights of the streams are others. `n_features` is that of the widest row so far.

    Notes
    -----
    Beyond `max_support` a pair learns from a random share of the rows. Each row has a draw, a
    hash of its values. The rows with the smallest draws are kept, and rows with larger draws are
    ignored from then on. That share does not depend on the order of the rows. To keep the largest
    weights instead would collect the outliers of noisy data.
    """

    def __init__(
        self,
        n_classes: int,
        kernel: Kernel,
        options: TrainOptions,
        max_support: int = KEEP.default,
        solutions: Sequence[Solution | None] | None = None,
        n_rows: int = 0,
    ) -> None:
        self.kernel, self.n_rows, self._pairs = kernel, n_rows, class_pairs(n_classes)
        solutions = solutions or [None] * len(self._pairs)
        known = [solution.support_vectors for solution in solutions if solution is not None]
        self.n_features = known[0].shape[1] if known else 0
        self._sparse = bool(known) and isinstance(known[0], CSRRows)  # how rows are held
        self._streams = [_Stream(kernel, options.C, solution, n_rows) for solution in solutions]
        self._is_cut = False  # whether it has been said that rows are left out
        self.retune(options, max_support)

    @classmethod
    def after(
        cls, model: Model, options: TrainOptions, max_support: int, n_rows: int | None = None
    ) -> PairStreams:
        """Streams that go on from an exact model of `n_rows` rows.

        If that number is unknown, the last row is the last support vector.
        """
        if n_rows is None:
            n_rows = 1 + max(int(one.rows.max()) for one in model.classifiers)
        before = replace(options, C=model.C)
        n_classes, solutions = len(model.classes), solutions_of(model)
        streams = cls(n_classes, model.kernel, before, max_support, solutions, n_rows)
        streams.retune(options, max_support)
        return streams

    def retune(self, options: TrainOptions, max_support: int) -> None:
        """Change options between two calls of `learn`.

        InputError is raised for a bound or a stopping test that cannot be used; nothing changes.
        """
        if max_support < 2:
            raise InputError(f"a stream needs at least 2 support vectors, not {max_support}")
        diagonal = 2 + 1 / options.C if self.kernel.constant_diagonal else None
        StoppingTest(options.stopping, options.tol, diagonal)  # refuses what cannot be used
        self._options = TrainOptions(
            C=options.C, tol=options.tol, stopping=options.stopping, threads=options.threads
        )
        most_kept, wanted = max_support, max_support + max(LEAST_BATCH, max_support // 4)
        capacity = KernelRows(wanted, kernel_rows_budget(), self.kernel.constant_diagonal).capacity
        if capacity < wanted:
            most_kept = min(max_support, max(1, capacity * 4 // 5))
            words = "memory is free for the kernel rows of %d support vectors, not of %d"
            logger.warning(words, most_kept, max_support)
        for stream in self._streams:
            stream.retune(self._options, most_kept, capacity)

    def learn(
        self,
        source: RowSource,
        codes: Int64Array,
        weights: Float64Array | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        """Learn from all rows of `source`, whose classes are `codes`.

        `weights` are factors of the penalty of each row; rows of weight 0 are left out. Columns
        that a row lacks are zeros. What callbacks return is ignored. After an error or an interrupt
        everything is as it was before. InputError is raised for values too large for the kernel in
        float32.
        """
        weights = np.ones(source.n_rows) if weights is None else weights
        states = [(each, dict(vars(each))) for each in (self, *self._streams)]
        try:
            for start, rows in iter_blocks(source, 0, source.n_rows, POOL_BYTES):
                part = slice(start, start + len(rows))
                self._learn(rows, codes[part], weights[part], callbacks)
        except BaseException:
            for each, state in states:
                each.__dict__.update(state)
            raise

    def _learn(
        self, rows: Rows, codes: Int64Array, weights: Float64Array, callbacks: Sequence[Callback]
    ) -> None:
        if rows.shape[1] > self.n_features:  # all rows are held as wide as these, dense or sparse
            self.n_features = rows.shape[1]
            probe = rows[:_PROBE_ROWS]
            share = np.count_nonzero(values_of(probe)) / (len(probe) * self.n_features)
            self._sparse = isinstance(rows, CSRRows) and bool(share < _DENSE_FROM)
        rows = _in_form(rows, self.n_features, sparse=self._sparse)
        ids = vertex_ids(rows, weights)
        for pair, stream in zip(self._pairs, self._streams, strict=True):
            chosen = np.flatnonzero(np.isin(codes, pair) & (weights > 0))
            if len(chosen) > 0:
                is_second = codes[chosen] == pair[1]
                labels = np.where(is_second, 1, -1).astype(np.int8)
                of_pair = rows if len(chosen) == len(rows) else take_rows(rows, chosen)
                places, alpha = self.n_rows + chosen, np.zeros(len(chosen))
                chunk = ids[chosen] | is_second, labels, weights[chosen], places, alpha, of_pair
                stream.learn(_Candidates(*chunk), callbacks)
        if not self._is_cut and any(stream.is_cut for stream in self._streams):
            self._is_cut = True
            logger.warning(
                "after %d rows there are more support vectors than a stream keeps: it learns from "
                "a random share of the rows, past and future; fit with landmarks learns from all",
                self.n_rows + len(rows),
            )
        self.n_rows += len(rows)

    def solutions(self) -> list[PairSolution]:
        """Solution of each pair; of a pair without any row yet, one that takes its first class.

        That one has the weight 1 on a support vector of another pair. With kernel values above -1
        it never decides: a class of which rows were seen has the votes of all its pairs with
        others. ``rows`` are positions in the stream.
        """
        solutions = [
            stream.solution_like(self.n_features, self._sparse) for stream in self._streams
        ]
        known = next(stream for stream in self._streams if stream.solution is not None)
        return [
            PairSolution(*pair, solution or known.stand_in(), solution is None)
            for pair, solution in zip(self._pairs, solutions, strict=True)
        ]


class _Stream:
    """The classifier of one pair of classes; what it refers to is replaced, never changed."""

    def __init__(self, kernel: Kernel, C: float, solution: Solution | None, n_rows: int) -> None:
        self.kernel, self.solution, self.n_rows = kernel, solution, n_rows
        self.progress = SolverState(phase=Phase.STREAM)
        self._kept = _kept_of(solution, C)
        self._threshold = _ALL  # rows with a larger draw are ignored
        self._options, self._most_kept, self._capacity = TrainOptions(C=C), 0, 0

    def retune(self, options: TrainOptions, most_kept: int, capacity: int) -> None:
        """Change options: also support vectors kept between chunks, and vertices within one."""
        if most_kept > self._most_kept:
            self._threshold = _ALL
        self._options, self._most_kept, self._capacity = options, most_kept, capacity

    def solution_like(self, n_features: int, sparse: bool) -> Solution | None:
        """The solution, if any, with support vectors of this form."""
        if self.solution is None:
            return None
        before = self.solution.support_vectors
        vectors = _in_form(before, n_features, sparse=sparse)
        return (
            self.solution if vectors is before else replace(self.solution, support_vectors=vectors)
        )

    def stand_in(self) -> Solution:
        """A solution that takes the first class of any row."""
        stream = _Stream(self.kernel, self._options.C, None, 0)
        stream.retune(self._options, self._most_kept, self._capacity)
        row = self._kept.take(np.arange(1))
        stream.learn(row._replace(labels=np.array([-1], dtype=np.int8), alpha=np.zeros(1)))
        assert stream.solution is not None
        return stream.solution

    @property
    def is_cut(self) -> bool:
        """Whether it learns from a share of the rows."""
        return self._threshold < _ALL

    def admits(self, ids: Int64Array) -> npt.NDArray[np.bool_]:
        """Which rows, by their ids, are learned from."""
        return _draws(ids) <= np.uint64(self._threshold)

    def learn(self, chunk: _Candidates, callbacks: Sequence[Callback] = ()) -> None:
        """Learn from a chunk; the weights after it are the solution of the stream."""
        new = chunk.distinct()
        if len(self._kept.ids) == 0:
            self._kept = new.take(np.arange(0))
        form = {"n_features": new.rows.shape[1], "sparse": isinstance(new.rows, CSRRows)}
        self._kept = self._kept._replace(rows=_in_form(self._kept.rows, **form))
        self.progress = self.progress.copy()
        self.progress.rows_read += len(chunk.ids)
        self.progress.bytes_read += rows_bytes(chunk.rows)
        solution, ignored = self._train(new, callbacks), np.ones(len(new.ids), dtype=bool)
        while solution.status is Status.SUPPORT_LIMIT:
            self._forget(self._threshold * 4 // 5)
            solution = self._train(new, callbacks)
        if len(solution.alpha) <= self._most_kept:
            ignored = ~self.admits(new.ids)
        else:
            self._forget(self._threshold)
            solution = self._train(new.take(np.arange(0)), callbacks)
        gap = solution.sampled_gap if solution.certified_gap is None else solution.certified_gap
        assert gap is not None
        if self.is_cut:
            gap = max(gap, self._gap_over(new.take(np.flatnonzero(ignored)), solution))
        settled = solution.status.reached
        if not settled and (self.solution is None or self.solution.status != Status.UNSETTLED):
            words = "the stream does not settle at C = %g: the gap over the last rows is %.3g; "
            logger.warning(words + "lower C or scale the columns", self._options.C, gap)
        self.n_rows += len(chunk.ids)
        self.progress.sampled_gap = gap
        self.solution = replace(
            solution,
            **vars(Work.of(self.progress, self.n_rows, len(solution.alpha))),
            status=Status.STREAMED if settled else Status.UNSETTLED,
            lmo="stream",
            choice=f"corrective steps on the active set, {self.n_rows} rows seen once",
            rows=self._kept.places,
            sampled_gap=gap,
            certified_gap=None,
            pair_gap=None,
            steps=self.progress.steps,
        )
        for callback in callbacks:
            callback(self.progress.copy())

    def _train(self, new: _Candidates, callbacks: Sequence[Callback]) -> Solution:
        """Train on the rows kept, and on those of the new ones that are learned from."""
        known, before, C = self._kept, self.progress, self._options.C
        learned = np.flatnonzero(self.admits(new.ids) & ~np.isin(new.ids, known.ids))
        rows = known.with_rows(new if len(learned) == len(new.ids) else new.take(learned))
        penalties = None if (rows.penalties == 1).all() else C * rows.penalties
        source = rows_source(rows.rows, "the chunk")
        problem = BinaryProblem(source, rows.labels, self.kernel, penalties, partial=True)
        warm = Warm(np.arange(len(known.ids)), known.alpha) if len(known.ids) > 0 else None

        def tell(state: SolverState) -> None:
            self.progress = _total(before, state)
            for callback in callbacks:
                callback(self.progress.copy())

        interrupt = DeferredInterrupt()  # a signal may come after the run has last checked for one
        with interrupt:
            session = Session([tell], interrupt=interrupt)
            solution = solve_problem(problem, self._plan_of(problem), session, warm)
        if interrupt.noted is not None or solution.status.was_asked_for:
            raise interruption(interrupt.noted)
        self._kept = rows.take(solution.rows)._replace(alpha=solution.alpha)
        return solution

    def _plan_of(self, problem: BinaryProblem) -> Plan:
        """Plan of a run; few rows have no certificate, since the gradient of all is kept."""
        many = problem.source.n_rows > _FULL_ROWS
        options = replace(self._options, lmo="sampled" if many else "full", certify=many)
        plan = plan_exact(problem, options)
        memory = replace(
            plan.memory,
            max_vertices=self._capacity,
            max_block=LARGEST_BLOCK,
            kernel_values=kernel_rows_budget(),
        )
        return replace(plan, memory=memory)

    def _forget(self, threshold: int) -> None:
        """Keep no more support vectors than there may be, and of draws up to a threshold."""
        draws = np.sort(_draws(self._kept.ids))
        if len(draws) > self._most_kept:
            threshold = min(threshold, int(draws[self._most_kept - 1]))
        self._threshold = max(threshold, int(draws[0]))
        self._kept = self._kept.take(np.flatnonzero(self.admits(self._kept.ids)))

    def _gap_over(self, rows: _Candidates, solution: Solution) -> float:
        """Relative gap over rows that were not trained on, in float64."""
        rows = rows.take(np.flatnonzero(~np.isin(rows.ids, self._kept.ids)))
        vectors, least = solution.support_vectors, np.inf
        with Engine(
            self.kernel, self._options.threads, choose_arithmetic(self.kernel, vectors)
        ) as engine:
            z = engine.prepare(vectors, exact=True)
            beta = solution.alpha * solution.labels
            for start in range(0, len(rows.ids), LARGEST_BLOCK):
                part = slice(start, start + LARGEST_BLOCK)
                x = engine.prepare(rows.rows[part], exact=True)
                sums = engine.weighted_sum(x, z, beta) + beta.sum()
                least = min(least, float((rows.labels[part] * sums).min()))
            self.progress.kernel_evaluations += engine.evaluations
        return relative_gap(solution.rho, least)


def _total(before: SolverState, state: SolverState) -> SolverState:
    """Progress of a stream that was `before` a run, whose own is `state`."""
    return replace(
        state,
        phase=Phase.STREAM,
        iteration=before.iteration + state.iteration,
        certified_gap=None,
        rows_read=before.rows_read,
        bytes_read=before.bytes_read,
        kernel_evaluations=before.kernel_evaluations + state.kernel_evaluations,
        elapsed_s=before.elapsed_s + state.elapsed_s,
        sweep_fraction=None,
        steps={kind: n + state.steps[kind] for kind, n in before.steps.items()},
    )


def vertex_ids(rows: Rows, weights: Float64Array) -> Int64Array:
    """An even number for each row that equal rows of one weight share, shape (n_rows,).

    It is a 64-bit hash. Two different rows may share one, and one of them is ignored then, but that
    is not to be expected below a billion rows. Zeros do not count, so that dense, sparse and wider
    forms of a row have the same number.
    """
    ids = np.empty(len(rows), dtype=np.int64)
    for start in range(0, len(rows), _HASHED_ROWS):
        part = rows[start : start + _HASHED_ROWS]
        stored = part if isinstance(part, CSRRows) else CSRRows.from_dense(part)
        hashes = row_hashes(keep_stored(stored, stored.data != 0, stored.n_features))
        factors = np.ascontiguousarray(weights[start : start + len(part)], dtype=np.float64)
        hashes = hashes ^ _draws((factors - 1).view(np.int64))  # that of weight 1 is 0
        ids[start : start + len(part)] = hashes.view(np.int64)
    return ids & ~1


def _draws(ids: Int64Array) -> npt.NDArray[np.uint64]:
    """Numbers that are spread evenly over all of uint64, one for each id."""
    mixed = ids.view(np.uint64) * _MIX
    return mixed ^ (mixed >> np.uint64(32))


def _in_form(rows: Rows, n_features: int, *, sparse: bool) -> Rows:
    """Rows of at least as many columns as they have, dense or sparse."""
    if rows.shape[1] == n_features and isinstance(rows, CSRRows) == sparse:
        return rows
    rows = rows if isinstance(rows, CSRRows) else CSRRows.from_dense(rows)
    wide = replace(rows, n_features=n_features)
    return wide if sparse else wide.toarray()


def _kept_of(solution: Solution | None, C: float) -> _Candidates:
    """The support vectors of a solution, if any, whose penalties are factors of `C`."""
    if solution is None:
        ids, none = np.empty(0, dtype=np.int64), np.empty(0)
        empty = np.empty((0, 0), dtype=np.float32)
        return _Candidates(ids, ids.astype(np.int8), none, ids, none, empty)
    labels, rows = solution.labels, solution.support_vectors
    weights = np.ones(len(rows)) if solution.penalties is None else solution.penalties / C
    ids = vertex_ids(rows, weights) | (labels > 0)
    return _Candidates(ids, labels, weights, solution.rows, solution.alpha, rows).distinct()


def solutions_of(model: Model) -> list[Solution | None]:
    """Solution of each classifier of an exact model, with its support vectors and no work.

    None for a classifier that stands in for classes of which no row was seen: its only vector is of
    its first class there, and of another one elsewhere.
    """
    classes: dict[int, set[Any]] = {}
    for one in model.classifiers:
        for row, label in zip(one.rows.tolist(), one.labels.tolist(), strict=True):
            classes.setdefault(row, set()).add(one.positive if label > 0 else one.negative)
    no_work = vars(Work.of(SolverState(), 1, 1))
    return [
        None
        if len(one.rows) == 1 and one.labels[0] < 0 and len(classes[int(one.rows[0])]) > 1
        else Solution(
            **no_work,
            **{name: getattr(one, name) for name in _OF_SOLUTION},
            status=Status(model.status),
            method=TrainOptions.method,
            lmo="",
            choice="",
            support_vectors=take_rows(model.support_vectors, one.sv),
            pair_gap=None,
            steps={},
            penalties=one.C,
        )
        for one in model.classifiers
    ]


def factors_of_classes(model: Model) -> Float64Array:
    """Factor of C of the rows of each class; InputError if rows of one class have several."""
    factors = np.full(len(model.classes), np.nan)
    for pair, solution in zip(class_pairs(len(factors)), solutions_of(model), strict=True):
        for code, label in zip(pair, (-1, 1), strict=True):
            if solution is not None and solution.penalties is not None:
                found = np.unique(solution.penalties[solution.labels == label] / model.C)
                known = factors[code : code + 1]
                factors[code : code + 1] = found[:1] if np.isnan(known).all() else known
                if not np.allclose(found, factors[code]):
                    raise InputError(
                        f"the training rows of class {format_label(model.classes[code])} had "
                        f"different weights, so that of new rows is unknown; use partial_fit in "
                        f"Python, with sample_weight"
                    )
    return np.where(np.isnan(factors), 1.0, factors)


def support_of_classes(pairs: Sequence[PairSolution], n_classes: int) -> npt.NDArray[np.int32]:
    """Number of rows of each class among the support vectors of all pairs."""
    pairs = [pair for pair in pairs if not pair.stands_in]
    codes = [np.where(pair.solution.labels > 0, pair.positive, pair.negative) for pair in pairs]
    rows = np.concatenate([pair.solution.rows for pair in pairs])
    _, first = np.unique(rows, return_index=True)
    return np.bincount(np.concatenate(codes)[first], minlength=n_classes).astype(np.int32)


def union_of_vectors(pairs: Sequence[PairSolution]) -> Rows:
    """Support vectors of all pairs, the rows `union_of_rows`."""
    solutions = [pair.solution for pair in pairs]
    if len(solutions) == 1:
        return solutions[0].support_vectors
    _, first = np.unique(np.concatenate([each.rows for each in solutions]), return_index=True)
    return take_rows(concat_rows([each.support_vectors for each in solutions]), first)
