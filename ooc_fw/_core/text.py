"""Compiled parsers of text: lines of LIBSVM, and the ends of rows of CSV.

`parse_lines` stops at the first line it cannot take and says why by a `Problem`;
`ooc_fw.convert.text` raises, skips the line, or supplies the number asked for.

Notes
-----
A number becomes ``float64(text)``, to the last bit, in one of three ways:

1. Mantissa up to 2**53 and power of ten up to 22: both are exact in float64, hence one product or
   quotient is correctly rounded (Clinger, 1990, "How to read floating point numbers accurately").
2. Otherwise the product is computed as a pair of float64 (Dekker, 1971, "A floating-point technique
   for extending the available precision"), within a relative 2**-98 of the truth, or 2**-59 where
   digits were left out. Rounding is monotone: if both ends of that interval round to one number, so
   does the truth.
3. Otherwise (hardly ever with up to 19 digits) the parser stops with `Problem.UNDECIDED` and is
   called again with the float64 that Python's exact reader gives.
"""

from __future__ import annotations

from enum import IntEnum
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ooc_fw._core.loading import njit


class Problem(IntEnum):
    """Why `parse_lines` stopped; NONE means at the end of the text."""

    NONE = 0
    UNDECIDED = 1  # not an error: the number at cursor[TOKEN] must be supplied
    LABEL = 2  # no finite number
    LABEL_NOT_EXACT = 3
    PAIR = 4
    ZERO_INDEX = 5
    INDEX_TOO_LARGE = 6
    DUPLICATE_INDEX = 7
    VALUE = 8  # no finite number
    VALUE_TOO_LARGE = 9
    NO_LOG1P = 10


# Fields of the cursor that parse_lines reads and advances.
AT = 0  # where the next line starts
LINE = 1  # lines passed
ROWS = 2  # rows stored
WIDTH = 3  # 1 + largest column met, dropped ones included
DROPPED = 4  # values left out because their column is too wide
TOKEN = 5  # where the token starts that the parser stopped at; for DUPLICATE_INDEX: the index
CURSOR_SIZE = 6

NEWLINE, RETURN, BLANK, QUOTE, HASH, PLUS, MINUS, POINT, ZERO, COLON, SMALL_E = b'\n\r "#+-.0:e'

U64 = np.uint64
INT32_MAX = 2**31 - 1
EXACT_MANTISSA = 2**53
EXACT_POWER = U64(22)
DIGIT_ROOM = (2**63 - 10) // 10  # one digit more still fits int64
# 10**power from -LARGEST_POWER on, each as the sum of two float64.
LARGEST_POWER = 90
_POWERS = [Fraction(10) ** power for power in range(-LARGEST_POWER, LARGEST_POWER + 1)]
POWERS_HIGH = np.array([float(power) for power in _POWERS])
POWERS_LOW = np.array([float(power - Fraction(float(power))) for power in _POWERS])
POWERS_OF_TEN = POWERS_HIGH[LARGEST_POWER:]
PRODUCT_ERROR = 2.0**-98
TRUNCATION_ERROR = 2.0**-59
SPLITTER = 2.0**27 + 1.0
# Half a unit above the largest float32; from here on rounding to it gives infinity.
FLOAT32_OVERFLOW = 2.0**128 - 2.0**103


class Expected(NamedTuple):
    """What a parser takes lines for.

    The first column is called `index_base` in the file, 1 or 0; columns from `width_limit` on are
    checked, counted and left out; values must be greater than `above` (-1 where log1p follows, else
    -inf). `known` are numbers supplied for the tokens starting at `known_at`.
    """

    index_base: int
    width_limit: int
    above: float
    known_at: npt.NDArray[np.int64]
    known: npt.NDArray[np.float64]


@njit(cache=True, nogil=True)
def parse_lines(text, expected, cursor, labels, indptr, indices, values):
    """Parse whole lines from ``cursor[AT]`` on until the text ends or a line cannot be taken.

    `text`, uint8, ends in a newline. Modifies `cursor`, shape (CURSOR_SIZE,), and fills the label
    of each row; `indptr`, where its values begin (``indptr[0]`` must be 0); columns from 0, which
    increase within a row, and their values, none of them 0. There must be room for all lines and
    colons. Returns the number of a `Problem`; AT, LINE, ROWS, WIDTH and DROPPED are then those of
    the beginning of the bad line, so that the call can be repeated. O(bytes), and about
    O(k^1.3) more for a row of k unsorted pairs.
    """
    while cursor[AT] < text.size:
        problem = _parse_line(text, expected, cursor, labels, indptr, indices, values)
        if problem != Problem.NONE:
            return np.int64(problem)
    return np.int64(Problem.NONE)


@njit(cache=True, nogil=True)
def _parse_line(text, expected, cursor, labels, indptr, indices, values):
    """One line: label, optional qid, pairs; stores a row and advances the cursor if all is well."""
    index_base, width_limit, above, known_at, known = expected
    at = _skip_blanks(text, cursor[AT])
    if _ends_line(text[U64(at)]):
        cursor[AT] = _next_line(text, at)
        cursor[LINE] += 1
        return Problem.NONE
    cursor[TOKEN] = at
    problem, label, end = _parse_label(text, at, known_at, known)
    if problem != Problem.NONE:
        return problem
    at = _skip_blanks(text, _skip_qid(text, _skip_blanks(text, end)))

    row = cursor[ROWS]
    first = indptr[row]
    stored = first
    previous = -1
    increasing = True
    complete = True  # no zeros, which would be removed again
    while not _ends_line(text[U64(at)]):
        cursor[TOKEN] = at
        problem, index, value, end = _parse_pair(text, at, index_base)
        if problem == Problem.UNDECIDED:
            problem, value = _look_up(at, known_at, known)
        if problem != Problem.NONE:
            return problem
        if abs(value) >= FLOAT32_OVERFLOW:
            return Problem.VALUE_TOO_LARGE
        if value <= above and index < width_limit:
            return Problem.NO_LOG1P
        increasing &= index > previous
        complete &= value != 0
        previous = index
        indices[U64(stored)] = index
        values[U64(stored)] = value
        stored += 1
        at = _skip_blanks(text, end + (text[U64(end)] == BLANK))

    if not increasing:
        _sort_pairs(indices[first:stored], values[first:stored])
        for k in range(first + 1, stored):
            if indices[k] == indices[k - 1]:
                cursor[TOKEN] = indices[k] + index_base
                return Problem.DUPLICATE_INDEX
        previous = int(indices[stored - 1])
    if not complete or previous >= width_limit:
        kept = first
        for k in range(first, stored):
            index, value = indices[k], values[k]
            indices[kept], values[kept] = index, value
            kept += value != 0 and index < width_limit
            cursor[DROPPED] += index >= width_limit
        stored = kept

    labels[row] = label
    indptr[row + 1] = stored
    cursor[ROWS] = row + 1
    cursor[WIDTH] = max(cursor[WIDTH], previous + 1)
    cursor[LINE] += 1
    cursor[AT] = _next_line(text, at)
    return Problem.NONE


@njit(cache=True, nogil=True)
def _sort_pairs(indices, values):
    """Sort pairs by column: a Shell sort, since numba takes seconds to compile its own sort."""
    gap = indices.size // 2
    while gap > 0:
        for i in range(gap, indices.size):
            index, value = indices[i], values[i]
            k = i
            while k >= gap and indices[k - gap] > index:
                indices[k], values[k] = indices[k - gap], values[k - gap]
                k -= gap
            indices[k], values[k] = index, value
        gap = max(1, gap * 5 // 11) if gap > 1 else 0


@njit(cache=True, nogil=True)
def _parse_label(text, at, known_at, known):
    """Label at `at`: the problem with it, its value, and where it ends."""
    problem, label, end = _scan_number(text, at)
    if problem == Problem.UNDECIDED or abs(label) >= EXACT_MANTISSA:
        problem, label = _look_up(at, known_at, known)
    if np.isnan(label):
        problem = Problem.LABEL_NOT_EXACT
    elif problem == Problem.VALUE or np.isinf(label):
        problem = Problem.LABEL
    return problem, label, end


@njit(cache=True, nogil=True)
def _parse_pair(text, at, index_base):
    """Pair at `at`: the problem with it, its column from 0, its value, and where it ends."""
    index, _, colon = _scan_digits(text, at, np.int64(0))
    if text[U64(colon)] != COLON or colon == at:
        return Problem.PAIR, index, 0.0, colon
    index -= index_base
    if index < 0:
        return Problem.ZERO_INDEX, index, 0.0, colon
    if index > INT32_MAX:
        return Problem.INDEX_TOO_LARGE, index, 0.0, colon
    problem, value, end = _scan_number(text, colon + 1)
    return problem, index, value, end


@njit(cache=True, nogil=True)
def _look_up(at, known_at, known):
    """Number that was supplied for the token at `at`, or the problem that it is not there."""
    for k in range(known_at.size):
        if known_at[k] == at:
            return Problem.NONE, known[k]
    return Problem.UNDECIDED, 0.0


@njit(cache=True, nogil=True)
def _ends_line(byte):
    """Newline or the beginning of a comment."""
    return byte == NEWLINE or byte == HASH


@njit(cache=True, nogil=True)
def _is_blank(byte):
    """Space, tab, vertical tab, form feed or carriage return; not the newline."""
    if byte > HASH:  # nearly always; one comparison in place of four
        return False
    return byte == BLANK or byte == 9 or (11 <= byte <= 13)


@njit(cache=True, nogil=True)
def _ends_token(byte):
    return _ends_line(byte) or _is_blank(byte)


@njit(cache=True, nogil=True)
def _skip_blanks(text, at):
    while _is_blank(text[U64(at)]):
        at += 1
    return at


@njit(cache=True, nogil=True)
def _next_line(text, at):
    """Position after the next newline."""
    while text[U64(at)] != NEWLINE:
        at += 1
    return at + 1


@njit(cache=True, nogil=True)
def _skip_qid(text, at):
    """Position after a "qid:..." token at `at`, or `at`; a classifier has no use for queries."""
    if text[at] == 113 and text[at + 1] == 105 and text[at + 2] == 100 and text[at + 3] == COLON:
        while not _ends_token(text[at]):
            at += 1
    return at


@njit(cache=True, nogil=True, inline="always")
def _scan_digits(text, at, number):
    """Read digits behind those of `number`: it, how many had no room in int64, where they end."""
    n_lost = np.int64(0)
    digit = np.int64(text[U64(at)]) - ZERO
    while 0 <= digit <= 9:
        if number < DIGIT_ROOM:
            number = number * 10 + digit
        else:
            n_lost += 1
        at += 1
        digit = np.int64(text[U64(at)]) - ZERO
    return number, n_lost, at


@njit(cache=True, nogil=True, inline="always")
def _scan_number(text, at):
    """Read [sign] digits [. digits] [e [sign] digits] up to the end of the token.

    Returns NONE, UNDECIDED or VALUE, the value, and where the token ends.
    """
    negative = text[U64(at)] == MINUS
    at += negative | (text[U64(at)] == PLUS)  # a branch would often be predicted wrongly
    start = at
    mantissa, n_lost, at = _scan_digits(text, at, np.int64(0))
    n_digits, power = at - start, n_lost
    if text[U64(at)] == POINT:
        start = at + 1
        mantissa, n_more, at = _scan_digits(text, start, mantissa)
        n_digits += at - start
        power += n_more + start - at
    problem, exponent = Problem.NONE, np.int64(0)
    if n_digits == 0 or not _ends_token(text[U64(at)]):
        problem, exponent, at = _scan_exponent(text, at, n_digits)
    power += exponent
    # Digits were left out only where the others are a larger number.
    if mantissa <= EXACT_MANTISSA and U64(-power) <= EXACT_POWER:
        value = np.float64(mantissa) / POWERS_OF_TEN[U64(-power)]
    elif problem == Problem.NONE:
        problem, value = _scale_by_power(mantissa, power)
    else:
        value = 0.0
    return problem, -value if negative else value, at


@njit(cache=True, nogil=True)
def _scan_exponent(text, at, n_digits):
    """Read e [sign] digits, behind `n_digits` of a number, up to the end of the token.

    Returns NONE or VALUE, the exponent, at most 10**9, and where it ends.
    """
    problem = Problem.VALUE
    if n_digits == 0 or text[U64(at)] | 32 != SMALL_E:
        return problem, np.int64(0), at
    negative = text[at + 1] == MINUS
    start = at + 1 + (negative | (text[at + 1] == PLUS))
    exponent, _, end = _scan_digits(text, start, np.int64(0))
    if end > start and _ends_token(text[U64(end)]):
        problem = Problem.NONE
    exponent = min(exponent, np.int64(10**9))
    return problem, -exponent if negative else exponent, end


@njit(cache=True, nogil=True)
def _scale_by_power(mantissa, power):
    """``mantissa * 10**power`` as (NONE or UNDECIDED, value); see the module's notes."""
    if mantissa == 0:
        return Problem.NONE, 0.0
    if mantissa <= EXACT_MANTISSA and 0 <= power <= EXACT_POWER:
        return Problem.NONE, mantissa * POWERS_OF_TEN[power]
    if not -LARGEST_POWER <= power <= LARGEST_POWER:
        return Problem.UNDECIDED, 0.0
    whole = np.float64(mantissa)
    part = np.float64(np.int64(U64(mantissa) - U64(whole)))  # what rounding took away
    place = power + LARGEST_POWER
    high, low = _two_product(whole, POWERS_HIGH[place])
    low += whole * POWERS_LOW[place] + part * POWERS_HIGH[place]
    margin = high * (TRUNCATION_ERROR if mantissa >= DIGIT_ROOM else PRODUCT_ERROR)
    if high + (low - margin) == high + (low + margin):
        return Problem.NONE, high + low
    return Problem.UNDECIDED, 0.0


@njit(cache=True, nogil=True)
def _two_product(a, b):
    """``a * b`` exactly, as a rounded product and the rest; sizes below 1e290."""
    high = a * b
    part = SPLITTER * a
    a_high = part - (part - a)
    a_low = a - a_high
    part = SPLITTER * b
    b_high = part - (part - b)
    b_low = b - b_high
    return high, ((a_high * b_high - high) + a_high * b_low + a_low * b_high) + a_low * b_low


BEGIN, PLAIN, QUOTED, CLOSED = range(4)
"""At the begin of a cell, in a cell without quotes, inside quotes, and after a second quote."""


@njit(cache=True, nogil=True)
def scan_rows(text, delimiter, state):
    """Follow the quotes of CSV through `text`, from the state at the end of the part before.

    A quote counts where a cell begins, and two of them inside a quoted cell stand for one. A line
    without any character is no row. `text` is uint8 of shape (n,), `delimiter` the byte between two
    cells; `state` is BEGIN before the first part. Returns the state at the end of the part; the
    place after the last line end that ends a row, 0 if there is none; and the number of rows that
    end in the part and are not empty in it.
    """
    end, n_rows, empty = 0, 0, True
    for place in range(text.size):
        byte = text[place]
        if state == QUOTED:
            if byte == QUOTE:
                state = CLOSED
        elif byte == NEWLINE:
            n_rows += not empty
            end, state, empty = place + 1, BEGIN, True
        elif byte == delimiter:
            state, empty = BEGIN, False
        elif byte == QUOTE and state != PLAIN:
            state, empty = QUOTED, False
        else:
            state, empty = PLAIN, empty and byte == RETURN
    return state, end, n_rows
