"""Choosing C and gamma by validation.

    for each fold: one part of the rows to train on, the other to validate with
        for each gamma
            for each C, the smallest first
                train, from the weights for the C before; validate
                after two hopeless points in a row: leave out the larger C
        leave out the points that are worse than the best beyond chance
    train the best point on all rows, from the weights it had, with a certificate

A point is a pair of C and gamma. Its error is 1 minus the metric. Models with landmarks share those
of the smallest C of each gamma and fold.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

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
from ooc_fw.solver.plan import Session, plan_exact
from ooc_fw.solver.run import Warm
from ooc_fw.solver.state import Callback, Status
from ooc_fw.system.errors import InputError
from ooc_fw.system.interrupt import interruption, signal_of
from ooc_fw.training.classification import exact_fit, landmark_fit
from ooc_fw.training.fit import Fit, describe, make_plan, open_landmark_path, task_of
from ooc_fw.training.pairs import PairTrainer
from ooc_fw.training.partition import Partition, partition_classes

PATH_TOL = 1e-2
"""Relative gap of the classifiers that are compared. On ijcnn1, errors at 1e-2 and 1e-3 differ by a
fifth of their standard error at most, and the choice does not."""

_HOPELESS = 3.0
"""Standard errors of the difference from the best point; more of them have odds of 1 in 700."""

_IN_A_ROW = 2
"""Hopeless points in a row after which the larger C of a gamma are left out."""


class Grid(NamedTuple):
    """Values of C, squared widths of the RBF kernel, and the number of folds."""

    Cs: tuple[float, ...]
    sigma2s: tuple[float, ...] | None  # None: gamma auto
    folds: int | None  # None: a single validation part


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
        if self.gammas is not None or self.kernel != "rbf":
            sigma2s = None
        return Grid(
            Cs if self.Cs is None else _increasing("C", self.Cs),
            sigma2s if self.sigma2s is None else _increasing("sigma2", self.sigma2s),
            folds if self.folds is None else self.folds,
        )

    def kernels(self, grid: Grid, source: RowSource, threads: int) -> list[Kernel]:
        """A kernel for each scale, in increasing order."""
        average, spread = (partial(find, source, threads) for find in (sigma2, variance))
        numbers = [
            resolve_gamma(self.kernel, gamma, average, source.n_features, spread)
            for gamma in (["auto"] if self.gammas is None else self.gammas)
            if grid.sigma2s is None
        ]
        numbers += [1 / (2 * value) for value in grid.sigma2s or ()]
        make = partial(make_kernel, self.kernel, degree=self.degree, coef0=self.coef0)
        return [make(gamma=gamma) for gamma in _increasing("gamma", numbers)]


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
    error: float | None = None  # 1 - metric; None before the first validation
    standard_error: float | None = None  # of `error`, from the number of rows alone
    wrong: list[npt.NDArray[np.uint8]] = field(default_factory=list, repr=False)  # bits, by fold
    estimates: list[Estimate] = field(default_factory=list, repr=False)  # by fold; none of accuracy

    def __str__(self) -> str:
        return f"C {self.C:g}, gamma {self.gamma:.4g}"

    def validated(self, wrong: npt.NDArray[np.bool_], estimate: Estimate | None) -> None:
        """Add what `score_point` says of one fold."""
        self.status = "tried"
        self.wrong.append(np.packbits(wrong))
        self.n_errors += int(wrong.sum())
        self.n_validated += len(wrong)
        if estimate is None:
            error = self.error = self.n_errors / self.n_validated
            self.standard_error = float(np.sqrt(error * (1 - error) / self.n_validated))
        else:
            self.estimates.append(estimate)
            self.error, self.standard_error = pooled(self.estimates)

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

    def cells(self) -> list[str]:
        """What the table of all points says of this one."""
        percent = ["" if x is None else f"{100 * x:.3f}" for x in (self.error, self.standard_error)]
        note = ": ".join(word for word in (self.status, self.note) if word not in ("", "tried"))
        size, seconds = str(self.n_support or ""), f"{self.seconds:.2f}"
        return [f"{self.C:.6g}", f"{self.gamma:.4g}", *percent, size, seconds, note]

    def abandon(self, why: str) -> None:
        """Leave the point out from here on."""
        self.status, self.note = "abandoned", why

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return _without(self, "wrong", "estimates")


def _without(record: object, *names: str) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in names}


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
        return _without(self, "points", "best", "fitted", "signal") | {
            "best": self.best.to_dict(),
            "refit": self.refit(),
            "points": [point.to_dict() for point in self.points],
        }

    def refit(self) -> dict[str, Any] | None:
        """How the refit went."""
        if self.fitted is None:
            return None
        names = "status", "certified_gap", "gap_scope", "n_support", "kernel_evaluations"
        described = describe(self.fitted)
        seconds = sum(solution.seconds for solution in self.fitted.solutions)
        return {name: described[name] for name in names} | {"seconds": seconds}

    def table(self) -> str:
        """Table of all points; a star marks the best."""
        error = f"{METRICS[self.metric]} %"
        row = f"{{}} {{:>10}} {{:>10}} {{:>{len(error) + 1}}} {{:>6}} {{:>7}} {{:>7}}  {{}}"
        lines = [[" ", "C", "gamma", error, "+-", "SVs", "s", "note"]]
        lines += [["*" if p is self.best else " ", *p.cells()] for p in self.points]
        return "\n".join(row.format(*line).rstrip() for line in lines)

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


def draw(result: TuneResult, path: str | os.PathLike[str]) -> None:
    """Draw validation errors against C, a curve for each gamma or a map if there are many."""
    how = f"{result.folds} folds" if result.folds else f"{result.n_validation} validation rows"
    title = f"{result.kernel} kernel, {result.n_rows} rows, {how}"
    save(draw_errors(result.points, result.best, title, METRICS[result.metric]), path)


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

    The error is 1 - `metric`, the share of wrong rows by default. A point is hopeless if
    its errors exceed those of the best so far by more than 3 standard errors of the difference and
    are no fewer than at the C before.

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
        return _Search(source, options, wanted, callbacks, on_point).result()


class _Search:
    """The points of a grid, and the order in which they are tried."""

    def __init__(
        self,
        source: RowSource,
        options: TrainOptions,
        wanted: TuneOptions,
        callbacks: Sequence[Callback],
        on_point: Callable[[Point], None] | None,
    ) -> None:
        options = replace(options, exact=options.landmarks is None)
        answers, threads = task_of("classification").read(source, options)
        classes = answers["class_labels"]
        if wanted.metric == "auc" and len(classes) > 2:
            raise InputError(
                f"the metric auc is for two classes, and {source.name} has {len(classes)}; use "
                f"balanced_accuracy or accuracy"
            )
        self.wanted, self.callbacks, self.on_point = wanted, callbacks, on_point
        self.grid = wanted.grid()
        self.kernels = wanted.kernels(self.grid, source, threads)
        self.paths = [[Point(C, kernel.gamma) for C in self.grid.Cs] for kernel in self.kernels]
        self.points = [point for path in self.paths for point in path]
        self.problem = ClassificationProblem(source, kernel=self.kernels[0], **answers)
        self.plan = make_plan(self.problem, options)
        given, tol = self.plan.given, wanted.path_tol
        tol = max(tol, given.tol) if given.stopping == "relative" else tol
        self.options = replace(given, tol=tol, stopping="relative", certify=False, max_iter=None)
        self.leader: Point | None = None  # best of the points that were tried in this fold
        self.warm: list[Warm] | None = None  # its weights, by rows of the whole source

    def result(self) -> TuneResult:
        """Try the points, and train the best one on all rows."""
        started, parts, signal = time.perf_counter(), self._validation_parts(), None
        try:
            for fold, ranges in enumerate(parts, 1):
                self._try_fold(ranges)
                best = self.leader
                if best is not None and fold < len(parts):
                    for point in self.points:
                        if point.status == "tried" and point.deviations(best) > _HOPELESS:
                            point.abandon(f"worse than {best} beyond chance after {fold} folds")
        except KeyboardInterrupt as interrupt:
            signal = signal_of(interrupt)
            for point in self.points:
                if len(point.wrong) < fold and point.status != "abandoned":
                    point.status = "interrupted"
        tried = [point for point in self.points if point.status == "tried"]
        tried = tried or [point for point in self.points if point.n_validated]
        if not tried:
            raise interruption(signal)  # nothing is known yet
        best, seconds, fitted = min(tried, key=Point.order), time.perf_counter() - started, None
        interrupted = signal is not None
        if self.wanted.refit and not interrupted:
            try:
                fitted = self._refit(best)
                signal = fitted.signal
            except KeyboardInterrupt as interrupt:
                interrupted, signal = True, signal_of(interrupt)
        return TuneResult(
            points=self.points,
            best=best,
            fitted=fitted,
            kernel=self.wanted.kernel,
            metric=self.wanted.metric,
            folds=self.grid.folds,
            n_rows=self.problem.source.n_rows,
            n_validation=int(np.diff(parts[0]).sum()),
            seed=self.plan.given.seed,
            interrupted=interrupted,
            signal=signal,
            kernel_evaluations=sum(point.kernel_evaluations for point in self.points),
            seconds=seconds,
        )

    def _validation_parts(self) -> list[Int64Array]:
        """Ranges of the validation rows by fold, each of which has the same share of each class."""
        source, folds, share = self.problem.source, self.grid.folds, self.wanted.validation_share
        n, what = source.n_rows, f"a share of {share}"
        sizes = [round(share * n)]
        if folds is not None:
            sizes, what = [n // folds + (k < n % folds) for k in range(folds)], f"{folds} folds"
        if not 0 < min(sizes) <= max(sizes) < n:
            raise InputError(
                f"a validation part must have some rows of {source.name} and leave others to train "
                f"on, and there are {n}, which is too few for {what}"
            )
        rng = np.random.default_rng(self.plan.given.seed)
        return draw_parts(n, sizes, source.shuffled is True, rng, self.problem.codes)

    def _try_fold(self, ranges: Int64Array) -> None:
        """Try what is left of all points: validate with the rows in `ranges`, train on the rest."""
        self.leader, whole = None, self.problem
        part = SubsetSource(whole.source, complement(ranges, whole.source.n_rows))
        held_out = SubsetSource(whole.source, ranges)
        codes, truth = (
            np.concatenate([whole.codes[start:stop] for start, stop in each.ranges])
            for each in (part, held_out)
        )
        if (np.bincount(codes, minlength=whole.n_classes) == 0).any():
            raise InputError(
                f"the part of {whole.source.name} that is left for training has no rows of one "
                f"class; use more rows, another seed, or a smaller validation part"
            )
        if self.wanted.metric == "auc" and len(np.unique(truth)) < 2:
            raise InputError(
                f"a validation part of {whole.source.name} has rows of one class only, which have "
                f"no AUC; use more rows, another seed, or a larger validation part"
            )
        cached = CachedSource(held_out, self.plan.memory.row_cache)
        train = replace(whole, source=part, codes=codes)
        validation = replace(whole, source=cached, codes=truth)
        with self._partition(train) as partition:
            for kernel, points in zip(self.kernels, self.paths, strict=True):
                left = [point for point in points if point.status != "abandoned"]
                problem, Cs = replace(train, kernel=kernel), [point.C for point in left]
                with closing(self._models(problem, partition, self.options, Cs)) as models:
                    self._follow(left, models, validation, part)

    def _follow(
        self,
        points: Sequence[Point],
        models: Generator[Fit, None, None],
        validation: ClassificationProblem,
        part: SubsetSource,
    ) -> None:
        """Try the points of one gamma in increasing C, with models of the rows of `part`."""
        n_hopeless, before = 0, float("inf")
        for k, point in enumerate(points):
            started, fitted = time.perf_counter(), next(models)
            status = Status(fitted.model.status)
            if status is Status.INTERRUPTED:
                raise interruption(fitted.signal)
            held_out, threads = (validation.source, validation.codes), self.options.threads
            judged = score_point(fitted.model, *held_out, threads, self.wanted.metric)
            point.validated(*judged)
            point.n_support = len(fitted.model.support_vectors)
            point.kernel_evaluations += len(validation.codes) * point.n_support
            point.kernel_evaluations += sum(each.kernel_evaluations for each in fitted.solutions)
            point.seconds += time.perf_counter() - started
            if not status.reached:
                point.note = f"training ended with {status}"
            if self.leader is None or point.order() < self.leader.order():
                self.leader = point
                solutions = [pair.solution for pair in fitted.pairs]
                self.warm = [(part.rows_at(each.rows), each.alpha) for each in solutions]
            if self.on_point is not None:
                self.on_point(point)
            error = point.order()[0]
            no_better, before = error >= before, error
            hopeless = no_better and point.deviations(self.leader) > _HOPELESS
            n_hopeless = n_hopeless + 1 if hopeless else 0
            if n_hopeless == _IN_A_ROW and len(point.wrong) == 1:  # in the first fold
                why = f"{_IN_A_ROW} smaller C in a row are worse than {self.leader} beyond chance"
                for later in points[k + 1 :]:
                    later.abandon(why)
                return

    def _refit(self, best: Point) -> Fit:
        kernel = next(kernel for kernel in self.kernels if kernel.gamma == best.gamma)
        problem, options = replace(self.problem, kernel=kernel), self.plan.given
        with self._partition(problem) as partition:
            with closing(self._models(problem, partition, options, [best.C], self.warm)) as models:
                return next(models)

    def _partition(self, problem: ClassificationProblem) -> Any:
        """Rows by class, which exact models are trained on."""
        exact = self.plan.landmarks is None
        return partition_classes(problem, self.plan) if exact else nullcontext()

    def _models(
        self,
        problem: ClassificationProblem,
        partition: Partition | None,
        options: TrainOptions,
        Cs: Iterable[float],
        warm: Sequence[Warm] | None = None,
    ) -> Generator[Fit, None, None]:
        """A model for each C, from the weights of the one before; exact ones begin with `warm`."""
        if partition is None:
            session = Session(self.callbacks)
            plan = make_plan(problem, options, session)
            with open_landmark_path(problem, plan, session) as path:
                for C in Cs:
                    yield landmark_fit(problem, plan, path.solve(C), C)
        else:
            plan = plan_exact(problem, options, memory=self.plan.memory)
            rows = replace(partition, whole=problem)  # which all kernels share
            with PairTrainer(rows, plan, self.callbacks) as trainer:
                for C in Cs:
                    yield exact_fit(problem, plan, trainer.fit(C, warm), C)
                    warm = None


def score_point(
    model: Model, part: RowSource, codes: Int64Array, threads: int, metric: str
) -> tuple[npt.NDArray[np.bool_], Estimate | None]:
    """Which rows of a validation part a model gets wrong, and 1 - metric; None of accuracy."""
    values = model.decision_function(part, threads=threads, labels_only=metric != "auc")
    wrong = np.asarray(model.class_places(values) != codes)
    if metric == "accuracy":
        return wrong, None
    return wrong, auc_loss(values, codes == 1) if metric == "auc" else balanced_error(codes, wrong)
