"""Compiled parser of LIBSVM text: the grammar of a line and the rounding of its numbers.

A parser stops at the first line it cannot take and says why by a `Problem`; `ooc_fw.convert.libsvm`
raises, skips the line, or supplies the number asked for.

Notes
-----
A number becomes ``float64(text)``, and then ``float32`` of it where float32 is wanted, to the last
bit, in one of three ways:

1. Mantissa up to 2**53 and power of ten up to 22: both are exact in float64, hence one product or
   quotient is correctly rounded (Clinger, 1990, "How to read floating point numbers accurately").
2. Otherwise the same product is within a relative 2**-50 of the truth; where float64 is wanted it
   is computed as a pair of float64, within 2**-98, or within 2**-59 where digits were left out.
   Rounding is monotone: if both ends of that interval round to one number, so does the truth.
3. Otherwise (hardly ever with up to 19 digits) the parser stops with `Problem.UNDECIDED` and is
   called again with the float64 that Python's exact reader gives.
"""

from __future__ import annotations

from enum import IntEnum
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from ooc_fw._core.loading import njit
from ooc_fw._core.types import Float64Array, FloatArray, Int32Array, Int64Array


class Problem(IntEnum):
    """Why `parse_lines` stopped; NONE means at the end of the text."""

    NONE = 0
    UNDECIDED = 1  # not an error: the number at cursor[TOKEN] must be supplied
    LABEL = 2
    LABEL_NOT_FINITE = 3
    PAIR = 4
    NEGATIVE_INDEX = 5
    ZERO_INDEX = 6
    INDEX_TOO_LARGE = 7
    DUPLICATE_INDEX = 8
    VALUE = 9
    VALUE_NOT_FINITE = 10
    VALUE_TOO_LARGE = 11
    NO_LOG1P = 12
    LABEL_NOT_EXACT = 13


# Fields of the cursor that parse_lines reads and advances.
AT = 0  # where the next line starts
LINE = 1  # lines passed
ROWS = 2  # rows stored
WIDTH = 3  # 1 + largest column met, dropped ones included
DROPPED = 4  # values left out because their column is too wide
TOKEN = 5  # where the token starts that the parser stopped at; for DUPLICATE_INDEX: the index
CURSOR_SIZE = 6

NEWLINE = 10
HASH = 35
PLUS = 43
MINUS = 45
POINT = 46
ZERO = 48
COLON = 58

# Outcomes of _scan_number.
EXACT = 0  # the value is float64(text)
APPROXIMATE = 1  # within a relative 2**-50 of it
NOT_A_NUMBER = 2
NOT_FINITE = 3

INT32_MAX = 2**31 - 1
SINGLE_BYTES = 4  # of a float32
EXACT_MANTISSA = 2**53
EXACT_POWER = 22
# One digit more still fits int64.
MANTISSA_ROOM = (2**63 - 10) // 10
# Mantissas have 19 digits at most: beyond these powers a float32 is certainly 0 or infinite.
LARGEST_POWER = 90
POWERS_OF_TEN = np.array([float(f"1e{power}") for power in range(LARGEST_POWER + 1)])
# From -LARGEST_POWER on, each as the sum of two float64.
_POWERS = [Fraction(10) ** power for power in range(-LARGEST_POWER, LARGEST_POWER + 1)]
POWERS_HIGH = np.array([float(power) for power in _POWERS])
POWERS_LOW = np.array([float(power - Fraction(float(power))) for power in _POWERS])
PRODUCT_ERROR = 2.0**-98
TRUNCATION_ERROR = 2.0**-59
RELATIVE_ERROR = 2.0**-50
_SPLITTER = 2.0**27 + 1.0
# Half a unit above the largest float32; from here on rounding gives infinity.
FLOAT32_OVERFLOW = 2.0**128 - 2.0**103

# Masks and numbers for eight bytes at once.
U64 = np.uint64
ASCII_ZEROS = U64(0x3030303030303030)
LOW_BITS = U64(0x7F7F7F7F7F7F7F7F)
HIGH_BITS = U64(0x8080808080808080)
ABOVE_NINE = U64(0x7676767676767676)  # added to a byte above 9, sets its highest bit
PAIRS = U64(0x00FF00FF00FF00FF)
FOURS = U64(0x0000FFFF0000FFFF)
EIGHT = U64(0x00000000FFFFFFFF)
BYTE_NUMBERS = U64(0x0001020304050607)  # times 2**(8 k), its highest byte is k
COLON_AS_DIGIT = U64(COLON ^ ZERO)
BLANK_AS_DIGIT = U64(32 ^ ZERO)
NEWLINE_AS_DIGIT = U64(NEWLINE ^ ZERO)


class Expected(NamedTuple):
    """What a parser takes lines for.

    The first column is called `index_base` in the file, 1 or 0; columns from `width_limit` on are
    checked, counted and left out; values must be greater than `above` (-1 where log1p follows, else
    -inf). `known` are numbers supplied for the tokens starting at `known_at`.
    """

    index_base: int
    width_limit: int
    above: float
    known_at: Int64Array
    known: Float64Array


class ParsedRows(NamedTuple):
    """Arrays that a parser fills.

    Parameters
    ----------
    labels : ndarray of float64, shape (at least the number of lines,)
        The label of each row.
    indptr : ndarray of int64, shape (at least the number of lines + 1,)
        Where the values of each row begin; ``indptr[0]`` must be 0.
    indices, values : ndarray of int32 and of float32 or float64, shape (at least n_colons,)
        Columns from 0, increasing within a row, and their values, none of them 0.
    """

    labels: Float64Array
    indptr: Int64Array
    indices: Int32Array
    values: FloatArray


@njit(cache=True, nogil=True)
def parse_lines(text, expected, cursor, rows):
    """Parse whole lines from ``cursor[AT]`` on until the text ends or a line cannot be taken.

    `text`, uint8, ends in a newline. Modifies `cursor`, shape (CURSOR_SIZE,), and fills `rows`.
    Returns a `Problem`; AT, LINE, ROWS, WIDTH and DROPPED are then those of the beginning of the
    bad line, so that the call can be repeated. O(bytes), and O(k log k) more for a row of k
    unsorted pairs.
    """
    while cursor[AT] < text.size:
        problem = _parse_line(text, expected, cursor, rows)
        if problem != Problem.NONE:
            return problem
    return Problem.NONE


@njit(cache=True, nogil=True)
def _parse_line(text, expected, cursor, rows):
    """One line: label, optional qid, pairs; stores a row and advances the cursor if all is well."""
    index_base, width_limit, above, known_at, known = expected
    labels, indptr, indices, values = rows
    at = _skip_blanks(text, cursor[AT])
    if text[at] == NEWLINE or text[at] == HASH:
        cursor[AT] = _next_line(text, at)
        cursor[LINE] += 1
        return Problem.NONE

    cursor[TOKEN] = at
    kind, label, end = _scan_number(text, at, True)
    if kind == NOT_FINITE:
        return Problem.LABEL_NOT_FINITE
    if kind == NOT_A_NUMBER:
        return Problem.LABEL
    if kind == APPROXIMATE or abs(label) >= EXACT_MANTISSA:
        found = _find(known_at, at)
        if found < 0:
            return Problem.UNDECIDED
        label = known[found]
        if np.isnan(label):
            return Problem.LABEL_NOT_EXACT
        if np.isinf(label):
            return Problem.LABEL_NOT_FINITE
    at = _skip_qid(text, _skip_blanks(text, end))

    row = cursor[ROWS]
    first = indptr[row]
    stored = first
    previous = -1
    width = cursor[WIDTH]
    increasing = True
    complete = True  # no zeros and no columns beyond the limit, which would be removed again
    while True:
        at = _skip_blanks(text, at)
        if text[at] == NEWLINE or text[at] == HASH:
            break
        cursor[TOKEN] = at
        index, colon, value, end = _short_pair(text, at)
        if colon < 0:
            index, colon = _scan_digits(text, at)
        if text[colon] != COLON or colon == at:
            return Problem.NEGATIVE_INDEX if _is_negative_index(text, at) else Problem.PAIR
        index -= index_base
        if index < 0:
            return Problem.ZERO_INDEX
        if index > INT32_MAX:
            return Problem.INDEX_TOO_LARGE
        if index == previous:
            cursor[TOKEN] = index + index_base
            return Problem.DUPLICATE_INDEX

        start = colon + 1
        kind = EXACT
        if end < 0:
            value, end = _short_number(text, start)
        if end < 0:
            kind, value, end = _scan_number(text, start, values.itemsize > SINGLE_BYTES)
        if kind == NOT_FINITE:
            return Problem.VALUE_NOT_FINITE
        if kind == NOT_A_NUMBER:
            return Problem.VALUE
        if kind == APPROXIMATE and not (
            values.itemsize == SINGLE_BYTES and _rounds_to_one_float32(abs(value))
        ):
            found = _find(known_at, at)
            if found < 0:
                return Problem.UNDECIDED
            value = known[found]
        if abs(value) >= FLOAT32_OVERFLOW:
            return Problem.VALUE_TOO_LARGE
        rounded = values.dtype.type(value)  # float32 or float64
        if rounded <= above and index < width_limit:
            return Problem.NO_LOG1P

        increasing = increasing and index > previous
        complete = complete and rounded != 0 and index < width_limit
        width = max(width, index + 1)
        previous = index
        indices[stored] = index
        values[stored] = rounded
        stored += 1
        at = end

    if not increasing:
        _sort_pairs(indices[first:stored], values[first:stored])
        for k in range(first + 1, stored):
            if indices[k] == indices[k - 1]:
                cursor[TOKEN] = indices[k] + index_base
                return Problem.DUPLICATE_INDEX
    if not complete:
        kept, dropped = _compact(indices[first:stored], values[first:stored], width_limit)
        stored = first + kept
        cursor[DROPPED] += dropped

    labels[row] = label
    indptr[row + 1] = stored
    cursor[ROWS] = row + 1
    cursor[WIDTH] = width
    cursor[LINE] += 1
    cursor[AT] = _next_line(text, at)
    return Problem.NONE


@njit(cache=True, nogil=True)
def _is_blank(byte):
    """Space, tab, vertical tab, form feed or carriage return; not the newline."""
    if byte > HASH:  # nearly always; one comparison in place of four
        return False
    return byte == 32 or byte == 9 or (11 <= byte <= 13)


@njit(cache=True, nogil=True)
def _ends_token(byte):
    """Blank, newline or the beginning of a comment."""
    return byte == NEWLINE or byte == HASH or _is_blank(byte)


@njit(cache=True, nogil=True)
def _skip_blanks(text, at):
    while _is_blank(text[at]):
        at += 1
    return at


@njit(cache=True, nogil=True)
def _next_line(text, at):
    """Position after the next newline."""
    while text[at] != NEWLINE:
        at += 1
    return at + 1


@njit(cache=True, nogil=True)
def _starts_with(text, at, word, case):
    """Whether `word` stands at `at`; in any case if `case` is 32 and the word is of small letters.

    The text ends in a newline, so that no byte is read before the one in front of it fits.
    """
    for k in range(len(word)):
        if text[at + k] | case != word[k]:
            return False
    return True


@njit(cache=True, nogil=True)
def _skip_qid(text, at):
    """Position after a "qid:..." token at `at`, or `at`; a classifier has no use for queries."""
    if _starts_with(text, at, b"qid:", 0):
        while not _ends_token(text[at]):
            at += 1
    return at


@njit(cache=True, nogil=True, inline="always")
def _load_digits(text, at):
    """Eight bytes as one word (compiled to one load), first byte lowest; digits become 0 to 9."""
    first = U64(at)
    word = (
        U64(text[first])
        | (U64(text[first + U64(1)]) << U64(8))
        | (U64(text[first + U64(2)]) << U64(16))
        | (U64(text[first + U64(3)]) << U64(24))
        | (U64(text[first + U64(4)]) << U64(32))
        | (U64(text[first + U64(5)]) << U64(40))
        | (U64(text[first + U64(6)]) << U64(48))
        | (U64(text[first + U64(7)]) << U64(56))
    )
    return word ^ ASCII_ZEROS


@njit(cache=True, nogil=True, inline="always")
def _others(digits):
    """Highest bit of each byte that is no digit."""
    return (((digits & LOW_BITS) + ABOVE_NINE) | digits) & HIGH_BITS


@njit(cache=True, nogil=True, inline="always")
def _lowest_byte(bits):
    """Number of the lowest byte whose highest bit is set."""
    return (((bits & (~bits + U64(1))) >> U64(7)) * BYTE_NUMBERS) >> U64(56)


@njit(cache=True, nogil=True, inline="always")
def _byte(word, number):
    return (word >> (U64(8) * number)) & U64(255)


@njit(cache=True, nogil=True, inline="always")
def _number(digits, count):
    """Number written in the first `count` bytes, 1 to 7."""
    # Leading zeros make it eight digits, whose neighbours are joined: 1 and 1, 2 and 2, 4 and 4.
    word = digits << (U64(64) - U64(8) * count)
    word = (word * U64(10) + (word >> U64(8))) & PAIRS
    word = (word * U64(100) + (word >> U64(16))) & FOURS
    word = (word * U64(10_000) + (word >> U64(32))) & EIGHT
    return np.int64(word)


@njit(cache=True, nogil=True, inline="always")
def _short_digits(text, at):
    """Read up to 7 digits at `at` without a loop: their number and count; 8 or more: count -1.

    Loops over 1 to 7 digits end unpredictably, and each branch that the processor predicts wrongly
    costs more than this function. Requires ``at + 8 <= len(text)``, as `_load_digits` does.
    """
    digits = _load_digits(text, at)
    others = _others(digits)
    if others == U64(0):
        return np.int64(0), np.int64(-1)
    count = _lowest_byte(others)
    if count == U64(0):
        return np.int64(0), np.int64(0)
    return _number(digits, count), np.int64(count)


@njit(cache=True, nogil=True, inline="always")
def _short_pair(text, at):
    """Read digits, a colon, digits and a blank or newline that lie within 8 bytes, without a loop.

    The beginning of the next pair is known before the numbers of this one are, so that a processor
    computes the numbers of several pairs at once: nearly twice as fast. Returns the index, the
    position of the colon or -1 where nothing was read, the value, and its end or -1 where only the
    index was read.
    """
    if at + 8 > text.size:
        return np.int64(0), np.int64(-1), 0.0, np.int64(-1)
    digits = _load_digits(text, at)
    others = _others(digits)
    colon = _lowest_byte(others)
    if others == U64(0) or colon == U64(0) or _byte(digits, colon) != COLON_AS_DIGIT:
        return np.int64(0), np.int64(-1), 0.0, np.int64(-1)
    index = _number(digits, colon)
    others &= others - U64(1)
    end = _lowest_byte(others)
    after = _byte(digits, end)
    if (
        others == U64(0)
        or end == colon + U64(1)
        or (after != BLANK_AS_DIGIT and after != NEWLINE_AS_DIGIT)
    ):
        return index, np.int64(U64(at) + colon), 0.0, np.int64(-1)
    value = _number(digits >> (U64(8) * (colon + U64(1))), end - colon - U64(1))
    return index, np.int64(U64(at) + colon), np.float64(value), np.int64(U64(at) + end)


@njit(cache=True, nogil=True)
def _scan_digits(text, at):
    """Digits at `at`: their number, or one beyond int32, and where they end."""
    if at + 8 <= text.size:
        number, count = _short_digits(text, at)
        if count >= 0:
            return number, np.int64(at + count)
    number = np.int64(0)
    digit = np.int64(text[at]) - ZERO
    while 0 <= digit <= 9:
        if number <= INT32_MAX:
            number = number * 10 + digit
        at += 1
        digit = np.int64(text[at]) - ZERO
    return number, np.int64(at)


@njit(cache=True, nogil=True, inline="always")
def _short_number(text, at):
    """Read [-] digits [. digits] with up to 7 digits each: value and end; anything else: end -1."""
    if at + 24 > text.size:
        return 0.0, -1
    negative = text[at] == MINUS
    if negative:
        at += 1
    number, count = _short_digits(text, at)
    if count < 1:
        return 0.0, -1
    at += count
    value = np.float64(number)
    if text[at] == POINT:
        fraction, count = _short_digits(text, at + 1)
        if count < 1:
            return 0.0, -1
        at += 1 + count
        # At most 14 digits and a small power: exact operands, one rounding.
        value = (value * POWERS_OF_TEN[count] + fraction) / POWERS_OF_TEN[count]
    if not _ends_token(text[at]):
        return 0.0, -1
    return -value if negative else value, at


@njit(cache=True, nogil=True)
def _is_negative_index(text, at):
    """Whether the token at `at` is a minus sign, digits and a colon."""
    if text[at] != MINUS:
        return False
    _, end = _scan_digits(text, at + 1)
    return bool(end > at + 1 and text[end] == COLON)


@njit(cache=True, nogil=True)
def _scan_number(text, at, exact):
    """Read [sign] digits [. digits] [e [sign] digits] up to the end of the token.

    Returns the outcome, the value (as a pair of float64 if `exact`), and where the token ends.
    """
    negative = text[at] == MINUS
    if negative or text[at] == PLUS:
        at += 1
    start = at
    mantissa = np.int64(0)
    power = np.int64(0)
    truncated = False
    digit = np.int64(text[at]) - ZERO
    while 0 <= digit <= 9:
        if mantissa < MANTISSA_ROOM:
            mantissa = mantissa * 10 + digit
        else:
            truncated = True
            power += 1
        at += 1
        digit = np.int64(text[at]) - ZERO
    n_digits = at - start
    if text[at] == POINT:
        at += 1
        start = at
        digit = np.int64(text[at]) - ZERO
        while 0 <= digit <= 9:
            if mantissa < MANTISSA_ROOM:
                mantissa = mantissa * 10 + digit
                power -= 1
            else:
                truncated = True
            at += 1
            digit = np.int64(text[at]) - ZERO
        n_digits += at - start
    if n_digits == 0:
        word = _starts_with(text, at, b"nan", 32) or _starts_with(text, at, b"inf", 32)
        return NOT_FINITE if word else NOT_A_NUMBER, 0.0, at
    if text[at] == 101 or text[at] == 69:  # e, E
        exponent, end = _scan_exponent(text, at + 1)
        if end == at + 1:
            return NOT_A_NUMBER, 0.0, at
        power += exponent
        at = end
    if not _ends_token(text[at]):
        return NOT_A_NUMBER, 0.0, at

    kind, value = _scale_by_power(mantissa, power, truncated, exact)
    return kind, -value if negative else value, at


@njit(cache=True, nogil=True)
def _scan_exponent(text, at):
    """Signed digits at `at`: their number, clipped to +-10**9, and where they end (`at`: none)."""
    start = at
    negative = text[at] == MINUS
    if negative or text[at] == PLUS:
        at += 1
    exponent, end = _scan_digits(text, at)
    if end == at:
        return np.int64(0), np.int64(start)
    exponent = min(exponent, np.int64(10**9))
    return -exponent if negative else exponent, end


@njit(cache=True, nogil=True)
def _scale_by_power(mantissa, power, truncated, exact):
    """``mantissa * 10**power`` as (EXACT or APPROXIMATE, value); see the module's notes."""
    if mantissa == 0:
        return EXACT, 0.0
    if not truncated and mantissa <= EXACT_MANTISSA and -EXACT_POWER <= power <= EXACT_POWER:
        value = np.float64(mantissa)
        return EXACT, value / POWERS_OF_TEN[-power] if power < 0 else value * POWERS_OF_TEN[power]
    # A clamped value is as far beyond float32 as the true one, and does not serve as float64.
    clamped = min(max(power, -LARGEST_POWER), LARGEST_POWER)
    if not exact:
        value = np.float64(mantissa)
        value = value / POWERS_OF_TEN[-clamped] if clamped < 0 else value * POWERS_OF_TEN[clamped]
        return APPROXIMATE, value
    place = clamped + LARGEST_POWER
    # Both parts of the mantissa, of 33 and 30 bits, are exact.
    whole, part = _two_sum(np.float64((mantissa >> 30) << 30), np.float64(mantissa & (2**30 - 1)))
    high, low = _two_product(whole, POWERS_HIGH[place])
    low += whole * POWERS_LOW[place] + part * POWERS_HIGH[place]
    margin = high * (TRUNCATION_ERROR if truncated else PRODUCT_ERROR)
    decided = clamped == power and high + (low - margin) == high + (low + margin)
    return EXACT if decided else APPROXIMATE, high + low


@njit(cache=True, nogil=True)
def _two_sum(a, b):
    """``a + b`` exactly, as a rounded sum and the rest."""
    high = a + b
    back = high - a
    return high, (a - (high - back)) + (b - back)


@njit(cache=True, nogil=True)
def _two_product(a, b):
    """``a * b`` exactly, as a rounded product and the rest; sizes below 1e290."""
    high = a * b
    part = _SPLITTER * a
    a_high = part - (part - a)
    a_low = a - a_high
    part = _SPLITTER * b
    b_high = part - (part - b)
    b_low = b - b_high
    return high, ((a_high * b_high - high) + a_high * b_low + a_low * b_high) + a_low * b_low


@njit(cache=True, nogil=True)
def _rounds_to_one_float32(size):
    """Whether all numbers within RELATIVE_ERROR of `size` >= 0 have the same float32."""
    low = size * (1.0 - RELATIVE_ERROR)
    high = size * (1.0 + RELATIVE_ERROR)
    if high >= FLOAT32_OVERFLOW:
        return low >= FLOAT32_OVERFLOW
    return bool(np.float32(low) == np.float32(high))


@njit(cache=True, nogil=True)
def _find(positions, at):
    """Index of `at` in `positions`, or -1."""
    for k in range(positions.size):
        if positions[k] == at:
            return k
    return -1


@njit(cache=True, nogil=True)
def _sort_pairs(indices, values):
    """Sort both arrays by index, in place; heap sort, O(k log k) whatever the order."""
    n = indices.size
    top = n // 2
    while n > 1:
        if top > 0:  # the heap grows downwards
            top -= 1
        else:
            n -= 1
            _swap(indices, values, 0, n)
        root = top
        child = 2 * root + 1
        while child < n:
            if child + 1 < n and indices[child + 1] > indices[child]:
                child += 1
            if indices[root] >= indices[child]:
                break
            _swap(indices, values, root, child)
            root = child
            child = 2 * root + 1


@njit(cache=True, nogil=True)
def _swap(indices, values, i, j):
    indices[i], indices[j] = indices[j], indices[i]
    values[i], values[j] = values[j], values[i]


@njit(cache=True, nogil=True)
def _compact(indices, values, width_limit):
    """Remove zeros and wide columns, in place; returns how many are kept, how many too wide."""
    kept = 0
    dropped = 0
    for k in range(indices.size):
        if indices[k] >= width_limit:
            dropped += 1
        elif values[k] != 0:
            indices[kept] = indices[k]
            values[kept] = values[k]
            kept += 1
    return np.int64(kept), np.int64(dropped)
