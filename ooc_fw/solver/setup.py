"""What is decided before a run: method and oracle, memory plan, sampler, engine."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import numpy as np

from ooc_fw.data.parallel import Workers, borrow_workers
from ooc_fw.data.rows import AnyArray, Float64Array, Int64Array, Rows, take_rows
from ooc_fw.data.sources import CHUNK_BYTES, RowSource
from ooc_fw.data.views import CachedSource, ChunkSampler, Sampler, choose_sampler
from ooc_fw.kernels.arithmetic import Arithmetic, choose_arithmetic
from ooc_fw.kernels.engine import Engine
from ooc_fw.kernels.functions import Kernel
from ooc_fw.options import TrainOptions
from ooc_fw.problem import BinaryProblem
from ooc_fw.solver.oracles import KEEPS_GRADIENT, LARGEST_BLOCK, SEES_DRAWN_ALONE
from ooc_fw.solver.session import Session
from ooc_fw.solver.shell import Identity, State, load_checkpoint
from ooc_fw.solver.steps import STEP_RULES, Partan
from ooc_fw.system.errors import InputError
from ooc_fw.system.memory import MemoryPlan, Workload, format_bytes, memory_total, plan_memory

logger = logging.getLogger(__name__)

_PROBE_ROWS = 1024  # rows that the arithmetic of products is chosen by
_FEW_BYTES = 32 << 20  # of rows that are looked at together where memory is short, or once
_FULL_LIMIT = 10_000  # rows up to which steps that take one vertex use the full oracle
_FLOAT32_ROWS = 1 << 14  # rows whose kernel values with each other take 1 GiB in float32
_GAMMA_STRETCHES, _GAMMA_ROWS = 16, 16  # stretches of a source, and rows of each, to try gamma on
_UNRELATED = 1e-6  # largest kernel value between two rows that tell nothing of each other
_RELATED_SHARE = 0.01  # least share of pairs of rows that are related where gamma is not too large


@dataclass(frozen=True)
class Setting:
    """What does not change during a run."""

    problem: BinaryProblem
    options: TrainOptions  # "auto" is replaced
    session: Session
    choice: str  # one line that says which method and oracle "auto" picked, and why
    plan: MemoryPlan  # bytes for each part
    sampler: Sampler  # draws rows of the source
    engine: Engine  # computes kernel values
    rows: CachedSource  # the source, with its rows kept in RAM where the plan has room
    workers: Workers | None  # where passes over the data are made; None is this process
    before: tuple[Identity, State] | None  # the checkpoint to resume from

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
    problem: BinaryProblem,
    options: TrainOptions,
    session: Session,
    plan: MemoryPlan | None = None,
    arithmetic: Arithmetic | None = None,
) -> Iterator[Setting]:
    """Choose everything that a run needs; the engine and the workers are closed at the end.

    The parameters are those of `ooc_fw.solver.loop.solve_problem`; `plan` and
    `arithmetic` are chosen here by default.
    """
    source = problem.source
    method, lmo, choice = choose_method(options, source.n_rows)
    options = replace(options, method=method, lmo=lmo)
    plan = plan_run(source, options, session.held) if plan is None else plan
    before = None
    if session.resume is not None:
        before = load_checkpoint(session.resume)
        plan = _plan_before(MemoryPlan(**before[1]["plan"]), plan, session.resume)
    options = replace(options, threads=min(options.threads, plan.max_threads))
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
        rows = CachedSource(source, plan.row_cache)
        yield Setting(
            problem, options, session, choice, plan, sampler, engine, rows, workers, before
        )


def choose_method(options: TrainOptions, n_rows: int) -> tuple[str, str, str]:
    """Replace "auto": method, oracle, and one line that says why."""
    if options.method != "auto" and options.method not in STEP_RULES:
        raise InputError(
            f"method must be auto or one of {', '.join(STEP_RULES)}, not {options.method!r}"
        )
    method = "corrective" if options.method == "auto" else options.method
    takes_many = STEP_RULES[method].takes_many
    lmo = options.lmo
    if lmo == "auto":
        # A step costs the full oracle one kernel column over all rows, and the sampled oracle a few
        # rows times the support. The full oracle is cheaper, and exact, while there are few rows.
        lmo = "full" if n_rows <= _FULL_LIMIT and not takes_many else "sampled"
    _check_oracle(method, lmo, options.certify)
    if takes_many:
        looks = "all rows" if lmo == "full" else "blocks of rows"
        what = f"steps take many violators from {looks}"
    elif lmo == "full":
        what = "the exact gradient of every row is kept"
    elif lmo == "lazy":
        what = "all rows are looked at where the active set has no good step to offer"
    else:
        what = f"steps look at {options.sample_size} random rows"
        if lmo in KEEPS_GRADIENT:
            what += ", and the gradient of every row is kept"
    given = "as asked" if options.method != "auto" else f"fits any size, here {n_rows} rows"
    return method, lmo, f"method {method}, {lmo} oracle: {given}; {what}"


def _check_oracle(method: str, lmo: str, certify: bool) -> None:
    """Refuse what an oracle cannot do."""
    if lmo in ("lazy", *SEES_DRAWN_ALONE) and STEP_RULES[method].takes_many:
        raise InputError(
            f"--lmo {lmo} proposes one vertex at a time, and method {method} takes many; give "
            f"another --method, such as bpcg, or leave out --lmo"
        )
    if lmo == "lazy" and method == Partan.name:
        raise InputError(
            "--lmo lazy puts steps together, and method partan goes on from each of them; give "
            "another --method, such as bpcg, or --lmo full"
        )
    if lmo in SEES_DRAWN_ALONE and certify:
        raise InputError(
            f"--lmo {lmo} ends at the gap of the rows drawn, whatever that of all rows; give "
            "--no-certify with it, or --lmo sampled"
        )


def few_rows(source: RowSource, most: int) -> int:
    """Number of rows, up to `most`, that take little memory."""
    row_bytes = max(1, source.decoded_bytes // source.n_rows)
    return min(most, source.n_rows, max(1, _FEW_BYTES // row_bytes))


def plan_run(source: RowSource, options: TrainOptions, held: int | None = None) -> MemoryPlan:
    """Memory plan of an exact run of two classes, or of one pair of more.

    `held` is as for `ooc_fw.solver.session.Session`. OverLimitError is raised when the limit
    cannot be met.
    """
    return plan_memory(workload(source, options, held), options.memory_limit, memory_total())


def workload(source: RowSource, options: TrainOptions, held: int | None = None) -> Workload:
    """The sizes that the memory of a run depends on, for `plan_run`."""
    method, lmo, _ = choose_method(options, source.n_rows)
    if held is None:
        held = source.decoded_bytes if source.in_memory else 0
    takes_many = STEP_RULES[method].takes_many
    block_rows = min(source.n_rows, LARGEST_BLOCK if takes_many else options.sample_size)
    return Workload(
        n_rows=source.n_rows,
        decoded_bytes=source.decoded_bytes,
        block_bytes=2 * CHUNK_BYTES,
        block_rows=block_rows,
        # A sample that was asked for is not made smaller.
        least_rows=few_rows(source, block_rows) if takes_many else block_rows,
        n_features=source.n_features,
        read_bytes=source.read_bytes + source.label_bytes,
        chunk_bytes=source.chunk_rows * source.decoded_bytes // source.n_rows,
        held_bytes=held,
        sparse=source.sparse,
        cacheable=not source.in_memory,
        full_oracle=lmo in KEEPS_GRADIENT,
    )


def _plan_before(plan: MemoryPlan, here: MemoryPlan, path: str | os.PathLike[str]) -> MemoryPlan:
    """The plan of a run that is resumed from `path`, which it keeps; `here` is that of a new run.

    InputError is raised where there is too little memory for it.
    """
    available = max(memory_total(), here.total())
    if plan.limit is None and plan.total() > available:
        raise InputError(
            f"the run of the checkpoint {os.fspath(path)} may take {format_bytes(plan.total())} of "
            f"memory, and there are {format_bytes(available)} here; resume it where there is more, "
            f"or train without --resume"
        )
    return plan


def is_quantised(options: TrainOptions, kernel: Kernel, n_rows: int) -> bool:
    """Whether kernel values between vertices begin in 16 bits: under a memory limit, or many rows.

    The method must take steps on many vertices, between which gradients can be computed anew;
    single steps move more weight, and round more. `ooc_fw.solver.kernel_rows.value_type` says how
    long values stay in 16 bits.
    """
    method, _, _ = choose_method(options, n_rows)
    fits = STEP_RULES[method].takes_many and kernel.constant_diagonal
    return fits and (options.memory_limit is not None or n_rows > _FLOAT32_ROWS)


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
    with Engine(kernel, 1, choose_arithmetic(kernel, rows)) as engine:
        x = engine.prepare(rows)
        values = np.empty((len(x), len(x)), dtype=np.float32)
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
