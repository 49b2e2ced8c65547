"""What all estimators share: parameters, `fit`, checks of inputs, and predictions."""

from __future__ import annotations

import inspect
import logging
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from ooc_fw.data.arrays import check_unmasked
from ooc_fw.data.containers import check_no_dates, is_annotated, names_of_frame, without_column
from ooc_fw.data.labels import LARGEST_LABEL, check_labels, renamed, typed
from ooc_fw.data.opening import borrow_source, input_files
from ooc_fw.data.parallel import borrow_workers
from ooc_fw.data.rows import CSRRows, Float64Array, Int64Array, Rows
from ooc_fw.data.sources import RowSource, rows_source
from ooc_fw.data.structure import is_checkpoint
from ooc_fw.data.views import SubsetSource, are_numbers
from ooc_fw.landmarks import LandmarkSolution
from ooc_fw.model.machines import PairSolution
from ooc_fw.model.record import Model
from ooc_fw.options import (
    DURATION,
    KernelOptions,
    ModelOptions,
    Option,
    TrainOptions,
    option_fields,
)
from ooc_fw.report.progress import EventLog, Progress, is_log
from ooc_fw.solver.plan import Session
from ooc_fw.solver.state import Solution, Status
from ooc_fw.solver.surroundings import Checkpoint
from ooc_fw.system.errors import DeferredInterrupt, InputError
from ooc_fw.system.files import Output, StrPath, check_outputs
from ooc_fw.system.threads import cpu_count
from ooc_fw.training.checkpoint import EVERY_S, load_resumed
from ooc_fw.training.fit import Fit, describe, fit
from ooc_fw.training.prepare import Prepared, Weights, prepare

logger = logging.getLogger(__name__)

_WORDS = {
    "n_jobs": "number of threads; None means 1, -1 all CPUs",
    "random_state": "source of all random draws; an integer is the seed of ``ooc-fw train --seed``",
    "verbose": "above 0: show progress on standard error",
    "dask": "None, threads, processes or the address of a cluster: where Dask runs readings of the "
    "data and predictions; processes and clusters need the data in a file",
    "keep": "largest number of rows that `partial_fit` keeps for each pair of classes",
    "class_weight": "factors of `C` for the rows of each class, by label; missing classes have 1. "
    "balanced: n_rows / (n_classes * rows of the class), in which rows count by their weight",
    "probability": "make `predict_proba` available; `fit` takes up to twice as long",
    "certify": "whether `fit` ends with a reading of all rows, which certifies the gap",
    "exact": "train to the optimum, as with `landmarks` none",
}
"""Parameters of the estimators that are not options of training, or mean more than these."""

_ATTRIBUTES = """support_, support_vectors_ : ndarray of int64, and ndarray or CSRRows
    Numbers of the support vectors or landmarks in the training data, and these rows. A linear model
    has none.
dual_coef_, intercept_ : ndarray of float64, shapes (n_classifiers, n_support) and (n_classifiers,)
    Weight of each of these rows in the decision values; constant added to the weighted sums.
coef_ : ndarray of float64, shape (n_classifiers, n_features)
    Weights of the features, for the linear kernel only.
certified_gap_, fit_status_ : float or None, and int
    Certified relative duality gap of the worst classifier, or None; 0 if the gap reached `tol`,
    otherwise 1, with a warning.
objective_gap_ : float or None
    Certified share by which the objective of the worst classifier may be above the best one.
gap_scope_ : str
    "all" if the gap is to the optimum, "weighted" if other rows have weight 0, "span" if it is to
    the best weights of the landmarks, "chunk" after `partial_fit`: for the rows in memory.
n_iter_, n_features_in_ : int
    Iterations and columns.
gamma_ : float
    The number that was used for `gamma`.
feature_importances_ : ndarray of float64, shape (n_features,)
    How much each column matters, over the support vectors or landmarks, computed anew at each
    access; ``model_.importance(X)`` computes it over other rows. Not for linear models.
feature_names_in_ : ndarray of object, shape (n_features,)
    Names of the columns, if a frame, an AnnData or a file names them.
model_ : ooc_fw.Model
    The model that `save` writes; `kind` is "exact", "landmarks" or "linear", and `kernel.gamma` is
    a number.
solution_ : ooc_fw.Solution or ooc_fw.landmarks.LandmarkSolution
    Everything that the solver reports; for several pairs of classes, about the first pair."""

# The parameter that allows more, by the status of a run that ended before its tolerance.
_LIMITS = {"max_iter": "max_iter", "time_limit": "max_time", "support_limit": "memory_limit"}

_Estimator = TypeVar("_Estimator", bound=type)


def documented(estimator: _Estimator) -> _Estimator:
    """Add parameters and common attributes to the docstring of an estimator."""
    declared = option_fields(ModelOptions)
    words = {name: option.help for name, option in declared.items()} | _WORDS
    lines = [f"{own.name} : {own.type}\n    {words[own.name]}" for own in fields(estimator)]
    text = inspect.cleandoc(estimator.__doc__ or "")
    estimator.__doc__ = text.format(parameters="\n".join(lines), attributes=_ATTRIBUTES)
    return estimator


@dataclass(eq=False, repr=False)
class Trainer(BaseEstimator):
    """Base of the estimators: `fit` for the task of the class, and everything they share."""

    kernel: str = KernelOptions.kernel
    gamma: float | str = "auto"  # as in scikit-learn, `fit` searches no parameter unless told to
    degree: int = KernelOptions.degree
    coef0: float = KernelOptions.coef0
    C: float = TrainOptions.C
    tol: float = TrainOptions.tol
    certify: bool = TrainOptions.certify
    max_iter: int | None = TrainOptions.max_iter
    max_time: float | str | None = TrainOptions.max_time
    memory_limit: int | str | None = TrainOptions.memory_limit
    n_jobs: int | None = None
    random_state: int | np.random.RandomState | None = None
    verbose: int = 0
    dask: str | None = None

    _task: ClassVar[str]
    """One of `ooc_fw.options.TASKS`."""

    _checks_of_y: ClassVar[Mapping[str, bool] | None] = {}
    """scikit-learn's checks of labels or targets; None if the estimator ignores `y`."""

    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: npt.ArrayLike | None = None,
        *,
        x_name: str | None = None,
        checkpoint: StrPath | None = None,
        checkpoint_every: float | str = EVERY_S,
        resume: StrPath | None = None,
        log: StrPath | None = None,
    ) -> Self:
        """Train on the rows of `X`.

        Parameters
        ----------
        X : anything `ooc_fw.open_dataset` takes, such as a path of a file
            Rows; `FrankWolfeOneClass` takes all of them as ordinary.
        y : array-like of shape (n_rows,), path, name or None
            Labels of two classes or more, or targets of `FrankWolfeSVR`. A name such as "cell_type"
            selects those in `X`; None takes "y" of a file. `FrankWolfeOneClass` ignores it.
        sample_weight : array-like of shape (n_rows,), optional
            Factors of the penalty of each row: a weight of 2 has the effect of a copy of the row.
            Like `y`, they have the order of the rows before any conversion.
            They must not be negative; rows of weight 0 are left out. A file may have weights of its
            own (``convert --weight``).
        x_name : str, optional
            Name of the rows in an HDF5 file, a zarr store or an AnnData object, such as
            "layers/counts". Predictions for other files take the same name unless they get another.
        checkpoint, checkpoint_every : path, and seconds or text such as "5m"
            Model file to which the weights so far are written, and the time between two writes.
        resume : path
            Checkpoint of the same data and parameters, from which the run continues; only
            `max_iter`, `max_time`, `memory_limit` and `n_jobs` may differ.
        log : path
            File for events of the run, one JSON object per line, for ``ooc-fw plot``.
        """
        started = time.perf_counter()
        options = self._options()
        resumed = None if resume is None else load_resumed(resume)
        if resumed is not None:
            options = resumed.options(options)
            if self.random_state is None:
                options = replace(options, seed=resumed.run["identity"]["options"]["seed"])
        every_s = Option(None, **DURATION).check("checkpoint_every", checkpoint_every)
        kept = None if checkpoint is None else Checkpoint(checkpoint, every_s)
        X, y = without_column(X, y)
        given = [] if self._checks_of_y is None else [y]
        _check_files(log, checkpoint, resume, [X, *given])
        X, *given, columns = self._checked(X, *given, **(self._checks_of_y or {}))
        y = given[0] if given else None
        if is_array(y) and self._task == "classification":
            check_classification_targets(y)
        workers = nullcontext() if self.dask is None else borrow_workers(self.dask, options.threads)
        with (
            borrow_source(X, y, columns, x_name=x_name) as source,
            workers as dask,
            DeferredInterrupt() as interrupt,
        ):
            if X is not source and sample_weight is not None:
                sample_weight = source.by_row(np.asarray(sample_weight), "weights")
            weights = Weights(getattr(self, "class_weight", None), sample_weight)
            session = Session((), dask, started, kept, interrupt=interrupt)
            prepared = prepare(source, self._task, options, weights, session)
            facts = {"data": source.name, "kernel": prepared.problem.kernel.to_dict()}
            facts |= {"options": options.to_dict(), "resume": resume and os.fspath(resume)}
            events = None if log is None else EventLog(os.fspath(log), **facts)
            with Progress(quiet=not self.verbose, log=events) as progress:
                session = replace(session, callbacks=progress.callbacks)
                fitted = fit(prepared.problem, options, session, resumed)
                progress.end(describe(fitted))
            self._keep(fitted.model, fitted.pairs, fitted.landmarks)
            self._keep_classes(prepared, fitted)
        self.gap_scope_ = fitted.gap_scope
        self._name_features()
        if interrupt.noted is not None and fitted.model.status != Status.INTERRUPTED:
            raise KeyboardInterrupt(interrupt.noted)  # it came after training, and lost nothing
        if fitted.missing:
            warnings.warn(fitted.missing, ConvergenceWarning, stacklevel=2)
        why = fitted.why_inexact()
        if why is not None:
            limit = _LIMITS.get(fitted.model.status)
            advice = "" if limit is None else f"; allow more with {limit}, or a larger tol"
            warnings.warn(f"{why}{advice}", ConvergenceWarning, stacklevel=2)
        return self

    def _keep_classes(self, prepared: Prepared, fitted: Fit) -> None:
        """Set the attributes that models of classes have."""

    def _keep(
        self, model: Model, pairs: list[PairSolution], landmarks: LandmarkSolution | None
    ) -> None:
        """Set the attributes that all models have."""
        solutions = [landmarks] if landmarks else [pair.solution for pair in pairs]
        self.model_ = model
        self.pairs_ = pairs
        self.solution_: Solution | LandmarkSolution = solutions[0]
        self.n_iter_ = sum(each.iterations for each in solutions)
        # The vectors of a linear model are no rows.
        n_support = 0 if model.kind == "linear" else len(model.rows)
        self.support_: Int64Array = model.rows[:n_support]
        self.support_vectors_: Rows = model.support_vectors[:n_support]
        self.certified_gap_ = model.certified_gap
        self.objective_gap_ = model.objective_gap
        self.n_features_in_ = model.n_features
        self.fit_status_ = int(not Status(model.status).reached)

    def _name_features(self) -> None:
        """Set `feature_names_in_` if the data have names that scikit-learn did not see."""
        self._of_frame = hasattr(self, "feature_names_in_")
        names = self.model_.columns
        if not self._of_frame and names is not None and not are_numbers(names):
            self.feature_names_in_ = np.array(names, dtype=object)

    @property
    def dual_coef_(self) -> Float64Array:
        return self.model_.weights().T[:, : len(self.support_)]

    @property
    def coef_(self) -> Float64Array:
        if self.model_.kernel.name != "linear":
            raise AttributeError("coef_ exists for the linear kernel only")
        vectors = self.model_.support_vectors
        dense = vectors.toarray() if isinstance(vectors, CSRRows) else vectors
        return self.model_.weights().T @ dense

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model file that ``ooc-fw predict`` and `ooc_fw.load_model` read."""
        check_is_fitted(self)
        self.model_.save(path)

    @property
    def gamma_(self) -> float:
        return self.model_.kernel.gamma

    @property
    def feature_importances_(self) -> Float64Array:
        if self.model_.kind == "linear":
            raise AttributeError("a linear model has no support vectors; see coef_")
        source = rows_source(self.support_vectors_, "the support vectors")
        source.scaling, source.columns = self.model_.scaling, self.model_.columns
        found = replace(self.model_, table=None).importance(source)
        values = dict(zip(found.names, found.values, strict=True))  # wide rows lack columns of 0
        names = self.model_.columns or range(self.n_features_in_)
        return np.array([values.get(str(name), 0.0) for name in names])

    def _decide(self, X: Any, labels_only: bool = False, **reading: Any) -> Float64Array:
        check_is_fitted(self)
        how: dict[str, Any] = {"threads": threads_of(self.n_jobs), "labels_only": labels_only}
        how |= reading
        how["dask"] = self.dask if is_out_of_core(X) else None
        X, columns = self._checked(X, reset=False)
        if columns is None:
            return self.model_.decision_function(X, **how)
        with borrow_source(X, columns=columns) as source:
            return self.model_.decision_function(source, **how)

    def _compared(
        self, X: Any, y: Any, weights: Any, read: Callable[[RowSource], npt.NDArray[Any]]
    ) -> tuple[npt.ArrayLike, npt.NDArray[Any], Any]:
        """Answers, predictions and weights of the rows `X`; `read` finds the answers in a file."""
        check_is_fitted(self)
        if is_array(y) and (isinstance(X, RowSource) or not is_out_of_core(X)):
            if self._task == "classification" and "labels_as" in self.model_.origin:
                y = renamed(typed(y, "y").ravel(), self.model_.origin["labels_as"])[:]
            return y, self.predict(X), weights
        like = self.model_.origin
        with borrow_source(X, y, like=like, missing_labels="drop") as source:
            if X is not source and isinstance(source, SubsetSource):
                n_missing = source.source.n_rows - source.n_rows
                logger.warning("%d rows without a label are left out", n_missing)
            if X is not source and weights is not None:
                weights = source.by_row(np.asarray(weights), "weights")
            return read(source), self.predict(source), weights

    def _checked(self, X: Any, *y: Any, reset: bool = True, **checks: Any) -> tuple[Any, ...]:
        """Let scikit-learn check rows and labels in RAM; returns both, and names of the features.

        After `fit` on a frame, scikit-learn demands frames with the same columns in the same order.
        After `fit` on other data with names, columns of a frame are found by name.
        """
        check_unmasked(X)
        y = tuple(valid_labels(each) if is_array(each) else each for each in y)
        names: Sequence[str] | None = names_of_frame(X)
        in_order = reset or names is None or self._of_frame
        by_name = names is not None and not in_order and self.model_.columns is not None
        if by_name or is_out_of_core(X):
            if reset:
                self.__dict__.pop("feature_names_in_", None)
            columns = (column_or_1d(each, warn=True) if is_array(each) else each for each in y)
            return X, *columns, None
        check_no_dates(X, names)
        checks = {"accept_sparse": "csr", "dtype": "numeric", "reset": reset, **checks}
        values = [each for each in y if each is None or is_array(each)]
        checked = validate_data(self, X, *values, **checks)
        if not reset and in_order:
            names = self.model_.columns
        return *(checked if values else [checked, *y]), names

    def __sklearn_is_fitted__(self) -> bool:
        """Whether there is a model; a failed `fit` may have set other attributes."""
        return hasattr(self, "model_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _options(self) -> ModelOptions:
        """The parameters, which stay as they are given, as options."""
        names = option_fields(ModelOptions)
        given = {name: value for name, value in self.get_params(False).items() if name in names}
        seed = self.random_state
        if seed is None or hasattr(seed, "randint"):
            seed = check_random_state(seed).randint(np.iinfo(np.int32).max)
        seed = names["seed"].check("random_state", seed)
        return ModelOptions(**given, seed=seed, threads=threads_of(self.n_jobs))


def valid_labels(y: Any) -> Any:
    """`y`, or an array with its whole numbers if scikit-learn would round them; or InputError."""
    check_unmasked(y)
    labels = typed(y, "y")
    check_labels(labels.ravel(), 0, "y", targets=True)
    is_whole = labels.dtype.kind in "iu" and labels.size > 0
    is_large = is_whole and max(-int(labels.min()), int(labels.max())) >= LARGEST_LABEL
    return labels if is_large else y


def _check_files(
    log: StrPath | None, checkpoint: StrPath | None, resume: StrPath | None, inputs: list[Any]
) -> None:
    """Raise InputError if an output cannot be written, or would replace an input."""
    saved = Output("checkpoint", checkpoint, is_checkpoint, resume)
    check_outputs([Output("log", log, is_log), saved], [*input_files(inputs), resume])


def is_out_of_core(X: Any) -> bool:
    """Whether `X` is read in blocks, so that scikit-learn does not check it as a whole."""
    package = type(X).__module__.partition(".")[0]
    on_disk = isinstance(X, str | os.PathLike | np.memmap | RowSource) or is_annotated(X)
    return on_disk or package in ("h5py", "dask", "zarr")


def is_array(y: Any) -> bool:
    """Whether labels are given as values, not in a file or stored with the rows."""
    return not (y is None or (is_out_of_core(y) and not isinstance(y, np.memmap)))


def threads_of(n_jobs: Any) -> int:
    """Number of threads, by scikit-learn's convention."""
    if n_jobs is None:
        return 1
    number: int = Option(None, low=-4096, whole=True, high=4096).check("n_jobs", n_jobs)
    if number == 0:
        raise InputError("n_jobs must be a positive number, -1 for all CPUs, or None, not 0")
    return number if number > 0 else max(1, cpu_count() + 1 + number)
