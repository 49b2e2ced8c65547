"""Choosing kernel, C and gamma by validation.

    for each stage, of more rows to train on than the one before
        for each fold: one part of the rows to train on, another to validate with
            for each kernel and gamma: kernels in turn, from the middle gamma outwards; later
            stages begin with the best
                for each C, the smallest first
                    train, from the weights for the C before; validate
                    after two hopeless points in a row: leave out the larger C
            leave out the points that are worse than the best beyond chance
        leave out all but the best points, overall and of each kernel; add neighbours of the first
    where time buys no exact model of all rows
        compare an exact model of a part of the rows with landmarks of all, for the same time
    train the best point, with a certificate

A point is a kernel, its gamma and a C; its error is 1 minus the metric. A grid that is given is
tried in one stage, on all rows. A search that chooses for itself has a budget of time. It counts
what it plans in seconds of a nominal machine, so that it takes the same course on every machine and
on any number of threads; the clock only ends it. Models with landmarks share those of the smallest
C of each gamma and fold.
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_fw.data.encoded import hold_out
from ooc_fw.data.labels import encode_labels
from ooc_fw.data.offsets import without_offsets
from ooc_fw.data.rows import AnyArray, Int64Array
from ooc_fw.data.scaling import Scaling
from ooc_fw.data.sources import RowSource
from ooc_fw.data.views import (
    CachedSource,
    ScaledSource,
    SubsetSource,
    draw_parts,
    ranges_of,
)
from ooc_fw.landmarks import sample_size
from ooc_fw.model.importance import learn_scales
from ooc_fw.model.metrics import METRICS, Estimate, auc_loss, balanced_error, squared_loss
from ooc_fw.model.partition import Partition, partition_classes
from ooc_fw.model.record import Model, borrow_source
from ooc_fw.options import START_ROWS, TrainOptions
from ooc_fw.problem import row_penalties
from ooc_fw.solver.kernel_rows import value_type
from ooc_fw.solver.plan import Plan, Session, plan_exact
from ooc_fw.solver.state import Callback, SolverState, Status
from ooc_fw.system.errors import InputError, OutOfTimeError
from ooc_fw.system.interrupt import interruption, signal_of
from ooc_fw.system.memory import OverLimitError
from ooc_fw.training.classification import exact_fit, landmark_fit, most_landmarks, plan_span
from ooc_fw.training.fit import Fit, fit, make_plan, open_landmark_path, task_of
from ooc_fw.training.pairs import PairTrainer
from ooc_fw.training.points import Point, TuneOptions, TuneResult
from ooc_fw.training.regression import EXACT_ROWS

SEARCH_SECONDS = 600.0
"""Time limit of a search that chooses for itself, refit included, unless another one is given."""

_SEARCH_SHARE = 0.5  # of the time limit, after which the search ends and the refit begins
_FIRST_SHARE = 0.4  # of the time of the search, that its first stage may take
_REFIT_SHARE = 0.8  # of the time left, that a refit may be expected to take

_FIRST_ROWS, _LEAST_ROWS, _MORE_ROWS = 4_000, 500, 4  # of the first stage; times more of the next
_KEPT = 6, 3, 2  # points that stages after the first go on with, the last number for all others
_NEAR = 2  # of these, the first of which have neighbours that are tried, too
_FEW_ROWS, _FOLDS = 20_000, 4  # rows up to which a search that chooses for itself has folds
_MOST_VALIDATED = 20_000  # rows of the validation part of such a search

# Kernel values a second of the nominal machine, for rows of no values, and values of a row for
# which one takes as much time again: measured on one thread.
_SPEEDS, _OTHER_SPEED = {"laplacian": (2.2e9, 19.0)}, (1.2e9, 45.0)
_PROCESSORS = 2.0  # that it has for the algebra of landmarks
_COMPARED = 0.15  # share of the time of the last model, for each of both kinds, to choose one by
_ROUNDS, _ROUNDS_SHARE = 3, 0.4  # in which scales of columns are learned; of the search's time
_POINT_SECONDS = 0.05  # of a point, whatever it is
_MOST_EXACT = 20_000  # support vectors of models that are compared, beyond which they have
_STAGE_LANDMARKS = 2_000  # landmarks, unless exact models were found to be better

_NOVEL = 300.0  # times the values of C of other tasks: C of novelty, times the number of rows
_UNBALANCED = 0.5  # share of the largest class below which another one is small

_HOPELESS = 3.0
"""Standard errors of the difference from the best point; more of them have odds of 1 in 700."""

_IN_A_ROW = 2
"""Hopeless points in a row after which the larger C of a gamma are left out."""


def tune(
    data: Any,
    labels: Any = None,
    *,
    options: TrainOptions | None = None,
    callbacks: Sequence[Callback] = (),
    on_point: Callable[[Point], None] | None = None,
    on_stage: Callable[[str], None] | None = None,
    **search: Any,
) -> TuneResult:
    """Find the kernel, C and gamma of least validation error, and train on all rows with them.

    The error is 1 - `metric`, the share of wrong rows by default. A point is hopeless if
    its errors exceed those of the best so far by more than 3 standard errors of the difference and
    are no fewer than at the C before.

    Parameters
    ----------
    data, labels
        As for `ooc_fw.open_dataset`; nothing is loaded whole.
    options : TrainOptions, optional
        Options of each training. `C` is not used; `tol`, `stopping`, `certify` are for the refit,
        and `max_time` is that of the search and the refit together: 10 minutes by default, none
        for a grid that is given. `landmarks` and `exact` say what all models are; without them
        the search chooses.
    callbacks : sequence of Callback
        They are told of every iteration of every training.
    on_point : callable, optional
        It is called with every point that was tried, once for each fold.
    on_stage : callable, optional
        It is called with a sentence on each stage before it begins.
    **search
        Fields of `TuneOptions`, `Cs`, `gammas`, ..., and of `ooc_fw.options.SearchOptions`.

    Raises
    ------
    InputError
        For data or a grid that cannot be used, or a training part without one of the classes.
    OutOfTimeError
        When time is over before the first point was tried.
    KeyboardInterrupt
        Before the first point was tried. Later, the result is what is known by then: the model is
        that of the best point on the rows of its last stage.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(200, 2))
    >>> result = tune(X, X[:, 0] > X[:, 1], Cs=[1, 10, 100], gammas=["auto"])
    >>> len(result.points), result.model.status
    (3, 'converged')
    """
    options = TrainOptions() if options is None else options
    wanted = TuneOptions(**search)
    with borrow_source(data, labels) as opened:
        source = without_offsets(opened, *wanted.kernel_names)
        return _Search(source, options, wanted, callbacks, on_point, on_stage).result()


@dataclass(frozen=True)
class _Part:
    """What a fold trains on, and the rows that it holds out."""

    train: Any  # the problem of the rows to train on
    rows: SubsetSource  # these rows
    held_out: RowSource
    truth: AnyArray  # of the rows held out


class _Search:
    """The points of a search, and the order in which they are tried."""

    def __init__(
        self,
        source: RowSource,
        options: TrainOptions,
        wanted: TuneOptions,
        callbacks: Sequence[Callback],
        on_point: Callable[[Point], None] | None,
        on_stage: Callable[[str], None] | None,
    ) -> None:
        self.started = time.perf_counter()
        self.staged = any(wanted.free)
        self.share = _SEARCH_SHARE  # of the time limit, for stages
        if wanted.learn_scales:
            self.share *= 1 - _ROUNDS_SHARE
        self.limit = options.max_time or (SEARCH_SECONDS if self.staged else None)
        options = replace(options, max_time=None)
        if not self.staged and wanted.task == "classification":
            options = replace(options, exact=options.landmarks is None)
        self.wanted, self.given, self.n_rows = wanted, options, source.n_rows
        self.metric, self.on_point, self.on_stage = wanted.chosen_metric, on_point, on_stage
        self.callbacks = callbacks
        self.task = task_of(wanted.task)
        self.task.check(options)
        answers, threads = self.task.read(source, options)
        kernels = wanted.kernels(source, threads)
        fields = {name: getattr(wanted, name) for name in self.task.fields}
        fields = {name: value for name, value in fields.items() if value is not None}
        self.problem = self.task.problem(source=source, kernel=kernels[0], **answers, **fields)
        self.truth = self._read_truth()
        Cs: Sequence[float] = wanted.grid.Cs
        if wanted.task == "novelty" and wanted.free[0]:
            Cs = [_NOVEL * C / source.n_rows for C in Cs]
        self.points = [Point(C, kernel.gamma, kernel=kernel.name) for kernel in kernels for C in Cs]
        self.folds = wanted.grid.folds
        if self.folds is None and self.staged and self.n_rows <= _FEW_ROWS:
            self.folds = _FOLDS
        self.held_out = self._held_out()
        tol = wanted.path_tol
        tol = max(tol, options.tol) if options.stopping == "relative" else tol
        changes: dict[str, Any] = {"tol": tol, "stopping": "relative", "certify": False}
        self.options = replace(options, **changes, max_iter=None)
        self.room = self._room()
        self.weights = self._may_weigh()
        self.stage, self.stage_rows = 0, 0
        self.spent, self.began = 0.0, time.perf_counter()  # seconds of the nominal machine; since
        self.late = False  # whether the clock ended the search
        self.leader: Point | None = None  # best of the points that were tried in this fold
        self.known: tuple[Point, Fit, SubsetSource] | None = None  # the last such, and its model
        # Whether the last model has landmarks, and is not exact; None where that is not decided.
        self.spans: bool | None = None
        free = self.staged and not options.exact and options.landmarks is None
        self.chooses = free and wanted.task == "classification"
        self.chooses_size = free and wanted.task == "regression" and self.n_rows > EXACT_ROWS
        self.scalings: dict[int, Scaling] = {}  # by the rounds in which they were learned
        self.best: Point | None = None  # of the points that the last stage compared
        self.ended = "all points were tried"

    def result(self) -> TuneResult:
        """Try the points, and train the best one on all rows."""
        signal, fitted = None, None
        try:
            self._search()
            self._choose_kind()
            if self.wanted.learn_scales:
                self.share = _SEARCH_SHARE
                self._learn_scales()
                self._settle()
        except KeyboardInterrupt as interrupt:
            if not self.late:
                signal = signal_of(interrupt)
            self.ended = "time for the search was over" if self.late else "it was interrupted"
            self._settle()
            if self.best is None and self.late:
                limit = f"the time limit of {self.limit:g} s was over before a point was tried"
                raise OutOfTimeError(f"{limit}; allow more time") from None
            if self.best is None:
                raise interruption(signal) from None  # nothing is known yet
        best, seconds = self.best, time.perf_counter() - self.started
        assert best is not None
        interrupted = signal is not None
        if self.wanted.refit and not interrupted:
            try:
                fitted = self._refit(best)
                signal = fitted.signal
            except KeyboardInterrupt as interrupt:
                interrupted, signal = True, signal_of(interrupt)
        if fitted is None and interrupted and self.wanted.refit:
            fitted = self._unfinished(best)
        return TuneResult(
            points=self.points,
            best=best,
            fitted=fitted,
            kernel=best.kernel,
            task=self.wanted.task,
            metric=self.metric,
            folds=self.folds,
            n_rows=self.n_rows,
            n_validation=int(np.diff(self.held_out[0]).sum()),
            seed=self.given.seed,
            ended=self.ended,
            interrupted=interrupted,
            signal=signal,
            kernel_evaluations=sum(point.kernel_evaluations for point in self.points),
            seconds=seconds,
        )

    # -- what is tried, and on which rows ----------------------------------------------------------

    def _search(self) -> None:
        """Go through the stages; around the best of the last one, as long as it is improved."""
        n_train = self.n_rows - int(np.diff(self.held_out[0]).sum())
        n_rows, before = self._first_rows(n_train), None
        more = self._run_stage(sorted(self.points, key=self._turn), n_rows) and self.staged
        while more and n_rows < n_train:
            n_rows = n_train if n_rows * _MORE_ROWS * 1.5 > n_train else n_rows * _MORE_ROWS
            kept = self._best_points()
            if self._landmarks_of(kept, n_rows) is not None:
                self._choose_kind()
            more = self._run_stage(self._affordable(kept, n_rows), n_rows)
        while more and self.best is not before:
            before = self.best
            more = self._run_stage(self._affordable([], n_rows), n_rows)

    def _turn(self, point: Point) -> tuple[int, int]:
        """Steps from the middle gamma, which is gamma auto if none is given; larger ones first."""
        gammas = sorted({other.gamma for other in self.points if other.kernel == point.kernel})
        steps = gammas.index(point.gamma) - len(gammas) // 2
        return abs(steps), -steps

    def _run_stage(self, todo: Sequence[Point], n_rows: int) -> bool:
        """Try points on so many rows; whether there are any."""
        if not todo:
            self.ended = f"more points on {n_rows} rows would take too long"
            return False
        self.stage += n_rows > self.stage_rows
        self.stage_rows = n_rows
        error = METRICS[self.metric]
        within = f", within {self.limit:g} s in all" if self.limit and self.stage == 1 else ""
        points = f"{len(todo)} points trained on {n_rows} rows"
        self._say(f"stage {self.stage}: {error} of {points}{within}")
        self.spent += self._cost(todo, n_rows)
        self._try_stage(todo, n_rows)
        self._settle()
        return True

    def _settle(self) -> None:
        """Find the best of the points that this stage has compared."""
        here = [point for point in self.points if point.stage == self.stage]
        tried = [point for point in here if point.status == "tried"] or [
            point for point in here if point.n_validated
        ]
        # Where the stage was not ended, the best one of the stage before may not have had its turn.
        if tried and (self.best is None or self.best in tried):
            self.best = min(tried, key=Point.order)

    def _best_points(self) -> list[Point]:
        """Those that go on to the next stage, the best first."""
        tried = [p for p in self.points if p.stage == self.stage and p.status == "tried"]
        tried.sort(key=Point.order)
        n_kept = _KEPT[min(self.stage, len(_KEPT)) - 1]
        kept = tried[:n_kept]
        for name in self.wanted.kernel_names:
            first = next((point for point in tried if point.kernel == name), None)
            if first and first not in kept and first.deviations(tried[0]) <= _HOPELESS:
                kept.append(first)  # more rows may yet be in favour of this kernel
        for point in tried:
            if point not in kept:
                point.abandon(f"{n_kept} are better")
        return kept

    def _affordable(self, kept: Sequence[Point], n_rows: int) -> list[Point]:
        """Points to try next, as far as there is time: those kept, and new ones near the best."""
        assert self.best is not None
        new: list[Point] = []
        for point in kept[: _NEAR + 1 - self.stage] or [self.best]:
            for near in point.neighbours(self.wanted.free, weights=self.weights):
                if not any(near.is_near(other) for other in self.points + new):
                    new.append(near)
        todo = [*kept, *new]
        while todo and self._cost(todo, n_rows) > self._budget():
            point = todo.pop()
            if point.stage:
                point.abandon(f"no time for it on {n_rows} rows")
        if len(todo) == 1 and kept:  # nothing to compare it with
            todo = []
        self.points += [point for point in todo if not point.stage]
        return todo

    def _budget(self) -> float:
        """Seconds of the nominal machine that are left to the search."""
        assert self.limit is not None
        return self.share * self.limit - self.spent

    def _first_rows(self, n_train: int) -> int:
        """Rows to train on in the first stage."""
        if not self.staged:
            return n_train
        n_rows = min(n_train, _FIRST_ROWS)
        most = _FIRST_SHARE * self._budget()
        while n_rows > _LEAST_ROWS and self._cost(self.points, n_rows) > most:
            n_rows //= 2
        return n_train if n_rows * 1.5 > n_train else n_rows

    def _cost(self, points: Sequence[Point], n_rows: int) -> float:
        """Seconds of the nominal machine that a stage may take."""
        n_validated = int(np.diff(self.held_out[0]).sum())
        total = 0.0
        for point in points:
            vectors, speed = point.expected_support(n_rows), self._speed(point)
            landmarks = self._landmarks_of([point], n_rows)
            if landmarks is None:
                seconds = exact_seconds(n_rows, vectors, speed)
            else:
                vectors = landmarks
                seconds = n_rows / self.n_rows * landmark_seconds(self.problem, vectors, speed)
            total += _POINT_SECONDS + seconds + n_validated * vectors / speed
        return total * (self.folds or 1)

    def _speed(self, point: Point) -> float:
        """Kernel values a second of the nominal machine."""
        values: float = self.problem.source.decoded_bytes / (4 * self.n_rows)  # of a row
        speed, row_values = _SPEEDS.get(point.kernel, _OTHER_SPEED)
        return speed / (1 + values / row_values)

    def _held_out(self) -> list[Int64Array]:
        """Ranges of the validation rows by fold, each of which has the same share of each class."""
        source, folds, share = self.problem.source, self.folds, self.wanted.validation_share
        n, what = self.n_rows, f"a share of {share}"
        sizes = [round(share * n)]
        if self.staged:
            sizes = [min(sizes[0], _MOST_VALIDATED)]
        if folds is not None:
            sizes, what = [n // folds + (k < n % folds) for k in range(folds)], f"{folds} folds"
        if not 0 < min(sizes) <= max(sizes) < n:
            raise InputError(
                f"a validation part must have some rows of {source.name} and leave others to train "
                f"on, and there are {n}, which is too few for {what}"
            )
        rng = np.random.default_rng(self.given.seed)
        return draw_parts(n, sizes, source.shuffled is True, rng, self._codes())

    def _codes(self) -> Int64Array | None:
        """Class of each row, of which every part has its share."""
        return None if self.wanted.task == "regression" else self.truth

    def _read_truth(self) -> AnyArray:
        """What rows are validated by: class, target, or whether a row is ordinary."""
        problem, source, task = self.problem, self.problem.source, self.wanted.task
        if task == "regression":
            return np.asarray(problem.targets)
        if task == "classification":
            classes, codes = problem.classes, problem.codes
        else:
            classes, codes = encode_labels(source)
        if len(classes) > 2 and (self.metric == "auc" or task == "novelty"):
            way = "use balanced_accuracy or accuracy"
            if task == "novelty":
                way = "label rows as ordinary or novel"
            raise InputError(
                f"the metric {self.metric} is for two classes, and {source.name} has "
                f"{len(classes)}; {way}"
            )
        if task == "novelty":
            codes = codes == np.bincount(codes).argmax()
        return np.asarray(codes, dtype=np.int64)

    def _parts(self, n_rows: int) -> Iterator[_Part]:
        """What each fold trains on, `n_rows` rows of it at most, and holds out."""
        source, codes = self.problem.source, self._codes()
        rng = np.random.default_rng(self.given.seed)
        for ranges in self.held_out:
            rest, held = hold_out(source, ranges)
            rows = rest.rows
            if n_rows < 0.9 * len(rows):
                known = None if codes is None else codes[rows]
                (chosen,) = draw_parts(len(rows), [n_rows], source.shuffled is True, rng, known)
                rows = rest.rows_at(np.concatenate([np.arange(*pair) for pair in chosen]))
            part = SubsetSource(rest.source, ranges_of(rows))
            truth = self.truth[held.rows]
            self._check(rows, truth)
            train = self.problem.subset(part, rows)
            yield _Part(train, part, CachedSource(held, self.room), truth)

    def _check(self, rows: Int64Array, truth: AnyArray) -> None:
        """Raise InputError for a part that lacks a class which it must have."""
        name, task = self.problem.source.name, self.wanted.task
        if task == "classification":
            counts = np.bincount(self.truth[rows], minlength=self.problem.n_classes)
            if (counts == 0).any():
                raise InputError(
                    f"the part of {name} that is left for training has no rows of one class; use "
                    f"more rows, another seed, or a smaller validation part"
                )
        if self.metric == "auc" and len(np.unique(truth)) < 2:
            raise InputError(
                f"a validation part of {name} has rows of one class only, which have no AUC; use "
                f"more rows, another seed, or a larger validation part"
            )

    def _may_weigh(self) -> bool:
        """Whether classes are of such different sizes that their weights may matter."""
        if self.wanted.task != "classification" or self.metric == "accuracy" or not self.staged:
            return False
        counts = np.bincount(self.truth)
        return bool(counts.min() < _UNBALANCED * counts.max())

    def _room(self) -> int:
        """Bytes of validation rows that may be kept."""
        exact = self.wanted.task == "classification" and self.given.landmarks is None
        try:
            return make_plan(self.problem, replace(self.given, exact=exact)).memory.row_cache
        except OverLimitError:
            if not self.staged:
                raise
            return 0

    # -- trying them -------------------------------------------------------------------------------

    def _try_stage(self, todo: Sequence[Point], n_rows: int) -> None:
        """Try points fold by fold, and leave out those that are worse than the best by far."""
        fold, n_folds = 0, len(self.held_out)
        for point in todo:
            point.begin(self.stage)
        try:
            for fold, part in enumerate(self._parts(n_rows), 1):
                self.leader = None
                self._try_fold(part, [point for point in todo if point.status != "abandoned"])
                if fold < n_folds:
                    self._leave_hopeless(todo, fold)
        except KeyboardInterrupt:
            # What was planned for points that had no turn is not spent.
            self.spent -= self._cost([point for point in todo if not point.wrong], n_rows)
            for point in todo:
                if len(point.wrong) < fold and point.status not in ("abandoned", "waiting"):
                    point.note = "" if point.status == "begun" else "before its turn"
                    point.status = "interrupted"
            raise

    def _leave_hopeless(self, todo: Sequence[Point], fold: int) -> None:
        """Leave out the points that are worse than the best beyond chance."""
        best = self.leader
        assert best is not None
        for point in todo:
            if point.status == "tried" and point.deviations(best) > _HOPELESS:
                point.abandon(f"worse than {best} beyond chance after {fold} folds")

    def _try_fold(self, part: _Part, todo: Sequence[Point]) -> None:
        """Try points on one part, those of a kernel and gamma in increasing order of C."""
        paths: dict[tuple[str, float, str | None], list[Point]] = {}
        for point in todo:
            paths.setdefault((point.kernel, point.gamma, point.class_weight), []).append(point)
        with ExitStack() as opened:
            partition = None
            for (kernel, gamma, _), same in paths.items():
                points = sorted(same, key=lambda point: point.C)
                problem = replace(part.train, kernel=self.wanted.make(kernel, gamma))
                options = self._kind(points, part.rows.n_rows)
                if partition is None and self._is_exact(options):
                    partition = opened.enter_context(partition_classes(problem))
                with closing(self._models(problem, partition, options, points)) as models:
                    self._follow(points, models, part)

    def _kind(self, points: Sequence[Point], n_rows: int) -> TrainOptions:
        """Options of the models of points, on so many rows: exact ones, or with landmarks."""
        if not self.staged or self.wanted.task == "novelty":
            return self.options
        landmarks = self._landmarks_of(points, n_rows)
        return replace(self.options, landmarks=landmarks, exact=landmarks is None)

    def _landmarks_of(self, points: Sequence[Point], n_rows: int) -> int | None:
        """Landmarks of models of points on so many rows; None for exact models."""
        given = self.given.landmarks or points[0].landmarks
        if given is not None or self.given.exact:
            return given or None
        many = max(point.expected_support(n_rows) for point in points) > _MOST_EXACT
        many = many and self.spans is not False
        if self.wanted.task == "regression":
            many = n_rows > EXACT_ROWS
        return _STAGE_LANDMARKS if many else None

    def _is_exact(self, options: TrainOptions) -> bool:
        """Whether these are options of exact models of pairs of classes."""
        return self.wanted.task == "classification" and options.landmarks is None

    def _models(
        self,
        problem: Any,
        partition: Partition | None,
        options: TrainOptions,
        points: Sequence[Point],
    ) -> Generator[Fit, None, None]:
        """A model of each point; where rows have no weights, from the weights of the one before."""
        callbacks, Cs = [self._in_time, *self.callbacks], [point.C for point in points]
        if self.wanted.task != "classification" or points[0].class_weight:
            # Of one class, all rows share the weight: the same model of fewer rows has a larger C.
            n_rows = problem.source.n_rows
            more = self.n_rows / n_rows if self.wanted.task == "novelty" else 1.0
            for point in points:
                weighted = self._weighted(problem, point)
                yield fit(weighted, replace(options, C=more * point.C), Session(callbacks))
        elif options.landmarks is not None:
            session = Session(callbacks)
            plan = make_plan(problem, options, session)
            with open_landmark_path(problem, plan, session) as path:
                for C in Cs:
                    yield landmark_fit(problem, plan, path.solve(C), C)
        else:
            assert partition is not None
            plan = plan_exact(problem, options)
            rows = replace(partition, whole=problem)  # which all kernels share
            with PairTrainer(rows, plan, callbacks) as trainer:
                for C in Cs:
                    yield exact_fit(problem, plan, trainer.fit(C), C)

    def _weighted(self, problem: Any, point: Point) -> Any:
        """The problem with the weights of its classes that a point has."""
        if point.class_weight is None:
            return problem
        given = point.C, problem.classes, problem.codes, point.class_weight
        return replace(problem, penalties=row_penalties(*given))

    def _in_time(self, state: SolverState) -> bool:
        """Callback that stops the search when its time is over."""
        share = self.share if self.wanted.refit else 1.0
        self.late = self.late or self._left(share) <= 0
        return not self.late

    def _left(self, share: float = 1.0) -> float:
        """Seconds until a share of the time limit is over."""
        limit = np.inf if self.limit is None else share * self.limit
        return float(limit - (time.perf_counter() - self.started))

    def _follow(
        self, points: Sequence[Point], models: Generator[Fit, None, None], part: _Part
    ) -> None:
        """Try the points of one gamma in increasing C, with models of the rows of a part."""
        n_hopeless, before = 0, float("inf")
        for k, point in enumerate(points):
            point.status = "begun"
            started, fitted = time.perf_counter(), next(models)
            self._judge(point, fitted, part.held_out, part.truth, started)
            if self.leader is None or point.order() < self.leader.order():
                self.leader, self.known = point, (point, fitted, part.rows)
            error = point.order()[0]
            no_better, before = error >= before, error
            hopeless = no_better and point.deviations(self.leader) > _HOPELESS
            n_hopeless = n_hopeless + 1 if hopeless else 0
            if n_hopeless == _IN_A_ROW and len(point.wrong) == 1:  # in the first fold
                why = f"{_IN_A_ROW} smaller C in a row are worse than {self.leader} beyond chance"
                for later in points[k + 1 :]:
                    later.abandon(why)
                return

    def _judge(
        self, point: Point, fitted: Fit, held_out: RowSource, truth: AnyArray, started: float
    ) -> None:
        """Validate a model of a point, the training of which began at `started`."""
        status, threads = Status(fitted.model.status), self.options.threads
        if status.was_asked_for:
            raise interruption(fitted.signal)
        point.validated(*score_point(fitted.model, held_out, truth, threads, self.metric))
        point.n_rows, point.n_support = (
            fitted.problem.source.n_rows,
            len(fitted.model.support_vectors),
        )
        if fitted.landmarks is None:
            point.add_size(point.n_rows, point.n_support)
        point.kernel_evaluations += len(truth) * point.n_support
        point.kernel_evaluations += sum(each.kernel_evaluations for each in fitted.solutions)
        point.seconds += time.perf_counter() - started
        if not status.reached:
            point.note = f"training ended with {status}"
        if self.on_point is not None:
            self.on_point(point)

    def _learn_scales(self) -> None:
        """Try the best point on columns that its models have scaled, in some rounds."""
        assert self.best is not None
        blank = Point(self.best.C, self.best.gamma, kernel=self.best.kernel)
        blank = replace(blank, class_weight=self.best.class_weight, sizes=dict(self.best.sizes))
        rounds = [replace(blank, learned=k + 1, wrong=[], estimates=[]) for k in range(_ROUNDS)]
        n_rows = self.best.n_rows
        if self.limit is not None and self._cost([blank, *rounds], n_rows) > self._budget():
            self._say("there is no time to learn scales of the columns")
            return
        self._say(f"scales of the columns are learned on {n_rows} rows")
        for point in rounds:
            point.stage = self.stage
        self.points += rounds
        for fold, part in enumerate(self._parts(n_rows)):
            problem = replace(part.train, kernel=self.wanted.make(blank.kernel, blank.gamma))
            problem = self._weighted(problem, blank)
            options = replace(self._kind([blank], part.rows.n_rows), C=blank.C)
            session = Session([self._in_time, *self.callbacks])
            fitted = fit(problem, options, session)
            for point in rounds:
                started = time.perf_counter()
                view = learn_scales(part.rows, fitted.model, threads=options.threads)
                fitted = fit(replace(problem, source=view), options, session)
                held_out = ScaledSource(part.held_out, view.scaling)
                self._judge(point, fitted, held_out, part.truth, started)
                if fold == 0:
                    self.scalings[point.learned] = view.scaling

    # -- the last model ----------------------------------------------------------------------------

    def _choose_kind(self) -> None:
        """Whether the last model is exact, of a part of the rows, or has landmarks, of all of them.

        Where it can be exact on all rows, it is. Else models of both kinds are validated, each of
        which takes the same share of the time that the last one would take.
        """
        if not self.chooses or self.spans is not None:
            return
        best, known, folds = self.best, self.known, self.folds or 1
        assert best is not None
        assert self.limit is not None
        seconds = self._refit_seconds((1 - _SEARCH_SHARE) * self.limit)
        n_part, speed = self._exact_rows(best, seconds), self._speed(best)
        share = min(_COMPARED, self._budget() / (2 * folds * seconds))
        part_seconds = share * exact_seconds(n_part, best.expected_support(n_part), speed)
        n_part, self.spans = self._exact_rows(best, part_seconds), n_part < self.n_rows
        if not self.spans or n_part < _LEAST_ROWS:
            return
        n_train = self.n_rows - int(np.diff(self.held_out[0]).sum())
        point = Point(best.C, best.gamma, kernel=best.kernel, class_weight=best.class_weight)
        exact = replace(point, landmarks=0, sizes={})
        spans = replace(point, landmarks=self._affordable_landmarks(best, share * seconds))
        self.points += [exact, spans]
        what = f"an exact model of {n_part} rows, or {spans.landmarks} landmarks of {n_train} rows"
        self._say(f"time buys no exact model of all rows: {what}, is validated")
        for one, n_rows, kind in ((spans, n_train, "landmarks"), (exact, n_part, "exact")):
            self.spent += folds * share * seconds
            self._try_stage([one], n_rows)
            one.status, one.note = "compared", kind
        best.sizes |= exact.sizes
        self.spans = spans.order() < exact.order()
        if self.spans or self.known is None:
            self.known = known
        else:
            self.known = best, *self.known[1:]

    def _refit_seconds(self, nominal: float) -> float:
        """Seconds of the nominal machine for the last model, where so many are left in theory.

        A machine that was slower so far by the clock is taken to go on at its own pace.
        """
        pace = self.spent / (time.perf_counter() - self.began)
        return _REFIT_SHARE * (nominal if pace >= 1 else min(nominal, pace * self._left()))

    def _exact_rows(self, point: Point, seconds: float) -> int:
        """Rows of which time and memory afford an exact model."""
        try:
            plan = plan_exact(self.problem, replace(self.given, C=point.C))
        except OverLimitError:
            return 0
        memory, speed = plan.memory, self._speed(point)

        def too_many(n_rows: int) -> bool:
            vectors = point.expected_support(n_rows)
            value_bytes = value_type(vectors, point.C, 1.0, plan.quantised).itemsize
            fits = value_bytes * vectors**2 <= memory.parts["kernel_rows"]
            fits = fits and vectors <= memory.max_vertices
            return not fits or exact_seconds(n_rows, vectors, speed) > seconds

        return bisect.bisect_left(range(1, self.n_rows + 1), True, key=too_many)

    def _affordable_landmarks(self, point: Point, seconds: float) -> int:
        """Landmarks that time and memory afford a model of all rows."""
        options = replace(self.given, C=point.C, max_time=self.limit)
        pace = self._speed(point), _PROCESSORS
        return affordable_landmarks(self.problem, options, Session(), seconds, pace)

    def _refit(self, best: Point) -> Fit:
        """Train the best point on all rows, or as many as the budget affords."""
        options, session = replace(self.given, C=best.C), Session(self.callbacks)
        if self.limit is not None:
            options = replace(options, max_time=max(1.0, self._left()))
        problem, part, plan = self._plan_refit(best, options, session)
        n_rows = problem.source.n_rows
        which = f"all {n_rows}" if part is None else f"{n_rows} of {self.n_rows}"
        self._say(f"the best, {best}, on {which} rows: {plan.kind}")
        if part is not None:
            return fit(problem, options, session, None, plan).renumbered(part.rows, self.n_rows)
        warm = None
        if plan.landmarks is None and self.known is not None and self.known[0] is best:
            _, fitted, known = self.known
            solutions = [pair.solution for pair in fitted.pairs]
            warm = [(known.rows_at(each.rows), each.alpha) for each in solutions]
        return fit(problem, options, session, warm or None, plan)

    def _unfinished(self, best: Point) -> Fit | None:
        """The model of the best point on a part of the rows, where the search still has it."""
        if self.known is None or self.known[0] is not best:
            return None
        _, fitted, part = self.known
        model = replace(fitted.model, status=str(Status.INTERRUPTED))
        return replace(fitted, model=model).renumbered(part.rows, self.n_rows)

    def _problem_of(self, point: Point, part: SubsetSource | None = None) -> Any:
        """The problem of a point, on a part of the rows or all of them."""
        problem: Any = self.problem
        if part is not None:
            problem = problem.subset(part, part.rows)
        problem = replace(problem, kernel=self.wanted.make(point.kernel, point.gamma))
        problem = self._weighted(problem, point)
        if point.learned:
            view = ScaledSource(problem.source, self.scalings[point.learned])
            problem = replace(problem, source=view)
        return problem

    def _plan_refit(
        self, best: Point, options: TrainOptions, session: Session
    ) -> tuple[Any, SubsetSource | None, Plan]:
        """Problem, part of the rows and plan of the last model.

        It is exact on all rows where there is time for that, or on as many random rows as time and
        memory afford, or it has as many landmarks.
        """
        if not self.chooses and not self.chooses_size:
            problem = self._problem_of(best)
            return problem, None, make_plan(problem, options, session)
        assert self.limit is not None
        seconds, part = self._refit_seconds(self.limit - self.spent), None
        why = f"as many as {self.limit:g} s afford"
        n_exact = 0 if self.chooses_size else self._exact_rows(best, seconds)
        if n_exact < self.n_rows and (self.spans is not False or n_exact < _LEAST_ROWS):
            problem = self._problem_of(best)
            n_landmarks = self._affordable_landmarks(best, seconds)
            return problem, None, plan_span(problem, options, session, n_landmarks, f": {why}")
        if n_exact == self.n_rows:
            why = "there is time for it"
        else:
            source, rng = self.problem.source, np.random.default_rng(options.seed)
            in_order = source.shuffled is True
            (ranges,) = draw_parts(self.n_rows, [n_exact], in_order, rng, self._codes())
            part = SubsetSource(source, ranges)
        problem = self._problem_of(best, part)
        return problem, part, plan_exact(problem, options, session, kind=f"exact: {why}")

    def _say(self, sentence: str) -> None:
        if self.on_stage is not None:
            self.on_stage(sentence)


def score_point(
    model: Model, part: RowSource, truth: AnyArray, threads: int, metric: str
) -> tuple[npt.NDArray[np.bool_], Estimate | None]:
    """Which rows of a validation part a model gets wrong, and 1 - metric; None of accuracy.

    Of regression no row is wrong.
    """
    labels_only = metric not in ("auc", "r2")
    values = model.decision_function(part, threads=threads, labels_only=labels_only)
    if metric == "r2":
        return np.zeros(len(truth), dtype=np.bool_), squared_loss(truth, values)
    wrong = np.asarray(model.class_places(values) != truth)
    if metric == "accuracy":
        return wrong, None
    return wrong, auc_loss(values, truth == 1) if metric == "auc" else balanced_error(truth, wrong)


def affordable_landmarks(
    problem: Any, options: TrainOptions, session: Session, seconds: float, pace: tuple[float, float]
) -> int:
    """Largest number of landmarks for so many seconds; `pace` is kernel values a second, CPUs."""
    most = most_landmarks(problem, options, session, grows=options.max_time is not None)

    def late(n_landmarks: int) -> bool:
        return landmark_seconds(problem, n_landmarks, *pace) > seconds

    fewest = min(START_ROWS, most)
    return fewest + bisect.bisect_left(range(fewest + 1, most + 1), True, key=late)


def landmark_seconds(problem: Any, n_landmarks: int, speed: float, threads: float = 2) -> float:
    """About the time of a run with landmarks, at so many kernel values a second."""
    n_sample = sample_size(problem.source.n_rows, n_landmarks)
    rows = 15 * problem.source.n_rows + 40 * n_sample
    products = (n_sample + n_landmarks) * n_landmarks**2  # of the matrices between the landmarks
    algebra: float = 4e-11 * problem.n_classifiers * products / threads
    return float(rows * n_landmarks / speed + algebra)


def exact_seconds(n_rows: int, support: int, speed: float) -> float:
    """Time of an exact run: its kernel values, and its steps on the support vectors."""
    return 2.5 * n_rows * support / speed + 10.0 * (support / 20_000) ** 2
