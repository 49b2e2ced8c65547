"""Columns whose values float32 would merge: an offset is subtracted in float64, before rounding.

Times near 1.7e9, one minute apart, are one number in float32. A kernel of distances looks at the
differences of two rows only, which stay when a constant is subtracted from both. The constant is
stored with the model, as a scaling is, so that later rows lose the same one.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from ooc_fw.data.rows import AnyArray, CSRRows, as_float32, values_of
from ooc_fw.data.scaling import OFFSET, Scaling
from ooc_fw.data.sources import RowSource, sampled_rows
from ooc_fw.data.views import ScaledSource

logger = logging.getLogger(__name__)


def without_offsets(source: RowSource, *kernels: object) -> RowSource:
    """Rows to train kernels of these names on: the source, or a view that subtracts offsets.

    Rows of float32, and rows that are scaled, are as they were. A warning names the first column
    whose values stay merged: of sparse rows, whose zeros must stay, under other kernels, and of
    several far values.
    """
    if source.scaling is not None and not source.scaling.is_identity:
        return source
    if values_of(source.read(0, 1, exact=True, checked=False)).dtype == np.float32:
        return source
    rows = source.take(sampled_rows(source, source.n_rows), exact=True)
    merged = _merged_columns(rows)
    view = source
    if merged.any() and not isinstance(rows, CSRRows) and {*kernels} <= {"rbf", "laplacian"}:
        offset = np.where(merged, np.sort(rows, axis=0)[len(rows) // 2], 0.0)
        view = ScaledSource(source, Scaling(OFFSET, False, offset, np.ones(source.n_features)))
        merged = _merged_columns(rows - offset)
    if merged.any():
        column = int(np.argmax(merged))
        logger.warning(
            "%s, column %s: its values cannot be told apart in float32; convert with --scale "
            "standard, which takes their mean off before they are rounded, or write its ranges as "
            "columns of their own",
            source.name,
            column if source.columns is None else repr(source.columns[column]),
        )
    return view


def _merged_columns(rows: Any) -> AnyArray:
    """Which columns have different values that float32 makes one, shape (n_features,).

    Relative differences up to 1e-11 are rounding errors, but not of whole numbers.
    """
    width = rows.shape[1]
    if isinstance(rows, CSRRows):
        order = np.lexsort((rows.data, rows.indices))
        columns = rows.indices[order]
        values = rows.data[order]
    else:
        columns = np.repeat(np.arange(width), len(rows))
        values = np.sort(rows, axis=0).T.reshape(-1)
    if not len(values):
        return np.zeros(width, dtype=bool)
    with np.errstate(invalid="ignore"):  # values beyond float32 are refused by the first pass
        same = (columns[1:] == columns[:-1]) & (np.diff(as_float32(values)) == 0)
        starts = np.flatnonzero(np.r_[True, ~same])  # of groups that float32 makes one value
        stops = np.r_[starts[1:], len(values)]
        is_whole = (values == np.rint(values)) & (np.abs(values) < 2.0**53)
        noise = np.where(np.logical_and.reduceat(is_whole, starts), 0, 1e-11 * abs(values[starts]))
        differ = values[stops - 1] - values[starts] > noise
    n_merged = np.bincount(columns[starts], differ * (stops - starts), minlength=width)
    return np.asarray(n_merged > 0.01 * np.bincount(columns, minlength=width))
