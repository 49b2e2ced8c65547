"""Outputs of all commands: what is no regular file is written to as a stream, or refused."""

import fcntl
import os
import stat

import numpy as np
import pytest

from ooc_fw.cli.main import main
from ooc_fw.report.runlog import read_runs
from ooc_fw.system.files import open_growing


@pytest.fixture(params=["device", "pipe"])
def node(request, tmp_path):
    """Something that is no regular file and must not be replaced, and how it is called."""
    path = tmp_path / "node"
    if request.param == "pipe":
        os.mkfifo(path)
        return path
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))
        path.open("w").close()
    except OSError:
        pytest.skip("devices are not allowed here")
    return path


@pytest.mark.parametrize(
    "command",
    [
        "train {data} -o {node}",
        "train {data} -o {model} --checkpoint {node}",
        "train --stream {text} -o {node}",
        "tune {data} -o {node}",
        "convert {text} {node}",
        "predict {model} {data} -o {node}.h5",
    ],
)
def test_what_is_no_stream_is_refused(
    ooc_fw, node, data_file, text_file, model_file, command, monkeypatch
):
    """Before any work is done; of a link to it likewise."""
    monkeypatch.setattr("ooc_fw.solver.loop.solve_problem", None)
    node.with_name("node.h5").symlink_to(node)
    names = {"node": node, "data": data_file, "text": text_file, "model": model_file}
    before, kept = node.lstat(), model_file.read_bytes()
    outcome = ooc_fw(*(word.format(**names) for word in command.split()))
    outcome.assert_refused("node", " is a ")
    assert (node.lstat().st_mode, node.lstat().st_ino) == (before.st_mode, before.st_ino)
    assert model_file.read_bytes() == kept
    assert {path.name for path in node.parent.iterdir()} == {"node", "node.h5"}


@pytest.fixture(scope="module")
def run_log(data_file, tmp_path_factory):
    """Log of a run."""
    folder = tmp_path_factory.mktemp("log")
    arguments = ["-o", folder / "m.h5", "--log", folder / "run.log", "--quiet"]
    assert main(["train", str(data_file), *map(str, arguments)]) == 0
    return folder / "run.log"


@pytest.mark.parametrize(
    ("command", "name", "begins"),
    [
        ("predict {model} {data} -o {out}", "out", ("-7\n", "3\n")),
        ("predict {model} {data} -o {out}", "out.csv", "row,label\n"),
        ("train {data} -o {new} --log {out} --quiet", "out.log", '{"event": "start"'),
        ("tune {data} --C 1 --no-refit --points {out} --quiet", "out.json", '{"data"'),
        pytest.param("plot {log} -o {out}", "out.svg", "<?xml", marks=pytest.mark.grid),
    ],
)
def test_streams(ooc_fw, data_file, model_file, run_log, tmp_path, command, name, begins):
    out = tmp_path / name
    os.mkfifo(out)
    names = {"out": out, "data": data_file, "model": model_file, "log": run_log}
    names |= {"new": tmp_path / "m"}
    pipe = os.open(out, os.O_RDWR | os.O_NONBLOCK)  # a reader, for whom nobody waits
    fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 1 << 20)
    with open(pipe, "rb", buffering=0) as reader:
        outcome = ooc_fw(*(word.format(**names) for word in command.split()))
        assert out.is_fifo()
        assert outcome.status == 0
        text = (reader.read() or b"").decode()
    assert text.startswith(begins)


def test_predictions_go_where_standard_output_goes(ooc_fw, model_file, data_file):
    expected = ooc_fw("predict", model_file, data_file)
    assert expected.out.count("\n") == 200
    assert ooc_fw("predict", model_file, data_file, "-o", "/dev/stdout") == expected


def test_a_default_name_is_beside_regular_files_only(ooc_fw, run_log, text_file):
    reading, writing = os.pipe()
    os.close(writing)
    for command in (("plot",), ("train", "--stream")):
        outcome = ooc_fw(*command, f"/dev/fd/{reading}")
        outcome.assert_refused(f"/dev/fd/{reading} is no file here", "give -o")
    os.close(reading)


# -- several classes -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Data of 14 classes, more than fit in a line, and a model of them."""
    folder = tmp_path_factory.mktemp("many")
    rng = np.random.default_rng(0)
    y = np.arange(280) % 14
    X = rng.normal(0, 0.4, (280, 2)) + np.stack([y % 4, y // 4], axis=1)
    np.save(folder / "X.npy", X.astype(np.float32))
    np.save(folder / "y.npy", y.astype(float))
    convert = ["convert", folder / "X.npy", folder / "d.h5", "--labels", folder / "y.npy"]
    assert main([*map(str, convert), "--quiet"]) == 0
    assert main(["train", str(folder / "d.h5"), "-o", str(folder / "m.h5"), "--quiet"]) == 0
    return folder / "d.h5", folder / "m.h5"


def test_info_of_a_model_of_several_classes(ooc_fw, many):
    result = ooc_fw("info", many[1], "--json").json()
    assert len(result["classifiers"]) == 91
    assert result["certified_gap"] == max(own["certified_gap"] for own in result["classifiers"])
    assert [result["classifiers"][0][side] for side in ("negative", "positive")] == [0, 1]
    outcome = ooc_fw("info", many[1])
    assert (outcome.status, outcome.err) == (0, "")
    assert "0 against 1 " in outcome.out
    assert "and 79 more binary classifiers" in outcome.out


def test_evaluate_cuts_a_matrix_that_is_too_wide(ooc_fw, many, monkeypatch):
    monkeypatch.setenv("COLUMNS", "50")
    result = ooc_fw("evaluate", *reversed(many), "--json").json()
    matrix = np.array(result["confusion"])
    assert matrix.shape == (14, 14)
    text = ooc_fw("evaluate", *reversed(many)).out
    assert max(map(len, text.splitlines())) <= 80
    assert "confusion (given below" in text


@pytest.mark.grid
def test_train_names_all_rows(ooc_fw, many, tmp_path):
    for method, says in (("auto", "here 280 rows"), ("fw", "full oracle")):
        options = "-o", tmp_path / "m.h5", "--method", method, "--max-iter", 3
        outcome = ooc_fw("train", many[0], *options).done()
        choice = next(line for line in outcome.err.splitlines() if line.startswith("method "))
        assert says in choice
        assert "here 40 rows" not in choice


def test_two_runs_do_not_share_a_log(ooc_fw, data_file, tmp_path):
    path, model = tmp_path / "run.jsonl", tmp_path / "m.h5"
    train = "train", data_file, "-o", model, "--quiet", "--log", path
    with open_growing(path):
        ooc_fw(*train).assert_refused(f"{path} is being written by another run")
    assert not model.exists()
    ooc_fw(*train).done()
    assert len(read_runs([path])) == 1
