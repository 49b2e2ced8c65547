"""Landmark models: all rows in the span of some. Here are their results, starts and gaps."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ooc_fw.data.opening import open_source
from ooc_fw.data.rows import AnyArray, CSRRows, Float64Array, Int64Array, Rows, row_hashes
from ooc_fw.data.sources import RowSource
from ooc_fw.options import TrainOptions
from ooc_fw.solver.state import Status, Work
from ooc_fw.system.errors import InputError


@dataclass(frozen=True, repr=False)
class LandmarkSolution(Work):
    """Weights of k classifiers on shared landmarks, and what is known of them."""

    status: Status
    choice: str  # one line: what was done and why
    rows: Int64Array  # (N,): row numbers of the landmarks; -1 for centres that are no rows
    landmarks: Rows  # (N, n_features)
    beta: Float64Array  # (k, N)
    jitter: float
    primal: Float64Array | None  # (k,), over all rows; None where no pass over them ended
    dual: Float64Array | None  # (k,): lower bounds on the least P; None without a certificate
    certified_gap: Float64Array | None  # (k,): (P - D*) / P at most, from float64 kernel values
    sampled_gap: Float64Array | None  # (k,): the same from float32, or of the sample alone
    sweep_seconds: float | None
    signal: int | None


@dataclass(frozen=True)
class LandmarkStart:
    """Landmarks and weights to begin with, and what it took to find them, if that counts."""

    rows: Int64Array  # (M,): different row numbers
    beta: Float64Array  # (k, M)
    work: Work | None = None


# Rows of the sample for each of N landmarks: at most and at least. In between there are so many
# that their N^2 products each are this many times the kernel values of a pass over all rows.
_MOST_SAMPLE, _LEAST_SAMPLE = 20, 6
_SAMPLE_WORK = 800.0


def sample_size(n_rows: int, n_landmarks: int) -> int:
    """Rows of the sample that preconditioners are computed from, where memory has room for them."""
    work = _SAMPLE_WORK * n_rows / n_landmarks**2
    return min(n_rows, int(np.clip(work, _LEAST_SAMPLE, _MOST_SAMPLE) * n_landmarks))


@dataclass(frozen=True)
class Centres:
    """Landmarks that the user chose."""

    rows: Rows  # (N, n_features), like those of training
    numbers: Int64Array  # (N,): row numbers in the source of `n_rows` rows; -1 for rows not from it
    n_rows: int

    def numbers_in(self, source: RowSource) -> Int64Array:
        """Their numbers in a source, which may be a part of that they were found in: -1 there."""
        return self.numbers if source.n_rows == self.n_rows else np.full_like(self.numbers, -1)


def with_centres(options: TrainOptions, source: RowSource) -> TrainOptions:
    """The options, in which landmarks that the user chose have become `Centres`.

    They are given as numbers of rows of the source, or as rows in its units.

    InputError for numbers that are no rows, rows of another width or that are not finite, and what
    is given twice.
    """
    given = options.centres
    if given is None or isinstance(given, Centres):
        return options
    try:
        values = given if hasattr(given, "shape") else np.asarray(given)
    except ValueError:
        raise InputError("landmarks must be numbers of rows, or rows of one width") from None
    if len(values.shape) == 1:
        numbers = np.sort(_row_numbers(np.asarray(values), source))
        keys, rows = numbers, source.take(numbers)
    else:
        with open_source(values) as table:
            table.name = "landmarks"
            rows = table.read(0, table.n_rows)
        if rows.shape[1] != source.n_features:
            raise InputError(
                f"landmarks have {rows.shape[1]} columns, and {source.name} has "
                f"{source.n_features}; give rows in the units and columns of the training data"
            )
        if isinstance(rows, CSRRows) is not source.sparse:
            rows = rows.toarray() if isinstance(rows, CSRRows) else CSRRows.from_dense(rows)
        numbers, keys = np.full(len(rows), -1), row_hashes(rows).view(np.int64)
    _, first, counts = np.unique(keys, return_index=True, return_counts=True)
    if len(first) < len(keys):
        place = first[counts.argmax()]
        what = f"row {numbers[place]} of {source.name}" if numbers[place] >= 0 else f"row {place}"
        raise InputError(f"landmarks have {what} more than once; give each of them once")
    if len(keys) > source.n_rows:
        raise InputError(
            f"{source.name} has {source.n_rows} rows, too few for {len(keys)} landmarks"
        )
    return replace(options, centres=Centres(rows, numbers, source.n_rows))


def _row_numbers(values: AnyArray, source: RowSource) -> Int64Array:
    """Numbers of rows of a source; InputError for what is none."""
    if values.dtype.kind not in "iu" or len(values) == 0:
        raise InputError(
            f"landmarks must be whole numbers of rows, or a table of rows, not {len(values)} "
            f"values of type {values.dtype}"
        )
    wrong = values[(values < 0) | (values >= source.n_rows)]
    if len(wrong) > 0:
        raise InputError(
            f"landmarks have the row {wrong[0]}, and rows of {source.name} are counted from 0 to "
            f"{source.n_rows - 1}"
        )
    return values.astype(np.int64)


def renumbered(rows: Int64Array, numbers: Int64Array) -> Int64Array:
    """Row k of some data is row `numbers[k]` of others: `rows` there; -1, which is none, stays."""
    return np.where(rows < 0, -1, numbers[rows])


def relative_gap(primal: Float64Array, dual: Float64Array) -> Float64Array:
    """(P - D) / P; 0 where P is 0, and no weights have less."""
    return np.divide(primal - dual, primal, out=np.zeros_like(primal), where=primal > 0)


def relative_target(tol: float) -> float:
    """Gap (P - D*) / P that corresponds to a relative gap `tol` of an exact model.

    Such a model violates margins by at most `tol`; its weights divided by 1 - tol have an objective
    within 1 - (1 - tol)^2 of the optimum.
    """
    return 1 - (1 - min(tol, 1.0)) ** 2
