"""Novelty detection and regression in scikit-learn's terms."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import OutlierMixin, RegressorMixin
from sklearn.metrics import r2_score

from ooc_fw.data.labels import read_targets
from ooc_fw.data.opening import borrow_source
from ooc_fw.data.rows import Float64Array
from ooc_fw.estimators.common import Given, Trainer, is_array
from ooc_fw.options import NOVELTY_C, TaskOptions, TrainOptions
from ooc_fw.training.fit import Fit


@dataclass(eq=False, repr=False)
class FrankWolfeOneClass(OutlierMixin, Trainer):
    """Novelty detection by the L2 one-class machine, on data of any size.

    The score of a row is its kernel value with the centre of a ball around the training rows, see
    `ooc_fw.training.novelty`. Rows are novel where it is below `offset_`. This is scikit-learn's
    ``OneClassSVM`` with squared slacks, for which ``nu`` has no meaning: give `contamination`.

    Parameters
    ----------
    kernel, gamma, degree, coef0
        As for `ooc_fw.FrankWolfeSVC`, with four times its gamma "auto".
    C, method, lmo, start, sample_size, tol, stopping, certify, max_iter, max_time, memory_limit
        As for `ooc_fw.TrainOptions`. What matters is `C` times the number of rows.
    landmarks, exact
        As for `ooc_fw.FrankWolfeSVC`.
    contamination : float or None
        Largest share of the training rows that is taken for novel: `offset_` is that quantile of
        their scores, and lower where more rows would be below it, as equal ones are together. None:
        it is the score at the margin.
    n_jobs, random_state, verbose, dask
        As for `ooc_fw.FrankWolfeSVC`.

    Attributes
    ----------
    offset_ : float
        Score below which a row is novel.
    rho_ : float
        Score of a row at the margin, twice the objective; 1 of a landmark model.
    support_, support_vectors_ : ndarray of int64, and ndarray or CSRRows
        Numbers of the training rows that have weight or are landmarks, and these rows.
    dual_coef_, intercept_ : ndarray of float64, shapes (1, n_support) and (1,)
        Their weights, which sum to 1 in an exact model, and ``-offset_``.
    n_support_ : ndarray of int32, shape (1,)
        Number of support vectors.
    radius_ : float
        Radius of the smallest ball in the feature space, slacks included; AttributeError of
        landmark models, and where k(x, x) or the penalties differ from row to row.
    certified_gap_ : float or None
        Certified relative duality gap, of rho without the bias.
    fit_status_, n_iter_, n_features_in_, feature_names_in_, n_rows_seen_, gamma_, model_, solution_
        As for `ooc_fw.FrankWolfeSVC`.
    """

    C: float = NOVELTY_C
    method: str = TrainOptions.method
    lmo: str = TrainOptions.lmo
    start: str = TrainOptions.start
    sample_size: int = TrainOptions.sample_size
    stopping: str = TrainOptions.stopping
    contamination: float | None = None
    landmarks: int | str | None = TrainOptions.landmarks
    exact: bool = TrainOptions.exact

    _task = "novelty"
    _checks_of_y = None

    def _take(self, fitted: Fit, rows: Given) -> None:
        equal = fitted.model.kernel.constant_diagonal and rows.weights is None
        self._diagonal = 1 + 1 / self.C if equal and fitted.landmarks is None else None

    @property
    def offset_(self) -> float:
        return float(self.model_.offset or 0.0)

    @property
    def rho_(self) -> float:
        return 1.0 if self.landmarks_ is not None else self.pairs_[0].solution.rho

    @property
    def dual_coef_(self) -> Float64Array:
        return self.model_.weights().T

    @property
    def intercept_(self) -> Float64Array:
        return np.array([-self.offset_])

    @property
    def n_support_(self) -> npt.NDArray[np.int32]:
        return np.array([len(self.support_)], dtype=np.int32)

    @property
    def radius_(self) -> float:
        if self._diagonal is None:
            raise AttributeError(
                "there is a ball only in exact models, where k(x, x) and the penalty are the same "
                "for all rows"
            )
        return float(np.sqrt(max(0.0, self._diagonal - self.rho_)))

    def score_samples(self, X: Any) -> Float64Array:
        """Score of each row, shape (n_rows,): the larger, the more ordinary."""
        return self.decision_function(X) + self.offset_

    def decision_function(self, X: Any) -> Float64Array:
        """Score minus `offset_` of each row, shape (n_rows,): negative for novel ones."""
        return self._decide(X)

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """+1 for ordinary rows and -1 for novel ones, shape (n_rows,)."""
        values = self._decide(X, labels_only=True)
        return 2 * self.model_.class_places(values) - 1


@dataclass(eq=False, repr=False)
class FrankWolfeSVR(RegressorMixin, Trainer):
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
    landmarks : int, "auto", "none" or None
        Number of landmarks, as for `ooc_fw.FrankWolfeSVC`. None: all rows, if
        they are at most `ooc_fw.problem.EXACT_ROWS`; else as many as the limits afford,
        5,000 at most without `max_time`.
    n_jobs, random_state, verbose, dask
        As for `ooc_fw.FrankWolfeSVC`.

    Attributes
    ----------
    support_, support_vectors_ : ndarray of int64, and ndarray or CSRRows
        Numbers of the training rows that are landmarks, and these rows.
    dual_coef_, intercept_ : ndarray of float64, shapes (1, n_landmarks) and (1,)
        Their weights, and what is added to the weighted sum of kernel values: the bias, and the
        mean of the targets.
    certified_gap_ : float or None
        (P - D) / P. Where `gap_scope_` is "all", no function of the kernel's feature space has an
        objective that is smaller by more; where it is "span", no weights of these landmarks have,
        with a slightly larger regularisation: see `ooc_fw.landmarks.span`.
    fit_status_, n_iter_, n_features_in_, feature_names_in_, n_rows_seen_, gamma_, model_, solution_
        As for `ooc_fw.FrankWolfeSVC`.
    """

    epsilon: float = TaskOptions.epsilon
    landmarks: int | str | None = TrainOptions.landmarks

    _task = "regression"
    _checks_of_y = MappingProxyType({"y_numeric": True})

    @property
    def dual_coef_(self) -> Float64Array:
        assert self.model_.spread is not None
        return self.model_.spread * super().dual_coef_

    @property
    def intercept_(self) -> Float64Array:
        return np.array([self.dual_coef_.sum() + (self.model_.offset or 0.0)])

    def predict(self, X: Any) -> Float64Array:
        """Prediction for each row, shape (n_rows,), in the order of `Model.decision_function`."""
        return self._decide(X)

    def score(self, X: Any, y: Any = None, sample_weight: npt.ArrayLike | None = None) -> float:
        """R^2 on `X`, with the targets `y`, or those stored in the file `X` when None."""
        if not is_array(y):
            with borrow_source(X, y) as source:
                y, predicted = read_targets(source), self.predict(source)
        else:
            predicted = self.predict(X)
        return float(r2_score(y, predicted, sample_weight=sample_weight))
