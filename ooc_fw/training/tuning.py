"""Choosing C and gamma by validation.

    for each fold: one part of the rows to train on, the other to validate with
        for each gamma
            for each C, the smallest first
                train, from the weights for the C before; validate
                after two hopeless points in a row: leave out the larger C
        leave out the points that are worse than the best beyond chance
    train the best point on all rows, from the weights it had, with a certificate

Models with landmarks, where these are asked for, share the landmarks of the smallest C of each
gamma and fold; the refit has its own.

A point is a pair of C and gamma. Its error is 1 minus the metric: the share of the validation rows
that are wrong, or one of those of `ooc_fw.model.metrics`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ooc_fw.data.rows import Int64Array
from ooc_fw.data.sources import RowSource
from ooc_fw.data.statistics import sigma2, variance
from ooc_fw.data.views import CachedSource, SubsetSource, complement, draw_parts
from ooc_fw.kernels.functions import Kernel, make_kernel, resolve_gamma
from ooc_fw.model.metrics import METRICS, Estimate, auc_loss, balanced_error, pooled
from ooc_fw.model.record import Model, borrow_source
from ooc_fw.options import SearchOptions, TrainOptions
from ooc_fw.problem import ClassificationProblem
from ooc_fw.report.figures import draw_errors, save
from ooc_fw.solver.plan import Plan, Session, plan_exact
from ooc_fw.solver.run import Warm
from ooc_fw.solver.state import Callback, Status
from ooc_fw.system.errors import InputError
from ooc_fw.system.interrupt import interruption, signal_of
from ooc_fw.training.classification import exact_fit, landmark_fit, read_classes
from ooc_fw.training.fit import Fit, make_plan, open_landmark_path
from ooc_fw.training.pairs import PairTrainer
from ooc_fw.training.partition import Partition, partition_classes

if TYPE_CHECKING:
    pass

PATH_TOL = 1e-2
"""Relative gap of the classifiers that are compared. On ijcnn1, errors at 1e-2 and 1e-3 differ by a
fifth of their standard error at most, and the choice does not."""

_HOPELESS = 3.0
"""Standard errors of the difference from the best point; more of them have odds of 1 in 700."""

_IN_A_ROW = 2
"""Hopeless points in a row after which the larger C of a gamma are left out."""


class Grid(NamedTuple):
    """Values of C, squared widths of the RBF kernel, and the number of folds.

    Without widths there is one, the mean squared distance of two rows; without folds there is a
    single validation part.
    """

    Cs: tuple[float, ...]
    sigma2s: tuple[float, ...] | None
    folds: int | None


PRESETS = {
    "large": Grid(tuple(2.0**e for e in range(13)), None, None),
    "small": Grid(tuple(2.0**e for e in range(-5, 16)), tuple(2.0**e for e in range(-15, 6)), 10),
}
"""The searches of the SWAP paper, section 5: "large" on large sets, "small" with cross-validation
on small ones (Nanculef, Frandi, Sartori, Allende, A novel Frank-Wolfe algorithm)."""


@dataclass(frozen=True)
class TuneOptions(SearchOptions):
    """What `tune` tries, beside how it validates; InputError for a grid that cannot be used.

    Parameters
    ----------
    kernel, degree, coef0
        Kernel, as for `ooc_fw.make_kernel`.
    Cs, gammas, sigma2s : iterable of float, optional
        Values of C and of the scale of the kernel; those of the preset by default. A gamma may be
        "auto", that of training, which does not depend on labels; sigma2s are squared widths of the
        RBF kernel in place of gammas: gamma = 1 / (2 sigma^2).
    path_tol : float
        Relative gap of the classifiers that are compared; `TrainOptions.tol` if that is larger.
    refit : bool
        Whether the best point is trained on all rows.
    """

    kernel: str = "rbf"
    degree: int = 2
    coef0: float = 0.0
    Cs: Iterable[float] | None = None
    gammas: Iterable[float | str] | None = None
    sigma2s: Iterable[float] | None = None
    path_tol: float = PATH_TOL
    refit: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sigma2s is not None and (self.gammas is not None or self.kernel != "rbf"):
            raise InputError("sigma2s are widths of the rbf kernel, in place of gammas; give one")

    def grid(self) -> Grid:
        """The grid of the preset, with the values that were given in place of its own."""
        Cs, sigma2s, folds = PRESETS[self.preset]
        if self.Cs is not None:
            Cs = _increasing("C", self.Cs)
        if self.sigma2s is not None:
            sigma2s = _increasing("sigma2", self.sigma2s)
        elif self.gammas is not None or self.kernel != "rbf":
            sigma2s = None
        return Grid(Cs, sigma2s, folds if self.folds is None else self.folds)

    def kernels(
        self, sigma2s: Iterable[float] | None, source: RowSource, threads: int
    ) -> list[Kernel]:
        """A kernel for each scale, in increasing order."""
        if sigma2s is not None:
            gammas = sorted(1 / (2 * value) for value in sigma2s)
        else:
            average, spread = (partial(find, source, threads) for find in (sigma2, variance))
            numbers = [
                resolve_gamma(self.kernel, gamma, average, source.n_features, spread)
                for gamma in (["auto"] if self.gammas is None else self.gammas)
            ]
            gammas = list(_increasing("gamma", numbers))
        make = partial(make_kernel, self.kernel, degree=self.degree, coef0=self.coef0)
        return [make(gamma=gamma) for gamma in gammas]


def _increasing(name: str, values: Iterable[float]) -> tuple[float, ...]:
    """Different positive numbers in increasing order."""
    numbers = sorted({float(value) for value in values})
    if not numbers or not 0 < numbers[0] <= numbers[-1] < float("inf"):
        raise InputError(f"the values of {name} must be positive numbers, at least one")
    return tuple(numbers)


@dataclass
class Point:
    """One point of the grid, and how it did."""

    C: float
    gamma: float
    n_errors: int = 0  # validation rows that were wrong
    n_validated: int = 0
    n_support: int = 0  # of the last training; those that several classifiers share count once
    kernel_evaluations: int = 0  # of training and validation
    seconds: float = 0.0  # of training and validation
    status: str = "waiting"  # or "tried", "abandoned", "interrupted"
    note: str = ""  # why it was abandoned, or what else there is to say
    wrong: list[npt.NDArray[np.uint8]] = field(default_factory=list, repr=False)  # bits, by fold
    estimates: list[Estimate] = field(default_factory=list, repr=False)  # by fold; none of accuracy

    def __str__(self) -> str:
        return f"C {self.C:g}, gamma {self.gamma:.4g}"

    @property
    def error(self) -> float | None:
        """1 - metric, which is the share of wrong rows for accuracy; None without validation."""
        if self.estimates:
            return pooled(self.estimates)[0]
        return self.n_errors / self.n_validated if self.n_validated else None

    @property
    def standard_error(self) -> float | None:
        """Standard error of `error`, from the number of rows alone."""
        if self.estimates:
            return pooled(self.estimates)[1]
        if self.error is None:
            return None
        return float(np.sqrt(self.error * (1 - self.error) / self.n_validated))

    def order(self) -> tuple[float, float, float]:
        """The best of some points that were tried in the same folds is the first in this order."""
        assert self.error is not None
        return self.error, self.C, self.gamma

    def deviations(self, best: Point) -> float:
        """Standard errors by which the error of this point exceeds another's, on the same rows.

        McNemar's test for accuracy: (b - c) / sqrt(b + c), where b and c rows are wrong here and
        there only. For other metrics the errors are taken for independent; since both are of the
        same rows, that leaves out fewer points than would be right.
        """
        if self.estimates:
            (error, spread), (least, other) = pooled(self.estimates), pooled(best.estimates)
            return float((error - least) / max(np.hypot(spread, other), np.finfo(float).tiny))
        parts = zip(self.wrong, best.wrong, strict=True)
        differ = sum(int(np.bitwise_count(a ^ b).sum()) for a, b in parts)
        return float((self.n_errors - best.n_errors) / np.sqrt(max(1, differ)))

    def count(
        self,
        trained: Fit,
        wrong: npt.NDArray[np.bool_],
        estimate: Estimate | None,
    ) -> None:
        """Add one training and its validation, see `score_point`."""
        if estimate is not None:
            self.estimates.append(estimate)
        self.wrong.append(np.packbits(wrong))
        self.n_errors += int(wrong.sum())
        self.n_validated += len(wrong)
        self.n_support = len(trained.model.support_vectors)
        self.kernel_evaluations += sum(each.kernel_evaluations for each in trained.solutions)
        self.kernel_evaluations += len(wrong) * self.n_support
        self.status = "tried"

    def line(self, metric: str = "accuracy", best: bool = False) -> str:
        """Line of a table whose head is `table_head`."""
        error, deviation = (
            "" if value is None else f"{100 * value:.3f}"
            for value in (self.error, self.standard_error)
        )
        words = [word for word in (self.status, self.note) if word not in ("", "tried")]
        return (
            f"{'*' if best else ' '} {self.C:>10.6g} {self.gamma:>10.4g} "
            f"{error:>{_error_width(metric)}} {deviation:>6} "
            f"{self.n_support or '':>7} {self.seconds:>7.2f}  {': '.join(words)}"
        ).rstrip()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        skipped = ("wrong", "estimates")
        values = {name: value for name, value in vars(self).items() if name not in skipped}
        return values | {"error": self.error, "standard_error": self.standard_error}


def table_head(metric: str) -> str:
    """Head of the table of all points."""
    error = f"{METRICS[metric]} %"
    return (
        f"  {'C':>10} {'gamma':>10} {error:>{_error_width(metric)}} {'+-':>6} {'SVs':>7} {'s':>7}"
        f"  note"
    )


def _error_width(metric: str) -> int:
    return len(METRICS[metric]) + 3


Train: TypeAlias = Callable[[float, Sequence[Warm] | None], Fit]
"""From a C, and the weights to begin with if they are given, to a model."""


@dataclass(frozen=True)
class TuneResult:
    """What a search found."""

    points: list[Point]  # all of the grid, gamma by gamma
    best: Point  # least error; of equals the smallest C, then the smallest gamma
    fitted: Fit | None  # the best point trained on all rows; None without a refit
    kernel: str
    metric: str  # what points were compared by
    folds: int | None  # None for one validation part
    n_rows: int
    n_validation: int  # rows in the (first) validation part
    seed: int  # of the parts and of all trainings
    interrupted: bool  # whether the search was stopped before its end
    signal: int | None  # number of the signal that stopped the search or the refit, if one did
    kernel_evaluations: int
    seconds: float

    @property
    def model(self) -> Model | None:
        """Model of the refit."""
        return None if self.fitted is None else self.fitted.model

    def to_dict(self) -> dict[str, Any]:
        """Plain values without the model, for JSON."""
        skipped = ("points", "best", "fitted", "signal")
        values = {name: value for name, value in vars(self).items() if name not in skipped}
        return values | {
            "best": self.best.to_dict(),
            "refit": self.refit(),
            "points": [point.to_dict() for point in self.points],
        }

    def refit(self) -> dict[str, Any] | None:
        """How the refit went: counts of all classifiers together, and the largest of their gaps."""
        if self.fitted is None:
            return None
        model, solutions = self.fitted.model, self.fitted.solutions
        return {
            "status": model.status,
            "certified_gap": model.certified_gap,
            "gap_scope": model.gap_scope,
            "n_support": len(model.support_vectors),
            "kernel_evaluations": sum(solution.kernel_evaluations for solution in solutions),
            "seconds": sum(solution.seconds for solution in solutions),
        }

    def table(self) -> str:
        """Table of all points; a star marks the best."""
        lines = [point.line(self.metric, best=point is self.best) for point in self.points]
        return "\n".join([table_head(self.metric), *lines])

    def advice(self) -> str | None:
        """What to try next if the best point is at the border of the grid; else None."""
        words = []
        for name in ("C", "gamma"):
            tried = sorted({getattr(point, name) for point in self.points})
            value = getattr(self.best, name)
            if len(tried) > 1 and value in (tried[0], tried[-1]):
                which = "smaller" if value == tried[0] else "larger"
                words.append(f"the best {name} is at the border of the grid: try {which} ones")
        return "; ".join(words) or None


def tune(
    data: Any,
    labels: Any = None,
    *,
    options: TrainOptions | None = None,
    callbacks: Sequence[Callback] = (),
    on_point: Callable[[Point], None] | None = None,
    **search: Any,
) -> TuneResult:
    """Find the C, and the gamma, of least validation error, and train on all rows with them.

    The error is 1 - `metric`, the share of wrong rows by default.

    A point is hopeless if its errors exceed those of the best so far by more than 3 standard errors
    of the difference and are no fewer than at the C before.

    Parameters
    ----------
    data, labels
        As for `ooc_fw.open_dataset`; nothing is loaded whole.
    options : TrainOptions, optional
        Options of each training, which is exact unless `landmarks` is given. `C` is not used;
        `tol`, `stopping`, `certify` are for the refit.
    callbacks : sequence of Callback
        They are told of every iteration of every training.
    on_point : callable, optional
        It is called with every point that was tried, once for each fold.
    **search
        Fields of `TuneOptions`, `Cs`, `gammas`, ..., and of `ooc_fw.options.SearchOptions`.

    Raises
    ------
    InputError
        For data or a grid that cannot be used, or a training part without one of the classes.
    KeyboardInterrupt
        Before the first point was tried. Later, the result is what is known by then.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(200, 2))
    >>> result = tune(X, X[:, 0] > X[:, 1], Cs=[1, 10, 100])
    >>> len(result.points), result.model.status
    (3, 'converged')
    """
    options = TrainOptions() if options is None else options
    wanted = TuneOptions(**search)
    with borrow_source(data, labels) as source:
        problems = _problems(source, options, wanted)
        # Models without landmarks are exact.
        plan = make_plan(problems[0], replace(options, exact=options.landmarks is None))
        return _Tuner(problems, plan, wanted, callbacks, on_point).search()


def _problems(
    source: RowSource, options: TrainOptions, wanted: TuneOptions
) -> list[ClassificationProblem]:
    """All rows with each kernel of the grid."""
    classes, codes, threads = read_classes(source, replace(options, exact=not options.landmarks))
    if wanted.metric == "auc" and len(classes) > 2:
        raise InputError(
            f"the metric auc is for two classes, and {source.name} has {len(classes)}; use "
            f"balanced_accuracy or accuracy"
        )
    kernels = wanted.kernels(wanted.grid().sigma2s, source, threads)
    return [ClassificationProblem(source, codes, kernel, None, classes) for kernel in kernels]


def _validation_parts(
    source: RowSource, codes: Int64Array, folds: int | None, share: float, seed: int
) -> list[Int64Array]:
    """Ranges of the validation rows, fold by fold; each fold has the same share of each class."""
    n = source.n_rows
    if folds is None:
        if not 0 < round(share * n) < n:
            raise InputError(
                f"the validation part must leave some rows for both parts; {share} of {n} does not"
            )
        sizes = [round(share * n)]
    else:
        if folds > n:
            raise InputError(f"{folds} folds need as many rows; {source.name} has {n}")
        sizes = [n // folds + (k < n % folds) for k in range(folds)]
    rng = np.random.default_rng(seed)
    return draw_parts(n, sizes, source.shuffled is True, rng, codes)


def score_point(
    model: Model, part: RowSource, codes: Int64Array, threads: int, metric: str
) -> tuple[npt.NDArray[np.bool_], Estimate | None]:
    """Which rows of a validation part a model gets wrong, shape (n_rows,), and 1 - metric.

    One pass over the part, which has rows of both classes for "auc". For accuracy the rows say all.
    """
    values = model.decision_function(part, threads=threads, labels_only=metric != "auc")
    wrong = np.asarray(model.class_places(values) != codes)
    if metric == "accuracy":
        return wrong, None
    return wrong, auc_loss(values, codes == 1) if metric == "auc" else balanced_error(codes, wrong)


@dataclass(frozen=True)
class _Fold:
    """Rows to train on and rows to validate with, and the class of each."""

    number: int
    train: SubsetSource
    train_codes: Int64Array
    held_out: RowSource
    held_out_codes: Int64Array


class _Tuner:
    """The points of a grid, and the order in which they are tried."""

    def __init__(
        self,
        problems: Sequence[ClassificationProblem],
        plan: Plan,
        search: TuneOptions,
        callbacks: Sequence[Callback],
        on_point: Callable[[Point], None] | None,
    ) -> None:
        self.problems, self.plan, self.wanted = problems, plan, search
        self.n_classes, self.grid, self.metric = problems[0].n_classes, search.grid(), search.metric
        self.callbacks, self.on_point = callbacks, on_point
        options, path_tol = plan.given, search.path_tol
        if options.stopping == "relative":
            path_tol = max(path_tol, options.tol)
        self.options = replace(
            options, tol=path_tol, stopping="relative", certify=False, max_iter=None
        )
        self.rows_of_points = [
            [Point(C, problem.kernel.gamma) for C in self.grid.Cs] for problem in problems
        ]
        self.points = [point for points in self.rows_of_points for point in points]
        self.warm: list[Warm] | None = None  # weights of the point that was best when it was tried
        self.signal: int | None = None  # that stopped the search

    def search(self) -> TuneResult:
        """Try the points, and train the best one on all rows."""
        problem, seed, folds = self.problems[0], self.plan.given.seed, self.grid.folds
        started, share = time.perf_counter(), self.wanted.validation_share
        parts = _validation_parts(problem.source, problem.codes, folds, share, seed)
        self.run(parts)
        seconds, best = time.perf_counter() - started, self.best()
        interrupted = self.signal is not None
        fitted = self.refit(best) if self.wanted.refit and not interrupted else None
        signal = self.signal if fitted is None or interrupted else fitted.signal
        return TuneResult(
            points=self.points,
            best=best,
            fitted=fitted,
            kernel=self.wanted.kernel,
            metric=self.metric,
            folds=folds,
            n_rows=problem.source.n_rows,
            n_validation=int((parts[0][:, 1] - parts[0][:, 0]).sum()),
            seed=seed,
            interrupted=self.signal is not None,
            signal=signal,
            kernel_evaluations=sum(point.kernel_evaluations for point in self.points),
            seconds=seconds,
        )

    def problem_of(self, point: Point) -> ClassificationProblem:
        """All rows with the kernel of a point."""
        return next(p for p in self.problems if p.kernel.gamma == point.gamma)

    def best(self) -> Point:
        """The point of least error, then smallest C, then smallest gamma."""
        tried = [point for point in self.points if point.status == "tried"]
        tried = tried or [point for point in self.points if point.n_validated]
        if not tried:
            raise interruption(self.signal)  # nothing is known yet
        return min(tried, key=lambda point: (point.error, point.C, point.gamma))

    def run(self, parts: Sequence[Int64Array]) -> None:
        """Try all points on each part in turn, except those left out before."""
        for number, validation in enumerate(parts):
            try:
                self._try_fold(self._fold(number, validation))
            except KeyboardInterrupt as interrupt:
                self._stop(number, interrupt)
                return
            if number + 1 == len(parts):
                return
            best = self._leader(number)
            tried = [point for point in self.points if point.status == "tried"]
            worse = [point for point in tried if point.deviations(best) > _HOPELESS]
            _abandon(worse, f"worse than {best} beyond chance after {number + 1} folds")

    def _try_fold(self, fold: _Fold) -> None:
        with self._partition(fold.train, fold.train_codes) as partition:
            for problem, points in zip(self.problems, self.rows_of_points, strict=True):
                left = [point for point in points if point.status != "abandoned"]
                if left:
                    part = replace(problem, source=fold.train, codes=fold.train_codes)
                    with self._trainer(part, partition, self.options) as train:
                        self._follow(train, left, fold)

    def refit(self, best: Point) -> Fit | None:
        """Train the best point on all rows; None after an interrupt before there is a model."""
        problem = self.problem_of(best)
        try:
            with (
                self._partition(problem.source, problem.codes) as partition,
                self._trainer(problem, partition, self.plan.given) as train,
            ):
                return train(best.C, self.warm)
        except KeyboardInterrupt as interrupt:
            self.signal = signal_of(interrupt)
            return None

    def _partition(
        self, source: RowSource, codes: Int64Array
    ) -> AbstractContextManager[Partition | None]:
        """Rows by class, which exact models of pairs of classes are trained on."""
        if self.plan.landmarks is not None:
            return nullcontext()
        return partition_classes(source, codes, self.n_classes, self.plan)

    @contextmanager
    def _trainer(
        self, problem: ClassificationProblem, partition: Partition | None, options: TrainOptions
    ) -> Iterator[Train]:
        """A function that trains models of one problem, for one C after another."""
        session = Session(self.callbacks)
        if partition is None:
            plan = make_plan(problem, options, session)
            with open_landmark_path(problem, plan, session) as path:
                yield lambda C, _: landmark_fit(problem, plan, path.solve(C), C)
            return
        exact = plan_exact(problem, options, memory=self.plan.exact_memory)
        with PairTrainer(problem, partition, exact, self.callbacks, kept=True) as trainer:
            yield lambda C, warm: exact_fit(problem, exact, trainer.fit(C, warm), C)

    def _fold(self, number: int, validation: Int64Array) -> _Fold:
        whole = self.problems[0]
        train = SubsetSource(whole.source, complement(validation, whole.source.n_rows))
        held_out = SubsetSource(whole.source, validation)
        codes, truth = (
            np.concatenate([whole.codes[start:stop] for start, stop in part.ranges])
            for part in (train, held_out)
        )
        if (np.bincount(codes, minlength=self.n_classes) == 0).any():
            raise InputError(
                f"the part of {whole.source.name} that is left for training has no rows of one "
                f"class; use more rows, another seed, or a smaller validation part"
            )
        if self.metric == "auc" and (np.bincount(truth, minlength=self.n_classes) == 0).any():
            raise InputError(
                f"a validation part of {whole.source.name} has rows of one class only, which have "
                f"no AUC; use more rows, another seed, or a larger validation part"
            )
        return _Fold(
            number, train, codes, CachedSource(held_out, self.plan.memory.row_cache), truth
        )

    def _follow(self, train: Train, points: Sequence[Point], fold: _Fold) -> None:
        """Try the points of one gamma in increasing C."""
        hopeless = 0
        for k, point in enumerate(points):
            self._try_point(train, point, fold)
            best = self._leader(fold.number)
            no_better = k > 0 and point.order()[0] >= points[k - 1].order()[0]
            worse = no_better and point.deviations(best) > _HOPELESS
            hopeless = hopeless + 1 if worse else 0
            if fold.number == 0 and hopeless == _IN_A_ROW:
                reason = f"{_IN_A_ROW} smaller C in a row are worse than {best} beyond chance"
                _abandon(points[k + 1 :], reason)
                return

    def _try_point(self, train: Train, point: Point, fold: _Fold) -> None:
        """Train and validate a point."""
        started = time.perf_counter()
        trained = train(point.C, None)
        status = Status(trained.model.status)
        if status is Status.INTERRUPTED:
            raise interruption(trained.signal)
        threads, codes = self.options.threads, fold.held_out_codes
        scores = score_point(trained.model, fold.held_out, codes, threads, self.metric)
        point.count(trained, *scores)
        point.seconds += time.perf_counter() - started
        if not status.reached:
            point.note = f"training ended with {status}"
        if self._leader(fold.number) is point:
            self.warm = [
                (fold.train.rows_at(pair.solution.rows), pair.solution.alpha)
                for pair in trained.pairs
            ]
        if self.on_point is not None:
            self.on_point(point)

    def _stop(self, fold: int, interrupt: KeyboardInterrupt) -> None:
        """Mark the points that will not be tried in this fold."""
        self.signal = signal_of(interrupt)
        for point in self.points:
            if len(point.wrong) <= fold and point.status != "abandoned":
                point.status = "interrupted"

    def _leader(self, fold: int) -> Point:
        """Best of the points that were tried in this fold."""
        return min((p for p in self.points if len(p.wrong) == fold + 1), key=Point.order)


def _abandon(points: Iterable[Point], note: str) -> None:
    """Leave points out from here on."""
    for point in points:
        point.status, point.note = "abandoned", note


def draw(result: TuneResult, path: str | os.PathLike[str]) -> None:
    """Draw validation errors against C, a curve for each gamma or a map if there are many.

    The suffix of `path` says the kind of file (.png, .svg, .pdf); InputError for another one, or
    without matplotlib.
    """
    how = f"{result.folds} folds" if result.folds else f"{result.n_validation} validation rows"
    title = f"{result.kernel} kernel, {result.n_rows} rows, {how}"
    save(draw_errors(result.points, result.best, title, METRICS[result.metric]), path)
