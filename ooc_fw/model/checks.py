"""Whether some data are of the kind a model was trained on, or are its training data."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ooc_fw.data.rows import CSRRows, Int64Array, Rows, take_rows
from ooc_fw.data.sources import RowSource
from ooc_fw.model.classifier import BinaryClassifier
from ooc_fw.model.prediction import rows_at_once
from ooc_fw.system.errors import InputError

if TYPE_CHECKING:
    from ooc_fw.model.record import Model

logger = logging.getLogger(__name__)


def check_source(model: Model, source: RowSource) -> None:
    """Raise InputError unless rows of `source` can be compared with the support vectors."""
    if source.n_features != model.n_features:
        raise InputError(
            f"{source.name} has {source.n_features} features but the model was trained on "
            f"{model.n_features}; convert it with --like and the training file"
        )
    if source.scaling is None:
        return
    if model.scaling is None:
        logger.warning(
            "%s is scaled (%s), and the model has no record of the scaling of its training data; "
            "the values are taken as they are",
            source.name,
            source.scaling.kind,
        )
    elif not source.scaling.same_as(model.scaling):
        raise InputError(
            f"{source.name} is scaled ({source.scaling.kind}) in another way than the model's "
            f"training data ({model.scaling.kind}); convert it with --like and the training file"
        )


def check_training_rows(model: Model, source: RowSource, codes: Int64Array) -> None:
    """Raise InputError unless `source` is the data the model was trained on.

    Compares every support vector and its class with the row that it should come from; `codes` has
    the place in `Model.classes` of the label of each row.
    """
    check_source(model, source)
    for own in model.classifiers:
        _check_rows(model, own, source, codes)


def _check_rows(model: Model, own: BinaryClassifier, source: RowSource, codes: Int64Array) -> None:
    pair = np.searchsorted(model.classes, [own.negative, own.positive])
    classes = pair[(own.labels > 0).astype(np.intp)]
    order = np.argsort(own.rows)
    rows = own.rows[order]
    if rows[0] < 0 or rows[-1] >= source.n_rows:
        raise InputError(
            f"{source.name} has {source.n_rows} rows but the model was trained on row "
            f"{rows[-1]}; give the file it was trained on"
        )
    step = rows_at_once(model.n_features)
    for start in range(0, len(rows), step):
        part = order[start : start + step]
        found = _dense(source.take(rows[start : start + step]))
        expected = _dense(take_rows(model.support_vectors, own.sv[part]))
        differs = (found != expected).any(axis=1)
        differs |= codes[own.rows[part]] != classes[part]
        if differs.any():
            row = own.rows[part[differs.argmax()]]
            raise InputError(
                f"row {row} of {source.name} is not the model's support vector of that row; give "
                f"the file it was trained on"
            )


def _dense(rows: Rows) -> npt.NDArray[np.float32]:
    return rows.toarray() if isinstance(rows, CSRRows) else rows
