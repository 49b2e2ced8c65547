from __future__ import annotations

import lzma
import sys

import h5py
import numpy as np
import pytest

from ooc_fw.cli.common import format_label
from ooc_fw.model import load_model


@pytest.fixture
def expected(model_file, data_file):
    """Decision values in the order of the text, found without the command."""
    with h5py.File(data_file) as file:
        stored, row = file["X"][...], file["row"][...]
    assert not np.array_equal(row, np.arange(len(row))), "the file must be shuffled"
    values = np.empty(len(row))
    values[row] = load_model(model_file).decision_function(stored)
    return values


def numbers(text):
    return np.array([float(line) for line in text.splitlines()])


def test_decision_values_come_in_the_order_of_the_users_rows(
    ooc_fw, model_file, data_file, expected
):
    outcome = ooc_fw("predict", model_file, data_file, "--decision")
    assert (outcome.status, outcome.err) == (0, "")
    assert np.array_equal(numbers(outcome.out), expected)


def test_text_gives_the_same_as_its_converted_file(ooc_fw, model_file, text_file, expected):
    outcome = ooc_fw("predict", model_file, text_file, "--decision")
    np.testing.assert_allclose(numbers(outcome.out), expected, rtol=1e-5, atol=1e-6)


def test_labels_are_written_as_the_user_wrote_them(ooc_fw, model_file, data_file, expected):
    lines = ooc_fw("predict", model_file, data_file).out.splitlines()
    assert lines == ["3" if value > 0 else "-7" for value in expected]


def test_most_training_rows_are_predicted_right(ooc_fw, model_file, text_file, table):
    predicted = numbers(ooc_fw("predict", model_file, text_file).out)
    assert (predicted == table.y).mean() > 0.8


def test_output_file_is_replaced(ooc_fw, model_file, data_file, tmp_path):
    (tmp_path / "out").write_text("old")
    outcome = ooc_fw("predict", model_file, data_file, "-o", tmp_path / "out")
    assert outcome == (0, "", "")
    assert len((tmp_path / "out").read_text().splitlines()) == 200
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_compressed_text(ooc_fw, model_file, text_file, tmp_path):
    (tmp_path / "t.xz").write_bytes(lzma.compress(text_file.read_bytes()))
    plain = ooc_fw("predict", model_file, text_file, "--decision").out
    assert ooc_fw("predict", model_file, tmp_path / "t.xz", "--decision").out == plain


def test_text_on_standard_input(ooc_fw, model_file, text_file, monkeypatch):
    plain = ooc_fw("predict", model_file, text_file, "--decision").out
    with open(text_file) as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        assert ooc_fw("predict", model_file, "-", "--decision").out == plain


def test_text_wider_and_narrower_than_the_training_data(ooc_fw, model_file, tmp_path):
    (tmp_path / "a.txt").write_text("3 1:0.5\n3 2:1 4:2\n")
    (tmp_path / "b.txt").write_text("3 1:0.5 9:1\n3 2:1 4:2 70:5\n")
    narrow, wide = (
        ooc_fw("predict", model_file, tmp_path / name, "--decision") for name in ("a.txt", "b.txt")
    )
    assert narrow.status == 0
    assert narrow.out == wide.out


def test_text_that_counts_from_zero(ooc_fw, model_file, tmp_path):
    (tmp_path / "one.txt").write_text("3 1:0.5 4:2\n")
    (tmp_path / "zero.txt").write_text("3 0:0.5 3:2\n")
    expected = ooc_fw("predict", model_file, tmp_path / "one.txt", "--decision").out
    outcome = ooc_fw("predict", model_file, tmp_path / "zero.txt", "--decision", "--zero-based")
    assert outcome.out == expected


def test_array_without_labels(ooc_fw, model_file, table, tmp_path):
    np.save(tmp_path / "X.npy", table.X)
    outcome = ooc_fw("predict", model_file, tmp_path / "X.npy", "--decision")
    assert np.array_equal(numbers(outcome.out), load_model(model_file).decision_function(table.X))


def test_file_scaled_otherwise_is_refused(ooc_fw, model_file, text_file, tmp_path):
    ooc_fw("convert", text_file, tmp_path / "d.h5", "--scale", "maxabs")
    outcome = ooc_fw("predict", model_file, tmp_path / "d.h5")
    outcome.assert_refused("d.h5", "maxabs", "minmax", "--like")


def test_wrong_number_of_features(ooc_fw, model_file, tmp_path):
    np.save(tmp_path / "X.npy", np.ones((2, 9), dtype=np.float32))
    outcome = ooc_fw("predict", model_file, tmp_path / "X.npy")
    outcome.assert_refused("X.npy has 9 features but the model was trained on 4")


@pytest.mark.parametrize("model", ["none.h5", "text.h5", "cut.h5", "data.h5"])
def test_unusable_model(ooc_fw, model, model_file, data_file, text_file, tmp_path):
    (tmp_path / "text.h5").write_bytes(text_file.read_bytes())
    (tmp_path / "cut.h5").write_bytes(model_file.read_bytes()[:-100])
    (tmp_path / "data.h5").write_bytes(data_file.read_bytes())
    ooc_fw("predict", tmp_path / model, data_file).assert_refused(model, "ooc-fw train")


def test_output_does_not_replace_the_model(ooc_fw, model_file, data_file):
    outcome = ooc_fw("predict", model_file, data_file, "-o", model_file)
    outcome.assert_refused(f"would replace the input {model_file}")


def test_bad_text_leaves_no_output(ooc_fw, model_file, tmp_path):
    (tmp_path / "bad.txt").write_text("3 1:0.5\n3 2:x\n")
    outcome = ooc_fw("predict", model_file, tmp_path / "bad.txt", "-o", tmp_path / "out")
    outcome.assert_refused("bad.txt")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.0, "1"), (-1.0, "-1"), (0.0, "0"), (2.5, "2.5"), (1e300, "1e+300"), (0.1, "0.1")],
)
def test_format_label(value, text):
    assert format_label(value) == text
