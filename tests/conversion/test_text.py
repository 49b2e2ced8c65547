"""Lines of LIBSVM text, against a slow parser and numpy."""

import bz2
import gzip
import lzma
import re

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ooc_fw.conversion import readers
from ooc_fw.conversion.text import TextBlock, TextInput, parse_block
from ooc_fw.data.labels import LARGEST_LABEL
from ooc_fw.system.errors import InputError


def test_a_line_without_an_end_is_refused(tmp_path, monkeypatch):
    """A file that unpacks to any number of bytes takes no more memory than one row may."""
    monkeypatch.setattr(readers, "MAX_ROW_BYTES", 3 << 20)
    monkeypatch.setattr(readers, "BLOCK_BYTES", 1 << 20)
    path = tmp_path / "data.txt"
    path.write_bytes(gzip.compress(b"1 1:1\n" + b"7" * (9 << 20)))
    with TextInput(path) as text, pytest.raises(InputError, match=r"data\.txt, line 2: .* 3 MiB"):
        list(text.blocks())
    assert text.text_bytes < 6 << 20


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
@pytest.mark.parametrize("n_bytes", [10, 5000, 3 << 20])
def test_all_members_of_a_compressed_file_are_read(tmp_path, pack, n_bytes):
    """Zeros between the streams of xz, and between members of gzip, are allowed."""
    path = tmp_path / "data.txt"
    text = b"1 1:1\n" * (n_bytes // 6)
    between = b"" if pack is bz2.compress else bytes(4)
    path.write_bytes(between.join([pack(text), pack(b"2 2:1\n"), pack(b""), pack(text)]) + between)
    with TextInput(path) as opened:
        assert b"".join(block.text for block in opened.blocks()) == text + b"2 2:1\n" + text


def parse(text, **options):
    return parse_block(TextBlock("data.txt", f"{text}\n".encode(), 1), **options)


@pytest.mark.parametrize(
    ("line", "label", "row"),
    [
        ("0.5", 0.5, []),
        ("1e0 1:.5 2:5. 03:1e-3", 1, [0.5, 5, 0.001]),
        ("1 1:0 2:0.0 3:1 4:-0", 1, [0, 0, 1, 0]),
        ("3 qid:7 1:1", 3, [1]),
        ("  1\t1:1   2:2  \r", 1, [1, 2]),
        ("1 1:1#2:2 # 3:x", 1, [1]),
        ("1 2:1e-99 00000000000000000000001:3", 1, [3, 1e-99]),
    ],
)
def test_line(line, label, row):
    for padding in ("", "# some text behind, so that quick paths are open"):
        parsed = parse(f"{line}\n{padding}")
        assert parsed.labels.tolist() == [label]
        assert parsed.width == len(row)
        np.testing.assert_array_equal(parsed.rows.toarray(), np.array([row]))


decimals = st.builds(
    lambda sign, whole, fraction, exponent: sign + whole + fraction + exponent,
    st.sampled_from(["", "-", "+"]),
    st.text("0123456789", min_size=1, max_size=25),
    st.one_of(st.just(""), st.text("0123456789", max_size=25).map(lambda digits: "." + digits)),
    st.one_of(st.just(""), st.integers(-60, 12).map(lambda power: f"e{power}")),
)
floats = st.floats(width=64, min_value=-3.4e38, max_value=3.4e38).map(repr)
# Midpoints between float32 neighbours and their neighbours in the last of many digits.
midpoints = st.tuples(st.integers(1, 2**24 - 1), st.sampled_from(["", "1", "0001", "e0"])).map(
    lambda parts: f"{np.float64(parts[0]) + 0.5:.30f}".rstrip("0") + parts[1]
)


@given(token=st.one_of(decimals, floats, midpoints))
@example("1.000000059604644775390625")  # half way between two float32: to even
@example("1.0000000596046447753906250000000000000001")
@example("7.006492321624085354618e-46")  # half the smallest float32
@example("3.4028235677973364e38")  # just below overflow
@example("9007199254740993")
@example("1e-400")
@example("0e999999999999")
def test_values_and_labels_are_the_nearest_float64(token):
    for padding in ("", " # some text behind, so that quick paths are open"):
        value = parse(f"1 1:{token}{padding}", zero_based=True).rows.toarray()[0, 1]
        assert value.tobytes() == (np.float64(token) + 0.0).tobytes()
    if abs(float(token)) < LARGEST_LABEL:
        assert parse(token).labels.tolist() == [float(token)]


cells = st.dictionaries(st.integers(1, 40), st.integers(-99, 99), max_size=8)
rows_of_text = st.lists(st.tuples(st.integers(-3, 3), cells), min_size=1, max_size=30)


@given(
    rows=rows_of_text,
    newline=st.sampled_from(["\n", "\r\n", " \n# text\n\n"]),
    zero_based=st.booleans(),
    limit=st.none() | st.integers(1, 40),
)
def test_a_block_equals_a_slow_parser(rows, newline, zero_based, limit):
    """With pairs in any order, comments and empty lines, and columns beyond a limit."""
    lines = [
        " ".join([str(label), *(f"{j - zero_based}:{value}" for j, value in pairs.items())])
        for label, pairs in rows
    ]
    parsed = parse(newline.join(lines), zero_based=zero_based, n_features=limit)
    dense = np.zeros((len(rows), 41), np.float64)
    for row, (_, pairs) in zip(dense, rows, strict=True):
        for column, value in pairs.items():
            row[column] = value
    width = max([0, *(column for _, pairs in rows for column in pairs)])
    kept = width if limit is None else limit
    assert parsed.labels.tolist() == [label for label, _ in rows]
    assert parsed.width == width
    found = parsed.rows.toarray()
    assert found.shape[1] <= kept
    np.testing.assert_array_equal(found, dense[:, 1 : 1 + found.shape[1]])
    assert not dense[:, 1 + found.shape[1] : 1 + kept].any()
    for start, stop in zip(parsed.rows.indptr[:-1], parsed.rows.indptr[1:], strict=True):
        assert (np.diff(parsed.rows.indices[start:stop]) > 0).all()


NO_PAIRS = "1 :1 a:1 0:1 2147483649:1 99999999999999999999:1"
NO_VALUES = "1: 1:x 1:1.2.3 1:1e 1:1e+ 1:- 1:. 1:1_0 1:0x1 1:nope 1:NaN 1:+infinity"
BEYOND = "1:3.5e38 1:-1e999 1:3.4028235677973366163953739545814256844e38"
BAD_LINES = {
    **{f"{label} 1:1": "is not a finite number; a line" for label in ("1:1", "1,2", "nan", "-INF")},
    "9007199254740993 1:1": "label '9007199254740993' is a whole number too",
    **{f"1 {token}": f"'{token}' is not INDEX:VALUE" for token in NO_PAIRS.split()},
    "1 3:0 1:1 3:2": "feature index 3 stands twice in one line",
    **{f"1 {token}": f"of '{re.escape(token)}' is not a finite" for token in NO_VALUES.split()},
    **{f"1 {token}": f"the value of '{token[:20]}.* of float32" for token in BEYOND.split()},
    "1 1:\xff": r"'1:\\xc3\\xbf' is not a finite number",
}


@pytest.mark.parametrize("line", BAD_LINES)
def test_a_bad_line_is_named(line):
    """At the end of the text, where the quick path is closed, and in the middle."""
    for ending in ("", "\n1 2:2 3:3 4:4 5:5 6:6 7:7 8:8 9:9"):
        with pytest.raises(InputError, match=r"^data\.txt, line 3: .*" + BAD_LINES[line]):
            parse(f"1 1:1\n# comment\n{line}{ending}")
