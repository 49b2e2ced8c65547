"""Which label values a file can hold: whole numbers that float64 holds exactly, and UTF-8 text.

Files keep numeric labels as float64. Whole numbers beyond 2**53 may round to a neighbour, and two
classes would become one.
"""

from __future__ import annotations

import decimal
from typing import Any

import numpy as np
import numpy.typing as npt


def is_exact_label(text: str) -> bool:
    """Whether text is a number that, if it is a whole one, float64 holds exactly."""
    try:
        number = decimal.Decimal(text)
    except decimal.InvalidOperation:
        return False
    if not number.is_finite() or number.adjusted() > 400:
        return not number.is_nan()
    return number != number.to_integral_value() or decimal.Decimal(float(number)) == number


def inexact_labels(labels: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Which whole numbers, of whatever type, float64 does not hold exactly."""
    if labels.dtype.kind not in "iu" or labels.dtype.itemsize < 8:
        return np.zeros(len(labels), dtype=bool)
    with np.errstate(invalid="ignore"):
        # 2**63 and 2**64 are no numbers of the type: what rounds up to them is not held.
        rounded = labels.astype(np.float64)
        top = 2.0 ** (63 if labels.dtype.kind == "i" else 64)
        inside = rounded < top
        again = np.where(inside, rounded, 0).astype(labels.dtype)
    result: npt.NDArray[np.bool_] = ~inside | (again != labels)
    return result


def is_unicode(word: str | bytes) -> bool:
    """Whether a label can be written as UTF-8, and, where it is bytes, read as plain text."""
    try:
        word.decode("ascii") if isinstance(word, bytes) else word.encode("utf-8")
    except UnicodeError:
        return False
    return True
