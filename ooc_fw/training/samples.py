"""Samples of the rows of a problem, on which gamma and the kind of model are tried."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ooc_fw.data.rows import Int64Array
from ooc_fw.data.sampling import choose_sampler
from ooc_fw.data.sources import rows_source
from ooc_fw.problem import Problem

CLASS_ROWS = 30
"""Fewest rows of a sample for each class: what is learned from fewer rows says nothing."""


def random_rows(problem: Problem, size: int, seed: int) -> Int64Array:
    """Increasing numbers of `size` random rows, and of a row of each class that they lack."""
    source = problem.source
    codes = problem.row_classes
    stored = source.n_rows, source.chunk_rows, source.shuffled, source.in_memory
    ids = choose_sampler(*stored, codes).sample(size, np.random.default_rng(seed))
    return with_all_classes(problem, ids)


def with_all_classes(problem: Problem, ids: Int64Array) -> Int64Array:
    """The rows, increasing, and the first one of each class that they lack."""
    codes = problem.row_classes
    lacking = np.setdiff1d(np.arange(codes.max() + 1), codes[ids])
    return np.union1d(ids, [int(np.argmax(codes == code)) for code in lacking]).astype(np.int64)


def loaded(problem: Any, ids: Int64Array, check: Callable[[], None]) -> Any:
    """The problem of some rows, which are read into memory; `check` may raise to end this."""
    source = problem.source
    with source.limited(check):
        rows = rows_source(source.take(ids), source.name)
    return problem.subset(rows, ids)
