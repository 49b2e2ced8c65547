"""A landmark model from a problem: sample, pilot, landmarks, Newton's method, certificate.

    draw a sample of the rows; solve a pilot on part of it with half of the landmarks
    choose the other half by the pilot's losses; solve on the sample, then on a larger one
    take Newton steps over all rows with float32 kernel values, until the gap is small
    compute the gap with float64 kernel values; if it is too large, go on from that gradient

The last reading is the certificate: a bound on the rounding is added to the gap. A run that begins
with weights for all rows, from a checkpoint, needs no work on the sample.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import replace

import numpy as np

from ooc_fw.data.rows import Float64Array, Int64Array, Rows, take_rows
from ooc_fw.data.views import cached
from ooc_fw.kernels.arithmetic import Arithmetic, choose_arithmetic
from ooc_fw.kernels.engine import Engine
from ooc_fw.landmarks import LandmarkSolution, LandmarkStart, relative_gap
from ooc_fw.landmarks.certificate import certify_point, exact_dual
from ooc_fw.landmarks.columns import AnySpan, Columns, ColumnSpan
from ooc_fw.landmarks.newton import Diagonal, Newton, Point, Preconditioner
from ooc_fw.landmarks.readings import KeptValues, Past, Readings, SpanProblem
from ooc_fw.landmarks.span import Landmarks, Sample, Span, draw_by_loss, draw_random
from ooc_fw.problem import Problem, relative_target
from ooc_fw.solver.plan import Plan, Session, lend_workers
from ooc_fw.solver.state import Phase, SolverState, Status, Stop, Work
from ooc_fw.solver.surroundings import Surroundings
from ooc_fw.system.errors import InputError
from ooc_fw.system.memory import LARGEST_FACTOR, column_sample

logger = logging.getLogger(__name__)

_SAMPLE_STEPS = 5  # Newton steps of a linear run on its sample


def solve_landmarks(
    problem: Problem,
    plan: Plan,
    session: Session,
    warm: LandmarkStart | None = None,
    *,
    to_optimum: bool = False,
) -> LandmarkSolution:
    """Train a model in the span of landmarks: one classifier for two classes, else one for each.

    If landmarks depend on each other, there are fewer than planned. If the start `warm` has fewer,
    the others are chosen by its losses. If it has more, it is ignored. If all rows are landmarks,
    the gap `to_optimum` is the gap to the optimum of the exact kernel.

    OutOfTimeError is raised if the time is over before there is a model, and InputError if nothing
    can be learned from the rows.
    """
    if warm is not None and len(warm.rows) > plan.memory.landmarks:
        warm = None
    with ExitStack() as stack:
        run = _Run(problem, plan, session, warm, stack)
        try:
            return run.solve(to_optimum)
        finally:
            vars(run).clear()  # the run refers to itself through its readings, which report to it


class _Run(Surroundings):
    """One run: its landmarks, steps and certificate."""

    engine: Engine

    def __init__(
        self,
        problem: Problem,
        plan: Plan,
        session: Session,
        warm: LandmarkStart | None,
        stack: ExitStack,
    ) -> None:
        state = SolverState(phase=Phase.TRAIN, gap_scope="sample")
        super().__init__(session, plan.options, problem.source, state)
        self.codes = problem.row_classes
        self.problem = SpanProblem.of(problem, self.options.C)
        if plan.linear and session.dask is None:
            rows = cached(self.source, plan.memory.row_cache)
            self.problem = replace(self.problem, source=rows)
        self.warm = warm
        # An earlier model stays if the time is over before this one is certified. Without one, it
        # pays to exceed the limit a little.
        self.stays = warm is not None and warm.stays
        n_past = 0 if warm is None else warm.n_past
        self.gives_up = self.stays or not (plan.grows or n_past)
        self.n_landmarks = plan.memory.landmarks
        self.newton: Newton | None = None  # on the rows of the last point
        self.point: Point | None = None  # the weights with which the run would end
        self.chosen = False  # whether all landmarks are chosen, and not only those of the pilot
        self.pilot: Newton | None = None  # on the rows of the last point of the pilot
        if warm is not None and warm.work is not None:
            self.go_on_from(warm.work)
        given = None if warm is None else warm.rows
        self.linear = plan.linear
        self.scope = "columns" if plan.linear else "chunk" if n_past else "span"
        if plan.linear:
            row_bytes = self.source.decoded_bytes / self.source.n_rows
            n_sample = column_sample(self.source.n_rows, self.source.n_features, row_bytes)
            self.sample = Sample.of_size(self.source, self.codes, n_sample, self.rng)
            arithmetic = Arithmetic()
        else:
            self.sample = Sample.draw(self.source, self.codes, self.n_landmarks, self.rng, given)
            arithmetic = choose_arithmetic(problem.kernel, self.sample.rows[:1024])
        self.engine = stack.enter_context(Engine(problem.kernel, self.options.threads, arithmetic))
        self.workers = stack.enter_context(lend_workers(session, self.options.threads, self.source))
        self.kept = KeptValues(plan.memory.kernel_values, plan.memory.limit)

    def solve(self, to_optimum: bool) -> LandmarkSolution:
        """Run to the end, with any status."""
        with self.guard():
            status = self.status_of(self._run)
            if not status.reached and self.chosen and self.newton is not self.pilot:
                self.save(now=True)
            elif not status.reached and self.session.checkpoint is not None:
                words = "the run ended before all landmarks were chosen: it leaves no checkpoint"
                logger.warning(words)
            solution = self._solution(self._certify_stopped(status))
        return self._to_optimum(solution) if to_optimum else solution

    def _run(self) -> Status:
        # 1. Choose the landmarks, and find weights for the sample.
        newton, b = self._choose_start()
        self.chosen = True
        self.pilot = self.newton
        target = relative_target(self.options.tol)
        whole = self.warm is not None and self.warm.whole
        if len(self.sample.rows) < self.source.n_rows and not whole:
            # With a column for every few rows, the optimum of a sample is far from that of all.
            wide = isinstance(newton.preconditioner, Diagonal)
            steps = _SAMPLE_STEPS if wide else 100
            b = self._minimise(newton, self._begin(newton, b), target=0.02, steps=steps).b

        # 2. Find weights for more rows.
        if len(self.sample.pool) > len(self.sample.rows) and not whole:
            pool = self.problem.part(self.sample.pool, self.sample.pool_ids)
            newton = self._over(newton, pool, self.sample.in_pool)
            b = self._minimise(newton, self._begin(newton, b), target=0.5).b

        # 3. Find weights for all rows, with a gradient from float64 kernel values in the end.
        newton = self._over_all_rows(newton)
        point = self._begin(newton, b)
        if self.problem.past is not None:
            self._minimise(newton, point, target, exact_below=0.1)
            return Status.SAMPLED
        if not self.options.certify:
            self._minimise(newton, point, max(0.05, target))  # float32 values can reach 0.05
            return Status.SAMPLED
        for number in range(3):  # rounds, each to a smaller gap
            steps_target = 0.9 * target / 4**number  # the bound on rounding takes the rest
            # With 2,000 landmarks on covtype, float32 rounding alone makes a gap of 0.02.
            point = self._minimise(newton, point, steps_target, exact_below=0.5)
            if self._passes():
                return Status.CONVERGED
        return Status.ROUNDING

    def _choose_start(self) -> tuple[Newton, Float64Array]:
        """Newton's method on the sample with all landmarks, and weights to begin with."""
        if self.linear:
            return self._choose_zero()
        places, weights = self._choose_landmarks()
        pilot = take_rows(self.sample.rows, places[: weights.shape[1]])
        span, kept = self._span(places)
        b = np.zeros((len(weights), len(span)))
        if len(kept) == len(places):
            b[:, : weights.shape[1]] = weights
        else:
            b = span.nearest(self._landmarks(pilot), weights)
        if self.warm is not None and self.warm.n_past > 0:
            self.problem = replace(self.problem, past=self._past(span, b))
        part = self.problem.part(self.sample.rows, self.sample.ids)
        return self._newton(span, kept, part, kept), b

    def _past(self, span: Span, b: Float64Array) -> Past:
        """What makes `b` the best weights for the rows that stand for past ones."""
        assert self.warm is not None
        ids = np.arange(self.warm.n_past)
        part = self.problem.part(self.source.read(0, len(ids)), ids)
        found = Readings(part, span.landmarks, None, self.report).gradient(b, exact=True)
        _, square, _, _ = found.terms
        return Past(b - span.solve(found.u), 0.495 * (span.inverse_norm(found.u) + square))

    def _choose_zero(self) -> tuple[Newton, Float64Array]:
        """Newton's method on the sample with all columns, and the weights so far, or 0."""
        columns = Columns(self.engine, self.source.n_features)
        span = ColumnSpan(columns)
        none = np.empty(0, dtype=np.int64)
        b = np.zeros((self.problem.n_classifiers, len(span)))
        part = self.problem.part(self.sample.rows, self.sample.ids)
        newton = self._newton(span, none, part, none)
        return newton, b if self.warm is None else self.warm.beta

    def _choose_landmarks(self) -> tuple[Int64Array, Float64Array]:
        """Places of the landmarks in the sample, and weights of the pilot for the first of them."""
        codes = self.codes[self.sample.ids]
        if self.warm is None:
            half = max(1, self.n_landmarks // 2)
            # The pilot has ten rows for each of its landmarks.
            pilot = draw_random(codes, min(len(codes), 10 * half), self.rng)
            span, first = self._span(pilot[:half])
            start = np.zeros((self.problem.n_classifiers, len(span)))
        else:
            given = np.searchsorted(self.sample.ids, self.warm.rows)
            if len(given) >= self.n_landmarks or self.warm.whole:
                return given, self.warm.beta
            pilot = np.arange(len(codes))
            span, first = self._span(given)
            before = self._landmarks(take_rows(self.sample.rows, given))
            start = span.nearest(before, self.warm.beta)
        part = self.problem.part(take_rows(self.sample.rows, pilot), self.sample.ids[pilot])
        taken = np.isin(pilot, first)
        newton = self._newton(span, first, part, np.flatnonzero(taken))
        point = self._minimise(newton, self._begin(newton, start), target=0.05)
        newton.preconditioner.release()
        self.interrupt.defer()
        losses = part.losses(point.gradient.decisions)
        more = draw_by_loss(losses, taken, self.n_landmarks - len(first), self.rng)
        return np.concatenate([first, pilot[more]]), point.b

    def _span(self, places: Int64Array) -> tuple[Span, Int64Array]:
        """The span of some rows of the sample, and the places of its landmarks there."""
        span = Span(self._landmarks(take_rows(self.sample.rows, places)))
        independent = span.independent()
        if len(independent) < len(span):
            places = places[independent]
            del span
            span = Span(self._landmarks(take_rows(self.sample.rows, places)))
        self.progress.n_active = len(span)
        self.progress.n_support = len(span)
        return span, places

    def _landmarks(self, rows: Rows) -> Landmarks:
        return Landmarks(self.engine, rows, self.problem.bias)

    def _newton(
        self, span: AnySpan, places: Int64Array, part: SpanProblem, in_part: Int64Array
    ) -> Newton:
        """Newton's method on a part; landmarks have `places` in the sample, `in_part` in it."""
        preconditioner: Preconditioner | Diagonal
        if isinstance(span, ColumnSpan) and len(span) > LARGEST_FACTOR:
            preconditioner = Diagonal(span, part)
        else:
            preconditioner = Preconditioner(span, part, in_part, self.report)
        readings = Readings(part, span.landmarks, None, self.report, self.kept)
        return Newton(span, self.sample.ids[places], readings, preconditioner, None)

    def _over(self, newton: Newton, problem: SpanProblem, sample: Int64Array) -> Newton:
        """Newton's method on other rows, among which the sample has the numbers `sample`."""
        workers = self.workers if problem is self.problem else None
        # If the last rows needed no step, few products follow: kept kernel values would not pay.
        kept = self.kept if newton.stepped else None
        readings = Readings(problem, newton.span.landmarks, workers, self.report, kept)
        return Newton(newton.span, newton.ids, readings, newton.preconditioner, sample)

    def _over_all_rows(self, newton: Newton) -> Newton:
        """Newton's method on all rows."""
        if newton.readings.problem.n_rows == self.source.n_rows:
            return replace(newton, stepped=False, exact_products=False)
        return self._over(newton, self.problem, self.sample.ids)

    def _begin(self, newton: Newton, b: Float64Array) -> Point:
        """The point at weights `b`, with which Newton's method begins."""
        whole = newton.readings.problem.n_rows == self.source.n_rows
        self.progress.gap_scope = self.scope if whole else "sample"
        self.progress.sampled_gap = None
        point = newton.evaluate(b)
        self._keep(newton, point, 0.0)
        return point

    def _minimise(
        self,
        newton: Newton,
        point: Point,
        target: float,
        exact_below: float = 0.0,
        steps: int = 100,
    ) -> Point:
        """Take Newton steps; the run keeps each new point."""

        def tell(point: Point) -> None:
            self.progress.iteration += 1
            self._keep(newton, point, exact_below)
            most = self.options.max_iter
            if most is not None and self.progress.iteration >= most:
                raise Stop(Status.MAX_ITER)

        return newton.minimise(point, target, tell, exact_below, steps)

    def _keep(self, newton: Newton, point: Point, exact_below: float) -> None:
        """Keep a point as the end of the run, if it is a model, and report it."""
        classifies = self.problem.epsilon is None
        if classifies and not point.b.any(axis=1).all():
            return  # without weights a classifier is useless, and a regression is the mean
        self.newton = newton
        self.point = point
        if exact_below > 0 and (point.exact or bool((point.gap < exact_below).all())):
            self.progress.phase = Phase.CERTIFY
        self.progress.objective = float(point.primal.sum())
        if not point.exact:  # `_passes` adds the rounding to an exact gap, and reports it
            self.progress.sampled_gap = float(point.gap.max())
        if self.chosen:
            self.save()
        self.report()

    @property
    def has_model(self) -> bool:
        """Whether the run has weights."""
        return self.point is not None

    @property
    def best(self) -> tuple[Newton, Point]:
        """The weights with which the run would end; InputError is raised if there are none."""
        if self.newton is not None and self.point is not None:
            return self.newton, self.point
        if self.linear:
            raise InputError(
                "there is nothing to learn: the sum of the rows, by label, is zero in each column, "
                "as it is if equal rows have labels that cancel each other; take another kernel"
            )
        raise InputError(
            f"there is nothing to learn with these landmarks ({self.n_landmarks}): for each the "
            f"kernel-weighted sum of the labels is zero, as it is if equal rows have labels that "
            f"cancel each other; ask for more landmarks, or for another seed"
        )

    def update(self) -> SolverState:
        """Bring the counts up to date."""
        self.count()
        return self.progress

    def is_over(self) -> bool:
        """Whether time is over; a first model leaves a fifth of it to the certificate."""
        if self.stays or not (self.options.certify and self.deadline.limited):
            return self.deadline.left() <= 0
        if self.progress.phase is Phase.CERTIFY:
            return not self.deadline.allows_pass()
        return self.deadline.left() <= 0.2 * (self.options.max_time or 0.0)

    def _passes(self) -> bool:
        """Whether the certified gap of the weights, for all rows, is within the tolerance."""
        newton, point = self.best
        gap = relative_gap(*certify_point(newton.span, point, self.problem))
        self.progress.certified_gap = float(gap.max())
        self.progress.gap_scope = self.scope
        self.tell()
        return bool((gap <= relative_target(self.options.tol)).all())

    def _certify_stopped(self, status: Status) -> Status:
        """Certify the weights of a run that was stopped early; they may pass the test."""
        if self.stays or self.problem.past or status not in (Status.MAX_ITER, Status.TIME_LIMIT):
            return status
        newton, point = self.best
        if point.exact:
            return Status.CONVERGED if self._passes() else status

        def reaches() -> bool:
            over = self._over_all_rows(newton)
            self.point = over.evaluate(point.b, exact=True)  # a Stop leaves those of the sample
            self.newton = over
            return self._passes()

        return self.certify_late(status, reaches)

    def weights_so_far(self) -> LandmarkSolution:
        """A solution with the weights of the last point."""
        return self._solution(Status.RUNNING)

    def _solution(self, status: Status) -> LandmarkSolution:
        """The result of the run, which ends with a status."""
        newton, point = self.best
        primal = dual = gap = None
        if newton.readings.problem.n_rows == self.source.n_rows and self.problem.past is None:
            primal = point.primal
            if point.exact:
                primal, dual = certify_point(newton.span, point, self.problem)
                gap = relative_gap(primal, dual)
        self.count()
        return LandmarkSolution(
            status=status,
            rows=newton.ids,
            landmarks=newton.span.landmarks.rows,
            beta=point.b,
            jitter=newton.span.jitter,
            primal=primal,
            dual=dual,
            certified_gap=gap,
            sampled_gap=point.gap,
            **vars(Work.of(self.progress, self.source.n_rows, len(newton.span))),
        )

    def _to_optimum(self, solution: LandmarkSolution) -> LandmarkSolution:
        """Give a certified solution its gap to the optimum of the exact kernel."""
        _, point = self.best
        if solution.primal is None or solution.dual is None:
            return solution
        dual = exact_dual(self.problem, point.gradient.decisions, self.engine)
        gap = relative_gap(solution.primal, dual)
        status = solution.status
        if status is Status.CONVERGED and (gap > relative_target(self.options.tol)).any():
            status = Status.ROUNDING
        return replace(solution, dual=dual, certified_gap=gap, status=status)
