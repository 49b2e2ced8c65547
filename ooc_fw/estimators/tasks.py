"""The estimators for scikit-learn: classification, novelty detection and regression.

scikit-learn validates arrays in RAM only; data on disk are passed on unread.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import ClassifierMixin, OutlierMixin, RegressorMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import check_consistent_length, column_or_1d
from sklearn.utils.metaestimators import available_if

from ooc_fw.data.containers import without_column
from ooc_fw.data.labels import Classes, check_labels, read_targets, typed, unknown_labels
from ooc_fw.data.offsets import without_offsets
from ooc_fw.data.opening import borrow_source
from ooc_fw.data.rows import Float64Array
from ooc_fw.data.sources import RowSource
from ooc_fw.estimators.common import Trainer, documented, is_array, valid_labels
from ooc_fw.model.prediction import suited
from ooc_fw.options import KEEP, NOVELTY_C, ModelOptions, TrainOptions
from ooc_fw.report.progress import Progress
from ooc_fw.solver.plan import Session
from ooc_fw.system.errors import InputError, format_labels
from ooc_fw.training.fit import Fit
from ooc_fw.training.prepare import Prepared, kernel_for
from ooc_fw.training.streams import Stream, check_unweighted


def _gives_probabilities(estimator: Any) -> bool:
    if not estimator.probability:
        raise AttributeError("predict_proba needs probability=True; set it and fit again")
    return True


@documented
@dataclass(eq=False, repr=False)
class FrankWolfeSVC(ClassifierMixin, Trainer):
    """Kernel support vector machine (squared hinge loss) on data of any size.

    The model is exact if time and memory suffice. Otherwise, or if `landmarks` asks for it, the
    model learns weights of N rows, the landmarks, from all rows (``ooc-fw help choose``). The
    linear kernel learns weights of the columns, up to the optimum, unless `exact` or `landmarks`
    asks for rows. For more than two classes, an exact model has a binary classifier for each pair
    (one-versus-one), other models one for each class against the rest.

    Rows may be anything that `ooc_fw.open_dataset` takes, and data on disk are never loaded whole.
    `fit` may read rows many times and ends with a certified gap. `partial_fit` reads each row once
    and keeps at most `keep` of them, or landmarks. Its gap, ``solution_.sampled_gap``, is for the
    last chunk and the rows that were kept. It says nothing about earlier rows: no certificate.

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels. The larger class of a pair is positive; for more than two classes, scikit-learn has
        the opposite sign. Classifiers have the order of pairs in
        `ooc_fw.model.machines.class_pairs`.
    n_support_ : ndarray of int32, shape (n_classes,)
        Number of rows of each class among the support vectors.
    class_weight_ : ndarray of float64, shape (n_classes,)
        Factor of `C` of each class.
    pairs_ : list of ooc_fw.model.machines.PairSolution
        Classes and solution of each binary classifier of an exact model.
    {attributes}
    """

    method: str = TrainOptions.method
    lmo: str = TrainOptions.lmo
    start: str = TrainOptions.start
    sample_size: int = TrainOptions.sample_size
    stopping: str = TrainOptions.stopping
    landmarks: int | str | None = TrainOptions.landmarks
    exact: bool = TrainOptions.exact
    keep: int = KEEP.default
    class_weight: Mapping[Any, float] | str | None = None
    probability: bool = False

    _task = "classification"

    def _keep_classes(self, prepared: Prepared, fitted: Fit) -> None:
        self.__dict__.pop("_stream", None)  # `partial_fit` will continue from this model
        problem = prepared.problem
        self.classes_: npt.NDArray[Any] = problem.classes
        self.class_weight_ = prepared.class_factors
        rows = self.support_
        places = rows if problem.part is None else np.searchsorted(problem.part.rows, rows)
        counts = np.bincount(problem.codes[places], minlength=len(self.classes_))
        self.n_support_ = counts.astype(np.int32)

    @property
    def intercept_(self) -> Float64Array:
        return np.asarray(self.model_.weights().sum(axis=0))

    def decision_function(self, X: Any, **reading: Any) -> Float64Array:
        """Decision values, in the order of `Model.decision_function`.

        For two classes, the shape is (n_rows,), the margin is at -1 and +1, and the second class is
        positive. For more classes, the shape is (n_rows, n_classes). An exact model gives votes,
        and sums of decision values break ties; a landmark model gives decision values of each class
        against the rest. `model_.decision_function` has the values of all binary classifiers.
        """
        values = self._decide(X, **reading)
        return values if values.ndim == 1 else self.model_.class_scores(values)

    def predict(self, X: Any, **reading: Any) -> npt.NDArray[Any]:
        """Labels, shape (n_rows,), in the order and with the `reading` of `Model.predict`."""
        values = self._decide(X, labels_only=True, **reading)
        return np.asarray(self.classes_[self.model_.class_places(values)])

    @available_if(_gives_probabilities)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any, **reading: Any) -> Float64Array:
        """Probability of each of `classes_`, in the order of `Model.decision_function`.

        Near the decision boundary, the most probable class may differ from that of `predict`: the
        sigmoid of two classes need not be 1/2 if the decision value is 0. InputError for a model of
        `partial_fit` or of an interrupted `fit`, which has no probabilities.
        """
        values = self._decide(X, **reading)  # NotFittedError if there is no model
        return self.model_.probabilities(values)

    @available_if(_gives_probabilities)  # type: ignore[untyped-decorator]
    def predict_log_proba(self, X: Any) -> Float64Array:
        """Logarithm of `predict_proba`."""
        with np.errstate(divide="ignore"):  # a probability may underflow to 0
            return np.asarray(np.log(self.predict_proba(X)))

    def score(self, X: Any, y: Any = None, sample_weight: npt.ArrayLike | None = None) -> float:
        """Accuracy on `X`; the labels are `y`, or those in the file `X` if `y` is None."""
        given, found, weights = self._compared(X, y, sample_weight, _labels_of)
        labels = typed(given, "y").ravel()
        check_labels(labels, 0, "y")
        known = Classes(self.classes_)
        codes = known.of(labels)
        if (codes < 0).all():
            raise unknown_labels(known, np.unique(labels).tolist(), "y")
        return float(accuracy_score(codes, known.of(found), sample_weight=weights))

    def partial_fit(self, X: Any, y: Any = None, classes: npt.ArrayLike | None = None) -> Self:
        """Update the model with a chunk of rows, which are not needed again.

        The model is trained on its support vectors and the rows of the chunk, beginning with the
        weights so far. If more than `keep` rows have weight, it learns from a random share of past
        and later rows. Equal rows with the same label count once, so that chunks may come again.
        With `landmarks` these stand for all earlier rows (``ooc-fw help data``). An error leaves
        the model unchanged.

        The first chunk fixes kernel and gamma; it should represent all rows. After `fit`, training
        continues from its model. `C`, `tol`, `stopping`, `n_jobs` and `keep` may change between
        calls, and so may `max_time`, the limit of a call. Other options of training have no effect.

        Parameters
        ----------
        X, y
            As for `fit`; any number of rows, of any of the classes.
        classes : array-like of shape (n_classes,)
            All classes; the first call needs them, and later calls cannot change them.
        """
        started = time.perf_counter()
        options = self._options()
        first = not hasattr(self, "model_")
        kind = None if first else self.model_.kind
        if kind == "linear" or (kind == "exact" and options.landmarks is not None):
            raise InputError(
                f"partial_fit cannot continue {'a linear' if kind == 'linear' else 'an exact'} "
                f"model{' with landmarks' * (kind == 'exact')}; fit it on all rows"
            )
        if kind == "landmarks" and options.exact:
            raise InputError("partial_fit cannot make a landmark model exact; leave out exact=True")
        if self.class_weight is not None or not (first or self.model_.penalties is None):
            raise InputError("partial_fit takes no weights of rows or classes; fit does")
        room = KEEP.check("keep", self.keep)
        known = _agreed_classes(None if first else self.classes_, classes)
        X, y = without_column(X, y)
        # Reading the rows finds NaN, with a better message.
        X, columns = self._checked(X, reset=first, ensure_all_finite=False)
        if is_array(y):
            y = column_or_1d(valid_labels(y), warn=True)
            check_consistent_length(X if hasattr(X, "shape") else y, y)
        like = {} if first else self.model_.origin
        with borrow_source(X, y, columns, like=like) as chunk:
            check_unweighted(chunk)
            source = without_offsets(chunk, self.kernel) if first else suited(self.model_, chunk)
            labels = typed(source.labels(0, source.n_rows), "the chunk")
            codes = Classes(known).codes(labels, "the chunk")
            if first:
                stream = Stream.new(kernel_for(source, options), len(known), options, room)
            elif hasattr(self, "_stream"):
                stream = self._stream.changed(options, room)
            else:
                stream = Stream.after(self.model_, options, room)
            with Progress(quiet=not self.verbose) as progress:
                stream = stream.learn(source, codes, Session(progress.callbacks, started=started))
        model = stream.model(known, source if first else self.model_)
        self._keep(model, stream.pairs, stream.landmarks)
        self._stream: Stream = stream
        self.gap_scope_ = "chunk"
        self.classes_ = known
        self.class_weight_ = np.ones(len(known))
        counts = np.bincount(stream.support_codes(), minlength=len(known))
        self.n_support_ = counts.astype(np.int32)
        if first:
            self._name_features()
        return self


def _labels_of(source: RowSource) -> npt.NDArray[Any]:
    labels = typed(source.labels(0, source.n_rows), source.name)
    check_labels(labels, 0, source.name)
    return labels


def _agreed_classes(
    known: npt.NDArray[Any] | None, classes: npt.ArrayLike | None
) -> npt.NDArray[Any]:
    """The classes of `partial_fit`: given, or `known` from earlier calls; both must agree."""
    given = known if classes is None else np.unique(typed(classes, "classes"))
    if given is None:
        raise InputError("classes must be given in the first call of partial_fit")
    check_labels(given, 0, "classes")
    if known is not None and not np.array_equal(known, given):
        raise InputError(
            f"classes {format_labels(given)} differ from those of earlier calls, "
            f"{format_labels(known)}; leave them out"
        )
    if len(given) < 2:
        raise InputError(f"partial_fit needs two classes or more, not {format_labels(given)}")
    return given


@documented
@dataclass(eq=False, repr=False)
class FrankWolfeOneClass(OutlierMixin, Trainer):
    """Novelty detection by the L2 one-class machine, on data of any size.

    The score of a row is its kernel value with the centre of a ball around the training rows. A row
    is novel if its score is below `offset_`. This is scikit-learn's ``OneClassSVM`` with squared
    slacks. In place of ``nu`` give `contamination`: `offset_` is then this quantile of the scores
    of rows that were held out; otherwise it is the score at the margin. The product of `C` and the
    number of rows matters. The gamma "auto" is four times as large as in the other estimators.

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    offset_ : float
        Score below which a row is novel.
    n_support_ : ndarray of int32, shape (1,)
        Number of support vectors.
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

    @property
    def offset_(self) -> float:
        return float(self.model_.offset or 0.0)

    @property
    def intercept_(self) -> Float64Array:
        return np.array([-self.offset_])

    @property
    def n_support_(self) -> npt.NDArray[np.int32]:
        return np.array([len(self.support_)], dtype=np.int32)

    def score_samples(self, X: Any) -> Float64Array:
        """Score of each row, shape (n_rows,); larger scores are more ordinary."""
        return self.decision_function(X) + self.offset_

    def decision_function(self, X: Any, **reading: Any) -> Float64Array:
        """Score of each row minus `offset_`, shape (n_rows,); novel rows have negative values."""
        return self._decide(X, **reading)

    def predict(self, X: Any, **reading: Any) -> npt.NDArray[Any]:
        """+1 for ordinary rows and -1 for novel ones, shape (n_rows,)."""
        values = self._decide(X, labels_only=True, **reading)
        return 2 * self.model_.class_places(values) - 1


@documented
@dataclass(eq=False, repr=False)
class FrankWolfeSVR(RegressorMixin, Trainer):
    """Kernel regression with a squared epsilon-insensitive loss, on data of any size.

    The model is exact on a few thousand rows. On more rows, it learns weights of N rows, the
    landmarks, from all rows; a certified duality gap bounds how far they are from the best weights.
    With ``epsilon=0`` it is kernel ridge regression with ``alpha = 1 / C`` and a bias. `C` does not
    depend on the unit of the targets.

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    {attributes}
    """

    epsilon: float = ModelOptions.epsilon
    landmarks: int | str | None = TrainOptions.landmarks

    _task = "regression"
    _checks_of_y = MappingProxyType({"y_numeric": True})

    @property
    def dual_coef_(self) -> Float64Array:
        assert self.model_.spread is not None
        return self.model_.spread * super().dual_coef_

    @property
    def coef_(self) -> Float64Array:
        assert self.model_.spread is not None
        return self.model_.spread * super().coef_

    @property
    def intercept_(self) -> Float64Array:
        bias = self.model_.weights().sum()
        return np.array([self.model_.spread * bias + (self.model_.offset or 0.0)])

    def predict(self, X: Any, **reading: Any) -> Float64Array:
        """Prediction for each row, shape (n_rows,), in the order of `Model.decision_function`."""
        return self._decide(X, **reading)

    def score(self, X: Any, y: Any = None, sample_weight: npt.ArrayLike | None = None) -> float:
        """R^2 on `X`; the targets are `y`, or those in the file `X` if `y` is None."""
        *targets, weights = self._compared(X, y, sample_weight, read_targets)
        return float(r2_score(*targets, sample_weight=weights))
