"""Text in the attributes of HDF5 files.

Owns how it is stored: UTF-8 in the attribute itself, of a fixed length. A string of variable length
lies in a heap of the file that has no checksum, and one changed bit there can keep the HDF5 library
in a loop for ever.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def put_text(attributes: Any, name: str, text: str) -> None:
    """Store `text`, which may hold a file name that is no UTF-8, in HDF5 attributes."""
    attributes[name] = np.bytes_(text.encode("utf-8", "surrogateescape"))


def get_text(attributes: Any, name: str) -> str:
    """Read text that `put_text` or another tool stored; KeyError when there is none."""
    value = attributes[name]
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return str(value)
