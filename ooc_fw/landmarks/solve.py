"""A landmark model from a problem: sample, pilot, landmarks, Newton's method, certificate.

    draw a sample of the rows; solve a pilot on part of it with half of the landmarks
    choose the other half by the pilot's losses; solve on the sample, then on a larger one
    Newton steps over all rows with float32 kernel values, until the gap is small
    compute the gap with float64 kernel values; where it is too large, steps from that gradient

The last pass is the certificate: rounding that is left is added to the gap.

A checkpoint holds the course of the steps over all rows, down to single products with the Hessian.
A run that resumes from it repeats the work on the sample, which takes the same course to the last
bit, and one pass over all rows.
"""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial

import numpy as np

from ooc_fw.data.parallel import Workers, borrow_workers, shared_source
from ooc_fw.data.rows import CSRRows, Float64Array, Int64Array, Rows, take_rows
from ooc_fw.data.sources import ArraySource, CSRSource
from ooc_fw.kernels.arithmetic import choose_arithmetic
from ooc_fw.kernels.engine import Engine
from ooc_fw.landmarks.certificate import certify_point
from ooc_fw.landmarks.choice import draw_by_loss, draw_random
from ooc_fw.landmarks.exact_kernel import ExactKernelView
from ooc_fw.landmarks.newton import Course, Newton, Point, Preconditioner
from ooc_fw.landmarks.passes import Passes, SpanProblem, slacks
from ooc_fw.landmarks.sample import Sample
from ooc_fw.landmarks.solution import (
    LandmarkSolution,
    LandmarkStart,
    relative_gap,
    relative_target,
)
from ooc_fw.landmarks.span import Landmarks, Span
from ooc_fw.options import TrainOptions
from ooc_fw.problem import Problem
from ooc_fw.solver.checkpoint import (
    CheckpointWriter,
    State,
    check_same_run,
    load_checkpoint,
    run_identity,
)
from ooc_fw.solver.session import Session
from ooc_fw.solver.state import Phase, SolverState, Status, Stop
from ooc_fw.system.errors import InputError
from ooc_fw.system.files import Output, check_outputs
from ooc_fw.system.interrupt import DeferredInterrupt

logger = logging.getLogger(__name__)

_POOL_GAP = 0.5  # relative gap at which the pool is left
_PILOT_FACTOR = 10  # rows of the pilot for each of its landmarks
_PILOT_GAP, _SAMPLE_GAP = 0.05, 0.02  # relative gaps at which pilot and sample are left
# Relative gap down to which gradients come from float32 kernel values. Their rounding alone is a
# gap of 0.02 at 2,000 landmarks on covtype.
_FAST_GAP = 0.5
_LAST_GAP = 0.05  # the same where no gap is to be certified
_PROBE_ROWS = 1024  # that the arithmetic of products is chosen by
_EXACT_SHARE = 0.9  # the same with float64 kernel values; the bound on rounding takes the rest
_ROUNDS = 3  # of steps from float64 gradients, each to a smaller gap
_TRIAL_ROWS = 2048  # that are passed over to compare the speeds of float32 and float64
_SPARE = 1.2  # factor of the estimated time of the certificate
_CERTIFICATE_SHARE = 0.5  # share of the time limit above which a certificate is not worth its time
_GRACE = 0.1  # share of the limit by which a certificate that is under way may exceed it


def solve_landmarks(
    problem: Problem,
    n_landmarks: int,
    options: TrainOptions,
    session: Session,
    warm: LandmarkStart | None = None,
) -> LandmarkSolution:
    """Train classifiers in the span of landmarks: one of two classes, else one against the rest.

    Parameters
    ----------
    problem : Problem
        Rows, classes, kernel and penalties.
    n_landmarks : int
        Number of landmarks; fewer where rows depend on each other.
    options : TrainOptions
        `C`, `tol`, `max_time`, `max_iter` (Newton steps), `seed`, `threads`,
        `certify`.
    session : Session
        Callbacks, Dask, and the clock of the time limit.
    warm : LandmarkStart, optional
        Landmarks and weights to begin with. Where there are fewer than `n_landmarks`, the others
        are chosen by the losses that they leave.

    Raises
    ------
    OutOfTimeError
        When time is over before there is a model.
    InputError
        For rows that the kernel cannot be computed of, or that nothing can be learned from.
    """
    with LandmarkPath(problem, n_landmarks, options, session, warm) as path:
        return path.solve(options.C)


class LandmarkPath(ExitStack):
    """Landmark models of one kernel and rows for one C after another; a context manager.

    All of them have the landmarks that the first one chooses, and each begins with the weights of
    the one before. The parameters are those of `solve_landmarks`; for more than one C, rows have no
    penalties and there are no checkpoints.
    """

    def __init__(
        self,
        problem: Problem,
        n_landmarks: int,
        options: TrainOptions,
        session: Session,
        warm: LandmarkStart | None = None,
    ) -> None:
        super().__init__()
        self._begin = partial(_Run, problem, n_landmarks, session=session, warm=warm, stack=self)
        self._options = options
        self._run: _Run | None = None
        self.callback(self._forget)

    def _forget(self) -> None:
        """Free the run at once: it refers to itself through the passes that report to it."""
        if self._run is not None:
            vars(self._run).clear()
        del self._run, self._begin

    def solve(self, C: float) -> LandmarkSolution:
        """Classifiers for the next C; counts and times are their own."""
        if self._run is None:
            self._run = self._begin(replace(self._options, C=C))
        else:
            self._run.change_penalty(C)
        return self._run.solve()

    def exact_kernel_dual(self) -> Float64Array:
        """Lower bounds on the least P of the exact kernel, after `solve`; see `ExactKernelView`."""
        assert self._run is not None
        run = self._run
        view = ExactKernelView(run.problem, run._best().point.gradient.decisions)
        return view.dual(run.engine, exact=True)


@dataclass(frozen=True)
class _Start:
    """What a run begins with: Newton's method on the sample, with all landmarks, and weights."""

    newton: Newton
    places: Int64Array  # of the landmarks in the sample
    b: Float64Array


@dataclass(frozen=True)
class _Kept:
    """The weights that a run would end with, and how they were found."""

    newton: Newton
    places: Int64Array  # of the landmarks in the sample
    point: Point

    @property
    def problem(self) -> SpanProblem:
        """The rows that `point` is of."""
        return self.newton.passes.problem


class _Run:
    """One run: what is known so far, and what it tells while it goes on."""

    def __init__(
        self,
        problem: Problem,
        n_landmarks: int,
        options: TrainOptions,
        session: Session,
        warm: LandmarkStart | None,
        stack: ExitStack,
    ) -> None:
        source = problem.source
        self.options, self.session, self.source = options, session, source
        self.given, self.warm = problem, warm
        # What a checkpoint holds; before the steps over all rows there is nothing to hold.
        self.image: State = {"progress": asdict(SolverState())}
        self.writer = CheckpointWriter(None, {})
        self._begin_checkpoints(problem, n_landmarks)
        self.n_landmarks = min(n_landmarks, source.n_rows)
        self.start: _Start | None = None
        self._reset()
        self.rng = np.random.default_rng(options.seed)
        given = None if warm is None else warm.rows
        self.sample = Sample.draw(source, problem.codes, self.n_landmarks, self.rng, given)
        arithmetic = choose_arithmetic(problem.kernel, self.sample.rows[:_PROBE_ROWS])
        self.engine = stack.enter_context(Engine(problem.kernel, options.threads, arithmetic))
        self.workers: Workers | None = None
        if session.dask is not None:
            self.workers = stack.enter_context(borrow_workers(session.dask, options.threads))
            shared_source(source, self.workers)  # what cannot be read there is refused at once
        self.interrupt = session.interrupt or stack.enter_context(DeferredInterrupt())

    def _reset(self) -> None:
        """Begin to count and to measure time."""
        self.problem = SpanProblem.of(self.given, self.options.C)
        self.deadline, self.began = self.session.deadline(self.options), time.perf_counter()
        self.zero = self.source.rows_read, self.source.bytes_read
        self.state = SolverState(phase=Phase.TRAIN, gap_scope="sample")
        self.kept: _Kept | None = None
        self.course = Course()  # of the steps over all rows
        self.round = 0  # of steps to a certified gap
        self.exact_cost = 1.0  # time of a pass with float64 kernel values over one with float32
        self.unwanted = False  # whether a callback asked for the end

    def change_penalty(self, C: float) -> None:
        """Begin again with another C, where the run ended."""
        factor, before, start = C / self.options.C, self.kept, self.start
        self.options = replace(self.options, C=C)
        self.session = replace(self.session, started=time.perf_counter())
        self._reset()
        self.engine.evaluations = 0
        if start is None or before is None:
            return
        newton, part = start.newton, self._part(None)
        newton.preconditioner.change_penalties(part, factor)
        passes = Passes(part, newton.span.landmarks, on_block=self._report)
        b = before.point.b if before.newton.span is newton.span else start.b
        self.start = _Start(replace(newton, passes=passes, course=Course()), start.places, b)
        self.state.n_active = self.state.n_support = len(newton.span)

    def solve(self) -> LandmarkSolution:
        """Run to the end, whatever it is."""
        try:
            status = self._run()
        except Stop as stop:
            status = stop.status
            self.writer.write(self.image)
            if status is not Status.INTERRUPTED:
                status = self._certify_late(status)
        else:
            self.writer.write(self.image)
        return self._solution(status)

    def _run(self) -> Status:
        # 1. The landmarks, and weights for the sample.
        if self.start is None:
            self.start = self._begin()
        newton, places, b = self.start.newton, self.start.places, self.start.b
        target = relative_target(self.options.tol)
        whole = len(self.sample.rows) == self.source.n_rows
        if not whole:
            b = self._minimise(newton, places, b, _SAMPLE_GAP).b

        # 2. Weights for more rows.
        if len(self.sample.pool) > len(self.sample.rows):
            part = self._problem_of(self.sample.pool, self.sample.pool_ids)
            passes = Passes(part, newton.span.landmarks, on_block=self._report)
            newton = replace(newton, passes=passes, sample=self.sample.in_pool)
            b = self._minimise(newton, places, b, _POOL_GAP).b

        # 3. Weights for all rows, with a gradient from float64 kernel values in the end.
        newton = replace(self._over_all_rows(newton), course=Course(on_change=self._note))
        if "course" in self.image:
            newton, b = self._resumed(newton, places)
        self.course = newton.course
        if not self.options.certify:
            self._minimise(newton, places, b, max(_LAST_GAP, target))
            return Status.SAMPLED
        for number in range(self.round, _ROUNDS):
            self.round = number
            aim = _EXACT_SHARE * target / 4**number  # what remains is the bound on rounding
            b = self._minimise(newton, places, b, aim, _FAST_GAP).b
            if (self._certificate()[2] <= target).all():
                return Status.CONVERGED
        return Status.ROUNDING

    # -- checkpoints -----------------------------------------------------------------------------

    def _begin_checkpoints(self, problem: Problem, n_landmarks: int) -> None:
        """Say which run this is, and read the checkpoint of an earlier one, if they are wanted.

        InputError is raised for a checkpoint of another run.
        """
        session = self.session
        if session.checkpoint is None and session.resume is None:
            return
        if session.checkpoint is not None:
            check_outputs([Output("checkpoint", session.checkpoint.path)], [self.source.name])
        identity = run_identity(problem, self.options)
        identity["options"]["landmarks"] = n_landmarks  # whether asked for or chosen
        self.writer = CheckpointWriter(session.checkpoint, identity)
        if session.resume is not None:
            before, self.image = load_checkpoint(session.resume)
            check_same_run(session.resume, before, identity)

    def _note(self) -> None:
        """Take an image of the run, after a point or a product, and write it if it is time."""
        if self.session.checkpoint is None:
            return
        self._count()
        progress, course = asdict(self.state), self.course.state()
        self.image = {"progress": progress, "steps": {"round": self.round}, "course": course}
        if self.writer.due():
            self.writer.write(self.image)

    def _resumed(self, newton: Newton, places: Int64Array) -> tuple[Newton, Float64Array]:
        """Newton's method, and its weights, where the checkpoint was."""
        course = Course.from_state(self.image["course"], len(self.sample.rows))
        newton, progress = newton.resume(course), self.image["progress"]
        assert course.b is not None
        self.kept = _Kept(newton, places, newton.evaluate(course.b, exact=course.exact))
        # What it took to come here does not count: the run goes on as if it had never stopped.
        course.on_change = self._note
        self.round = self.image["steps"]["round"]
        self.state.iteration, self.state.gap_scope = progress["iteration"], "span"
        self.state.phase = Phase.CERTIFY if course.exact else Phase.TRAIN
        self.engine.evaluations = progress["kernel_evaluations"]
        self.began -= progress["elapsed_s"]
        rows, n_bytes = progress["rows_read"], progress["bytes_read"]
        self.zero = self.source.rows_read - rows, self.source.bytes_read - n_bytes
        return newton, course.b

    # -- landmarks -------------------------------------------------------------------------------

    def _begin(self) -> _Start:
        chosen, weights = self._choose_landmarks()
        span, places = self._span(chosen)
        b = np.zeros((len(weights), len(span)))
        if len(places) == len(chosen):
            b[:, : weights.shape[1]] = weights
        else:
            rows = take_rows(self.sample.rows, chosen[: weights.shape[1]])
            b = span.nearest(Landmarks(self.engine, rows), weights)
        return _Start(self._newton(span, self._part(None), places), places, b)

    def _choose_landmarks(self) -> tuple[Int64Array, Float64Array]:
        """Places of the landmarks in the sample, and weights of the pilot for the first of them."""
        ids, n_classifiers = self.sample.ids, self.problem.n_classifiers
        signs = np.zeros((len(ids), 1), dtype=np.int8)  # in regression all rows are of one class
        if self.problem.epsilon is None:
            signs = self.problem.targets[ids].astype(np.int8)
        half = max(1, self.n_landmarks // 2)
        if self.warm is None:
            pilot = draw_random(signs, min(len(signs), _PILOT_FACTOR * half), self.rng)
            span, first = self._span(pilot[:half])
            start = np.zeros((n_classifiers, len(span)))
        else:
            pilot = np.searchsorted(self.sample.ids, self.warm.rows)
            if len(pilot) >= self.n_landmarks:
                return pilot, self.warm.beta
            given = Landmarks(self.engine, take_rows(self.sample.rows, pilot))
            span, first = self._span(pilot)
            start = span.nearest(given, self.warm.beta)
            pilot = np.arange(len(signs))
        part = self._part(pilot)
        newton = self._newton(span, part, np.flatnonzero(np.isin(pilot, first)))
        point = self._minimise(newton, first, start, _PILOT_GAP)
        newton.preconditioner.release()
        self.interrupt.defer()
        values = point.gradient.decisions
        if part.epsilon is not None:
            values = values.astype(np.float64)
        slack, _ = slacks(part.targets, values, part.epsilon)
        losses = (part.penalties[:, None] * slack.astype(np.float64) ** 2).sum(axis=1)
        taken = np.isin(pilot, first)
        more = draw_by_loss(losses, taken, self.n_landmarks - len(first), self.rng)
        return np.concatenate([first, pilot[more]]), point.b

    def _span(self, places: Int64Array) -> tuple[Span, Int64Array]:
        """Span of the landmarks at `places`, and those of the places that it depends on."""
        span = Span(Landmarks(self.engine, take_rows(self.sample.rows, places)))
        independent = span.independent()
        if len(independent) < len(span):
            places = places[independent]
            del span
            span = Span(Landmarks(self.engine, take_rows(self.sample.rows, places)))
        self.state.n_active = self.state.n_support = len(span)
        return span, places

    # -- steps -----------------------------------------------------------------------------------

    def _part(self, places: Int64Array | None) -> SpanProblem:
        """The problem on some rows of the sample, None for all of them."""
        if places is None:
            return self._problem_of(self.sample.rows, self.sample.ids)
        return self._problem_of(take_rows(self.sample.rows, places), self.sample.ids[places])

    def _problem_of(self, rows: Rows, ids: Int64Array) -> SpanProblem:
        source = CSRSource(rows) if isinstance(rows, CSRRows) else ArraySource(rows)
        whole = self.problem
        return SpanProblem(source, whole.targets[ids], whole.penalties[ids], whole.epsilon)

    def _newton(self, span: Span, part: SpanProblem, places: Int64Array) -> Newton:
        """Newton's method on part of the sample, in which the landmarks are at `places`."""
        rows = part.source.read(0, part.n_rows)
        preconditioner = Preconditioner(span, rows, part, places, self._report)
        passes = Passes(part, span.landmarks, on_block=self._report)
        self._compare_speeds(span)
        return Newton(span, passes, preconditioner, None)

    def _over_all_rows(self, newton: Newton) -> Newton:
        """The same with passes over all rows."""
        if newton.passes.problem.n_rows == self.source.n_rows:
            return newton
        passes = Passes(self.problem, newton.span.landmarks, self.workers, self._report)
        return replace(newton, passes=passes, sample=self.sample.ids)

    def _compare_speeds(self, span: Span) -> None:
        """Measure what a pass with float64 kernel values costs, where time is limited."""
        if not (self.deadline.limited and self.options.certify):
            return
        part = self._part(np.arange(min(_TRIAL_ROWS, len(self.sample.rows))))
        passes, b = Passes(part, span.landmarks), np.zeros((part.n_classifiers, len(span)))
        seconds = []
        for exact in (False, True):
            passes.gradient(b, exact=exact)  # loads compiled code
            began = time.perf_counter()
            passes.gradient(b, exact=exact)
            seconds.append(time.perf_counter() - began)
        self.exact_cost = max(1.0, seconds[1] / seconds[0])

    def _minimise(
        self,
        newton: Newton,
        places: Int64Array,
        b: Float64Array,
        target: float,
        exact_below: float = 0.0,
    ) -> Point:
        """Newton steps from weights `b`, whose points become those of the run."""
        before = self.kept

        def keep(point: Point) -> None:
            classifies = newton.passes.problem.epsilon is None
            if classifies and not point.b.any(axis=1).all():
                return  # without weights it would tell no classes apart, as a mean does of targets
            self.kept = _Kept(newton, places, point)
            if exact_below > 0 and (point.exact or bool((point.gap < exact_below).all())):
                self.state.phase = Phase.CERTIFY
            whole = newton.passes.problem.n_rows == self.source.n_rows
            self.state.gap_scope = "span" if whole else "sample"
            self.state.objective = float(point.primal.sum())
            self.state.sampled_gap = float(point.gap.max())
            self._report(None)

        def tell(point: Point) -> None:
            self.state.iteration += 1
            keep(point)
            if self.options.max_iter is not None and self.state.iteration >= self.options.max_iter:
                raise Stop(Status.MAX_ITER)

        if before is not None and before.newton is newton and before.point.b is b:
            point = before.point
        else:
            point = newton.evaluate(b)
            keep(point)
        return newton.minimise(point, target, tell, exact_below)

    def _best(self) -> _Kept:
        if self.kept is None:
            raise InputError(self._nothing_to_learn())
        return self.kept

    def _nothing_to_learn(self) -> str:
        if self.n_landmarks < self.source.n_rows:
            return (
                f"there is nothing to learn with so few landmarks ({self.n_landmarks}): for each "
                f"of them the labels, times the kernel values of their rows with it, add up to 0; "
                f"ask for more landmarks, or for another seed"
            )
        return (
            "there is nothing to learn: rows that are equal for this kernel have labels that "
            "cancel each other"
        )

    # -- what a run tells ------------------------------------------------------------------------

    def _report(self, share: float | None = None) -> None:
        """Tell the callbacks; a signal, a False from one of them, or the clock raises Stop."""
        state = self.state
        state.sweep_fraction = share
        self._count()
        answers = [callback(state.copy()) for callback in self.session.callbacks]
        self.unwanted |= any(answer is False for answer in answers)
        if self.kept is None:
            self.deadline.check()
            return
        if self.unwanted or self.interrupt.noted is not None:
            raise Stop(Status.INTERRUPTED)
        if self.deadline.limited and self.deadline.left() <= self._reserve():
            raise Stop(Status.TIME_LIMIT)

    def _count(self) -> None:
        state = self.state
        state.rows_read = self.source.rows_read - self.zero[0]
        state.bytes_read = self.source.bytes_read - self.zero[1]
        state.kernel_evaluations = self.engine.evaluations
        state.elapsed_s = time.perf_counter() - self.began

    def _reserve(self) -> float:
        """Seconds before the time limit at which what is under way has to end."""
        limit = self.options.max_time
        if limit is None or not self.options.certify:
            return 0.0
        if self.state.phase is Phase.CERTIFY:
            return -_GRACE * limit
        seconds = self._certificate_takes()
        return seconds if seconds < _CERTIFICATE_SHARE * limit else 0.0

    def _certificate_takes(self) -> float:
        """Estimated seconds of a pass over all rows with float64 kernel values."""
        assert self.kept is not None
        seconds = self.kept.newton.passes.gradient_seconds / self.kept.problem.n_rows
        return _SPARE * self.exact_cost * seconds * self.source.n_rows

    # -- certificate and end ---------------------------------------------------------------------

    def _certificate(self) -> tuple[Float64Array, Float64Array, Float64Array]:
        """Bounds on P and D* of the weights kept, which are of all rows, and the gap of these."""
        kept = self._best()
        primal, dual = certify_point(kept.newton.span, kept.point, self.problem)
        return primal, dual, relative_gap(primal, dual)

    def _certify_late(self, status: Status) -> Status:
        """Certify weights that had to stop early, which may pass the test all the same."""
        kept, limit = self._best(), self.options.max_time or 0.0
        in_time = self._certificate_takes() <= self.deadline.left() + _GRACE * limit
        if self.options.certify and in_time and not kept.point.exact:
            self.state.phase = Phase.CERTIFY
            newton = self._over_all_rows(kept.newton)
            try:
                point = newton.evaluate(kept.point.b, exact=True)
            except Stop:
                return status
            kept = self.kept = _Kept(newton, kept.places, point)
        target = relative_target(self.options.tol)
        passed = kept.point.exact and bool((self._certificate()[2] <= target).all())
        return Status.CONVERGED if passed else status

    def _solution(self, status: Status) -> LandmarkSolution:
        kept = self._best()
        point, passes, n = kept.point, kept.newton.passes, len(kept.places)
        primal = dual = gap = None
        if kept.problem.n_rows == self.source.n_rows:
            primal = point.primal
            if point.exact:
                primal, dual, gap = self._certificate()
        evaluations = self.engine.evaluations
        return LandmarkSolution(
            status=status,
            choice=f"{n} landmarks, Newton steps over all rows",
            rows=self.sample.ids[kept.places],
            landmarks=kept.newton.span.landmarks.rows,
            beta=point.b,
            jitter=kept.newton.span.jitter,
            primal=primal,
            dual=dual,
            certified_gap=gap,
            sampled_gap=point.gap,
            iterations=self.state.iteration,
            kernel_evaluations=evaluations,
            passes=evaluations / (self.source.n_rows * n),
            rows_read=self.source.rows_read - self.zero[0],
            bytes_read=self.source.bytes_read - self.zero[1],
            seconds=time.perf_counter() - self.began,
            sweep_seconds=passes.exact_seconds if gap is not None else None,
            signal=self.interrupt.noted if status is Status.INTERRUPTED else None,
        )
