"""Outputs of all commands: regular files, which replace no input."""

import errno
import json
import os
import shutil
import stat
from importlib.util import find_spec
from pathlib import Path

import h5py
import numpy as np
import pytest

from ooc_fw.cli import train as train_module
from ooc_fw.cli.arguments import ARGUMENTS
from ooc_fw.cli.commands import COMMANDS
from ooc_fw.cli.main import main
from ooc_fw.model.record import load_model
from ooc_fw.options import file_name


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
        "predict {model} {data} -o {node}",
        "train {data} -o {model} --log {node}",
    ],
)
def test_what_is_not_a_regular_file_is_refused(
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


def test_a_default_name_is_beside_regular_files_only(ooc_fw, run_log, text_file):
    reading, writing = os.pipe()
    os.close(writing)
    for command in (("plot",), ("train", "--stream")):
        outcome = ooc_fw(*command, f"/dev/fd/{reading}")
        outcome.assert_refused(f"/dev/fd/{reading} is no file here", "give -o")
    os.close(reading)


COMMAND_WORDS = {
    "convert": "{array} {new} --labels {labels} --like {data}",
    "split": "{data} {new} {new2}",
    "train": "{data} --labels {labels} --resume {log} --checkpoint {new} --log {new2} -o {new3}",
    "tune": "{data} --labels {labels} -o {new}",
    "predict": "{model} {data} -o {new}",
    "evaluate": "{model} {data} --labels {labels} --figure {new}",
    "importance": "{model} {data} --figure {new}",
    "export": "{model} {new}",
    "plot": "{log} -o {new}",
}
"""A command line of each command that writes files, with all files that it reads."""


@pytest.fixture(params=COMMAND_WORDS)
def command(request, data_file, model_file, run_log, tmp_path):
    """Words of a command, with the places of its inputs and of its outputs among them."""
    names = {"new": "n1", "new2": "n2", "new3": "n3"}
    names = {key: tmp_path / name for key, name in names.items()}
    for key, path in {"data": data_file, "model": model_file}.items():
        names[key] = shutil.copy(path, tmp_path / f"{key}{path.suffix}")
    names["log"] = shutil.copy(run_log, tmp_path / "run.jsonl")
    names["labels"] = tmp_path / "labels.npy"
    names["array"] = tmp_path / "array.npy"
    with h5py.File(data_file) as file:
        np.save(names["array"], file["X"][...])
        np.save(names["labels"], file["y"][...])
    pattern = COMMAND_WORDS[request.param].split()
    words = [word.format(**names) for word in pattern]
    inputs = [k for k, word in enumerate(pattern) if word[:1] == "{" and word[:4] != "{new"]
    outputs = [k for k, word in enumerate(pattern) if word[:4] == "{new"]
    return [request.param, *words], [k + 1 for k in inputs], [k + 1 for k in outputs]


def test_no_output_replaces_an_input(ooc_fw, command, tmp_path):
    words, inputs, outputs = command
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for place in outputs:
        for read in inputs:
            if words[place - 1] == "--checkpoint" and words[read - 1] == "--resume":
                continue  # a run goes on in its own checkpoint
            link = tmp_path / "link"
            link.symlink_to(words[read])
            for name in (words[read], link):
                refused = ooc_fw(*words[:place], name, *words[place + 1 :])
                refused.assert_refused("would replace the input", words[read])
            link.unlink()
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_names_that_cannot_be_files_are_refused_before_the_work(ooc_fw, command, tmp_path):
    words, inputs, outputs = command
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "folder").mkdir()
    before = {path.name for path in tmp_path.iterdir()}
    for place in (*inputs, *outputs):
        ooc_fw(*words[:place], "", *words[place + 1 :]).assert_refused("the name of a file, not ''")
    for place in outputs:
        for name in ("loop", "x" * 300, "folder", "run.jsonl/n", "none/n", "folder/"):
            path = f"{tmp_path}/{name}"
            outcome = ooc_fw(*words[:place], path, *words[place + 1 :])
            outcome.assert_refused(str(tmp_path / name.partition("/")[0]), "give")
    assert {path.name for path in tmp_path.iterdir()} == before


def test_all_arguments_that_name_files_are_known():
    """A new one is an input or an output, and has its place above."""
    words = {
        name: command.arguments.replace("|", " ").split() for name, command in COMMANDS.items()
    }
    writing = {name for name in words if {"output", "train", "files", "figure"} & {*words[name]}}
    assert writing == {*COMMAND_WORDS, "demo"}
    for name, known in COMMAND_WORDS.items():
        declared = ARGUMENTS | COMMANDS[name].own
        of_files = [
            word for word in words[name] if getattr(declared.get(word), "read", 0) is file_name
        ]
        flags = {declared[word].flag(word) for word in of_files if declared[word].name != ""}
        assert flags - {*known.replace("-o ", "--output ").split()} <= {"--labels"}


@pytest.mark.parametrize("name", ["X", "X/part", "new.h5"])
def test_no_output_goes_into_a_folder_that_is_read(ooc_fw, tmp_path, name):
    store = tmp_path / "g.zarr"
    (store / "X").mkdir(parents=True)
    (store / "zarr.json").write_text("{}")
    (store / "X" / "part").write_text("1")
    (tmp_path / "link").symlink_to(store)
    for folder in (store, tmp_path / "link"):
        outcome = ooc_fw("convert", store, folder / name)
        outcome.assert_refused(
            "X is a folder, a device or a stream" if name == "X" else "would replace the input"
        )
    assert sorted(path.name for path in store.rglob("*")) == ["X", "part", "zarr.json"]


def test_a_forgotten_output_replaces_no_file(ooc_fw, data_file, model_file, table, tmp_path):
    for name in "abc":
        np.savetxt(tmp_path / f"{name}.csv", table.X, delimiter=",", header="p,q,r,s", comments="")
    data, model = (shutil.copy(path, tmp_path) for path in (data_file, model_file))
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    csv = sorted(tmp_path.glob("*.csv"))
    for words in (
        ("convert", *csv, "--label", "s"),
        ("convert", csv[0], model, "--label", "s"),
        ("export", model, data),
        ("export", model, model),
        ("split", data, csv[0], tmp_path / "n"),
    ):
        ooc_fw(*words).assert_refused("give")
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    for _ in range(2):  # what a command wrote it writes again
        ooc_fw("convert", *csv, tmp_path / "n.h5", "--label", "s").done()
        ooc_fw("split", data, tmp_path / "n1.h5", tmp_path / "n2.h5").done()
        if find_spec("onnx") is not None:
            ooc_fw("export", model, tmp_path / "n.onnx").done()
    default = tmp_path / f"{Path(data).stem}.model.h5"
    default.write_bytes(b"notes")
    ooc_fw("train", data).assert_refused(str(default), "give another name")
    assert default.read_bytes() == b"notes"


def test_a_demo_keeps_out_of_folders_in_use(ooc_fw, tmp_path):
    (tmp_path / "model.h5").write_text("mine")
    ooc_fw("demo", tmp_path).assert_refused("is not empty")
    ooc_fw("demo", tmp_path / "model.h5").assert_refused("is not empty")
    assert (tmp_path / "model.h5").read_text() == "mine"


# -- models that stay ----------------------------------------------------------------------------


def test_a_model_whose_place_is_lost_is_kept_elsewhere(ooc_fw, data_file, tmp_path, monkeypatch):
    output = tmp_path / "gone" / "m.h5"
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    real = train_module.fit

    def fit_and_lose(*arguments, **options):
        fitted = real(*arguments, **options)
        shutil.rmtree(output.parent)
        return fitted

    monkeypatch.setattr(train_module, "fit", fit_and_lose)
    output.parent.mkdir()
    outcome = ooc_fw("train", data_file, "-o", output, "--quiet")
    assert outcome.status == 3
    kept = Path(outcome.out.strip())
    assert f"{output} cannot be written" in outcome.err
    assert f"the model is in {kept}" in outcome.err
    assert kept.parent.parent == tmp_path
    assert load_model(kept).status == "converged"


@pytest.mark.parametrize(
    "command",
    [
        "evaluate {model} {data} --figure {full}",
        "importance {model} {data} --figure {full}",
    ],
)
def test_results_are_printed_before_they_are_drawn(
    ooc_fw, data_file, model_file, tmp_path, monkeypatch, command
):
    pytest.importorskip("matplotlib")

    def full(path, data):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr("ooc_fw.report.figures.write_atomic", full)
    names = {"model": model_file, "data": data_file, "full": tmp_path / "f.png"}
    words = [word.format(**names) for word in command.split()]
    outcome = ooc_fw(*words, "--json", "--quiet")
    assert (outcome.status, outcome.err) == (
        3,
        f"ooc-fw: {names['full']}: No space left on device\n",
    )
    assert json.loads(outcome.out)
