"""The outer loop: oracle, stopping test, step, certificate.

    active set = a few random rows of both classes, solved
    repeat
        repeat                                            (training phase)
            candidate = oracle's row of least gradient
            if the gap passes, and passes again on a second draw: leave
            add the candidate to the active set; take a step
        compute the active set's gradient anew in float64
        sweep over all rows: certificate                  (unless told not to)
        if the certified gap is above the tolerance: add the violators found
    until certified, or out of budget

Between two iterations, and before a sweep, the state of all parts can be written to a checkpoint; a
run that goes on from there takes the same course to the last bit.

Owns the order of these things, progress, checkpoints and interrupts. The mathematics is in
:mod:`ooc_fw.problem`, the steps in :mod:`ooc_fw.solve.steps`, the oracles in
:mod:`ooc_fw.solve.oracles`.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Self, TypeAlias

import numpy as np

from ooc_fw.certify.screening import Screen
from ooc_fw.certify.sweep import Certificate, SupportGradient, certify
from ooc_fw.data.parallel import Workers, borrow_workers, shared_source
from ooc_fw.data.rows import Float64Array, Int8Array, Int64Array, Rows, take_rows
from ooc_fw.data.sampling import ChunkSampler, Sampler, block_sampler, choose_sampler
from ooc_fw.data.sources import CachedSource, RowSource
from ooc_fw.data.sources.base import CHUNK_BYTES
from ooc_fw.kernels.engine import Engine, choose_arithmetic
from ooc_fw.kernels.functions import Kernel
from ooc_fw.options import START_ROWS, TrainOptions
from ooc_fw.problem import BinaryProblem, StoppingTest, relative_gap
from ooc_fw.solve.active_set import ActiveSet
from ooc_fw.solve.checkpoint import (
    CheckpointPlan,
    Identity,
    State,
    check_same_run,
    data_identity,
    load_checkpoint,
    save_checkpoint,
)
from ooc_fw.solve.deadline import Deadline
from ooc_fw.solve.kept import KeptState, KeptStates, Sample, primal_objectives
from ooc_fw.solve.kernel_rows import KernelRows
from ooc_fw.solve.oracles import (
    LARGEST_BLOCK,
    LMO,
    BlockLMO,
    Candidates,
    FullLMO,
    Request,
    SampledLMO,
    nothing_outside,
)
from ooc_fw.solve.session import Session
from ooc_fw.solve.state import Callback, Solution, SolverState, Status, StepKind
from ooc_fw.solve.steps import (
    INNER_STEPS_PER_VERTEX,
    STEP_RULES,
    FullyCorrective,
    Partan,
    StepRecord,
)
from ooc_fw.system.errors import InputError
from ooc_fw.system.files import Output, check_outputs
from ooc_fw.system.interrupt import DeferredInterrupt
from ooc_fw.system.memory import MemoryPlan, Workload, format_bytes, memory_total, plan_memory

logger = logging.getLogger(__name__)

_PROBE_ROWS = 1024  # looked at to choose products and centre
_GAMMA_STRETCHES, _GAMMA_ROWS = 16, 16  # parts of a source and their rows that gamma is tried on
_UNRELATED = 1e-6  # kernel values up to which two rows tell nothing of each other
_RELATED_SHARE = 0.01  # of pairs of rows; below, gamma is called too large
_FARTHEST_ROWS = 1024  # among which the farthest pair is sought
_FULL_LIMIT = 10_000  # rows up to which steps that take one vertex use the full oracle
_FLOAT32_ROWS = 1 << 15  # whose kernel values with each other take at most 4 GiB in float32
_INNER_AIM = 0.8  # of the tolerance, to which a corrective step optimises at the end
_INNER_SHARE = 0.3  # of the violation just seen, to which a corrective step optimises
_LEAST_BATCH = 512  # vertices that a step which takes many may always add
_FEW_SUSPECTS = 0.5  # share of the rows above which a sweep looks at all, for a new snapshot
_FLOAT64_GAP = 1e-10  # relative gap that steps in float64 are sure to reach
_SETTLED_GAP = 1e-2  # on the vertices saved, to which a run that stops early optimises
_BRIEF = 1.0  # seconds for that, and as many to choose among states, after an interrupt
_UNCERTIFIED_DRAW = 2048  # rows, at least, over which the gap of a run without certificate is known
_LITTLE_ROOM = 64  # part of the vertices allowed that is too few to look for more
_IDLE_ROUNDS = 8  # without a smaller gap, after which rounding is found to allow no less
_UNFINISHED = 4  # corrective steps on the same vertices, after which they get nowhere
_LEAST_PROGRESS = 1e-3  # of the gap, by which such a step must lower the objective at least
_TIGHTER = 0.8  # factor of the training tolerance after rounding has hidden a violation


_BUDGETS = ("max_iter", "max_time", "threads")
"""Options that may change when a run is resumed: they say when to stop, not where to go."""


Warm: TypeAlias = tuple[Int64Array, Float64Array]
"""Rows to begin with, and their weights."""


class _Stop(Exception):  # noqa: N818  (not an error)
    """Raised inside the loop to end the run with a status."""

    def __init__(self, status: Status) -> None:
        self.status = status


def choose_method(options: TrainOptions, n_rows: int) -> tuple[str, str, str]:
    """Method, oracle and one line that says why, with "auto" replaced.

    Parameters
    ----------
    options : TrainOptions
        May name "auto" for either.
    n_rows : int
        Rows of the source.

    Raises
    ------
    InputError
        For an unknown method.
    """
    if options.method != "auto" and options.method not in STEP_RULES:
        raise InputError(
            f"method must be auto or one of {', '.join(STEP_RULES)}, not {options.method!r}"
        )
    method = "corrective" if options.method == "auto" else options.method
    lmo = options.lmo
    if lmo == "auto":
        # A full oracle pays one kernel column over all rows a step, a sampled one a few rows times
        # the support: the former is cheaper, and exact, while there are few rows.
        few = n_rows <= _FULL_LIMIT and not STEP_RULES[method].takes_many
        lmo = "full" if few else "sampled"
    if STEP_RULES[method].takes_many:
        looks = "all rows" if lmo == "full" else "blocks of rows"
        what = f"steps take many violators from {looks}"
    elif lmo == "full":
        what = "the exact gradient of every row is kept"
    else:
        what = f"steps look at {options.sample_size} random rows"
    given = "as asked" if options.method != "auto" else f"fits any size, here {n_rows} rows"
    return method, lmo, f"method {method}, {lmo} oracle: {given}; {what}"


def solve(
    source: RowSource,
    labels: Int8Array,
    kernel: Kernel,
    options: TrainOptions,
    callbacks: Sequence[Callback] = (),
    *,
    warm: Warm | None = None,
    **circumstances: Any,
) -> Solution:
    """Train one binary classifier.

    Parameters
    ----------
    source : RowSource
        Training rows.
    labels : ndarray of int8, shape (n_rows,)
        +1 or -1; both occur.
    kernel : Kernel
        Kernel with its parameters.
    options : TrainOptions
        Method, tolerance and budgets.
    callbacks : sequence of Callback
        They are told of every iteration and of every block of a pass over the data.
    warm : tuple of ndarray of int64 and of float64, optional
        See `solve_problem`.
    **circumstances
        `dask`, `started`, `checkpoint` and `resume`, see `ooc_fw.solve.session.Session`.

    Returns
    -------
    Solution
        See `solve_problem`, which also takes penalties of rows.
    """
    session = Session(callbacks, **circumstances)
    return solve_problem(BinaryProblem(source, labels, kernel), options, session, warm)


def solve_problem(
    problem: BinaryProblem,
    options: TrainOptions,
    session: Session | None = None,
    warm: Warm | None = None,
) -> Solution:
    """Train one binary classifier.

    Parameters
    ----------
    problem : BinaryProblem
        Rows, labels, kernel and penalties.
    options : TrainOptions
        Method, tolerance and budgets. `C` has no part in the run where rows have penalties.
    session : Session, optional
        Circumstances of the run.
    warm : tuple of ndarray of int64 and of float64, each of shape (k,), optional
        Different rows, and weights that are not negative nor all 0, to begin with in place of
        random rows: those of a classifier for another C, say, or for part of the rows. They change
        how long training takes, not what the certificate says.

    Returns
    -------
    Solution
        Not converging, an interrupt or a full active set are statuses, not errors; the weights
        returned are feasible in every case.

    Raises
    ------
    InputError
        For options that do not fit together, a source that cannot be read, here or by the processes
        that should, or a checkpoint that is damaged or of another run.
    KeyboardInterrupt
        Before the first step; for a second signal at any time.
    """
    session = Session() if session is None else session
    source, resume = problem.source, session.resume
    deadline = session.deadline(options)
    if session.checkpoint is not None:
        check_outputs([Output("checkpoint", session.checkpoint.path)], [source.name])
    if warm is not None:
        _check_warm(*warm, source.n_rows)
    method, lmo, choice = choose_method(options, source.n_rows)
    options = replace(options, method=method, lmo=lmo)
    plan = plan_run(source, options, session.held)
    state = None if resume is None else load_checkpoint(resume)
    if state is not None:
        plan = _plan_before(state[1], plan, resume)
    options = replace(options, threads=min(options.threads, plan.max_threads))
    sampler = _sampler(source, problem.labels)
    dask = session.dask
    with (
        _engine(source, problem.kernel, options, sampler) as engine,
        nullcontext() if dask is None else borrow_workers(dask, options.threads) as workers,
    ):
        if workers is not None:
            shared_source(source, workers)  # what cannot be read there is refused at once
        logger.info("%s", choice)
        logger.info("memory plan: %s", plan)
        run = _Run(
            problem, engine, sampler, options, session.callbacks, choice, deadline, plan, workers
        )
        if session.checkpoint is not None or resume is not None:
            run.identify()
        if resume is not None and state is not None:
            run.resume(resume, *state)
        run.checkpoint = session.checkpoint
        run.warm = warm
        if session.interrupt is not None:
            run.interrupt = session.interrupt
            return run.solve()
        with run.interrupt:
            return run.solve()


class Path:
    """Binary classifiers of one kernel and rows for one C after another; a context manager.

    Each begins with the weights of the one before: the simplex does not depend on C, so that they
    are feasible. Rows in RAM and kernel values between vertices are kept, since neither does.

    Parameters
    ----------
    problem : BinaryProblem
        Rows, labels and kernel; it has no penalties of rows.
    options : TrainOptions
        As for `solve_problem`; `C` is not used.
    session : Session, optional
        Callbacks, and the bytes held.
    plan : MemoryPlan, optional
        Of these rows or more; made here by default. What one path took is there for the next, so
        that several in one process share the plan made before the first.
    """

    def __init__(
        self,
        problem: BinaryProblem,
        options: TrainOptions,
        session: Session | None = None,
        plan: MemoryPlan | None = None,
    ) -> None:
        source = problem.source
        self._session = Session() if session is None else session
        method, lmo, self._choice = choose_method(options, source.n_rows)
        self._plan = plan_run(source, options, self._session.held) if plan is None else plan
        threads = min(options.threads, self._plan.max_threads)
        self._options = replace(options, method=method, lmo=lmo, threads=threads)
        self._problem = problem
        self._sampler = _sampler(source, problem.labels)
        self._engine = _engine(source, problem.kernel, self._options, self._sampler)
        self._run: _Run | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.close()

    def solve(self, C: float, warm: Warm | None = None) -> Solution:
        """Classifier of the next C; counts and times in the solution are its own.

        `warm` is what the first one begins with, as for `solve_problem`.
        """
        options = replace(self._options, C=C)
        self._engine.evaluations = 0
        before = self._run
        run = _Run(
            self._problem,
            self._engine,
            self._sampler,
            options,
            self._session.callbacks,
            self._choice,
            Deadline(options.max_time, time.perf_counter()),
            self._plan,
            before=before,
        )
        source = self._problem.source
        run.read_before = -source.rows_read, -source.bytes_read
        if before is None:
            run.warm = warm
        self._run = run
        with run.interrupt:
            return run.solve()


def _check_warm(rows: Int64Array, alpha: Float64Array, n_rows: int) -> None:
    """Raise InputError unless rows and weights can be begun with."""
    fits = len(rows) == len(alpha) > 0 and len(np.unique(rows)) == len(rows)
    if not (fits and 0 <= rows.min() <= rows.max() < n_rows):
        raise InputError(
            f"a warm start needs different rows, from 0 to {n_rows - 1}, and one weight for each"
        )
    if not (alpha >= 0).all() or not 0 < alpha.sum() < math.inf:
        raise InputError("the weights of a warm start must not be negative, nor all of them 0")


def _sampler(source: RowSource, labels: Int8Array) -> Sampler:
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


def _engine(source: RowSource, kernel: Kernel, options: TrainOptions, sampler: Sampler) -> Engine:
    """Engine that suits the rows of a source."""
    probe = source.take(sampler.sample(_PROBE_ROWS, np.random.default_rng(options.seed)))
    return Engine(kernel, options.threads, *choose_arithmetic(kernel, probe))


def warn_of_gamma(source: RowSource, kernel: Kernel) -> None:
    """Say where gamma makes nearly all rows strangers to each other; looks at a few hundred rows.

    Such a machine knows its training rows by heart and says the same of all others.
    """
    if not kernel.shift_invariant:
        return
    stretches = np.linspace(0, source.n_rows, _GAMMA_STRETCHES, endpoint=False).astype(np.int64)
    row_ids = np.unique(stretches[:, None] + np.arange(_GAMMA_ROWS))
    rows = source.take(row_ids[row_ids < source.n_rows])
    with Engine(kernel, 1, *choose_arithmetic(kernel, rows)) as engine:
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


def is_quantised(options: TrainOptions, kernel: Kernel, n_rows: int) -> bool:
    """Whether kernel values between vertices begin in 16 bits.

    Where memory counts: under a limit, or with many rows. It takes steps on many vertices, between
    which gradients can be computed anew; single steps move more weight, and round more. How long
    they stay in 16 bits follows from C and the number of vertices, see `kernel_rows.value_type`.
    """
    method, _, _ = choose_method(options, n_rows)
    fits = STEP_RULES[method].takes_many and kernel.constant_diagonal
    return fits and (options.memory_limit is not None or n_rows > _FLOAT32_ROWS)


def plan_run(source: RowSource, options: TrainOptions, held: int | None = None) -> MemoryPlan:
    """Memory plan of a run; `held` is as for `solve`.

    Raises
    ------
    InputError
        When the limit cannot be met.
    """
    method, lmo, _ = choose_method(options, source.n_rows)
    if held is None:
        held = source.decoded_bytes if source.in_memory else 0
    row_bytes = source.decoded_bytes / max(1, source.n_rows)
    rows_at_once = LARGEST_BLOCK if STEP_RULES[method].takes_many else options.sample_size
    work = Workload(
        n_rows=source.n_rows,
        decoded_bytes=source.decoded_bytes,
        block_bytes=int(max(2 * CHUNK_BYTES, rows_at_once * row_bytes)),
        n_features=source.n_features,
        read_bytes=source.read_bytes,
        held_bytes=held,
        sparse=source.sparse,
        cacheable=not source.in_memory,
        full_oracle=lmo == "full",
    )
    return plan_memory(work, options.memory_limit, memory_total())


def _plan_before(state: State, here: MemoryPlan, path: str | os.PathLike[str] | None) -> MemoryPlan:
    """The plan that the run of a checkpoint had and keeps; `here` is what it would have here."""
    plan = MemoryPlan(**state["plan"])
    available = max(memory_total(), here.total())
    if plan.limit is None and plan.total() > available:
        raise InputError(
            f"the run of the checkpoint {path} may take {format_bytes(plan.total())} of memory, "
            f"and there are {format_bytes(available)} here; resume it where there is more, or "
            f"train without --resume"
        )
    return plan


class _Run:
    """One run: its parts, its progress and its end."""

    def __init__(
        self,
        problem: BinaryProblem,
        engine: Engine,
        sampler: Sampler,
        options: TrainOptions,
        callbacks: Sequence[Callback],
        choice: str,
        deadline: Deadline,
        plan: MemoryPlan,
        workers: Workers | None = None,
        before: _Run | None = None,
    ) -> None:
        self.source = source = problem.source
        self.labels = problem.labels
        self.engine = engine
        self.options = options
        self.callbacks = callbacks
        self.choice = choice
        self.workers = workers  # of sweeps; None: this process
        self.started = time.perf_counter()
        self.deadline = deadline
        self.rng = np.random.default_rng(options.seed)
        self.sampler = sampler
        self.plan = plan
        self.penalties = penalties = problem.penalties
        self.rule = STEP_RULES[options.method]()
        self.goes_on = before is not None  # from weights for another C, on the same rows
        if before is None:
            self.rows = CachedSource(source, plan.row_cache)
            quantised = is_quantised(options, engine.kernel, source.n_rows)
            n_max = min(plan.max_vertices, options.max_support or plan.max_vertices)
            kernel_rows = KernelRows(n_max, plan.kernel_rows, quantised)
            self.active = ActiveSet(engine, options.C, kernel_rows, penalties)
        else:
            self.rows, self.active = before.rows, before.active
            self.active.aim_at(options.C)
        self.full = False  # whether the active set holds all the vertices it may
        self.taken = len(self.active)  # vertices that steps added
        self.warm: Warm | None = None  # rows and weights to begin from
        self.rule.is_late = self._cut_step
        self.cut = False  # whether an interrupt cut the last step short
        self.kept = KeptStates()
        self.lmo = self._make_lmo()
        constant = engine.kernel.constant_diagonal and penalties is None
        diagonal = 2 + 1 / options.C if constant else None
        self.stopping = StoppingTest(options.stopping, options.tol, diagonal)
        self.aim = 1.0  # share of the tolerance that training aims at
        self.state = SolverState()
        self.certificate: Certificate | None = None
        self.screen: Screen | None = None
        self.last_seen: Candidates | None = None  # drawn for the weights of now
        self.interrupt = DeferredInterrupt(defers=False)
        self.least, self.idle_rounds = math.inf, 0  # least gap certified, rounds since then
        self.trained = False  # whether a sweep is next
        self.resumed = False
        self.exact = False  # whether the gradient was renewed when vertices were no longer added
        self.unfinished = 0  # corrective steps on the same vertices that got nowhere
        self.least_rho = math.inf  # after a renewed gradient between them
        self.sweep_seconds: float | None = None  # of the last sweep over all rows
        self.swept_share = 1.0  # of the rows, that the last sweep looked at
        self.read_before = 0, 0  # rows and bytes, by the run that this one goes on from
        self.checkpoint: CheckpointPlan | None = None
        self.checkpoint_failed = False
        self.identity: Identity = {}
        self.saved_at = self.started
        self.between = False  # whether the state is that between two iterations

    def _make_lmo(self) -> LMO:
        options = self.options
        if options.lmo == "full":
            keeps_before = options.method == Partan.name
            return FullLMO(
                self.rows,
                self.labels,
                self.engine,
                options.C if self.penalties is None else self.penalties,
                keeps_before=keeps_before,
                keeps_rows=self.plan.row_cache > 0,
                column_bytes=self.plan.column_cache,
            )
        if self.rule.takes_many:
            blocks = block_sampler(self.sampler, self.source.n_rows)
            return BlockLMO(self.rows, self.labels, self.engine, blocks)
        return SampledLMO(self.rows, self.labels, self.engine, self.sampler, options.sample_size)

    # -- the loop --------------------------------------------------------------------------------

    def solve(self) -> Solution:
        """Run to the end, whatever it is."""
        return self._finish(self._run())

    def _run(self) -> Status:
        try:
            if not self.resumed:
                self._start()
            return self._train_and_certify()
        except _Stop as stop:
            if self.between:
                self._save()
            return stop.status
        except KeyboardInterrupt:
            if self.interrupt.urgent or not self.interrupt.defers:
                raise  # there is no time for weights, or there are none to return yet
            return Status.INTERRUPTED

    def _train_and_certify(self) -> Status:
        while self.idle_rounds < _IDLE_ROUNDS:
            if not self.trained:
                self._train()
                self.trained = True
                if self.options.certify:
                    self._save()  # a sweep may take long, and is not to be repeated with training
            self.trained = self.resumed = False
            self._renew()
            tolerance = self.stopping.relative_tolerance(self.active.rho)
            self.idle_rounds += 1
            # Steps see float32 kernel values and may have been content too early.
            if self.active.relative_gap() <= max(tolerance, _FLOAT64_GAP):
                if not self.options.certify:
                    return Status.SUPPORT_LIMIT if self.full else Status.SAMPLED
                certificate = self._certify(tolerance)
                gap = certificate.certified_gap
                if gap <= tolerance:
                    return Status.CONVERGED
                if self.full:
                    return Status.SUPPORT_LIMIT
                logger.info(
                    "certified gap %.3g above %.3g: training goes on from %d violators",
                    gap,
                    tolerance,
                    len(certificate.worst),
                )
                if gap < self.least:
                    self.least, self.idle_rounds = gap, 0
                if len(self.active.outside(certificate.worst)) > 0:
                    self._add(certificate.worst[: self._room()])
                    self.lmo.reset()
                    self.idle_rounds = 0
                    continue
            if self.idle_rounds >= _IDLE_ROUNDS // 2 and self.active.widen():
                self.idle_rounds = 0
            self.aim *= _TIGHTER
        return Status.ROUNDING

    def _train(self) -> None:
        """Step until the gap passes the test, on a second draw too."""
        self.state.phase = "train"
        if not self.resumed:
            self.exact = False
        self.resumed = False
        while True:
            last = self.state.iteration == self.options.max_iter
            if self.checkpoint is not None:
                if last or time.perf_counter() >= self.saved_at + self.checkpoint.every_s:
                    self._save()
            candidates = self._propose()
            if candidates.n_scanned == 0 and self.active.quantised and not self.exact:
                # Nothing will be added any more; from here on little weight moves.
                self._refresh()
                self.exact = True
                continue
            if self._passes(candidates):
                if candidates.exact:
                    return
                candidates = self._propose()  # the safeguard
                if self._passes(candidates):
                    return
            if last:
                raise _Stop(Status.MAX_ITER)
            self._step(candidates)

    def _tolerance(self) -> float:
        """Relative gap that training aims at, with the weights of now."""
        return max(self.aim * self.stopping.relative_tolerance(self.active.rho), _FLOAT64_GAP)

    def _propose(self) -> Candidates:
        self.between = False
        room = self._room()
        if self.full:
            self.last_seen = nothing_outside(self.active, 0, exact=False)
            return self.last_seen
        request = Request()
        if self.rule.takes_many:
            limit = min(max(_LEAST_BATCH, len(self.active)), room)
            threshold = self.active.rho * (1 - self._tolerance())
            unrepresented = (self.options.max_support or 0) - self.taken
            if unrepresented > 0:  # random rows first: the worst for a young model are outliers
                limit, threshold = min(limit, unrepresented), math.inf
            request = Request(limit, threshold)
        started, evaluations = time.perf_counter(), self.engine.evaluations
        self.last_seen = self.lmo.propose(self.active, self.rng, request)
        if self.engine.evaluations > evaluations:  # else a gradient was kept, not computed
            work = self.last_seen.n_scanned * len(self.active)
            self.deadline.looks.add(time.perf_counter() - started, work)
        return self.last_seen

    def _room(self) -> int:
        """Vertices that may still be added; those of weight 0 make way where it is short."""
        active, most = self.active, self.active.capacity
        if most >= self.source.n_rows:
            return most
        little = most // _LITTLE_ROOM if self.rule.takes_many else 0
        if most - len(active) < max(len(active), little):
            self.rule.prune(active, spare=0.0)
        room = most - len(active)
        self.full = self.full or room <= little
        return room

    def _passes(self, candidates: Candidates) -> bool:
        gap = relative_gap(self.active.rho, candidates.least)
        self.state.sampled_gap = gap
        return gap <= self._tolerance()

    def _step(self, candidates: Candidates) -> None:
        active = self.active
        self.last_seen = None
        worst = candidates.least
        if candidates.rows is not None:
            active.add(candidates.row_ids, candidates.rows, candidates.labels)
            self.taken += len(candidates.row_ids)
            worst = float(np.median(candidates.grads))
        violation = relative_gap(active.rho, worst)
        self.rule.inner_tol = max(_INNER_SHARE * violation, _INNER_AIM * self._tolerance())
        record = self._timed_step(self._toward(candidates))
        self.lmo.update(record, active)
        self._watch(added=candidates.rows is not None)
        self.rule.prune(active)
        self._count(record)
        self.between = not self.cut  # a step that was cut is not on the course of the run
        self.interrupt.defer()
        self._report()
        self.kept.offer(self.active)

    def _timed_step(self, i: int) -> StepRecord:
        rule, m = self.rule, len(self.active)
        rule.inner_limit = self.deadline.inner_steps(m, self._sweep_work())
        started = time.perf_counter()
        record = rule.step(self.active, i)
        self.deadline.inner.add(time.perf_counter() - started, rule.inner_steps * m)
        return record

    def _cut_step(self) -> bool:
        """Whether a corrective step has to end before it is optimal."""
        if self.interrupt.noted is not None:
            self.cut = True
            return True
        return self.deadline.is_over(len(self.active), self._sweep_work())

    def _watch(self, added: bool) -> None:
        """Turn to more precise kernel values where steps on the same vertices get nowhere.

        Such a corrective step ends far from the gap it aims at, and leaves the objective, computed
        anew, nearly where it was: it is misled by rounding.
        """
        rule, active = self.rule, self.active
        gap = active.relative_gap()
        if not isinstance(rule, FullyCorrective) or added or rule.cut or gap <= rule.inner_tol:
            self.unfinished, self.least_rho = 0, math.inf
            return
        self.unfinished += 1
        if self.unfinished == 1:
            return
        self._refresh()
        progress = 0.0 if active.precise else _LEAST_PROGRESS * min(gap, 1.0)
        if active.rho < self.least_rho * (1 - progress):
            self.unfinished, self.least_rho = 1, active.rho
        elif self.unfinished > _UNFINISHED:
            if not active.widen():
                raise _Stop(Status.ROUNDING)
            self.unfinished, self.least_rho = 0, math.inf

    def _toward(self, candidates: Candidates) -> int:
        """Place of the toward vertex in the active set."""
        if len(candidates.row_ids) > 0:
            place = self.active.place_of(int(candidates.row_ids[np.argmin(candidates.grads)]))
            if place is not None:
                return place
        return int(np.argmin(self.active.grad))

    def _start(self) -> None:
        """First active set: rows given, or a few of both classes, or the farthest pair, solved."""
        if self.warm is not None:
            self._start_warm(*self.warm)
        elif not self.goes_on:
            if self.options.start == "farthest":
                self._start_farthest()
            else:
                self._add(self._random_rows())
            m = len(self.active)
            self.active.set_weights(np.full(m, 1 / m))
            self.active.optimise(0.0, 100 * m)
            self._refresh()
        self.between = True
        self._report()

    def _start_warm(self, row_ids: Int64Array, alpha: Float64Array) -> None:
        """Rows with the weights they were given; those of largest weight where not all fit."""
        chosen = np.flatnonzero(alpha > 0)
        most = self.active.capacity
        if len(chosen) > most:
            chosen = chosen[np.argsort(-alpha[chosen], kind="stable")[:most]]
        chosen = chosen[np.argsort(row_ids[chosen])]
        self._add(row_ids[chosen])
        self.taken = len(chosen)
        self.active.set_weights(alpha[chosen])

    def _random_rows(self) -> Int64Array:
        """Rows of both classes, half of each as far as there are enough."""
        chosen = [
            self.rng.choice(rows, min(len(rows), START_ROWS // 2), replace=False)
            for rows in (np.flatnonzero(self.labels == sign) for sign in (-1, 1))
        ]
        return np.sort(np.concatenate(chosen)).astype(np.int64)

    def _start_farthest(self) -> None:
        """Two vertices far from each other in feature space, among a random sample.

        From a random row to the one farthest from it, and from there to the farthest again; the
        distance is Q_ii + Q_jj - 2 Q_ij (MEB paper, section on initialisation).
        """
        row_ids = self.sampler.sample(_FARTHEST_ROWS, self.rng)
        rows = self.rows.take(row_ids)
        x = self.engine.prepare(rows)
        y = self.labels[row_ids].astype(np.float64)
        diagonal = self.engine.kernel.diagonal(x.norms)
        if self.penalties is not None:
            diagonal = diagonal + 1 / self.penalties[row_ids]
        k = int(self.rng.integers(len(row_ids)))
        pair = []
        for _ in range(2):
            values = np.empty((1, len(row_ids)), dtype=np.float32)
            self.engine.block(x[k : k + 1], x, values)
            k = int(np.argmax(diagonal - 2 * y[k] * y * (values[0] + 1.0)))
            pair.append(k)
        both = np.unique(pair)
        self.active.add(row_ids[both], take_rows(rows, both), self.labels[row_ids[both]])

    # -- certificate and end ---------------------------------------------------------------------

    def _renew(self) -> None:
        """Gradient of the active set in float64; rule and oracle forget what hung on the old."""
        self.between = False
        self._refresh()
        self.rule.reset()
        self.lmo.reset()

    def _refresh(self) -> None:
        with self.deadline.timed(self.deadline.gradients, len(self.active) ** 2):
            self.active.refresh()

    def _sweep_work(self) -> float:
        """Rows times support vectors that the next sweep is likely to take, 0 without one."""
        if not self.options.certify:
            return 0.0
        return self.swept_share * self.source.n_rows * len(self.active.support)

    def _certify(self, tolerance: float) -> Certificate:
        self.state.phase = "certify"
        self.interrupt.defer()
        active, support = self.active, self.active.support
        suspects = self._suspects()
        n_rows = self.source.n_rows if suspects is None else len(suspects)

        started = time.perf_counter()
        work = n_rows * len(support)

        def on_block(rows_seen: int) -> None:
            fraction = rows_seen / n_rows
            self.state.sweep_fraction = fraction
            self._report()
            seconds = time.perf_counter() - started
            if self.deadline.sweep_is_late(seconds, fraction):
                self.deadline.sweeps.add(seconds, fraction * work)
                raise _Stop(Status.TIME_LIMIT)

        screen = None
        if suspects is None:
            screen = Screen(
                self.source.n_rows,
                active.ids[support],
                active.alpha[support],
                active.plain_grad[support],
                active.squared_norm(),
                active.rounding,
            )
        self.certificate = certify(
            self.source,
            self.labels,
            self.engine,
            active.penalty_of(active.ids[support]),
            rows=take_rows(active.rows, support),
            row_ids=active.ids[support],
            alpha=active.alpha[support],
            tol=tolerance,
            n_worst=max(_LEAST_BATCH, len(active)),
            support=SupportGradient(active.grad[support], active.rounding),
            screen=screen,
            suspects=suspects,
            on_block=on_block,
            dask=self.workers,
        )
        self.deadline.sweeps.add(time.perf_counter() - started, work)
        self.swept_share = n_rows / self.source.n_rows
        if screen is not None:
            self.sweep_seconds = time.perf_counter() - started
            self.screen = screen
            active.pinned[:] = False
            active.pinned[support] = True  # `_suspects` needs the gradient of these vertices
        self.state.certified_gap = self.certificate.certified_gap
        self.state.sweep_fraction = None
        return self.certificate

    def _suspects(self) -> Int64Array | None:
        """Rows that may be worse than the support, by the last sweep; None: look at all."""
        active, screen = self.active, self.screen
        if screen is None:
            return None
        places = active.places_of(screen.row_ids)
        plain, rounding = active.plain_grad[places], active.rounding
        distance = screen.distance(active.squared_norm(), float(screen.alpha @ plain), rounding)
        floor = float(active.grad[active.support].min()) + active.rounding
        suspects = screen.suspects(distance, floor, self.labels, plain, rounding)
        logger.info("%d of %d rows are suspects", len(suspects), self.source.n_rows)
        return suspects if len(suspects) < _FEW_SUSPECTS * self.source.n_rows else None

    def _certify_late(self, status: Status) -> Status:
        """Status after a sweep for weights that had to stop early; they may do all the same."""
        tolerance = self.stopping.relative_tolerance(self.active.rho)
        try:
            gap = self._certify(tolerance).certified_gap
        except _Stop as stop:
            return stop.status
        except KeyboardInterrupt:
            if self.interrupt.urgent:
                raise
            return Status.INTERRUPTED
        return Status.CONVERGED if gap <= tolerance else status

    def _add(self, row_ids: Int64Array) -> None:
        self.active.add(row_ids, self.rows.take(row_ids), self.labels[row_ids])

    def _finish(self, status: Status) -> Solution:
        """Weights as they are, with gaps that belong to them."""
        if not status.reached and (self._settle(status) or status is not Status.SUPPORT_LIMIT):
            self._renew()
            self.certificate = None
            wanted = self.options.certify and status is not Status.INTERRUPTED
            if wanted and self.deadline.allows_sweep(self._sweep_work()):
                status = self._certify_late(status)
        active, support, certificate = self.active, self.active.support, self.certificate
        sampled_gap = self._last_sampled_gap()
        evaluations = self.engine.evaluations
        return Solution(
            status=status,
            method=self.options.method,
            lmo=self.options.lmo,
            choice=self.choice,
            alpha=active.alpha[support],
            labels=active.labels[support].astype(np.int8),
            rows=active.ids[support],
            support_vectors=take_rows(active.rows, support),
            penalties=None if self.penalties is None else self.penalties[active.ids[support]],
            objective=active.rho / 2,
            rho=active.rho,
            sampled_gap=sampled_gap,
            certified_gap=None if certificate is None else certificate.certified_gap,
            pair_gap=None if certificate is None else certificate.pair_gap,
            iterations=self.state.iteration,
            steps=self.state.steps,
            kernel_evaluations=evaluations,
            passes=evaluations / (self.source.n_rows * len(support)),
            rows_read=self.source.rows_read + self.read_before[0],
            bytes_read=self.source.bytes_read + self.read_before[1],
            seconds=time.perf_counter() - self.started,
            sweep_seconds=self.sweep_seconds,
            signal=self.interrupt.noted if status is Status.INTERRUPTED else None,
        )

    def _settle(self, status: Status) -> bool:
        """Have the best weights of a run that stops early: optimal on their vertices, least P.

        Returns
        -------
        bool
            Whether the weights are others than before.
        """
        self.interrupt.defer()
        seconds = _BRIEF if status is Status.INTERRUPTED else math.inf
        if self.deadline.limited:
            seconds = min(seconds, self.deadline.settle_takes() / 2)
        moved = self._optimise_vertices(seconds)
        others = [kept for kept in self.kept.states if len(kept.ids) < len(self.active.support)]
        if not others:
            return moved
        last = KeptState.of(self.active)
        best = self._least_primal([*others, last], seconds)
        if best == len(others):
            return moved
        self._return_to(others[best])
        # An optimum on few vertices may be a worse model than the weights on the way to it.
        if self._optimise_vertices(seconds):
            if self._least_primal([KeptState.of(self.active), last], seconds) == 1:
                self._return_to(last)
        return True

    def _optimise_vertices(self, seconds: float) -> bool:
        """Optimise on the active set for so long at most; whether that took a step."""
        end = time.perf_counter() + seconds
        most = INNER_STEPS_PER_VERTEX * len(self.active)
        steps, _ = self.active.optimise(_SETTLED_GAP, most, lambda: time.perf_counter() > end)
        return steps > 0

    def _least_primal(self, states: Sequence[KeptState], seconds: float) -> int:
        """Which of some states has the least primal objective over a sample of rows."""
        end = time.perf_counter() + seconds
        rng = np.random.default_rng(self.options.seed)
        sample = Sample(
            self.rows,
            self.labels,
            self.options.C if self.penalties is None else self.penalties,
            lambda size: self.sampler.sample(size, rng),
        )
        found = primal_objectives(
            states, self.active, self.engine, sample, lambda: time.perf_counter() > end
        )
        best = int(found.argmin())
        logger.info(
            "primal objectives of %s vertices: %s; the model is that of %d",
            [len(state.ids) for state in states],
            [float(f"{value:.4g}") for value in found],
            len(states[best].ids),
        )
        return best

    def _return_to(self, kept: KeptState) -> None:
        """Take the weights of an earlier state."""
        rows, labels = self._rows_of(kept.ids)
        self.active.clear()
        self.active.add(kept.ids, rows, labels)
        self.active.set_weights(kept.alpha)
        self.screen = self.last_seen = None
        self.swept_share = 1.0

    def _last_sampled_gap(self) -> float:
        """Gap of the last draw, its worst row in float64, so that it cannot exceed the true gap."""
        active = self.active
        candidates = self.last_seen
        if candidates is None or candidates.n_scanned == 0:
            # Without a certificate this draw is all that is known of rows outside the active set.
            least = _UNCERTIFIED_DRAW if self.certificate is None else 0
            size = max(self.options.sample_size, least)
            draw = SampledLMO(self.rows, self.labels, self.engine, self.sampler, size)
            candidates = draw.propose(active, self.rng, Request())
        grad = float(active.grad.min())
        if candidates.worst >= 0 and active.place_of(candidates.worst) is None:
            support, worst = active.support, np.array([candidates.worst])
            z = self.engine.prepare64(take_rows(active.rows, support))
            beta = active.alpha[support] * active.labels[support]
            x = self.engine.prepare64(self.rows.take(worst))
            values = self.engine.weighted_sum64(x, z, beta) + beta.sum()
            grad = min(grad, float(self.labels[worst[0]] * values[0]))
        return relative_gap(active.rho, grad)

    # -- checkpoints -----------------------------------------------------------------------------

    def identify(self) -> None:
        """Say which run this is, for checkpoints to be recognised by."""
        read = self.source.rows_read, self.source.bytes_read
        options = dataclasses.asdict(self.options)
        self.identity = {
            "data": data_identity(self.source, self.labels, self.penalties),
            "kernel": self.engine.kernel.to_dict(),
            "options": {name: options[name] for name in options if name not in _BUDGETS},
        }
        self._uncount(*read)

    def _uncount(self, rows: int, n_bytes: int) -> None:
        """Leave out of the counts what was read since they were `rows` and `n_bytes`."""
        rows_before, bytes_before = self.read_before
        rows_before += rows - self.source.rows_read
        self.read_before = rows_before, bytes_before + n_bytes - self.source.bytes_read

    def _save(self) -> None:
        """Leave a checkpoint, if they are wanted."""
        if self.checkpoint is None:
            return
        self.interrupt.defer()
        try:
            save_checkpoint(self.checkpoint.path, self.identity, self._state())
        except (OSError, InputError) as error:
            if not self.checkpoint_failed:
                logger.warning(
                    "the checkpoint %s cannot be written (%s); the run goes on without it",
                    os.fspath(self.checkpoint.path),
                    error.strerror if isinstance(error, OSError) else error,
                )
            self.checkpoint_failed = True  # said once; the next one is tried all the same
        self.saved_at = time.perf_counter()

    def _state(self) -> State:
        state = self.state
        parts: State = {
            "run": {
                "trained": self.trained,
                "full": self.full,
                "taken": self.taken,
                "rng": self.rng.bit_generator.state,
                "aim": self.aim,
                "exact": self.exact,
                "unfinished": self.unfinished,
                "least_rho": self.least_rho,
                "least": self.least,
                "idle_rounds": self.idle_rounds,
                "swept_share": self.swept_share,
                "iteration": state.iteration,
                "steps": dict(state.steps),
                "sampled_gap": state.sampled_gap,
                "certified_gap": state.certified_gap,
                "evaluations": self.engine.evaluations,
                "rows_read": self.source.rows_read + self.read_before[0],
                "bytes_read": self.source.bytes_read + self.read_before[1],
                "elapsed": time.perf_counter() - self.started,
            },
            "plan": dataclasses.asdict(self.plan),
            "active": self.active.state(),
            "lmo": self.lmo.state(),
            "rule": self.rule.state(),
        }
        if self.kept.states:
            parts["kept"] = self.kept.state()
        if self.screen is not None:
            parts["screen"] = self.screen.state()
        if self.trained and self.last_seen is not None:
            seen = self.last_seen
            parts["seen"] = {
                "row_ids": seen.row_ids,
                "grads": seen.grads,
                "least": seen.least,
                "n_scanned": seen.n_scanned,
                "exact": seen.exact,
                "worst": seen.worst,
            }
        return parts

    def resume(self, path: str | os.PathLike[str], before: Identity, state: State) -> None:
        """Go on from a checkpoint, as `load_checkpoint` read it, instead of from a start."""
        check_same_run(path, before, self.identity)
        run, active = state["run"], state["active"]
        rows, labels = self._rows_of(active["ids"])
        self.active.restore(active, rows, labels)
        self.lmo.restore(state["lmo"])
        self.rule.restore(state["rule"])
        if "kept" in state:
            self.kept = KeptStates.from_state(state["kept"])
        if "screen" in state:
            self.screen = Screen.from_state(state["screen"])
        if "seen" in state:
            self.last_seen = self._seen(state["seen"])
        self.rng.bit_generator.state = run["rng"]
        self.trained, self.aim, self.exact = run["trained"], run["aim"], run["exact"]
        self.full, self.taken = run["full"], run["taken"]
        self.unfinished, self.least_rho = run["unfinished"], run["least_rho"]
        self.least, self.idle_rounds = run["least"], run["idle_rounds"]
        self.swept_share = run["swept_share"]
        self.state.iteration = run["iteration"]
        self.state.steps = {StepKind(kind): count for kind, count in run["steps"].items()}
        self.state.sampled_gap, self.state.certified_gap = run["sampled_gap"], run["certified_gap"]
        self.engine.evaluations = run["evaluations"]
        self.read_before = 0, 0
        self._uncount(run["rows_read"], run["bytes_read"])
        self.started -= run["elapsed"]
        self.resumed = True
        self.interrupt.defer()

    def _rows_of(self, row_ids: Int64Array) -> tuple[Rows, Int8Array]:
        """Rows and labels of vertices, in any order."""
        order = np.argsort(row_ids)
        rows = self.rows.take(row_ids[order])
        return take_rows(rows, np.argsort(order)), self.labels[row_ids]

    def _seen(self, seen: dict[str, Any]) -> Candidates:
        """The last proposal, from what a checkpoint says of it."""
        row_ids = seen.pop("row_ids")
        rows, labels = self._rows_of(row_ids)
        found = rows if len(row_ids) > 0 else None
        return Candidates(row_ids=row_ids, rows=found, labels=labels, **seen)

    # -- progress --------------------------------------------------------------------------------

    def _count(self, record: StepRecord) -> None:
        self.state.iteration += 1
        self.state.steps[record.kind] += 1
        self.state.steps[StepKind.DROP] += record.drops

    def _report(self) -> None:
        """Tell the callbacks; an interrupt, one that returns False, or the clock ends the run."""
        if self.interrupt.noted is not None:
            raise _Stop(Status.INTERRUPTED)
        if self.state.phase != "certify":
            if self.deadline.is_over(len(self.active), self._sweep_work()):
                raise _Stop(Status.TIME_LIMIT)
        if not self.callbacks:
            return
        state = self.state
        state.objective = self.active.rho / 2
        state.n_active = len(self.active)
        state.n_support = len(self.active.support)
        state.rows_read = self.source.rows_read + self.read_before[0]
        state.bytes_read = self.source.bytes_read + self.read_before[1]
        state.kernel_evaluations = self.engine.evaluations
        state.elapsed_s = time.perf_counter() - self.started
        if any([callback(state.copy()) is False for callback in self.callbacks]):
            raise _Stop(Status.INTERRUPTED)
