"""The outer loop: oracle, stopping test, step, certificate.

    active set = a few random rows of both classes, optimised
    repeat
        repeat                                            (training)
            candidates = rows of least gradient, from the oracle
            leave when the gap over the rows drawn passes the test in two draws in a row
            add the candidates to the active set; take a step
        compute the gradient of the active set anew in float64
        certify with a pass over all rows                 (unless told not to)
        if the certified gap is above the tolerance: add the violators found; where there are none,
            or the float64 gradient fails the test, rounding has misled training: aim at a smaller
            gap, and after some rounds compute kernel values more precisely
    until certified, out of budget, or where steps get nowhere, as at the limit of float64
        (status "rounding": the weights of least certified gap are the result)

Between two iterations, and before a certifying pass, a checkpoint can hold the whole state. A run
that resumes from it takes the same course to the last bit.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np

from ooc_fw.certificate.sweep import Certificate
from ooc_fw.data.rows import Float64Array, Int8Array
from ooc_fw.data.sources import RowSource
from ooc_fw.kernels.functions import Kernel
from ooc_fw.options import TrainOptions
from ooc_fw.problem import BinaryProblem, StoppingTest, relative_gap
from ooc_fw.solver.active_set import ActiveSet
from ooc_fw.solver.certification import certify
from ooc_fw.solver.deadline import Deadline
from ooc_fw.solver.ending import last_sampled_gap, polish, return_to, settle
from ooc_fw.solver.kept import KeptState
from ooc_fw.solver.oracles import Candidates, Request, nothing_outside
from ooc_fw.solver.reporter import Reporter
from ooc_fw.solver.run_state import RunState
from ooc_fw.solver.session import Session
from ooc_fw.solver.setup import Setting, prepare
from ooc_fw.solver.start import Warm, check_warm, start
from ooc_fw.solver.state import Callback, Phase, Solution, Status, Stop
from ooc_fw.solver.steps import LEAST_BATCH, FullyCorrective
from ooc_fw.system.errors import InputError
from ooc_fw.system.files import Output, check_outputs
from ooc_fw.system.memory import MemoryPlan

logger = logging.getLogger(__name__)

_BRIEF = 1.0  # seconds for settling the weights after an interrupt, and for choosing among states
_LITTLE_ROOM = 64  # with less room than this part of the vertices allowed, none are sought
_IDLE_ROUNDS = 8  # rounds without new violators or a smaller gap that end a run as ROUNDING
_UNFINISHED = 4  # corrective steps on the same vertices without progress before a change
_LEAST_PROGRESS = 1e-3  # share of the gap by which such a step must lower the objective
_LONG, _LONG_CORRECTIVE = 5000, 500  # steps, or half of those before, in which rho must fall
_STILL = 1e-8  # relative decrease of rho that leads nowhere in as many steps
_WORSE = 1.01  # factor of the least certified gap from which its weights are better than the last
_TIGHTER = 0.8  # factor of the tolerance of training after rounding has hidden a violation


def solve(
    source: RowSource,
    labels: Int8Array,
    kernel: Kernel,
    options: TrainOptions,
    callbacks: Sequence[Callback] = (),
    *,
    penalties: Float64Array | None = None,
    **circumstances: Any,
) -> Solution:
    """Train one binary classifier; `solve_problem` does the same for those who have records.

    Parameters
    ----------
    source, labels, kernel, penalties
        See `ooc_fw.problem.BinaryProblem`.
    options
        See `solve_problem`.
    callbacks, **circumstances
        `dask`, `started`, `checkpoint` and `resume`: see `ooc_fw.solver.session.Session`; and
        `warm`, see `solve_problem`.
    """
    warm = circumstances.pop("warm", None)
    problem = BinaryProblem(source, labels, kernel, penalties)
    return solve_problem(problem, options, Session(callbacks, **circumstances), warm)


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
        Method, tolerance and budgets. `C` is ignored where rows have penalties.
    session : Session, optional
        Circumstances of the run.
    warm : tuple of ndarray of int64 and of float64, each of shape (k,), optional
        Different rows, and weights that are not negative nor all 0, to begin with in place of
        random rows: those of a classifier for another C, say, or for part of the rows. They change
        how long training takes, not what the certificate says.

    Returns
    -------
    Solution
        Not converging, an interrupt or a full active set are statuses, not errors; the weights are
        feasible in every case.

    Raises
    ------
    InputError
        For options that do not fit together, a source that cannot be read, here or by the processes
        that should, or a checkpoint that is damaged or of another run.
    KeyboardInterrupt
        Before the first step; for a second signal at any time.
    """
    session = session or Session()
    if session.checkpoint is not None:
        check_outputs([Output("checkpoint", session.checkpoint.path)], [problem.source.name])
    if warm is not None:
        check_warm(*warm, problem.source.n_rows)
    with prepare(problem, options, session) as setting:
        logger.info("%s", setting.choice)
        logger.info("memory plan: %s", setting.plan)
        run = _Run(setting, session.started)
        run.reporter.begin()
        return run.solve(warm)


class Path(ExitStack):
    """Binary classifiers of one kernel and rows for one C after another; a context manager.

    Each begins with the weights of the one before: the simplex does not depend on C, so that they
    are feasible. Rows in RAM and kernel values between vertices are kept, since neither depends on
    C. The parameters are those of `solve_problem`, but rows have no penalties, and C of the options
    is not used. Several paths in one process share the memory plan made before the first: what one
    took is there for the next.
    """

    def __init__(
        self,
        problem: BinaryProblem,
        options: TrainOptions,
        session: Session | None = None,
        plan: MemoryPlan | None = None,
    ) -> None:
        super().__init__()
        prepared = prepare(problem, options, session or Session(), plan)
        self._setting = self.enter_context(prepared)
        self._active: ActiveSet | None = None

    def solve(self, C: float, warm: Warm | None = None) -> Solution:
        """Classifier of the next C; the first begins with `warm`. Counts and times are its own."""
        setting = replace(self._setting, options=replace(self._setting.options, C=C))
        setting.engine.evaluations = 0
        if self._active is not None:
            self._active.change_penalty(C)
            warm = None
        run = _Run(setting, time.perf_counter(), self._active)
        run.reporter.count_reads_from(0, 0)
        self._active = run.state.active
        return run.solve(warm)


class _Run:
    """One run: the outer loop, and what it tells while it goes on."""

    def __init__(self, setting: Setting, started: float, active: ActiveSet | None = None) -> None:
        options = setting.options
        self.setting, self.options = setting, options
        self.deadline = Deadline(options.max_time, started)
        self.state = RunState.begin(setting, self.deadline, active)
        self.cut = False  # whether an interrupt cut the last step short
        diagonal = setting.problem.constant_diagonal(options.C)
        share = setting.problem.bias_share
        self.stopping = StoppingTest(options.stopping, options.tol, diagonal, share)
        self.reporter = Reporter(self.state)
        self.interrupt = self.reporter.interrupt

    def solve(self, warm: Warm | None = None) -> Solution:
        """Run to the end, whatever it is."""
        rule = self.state.rule
        rule.is_late = self._cut_step
        try:
            with nullcontext() if self.setting.session.interrupt else self.interrupt:
                return self._finish(self._status_of(lambda: self._run(warm)))
        finally:
            # Without this reference to itself the run, and its gigabytes, are freed at once.
            del rule.is_late

    def _status_of(self, work: Callable[[], Status]) -> Status:
        """The status that work ends with, also where a limit or an interrupt ends it."""
        try:
            return work()
        except Stop as stop:
            return stop.status
        except KeyboardInterrupt:
            if self.interrupt.urgent or not self.interrupt.defers:
                raise  # a second signal, or nothing to return yet
            return Status.INTERRUPTED

    def _run(self, warm: Warm | None) -> Status:
        state, course, active = self.state, self.state.course, self.state.active

        # 1. Begin with the weights given, or those of a few random rows.
        if course.phase is Phase.START:
            start(state, warm)
            self._pause()
            course.phase = Phase.TRAIN

        while course.idle_rounds < _IDLE_ROUNDS:
            # 2. Train until the gap over the rows drawn passes the test, on a second draw too.
            while course.phase is Phase.TRAIN:
                last = state.progress.iteration == self.options.max_iter
                self.reporter.save_if_due(last)
                candidates = self._propose()
                if candidates.n_scanned == 0 and active.quantised and not course.renewed:
                    # No vertex will be added any more, and the kernel values are rounded to 16
                    # bits: compute the gradient anew, once.
                    state.refresh()
                    course.renewed = True
                    continue
                passed = self._passes(candidates)
                if passed and not candidates.exact:
                    candidates = self._propose()
                    passed = self._passes(candidates)
                if passed:
                    course.phase = Phase.CERTIFY
                    if self.options.certify:
                        self.reporter.save()  # a pass may take long; do not repeat the training
                elif last:
                    return Status.MAX_ITER
                else:
                    self._step(candidates)

            # 3. Compute the gradient of the active set in float64. Steps see float32 kernel values
            #    and may have passed the test too early.
            state.renew()
            course.begin_watch()
            course.renewed = True
            course.idle_rounds += 1
            tolerance = self.stopping.relative_tolerance(active.rho)
            passed = active.relative_gap() <= self.stopping.target(active.rho)
            passed = passed or not state.oracle.sees_active
            if passed and not self.options.certify:
                return Status.SUPPORT_LIMIT if course.full else Status.SAMPLED

            # 4. Certify the gap by a pass over all rows.
            certificate = self._certify(tolerance) if passed else None
            if certificate is not None and certificate.certified_gap <= tolerance:
                return Status.CONVERGED
            if certificate is not None and course.full:
                return Status.SUPPORT_LIMIT

            # 5. Train again: on the violators found. Else rounding has hidden a violation: train to
            #    a smaller gap, and after some rounds with more precise kernel values, too.
            course.phase = Phase.TRAIN
            if certificate is not None and self._add_violators(certificate, tolerance):
                course.idle_rounds = 0
                continue
            if course.idle_rounds >= _IDLE_ROUNDS // 2 and active.widen():
                course.idle_rounds = 0
            if course.idle_rounds != 1:  # one round more is enough where weights had moved far
                course.aim *= _TIGHTER
        return Status.ROUNDING

    # -- one iteration ---------------------------------------------------------------------------

    def _tolerance(self) -> float:
        """Relative gap that training aims at, with the weights of now."""
        return self.stopping.target(self.state.active.rho, self.state.course.aim)

    def _propose(self) -> Candidates:
        """What the oracle proposes, or the active set alone once that is full."""
        state, active, course = self.state, self.state.active, self.state.course
        room = self._room()
        if course.full:
            state.seen = nothing_outside(active, 0, exact=False)
            return state.seen
        target = self._tolerance()
        request = Request(target=target)
        if state.rule.takes_many:
            limit = min(max(LEAST_BATCH, len(active)), room)
            request = Request(limit, active.rho * (1 - target))
            unrepresented = (self.options.max_support or 0) - course.n_added
            if unrepresented > 0:  # the worst violators of a young model are outliers
                request = Request(min(limit, unrepresented))
        engine = self.setting.engine
        started, evaluations = time.perf_counter(), engine.evaluations
        state.seen = state.oracle.propose(active, state.rng, request)
        if engine.evaluations > evaluations:  # else a gradient was kept, not computed
            work = state.seen.n_scanned * len(active)
            self.deadline.looks.add(time.perf_counter() - started, work)
        return state.seen

    def _room(self) -> int:
        """Vertices that may still be added. Where they are few, idle ones are removed first."""
        active, rule, most = self.state.active, self.state.rule, self.state.active.capacity
        if most >= self.setting.problem.source.n_rows:
            return most
        little = most // _LITTLE_ROOM if rule.takes_many else 0
        if most - len(active) < max(len(active), little):
            rule.prune(active, spare=0.0)
        room = most - len(active)
        self.state.course.full = self.state.course.full or room <= little
        return room

    def _passes(self, candidates: Candidates) -> bool:
        self.state.progress.sampled_gap = relative_gap(self.state.active.rho, candidates.least)
        return self.state.progress.sampled_gap <= self._tolerance()

    def _step(self, candidates: Candidates) -> None:
        """Add the candidates to the active set, take a step, and report."""
        state, active, rule = self.state, self.state.active, self.state.rule
        state.seen = None
        worst, toward = candidates.least, None
        before = len(active)
        if candidates.rows is not None:
            active.add(candidates.row_ids, candidates.rows, candidates.labels)
            state.course.n_added += len(candidates.row_ids)
        if len(candidates.row_ids) > 0:
            grads = candidates.grads
            worst = float(np.median(grads) if len(grads) > 1 else grads[0])
            toward = active.place_of(int(candidates.row_ids[np.argmin(grads)]))
        rule.set_inner_tol(self._tolerance(), relative_gap(active.rho, worst))
        rule.inner_limit = self.deadline.inner_steps(len(active), state.pass_work())
        m, started = len(active), time.perf_counter()
        record = rule.step(active, int(np.argmin(active.grad)) if toward is None else toward)
        self.deadline.inner.add(time.perf_counter() - started, rule.inner_steps * m)
        state.oracle.update(record, active)
        self._watch(grown=bool(active.alpha[before:].any()))
        rule.prune(active)
        state.progress.count_step(record.kind, record.drops)
        self.interrupt.defer()
        self._pause()
        state.kept.offer(active)

    def _cut_step(self) -> bool:
        """Whether a corrective step has to end before it is optimal."""
        self.cut = self.cut or self.interrupt.noted is not None
        return self.cut or self.reporter.is_over()

    def _pause(self) -> None:
        """Report between two iterations; a run that is stopped here leaves a checkpoint."""
        try:
            self.reporter.report()
        except Stop:
            if not self.cut:  # a step that was cut would make the resumed run differ
                self.reporter.save()
            raise

    def _watch(self, grown: bool) -> None:
        """Turn to more precise kernel values where rounding misleads the steps, or end the run."""
        if self._is_still() or self._is_misled(grown):
            if not self.state.active.widen():
                raise Stop(Status.ROUNDING)
            self.state.course.begin_watch()

    def _is_still(self) -> bool:
        """Whether steps have hardly lowered the objective for a long time."""
        course, rho = self.state.course, self.state.active.rho
        course.still += 1
        if rho < course.fallen_rho * (1 - _STILL):
            course.still, course.fallen_rho = 0, rho
        long = _LONG_CORRECTIVE if isinstance(self.state.rule, FullyCorrective) else _LONG
        return course.still >= max(long, self.state.progress.iteration // 2)

    def _is_misled(self, grown: bool) -> bool:
        """Whether corrective steps have got nowhere again and again.

        New vertices get no weight, the gap ends above its target or no lower than before, and the
        objective, computed anew, hardly falls.
        """
        rule, active, course = self.state.rule, self.state.active, self.state.course
        if not isinstance(rule, FullyCorrective):
            return False
        gap = active.relative_gap()
        if grown or rule.cut or (gap <= rule.inner_tol and gap < course.solved_gap):
            course.unfinished, course.least_rho, course.solved_gap = 0, math.inf, gap
            return False
        course.unfinished += 1
        if course.unfinished == 1:
            return False
        self.state.refresh()
        slow = active.precise and gap < 1  # no other values would be faster
        progress = 0.0 if slow else _LEAST_PROGRESS * min(gap, 1.0)
        if active.rho < course.least_rho * (1 - progress):
            course.unfinished, course.least_rho = 1, active.rho
        return course.unfinished > _UNFINISHED

    # -- certificate and end ---------------------------------------------------------------------

    def _certify(self, tolerance: float) -> Certificate:
        progress = self.state.progress
        self.interrupt.defer()

        def on_block(share: float) -> None:
            progress.sweep_fraction = share
            self.reporter.report()

        certificate = certify(self.state, tolerance, on_block)
        progress.certified_gap, progress.sweep_fraction = certificate.certified_gap, None
        return certificate

    def _add_violators(self, certificate: Certificate, tolerance: float) -> bool:
        """Add violators of a pass, in the order of the rows; False where all are vertices."""
        course, worst = self.state.course, certificate.worst
        logger.info(
            "certified gap %.3g above %.3g: training goes on from %d violators",
            certificate.certified_gap,
            tolerance,
            len(worst),
        )
        if certificate.certified_gap < course.least_gap:
            course.least_gap, course.idle_rounds = certificate.certified_gap, 0
            self.state.kept.best = KeptState.of(self.state.active)
        if len(self.state.active.outside(worst)) == 0:
            return False
        self.state.add_vertices(worst[: self._room()])
        self.state.refresh()
        return True

    def _finish(self, status: Status) -> Solution:
        """Weights of a run that ends with some status, and gaps that belong to them."""
        state, interrupted = self.state, status is Status.INTERRUPTED
        if not status.reached:
            self.interrupt.defer()
            if status is Status.ROUNDING:
                polish(state, self._tolerance())
                status = self._certify_late(status)
                best, found = state.kept.best, state.certificate
                if best and found and found.certified_gap > _WORSE * state.course.least_gap:
                    return_to(state, best)
                    status = self._certify_late(status)
            else:
                seconds = min(_BRIEF if interrupted else math.inf, self.deadline.settle_takes() / 2)
                # The certificate of a full active set stays if its weights do.
                if settle(state, seconds) or status is not Status.SUPPORT_LIMIT:
                    status = self._certify_late(status)
        sampled_gap = last_sampled_gap(state)
        certificate = state.certificate
        penalties = self.setting.problem.penalties
        rows = state.active.ids[state.active.support]
        solution = Solution.of(
            state.active,
            self.reporter.update(),
            self.setting.problem.source.n_rows,
            status=status,
            method=self.options.method,
            lmo=self.options.lmo,
            choice=self.setting.choice,
            rows=rows,
            penalties=None if penalties is None else penalties[rows],
            sampled_gap=sampled_gap,
            certified_gap=None if certificate is None else certificate.certified_gap,
            pair_gap=None if certificate is None else certificate.pair_gap,
            sweep_seconds=state.sweep_seconds,
            signal=self.interrupt.noted if status is Status.INTERRUPTED else None,
        )
        return solution if not self.setting.problem.one_class else self._without_bias(solution)

    def _without_bias(self, solution: Solution) -> Solution:
        """The solution of a problem of one class, in which the bias does not count."""
        total, certificate = math.fsum(solution.alpha), self.state.certificate
        rho = solution.rho - total**2
        if not rho > 0:  # its exact value is
            raise InputError(
                f"the scores of {self.setting.problem.source.name} are below the rounding of "
                f"kernel values of this scale: rho, the score at the margin, is computed as "
                f"{rho:.3g}; scale the columns, or give a smaller gamma or C"
            )
        known: dict[str, Any] = {"rho": rho, "objective": rho / 2}
        if solution.sampled_gap is not None:
            known["sampled_gap"] = solution.sampled_gap * solution.rho / rho
        if certificate is not None:
            own = certificate.without_bias(total)
            known |= {"certified_gap": own.certified_gap, "pair_gap": own.pair_gap}
        return replace(solution, **known)

    def _certify_late(self, status: Status) -> Status:
        """Certify weights that had to stop early, if there is time; they may pass all the same."""
        state = self.state
        state.renew()
        state.certificate = None
        in_time = self.deadline.allows_sweep(state.pass_work())
        if not self.options.certify or status is Status.INTERRUPTED or not in_time:
            return status
        state.course.phase = Phase.CERTIFY
        tolerance = self.stopping.relative_tolerance(state.active.rho)

        def certified() -> Status:
            passed = self._certify(tolerance).certified_gap <= tolerance
            return Status.CONVERGED if passed else status

        return self._status_of(certified)
