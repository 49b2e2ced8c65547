"""Compiled loops of the shuffle: rows as records of 32-bit words, packed and unpacked.

Owns the layout of a record. Knows nothing of files and keys: `ooc_fw.convert.spool` does.

    words 0, 1   position of the row in the input, int64
    words 2, 3   label, float64
    word 4       number of stored values n, and in the two highest bits the width of a column number
    n or 2n words  values, float32 or float64: `value_words` is 1 or 2
    the rest     column numbers of 1, 2 or 4 bytes each, as narrow as the row's last one allows

The byte order is the machine's; records never leave it.
"""

from __future__ import annotations

import numpy as np

from ooc_fw._core.loading import njit

HEADER_WORDS = 5
_WIDTH_SHIFT = np.uint32(30)
_COUNT_MASK = np.uint32((1 << 30) - 1)
BYTES, HALVES, WORDS = 0, 1, 2


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
    # Unsigned: a signed index is tested for being negative, which takes as long as the copy.
    first, at = np.uint64(first), np.uint64(at)
    for k in range(np.uint64(n)):
        out[at + k] = source[first + k]


@njit(cache=True, nogil=True)
def measure_records(columns, indptr, buckets, value_words, sizes):
    """Add up the words that the rows of each bucket take.

    Parameters
    ----------
    columns : ndarray of int32, shape (n_stored,)
        Column of each stored value, increasing within a row.
    indptr : ndarray of int64, shape (n_rows + 1,)
        Row i owns ``columns[indptr[i]:indptr[i + 1]]``.
    buckets : ndarray of uint16, shape (n_rows,)
        Bucket of each row.
    value_words : int
        Words of a value.
    sizes : ndarray of int64, shape (n_buckets,)
        Modified in place.
    """
    for i in range(buckets.size):
        first, last = indptr[i], indptr[i + 1]
        sizes[buckets[i]] += _record_words(last - first, _width(columns, first, last), value_words)


@njit(cache=True, nogil=True)
def pack_records(
    values, columns, indptr, ids, labels, buckets, value_words, places, words, halves, narrow
):
    """Write each row as a record, those of a bucket one after the other; O(stored values).

    Parameters
    ----------
    values : ndarray of uint32, shape (value_words n_stored,)
        Bits of the values.
    columns, indptr, buckets, value_words
        As for `measure_records`.
    ids, labels : ndarray of uint32, shape (2 n_rows,)
        Bits of the positions and of the labels.
    places : ndarray of int64, shape (n_buckets,)
        Word at which the records of each bucket begin; advanced to their ends.
    words : ndarray of uint32
        Filled.
    halves, narrow : ndarray of uint16 and of uint8
        The same memory.
    """
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
    """Find the records that lie wholly in `words`; O(number of records).

    Parameters
    ----------
    words : ndarray of uint32
        Records one after the other; the last one may be cut off.
    value_words : int
        Words of a value.
    starts, counts : ndarray of int64, shape (at least the number of records,)
        Filled: the word at which each record begins, and its number of stored values.

    Returns
    -------
    tuple of int
        Number of whole records, and the words they take.
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
def unpack_records(
    words, halves, narrow, starts, value_words, values, columns, indptr, ids, labels
):
    """Undo `pack_records` for the records at `starts`, in that order; O(stored values).

    Parameters
    ----------
    words, halves, narrow
        As for `pack_records`.
    starts : ndarray of int64, shape (n_rows,)
        Word at which each record begins.
    value_words : int
        Words of a value.
    values, columns, ids, labels
        As for `pack_records`, filled.
    indptr : ndarray of int64, shape (n_rows + 1,)
        Filled.
    """
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
