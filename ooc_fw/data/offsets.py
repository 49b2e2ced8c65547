"""Subtract offsets in float64 from columns whose values would be merged by rounding to float32.

Two times near 1.7e9, one minute apart, are the same number in float32. A kernel of distances sees
only differences between rows, and these stay if a constant is subtracted from all rows. The model
stores the constant as a scaling, so that it is subtracted from later rows, too.
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
    """The source, or a view that subtracts offsets, to train kernels of these names on.

    Rows in float32 and scaled rows stay as they are. A warning names the first column whose values
    remain merged. This happens if rows are sparse (their zeros must stay), if a kernel does not use
    distances, or if the values of a column are in groups far apart.
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
            "standard, which subtracts the mean before rounding, or give each range of its values "
            "a column of its own",
            source.name,
            column if source.columns is None else repr(source.columns[column]),
        )
    return view


def _merged_columns(rows: Any) -> AnyArray:
    """Which columns have different values that are equal in float32; shape (n_features,).

    Relative differences up to 1e-11 count as rounding errors, except between whole numbers.
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
    with np.errstate(invalid="ignore"):  # the first reading refuses values beyond float32
        same = (columns[1:] == columns[:-1]) & (np.diff(as_float32(values)) == 0)
        starts = np.flatnonzero(np.r_[True, ~same])  # first of each group of equal float32 values
        stops = np.r_[starts[1:], len(values)]
        is_whole = (values == np.rint(values)) & (np.abs(values) < 2.0**53)
        noise = np.where(np.logical_and.reduceat(is_whole, starts), 0, 1e-11 * abs(values[starts]))
        differ = values[stops - 1] - values[starts] > noise
    n_merged = np.bincount(columns[starts], differ * (stops - starts), minlength=width)
    return np.asarray(n_merged > 0.01 * np.bincount(columns, minlength=width))
