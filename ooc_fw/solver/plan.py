"""The decisions before a run, in one frozen `Plan`.

`plan_exact` plans binary classifiers, and `ooc_fw.training.choice.plan_model` plans all models.
Later code decides nothing again.
"""

from __future__ import annotations

import logging
import math
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from ooc_fw.data.parallel import Workers, borrow_workers
from ooc_fw.data.rows import AnyArray, Int64Array
from ooc_fw.data.sampling import Sampler, choose_sampler
from ooc_fw.data.sources import CHUNK_BYTES, RowSource, stretches
from ooc_fw.data.views import SubsetSource
from ooc_fw.kernels.arithmetic import choose_arithmetic
from ooc_fw.kernels.engine import Engine
from ooc_fw.kernels.functions import Kernel
from ooc_fw.options import TrainOptions
from ooc_fw.problem import Problem, row_penalties
from ooc_fw.solver.oracles import LARGEST_BLOCK
from ooc_fw.solver.steps import STEP_RULES
from ooc_fw.solver.surroundings import Session as Session
from ooc_fw.system.errors import InputError
from ooc_fw.system.memory import MemoryPlan, Workload, memory_total, plan_memory

MOST_PAIRED = 1_000
"""Most classes of an exact model, which then has half a million classifiers."""

logger = logging.getLogger(__name__)
_warn_once = cache(logger.warning)  # one warning for many runs on the same file


@dataclass(frozen=True)
class Plan:
    """The decisions before a run."""

    # The options without "auto": `landmarks` or `exact` tells the kind of model, and there are no
    # more `threads` than fit the memory.
    options: TrainOptions
    # The options as given, apart from `landmarks` and `exact`. Pairs of classes and parts of the
    # rows start from these: their method, oracle and memory may differ from those for all rows.
    given: TrainOptions
    memory: MemoryPlan  # for one classifier on all rows, if there are several exact ones
    kind: str = ""  # one line: why the model is exact, or has landmarks
    method: str = ""  # one line: the method and oracle of an exact model, and why
    quantised: bool = False  # whether kernel values between vertices begin in 16 bits
    linear: bool = False  # whether weights of columns take the place of landmarks
    grows: bool = False  # whether landmarks are added as long as a time limit allows
    kernel: Kernel | None = None  # that held-out rows chose; None: the kernel of the problem
    rows: Int64Array | None = None  # increasing numbers of the rows to learn; None for all
    searched: bool = False  # whether held-out rows chose kernel, C and weights of classes
    class_weight: str | None = None  # the weights of classes that they chose

    @property
    def landmarks(self) -> int | None:
        """Number of landmarks; None for an exact model."""
        return self.memory.landmarks or None

    def applied_to(self, problem: Any) -> Any:
        """The problem with the kernel, the weights of classes and the rows of the plan."""
        if self.kernel is not None:
            problem = replace(problem, kernel=self.kernel)
        if self.class_weight is not None:
            given = self.options.C, problem.classes, problem.codes, self.class_weight
            problem = replace(problem, penalties=row_penalties(*given))
        if self.rows is not None:
            problem = problem.subset(SubsetSource(problem.source, self.rows), self.rows)
        return problem

    def with_options(self, **changes: Any) -> Plan:
        """The plan with other options; no other part of it depends on these."""
        given = replace(self.given, **changes)
        return replace(self, options=replace(self.options, **changes), given=given)


def plan_exact(
    problem: Problem,
    options: TrainOptions,
    session: Session | None = None,
    *,
    memory: MemoryPlan | None = None,
    kind: str = "",
) -> Plan:
    """Plan an exact binary classifier on all rows, for a problem with any classes.

    `memory` is given if it was planned before. OverLimitError is raised if the memory limit cannot
    be met, and InputError if the method or the oracle does not exist or does not fit.
    """
    session = session or Session()
    n_rows = problem.source.n_rows
    n_classes = problem.n_classifiers
    if n_classes > MOST_PAIRED:
        raise InputError(
            f"an exact model of {n_classes} classes has {math.comb(n_classes, 2):,} classifiers, "
            f"one for each pair of them; landmarks have {n_classes}: leave out --exact"
        )
    given = replace(options, landmarks=None, exact=True)
    options = with_method(given, n_rows)
    if memory is None:
        work = workload(problem, given, session)
        memory = plan_memory(work, options.memory_limit, memory_total())
    why = "as asked" if given.method != "auto" else f"fits any size, here {n_rows} rows"
    method = f"method {options.method}, {options.lmo} oracle: {why}"
    # 16 bits serve a rule that takes many vertices, since it computes gradients anew. Single steps
    # move more weight and round more. For one class rho may be far below 1.
    fits = STEP_RULES[options.method].takes_many and problem.kernel.constant_diagonal
    fits = fits and problem.task != "novelty"
    # The kernel values between 2^14 rows take 1 GiB in float32.
    quantised = fits and (options.memory_limit is not None or n_rows > 1 << 14)
    options = replace(options, threads=min(options.threads, memory.max_threads))
    return Plan(options, given, memory, kind, method, quantised)


def with_method(options: TrainOptions, n_rows: int) -> TrainOptions:
    """Replace "auto" by a method and an oracle; InputError if the given ones do not fit."""
    if options.method != "auto" and options.method not in STEP_RULES:
        raise InputError(
            f"method must be auto or one of {', '.join(STEP_RULES)}, not {options.method!r}"
        )
    method = "corrective" if options.method == "auto" else options.method
    lmo = options.lmo
    if lmo == "auto":
        # For one step the full oracle computes a kernel column over all rows, and the sampled
        # oracle the values of some rows for the support. With few rows the full oracle is cheaper.
        few = n_rows <= 10_000 and not STEP_RULES[method].takes_many
        lmo = "full" if few else "sampled"
    return replace(options, method=method, lmo=lmo)


def few_rows(source: RowSource, most: int) -> int:
    """Number of rows, up to `most`, that take little memory: 32 MiB."""
    row_bytes = max(1, source.decoded_bytes // source.n_rows)
    return min(most, source.n_rows, max(1, (32 << 20) // row_bytes))


def workload(problem: Problem, options: TrainOptions, session: Session) -> Workload:
    """The sizes on which the memory of a run depends."""
    return sizes_of(
        problem.source,
        options,
        session.held,
        n_classifiers=problem.n_classifiers,
        weighted=problem.penalties is not None or problem.task == "regression",
        in_unit=problem.kernel.shift_invariant,
    )


def sizes_of(
    source: RowSource,
    options: TrainOptions,
    held: int | None = None,
    *,
    weighted: bool = False,
    **learned: Any,
) -> Workload:
    """The same sizes without a problem; `learned` are sizes that depend on the task."""
    options = with_method(replace(options, landmarks=None), source.n_rows)
    if held is None:
        held = source.decoded_bytes if source.in_memory else 0
    takes_many = STEP_RULES[options.method].takes_many
    block_rows = min(source.n_rows, LARGEST_BLOCK if takes_many else options.sample_size)
    return Workload(
        n_rows=source.n_rows,
        decoded_bytes=source.decoded_bytes,
        block_bytes=2 * CHUNK_BYTES,
        block_rows=block_rows,
        # A sample keeps the size that the user asked for.
        least_rows=few_rows(source, block_rows) if takes_many else block_rows,
        n_features=source.n_features,
        read_bytes=source.read_bytes,
        held_bytes=held,
        sparse=source.sparse,
        cacheable=not source.in_memory,
        weighted=weighted or options.lmo == "full",
        **learned,
    )


@contextmanager
def lend_workers(session: Session, threads: int, source: RowSource) -> Iterator[Workers | None]:
    """The workers for readings of the source; None: this process."""
    if session.dask is None:
        yield None
        return
    with borrow_workers(session.dask, threads) as workers:
        if workers.client is not None:
            pickle.dumps(source)  # refuses at once a source that the workers could not read
        yield workers


def make_sampler(source: RowSource, labels: AnyArray) -> Sampler:
    """Make the sampler that draws rows from a source; warn if it is slow."""
    sampler = choose_sampler(
        source.n_rows, source.chunk_rows, source.shuffled, source.in_memory, labels
    )
    if sampler.chunk_rows is not None and not source.in_memory:
        _warn_once(
            "%s is not marked as shuffled and its labels are not in random order: rows are drawn "
            "from whole chunks, which is slow; ooc-fw convert shuffles a file once",
            source.name,
        )
    return sampler


def warn_of_gamma(source: RowSource, kernel: Kernel) -> None:
    """Warn if gamma makes nearly all of a few hundred rows unrelated."""
    if not kernel.shift_invariant:
        return
    row_ids = stretches(source.n_rows, 16, 16)
    step = -(-len(row_ids) // few_rows(source, len(row_ids)))
    rows = source.take(row_ids[::step])
    with Engine(kernel, 1, choose_arithmetic(kernel, rows)) as engine:
        x = engine.prepare(rows, exact=True)
        values = np.empty((len(x), len(x)))
        engine.block(x, x, values)
    related = np.count_nonzero(values > 1e-6) - len(x)
    if len(x) > 16 and related < 0.01 * len(x) * (len(x) - 1):
        logger.warning(
            "gamma %g is far too large for the columns of %s as they are: nearly all kernel values "
            "between different rows are below 1e-6, so that the model will know only its training "
            "rows; scale the columns (ooc-fw convert --scale standard) or take gamma auto",
            kernel.gamma,
            source.name,
        )
