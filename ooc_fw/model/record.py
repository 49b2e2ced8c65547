"""A trained model: its record, what it says of rows, and which data it can be used with."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import numpy.typing as npt

from ooc_fw.data.opening import borrow_source as borrow_source
from ooc_fw.data.rows import CSRRows, Float32Array, Float64Array, Int64Array, Rows, take_rows
from ooc_fw.data.scaling import Scaling
from ooc_fw.data.sources import RowSource
from ooc_fw.data.views import SubsetSource, ranges_of
from ooc_fw.kernels.arithmetic import choose_arithmetic
from ooc_fw.kernels.engine import Engine
from ooc_fw.kernels.functions import Kernel
from ooc_fw.landmarks import LandmarkSolution
from ooc_fw.model import pairs, prediction
from ooc_fw.model.file import as_class_values, content_of, opened, read_fields
from ooc_fw.model.importance import SAMPLE_ROWS, Importance, importance_of
from ooc_fw.model.tables import Table, rows_of_table
from ooc_fw.solver.state import Solution
from ooc_fw.system.errors import InputError, format_label
from ooc_fw.system.files import write_atomic

if TYPE_CHECKING:
    from ooc_fw.model.certificate import ModelCertificate

logger = logging.getLogger(__name__)


@dataclass(frozen=True, repr=False)
class Model:
    """Trained classifiers and all that is needed to apply them.

    Parameters
    ----------
    kernel : Kernel
        With the number used for gamma.
    C : float
        Penalty that the classifiers were trained with, before weights of rows and classes.
    classes : ndarray of float64 or str, shape (n_classes,)
        Label values in increasing order; of two, the larger one is +1.
    scaling : Scaling or None
        Scaling of the training rows; None when it is unknown.
    status : str
        How training ended, by `ooc_fw.model.pairs.worst_status` of all classifiers.
    support_vectors : Rows
        Scaled, as in the training data; classifiers share them.
    classifiers : list of BinaryClassifier or of LandmarkClassifier
        Exact ones for each pair of classes, in the order of `ooc_fw.model.pairs.class_pairs`.
        Those of a landmark model share their landmarks; there is one for two classes, else one for
        each class against the rest.
    offset : float or None
        Of a one-class model, whose classes are -1, novel, and +1: the decision value is the score
        minus this. The score is sum_i alpha_i k(x_i, x), or sum_j beta_j k(z_j, x) of landmarks. Of
        regression the mean of the targets. None for classification.
    spread : float or None
        Of regression, where it multiplies the weighted sum, to which `offset` is added: the
        decision value is the prediction. None for all others.
    epsilon : float or None
        Of regression, half the width of the tube in which nothing is lost.
    columns : tuple of str or None
        Names of the features, where the training data have names.
    table : str or None
        How the columns of a table became these features: `ooc_fw.convert.tables.TableRecord` as
        JSON, where they came from a table.
    labels_as : tuple of str
        Maps that made the labels of the training data, one after the other: see
        `ooc_fw.data.labels.LabelMap`.
    weighted_rows : ndarray of uint8 or None
        A bit for each training row, as `numpy.packbits` gives them: 0 for rows of weight 0, which
        were left out. None where there are none, or it is unknown, as in a stream.
    """

    kernel: Kernel
    C: float
    classes: npt.NDArray[Any]
    scaling: Scaling | None
    status: str
    support_vectors: Rows
    classifiers: Sequence[pairs.Classifier]
    offset: float | None = None
    spread: float | None = None
    epsilon: float | None = None
    columns: tuple[str, ...] | None = None
    table: str | None = None
    labels_as: tuple[str, ...] = ()
    weighted_rows: npt.NDArray[np.uint8] | None = None

    def __post_init__(self) -> None:
        _check_classifiers(self)
        _check_values(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """The model file, for copies and pickles."""
        return model_from_bytes, (self.to_bytes(),)

    def __repr__(self) -> str:
        kernel, n_shown = self.kernel, 5
        named = [f"gamma={kernel.gamma:.4g}"] * kernel.uses_gamma
        if kernel.name == "poly":
            named += [f"degree={kernel.degree}", f"coef0={kernel.coef0:g}"]
        words = list(map(format_label, self.classes.tolist()))
        of = ", ".join(words[:n_shown] + ["..."] * (len(words) > n_shown))
        kind = "landmarks" if self.kind == "landmarks" else "support vectors"
        gap = "not certified" if self.certified_gap is None else f"{self.certified_gap:.2g}"
        return (
            f"Model({self.task}{f' of {of}' * (self.task == 'classification')}, "
            f"kernel={', '.join([kernel.name, *named])}, C={self.C:g},\n"
            f"      {len(self.support_vectors)} {kind} of {self.n_features} features, "
            f"gap={gap}{' within their span' * (self.gap_scope == 'span')}, {self.status})"
        )

    @property
    def task(self) -> pairs.Task:
        """What the model is for; of novelty, +1 stands for rows like those of training."""
        if self.spread is not None:
            return "regression"
        return "classification" if self.offset is None else "novelty"

    @property
    def kind(self) -> pairs.Kind:
        """Whether it is the exact model or was learned in the span of landmarks."""
        return self.classifiers[0].kind

    @property
    def gap_scope(self) -> str:
        """What gaps are of: "all" weights of training rows, or those in the "span" of landmarks."""
        return "all" if self.kind == "exact" else "span"

    @property
    def n_weighted(self) -> int | None:
        """Number of training rows that have weight; None where all have, or it is unknown.

        Gaps are of these rows alone.
        """
        bits = self.weighted_rows
        return None if bits is None else int(np.bitwise_count(bits).sum())

    @property
    def decision(self) -> pairs.Decision:
        """Whether classifiers are of pairs of classes, as of two, or of one against the rest."""
        return pairs.decision_of(self.classifiers, len(self.classes))

    @property
    def certified_gap(self) -> float | None:
        """Certified relative gap of the worst classifier; None when one was not certified."""
        return pairs.worst_gap(classifier.certified_gap for classifier in self.classifiers)

    @property
    def sampled_gap(self) -> float | None:
        """Sampled relative gap of the worst classifier, no certificate; None when unknown."""
        return pairs.worst_gap(classifier.sampled_gap for classifier in self.classifiers)

    @property
    def calibrated(self) -> bool:
        """Whether the model can give probabilities."""
        return all(classifier.sigmoid_a is not None for classifier in self.classifiers)

    @property
    def n_features(self) -> int:
        """Number of columns of the training data."""
        return int(self.support_vectors.shape[1])

    @classmethod
    def of(
        cls,
        solution: Solution | LandmarkSolution | Sequence[pairs.PairSolution],
        data: RowSource | Model | None,
        *,
        classes: npt.ArrayLike = (-1.0, 1.0),
        vectors: Rows | None = None,
        penalties: Float64Array | None = None,
        **fields: Any,
    ) -> Model:
        """Model of what training returned: of two classes, of landmarks, or of all pairs.

        Parameters
        ----------
        solution : Solution, LandmarkSolution or sequence of PairSolution
            What training found.
        data : RowSource, Model or None
            Whose scaling, names of features, table and maps of labels the model records; None for
            none.
        classes : array of shape (n_classes,)
            Label values in increasing order.
        vectors : Rows, optional
            Of several pairs: their support vectors, the rows `ooc_fw.model.pairs.union_of_rows`.
        penalties : ndarray of float64, optional
            Of landmarks: the penalties of all training rows; None where all have C.
        fields
            Other fields of the model: kernel, C, and what belongs to its task.
        """
        values = as_class_values(classes)
        classifiers: Sequence[pairs.Classifier]
        if isinstance(solution, LandmarkSolution):
            classifiers = pairs.landmark_classifiers(solution, values, penalties)
            status, vectors = solution.status, solution.landmarks
        else:
            if isinstance(solution, Solution):
                vectors, solution = solution.support_vectors, [pairs.PairSolution(0, 1, solution)]
            elif vectors is None:
                vectors = solution[0].solution.support_vectors
            classifiers = pairs.pair_classifiers(solution, values, fields["C"])
            status = pairs.worst_status([pair.solution.status for pair in solution])
        described: dict[str, Any]
        described = {name: getattr(data, name, None) for name in ("scaling", "columns", "table")}
        described["labels_as"] = getattr(data, "labels_as", ())
        if described["columns"] is not None:
            described["columns"] = tuple(described["columns"])
        given = described | {"support_vectors": vectors} | fields
        return cls(classes=values, status=str(status), classifiers=classifiers, **given)

    def renumbered(self, rows: Int64Array, n_rows: int | None = None) -> Model:
        """Same model, where row k of the training data is row `rows[k]` of others; they increase.

        With `n_rows`, the number of the others, those that are not in `rows` have the weight 0.
        """
        classifiers = [replace(one, rows=rows[one.rows]) for one in self.classifiers]
        weighted = None if n_rows is None else np.packbits(np.isin(np.arange(n_rows), rows))
        return replace(self, classifiers=classifiers, weighted_rows=weighted)

    def with_sigmoids(self, sigmoids: Sequence[tuple[float, float]] | None) -> Model:
        """Same model, with a and b of the sigmoid of each classifier; None: no probabilities."""
        numbers = [(None, None)] * len(self.classifiers) if sigmoids is None else sigmoids
        classifiers = [
            replace(classifier, sigmoid_a=a, sigmoid_b=b)
            for classifier, (a, b) in zip(self.classifiers, numbers, strict=True)
        ]
        return replace(self, classifiers=classifiers)

    @cached_property
    def warn_once(self) -> Callable[..., object]:
        """Log a warning; each one once, however often the model is applied."""
        return cache(logger.warning)

    def decision_function(
        self,
        X: Any,
        *,
        threads: int = 1,
        dask: Any = None,
        on_rows: Callable[[int], None] | None = None,
        labels_only: bool = False,
        order: str = "original",
    ) -> Float64Array:
        """Decision values of all rows of `X`.

        Each is within `ooc_fw.model.prediction.DECISION_ACCURACY` of that of exact kernel values,
        as far as float64 allows.

        A converted file, and what is opened from one, records its scaling and is used as it is.
        All other rows are raw ones: arrays, frames, AnnData and files of other programs. Where the
        training file was converted with scaling, the model scales them in the same way; scaled rows
        that were copied into an array would be scaled twice. Where `X`, a frame perhaps, and the
        training data name their features, these are found by name.

        Parameters
        ----------
        X : anything `ooc_fw.open_dataset` takes, or a table
            Read block by block; only the result grows with the number of rows. If the training file
            was made from a table, `X` may be another one with such columns, words among them: a
            frame, an Arrow table, or a path of CSV, Parquet or Arrow.
        threads, dask
            Where blocks are computed, see `ooc_fw.data.parallel.borrow_workers`; `dask` None is
            this process. The values are the same to the last bit.
        on_rows : callable, optional
            Called after each block with the number of rows done.
        labels_only : bool
            The values serve for `class_places` only, and fewer rows are computed in float64.
        order : {"original", "stored"}
            Order of the rows in the path of a converted file: that of its source, as in ``ooc-fw
            predict``, or the one in which they are stored. Rows of an open source come as its
            `labels` do.

        Returns
        -------
        ndarray of float64, shape (n_rows,), or (n_rows, n_classifiers) for more than two classes
            The margin is at -1 and +1; positive means the larger class of a pair, or the class
            rather than the rest. Of a one-class model: the score minus the offset. Of regression:
            the prediction.

        Raises
        ------
        InputError
            When `X` lacks features, has another number of them or another scaling, or the processes
            cannot read it.
        ChildProcessError
            A worker died and could not be replaced.
        """
        if order not in ("original", "stored"):
            raise InputError(f"order must be original or stored, not {order!r}")
        with Table.of(self, X) as table:
            if table is not None and dask is not None:
                raise InputError(
                    f"{table.name} is a table, which one process parses; leave dask out"
                )
            if table is not None:
                return self._decide_table(table, threads, labels_only, on_rows)
        with borrow_source(X) as source:
            values = self._decide(source, threads, dask, on_rows, labels_only=labels_only)
            if order == "original" and X is not source and source.ids is not None:
                values = values[np.argsort(source.row_ids(0, source.n_rows), kind="stable")]
            return values

    def _decide(
        self,
        source: RowSource,
        threads: int,
        dask: Any,
        on_rows: Callable[[int], None] | None,
        *,
        labels_only: bool,
    ) -> Float64Array:
        """Decision values in the order of a source."""
        wanted = prediction.Wanted(labels_only)
        n_rows, n_classifiers = source.n_rows, len(self.classifiers)
        few = dask is None and source.in_memory
        if few and prediction.suits_few(self, n_rows, threads):
            rows = prediction.suited(self, source).read(0, n_rows)
            values = prediction.decide_few(self, rows, wanted, source.name)
            if on_rows is not None:
                on_rows(n_rows)
            return values
        values = np.empty(n_rows if n_classifiers == 1 else (n_rows, n_classifiers))
        decisions = prediction.iter_decisions(self, source, wanted, threads=threads, dask=dask)
        for start, part in decisions:
            values[start : start + len(part)] = part
            if on_rows is not None:
                on_rows(start + len(part))
        return values

    def _decide_table(
        self,
        table: Table,
        threads: int,
        labels_only: bool,
        on_rows: Callable[[int], None] | None,
    ) -> Float64Array:
        """Decision values of the rows of a table."""
        notes: list[str] = []
        rows = (block for _, block in rows_of_table(self, table, notes))
        parts, n_rows = [], 0
        like_training = prediction.like_training(self, rows)
        wanted = prediction.Wanted(labels_only)
        for values in prediction.decide(self, like_training, wanted, threads=threads):
            parts.append(values)
            n_rows += len(values)
            if on_rows is not None:
                on_rows(n_rows)
        for note in notes:
            logger.info("%s", note)
        return np.concatenate(parts)

    def importance(
        self,
        X: Any,
        *,
        rows: int | None = SAMPLE_ROWS,
        by: str = "auto",
        threads: int = 1,
        dask: Any = None,
        on_rows: Callable[[int], None] | None = None,
    ) -> Importance:
        """How much each column matters, over rows of `X`.

        By permutation it is what the model loses in ROC AUC (of two classes), accuracy or R^2 where
        the values of the column are shuffled among the rows. By gradients it is the root mean
        square derivative of the decision value, or the prediction, by the column, times the
        standard deviation of the column; the effect is the same with the mean derivative, whose
        sign says in which direction. Of more than two classes, for each: the value against the
        rest, or its mean against each other class. Columns that tell the same share what they
        matter.

        Parameters
        ----------
        X, threads, dask, on_rows
            As of `decision_function`, whose errors there are, too.
        rows : int or None
            Number of rows from all over `X` that are looked at; None for all of them.
        by : {"auto", "permutation", "gradients"}
            "auto" is permutation for labelled rows and the model of a table of up to 200 columns.

        Examples
        --------
        >>> import ooc_fw
        >>> X = np.random.default_rng(0).normal(size=(300, 3))
        >>> model = ooc_fw.FrankWolfeSVC().fit(X, X[:, 1] > 0).model_
        >>> found = model.importance(X)
        >>> found.names[found.order[0]], bool(found.effects[0, 1] > 0)
        ('1', True)
        """
        options = {"threads": threads, "dask": dask, "on_rows": on_rows}
        self._refuse_table(X, "convert it like the training data (convert --like TRAIN.h5)")
        with borrow_source(X) as source:
            return importance_of(self, source, rows, by, **options)

    def _refuse_table(self, X: Any, way: str) -> None:
        """Raise InputError for a table whose columns are not the features yet."""
        with Table.of(self, X) as table:
            if table is not None:
                raise InputError(f"{table.name} is a table of raw columns; {way}")

    def certify(
        self,
        X: Any,
        y: Any = None,
        *,
        penalties: npt.ArrayLike | None = None,
        exact_kernel: bool = False,
        threads: int = 1,
        dask: Any = None,
    ) -> ModelCertificate:
        """Certified gap of the model over the rows it was trained on, by a pass over them.

        Parameters
        ----------
        X : anything `ooc_fw.open_dataset` takes
            All training rows in their order.
        y : array-like of shape (n_rows,), path or None
            Their labels or targets; None takes those in the file `X`. Novelty needs none.
        penalties : array-like of shape (n_rows,), optional
            C of each row, for landmark models that were trained with weights of rows.
        exact_kernel : bool
            Of a landmark model: also the gap without jitter in its kernel.
        threads, dask
            As for `decision_function`.

        Returns
        -------
        ModelCertificate
            Its `certified_gap` is that of the worst binary classifier, `gap_scope` what it is of,
            and `classifiers` has a dictionary for each.

        Raises
        ------
        InputError
            The rows are not those the model was trained on, or cannot be read, or the penalties are
            unknown.

        Examples
        --------
        >>> import ooc_fw
        >>> X = np.random.default_rng(0).normal(size=(300, 3))
        >>> model = ooc_fw.FrankWolfeSVC().fit(X, X[:, 1] > 0).model_
        >>> model.certify(X, X[:, 1] > 0).certified_gap <= 1e-3
        True
        """
        from ooc_fw.model.certificate import Inquiry, certify_model  # it needs this module

        given = None if penalties is None else np.asarray(penalties, dtype=np.float64)
        asked = Inquiry(given, threads=threads, dask=dask, exact_kernel=exact_kernel)
        self._refuse_table(X, "give the converted file that the model was trained on")
        with borrow_source(X, y) as source:
            return certify_model(self, source, asked)

    def weights(self) -> Float64Array:
        """Weight of each support vector in each decision value, (n_support, n_classifiers).

        Those of regression are for targets that are divided by `spread`.
        """
        weights = np.zeros((len(self.support_vectors), len(self.classifiers)))
        for column, classifier in enumerate(self.classifiers):
            scale = 1.0 if self.task == "novelty" and self.kind == "exact" else classifier.rho
            weights[classifier.sv, column] = classifier.alpha * classifier.labels / scale
        return weights

    @cached_property
    def predictors(self) -> dict[prediction.Wanted, prediction.Predictor]:
        """Those of values and of labels only that are kept, since to make one takes time."""
        return {}

    def predict(
        self, X: Any, *, threads: int = 1, dask: Any = None, order: str = "original"
    ) -> npt.NDArray[Any]:
        """Class values of all rows of `X`, or predictions; see `decision_function`."""
        how: dict[str, Any] = {"threads": threads, "dask": dask, "order": order}
        values = self.decision_function(X, **how, labels_only=True)
        if self.task == "regression":
            return values
        return np.asarray(self.classes[self.class_places(values)])

    def predict_proba(
        self, X: Any, *, threads: int = 1, dask: Any = None, order: str = "original"
    ) -> Float64Array:
        """Probability of each class for all rows of `X`; see `decision_function`.

        InputError where the model is not `calibrated`.
        """
        how: dict[str, Any] = {"threads": threads, "dask": dask, "order": order}
        return self.probabilities(self.decision_function(X, **how))

    def class_places(self, decision_values: Float64Array, threshold: float = 0.0) -> Int64Array:
        """Place in `classes` of the prediction for each row, given its decision values.

        At the threshold it is the first of two classes, and that of ordinary rows. InputError for
        rows without a decision value, since they were too large.
        """
        unknown = np.isnan(decision_values.reshape(len(decision_values), -1)[:, 0])
        if unknown.any():
            raise InputError(
                f"{np.count_nonzero(unknown)} rows are too large for the {self.kernel.name} kernel "
                f"in float32 and have no label, first the one at place {unknown.argmax()}; scale "
                f"the columns as for training, or leave them out"
            )
        if len(self.classifiers) == 1:
            novelty = self.task == "novelty"
            positive = decision_values >= threshold if novelty else decision_values > threshold
            return positive.astype(np.int64)
        return np.asarray(self.class_scores(decision_values).argmax(axis=1))

    def class_scores(self, decision_values: Float64Array) -> Float64Array:
        """Votes for each of more than two classes, or its decision values against the rest."""
        if self.decision == "ovr":
            return decision_values
        return pairs.class_scores(decision_values, len(self.classes))

    def engine(self, threads: int = 1, *, sparse: bool = False, serves: bool = False) -> Engine:
        """Open an engine that suits the support vectors, or takes them as `sparse`, too."""
        vectors = self.support_vectors
        if sparse and not isinstance(vectors, CSRRows):
            vectors = CSRRows.from_dense(vectors)
        arithmetic = choose_arithmetic(self.kernel, vectors)
        return Engine(self.kernel, threads, arithmetic, serves=serves)

    def probabilities(self, decision_values: Float64Array) -> Float64Array:
        """Probability of each class, shape (n_rows, n_classes), from `decision_function`'s values.

        InputError where the model is not `calibrated`.
        """
        sigmoids = [(one.sigmoid_a, one.sigmoid_b) for one in self.classifiers]
        n_classes = len(self.classes)
        return prediction.class_probabilities(decision_values, sigmoids, n_classes, self.decision)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model file, replacing `path` atomically."""
        write_atomic(Path(path), self.to_bytes())

    def to_bytes(self) -> bytes:
        """Content of the model file."""
        return content_of(self)


def _check_classifiers(model: Model) -> None:
    """Raise InputError unless the classifiers are those of the classes, on the vectors."""
    classifiers, n_classes = model.classifiers, len(model.classes)
    if len({classifier.kind for classifier in classifiers}) > 1:
        raise InputError("a model is exact or has landmarks, not both")
    each, expected = "pair of them", n_classes * (n_classes - 1) // 2
    if len(classifiers) > 0 and model.decision == "ovr":
        each, expected = "of them against the rest", n_classes
    if n_classes < 2 or len(classifiers) != expected:
        raise InputError(
            f"a model needs two classes or more, and a binary classifier for each {each}, not "
            f"{n_classes} classes and {len(classifiers)} classifiers"
        )
    names = [(one.positive, one.negative) for one in classifiers]
    if names != pairs.class_names(model.classes, model.decision):
        raise InputError("the classifiers of a model are not those of its classes")
    of_classes = model.task == "classification" or model.classes.tolist() == [-1, 1]
    if not of_classes or (model.task == "regression" and model.kind == "exact"):
        raise InputError(f"its classes or classifiers are not those of {model.task}")
    n_vectors = len(model.support_vectors)
    places = np.concatenate([one.sv for one in classifiers])
    if not 0 <= places.min() <= places.max() < n_vectors:
        raise InputError(f"a classifier points outside the {n_vectors} vectors")
    if model.kind == "landmarks" and any(
        not np.array_equal(getattr(one, name), getattr(classifiers[0], name))
        for one in classifiers
        for name in ("sv", "rows", "jitter")
    ):
        raise InputError("all classifiers of a landmark model have the same landmarks")


def _check_values(model: Model) -> None:
    """Raise InputError for classes and numbers that no training gives."""
    classes, scaling = model.classes, model.scaling
    finite = classes.dtype.kind != "f" or np.isfinite(classes).all()
    if not finite or len(set(classes.tolist())) < len(classes):
        raise InputError("classes must be words or finite numbers, all different")
    usable = {
        "C": 0 < model.C < np.inf,
        "offset": model.offset is None or np.isfinite(model.offset),
        "spread": model.spread is None or 0 < model.spread < np.inf,
        "epsilon": model.epsilon is None or 0 <= model.epsilon < np.inf,
    }
    for name in (name for name, is_usable in usable.items() if not is_usable):
        raise InputError(f"the {name} of a model cannot be {getattr(model, name)}")
    if model.spread is not None and None in (model.offset, model.epsilon):
        raise InputError("a model of regression needs an offset and an epsilon")
    described = [None if model.columns is None else len(model.columns)]
    described += [None if scaling is None else scaling.n_features]
    for n in described:
        if n not in (None, model.n_features):
            raise InputError(f"it describes {n} columns and has {model.n_features}")


def training_data(model: Model, source: RowSource) -> tuple[Model, RowSource]:
    """The model and its training data, like `prediction.suited`, without the rows of weight 0."""
    source = prediction.suited(model, source)
    rows = rows_of_weight(model, source.n_rows, source.name)
    if rows is None:
        return model, source
    classifiers = [
        replace(one, rows=np.where(one.rows < 0, -1, np.searchsorted(rows, one.rows)))
        for one in model.classifiers
    ]
    model = replace(model, classifiers=classifiers, weighted_rows=None)
    return model, SubsetSource(source, ranges_of(rows))


def rows_of_weight(model: Model, n_rows: int, name: str = "the data set") -> Int64Array | None:
    """Numbers of the training rows that have weight, of `n_rows`; None for all."""
    if model.weighted_rows is None:
        return None
    rows = np.flatnonzero(np.unpackbits(model.weighted_rows))
    if len(model.weighted_rows) != -(-n_rows // 8) or not 0 <= rows.max(initial=-1) < n_rows:
        raise InputError(
            f"{name} has {n_rows} rows, but the model was trained on another number of them, "
            f"with those of weight 0; give the file it was trained on"
        )
    return rows


def check_training_rows(model: Model, source: RowSource, codes: Int64Array) -> None:
    """Raise InputError unless each support vector and its class are those of the row it is from.

    `codes` has the place in `classes` of the label of each row. Landmarks have no class, and may be
    no rows.
    """
    prediction.check_source(model, source)
    step = prediction.rows_at_once(model.n_features)
    for classifier in model.classifiers if model.kind == "exact" else model.classifiers[:1]:
        order = np.argsort(classifier.rows)
        last = classifier.rows[order[-1]]
        if model.kind == "landmarks":
            order = order[classifier.rows[order] != -1]
        if len(order) > 0 and (classifier.rows[order[0]] < 0 or last >= source.n_rows):
            raise InputError(
                f"{source.name} has {source.n_rows} rows but the model was trained on row {last}; "
                f"give the file it was trained on"
            )
        for part in (order[start : start + step] for start in range(0, len(order), step)):
            rows = classifier.rows[part]
            vectors = take_rows(model.support_vectors, classifier.sv[part])
            differs = (_dense(source.take(rows)) != _dense(vectors)).any(axis=1)
            if isinstance(classifier, pairs.BinaryClassifier) and model.task == "classification":
                classes = np.searchsorted(model.classes, [classifier.negative, classifier.positive])
                differs |= codes[rows] != classes[(classifier.labels[part] > 0).astype(np.intp)]
            if differs.any():
                raise InputError(
                    f"row {rows[differs.argmax()]} of {source.name} is not the model's support "
                    f"vector of that row; give the file it was trained on"
                )


def _dense(rows: Rows) -> Float32Array:
    return rows.toarray() if isinstance(rows, CSRRows) else rows


def load_model(path: str | os.PathLike[str]) -> Model:
    """Read a model file; InputError when there is none, or it is no model, or is damaged."""
    with opened(path) as file:
        return Model(**read_fields(file))


def model_from_bytes(content: bytes) -> Model:
    """Model of what `Model.to_bytes` gave; InputError or OSError when that is damaged."""
    with h5py.File(BytesIO(content), "r") as file:
        return Model(**read_fields(file))
