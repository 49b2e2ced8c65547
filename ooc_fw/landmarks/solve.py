"""A landmark model from a problem: sample, pilot, landmarks, Newton's method, certificate.

    draw a sample of the rows; solve a pilot on part of it with half of the landmarks
    choose the other half by the pilot's losses; solve on the sample, then on a larger one
    Newton steps over all rows with float32 kernel values, until the gap is small
    compute the gap with float64 kernel values; where it is too large, steps from that gradient

The last pass is the certificate: rounding that is left is added to the gap. A start from weights
for all rows, as a checkpoint has them, needs no work on the sample.
"""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ooc_fw.data.rows import Float64Array, Int64Array, Rows, take_rows
from ooc_fw.kernels.arithmetic import choose_arithmetic
from ooc_fw.kernels.engine import Engine
from ooc_fw.landmarks import LandmarkSolution, LandmarkStart, relative_gap, relative_target
from ooc_fw.landmarks.certificate import ExactKernelView, certify_point
from ooc_fw.landmarks.newton import Newton, Point, Preconditioner
from ooc_fw.landmarks.passes import KeptValues, Passes, SpanProblem
from ooc_fw.landmarks.span import Landmarks, Sample, Span, draw_by_loss, draw_random
from ooc_fw.problem import Problem
from ooc_fw.solver.plan import Plan, Session, lend_workers
from ooc_fw.solver.shell import Shell
from ooc_fw.solver.state import Phase, SolverState, Status, Stop, Work
from ooc_fw.system.errors import InputError

logger = logging.getLogger(__name__)

_POOL_GAP = 0.5  # relative gap at which the pool is left
_PILOT_FACTOR = 10  # rows of the pilot for each of its landmarks
_PILOT_GAP, _SAMPLE_GAP = 0.05, 0.02  # relative gaps at which pilot and sample are left
# Relative gap down to which gradients come from float32 kernel values. Their rounding alone is a
# gap of 0.02 at 2,000 landmarks on covtype.
_FAST_GAP = 0.5
_LAST_GAP = 0.05  # relative gap at which float32 values end where no gap is to be certified
_PROBE_ROWS = 1024  # rows of the trial that chooses the arithmetic of products
_EXACT_SHARE = 0.9  # share of the target gap that steps with float64 kernel values aim at
_ROUNDS = 3  # rounds of steps from float64 gradients, each to a smaller gap
# Time of a pass with float64 kernel values over one with float32: 1.2 to 2.3 on four data sets.
_EXACT_COST = 2.0


class LandmarkPath(ExitStack):
    """Landmark models of one kernel and rows for one C after another; a context manager.

    A model has one classifier of two classes, else one of each against the rest. All models have
    the landmarks that the first one chooses, fewer than planned where rows depend on each other,
    and each begins with the weights of the one before. For more than one C, rows have no penalties
    and there are no checkpoints. Where the start `warm` has fewer landmarks than planned, the
    others are chosen by the losses that they leave; where it has more, it is left out.
    """

    def __init__(
        self, problem: Problem, plan: Plan, session: Session, warm: LandmarkStart | None = None
    ) -> None:
        super().__init__()
        if warm is not None and len(warm.rows) > plan.memory.landmarks:
            warm = None
        self._begin = partial(_Run, problem, plan, session, warm, self)
        self._run: _Run | None = None
        self.callback(self._forget)

    def _forget(self) -> None:
        """Free the run at once: it refers to itself through the passes that report to it."""
        if self._run is not None:
            vars(self._run).clear()
        del self._run, self._begin

    def solve(self, C: float) -> LandmarkSolution:
        """Classifiers for the next C; counts and times are their own.

        OutOfTimeError is raised when time is over before there is a model, and InputError for rows
        that nothing can be learned from.
        """
        if self._run is None:
            self._run = self._begin(C)
        else:
            self._run.change_penalty(C)
        return self._run.solve()

    def exact_kernel_dual(self) -> Float64Array:
        """Lower bounds on the least P of the exact kernel, after `solve`; see `ExactKernelView`."""
        assert self._run is not None
        run = self._run
        view = ExactKernelView(run.problem, run.best.point.gradient.decisions)
        return view.dual(run.engine, exact=True)


@dataclass(frozen=True)
class _Model:
    """Weights that a run may end with, and Newton's method on the rows that they are for."""

    newton: Newton
    point: Point

    @property
    def n_rows(self) -> int:
        """Number of rows that `point` is of."""
        return self.newton.passes.problem.n_rows


class _Run(Shell):
    """One run, for one C after another: its landmarks, steps and certificate."""

    engine: Engine

    def __init__(
        self,
        problem: Problem,
        plan: Plan,
        session: Session,
        warm: LandmarkStart | None,
        stack: ExitStack,
        C: float,
    ) -> None:
        source, options = problem.source, replace(plan.options, C=C)
        super().__init__(session, options, source, SolverState())
        self.given, self.warm = problem, warm
        # Seconds of the certifying pass of the model that this one may replace; None if there is
        # no model yet, which is worth exceeding the limit a little.
        self._sweep_before = None if warm is None else warm.sweep_seconds
        self.gives_up = not plan.grows or self._sweep_before is not None
        self.n_landmarks = plan.memory.landmarks
        self.kept = KeptValues(plan.memory.kernel_values, plan.memory.limit)
        self.start: tuple[Newton, Float64Array] | None = None
        self._reset()
        if warm is not None and warm.work is not None:
            done, names = warm.work, ("rows_read", "bytes_read", "kernel_evaluations")
            counts = {name: getattr(done, name) for name in names}
            self.count_from(SolverState(elapsed_s=done.seconds, **counts))
            self.progress.iteration = done.iterations
        if warm is not None and warm.draws is not None:
            self.go_on_from(warm.draws)
        given = None if warm is None else warm.rows
        self.sample = Sample.draw(source, problem.row_classes, self.n_landmarks, self.rng, given)
        arithmetic = choose_arithmetic(problem.kernel, self.sample.rows[:_PROBE_ROWS])
        self.engine = stack.enter_context(Engine(problem.kernel, options.threads, arithmetic))
        self.workers = stack.enter_context(lend_workers(session, options.threads, source))

    def _reset(self) -> None:
        """Begin to count and to measure time."""
        self.problem = SpanProblem.of(self.given, self.options.C)
        self.deadline = self.session.deadline(self.options)
        self.progress = SolverState(phase=Phase.TRAIN, gap_scope="sample")
        self.count_from(self.progress)
        self.model: _Model | None = None
        self._unwanted = False

    def change_penalty(self, C: float) -> None:
        """Begin again with another C, where the run ended."""
        factor, before = C / self.options.C, self.model
        self.options = replace(self.options, C=C)
        self.session = replace(self.session, started=time.perf_counter())
        self._reset()
        if self.start is None or before is None:
            return
        newton, b = self.start
        part = self._part()
        newton.preconditioner.change_penalties(part, factor)
        if before.newton.span is newton.span:
            b = before.point.b
        self.start = self._over(newton, part, None), b
        self.progress.n_active = self.progress.n_support = len(newton.span)

    def solve(self) -> LandmarkSolution:
        """Run to the end, whatever it is."""
        with self.guard():
            status = self.status_of(self._run)
            if not status.reached and self._has_all_landmarks:
                self.save(now=True)
            return self._solution(self._certify_stopped(status))

    def _run(self) -> Status:
        # 1. The landmarks, and weights for the sample.
        whole = self.start is None and self.warm is not None and self.warm.whole
        if self.start is None:
            self.start = self._choose_start()
        newton, b = self.start
        target = relative_target(self.options.tol)
        if len(self.sample.rows) < self.source.n_rows and not whole:
            b = self._minimise(newton, b, _SAMPLE_GAP).b

        # 2. Weights for more rows.
        if len(self.sample.pool) > len(self.sample.rows) and not whole:
            pool = self.problem.part(self.sample.pool, self.sample.pool_ids)
            newton = self._over(newton, pool, self.sample.in_pool)
            b = self._minimise(newton, b, _POOL_GAP).b

        # 3. Weights for all rows, with a gradient from float64 kernel values in the end.
        newton = self._over_all_rows(newton)
        if not self.options.certify:
            self._minimise(newton, b, max(_LAST_GAP, target))
            return Status.SAMPLED
        for number in range(_ROUNDS):
            steps_target = _EXACT_SHARE * target / 4**number  # the rest is the bound on rounding
            b = self._minimise(newton, b, steps_target, _FAST_GAP).b
            if self._passes():
                return Status.CONVERGED
        return Status.ROUNDING

    def _choose_start(self) -> tuple[Newton, Float64Array]:
        """Newton's method on the sample, with all landmarks, and weights to begin with."""
        chosen, weights = self._choose_landmarks()
        span, kept = self._span(take_rows(self.sample.rows, chosen))
        places = chosen[kept]
        b = np.zeros((len(weights), len(span)))
        if len(places) == len(chosen):
            b[:, : weights.shape[1]] = weights
        else:
            pilot = take_rows(self.sample.rows, chosen[: weights.shape[1]])
            b = span.nearest(self._landmarks(pilot), weights)
        return self._newton(span, self.sample.ids[places], self._part(), places), b

    def _choose_landmarks(self) -> tuple[Int64Array, Float64Array]:
        """Places of the landmarks in the sample, and weights of the pilot for the first of them."""
        codes = self.given.row_classes[self.sample.ids]
        half = max(1, self.n_landmarks // 2)
        if self.warm is None:
            pilot = draw_random(codes, min(len(codes), _PILOT_FACTOR * half), self.rng)
            first = pilot[:half]
            span, kept = self._span(take_rows(self.sample.rows, first))
            start = np.zeros((self.problem.n_classifiers, len(span)))
        else:
            pilot = np.searchsorted(self.sample.ids, self.warm.rows)
            if len(pilot) >= self.n_landmarks or self.warm.whole:
                return pilot, self.warm.beta
            first, given = pilot, take_rows(self.sample.rows, pilot)
            span, kept = self._span(given)
            start = span.nearest(self._landmarks(given), self.warm.beta)
            pilot = np.arange(len(codes))
        first = first[kept]
        part, taken = self._part(pilot), np.isin(pilot, first)
        newton = self._newton(span, self.sample.ids[first], part, np.flatnonzero(taken))
        point = self._minimise(newton, start, _PILOT_GAP)
        newton.preconditioner.release()
        self.interrupt.defer()
        losses = part.losses(point.gradient.decisions)
        more = draw_by_loss(losses, taken, self.n_landmarks - len(first), self.rng)
        return np.concatenate([first, pilot[more]]), point.b

    def _span(self, rows: Rows) -> tuple[Span, Int64Array]:
        """Span of landmarks, and the places of those that it depends on."""
        span = Span(self._landmarks(rows))
        independent = span.independent()
        if len(independent) < len(span):
            del span
            span = Span(self._landmarks(take_rows(rows, independent)))
        self.progress.n_active = self.progress.n_support = len(span)
        return span, independent

    def _landmarks(self, rows: Rows) -> Landmarks:
        return Landmarks(self.engine, rows, self.problem.bias)

    def _part(self, places: Int64Array | None = None) -> SpanProblem:
        """The problem on some rows of the sample, None for all of them."""
        if places is None:
            return self.problem.part(self.sample.rows, self.sample.ids)
        return self.problem.part(take_rows(self.sample.rows, places), self.sample.ids[places])

    def _newton(
        self, span: Span, ids: Int64Array, part: SpanProblem, in_part: Int64Array
    ) -> Newton:
        """Newton's method on a part, whose places `in_part` are landmarks; `ids` number all."""
        rows = part.source.read(0, part.n_rows)
        preconditioner = Preconditioner(span, rows, part, in_part, self.report)
        passes = Passes(part, span.landmarks, on_block=self.report)
        return Newton(span, ids, passes, preconditioner, None)

    def _over(self, newton: Newton, problem: SpanProblem, sample: Int64Array | None) -> Newton:
        """Newton's method on other rows, of which the sample has the numbers `sample`."""
        workers = self.workers if problem is self.problem else None
        # If the pool needs no step, too few products follow to be worth keeping its kernel values.
        kept = None if sample is None or not newton.stepped else self.kept
        passes = Passes(problem, newton.span.landmarks, workers, self.report, kept)
        return Newton(newton.span, newton.ids, passes, newton.preconditioner, sample)

    def _over_all_rows(self, newton: Newton) -> Newton:
        """Newton's method on all rows, from the beginning."""
        if newton.passes.problem.n_rows == self.source.n_rows:
            return replace(newton, stepped=False, exact_products=False)
        return self._over(newton, self.problem, self.sample.ids)

    def _minimise(
        self, newton: Newton, b: Float64Array, target: float, exact_below: float = 0.0
    ) -> Point:
        """Newton steps from weights `b`, whose points become those of the run."""
        before = self.model

        def keep(point: Point) -> None:
            classifies = newton.passes.problem.epsilon is None
            if classifies and not point.b.any(axis=1).all():
                return  # a classifier without weights is useless; of targets it is their mean
            self.model = _Model(newton, point)
            if exact_below > 0 and (point.exact or bool((point.gap < exact_below).all())):
                self.progress.phase = Phase.CERTIFY
            self.progress.objective = float(point.primal.sum())
            if not point.exact:  # `_passes` adds the rounding, and tells it as the certified gap
                self.progress.sampled_gap = float(point.gap.max())
            if self._has_all_landmarks:
                self.save()
            self.report()

        def tell(point: Point) -> None:
            self.progress.iteration += 1
            keep(point)
            most = self.options.max_iter
            if most is not None and self.progress.iteration >= most:
                raise Stop(Status.MAX_ITER)

        if before is not None and before.newton is newton and before.point.b is b:
            point = before.point
        else:
            whole = newton.passes.problem.n_rows == self.source.n_rows
            self.progress.gap_scope = "span" if whole else "sample"
            self.progress.sampled_gap = None
            point = newton.evaluate(b)
            keep(point)
        return newton.minimise(point, target, tell, exact_below)

    @property
    def _has_all_landmarks(self) -> bool:
        """Whether the weights are those of all landmarks, and not of the pilot."""
        if self.start is None or self.model is None:
            return False
        return self.model.newton.span is self.start[0].span

    @property
    def has_model(self) -> bool:
        """Whether there are weights."""
        return self.model is not None

    def update(self) -> SolverState:
        """Bring the counts up to date."""
        self.count()
        return self.progress

    def is_over(self) -> bool:
        """Whether time is over but for a certificate, which may exceed the limit a little."""
        if self._sweep_before is not None:
            return self.deadline.left() <= self._certificate_needs(self._sweep_before)
        if self.progress.phase is Phase.CERTIFY:
            return not self.deadline.allows_pass()
        seconds = self._pass_takes() if self.options.certify and self.deadline.limited else 0.0
        return self.deadline.left() <= self.deadline.kept_for_pass(seconds)

    def _certificate_needs(self, sweep_before: float) -> float:
        """Seconds that what is left of a certifying pass takes at least; 0 before it."""
        if self.progress.phase is not Phase.CERTIFY:
            return 0.0
        seconds = max(sweep_before, self.best.newton.passes.exact_seconds)
        return (1 - (self.progress.sweep_fraction or 0.0)) * seconds

    def _pass_takes(self) -> float:
        """Estimated seconds of a pass over all rows with float64 kernel values."""
        model = self.best
        seconds = model.newton.passes.gradient_seconds / model.n_rows
        return _EXACT_COST * seconds * self.source.n_rows

    @property
    def best(self) -> _Model:
        """The weights that the run would end with; InputError is raised where there are none."""
        if self.model is not None:
            return self.model
        if self.n_landmarks < self.source.n_rows:
            raise InputError(
                f"for every landmark the kernel-weighted sum of the labels is zero, so there is "
                f"nothing to learn with so few landmarks ({self.n_landmarks}); ask for more "
                f"landmarks, or for another seed"
            )
        raise InputError(
            "there is nothing to learn: rows that are equal for this kernel have labels that "
            "cancel each other"
        )

    def _passes(self) -> bool:
        """Whether the certified gap of the weights, for all rows, is within the tolerance."""
        primal, dual = certify_point(self.best.newton.span, self.best.point, self.problem)
        gap = relative_gap(primal, dual)
        self.progress.certified_gap, self.progress.gap_scope = float(gap.max()), "span"
        self.tell()
        return bool((gap <= relative_target(self.options.tol)).all())

    def _certify_stopped(self, status: Status) -> Status:
        """Status of a run that was stopped early, whose weights may pass the test all the same."""
        stays = self._sweep_before is not None  # the model before
        if stays or status not in (Status.MAX_ITER, Status.TIME_LIMIT):
            return status
        if self.best.point.exact:
            return Status.CONVERGED if self._passes() else status

        def passes() -> bool:
            newton = self._over_all_rows(self.best.newton)
            self.model = _Model(newton, newton.evaluate(self.best.point.b, exact=True))
            return self._passes()

        return self.certify_late(status, self._pass_takes(), passes)

    def weights_so_far(self) -> LandmarkSolution:
        """The weights of the last point."""
        return self._solution(Status.RUNNING)

    def _solution(self, status: Status) -> LandmarkSolution:
        """The result of a run that ended with some status."""
        newton, point = self.best.newton, self.best.point
        primal = dual = gap = None
        if self.best.n_rows == self.source.n_rows:
            primal = point.primal
            if point.exact:
                primal, dual = certify_point(newton.span, point, self.problem)
                gap = relative_gap(primal, dual)
        self.count()
        return LandmarkSolution(
            status=status,
            choice=f"{len(newton.ids)} landmarks, Newton steps over all rows",
            rows=newton.ids,
            landmarks=newton.span.landmarks.rows,
            beta=point.b,
            jitter=newton.span.jitter,
            primal=primal,
            dual=dual,
            certified_gap=gap,
            sampled_gap=point.gap,
            sweep_seconds=newton.passes.exact_seconds if gap is not None else None,
            signal=self.interrupt.noted if status is Status.INTERRUPTED else None,
            **vars(Work.of(self.progress, self.source.n_rows, len(newton.ids))),
        )
