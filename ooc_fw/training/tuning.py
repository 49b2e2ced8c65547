"""Choosing C and gamma by validation: a path of machines for each gamma, the best one refitted.

    for each fold: part of the rows to train on, part to validate with
        for each gamma
            for each C, the smallest first
                machine = warm start from the one before      (`fit_point`)
                rows of the validation part that it gets wrong  (`score_point`)
                two points in a row without hope: leave the rest of this path
        drop the points that are worse than the best beyond chance
    refit the best point on all rows, from the weights it had, with a certificate

Owns the grid, the folds, the rule that gives points up, and the choice. Machines come from
:mod:`ooc_fw.solve.loop`, one for each pair of classes. Along a path they share kernel values, but
for many large pairs: there each machine takes over the weights of the one before alone, so that no
more than one needs memory at a time. No file but that of the training rows is opened.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ooc_fw.data.labels import encode_labels
from ooc_fw.data.rows import Int64Array
from ooc_fw.data.sources import CachedSource, RowSource, SubsetSource
from ooc_fw.data.sources.subset import complement, draw_parts
from ooc_fw.data.statistics import sigma2
from ooc_fw.kernels.functions import Kernel, make_kernel, resolve_gamma
from ooc_fw.model.pairs import PairSolution, class_pairs, union_of_rows, worst_status
from ooc_fw.model.record import Model, borrow_source
from ooc_fw.options import TrainOptions
from ooc_fw.problem import BinaryProblem, Problem
from ooc_fw.report.figures import draw_errors, save
from ooc_fw.solve.loop import Path, solve_problem
from ooc_fw.solve.session import Session
from ooc_fw.solve.setup import plan_run
from ooc_fw.solve.start import Warm
from ooc_fw.solve.state import Callback, Solution, Status
from ooc_fw.system.errors import InputError
from ooc_fw.system.memory import MemoryPlan
from ooc_fw.training.fit import model_of
from ooc_fw.training.one_versus_one import ClassSplit, split_classes

PATH_TOL = 1e-2
"""Relative gap of the machines that are compared. On ijcnn1, errors at 1e-2 and 1e-3 differ by a
fifth of their standard error at most, and the choice does not."""

_HOPELESS = 3.0  # standard errors of the difference from the best point: 1 in 700 by chance
_IN_A_ROW = 2  # points without hope after which a path is left
_PAIRS_BYTES = 512 << 20  # of kernel values that the machines of several pairs may keep at once


@dataclass(frozen=True)
class Grid:
    """What is tried, and how it is validated.

    Parameters
    ----------
    Cs : tuple of float
        Penalties.
    sigma2s : tuple of float or None
        Squared widths of the RBF kernel exp(-|x - z|^2 / (2 sigma^2)); None: one, the average
        squared distance of two rows.
    folds : int or None
        Folds of cross-validation; None: one validation part.
    """

    Cs: tuple[float, ...]
    sigma2s: tuple[float, ...] | None
    folds: int | None


PRESETS = {
    "large": Grid(tuple(2.0**e for e in range(13)), None, None),
    "small": Grid(tuple(2.0**e for e in range(-5, 16)), tuple(2.0**e for e in range(-15, 6)), 10),
}
"""The papers' searches: "large", their validation part on large sets (C in 2^0..2^12), and "small",
their cross-validation on small ones (C in 2^-5..2^15, sigma^2 in 2^-15..2^5, 10 folds).

References
----------
Nanculef, Frandi, Sartori, Allende, A novel Frank-Wolfe algorithm (SWAP paper), section 5.
"""


@dataclass
class Point:
    """One point of the grid, and how it did.

    Parameters
    ----------
    C, gamma : float
        Penalty, and scale of the kernel.
    n_errors, n_validated : int
        Rows that were got wrong, of so many validated with.
    n_support : int
        Support vectors of the machines fitted last, those of several machines counted once.
    kernel_evaluations : int
        Kernel values computed, for validation too.
    seconds : float
        Time taken, for validation too.
    status : str
        "tried", "abandoned", "interrupted" or "waiting".
    note : str
        Why it was abandoned, or what else there is to say.
    """

    C: float
    gamma: float
    n_errors: int = 0
    n_validated: int = 0
    n_support: int = 0
    kernel_evaluations: int = 0
    seconds: float = 0.0
    status: str = "waiting"
    note: str = ""
    wrong: list[npt.NDArray[np.uint8]] = field(default_factory=list, repr=False)  # bits, by fold

    @property
    def error(self) -> float | None:
        """Share of rows that were got wrong; None before any were looked at."""
        return self.n_errors / self.n_validated if self.n_validated else None

    @property
    def standard_error(self) -> float | None:
        """Standard error of `error`, from the number of rows alone."""
        if self.error is None:
            return None
        return float(np.sqrt(self.error * (1 - self.error) / self.n_validated))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        values = {name: value for name, value in vars(self).items() if name != "wrong"}
        return values | {"error": self.error, "standard_error": self.standard_error}


@dataclass(frozen=True)
class TuneResult:
    """What `tune` returns.

    Parameters
    ----------
    points : list of Point
        All points of the grid, gamma by gamma, rising C.
    best : Point
        The one of least validation error; of equal ones that of the smallest C, then gamma.
    model : Model or None
        Machines of the best point for all rows; None without a refit.
    pairs : list of PairSolution
        How the refit went, for each pair of classes; empty without one.
    kernel : str
        Name of the kernel.
    folds : int or None
        Folds; None for one validation part.
    n_rows, n_validation : int
        Rows in all, and in each validation part (the first of several).
    seed : int
        Of the parts and of all training.
    interrupted : bool
        Whether the search was stopped before its end.
    kernel_evaluations : int
        Of all points together, the refit apart.
    seconds : float
        Time of the search, the refit apart.
    """

    points: list[Point]
    best: Point
    model: Model | None
    pairs: list[PairSolution]
    kernel: str
    folds: int | None
    n_rows: int
    n_validation: int
    seed: int
    interrupted: bool
    kernel_evaluations: int
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; the model itself is left out."""
        skipped = ("points", "best", "model", "pairs")
        values = {name: value for name, value in vars(self).items() if name not in skipped}
        return values | {
            "best": self.best.to_dict(),
            "refit": self.refit(),
            "points": [point.to_dict() for point in self.points],
        }

    def refit(self) -> dict[str, Any] | None:
        """How the refit went, in plain values: counts of all machines, gap of the worst one."""
        if self.model is None:
            return None
        solutions = [pair.solution for pair in self.pairs]
        gaps = [solution.certified_gap for solution in solutions]
        known = [gap for gap in gaps if gap is not None]
        return {
            "status": self.model.status,
            "certified_gap": max(known) if len(known) == len(gaps) else None,
            "n_support": len(self.model.support_vectors),
            "kernel_evaluations": sum(solution.kernel_evaluations for solution in solutions),
            "seconds": sum(solution.seconds for solution in solutions),
        }

    def table(self) -> str:
        """Table of all points, the best one marked."""
        lines = [TABLE_HEAD]
        lines += [table_line(point, best=point is self.best) for point in self.points]
        return "\n".join(lines)

    def advice(self) -> str | None:
        """What to try next where the best point lies at the border of the grid; else None."""
        found = []
        for name in ("C", "gamma"):
            tried = sorted({getattr(point, name) for point in self.points})
            value = getattr(self.best, name)
            if len(tried) > 1 and value in (tried[0], tried[-1]):
                which = "smaller" if value == tried[0] else "larger"
                found.append(f"the best {name} is at the border of the grid: try {which} ones")
        return "; ".join(found) or None


TABLE_HEAD = f"  {'C':>10} {'gamma':>10} {'error %':>8} {'+-':>6} {'SVs':>7} {'s':>7}  note"


def table_line(point: Point, best: bool = False) -> str:
    """One line of the table; `TABLE_HEAD` is its head."""
    error, deviation = point.error, point.standard_error
    shown = "" if error is None else f"{100 * error:.3f}"
    spread = "" if deviation is None else f"{100 * deviation:.3f}"
    support = point.n_support or ""
    words = [word for word in (point.status, point.note) if word not in ("", "tried")]
    return (
        f"{'*' if best else ' '} {point.C:>10.6g} {point.gamma:>10.4g} {shown:>8} {spread:>6} "
        f"{support:>7} {point.seconds:>7.2f}  {': '.join(words)}"
    ).rstrip()


def tune(
    data: Any,
    labels: Any = None,
    *,
    kernel: str = "rbf",
    degree: int = 2,
    coef0: float = 0.0,
    Cs: Iterable[float] | None = None,
    gammas: Iterable[float | str] | None = None,
    sigma2s: Iterable[float] | None = None,
    folds: int | None = None,
    validation_share: float = 0.3,
    preset: str = "large",
    path_tol: float = PATH_TOL,
    options: TrainOptions | None = None,
    refit: bool = True,
    callbacks: Sequence[Callback] = (),
    on_point: Callable[[Point], None] | None = None,
) -> TuneResult:
    """Find the C, and the gamma, of least validation error, and train on all rows with them.

    Parameters
    ----------
    data, labels
        As for `ooc_fw.open_dataset`; nothing is loaded whole.
    kernel, degree, coef0
        Kernel, as for `ooc_fw.make_kernel`.
    Cs : iterable of float, optional
        Penalties to try; those of the preset by default.
    gammas : iterable of float or "auto", optional
        Scales of the kernel; "auto" is that of training, from the statistics of all rows, which
        know no labels. The default where the preset names no widths.
    sigma2s : iterable of float, optional
        In place of `gammas`: squared widths of the RBF kernel, gamma = 1 / (2 sigma^2).
    folds : int, optional
        Cross-validation with so many folds in place of one validation part.
    validation_share : float
        Share of the rows in the validation part.
    preset : {"large", "small"}
        Where what is not given comes from, see `PRESETS`.
    path_tol : float
        Relative gap of the machines that are compared; `options.tol` where that is larger.
    options : TrainOptions, optional
        Of every training; `tol`, `stopping` and `certify` are those of the refit, `C` is not used,
        and `max_time` is for each training by itself.
    refit : bool
        Train the best point on all rows.
    callbacks : sequence of Callback
        Told of the steps of every training.
    on_point : callable, optional
        Told of every point when it was tried, once a fold.

    Returns
    -------
    TuneResult
        After an interrupt what is known so far, without a refit.

    Raises
    ------
    InputError
        For data or a grid that cannot be used, or a training part without one of the classes.
    KeyboardInterrupt
        When there is nothing to return yet.

    Notes
    -----
    Machines go from the smallest C up, each from the weights of the one before: the many support
    vectors of a small C hold nearly all those of a larger one, so that few kernel values are new.
    These machines are not certified; the sampled gap of `path_tol` is enough to compare them, and
    the refit has `options.tol` and a certificate.

    A point is without hope when it gets more rows wrong than the best so far, by more than 3
    standard errors of the difference on the same rows (McNemar's test, sqrt(b + c) for b - c), and
    no fewer than the C before it. After two of them in a row the larger C of that gamma are given
    up. With folds, points that are so much worse than the best are given up after each fold.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(200, 2))
    >>> result = tune(X, X[:, 0] > X[:, 1], Cs=[1, 10, 100])
    >>> len(result.points), result.model.status
    (3, 'converged')
    """
    options = TrainOptions() if options is None else options
    grid = _grid(preset, Cs, sigma2s if gammas is None else None, folds)
    if sigma2s is not None and (gammas is not None or kernel != "rbf"):
        raise InputError("sigma2s are widths of the rbf kernel, in place of gammas; give one")
    with borrow_source(data, labels) as source:
        classes, codes = encode_labels(source)
        kernels = [
            make_kernel(kernel, gamma=gamma, degree=degree, coef0=coef0)
            for gamma in _gammas(kernel, gammas, grid, kernel == "rbf", source, options)
        ]
        plan = plan_run(source, options)
        search = _Search(source, codes, kernels, grid, options, path_tol, plan, callbacks, on_point)
        started = time.perf_counter()
        search.run(_parts(source, grid.folds, validation_share, options.seed))
        seconds = time.perf_counter() - started
        best = search.best()
        pairs: list[PairSolution] = []
        model = None
        if refit and not search.interrupted:
            chosen = kernels[[k.gamma for k in kernels].index(best.gamma)]
            problem = Problem(source, codes, chosen, class_labels=classes)
            with (
                _split(source, codes, len(classes), options) as split,
                Machines(problem, split, options, callbacks, plan, search.warm) as machines,
            ):
                pairs = fit_point(machines, best.C)
            complete = len(pairs) == len(class_pairs(len(classes)))
            model = model_of(pairs, problem, best.C) if complete else None
        return TuneResult(
            points=search.points,
            best=best,
            model=model,
            pairs=pairs if model is not None else [],
            kernel=kernel,
            folds=grid.folds,
            n_rows=source.n_rows,
            n_validation=search.n_validation,
            seed=options.seed,
            interrupted=search.interrupted or (refit and model is None),
            kernel_evaluations=sum(point.kernel_evaluations for point in search.points),
            seconds=seconds,
        )


# -- one point -----------------------------------------------------------------------------------


class Machines:
    """Machines of one kernel on the same rows, for one C after another; a context manager.

    Parameters
    ----------
    problem : Problem
        What to train on; it has no penalties of rows.
    split : ClassSplit or None
        The rows apart by class; None for two classes.
    options, callbacks
        As for `ooc_fw.solve.loop.solve`; `options.C` is not used.
    plan : MemoryPlan
        For machines of two classes.
    warm : list of Warm, optional
        What the first machines begin with, in the order of the pairs of classes.
    """

    def __init__(
        self,
        problem: Problem,
        split: ClassSplit | None,
        options: TrainOptions,
        callbacks: Sequence[Callback],
        plan: MemoryPlan,
        warm: Sequence[Warm] | None = None,
    ) -> None:
        self.problem, self._split = problem, split
        self._options, self._callbacks = options, callbacks
        self._plan = plan
        self._warm: list[Warm] | None = None if warm is None else list(warm)
        counts = np.bincount(problem.codes)
        self._pairs = class_pairs(len(counts))
        # Kernel values of all pairs at once, if every row were a support vector.
        most = sum(4 * int(counts[a] + counts[b]) ** 2 for a, b in self._pairs)
        self._keeps = split is None or (options.memory_limit is None and most <= _PAIRS_BYTES)
        self._paths: list[Path] = []
        self._resources = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    def fit(self, C: float) -> list[PairSolution]:
        """Machines of the next C, in the order of the pairs; an interrupt leaves the rest out."""
        done: list[PairSolution] = []
        for k in range(len(self._pairs)):
            if done and done[-1].solution.status is Status.INTERRUPTED:
                break
            solve_pair = self._solve_whole if self._split is None else self._solve_pair
            done.append(PairSolution(*self._pairs[k], solve_pair(k, C)))
        self._warm = [(pair.solution.rows, pair.solution.alpha) for pair in done]
        return done

    def _solve_whole(self, k: int, C: float) -> Solution:
        warm = None if self._warm is None else self._warm[k]
        return self._path(k, self.problem.binary(), self._plan).solve(C, warm)

    def _solve_pair(self, k: int, C: float) -> Solution:
        assert self._split is not None
        pair = self._split.pair(*self._pairs[k])
        warm = None
        if self._warm is not None:
            rows, alpha = self._warm[k]
            warm = pair.pair_rows(rows), alpha
        problem = pair.problem(self.problem)
        if self._keeps:
            solution = self._path(k, problem, None).solve(C, warm)
        else:
            session = Session(self._callbacks, held=self._split.held_bytes)
            solution = solve_problem(problem, replace(self._options, C=C), session, warm)
        return replace(solution, rows=pair.whole_rows(solution.rows))

    def _path(self, k: int, problem: BinaryProblem, plan: MemoryPlan | None) -> Path:
        """The path of a pair, opened when it is first asked for."""
        if k == len(self._paths):
            path = Path(problem, self._options, Session(self._callbacks), plan)
            self._paths.append(self._resources.enter_context(path))
        return self._paths[k]


def fit_point(machines: Machines, C: float) -> list[PairSolution]:
    """Machines of the next C."""
    return machines.fit(C)


def score_point(
    model: Model, part: RowSource, codes: Int64Array, threads: int
) -> npt.NDArray[np.bool_]:
    """Which rows of a validation part a model gets wrong, shape (n_rows,); one pass over it."""
    values = model.decision_function(part, threads=threads, labels_only=True)
    return np.asarray(model.class_places(values) != codes)


def _split(
    source: RowSource, codes: Int64Array, n_classes: int, options: TrainOptions
) -> AbstractContextManager[ClassSplit | None]:
    """The rows of a source, apart by class where there are more than two."""
    if n_classes == 2:
        return nullcontext()
    return split_classes(source, codes, n_classes, options.memory_limit)


# -- the search ----------------------------------------------------------------------------------


class _Search:
    """The points of a grid, what is known of them, and the order in which they are tried."""

    def __init__(
        self,
        source: RowSource,
        codes: Int64Array,
        kernels: Sequence[Kernel],
        grid: Grid,
        options: TrainOptions,
        path_tol: float,
        plan: MemoryPlan,
        callbacks: Sequence[Callback],
        on_point: Callable[[Point], None] | None,
    ) -> None:
        self.source, self.codes, self.kernels = source, codes, kernels
        self.classes = np.arange(int(codes.max()) + 1)
        self.options = replace(
            options, tol=path_tol, stopping="relative", certify=False, max_iter=None
        )
        if options.stopping == "relative" and options.tol > path_tol:
            self.options = replace(self.options, tol=options.tol)
        self.plan = plan
        self.callbacks, self.on_point = callbacks, on_point
        self.paths = [[Point(C, kernel.gamma) for C in grid.Cs] for kernel in kernels]
        self.warm: list[Warm] | None = None  # of the point that was best when it was tried
        self.interrupted = False
        self.n_validation = 0

    @property
    def points(self) -> list[Point]:
        return [point for path in self.paths for point in path]

    def run(self, parts: Sequence[Int64Array]) -> None:
        """Try all points on each part in turn, those given up apart."""
        for fold, validation in enumerate(parts):
            self._try_part(fold, validation)
            if self.interrupted:
                return
            if fold + 1 < len(parts):
                self._drop_worse(fold)

    def best(self) -> Point:
        """Least error, then smallest C, then smallest gamma."""
        tried = [point for point in self.points if point.status == "tried"]
        tried = tried or [point for point in self.points if point.n_validated]
        if not tried:
            raise KeyboardInterrupt  # before there was anything
        return min(tried, key=lambda point: (point.error, point.C, point.gamma))

    def _try_part(self, fold: int, validation: Int64Array) -> None:
        train = SubsetSource(self.source, complement(validation, self.source.n_rows))
        held_out = SubsetSource(self.source, validation)
        codes, truth = self._codes_of(train), self._codes_of(held_out)
        n_classes = len(self.classes)
        if (np.bincount(codes, minlength=n_classes) == 0).any():
            raise InputError(
                f"the part of {self.source.name} that is left for training has no rows of one "
                f"class; use more rows, another seed, or a smaller validation part"
            )
        self.n_validation = self.n_validation or held_out.n_rows
        part = CachedSource(held_out, self.plan.row_cache)
        with _split(train, codes, n_classes, self.options) as split:
            for kernel, points in zip(self.kernels, self.paths, strict=True):
                left = [point for point in points if point.status != "abandoned"]
                if left and not self.interrupted:
                    problem = Problem(train, codes, kernel)
                    with Machines(
                        problem, split, self.options, self.callbacks, self.plan
                    ) as machines:
                        self._follow(machines, left, train, part, truth, fold)

    def _codes_of(self, part: SubsetSource) -> Int64Array:
        return np.concatenate([self.codes[start:stop] for start, stop in part.ranges])

    def _follow(
        self,
        machines: Machines,
        points: Sequence[Point],
        train: SubsetSource,
        part: RowSource,
        truth: Int64Array,
        fold: int,
    ) -> None:
        """Try the points of one gamma, rising C."""
        hopeless = 0
        before: Point | None = None
        for k, point in enumerate(points):
            started = time.perf_counter()
            pairs = fit_point(machines, point.C)
            status = worst_status([pair.solution.status for pair in pairs])
            missing = len(pairs) < len(class_pairs(len(self.classes)))
            if missing or status is Status.INTERRUPTED:
                self._stop(fold)
                return
            model = model_of(pairs, machines.problem, point.C)
            wrong = score_point(model, part, truth, self.options.threads)
            point.wrong.append(np.packbits(wrong))
            point.n_errors += int(wrong.sum())
            point.n_validated += len(wrong)
            point.n_support = len(union_of_rows(pairs))
            point.kernel_evaluations += sum(pair.solution.kernel_evaluations for pair in pairs)
            point.kernel_evaluations += len(wrong) * point.n_support
            point.seconds += time.perf_counter() - started
            point.status = "tried"
            if not status.reached:
                point.note = f"training ended with {status}"
            best = self._leader(fold)
            if best is point:
                self.warm = [
                    (train.rows_at(pair.solution.rows), pair.solution.alpha) for pair in pairs
                ]
            if self.on_point is not None:
                self.on_point(point)
            lost = before is not None and point.n_errors >= before.n_errors
            hopeless = hopeless + 1 if lost and _deviations(point, best) > _HOPELESS else 0
            before = point
            if fold == 0 and hopeless == _IN_A_ROW:
                for other in points[k + 1 :]:
                    other.status = "abandoned"
                    other.note = (
                        f"{_IN_A_ROW} smaller C in a row are worse than {_name(best)} beyond chance"
                    )
                return

    def _stop(self, fold: int) -> None:
        """Note that the points left of a fold will not be tried."""
        self.interrupted = True
        for point in self.points:
            if len(point.wrong) <= fold and point.status != "abandoned":
                point.status = "interrupted"

    def _leader(self, fold: int) -> Point:
        """Best of the points that were tried on as many parts."""
        tried = [point for point in self.points if len(point.wrong) == fold + 1]
        return min(tried, key=lambda point: (point.n_errors, point.C, point.gamma))

    def _drop_worse(self, fold: int) -> None:
        best = self._leader(fold)
        for point in self.points:
            if point.status == "tried" and _deviations(point, best) > _HOPELESS:
                point.status = "abandoned"
                point.note = f"worse than {_name(best)} beyond chance after {fold + 1} folds"


def _deviations(point: Point, best: Point) -> float:
    """By how many standard errors a point gets more rows wrong than another, on the same rows."""
    differ = sum(
        int(np.bitwise_count(a ^ b).sum()) for a, b in zip(point.wrong, best.wrong, strict=True)
    )
    return float((point.n_errors - best.n_errors) / np.sqrt(max(1, differ)))


def _name(point: Point) -> str:
    return f"C {point.C:g}, gamma {point.gamma:.4g}"


# -- grid and parts ------------------------------------------------------------------------------


def _grid(
    preset: str, Cs: Iterable[float] | None, sigma2s: Iterable[float] | None, folds: int | None
) -> Grid:
    """The grid of a preset, with what was given in its place."""
    if preset not in PRESETS:
        raise InputError(f"preset must be one of {', '.join(PRESETS)}, not {preset!r}")
    grid = PRESETS[preset]
    grid = Grid(
        grid.Cs if Cs is None else _rising("C", Cs),
        grid.sigma2s if sigma2s is None else _rising("sigma2", sigma2s),
        grid.folds if folds is None else folds,
    )
    if grid.folds is not None and grid.folds < 2:
        raise InputError(f"folds must be at least 2, not {grid.folds}")
    return grid


def _rising(name: str, values: Iterable[float]) -> tuple[float, ...]:
    """Different positive numbers in rising order."""
    numbers = sorted({float(value) for value in values})
    if not numbers or not 0 < numbers[0] <= numbers[-1] < float("inf"):
        raise InputError(f"the values of {name} must be positive numbers, at least one")
    return tuple(numbers)


def _gammas(
    kernel: str,
    gammas: Iterable[float | str] | None,
    grid: Grid,
    has_width: bool,
    source: RowSource,
    options: TrainOptions,
) -> list[float]:
    """Scales to try, in rising order."""
    if gammas is None and grid.sigma2s is not None and has_width:
        return sorted(1 / (2 * value) for value in grid.sigma2s)

    def average() -> float:
        return sigma2(source, options.threads)

    given: list[float | str] = ["auto"] if gammas is None else list(gammas)
    numbers = (resolve_gamma(kernel, gamma, average, source.n_features) for gamma in given)
    return list(_rising("gamma", numbers))


def _parts(source: RowSource, folds: int | None, share: float, seed: int) -> list[Int64Array]:
    """Ranges of the rows to validate with, fold by fold."""
    n = source.n_rows
    if folds is None:
        if not 0 < share < 1 or not 0 < round(share * n) < n:
            raise InputError(
                f"the validation part must be a share of the rows above 0 and below 1 that leaves "
                f"some for both parts; {share} of {n} rows does not"
            )
        sizes = [round(share * n)]
    else:
        if folds > n:
            raise InputError(f"{folds} folds need as many rows; {source.name} has {n}")
        sizes = [n // folds + (k < n % folds) for k in range(folds)]
    return draw_parts(n, sizes, source.shuffled is True, np.random.default_rng(seed))


# -- figure --------------------------------------------------------------------------------------


def draw(result: TuneResult, path: str | os.PathLike[str]) -> None:
    """Draw validation errors against C: a curve for each gamma, or a map where they are many.

    Parameters
    ----------
    result : TuneResult
        What to draw.
    path : str or PathLike
        File to write; its suffix says its kind (.png, .svg, .pdf).

    Raises
    ------
    InputError
        Without matplotlib, or for an unknown kind of file.
    """
    how = f"{result.folds} folds" if result.folds else f"{result.n_validation} validation rows"
    title = f"{result.kernel} kernel, {result.n_rows} rows, {how}"
    save(draw_errors(result.points, result.best, title), path)
