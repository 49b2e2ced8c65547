"""Compiled search for the line ends of CSV that end a row, and are no part of a quoted cell."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ooc_fw._core.loading import njit

UInt8Array: TypeAlias = npt.NDArray[np.uint8]

BEGIN, PLAIN, QUOTED, CLOSED = range(4)
"""At the begin of a cell, in a cell without quotes, inside quotes, and after a second quote."""

_NEWLINE, _RETURN, _QUOTE = ord("\n"), ord("\r"), ord('"')


class RowEnds(NamedTuple):
    """What a scan of a part of the text found."""

    state: int  # at the end of the part: BEGIN, PLAIN, QUOTED or CLOSED
    end: int  # place after the last line end that ends a row; 0 if there is none
    n_rows: int  # rows that end in the part and are not empty
    empty: bool  # whether nothing of the row under way was met yet


@njit(cache=True, nogil=True)
def scan_rows(text, delimiter, state, empty):
    """Follow the quotes of CSV through `text`, from the state at the end of the part before.

    A quote counts where a cell begins, and two of them inside a quoted cell stand for one. A line
    without any character is no row.

    Parameters
    ----------
    text : ndarray of uint8, shape (n,)
    delimiter : int
        The byte between two cells.
    state : int
        BEGIN before the first part.
    empty : bool
        True before the first part.

    Returns
    -------
    RowEnds
    """
    end = n_rows = 0
    for place in range(text.size):
        byte = text[place]
        if state == QUOTED:
            if byte == _QUOTE:
                state = CLOSED
        elif byte == _NEWLINE:
            n_rows += not empty
            end, state, empty = place + 1, BEGIN, True
        elif byte == delimiter:
            state, empty = BEGIN, False
        elif byte == _QUOTE and state != PLAIN:
            state, empty = QUOTED, False
        else:
            state, empty = PLAIN, empty and byte == _RETURN
    return RowEnds(state, end, n_rows, empty)
