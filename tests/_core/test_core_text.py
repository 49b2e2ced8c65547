"""Ends of rows of CSV, against a regular expression for one row."""

import re

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from ooc_fw._core.text import BEGIN, QUOTED, Rules, parse_lines, scan_rows

CELL = r'(?:"(?:[^"]|"")*"(?:[^",\n][^,\n]*)?|[^",\n][^,\n]*|)'
ROW = re.compile(f"{CELL}(?:,{CELL})*\n")
OPEN_QUOTE = re.compile(f'(?:{CELL},)*"(?:[^"]|"")*')


def scan(text, state=BEGIN):
    return scan_rows(np.frombuffer(text.encode(), dtype=np.uint8), ord(","), state)


@given(st.lists(st.text('",a\n\r', max_size=8), max_size=6))
@example(['1,"a\n', 'b"\n2'])
@example(['5" pipe\n1\n'])
def test_rows_end_where_a_regular_expression_ends_them(parts):
    """The text comes in parts, and the state of one goes to the next."""
    text = "".join(parts)
    borders, place = {0}, 0
    while found := ROW.match(text, place):
        place = found.end()
        borders.add(place)
    state, seen, ends = BEGIN, 0, {0}
    for part in parts:
        state, end = scan(part, state)
        ends.add(seen + end if end else 0)
        seen += len(part)
    assert ends <= borders
    assert max(ends) == place
    assert (state == QUOTED) == (OPEN_QUOTE.fullmatch(text[place:]) is not None)


def test_parsers_return_plain_integers():
    """Python code would run to make others, and a signal that raises there ends the process."""
    text = np.frombuffer(b"1 2:3\n", dtype=np.uint8)
    labels, indptr, indices = np.empty(2), np.zeros(3, np.int64), np.empty(3, dtype=np.int32)
    place = parse_lines(text, Rules(), (0, 0, 0, 0), labels, indptr, indices, np.empty(3))
    assert (type(place), place) == (tuple, (6, 1, 1, 2))
    assert type(scan("a,b\n")) is tuple
