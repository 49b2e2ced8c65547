"""Training on rows that come by once, chunk after chunk: a binary classifier for each two classes.

for each chunk of rows
    train on the vertices and the rows of the chunk, beginning with the weights before
    if there are more than `max_support` support vectors: forget some, train on the others
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
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
    row_hashes,
    rows_bytes,
    take_rows,
)
from ooc_fw.data.sources import RowSource, iter_blocks, rows_source
from ooc_fw.kernels.engine import Engine
from ooc_fw.kernels.functions import Kernel
from ooc_fw.model.pairs import PairSolution, class_pairs, union_of_rows
from ooc_fw.model.record import Model
from ooc_fw.options import TrainOptions
from ooc_fw.problem import BinaryProblem, StoppingTest, check_signs, relative_gap
from ooc_fw.solver.active_set import ActiveSet
from ooc_fw.solver.kernel_rows import KernelRows
from ooc_fw.solver.loop import Path
from ooc_fw.solver.oracles import LARGEST_BLOCK
from ooc_fw.solver.plan import Session, plan_exact
from ooc_fw.solver.state import Callback, Phase, Solution, SolverState, Status
from ooc_fw.solver.steps import LEAST_BATCH
from ooc_fw.system.errors import InputError
from ooc_fw.system.interrupt import DeferredInterrupt, interruption
from ooc_fw.system.memory import MemoryPlan, kernel_rows_budget

logger = logging.getLogger(__name__)

MAX_SUPPORT = 10_000
"""Default of `max_support`. The kernel block of so many support vectors takes up to 625 MB."""

POOL_BYTES = 64 << 20
"""Decoded rows of a source that make one chunk."""

_SPARE_SHARE = 0.25  # share of `max_support` by which vertices may exceed it within a chunk
_PROBE_ROWS = 1024  # rows by which the storage of rows is chosen
_DENSE_FROM = 0.25  # share of nonzero values from which sparse rows are stored dense
_FULL_ROWS = 2048  # rows up to which a run keeps the gradient of all, and needs no certificate
_HASHED_ROWS = 16384  # rows that are hashed together
_ALL = 0xFFFFFFFFFFFFFFFF  # threshold of draws that admits every row
_MIX = np.uint64(0x9E3779B97F4A7C15)
"""Odd factor of a draw: multiplication by it is a permutation of uint64."""


class Chunk(NamedTuple):
    """Rows to learn from.

    `labels` are -1 or +1. `weights`, all positive, are factors of the penalty of each row, None
    for 1. `places` are the positions of the rows in the stream, which increase; None where they
    follow those of the chunk before.
    """

    rows: Rows
    labels: Int8Array
    weights: Float64Array | None = None
    places: Int64Array | None = None


class _Candidates(NamedTuple):
    """Different rows that may be vertices, with the weights that they have."""

    ids: Int64Array  # see `vertex_ids`
    labels: Int8Array
    weights: Float64Array  # factors of the penalty
    places: Int64Array  # positions in the stream
    alpha: Float64Array
    rows: Rows

    @classmethod
    def of(cls, chunk: Chunk, alpha: Float64Array | None = None) -> _Candidates:
        """The different rows of a chunk, in their order; `alpha` of equal ones is added up."""
        rows, labels, weights, places = chunk
        ids = vertex_ids(rows, labels, weights)
        _, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
        sums = np.zeros(len(ids))
        if alpha is not None:
            np.add.at(sums, first[inverse], alpha)
        weights = np.ones(len(ids)) if weights is None else weights
        assert places is not None
        every = cls(ids, labels, weights, places, sums, rows)
        return every if len(first) == len(ids) else every.take(np.sort(first))

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


class Stream:
    """A binary classifier that learns from chunks of rows, each of which is read once.

    A stream can be pickled and copied; the kernel block is computed again afterwards.

    Parameters
    ----------
    kernel : Kernel
        Kernel with its parameters.
    options : TrainOptions
        `C`, `tol`, `stopping` and `threads` are used, the other fields are not.
    max_support : int
        Largest number of support vectors between two chunks. Within a chunk there may be a quarter
        more vertices, and at least 512 more. So the kernel block takes at most
        ``6.25 max_support^2`` bytes if `max_support` is 2,048 or more, and twice that if C is so
        large that kernel values have to be float64.
    solution, n_rows : Solution and int, optional
        Weights to begin with, and from how many rows they come; those of the stream are others.

    Attributes
    ----------
    solution : Solution or None
        Weights after the last chunk. ``rows`` are positions in the stream, counted from 0;
        ``sampled_gap`` covers the rows of the last chunk and the active set.
    n_rows, n_features : int
        Number of rows so far, and of the columns of the widest of them.

    Notes
    -----
    Only the active set is remembered. A row that was no violator when it came by, or that was
    dropped or forgotten later, returns only if it comes again. So the result depends on the order
    of the rows, and the gap is known for the last chunk and the active set only: it is a sampled
    gap, no certificate. The weights are feasible for all rows of the stream, since every vertex is
    one of them.

    Rows with equal values, label and weight count once as long as one of them is a vertex. So a
    second pass over the same chunks continues the first: when no chunk contains a violator any
    more, and nothing was forgotten, the gap over all different rows is at most the tolerance.

    Beyond `max_support` the stream learns from a random share of the rows. Each row has a draw, a
    hash of its values. The rows with the smallest draws are kept, and rows with larger draws are
    ignored from then on. That share does not depend on the order of the rows. To keep the largest
    weights instead would collect the outliers of noisy data: on a8a, with 2,000 of 12,000 support
    vectors, it gave 29 % accuracy, and the random share 85 %.
    """

    def __init__(
        self,
        kernel: Kernel,
        options: TrainOptions,
        max_support: int = MAX_SUPPORT,
        *,
        solution: Solution | None = None,
        n_rows: int = 0,
    ) -> None:
        self.kernel, self.options, self.max_support = kernel, options, 0
        self.solution, self.n_rows, self.n_features = solution, n_rows, 0
        self.progress = SolverState(phase=Phase.STREAM)
        self._vertices: _Candidates | None = None  # those of weight 0, too
        self._active: ActiveSet | None = None  # the vertices in their order; None: to be made
        self._threshold = _ALL  # rows with a larger draw are ignored
        self._sparse = False  # whether rows are held sparse
        self._memory: MemoryPlan | None = None
        if solution is not None:
            vectors, penalties = solution.support_vectors, solution.penalties
            self.n_features = vectors.shape[1]
            weights = None if penalties is None else penalties / options.C
            chunk = Chunk(vectors, solution.labels, weights, solution.rows)
            self._vertices = _Candidates.of(chunk, solution.alpha)
        self.retune(options, max_support)

    def retune(self, options: TrainOptions, max_support: int) -> None:
        """Change options between two chunks.

        InputError is raised for a bound or a stopping test that cannot be used; nothing changes.
        """
        if max_support < 2:
            raise InputError(f"a stream needs at least 2 support vectors, not {max_support}")
        diagonal = 2 + 1 / options.C if self.kernel.constant_diagonal else None
        StoppingTest(options.stopping, options.tol, diagonal)  # refuses what cannot be used
        if options.C != self.options.C or max_support != self.max_support:
            self._active = None
        if max_support != self.max_support:
            if max_support > self.max_support:
                self._threshold = _ALL
            self._divide_memory(max_support)
        self.options, self.max_support = options, max_support
        self._run_options = TrainOptions(
            C=options.C, tol=options.tol, stopping=options.stopping, threads=options.threads
        )

    def _divide_memory(self, max_support: int) -> None:
        """Set how many vertices are kept between chunks, and how many there may be within one."""
        wanted, budget = max_support + max(LEAST_BATCH, max_support // 4), kernel_rows_budget()
        self._capacity = KernelRows(wanted, budget, self.kernel.constant_diagonal).capacity
        self._most_kept, self._memory = max_support, None
        if self._capacity < wanted:
            self._most_kept = min(max_support, max(1, self._capacity * 4 // 5))
            logger.warning(
                "memory is free for the kernel rows of %d support vectors, not of %d",
                self._most_kept,
                max_support,
            )

    def learn(
        self,
        chunks: Iterable[Chunk | tuple[Rows, Int8Array]],
        callbacks: Sequence[Callback] = (),
    ) -> None:
        """Learn from chunks, one after the other: rows, and +1 or -1 for each.

        Rows may have fewer or more columns than those before: columns that a row lacks are zeros.
        Callbacks are called while the stream trains; what they return is ignored. After an error or
        an interrupt everything is as it was before the first chunk. InputError is raised for labels
        other than -1 and +1, or values too large for the kernel in float32.
        """
        with _undone_by_errors([self]):
            for chunk in (Chunk(*given) for given in chunks):
                if len(chunk.rows) > 0:
                    self._learn(chunk, callbacks)

    def admits(self, ids: Int64Array) -> npt.NDArray[np.bool_]:
        """Which rows, by their `vertex_ids`, are learned from, shape (n_rows,)."""
        return _draws(ids) <= np.uint64(self._threshold)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_active": None}

    # -- chunks ----------------------------------------------------------------------------------

    def _learn(self, chunk: Chunk, callbacks: Sequence[Callback]) -> None:
        """Learn from a chunk; the weights after it are the solution of the stream."""
        rows, labels, _, places = chunk
        n_rows = len(rows)
        labels = check_signs(labels, n_rows, both=False)
        places = self.n_rows + np.arange(n_rows) if places is None else places
        self._choose_form(rows)
        chunk = chunk._replace(rows=self._in_form(rows), labels=labels, places=places)
        new = _Candidates.of(chunk)
        self.progress = self.progress.copy()
        self.progress.rows_read += n_rows
        self.progress.bytes_read += rows_bytes(rows)
        self._make_room(new, callbacks)
        solution = self._train(new, callbacks)
        while solution.status is Status.SUPPORT_LIMIT:
            self._forget(self._threshold * 4 // 5)
            solution = self._train(new, callbacks)
        ignored = ~self.admits(new.ids)
        if len(solution.alpha) > self._most_kept:
            self._forget(self._threshold)
            solution = self._train(new.take(np.arange(0)), callbacks)
            ignored[:] = True
        gap = solution.sampled_gap if solution.certified_gap is None else solution.certified_gap
        assert gap is not None
        if self._threshold < _ALL:
            gap = max(gap, self._gap_over(new.take(np.flatnonzero(ignored)), solution))
        settled, vertices = solution.status.reached, self._vertices
        assert vertices is not None
        if not settled and (self.solution is None or self.solution.status != Status.UNSETTLED):
            logger.warning(
                "the stream does not settle at C = %g: the gap over the last rows is %.3g; lower C "
                "or scale the columns",
                self.options.C,
                gap,
            )
        self.n_rows += n_rows
        work, self.progress.sampled_gap = self.progress, gap
        self.solution = replace(
            solution,
            status=Status.STREAMED if settled else Status.UNSETTLED,
            lmo="stream",
            choice=f"corrective steps on the active set, {self.n_rows} rows seen once",
            rows=vertices.places[vertices.alpha > 0],
            sampled_gap=gap,
            certified_gap=None,
            pair_gap=None,
            iterations=work.iteration,
            steps=work.steps,
            kernel_evaluations=work.kernel_evaluations,
            passes=work.kernel_evaluations / (self.n_rows * len(solution.alpha)),
            rows_read=work.rows_read,
            bytes_read=work.bytes_read,
            seconds=work.elapsed_s,
        )
        for callback in callbacks:
            callback(work.copy())

    def _make_room(self, new: _Candidates, callbacks: Sequence[Callback]) -> None:
        """Forget vertices before a large chunk that likely has too many of them.

        A part of it, which surely fits, tells how many.
        """
        known = np.empty(0, dtype=np.int64) if self._vertices is None else self._vertices.ids
        rows = np.flatnonzero(self.admits(new.ids) & ~np.isin(new.ids, known))
        room = self._capacity - len(known)
        if len(rows) <= room:
            return
        self._train(new.take(rows[:room]), callbacks)
        assert self._vertices is not None
        ids = self._vertices.ids
        share = np.count_nonzero(np.isin(new.ids[rows[:room]], ids)) / max(1, room)
        expected = len(ids) + share * (len(rows) - room)
        if expected > self._capacity:  # though their share falls as more rows are seen
            self._forget(int(self._threshold * (self._capacity / expected) ** 0.5))

    def _train(self, new: _Candidates, callbacks: Sequence[Callback]) -> Solution:
        """Train on the vertices, and on those of the new rows that are learned from."""
        known, C = self._vertices, self.options.C
        learned = self.admits(new.ids)
        if known is not None:
            learned &= ~np.isin(new.ids, known.ids)
        rows = new if learned.all() else new.take(np.flatnonzero(learned))
        if known is not None:
            rows = known.with_rows(rows)
        penalties = None if (rows.weights == 1).all() else C * rows.weights
        source, many = rows_source(rows.rows, "the chunk"), len(rows.ids) > _FULL_ROWS
        problem = BinaryProblem(source, rows.labels, self.kernel, penalties, partial=True)
        options = replace(self._run_options, lmo="sampled" if many else "full", certify=many)
        plan = plan_exact(problem, options, memory=self._memory)
        if self._memory is None:
            self._memory = replace(
                plan.memory,
                max_vertices=self._capacity,
                max_block=LARGEST_BLOCK,
                parts=plan.memory.parts | {"kernel_rows": kernel_rows_budget()},
            )
            plan = replace(plan, memory=self._memory)
        active, self._active = self._active, None
        if active is not None:
            active.renumber(penalties)
        weighted, before = np.flatnonzero(rows.alpha), self.progress
        warm = (weighted, rows.alpha[weighted]) if len(weighted) > 0 else None

        def tell(state: SolverState) -> None:
            self.progress = replace(
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
            for callback in callbacks:
                callback(self.progress.copy())

        interrupt = DeferredInterrupt()  # a signal may come after the run has looked last
        session = Session([tell] if callbacks else [], interrupt=interrupt)
        with interrupt, Path(problem, plan, session, active) as path:
            solution = path.solve(C, warm)
        if interrupt.noted is not None or solution.status is Status.INTERRUPTED:
            raise interruption(interrupt.noted)
        tell(path.progress)
        self._active = active = path.active
        assert active is not None
        self._vertices = rows.take(active.ids)._replace(alpha=active.alpha.copy())
        return solution

    def _forget(self, threshold: int) -> None:
        """Keep no more support vectors than there may be, and of draws up to a threshold."""
        assert self._vertices is not None
        support = self._vertices.take(np.flatnonzero(self._vertices.alpha))
        draws = _draws(support.ids)
        largest = int(np.sort(draws)[: self._most_kept][-1])
        if len(draws) > self._most_kept:
            threshold = min(threshold, largest)
        self._threshold = max(threshold, int(draws.min()))
        self._vertices = support.take(np.flatnonzero(self.admits(support.ids)))
        self._active = None

    def _gap_over(self, rows: _Candidates, solution: Solution) -> float:
        """Relative gap over rows that were not trained on, in float64."""
        active, vertices, least = self._active, self._vertices, np.inf
        assert active is not None
        assert vertices is not None
        rows = rows.take(np.flatnonzero(~np.isin(rows.ids, vertices.ids)))
        with Engine(self.kernel, self.options.threads, active.engine.arithmetic) as engine:
            z = engine.prepare(solution.support_vectors, exact=True)
            beta = solution.alpha * solution.labels
            for start in range(0, len(rows.ids), LARGEST_BLOCK):
                part = slice(start, start + LARGEST_BLOCK)
                x = engine.prepare(rows.rows[part], exact=True)
                sums = engine.weighted_sum(x, z, beta) + beta.sum()
                least = min(least, float((rows.labels[part] * sums).min()))
            self.progress.kernel_evaluations += engine.evaluations
        return relative_gap(solution.rho, least)

    def _choose_form(self, rows: Rows) -> None:
        """Choose whether rows are held dense or sparse, and how wide, if anything has changed."""
        if rows.shape[1] > self.n_features:
            self._active, self.n_features = None, rows.shape[1]
        if self._active is not None:
            return
        known = self._vertices
        probe = (rows if known is None else known.rows)[:_PROBE_ROWS]
        n_stored = np.count_nonzero(probe.data if isinstance(probe, CSRRows) else probe)
        few = n_stored < _DENSE_FROM * len(probe) * self.n_features
        self._sparse = isinstance(rows, CSRRows) and bool(few)
        if known is not None:
            self._vertices = known._replace(rows=self._in_form(known.rows))

    def _in_form(self, rows: Rows) -> Rows:
        """Rows as they are held: dense or sparse, and as wide as the widest so far."""
        missing = self.n_features - rows.shape[1]
        if not self._sparse and not isinstance(rows, CSRRows):
            return np.pad(rows, ((0, 0), (0, missing))) if missing > 0 else rows
        rows = rows if isinstance(rows, CSRRows) else CSRRows.from_dense(rows)
        wide = CSRRows(rows.data, rows.indices, rows.indptr, self.n_features)
        return wide if self._sparse else wide.toarray()


@contextmanager
def _undone_by_errors(streams: Sequence[Stream]) -> Iterator[None]:
    """Have streams be as before if what is done within fails."""
    states = [dict(vars(stream)) for stream in streams]
    try:
        yield
    except BaseException:
        for stream, state in zip(streams, states, strict=True):
            before, active = state["_active"], stream._active
            if active is not before or stream._vertices is not state["_vertices"]:
                state["_active"] = None  # it has been trained since, and is made anew
            stream.__dict__.update(state)
        raise


def vertex_ids(rows: Rows, labels: Int8Array, weights: Float64Array | None = None) -> Int64Array:
    """Number of each row that equal rows of one label and weight share, shape (n_rows,).

    It is a 64-bit hash. Two different rows may share one, and one of them is ignored then, but that
    is not to be expected below a billion rows. Zeros do not count, so that dense, sparse and wider
    forms of a row have the same number.
    """
    ids = np.empty(len(rows), dtype=np.int64)
    for start in range(0, len(rows), _HASHED_ROWS):
        part = rows[start : start + _HASHED_ROWS]
        hashes = row_hashes(_without_zeros(part))
        if weights is not None:
            factors = np.ascontiguousarray(weights[start : start + len(part)], dtype=np.float64)
            hashes = hashes ^ _draws(
                (factors - 1).view(np.int64)
            )  # those of weight 1 stay as they are
        hashes = hashes & np.uint64(0xFFFFFFFFFFFFFFFE)
        ids[start : start + len(part)] = hashes.view(np.int64)
    return ids | (labels > 0)


def _without_zeros(rows: Rows) -> CSRRows:
    """Compressed rows in which no zero is stored."""
    if not isinstance(rows, CSRRows):
        return CSRRows.from_dense(rows)
    keep = rows.data != 0
    if keep.all():
        return rows
    before = np.concatenate([[0], np.cumsum(keep)])
    return CSRRows(rows.data[keep], rows.indices[keep], before[rows.indptr], rows.n_features)


def _draws(ids: Int64Array) -> npt.NDArray[np.uint64]:
    """Numbers that are spread evenly over all of uint64, one for each id."""
    mixed = ids.view(np.uint64) * _MIX
    return mixed ^ (mixed >> np.uint64(32))


class PairStreams:
    """A stream for each pair of classes, all of which see each row once.

    Parameters
    ----------
    n_classes : int
        Number of classes.
    kernel, options, max_support
        Those of each `Stream`.
    solutions : sequence of Solution or None, optional
        What each stream begins with, see `solutions_of`.
    n_rows : int
        Rows that these were trained on.

    Attributes
    ----------
    n_rows : int
        Number of rows so far.
    """

    def __init__(
        self,
        n_classes: int,
        kernel: Kernel,
        options: TrainOptions,
        max_support: int,
        solutions: Sequence[Solution | None] | None = None,
        n_rows: int = 0,
    ) -> None:
        self.kernel, self.n_rows = kernel, n_rows
        self._pairs = class_pairs(n_classes)
        self._streams = [
            Stream(kernel, options, max_support, solution=solution, n_rows=n_rows)
            for solution in solutions or [None] * len(self._pairs)
        ]

    def retune(self, options: TrainOptions, max_support: int) -> None:
        """Change options between two calls of `learn`."""
        for stream in self._streams:
            stream.retune(options, max_support)

    def learn(
        self,
        source: RowSource,
        codes: Int64Array,
        weights: Float64Array | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        """Learn from all rows of `source`, whose classes are `codes`.

        `weights` are factors of the penalty of each row; rows of weight 0 are left out. After an
        error everything is as it was before.
        """
        with _undone_by_errors(self._streams):
            for start, rows in iter_blocks(source, 0, source.n_rows, POOL_BYTES):
                for pair, stream in zip(self._pairs, self._streams, strict=True):
                    of_pair = np.isin(codes[start : start + len(rows)], pair)
                    if weights is not None:
                        of_pair &= weights[start : start + len(rows)] > 0
                    places = np.flatnonzero(of_pair)
                    pair_rows = rows if of_pair.all() else take_rows(rows, places)
                    places += start
                    labels = np.where(codes[places] == pair[1], 1, -1).astype(np.int8)
                    factors = None if weights is None else weights[places]
                    chunk = Chunk(pair_rows, labels, factors, self.n_rows + places)
                    stream.learn([chunk], callbacks)
            self.n_rows += source.n_rows

    def solutions(self) -> list[PairSolution]:
        """Solution of each pair; of a pair without any row yet, one that takes its first class.

        That one has the weight 1 on a support vector of another pair. With kernel values above -1
        it never decides: a class of which rows were seen has the votes of all its pairs with
        others.
        """
        known = next(stream.solution for stream in self._streams if stream.solution is not None)
        solutions = []
        for pair, stream in zip(self._pairs, self._streams, strict=True):
            solution, stands_in = stream.solution, stream.solution is None
            if solution is None:
                other = Stream(self.kernel, stream.options, stream.max_support)
                row = take_rows(known.support_vectors, np.arange(1))
                other.learn([Chunk(row, np.array([-1], dtype=np.int8), places=known.rows[:1])])
                solution = other.solution
            assert solution is not None
            solutions.append(PairSolution(*pair, solution, stands_in))
        return solutions


def solutions_of(model: Model, pairs: Sequence[PairSolution]) -> list[Solution | None]:
    """Solutions of an exact model, each with its own support vectors; None for what stands in."""
    return [
        None
        if pair.stands_in
        else replace(pair.solution, support_vectors=take_rows(model.support_vectors, classifier.sv))
        for pair, classifier in zip(pairs, model.classifiers, strict=True)
    ]


def support_of_classes(pairs: Sequence[PairSolution], n_classes: int) -> npt.NDArray[np.int32]:
    """Number of rows of each class among the support vectors of all pairs."""
    pairs = [pair for pair in pairs if not pair.stands_in]
    rows = np.concatenate([pair.solution.rows for pair in pairs])
    codes = np.concatenate(
        [np.where(pair.solution.labels > 0, pair.positive, pair.negative) for pair in pairs]
    )
    _, first = np.unique(rows, return_index=True)
    return np.bincount(codes[first], minlength=n_classes).astype(np.int32)


def union_of_vectors(pairs: Sequence[PairSolution]) -> Rows:
    """Support vectors of all pairs, the rows `union_of_rows`."""
    blocks = [pair.solution.support_vectors for pair in pairs]
    if not all(isinstance(block, CSRRows) for block in blocks):
        blocks = [block.toarray() if isinstance(block, CSRRows) else block for block in blocks]
    rows, first = np.unique(
        np.concatenate([pair.solution.rows for pair in pairs]), return_index=True
    )
    return take_rows(concat_rows(blocks), first[np.searchsorted(rows, union_of_rows(pairs))])
