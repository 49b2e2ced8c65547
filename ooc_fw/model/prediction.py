"""Decision values of a model on rows that pass block by block.

All rows are first computed from float32 kernel values, whose error is bounded; what the bound
leaves open is computed again in float64. The value of a row depends on the row and the model alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ooc_fw.data.parallel import Shared
from ooc_fw.data.rows import CSRRows, Float64Array, Rows, rows_bytes, take_rows
from ooc_fw.data.sources import RowSource
from ooc_fw.kernels.decisions import DecisionFunctions, Weights
from ooc_fw.kernels.engine import SMALL_WORK, Engine
from ooc_fw.model.pairs import is_decided

if TYPE_CHECKING:
    from ooc_fw.model.record import Model

DECISION_ACCURACY = 1e-4
"""Largest error of a decision value, on the scale where the margin is 1, rho for one class, or the
spread of the targets is 1."""

PART_BYTES = 4 << 20
"""Bytes of dense rows that are decided at once."""

_PART_ROWS = 1 << 14  # rows decided at once, divided by classifiers; some ten numbers of each
_LEAST_PART_ROWS = 256
_KEPT_BYTES = 16 << 20  # of support vectors whose predictors are kept
_EXACT_ROWS = 1 << 12  # rows computed in float64 at once, which are copied for that
_PROBE_VECTORS = 32  # support vectors that show whether float32 values decide most rows


def rows_at_once(n_features: int) -> int:
    """Rows that take about `PART_BYTES` when dense."""
    return max(1, PART_BYTES // (4 * n_features))


class Predictor:
    """Computes decision values of a model, with the kernel values of an engine.

    In float64 it computes again the rows whose label may be another one and, unless labels only are
    wanted, those whose bound exceeds `DECISION_ACCURACY`: labels are the same in both ways. Where
    that is most of a few support vectors, it computes all rows in float64 at once.
    """

    def __init__(self, model: Model, labels_only: bool, engine: Engine) -> None:
        classifiers, vectors, self.engine = model.classifiers, model.support_vectors, engine
        self.recipe = partial(_make_predictor, model, labels_only, engine.recipe())
        weights = [Weights(own.sv, own.alpha, own.labels) for own in classifiers]
        self._function = DecisionFunctions(engine, vectors, weights)
        rho = np.array([own.rho for own in classifiers])
        self._rho = rho if len(rho) > 1 else rho[0]
        self._accuracy, self._shift = DECISION_ACCURACY, 0.0
        self._has_labels = model.spread is None
        if model.spread is not None and model.offset is not None:
            labels_only, self._shift = False, -model.offset
            self._accuracy, self._rho = DECISION_ACCURACY * model.spread, self._rho / model.spread
        elif model.offset is not None:  # scores of one class, which have neither scale nor bias
            self._accuracy, self._rho = DECISION_ACCURACY * rho[0], np.float64(1)
            self._shift = model.offset + math.fsum(classifiers[0].alpha)
        self._n_classes, self._decision = len(model.classes), model.decision
        self._labels_only = labels_only
        self._sparse = engine.arithmetic.sparse
        probe = take_rows(vectors, np.arange(0, len(vectors), -(-len(vectors) // _PROBE_VECTORS)))
        _, is_open = self._approximate(probe)
        self._all_exact = bool(np.count_nonzero(is_open) > len(is_open) / 2)

    def __call__(self, block: Rows) -> Float64Array:
        """Decision values of some rows, shape (n_rows,) or (n_rows, n_classifiers)."""
        step = max(_LEAST_PART_ROWS, _PART_ROWS // np.size(self._rho))
        if not self._sparse or not isinstance(block, CSRRows):
            step = min(step, rows_at_once(block.shape[1]))
        parts = []
        for start in range(0, max(1, len(block)), step):
            rows = block[start : start + step]
            if isinstance(rows, CSRRows) and not self._sparse:
                rows = rows.toarray()
            parts.append(self._decide(rows))
        return np.concatenate(parts)

    def _decide(self, rows: Rows) -> Float64Array:
        if self._all_exact:
            return self._exact(rows)
        values, is_open = self._approximate(rows)
        places = np.flatnonzero(is_open)
        if len(places) > 0:
            values[places] = self._exact(take_rows(rows, places))
        return values

    def _exact(self, rows: Rows) -> Float64Array:
        slices = range(0, max(1, len(rows)), _EXACT_ROWS)
        parts = [self._function.exact(rows[start : start + _EXACT_ROWS])[0] for start in slices]
        return np.asarray(np.concatenate(parts) / self._rho - self._shift)

    def _approximate(self, rows: Rows) -> tuple[Float64Array, npt.NDArray[np.bool_]]:
        """Decision values from float32 kernel values, and which rows they leave open."""
        found = self._function.approximate(rows)
        values = found.values / self._rho - self._shift
        bound = (found.bound + self._function.rounding) / self._rho
        is_open = np.zeros(len(rows), dtype=bool)
        if not self._labels_only:
            is_open |= bound.reshape(len(rows), -1).max(axis=1) > self._accuracy
        if self._has_labels and values.ndim == 1:
            is_open |= np.abs(values) <= bound
        elif self._has_labels:
            is_open |= ~is_decided(values, bound, self._n_classes, self._decision)
        return values, is_open


class FewRows:
    """Decision values of rows in RAM by predictors that are kept from call to call.

    To make a predictor takes milliseconds, and its copies of the support vectors take some three
    times their memory: it is kept where that is little.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._predictors: dict[bool, Predictor] = {}

    def suit(self, n_rows: int, threads: int) -> bool:
        """Whether so many rows are decided here, rather than block by block by `threads`."""
        vectors = self._model.support_vectors
        little_work = n_rows * len(vectors) <= SMALL_WORK
        return (threads == 1 or little_work) and rows_bytes(vectors) <= _KEPT_BYTES

    def decide(self, rows: Rows, labels_only: bool) -> Float64Array:
        """Decision values as of a `Predictor`; any number of threads may call this."""
        predictor = self._predictors.get(labels_only)
        if predictor is None:
            with self._model.engine(serves=True) as engine:
                predictor = Predictor(self._model, labels_only, engine)
            self._predictors[labels_only] = predictor
        with predictor.engine.reopened():
            return predictor(rows)


def _make_predictor(model: Model, labels_only: bool, engine: Callable[[], Engine]) -> Predictor:
    """A predictor in another process, with an engine of its own that stays open."""
    return Predictor(model, labels_only, engine())


def decide_rows(
    predictor: Shared[Predictor], source: Shared[RowSource], start: int, stop: int
) -> tuple[Float64Array, int]:
    """Decision values of a range of rows, and the bytes read for them."""
    rows = source.get().read(start, stop)
    source.get().check_unchanged()
    return predictor.get()(rows), rows_bytes(rows)
