"""Choosing kernel, gamma, C and weights of classes by validation, within a time limit.

    candidates: each kernel with some gammas and values of C
    train each on a sample of the rows, and validate it on rows that nothing is trained on
    as long as there are more rows, and time for them
        keep the best third, and train them on up to four times the rows
    as long as that helps: try the neighbours of the best
    train the best on all rows; with time left, go on with its neighbours

The clock bounds the search. How long a training will take follows from trainings that were
measured, and the time that the last model needs is kept for it. If that one is not finished in
time, or is worse, the result is the finished model of the same candidate on fewer rows.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

import numpy as np
from sklearn import metrics

from ooc_fw.data.encoded import hold_out
from ooc_fw.data.offsets import without_offsets
from ooc_fw.data.rows import AnyArray, Int64Array
from ooc_fw.data.sources import RowSource
from ooc_fw.data.statistics import sigma2, variance
from ooc_fw.data.views import CachedSource, SubsetSource, complement, draw_parts, ranges_of
from ooc_fw.kernels.functions import KERNELS, Kernel, make_kernel, resolve_gamma
from ooc_fw.model.metrics import METRICS
from ooc_fw.model.record import Model, borrow_source
from ooc_fw.options import TASKS, SearchOptions, TrainOptions
from ooc_fw.problem import row_penalties
from ooc_fw.solver.plan import Plan, Session, plan_exact
from ooc_fw.solver.run import Warm
from ooc_fw.solver.state import Callback, Solution, Status
from ooc_fw.system.errors import InputError, OutOfTimeError
from ooc_fw.system.interrupt import interruption, signal_of
from ooc_fw.system.memory import OverLimitError
from ooc_fw.training.classification import MOST_SUPPORT, plan_span
from ooc_fw.training.fit import Fit, describe, fit, make_plan, task_of
from ooc_fw.training.held_out import before_calibration, calibrated
from ooc_fw.training.novelty import ordinary_rows

logger = logging.getLogger(__name__)

SEARCH_SECONDS = 600.0
"""Time limit unless another one is given; the last model is part of it."""

PATH_TOL = 1e-2
"""Relative gap of the models that are compared. On ijcnn1, errors at 1e-2 and 1e-3 differ by a
fifth of their standard error at most, and the choice does not."""

AUTO_KERNELS = ("rbf", "laplacian")
GAMMA_FACTORS = (1 / 16, 1 / 4, 1.0, 4.0, 16.0)  # multiples of gamma auto to begin with
GAMMA_STEP = 2.0
CS = (0.1, 1.0, 10.0, 100.0)
C_STEP = 3.0
NOVEL_CS = (30.0, 300.0, 3_000.0, 30_000.0)  # divided by the number of rows

_FIRST_ROWS = 1_000  # of the first sample
_MORE_ROWS = 4  # times the rows of a sample in the next one
_KEPT = 3  # one of so many candidates goes on to the next sample
_FEW_ROWS = 20_000  # up to so many rows a candidate is validated on several parts
_PARTS = 4
_MOST_VALIDATED = 20_000  # rows of a validation part
_LANDMARKS = 2_000  # of candidates of a regression
_CACHE_BYTES = 256 << 20  # of the rows of a sample, or of a validation part, that stay in RAM
_REFIT_SHARE = 0.5  # of the time of the search, at most, that is kept for the last model
_REFIT_FACTOR = 2.0  # its time over that of a candidate: its gap is a tenth, and certified
_EXACT_SHARE = 0.7  # of the time that is left, at most, for an exact last model; else landmarks
_LAST_SHARE = 0.85  # of the time that is left, for a model that little follows
_SPARE = 1.3  # times the time that a training is expected to take, which must be left
_COMFORT = 2.0  # the same for a larger sample, whose trainings may grow faster than those before
_UNBALANCED = 0.5  # share of the largest class below which another one is small

METRICS_OF = {
    "classification": ("accuracy", "balanced_accuracy", "auc"),
    "novelty": ("auc", "balanced_accuracy"),
    "regression": ("r2",),
}
"""Metrics of each task; the first one is its default."""


@dataclass(frozen=True)
class TuneOptions(SearchOptions):
    """What `tune` tries, beside how it validates; InputError for what cannot be tried.

    Parameters
    ----------
    task, ordinary, contamination, epsilon, degree, coef0
        As in training; novelty is validated by labels, and learns ordinary rows alone.
    kernel : str or sequence of str
        Kernels; "auto" is rbf and laplacian, or rbf alone if `gammas` or `sigma2s` are given.
    Cs, gammas, sigma2s : iterable of float, optional
        Candidates. A gamma may be "auto" or "scale"; a sigma2 is a squared width of the RBF kernel.
    refit, probability : bool
        Whether the best candidate is trained on all rows, and gives probabilities.
    """

    task: str = "classification"
    ordinary: Any = None
    contamination: float | None = None
    epsilon: float | None = None
    kernel: str | Sequence[str] = "auto"
    degree: int = 2
    coef0: float = 0.0
    Cs: Iterable[float] | None = None
    gammas: Iterable[float | str] | None = None
    sigma2s: Iterable[float] | None = None
    refit: bool = True
    probability: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.task not in TASKS:
            raise InputError(f"task must be one of {', '.join(TASKS)}, not {self.task!r}")
        owners = {"ordinary": "novelty", "contamination": "novelty", "epsilon": "regression"}
        if self.probability:
            owners["probability"] = "classification"
        for name, owner in owners.items():
            if getattr(self, name) is not None and self.task != owner:
                raise InputError(f"{name} is for the task {owner}, not for {self.task}")
        known = METRICS_OF[self.task]
        if self.metric not in ("auto", *known):
            raise InputError(
                f"the metric {self.metric} is not for {self.task}; choose by {' or '.join(known)}"
            )
        if self.sigma2s is not None and (self.gammas is not None or self.kernel_names != ("rbf",)):
            raise InputError("sigma2s are widths of the rbf kernel, in place of gammas; give one")

    @property
    def chosen_metric(self) -> str:
        """What candidates are compared by."""
        return METRICS_OF[self.task][0] if self.metric == "auto" else self.metric

    @property
    def kernel_names(self) -> tuple[str, ...]:
        """The kernels by name."""
        if self.kernel == "auto":
            return AUTO_KERNELS if self.gammas is None and self.sigma2s is None else ("rbf",)
        return (self.kernel,) if isinstance(self.kernel, str) else tuple(self.kernel)

    def kernels(self, source: RowSource, threads: int) -> list[Kernel]:
        """Kernels with their scales: for each name the middle gamma first, then outwards."""
        average, spread = (partial(find, source, threads) for find in (sigma2, variance))
        found = []
        for name in self.kernel_names:
            given: list[float | str] = ["auto"] if self.gammas is None else list(self.gammas)
            if self.sigma2s is not None:
                given = [*(1 / (2 * value) for value in _increasing("sigma2", self.sigma2s))]
            gammas = [
                resolve_gamma(name, gamma, average, source.n_features, spread, self.task)
                for gamma in given
            ]
            searched = self.gammas is None and self.sigma2s is None
            if searched and name in KERNELS and KERNELS[name].uses_gamma:
                gammas = [factor * gammas[0] for factor in GAMMA_FACTORS]
            gammas = _increasing("gamma", gammas)
            middle = len(gammas) // 2
            order = sorted(range(len(gammas)), key=lambda k: (abs(k - middle), -k))
            found += [self.make(name, gammas[k]) for k in order]
        return found

    def make(self, name: str, gamma: float) -> Kernel:
        """Kernel of a candidate."""
        return make_kernel(name, gamma=gamma, degree=self.degree, coef0=self.coef0)


def _increasing(name: str, values: Iterable[float]) -> list[float]:
    """Different positive numbers in increasing order."""
    numbers = sorted({float(value) for value in values})
    if not numbers or not 0 < numbers[0] <= numbers[-1] < math.inf:
        raise InputError(f"the values of {name} must be positive numbers, at least one")
    return numbers


@dataclass
class Point:
    """A candidate: kernel, gamma, C and weights of the classes; and how it did at last."""

    C: float
    gamma: float
    kernel: str = "rbf"
    class_weight: str | None = None  # "balanced", or none
    error: float | None = None  # 1 - metric; None before a first validation
    n_rows: int = 0  # that it was trained on
    n_validated: int = 0
    n_support: int = 0
    kernel_evaluations: int = 0  # of training, on all samples
    seconds: float = 0.0  # of training and validation, on all samples
    stage: int = 0  # number of the last sample that it was trained on
    status: str = "waiting"  # or "tried", "unfinished"
    note: str = ""  # why it was left out of a larger sample
    # Seconds and support vectors of a training, by the number of rows.
    sizes: dict[int, tuple[float, int]] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        weights = ", balanced classes" if self.class_weight else ""
        return f"{self.kernel}, C {self.C:.4g}, gamma {self.gamma:.4g}{weights}"

    def order(self) -> tuple[float, float, float]:
        """The best of some candidates that were validated alike is the first in this order."""
        assert self.error is not None
        return self.error, self.C, self.gamma

    def neighbours(self, wanted: TuneOptions, *, weights: bool) -> list[Point]:
        """Candidates a step away, with `weights` also the one with balanced classes or without."""
        changes: list[dict[str, Any]] = []
        if wanted.Cs is None:
            changes += [{"C": self.C * C_STEP}, {"C": self.C / C_STEP}]
        scaled = self.kernel in KERNELS and KERNELS[self.kernel].uses_gamma
        if scaled and wanted.gammas is None and wanted.sigma2s is None:
            changes += [{"gamma": self.gamma * GAMMA_STEP}, {"gamma": self.gamma / GAMMA_STEP}]
        if weights:
            changes += [{"class_weight": None if self.class_weight else "balanced"}]
        same = Point(self.C, self.gamma, self.kernel, self.class_weight)
        return [replace(same, **change, sizes=dict(self.sizes)) for change in changes]

    def expected(self, n_rows: int) -> tuple[float, float]:
        """Seconds and support vectors of a training on so many rows.

        They follow from the power laws through the last two measured trainings, or from the powers
        1.5 and 1. Far beyond what was measured, time grows with the square of the rows.
        """
        if not self.sizes:
            return 0.0, 0.0
        (few, before), (rows, last) = ([*sorted(self.sizes.items())] * 2)[-2:]
        powers = [1.5, 1.0]
        if rows > few:
            growth = np.log(np.divide(last, before)) / np.log(rows / few)
            powers = np.clip(growth, [1.5, 0.0], [2.5, 1.0]).tolist()
        ratio = n_rows / rows
        power = max(2.0, powers[0]) if ratio > _MORE_ROWS else powers[0]
        return last[0] * ratio**power, last[1] * ratio ** powers[1]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {name: value for name, value in vars(self).items() if name != "sizes"}


@dataclass(frozen=True, repr=False)
class TuneResult:
    """What a search found."""

    points: list[Point]  # all candidates
    best: Point  # least error; of equals the smallest C, then the smallest gamma
    fitted: Fit | None  # the best one trained on all rows, or on fewer; None without a refit
    task: str
    metric: str  # what candidates were compared by
    ordinary: str | None  # label of ordinary rows, of novelty
    n_rows: int
    n_learned: int  # rows that may be trained on: all, or those that are ordinary
    n_validation: int  # rows in the (first) validation part
    seed: int  # of the parts and of all trainings
    ended: str  # why the search ended, in words
    interrupted: bool  # whether the search was stopped before its end
    signal: int | None  # number of the signal that stopped the search or the refit, if one did
    seconds: float

    def __repr__(self) -> str:
        return f"TuneResult({self.best}: {METRICS[self.metric]} {self.best.error:.4g})"

    @property
    def model(self) -> Model | None:
        """Model of the refit."""
        return None if self.fitted is None else self.fitted.model

    @property
    def kernel_evaluations(self) -> int:
        """Kernel values of all trainings but the last."""
        return sum(point.kernel_evaluations for point in self.points)

    def to_dict(self) -> dict[str, Any]:
        """Plain values without the model, for JSON."""
        left_out = "points", "best", "fitted", "signal"
        plain = {name: value for name, value in vars(self).items() if name not in left_out}
        return plain | {
            "kernel": self.best.kernel,
            "best": self.best.to_dict(),
            "refit": self.refit(),
            "kernel_evaluations": self.kernel_evaluations,
            "points": [point.to_dict() for point in self.points],
        }

    def refit(self) -> dict[str, Any] | None:
        """How the refit went."""
        if self.fitted is None:
            return None
        names = "status", "certified_gap", "gap_scope", "n_rows", "n_support", "kernel_evaluations"
        described = describe(self.fitted)
        seconds = sum(solution.seconds for solution in self.fitted.solutions)
        more = {"seconds": seconds, "calibrated": self.fitted.model.calibrated}
        return {name: described[name] for name in names} | more

    def table(self) -> str:
        """Table of all candidates: those that were tried, and the others with the reason."""
        error = f"{METRICS[self.metric]} %"
        row = f"{{}} {{:<9}} {{:>8}} {{:>9}} {{:>{len(error)}}} {{:>6}} {{:>7}} {{:>6}}  {{}}"
        lines = [row.format(" ", "kernel", "C", "gamma", error, "rows", "SVs", "s", "note")]
        begun = [point for point in self.points if point.status != "waiting"]
        for point in begun:
            cells = [
                "*" if point is self.best else " ",
                *(point.kernel, f"{point.C:.6g}", f"{point.gamma:.4g}"),
                "" if point.error is None else f"{100 * point.error:.3f}",
                *(point.n_rows or "", point.n_support or "", f"{point.seconds:.2f}"),
                ", ".join(
                    filter(None, ["balanced classes" * bool(point.class_weight), point.note])
                ),
            ]
            lines.append(row.format(*cells).rstrip())
        n_left = len(self.points) - len(begun)
        lines += [f"{n_left} candidates were not tried: {self.ended}"] * (n_left > 0)
        return "\n".join(lines)


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

    Parameters
    ----------
    data, labels
        As for `ooc_fw.open_dataset`; nothing is loaded whole.
    options : TrainOptions, optional
        Options of each training. `C` is not used; `tol`, `stopping` and `certify` are for the last
        model; `max_time` is the limit in all, 10 minutes by default. `landmarks` and `exact` say
        what all models are; without them the search chooses.
    callbacks : sequence of Callback
        They are told of every iteration of every training.
    on_point : callable, optional
        It is called with every candidate after its validation.
    on_stage : callable, optional
        It is called with a sentence on each sample before it is drawn.
    **search
        Fields of `TuneOptions` (`Cs`, `gammas`, `kernel`, `task`, `metric`, ...) and of
        `TrainOptions` (`max_time`, `memory_limit`, `threads`, ...).

    Raises
    ------
    InputError
        For data or values that cannot be used, or a training part without one of the classes.
    OutOfTimeError, KeyboardInterrupt
        Before the first candidate was tried. Later, the result is what is known by then.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(200, 2))
    >>> result = tune(X, X[:, 0] > X[:, 1], Cs=[1, 10, 100], gammas=["auto"], max_time=60)
    >>> len(result.points), result.model.status
    (3, 'converged')
    """
    known = {each.name for each in fields(TrainOptions)} - {"C"}
    training = {name: search.pop(name) for name in known & {*search}}
    unknown = {*search} - {each.name for each in fields(TuneOptions)}
    if unknown:
        way = "; give candidates for C as Cs" if "C" in unknown else ""
        raise InputError(f"tune has no option {', '.join(sorted(unknown))}{way}")
    options = replace(options or TrainOptions(), **training)
    wanted = TuneOptions(**search)
    with borrow_source(data, labels) as opened:
        source = without_offsets(opened, *wanted.kernel_names)
        return _Search(source, options, wanted, callbacks, on_point, on_stage).run()


@dataclass(frozen=True)
class _Part:
    """What a candidate is trained on, and the rows that it is validated by."""

    problem: Any  # of the rows to train on
    rows: Int64Array  # their numbers among the rows that may be trained on
    held_out: RowSource
    truth: AnyArray  # of the rows held out


class _Search:
    """A search, and what it knows so far."""

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
        self.limit = options.max_time or SEARCH_SECONDS
        self.whole, self.wanted, self.callbacks = source, wanted, callbacks
        self.metric, self.on_point, self.on_stage = wanted.chosen_metric, on_point, on_stage
        self.given = replace(options, max_time=None)
        task = task_of(wanted.task)
        task.check(self.given)
        self.label: str | None = None  # of ordinary rows
        # Rows of the whole source that are novel, and those that are ordinary.
        self.novel = np.zeros(0, dtype=np.int64)
        self.ordinary: Int64Array | None = None
        if wanted.task == "novelty":
            self.label, is_ordinary, words = ordinary_rows(source, wanted.ordinary)
            self._say(f"{words}, for validation alone")
            self.ordinary, self.novel = np.flatnonzero(is_ordinary), np.flatnonzero(~is_ordinary)
            source = SubsetSource(source, ranges_of(self.ordinary))
        answers, threads = task.read(source, self.given)
        kernels = wanted.kernels(source, threads)
        given = {name: getattr(wanted, name) for name in task.fields}
        given = {name: value for name, value in given.items() if value is not None}
        self.problem = task.problem(source=source, kernel=kernels[0], **answers, **given)
        self.n_rows = source.n_rows
        # Class of each row that may be trained on, of which every part has its share.
        self.codes: Int64Array | None = getattr(self.problem, "codes", None)
        self.truth: Any = getattr(self.problem, "targets", self.codes)
        if self.metric == "auc" and self.codes is not None and self.problem.n_classes != 2:
            raise InputError(
                f"the metric auc is for two classes, and {source.name} has "
                f"{self.problem.n_classes}; use balanced_accuracy or accuracy"
            )
        Cs = CS if wanted.Cs is None else _increasing("C", wanted.Cs)
        if wanted.task == "novelty" and wanted.Cs is None:
            Cs = [C / self.n_rows for C in NOVEL_CS]
        self.points = [Point(C, kernel.gamma, kernel.name) for kernel in kernels for C in Cs]
        self.folds = self._folds()
        self.n_train = self.n_rows - max(int(np.diff(fold).sum()) for fold in self.folds)
        self.parts: list[_Part] = []
        self.stage = self.stage_rows = 0
        self.best: Point | None = None  # of the last sample
        self.known: tuple[Point, Fit, _Part] | None = None  # the best one, and its model
        self.known_error = math.inf  # of this model, on this part
        self.trained: Point | None = None  # candidate of the last model
        self.fitted: Fit | None = None  # this model
        self.signal: int | None = None  # that ended its training
        self.refit_seconds: float | None = None  # that it took
        self.most_kept = _REFIT_SHARE * self.limit  # seconds, for the last model
        self.ended = "all of them and their neighbours were tried"

    def run(self) -> TuneResult:
        """Try the candidates, and train the best one on all rows."""
        signal, interrupted = None, False
        try:
            self._halve()
            self._climb()
            while self.wanted.refit and self.best is not self.trained and self.signal is None:
                self._refit()
                if self.signal is None:
                    self._climb()
        except KeyboardInterrupt as interrupt:
            signal, interrupted = signal_of(interrupt), True
            self.ended = "it was interrupted"
            if self.known is None:
                raise interruption(signal) from None
            if self.wanted.refit and self.fitted is None:
                self.trained, of_sample, part = self.known
                model = replace(of_sample.model, status=str(Status.INTERRUPTED))
                self.fitted = replace(of_sample, model=model).renumbered(part.rows, self.n_rows)
        best = self.trained or self.best
        if best is None:
            raise OutOfTimeError(
                f"the time limit of {self.limit:g} s was over before a candidate was tried; allow "
                f"more time"
            )
        fitted = self.fitted
        if fitted is not None and self.ordinary is not None:
            fitted = fitted.renumbered(self.ordinary, self.whole.n_rows)
        return TuneResult(
            points=self.points,
            best=best,
            fitted=fitted,
            task=self.wanted.task,
            metric=self.metric,
            ordinary=self.label,
            n_rows=self.whole.n_rows,
            n_learned=self.n_rows,
            n_validation=len(self.parts[0].truth),
            seed=self.given.seed,
            ended=self.ended,
            interrupted=interrupted,
            signal=self.signal or signal,
            seconds=time.perf_counter() - self.started,
        )

    def _folds(self) -> list[Int64Array]:
        """Ranges of the rows that are held out together: one part, or several of few rows."""
        n, share = self.n_rows, self.wanted.validation_share
        sizes = [min(round(share * n), _MOST_VALIDATED)]
        if n <= _FEW_ROWS:
            sizes = [max(1, min(round(share * n), n // _PARTS))] * _PARTS
        if not 0 < sizes[0] < n or sum(sizes) > n:
            raise InputError(
                f"a validation part must have some rows of {self.whole.name} and leave others to "
                f"train on, and there are {n}, which is too few for a share of {share}"
            )
        rng = np.random.default_rng(self.given.seed)
        shuffled = self.problem.source.shuffled is True
        return draw_parts(n, sizes, shuffled, rng, self.codes)

    def _open_parts(self, n_rows: int, n_folds: int) -> None:
        """Draw samples of so many rows, for each fold from the rows that it does not hold out."""
        rng, source = np.random.default_rng(self.given.seed), self.problem.source
        self.parts = []
        room = min(_CACHE_BYTES, (self.given.memory_limit or 8 * _CACHE_BYTES) // 8)
        for held in self.folds[:n_folds]:
            rest, judged = hold_out(source, held)
            rows = rest.rows
            if n_rows < len(rows):
                codes = None if self.codes is None else self.codes[rows]
                (chosen,) = draw_parts(len(rows), [n_rows], source.shuffled is True, rng, codes)
                rows = rest.rows_at(np.concatenate([np.arange(*pair) for pair in chosen]))
            train = CachedSource(SubsetSource(rest.source, ranges_of(rows)), room)
            if self.ordinary is None:
                truth = self.truth[judged.rows]
            else:
                few = rng.permutation(self.novel)[:_MOST_VALIDATED]
                both = np.sort(np.concatenate([self.ordinary[judged.rows], few]))
                learned = ranges_of(self.ordinary[rest.rows])
                encoded, _ = hold_out(self.whole, complement(learned, self.whole.n_rows))
                judged = SubsetSource(encoded.source, ranges_of(both))
                truth = np.isin(both, self.ordinary).astype(np.int64)
            codes = None if self.codes is None else self.codes[rows]
            lacks = codes is not None and len(np.unique(codes)) < self.problem.n_classes
            if lacks or (self.metric == "auc" and len(np.unique(truth)) < 2):
                raise InputError(
                    f"a part of {self.whole.name} has no rows of one class; use more rows, another "
                    f"seed, or another validation share"
                )
            problem = self.problem.subset(train, rows)
            self.parts.append(_Part(problem, rows, CachedSource(judged, room), truth))

    def _left(self) -> float:
        """Seconds until the time limit."""
        return self.limit - (time.perf_counter() - self.started)

    def _search_left(self) -> float:
        """Seconds until the refit of the best candidate has to begin; all without one."""
        kept = 0.0 if self.best is None or not self.wanted.refit else self._refit_time(self.best)
        return self._left() - kept

    def _refit_time(self, best: Point) -> float:
        """Seconds that are kept for the last model."""
        if self.refit_seconds is not None:  # a model that is there stays if time is short
            return self.refit_seconds
        # If the exact model takes no more than this, there is time for it.
        seconds = _SPARE * _REFIT_FACTOR / _EXACT_SHARE * best.expected(self.n_rows)[0]
        return min(2 * seconds if self.wanted.probability else seconds, self.most_kept)

    def _halve(self) -> None:
        """Try all candidates on a sample, and the best of them on larger ones."""
        n_rows, n_folds, todo = min(self.n_train, _FIRST_ROWS), 1, self.points
        self._open_parts(n_rows, n_folds)
        # A first training with a kernel may compile, which tells nothing of the others.
        for name in self.wanted.kernel_names:
            first = next(point for point in self.points if point.kernel == name)
            self._train(replace(first, sizes={}), self.parts[0], max(self._left(), 0.1))
        self.most_kept = _REFIT_SHARE * self._left()
        while todo:
            self.stage += 1
            self.stage_rows = n_rows
            what = f"{len(todo)} candidates trained on {n_rows} rows"
            self._say(f"stage {self.stage}: {METRICS[self.metric]} of {what}")
            for point in todo:
                if self._search_left() > 0:
                    self._try(point)
                elif point.stage:
                    point.note = f"no time on {n_rows} rows"
            if self._search_left() <= 0:
                self.ended = "time for the search was over"
            if n_rows == self.n_train and n_folds == len(self.folds):
                return
            n_folds = len(self.folds)
            todo, n_rows = self._next_stage(n_rows)
            if todo:
                self._open_parts(n_rows, n_folds)

    def _next_stage(self, n_rows: int) -> tuple[list[Point], int]:
        """Candidates that go on, and the rows of their sample; none if there is no time."""
        tried = self._tried()
        kept = tried[: max(2, -(-len(tried) // _KEPT))]
        for name in self.wanted.kernel_names if self.stage == 1 else ():
            kept += [point for point in tried if point.kernel == name and point not in kept][:1]
        larger = min(self.n_train, _MORE_ROWS * n_rows)
        if 1.5 * larger > self.n_train:
            larger = self.n_train
        left = self._search_left()
        while len(kept) > 2 and self._cost(kept, larger) > left / 2:
            kept.pop().note = f"no time on {larger} rows"
        cost = _COMFORT * self._cost(kept, larger)
        if cost > left > 0:
            larger = int(larger * math.sqrt(left / cost))
        if left <= 0 or (larger < 1.5 * n_rows and n_rows < self.n_train):
            self.ended = f"there is no time for {len(kept)} candidates on more than {n_rows} rows"
            return [], n_rows
        for point in tried:
            if point not in kept:
                point.note = point.note or f"{len(kept)} are better"
        return kept, larger

    def _tried(self) -> list[Point]:
        """Candidates that were tried on the last sample, the best first."""
        return sorted(
            (p for p in self.points if p.stage == self.stage and p.status == "tried"),
            key=Point.order,
        )

    def _cost(self, points: Sequence[Point], n_rows: int) -> float:
        """Seconds that candidates may take on so many rows."""
        return len(self.folds) * sum(point.expected(n_rows)[0] for point in points)

    def _climb(self) -> None:
        """Try the neighbours of the best two as long as that helps."""
        counts = np.ones(1) if self.codes is None else np.bincount(self.codes)
        weights = self.metric != "accuracy" and bool(counts.min() < _UNBALANCED * counts.max())
        before: list[Point] = []
        while self._tried()[:2] != before:
            before = self._tried()[:2]
            near = [n for point in before for n in point.neighbours(self.wanted, weights=weights)]
            for point in near:
                if str(point) in map(str, self.points):
                    continue
                spare = _SPARE if self.fitted is None else 1.0
                if spare * self._cost([point], self.stage_rows) > self._search_left():
                    self.ended = "time for the search was over"
                    return
                self.points.append(point)
                self._try(point)

    def _try(self, point: Point) -> None:
        """Train and validate a candidate on each part of the sample."""
        errors, fits = [], []
        for part in self.parts:
            fitted = self._train(point, part, max(self._search_left(), 0.1))
            if fitted is None:
                point.status = "unfinished"
                point.note = f"unfinished, no time or memory on {len(part.rows)} rows"
                return
            started = time.perf_counter()
            errors.append(score_point(fitted.model, part, self.metric, self.given.threads))
            point.seconds += time.perf_counter() - started
            fits.append(fitted)
        point.error = float(np.mean(errors))
        point.n_rows = len(self.parts[0].rows)
        point.n_validated = sum(len(part.truth) for part in self.parts)
        point.n_support = len(fits[0].model.support_vectors)
        point.stage = self.stage
        point.status = "tried"
        point.note = ""
        if self._tried()[0] is point:
            self.best = point
            self.known = point, fits[0], self.parts[0]
            self.known_error = errors[0]
        if self.on_point is not None:
            self.on_point(point)

    def _train(self, point: Point, part: _Part, limit: float) -> Fit | None:
        """Model of a candidate on the rows of a part; None if it takes longer than the limit."""
        problem, n_rows = self._problem_of(point, part.problem), len(part.rows)
        # Rows of one class share the weight: the same model of fewer rows has a larger C.
        more = self.n_rows / n_rows if self.wanted.task == "novelty" else 1.0
        changes: dict[str, Any] = {"C": more * point.C, "tol": max(PATH_TOL, self.given.tol)}
        changes |= {"stopping": "relative", "certify": False, "max_iter": None, "max_time": limit}
        if self.given.landmarks is None:
            few = _LANDMARKS if self.wanted.task == "regression" else None
            changes |= {"landmarks": few, "exact": few is None}
        options = replace(self.given, **changes)
        started = time.perf_counter()
        try:
            fitted = fit(problem, options, Session(self.callbacks))
        except OutOfTimeError:
            return None
        except OverLimitError:
            if self.best is None:
                raise
            return None
        status, seconds = Status(fitted.model.status), time.perf_counter() - started
        if status.was_asked_for:
            raise interruption(fitted.signal)
        point.seconds += seconds
        point.kernel_evaluations += sum(each.kernel_evaluations for each in fitted.solutions)
        if status is Status.TIME_LIMIT:
            return None
        if part is self.parts[0]:
            point.sizes[n_rows] = max(seconds, 1e-3), len(fitted.model.support_vectors)
        return fitted

    def _problem_of(self, point: Point, problem: Any) -> Any:
        """The problem with the kernel and the weights of classes of a candidate."""
        problem = replace(problem, kernel=self.wanted.make(point.kernel, point.gamma))
        if point.class_weight is None:
            return problem
        given = point.C, problem.classes, problem.codes, point.class_weight
        return replace(problem, penalties=row_penalties(*given))

    def _refit(self) -> None:
        """Train the best candidate on all rows, or on its sample if there is no time for all.

        A model of all rows stays if there is no time for a better one.
        """
        best, started = self.best, time.perf_counter()
        assert best is not None
        fitted = self._of_all_rows(best)
        if fitted is None and self.fitted is not None:
            self._say(f"that is not finished: the model stays that of {self.trained}")
            self.best = self.trained
            return
        if fitted is None:
            self._say(f"no model of all rows is finished and better than that of {self.stage_rows}")
            fitted = self._of_sample()
        if self.wanted.probability and self.signal is None:
            fitted = self._calibrated(fitted)
        if self.signal is None or self.fitted is None:
            self.fitted = fitted
            self.trained = best
        self.refit_seconds = time.perf_counter() - started

    def _of_all_rows(self, best: Point) -> Fit | None:
        """Model of all rows; None if none is finished in time, or none better than the sample's.

        An exact one is tried if it is expected in its share of the time that is left. What it
        leaves is for landmarks, of which there are as many as time affords.
        """
        given = self.given
        if given.exact or given.landmarks is not None or self.wanted.task == "regression":
            return self._finished(best, make_plan, _LAST_SHARE)
        seconds, support = best.expected(self.n_rows)
        if _REFIT_FACTOR * seconds <= _EXACT_SHARE * self._left() and support <= MOST_SUPPORT:
            why = "exact: there is time for it"
            fitted = self._finished(best, partial(plan_exact, kind=why), _EXACT_SHARE, support)
            if fitted is not None:
                return fitted
        why = ": as many as the time affords"
        plan_of = partial(plan_span, n_landmarks=None, why=why)
        fitted = self._finished(best, plan_of, _LAST_SHARE)
        if fitted is None or self.signal is not None or self.known is None:
            return fitted
        # The model saw these rows, and the one of the sample did not: if it is worse, it is so.
        error = score_point(fitted.model, self.known[2], self.metric, self.given.threads)
        return fitted if error <= self.known_error else None

    def _finished(
        self, best: Point, plan_of: Callable[..., Plan], share: float, support: float = 0.0
    ) -> Fit | None:
        """A model of all rows in a share of the time that is left; None if it is not finished."""
        options = replace(self.given, C=best.C, max_time=max(1.0, share * self._left()))
        if self.wanted.probability:
            options = before_calibration(self.problem, options)
        problem, session = self._problem_of(best, self.problem), Session(self.callbacks)
        try:
            plan = plan_of(problem, options, session)
            if plan.memory.max_vertices < support:
                return None
            self._say(f"the best, {best}, on all {self.n_rows} rows: {plan.kind}")
            fitted = fit(problem, options, session, self._warm(plan), plan)
        except (OutOfTimeError, OverLimitError):
            return None
        self.signal = fitted.signal
        gap = fitted.model.certified_gap
        late = Status(fitted.model.status) is Status.TIME_LIMIT
        return None if late and (gap is None or gap > PATH_TOL) else fitted

    def _warm(self, plan: Plan) -> list[Warm] | None:
        """Weights of the last model of all rows, or of the sample, for an exact one."""
        if plan.landmarks is not None or self.known is None or self.wanted.task == "regression":
            return None
        _, fitted, part = self.known
        rows = part.rows
        if self.fitted is not None and self.fitted.landmarks is None:
            fitted = self.fitted
            rows = np.arange(self.n_rows)
        exact = [each for each in fitted.solutions if isinstance(each, Solution)]
        return [(rows[each.rows], each.alpha) for each in exact] or None

    def _of_sample(self) -> Fit:
        """The model of the best candidate on its sample, with a certificate if there is time."""
        assert self.known is not None
        point, fitted, part = self.known
        left = self._left()
        if point.expected(len(part.rows))[0] < left:
            options = replace(fitted.plan.given, certify=self.given.certify, max_time=left)
            exact = [one for one in fitted.solutions if isinstance(one, Solution)]
            warm = [(each.rows, each.alpha) for each in exact] or None
            with contextlib.suppress(OutOfTimeError):
                found = fit(fitted.problem, options, Session(self.callbacks), warm)
                if Status(found.model.status).reached:
                    fitted = found
        return fitted.renumbered(part.rows, self.n_rows)

    def _calibrated(self, fitted: Fit) -> Fit:
        """The same with probabilities, if there is time for them."""
        options = replace(self.given, max_time=max(1.0, self._left()))
        try:
            return replace(fitted, model=calibrated(fitted, options, Session(self.callbacks)))
        except OutOfTimeError:
            logger.warning("no time was left: the model gives no probabilities")
            return fitted

    def _say(self, sentence: str) -> None:
        if self.on_stage is not None:
            self.on_stage(sentence)


def score_point(model: Model, part: _Part, metric: str, threads: int) -> float:
    """1 - metric of a model on the rows held out of a part."""
    labels_only, truth = metric not in ("auc", "r2"), part.truth
    values = model.decision_function(part.held_out, threads=threads, labels_only=labels_only)
    if metric == "r2":
        return 1 - float(metrics.r2_score(truth, values))
    if metric == "auc":
        return 1 - float(metrics.roc_auc_score(truth, values))
    score = metrics.accuracy_score if metric == "accuracy" else metrics.balanced_accuracy_score
    return 1 - float(score(truth, model.class_places(values)))
