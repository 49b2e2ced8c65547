"""Training on rows that come by once, chunk after chunk.

for each chunk of rows
    repeat
        compute the margins of a part of its rows, then of the next part
        add the violators found to the active set; take a corrective step
    until no row of the chunk is a violator
    if there are more than `max_support` support vectors: forget some
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_fw.data.rows import (
    CSRRows,
    Float64Array,
    Int8Array,
    Int64Array,
    Rows,
    rows_bytes,
    take_rows,
)
from ooc_fw.data.sources import RowSource, iter_blocks
from ooc_fw.kernels.arithmetic import Arithmetic, choose_arithmetic
from ooc_fw.kernels.distinct import row_hashes
from ooc_fw.kernels.engine import Engine
from ooc_fw.kernels.functions import Kernel
from ooc_fw.options import TrainOptions
from ooc_fw.problem import StoppingTest, check_signs, relative_gap
from ooc_fw.solver.active_set import ActiveSet
from ooc_fw.solver.kernel_rows import KernelRows
from ooc_fw.solver.state import Callback, Phase, Solution, SolverState, Status, StepKind
from ooc_fw.solver.steps import LEAST_BATCH, Corrective
from ooc_fw.system.errors import InputError
from ooc_fw.system.memory import kernel_rows_budget

logger = logging.getLogger(__name__)

MAX_SUPPORT = 10_000
"""Default of `max_support`. The kernel block of so many support vectors takes up to 625 MB."""

POOL_BYTES = 64 << 20
"""Bytes of decoded rows of a source that make one chunk."""

_SPARE_SHARE = 0.25
"""Share of `max_support` by which vertices may exceed it within a chunk."""

_START_ROWS = 10
"""Rows of each class in the first active set."""

_PROBE_ROWS = 1024
"""Rows by which the storage of rows and the arithmetic of products are chosen."""

_DENSE_FROM = 0.25
"""Share of nonzero values from which sparse rows are stored dense."""

_FIRST_PART, _LARGEST_PART = 2048, 16384
"""Least and largest number of rows whose margins are computed between two steps."""

_SPARE_ROWS = 1.2
"""Rows in a part, relative to those expected to hold as many violators as a step may add."""

_NEAR = 1.5
"""Margin below which a row is in the passes between two passes over the whole chunk."""

_PASSES = 40
"""Passes over a chunk, or over its rows near the margin, after which the next chunk follows."""

_HASHED_ROWS = 16384
"""Rows that are hashed together."""

_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
"""Threshold of draws that admits every row."""

_MIX = np.uint64(0x9E3779B97F4A7C15)
"""Odd factor of a draw: multiplication by it is a permutation of uint64."""


@dataclass(frozen=True)
class _Vertices:
    """The vertices that are remembered between two chunks, including those of weight 0."""

    ids: Int64Array
    rows: Rows
    labels: Int8Array
    alpha: Float64Array  # sums to 1
    positions: Int64Array  # in the stream

    @classmethod
    def of_solution(cls, solution: Solution) -> _Vertices:
        """Support vectors of a solution; equal rows of one label become one vertex."""
        ids = vertex_ids(solution.support_vectors, solution.labels)
        ids, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
        alpha = np.zeros(len(first))
        np.add.at(alpha, inverse, solution.alpha)
        rows = take_rows(solution.support_vectors, first)
        return cls(ids, rows, solution.labels[first], alpha, solution.rows[first])

    @classmethod
    def of_active(
        cls, active: ActiveSet, places: npt.NDArray[np.intp], positions: dict[int, int]
    ) -> _Vertices:
        """Copies of some vertices of an active set."""
        ids = active.ids[places]
        return cls(
            ids,
            take_rows(active.rows, places),
            active.labels[places].astype(np.int8),
            active.alpha[places],
            np.array([positions[row_id] for row_id in ids.tolist()], dtype=np.int64),
        )

    def take(self, places: npt.NDArray[np.intp]) -> _Vertices:
        """Some of the vertices."""
        rows = take_rows(self.rows, places)
        return _Vertices(
            self.ids[places], rows, self.labels[places], self.alpha[places], self.positions[places]
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
    solution : Solution, optional
        Weights to begin with; the rows of the stream are other rows.
    n_rows : int
        Number of rows from which `solution` was trained.

    Attributes
    ----------
    solution : Solution or None
        Weights after the last chunk. ``rows`` are positions in the stream, counted from 0;
        ``sampled_gap`` covers the rows of the last chunk and the active set.
    n_rows, n_features : int
        Number of rows so far, and of the columns of the widest of them.
    progress : SolverState
        Counts of this stream.

    Notes
    -----
    Only the active set is remembered. A row that was no violator when it came by, or that was
    dropped or forgotten later, returns only if it comes again. So the result depends on the order
    of the rows, and the gap is known for the last chunk and the active set only: it is a sampled
    gap, no certificate. The weights are feasible for all rows of the stream, since every vertex is
    one of them.

    Rows with equal values and label count once as long as one of them is a vertex. So a second pass
    over the same chunks continues the first: when no chunk contains a violator any more, and
    nothing was forgotten, the gap over all different rows is at most the tolerance.

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
        self.solution, self.n_rows = solution, n_rows
        self.n_features = 0 if solution is None else solution.support_vectors.shape[1]
        self.progress = SolverState(phase=Phase.STREAM)
        self._vertices = None if solution is None else _Vertices.of_solution(solution)
        self._active: ActiveSet | None = None  # None: to be made from the vertices
        self._positions: dict[int, int] = {}  # in the stream, of each vertex by its id
        self._threshold = _ALL  # rows with a larger draw are ignored
        self._sparse = False  # whether the rows of vertices are stored sparse
        self._arithmetic = Arithmetic()
        self.retune(options, max_support)

    def retune(self, options: TrainOptions, max_support: int) -> None:
        """Change options between two chunks.

        Raises
        ------
        InputError
            For a bound or a stopping test that cannot be used; nothing has changed then.
        """
        if max_support < 2:
            raise InputError(f"a stream needs at least 2 support vectors, not {max_support}")
        diagonal = 2 + 1 / options.C if self.kernel.constant_diagonal else None
        self._stopping = StoppingTest(options.stopping, options.tol, diagonal)
        if options.C != self.options.C or max_support != self.max_support:
            self._active = None
        self.options = options
        if max_support != self.max_support:
            if max_support > self.max_support:
                self._threshold = _ALL
            self.max_support = max_support
            self._divide_memory()

    def learn(
        self, chunks: Iterable[tuple[Rows, Int8Array]], callbacks: Sequence[Callback] = ()
    ) -> None:
        """Learn from chunks, one after the other.

        After an error or an interrupt everything is as it was before the first of them.

        Parameters
        ----------
        chunks : iterable of (Rows, ndarray of int8)
            Rows, and +1 or -1 for each. They may have fewer or more columns than those before: the
            columns that a row lacks are zeros.
        callbacks : sequence of Callback
            They are called after every part of a chunk; what they return is ignored.

        Raises
        ------
        InputError
            For labels other than -1 and +1, or values too large for the kernel in float32.
        """
        before = self.__getstate__()
        try:
            for rows, labels in chunks:
                if len(rows) > 0:
                    signs = check_signs(labels, len(rows), both=False)
                    _Lesson(self, rows, signs, callbacks).learn()
        except BaseException:
            self.__dict__.update(before)
            raise

    def admits(self, ids: Int64Array) -> npt.NDArray[np.bool_]:
        """Which rows, by their `vertex_ids`, are learned from, shape (n_rows,)."""
        return _draws(ids) <= self._threshold

    def __getstate__(self) -> dict[str, Any]:
        progress = copy.deepcopy(self.progress)
        return self.__dict__ | {"_active": None, "_positions": {}, "progress": progress}

    def _divide_memory(self) -> None:
        """Set how many vertices are kept between chunks, and how many there may be within one."""
        wanted = self.max_support + max(LEAST_BATCH, int(_SPARE_SHARE * self.max_support))
        self._capacity = self._kernel_rows(wanted).capacity
        self._kept = self.max_support
        if self._capacity < wanted:
            self._kept = min(self._kept, max(1, int(self._capacity / (1 + _SPARE_SHARE))))
            logger.warning(
                "memory is free for the kernel rows of %d support vectors, not of %d",
                self._kept,
                self.max_support,
            )

    def _kernel_rows(self, n_max: int) -> KernelRows:
        return KernelRows(n_max, kernel_rows_budget(), self.kernel.constant_diagonal)

    # -- used by a lesson ------------------------------------------------------------------------

    def open_engine(self, rows: Rows) -> Engine:
        """Open an engine for the rows of a chunk and for the vertices."""
        if rows.shape[1] > self.n_features:
            self._active = None
            self.n_features = rows.shape[1]
        if self._active is None:
            probe = (rows if self._vertices is None else self._vertices.rows)[:_PROBE_ROWS]
            stored = probe.data if isinstance(probe, CSRRows) else probe
            few = np.count_nonzero(stored) < _DENSE_FROM * len(probe) * self.n_features
            self._sparse = isinstance(rows, CSRRows) and bool(few)
            self._arithmetic = choose_arithmetic(self.kernel, self.in_form(probe))
        return Engine(self.kernel, self.options.threads, self._arithmetic)

    def hand_over(self, engine: Engine) -> tuple[ActiveSet, dict[int, int]]:
        """Give away the active set, and the position in the stream of each vertex by its id."""
        active, self._active = self._active, None
        if active is not None:
            active.engine = engine
            return active, self._positions
        known = self._vertices
        if known is None:
            return self.make_active(engine), {}
        if np.count_nonzero(known.alpha) > self._kept or len(known.ids) > self._capacity:
            support = np.flatnonzero(known.alpha)
            known = known.take(support[self.choose_kept(known.ids[support])])
        positions = dict(zip(known.ids.tolist(), known.positions.tolist(), strict=True))
        return self.make_active(engine, known), positions

    def make_active(self, engine: Engine, vertices: _Vertices | None = None) -> ActiveSet:
        """Make an active set of some vertices."""
        active = ActiveSet(engine, self.options.C, self._kernel_rows(self._capacity))
        if vertices is not None:
            active.add(vertices.ids, self.in_form(vertices.rows), vertices.labels)
            active.set_weights(vertices.alpha)
        return active

    def exceeds(self, n_support: int) -> bool:
        """Whether these are more support vectors than are kept between chunks."""
        return n_support > self._kept

    def choose_kept(self, ids: Int64Array) -> npt.NDArray[np.intp]:
        """Places of the rows that are kept; if there are too many, the threshold falls first."""
        draws = _draws(ids)
        if self.exceeds(len(ids)):
            largest = np.partition(draws, self._kept - 1)[self._kept - 1]
            self._threshold = min(self._threshold, largest)
        return np.flatnonzero(draws <= self._threshold)

    def in_form(self, rows: Rows) -> Rows:
        """Rows as the active set stores them: dense or sparse, and as wide as the widest so far."""
        if not isinstance(rows, CSRRows):
            if not self._sparse:
                missing = self.n_features - rows.shape[1]
                return np.pad(rows, ((0, 0), (0, missing))) if missing else rows
            rows = CSRRows.from_dense(rows)
        wide = CSRRows(rows.data, rows.indices, rows.indptr, self.n_features)
        return wide if self._sparse else wide.toarray()

    def tolerance(self, rho: float) -> float:
        """Relative gap that training aims at."""
        return self._stopping.target(rho)

    def take_back(
        self, active: ActiveSet, positions: dict[int, int], n_rows: int, gap: float, settled: bool
    ) -> None:
        """End a chunk: take the weights of its active set as the solution."""
        self.n_rows += n_rows
        before = None if self.solution is None else self.solution.status
        if not settled and before != Status.UNSETTLED:
            logger.warning(
                "the stream does not settle at C = %g: after %d passes over a chunk its gap is "
                "%.3g; lower C or scale the columns",
                self.options.C,
                _PASSES,
                gap,
            )
        everything, support, progress = np.arange(len(active)), active.support, self.progress
        vertices = _Vertices.of_active(active, everything, positions)
        self._active, self._vertices = active, vertices
        self._positions = dict(zip(vertices.ids.tolist(), vertices.positions.tolist(), strict=True))
        kept = vertices.take(support)
        self.solution = Solution(
            status=Status.STREAMED if settled else Status.UNSETTLED,
            method=Corrective.name,
            lmo="stream",
            choice=f"corrective steps on the active set, {self.n_rows} rows seen once",
            alpha=kept.alpha,
            labels=kept.labels,
            rows=kept.positions,
            support_vectors=kept.rows,
            objective=active.rho / 2,
            rho=active.rho,
            sampled_gap=gap,
            certified_gap=None,
            pair_gap=None,
            iterations=progress.iteration,
            steps=dict(progress.steps),
            kernel_evaluations=progress.kernel_evaluations,
            passes=progress.kernel_evaluations / (self.n_rows * len(support)),
            rows_read=progress.rows_read,
            bytes_read=progress.bytes_read,
            seconds=progress.elapsed_s,
        )


class _Lesson:
    """The work on one chunk. Its different rows are a pool of candidates for the active set."""

    active: ActiveSet

    def __init__(
        self, stream: Stream, rows: Rows, labels: Int8Array, callbacks: Sequence[Callback]
    ) -> None:
        self.stream, self.chunk, self.callbacks = stream, rows, callbacks
        ids = vertex_ids(rows, labels)
        _, first = np.unique(ids, return_index=True)
        first.sort()
        self.rows = rows if len(first) == len(ids) else take_rows(rows, first)
        self.ids, self.labels = ids[first], labels[first]
        self.places = stream.n_rows + first  # in the stream
        self.margins = np.zeros(len(first))  # g / rho, when last computed; wrong for vertices
        self.violating_share = 1.0  # of the rows of the last part
        self.settled = False  # whether no row that is learned from violates its margin
        self.rule = Corrective()
        self.began = time.perf_counter()
        self.before = stream.progress.copy()

    def learn(self) -> None:
        """Learn from the chunk and end it."""
        stream = self.stream
        stream.progress.rows_read += len(self.chunk)
        stream.progress.bytes_read += rows_bytes(self.chunk)
        with stream.open_engine(self.chunk) as engine:
            self.active, self.positions = stream.hand_over(engine)
            if len(self.active) == 0:
                self._start()
            current = self._make_passes()
            if stream.exceeds(len(self.active.support)):
                self._forget()
                self._settle()
                current = False
            gap = self._gap(current)
            self._report(gap)
            settled = self.settled and self.active.relative_gap() <= self._tolerance()
            stream.take_back(self.active, self.positions, len(self.chunk), gap, settled)

    def _start(self) -> None:
        """Make the first active set: the first rows of either class, as many as there are."""
        first = [np.flatnonzero(self.labels == sign)[:_START_ROWS] for sign in (-1, 1)]
        self._add(np.sort(np.concatenate(first)))
        self.active.set_weights(np.ones(len(self.active)))
        self._settle()

    def _make_passes(self) -> bool:
        """Pass over the chunk until no row violates its margin.

        Returns
        -------
        current : bool
            Whether `margins` are those of the weights.
        """
        where, whole = self._admitted(), True
        for number in range(_PASSES):
            if number == _PASSES // 2:
                self.active.widen()  # rounding may be the reason why it does not settle
            if self._pass(where):
                near = self._admitted()
                near = near[self.margins[near] < _NEAR]
                where, whole = near[self.active.outside(self.ids[near])], False
                self.active.refresh()
            elif whole:
                self.settled = True
                return len(where) == len(self.ids)
            else:
                where, whole = self._admitted(), True
        return False

    def _pass(self, where: Int64Array) -> bool:
        """Pass over some rows, with a step after each part; whether any step was taken."""
        start, moved = 0, False
        while start < len(where):
            limit = max(LEAST_BATCH, len(self.active))
            wanted = int(_SPARE_ROWS * limit / max(self.violating_share, 1e-3))
            part = where[start : start + min(max(_FIRST_PART, wanted), _LARGEST_PART)]
            start += len(part)
            self._compute_margins(part)
            outside = part[self.active.outside(self.ids[part])]
            outside = outside[self.stream.admits(self.ids[outside])]
            found = outside[self.margins[outside] < 1 - self._tolerance()]
            self.violating_share = len(found) / len(part)
            gap = 1 - float(self.margins[outside].min(initial=1.0))
            if len(found) > 0:
                self._step(found[:limit])
                moved = True
            self._report(gap)
        if self.active.relative_gap() > self._tolerance():
            self._step(np.empty(0, dtype=np.int64))
            moved = True
        return moved

    def _admitted(self) -> npt.NDArray[np.intp]:
        """Rows of the chunk that are learned from."""
        return np.flatnonzero(self.stream.admits(self.ids))

    def _compute_margins(self, part: Int64Array) -> None:
        x = self.active.prepare(self.stream.in_form(take_rows(self.rows, part)))
        self.margins[part] = self.labels[part] * self.active.decision_at(x) / self.active.rho

    def _tolerance(self) -> float:
        return self.stream.tolerance(self.active.rho)

    def _step(self, chosen: Int64Array) -> None:
        """Add rows to the active set, optimise on it, drop vertices of weight zero."""
        violation = 0.0
        if len(chosen) > 0:
            if self._room() < len(chosen):
                self._forget()
                chosen = chosen[self.stream.admits(self.ids[chosen])]
            chosen = chosen[: self._room()]
        if len(chosen) > 0:
            violation = 1 - float(np.median(self.margins[chosen]))
            self._add(chosen)
        self.rule.aim(self._tolerance(), violation)
        record = self.rule.step(self.active, 0)
        self.rule.prune(self.active)
        steps = self.stream.progress.steps
        steps[record.kind] += 1
        steps[StepKind.DROP] += record.drops

    def _room(self) -> int:
        return self.active.capacity - len(self.active)

    def _add(self, chosen: Int64Array) -> None:
        """Add rows of the chunk as vertices of weight 0."""
        ids = self.ids[chosen]
        rows = self.stream.in_form(take_rows(self.rows, chosen))
        self.active.add(ids, rows, self.labels[chosen])
        self.positions.update(zip(ids.tolist(), self.places[chosen].tolist(), strict=True))

    def _forget(self) -> None:
        """Drop the vertices of weight 0, and those of largest draw if too many are left."""
        support, engine = self.active.support, self.active.engine
        kept = support[self.stream.choose_kept(self.active.ids[support])]
        vertices = _Vertices.of_active(self.active, kept, self.positions)
        del self.active  # the kernel block is freed before another is made
        self.active = self.stream.make_active(engine, vertices)

    def _settle(self) -> None:
        """Optimise the weights on the active set alone."""
        self.rule.aim(self._tolerance())
        self.rule.step(self.active, 0)
        self.active.refresh()

    def _gap(self, current: bool) -> float:
        """Relative gap over the chunk and the active set; the worst row is taken in float64."""
        active, everything = self.active, np.arange(len(self.ids))
        if not current:
            for start in range(0, len(everything), _LARGEST_PART):
                self._compute_margins(everything[start : start + _LARGEST_PART])
        least = float(active.grad.min())
        part = everything[active.outside(self.ids)]
        if len(part) > 0:
            worst = part[[np.argmin(self.margins[part])]]
            x = active.engine.prepare(self.stream.in_form(take_rows(self.rows, worst)), exact=True)
            z = active.engine.prepare(active.rows, exact=True)
            beta = active.alpha * active.labels
            value = active.engine.weighted_sum(x, z, beta) + beta.sum()
            least = min(least, float((self.labels[worst] * value)[0]))
        return relative_gap(active.rho, least)

    def _report(self, gap: float) -> None:
        """Bring the progress up to date and tell the callbacks."""
        progress, active = self.stream.progress, self.active
        progress.iteration = progress.steps[StepKind.CORRECTIVE]
        progress.objective = active.rho / 2
        progress.sampled_gap = gap
        progress.n_active = len(active)
        progress.n_support = len(active.support)
        progress.elapsed_s = self.before.elapsed_s + time.perf_counter() - self.began
        progress.kernel_evaluations = self.before.kernel_evaluations + active.engine.evaluations
        for callback in self.callbacks:
            callback(progress.copy())


def pools(source: RowSource, signs: Int8Array) -> Iterator[tuple[Rows, Int8Array]]:
    """All rows of a source with their signs, in chunks of `POOL_BYTES`."""
    for start, rows in iter_blocks(source, 0, source.n_rows, POOL_BYTES):
        yield rows, signs[start : start + len(rows)]


def vertex_ids(rows: Rows, labels: Int8Array) -> Int64Array:
    """Number of each row that equal rows of one label share, shape (n_rows,).

    It is a 64-bit hash. Two different rows may share one, and one of them is ignored then, but that
    is not to be expected below a billion rows. Zeros do not count, so that dense, sparse and wider
    forms of a row have the same number.
    """
    ids = np.empty(len(rows), dtype=np.int64)
    for start in range(0, len(rows), _HASHED_ROWS):
        part = rows[start : start + _HASHED_ROWS]
        hashes = row_hashes(_without_zeros(part)) & np.uint64(0xFFFFFFFFFFFFFFFE)
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
