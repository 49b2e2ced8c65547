"""Which columns matter to a model: by shuffling them, or by gradients of its decision function.

The importance of a column of a table is what the model loses, on rows whose values in this column
are shuffled among them. Of wide data, and rows without labels, it is the root mean square, over the
rows, of the derivative of a decision value by the column, times the standard deviation of the
column. No scaling of the column changes either.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ooc_fw.convert.record import TableRecord
from ooc_fw.data.parallel import borrow_workers, row_slices
from ooc_fw.data.rows import AnyArray, CSRRows, Float64Array, Int64Array, Rows, take_columns
from ooc_fw.data.sources import RowSource, iter_blocks, rows_source, stretches
from ooc_fw.data.statistics import ColumnRanges
from ooc_fw.data.views import ColumnSource, SubsetSource, ranges_of
from ooc_fw.kernels.gradients import Gradients
from ooc_fw.model.prediction import rows_at_once, suited
from ooc_fw.system.errors import InputError, format_label

if TYPE_CHECKING:
    from ooc_fw.model.record import Model

SAMPLE_ROWS = 10_000
_STRETCHES = 100  # stretches of consecutive rows that make up a sample
_MOST_SHUFFLED = 200  # columns of a table that are shuffled one by one unless told otherwise
_WIDE = 1 << 16  # columns above which only those of sparse rows that hold values are looked at
_TASK_ROWS = 1 << 10  # rows of one task; fewer of them where rows are wide


@dataclass(frozen=True, repr=False)
class Importance:
    """How much each column matters to a model, see `Model.importance`.

    The features that a column of a table became, such as one for each word of a category, count
    together, by the root of their sum of squares. Of wide sparse rows there are the columns that
    hold a value in a row that was looked at, or in a support vector; the others do not matter.
    """

    names: tuple[str, ...]  # of the columns: those of a table, or of the features, or their numbers
    what: str  # what changes: "the decision value for each class", "the prediction", ...
    classes: tuple[str, ...]  # whose values they are: each of several, or the larger one of two
    by_class: Float64Array  # (n_classes, n_columns)
    effects: Float64Array  # (n_classes, n_columns), by the mean derivative; NaN of several features
    n_rows: int  # rows that the means are taken over
    permuted: bool = False  # whether columns were shuffled

    def __repr__(self) -> str:
        first = [f"{self.names[k]}={self.values[k]:.3g}" for k in self.order[:5]]
        more = ["..."] * (len(self.names) > len(first))
        return f"Importance({', '.join(first + more)}; over {self.n_rows} rows)"

    @property
    def values(self) -> Float64Array:
        """Importance of each column; of several classes the root mean square over them."""
        if len(self.classes) == 1:
            return np.asarray(self.by_class[0])
        return np.asarray(np.sqrt(np.square(self.by_class).mean(axis=0)))

    @property
    def order(self) -> Int64Array:
        """Places of the columns, the most important one first."""
        return np.argsort(-self.values, kind="stable")

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; columns in their `order`."""
        columns = []
        for k in self.order.tolist():
            pairs = zip(self.by_class[:, k].tolist(), self.effects[:, k].tolist(), strict=True)
            each = [{"importance": value, "effect": effect} for value, effect in pairs]
            own: dict[str, Any] = each[0]
            if len(each) > 1:
                by_class = dict(zip(self.classes, each, strict=True))
                own = {"importance": float(self.values[k]), "by_class": by_class}
            columns.append({"name": self.names[k]} | own)
        return {"n_rows": self.n_rows, "of": self.what, "columns": columns}


def importance_of(
    model: Model,
    source: RowSource,
    rows: int | None,
    by: str,
    on_rows: Callable[[int], None] | None,
    **where: Any,
) -> Importance:
    """`Model.importance` of the rows of a source."""
    tell = on_rows or (lambda _: None)
    if by == "auto":
        few = model.n_features <= _WIDE and len(_columns_of(model, None)[0]) <= _MOST_SHUFFLED
        shuffles = model.table is not None and source.has_labels and few
        by = "permutation" if shuffles else "gradients"
    if by == "permutation" and (model.task == "novelty" or not source.has_labels):
        raise InputError(
            f"permutation needs labels that {source.name} or the model lacks; take gradients (--by)"
        )
    source = suited(model, source)
    if rows is not None and rows < source.n_rows:
        places = stretches(source.n_rows, min(rows, _STRETCHES), -(-rows // _STRETCHES))[:rows]
        source = SubsetSource(source, ranges_of(places))
    narrow, source, held = _narrowed(model, source)
    names, places = _columns_of(model, held)
    if by == "permutation":
        what, lost = _lost(narrow, source, places, tell, where["threads"])
        unknown = np.full_like(lost, np.nan)
        return Importance(names, what, ("all",), lost, unknown, source.n_rows, permuted=True)
    squares, effects = _slopes(narrow, source, tell, **where)
    if model.table is not None:
        sums = np.zeros((len(names), 2, len(squares)))
        np.add.at(sums, places, np.stack([squares.T, effects.T], axis=1))
        alone = np.bincount(places) == 1
        squares = sums[:, 0].T
        effects = np.where(alone, sums[:, 1].T, np.nan)
    classes = tuple(format_label(value) for value in model.classes.tolist())
    classes = classes if len(classes) > 2 else classes[1:]
    whose = "each class" if len(classes) > 1 else classes[0]
    what = {"regression": "the prediction", "novelty": "the score"}.get(
        model.task, f"the decision value for {whose}"
    )
    return Importance(names, what, classes, np.sqrt(squares), effects, source.n_rows)


def _narrowed(model: Model, source: RowSource) -> tuple[Model, RowSource, Int64Array | None]:
    """A model and suited rows without the columns that none of them holds, and those that stay.

    Rows that are dense, or not wide, and their model, are as they were, with None for all columns.
    """
    vectors = model.support_vectors
    if model.n_features <= _WIDE or not source.sparse or not isinstance(vectors, CSRRows):
        return model, source, None
    held = np.unique(vectors.indices)
    for _, rows in iter_blocks(source, 0, source.n_rows):
        assert isinstance(rows, CSRRows)
        held = np.union1d(held, rows.indices)
    places = held.astype(np.int64)
    scaling = model.scaling and model.scaling.at(places)
    vectors = take_columns(vectors, places)
    narrow = replace(model, support_vectors=vectors, scaling=scaling, columns=None, table=None)
    source = ColumnSource(source, places)
    source.columns = None
    return narrow, source, places


def _columns_of(model: Model, held: Int64Array | None) -> tuple[tuple[str, ...], Int64Array]:
    """Names of columns, those of its table if it has one, and the column of each feature `held`."""
    if held is None:
        held = np.arange(model.n_features)
    if model.table is None:
        known: Any = model.columns or range(model.n_features)
        return tuple(str(known[j]) for j in held.tolist()), np.arange(len(held))
    record = TableRecord.from_json(model.table, "the model", model.columns, model.n_features)
    columns = [record.columns_of_features[j][1] for j in held.tolist()]
    places = {name: k for k, name in enumerate(dict.fromkeys(columns))}
    return tuple(places), np.array([places[column] for column in columns])


def _lost(
    model: Model,
    source: RowSource,
    places: Int64Array,
    on_rows: Callable[[int], None],
    threads: int,
) -> tuple[str, Float64Array]:
    """What is lost where a column is shuffled, and how much, (1, n_columns).

    It is that of `sklearn.inspection.permutation_importance` with one repeat. The features that a
    column of a table became are shuffled together.
    """
    from sklearn.metrics import accuracy_score, r2_score, roc_auc_score  # 1 s, for few commands

    whole = source.read(0, source.n_rows)
    labels = np.asarray(source.labels(0, source.n_rows))
    score = accuracy_score
    what = "accuracy"
    if model.task == "regression":
        score = r2_score
        what = "R^2"
    elif len(model.classes) == 2:
        score = roc_auc_score
        what = "ROC AUC"
        labels = labels == model.classes[1]
        if labels.all() or not labels.any():
            raise InputError(f"{source.name} has rows of one class only; take gradients (--by)")

    def measured(rows: Rows) -> float:
        part = rows_source(rows, source.name)
        part.scaling = source.scaling
        part.columns = source.columns
        found = model.decision_function(part, threads=threads)
        if what == "accuracy":
            found = model.classes[model.class_places(found)]
        return float(score(labels, found))

    rng = np.random.default_rng(0)
    best = measured(whole)
    lost = []
    n_columns = int(places.max()) + 1
    for k in range(n_columns):
        lost.append(best - measured(_shuffled(whole, places == k, rng)))
        on_rows(source.n_rows * (k + 1) // n_columns)
    return f"{what} lost", np.array([lost])


def _shuffled(rows: Rows, features: AnyArray, rng: np.random.Generator) -> Rows:
    """Rows whose values of some features, which stay together, are those of other rows."""
    order = rng.permutation(len(rows))
    if not isinstance(rows, CSRRows):
        shuffled = rows.copy()
        shuffled[:, features] = rows[np.ix_(order, features)]
        return shuffled
    places = np.where(features[rows.indices], order[rows.row_numbers()], rows.row_numbers())
    by_row = np.lexsort((rows.indices, places))
    starts = np.searchsorted(places[by_row], np.arange(len(rows) + 1))
    return CSRRows(rows.data[by_row], rows.indices[by_row], starts, rows.n_features)


def _slopes(
    model: Model, source: RowSource, on_rows: Callable[[int], None], threads: int, dask: Any
) -> tuple[Float64Array, Float64Array]:
    """Mean squares and means of derivatives by each column, times its deviation or square of it.

    Both have the shape (n_functions, n_features). Of pairs of classes, a function is the mean
    decision value of a class against each of the others. Constant columns have exact zeros.
    """
    weights = model.weights().T * (model.spread or 1.0)
    n_classes = len(model.classes)
    if n_classes > 2 and model.decision == "ovo":
        negative, positive = np.eye(n_classes)[model.sides.T]
        weights = (positive - negative).T @ weights / (n_classes - 1)
    gradients = Gradients(model.kernel, model.support_vectors, np.ascontiguousarray(weights))
    blocks = row_slices(source.n_rows, min(_TASK_ROWS, rows_at_once(model.n_features)))
    sums = np.zeros(())
    ranges = ColumnRanges("standard")
    with borrow_workers(dask, threads) as workers:
        for (_, stop), found in workers.over(source, _sums_of_block, blocks, gradients):
            sums = sums + found[0]
            ranges = ranges.merge(found[1])
            on_rows(stop)
    source.check_unchanged()
    low, high = ranges.range(model.n_features)
    deviations = np.where(low < high, ranges.moments(model.n_features)[1], 0.0)
    means, squares = sums / source.n_rows
    return squares * deviations**2, means * deviations


def _sums_of_block(
    source: RowSource, block: tuple[int, int], gradients: Gradients
) -> tuple[Float64Array, ColumnRanges]:
    """Sums of the derivatives and of their squares over a range of rows, and its columns."""
    rows = source.read(*block)
    sums = np.zeros((2, len(gradients.weights), source.n_features))
    for part in gradients(rows):
        sums += part.sum(axis=1), np.square(part).sum(axis=1)
    return sums, ColumnRanges("standard").add(rows)
