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
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ooc_fw.data.rows import (
    CSRRows,
    Float64Array,
    Int8Array,
    Int64Array,
    Rows,
    row_hashes,
    rows_bytes,
    take_rows,
)
from ooc_fw.kernels.arithmetic import Arithmetic, choose_arithmetic
from ooc_fw.kernels.engine import Engine
from ooc_fw.kernels.functions import Kernel
from ooc_fw.options import TrainOptions
from ooc_fw.problem import StoppingTest, check_signs, relative_gap
from ooc_fw.solver.active_set import ActiveSet
from ooc_fw.solver.kernel_rows import KernelRows
from ooc_fw.solver.oracles import LARGEST_BLOCK, block_rows
from ooc_fw.solver.run import exact_decision
from ooc_fw.solver.state import Callback, Phase, Solution, SolverState, Status
from ooc_fw.solver.steps import LEAST_BATCH, Corrective, Effort
from ooc_fw.system.errors import InputError
from ooc_fw.system.memory import kernel_rows_budget

logger = logging.getLogger(__name__)

MAX_SUPPORT = 10_000
"""Default of `max_support`. The kernel block of so many support vectors takes up to 625 MB."""

_SPARE_SHARE = 0.25  # share of `max_support` by which vertices may exceed it within a chunk
_START_ROWS = 10  # rows of each class in the first active set
_PROBE_ROWS = 1024  # rows by which the storage of rows and the arithmetic of products are chosen
_DENSE_FROM = 0.25  # share of nonzero values from which sparse rows are stored dense
_NEAR = 1.5  # margin below which a row is in the passes between two over the whole chunk
_PASSES = 40  # passes over a chunk or its rows near the margin, after which the next chunk follows
_HASHED_ROWS = 16384  # rows that are hashed together
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)  # threshold of draws that admits every row
_NO_VERTEX = -1  # the id under which the largest weight so far is known
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


class _Penalties:
    """Penalty of each vertex by its id: C times the weight of its row.

    An id is of one weight only, so that chunks share this record.
    """

    def __init__(self, C: float, weights: dict[int, float]) -> None:
        self._C, self._weights = C, weights

    def __getitem__(self, ids: Int64Array) -> Float64Array:
        weights = self._weights
        return self._C * np.array([weights.get(key, 1.0) for key in ids.tolist()])

    def max(self) -> float:
        """The largest penalty."""
        return self._C * max(1.0, max(self._weights.values(), default=1.0))


class _Vertices(NamedTuple):
    """Copies of vertices, by which they are remembered between two chunks."""

    ids: Int64Array
    rows: Rows
    labels: Int8Array
    alpha: Float64Array  # sums to 1

    @classmethod
    def of(cls, active: ActiveSet, places: npt.NDArray[np.intp]) -> _Vertices:
        """Some vertices of an active set."""
        labels = active.labels[places].astype(np.int8)
        return cls(active.ids[places], take_rows(active.rows, places), labels, active.alpha[places])

    def take(self, places: npt.NDArray[np.intp]) -> _Vertices:
        """Some of the vertices."""
        rows = take_rows(self.rows, places)
        return _Vertices(self.ids[places], rows, self.labels[places], self.alpha[places])


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
    second pass
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
        self.solution, self.n_rows, self.n_features = solution, n_rows, 0
        self.progress = SolverState(phase=Phase.STREAM)
        self._vertices: _Vertices | None = None  # those of weight 0, too
        self._positions: dict[int, int] = {}  # in the stream, of each vertex by its id
        self._active: ActiveSet | None = None  # None: to be made from the vertices
        self._weights: dict[int, float] = {}  # of vertices by their id, where it is not 1
        self._threshold = _ALL  # rows with a larger draw are ignored
        self._sparse = False  # whether the rows of vertices are stored sparse
        self._arithmetic = Arithmetic()
        if solution is not None:
            self._begin_with(solution)
        self.retune(options, max_support)

    def _begin_with(self, solution: Solution) -> None:
        """Remember support vectors; equal rows of one label become one vertex."""
        self.n_features = solution.support_vectors.shape[1]
        weights = None if solution.penalties is None else solution.penalties / self.options.C
        ids = vertex_ids(solution.support_vectors, solution.labels, weights)
        self._note_weights(ids, weights)
        ids, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
        alpha = np.zeros(len(first))
        np.add.at(alpha, inverse, solution.alpha)
        rows = take_rows(solution.support_vectors, first)
        self._vertices = _Vertices(ids, rows, solution.labels[first], alpha)
        self._positions = dict(zip(ids.tolist(), solution.rows[first].tolist(), strict=True))

    def retune(self, options: TrainOptions, max_support: int) -> None:
        """Change options between two chunks.

        InputError is raised for a bound or a stopping test that cannot be used; nothing changes.
        """
        if max_support < 2:
            raise InputError(f"a stream needs at least 2 support vectors, not {max_support}")
        diagonal = 2 + 1 / options.C if self.kernel.constant_diagonal else None
        self._stopping = StoppingTest(options.stopping, options.tol, diagonal)
        if options.C != self.options.C or max_support != self.max_support:
            self._active = None
        if max_support > self.max_support:
            self._threshold = _ALL
        if max_support != self.max_support:
            self._divide_memory(max_support)
        self.options, self.max_support = options, max_support

    def _divide_memory(self, max_support: int) -> None:
        """Set how many vertices are kept between chunks, and how many there may be within one."""
        wanted = max_support + max(LEAST_BATCH, int(_SPARE_SHARE * max_support))
        self._capacity, self._kept = self._kernel_rows(wanted).capacity, max_support
        if self._capacity < wanted:
            self._kept = min(max_support, max(1, int(self._capacity / (1 + _SPARE_SHARE))))
            logger.warning(
                "memory is free for the kernel rows of %d support vectors, not of %d",
                self._kept,
                max_support,
            )

    def _kernel_rows(self, n_max: int) -> KernelRows:
        return KernelRows(n_max, kernel_rows_budget(), self.kernel.constant_diagonal)

    def _note_weights(self, ids: Int64Array, weights: Float64Array | None) -> None:
        if weights is not None:
            found = zip(ids.tolist(), weights.tolist(), strict=True)
            self._weights.update((key, weight) for key, weight in found if weight != 1)

    def learn(
        self,
        chunks: Iterable[Chunk | tuple[Rows, Int8Array]],
        callbacks: Sequence[Callback] = (),
    ) -> None:
        """Learn from chunks, one after the other: rows, and +1 or -1 for each.

        Rows may have fewer or more columns than those before: columns that a row lacks are zeros.
        Callbacks are called after every part of a chunk; what they return is ignored. After an
        error or an interrupt everything is as it was before the first chunk. InputError is raised
        for labels other than -1 and +1, or values too large for the kernel in float32.
        """
        before = self.__getstate__()
        try:
            for chunk in (Chunk(*given) for given in chunks):
                if len(chunk.rows) > 0:
                    signs = check_signs(chunk.labels, len(chunk.rows), both=False)
                    _Lesson(self, chunk._replace(labels=signs), callbacks).learn()
        except BaseException:
            self.__dict__.update(before)
            raise

    def admits(self, ids: Int64Array) -> npt.NDArray[np.bool_]:
        """Which rows, by their `vertex_ids`, are learned from, shape (n_rows,)."""
        return _draws(ids) <= self._threshold

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_active": None, "progress": copy.deepcopy(self.progress)}


class _Lesson:
    """The work on one chunk. Its different rows are a pool of candidates for the active set."""

    def __init__(self, stream: Stream, chunk: Chunk, callbacks: Sequence[Callback]) -> None:
        rows, labels, weights, places = chunk
        self.stream, self.chunk, self.callbacks = stream, rows, callbacks
        if weights is not None and stream.options.stopping == "meb":
            raise InputError("stopping 'meb' needs one weight for all rows; use 'relative'")
        ids = vertex_ids(rows, labels, weights)
        _, first = np.unique(ids, return_index=True)
        first.sort()
        self.rows = rows if len(first) == len(ids) else take_rows(rows, first)
        self.ids, self.labels = ids[first], labels[first]
        self.weights = None if weights is None else weights[first]
        # In the stream.
        self.places = stream.n_rows + first if places is None else places[first]
        self.largest = 1.0 if weights is None else float(weights.max(initial=1.0))
        self.positions = dict(stream._positions)
        self.margins = np.zeros(len(first))  # g / rho, when last computed; wrong for vertices
        self.violating_share = 1.0  # of the rows of the last part
        self.settled = False  # whether no row that is learned from violates its margin
        self.rule = Corrective()
        self.began = time.perf_counter()
        self.before = stream.progress.copy()

    def learn(self) -> None:
        """Learn from the chunk; the weights after it are the solution of the stream."""
        stream = self.stream
        stream.progress.rows_read += len(self.chunk)
        stream.progress.bytes_read += rows_bytes(self.chunk)
        with self._open_engine() as engine:
            self.active = self._open_active(engine)
            if len(self.active) == 0:
                first = [np.flatnonzero(self.labels == sign)[:_START_ROWS] for sign in (-1, 1)]
                self._add(np.sort(np.concatenate(first)))
                self.active.set_weights(np.ones(len(self.active)))
                self._settle()
            current = self._make_passes()
            if len(self.active.support) > stream._kept:
                self._forget()
                self._settle()
                current = False
            gap = self._gap(current)
            self._report(gap)
            self._finish(gap)

    # -- the active set --------------------------------------------------------------------------

    def _open_engine(self) -> Engine:
        """Open an engine for the rows of the chunk and for the vertices."""
        stream, rows = self.stream, self.chunk
        if rows.shape[1] > stream.n_features:
            stream._active = None
            stream.n_features = rows.shape[1]
        if stream._active is None:
            probe = (rows if stream._vertices is None else stream._vertices.rows)[:_PROBE_ROWS]
            stored = probe.data if isinstance(probe, CSRRows) else probe
            few = np.count_nonzero(stored) < _DENSE_FROM * len(probe) * stream.n_features
            stream._sparse = isinstance(rows, CSRRows) and bool(few)
            stream._arithmetic = choose_arithmetic(stream.kernel, self._in_form(probe))
        return Engine(stream.kernel, stream.options.threads, stream._arithmetic)

    def _open_active(self, engine: Engine) -> ActiveSet:
        """The active set after the last chunk, which is made anew if anything has changed."""
        stream, known = self.stream, self.stream._vertices
        active, stream._active = stream._active, None
        before = max(stream._weights.values(), default=1.0)
        if self.weights is not None and (not stream._weights or self.largest > before):
            active = None  # it knows of no weights, or of smaller ones
            if self.largest != 1:
                stream._weights[_NO_VERTEX] = self.largest
        if active is not None:
            active.engine = engine
            return active
        if known is not None:
            n_support = np.count_nonzero(known.alpha)
            if n_support > stream._kept or len(known.ids) > stream._capacity:
                known = known.take(self._choose_kept(known.ids, known.alpha))
        return self._make_active(engine, known)

    def _make_active(self, engine: Engine, vertices: _Vertices | None) -> ActiveSet:
        stream = self.stream
        C, weights = stream.options.C, stream._weights
        penalties = _Penalties(C, weights) if weights or self.weights is not None else None
        active = ActiveSet(engine, C, stream._kernel_rows(stream._capacity), penalties)
        if vertices is not None:
            active.add(vertices.ids, self._in_form(vertices.rows), vertices.labels)
            active.set_weights(vertices.alpha)
        return active

    def _in_form(self, rows: Rows) -> Rows:
        """Rows as the active set stores them: dense or sparse, and as wide as the widest so far."""
        sparse, width = self.stream._sparse, self.stream.n_features
        if not sparse and not isinstance(rows, CSRRows):
            return np.pad(rows, ((0, 0), (0, width - rows.shape[1])))
        rows = rows if isinstance(rows, CSRRows) else CSRRows.from_dense(rows)
        wide = CSRRows(rows.data, rows.indices, rows.indptr, width)
        return wide if sparse else wide.toarray()

    def _take(self, chosen: Int64Array) -> Rows:
        """Some rows of the chunk, as the active set stores them."""
        return self._in_form(take_rows(self.rows, chosen))

    def _choose_kept(self, ids: Int64Array, alpha: Float64Array) -> npt.NDArray[np.intp]:
        """Places of the support vectors that are kept; the threshold falls if there are many."""
        stream, support = self.stream, np.flatnonzero(alpha)
        draws = _draws(ids[support])
        if len(support) > stream._kept:
            largest = np.partition(draws, stream._kept - 1)[stream._kept - 1]
            stream._threshold = min(stream._threshold, largest)
        return support[draws <= stream._threshold]

    def _forget(self) -> None:
        """Drop the vertices of weight 0, and those of largest draw if too many are left."""
        engine = self.active.engine
        kept = self._choose_kept(self.active.ids, self.active.alpha)
        vertices = _Vertices.of(self.active, kept)
        del self.active  # the kernel block is freed before another is made
        self.active = self._make_active(engine, vertices)

    # -- passes over the chunk -------------------------------------------------------------------

    def _make_passes(self) -> bool:
        """Pass over the chunk until no row violates; whether `margins` are those of the weights."""
        where, whole = self._admitted(), True
        for number in range(_PASSES):
            if number == _PASSES // 2:
                self.active.raise_precision()  # rounding may be the reason why it does not settle
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
            part = where[start : start + block_rows(limit, self.violating_share)]
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
        x = self.active.prepare(self._take(part))
        self.margins[part] = self.labels[part] * self.active.decision_at(x) / self.active.rho

    def _tolerance(self) -> float:
        return self.stream._stopping.target(self.active.rho)

    def _step(self, chosen: Int64Array) -> None:
        """Add rows to the active set, optimise on it, drop vertices of weight zero."""
        violation = 0.0
        if len(self.active) + len(chosen) > self.active.capacity:
            self._forget()
            chosen = chosen[self.stream.admits(self.ids[chosen])]
        chosen = chosen[: self.active.capacity - len(self.active)]
        if len(chosen) > 0:
            violation = 1 - float(np.median(self.margins[chosen]))
            self._add(chosen)
        record = self.rule.step(self.active, 0, Effort.towards(self._tolerance(), violation))
        self.rule.prune(self.active)
        self.stream.progress.count_step(record.kind, record.drops)

    def _add(self, chosen: Int64Array) -> None:
        """Add rows of the chunk as vertices of weight 0."""
        ids = self.ids[chosen]
        self.stream._note_weights(ids, None if self.weights is None else self.weights[chosen])
        self.active.add(ids, self._take(chosen), self.labels[chosen])
        self.positions.update(zip(ids.tolist(), self.places[chosen].tolist(), strict=True))

    def _settle(self) -> None:
        """Optimise the weights on the active set alone."""
        self.rule.step(self.active, 0, Effort.towards(self._tolerance()))
        self.active.refresh()

    # -- the end of the chunk --------------------------------------------------------------------

    def _gap(self, current: bool) -> float:
        """Relative gap over the chunk and the active set; the worst row is taken in float64."""
        active, everything = self.active, np.arange(len(self.ids))
        if not current:
            for start in range(0, len(everything), LARGEST_BLOCK):
                self._compute_margins(everything[start : start + LARGEST_BLOCK])
        least = float(active.grad.min())
        outside = active.outside(self.ids)
        if len(outside) > 0:
            worst = outside[[np.argmin(self.margins[outside])]]
            value = exact_decision(active, np.arange(len(active)), self._take(worst))
            least = min(least, int(self.labels[worst[0]]) * value)
        return relative_gap(active.rho, least)

    def _report(self, gap: float) -> None:
        """Bring the progress up to date and tell the callbacks."""
        progress = self.stream.progress
        progress.note_weights(self.active)
        progress.sampled_gap = gap
        progress.elapsed_s = self.before.elapsed_s + time.perf_counter() - self.began
        evaluations = self.active.engine.evaluations
        progress.kernel_evaluations = self.before.kernel_evaluations + evaluations
        for callback in self.callbacks:
            callback(progress.copy())

    def _finish(self, gap: float) -> None:
        """Take the weights of the active set as the solution, and remember the vertices."""
        stream, active = self.stream, self.active
        settled = self.settled and active.relative_gap() <= self._tolerance()
        before = None if stream.solution is None else stream.solution.status
        if not settled and before != Status.UNSETTLED:
            logger.warning(
                "the stream does not settle at C = %g: after %d passes over a chunk its gap is "
                "%.3g; lower C or scale the columns",
                stream.options.C,
                _PASSES,
                gap,
            )
        positions = [self.positions[row_id] for row_id in active.ids.tolist()]
        stream.n_rows += len(self.chunk)
        stream._active, stream._vertices = active, _Vertices.of(active, np.arange(len(active)))
        stream._positions = dict(zip(active.ids.tolist(), positions, strict=True))
        if len(stream._weights) > 4 * stream._capacity:
            kept = {*active.ids.tolist(), _NO_VERTEX}
            for key in stream._weights.keys() - kept:
                del stream._weights[key]
        penalties = active.penalties
        stream.solution = Solution.from_weights(
            active,
            stream.progress,
            stream.n_rows,
            status=Status.STREAMED if settled else Status.UNSETTLED,
            method=Corrective.name,
            lmo="stream",
            choice=f"corrective steps on the active set, {stream.n_rows} rows seen once",
            rows=np.array(positions, dtype=np.int64)[active.support],
            sampled_gap=gap,
            certified_gap=None,
            pair_gap=None,
            penalties=penalties[active.support] if isinstance(penalties, np.ndarray) else None,
        )


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
            own = np.ascontiguousarray(weights[start : start + len(part)], dtype=np.float64)
            hashes = hashes ^ _draws((own - 1).view(np.int64))  # those of weight 1 stay as they are
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
