import csv
import lzma
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_fw import FrankWolfeSVC, InputError, load_model, open_dataset
from ooc_fw.cli.predict import in_order
from ooc_fw.model.applying import AppliedRows

BOTH = ("--decision", "--probability")


def numbers(text):
    return np.array([line.split() for line in text.splitlines()], dtype=float).squeeze()


def read_csv(path):
    with open(path, encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    return header, list(zip(*rows, strict=True))


# -- the order of the rows -------------------------------------------------------------------------


def blocks_of(ids, values, cuts, n_rows):
    for part in np.split(np.arange(len(ids)), cuts):
        if len(part):
            yield AppliedRows(values[part], None, ids[part], n_rows)


@given(st.data())
def test_any_order_becomes_that_of_the_rows(data):
    n = data.draw(st.integers(1, 60))
    first = data.draw(st.integers(0, n))  # rows that come in order
    rest = data.draw(st.permutations(range(first, n)))
    cuts = sorted(data.draw(st.lists(st.integers(0, n), max_size=5)))
    width = data.draw(st.sampled_from([1, 3]))
    step = data.draw(st.sampled_from([1, 3]))  # the rows may be a part of the input
    ids = np.array([*range(first), *rest], dtype=np.int64)
    expected = np.random.default_rng(0).normal(size=(n, width))
    blocks = blocks_of(step * ids, expected[ids], cuts, n)
    rows, found = zip(*in_order(blocks, "data"), strict=True)
    np.testing.assert_array_equal(np.concatenate(found), expected)
    assert np.concatenate(rows).tolist() == [*range(0, step * n, step)]


@pytest.mark.parametrize("ids", [[1, 1, 0], [2, 1, -1], [2, 1]])
def test_wrong_row_numbers_are_refused(ids):
    ids = np.array(ids)
    with pytest.raises(InputError, match=r"d\.h5 do not name each of its rows once"):
        list(in_order(blocks_of(ids, np.zeros((len(ids), 1)), [], 3), "d.h5"))


@pytest.fixture
def expected(model_file, data_file):
    """Decision values in the order of the text, found without the command."""
    with h5py.File(data_file) as file:
        row = file["row"][...]
    assert not np.array_equal(row, np.arange(len(row))), "the file must be shuffled"
    values = np.empty(len(row))
    values[row] = load_model(model_file).decision_function(open_dataset(str(data_file)))
    return values


# -- text ------------------------------------------------------------------------------------------


def test_text_gives_the_same(ooc_fw, here, expected, table, monkeypatch):
    plain = ooc_fw("predict", "m.h5", "d.txt", "--decision").out
    np.testing.assert_allclose(numbers(plain), expected, rtol=1e-5, atol=1e-6)
    Path("d.xz").write_bytes(lzma.compress(Path("d.txt").read_bytes()))
    assert ooc_fw("predict", "m.h5", "d.xz", "--decision").out == plain
    with open("d.txt") as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        assert ooc_fw("predict", "m.h5", "-", "--decision").out == plain
    assert (numbers(ooc_fw("predict", "m.h5", "d.txt").out) == table.y).mean() > 0.8


@pytest.mark.parametrize(("model", "name"), [("m.h5", "d.txt"), ("people.model.h5", "people.csv")])
def test_a_row_from_a_slow_pipe_has_its_answer_before_the_next_one(
    ooc_fw, here, program, model, name
):
    lines = Path(name).read_text(encoding="utf-8").splitlines()
    begin = "" if name == "d.txt" else f"{lines.pop(0)}\n"
    expected = ooc_fw("predict", model, name).done().out.splitlines()
    process = program("predict", model, "-", stdin=subprocess.PIPE, encoding="utf-8")
    with ThreadPoolExecutor(1) as pool, process.stdin as pipe:
        for text in (begin[:3], begin[3:]):
            pipe.write(text)
            pipe.flush()
        for line, label in zip(lines[:3], expected, strict=False):
            pipe.write(f"{line}\n")
            pipe.flush()
            answer = pool.submit(process.stdout.readline)
            with suppress(TimeoutError):
                answer.exception(timeout=60)
            if not answer.done():
                pipe.close()  # else the wait for an answer would never end
            assert answer.result() == f"{label}\n"
    assert process.wait() == 0


def test_text_wider_narrower_and_counted_from_zero(ooc_fw, here):
    found = []
    for text, note, *options in (
        ("3 1:0.5\n3 2:1\n", ""),
        ("3 1:0.5 9:1\n3 2:1 70:5\n", "dropped: 66 features beyond 4\n"),
        ("3 0:0.5\n3 1:1 3:0\n", "", "--zero-based"),
    ):
        Path("t.txt").write_text(text)
        outcome = ooc_fw("predict", "m.h5", "t.txt", "--decision", *options)
        assert (outcome.status, outcome.err) == (0, note)
        found.append(outcome.out)
    assert found[0] == found[1] == found[2]


def test_wide_text_is_decided_in_parts(ooc_fw, here):
    """Each part, of some hundred rows, keeps its rows and their labels together."""
    first, *lines = Path("d.txt").read_text().splitlines()
    Path("wide.txt").write_text("\n".join([f"{first} 9000:1", *lines * 3, ""]))
    ooc_fw("convert", "wide.txt", "wide.h5", "--no-shuffle").done()
    ooc_fw("train", "wide.h5", "-o", "new.h5").done()
    values, accuracies = [], []
    for name in ("wide.txt", "wide.h5"):
        values.append(numbers(ooc_fw("predict", "new.h5", name, "--decision").out))
        accuracies.append(ooc_fw("evaluate", "new.h5", name, "--json").json()["accuracy"])
    np.testing.assert_allclose(*values, rtol=1e-5, atol=1e-6)
    assert accuracies[0] == accuracies[1] > 0.85


# -- lines and columns -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["new.txt", "new.csv"])
def test_a_row_too_large_for_float32_has_no_label_and_the_others_have(ooc_fw, here, table, name):
    expected = ooc_fw("predict", "m.h5", "X.npy").done().out.splitlines()
    X = table.X.copy()
    X[7] = 1e25
    np.save("X.npy", X)
    outcome = ooc_fw("predict", "m.h5", "X.npy", "-o", name)
    assert outcome.status == 1
    assert "row 7 of X.npy is too large" in outcome.err
    words = read_csv(name)[1][1] if name == "new.csv" else Path(name).read_text().split("\n")[:-1]
    assert words[7] == ""
    assert [*words[:7], *words[8:]] == expected[:7] + expected[8:]


def test_lines_and_columns_agree(ooc_fw, here):
    predict = "predict", "sure.h5", "d.h5"
    assert ooc_fw(*predict, "-o", "new.csv", *BOTH) == (0, "", "")
    labels = ooc_fw(*predict).out.splitlines()
    decision = numbers(ooc_fw(*predict, "--decision").out)
    probability = numbers(ooc_fw(*predict, "--probability").out)
    assert np.array_equal(probability, load_model("sure.h5").probabilities(decision))
    both = numbers(ooc_fw(*predict, *BOTH).out)
    assert np.array_equal(both, np.column_stack([decision, probability]))
    header, columns = read_csv("new.csv")
    assert header == ["row", "label", "decision", "p_-7", "p_3"]
    assert columns[0] == tuple(map(str, range(200)))
    assert list(columns[1]) == labels
    assert np.array_equal(np.array(columns[2:], dtype=float).T, both)


@pytest.mark.parametrize(
    ("name", "options", "decisions", "chances"),
    [
        ("three.h5", BOTH, ["a,b_blå", "a,b_c", "blå_c"], ["p_a,b", "p_blå", "p_c"]),
        ("three-marks.h5", ["--decision"], ["a,b", "blå", "c"], []),
    ],
)
def test_columns_of_classes_that_are_words(ooc_fw, here, name, options, decisions, chances):
    """A decision value for each pair of classes, or from landmarks for each class."""
    model = load_model(name)
    assert ooc_fw("predict", name, "X.npy", "-o", "new.csv", *options) == (0, "", "")
    header, columns = read_csv("new.csv")
    assert header == ["row", "label", *(f"decision_{each}" for each in decisions), *chances]
    values = model.decision_function("X.npy")
    assert list(columns[1]) == model.classes[model.class_places(values)].tolist()
    expected = [values, model.probabilities(values)] if chances else [values]
    assert np.array_equal(np.array(columns[2:], dtype=float).T, np.hstack(expected))


def test_a_carriage_return_in_a_label_is_no_end_of_a_row(ooc_fw, here):
    X = np.repeat(np.eye(2), 20, axis=0)
    y = np.repeat(["a\rb", "c"], 20)
    FrankWolfeSVC().fit(X, y).save("words.model.h5")
    np.save("words.npy", X)
    for _ in range(2):
        ooc_fw("predict", "words.model.h5", "words.npy", "-o", "words.csv").done()
        assert read_csv("words.csv")[1][1] == (*y.tolist(),)
