"""What a search tries and what it found: the space, the points, the result."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ooc_fw.data.sources import RowSource
from ooc_fw.data.statistics import sigma2, variance
from ooc_fw.kernels.functions import KERNELS, Kernel, make_kernel, resolve_gamma
from ooc_fw.model.metrics import METRICS, Estimate, pooled
from ooc_fw.model.record import Model
from ooc_fw.options import TASKS, SearchOptions
from ooc_fw.report.figures import draw_errors, save
from ooc_fw.system.errors import InputError
from ooc_fw.training.fit import Fit, describe

PATH_TOL = 1e-2
"""Relative gap of the models that are compared. On ijcnn1, errors at 1e-2 and 1e-3 differ by a
fifth of their standard error at most, and the choice does not."""

AUTO_KERNELS = ("rbf", "laplacian")
"""Kernels that a search tries unless it is told otherwise."""

GAMMA_FACTORS = (1 / 16, 1 / 4, 1.0, 4.0, 16.0)
"""Multiples of gamma auto that a search begins with; it goes on in steps of `GAMMA_STEP`."""

GAMMA_STEP, C_STEP = 2.0, 3.0

FIRST_SUPPORT = 0.6
"""Share of the rows that are expected to be support vectors of a point that was not tried."""


class Grid(NamedTuple):
    """Values of C, squared widths of the RBF kernel, and the number of folds."""

    Cs: tuple[float, ...]
    sigma2s: tuple[float, ...] | None  # None: of gamma auto, and multiples of it
    folds: int | None  # None: a single validation part


PRESETS = {
    "auto": Grid((0.1, 1.0, 10.0, 100.0), None, None),
    "large": Grid(tuple(2.0**e for e in range(13)), None, None),
    "small": Grid(tuple(2.0**e for e in range(-5, 16)), tuple(2.0**e for e in range(-15, 6)), 10),
}
"""Where a search begins. "large" and "small" are those of the SWAP paper, section 5, on large sets,
and with cross-validation on small ones (Nanculef, Frandi, Sartori, Allende, A novel Frank-Wolfe
algorithm)."""


@dataclass(frozen=True)
class TuneOptions(SearchOptions):
    """What `tune` tries, beside how it validates; InputError for what cannot be tried.

    Parameters
    ----------
    task : {"classification", "novelty", "regression"}
        What models are for. Novelty is trained on all rows and validated by their labels, of which
        the rarer one is novel.
    contamination, epsilon
        Of novelty and of regression, as in training.
    kernel : str or sequence of str
        Kernels, as for `ooc_fw.make_kernel`. "auto" is rbf and laplacian, or rbf alone where
        `gammas` or `sigma2s` are given, or with a preset of a paper.
    degree, coef0
        Of the polynomial kernel.
    Cs, gammas, sigma2s : iterable of float, optional
        Values of C and of the scale of the kernel, in place of what the preset tries. A gamma may
        be "auto", that of training, which does not depend on labels; sigma2s are squared widths of
        the RBF kernel in place of gammas: gamma = 1 / (2 sigma^2). Where both C and the scale are
        given, exactly these points are tried, on all rows.
    path_tol : float
        Relative gap of the models that are compared; `TrainOptions.tol` if that is larger.
    learn_scales : bool
        Whether models of the best point may scale the columns by how much they matter, see
        `ooc_fw.model.importance.learn_scales`: kept where the error is smaller then.
    refit : bool
        Whether the best point is trained on all rows.
    """

    task: str = "classification"
    contamination: float | None = None
    epsilon: float | None = None
    kernel: str | Sequence[str] = "auto"
    degree: int = 2
    coef0: float = 0.0
    Cs: Iterable[float] | None = None
    gammas: Iterable[float | str] | None = None
    sigma2s: Iterable[float] | None = None
    path_tol: float = PATH_TOL
    learn_scales: bool = False
    refit: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.task not in TASKS:
            raise InputError(f"task must be one of {', '.join(TASKS)}, not {self.task!r}")
        for name, owner in (("contamination", "novelty"), ("epsilon", "regression")):
            if getattr(self, name) is not None and self.task != owner:
                raise InputError(f"{name} is for the task {owner}, not for {self.task}")
        known = METRICS_OF[self.task]
        if self.metric not in ("auto", *known):
            raise InputError(
                f"the metric {self.metric} is none of {self.task}; choose by {' or '.join(known)}"
            )
        if self.sigma2s is not None and (self.gammas is not None or self.kernel_names != ("rbf",)):
            raise InputError("sigma2s are widths of the rbf kernel, in place of gammas; give one")

    @property
    def chosen_metric(self) -> str:
        """What points are compared by."""
        return METRICS_OF[self.task][0] if self.metric == "auto" else self.metric

    @property
    def kernel_names(self) -> tuple[str, ...]:
        """The kernels by name."""
        if self.kernel == "auto":
            given = self.gammas is not None or self.sigma2s is not None
            return AUTO_KERNELS[:1] if given or self.preset != "auto" else AUTO_KERNELS
        return (self.kernel,) if isinstance(self.kernel, str) else tuple(self.kernel)

    @property
    def free(self) -> tuple[bool, bool]:
        """Whether C, and gamma, are for the search to choose."""
        scaled = self.gammas is not None or self.sigma2s is not None
        return self.preset == "auto" and self.Cs is None, self.preset == "auto" and not scaled

    @property
    def grid(self) -> Grid:
        """Values of the preset, with those that were given in place of its own."""
        Cs, sigma2s, folds = PRESETS[self.preset]
        if self.gammas is not None or self.kernel_names != ("rbf",):
            sigma2s = None
        return Grid(
            Cs if self.Cs is None else _increasing("C", self.Cs),
            sigma2s if self.sigma2s is None else _increasing("sigma2", self.sigma2s),
            folds if self.folds is None else self.folds,
        )

    def kernels(self, source: RowSource, threads: int) -> list[Kernel]:
        """Kernels with their scales: those of one name in increasing order of gamma."""
        average, spread = (partial(find, source, threads) for find in (sigma2, variance))
        found = []
        for name in self.kernel_names:
            given = ["auto"] if self.gammas is None else list(self.gammas)
            numbers = [
                resolve_gamma(name, gamma, average, source.n_features, spread) for gamma in given
            ]
            if self.grid.sigma2s is not None:
                numbers = [1 / (2 * value) for value in self.grid.sigma2s]
            elif self.free[1] and name in KERNELS and KERNELS[name].uses_gamma:
                numbers = [factor * numbers[0] for factor in GAMMA_FACTORS]
            found += [self.make(name, gamma) for gamma in _increasing("gamma", numbers)]
        return found

    def make(self, name: str, gamma: float) -> Kernel:
        """Kernel of a point."""
        return make_kernel(name, gamma=gamma, degree=self.degree, coef0=self.coef0)


METRICS_OF = {
    "classification": ("accuracy", "balanced_accuracy", "auc"),
    "novelty": ("auc", "balanced_accuracy"),
    "regression": ("r2",),
}
"""Metrics of each task; the first one is its default."""


def _increasing(name: str, values: Iterable[float]) -> tuple[float, ...]:
    """Different positive numbers in increasing order."""
    numbers = sorted({float(value) for value in values})
    if not numbers or not 0 < numbers[0] <= numbers[-1] < float("inf"):
        raise InputError(f"the values of {name} must be positive numbers, at least one")
    return tuple(numbers)


@dataclass
class Point:
    """A kernel, its gamma and C, and how they did; of several stages in the last one."""

    C: float
    gamma: float
    n_errors: int = 0  # validation rows that were wrong
    n_validated: int = 0
    kernel: str = "rbf"
    class_weight: str | None = None  # "balanced", or none
    landmarks: int | None = None  # where they are compared with an exact model, which has 0
    learned: int = 0  # rounds in which the scales of the columns were learned
    n_rows: int = 0  # that were trained on
    n_support: int = 0  # of the last training; those that several classifiers share count once
    # Rows and support vectors of the exact models of its stages, or those of a neighbour.
    sizes: dict[int, int] = field(default_factory=dict)
    kernel_evaluations: int = 0  # of training and validation, in all stages
    seconds: float = 0.0  # of training and validation, in all stages
    status: str = (
        "waiting"  # or "begun", "tried", "abandoned", "interrupted"; "compared" of last models
    )
    note: str = ""  # why it was abandoned, or what else there is to say
    error: float | None = None  # 1 - metric; None before the first validation
    standard_error: float | None = None  # of `error`, from the number of rows alone
    stage: int = 0  # in which it was tried last
    wrong: list[npt.NDArray[np.uint8]] = field(default_factory=list, repr=False)  # bits, by fold
    estimates: list[Estimate] = field(default_factory=list, repr=False)  # by fold; none of accuracy

    def __str__(self) -> str:
        text = f"{self.kernel}, C {self.C:.4g}, gamma {self.gamma:.4g}"
        return ", ".join([text, *self.extras()])

    def extras(self) -> list[str]:
        """What few points have, in words."""
        learned = f"scales learned {self.learned} times" if self.learned else ""
        landmarks = f"{self.landmarks} landmarks" if self.landmarks else ""
        balanced = self.class_weight and "balanced classes"
        return [words for words in (balanced, learned, landmarks) if words]

    def begin(self, stage: int) -> None:
        """Forget what an earlier stage found."""
        if self.stage != stage:
            self.stage, self.n_errors, self.n_validated = stage, 0, 0
            self.wrong, self.estimates, self.note = [], [], ""

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

    def order(self) -> tuple[float, float, float, str, str]:
        """The best of some points that were tried in the same folds is the first in this order."""
        assert self.error is not None
        return self.error, self.C, self.gamma, self.kernel, self.class_weight or ""

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

    def neighbours(self, free: tuple[bool, bool], *, weights: bool) -> Iterator[Point]:
        """Points a step of C, and of gamma, away, as far as they are `TuneOptions.free`.

        With `weights`, also the one with balanced classes, or without.
        """
        same = Point(self.C, self.gamma, kernel=self.kernel, class_weight=self.class_weight)
        same.sizes = dict(self.sizes)
        for factor in (C_STEP, 1 / C_STEP) if free[0] else ():
            yield replace(same, C=self.C * factor)
        scaled = free[1] and self.kernel in KERNELS and KERNELS[self.kernel].uses_gamma
        for factor in (GAMMA_STEP, 1 / GAMMA_STEP) if scaled else ():
            yield replace(same, gamma=self.gamma * factor)
        if weights:
            yield replace(same, class_weight=None if self.class_weight else "balanced")

    def is_near(self, other: Point) -> bool:
        """Whether both are the same but for rounding."""
        words = self.kernel == other.kernel and self.class_weight == other.class_weight
        return words and bool(
            np.allclose((self.C / other.C, self.gamma / other.gamma), 1, rtol=0.2)
        )

    def add_size(self, n_rows: int, n_support: int) -> None:
        """Learn how many support vectors an exact model has; those of a neighbour are in scale."""
        if self.kernel_evaluations == 0 and self.sizes:
            factor = n_support / self.expected_support(n_rows)
            self.sizes = {rows: max(1, round(factor * few)) for rows, few in self.sizes.items()}
        self.sizes[n_rows] = n_support

    def expected_support(self, n_rows: int) -> int:
        """Support vectors that an exact model of so many rows may have.

        By the power law through two stages, one with half the rows of the other or fewer, or the
        share of the only one.
        """
        if not self.sizes:
            return max(1, int(FIRST_SUPPORT * n_rows))
        (rows, support), power = max(self.sizes.items()), 1.0
        if len(self.sizes) > 1:
            fewer = max((some for some in self.sizes if 2 * some <= rows), default=min(self.sizes))
            ratio = np.log(support / self.sizes[fewer]) / np.log(rows / fewer)
            power = float(np.clip(ratio, 0.0, 1.0))
        return int(np.clip(support * (n_rows / rows) ** power, 1, n_rows))

    def cells(self) -> list[str]:
        """What the table of all points says of this one."""
        percent = ["" if x is None else f"{100 * x:.3f}" for x in (self.error, self.standard_error)]
        status = "" if self.status in ("tried", "abandoned") else self.status
        note = ": ".join(word for word in (status, self.note) if word)
        note = ", ".join(word for word in [*self.extras(), note] if word)
        sizes = [str(size or "") for size in (self.n_rows, self.n_support)]
        numbers = [f"{self.C:.6g}", f"{self.gamma:.4g}", *percent, *sizes]
        return [self.kernel, *numbers, f"{self.seconds:.2f}", note]

    def abandon(self, why: str) -> None:
        """Leave the point out from here on."""
        self.status, self.note = "abandoned", why

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return _without(self, "wrong", "estimates", "sizes")


def _without(record: object, *names: str) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in names}


@dataclass(frozen=True, repr=False)
class TuneResult:
    """What a search found."""

    points: list[Point]  # all that were to be tried, kernel by kernel
    best: Point  # least error; of equals the smallest C, then the smallest gamma
    fitted: Fit | None  # the best point trained on all rows; None without a refit
    kernel: str  # of the best point
    task: str
    metric: str  # what points were compared by
    folds: int | None  # None for one validation part
    n_rows: int
    n_validation: int  # rows in the (first) validation part
    seed: int  # of the parts and of all trainings
    ended: str  # why the search ended, in words
    interrupted: bool  # whether the search was stopped before its end
    signal: int | None  # number of the signal that stopped the search or the refit, if one did
    kernel_evaluations: int
    seconds: float

    def __repr__(self) -> str:
        best = f"kernel={self.kernel}, C={self.best.C:g}, gamma={self.best.gamma}"
        return f"TuneResult({best}: {self.best.error:.4g} by {self.metric}, {self.ended})"

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
        names = "status", "certified_gap", "gap_scope", "n_rows", "n_support", "kernel_evaluations"
        described = describe(self.fitted)
        seconds = sum(solution.seconds for solution in self.fitted.solutions)
        return {name: described[name] for name in names} | {"seconds": seconds}

    def table(self) -> str:
        """Table of all points that were begun; a star marks the best."""
        error = f"{METRICS[self.metric]} %"
        row = (
            f"{{}} {{:<9}} {{:>8}} {{:>9}} {{:>{len(error)}}} {{:>6}} {{:>7}} {{:>6}} {{:>6}}  {{}}"
        )
        lines = [[" ", "kernel", "C", "gamma", error, "+-", "rows", "SVs", "s", "note"]]
        begun = [point for point in self.points if point.status != "waiting"]
        lines += [["*" if p is self.best else " ", *p.cells()] for p in begun]
        n_left = len(self.points) - len(begun)
        text = [row.format(*line).rstrip() for line in lines]
        return "\n".join(text + [f"{n_left} points were not tried: {self.ended}"] * (n_left > 0))

    def advice(self) -> str | None:
        """What to try next if the best point is at the border of the grid; else None."""
        words = []
        alike = [p for p in self.points if p.kernel == self.kernel and p.error is not None]
        for name, step in (("C", C_STEP), ("gamma", GAMMA_STEP)):
            tried = sorted({getattr(point, name) for point in alike})
            value = getattr(self.best, name)
            if len(tried) > 1 and value in (tried[0], tried[-1]):
                which, factor = ("smaller", 1 / step) if value == tried[0] else ("larger", step)
                more = ",".join(f"{value * factor**k:.3g}" for k in (0, 1, 2))
                words.append(
                    f"the best {name} is at the border of the grid: try {which} ones, with "
                    f"--kernel {self.kernel} --{name} {more}"
                )
        return "; ".join(words) or None


def draw(result: TuneResult, path: str | os.PathLike[str]) -> None:
    """Draw validation errors against C, a curve for each kernel and gamma or a map if many."""
    how = f"{result.folds} folds" if result.folds else f"{result.n_validation} validation rows"
    title = f"{result.n_rows} rows, {how}"
    points = [point for point in result.points if point.status != "compared"]
    save(draw_errors(points, result.best, title, METRICS[result.metric]), path)
