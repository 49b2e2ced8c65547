"""Several classes: one binary classifier for each pair of them, from one pass over the data.

The rows are partitioned by class once, in RAM where they fit, else in files that are removed at the
end. Each pair of classes is then a problem of its own, with a solution and a certificate over the
rows of the two classes. The predicted class is the one that most classifiers vote for, see
`ooc_fw.model.pairs`. Two classes have one pair, and no partition.

References
----------
Frandi, Nanculef, Suykens, A PARTAN-accelerated Frank-Wolfe algorithm for large-scale SVM
classification, section on multi-class problems: one-versus-one.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ooc_fw.convert.writer import DatasetWriter, Layout, OutputFile, Summary
from ooc_fw.data.rows import (
    CSRRows,
    Float64Array,
    Int8Array,
    Int64Array,
    Rows,
    concat_rows,
    take_rows,
)
from ooc_fw.data.scaling import Scaling
from ooc_fw.data.sources import (
    ArraySource,
    CSRSource,
    PairSource,
    RowSource,
    iter_blocks,
    open_source,
)
from ooc_fw.model.pairs import PairSolution, class_pairs, union_of_rows
from ooc_fw.options import TrainOptions
from ooc_fw.problem import BinaryProblem, Problem
from ooc_fw.solver.loop import solve_problem
from ooc_fw.solver.session import Session
from ooc_fw.solver.setup import choose_method, plan_run
from ooc_fw.solver.start import Warm
from ooc_fw.solver.state import Callback, Solution, SolverState, Status
from ooc_fw.system.errors import InputError
from ooc_fw.system.interrupt import DeferredInterrupt
from ooc_fw.system.scratch import scratch_directory

_RAM_BYTES = 256 << 20
"""Bytes of rows that are partitioned in RAM; more of them are partitioned on disk."""

_RAM_SHARE = 0.25  # share of a memory limit that partitioned rows may take in RAM
_SPARE_DISK = 1.1  # factor of the bytes needed on disk, which must be free

# -- rows of each class --------------------------------------------------------------------------


@dataclass(frozen=True)
class ClassRows:
    """Rows of one class: a source of them, and their numbers in the whole data set."""

    source: RowSource
    rows: Int64Array


@dataclass(frozen=True)
class ClassPair:
    """The rows of two classes as one source, and -1 or +1 for each.

    Attributes
    ----------
    source : PairSource
        Rows of both classes.
    labels : ndarray of int8, shape (source.n_rows,)
        -1 for the `negative` class.
    """

    source: PairSource
    labels: Int8Array
    negative: ClassRows
    positive: ClassRows

    def whole_rows(self, rows: Int64Array) -> Int64Array:
        """Numbers in the whole data set of rows of this pair."""
        origin, is_negative = self.source.origin(rows), self.source.is_first(rows)
        whole = np.empty(len(rows), dtype=np.int64)
        for part, here in ((self.negative, is_negative), (self.positive, ~is_negative)):
            whole[here] = part.rows[origin[here]]
        return whole

    def pair_rows(self, rows: Int64Array) -> Int64Array:
        """Numbers in this pair of rows of the whole data set."""
        negative = self.negative.rows
        origin = np.searchsorted(negative, rows)
        is_negative = negative[np.minimum(origin, len(negative) - 1)] == rows
        origin[~is_negative] = np.searchsorted(self.positive.rows, rows[~is_negative])
        return self.source.place(origin, is_negative)

    def problem(self, whole: Problem) -> BinaryProblem:
        """The binary problem of the two classes, with the kernel and penalties of the whole."""
        penalties = whole.penalties
        if penalties is not None:
            penalties = penalties[self.whole_rows(np.arange(self.source.n_rows))]
        return BinaryProblem(self.source, self.labels, whole.kernel, penalties)


class ClassSplit:
    """The rows of a source, partitioned by class; see `split_classes`.

    Attributes
    ----------
    held_bytes : int
        Bytes of these rows that are in RAM.
    """

    def __init__(self, whole: RowSource, parts: list[ClassRows]) -> None:
        self._whole = whole
        self._parts = parts
        sources = [whole, *(part.source for part in parts)]
        self.held_bytes = sum(source.decoded_bytes for source in sources if source.in_memory)

    def pair(self, negative: int, positive: int) -> ClassPair:
        """The rows of two classes."""
        parts = self._parts[negative], self._parts[positive]
        source = PairSource(
            *(part.source for part in parts), name=self._whole.name, shuffled=self._whole.shuffled
        )
        source.scaling = self._whole.scaling
        is_negative = source.is_first(np.arange(source.n_rows))
        return ClassPair(source, np.where(is_negative, np.int8(-1), np.int8(1)), *parts)


@contextmanager
def split_classes(
    source: RowSource, codes: Int64Array, n_classes: int, memory_limit: int | None = None
) -> Iterator[ClassSplit]:
    """Partition the rows of a source by class, in one pass.

    Parameters
    ----------
    source : RowSource
        All rows.
    codes : ndarray of int64, shape (n_rows,)
        Class of each row, from 0; every class occurs.
    n_classes : int
        Number of classes.
    memory_limit : int or None
        Memory limit of the process, in bytes; rows that would take much of it go to disk.

    Raises
    ------
    InputError
        There is no room for the rows on the disk that holds temporary files.
    """
    order = np.argsort(codes, kind="stable")
    rows = np.split(order, np.cumsum(np.bincount(codes, minlength=n_classes))[:-1])
    most = _RAM_BYTES if memory_limit is None else min(_RAM_BYTES, _RAM_SHARE * memory_limit)
    with ExitStack() as opened:
        if source.in_memory or source.decoded_bytes <= most:
            sources = _split_in_ram(source, codes, rows)
        else:
            folder = opened.enter_context(scratch_directory())
            sources = _split_on_disk(source, codes, rows, folder)
            for part in sources:
                opened.callback(part.close)
        parts = [ClassRows(part, own) for part, own in zip(sources, rows, strict=True)]
        yield ClassSplit(source, parts)


def _by_class(
    source: RowSource, codes: Int64Array, n_classes: int
) -> Iterator[tuple[int, int, Rows]]:
    """All rows as (first row of the block, class, rows of that class), block by block."""
    for start, block in iter_blocks(source, 0, source.n_rows):
        here = codes[start : start + len(block)]
        for code in range(n_classes):
            places = np.flatnonzero(here == code)
            if len(places) > 0:
                yield start, code, take_rows(block, places)
    source.check_unchanged()


def _split_in_ram(
    source: RowSource, codes: Int64Array, rows: Sequence[Int64Array]
) -> list[RowSource]:
    pieces: list[list[Rows]] = [[] for _ in rows]
    for _, code, piece in _by_class(source, codes, len(rows)):
        pieces[code].append(piece)
    sources: list[RowSource] = []
    for code, own in enumerate(pieces):
        whole = concat_rows(own)
        own.clear()
        pieces[code] = []
        name = source.name
        if isinstance(whole, CSRRows):
            sources.append(CSRSource(whole, name=name))
        else:
            sources.append(ArraySource(whole, name=name))
    return sources


def _split_on_disk(
    source: RowSource, codes: Int64Array, rows: Sequence[Int64Array], folder: Path
) -> list[RowSource]:
    n_stored = source.decoded_bytes // 8 if source.sparse else 0
    layout = Layout(source.n_rows, source.n_features, n_stored, source.sparse)
    needed = layout.n_bytes
    free = shutil.disk_usage(folder).free
    if free < _SPARE_DISK * needed:
        raise InputError(
            f"{source.name} has {len(rows)} classes, whose rows are set apart in {folder.parent}: "
            f"that takes {needed >> 20} MiB, and {free >> 20} MiB are free; name a larger disk in "
            f"the environment variable TMPDIR"
        )
    paths = [folder / f"{code}.h5" for code in range(len(rows))]
    with ExitStack() as files:
        writers = [
            DatasetWriter(files.enter_context(OutputFile(path)), replace(layout, n_rows=len(own)))
            for path, own in zip(paths, rows, strict=True)
        ]
        written = np.zeros(len(rows), dtype=np.int64)
        for _, code, piece in _by_class(source, codes, len(rows)):
            ids = rows[code][written[code] : written[code] + len(piece)]
            writers[code].append(piece, np.full(len(piece), float(code)), ids)
            written[code] += len(piece)
        for code, writer in enumerate(writers):
            counts = {float(code): len(rows[code])}
            mean = np.zeros(source.n_features)
            writer.finish(Summary(counts, source.name, Scaling(), mean, mean_square_norm=0.0))
    return [open_source(path) for path in paths]


# -- binary classifiers --------------------------------------------------------------------------


def solve_classes(
    problem: Problem,
    options: TrainOptions,
    session: Session | None = None,
    warm: Sequence[Warm | None] | None = None,
) -> list[PairSolution]:
    """Train a binary classifier for each pair of classes.

    Parameters
    ----------
    problem : Problem
        Rows, classes, kernel and penalties.
    options : TrainOptions
        The limits of time and memory are those of all classifiers together; `max_iter` and
        `max_support` are those of each.
    session : Session, optional
        Circumstances. The certifying passes of several classifiers are not made by Dask.
    warm : sequence of tuple or None, optional
        What each classifier begins with, as for `ooc_fw.solver.loop.solve_problem`. The rows are
        those of `problem.source`, and of the classifier's two classes.

    Returns
    -------
    list of PairSolution
        In the order of `class_pairs`. Solutions of more than two classes hold no support vectors,
        most of which several classifiers share: see `support_vectors_of`. After an interrupt, or
        when time is over, the remaining classifiers are those of their first few rows, so that
        every pair has one.

    Raises
    ------
    InputError
        As `ooc_fw.solver.loop.solve_problem` does, and for checkpoints of more than two classes.
    OutOfTimeError
        When time is over before the rows of more than two classes are partitioned.
    """
    session = Session() if session is None else session
    source, n_classes = problem.source, problem.n_classes
    if n_classes == 2:
        first = None if warm is None else warm[0]
        return [PairSolution(0, 1, solve_problem(problem.binary(), options, session, first))]
    if session.checkpoint is not None or session.resume is not None:
        raise InputError(
            f"{source.name} has {n_classes} classes, and checkpoints hold a run of two; train "
            f"without them"
        )
    pairs = class_pairs(n_classes)
    counts = np.bincount(problem.codes, minlength=n_classes).astype(np.float64)
    work = np.array([(counts[a] + counts[b]) ** 2 for a, b in pairs])
    done: list[PairSolution] = []
    interrupt = DeferredInterrupt()  # one for all, so that no solution is lost
    with interrupt, ExitStack() as opened:
        with source.limited(session.deadline(options).check):
            split = opened.enter_context(
                split_classes(source, problem.codes, n_classes, options.memory_limit)
            )
        largest = split.pair(*pairs[int(work.argmax())])
        plan_run(largest.source, options, split.held_bytes)  # refuses what memory cannot hold
        for k, places in enumerate(pairs):
            interrupted = bool(done) and done[-1].solution.status is Status.INTERRUPTED
            own, reason = _own_options(options, session, work[k:], interrupted)
            told = [_numbered(callback, k, len(pairs)) for callback in session.callbacks]
            circumstances = Session(told, held=split.held_bytes, interrupt=interrupt)
            first = None if warm is None else warm[k]
            solution = _solve_pair(problem, split.pair(*places), own, circumstances, first)
            if reason is not None:
                solution = replace(solution, status=reason)
            done.append(PairSolution(*places, solution))
    return done


def _own_options(
    options: TrainOptions, session: Session, work: Float64Array, interrupted: bool
) -> tuple[TrainOptions, Status | None]:
    """Options of the next classifier, and why there is no time for it, if there is none.

    `work` is that of this classifier and of all after it, in any unit; they share the time left.
    """
    left = None
    if options.max_time is not None:
        left = session.started + options.max_time - time.perf_counter()
    if interrupted or (left is not None and left <= 0):
        reason = Status.INTERRUPTED if interrupted else Status.TIME_LIMIT
        return replace(options, max_iter=0, max_time=None, certify=False), reason
    share = None if left is None else left * float(work[0] / work.sum())
    return replace(options, max_time=share), None


def _solve_pair(
    problem: Problem, pair: ClassPair, options: TrainOptions, session: Session, warm: Warm | None
) -> Solution:
    """Solution of one of several pairs, whose rows are those of the whole data set."""
    if warm is not None:
        warm = pair.pair_rows(warm[0]), warm[1]
    solution = solve_problem(pair.problem(problem), options, session, warm)
    none = take_rows(solution.support_vectors, np.empty(0, dtype=np.int64))
    return replace(solution, rows=pair.whole_rows(solution.rows), support_vectors=none)


def describe_choice(pairs: Sequence[PairSolution], options: TrainOptions, n_rows: int) -> str:
    """One line that says what "auto" picked, and why, for all classifiers.

    Parameters
    ----------
    pairs : sequence of PairSolution
        What `solve_classes` returned for `options`.
    n_rows : int
        Rows of the source, all classes together.
    """
    first = pairs[0].solution
    if len(pairs) == 1:
        return first.choice
    n_full = sum(pair.solution.lmo == "full" for pair in pairs)
    if 0 < n_full < len(pairs):
        return (
            f"method {first.method}, full oracle for {n_full} of {len(pairs)} classifiers, which "
            f"have few rows, and sampled oracle for the others"
        )
    return choose_method(replace(options, lmo=first.lmo), n_rows)[2]


def _numbered(callback: Callback, machine: int, n_machines: int) -> Callback:
    """`callback`, told which classifier its state is of."""

    def told(state: SolverState) -> bool | None:
        state.machine, state.n_machines = machine, n_machines
        return callback(state)

    return told


def support_vectors_of(source: RowSource, pairs: Sequence[PairSolution]) -> Rows:
    """The rows of `union_of_rows`."""
    if len(pairs) == 1:
        return pairs[0].solution.support_vectors
    return source.take(union_of_rows(pairs))
