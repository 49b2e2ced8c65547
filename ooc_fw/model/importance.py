"""How much each column matters to a model, from gradients of its decision function.

The importance of a column is the root mean square, over rows, of the derivative of the decision
value by the column, times the standard deviation of the column. Scaling the column has no effect.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooc_fw.conversion.tables import TableRecord
from ooc_fw.data.parallel import Workers, row_slices
from ooc_fw.data.rows import CSRRows, Float64Array, Int64Array, take_columns
from ooc_fw.data.sources import RowSource, iter_blocks, stretches
from ooc_fw.data.statistics import ColumnRanges
from ooc_fw.data.views import ColumnSource, SubsetSource
from ooc_fw.kernels.gradients import Gradients
from ooc_fw.model.prediction import rows_at_once, suited
from ooc_fw.model.trained import Trained
from ooc_fw.system.errors import format_label

SAMPLE_ROWS = 10_000
_WIDE = 1 << 16  # in wider sparse rows, only columns that hold values are looked at


@dataclass(frozen=True, repr=False)
class Importance:
    """How much each column matters to a model, see `Model.importance`.

    A column of a table may have become several features, one for each word: it has the root of the
    sum of their squares. For wide sparse rows, only columns are listed that have a value in a row
    that was looked at, or in a support vector; the importance of the others is 0.
    """

    names: tuple[str, ...]  # names of the columns of a table or of the features, or their numbers
    what: str  # what changes: "the decision value for each class", "the prediction", ...
    values: Float64Array  # (n_columns,), the root mean square over classes if there are several
    n_rows: int  # number of rows that were looked at

    @property
    def order(self) -> Int64Array:
        """Places of the columns, the most important one first."""
        return np.argsort(-self.values, kind="stable")

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, with the columns in their `order`."""
        order = self.order.tolist()
        columns = [{"name": self.names[k], "importance": float(self.values[k])} for k in order]
        return {"n_rows": self.n_rows, "of": self.what, "columns": columns}


def importance_of(
    model: Trained,
    source: RowSource,
    rows: int | None,
    on_rows: Callable[[int], None],
    workers: Workers,
) -> Importance:
    """Compute `Model.importance` over the rows of a source."""
    source = suited(model, source)
    if rows is not None and rows < source.n_rows:
        # Look at up to a hundred stretches of consecutive rows.
        places = stretches(source.n_rows, min(rows, 100), -(-rows // 100))[:rows]
        source = SubsetSource(source, places)
    held = np.arange(model.n_features)
    vectors = model.support_vectors
    if model.n_features > _WIDE and source.sparse and isinstance(vectors, CSRRows):
        held = np.unique(vectors.indices).astype(np.int64)
        for _, block in iter_blocks(source, 0, source.n_rows):
            assert isinstance(block, CSRRows)
            held = np.union1d(held, block.indices)
        vectors = take_columns(vectors, held)
        source = ColumnSource(source, held)
    weights = model.weights().T * (model.spread or 1.0)
    n_classes = len(model.classes)
    if n_classes > 2 and model.decision == "ovo":  # mean decision value of a class in its pairs
        negative, positive = np.eye(n_classes)[model.sides.T]
        weights = (positive - negative).T @ weights / (n_classes - 1)
    gradients = Gradients(model.kernel, vectors, np.ascontiguousarray(weights))
    blocks = row_slices(source.n_rows, min(1024, rows_at_once(len(held))))
    squares = np.zeros(len(held))
    ranges = ColumnRanges("standard")
    for (_, stop), found in workers.over(source, _squares_of_block, blocks, gradients):
        squares += found[0]
        ranges = ranges.merge(found[1])
        on_rows(stop)
    source.check_unchanged()
    low, high = ranges.range(len(held))
    # A constant column has importance 0, whatever the rounding of its deviation.
    deviations = np.where(low < high, ranges.moments(len(held))[1], 0.0)
    squares *= deviations**2 / (source.n_rows * len(weights))
    names, squares = _of_columns(model, held, squares)
    whose = "each class" if n_classes > 2 else format_label(model.classes[1])
    what = {"regression": "the prediction", "novelty": "the score"}.get(
        model.task, f"the decision value for {whose}"
    )
    return Importance(names, what, np.sqrt(squares), source.n_rows)


def _of_columns(
    model: Trained, held: Int64Array, squares: Float64Array
) -> tuple[tuple[str, ...], Float64Array]:
    """Names and squares of columns, from the squares of the features `held` that they became."""
    known: Any = model.columns or range(model.n_features)
    if model.table is not None:
        record = TableRecord.from_json(model.table)
        known = [column for _, column in record.columns_of_features]
    names = [str(known[j]) for j in held.tolist()]
    if model.table is None:
        return tuple(names), squares
    places = {name: k for k, name in enumerate(dict.fromkeys(names))}
    sums = np.bincount([places[name] for name in names], weights=squares)
    return tuple(places), sums.astype(np.float64)


def _squares_of_block(
    source: RowSource, block: tuple[int, int], gradients: Gradients
) -> tuple[Float64Array, ColumnRanges]:
    """Sums of squared derivatives over a range of rows, and statistics of its columns."""
    rows = source.read(*block)
    squares = np.zeros(source.n_features)
    for part in gradients(rows):
        squares += np.square(part).sum(axis=(0, 1))
    return squares, ColumnRanges("standard").add(rows)
