"""Statistics of a data set in one pass: means, norms, ranges, sigma^2, and the two classes.

Owns what `gamma="auto"` needs and the translation of label values into -1 and +1. Keeps only column
sums of the rows, whatever their number. How the pass is spread over threads is
`ooc_fw.parallel`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_fw.errors import InputError
from ooc_fw.parallel import map_reduce, row_slices
from ooc_fw.rows import CSRRows, Float32Array, Float64Array, Int8Array
from ooc_fw.sources.base import RowSource, iter_blocks

logger = logging.getLogger(__name__)

TASK_ROWS = 16384
"""Rows of one task. Fixed, because the order of the sums follows from it."""

SAMPLE_ROWS = 100_000
"""Rows that sigma^2 comes from where a file stores no statistics and has more than these."""

SAMPLE_STRETCH = 256
"""Rows of the sample that are read together."""

SAMPLE_SEED = 0
"""Of the sample: gamma is a property of the data, not of a run and its seed."""

LABEL_ROWS = 1 << 20
"""Labels looked at together."""

ROUNDING = 1e-12
"""Part of the mean squared norm below which sigma^2 is rounding, not spread."""


@dataclass(frozen=True)
class Statistics:
    """Statistics of all rows of a source.

    Parameters
    ----------
    n_rows : int
        Number of rows.
    mean : ndarray of float64, shape (n_features,)
        Mean row.
    mean_square_norm : float
        Mean of the squared Euclidean norms of the rows.
    minimum, maximum : ndarray of float32, shape (n_features,)
        Range of each column, implicit zeros included.
    """

    n_rows: int
    mean: Float64Array
    mean_square_norm: float
    minimum: Float32Array
    maximum: Float32Array

    @property
    def sigma2(self) -> float:
        """Average squared distance of two rows, equal ones included; 0 when all rows are equal."""
        return average_squared_distance(self.mean, self.mean_square_norm)


def average_squared_distance(mean: Float64Array, mean_square_norm: float) -> float:
    """Average of ``|x_i - x_j|^2`` over all ordered pairs of rows, from sums alone.

    Parameters
    ----------
    mean : ndarray of float64, shape (n_features,)
        Mean row.
    mean_square_norm : float
        Mean of the squared norms of the rows.

    Returns
    -------
    float
        ``2 (mean |x|^2 - |mean x|^2)``; exactly 0 where that is within rounding of it.
    """
    spread = mean_square_norm - float(mean @ mean)
    return 2 * spread if spread > ROUNDING * mean_square_norm else 0.0


def sigma2(source: RowSource, threads: int = 1) -> float:
    """Average squared distance of two rows, at a cost that does not grow with the file.

    As stored in the file; from one pass over rows that are few or in RAM already; else from
    SAMPLE_ROWS of them, and a warning says so.

    Raises
    ------
    InputError
        All rows are equal, so that no kernel width follows from them.
    """
    if source.statistics is not None:
        stored = source.statistics
        value = average_squared_distance(stored.mean, stored.mean_square_norm)
    elif source.in_memory or source.n_rows <= SAMPLE_ROWS:
        value = compute_statistics(source, threads).sigma2
    else:
        value = sampled_sigma2(source, threads)
        logger.warning(
            "%s stores no statistics: the average squared distance of two rows, %.6g, comes from "
            "a sample of %d of its %d rows; ooc-fw convert stores that of all",
            source.name,
            value,
            SAMPLE_ROWS,
            source.n_rows,
        )
    if not value > 0:
        raise InputError(
            f"all rows of {source.name} are equal, so that gamma cannot be chosen from their "
            f"distances; give gamma as a number"
        )
    return value


def compute_statistics(source: RowSource, threads: int = 1) -> Statistics:
    """Statistics of all rows in one pass.

    Parameters
    ----------
    source : RowSource
        Rows to look at.
    threads : int
        Number of threads.

    Returns
    -------
    Statistics
        The same bits for any number of threads, chunk size and storage.

    Raises
    ------
    InputError
        A value is not finite, or the file cannot be read.
    """
    source.check_unchanged()
    slices = row_slices(source.n_rows, TASK_ROWS)
    sums = map_reduce(partial(_column_sums, source), slices, _ColumnSums.merged, threads=threads)
    return Statistics(
        n_rows=source.n_rows,
        mean=sums.sums / source.n_rows,
        mean_square_norm=float(sums.squares.sum()) / source.n_rows,
        minimum=sums.minimum,
        maximum=sums.maximum,
    )


def sampled_sigma2(source: RowSource, threads: int = 1) -> float:
    """Average squared distance of two rows, from SAMPLE_ROWS of more rows.

    Parameters
    ----------
    source : RowSource
        More than SAMPLE_ROWS rows.
    threads : int
        Number of threads.

    Returns
    -------
    float
        The same bits for any number of threads, chunk size and storage.

    Raises
    ------
    InputError
        A value met is not finite, or the file cannot be read.

    Notes
    -----
    The file is cut into equal parts, and a stretch of consecutive rows is read at a random place of
    each (a stratified sample): files that are sorted by class, or by anything else, are covered
    evenly. The places are a function of the number of rows alone.
    """
    source.check_unchanged()
    slices = sample_slices(source.n_rows)
    sums = map_reduce(partial(_column_sums, source), slices, _ColumnSums.merged, threads=threads)
    n_rows = sum(stop - start for start, stop in slices)
    return average_squared_distance(sums.sums / n_rows, float(sums.squares.sum()) / n_rows)


def sample_slices(n_rows: int) -> list[tuple[int, int]]:
    """Stretches of SAMPLE_ROWS of more rows in all, each in a part of them of its own."""
    rng = np.random.default_rng(SAMPLE_SEED)
    slices = []
    for start, stop in row_slices(SAMPLE_ROWS, SAMPLE_STRETCH):
        begin, end = (n_rows * place // SAMPLE_ROWS for place in (start, stop))
        first = int(rng.integers(begin, end - (stop - start), endpoint=True))
        slices.append((first, first + stop - start))
    return slices


@dataclass
class _ColumnSums:
    """Sums and ranges of the columns over some of the rows."""

    sums: Float64Array
    squares: Float64Array
    minimum: Float32Array
    maximum: Float32Array

    @classmethod
    def empty(cls, n_features: int) -> _ColumnSums:
        """Start with no rows."""
        return cls(
            np.zeros(n_features),
            np.zeros(n_features),
            np.full(n_features, np.inf, dtype=np.float32),
            np.full(n_features, -np.inf, dtype=np.float32),
        )

    def merged(self, other: _ColumnSums) -> _ColumnSums:
        """Add up the rows of both."""
        return _ColumnSums(
            self.sums + other.sums,
            self.squares + other.squares,
            np.minimum(self.minimum, other.minimum),
            np.maximum(self.maximum, other.maximum),
        )


def _column_sums(source: RowSource, start: int, stop: int) -> _ColumnSums:
    """Column sums of rows ``start:stop``, read a block at a time."""
    from ooc_fw._core.statistics import add_dense, add_sparse  # numba is slow to import

    total = _ColumnSums.empty(source.n_features)
    counts = np.zeros(source.n_features if source.sparse else 0, dtype=np.int64)
    columns = (total.sums, total.squares, total.minimum, total.maximum)
    for _, rows in iter_blocks(source, start, stop):
        if isinstance(rows, CSRRows):
            add_sparse(rows.data, rows.indices, *columns, counts)
        else:
            add_dense(rows, *columns)
    if source.sparse:
        implicit = counts < stop - start
        total.minimum[implicit] = np.minimum(total.minimum[implicit], 0)
        total.maximum[implicit] = np.maximum(total.maximum[implicit], 0)
    return total


def encode_labels(source: RowSource) -> tuple[npt.NDArray[Any], Int8Array]:
    """Translate the two label values of a source into -1 and +1.

    Parameters
    ----------
    source : RowSource
        Labelled rows.

    Returns
    -------
    classes : ndarray, shape (2,)
        Label values in rising order.
    y : ndarray of int8, shape (n_rows,)
        -1 for ``classes[0]``, +1 for ``classes[1]``.

    Raises
    ------
    InputError
        No labels, a missing one, or a number of classes that is not two.
    """
    found: npt.NDArray[Any] | None = None
    y = np.empty(source.n_rows, dtype=np.int8)
    for start, stop in row_slices(source.n_rows, LABEL_ROWS):
        labels = source.labels(start, stop)
        if found is None:
            found = labels[:1].copy()
        known, y[start:stop] = _codes(labels, found)
        if not known:
            found = _more_classes(found, labels, start, source.name)
            _, y[start:stop] = _codes(labels, found)
    assert found is not None  # a source has at least one row
    if len(found) == 1:
        raise InputError(
            f"all rows of {source.name} have the label {found[0]}; "
            f"training needs rows of two classes"
        )
    if found[0] > found[1]:  # codes went by the first label met
        np.negative(y, out=y)
    return np.sort(found), y


def _codes(labels: npt.NDArray[Any], found: npt.NDArray[Any]) -> tuple[bool, Int8Array]:
    """Whether all labels are among the one or two found; -1 for the first of those, else +1.

    Comparisons of whole arrays: sorting labels to find the distinct ones would take longer than
    all else that a run does with every row before it begins.
    """
    is_first = labels == found[0]
    is_other = ~is_first
    known = bool(
        np.array_equal(is_other, labels == found[1]) if len(found) == 2 else is_first.all()
    )
    return known, np.where(is_first, np.int8(-1), np.int8(1))


def _more_classes(
    found: npt.NDArray[Any], labels: npt.NDArray[Any], start: int, name: str
) -> npt.NDArray[Any]:
    """Label values in order of appearance with those of `labels`; at most two, or InputError."""
    if labels.dtype.kind == "f" and np.isnan(labels).any():
        row = start + int(np.flatnonzero(np.isnan(labels))[0])
        raise InputError(f"the label of row {row} of {name} is missing (NaN); remove it")
    together = np.union1d(found, labels)
    if len(together) > 2:
        some = ", ".join(str(label) for label in together[:5])
        raise InputError(
            f"{name} has more than two classes ({some}{', ...' * (len(together) > 5)}), "
            f"but only binary problems can be trained; keep the rows of two classes"
        )
    return np.concatenate([found, together[together != found[0]]])
