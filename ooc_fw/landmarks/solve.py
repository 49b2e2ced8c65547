"""A landmark model from a problem: sample, pilot, landmarks, Newton's method, certificate.

    draw a sample of the rows; solve a pilot on part of it with half of the landmarks
    choose the other half by the pilot's losses; solve on the sample
    Newton steps over all rows with float32 kernel values, until the gap is small
    compute the gap with float64 kernel values; where it is too large, steps from that gradient

The last pass is the certificate: rounding that is left is added to the gap.
"""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np

from ooc_fw.data.parallel import Workers, borrow_workers
from ooc_fw.data.rows import CSRRows, Float64Array, Int64Array, Rows, take_rows
from ooc_fw.data.sources import ArraySource, CSRSource
from ooc_fw.kernels.arithmetic import choose_arithmetic
from ooc_fw.kernels.engine import Engine
from ooc_fw.landmarks.certificate import certify_point
from ooc_fw.landmarks.choice import draw_by_loss, draw_random
from ooc_fw.landmarks.newton import Newton, Point, Preconditioner
from ooc_fw.landmarks.passes import Passes, SpanProblem
from ooc_fw.landmarks.span import Landmarks, Span
from ooc_fw.options import TrainOptions
from ooc_fw.problem import Problem
from ooc_fw.solver.session import Session
from ooc_fw.solver.setup import make_sampler
from ooc_fw.solver.state import Phase, SolverState, Status, Stop
from ooc_fw.system.interrupt import DeferredInterrupt

logger = logging.getLogger(__name__)

_SAMPLE_FACTOR = 20  # rows of the sample for each landmark
_PILOT_FACTOR = 10  # rows of the pilot for each of its landmarks
_PILOT_GAP, _SAMPLE_GAP = 0.05, 0.02  # relative gaps at which pilot and sample are left
# Relative gap down to which gradients come from float32 kernel values. Their rounding alone is a
# gap of 0.02 at 2,000 landmarks on covtype, and a float64 gradient costs a fifth of a step.
_FAST_GAP = 0.05
_PROBE_ROWS = 1024  # that the arithmetic of products is chosen by
_EXACT_SHARE = 0.9  # the same with float64 kernel values; the bound on rounding takes the rest
_ROUNDS = 3  # of steps from float64 gradients, each to a smaller gap
_EXACT_COST = 4.0  # time of a pass in float64 over that of one in float32, at most


@dataclass(frozen=True)
class LandmarkSolution:
    """Weights of k classifiers on shared landmarks, and what is known of them."""

    status: Status
    choice: str  # one line: what was done and why
    rows: Int64Array  # (N,): row numbers of the landmarks
    landmarks: Rows  # (N, n_features)
    beta: Float64Array  # (k, N)
    jitter: float
    primal: Float64Array | None  # (k,), over all rows; None where no pass over them ended
    dual: Float64Array | None  # (k,)
    certified_gap: Float64Array | None  # (k,): (P - D*) / P at most, from float64 kernel values
    sampled_gap: Float64Array | None  # (k,): the same from float32, or of the sample alone
    iterations: int
    kernel_evaluations: int
    passes: float
    rows_read: int
    bytes_read: int
    seconds: float
    sweep_seconds: float | None
    signal: int | None


def relative_target(tol: float) -> float:
    """Gap (P - D*) / P that corresponds to a relative gap `tol` of an exact model.

    Such a model violates margins by at most `tol`; its weights divided by 1 - tol have an objective
    within 1 - (1 - tol)^2 of the optimum.
    """
    return 1 - (1 - min(tol, 1.0)) ** 2


def solve_landmarks(
    problem: Problem, n_landmarks: int, options: TrainOptions, session: Session
) -> LandmarkSolution:
    """Train classifiers in the span of landmarks: one of two classes, else one against the rest.

    Parameters
    ----------
    problem : Problem
        Rows, classes, kernel and penalties.
    n_landmarks : int
        Number of landmarks; fewer where rows depend on each other.
    options : TrainOptions
        `C`, `tol`, `max_time`, `max_iter` (Newton steps over all rows), `seed`, `threads`,
        `certify`.
    session : Session
        Callbacks, Dask, and the clock of the time limit.

    Raises
    ------
    OutOfTimeError
        When time is over before there is a model.
    """
    with ExitStack() as stack:
        return _Run(problem, n_landmarks, options, session, stack).solve()


class _Run:
    """One run: what is known so far, and what it tells while it goes on."""

    def __init__(
        self,
        problem: Problem,
        n_landmarks: int,
        options: TrainOptions,
        session: Session,
        stack: ExitStack,
    ) -> None:
        source, codes = problem.source, problem.codes
        self.options, self.session, self.source = options, session, source
        self.deadline, self.began = session.deadline(options), time.perf_counter()
        self.rng = np.random.default_rng(options.seed)
        self.n_landmarks = min(n_landmarks, source.n_rows)
        self.problem = SpanProblem.of(problem, options.C)
        sampler = make_sampler(source, codes)
        self.sample_ids = sampler.sample(_SAMPLE_FACTOR * self.n_landmarks, self.rng)
        self.sample = source.take(self.sample_ids)
        arithmetic = choose_arithmetic(problem.kernel, self.sample[:_PROBE_ROWS])
        self.engine = stack.enter_context(Engine(problem.kernel, options.threads, arithmetic))
        self.workers: Workers | None = None
        if session.dask is not None:
            self.workers = stack.enter_context(borrow_workers(session.dask, options.threads))
        self.interrupt = session.interrupt or stack.enter_context(DeferredInterrupt())
        self.state = SolverState()
        # The best weights so far, with their landmarks: places in the sample, and span.
        self.places: Int64Array = np.empty(0, dtype=np.int64)
        self.span: Span | None = None
        self.point: Point | None = None
        self.n_rows = 0  # that `point` is of
        self.exact = False  # whether `point` is from float64 kernel values
        self.newton: Newton | None = None  # what `point` was found by

    def solve(self) -> LandmarkSolution:
        """Run to the end, whatever it is."""
        try:
            status = self._run()
        except Stop as stop:
            status = stop.status
            if status is not Status.INTERRUPTED:
                status = self._certify_late(status)
        return self._solution(status)

    def _run(self) -> Status:
        # 1. The landmarks, and weights for the sample.
        places = self._choose_landmarks()
        self.state.phase = Phase.TRAIN
        span, b = self._span_of(places)
        sample = self._part(np.arange(len(self.sample)))
        preconditioner = Preconditioner(span, self.sample, sample, places)
        whole, target = sample.n_rows == self.source.n_rows, relative_target(self.options.tol)
        aim = max(_FAST_GAP, target)
        newton = Newton(span, self._passes(sample, span), preconditioner, None)
        self._minimise(newton, b, aim if whole else _SAMPLE_GAP)

        # 2. Weights for all rows, by passes with float32 kernel values.
        if not whole:
            newton = replace(
                newton, passes=self._passes(self.problem, span), sample=self.sample_ids
            )
            self._minimise(newton, self._b(), aim)
        if not self.options.certify:
            return Status.SAMPLED

        # 3. The gap from float64 kernel values; steps from their gradient while it is too large.
        self.state.phase = Phase.CERTIFY
        aim = _EXACT_SHARE * target
        for _ in range(_ROUNDS):
            self._minimise(newton, self._b(), aim, exact=True)
            if (self._certificate()[2] <= target).all():
                return Status.CONVERGED
            aim /= 4  # what remains is the bound on rounding
        return Status.ROUNDING

    # -- landmarks -------------------------------------------------------------------------------

    def _choose_landmarks(self) -> Int64Array:
        """Places of the landmarks in the sample; leaves the solution of the pilot."""
        signs = self.problem.signs[self.sample_ids]
        half = max(2, self.n_landmarks // 2)
        pilot = draw_random(signs, min(len(signs), _PILOT_FACTOR * half), self.rng)
        rows, part = take_rows(self.sample, pilot), self._part(pilot)
        self.places = pilot[:half]
        span = self._new_span()
        mine = np.flatnonzero(np.isin(pilot, self.places))
        preconditioner = Preconditioner(span, rows, part, mine)
        start = np.zeros((part.n_classifiers, len(span)))
        newton = Newton(span, self._passes(part, span), preconditioner, None)
        self._minimise(newton, start, _PILOT_GAP)
        self.interrupt.defer()
        assert self.point is not None
        slack = np.maximum(0.0, 1.0 - part.signs * self.point.gradient.decisions)
        losses = (part.penalties[:, None] * slack.astype(np.float64) ** 2).sum(axis=1)
        taken = np.isin(pilot, self.places)
        more = draw_by_loss(losses, taken, self.n_landmarks - len(self.places), self.rng)
        return np.concatenate([self.places, pilot[more]])

    def _new_span(self) -> Span:
        """Span of the landmarks at `places`, without those that depend on others."""
        span = Span(Landmarks(self.engine, take_rows(self.sample, self.places)))
        independent = span.independent()
        if len(independent) < len(span):
            self.places = self.places[independent]
            span = Span(Landmarks(self.engine, take_rows(self.sample, self.places)))
        return span

    def _span_of(self, places: Int64Array) -> tuple[Span, Float64Array]:
        """Span of all landmarks, and the weights of the pilot in it; sets `places`."""
        assert self.point is not None
        before, b, self.places = self.places, self.point.b, places
        span = self._new_span()
        start = np.zeros((len(b), len(span)))
        kept = np.isin(before, self.places)
        start[:, : np.count_nonzero(kept)] = b[:, kept]
        return span, start

    # -- steps -----------------------------------------------------------------------------------

    def _part(self, places: Int64Array) -> SpanProblem:
        """The problem on some rows of the sample."""
        rows, ids = take_rows(self.sample, places), self.sample_ids[places]
        source = CSRSource(rows) if isinstance(rows, CSRRows) else ArraySource(rows)
        return SpanProblem(source, self.problem.signs[ids], self.problem.penalties[ids])

    def _passes(self, problem: SpanProblem, span: Span) -> Passes:
        workers = self.workers if problem is self.problem else None
        return Passes(problem, span.landmarks, workers, self._on_block)

    def _minimise(
        self, newton: Newton, b: Float64Array, target: float, *, exact: bool = False
    ) -> None:
        """Newton steps from weights `b`, whose points become those of the run."""

        def tell(point: Point) -> None:
            self.newton = newton
            self.span, self.point, self.exact = newton.span, point, exact
            self.n_rows = newton.passes.problem.n_rows
            self.state.iteration += 1
            self.state.objective = float(point.primal.sum())
            self.state.sampled_gap = float(point.gap.max())
            if self.state.iteration == self.options.max_iter:
                raise Stop(Status.MAX_ITER)
            self._report(None)

        point = self.point
        if point is None or not exact or not self.exact:  # else it is of these rows already
            point = newton.evaluate(b, exact=exact)
            tell(point)
        newton.minimise(point, target, tell, exact=exact)

    def _b(self) -> Float64Array:
        assert self.point is not None
        return self.point.b

    # -- what a run tells ------------------------------------------------------------------------

    def _on_block(self, share: float) -> None:
        self._report(share)

    def _report(self, share: float | None) -> None:
        """Tell the callbacks; a signal, a False from one of them, or the clock raises Stop."""
        if self.interrupt.noted is not None:
            raise Stop(Status.INTERRUPTED)
        reserve = 0.0
        if self.state.phase is not Phase.CERTIFY and self.options.certify:
            reserve = self._exact_seconds()
        if self.deadline.limited and self.deadline.left() <= reserve:
            if self.point is None:
                self.deadline.check()
            raise Stop(Status.TIME_LIMIT)
        state = self.state
        state.sweep_fraction = share
        state.n_active = state.n_support = len(self.places)
        state.rows_read, state.bytes_read = self.source.rows_read, self.source.bytes_read
        state.kernel_evaluations = self.engine.evaluations
        state.elapsed_s = time.perf_counter() - self.began
        if any([callback(state.copy()) is False for callback in self.session.callbacks]):
            raise Stop(Status.INTERRUPTED)

    def _exact_seconds(self) -> float:
        """Time of a pass over all rows with float64 kernel values; 0 while it is not known."""
        if self.newton is None or self.newton.passes.problem is not self.problem:
            return 0.0
        return _EXACT_COST * self.newton.passes.gradient_seconds

    # -- certificate and end ---------------------------------------------------------------------

    def _certificate(self) -> tuple[Float64Array, Float64Array, Float64Array]:
        """Bounds on P and D* of the point, which is exact, and the gap between them."""
        assert self.span is not None
        assert self.point is not None
        primal, dual = certify_point(self.span, self.point, self.problem.penalties)
        return primal, dual, (primal - dual) / primal

    def _certify_late(self, status: Status) -> Status:
        """Certify weights that had to stop early, which may pass the test all the same."""
        covers_all = self.n_rows == self.source.n_rows
        in_time = self.deadline.left() > self._exact_seconds()
        if self.options.certify and covers_all and in_time and not self.exact:
            self.state.phase = Phase.CERTIFY
            try:
                assert self.newton is not None
                self.point = self.newton.evaluate(self._b(), exact=True)
                self.exact = True
            except Stop:
                return status
        target = relative_target(self.options.tol)
        passed = self.exact and bool((self._certificate()[2] <= target).all())
        return Status.CONVERGED if passed else status

    def _solution(self, status: Status) -> LandmarkSolution:
        assert self.span is not None
        assert self.point is not None
        covers_all = self.n_rows == self.source.n_rows
        primal = dual = gap = None
        if covers_all:
            primal, dual = self.point.primal, self.point.dual
        if covers_all and self.exact:
            primal, dual, gap = self._certificate()
        seconds = time.perf_counter() - self.began
        evaluations, n = self.engine.evaluations, len(self.places)
        return LandmarkSolution(
            status=status,
            choice=f"{n} landmarks, Newton steps over all rows",
            rows=self.sample_ids[self.places],
            landmarks=self.span.landmarks.rows,
            beta=self.point.b,
            jitter=self.span.jitter,
            primal=primal,
            dual=dual,
            certified_gap=gap,
            sampled_gap=self.point.gap,
            iterations=self.state.iteration,
            kernel_evaluations=evaluations,
            passes=evaluations / (self.source.n_rows * n),
            rows_read=self.source.rows_read,
            bytes_read=self.source.bytes_read,
            seconds=seconds,
            sweep_seconds=None,
            signal=self.interrupt.noted if status is Status.INTERRUPTED else None,
        )
