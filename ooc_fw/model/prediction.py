"""Decision values of a model on blocks of rows, or on the rows of a table.

All rows are first computed from float32 kernel values, with a bound on the error. If the bound
leaves a row open, it is computed again in float64, and if need be from differences of rows. A
warning says how many rows stay open even then. The columns of a table become features in the same
way as those of the training table.
"""

from __future__ import annotations

import copy
import logging
import math
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ooc_fw.conversion.convert import open_table
from ooc_fw.conversion.features import TableEncoder
from ooc_fw.conversion.readers import LabelNumbers, ordered_map
from ooc_fw.conversion.tables import TrainingFile
from ooc_fw.data.containers import names_of_frame
from ooc_fw.data.formats import TABLES, detect_format, files_of
from ooc_fw.data.opening import warn_of_origin
from ooc_fw.data.parallel import borrow_workers
from ooc_fw.data.rows import (
    AnyArray,
    CSRRows,
    Float64Array,
    Rows,
    rows_bytes,
    stored_arrays,
    take_rows,
)
from ooc_fw.data.scaling import OFFSET, Scaling
from ooc_fw.data.sources import RowSource, block_slices, sampled_rows
from ooc_fw.data.views import ColumnSource, ScaledSource, feature_places
from ooc_fw.kernels.decisions import DecisionFunctions, IsOpen, Weights
from ooc_fw.kernels.engine import Engine
from ooc_fw.kernels.functions import FLOAT64_UNIT
from ooc_fw.model.machines import is_decided
from ooc_fw.model.trained import Trained
from ooc_fw.options import ConvertOptions
from ooc_fw.system.errors import InputError

logger = logging.getLogger(__name__)

# Largest error of a decision value, in units of the margin (novelty: rho; regression: the spread).
DECISION_ACCURACY = 1e-4
_KEPT_BYTES = 256 << 20  # a model with more bytes of support vectors keeps no predictor
_LOOK_BYTES = 64 << 10  # numbers of a model that are compared before its predictor serves again
PART_BYTES = 4 << 20  # size of a part of a block, as dense rows


def rows_at_once(n_features: int) -> int:
    """Number of dense rows that take about `PART_BYTES`."""
    return max(1, PART_BYTES // (4 * n_features))


def suited(model: Trained, source: RowSource) -> RowSource:
    """A source like the training rows: with the features of the model, found by name, and scaled.

    A source that records its scaling is used as it is. All other sources hold raw rows.
    """
    warn_of_origin(source, model.origin)
    fills = source.fills_missing and (source.scaling is None or source.scaling.is_identity)
    places = feature_places(source.columns, model.columns, source.name, fills=fills)
    known = source.scaling
    if places is not None and len(places) < source.n_features and known and known.normalize:
        raise InputError(
            f"the rows of {source.name} are divided by norms over {source.n_features} features, "
            f"and the model has {len(places)}; convert their input with --like and the training "
            f"file"
        )
    if places is not None:
        source = ColumnSource(source, places, model.columns)
    if source.n_features != model.n_features:
        raise InputError(
            f"{source.name} has {source.n_features} features but the model was trained on "
            f"{model.n_features}; convert it with --like and the training file"
        )
    scaling = model.scaling
    known = source.scaling  # of the columns of the model
    is_raw = known is None or (scaling.kind == OFFSET and known.is_identity)
    if known is not None and not is_raw and not known.same_as(scaling):
        raise InputError(
            f"{source.name} is scaled ({known}) in another way than the model's "
            f"training data ({scaling}); convert it with --like and the training file"
        )
    return ScaledSource(source, scaling) if is_raw and not scaling.is_identity else source


def like_training(
    model: Trained, blocks: Iterable[tuple[AnyArray, Rows]]
) -> Iterator[tuple[AnyArray, Rows]]:
    """Labels, and raw rows made like those of training: scaled, and cut or padded with zeros."""
    # A scaling that moves zero makes sparse rows dense; small parts of a block save memory.
    step = rows_at_once(model.n_features)
    for labels, block in blocks:
        for start in range(0, len(block), step):
            part = slice(start, start + step)
            yield labels[part], model.scaling.apply(block[part], model.n_features)


class Predictor:
    """Computes decision values in stages; each takes the rows that the stage before left open.

    There is no stage in float32 if it would leave most of a few sampled support vectors open, or if
    the sums of many classifiers take longer than the kernel values. The predictor itself holds what
    is prepared once for a model; `ready` makes it ready for use.
    """

    _labels_only: bool  # these three belong to one use
    _threshold: float
    _begins_in_float32: bool

    def __init__(self, model: Trained, engine: Engine) -> None:
        vectors = model.support_vectors
        self.engine = engine
        rho = model.numbers("rho")
        sizes = np.ones(len(rho))
        weights = []
        for k, one in enumerate(model.classifiers):
            if model.kind != "exact":
                sizes[k] = one.alpha.sum() or 1.0
            weights.append(Weights(one.sv, one.alpha / sizes[k], one.labels))
        self.function = DecisionFunctions(engine, vectors, weights)
        # Decision values are values of the function, divided by `_scale`, minus `_shift`.
        self._scale = rho / sizes if len(sizes) > 1 else rho[0] / sizes[0]
        self._shift = 0.0
        self._accuracy = DECISION_ACCURACY
        if model.spread is not None:
            self._scale = self._scale / model.spread
            self._accuracy *= model.spread
            self._shift = -(model.offset or 0.0)
        elif model.offset is not None:  # novelty: its scores have neither bias nor scale
            self._scale = 1 / sizes[0]
            self._accuracy *= rho[0]
            self._shift = model.offset + math.fsum(model.classifiers[0].beta)
        self._has_labels = model.task != "regression"
        self._n_classes = len(model.classes)
        self._decision = model.decision
        self._probe: tuple[Float64Array, Float64Array] | None = None
        if not self.function.sums_dominate:
            step = -(-len(vectors) // 32)
            probe = take_rows(vectors, np.arange(0, len(vectors), step))
            self._probe = self.function.approximate(probe)

    def ready(self, engine: Engine, threshold: float, *, labels_only: bool) -> Self:
        """A copy for one use, on the threads of another engine with the same arithmetic.

        With `labels_only`, values need be only so exact that labels are right.
        """
        own = copy.copy(self)
        own.engine = engine
        own.function = self.function.on(engine)
        own._labels_only = labels_only and self._has_labels
        own._threshold = threshold
        probe = self._probe
        own._begins_in_float32 = probe is not None and own._is_open(*probe).mean() <= 0.5
        return own

    def prepare_for(self, source: RowSource) -> None:
        """If only labels are wanted, prepare a faster way that pays off for many rows."""

        def sample() -> tuple[Rows, IsOpen]:
            rows = source.take(sampled_rows(source, source.n_rows))
            return self._stored(rows), self._is_open

        if self._labels_only and self._begins_in_float32:
            self.function.compress(sample, source.n_rows)

    def __call__(self, block: Rows) -> tuple[Float64Array, int]:
        """Decision values, NaN for rows that are too large; the number of rows that stay open."""
        values = np.full((len(block), *np.shape(self._scale)), np.nan)
        n_open = 0
        stages = [self._in_float32] if self._begins_in_float32 else []
        stages.append(self.function.exact)
        if self.function.has_differences:
            stages.append(self.function.by_differences)
        step = max(32, (1 << 14) // np.size(self._scale))
        if not self.engine.arithmetic.sparse or not isinstance(block, CSRRows):
            step = min(step, rows_at_once(block.shape[1]))
        for start in range(0, len(block), step):
            rows = self._stored(block[start : start + step])
            places = np.flatnonzero(~self.engine.too_large(rows))
            for stage in stages:
                if len(places) == 0:
                    break
                found, bound = stage(rows if len(places) == len(rows) else take_rows(rows, places))
                values[start + places] = self._scaled(found)
                places = places[self._is_open(found, bound)]
            n_open += len(places)
        return values, n_open

    def _stored(self, rows: Rows) -> Rows:
        """Rows as the engine takes them: dense, unless it works on sparse rows."""
        sparse = self.engine.arithmetic.sparse
        return rows.toarray() if isinstance(rows, CSRRows) and not sparse else rows

    def _in_float32(self, rows: Rows) -> tuple[Float64Array, Float64Array]:
        return self.function.approximate(rows, self._is_open)

    def _scaled(self, values: Float64Array) -> Float64Array:
        return np.asarray(values / self._scale - self._shift)

    def _is_open(self, values: Float64Array, bound: Float64Array) -> npt.NDArray[np.bool_]:
        """Which rows may have another label, or a decision value that is not exact enough."""
        values = self._scaled(values)
        scale = self._scale
        if values.ndim > bound.ndim:
            bound = bound[:, None]
            scale = scale.min()
        bound = (bound + self.function.rounding) / scale
        largest = np.abs(values) if values.ndim == 1 else np.abs(values).max(axis=1, keepdims=True)
        bound = bound + 2 * FLOAT64_UNIT * (largest + abs(self._shift))
        is_open = np.zeros(len(values), dtype=bool)
        if not self._labels_only:
            is_open |= bound.reshape(len(values), -1).max(axis=1) > self._accuracy
        if self._has_labels and values.ndim == 1:
            is_open |= np.abs(values - self._threshold) <= bound
        elif self._has_labels:
            is_open |= ~is_decided(values, bound, self._n_classes, self._decision)
        return is_open


def predictor_of(model: Trained) -> Predictor:
    """The predictor of a model, which keeps it: a preparation takes as long as many rows.

    It is made anew if a look at some of the numbers finds others, since nothing forbids to write to
    the arrays of a model.
    """
    vectors = model.support_vectors
    sparse = isinstance(vectors, CSRRows)
    arrays: list[Any] = [*stored_arrays(vectors)] if sparse else [vectors]
    arrays += [array for one in model.classifiers for array in (one.sv, one.beta)]
    share = _LOOK_BYTES // len(arrays)
    looks = [hash(each[:: 1 + each.nbytes // share].tobytes()) for each in arrays]
    made_of = [len(vectors), *(one.rho for one in model.classifiers), *looks]
    known, predictor = vars(model).get("prepared", (None, None))
    if known != made_of:
        with model.engine() as engine:
            predictor = Predictor(model, engine)
        if rows_bytes(vectors) <= _KEPT_BYTES:
            vars(model)["prepared"] = made_of, predictor
    found: Predictor = predictor
    return found


def decide(
    model: Trained,
    rows: RowSource | Iterable[Rows],
    *,
    labels_only: bool = False,
    threads: int = 1,
    dask: Any = None,
    name: str = "the data",
) -> Iterator[Float64Array]:
    """Yield decision values in blocks, of a source or of blocks of rows like those of training."""
    source = suited(model, rows) if isinstance(rows, RowSource) else None
    n_rows = 0
    n_open = 0
    n_too_large = 0
    first = 0  # position of the first row that is too large
    with ExitStack() as opened:
        prepared = predictor_of(model)
        arithmetic = prepared.engine.arithmetic
        engine = opened.enter_context(Engine(model.kernel, threads, arithmetic))
        predictor = prepared.ready(engine, model.threshold or 0.0, labels_only=labels_only)
        if source is None:
            parts: Iterable[tuple[Float64Array, int]] = map(predictor, rows)  # type: ignore[arg-type]
        else:
            name = source.name
            predictor.prepare_for(source)
            # One worker in this process is enough, since the engine has threads of its own.
            workers = opened.enter_context(borrow_workers(dask, threads, here=1))
            slices = block_slices(source, 0, source.n_rows)
            parts = (found for _, found in workers.over(source, _decide_rows, slices, predictor))
        for values, n_open_here in parts:
            unknown = without_value(values)
            if unknown.any() and n_too_large == 0:
                first = n_rows + int(unknown.argmax())
            n_too_large += int(np.count_nonzero(unknown))
            n_open += n_open_here
            n_rows += len(values)
            yield values
    if source is not None:
        source.check_unchanged()
    if n_too_large > 0:
        row = first if source is None else source.row_ids(first, first + 1)[0]
        words = "row %d of %s is too large for the %s kernel in float32 and has no prediction, as "
        words += "%d rows in all; scale the columns as for training, or leave these rows out"
        logger.warning(words, row, name, model.kernel.name, n_too_large)
    if n_open > 0:
        words = "%d of %d rows of %s are so near the boundary, or so large, that float64 "
        words += "arithmetic does not settle their labels or values"
        logger.warning(words, n_open, n_rows, name)


def _decide_rows(
    source: RowSource, block: tuple[int, int], predictor: Predictor
) -> tuple[Float64Array, int]:
    return predictor(source.read(*block))


def without_value(values: Float64Array) -> npt.NDArray[np.bool_]:
    """Which rows have no decision value because they are too large."""
    return np.isnan(values.reshape(len(values), -1)[:, 0])


def format_of_table(model: Trained, X: Any) -> str:
    """The format of `X` if it is a table like the one that the model was trained on, else "".

    A frame is an "arrow" table. One without the columns of that table may have its features.
    """
    if model.table is None:
        return ""
    if isinstance(X, str | os.PathLike):
        path = os.fspath(X)
        is_file = os.path.isfile(path) or os.path.isdir(path)
        kind = detect_format(path, is_table=True) if is_file else ""
        return kind if kind in TABLES else ""
    names = names_of_frame(X)
    record = training_file(model, "the model").record
    assert record is not None
    lacks_columns = {*record.columns, *record.encodings} - {*(names or ())}
    has_features = lacks_columns and {*(model.columns or ())} <= {*(names or ())}
    return "" if names is None or has_features else "arrow"


def rows_of_table(
    model: Trained,
    table: Any,
    kind: str,
    notes: list[str] | None = None,
    options: ConvertOptions | None = None,
    *,
    with_labels: bool = False,
) -> Iterator[tuple[AnyArray, Rows]]:
    """Labels and rows of a path or frame of this format, which is a table like that of training.

    What was left out is added to `notes`; without them, a warning tells of unknown categories.
    """
    is_path = isinstance(table, str | os.PathLike)
    name = os.fspath(table) if is_path else f"this {type(table).__name__}"
    options = options or ConvertOptions(like="the model")
    like = training_file(model, str(options.like or "the model"))
    record = like.record
    assert record is not None
    task = "regression" if like.targets else "classification"
    options = record.options_of(replace(options, like=like.name, task=task))
    how: dict[str, Any] = {"live": not with_labels}
    with ExitStack() as opened:
        paths = files_of(name, kind) if is_path else [table]
        readers = [opened.enter_context(open_table(one, kind, options, **how)) for one in paths]
        labels_of = LabelNumbers(are_words=like.are_words) if with_labels else None
        encoder = TableEncoder(readers, record, options, like, labels_of)
        if with_labels and not encoder.labelled:
            raise InputError(
                f"{name} has no column {record.label!r}, which had the labels in "
                f"training; name another column with --label"
            )
        n_rows = 0
        blocks = (
            ordered_map(partial(encoder.parse, one), one.blocks(), partial(getattr, one, "drained"))
            for one in readers
        )
        for block in chain.from_iterable(blocks):
            codes = encoder.learn(block, None)
            n_rows += len(block.rows)
            labels: AnyArray = block.labels
            if (words := encoder.labels.words) is not None:
                labels = np.array(words, dtype=object)[labels.astype(np.int64)]
            yield labels, encoder.features(block.rows, codes, Scaling())
        if not n_rows:
            raise InputError(f"{name} has no rows; give a table with rows in it")
        if notes is None:
            for note in encoder.unknown():
                logger.warning("%s: %s", name, note)
        else:
            notes += [f"note: {note}" for note in encoder.notes()]


def training_file(model: Trained, name: str) -> TrainingFile:
    """What a model, from the file `name`, knows of its training data."""
    return TrainingFile(
        name,
        model.n_features,
        isinstance(model.support_vectors, CSRRows),
        model.scaling,
        model.classes.dtype.kind not in "biuf",
        columns=model.columns,
        table=model.table,
        targets=model.spread is not None,
        origin=model.origin,
    )
