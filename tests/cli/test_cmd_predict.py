import csv
import lzma
import subprocess
import sys

import h5py
import numpy as np
import pytest

from ooc_fw import open_dataset
from ooc_fw.cli.main import main
from ooc_fw.model.record import load_model
from tests.support.files import write_dense


def numbers(text):
    return np.array(
        [[float(word) for word in line.split()] for line in text.splitlines()]
    ).squeeze()


BOTH = ("--decision", "--probability")


def read_csv(path):
    with open(path, encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    return header, list(zip(*rows, strict=True))


@pytest.fixture
def expected(model_file, data_file):
    """Decision values in the order of the text, found without the command."""
    with h5py.File(data_file) as file:
        row = file["row"][...]
    assert not np.array_equal(row, np.arange(len(row))), "the file must be shuffled"
    values = np.empty(len(row))
    values[row] = load_model(model_file).decision_function(open_dataset(str(data_file)))
    return values


def test_results_come_in_the_order_of_the_users_rows(
    ooc_fw, model_file, data_file, expected, table, tmp_path
):
    outcome = ooc_fw("predict", model_file, data_file, "--decision")
    assert (outcome.status, outcome.err) == (0, "")
    assert np.array_equal(numbers(outcome.out), expected)
    lines = ooc_fw("predict", model_file, data_file).out.splitlines()
    assert lines == ["3" if value > 0 else "-7" for value in expected]
    np.save(tmp_path / "X.npy", table.X)
    outcome = ooc_fw("predict", model_file, tmp_path / "X.npy", "--decision")
    assert np.array_equal(numbers(outcome.out), load_model(model_file).decision_function(table.X))


def test_text_gives_the_same(ooc_fw, model_file, text_file, expected, table, tmp_path, monkeypatch):
    plain = ooc_fw("predict", model_file, text_file, "--decision").out
    np.testing.assert_allclose(numbers(plain), expected, rtol=1e-5, atol=1e-6)
    (tmp_path / "t.xz").write_bytes(lzma.compress(text_file.read_bytes()))
    assert ooc_fw("predict", model_file, tmp_path / "t.xz", "--decision").out == plain
    with open(text_file) as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        assert ooc_fw("predict", model_file, "-", "--decision").out == plain
    assert (numbers(ooc_fw("predict", model_file, text_file).out) == table.y).mean() > 0.8


@pytest.mark.parametrize("suffix", ["txt", "csv"])
def test_a_row_too_large_for_float32_has_no_label_and_the_others_have(
    ooc_fw, model_file, table, tmp_path, suffix
):
    X = table.X[:20].copy()
    np.save(tmp_path / "X.npy", X)
    expected = ooc_fw("predict", model_file, tmp_path / "X.npy").done().out.splitlines()
    X[7] = 1e25
    np.save(tmp_path / "X.npy", X)
    path = tmp_path / f"p.{suffix}"
    outcome = ooc_fw("predict", model_file, tmp_path / "X.npy", "-o", path)
    assert outcome.status == 1
    assert f"row 7 of {tmp_path / 'X.npy'} is too large" in outcome.err
    words = read_csv(path)[1][1] if suffix == "csv" else path.read_text().split("\n")[:-1]
    assert words[7] == ""
    assert [*words[:7], *words[8:]] == expected[:7] + expected[8:]


def test_output_file_is_replaced(ooc_fw, model_file, data_file, tmp_path):
    out = tmp_path / "out"
    out.write_text("old")
    outcome = ooc_fw("predict", model_file, data_file, "-o", out, "--json")
    result = outcome.json()
    assert (result["output"], result["n_rows"]) == (str(out), 200)
    assert len(out.read_text().splitlines()) == 200
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_text_wider_narrower_and_counted_from_zero(ooc_fw, model_file, tmp_path):
    found = []
    for text, note, *options in (
        ("3 1:0.5\n3 2:1\n", ""),
        ("3 1:0.5 9:1\n3 2:1 70:5\n", "dropped: 66 features beyond 4\n"),
        ("3 0:0.5\n3 1:1 3:0\n", "", "--zero-based"),
    ):
        (tmp_path / "t.txt").write_text(text)
        outcome = ooc_fw("predict", model_file, tmp_path / "t.txt", "--decision", *options)
        assert (outcome.status, outcome.err) == (0, note)
        found.append(outcome.out)
    assert found[0] == found[1] == found[2]


def test_lines_and_table_agree(ooc_fw, sure_model, data_file, tmp_path):
    command = ("predict", sure_model, data_file)
    assert ooc_fw(*command, "-o", tmp_path / "t.csv", *BOTH) == (0, "", "")
    labels = ooc_fw(*command).out.splitlines()
    decision = numbers(ooc_fw(*command, "--decision").out)
    probability = numbers(ooc_fw(*command, "--probability").out)
    assert np.array_equal(probability, load_model(sure_model).probabilities(decision))
    both = numbers(ooc_fw(*command, *BOTH).out)
    assert np.array_equal(both, np.column_stack([decision, probability]))
    header, columns = read_csv(tmp_path / "t.csv")
    assert header == ["row", "label", "decision", "p_-7", "p_3"]
    assert columns[0] == tuple(map(str, range(200)))
    assert list(columns[1]) == labels
    assert np.array_equal(np.array(columns[2:], dtype=float).T, both)


def test_table_of_words(ooc_fw, tmp_path):
    """Three classes that are words, one of them awkward."""
    rng = np.random.default_rng(0)
    codes = rng.integers(3, size=90)
    X = np.array([[0, 0], [2, 0], [0, 2]])[codes] + rng.normal(size=(90, 2))
    data, path = tmp_path / "X.npy", tmp_path / "model.h5"
    np.save(data, X.astype(np.float32))
    np.save(tmp_path / "y.npy", np.array(["a,b", "blå", "c"])[codes])
    train = "train", data, "--labels", tmp_path / "y.npy", "--probability", "--quiet"
    ooc_fw(*train, "-o", path).done()
    model = load_model(path)
    values = model.decision_function(np.load(data))
    assert ooc_fw("predict", path, data, "-o", tmp_path / "t.csv", *BOTH) == (0, "", "")
    header, columns = read_csv(tmp_path / "t.csv")
    pairs = ["decision_a,b_blå", "decision_a,b_c", "decision_blå_c"]
    assert header == ["row", "label", *pairs, "p_a,b", "p_blå", "p_c"]
    assert list(columns[1]) == model.classes[model.class_places(values)].tolist()
    found = np.array(columns[2:], dtype=float).T
    assert np.array_equal(found, np.hstack([values, model.probabilities(values)]))


def test_text_of_several_blocks(ooc_fw, model_file, table, write_text, tmp_path):
    """Wide text is scaled and decided in parts; labels are left behind."""
    text = write_text(np.tile(table.X, (60, 1)), np.tile(table.y, 60))
    ooc_fw("predict", model_file, text, "-o", tmp_path / "t.csv", "--decision").done()
    single = numbers(ooc_fw("predict", model_file, write_text(*table), "--decision").out)
    _, columns = read_csv(tmp_path / "t.csv")
    assert columns[0] == tuple(map(str, range(12_000)))
    found = np.array(columns[2], dtype=float)
    np.testing.assert_allclose(found, np.tile(single, 60), rtol=1e-6, atol=1e-7)


@pytest.mark.process
def test_peak_of_the_process_is_a_few_bytes_for_each_row(tmp_path):
    """8 of a result and one of its place; the rows have 16."""
    rng = np.random.default_rng(0)
    data, model = tmp_path / "data.h5", tmp_path / "model.h5"
    few = rng.random((60, 4), dtype=np.float32)
    write_dense(data, few, np.where(few[:, 0] > 0.5, 1.0, -1.0))
    assert main(["train", str(data), "-o", str(model), "--quiet"]) == 0
    peaks = []
    for n_rows in (1_500_000, 5_000_000):
        write_dense(data, rng.random((n_rows, 4), dtype=np.float32), np.ones(n_rows))
        code = (
            "import sys; from ooc_fw.cli.main import main; assert main(sys.argv[1:]) == 0\n"
            "from ooc_fw.system.memory import peak_rss_bytes; print(peak_rss_bytes())"
        )
        command = [sys.executable, "-c", code, "predict", model, data, "-o", tmp_path / "out"]
        peaks.append(int(subprocess.check_output(command)))
    assert peaks[1] - peaks[0] < 9 * 3_500_000 + 30e6


def test_landmark_model_has_a_decision_value_for_each_class(ooc_fw, landmark_model, tmp_path):
    data, path = landmark_model
    model = load_model(path)
    with h5py.File(data) as file:
        X = file["X"][...]
    values = model.decision_function(X).reshape(len(X), -1)
    ooc_fw("predict", path, data, "--decision", "-o", tmp_path / "p.csv").done()
    header, columns = read_csv(tmp_path / "p.csv")
    names = ["decision"] if len(model.classes) == 2 else ["decision_5", "decision_6", "decision_7"]
    assert header == ["row", "label", *names]
    found = np.array(columns, dtype=float).T
    np.testing.assert_array_equal(found[:, 2:], values)
    places = values.argmax(axis=1) if len(names) > 1 else (values[:, 0] > 0).astype(int)
    np.testing.assert_array_equal(found[:, 1], model.classes[places])
