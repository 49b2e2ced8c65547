"""Regression in scikit-learn's terms."""

from __future__ import annotations

import time
import warnings
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import r2_score

from ooc_fw.data.labels import read_targets
from ooc_fw.data.parallel import borrow_workers
from ooc_fw.data.rows import Float64Array, Int64Array
from ooc_fw.estimators.common import (
    PathLike,
    RunFiles,
    Trainer,
    is_array,
    rows_of_weight,
)
from ooc_fw.kernels.functions import KernelFunction
from ooc_fw.landmarks.solution import LandmarkSolution
from ooc_fw.model.pairs import LandmarkClassifier
from ooc_fw.model.record import borrow_source
from ooc_fw.options import KernelOptions, TrainOptions
from ooc_fw.solver.checkpoint import CheckpointPlan
from ooc_fw.solver.deadline import Deadline
from ooc_fw.solver.session import Session
from ooc_fw.solver.setup import warn_of_gamma
from ooc_fw.solver.state import Status
from ooc_fw.training.regression import EPSILON, fit_regression, plan_regression


class _FittedSVR(RegressorMixin, Trainer):
    """What a model gives: the attributes of a fit, and predictions."""

    solution_: LandmarkSolution
    support_: Int64Array

    @property
    def dual_coef_(self) -> Float64Array:
        (own,) = self.model_.classifiers
        assert isinstance(own, LandmarkClassifier)
        assert self.model_.spread is not None
        coefficients = np.zeros((1, len(self.support_vectors_)))
        coefficients[0, own.landmarks] = self.model_.spread * own.beta
        return coefficients

    @property
    def intercept_(self) -> Float64Array:
        return np.array([self.dual_coef_.sum() + (self.model_.offset or 0.0)])

    @property
    def n_iter_(self) -> int:
        return self.solution_.iterations

    def predict(self, X: Any) -> Float64Array:
        """Prediction for each row, shape (n_rows,), in the order in which `X` stores its rows."""
        return self._decide(X)

    def score(self, X: Any, y: Any = None, sample_weight: npt.ArrayLike | None = None) -> float:
        """R^2 on `X`, with the targets `y`, or those stored in the file `X` when None."""
        if not is_array(y):
            with borrow_source(X, y) as source:
                y = read_targets(source)
        return float(r2_score(y, self.predict(X), sample_weight=sample_weight))


@dataclass(eq=False, repr=False)
class FrankWolfeSVR(_FittedSVR):
    """Kernel regression with a squared epsilon-insensitive loss, on data of any size.

    Exact on a few thousand rows; on more, the weights of landmarks, N rows of the data, are learned
    from all rows, and a certified duality gap says how far they are from the best ones
    (`ooc_fw.training.regression`). With ``epsilon=0`` it is kernel ridge regression with
    ``alpha = 1 / C`` and a bias.

    Parameters
    ----------
    kernel, gamma, degree, coef0
        As for `ooc_fw.FrankWolfeSVC`.
    C : float
        Penalty of a unit squared slack. It does not depend on the unit of the targets.
    epsilon : float
        Half the width of the tube around the targets in which nothing is lost, in their unit.
    tol : float
        Target of the relative gap: the objective is within about 2 `tol` of the best one.
    certify, max_iter, max_time, memory_limit
        As for `ooc_fw.TrainOptions`.
    landmarks : int or None
        Number of landmarks. None: all rows, if they are at most
        `ooc_fw.training.regression.EXACT_ROWS`; else as many as the limits afford, 5,000 at most.
    n_jobs, random_state, verbose, dask
        As for `ooc_fw.FrankWolfeSVC`.

    Attributes
    ----------
    support_, support_vectors_ : ndarray of int64, and ndarray or CSRRows
        Numbers of the training rows that are landmarks, and these rows.
    dual_coef_ : ndarray of float64, shape (1, n_landmarks)
        Their weights.
    intercept_ : ndarray of float64, shape (1,)
        What is added to the weighted sum of kernel values: the bias, and the mean of the targets,
        which are centred for training.
    certified_gap_ : float or None
        (P - D) / P. Where `gap_scope_` is "all", no function of the kernel's feature space has an
        objective that is smaller by more. Where it is "span", no weights of these landmarks have,
        if jitter |beta|^2 / 2 is part of the objective, a slightly larger regularisation that
        rounding needs: see `ooc_fw.landmarks.span`.
    gap_scope_ : str
        "all" or "span".
    fit_status_, n_iter_, n_features_in_, n_rows_seen_, model_, solution_
        As for `ooc_fw.FrankWolfeSVC`.
    """

    kernel: str | KernelFunction = KernelOptions.kernel
    gamma: float | str = KernelOptions.gamma
    degree: int = KernelOptions.degree
    coef0: float = KernelOptions.coef0
    C: float = TrainOptions.C
    epsilon: float = EPSILON
    tol: float = TrainOptions.tol
    certify: bool = TrainOptions.certify
    max_iter: int | None = TrainOptions.max_iter
    max_time: float | str | None = TrainOptions.max_time
    memory_limit: int | str | None = TrainOptions.memory_limit
    landmarks: int | None = TrainOptions.landmarks
    n_jobs: int | None = None
    random_state: int | np.random.RandomState | None = None
    verbose: int = 0
    dask: str | None = None

    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: npt.ArrayLike | None = None,
        *,
        checkpoint: PathLike | None = None,
        checkpoint_every: float | str = CheckpointPlan.every_s,
        resume: PathLike | None = None,
        log: PathLike | None = None,
    ) -> Self:
        """Train on the rows of `X` and their targets.

        Parameters
        ----------
        X : anything `ooc_fw.open_dataset` takes
            Rows.
        y : array-like of shape (n_rows,), path or None
            Targets; None takes the labels stored in the file `X`.
        sample_weight : array-like of shape (n_rows,), optional
            Factors of the penalty of each row; rows of weight 0 are left out.
        checkpoint, checkpoint_every, resume, log
            As for `ooc_fw.FrankWolfeSVC.fit`.
        """
        started = time.perf_counter()
        options = self._options()
        files = RunFiles.of(checkpoint, checkpoint_every, resume, log, inputs=(X, y))
        options = files.seeded(options, self.random_state)
        X, y, columns = self._checked(X, y, y_numeric=True)
        with (
            borrow_source(X, y, columns) as whole,
            nullcontext()
            if self.dask is None
            else borrow_workers(self.dask, options.threads) as workers,
        ):
            source, weights, kept = rows_of_weight(whole, sample_weight, self.C)
            with source.limited(Deadline(options.max_time, started).check):
                plan_regression(source, options)  # which refuses a limit that cannot be met
                targets = read_targets(source)
                kernel = self._kernel(source, options, workers)
            warn_of_gamma(source, kernel)
            penalties = None if weights is None else self.C * weights
            log_file = files.open_log(source, kernel, options)
            with self._progress(options, log_file) as progress:
                session = Session(
                    progress.callbacks, workers, started, files.checkpoint, files.resume
                )
                found = fit_regression(
                    source,
                    targets,
                    kernel,
                    options,
                    session,
                    epsilon=self.epsilon,
                    penalties=penalties,
                )
                if log_file is not None:
                    log_file.write("end", {"status": found.model.status})
            self.n_features_in_, self.n_rows_seen_ = source.n_features, whole.n_rows
        self.model_, self.solution_ = found.model, found.solution
        if kept is not None:
            self.model_ = found.model.renumbered(kept, self.n_rows_seen_)
            self.solution_ = replace(found.solution, rows=kept[found.solution.rows])
        self.gap_scope_ = found.gap_scope
        self.support_ = self.solution_.rows
        status = Status(self.model_.status)
        self.fit_status_ = int(not status.reached)
        if not status.reached:
            warnings.warn(status.explain("relative", options.tol), ConvergenceWarning, stacklevel=2)
        return self
