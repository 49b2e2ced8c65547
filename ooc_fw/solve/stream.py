"""Training on rows that come by once, chunk after chunk.

    for each chunk of rows
        repeat
            look at rows of the chunk, at the next part of them each time
            add the part's violators to the active set; optimise the weights on it; drop zeros
        until no row of the chunk violates its margin by more than the tolerance
        of more than `max_support` support vectors, forget some

What is remembered of the rows is the active set, and nothing else: a row that was no violator when
it came by, or was dropped or forgotten later, never returns unless it comes again. So the result
depends on the order of the rows, and its gap is known for the chunk seen last and the active set
only. It is a sampled gap, no certificate. Every vertex is a row of the stream, so the weights
are feasible for the whole of it, and the objective is no less than its optimum's.

Rows with equal values and label count once as long as one of them is a vertex. That makes a second
pass over the same chunks a continuation: when no chunk holds a violator any more, and nothing was
forgotten, the gap over all (different) rows is at most the tolerance.

Which rows to forget follows from the rows alone. Each has a draw, a number made of its values that
is as good as random; the rows with the smallest draws are kept, and from then on rows with a larger
draw than theirs are not learned from. That is the solution on a random share of the rows, the same
share of the whole stream in whatever order it comes, and the share that `max_support` affords. To
forget those of least weight instead, as seems natural, would collect the outliers of noisy data,
which weigh most: on a8a with 2,000 of its 12,000 support vectors, 29 % of the test rows were right
that way, and 85 % this way.

Owns the loop over chunks, what is kept between them and the bound on it. The steps are in
:mod:`ooc_fw.solve.steps`, weights and kernel block in :mod:`ooc_fw.solve.active_set`. Knows nothing
of files or text, and does not choose the kernel.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_fw.data.rows import (
    CSRRows,
    Float64Array,
    Int8Array,
    Int64Array,
    Rows,
    take_rows,
)
from ooc_fw.data.sources import RowSource, iter_blocks
from ooc_fw.kernels.arithmetic import Arithmetic, choose_arithmetic
from ooc_fw.kernels.distinct import row_hashes
from ooc_fw.kernels.engine import Engine
from ooc_fw.kernels.functions import Kernel
from ooc_fw.options import TrainOptions
from ooc_fw.problem import StoppingTest, check_signs, relative_gap
from ooc_fw.solve.active_set import ActiveSet
from ooc_fw.solve.kernel_rows import KernelRows
from ooc_fw.solve.state import Callback, Phase, Solution, SolverState, Status, StepKind
from ooc_fw.solve.steps import Corrective
from ooc_fw.system.errors import InputError
from ooc_fw.system.memory import kernel_rows_budget

logger = logging.getLogger(__name__)

MAX_SUPPORT = 10_000
"""Support vectors kept unless told otherwise; their kernel block takes up to 625 MB."""

POOL_BYTES = 64 << 20
"""Decoded rows of a source that make one chunk."""

_SPARE_SHARE = 0.25  # of `max_support`, for vertices beyond it while a chunk is worked in
_LEAST_BATCH = 512  # vertices that a step may always add
_START_ROWS = 10  # of each class, in the first active set
_PROBE_ROWS = 1024  # looked at to choose products and centre
_DENSE_FROM = 0.25  # density from which sparse rows are held dense
_FIRST_PART, _LARGEST_PART = 2048, 16384  # rows looked at between two steps
_SPARE_ROWS = 1.2  # rows looked at beyond those expected to hold the violators wanted
_NEAR = 1.5  # margins up to which rows are looked at again before the whole chunk is
_INNER_AIM = 0.8  # of the tolerance, to which a step optimises at the end
_INNER_SHARE = 0.3  # of the violation just seen, to which a step optimises
_PASSES = 40  # over a chunk or a part of it, after which the next chunk's turn comes
_FLOAT64_GAP = 1e-10  # relative gap that steps in float64 are sure to reach
_HASHED_ROWS = 16384  # at once
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_MIX = np.uint64(0x9E3779B97F4A7C15)  # odd: a permutation of uint64


@dataclass(frozen=True)
class _Vertices:
    """What is remembered between two chunks, those of weight 0 included.

    Positions are in the stream, weights sum to 1.
    """

    rows: Rows
    labels: Int8Array
    alpha: Float64Array
    positions: Int64Array

    @classmethod
    def of(cls, solution: Solution) -> _Vertices:
        """Support of a solution; equal rows of one label become one vertex."""
        ids = vertex_ids(solution.support_vectors, solution.labels)
        _, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
        alpha = np.zeros(len(first))
        np.add.at(alpha, inverse, solution.alpha)
        rows = take_rows(solution.support_vectors, first)
        return cls(rows, solution.labels[first], alpha, solution.rows[first])

    def take(self, places: npt.NDArray[np.intp]) -> _Vertices:
        """Some of them."""
        rows = take_rows(self.rows, places)
        return _Vertices(rows, self.labels[places], self.alpha[places], self.positions[places])


class Stream:
    """A machine that learns from chunks of rows, each seen once.

    Can be pickled and copied; the kernel block is computed anew afterwards.

    Parameters
    ----------
    kernel : Kernel
        Kernel with its parameters; fixed.
    options : TrainOptions
        C, tolerance, stopping test and threads. The other fields have no part in streaming.
    max_support : int
        Largest number of support vectors between two chunks. Within a chunk a quarter more
        vertices are held, or 512 more where that is more, so that the kernel block takes at most
        ``6.25 max_support^2`` bytes from 2,048 on, and twice that where C is so large that its
        values have to be float64.
    solution : Solution, optional
        Weights to go on from; the stream's rows are new ones.
    n_rows : int
        Rows that `solution` has seen.

    Attributes
    ----------
    solution : Solution or None
        Weights after the last chunk. ``rows`` are positions in the stream, counted from 0;
        ``sampled_gap`` is over the rows of the last chunk and the active set.
    n_rows, n_features : int
        Rows seen, and columns of the widest of them.
    rows_read, bytes_read : int
        Rows seen here, and their bytes as they were given.
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
        self.kernel = kernel
        self.solution = solution
        self.n_rows = n_rows
        self.n_features = 0 if solution is None else solution.support_vectors.shape[1]
        self.rows_read = 0
        self.bytes_read = 0
        self._state = SolverState(phase=Phase.STREAM)
        self._began = self._seconds = 0.0  # of the chunk under way; spent in those before
        self._evaluations = 0  # in the chunks before
        self._sparse = False  # how rows of vertices are held
        self._arithmetic = Arithmetic()
        self._vertices = None if solution is None else _Vertices.of(solution)
        self._active: ActiveSet | None = None  # None: to be made again from the vertices
        self._positions: dict[int, int] = {}  # in the stream, of each vertex by its id
        self._threshold = _ALL  # rows with a larger draw are not learned from
        self.options = options
        self.max_support = 0
        self.retune(options, max_support)

    def retune(self, options: TrainOptions, max_support: int) -> None:
        """Change what may change between chunks.

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
            self._budget()

    def _budget(self) -> None:
        """How many vertices are kept from chunk to chunk, and held within one."""
        wanted = self.max_support + max(_LEAST_BATCH, int(_SPARE_SHARE * self.max_support))
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

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {
            "_active": None,
            "_positions": {},
            "_state": copy.deepcopy(self._state),
        }

    def learn(
        self, chunks: Iterable[tuple[Rows, Int8Array]], callbacks: Sequence[Callback] = ()
    ) -> None:
        """Learn from chunks, one after the other.

        An error or an interrupt in one of them leaves everything as it was before the first.

        Parameters
        ----------
        chunks : iterable of (Rows, ndarray of int8)
            Rows, and +1 or -1 for each. They may be narrower or wider than those before:
            columns that a row does not have are zeros.
        callbacks : sequence of Callback
            Told of every part of a chunk; what they return is not looked at.

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

    # -- used by a lesson ------------------------------------------------------------------------

    @property
    def active(self) -> ActiveSet:
        """The active set, while a chunk is worked in."""
        assert self._active is not None
        return self._active

    def open_engine(self, rows: Rows) -> Engine:
        """Open an engine for the rows of now and those remembered."""
        if rows.shape[1] > self.n_features:
            self._active = None
            self.n_features = rows.shape[1]
        if self._active is None:
            probe = (rows if self._vertices is None else self._vertices.rows)[:_PROBE_ROWS]
            stored = probe.data if isinstance(probe, CSRRows) else probe
            few = np.count_nonzero(stored) < _DENSE_FROM * len(probe) * self.n_features
            self._sparse = isinstance(rows, CSRRows) and bool(few)
            probe = self.in_form(probe)
            self._arithmetic = choose_arithmetic(self.kernel, probe)
        return Engine(self.kernel, self.options.threads, self._arithmetic)

    def wake(self, engine: Engine) -> None:
        """Make the active set ready, from the solution where there is none."""
        if self._active is not None:
            self._active.engine = engine
            return
        known = self._vertices
        if known is None:
            self._active = ActiveSet(engine, self.options.C, self._kernel_rows(self._capacity))
            return
        ids = vertex_ids(known.rows, known.labels)
        kept = np.arange(len(ids))
        if np.count_nonzero(known.alpha) > self._kept or len(ids) > self._capacity:
            kept = np.flatnonzero(known.alpha)
            kept = kept[self._fitting(ids[kept])]
        known = known.take(kept)
        self._replace(engine, ids[kept], known.rows, known.labels, known.alpha)
        self._positions = dict(zip(ids[kept].tolist(), known.positions.tolist(), strict=True))

    def _fitting(self, ids: Int64Array) -> npt.NDArray[np.intp]:
        """Places of those that are kept; lowers the threshold where they are too many."""
        draws = _draws(ids)
        if len(ids) > self._kept:
            least = np.partition(draws, self._kept - 1)[self._kept - 1]
            self._threshold = min(self._threshold, least)
        return np.flatnonzero(draws <= self._threshold)

    def admits(self, ids: Int64Array) -> npt.NDArray[np.bool_]:
        """Which rows belong to the share that is learned from, shape (n_rows,)."""
        return _draws(ids) <= self._threshold

    def _replace(
        self, engine: Engine, ids: Int64Array, rows: Rows, labels: Int8Array, alpha: Float64Array
    ) -> None:
        """Have an active set of these vertices and no others."""
        self._active = None
        active = ActiveSet(engine, self.options.C, self._kernel_rows(self._capacity))
        active.add(ids, self.in_form(rows), labels)
        active.set_weights(alpha)
        self._active = active

    def in_form(self, rows: Rows) -> Rows:
        """Rows as the active set holds them: dense or sparse, and as wide as all rows so far."""
        if not isinstance(rows, CSRRows):
            if not self._sparse:
                missing = self.n_features - rows.shape[1]
                return np.pad(rows, ((0, 0), (0, missing))) if missing else rows
            rows = CSRRows.from_dense(rows)
        wide = CSRRows(rows.data, rows.indices, rows.indptr, self.n_features)
        return wide if self._sparse else wide.toarray()

    def room(self) -> int:
        """Number of vertices that may be added."""
        return self._capacity - len(self.active)

    def add(self, positions: Int64Array, ids: Int64Array, rows: Rows, labels: Int8Array) -> None:
        """Add vertices of weight 0."""
        self.active.add(ids, self.in_form(rows), labels)
        self._positions.update(zip(ids.tolist(), positions.tolist(), strict=True))

    def overfull(self) -> bool:
        """Whether there are more support vectors than may be kept."""
        return len(self.active.support) > self._kept

    def forget(self) -> None:
        """Drop all vertices of weight 0, and beyond the bound those with the largest draws."""
        active = self.active
        support = active.support
        kept = support[self._fitting(active.ids[support])]
        labels = active.labels[kept].astype(np.int8)
        rows, ids, alpha = take_rows(active.rows, kept), active.ids[kept], active.alpha[kept]
        engine = active.engine
        del active  # and its kernel block, before there is another
        self._replace(engine, ids, rows, labels, alpha)

    def tolerance(self) -> float:
        """Relative gap aimed at, with the weights of now."""
        return max(self._stopping.relative_tolerance(self.active.rho), _FLOAT64_GAP)

    def count(self, kind: StepKind, n: int = 1) -> None:
        """Count steps of a kind."""
        self._state.steps[kind] += n

    def report(self, gap: float, callbacks: Sequence[Callback]) -> None:
        """Tell the callbacks how things stand."""
        state, active = self._state, self.active
        state.iteration = state.steps[StepKind.CORRECTIVE]
        state.objective = active.rho / 2
        state.sampled_gap = gap
        state.n_active = len(active)
        state.n_support = len(active.support)
        state.elapsed_s = self._seconds + time.perf_counter() - self._began
        state.kernel_evaluations = self._evaluations + active.engine.evaluations
        for callback in callbacks:
            callback(state.copy())

    def begin(self, rows: Rows) -> None:
        """Count a chunk."""
        self._began = time.perf_counter()
        self.rows_read += len(rows)
        self.bytes_read += _n_bytes(rows)
        self._state.rows_read, self._state.bytes_read = self.rows_read, self.bytes_read

    def conclude(self, rows: Rows, gap: float, settled: bool) -> None:
        """Close a chunk: take the weights of now as the solution."""
        self.n_rows += len(rows)
        before = None if self.solution is None else self.solution.status
        if not settled and before != Status.UNSETTLED:
            logger.warning(
                "the stream does not settle at C = %g: after %d passes over a chunk its gap is "
                "%.3g; lower C or scale the columns",
                self.options.C,
                _PASSES,
                gap,
            )
        state, active, support = self._state, self.active, self.active.support
        self._evaluations, self._seconds = state.kernel_evaluations, state.elapsed_s
        ids = active.ids.tolist()
        self._positions = {row_id: self._positions[row_id] for row_id in ids}
        self._vertices = _Vertices(
            take_rows(active.rows, np.arange(len(active))),
            active.labels.astype(np.int8),
            active.alpha.copy(),
            np.array(list(self._positions.values()), dtype=np.int64),
        )
        self.solution = Solution(
            status=Status.STREAMED if settled else Status.UNSETTLED,
            method=Corrective.name,
            lmo="stream",
            choice=f"corrective steps on the active set, {self.n_rows} rows seen once",
            alpha=active.alpha[support],
            labels=active.labels[support].astype(np.int8),
            rows=self._vertices.positions[support],
            support_vectors=take_rows(active.rows, support),
            objective=active.rho / 2,
            rho=active.rho,
            sampled_gap=gap,
            certified_gap=None,
            pair_gap=None,
            iterations=state.steps[StepKind.CORRECTIVE],
            steps=dict(state.steps),
            kernel_evaluations=state.kernel_evaluations,
            passes=state.kernel_evaluations / (self.n_rows * len(support)),
            rows_read=self.rows_read,
            bytes_read=self.bytes_read,
            seconds=state.elapsed_s,
        )


@dataclass
class _Lesson:
    """One chunk: a pool of candidates."""

    stream: Stream
    rows: Rows
    labels: Int8Array
    callbacks: Sequence[Callback]
    rule: Corrective = field(default_factory=Corrective)

    def learn(self) -> None:
        """Work in the chunk and close it."""
        stream, chunk = self.stream, self.rows
        stream.begin(chunk)
        with stream.open_engine(chunk) as engine:
            stream.wake(engine)
            self._prepare()
            if len(stream.active) == 0:
                self._start()
            looked = self._work()
            if stream.overfull():
                stream.forget()
                self._settle()
                looked = False
            gap = self._gap(looked)
            stream.report(gap, self.callbacks)
            settled = self.settled and stream.active.relative_gap() <= stream.tolerance()
            stream.conclude(chunk, gap, settled)

    def _prepare(self) -> None:
        """The different rows of the chunk, by their ids."""
        ids = vertex_ids(self.rows, self.labels)
        _, first = np.unique(ids, return_index=True)
        self.places = self.stream.n_rows + np.arange(len(ids))
        self.ids = ids
        if len(first) < len(ids):
            first.sort()
            self.ids, self.places = ids[first], self.places[first]
            self.rows, self.labels = take_rows(self.rows, first), self.labels[first]
        self.margins = np.zeros(len(self.ids))  # g / rho, when last looked at
        self.share = 1.0  # of violators in the part last looked at
        self.settled = False  # whether no row that is learned from violates its margin

    def _start(self) -> None:
        """First active set: the first rows of both classes, as far as they are there."""
        first = [np.flatnonzero(self.labels == sign)[:_START_ROWS] for sign in (-1, 1)]
        self._add(np.sort(np.concatenate(first)))
        active = self.stream.active
        active.set_weights(np.ones(len(active)))
        self._settle()

    def _work(self) -> bool:
        """Passes over the chunk until nothing in it violates.

        Returns
        -------
        looked : bool
            Whether `margins` are those of the weights of now.
        """
        where = self._learned()
        whole = True
        for number in range(_PASSES):
            if number == _PASSES // 2:
                self.stream.active.widen()  # rounding may be what keeps it from settling
            if self._pass(where):
                near = self._learned()
                near = near[self.margins[near] < _NEAR]
                where, whole = near[self.stream.active.outside(self.ids[near])], False
                self.stream.active.refresh()
            elif whole:
                self.settled = True
                return len(where) == len(self.ids)
            else:
                where, whole = self._learned(), True
        return False

    def _learned(self) -> npt.NDArray[np.intp]:
        """Rows of the chunk that belong to the share that is learned from."""
        return np.flatnonzero(self.stream.admits(self.ids))

    def _pass(self, where: Int64Array) -> bool:
        """Look at rows part by part, step after each; whether any step was taken."""
        stream, start, moved = self.stream, 0, False
        while start < len(where):
            limit = max(_LEAST_BATCH, len(stream.active))
            wanted = int(_SPARE_ROWS * limit / max(self.share, 1e-3))
            part = where[start : start + min(max(_FIRST_PART, wanted), _LARGEST_PART)]
            start += len(part)
            self._look(part)
            outside = self._candidates(part)
            found = outside[self.margins[outside] < 1 - stream.tolerance()]
            self.share = len(found) / len(part)
            gap = 1 - float(self.margins[outside].min(initial=1.0))
            if len(found) > 0:
                self._step(found[:limit])
                moved = True
            stream.report(gap, self.callbacks)
        if stream.active.relative_gap() > stream.tolerance():
            self._step(np.empty(0, dtype=np.int64))
            moved = True
        return moved

    def _look(self, part: Int64Array) -> None:
        """Margins of some rows under the weights of now; wrong for vertices."""
        active = self.stream.active
        x = active.prepare(self.stream.in_form(take_rows(self.rows, part)))
        self.margins[part] = self.labels[part] * active.decision_at(x) / active.rho

    def _candidates(self, part: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
        """Those of the rows that may become vertices."""
        part = part[self.stream.active.outside(self.ids[part])]
        return part[self.stream.admits(self.ids[part])]

    def _step(self, chosen: Int64Array) -> None:
        """Add rows, optimise on the active set, drop zeros."""
        stream = self.stream
        violation = 0.0
        if len(chosen) > 0:
            chosen = self._make_room(chosen)
        if len(chosen) > 0:
            violation = 1 - float(np.median(self.margins[chosen]))
            self._add(chosen)
        self.rule.inner_tol = max(_INNER_SHARE * violation, _INNER_AIM * stream.tolerance())
        record = self.rule.step(stream.active, 0)
        self.rule.prune(stream.active)
        stream.count(record.kind)
        stream.count(StepKind.DROP, record.drops)

    def _make_room(self, chosen: Int64Array) -> Int64Array:
        """As many of the rows as can be added, where need be after forgetting others."""
        if self.stream.room() < len(chosen):
            self.stream.forget()
            chosen = chosen[self.stream.admits(self.ids[chosen])]
        return chosen[: self.stream.room()]

    def _add(self, chosen: Int64Array) -> None:
        rows = take_rows(self.rows, chosen)
        self.stream.add(self.places[chosen], self.ids[chosen], rows, self.labels[chosen])

    def _settle(self) -> None:
        """Optimise on the active set alone."""
        active = self.stream.active
        self.rule.inner_tol = _INNER_AIM * self.stream.tolerance()
        self.rule.step(active, 0)
        active.refresh()

    def _gap(self, looked: bool) -> float:
        """Relative gap over the chunk and the active set, its worst row in float64."""
        active = self.stream.active
        everything = np.arange(len(self.ids))
        if not looked:
            for start in range(0, len(everything), _LARGEST_PART):
                self._look(everything[start : start + _LARGEST_PART])
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


class TwoLabels:
    """Labels of a stream as -1 and +1.

    Parameters
    ----------
    name : str
        Of the rows, for messages.
    classes : ndarray of shape (2,), optional
        The two values in rising order. Without, they are taken as they come, and the first one is
        -1 even where it will turn out to be the larger one: signs may be exchanged at the end,
        since the problem is the same then.

    Attributes
    ----------
    known : list
        The values met or given: that of -1, that of +1.
    """

    def __init__(self, name: str, classes: npt.NDArray[Any] | None = None) -> None:
        self.name = name
        self.known = [] if classes is None else list(classes)

    @property
    def classes(self) -> npt.NDArray[Any]:
        """Both values in rising order.

        Raises
        ------
        InputError
            When one value or none was met.
        """
        if len(self.known) < 2:
            raise InputError(
                f"all rows of {self.name} have the label {self.known[0]}; training needs rows of "
                f"two classes"
            )
        return np.sort(np.array(self.known))

    @property
    def swapped(self) -> bool:
        """Whether -1 stands for the larger value."""
        return bool(self.known[0] > self.known[1])

    def encode(self, labels: npt.NDArray[Any], first_row: int = 0, after: str = "") -> Int8Array:
        """Give -1 or +1 for each label.

        Parameters
        ----------
        labels : ndarray of shape (n_rows,)
            Label values.
        first_row : int
            Number of the first row, for messages.
        after : str
            Where in the input it is, for messages.

        Raises
        ------
        InputError
            For a label that is neither of the two; nothing has been learned from these then.
        """
        known = list(self.known)
        signs = np.zeros(len(labels), dtype=np.int8)
        while True:
            for value, sign in zip(known, (-1, 1), strict=False):
                signs[labels == value] = sign
            rest = np.flatnonzero(signs == 0)
            if len(rest) == 0:
                self.known = known
                return signs
            label = labels[rest[0]]
            missing = label != label  # NaN
            if len(known) == 2 or missing:
                raise InputError(
                    f"row {first_row + rest[0]} of {self.name}{after} has the label {label}, but "
                    + ("every row needs one" if missing else f"the two classes are {_both(known)}")
                    + "; leave such rows out"
                )
            known.append(label)


def _both(values: Sequence[Any]) -> str:
    return " and ".join(str(value) for value in values)


def pools(source: RowSource, signs: Int8Array) -> Iterator[tuple[Rows, Int8Array]]:
    """All rows of a source with their signs, in chunks of bounded size."""
    for start, rows in iter_blocks(source, 0, source.n_rows, POOL_BYTES):
        yield rows, signs[start : start + len(rows)]


def vertex_ids(rows: Rows, labels: Int8Array) -> Int64Array:
    """A number for each row that equal rows of one label share, shape (n_rows,).

    It is a 64-bit hash: that two different rows of a stream share one is possible, and means that
    one of them is passed over, but is not to be expected below a billion rows. Zeros do not count,
    so that dense, sparse and wider forms of a row have the same number.
    """
    ids = np.empty(len(rows), dtype=np.int64)
    for start in range(0, len(rows), _HASHED_ROWS):
        part = rows[start : start + _HASHED_ROWS]
        hashes = row_hashes(_without_zeros(part)) & np.uint64(0xFFFFFFFFFFFFFFFE)
        ids[start : start + len(part)] = hashes.view(np.int64)
    return ids | (labels > 0)


def _without_zeros(rows: Rows) -> CSRRows:
    """Compressed form in which no zero is stored."""
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


def _n_bytes(rows: Rows) -> int:
    if isinstance(rows, CSRRows):
        return rows.data.nbytes + rows.indices.nbytes + rows.indptr.nbytes
    return rows.nbytes
