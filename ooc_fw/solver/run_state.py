"""All that a run changes, in one record, of which a checkpoint is the image."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field

import numpy as np

from ooc_fw.data.sampling import block_sampler
from ooc_fw.solver.active_set import ActiveSet
from ooc_fw.solver.certification import Certification
from ooc_fw.solver.checkpoint import State
from ooc_fw.solver.deadline import Deadline
from ooc_fw.solver.kept import KeptStates
from ooc_fw.solver.kernel_rows import KernelRows
from ooc_fw.solver.oracles import LMO, BlockLMO, Candidates, FullLMO, SampledLMO
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
    # Whether the gradient was computed anew since the oracle proposes nothing more.
    renewed: bool = False
    unfinished: int = 0  # corrective steps on the same vertices that got nowhere
    least_rho: float = math.inf  # rho with a gradient computed anew between two such steps
    least_gap: float = math.inf  # least certified gap
    idle_rounds: int = 0  # certificates since the least one


@dataclass
class RunState:
    """All that a run changes."""

    active: ActiveSet
    rule: StepRule
    oracle: LMO
    certification: Certification
    rng: np.random.Generator  # draws rows
    course: Course = field(default_factory=Course)
    # What callbacks and the solution say.
    progress: SolverState = field(default_factory=SolverState)
    kept: KeptStates = field(default_factory=KeptStates)  # earlier weights
    seen: Candidates | None = None  # last proposal of the oracle, if made for the present weights

    @classmethod
    def begin(
        cls, setting: Setting, deadline: Deadline, active: ActiveSet | None = None
    ) -> RunState:
        """State before the first step, with the vertices of an earlier run or none."""
        options = setting.options
        rule = STEP_RULES[options.method]()
        return cls(
            _empty_active_set(setting) if active is None else active,
            rule,
            _make_oracle(setting, rule),
            Certification(setting, deadline),
            np.random.default_rng(options.seed),
            Course(n_added=0 if active is None else len(active)),
        )

    def image(self) -> State:
        """What a checkpoint holds."""
        parts: State = {
            "course": vars(self.course),
            "progress": vars(self.progress),
            "rng": dict(self.rng.bit_generator.state),
            "active": self.active.state(),
            "oracle": self.oracle.state(),
            "rule": self.rule.state(),
            "certification": self.certification.state(),
        }
        if self.kept.states:
            parts["kept"] = self.kept.state()
        if self.course.phase is Phase.CERTIFY and self.seen is not None:
            seen = {own.name: getattr(self.seen, own.name) for own in dataclasses.fields(self.seen)}
            parts["seen"] = {name: seen[name] for name in seen if name not in ("rows", "labels")}
        return parts

    def restore(self, image: State, setting: Setting) -> None:
        """Take over an image; the active set is empty before."""
        course, progress = image["course"], image["progress"]
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
        self.certification.restore(image["certification"])
        if "seen" in image:
            ids = image["seen"]["row_ids"]
            rows = setting.rows_of(ids) if len(ids) > 0 else None
            self.seen = Candidates(rows=rows, labels=labels[ids], **image["seen"])


def _empty_active_set(setting: Setting) -> ActiveSet:
    options, plan, problem = setting.options, setting.plan, setting.problem
    quantised = is_quantised(options, problem.kernel, problem.source.n_rows)
    n_max = min(plan.max_vertices, options.max_support or plan.max_vertices)
    kernel_rows = KernelRows(n_max, plan.kernel_rows, quantised)
    return ActiveSet(setting.engine, options.C, kernel_rows, problem.penalties)


def _make_oracle(setting: Setting, rule: StepRule) -> LMO:
    options = setting.options
    rows, labels, engine = setting.rows, setting.problem.labels, setting.engine
    if options.lmo == "full":
        return FullLMO(
            *(rows, labels, engine, setting.penalties),
            keeps_before=options.method == Partan.name,
            keeps_rows=setting.plan.row_cache > 0,
            column_bytes=setting.plan.column_cache,
        )
    if rule.takes_many:
        return BlockLMO(rows, labels, engine, block_sampler(setting.sampler, rows.n_rows))
    return SampledLMO(rows, labels, engine, setting.sampler, options.sample_size)
