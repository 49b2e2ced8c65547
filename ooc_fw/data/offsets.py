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

from ooc_fw.data.rows import (
    AnyArray,
    CSRRows,
    StoredRows,
    as_float32,
    concat_rows,
    unrounded,
    values_of,
)
from ooc_fw.data.scaling import OFFSET, Scaling
from ooc_fw.data.sources import CHUNK_BYTES, RowSource
from ooc_fw.data.views import ScaledSource

logger = logging.getLogger(__name__)

DISTANCES = ("rbf", "laplacian")  # kernels whose values depend on differences of rows only
STRETCHES = 8  # parts of the source that the sample comes from,
STRETCH_ROWS = 128  # and rows of each
NOISE = 1e-12  # relative difference of values that is taken for rounding error of float64,
EXACT = 2.0**53  # unless they are whole numbers below this one
MANY = 10  # rounding errors that values next to each other may be apart
MERGED = 0.01  # share of the different values of a column that may be merged


def without_offsets(source: RowSource, *kernels: object) -> RowSource:
    """Rows to train kernels of these names on: the source, or a view that subtracts offsets.

    Rows of float32, and rows that are scaled, are as they were. Where different values stay merged
    (in sparse rows, whose zeros must stay, under other kernels, and in columns of several far
    values), a warning names the column.
    """
    scaled = source.scaling is not None and not source.scaling.is_identity
    if scaled or not _is_exact(source):
        return source
    rows = _sample(source)
    before = _merged(rows)
    if not before.any():
        return source
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
    return _is_exact(source) and bool(_merged(_sample(source)).any())


def _is_exact(source: RowSource) -> bool:
    """Whether some rows have more digits than float32."""
    if source._parents:
        return any(map(_is_exact, source._parents))
    return values_of(_exact_rows(source, 0, 1)).dtype == np.float64


def _exact_rows(source: RowSource, start: int, stop: int) -> Any:
    return unrounded(source.read_unchecked(start, stop))


def _sample(source: RowSource) -> Any:
    """Exact rows from several parts of the source, in no more memory than a block takes."""
    length = min(STRETCH_ROWS, source.rows_in(CHUNK_BYTES // STRETCHES))
    borders = [source.n_rows * k // STRETCHES for k in range(STRETCHES + 1)]
    parts = [(first, min(stop, first + length)) for first, stop in pairwise(borders)]
    return concat_rows([_exact_rows(source, *part) for part in parts])


def _merged(rows: StoredRows) -> AnyArray:
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
        steps, in_column = np.diff(values), columns[1:] == columns[:-1]
        same = in_column & (np.diff(as_float32(values)) == 0)
        # Small steps are no rounding error where many of them lead further than one.
        starts = np.flatnonzero(np.r_[True, ~same])
        stops = np.r_[starts[1:], len(values)]
        spreads = np.repeat(values[stops - 1] - values[starts], stops - starts)[1:]
        close = NOISE * np.maximum(np.abs(values[1:]), np.abs(values[:-1]))
        whole = (values == np.rint(values)) & (np.abs(values) < EXACT)
        close[whole[1:] & whole[:-1]] = 0
        differ = in_column & ((steps > close) | (steps > 0) & (spreads > MANY * close))
        same &= differ
    n_different, n_merged = (np.bincount(columns[1:][of], minlength=width) for of in (differ, same))
    return np.asarray(n_merged > MERGED * n_different)


def _warn(source: RowSource, rows: StoredRows, merged: AnyArray, way: str) -> None:
    column, n_merged = int(np.argmax(merged)), int(np.count_nonzero(merged))
    values = (
        values_of(rows)[rows.indices == column] if isinstance(rows, CSRRows) else rows[:, column]
    )
    name = column if source.columns is None else repr(source.columns[column])
    more = f" (and those of {n_merged - 1} more columns)" if n_merged > 1 else ""
    logger.warning(
        "%s, column %s: its values, from %.17g to %.17g, cannot be told apart in float32%s; %s",
        *(source.name, name, values.min(), values.max(), more, way),
    )
