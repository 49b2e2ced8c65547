"""Text in the attributes of HDF5 files.

It is stored as UTF-8 of a fixed length, in the attribute itself. Strings of variable length lie in
a heap of the file that has no checksum, and one changed bit there can keep the HDF5 library in an
endless loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

# Attribute of the labels of a data file: the words that their values 0, 1, ... stand for.
LABEL_NAMES = "label_names"
# Attribute of a data file: whether its labels are targets of a regression, not classes.
TARGETS = "targets"
# Attribute of a data file: the names of its features.
COLUMNS = "columns"
# Attribute of a data file: how the columns of a table became its features, as JSON.
RECORD = "table"


def as_text(value: Any) -> str:
    """Text that HDF5 holds, as bytes or not; it may be a file name that is not UTF-8."""
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)


def put_text(attributes: Any, name: str, text: str) -> None:
    """Store `text` in HDF5 attributes."""
    attributes[name] = np.bytes_(text.encode("utf-8", "surrogateescape"))


def get_text(attributes: Any, name: str) -> str:
    """Read text that `put_text` or another tool stored; KeyError when there is none."""
    return as_text(attributes[name])


def put_texts(attributes: Any, name: str, texts: Sequence[str]) -> None:
    """Store several texts as an array of one fixed length, in attributes or as a data set."""
    encoded = [text.encode("utf-8", "surrogateescape") for text in texts]
    attributes[name] = np.array(encoded, dtype=np.bytes_)


def get_texts(attributes: Any, name: str) -> list[str] | None:
    """Read what `put_texts` or another tool stored; None when there is nothing."""
    if name not in attributes:
        return None
    return [as_text(text) for text in np.ravel(attributes[name]).tolist()]
