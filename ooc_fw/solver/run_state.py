"""All that a run changes, in one record, of which a checkpoint is the image."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from ooc_fw.certificate.screening import Screen
from ooc_fw.certificate.sweep import Certificate
from ooc_fw.data.rows import Int64Array
from ooc_fw.data.sampling import block_sampler
from ooc_fw.solver.active_set import ActiveSet
from ooc_fw.solver.checkpoint import State
from ooc_fw.solver.deadline import Deadline
from ooc_fw.solver.kept import KeptStates
from ooc_fw.solver.kernel_rows import KernelRows
from ooc_fw.solver.oracles import (
    KEEPS_GRADIENT,
    LMO,
    BlockLMO,
    Candidates,
    FullLMO,
    LazyLMO,
    RandomFullLMO,
    RandomLMO,
    SampledLMO,
)
from ooc_fw.solver.setup import Setting, is_quantised
from ooc_fw.solver.state import Phase, SolverState, StepKind
from ooc_fw.solver.steps import STEP_RULES, Partan, StepRule


@dataclass
class Course:
    """Numbers that decide how a run goes on."""

    phase: Phase = Phase.START  # what comes next
    n_added: int = 0  # vertices that steps added
    full: bool = False  # whether the active set holds all the vertices that it may
    aim: float = 1.0  # share of the tolerance that training aims at
    renewed: bool = False  # whether the gradient is new since the oracle proposes nothing more
    unfinished: int = 0  # corrective steps on the same vertices that got nowhere
    least_rho: float = math.inf  # rho with a gradient computed anew between two such steps
    solved_gap: float = math.inf  # least gap at which a corrective step on them reached its target
    still: int = 0  # steps in which rho has hardly fallen below `fallen_rho`
    fallen_rho: float = math.inf
    least_gap: float = math.inf  # least certified gap
    idle_rounds: int = 0  # certificates since the least one

    def begin_watch(self) -> None:
        """Watch the progress of steps from here on."""
        self.unfinished, self.least_rho, self.solved_gap = 0, math.inf, math.inf
        self.still, self.fallen_rho = 0, math.inf


@dataclass
class RunState:
    """What a run is made of, from its first vertices to its solution."""

    setting: Setting
    deadline: Deadline
    active: ActiveSet
    rule: StepRule
    oracle: LMO
    rng: np.random.Generator  # draws rows
    course: Course
    progress: SolverState = field(default_factory=SolverState)  # what callbacks are told
    kept: KeptStates = field(default_factory=KeptStates)  # earlier weights
    seen: Candidates | None = None  # last proposal of the oracle, if made for the present weights
    certificate: Certificate | None = None  # of the present weights
    screen: Screen | None = None  # from the last pass over all rows
    pass_share: float = 1.0  # share of the rows that the last certifying pass looked at
    sweep_seconds: float | None = None  # of the last pass over all rows

    @classmethod
    def begin(
        cls, setting: Setting, deadline: Deadline, active: ActiveSet | None = None
    ) -> RunState:
        """State before the first step, with the vertices of an earlier run or none."""
        options, plan, problem = setting.options, setting.plan, setting.problem
        course = Course(n_added=0 if active is None else len(active))
        if active is None:
            n_max = min(plan.max_vertices, options.max_support or plan.max_vertices)
            quantised = is_quantised(options, problem.kernel, problem.source.n_rows)
            quantised = quantised and not problem.one_class  # whose rho may be far below 1
            kernel_rows = KernelRows(n_max, plan.kernel_rows, quantised)
            active = ActiveSet(setting.engine, options.C, kernel_rows, problem.penalties)
        rule = STEP_RULES[options.method]()
        rng = np.random.default_rng(options.seed)
        oracle = _make_oracle(setting, rule)
        return cls(setting, deadline, active, rule, oracle, rng, course)

    def add_vertices(self, row_ids: Int64Array) -> None:
        """Add rows of the source, whose numbers increase, as vertices of weight 0."""
        setting = self.setting
        self.active.add(row_ids, setting.rows.take(row_ids), setting.problem.labels[row_ids])

    def refresh(self) -> None:
        """Compute the gradient of the active set anew in float64."""
        with self.deadline.timed(self.deadline.gradients, len(self.active) ** 2):
            self.active.refresh()

    def renew(self) -> None:
        """Refresh; rule and oracle forget what came from the gradient before."""
        self.refresh()
        self.rule.reset()
        self.oracle.reset()

    def pass_work(self) -> float:
        """Rows times support vectors that the next certifying pass likely takes; 0 without one."""
        if not self.setting.options.certify:
            return 0.0
        return self.pass_share * self.setting.problem.source.n_rows * len(self.active.support)

    # -- checkpoints -----------------------------------------------------------------------------

    def image(self) -> State:
        """What a checkpoint holds."""
        parts: State = {
            "course": vars(self.course),
            "progress": vars(self.progress),
            "rng": dict(self.rng.bit_generator.state),
            "active": self.active.state(),
            "oracle": self.oracle.state(),
            "rule": self.rule.state(),
            "certification": {"share": self.pass_share},
        }
        if self.screen is not None:
            parts["certification"] |= self.screen.state()
        if self.kept.states or self.kept.best is not None:
            parts["kept"] = self.kept.state()
        if self.course.phase is Phase.CERTIFY and self.seen is not None:
            parts["seen"] = {
                name: value
                for name, value in vars(self.seen).items()
                if name not in ("rows", "labels")
            }
        return parts

    def restore(self, image: State) -> None:
        """Take over an image; the active set is empty before."""
        setting, course, progress = self.setting, image["course"], image["progress"]
        phase = Phase(course["phase"])
        # A run that was stopped before its first step has its first vertices already.
        self.course = Course(**course | {"phase": Phase.TRAIN if phase is Phase.START else phase})
        steps = {StepKind(kind): count for kind, count in progress["steps"].items()}
        self.progress = SolverState(**progress | {"steps": steps})
        self.rng.bit_generator.state = image["rng"]
        ids = image["active"]["ids"]
        labels = setting.problem.labels
        self.active.restore(image["active"], setting.rows_of(ids), labels[ids])
        self.oracle.restore(image["oracle"])
        self.rule.restore(image["rule"])
        if "kept" in image:
            self.kept = KeptStates.from_state(image["kept"])
        self.pass_share = image["certification"].pop("share")
        if image["certification"]:
            self.screen = Screen.from_state(image["certification"])
        if "seen" in image:
            ids = image["seen"]["row_ids"]
            rows = setting.rows_of(ids) if len(ids) > 0 else None
            self.seen = Candidates(rows=rows, labels=labels[ids], **image["seen"])


def _make_oracle(setting: Setting, rule: StepRule) -> LMO:
    options, plan = setting.options, setting.plan
    rows, labels, engine = setting.rows, setting.problem.labels, setting.engine
    sampling: dict[str, Any] = {"sampler": setting.sampler, "sample_size": options.sample_size}
    if options.lmo in KEEPS_GRADIENT:
        kind = FullLMO if options.lmo != "random-full" else partial(RandomFullLMO, **sampling)
        full = kind(
            rows,
            labels,
            engine,
            setting.penalties,
            keeps_before=options.method == Partan.name,
            keeps_rows=plan.row_cache > 0,
            column_bytes=plan.column_cache,
        )
        return LazyLMO(full) if options.lmo == "lazy" else full
    if rule.takes_many:
        blocks = block_sampler(setting.sampler, rows.n_rows)
        return BlockLMO(rows, labels, engine, blocks, plan.max_block)
    sampled = RandomLMO if options.lmo == "random" else SampledLMO
    return sampled(rows, labels, engine, **sampling)
