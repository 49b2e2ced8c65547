"""Choice of kernel, gamma and C by validation, within a time limit.

candidates: each kernel with several gammas and values of C
train each candidate on a sample of the rows, and validate it on held-out rows
as long as there are more rows, and time for them
    keep the best third, and train them on up to four times as many rows
as long as that helps: try the neighbours of the best two
train the best on all rows: exactly if time permits, else with landmarks

The best linear model is on each sample, too. It is preferred if no other one is better by more than
the noise of the held-out rows.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from ooc_fw.conversion.convert import read_grouping
from ooc_fw.data.encoded import hold_out
from ooc_fw.data.offsets import without_offsets
from ooc_fw.data.rows import AnyArray, Int64Array
from ooc_fw.data.sources import RowSource
from ooc_fw.data.views import SubsetSource, cached, draw_parts
from ooc_fw.kernels.functions import KERNELS
from ooc_fw.model.record import Model, borrow_source
from ooc_fw.options import TASKS, ModelOptions, TrainOptions, option_fields
from ooc_fw.problem import row_penalties
from ooc_fw.solver.plan import Session
from ooc_fw.solver.state import Callback, Status
from ooc_fw.solver.surroundings import Deadline
from ooc_fw.system.errors import InputError, OutOfTimeError, format_label, signal_of
from ooc_fw.system.memory import OverLimitError
from ooc_fw.training.choice import MANY_CLASSES, is_linear, plan_model
from ooc_fw.training.fit import PART_TOL, Fit, fit, fit_part
from ooc_fw.training.prepare import Weights, kernel_for, prepare, stored_weights
from ooc_fw.training.samples import CLASS_ROWS
from ooc_fw.training.tasks import fold_sizes, ordinary_rows, threshold_of

logger = logging.getLogger(__name__)

METRICS_OF = {
    "classification": ("accuracy", "balanced_accuracy", "auc"),
    "novelty": ("balanced_accuracy",),  # the rank of rows would judge no threshold
    "regression": ("r2",),
}
"""Metrics of each task; the first one is its default."""

_LIMIT_S = 600.0  # default time limit, in which the last model is included
_FIRST_ROWS = 1_000  # rows of the first sample
_SPREAD = 100.0  # neighbours go no further than this factor beyond the first values of C and gamma
_CACHE_BYTES = 256 << 20  # memory for the rows of a sample, or of a validation part
_GROUPS = 20  # parts of the held-out rows, which are left out in turn to find the noise
_REFIT_FACTOR = 2.5  # slowdown of the last model: it is certified, and its gap is ten times smaller


@dataclass(frozen=True)
class TuneOptions:
    """What `tune` tries, and how it chooses; InputError for choices that contradict the task."""

    task: str = "classification"
    metric: str = "auto"  # one of `METRICS_OF[task]`; auto is the first
    ordinary: Any = None  # label of the rows that novelty learns; the others serve for validation
    # Kernels to try: by default rbf, laplacian and linear, or rbf alone if gammas are given.
    kernel: str | Sequence[str] = "auto"
    Cs: Sequence[float] | None = None  # the only values to try; None: usual ones and neighbours
    gammas: Sequence[float | str] | None = None  # the same; a value may be "auto" or "scale"

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise InputError(f"task must be one of {', '.join(TASKS)}, not {self.task!r}")
        known = METRICS_OF[self.task]
        if self.metric not in ("auto", *known):
            raise InputError(
                f"the metric {self.metric} is not for {self.task}; choose {' or '.join(known)}"
            )
        if self.gammas is not None and "search" in _listed(self.gammas):
            raise InputError(
                "gamma search is for train, and tune tries several gammas itself: leave out gamma, "
                "or give auto, scale or numbers"
            )

    @property
    def class_weight(self) -> str | None:
        """Weights of the classes: the same for all classes if the metric counts them the same."""
        balanced = self.task == "classification" and self.metric == "balanced_accuracy"
        return "balanced" if balanced else None

    @property
    def kernels(self) -> Sequence[str]:
        """Names of the kernels to try; those of `candidates` may have a linear one besides."""
        if self.kernel == "auto":
            return ["rbf", "laplacian"] if self.gammas is None else ["rbf"]
        return _listed(self.kernel)

    def candidates(self, source: RowSource, options: ModelOptions, threads: int) -> list[Point]:
        """The first candidates, with gammas that suit the rows."""
        names = [*self.kernels]
        if (self.kernel, self.gammas) == ("auto", None) and self.by_columns("linear", options):
            names.insert(0, "linear")  # it takes the least time
        usual = [0.1, 1.0, 10.0, 100.0]
        if self.task == "novelty":
            usual = [300 * C / source.n_rows for C in usual]
        Cs = [TrainOptions(C=C).C for C in (usual if self.Cs is None else _listed(self.Cs))]
        points = []
        for name in names:
            given = ["auto"] if self.gammas is None else _listed(self.gammas)
            kinds = [replace(options, kernel=name, gamma=gamma) for gamma in given]
            kernels = [kernel_for(source, kind, self.task, threads=threads) for kind in kinds]
            gammas = [kernel.gamma for kernel in kernels]
            if self.gammas is None and KERNELS[name].uses_gamma:
                gammas = [factor * gammas[0] for factor in (1.0, 4.0, 1 / 4, 16.0, 1 / 16)]
            points += [Point(C, gamma, name) for gamma in gammas for C in Cs]
        if not points:
            raise InputError("there is nothing to try: give a kernel, a gamma and a C at least")
        return list({(point.kernel, point.C, point.gamma): point for point in points}.values())

    def by_columns(self, kernel: str, options: TrainOptions) -> bool:
        """Whether models with this kernel have weights of columns, which take little time."""
        return self.task != "novelty" and is_linear(kernel, options)


def _listed(values: Any) -> Sequence[Any]:
    """The values of a list; a value alone is a list of one."""
    return [values] if np.ndim(values) == 0 else values


@dataclass
class Point:
    """A candidate (kernel, gamma and C) and its last result."""

    C: float
    gamma: float
    kernel: str = "rbf"
    error: float | None = None  # 1 - metric; None before the first validation
    n_rows: int = 0  # rows that it was trained on
    n_validated: int = 0  # rows that it was validated on
    n_support: int = 0
    seconds: float = 0.0  # time of training and validation on all samples
    stage: int = 0  # number of the last sample that it was trained on, from 1
    # Time of the last training beyond that of few rows, in seconds, divided by rows**growth.
    pace: float = 0.0
    growth: float = 2.0

    @property
    def uses_gamma(self) -> bool:
        """Whether gamma has a meaning for the kernel."""
        return KERNELS[self.kernel].uses_gamma

    def __str__(self) -> str:
        return f"{self.kernel}, C {self.C:.4g}" + f", gamma {self.gamma:.4g}" * self.uses_gamma


@dataclass(frozen=True)
class Linear:
    """The best linear model beside the best model of another kernel, on the same rows."""

    as_good: bool  # whether the other one is better by no more than the noise
    error: float  # 1 - metric of the linear model
    other_error: float
    noise: float  # twice the standard error of the difference
    n_rows: int  # rows that both were trained on
    n_validated: int
    other: str  # kernel, C and gamma of the other one

    def __str__(self) -> str:
        words = "as good" if self.as_good else "not as good"
        error, other, noise = (
            f"{100 * x:.3f} %" for x in (self.error, self.other_error, self.noise)
        )
        return (
            f"a linear model is {words}: its error is {error}, that of {self.other} is {other}, "
            f"and differences up to {noise} are noise (models of {self.n_rows} rows, judged by "
            f"{self.n_validated} others)"
        )


@dataclass(frozen=True)
class TuneResult:
    """The result of a search."""

    points: list[Point]  # all candidates
    best: Point  # the least error, or a linear model that is as good
    linear: Linear | None  # None if there was no linear candidate, or no other one
    fitted: Fit  # the model of the best candidate, of all rows or of the last sample
    metric: str  # the measure by which candidates were compared
    ordinary: str | None  # label of ordinary rows, for novelty
    n_rows: int  # rows that may be trained on: all, or for novelty the ordinary ones
    signal: int | None  # number of the signal that stopped the search or the refit, if one did

    @property
    def model(self) -> Model:
        """Model of the best candidate."""
        return self.fitted.model


def tune(
    data: Any,
    labels: Any = None,
    *,
    groups: Any = None,
    callbacks: Sequence[Callback] = (),
    say: Callable[[str], object] = logger.info,
    **options: Any,
) -> TuneResult:
    """Find the kernel, C and gamma of least validation error, and train on all rows with them.

    Parameters
    ----------
    data, labels
        As for `ooc_fw.open_dataset`; nothing is loaded whole.
    groups
        As for `ooc_fw.split`: rows of one group do not judge a model of others of it.
    callbacks, say
        `callbacks` are as for `ooc_fw.solve`; `say` gets a sentence for each sample and candidate.
    **options
        Fields of `TuneOptions` (`Cs`, `gammas`, `kernel`, `task`, `metric`, ...), of
        `TrainOptions`, the kernel and the task (`degree`, `epsilon`, ...). `max_time` limits the
        whole search, by default to 10 minutes; `tol`, `stopping` and `certify` hold for the last
        model, `landmarks` and `exact` for all models.

    Raises
    ------
    OutOfTimeError, KeyboardInterrupt
        If there is no candidate yet. Later, the best candidate so far is returned.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(200, 2))
    >>> result = tune(X, X[:, 0] > X[:, 1], Cs=[1, 10, 100], gammas=["auto"], max_time=60)
    >>> len(result.points), result.model.status
    (3, 'converged')
    """
    known = {*option_fields(ModelOptions)} - {"C", "gamma", "kernel", "probability"}
    own = {name: options.pop(name) for name in known & {*options}}
    wanted = TuneOptions(**options)
    owners = {"ordinary": "novelty", "contamination": "novelty", "epsilon": "regression"}
    for name in owners.keys() & {*own, *options}:
        if wanted.task != owners[name]:
            raise InputError(f"{name} is for the task {owners[name]}, not for {wanted.task}")
    given = ModelOptions(**own, kernel="linear")
    with borrow_source(data, labels) as opened:
        source = without_offsets(opened, *wanted.kernels)
        _, grouped = read_grouping(opened, groups)
        return _Search(source, given, wanted, grouped, callbacks, say).run()


class _Part(NamedTuple):
    """Rows to train a candidate on, and rows to validate it on."""

    problem: Any  # the problem of the training rows
    held_out: RowSource  # rows for validation
    truth: AnyArray  # answers of the held-out rows: places of classes, or targets
    groups: Int64Array  # numbers below `_GROUPS`, which rows that must stay together share


class _Leader(NamedTuple):
    """The best candidate of the last sample."""

    point: Point
    fitted: Fit
    values: AnyArray  # what it predicts for the held-out rows, as `score` takes them


class _Search:
    """A search for the best candidate, and its state."""

    def __init__(
        self,
        source: RowSource,
        given: ModelOptions,
        wanted: TuneOptions,
        groups: Int64Array | None,
        callbacks: Sequence[Callback],
        say: Callable[[str], object],
    ) -> None:
        self.deadline = Deadline(given.max_time or _LIMIT_S, time.perf_counter())
        self.given = replace(given, max_time=None)
        self.source = source
        self.wanted = wanted
        self.metric = METRICS_OF[wanted.task][0] if wanted.metric == "auto" else wanted.metric
        self.groups = groups
        self.callbacks = callbacks
        self.say = say
        self.ordinary: str | None = None  # label of the rows that novelty learns
        self.learned = np.arange(source.n_rows)  # rows that may be trained on
        self.truth: AnyArray = self.learned  # places of classes, or targets
        self.problem: Any = self._read()  # the problem of these rows
        self.parts: list[_Part] = []
        self.stage = 1  # number of the sample
        self.least_s: dict[str, float] = {}  # time of training a candidate on few rows, by kernel
        self.leaders: dict[bool, _Leader] = {}  # the best linear model, and the best other one
        self.linear: Linear | None = None  # the last comparison of both

    def _read(self) -> Any:
        """Read the answers, make the first candidates, and return the problem of all rows."""
        source = self.source
        task = self.wanted.task
        weights = Weights()
        if task == "novelty":
            self.ordinary, is_ordinary, words = ordinary_rows(source, self.wanted.ordinary)
            self.say(f"{words}, and serve for validation only")
            self.truth = is_ordinary.astype(np.int64)
            self.learned = np.flatnonzero(is_ordinary)
            weights = Weights(rows=is_ordinary)
        stored = stored_weights(source)
        if stored is not None and not stored.all():
            raise InputError(
                f"{source.name} has rows of weight 0, which tune can neither train on nor leave "
                f"out; convert it again without them"
            )
        prepared = prepare(source, task, self.given, weights)
        problem = replace(prepared.problem, penalties=None)  # `_problem_of` has those of a C
        if task != "novelty":
            self.truth = problem.targets if task == "regression" else problem.codes
        if self.metric == "auc" and self.truth.max() > 1:
            raise InputError(
                f"the metric auc is for two classes, but {source.name} has "
                f"{self.truth.max() + 1}; use balanced_accuracy or accuracy"
            )
        self.points = self.wanted.candidates(problem.source, self.given, prepared.threads)
        self.n_first = len(self.points)
        return problem

    def run(self) -> TuneResult:
        """Try the candidates, and train the best one on all rows."""
        signal = None
        try:
            self._try_all()
            best = self.best
            if best is None:
                raise OutOfTimeError(
                    f"the time limit of {self.deadline.max_time:g} s was over before the first "
                    f"candidate was trained; allow more time"
                )
            fitted = self._refit(best.point, best.fitted)
        except KeyboardInterrupt as interrupt:
            best = self.best
            if best is None:
                raise
            signal = signal_of(interrupt)
            fitted = best.fitted
            fitted = replace(fitted, model=replace(fitted.model, status=str(Status.INTERRUPTED)))
        if self.ordinary is not None:
            fitted.model.origin["ordinary"] = self.ordinary
        if self.linear is not None:
            fitted.model.origin["linear"] = str(self.linear)
        about = self.metric, self.ordinary, len(self.learned), signal or fitted.signal
        return TuneResult(self.points, best.point, self.linear, fitted, *about)

    @property
    def best(self) -> _Leader | None:
        """The best candidate: a linear one if it is as good, or if there is no other one."""
        as_good = self.linear is not None and self.linear.as_good
        return self.leaders.get(as_good) or self.leaders.get(True)

    # -- candidates ------------------------------------------------------------------------------

    def _try_all(self) -> None:
        """Try candidates on a sample, the best of them on larger samples, then their neighbours."""
        folds = self._folds()
        most = min(len(np.setdiff1d(self.learned, fold)) for fold in folds)
        n_rows = min(most, max(_FIRST_ROWS, CLASS_ROWS * (int(self.problem.row_classes.max()) + 1)))
        self.parts = [self._part(folds[0], n_rows)]
        # Train once with each kernel: the first training may compile, and would seem slow. Then a
        # few rows show what a training takes at least, in particular if there are many classes.
        few = self._part(folds[0], -(-n_rows // 4))
        for name in dict.fromkeys(point.kernel for point in self.points):
            first = next(point for point in self.points if point.kernel == name)
            self._train(replace(first), self.parts[0])
            started = time.perf_counter()
            self._train(replace(first), few)
            self.least_s[name] = time.perf_counter() - started
        todo = self.points
        while todo:
            self.say(f"stage {self.stage}: {len(todo)} candidates on {n_rows} rows")
            for point in todo:
                self._try(point)
            n_left = sum(point.stage < self.stage for point in todo)
            if n_left > 0:
                self.say(f"stage {self.stage}: there was no time for {n_left} of them")
            kept, larger = self._kept(n_rows, most, len(folds))
            if larger > n_rows or len(self.parts) < len(folds):
                todo = kept + self._narrower(kept, larger / n_rows)
                n_rows = larger
                self.stage += 1
                self.parts = [self._part(fold, n_rows) for fold in folds]
            else:
                known = {*map(str, self.points)}
                best = self._tried(linear=True)[:1] + self._tried(linear=False)[:2]
                near = [each for point in best for each in self._near(point)]
                todo = [*{str(each): each for each in near if str(each) not in known}.values()]
                self.points += todo

    def _kept(self, n_rows: int, most: int, n_parts: int) -> tuple[list[Point], int]:
        """The best third of the candidates, and the size of the next sample; both fit the time.

        The best two linear candidates come besides.
        """
        tried = self._tried(linear=False)
        kept = tried[: max(2, -(-len(tried) // 3))]
        larger = 4 * n_rows if 6 * n_rows <= most else most
        left = max(0.0, self._search_left()) / n_parts
        while len(kept) > 2 and self._seconds(kept, larger) > left / 2:
            kept.pop()
        if kept or False not in self.leaders:
            kept = self._tried(linear=True)[:2] + kept
        seconds = self._seconds(kept, larger)
        if seconds > left:
            larger = int(larger * math.sqrt(left / seconds))
        return kept, larger if larger >= min(1.5 * n_rows, most) else n_rows

    def _near(self, point: Point) -> list[Point]:
        """Candidates that differ from `point` by one step, in one parameter."""
        C, gamma, kernel = point.C, point.gamma, point.kernel
        near = []
        if self.wanted.Cs is None:
            near += [(3 * C, gamma), (C / 3, gamma)]
        if self.wanted.gammas is None and point.uses_gamma:
            near += [(C, 2 * gamma), (C, gamma / 2)]
        first = [(p.C, p.gamma) for p in self.points[: self.n_first] if p.kernel == kernel]
        least = np.min(first, axis=0) / _SPREAD
        most = np.max(first, axis=0) * _SPREAD
        points = [Point(*each, kernel, pace=point.pace, growth=point.growth) for each in near]
        return [p for p in points if least[0] <= p.C <= most[0] and least[1] <= p.gamma <= most[1]]

    def _narrower(self, kept: list[Point], growth: float) -> list[Point]:
        """The best candidate with a larger gamma, which a sample that grows much may bear."""
        best = next((point for point in kept if point.uses_gamma), None)
        if growth < 2 or best is None or self.wanted.gammas is not None:
            return []
        known = {str(point): point for point in self.points}
        more = replace(best, gamma=4 * best.gamma, error=None, stage=0, seconds=0.0)
        if str(more) not in known:
            self.points.append(more)
        more = known.get(str(more), more)
        return [more] if more not in kept else []

    def _tried(self, *, linear: bool) -> list[Point]:
        """Candidates, linear or others, that were tried on the last sample, best first."""
        tried = [point for point in self.points if point.stage == self.stage]
        tried = [point for point in tried if (point.kernel == "linear") == linear]
        return sorted(tried, key=attrgetter("error"))  # equal errors keep their order

    def _try(self, point: Point) -> None:
        """Train and validate a candidate on each part of the sample, if there is time."""
        n_rows = self.parts[0].problem.source.n_rows
        if len(self.parts) * self._seconds([point], n_rows) > self._search_left():
            return
        started = time.perf_counter()
        values = []
        for part in self.parts:
            found = self._train(point, part)
            if found is None:
                return
            predicted, model = self._judged(found.model, part)
            fitted = replace(found, model=model)
            values.append(predicted)
        truths = [part.truth for part in self.parts]
        scores = [score(self.metric, *both) for both in zip(truths, values, strict=True)]
        point.error = 1 - float(np.mean(scores))
        point.n_rows = n_rows
        point.n_validated = sum(len(part.truth) for part in self.parts)
        point.n_support = fitted.model.size
        point.seconds += time.perf_counter() - started
        point.stage = self.stage
        linear = point.kernel == "linear"
        if self._tried(linear=linear)[0] is point:
            self.leaders[linear] = _Leader(point, fitted, np.concatenate(values))
            self._compare()
        unit = "weights" if fitted.model.kind == "linear" else "vectors"
        self.say(f"{point}: error {100 * point.error:.3f} %, {point.n_support} {unit}")

    def _compare(self) -> None:
        """Compare the best linear model with the best other one, if both have seen the sample."""
        both = [leader for leader in self.leaders.values() if leader.point.stage == self.stage]
        if len(both) < 2:
            return
        linear = self.leaders[True]
        other = self.leaders[False]
        truth = np.concatenate([part.truth for part in self.parts])
        groups = np.concatenate([part.groups for part in self.parts])
        changes = []
        for group in np.unique(groups):
            kept = groups != group
            if len(np.unique(truth[kept])) > 1:  # else no metric has a meaning
                scores = [score(self.metric, truth[kept], one.values[kept]) for one in both]
                changes.append(scores[0] - scores[1])
        # The jackknife: what one group changes tells the variance of the whole.
        noise = 2 * math.sqrt((len(changes) - 1) * np.var(changes)) if changes else math.inf
        error = linear.point.error or 0.0
        other_error = other.point.error or 0.0
        self.linear = Linear(
            as_good=error - other_error <= noise,
            error=error,
            other_error=other_error,
            noise=noise,
            n_rows=other.point.n_rows,
            n_validated=other.point.n_validated,
            other=str(other.point),
        )

    def _train(self, point: Point, part: _Part) -> Fit | None:
        """Train a candidate on the rows of a part; None if time or memory is too short."""
        left = max(0.1, self._search_left())
        options = replace(self.given, C=point.C, max_iter=None, max_time=left)
        columns = self.wanted.by_columns(point.kernel, options)
        if options.landmarks is None and not columns:
            many = part.problem.n_classifiers >= MANY_CLASSES and not options.exact
            few = 2_000 if self.wanted.task == "regression" else 500 if many else None
            options = replace(options, landmarks=few, exact=few is None)
        started = time.perf_counter()
        problem = self._problem_of(point, part.problem)
        try:
            fitted = fit_part(problem, options, len(self.learned), Session(self.callbacks))
        except (OutOfTimeError, OverLimitError):
            if self.best is None:
                raise
            return None
        seconds = time.perf_counter() - started
        size = problem.source.n_rows
        if columns:
            point.growth = 1.0
        elif fitted.model.kind == "exact" and size >= 1.5 * point.n_rows:
            # Rows times support vectors take the time. A power of the rows, which bends downwards,
            # goes from the sample before, or from one row, to these support vectors.
            more = len(fitted.model.support_vectors) / max(1, point.n_support)
            power = math.log(more) / math.log(size / max(1, point.n_rows))
            point.growth = 1.0 + min(max(power, 0.0), 1.0)
        least_s = self.least_s.get(point.kernel, 0.0)
        point.pace = max(0.0, seconds - least_s) / size**point.growth
        return None if fitted.model.status == Status.TIME_LIMIT else fitted

    def _problem_of(self, point: Point, problem: Any) -> Any:
        """The problem with the kernel and the penalties of a candidate."""
        kind = replace(self.given, kernel=point.kernel, gamma=point.gamma)
        changes: dict[str, Any] = {"kernel": kernel_for(problem.source, kind)}
        weights = stored_weights(problem.source)
        if self.wanted.class_weight is not None or weights is not None:
            classes = getattr(problem, "classes", np.zeros(1))
            given = classes, problem.row_classes, self.wanted.class_weight, weights
            changes["penalties"] = row_penalties(point.C, *given)
        return replace(problem, **changes)

    def _judged(self, model: Model, part: _Part) -> tuple[AnyArray, Model]:
        """What a model predicts for the held-out rows of a part, and the model with its threshold.

        For novelty with `contamination`, the held-out ordinary rows choose the threshold.
        """
        of_places = self.metric not in ("auc", "r2")
        share = self.given.contamination
        how: dict[str, Any] = {"threads": self.given.threads}
        how["labels_only"] = of_places and share is None
        values: AnyArray = model.decision_function(part.held_out, **how)
        if share is not None:
            margin = model.offset or 1.0
            scores = 1.0 + values[part.truth == 1] / margin
            offset = margin * threshold_of(scores, share)
            model = replace(model, offset=offset)
            values = values + margin - offset
        if of_places:
            values = model.class_places(values)
        return values, model

    def _seconds(self, points: Sequence[Point], n_rows: int) -> float:
        """Expected time of training the candidates: that of few rows, and what grows with them."""
        least_s = sum(self.least_s.get(point.kernel, 0.0) for point in points)
        more: float = sum(point.pace * n_rows**point.growth for point in points)
        return least_s + more

    def _search_left(self) -> float:
        """Seconds that are left for the search; the last training keeps up to half of the limit."""
        best = self.best
        if best is None:
            return self.deadline.left()
        # The factor 4 allows for `_REFIT_FACTOR`, and for trainings that end late.
        seconds = 4.0 * self._last_seconds(best.point)
        return self.deadline.left() - min(seconds, self.deadline.max_time / 2)

    def _last_seconds(self, best: Point) -> float:
        """Expected time of training on all rows, with the four models that choose a threshold."""
        factor = 1.0 if self.given.contamination is None else 3.0
        return factor * self._seconds([best], len(self.learned))

    # -- samples ---------------------------------------------------------------------------------

    def _folds(self) -> list[Int64Array]:
        """Parts of the rows to hold out in turn: one part, or four if there are few rows."""
        n = self.source.n_rows
        sizes = fold_sizes(n)
        if not 0 < sizes[0] < n or sum(sizes) > n:
            raise InputError(
                f"{self.source.name} has {n} rows, too few to train on some and validate on others"
            )
        rows = np.arange(n)
        folds = self._draw(rows, sizes, self.groups)
        if self.metric == "r2":
            return folds
        # Each class has a row in every part, and the training rows of no part lack a class.
        for k, fold in enumerate(folds):
            held = fold if self.groups is not None else self._completed(fold, rows)
            kept = self.truth[np.setdiff1d(self.learned, held)]
            lost = np.setdiff1d(self.truth[self.learned], kept)
            if self.groups is not None and len(lost) > 0:
                raise InputError(
                    f"all training rows of a class are in groups that are held out together; give "
                    f"{self.source.name} more groups with this class, or another seed"
                )
            folds[k] = held[~np.isin(self.truth[held], lost)]
            for code in np.setdiff1d(self.truth, self.truth[folds[k]])[: k == 0].tolist():
                name = format_label(self.problem.classes[code])
                self.say(f"the class {name} has too few rows: it judges no candidate")
        return folds

    def _completed(self, rows: Int64Array, others: Int64Array) -> Int64Array:
        """The rows, and one of the `others` for each class that the rows lack."""
        codes = self.truth[others]
        lacking = np.setdiff1d(codes, self.truth[rows])
        return np.union1d(rows, others[[int(np.argmax(codes == code)) for code in lacking]])

    def _draw(
        self, rows: Int64Array, sizes: list[int], groups: Int64Array | None = None
    ) -> list[Int64Array]:
        """Draw disjoint random parts of `rows`, with the same share of each class."""
        codes = None if self.wanted.task == "regression" else self.truth[rows]
        rng = np.random.default_rng(self.given.seed)
        shuffled = self.source.shuffled is True
        parts = draw_parts(len(rows), sizes, shuffled, rng, codes, groups)
        return [rows[part] for part in parts]

    def _part(self, held: Int64Array, n_rows: int) -> _Part:
        """The held-out rows, and a sample of up to `n_rows` of the others to train on."""
        rest, judged = hold_out(self.source, held)
        rows = np.intersect1d(rest.rows, self.learned)
        if n_rows < len(rows):
            (drawn,) = self._draw(rows, [n_rows])
            rows = drawn if self.metric == "r2" else self._completed(drawn, rows)
        truth = self.truth[judged.rows]
        if self.metric == "auc" and len(np.unique(truth)) < 2:
            raise InputError(
                f"one of the two classes of {self.source.name} has one row only, on which auc "
                f"cannot both train and judge; use more rows, or another metric"
            )
        room = min(_CACHE_BYTES, (self.given.memory_limit or 8 * _CACHE_BYTES) // 8)
        train = cached(SubsetSource(rest.source, rows), room)
        problem = self.problem.subset(train, np.searchsorted(self.learned, rows))
        together = judged.rows if self.groups is None else self.groups[judged.rows]
        return _Part(problem, cached(judged, room), truth, together % _GROUPS)

    # -- the last model --------------------------------------------------------------------------

    def _refit(self, best: Point, fitted: Fit) -> Fit:
        """The last model: of all rows, or of the last sample if time is short."""
        n_rows = len(self.learned)
        left = max(1.0, 0.8 * self.deadline.left())  # the rest is for the certificate
        options = replace(self.given, C=best.C, gamma=best.gamma, max_time=left)
        problem = self._problem_of(best, self.problem)
        session = Session(self.callbacks)
        late = _REFIT_FACTOR * self._last_seconds(best) > left
        with suppress(OutOfTimeError, OverLimitError):
            # If an exact model of all rows takes too long, held-out rows choose another one.
            exact = options.exact or (fitted.model.kind == "exact" and not late)
            plan = plan_model(problem, replace(options, exact=exact), session)
            wanted = "exact: the time is expected to suffice"
            kind = wanted if exact and not options.exact else plan.kind
            self.say(f"the best, {best}, on all {n_rows} rows: {kind}")
            of_all = fit(problem, plan.given, session, None, plan)
            status = Status(of_all.model.status)
            gap = of_all.model.certified_gap
            unfinished = status in (Status.TIME_LIMIT, Status.SUPPORT_LIMIT)
            finished = not unfinished or (gap is not None and gap <= PART_TOL)
            # If it is without a threshold, the model of the last sample has a better one.
            if of_all.signal is not None or (finished and not of_all.missing):
                return of_all
        self.say(f"time or memory did not suffice for a model of more than {best.n_rows} rows")
        return fitted


def score(metric: str, truth: AnyArray, values: AnyArray) -> float:
    """A metric; `values` are places of classes, decision values ("auc") or predictions ("r2").

    scikit-learn's metrics are not used: their import takes 126 MiB, too much for small limits.
    """
    if metric == "accuracy":
        return float((truth == values).mean())
    if metric == "balanced_accuracy":
        return float(np.mean([(values[truth == code] == code).mean() for code in np.unique(truth)]))
    if metric == "r2":
        residuals = np.square(truth - values).sum()
        return float(1 - residuals / np.square(truth - truth.mean()).sum())
    # Mann and Whitney: how often a row of class 1 ranks above a row of class 0; a tie counts half.
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]
    n_positive = np.count_nonzero(truth)
    above = ranks[truth > 0].sum() - n_positive * (n_positive + 1) / 2
    return float(above / (n_positive * (len(truth) - n_positive)))
