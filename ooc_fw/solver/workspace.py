"""What a run works with: engine, rows, sampler, workers; and a look at gamma before."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np

from ooc_fw.data.parallel import Workers, borrow_workers
from ooc_fw.data.rows import AnyArray, Float64Array, Int64Array, Rows, take_rows
from ooc_fw.data.sources import RowSource
from ooc_fw.data.views import CachedSource, ChunkSampler, Sampler, choose_sampler
from ooc_fw.kernels.arithmetic import Arithmetic, choose_arithmetic
from ooc_fw.kernels.engine import Engine
from ooc_fw.kernels.functions import FLOAT64_DIFFERENCES, Kernel
from ooc_fw.options import TrainOptions
from ooc_fw.problem import BinaryProblem
from ooc_fw.solver.plan import Plan, Session, few_rows
from ooc_fw.system.memory import MemoryPlan

logger = logging.getLogger(__name__)

_PROBE_ROWS = 1024  # rows that the arithmetic of products is chosen by
_GAMMA_STRETCHES, _GAMMA_ROWS = 16, 16  # stretches of a source, and rows of each, to try gamma on
_UNRELATED = 1e-6  # largest kernel value between two rows that tell nothing of each other
_RELATED_SHARE = 0.01  # least share of pairs of rows that are related where gamma is not too large
_SURE = Arithmetic(exact=FLOAT64_DIFFERENCES)  # right for any columns, and fast enough for few rows


@dataclass(frozen=True)
class Workspace:
    """What does not change during a run."""

    problem: BinaryProblem
    plan: Plan
    session: Session
    sampler: Sampler  # draws rows of the source
    engine: Engine  # computes kernel values
    rows: CachedSource  # the source, with its rows kept in RAM where the plan has room
    workers: Workers | None  # where passes over the data are made; None is this process

    @property
    def options(self) -> TrainOptions:
        """Options of the plan, of which none is "auto"."""
        return self.plan.options

    @property
    def memory(self) -> MemoryPlan:
        """Bytes for each part of the run."""
        return self.plan.memory

    @property
    def penalties(self) -> float | Float64Array:
        """C, or the penalty of each row, shape (n_rows,)."""
        return self.options.C if self.problem.penalties is None else self.problem.penalties

    def rows_of(self, row_ids: Int64Array) -> Rows:
        """Rows of the source by number, in any order."""
        order = np.argsort(row_ids)
        return take_rows(self.rows.take(row_ids[order]), np.argsort(order))


@contextmanager
def prepare(
    problem: BinaryProblem, plan: Plan, session: Session, arithmetic: Arithmetic | None = None
) -> Iterator[Workspace]:
    """Make what a run works with; the engine and the workers are closed at the end.

    The parameters are those of `ooc_fw.solver.loop.solve_problem`; `arithmetic` follows from a
    probe of the rows by default.
    """
    source, options = problem.source, plan.options
    sampler = make_sampler(source, problem.labels)
    if arithmetic is None:
        n_probe = few_rows(source, _PROBE_ROWS)
        probe = source.take(sampler.sample(n_probe, np.random.default_rng(options.seed)))
        arithmetic = choose_arithmetic(problem.kernel, probe)
    with ExitStack() as stack:
        engine = stack.enter_context(Engine(problem.kernel, options.threads, arithmetic))
        workers = None
        if session.dask is not None:
            workers = stack.enter_context(borrow_workers(session.dask, options.threads))
            workers.share(source)  # what cannot be read there is refused at once
        rows = CachedSource(source, plan.memory.row_cache)
        yield Workspace(problem, plan, session, sampler, engine, rows, workers)


def make_sampler(source: RowSource, labels: AnyArray) -> Sampler:
    """What draws rows of a source; a warning where that is slow."""
    sampler = choose_sampler(
        source.n_rows, source.chunk_rows, source.shuffled, source.in_memory, labels
    )
    if isinstance(sampler, ChunkSampler):
        logger.warning(
            "%s is not marked as shuffled and its labels are not in random order: rows are drawn "
            "from whole chunks, which is slow; ooc-fw convert shuffles a file once",
            source.name,
        )
    return sampler


def warn_of_gamma(source: RowSource, kernel: Kernel) -> None:
    """Warn where gamma makes nearly all of a few hundred rows unrelated.

    Such a model knows its training rows by heart and gives all other rows the same value.
    """
    if not kernel.shift_invariant:
        return
    stretches = np.linspace(0, source.n_rows, _GAMMA_STRETCHES, endpoint=False).astype(np.int64)
    row_ids = np.unique(stretches[:, None] + np.arange(_GAMMA_ROWS))
    row_ids = row_ids[row_ids < source.n_rows]
    step = -(-len(row_ids) // few_rows(source, len(row_ids)))
    rows = source.take(row_ids[::step])
    with Engine(kernel, 1, _SURE) as engine:
        x = engine.prepare(rows, exact=True)
        values = np.empty((len(x), len(x)))
        engine.block(x, x, values)
    related = np.count_nonzero(values > _UNRELATED) - len(x)
    if len(x) > _GAMMA_ROWS and related < _RELATED_SHARE * len(x) * (len(x) - 1):
        logger.warning(
            "gamma %g is far too large for the columns of %s as they are: nearly all kernel values "
            "between different rows are below %g, so that the model will know only its training "
            "rows; scale the columns (ooc-fw convert --scale standard) or take gamma auto",
            kernel.gamma,
            source.name,
            _UNRELATED,
        )
