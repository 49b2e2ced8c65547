"""What is decided before a run, in one frozen `Plan`, and the `Session` around it.

`plan_exact` plans binary classifiers; `ooc_fw.training.fit.make_plan` plans models of any kind.
Nothing further down decides again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from ooc_fw.data.sources import CHUNK_BYTES, RowSource
from ooc_fw.options import TrainOptions
from ooc_fw.problem import BinaryProblem, ClassificationProblem, Problem
from ooc_fw.solver.oracles import KEEPS_GRADIENT, LARGEST_BLOCK, SEES_DRAWN_ALONE
from ooc_fw.solver.shell import CheckpointPlan, Deadline, Identity, State, load_checkpoint
from ooc_fw.solver.state import Callback
from ooc_fw.solver.steps import STEP_RULES, Partan
from ooc_fw.system.errors import InputError
from ooc_fw.system.interrupt import DeferredInterrupt
from ooc_fw.system.memory import MemoryPlan, Workload, format_bytes, memory_total, plan_memory

_FEW_BYTES = 32 << 20  # of rows that are looked at together where memory is short, or once
_NUMBERS = "limit", "max_threads", "max_vertices", "max_block"  # of a memory plan
_FULL_LIMIT = 10_000  # rows up to which steps that take one vertex use the full oracle
_FLOAT32_ROWS = 1 << 14  # rows whose kernel values with each other take 1 GiB in float32


@dataclass(frozen=True)
class Session:
    """What a run has around it, beside the problem and the options: who is told, time, files.

    None of it changes what is certified.
    """

    # They are told of every iteration and of every block of a pass over the data.
    callbacks: Sequence[Callback] = ()
    # Where the blocks of a certifying pass are looked at; see `data.parallel.borrow_workers`. None
    # is this process, where steps are always taken. The numbers are the same to the last bit.
    dask: Any = None
    # Reading of `time.perf_counter` from which `max_time` counts.
    started: float = field(default_factory=time.perf_counter)
    # Where the state of the run is written, and how often. A checkpoint that cannot be written is a
    # warning: the run goes on, and tries again when the next one is due.
    checkpoint: CheckpointPlan | None = None
    # Checkpoint to resume from, of the same data, kernel and options; only `max_iter`, `max_time`
    # and `threads` may differ. The run goes on as one that was never stopped.
    resume: str | os.PathLike[str] | None = None
    # Bytes of rows that are in RAM whatever the run does; None for those of a source in RAM.
    held: int | None = None
    # Entered by the caller, where several runs share one. By default a run has its own: Ctrl-C
    # raises before the first step and ends the run with a solution after it.
    interrupt: DeferredInterrupt | None = None

    @cached_property
    def before(self) -> tuple[Identity, State] | None:
        """The checkpoint to resume from, which is read once; InputError where it cannot be."""
        return None if self.resume is None else load_checkpoint(self.resume)

    def deadline(self, options: TrainOptions) -> Deadline:
        """The time limit of the options, counted from the start of this session."""
        return Deadline(options.max_time, self.started)


@dataclass(frozen=True)
class Plan:
    """What is decided before a run.

    Parameters
    ----------
    options : TrainOptions
        Every "auto" is replaced, `landmarks` or `exact` says which model is trained, and `threads`
        are no more than there is memory for.
    given : TrainOptions
        The options as they were given, but for `landmarks` and `exact`: for pairs of classes and
        parts of the rows, whose method, oracle and memory may differ from those of all rows.
    memory : MemoryPlan
        Bytes for each part of the run; of several exact classifiers those for one of all rows.
    kind : str
        One line that says why the model is exact, or has landmarks.
    method : str
        One line that says which method and oracle an exact model takes, and why.
    quantised : bool
        Whether kernel values between vertices begin in 16 bits.
    """

    options: TrainOptions
    given: TrainOptions
    memory: MemoryPlan
    kind: str = ""
    method: str = ""
    quantised: bool = False

    @property
    def landmarks(self) -> int | None:
        """Number of landmarks; None for an exact model."""
        return self.memory.landmarks or None

    def with_options(self, **changes: Any) -> Plan:
        """The same with other options, on which no other part depends."""
        return replace(self, options=replace(self.options, **changes))

    def to_state(self) -> dict[str, Any]:
        """What a checkpoint of an exact run holds beside its options."""
        numbers = {name: getattr(self.memory, name) for name in _NUMBERS}
        return {**self.memory.parts, **numbers, "method": self.method, "quantised": self.quantised}


def plan_exact(
    problem: ClassificationProblem | BinaryProblem,
    options: TrainOptions,
    session: Session | None = None,
    *,
    memory: MemoryPlan | None = None,
    kind: str = "",
) -> Plan:
    """Plan of an exact binary classifier of all rows of a problem.

    Parameters
    ----------
    problem : ClassificationProblem or BinaryProblem
        Of more than two classes, the memory is that of one classifier of all rows.
    options : TrainOptions
        As they were given.
    session : Session, optional
        A run that it resumes keeps its plan.
    memory : MemoryPlan, optional
        Memory, if it was planned before.
    kind : str
        See `Plan`.

    Raises
    ------
    OverLimitError
        When the memory limit cannot be met.
    InputError
        For a method or an oracle that does not exist or fit, or a checkpoint that is damaged.
    """
    session, n_rows = session or Session(), problem.source.n_rows
    given = replace(options, landmarks=None, exact=True)
    options = with_method(given, n_rows)
    if memory is None:
        work = workload(problem, given, session)
        memory = plan_memory(work, options.memory_limit, memory_total())
    method, takes_many = method_in_words(given, options, n_rows), takes_many_vertices(options)
    # Gradients between many vertices can be computed anew; single steps move more weight, and
    # round more. Of one class, rho may be far below 1.
    fits = takes_many and problem.kernel.constant_diagonal and problem.task != "novelty"
    quantised = fits and (options.memory_limit is not None or n_rows > _FLOAT32_ROWS)
    state = {} if session.before is None else session.before[1].get("plan", {})
    if state:  # another kind of run is refused when it begins
        method, quantised = state["method"], state["quantised"]
        memory = _memory_before(state, memory, session)
    options = replace(options, threads=min(options.threads, memory.max_threads))
    return Plan(options, given, memory, kind, method, quantised)


def _memory_before(state: State, here: MemoryPlan, session: Session) -> MemoryPlan:
    """Memory of the run that `session` resumes, which it keeps; `here` is that of a new run.

    InputError is raised where there is too little memory for it.
    """
    parts = {name: state[name] for name in here.parts}
    plan = MemoryPlan(here.work, parts, **{name: state[name] for name in _NUMBERS})
    available = max(memory_total(), here.total())
    if plan.limit is None and plan.total() > available:
        raise InputError(
            f"the run of the checkpoint {session.resume} may take {format_bytes(plan.total())} of "
            f"memory, and there are {format_bytes(available)} here; resume it where there is more, "
            f"or train without --resume"
        )
    return plan


# -- method and oracle ---------------------------------------------------------------------------


def takes_many_vertices(options: TrainOptions) -> bool:
    """Whether a step of the method takes many vertices."""
    return STEP_RULES[options.method].takes_many


def with_method(options: TrainOptions, n_rows: int) -> TrainOptions:
    """Options whose method and oracle are not "auto"; InputError for what does not fit together."""
    if options.method != "auto" and options.method not in STEP_RULES:
        raise InputError(
            f"method must be auto or one of {', '.join(STEP_RULES)}, not {options.method!r}"
        )
    method = "corrective" if options.method == "auto" else options.method
    lmo = options.lmo
    if lmo == "auto":
        # A step costs the full oracle one kernel column over all rows, and the sampled oracle a few
        # rows times the support. The full oracle is cheaper, and exact, while there are few rows.
        few = n_rows <= _FULL_LIMIT and not STEP_RULES[method].takes_many
        lmo = "full" if few else "sampled"
    _check_oracle(method, lmo, options.certify)
    return replace(options, method=method, lmo=lmo)


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


def method_in_words(given: TrainOptions, options: TrainOptions, n_rows: int) -> str:
    """One line on what `with_method` made of the options that were given."""
    lmo = options.lmo
    if takes_many_vertices(options):
        what = f"steps take many violators from {'all rows' if lmo == 'full' else 'blocks of rows'}"
    elif lmo == "full":
        what = "the exact gradient of every row is kept"
    elif lmo == "lazy":
        what = "all rows are looked at where the active set has no good step to offer"
    else:
        what = f"steps look at {options.sample_size} random rows"
        if lmo in KEEPS_GRADIENT:
            what += ", and the gradient of every row is kept"
    why = "as asked" if given.method != "auto" else f"fits any size, here {n_rows} rows"
    return f"method {options.method}, {lmo} oracle: {why}; {what}"


# -- sizes ---------------------------------------------------------------------------------------


def few_rows(source: RowSource, most: int) -> int:
    """Number of rows, up to `most`, that take little memory."""
    row_bytes = max(1, source.decoded_bytes // source.n_rows)
    return min(most, source.n_rows, max(1, _FEW_BYTES // row_bytes))


def workload(problem: Problem, options: TrainOptions, session: Session) -> Workload:
    """The sizes that the memory of a run depends on."""
    return sizes_of(
        problem.source,
        options,
        session.held,
        n_classifiers=problem.n_classifiers,
        weighted=problem.penalties is not None,
        targets=problem.task == "regression",
    )


def sizes_of(
    source: RowSource, options: TrainOptions, held: int | None = None, **learned: Any
) -> Workload:
    """The same before there is a problem; `learned` are the sizes of what is learned of the rows.

    `held` is as for `Session`.
    """
    options = with_method(replace(options, landmarks=None), source.n_rows)
    if held is None:
        held = source.decoded_bytes if source.in_memory else 0
    takes_many = takes_many_vertices(options)
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
        full_oracle=options.lmo in KEEPS_GRADIENT,
        **learned,
    )
