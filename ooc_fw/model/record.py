"""A trained model: what training found, and all that can be done with it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ooc_fw.data.opening import borrow_source as borrow_source
from ooc_fw.data.parallel import borrow_workers
from ooc_fw.data.rows import CSRRows, Float64Array, Int64Array, Rows
from ooc_fw.data.scaling import Scaling
from ooc_fw.data.sources import RowSource
from ooc_fw.landmarks import LandmarkSolution, halves
from ooc_fw.model.applying import AppliedRows, NewRows, apply_model
from ooc_fw.model.file import content_of, read_model
from ooc_fw.model.importance import SAMPLE_ROWS, Importance, importance_of
from ooc_fw.model.machines import (
    Classifier,
    PairSolution,
    class_probabilities,
    class_scores,
    union_of_rows,
    worst_status,
)
from ooc_fw.model.prediction import format_of_table, without_value
from ooc_fw.model.trained import Trained
from ooc_fw.options import COUNT, THREADS, Option
from ooc_fw.system.errors import InputError
from ooc_fw.system.files import write_atomic

if TYPE_CHECKING:
    from ooc_fw.model.certificate import ModelCertificate


@dataclass(frozen=True, repr=False)
class Model(Trained):
    """Trained classifiers, which predict, can be certified, and are saved to a file."""

    @classmethod
    def of(
        cls,
        solution: LandmarkSolution | Sequence[PairSolution],
        data: RowSource | Model | None,
        *,
        classes: npt.ArrayLike = (-1.0, 1.0),
        vectors: Rows | None = None,
        penalties: Float64Array | None = None,
        **given: Any,
    ) -> Model:
        """Make a model of the result of training: a landmark solution, or one for each pair.

        Scaling, names of features, table, origin and threshold come from `data`. With several
        pairs, `vectors` are the rows of `ooc_fw.model.machines.union_of_rows`. `penalties` are
        those of all training rows. `given` has the other fields: kernel, C, n_rows, and those of
        the task.
        """
        if isinstance(solution, LandmarkSolution):
            rows = solution.rows
            found = (solution.certified_gap, solution.sampled_gap, solution.primal, solution.dual)
            unknown = [None] * len(solution.beta)
            numbers = zip(*(unknown if own is None else own.tolist() for own in found), strict=True)
            classifiers = [
                Classifier(np.arange(len(rows)), beta, 1.0, *own)
                for beta, own in zip(solution.beta, numbers, strict=True)
            ]
            vectors = solution.landmarks
            if vectors is None:
                vectors, classifiers = _linear(classifiers, getattr(data, "sparse", False))
                rows = np.zeros(len(vectors), dtype=np.int64)
            status = solution.status
            given["jitter"] = solution.jitter
        else:
            own = [pair.solution for pair in solution]
            rows = union_of_rows(solution)
            places = [np.searchsorted(rows, one.rows) for one in own]
            if len(own) == 1:  # its rows are in any order
                places = [np.arange(len(rows))]
            classifiers = [
                Classifier(
                    sv,
                    one.alpha * one.labels,
                    *(one.rho, one.certified_gap, one.sampled_gap, one.primal, one.dual),
                )
                for sv, one in zip(places, own, strict=True)
            ]
            vectors = own[0].support_vectors if vectors is None else vectors
            status = worst_status([one.status for one in own])
        columns = getattr(data, "columns", None)
        return cls(
            classes=np.asarray(classes),
            scaling=getattr(data, "scaling", None) or Scaling(),
            status=str(status),
            support_vectors=vectors,
            rows=rows,
            classifiers=classifiers,
            penalties=None if penalties is None else penalties[rows],
            threshold=getattr(data, "threshold", None),
            columns=None if columns is None else tuple(columns),
            table=getattr(data, "table", None),
            origin=dict(getattr(data, "origin", {})),
            **given,
        )

    def decision_function(
        self,
        X: Any,
        *,
        threads: int = 1,
        dask: Any = None,
        labels_only: bool = False,
        **reading: Any,
    ) -> Float64Array:
        """Decision values of all rows of `X`, with errors up to `DECISION_ACCURACY` if possible.

        A converted file records its scaling and is used as it is. All other rows are raw, and the
        model scales them like the training rows. Features with names are found by their names.

        Parameters
        ----------
        X : anything `ooc_fw.open_dataset` takes, LIBSVM text, or a table like that of training
            A table is a frame, an Arrow table, or a path of CSV, Parquet or Arrow.
        threads, dask
            Where blocks are computed, see `ooc_fw.data.parallel.borrow_workers`. Tables are parsed
            in one process.
        labels_only : bool
            Whether only `class_places` uses the values; then fewer rows need float64.
        **reading
            How `X` is read: ``x_name`` and ``fill_missing`` as for `ooc_fw.open_dataset`;
            ``zero_based`` for text and ``names`` for CSV, as in ``ooc-fw predict``.

        Returns
        -------
        ndarray of float64, shape (n_rows,), or (n_rows, n_classifiers) for more than two classes
            The margin is at -1 and +1; positive values mean the larger class of a pair, or the
            class rather than the rest. Novelty: the score minus the offset. Regression: the
            prediction. For the path of a converted file, values have the order of the rows before
            conversion; for an open source, the order of its `labels`.
        """
        dask = None if format_of_table(self, X) else dask
        new = NewRows.of(X, threads=threads, dask=dask, like="the model", **reading)
        n = len(self.classifiers)
        none = AppliedRows(np.empty((0, n) if n > 1 else 0))
        blocks = [none, *apply_model(self, new, labels_only=labels_only)]
        values = np.concatenate([block.values for block in blocks])
        if not isinstance(X, RowSource) and blocks[-1].row_ids is not None:
            numbers = np.concatenate([block.row_ids for block in blocks[1:]])
            values = values[np.argsort(numbers, kind="stable")]
        return values

    def predict(self, X: Any, **how: Any) -> npt.NDArray[Any]:
        """Predicted classes, or numbers of a regression, for all rows; see `decision_function`."""
        values = self.decision_function(X, labels_only=True, **how)
        if self.task == "regression":
            return values
        return np.asarray(self.classes[self.class_places(values)])

    def predict_proba(self, X: Any, **how: Any) -> Float64Array:
        """Probability of each class for all rows of `X`; see `decision_function`."""
        return self.probabilities(self.decision_function(X, **how))

    def class_places(self, decision_values: Float64Array) -> Int64Array:
        """Place in `classes` of the prediction for each row, from its decision values.

        A value at the `threshold` predicts the first of two classes, or an ordinary row in novelty.
        InputError for rows that were too large and have no decision value.
        """
        unknown = without_value(decision_values)
        if unknown.any():
            raise InputError(
                f"{np.count_nonzero(unknown)} rows are too large for the {self.kernel.name} kernel "
                f"in float32 and have no label, first the one at place {unknown.argmax()}; scale "
                f"the columns as for training, or leave these rows out"
            )
        if len(self.classifiers) > 1:
            return np.asarray(self.class_scores(decision_values).argmax(axis=1))
        is_above = np.greater_equal if self.task == "novelty" else np.greater
        return np.asarray(is_above(decision_values, self.threshold or 0.0), dtype=np.int64)

    def class_scores(self, decision_values: Float64Array) -> Float64Array:
        """Scores of more than two classes: votes, or decision values of each against the rest."""
        if self.decision == "ovr":
            return decision_values
        return class_scores(decision_values, len(self.classes))

    def probabilities(self, decision_values: Float64Array) -> Float64Array:
        """Probability of each class, shape (n_rows, n_classes), from decision values.

        InputError if the model is not `calibrated`.
        """
        if not self.calibrated:
            raise InputError(
                "the model gives no probabilities; train it with --probability (in Python "
                "probability=True)"
            )
        sigmoids = self.numbers("sigmoid_a"), self.numbers("sigmoid_b")
        return class_probabilities(decision_values, *sigmoids, len(self.classes), self.decision)

    def importance(
        self,
        X: Any,
        *,
        rows: int | None = SAMPLE_ROWS,
        threads: int = 1,
        dask: Any = None,
        on_rows: Callable[[int], None] | None = None,
    ) -> Importance:
        """How much each column matters, from up to `rows` rows of `X`, or all rows for None.

        It is the root mean square derivative of the decision value, or the prediction, by the
        column, times the standard deviation of the column.
        """
        with (
            borrow_source(X, like=self.origin | {"label": "y"}) as source,
            borrow_workers(dask, THREADS.check("threads", threads)) as workers,
        ):
            most = None if rows is None else Option(None, **COUNT).check("rows", rows)
            return importance_of(self, source, most, on_rows or (lambda _: None), workers)

    def certify(
        self,
        X: Any,
        y: Any = None,
        *,
        penalties: npt.ArrayLike | None = None,
        threads: int = 1,
        dask: Any = None,
        on_rows: Callable[[int], None] | None = None,
    ) -> ModelCertificate:
        """Certify the gap of the model by a reading of its training rows.

        `X` has all training rows in their order, and `y` their labels or targets; None takes those
        in the file `X`. Landmark models that were trained with weights of rows need `penalties`:
        C times the weight of each row, or these weights.
        InputError is raised if `X` has other rows or cannot be read, or if penalties are unknown.
        `on_rows` receives the number of rows that are done.
        """
        from ooc_fw.model.certificate import certify_model  # scipy.linalg takes 0.1 s

        tell = on_rows or (lambda _: None)
        with borrow_source(X, y, like=self.origin) as source:
            if X is not source and penalties is not None:
                penalties = source.by_row(np.asarray(penalties), "penalties")
            number = THREADS.check("threads", threads)
            return certify_model(self, source, penalties, number, dask, tell)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model file, replacing `path` atomically."""
        write_atomic(Path(path), content_of(self))


def _linear(classifiers: list[Classifier], sparse: bool) -> tuple[Rows, list[Classifier]]:
    """Vectors of a linear model, and its classifiers, which have weights of columns.

    The first vector is 0: its weight makes the sum of the weights of a classifier its bias. A
    classifier has two further vectors, the two halves of its weights, since vectors are float32.
    """
    weights = np.array([one.beta for one in classifiers])
    parts = halves(weights[:, :-1])
    zero = np.zeros((1, weights.shape[1] - 1))
    dense = np.vstack([zero, *parts]).astype(np.float32)
    k = len(weights)
    found = [
        replace(
            one, sv=np.array([0, c + 1, k + c + 1]), beta=np.array([weights[c, -1] - 2.0, 1.0, 1.0])
        )
        for c, one in enumerate(classifiers)
    ]
    return CSRRows.from_dense(dense) if sparse else dense, found


def load_model(path: str | os.PathLike[str]) -> Model:
    """Read a model file; InputError if it is missing, is not a model, or is damaged."""
    return read_model(path, Model)
