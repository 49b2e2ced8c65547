"""The gamma of a run that is given none: the best of a few for a sample of the rows.

The sample is learned with squared losses. One linear system then gives, for each row, the decision
value of the model that all other rows would have:

(K + 1 + diag(1 / C_i)) a = y,     value of row i = y_i - a_i / (inverse matrix)_ii

Its time does not depend on the number of classes, each of which has a vector y of 1 and -1. On sets
of digits, letters and tables the best gamma is that of exact models of these rows, or its
neighbour.

References
----------
Cawley (2006), Leave-one-out cross-validation based model selection criteria for weighted LS-SVMs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from ooc_fw.data.rows import AnyArray, Float64Array
from ooc_fw.kernels.arithmetic import choose_arithmetic
from ooc_fw.kernels.engine import Engine
from ooc_fw.kernels.functions import Kernel
from ooc_fw.options import TrainOptions
from ooc_fw.solver.plan import few_rows
from ooc_fw.system.errors import OutOfTimeError
from ooc_fw.training.samples import CLASS_ROWS, loaded, random_rows

_STEP = 4.0  # between the gammas that are compared
_LEAST_ROWS = 500  # of fewer rows, the errors are too few to tell gammas apart
_SAMPLE_ROWS = 700, 1000  # rows of the sample: usually, and from `_MANY_ROWS` on
_MANY_ROWS = 40_000
MOST_ROWS = 2_000
"""Most rows of the sample; with more classes than it has room for, gamma is not searched."""


def is_free(kernel: Kernel, options: TrainOptions) -> bool:
    """Whether other gammas may be tried than that of the kernel."""
    searches = getattr(options, "gamma", None) == "search"
    return searches and kernel.shift_invariant and kernel.uses_gamma


def climb(tried: dict[Kernel, Float64Array], errors_of: Callable[[Kernel], Float64Array]) -> None:
    """Try kernels with larger gammas than the last one that was `tried`, as long as errors fall.

    The errors are those of the same rows; the last kernel that is tried is no better.
    """
    *_, kernel = tried
    while True:
        before = tried[kernel].sum()
        kernel = replace(kernel, gamma=_STEP * kernel.gamma)
        tried[kernel] = errors_of(kernel)
        if tried[kernel].sum() >= before:
            return


def differ(errors: Float64Array, fewer: Float64Array, deviations: float) -> bool:
    """Whether errors of the same rows exceed the `fewer` ones by so many standard errors."""
    change = errors - fewer
    return bool(change.sum() > deviations * math.sqrt(np.square(change).sum()))


def find_gamma(problem: Any, C: float, seed: int, check: Callable[[], None]) -> tuple[Kernel, str]:
    """The kernel of a classification with the best gamma, and a sentence about it.

    The gamma of the problem stays if the rows are few, or if no other one is clearly better.
    `check` may raise to end the search: OutOfTimeError before two gammas are compared, and any
    other error.
    """
    source = problem.source
    first = problem.kernel
    least = max(_LEAST_ROWS, CLASS_ROWS * problem.n_classes)
    usual = _SAMPLE_ROWS[source.n_rows >= _MANY_ROWS]
    n_rows = few_rows(source, min(max(usual, least), MOST_ROWS))
    if n_rows < least:
        return first, ""
    ids = random_rows(problem, n_rows, seed)
    sample = loaded(problem, ids, check)
    penalties = np.full(len(ids), C) if sample.penalties is None else sample.penalties
    rows = sample.source.read(0, len(ids))
    values = np.empty((len(ids), len(ids)))
    with Engine(first, 1, choose_arithmetic(first, rows)) as engine:
        x = engine.prepare(rows, exact=True)
        engine.block(x, x, values)

    def errors_of(kernel: Kernel) -> Float64Array:
        check()
        power = kernel.gamma / first.gamma
        matrix = values
        for _ in range(round(abs(math.log2(power)))):
            matrix = np.square(matrix) if power > 1 else np.sqrt(matrix)
        return np.asarray(penalties * (_left_out(matrix, sample.codes, penalties) != sample.codes))

    tried = {first: errors_of(first)}
    with suppress(OutOfTimeError):  # after that, the best one so far serves
        climb(tried, errors_of)
        if len(tried) == 2:  # a larger gamma is no better
            smaller = replace(first, gamma=first.gamma / _STEP)
            tried[smaller] = errors_of(smaller)
    if len(tried) == 1:
        raise OutOfTimeError("there is no time to compare gammas")
    best = min(tried, key=lambda kernel: float(tried[kernel].sum()))
    # All rows bear a larger gamma than the sample does, but perhaps not a smaller one.
    if not differ(tried[first], tried[best], 1.5 if best.gamma > first.gamma else 2.0):
        best = first
    times = "" if best == first else f"{best.gamma / first.gamma:g} times "
    words = f"best of {len(tried)} on {len(ids):,} rows, each of which was held out once"
    return best, f"gamma {best.gamma:.4g}: {times}auto, {words}"


def _left_out(values: Float64Array, codes: AnyArray, penalties: Float64Array) -> AnyArray:
    """The class that the model of all other rows predicts for each row."""
    classes = np.unique(codes)
    targets = np.where(codes[:, None] == classes, 1.0, -1.0)
    matrix = values + 1.0
    np.einsum("ii->i", matrix)[...] += 1 / penalties
    inverse = np.linalg.inv(matrix)
    weights = inverse @ targets
    decisions = targets - weights / np.diagonal(inverse)[:, None]
    return np.asarray(classes[decisions.argmax(axis=1)])
