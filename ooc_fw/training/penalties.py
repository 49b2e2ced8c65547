"""Penalties of rows: C, times a weight of the row's class, times a weight of the row.

    C_i = C class_weight[y_i] sample_weight_i

A weight counts how often a row occurs, see `ooc_fw.problem`. Callers leave rows of weight 0 out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ooc_fw.data.rows import Float64Array, Int64Array
from ooc_fw.system.errors import InputError, format_label, format_labels

ClassWeight: TypeAlias = Mapping[Any, float] | str | None
"""Weight of each class by its label, or "balanced", or 1 for all."""

_LEAST, _LARGEST = 1e-100, 1e100
"""Limits of C_i, between which neither 1 / C_i nor the square of a sum leaves float64."""


def row_penalties(
    C: float,
    classes: npt.NDArray[Any],
    codes: Int64Array,
    class_weight: ClassWeight = None,
    sample_weight: Float64Array | None = None,
) -> Float64Array | None:
    """Penalty of each row; None when there are no weights, so that it is `C` for all.

    `codes` are the places of the rows' labels in `classes`, and sample weights are above 0. Classes
    that a mapping lacks have weight 1; "balanced" is n_rows / (n_classes * rows of the class),
    where each row counts by its weight. InputError for weights that cannot be used.
    """
    if class_weight is None and sample_weight is None:
        return None
    penalties = C * class_factors(classes, codes, class_weight, sample_weight)[codes]
    if class_weight is None and sample_weight is not None:
        return np.asarray(penalties * sample_weight)
    if sample_weight is None:
        return _within_limits(penalties, "C times class_weight")
    return _within_limits(penalties * sample_weight, "C times class_weight times sample_weight")


def class_factors(
    classes: npt.NDArray[Any],
    codes: Int64Array,
    class_weight: ClassWeight = None,
    sample_weight: Float64Array | None = None,
) -> Float64Array:
    """Factor of C of each class, shape (n_classes,); arguments are those of `row_penalties`."""
    per_class = np.ones(len(classes))
    if isinstance(class_weight, Mapping):
        per_class = _listed(class_weight, classes)
    elif class_weight is not None:
        if not isinstance(class_weight, str) or class_weight != "balanced":
            raise InputError(
                f"class_weight must be 'balanced' or a weight for each label, not {class_weight!r}"
            )
        counts = np.bincount(codes, weights=sample_weight, minlength=len(classes))
        per_class = counts.sum() / (len(classes) * counts)
    return per_class


def _listed(class_weight: Mapping[Any, float], classes: npt.NDArray[Any]) -> Float64Array:
    """Weight of each class, from a mapping."""
    labels = classes.tolist()
    weights = np.array([float(class_weight.get(label, 1.0)) for label in labels])
    for label, weight in zip(labels, weights.tolist(), strict=True):
        if not 0 < weight < np.inf:
            raise InputError(
                f"the weight of class {format_label(label)} must be a positive number, not {weight}"
            )
    missing = [label for label in labels if label not in class_weight]
    strange = [label for label in class_weight if label not in labels]
    if missing and strange:
        raise InputError(
            f"class_weight has a weight for {format_label(strange[0])}, which is no label; labels "
            f"are {format_labels(labels)}"
        )
    return weights


def _within_limits(penalties: Float64Array, name: str) -> Float64Array:
    """The same penalties; InputError, with their `name`, where one that is not 0 is extreme."""
    wrong = np.flatnonzero(~((penalties == 0) | ((penalties >= _LEAST) & (penalties <= _LARGEST))))
    if len(wrong) > 0:
        raise InputError(
            f"{name} must be from {_LEAST:g} to {_LARGEST:g} for float64 arithmetic, but is "
            f"{penalties[wrong[0]]:g} for row {wrong[0]}; multiply the weights by a number that "
            f"brings all of them closer to 1"
        )
    return penalties


def check_sample_weight(sample_weight: npt.ArrayLike, n_rows: int, C: float = 1.0) -> Float64Array:
    """Weights as float64.

    InputError unless each row has one, none is negative, not all are 0, and those that are not 0
    are, times `C`, within what float64 arithmetic takes.
    """
    weights = np.asarray(sample_weight, dtype=np.float64)
    if weights.shape != (n_rows,):
        raise InputError(
            f"sample_weight must have one weight for each of {n_rows} rows, not the shape "
            f"{weights.shape}"
        )
    wrong = np.flatnonzero(~((weights >= 0) & (weights < np.inf)))
    if len(wrong) > 0:
        raise InputError(
            f"sample_weight must not be negative, but is {weights[wrong[0]]} for row {wrong[0]}"
        )
    if not weights.any():
        raise InputError("all sample weights are zero; give a positive weight to some rows")
    # A product that is 0 by underflow is no weight of 0.
    least = np.nextafter(0.0, 1.0)
    with np.errstate(over="ignore", under="ignore"):
        products = np.where(weights > 0, np.maximum(weights * C, least), 0.0)
    _within_limits(products, "sample_weight times C")
    return weights
