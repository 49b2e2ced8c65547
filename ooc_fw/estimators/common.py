"""What all estimators share: `fit` with checked inputs and files of a run, and predictions."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np
import numpy.typing as npt
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from ooc_fw.data.labels import are_numbers, check_labels
from ooc_fw.data.offsets import without_offsets
from ooc_fw.data.opening import (
    borrow_source,
    check_unmasked,
    is_annotated,
    is_several,
    names_of_frame,
)
from ooc_fw.data.parallel import Workers, borrow_workers
from ooc_fw.data.rows import Float64Array, Int64Array, Rows
from ooc_fw.data.sources import RowSource
from ooc_fw.data.statistics import sigma2, variance
from ooc_fw.data.views import SubsetSource, ranges_of
from ooc_fw.estimators.parameters import Parameters
from ooc_fw.kernels.functions import Kernel, make_kernel, resolve_gamma
from ooc_fw.landmarks import LandmarkSolution
from ooc_fw.model.machines import PairSolution
from ooc_fw.model.record import Model
from ooc_fw.options import DURATION, Option, TrainOptions, option_fields
from ooc_fw.problem import check_sample_weight, row_penalties
from ooc_fw.report.progress import EventLog, Progress
from ooc_fw.solver.plan import Session, warn_of_gamma
from ooc_fw.solver.state import Callback, Solution, SolverState, Status
from ooc_fw.solver.surroundings import Checkpoint, Deadline
from ooc_fw.system.errors import InputError
from ooc_fw.system.files import Output, check_outputs
from ooc_fw.system.threads import cpu_count
from ooc_fw.training.checkpoint import EVERY_S, Resumed, load_resumed
from ooc_fw.training.choice import check_options
from ooc_fw.training.fit import (
    FIELDS,
    Fit,
    WarmStart,
    describe,
    fit,
    make_problem,
    read_answers,
)

try:
    from sklearn.callback import CallbackSupportMixin, with_callbacks
except ImportError:  # it is older than 1.9, and has no callbacks

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """In the place of what is not there."""


PathLike: TypeAlias = str | os.PathLike[str]


class Trainer(CallbackSupportMixin, Parameters):
    """`fit`, which is the same for all estimators but for its task, and what follows from it."""

    class_weight: Mapping[Any, float] | str | None = None

    model_: Model
    pairs_: list[PairSolution]
    landmarks_: LandmarkSolution | None

    _task: ClassVar[str]
    """Name of the task, see `ooc_fw.options.TASKS`."""

    _checks_of_y: ClassVar[Mapping[str, bool] | None] = {}
    """What scikit-learn is to check of labels or targets; None where `y` is not looked at."""

    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: npt.ArrayLike | None = None,
        *,
        missing_labels: str = "refuse",
        checkpoint: PathLike | None = None,
        checkpoint_every: float | str = EVERY_S,
        resume: PathLike | None = None,
        log: PathLike | None = None,
    ) -> Self:
        """Train on the rows of `X`.

        Parameters
        ----------
        X : anything `ooc_fw.open_dataset` takes, such as a path or a list of paths
            Rows; `FrankWolfeOneClass` takes all of them for ordinary.
        y : array-like of shape (n_rows,), path or None
            Labels of two classes or more, for `FrankWolfeSVR` targets; None takes those stored in
            the file `X`. `FrankWolfeOneClass` does not look at it.
        sample_weight : array-like of shape (n_rows,), optional
            Factors of the penalty of each row: a weight of 2 has the effect of a copy of the row.
            They must not be negative; rows of weight 0 are left out.
        missing_labels : {"refuse", "drop"}
            Whether rows without a label in a column of a file are an error, or are left out and not
            counted.
        checkpoint, checkpoint_every : path, and seconds or text such as "5m"
            Model file that is written every so often with the weights so far.
        resume : path
            Checkpoint of the same data and parameters, from which the run continues; only
            `max_iter`, `max_time`, `memory_limit` and `n_jobs` may differ.
        log : path
            File of one JSON object per event, for ``ooc-fw plot``.

        Notes
        -----
        With scikit-learn 1.9 or later, `set_callbacks` takes its callbacks. Each step of a run is a
        task, whose ``metadata["state"]`` is an `ooc_fw.SolverState`; after the end of one for which
        a callback returns True, the run ends with the status `stopped`.
        """
        started = time.perf_counter()
        options = self._options()
        check_options(self._task, options)
        given = [] if self._checks_of_y is None else [y]
        inputs = [X, *given]
        resumed = None if resume is None else load_resumed(resume)
        if resumed is not None:
            options = resumed.options(options)
            if self.random_state is None:
                options = replace(options, seed=resumed.run["identity"]["options"]["seed"])
        kept = _checkpoint(checkpoint, checkpoint_every)
        X, *given, columns = self._checked(X, *given, **(self._checks_of_y or {}))
        y = given[0] if given else None
        if is_array(y) and self._task == "classification":
            check_classification_targets(y)
        workers = nullcontext() if self.dask is None else borrow_workers(self.dask, options.threads)
        _check_files(log, checkpoint, resume, inputs)
        with (
            borrow_source(X, y, columns, missing_labels) as whole,
            workers as dask,
            self._callbacks(X=X, y=y) as told,
        ):
            whole = without_offsets(whole, self.kernel)
            source, weights, places = _of_weight(whole, sample_weight, self.C)
            with source.limited(Deadline(options.max_time, started).check):
                problem = self._problem(source, weights, options, dask)
            warn_of_gamma(source, problem.kernel)
            events = None if log is None else self._begin_log(problem, options, log, resume)
            with Progress(quiet=not self.verbose, log=events) as progress:
                if kept is not None and places is not None:
                    kept.rows = places, whole.n_rows
                warm = self._last_weights(problem, places) if resumed is None else resumed
                if isinstance(warm, Resumed):
                    warm = replace(warm, rows=places)
                session = Session((*progress.callbacks, *told), dask, started, kept)
                fitted = self._fit(problem, options, session, warm)
                if events is not None:
                    events.write("end", describe(fitted))
            fitted = self._finished(fitted, options, session)
            self._take(fitted, weights)
            if places is not None:
                fitted = fitted.renumbered(places, whole.n_rows)
            self._keep(fitted, whole.n_rows)
        if self.fit_status_:
            rounding = fitted.model.status == Status.ROUNDING
            advice = "" if rounding else "; allow more with max_iter or tol"
            warnings.warn(f"{fitted.why_inexact()}{advice}", ConvergenceWarning, stacklevel=2)
        return self

    def _keep(self, fitted: Fit, n_rows: int) -> None:
        """Set the attributes that all estimators have."""
        self.model_ = fitted.model
        self.pairs_ = fitted.pairs
        self.landmarks_ = fitted.landmarks
        self.gap_scope_ = fitted.gap_scope
        self.n_rows_seen_ = n_rows
        self.n_features_in_ = self.model_.n_features
        self._name_features()
        self.fit_status_ = int(fitted.why_inexact() is not None)

    @contextmanager
    def _callbacks(self, **data: Any) -> Iterator[list[Callback]]:
        """A callback that tells those of scikit-learn, if there are any, of each step."""
        if not getattr(self, "_skl_callbacks", ()):
            yield []
            return
        last: Any = None

        def tell(state: SolverState) -> bool | None:
            nonlocal last
            place = state.classifier, state.phase, state.iteration, state.certified_gap
            if place == last:  # another part of one pass over the rows
                return None
            last = place
            told = {"estimator": self, **data, "metadata": {"state": state}}
            task = whole.subcontext(state.phase.value).call_on_fit_task_begin(**told)
            return not task.call_on_fit_task_end(**told)

        try:
            whole = self._init_callback_context(max_subtasks=None)
            whole.call_on_fit_task_begin(estimator=self, **data)
            yield [tell]
            whole.call_on_fit_task_end(estimator=self, **data, reconstruction_attributes={})
        finally:
            with_callbacks(lambda _: None)(self)  # ends all that was begun

    def _problem(
        self,
        source: RowSource,
        weights: Float64Array | None,
        options: TrainOptions,
        dask: Workers | None,
    ) -> Any:
        weighted = self.class_weight is not None or weights is not None
        answers = read_answers(self._task, source, options, weighted=weighted)[0]
        answers |= {name: getattr(self, name) for name in FIELDS[self._task]}
        classes = answers.get("class_labels", np.zeros(1))
        codes = answers.get("codes", np.zeros(source.n_rows, dtype=np.int8))
        penalties = row_penalties(self.C, classes, codes, self.class_weight, weights)
        kernel = self._kernel(source, options, dask)
        return make_problem(
            self._task, source=source, kernel=kernel, penalties=penalties, **answers
        )

    def _last_weights(self, problem: Any, places: Int64Array | None) -> WarmStart:
        """What `fit` begins with, for rows of these numbers among all."""
        return None

    def _fit(
        self, problem: Any, options: TrainOptions, session: Session, warm: WarmStart | Resumed
    ) -> Fit:
        return fit(problem, options, session, warm)

    def _finished(self, fitted: Fit, options: TrainOptions, session: Session) -> Fit:
        """The same with what comes after training."""
        return fitted

    def _take(self, fitted: Fit, weights: Float64Array | None) -> None:
        """Set further attributes of a fit on rows of these weights."""

    def _name_features(self) -> None:
        """Set the names that the data have and scikit-learn did not see."""
        self._of_frame = hasattr(self, "feature_names_in_")
        names = self.model_.columns
        if not self._of_frame and names is not None and not are_numbers(names):
            self.feature_names_in_ = np.array(names, dtype=object)

    @property
    def gamma_(self) -> float:
        if not self.model_.kernel.uses_gamma:
            raise AttributeError(f"the kernel {self.model_.kernel.name} has no gamma")
        return self.model_.kernel.gamma

    @property
    def solution_(self) -> Solution | LandmarkSolution:
        return self.pairs_[0].solution if self.landmarks_ is None else self.landmarks_

    @property
    def n_iter_(self) -> int:
        if self.landmarks_ is not None:
            return self.landmarks_.iterations
        return sum(pair.solution.iterations for pair in self.pairs_)

    @property
    def kind_(self) -> str:
        return self.model_.kind

    @property
    def support_(self) -> Int64Array:
        return self.model_.rows

    @property
    def support_vectors_(self) -> Rows:
        return self.model_.support_vectors

    @property
    def dual_coef_(self) -> Float64Array:
        return self.model_.weights().T

    @property
    def certified_gap_(self) -> float | None:
        return self.model_.certified_gap

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model file that ``ooc-fw predict`` and `ooc_fw.load_model` read."""
        check_is_fitted(self)
        self.model_.save(path)

    def _decide(self, X: Any, labels_only: bool = False) -> Float64Array:
        check_is_fitted(self)
        dask = self.dask if is_out_of_core(X) else None
        X, columns = self._checked(X, reset=False)
        how: dict[str, Any] = {"threads": threads_of(self.n_jobs), "dask": dask}
        if columns is None:
            return self.model_.decision_function(X, **how, labels_only=labels_only)
        with borrow_source(X, columns=columns) as source:
            return self.model_.decision_function(source, **how, labels_only=labels_only)

    def _checked(self, X: Any, *y: Any, reset: bool = True, **checks: Any) -> tuple[Any, ...]:
        """Rows, and labels if any, as scikit-learn checks those in RAM, and names of the features.

        scikit-learn demands that frames come with the columns of the frame of `fit`, in their
        order. Columns of a frame are found by name after a `fit` on anything else with names.
        """
        check_unmasked(X, "array")
        for each in filter(is_array, y):
            check_unmasked(each, "labels")
            check_labels(np.asarray(each).ravel(), 0, "y", targets=True)
        names: Sequence[str] | None = names_of_frame(X)
        in_order = reset or names is None or self._of_frame
        by_name = names is not None and not in_order and self.model_.columns is not None
        if by_name or is_out_of_core(X):
            if reset:
                self.__dict__.pop("feature_names_in_", None)
            columns = (column_or_1d(each, warn=True) if is_array(each) else each for each in y)
            return X, *columns, None
        checks = {"accept_sparse": "csr", "dtype": "numeric", "reset": reset, **checks}
        checked = validate_data(self, X, *y, **checks)
        if not reset and in_order:
            names = self.model_.columns
        return *(checked if y else [checked]), names

    def __sklearn_is_fitted__(self) -> bool:
        """A first call that failed may have left attributes of the data, but no model."""
        return hasattr(self, "model_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _options(self) -> TrainOptions:
        names = option_fields(TrainOptions)
        given = {name: value for name, value in self.get_params(False).items() if name in names}
        seed = self.random_state
        if not isinstance(seed, int | np.integer):
            seed = check_random_state(seed).randint(np.iinfo(np.int32).max)
        return TrainOptions(**given, seed=int(seed), threads=threads_of(self.n_jobs))

    def _kernel(
        self, source: RowSource, options: TrainOptions, workers: Workers | None = None
    ) -> Kernel:
        average, spread = (
            partial(find, source, options.threads, dask=workers) for find in (sigma2, variance)
        )
        name = self.kernel
        width = source.n_features
        gamma = resolve_gamma(name, self.gamma, average, width, spread, self._task)
        return make_kernel(name, gamma=gamma, degree=self.degree, coef0=self.coef0)

    def _begin_log(
        self, problem: Any, options: TrainOptions, log: PathLike, resume: PathLike | None
    ) -> EventLog:
        return EventLog(
            os.fspath(log),
            resume=None if resume is None else os.fspath(resume),
            data=problem.source.name,
            class_weight=self.class_weight,
            n_rows=problem.source.n_rows,
            n_features=problem.source.n_features,
            kernel=problem.kernel.to_dict(),
            options=options.to_dict(),
        )


def _checkpoint(path: PathLike | None, every: float | str) -> Checkpoint | None:
    every_s = Option(None, **DURATION).check("checkpoint_every", every)
    return None if path is None else Checkpoint(path, every_s)


def _check_files(
    log: PathLike | None, checkpoint: PathLike | None, resume: PathLike | None, inputs: list[Any]
) -> None:
    """InputError if an output cannot be written, or would replace an input."""
    outputs = [] if log is None else [Output("log", os.fspath(log), streamed=True)]
    check_outputs(outputs, [None if resume is None else os.fspath(resume)])
    if checkpoint is not None:
        outputs.append(Output("checkpoint", os.fspath(checkpoint)))
    files = [file for given in inputs for file in (given if is_several(given) else [given])]
    check_outputs(outputs, [path for path in files if isinstance(path, str | os.PathLike)])


def _of_weight(
    source: RowSource, sample_weight: npt.ArrayLike | None, C: float
) -> tuple[RowSource, Float64Array | None, Int64Array | None]:
    """Rows whose weight, times `C`, is not 0, their weights, and their numbers unless all have."""
    if sample_weight is None:
        return source, None, None
    weights = check_sample_weight(sample_weight, source.n_rows, C)
    if weights.all():
        return source, weights, None
    places = np.flatnonzero(weights)
    return SubsetSource(source, ranges_of(places)), weights[places], places


def is_out_of_core(X: Any) -> bool:
    """Whether `X` is read block by block, rather than checked as a whole by scikit-learn."""
    package = type(X).__module__.partition(".")[0]
    on_disk = isinstance(X, str | os.PathLike | np.memmap | RowSource) or is_annotated(X)
    return on_disk or is_several(X) or package in ("h5py", "dask", "zarr")


def is_array(y: Any) -> bool:
    """Whether labels are values in RAM, rather than in a file."""
    return not (y is None or (is_out_of_core(y) and not isinstance(y, np.memmap)))


def threads_of(n_jobs: int | None) -> int:
    """Count threads by scikit-learn's convention."""
    if n_jobs is None:
        return 1
    if n_jobs == 0:
        raise InputError("n_jobs must be a positive number, -1 for all CPUs, or None, not 0")
    return n_jobs if n_jobs > 0 else max(1, cpu_count() + 1 + n_jobs)
