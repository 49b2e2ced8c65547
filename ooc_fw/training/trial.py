"""Small validations: what kernels, a linear model and the constant reach on rows held out.

A third of a random sample is held out. All candidates are trained on the other rows and judged on
the same ones, so that the difference of two scores is surer than either: its standard error is that
of the mean difference of a row.
"""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from ooc_fw.data.rows import CSRRows, Float64Array, Int64Array
from ooc_fw.data.sources import RowSource, rows_source
from ooc_fw.data.statistics import sigma2
from ooc_fw.data.views import draw_parts
from ooc_fw.kernels.functions import Kernel, in_float64, make_kernel, resolve_gamma
from ooc_fw.model.file import as_class_values
from ooc_fw.model.metrics import Residuals, balanced_accuracy, placements
from ooc_fw.model.record import Model
from ooc_fw.options import TrainOptions
from ooc_fw.problem import Problem
from ooc_fw.solver.plan import Session, few_rows
from ooc_fw.solver.state import Status
from ooc_fw.system.errors import InputError
from ooc_fw.system.interrupt import interruption
from ooc_fw.system.memory import OverLimitError
from ooc_fw.training.classification import draw_sample
from ooc_fw.training.fit import fit, make_plan

KERNELS = "rbf", "laplacian"
"""Kernels that "auto" chooses from, the default first."""

SAMPLE_ROWS, BASELINE_ROWS = 5_000, 20_000
"""Rows of a sample that kernels are tried on, and of one for baselines alone."""

_QUICK_ROWS, _QUICK_SHARE = 1_000, 1 / 8  # of a first sample, and its share of the time for both
_FEWEST_ROWS = 30
_HELD_OUT = 3  # of so many rows one is held out
_TOL = 1e-2  # relative gap of the models
_LANDMARKS = 1_000  # of a regression, whose matrices take most of its time
_LEAST_SECONDS = 10.0  # of a time limit, for a comparison
_MEMORY_SHARE = 1 / 16  # of the memory limit, for the rows of a sample
_MOST_WEIGHTS = 2_000_000  # of a linear model, of which scikit-learn holds some twenty copies


class Score(NamedTuple):
    """How good a model is on rows held out."""

    measures: Mapping[str, float | None]  # the first is what scores are compared by
    parts: tuple[Float64Array, ...]  # numbers of rows; the mean of each part is the first measure

    @property
    def value(self) -> float:
        """The AUC of two classes, the accuracy of more, or R^2."""
        return float(self.parts[0].mean())

    def better_by(self, other: Score) -> tuple[float, float]:
        """How much larger it is than another on the same rows, and the standard error of that."""
        pairs = [one - two for one, two in zip(self.parts, other.parts, strict=True)]
        variance = sum(float(difference.var()) / len(difference) for difference in pairs)
        return self.value - other.value, math.sqrt(variance)


def score_classes(codes: Int64Array, places: Int64Array, values: Float64Array | None) -> Score:
    """Score of the predicted classes `places`; `values` are decision values, of two classes."""
    right = places == codes
    counts = (np.bincount(codes[some], minlength=codes.max() + 1) for some in (right, slice(None)))
    measures = {"accuracy": float(right.mean()), "balanced_accuracy": balanced_accuracy(*counts)}
    parts: tuple[Float64Array, ...] = (right.astype(np.float64),)
    if values is not None and len(np.unique(codes)) == 2:
        parts = placements(values, codes == 1)
        measures = {"roc_auc": float(parts[0].mean()), **measures}
    return Score(measures, parts)


def score_targets(targets: Float64Array, predictions: Float64Array) -> Score:
    """Score of predicted targets."""
    residuals = Residuals(float(targets.mean()))
    residuals.add(targets, predictions)
    squares, moved = np.square(targets - predictions), np.square(targets - targets.mean())
    spread = float(moved.mean()) or 1.0
    lost = squares.mean() / spread
    # How much each row moves R^2: through its own residual, and through the spread of the targets.
    return Score(residuals.measures(), (1 - lost - (squares - lost * moved) / spread,))


class Trial:
    """A sample of the rows of a problem, and the `scores` of candidates on a third of it, by name.

    InputError is raised where there is nothing to compare by: for novelty, and for a few rows.
    """

    def __init__(self, problem: Any, options: TrainOptions, size: int = SAMPLE_ROWS) -> None:
        source, self.options = problem.source, options
        if problem.task == "novelty":
            raise InputError("novelty looks at no labels, by which models could be compared")
        size = few_rows(source, size)
        if options.memory_limit is not None:
            row_bytes = max(1, source.decoded_bytes // source.n_rows)
            size = min(size, int(_MEMORY_SHARE * options.memory_limit) // row_bytes)
        if size < _FEWEST_ROWS:
            raise InputError(f"{source.name} has too few rows, or too wide ones, to hold some out")
        sample, ids = draw_sample(source, problem.row_classes, size, options.seed)
        self.n_rows, rng = len(ids), np.random.default_rng(options.seed)
        sizes, codes = [len(ids) // _HELD_OUT], problem.row_classes[ids]
        (ranges,) = draw_parts(len(ids), sizes, False, rng, codes)
        held = np.concatenate([np.arange(*some) for some in ranges])
        self.held_ids = ids[held]  # rows held out, by number, increasing

        def part(places: Int64Array) -> Any:
            rows = rows_source(sample.take(places), source.name)
            return problem.subset(rows, ids[places])

        self.train, self.held_out = part(np.setdiff1d(np.arange(len(ids)), held)), part(held)
        self._session = Session(held=source.in_memory * source.decoded_bytes + sample.decoded_bytes)
        self.scores: dict[str, Score] = {}

    def try_kernel(self, kernel: Kernel) -> None:
        """Score a model with this kernel."""
        problem, exact = replace(self.train, kernel=kernel), self.train.task == "classification"
        options = replace(
            TrainOptions(C=self.options.C, tol=_TOL, exact=exact),
            landmarks=None if exact else min(_LANDMARKS, problem.source.n_rows),
            memory_limit=self.options.memory_limit,
            threads=self.options.threads,
        )
        try:
            plan = make_plan(problem, options, self._session)
        except OverLimitError as error:  # the run itself has room for these rows
            plan = make_plan(problem, replace(options, memory_limit=error.needed), self._session)
        fitted = fit(problem, options, self._session, plan=plan)
        if Status(fitted.model.status).was_asked_for:
            raise interruption(fitted.signal)
        self.scores[kernel.name] = self.judge(fitted.model, self.held_out.source)

    def judge(self, model: Model, rows: RowSource) -> Score:
        """Score of a model on the rows held out, which `rows` are."""
        values = model.decision_function(rows, threads=self.options.threads)
        if model.task == "regression":
            return self._score(values)
        classes, found = as_class_values(self.held_out.classes), model.classes
        labels = found[model.class_places(values)]
        places = np.searchsorted(classes, labels).clip(max=len(classes) - 1)
        places[classes[places] != labels] = -1
        return self._score(places, values if np.array_equal(classes, found) else None)

    def try_baselines(self) -> None:
        """Score a linear model, unless it has too many weights, and the constant."""
        train, zeros = self.train, np.zeros(self.held_out.source.n_rows)
        if train.source.n_features * train.n_classifiers <= _MOST_WEIGHTS:
            self.scores["linear model"] = self._score(*self._linear())
        if train.task == "regression":
            self.scores["constant"] = self._score(zeros + train.targets.mean())
        else:
            self.scores["constant"] = self._score(zeros + np.bincount(train.codes).argmax(), zeros)

    def _score(self, found: Any, values: Float64Array | None = None) -> Score:
        """Score of predicted targets, or places of classes and decision values."""
        if self.train.task == "regression":
            return score_targets(self.held_out.targets, found)
        values = values if self.train.n_classes == 2 else None
        return score_classes(self.held_out.codes, found, values)

    def _linear(self) -> Any:
        """Predictions for the rows held out, and decision values, None of targets."""
        from sklearn.linear_model import LogisticRegression, Ridge
        from sklearn.preprocessing import StandardScaler

        parts = [part.source.read(0, part.source.n_rows) for part in (self.train, self.held_out)]
        scaler = StandardScaler(with_mean=not isinstance(parts[0], CSRRows))
        # One thread, so that the bits do not depend on how many there are.
        with warnings.catch_warnings(), threadpool_limits(1):
            warnings.simplefilter("ignore")  # of steps that end before the optimum
            x, held_out = scaler.fit_transform(in_float64(parts[0])), in_float64(parts[1])
            held_out = scaler.transform(held_out)
            if self.train.task == "regression":
                return Ridge().fit(x, self.train.targets).predict(held_out), None
            model = LogisticRegression().fit(x, self.train.codes)
            return model.predict(held_out), model.decision_function(held_out)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        models = {name: score.measures for name, score in self.scores.items()}
        return {"rows": self.n_rows, "held_out": len(self.held_ids), "models": models}

    def better(self, kernel: str) -> str | None:
        """The best candidate, if it beats this kernel by more than two standard errors.

        Where accuracy is compared, which rare classes hardly move, it must not lose in the mean
        over the classes.
        """
        best = max(self.scores, key=lambda name: self.scores[name].value)
        one, own = self.scores[best], self.scores[kernel]
        gain, error = one.better_by(own)
        means = [score.measures.get("balanced_accuracy") or 0.0 for score in (one, own)]
        loses = next(iter(one.measures)) == "accuracy" and means[0] < means[1]
        return best if gain > 2 * error and not loses else None

    def compared(self, better: str, other: str) -> str:
        """One line that compares the scores of two candidates."""
        one, two = self.scores[better], self.scores[other]
        name, (gain, error) = next(iter(one.measures)), one.better_by(two)
        return (
            f"{better} reaches {name} {one.value:.4f} and {other} {two.value:.4f} (difference "
            f"{gain:.4f}, standard error {error:.4f}) on {len(self.held_ids)} rows held out of a "
            f"sample of {self.n_rows}"
        )


def choose_kernel(
    name: Any,
    gamma: float | str,
    make: Callable[[Any], Any],
    options: TrainOptions,
    session: Session,
) -> tuple[Any, str | None]:
    """The problem that `make` gives for a kernel's name, and for "auto" a line that says why.

    "auto" is the better of `KERNELS` on a sample, each with its own gamma.
    """
    if not isinstance(name, str) or name != "auto":
        return make(name), None
    if not isinstance(gamma, str):
        raise InputError(
            f"kernel auto compares {' and '.join(KERNELS)}, which have a gamma each; leave out the "
            f"gamma {gamma:g}, or name one kernel"
        )
    if session.deadline(options).left() < _LEAST_SECONDS:
        return make(KERNELS[0]), f"kernel {KERNELS[0]}: there is no time to compare it with others"
    problems = [make(each) for each in KERNELS]
    try:
        trial = Trial(problems[0], options)
    except InputError as error:
        raise InputError(f"{error}; name a kernel in place of auto") from None
    for problem in problems:
        trial.try_kernel(problem.kernel)
    best, other = sorted(KERNELS, key=lambda each: trial.scores[each].value, reverse=True)
    problem = problems[KERNELS.index(best)]
    return problem, f"kernel {best}: {trial.compared(best, other)}; --kernel NAME takes another"


def compare(problem: Problem, options: TrainOptions, seconds: float | None = None) -> Trial | None:
    """A trial of the kernel of a problem, of `KERNELS` and of baselines.

    None where there are too few rows for one, or the sample says too little. With `seconds`, a
    small sample comes first, and a larger one only if it will take no longer.
    """
    if seconds is None:
        return _compare(problem, options, SAMPLE_ROWS)
    began = time.monotonic()
    trial = _compare(problem, options, _QUICK_ROWS)
    late = time.monotonic() - began > _QUICK_SHARE * seconds
    if trial is None or late or trial.n_rows >= problem.source.n_rows:
        return trial
    return _compare(problem, options, SAMPLE_ROWS) or trial


def _compare(problem: Problem, options: TrainOptions, size: int) -> Trial | None:
    with contextlib.suppress(InputError):
        trial = Trial(problem, options, size)
        source, kernels = trial.train.source, {problem.kernel.name: problem.kernel}
        for name in KERNELS:
            gamma = resolve_gamma(name, "auto", lambda: sigma2(source), source.n_features)
            kernels.setdefault(name, make_kernel(name, gamma=gamma))
        for kernel in kernels.values():
            trial.try_kernel(kernel)
        trial.try_baselines()
        return trial
    return None


def hints(trial: Trial | None, kernel: str) -> Sequence[str]:
    """A sentence, if another candidate is clearly better than this kernel."""
    best = None if trial is None else trial.better(kernel)
    if trial is None or best is None:
        return []
    what = f"take --kernel {best}" if best in KERNELS else "such a model may do"
    return [f"{trial.compared(best, kernel)}: {what}"]
