"""Text in the attributes of HDF5 files.

Owns how it is stored: UTF-8 in the attribute itself, of a fixed length. A string of variable length
lies in a heap of the file that has no checksum, and one changed bit there can keep the HDF5 library
in a loop for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

LABEL_NAMES = "label_names"
"""Attribute of the labels of a data file: the words that their values 0, 1, ... stand for."""


def put_text(attributes: Any, name: str, text: str) -> None:
    """Store `text`, which may hold a file name that is no UTF-8, in HDF5 attributes."""
    attributes[name] = np.bytes_(text.encode("utf-8", "surrogateescape"))


def get_text(attributes: Any, name: str) -> str:
    """Read text that `put_text` or another tool stored; KeyError when there is none."""
    value = attributes[name]
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return str(value)


def put_texts(attributes: Any, name: str, texts: Sequence[str]) -> None:
    """Store several texts as an array of UTF-8 of one fixed length."""
    encoded = [text.encode("utf-8", "surrogateescape") for text in texts]
    attributes[name] = np.array(encoded, dtype=np.bytes_)


def get_texts(attributes: Any, name: str) -> list[str] | None:
    """Read what `put_texts` or another tool stored; None when there is nothing."""
    if name not in attributes:
        return None
    return [
        text.decode("utf-8", "surrogateescape") if isinstance(text, bytes) else str(text)
        for text in np.ravel(attributes[name]).tolist()
    ]
