"""Which columns matter to a model, by gradients of its decision function.

The importance of a column is the root mean square, over the rows, of the derivative of a decision
value by the column, times the standard deviation of the column. Its scaling does not change it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ooc_fw.convert.tables import TableRecord
from ooc_fw.data.parallel import borrow_workers, row_slices
from ooc_fw.data.rows import CSRRows, Float64Array, Int64Array, Rows, take_columns
from ooc_fw.data.sources import RowSource, iter_blocks, stretches
from ooc_fw.data.statistics import ColumnRanges
from ooc_fw.data.views import ColumnSource, SubsetSource, ranges_of
from ooc_fw.kernels.gradients import Gradients
from ooc_fw.model.prediction import rows_at_once, suited
from ooc_fw.system.errors import format_label

if TYPE_CHECKING:
    from ooc_fw.model.record import Model

SAMPLE_ROWS = 10_000
_WIDE = 1 << 16  # columns above which only those of sparse rows that hold values are looked at


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

    @property
    def values(self) -> Float64Array:
        """Importance of each column; of several classes the root mean square over them."""
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
    on_rows: Callable[[int], None] | None,
    threads: int,
    dask: Any,
) -> Importance:
    """`Model.importance` of the rows of a source."""
    source = suited(model, source)
    if rows is not None and rows < source.n_rows:
        # A hundred stretches of consecutive rows.
        places = stretches(source.n_rows, min(rows, 100), -(-rows // 100))[:rows]
        source = SubsetSource(source, ranges_of(places))
    held = np.arange(model.n_features)
    vectors = model.support_vectors
    if model.n_features > _WIDE and source.sparse and isinstance(vectors, CSRRows):
        held = _held_columns(vectors, source)
        vectors = take_columns(vectors, held)
        source = ColumnSource(source, held)
    n_features = len(held)
    blocks = row_slices(source.n_rows, min(1024, rows_at_once(n_features)))
    sums = np.zeros((2, 1, 1))
    ranges = ColumnRanges("standard")
    with borrow_workers(dask, threads) as workers:
        gradients = _gradients(model, vectors)
        for (_, stop), found in workers.over(source, _sums_of_block, blocks, gradients):
            sums = sums + found[0]
            ranges = ranges.merge(found[1])
            if on_rows is not None:
                on_rows(stop)
    source.check_unchanged()
    low, high = ranges.range(n_features)
    # Constant columns have exact zeros.
    deviations = np.where(low < high, ranges.moments(n_features)[1], 0.0)
    means = sums[0] / source.n_rows * deviations
    squares = sums[1] / source.n_rows * deviations**2
    return _of_columns(model, held, squares, means, source.n_rows)


def _held_columns(vectors: CSRRows, source: RowSource) -> Int64Array:
    """Columns in which a support vector or a row holds a value."""
    held = np.unique(vectors.indices)
    for _, rows in iter_blocks(source, 0, source.n_rows):
        assert isinstance(rows, CSRRows)
        held = np.union1d(held, rows.indices)
    return held.astype(np.int64)


def _gradients(model: Model, vectors: Rows) -> Gradients:
    """Of the decision value, or of the mean one of each class against each of the others."""
    weights = model.weights().T * (model.spread or 1.0)
    n_classes = len(model.classes)
    if n_classes > 2 and model.decision == "ovo":
        negative, positive = np.eye(n_classes)[model.sides.T]
        weights = (positive - negative).T @ weights / (n_classes - 1)
    return Gradients(model.kernel, vectors, np.ascontiguousarray(weights))


def _sums_of_block(
    source: RowSource, block: tuple[int, int], gradients: Gradients
) -> tuple[Float64Array, ColumnRanges]:
    """Sums of the derivatives and of their squares over a range of rows, and its columns."""
    rows = source.read(*block)
    sums = np.zeros((2, len(gradients.weights), source.n_features))
    for part in gradients(rows):
        sums += part.sum(axis=1), np.square(part).sum(axis=1)
    return sums, ColumnRanges("standard").add(rows)


def _of_columns(
    model: Model, held: Int64Array, squares: Float64Array, means: Float64Array, n_rows: int
) -> Importance:
    """From mean squares and means for the features `held`, each of shape (n_functions, n)."""
    known: Any = model.columns or range(model.n_features)
    if model.table is not None:
        record = TableRecord.from_json(model.table, "the model", model.columns, model.n_features)
        known = [column for _, column in record.columns_of_features]
    names = [str(known[j]) for j in held.tolist()]
    if model.table is not None:
        columns = {name: k for k, name in enumerate(dict.fromkeys(names))}
        places = np.array([columns[name] for name in names])
        sums = np.zeros((len(columns), 2, len(squares)))
        np.add.at(sums, places, np.stack([squares.T, means.T], axis=1))
        squares = sums[:, 0].T
        means = np.where(np.bincount(places) == 1, sums[:, 1].T, np.nan)
        names = list(columns)
    classes = tuple(format_label(value) for value in model.classes.tolist())
    classes = classes if len(classes) > 2 else classes[1:]
    whose = "each class" if len(classes) > 1 else classes[0]
    what = {"regression": "the prediction", "novelty": "the score"}.get(
        model.task, f"the decision value for {whose}"
    )
    return Importance(tuple(names), what, classes, np.sqrt(squares), means, n_rows)
