"""What an exact run would take: its support vectors, from samples, and its time."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np

from ooc_fw.data.rows import Int64Array, Rows
from ooc_fw.data.sources import RowSource, rows_source
from ooc_fw.data.views import choose_sampler
from ooc_fw.kernels.arithmetic import choose_arithmetic
from ooc_fw.kernels.engine import Engine
from ooc_fw.kernels.functions import Kernel
from ooc_fw.model.pairs import union_of_rows
from ooc_fw.options import TrainOptions
from ooc_fw.problem import ClassificationProblem
from ooc_fw.solver.session import Session
from ooc_fw.solver.setup import workload
from ooc_fw.solver.state import Status
from ooc_fw.system.errors import OutOfTimeError
from ooc_fw.system.interrupt import interruption
from ooc_fw.system.memory import least_bytes
from ooc_fw.training.pairs import train_pairs

SAMPLE_ROWS = 2_000, 8_000
"""Rows of the samples that are solved; the second one only where the first does not decide."""

_SAMPLE_TOL = 1e-2  # relative gap of their models
_SAMPLE_TIME = 0.1  # share of the time that is left, for each of them

PASSES = 2.5
"""Kernel values of a typical exact run, divided by rows times support vectors."""

_DENSE_SUPPORT = 20_000  # support vectors between which the steps of a run take 10 s
_DENSE_SECONDS = 10.0


@dataclass(frozen=True)
class Support:
    """Support vectors that an exact model may have; `basis` says in words how that is known."""

    expected: int
    share: float  # of the rows of the largest sample
    basis: str
    late: bool = False  # whether a sample took too much of the time limit, and tells little


def expect_support(
    problem: ClassificationProblem, options: TrainOptions, session: Session, enough: int, most: int
) -> Support:
    """Support vectors of an exact model of `problem`, from exact models of samples.

    Parameters
    ----------
    problem, options, session
        Those of the run.
    enough : int
        One sample is enough where its share of support vectors makes no more than these. Else the
        power law through the numbers of two samples is extrapolated.
    most : int
        Largest number of rows of a sample.
    """
    n_rows, late = problem.source.n_rows, False
    found: list[tuple[int, int]] = []
    for wanted in SAMPLE_ROWS:
        size = min(wanted, most, n_rows)
        if found and size <= found[-1][0]:
            break
        size, support, late = _solve_sample(problem, size, options, session)
        found.append((size, support))
        if late or support * n_rows <= enough * size:
            break
    size, support = found[-1]
    power = 1.0
    if len(found) > 1:
        small, few = found[0]
        power = float(np.clip(np.log(support / few) / np.log(size / small), 0.0, 1.0))
    expected = min(n_rows, round(support * (n_rows / size) ** power))
    words = "the model of " + " and of ".join(
        f"{size} rows has {support} support vectors" for size, support in found
    )
    return Support(expected, support / size, words, late)


def draw_sample(
    source: RowSource, codes: Int64Array, size: int, seed: int = 0
) -> tuple[RowSource, Int64Array]:
    """Random rows, with one at least of each class, and their increasing numbers."""
    sampler = choose_sampler(
        source.n_rows, source.chunk_rows, source.shuffled, source.in_memory, codes
    )
    ids = sampler.sample(size, np.random.default_rng(seed))
    counts = np.bincount(codes[ids], minlength=int(codes.max()) + 1)
    more = [np.argmax(codes == code) for code in np.flatnonzero(counts == 0)]
    ids = np.union1d(ids, np.array(more, dtype=np.int64))
    return rows_source(source.take(ids), source.name), ids


def _solve_sample(
    problem: ClassificationProblem, size: int, options: TrainOptions, session: Session
) -> tuple[int, int, bool]:
    """Rows of a sample, support vectors of its model, and whether time did not suffice for it."""
    source = problem.source
    small, ids = draw_sample(source, problem.codes, size, options.seed)
    held = small.decoded_bytes + problem.codes.nbytes
    held += source.decoded_bytes if source.in_memory else 0
    own = TrainOptions(C=options.C, tol=_SAMPLE_TOL, threads=options.threads)
    if options.memory_limit is not None:
        # The plan of the run has room for these rows, if only as its vertices.
        work = replace(workload(small, own, held), n_classifiers=problem.n_classifiers)
        own = replace(own, memory_limit=max(options.memory_limit, least_bytes(work)))
    if options.max_time is not None:
        deadline = session.deadline(options)
        deadline.check()
        own = replace(own, max_time=_SAMPLE_TIME * deadline.left())
    alone = Session(held=held)
    try:
        pairs = train_pairs(problem.subset(small, ids), own, alone)
    except OutOfTimeError:
        return len(ids), len(ids), True
    for solution in (pair.solution for pair in pairs):
        if solution.signal is not None:
            raise interruption(solution.signal)
    late = any(pair.solution.status is Status.TIME_LIMIT for pair in pairs)
    return len(ids), len(union_of_rows(pairs)), late


def kernel_speed(
    kernel: Kernel, rows: Rows, threads: int, seconds: float = 0.1
) -> tuple[float, float]:
    """How many kernel values are computed in a second, and the largest of the rows' diagonal."""
    with Engine(kernel, threads, choose_arithmetic(kernel, rows)) as engine:
        x = engine.prepare(rows)
        weights = np.full(len(x), 1 / len(x))
        engine.weighted_sum(x, x, weights)  # the first call compiles
        before, started = engine.evaluations, time.perf_counter()
        while time.perf_counter() - started < seconds:
            engine.weighted_sum(x, x, weights)
        speed = (engine.evaluations - before) / (time.perf_counter() - started)
    return speed, float(kernel.diagonal(x.norms).max())


def exact_seconds(n_rows: int, support: int, speed: float) -> float:
    """Time of an exact run: its kernel values, and its steps on the support vectors."""
    steps = _DENSE_SECONDS * (support / _DENSE_SUPPORT) ** 2
    return PASSES * n_rows * support / speed + steps
