"""Compiled parsers of text: lines of LIBSVM, and the ends of rows of CSV.

`parse_lines` parses ordinary lines and stops at any other line. `ooc_fw.conversion.text` parses
that line with Python's exact reader of numbers, or says what is wrong with it.

Notes
-----
A number becomes ``float64(text)``, to the last bit, in one of three ways:

1. If the mantissa is at most 2**53 and the power of ten at most 22, both are exact in float64. One
   product or quotient is correctly rounded (Clinger, 1990, "How to read floating point numbers
   accurately").
2. If not, the product is computed as a pair of float64 (Dekker, 1971, "A floating-point technique
   for extending the available precision"). Its relative error is below 2**-98, or below 2**-59 if
   digits were left out. If both ends of that range round to one number, so does the true value.
3. If they do not (rare with up to 19 digits), the parser stops at the line.
"""

from __future__ import annotations

from enum import IntEnum
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from ooc_fw._core.loading import njit


class Byte(IntEnum):
    """Characters with a meaning in the text."""

    NEWLINE = 10
    RETURN = 13
    BLANK = 32
    QUOTE = 34
    HASH = 35
    PLUS = 43
    MINUS = 45
    POINT = 46
    ZERO = 48
    COLON = 58
    SMALL_E = 101


U64 = np.uint64  # an index of this type is not compared with 0
EXACT_MANTISSA = 2**53
DIGIT_ROOM = (2**63 - 10) // 10  # a number below this has room for one more digit in int64
# 10**power for powers from -90 to 90, each as the sum of two float64.
POWERS_HIGH = np.array([float(Fraction(10) ** power) for power in range(-90, 91)])
POWERS_LOW = np.array(
    [float(Fraction(10) ** (k - 90) - Fraction(high)) for k, high in enumerate(POWERS_HIGH)]
)
# Half a unit above the largest float32; this and larger numbers are rounded to infinity.
FLOAT32_OVERFLOW = 2.0**128 - 2.0**103


class Rules(NamedTuple):
    """Rules for the content of lines."""

    index_base: int = 1  # index of the first column in the text, 1 or 0
    width_limit: int = 2**31  # columns from this one on are checked and left out
    above: float = -np.inf  # values must be greater than this; -1 if log1p follows


@njit(cache=True, nogil=True)
def parse_lines(text, rules, place, labels, indptr, indices, values):
    """Parse lines until the text ends or a line is not ordinary; return the place of the stop.

    `text`, uint8, ends in a newline. A place is a tuple: start of the next line, lines passed, rows
    stored, and 1 + largest column so far. The function fills the label of each row, the start of
    its values in `indptr` (``indptr[0]`` must be 0), its columns from 0 in increasing order, and
    its nonzero values. There must be room for all lines and colons.
    """
    index_base, width_limit, above = rules
    at, n_lines, n_rows, width = place
    while at < text.size:
        token = _skip_blanks(text, at)
        if not _ends_line(text[U64(token)]):
            is_plain, label, end = _scan_number(text, token)
            if not is_plain or abs(label) >= EXACT_MANTISSA:
                break
            first = indptr[n_rows]
            stored = first
            n_pairs = 0
            previous = -1
            increasing = True
            token = _skip_blanks(text, _skip_query(text, _skip_blanks(text, end)))
            while not _ends_line(text[U64(token)]):
                is_plain, index, value, end = _scan_pair(text, token)
                index -= index_base
                is_kept = index < width_limit
                is_plain &= 0 <= index and index < 2**31
                is_plain &= abs(value) < FLOAT32_OVERFLOW and (value > above or not is_kept)
                if not is_plain:
                    break
                indices[U64(stored)] = index
                values[U64(stored)] = value
                stored += is_kept & (value != 0)
                n_pairs += 1
                increasing &= index > previous
                previous = index
                token = _skip_blanks(text, end + (text[U64(end)] == Byte.BLANK))
            if is_plain and not increasing:
                # If values were left out, a column may have occurred twice among them.
                is_plain = stored == first + n_pairs
                is_plain = is_plain and _sort_pairs(indices[first:stored], values[first:stored])
                previous = int(indices[stored - 1])
            if not is_plain:
                break
            labels[n_rows] = label
            n_rows += 1
            indptr[n_rows] = stored
            width = max(width, previous + 1)
        while text[U64(token)] != Byte.NEWLINE:
            token += 1
        at = token + 1
        n_lines += 1
    return at, n_lines, n_rows, width


@njit(cache=True, nogil=True)
def _sort_pairs(indices, values):
    """Sort pairs by column; return whether all columns differ. A Shell sort compiles fast."""
    gap = indices.size // 2
    while gap > 0:
        for i in range(gap, indices.size):
            index = indices[i]
            value = values[i]
            k = i
            while k >= gap and indices[k - gap] > index:
                indices[k] = indices[k - gap]
                values[k] = values[k - gap]
                k -= gap
            indices[k] = index
            values[k] = value
        gap = max(1, gap * 5 // 11) if gap > 1 else 0
    differ = True
    for k in range(1, indices.size):
        differ &= indices[k - 1] < indices[k]
    return differ


@njit(cache=True, nogil=True)
def _ends_line(byte):
    """Whether a byte is a newline or begins a comment."""
    return byte == Byte.NEWLINE or byte == Byte.HASH


@njit(cache=True, nogil=True)
def _is_blank(byte):
    """Whether a byte is a space, tab, vertical tab, form feed or carriage return."""
    if byte > Byte.HASH:  # nearly always true: one comparison in place of four
        return False
    return byte == Byte.BLANK or byte == 9 or (11 <= byte <= 13)


@njit(cache=True, nogil=True)
def _ends_token(byte):
    return _ends_line(byte) or _is_blank(byte)


@njit(cache=True, nogil=True)
def _skip_blanks(text, at):
    while _is_blank(text[U64(at)]):
        at += 1
    return at


@njit(cache=True, nogil=True)
def _skip_query(text, at):
    """Position after a "qid:..." token at `at` (the number of a query, for ranking), or `at`."""
    if text[at] == 113 and text[at + 1] == 105 and text[at + 2] == 100 and text[at + 3] == 58:
        while not _ends_token(text[at]):
            at += 1
    return at


@njit(cache=True, nogil=True)
def _scan_pair(text, at):
    """Read the pair at `at`: whether it is ordinary, its index, its value, and its end."""
    index, _, colon = _scan_digits(text, at, np.int64(0))
    if text[U64(colon)] != Byte.COLON or colon == at:
        return False, index, 0.0, colon
    is_plain, value, end = _scan_number(text, colon + 1)
    return is_plain, index, value, end


@njit(cache=True, nogil=True, inline="always")
def _scan_digits(text, at, number):
    """Append digits to `number`; return it, the number of digits without room in int64, the end."""
    n_lost = np.int64(0)
    digit = np.int64(text[U64(at)]) - Byte.ZERO
    while 0 <= digit <= 9:
        if number < DIGIT_ROOM:
            number = number * 10 + digit
        else:
            n_lost += 1
        at += 1
        digit = np.int64(text[U64(at)]) - Byte.ZERO
    return number, n_lost, at


@njit(cache=True, nogil=True, inline="always")
def _scan_number(text, at):
    """Read [sign] digits [. digits] [e [sign] digits] up to the end of the token.

    Returns whether this is a number that is known to the last bit, the number, and its end.
    """
    negative = text[U64(at)] == Byte.MINUS
    at += negative | (text[U64(at)] == Byte.PLUS)  # processors would often mispredict a branch
    start = at
    mantissa, power, at = _scan_digits(text, at, np.int64(0))
    n_digits = at - start
    if text[U64(at)] == Byte.POINT:
        start = at + 1
        mantissa, n_lost, at = _scan_digits(text, start, mantissa)
        n_digits += at - start
        power += n_lost + start - at
    is_number = n_digits > 0
    if not _ends_token(text[U64(at)]):
        has_exponent, exponent, at = _scan_exponent(text, at)
        is_number &= has_exponent
        power += exponent
    # If digits were left out, the mantissa is above EXACT_MANTISSA.
    if mantissa <= EXACT_MANTISSA and U64(-power) <= U64(22):
        value = np.float64(mantissa) / POWERS_HIGH[U64(90 - power)]
    else:
        is_known, value = _scale_by_power(mantissa, power)
        is_number &= is_known
    return is_number, -value if negative else value, at


@njit(cache=True, nogil=True)
def _scan_exponent(text, at):
    """Read e [sign] digits up to the end of the token: whether it is valid, its value, its end."""
    negative = text[U64(at + 1)] == Byte.MINUS
    start = at + 1 + (negative | (text[U64(at + 1)] == Byte.PLUS))
    exponent, _, end = _scan_digits(text, start, np.int64(0))
    is_exponent = text[U64(at)] | 32 == Byte.SMALL_E and end > start and _ends_token(text[U64(end)])
    exponent = min(exponent, np.int64(10**9))
    return is_exponent, -exponent if negative else exponent, end


@njit(cache=True, nogil=True)
def _scale_by_power(mantissa, power):
    """Whether ``mantissa * 10**power`` is known to the last bit, and its value; see the notes."""
    if mantissa == 0:
        return True, 0.0
    if not -90 <= power <= 90:
        return False, 0.0
    place = power + 90
    whole = np.float64(mantissa)
    if mantissa <= EXACT_MANTISSA and 0 <= power <= 22:
        return True, whole * POWERS_HIGH[place]
    part = np.float64(np.int64(U64(mantissa) - U64(whole)))  # the part lost to rounding
    high, low = _two_product(whole, POWERS_HIGH[place])
    low += whole * POWERS_LOW[place] + part * POWERS_HIGH[place]
    margin = high * (2.0**-59 if mantissa >= DIGIT_ROOM else 2.0**-98)
    return high + (low - margin) == high + (low + margin), high + low


@njit(cache=True, nogil=True)
def _two_product(a, b):
    """``a * b`` exactly, as the rounded product and the rest, for numbers below 1e290."""
    high = a * b
    part = (2.0**27 + 1.0) * a
    a_high = part - (part - a)
    a_low = a - a_high
    part = (2.0**27 + 1.0) * b
    b_high = part - (part - b)
    b_low = b - b_high
    return high, ((a_high * b_high - high) + a_high * b_low + a_low * b_high) + a_low * b_low


BEGIN, PLAIN, QUOTED, CLOSED = range(4)
"""States: at the start of a cell, in a cell without quotes, inside quotes, after a second quote."""


@njit(cache=True, nogil=True)
def scan_rows(text, delimiter, state):
    """Follow the quotes of CSV through a part of a text, from the state after the previous part.

    A quote counts at the start of a cell, and two quotes inside a quoted cell stand for one. `text`
    is uint8 of shape (n,), and `delimiter` is the byte between cells. `state` is BEGIN before the
    first part. Returns the state at the end of the part, and the place after the last line end that
    ends a row (0 if there is none).
    """
    end = 0
    for place in range(text.size):
        byte = text[place]
        if state == QUOTED:
            if byte == Byte.QUOTE:
                state = CLOSED
        elif byte == Byte.NEWLINE:
            end = place + 1
            state = BEGIN
        elif byte == delimiter:
            state = BEGIN
        elif byte == Byte.QUOTE and state != PLAIN:
            state = QUOTED
        else:
            state = PLAIN
    return state, end
