"""Runs of the command that are stopped by clock, signal or kill, and go on."""

import json
import signal
import subprocess
import sys
import time

import pytest

from ooc_fw.model.record import load_model
from ooc_fw.solver.surroundings import Surroundings
from ooc_fw.training.checkpoint import load_resumed

LONG = ("--method", "fw", "--tol", 1e-9, "--quiet")  # takes steps for as long as it may


def wait_for(path, process):
    end = time.monotonic() + 60
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.process
def test_time_limit_is_a_good_end(ooc_fw, data_file, tmp_path):
    outcome = ooc_fw(
        "train", data_file, "-o", tmp_path / "m.h5", "--json", "--max-time", "1.5s", *LONG
    ).done()
    assert "stopped by the time limit" in outcome.err
    result = outcome.json()
    assert result["status"] == "time_limit"
    assert 0.5 < result["seconds"] < 2.5
    assert result["certified_gap"] is not None
    assert load_model(tmp_path / "m.h5").status == "time_limit"


def test_no_time_for_a_model(ooc_fw, data_file, tmp_path):
    """Labels and statistics count, too."""
    outcome = ooc_fw("train", data_file, "-o", tmp_path / "m.h5", "--max-time", "0.001", "--quiet")
    assert (outcome.status, outcome.out, outcome.err.count("\n")) == (3, "", 1)
    assert "time limit of 0.001 s was over before there was a model" in outcome.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.process
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_leaves_a_model_and_a_checkpoint(program, data_file, tmp_path, number, status):
    model, checkpoint = tmp_path / "m.h5", tmp_path / "run.ckpt"
    options = "--checkpoint", checkpoint, "--checkpoint-every", "0.05"
    process = program("train", data_file, "-o", model, "--json", *options, *LONG)
    wait_for(checkpoint, process)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == status
    assert "stopped by a signal" in err
    result = json.loads(out)
    assert result["status"] == "interrupted"
    assert result["certified_gap"] is None
    assert load_model(model).status == "interrupted"
    assert load_resumed(checkpoint).run["draws"]["iteration"] == result["iterations"]
    assert {path.name for path in tmp_path.iterdir()} == {"m.h5", "run.ckpt"}


@pytest.fixture
def interrupted(monkeypatch):
    """Have a signal arrive in the second iteration of every run."""
    monkeypatch.setattr("ooc_fw.solver.loop._WALK_STEPS", 1)

    def report(shell, *share):
        if shell.update().iteration == 2 and shell.interrupt.noted is None:
            signal.raise_signal(signal.SIGINT)
        original(shell, *share)

    original = Surroundings.report
    monkeypatch.setattr(Surroundings, "report", report)


def test_an_interrupted_run_keeps_the_old_model(
    ooc_fw, data_file, model_file, tmp_path, interrupted
):
    model, whole = tmp_path / "m.h5", model_file.read_bytes()
    run = ("train", data_file, "-o", model, "--method", "fw", "--json", "--quiet")
    for name in ("m.h5", "m.unfinished.h5", "m.unfinished.h5"):
        outcome = ooc_fw(*run)
        assert outcome.status == 130
        assert json.loads(outcome.out)["model"] == str(tmp_path / name)
        assert load_model(tmp_path / name).status == "interrupted"
        if name == "m.h5":
            assert "it is in" not in outcome.err
            model.write_bytes(whole)
        else:
            assert f"it is in {tmp_path / name}" in outcome.err
        assert model.read_bytes() == whole


SIGNALLED = """
import pkgutil, signal, sys
from unittest.mock import patch
from ooc_fw.cli import program

place, number, times, *sys.argv[1:] = sys.argv[1:]
original = pkgutil.resolve_name(place)

def signalled(*arguments, **named):
    for _ in range(int(times)):
        signal.raise_signal(int(number))
    return original(*arguments, **named)

with patch(place, signalled):
    sys.exit(program())
"""


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("command", "place", "times", "ends", "files"),
    [
        ("train", "ooc_fw.training.fit.encode_labels", 1, True, []),
        ("train", "ooc_fw.solver.loop._Run._finish", 2, True, []),
        ("train", "ooc_fw.model.record.Model.save", 1, False, ["m.h5"]),
        ("tune", "ooc_fw.training.tuning.fit", 1, True, []),
        ("tune", "ooc_fw.training.tuning.plan_model", 1, True, ["m.h5"]),
    ],
    ids=["before the run", "twice", "while the model is written", "first", "last training"],
)
def test_signals_at_any_moment(data_file, tmp_path, number, command, place, times, ends, files):
    """Of two signals no file is left at all, not half of one; a model that is written is kept."""
    arguments = place, str(int(number)), str(times), command, data_file
    arguments += "-o", tmp_path / "m.h5", "--quiet"
    program = [sys.executable, "-c", SIGNALLED, *arguments]
    run = subprocess.run(program, capture_output=True, text=True, timeout=60)
    assert run.returncode == (128 + number if ends else 0), run.stderr
    assert [path.name for path in tmp_path.iterdir()] == files
    if not files:
        assert (run.stdout, run.stderr) == ("", "ooc-fw: interrupted\n")


def test_resuming_by_command(ooc_fw, data_file, table, tmp_path, write_text):
    whole, model, other, checkpoint = (
        tmp_path / name for name in ("whole.h5", "m.h5", "other.h5", "run.ckpt")
    )
    options = "--lmo", "sampled", "--quiet", "--seed", 3
    ooc_fw("train", data_file, "-o", whole, *options)
    train = "train", data_file, "-o", model, *options
    ooc_fw(*train, "--checkpoint", checkpoint, "--max-iter", 1)
    ooc_fw(*train, "--resume", checkpoint).done()
    found, known = load_model(model).classifiers[0], load_model(whole).classifiers[0]
    assert found.certified_gap <= 1e-3
    assert found.rho == pytest.approx(known.rho, rel=2e-3)
    text = write_text(table.X[:-5], table.y[:-5])
    ooc_fw("convert", text, other, "--scale", "minmax")
    refused = ooc_fw("train", other, "--resume", checkpoint, *options)
    refused.assert_refused("run.ckpt was made with other data: n_rows 200 (now 195)")
