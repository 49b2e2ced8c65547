from __future__ import annotations

import argparse
import io
import os
import sys

import h5py
import pytest

from ooc_fw.cli import convert
from ooc_fw.system.errors import InputError


def run(*arguments: object) -> int:
    parser = argparse.ArgumentParser()
    convert.add_parser(parser.add_subparsers())
    return convert.run(parser.parse_args(["convert", *map(str, arguments)]))


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "train.txt"
    path.write_text("+1 1:1 2:4\n-1 1:2 3:0.5\n+1 1:3 2:2\n")
    return path


def test_convert_reports_on_stderr(text, tmp_path, capsys):
    out = tmp_path / "train.h5"
    assert run(text, out, "--scale", "minmax", "--log1p", "--seed", 7, "--dense") == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert lines[:3] == [
        f"{out}: 3 rows, 3 features, dense (density 0.667), shuffled with seed 7",
        "classes: -1 (1), 1 (2)",
        "scaling: log1p, then minmax",
    ]
    assert "MB/s" in lines[-1]
    with h5py.File(out) as file:
        assert (file.attrs["scaling"], file.attrs["shuffle_seed"]) == (b"minmax", 7)


def test_report_of_unusual_things(text, tmp_path, capsys):
    run(text, tmp_path / "train.h5", "--quiet")
    assert capsys.readouterr().err == ""
    test = tmp_path / "test.txt"
    test.write_text("5 1:1 9:1\nbad\n")
    run(test, tmp_path / "test.h5", "--like", tmp_path / "train.h5", "--on-error", "skip")
    report = capsys.readouterr().err
    assert "not shuffled" in report
    assert "dropped: 6 features beyond 3, 1 values in them" in report
    assert "labels the training file does not have: 5; their rows are kept" in report
    assert "skipped: 1 lines, beginning with\n  " in report
    assert "line 2: label 'bad'" in report


def test_note_and_many_classes(tmp_path, capsys):
    path = tmp_path / "data.txt"
    path.write_text("".join(f"{label} 1:{label + 3} {label + 9}:1\n" for label in range(12)))
    run(path, tmp_path / "out.h5", "--scale", "minmax")
    report = capsys.readouterr().err
    assert "note: scaling 'minmax' turns zeros into other numbers" in report
    assert "9 (1), and 2 more\n" in report


def test_standard_input_and_options(text, tmp_path, monkeypatch):
    out = tmp_path / "out.h5"
    data = text.read_bytes().replace(b"3:", b"0:")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    run("-", out, "--zero-based", "--sparse", "--no-shuffle", "--n-features", 9,
        "--compression", "gzip", "--quiet")  # fmt: skip
    with h5py.File(out) as file:
        assert file["X"].attrs["shape"].tolist() == [3, 9]
        assert not file.attrs["shuffled"]
        assert file["X/data"].compression == "gzip"


def test_progress_bar_on_a_terminal_only(text, tmp_path, capsys, monkeypatch):
    run(text, tmp_path / "out.h5")
    assert "convert:" not in capsys.readouterr().err
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    run(text, tmp_path / "out.h5")
    assert "convert:" in capsys.readouterr().err


def test_mistakes_are_left_to_main(text, tmp_path):
    text.write_text("+1 1:1\n1 0:1\n")
    with pytest.raises(InputError, match=r"train\.txt, line 2: '0:1' has index 0; give --zero"):
        run(text, tmp_path / "out.h5")
    assert os.listdir(tmp_path) == ["train.txt"]


def test_dense_and_sparse_exclude_each_other(text, tmp_path, capsys):
    with pytest.raises(SystemExit):
        run(text, tmp_path / "out.h5", "--dense", "--sparse")
    assert "not allowed with" in capsys.readouterr().err


TABLE = "age,colour,size,buys\n30,red,,yes\n40,blue,2,no\n"


def test_table_options(ooc_fw, tmp_path):
    pytest.importorskip("pyarrow")
    path, out = tmp_path / "table.csv", tmp_path / "out.h5"
    path.write_text(TABLE)
    outcome = ooc_fw("convert", path, out, "--label", "buys", "--one-hot", "colour", "--impute",
                     "mean", "--drop", "age", "--no-shuffle", "--dense")  # fmt: skip
    assert outcome.status == 0
    lines = outcome.err.splitlines()
    assert lines[1] == "classes: no (1), yes (1)"
    assert "note: 1 missing values became the means of their columns" in lines
    with h5py.File(out) as file:
        assert file["X"][...].tolist() == [[0, 1, 2], [1, 0, 2]]
        assert file.attrs["columns"].tolist() == [b"colour=blue", b"colour=red", b"size"]
    (tmp_path / "test.csv").write_text(TABLE.replace("yes", "maybe"))
    outcome = ooc_fw("convert", tmp_path / "test.csv", tmp_path / "test.h5", "--like", out)
    assert outcome.status == 0
    assert "labels the training file does not have: maybe; their rows are kept" in outcome.err


def test_names_with_commas_and_a_chosen_delimiter(ooc_fw, tmp_path):
    pytest.importorskip("pyarrow")
    path, out = tmp_path / "table", tmp_path / "out.h5"
    path.write_text("a, b\tc\ty\n1\t2\t0\n3\t4\t1\n")
    assert ooc_fw("convert", path, out, "--label", "y", "--drop", '"a, b"', "--delimiter",
                  "tab").status == 0  # fmt: skip
    with h5py.File(out) as file:
        assert file.attrs["columns"].tolist() == [b"c"]


def test_mistakes_with_tables_are_one_sentence(ooc_fw, tmp_path):
    pytest.importorskip("pyarrow")
    path, out = tmp_path / "table.csv", tmp_path / "out.h5"
    path.write_text(TABLE)
    ooc_fw("convert", path, out).assert_refused("table.csv", "--label", "age, colour")
    ooc_fw("convert", path, out, "--label", "buys").assert_refused("line 2", "--one-hot colour")
    ooc_fw("convert", path, out, "--label", "buys", "--drop", "colour").assert_refused(
        "line 2", "'size' is missing", "--impute mean"
    )
    ooc_fw("convert", path, out, "--label", "buys", "--n-features", 3).assert_refused("--n-feat")
