"""What every command promises: help, JSON, silence, outputs that are whole and replace no input."""

import errno
import json
import os
from pathlib import Path
from typing import NamedTuple

import pytest

from ooc_fw.cli.arguments import ARGUMENTS
from ooc_fw.cli.commands import COMMANDS
from ooc_fw.options import file_name
from tests.support.methods import grid

CONVERTED = "output n_rows n_features sparse seed classes scaling log1p normalize"
ADVISED = "kind n_rows n_features storage classes bad_rows advice next"
GAP = "certified_gap gap_scope tol reached pair_gap objective rho"
JUDGED = "accuracy balanced_accuracy classes macro confusion n_rows"
COSTS = "seconds peak_rss_bytes model"
TRAINED = f"""status task kind method lmo kernel gamma C tol stopping n_rows n_features n_support
objective rho sampled_gap certified_gap pair_gap gap_scope primal dual n_weighted choice iterations
kernel_evaluations work rows_read bytes_read {COSTS}"""


class Example(NamedTuple):
    """A command line with all files that the command reads, and its outputs, whose names are new.

    `keys` are those of the JSON object that scripts read.
    """

    line: str
    keys: str = ""


EXAMPLES = {
    "convert": Example("convert X.npy new.h5 --labels y.npy --like d.h5", CONVERTED),
    "split": Example("split d.h5 new.h5 new2.h5 --labels labels.npy", "parts"),
    "info": Example("info d.h5 --labels labels.npy", f"{ADVISED} scaling sigma2 gamma_auto"),
    "verify": Example("verify d.h5", "file intact damage"),
    "train": Example(
        "train d.h5 --labels labels.npy --resume run.ckpt --checkpoint new.ckpt --log new.log "
        "-o new.h5",
        TRAINED,
    ),
    "tune": Example(
        "tune d.h5 --labels labels.npy -o new.h5 --kernel rbf --C 1 --gamma auto",
        f"metric n_rows best linear points refit next {COSTS}",
    ),
    "predict": Example("predict m.h5 d.h5 -o new.csv", "output n_rows n_unknown n_unassigned"),
    "evaluate": Example(
        "evaluate m.h5 d.h5 --labels labels.npy --figure new.png --false-alarms 0.1 --save new.h5",
        f"{JUDGED} positive roc_auc average_precision threshold predicted false_alarms recall",
    ),
    "importance": Example("importance m.h5 d.h5 --figure new.png", "columns n_rows"),
    "certify": Example("certify m.h5 d.h5 --labels labels.npy", GAP),
    "export": Example("export m.h5 new.onnx", "output probabilities"),
    "plot": Example("plot run.log -o new.png", "output runs"),
}
MORE = (
    Example("info d.txt", ADVISED),
    Example("info people.csv --label kind", "kind format n_columns columns advice next"),
    Example(
        "info m.h5",
        "kind model_kind kernel C gamma n_features n_support classes task status scaling "
        "certified_gap gap_scope advice next",
    ),
    Example("train X.npy --task novelty --contamination 0.1 -o new.h5", "offset rho certified_gap"),
    Example("train d.h5 --dry-run", "choice kind landmarks memory_limit memory"),
    Example(
        "train --stream d.txt -o new.h5",
        f"status n_rows n_features n_support sampled_gap certified_gap {COSTS}",
    ),
    Example("evaluate numbers.h5 d.h5 --labels amounts.npy", "r2 rmse mae n_rows"),
    Example("certify marks.h5 d.h5", "certified_gap gap_scope n_support primal dual tol reached"),
    Example("certify three.h5 d.h5 --labels thirds.npy", f"{GAP} classifiers"),
)

WRITER = pytest.mark.parametrize(
    "name", grid([name for name in EXAMPLES if "new" in EXAMPLES[name].line], 5)
)


def places(name):
    """Words of a command, and the places of its inputs and its outputs among them."""
    words = EXAMPLES[name].line.split()
    inputs = [place for place, word in enumerate(words) if Path(word).is_file()]
    assert inputs
    return words, inputs, [place for place, word in enumerate(words) if word.startswith("new")]


def contents(folder="."):
    return {path: path.read_bytes() for path in Path(folder).iterdir() if path.is_file()}


def with_word(words, place, word):
    return [*words[:place], word, *words[place + 1 :]]


def test_the_table_has_every_command_and_every_option_that_names_a_file():
    assert {*EXAMPLES} == COMMANDS.keys() - {"demo", "help", "warm-up"}
    for name, example in EXAMPLES.items():
        declared = ARGUMENTS | COMMANDS[name].own
        named = [each for each in COMMANDS[name].names if declared[each].read is file_name]
        flags = {declared[each].flag(each) for each in named if declared[each].name != ""}
        assert flags <= {*example.line.replace("-o ", "--output ").split()}, name


@pytest.mark.parametrize("name", [None, *COMMANDS])
def test_help(ooc_fw, name):
    outcome = ooc_fw(*([name] if name else []), "--help")
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out.startswith("usage: ooc-fw")
    assert "SUPPRESS" not in outcome.out


@pytest.mark.parametrize("example", [*EXAMPLES.values(), *MORE], ids=lambda each: each.line)
def test_json_is_one_object_and_quiet_means_silent(ooc_fw, here, example):
    """And nothing is written but the outputs."""
    before = contents()
    words = example.line.split()
    quiet = ["--quiet"] * ("quiet" in COMMANDS[words[0]].names)
    outcome = ooc_fw(*words, "--json", *quiet)
    assert (outcome.status, outcome.err) == (0, "")
    assert {*example.keys.split()} <= json.loads(outcome.out).keys()
    after = contents()
    assert before.items() <= after.items()
    assert {str(path) for path in after.keys() - before} == {w for w in words if w[:3] == "new"}


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("kind", grid(["missing", "bytes", "empty", "folder"], 2))
def test_inputs_that_cannot_be_read_are_refused(ooc_fw, here, name, kind):
    """Each of the inputs; no output is written, and no file is changed."""
    words, inputs, _ = places(name)
    for place in inputs:
        bad = Path(kind).with_suffix(Path(words[place]).suffix)
        if kind == "folder":
            bad.mkdir(exist_ok=True)
        elif kind != "missing":
            bad.write_bytes(Path("bytes").read_bytes() * (kind == "bytes"))
        before = contents()
        outcome = ooc_fw(*with_word(words, place, bad))
        if name == "verify" and bad.is_file():
            assert (outcome.status, outcome.out) == (1, f"{bad} is damaged\n")
        else:
            outcome.assert_refused(str(bad))
        assert contents() == before


@WRITER
def test_no_output_replaces_an_input(ooc_fw, here, name):
    """By its own name, by a symbolic link or by a second name of the file."""
    words, inputs, outputs = places(name)
    before = contents()
    for place in outputs:
        for read in inputs:
            if (words[place - 1], words[read - 1]) == ("--checkpoint", "--resume"):
                continue  # a run goes on in its own checkpoint
            link, second = Path("link"), Path("second")
            link.symlink_to(words[read])
            second.hardlink_to(words[read])
            for output in (words[read], link, second):
                refused = ooc_fw(*with_word(words, place, output))
                refused.assert_refused("would replace the input", words[read])
            link.unlink()
            second.unlink()
    assert contents() == before


@WRITER
def test_names_that_cannot_be_outputs_are_refused_before_the_work(ooc_fw, here, name):
    words, inputs, outputs = places(name)
    Path("loop").symlink_to("loop")
    Path("folder").mkdir()
    os.mkfifo("pipe")
    Path("link.h5").symlink_to("pipe")
    names = ("loop", "x" * 300, "folder", "run.log/n", "none/n", "folder/", "pipe", "link.h5")
    before = sorted(here.iterdir())
    for place in outputs:
        for output in names:
            refused = ooc_fw(*with_word(words, place, output))
            refused.assert_refused(output.partition("/")[0], "give")
    for place in (*inputs, *outputs):
        refused = ooc_fw(*with_word(words, place, ""))
        refused.assert_refused("the name of a file, not ''")
    assert sorted(here.iterdir()) == before


@WRITER
def test_an_output_is_whole_or_as_it_was(ooc_fw, here, name, monkeypatch):
    """The last step fails, which puts a finished file in its place; it is on the disk by then."""
    on_disk = []

    def full(temporary, _):
        assert os.stat(temporary).st_ino in on_disk
        raise OSError(errno.ENOSPC, "No space left on device")

    words, _, _ = places(name)
    ooc_fw(*words).done()
    Path("tmp").mkdir()
    before = contents()
    before.pop(Path("new.log"), None)  # a log grows
    monkeypatch.setattr("tempfile.tempdir", "tmp")
    monkeypatch.setattr("os.fsync", lambda file: on_disk.append(os.fstat(file).st_ino))
    monkeypatch.setattr("os.replace", full)
    outcome = ooc_fw(*words)
    assert outcome.status == 3
    assert "new" in outcome.err
    assert "No space left on device" in outcome.err
    if name in ("evaluate", "importance"):
        assert outcome.out, "results are printed before they are drawn"
    after = contents()
    after.pop(Path("new.log"), None)
    assert after == before


def test_no_output_goes_into_a_folder_that_is_read(ooc_fw, here):
    before = sorted(Path("cells.zarr").rglob("*"))
    Path("link").symlink_to("cells.zarr")
    for folder in ("cells.zarr", "link"):
        for output, reason in (
            ("X", "X is a folder, a device or a stream"),
            ("X/zarr.json", "would replace the input"),
            ("new.h5", "would replace the input"),
        ):
            ooc_fw("convert", "cells.zarr", f"{folder}/{output}").assert_refused(reason)
    assert sorted(Path("cells.zarr").rglob("*")) == before


@pytest.mark.parametrize(
    "command",
    [
        "convert people.csv t.csv --label kind",
        "convert people.csv m.h5 --label kind",
        "export m.h5 d.h5",
        "export m.h5 m.h5",
        "split d.h5 people.csv new.h5",
        "train d.h5",
        "plot run.log",
        "demo cells.zarr",
        "demo d.h5",
    ],
)
def test_a_forgotten_or_default_output_replaces_no_other_file(ooc_fw, here, command):
    Path("d.model.h5").write_text("mine")
    Path("run.png").write_text("mine")
    before = contents()
    ooc_fw(*command.split()).assert_refused("give")
    assert contents() == before


@pytest.mark.parametrize("command", ["plot pipe", "train --stream pipe"])
def test_an_output_has_no_default_name_beside_a_pipe(ooc_fw, here, command):
    os.mkfifo("pipe")
    ooc_fw(*command.split()).assert_refused("pipe is no file here", "give -o")


# From run to run, and what other processes read and compute, which is not counted.
UNEQUAL = {*"seconds peak_rss_bytes model bytes_read rows_read kernel_evaluations work".split()}


@pytest.mark.parametrize(
    "command",
    [
        "train X.npy --labels y.npy -o new --threads 2",
        "certify m.h5 d.h5",
        "evaluate m.h5 d.h5",
        "importance m.h5 d.h5 --rows all",
        "predict m.h5 d.h5 --decision -o new",
    ],
)
def test_results_with_dask_are_those_without(ooc_fw, here, command):
    one, other = (
        ooc_fw(*command.split(), *dask, "--json").json() for dask in ([], ["--dask", "threads"])
    )
    assert one.keys() == other.keys()
    for key in one.keys() - UNEQUAL:
        is_number = isinstance(one[key], float)
        assert other[key] == (pytest.approx(one[key], rel=1e-6) if is_number else one[key])
