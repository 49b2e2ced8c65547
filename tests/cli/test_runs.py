"""Where the model of a run goes, and runs that end by clock or signal."""

import json
import os
import pkgutil
import shutil
import signal
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ooc_fw import load_model

LONG = ("--method", "fw", "--tol", 1e-9, "--quiet")  # takes steps for as long as it may


def wait_for(path, process):
    end = time.monotonic() + 60
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)


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
    assert "with --checkpoint FILE, a run can go on later" not in err
    result = json.loads(out)
    assert (result["status"], result["certified_gap"]) == ("interrupted", None)
    assert load_model(model).status == "interrupted"
    run = json.loads(load_model(checkpoint).run)
    assert run["work"]["iterations"] == result["iterations"]
    assert {path.name for path in tmp_path.iterdir()} == {"m.h5", "run.ckpt"}


@pytest.mark.process
def test_ctrl_c_while_a_cluster_starts_ends_all_its_processes(program, data_file, tmp_path):
    """A terminal sends it to all of them; workers are silent, and semaphores are given back."""
    options = "--dask", "processes", "--threads", "2", "-o", tmp_path / "m.h5"
    run = program("train", data_file, *options, *LONG, start_new_session=True)
    wait_until_children(run, 3)  # the tracker of semaphores and both workers
    os.killpg(run.pid, signal.SIGINT)
    _, err = run.communicate(timeout=60)
    assert (run.returncode, err) == (130, "ooc-fw: interrupted\n")
    assert len(processes_of(run.pid)) <= 1  # the tracker ends when it sees that the others have


def processes_of(group):
    """Numbers of the processes of a group."""
    found = subprocess.run(["pgrep", "-g", str(group)], capture_output=True, text=True)
    return found.stdout.split()


def wait_until_children(process, n_children):
    while len(processes_of(process.pid)) <= n_children:
        assert process.poll() is None
        time.sleep(0.02)


def test_a_run_goes_on_from_its_checkpoint(ooc_fw, here):
    """`info` says how, and a command that takes models takes the checkpoint, with a warning."""
    options = "--lmo", "sampled", "--quiet", "--seed", 3
    ooc_fw("train", "d.h5", "-o", "whole.h5", *options).done()
    train = "train", "d.h5", "-o", "new.h5", *options
    ooc_fw(*train, "--checkpoint", "run 1.ckpt", "--max-iter", 1).done()
    described = ooc_fw("info", "run 1.ckpt", "--json").json()
    assert (described["kind"], described["status"]) == ("model", "running")
    (advice,) = described["advice"]
    assert advice.endswith("the command that began it and --resume 'run 1.ckpt'")
    model = load_model("new.h5")
    (own,) = model.classifiers
    own = replace(own, certified_gap=0.02, primal=None)
    replace(model, status="max_iter", classifiers=[own]).save("new.h5")
    for command in ("evaluate", "certify"):
        outcome = ooc_fw(command, "run 1.ckpt", "d.h5", "--json")
        assert json.loads(outcome.out)
        assert "run 1.ckpt is a checkpoint: its run was not over (running)" in outcome.err
        rough = ooc_fw(command, "new.h5", "d.h5")
        assert "new.h5 is a model of low accuracy: its run was not over (max_iter)" in rough.err
    ooc_fw(*train, "--resume", "run 1.ckpt").done()
    found, known = (load_model(name).classifiers[0] for name in ("new.h5", "whole.h5"))
    assert found.certified_gap <= 1e-3
    assert found.rho == pytest.approx(known.rho, rel=2e-3)


def test_a_model_whose_place_is_lost_is_kept_elsewhere(ooc_fw, here, monkeypatch):
    from ooc_fw.cli.train import fit

    def fit_and_lose(*arguments):
        shutil.rmtree("gone")
        return fit(*arguments)

    Path("tmp").mkdir()
    Path("gone").mkdir()
    monkeypatch.setattr("tempfile.tempdir", "tmp")
    monkeypatch.setattr("ooc_fw.cli.train.fit", fit_and_lose)
    outcome = ooc_fw("train", "d.h5", "-o", "gone/m.h5", "--quiet")
    assert outcome.status == 3
    kept = outcome.out.strip()
    assert "gone/m.h5 cannot be written" in outcome.err
    assert f"the model is in {kept}" in outcome.err
    assert load_model(kept).status == "converged"


@pytest.mark.parametrize(
    ("command", "place", "times", "status", "files"),
    [
        ("train", "ooc_fw.training.prepare.encode_labels", 1, 130, []),
        ("train", "ooc_fw.solver.loop._Loop._finish", 2, 130, []),
        ("train", "ooc_fw.model.record.Model.save", 1, 0, ["m.h5"]),
        ("tune", "ooc_fw.training.tuning.fit_part", 1, 130, []),
        ("tune", "ooc_fw.training.tuning.plan_model", 1, 130, ["m.h5"]),
    ],
    ids=["before the run", "twice", "while the model is written", "first", "last training"],
)
def test_signals_at_any_moment(
    ooc_fw, data_file, tmp_path, monkeypatch, command, place, times, status, files
):
    """Two signals leave no file at all; a model that is being written is kept."""

    def signalled(*arguments, **named):
        for _ in range(times):
            signal.raise_signal(signal.SIGINT)
        return original(*arguments, **named)

    original = pkgutil.resolve_name(place)
    monkeypatch.setattr(place, signalled)
    options = "--quiet", "--C", "1", "--gamma", "auto"
    outcome = ooc_fw(command, data_file, "-o", tmp_path / "m.h5", *options)
    assert outcome.status == status
    assert [path.name for path in tmp_path.iterdir()] == files
    if not files:
        assert (outcome.out, outcome.err) == ("", "ooc-fw: interrupted\n")


def test_an_interrupted_run_keeps_the_old_model(ooc_fw, here, model_file):
    """Its own model has another name; that of the next run replaces it."""
    whole = model_file.read_bytes()
    saving = "--checkpoint", "new.ckpt", "--checkpoint-every", "0.01"

    def interrupt():
        while not Path("new.ckpt").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    for name in ("new.h5", "new.unfinished.h5", "new.unfinished.h5"):
        Path("new.ckpt").unlink(missing_ok=True)
        threading.Thread(target=interrupt, daemon=True).start()
        outcome = ooc_fw("train", "d.h5", "-o", "new.h5", "--json", *saving, *LONG)
        assert outcome.status == 130
        assert json.loads(outcome.out)["model"] == name
        assert load_model(name).status == "interrupted"
        assert (f"it is in {name}" in outcome.err) == (name != "new.h5")
        if name == "new.h5":
            Path("new.h5").write_bytes(whole)
        assert Path("new.h5").read_bytes() == whole
