"""LIBSVM text against a slow parser, numpy and scikit-learn."""

import io
import lzma
import re
from importlib import resources

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sklearn.datasets import load_svmlight_file

from ooc_fw.convert.readers import ParsedBlock
from ooc_fw.convert.text import TextBlock, iter_libsvm, parse_block
from ooc_fw.data.labels import is_label_number
from ooc_fw.data.rows import concat_rows
from ooc_fw.system.errors import InputError
from tests.conftest import libsvm_lines
from tests.support.contracts import small_table


def parse(text: str | bytes, **options: object) -> ParsedBlock:
    data = text.encode() if isinstance(text, str) else text
    if not data.endswith(b"\n"):
        data += b"\n"
    return parse_block(TextBlock("data.txt", data, 1), **options)


@pytest.mark.parametrize(
    ("line", "label", "row"),
    [
        ("+1 1:2 3:4", 1, [2, 0, 4]),
        ("-1", -1, []),
        ("0.5 2:-1.5", 0.5, [0, -1.5]),
        ("1 1:.5 2:5. 3:1e-3 4:+1 5:1E2 6:-2.5e+1", 1, [0.5, 5, 0.001, 1, 100, -25]),
        ("1 1:0 2:0.0 3:1 4:-0", 1, [0, 0, 1, 0]),
        ("1 3:3 1:1 2:2", 1, [1, 2, 3]),
        ("3 qid:7 1:1", 3, [1]),
        ("  1\t1:1   2:2  \r", 1, [1, 2]),
        ("1 1:1#2:2 # 3:x", 1, [1]),
        ("1e0 1:00012 02:1", 1, [12, 1]),
        ("1 1:1e-60 2:1", 1, [1e-60, 1]),
        ("-1 1:0.1234567 2:12345678 3:0.12345678", -1, [0.1234567, 12345678, 0.12345678]),
        ("1 2:1e-99 00000000000000000000001:3", 1, [3, 1e-99]),
    ],
)
def test_line(line, label, row):
    for padding in ("", "# some text behind, so that quick paths are open"):
        parsed = parse(f"{line}\n{padding}")
        assert parsed.labels.tolist() == [label]
        assert parsed.width == len(row)
        np.testing.assert_array_equal(parsed.rows.toarray(), np.array([row]))


def test_options_and_lines_that_are_no_rows():
    parsed = parse("\n  \r\n# text\n1 1:1\n\t\n2 2:2\n\n")
    assert parsed.labels.tolist() == [1, 2]
    assert parsed.rows.indptr.tolist() == [0, 1, 2]
    assert parse("1 0:5 2:6", zero_based=True).rows.toarray().tolist() == [[5, 0, 6]]
    parsed = parse("1 5:5 1:1\n1 4:0 2:2\n1 2:3", n_features=2)
    assert parsed.rows.toarray().tolist() == [[1, 0], [0, 2], [0, 3]]
    assert parsed.width == 5
    assert parse("1 2147483648:1").rows.indices.tolist() == [2**31 - 1]


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
@example("1.000000178813934326171875")
@example("7.006492321624085354618e-46")  # half the smallest float32
@example("7.006492321624085354619e-46")
@example("3.4028235677973364e38")  # just below overflow
@example("9007199254740993")
@example("0.00000000000000000000000000000000000012345678901234567890")
@example("123456789012345678901234567890")
@example("1e-400")
@example("0e999999999999")
@example("1600000000.0123456789")
@example("0.3000000000000000166533453693773481063544750213623046875")
def test_value_is_the_nearest_float64(token):
    for padding in ("", " # some text behind, so that quick paths are open"):
        value = parse(f"1 1:{token}{padding}", zero_based=True).rows.toarray()[0, 1]
        assert value.tobytes() == (np.float64(token) + 0.0).tobytes()


@given(token=st.one_of(decimals, floats).filter(is_label_number))
@example("0.1000000000000000055511151231257827")
@example("1e-320")
def test_label_is_the_nearest_float64(token):
    assert parse(token).labels.tolist() == [float(token)]


@given(st.permutations(range(1, 41)), st.integers(0, 40))
def test_pairs_are_sorted_by_column(columns, limit):
    parsed = parse("1 " + " ".join(f"{j}:{j}" for j in columns), n_features=limit)
    assert parsed.rows.indices.tolist() == list(range(limit))
    assert parsed.rows.data.tolist() == list(range(1, limit + 1))


cells = st.dictionaries(st.integers(1, 40), st.integers(-99, 99), max_size=8)
tables = st.lists(st.tuples(st.integers(-3, 3), cells), min_size=1, max_size=30)


def to_text(table, newline):
    return newline.join(
        " ".join([f"{label}", *(f"{j}:{value / 8}" for j, value in row.items())])
        for label, row in table
    )


@given(table=tables, newline=st.sampled_from(["\n", "\r\n", "\n\n", " # note\n"]))
@example([(1, {})], "\n")
def test_equals_the_table_and_scikit_learn(table, newline):
    expected = np.zeros((len(table), 40))
    for i, (_, row) in enumerate(table):
        expected[i, np.array([*row], int) - 1] = np.array([*row.values()]) / 8
    parsed = parse(to_text(table, newline))
    np.testing.assert_array_equal(parsed.labels, [label for label, _ in table])
    assert parsed.width == max(max(row, default=0) for _, row in table)
    np.testing.assert_array_equal(parsed.rows.toarray(), expected[:, : parsed.width])
    ordered = to_text([(label, dict(sorted(row.items()))) for label, row in table], newline)
    X, y = load_svmlight_file(io.BytesIO(ordered.encode()), zero_based=False, n_features=40)
    np.testing.assert_array_equal(y, parsed.labels)
    np.testing.assert_array_equal(X.toarray(), expected)


@pytest.mark.parametrize("block_bytes", [1, 100, 1 << 20])
def test_iter_libsvm_does_not_depend_on_the_block(tmp_path, monkeypatch, block_bytes):
    monkeypatch.setattr("ooc_fw.convert.readers.BLOCK_BYTES", block_bytes)
    path = tmp_path / "data.txt"
    X = small_table(40, 9)
    path.write_text(libsvm_lines(X, np.arange(40)))
    blocks = list(iter_libsvm(path))
    widths = [rows.n_features for _, rows in blocks]
    assert widths == sorted(widths)
    assert np.concatenate([labels for labels, _ in blocks]).tolist() == list(range(40))
    start = 0
    for _, rows in blocks:
        expected = X[start : start + len(rows), : rows.n_features]
        np.testing.assert_array_equal(rows.toarray(), expected)
        start += len(rows)
    path.write_text("\n\n# nothing")
    with pytest.raises(InputError, match=r"data\.txt holds no rows"):
        list(iter_libsvm(path))


NO_PAIRS = "1 :1 a:1 -3:1 0:1 2147483649:1 99999999999999999999:1"
NO_VALUES = "1: 1:x 1:1.2.3 1:1e 1:1e+ 1:- 1:. 1:1_0 1:0x1 1:i 1:nope 1:NaN 1:+infinity"
BEYOND = "1:3.5e38 1:-1e999 1:3.4028235677973366163753939545814256844e38"
MERGED = "9007199254740993 -9007199254740993.0 18446744073709551617"
BAD_LINES = {
    "x 1:1": r"label 'x' is not a finite number; a line is LABEL INDEX:VALUE",
    **{
        line: f"label '{line.split()[0]}' is not a finite number"
        for line in ("1:1 2:2", "1,2 1:1", "nan 1:1", "-INF", "1e999 1:1")
    },
    **{f"{label} 1:1": f"label '{label}' is a whole number too" for label in MERGED.split()},
    **{f"1 {token}": f"'{token}' is not INDEX:VALUE" for token in NO_PAIRS.split()},
    "1 1 :1": r"'1' is not INDEX:VALUE",
    "1 3:1 3:2": r"feature index 3 stands twice in one line",
    "1 3:0 1:1 3:2": r"feature index 3 stands twice in one line",
    **{f"1 {token}": f"of '{re.escape(token)}' is not a finite" for token in NO_VALUES.split()},
    "1 1: 2:1": r"the value of '1:' is not a finite number",
    **{f"1 {token}": f"the value of '{token[:20]}.* of float32" for token in BEYOND.split()},
    "1 1:" + "1" * 60 + "x": r"the value of '1:1{38}\.\.\.' is not a finite number",
    "1 1:\xff": r"'1:\\xc3\\xbf' is not a finite number",
}


@pytest.mark.parametrize("line", BAD_LINES)
@pytest.mark.parametrize("ending", ["", "\n1 2:2 3:3 4:4 5:5 6:6 7:7 8:8 9:9"])
def test_a_bad_line_is_named(line, ending):
    with pytest.raises(InputError, match=r"^data\.txt, line 3: .*" + BAD_LINES[line]):
        parse(f"1 1:1\n# comment\n{line}{ending}")


@pytest.mark.parametrize("value", ["-1", "-1.5", "-1.00000000001"])
def test_values_without_log1p(value):
    assert parse(f"1 1:{value}").rows.data == float(value)
    with pytest.raises(InputError, match=rf"line 1: the value of '1:{value}' .* no log1p"):
        parse(f"1 1:{value}", log1p=True)
    assert not parse(f"1 3:{value}", log1p=True, n_features=2).rows.data.size
    assert parse("1 1:-0.99", log1p=True).rows.data > -1


def test_samples_equal_scikit_learn(monkeypatch):
    monkeypatch.setattr("ooc_fw.convert.readers.BLOCK_BYTES", 10_000)
    samples = resources.files("ooc_fw.data") / "samples"
    for name, n_rows, n_features in (("a1a.xz", 1605, 119), ("a1a.t.xz", 4000, 122)):
        path = str(samples / name)
        with lzma.open(path) as file:
            X, y = load_svmlight_file(file, zero_based=False)
        blocks = list(iter_libsvm(path))
        rows = concat_rows([block for _, block in blocks])
        assert (len(rows), blocks[-1][1].n_features) == (n_rows, n_features)
        np.testing.assert_array_equal(np.concatenate([labels for labels, _ in blocks]), y)
        for part in ("data", "indices", "indptr"):
            np.testing.assert_array_equal(getattr(rows, part), getattr(X, part))
