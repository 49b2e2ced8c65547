"""Columns whose values float32 would merge: an offset is subtracted in float64, before rounding.

Times near 1.7e9, one minute apart, are one number in float32. A kernel of distances looks at the
differences of two rows only, which stay when a constant is subtracted from both. The constant is
stored with the model, as a scaling is, so that later rows lose the same one.
"""

from __future__ import annotations

import logging
from itertools import pairwise
from typing import Any

import numpy as np

from ooc_fw.data.rows import AnyArray, CSRRows, as_float32, concat_rows, values_of
from ooc_fw.data.scaling import OFFSET, Scaling
from ooc_fw.data.sources import CHUNK_BYTES, RowSource
from ooc_fw.data.views import ScaledSource

logger = logging.getLogger(__name__)

DISTANCES = ("rbf", "laplacian")  # kernels whose values depend on differences of rows only
STRETCHES = 8  # parts of the source that the sample comes from,
STRETCH_ROWS = 128  # and rows of each
NOISE = 1e-11  # relative difference of values that is taken for rounding errors of float64
EXACT = 2.0**53  # whole numbers below this one have none
MERGED = 0.01  # share of the values of a column that may be merged


def without_offsets(source: RowSource, *kernels: object) -> RowSource:
    """Rows to train kernels of these names on: the source, or a view that subtracts offsets.

    Rows of float32, and rows that are scaled, are as they were. Where different values stay merged
    (in sparse rows, whose zeros must stay, under other kernels, and in columns of several far
    values), a warning names the column.
    """
    is_scaled = source.scaling is not None and not source.scaling.is_identity
    if is_scaled or not merges(source):
        return source
    rows = _sample(source)
    before = _merged(rows)
    if isinstance(rows, CSRRows) or not {*kernels} <= {*DISTANCES}:
        way = "convert with --scale standard, which takes their mean off before they are rounded"
        _warn(source, rows, before, way)
        return source
    middle = np.sort(rows, axis=0)[len(rows) // 2]
    offset = np.where(before, middle, 0.0)
    after = _merged(rows - offset)
    if after.any():
        _warn(source, rows, after, "write its ranges as columns of their own")
    return ScaledSource(source, Scaling(OFFSET, False, offset, np.ones(source.n_features)))


def merges(source: RowSource) -> bool:
    """Whether some column has values that float32 makes one."""
    is_exact = values_of(_exact_rows(source, 0, 1)).dtype == np.float64
    return is_exact and bool(_merged(_sample(source)).any())


def _exact_rows(source: RowSource, start: int, stop: int) -> Any:
    return source.read(start, stop, exact=True, checked=False)


def _sample(source: RowSource) -> Any:
    """Exact rows from several parts of the source, in no more memory than a block takes."""
    length = min(STRETCH_ROWS, source.rows_in(CHUNK_BYTES // STRETCHES))
    borders = [source.n_rows * k // STRETCHES for k in range(STRETCHES + 1)]
    parts = [(first, min(stop, first + length)) for first, stop in pairwise(borders)]
    return concat_rows([_exact_rows(source, *part) for part in parts])


def _merged(rows: Any) -> AnyArray:
    """Which columns have different values that float32 makes one, shape (n_features,)."""
    width = rows.shape[1]
    if isinstance(rows, CSRRows):
        order = np.lexsort((rows.data, rows.indices))
        columns, values = rows.indices[order], rows.data[order]
    else:
        columns = np.repeat(np.arange(width), len(rows))
        values = np.sort(rows, axis=0).T.reshape(-1)
    if not len(values):
        return np.zeros(width, dtype=bool)
    with np.errstate(invalid="ignore"):  # values beyond float32 are refused by the first pass
        same = (columns[1:] == columns[:-1]) & (np.diff(as_float32(values)) == 0)
        starts = np.flatnonzero(np.r_[True, ~same])  # of groups that float32 makes one value
        stops = np.r_[starts[1:], len(values)]
        is_whole = (values == np.rint(values)) & (np.abs(values) < EXACT)
        all_whole = np.logical_and.reduceat(is_whole, starts)
        noise = np.where(all_whole, 0.0, NOISE * np.abs(values[starts]))
        differ = values[stops - 1] - values[starts] > noise
    n_merged = np.bincount(columns[starts], differ * (stops - starts), minlength=width)
    return np.asarray(n_merged > MERGED * np.bincount(columns, minlength=width))


def _warn(source: RowSource, rows: Any, merged: AnyArray, way: str) -> None:
    column, n_merged = int(np.argmax(merged)), int(np.count_nonzero(merged))
    is_sparse = isinstance(rows, CSRRows)
    values = rows.data[rows.indices == column] if is_sparse else rows[:, column]
    name = column if source.columns is None else repr(source.columns[column])
    more = f" (and those of {n_merged - 1} more columns)" if n_merged > 1 else ""
    logger.warning(
        "%s, column %s: its values, from %.17g to %.17g, cannot be told apart in float32%s; %s",
        *(source.name, name, values.min(), values.max(), more, way),
    )
