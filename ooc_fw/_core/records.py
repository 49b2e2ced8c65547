"""Compiled loops of the shuffle: rows packed into records of 32-bit words, and unpacked.

    words 0, 1   position of the row in the input, int64
    words 2, 3   label, float64
    word 4       number of stored values n, and in the two highest bits the width of a column number
    n or 2n words  values, float32 or float64: `value_words` is 1 or 2
    the rest     column numbers of 1, 2 or 4 bytes each, as narrow as the row's last one allows

The byte order is that of the processor; records stay on one machine.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ooc_fw._core.loading import njit
from ooc_fw._core.types import Int32Array, Int64Array

UInt32Array: TypeAlias = npt.NDArray[np.uint32]

HEADER_WORDS = 5
_WIDTH_SHIFT = np.uint32(30)
_COUNT_MASK = np.uint32((1 << 30) - 1)
BYTES, HALVES, WORDS = 0, 1, 2


class RowBits(NamedTuple):
    """Sparse rows as bit patterns, uint32: `value_words` for a value, 2 for an id and for a label.

    Row i owns ``columns[indptr[i]:indptr[i + 1]]``, int32, which increase.
    """

    values: UInt32Array
    columns: Int32Array
    indptr: Int64Array
    ids: UInt32Array
    labels: UInt32Array


class Memory(NamedTuple):
    """The same memory as numbers of 32, 16 and 8 bits."""

    words: UInt32Array
    halves: npt.NDArray[np.uint16]
    narrow: npt.NDArray[np.uint8]

    @classmethod
    def of(cls, words: UInt32Array) -> Memory:
        """Views of `words`."""
        return cls(words, words.view(np.uint16), words.view(np.uint8))


@njit(cache=True, nogil=True, inline="always")
def _width(columns, first, last):
    """Width of the column numbers ``columns[first:last]``, which increase."""
    if first == last or columns[last - 1] < 256:
        return BYTES
    return HALVES if columns[last - 1] < 65536 else WORDS


@njit(cache=True, nogil=True, inline="always")
def _record_words(n_stored, width, value_words):
    if width == BYTES:
        return HEADER_WORDS + value_words * n_stored + ((n_stored + 3) >> 2)
    if width == HALVES:
        return HEADER_WORDS + value_words * n_stored + ((n_stored + 1) >> 1)
    return HEADER_WORDS + (value_words + 1) * n_stored


@njit(cache=True, nogil=True, inline="always")
def _copy(source, first, out, at, n):
    """``out[at + k] = source[first + k]`` for k < n, cast to the type of `out`."""
    # A signed index would be tested for being negative, which takes as long as the copy.
    first, at = np.uint64(first), np.uint64(at)
    for k in range(np.uint64(n)):
        out[at + k] = source[first + k]


@njit(cache=True, nogil=True)
def measure_records(columns, indptr, buckets, value_words, sizes):
    """Add the words of the records of each bucket to `sizes`, int64 of shape (n_buckets,).

    `columns` and `indptr` are those of sparse rows with increasing columns; `buckets`, uint16 of
    shape (n_rows,), has the bucket of each row, and a value takes `value_words`.
    """
    for i in range(buckets.size):
        first, last = indptr[i], indptr[i + 1]
        sizes[buckets[i]] += _record_words(last - first, _width(columns, first, last), value_words)


@njit(cache=True, nogil=True)
def pack_records(rows, buckets, value_words, places, memory):
    """Write each row as a record into `memory`, those of a bucket in order; O(stored values).

    `places`, int64 of shape (n_buckets,), has the word where the records of each bucket begin, and
    is advanced to their ends. For `buckets` and `value_words` see `measure_records`.
    """
    values, columns, indptr, ids, labels = rows
    words, halves, narrow = memory
    for i in range(buckets.size):
        first, last = indptr[i], indptr[i + 1]
        n_stored = last - first
        width = _width(columns, first, last)
        at = places[buckets[i]]
        places[buckets[i]] = at + _record_words(n_stored, width, value_words)
        words[at] = ids[2 * i]
        words[at + 1] = ids[2 * i + 1]
        words[at + 2] = labels[2 * i]
        words[at + 3] = labels[2 * i + 1]
        words[at + 4] = np.uint32(n_stored) | (np.uint32(width) << _WIDTH_SHIFT)
        at += HEADER_WORDS
        _copy(values, value_words * first, words, at, value_words * n_stored)
        at += value_words * n_stored
        if width == BYTES:
            _copy(columns, first, narrow, 4 * at, n_stored)
        elif width == HALVES:
            _copy(columns, first, halves, 2 * at, n_stored)
        else:
            _copy(columns, first, words, at, n_stored)


@njit(cache=True, nogil=True)
def index_records(words, value_words, starts, counts):
    """Find the whole records in `words`, of which the last one may be cut off.

    Fills `starts` and `counts`, int64 of at least the number of records: the word where each record
    begins, and its number of stored values. Returns the number of whole records and their words.
    """
    at = 0
    number = 0
    while at + HEADER_WORDS <= words.size:
        head = words[at + 4]
        n_stored = np.int64(head & _COUNT_MASK)
        after = at + _record_words(n_stored, np.int64(head >> _WIDTH_SHIFT), value_words)
        if after > words.size:
            break
        starts[number] = at
        counts[number] = n_stored
        number += 1
        at = after
    return number, at


@njit(cache=True, nogil=True)
def record_ids(words, starts, ids):
    """Fill `ids`, uint32 of shape (2 n,), with the bits of the positions of the records."""
    for i in range(starts.size):
        ids[2 * i] = words[starts[i]]
        ids[2 * i + 1] = words[starts[i] + 1]


@njit(cache=True, nogil=True)
def unpack_records(memory, starts, value_words, rows):
    """Undo `pack_records` for the records that begin at the words `starts`, in that order."""
    words, halves, narrow = memory
    values, columns, indptr, ids, labels = rows
    stored = np.int64(0)
    indptr[0] = 0
    for i in range(starts.size):
        at = starts[i]
        ids[2 * i] = words[at]
        ids[2 * i + 1] = words[at + 1]
        labels[2 * i] = words[at + 2]
        labels[2 * i + 1] = words[at + 3]
        head = words[at + 4]
        n_stored = np.int64(head & _COUNT_MASK)
        width = np.int64(head >> _WIDTH_SHIFT)
        at += HEADER_WORDS
        _copy(words, at, values, value_words * stored, value_words * n_stored)
        at += value_words * n_stored
        if width == BYTES:
            _copy(narrow, 4 * at, columns, stored, n_stored)
        elif width == HALVES:
            _copy(halves, 2 * at, columns, stored, n_stored)
        else:
            _copy(words, at, columns, stored, n_stored)
        stored += n_stored
        indptr[i + 1] = stored
