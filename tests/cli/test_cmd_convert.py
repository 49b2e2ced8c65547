import io

import h5py
import pytest


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "train.txt"
    path.write_text("+1 1:1 2:4\n-1 1:2 3:0.5\n+1 1:3 2:2\n")
    return path


def test_report_on_stderr_or_as_json(ooc_fw, text, tmp_path):
    out = tmp_path / "train.h5"
    command = ("convert", text, out, "--scale", "minmax", "--log1p", "--seed", 7, "--dense")
    outcome = ooc_fw(*command)
    assert (outcome.status, outcome.out) == (0, "")
    lines = outcome.err.splitlines()
    assert lines[:3] == [
        f"{out}: 3 rows, 3 features, dense, shuffled with seed 7",
        "classes: -1 (1), 1 (2)",
        "scaling: log1p, then minmax",
    ]
    with h5py.File(out) as file:
        assert (file.attrs["scaling"], file.attrs["shuffle_seed"]) == (b"minmax", 7)
    outcome = ooc_fw(*command, "--json")
    assert outcome.err == ""
    expected = {"output": str(out), "classes": {"-1": 1, "1": 2}, "n_rows": 3, "n_features": 3}
    expected |= {"sparse": False, "scaling": "minmax", "log1p": True, "seed": 7}
    assert expected.items() <= outcome.json().items()


def test_report_of_unusual_things(ooc_fw, text, tmp_path):
    train, test = tmp_path / "train.h5", tmp_path / "test.txt"
    assert ooc_fw("convert", text, train, "--quiet") == (0, "", "")
    test.write_text("5 1:1 9:1\n")
    report = ooc_fw("convert", test, tmp_path / "test.h5", "--like", train).err
    assert "not shuffled" in report
    assert "note: 6 features beyond 3 are left out" in report
    assert "labels the training file does not have: 5; their rows are kept" in report
    test.write_text("".join(f"{label} 1:{label + 3} {label + 9}:1\n" for label in range(12)))
    report = ooc_fw("convert", test, tmp_path / "out.h5", "--scale", "minmax").err
    assert "note: scaling 'minmax' turns zeros into other numbers" in report
    assert "9 (1), and 2 more\n" in report


def test_standard_input_and_options(ooc_fw, text, tmp_path, monkeypatch):
    out = tmp_path / "out.h5"
    data = text.read_bytes().replace(b"3:", b"0:")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    outcome = ooc_fw(
        *("convert", "-", out, "--zero-based", "--sparse", "--no-shuffle", "--n-features", 9),
        *("--compression", "gzip", "--quiet"),
    )
    assert outcome == (0, "", "")
    with h5py.File(out) as file:
        assert file["X"].attrs["shape"].tolist() == [3, 9]
        assert not file.attrs["shuffled"]
        assert file["X/data"].compression == "gzip"


TABLE = "age,colour,size,buys\n30,red,,yes\n40,blue,2,no\n"


def test_table_options(ooc_fw, tmp_path):
    pytest.importorskip("pyarrow")
    path, out = tmp_path / "table.csv", tmp_path / "out.h5"
    path.write_text(TABLE)
    outcome = ooc_fw(
        *("convert", path, out, "--label", "buys", "--one-hot", "colour", "--impute", "mean"),
        *("--drop", "age", "--no-shuffle", "--dense"),
    ).done()
    lines = outcome.err.splitlines()
    assert lines[1] == "classes: no (1), yes (1)"
    assert "note: 1 missing values became the means of their columns" in lines
    with h5py.File(out) as file:
        assert file["X"][...].tolist() == [[0, 1, 2], [1, 0, 2]]
        assert file.attrs["columns"].tolist() == [b"colour=blue", b"colour=red", b"size"]
    (tmp_path / "test.csv").write_text(TABLE.replace("yes", "maybe"))
    outcome = ooc_fw("convert", tmp_path / "test.csv", tmp_path / "test.h5", "--like", out).done()
    assert "labels the training file does not have: maybe; their rows are kept" in outcome.err


def test_names_with_commas_repeated_options_and_a_chosen_delimiter(ooc_fw, tmp_path):
    pytest.importorskip("pyarrow")
    path, out = tmp_path / "table", tmp_path / "out.h5"
    path.write_text("a, b\tc\td\ty\n1\t2\t5\t0\n3\t4\t5\t1\n")
    drop = "--drop", '"a, b"', "--drop", "d"
    ooc_fw("convert", path, out, "--label", "y", *drop, "--delimiter", "\t").done()
    with h5py.File(out) as file:
        assert file.attrs["columns"].tolist() == [b"c"]
