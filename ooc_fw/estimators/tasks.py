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
from ooc_fw.data.rows import Float64Array
from ooc_fw.estimators.common import Trainer, documented
from ooc_fw.options import NOVELTY_C, TaskOptions, TrainOptions
from ooc_fw.training.fit import Fit


@documented
@dataclass(eq=False, repr=False)
class FrankWolfeOneClass(OutlierMixin, Trainer):
    """Novelty detection by the L2 one-class machine, on data of any size.

    The score of a row is its kernel value with the centre of a ball around the training rows. Rows
    are novel where it is below `offset_`. This is scikit-learn's ``OneClassSVM`` with squared
    slacks, for which ``nu`` has no meaning: give `contamination`. Then `offset_` is that quantile
    of the scores of the training rows; else it is the score at the margin. What matters is `C`
    times the number of rows. The gamma "auto" is four times that of the others.

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    offset_ : float
        Score below which a row is novel.
    rho_ : float
        Score of a row at the margin, twice the objective; 1 of a landmark model.
    n_support_ : ndarray of int32, shape (1,)
        Number of support vectors.
    radius_ : float
        Radius of the smallest ball, of exact models whose k(x, x) and penalties are all the same.
    {attributes}
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

    def _take(self, fitted: Fit, weights: Float64Array | None) -> None:
        equal = fitted.model.kernel.constant_diagonal and weights is None
        self._diagonal = 1 + 1 / self.C if equal and fitted.landmarks is None else None

    @property
    def offset_(self) -> float:
        return float(self.model_.offset or 0.0)

    @property
    def rho_(self) -> float:
        return 1.0 if self.landmarks_ is not None else self.pairs_[0].solution.rho

    @property
    def intercept_(self) -> Float64Array:
        return np.array([-self.offset_])

    @property
    def n_support_(self) -> npt.NDArray[np.int32]:
        return np.array([len(self.support_)], dtype=np.int32)

    @property
    def radius_(self) -> float:
        if self._diagonal is None:
            raise AttributeError("there is no ball: k(x, x) or penalties differ, or landmarks")
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


@documented
@dataclass(eq=False, repr=False)
class FrankWolfeSVR(RegressorMixin, Trainer):
    """Kernel regression with a squared epsilon-insensitive loss, on data of any size.

    Exact on a few thousand rows; on more, the weights of landmarks, N rows of the data, are learned
    from all rows, and a certified duality gap says how far they are from the best ones. With
    ``epsilon=0`` it is kernel ridge regression with ``alpha = 1 / C`` and a bias. `C` does not
    depend on the unit of the targets.

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    {attributes}
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
        targets = self._compared(X, y, read_targets)
        return float(r2_score(*targets, sample_weight=sample_weight))
