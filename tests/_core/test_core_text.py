"""Ends of rows of CSV, against a regular expression for one row."""

import re

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from ooc_fw._core.text import BEGIN, QUOTED, Rules, parse_lines, scan_rows

CELL = r'(?:"(?:[^"]|"")*"(?:[^",\n][^,\n]*)?|[^",\n][^,\n]*|)'
ROW = re.compile(f"{CELL}(?:,{CELL})*\n")


def scan(parts):
    """Ends of rows in the whole of the parts, and rows that are not empty."""
    state, seen, ends = BEGIN, 0, []
    for part in parts:
        state, end, _ = scan_part(part, state)
        if end:
            ends.append(seen + end)
        seen += len(part)
    return ends, scan_part("".join(parts), BEGIN)[2], state


def scan_part(part, state):
    return scan_rows(np.frombuffer(part.encode(), dtype=np.uint8), ord(","), state)


@given(st.lists(st.text('",a\n\r', max_size=8), max_size=6))
@example(['1,"a\n', 'b"\n2'])
@example(['5" pipe\n1\n'])
def test_rows_end_where_a_regular_expression_ends_them(parts):
    text = "".join(parts)
    borders, rows, place = set(), 0, 0
    while found := ROW.match(text, place):
        rows += found.group().strip("\r\n") != ""
        place = found.end()
        borders.add(place)
    ends, n_rows, state = scan(parts)
    assert n_rows == rows
    assert set(ends) <= borders
    assert max(ends, default=0) == place
    assert (state == QUOTED) == (
        re.fullmatch(f'(?:{CELL},)*"(?:[^"]|"")*', text[place:]) is not None
    )


def test_parsers_return_plain_integers():
    """Python code would run to make others, and a signal that raises there ends the process."""
    text = np.frombuffer(b"1 2:3\n", dtype=np.uint8)
    labels, indptr, indices = np.empty(2), np.zeros(3, np.int64), np.empty(3, dtype=np.int32)
    place = parse_lines(text, Rules(), (0, 0, 0, 0, 0), labels, indptr, indices, np.empty(3))
    assert (type(place), place) == (tuple, (6, 1, 1, 2, 0))
    assert type(scan_part("a,b\n", BEGIN)) is tuple
