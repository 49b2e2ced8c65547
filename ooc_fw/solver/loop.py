"""The outer loop: oracle, stopping test, step, certificate.

    active set = a few random rows of both classes, optimised
    repeat
        repeat                                            (training)
            candidates = violators, from the oracle
            leave if the gap over the rows drawn passes the test in two draws in a row (rules that
                take blocks of rows look at the active set alone after the first round)
            add the candidates to the active set; take a step
        compute the gradient of the active set anew in float64
        certify with a reading of all rows                 (unless told not to)
        if the certified gap is above the tolerance: add the violators that the reading found. If
            there are none, or the float64 gradient fails the test, rounding has misled training:
            train to a smaller gap, and after some rounds compute kernel values more precisely
    until certified, out of budget, or steps get nowhere, as at the limit of float64
        (status "rounding": the weights with the least certified gap are the result)

If the kernel values of the vertices will not fit into memory, rounds of blocks take the place of
the inner loop (`ooc_fw.solver.blocks`), until the objective seems near enough to the best.

A checkpoint can hold the weights between two iterations, and before a certifying reading.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

import numpy as np

from ooc_fw._core.rules import Limits
from ooc_fw.certificate.sweep import Certificate
from ooc_fw.data.opening import borrow_source
from ooc_fw.data.rows import Float64Array, Int8Array, Int64Array, take_rows
from ooc_fw.kernels.functions import Kernel
from ooc_fw.options import TrainOptions
from ooc_fw.problem import (
    FLOAT64_GAP,
    BinaryProblem,
    check_weights,
    relative_gap,
    relative_target,
)
from ooc_fw.solver.blocks import Blocks
from ooc_fw.solver.oracles import Candidates, Request, nothing_outside
from ooc_fw.solver.plan import Plan, Session, plan_exact
from ooc_fw.solver.run import Run
from ooc_fw.solver.state import (
    Callback,
    Phase,
    Solution,
    SolverState,
    Status,
    StepKind,
    Stop,
    Warm,
    Work,
)
from ooc_fw.solver.steps import LEAST_BATCH, Effort, Steps
from ooc_fw.system.errors import InputError, format_gap

logger = logging.getLogger(__name__)

_IDLE_ROUNDS = 8  # so many rounds without a new violator or a smaller gap end a run as ROUNDING
# If there are few rows for each vertex, blocks of rows take about as long as steps in memory. They
# begin if vertices will fill more of it than this: some vertices come and go.
_FILLED = 0.8
_FEW_ROWS = 20  # for each vertex
# If there are many, kernel rows of the heaviest vertices serve a few more vertices than those whose
# kernel values fit, at less cost. A forecast from few vertices may be three times too large.
_MORE_THAN_FIT = 1.3
_FAR_MORE_THAN_FIT = 4.0
_FEW_VERTICES = 1_000  # fewer of them say little of the number to come
_MANY_VERTICES = 2_000  # with fewer of them, the last steps to a small gap cost little
_SUPPORT_POWER = 0.9  # on noisy data vertices grow nearly as the rows that were seen
_LEAST_FALL = 0.01  # share of the tolerance by which rho falls in a round that is of use
_SURE = 0.7  # share of what a certificate allows at which an estimate is worth a reading
_WALK_STEPS = 64  # most steps from one report to the next
# Shares of the work that are done once looks have seen all rows, and before and after a reading.
_AFTER_LOOKS = 0.6
_BEFORE_PASS = 0.85
_AFTER_PASS = 0.95


def solve(
    source: Any,
    labels: Int8Array,
    kernel: Kernel,
    options: TrainOptions,
    callbacks: Sequence[Callback] = (),
    *,
    penalties: Float64Array | None = None,
    warm: tuple[Int64Array, Float64Array] | None = None,
) -> Solution:
    """Train one binary classifier, on labels -1 and +1.

    Parameters
    ----------
    source : anything that `ooc_fw.open_dataset` takes
        The rows.
    labels : ndarray of int8, shape (n_rows,)
        -1 or +1 for each row.
    kernel
        The result of `ooc_fw.make_kernel`.
    options
        Method, tolerance and limits. `C` is ignored if `penalties` are given. `landmarks` are
        refused.
    callbacks
        Functions that take a `SolverState`. The run ends if one of them returns False.
    penalties : ndarray of float64, shape (n_rows,), optional
        A penalty C for each row.
    warm : optional
        Row numbers and weights to begin with, see `solve_problem`.
    """
    if not isinstance(kernel, Kernel):
        raise InputError(f"kernel must be what ooc_fw.make_kernel returns, not {kernel!r}")
    if options.landmarks is not None:
        raise InputError("solve trains exact models; leave landmarks out, or use FrankWolfeSVC")
    with borrow_source(source) as rows:
        problem = BinaryProblem(rows, labels, kernel, penalties)
        start = None if warm is None else Warm(*warm)
        return solve_problem(problem, plan_exact(problem, options), Session(callbacks), start)


def solve_problem(
    problem: BinaryProblem, plan: Plan, session: Session | None = None, warm: Warm | None = None
) -> Solution:
    """Train one binary classifier.

    A run begins with random rows, or with the rows and weights in `warm`: for example those of a
    classifier for another C, or for a part of the rows. The rows have to differ, and the weights
    are 0 or more, not all 0. They change the time of the training, but not its certificate.

    A run that does not converge, an interrupt and a full active set are statuses and raise no
    error. The weights are feasible in every case. InputError is raised if this process or a worker
    cannot read the source. KeyboardInterrupt is raised before the first step, and for a second
    signal at any time.
    """
    session = session or Session()
    if warm is not None:
        check_weights(warm.rows, warm.alpha, problem.source.n_rows, scaled=False)
    with ExitStack() as stack:
        run = _Loop(problem, plan, session, stack)
        logger.info("%s", plan.method)
        logger.info("memory plan: %s", plan.memory)
        return run.solve(warm)


class _Loop(Run):
    """One run: the outer loop."""

    def solve(self, warm: Warm | None) -> Solution:
        """Run to the end, with any status."""
        if warm is not None and warm.work is not None:
            self.go_on_from(warm.work)
        with self.guard():
            status = self.status_of(lambda: self._run(warm))
            if not status.reached:
                self.save(now=True)
            return self._finish(status)

    def _run(self, warm: Warm | None) -> Status:
        active = self.active
        progress = self.progress
        most = math.inf if self.options.max_iter is None else self.options.max_iter

        # 1. Begin with the given weights, or with a few random rows.
        self.start(warm)
        self.report()
        progress.phase = Phase.TRAIN

        while self.idle_rounds < _IDLE_ROUNDS:
            # 2. Train until the gap over the drawn rows passes the test in two draws.
            while progress.phase is Phase.TRAIN:
                self.save()
                # A resumed run may begin beyond the limit.
                last = progress.iteration >= most
                passed = self._iterate(last)
                if passed:
                    progress.phase = Phase.CERTIFY
                    self.save(now=self.options.certify)  # a reading may take long
                elif last:
                    return Status.MAX_ITER

            # 3. Compute the gradient of the active set in float64. Steps see float32 kernel values
            #    and may have passed the test too early.
            self.renew()
            self.trust_steps()
            self.renewed = True
            self.idle_rounds += 1
            tolerance = self.stopping.relative_tolerance(active.rho)
            passed = active.relative_gap() <= self.stopping.target(active.rho)
            passed = passed or self.blocks is not None or self._near_best()
            if passed and not self.options.certify:
                return Status.SUPPORT_LIMIT if self.full else Status.SAMPLED

            # 4. Certify the gap by a reading of all rows.
            certificate = self.certify(tolerance) if passed else None
            if certificate is not None and self._reached(certificate):
                return Status.CONVERGED
            if certificate is not None and self.full:
                return Status.SUPPORT_LIMIT

            # 5. Train again, on the violators that were read. If there are none, rounding has
            #    hidden a violation: train to a smaller gap, later with more precise kernel values.
            progress.phase = Phase.TRAIN
            if certificate is not None and self._add_violators(certificate, tolerance):
                self.idle_rounds = 0
                continue
            if self.idle_rounds >= _IDLE_ROUNDS // 2 and active.raise_precision():
                self.idle_rounds = 0
            if self.idle_rounds != 1:  # after the first idle round, another one may be enough
                self.target_share *= 0.8
        return Status.ROUNDING

    def _target_gap(self) -> float:
        """Relative gap at which training ends, for the current weights."""
        return self.stopping.target(self.active.rho, self.target_share)

    def _iterate(self, last: bool) -> bool:
        """Take one step or many, unless it is the `last` look; whether the gap passes."""
        if self.rule.walks and len(self.active) == self.source.n_rows:
            return self._walk(last)
        if self.blocks is None and self._outgrows_memory():
            self.begin_blocks()
        if self.blocks is not None:
            return not last and self._round(self.blocks)
        if self._near_best():
            return True
        candidates, passed = self._ask_oracle()
        if candidates.n_scanned == 0 and self.active.quantised and not self.renewed:
            # The oracle adds no more vertices, and the kernel values are rounded to 16 bits.
            # Compute the gradient anew, once.
            self.active.refresh()
            self.trust_steps()
            self.renewed = True
            candidates, passed = self._ask_oracle()
        if passed and not candidates.exact:
            candidates, passed = self._ask_oracle()  # one draw may have missed all violators
        if not passed and not last:
            self._step(candidates)
        return passed

    def _near_best(self) -> bool:
        """Whether the objective seems near enough to the best: rows outside were seen once."""
        useful = self._ends_by_objective and self.options.certify and self.oracle.seen_all
        if not useful or len(self.active) <= _MANY_VERTICES:
            return False
        target = _SURE * relative_target(self._target_gap())
        return self.active.objective_gap(self.problem.bias_share) <= target

    @property
    def _ends_by_objective(self) -> bool:
        """Whether a certificate of the objective may end the run."""
        return self.options.stopping == "relative" and not self.problem.partial

    def _walk(self, last: bool) -> bool:
        """Take steps on all rows in one compiled call, and report; whether the gap passes."""
        most = 0
        if not last:  # a report takes at most so many kernel values
            most = max(1, min(_WALK_STEPS, (1 << 22) // self.source.n_rows))
        if self.options.max_iter is not None:
            most = min(most, max(0, self.options.max_iter - self.progress.iteration))
        a, b = self.stopping.line()
        targets = self.target_share * a, self.target_share * b, FLOAT64_GAP
        n_rows = self.source.n_rows
        looks_at_all = self.options.lmo == "full" or self.options.sample_size >= n_rows
        drawn = 0 if looks_at_all else self.options.sample_size
        draws = self.rng.integers(n_rows, size=(most + 2, drawn))  # empty to look at all rows
        self.interrupt.defer()
        steps = self.rule.walk(self.active, Limits(most, targets, draws))
        self.progress.sampled_gap = max(0.0, steps.gap)
        self._note(steps)
        if most > 0 and not steps.passed:
            self.report()
        return steps.passed

    def _outgrows_memory(self) -> bool:
        """Whether kernel values of all vertices to come need more memory than there is."""
        if not self.fits_blocks:
            return False
        n_active = len(self.active)
        side = self.active.kernel_rows.side
        expected = n_active * self.oracle.growth**_SUPPORT_POWER
        factor = _FAR_MORE_THAN_FIT
        if self.source.n_rows < _FEW_ROWS * expected:
            factor = _FILLED
        return n_active > _MORE_THAN_FIT * side or (
            n_active > _FEW_VERTICES and expected > factor * side
        )

    def _round(self, blocks: Blocks) -> bool:
        """Take steps in all blocks once; whether the objective seems near enough to the best."""
        self.n_scanned = 0
        target = self._target_gap()
        before = self.active.rho

        def on_block(share: float) -> None:
            self.progress.iteration += 1
            self.progress.steps[StepKind.CORRECTIVE] += 1
            self.progress.sampled_gap = blocks.sampled_gap
            self.interrupt.defer()
            self.save()
            self.report(share)

        found = blocks.round(max(0.1 * target, FLOAT64_GAP), on_block)
        self.progress.sweep_fraction = None
        # Blocks see the objective before their steps. Steps of a round lower it as the last did.
        expected = found * min(1.0, found / max(self.round_share, FLOAT64_GAP))
        words = "a round of blocks: %d vertices, objective within about %.2g"
        logger.info(words, len(self.active), found)
        self.round_share = found
        self.full = blocks.full
        if self.active.rho < before * (1 - _LEAST_FALL * target):
            return expected <= _SURE * relative_target(target)
        # Rounds get nowhere: more precise kernel values may help, or only a certificate is missing.
        return not self.active.raise_precision()

    def _ask_oracle(self) -> tuple[Candidates, bool]:
        """Make room and let the oracle propose vertices; whether the gap passes the test."""
        room = self._make_room()
        if self.full:
            candidates = nothing_outside(self.active, 0, exact=False)
        else:
            request = Request()
            if self.rule.takes_many:
                limit = min(max(LEAST_BATCH, len(self.active)), room)
                request = Request(limit, self.active.rho * (1 - self._target_gap()))
            candidates = self.oracle.propose(self.active, self.rng, request)
        self.n_scanned = candidates.n_scanned
        self.worst = candidates.worst
        self.progress.sampled_gap = gap = relative_gap(self.active.rho, candidates.least)
        return candidates, gap <= self._target_gap()

    def _make_room(self) -> int:
        """Number of vertices that may still be added; if it is small, idle vertices go first."""
        most = self.active.kernel_rows.capacity
        if most >= self.source.n_rows or self.blocks is not None:
            return most
        little = most // 64 if self.rule.takes_many else 0  # a search for so few does not pay
        if most - len(self.active) < max(len(self.active), little):
            self.rule.prune(self.active, spare=0.0)
        room = most - len(self.active)
        self.full = self.full or (room <= little and not self.fits_blocks)
        if self.full and self.problem.partial:
            raise Stop(Status.SUPPORT_LIMIT)  # the stream forgets vertices and continues
        return room

    def _step(self, candidates: Candidates) -> None:
        """Add the candidates to the active set, take a step, and report."""
        self.n_scanned = 0
        worst = candidates.least
        before = len(self.active)
        if candidates.rows is not None:
            self.active.add(candidates.row_ids, candidates.rows, candidates.labels)
            worst = float(np.median(candidates.grads))
        # The step ends at a share of the violation just seen, or a little below the target.
        wanted_gap = max(0.3 * relative_gap(self.active.rho, worst), 0.8 * self._target_gap())

        def is_over() -> bool:
            return self.interrupt.noted is not None or self.is_over() or self._near_best()

        ends = Effort(wanted_gap, is_over)
        steps = self.rule.step(self.active, ends)
        self._note(steps, wanted_gap, grown=bool(self.active.alpha[before:].any()))
        self.rule.prune(self.active)
        self.interrupt.defer()
        self.report()

    def _note(self, steps: Steps, wanted_gap: float = 0.0, *, grown: bool = False) -> None:
        """Count steps; if they lead nowhere, make kernel values more precise, or end the run."""
        self.progress.iteration += steps.n_steps
        for kind, count in steps.counts.items():
            self.progress.steps[kind] += count
        self.still += steps.n_steps
        if self.active.rho < self.fallen_rho * (1 - 1e-8):
            self.still = 0
            self.fallen_rho = self.active.rho
        optimises = self.rule.optimises
        long = max(500 if optimises else 5000, self.progress.iteration // 2)
        if optimises and self.still < long:
            self.note_correction(wanted_gap, moved_on=grown or steps.cut)
        if self.still >= long or self.unfinished > 4:
            if not self.active.raise_precision():
                raise Stop(Status.ROUNDING)
            self.trust_steps()

    def is_over(self) -> bool:
        """Whether training has to stop, so that the rest of the run fits the time limit."""
        if self.progress.phase is Phase.CERTIFY:
            return False
        return self.deadline.is_near(0.3 if self.options.certify else 0.1)

    def update(self) -> SolverState:
        """Bring the progress up to date; what callbacks are told, without the bias of one class."""
        self.count()
        active = self.active
        self.progress.objective = active.rho / 2
        self.progress.n_active = len(active)
        self.progress.n_support = len(active.support)
        if self.rule.takes_many and self.blocks is None:
            self.progress.share = max(self.progress.share or 0.0, self._share_done())
        return self.progress.without_bias(self.problem.bias_share)

    def _share_done(self) -> float:
        """About the share of the work that is done, if blocks of rows do not take the steps."""
        fraction = self.progress.sweep_fraction
        if self.progress.phase is not Phase.CERTIFY or fraction is None:
            return _AFTER_LOOKS / self.oracle.growth
        return _BEFORE_PASS + (_AFTER_PASS - _BEFORE_PASS) * fraction

    def _add_violators(self, certificate: Certificate, tolerance: float) -> bool:
        """Add the worst rows of a reading; False if none of them is surely a new violator."""
        worst = certificate.worst
        gap = certificate.certified_gap
        words = (
            "certified gap %s (of the objective %s) above %.3g: training goes on with %d more rows"
        )
        shown = format_gap(gap), format_gap(certificate.objective_gap)
        logger.info(words, *shown, tolerance, len(worst))
        if gap < self.least_gap:
            self.least_gap = gap
            self.idle_rounds = 0
            self.best = self.weights
        if self.blocks is not None:
            self.blocks.expect(worst)
            return gap - certificate.rounding > tolerance
        if len(self.active.outside(worst)) == 0:
            return False
        self.add_vertices(worst[: self._make_room()])
        self.active.refresh()  # by rounded values some might seem no violators, and would be pruned
        return gap - certificate.rounding > tolerance  # a gap by rounding alone has no violator

    def _finish(self, status: Status) -> Solution:
        """Improve the weights a last time, and make the result of the run."""
        goes_on = status is Status.SUPPORT_LIMIT and self.problem.partial
        if not (status.reached or goes_on):
            self.interrupt.defer()
            self.progress.phase = Phase.POLISH
            with suppress(Stop):
                self.report()
            if status is Status.ROUNDING:
                self.polish(self._target_gap())
                status = self._certify_late(status)
                last = self.certificate
                if self.best and last and last.certified_gap > 1.01 * self.least_gap:
                    self.take_weights(self.best.rows, self.best.alpha)
                    status = self._certify_late(status)
            else:
                seconds = 0.05 * self.deadline.max_time
                if status.was_asked_for:
                    seconds = min(1.0, seconds)
                # The certificate of a full active set stays if its weights do.
                if self.finish_early(seconds) or status is not Status.SUPPORT_LIMIT:
                    status = self._certify_late(status)
        sampled_gap = self.last_sampled_gap()
        self.update()  # after the sampled gap, which may read rows that count
        return self._solution(status, sampled_gap, self.certificate)

    def _certify_late(self, status: Status) -> Status:
        """Certify the weights of a run that stopped early, if there is time; they may pass."""
        if self.blocks is not None and (status.was_asked_for or not self.deadline.allows_pass()):
            return status  # the gradient alone would take long
        self.renew()
        self.certificate = None
        tolerance = self.stopping.relative_tolerance(self.active.rho)
        return self.certify_late(status, lambda: self._reached(self.certify(tolerance)))

    def _reached(self, certificate: Certificate) -> bool:
        """Whether a certificate passes the test, in the form in which it is stated.

        By the relative gap the objective is at most about twice the tolerance above the best one.
        """
        stated = certificate.without_bias(self.problem.bias_share)
        if self._ends_by_objective:
            target = relative_target(self.options.tol)
            if stated.objective_gap <= target:
                return True
        return stated.certified_gap <= self.stopping.stated.relative_tolerance(stated.rho)

    def weights_so_far(self) -> Solution:
        """The weights between two iterations; their gap over all rows is not known."""
        solution = self._solution(Status.RUNNING, self.progress.sampled_gap, None)
        return replace(solution, alpha=solution.alpha / solution.alpha.sum())

    def _solution(
        self, status: Status, sampled_gap: float | None, certificate: Certificate | None
    ) -> Solution:
        """The current weights with these gaps; InputError if rounding hides rho of one class."""
        active = self.active
        penalties = self.problem.penalties
        support = active.support
        rows = active.ids[support]
        rho = active.rho
        if self.problem.one_class:  # the objective for one class has no bias
            total = math.fsum(active.alpha)
            rho -= total**2
            if not rho > 0:  # rounding hides it; the exact value is positive
                raise InputError(
                    f"the scores of {self.source.name} are below the rounding of kernel values of "
                    f"this scale: rho, the score at the margin, is computed as {rho:.3g}; scale "
                    f"the columns, or give a smaller gamma or C"
                )
            sampled_gap = None if sampled_gap is None else sampled_gap * active.rho / rho
            certificate = None if certificate is None else certificate.without_bias(1.0)
        bounds = None
        if certificate is not None and certificate.primal < math.inf:
            bounds = certificate.primal, certificate.dual
        return Solution(
            **vars(Work.of(self.progress, self.source.n_rows, len(support))),
            status=status,
            method=self.options.method,
            lmo=self.options.lmo,
            choice=self.plan.method,
            alpha=active.alpha[support],
            labels=active.labels[support].astype(np.int8),
            rows=rows,
            support_vectors=take_rows(active.rows, support),
            objective=rho / 2,
            rho=rho,
            steps=dict(self.progress.steps),
            penalties=None if penalties is None else penalties[rows],
            sampled_gap=sampled_gap,
            certified_gap=None if certificate is None else certificate.certified_gap,
            pair_gap=None if certificate is None else certificate.pair_gap,
            primal=None if bounds is None else bounds[0],
            dual=None if bounds is None else bounds[1],
            signal=self.interrupt.noted if status is Status.INTERRUPTED else None,
        )
